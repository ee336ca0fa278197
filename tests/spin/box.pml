/* SPDX-License-Identifier: MIT */
/* box.pml: the remote-free queue of a cache (lib/cache: cache_requests.c: post_remote, collect; caches.c: update_queue_id) against
 * the cache's being retired, renamed and filled again (caches.c).  A cell is one stream's cache here,
 * and its box that queue.
 *
 * One cell and one slab of two slots.  Two threads allocate and free, on one of two streams each time,
 * the locks as in the code: the front's, the cell's, the box's.  BY_ID: both streams live all the time
 * (default streams), each by its id as key, and the cell goes from one to the other when nobody has
 * pinned it.  Else: both have the same handle and so the same key, and the first is destroyed, while no
 * call on it is under way, before the second is made; a free does not ask which it is.  Sets of slots
 * are read and written in two steps, as lists are.
 *
 * Holds: a slot that a stream gets from the cell was freed on this stream, or was waited for since; none
 * is handed out twice; at the end each slot is in one place; a box never takes what is freed on another
 * stream than the one it is open for.
 *
 * Mistakes to be found: NO_READDRESS (retiring leaves the box as it is); COLLECT_FIRST (it is emptied before
 * it is closed); NO_BOX_LOCK (collecting takes no lock); NO_KEY (posting looks at neither key nor id); NO_PINS (a pinned cell is renamed); NO_CELL (posting does not
 * look whose the slab is). */
#define SLOTS 2
#define ALL_SLOTS 3
#define BIT(slot) (1 << (slot))
#ifdef BY_ID
#define KEY(id) (id)
#define ASKED(id) (id)
#else
#define KEY(id) 7
#define ASKED(id) 0
#endif
#define ANY 0      /* freed on: all streams may have it */
#define NOWHERE 9

/* the front */
bit front_lock;
byte table[10];            /* by key: 1 the cell, 0 none */
byte away;                 /* slots in batches on their way home */
/* the cell */
bit cell_lock;
byte key, id;
bool serves;
byte pins;
byte home;                 /* idle slots of its slab */
/* the slab */
bool owned;                /* it is the cell's */
bool slab;                 /* there is one */
/* the letter box */
bit box_lock;
bool open;
byte box_key, box_id, box;
/* what is true */
byte means = 1;            /* the stream that the handle stands for */
byte calls;                /* under way on it */
byte live;                 /* slots that the program has */
byte freed_on[SLOTS];
byte done;

inline lock(which) {
    atomic { which == 0 -> which = 1 }
}

inline unlock(which) {
    which = 0
}

inline lock_box() {
#ifndef NO_BOX_LOCK
    lock(box_lock)
#else
    skip
#endif
}

/* The cell's lock is held. */
inline collect() {
    lock_box();
    got = box;
    assert(got == 0 || owned);
    home = home | got;
    box = 0;
    got = 0;
    box_lock = 0
}

inline readdress() {
#ifdef COLLECT_FIRST
    collect();
#endif
    lock(box_lock);
    open = serves;
    box_key = key;
    box_id = id;
    unlock(box_lock);
#ifndef COLLECT_FIRST
    collect()
#endif
}

/* Back to the engine; the next slab has a record of its own. */
inline give() {
    d_step {
        slab = false;
        home = 0
    }
}

/* The front's lock is held; this is as the cell's stream ends or makes room. */
inline retire() {
    lock(cell_lock);
    if
    :: serves ->
        serves = false;
#ifndef NO_READDRESS
        readdress();
#endif
        if
        :: slab && owned && home == ALL_SLOTS -> give()
        :: slab && owned && home != ALL_SLOTS && home != 0 -> owned = false
        :: else /* none is idle: the cell keeps it */
        fi
    :: else
    fi;
    unlock(cell_lock)
}

inline mature(stream) {
    lock(cell_lock);
    id = stream;
    serves = true;
    readdress();
    unlock(cell_lock)
}

/* Nobody pins the cell, and its stream is silent: it becomes another's. */
inline rename_to(stream) {
    lock(cell_lock);
    idle = (pins == 0);
#ifdef NO_PINS
    idle = true;
#endif
    if
    :: idle -> key = 0
    :: else
    fi;
    unlock(cell_lock);
    if
    :: idle ->
        table[KEY(3 - stream)] = 0;
        retire();
        lock(cell_lock);
        key = KEY(stream);
        unlock(cell_lock);
        table[KEY(stream)] = 1
    :: else
    fi;
    idle = false
}

/* 1: the call has a cell, pinned. */
inline visit(stream) {
    lock(front_lock);
    if
    :: table[KEY(stream)] == 0 -> rename_to(stream)
    :: else
    fi;
    has_cell = table[KEY(stream)];
    if
    :: has_cell ->
        if
        :: serves && id != stream -> retire()
        :: else
        fi;
        if
        :: !serves -> mature(stream)
        :: else
        fi;
        pins++
    :: else
    fi;
    unlock(front_lock)
}

#define ITS(stream, known) (key == KEY(stream) && (known == 0 || id == known))

/* From home, which is the cell's own slab alone. */
inline hit(stream) {
    if
    :: serves && ITS(stream, stream) && slab && owned && home != 0 ->
        if
        :: home & 1 -> slot = 0
        :: !(home & 1) -> slot = 1
        fi;
        assert((home & live) == 0);
        assert(freed_on[slot] == ANY || freed_on[slot] == stream);
        home = home & ~BIT(slot);
        live = live | BIT(slot);
        slot = NOWHERE;
        got_one = true
    :: else
    fi
}

inline take(stream) {
    lock(cell_lock);
    hit(stream);
    if
    :: !got_one && serves && box != 0 -> collect(); hit(stream)
    :: true /* too few */
    fi;
    unlock(cell_lock)
}

inline allocate(stream) {
    got_one = false;
    if
    :: table[KEY(stream)] -> take(stream)
    :: else
    fi;
    if
    :: !got_one ->
        visit(stream);
        if
        :: has_cell ->
            take(stream);
            if
            :: !got_one && !slab -> /* from the engine */
                lock(cell_lock);
                if
                :: !slab ->
                    slab = true;
                    owned = true;
                    d_step {
                        assert(live == 0 && away == 0 && box == 0);
                        freed_on[0] = stream;
                        freed_on[1] = stream
                    }
                    home = ALL_SLOTS
                :: else
                fi;
                unlock(cell_lock);
                take(stream)
            :: else
            fi;
            pins--
        :: else
        fi
    :: else
    fi
}

#ifdef NO_KEY
#define ADDRESSED(stream, known) true
#else
#define ADDRESSED(stream, known) (box_key == KEY(stream) && (known == 0 || box_id == known))
#endif
#ifdef NO_CELL
#define OWNED true
#else
#define OWNED owned
#endif

inline post(stream, known) {
    lock(box_lock);
    if
    :: open && ADDRESSED(stream, known) && OWNED ->
        assert(known == 0 || box_id == stream);
        got = box;
        box = got | BIT(slot);
        got = 0;
        slot = NOWHERE
    :: else
    fi;
    unlock(box_lock)
}

/* By the cell's lock, or behind an event on the stream. */
inline put(stream, known) {
    lock(cell_lock);
    if
    :: serves && ITS(stream, known) && owned ->
        home = home | BIT(slot);
        slot = NOWHERE
    :: else
    fi;
    unlock(cell_lock)
}

inline send_away() {
    lock(front_lock);
    away = away | BIT(slot);
    slot = NOWHERE;
    unlock(front_lock)
}

inline release(stream, known) {
    freed_on[slot] = stream;
    if
    :: table[KEY(stream)] ->
        if
        :: owned -> post(stream, known)
        :: true
        fi;
        if
        :: slot != NOWHERE -> put(stream, known)
        :: else
        fi
    :: else
    fi;
    if
    :: slot != NOWHERE -> send_away()
    :: else
    fi
}

proctype thread(byte rounds) {
    byte slot = NOWHERE, got, on;
    bool has_cell, got_one, idle;

    do
    :: rounds > 0 ->
        rounds--;
#ifdef BY_ID
        if
        :: on = 1
        :: on = 2
        fi;
#else
        atomic { on = means; calls++ }
#endif
        if
        :: allocate(on)
        :: atomic {
               live != 0 ->
               if
               :: live & 1 -> slot = 0
               :: live & 2 -> slot = 1
               fi;
               live = live & ~BIT(slot)
           }
           release(on, ASKED(on))
        fi;
        calls = (calls -> calls - 1 : 0);
        on = 0;
        got_one = false;
        has_cell = false
    :: rounds == 0 -> break
    od;
    done++
}

/* The first stream is destroyed, and another one gets its handle. */
proctype destroyer() {
    atomic { calls == 0 -> means = 2 }
}

/* What was sent home arrives: all that was done on any stream before is over. */
proctype events() {
    byte slot = NOWHERE;

    do
    :: atomic { away != 0 && front_lock == 0 -> front_lock = 1 }
        if
        :: away & 1 -> slot = 0
        :: away & 2 -> slot = 1
        fi;
        away = away & ~BIT(slot);
        freed_on[slot] = ANY;
        if
        :: owned ->
            lock(cell_lock);
            home = home | BIT(slot);
            unlock(cell_lock)
        :: else ->
            home = home | BIT(slot); /* its own, which nobody else looks at */
            if
            :: home == ALL_SLOTS -> give()
            :: else
            fi
        fi;
        slot = NOWHERE;
        unlock(front_lock)
    :: atomic {
        done == 2 && away == 0 && front_lock == 0 ->
        assert(!slab || (home + live + box == ALL_SLOTS && (home & live) == 0 && (home & box) == 0 &&
                         (live & box) == 0));
        break
       }
    od
}

init {
    atomic {
        key = KEY(1);
        table[KEY(1)] = 1;
        run thread(3);
        run thread(2);
#ifndef BY_ID
        run destroyer();
#endif
        run events()
    }
}
