/* SPDX-License-Identifier: MIT */
/* device.h: one device as an allocator uses it: the driver's answers as statuses, and what a stream is.
 *
 * The layers above ask the device here, and call the driver's table themselves only for what belongs to one of them.
 * Functions may be called from any thread.
 *
 * Must not know: memory, settings, the caller.
 */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stdatomic.h>

#include <weir/allocator.h>

#include "base/slow_path.h"
#include "base/tls.h"
#include "driver/driver.h"

/* Device ordinals from 0 on. */
enum { WEIR_MOST_PEERS = 64 };

/* Whose work may use memory; the first is the memory's own device. */
struct weir_access {
    size_t count;
    CUmemAccessDesc list[WEIR_MOST_PEERS + 1];
};

/* Written by the allocator before anybody else has it; what is atomic may change later. */
struct weir_device {
    const struct weir_driver *driver;
    CUdevice ordinal;
    CUcontext context;         /* the primary one, retained by the allocator */
    uint64_t total;            /* bytes */
    weir_slow_paths slow_path; /* why requests do not go straight to the caches */
    uint64_t created_ticks;    /* of the allocator */
    _Atomic int log;  /* level; NONE while the allocator is made, whose maker tells of failures */
    int decompresses; /* memory is made for hardware decompression, too */
    int drop_in;      /* the allocator stands in the place of the driver's pools: see drop_in.h */
    /* Opportunistic reuse is off: what one stream has freed serves others only after the host has waited or memory
     * was given back to the device. */
    atomic_int keeps_apart;
    /* NULL, or: 1 if an adapter saw the stream's creation, and so will see its captures and its end. */
    int (*_Atomic watches)(weir_stream stream);
    struct weir_access access; /* who may use the memory from the beginning */
    /* A block made for a wait that the driver did not take back; 0: none. */
    _Atomic CUdeviceptr waited_by;
};

/* The status for a driver result, which becomes the thread's last driver result; fatal results mark
 * the device lost. */
weir_status weir__device_status(struct weir_device *device, CUresult result);
/* What to ask of cuMemCreate on a device, the same for all of an allocator's memory: network adapters and storage may reach
 * it directly (GPUDirect RDMA) where the device has that, which memory of cuMemAlloc always may there.  Likewise other
 * processes may open it, which costs nothing (H200). */
CUresult weir__device_mapped_kind(const struct weir_driver *driver, CUdevice device,
                                  int decompresses, CUmemAllocationProp *kind);
/* Free bytes on the device now, UINT64_MAX if it cannot be told. */
uint64_t weir__device_free(struct weir_device *device);
/* Bytes that cuMemAlloc would surely give in one piece now, if the device had `back` bytes more: whole pages
 * of 2 MiB, or `most` where that is less. */
size_t weir__device_room(struct weir_device *device, uint64_t most, uint64_t back);

/* A default stream (0, 1, 2) belongs to the context that is current on the calling thread; on a thread that has none it
 * means that of the device's own context.  A driver call on it fails there, and a failing call costs a microsecond, as
 * the driver logs it.  So the first such failure on a thread raises this flag, and from then on each request, free and
 * use asks first whether a context is current, and lends the device's own where none is. */
extern _Thread_local int weir__device_lacks_context WEIR_FAST_TLS;
/* Makes the device's context current if the thread has none: 1, or 0 and nothing was done.  The end takes what the former
 * returned. */
int weir__device_lend_context(const struct weir_device *device);
void weir__device_end_context(const struct weir_device *device, int lent);
/* After a driver call on the caller's stream: 1 if it failed because the thread has no context.  Then the flag is up and
 * the device's context entered: the caller makes the call again and leaves it.  *result: why it could not be entered.
 * In the driver's place (drop_in) always 0: there the program is answered what the driver answers. */
int weir__device_retry_in_context(const struct weir_device *device, CUresult *result,
                                  struct weir_driver_scope *scope);
/* The weir_status of `call', which is made in a scope of the device's; or why there is no scope. */
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
/* The CUresult of `call' on a caller's stream, which is made once more in that scope if it must be. */
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

/* E_CAPTURE while `stream` is being captured (or its state makes questions illegal), OK if it is not;
 * else what the driver has against the stream. */
weir_status weir__device_capture(struct weir_device *device, weir_stream stream);
/* The id of a stream as the caller means it: a default stream is one of the current context, or of
 * the device's own where there is none.  0 where the driver has no ids; of a stream that is being
 * captured CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, without asking. */
CUresult weir__device_stream_id(struct weir_device *device, weir_stream stream, uint64_t *id);

/* The ids of the calling thread's default streams in a device's own context: of the legacy one, and of the thread's.  They
 * stay the same as long as that context does; that it has gone is known when the next allocator is made. */
enum { WEIR_DEFAULT_IDS = 4 };
struct weir_default_ids {
    CUcontext context; /* NULL: none yet */
    uint64_t age;      /* weir__device_age when they were asked */
    unsigned long long id[2];
};
extern _Thread_local struct weir_default_ids weir__default_ids[WEIR_DEFAULT_IDS] WEIR_FAST_TLS;
/* Rises with each allocator that is made. */
extern _Atomic uint64_t weir__device_age;
/* How many threads have used their own default stream, and whether this one has, as far as ids were noted. */
extern _Atomic unsigned weir__device_own_streams;
extern _Thread_local unsigned weir__device_has_own WEIR_FAST_TLS;

/* A default stream's id without a question about it: 1, or 0 if that is not known.  Only behind an adapter that sees
 * captures begin: whether the stream is being captured is not asked. */
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
/* It was asked, and is `id'. */
void weir__device_note_default_id(const struct weir_device *device, weir_stream stream,
                                  unsigned long long id);
/* OK, or E_STREAM: the stream is another device's, so that no wait for this one covers what runs there.
 * Also OK if the driver cannot tell. */
weir_status weir__device_check_stream(struct weir_device *device, weir_stream stream);
/* The stream is being captured, or stands beside a capture as the legacy stream does. */
static inline int weir__device_is_capture(CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
           result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

/* Records on a stream as the caller means it.  `id` nonzero: only if the handle still means that
 * stream, else CUDA_ERROR_INVALID_HANDLE. */
CUresult weir__device_record(struct weir_device *device, CUevent event, weir_stream stream,
                             uint64_t id);
/* What is queued on `stream` from here on waits for the event. */
CUresult weir__device_follow(struct weir_device *device, weir_stream stream, CUevent event);
/* 1 if the stream has nothing to do, as the driver then knows too. */
int weir__device_is_idle(struct weir_device *device, weir_stream stream);
/* Waits until the device has finished all work, however long that takes, and harms no capture (device_wait.c says by what).
 * CUDA_ERROR_OUT_OF_MEMORY: neither device nor host has the memory that this takes. */
CUresult weir__device_wait(struct weir_device *device);
/* Frees the block that an earlier wait may have left (`waited_by`). */
void weir__device_end_waits(struct weir_device *device);

/* A line about a free that was refused, or a request on a stream that will not do. */
void weir__device_log_free(const struct weir_device *device, CUdeviceptr block, weir_status status);
void weir__device_log_alloc(const struct weir_device *device, size_t bytes, weir_status status);
/* Nanoseconds since `ticks`. */
uint64_t weir__device_since(const struct weir_device *device, uint64_t ticks);

#endif
