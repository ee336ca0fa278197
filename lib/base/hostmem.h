/* SPDX-License-Identifier: MIT */
/* hostmem.h: allocates host memory, counts its bytes, and lets a test make an allocation fail.
 *
 * A data structure that must stay consistent when host memory runs out allocates all memory through one `struct
 * weir__hostmem`, so that a test can make each allocation fail.  For short arrays, weir__hostmem_room() suffices. */
#ifndef WEIR_HOSTMEM_H
#define WEIR_HOSTMEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Resizes memory as realloc does.  If `bytes` is 0, frees the memory and returns NULL. */
typedef void *weir__hostmem_resize_fn(void *context, void *memory, size_t bytes);

struct weir__hostmem {
    weir__hostmem_resize_fn *resize; /* resizes memory; if NULL, weir uses realloc and free */
    void *context;                   /* the first argument of `resize` */
    size_t bytes;                    /* the number of bytes that are allocated now */
};

/* Asks the kernel for large pages (2 MiB).  The caller must not have accessed the memory yet.  Ignores a failure. */
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

/* Makes the kernel provide all pages of the memory now, so that later accesses do not wait for page faults. */
static inline void weir__hostmem_populate(void *memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)4 << 10, first = (uintptr_t)memory & ~(page - 1);

    (void)madvise((void *)first, (uintptr_t)memory + bytes - first, MADV_POPULATE_WRITE);
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Resizes memory from `held` to `bytes` bytes; `memory` may be NULL.  If `bytes` is 0, frees it and returns NULL.
 * Without host memory, returns NULL and keeps the old memory. */
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

/* Enlarges an array if it is full; `array` may be NULL.  Returns the array, which the caller frees.  Without host
 * memory, returns NULL and keeps the old array. */
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
