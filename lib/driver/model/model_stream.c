/* SPDX-License-Identifier: MIT */
/* model_stream.c: streams, events, and the virtual work on them.
 *
 * A stream has a count of operations, and the time when all its submitted work is completed.  New work begins at this
 * time or now, whichever is later.  Besides times, each stream has a list of the operations for which its next work
 * waits (model_orders.c).  A record copies the list to the event; a wait for the event adds the list to the waiting
 * stream.  By CUDA's rule, the legacy stream and the blocking streams of a context wait for each other.
 *
 * If the stream is being captured, the operation becomes a step of a graph instead (model_capture.c).
 */
#include "driver/model/model_inside.h"

#include <string.h>

_Static_assert(sizeof(struct model_stream) <= 128, "a stream fits its slot");
_Static_assert(sizeof(struct model_event) <= 128, "an event fits its slot");

/* ---- Streams ---- */

int weir__model_stream_is_blocking(const struct model_stream *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Makes the next operation of `stream` wait for all work that was submitted to `other`. */
static void order_stream_after(struct model_stream *stream, const struct model_stream *other) {
    if (stream->end_ns < other->end_ns)
        stream->end_ns = other->end_ns;
    weir__model_orders_add(&stream->after, weir__model_stream_id(other), other->seq);
    weir__model_orders_add_all(&stream->after, &other->after);
}

void weir__model_stream_touch(struct model_stream *stream) {
    struct model_stream *legacy = stream->context->legacy, *other;

    if (stream == legacy) {
        for (other = stream->context->streams; other; other = other->next)
            if (other != legacy && other->seq > 0 && weir__model_stream_is_blocking(other))
                order_stream_after(legacy, other);
    } else if (weir__model_stream_is_blocking(stream) && legacy && legacy->seq > 0) {
        order_stream_after(stream, legacy);
    }
    stream->seq++;
}

void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns) {
    struct model_device *device = &weir__model.devices[stream->context->device];
    uint64_t now = weir__model_now(), begin = now + weir__model.profile.work_begin_ns;

    weir__model_stream_touch(stream);
    weir__model_pools_begin(weir__model_stream_id(stream), stream->seq,
                            begin > stream->end_ns ? begin : stream->end_ns);
    stream->end_ns = (stream->end_ns > now ? stream->end_ns : now) + duration_ns;
    if (device->work_end_ns < stream->end_ns)
        device->work_end_ns = stream->end_ns;
}

struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags) {
    struct model_stream *stream;

    weir__model_orders_collect();
    stream = weir__model_slab_alloc(&weir__model.streams, weir__model.next_stream_id);
    if (!stream)
        return NULL;
    weir__model.next_stream_id++;
    stream->context = context;
    stream->flags = flags;
    MODEL_LIST_ADD(context->streams, stream);
    return stream;
}

void weir__model_stream_drop(struct model_stream *stream) {
    weir__model_capture_drop_stream(stream);
    weir__model_pools_end_stream(weir__model_stream_id(stream));
    MODEL_LIST_REMOVE(stream->context->streams, stream);
    weir__model_orders_clear(&stream->after);
    weir__model_slab_free(&weir__model.streams, stream);
}

static void drop_event(struct model_event *event) {
    MODEL_LIST_REMOVE(event->context->events, event);
    weir__model_orders_clear(&event->after);
    weir__model_slab_free(&weir__model.events, event);
}

void weir__model_streams_drop(struct model_context *context) {
    while (context->streams)
        weir__model_stream_drop(context->streams);
    while (context->events)
        drop_event(context->events);
}

struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device) {
    struct model_stream *own = thread->per_thread[device];

    if (!own || weir__model_slab_find(&weir__model.streams, own) != own ||
        weir__model_stream_id(own) != thread->per_thread_id[device])
        return NULL;
    return own;
}

/* Returns the thread's default stream, and creates it if necessary.  Returns NULL with *why if no handle is free. */
static struct model_stream *thread_stream(struct model_context *context, CUresult *why) {
    struct model_thread *self = weir__model_thread();
    struct model_stream *own = weir__model_stream_own(self, context->device);

    if (own && own->context == context)
        return own;
    weir__model_lock();
    own = weir__model_stream_make(context, CU_STREAM_DEFAULT);
    self->per_thread[context->device] = own;
    self->per_thread_id[context->device] = own ? weir__model_stream_id(own) : 0;
    weir__model_unlock();
    if (!own)
        *why = CUDA_ERROR_OUT_OF_MEMORY;
    return own;
}

struct model_stream *weir__model_stream(CUstream handle, CUresult *why) {
    uintptr_t value = (uintptr_t)handle;
    struct model_context *context;
    struct model_stream *stream;

    if (value > WEIR_STREAM_PER_THREAD_VALUE) {
        stream = weir__model_slab_find(&weir__model.streams, handle);
        if (!stream)
            *why = CUDA_ERROR_INVALID_HANDLE;
        return stream;
    }
    context = weir__model_current(why);
    if (!context)
        return NULL;
    return value == WEIR_STREAM_PER_THREAD_VALUE ? thread_stream(context, why) : context->legacy;
}

CUresult weir__model_cuStreamCreate(CUstream *handle, unsigned int flags) {
    CUresult why = CUDA_ERROR_OUT_OF_MEMORY;
    struct model_context *context;
    struct model_stream *stream;

    if (!handle || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    context = weir__model_current(&why);
    if (!context)
        return why;
    weir__model_lock();
    stream = weir__model_stream_make(context, flags);
    weir__model_unlock();
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUstream)(void *)stream;
    return CUDA_SUCCESS;
}

/* Work that was submitted to the stream still completes.  The next stream may get an equal handle (measured). */
CUresult weir__model_cuStreamDestroy(CUstream handle) {
    struct model_stream *stream = weir__model_slab_find(&weir__model.streams, handle);

    if (!stream || stream == stream->context->legacy)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    weir__model_stream_drop(stream);
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* Checks whether the host may query or wait for the stream, which CUDA forbids during some captures. */
static CUresult check_host_wait(struct model_stream *stream) {
    CUresult why = weir__model_capture_check_stream(stream);

    return why == CUDA_SUCCESS ? weir__model_capture_check_unsafe() : why;
}

/* Records that the host has waited for a stream's work up to `seq`.  A stream query has no such effect (measured). */
static void record_host_wait(uint64_t id, uint64_t seq, const struct model_orders *after) {
    weir__model_pools_observe(id, seq, after);
    weir__model_oracle_observe(id, seq, after);
}

/* Clears the lists `after` of a context's streams, because the host has waited for all work of the device. */
static void clear_stream_orders(struct model_context *context) {
    struct model_stream *stream;

    for (stream = context->streams; stream; stream = stream->next)
        stream->after.count = 0;
}

CUresult weir__model_cuStreamSynchronize(CUstream handle) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!stream)
        return why;
    weir__model_lock();
    why = check_host_wait(stream);
    if (why == CUDA_SUCCESS) {
        weir__model_wait_until(stream->end_ns);
        record_host_wait(weir__model_stream_id(stream), stream->seq, &stream->after);
        weir__model_pools_synchronised(stream->context->device);
    }
    return weir__model_unlocked(why);
}

CUresult weir__model_cuStreamQuery(CUstream handle) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!stream)
        return why;
    weir__model_lock();
    why = check_host_wait(stream);
    if (why == CUDA_SUCCESS && stream->end_ns > weir__model_now())
        why = CUDA_ERROR_NOT_READY;
    else if (why == CUDA_SUCCESS)
        weir__model_oracle_observe(weir__model_stream_id(stream), stream->seq, &stream->after);
    return weir__model_unlocked(why);
}

CUresult weir__model_cuCtxSynchronize(void) {
    CUresult why = CUDA_SUCCESS;
    struct model_context *context = weir__model_current(&why);

    if (!context)
        return why;
    weir__model_lock();
    why = weir__model_capture_check_context(context);
    if (why == CUDA_SUCCESS) {
        weir__model_wait_until(weir__model.devices[context->device].work_end_ns);
        weir__model_pools_observe_device(context->device);
        weir__model_oracle_observe_device(context->device);
        clear_stream_orders(context);
        weir__model_pools_synchronised(context->device);
    }
    return weir__model_unlocked(why);
}

/* Finds the stream for a query, which invalidates a running capture of the stream (measured, driver 580). */
static CUresult find_queried(CUstream handle, const void *out, struct model_stream **stream) {
    CUresult why = CUDA_SUCCESS;

    *stream = weir__model_stream(handle, &why);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (*stream && atomic_load_explicit(&(*stream)->capture_status, memory_order_acquire) !=
                       CU_STREAM_CAPTURE_STATUS_NONE) {
        weir__model_lock();
        return weir__model_unlocked(weir__model_capture_check_stream(*stream));
    }
    return why;
}

CUresult weir__model_cuStreamGetId(CUstream handle, unsigned long long *id) {
    struct model_stream *stream;
    CUresult why = find_queried(handle, id, &stream);

    if (why == CUDA_SUCCESS)
        *id = weir__model_stream_id(stream);
    return why;
}

CUresult weir__model_cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    struct model_stream *stream;
    CUresult why = find_queried(handle, flags, &stream);

    if (why == CUDA_SUCCESS)
        *flags = stream->flags;
    return why;
}

/* Also succeeds while the stream is being captured (assumed). */
CUresult weir__model_cuStreamGetCtx(CUstream handle, CUcontext *context) {
    CUresult why = CUDA_SUCCESS;
    const struct model_stream *stream = weir__model_stream(handle, &why);

    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream)
        *context = (CUcontext)(void *)stream->context;
    return why;
}

CUresult weir__model_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream)
        return why;
    if (stream == stream->context->legacy &&
        atomic_load_explicit(&stream->context->capturing, memory_order_acquire) > 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = atomic_load_explicit(&stream->capture_status, memory_order_acquire);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    struct model_thread *self = weir__model_thread();
    CUstreamCaptureMode before = self->capture_mode;

    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    self->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Runs a kernel or a use of memory on the stream or, if the stream is being captured, adds it to the graph. */
static CUresult run_kernel(struct model_stream *stream, const struct model_step *step) {
    struct model_branch *branch;
    CUresult why = weir__model_capture_enter(stream, &branch);

    if (branch)
        return weir__model_capture_add(branch, step);
    if (why == CUDA_SUCCESS)
        weir__model_stream_work(stream, step->duration_ns);
    if (why == CUDA_SUCCESS && step->kind == STEP_USE)
        weir__model_oracle_use(stream, step->address, step->bytes, step->owner);
    return why;
}

static CUresult launch(CUstream handle, const struct model_step *step) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream;

    if (!weir__model_ensure_thread())
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream = weir__model_stream(handle, &why);
    if (!stream)
        return why;
    weir__model_charge(weir__model.profile.call_ns[WEIR_ENTRY_cuLaunchKernel]);
    weir__model_lock();
    why = run_kernel(stream, step);
    return weir__model_unlocked(why);
}

CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns) {
    return launch(stream, &(struct model_step){.kind = STEP_KERNEL, .duration_ns = duration_ns});
}

CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns) {
    return launch(stream, &(struct model_step){.kind = STEP_USE,
                                               .duration_ns = duration_ns,
                                               .address = address,
                                               .bytes = bytes,
                                               .owner = owner});
}

/* The virtual time of a host function.  The model calls the function at once. */
#define HOST_FUNCTION_NS UINT64_C(1000000)

CUresult weir__model_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream)
        return why;
    if (atomic_load_explicit(&stream->capture_status, memory_order_acquire) !=
        CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    weir__model_lock();
    why = run_kernel(stream,
                     &(struct model_step){.kind = STEP_KERNEL, .duration_ns = HOST_FUNCTION_NS});
    weir__model_unlock();
    if (why == CUDA_SUCCESS)
        function(data);
    return why;
}

/* ---- Events ---- */

CUresult weir__model_cuEventCreate(CUevent *handle, unsigned int flags) {
    CUresult why = CUDA_ERROR_OUT_OF_MEMORY;
    struct model_context *context;
    struct model_event *event;

    if (!handle || flags > 7) /* blocking sync (1), no timing (2), interprocess (4) */
        return CUDA_ERROR_INVALID_VALUE;
    context = weir__model_current(&why);
    if (!context)
        return why;
    weir__model_lock();
    event = weir__model_slab_alloc(&weir__model.events, weir__model.next_object_id++);
    if (event) {
        event->context = context;
        event->flags = flags;
        MODEL_LIST_ADD(context->events, event);
        *handle = (CUevent)(void *)event;
    }
    weir__model_unlock();
    return event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void record(struct model_event *event, struct model_stream *stream) {
    weir__model_stream_touch(stream);
    event->stream_id = weir__model_stream_id(stream);
    event->seq = stream->seq;
    event->end_ns = stream->end_ns > weir__model_now() ? stream->end_ns : weir__model_now();
    event->capture_id = 0;
    event->after.count = 0;
    weir__model_orders_add_all(&event->after, &stream->after);
}

CUresult weir__model_cuEventRecord(CUevent handle, CUstream stream_handle) {
    CUresult why = CUDA_SUCCESS;
    struct model_event *event = weir__model_slab_find(&weir__model.events, handle);
    struct model_stream *stream = weir__model_stream(stream_handle, &why);
    struct model_branch *branch;

    if (!stream)
        return why;
    if (!event || event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    why = weir__model_capture_enter(stream, &branch);
    if (branch)
        weir__model_capture_record(branch, event);
    else if (why == CUDA_SUCCESS)
        record(event, stream);
    return weir__model_unlocked(why);
}

CUresult weir__model_cuEventQuery(CUevent handle) {
    struct model_event *event = weir__model_slab_find(&weir__model.events, handle);
    CUresult result;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    result = weir__model_capture_check_event(event);
    if (result == CUDA_SUCCESS)
        result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS && event->stream_id && event->end_ns > weir__model_now())
        result = CUDA_ERROR_NOT_READY;
    else if (result == CUDA_SUCCESS && event->stream_id)
        weir__model_oracle_observe(event->stream_id, event->seq, &event->after);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuEventSynchronize(CUevent handle) {
    struct model_event *event = weir__model_slab_find(&weir__model.events, handle);
    CUresult result;

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    result = weir__model_capture_check_event(event);
    if (result == CUDA_SUCCESS)
        result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS && event->stream_id) {
        weir__model_wait_until(event->end_ns);
        record_host_wait(event->stream_id, event->seq, &event->after);
        weir__model_pools_synchronised(event->context->device);
    }
    return weir__model_unlocked(result);
}

static CUresult elapsed(const struct model_event *from, const struct model_event *to,
                        float *milliseconds) {
    /* the call fails, but the capture stays valid (measured) */
    if (from->capture_id || to->capture_id)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!from->stream_id || !to->stream_id)
        return CUDA_ERROR_INVALID_HANDLE;
    if (from->end_ns > weir__model_now() || to->end_ns > weir__model_now())
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(((double)to->end_ns - (double)from->end_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    const struct model_event *from = weir__model_slab_find(&weir__model.events, start);
    const struct model_event *to = weir__model_slab_find(&weir__model.events, end);
    CUresult result;

    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!from || !to || (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    result = elapsed(from, to, milliseconds);
    return weir__model_unlocked(result);
}

static void wait_for(struct model_stream *stream, const struct model_event *event) {
    weir__model_stream_touch(stream);
    if (event->stream_id) {
        if (stream->end_ns < event->end_ns)
            stream->end_ns = event->end_ns;
        weir__model_orders_add(&stream->after, event->stream_id, event->seq);
        weir__model_orders_add_all(&stream->after, &event->after);
    }
}

CUresult weir__model_cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
    CUresult why = CUDA_SUCCESS;
    struct model_event *event = weir__model_slab_find(&weir__model.events, handle);
    struct model_stream *stream = weir__model_stream(stream_handle, &why);
    struct model_branch *branch;

    if (!stream)
        return why;
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    why = weir__model_capture_enter(stream, &branch);
    if (why == CUDA_SUCCESS && (branch || event->capture_id))
        why = weir__model_capture_wait(stream, branch, event);
    else if (why == CUDA_SUCCESS)
        wait_for(stream, event);
    return weir__model_unlocked(why);
}

CUresult weir__model_cuEventDestroy(CUevent handle) {
    struct model_event *event = weir__model_slab_find(&weir__model.events, handle);

    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    weir__model_lock();
    drop_event(event);
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* ---- modules and kernels ---- */

/* Every module has one kernel, weir_delay.  Its only parameter is the time for which it keeps the stream busy, in
 * nanoseconds.  The addresses of these variables are the handles. */
static char delay_module, delay_kernel;

static int is_module(CUmodule handle) {
    return (void *)handle == &delay_module;
}

CUresult weir__model_cuModuleLoadData(CUmodule *handle, const void *image) {
    CUresult why = CUDA_SUCCESS;

    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (weir__model_current(&why))
        *handle = (CUmodule)(void *)&delay_module;
    return why;
}

CUresult weir__model_cuModuleUnload(CUmodule handle) {
    return is_module(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult weir__model_cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (strcmp(name, "weir_delay") != 0)
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(void *)&delay_kernel;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                    unsigned int block_z, unsigned int shared_bytes,
                                    CUstream handle, void **parameters, void **extra) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream;
    struct model_step step = {.kind = STEP_KERNEL};

    if ((void *)function != &delay_kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || !parameters ||
        !parameters[0])
        return CUDA_ERROR_INVALID_VALUE;
    if (shared_bytes || extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    stream = weir__model_stream(handle, &why);
    if (!stream)
        return why;
    memcpy(&step.duration_ns, parameters[0], sizeof step.duration_ns);
    weir__model_lock();
    why = run_kernel(stream, &step);
    return weir__model_unlocked(why);
}
