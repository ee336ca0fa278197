/* SPDX-License-Identifier: MIT */
/* freeze.h: a process that stands still, but for one thread.
 *
 * The process is stopped (SIGSTOP), and a thread of this process traces that one and has it go on.  However this process
 * ends, that thread stops too, like all of the process.
 *
 * Must not know: why.
 */
#ifndef WEIR_CLI_PARKING_FREEZE_H
#define WEIR_CLI_PARKING_FREEZE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct freeze {
    pid_t pid;
    pid_t thread; /* of it, which goes on */
    pthread_t tracer;
    atomic_int state; /* freeze.c */
    int error;        /* of the tracer; guarded by `state' */
};

/* Stops the process, if it is not stopped, and returns when all its other threads stand still and that one goes on.
 * 0, or an errno, and the process is as it was: EPERM: this process may not trace it; ETIMEDOUT: a thread does not
 * stop. */
int freeze_begin(struct freeze *freeze, pid_t pid, pid_t thread);
/* That thread stops, too; or all go on. */
void freeze_end(struct freeze *freeze, int goes_on);

#endif
