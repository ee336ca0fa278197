/* SPDX-License-Identifier: MIT */
/* group.pml: which file the members of a group count in, who removes it, and what follows if somebody else does
 * (lib/ipc/slot_file.c, lib/ipc/group.c).
 *
 * A file has the name, or none has.  A process that finds none makes one; if two make one at once, one of the files gets
 * the name.  A member holds the file's lock for reading, which is tried and never waited for, and looks at the name
 * after it has the lock.  Two processes come twice, and one once; with REMOVED all come once.  Each counts twice, and
 * leaves.  A process that leaves gives up the lock, and then tries it for writing: if it has the lock, it removes the
 * name.  With REMOVED somebody else removes the name once, at any time; so a process that removes the name may remove
 * that of a newer file.  A member looks at the name before it counts; if its file has lost the name, it joins again,
 * gives up the old lock, and counts in the new file what it has.
 *
 * Holds: without REMOVED the file of a member has the name.  With REMOVED this holds once each member has counted since.
 * Then the count is what the members have.  In the end there is no file.
 *
 * Mistakes to be found: ONE_LOOK (a process does not look at the name after it has the lock), LOCK_KEPT (a process that
 * leaves keeps its lock for reading while it tries that for writing), BESIDE (a process that leaves removes the name
 * beside others); with REMOVED: NO_LOOK (a member does not look before it counts), FORGETFUL (a member does not count
 * again what it has). */
#define PROCESSES 3
#ifdef REMOVED
#define VISITS 1
#else
#define VISITS (_pid == 0 -> 1 : 2)
#endif
#define FILES 12

byte name;            /* the file that has the name, numbered from 1; 0: none */
byte made;            /* how many files there were */
byte readers[FILES];  /* of the lock of each file */
bool writer[FILES];
byte count[FILES];
byte in_[PROCESSES];  /* the file that a member is in; 0: it is none */
byte has[PROCESSES];  /* what it has */
byte removals;        /* how often the name of a file was removed that others may be in */
byte seen[PROCESSES]; /* how often that was when a member, which has counted since, looked at the name */
byte ended;

/* Until this process has the lock of a file that has the name. */
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
            atomic {
                got = !writer[file];
                readers[file] = readers[file] + (got -> 1 : 0)
            };
#ifndef ONE_LOOK
            if
            :: atomic {
                    got && name != file ->
                    got = false;
                    readers[file]--
                }
            :: atomic { got && name == file -> look = removals }
            :: !got
            fi;
#endif
            if
            :: got -> break
            :: else
            fi
        fi
    od
}

inline add_one() {
    atomic {
        file = in_[_pid];
        got = name == file;
        look = removals
    };
#ifndef NO_LOOK
    if
    :: !got ->
        old = file;
        come();
        readers[old]--;
        atomic {
            in_[_pid] = file;
#ifndef FORGETFUL
            count[file] = count[file] + has[_pid]
#endif
        }
    :: else
    fi;
#endif
    atomic {
        count[file]++;
        has[_pid]++;
        seen[_pid] = look;
        look = 0;
        old = 0
    }
}

inline leave() {
    atomic {
        count[file] = (count[file] > has[_pid] -> count[file] - has[_pid] : 0);
        has[_pid] = 0;
        in_[_pid] = 0
    };
#ifdef LOCK_KEPT
    atomic {
        got = readers[file] == 1 && !writer[file];
        writer[file] = writer[file] || got
    };
#else
    readers[file]--;
    atomic {
#ifdef BESIDE
        got = !writer[file];
#else
        got = readers[file] == 0 && !writer[file];
#endif
        writer[file] = writer[file] || got
    };
#endif
    if
    :: got ->
        if
        :: name == file ->
            atomic { /* another file may have got the name since the look */
                removals = removals + (name == file -> 0 : 1);
                name = 0
            }
        :: else
        fi;
        writer[file] = false
    :: else
    fi;
#ifdef LOCK_KEPT
    readers[file]--;
#endif
    got = false
}

active [PROCESSES] proctype process() {
    byte file, old, look, visits;
    bool got;

    do
    :: visits < VISITS ->
        come();
        atomic {
            in_[_pid] = file;
            seen[_pid] = look;
            look = 0;
            visits++
        };
        add_one();
        add_one();
        leave()
    :: else -> break
    od;
    file = 0;
    ended++
}

#ifdef REMOVED
active proctype remover() {
    atomic {
        name = 0;
        removals++
    }
}
#endif

#define AT_HOME(p) (in_[p] == 0 || in_[p] == name)
#define KNOWS(p) (in_[p] == 0 || seen[p] == removals)

active proctype watcher() {
    do
    :: atomic {
            KNOWS(0) && KNOWS(1) && KNOWS(2) && !(AT_HOME(0) && AT_HOME(1) && AT_HOME(2)) ->
            assert(false)
        }
    :: atomic {
            KNOWS(0) && KNOWS(1) && KNOWS(2) && name != 0 && AT_HOME(0) && AT_HOME(1) && AT_HOME(2) &&
                count[name] != has[0] + has[1] + has[2] ->
            assert(false)
        }
    :: ended == PROCESSES ->
        assert(name == 0);
        break
    od
}
