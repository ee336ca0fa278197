/* SPDX-License-Identifier: MIT */
/* preload_ends.c: the calls by which a program ends itself without its exit functions: _exit, and a signal.
 *
 * The functions here replace those of libc and of libraries that are loaded later, and then call them.
 *
 * A program that has caught a signal cleans up, restores the default action, and ends itself by that signal, so that
 * its parent sees the cause: Python does so after Ctrl-C.  So a signal that a process sends to itself is an end like
 * _exit if the action is the default and ends the process. weir sees no signal from outside that ends the process: a
 * program would notice a handler.
 *
 * A blocked signal that kill(2) sends to the process is no end, since another thread may receive it by sigwait(3).  A
 * blocked signal that raise(3) sends to the thread itself is an end: the program raises it in the handler of that
 * signal, and ends when the handler returns.  The kernel ignores such signals for process 1 of a pid namespace.
 *
 * This file must not know the reports that are written at the end.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/preload/preload.h"

/* The functions get their exported names at link time, since headers may have macros of these names. */
#define EXPORT __attribute__((visibility("default")))
EXPORT _Noreturn void weir__exit(int status) __asm__("_exit");
EXPORT _Noreturn void weir__exit_too(int status) __asm__("_Exit");
EXPORT int weir__kill(pid_t pid, int number) __asm__("kill");
EXPORT int weir__raise(int number) __asm__("raise");

/* The next functions of these names, in libc or in a library between. */
static void (*next_exit)(int status), (*next_exit_too)(int status);
static int (*next_kill)(pid_t pid, int number), (*next_raise)(int number);

static void find_next(void *pointer, const char *name) {
    void *found = dlsym(RTLD_NEXT, name);

    memcpy(pointer, &found, sizeof found);
}

static __attribute__((constructor)) void find_next_ends(void) {
    find_next(&next_exit, "_exit");
    find_next(&next_exit_too, "_Exit");
    find_next(&next_kill, "kill");
    find_next(&next_raise, "raise");
}

static _Noreturn void end_at_once(void (*next)(int status), int status) {
    weir__report_before_end(1);
    if (next)
        next(status);
    for (;;)
        (void)syscall(SYS_exit_group, status);
}

void weir__exit(int status) {
    end_at_once(next_exit, status);
}

void weir__exit_too(int status) {
    end_at_once(next_exit_too, status);
}

/* Writes the final reports if signal `number`, which the process is about to send itself, will end the process.
 * `is_to_thread` is 1 if only this thread gets the signal. */
static void send_itself(int number, int is_to_thread) {
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    int before = errno, does_end = 0;
    struct sigaction action;
    sigset_t blocked;

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        does_end |= number == ends[i];
    if (does_end && getpid() != 1 && sigaction(number, NULL, &action) == 0 &&
        action.sa_handler == SIG_DFL && pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 &&
        (is_to_thread || !sigismember(&blocked, number)))
        weir__report_before_end(!sigismember(&blocked, number));
    errno = before;
}

int weir__kill(pid_t pid, int number) {
    if (pid == getpid())
        send_itself(number, 0);
    return next_kill ? next_kill(pid, number) : (int)syscall(SYS_kill, pid, number);
}

int weir__raise(int number) {
    send_itself(number, 1);
    return next_raise ? next_raise(number)
                      : (int)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}
