/* SPDX-License-Identifier: MIT */
/* inbox.pml: a stream's inbox for large frees, the heap, and the locks of both.
 *
 * A free of a large block puts the block into the inbox of its stream handle and asks the driver nothing, as long as the
 * stream has allocated since its last event and no request has lacked memory since.  Otherwise the free asks for the
 * stream's id, moves the inbox to the heap, and records an event.  A request asks for the id, too, and takes a block back
 * from the inbox under the bias, or moves the inbox of its stream to the heap.  A trim waits for the device without the
 * heap lock, and then moves what was freed before that wait.  The locks are taken in this order: growing, heap, bias,
 * inbox.
 *
 * Two blocks, of which growth makes the second.  Two threads allocate and free; a third process trims.  A small request
 * also looks into the inbox under the bias.  With BY_ID both streams live all the time and each has an inbox.
 * Otherwise both streams have the same handle, so one inbox: the first stream is destroyed, while no call on it is under
 * way, before the second one begins.  A set of blocks is read and written in two steps, as a list is.
 *
 * Holds: a block that a stream gets was freed on this stream, or an event or a wait for the device covers its free; no
 * block is served twice; at the end each block is in one place and counts as idle once; a free that begins after a
 * request lacked memory leaves no earlier block in its inbox; nobody waits for ever.
 *
 * Mistakes to be found: NO_INBOX_LOCK (a drain takes no inbox lock: blocks are lost); NO_HEAP_LOCK (a trim moves blocks
 * without the heap lock: one is served twice); NO_ID (a request does not compare the id of the inbox with its own);
 * FOREIGN_DRAIN (a request moves the inbox of another stream as its own); LATE_WAIT (a trim counts frees that were made
 * during its wait as completed); DEAF_FREE (a free does not look whether a request lacked memory); COUNTED_TWICE (moving
 * counts a block as idle again); HEAP_IN_BIAS (a small request takes the heap lock inside the bias); GROWING_IN_HEAP (a
 * request takes the growing mutex inside the heap lock); UNASKED_REUSE (a request takes a block back from the inbox of
 * another stream that had the handle); WAIT_IN_HEAP (a trim waits for the device with the heap lock). */
#define BLOCKS 2
#define BIT(block) (1 << (block))
#ifdef BY_ID
#define ROUNDS 3 /* calls of the first thread, and of the second one */
#define OTHER_ROUNDS 1
#define INBOXES 2
#define INBOX(stream) ((stream) - 1)
#else
#define ROUNDS 2
#define OTHER_ROUNDS 2
#define INBOXES 1
#define INBOX(stream) 0
#endif
#define CLEAN 0   /* every stream may have the block */
#define UNKNOWN 9 /* no stream may have the block before a wait for the device */

bit growing, heap_lock;
bit bias[INBOXES], inbox_lock[INBOXES];
/* under the heap lock */
byte heap;              /* free blocks */
byte tag[BLOCKS];       /* the stream of the last free */
byte id[INBOXES];       /* the stream that the handle meant at its last call */
byte mark[3];           /* by stream: the last free that its event covers */
byte lacks;             /* requests that lacked memory */
byte made = 1;          /* blocks that there are */
/* read without a lock */
bool fresh[INBOXES];    /* the stream has allocated since its event */
byte met[INBOXES];      /* the value of `lacks' at that event */
byte sequence;          /* frees so far */
byte idle;              /* the published sum of idle blocks */
/* under the inbox lock */
byte inbox[INBOXES];    /* blocks */
byte freed_at[BLOCKS];  /* the sequence number of the last free */
/* what is true */
byte means = 1;         /* the stream that the handle stands for */
byte calls;             /* calls under way */
byte live;              /* blocks that the program has */
byte freed_on[BLOCKS];  /* the stream whose work may still use the block, or CLEAN */
byte covered[3];        /* by stream: blocks whose free the event covers */
byte waited;            /* blocks whose free the present wait for the device covers */
byte since[BLOCKS];     /* `lacks' when the block came into its inbox */
byte done;

inline lock(which) {
    atomic { which == 0 -> which = 1 }
}

inline unlock(which) {
    which = 0
}

inline lock_inbox(n) {
#ifndef NO_INBOX_LOCK
    lock(inbox_lock[n])
#else
    skip
#endif
}

/* Moves the inbox to the heap.  The caller holds the heap lock. */
inline drain(n, whose) {
    lock_inbox(n);
    moved = inbox[n];
    d_step {
        inbox[n] = inbox[n] & ~moved;
        inbox_lock[n] = 0;
        assert((moved & heap) == 0 && (moved & live) == 0);
        for (b : 0 .. BLOCKS - 1) {
            if
            :: moved & BIT(b) -> tag[b] = whose
            :: else
            fi
        }
#ifdef COUNTED_TWICE
        idle = idle + (moved & 1) + (moved >> 1);
#endif
        heap = heap | moved;
        moved = 0;
        b = 0
    }
}

/* Moves the inbox to the heap in a call that asked for the id.  Blocks freed by a handle that meant another stream wait for
 * the device. */
inline visit(n, stream) {
#ifdef NO_ID
    owner = stream;
#else
    owner = (id[n] == stream -> stream : UNKNOWN);
#endif
    drain(n, owner);
    d_step {
        owner = 0;
        id[n] = stream
    }
}

/* Records an event on the stream, which covers the frees so far. */
inline record(n, stream) {
    d_step {
        mark[stream] = sequence;
        covered[stream] = 0;
        for (b : 0 .. BLOCKS - 1) {
            if
            :: freed_on[b] == stream && !(live & BIT(b)) -> covered[stream] = covered[stream] | BIT(b)
            :: else
            fi
        }
        b = 0;
        met[n] = lacks
    }
}

/* Queries the event of a stream, which may have completed. */
inline query(stream) {
    if
    :: mark[stream] != 0 ->
        d_step {
            for (b : 0 .. BLOCKS - 1) {
                if
                :: covered[stream] & BIT(b) -> freed_on[b] = CLEAN
                :: else
                fi;
                if
                :: heap & BIT(b) && tag[b] == stream && freed_at[b] <= mark[stream] -> tag[b] = CLEAN
                :: else
                fi
            }
            b = 0;
            covered[stream] = 0;
            mark[stream] = 0
        }
    :: true
    fi
}

#define MAY_HAVE(stream, block) (heap & BIT(block) && (tag[block] == CLEAN || tag[block] == stream))

/* Takes a block out of the heap.  The caller holds the heap lock. */
inline place(stream) {
    free_blocks = heap;
    if
    :: MAY_HAVE(stream, 0) -> got = 0
    :: MAY_HAVE(stream, 1) -> got = 1
    :: else
    fi;
    if
    :: got < BLOCKS ->
        d_step {
            assert(!(live & BIT(got)));
            assert(freed_on[got] == CLEAN || freed_on[got] == stream);
            heap = free_blocks & ~BIT(got);
            live = live | BIT(got);
            idle--
        }
    :: else
    fi;
    free_blocks = 0
}

inline look_under_bias(n) {
    lock(bias[n]);
#ifdef HEAP_IN_BIAS
    lock(heap_lock);
    unlock(heap_lock);
#endif
    lock_inbox(n);
    unlock(inbox_lock[n]);
    unlock(bias[n])
}

inline grow(stream) {
#ifdef GROWING_IN_HEAP
    lock(growing);
    unlock(heap_lock);
#else
    unlock(heap_lock);
    lock(growing);
#endif
    lock(heap_lock);
    place(stream);
    if
    :: got >= BLOCKS && made < BLOCKS ->
        unlock(heap_lock);
        /* The driver maps new memory. */
        lock(heap_lock);
        d_step {
            got = made;
            made++;
            live = live | BIT(got)
        }
    :: else
    fi;
    unlock(growing)
}

/* Takes a block back from the inbox. */
inline take_back(n, stream) {
    lock(bias[n]);
    lock_inbox(n);
    moved = inbox[n];
#ifdef UNASKED_REUSE
    owner = stream;
#else
    owner = id[n];
#endif
    if
    :: owner == stream && moved & 1 -> got = 0
    :: owner == stream && moved & 2 -> got = 1
    :: else
    fi;
    if
    :: got < BLOCKS ->
        d_step {
            assert(!(live & BIT(got)));
            assert(freed_on[got] == CLEAN || freed_on[got] == stream);
            inbox[n] = moved & ~BIT(got);
            live = live | BIT(got);
            idle--
        }
    :: else
    fi;
    d_step {
        moved = 0;
        owner = 0;
        inbox_lock[n] = 0;
        bias[n] = 0
    }
}

inline ask_heap(n, stream) {
    lock(heap_lock);
    visit(n, stream);
    if
    :: met[n] != lacks -> record(n, stream)
    :: else
    fi;
#ifdef FOREIGN_DRAIN
    other = 1 - n;
    drain(other, stream);
    other = 0;
#endif
    query(3 - stream);
    place(stream);
    if
    :: got >= BLOCKS ->
        d_step {
            fresh[n] = true;
            lacks = 1
        }
        grow(stream)
    :: else -> fresh[n] = true
    fi;
    heap_lock = 0
}

inline allocate(n, stream) {
    if
    :: is_small -> look_under_bias(n)
    :: else -> take_back(n, stream)
    fi;
    if
    :: got >= BLOCKS -> ask_heap(n, stream)
    :: else
    fi;
    got = BLOCKS
}

inline put_into_inbox(n) {
    lock(inbox_lock[n]);
    d_step {
        sequence++;
        freed_at[got] = sequence;
        moved = inbox[n]
    }
    d_step {
        inbox[n] = moved | BIT(got);
        since[got] = lacks;
        moved = 0;
        idle++;
        inbox_lock[n] = 0
    }
}

inline put_into_heap(n, stream) {
    lock(heap_lock);
    visit(n, stream);
    d_step {
        sequence++;
        freed_at[got] = sequence;
        tag[got] = stream;
        heap = heap | BIT(got);
        idle++
    }
    record(n, stream);
    d_step { fresh[n] = false; heap_lock = 0 }
}

inline release(n, stream) {
    d_step {
        began = lacks;
#ifdef DEAF_FREE
        is_quick = fresh[n]
#else
        is_quick = fresh[n] && met[n] == lacks
#endif
    }
    if
    :: is_quick -> put_into_inbox(n)
    :: else -> put_into_heap(n, stream)
    fi;
    d_step {
        for (b : 0 .. BLOCKS - 1) {
            assert(!(inbox[n] & BIT(b)) || since[b] >= began)
        }
        b = 0;
        got = BLOCKS;
        began = 0;
        is_quick = false
    }
}

proctype thread(byte rounds; bool is_small) {
    byte got = BLOCKS, on, n, moved, free_blocks, began, owner, other, b;
    bool is_quick;

    do
    :: rounds > 0 ->
        rounds--;
#ifdef BY_ID
        atomic { on = 1 + is_small; n = INBOX(on); calls++ }
#else
        atomic { on = means; n = INBOX(on); calls++ }
#endif
        if
        :: allocate(n, on)
        :: atomic {
               live != 0 ->
               if
               :: live & 1 -> got = 0
               :: live & 2 -> got = 1
               fi;
               live = live & ~BIT(got);
               waited = waited & ~BIT(got);
               covered[1] = covered[1] & ~BIT(got);
               covered[2] = covered[2] & ~BIT(got);
               freed_on[got] = on
           }
           release(n, on)
        fi;
        atomic { calls--; on = 0; n = 0 }
    :: rounds == 0 -> break
    od;
    done++
}

/* Destroys the first stream.  The second one gets its handle. */
proctype destroyer() {
    atomic { calls == 0 -> means = 2 }
}

/* Waits for all work that was submitted before.  Such work may wait for a thread of the program that is in a call. */
inline wait_for_device() {
    d_step {
        waited = (BIT(BLOCKS) - 1) & ~live
    }
    if
    :: depends = true
    :: true
    fi;
    !depends || calls == 0;
    d_step {
        depends = false;
        for (b : 0 .. BLOCKS - 1) {
            if
            :: waited & BIT(b) -> freed_on[b] = CLEAN
            :: else
            fi
        }
        b = 0;
        waited = 0
    }
}

/* Moves those blocks of the inbox to the heap that were freed before the wait.  The caller holds the heap lock. */
inline drain_observed(n) {
    lock(bias[n]);
    lock(inbox_lock[n]);
    d_step {
        for (b : 0 .. BLOCKS - 1) {
            if
            :: inbox[n] & BIT(b) && freed_at[b] <= upto -> moved = moved | BIT(b)
            :: else
            fi
        }
        b = 0;
        inbox[n] = inbox[n] & ~moved;
        inbox_lock[n] = 0;
        bias[n] = 0;
        free_blocks = heap
    }
    d_step {
        heap = free_blocks | moved;
        free_blocks = 0;
        moved = 0
    }
}

inline trim() {
#ifdef WAIT_IN_HEAP
    lock(heap_lock);
#endif
#ifndef LATE_WAIT
    upto = sequence;
#endif
    wait_for_device();
#ifdef LATE_WAIT
    upto = sequence;
#endif
#if !defined(NO_HEAP_LOCK) && !defined(WAIT_IN_HEAP)
    lock(heap_lock);
#endif
    drain_observed(0);
#if INBOXES > 1
    drain_observed(1);
#endif
    d_step {
        for (b : 0 .. BLOCKS - 1) {
            if
            :: heap & BIT(b) && freed_at[b] <= upto -> tag[b] = CLEAN
            :: else
            fi
        }
        b = 0;
        upto = 0;
#ifndef NO_HEAP_LOCK
        heap_lock = 0
#endif
    }
}

proctype trimmer() {
    byte moved, upto, free_blocks, b;
    bool depends;

    trim();
    done == 2;
    trim();
    assert((heap & live) == 0 && (heap | live) == BIT(made) - 1);
    assert(inbox[0] == 0 && inbox[INBOXES - 1] == 0);
    assert(idle == (heap & 1) + (heap >> 1));
    for (b : 0 .. BLOCKS - 1) {
        assert(!(heap & BIT(b)) || tag[b] == CLEAN)
    }
}

init {
    atomic {
        live = 1; /* of the first stream */
        fresh[0] = true;
        id[0] = 1;
        id[INBOXES - 1] = INBOXES;
        run thread(ROUNDS, false);
        run thread(OTHER_ROUNDS, true);
#ifndef BY_ID
        run destroyer();
#endif
        run trimmer()
    }
}
