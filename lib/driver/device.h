/* SPDX-License-Identifier: MIT */
/* device.h: functions of one device for an allocator.  The functions call the driver, turn the driver's results into
 * statuses, and query the state of streams.
 *
 * The layers above call the driver mostly through these functions.  A layer calls the driver's table directly only if
 * no other layer needs the call.  Any thread may call the functions.
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

/* weir supports devices whose ordinal is less than this number. */
enum { WEIR_MOST_PEERS = 64 };

/* The devices whose work may access the memory of an allocator.  The first device of the list is the one that has
 * the memory. */
struct weir_access {
    size_t count;
    CUmemAccessDesc list[WEIR_MOST_PEERS + 1];
};

/* The state of one device for one allocator.  The allocator sets the fields before other threads can use the struct.
 * Later only atomic fields change. */
struct weir_device {
    const struct weir_driver *driver;
    CUdevice ordinal;
    CUcontext context;         /* the primary context, retained by the allocator */
    uint64_t total;            /* the bytes of memory that the device has */
    /* The reasons why requests take the slow path instead of the per-stream cache. */
    weir_slow_paths slow_path;
    uint64_t created_ticks;    /* the time at which the allocator was created */
    /* The log level of the allocator.  While the allocator is being created the level is NONE, because its creator
     * reports failures. */
    _Atomic int log;
    int decompresses; /* set if the memory of the allocator must allow hardware decompression */
    int drop_in;      /* set if the allocator replaces the driver's memory pools (see drop_in.h) */
    /* Set if the program has switched opportunistic reuse off.  Another stream may then use memory that a stream has
     * freed in two cases only: after the host has waited for the work of the first stream, or after weir has
     * returned the memory to the device. */
    atomic_int keeps_apart;
    /* Returns 1 if an adapter saw the creation of the stream, else 0.  An adapter is a part of weir that sits
     * between the program and the driver.  Such an adapter also sees each capture of the stream and its destruction.
     * The pointer may be NULL. */
    int (*_Atomic watches)(weir_stream stream);
    /* The devices that may access the memory as soon as weir has allocated it. */
    struct weir_access access;
    /* The address of a block that weir__device_wait() allocated for a wait and could not free, or 0. */
    _Atomic CUdeviceptr waited_by;
    /* `waits` is the number of waits for the device that have begun.  `waited` is the number of the latest wait that
     * has succeeded.  Work that was submitted while `waits` was less than `waited` is completed. */
    _Atomic uint64_t waits, waited;
};

/* Stores a result of the driver as the thread's last driver result.  Returns the status that corresponds to the
 * result.  If the result is fatal, marks the device as lost. */
weir_status weir__device_status(struct weir_device *device, CUresult result);
/* Sets *kind to the properties with which an allocator calls cuMemCreate.  If the device supports GPUDirect RDMA,
 * network adapters and storage may access the memory directly, as they may access memory of cuMemAlloc.  The memory
 * can be exported to other processes, which makes no call slower (measured on an H200). */
CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind);
/* Returns the free bytes of the device, or UINT64_MAX if the driver fails to report them. */
uint64_t weir__device_free(struct weir_device *device);
/* Returns the size of the largest cuMemAlloc that is certain to succeed once `back` more bytes of the device are
 * free.  The size is a multiple of 2 MiB, and at most `most`. */
size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back);

/* Set once a call on a default stream (0, 1 or 2) has failed because this thread has no current context.  A default
 * stream belongs to the current context.  If there is no current context, weir uses the context of the device.  A
 * failing call takes a microsecond, because the driver logs the failure.  So if this flag is set, weir first checks
 * for a current context in each request, free and weir_use().  If there is none, weir makes the context of the
 * device current. */
extern _Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
/* Makes the context of the device current if the thread has no current context.  Returns 1 if the function has
 * changed the current context, else 0.  The caller passes this result to weir__device_end_context(), which restores
 * the thread's state. */
int weir__device_lend_context(const struct weir_device *device);
void weir__device_end_context(const struct weir_device *device, int lent);
/* Handles a driver call that has failed on a stream of the program.  If the thread has no current context, sets the
 * flag above, enters the context of the device, and returns 1; the caller then repeats the call.  Otherwise returns
 * 0.  If entering the context fails, sets *result to that failure.  Always returns 0 if the allocator replaces the
 * driver's pools (`drop_in`), since the program then gets the driver's own result. */
int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope);
/* Enters the context of the device and evaluates `call`, which has the type weir_status.  The value of the macro is
 * the status of `call`, or the status of a failure to enter the context. */
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
/* Evaluates `call`, a driver call on a stream of the program.  If the thread has no current context, repeats `call`
 * in the context of the device.  The value of the macro is the CUresult of `call`. */
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

/* Returns E_CAPTURE if `stream` is being captured, or if another capture forbids the query.  Otherwise returns OK,
 * or the error of the driver. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream);
/* Returns the id of the capture in which `stream` takes part.  The driver never uses the id of a capture again.
 * Returns 0 if there is no capture, or if the driver does not report the id. */
uint64_t weir__device_capture_id(struct weir_device *device, weir_stream stream);
/* Sets *id to the id of a stream.  A default stream belongs to the current context or, if no context is current, to
 * the context of the device.  The id is 0 if the driver does not support stream ids.  For a stream that is being
 * captured, returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and does not query the id. */
CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id);

/* The ids of the calling thread's two default streams in the context of a device: the legacy stream and the
 * per-thread stream.  The ids are valid as long as the context lives.  The context may be a new one when an
 * allocator is created, so weir queries the ids again after each creation of an allocator. */
enum { WEIR_DEFAULT_IDS = 4 };
struct weir_default_ids {
    CUcontext context; /* the context of the two streams; NULL before the first query of an id */
    uint64_t age;      /* the value of weir__device_age when the ids were queried */
    unsigned long long id[2];
};
extern _Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
/* The current age of stored ids.  The creation of each allocator raises the age.  weir does not use ids with a lower
 * age. */
extern _Atomic uint64_t weir__device_age;
/* weir__device_own_streams is the number of threads for which weir has stored the id of a per-thread default stream.
 * weir__device_has_own is set if the calling thread is one of these threads. */
extern _Atomic unsigned weir__device_own_streams;
extern _Thread_local unsigned weir__device_has_own WEIR_FAST_TLS;

/* Sets *id to the stored id of a default stream, without a query.  Returns 1 on success, 0 if no id is stored.  The
 * function does not check whether the stream is being captured.  So the caller must run under `weir run`, which
 * observes the begin of each capture. */
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
/* Stores the id of a default stream after a query.  The caller has checked that an adapter observes the streams of
 * the device (`watches`). */
void weir__device_note_default_id(const struct weir_device *device, weir_stream stream,
                                  unsigned long long id);
/* Returns E_STREAM if the stream belongs to another device; a wait for this device then does not wait for the work
 * of the stream.  Otherwise returns OK.  Also returns OK if the driver does not report the device of the stream. */
weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream);
/* Returns 1 if the result says that the stream is being captured, or that it is the legacy stream and another stream
 * is being captured.  Otherwise returns 0. */
static inline int weir__device_is_capture(CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Records an event on a stream.  Returns CUDA_ERROR_INVALID_HANDLE if `id` is not 0 and the stream now has another
 * id. */
CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id);
/* Makes all later work on `stream` wait for the event. */
CUresult weir__device_follow(struct weir_device *device, weir_stream stream, CUevent event);
/* Makes all later work on the stream `waits` wait for the work that is on `stream` now.  Returns
 * CUDA_ERROR_INVALID_HANDLE if `id` is not 0 and `stream` now has another id. */
CUresult weir__device_join(struct weir_device *device, weir_stream waits, weir_stream stream,
                           uint64_t id);
/* Returns 1 if all work on the stream is completed, else 0.  After the query, the driver also knows that the work is
 * completed. */
int weir__device_is_idle(struct weir_device *device, weir_stream stream);
/* Waits until the device has completed all its work, however long the work takes.  The wait does not break a capture
 * (see device_wait.c).  Returns CUDA_ERROR_OUT_OF_MEMORY if neither the device nor the host has the memory that the
 * wait needs. */
CUresult weir__device_wait(struct weir_device *device);
/* Frees the block in `waited_by`, if an earlier wait could not free it. */
void weir__device_end_waits(struct weir_device *device);

/* Logs a free that failed. */
void weir__device_log_free(const struct weir_device *device, CUdeviceptr block, weir_status status);
/* Logs a request that has failed because weir cannot use the stream. */
void weir__device_log_alloc(const struct weir_device *device, size_t bytes, weir_status status);
/* Returns the nanoseconds that have passed since `ticks`, a time of the driver's clock. */
uint64_t weir__device_since(const struct weir_device *device, uint64_t ticks);

#endif
