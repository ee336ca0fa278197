/* SPDX-License-Identifier: MIT */
/* goal.h: how much memory should be reserved now (the goal), and how weir raises and lowers the reserved memory.
 *
 * The goal is the memory in use plus the idle memory of grow-ahead, but at least the floor: the preallocated memory and
 * a finite release threshold.
 *
 * Raising.  Preallocation reserves memory at once, in one process after the other.  Grow-ahead is a thread of an
 * allocator, which grows in small steps when little memory is idle.
 *
 * Lowering.  After each request that the engine has served, but not after a hit of a cache, weir checks whether memory
 * should go back, and releases it without a wait.  weir_decay checks, too.  weir__goal_lower releases memory at once,
 * and may wait.
 *
 *   Decay      Time is divided into windows of one half-life.  A window in which reserved memory grew needed all of it;
 *              another one needed as much for each byte of its peak of memory in use as was enough before.  At its end
 *              weir releases half of the memory above the need and the floor, or all of it up to 64 MiB.  So a load that
 *              reaches its peak once in a half-life keeps its memory.  A request after a pause of more than a half-life
 *              begins a new window and releases nothing, since the load is about to return.  weir releases only whole
 *              regions or physical allocations.  If each is larger than the amount of decay, the amount grows with the
 *              next windows.
 *   Pressure   weir_low_memory raises a signal with a number of bytes, which writes two words and takes no lock.  If one
 *              release is too small, requests try again after pauses that double; after a second the signal ends.
 *              weir_decay may wait, and answers the signal at once by a trim.
 *   Threshold  A finite release threshold works like a signal for all idle memory that never ends.  After growth,
 *              requests keep the memory for 16 times as long as the growth since the last release took.  So a load that
 *              needs the memory again and again spends at most a 16th of its time on growth.  weir_decay releases the
 *              memory at once.
 *
 * This file must not know any single engine, settings' names, caches or the caller for memory.
 */
#ifndef WEIR_GOAL_H
#define WEIR_GOAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>

#include "base/lock.h"
#include "ipc/turn_lock.h"

struct weir_request;
struct weir_reserve;

struct weir_decay {
    _Atomic uint64_t ends; /* the end of the window; times count from the allocator's creation */
    _Atomic uint64_t last; /* the time of the last request that the engine served */
    _Atomic uint64_t peak; /* the most bytes in use in this window */
    _Atomic int grew;      /* set if reserved memory grew for a request in this window */
    struct weir_lock lock; /* guards the next fields; a thread with the lock calls nothing */
    double each;           /* the reserved bytes that were enough for a byte in use; 0 at first */
    uint64_t aim;          /* the reserved memory that should remain */
};

/* The state of memory pressure: of signals, and of a release threshold. */
struct weir_pressure {
    /* The bytes that signals request: 0 without a signal, UINT64_MAX for all idle memory. */
    _Atomic uint64_t wanted;
    _Atomic uint64_t due;   /* the time of the next check, or 0 for now */
    _Atomic uint64_t grown; /* growth's total nanoseconds at the last release */
    atomic_int is_looking;  /* set while a request checks; only that request uses `pause` */
    uint64_t pause;         /* the pause after the next check */
};

/* The preallocation of an allocator.  One thread at a time uses it. */
struct weir_preallocation {
    uint64_t target, least; /* the reserved bytes that are wanted, and that are needed */
    struct weir_process_lock lock;
};

struct weir_ahead {
    int is_on; /* set if there is grow-ahead; fixed */

    _Atomic uint64_t mark; /* a request that leaves fewer bytes idle wakes the thread */

    pthread_mutex_t turning; /* held during a turn; guards the next fields */
    uint64_t low;            /* a step is due below this many idle bytes; 0 for no steps */
    int raising;             /* set while idle bytes grow from below `low' to the goal */
    uint64_t back_off_ns;    /* the pause after the next failure */
    uint64_t due_ticks;      /* on the device model: the time of the next turn, or 0 */

    pthread_mutex_t lock; /* guards the next fields */
    pthread_cond_t woken; /* signalled when `told' or `stopped' is set */
    int told, stopped;

    pthread_t thread;
};

struct weir_goal {
    uint64_t half_life_ns;  /* the half-life of decay, or 0; fixed */
    int in_requests;        /* set if the engine can release memory without a wait; fixed */
    int has_threshold;      /* set if idle memory above the floor goes back at once; fixed */
    uint64_t idle;          /* the most bytes that grow-ahead keeps idle; fixed */
    _Atomic uint64_t floor; /* all threads see changes of the floor in one order */
    struct weir_decay decay;
    struct weir_pressure pressure;
    struct weir_preallocation preallocation;
    struct weir_ahead ahead;
};

/* ---- lowering ---- */

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle);
/* Returns the reserved memory that stays if `wanted' bytes should go: at least the goal. */
uint64_t weir__goal_target(const struct weir_goal *g, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted);
/* Flushes the layers above the engine, and releases idle memory until at most `keep` bytes are reserved.  Sets *released
 * to the bytes.  May wait for the device. */
weir_status weir__goal_lower(struct weir_reserve *v, size_t keep, int cause, size_t *released);
/* After a request that the engine has served, releases memory that should go back by decay, a signal of memory pressure
 * or a release threshold, unless another request does so now. */
void weir__goal_lower_in_request(struct weir_reserve *v, const struct weir_request *r);

/* Completes frees without a wait, and releases idle memory above the floor, for an allocator with a release threshold.
 * Called without a stream.  Returns the released bytes. */
size_t weir__goal_settle(struct weir_reserve *v);

/* Records the bytes in use after a request at the time `now', and sets *pause to the time since the last request.
 * Returns 1 if the window is over, else 0. */
int weir__goal_record_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Ends the windows that are over.  Returns the reserved memory to keep.  `pause' is the time since the last request, or
 * 0 in weir_decay, which ignores pauses. */
uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause);

/* Raises the signal of memory pressure. */
void weir__goal_signal(struct weir_goal *g, uint64_t bytes);
/* Lowers a signal of `wanted' bytes to `rest' bytes, unless another thread has changed the signal. */
void weir__goal_want_less(struct weir_goal *g, uint64_t wanted, uint64_t rest);

/* ---- raising ---- */

/* Reserves the target of the preallocation as far as the device has the memory.  Returns OK if at least `least' bytes,
 * and more than 0, are reserved.  On an error `text' has the reason. */
weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes);
/* Logs that only `reserved' of `asked' bytes are reserved, and why.  `apart' is the part of the device that a share
 * leaves to other processes.  Any thread may call this function. */
void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t apart);

/* Grows the reserved memory until `low' bytes are idle, if the device has the memory, and starts the thread of
 * grow-ahead.  When fewer than `low' bytes are idle, the thread grows until `idle' bytes of the goal are.  The engine
 * of `v' is open and has a step.  Returns OK, or E_HOST_MEMORY if there is no thread; then there is no grow-ahead. */
weir_status weir__goal_start(struct weir_reserve *v, uint64_t low);
/* Ends the thread after its current step, and releases the lock of preallocations. */
void weir__goal_close(struct weir_reserve *v);
/* Waits for the current step of the thread.  No other step begins until weir__goal_go_on. */
void weir__goal_hold(struct weir_reserve *v);
void weir__goal_go_on(struct weir_reserve *v);
/* Wakes the thread if few bytes are idle, after a request that the engine has served.  The caller does not hold the
 * engine's lock. */
void weir__goal_wake_ahead(struct weir_reserve *v);
/* With grow-ahead on the device model, makes the steps that the thread would have made by now. */
void weir__goal_catch_up(struct weir_reserve *v);

#endif
