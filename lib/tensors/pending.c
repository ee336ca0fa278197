/* SPDX-License-Identifier: MIT */
/* pending.c: frees that wait: for streams that use a pool's block, or for the end of a capture.
 *
 * A pool's block that other streams use is freed when an event on each of them has completed.  While one of them is
 * being captured no event can be recorded outside the graph, so the free waits until none is.  A free of shared memory
 * that weir refuses beside a capture is tried again.  Both are looked at before requests, and at the end of a route.
 *
 * Must not know: routes, placement.
 */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "tensors/tensors_internal.h"

static void note_state(weir_tensors *t) {
    atomic_store_explicit(&t->unsettled, t->wait_count > 0 || t->held || t->late_count > 0,
                          memory_order_relaxed);
}

/* ---- blocks of pools ---------------------------------------------------------------------------- */

/* An event behind what the stream has now.  E_CAPTURE: there is none as yet. */
static weir_status record(weir_tensors *t, weir_stream stream, CUevent *event) {
    struct weir_device *device = &t->allocator->device;
    const struct weir_driver *driver = device->driver;
    struct weir_driver_scope scope;
    weir_status status = weir__device_capture(device, stream);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = weir__driver_enter(driver, device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    result = driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    result = weir__device_record(device, *event, stream, 0);
    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    (void)driver->cuEventDestroy(*event);
    return weir__device_is_capture(result) ? WEIR_E_CAPTURE : weir__device_status(device, result);
}

/* One event less holds the block back. */
static void seen(weir_tensors *t, struct weir_tensor *tensor) {
    if (--tensor->waits_for == 0 && tensor->use_count == 0)
        weir__pool_give(t, tensor);
}

/* Records behind each stream that uses the block.  1: all is recorded, and the block given if nothing is to be waited for.
 * 0: one is being captured, or there is no host memory. */
static int cover(weir_tensors *t, struct weir_tensor *tensor) {
    while (tensor->use_count > 0) {
        struct weir_tensor_wait *moved = weir__hostmem_room(t->waits, t->wait_count, &t->wait_room,
                                                            sizeof *t->waits);
        weir_status status;
        CUevent event;

        if (!moved)
            return 0;
        t->waits = moved;
        status = record(t, tensor->uses[tensor->use_count - 1], &event);
        if (status == WEIR_E_CAPTURE)
            return 0;
        tensor->use_count--;
        if (status == WEIR_OK) {
            t->waits[t->wait_count++] = (struct weir_tensor_wait){event, tensor};
            tensor->waits_for++;
        } else { /* the stream is gone, or no event can be had: whatever it did is over then */
            (void)weir__device_wait(&t->allocator->device);
        }
    }
    if (tensor->waits_for == 0)
        weir__pool_give(t, tensor);
    return 1;
}

void weir__pending_add(weir_tensors *t, struct weir_tensor *tensor) {
    tensor->is_freed = 1;
    tensor->pool->pending++;
    if (!cover(t, tensor)) {
        tensor->next = t->held;
        t->held = tensor;
    }
    note_state(t);
}

static void settle_waits(weir_tensors *t, int waits) {
    const struct weir_driver *driver = t->allocator->device.driver;
    size_t kept = 0;

    if (waits && t->wait_count > 0)
        (void)weir__device_wait(&t->allocator->device);
    for (size_t i = 0; i < t->wait_count; i++) {
        struct weir_tensor_wait wait = t->waits[i];

        if (driver->cuEventQuery(wait.event) == CUDA_ERROR_NOT_READY) {
            t->waits[kept++] = wait;
            continue;
        }
        (void)driver->cuEventDestroy(wait.event);
        seen(t, wait.tensor);
    }
    t->wait_count = kept;
}

static void settle_held(weir_tensors *t) {
    struct weir_tensor *held = t->held;

    t->held = NULL;
    while (held) {
        struct weir_tensor *next = held->next;

        held->next = NULL;
        if (!cover(t, held)) {
            held->next = t->held;
            t->held = held;
        }
        held = next;
    }
}

/* ---- shared memory ------------------------------------------------------------------------------ */

/* E_STREAM: a stream that used the block is gone, or its own is.  Once the device has done all work, no order is needed. */
static weir_status try_free(weir_tensors *t, uint64_t address, weir_stream stream) {
    void *block = (void *)(uintptr_t)address;
    weir_status status = weir_free(t->allocator, block, stream);

    while (status == WEIR_E_STREAM) {
        weir_status again = weir_free_any(t->allocator, block);

        if (again != WEIR_E_STREAM)
            return again;
    }
    return status;
}

static int keep(weir_tensors *t, uint64_t address, weir_stream stream) {
    struct weir_tensor_late *moved =
        weir__hostmem_room(t->late, t->late_count, &t->late_room, sizeof *t->late);

    if (!moved)
        return 0;
    t->late = moved;
    t->late[t->late_count++] = (struct weir_tensor_late){address, stream};
    return 1;
}

weir_status weir__pending_free(weir_tensors *t, uint64_t address, weir_stream stream) {
    weir_status status = try_free(t, address, stream);
    int is_kept;

    if (status != WEIR_E_CAPTURE)
        return status;
    weir__lock_take(&t->lock);
    is_kept = keep(t, address, stream);
    note_state(t);
    weir__lock_give(&t->lock);
    return is_kept ? WEIR_OK : WEIR_E_HOST_MEMORY;
}

static void settle_late(weir_tensors *t) {
    size_t kept = 0;

    for (size_t i = 0; i < t->late_count; i++)
        if (try_free(t, t->late[i].address, t->late[i].stream) == WEIR_E_CAPTURE)
            t->late[kept++] = t->late[i];
    t->late_count = kept;
}

void weir__pending_settle(weir_tensors *t, int waits) {
    struct weir_driver_scope scope;
    const struct weir_driver *driver = t->allocator->device.driver;

    if (weir__driver_relax(driver, &scope) != CUDA_SUCCESS)
        return;
    settle_held(t);
    settle_waits(t, waits);
    settle_late(t);
    weir__driver_unrelax(driver, &scope);
    note_state(t);
}
