/* SPDX-License-Identifier: MIT */
/* kept.c: checks by device and inode that a descriptor still belongs to weir's own file (kept.h). */
#include "base/kept.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static struct weir_kept kept_of(int number, const struct stat *is) {
    return (struct weir_kept){number, is->st_dev, is->st_rdev, is->st_ino};
}

int weir__kept_set(struct weir_kept *kept, int file) {
    struct stat is;

    if (fstat(file, &is) != 0)
        return -1;
    *kept = kept_of(file, &is);
    return 0;
}

int weir__kept_are_same(const struct weir_kept *one, const struct weir_kept *other) {
    return one->device == other->device && one->inode == other->inode &&
           one->special == other->special;
}

/* Returns 1 if the descriptor belongs to the stored file, 0 if it does not or is closed, -1 if fstat(2) fails. */
static int compare_kept(const struct weir_kept *kept) {
    struct weir_kept now;
    struct stat is;

    if (kept->number < 0)
        return 0;
    if (fstat(kept->number, &is) != 0)
        return errno == EBADF ? 0 : -1;
    now = kept_of(kept->number, &is);
    return weir__kept_are_same(kept, &now);
}

int weir__kept_is(const struct weir_kept *kept) {
    return compare_kept(kept) > 0;
}

void weir__kept_close(struct weir_kept *kept) {
    int is = compare_kept(kept);

    if (is < 0)
        return;
    if (is)
        close(kept->number);
    kept->number = -1;
}
