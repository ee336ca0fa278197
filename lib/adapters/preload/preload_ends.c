/* SPDX-License-Identifier: MIT */
/* preload_ends.c: writes the final reports when a program ends itself without its exit functions, by _exit or by a
 * signal.  Each function here replaces a function of libc, and calls the replaced function in its last step.
 *
 * A program that has caught a signal often cleans up, restores the default action, and sends the signal to itself, so
 * that its parent sees why the program ended.  Python does so after Ctrl-C.  weir treats such a signal like _exit.  If
 * another process sends the signal, weir writes no report, because the program would notice a signal handler of weir.
 *
 * If the program sends a blocked signal to itself by kill(2), the process does not end, since another thread may
 * receive the signal by sigwait(3).  If a thread sends a blocked signal to itself by raise(3), the process ends:
 * programs do this in the handler of the signal, and end when the handler returns.  In process 1 of a pid namespace
 * no signal ends the process, because the kernel ignores signals without a handler.
 *
 * The code in this file must not depend on the contents of the reports. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/preload/preload.h"

/* In C, these functions need other names, because a header may define the exported names as macros. */
#define EXPORT __attribute__((visibility("default")))
EXPORT _Noreturn void weir__exit(int status) __asm__("_exit");
EXPORT _Noreturn void weir__exit_too(int status) __asm__("_Exit");
EXPORT int weir__kill(pid_t pid, int number) __asm__("kill");
EXPORT int weir__raise(int number) __asm__("raise");

/* the functions of the C library that this library replaces */
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

static _Noreturn void exit_at_once(void (*next)(int status), int status) {
    weir__report_before_end(1);
    if (next)
        next(status);
    for (;;)
        (void)syscall(SYS_exit_group, status);
}

void weir__exit(int status) {
    exit_at_once(next_exit, status);
}

void weir__exit_too(int status) {
    exit_at_once(next_exit_too, status);
}

/* Writes the final reports if a signal that the process sends to itself will end the process. */
static void report_before_own_signal(int number, int is_to_thread) {
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
        report_before_own_signal(number, 0);
    return next_kill ? next_kill(pid, number) : (int)syscall(SYS_kill, pid, number);
}

int weir__raise(int number) {
    report_before_own_signal(number, 1);
    return next_raise ? next_raise(number)
                      : (int)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}
