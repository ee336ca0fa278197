/* SPDX-License-Identifier: MIT */
/* runfile.c: finds, creates and opens the files through which processes of one user find each other (runfile.h). */
#include "base/runfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/variable.h"

/* Returns the folder with index `number` in the list of folders for shared files, or NULL at the end of the list. */
static const char *candidate_folder(int number) {
    static const char *const folders[] = {"/dev/shm", "/tmp", NULL};
    const char *only = weir__variable("WEIR_RUN_FOLDER");

    if (!only || only[0] != '/')
        only = weir__variable("WEIR_GROUP_DIR");
    if (!only || only[0] != '/')
        return folders[number];
    return number == 0 ? only : NULL;
}

static int is_own_file(const struct stat *is) {
    return S_ISREG(is->st_mode) && is->st_uid == geteuid();
}

static int may_use_folder(const char *in, const char *path) {
    struct stat is;

    return access(in, W_OK | X_OK) == 0 && (lstat(path, &is) != 0 || is_own_file(&is));
}

int weir__runfile_path(char *path, size_t bytes, const char *format, ...) {
    const char *in = candidate_folder(0), *next;
    size_t length;
    va_list words;

    for (int i = 1;; i++, in = next) {
        length = (size_t)snprintf(path, bytes, "%s/weir-%lu-", in, (unsigned long)geteuid());
        va_start(words, format);
        if (length < bytes)
            length += (size_t)vsnprintf(path + length, bytes - length, format, words);
        va_end(words);
        next = candidate_folder(i);
        if (length >= bytes) {
            errno = ENAMETOOLONG;
            return -1;
        }
        if (!next || may_use_folder(in, path))
            return 0;
    }
}

void weir__runfile_each(const char *begins, weir_runfile_visitor *visit, void *context) {
    char prefix[128], path[512];
    size_t own =
        (size_t)snprintf(prefix, sizeof prefix, "weir-%lu-%s", (unsigned long)geteuid(), begins);
    const char *in;

    for (int i = 0; (in = candidate_folder(i)); i++) {
        DIR *entries = opendir(in);
        struct dirent *entry;

        while (entries && (entry = readdir(entries)))
            if (strncmp(entry->d_name, prefix, own) == 0 &&
                (size_t)snprintf(path, sizeof path, "%s/%s", in, entry->d_name) < sizeof path)
                visit(path, entry->d_name + own, context);
        if (entries)
            closedir(entries);
    }
}

int weir__runfile_open(const char *path, int flags) {
    return weir__file_open(path, flags | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
}

int weir__runfile_is_own(int file, struct stat *is) {
    return fstat(file, is) == 0 && is_own_file(is);
}

int weir__runfile_is_sound(int file, size_t bytes, const void *head, size_t head_bytes) {
    char has[64];
    struct stat is;

    return weir__runfile_is_own(file, &is) && (is.st_mode & 077) == 0 && is.st_nlink == 1 &&
           is.st_size == (off_t)bytes && head_bytes <= sizeof has &&
           pread(file, has, head_bytes, 0) == (ssize_t)head_bytes &&
           memcmp(has, head, head_bytes) == 0;
}

/* Reserves disk space for a new file, and writes `head`.  Without disk space, a later write to a mapping would raise
 * SIGBUS.  Returns 0, or -1 with errno. */
static int fill_file(int file, size_t bytes, const void *head, size_t head_bytes) {
    int error = weir__file_reserve(file, (off_t)bytes);

    if (error) {
        errno = error;
        return -1;
    }
    return fchmod(file, 0600) == 0 &&
                   weir__file_write_at(file, head, head_bytes, 0) == (ssize_t)head_bytes
               ? 0
               : -1;
}

int weir__runfile_make(const char *path, size_t bytes, const void *head, size_t head_bytes) {
    char in[512], from[64];
    int file, error = 0;

    snprintf(in, sizeof in, "%s", path);
    *strrchr(in, '/') = '\0';
    file = weir__file_open(in, O_TMPFILE | O_RDWR, 0600);
    if (file < 0)
        return -1;
    /* not /proc/self, which belongs to the first thread of the process; that thread may have ended */
    snprintf(from, sizeof from, "/proc/thread-self/fd/%d", file);
    if (fill_file(file, bytes, head, head_bytes) != 0 ||
        linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        error = errno;
    close(file);
    errno = error;
    return error == 0 || error == EEXIST ? 0 : -1;
}

int weir__runfile_unname(int file, const char *path) {
    struct stat is, named;

    if (fstat(file, &is) != 0 || lstat(path, &named) != 0 || is.st_ino != named.st_ino ||
        is.st_dev != named.st_dev)
        return 0;
    return unlink(path) == 0 || errno == ENOENT ? 0 : -1;
}
