/* SPDX-License-Identifier: MIT */
/* create.h: what the files of the public functions share of an allocator's making and of each call's beginning.
 *
 * Must not know: how an engine places blocks.
 */
#ifndef WEIR_CREATE_H
#define WEIR_CREATE_H

#include "api/allocator_internal.h"

/* ---- each call --------------------------------------------------------------------------------- */

/* A call that cannot be, told by the status alone. */
weir_status weir__misuse(const weir_allocator *a, weir_status status, const char *what);

/* What every request asks first, */
static inline __attribute__((always_inline)) weir_status weir__go_on(const weir_allocator *a) {
    if (weir__driver_forked())
        return weir__misuse(a, WEIR_E_FORKED, "a call");
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* and every call of the program's before that. */
static inline __attribute__((always_inline)) weir_status weir__gate(const weir_allocator *a) {
    return a ? weir__go_on(a) : weir__without_driver(WEIR_E_INVALID);
}

/* The public boundary: inside, the driver refuses this and that, and the thread's last driver result comes and goes.  A
 * call that succeeds leaves the one that the thread had as it began. */
static inline weir_status weir__ended(int result_before, weir_status status) {
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    return status;
}

/* On a thread without a context a default stream needs one: see device.h. */
static inline int weir__lend_context(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_lend_context(&a->device);
}

/* ---- creation ---------------------------------------------------------------------------------- */

struct weir_message {
    char *text;
    size_t bytes;
};

/* A creation that cannot be: the reason goes to the message, for who asked for it to tell, else to the log. */
__attribute__((format(printf, 4, 5))) weir_status
weir__create_cannot(const struct weir_message *message, int log, weir_status status,
                    const char *format, ...);
/* What came of the last call below, as a person reads it: `text', or a text that stays. */
const char *weir__why_not(const weir_allocator *a, weir_status status, char *text, size_t bytes);
weir_status weir__read_memory(weir_allocator *a, struct weir_device_memory *memory,
                              const struct weir_message *message);

/* hold_settings.c: what the device says of the settings; `given' are those of the program. */
weir_status weir__hold_settings(weir_allocator *a, const weir_options *given,
                                const struct weir_message *message);
/* Has engine bfc-fixed preallocate its region, and engine direct nothing. */
void weir__size_fixed_region(weir_allocator *a);

/* ---- preallocation and give-backs -------------------------------------------------------------- */

/* Preallocates.  On an error `text' has the reason, or "" if there is none. */
weir_status weir__preallocate(weir_allocator *a, char *text, size_t text_bytes);
/* Makes the host's tables for the addresses of preallocated memory. */
void weir__prepare(void *allocator);
/* Returns why the reserved memory is not known, or NULL if it is known. */
const char *weir__why_not_told(const weir_allocator *a);
/* Returns why the reserved memory never goes back by itself, or NULL if it may. */
const char *weir__why_it_stays(const weir_allocator *a);
int weir__can_shrink(const weir_allocator *a);

/* Gives idle memory back until at most `keep' is left, or until `wanted' bytes have gone, waiting for what that
 * takes. */
weir_status weir__trim_all(weir_allocator *a, size_t keep, int cause, size_t *released);
weir_status weir__relieve(weir_allocator *a, uint64_t wanted, int cause, size_t *released);
/* Makes the layer above free the memory that it does not need, as weir__reserve_reclaim() does.  Returns the bytes that
 * engine direct has given to the device by that, at once; with other engines a trim gives them. */
uint64_t weir__reclaim_bytes(weir_allocator *a, int may_wait, uint64_t *pending);

/* lend.c: as the reserved memory's lend_device; and of other processes. */
uint64_t weir__borrow(void *allocator, uint64_t least, uint64_t most, int may_wait);
void weir__join_process_peers(weir_allocator *a);
void weir__leave_peers(weir_allocator *a);

/* request.c: what serves under the guard. */
weir_status weir__allocator_serve(void *allocator, size_t bytes, weir_stream stream,
                                  CUdeviceptr *block);
weir_status weir__allocator_take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                                      struct weir_use_list *uses);

#endif
