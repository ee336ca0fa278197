/* SPDX-License-Identifier: MIT */
/* ledger.pml: which file processes find that come and go, and who removes it (lib/ledger.c).
 *
 * A file has the name, or none has; who finds none there makes one, and of two that do it at once one gets the name.
 * A slot is a lock on a byte of the file, tried and never waited for, which ends with its process.  Processes come, look
 * whether the file that they opened still has the name, claim a slot, look once more, stay, and leave; with KILLED one of
 * them may be killed wherever it holds something.  Then somebody looks, as the program does.
 *
 * Holds: as long as a process stays its file has the name, so that all that stay are in one; in the end there is no
 * file, unless a process was killed, and then none once somebody has looked.
 *
 * Mistakes to be found: ONE_LOOK (not after the claim); BY_NAME (who finds that its file has lost the name removes what
 * has it by then); SLOT_KEPT (who leaves keeps its slot while it looks for others); ONE_BY_ONE (and looks at slots
 * rather than locking them). */
#define PROCESSES 3
#define VISITS 2
#define FILES 8

byte name;                         /* of the files, numbered from 1, who has it; 0: none */
byte made;                         /* so many files */
byte at_[FILES * PROCESSES];       /* whose lock is on that slot of that file, by numbers from 1 */
byte stays[PROCESSES];             /* in which file */
byte ended;
bool was_killed;

#ifdef KILLED
#define MAY_DIE (me <= PROCESSES && !was_killed)
#else
#define MAY_DIE false
#endif
#define AT(file, slot) at_[((file) - 1) * PROCESSES + (slot)]

inline give_up() { /* all locks, as at the end of a process */
    atomic {
        i = 0;
        do
        :: i < FILES * PROCESSES ->
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
        :: i < PROCESSES ->
            got = got && (AT(file, i) == 0 || AT(file, i) == me);
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: got && i < PROCESSES ->
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
    :: i < PROCESSES ->
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

inline leave() {
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
    if
    :: got -> unname()
    :: else
    fi;
    give_up()
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
                got = false;
                i = 0;
                do
                :: i < PROCESSES && !got ->
                    atomic {
                        if
                        :: AT(file, i) == 0 ->
                            AT(file, i) = me;
                            got = true
                        :: else
                        fi;
                        i++
                    }
                :: else -> break
                od;
                i = 0;
#ifndef ONE_LOOK
                got = got && name == file;
#endif
                if
                :: got -> break
                :: else -> give_up()
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
    byte me = _pid + 1, file, i, visits;
    bool got;

    do
    :: visits < VISITS ->
        come();
        stays[_pid] = file;
        visits++;
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
        stays[_pid] = 0
    }
    give_up();
end:
    file = 0;
    ended++
}

active proctype watcher() {
    do
    :: atomic { stays[0] != 0 && stays[0] != name -> assert(false) }
    :: atomic { stays[1] != 0 && stays[1] != name -> assert(false) }
    :: atomic { stays[2] != 0 && stays[2] != name -> assert(false) }
    :: ended == PROCESSES -> break
    od
}

/* Opens the file without a slot, and leaves it, once all have ended. */
active proctype looker() {
    byte me = _pid + 1, file, i;
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
