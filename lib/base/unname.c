/* SPDX-License-Identifier: MIT */
/* unname.c: see unname.h. */
#include "base/unname.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int weir__unname(int file, const char *path) {
    struct stat is, named;

    if (fstat(file, &is) != 0 || lstat(path, &named) != 0 || is.st_ino != named.st_ino ||
        is.st_dev != named.st_dev)
        return 0;
    return unlink(path) == 0 || errno == ENOENT ? 0 : -1;
}
