/* SPDX-License-Identifier: MIT */
/* prealloc.h: preallocates memory, one process after the other.
 *
 * This file must not know any single engine or the caller for memory.
 */
#ifndef WEIR_PREALLOC_H
#define WEIR_PREALLOC_H

#include "ipc/turn_lock.h"
#include "reserve/reserve.h"

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

/* Logs that only `reserved' of `asked' bytes are reserved, and why.  A share leaves `apart' bytes to others.  Any
 * thread may call it. */
void weir__preallocation_tell(const struct weir_preallocation *p, uint64_t asked, uint64_t reserved,
                              uint64_t apart);

#endif
