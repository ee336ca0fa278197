/* SPDX-License-Identifier: MIT */
/* allocator_internal.h: the structure of an allocator, for the files of the public functions; and its creation on a
 * given driver table, for tests and the program.
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
    struct weir_harden *harden; /* NULL: off */
    struct weir_learn *learn;   /* NULL: off; fixed after creation */
    const struct weir_creation *creation; /* NULL once the allocator is created */
    weir_options options;         /* complete; fixed after creation, like `reserve` */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number; /* the allocator's number, unique in the process; an address may be reused */
    uint64_t run_id;        /* the run's id in a profile: the time at which it began */
    uint64_t free_at_first; /* free memory of the device when the allocator was created */
    uint64_t threshold;     /* reserved bytes that stay although they are idle */
    uint64_t prealloc;      /* bytes to preallocate */
    uint64_t profile_asked; /* the part of `prealloc` that the profile asked for: all or 0 */
    uint64_t prealloc_min;  /* bytes that must be preallocated */
    uint64_t low, high;     /* bytes of background growth, or 0 */
    /* The bytes above a lowered limit that could not be freed, and the number of calls at that time.  Only the thread
     * that resizes uses both. */
    uint64_t stayed, stayed_after;
    struct weir_local_peer local_peer;
    struct weir_claim claim; /* the allocator's claim on the device */
    _Atomic(CUstream) quiet; /* a stream without work; NULL before its first use */
    /* Reports that weir made by itself, and a bit for each cause that was reported. */
    _Atomic unsigned oom_reports, causes_told;
    atomic_int decay_told; /* set once a log line said that weir_decay has no effect */
    pthread_mutex_t first; /* held by the first request while it preallocates */
    /* Set before the first request.  With `hushed` failures are not logged.  With `says_why` the first request logs
     * once that it cannot preallocate, whatever the log level is. */
    int hushed, says_why;
    int preallocates_later; /* set if the first request preallocates; fixed after creation */
    int has_own_limit; /* set if the caller of weir_allocator_create set options.limit */
};

/* Returns the bytes of the largest request that would surely succeed instead of the failed request, or 0 for a stream
 * that was being captured. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_failed_request *refused);

/* Joins as weir__process_peers_join does, for the process's allocators.  Logs the reason if that fails. */
struct weir_process_peers *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                                struct weir_claim *claim, int log);

/* Returns the claim on the device of an allocator with these options, which must be complete. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* Asks other processes for memory after the device had no room for a context.  Returns 1 if a process freed memory or
 * may have, so that the caller shall call the driver again; else 0.  `n` may be NULL. */
int weir__allocator_admit(struct weir_process_peers *n, struct weir_admission *admission);
/* Writes a text with the processes that have the memory, and advice. */
void weir__allocator_not_admitted(struct weir_process_peers *n, char *text, size_t bytes);

/* Bits of the parameter `how` of a creation. */
enum {
    WEIR_CREATE_DECOMPRESSES = 1,      /* the memory must allow hardware decompression */
    WEIR_CREATE_PREALLOCATES_LATER = 2 /* the first request preallocates, not the creation */
};

/* Creates an allocator as weir_allocator_create does. */
weir_status weir__allocator_create(const weir_options *options, unsigned how,
                                   weir_allocator **allocator);

/* Sets options->engine to mapped if the options name no engine and the device can map memory.  Allocates nothing to
 * find out. */
void weir__default_engine_fill(const struct weir_driver *driver, CUdevice device,
                               weir_options *options);

/* Creates an allocator as weir_allocator_create does, on `driver`; only the number in options.device is used then.  On
 * an error writes the mistake and the right form to `message`, or to the log if `message` is NULL with 0 bytes. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* Creates an allocator as weir__allocator_create_on does.  Its first request preallocates. */
weir_status weir__allocator_create_later(const struct weir_driver *driver,
                                         const weir_options *options, weir_allocator **allocator,
                                         char *message, size_t message_bytes);

/* Checks the settings on that device as weir__allocator_create_on would, as far as this is possible with a context for
 * the time of the call.  On success sets *prealloc to the bytes that would be preallocated.  If the driver fails (see
 * weir__driver_result), the result says nothing about the settings. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* Logs one line about an invalid call, if there is an allocator and therefore a log.  Returns the status, and clears
 * the driver's result. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* request.c: allocate and free on a default stream of the device's own context, as weir_alloc and weir_free do.  The
 * caller knows the stream's id, so the driver is not called for it.  The stream is bound, and `block` is not NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* Makes a text as weir_ipc_make does for at most `most` bytes from the address on, which may lie in several adjacent
 * blocks. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* figures.c: reads the statistics as weir_stats returns them, without its checks. */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* streamless.c: sets *addresses to those where only weir__alloc_apart places blocks, and returns 1; returns 0 if there
 * are none.  weir__alloc_apart allocates whole pages of 2 MiB like weir_alloc_any, at `at` or, with WEIR_ENGINE_FAR,
 * far from all blocks.  It fails at once if memory is in use there.  weir_free_any frees the block. */
int weir__apart(const weir_allocator *a, struct weir_extent *addresses);
weir_status weir__alloc_apart(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block after the host has observed that its last use on each stream is over.  With caches the block can serve
 * any stream at once.  Without caches it is freed on the allocator's own stream, which runs no work. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* Destroys the stream that weir_alloc_any uses, after the engine. */
void weir__anywhere_close(weir_allocator *a);

/* Checks a call of the program.  Returns OK, E_INVALID if its arguments are not `good`, or E_FORKED in a child of
 * fork. */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
