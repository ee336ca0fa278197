/* SPDX-License-Identifier: MIT */
/* turn_lock.c: takes and releases a lock between the processes of one user.
 *
 * The lock is flock(2) on an empty file (runfile.h), so the kernel releases the lock when its process ends.  A child of
 * fork() shares the open file.  If the parent releases the lock, the child does not hold the lock either.  Only the
 * process that holds the lock removes the file, and does so before it releases the lock.  If another process then gets
 * the lock of the file without a name, it opens or makes another file.  If the holder is killed, the file stays, and
 * the next process uses the file.  weir uses only a plain file of this user.
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
        (void)fchmod(file, 0600); /* sets the mode exactly, since the umask may have removed bits */
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
            weir__process_lock_release(lock);
    }
    return 1;
}

void weir__process_lock_release(struct weir_process_lock *lock) {
    if (lock->held && weir__kept_is(&lock->file)) {
        /* If another process has replaced the file meanwhile, weir__runfile_unname() does not remove the new file. */
        (void)weir__runfile_unname(lock->file.number, lock->path);
        /* Unlocks explicitly, since closing the file does not unlock while a child of fork() has the file open. */
        (void)flock(lock->file.number, LOCK_UN);
    }
    weir__kept_close(&lock->file);
    *lock = (struct weir_process_lock)WEIR_PROCESS_LOCK_NONE;
}
