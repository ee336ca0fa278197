/* SPDX-License-Identifier: MIT */
/* table.pml: looking a cell up without a lock (lib/cache/stream_cache.h) while keys come and go and the table
 * grows (lib/cache/caches.c).
 *
 * All keys have the same place, so that they stand behind each other.  The writer, who holds the owner's
 * lock, adds keys 1 and 2 at first; then, in either order, takes 1 away, whose cell gets key 3, and
 * grows the table.  Readers look for any of the keys.  KEEPS: no key is ever taken away, as in the table of
 * created streams.
 *
 * Holds: whoever finds a key finds a cell; whoever then sees under the cell's lock that it has the key
 * has the right one; with KEEPS, a key that was there before is found at once.
 *
 * Mistakes to be found: KEY_FIRST (an entry's key is written before its cell); NO_CHECK (the cell's key is
 * not looked at); GROWN_EARLY (a larger table is shown before it is filled), with KEEPS. */
#define ENTRIES 4
#define AT(table, i) ((table) * ENTRIES + (i))

byte now;                  /* the table: 0, later 1, which is larger */
byte keys[8], cells[8];    /* of entries; cells 1 and 2, 0: none */
byte cell_key[3];
bit cell_lock;             /* of both */
bool there[4];             /* the key is in the table, and what follows knows it */

inline set(table, i, key, cell) {
#ifdef KEY_FIRST
    keys[AT(table, i)] = key;
    cells[AT(table, i)] = cell
#else
    cells[AT(table, i)] = cell;
    keys[AT(table, i)] = key
#endif
}

inline add(table, key, cell) {
    at = 0;
    do
    :: keys[AT(table, at)] != 0 -> at++
    :: else -> break
    od;
    set(table, at, key, cell);
    at = 0
}

/* Those behind it move up; all belong at 0. */
inline remove(table, key) {
    at = 0;
    do
    :: keys[AT(table, at)] != key -> at++
    :: else -> break
    od;
    keys[AT(table, at)] = 0;
    hole = at;
    at++;
    do
    :: keys[AT(table, at)] != 0 ->
        set(table, hole, keys[AT(table, at)], cells[AT(table, at)]);
        keys[AT(table, at)] = 0;
        hole = at;
        at++
    :: else -> break
    od;
    at = 0;
    hole = 0
}

inline rename(cell, key) {
    atomic { cell_lock == 0 -> cell_lock = 1 }
    cell_key[cell] = key;
    cell_lock = 0
}

inline grow() {
#ifdef GROWN_EARLY
    now = 1;
#endif
    for (from : 0 .. ENTRIES - 1) {
        if
        :: keys[AT(0, from)] != 0 -> add(1, keys[AT(0, from)], cells[AT(0, from)])
        :: else
        fi
    }
    from = 0;
    now = 1
}

proctype writer() {
    byte at, hole, from;

    rename(1, 1);
    add(now, 1, 1);
    there[1] = true;
    rename(2, 2);
    add(now, 2, 2);
    there[2] = true;
    if
    :: grow()
    :: true
    fi;
#ifndef KEEPS
    there[1] = false;
    rename(1, 0);
    remove(now, 1);
    rename(1, 3);
    add(now, 3, 1);
    there[3] = true;
#endif
    if
    :: now == 0 -> grow()
    :: true
    fi
}

proctype reader() {
    byte key, table, at, found, cell;
    bool must;

    if
    :: key = 1
    :: key = 2
    :: key = 3
    fi;
    must = there[key];
    table = now;
    do
    :: at < ENTRIES ->
        found = keys[AT(table, at)];
        if
        :: found == key -> cell = cells[AT(table, at)]; break
        :: found == 0 -> break
        :: else -> at++
        fi
    :: else -> break
    od;
    if
    :: found == key ->
        assert(cell != 0);
        atomic { cell_lock == 0 -> cell_lock = 1 }
#ifndef NO_CHECK
        if
        :: cell_key[cell] == key -> skip
        :: else -> goto unknown
        fi;
#endif
        assert(cell_key[cell] == key && cell == (key == 2 -> 2 : 1));
unknown:
        cell_lock = 0
    :: else ->
#ifdef KEEPS
        assert(!must)
#else
        skip /* asks again under the owner's lock */
#endif
    fi
}

init {
    atomic {
        run writer();
        run reader();
        run reader()
    }
}
