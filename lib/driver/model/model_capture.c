/* SPDX-License-Identifier: MIT */
/* model_capture.c: stream captures: which streams take part, and which calls are forbidden during a capture.
 *
 * A capture begins on its origin stream.  A stream that waits for an event of the capture joins the capture.  Each
 * stream has a branch: its steps, and a list of the steps of other branches after which its next step is ordered (as in
 * model_stream.c).  At the end, the origin must be ordered after all steps of the other branches.
 */
#include "driver/model/model_inside.h"

#include <stdlib.h>

struct model_branch {
    struct model_capture *capture;
    struct model_stream *stream;
    uint64_t steps;            /* steps that this stream has added to the capture */
    struct model_orders after; /* other streams' steps, for which this stream's next step waits */
    struct model_branch *next; /* the next stream's part of the capture */
};

struct model_capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    const struct model_thread *thread; /* the thread that began the capture; NULL once it ended */
    int invalid;
    struct model_stream *origin;
    struct model_branch *branches;
    struct model_plan *plan;
    struct model_capture *next; /* the next running capture */
};

static struct model_capture *find_capture(uint64_t id) {
    struct model_capture *capture = weir__model.captures;

    while (capture && capture->id != id)
        capture = capture->next;
    return capture;
}

/* ---- streams of a capture ---- */

static void count_blocking(const struct model_stream *stream, int by) {
    if (weir__model_stream_is_blocking(stream))
        atomic_fetch_add_explicit(&stream->context->capturing, by, memory_order_release);
}

static struct model_branch *add_branch(struct model_capture *capture, struct model_stream *stream) {
    struct model_branch *branch = calloc(1, sizeof *branch);

    if (!branch)
        return NULL;
    branch->capture = capture;
    branch->stream = stream;
    branch->next = capture->branches;
    capture->branches = branch;
    stream->branch = branch;
    atomic_store_explicit(&stream->capture_status, CU_STREAM_CAPTURE_STATUS_ACTIVE,
                          memory_order_release);
    count_blocking(stream, 1);
    return branch;
}

static void drop_branch(struct model_branch *branch) {
    struct model_branch **link = &branch->capture->branches;

    while (*link != branch)
        link = &(*link)->next;
    *link = branch->next;
    branch->stream->branch = NULL;
    atomic_store_explicit(&branch->stream->capture_status, CU_STREAM_CAPTURE_STATUS_NONE,
                          memory_order_release);
    count_blocking(branch->stream, -1);
    weir__model_orders_clear(&branch->after);
    free(branch);
}

/* Ends a capture, after the caller has passed the captured steps to a graph or freed them. */
static void end_capture(struct model_capture *capture) {
    struct model_capture **link = &weir__model.captures;

    while (capture->branches)
        drop_branch(capture->branches);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
}

static void invalidate(struct model_capture *capture) {
    struct model_branch *branch;

    capture->invalid = 1;
    for (branch = capture->branches; branch; branch = branch->next)
        atomic_store_explicit(&branch->stream->capture_status, CU_STREAM_CAPTURE_STATUS_INVALIDATED,
                              memory_order_release);
}

static CUresult break_capture(struct model_capture *capture, CUresult result) {
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    invalidate(capture);
    return result;
}

void weir__model_capture_drop_stream(struct model_stream *stream) {
    struct model_capture *capture = stream->branch ? stream->branch->capture : NULL;

    if (!capture)
        return;
    if (stream != capture->origin) {
        invalidate(capture);
        drop_branch(stream->branch);
        return;
    }
    weir__model_plan_drop(capture->plan);
    end_capture(capture);
}

void weir__model_capture_drop_thread(const struct model_thread *thread) {
    struct model_capture *capture;

    for (capture = weir__model.captures; capture; capture = capture->next)
        if (capture->thread == thread)
            capture->thread = NULL;
}

/* ---- checks during captures ---- */

/* Returns 1 if the capture has a stream of the context, else 0.  With `blocking`, ignores non-blocking streams. */
static int has_branch_in(const struct model_capture *capture, const struct model_context *context,
                         int blocking) {
    const struct model_branch *branch;

    for (branch = capture->branches; branch; branch = branch->next)
        if (branch->stream->context == context &&
            (!blocking || weir__model_stream_is_blocking(branch->stream)))
            return 1;
    return 0;
}

/* Invalidates all captures in which a stream of the context takes part.  Returns `result` if there were any. */
static CUresult break_captures_of(const struct model_context *context, int blocking,
                                  CUresult result) {
    CUresult why = CUDA_SUCCESS;
    struct model_capture *capture;

    for (capture = weir__model.captures; capture; capture = capture->next)
        if (has_branch_in(capture, context, blocking)) {
            invalidate(capture);
            why = result;
        }
    return why;
}

static CUresult check_legacy(const struct model_stream *stream) {
    if (stream != stream->context->legacy)
        return CUDA_SUCCESS;
    return break_captures_of(stream->context, 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch) {
    *branch = NULL;
    if (!stream->branch)
        return check_legacy(stream);
    if (stream->branch->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *branch = stream->branch;
    return CUDA_SUCCESS;
}

CUresult weir__model_capture_check_stream(struct model_stream *stream) {
    if (stream->branch)
        return break_capture(stream->branch->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return check_legacy(stream);
}

CUresult weir__model_capture_check_event(const struct model_event *event) {
    struct model_capture *capture = find_capture(event->capture_id);

    if (capture)
        return break_capture(capture, CUDA_ERROR_CAPTURED_EVENT);
    return event->capture_id ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult weir__model_capture_check_context(const struct model_context *context) {
    return break_captures_of(context, 0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUresult weir__model_capture_check_unsafe(void) {
    const struct model_thread *self = weir__model_thread();
    CUresult result = CUDA_SUCCESS;
    struct model_capture *capture;

    if (self->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (capture = weir__model.captures; capture; capture = capture->next) {
        int own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        int global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                     self->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

        if (own || global) {
            invalidate(capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* ---- Steps and order ---- */

struct model_plan *weir__model_capture_plan(const struct model_branch *branch) {
    return branch->capture->plan;
}

/* If there is no host memory, invalidates the capture, since a graph without this step would be wrong. */
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step) {
    weir__model_charge(weir__model.profile.capture_step_ns);
    if (weir__model_plan_add(branch->capture->plan, step) != 0)
        return break_capture(branch->capture, CUDA_ERROR_OUT_OF_MEMORY);
    branch->steps++;
    return CUDA_SUCCESS;
}

void weir__model_capture_record(struct model_branch *branch, struct model_event *event) {
    event->capture_id = branch->capture->id;
    event->after.count = 0;
    weir__model_orders_add(&event->after, weir__model_stream_id(branch->stream), branch->steps);
    weir__model_orders_add_all(&event->after, &branch->after);
}

CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event) {
    struct model_capture *capture = find_capture(event->capture_id);

    if (event->capture_id && !capture)
        return branch ? break_capture(branch->capture, CUDA_ERROR_CAPTURED_EVENT)
                      : CUDA_ERROR_CAPTURED_EVENT;
    /* The event was never recorded, or its last record does not belong to a running capture. */
    if (!capture)
        return event->stream_id
                   ? break_capture(branch->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                   : CUDA_SUCCESS;
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (branch && branch->capture != capture) {
        invalidate(capture);
        return break_capture(branch->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (stream == stream->context->legacy)
        return break_capture(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (!branch)
        branch = add_branch(capture, stream);
    if (!branch)
        return break_capture(capture, CUDA_ERROR_OUT_OF_MEMORY);
    weir__model_orders_add_all(&branch->after, &event->after);
    return CUDA_SUCCESS;
}

/* ---- begin and end ---- */

static CUresult begin_stream_capture(struct model_stream *stream, CUstreamCaptureMode mode) {
    struct model_capture *capture;

    if (stream->branch)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    capture = calloc(1, sizeof *capture);
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->plan = weir__model_plan_make();
    if (!capture->plan || !add_branch(capture, stream)) {
        weir__model_plan_drop(capture->plan);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->id = weir__model.next_object_id++;
    capture->mode = mode;
    capture->thread = weir__model_thread();
    capture->origin = stream;
    capture->next = weir__model.captures;
    weir__model.captures = capture;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status,
                                            uint64_t *id) {
    CUresult why = weir__model_cuStreamIsCapturing(handle, status);
    const struct model_stream *stream;

    if (why != CUDA_SUCCESS || *status == CU_STREAM_CAPTURE_STATUS_NONE)
        return why;
    weir__model_lock();
    stream = weir__model_stream(handle, &why);
    if (stream && stream->branch && id)
        *id = stream->branch->capture->id;
    return weir__model_unlocked(why);
}

CUresult weir__model_cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!stream)
        return why;
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    why = begin_stream_capture(stream, mode);
    return weir__model_unlocked(why);
}

static int all_joined(const struct model_capture *capture) {
    const struct model_branch *branch;

    for (branch = capture->branches; branch; branch = branch->next)
        if (branch->stream != capture->origin &&
            weir__model_order(&capture->origin->branch->after,
                              weir__model_stream_id(branch->stream)) < branch->steps)
            return 0;
    return 1;
}

/* Ends the capture that began on the stream, even if the graph cannot be made. */
static CUresult end(struct model_stream *stream, CUgraph *graph) {
    struct model_capture *capture = stream->branch ? stream->branch->capture : NULL;
    CUresult result = CUDA_SUCCESS;

    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream != capture->origin)
        return break_capture(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != weir__model_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = result == CUDA_SUCCESS ? weir__model_graph_make(capture->plan) : NULL;
    if (result == CUDA_SUCCESS && !*graph)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!*graph)
        weir__model_plan_drop(capture->plan);
    end_capture(capture);
    return result;
}

CUresult weir__model_cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!stream)
        return why;
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    why = end(stream, graph);
    return weir__model_unlocked(why);
}

/* ---- Checking ---- */

const char *weir__model_capture_check(const struct model_context *context) {
    const struct model_stream *stream;
    int capturing = 0;

    for (stream = context->streams; stream; stream = stream->next) {
        const struct model_branch *branch = stream->branch;
        CUstreamCaptureStatus status = !branch ? CU_STREAM_CAPTURE_STATUS_NONE
                                       : branch->capture->invalid
                                           ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;

        if (atomic_load(&stream->capture_status) != status || (branch && branch->stream != stream))
            return "a stream does not know whether it is captured";
        capturing += branch && weir__model_stream_is_blocking(stream);
    }
    return capturing == atomic_load(&context->capturing) ? NULL : "captured streams miscounted";
}
