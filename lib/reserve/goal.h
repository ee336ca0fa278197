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
#include "ipc/turn_lock.h"

struct weir_request;
struct weir_reserve;

struct weir_decay {
    /* The end of the current window.  All times here count from the creation of the allocator. */
    _Atomic uint64_t ends;
    _Atomic uint64_t last; /* the time of the last request that reached the engine */
    _Atomic uint64_t peak; /* the largest number of bytes in use during this window */
    _Atomic int grew;      /* set if a request made reserved memory grow in this window */
    /* Guards the next two fields; a thread that holds the lock calls nothing. */
    struct weir_lock lock;
    /* The reserved bytes that one byte in use needs, as learned from earlier windows; 0 before the first window. */
    double each;
    uint64_t aim; /* the reserved bytes that should remain after the next release */
};

/* The state of memory pressure, which comes from signals of weir_low_memory and from a release threshold. */
struct weir_pressure {
    /* The bytes that signals request weir to release: 0 if there is no signal, UINT64_MAX for all idle memory. */
    _Atomic uint64_t wanted;
    _Atomic uint64_t due;   /* the time of the next check, or 0 if a check is due now */
    _Atomic uint64_t grown; /* the value of growth_ns() at the last release */
    /* Set while a request makes a check.  Other requests then make no check, and only the checking request uses
     * `pause'. */
    atomic_int is_looking;
    uint64_t pause; /* the time between the next check and the check after it */
};

/* The preallocation of an allocator.  Only one thread at a time uses this struct. */
struct weir_preallocation {
    /* weir tries to reserve `target' bytes, and fails below `least' bytes. */
    uint64_t target, least;
    struct weir_process_lock lock;
};

struct weir_ahead {
    int is_on; /* 1 if grow-ahead is on; constant */

    /* A request wakes the thread if fewer idle bytes than `mark' remain after the request. */
    _Atomic uint64_t mark;

    /* A thread holds `turning' during a turn, which is one check of the idle bytes and at most one step of growth.
     * `turning' guards the next four fields. */
    pthread_mutex_t turning;
    /* A turn grows the reserved memory by one step if fewer bytes than `low' are idle.  0 if grow-ahead makes no more
     * steps. */
    uint64_t low;
    /* Set while turns raise the idle bytes from below `low' to goal.idle. */
    int raising;
    uint64_t back_off_ns; /* the pause after the next step that fails */
    /* On the device model, the time of the next turn, or 0 if no turn is planned. */
    uint64_t due_ticks;

    pthread_mutex_t lock; /* guards the next three fields */
    pthread_cond_t woken; /* signalled after a thread has set `told' or `stopped' */
    int told, stopped;

    pthread_t thread;
};

struct weir_goal {
    uint64_t half_life_ns; /* the half-life of decay, or 0 if there is no decay; constant */
    int in_requests;       /* 1 if the engine can release memory without a wait; constant */
    /* 1 if idle memory above the floor should go back at once, since the release threshold is finite; constant. */
    int has_threshold;
    uint64_t idle; /* the number of idle bytes that grow-ahead aims at; constant */
    /* The reserved bytes below which weir releases no memory.  Accesses are sequentially consistent, so that all
     * threads see the changes in one order. */
    _Atomic uint64_t floor;
    struct weir_decay decay;
    struct weir_pressure pressure;
    struct weir_preallocation preallocation;
    struct weir_ahead ahead;
};

/* ---- lowering ---- */

void weir__goal_open(struct weir_goal *g, uint64_t half_life_ns, uint64_t floor, int in_requests,
                     uint64_t idle);
/* Returns the reserved memory that stays if weir should release `wanted' bytes.  The result is never below the goal. */
uint64_t weir__goal_target(const struct weir_goal *g, uint64_t reserved, uint64_t in_use,
                           uint64_t wanted);
/* Flushes the layers above the engine, and releases idle memory until at most `keep` bytes are reserved.  Sets
 * *released to the number of released bytes.  May wait for the device. */
weir_status weir__goal_lower(struct weir_reserve *v, size_t keep, int cause, size_t *released);
/* Releases the idle memory that decay, a signal of memory pressure or a release threshold wants back.  Called after
 * a request that the engine has served.  Does nothing while another request makes this check. */
void weir__goal_lower_in_request(struct weir_reserve *v, const struct weir_request *r);

/* Completes frees without a wait, and releases idle memory above the floor.  Called for an allocator with a release
 * threshold, without a stream.  Returns the number of released bytes. */
size_t weir__goal_settle(struct weir_reserve *v);

/* Records the bytes in use after a request at the time `now', and sets *pause to the time between this request and
 * the request before it.  Returns 1 if the current window is over, else 0. */
int weir__goal_record_use(struct weir_goal *g, uint64_t now, uint64_t in_use, uint64_t *pause);
/* Ends the windows that are over.  Returns the number of reserved bytes to keep.  `pause' is the time between the
 * last two requests.  weir_decay passes 0, since it ends windows even after a pause. */
uint64_t weir__goal_end_window(struct weir_goal *g, uint64_t now, uint64_t in_use,
                               uint64_t reserved, uint64_t pause);

/* Signals memory pressure: the next requests release idle memory of `bytes' bytes in all. */
void weir__goal_signal(struct weir_goal *g, uint64_t bytes);
/* Lowers a signal from `wanted' bytes to `rest' bytes, unless another thread has changed the signal. */
void weir__goal_want_less(struct weir_goal *g, uint64_t wanted, uint64_t rest);

/* ---- raising ---- */

/* Reserves the memory of the preallocation, as far as the device has enough.  Returns OK if at least `least' bytes,
 * and more than 0 bytes, are reserved.  On an error, writes the reason to `text'. */
weir_status weir__goal_preallocate(struct weir_reserve *v, char *text, size_t text_bytes);
/* Logs that only `reserved' of the requested `asked' bytes are reserved, and why.  `apart' is the part of the device
 * that a share leaves to other processes.  Any thread may call this function. */
void weir__goal_log_preallocation(const struct weir_reserve *v, uint64_t asked, uint64_t reserved,
                                  uint64_t apart);

/* Grows the reserved memory until `low' bytes are idle, if the device has the memory, and starts the thread of
 * grow-ahead.  Whenever fewer than `low' bytes are idle, the thread grows the reserved memory until goal.idle bytes
 * are idle.  The engine is open and has a step size.  Returns OK, or E_HOST_MEMORY if no thread can start;
 * grow-ahead is then off. */
weir_status weir__goal_start(struct weir_reserve *v, uint64_t low);
/* Ends the thread of grow-ahead after its current step, and releases the lock of preallocations. */
void weir__goal_close(struct weir_reserve *v);
/* Waits until the thread of grow-ahead has finished its current step.  No other step begins before weir__goal_go_on. */
void weir__goal_hold(struct weir_reserve *v);
void weir__goal_go_on(struct weir_reserve *v);
/* Wakes the thread of grow-ahead if few bytes are idle, after a request that the engine has served.  The caller does
 * not hold the engine's lock. */
void weir__goal_wake_ahead(struct weir_reserve *v);
/* Makes the steps that the thread of grow-ahead would have made by now, if grow-ahead is on and the device is the
 * device model. */
void weir__goal_catch_up(struct weir_reserve *v);

#endif
