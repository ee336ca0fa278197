/* SPDX-License-Identifier: MIT */
/* records.pml: from the address of a live block to its record (lib/cache/page_map.c) while
 * other blocks come and go there.
 *
 * Memory of two pages.  Threads take from the engine a whole block of either page or of both, or a
 * slab of both; make its record; find it from any address in it, as a free does, without a lock; end it;
 * and give the block back.  Whether the record of a whole block outlasts it is open each time, as it
 * depends on how many there are.  Writes to the page map go page by page; the words that 512 KiB have are in
 * words.pml.
 *
 * Holds: a live block's address leads to its record, which nobody else has or changes meanwhile.
 *
 * Mistakes to be found: END_LATE (the engine has the block before its record ends); HALF_CLEARED (the end
 * of a slab clears its first page alone); NOT_DROPPED (a slab that comes where whole blocks were leaves
 * their records in the map's pages but the first). */
#define PAGES 2
#define RECORDS 6
#define NONE 0

bit taken[PAGES];          /* of the engine's memory */
byte map[PAGES];           /* record at each page, from 1 on */
bit lock_;
bit used[RECORDS];         /* record n is used[n - 1]; others are spare */
byte base[RECORDS], pages[RECORDS];
bool slab[RECORDS];
byte owner[RECORDS];       /* whose live block it is; 0: nobody's */

#define R (record - 1)

inline lock() {
    atomic { lock_ == 0 -> lock_ = 1 }
}

inline unlock() {
    lock_ = 0
}

/* The lock is held. */
inline make() {
    atomic {
        if
        :: !used[0] -> record = 1
        :: used[0] && !used[1] -> record = 2
        :: used[0] && used[1] && !used[2] -> record = 3
        :: used[0] && used[1] && used[2] && !used[3] -> record = 4
        :: used[0] && used[1] && used[2] && used[3] && !used[4] -> record = 5
        :: used[0] && used[1] && used[2] && used[3] && used[4] -> record = 6
        fi;
        assert(!used[R]);
        used[R] = 1
    }
    assert(owner[R] == 0);
    base[R] = first;
    pages[R] = count
}

inline drop(which) {
    used[which - 1] = 0
}

inline begin_whole() {
    record = map[first];
    if
    :: record != NONE -> pages[R] = count
    :: else ->
        lock();
        make();
        slab[R] = false;
        map[first] = record;
        unlock()
    fi
}

inline begin_slab() {
    lock();
    make();
    slab[R] = true;
    for (i : first .. first + count - 1) {
        before = map[i];
        if
        :: before != NONE -> drop(before)
        :: else
        fi;
        before = NONE
    }
    for (i : first .. first + count - 1) {
#ifdef NOT_DROPPED
        if
        :: map[i] == NONE || i == first -> map[i] = record
        :: else
        fi
#else
        map[i] = record
#endif
    }
    i = 0;
    unlock()
}

inline end_record() {
    if
    :: !slab[R] -> pages[R] = 0 /* it stays */
    :: true ->
        lock();
        map[base[R]] = NONE;
#ifndef HALF_CLEARED
        if
        :: slab[R] -> map[base[R] + 1] = NONE
        :: else
        fi;
#endif
        drop(record);
        unlock()
    fi
}

inline give_back() {
    d_step {
        taken[first] = 0;
        if
        :: count == 2 -> taken[1] = 0
        :: else
        fi
    }
}

proctype thread(byte me) {
    byte rounds = 2, first, count, record, before, i;
    bool small;

    do
    :: rounds > 0 ->
        rounds--;
        atomic {
            if
            :: !taken[0] -> taken[0] = 1; first = 0; count = 1
            :: !taken[1] -> taken[1] = 1; first = 1; count = 1
            :: !taken[0] && !taken[1] ->
                taken[0] = 1;
                taken[1] = 1;
                first = 0;
                count = 2;
                if
                :: small = true
                :: small = false
                fi
            fi
        }
        if
        :: small -> begin_slab()
        :: else -> begin_whole()
        fi;
        assert(owner[R] == 0);
        owner[R] = me;
        /* It is live; a free has an address of it. */
        record = map[first + (small -> 1 : 0)];
        assert(record != NONE && owner[R] == me);
        assert(base[R] == first && pages[R] == count && slab[R] == small);
        owner[R] = 0;
#ifdef END_LATE
        give_back();
        end_record();
#else
        end_record();
        give_back();
#endif
        atomic {
            record = 0;
            first = 0;
            count = 0;
            small = false
        }
    :: rounds == 0 -> break
    od
}

init {
    atomic {
        run thread(1);
        run thread(2)
    }
}
