/* SPDX-License-Identifier: MIT */
/* create.h: creates allocators, and checks the start and the end of each public call, for the files of lib/api. */
#ifndef WEIR_CREATE_H
#define WEIR_CREATE_H

#include "api/allocator_internal.h"
#include "base/log.h"

/* ---- each call --------------------------------------------------------------------------------- */

/* Logs that the call `what` was invalid, and returns `status`. */
weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what);

/* Returns an error in a child of fork() or if the context is lost, else OK. */
static inline __attribute__((always_inline)) weir_status weir__check_live(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* Returns E_INVALID if `a` is NULL, else the result of weir__check_live(). */
static inline __attribute__((always_inline)) weir_status
weir__check_live_allocator(const weir_allocator *a) {
    return a ? weir__check_live(a) : weir__without_driver(WEIR_E_INVALID);
}

/* Ends a public call.  After a success, restores the thread's driver result from before the call. */
static inline weir_status weir__end_call(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* Makes the device's context current if the thread has none, because a default stream needs a context.  The caller
 * passes the result to weir__device_restore_context(). */
static inline int weir__make_context_current(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_make_context_current(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

/* The arguments of the creation of an allocator. */
struct weir_creation {
    const struct weir_driver *driver;
    const char *driver_name;
    int ordinal;            /* the number of the device */
    unsigned how;           /* WEIR_CREATE_ bits, such as WEIR_CREATE_DECOMPRESSES */
    weir_options given;     /* the options that the program has passed */
    weir_options completed; /* the program's options, with a value in place of each default */
    /* The caller's buffer for the reason of a failure.  If the buffer has 0 bytes, weir logs the reason. */
    struct weir_message message;
};

/* Writes the reason of a failed creation to the caller's buffer, or to the log.  Returns `status`. */
__attribute__((format(printf, 3, 4))) weir_status
weir__create_cannot(const weir_allocator *a, weir_status status, const char *format, ...);
/* Returns the reason of a failure in words for users.  The result may be `text`. */
const char *weir__create_failure_reason(const weir_allocator *a, weir_status status, char *text,
                                        size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory);

/* Checks the settings of a new allocator against its device, and converts amounts such as "75%" to bytes. */
weir_status weir__apply_settings(weir_allocator *a);
/* Sets the preallocation of engines bfc-fixed and direct. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and trims ------------------------------------------------------------------- */

/* Preallocates memory.  On an error writes the reason to `text`, or "" if the status alone tells the reason. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Returns why the size of the reserved memory is not known, or NULL if the size is known. */
const char *weir__unknown_reserve_reason(const weir_allocator *a);
/* Returns the reason if the allocator never releases idle memory by itself, else NULL. */
const char *weir__no_release_reason(const weir_allocator *a);

/* Moves all idle memory of the caches and the guard to the engine.  `allocator` is a weir_allocator *. */
weir_status weir__flush(void *allocator);
/* Releases up to `wanted` idle bytes to the device, but keeps preallocated memory.  May wait for the device. */
weir_status weir__release_idle(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Frees unused blocks of lib/tensors, and returns the bytes that the engine thereby releases to the device.  Engines
 * other than direct keep the freed bytes reserved until the caller trims. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* Makes other allocators of the process release idle memory.  lib/reserve calls this function through a pointer. */
uint64_t weir__release_local_peers(void *allocator, uint64_t least, uint64_t most, int may_wait);
/* Add the allocator to the device's shared registry of processes, and remove the allocator. */
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* Calls `see` for each live block of `of`, which is a struct weir_caches or a struct weir_harden (the guard). */
typedef void weir__live_walk_fn(void *of, weir__live_fn *see, void *context);
/* Returns the bytes of the engine's memory that a trim of `most` bytes cannot release, or 0 if they are not known.
 * `live` lists the blocks of `of`, which may be NULL.  Takes the engine's lock, and then the locks of `of`. */
uint64_t weir__pinned_bytes(struct weir_engine *engine, weir__live_walk_fn *live, void *of,
                            uint64_t most);

/* Allocate and free a block in the caches or the engine, without the guard (lib/harden). */
weir_status weir__allocator_alloc_below_guard(void *allocator, size_t bytes, weir_stream stream,
                                              CUdeviceptr *block);
weir_status weir__allocator_free_below_guard(void *allocator, CUdeviceptr block, weir_stream stream,
                                             struct weir_use_list *uses);

#endif
