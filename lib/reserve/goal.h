/* SPDX-License-Identifier: MIT */
/* goal.h: decides how much memory should be reserved now (the goal), and raises and lowers the reserved memory.
 *
 * The goal is the memory in use plus the idle memory that grow-ahead keeps.  The goal is never below the floor,
 * which is the preallocated memory and a finite release threshold.
 *
 * Raising.  Preallocation reserves memory at once; the processes of a user preallocate one after the other.
 * Grow-ahead is a thread of an allocator that grows the reserved memory in small steps when little memory is idle.
 *
 * Lowering.  After each request that reaches the engine, weir checks whether idle memory should go back to the
 * device, and releases such memory without a wait.  A hit of a per-stream cache checks nothing.  weir_decay makes
 * the checks, too.  weir__goal_lower releases memory at once, and may wait for the device.
 *
 * Decay.  Time is divided into windows of one half-life.  After each window, weir computes the need: the reserved
 * memory that the program needed in the window.  If reserved memory grew in the window, the need is all reserved
 * memory.  Otherwise the need is the peak of the memory in use, times the reserved bytes that each byte in use
 * needed in earlier windows.  At the end of a window, weir releases half of the memory above the need and the floor,
 * or all of it if it is at most 64 MiB.  So a program that reaches its peak once in each half-life keeps its memory.
 * A request after a pause of more than a half-life begins a new window and releases nothing, since the program is
 * about to use the memory again.  weir releases only whole regions or physical allocations.  If each of them is
 * larger than the amount to release, the amount grows with the next windows.
 *
 * Pressure.  weir_low_memory raises a signal: it writes two words, takes no lock, and requests that weir release a
 * number of bytes.  If one release is too small, later requests release more, after pauses that double.  The signal
 * ends after a second.  weir_decay may wait, and answers the signal at once by a trim.
 *
 * Threshold.  A finite release threshold works like a signal that never ends and wants all idle memory.  After
 * growth, requests keep the memory for 16 times as long as all growth since the last release took.  So a program
 * that needs the memory again and again spends at most a 16th of its time on growth.  weir_decay releases the memory
 * at once.
 *
 * This file must not depend on a particular engine, on names of settings, on caches or on the public API.
 */
#ifndef WEIR_GOAL_H
#define WEIR_GOAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>

#include "base/lock.h"
#include "ipc/process_lock.h"

struct weir_request;
struct weir_reserve;

struct weir_decay {
    /* The end of the current window of decay.  All times in this file are nanoseconds since the creation of the
     * allocator. */
    _Atomic uint64_t ends;
    _Atomic uint64_t last; /* the time of the last request that the caches could not serve */
    _Atomic uint64_t peak; /* the largest number of bytes in use in the current window */
    _Atomic int grew; /* set if reserved memory has grown for a request in the current window */
    /* Guards `each` and `aim`.  A thread that holds the lock calls nothing. */
    struct weir_lock lock;
    /* The reserved bytes that the program needs for one byte in use, learned from earlier windows.  0 before the first
     * window. */
    double each;
    /* the reserved bytes that should remain after decay has released memory at the end of a window */
    uint64_t aim;
};

/* The state of memory pressure: weir should release memory because the program called weir_low_memory, or because the
 * release threshold is finite. */
struct weir_pressure {
    /* The number of bytes that weir_low_memory wants weir to release: 0 for none, UINT64_MAX for all idle memory. */
    _Atomic uint64_t wanted;
    _Atomic uint64_t due; /* when to check next whether to release memory, or 0 to check at once */
    _Atomic uint64_t grown; /* the time that growth had taken in all until the last release */
    /* Set while a request checks whether to release memory.  Other requests then skip the check, and only this request
     * uses `pause'. */
    atomic_int is_looking;
    uint64_t pause; /* the time between the next check and the one after it; it doubles */
};

/* The preallocation: memory that is reserved when the allocator is created.  Only one thread at a time uses this
 * struct. */
struct weir_preallocation {
    /* weir tries to reserve `target' bytes.  The preallocation fails if fewer than `least' bytes can be reserved. */
    uint64_t target, least;
    struct weir_process_lock lock;
};

struct weir_ahead {
    int is_on; /* 1 if grow-ahead is on; constant */

    /* A request wakes the thread of grow-ahead if fewer idle bytes than `mark' remain after the request. */
    _Atomic uint64_t mark;

    /* A thread holds `turning' for one check of the idle bytes and at most one step of growth, called a turn.  The
     * lock guards the next four fields. */
    pthread_mutex_t turning;
    /* If fewer bytes than `low' are idle, a turn grows the reserved memory by one step.  0 after grow-ahead has
     * stopped for good. */
    uint64_t low;
    /* Set while the idle memory is being raised: turns go on after `low' bytes are idle, until goal.idle bytes are
     * idle. */
    int raising;
    uint64_t back_off_ns; /* the pause after the next step of growth that fails */
    /* The time of the next turn on the device model, which has no thread of grow-ahead; 0 if no turn is planned. */
    uint64_t due_ticks;

    pthread_mutex_t lock; /* guards the fields `woken', `told' and `stopped' */
    pthread_cond_t woken; /* signalled after `told' (wake up) or `stopped' (exit) was set */
    int told, stopped;

    pthread_t thread;
};

struct weir_goal {
    uint64_t half_life_ns; /* the half-life of decay, or 0 for no decay; constant */
    /* 1 if the engine can release memory without a wait, so that requests can release memory; constant */
    int in_requests;
    /* 1 if the release threshold is finite, so that idle memory above the floor should be released at once; constant.
     * */
    int has_threshold;
    uint64_t idle; /* the number of idle bytes up to which grow-ahead grows; constant */
    /* weir releases no memory below this number of reserved bytes.  Accesses are sequentially consistent, so that all
     * threads see changes of this field and of the limit in one order. */
    _Atomic uint64_t floor;
    struct weir_decay decay;
    struct weir_pressure pressure;
    struct weir_preallocation preallocation;
    struct weir_ahead ahead;
};

/* ---- lowering ---- */

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle);
/* Returns the number of reserved bytes to keep if weir should release `wanted' bytes.  Never returns less than the
 * goal: the memory in use plus idle memory for grow-ahead, or the floor if it is larger. */
uint64_t weir__goal_target(const struct weir_goal *g, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted);
/* Flushes the per-stream caches and the guard to the engine, and releases idle memory until at most `keep` bytes are
 * reserved.  Sets *released to the number of released bytes.  `cause' is the reason (WEIR_EVENT_...), for the
 * allocator's list of events.  May wait for the device. */
weir_status weir__goal_lower(struct weir_reserve *v, size_t keep, int cause, size_t *released);
/* Releases idle memory, without a wait, if decay, a call of weir_low_memory or the release threshold requires this.
 * Called after each request that the engine has served.  Does nothing while another request makes this check. */
void weir__goal_lower_in_request(struct weir_reserve *v, const struct weir_request *r);

/* Queries pending frees and releases idle memory above the floor, both without a wait.  weir_decay calls this function
 * for an allocator with a finite release threshold.  Returns the number of released bytes. */
size_t weir__goal_settle(struct weir_reserve *v);

/* Records the bytes in use after a request at the time `now', and sets *pause to the time between this request and the
 * request before it.  Returns 1 if the current window is over, else 0. */
int weir__goal_record_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Ends the windows of decay that are over at the time `now'.  Returns the number of reserved bytes to keep.  `pause'
 * is the time between the last two requests: after a long pause nothing is released, since the program is about to use
 * the memory again.  weir_decay passes 0, so that memory is released in any case. */
uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause);

/* Records that the program wants `bytes' bytes back (weir_low_memory).  The next requests release idle memory until
 * they have released this number. */
void weir__goal_signal(struct weir_goal *g, uint64_t bytes);
/* Lowers the number of bytes that the program wants back from `wanted' to `rest', unless another thread has changed
 * it. */
void weir__goal_want_less(struct weir_goal *g, uint64_t wanted, uint64_t rest);

/* ---- raising ---- */

/* Reserves the preallocated memory when an allocator is created, as far as the device has enough.  Returns OK if at
 * least prealloc_min bytes, and more than 0, are reserved.  On an error, writes the reason to `text'. */
weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes);
/* Logs that the preallocation has reserved only `reserved' of `asked' bytes, and why.  If the preallocation is a share
 * of the device, `apart' is the number of bytes that shares leave free.  Any thread may call this function. */
void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t apart);

/* Starts grow-ahead: grows the reserved memory until `low' bytes are idle, and starts the thread.  Whenever fewer than
 * `low' bytes are idle, the thread grows the reserved memory until goal.idle bytes are idle.  The engine must be open
 * and have a step size.  Returns OK, or E_HOST_MEMORY if no thread can start; grow-ahead is then off. */
weir_status weir__goal_start(struct weir_reserve *v, uint64_t low);
/* Ends the thread of grow-ahead after its current step, and closes the lock by which processes preallocate one after
 * the other. */
void weir__goal_close(struct weir_reserve *v);
/* Waits until the thread of grow-ahead has finished its current step.  No other step begins before weir__goal_go_on.
 * */
void weir__goal_hold(struct weir_reserve *v);
void weir__goal_go_on(struct weir_reserve *v);
/* Wakes the thread of grow-ahead if too few bytes are idle.  Called after each request that the engine has served.
 * The caller must not hold the engine's lock. */
void weir__goal_wake_ahead(struct weir_reserve *v);
/* Makes all steps of grow-ahead that are due on the device model, whose time is virtual and where grow-ahead has no
 * thread.  Does nothing on a real device. */
void weir__goal_catch_up(struct weir_reserve *v);

#endif
