/* SPDX-License-Identifier: MIT */
/* turn_lock.c: a lock that the processes of one user take in turn.
 *
 * The lock is flock(2) on an empty file (runfile.h), so the kernel releases it when its process ends.  (A child of fork
 * shares the open file, but not the lock once it was released.)  Only the holder removes the file, before it releases
 * the lock; a process that gets the lock of a file without a name opens another file.  A holder that was killed leaves
 * the file to the next process.  A file that is not a plain file of this user is not used.
 */
#include "ipc/turn_lock.h"

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
        (void)fchmod(file, 0600); /* the umask must not change the mode */
        return 0;
    }
    close(file);
    errno = EPERM;
    return -1;
}

int weir__process_lock_try(struct weir_process_lock *lock, const char *name) {
    struct stat is;

    while (!lock->held) {
        if (!weir__kept_is(&lock->file) && open_lock_file(lock, name) != 0)
            return -1;
        if (flock(lock->file.number, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        lock->held = fstat(lock->file.number, &is) != 0 || is.st_nlink > 0;
        if (!lock->held)
            weir__process_lock_give(lock);
    }
    return 1;
}

void weir__process_lock_give(struct weir_process_lock *lock) {
    if (lock->held && weir__kept_is(&lock->file)) {
        /* Another process may have removed the file.  If another file has the name now, the name stays. */
        (void)weir__runfile_unname(lock->file.number, lock->path);
        (void)flock(lock->file.number, LOCK_UN); /* a child of fork may have the file too */
    }
    weir__kept_close(&lock->file);
    *lock = (struct weir_process_lock)WEIR_PROCESS_LOCK_NONE;
}
