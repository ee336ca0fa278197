/* SPDX-License-Identifier: MIT */
/* hostmem.h: host memory that a test can make fail, and whose bytes are counted.
 *
 * A structure that must stay consistent when host memory runs out allocates all its memory through one `struct
 * weir__hostmem`.  A test then makes the structure's k-th request fail, for every k, and the structure knows its own
 * cost.  Short arrays that need neither the test nor the count grow by weir__hostmem_room.
 *
 * This file must not know the use of the memory.
 */
#ifndef WEIR_HOSTMEM_H
#define WEIR_HOSTMEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Does what realloc does, but frees the memory and returns NULL if `bytes` is 0. */
typedef void *weir__hostmem_resize_fn(void *context, void *memory, size_t bytes);

struct weir__hostmem {
    weir__hostmem_resize_fn *resize; /* NULL if realloc and free do the work */
    void *context;                   /* the first argument of `resize` */
    size_t bytes;                    /* the bytes that are allocated now */
};

/* Requests large pages for memory that is not touched yet.  With small pages, the address translation of random reads
 * in a large table costs more than the reads, and even more in a virtual machine.  A failure does no harm. */
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

/* Maps every page of this memory now, by one call of madvise (from Linux 5.14 on).  Otherwise the first use of each
 * page would cost a page fault, which takes as long as several requests that a per-stream cache serves.  A failure does
 * no harm. */
static inline void weir__hostmem_populate(void *memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)4 << 10, first = (uintptr_t)memory & ~(page - 1);

    (void)madvise((void *)first, (uintptr_t)memory + bytes - first, MADV_POPULATE_WRITE);
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Resizes `memory`, which has `held` bytes; `memory` is NULL and `held` is 0 if there is no memory yet.  Returns NULL
 * on failure, and changes nothing in this case.  If `bytes` is 0, frees the memory and returns NULL. */
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

/* Makes room for element number `count` of an array; `array` is NULL if the array has no memory yet.  Returns the
 * array, which may have moved.  Returns NULL if there is no memory, and changes nothing in this case.  The owner frees
 * the array. */
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
