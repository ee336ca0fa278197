/* SPDX-License-Identifier: MIT */
/* turns.pml: processes that preallocate shares of what is free take turns (lib/reserve/goal.c,
 * lib/ipc/process_lock.c).
 *
 * Two processes of one user.  Each may wait for the other to end its preallocation, not longer than it wants to;
 * under the lock it takes half of what is free then, in two steps, and gives the lock back.  It may fork a child
 * meanwhile, which has the open file too and lives on; and it may die at any time, which closes its own.
 * flock(2): the lock is the open file's, until it is unlocked or the last who has it closes it.
 *
 * Holds: who did not give up waiting is beside nobody who did not; if nobody did, each has half of what is
 * free as it begins; and nobody is waited for who has ended, unless a child of one that died has the file.
 *
 * Mistakes to be found: SEEN_BEFORE (the share is that of when the wait began); CLOSED_ALONE (the file is closed
 * and not unlocked); NO_LOCK. */
#define DEVICE 8

byte left = DEVICE;
byte holder;               /* the open file that has the lock: of process 1 or 2; 0: none */
byte files[3];             /* who has the open file of process n */
byte at_work;              /* who have looked and not ended, and did not give up */
byte ended;                /* of process n, as bits */
byte orphans;              /* children of those that died, as bits */
bool hurried;              /* somebody gave up waiting */

inline close_file() {
    files[me]--;
    if
    :: files[me] == 0 && holder == me -> holder = 0
    :: else
    fi
}

inline give() {
    d_step {
#ifndef CLOSED_ALONE
        if
        :: holder == me -> holder = 0
        :: else
        fi;
#endif
        close_file();
        ended = ended | 1 << me;
        at_work = at_work - !alone
    }
}

proctype process(byte me) {
    byte share;
    bool alone, may_fork = true;

    files[me] = 1;
#ifdef SEEN_BEFORE
    share = left / 2;
#endif
    do
#ifdef NO_LOCK
    :: true -> break
#else
    :: atomic { holder == 0 -> holder = me; break }
#endif
    :: atomic {
           holder != 0 -> /* it will not wait any longer */
           assert(!(ended >> holder & 1) || orphans >> holder & 1);
           alone = true;
           hurried = true;
           break
       }
    od;
    atomic {
#ifndef SEEN_BEFORE
        share = left / 2;
#endif
        if
        :: !alone ->
            at_work++;
            assert(at_work == 1)
        :: else
        fi
    }
    atomic { assert(hurried || share <= left / 2); left = left - (share - share / 2) }
    if
    :: atomic { may_fork -> files[me]++; may_fork = false }
    :: true
    fi;
    if
    :: atomic { left = left - share / 2 }
        give()
    :: d_step { /* it dies */
           orphans = orphans | (may_fork -> 0 : 1 << me);
           close_file();
           ended = ended | 1 << me;
           at_work = at_work - !alone
       }
    fi
}

init {
    atomic {
        run process(1);
        run process(2)
    }
}
