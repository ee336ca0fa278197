/* SPDX-License-Identifier: MIT */
/* interrupt.c: see interrupt.h. */
#include "cli/common/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t came;

static void note(int number) {
    came = number;
}

void interrupt_watch(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

    for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
        struct sigaction before;

        sigaction(numbers[i], NULL, &before);
        if (before.sa_handler != SIG_IGN) /* as nohup has it */
            sigaction(numbers[i], &action, NULL);
    }
}

int interrupt_came(void) {
    return came != 0;
}

void interrupt_end(void) {
    if (came) {
        signal(came, SIG_DFL);
        raise(came);
    }
}
