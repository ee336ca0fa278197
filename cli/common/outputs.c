/* SPDX-License-Identifier: MIT */
/* outputs.c: see outputs.h. */
#include "cli/common/outputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_one(const struct stat *a, const struct stat *b) {
    return S_ISREG(a->st_mode) && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Of what is not there yet: its folder, and behind that its name. */
static const char *split(const char *path, struct stat *folder) {
    const char *slash = strrchr(path, '/');
    char *before = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int is_there = before && stat(before, folder) == 0;

    free(before);
    return !is_there ? NULL : slash ? slash + 1 : path;
}

static int would_be_one(const char *a, const char *b) {
    struct stat in_a, in_b;
    const char *name_a = split(a, &in_a), *name_b = split(b, &in_b);

    return name_a && name_b && strcmp(name_a, name_b) == 0 && in_a.st_dev == in_b.st_dev &&
           in_a.st_ino == in_b.st_ino;
}

int outputs_are_one(const char *input, const char *other) {
    int is_standard = strcmp(input, "-") == 0;
    struct stat a, b;
    int is_there = (is_standard ? fstat(STDIN_FILENO, &a) : stat(input, &a)) == 0;

    if (strcmp(other, "-") == 0 || is_there != (stat(other, &b) == 0))
        return 0;
    return is_there ? is_one(&a, &b) : !is_standard && would_be_one(input, other);
}

int outputs_spare(const struct output *outputs, size_t count, const char *what, const char *input) {
    for (size_t i = 0; i < count; i++)
        if (outputs[i].path && outputs_are_one(input, outputs[i].path)) {
            fprintf(stderr, "weir: %s %s: this is the %s that is read; expected another file\n",
                    outputs[i].flag, outputs[i].path, what);
            return 0;
        }
    return 1;
}

static int is_standard(const char *path) {
    struct stat is, out, err;

    return strcmp(path, "-") == 0 ||
           (stat(path, &is) == 0 && ((fstat(STDOUT_FILENO, &out) == 0 && is_one(&is, &out)) ||
                                     (fstat(STDERR_FILENO, &err) == 0 && is_one(&is, &err))));
}

int outputs_differ(const struct output *outputs, size_t count) {
    for (size_t i = 1; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (outputs[i].path && outputs[k].path && !is_standard(outputs[k].path) &&
                outputs_are_one(outputs[k].path, outputs[i].path)) {
                fprintf(stderr, "weir: %s %s: %s writes there; expected another file\n",
                        outputs[i].flag, outputs[i].path, outputs[k].flag);
                return 0;
            }
    return 1;
}
