/* SPDX-License-Identifier: MIT */
/* create.h: creates allocators, and checks the start and the end of each public call, for the files of lib/api.
 *
 * This file must not know how an engine places blocks. */
#ifndef WEIR_CREATE_H
#define WEIR_CREATE_H

#include "api/allocator_internal.h"
#include "base/log.h"

/* ---- each call --------------------------------------------------------------------------------- */

/* Logs an invalid call with the message of its status.  Sets the thread's last driver result to 0, and returns
 * `status`. */
weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what);

/* Checks at the start of a request that the process is no child of fork() and that the device is not lost.  Returns OK
 * if both hold, else E_FORKED or E_DEVICE_LOST. */
static inline __attribute__((always_inline)) weir_status weir__go_on(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* Checks at the start of a public call that `a` is not NULL, then does the checks of weir__go_on().  Returns OK,
 * E_INVALID, E_FORKED or E_DEVICE_LOST. */
static inline __attribute__((always_inline)) weir_status weir__gate(const weir_allocator *a) {
    return a ? weir__go_on(a) : weir__without_driver(WEIR_E_INVALID);
}

/* Ends a public call, and returns its status.  If the call has succeeded, restores the thread's last driver result,
 * because driver calls inside the public call may have changed it. */
static inline weir_status weir__ended(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* Makes the device's context current if the thread has no current context, because a default stream needs a context.
 * Returns 1 if the function has made the context current, else 0.  The caller later passes this result to
 * weir__device_end_context(). */
static inline int weir__lend_context(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_lend_context(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

/* The arguments and the state of the creation of one allocator.  weir reads the options only once. */
struct weir_creation {
    const struct weir_driver *driver;
    const char *driver_name;
    int ordinal;                 /* the number of the device */
    unsigned how;                /* a combination of WEIR_CREATE_ bits */
    weir_options given;          /* the options that the program has passed */
    weir_options completed;      /* the options with a value in place of each default */
    /* The buffer for the reason of a failure; with 0 bytes, weir logs the reason. */
    struct weir_message message;
};

/* Reports why the allocator cannot be created.  Writes the reason to the message of the creation, or to the log if the
 * caller wants no message.  Returns `status`. */
__attribute__((format(printf, 3, 4))) weir_status
weir__create_cannot(const weir_allocator *a, weir_status status, const char *format, ...);
/* Returns the reason of a failure, in words for users.  The result is either `text`, to which the function has written,
 * or a constant string. */
const char *weir__why_not(const weir_allocator *a, weir_status status, char *text, size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory);

/* Checks the settings of a new allocator against its device, and converts amounts to bytes (hold_settings.c). */
weir_status weir__hold_settings(weir_allocator *a);
/* Sets the preallocation of engine bfc-fixed to its whole region, and the preallocation of engine direct to 0.  Changes
 * nothing for other engines. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and trims ------------------------------------------------------------------- */

/* Preallocates memory.  On an error writes the reason to `text`, or "" if the status explains enough. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Returns the reason why weir does not know the size of the reserved memory, or NULL if weir knows it. */
const char *weir__why_not_told(const weir_allocator *a);
/* Returns the reason why weir never releases reserved memory by itself, or NULL if weir may do so. */
const char *weir__why_it_stays(const weir_allocator *a);

/* Moves the idle memory of the guard and of the caches to the engine.  `allocator` is a weir_allocator.  The reserved
 * memory (lib/reserve) calls this function. */
weir_status weir__flush(void *allocator);
/* Releases `wanted` bytes of idle memory that the goal does not protect.  Writes the bytes that were released to
 * *released.  May wait for the device. */
weir_status weir__relieve(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Makes the layer above weir (lib/tensors) free memory that the layer does not need, as weir__reserve_reclaim() does.
 * With engine direct, these frees release memory to the device, and the function returns the released bytes.  With
 * other engines a later trim releases the memory. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* weir__borrow is the function lend_device of the reserved memory.  It makes other allocators of the process release
 * idle memory.  The other two functions join and leave the shared registry (lend.c). */
uint64_t weir__borrow(void *allocator, uint64_t least, uint64_t most, int may_wait);
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* Returns the bytes that a trim cannot release, or 0 if weir does not know them.  A trim can release a piece only as a
 * whole.  So the result is the sum of all pieces that contain a live block or are larger than `most`.  The function
 * visits all blocks (about 10 ns each), under the engine's lock and then under the lock of the caches or the guard.
 * `of` is the caches or the guard, and the function `live` visits the live blocks of `of`.  If `of` is NULL, no block
 * is live. */
typedef void weir__live_walk_fn(void *of, weir__live_fn *see, void *context);
uint64_t weir__held(struct weir_engine *engine, weir__live_walk_fn *live, void *of, uint64_t most);

/* Allocate and free a block below the guard.  The guard calls these functions (request.c). */
weir_status weir__allocator_serve(void *allocator, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block);
weir_status weir__allocator_take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                                      struct weir_use_list *uses);

#endif
