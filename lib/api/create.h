/* SPDX-License-Identifier: MIT */
/* create.h: the creation of an allocator, and the begin and end of each public call; for the files of lib/api.
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

/* Checks at the begin of each request that this is no child of fork and that the device is not lost. */
static inline __attribute__((always_inline)) weir_status weir__go_on(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* Checks at the begin of each public call that there is an allocator, and what weir__go_on checks. */
static inline __attribute__((always_inline)) weir_status weir__gate(const weir_allocator *a) {
    return a ? weir__go_on(a) : weir__without_driver(WEIR_E_INVALID);
}

/* Ends a public call, and returns its status.  A call that succeeds restores the thread's last driver result, which
 * calls of the driver inside may have changed. */
static inline weir_status weir__ended(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* Makes the device's context current if the thread has no context, which a default stream needs.  Returns 1 if it did
 * so, else 0.  The caller passes the result to weir__device_end_context. */
static inline int weir__lend_context(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_lend_context(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

/* The creation of an allocator, for which the options are read once. */
struct weir_creation {
    const struct weir_driver *driver;
    const char *driver_name;
    int ordinal;                 /* the number of the device */
    unsigned how;                /* bits of WEIR_CREATE_ */
    weir_options given;          /* the options as the program passed them */
    weir_options completed;      /* the options with a value for each default */
    struct weir_message message; /* for the reason of a failure; 0 bytes: it goes to the log */
};

/* Writes the reason why an allocator cannot be created to the message of its creation, or to the log if the caller
 * wants no message.  Returns `status`. */
__attribute__((format(printf, 3, 4))) weir_status
weir__create_cannot(const weir_allocator *a, weir_status status, const char *format, ...);
/* Returns the reason of a failed preallocation, as users read it: in `text`, or a static text. */
const char *weir__why_not(const weir_allocator *a, weir_status status, char *text, size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory);

/* hold_settings.c: checks the settings against the device, and converts amounts to bytes. */
weir_status weir__hold_settings(weir_allocator *a);
/* Has engine bfc-fixed preallocate its region, and engine direct nothing. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and give-backs -------------------------------------------------------------- */

/* Preallocates.  On an error writes the reason to `text`, or "" if the status says it all. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Makes host tables for the addresses of preallocated memory, so that the first requests need not. */
void weir__prepare(weir_allocator *a);
/* Returns why the reserved memory is not known, or NULL if it is known. */
const char *weir__why_not_told(const weir_allocator *a);
/* Returns why the reserved memory never goes back by itself, or NULL if it may. */
const char *weir__why_it_stays(const weir_allocator *a);

/* Flushes the guard and the caches: the flush function of the reserved memory. */
weir_status weir__flush(void *allocator);
/* Give idle memory back until at most `keep` bytes are reserved, or until `wanted` bytes have gone.  May wait for the
 * device. */
weir_status weir__trim_all(weir_allocator *a, size_t keep, int cause, size_t *released);
weir_status weir__relieve(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Makes the layer above free the memory that it does not need, as weir__reserve_reclaim() does.  Returns the bytes that
 * engine direct has given to the device by that, at once; with other engines a trim gives them. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* lend.c: weir__borrow is the lend_device function of the reserved memory.  The other functions join and leave the
 * local allocators and the shared registry. */
uint64_t weir__borrow(void *allocator, uint64_t least, uint64_t most, int may_wait);
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* request.c: allocate and free without the guard, which calls them. */
weir_status weir__allocator_serve(void *allocator, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block);
weir_status weir__allocator_take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                                      struct weir_use_list *uses);

#endif
