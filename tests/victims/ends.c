/* SPDX-License-Identifier: MIT */
/* ends.c: a program that two threads end, the second one a number of microseconds (the third argument) after the first.
 * The first two arguments are the ways: exit; _exit; a signal to the process itself with the default action ("kill", or
 * "raise" in the handler of that signal); or "pause", which does not end.  With "reload" the first thread sends a
 * signal that all threads block, and the second one receives it and goes on. */
#include "opened.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 1000, BLOCKS = 2000 };

static void raise_again(int number) {
    signal(number, SIG_DFL);
    raise(number);
}

static void end_process_by(const char *how, int status) {
    if (strcmp(how, "exit") == 0)
        exit(status);
    if (strcmp(how, "kill") == 0) {
        signal(SIGINT, SIG_DFL);
        kill(getpid(), SIGINT);
    }
    if (strcmp(how, "reload") == 0) {
        kill(getpid(), SIGHUP);
        pthread_exit(NULL);
    }
    if (strcmp(how, "raise") == 0) {
        signal(SIGTERM, raise_again);
        raise(SIGTERM);
    }
    while (strcmp(how, "pause") == 0)
        pause();
    _exit(status);
}

static void *end_first(void *how) {
    end_process_by(how, 5);
    return NULL;
}

int main(int argc, char **argv) {
    CUdeviceptr block;
    pthread_t thread;
    sigset_t reload;
    int number;

    HOLDS(argc > 3);
    start_driver();
    for (int i = 0; i < BLOCKS; i++)
        CU(cuda.cuMemAllocAsync(&block, BYTES, NULL));
    if (strcmp(argv[1], "reload") == 0) {
        HOLDS(sigemptyset(&reload) == 0 && sigaddset(&reload, SIGHUP) == 0);
        HOLDS(pthread_sigmask(SIG_BLOCK, &reload, NULL) == 0);
    }
    HOLDS(pthread_create(&thread, NULL, end_first, argv[1]) == 0);
    if (strcmp(argv[1], "reload") == 0) {
        HOLDS(sigwait(&reload, &number) == 0 && number == SIGHUP);
        HOLDS(pthread_join(thread, NULL) == 0);
        for (int i = 0; i < BLOCKS; i++)
            CU(cuda.cuMemAllocAsync(&block, BYTES, NULL));
    }
    usleep((useconds_t)atoi(argv[3]));
    end_process_by(argv[2], 6);
}
