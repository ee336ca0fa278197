/* SPDX-License-Identifier: MIT */
/* goal.h: decides how much memory should be reserved, and raises and lowers the reserved memory (doc/design.md,
 * "Reserved memory over time").
 *
 * The goal is the memory in use plus the idle memory that background growth (grow-ahead) keeps, and at least the floor:
 * preallocated memory and a finite release threshold.
 *
 * weir_decay, and requests that no per-stream cache serves, release memory for three reasons.  The program has not
 * needed the memory for a half-life (decay), or the program has called weir_low_memory (pressure), or the release
 * threshold is finite (threshold).  A request releases memory without a wait.
 */
#ifndef WEIR_GOAL_H
#define WEIR_GOAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>

#include "base/lock.h"

struct weir_request;
struct weir_reserve;

/* Decay, the release of unneeded memory.  Times in this file are nanoseconds since the creation of the allocator. */
struct weir_decay {
    _Atomic uint64_t ends; /* the end of the current window, which lasts for one half-life */
    _Atomic uint64_t last; /* the time of the last request that the caches could not serve */
    _Atomic uint64_t peak; /* the largest number of bytes in use in the current window */
    _Atomic int grew; /* set if reserved memory has grown for a request in the current window */
    struct weir_lock lock; /* guards the next two fields; its holder calls no other function */
    double reserved_per_used; /* reserved bytes needed per byte in use; 0 in the first half-life */
    uint64_t target; /* the reserved bytes that decay keeps */
};

/* The state of memory release for weir_low_memory or for a finite release threshold. */
struct weir_pressure {
    /* The bytes that weir_low_memory still wants weir to release: 0 for none, UINT64_MAX for all idle memory. */
    _Atomic uint64_t wanted;
    _Atomic uint64_t due; /* the time of the next check for memory to release, or 0 for at once */
    _Atomic uint64_t old_growth; /* the nanoseconds that all growth before the last release took */
    /* Set while a request checks whether to release memory, so that no second request checks.  Guards `pause'. */
    atomic_int is_release_running;
    uint64_t pause; /* the time between two checks, which doubles */
};

struct weir_ahead {
    int is_on; /* 1 if background growth (grow-ahead) is on; constant */

    /* A request that leaves fewer than `mark' bytes idle wakes the thread of background growth. */
    _Atomic uint64_t mark;

    pthread_mutex_t step_lock; /* held during a step of growth; guards the next four fields */
    /* Growth begins if fewer than `low' bytes are idle.  `low' is 0 after background growth has stopped for good. */
    uint64_t low;
    int raising;          /* set from the beginning of growth until goal.idle bytes are idle */
    uint64_t back_off_ns; /* the pause after the next step that fails */
    uint64_t due_ticks;   /* on the simulated GPU, the time of the next step, or 0 for none */

    pthread_mutex_t lock; /* guards the next three fields */
    pthread_cond_t woken; /* signalled after `wake_requested' or `stopped' was set */
    int wake_requested, stopped;

    pthread_t thread;
};

/* The settings and the state that decide how much memory is reserved.  The first four fields are constant. */
struct weir_goal {
    uint64_t half_life_ns; /* the half-life of decay, or 0 for no decay */
    int in_requests;   /* 1 if requests release memory, since the engine can do so without a wait */
    int has_threshold; /* 1 if the release threshold is finite */
    uint64_t idle;     /* the idle bytes up to which background growth grows */
    /* The reserved bytes below which weir releases no memory.  Changes are sequentially consistent, so that all threads
     * see changes of the floor and of limit.least_floor in one order. */
    _Atomic uint64_t floor;
    struct weir_decay decay;
    struct weir_pressure pressure;
    /* The preallocation tries to reserve `prealloc_target' bytes, and fails with fewer than `prealloc_least' bytes.
     * Only one thread at a time uses these fields. */
    uint64_t prealloc_target, prealloc_least;
    struct weir_ahead ahead;
};

/* ---- lowering ---- */

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle);
/* Returns the bytes to keep reserved: `reserved' - `wanted', but at least `in_use' + g->idle, and at least g->floor. */
uint64_t weir__goal_target(const struct weir_goal *g, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted);
/* Flushes the caches and the guard (guard.h), and trims reserved memory to `keep' bytes.  May wait for the device. */
weir_status weir__goal_lower(struct weir_reserve *v, size_t keep, int cause, size_t *released);
/* Releases idle memory, without a wait, if decay, weir_low_memory or the release threshold requires a release. */
void weir__goal_lower_in_request(struct weir_reserve *v, const struct weir_request *r);

/* Releases idle memory above goal.floor, without a wait, for weir_decay.  Returns the number of released bytes. */
size_t weir__goal_release_surplus(struct weir_reserve *v);

/* Records the bytes in use, and sets *pause to the time since the last request.  Returns 1 if a half-life has ended. */
int weir__goal_record_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Applies decay for the half-lives that have ended, and returns the reserved bytes to keep.  `pause' is the time
 * between the last two requests, or 0 in weir_decay.  After a pause longer than a half-life, decay keeps all memory. */
uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause);

/* Makes the next requests release `bytes' bytes of idle memory, for weir_low_memory.  Takes no lock. */
void weir__goal_signal(struct weir_goal *g, uint64_t bytes);
/* Sets pressure.wanted, the bytes to release for weir_low_memory, to `rest' if pressure.wanted is still `wanted'. */
void weir__goal_lower_signal(struct weir_goal *g, uint64_t wanted, uint64_t rest);

/* ---- raising ---- */

/* Reserves the preallocated memory, or a part of it.  Returns OK if at least prealloc_min bytes, and more than 0 bytes,
 * are reserved.  On an error, writes the reason to `text'. */
weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes);
/* Logs that the preallocation has reserved only `reserved' of `asked' bytes.  `share_margin' is the memory that a
 * preallocation by a share leaves free, else 0.  Any thread may call this function. */
void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t share_margin);

/* Grows until `low' bytes are idle, and starts the thread of background growth.  The engine must be open and have a
 * step size.  Returns OK, or E_HOST_MEMORY if no thread can start; background growth is then off. */
weir_status weir__goal_start_ahead(struct weir_reserve *v, uint64_t low);
/* Ends the thread of background growth (grow-ahead) after its current step. */
void weir__goal_close(struct weir_reserve *v);
/* Waits for the end of the current step of background growth.  No step begins before weir__goal_resume_ahead. */
void weir__goal_pause_ahead(struct weir_reserve *v);
void weir__goal_resume_ahead(struct weir_reserve *v);
/* Wakes the thread of background growth if too few bytes are idle.  The caller must not hold the engine's lock. */
void weir__goal_wake_ahead(struct weir_reserve *v);
/* On the simulated GPU, starts background growth if `begins' is set, and then makes all steps that are due. */
void weir__goal_run_due_steps(struct weir_reserve *v, int begins);

#endif
