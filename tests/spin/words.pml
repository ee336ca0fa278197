/* SPDX-License-Identifier: MIT */
/* words.pml: from the address of a live block to its record by the words that each 512 KiB has (lib/cache/page_map.h)
 * while others come and go beside it.
 *
 * Memory of four pages, of which two have a word each, as 32 have in 512 KiB; and each page has a word of its own.
 * Threads take from the engine a small whole block, of a page; a large one, of three; or a slab, of two.  They make
 * its record; find it from any address in it, a load at a time and without a lock; end it; and give the block back.
 * A small one goes by its page's word, a large one by that of the two pages in which it begins, a slab likewise, with
 * a tag that says at which of them.  Whether the record of a whole block outlasts it is open each time.  One thread
 * takes a block once, the other twice; twice and twice hold, too (15 s).
 *
 * Holds: a live block's address leads to its record, which nobody else has or changes meanwhile.
 *
 * Mistakes to be found: END_LATE (the engine has the block before its record ends); NOT_CLEARED (a slab's end leaves
 * its word); BASE_FIRST (a reader looks where a large block begins before whether there is one); BYTES_FIRST (who makes
 * one tells that there is one before where). */
#define PAGES 4
#define WHOLES 4           /* records of whole blocks, from 1 on; */
#define RECORDS 6          /* behind them those of slabs */
#define NONE 0

byte taken;                /* of the engine's memory, a bit for a page */
byte page[PAGES];          /* record at each */
byte word[PAGES / 2];      /* record of each two, times 4; and the tag */
bit lock_;
bit used[RECORDS];         /* record n is used[n - 1]; others are spare */
byte base[RECORDS], bytes[RECORDS]; /* in pages */
byte owner[RECORDS];       /* whose live block it is; 0: nobody's */

#define R (record - 1)
#define SLAB 2
#define LARGE 3
#define TAG(of) ((of) % 2 + 1)
#define BITS(at, pages) (((1 << (pages)) - 1) << (at))
#define IS_FREE(at, pages) ((taken & BITS(at, pages)) == 0)
#define TAKE(at, pages) first = at; count = pages; taken = taken | BITS(at, pages)

inline lock() {
    atomic { lock_ == 0 -> lock_ = 1 }
}

inline unlock() {
    lock_ = 0
}

inline write_place() {
#ifdef BYTES_FIRST
    bytes[R] = count;
    base[R] = first
#else
    base[R] = first;
    bytes[R] = count
#endif
}

/* The lock is held. */
inline make() {
    atomic {
        record = (count == SLAB -> WHOLES + 1 : 1);
        do
        :: used[R] -> record++
        :: else -> break
        od;
        used[R] = 1
    }
    assert(owner[R] == 0);
    write_place()
}

inline begin_whole() {
    record = (count == LARGE -> word[first / 2] / 4 : page[first]);
    if
    :: record != NONE -> write_place()
    :: else ->
        lock();
        make();
        if
        :: count == LARGE -> word[first / 2] = record * 4
        :: else -> page[first] = record
        fi;
        unlock()
    fi
}

inline begin_slab() {
    lock();
    make();
    found = word[first / 2];
    assert(found % 4 == 0);
    if
    :: found != 0 -> used[found / 4 - 1] = 0
    :: else
    fi;
    word[first / 2] = record * 4 + TAG(first);
    found = 0;
    unlock()
}

inline end_record() {
    if
    :: count != SLAB -> bytes[R] = 0 /* it stays */
    :: true ->
        lock();
        if
        :: count == 1 -> page[first] = NONE
#ifdef NOT_CLEARED
        :: count == SLAB -> skip
        :: count == LARGE -> word[first / 2] = 0
#else
        :: else -> word[first / 2] = 0
#endif
        fi;
        used[R] = 0;
        unlock()
    fi
}

inline give_back() {
    taken = taken & ~BITS(first, count)
}

/* The record of `at`, into `found`. */
inline find() {
    ours = word[at / 2];
    if
    :: at / 2 > 0 -> last = word[at / 2 - 1]
    :: else -> last = 0
    fi;
    if
    :: ours != 0 && ours % 4 == 0 ->
#ifdef BASE_FIRST
        where = base[ours / 4 - 1];
        live = bytes[ours / 4 - 1];
#else
        live = bytes[ours / 4 - 1];
        where = base[ours / 4 - 1];
#endif
        if
        :: live > 0 && where == at -> found = ours / 4
        :: else
        fi
    :: else
    fi;
    if
    :: found != NONE
    :: else ->
        if
        :: last % 4 > TAG(at) -> found = word[at / 2 - 1] / 4
        :: else ->
            if
            :: ours % 4 != 0 && ours % 4 <= TAG(at) -> found = word[at / 2] / 4
            :: else -> found = page[at]
            fi
        fi
    fi;
    d_step { ours = 0; last = 0; where = 0; live = 0 }
}

proctype thread(byte me; byte rounds) {
    byte first, count, record, at, found, ours, last, where, live;

    do
    :: rounds > 0 ->
        rounds--;
        atomic {
            if
            :: IS_FREE(0, 1) -> TAKE(0, 1)
            :: IS_FREE(1, 1) -> TAKE(1, 1)
            :: IS_FREE(2, 1) -> TAKE(2, 1)
            :: IS_FREE(3, 1) -> TAKE(3, 1)
            :: IS_FREE(0, SLAB) -> TAKE(0, SLAB)
            :: IS_FREE(1, SLAB) -> TAKE(1, SLAB)
            :: IS_FREE(2, SLAB) -> TAKE(2, SLAB)
            :: IS_FREE(0, LARGE) -> TAKE(0, LARGE)
            :: IS_FREE(1, LARGE) -> TAKE(1, LARGE)
            fi;
            if
            :: count == SLAB -> at = first + 1
            :: at = first
            fi
        }
        if
        :: count == SLAB -> begin_slab()
        :: else -> begin_whole()
        fi;
        assert(owner[R] == 0);
        owner[R] = me;
        /* It is live; a free has an address of it. */
        find();
        assert(found == record && owner[R] == me);
        assert(base[R] == first && bytes[R] == count);
        owner[R] = 0;
#ifdef END_LATE
        give_back();
        end_record();
#else
        end_record();
        give_back();
#endif
        d_step {
            record = 0;
            found = 0;
            first = 0;
            count = 0;
            at = 0
        }
    :: rounds == 0 -> break
    od
}

init {
    atomic {
        run thread(1, 1);
        run thread(2, 2)
    }
}
