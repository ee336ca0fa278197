/* SPDX-License-Identifier: MIT */
/* record.c: `weir record': runs an unmodified program, and writes its requests for device memory as a trace.
 *
 * The command runs with libweir-record.so preloaded, which puts requests into memory that it shares with this process.
 * This process writes the traces, so no request is lost however the command ends.  The first process that requests
 * memory has the trace FILE, each other process FILE.PID.
 *
 * Processes that the command leaves behind are recorded until they end, if they request memory within GRACE_NS of the
 * command's end; processes that request memory later report that they are not recorded.  As a subreaper this process is
 * the parent of all of them.
 *
 * This file must not know which calls are recorded or the syntax of the lines.
 */
#include <argp.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/replace.h"
#include "base/text.h"
#include "base/who.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/files.h"
#include "cli/common/flags.h"
#include "cli/common/memory.h"
#include "cli/tracing.h"

#define NVTX_LIBRARY "NVTX_INJECTION64_PATH"
#ifdef HAVE_ZSTD
#define DEFAULT_FILE "weir.trace.zst"
#else
#define DEFAULT_FILE "weir.trace.gz"
#endif

enum { BOARD_FOLDERS = 2 };

/* The places of the folders, in the order in which weir record tries them. */
static const char *const board_places[BOARD_FOLDERS] = {"/dev/shm", "/tmp"};

static struct board {
    struct weir_record_board *map;
    int fd;          /* the file of the board (record_ring.h), with the recorder's lock */
    uint32_t spares; /* the number of spare files; no process can change this copy */
    uint64_t seen;   /* the number of files that processes had made at the last look */
    uint8_t is_adopted[WEIR_RECORD_SPARES]; /* set for spare files that weir record has found */
    /* The number of unrecorded processes that weir record has reported to the user. */
    uint32_t told;
    char outer[BOARD_FOLDERS][96];    /* the outer folders; "" if one could not be made */
    char folders[BOARD_FOLDERS][136]; /* the inner folders */
} board;

enum {
    PAUSE_US = 1000,
    BUSY_EVENTS = WEIR_RECORD_EVENTS / 4, /* a turn with this many events has no pause after it */
    MOST_WAITING = 1 << 17,               /* the most events of a process that may wait */
    ENDS_AT_ONCE = 16, /* processes that a turn checks, since a check costs a walk over all locks */
    SLACK_NS = 2000000,    /* the time until a store is visible to other processors */
    GRACE_NS = 1000000000, /* the time in which a process ends or loads the library */
    KEPT_DESCRIPTORS = 16  /* descriptors for files other than traces */
};

/* The events of a ring that wait, in order, until no thread can add an event with an earlier time.  The waiting events
 * are events[first] up to events[end]. */
struct waiting {
    struct weir_record_event *events;
    size_t first, end, room;
};

struct process {
    struct weir_record_file *file;
    struct weir_record_ring *rings[WEIR_RECORD_RINGS];
    int id, has_ended;
    /* The number of the process among all adopted processes; to adopt a process is to begin its trace. */
    size_t order;
    uint64_t start; /* the time at which the trace begins */
    char *path;
    char command[WEIR_RECORD_COMMAND_BYTES]; /* the command, or "" if it is not known */
    struct waiting waiting[WEIR_RECORD_RINGS + 1];
    size_t count; /* the number of events that wait, in all rings */
    uint64_t safe, last_us;
    struct tracing tracing;
};

static struct record {
    const char *path;
    int file;    /* the open file of that path, or -1 once a process has it */
    int is_made; /* set if weir record has made the file */
    int marks_at_sync, callers;
    const char *ranges; /* the NVTX ranges that end iterations, or NULL */
    uint64_t limit;
    char **command;
    struct weir_record_file **found; /* the files of processes that wait to be adopted */
    size_t found_count, found_room;
    struct process **processes; /* the adopted processes that live */
    size_t live, room;
    char **lines;            /* the final message for each adopted process, or NULL */
    size_t count, line_room; /* the number of adopted processes */
    struct weir_map ids;     /* process id -> the number of adopted processes with that id */
    uint64_t lost_events, lost_processes;
    uint64_t ended_ns; /* when the command ended, or 0 while it runs */
    /* When weir record last saw a recorded process that the command had left. */
    uint64_t present_ns;
    uint64_t wanted_ns; /* the last time at which no signal had told this process to end */
    int has_told_of_rest;
    int is_short; /* set if a process had to wait for a descriptor for its trace */
    int has_counter, failed;
    /* The processor's counter and the clock, at the beginning and now. */
    uint64_t first_time, first_ns, now_time, now_ns;
} record;

static int fail_record(int code, const char *what, const char *why) {
    fprintf(stderr, "weir record: %s: %s\n", what, why);
    return code;
}

/* ---------------------------------------------------------------------- folders ---- */

/* A folder of record_ring.h has two levels.  Everybody may enter the outer one, but only the recorder's user may list
 * it.  The outer folder's name has the recorder's process, so that a later recorder removes the folder of a recorder
 * that was killed.  The name of the inner folder is random, so only processes of the command know the name, whatever
 * their users are.  Each of these processes may write to the board, but cannot remove a file of another user. */

/* Set once a process has truncated a file that it shares with the recorder. */
static volatile sig_atomic_t is_cut;

/* Maps an empty page in place of a page that a process has cut off from its file.  Otherwise the recorder would end
 * when it reads this page. */
static void replace_lost_page(int number, siginfo_t *info, void *context) {
    uintptr_t bytes = (uintptr_t)getpagesize(), page = (uintptr_t)info->si_addr & ~(bytes - 1);

    (void)context;
    is_cut = 1;
    if (info->si_code != BUS_ADRERR ||
        mmap((void *)page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        signal(number, SIG_DFL);
}

/* Removes the folder `outer` and the folder in it.  Does nothing if the path is "". */
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

/* Removes the folders of recorders of this user that were killed.  No other user can put a folder of this user into
 * such a place, or replace one there. */
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

/* Makes both levels of a folder.  Returns 0 on success, else an errno. */
static int make_hidden_folder(int i) {
    char *outer = board.outer[i], *inner = board.folders[i];
    uint64_t random[2];
    int error;

    snprintf(outer, sizeof board.outer[i], "%s/weir-record-%" PRIu64 "-%d-%" PRIu64 "-XXXXXX",
             board_places[i], weir__process_namespace(), (int)getpid(),
             weir__process_start(getpid()));
    if (!mkdtemp(outer)) {
        *outer = '\0';
        return errno;
    }
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random) {
        snprintf(inner, sizeof board.folders[i], "%s/%016" PRIx64 "%016" PRIx64, outer, random[0],
                 random[1]);
        if (chmod(outer, 0711) == 0 && mkdir(inner, 0700) == 0 && chmod(inner, 01777) == 0)
            return 0;
    }
    error = errno;
    *inner = '\0';
    return error;
}

/* Makes the board's file in that folder, with all its memory.  Returns 0 on success, else an errno. */
static int make_board(const char *folder, uint32_t spares) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    size_t bytes = weir__record_board_bytes(spares);
    char path[PATH_MAX];
    int error;

    snprintf(path, sizeof path, "%s/%s", folder, WEIR_RECORD_BOARD);
    board.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (board.fd < 0)
        return errno;
    lock.l_start = WEIR_RECORD_LOCK_RECORDER;
    error = weir__file_reserve(board.fd, (off_t)bytes);
    if (!error && (fchmod(board.fd, 0666) != 0 || fcntl(board.fd, F_OFD_SETLK, &lock) != 0))
        error = errno;
    if (!error) {
        board.map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board.fd, 0);
        if (board.map == MAP_FAILED)
            error = errno;
    }
    if (error) {
        close(board.fd);
        unlink(path);
        return error;
    }
    board.spares = spares;
    board.map->magic = WEIR_RECORD_MAGIC;
    return 0;
}

/* Removes the folders with their files. */
static void board_end(void) {
    for (int i = 0; i < BOARD_FOLDERS; i++)
        remove_folders(board.outer[i]);
}

/* Makes the folders and the board, and takes the recorder's lock.  Returns 0 on success, else an errno. */
static int board_begin(void) {
    static const uint32_t spares[] = {WEIR_RECORD_SPARES, 0};
    const struct sigaction lost = {.sa_sigaction = replace_lost_page, .sa_flags = SA_SIGINFO};
    int error = 0;

    (void)sigaction(SIGBUS, &lost, NULL);

    for (int i = 0; i < BOARD_FOLDERS; i++) {
        remove_left_folders(board_places[i]);
        error = make_hidden_folder(i);
    }
    for (size_t j = 0; j < sizeof spares / sizeof spares[0]; j++)
        for (int i = 0; i < BOARD_FOLDERS; i++)
            if (*board.folders[i] && (error = make_board(board.folders[i], spares[j])) == 0)
                return 0;
    board_end();
    return error;
}

/* Maps a file of the folders, and unlinks the file.  Returns NULL with errno if it cannot be mapped. */
static void *board_map(const char *name, size_t bytes) {
    int fd = -1, error;
    void *map = NULL;
    char path[PATH_MAX];
    struct stat status;

    for (int i = 0; fd < 0 && i < BOARD_FOLDERS; i++) {
        if (!*board.folders[i])
            continue;
        snprintf(path, sizeof path, "%s/%s", board.folders[i], name);
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

/* Adds the file of a process that waits to be adopted.  Returns 0 on success, else ENOMEM. */
static int add_found(struct weir_record_file *file) {
    if (!memory_make_room(&record.found, &record.found_room, record.found_count,
                          sizeof *record.found))
        return ENOMEM;
    record.found[record.found_count++] = file;
    return 0;
}

/* Finds new files in a folder.  Returns 0 on success, else an errno if the folder or a file in it cannot be read. */
static int look_in_folder(const char *path) {
    DIR *folder = *path ? opendir(path) : NULL;
    int error = *path && !folder && errno != ENOENT ? errno : 0;
    struct dirent *entry;

    while (folder && (entry = readdir(folder))) {
        struct weir_record_file *file;

        if (!isdigit((unsigned char)entry->d_name[0]) || strchr(entry->d_name, '.'))
            continue;
        file = board_map(entry->d_name, sizeof *file);
        if (!file || atomic_load(&file->head.magic) != WEIR_RECORD_MAGIC)
            error = file ? EINVAL : errno;
        else
            error = add_found(file);
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

/* Returns 1 if processes have made files since the last look, else 0. */
static int board_has_new(void) {
    return atomic_load(&board.map->files) != board.seen;
}

/* Adds the files that have been opened since the last call to the list of files that wait to be recorded, and sorts
 * this list, the oldest first.  Returns 0 on success, or an errno if a file could not be mapped. */
static int board_look(void) {
    int error = 0, failed;

    board.seen = atomic_load(&board.map->files);
    for (uint32_t i = 0; i < board.spares; i++)
        if (!board.is_adopted[i] &&
            atomic_load(&board.map->spare[i].head.magic) == WEIR_RECORD_MAGIC) {
            failed = add_found(&board.map->spare[i]);
            board.is_adopted[i] = !failed;
            error = failed ? failed : error;
        }
    for (int i = 0; i < BOARD_FOLDERS; i++) {
        failed = look_in_folder(board.folders[i]);
        error = failed ? failed : error;
    }
    if (record.found_count > 1)
        qsort(record.found, record.found_count, sizeof *record.found, is_older);
    return error;
}

/* Returns 1 if another process has locked one of `length` bytes from `first` on, or if the kernel cannot say; else 0.
 * A length of 0 means all bytes from `first` on. */
static int is_locked_by_other(uint64_t first, off_t length) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = length};

    return fcntl(board.fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Returns 1 if the process of this file lives, or cannot be known to have ended; else 0. */
static int board_owner_lives(const struct weir_record_head *head) {
    return !head->is_locked || is_locked_by_other(WEIR_RECORD_LOCK_FIRST + head->number, 1);
}

/* Unmaps a process's file, or makes a spare one ready for another process. */
static void board_release(struct weir_record_file *file) {
    for (uint32_t i = 0; i < board.spares; i++)
        if (file == &board.map->spare[i]) {
            if (!board_owner_lives(&file->head)) {
                atomic_store(&file->head.magic, 0);
                atomic_store(&file->head.rings, 0);
                atomic_store(&file->head.lost, 0);
                atomic_store(&file->head.is_closed, 0);
                atomic_store(&file->shared.written, 0);
                atomic_store(&file->shared.entered, 0);
                atomic_store(&file->shared.read, 0);
                board.is_adopted[i] = 0;
                atomic_store(&file->head.is_taken, 0);
            }
            return;
        }
    munmap(file, sizeof *file);
}

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

/* Reports to the user which processes have found no place for their events since the last call, why, and what to do.
 * Returns 1 if there are any such processes, else 0. */
static int board_tell_unrecorded(void) {
    uint32_t before = board.told, count = atomic_load(&board.map->unrecorded_count);

    while (board.told < count && board.told < WEIR_RECORD_UNRECORDED &&
           atomic_load(&board.map->unrecorded[board.told].is_complete))
        tell_unrecorded(&board.map->unrecorded[board.told++]);
    return board.told > before;
}

/* ---------------------------------------------------------------------- times ---- */

static void look_at_clock(void) {
    record.now_ns = weir__record_clock();
    record.now_time = weir__record_time(record.has_counter);
}

static double ns_a_tick(void) {
    uint64_t ticks = record.now_time - record.first_time;

    return record.has_counter && ticks ? (double)(record.now_ns - record.first_ns) / (double)ticks
                                       : 1.0;
}

/* Returns the time in the trace.  The result never goes back, although the rate of the counter becomes known more
 * exactly. */
static uint64_t time_us(struct process *process, uint64_t time) {
    double ns = time > process->start ? (double)(time - process->start) * ns_a_tick() : 0.0;
    uint64_t us = (uint64_t)(ns / 1000.0);

    if (us > process->last_us)
        process->last_us = us;
    return process->last_us;
}

/* ------------------------------------------------------------------ processes ---- */

static int keep_waiting_event(struct waiting *waiting, const struct weir_record_event *event) {
    if (waiting->end == waiting->room && waiting->first > waiting->room / 2) {
        waiting->end -= waiting->first;
        memmove(waiting->events, waiting->events + waiting->first,
                waiting->end * sizeof *waiting->events);
        waiting->first = 0;
    }
    if (waiting->end == waiting->room) {
        size_t room = waiting->room ? 2 * waiting->room : WEIR_RECORD_EVENTS;
        struct weir_record_event *events =
            aligned_alloc(_Alignof(struct weir_record_event), room * sizeof *events);

        if (!events)
            return 0;
        if (waiting->end)
            memcpy(events, waiting->events, waiting->end * sizeof *events);
        free(waiting->events);
        waiting->events = events;
        waiting->room = room;
    }
    waiting->events[waiting->end++] = *event;
    return 1;
}

/* Moves the events of a ring into `waiting'.  Returns the number of events. */
static size_t drain_ring(struct process *process, struct weir_record_ring *ring,
                         struct waiting *waiting) {
    uint64_t first = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);

    /* The counters are wrong: a process of the command has written to the ring. */
    if (written - first > WEIR_RECORD_EVENTS) {
        process->tracing.failed = EINVAL;
        return 0;
    }
    for (uint64_t read = first; read != written; read++)
        if (keep_waiting_event(waiting, &ring->events[read % WEIR_RECORD_EVENTS]))
            process->count++;
        else
            process->tracing.failed = ENOMEM;
    atomic_store_explicit(&ring->read, written, memory_order_release);
    return (size_t)(written - first);
}

/* Writes the events before `safe' in the order of their times; if `is_last' is set, writes all events.  A thread that
 * stays long in a free of the driver makes at most MOST_WAITING events wait.  After that, the thread's own event comes
 * late (tracing.h). */
static void write_waiting(struct process *process, uint32_t rings, int is_last) {
    for (;;) {
        uint64_t next = UINT64_MAX; /* the time of the first event of the other rings */
        struct waiting *oldest = NULL;

        for (uint32_t i = 0; i <= rings; i++) {
            struct waiting *waiting = &process->waiting[i];

            if (waiting->first == waiting->end)
                continue;
            if (!oldest ||
                waiting->events[waiting->first].time < oldest->events[oldest->first].time) {
                next = oldest ? oldest->events[oldest->first].time : next;
                oldest = waiting;
            } else if (waiting->events[waiting->first].time < next) {
                next = waiting->events[waiting->first].time;
            }
        }
        if (!oldest)
            return;
        do {
            const struct weir_record_event *event = &oldest->events[oldest->first];

            if (!is_last && event->time >= process->safe && process->count <= MOST_WAITING)
                return;
            tracing_add(&process->tracing, event, time_us(process, event->time));
            process->count--;
        } while (++oldest->first < oldest->end && oldest->events[oldest->first].time <= next);
        if (oldest->first == oldest->end)
            oldest->first = oldest->end = 0;
    }
}

/* Returns a ring of the process.  Returns NULL if the ring cannot be mapped, and then the recording of the process
 * ends. */
static struct weir_record_ring *ring_of(struct process *process, uint32_t i) {
    char name[64];

    if (process->rings[i])
        return process->rings[i];
    snprintf(name, sizeof name, "%" PRIu64 ".%" PRIu32, process->file->head.number, i);
    process->rings[i] = board_map(name, sizeof *process->rings[i]);
    if (!process->rings[i]) {
        process->tracing.failed = errno ? errno : EIO;
        atomic_store(&process->file->head.is_closed, 1);
    }
    return process->rings[i];
}

/* Empties the rings of a process, and writes the events before which no further event can come; if `is_last` is set,
 * writes all events.  Returns the number of events that were in the rings. */
static size_t drain(struct process *process, int is_last) {
    uint32_t counted = atomic_load(&process->file->head.rings);
    uint32_t rings = counted < WEIR_RECORD_RINGS ? counted : WEIR_RECORD_RINGS;
    uint64_t safe = record.now_time - (uint64_t)(SLACK_NS / ns_a_tick());
    size_t found = 0;

    for (uint32_t i = 0; i <= rings; i++) {
        struct weir_record_ring *ring = i < rings ? ring_of(process, i) : &process->file->shared;
        uint64_t entered = ring ? atomic_load_explicit(&ring->entered, memory_order_acquire) : 0;

        if (!ring)
            continue;
        if (entered == WEIR_RECORD_ENTERING)
            safe = process->safe;
        else if (entered && entered < safe)
            safe = entered;
        found += drain_ring(process, ring, &process->waiting[i < rings ? i + 1 : 0]);
    }
    if (safe > process->safe)
        process->safe = safe;
    write_waiting(process, rings, is_last);
    (void)sink_flush(process->tracing.sink); /* sink_close() reports an error */
    return found;
}

/* Returns the path of the next process's trace, or NULL if there is no memory. */
static char *path_of(int id) {
    char *path = NULL;
    uintptr_t before = 0;
    int made;

    (void)weir__map_get(&record.ids, (uint64_t)id, &before);
    made = record.count == 0 ? asprintf(&path, "%s", record.path)
           : before          ? asprintf(&path, "%s.%d.%d", record.path, id, (int)before + 1)
                             : asprintf(&path, "%s.%d", record.path, id);
    return made < 0 || !weir__map_put(&record.ids, (uint64_t)id, before + 1) ? NULL : path;
}

/* Opens the file for the first process's trace, and empties it.  Returns its descriptor, or -1 with errno.  A pipe
 * is opened only once, since its reader would otherwise see the end of the pipe. */
static int claim_trace_file(void) {
    int file = record.file;

    if (file < 0) /* an earlier process has had the file, and its trace failed to begin */
        file = open(record.path, O_WRONLY | O_CLOEXEC);
    record.file = -1;
    if (file < 0)
        return -1;
    return ftruncate(file, 0) == 0 || errno == EINVAL ? file : -1;
}

/* Begins the trace of a process.  Reads from /proc its mapped files, and its command if the process itself could not
 * read the command.  Reads nothing of a process of another namespace, whose id may be that of another process here. */
static void begin_trace(struct process *process, const struct weir_record_head *head) {
    int is_here = head->namespace != 0 && head->namespace == weir__process_namespace();

    memcpy(process->command, head->command, sizeof process->command);
    process->command[sizeof process->command - 1] = '\0';
    if (!*process->command && is_here)
        weir__process_command(process->id, process->command, sizeof process->command);
    tracing_begin(&process->tracing, *process->command ? process->command : record.command[0],
                  is_here ? process->id : 0);
}

static void add_process(struct weir_record_file *file) {
    struct process *process = calloc(1, sizeof *process);
    const char *why = strerror(ENOMEM);
    int output;

    if (!process ||
        !memory_make_room(&record.lines, &record.line_room, record.count, sizeof *record.lines) ||
        !memory_make_room(&record.processes, &record.room, record.live, sizeof *record.processes))
        goto fail;
    process->file = file;
    process->id = file->head.process;
    process->start = file->head.start;
    process->tracing.limit = record.limit;
    process->path = path_of(process->id);
    if (!process->path)
        goto fail;
    output = record.count == 0 ? claim_trace_file() : weir__replace_open(process->path, 0666);
    if (output < 0 || !(process->tracing.sink = sink_on(output, record.path))) {
        why = strerror(errno);
        goto fail;
    }
    begin_trace(process, &file->head);
    process->order = record.count;
    record.lines[record.count++] = NULL;
    record.processes[record.live++] = process;
    return;

fail:
    fprintf(stderr, "weir record: %s: %s; process %d runs on unrecorded\n",
            process && process->path ? process->path : record.path, why, (int)file->head.process);
    record.failed = EXIT_OWN;
    record.lost_processes++;
    atomic_store(&file->head.is_closed, 1);
    board_release(file);
    if (process)
        free(process->path);
    free(process);
}

/* Returns 1 if one more trace leaves descriptors for other files, else 0. */
static int has_descriptor(void) {
    int probe = fcntl(board.fd, F_DUPFD_CLOEXEC, 0);
    struct rlimit most;

    if (probe < 0)
        return 0;
    close(probe);
    return getrlimit(RLIMIT_NOFILE, &most) != 0 || (rlim_t)probe + KEPT_DESCRIPTORS < most.rlim_cur;
}

/* Adopts new processes, the oldest first.  If there is no descriptor for another trace, the processes wait until other
 * processes have ended. */
static void look_for_new(void) {
    size_t adopted = 0;
    int error;

    if (board_has_new() && (error = board_look()) != 0) {
        record.failed = fail_record(EXIT_OWN, "a process runs on unrecorded", strerror(error));
        record.lost_processes++;
    }
    while (adopted < record.found_count && (record.live == 0 || has_descriptor()))
        add_process(record.found[adopted++]);
    record.is_short |= adopted < record.found_count;
    if (adopted) {
        record.found_count -= adopted;
        memmove(record.found, record.found + adopted, record.found_count * sizeof *record.found);
    }
    if (board_tell_unrecorded())
        record.failed = EXIT_OWN;
}

static void look_for_ends(void) {
    static size_t next;

    for (size_t i = 0; i < record.live && i < ENDS_AT_ONCE; i++) {
        struct process *process = record.processes[next++ % record.live];

        process->has_ended = !board_owner_lives(&process->file->head);
    }
}

/* Returns the line that reports how many events of a process were recorded, or NULL if there is no memory. */
static char *spell_process(const struct process *process) {
    const struct tracing *tracing = &process->tracing;
    char left_out[64] = "", lost[96] = "", *line;

    if (tracing->left_out)
        snprintf(left_out, sizeof left_out, ", and %" PRIu64 " more left out: --limit",
                 tracing->left_out);
    if (tracing->lost)
        snprintf(lost, sizeof lost,
                 ", and %" PRIu64 " more lost: weir record did not read them for %d s",
                 tracing->lost, WEIR_RECORD_WAIT_MS / 1000);
    return asprintf(&line, "%s: %" PRIu64 " event%s of process %d%s%.60s%s%s%s", process->path,
                    tracing->events, weir__plural(tracing->events), process->id,
                    process->command[0] ? " (" : "", process->command,
                    process->command[0] ? ")" : "", left_out, lost) < 0
               ? NULL
               : line;
}

/* Ends the trace of a process from which nothing more is read. */
static void end_process(struct process *process) {
    int error;

    atomic_store(&process->file->head.is_closed, 1);
    process->tracing.lost = atomic_load(&process->file->head.lost);
    if (process->tracing.lost) {
        record.failed = EXIT_OWN;
        record.lost_events += process->tracing.lost;
        record.lost_processes++;
    }
    for (int i = 0; i < WEIR_RECORD_RINGS; i++)
        if (process->rings[i])
            munmap(process->rings[i], sizeof *process->rings[i]);
    board_release(process->file);
    tracing_end(&process->tracing);
    error = process->tracing.failed;
    if (!sink_close(process->tracing.sink) && !error)
        error = errno;
    if (error)
        record.failed = fail_record(EXIT_OWN, process->path, strerror(error));
    else
        record.lines[process->order] = spell_process(process);
    for (size_t i = 0; i <= WEIR_RECORD_RINGS; i++)
        free(process->waiting[i].events);
    free(process->path);
    free(process);
}

static size_t drain_all(int is_last) {
    size_t found = 0, kept = 0;

    look_at_clock();
    for (size_t i = 0; i < record.live; i++) {
        struct process *process = record.processes[i];
        int is_end = is_last || process->has_ended;

        found += drain(process, is_end);
        if (is_end)
            end_process(process);
        else
            record.processes[kept++] = process;
    }
    record.live = kept;
    return found;
}

/* ------------------------------------------------------------------- the ends ---- */

/* Removes the file if weir record has made it, since an empty file is no trace. */
static void take_file_back(void) {
    if (record.is_made)
        unlink(record.path);
}

/* Reports which recorded processes go on, since a signal has ended the recording. */
static void tell_running(void) {
    for (size_t i = 0; i < record.live; i++) {
        struct process *process = record.processes[i];

        if (!board_owner_lives(&process->file->head))
            continue;
        fprintf(stderr,
                "weir record: process %d (%.60s) still runs: its requests from now on are lost\n",
                process->id, process->command);
        record.failed = EXIT_OWN;
        record.lost_processes++;
    }
}

static void report_nothing_recorded(void) {
    int is_seen = atomic_load(&board.map->numbers) > 0;

    take_file_back();
    if (record.failed)
        return;
    fprintf(stderr, "weir record: the command %s, so there is no trace%s%s%s\n",
            is_seen
                ? "made no call that weir records (it needs a GPU; without one, use a trace that "
                  "comes with weir, as weir bench does)"
                : "did not load weir's library (is it static or set-user-ID?)",
            record.is_made ? "" : ": ", record.is_made ? "" : record.path,
            record.is_made ? "" : " is as it was");
    if (!is_seen)
        record.failed = EXIT_OWN;
}

static void end_recording(int has_all_ended) {
    atomic_store(&board.map->is_closed, 1);
    /* A process may have cut the board, so its count of files cannot tell whether a last look is needed. */
    board.seen = ~atomic_load(&board.map->files);
    do {
        look_for_new();
        if (!has_all_ended)
            tell_running();
        (void)drain_all(1);
    } while (record.found_count || board_has_new());
    if (is_cut)
        record.failed =
            fail_record(EXIT_OWN, "events are lost",
                        "a process of the command has cut a file short that it shares with "
                        "weir record");
    if (!has_all_ended && !record.lost_processes)
        fputs(
            "weir record: the command has left processes behind that have made no call that weir "
            "records.  Each of them says so if it makes one from now on, which is not recorded.\n",
            stderr);
    record.lost_processes += atomic_load(&board.map->unrecorded_count);
    for (uint32_t i = 0; i < board.told; i++)
        record.lost_events += atomic_load(&board.map->unrecorded[i].lost);
    for (size_t i = 0; i < record.count; i++)
        if (record.lines[i])
            fprintf(stderr, "weir record: %s\n", record.lines[i]);
    if (record.count == 0)
        report_nothing_recorded();
}

/* ------------------------------------------------------------------ the child ---- */

/* Returns the exit status, which is the command's if the recording is whole. */
static int end_as(int status) {
    char lost[96] = "";

    if (!record.failed)
        return command_end_as(status);
    if (record.lost_processes)
        snprintf(lost, sizeof lost, ": %" PRIu64 " event%s%s of %" PRIu64 " process%s lost",
                 record.lost_events, weir__plural(record.lost_events),
                 record.lost_events ? "" : " or more", record.lost_processes,
                 record.lost_processes == 1 ? "" : "es");
    fprintf(
        stderr,
        "weir record: the recording is not whole%s%s.  So weir record exits with %d; the command "
        "%s %d\n",
        lost,
        record.is_short && record.lost_processes
            ? ".  Raise ulimit -n, or start fewer processes at once"
            : "",
        record.failed, WIFEXITED(status) ? "exited with" : "was ended by signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return record.failed;
}

/* Returns 1 if the recording ends though the command has left processes behind.  Else returns 0.  The recording ends if
 * none of these processes is recorded, or if a signal has told this process to end.  Either condition must hold for
 * GRACE_NS, so that a process can still make its first request, and an ending process can still end. */
static int may_leave_rest(void) {
    uint64_t now = weir__clock_ns();

    if (record.live > 0 || record.found_count > 0)
        record.present_ns = now;
    if (!command_is_told_to_end())
        record.wanted_ns = now;
    if (now - record.present_ns > GRACE_NS || now - record.wanted_ns > GRACE_NS)
        return 1;
    if (!record.has_told_of_rest && now - record.ended_ns > GRACE_NS) {
        record.has_told_of_rest = 1;
        fputs("weir record: the command has ended, but not all processes that it started.  weir "
              "record goes on until the recorded ones end, or until SIGINT or SIGTERM.\n",
              stderr);
    }
    return 0;
}

/* Waits for the command and for the processes that it leaves.  Returns 1 if all of them have ended, else 0. */
static int record_all(pid_t started, int *status) {
    for (;;) {
        pid_t ended;
        int how;

        while ((ended = waitpid(-1, &how, WNOHANG)) > 0)
            if (ended == started) {
                *status = how;
                record.ended_ns = record.present_ns = record.wanted_ns = weir__clock_ns();
                command_ended();
            }
        if (ended < 0 && errno == ECHILD)
            return 1;
        if (record.ended_ns && may_leave_rest())
            return !is_locked_by_other(WEIR_RECORD_LOCK_FIRST,
                                       0); /* a process that has loaded the library locks a byte */
        look_for_new();
        look_for_ends();
        if (drain_all(0) < BUSY_EVENTS)
            (void)poll(NULL, 0, PAUSE_US / 1000);
    }
}

/* Raises this process's limit of descriptors as far as possible.  A command that runs already keeps its limit. */
static void raise_descriptors(void) {
    struct rlimit most;

    if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
        most.rlim_cur = most.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &most);
    }
}

static int run_recorded(void) {
    struct weir_file_guard guard;
    pid_t started;
    int status = 0, error;

    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    error = command_start(record.command, &started);
    if (error) {
        take_file_back();
        board_end();
        return command_refuse("record", record.command[0], error);
    }
    raise_descriptors();
    signal(SIGPIPE, SIG_IGN); /* the reader of messages or of a trace may end first */
    weir__file_guard(&guard);
    end_recording(record_all(started, &status));
    board_end();
    weir__file_unguard(&guard);
    return end_as(status);
}

/* ---------------------------------------------------------------- preparation ---- */

/* Opens the file that exists.  Waits for a reader if the file is a pipe. */
static int open_existing(void) {
    struct stat is;
    int file = -1;

    if (stat(record.path, &is) == 0 && S_ISFIFO(is.st_mode)) {
        file = open(record.path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (file >= 0)
            (void)fcntl(file, F_SETFL, 0);
        else if (errno == ENXIO)
            fprintf(stderr, "weir: --output %s: waits for a program that reads this pipe\n",
                    record.path);
    }
    return file >= 0 ? file : open(record.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
}

/* Opens the file, so that a path that cannot be written is reported before the command runs.  The contents of an
 * earlier recording stay until there is an event to write.  The lock keeps other recorders away until the trace is
 * closed.  Returns 0 on success, else an exit code. */
static int try_file(void) {
    struct stat is;
    int file = open(record.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    record.is_made = file >= 0;
    if (file < 0 && errno == EEXIST)
        file = open_existing();
    if (file < 0) {
        fprintf(stderr, "weir: --output %s: %s\n", record.path, strerror(errno));
        return EXIT_OWN;
    }
    if (fstat(file, &is) == 0 && S_ISREG(is.st_mode) && flock(file, LOCK_EX | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK) {
        close(file);
        return fail_record(EXIT_OWN, record.path,
                           "another weir record writes to this file: expected another --output");
    }
    record.file = file;
    return 0;
}

static int prepare_recording(void) {
    char library[4200], folders[sizeof board.folders + BOARD_FOLDERS];
    const char *why;
    int code, error;

    if (preloading_find(TRACING_LIBRARY, library, sizeof library, &why) != 0)
        return fail_record(EXIT_OWN, library, why);
    if ((record.ranges || record.callers) && getenv(NVTX_LIBRARY) &&
        strcmp(getenv(NVTX_LIBRARY), library) != 0) {
        fprintf(stderr, "weir record: %s: NVTX reports to another tool, %s\n", NVTX_LIBRARY,
                getenv(NVTX_LIBRARY));
        return EXIT_OWN;
    }
    code = try_file();
    if (code == 0 && (error = board_begin()) != 0) {
        take_file_back();
        code = fail_record(EXIT_OWN, board_places[BOARD_FOLDERS - 1], strerror(error));
    }
    if (code)
        return code;
    snprintf(folders, sizeof folders, "%s%s%s", board.folders[0],
             *board.folders[0] && *board.folders[1] ? ":" : "", board.folders[1]);
    if (preloading_tell(library, command_put, NULL) != 0 ||
        setenv(WEIR_RECORD_FOLDER, folders, 1) != 0 ||
        (record.ranges && setenv(WEIR_RECORD_RANGES, record.ranges, 1) != 0) ||
        (record.callers && setenv(WEIR_RECORD_CALLERS, "1", 1) != 0) ||
        ((record.ranges || record.callers) && setenv(NVTX_LIBRARY, library, 1) != 0) ||
        (record.marks_at_sync && setenv(WEIR_RECORD_SYNCS, "1", 1) != 0)) {
        board_end();
        code = fail_record(EXIT_OWN, "the environment", strerror(ENOMEM));
    }
    record.has_counter = weir__record_has_counter();
    look_at_clock();
    record.first_ns = record.now_ns;
    record.first_time = record.now_time;
    return code;
}

static void take_trace(struct argp_state *state, const char *flag, const char *text, void *field) {
    weir_cli_take_file(state, flag, text, field);
    if (!sink_can(text))
        argp_error(state, "%s '%s': this weir was built without zstd; expected a name in .gz", flag,
                   text);
}

static void take_range(struct argp_state *state, const char *flag, const char *text, void *field) {
    if (!*text)
        argp_error(state, "%s '': expected a name, or a pattern as 'step*'", flag);
    *(const char **)field = text;
}

static const struct weir_cli_flag flags[] = {
    {"output", 'o', "FILE", take_trace, offsetof(struct record, path),
     "Write the trace to FILE (" DEFAULT_FILE ")."},
    {"callers", 0, NULL, weir_cli_take_switch, offsetof(struct record, callers),
     "Record the caller of each request: the line of Python or the function, and the NVTX range.  "
     "This takes some microseconds a request, and up to a millisecond in Python."},
    {"mark-at-sync", 0, NULL, weir_cli_take_switch, offsetof(struct record, marks_at_sync),
     "End an iteration where the program waits for the device or a stream, if it sets no marks."},
    {"mark-at-nvtx", 0, "NAME", take_range, offsetof(struct record, ranges),
     "End an iteration where the program begins an NVTX range of this name, or sets an NVTX mark.  "
     "NAME may be a shell pattern, 'step*'."},
    {"limit", 0, "SIZE", weir_cli_take_size, offsetof(struct record, limit),
     "Stop writing at about SIZE of text, before compression."},
    {0}};

static error_t parse_record_argument(int key, char *argument, struct argp_state *state) {
    switch (key) {
    case ARGP_KEY_ARG: /* all words from here on belong to the command */
        record.command = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        preloading_no_command(state);
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

static const char doc[] =
    "Records a trace of an unmodified program, for weir replay and weir bench: each allocation and "
    "free of device memory that it requests from the CUDA driver.\vAn iteration ends where the "
    "program calls weir_mark(\"LABEL\") of the preloaded library, or by the flags below.  FILE is "
    "compressed if its name ends in .zst or .gz.  Each further process of the command that "
    "requests memory has a trace FILE.PID.\n\nExit code: the command's; 126 if it cannot be run, "
    "127 if there is none; 2 usage or a bad value, 125 another failure or events that are lost.";

int weir_cmd_record(int argc, char **argv) {
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_record_argument,
                        .args_doc = "[--] COMMAND [ARGUMENT...]",
                        .doc = doc};
    int code;

    record.path = DEFAULT_FILE;
    if (weir_cli_parse(&argp, argc, argv, ARGP_IN_ORDER, &record) != 0)
        return EXIT_USAGE;
    code = prepare_recording();
    return code ? code : run_recorded();
}
