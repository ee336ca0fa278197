/* SPDX-License-Identifier: MIT */
/* prealloc.h: preallocation: how much, and which process is next.
 *
 * Must not know: any single engine, the caller for memory.
 */
#ifndef WEIR_PREALLOC_H
#define WEIR_PREALLOC_H

#include "ipc/turn_lock.h"
#include "reserve/reserve.h"

/* What is known of others while they are asked for more than one round; zeroed: they were not yet. */
struct weir_reclaim {
    uint64_t began_ns, moved_ns; /* more was free than ever before */
    uint64_t most_free;          /* bytes */
    uint64_t lacks;              /* bytes that they are to be asked for now; 0: none */
    int is_answered;             /* as far as they would be asked, for what is next */
};

/* Memory was preallocated, so that a layer that keeps tables by address makes them now, in place of the first
 * requests.  Called without a lock of the engine's. */
typedef void weir__prepare_fn(void *context);

/* The preallocation of one allocator.  One thread at a time uses it. */
struct weir_preallocation {
    struct weir_reserve *v;
    weir__prepare_fn *prepare;
    void *context;
    uint64_t target, least; /* bytes of reserved memory: wanted, and needed */
    struct weir_process_lock lock;
};

void weir__preallocation_open(struct weir_preallocation *p, struct weir_reserve *v, uint64_t target,
                              uint64_t least, weir__prepare_fn *prepare, void *context);
/* Releases the lock. */
void weir__preallocation_close(struct weir_preallocation *p);

/* Reserves the target as far as the device has it.  Returns OK if at least `least' bytes are reserved, and some.  On an
 * error `text' has the reason. */
weir_status weir__preallocation_run(struct weir_preallocation *p, char *text, size_t text_bytes);

/* A call of the program's asked for so much, and no more than `reserve` is there: the log says so, and why.  From any
 * thread. */
void weir__preallocation_tell(const struct weir_preallocation *p, uint64_t asked, uint64_t reserve);

/* 1: on the device `enough' bytes are free beside what stays there, or it is of no use to go on.  0: other processes are
 * to give, which have more than their share until they have heard of this one; and it is to be called again after
 * weir__reclaim_ask. */
int weir__reclaim_look(const struct weir_reserve *v, struct weir_reclaim *reclaim, uint64_t enough,
                       uint64_t wanted);
/* Asks them for what it lacks, which takes a tenth of a second at most, and no call of the driver. */
void weir__reclaim_ask(const struct weir_reserve *v, struct weir_reclaim *reclaim);

#endif
