/* SPDX-License-Identifier: MIT */
/* guard.c: a layer that guards, poisons or clears blocks; see guard.h.
 *
 * Guard: a block is requested from the layer below with a gap on either side.  The gaps are filled on the block's
 * stream, and verified there when the block is freed.
 *
 * Poison: a freed block is filled on its stream and stays here, on the stream's *shelf*, where the layer below cannot
 * reuse it.  Any write to it that is found later came after the free.
 *
 * Zero: a block from below is zeroed on its stream before it is returned, since this layer does not know who used its
 * memory before.  With "zero-stream" freed blocks stay on the stream's shelf, too, and a block from there keeps its
 * contents, which are the stream's own.  With "zero-always" it is zeroed again.
 *
 * Capture: a block that is requested on a captured stream belongs to the graph.  It has neither gaps nor poison, but a
 * node of the graph zeroes it at each launch.  A block that is freed on a captured stream goes below unverified, since
 * weir cannot wait for a captured stream.
 *
 * Verification: weir copies memory to the host and waits for the stream.  If the driver refuses that wait, weir waits
 * for the device, at once or before the next verification: nobody may reuse the block or the buffer while a copy is
 * under way.  If a block has noted uses, its stream waits for those streams on the device.
 *
 * Shelves: a block leaves the shelf after it was verified on the stream that freed it: oldest first to the next request
 * of that stream and size, or below if the shelf is full.  The shelves of all streams are emptied, after a wait for the
 * device, if memory has run out, in a trim, at the end, or if there are too many shelves.  A block that was written to
 * is reported and *kept out* of use until the end, since the writer may write again; and so is one that the driver does
 * not let weir verify.  A block that the layer below refuses is kept out until the shelves are emptied again.  A shelf
 * belongs to a stream id, since handles are used again.
 *
 * Locks: `lock` guards the records of blocks; nothing is called under it.  `checking` guards the buffer, and is held
 * while the driver copies and waits.
 */
#include "cache/guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"

/* The bytes of each gap around a block; a multiple of the alignment. */
#define WEIR_GUARD_GAP ((size_t)256)

/* The bytes that are verified at a time. */
#define WEIR_GUARD_BUFFER ((size_t)1 << 20)

/* The byte that fills poisoned memory. */
enum { WEIR_POISON_BYTE = 0xdd };

/* A block from the layer below. */
struct weir_guarded {
    CUdeviceptr base;
    size_t total, bytes;       /* the request below; the caller's request, behind the first gap */
    weir_stream stream;        /* the stream of the free, for messages */
    struct weir_guarded *next; /* links blocks of a shelf, or blocks that are kept out of use */
    int is_refused; /* set if a block is kept out only because the layer below refused it */
};

/* A shelf: freed blocks of one stream that are poisoned and kept from reuse, oldest first. */
struct weir_shelf {
    uint64_t id;
    struct weir_guarded *oldest, **end;
    size_t count, bytes;
    struct weir_shelf *next;
};

struct weir_harden {
    struct weir_device *device;
    const weir_options *options;
    struct weir_harden_below below;
    uint64_t kinds; /* WEIR_HARDEN_ */
    /* Runs only copies of blocks that are freed below after a wait for the device. */
    CUstream quiet;

    pthread_mutex_t lock; /* guards the fields below, up to `checking` */
    struct weir_map live; /* maps the caller's address to a struct weir_guarded * */
    struct weir_shelf *shelves;
    size_t shelf_count;
    struct weir_guarded *kept_out;
    size_t refused;                     /* the number of blocks in kept_out with is_refused */
    uint64_t held, held_bytes;          /* blocks on shelves or kept out of use, by size below */
    uint64_t kept_out_bytes;            /* the bytes of blocks kept out of use */
    uint64_t live_bytes;                /* live blocks, by their size below */
    uint64_t requested, requested_peak; /* live blocks, by the callers' requests */
    uint64_t reused;                    /* the number of requests that a shelf served */
    uint64_t late_writes, overruns;

    pthread_mutex_t checking; /* guards the fields below */
    unsigned char *buffer;    /* WEIR_GUARD_BUFFER bytes */
    _Atomic int is_copying;   /* set while a copy may be under way; also read without the lock */
};

static inline int is_on(const struct weir_harden *h, uint64_t kinds) {
    return (h->kinds & kinds) != 0;
}

static inline size_t gap(const struct weir_harden *h) {
    return is_on(h, WEIR_HARDEN_GUARD) ? WEIR_GUARD_GAP : 0;
}

static inline CUdeviceptr address_of(const struct weir_harden *h, const struct weir_guarded *b) {
    return b->base + gap(h);
}

/* ---- memory on a stream ---- */

enum { GUARD_BYTE = 0xfd };

/* The state around calls on the caller's stream: relaxed capture mode, and the caller's context if there is one. */
struct turn {
    struct weir_driver_scope scope;
    int in_scope;
};

static CUresult begin(const struct weir_harden *h, struct turn *turn) {
    const struct weir_driver *driver = h->device->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext current = NULL;
    CUresult result = driver->cuCtxGetCurrent(&current);

    if (result != CUDA_SUCCESS)
        return result;
    turn->in_scope = !current;
    if (!current)
        return weir__driver_enter(driver, h->device->context, &turn->scope);
    result = driver->cuThreadExchangeStreamCaptureMode(&mode);
    turn->scope.mode = mode;
    return result;
}

static void end(const struct weir_harden *h, const struct turn *turn) {
    CUstreamCaptureMode mode = turn->scope.mode;

    if (turn->in_scope)
        weir__driver_leave(h->device->driver, &turn->scope);
    else
        h->device->driver->cuThreadExchangeStreamCaptureMode(&mode);
}

static CUresult guard_fill(const struct weir_harden *h, CUdeviceptr at, unsigned char value,
                           size_t bytes, weir_stream stream) {
    struct turn turn;
    CUresult result = begin(h, &turn);

    if (result != CUDA_SUCCESS)
        return result;
    result = h->device->driver->cuMemsetD8Async(at, value, bytes, stream);
    end(h, &turn);
    return result;
}

/* Makes sure that no copy is under way.  The caller holds `checking`. */
static CUresult settle(struct weir_harden *h) {
    CUresult result = h->is_copying ? weir__device_wait(h->device) : CUDA_SUCCESS;

    h->is_copying = result != CUDA_SUCCESS;
    return result;
}

/* Copies up to WEIR_GUARD_BUFFER bytes to the host and waits for the stream.  The caller holds `checking`. */
static CUresult fetch(struct weir_harden *h, CUdeviceptr at, size_t bytes, weir_stream stream) {
    const struct weir_driver *driver = h->device->driver;
    CUresult result = driver->cuMemcpyDtoHAsync(h->buffer, at, bytes, stream);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuStreamSynchronize(stream);
    h->is_copying = result != CUDA_SUCCESS;
    (void)settle(h);
    return result;
}

/* Returns the offset of the first byte that is not `value`, or `bytes`, which is above 0. */
static size_t first_other(const unsigned char *at, unsigned char value, size_t bytes) {
    size_t i = 0;

    if (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0) /* memcmp is faster than a loop */
        return bytes;
    while (at[i] == value)
        i++;
    return i;
}

/* Verifies that all bytes are `value`.  Sets *bad to the offset of the first other byte, or to `bytes`. */
static CUresult guard_verify(struct weir_harden *h, CUdeviceptr at, unsigned char value,
                             size_t bytes, weir_stream stream, size_t *bad) {
    struct turn turn;
    CUresult result = begin(h, &turn);

    *bad = 0;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&h->checking);
    result = settle(h);
    while (result == CUDA_SUCCESS && *bad < bytes) {
        size_t part = bytes - *bad < WEIR_GUARD_BUFFER ? bytes - *bad : WEIR_GUARD_BUFFER, same;

        result = fetch(h, at + *bad, part, stream);
        if (result != CUDA_SUCCESS)
            break;
        same = first_other(h->buffer, value, part);
        *bad += same;
        if (same < part)
            break;
    }
    pthread_mutex_unlock(&h->checking);
    end(h, &turn);
    return result;
}

static CUresult wait_for_event(const struct weir_harden *h, weir_stream stream, CUevent event) {
    struct turn turn;
    CUresult result = begin(h, &turn);

    if (result != CUDA_SUCCESS)
        return result;
    result = h->device->driver->cuStreamWaitEvent(stream, event, 0);
    end(h, &turn);
    return result;
}

/* Makes the stream wait for all work that the noted streams have now. */
static CUresult guard_wait_for_uses(struct weir_harden *h, weir_stream stream,
                                    struct weir_use_list *uses) {
    const struct weir_driver *driver = h->device->driver;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < uses->count && result == CUDA_SUCCESS; i++) {
        CUevent event = NULL;

        result = WEIR_IN_SCOPE(driver, h->device->context,
                               driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        if (result != CUDA_SUCCESS)
            break;
        result = weir__device_record(h->device, event, uses->use[i].stream, uses->use[i].id);
        uses->use[i].refused = result == CUDA_ERROR_INVALID_HANDLE;
        if (result == CUDA_SUCCESS)
            result = wait_for_event(h, stream, event);
        driver->cuEventDestroy(event); /* the stream's wait outlives the event */
    }
    return result;
}

static size_t behind(const struct weir_harden *h, const struct weir_guarded *b) {
    return b->total - gap(h) - b->bytes;
}

static CUresult guard_fill_gaps(const struct weir_harden *h, const struct weir_guarded *b,
                                weir_stream stream) {
    CUresult result = guard_fill(h, b->base, GUARD_BYTE, WEIR_GUARD_GAP, stream);

    if (result != CUDA_SUCCESS)
        return result;
    return guard_fill(h, b->base + WEIR_GUARD_GAP + b->bytes, GUARD_BYTE, behind(h, b), stream);
}

static void report_overrun(struct weir_harden *h, const struct weir_guarded *b, weir_stream stream,
                           int is_behind, size_t bytes) {
    pthread_mutex_lock(&h->lock);
    h->overruns++;
    pthread_mutex_unlock(&h->lock);
    weir__log(
        h->options->log, WEIR_LOG_ERROR,
        "block 0x%llx of %zu byte%s, freed on stream 0x%llx: the gap %s it was written to, %zu "
        "byte%s %s",
        (unsigned long long)address_of(h, b), b->bytes, weir__plural(b->bytes),
        (unsigned long long)(uintptr_t)stream, is_behind ? "behind" : "before", bytes,
        weir__plural(bytes), is_behind ? "past its end" : "before its beginning");
}

/* Verifies the gaps around a block, and reports writes to them. */
static CUresult guard_check_gaps(struct weir_harden *h, const struct weir_guarded *b,
                                 weir_stream stream) {
    size_t before_at = 0, behind_at = 0;
    CUresult result = guard_verify(h, b->base, GUARD_BYTE, WEIR_GUARD_GAP, stream, &before_at);

    if (result == CUDA_SUCCESS)
        result = guard_verify(h, b->base + WEIR_GUARD_GAP + b->bytes, GUARD_BYTE, behind(h, b),
                              stream, &behind_at);
    if (result != CUDA_SUCCESS)
        return result;
    if (before_at < WEIR_GUARD_GAP)
        report_overrun(h, b, stream, 0, WEIR_GUARD_GAP - before_at);
    if (behind_at < behind(h, b))
        report_overrun(h, b, stream, 1, behind_at);
    return CUDA_SUCCESS;
}

/* ---- freed blocks ---- */

#define SHELF_BYTES ((size_t)64 << 20)

enum { SHELF_BLOCKS = 64, SHELVES = 64 };

/* Returns the place of a stream's shelf in the list, or the end of the list.  The caller holds `lock`. */
static struct weir_shelf **place_of(struct weir_harden *h, uint64_t id) {
    struct weir_shelf **at = &h->shelves;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* Removes and returns the oldest block of that size on the shelf, or the oldest one if `total` is 0.  Returns NULL if
 * there is none. The caller holds `lock`. */
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

/* Removes and returns the oldest block of a stream's shelf if the shelf is too full, else returns NULL. */
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

/* Frees a block below, or keeps it out of use if the layer below refuses it.  A bad block is not `is_refused`. */
static void guard_return_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
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
                          ? guard_verify(h, b->base, WEIR_POISON_BYTE, b->total, stream, &bad)
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

/* Removes and returns the oldest unchanged block of the size on the stream's shelf.  Returns NULL if there is none. */
static struct weir_guarded *guard_take(struct weir_harden *h, uint64_t id, size_t total,
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

/* Removes refused blocks, or with `all` all blocks, from the list of blocks that are kept out of use.  The caller holds
 * the lock. */
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

/* Verifies a block that has left its shelf, and frees it in the layer below. */
static void give_down(struct weir_harden *h, struct weir_guarded *b, weir_stream stream) {
    if (is_sound(h, b, stream))
        guard_return_below(h, b, stream, 1);
}

/* Waits for the device and frees below, on `stream`, all blocks of shelves and all refused blocks, or with `all` all
 * blocks that are kept out of use. */
static weir_status guard_empty(struct weir_harden *h, int all, weir_stream stream) {
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
        while ((b = bad)) {
            bad = b->next;
            keep_out(h, b, b->is_refused);
        }
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
        guard_return_below(h, b, stream, b->is_refused);
    }
    while ((b = blocks)) {
        blocks = b->next;
        give_down(h, b, stream);
    }
    return WEIR_OK;
}

/* Returns 1 if there are shelves or refused blocks, or with `all` any blocks that are kept out of use; else 0. */
static int guard_holds(struct weir_harden *h, int all) {
    int some;

    pthread_mutex_lock(&h->lock);
    some = h->shelves != NULL || h->refused > 0 || (all && h->kept_out);
    pthread_mutex_unlock(&h->lock);
    return some;
}

weir_status weir__harden_empty(struct weir_harden *h, int all) {
    weir_status status = guard_holds(h, 0) ? guard_empty(h, 0, h->quiet) : WEIR_OK;

    /* The first call may have found bad blocks. */
    if (status == WEIR_OK && all && guard_holds(h, 1))
        status = guard_empty(h, 1, h->quiet);
    return status; /* a block that the layer below refuses is kept out of use */
}

/* Puts a block onto the shelf of the stream with that id. */
static void guard_shelve(struct weir_harden *h, struct weir_guarded *b, uint64_t id,
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
        (void)guard_empty(h, 0, stream);
}

/* ---- requests ---- */

/* Returns the bytes of the request to the layer below.  Nothing overflows: no request exceeds the device's memory. */
static size_t total_of(const struct weir_harden *h, size_t bytes) {
    return is_on(h, WEIR_HARDEN_GUARD)
               ? weir__size_round_down(bytes + WEIR_GUARD_GAP - 1, WEIR_GUARD_GAP) +
                     2 * WEIR_GUARD_GAP
               : bytes;
}

size_t weir__harden_fit(const weir_options *options, size_t bytes) {
    if (!(options->harden & WEIR_HARDEN_GUARD))
        return bytes;
    return bytes > 2 * WEIR_GUARD_GAP
               ? weir__size_round_down(bytes - 2 * WEIR_GUARD_GAP, WEIR_GUARD_GAP)
               : 0;
}

/* Requests a block from below.  If that fails, empties the shelves and retries. */
static weir_status ask_below(struct weir_harden *h, size_t total, weir_stream stream,
                             CUdeviceptr *base) {
    weir_status status = h->below.alloc(h->below.context, total, stream, base);

    if (weir__is_failure(status) && guard_holds(h, 0) &&
        h->options->recovery_timeout_ms != UINT32_MAX && guard_empty(h, 0, stream) == WEIR_OK)
        status = h->below.alloc(h->below.context, total, stream, base);
    return status;
}

/* Makes a record with a new block from below.  Returns NULL with *status on failure. */
static struct weir_guarded *fresh(struct weir_harden *h, size_t total, weir_stream stream,
                                  weir_status *status) {
    struct weir_guarded *b = malloc(sizeof *b);

    if (!b) {
        *status = weir__without_driver(WEIR_E_HOST_MEMORY);
        return NULL;
    }
    *b = (struct weir_guarded){.total = total};
    *status = ask_below(h, total, stream, &b->base);
    if (*status != WEIR_OK) {
        free(b);
        return NULL;
    }
    /* The address no longer belongs to a graph, so a later free of it is not a graph's. */
    weir__graphs_forget(h->below.graphs, b->base);
    return b;
}

/* Zeroes the block if the settings require that, and fills its gaps. */
static CUresult prepare(struct weir_harden *h, const struct weir_guarded *b, int is_fresh,
                        weir_stream stream) {
    CUresult result = CUDA_SUCCESS;

    if (is_on(h, WEIR_HARDEN_ZERO_ALWAYS) || (is_fresh && is_on(h, WEIR_HARDEN_ZERO_STREAM)))
        result = guard_fill(h, address_of(h, b), 0, b->bytes, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = guard_fill_gaps(h, b, stream);
    return result;
}

/* Adds a live block to the map.  Returns 1 on success, 0 if there is no host memory. */
static int add_live(struct weir_harden *h, struct weir_guarded *b) {
    int added;

    pthread_mutex_lock(&h->lock);
    added = weir__map_put(&h->live, address_of(h, b), (uintptr_t)b);
    if (added) {
        h->live_bytes += b->total;
        h->requested += b->bytes;
        if (h->requested > h->requested_peak)
            h->requested_peak = h->requested;
    }
    pthread_mutex_unlock(&h->lock);
    return added;
}

static struct weir_guarded *take_live(struct weir_harden *h, CUdeviceptr address) {
    uintptr_t value = 0;
    struct weir_guarded *b;

    pthread_mutex_lock(&h->lock);
    (void)weir__map_take(&h->live, address, &value);
    b = (struct weir_guarded *)value; /* NOLINT: add_live() stored this pointer */
    if (b) {
        h->live_bytes -= b->total;
        h->requested -= b->bytes;
    }
    pthread_mutex_unlock(&h->lock);
    return b;
}

/* Allocates a node of a graph.  A pool without caches does not query captures, so the block is noted here, too. */
static weir_status alloc_captured(struct weir_harden *h, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block) {
    weir_status status = h->below.alloc(h->below.context, bytes, stream, block);
    CUresult result = CUDA_SUCCESS;
    int noted;

    if (status != WEIR_OK)
        return status;
    noted = weir__graphs_note(h->below.graphs, *block);
    if (noted && is_on(h, WEIR_HARDEN_ZERO_ALWAYS | WEIR_HARDEN_ZERO_STREAM))
        result = guard_fill(h, *block, 0, bytes, stream);
    if (noted && result == CUDA_SUCCESS)
        return WEIR_OK;
    (void)h->below.free(h->below.context, *block, stream, NULL);
    return noted ? weir__device_status(h->device, result)
                 : weir__without_driver(WEIR_E_HOST_MEMORY);
}

static weir_status alloc_hardened(struct weir_harden *h, size_t bytes, uint64_t id,
                                  weir_stream stream, CUdeviceptr *block) {
    size_t total = total_of(h, bytes);
    struct weir_guarded *b = guard_take(h, id, total, stream);
    int is_fresh = !b;
    weir_status status = WEIR_OK;

    if (is_fresh)
        b = fresh(h, total, stream, &status);
    if (!b)
        return status;
    b->bytes = bytes;
    status = weir__device_status(h->device, prepare(h, b, is_fresh, stream));
    if (status == WEIR_OK && !add_live(h, b))
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    if (status != WEIR_OK)
        guard_return_below(h, b, stream, 1);
    pthread_mutex_lock(&h->lock);
    h->reused += !is_fresh;
    pthread_mutex_unlock(&h->lock);
    if (status == WEIR_OK)
        *block = address_of(h, b);
    return status;
}

weir_status weir__harden_alloc(struct weir_harden *h, size_t bytes, weir_stream stream,
                               CUdeviceptr *block) {
    weir_status status = weir__device_capture(h->device, stream);
    int captured = status == WEIR_E_CAPTURE;
    uint64_t id = 0;

    if (status == WEIR_OK)
        status = weir__device_status(h->device, weir__device_stream_id(h->device, stream, &id));
    if (status != WEIR_OK && !captured) {
        weir__device_log_alloc(h->device, bytes, status);
        return status;
    }
    return captured ? alloc_captured(h, bytes, stream, block)
                    : alloc_hardened(h, bytes, id, stream, block);
}

/* ---- frees ---- */

/* Checks the noted streams.  Returns E_CAPTURE if one is being captured. */
static weir_status ask_uses(struct weir_harden *h, struct weir_use_list *uses) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; uses && i < uses->count && status == WEIR_OK; i++) {
        status = weir__device_capture(h->device, uses->use[i].stream);
        uses->use[i].refused = status == WEIR_E_STREAM;
    }
    return status;
}

/* Waits for the noted uses, verifies the gaps and poisons the block, on its stream. */
static CUresult finish(struct weir_harden *h, const struct weir_guarded *b, weir_stream stream,
                       struct weir_use_list *uses) {
    CUresult result = uses ? guard_wait_for_uses(h, stream, uses) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = guard_check_gaps(h, b, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_POISON))
        result = guard_fill(h, b->base, WEIR_POISON_BYTE, b->total, stream);
    return result;
}

/* Prepares a block for reuse.  Returns OK with the stream's id, or E_CAPTURE if the block must go below as it is. */
static weir_status finish_on(struct weir_harden *h, const struct weir_guarded *b,
                             weir_stream stream, struct weir_use_list *uses, uint64_t *id) {
    weir_status status = weir__device_capture(h->device, stream);

    if (status == WEIR_OK)
        status = ask_uses(h, uses);
    if (status == WEIR_OK)
        status = weir__device_status(h->device, weir__device_stream_id(h->device, stream, id));
    if (status == WEIR_OK)
        status = weir__device_status(h->device, finish(h, b, stream, uses));
    return status;
}

/* Frees a block to the layer below, without a check. */
static weir_status free_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status = h->below.free(h->below.context, b->base, stream, uses);

    if (status == WEIR_OK)
        free(b);
    else
        /* Its old slot in the table is free, unless the table has grown meanwhile. */
        (void)add_live(h, b);
    return status;
}

static weir_status free_hardened(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                                 struct weir_use_list *uses) {
    CUdeviceptr address = address_of(h, b);
    weir_status status;
    uint64_t id = 0;

    if (!is_on(h, ~(uint64_t)WEIR_HARDEN_ZERO_ALWAYS))
        return free_below(h, b, stream, uses);
    status = finish_on(h, b, stream, uses, &id);
    /* The layer below refuses the free if a noted stream is being captured.  A copy of the block is under way only if
     * an earlier free failed; is_copying says so. */
    if (status == WEIR_E_CAPTURE && !atomic_load(&h->is_copying))
        return free_below(h, b, stream, uses);
    if (status != WEIR_OK) {
        (void)add_live(h, b);
        weir__device_log_free(h->device, address, status);
        return status;
    }
    if (id == 0 || !is_on(h, WEIR_HARDEN_POISON | WEIR_HARDEN_ZERO_STREAM))
        return free_below(h, b, stream, NULL);
    b->stream = stream;
    guard_shelve(h, b, id, stream);
    return WEIR_OK;
}

weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct weir_guarded *b = take_live(h, block);
    weir_status status;

    if (b)
        return free_hardened(h, b, stream, uses);
    if (weir__graphs_has(h->below.graphs, block))
        return h->below.free(h->below.context, block, stream, uses);
    status = weir__without_driver(WEIR_E_NOT_OWNED);
    weir__device_log_free(h->device, block, status);
    return status;
}

int weir__harden_is_live(struct weir_harden *h, CUdeviceptr block) {
    int live;

    pthread_mutex_lock(&h->lock);
    live = weir__map_get(&h->live, block, NULL);
    pthread_mutex_unlock(&h->lock);
    return live || weir__graphs_has(h->below.graphs, block);
}

int weir__harden_find(struct weir_harden *h, CUdeviceptr base, CUdeviceptr *block, size_t *bytes) {
    CUdeviceptr start = base + gap(h);
    uintptr_t record;
    int live;

    pthread_mutex_lock(&h->lock);
    live = weir__map_get(&h->live, start, &record);
    if (live) {
        *block = start;
        *bytes = ((const struct weir_guarded *)record)->bytes;
    }
    pthread_mutex_unlock(&h->lock);
    return live;
}

int weir__harden_has_blocks(struct weir_harden *h) {
    int some;

    pthread_mutex_lock(&h->lock);
    some = h->live.count > 0;
    pthread_mutex_unlock(&h->lock);
    return some;
}

/* ---- beginning and end ---- */

weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out) {
    struct weir_harden *h = calloc(1, sizeof *h);
    CUresult result = CUDA_SUCCESS;

    if (h)
        h->buffer = malloc(WEIR_GUARD_BUFFER);
    if (!h || !h->buffer) {
        free(h);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    h->device = device;
    h->options = options;
    h->below = *below;
    h->kinds = options->harden;
    if (is_on(h, WEIR_HARDEN_POISON) && !(device->driver->capabilities & WEIR_CAP_STREAM_ID)) {
        h->kinds &= ~(uint64_t)WEIR_HARDEN_POISON;
        weir__log(options->log, WEIR_LOG_WARNING,
                  "the driver has no stream ids (before 12.0): harden poison is off");
    }
    result = WEIR_IN_SCOPE(device->driver, device->context,
                           device->driver->cuStreamCreate(&h->quiet, CU_STREAM_NON_BLOCKING));
    if (result != CUDA_SUCCESS) {
        free(h->buffer);
        free(h);
        return weir__device_status(device, result);
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->checking, NULL);
    *out = h;
    return WEIR_OK;
}

static void forget(struct weir_guarded *blocks) {
    while (blocks) {
        struct weir_guarded *b = blocks;

        blocks = b->next;
        free(b);
    }
}

void weir__harden_close(struct weir_harden *h) {
    if (!h)
        return;
    (void)WEIR_IN_SCOPE(h->device->driver, h->device->context,
                        h->device->driver->cuStreamDestroy(h->quiet));
    while (h->shelves) {
        struct weir_shelf *shelf = h->shelves;

        h->shelves = shelf->next;
        forget(shelf->oldest);
        free(shelf);
    }
    forget(h->kept_out);
    for (size_t i = 0; i < h->live.capacity; i++)
        free((void *)h->live.slots[i].value); /* NOLINT: add_live() stored this pointer */
    weir__map_clear(&h->live);
    pthread_mutex_destroy(&h->checking);
    pthread_mutex_destroy(&h->lock);
    free(h->buffer);
    free(h);
}

/* ---- statistics and lists ---- */

void weir__harden_live(struct weir_harden *h,
                       void (*see)(void *context, uint64_t base, size_t bytes), void *context) {
    const struct weir_guarded *b;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->live.capacity; i++)
        if (h->live.slots[i].key != 0) {
            b = (const struct weir_guarded *)h->live.slots[i]
                    .value; /* NOLINT: add_live() stored this pointer */
            see(context, b->base, b->total);
        }
    for (b = h->kept_out; b; b = b->next)
        if (!b->is_refused) /* a refused block goes below when the shelves are emptied */
            see(context, b->base, b->total);
    pthread_mutex_unlock(&h->lock);
}

/* Blocks on shelves or kept out of use are freed for the caller, but live below.  Gaps belong to no caller. */
void weir__harden_figures(struct weir_harden *h, weir_statistics *out) {
    uint64_t beside; /* bytes that are live below and are no caller's: gaps, and held blocks */

    pthread_mutex_lock(&h->lock);
    out->allocs += h->reused;
    out->attempts += h->reused;
    out->hits += h->reused;
    if (h->options->cache == WEIR_SWITCH_ON)
        out->cache_hits += h->reused;
    out->frees += h->reused + h->held;
    out->blocks = out->allocs > out->frees ? out->allocs - out->frees : 0;
    beside = h->live_bytes + h->held_bytes - h->requested;
    out->requested -= beside < out->requested ? beside : out->requested;
    out->in_use -= h->held_bytes < out->in_use ? h->held_bytes : out->in_use;
    out->requested_peak = h->requested_peak > out->requested ? h->requested_peak : out->requested;
    out->late_writes = h->late_writes;
    out->overruns = h->overruns;
    out->kept_out = h->kept_out_bytes;
    out->host_bytes += WEIR_GUARD_BUFFER + sizeof *h +
                       (h->live.count + h->held) * sizeof(struct weir_guarded) +
                       h->live.capacity * sizeof *h->live.slots;
    pthread_mutex_unlock(&h->lock);
}
