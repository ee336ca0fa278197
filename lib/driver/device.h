/* SPDX-License-Identifier: MIT */
/* device.h: one device as an allocator uses it: the driver's results as statuses, and the state of streams.
 *
 * The layers above call these functions.  A layer calls the driver's table directly only for calls that no other layer
 * needs.  Any thread may call the functions.
 *
 * This file must not know memory, settings or the caller.
 */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/slow_path.h"
#include "base/tls.h"
#include "driver/driver.h"

/* Ordinals of devices are below this number. */
enum { WEIR_MOST_PEERS = 64 };

/* The devices whose work may use memory.  The first device has the memory. */
struct weir_access {
    size_t count;
    CUmemAccessDesc list[WEIR_MOST_PEERS + 1];
};

/* A device as an allocator uses it.  The allocator sets the fields before other threads can use the struct.  Only
 * atomic fields change later. */
struct weir_device {
    const struct weir_driver *driver;
    CUdevice ordinal;
    CUcontext context;         /* the primary context, retained by the allocator */
    uint64_t total;            /* bytes */
    weir_slow_paths slow_path; /* the reasons why requests do not go straight to the caches */
    uint64_t created_ticks;    /* the time at which the allocator was created */
    /* The log level.  During the creation of the allocator the level is NONE, because the creator reports failures. */
    _Atomic int log;
    int decompresses; /* set if the memory must allow hardware decompression */
    int drop_in;      /* set if the allocator replaces the driver's pools: see drop_in.h */
    /* Set if opportunistic reuse is off.  Then memory that one stream has freed serves other streams only after a wait
     * of the host, or after memory was freed to the device. */
    atomic_int keeps_apart;
    /* Returns 1 if an adapter, which is code of weir's between the program and the driver, saw the stream's creation,
     * and so will see the stream's captures and its end.  May be NULL. */
    int (*_Atomic watches)(weir_stream stream);
    struct weir_access access; /* the devices that may use the memory from the beginning */
    /* A block that was allocated for a wait and could not be freed, or 0. */
    _Atomic CUdeviceptr waited_by;
    /* `waits` is the number of waits for the device that have begun.  `waited` is the number of the latest begun wait
     * that has succeeded.  So work that was submitted while `waits` was below `waited` is done. */
    _Atomic uint64_t waits, waited;
};

/* Stores a driver's result as the thread's last driver result, and returns its status.  Marks the device as lost if the
 * result is fatal. */
weir_status weir__device_status(struct weir_device *device, CUresult result);
/* Sets the properties for cuMemCreate, which are equal for all memory of an allocator.  If the device supports
 * GPUDirect RDMA, network adapters and storage may access the memory directly, as with memory of cuMemAlloc.  Other
 * processes may open the memory; this property costs nothing (H200). */
CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind);
/* Returns the free bytes of the device, or UINT64_MAX if the driver does not report the free bytes. */
uint64_t weir__device_free(struct weir_device *device);
/* Returns the bytes of the largest cuMemAlloc that would surely succeed now if the device had `back` more free bytes.
 * The result is a multiple of 2 MiB, or `most` if `most` is less. */
size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back);

/* Set once a call on a default stream (0, 1, 2) has failed because this thread has no current context.  A default
 * stream belongs to the current context.  If there is no current context, weir uses the device's context.  A call that
 * fails costs a microsecond, because the driver logs the failure.  So once this flag is set, each request, free and use
 * first checks for a current context, and makes the device's context current if there is none. */
extern _Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
/* Makes the device's context current if the thread has no context.  Returns 1 if the function did so, else 0.  The
 * caller passes the result to weir__device_end_context. */
int weir__device_lend_context(const struct weir_device *device);
void weir__device_end_context(const struct weir_device *device, int lent);
/* Handles a failed call on the caller's stream.  If the thread has no context, sets the flag, enters the device's
 * context and returns 1; the caller then repeats the call.  Otherwise returns 0.  If the context cannot be entered,
 * sets *result.  Always returns 0 with drop_in, since the program then gets the driver's result. */
int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope);
/* Evaluates to the weir_status of `call` in the device's context, or to the status of the failure to enter the
 * context. */
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
/* Evaluates to the CUresult of `call` on a caller's stream.  Repeats the call in the device's context if the thread has
 * no context. */
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

/* Returns E_CAPTURE while `stream` is captured or a capture forbids the query, else OK or the driver's error. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream);
/* Returns the id of the capture that `stream` takes part in.  The driver never reuses the id.  Returns 0 if there is no
 * capture, or if the driver does not report the id. */
uint64_t weir__device_capture_id(struct weir_device *device, weir_stream stream);
/* Returns the id of a stream.  A default stream belongs to the current context or, if there is none, to the device's
 * context.  The id is 0 if the driver has no ids.  Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, without a query of
 * the id, for a stream that is being captured. */
CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id);

/* The ids of the calling thread's default streams in a device's context: the legacy stream, and the per-thread stream.
 * The ids are valid as long as the context lives.  After the creation of an allocator the context may be another one,
 * so weir queries the ids again. */
enum { WEIR_DEFAULT_IDS = 4 };
struct weir_default_ids {
    CUcontext context; /* NULL before the first query */
    uint64_t age;      /* weir__device_age at the time of the query */
    unsigned long long id[2];
};
extern _Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
/* The age of the stored ids.  The creation of each allocator raises the age, and weir does not use ids of an older
 * age. */
extern _Atomic uint64_t weir__device_age;
/* weir__device_own_streams is the number of threads for which weir has stored the id of a per-thread default stream.
 * weir__device_has_own is set if the calling thread is one of these threads. */
extern _Atomic unsigned weir__device_own_streams;
extern _Thread_local unsigned weir__device_has_own WEIR_FAST_TLS;

/* Sets *id to the stored id of a default stream, without a query.  Returns 1 on success, 0 if the id is not known.
 * The function does not query whether the stream is being captured.  So the caller must run under `weir run', which
 * sees each capture begin. */
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
/* Stores the id that a query of a default stream returned, for a device that an adapter watches. */
void weir__device_note_default_id(const struct weir_device *device, weir_stream stream,
                                  unsigned long long id);
/* Returns E_STREAM if the stream belongs to another device, so that a wait for this device does not cover the stream's
 * work.  Returns OK otherwise, and if the driver does not report the stream's device. */
weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream);
/* Returns 1 if the result means that the stream is being captured, or is the legacy stream during a capture; else 0. */
static inline int weir__device_is_capture(CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Records an event on a stream.  Returns CUDA_ERROR_INVALID_HANDLE if `id` is not 0 and the stream has another id. */
CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id);
/* Makes all later work on `stream` wait for the event. */
CUresult weir__device_follow(struct weir_device *device, weir_stream stream, CUevent event);
/* Makes all later work on `waits` wait for the present work on `stream`.  Returns CUDA_ERROR_INVALID_HANDLE if the id
 * of `stream` is not `id`, unless `id` is 0. */
CUresult weir__device_join(struct weir_device *device, weir_stream waits, weir_stream stream,
                           uint64_t id);
/* Returns 1 if the stream has no work left, else 0.  The query also makes the driver observe the completion. */
int weir__device_is_idle(struct weir_device *device, weir_stream stream);
/* Waits until the device has completed all work, however long that takes, without harm to a capture (see
 * device_wait.c).  Returns CUDA_ERROR_OUT_OF_MEMORY if neither device nor host has the memory that the wait needs. */
CUresult weir__device_wait(struct weir_device *device);
/* Frees the block that an earlier wait may have left (`waited_by`). */
void weir__device_end_waits(struct weir_device *device);

/* Logs a free that failed. */
void weir__device_log_free(const struct weir_device *device, CUdeviceptr block, weir_status status);
/* Logs a request on a stream that weir cannot use. */
void weir__device_log_alloc(const struct weir_device *device, size_t bytes, weir_status status);
/* Returns the nanoseconds since `ticks`. */
uint64_t weir__device_since(const struct weir_device *device, uint64_t ticks);

#endif
