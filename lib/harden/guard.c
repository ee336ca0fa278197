/* SPDX-License-Identifier: MIT */
/* guard.c: a layer that guards, poisons or zeroes blocks (guard.h).
 *
 * Guard.  weir requests a block from the layer below with a *gap* on either side, fills the gaps on the block's stream,
 * and verifies the gaps on this stream when the block is freed.
 *
 * Poison.  weir fills a freed block with a fixed byte on the block's stream, and keeps the block on the stream's
 * *shelf*.  If weir later finds another byte in the block, some work has written to the block after the free.
 *
 * Zero.  weir zeroes a block from the layer below before use, since any stream may have used the memory.  With
 * "zero-stream", a block from the stream's shelf keeps its contents, which only this stream has written.  With
 * "zero-always", weir zeroes a block from the shelf, too.
 *
 * Capture.  A block that is requested on a captured stream belongs to the graph.  Such a block has neither gaps nor
 * poison, but a node of the graph zeroes it at each launch.  A block that is freed on a captured stream is not
 * verified, since weir cannot wait for a captured stream.
 *
 * Verification.  weir copies memory to the host and waits for the stream.  If the driver refuses this wait, weir waits
 * for the device, at once or before the next verification, since the copy may still run.
 *
 * Shelves.  The stream's next request gets the oldest block of the right size on its shelf.  If a shelf is too full,
 * weir frees its oldest block in the layer below.  If memory has run out, in a trim, at the end, or with too many
 * shelves, weir waits for the device and empties all shelves.  A shelf has a stream id, since handles are reused.
 *
 * Damaged blocks.  weir reports a block that was written to after its free, or that it cannot verify, and keeps the
 * block out of use until the allocator closes, since the faulty work may write again. */
#include "harden/guard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"

#define WEIR_GUARD_GAP ((size_t)256)        /* the bytes of a gap; a multiple of the alignment */
#define WEIR_GUARD_BUFFER ((size_t)1 << 20) /* the most bytes copied to the host at once */
#define WEIR_SHELF_BYTES ((size_t)64 << 20) /* the most bytes on a shelf, except a single block */

enum {
    WEIR_SHELF_BLOCKS = 64,
    WEIR_SHELVES = 64,
    WEIR_POISON_BYTE = 0xdd, /* the byte that fills freed blocks */
    WEIR_GAP_BYTE = 0xfd     /* the byte that fills gaps */
};

/* The guard's record of a block. */
struct weir_guarded {
    CUdeviceptr base;    /* the address in the layer below, where the gap before the block begins */
    size_t total, bytes; /* the size in the layer below, with the gaps, and the requested size */
    uint64_t id; /* the id of the stream on whose shelf the block is, or 0 if it is on none */
    weir_stream stream; /* the stream on which the block was freed, for messages */
    int is_damaged; /* set if the freed block was written to or cannot be verified; never reused */
    struct weir_guarded *next; /* the next freed block in the list `kept` */
};

struct weir_harden {
    struct weir_device *device;
    const weir_options *options;
    struct weir_harden_below below;
    uint64_t kinds; /* the kinds of hardening in use, as WEIR_HARDEN_ bits */
    CUstream verify_stream;  /* the guard's own stream, used after a wait for the device */
    _Atomic uint64_t reused; /* the number of requests that got a block from a shelf */
    _Atomic uint64_t late_writes, overruns;

    pthread_mutex_t lock; /* guards the fields below; no other layer is called under it */
    struct weir_map live; /* maps the program's address of a block to its struct weir_guarded * */
    /* Freed blocks that the guard keeps: first blocks that must not be reused, then others by stream, oldest first. */
    struct weir_guarded *kept;
    uint64_t blocks;                    /* the number of all blocks from the layer below */
    uint64_t live_bytes;                /* the sizes of live blocks with their gaps */
    uint64_t requested, requested_peak; /* the requested sizes of live blocks, and their peak */

    pthread_mutex_t checking; /* guards the buffer; held while the driver copies and waits */
    _Atomic int is_copying;   /* set if a copy to `buffer` may run; may be read without the lock */
    unsigned char buffer[WEIR_GUARD_BUFFER];
};

static inline int guard_has(const struct weir_harden *h, uint64_t kinds) {
    return (h->kinds & kinds) != 0;
}

static inline size_t guard_gap(const struct weir_harden *h) {
    return guard_has(h, WEIR_HARDEN_GUARD) ? WEIR_GUARD_GAP : 0;
}

static inline CUdeviceptr guarded_address(const struct weir_harden *h,
                                          const struct weir_guarded *b) {
    return b->base + guard_gap(h);
}

static inline size_t gap_behind(const struct weir_harden *h, const struct weir_guarded *b) {
    return b->total - guard_gap(h) - b->bytes;
}

/* ---- memory on a stream ---- */

/* Fills memory with the byte `value` on the stream, in the caller's CUDA context if there is one. */
static CUresult guard_fill(const struct weir_harden *h, CUdeviceptr at, size_t bytes,
                           unsigned char value, weir_stream stream) {
    const struct weir_driver *driver = h->device->driver;
    CUresult result = CUDA_SUCCESS;
    int pushed;

    if (bytes == 0)
        return CUDA_SUCCESS;
    pushed = weir__device_make_context_current(h->device);
    result = WEIR_RELAXED(driver, driver->cuMemsetD8Async(at, value, bytes, stream));
    weir__device_restore_context(h->device, pushed);
    return result;
}

/* Waits for the device if a copy to h->buffer may still be running.  The caller holds `checking`. */
static CUresult guard_end_copy(struct weir_harden *h) {
    CUresult result = h->is_copying ? weir__device_wait(h->device) : CUDA_SUCCESS;

    h->is_copying = result != CUDA_SUCCESS;
    return result;
}

/* Copies up to WEIR_GUARD_BUFFER bytes to the buffer, and waits for the stream.  The caller holds `checking`. */
static CUresult guard_copy(struct weir_harden *h, CUdeviceptr at, size_t bytes,
                           weir_stream stream) {
    const struct weir_driver *driver = h->device->driver;
    CUresult result = driver->cuMemcpyDtoHAsync(h->buffer, at, bytes, stream);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuStreamSynchronize(stream);
    h->is_copying = result != CUDA_SUCCESS;
    (void)guard_end_copy(h);
    return result;
}

/* Returns the offset of the first byte that differs from `value`, or `bytes` if there is none.  `bytes` is above 0. */
static size_t first_changed(const unsigned char *at, unsigned char value, size_t bytes) {
    size_t i = 0;

    /* If the first byte has the value and each byte equals the next, all bytes do.  memcmp is faster than a loop. */
    if (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0)
        return bytes;
    while (at[i] == value)
        i++;
    return i;
}

/* Compares device memory with the byte `value`.  Sets *same to the number of bytes before the first different byte. */
static CUresult guard_verify(struct weir_harden *h, CUdeviceptr at, size_t bytes,
                             unsigned char value, weir_stream stream, size_t *same) {
    int pushed = weir__device_make_context_current(h->device);
    size_t part, found;
    CUresult result;

    *same = 0;
    pthread_mutex_lock(&h->checking);
    result = guard_end_copy(h);
    while (result == CUDA_SUCCESS && *same < bytes) {
        part = weir__size_smaller(bytes - *same, WEIR_GUARD_BUFFER);
        result = WEIR_RELAXED(h->device->driver, guard_copy(h, at + *same, part, stream));
        found = result == CUDA_SUCCESS ? first_changed(h->buffer, value, part) : 0;
        *same += found;
        if (found < part)
            break;
    }
    pthread_mutex_unlock(&h->checking);
    weir__device_restore_context(h->device, pushed);
    return result;
}

/* Orders later work of the stream after the work of the streams that use the block. */
static CUresult wait_for_uses(const struct weir_harden *h, weir_stream stream,
                              struct weir_use_list *uses) {
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; uses && i < uses->count && result == CUDA_SUCCESS; i++) {
        result = weir__device_order_after(h->device, stream, uses->use[i].stream, uses->use[i].id);
        uses->use[i].refused = result == CUDA_ERROR_INVALID_HANDLE;
    }
    return result;
}

static void report_overrun(struct weir_harden *h, const struct weir_guarded *b, weir_stream stream,
                           const char *side, size_t bytes, const char *where) {
    atomic_fetch_add(&h->overruns, 1);
    weir__log(h->options->log, WEIR_LOG_ERROR,
              "block 0x%llx of %zu byte%s, freed on stream 0x%llx: the gap %s it was written to, "
              "%zu byte%s %s",
              (unsigned long long)guarded_address(h, b), b->bytes, weir__plural(b->bytes),
              (unsigned long long)(uintptr_t)stream, side, bytes, weir__plural(bytes), where);
}

static CUresult check_gaps(struct weir_harden *h, const struct weir_guarded *b,
                           weir_stream stream) {
    size_t before = 0, after = 0;
    CUresult result = guard_verify(h, b->base, WEIR_GUARD_GAP, WEIR_GAP_BYTE, stream, &before);

    if (result == CUDA_SUCCESS)
        result = guard_verify(h, guarded_address(h, b) + b->bytes, gap_behind(h, b), WEIR_GAP_BYTE,
                              stream, &after);
    if (result != CUDA_SUCCESS)
        return result;
    if (before < WEIR_GUARD_GAP)
        report_overrun(h, b, stream, "before", WEIR_GUARD_GAP - before, "before its beginning");
    if (after < gap_behind(h, b))
        report_overrun(h, b, stream, "behind", after, "past its end");
    return CUDA_SUCCESS;
}

/* ---- held blocks ---- */

/* Adds a block to the front of the list `kept`, and marks it as out of use. */
static void add_kept_out(struct weir_harden *h, struct weir_guarded *b) {
    pthread_mutex_lock(&h->lock);
    b->id = 0;
    b->next = h->kept;
    h->kept = b;
    pthread_mutex_unlock(&h->lock);
}

/* Frees a block in the layer below, without verification, and frees its record. */
static weir_status free_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status = h->below.free(h->below.context, b->base, stream, uses);

    if (status != WEIR_OK)
        return status;
    pthread_mutex_lock(&h->lock);
    h->blocks--;
    pthread_mutex_unlock(&h->lock);
    free(b);
    return WEIR_OK;
}

/* Returns 1 if no work has written to a freed block.  Otherwise keeps the block out of use and returns 0.  The caller
 * has ordered `stream` after all work on the block. */
static int is_unchanged(struct weir_harden *h, struct weir_guarded *b, weir_stream stream) {
    size_t same = b->total;
    CUresult result = guard_has(h, WEIR_HARDEN_POISON)
                          ? guard_verify(h, b->base, b->total, WEIR_POISON_BYTE, stream, &same)
                          : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS && same == b->total)
        return 1;
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add(&h->late_writes, 1);
        weir__log(h->options->log, WEIR_LOG_ERROR,
                  "block 0x%llx of %zu byte%s was written to after it was freed on stream 0x%llx, "
                  "first at offset %lld: it is kept out of use",
                  (unsigned long long)guarded_address(h, b), b->bytes, weir__plural(b->bytes),
                  (unsigned long long)(uintptr_t)b->stream,
                  (long long)same - (long long)guard_gap(h));
    } else {
        (void)weir__device_status(h->device, result);
    }
    b->is_damaged = 1;
    add_kept_out(h, b);
    return 0;
}

static void free_verified(struct weir_harden *h, struct weir_guarded *b, weir_stream stream) {
    if (b->id && !is_unchanged(h, b, stream))
        return;
    if (free_below(h, b, stream, NULL) != WEIR_OK)
        add_kept_out(h, b);
}

/* Removes and returns the stream's oldest kept block of `total` bytes (0: of any size), or returns NULL. */
static struct weir_guarded *remove_shelved(struct weir_harden *h, uint64_t id, size_t total) {
    struct weir_guarded **at = &h->kept, *b;

    pthread_mutex_lock(&h->lock);
    while (*at && ((*at)->id != id || (total > 0 && (*at)->total != total)))
        at = &(*at)->next;
    b = *at;
    if (b)
        *at = b->next;
    pthread_mutex_unlock(&h->lock);
    return b;
}

/* Waits for the device, and then frees the kept blocks.  Frees damaged blocks only if `all` is set. */
static weir_status guard_empty(struct weir_harden *h, int all, weir_stream stream) {
    struct weir_guarded *taken = NULL, **end = &taken, **at, *b;
    weir_status status;

    /* Empties the list before the wait, since the wait does not cover work on blocks that other threads add later. */
    pthread_mutex_lock(&h->lock);
    for (at = &h->kept; (b = *at);) {
        if (b->is_damaged && !all) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        *end = b;
        end = &b->next;
    }
    pthread_mutex_unlock(&h->lock);
    *end = NULL;
    if (!taken)
        return WEIR_OK;
    status = weir__device_status(h->device, weir__device_wait(h->device));
    if (status != WEIR_OK) {
        pthread_mutex_lock(&h->lock);
        *end = h->kept;
        h->kept = taken;
        pthread_mutex_unlock(&h->lock);
        return status;
    }
    while ((b = taken)) {
        taken = b->next;
        free_verified(h, b, stream);
    }
    return WEIR_OK;
}

weir_status weir__harden_empty(struct weir_harden *h, int at_end) {
    weir_status status;
    size_t live;

    pthread_mutex_lock(&h->lock);
    live = h->live.count;
    pthread_mutex_unlock(&h->lock);
    if (at_end && live > 0)
        return weir__without_driver(WEIR_E_BUSY);
    status = guard_empty(h, 0, h->verify_stream);
    /* frees the damaged blocks, which the call above has kept */
    if (at_end && status == WEIR_OK)
        status = guard_empty(h, 1, h->verify_stream);
    return status;
}

/* Keeps a freed block for reuse by the stream, and frees the oldest blocks if there are too many. */
static void guard_shelve(struct weir_harden *h, struct weir_guarded *b, uint64_t id,
                         weir_stream stream) {
    struct weir_guarded **at, **end = NULL;
    size_t shelves = 0, count = 1, bytes = b->total;
    uint64_t last = 0;

    pthread_mutex_lock(&h->lock);
    for (at = &h->kept; *at; at = &(*at)->next) {
        shelves += (*at)->id != last;
        last = (*at)->id;
        if (last == id) {
            end = &(*at)->next;
            count++;
            bytes += (*at)->total;
        }
    }
    shelves += !end;
    end = end ? end : at;
    b->id = id;
    b->next = *end;
    *end = b;
    pthread_mutex_unlock(&h->lock);
    for (; count > 1 && (count > WEIR_SHELF_BLOCKS || bytes > WEIR_SHELF_BYTES); count--) {
        b = remove_shelved(h, id, 0);
        /* unreached: no test lets another thread free the stream's kept blocks at this moment */
        if (!b)
            break;
        bytes -= b->total;
        free_verified(h, b, stream);
    }
    if (shelves > WEIR_SHELVES)
        (void)guard_empty(h, 0, stream);
}

/* ---- requests ---- */

/* Returns the size of a block with its two guarded gaps.  The sum fits, since no request is larger than the device. */
static size_t guarded_total(const struct weir_harden *h, size_t bytes) {
    return guard_has(h, WEIR_HARDEN_GUARD)
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

/* Allocates a new block in the layer below, and a record of it.  On failure returns NULL and sets *status. */
static struct weir_guarded *alloc_guarded(struct weir_harden *h, size_t total, weir_stream stream,
                                          weir_status *status) {
    struct weir_guarded *b = malloc(sizeof *b);

    *status = b ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
    if (!b)
        return NULL;
    *b = (struct weir_guarded){.total = total};
    *status = h->below.alloc(h->below.context, total, stream, &b->base);
    if (*status != WEIR_OK) {
        free(b);
        return NULL;
    }
    /* Removes an earlier graph's block at this address from the table, since the next free belongs to the new block. */
    (void)weir__addresses_remove(h->below.graphs, b->base);
    pthread_mutex_lock(&h->lock);
    h->blocks++;
    pthread_mutex_unlock(&h->lock);
    return b;
}

static CUresult prepare_guarded(struct weir_harden *h, const struct weir_guarded *b, int is_fresh,
                                weir_stream stream) {
    CUdeviceptr start = guarded_address(h, b);
    CUresult result = CUDA_SUCCESS;

    if (guard_has(h, WEIR_HARDEN_ZERO_ALWAYS) ||
        (is_fresh && guard_has(h, WEIR_HARDEN_ZERO_STREAM)))
        result = guard_fill(h, start, b->bytes, 0, stream);
    if (result == CUDA_SUCCESS)
        result = guard_fill(h, b->base, guard_gap(h), WEIR_GAP_BYTE, stream);
    if (result == CUDA_SUCCESS)
        result = guard_fill(h, start + b->bytes, gap_behind(h, b), WEIR_GAP_BYTE, stream);
    return result;
}

/* Adds a block to the map of live blocks.  Returns 1 on success, 0 if there is no host memory. */
static int add_live(struct weir_harden *h, struct weir_guarded *b) {
    int added;

    pthread_mutex_lock(&h->lock);
    added = weir__map_put(&h->live, guarded_address(h, b), (uintptr_t)b);
    if (added) {
        h->live_bytes += b->total;
        h->requested += b->bytes;
        if (h->requested > h->requested_peak)
            h->requested_peak = h->requested;
    }
    pthread_mutex_unlock(&h->lock);
    return added;
}

static struct weir_guarded *remove_live(struct weir_harden *h, CUdeviceptr address) {
    uintptr_t value = 0;
    struct weir_guarded *b;

    pthread_mutex_lock(&h->lock);
    (void)weir__map_remove(&h->live, address, &value);
    b = (struct weir_guarded *)value; /* NOLINT: add_live() stored this pointer */
    if (b) {
        h->live_bytes -= b->total;
        h->requested -= b->bytes;
    }
    pthread_mutex_unlock(&h->lock);
    return b;
}

/* Allocates a block of the graph that is being captured, without guarded gaps.  Records the block's address, since the
 * layer below may not notice the capture. */
static weir_status guard_alloc_captured(struct weir_harden *h, size_t bytes, weir_stream stream,
                                        CUdeviceptr *block) {
    weir_status status = h->below.alloc(h->below.context, bytes, stream, block);
    CUresult result = CUDA_SUCCESS;
    int noted;

    if (status != WEIR_OK)
        return status;
    noted = weir__addresses_add(h->below.graphs, *block, 1);
    if (noted && guard_has(h, WEIR_HARDEN_ZERO_ALWAYS | WEIR_HARDEN_ZERO_STREAM))
        result = guard_fill(h, *block, bytes, 0, stream);
    if (noted && result == CUDA_SUCCESS)
        return WEIR_OK;
    (void)h->below.free(h->below.context, *block, stream, NULL);
    return noted ? weir__device_status(h->device, result)
                 : weir__without_driver(WEIR_E_HOST_MEMORY);
}

static weir_status guard_alloc(struct weir_harden *h, size_t bytes, uint64_t id, weir_stream stream,
                               CUdeviceptr *block) {
    size_t total = guarded_total(h, bytes);
    struct weir_guarded *b = NULL;
    weir_status status = WEIR_OK;
    int is_fresh;

    while (id && (b = remove_shelved(h, id, total)) && !is_unchanged(h, b, stream))
        continue;
    is_fresh = !b;
    if (is_fresh)
        b = alloc_guarded(h, total, stream, &status);
    if (!b)
        return status;
    atomic_fetch_add(&h->reused, !is_fresh);
    b->id = 0;
    b->bytes = bytes;
    status = weir__device_status(h->device, prepare_guarded(h, b, is_fresh, stream));
    if (status == WEIR_OK && !add_live(h, b))
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    if (status == WEIR_OK)
        *block = guarded_address(h, b);
    else
        free_verified(h, b, stream);
    return status;
}

weir_status weir__harden_alloc(struct weir_harden *h, size_t bytes, weir_stream stream,
                               CUdeviceptr *block) {
    weir_status status;
    uint64_t id = 0;

    if (bytes > h->device->total) /* the layer below will refuse this request */
        return h->below.alloc(h->below.context, bytes, stream, block);
    status = weir__device_capture(h->device, stream);
    if (status == WEIR_E_CAPTURE)
        return guard_alloc_captured(h, bytes, stream, block);
    if (status == WEIR_OK)
        status = weir__device_status(h->device, weir__device_stream_id(h->device, stream, &id));
    if (status != WEIR_OK) {
        weir__device_log_alloc(h->device, bytes, status);
        return status;
    }
    status = guard_alloc(h, bytes, id, stream, block);
    if (weir__is_failure(status))
        weir__failure_set_bytes(bytes); /* the report of the failure must not include the gaps */
    return status;
}

/* ---- frees ---- */

/* Makes the stream wait for all uses of a freed block, then verifies the gaps around the block and fills the block with
 * WEIR_POISON_BYTE.  If the result is E_CAPTURE, the caller must free the block without verification. */
static weir_status finish_guarded(struct weir_harden *h, const struct weir_guarded *b,
                                  weir_stream stream, struct weir_use_list *uses, uint64_t *id) {
    weir_status status = weir__uses_check(h->device, stream, uses);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = weir__device_stream_id(h->device, stream, id);
    if (result == CUDA_SUCCESS)
        result = wait_for_uses(h, stream, uses);
    if (result == CUDA_SUCCESS && guard_has(h, WEIR_HARDEN_GUARD))
        result = check_gaps(h, b, stream);
    if (result == CUDA_SUCCESS && guard_has(h, WEIR_HARDEN_POISON))
        result = guard_fill(h, b->base, b->total, WEIR_POISON_BYTE, stream);
    return weir__device_status(h->device, result);
}

static weir_status guard_free(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              struct weir_use_list *uses) {
    int is_checked = guard_has(h, ~(uint64_t)WEIR_HARDEN_ZERO_ALWAYS);
    uint64_t id = 0;
    weir_status status = is_checked ? finish_guarded(h, b, stream, uses, &id) : WEIR_OK;

    if (status == WEIR_OK && id != 0 &&
        guard_has(h, WEIR_HARDEN_POISON | WEIR_HARDEN_ZERO_STREAM)) {
        b->stream = stream;
        guard_shelve(h, b, id, stream);
        return WEIR_OK;
    }
    /* On a captured stream, frees the block unverified, unless an earlier copy to h->buffer may still read from it. */
    if (status == WEIR_OK || (status == WEIR_E_CAPTURE && !atomic_load(&h->is_copying)))
        status = free_below(h, b, stream, is_checked && status == WEIR_OK ? NULL : uses);
    else
        weir__device_log_free(h->device, guarded_address(h, b), status);
    if (status != WEIR_OK)
        /* The free failed, so the block is live again.  add_live() fails only if other threads filled the map. */
        (void)add_live(h, b);
    return status;
}

weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct weir_guarded *b = remove_live(h, block);
    weir_status status;

    if (b)
        return guard_free(h, b, stream, uses);
    if (weir__addresses_has(h->below.graphs, block))
        return h->below.free(h->below.context, block, stream, uses);
    status = weir__without_driver(WEIR_E_NOT_OWNED);
    weir__device_log_free(h->device, block, status);
    return status;
}

int weir__harden_find(struct weir_harden *h, CUdeviceptr base, CUdeviceptr *block, size_t *bytes) {
    CUdeviceptr start = base + guard_gap(h);
    uintptr_t record;
    int live;

    pthread_mutex_lock(&h->lock);
    live = weir__map_get(&h->live, start, &record);
    if (live) {
        *block = start;
        *bytes = ((const struct weir_guarded *)record)->bytes; /* NOLINT: a pointer of add_live() */
    }
    pthread_mutex_unlock(&h->lock);
    return live;
}

int weir__harden_is_live(struct weir_harden *h, CUdeviceptr block) {
    size_t bytes;

    return weir__harden_find(h, block - guard_gap(h), &block, &bytes) ||
           weir__addresses_has(h->below.graphs, block);
}

/* ---- open and close ---- */

weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out) {
    struct weir_harden *h = calloc(1, sizeof *h);
    CUresult result;

    if (!h)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    h->device = device;
    h->options = options;
    h->below = *below;
    h->kinds = options->harden;
    if (guard_has(h, WEIR_HARDEN_POISON) && !(device->driver->capabilities & WEIR_CAP_STREAM_ID)) {
        h->kinds &= ~(uint64_t)WEIR_HARDEN_POISON;
        weir__log(options->log, WEIR_LOG_WARNING,
                  "the driver has no stream ids (before 12.0): harden poison is off");
    }
    result =
        WEIR_IN_SCOPE(device->driver, device->context,
                      device->driver->cuStreamCreate(&h->verify_stream, CU_STREAM_NON_BLOCKING));
    if (result != CUDA_SUCCESS) {
        free(h);
        return weir__device_status(device, result);
    }
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->checking, NULL);
    *out = h;
    return WEIR_OK;
}

void weir__harden_close(struct weir_harden *h) {
    struct weir_guarded *b;

    if (!h)
        return;
    (void)WEIR_IN_SCOPE(h->device->driver, h->device->context,
                        h->device->driver->cuStreamDestroy(h->verify_stream));
    while ((b = h->kept)) {
        h->kept = b->next;
        free(b);
    }
    for (size_t i = 0; i < h->live.capacity; i++)
        free((void *)h->live.slots[i].value); /* NOLINT: add_live() stored this pointer */
    weir__map_clear(&h->live);
    pthread_mutex_destroy(&h->checking);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ---- statistics and lists ---- */

void weir__harden_live(void *guard, void (*visit)(void *context, uint64_t base, size_t bytes),
                       void *context) {
    struct weir_harden *h = guard;
    const struct weir_guarded *b;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->live.capacity; i++)
        if (h->live.slots[i].key != 0) {
            b = (const struct weir_guarded *)h->live.slots[i]
                    .value; /* NOLINT: add_live() stored this pointer */
            visit(context, b->base, b->total);
        }
    for (b = h->kept; b; b = b->next)
        if (b->is_damaged)
            visit(context, b->base, b->total);
    pthread_mutex_unlock(&h->lock);
}

void weir__harden_figures(struct weir_harden *h, weir_statistics *out) {
    uint64_t reused = atomic_load(&h->reused);

    pthread_mutex_lock(&h->lock);
    out->allocs += reused;
    out->attempts += reused;
    out->hits += reused;
    if (h->options->cache == WEIR_SWITCH_ON)
        out->cache_hits += reused;
    out->frees += reused + h->blocks - h->live.count;
    out->blocks = out->allocs > out->frees ? out->allocs - out->frees : 0;
    out->requested = h->requested;
    out->requested_peak = h->requested_peak;
    out->in_use = h->live_bytes;
    out->in_use_peak = weir__size_larger(out->in_use_peak, out->in_use);
    out->late_writes = atomic_load(&h->late_writes);
    out->overruns = atomic_load(&h->overruns);
    for (const struct weir_guarded *b = h->kept; b; b = b->next)
        out->kept_out += b->id == 0 ? b->total : 0;
    out->host_bytes += sizeof *h + h->blocks * sizeof(struct weir_guarded) +
                       h->live.capacity * sizeof *h->live.slots;
    pthread_mutex_unlock(&h->lock);
}
