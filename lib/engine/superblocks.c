/* SPDX-License-Identifier: MIT */
/* superblocks.c: implements superblocks.h. */
#include "engine/superblocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* The size of the largest superblock, and of an allocator's first one.  Other sizes made programs reserve more. */
#define SUPERBLOCK_MOST (WEIR_POOL_UNIT / 8 * 7)
/* The size of a stream's first superblock, unless it is the allocator's first; many streams have few small blocks. */
#define SUPERBLOCK_LEAST ((size_t)2 << 20)
/* A superblock has at most 1/32 of the limit of reserved memory, or the size of one slab if that is larger. */
#define LIMIT_PART 32

enum { INSIDE = 255 };

void weir__superblocks_close(struct weir_superblocks *list) {
    while (list->first) {
        struct weir_superblock *superblock = list->first;

        list->first = superblock->next;
        free(superblock);
    }
    pthread_mutex_destroy(&list->lock);
}

/* Returns the list's pointer to the superblock around the address, or the last pointer.  The caller holds `lock`. */
static struct weir_superblock **link_around(struct weir_superblocks *list, uint64_t address) {
    struct weir_superblock **at = &list->first;

    while (*at && address - (*at)->base >= (*at)->bytes)
        at = &(*at)->next;
    return at;
}

/* Places a slab at the lowest free pages.  Returns 0 if the slab does not fit.  The caller holds `lock`. */
static CUdeviceptr place_slab(struct weir_superblocks *list, struct weir_superblock *superblock,
                              size_t bytes) {
    size_t pages = bytes / WEIR_PAGE, end = superblock->bytes / WEIR_PAGE, free_pages = 0, at = 0;

    while (at < end && free_pages < pages) {
        free_pages = superblock->page[at] == 0 ? free_pages + 1 : 0;
        at += superblock->page[at] == 0 ? 1 : superblock->page[at];
    }
    if (free_pages < pages)
        return 0;
    at -= pages;
    memset(superblock->page + at, INSIDE, pages);
    superblock->page[at] = (unsigned char)pages;
    superblock->used += bytes;
    atomic_fetch_sub_explicit(&list->idle, bytes, memory_order_relaxed);
    return superblock->base + at * WEIR_PAGE;
}

int weir__superblocks_cut(struct weir_superblocks *list, struct weir_request *r) {
    CUdeviceptr slab = 0;

    pthread_mutex_lock(&list->lock);
    for (struct weir_superblock *superblock = list->first; superblock && slab == 0;
         superblock = superblock->next)
        if (superblock->stream == r->id)
            slab = place_slab(list, superblock, r->bytes);
    pthread_mutex_unlock(&list->lock);
    if (slab)
        r->block = slab;
    return slab != 0;
}

struct weir_superblock *weir__superblocks_make(struct weir_superblocks *list,
                                               const struct weir_request *r, uint64_t limit) {
    struct weir_superblock *superblock;
    uint64_t most;
    size_t bytes;

    pthread_mutex_lock(&list->lock);
    most = list->first ? 0 : SUPERBLOCK_MOST;
    for (superblock = list->first; superblock; superblock = superblock->next)
        if (superblock->stream == r->id)
            most += superblock->bytes;
    pthread_mutex_unlock(&list->lock);
    /* A stream's next superblock is as large as all its superblocks together. */
    most = weir__size_smaller(weir__size_larger(most, SUPERBLOCK_LEAST), SUPERBLOCK_MOST);
    most = weir__size_smaller(most, limit / LIMIT_PART);
    bytes = weir__size_round_down(weir__size_larger(most, r->bytes), WEIR_PAGE);
    superblock = calloc(1, sizeof *superblock + bytes / WEIR_PAGE);
    if (superblock) {
        superblock->bytes = bytes;
        superblock->stream = r->id;
    }
    return superblock;
}

/* Appends the superblock, so that new slabs fill older superblocks first. */
void weir__superblocks_add(struct weir_superblocks *list, struct weir_superblock *superblock,
                           size_t bytes) {
    struct weir_superblock **end = &list->first;

    pthread_mutex_lock(&list->lock);
    while (*end)
        end = &(*end)->next;
    *end = superblock;
    superblock->next = NULL;
    atomic_fetch_add_explicit(&list->idle, superblock->bytes, memory_order_relaxed);
    if (bytes > 0)
        (void)place_slab(list, superblock, bytes);
    pthread_mutex_unlock(&list->lock);
}

/* Returns 1 if the host has waited for the device since the last free in the superblock, else 0. */
static int is_observed(const struct weir_superblocks *list,
                       const struct weir_superblock *superblock) {
    return atomic_load(&list->device->waited) > superblock->freed;
}

int weir__superblocks_put(struct weir_superblocks *list, CUdeviceptr slab, uint64_t id,
                          struct weir_superblock **empty) {
    struct weir_superblock **at, *superblock;
    size_t first, pages = 0;

    *empty = NULL;
    pthread_mutex_lock(&list->lock);
    at = link_around(list, slab);
    superblock = *at;
    if (superblock) {
        first = (slab - superblock->base) / WEIR_PAGE;
        pages = superblock->page[first];
    }
    if (pages > 0) {
        memset(superblock->page + first, 0, pages);
        superblock->used -= pages * WEIR_PAGE;
        atomic_fetch_add_explicit(&list->idle, pages * WEIR_PAGE, memory_order_relaxed);
        if (id != WEIR_ENGINE_OBSERVED) {
            superblock->freed = atomic_load(&list->device->waits);
            if (superblock->stream != id)
                superblock->stream = WEIR_ENGINE_UNKNOWN;
        }
        if (superblock->used == 0 && ((superblock->stream == id && id != WEIR_ENGINE_UNKNOWN) ||
                                      is_observed(list, superblock))) {
            *at = superblock->next;
            *empty = superblock;
        }
    }
    pthread_mutex_unlock(&list->lock);
    return pages > 0;
}

struct weir_superblock *weir__superblocks_idle(struct weir_superblocks *list, int all_done) {
    struct weir_superblock **at = &list->first, *superblock;

    pthread_mutex_lock(&list->lock);
    while (*at && ((*at)->used > 0 || !(all_done || is_observed(list, *at))))
        at = &(*at)->next;
    superblock = *at;
    if (superblock)
        *at = superblock->next;
    pthread_mutex_unlock(&list->lock);
    return superblock;
}

int weir__superblocks_need_wait(struct weir_superblocks *list) {
    const struct weir_superblock *superblock;

    pthread_mutex_lock(&list->lock);
    superblock = list->first;
    while (superblock && (superblock->used > 0 || superblock->stream != WEIR_ENGINE_UNKNOWN ||
                          is_observed(list, superblock)))
        superblock = superblock->next;
    pthread_mutex_unlock(&list->lock);
    return superblock != NULL;
}

int weir__superblocks_find(struct weir_superblocks *list, uint64_t address,
                           struct weir_extent *out) {
    const struct weir_superblock *superblock;

    pthread_mutex_lock(&list->lock);
    superblock = *link_around(list, address);
    if (superblock)
        *out = (struct weir_extent){.base = superblock->base, .bytes = superblock->bytes};
    pthread_mutex_unlock(&list->lock);
    return superblock != NULL;
}
