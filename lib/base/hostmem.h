/* SPDX-License-Identifier: MIT */
/* hostmem.h: host memory through one function, which a test can let fail, with a sum of its bytes.
 *
 * A structure that must stay whole when the host runs out of memory takes all its memory through
 * one `struct weir__hostmem`, so that a test refuses request k for every k, and so that the
 * structure can say what it costs.  Short arrays that need neither grow by weir__hostmem_room.
 *
 * Must not know: what the memory is for.
 */
#ifndef WEIR_HOSTMEM_H
#define WEIR_HOSTMEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* As realloc, but bytes == 0 frees and returns NULL. */
typedef void *weir__hostmem_resize_fn(void *context, void *memory, size_t bytes);

struct weir__hostmem {
    weir__hostmem_resize_fn *resize; /* NULL: realloc and free */
    void *context;                   /* handed to resize */
    size_t bytes;                    /* held now */
};

/* Large tables that are read here and there spend more on address translation than on the reads; in a
 * virtual machine twice so.  Asks for large pages where the kernel has them, before the memory is
 * touched; whatever it answers is fine. */
static inline void weir__hostmem_prefer_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)2 << 20;
    uintptr_t first = ((uintptr_t)memory + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);

    if (end > first)
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Maps at once every page that this memory touches, in one call where the kernel can (Linux 5.14).  A page that is mapped
 * on first use costs its user as much as several hits.  A failure does no harm. */
static inline void weir__hostmem_populate(void *memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)4 << 10, first = (uintptr_t)memory & ~(page - 1);

    (void)madvise((void *)first, (uintptr_t)memory + bytes - first, MADV_POPULATE_WRITE);
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Grows or shrinks `memory`, which holds `held` bytes (NULL and 0: none).  NULL if refused, and
 * then nothing changed; also NULL for bytes == 0, which never fails. */
static inline void *weir__hostmem_resize(struct weir__hostmem *host, void *memory, size_t held,
                                         size_t bytes) {
    void *moved = NULL;

    if (host->resize != NULL) {
        moved = host->resize(host->context, memory, bytes);
    } else if (bytes == 0) {
        free(memory);
    } else {
        moved = realloc(memory, bytes);
        if (moved != NULL)
            weir__hostmem_prefer_large_pages(moved, bytes);
    }
    if (moved != NULL || bytes == 0)
        host->bytes += bytes - held;
    return moved;
}

/* Room for one more element than `count` in a plain array (NULL: empty), however much that is more than it has:
 * the array, moved if need be, or NULL and everything as before.  The owner frees it. */
static inline void *weir__hostmem_room(void *array, size_t count, size_t *capacity,
                                       size_t element) {
    size_t larger = *capacity ? *capacity * 2 : 8;
    void *moved;

    if (count < *capacity)
        return array;
    while (larger <= count)
        larger *= 2;
    moved = realloc(array, larger * element);
    if (moved)
        *capacity = larger;
    return moved;
}

#endif
