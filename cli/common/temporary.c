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

/* Returns a descriptor, or -1 with errno. */
static int open_temporary(void) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    int file;

    if (!folder || !*folder)
        folder = "/tmp";
    file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0)
        return file;
    if (snprintf(path, sizeof path, "%s/weir-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = mkostemp(path, O_CLOEXEC);
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
