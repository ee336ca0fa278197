/* SPDX-License-Identifier: MIT */
/* ahead.pml: growth ahead of demand by a thread (lib/reserve/goal.c), beside requests, until the allocator
 * is destroyed or the process ends (lib/api/create.c), in units of reserved memory.
 *
 * Two threads allocate and free.  A request may find that idle memory is of no use, and grow although there is some;
 * the idle memory counts nevertheless.
 * When all blocks are freed the allocator is destroyed, before or after the process begins to exit, or never; then the
 * driver goes.  A child may be forked at any time, and ends.  Growth of an engine that places blocks itself is one step
 * (under its lock).  With POOL a step holds the idle memory as probe blocks, with `growing`, and requests call the
 * driver beside it.  With DEAF the driver does not report what a pool has, so that no step can be made.
 *
 * Holds: when the thread rests and no request is under way, enough memory is idle; the reserved memory never exceeds
 * the limit; a request fails only if all memory within the limit is in use; destruction finds no block where none is,
 * ends the thread, and nothing touches the allocator after it; no step is made after the driver has gone; neither a
 * thread nor a forked child waits for ever.
 *
 * Mistakes to be found: ARM_LATE (the thread arms the mark after it has looked); TOLD_LATE (the thread clears
 * `wake_requested` after its turn); NO_LOCK (`wake_requested` is set without the lock); ONE_TRY (a request that fails
 * does not wait for the step) and NO_HOLD (destruction looks beside a step), with POOL; NO_JOIN; NOT_SIGNALLED (the
 * thread is not woken to end); NO_STEPPING (a turn does not look whether the process ends); CHILD_EXITS (a child runs
 * what its parent had for its exit). */
#define LOW 1
#define HIGH 2
#define LIMIT 3

byte reserve, in_use, probing;
bit growing;
/* the thread's */
byte mark = LOW;
bit step_lock, process_step_lock, lock_;
bool wake_requested, stopped, exiting;
bool asleep;               /* until the signal */
#ifdef DEAF
bool is_deaf;              /* steps have been given up */
#else
#define is_deaf false
#endif
/* what is true */
byte under_way, done;
bool ended, destroyed, gone;

#define LESS(a, b) ((a) > (b) -> (a) - (b) : 0)
#define LOWER(a, b) ((a) < (b) -> (a) : (b))
#define IDLE LESS(reserve, in_use)
#define FREE LESS(reserve, in_use + probing)

inline take(which) {
    atomic { which == 0 -> which = 1 }
}

inline give(which) {
    which = 0
}

/* ---- the thread ---- */

inline grow_to(target) {
    assert(!gone && !destroyed);
#ifdef DEAF
    skip;
#else
#ifdef POOL
    take(growing);
    atomic { probing = FREE }
    do
    :: atomic { reserve < LOWER(target, LIMIT) -> reserve++; probing++ }
    :: atomic { reserve >= LOWER(target, LIMIT) -> probing = 0; break }
    od;
    give(growing);
#else
    atomic {
        if
        :: reserve < LOWER(target, LIMIT) -> reserve = LOWER(target, LIMIT)
        :: else
        fi
    }
#endif
    assert(reserve <= LIMIT);
#endif
}

/* `pauses`: for a time; else it rests. */
inline take_turn() {
    pauses = false;
    mark = 0;
    if
    :: is_deaf
    :: else ->
#ifndef ARM_LATE
        mark = LOW;
#endif
        atomic { idle = IDLE; target = reserve + 1 }
#ifdef ARM_LATE
        mark = LOW;
#endif
        raising = idle < (raising -> HIGH : LOW);
        if
        :: raising ->
            mark = 0;
            pauses = true;
            if
            :: target <= LIMIT ->
                grow_to(target);
#ifdef DEAF
                is_deaf = true;
                pauses = false
#endif
            :: else
            fi
        :: else
        fi
    fi;
    d_step { idle = 0; target = 0 }
}

proctype thread() {
    byte idle, target;
    bool pauses, raising;

    take(lock_);
    do
    :: stopped -> break
    :: else ->
#ifndef TOLD_LATE
        wake_requested = false;
#endif
        give(lock_);
        take(step_lock);
        take(process_step_lock);
        if
#ifndef NO_STEPPING
        :: exiting -> pauses = false
#endif
        :: else -> take_turn()
        fi;
        atomic { give(process_step_lock); give(step_lock) }
        take(lock_);
#ifdef TOLD_LATE
        wake_requested = false;
#endif
        do
        :: stopped || wake_requested || pauses -> break
        :: else ->
            atomic { asleep = true; give(lock_) }
end:        !asleep;
            take(lock_)
        od;
        if
        :: pauses && !stopped -> /* the time will pass */
            give(lock_);
            take(lock_)
        :: else
        fi
    od;
    give(lock_);
    assert(!destroyed);
    ended = true
}

inline tell() {
#ifdef NO_LOCK
    wake_requested = true;
    asleep = false
#else
    take(lock_);
    wake_requested = true;
    asleep = false;
    give(lock_)
#endif
}

/* ---- requests ---- */

/* One unit, for which the reserve may have to grow. */
inline alloc_from_engine() {
    atomic {
        got = true;
        if
        :: FREE > 0 -> in_use++
        :: reserve < LIMIT -> reserve++; in_use++ /* what was idle is of no use */
        :: FREE == 0 && reserve >= LIMIT -> got = false; used_up = in_use >= LIMIT
        fi;
        assert(reserve <= LIMIT)
    }
}

inline allocate() {
    alloc_from_engine();
#if defined(POOL) && !defined(ONE_TRY)
    if
    :: !got -> take(growing); alloc_from_engine(); give(growing) /* a trim, and once more */
    :: else
    fi;
#endif
    assert(got || used_up);
    mine = mine + got
}

inline wake() {
    atomic { before = mark; mark = 0 }
    if
    :: before != 0 -> tell()
    :: else
    fi
}

inline check() {
    armed = mark;
    atomic { idle = IDLE }
    if
    :: idle < armed -> wake()
    :: else
    fi;
    d_step { armed = 0; idle = 0; before = 0; got = false; used_up = false }
}

proctype requester(byte left) {
    byte mine, idle, armed, before;
    bool got, used_up;

    do
    :: atomic { left > 0 -> left--; under_way++ }
        allocate();
        check();
        under_way--
    :: atomic { mine > 0 -> mine--; in_use-- }
    :: left == 0 && mine == 0 -> break
    od;
    done++
}

/* ---- the end ---- */

inline destroy() {
#ifndef NO_HOLD
    take(step_lock);
#endif
    assert(in_use + probing == 0);
#ifndef NO_HOLD
    give(step_lock);
#endif
    take(lock_);
    stopped = true;
#ifndef NOT_SIGNALLED
    asleep = false;
#endif
    give(lock_);
#ifndef NO_JOIN
    ended;
#endif
    destroyed = true
}

inline end_process() {
    take(process_step_lock);
    exiting = true;
    give(process_step_lock)
}

proctype program() {
    done == 2;
    if
    :: destroy(); end_process()
    :: end_process(); destroy()
    :: end_process()
    fi;
    gone = true
}

/* At any time; it has no thread, and what its parent's held it holds for ever. */
proctype child() {
#ifdef CHILD_EXITS
    bit process_step_lock_then;

    process_step_lock_then = process_step_lock;
    process_step_lock_then == 0
#else
    skip /* public calls end where they begin */
#endif
}

proctype watcher() {
end:
    do
    :: atomic {
           asleep && under_way == 0 && !stopped && !exiting ->
           assert(is_deaf || IDLE >= LOW)
       }
    od
}

init {
    atomic {
        run thread();
        run requester(2);
        run requester(1);
        run program();
        run watcher()
#ifdef CHILD_EXITS
        ;run child()
#endif
    }
}
