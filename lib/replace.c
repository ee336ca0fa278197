/* SPDX-License-Identifier: MIT */
/* replace.c: see replace.h.
 *
 * The name beside is made with O_EXCL, so a link that somebody has put there is not followed, and nothing that is there
 * is touched: the next name is tried.
 *
 * Must not know: what is written.
 */
#include "config.h"

#include "replace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 64 };

/* 0, or errno. */
static int write_all(int file, const char *at, size_t count) {
    while (count > 0) {
        ssize_t written = write(file, at, count);

        if (written < 0 && errno != EINTR)
            return errno;
        at += written > 0 ? written : 0;
        count -= written > 0 ? (size_t)written : 0;
    }
    return 0;
}

/* Writes, closes, and has it on the disk if that is asked.  0, or errno. */
static int fill(int file, int is_durable, const void *bytes, size_t count) {
    int why;

    if (file < 0)
        return errno;
    why = write_all(file, bytes, count);
    if (why == 0 && is_durable && fsync(file) != 0)
        why = errno;
    if (close(file) != 0 && why == 0)
        why = errno;
    return why;
}

static void name_folder(const char *path, char folder[PATH_MAX]) {
    const char *slash = strrchr(path, '/');

    if (slash)
        snprintf(folder, PATH_MAX, "%.*s", slash > path ? (int)(slash - path) : 1, path);
    else
        snprintf(folder, PATH_MAX, ".");
}

/* So that the name is on the disk too, where that can be had. */
static void sync_folder(const char *path) {
    char name[PATH_MAX];
    int folder;

    name_folder(path, name);
    folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    (void)fsync(folder);
    close(folder);
}

static int is_same(const struct stat *is, int file) {
    struct stat other;

    return fstat(file, &other) == 0 && other.st_dev == is->st_dev && other.st_ino == is->st_ino;
}

/* Whether whoever made the link may say where the file goes: stricter than Linux's protected_symlinks, which may be
 * off. */
static int may_follow(const char *path, const struct stat *link) {
    char folder[PATH_MAX];
    struct stat is;
    int open_to_all;

    name_folder(path, folder);
    open_to_all = stat(folder, &is) != 0 || (is.st_mode & S_IWOTH) != 0;
    return !open_to_all || link->st_uid == geteuid() || link->st_uid == 0;
}

static int put_beside(const char *path, const struct stat *before, mode_t mode, int is_durable,
                      const void *bytes, size_t count) {
    char beside[PATH_MAX];
    int file = -1, why;

    for (int i = 0; i < TRIES && file < 0; i++) {
        int length = snprintf(beside, sizeof beside, "%s.new.%ld.%d", path, (long)getpid(), i);

        if ((size_t)length >= sizeof beside)
            return ENAMETOOLONG;
        file = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (file < 0 && errno != EEXIST)
            break;
    }
    if (file < 0)
        return errno;
    if (before)
        (void)fchmod(file, before->st_mode & mode);
    why = fill(file, is_durable, bytes, count);
    if (why == 0 && rename(beside, path) != 0)
        why = errno;
    if (why != 0)
        (void)unlink(beside);
    else if (is_durable)
        sync_folder(path);
    return why;
}

int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count) {
    int is_link, is_there, flags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
    struct stat link, is;
    char *target = NULL;
    int why;

    is_there = lstat(path, &link) == 0;
    if (!is_there && errno != ENOENT) /* who knows what is there */
        return errno;
    is_link = is_there && S_ISLNK(link.st_mode);
    if (is_link && !may_follow(path, &link))
        return EACCES;
    if (!is_link)
        flags |= O_NOFOLLOW; /* nor one that is put there meanwhile */
    is_there = stat(path, &is) == 0;
    if (!is_there && errno != ENOENT)
        return errno;
    if (is_there && (is_same(&is, STDOUT_FILENO) || is_same(&is, STDERR_FILENO)))
        return fill(open(path, flags | O_APPEND), 0, bytes, count);
    if (is_there && !S_ISREG(is.st_mode))
        return fill(open(path, flags), 0, bytes, count);
    if (is_link && !is_there) /* it leads to what is still to be made */
        return fill(open(path, flags | O_CREAT | O_TRUNC, mode), is_durable, bytes, count);
    if (is_link && !(target = realpath(path, NULL)))
        return errno;
    why = put_beside(target ? target : path, is_there ? &is : NULL, mode, is_durable, bytes, count);
    free(target);
    return why;
}
