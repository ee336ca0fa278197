/* SPDX-License-Identifier: MIT */
/* deny.h: calls on files and threads, of which the k-th fails, or all from it on; and how many files are open.
 *
 * For one file of a suite: it defines them for the whole program, each by the one that is found behind it, and for
 * one thread at a time.  Where another stands in between, a sanitizer or a checked variant, CAN_DENY is not
 * defined.
 *
 * Must not know: what calls them.
 */
#ifndef WEIR_TEST_DENY_H
#define WEIR_TEST_DENY_H

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "refuse.h"

#if defined(CAN_REFUSE_HOST_MEMORY) && defined(__GLIBC_PREREQ) && !(__USE_FORTIFY_LEVEL > 0)
#if __GLIBC_PREREQ(2, 33)
#define CAN_DENY 1
#endif
#endif

#ifdef CAN_DENY
static _Thread_local uint64_t deny_in;     /* 0: never; 1: the next one */
static _Thread_local int deny_for_good;    /* that one and all later ones */
static _Thread_local int deny_with;        /* errno */
static _Thread_local const char *deny_one; /* calls of that name alone; NULL: all */
static _Thread_local uint64_t denials;     /* so far */
static const char *looks_at[2];            /* stat of the first is of the second */
static const void *reads;                  /* what the next read finds, if it is not NULL, */
static size_t reads_bytes;                 /* and how much of it there is */

/* Called in each call of this thread, if it is set. */
static _Thread_local void (*meanwhile)(const char *name);

static int denied(const char *name) {
    if (meanwhile)
        meanwhile(name);
    if (deny_in == 0 || (deny_one && strcmp(deny_one, name) != 0) || --deny_in > 0)
        return 0;
    deny_in = deny_for_good != 0;
    denials++;
    errno = deny_with;
    return 1;
}

/* What would be called without this file. */
#define BEHIND(name) ((__typeof__(&(name)))(uintptr_t)dlsym(RTLD_NEXT, #name))
#define DENY(type, name, failure, takes, gives)                                                    \
    type name takes {                                                                              \
        return denied(#name) ? failure : BEHIND(name) gives;                                       \
    }

#pragma GCC visibility push(default)
int open(const char *path, int flags, ...) {
    va_list arguments;
    unsigned mode;

    va_start(arguments, flags);
    mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    return denied("open") ? -1 : BEHIND(open)(path, flags, mode);
}
int fcntl(int file, int command, ...) {
    va_list arguments;
    void *more;

    va_start(arguments, command);
    more = va_arg(arguments, void *);
    va_end(arguments);
    return denied("fcntl") ? -1 : BEHIND(fcntl)(file, command, more);
}
/* It is closed all the same. */
int close(int file) {
    int result = BEHIND(close)(file);

    return denied("close") ? -1 : result;
}
/* Of some paths another is looked at. */
int stat(const char *path, struct stat *is) {
    if (looks_at[0] && strcmp(path, looks_at[0]) == 0)
        path = looks_at[1];
    return denied("stat") ? -1 : BEHIND(stat)(path, is);
}
ssize_t read(int file, void *to, size_t bytes) {
    const void *from = reads;

    if (!from)
        return denied("read") ? -1 : BEHIND(read)(file, to, bytes);
    reads = NULL;
    memcpy(to, from, bytes < reads_bytes ? bytes : reads_bytes);
    return (ssize_t)(bytes < reads_bytes ? bytes : reads_bytes);
}
/* clang-format off */
DENY(int, fstat, -1, (int file, struct stat *is), (file, is))
DENY(int, lstat, -1, (const char *path, struct stat *is), (path, is))
DENY(int, access, -1, (const char *path, int how), (path, how))
DENY(ssize_t, pread, -1, (int file, void *to, size_t bytes, off_t at), (file, to, bytes, at))
DENY(ssize_t, write, -1, (int file, const void *from, size_t bytes), (file, from, bytes))
DENY(ssize_t, pwrite, -1, (int file, const void *from, size_t bytes, off_t at), (file, from, bytes, at))
DENY(int, posix_fallocate, deny_with, (int file, off_t at, off_t bytes), (file, at, bytes))
DENY(int, fchmod, -1, (int file, mode_t mode), (file, mode))
DENY(int, fsync, -1, (int file), (file))
DENY(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))
DENY(int, ftruncate, -1, (int file, off_t bytes), (file, bytes))
DENY(int, flock, -1, (int file, int how), (file, how))
DENY(int, linkat, -1, (int in, const char *path, int to, const char *name, int flags), (in, path, to, name, flags))
DENY(int, rename, -1, (const char *path, const char *name), (path, name))
DENY(int, unlink, -1, (const char *path), (path))
DENY(char *, realpath, NULL, (const char *path, char *into), (path, into))
DENY(void *, mmap, MAP_FAILED, (void *at, size_t bytes, int access, int flags, int file, off_t from),
     (at, bytes, access, flags, file, from))
DENY(int, madvise, -1, (void *at, size_t bytes, int what), (at, bytes, what))
DENY(int, pthread_create, deny_with,
     (pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with), (thread, how, run, with))
/* clang-format on */
#pragma GCC visibility pop

/* From here on, until deny_none: the k-th, or all from it on; of that name, NULL: of any. */
static inline void deny(const char *name, uint64_t k, int for_good, int with) {
    deny_one = name;
    deny_in = k;
    deny_for_good = for_good;
    deny_with = with;
    denials = 0;
}

/* How many were denied. */
static inline uint64_t deny_none(void) {
    deny_in = 0;
    return denials;
}

static inline int files_open(void) {
    DIR *entries = opendir("/proc/self/fd");
    int files = -1; /* not the folder itself */

    while (entries && readdir(entries))
        files++;
    if (entries)
        closedir(entries);
    return files;
}
#endif

#endif
