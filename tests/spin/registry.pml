/* SPDX-License-Identifier: MIT */
/* registry.pml: which file processes find that come and go, and who removes it (lib/ipc/slot_file.c).
 *
 * A file has the name, or none has; who finds none there makes one, and of two that do it at once one gets the name.
 * A slot is a lock on a byte of the file, tried and never waited for, which ends with its process; its entry does not.
 * Three processes come twice each, with KILLED two of them once, look whether the file that they opened still has the
 * name, claim a slot, look once more, write their entry, stay, and leave; with KILLED one of them may be killed wherever it
 * holds something, and is ending for a while.  So who claims a slot passes over that of who is ending, and lets it go
 * again if its owner began to end just before it was locked.  Then somebody looks, as the program does.  There are
 * three slots, or with FEW two, so that one may find none, or has to take that of who is ending.
 *
 * Holds: as long as a process stays its file has the name, so that all that stay are in one; the entry of one that is
 * ending is written over only by who has found all other slots taken, each at some time, and as long as it is there
 * its file has the name; who comes gets a slot, unless there are too few; in the end there is no file, unless a
 * process was killed, and then none once somebody has looked.
 *
 * Mistakes to be found: ONE_LOOK (not after the claim); BY_NAME (who finds that its file has lost the name removes what
 * has it by then); SLOT_KEPT (who leaves keeps its slot while it looks for others); ONE_BY_ONE (and looks at slots
 * rather than locking them); with KILLED: LOCK_ALONE (who has locked a slot does not look whether its owner is ending
 * by then), ANY_SLOT (nobody is passed over), ENDING_LOST (who is alone removes the name beside one that is ending). */
#define PROCESSES 3
#ifdef FEW
#define SLOTS 2
#else
#define SLOTS 3
#endif
#ifdef KILLED
#define VISITS (me == 1 -> 2 : 1)
#else
#define VISITS 2
#endif
#define FILES 8

byte name;                         /* of the files, numbered from 1, who has it; 0: none */
byte made;                         /* so many files */
byte at_[FILES * SLOTS];           /* whose lock is on that slot of that file, by numbers from 1 */
byte entry_[FILES * SLOTS];        /* whose entry stands there; 0: nobody's */
bool ending[PROCESSES + 1];        /* killed, and not gone yet; by numbers from 1 */
byte left_in, left_at;             /* the file and the slot with that one's entry; 0: it had none, or is gone */
byte stays[PROCESSES];             /* in which file */
byte ended;
bool was_killed;

#ifdef KILLED
#define MAY_DIE (me <= PROCESSES && !was_killed)
#else
#define MAY_DIE false
#endif
#define AT(file, slot) at_[((file) - 1) * SLOTS + (slot)]
#define ENTRY(file, slot) entry_[((file) - 1) * SLOTS + (slot)]
#define HAS_ENDING(file, slot) ending[ENTRY(file, slot)]

inline give_up() { /* all locks, as at the end of a process */
    atomic {
        i = 0;
        do
        :: i < FILES * SLOTS ->
            if
            :: at_[i] == me -> at_[i] = 0
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0
    }
}

/* 1: nobody else has a slot, and nobody gets one. */
inline lock_all() {
    atomic {
        got = true;
        i = 0;
        do
        :: i < SLOTS ->
            got = got && (AT(file, i) == 0 || AT(file, i) == me);
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: got && i < SLOTS ->
            AT(file, i) = me;
            i++
        :: else -> break
        od;
        i = 0
    }
}

inline look_at_each() {
    got = true;
    i = 0;
    do
    :: i < SLOTS ->
        atomic {
            got = got && (AT(file, i) == 0 || AT(file, i) == me);
            i++
        }
    :: else -> break
    od;
    i = 0
}

inline unname() {
    if
    :: name == file ->
        if
        :: name = 0
        :: MAY_DIE -> goto dead
        fi
    :: else
    fi
}

/* With all locks. */
inline look_for_ending() {
    atomic {
        i = 0;
        do
        :: i < SLOTS ->
            got = got && !HAS_ENDING(file, i);
            i++
        :: else -> break
        od;
        i = 0
    }
}

inline leave() {
    atomic {
        if
        :: slot < SLOTS ->
            ENTRY(file, slot) = 0;
            slot = SLOTS
        :: else
        fi
    };
#ifndef SLOT_KEPT
#ifndef ONE_BY_ONE
    give_up();
#endif
#endif
#ifdef ONE_BY_ONE
    look_at_each();
#else
    lock_all();
#endif
#ifndef ENDING_LOST
    if
    :: got -> look_for_ending()
    :: else
    fi;
#endif
    if
    :: got -> unname()
    :: else
    fi;
    give_up();
    got = false
}

/* `got': it has `slot'.  Nobody's: somebody has them all, or has had. */
inline claim() {
#ifdef ANY_SLOT
    all = true;
#endif
    do
    :: atomic {
            slot < SLOTS -> /* is it passed over? */
            if
            :: !all && AT(file, slot) == 0 && HAS_ENDING(file, slot) ->
                taken = taken | 1 << slot;
                slot++
            :: else -> tries = true
            fi
        };
        atomic {
            if
            :: tries && AT(file, slot) == 0 ->
                AT(file, slot) = me;
                got = true
            :: tries && AT(file, slot) != 0 ->
                taken = taken | 1 << slot;
                slot++
            :: else
            fi;
            tries = false
        };
        atomic {
            if
            :: got && MAY_DIE -> goto dead
#ifndef LOCK_ALONE
            :: got && !all && HAS_ENDING(file, slot) ->
                AT(file, slot) = 0; /* for a moment it kept others away */
                got = false;
                taken = taken | 1 << slot;
                slot++
            :: got && (all || !HAS_ENDING(file, slot)) ->
#else
            :: got ->
#endif
                assert(!HAS_ENDING(file, slot) || (taken | 1 << slot) == (1 << SLOTS) - 1);
                ENTRY(file, slot) = 0;
                break
            :: else
            fi
        }
    :: atomic {
            slot == SLOTS -> /* is it being removed? */
            i = 0;
            do
            :: i < SLOTS && AT(file, i) == AT(file, 0) -> i++
            :: else -> break
            od;
            if
            :: i == SLOTS -> break
            :: i < SLOTS && !all ->
                all = true;
                slot = 0;
                i = 0
            :: i < SLOTS && all ->
#ifndef FEW
                assert(false);
#endif
                break
            fi
        }
    od;
    atomic {
        i = 0;
        all = false;
        taken = 0
    }
}

/* Until it has a slot in a file that has the name. */
inline come() {
    do
    :: true ->
        file = name;
        if
        :: file == 0 ->
            atomic {
                if
                :: name == 0 ->
                    made++;
                    name = made
                :: else
                fi
            }
        :: else ->
            if
            :: name == file ->
                slot = 0;
                claim();
#ifndef ONE_LOOK
                got = got && name == file;
#endif
                if
                :: got -> break
                :: else ->
                    slot = SLOTS;
                    give_up()
                fi
            :: else ->
#ifdef BY_NAME
                name = 0;
#endif
                skip
            fi
        fi
    od
}

active [PROCESSES] proctype process() {
    byte me = _pid + 1, file, i, visits, taken, slot = SLOTS;
    bool got, all, tries;

    do
    :: visits < VISITS ->
        come();
        atomic {
            stays[_pid] = file;
            visits++;
            ENTRY(file, slot) = me
        };
        if
        :: skip
        :: MAY_DIE -> goto dead
        fi;
        stays[_pid] = 0;
        leave()
    :: else -> break
    od;
    goto end;
dead:
    atomic {
        was_killed = true;
        stays[_pid] = 0;
        ending[me] = true;
        if
        :: slot < SLOTS && ENTRY(file, slot) == me ->
            left_in = file;
            left_at = slot
        :: else
        fi
    }
    give_up();
    atomic {
        ending[me] = false;
        left_in = 0;
        left_at = 0
    };
end:
    file = 0;
    ended++
}

active proctype watcher() {
    do
    :: atomic { stays[0] != 0 && stays[0] != name -> assert(false) }
    :: atomic { stays[1] != 0 && stays[1] != name -> assert(false) }
    :: atomic { stays[2] != 0 && stays[2] != name -> assert(false) }
    :: atomic { left_in != 0 && left_in != name && HAS_ENDING(left_in, left_at) -> assert(false) }
    :: ended == PROCESSES -> break
    od
}

/* Opens the file without a slot, and leaves it, once all have ended. */
active proctype looker() {
    byte me = _pid + 1, file, i, slot = SLOTS;
    bool got;

    ended == PROCESSES;
    assert(was_killed || name == 0);
    file = name;
    if
    :: file != 0 -> leave()
    :: else
    fi;
dead:
    assert(name == 0)
}
