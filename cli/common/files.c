/* SPDX-License-Identifier: MIT */
/* files.c: see files.h. */
#include "cli/common/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/replace.h"

/* ---- outputs ---- */

static int is_same_file(const struct stat *a, const struct stat *b) {
    return S_ISREG(a->st_mode) && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Returns the last name in a path, and stores its folder's stat(2) result.  Returns NULL if the folder does not
 * exist. */
static const char *split_folder(const char *path, struct stat *folder) {
    const char *slash = strrchr(path, '/');
    char *before = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int is_there = before && stat(before, folder) == 0;

    free(before);
    return !is_there ? NULL : slash ? slash + 1 : path;
}

static int would_be_same_file(const char *a, const char *b) {
    struct stat in_a, in_b;
    const char *name_a = split_folder(a, &in_a), *name_b = split_folder(b, &in_b);

    return name_a && name_b && strcmp(name_a, name_b) == 0 && in_a.st_dev == in_b.st_dev &&
           in_a.st_ino == in_b.st_ino;
}

/* Returns 1 if both paths lead to the same regular file, existing or not; else 0.  An `input' of "-" means standard
 * input. */
static int are_paths_of_one_file(const char *input, const char *other) {
    int is_standard = strcmp(input, "-") == 0;
    struct stat a, b;
    int is_there = (is_standard ? fstat(STDIN_FILENO, &a) : stat(input, &a)) == 0;

    if (strcmp(other, "-") == 0 || is_there != (stat(other, &b) == 0))
        return 0;
    return is_there ? is_same_file(&a, &b) : !is_standard && would_be_same_file(input, other);
}

int outputs_differ_from_input(const struct output *outputs, size_t count, const char *what,
                              const char *input) {
    for (size_t i = 0; i < count; i++)
        if (outputs[i].path && are_paths_of_one_file(input, outputs[i].path)) {
            fprintf(stderr, "weir: %s %s: this is the %s that is read; expected another file\n",
                    outputs[i].flag, outputs[i].path, what);
            return 0;
        }
    return 1;
}

static int is_standard(const char *path) {
    struct stat is, out, err;

    return strcmp(path, "-") == 0 ||
           (stat(path, &is) == 0 && ((fstat(STDOUT_FILENO, &out) == 0 && is_same_file(&is, &out)) ||
                                     (fstat(STDERR_FILENO, &err) == 0 && is_same_file(&is, &err))));
}

int outputs_differ(const struct output *outputs, size_t count) {
    for (size_t i = 1; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (outputs[i].path && outputs[k].path && !is_standard(outputs[k].path) &&
                are_paths_of_one_file(outputs[k].path, outputs[i].path)) {
                fprintf(stderr, "weir: %s %s: %s writes there; expected another file\n",
                        outputs[i].flag, outputs[i].path, outputs[k].flag);
                return 0;
            }
    return 1;
}

int output_can_create(const char *path) {
    char *place = realpath(path, NULL), *beside = NULL;
    int file = -1, error;

    if (asprintf(&beside, "%s.XXXXXX", place ? place : path) >= 0)
        file = mkostemp(beside, O_CLOEXEC);
    error = errno;
    if (file >= 0) {
        close(file);
        unlink(beside);
    }
    free(beside);
    free(place);
    errno = error;
    return file >= 0;
}

static int check_path(const char *flag, const char *path, int is_replaced) {
    struct stat status;
    int error = 0, is_there;

    if (!path || strcmp(path, "-") == 0)
        return 1;
    is_there = stat(path, &status) == 0;
    if (is_there && S_ISDIR(status.st_mode))
        error = EISDIR;
    else if (is_there ? access(path, W_OK) != 0 : errno != ENOENT)
        error = errno;
    else if ((!is_there || (is_replaced && S_ISREG(status.st_mode))) && !output_can_create(path))
        error = errno;
    if (error)
        fprintf(stderr, "weir: %s %s: %s\n", flag, path, strerror(error));
    return !error;
}

int output_check(const char *flag, const char *path) {
    return check_path(flag, path, 1);
}

int output_check_append(const char *flag, const char *path) {
    return check_path(flag, path, 0);
}

int output_replace(const char *path, int (*write)(FILE *file, const void *context),
                   const void *context) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    int good = file && write(file, context), error;

    if (file && fclose(file) != 0)
        good = 0;
    error = good ? weir__replace_file(path, 0666, 0, text, bytes) : ENOMEM;
    if (error)
        fprintf(stderr, "weir: cannot write %s: %s\n", path, strerror(error));
    free(text);
    return !error;
}

/* ---- temporary files ---- */

const char *temporary_folder(void) {
    const char *folder = getenv("TMPDIR");

    return folder && *folder ? folder : "/tmp";
}

/* Creates a temporary file weir-WHAT-XXXXXX and writes its path to `path'.  Returns a descriptor, or -1 with errno. */
static int create_temporary(const char *what, char *path, size_t bytes) {
    if (snprintf(path, bytes, "%s/weir-%s-XXXXXX", temporary_folder(), what) < (int)bytes)
        return mkostemp(path, O_CLOEXEC);
    errno = ENAMETOOLONG;
    return -1;
}

int temporary_named(const char *what, char *path, size_t bytes) {
    int file = create_temporary(what, path, bytes);

    return file >= 0 && close(file) == 0;
}

FILE *temporary_file(void) {
    char path[PATH_MAX];
    int number = create_temporary("copy", path, sizeof path);
    FILE *file = number >= 0 ? fdopen(number, "w+") : NULL;

    if (number >= 0)
        unlink(path);
    if (!file && number >= 0)
        close(number);
    return file;
}

void temporary_remove(const char *path) {
    int file = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = file >= 0 ? fdopendir(file) : NULL;
    struct dirent *entry;

    if (!folder) {
        if (file >= 0)
            close(file); /* unreached: no test makes fdopen run out of host memory */
        return;
    }
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            if (unlinkat(dirfd(folder), entry->d_name, 0) != 0)
                (void)unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR);
    closedir(folder);
    (void)rmdir(path);
}
