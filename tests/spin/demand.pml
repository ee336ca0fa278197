/* SPDX-License-Identifier: MIT */
/* demand.pml: how caches are asked for what they hold, and answer (lib/cache: cache_alloc.c: raise_reclaim_epoch; hit.h:
 * is_ready; cache_flush.c: catch_up, look_after, give_all; cache_free.c: put's `wanted').  `demand' is the reclaim epoch
 * here, and a cell one stream's cache.
 *
 * A cell that may hold a block, and two threads on its stream: one allocates, frees, captures, and may find the
 * engine dry, which raises the demand; one only frees.  Others raise it too.  Each makes a few calls.
 * The program begins and ends a capture while no other call on the stream is under way.  What a thread
 * does under the cell's lock is one step.
 *
 * Holds: after a call that began when the demand had risen, outside a capture, the cell has given; no hit
 * takes what lay there before the demand of another; nothing is taken out of a cell under capture; and for a demand a
 * cell gives once for each thread that uses it at most, and is not asked for ever.
 *
 * Mistakes to be found: DEAF_FREES (a free does not look at the demand); READ_EARLY (the demand that
 * a cell has answered is read after it gave its lock back); OWN_PASS (raising lets the cell hit although
 * others raised too); NOT_ASKED (what a free has to catch up with is done under capture too);
 * FORGETFUL (giving does not note the demand). */
#define CAPTURES 1
#define LOOKS 1
#define RAISES 1 /* of each */

byte demand = 1;
byte answered = 1;      /* the cell's demand */
byte pass = 1;
bool due;
bool capturing;            /* as it was seen last */
bool filled;              /* a block lies there */
byte since;             /* the demand when it was put there */
/* what is true */
bool captured;
byte calls;                /* on the stream */
byte raises, captures, looks;
byte given;             /* times, because of a demand */

inline set_pass() {
    pass = (!capturing && !due -> answered : 0)
}

inline clear() {
    assert(!filled || !captured);
    filled = false
}

inline give_all() {
#ifdef READ_EARLY
    atomic { clear() }
    atomic {
#else
    atomic {
        clear();
#endif
#ifndef FORGETFUL
        answered = demand;
#endif
        set_pass()
    }
}

inline look_after() {
    atomic {
    due = false;
    set_pass();
    if
    :: clear()
    :: true
    fi;
    }
}

inline catch_up() {
    atomic {
    wanted = answered != demand;
    is_due = due;
    set_pass();
    };
    if
    :: is_due -> look_after()
    :: else
    fi;
    if
    :: wanted ->
        given++;
        assert(given <= 2 * (demand - 1));
        give_all()
    :: else
    fi
}

inline hit() {
    atomic {
    seen = demand;
    if
    :: pass == seen && filled ->
        assert(since >= seen);
        assert(!captured);
        filled = false;
        got = true;
        if
        :: looks < LOOKS -> looks++; due = true; pass = 0
        :: true
        fi
    :: else
    fi;
    seen = 0;
    }
}

inline raise_demand() {
    atomic { before = demand; demand++ }
    atomic {
    if
#ifdef OWN_PASS
    :: true -> answered = demand; since = before + 1; set_pass()
#else
    :: answered == before -> answered = before + 1; since = answered; set_pass()
#endif
    :: else
    fi;
    before = 0;
    }
}

inline allocate() {
    got = false;
    if
    :: captured -> /* visit_captured */
        if
        :: !capturing ->
            atomic {
            capturing = true;
            set_pass();
            }
        :: else
        fi
    :: else ->
        hit();
        if
        :: !got -> catch_up(); hit()
        :: else
        fi;
        if
        :: !got && raises < RAISES -> /* the engine is dry */
            raises++;
            give_all();
            raise_demand()
        :: true
        fi
    fi
}

inline release() {
    atomic {
    filled = true;
    since = demand;
#ifdef DEAF_FREES
    wanted = due;
#else
    wanted = due || answered != demand;
#endif
    };
    if
#ifdef NOT_ASKED
    :: wanted -> catch_up()
#else
    :: wanted && !captured -> catch_up()
#endif
    :: else
    fi
}

inline end_call() {
    assert(captured || answered >= began);
    began = 0
}

proctype thread(bool frees_only; byte rounds) {
    byte seen, before, began;
    bool wanted, is_due, got;

    do
    :: atomic { rounds > 0 -> rounds--; began = demand; calls++ }
        if
        :: !frees_only -> allocate()
        :: release()
        fi;
        atomic {
            end_call();
            calls--;
            wanted = false;
            is_due = false;
            got = false
        }
    :: atomic {
           !frees_only && calls == 0 && (captured || captures < CAPTURES) ->
           captures = captures + (captured -> 0 : 1);
           captured = !captured
       }
    :: rounds == 0 -> break
    od
}

proctype others() {
    byte more;

    do
    :: more < RAISES -> atomic { more++; demand++ }
    :: break
    od
}

init {
    atomic {
        run thread(false, 3);
        run thread(true, 2);
        run others()
    }
}
