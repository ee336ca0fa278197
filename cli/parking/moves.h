/* SPDX-License-Identifier: MIT */
/* moves.h: a process's device memory goes to host memory, and back.
 *
 * Parking: the driver locks the process, so that no work begins; the process is stopped but for the thread by which the
 * driver moves its memory; the driver moves it; that thread stops, too.  Waking does the inverse.  What fails before
 * the memory has moved is undone.
 *
 * A process with a gate (ipc/gate_page.h) whose keeper parks it goes on once its memory has moved: its threads wait at
 * the gate if they call the driver.  It is stopped only meanwhile, since it may use host memory that the driver moves,
 * too.
 *
 * Must not know: which processes may be parked.
 */
#ifndef WEIR_CLI_PARKING_MOVES_H
#define WEIR_CLI_PARKING_MOVES_H

#include <stdint.h>
#include <sys/types.h>

#include "cli/parking/nvml.h"
#include "driver/driver.h"
#include "ipc/gate_page.h"

enum { MOVES_WHY = 512 };
/* What a driver needs beside a process's memory for it to come back. */
#define MOVES_BESIDE (UINT64_C(64) << 20)

struct move {
    const struct weir_driver *driver;
    pid_t pid;
    uint64_t start;
    unsigned timeout_ms; /* of the lock */
    struct weir_gate *
        gate; /* the keeper's, who has closed it and has its lock; NULL: it is no keeper that moves it */
    uint64_t bytes;        /* that are in host memory now, or were; 0: not known */
    struct nvml_bytes had; /* of each device */
    uint64_t ns;           /* that it took */
    int is_full;           /* the device has no room for what is to come back */
    int is_stuck;          /* parking failed halfway, and it has to be woken */
    char why[MOVES_WHY];   /* it was not done, and how the process is now */
};

enum moved {
    MOVED,
    NOT_MOVED,   /* the process goes on as before; or is as parked as before */
    INTERRUPTED, /* SIGINT or SIGTERM came, and nothing has changed */
};

enum moved move_out(struct move *move);
enum moved move_back(struct move *move);

#endif
