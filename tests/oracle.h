/* SPDX-License-Identifier: MIT */
/* oracle.h: the one rule of memory in stream order, kept by a naive reference.
 *
 * No two live blocks overlap; and a block never overlaps bytes that were freed before, unless its stream
 * is behind all that the free waits for: it is the stream of the free itself, it was made to wait, or the
 * work is over.  Beside it the sums that an allocator's statistics must show.
 *
 * Everything is a list that is walked; nothing is taken from the library.  Times are of the device model.
 * The including file defines FAULT(format, ...), which does not return.
 *
 * Must not know: allocators, engines; Check, since a fuzzer has none.
 */
#ifndef WEIR_TEST_ORACLE_H
#define WEIR_TEST_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ORACLE_STREAMS = 8, ORACLE_BLOCKS = 256, ORACLE_FREED = 2048 };

/* A block that is live. */
struct oracle_block {
    uint64_t at;
    size_t bytes;
    int stream;
    unsigned users; /* one bit for each stream that was noted with weir_use */
};

/* Bytes that were freed, and what must be over, on each stream, before they are used elsewhere. */
struct oracle_freed {
    uint64_t from, to;
    unsigned streams; /* one bit for each that counts */
    int captured;     /* freed on a stream that was being captured: nobody may have it; else -1 */
    uint64_t life[ORACLE_STREAMS], sequence[ORACLE_STREAMS], end_ns[ORACLE_STREAMS];
};

struct oracle {
    /* Of each stream: which one it is of those that had the number, its operations, their end. */
    uint64_t life[ORACLE_STREAMS], sequence[ORACLE_STREAMS], end_ns[ORACLE_STREAMS];
    uint64_t knows[ORACLE_STREAMS]
                  [ORACLE_STREAMS]; /* [s][t]: s is behind t's operations up to here */
    struct oracle_block block[ORACLE_BLOCKS];
    int blocks;
    struct oracle_freed freed[ORACLE_FREED];
    int freed_count;
    uint64_t allocs, frees, requested, requested_peak;
};

static inline void oracle_begin(struct oracle *o) {
    o->blocks = o->freed_count = 0;
    o->allocs = o->frees = o->requested = o->requested_peak = 0;
    memset(o->life, 0, sizeof o->life);
    memset(o->sequence, 0, sizeof o->sequence);
    memset(o->end_ns, 0, sizeof o->end_ns);
    memset(o->knows, 0, sizeof o->knows);
}

/* Work of that length was submitted to s. */
static inline void oracle_work(struct oracle *o, int s, uint64_t ns, uint64_t now) {
    o->sequence[s]++;
    o->end_ns[s] = (o->end_ns[s] > now ? o->end_ns[s] : now) + ns;
}

/* s waits for all of t so far. */
static inline void oracle_follow(struct oracle *o, int s, int t) {
    if (s == t)
        return;
    o->knows[t][t] = o->sequence[t];
    for (int i = 0; i < ORACLE_STREAMS; i++)
        if (o->knows[s][i] < o->knows[t][i])
            o->knows[s][i] = o->knows[t][i];
    if (o->end_ns[s] < o->end_ns[t])
        o->end_ns[s] = o->end_ns[t];
    o->sequence[s]++;
}

/* The stream has ended, its work has not; another has its number. */
static inline void oracle_renew(struct oracle *o, int s) {
    o->life[s]++;
    o->sequence[s]++;
    o->end_ns[s] = 0;
    memset(o->knows[s], 0, sizeof o->knows[s]);
}

static inline int oracle_is_over(const struct oracle_freed *f, uint64_t now) {
    for (int t = 0; t < ORACLE_STREAMS; t++)
        if (f->streams >> t & 1 && f->end_ns[t] > now)
            return 0;
    return f->captured < 0;
}

static inline int oracle_is_behind(const struct oracle *o, int s, const struct oracle_freed *f,
                                   uint64_t now) {
    for (int t = 0; t < ORACLE_STREAMS; t++)
        if (f->streams >> t & 1 && f->end_ns[t] > now && !(t == s && f->life[t] == o->life[t]) &&
            o->knows[s][t] < f->sequence[t])
            return 0;
    return f->captured < 0;
}

/* The block was handed out on s; its number, until the next is given back. */
static inline int oracle_taken(struct oracle *o, uint64_t at, size_t bytes, int s, uint64_t now) {
    if (at == 0 || bytes == 0 || at % 256 != 0)
        FAULT("a block at %llx", (unsigned long long)at);
    for (int i = 0; i < o->blocks; i++)
        if (at < o->block[i].at + o->block[i].bytes && o->block[i].at < at + bytes)
            FAULT("bytes of a live block are handed out again, at %llx", (unsigned long long)at);
    for (int i = 0; i < o->freed_count; i++) {
        const struct oracle_freed *f = &o->freed[i];

        if (at < f->to && f->from < at + bytes && !oracle_is_behind(o, s, f, now))
            FAULT("stream %d gets what others still use, at %llx", s, (unsigned long long)at);
    }
    if (o->blocks == ORACLE_BLOCKS)
        FAULT("too many blocks for the %s", "oracle");
    o->allocs++;
    o->requested += bytes;
    if (o->requested > o->requested_peak)
        o->requested_peak = o->requested;
    o->block[o->blocks] = (struct oracle_block){at, bytes, s, 0};
    return o->blocks++;
}

/* Block i was freed on s; `captured`: while s is being captured.  The last block has its number now. */
static inline void oracle_given(struct oracle *o, int i, int s, int captured, uint64_t now) {
    const struct oracle_block *b = &o->block[i];
    struct oracle_freed *f;

    for (int k = 0; k < o->freed_count; k++) /* what is over says nothing any more */
        if (oracle_is_over(&o->freed[k], now))
            o->freed[k--] = o->freed[--o->freed_count];
    if (o->freed_count == ORACLE_FREED)
        FAULT("too many frees for the %s", "oracle");
    f = &o->freed[o->freed_count++];
    *f = (struct oracle_freed){.from = b->at, .to = b->at + b->bytes};
    f->streams = b->users | 1u << s;
    f->captured = captured ? s : -1;
    o->sequence[s]++;
    for (int t = 0; t < ORACLE_STREAMS; t++) {
        f->life[t] = o->life[t];
        f->sequence[t] = o->sequence[t];
        f->end_ns[t] = o->end_ns[t];
    }
    o->frees++;
    o->requested -= b->bytes;
    o->block[i] = o->block[--o->blocks];
}

/* The capture of s is over: what was freed on it meanwhile is as if it were freed now. */
static inline void oracle_captured(struct oracle *o, int s) {
    o->sequence[s]++;
    for (int i = 0; i < o->freed_count; i++) {
        struct oracle_freed *f = &o->freed[i];

        if (f->captured != s)
            continue;
        f->captured = -1;
        f->sequence[s] = o->sequence[s];
        f->end_ns[s] = o->end_ns[s];
    }
}

#endif
