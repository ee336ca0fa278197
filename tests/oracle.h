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
    int graph;      /* of a graph that is being captured on the stream: no memory of the pool's */
};

/* Bytes that were freed, and what must be over, on each stream, before they are used elsewhere. */
struct oracle_freed {
    uint64_t from, to;
    unsigned streams; /* one bit for each that counts */
    int captured; /* the stream that was being captured when they were freed on it: nobody may have
                       * them; else -1 */
    uint64_t life[ORACLE_STREAMS], sequence[ORACLE_STREAMS], end_ns[ORACLE_STREAMS];
    unsigned behind[ORACLE_STREAMS]; /* who is behind a stream that has ended, one bit each */
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

static inline int oracle_lives(const struct oracle *o, const struct oracle_freed *f, int t) {
    return f->life[t] == o->life[t];
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
    for (int i = 0; i < o->freed_count; i++)
        for (int d = 0; d < ORACLE_STREAMS; d++)
            o->freed[i].behind[d] |= (o->freed[i].behind[d] >> t & 1) << s;
}

/* The stream has ended, its work has not; another has its number. */
static inline void oracle_renew(struct oracle *o, int s) {
    for (int i = 0; i < o->freed_count; i++) {
        struct oracle_freed *f = &o->freed[i];

        for (int d = 0; d < ORACLE_STREAMS; d++)
            f->behind[d] &= ~(1u << s);
        for (int t = 0; t < ORACLE_STREAMS && oracle_lives(o, f, s); t++)
            if (t != s && o->knows[t][s] >= f->sequence[s])
                f->behind[s] |= 1u << t;
    }
    o->life[s]++;
    o->sequence[s]++;
    o->end_ns[s] = 0;
    memset(o->knows[s], 0, sizeof o->knows[s]);
    for (int t = 0; t < ORACLE_STREAMS; t++)
        o->knows[t][s] = 0;
}

static inline int oracle_is_over(const struct oracle_freed *f, uint64_t now) {
    for (int t = 0; t < ORACLE_STREAMS; t++)
        if (f->streams >> t & 1 && f->end_ns[t] > now)
            return 0;
    return 1;
}

/* Is s behind what f waits for on t? */
static inline int oracle_is_behind_on(const struct oracle *o, int s, const struct oracle_freed *f,
                                      int t) {
    if (!oracle_lives(o, f, t))
        return f->behind[t] >> s & 1;
    return s == t || o->knows[s][t] >= f->sequence[t];
}

/* A stream whose work s would have to wait for, and is not behind; -1: none. */
static inline int oracle_not_behind(const struct oracle *o, int s, const struct oracle_freed *f,
                                    uint64_t now) {
    for (int t = 0; t < ORACLE_STREAMS; t++)
        if (f->streams >> t & 1 && f->end_ns[t] > now &&
            (f->captured || !oracle_is_behind_on(o, s, f, t)))
            return t;
    return -1;
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

        if (at < f->to && f->from < at + bytes && oracle_not_behind(o, s, f, now) >= 0)
            FAULT("stream %d gets what stream %d still uses, at %llx", s,
                  oracle_not_behind(o, s, f, now), (unsigned long long)f->from);
    }
    if (o->blocks == ORACLE_BLOCKS)
        FAULT("too many blocks for the %s", "oracle");
    o->allocs++;
    o->requested += bytes;
    if (o->requested > o->requested_peak)
        o->requested_peak = o->requested;
    o->block[o->blocks] = (struct oracle_block){.at = at, .bytes = bytes, .stream = s};
    return o->blocks++;
}

/* Block i was allocated under capture. */
static inline void oracle_of_graph(struct oracle *o, int i) {
    o->block[i].graph = 1;
    o->requested -= o->block[i].bytes;
}

/* Block i is gone, and its memory no concern of the allocator's; the last block has its number now. */
static inline void oracle_gone(struct oracle *o, int i) {
    o->frees++;
    o->requested -= o->block[i].graph ? 0 : o->block[i].bytes;
    o->block[i] = o->block[--o->blocks];
}

/* Does the later free say all that the earlier one does? */
static inline int oracle_covers(const struct oracle_freed *later,
                                const struct oracle_freed *earlier) {
    if (later->from != earlier->from || later->to != earlier->to || earlier->captured ||
        earlier->streams & ~later->streams)
        return 0;
    for (int t = 0; t < ORACLE_STREAMS; t++)
        if (earlier->streams >> t & 1 && earlier->life[t] != later->life[t])
            return 0;
    return 1;
}

/* Block i was freed on s; `captured`: while s is being captured. */
static inline void oracle_given(struct oracle *o, int i, int s, int captured, uint64_t now) {
    const struct oracle_block *b = &o->block[i];
    struct oracle_freed f = {.from = b->at, .to = b->at + b->bytes};

    o->sequence[s]++;
    f.streams = b->users | 1u << s;
    f.captured = captured;
    for (int t = 0; t < ORACLE_STREAMS; t++) {
        f.life[t] = o->life[t];
        f.sequence[t] = o->sequence[t];
        f.end_ns[t] = o->end_ns[t];
    }
    for (int k = 0; k < o->freed_count; k++)
        if (oracle_is_over(&o->freed[k], now) || oracle_covers(&f, &o->freed[k]))
            o->freed[k--] = o->freed[--o->freed_count];
    if (o->freed_count == ORACLE_FREED)
        FAULT("too many frees for the %s", "oracle");
    o->freed[o->freed_count++] = f;
    oracle_gone(o, i);
}

/* The capture of s is over: what was freed on it meanwhile is as if it were freed now. */
static inline void oracle_captured(struct oracle *o, int s) {
    o->sequence[s]++;
    for (int i = 0; i < o->freed_count; i++) {
        struct oracle_freed *f = &o->freed[i];

        if (!f->captured || !(f->streams >> s & 1))
            continue;
        f->captured = 0;
        f->sequence[s] = o->sequence[s];
        f->end_ns[s] = o->end_ns[s];
    }
}

#endif
