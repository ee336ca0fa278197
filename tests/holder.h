/* SPDX-License-Identifier: MIT */
/* holder.h: a child that holds something, says so, and stays until it is killed. */
#ifndef WEIR_TEST_HOLDER_H
#define WEIR_TEST_HOLDER_H

#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

/* hold: 1, or 0 if it cannot. */
static inline pid_t holder(int (*hold)(uint64_t bytes), uint64_t bytes) {
    char byte = 0;
    int ready[2];
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        if (!hold(bytes) || write(ready[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static inline void end(pid_t pid, int how) {
    ck_assert_int_eq(kill(pid, how), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

#endif
