/* SPDX-License-Identifier: MIT */
/* record_files.c: creates the files by which a recorded process passes its events to `weir record` (record_ring.h).
 *
 * When this library is loaded, its constructor maps the file `board` of `weir record`, and gets and locks a number for
 * this process.  The library creates no file before the first event, since a process may never use CUDA.
 *
 * A child of fork, which has another process id, gets its own number at its first event.
 *
 * The code in this file must not depend on how weir replaces the driver's functions, or on what an event contains. */
#include "adapters/record/record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/who.h"

enum { MOST_FOLDERS = 4 };

static char *folders[MOST_FOLDERS]; /* folders for files; NULL after the last */
static struct weir_record_board *board;
static uint32_t spares; /* the number of spare files in `board` */
static uint64_t number, namespace;
static pid_t numbered; /* the process to which `number` belongs, or 0 */
static int is_locked;

/* ---- the shared file `board` ------------------------------------------------------------------- */

static int open_board(void) {
    int fd = -1;

    for (int i = 0; fd < 0 && i < MOST_FOLDERS && folders[i]; i++) {
        char path[PATH_MAX];

        snprintf(path, sizeof path, "%s/%s", folders[i], WEIR_RECORD_BOARD);
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    return fd;
}

static void map_board(int fd) {
    struct weir_record_board *map;
    struct stat is;

    if (fstat(fd, &is) != 0 || (size_t)is.st_size < sizeof *map)
        return;
    map = mmap(NULL, (size_t)is.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return;
    spares =
        (size_t)is.st_size >= weir__record_board_bytes(WEIR_RECORD_SPARES) ? WEIR_RECORD_SPARES : 0;
    if (map->magic == WEIR_RECORD_MAGIC)
        board = map;
    else
        munmap(map, (size_t)is.st_size);
}

/* Gets a number for this process from the file `board`.  Locks the byte for this number until the process ends. */
static void claim_number(void) {
    int fd = open_board();
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    if (fd >= 0 && !board)
        map_board(fd);
    else if (fd >= 0 && mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) {
        close(fd); /* without a mapping, the lock would end here */
        fd = -1;
    }
    if (board) {
        number = atomic_fetch_add(&board->last_number, 1) + 1;
        numbered = getpid();
        lock.l_start = (off_t)(WEIR_RECORD_LOCK_FIRST + number);
        is_locked = fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0;
        namespace = weir__process_namespace();
    }
    if (fd >= 0)
        close(fd);
}

int weir__record_recorder_lives(void) {
    int fd = open_board(), lives;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

    lock.l_start = WEIR_RECORD_LOCK_RECORDER;
    lives = fd < 0 || fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return lives;
}

static __attribute__((constructor)) void claim_number_at_load(void) {
    const char *value = getenv(WEIR_RECORD_FOLDER);
    char *rest = value ? strdup(value) : NULL;
    int before = errno;

    for (int i = 0; rest && i < MOST_FOLDERS; i++)
        folders[i] = strsep(&rest, ":");
    if (folders[0])
        claim_number();
    errno = before;
}

/* ---- the files --------------------------------------------------------------------------------- */

/* Creates a file, allocates all its memory, and maps the file.  On failure, returns MAP_FAILED and sets errno. */
static void *map_new_file(const char *path, size_t bytes) {
    struct rlimit most;
    void *map = MAP_FAILED;
    int fd, error;

    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) {
        errno = EFBIG; /* otherwise posix_fallocate() would end the program by SIGXFSZ */
        return map;
    }
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return map;
    (void)fchmod(fd, 0666); /* `weir record` may run as another user */
    while ((error = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR)
        ;
    if (!error) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = errno;
    }
    close(fd);
    if (map == MAP_FAILED)
        unlink(path);
    errno = error;
    return map;
}

static void fill_head(struct weir_record_head *head, int has_counter) {
    head->number = number;
    head->start = weir__record_time(has_counter);
    head->namespace = namespace;
    head->process = getpid();
    head->is_locked = is_locked;
    weir__process_command(0, head->command, sizeof head->command);
    atomic_store(&head->magic, WEIR_RECORD_MAGIC);
}

/* Creates the file for this process's events.  Returns NULL with the reason in errno on failure. */
static struct weir_record_file *create_file_in(const char *folder, int has_counter) {
    char path[PATH_MAX], last[PATH_MAX];
    struct weir_record_file *made;
    int error;

    snprintf(path, sizeof path, "%s/new-%" PRIu64, folder, number);
    snprintf(last, sizeof last, "%s/%" PRIu64, folder, number);
    made = map_new_file(path, sizeof *made);
    if (made == MAP_FAILED)
        return NULL;
    fill_head(&made->head, has_counter);
    if (rename(path, last) == 0)
        return made;
    error = errno;
    unlink(path);
    munmap(made, sizeof *made);
    errno = error;
    return NULL;
}

static struct weir_record_file *claim_spare_file(int has_counter) {
    for (uint32_t i = 0; i < spares; i++) {
        struct weir_record_head *head = &board->spare[i].head;
        uint32_t is_in_use = 0;

        if (!atomic_compare_exchange_strong(&head->is_in_use, &is_in_use, 1))
            continue;
        fill_head(head, has_counter);
        return &board->spare[i];
    }
    return NULL;
}

/* Adds this process to `board->unrecorded`.  Returns the entry's lost-event counter, or NULL if the table is full. */
static _Atomic uint64_t *add_unrecorded_process(int error) {
    uint32_t i = atomic_fetch_add(&board->unrecorded_count, 1);
    struct weir_record_unrecorded *entry = &board->unrecorded[i];

    if (i >= WEIR_RECORD_UNRECORDED)
        return NULL;
    entry->process = getpid();
    entry->error = error;
    atomic_store(&entry->is_complete, 1);
    return &entry->lost;
}

/* Prints that this process is not recorded, because `weir record` had ended before the first request.  Returns NULL. */
static void *report_recorder_ended(void) {
    fprintf(stderr, "weir record: process %d is not recorded: weir record has ended\n",
            (int)getpid());
    return NULL;
}

struct weir_record_file *weir__record_file_create(int has_counter, _Atomic uint64_t **lost) {
    struct weir_record_file *made = NULL;
    int error;

    *lost = NULL;
    if (!folders[0])
        return NULL;
    if (numbered != getpid())
        claim_number();
    if (!board) {
        fprintf(stderr, "weir record: process %d is not recorded: it cannot reach %s: %s\n",
                (int)getpid(), folders[0], strerror(errno));
        return NULL;
    }
    if (atomic_load(&board->is_closed) || !weir__record_recorder_lives())
        return report_recorder_ended();
    for (int i = 0; !made && i < MOST_FOLDERS && folders[i]; i++)
        made = create_file_in(folders[i], has_counter);
    error = errno;
    if (!made)
        made = claim_spare_file(has_counter);
    *lost = made ? &made->head.lost : add_unrecorded_process(error);
    if (made)
        atomic_fetch_add(&board->files, 1);
    /* If `is_closed` is not set yet, `weir record` will search for new files again, and find this file. */
    return atomic_load(&board->is_closed) ? report_recorder_ended() : made;
}

struct weir_record_ring *weir__record_ring_create(uint32_t index) {
    for (int i = 0; i < MOST_FOLDERS && folders[i]; i++) {
        char path[PATH_MAX];
        void *made;

        snprintf(path, sizeof path, "%s/%" PRIu64 ".%" PRIu32, folders[i], number, index);
        made = map_new_file(path, sizeof(struct weir_record_ring));
        if (made != MAP_FAILED)
            return made;
    }
    return NULL;
}
