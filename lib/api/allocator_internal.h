/* SPDX-License-Identifier: MIT */
/* allocator_internal.h: what an allocator is made of, for the files of the public functions; and making one on
 * a given driver table, for tests and the program.
 */
#ifndef WEIR_ALLOCATOR_INTERNAL_H
#define WEIR_ALLOCATOR_INTERNAL_H

#include <weir/allocator.h>

#include "api/export.h"
#include "api/profile_use.h"
#include "base/counters.h"
#include "base/lock.h"
#include "base/result.h"
#include "cache/caches.h"
#include "cache/guard.h"
#include "driver/driver.h"
#include "config/amount.h"
#include "engine/stream_uses.h"
#include "ipc/local_peers.h"
#include "ipc/process_peers.h"
#include "reserve/prealloc.h"
#include "reserve/reserve.h"

struct weir_allocator {
    struct weir_caches *caches; /* NULL: off */
    struct weir_device device;
    struct weir_harden *harden;       /* NULL: off */
    struct weir_learn *learn;         /* NULL: off; fixed after create */
    struct weir_lifetimes *lifetimes; /* recorded for the profile's plan; NULL: off; likewise */
    struct weir_planned *planned;     /* what it places by; NULL: nothing; likewise */
    struct weir_exports *exports;     /* NULL: off; likewise */
    weir_options options;             /* completed; likewise, as are */
    struct weir_reserve reserve;
    struct weir_counters counters;
    struct weir_uses uses;
    uint64_t number;        /* no other of the process has it or had it; an address comes again */
    uint64_t free_at_first; /* on the device, as it was made */
    uint64_t threshold;     /* bytes of idle memory kept at a synchronisation */
    uint64_t prealloc;      /* bytes to preallocate, */
    uint64_t profile_asked; /* of these, what the profile asked for, all or nothing, */
    uint64_t prealloc_min;  /* and to get */
    uint64_t low, high;     /* bytes of grow-ahead; 0: none */
    uint64_t stayed,
        stayed_after; /* above a limit that fell, after so many calls; who resizes has them */
    struct weir_preallocation preallocation;
    struct weir_local_peer local_peer;
    struct weir_claim claim; /* of other processes on the device */
    _Atomic(CUstream) quiet; /* runs nothing; NULL until weir_alloc_any or weir_free_any */
    _Atomic unsigned oom_reports, causes_told; /* looked at unasked; bits of WEIR_VERDICT_ */
    atomic_int decay_told;                     /* that weir_decay has nothing to do here */
    pthread_mutex_t first; /* held by the request that does what PREALLOC stands for */
    /* Set before the first request: failures are told elsewhere, not in the log; that it cannot preallocate for the first
     * request is said once, whatever the log is. */
    int hushed, says_why;
    int has_own_limit; /* options.limit is set by the caller of weir_allocator_create */
};

/* Bytes of the largest request that would surely be served where that one was refused; 0 of a stream that was
 * being captured. */
uint64_t weir__allocator_largest(weir_allocator *a, const struct weir_refused *refused);

/* As weir__process_peers_join, for the process's allocators; why there is none is in the log. */
struct weir_process_peers *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                                struct weir_claim *claim, int log);

/* What an allocator with these options, which are complete, counts for among all on its device. */
struct weir_claim weir__allocator_claim(const weir_options *options);

/* The device had no room for a context: others are asked for it.  1: the driver is to be asked again, since somebody
 * gave or may have; 0: it is not.  NULL: nobody is known of. */
int weir__allocator_admit(struct weir_process_peers *n, struct weir_admission *admission);
/* Who has the memory, and what would have helped. */
void weir__allocator_not_admitted(struct weir_process_peers *n, char *text, size_t bytes);

/* weir_allocator_create; on an error `message' says why, if weir does, and the log then does not.  `decompresses': its
 * memory is made for hardware decompression, too. */
weir_status weir__allocator_create(const weir_options *options, int decompresses,
                                   weir_allocator **allocator, char *message, size_t message_bytes);

/* The same on `driver', of the engine that the options name, or the pool's. */
weir_status weir__engine_allocator_create(const struct weir_driver *driver,
                                          const weir_options *options, int decompresses,
                                          weir_allocator **allocator, char *message,
                                          size_t message_bytes);

/* weir_allocator_create on `driver` (options.device then counts for its ordinal alone).  On an error
 * `message` (NUL-terminated; may be NULL with 0 bytes, and then the log) says what was wrong and what would be
 * right. */
weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes);

/* What weir__allocator_create_on says of these settings on that device, as far as nothing need be taken from it but
 * a context for the time of the call; and on success in *prealloc what it would preallocate.  Where the driver refuses
 * (weir__driver_result tells), nothing is known. */
weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes);

/* A call that cannot be: one line about it, if there is an allocator and so a log, and that status, in which the driver
 * had no part. */
weir_status weir__allocator_misuse(const weir_allocator *a, weir_status status, const char *what,
                                   const char *why);

/* 1 if a live block starts there, as far as it can be told. */
int weir__allocator_is_live(const weir_allocator *a, CUdeviceptr block);

/* request.c: weir_alloc and weir_free on a default stream of the device's own context, whose id the caller knows: no
 * question to the driver tells which stream the handle means.  The stream is bound, and block is not NULL. */
weir_status weir__alloc_default(weir_allocator *a, size_t bytes, weir_stream stream, uint64_t id,
                                void **block);
/* weir_ipc_make of so many bytes from the address on, which may lie in several blocks side by side. */
weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset);
weir_status weir__free_default(weir_allocator *a, void *block, weir_stream stream, uint64_t id);

/* figures.c: what weir_stats hands out, where nothing stands against it. */
void weir__stats_read(weir_allocator *a, weir_statistics *out);

/* streamless.c: as weir_alloc_any, at that address or far from all blocks (WEIR_ENGINE_FAR), among those that
 * weir__apart names (0: there are none), which no other requests have.  It is refused without waiting where something
 * lies.  Whole pages of 2 MiB; weir_free_any frees it. */
int weir__apart(const weir_allocator *a, struct weir_extent *addresses);
weir_status weir__alloc_apart(weir_allocator *a, size_t bytes, uint64_t at, void **block);
/* Frees a block whose last use is over on every stream, as the host has observed.  It serves any stream at once where there
 * are caches; else it is freed on the allocator's own stream, which runs nothing. */
weir_status weir__free_completed(weir_allocator *a, void *block);
/* The stream that it made goes, after the engine. */
void weir__anywhere_close(weir_allocator *a);

/* What a call of the program's asks first: OK; E_INVALID, where its arguments are not `good'; E_FORKED. */
static inline weir_status weir__call_check(int good) {
    if (!good)
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

#endif
