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
    struct weir_caches *caches; /* the per-stream caches, or NULL if they are off */
    struct weir_device device;
    struct weir_harden *harden; /* the hardening layer (guard), or NULL if it is off */
    /* The profile, or NULL if there is none; fixed after creation. */
    struct weir_learn *learn;
    /* The arguments of the creation; NULL once the allocator exists. */
    const struct weir_creation *creation;
    weir_options options;                 /* the completed options; fixed after creation */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number; /* a number that is unique in the process */
    /* The id of this run in a profile, which is the time of the allocator's creation. */
    uint64_t run_id;
    uint64_t free_at_first; /* the device's free memory when the allocator was created */
    /* The release threshold: bytes that stay reserved even if they are idle. */
    uint64_t threshold;
    uint64_t prealloc;      /* the bytes to preallocate */
    uint64_t profile_asked; /* `prealloc` if the profile has set the preallocation, else 0 */
    uint64_t prealloc_min;  /* the least preallocation that counts as success, in bytes */
    /* Background growth (grow-ahead) starts below `low` idle bytes, and stops at `high` idle bytes.  Both are 0 if the
     * options want no background growth. */
    uint64_t low, high;
    /* After weir lowered the limit, `stayed` bytes above the limit could not be freed.  `stayed_after` is the number of
     * allocations and frees until then.  Only the thread that adapts limits uses both fields. */
    uint64_t stayed, stayed_after;
    struct weir_local_peer local_peer;
    struct weir_claim claim; /* the allocator's entry in the shared registry of the device */
    /* The allocator's own stream, which runs no work (streamless.c), or NULL before its first use. */
    _Atomic(CUstream) quiet;
    /* The number of OOM reports that weir has made for failed requests, and one bit for each cause in these reports. */
    _Atomic unsigned oom_reports, causes_told;
    atomic_int decay_told; /* set after weir has logged that weir_decay has no effect */
    pthread_mutex_t first; /* the first request holds this mutex while it preallocates */
    /* Both fields are fixed before the first request.  If `hushed` is set, weir does not log failed requests.  If
     * `says_why` is set, the first request logs a failed preallocation once, at any log level. */
    int hushed, says_why;
    /* Set if the first request preallocates, instead of the creation; fixed after creation. */
    int preallocates_later;
    int has_own_limit; /* set if the program has set options.limit for weir_allocator_create */
};

/* Returns the size of the largest request that would surely have succeeded instead of the failed request.  Returns 0 if
 * the stream was being captured. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused);

/* Joins the shared registry of the device, as weir__process_peers_join() does.  On failure logs the reason and returns
 * NULL. */
struct weir_process_peers *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                                struct weir_claim *claim, int log);

/* Returns the claim that an allocator with these complete options makes in the shared registry: its priority, and its
 * weight for shares of the device's memory. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* Asks other processes for memory, after the device had too little memory for a context.  Returns 1 if another process
 * has freed memory or may have freed memory.  The caller then repeats its driver call.  Returns 0 otherwise.  `n` may
 * be NULL. */
int weir__allocator_admit(struct weir_process_peers *n, struct weir_admission *admission);
/* Writes a text that names the processes which have memory of the device, and gives advice to the user. */
void weir__allocator_not_admitted(struct weir_process_peers *n, char *text, size_t bytes);

/* Bits for the parameter `how` of weir__allocator_create(). */
enum {
    /* The allocator's memory must allow hardware decompression. */
    WEIR_CREATE_DECOMPRESSES = 1,
    WEIR_CREATE_PREALLOCATES_LATER = 2 /* the first request preallocates, not the creation */
};

/* Creates an allocator as weir_allocator_create does.  `how` is a combination of WEIR_CREATE_ bits. */
weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator);

/* Sets options->engine to mapped, if the options name no engine and the device can map memory.  Allocates no memory. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator as weir_allocator_create does, but on the driver table `driver`.  options.device counts only for
 * the number of the device.  On an error writes the mistake and the correct form to `message`.  If `message` is NULL
 * with 0 bytes, writes both to the log. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* Creates an allocator as weir__allocator_create_on() does.  The allocator preallocates at its first request. */
weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes);

/* Checks whether weir__allocator_create_on() would accept these settings on the device.  Retains the device's primary
 * context during the call.  On success sets *prealloc to the bytes that a creation would preallocate.  If the driver
 * fails (weir__driver_result), the settings may still be correct. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* Logs one line about an invalid call.  If `a` is NULL, logs nothing, because the allocator has the log level.  Sets
 * the thread's last driver result to 0, and returns `status`. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* weir__alloc_default and weir__free_default allocate and free a block on a default stream of the device's primary
 * context, as weir_alloc and weir_free do (request.c).  The caller passes the stream's id, so that the functions need
 * not query the id.  The caller must have bound the stream, and `block` must not be NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* Writes a text as weir_ipc_make does, for `most` bytes at most from `address` on.  These bytes may lie in several
 * adjacent blocks. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* Reads the statistics as weir_stats does, but without checks of the arguments (figures.c). */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* weir__apart writes the range of addresses in which only weir__alloc_apart places blocks.  Returns 1 on success, 0 if
 * the engine has no such range (streamless.c).  weir__alloc_apart allocates whole pages of 2 MiB, as weir_alloc_any
 * does.  The block begins at the address `at` or, for WEIR_ENGINE_FAR, far from all blocks.  The call fails at once if
 * the addresses are in use.  weir_free_any frees the block. */
int weir__apart(const weir_allocator *a, struct weir_extent *addresses);
weir_status weir__alloc_apart(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block.  The caller has observed that the block's last use on each stream has completed.  If caches are on,
 * the block can serve any stream at once.  If they are off, the function frees the block on the allocator's own stream,
 * which runs no work. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* Destroys the allocator's own stream, which weir_alloc_any uses.  The caller has closed the engine before. */
void weir__anywhere_close(weir_allocator *a);

/* Checks a call of the program.  Returns WEIR_OK if the call may go on.  Returns WEIR_E_INVALID if `good` is 0, or
 * WEIR_E_FORKED in a child of fork(). */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
