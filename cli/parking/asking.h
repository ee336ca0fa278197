/* SPDX-License-Identifier: MIT */
/* asking.h: asks the other processes under weir for memory, so that a parked one can come back.
 *
 * Must not know: how a process is parked.
 */
#ifndef WEIR_CLI_PARKING_ASKING_H
#define WEIR_CLI_PARKING_ASKING_H

#include <stdint.h>

#include "driver/driver.h"
#include "ipc/process_peers.h"

enum { ASKING_DEVICES = 64 };

/* Of one process; zeroed: nothing was asked.  One thread uses it at a time. */
struct asking {
    struct weir_process_peers *peers[ASKING_DEVICES];
    struct weir_claim claims[ASKING_DEVICES];
    _Atomic uint64_t shown[ASKING_DEVICES];
};

/* Asks for so many bytes of idle memory, on all devices: which has the process's memory is not known.  With `posts' those
 * who park idle processes are told, too, until asking_end. */
void asking_ask(struct asking *asking, const struct weir_driver *driver, uint64_t bytes, int posts);
void asking_end(struct asking *asking);

#endif
