/* SPDX-License-Identifier: MIT */
/* prealloc.h: preallocation: how much, by when, and who is next.
 *
 * Must not know: any single engine, who asks for memory.
 */
#ifndef WEIR_PREALLOC_H
#define WEIR_PREALLOC_H

#include "engine/engine.h"
#include "ipc/turn_lock.h"

/* Of one allocator.  Used by one thread at a time. */
struct weir_priming {
    struct weir_host *host;
    const struct weir_engine *ops;
    void *engine;
    uint64_t target, least; /* bytes of reserve: wanted, and needed */
    uint64_t got, took_ns;
    uint64_t begun_ticks, begun_ns; /* now, by the device's clock and by the host's */
    int has_begun, has_turn;
    struct weir_appeal appeal;
    struct weir_process_lock lock;
};

void weir__priming_open(struct weir_priming *p, struct weir_host *host,
                        const struct weir_engine *ops, void *engine, uint64_t target,
                        uint64_t least);
/* Gives up what it has begun. */
void weir__priming_close(struct weir_priming *p);

/* Gets `least` or, with `all`, the target, as far as can be.  OK: at least `least` is there, and something;
 * else why not, with `text` saying what there is. */
weir_status weir__priming_run(struct weir_priming *p, int all, char *text, size_t text_bytes);

/* A call of the program's asked for so much, and no more than `reserve` is there: the log says so, and why.  From any
 * thread. */
void weir__priming_tell(const struct weir_priming *p, uint64_t asked, uint64_t reserve);

/* The same in turns, each of at most one step of the host's pace.  Nanoseconds until the next; 0: it is
 * over. */
uint64_t weir__priming_turn(struct weir_priming *p);
/* After each turn: asks others for what it lacks, without any call of the driver.  1: all have answered, and the next
 * turn may come at once. */
int weir__priming_ask(struct weir_priming *p);

#endif
