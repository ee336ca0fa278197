/* SPDX-License-Identifier: MIT */
/* command.c: see command.h. */
#include "cli/command.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/preloading.h"

/* Returns 1 if the file can be run, 0 with errno if not. */
static int is_program(const char *path) {
    struct stat is;

    if (stat(path, &is) != 0)
        return 0;
    errno = EISDIR;
    return !S_ISDIR(is.st_mode) && access(path, X_OK) == 0;
}

int command_find(const char *name, char *path, size_t bytes) {
    const char *list = strchr(name, '/') ? NULL : getenv("PATH");
    size_t length;

    for (; list && *list; list += length + (list[length] != '\0')) {
        length = strcspn(list, ":");
        if (length > 0 && snprintf(path, bytes, "%.*s/%s", (int)length, list, name) < (int)bytes &&
            is_program(path))
            return 1;
    }
    errno = ENOENT;
    return snprintf(path, bytes, "%s", name) < (int)bytes && strchr(name, '/') && is_program(path);
}

static volatile sig_atomic_t child, is_told_to_end;

static const int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

enum { PASSED_ON = sizeof passed_on / sizeof passed_on[0] };

/* Passes a signal on to the command, unless the terminal sent it: then the command has got it from the terminal,
 * too. */
static void pass_on(int number, siginfo_t *info, void *context) {
    int is_passed = child > 0 && info->si_code <= 0;

    (void)context;
    if ((is_passed || child == 0) &&
        (number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGTERM))
        is_told_to_end = 1;
    if (is_passed)
        kill(child, number);
}

static void catch_signals(sigset_t *defaults) {
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};

    sigemptyset(defaults);
    for (int i = 0; i < PASSED_ON; i++) {
        struct sigaction before;

        sigaction(passed_on[i], NULL, &before);
        if (before.sa_handler == SIG_IGN) /* nohup(1) does so */
            continue;
        sigaddset(defaults, passed_on[i]);
        sigaction(passed_on[i], &action, NULL);
    }
}

int command_start(char **command, pid_t *started) {
    posix_spawnattr_t attributes;
    sigset_t defaults, before, all;
    int error;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    signal(SIGCHLD, SIG_DFL); /* a process that ignores it does not learn how the command ended */
    catch_signals(&defaults);
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setsigdefault(&attributes, &defaults);
        posix_spawnattr_setsigmask(&attributes, &before);
        error = posix_spawnp(started, command[0], NULL, &attributes, command, environ);
        posix_spawnattr_destroy(&attributes);
    }
    child = error ? 0 : *started;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return error;
}

void command_raise_descriptors(void) {
    struct rlimit most;

    if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
        most.rlim_cur = most.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &most);
    }
}

int command_refuse(const char *by, const char *name, int error) {
    const char *dot = strrchr(name, '.');

    if (error == ENOENT && access(name, F_OK) == 0 && !strchr(name, '/'))
        fprintf(stderr, "weir %s: %s is not an executable on PATH.  Try: weir %s %s%s\n", by, name,
                by, dot && strcmp(dot, ".py") == 0 ? "python " : "./", name);
    else
        fprintf(stderr, "weir %s: %s: %s\n", by, *name ? name : "''", strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN;
}

void command_ended(void) {
    child = 0;
}

int command_is_told_to_end(void) {
    return is_told_to_end;
}

int command_end_as(int status) {
    struct rlimit none = {0, 0};

    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    fflush(NULL);
    setrlimit(RLIMIT_CORE, &none); /* the command has written one if it was to do so */
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

int command_put(void *unused, const char *name, const char *value) {
    (void)unused;
    return setenv(name, value, 1);
}
