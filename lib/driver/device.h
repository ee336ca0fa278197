/* SPDX-License-Identifier: MIT */
/* device.h: driver calls for one device.  The functions turn the driver's results into weir's status codes, and query
 * streams and captures.  Any thread may call them. */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/slow_path.h"
#include "base/tls.h"
#include "driver/driver.h"

/* weir supports at most this number of devices in one machine. */
enum { WEIR_MOST_PEERS = 64 };

/* The devices that may access the memory of an allocator.  The first one is the device on which the memory lies. */
struct weir_access {
    size_t count;
    CUmemAccessDesc list[WEIR_MOST_PEERS + 1];
};

/* One device, as an allocator uses it.  Only the atomic fields change after the creation of the allocator. */
struct weir_device {
    const struct weir_driver *driver;
    CUdevice ordinal;
    CUcontext context;         /* the primary context, retained by the allocator */
    uint64_t total;            /* bytes */
    weir_slow_paths slow_path; /* one bit for each reason not to take the fast path */
    uint64_t created_ticks;
    /* The log level.  It is NONE during weir_allocator_create(), which reports failures itself. */
    _Atomic int log;
    int decompresses; /* set if the memory must support hardware decompression */
    int drop_in;      /* set if weir replaces the driver's pools in a program (`weir run`) */
    /* Set if the program has switched off CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC.  A stream then reuses memory of
     * another stream only after the host has waited for the other stream.  Memory freed to the device is exempt. */
    atomic_int forbids_opportunistic;
    /* Returns 1 if weir has intercepted the stream's creation, and so intercepts its captures and its destruction; else
     * 0.  NULL if weir intercepts no driver calls. */
    int (*_Atomic watches)(weir_stream stream);
    struct weir_access access;
    _Atomic CUdeviceptr wait_block; /* a small block that a device wait could not free, or 0 */
    /* `waits` is the number of the latest wait.  Work that was submitted before wait `waited` began is completed. */
    _Atomic uint64_t waits, waited;
};

/* Returns the status for a result of the driver, and stores the result as the thread's last driver result.  If the
 * result means that the context is unusable, marks the device as lost. */
weir_status weir__device_status(struct weir_device *device, CUresult result);
/* Sets *kind to weir's properties for cuMemCreate.  They make memory exportable if the device can export memory, since
 * this makes no call slower (H200). */
CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind);
/* Returns the free bytes of the device, or UINT64_MAX if the driver fails to report them. */
uint64_t weir__device_free(struct weir_device *device);
/* Returns the device's free bytes plus `back`, rounded down to a multiple of 2 MiB, or `most` if `most` is smaller.
 * Returns 0 if the driver fails. */
size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back);

/* Set once a call on a default stream has failed because this thread has no current context.  From then on, weir makes
 * the device's context current before such a call, since a failed call takes a microsecond. */
extern _Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
/* Makes the device's context current and returns 1 if the thread has no current context; else returns 0.  The caller
 * passes the result to weir__device_restore_context(). */
int weir__device_make_context_current(const struct weir_device *device);
void weir__device_restore_context(const struct weir_device *device, int was_made_current);
/* If *result is CUDA_ERROR_INVALID_CONTEXT, enters the device's context, and sets *result to the result of this step.
 * Returns 1 if the caller must repeat the driver call, else 0.  Under `weir run`, does nothing and returns 0, since the
 * program must get the driver's own result. */
int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope);
/* Enters the context of the device, evaluates `call`, and leaves the context.  The macro's value is the status of
 * `call`, or of the failure to enter the context. */
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
/* Evaluates `call`, a driver call on a stream of the program.  If the call fails because the thread has no current
 * context, the macro evaluates `call` again in the context of the device.  The value is a CUresult. */
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

/* Returns WEIR_E_CAPTURE if the stream is being captured, or if another capture forbids the query.  Otherwise returns
 * WEIR_OK, or the error of the driver. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream);
/* Returns the id of the stream's capture, or 0 if there is none.  The driver never reuses these ids. */
uint64_t weir__device_capture_id(struct weir_device *device, weir_stream stream);
/* Sets *id to the driver's id of a stream, or to 0 if the driver has no stream ids.  A default stream is that of the
 * current context or, if there is none, of the device's context.  Fails with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if
 * the stream is being captured, since a query would break the capture. */
CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id);

/* The calling thread's cached ids of its two default streams. */
enum { WEIR_DEFAULT_IDS = 4 };
struct weir_default_ids {
    CUcontext context; /* the context of both streams; NULL if the element is unused */
    uint64_t age;      /* the value of weir__device_age when the ids were queried */
    unsigned long long id[2];
};
extern _Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
/* Incremented at the creation of each allocator, whose context may be new.  This invalidates cached stream ids. */
extern _Atomic uint64_t weir__device_age;
/* The number of threads whose per-thread default stream has a cached id. */
extern _Atomic unsigned weir__device_per_thread_ids;
extern _Thread_local unsigned weir__device_has_per_thread_id WEIR_FAST_TLS;

/* Sets *id to the cached id of a default stream.  Returns 1 on success, else 0.  Does not check whether the stream is
 * being captured, so the caller must intercept the start of every capture (`weir run`). */
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
/* Caches the queried id of a default stream.  The caller must intercept the start of every capture (`weir run`). */
void weir__device_store_default_id(const struct weir_device *device, weir_stream stream,
                                   unsigned long long id);
/* Returns WEIR_E_STREAM if the driver reports another device for the stream, else WEIR_OK. */
weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream);
/* Returns 1 if a call failed because of a stream capture, else 0. */
static inline int weir__device_is_capture(CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Records an event on a stream.  `id` is the id of the stream, or 0 if unknown.  Returns CUDA_ERROR_INVALID_HANDLE if
 * the stream was destroyed and another stream now has its handle. */
CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id);
/* Makes work that is submitted to the stream from now on wait for the event. */
CUresult weir__device_wait_event(struct weir_device *device, weir_stream stream, CUevent event);
/* Makes later work on `waits` wait for all present work on `stream`.  `id` is the id of `stream`, or 0 if unknown. */
CUresult weir__device_order_after(struct weir_device *device, weir_stream waits, weir_stream stream,
                                  uint64_t id);
/* Returns 1 if all work on the stream is completed, else 0. */
int weir__device_is_idle(struct weir_device *device, weir_stream stream);
/* Waits, without a time limit, until the device has completed all submitted work.  Breaks no stream capture.  Returns
 * CUDA_ERROR_OUT_OF_MEMORY if there is no memory for the small block that weir frees in order to wait. */
CUresult weir__device_wait(struct weir_device *device);
/* Frees the small block that an earlier weir__device_wait() could not free, if there is one. */
void weir__device_free_wait_block(struct weir_device *device);

void weir__device_log_free(const struct weir_device *device, CUdeviceptr block, weir_status status);
/* Logs a failed request if `status` is WEIR_E_STREAM (the driver does not know the stream). */
void weir__device_log_alloc(const struct weir_device *device, size_t bytes, weir_status status);
/* Returns the nanoseconds since `ticks`, an earlier time of the driver's clock. */
uint64_t weir__device_elapsed_ns(const struct weir_device *device, uint64_t ticks);

#endif
