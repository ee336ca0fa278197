/* SPDX-License-Identifier: MIT */
/* turn_lock.c: a lock that the processes of one user take in turn.
 *
 * A file of the user's own, in the first of $XDG_RUNTIME_DIR, /dev/shm and /tmp where it can be made, with
 * flock(2): who dies gives the lock up with the file.  (A child of fork that runs on has the open file
 * too, but not the lock once it was given back.)  Nothing is in it.  Who has the lock, and nobody else, removes the
 * file before giving it back, and who gets the lock of a file without a name opens another; one that was killed
 * leaves it to the next.
 *
 * /dev/shm and /tmp are everybody's: a link is not followed, and what is not a plain file of this user is not
 * taken, whoever put it there.
 *
 * Must not know: what it guards.
 */
#include "ipc/turn_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unname.h"

/* Opened non-blocking, since it may turn out to be a pipe. */
static int open_in(const char *folder, const char *name, char path[WEIR_PROCESS_LOCK_PATH]) {
    struct stat is;
    int file, length = snprintf(path, WEIR_PROCESS_LOCK_PATH, "%s/weir-%lu-%s.lock", folder,
                                (unsigned long)geteuid(), name);

    if (length >= WEIR_PROCESS_LOCK_PATH) {
        errno = ENAMETOOLONG;
        return -1;
    }
    file = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0600);
    if (file < 0)
        return -1;
    if (fstat(file, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == geteuid()) {
        (void)fchmod(file, 0600); /* whatever the umask is */
        return file;
    }
    close(file);
    errno = EPERM;
    return -1;
}

static int open_file(struct weir_process_lock *lock, const char *name) {
    const char *folders[] = {getenv("XDG_RUNTIME_DIR"), "/dev/shm", "/tmp"};
    int file = -1;

    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && file < 0; i++)
        if (folders[i] && folders[i][0] == '/')
            file = open_in(folders[i], name, lock->path);
    if (file < 0 || weir__kept_set(&lock->file, file) == 0)
        return file < 0 ? -1 : 0;
    close(file);
    return -1;
}

static int has_name(int file) {
    struct stat is;

    return fstat(file, &is) != 0 || is.st_nlink > 0;
}

int weir__process_lock_try(struct weir_process_lock *lock, const char *name) {
    while (!lock->held) {
        if (!weir__kept_is(&lock->file) && open_file(lock, name) != 0)
            return -1;
        if (flock(lock->file.number, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        lock->held = has_name(lock->file.number);
        if (!lock->held)
            weir__process_lock_give(lock);
    }
    return 1;
}

void weir__process_lock_give(struct weir_process_lock *lock) {
    if (lock->held && weir__kept_is(&lock->file)) {
        (void)weir__unname(lock->file.number,
                           lock->path);          /* it may have been swept: another's stays */
        (void)flock(lock->file.number, LOCK_UN); /* a child of fork may have the file too */
    }
    weir__kept_close(&lock->file);
    *lock = (struct weir_process_lock)WEIR_PROCESS_LOCK_NONE;
}
