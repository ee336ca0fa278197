/* SPDX-License-Identifier: MIT */
/* file.c: opens and writes weir's own files (file.h).
 *
 * The kernel sends SIGXFSZ to the thread that writes, so weir__file_guard() blocks the signal only in this thread. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

int weir__file_copy(int file) {
    return fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

int weir__file_above(int file) {
    int above, error;

    if (file < 0 || file > STDERR_FILENO)
        return file;
    above = weir__file_copy(file);
    error = errno;
    close(file);
    errno = error;
    return above;
}

int weir__file_open(const char *path, int flags, mode_t mode) {
    return weir__file_above(open(path, flags | O_CLOEXEC, mode));
}

FILE *weir__file_read(const char *path) {
    int file = weir__file_open(path, O_RDONLY, 0);
    FILE *stream = file < 0 ? NULL : fdopen(file, "r");

    if (file >= 0 && !stream)
        close(file); /* unreached: no test makes the C library run out of host memory here */
    return stream;
}

ssize_t weir__file_read_up_to(int file, char *text, size_t most) {
    size_t bytes = 0;
    ssize_t more = 1;

    while (bytes < most && more != 0) {
        more = read(file, text + bytes, most - bytes);
        if (more < 0 && errno != EINTR)
            return -1;
        bytes += more > 0 ? (size_t)more : 0;
    }
    return (ssize_t)bytes;
}

char *weir__file_text(const char *path, char *why, size_t why_bytes) {
    int file = weir__file_open(path, O_RDONLY | O_NOCTTY, 0);
    char *text = file < 0 ? NULL : malloc(WEIR_FILE_TEXT_BYTES + 1);
    ssize_t bytes = text ? weir__file_read_up_to(file, text, WEIR_FILE_TEXT_BYTES + 1) : -1;

    if (bytes < 0) {
        snprintf(why, why_bytes, "%s", strerror(errno));
    } else if (bytes > WEIR_FILE_TEXT_BYTES) {
        snprintf(why, why_bytes, "it is longer than %d bytes", WEIR_FILE_TEXT_BYTES);
        bytes = -1;
    } else if (memchr(text, '\0', (size_t)bytes)) {
        snprintf(why, why_bytes, "it is no text: it has a byte 0");
        bytes = -1;
    } else {
        text[bytes] = '\0';
    }
    if (file >= 0)
        close(file);
    if (bytes >= 0)
        return text;
    free(text);
    return NULL;
}

static void name_the_signal(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGXFSZ);
}

void weir__file_guard(struct weir_file_guard *guard) {
    int saved_errno = errno;
    struct rlimit limit;
    sigset_t set;

    guard->is_on = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (guard->is_on) {
        guard->was_pending = sigpending(&set) == 0 && sigismember(&set, SIGXFSZ) == 1;
        name_the_signal(&set);
        guard->is_on = pthread_sigmask(SIG_BLOCK, &set, &guard->before) == 0;
    }
    errno = saved_errno;
}

void weir__file_unguard(const struct weir_file_guard *guard) {
    static const struct timespec at_once = {0, 0};
    int saved_errno = errno;
    sigset_t set;

    if (!guard->is_on)
        return;
    name_the_signal(&set);
    while (!guard->was_pending && sigtimedwait(&set, NULL, &at_once) < 0 && errno == EINTR)
        ;
    (void)pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
    errno = saved_errno;
}

/* Evaluates to the result of `call`, which writes to a file, while SIGXFSZ is blocked. */
#define GUARDED(call)                                                                              \
    __extension__({                                                                                \
        struct weir_file_guard its_guard;                                                          \
        weir__file_guard(&its_guard);                                                              \
        __typeof__(call) its_result = call;                                                        \
        weir__file_unguard(&its_guard);                                                            \
        its_result;                                                                                \
    })

ssize_t weir__file_write_at(int file, const void *from, size_t bytes, off_t at) {
    return GUARDED(pwrite(file, from, bytes, at));
}

int weir__file_resize(int file, off_t bytes) {
    return GUARDED(ftruncate(file, bytes));
}

int weir__file_reserve(int file, off_t bytes) {
    return GUARDED(posix_fallocate(file, 0, bytes));
}
