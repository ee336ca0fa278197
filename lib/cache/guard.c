/* SPDX-License-Identifier: MIT */
/* guard.c: see guard.h.
 *
 * Guard.  A block is asked for with a gap on either side, which is filled on its stream and verified
 * there when it is freed.
 *
 * Poison.  A freed block is filled on its stream and stays here, on the stream's *shelf*, where what
 * lies below does not have it: what is written to it now is written after the free.  It leaves the shelf
 * on that same stream, verified: to the next request there of the same size, oldest first, or, when the
 * shelf is full, to what lies below.  Shelves of all streams are emptied, after a wait for the device,
 * when memory has run out, in a trim, at the end, or when there are too many.  A block that was written
 * to is reported and *kept out* of use until the end: what wrote to it may do so again; and so is one that the
 * driver does not let verify.  One that it does not take back is kept out until shelves are emptied the next time.
 *
 * Zero.  What comes from below is zeroed on its stream before it is handed out, as nobody here knows
 * whose it was.  With "zero-stream" freed blocks stay on the stream's shelf, likewise, and what comes
 * from there is the stream's own and stays as it was; with "zero-always" it is zeroed too.
 *
 * Verifying copies to the host and waits for the stream; where the driver refuses that wait, for the device, at once or
 * before anything else is verified: as long as the copy is under way nobody else has its block or the buffer.  Streams
 * that a block was noted to be used on are waited for by its stream, on the device.  A shelf goes by the stream's id:
 * handles come again.
 *
 * Capture.  A block that is requested there is the graph's: no gaps and no poison, but it is zeroed, by a
 * node of the graph, at each launch.  One that is freed there goes down as it is, unverified, since a
 * captured stream cannot be waited for.
 *
 * Locks: `lock` guards what is known of blocks; nothing is called under it.  `checking` guards the
 * buffer and is held while the driver copies and waits.
 *
 * Must not know: the public API, settings' names, how what lies below places blocks.
 */
#include "cache/guard.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"

#define GAP ((size_t)256) /* keeps the alignment */
#define BUFFER ((size_t)1 << 20)
#define SHELF_BYTES ((size_t)64 << 20)
enum { SHELF_BLOCKS = 64, SHELVES = 64 };
enum { POISON_BYTE = 0xdd, GUARD_BYTE = 0xfd };

/* A block from below. */
struct block {
    CUdeviceptr base;
    size_t total, bytes; /* as asked for below; by the caller, from its gap on */
    weir_stream stream;  /* that it was freed on, for messages */
    struct block *next;  /* on its shelf, or of those that are kept out, */
    int is_refused;      /* and then: nothing is wrong with it but that it was not taken back */
};

/* Of one stream. */
struct shelf {
    uint64_t id;
    struct block *oldest, **end;
    size_t count, bytes;
    struct shelf *next;
};

struct weir_harden {
    struct weir_device *device;
    const weir_options *options;
    struct weir_harden_below below;
    uint64_t kinds; /* WEIR_HARDEN_ */
    CUstream quiet; /* runs nothing but copies of what is given down after a wait for the device */

    pthread_mutex_t lock; /* guards what follows */
    struct weir_map live; /* from the caller's address to struct block * */
    struct shelf *shelves;
    size_t shelf_count;
    struct block *kept_out;
    size_t refused;                     /* of these, as `is_refused' has it */
    uint64_t held, held_bytes;          /* blocks on shelves and kept out, as asked for below */
    uint64_t kept_out_bytes;            /* of these */
    uint64_t live_bytes;                /* live, as asked for below, */
    uint64_t requested, requested_peak; /* and by callers */
    uint64_t reused;                    /* requests that a shelf served */
    uint64_t late_writes, overruns;

    pthread_mutex_t checking; /* guards what follows */
    unsigned char *buffer;    /* BUFFER bytes */
    _Atomic int
        is_copying; /* a copy to it may be under way: a wait failed.  Also read without the lock */
};

static int is_on(const struct weir_harden *h, uint64_t kinds) {
    return (h->kinds & kinds) != 0;
}

static size_t gap(const struct weir_harden *h) {
    return is_on(h, WEIR_HARDEN_GUARD) ? GAP : 0;
}

static CUdeviceptr address_of(const struct weir_harden *h, const struct block *b) {
    return b->base + gap(h);
}

/* ---- work on a stream ------------------------------------------------------------------------ */

/* Around calls on the caller's stream: in relaxed mode, in the caller's context if there is one. */
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

static CUresult fill(const struct weir_harden *h, CUdeviceptr at, unsigned char value, size_t bytes,
                     weir_stream stream) {
    struct turn turn;
    CUresult result = begin(h, &turn);

    if (result != CUDA_SUCCESS)
        return result;
    result = h->device->driver->cuMemsetD8Async(at, value, bytes, stream);
    end(h, &turn);
    return result;
}

/* No copy is under way any more; the caller holds `checking`. */
static CUresult settle(struct weir_harden *h) {
    CUresult result = h->is_copying ? weir__device_wait(h->device) : CUDA_SUCCESS;

    h->is_copying = result != CUDA_SUCCESS;
    return result;
}

/* Copies up to BUFFER bytes and waits for the stream; likewise. */
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

/* The first byte that is not `value`, or `bytes` (> 0). */
static size_t first_other(const unsigned char *at, unsigned char value, size_t bytes) {
    size_t i = 0;

    if (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0) /* as fast as it goes */
        return bytes;
    while (at[i] == value)
        i++;
    return i;
}

/* Looks whether all bytes are `value`; *bad: the first that is not, or `bytes`. */
static CUresult verify(struct weir_harden *h, CUdeviceptr at, unsigned char value, size_t bytes,
                       weir_stream stream, size_t *bad) {
    struct turn turn;
    CUresult result = begin(h, &turn);

    *bad = 0;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&h->checking);
    result = settle(h);
    while (result == CUDA_SUCCESS && *bad < bytes) {
        size_t part = bytes - *bad < BUFFER ? bytes - *bad : BUFFER, same;

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

/* Makes the stream wait for all that the noted streams were given so far. */
static CUresult wait_for_uses(struct weir_harden *h, weir_stream stream,
                              struct weir_use_list *uses) {
    const struct weir_driver *driver = h->device->driver;
    struct weir_driver_scope scope;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < uses->count && result == CUDA_SUCCESS; i++) {
        CUevent event = NULL;

        result = weir__driver_enter(driver, h->device->context, &scope);
        if (result != CUDA_SUCCESS)
            break;
        result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        weir__driver_leave(driver, &scope);
        if (result != CUDA_SUCCESS)
            break;
        result = weir__device_record(h->device, event, uses->use[i].stream, uses->use[i].id);
        uses->use[i].refused = result == CUDA_ERROR_INVALID_HANDLE;
        if (result == CUDA_SUCCESS)
            result = wait_for_event(h, stream, event);
        driver->cuEventDestroy(event); /* the wait outlives it */
    }
    return result;
}

/* ---- gaps ------------------------------------------------------------------------------------ */

static size_t behind(const struct weir_harden *h, const struct block *b) {
    return b->total - gap(h) - b->bytes;
}

static CUresult fill_gaps(const struct weir_harden *h, const struct block *b, weir_stream stream) {
    CUresult result = fill(h, b->base, GUARD_BYTE, GAP, stream);

    if (result != CUDA_SUCCESS)
        return result;
    return fill(h, b->base + GAP + b->bytes, GUARD_BYTE, behind(h, b), stream);
}

static void report_overrun(struct weir_harden *h, const struct block *b, weir_stream stream,
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

static CUresult check_gaps(struct weir_harden *h, const struct block *b, weir_stream stream) {
    size_t before_at = 0, behind_at = 0;
    CUresult result = verify(h, b->base, GUARD_BYTE, GAP, stream, &before_at);

    if (result == CUDA_SUCCESS)
        result = verify(h, b->base + GAP + b->bytes, GUARD_BYTE, behind(h, b), stream, &behind_at);
    if (result != CUDA_SUCCESS)
        return result;
    if (before_at < GAP)
        report_overrun(h, b, stream, 0, GAP - before_at);
    if (behind_at < behind(h, b))
        report_overrun(h, b, stream, 1, behind_at);
    return CUDA_SUCCESS;
}

/* ---- shelves --------------------------------------------------------------------------------- */

/* The place of a stream's shelf in the list, or its end; the caller holds `lock`. */
static struct shelf **place_of(struct weir_harden *h, uint64_t id) {
    struct shelf **at = &h->shelves;

    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* The first block there of that size (0: of any), taken off; the caller holds `lock`. */
static struct block *take_off(struct weir_harden *h, struct shelf *shelf, size_t total) {
    struct block **at = &shelf->oldest, *b;

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

/* 1, or 0 if host memory ran out. */
static int put_on(struct weir_harden *h, uint64_t id, struct block *b) {
    struct shelf **at, *shelf;

    pthread_mutex_lock(&h->lock);
    at = place_of(h, id);
    shelf = *at;
    if (!shelf) {
        shelf = malloc(sizeof *shelf);
        if (shelf) {
            *shelf = (struct shelf){.id = id, .end = &shelf->oldest};
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

/* The oldest block of a stream's shelf that has more than it should. */
static struct block *take_excess(struct weir_harden *h, uint64_t id) {
    struct block *b = NULL;
    struct shelf *shelf;

    pthread_mutex_lock(&h->lock);
    shelf = *place_of(h, id);
    /* unreached: no shelf, for which another thread must empty it meanwhile */
    if (shelf && shelf->count > 1 && (shelf->count > SHELF_BLOCKS || shelf->bytes > SHELF_BYTES))
        b = take_off(h, shelf, 0);
    pthread_mutex_unlock(&h->lock);
    return b;
}

static void keep_out(struct weir_harden *h, struct block *b, int is_refused) {
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

/* A block from a shelf on `stream`, after everything that was done to it in order: 1, or 0 and it is kept
 * out of use. */
static int is_sound(struct weir_harden *h, struct block *b, weir_stream stream) {
    size_t bad = b->total;
    CUresult result = is_on(h, WEIR_HARDEN_POISON)
                          ? verify(h, b->base, POISON_BYTE, b->total, stream, &bad)
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

/* Those that were not taken back, or all that are kept out.  The caller holds the lock. */
static struct block *take_kept(struct weir_harden *h, int all) {
    struct block **at = &h->kept_out, *taken = NULL, *b;

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

/* Verifies a block that has left its shelf, and gives it down. */
static void give_down(struct weir_harden *h, struct block *b, weir_stream stream) {
    if (!is_sound(h, b, stream))
        return;
    if (h->below.free(h->below.context, b->base, stream, NULL) == WEIR_OK)
        free(b);
    else
        keep_out(h, b, 1);
}

static void keep_out_all(struct weir_harden *h, struct block *blocks) {
    struct block *b;

    while ((b = blocks)) {
        blocks = b->next;
        keep_out(h, b, b->is_refused);
    }
}

/* All shelves and what was not taken back, or with `all` all that is kept out, after a wait for the device; down on
 * `stream`. */
static weir_status empty_on(struct weir_harden *h, int all, weir_stream stream) {
    struct block *blocks = NULL, *b, *bad;
    struct shelf *shelves, **last = &shelves;
    weir_status status;

    /* What is shelved, or not taken back, from now on, the wait may not cover. */
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
        struct shelf *shelf = shelves;

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
        if (h->below.free(h->below.context, b->base, stream, NULL) == WEIR_OK)
            free(b);
        else
            keep_out(h, b, b->is_refused);
    }
    while ((b = blocks)) {
        blocks = b->next;
        give_down(h, b, stream);
    }
    return WEIR_OK;
}

/* Blocks on shelves or not taken back, or with `all` any that are kept out. */
static int holds(struct weir_harden *h, int all) {
    int some;

    pthread_mutex_lock(&h->lock);
    some = h->shelves != NULL || h->refused > 0 || (all && h->kept_out);
    pthread_mutex_unlock(&h->lock);
    return some;
}

weir_status weir__harden_empty(struct weir_harden *h, int all) {
    weir_status status = holds(h, 0) ? empty_on(h, 0, h->quiet) : WEIR_OK;

    if (status == WEIR_OK && all && holds(h, 1)) /* what was just found is among them */
        status = empty_on(h, 1, h->quiet);
    return status; /* what did not go down is kept out */
}

/* ---- requests -------------------------------------------------------------------------------- */

/* What is asked for below.  Nothing overflows: no request is above the device's memory. */
static size_t total_of(const struct weir_harden *h, size_t bytes) {
    return is_on(h, WEIR_HARDEN_GUARD) ? weir__size_round_down(bytes + GAP - 1, GAP) + 2 * GAP
                                       : bytes;
}

size_t weir__harden_fit(const weir_options *options, size_t bytes) {
    if (!(options->harden & WEIR_HARDEN_GUARD))
        return bytes;
    return bytes > 2 * GAP ? weir__size_round_down(bytes - 2 * GAP, GAP) : 0;
}

/* The oldest sound block of the size on the stream's shelf, or NULL. */
static struct block *take_from_shelf(struct weir_harden *h, uint64_t id, size_t total,
                                     weir_stream stream) {
    struct block *b;

    do {
        struct shelf *shelf;

        pthread_mutex_lock(&h->lock);
        shelf = id ? *place_of(h, id) : NULL;
        b = shelf ? take_off(h, shelf, total) : NULL;
        pthread_mutex_unlock(&h->lock);
    } while (b && !is_sound(h, b, stream));
    return b;
}

/* From below; when there is nothing more, of what lies on shelves too. */
static weir_status ask_below(struct weir_harden *h, size_t total, weir_stream stream,
                             CUdeviceptr *base) {
    weir_status status = h->below.alloc(h->below.context, total, stream, base);

    if (weir__is_refusal(status) && holds(h, 0) && h->options->recovery_timeout_ms != UINT32_MAX &&
        empty_on(h, 0, stream) == WEIR_OK)
        status = h->below.alloc(h->below.context, total, stream, base);
    return status;
}

/* A new block from below, or NULL with the reason. */
static struct block *fresh(struct weir_harden *h, size_t total, weir_stream stream,
                           weir_status *status) {
    struct block *b = malloc(sizeof *b);

    if (!b) {
        *status = weir__without_driver(WEIR_E_HOST_MEMORY);
        return NULL;
    }
    *b = (struct block){.total = total};
    *status = ask_below(h, total, stream, &b->base);
    if (*status != WEIR_OK) {
        free(b);
        return NULL;
    }
    /* What lies there by now is no graph's, and a free of it goes by what is known of blocks. */
    weir__graphs_forget(h->below.graphs, b->base);
    return b;
}

/* Fills what the caller is to find, and what not. */
static CUresult prepare(struct weir_harden *h, const struct block *b, int is_fresh,
                        weir_stream stream) {
    CUresult result = CUDA_SUCCESS;

    if (is_on(h, WEIR_HARDEN_ZERO_ALWAYS) || (is_fresh && is_on(h, WEIR_HARDEN_ZERO_STREAM)))
        result = fill(h, address_of(h, b), 0, b->bytes, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = fill_gaps(h, b, stream);
    return result;
}

/* A live block more: 1, or 0 if host memory ran out. */
static int add_live(struct weir_harden *h, struct block *b) {
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

static struct block *take_live(struct weir_harden *h, CUdeviceptr address) {
    uintptr_t value = 0;
    struct block *b;

    pthread_mutex_lock(&h->lock);
    (void)weir__map_take(&h->live, address, &value);
    b = (struct block *)value; /* NOLINT: as it was put in */
    if (b) {
        h->live_bytes -= b->total;
        h->requested -= b->bytes;
    }
    pthread_mutex_unlock(&h->lock);
    return b;
}

/* The block is a node of a graph.  A pool without caches does not ask for captures, so it is noted here, too. */
static weir_status alloc_captured(struct weir_harden *h, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block) {
    weir_status status = h->below.alloc(h->below.context, bytes, stream, block);
    CUresult result = CUDA_SUCCESS;
    int noted;

    if (status != WEIR_OK)
        return status;
    noted = weir__graphs_note(h->below.graphs, *block);
    if (noted && is_on(h, WEIR_HARDEN_ZERO_ALWAYS | WEIR_HARDEN_ZERO_STREAM))
        result = fill(h, *block, 0, bytes, stream);
    if (noted && result == CUDA_SUCCESS)
        return WEIR_OK;
    (void)h->below.free(h->below.context, *block, stream, NULL);
    return noted ? weir__device_status(h->device, result)
                 : weir__without_driver(WEIR_E_HOST_MEMORY);
}

static weir_status alloc_hardened(struct weir_harden *h, size_t bytes, uint64_t id,
                                  weir_stream stream, CUdeviceptr *block) {
    size_t total = total_of(h, bytes);
    struct block *b = take_from_shelf(h, id, total, stream);
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
    if (status != WEIR_OK) {
        if (h->below.free(h->below.context, b->base, stream, NULL) == WEIR_OK)
            free(b);
        else
            keep_out(h, b, 1);
    }
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

/* ---- frees ----------------------------------------------------------------------------------- */

/* E_CAPTURE if a noted stream is being captured. */
static weir_status ask_uses(struct weir_harden *h, struct weir_use_list *uses) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; uses && i < uses->count && status == WEIR_OK; i++) {
        status = weir__device_capture(h->device, uses->use[i].stream);
        uses->use[i].refused = status == WEIR_E_STREAM;
    }
    return status;
}

/* What is done to a block, before it is given up. */
static CUresult finish(struct weir_harden *h, const struct block *b, weir_stream stream,
                       struct weir_use_list *uses) {
    CUresult result = uses ? wait_for_uses(h, stream, uses) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = check_gaps(h, b, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_POISON))
        result = fill(h, b->base, POISON_BYTE, b->total, stream);
    return result;
}

/* Onto the shelf of the stream, which has asked who it is. */
static void shelve(struct weir_harden *h, struct block *b, uint64_t id, weir_stream stream) {
    struct block *excess;
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
        (void)empty_on(h, 0, stream);
}

/* Up to where the block may be given up: OK, and the stream's id; or CAPTURE: it goes as it is. */
static weir_status finish_on(struct weir_harden *h, const struct block *b, weir_stream stream,
                             struct weir_use_list *uses, uint64_t *id) {
    weir_status status = weir__device_capture(h->device, stream);

    if (status == WEIR_OK)
        status = ask_uses(h, uses);
    if (status == WEIR_OK)
        status = weir__device_status(h->device, weir__device_stream_id(h->device, stream, id));
    if (status == WEIR_OK)
        status = weir__device_status(h->device, finish(h, b, stream, uses));
    return status;
}

/* Nothing is done to it any more: down with it. */
static weir_status free_below(struct weir_harden *h, struct block *b, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status = h->below.free(h->below.context, b->base, stream, uses);

    if (status == WEIR_OK)
        free(b);
    else
        (void)add_live(h, b); /* the place that it left is there, unless the table grew meanwhile */
    return status;
}

static weir_status free_hardened(struct weir_harden *h, struct block *b, weir_stream stream,
                                 struct weir_use_list *uses) {
    CUdeviceptr address = address_of(h, b);
    weir_status status;
    uint64_t id = 0;

    if (!is_on(h, ~(uint64_t)WEIR_HARDEN_ZERO_ALWAYS))
        return free_below(h, b, stream, uses);
    status = finish_on(h, b, stream, uses, &id);
    /* With noted streams this is refused there.  A copy of the block is known of, if there is one: the free that made
     * it came before. */
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
    shelve(h, b, id, stream);
    return WEIR_OK;
}

weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct block *b = take_live(h, block);
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
        *bytes = ((const struct block *)record)->bytes;
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

/* ---- beginning and end ----------------------------------------------------------------------- */

weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out) {
    struct weir_harden *h = calloc(1, sizeof *h);
    struct weir_driver_scope scope;
    CUresult result = CUDA_SUCCESS;

    if (h)
        h->buffer = malloc(BUFFER);
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
    result = weir__driver_enter(device->driver, device->context, &scope);
    if (result == CUDA_SUCCESS) {
        result = device->driver->cuStreamCreate(&h->quiet, CU_STREAM_NON_BLOCKING);
        weir__driver_leave(device->driver, &scope);
    }
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

static void forget(struct block *blocks) {
    while (blocks) {
        struct block *b = blocks;

        blocks = b->next;
        free(b);
    }
}

void weir__harden_close(struct weir_harden *h) {
    struct weir_driver_scope scope;

    if (!h)
        return;
    if (weir__driver_enter(h->device->driver, h->device->context, &scope) == CUDA_SUCCESS) {
        h->device->driver->cuStreamDestroy(h->quiet);
        weir__driver_leave(h->device->driver, &scope);
    }
    while (h->shelves) {
        struct shelf *shelf = h->shelves;

        h->shelves = shelf->next;
        forget(shelf->oldest);
        free(shelf);
    }
    forget(h->kept_out);
    for (size_t i = 0; i < h->live.capacity; i++)
        free((void *)h->live.slots[i].value); /* NOLINT: as it was put in */
    weir__map_clear(&h->live);
    pthread_mutex_destroy(&h->checking);
    pthread_mutex_destroy(&h->lock);
    free(h->buffer);
    free(h);
}

/* ---- for others ------------------------------------------------------------------------------ */

void weir__harden_live(struct weir_harden *h,
                       void (*see)(void *context, uint64_t base, size_t bytes), void *context) {
    const struct block *b;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->live.capacity; i++)
        if (h->live.slots[i].key != 0) {
            b = (const struct block *)h->live.slots[i].value; /* NOLINT: as it was put in */
            see(context, b->base, b->total);
        }
    for (b = h->kept_out; b; b = b->next)
        if (!b->is_refused) /* which goes with the shelves */
            see(context, b->base, b->total);
    pthread_mutex_unlock(&h->lock);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Blocks on shelves and kept out are freed, though below they are live; gaps are nobody's. */
void weir__harden_figures(struct weir_harden *h, weir_statistics *out) {
    uint64_t beside; /* callers' blocks: gaps, and what is held */

    pthread_mutex_lock(&h->lock);
    out->allocs += h->reused;
    out->attempts += h->reused;
    out->hits += h->reused;
    if (h->options->front == WEIR_SWITCH_ON)
        out->front_hits += h->reused;
    out->frees += h->reused + h->held;
    out->blocks = out->allocs > out->frees ? out->allocs - out->frees : 0;
    beside = h->live_bytes + h->held_bytes - h->requested;
    out->requested -= beside < out->requested ? beside : out->requested;
    out->in_use -= h->held_bytes < out->in_use ? h->held_bytes : out->in_use;
    out->requested_peak = h->requested_peak > out->requested ? h->requested_peak : out->requested;
    out->late_writes = h->late_writes;
    out->overruns = h->overruns;
    out->kept_out = h->kept_out_bytes;
    out->host_bytes += BUFFER + sizeof *h + (h->live.count + h->held) * sizeof(struct block) +
                       h->live.capacity * sizeof *h->live.slots;
    pthread_mutex_unlock(&h->lock);
}
