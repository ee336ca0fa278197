/* SPDX-License-Identifier: MIT */
/* record_board.c: see record_board.h.
 *
 * A folder has two levels.  Everybody may pass the outer one, but only the recorder's user may list it.  Its name tells
 * which recorder has made it, so that a later recorder removes it if this one is killed.  The name of the inner one is
 * random, so it is known to the processes of the command alone, of whatever user.
 *
 * Each process may write to the board, of whatever user it is, but can remove no file of another user.
 *
 * Must not know: what an event is, what becomes of it.
 */
#include "cli/record_board.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/who.h"
#include "cli/common/memory.h"
#include "cli/common/temporary.h"

const char *const board_places[BOARD_FOLDERS] = {"/dev/shm", "/tmp"};

/* ---- files that are cut ------------------------------------------------------------------------ */

static volatile sig_atomic_t is_cut;

/* Maps an empty page in place of a page that its file does not have any more.  Otherwise the recorder would end when it
 * reads a file that a process of the command has truncated. */
static void replace_lost_page(int number, siginfo_t *info, void *context) {
    uintptr_t bytes = (uintptr_t)getpagesize(), page = (uintptr_t)info->si_addr & ~(bytes - 1);

    (void)context;
    is_cut = 1;
    if (info->si_code != BUS_ADRERR ||
        mmap((void *)page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        signal(number, SIG_DFL);
}

int board_is_cut(void) {
    return is_cut;
}

/* ---- begin and end ----------------------------------------------------------------------------- */

/* Removes an outer folder with the inner one.  Does nothing if the path is "". */
static void remove_folders(const char *outer) {
    DIR *folder = opendir(outer);
    char inner[2 * PATH_MAX];
    struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        snprintf(inner, sizeof inner, "%s/%s", outer, entry->d_name);
        if (entry->d_name[0] != '.')
            temporary_remove(inner);
    }
    if (folder)
        closedir(folder);
    (void)rmdir(outer);
}

/* Removes the folders that recorders of this user left as they were killed.  No other user can put a folder of this user
 * into such a place, or replace one there. */
static void remove_left_folders(const char *place) {
    DIR *folder = opendir(place);
    struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        uint64_t namespace, start;
        char path[PATH_MAX];
        struct stat is;
        int process;

        if (sscanf(entry->d_name, "weir-record-%" SCNu64 "-%d-%" SCNu64 "-", &namespace, &process,
                   &start) != 3 ||
            namespace != weir__process_namespace() || weir__process_lives(process, start))
            continue;
        snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
        if (lstat(path, &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == geteuid())
            remove_folders(path);
    }
    if (folder)
        closedir(folder);
}

/* Makes both levels of a folder.  Returns 0 or errno. */
static int make_hidden_folder(struct board *board, int i) {
    char *outer = board->outer[i], *inner = board->folders[i];
    unsigned char random[16];
    int used, error;

    snprintf(outer, sizeof board->outer[i], "%s/weir-record-%" PRIu64 "-%d-%" PRIu64 "-XXXXXX",
             board_places[i], weir__process_namespace(), (int)getpid(),
             weir__process_start(getpid()));
    if (!mkdtemp(outer)) {
        *outer = '\0';
        return errno;
    }
    used = snprintf(inner, sizeof board->folders[i], "%s/", outer);
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random) {
        for (size_t j = 0; j < sizeof random; j++)
            used +=
                snprintf(inner + used, sizeof board->folders[i] - (size_t)used, "%02x", random[j]);
        if (chmod(outer, 0711) == 0 && mkdir(inner, 0700) == 0 && chmod(inner, 01777) == 0)
            return 0;
    }
    error = errno;
    *inner = '\0';
    return error;
}

/* Makes the board's file in that folder, with all its memory.  Returns 0 or errno. */
static int make_board(struct board *board, const char *folder, uint32_t spares) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    size_t bytes = weir__record_board_bytes(spares);
    char path[PATH_MAX];
    int error;

    snprintf(path, sizeof path, "%s/%s", folder, WEIR_RECORD_BOARD);
    board->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (board->fd < 0)
        return errno;
    lock.l_start = WEIR_RECORD_LOCK_RECORDER;
    error = weir__file_reserve(board->fd, (off_t)bytes);
    if (!error && (fchmod(board->fd, 0666) != 0 || fcntl(board->fd, F_OFD_SETLK, &lock) != 0))
        error = errno;
    if (!error) {
        board->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board->fd, 0);
        if (board->map == MAP_FAILED)
            error = errno;
    }
    if (error) {
        close(board->fd);
        unlink(path);
        return error;
    }
    board->spares = spares;
    board->map->magic = WEIR_RECORD_MAGIC;
    return 0;
}

int board_begin(struct board *board) {
    static const uint32_t spares[] = {WEIR_RECORD_SPARES, 0};
    const struct sigaction lost = {.sa_sigaction = replace_lost_page, .sa_flags = SA_SIGINFO};
    int error = 0;

    (void)sigaction(SIGBUS, &lost, NULL);

    for (int i = 0; i < BOARD_FOLDERS; i++) {
        remove_left_folders(board_places[i]);
        error = make_hidden_folder(board, i);
    }
    for (size_t j = 0; j < sizeof spares / sizeof spares[0]; j++)
        for (int i = 0; i < BOARD_FOLDERS; i++)
            if (*board->folders[i] &&
                (error = make_board(board, board->folders[i], spares[j])) == 0)
                return 0;
    board_end(board);
    return error;
}

void board_spell(const struct board *board, char *text, size_t bytes) {
    snprintf(text, bytes, "%s%s%s", board->folders[0],
             *board->folders[0] && *board->folders[1] ? ":" : "", board->folders[1]);
}

void board_close(struct board *board) {
    atomic_store(&board->map->is_closed, 1);
    /* A process may have cut the board, so its count of files cannot tell whether a last look is needed. */
    board->seen = ~atomic_load(&board->map->files);
}

void board_end(struct board *board) {
    for (int i = 0; i < BOARD_FOLDERS; i++)
        remove_folders(board->outer[i]);
}

/* ---- files ------------------------------------------------------------------------------------- */

void *board_map(const struct board *board, const char *name, size_t bytes) {
    int fd = -1, error;
    void *map = NULL;
    char path[PATH_MAX];
    struct stat status;

    for (int i = 0; fd < 0 && i < BOARD_FOLDERS; i++) {
        if (!*board->folders[i])
            continue;
        snprintf(path, sizeof path, "%s/%s", board->folders[i], name);
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno != ENOENT)
            return NULL;
    }
    if (fd < 0)
        return NULL;
    errno = EINVAL;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == (off_t)bytes)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map = map == MAP_FAILED ? NULL : map;
    error = errno;
    close(fd);
    unlink(path);
    errno = error;
    return map;
}

/* Adds a file to `found`.  Returns 0 or ENOMEM. */
static int add_found(struct found *found, struct weir_record_file *file) {
    if (!memory_make_room(&found->files, &found->room, found->count, sizeof *found->files))
        return ENOMEM;
    found->files[found->count++] = file;
    return 0;
}

/* Returns 0, or errno if the folder or a file in it cannot be read. */
static int look_in_folder(struct board *board, const char *path, struct found *found) {
    DIR *folder = *path ? opendir(path) : NULL;
    int error = *path && !folder && errno != ENOENT ? errno : 0;
    struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        struct weir_record_file *file;

        if (!isdigit((unsigned char)entry->d_name[0]) || strchr(entry->d_name, '.'))
            continue;
        file = board_map(board, entry->d_name, sizeof *file);
        if (!file || atomic_load(&file->head.magic) != WEIR_RECORD_MAGIC)
            error = file ? EINVAL : errno;
        else
            error = add_found(found, file);
        if (file && error)
            munmap(file, sizeof *file);
    }
    if (folder)
        closedir(folder);
    return error;
}

static int is_older(const void *one, const void *other) {
    uint64_t a = (*(struct weir_record_file *const *)one)->head.start;
    uint64_t b = (*(struct weir_record_file *const *)other)->head.start;

    return a < b ? -1 : a > b;
}

int board_has_new(const struct board *board) {
    return atomic_load(&board->map->files) != board->seen;
}

int board_look(struct board *board, struct found *found) {
    int error = 0, failed;

    board->seen = atomic_load(&board->map->files);
    for (uint32_t i = 0; i < board->spares; i++)
        if (!board->is_adopted[i] &&
            atomic_load(&board->map->spare[i].head.magic) == WEIR_RECORD_MAGIC) {
            failed = add_found(found, &board->map->spare[i]);
            board->is_adopted[i] = !failed;
            error = failed ? failed : error;
        }
    for (int i = 0; i < BOARD_FOLDERS; i++) {
        failed = look_in_folder(board, board->folders[i], found);
        error = failed ? failed : error;
    }
    if (found->count > 1)
        qsort(found->files, found->count, sizeof *found->files, is_older);
    return error;
}

void board_release(struct board *board, struct weir_record_file *file) {
    for (uint32_t i = 0; i < board->spares; i++)
        if (file == &board->map->spare[i]) {
            if (!board_owner_lives(board, &file->head)) {
                atomic_store(&file->head.magic, 0);
                atomic_store(&file->head.rings, 0);
                atomic_store(&file->head.lost, 0);
                atomic_store(&file->head.is_closed, 0);
                atomic_store(&file->shared.written, 0);
                atomic_store(&file->shared.entered, 0);
                atomic_store(&file->shared.read, 0);
                board->is_adopted[i] = 0;
                atomic_store(&file->head.is_taken, 0);
            }
            return;
        }
    munmap(file, sizeof *file);
}

/* ---- unrecorded processes ---------------------------------------------------------------------- */

static void tell_unrecorded(const struct weir_record_unrecorded *entry) {
    const char *why = strerror(entry->error);

    fprintf(stderr, "weir record: process %d runs on unrecorded: ", (int)entry->process);
    if (entry->error == ENOSPC)
        fprintf(stderr, "no room for its events in %s or %s: %s.  Make room there.\n",
                board_places[0], board_places[1], why);
    else if (entry->error == EMFILE || entry->error == EFBIG)
        fprintf(stderr, "it can %s no file for its events: %s.  Raise ulimit -%c.\n",
                entry->error == EMFILE ? "open" : "make", why, entry->error == EMFILE ? 'n' : 'f');
    else
        fprintf(stderr,
                "it can make no file for its events: %s.  weir record has places for %d such "
                "processes at once: start fewer.\n",
                why, WEIR_RECORD_SPARES);
}

int board_tell_unrecorded(struct board *board) {
    uint32_t before = board->told, count = atomic_load(&board->map->unrecorded_count);

    while (board->told < count && board->told < WEIR_RECORD_UNRECORDED &&
           atomic_load(&board->map->unrecorded[board->told].is_complete))
        tell_unrecorded(&board->map->unrecorded[board->told++]);
    return board->told > before;
}

void board_count_unrecorded(const struct board *board, uint64_t *processes, uint64_t *events) {
    *processes += atomic_load(&board->map->unrecorded_count);
    for (uint32_t i = 0; i < board->told; i++)
        *events += atomic_load(&board->map->unrecorded[i].lost);
}

/* ---- locks ------------------------------------------------------------------------------------- */

/* Returns 1 if another process has locked one of `length` bytes from `first` on, or if the kernel cannot say; else 0.
 * A length of 0 means all bytes from `first` on. */
static int is_locked_by_other(const struct board *board, uint64_t first, off_t length) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = length};

    return fcntl(board->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

int board_owner_lives(const struct board *board, const struct weir_record_head *head) {
    return !head->is_locked || is_locked_by_other(board, WEIR_RECORD_LOCK_FIRST + head->number, 1);
}

int board_anyone_lives(const struct board *board) {
    return is_locked_by_other(board, WEIR_RECORD_LOCK_FIRST, 0);
}
