/* SPDX-License-Identifier: MIT */
/* parking_wait.h: a request that lacks memory waits for processes that are parked while they are idle (`weir run
 * --park-when-idle'): for three minutes, all its failed requests together, or, in such a process itself, until it
 * has the memory: it may be parked while it waits.
 *
 * Must not know: what is requested.
 */
#ifndef WEIR_PARKING_WAIT_H
#define WEIR_PARKING_WAIT_H

#include <stdint.h>

#include "ipc/process_peers.h"

/* Of one request; zeroed but for `log': it has not waited. */
struct weir_parking_wait {
    int log; /* what may be said, as log.h has it */
    struct weir_process_peers *peers;
    uint64_t began_ns;
    int has_waited, alone; /* looks, one after the other, at which there was none to wait for */
};

/* The request lacks so many bytes: says so to those who park processes, and waits a moment.  1: it may try again; 0:
 * nobody will be parked for it.  The caller holds no lock. */
int weir__parking_wait(struct weir_parking_wait *wait, struct weir_process_peers *peers,
                       uint64_t lacks);
/* The request has its memory, or gives up. */
void weir__parking_wait_end(struct weir_parking_wait *wait);

#endif
