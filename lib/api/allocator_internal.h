/* SPDX-License-Identifier: MIT */
/* allocator_internal.h: the structure of an allocator, for the files that define the public functions.
 *
 * This header also declares functions by which tests and the program `weir` create an allocator on a driver table of
 * their own. */
#ifndef WEIR_ALLOCATOR_INTERNAL_H
#define WEIR_ALLOCATOR_INTERNAL_H

#include <weir/allocator.h>

#include "api/profile_use.h"
#include "base/counters.h"
#include "base/lock.h"
#include "base/result.h"
#include "cache/caches.h"
#include "driver/driver.h"
#include "config/amount.h"
#include "engine/stream_uses.h"
#include "harden/guard.h"
#include "ipc/local_peers.h"
#include "ipc/process_peers.h"
#include "reserve/reserve.h"

struct weir_allocator {
    /* The caches of free blocks, one for each stream; NULL if caching is off. */
    struct weir_caches *caches;
    struct weir_device device;
    /* The layer that detects invalid writes and frees (options.harden), or NULL. */
    struct weir_harden *harden;
    /* The memory that earlier runs needed, read from a profile file; NULL if the options name no profile.  The pointer
     * does not change after the allocator's creation. */
    struct weir_run_profile *run_profile;
    /* The arguments of weir_allocator_create, for the functions that create the parts of the allocator.  NULL after the
     * creation. */
    const struct weir_creation *creation;
    weir_options options; /* all options, with a value in place of each default */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number; /* identifies the allocator in the process */
    /* Identifies this run in the profile file: the time at which the allocator was created. */
    uint64_t run_id;
    uint64_t free_at_first; /* the device's free memory when the allocator was created */
    /* The release threshold in bytes.  weir keeps this much memory reserved, even if the memory is idle. */
    uint64_t threshold;
    uint64_t prealloc; /* how many bytes the allocator preallocates */
    /* `prealloc`, if a profile (a file about earlier runs) has set it; else 0. */
    uint64_t profile_asked;
    uint64_t prealloc_min;  /* the preallocation fails if it gets fewer bytes */
    /* A background thread reserves more memory when fewer than `low` bytes are idle, and stops at `high` idle bytes.
     * Both fields are 0 if the option grow_ahead is off. */
    uint64_t low, high;
    /* If weir lowers the limit, it may be unable to free all memory above the new limit, for example because of live
     * blocks.  `not_released` is the number of bytes that weir could not free.  `retry_release_after` is the number of allocations
     * and frees before this attempt; weir tries again only after more calls.  Only the thread that adapts limits uses
     * both fields. */
    uint64_t not_released, retry_release_after;
    struct weir_local_peer local_peer;
    /* What this allocator writes into the shared registry, a file in which processes publish how much memory they
     * use. */
    struct weir_claim claim;
    /* A stream on which weir allocates and frees blocks for callers that pass no stream.  The stream runs no work.
     * NULL until the first such call. */
    _Atomic(CUstream) idle_stream;
    /* The number of OOM reports that weir has written for this allocator, and one bit for each cause that a report had.
     * weir writes only one report for each cause. */
    _Atomic unsigned oom_reports, causes_reported;
    atomic_int decay_logged; /* set once weir has logged that weir_decay has no effect */
    pthread_mutex_t first_request; /* held by the first request during its preallocation */
    /* If `logs_no_failures` is set, weir does not log failed requests.  If `logs_prealloc_failure` is set, the first request logs a
     * failed preallocation once, at any log level.  Both fields are fixed before the first request. */
    int logs_no_failures, logs_prealloc_failure;
    /* Set if memory is preallocated by the first request, and not when the allocator is created. */
    int preallocates_later;
    int has_own_limit; /* set if the program's own code has set options.limit */
};

/* Returns the size of the largest request that would have succeeded when the request `refused` failed.  Returns 0 if
 * the stream was being captured. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused);

/* Enters this process into the shared registry of the device, a file in which processes publish how much memory they
 * use.  On failure logs the reason and returns NULL. */
struct weir_process_peers *weir__allocator_enter_registry(const struct weir_driver *driver,
                                                          CUdevice device, struct weir_claim *claim,
                                                          int log);

/* Returns what an allocator with these options writes into the shared registry, a file of all processes on a device:
 * its priority, and its weight when processes share the device's memory. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* Asks other processes to free memory, after cuDevicePrimaryCtxRetain has run out of memory.  Returns 1 if the caller
 * shall repeat its driver call, because another process has freed memory or may have freed memory.  Returns 0
 * otherwise.  `n` is the shared registry of the device's processes, or NULL. */
int weir__allocator_ask_for_context(struct weir_process_peers *n, struct weir_admission *admission);
/* Writes a message for the user: which processes use memory of the device, and what the user can do. */
void weir__allocator_write_context_users(struct weir_process_peers *n, char *text, size_t bytes);

/* Bits for the parameter `how` of weir__allocator_create(). */
enum {
    /* The allocator's memory must allow hardware decompression. */
    WEIR_CREATE_DECOMPRESSES = 1,
    WEIR_CREATE_PREALLOCATES_LATER = 2 /* memory is preallocated by the first request */
};

/* Creates an allocator as weir_allocator_create does.  `how` is a combination of WEIR_CREATE_ bits. */
weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator);

/* Sets options->engine to WEIR_ENGINE_MAPPED if the options name no engine and the device supports virtual memory
 * management (cuMemMap).  Allocates no memory. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator as weir_allocator_create does, but makes all driver calls through the table `driver`.  Uses
 * options.device only for the number of the device, and not to choose a driver.  On an error writes to `message` what
 * is wrong and what is correct.  If `message` is NULL and `message_bytes` is 0, writes the error to the log. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* Creates an allocator that makes all driver calls through the table `driver`, as weir__allocator_create_on() does.
 * The first request preallocates memory, not this function. */
weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes);

/* Checks whether an allocator could be created with these options on the device.  Retains the device's primary context
 * during the call.  On success sets *prealloc to the number of bytes that the allocator would preallocate.  If a driver
 * call fails (weir__driver_result is not 0), the options may still be correct. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* Logs one line about an invalid call of a public function.  Logs nothing if `a` is NULL, because the log level is an
 * option of the allocator.  Sets the thread's last driver result to 0, and returns `status`. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* Allocate and free a block on a default stream of the device's primary context, as weir_alloc and weir_free do.  The
 * caller passes the stream's id, so that the functions need not query the id.  The caller must have called weir_bind
 * for the stream, and `block` must not be NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* Writes a text with which another process can map memory of this allocator, as weir_ipc_make does.  The text describes
 * at most `most` bytes from `address` on, which may lie in several adjacent blocks. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* Reads the allocator's statistics as weir_stats does, but does not check the arguments. */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* weir__separate_addresses writes a range of addresses in which only weir__alloc_separate places blocks.  Returns 1 on
 * success, 0 if the engine has no such range.  weir__alloc_separate allocates a block of whole 2 MiB pages for no
 * particular stream.  The block begins at the address `at`; if `at` is WEIR_ENGINE_FAR, the block lies far from all
 * other blocks.  The function fails at once if the addresses are in use.  weir_free_any frees the block. */
int weir__separate_addresses(const weir_allocator *a, struct weir_extent *addresses);
weir_status weir__alloc_separate(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block whose last use on each stream has completed, as the caller has observed.  With per-stream caches, any
 * stream can reuse the block at once.  Without caches, the function frees the block on a stream of the allocator that
 * runs no work. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* Destroys the stream on which weir_alloc_any allocates blocks.  The caller has closed the allocator's engine
 * before. */
void weir__streamless_close(weir_allocator *a);

/* Checks the start of a public call.  Returns WEIR_OK if the call may continue, WEIR_E_INVALID if `good` is 0 (the
 * arguments are invalid), or WEIR_E_FORKED in a child of fork(). */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
