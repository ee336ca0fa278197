/* SPDX-License-Identifier: MIT */
/* replace.c: replaces the contents of a file (replace.h).
 *
 * weir creates the new file with O_EXCL, so it never writes to an existing file or link of that name. */
#include "config.h"

#include "base/file.h"
#include "base/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 64 };

int weir__write_all(int file, const char *at, size_t count) {
    struct weir_file_guard guard;
    int why = 0;

    weir__file_guard(&guard);
    while (count > 0 && why == 0) {
        ssize_t written = write(file, at, count);

        if (written < 0 && errno != EINTR)
            why = errno;
        at += written > 0 ? written : 0;
        count -= written > 0 ? (size_t)written : 0;
    }
    weir__file_unguard(&guard);
    return why;
}

int weir__append_all(const char *path, const char *text, size_t length) {
    int file = weir__file_open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    int error = file < 0 ? errno : weir__write_all(file, text, length);

    if (file >= 0 && close(file) != 0 && error == 0) /* unreached: only a network disk fails here */
        error = errno;                               /* unreached: only a network disk fails here */
    return error;
}

static void name_folder(const char *path, char folder[PATH_MAX]) {
    const char *slash = strrchr(path, '/');

    if (slash)
        snprintf(folder, PATH_MAX, "%.*s", slash > path ? (int)(slash - path) : 1, path);
    else
        snprintf(folder, PATH_MAX, ".");
}

/* Syncs the folder of a file, so that a new name survives a crash.  Ignores errors, since some file systems cannot. */
static void sync_folder(const char *path) {
    char name[PATH_MAX];
    int folder;

    name_folder(path, name);
    folder = weir__file_open(name, O_RDONLY | O_DIRECTORY, 0);
    if (folder < 0)
        return;
    (void)fsync(folder);
    close(folder);
}

static int is_descriptor_of(const struct stat *is, int file) {
    struct stat other;

    return fstat(file, &other) == 0 && other.st_dev == is->st_dev && other.st_ino == is->st_ino;
}

/* Returns 1 if weir may follow a symbolic link, else 0.  Another user's link could redirect weir's writes. */
static int may_follow(const char *path, const struct stat *link) {
    char folder[PATH_MAX];
    struct stat is;
    int open_to_all;

    name_folder(path, folder);
    open_to_all = stat(folder, &is) != 0 || (is.st_mode & S_IWOTH) != 0;
    return !open_to_all || link->st_uid == geteuid() || link->st_uid == 0;
}

/* Creates a new file with a temporary name beside the file at `path`.  Returns 0 on success, else an errno value. */
static int open_beside(struct weir_replacement *r, const char *path, const struct stat *before,
                       mode_t mode) {
    for (int i = 0; i < TRIES && r->file < 0; i++) {
        int length =
            snprintf(r->beside, sizeof r->beside, "%s.new.%ld.%d", path, (long)getpid(), i);

        if ((size_t)length >= sizeof r->beside)
            return ENAMETOOLONG;
        r->file = weir__file_open(r->beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
        if (r->file < 0 && errno != EEXIST)
            break;
    }
    if (r->file < 0)
        return errno;
    if (before)
        (void)fchmod(r->file, before->st_mode & mode);
    snprintf(r->path, sizeof r->path, "%s", path);
    return 0;
}

int weir__replace_open(const char *path, mode_t mode) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    int file = weir__file_open(path, flags, mode);

    return file < 0 && errno == EEXIST && unlink(path) == 0 ? weir__file_open(path, flags, mode)
                                                            : file;
}

int weir__replace_begin(struct weir_replacement *r, const char *path, mode_t mode) {
    int is_link, is_there, is_open, flags = O_WRONLY | O_NOCTTY;
    struct stat link, is;
    char *target = NULL;
    int why;

    r->file = -1;
    r->path[0] = '\0';
    if (!*path) /* without this check, an empty path would create a file */
        return ENOENT;
    is_there = lstat(path, &link) == 0;
    if (!is_there && errno != ENOENT) /* errors such as EACCES: the file may exist */
        return errno;
    is_link = is_there && S_ISLNK(link.st_mode);
    if (is_link && !may_follow(path, &link))
        return EACCES;
    if (!is_link)
        flags |= O_NOFOLLOW; /* another process may have created a link after the check above */
    is_there = stat(path, &is) == 0;
    if (!is_there && errno != ENOENT)
        return errno;
    is_open =
        is_there && (is_descriptor_of(&is, STDOUT_FILENO) || is_descriptor_of(&is, STDERR_FILENO));
    if (is_open)
        flags |= O_APPEND;
    if (is_link && !is_there) /* a link whose target does not exist */
        flags |= O_CREAT | O_TRUNC;
    /* The file is not replaced but written in place: it is standard output, standard error, or no regular file. */
    if (is_open || (is_there ? !S_ISREG(is.st_mode) : is_link)) {
        r->file = weir__file_open(path, flags, mode);
        return r->file < 0 ? errno : 0;
    }
    if (is_link && !(target = realpath(path, NULL)))
        return errno;
    why = open_beside(r, target ? target : path, is_there ? &is : NULL, mode);
    free(target);
    return why;
}

int weir__replace_end(struct weir_replacement *r, int why, int is_durable) {
    int is_beside = r->path[0] != '\0';

    /* fsync(2) fails with EINVAL for a pipe */
    if (why == 0 && is_durable && fsync(r->file) != 0 && errno != EINVAL)
        why = errno;
    if (close(r->file) != 0 && why == 0)
        why = errno;
    if (!is_beside)
        return why;
    if (why == 0 && rename(r->beside, r->path) != 0)
        why = errno;
    if (why != 0)
        (void)unlink(r->beside);
    else if (is_durable)
        sync_folder(r->path);
    return why;
}

int weir__replace_file(const char *path, mode_t mode, int is_durable, const void *bytes,
                       size_t count) {
    struct weir_replacement r;
    int why = weir__replace_begin(&r, path, mode);

    return why != 0 ? why
                    : weir__replace_end(&r, weir__write_all(r.file, bytes, count), is_durable);
}
