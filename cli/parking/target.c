/* SPDX-License-Identifier: MIT */
/* target.c: see target.h.
 *
 * The driver parks a process that maps another's memory, and then cannot restore it (driver 580.159.04).  Nothing tells
 * from outside whether one does.  It has the memory from a process that started it, or that it started, or by NCCL; so
 * these are refused.
 */
#include "cli/parking/target.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/parking/record.h"

static int fail(char why[TARGET_WHY], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(char why[TARGET_WHY], const char *format, ...) {
    va_list words;

    va_start(words, format);
    vsnprintf(why, TARGET_WHY, format, words);
    va_end(words);
    return 0;
}

/* ---- What /proc tells ---- */

/* A bit for each of two libraries. */
enum { HAS_CUDA = 1, HAS_NCCL = 2 };

static int libraries_of(pid_t pid) {
    char path[32], *line = NULL;
    size_t room = 0;
    int has = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/maps", (long)pid);
    file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0) {
        if (strstr(line, "/libcuda.so") || strstr(line, "/libcudart.so"))
            has |= HAS_CUDA;
        if (strstr(line, "/libnccl"))
            has |= HAS_NCCL;
    }
    free(line);
    if (file)
        fclose(file);
    return has;
}

/* 1: it is this program, such as the `weir run' that started a process; nobody wants that parked. */
static int is_weir(pid_t pid) {
    char path[32], program[PATH_MAX];
    struct stat own, other;
    ssize_t length;

    snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
    length = readlink(path, program, sizeof program - 1);
    if (length < 0)
        return 0;
    program[length] = '\0';
    return length >= 5 && strcmp(program + length - 5, "/weir") == 0 &&
           stat("/proc/self/exe", &own) == 0 && stat(path, &other) == 0 &&
           own.st_ino == other.st_ino && own.st_dev == other.st_dev;
}

/* 0: none, or it cannot be told. */
static pid_t parent_of(pid_t pid) {
    char path[32], text[512], *at;
    long parent = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (fgets(text, sizeof text, file) && (at = strrchr(text, ')')) != NULL &&
        sscanf(at + 1, " %*c %ld", &parent) != 1)
        parent = 0;
    fclose(file);
    return (pid_t)parent;
}

static int is_of_user(pid_t pid) {
    char path[32];
    struct stat is;

    snprintf(path, sizeof path, "/proc/%ld", (long)pid);
    return stat(path, &is) == 0 && (is.st_uid == geteuid() || geteuid() == 0);
}

/* Until the visitor says 1. */
static void each_process(int (*visit)(pid_t pid, void *context), void *context) {
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int done = 0;

    while (folder && !done && (entry = readdir(folder)))
        if (isdigit((unsigned char)entry->d_name[0]))
            done = visit((pid_t)atol(entry->d_name), context);
    if (folder)
        closedir(folder);
}

/* ---- Which is meant ---- */

static int has_name(const char *command, const char *name) {
    char words[WEIR_COMMAND_BYTES], *rest = words, *word;

    if (strcmp(command, name) == 0)
        return 1;
    snprintf(words, sizeof words, "%s", command);
    while ((word = strsep(&rest, " "))) {
        const char *slash = strrchr(word, '/');

        if (*word && (strcmp(word, name) == 0 || (slash && strcmp(slash + 1, name) == 0)))
            return 1;
    }
    return 0;
}

struct search {
    const char *name;
    int parked;
    int count;
    struct target *first;
    char *list; /* of all, for a message */
};

static void fill(struct target *target, pid_t pid) {
    *target = (struct target){.pid = pid, .start = weir__process_start(pid)};
    weir__process_command_of(pid, target->command, sizeof target->command);
}

static int compare(pid_t pid, void *context) {
    struct search *search = context;
    struct target target;
    size_t length;

    if (!is_of_user(pid) || is_weir(pid))
        return 0;
    fill(&target, pid);
    if (target.start == 0 || !has_name(target.command, search->name) ||
        (!search->parked && !(libraries_of(pid) & HAS_CUDA)))
        return 0;
    if (search->count++ == 0)
        *search->first = target;
    length = strlen(search->list);
    snprintf(search->list + length, TARGET_WHY / 2 - length, "%s%ld", length ? ", " : "",
             (long)pid);
    return 0;
}

static void compare_record(const struct record *record, void *context) {
    (void)compare(record->pid, context);
}

static int find_name(const char *name, int parked, struct target *out, char why[TARGET_WHY]) {
    char list[TARGET_WHY / 2] = "";
    struct search search = {name, parked, 0, out, list};

    if (parked)
        record_each(compare_record, &search);
    else
        each_process(compare, &search);
    if (search.count == 1)
        return 1;
    if (search.count > 1)
        return fail(why, "processes %s have that name: give a number", list);
    return fail(why,
                parked ? "no parked process has that name" : "no process with CUDA has that name");
}

/* 0: it is none. */
static uint64_t number_in(const char *name) {
    struct weir_problem problem;
    uint64_t number;

    return weir__count_read(name, INT32_MAX, &number, &problem) ? number : 0;
}

int target_is_name(const char *name) {
    return isdigit((unsigned char)*name) ? number_in(name) > 0 : *name != '\0';
}

int target_find(const char *name, int parked, struct target *out, char why[TARGET_WHY]) {
    uint64_t number = number_in(name);

    if (number == 0)
        return find_name(name, parked, out, why);
    fill(out, (pid_t)number);
    return out->start != 0 || fail(why, "there is no such process");
}

/* ---- Whether it may be parked ---- */

int target_has_cuda(const struct target *target) {
    return !is_of_user(target->pid) || (libraries_of(target->pid) & HAS_CUDA);
}

struct relatives {
    const struct target *target;
    pid_t found;
};

static int descends(pid_t pid, pid_t from) {
    for (int depth = 0; pid > 1 && depth < 64; depth++) {
        pid = parent_of(pid);
        if (pid == from)
            return 1;
    }
    return 0;
}

static int look_at(pid_t pid, void *context) {
    struct relatives *relatives = context;
    pid_t target = relatives->target->pid;

    if (pid <= 1 || pid == target || is_weir(pid) ||
        (!descends(pid, target) && !descends(target, pid)) || !(libraries_of(pid) & HAS_CUDA))
        return 0;
    relatives->found = pid;
    return 1;
}

int target_may_park(const struct target *target, int is_unshared, char why[TARGET_WHY]) {
    struct relatives relatives = {target, 0};
    struct record record;
    int libraries;

    if (target->pid == getpid())
        return fail(why, "that is this process");
    if (!is_of_user(target->pid))
        return fail(why, "it belongs to another user");
    if (record_find(target->pid, &record))
        return fail(why, "it is parked already; `weir wake %ld' wakes it", (long)target->pid);
    if (weir__process_is_stopped(target->pid))
        return fail(why,
                    "it is stopped, by somebody or since another user parked it, so the driver "
                    "would wait for it");
    libraries = libraries_of(target->pid);
    if (!(libraries & HAS_CUDA))
        return fail(why, "it has not loaded CUDA's driver (libcuda.so)");
    if ((libraries & HAS_NCCL) && !is_unshared)
        return fail(why, "it has loaded NCCL, and the driver cannot restore memory that NCCL "
                         "shares; --unshared parks it nevertheless");
    if (!is_unshared)
        each_process(look_at, &relatives);
    if (relatives.found)
        return fail(why,
                    "process %ld uses CUDA and %s it, so they may share memory, which the driver "
                    "cannot restore; --unshared parks it nevertheless",
                    (long)relatives.found,
                    descends(target->pid, relatives.found) ? "started" : "was started by");
    return 1;
}
