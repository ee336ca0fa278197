/* SPDX-License-Identifier: MIT */
/* device.h: driver calls for one device.  The functions turn the driver's results into weir's status codes, and query
 * the state of streams and captures.
 *
 * The layers above call the driver mostly through these functions.  A layer calls the driver's table directly only for
 * a call that no other layer makes.  Any thread may call the functions.
 *
 * This file must not depend on settings, on how memory is allocated, or on the layers above.
 */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/slow_path.h"
#include "base/tls.h"
#include "driver/driver.h"

/* The number of devices that weir supports; the ordinal of a device must be less. */
enum { WEIR_MOST_PEERS = 64 };

/* The devices that may access the memory of an allocator.  The first element is the device on which the memory lies. */
struct weir_access {
    size_t count;
    CUmemAccessDesc list[WEIR_MOST_PEERS + 1];
};

/* One device, as an allocator uses it.  The allocator sets all fields before other threads can use the struct.  Later
 * only the atomic fields change. */
struct weir_device {
    const struct weir_driver *driver;
    CUdevice ordinal;
    CUcontext context; /* the primary context, which the allocator has retained */
    uint64_t total;    /* the total memory of the device in bytes */
    /* The reasons why requests must currently take the slow path instead of the cache of their stream; one bit each. */
    weir_slow_paths slow_path;
    uint64_t created_ticks;    /* the time at which the allocator was created */
    /* The log level of the allocator.  NONE during the creation of the allocator, because the creating function
     * reports failures itself. */
    _Atomic int log;
    int decompresses; /* set if the memory must allow hardware decompression */
    /* Set if the allocator replaces the driver's memory pools in an unmodified program. */
    int drop_in;
    /* Set if the program has switched off opportunistic reuse (CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC).  Memory
     * that was freed on one stream is then reused on another stream in two cases only: after the host has waited for
     * the first stream, or after weir has returned the memory to the device. */
    atomic_int forbids_opportunistic;
    /* Returns 1 if weir observes the stream, because weir intercepts the program's driver calls and has intercepted
     * the creation of the stream; else 0.  For such a stream, weir also intercepts each begin of a capture and the
     * destruction.  The pointer may be NULL. */
    int (*_Atomic watches)(weir_stream stream);
    /* The devices to which weir gives access to all memory of the allocator. */
    struct weir_access access;
    /* The address of a block that weir__device_wait() has allocated and could not free, or 0.  (The function waits
     * for the device by freeing a block.) */
    _Atomic CUdeviceptr wait_block;
    /* `waits` counts the calls of weir__device_wait() that have begun.  `waited` is the number of the latest call
     * that has succeeded.  If `waits` was less than `waited` when some work was submitted, the work is completed. */
    _Atomic uint64_t waits, waited;
};

/* Returns the status that corresponds to a result of the driver, and stores the result for the program (the thread's
 * last driver result).  If the result means that the context is unusable, marks the device as lost. */
weir_status weir__device_status(struct weir_device *device, CUresult result);
/* Sets *kind to the properties with which an allocator calls cuMemCreate.  If the device supports GPUDirect RDMA, the
 * memory allows it, as memory of cuMemAlloc does.  If the device supports file descriptors for memory, the memory can
 * be exported to other processes, which makes no call slower (measured on an H200). */
CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind);
/* Returns the free bytes of the device, or UINT64_MAX if the driver fails to report them. */
uint64_t weir__device_free(struct weir_device *device);
/* Returns the size of the largest cuMemAlloc that is certain to succeed after `back` more bytes of the device are
 * freed.  The size is a multiple of 2 MiB, and at most `most`.  Returns 0 if the driver fails to report the free
 * memory. */
size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back);

/* Set for a thread without a current context that uses a default stream (handle 0, 1 or 2).  A driver call on a
 * default stream fails without a current context, and weir then repeats the call in the context of the device.  A
 * failing call takes a microsecond, because the driver logs the failure.  So from the second call on, weir makes the
 * context of the device current before the call. */
extern _Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
/* Makes the context of the device current if the calling thread has no current context.  Returns 1 if the function
 * has done so, else 0.  The caller passes this result to weir__device_restore_context(), which restores the former
 * state. */
int weir__device_make_context_current(const struct weir_device *device);
void weir__device_restore_context(const struct weir_device *device, int lent);
/* Handles a failed driver call on a stream of the program.  If the call has failed because the thread has no current
 * context, enters the context of the device and returns 1, so that the caller repeats the call.  Otherwise returns 0.
 * If entering the context fails, sets *result to the reason and returns 0.  If weir replaces the driver's pools
 * (`drop_in`), always returns 0, since the program must get the driver's own result. */
int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope);
/* Enters the context of the device, evaluates `call`, which returns a weir_status, and leaves the context.  The value
 * of the macro is the status of `call`, or the status of a failure to enter the context. */
#define WEIR_STATUS_IN_SCOPE(device, call)                                                         \
    __extension__({                                                                                \
        struct weir_driver_scope its_scope;                                                        \
        weir_status its_status = weir__device_status(                                              \
            device, weir__driver_enter((device)->driver, (device)->context, &its_scope));          \
        if (its_status == WEIR_OK) {                                                               \
            its_status = call;                                                                     \
            weir__driver_leave((device)->driver, &its_scope);                                      \
        }                                                                                          \
        its_status;                                                                                \
    })
/* Evaluates `call`, a driver call on a stream of the program.  If `call` fails because the thread has no current
 * context, evaluates it again in the context of the device.  The value of the macro is the CUresult of `call`. */
#define WEIR_ON_STREAM(device, call)                                                               \
    __extension__({                                                                                \
        struct weir_driver_scope its_scope;                                                        \
        CUresult its_result = call;                                                                \
        if (weir__device_retry_in_context(device, &its_result, &its_scope)) {                      \
            its_result = call;                                                                     \
            weir__driver_leave((device)->driver, &its_scope);                                      \
        }                                                                                          \
        its_result;                                                                                \
    })

/* Returns E_CAPTURE if the stream is being captured, or if another capture forbids the query.  Otherwise returns OK,
 * or the error of the driver. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream);
/* Returns the id of the capture in which the stream takes part.  The driver never uses an id for two captures.
 * Returns 0 if the stream is not being captured, or if the driver does not report the id. */
uint64_t weir__device_capture_id(struct weir_device *device, weir_stream stream);
/* Sets *id to the driver's id of a stream (cuStreamGetId), or to 0 if the driver does not support stream ids.  A
 * default stream is the one of the current context or, if no context is current, of the device's context.  For a
 * stream that is being captured, returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED without a query, which would break the
 * capture. */
CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id);

/* A cache of stream ids: the ids of the calling thread's two default streams (legacy and per-thread) on a device.  An
 * id is valid as long as the context exists.  A new allocator may use a new context, so each creation of an allocator
 * makes the cached ids invalid. */
enum { WEIR_DEFAULT_IDS = 4 };
struct weir_default_ids {
    /* The context to which the two streams belong; NULL if the element is unused. */
    CUcontext context;
    /* The value of weir__device_age when the ids were queried; another value now means that the ids are invalid. */
    uint64_t age;
    unsigned long long id[2];
};
extern _Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
/* Incremented at the creation of each allocator.  A cached stream id is valid only if it was queried at the present
 * value. */
extern _Atomic uint64_t weir__device_age;
/* weir__device_own_streams counts the threads whose per-thread default stream has a cached id.  weir__device_has_own
 * is set in these threads. */
extern _Atomic unsigned weir__device_own_streams;
extern _Thread_local unsigned weir__device_has_own WEIR_FAST_TLS;

/* Sets *id to the cached id of a default stream, without a driver call.  Returns 1 on success, 0 if the id is not
 * cached.  The function does not check whether the stream is being captured.  So it may be used only under `weir
 * run`, where weir observes the begin of each capture. */
static inline int weir__device_default_id(const struct weir_device *device, weir_stream stream,
                                          unsigned long long *id) {
    const struct weir_default_ids *known =
        &weir__default_ids[(unsigned)device->ordinal % WEIR_DEFAULT_IDS];
    CUcontext current = NULL;

    if (!atomic_load_explicit(&device->watches, memory_order_relaxed) ||
        known->context != device->context ||
        known->age != atomic_load_explicit(&weir__device_age, memory_order_relaxed))
        return 0;
    *id = known->id[(uintptr_t)stream == WEIR_STREAM_PER_THREAD_VALUE];
    return *id != 0 && device->driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
           current == device->context;
}
/* Caches the id of a default stream after a query.  The caller has checked that weir observes the begin of captures
 * (`watches` of the device). */
void weir__device_store_default_id(const struct weir_device *device, weir_stream stream,
                                   unsigned long long id);
/* Returns E_STREAM if the stream belongs to another device.  Otherwise returns OK, also if the driver does not report
 * the device.  The check is necessary because a wait for this device does not wait for streams of other devices. */
weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream);
/* Returns 1 if the result means that the stream is being captured, or that it is the legacy stream while another
 * stream is being captured.  Otherwise returns 0. */
static inline int weir__device_is_capture(CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Records an event on a stream.  `id` is the id that the stream had before, or 0.  If the stream now has another id,
 * its handle was reused; then returns CUDA_ERROR_INVALID_HANDLE. */
CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id);
/* Makes work that is submitted to the stream from now on wait for the event. */
CUresult weir__device_wait_event(struct weir_device *device, weir_stream stream, CUevent event);
/* Makes later work on the stream `waits` wait for the work that was submitted to `stream` until now.  `id` is the id
 * that `stream` had before, or 0.  If `stream` now has another id, its handle was reused; then returns
 * CUDA_ERROR_INVALID_HANDLE. */
CUresult weir__device_order_after(struct weir_device *device, weir_stream waits, weir_stream stream,
                                  uint64_t id);
/* Returns 1 if all work on the stream is completed, else 0.  After a result of 1, all memory that the work used may
 * be used on other streams. */
int weir__device_is_idle(struct weir_device *device, weir_stream stream);
/* Waits until the device has completed all submitted work, without breaking stream captures (see device_wait.c).  The
 * wait has no time limit.  Returns CUDA_ERROR_OUT_OF_MEMORY if there is no memory for the small block that the wait
 * allocates and frees. */
CUresult weir__device_wait(struct weir_device *device);
/* Frees the block that an earlier weir__device_wait() could not free, if there is one. */
void weir__device_free_wait_block(struct weir_device *device);

/* Logs a free that failed. */
void weir__device_log_free(const struct weir_device *device, CUdeviceptr block, weir_status status);
/* Logs a request that failed because the stream cannot be used with this device. */
void weir__device_log_alloc(const struct weir_device *device, size_t bytes, weir_status status);
/* Returns the nanoseconds since `ticks`, an earlier time of the driver's clock. */
uint64_t weir__device_elapsed_ns(const struct weir_device *device, uint64_t ticks);

#endif
