/* SPDX-License-Identifier: MIT */
/* create.h: the creation of an allocator, and the checks at the start and the end of each public call, for lib/api.
 *
 * This file must not know how an engine places blocks.
 */
#ifndef WEIR_CREATE_H
#define WEIR_CREATE_H

#include "api/allocator_internal.h"
#include "base/log.h"

/* ---- each call --------------------------------------------------------------------------------- */

/* Logs an invalid call with the message of its status.  Returns the status, and clears the driver's result. */
weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what);

/* Checks at the start of each request that the process is no child of fork and that the device is not lost. */
static inline __attribute__((always_inline)) weir_status weir__go_on(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* Checks at the start of each public call that `a` is not NULL, and makes the checks of weir__go_on. */
static inline __attribute__((always_inline)) weir_status weir__gate(const weir_allocator *a) {
    return a ? weir__go_on(a) : weir__without_driver(WEIR_E_INVALID);
}

/* Ends a public call, and returns its status.  If the call succeeds, restores the thread's last driver result, which
 * driver calls inside the public call may have changed. */
static inline weir_status weir__ended(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* Makes the device's context current if the thread has no context, because a default stream needs one.  Returns 1 if
 * the context was made current, else 0.  The caller passes the result to weir__device_end_context. */
static inline int weir__lend_context(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_lend_context(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

/* The state of the creation of an allocator.  The options are read once. */
struct weir_creation {
    const struct weir_driver *driver;
    const char *driver_name;
    int ordinal;                 /* the number of the device */
    unsigned how;                /* bits of WEIR_CREATE_ */
    weir_options given;          /* the options as the program passed them */
    weir_options completed;      /* the options with a value for each default */
    struct weir_message message; /* gets the reason of a failure; 0 bytes to log the reason */
};

/* Writes the reason why an allocator cannot be created to the message of its creation, or to the log if the caller
 * wants no message.  Returns `status`. */
__attribute__((format(printf, 3, 4))) weir_status
weir__create_cannot(const weir_allocator *a, weir_status status, const char *format, ...);
/* Returns the reason of a failed preallocation, in words for users: in `text`, or a constant string. */
const char *weir__why_not(const weir_allocator *a, weir_status status, char *text, size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory);

/* Checks the settings against the device, and converts amounts to bytes (hold_settings.c). */
weir_status weir__hold_settings(weir_allocator *a);
/* Sets the preallocation of engine bfc-fixed to the engine's region, and of engine direct to 0. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and trims ------------------------------------------------------------------- */

/* Preallocates memory.  On an error writes the reason to `text`, or "" if the status says enough. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Returns the reason why the size of the reserved memory is not known, or NULL if the size is known. */
const char *weir__why_not_told(const weir_allocator *a);
/* Returns the reason why weir never releases the reserved memory by itself, or NULL if weir may release memory. */
const char *weir__why_it_stays(const weir_allocator *a);

/* Flushes the guard and the caches.  The reserved memory calls this flush function. */
weir_status weir__flush(void *allocator);
/* Releases `wanted` bytes of idle memory above the goal.  May wait for the device. */
weir_status weir__relieve(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Makes the layer above free memory that the layer does not need, as weir__reserve_reclaim() does.  Returns the bytes
 * that engine direct has released to the device by these frees.  With other engines a later trim releases the
 * memory. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* weir__borrow is the lend_device function of the reserved memory.  The other functions join and leave the local
 * allocators and the shared registry (lend.c). */
uint64_t weir__borrow(void *allocator, uint64_t least, uint64_t most, int may_wait);
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* Returns the bytes that a trim cannot release, or 0 if they are not known.  A trim releases each piece as a whole or
 * not at all.  So the result is the sum of all pieces that contain a live block or are larger than `most`.  Visits all
 * blocks (about 10 ns each), under the engine's lock and then the lock of the caches or the guard.  `of` is the caches
 * or the guard, whose live blocks `live` visits; if `of` is NULL, no block is live. */
typedef void weir__live_walk_fn(void *of, weir__live_fn *see, void *context);
uint64_t weir__held(struct weir_engine *engine, weir__live_walk_fn *live, void *of, uint64_t most);

/* These functions allocate and free without the guard, which calls them (request.c). */
weir_status weir__allocator_serve(void *allocator, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block);
weir_status weir__allocator_take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                                      struct weir_use_list *uses);

#endif
