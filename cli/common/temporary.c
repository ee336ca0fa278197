/* SPDX-License-Identifier: MIT */
/* temporary.c: see temporary.h. */
#include "cli/common/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *temporary_folder(void) {
    const char *folder = getenv("TMPDIR");

    return folder && *folder ? folder : "/tmp";
}

/* Makes a file with a name.  Returns a descriptor, or -1 with errno. */
static int open_named(const char *what, char *path, size_t bytes) {
    if (snprintf(path, bytes, "%s/weir-%s-XXXXXX", temporary_folder(), what) < (int)bytes)
        return mkostemp(path, O_CLOEXEC);
    errno = ENAMETOOLONG;
    return -1;
}

int temporary_named(const char *what, char *path, size_t bytes) {
    int file = open_named(what, path, bytes);

    if (file >= 0)
        close(file);
    return file >= 0;
}

/* Returns a descriptor, or -1 with errno. */
static int open_temporary(void) {
    int file = open(temporary_folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char path[4096];

    if (file >= 0)
        return file;
    file = open_named("copy", path, sizeof path);
    if (file >= 0)
        unlink(path);
    return file;
}

FILE *temporary_file(void) {
    int number = open_temporary();
    FILE *file = number >= 0 ? fdopen(number, "w+") : NULL;

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
            close(file); /* unreached: there is no host memory */
        return;
    }
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            if (unlinkat(dirfd(folder), entry->d_name, 0) != 0)
                (void)unlinkat(dirfd(folder), entry->d_name, AT_REMOVEDIR);
    closedir(folder);
    (void)rmdir(path);
}
