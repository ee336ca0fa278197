/* SPDX-License-Identifier: MIT */
/* guard_memory.c: fills and verifies the memory of blocks, on the stream that uses them.
 *
 * What: to verify, weir copies memory to the host and waits for the stream.  If the driver refuses that wait, weir
 * waits for the device, at once or before the next verification: nobody may reuse the block or the buffer while a copy
 * is under way.  If a block has noted uses, its stream waits for those streams on the device.
 *
 * Locks: `checking`.
 */
#include "cache/guard_state.h"

#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "base/text.h"

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

CUresult weir__guard_fill(const struct weir_harden *h, CUdeviceptr at, unsigned char value,
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

CUresult weir__guard_verify(struct weir_harden *h, CUdeviceptr at, unsigned char value,
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

CUresult weir__guard_wait_for_uses(struct weir_harden *h, weir_stream stream,
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

/* ---- gaps ---- */

static size_t behind(const struct weir_harden *h, const struct weir_guarded *b) {
    return b->total - gap(h) - b->bytes;
}

CUresult weir__guard_fill_gaps(const struct weir_harden *h, const struct weir_guarded *b,
                               weir_stream stream) {
    CUresult result = weir__guard_fill(h, b->base, GUARD_BYTE, WEIR_GUARD_GAP, stream);

    if (result != CUDA_SUCCESS)
        return result;
    return weir__guard_fill(h, b->base + WEIR_GUARD_GAP + b->bytes, GUARD_BYTE, behind(h, b),
                            stream);
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

CUresult weir__guard_check_gaps(struct weir_harden *h, const struct weir_guarded *b,
                                weir_stream stream) {
    size_t before_at = 0, behind_at = 0;
    CUresult result =
        weir__guard_verify(h, b->base, GUARD_BYTE, WEIR_GUARD_GAP, stream, &before_at);

    if (result == CUDA_SUCCESS)
        result = weir__guard_verify(h, b->base + WEIR_GUARD_GAP + b->bytes, GUARD_BYTE,
                                    behind(h, b), stream, &behind_at);
    if (result != CUDA_SUCCESS)
        return result;
    if (before_at < WEIR_GUARD_GAP)
        report_overrun(h, b, stream, 0, WEIR_GUARD_GAP - before_at);
    if (behind_at < behind(h, b))
        report_overrun(h, b, stream, 1, behind_at);
    return CUDA_SUCCESS;
}
