/* SPDX-License-Identifier: MIT */
/* engine.c: what the engines share: driver results as statuses, and notes for the books.
 *
 * Must not know: any single engine.
 */
#include "engine/engine.h"

#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"
#include "driver/nvtx.h"

/* Of the block that is made for a wait, on the device or the host. */
#define WAIT_BYTES ((size_t)2 << 20)
#define WAIT_HOST_BYTES ((size_t)64 << 10)
/* What large blocks of cuMemAlloc are made of. */
#define DRIVER_PAGE ((size_t)2 << 20)

_Thread_local int weir__engine_lacks_context WEIR_FAST_TLS;

int weir__engine_lend_context(const struct weir_host *host) {
    CUcontext current = NULL;

    return host->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && !current &&
           host->driver->cuCtxPushCurrent(host->context) == CUDA_SUCCESS;
}

void weir__engine_end_context(const struct weir_host *host, int lent) {
    CUcontext popped;

    if (lent)
        host->driver->cuCtxPopCurrent(&popped);
}

int weir__engine_retry_in_context(const struct weir_host *host, CUresult *result,
                                  struct weir_driver_scope *scope) {
    if (*result != CUDA_ERROR_INVALID_CONTEXT || host->drop_in)
        return 0;
    weir__engine_lacks_context = 1;
    *result = weir__driver_enter(host->driver, host->context, scope);
    return *result == CUDA_SUCCESS;
}

int weir__engine_is_idle(struct weir_host *host, weir_stream stream) {
    struct weir_driver_scope scope;
    CUresult result;

    if (weir__driver_relax(host->driver, &scope) != CUDA_SUCCESS)
        return 0;
    result = host->driver->cuStreamQuery(stream);
    weir__driver_unrelax(host->driver, &scope);
    return result == CUDA_SUCCESS;
}

/* Results after which the context is of no use any more ("sticky" in CUDA's words), and those of a
 * process or context that is going away. */
static int is_fatal(CUresult result) {
    switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case 702: /* launch timeout */
    case 710: /* a kernel's assert() */
        return 1;
    default:
        /* 714 to 719: hardware stack error ... launch failed */
        return result >= 714 && result <= CUDA_ERROR_LAUNCH_FAILED;
    }
}

/* A destroyed context may be the caller's current one, which is no concern of others, or the
 * device's own, with which all its streams went. */
static int own_context_is_gone(struct weir_host *host) {
    struct weir_driver_scope scope;

    if (weir__driver_enter(host->driver, host->context, &scope) != CUDA_SUCCESS)
        return 1;
    weir__driver_leave(host->driver, &scope);
    return 0;
}

static void log_answer(const struct weir_host *host, const char *what, CUresult result) {
    if (!atomic_load_explicit(&host->is_being_made, memory_order_relaxed))
        weir__log(host->options.log, WEIR_LOG_ERROR, "%s%s", what,
                  weir__driver_error_name(host->driver, result));
}

weir_status weir__engine_status(struct weir_host *host, CUresult result) {
    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    weir__set_driver_result((int)result);
    if (is_fatal(result) ||
        ((result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_HANDLE) &&
         own_context_is_gone(host))) {
        if (weir__detour_set(&host->detours, WEIR_DETOUR_LOST, 1))
            log_answer(host, "the device is lost: ", result);
        return WEIR_E_DEVICE_LOST;
    }
    if (result == CUDA_ERROR_INVALID_CONTEXT && host->drop_in)
        return WEIR_E_STREAM;
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return WEIR_E_NO_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return WEIR_E_NO_DEVICE;
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return WEIR_E_STREAM;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return WEIR_E_CAPTURE;
    case CUDA_ERROR_NOT_SUPPORTED:
        return WEIR_E_NOT_SUPPORTED;
    default:
        log_answer(host, "the driver answered ", result);
        return WEIR_E_DRIVER;
    }
}

weir_status weir__engine_refuse(weir_status status) {
    weir__set_driver_result(CUDA_SUCCESS);
    return status;
}

size_t weir__engine_extend(struct weir_extent *list, size_t count, size_t most,
                           struct weir_extent extent) {
    struct weir_extent *last = count > 0 ? &list[count - 1] : NULL;

    if (last && last->base + last->bytes == extent.base && last->large == extent.large)
        last->bytes += extent.bytes;
    else if (count < most)
        list[count++] = extent;
    return count;
}

/* Streams beyond those that are told apart count as not known. */
void weir__engine_pends(struct weir_survey *survey, uint64_t stream, uint64_t bytes) {
    size_t at = 0;

    survey->pending += bytes;
    while (at < survey->streams && survey->by[at].stream != stream)
        at++;
    if (at == WEIR_SURVEY_STREAMS) {
        stream = 0;
        at--;
    }
    if (at == survey->streams)
        survey->streams++;
    survey->by[at].stream = stream;
    survey->by[at].bytes += bytes;
}

uint64_t weir__engine_since(const struct weir_host *host, uint64_t ticks) {
    return host->driver->ticks_to_ns(host->driver->ticks() - ticks);
}

void weir__engine_note(struct weir_host *host, int cause, int shrink, uint64_t asked, uint64_t got,
                       uint64_t stall_ns, uint64_t reserve_after) {
    weir_event event = {
        .time_ns = weir__engine_since(host, host->created_ticks),
        .asked = asked,
        .got = got,
        .stall_ns = stall_ns,
        .reserve_after = reserve_after,
        .cause = cause,
        .shrink = shrink,
    };
    char got_text[32], reserve_text[32];

    weir__books_event(host->books, &event);
    weir__nvtx_mark(weir__event_name(cause, shrink), shrink, got);
    if (host->neighbours && cause != WEIR_EVENT_APPEAL)
        weir__neighbours_note(host->neighbours, &host->shown, reserve_after);
    if (!shrink && (cause == WEIR_EVENT_REQUEST || cause == WEIR_EVENT_POLICY))
        weir__decay_grew(&host->decay);
    if (host->options.log < WEIR_LOG_INFO)
        return;
    weir__bytes_show(got, got_text, sizeof got_text);
    if (cause == WEIR_EVENT_APPEAL) {
        weir__log(host->options.log, WEIR_LOG_INFO, "other processes gave %s, %llu ns", got_text,
                  (unsigned long long)stall_ns);
        return;
    }
    weir__bytes_show(reserve_after, reserve_text, sizeof reserve_text);
    weir__log(host->options.log, WEIR_LOG_INFO, "reserve %s %s (%s), now %s, %llu ns",
              shrink ? "fell by" : "grew by", got_text, weir_event_cause_word(cause), reserve_text,
              (unsigned long long)stall_ns);
}

uint64_t weir__engine_device_free(struct weir_host *host) {
    struct weir_driver_scope scope;
    size_t free_bytes = 0, total = 0;
    CUresult result = weir__driver_enter(host->driver, host->context, &scope);

    if (result != CUDA_SUCCESS)
        return UINT64_MAX;
    result = host->driver->cuMemGetInfo(&free_bytes, &total);
    weir__driver_leave(host->driver, &scope);
    return result == CUDA_SUCCESS ? free_bytes : UINT64_MAX;
}

static _Thread_local int insists, is_foretold;

int weir__engine_would_refuse(struct weir_host *host, uint64_t bytes, uint64_t idle) {
    uint64_t device;

    if (insists)
        return 0;
    device = weir__engine_device_free(host);
    if (device == UINT64_MAX || bytes <= device + idle)
        return 0;
    is_foretold = 1;
    return 1;
}

void weir__engine_unforetell(void) {
    is_foretold = 0;
}

int weir__engine_insist(int on) {
    int was = is_foretold;

    insists = on;
    is_foretold = 0;
    return was;
}

size_t weir__engine_room(struct weir_host *host, uint64_t most, uint64_t back) {
    uint64_t device = weir__engine_device_free(host);
    size_t pages =
        device == UINT64_MAX ? 0 : weir__size_round_down((size_t)(device + back), DRIVER_PAGE);

    return most < pages ? (size_t)most : pages;
}

/* A legacy stream beside a capture (906) is as good as captured: nothing may be asked or recorded
 * there. */
weir_status weir__engine_capture(struct weir_host *host, weir_stream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = host->driver->cuStreamIsCapturing(stream, &status);
    struct weir_driver_scope scope;

    if (weir__engine_retry_in_context(host, &result, &scope)) {
        result = host->driver->cuStreamIsCapturing(stream, &status);
        weir__driver_leave(host->driver, &scope);
    }
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return weir__engine_refuse(WEIR_E_CAPTURE);
    return weir__engine_status(host, result);
}

/* The capture status comes first: asking a captured stream for its id breaks the capture, in any mode
 * (H200, driver 580). */
static CUresult ask_id(const struct weir_driver *driver, weir_stream stream,
                       unsigned long long *id) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver->cuStreamIsCapturing(stream, &capture);

    if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result == CUDA_SUCCESS ? driver->cuStreamGetId(stream, id) : result;
}

CUresult weir__engine_stream_id(struct weir_host *host, weir_stream stream, uint64_t *id) {
    const struct weir_driver *driver = host->driver;
    unsigned long long value = 0;
    struct weir_driver_scope scope;
    CUresult result;

    *id = 0;
    if (!(driver->capabilities & WEIR_CAP_STREAM_ID))
        return CUDA_SUCCESS;
    result = ask_id(driver, stream, &value);
    if (weir__engine_retry_in_context(host, &result, &scope)) {
        result = ask_id(driver, stream, &value);
        weir__driver_leave(driver, &scope);
    }
    if (result == CUDA_SUCCESS)
        *id = value;
    return result;
}

CUresult weir__engine_record(struct weir_host *host, CUevent event, weir_stream stream,
                             uint64_t id) {
    struct weir_driver_scope scope;
    uint64_t now = 0;
    CUresult result = id ? weir__engine_stream_id(host, stream, &now) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS)
        return result;
    if (now != id)
        return CUDA_ERROR_INVALID_HANDLE;
    result = host->driver->cuEventRecord(event, stream);
    if (weir__engine_retry_in_context(host, &result, &scope)) {
        result = host->driver->cuEventRecord(event, stream);
        weir__driver_leave(host->driver, &scope);
    }
    return result;
}

CUresult weir__engine_follow(struct weir_host *host, weir_stream stream, CUevent event) {
    struct weir_driver_scope scope;
    CUresult result = host->driver->cuStreamWaitEvent(stream, event, 0);

    if (weir__engine_retry_in_context(host, &result, &scope)) {
        result = host->driver->cuStreamWaitEvent(stream, event, 0);
        weir__driver_leave(host->driver, &scope);
    }
    return result;
}

weir_status weir__engine_check_device(struct weir_host *host, weir_stream stream) {
    const struct weir_driver *driver = host->driver;
    struct weir_driver_scope scope;
    CUcontext context = NULL;
    CUdevice device = host->device;

    if (driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == host->context)
        return WEIR_OK;
    if (weir__driver_enter(driver, context, &scope) != CUDA_SUCCESS)
        return WEIR_OK;
    (void)driver->cuCtxGetDevice(&device);
    weir__driver_leave(driver, &scope);
    return device == host->device ? WEIR_OK : weir__engine_refuse(WEIR_E_STREAM);
}

__attribute__((cold)) void weir__engine_log_alloc(const struct weir_host *host, size_t bytes,
                                                  weir_status status) {
    if (status == WEIR_E_STREAM && !host->drop_in)
        weir__log(host->options.log, WEIR_LOG_ERROR, "request for %zu byte%s: %s", bytes,
                  weir__plural(bytes), weir_status_message(status));
}

__attribute__((cold)) void weir__engine_log_free(const struct weir_host *host, CUdeviceptr block,
                                                 weir_status status) {
    if (host->drop_in) /* the driver does not say so either, or serves */
        return;
    weir__log(host->options.log, WEIR_LOG_ERROR, "free of 0x%llx: %s", (unsigned long long)block,
              weir_status_message(status));
}

/* A block that the driver does not take back is the next wait's. */
static CUresult wait_by_block(struct weir_host *host) {
    CUdeviceptr block = atomic_exchange_explicit(&host->waited_by, 0, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;

    if (block == 0)
        result = host->driver->cuMemAlloc(&block, WAIT_BYTES);
    if (result != CUDA_SUCCESS)
        return result;
    result = host->driver->cuMemFree(block);
    if (result != CUDA_SUCCESS)
        atomic_store_explicit(&host->waited_by, block, memory_order_relaxed);
    return result;
}

void weir__engine_end_waits(struct weir_host *host) {
    CUdeviceptr block = atomic_exchange_explicit(&host->waited_by, 0, memory_order_relaxed);
    struct weir_driver_scope scope;

    if (block == 0 || weir__driver_enter(host->driver, host->context, &scope) != CUDA_SUCCESS)
        return;
    (void)host->driver->cuMemFree(block);
    weir__driver_leave(host->driver, &scope);
}

/* A free that is refused once is tried again: what it leaves would be lost. */
static CUresult wait_by_host_block(const struct weir_driver *driver) {
    void *block = NULL;
    CUresult result = driver->cuMemAllocHost(&block, WAIT_HOST_BYTES);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemFreeHost(block);
    if (result != CUDA_SUCCESS)
        (void)driver->cuMemFreeHost(block);
    return result;
}

/* cuMemFree and cuMemFreeHost wait for the device, and in relaxed mode do no harm to a capture that is
 * under way anywhere; cuCtxSynchronize is refused then, and breaks the capture (H200, driver 580).
 * Memory of the host is dearer by a quarter of a millisecond, and there is some on a full device too. */
CUresult weir__engine_wait_for_device(struct weir_host *host) {
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(host->driver, host->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = wait_by_block(host);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = wait_by_host_block(host->driver);
    weir__driver_leave(host->driver, &scope);
    return result;
}
