/* SPDX-License-Identifier: MIT */
/* freeze.c: see freeze.h.
 *
 * A thread that is traced can run while its process is stopped; when its tracer ends, the kernel stops it as the others
 * (ptrace(2), "Group-stop").  The tracer is a thread, since the caller waits in the driver meanwhile.  Signals for the
 * process may reach the thread that goes on; it gets them.
 */
#include "cli/parking/freeze.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/who.h"

#define STOP_NS UINT64_C(10000000000) /* for threads that wait in the kernel */
#define NAP_NS 2000000L

enum { BEGINS, HOLDS, FAILED, HAS_TO_END };

static void nap(void) {
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
}

static int thread_stands(const char *process, const char *thread) {
    char path[512], text[512], *at;
    FILE *file;
    int stands = 1; /* it has ended */

    snprintf(path, sizeof path, "%s/%s/stat", process, thread);
    file = fopen(path, "re");
    if (!file)
        return 1;
    if (fgets(text, sizeof text, file)) {
        at = strrchr(text, ')');
        stands = at && at[1] && strchr("TtZX", at[2]) != NULL;
    }
    fclose(file);
    return stands;
}

static int all_stand(pid_t pid) {
    char path[32];
    struct dirent *entry;
    DIR *folder;
    int all = 1;

    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    folder = opendir(path);
    while (folder && all && (entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            all = thread_stands(path, entry->d_name);
    if (folder)
        closedir(folder);
    return all;
}

static int wait_until_all_stand(pid_t pid) {
    uint64_t end = weir__clock_ns() + STOP_NS;

    while (!all_stand(pid)) {
        if (weir__clock_ns() > end)
            return ETIMEDOUT;
        nap();
    }
    return 0;
}

/* Whatever it stops for, it goes on; 0: it has ended. */
static int follow(const struct freeze *freeze) {
    int status, number;
    pid_t told = waitpid(freeze->thread, &status, __WALL | WNOHANG);

    if (told == 0 || (told < 0 && errno == EINTR))
        return 1;
    if (told < 0 || !WIFSTOPPED(status))
        return 0;
    number = status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
    return ptrace(PTRACE_CONT, freeze->thread, NULL, (void *)(intptr_t)number) == 0 ||
           errno == ESRCH;
}

/* The kernel traps a stopped thread as it is seized.  If somebody has continued it meanwhile, the interrupt traps it. */
static int seize(const struct freeze *freeze) {
    int status;

    if (ptrace(PTRACE_SEIZE, freeze->thread, NULL, NULL) != 0 ||
        ptrace(PTRACE_INTERRUPT, freeze->thread, NULL, NULL) != 0)
        return errno;
    while (waitpid(freeze->thread, &status, __WALL) < 0)
        if (errno != EINTR)
            return ESRCH;
    if (!WIFSTOPPED(status) || ptrace(PTRACE_CONT, freeze->thread, NULL, NULL) != 0)
        return ESRCH;
    return 0;
}

/* The end of this thread is the end of tracing. */
static void *trace(void *argument) {
    struct freeze *freeze = argument;

    freeze->error = seize(freeze);
    atomic_store(&freeze->state, freeze->error ? FAILED : HOLDS);
    if (freeze->error)
        return NULL;
    while (atomic_load(&freeze->state) != HAS_TO_END && follow(freeze))
        nap();
    return NULL;
}

int freeze_begin(struct freeze *freeze, pid_t pid, pid_t thread) {
    int was_stopped = weir__process_is_stopped(pid), error;

    *freeze = (struct freeze){.pid = pid, .thread = thread, .state = BEGINS};
    if (!was_stopped && kill(pid, SIGSTOP) != 0)
        return errno;
    error = wait_until_all_stand(pid);
    if (!error)
        error = pthread_create(&freeze->tracer, NULL, trace, freeze);
    if (!error) {
        while (atomic_load(&freeze->state) == BEGINS)
            nap();
        error = freeze->error;
        if (error)
            pthread_join(freeze->tracer, NULL);
    }
    if (error && !was_stopped)
        kill(pid, SIGCONT);
    return error;
}

void freeze_end(struct freeze *freeze, int goes_on) {
    if (goes_on)
        kill(freeze->pid, SIGCONT);
    atomic_store(&freeze->state, HAS_TO_END);
    pthread_join(freeze->tracer, NULL);
    if (!goes_on)
        (void)wait_until_all_stand(freeze->pid);
}
