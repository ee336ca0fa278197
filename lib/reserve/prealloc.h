/* SPDX-License-Identifier: MIT */
/* prealloc.h: preallocates memory, one process after the other.
 *
 * Must not know: any single engine, the caller for memory.
 */
#ifndef WEIR_PREALLOC_H
#define WEIR_PREALLOC_H

#include "ipc/turn_lock.h"
#include "reserve/reserve.h"

/* The state of several rounds of requests to other processes for memory; at first all zero. */
struct weir_reclaim {
    uint64_t began_ns, moved_ns; /* the time of the first round, and of the last rise of `most_free' */
    uint64_t most_free;          /* the most bytes that were free on the device so far */
    uint64_t lacks;              /* bytes that other processes should release now, or 0 */
    int is_answered;             /* set if all other processes have answered the last round */
};

/* The preallocation of one allocator.  One thread at a time uses it. */
struct weir_preallocation {
    struct weir_reserve *v;
    uint64_t target, least; /* bytes of reserved memory: wanted, and needed */
    struct weir_process_lock lock;
};

/* Releases the lock. */
void weir__preallocation_close(struct weir_preallocation *p);

/* Reserves the target as far as the device has it.  Returns OK if at least `least' bytes are reserved, and some.  On an
 * error `text' has the reason. */
weir_status weir__preallocation_run(struct weir_preallocation *p, char *text, size_t text_bytes);

/* Logs that only `reserved' of the `asked' bytes of weir_preallocate are reserved, and why.  Any thread may call it. */
void weir__preallocation_tell(const struct weir_preallocation *p, uint64_t asked, uint64_t reserved);

/* Returns 1 if `enough' bytes are free on the device beside what stays there, or if waiting is of no use.  Otherwise returns
 * 0: other processes have more than their share until they learn of this one.  The caller then calls weir__reclaim_ask
 * and this function again. */
int weir__reclaim_look(const struct weir_reserve *v, struct weir_reclaim *reclaim, uint64_t enough,
                       uint64_t wanted);
/* Requests the missing memory from other processes.  Takes at most a tenth of a second, and calls no driver. */
void weir__reclaim_ask(const struct weir_reserve *v, struct weir_reclaim *reclaim);

#endif
