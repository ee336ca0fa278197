/* SPDX-License-Identifier: MIT */
/* guard_state.h: what the files of guard.h share.
 *
 * What: guard.c serves requests and frees; guard_memory.c fills and verifies memory on a stream; guard_shelf.c keeps freed
 * blocks.
 *
 * Locks: `lock` guards what is known of blocks; nothing is called under it.  `checking` guards the buffer and is held
 * while the driver copies and waits.
 *
 * Must not know: the public API, settings' names, how what lies below places blocks.
 */
#ifndef WEIR_GUARD_STATE_H
#define WEIR_GUARD_STATE_H

#include "cache/guard.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"

/* Around a block; keeps the alignment. */
#define WEIR_GUARD_GAP ((size_t)256)

/* Bytes that are verified at a time. */
#define WEIR_GUARD_BUFFER ((size_t)1 << 20)

/* What poisoned memory is filled with. */
enum { WEIR_POISON_BYTE = 0xdd };

/* A block from below. */
struct weir_guarded {
    CUdeviceptr base;
    size_t total, bytes;       /* as asked for below; by the caller, from its gap on */
    weir_stream stream;        /* that it was freed on, for messages */
    struct weir_guarded *next; /* on its shelf, or of those that are kept out, */
    int is_refused; /* and then: nothing is wrong with it but that it was not taken back */
};

/* Of one stream. */
struct weir_shelf {
    uint64_t id;
    struct weir_guarded *oldest, **end;
    size_t count, bytes;
    struct weir_shelf *next;
};

struct weir_harden {
    struct weir_device *device;
    const weir_options *options;
    struct weir_harden_below below;
    uint64_t kinds; /* WEIR_HARDEN_ */
    CUstream quiet; /* runs nothing but copies of what is given down after a wait for the device */

    pthread_mutex_t lock; /* guards what follows */
    struct weir_map live; /* from the caller's address to struct block * */
    struct weir_shelf *shelves;
    size_t shelf_count;
    struct weir_guarded *kept_out;
    size_t refused;                     /* of these, as `is_refused' has it */
    uint64_t held, held_bytes;          /* blocks on shelves and kept out, as asked for below */
    uint64_t kept_out_bytes;            /* of these */
    uint64_t live_bytes;                /* live, as asked for below, */
    uint64_t requested, requested_peak; /* and by callers */
    uint64_t reused;                    /* requests that a shelf served */
    uint64_t late_writes, overruns;

    pthread_mutex_t checking; /* guards what follows */
    unsigned char *buffer;    /* BUFFER bytes */
    _Atomic int
        is_copying; /* a copy to it may be under way: a wait failed.  Also read without the lock */
};

static inline int is_on(const struct weir_harden *h, uint64_t kinds) {
    return (h->kinds & kinds) != 0;
}

static inline size_t gap(const struct weir_harden *h) {
    return is_on(h, WEIR_HARDEN_GUARD) ? WEIR_GUARD_GAP : 0;
}

static inline CUdeviceptr address_of(const struct weir_harden *h, const struct weir_guarded *b) {
    return b->base + gap(h);
}

/* ---- memory on a stream: guard_memory.c ---- */

CUresult weir__guard_fill(const struct weir_harden *h, CUdeviceptr at, unsigned char value,
                          size_t bytes, weir_stream stream);
/* Looks whether all bytes are `value`; *bad: the first that is not, or `bytes`. */
CUresult weir__guard_verify(struct weir_harden *h, CUdeviceptr at, unsigned char value,
                            size_t bytes, weir_stream stream, size_t *bad);
/* Makes the stream wait for all that the noted streams were given so far. */
CUresult weir__guard_wait_for_uses(struct weir_harden *h, weir_stream stream,
                                   struct weir_use_list *uses);
/* Fills the gaps around a block; and verifies them, and reports what was written there. */
CUresult weir__guard_fill_gaps(const struct weir_harden *h, const struct weir_guarded *b,
                               weir_stream stream);
CUresult weir__guard_check_gaps(struct weir_harden *h, const struct weir_guarded *b,
                                weir_stream stream);

/* ---- freed blocks: guard_shelf.c ---- */

/* The oldest sound block of the size on the stream's shelf, or NULL. */
struct weir_guarded *weir__guard_take(struct weir_harden *h, uint64_t id, size_t total,
                                      weir_stream stream);
/* Onto the shelf of the stream, which has asked who it is. */
void weir__guard_shelve(struct weir_harden *h, struct weir_guarded *b, uint64_t id,
                        weir_stream stream);
/* Gives a block down, with which nothing is wrong (`is_refused`), or something; kept out of use if it is not taken. */
void weir__guard_return_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              int is_refused);
/* Blocks on shelves or not taken back, or with `all` any that are kept out. */
int weir__guard_holds(struct weir_harden *h, int all);
/* All shelves and what was not taken back, or with `all` all that is kept out, after a wait for the device; down on
 * `stream`. */
weir_status weir__guard_empty(struct weir_harden *h, int all, weir_stream stream);

#endif
