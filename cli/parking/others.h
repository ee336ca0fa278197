/* SPDX-License-Identifier: MIT */
/* others.h: what the other processes on the devices of one have, and lack, as their shared registries say.
 *
 * Must not know: how a process is parked.
 */
#ifndef WEIR_CLI_PARKING_OTHERS_H
#define WEIR_CLI_PARKING_OTHERS_H

#include <stdint.h>
#include <sys/types.h>

struct others {
    uint64_t lacks; /* bytes that a request of one of them lacks */
    /* Of those that are not parked. */
    int any;         /* one may be parked, and would free memory */
    int any_lacks;   /* one lacks memory */
    int lacks_first; /* one lacks memory that began earlier, or that cannot be parked */
    uint64_t room;   /* bytes that are free on the device, or idle, as they said last */
};

/* Where the process is in no registry all devices count. */
struct others others_look(pid_t pid, uint64_t start);
/* Has them say what they have. */
void others_ring(void);

#endif
