/* SPDX-License-Identifier: MIT */
/* bias.pml: the biased lock (lib/cache/biased_lock.h, lib/cache/biased_lock.c) on processors that delay stores.
 *
 * Each thread takes and releases the lock again and again, as a user or as a guest.  Each thread has a store buffer,
 * as on x86: other threads see its stores later, in order, and the thread itself loads its latest store.  A locked
 * instruction waits until the thread's own buffer is empty.  A membarrier empties the buffers of all threads, one
 * after the other.  The model lets the lock become biased to a user after any number of acquisitions, which includes
 * every number that the code may choose.
 *
 * The model proves four properties.  No two threads hold the lock.  A thread that holds the lock sees what the last
 * holder wrote.  The lock never becomes biased to a guest.  A thread that revokes the bias gets the lock (`revoked`).
 *
 * Mistakes to be found: NO_MEMBARRIER; NO_SECOND_LOOK (the owner does not look again after `busy`);
 * SHARED_BUSY (one word for all owners: one that comes too late clears another's); LEAVE_EARLY (`busy`
 * falls before what was written inside); STUCK (an owner that comes too late leaves `busy` as it is),
 * against `revoked`. */
#ifndef THREADS
#define THREADS 2
#endif

#define OWNER 0
#define LOCK 1
#define DATA 2
#ifdef SHARED_BUSY
#define BUSY(who) 3
#else
#define BUSY(who) (2 + (who))
#endif
#define VARIABLES (3 + THREADS)
#define AT(who, what) ((who) * VARIABLES + (what))

byte memory[VARIABLES];
chan buffer[THREADS + 1] = [4] of { byte, byte };   /* thread 0 is nobody */
byte delayed[(THREADS + 1) * VARIABLES];            /* stores on their way */
byte latest[(THREADS + 1) * VARIABLES];             /* of these */

byte inside;                    /* threads */
bit written;                    /* what DATA must be */
bool revoking[THREADS + 1];

#define LOAD(what) (delayed[AT(me, what)] -> latest[AT(me, what)] : memory[what])

inline store(what, value) {
    atomic {
        nfull(buffer[me]);
        buffer[me]!what, value;
        delayed[AT(me, what)]++;
        latest[AT(me, what)] = value
    }
}

inline arrive(who) {
    d_step {
        buffer[who]?what, value;
        memory[what] = value;
        delayed[AT(who, what)]--;
        latest[AT(who, what)] = (delayed[AT(who, what)] -> latest[AT(who, what)] : 0);
        what = 0;
        value = 0
    }
}

inline empty_buffer(who) {
    atomic {
        do
        :: nempty(buffer[who]) -> arrive(who)
        :: empty(buffer[who]) -> break
        od
    }
}

/* Stores arrive when they like. */
proctype processor(byte who) {
    byte what, value;

end:
    do
    :: arrive(who)
    od
}

inline be_inside() {
    inside++;
    assert(inside == 1);
    assert(LOAD(DATA) == written);
    written = !written;
#ifndef LEAVE_EARLY
    store(DATA, written);
#endif
    inside--
}

inline give(what) {
    store(what, 0);
#ifdef LEAVE_EARLY
    store(DATA, written)
#endif
}

inline take_away() {
    revoking[me] = true;
    store(OWNER, 0);
#ifndef NO_MEMBARRIER
    empty_buffer(me); /* the caller's comes first, and what it wrote is seen before the others' are empty */
    for (other : 1 .. THREADS) {
        empty_buffer(other)
    }
    other = 0;
#endif
    LOAD(BUSY(owner)) == 0;
    revoking[me] = false
}

proctype thread(byte me) {
    byte what, value, other, owner;
    bool user;

again:
end:
    atomic {
        if
        :: user = true
        :: user = false
        fi
    }
    /* weir__bias_try */
    if
    :: LOAD(OWNER) != me -> goto slow
    :: else
    fi;
    store(BUSY(me), 1);
#ifndef NO_SECOND_LOOK
    if
    :: LOAD(OWNER) == me -> skip
    :: else ->
#ifndef STUCK
        store(BUSY(me), 0);
#endif
        goto slow
    fi;
#endif
    be_inside();
    give(BUSY(me));
    goto again;

slow: /* weir__bias_take_slow */
    atomic { empty(buffer[me]) && memory[LOCK] == 0 -> memory[LOCK] = 1 }
    owner = LOAD(OWNER);
    assert(owner != me);
    if
    :: owner != 0 -> take_away()
    :: else
    fi;
    owner = 0;
    if
    :: user -> store(OWNER, me) /* it has come often enough */
    :: true
    fi;
    be_inside();
    give(LOCK);
    goto again
}

init {
    byte i;

    atomic {
        for (i : 1 .. THREADS) {
            run processor(i);
            run thread(i)
        }
        i = 0
    }
}

ltl revoked { [] (revoking[1] -> <> !revoking[1]) }
