/* SPDX-License-Identifier: MIT */
/* guard.c: requests and frees of an allocator that guards its blocks; see guard.h.
 *
 * Guard: a block is requested from the layer below with a gap on either side.  The gaps are filled on the block's
 * stream, and verified there when the block is freed.
 *
 * Poison: a freed block is filled on its stream and stays here, on the stream's *shelf* (guard_shelf.c), where the
 * layer below cannot reuse it.  Any write to it that is found later came after the free.
 *
 * Zero: a block from below is zeroed on its stream before it is returned, since this layer does not know who used its
 * memory before.  With "zero-stream" freed blocks stay on the stream's shelf, too, and a block from there keeps its
 * contents, which are the stream's own.  With "zero-always" it is zeroed again.
 *
 * Capture: a block that is requested on a captured stream belongs to the graph.  It has neither gaps nor poison, but a
 * node of the graph zeroes it at each launch.  A block that is freed on a captured stream goes below unverified, since
 * weir cannot wait for a captured stream.
 */
#include "cache/guard_state.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "base/size.h"

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

    if (weir__is_failure(status) && weir__guard_holds(h, 0) &&
        h->options->recovery_timeout_ms != UINT32_MAX && weir__guard_empty(h, 0, stream) == WEIR_OK)
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
        result = weir__guard_fill(h, address_of(h, b), 0, b->bytes, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = weir__guard_fill_gaps(h, b, stream);
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
        result = weir__guard_fill(h, *block, 0, bytes, stream);
    if (noted && result == CUDA_SUCCESS)
        return WEIR_OK;
    (void)h->below.free(h->below.context, *block, stream, NULL);
    return noted ? weir__device_status(h->device, result)
                 : weir__without_driver(WEIR_E_HOST_MEMORY);
}

static weir_status alloc_hardened(struct weir_harden *h, size_t bytes, uint64_t id,
                                  weir_stream stream, CUdeviceptr *block) {
    size_t total = total_of(h, bytes);
    struct weir_guarded *b = weir__guard_take(h, id, total, stream);
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
        weir__guard_return_below(h, b, stream, 1);
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
    CUresult result = uses ? weir__guard_wait_for_uses(h, stream, uses) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_GUARD))
        result = weir__guard_check_gaps(h, b, stream);
    if (result == CUDA_SUCCESS && is_on(h, WEIR_HARDEN_POISON))
        result = weir__guard_fill(h, b->base, WEIR_POISON_BYTE, b->total, stream);
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
    weir__guard_shelve(h, b, id, stream);
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

/* Blocks on shelves and blocks kept out of use are freed for the caller, although they are live below.  Gaps belong to
 * no caller. */
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
