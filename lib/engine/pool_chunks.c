/* SPDX-License-Identifier: MIT */
/* pool_chunks.c: see pool_chunks.h. */
#include "engine/pool_chunks.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* The largest chunk, and the first one of an allocator: seven eighths of a unit.  On the recorded programs it reserves
 * less memory than chunks of 1 to 16 or of 32 MiB and more, and the driver moves fewer units. */
#define CHUNK_MOST (WEIR_POOL_UNIT / 8 * 7)
/* The first chunk of each further stream, which often has few small blocks. */
#define CHUNK_LEAST ((size_t)2 << 20)
/* A chunk has at most this part of the limit, and at least one slab. */
#define LIMIT_PART 32

enum { INSIDE = 255 };

void weir__chunks_open(struct weir_chunks *chunks, struct weir_device *device) {
    chunks->device = device;
    chunks->end = &chunks->first;
    pthread_mutex_init(&chunks->lock, NULL);
}

void weir__chunks_close(struct weir_chunks *chunks) {
    while (chunks->first) {
        struct weir_chunk *chunk = chunks->first;

        chunks->first = chunk->next;
        free(chunk);
    }
    pthread_mutex_destroy(&chunks->lock);
}

/* Adds a chunk at the end of the list, so that older chunks fill first.  The caller holds `lock`. */
static void append(struct weir_chunks *chunks, struct weir_chunk *chunk) {
    chunk->next = NULL;
    *chunks->end = chunk;
    chunks->end = &chunk->next;
    atomic_fetch_add_explicit(&chunks->idle, chunk->bytes - chunk->used, memory_order_relaxed);
}

/* Removes the chunk that *at points to.  The caller holds `lock`. */
static struct weir_chunk *withdraw(struct weir_chunks *chunks, struct weir_chunk **at) {
    struct weir_chunk *chunk = *at;

    *at = chunk->next;
    if (chunks->end == &chunk->next)
        chunks->end = at;
    atomic_fetch_sub_explicit(&chunks->idle, chunk->bytes - chunk->used, memory_order_relaxed);
    return chunk;
}

/* Returns the link to the chunk around the address, or to NULL.  The caller holds `lock`. */
static struct weir_chunk **link_around(struct weir_chunks *chunks, uint64_t address) {
    struct weir_chunk **at = &chunks->first;

    while (*at && address - (*at)->base >= (*at)->bytes)
        at = &(*at)->next;
    return at;
}

/* Places a slab of `bytes` at the lowest address that has room.  Returns its address, or 0.  The caller holds `lock`. */
static CUdeviceptr place_slab(struct weir_chunks *chunks, struct weir_chunk *chunk, size_t bytes) {
    size_t pages = bytes / WEIR_PAGE, end = chunk->bytes / WEIR_PAGE, free_pages = 0, at = 0;

    while (at < end && free_pages < pages) {
        free_pages = chunk->page[at] == 0 ? free_pages + 1 : 0;
        at += chunk->page[at] == 0 ? 1 : chunk->page[at];
    }
    if (free_pages < pages)
        return 0;
    at -= pages;
    memset(chunk->page + at, INSIDE, pages);
    chunk->page[at] = (unsigned char)pages;
    chunk->used += bytes;
    atomic_fetch_sub_explicit(&chunks->idle, bytes, memory_order_relaxed);
    return chunk->base + at * WEIR_PAGE;
}

int weir__chunks_cut(struct weir_chunks *chunks, struct weir_request *r) {
    CUdeviceptr slab = 0;

    pthread_mutex_lock(&chunks->lock);
    for (struct weir_chunk *chunk = chunks->first; chunk && slab == 0; chunk = chunk->next)
        if (chunk->stream == r->id)
            slab = place_slab(chunks, chunk, r->bytes);
    pthread_mutex_unlock(&chunks->lock);
    if (slab)
        r->block = slab;
    return slab != 0;
}

/* Returns the bytes of the stream's next chunk: as many as its chunks have together. */
static uint64_t next_bytes(struct weir_chunks *chunks, uint64_t stream) {
    uint64_t own = 0;
    int is_first;

    pthread_mutex_lock(&chunks->lock);
    is_first = chunks->first == NULL;
    for (const struct weir_chunk *chunk = chunks->first; chunk; chunk = chunk->next)
        if (chunk->stream == stream)
            own += chunk->bytes;
    pthread_mutex_unlock(&chunks->lock);
    return is_first ? CHUNK_MOST
                    : weir__size_smaller(weir__size_larger(own, CHUNK_LEAST), CHUNK_MOST);
}

struct weir_chunk *weir__chunks_make(struct weir_chunks *chunks, const struct weir_request *r,
                                     uint64_t limit) {
    uint64_t most = weir__size_smaller(next_bytes(chunks, r->id), limit / LIMIT_PART);
    size_t bytes = weir__size_round_down(weir__size_larger(most, r->bytes), WEIR_PAGE);
    struct weir_chunk *chunk = calloc(1, sizeof *chunk + bytes / WEIR_PAGE);

    if (chunk) {
        chunk->bytes = bytes;
        chunk->stream = r->id;
    }
    return chunk;
}

void weir__chunks_add(struct weir_chunks *chunks, struct weir_chunk *chunk,
                      const struct weir_request *r) {
    chunk->base = r->block;
    pthread_mutex_lock(&chunks->lock);
    append(chunks, chunk);
    (void)place_slab(chunks, chunk, r->bytes);
    pthread_mutex_unlock(&chunks->lock);
}

/* Returns 1 if the host has waited for the device since the last free on the chunk's stream, else 0. */
static int is_observed(const struct weir_chunks *chunks, const struct weir_chunk *chunk) {
    return atomic_load(&chunks->device->waited) > chunk->freed;
}

int weir__chunks_put(struct weir_chunks *chunks, CUdeviceptr slab, int is_done,
                     struct weir_chunk **empty) {
    struct weir_chunk **at, *chunk;
    size_t first, pages = 0;

    *empty = NULL;
    pthread_mutex_lock(&chunks->lock);
    at = link_around(chunks, slab);
    chunk = *at;
    if (chunk) {
        first = (slab - chunk->base) / WEIR_PAGE;
        pages = chunk->page[first];
    }
    if (pages > 0) {
        memset(chunk->page + first, 0, pages);
        chunk->used -= pages * WEIR_PAGE;
        atomic_fetch_add_explicit(&chunks->idle, pages * WEIR_PAGE, memory_order_relaxed);
        if (!is_done)
            chunk->freed = atomic_load(&chunks->device->waits);
        if (chunk->used == 0 && (!is_done || is_observed(chunks, chunk)))
            *empty = withdraw(chunks, at);
    }
    pthread_mutex_unlock(&chunks->lock);
    return pages > 0;
}

struct weir_chunk *weir__chunks_idle(struct weir_chunks *chunks, int all_done) {
    struct weir_chunk **at = &chunks->first, *chunk = NULL;

    pthread_mutex_lock(&chunks->lock);
    while (*at && ((*at)->used > 0 || !(all_done || is_observed(chunks, *at))))
        at = &(*at)->next;
    if (*at)
        chunk = withdraw(chunks, at);
    pthread_mutex_unlock(&chunks->lock);
    return chunk;
}

void weir__chunks_end(struct weir_chunks *chunks, struct weir_chunk *chunk, int is_freed) {
    if (is_freed) {
        free(chunk);
        return;
    }
    pthread_mutex_lock(&chunks->lock);
    append(chunks, chunk);
    pthread_mutex_unlock(&chunks->lock);
}

int weir__chunks_find(struct weir_chunks *chunks, uint64_t address, struct weir_extent *out) {
    const struct weir_chunk *chunk;

    pthread_mutex_lock(&chunks->lock);
    chunk = *link_around(chunks, address);
    if (chunk)
        *out = (struct weir_extent){.base = chunk->base, .bytes = chunk->bytes};
    pthread_mutex_unlock(&chunks->lock);
    return chunk != NULL;
}
