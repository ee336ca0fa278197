/* SPDX-License-Identifier: MIT */
/* create.h: creates allocators, and checks the start and the end of each public call, for the files of lib/api.
 *
 * This file must not depend on how an engine places blocks. */
#ifndef WEIR_CREATE_H
#define WEIR_CREATE_H

#include "api/allocator_internal.h"
#include "base/log.h"

/* ---- each call --------------------------------------------------------------------------------- */

/* Logs that the call `what` was invalid, and why (the message of `status`).  Sets the thread's last driver result to 0,
 * and returns `status`. */
weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what);

/* Checks at the start of a request that this process is no child of fork(), and that no fault has made the device's
 * context unusable.  Returns OK, E_FORKED or E_DEVICE_LOST. */
static inline __attribute__((always_inline)) weir_status weir__check_live(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* Checks at the start of a public call that `a` is not NULL, that this process is no child of fork(), and that no fault
 * has made the device's context unusable.  Returns OK, E_INVALID, E_FORKED or E_DEVICE_LOST. */
static inline __attribute__((always_inline)) weir_status
weir__check_live_allocator(const weir_allocator *a) {
    return a ? weir__check_live(a) : weir__without_driver(WEIR_E_INVALID);
}

/* Ends a public call, and returns its status.  If the call has succeeded, restores the result that weir_driver_result()
 * returned before the call, because driver calls inside the call may have changed it. */
static inline weir_status weir__end_call(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* Makes the device's context current if the thread has no current context, because a default stream needs a context.
 * Returns 1 if the function has made the context current, else 0.  The caller later passes this result to
 * weir__device_restore_context(), which restores the earlier state. */
static inline int weir__make_context_current(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_make_context_current(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

/* The arguments and the state of the creation of one allocator. */
struct weir_creation {
    const struct weir_driver *driver;
    const char *driver_name;
    int ordinal;                 /* the number of the device */
    unsigned how;                /* WEIR_CREATE_ bits, such as WEIR_CREATE_DECOMPRESSES */
    weir_options given;          /* the options that the program has passed */
    weir_options completed;      /* the program's options, with a value in place of each default */
    /* The caller's buffer for the reason of a failure.  If the buffer has 0 bytes, weir logs the reason. */
    struct weir_message message;
};

/* Reports why the allocator cannot be created.  Writes the reason to the buffer that the caller of the creation passed,
 * or to the log if there is no buffer.  Returns `status`. */
__attribute__((format(printf, 3, 4))) weir_status
weir__create_cannot(const weir_allocator *a, weir_status status, const char *format, ...);
/* Returns the reason of a failure, in words for users.  The result is either `text`, into which the function has
 * written, or a constant string. */
const char *weir__create_failure_reason(const weir_allocator *a, weir_status status, char *text,
                                        size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory);

/* Checks the settings of a new allocator against its device, and converts amounts such as "75%" to bytes. */
weir_status weir__apply_settings(weir_allocator *a);
/* Sets the preallocation of an engine whose preallocation is fixed: the whole region for engine bfc-fixed, and 0 for
 * engine direct.  Changes nothing for other engines. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and trims ------------------------------------------------------------------- */

/* Preallocates memory.  On an error writes the reason to `text`, or "" if the message of the status is sufficient. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Returns the reason why weir cannot find out how much memory is reserved, or NULL if weir can find it out. */
const char *weir__unknown_reserve_reason(const weir_allocator *a);
/* Returns the reason why weir never releases idle reserved memory to the device by itself, or NULL if weir releases
 * it. */
const char *weir__no_release_reason(const weir_allocator *a);

/* Moves all idle memory of the per-stream caches and of the hardening layer to the engine, which can release it to the
 * device.  `allocator` is a pointer to a weir_allocator.  The code of lib/reserve calls this function through a
 * pointer. */
weir_status weir__flush(void *allocator);
/* Releases `wanted` bytes of idle memory to the device, but keeps the memory that the target size of the reserved
 * memory protects.  Writes the number of released bytes to *released.  May wait for the device. */
weir_status weir__release_idle(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Makes the layer above the allocator (lib/tensors) free blocks that the layer caches.  With engine direct, these frees
 * release memory to the device, and the function returns the released bytes.  With other engines, the caller must then
 * trim the allocator to release the memory. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* weir__release_local_peers makes other allocators of the process release idle memory to the device.  lib/reserve calls the function
 * through the pointer `lend_device`.  The other two functions add the allocator to the shared registry, a file of all
 * processes on the device, and remove it again. */
uint64_t weir__release_local_peers(void *allocator, uint64_t least, uint64_t most, int may_wait);
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* Returns how many bytes of an engine's memory a trim cannot release, or 0 if weir cannot find this out.  A trim can
 * release a piece of memory only as a whole.  So the result is the sum of all pieces that contain a live block or are
 * larger than `most` bytes.  `of` is the caches or the hardening layer, and the function `live` lists the live blocks
 * of `of`.  If `of` is NULL, no block is live.  Takes the engine's lock, and then the locks of `of`.  Needs about 10 ns
 * for each block. */
typedef void weir__live_walk_fn(void *of, weir__live_fn *see, void *context);
uint64_t weir__pinned_bytes(struct weir_engine *engine, weir__live_walk_fn *live, void *of,
                            uint64_t most);

/* Allocate and free a block for the hardening layer, which lies above the caches and the engine. */
weir_status weir__allocator_alloc_below_guard(void *allocator, size_t bytes, weir_stream stream,
                                              CUdeviceptr *block);
weir_status weir__allocator_free_below_guard(void *allocator, CUdeviceptr block, weir_stream stream,
                                             struct weir_use_list *uses);

#endif
