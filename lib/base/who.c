/* SPDX-License-Identifier: MIT */
/* who.c: reads the state and the command of a process from /proc. */
#include "base/who.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* The fields of /proc/PID/stat that weir reads; proc_pid_stat(5) describes them. */
struct process_stat {
    char state;
    unsigned flags;
    int threads;
    uint64_t start;
};

/* The kernel's flag PF_EXITING, which no public header defines. */
#define FLAG_EXITING 4u

/* Reads the state of a process from /proc/PID/stat.  Returns 1, 0 if there is no such process, or -1 on an error. */
static int read_process_stat(pid_t pid, struct process_stat *out) {
    char path[32], text[1024], *at;
    ssize_t length;
    int file;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    file = weir__file_open(path, O_RDONLY, 0);
    if (file < 0)
        return errno == ENOENT && access("/proc/self/stat", R_OK) == 0 ? 0 : -1;
    length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return length < 0 && errno == ESRCH ? 0 : -1;
    text[length] = '\0';
    /* The name of a program may contain ')', so the last ')' ends the name. */
    at = strrchr(text, ')');
    return at && sscanf(at + 1,
                        " %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d "
                        "%" SCNu64,
                        &out->state, &out->flags, &out->threads, &out->start) == 4
               ? 1
               : -1;
}

/* Returns 1 if all threads of a process have ended, else 0.  The state is 'Z' once the first thread has ended. */
static int is_zombie(const struct process_stat *stat_fields) {
    return (stat_fields->state == 'Z' || stat_fields->state == 'X') && stat_fields->threads <= 1;
}

uint64_t weir__process_start(pid_t pid) {
    struct process_stat stat_fields;
    int is = read_process_stat(pid, &stat_fields);

    if (is < 0)
        return UINT64_MAX;
    return is == 0 || is_zombie(&stat_fields) ? 0 : stat_fields.start;
}

int weir__process_lives(pid_t pid, uint64_t start) {
    uint64_t now = weir__process_start(pid);

    return now == UINT64_MAX || (now != 0 && (start == UINT64_MAX || now == start));
}

int weir__process_is_stopped(pid_t pid) {
    struct process_stat stat_fields;

    return read_process_stat(pid, &stat_fields) == 1 &&
           (stat_fields.state == 'T' || stat_fields.state == 't');
}

int weir__process_is_ending(pid_t pid, uint64_t start) {
    struct process_stat stat_fields;

    return read_process_stat(pid, &stat_fields) == 1 && stat_fields.start == start &&
           !is_zombie(&stat_fields) && (stat_fields.flags & FLAG_EXITING) != 0;
}

uint64_t weir__process_namespace(void) {
    struct stat is;

    return stat("/proc/self/ns/pid", &is) == 0 ? (uint64_t)is.st_ino : 0;
}

static int is_preload(struct dl_phdr_info *object, size_t bytes, void *ignored) {
    const char *slash = strrchr(object->dlpi_name, '/');

    (void)bytes, (void)ignored;
    return strcmp(slash ? slash + 1 : object->dlpi_name, "libweir-preload.so") == 0;
}

int weir__process_has_preload(void) {
    return dl_iterate_phdr(is_preload, NULL) != 0;
}

void weir__process_command(pid_t pid, char *text, size_t bytes) {
    char path[32] = "/proc/self/cmdline";
    ssize_t length;
    int file;

    if (pid != 0)
        snprintf(path, sizeof path, "/proc/%ld/cmdline", (long)pid);
    file = weir__file_open(path, O_RDONLY, 0);
    length = file < 0 ? 0 : read(file, text, bytes - 1);
    if (file >= 0)
        close(file);
    if (length < 0)
        length = 0;
    text[length] = '\0';
    while (length > 0 && text[length - 1] == '\0')
        length--;
    for (ssize_t i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = ' ';
}

void weir__process_name(char *text, size_t bytes) {
    char command[WEIR_COMMAND_BYTES], *name = command;

    weir__process_command(0, command, sizeof command);
    for (char *at = command; *at && *at != ' '; at++)
        if (*at == '/')
            name = at + 1;
    snprintf(text, bytes, "%.*s", (int)bytes - 1, name);
}
