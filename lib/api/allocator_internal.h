/* SPDX-License-Identifier: MIT */
/* allocator_internal.h: the structure of an allocator, and functions of lib/api for other folders, tests and `weir`. */
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
    struct weir_caches *caches; /* the per-stream caches, or NULL if caching is off */
    struct weir_device device;
    struct weir_harden *harden; /* the layer that finds invalid writes (options.harden), or NULL */
    struct weir_run_profile *run_profile; /* the profile of earlier runs, or NULL; never changes */
    const struct weir_creation *creation; /* the arguments of the creation; NULL afterwards */
    weir_options options; /* all options, with a value in place of each default */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number; /* identifies the allocator in the process */
    uint64_t run_id; /* identifies this run in the profile: the time of the allocator's creation */
    uint64_t free_at_first; /* the device's free memory when the allocator was created */
    uint64_t threshold;     /* the release threshold in bytes */
    uint64_t prealloc;      /* the bytes to preallocate */
    uint64_t profile_asked; /* `prealloc` if a profile of earlier runs has set it, else 0 */
    uint64_t prealloc_min;  /* the preallocation fails if it gets fewer bytes */
    /* If fewer than `low` bytes are idle, a thread reserves memory until `high` are idle.  0 without such a thread. */
    uint64_t low, high;
    /* For release_above_limit(), which only one thread calls: the bytes that its last call could not release, and the
     * number of allocations and frees before this call. */
    uint64_t not_released, retry_release_after;
    struct weir_local_peer local_peer;
    struct weir_claim claim; /* this allocator's entry in the shared registry of processes */
    /* A stream without work, for blocks of callers that pass no stream.  NULL until the first such call. */
    _Atomic(CUstream) idle_stream;
    /* The number of OOM reports of this allocator, and one bit for each cause that a report has named. */
    _Atomic unsigned oom_reports, causes_reported;
    atomic_int decay_logged;       /* set once weir has logged that weir_decay has no effect */
    pthread_mutex_t first_request; /* held in the first preallocation, before any other lock */
    int logs_no_failures;          /* set if weir does not log failed requests */
    int logs_prealloc_failure;     /* set if a failed preallocation is logged at any log level */
    int preallocates_later;    /* set if the first request preallocates, not the creation */
    int has_own_limit; /* set if the program's own code has set options.limit */
};

/* Returns the size of the largest request that would now succeed instead of `refused`, or 0 on a captured stream. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused);

/* Adds the entry `claim` to the device's shared registry of processes.  On failure logs the reason and returns NULL. */
struct weir_process_peers *weir__allocator_enter_registry(const struct weir_driver *driver,
                                                          CUdevice device, struct weir_claim *claim,
                                                          int log);

/* Returns the priority and the weight of an allocator with these options, for its entry in the shared registry. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* Asks other processes to free memory for a context.  Returns 1 if the caller shall retry, else 0.  `n` may be NULL. */
int weir__allocator_ask_for_context(struct weir_process_peers *n, struct weir_admission *admission);
/* Writes which processes use memory of the device, and how the user can make room for a context. */
void weir__allocator_write_context_users(struct weir_process_peers *n, char *text, size_t bytes);

/* Bits for the parameter `how` of weir__allocator_create(). */
enum {
    WEIR_CREATE_DECOMPRESSES = 1,      /* the memory must allow hardware decompression */
    WEIR_CREATE_PREALLOCATES_LATER = 2 /* memory is preallocated by the first request */
};

/* Creates an allocator as weir_allocator_create does.  `how` is a combination of WEIR_CREATE_ bits. */
weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator);

/* Sets options->engine to WEIR_ENGINE_MAPPED if the options name no engine and the device can map memory. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator with the driver table `driver`.  On an error writes the reason to `message`, or to the log if
 * `message_bytes` is 0. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* Creates an allocator with the driver table `driver`.  The allocator preallocates memory at its first request. */
weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes);

/* Checks whether an allocator can be created with these options, and computes its preallocation.  If
 * weir__driver_result is set after a failure, a driver call has failed, and the options may be correct. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* Logs an invalid call of a public function, and returns `status`.  `a` may be NULL. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* Allocates a block on a bound default stream, with the id `id`, of the primary context.  `block` must not be NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* Works like weir_ipc_make(), but shares all adjacent blocks that contain the `most` bytes from `address` on. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
/* Frees a block on a default stream of the primary context, after weir_bind().  `block` must not be NULL. */
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* Reads the allocator's statistics, without a check of the arguments. */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* Writes the range of addresses that only weir__alloc_separate() uses.  Returns 0 if there is no such range, else 1. */
int weir__separate_addresses(const weir_allocator *a, struct weir_extent *addresses);
/* Allocates whole 2 MiB pages at the address `at`, or far from all other blocks if `at` is WEIR_ENGINE_FAR.  Fails if
 * the addresses are in use.  weir_free_any frees the block. */
weir_status weir__alloc_separate(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block whose GPU work has completed, so that any stream can reuse it. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* Destroys `idle_stream`, after the allocator's engine has been closed. */
void weir__streamless_close(weir_allocator *a);

/* Checks the start of a public call.  `good` is 0 if an argument is invalid. */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
