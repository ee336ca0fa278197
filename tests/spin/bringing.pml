/* SPDX-License-Identifier: MIT */
/* bringing.pml: a mapped arena grows without its lock (lib/engine/mapped.c: lock_growth,
 * map_without_lock, weir__mapped_await), in units of reserve.
 *
 * Two threads grow it to a target, as two that preallocate, a driver's call between two steps under the lock, which
 * may fail.  Beside them a request finds a unit idle, or waits for what comes and looks again, or grows by one
 * itself; and access changes, for all that is mapped.
 *
 * Holds: the reserve never exceeds the limit; what was asked for beforehand is there in the end, unless the driver
 * refused it, and no more, but for a request that had waited; whoever may reach the arena reaches all of it; nobody
 * waits for ever, and nobody is in the driver with the lock.
 *
 * Mistakes to be found: UNCOUNTED (what comes is no part of the reserve); STALE (what is missing is not looked at again after
 * the wait for another's step); INSIDE (a step is waited for with the lock held); NO_WAIT (a request grows beside
 * what comes); BESIDE (access changes while a handle comes). */
#define TARGET 2
#define LIMIT 3

#define LESS(a, b) ((a) > (b) -> (a) - (b) : 0)

byte mapped, kept, in_use; /* units: there, coming, in blocks */
byte epoch, behind;        /* of access; units that have not the latest */
bit lock_, bringing;
byte done;
bool refused, waited, grew;

inline take(which) {
    atomic { which == 0 -> which = 1 }
}

inline give(which) {
    which = 0
}

/* From under the lock to under both. */
inline begin_bringing() {
#ifdef INSIDE
    take(bringing)
#else
    give(lock_);
    take(bringing);
    take(lock_)
#endif
}

proctype grower() {
    byte missing, seen;

    take(lock_);
    missing = LESS(TARGET, mapped + kept);
    begin_bringing();
#ifndef STALE
    missing = LESS(TARGET, mapped + kept);
#endif
    do
    :: missing > 0 && mapped + kept < LIMIT ->
        missing--;
#ifndef UNCOUNTED
        kept++;
#endif
        give(lock_);
        seen = epoch;
        take(lock_);
#ifndef UNCOUNTED
        kept--;
#endif
        if
        :: d_step {
            mapped++;
            behind = behind + (seen != epoch)
        }
        :: refused = true; missing = 0
        fi;
        assert(mapped + kept <= LIMIT)
    :: else -> break
    od;
    give(bringing);
    give(lock_);
    done++
}

proctype request() {
    take(lock_);
    if
    :: mapped == in_use && kept > 0 ->
#ifndef NO_WAIT
        begin_bringing();
        give(bringing);
        waited = true
#endif
    :: else
    fi;
    if
    :: mapped > in_use -> in_use++
    :: mapped == in_use && mapped + kept < LIMIT ->
        grew = kept > 0;
        mapped++;
        in_use++
    :: else
    fi;
    assert(mapped + kept <= LIMIT);
    give(lock_);
    done++
}

proctype allow() {
    take(lock_);
#ifndef BESIDE
    begin_bringing();
#endif
    d_step {
        epoch++;
        behind = 0
    }
#ifndef BESIDE
    give(bringing);
#endif
    give(lock_);
    done++
}

init {
    atomic {
        run grower();
        run grower();
        run request();
        run allow()
    }
    done == 4;
    assert(kept == 0 && behind == 0);
    assert(mapped >= TARGET || refused);
    assert(mapped <= TARGET || waited);
    assert(!grew || waited)
}
