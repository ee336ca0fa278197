/* SPDX-License-Identifier: MIT */
/* process_lock.c: a lock between the processes of one user: flock(2) on an empty file (runfile.h), which the kernel
 * releases when the holder ends.
 *
 * A child of fork() shares the open file, so it loses the lock when its parent releases it.  Only the holder removes
 * the file, before it releases the lock.  A process that gets the lock of a file without a name opens or makes another
 * file.  If the holder is killed, the next process uses its file. */
#include "ipc/process_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/runfile.h"

static int open_lock_file(struct weir_process_lock *lock, const char *name) {
    struct stat is;
    int file;

    if (weir__runfile_path(lock->path, sizeof lock->path, "%s.lock", name) != 0)
        return -1;
    file = weir__runfile_open(lock->path, O_RDONLY | O_CREAT);
    if (file < 0)
        return -1;
    if (weir__runfile_is_own(file, &is) && weir__kept_set(&lock->file, file) == 0) {
        (void)fchmod(file, 0600); /* the umask may have removed bits */
        return 0;
    }
    close(file);
    errno = EPERM;
    return -1;
}

int weir__process_lock_try(struct weir_process_lock *lock, const char *name) {
    struct stat is;

    while (!lock->is_locked) {
        if (!weir__kept_is(&lock->file) && open_lock_file(lock, name) != 0)
            return -1;
        if (flock(lock->file.number, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        lock->is_locked = fstat(lock->file.number, &is) != 0 || is.st_nlink > 0;
        if (!lock->is_locked)
            weir__process_lock_release(lock);
    }
    return 1;
}

void weir__process_lock_release(struct weir_process_lock *lock) {
    if (lock->is_locked && weir__kept_is(&lock->file)) {
        /* If another process has replaced the file, weir__runfile_unname() keeps the new file. */
        (void)weir__runfile_unname(lock->file.number, lock->path);
        /* Unlocks explicitly, since closing the file does not unlock while a child of fork() has the file open. */
        (void)flock(lock->file.number, LOCK_UN);
    }
    weir__kept_close(&lock->file);
    *lock = (struct weir_process_lock)WEIR_PROCESS_LOCK_NONE;
}
