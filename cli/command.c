/* SPDX-License-Identifier: MIT */
/* command.c: see command.h. */
#include "cli/command.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cli/common/shipped.h"

/* ---- the command ---- */

/* Returns 1 if the path is an executable file, 0 with errno if not. */
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

/* Passes the signal on to the command.  Does not pass on a signal from the terminal (si_code > 0), because the terminal
 * sends the signal to both processes. */
static void forward_signal(int number, siginfo_t *info, void *context) {
    int is_passed = child > 0 && info->si_code <= 0;

    (void)context;
    if ((is_passed || child == 0) &&
        (number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGTERM))
        is_told_to_end = 1;
    if (is_passed)
        kill(child, number);
}

static void forward_signals(sigset_t *defaults) {
    struct sigaction action = {.sa_sigaction = forward_signal, .sa_flags = SA_SIGINFO | SA_RESTART};

    sigemptyset(defaults);
    for (int i = 0; i < PASSED_ON; i++) {
        struct sigaction before;

        sigaction(passed_on[i], NULL, &before);
        /* If a parent such as nohup(1) has made this process ignore the signal, the signal stays ignored. */
        if (before.sa_handler == SIG_IGN)
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
    /* In a process that ignores SIGCHLD, waitpid(2) would return no status of the command. */
    signal(SIGCHLD, SIG_DFL);
    forward_signals(&defaults);
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

int command_report_failure(const char *by, const char *name, int error) {
    const char *dot = strrchr(name, '.');

    if (error == ENOENT && access(name, F_OK) == 0 && !strchr(name, '/'))
        fprintf(stderr, "weir %s: %s is not an executable on PATH.  Try: weir %s %s%s\n", by, name,
                by, dot && strcmp(dot, ".py") == 0 ? "python " : "./", name);
    else
        fprintf(stderr, "weir %s: %s: %s\n", by, *name ? name : "''", strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

void command_stop_forwarding(void) {
    child = 0;
}

int command_should_end(void) {
    return is_told_to_end;
}

int command_end_as(int status) {
    struct rlimit none = {0, 0};

    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    fflush(NULL);
    /* The command has written a core file, so this process must not write a second one. */
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

int command_put(void *unused, const char *name, const char *value) {
    (void)unused;
    return setenv(name, value, 1);
}

/* ---- the library ---- */

int preloading_find(const char *name, char *path, size_t bytes, const char **why) {
    static const char prefix[] = WEIR_PREFIX "/";
    char in_tree[64], installed[64], standard[PATH_MAX];
    const char *below_prefix = standard; /* lib64/weir/NAME, for example */

    snprintf(in_tree, sizeof in_tree, "lib/.libs/%s", name);
    snprintf(installed, sizeof installed, "lib/weir/%s", name);
    snprintf(standard, sizeof standard, WEIR_PKGLIB_DIR "/%s", name);
    if (strncmp(standard, prefix, sizeof prefix - 1) == 0)
        below_prefix += sizeof prefix - 1;
    if (!shipped_find(path, bytes, in_tree, name, "") &&
        !shipped_find(path, bytes, below_prefix, installed, standard))
        *why =
            "it is not installed: it comes with the package weir-preload, and with builds without "
            "--disable-preload and --disable-shared";
    else if (strpbrk(path, ": "))
        *why = "LD_PRELOAD has no way to name a path with these letters";
    else
        return 0;
    return EXIT_WEIR_FAILED;
}

/* Returns 1 if a value of LD_PRELOAD contains the library, else 0. */
static int has_library_in_list(const char *list, const char *library) {
    size_t length;

    for (; *list; list += length + (list[length] != '\0')) {
        length = strcspn(list, ": ");
        if (length == strlen(library) && strncmp(list, library, length) == 0)
            return 1;
    }
    return 0;
}

/* Appends a word to the value of a variable, after a colon, and passes the new value to `put'.  Returns 0 on
 * success. */
static int append_to_variable(const char *name, const char *word, command_put_function *put,
                              void *context) {
    const char *before = getenv(name);
    char *both = NULL;
    int failed =
        asprintf(&both, "%s%s%s", before ? before : "", before && *before ? ":" : "", word) < 0 ||
        put(context, name, both) != 0;

    free(both);
    return failed;
}

/* Sets LD_PRELOAD.  Also sets ASAN_OPTIONS, because AddressSanitizer ends a program in which a preloaded library comes
 * before AddressSanitizer's runtime.  The command may start such a program. */
int preloading_set_variables(const char *library, command_put_function *put, void *context) {
    static const char asan[] = "ASAN_OPTIONS", order[] = "verify_asan_link_order";
    const char *before = getenv("LD_PRELOAD"), *options = getenv(asan);

    if ((!before || !has_library_in_list(before, library)) &&
        append_to_variable("LD_PRELOAD", library, put, context) != 0)
        return 1;
    return (!options || !strstr(options, order)) &&
           append_to_variable(asan, "verify_asan_link_order=0", put, context) != 0;
}

/* Returns 1 if the program has other privileges than the user, so that the dynamic linker ignores LD_PRELOAD; else
 * 0. */
static int is_privileged(const char *path) {
    struct statvfs on;
    struct stat is;

    if (stat(path, &is) != 0 || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ||
        (statvfs(path, &on) == 0 && (on.f_flag & ST_NOSUID)))
        return 0;
    return ((is.st_mode & S_ISUID) && is.st_uid != getuid()) ||
           ((is.st_mode & S_ISGID) && (is.st_mode & S_IXGRP) && is.st_gid != getgid()) ||
           (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

/* Returns 1 if the program is linked statically, else 0. */
static int is_static(FILE *file, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    Elf64_Ehdr head;
    Elf64_Phdr part;

    if ((strncmp(name, "ld", 2) == 0 && strstr(name, ".so")) || fseek(file, 0, SEEK_SET) != 0 ||
        fread(&head, sizeof head, 1, file) != 1 || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof part ||
        fseek(file, (long)head.e_phoff, SEEK_SET) != 0)
        return 0;
    for (int i = 0; i < head.e_phnum; i++)
        if (fread(&part, sizeof part, 1, file) != 1 || part.p_type == PT_INTERP)
            return 0;
    return 1;
}

/* Replaces the path of a script by the path of its interpreter.  Returns 1 on success, 0 if the file is not a
 * script. */
static int replace_script(FILE *file, char *path, size_t bytes) {
    char line[512], *rest, *interpreter;

    if (!fgets(line, sizeof line, file) || strncmp(line, "#!", 2) != 0)
        return 0;
    interpreter = strtok_r(line + 2, " \t\n", &rest);
    return interpreter && snprintf(path, bytes, "%s", interpreter) < (int)bytes;
}

const char *preloading_why_not(const char *program) {
    /* The interpreter of a script may be a script, too.  weir follows at most SCRIPTS scripts. */
    enum { SCRIPTS = 4 };

    char path[4096];
    int is_script = command_find(program, path, sizeof path);
    const char *why = NULL;

    for (int i = 0; i < SCRIPTS && is_script; i++) {
        FILE *file = fopen(path, "re");

        is_script = file && replace_script(file, path, sizeof path);
        if (!is_script && is_privileged(path))
            why = "it has privileges of its own (set-user-ID)";
        else if (!is_script && file && is_static(file, path))
            why = "it is linked statically";
        if (file)
            fclose(file);
    }
    return why;
}

void preloading_no_command(struct argp_state *state) {
    const char *last = state->argv[state->argc - 1];
    const char *flag = state->argc > 2 ? state->argv[state->argc - 2] : "";

    /* The last word is the value of a flag, so no word is left for the command. */
    if (last[0] != '-' && flag[0] == '-')
        argp_error(state, "no command: %s took '%s' as its value", flag, last);
    argp_error(state, "no command");
}
