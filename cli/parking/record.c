/* SPDX-License-Identifier: MIT */
/* record.c: see record.h.  All texts have one length, so a new one is put over the old one by one write. */
#include "cli/parking/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/runfile.h"
#include "base/who.h"

#define KIND "parked-"

enum { PATH = 512, TEXT = 64 + NVML_DEVICES * 21 };

static int path_of(const struct record *record, char path[PATH]) {
    return weir__runfile_path(path, PATH, KIND "%" PRIu64 "-%ld-%" PRIu64,
                              weir__process_namespace(), (long)record->pid, record->start);
}

int record_write(const struct record *record) {
    char path[PATH], text[TEXT];
    int file, length, failed;
    struct stat is;

    if (path_of(record, path) != 0)
        return -1;
    length = snprintf(text, sizeof text, "%11ld %20" PRIu64 " %d", (long)record->thread,
                      record->bytes, record->is_gated != 0);
    for (int i = 0; i < NVML_DEVICES; i++)
        length +=
            snprintf(text + length, sizeof text - (size_t)length, " %20" PRIu64, record->had.of[i]);
    file = weir__runfile_open(path, O_WRONLY | O_CREAT);
    if (file < 0)
        return -1;
    if (!weir__runfile_is_own(file, &is)) {
        close(file);
        errno = EPERM;
        return -1;
    }
    failed = write(file, text, (size_t)length) != length;
    failed |= close(file) != 0;
    if (failed)
        unlink(path);
    return failed ? -1 : 0;
}

void record_remove(const struct record *record) {
    char path[PATH];

    if (path_of(record, path) == 0)
        unlink(path);
}

static int read_file(const char *path, struct record *out) {
    int file = weir__runfile_open(path, O_RDONLY), good, at = 0, next;
    char text[TEXT];
    struct stat is;
    long thread;
    ssize_t length;

    if (file < 0)
        return 0;
    good = weir__runfile_is_own(file, &is);
    length = good ? read(file, text, sizeof text - 1) : -1;
    close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    if (sscanf(text, "%ld %" SCNu64 " %d%n", &thread, &out->bytes, &out->is_gated, &at) != 3 ||
        thread <= 0)
        return 0;
    for (int i = 0; i < NVML_DEVICES; i++, at += next)
        if (sscanf(text + at, "%" SCNu64 "%n", &out->had.of[i], &next) != 1)
            return 0;
    out->thread = (pid_t)thread;
    return 1;
}

struct visit {
    void (*visit)(const struct record *record, void *context);
    void *context;
};

static void visit_one(const char *path, const char *rest, void *context) {
    const struct visit *v = context;
    struct record record = {0};
    uint64_t namespace;
    long pid;

    if (sscanf(rest, "%" SCNu64 "-%ld-%" SCNu64, &namespace, &pid, &record.start) != 3 ||
        namespace != weir__process_namespace())
        return;
    record.pid = (pid_t)pid;
    if (!weir__process_lives(record.pid, record.start))
        unlink(path);
    else if (read_file(path, &record))
        v->visit(&record, v->context);
}

void record_each(void (*visit)(const struct record *record, void *context), void *context) {
    struct visit v = {visit, context};

    weir__runfile_each(KIND, visit_one, &v);
}

struct search {
    pid_t pid;
    struct record *out;
    int found;
};

static void compare(const struct record *record, void *context) {
    struct search *search = context;

    if (record->pid != search->pid)
        return;
    *search->out = *record;
    search->found = 1;
}

int record_find(pid_t pid, struct record *out) {
    struct search search = {pid, out, 0};

    record_each(compare, &search);
    return search.found;
}
