/* SPDX-License-Identifier: MIT */
/* guard_state.h: the state that the files of guard.h share.
 *
 * What: guard.c serves requests and frees; guard_memory.c fills and verifies memory on a stream; guard_shelf.c keeps
 * freed blocks.
 *
 * Locks: `lock` guards the records of blocks; nothing is called under it.  `checking` guards the buffer, and is held
 * while the driver copies and waits.
 *
 * Must not know: the public API, settings' names, how the layer below places blocks.
 */
#ifndef WEIR_GUARD_STATE_H
#define WEIR_GUARD_STATE_H

#include "cache/guard.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/map.h"

/* The bytes of each gap around a block; a multiple of the alignment. */
#define WEIR_GUARD_GAP ((size_t)256)

/* The bytes that are verified at a time. */
#define WEIR_GUARD_BUFFER ((size_t)1 << 20)

/* The byte that fills poisoned memory. */
enum { WEIR_POISON_BYTE = 0xdd };

/* A block from the layer below. */
struct weir_guarded {
    CUdeviceptr base;
    /* The request below; the caller's request, behind the first gap. */
    size_t total, bytes;
    weir_stream stream;        /* the stream of the free, for messages */
    struct weir_guarded *next; /* links blocks of a shelf, or blocks that are kept out of use */
    int is_refused; /* set if a block is kept out only because the layer below refused it */
};

/* The shelf of one stream. */
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
    /* Runs only copies of blocks that are freed below after a wait for the device. */
    CUstream quiet;

    pthread_mutex_t lock; /* guards the fields below, up to `checking` */
    struct weir_map live; /* maps the caller's address to a struct weir_guarded * */
    struct weir_shelf *shelves;
    size_t shelf_count;
    struct weir_guarded *kept_out;
    size_t refused; /* the number of those with is_refused */
    /* Blocks on shelves or kept out of use, by size below. */
    uint64_t held, held_bytes;
    uint64_t kept_out_bytes;            /* the bytes of blocks kept out of use */
    uint64_t live_bytes;                /* live blocks, by their size below */
    uint64_t requested, requested_peak; /* live blocks, by the callers' requests */
    uint64_t reused;                    /* the number of requests that a shelf served */
    uint64_t late_writes, overruns;

    pthread_mutex_t checking; /* guards the fields below */
    unsigned char *buffer;    /* WEIR_GUARD_BUFFER bytes */
    _Atomic int is_copying;   /* set while a copy may be under way; also read without the lock */
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
/* Verifies that all bytes are `value`.  Sets *bad to the offset of the first other byte, or to `bytes`. */
CUresult weir__guard_verify(struct weir_harden *h, CUdeviceptr at, unsigned char value,
                            size_t bytes, weir_stream stream, size_t *bad);
/* Makes the stream wait for all work that the noted streams have now. */
CUresult weir__guard_wait_for_uses(struct weir_harden *h, weir_stream stream,
                                   struct weir_use_list *uses);
/* Fill the gaps around a block; verify the gaps, and report writes to them. */
CUresult weir__guard_fill_gaps(const struct weir_harden *h, const struct weir_guarded *b,
                               weir_stream stream);
CUresult weir__guard_check_gaps(struct weir_harden *h, const struct weir_guarded *b,
                                weir_stream stream);

/* ---- freed blocks: guard_shelf.c ---- */

/* Takes the oldest unchanged block of the size off the stream's shelf.  Returns NULL if there is none. */
struct weir_guarded *weir__guard_take(struct weir_harden *h, uint64_t id, size_t total,
                                      weir_stream stream);
/* Puts a block onto the shelf of the stream with that id. */
void weir__guard_shelve(struct weir_harden *h, struct weir_guarded *b, uint64_t id,
                        weir_stream stream);
/* Frees a block below, or keeps it out of use if the layer below refuses it.  `is_refused` is 0 for a block that is
 * bad. */
void weir__guard_return_below(struct weir_harden *h, struct weir_guarded *b, weir_stream stream,
                              int is_refused);
/* Returns 1 if there are shelves or refused blocks, or with `all` any blocks that are kept out of use; else 0. */
int weir__guard_holds(struct weir_harden *h, int all);
/* Waits for the device and frees below, on `stream`, all blocks of shelves and all refused blocks, or with `all` all
 * blocks that are kept out of use. */
weir_status weir__guard_empty(struct weir_harden *h, int all, weir_stream stream);

#endif
