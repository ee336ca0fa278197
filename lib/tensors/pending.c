/* SPDX-License-Identifier: MIT */
/* pending.c: delays the free of a block until other streams have finished with it, or until a stream capture ends.
 *
 * When the program frees a block that other streams use, weir records an event on each of these streams, and frees the
 * block once all the events have completed.  weir also records an event on the block's own stream if this stream may be
 * destroyed earlier.  Blocks in private memory pools need no such event.
 *
 * Blocks that wait for one stream form a queue, so a request queries only one event for each stream that still works.
 * An event that is recorded while a stream is being captured becomes a part of the graph, so weir records one event for
 * all waiting blocks after the capture.
 *
 * All functions here run in the CUDA context of the device: the calling thread may have the context of another device,
 * and a default stream belongs to the current context. */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/thread.h"
#include "tensors/tensors_internal.h"

static void update_has_pending(weir_tensors *t) {
    atomic_store_explicit(&t->has_pending, t->queues || t->failed_frees, memory_order_relaxed);
}

static void add_failed_free(weir_tensors *t, struct weir_tensor *tensor) {
    tensor->next = t->failed_frees;
    t->failed_frees = tensor;
}

/* ---- freeing blocks ------------------------------------------------------------------------------ */

/* Returns OK if the handle still means this stream, E_STREAM if not, E_CAPTURE if the query would break a capture. */
static weir_status check_stream_handle(weir_tensors *t, struct weir_tensor_use user) {
    struct weir_device *device = &t->allocator->device;
    uint64_t now;

    if (weir__name_is_permanent(user.name) || !(device->driver->capabilities & WEIR_CAP_STREAM_ID))
        return WEIR_OK;
    now = weir__tensors_name(t, user.stream, 0);
    if (now & WEIR_TENSORS_CAPTURED)
        return now == user.name ? WEIR_OK : WEIR_E_CAPTURE;
    return now != 0 && now == user.name ? WEIR_OK : WEIR_E_STREAM;
}

/* Frees a block outside private memory pools on its stream, if necessary in the device's context.  If the stream has
 * been destroyed, weir_free_any() waits for the device. */
static weir_status free_shared(weir_tensors *t, uint64_t address, struct weir_tensor_use user) {
    struct weir_device *device = &t->allocator->device;
    void *block = (void *)(uintptr_t)address;
    uint64_t id = weir__tensors_legacy_id(t, user.stream);
    weir_status status = check_stream_handle(t, user);
    int is_switched, is_same_stream = status == WEIR_OK;

    if (is_same_stream)
        status = id ? weir__free_default(t->allocator, block, user.stream, id)
                    : weir_free(t->allocator, block, user.stream);
    if (status != WEIR_E_STREAM)
        return status;
    is_switched = weir__device_make_context_current(device);
    if (is_switched && is_same_stream)
        status = weir_free(t->allocator, block, user.stream);
    if (status == WEIR_E_STREAM)
        status = weir_free_any(t->allocator, block);
    weir__device_restore_context(device, is_switched);
    return status;
}

/* Returns 1 if weir must retry a free that returned this status, else 0.  A framework ignores errors of a free. */
static int may_succeed_later(weir_status status) {
    return status != WEIR_OK && status != WEIR_E_NOT_OWNED && status != WEIR_E_DEVICE_LOST &&
           status != WEIR_E_FORKED;
}

/* Frees a block that no other stream uses any more.  Passes the block's stream to the driver only if this stream is
 * never destroyed, since another handle can become invalid.  Returns 1 on success, 0 if weir has to retry. */
static int free_tensor(weir_tensors *t, struct weir_tensor *tensor) {
    weir_status status;

    if (tensor->pool) {
        weir__pool_free(t, tensor);
        return 1;
    }
    status = weir__name_is_permanent(tensor->home.name)
                 ? free_shared(t, tensor->address, tensor->home)
                 : weir__free_completed(t->allocator, (void *)(uintptr_t)tensor->address);
    if (may_succeed_later(status))
        return 0;
    if (tensor->is_freed)
        weir__tensors_report_completed(t, tensor);
    else /* if `is_freed` is not set, the caller has already reported the free */
        weir__tensors_count_pending(t, tensor, -1);
    weir__tensor_drop(t, tensor);
    return 1;
}

weir_status weir__pending_free(weir_tensors *t, uint64_t address, size_t bytes,
                               struct weir_tensor_use home) {
    weir_status status = free_shared(t, address, home);
    struct weir_tensor *tensor;
    int will_retry = 0;

    if (!may_succeed_later(status))
        return status;
    weir__tensors_lock(t);
    tensor = weir__tensor_new(t);
    if (tensor) {
        tensor->address = address;
        tensor->bytes = bytes;
        tensor->home = home;
        will_retry = weir__tensor_use_alloc_stream(tensor);
    }
    if (will_retry) {
        weir__tensors_count_pending(t, tensor, 1);
        add_failed_free(t, tensor);
    } else if (tensor) {
        weir__tensor_drop(t, tensor);
    }
    update_has_pending(t);
    weir__tensors_unlock(t);
    return will_retry ? WEIR_OK : WEIR_E_HOST_MEMORY;
}

/* ---- events ------------------------------------------------------------------------------------- */

/* Records an event after the stream's work.  Returns OK, E_CAPTURE in a capture, or E_STREAM for a destroyed stream. */
static weir_status record_use(weir_tensors *t, struct weir_tensor_use use, CUevent *event) {
    weir_status status = check_stream_handle(t, use);

    return status == WEIR_OK ? weir__order_record(&t->events, use.stream, 0, event) : status;
}

/* Waits for the stream, or for the device if the handle may mean another stream.  Returns 1 on success, else 0. */
static int wait_for_use(weir_tensors *t, struct weir_tensor_use use) {
    struct weir_device *device = &t->allocator->device;

    return (check_stream_handle(t, use) == WEIR_OK &&
            device->driver->cuStreamSynchronize(use.stream) == CUDA_SUCCESS) ||
           weir__device_wait(device) == CUDA_SUCCESS;
}

/* Delays a block's free until an event shows that the stream's present work is done.  During a capture, weir records
 * the event later.  Returns OK, E_HOST_MEMORY, or an error of record_use(), but never E_CAPTURE. */
static weir_status add_wait(weir_tensors *t, struct weir_tensor *tensor,
                            struct weir_tensor_use use) {
    struct weir_tensor_queue *found = t->queues, *queue;
    struct weir_tensor_wait *wait = calloc(1, sizeof *wait);
    weir_status status;

    while (found && !weir__use_is(found->use, use))
        found = found->next;
    queue = found ? found : calloc(1, sizeof *queue);
    status = queue && wait ? WEIR_OK : WEIR_E_HOST_MEMORY;
    if (status == WEIR_OK && !queue->first_unrecorded)
        status = record_use(t, use, &wait->event);
    if (status != WEIR_OK && status != WEIR_E_CAPTURE) {
        free(wait);
        free(found ? NULL : queue);
        return status;
    }
    if (!found) {
        *queue = (struct weir_tensor_queue){.use = use, .next = t->queues};
        t->queues = queue;
    }
    wait->tensor = tensor;
    if (wait->event)
        queue->newest = wait->event;
    else if (!queue->first_unrecorded)
        queue->first_unrecorded = wait;
    *(found ? &queue->last->next : &queue->first) = wait;
    queue->last = wait;
    tensor->wait_count++;
    return WEIR_OK;
}

int weir__pending_is_recorded(const weir_tensors *t) {
    for (const struct weir_tensor_queue *queue = t->queues; queue; queue = queue->next)
        if (queue->first != queue->first_unrecorded)
            return 1;
    return 0;
}

/* Delays the free of a block until its streams have finished their present work.  Returns 1 on success, else 0. */
static int wait_for_all_uses(weir_tensors *t, struct weir_tensor *tensor) {
    while (tensor->use_count > 0) {
        struct weir_tensor_use use = tensor->uses[tensor->use_count - 1];
        weir_status status = add_wait(t, tensor, use);

        if (status != WEIR_OK && (status == WEIR_E_HOST_MEMORY || !wait_for_use(t, use)))
            return 0;
        tensor->use_count--;
    }
    return tensor->wait_count > 0 || free_tensor(t, tensor);
}

void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor) {
    struct weir_device *device = &t->allocator->device;
    struct weir_driver_scope scope;
    int is_entered = weir__driver_enter(device->driver, device->context, &scope) == CUDA_SUCCESS;

    tensor->is_freed = 1;
    weir__tensors_count_pending(t, tensor, 1);
    if (tensor->pool)
        tensor->pool->pending++;
    if (!is_entered || !wait_for_all_uses(t, tensor))
        add_failed_free(t, tensor);
    update_has_pending(t);
    if (is_entered)
        weir__driver_leave(device->driver, &scope);
}

/* Removes the oldest entry of the queue, and perhaps frees its block.  The caller frees an empty queue. */
static void end_wait(weir_tensors *t, struct weir_tensor_queue *queue) {
    struct weir_tensor_wait *wait = queue->first;
    struct weir_tensor *tensor = wait->tensor;

    queue->first = wait->next;
    if (wait->event)
        weir__order_recycle(&t->events, wait->event);
    free(wait);
    if (--tensor->wait_count > 0 || tensor->use_count > 0)
        return;
    if (!free_tensor(t, tensor))
        add_failed_free(t, tensor);
}

/* Frees the blocks of the queue whose events have completed, or all blocks if `is_over` is set. */
static void end_waits(weir_tensors *t, struct weir_tensor_queue *queue, int is_over) {
    int queries_newest = !is_over;

    while (
        queue->first && queue->first != queue->first_unrecorded &&
        (is_over || !queue->first->event || weir__order_is_done(&t->events, queue->first->event))) {
        end_wait(t, queue);
        if (queries_newest && queue->first && queue->first->event) {
            queries_newest = 0;
            is_over = weir__order_is_done(&t->events, queue->newest);
        }
    }
}

/* After the end of the stream's capture, records one event for all blocks of the queue that have no event yet.  If the
 * recording fails, waits for the stream and frees all blocks of the queue. */
static void record_event_for_waits(weir_tensors *t, struct weir_tensor_queue *queue) {
    weir_status status = record_use(t, queue->use, &queue->first_unrecorded->event);

    if (status == WEIR_OK) {
        queue->newest = queue->first_unrecorded->event;
        queue->first_unrecorded = NULL;
    } else if (status != WEIR_E_CAPTURE && wait_for_use(t, queue->use)) {
        queue->first_unrecorded = NULL;
        end_waits(t, queue, 1);
    }
}

/* For all queues, frees the blocks whose events have completed.  If `waits` is set, first waits for the device. */
static void end_completed_waits(weir_tensors *t, int waits) {
    int is_over = waits && weir__device_wait(&t->allocator->device) == CUDA_SUCCESS;

    for (struct weir_tensor_queue **link = &t->queues, *queue; (queue = *link);) {
        end_waits(t, queue, is_over);
        if (queue->first) {
            link = &queue->next;
        } else {
            *link = queue->next;
            free(queue);
        }
    }
}

static void retry_failed_frees(weir_tensors *t) {
    struct weir_tensor *tensor = t->failed_frees;

    t->failed_frees = NULL;
    while (tensor) {
        struct weir_tensor *next = tensor->next;

        tensor->next = NULL;
        if (!wait_for_all_uses(t, tensor))
            add_failed_free(t, tensor);
        tensor = next;
    }
}

void weir__pending_complete(weir_tensors *t, int waits) {
    struct weir_device *device = &t->allocator->device;
    struct weir_driver_scope scope;

    if (weir__driver_enter(device->driver, device->context, &scope) != CUDA_SUCCESS)
        return;
    /* weir's own threads must not record an event: another thread may begin to capture the stream at any time, and
     * the event would become a part of the graph. */
    if (!weir__thread_is_own()) {
        retry_failed_frees(t);
        for (struct weir_tensor_queue *queue = t->queues; queue; queue = queue->next)
            if (queue->first_unrecorded)
                record_event_for_waits(t, queue);
    }
    end_completed_waits(t, waits);
    update_has_pending(t);
    weir__driver_leave(device->driver, &scope);
}
