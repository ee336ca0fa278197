/* SPDX-License-Identifier: MIT */
/* guard_shelf.c: freed blocks on a shelf for each stream, and blocks that are kept out of use.
 *
 * What: a block leaves the shelf after it was verified on the stream that freed it: oldest first to the next request of
 * that stream and size, or below if the shelf is full.  The shelves of all streams are emptied, after a wait for the
 * device, if memory has run out, in a trim, at the end, or if there are too many shelves.  A block that was written to
 * is reported and *kept out* of use until the end, since the writer may write again; and so is one that the driver does
 * not let weir verify.  A block that the layer below refuses is kept out until the shelves are emptied again.  A shelf
 * belongs to a stream id, since handles are used again.
 *
 * Locks: `lock`.
 */
#include "cache/guard_state.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/size.h"
#include "base/text.h"

#define SHELF_BYTES ((size_t)64 << 20)

enum { SHELF_BLOCKS = 64, SHELVES = 64 };

/* Returns the place of a stream's shelf in the list, or the end of the list.  The caller holds `lock`. */
static struct weir_shelf **place_of(struct weir_harden *h, uint64_t id) {
    struct weir_shelf **at = &h->shelves;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* Takes the oldest block of that size off the shelf, or the oldest one if `total` is 0.  Returns NULL if there is none.
 * The caller holds `lock`. */
static struct weir_guarded *take_off(struct weir_harden *h, struct weir_shelf *shelf,
                                     size_t total) {
    struct weir_guarded **at = &shelf->oldest, *b;

    while (*at && total > 0 && (*at)->total != total)
        at = &(*at)->next;
    b = *at;
    if (!b)
        return NULL;
    *at = b->next;
    if (shelf->end == &b->next)
        shelf->end = at;
    shelf->count--;
    shelf->bytes -= b->total;
    h->held--;
    h->held_bytes -= b->total;
    return b;
}

/* Puts a block onto a stream's shelf.  Returns 1 on success, 0 if there is no host memory. */
static int put_on(struct weir_harden *h, uint64_t id, struct weir_guarded *b) {
    struct weir_shelf **at, *shelf;

    pthread_mutex_lock(&h->lock);
    at = place_of(h, id);
    shelf = *at;
    if (!shelf) {
        shelf = malloc(sizeof *shelf);
        if (shelf) {
            *shelf = (struct weir_shelf){.id = id, .end = &shelf->oldest};
            *at = shelf;
            h->shelf_count++;
        }
    }
    if (shelf) {
        b->next = NULL;
        *shelf->end = b;
        shelf->end = &b->next;
        shelf->count++;
        shelf->bytes += b->total;
        h->held++;
        h->held_bytes += b->total;
    }
    pthread_mutex_unlock(&h->lock);
    return shelf != NULL;
}

/* Takes the oldest block off a stream's shelf if the shelf is too full, else returns NULL. */
static struct weir_guarded *take_excess(struct weir_harden *h, uint64_t id) {
    struct weir_guarded *b = NULL;
    struct weir_shelf *shelf;

    pthread_mutex_lock(&h->lock);
    shelf = *place_of(h, id);
    /* unreached: no shelf, for which another thread must empty it meanwhile */
    if (shelf && shelf->count > 1 && (shelf->count > SHELF_BLOCKS || shelf->bytes > SHELF_BYTES))
        b = take_off(h, shelf, 0);
    pthread_mutex_unlock(&h->lock);
    return b;
}

static void keep_out(struct weir_harden *h, struct weir_guarded *b, int is_refused) {
    pthread_mutex_lock(&h->lock);
    b->is_refused = is_refused;
    b->next = h->kept_out;
    h->kept_out = b;
    h->refused += (size_t)is_refused;
    h->kept_out_bytes += b->total;
    h->held++;
    h->held_bytes += b->total;
    pthread_mutex_unlock(&h->lock);
}

void weir__guard_return_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              int is_refused) {
    if (h->below.free(h->below.context, b->base, stream, NULL) == WEIR_OK)
        free(b);
    else
        keep_out(h, b, is_refused);
}

/* Verifies a block that has left its shelf, on `stream`, after all work on the block.  Returns 1 if it is unchanged;
 * else keeps it out of use and returns 0. */
static int is_sound(struct weir_harden *h, struct weir_guarded *b, weir_stream stream) {
    size_t bad = b->total;
    CUresult result = is_on(h, WEIR_HARDEN_POISON)
                          ? weir__guard_verify(h, b->base, WEIR_POISON_BYTE, b->total, stream, &bad)
                          : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS && bad == b->total)
        return 1;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&h->lock);
        h->late_writes++;
        pthread_mutex_unlock(&h->lock);
        weir__log(h->options->log, WEIR_LOG_ERROR,
                  "block 0x%llx of %zu byte%s was written to after it was freed on stream 0x%llx, "
                  "first at offset %lld: it is kept out of use",
                  (unsigned long long)address_of(h, b), b->bytes, weir__plural(b->bytes),
                  (unsigned long long)(uintptr_t)b->stream, (long long)bad - (long long)gap(h));
    } else {
        (void)weir__device_status(h->device, result);
    }
    keep_out(h, b, 0);
    return 0;
}

struct weir_guarded *weir__guard_take(struct weir_harden *h, uint64_t id, size_t total,
                                      weir_stream stream) {
    struct weir_guarded *b;

    do {
        struct weir_shelf *shelf;

        pthread_mutex_lock(&h->lock);
        shelf = id ? *place_of(h, id) : NULL;
        b = shelf ? take_off(h, shelf, total) : NULL;
        pthread_mutex_unlock(&h->lock);
    } while (b && !is_sound(h, b, stream));
    return b;
}

/* Takes the blocks that the layer below refused, or with `all` all blocks, out of the list of kept ones.  The caller
 * holds the lock. */
static struct weir_guarded *take_kept(struct weir_harden *h, int all) {
    struct weir_guarded **at = &h->kept_out, *taken = NULL, *b;

    while ((b = *at)) {
        if (!all && !b->is_refused) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->next = taken;
        taken = b;
        h->refused -= (size_t)b->is_refused;
        h->kept_out_bytes -= b->total;
        h->held--;
        h->held_bytes -= b->total;
    }
    return taken;
}

/* Verifies a block that has left its shelf, and frees it below. */
static void give_down(struct weir_harden *h, struct weir_guarded *b, weir_stream stream) {
    if (is_sound(h, b, stream))
        weir__guard_return_below(h, b, stream, 1);
}

static void keep_out_all(struct weir_harden *h, struct weir_guarded *blocks) {
    struct weir_guarded *b;

    while ((b = blocks)) {
        blocks = b->next;
        keep_out(h, b, b->is_refused);
    }
}

weir_status weir__guard_empty(struct weir_harden *h, int all, weir_stream stream) {
    struct weir_guarded *blocks = NULL, *b, *bad;
    struct weir_shelf *shelves, **last = &shelves;
    weir_status status;

    /* The wait may not cover blocks that are shelved or refused from now on, so the lists are taken before it. */
    pthread_mutex_lock(&h->lock);
    shelves = h->shelves;
    h->shelves = NULL;
    h->shelf_count = 0;
    bad = take_kept(h, all);
    pthread_mutex_unlock(&h->lock);
    status = weir__device_status(h->device, weir__device_wait(h->device));
    pthread_mutex_lock(&h->lock);
    if (status != WEIR_OK) {
        for (; *last; last = &(*last)->next)
            h->shelf_count++;
        *last = h->shelves;
        h->shelves = shelves;
        pthread_mutex_unlock(&h->lock);
        keep_out_all(h, bad);
        return status;
    }
    while (shelves) {
        struct weir_shelf *shelf = shelves;

        while ((b = take_off(h, shelf, 0))) {
            b->next = blocks;
            blocks = b;
        }
        shelves = shelf->next;
        free(shelf);
    }
    pthread_mutex_unlock(&h->lock);
    while ((b = bad)) {
        bad = b->next;
        weir__guard_return_below(h, b, stream, b->is_refused);
    }
    while ((b = blocks)) {
        blocks = b->next;
        give_down(h, b, stream);
    }
    return WEIR_OK;
}

int weir__guard_holds(struct weir_harden *h, int all) {
    int some;

    pthread_mutex_lock(&h->lock);
    some = h->shelves != NULL || h->refused > 0 || (all && h->kept_out);
    pthread_mutex_unlock(&h->lock);
    return some;
}

weir_status weir__harden_empty(struct weir_harden *h, int all) {
    weir_status status = weir__guard_holds(h, 0) ? weir__guard_empty(h, 0, h->quiet) : WEIR_OK;

    /* The first call may have found bad blocks. */
    if (status == WEIR_OK && all && weir__guard_holds(h, 1))
        status = weir__guard_empty(h, 1, h->quiet);
    return status; /* a block that the layer below refuses is kept out of use */
}

void weir__guard_shelve(struct weir_harden *h, struct weir_guarded *b, uint64_t id,
                        weir_stream stream) {
    struct weir_guarded *excess;
    int many;

    if (!put_on(h, id, b)) {
        give_down(h, b, stream);
        return;
    }
    while ((excess = take_excess(h, id)))
        give_down(h, excess, stream);
    pthread_mutex_lock(&h->lock);
    many = h->shelf_count > SHELVES;
    pthread_mutex_unlock(&h->lock);
    if (many)
        (void)weir__guard_empty(h, 0, stream);
}
