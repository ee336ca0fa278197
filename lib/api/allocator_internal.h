/* SPDX-License-Identifier: MIT */
/* allocator_internal.h: the structure of an allocator, for the files that define the public functions.  It also
 * declares functions by which tests and the program `weir` create allocators on a given table of driver functions.
 */
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
    struct weir_caches *caches; /* NULL: off */
    struct weir_device device;
    struct weir_harden *harden;           /* NULL: off */
    struct weir_learn *learn;             /* NULL without a profile; fixed after creation */
    const struct weir_creation *creation; /* NULL once the allocator is created */
    weir_options options;                 /* the completed options; fixed after creation */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number;        /* the allocator's number, which is unique in the process */
    uint64_t run_id;        /* the id of this run in a profile: the time of its start */
    uint64_t free_at_first; /* free memory of the device when the allocator was created */
    uint64_t threshold;     /* the reserved bytes that stay even if they are idle */
    uint64_t prealloc;      /* the bytes to preallocate */
    uint64_t profile_asked; /* `prealloc` if the profile set the preallocation, else 0 */
    uint64_t prealloc_min;  /* the bytes that must be preallocated for a success */
    uint64_t low, high;     /* the least and the most idle bytes of grow-ahead, or 0 */
    /* `stayed` is the number of bytes above a lowered limit that could not be freed, and `stayed_after` the number of
     * calls at that time.  Only the thread that adapts shares uses these fields. */
    uint64_t stayed, stayed_after;
    struct weir_local_peer local_peer;
    struct weir_claim claim; /* the allocator's claim on the device */
    _Atomic(CUstream) quiet; /* a stream without work; NULL before its first use */
    /* The number of OOM reports that weir has made by itself, and a bit for each cause in these reports. */
    _Atomic unsigned oom_reports, causes_told;
    atomic_int decay_told; /* set once weir has logged that weir_decay has no effect */
    pthread_mutex_t first; /* held by the first request while it preallocates */
    /* Both fields are set before the first request.  If `hushed` is set, weir does not log failures.  If `says_why` is
     * set, the first request logs a failed preallocation once, at any log level. */
    int hushed, says_why;
    int preallocates_later; /* set if the first request preallocates; fixed after creation */
    int has_own_limit;      /* set if the caller of weir_allocator_create set options.limit */
};

/* Returns the bytes of the largest request that would surely have succeeded in place of the failed request.  Returns 0
 * if the stream was being captured. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused);

/* Joins the shared registry of the device, as weir__process_peers_join does.  On failure logs the reason and returns
 * NULL. */
struct weir_process_peers *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                                struct weir_claim *claim, int log);

/* Returns the claim to device memory that an allocator with these options makes in the shared registry.  The options
 * must be complete. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* Asks other processes for memory after the device had no memory for a context.  Returns 1 if a process has freed
 * memory or may have freed memory, so that the caller is to call the driver again; else 0.  `n` may be NULL. */
int weir__allocator_admit(struct weir_process_peers *n, struct weir_admission *admission);
/* Writes a text that names the processes with memory of the device and gives advice. */
void weir__allocator_not_admitted(struct weir_process_peers *n, char *text, size_t bytes);

/* The bits of the parameter `how` of weir__allocator_create. */
enum {
    WEIR_CREATE_DECOMPRESSES = 1,      /* the memory must allow hardware decompression */
    WEIR_CREATE_PREALLOCATES_LATER = 2 /* the creation does not preallocate */
};

/* Creates an allocator as weir_allocator_create does.  `how` is a combination of the bits WEIR_CREATE_*. */
weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator);

/* Sets options->engine to mapped if the options name no engine and the device can map memory.  Allocates no memory. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator as weir_allocator_create does, on `driver`.  Uses only the number in options.device.  On an
 * error writes the mistake and the correct form to `message`, or to the log if `message` is NULL with 0 bytes. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* Creates an allocator as weir__allocator_create_on does.  Its first request preallocates. */
weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes);

/* Checks the settings on that device as weir__allocator_create_on would, with a context that exists only during the
 * call.  On success sets *prealloc to the bytes that a creation would preallocate.  If the driver fails (see
 * weir__driver_result), the result says nothing about the settings. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* Logs one line about an invalid call if `a` is not NULL, since the allocator has the log level.  Returns the status,
 * and clears the driver's result. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* weir__alloc_default and weir__free_default allocate and free on a default stream of the device's primary context, as
 * weir_alloc and weir_free do (request.c).  The caller passes the stream's id, so the functions do not query it.  The
 * stream must be bound, and `block` must not be NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* Makes a text as weir_ipc_make does, for up to `most` bytes from the address on.  These bytes may lie in several
 * adjacent blocks. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* Reads the statistics as weir_stats does, without the checks of weir_stats (figures.c). */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* weir__apart sets *addresses to the addresses at which only weir__alloc_apart places blocks, and returns 1, or returns
 * 0 if there are no such addresses (streamless.c).  weir__alloc_apart allocates whole pages of 2 MiB as weir_alloc_any
 * does, at the address `at` or, for WEIR_ENGINE_FAR, far from all blocks.  It fails at once if the addresses are in
 * use.  weir_free_any frees the block. */
int weir__apart(const weir_allocator *a, struct weir_extent *addresses);
weir_status weir__alloc_apart(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block after the host has observed that the block's last use on each stream has completed.  With caches the
 * block can serve any stream at once.  Without caches the block is freed on the allocator's own stream, which runs no
 * work. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* Destroys the stream that weir_alloc_any uses.  The caller has closed the engine before. */
void weir__anywhere_close(weir_allocator *a);

/* Checks a call of the program.  Returns WEIR_OK if the call may go on, WEIR_E_INVALID if `good` is 0, or WEIR_E_FORKED
 * in a child of fork. */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
