/* SPDX-License-Identifier: MIT */
/* record.c: `weir record': runs an unmodified program, and writes its requests for device memory as a trace.
 *
 * The command runs with the preloaded library libweir-record.so.  The library writes each request into memory that
 * it shares with this process, and this process writes the traces.  Therefore no request is lost, however the
 * command ends.  The first process that requests memory gets the trace FILE, each other process gets FILE.PID.
 *
 * The command may end before processes that it started.  If such a process requests memory within GRACE_NS after the
 * end of the command, weir record records the process.  A process whose first request is later is not recorded,
 * and prints a message.  weir record is a subreaper (prctl(2)), so these processes become its children.
 *
 * This file must not depend on which calls are recorded, or on the format of a trace.
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

/* weir record makes a folder for shared files in each of these folders. */
static const char *const board_places[BOARD_FOLDERS] = {"/dev/shm", "/tmp"};

/* The file that weir record shares with all recorded processes (record_ring.h), and the folders of shared files. */
static struct board {
    struct weir_record_board *map;
    int fd; /* weir record holds a lock on this descriptor of the shared file */
    /* The number of spare areas in the shared file: a copy, because a process may overwrite the number in the file. */
    uint32_t spares;
    uint64_t searched_files; /* the value of map->files at the last search for new files */
    uint8_t has_trace[WEIR_RECORD_SPARES]; /* set for each spare area whose process has a trace */
    uint32_t reported; /* how many unrecorded processes weir record has reported to the user */
    /* The paths of the outer folders, one in each of board_places.  A path is "" if the folder could not be made. */
    char outer[BOARD_FOLDERS][96];
    char folders[BOARD_FOLDERS][136]; /* the paths of the inner folders */
} board;

enum {
    PAUSE_US = 1000,
    /* If a pass of the main loop reads this many events or more, the loop does not pause before the next pass. */
    BUSY_EVENTS = WEIR_RECORD_EVENTS / 4,
    MAX_WAITING = 1 << 17, /* the events of one process that may wait to be written */
    /* It is slow to check whether a process has ended, so one pass of the main loop checks at most this many. */
    ENDS_AT_ONCE = 16,
    SLACK_NS = 2000000, /* after this time, a store to memory is visible to all processors */
    /* After the command has ended, its other processes have this time to end or to make a first request. */
    GRACE_NS = 1000000000,
    SPARE_DESCRIPTORS = 16 /* descriptors for files other than traces */
};

/* A queue of events from one ring, events[first] to events[end - 1].  An event waits here until no thread can still
 * record an earlier event. */
struct waiting {
    struct weir_record_event *events;
    size_t first, end, room;
};

struct process {
    struct weir_record_file *file;
    struct weir_record_ring *rings[WEIR_RECORD_RINGS];
    int id, has_ended;
    size_t order;   /* the index of the trace in record.summaries */
    uint64_t start; /* the time at which the trace begins */
    char *path;     /* the path of the trace */
    /* The command line of the process, or "" if it is unknown. */
    char command[WEIR_RECORD_COMMAND_BYTES];
    struct waiting waiting[WEIR_RECORD_RINGS + 1];
    size_t count;            /* the number of events in `waiting' */
    uint64_t complete_until; /* all events before this time have been read from the rings */
    uint64_t last_us;
    struct tracing tracing;
};

static struct record {
    const char *path; /* the path of the first trace */
    int file;         /* the descriptor of `path' until the first trace begins, then -1 */
    int is_made;      /* set if weir record has created the file `path' */
    int marks_at_sync, callers;
    const char *ranges; /* a pattern for the names of NVTX ranges that end iterations, or NULL */
    uint64_t limit;
    char **command;
    struct weir_record_file **found; /* the files of processes that have no trace yet */
    size_t found_count, found_room;
    struct process **processes; /* running processes that have a trace */
    size_t live, room;
    char **summaries;           /* for each trace: a line to print at the end, or NULL */
    size_t count, summary_room; /* `count' is the number of traces */
    /* A map from a process id to the number of traces of processes with this id. */
    struct weir_map ids;
    uint64_t lost_events, lost_processes;
    uint64_t ended_ns;            /* the time at which the command ended, or 0 while it runs */
    uint64_t last_running_ns;     /* the last time at which a recorded process was running */
    uint64_t last_unsignalled_ns; /* the last time at which no signal had told weir record to end */
    int has_reported_running;
    int lacked_descriptors; /* set if a trace began late because too many files were open */
    int has_counter, failed;
    /* The processor's counter and the clock in ns, at the start of the recording (first) and at the last read (now). */
    uint64_t first_time, first_ns, now_time, now_ns;
} record;

static int fail_record(int code, const char *what, const char *why) {
    fprintf(stderr, "weir record: %s: %s\n", what, why);
    return code;
}

/* ---------------------------------------------------------------------- folders ---- */

/* weir record shares files with the recorded processes, which may run as other users.  The files are in a folder with a
 * random name, which only these processes know, inside a folder that only the user of weir record can list.  The name
 * of this outer folder contains the process id of weir record, so a later weir record can remove it if this process is
 * killed. */

/* Set if a recorded process has truncated a file that it shares with weir record. */
static volatile sig_atomic_t is_truncated;

/* Handles SIGBUS, which this process gets when it reads a shared file that a recorded process has truncated.  Maps an
 * empty page at the address, so that weir record goes on. */
static void replace_lost_page(int number, siginfo_t *info, void *context) {
    uintptr_t bytes = (uintptr_t)getpagesize(), page = (uintptr_t)info->si_addr & ~(bytes - 1);

    (void)context;
    is_truncated = 1;
    if (info->si_code != BUS_ADRERR ||
        mmap((void *)page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        signal(number, SIG_DFL);
}

/* Removes the folder `outer' and the folders in it.  Does nothing if `outer' is "". */
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

/* Removes the folders of this user's earlier recordings whose weir record was killed.  No other user can replace such a
 * folder, because `place' has the sticky bit. */
static void remove_abandoned_folders(const char *place) {
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

/* Creates a folder for shared files, and an outer folder for it, at board_places[i].  Returns 0 on success, an errno on
 * failure. */
static int make_private_folder(int i) {
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

/* Creates the file `board' in the folder, and reserves all of its memory.  Returns 0 on success, an errno on
 * failure. */
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

/* Removes the folders of this recording, with their files. */
static void board_end(void) {
    for (int i = 0; i < BOARD_FOLDERS; i++)
        remove_folders(board.outer[i]);
}

/* Creates the folders and the file that all recorded processes share, and locks this file.  If memory is short, the
 * file has no spare areas for processes.  Returns 0 on success, an errno on failure. */
static int board_begin(void) {
    static const uint32_t spares[] = {WEIR_RECORD_SPARES, 0};
    const struct sigaction lost = {.sa_sigaction = replace_lost_page, .sa_flags = SA_SIGINFO};
    int error = 0;

    (void)sigaction(SIGBUS, &lost, NULL);

    for (int i = 0; i < BOARD_FOLDERS; i++) {
        remove_abandoned_folders(board_places[i]);
        error = make_private_folder(i);
    }
    for (size_t j = 0; j < sizeof spares / sizeof spares[0]; j++)
        for (int i = 0; i < BOARD_FOLDERS; i++)
            if (*board.folders[i] && (error = make_board(board.folders[i], spares[j])) == 0)
                return 0;
    board_end();
    return error;
}

/* Maps the shared file with this name and size, and unlinks it.  Returns NULL with errno on failure. */
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

/* Appends the file of a process to record.found.  Returns 0 on success, ENOMEM if there is no host memory. */
static int append_found_file(struct weir_record_file *file) {
    if (!memory_make_room(&record.found, &record.found_room, record.found_count,
                          sizeof *record.found))
        return ENOMEM;
    record.found[record.found_count++] = file;
    return 0;
}

/* Finds the new files of processes in the folder, and appends them to record.found.  Returns 0 on success, or an errno
 * if the folder or one of the files cannot be read. */
static int find_new_files(const char *path) {
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
            error = append_found_file(file);
        if (file && error)
            munmap(file, sizeof *file);
    }
    if (folder)
        closedir(folder);
    return error;
}

static int compare_process_starts(const void *one, const void *other) {
    uint64_t a = (*(struct weir_record_file *const *)one)->head.start;
    uint64_t b = (*(struct weir_record_file *const *)other)->head.start;

    return a < b ? -1 : a > b;
}

/* Returns 1 if processes have created files since the last call of board_find_new(), else 0. */
static int board_has_new(void) {
    return atomic_load(&board.map->files) != board.searched_files;
}

/* Finds the files that processes have created since the last call, and adds the files to record.found.  Sorts
 * record.found by start time.  Returns 0, or an errno if a file could not be mapped. */
static int board_find_new(void) {
    int error = 0, failed;

    board.searched_files = atomic_load(&board.map->files);
    for (uint32_t i = 0; i < board.spares; i++)
        if (!board.has_trace[i] &&
            atomic_load(&board.map->spare[i].head.magic) == WEIR_RECORD_MAGIC) {
            failed = append_found_file(&board.map->spare[i]);
            board.has_trace[i] = !failed;
            error = failed ? failed : error;
        }
    for (int i = 0; i < BOARD_FOLDERS; i++) {
        failed = find_new_files(board.folders[i]);
        error = failed ? failed : error;
    }
    if (record.found_count > 1)
        qsort(record.found, record.found_count, sizeof *record.found, compare_process_starts);
    return error;
}

/* Returns 1 if another process has locked any of `length' bytes from `first' on, or if the kernel reports an error;
 * else 0.  A `length' of 0 means up to the end. */
static int is_locked_by_other(uint64_t first, off_t length) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = length};

    return fcntl(board.fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Returns 1 if the process that owns the file is running, or if weir record cannot tell; else 0. */
static int is_owner_running(const struct weir_record_head *head) {
    return !head->is_locked || is_locked_by_other(WEIR_RECORD_LOCK_FIRST + head->number, 1);
}

/* Unmaps the file of a process that has ended.  A process that can create no file uses a spare area of the shared file.
 * Clears such an area, so that another process can use it. */
static void board_release(struct weir_record_file *file) {
    for (uint32_t i = 0; i < board.spares; i++)
        if (file == &board.map->spare[i]) {
            if (!is_owner_running(&file->head)) {
                atomic_store(&file->head.magic, 0);
                atomic_store(&file->head.rings, 0);
                atomic_store(&file->head.lost, 0);
                atomic_store(&file->head.is_closed, 0);
                atomic_store(&file->shared.written, 0);
                atomic_store(&file->shared.entered, 0);
                atomic_store(&file->shared.read, 0);
                board.has_trace[i] = 0;
                atomic_store(&file->head.is_in_use, 0);
            }
            return;
        }
    munmap(file, sizeof *file);
}

static void report_unrecorded(const struct weir_record_unrecorded *entry) {
    const char *why = strerror(entry->error);

    fprintf(stderr, "weir record: process %d is not recorded: ", (int)entry->process);
    if (entry->error == ENOSPC)
        fprintf(stderr, "no room for its events in %s or %s: %s.  Make room there.\n",
                board_places[0], board_places[1], why);
    else if (entry->error == EMFILE || entry->error == EFBIG)
        fprintf(stderr, "it cannot %s a file for its events: %s.  Raise ulimit -%c.\n",
                entry->error == EMFILE ? "open" : "make", why, entry->error == EMFILE ? 'n' : 'f');
    else
        fprintf(stderr,
                "it cannot create a file for its events: %s.  weir record supports %d such "
                "processes at once: start fewer.\n",
                why, WEIR_RECORD_SPARES);
}

/* Prints how many processes could not be recorded since the last call, why, and what the user can do.  Returns 1 if
 * there are such processes, else 0. */
static int board_report_unrecorded(void) {
    uint32_t before = board.reported, count = atomic_load(&board.map->unrecorded_count);

    while (board.reported < count && board.reported < WEIR_RECORD_UNRECORDED &&
           atomic_load(&board.map->unrecorded[board.reported].is_complete))
        report_unrecorded(&board.map->unrecorded[board.reported++]);
    return board.reported > before;
}

/* ---------------------------------------------------------------------- times ---- */

static void read_record_clocks(void) {
    record.now_ns = weir__record_clock();
    record.now_time = weir__record_time(record.has_counter);
}

static double ns_a_tick(void) {
    uint64_t ticks = record.now_time - record.first_time;

    return record.has_counter && ticks ? (double)(record.now_ns - record.first_ns) / (double)ticks
                                       : 1.0;
}

/* Converts a value of the processor's counter to microseconds since the trace began.  The results never decrease. */
static uint64_t convert_record_time(struct process *process, uint64_t time) {
    double ns = time > process->start ? (double)(time - process->start) * ns_a_tick() : 0.0;
    uint64_t us = (uint64_t)(ns / 1000.0);

    if (us > process->last_us)
        process->last_us = us;
    return process->last_us;
}

/* ------------------------------------------------------------------ processes ---- */

static int append_waiting_event(struct waiting *waiting, const struct weir_record_event *event) {
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

/* Moves all events of a ring to `waiting'.  Returns the number of events. */
static size_t drain_ring(struct process *process, struct weir_record_ring *ring,
                         struct waiting *waiting) {
    uint64_t first = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);

    /* The recorded program has overwritten the ring's counters. */
    if (written - first > WEIR_RECORD_EVENTS) {
        process->tracing.failed = EINVAL;
        return 0;
    }
    for (uint64_t read = first; read != written; read++)
        if (append_waiting_event(waiting, &ring->events[read % WEIR_RECORD_EVENTS]))
            process->count++;
        else
            process->tracing.failed = ENOMEM;
    atomic_store_explicit(&ring->read, written, memory_order_release);
    return (size_t)(written - first);
}

/* Writes the waiting events before the time process->complete_until, in the order of their times.  Also writes later
 * events if `is_last' is set, or while more than MAX_WAITING events wait. */
static void write_waiting(struct process *process, uint32_t rings, int is_last) {
    for (;;) {
        uint64_t next = UINT64_MAX; /* the earliest time of the waiting events of all other rings */
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

            if (!is_last && event->time >= process->complete_until && process->count <= MAX_WAITING)
                return;
            tracing_add(&process->tracing, event, convert_record_time(process, event->time));
            process->count--;
        } while (++oldest->first < oldest->end && oldest->events[oldest->first].time <= next);
        if (oldest->first == oldest->end)
            oldest->first = oldest->end = 0;
    }
}

/* Returns ring i of the process, and maps it first if necessary.  On failure, ends the recording of the process and
 * returns NULL. */
static struct weir_record_ring *map_record_ring(struct process *process, uint32_t i) {
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

/* Reads all rings of a process, and writes events in the order of their times.  Returns the number of events that were
 * read. */
static size_t drain_process(struct process *process, int is_last) {
    uint32_t counted = atomic_load(&process->file->head.rings);
    uint32_t rings = counted < WEIR_RECORD_RINGS ? counted : WEIR_RECORD_RINGS;
    uint64_t complete_until = record.now_time - (uint64_t)(SLACK_NS / ns_a_tick());
    size_t found = 0;

    for (uint32_t i = 0; i <= rings; i++) {
        struct weir_record_ring *ring =
            i < rings ? map_record_ring(process, i) : &process->file->shared;
        uint64_t entered = ring ? atomic_load_explicit(&ring->entered, memory_order_acquire) : 0;

        if (!ring)
            continue;
        if (entered == WEIR_RECORD_ENTERING)
            complete_until = process->complete_until;
        else if (entered && entered < complete_until)
            complete_until = entered;
        found += drain_ring(process, ring, &process->waiting[i < rings ? i + 1 : 0]);
    }
    if (complete_until > process->complete_until)
        process->complete_until = complete_until;
    write_waiting(process, rings, is_last);
    (void)sink_flush(process->tracing.sink); /* sink_close() will report the error */
    return found;
}

/* Returns the path for the next trace, which is the trace of the process `id'.  The caller frees the path.  Returns
 * NULL if there is no host memory. */
static char *make_trace_path(int id) {
    char *path = NULL;
    uintptr_t before = 0;
    int made;

    (void)weir__map_get(&record.ids, (uint64_t)id, &before);
    made = record.count == 0 ? asprintf(&path, "%s", record.path)
           : before          ? asprintf(&path, "%s.%d.%d", record.path, id, (int)before + 1)
                             : asprintf(&path, "%s.%d", record.path, id);
    return made < 0 || !weir__map_put(&record.ids, (uint64_t)id, before + 1) ? NULL : path;
}

/* Returns the descriptor of the truncated file record.path, for the first trace.  Uses the open descriptor record.file,
 * because a pipe must not be closed and opened again. */
static int claim_trace_file(void) {
    int file = record.file;

    if (file < 0) /* an earlier trace has closed record.file and could not begin */
        file = open(record.path, O_WRONLY | O_CLOEXEC);
    record.file = -1;
    if (file < 0)
        return -1;
    return ftruncate(file, 0) == 0 || errno == EINVAL ? file : -1;
}

/* Begins the trace of a process.  Reads a missing command line from /proc, unless the process is in another pid
 * namespace. */
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
        !memory_make_room(&record.summaries, &record.summary_room, record.count,
                          sizeof *record.summaries) ||
        !memory_make_room(&record.processes, &record.room, record.live, sizeof *record.processes))
        goto fail;
    process->file = file;
    process->id = file->head.process;
    process->start = file->head.start;
    process->tracing.limit = record.limit;
    process->path = make_trace_path(process->id);
    if (!process->path)
        goto fail;
    output = record.count == 0 ? claim_trace_file() : weir__replace_open(process->path, 0666);
    if (output < 0 || !(process->tracing.sink = sink_open(output, record.path))) {
        why = strerror(errno);
        goto fail;
    }
    begin_trace(process, &file->head);
    process->order = record.count;
    record.summaries[record.count++] = NULL;
    record.processes[record.live++] = process;
    return;

fail:
    fprintf(stderr, "weir record: %s: %s; process %d is not recorded\n",
            process && process->path ? process->path : record.path, why, (int)file->head.process);
    record.failed = EXIT_WEIR_FAILED;
    record.lost_processes++;
    atomic_store(&file->head.is_closed, 1);
    board_release(file);
    if (process)
        free(process->path);
    free(process);
}

/* Returns 1 if one more trace leaves SPARE_DESCRIPTORS descriptors free, else 0. */
static int has_descriptor(void) {
    int probe = fcntl(board.fd, F_DUPFD_CLOEXEC, 0);
    struct rlimit most;

    if (probe < 0)
        return 0;
    close(probe);
    return getrlimit(RLIMIT_NOFILE, &most) != 0 ||
           (rlim_t)probe + SPARE_DESCRIPTORS < most.rlim_cur;
}

/* Begins the traces of new processes, in the order of their starts.  If there are too few descriptors, the rest of the
 * processes wait until another trace has ended. */
static void begin_new_traces(void) {
    size_t begun = 0;
    int error;

    if (board_has_new() && (error = board_find_new()) != 0) {
        record.failed =
            fail_record(EXIT_WEIR_FAILED, "a process runs on unrecorded", strerror(error));
        record.lost_processes++;
    }
    while (begun < record.found_count && (record.live == 0 || has_descriptor()))
        add_process(record.found[begun++]);
    record.lacked_descriptors |= begun < record.found_count;
    if (begun) {
        record.found_count -= begun;
        memmove(record.found, record.found + begun, record.found_count * sizeof *record.found);
    }
    if (board_report_unrecorded())
        record.failed = EXIT_WEIR_FAILED;
}

static void find_ended_processes(void) {
    static size_t next;

    for (size_t i = 0; i < record.live && i < ENDS_AT_ONCE; i++) {
        struct process *process = record.processes[next++ % record.live];

        process->has_ended = !is_owner_running(&process->file->head);
    }
}

/* Returns a line about the trace of a process, such as its number of events, or NULL if there is no host memory. */
static char *describe_recorded_process(const struct process *process) {
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

/* Ends the trace of a process, whose events have all been read, and frees the process. */
static void end_process(struct process *process) {
    int error;

    atomic_store(&process->file->head.is_closed, 1);
    process->tracing.lost = atomic_load(&process->file->head.lost);
    if (process->tracing.lost) {
        record.failed = EXIT_WEIR_FAILED;
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
        record.failed = fail_record(EXIT_WEIR_FAILED, process->path, strerror(error));
    else
        record.summaries[process->order] = describe_recorded_process(process);
    for (size_t i = 0; i <= WEIR_RECORD_RINGS; i++)
        free(process->waiting[i].events);
    free(process->path);
    free(process);
}

static size_t drain_all_processes(int is_last) {
    size_t found = 0, kept = 0;

    read_record_clocks();
    for (size_t i = 0; i < record.live; i++) {
        struct process *process = record.processes[i];
        int is_end = is_last || process->has_ended;

        found += drain_process(process, is_end);
        if (is_end)
            end_process(process);
        else
            record.processes[kept++] = process;
    }
    record.live = kept;
    return found;
}

/* ------------------------------------------------------------------- the ends ---- */

/* Removes the empty file record.path, if weir record has created it. */
static void remove_created_file(void) {
    if (record.is_made)
        unlink(record.path);
}

/* Prints which recorded processes still run, after a signal has ended the recording. */
static void report_running(void) {
    for (size_t i = 0; i < record.live; i++) {
        struct process *process = record.processes[i];

        if (!is_owner_running(&process->file->head))
            continue;
        fprintf(
            stderr,
            "weir record: process %d (%.60s) still runs; its further requests are not recorded\n",
            process->id, process->command);
        record.failed = EXIT_WEIR_FAILED;
        record.lost_processes++;
    }
}

static void report_nothing_recorded(void) {
    int is_seen = atomic_load(&board.map->last_number) > 0;

    remove_created_file();
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
        record.failed = EXIT_WEIR_FAILED;
}

static void end_recording(int has_all_ended) {
    atomic_store(&board.map->is_closed, 1);
    /* Forces a search for new files, since a process may have overwritten the number of files. */
    board.searched_files = ~atomic_load(&board.map->files);
    do {
        begin_new_traces();
        if (!has_all_ended)
            report_running();
        (void)drain_all_processes(1);
    } while (record.found_count || board_has_new());
    if (is_truncated)
        record.failed = fail_record(
            EXIT_WEIR_FAILED, "events are lost",
            "a process of the command has truncated a file that it shares with weir record");
    if (!has_all_ended && !record.lost_processes)
        fputs("weir record: some processes of the command still run, but have requested no memory "
              "so far.  Their requests from now on are not recorded; such a process then prints a "
              "message.\n",
              stderr);
    record.lost_processes += atomic_load(&board.map->unrecorded_count);
    for (uint32_t i = 0; i < board.reported; i++)
        record.lost_events += atomic_load(&board.map->unrecorded[i].lost);
    for (size_t i = 0; i < record.count; i++)
        if (record.summaries[i])
            fprintf(stderr, "weir record: %s\n", record.summaries[i]);
    if (record.count == 0)
        report_nothing_recorded();
}

/* ------------------------------------------------------------------ the child ---- */

/* Returns the exit code of the command, if all events were recorded.  Otherwise prints how many are missing, and
 * returns another exit code. */
static int end_with_record_status(int status) {
    char lost[96] = "";

    if (!record.failed)
        return command_end_as(status);
    if (record.lost_processes)
        snprintf(lost, sizeof lost, ": %" PRIu64 " event%s%s of %" PRIu64 " process%s lost",
                 record.lost_events, weir__plural(record.lost_events),
                 record.lost_events ? "" : " or more", record.lost_processes,
                 record.lost_processes == 1 ? "" : "es");
    fprintf(stderr,
            "weir record: the recording is incomplete%s%s.  Therefore weir record exits with %d; "
            "the command "
            "%s %d\n",
            lost,
            record.lacked_descriptors && record.lost_processes
                ? ".  Raise ulimit -n, or start fewer processes at once"
                : "",
            record.failed, WIFEXITED(status) ? "exited with" : "was ended by signal",
            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    return record.failed;
}

/* Returns 1 if weir record should end, although processes of the command may still run; else 0. */
static int should_end_recording(void) {
    uint64_t now = weir__clock_ns();

    if (record.live > 0 || record.found_count > 0)
        record.last_running_ns = now;
    if (!command_should_end())
        record.last_unsignalled_ns = now;
    if (now - record.last_running_ns > GRACE_NS || now - record.last_unsignalled_ns > GRACE_NS)
        return 1;
    if (!record.has_reported_running && now - record.ended_ns > GRACE_NS) {
        record.has_reported_running = 1;
        fputs(
            "weir record: the command has ended, but some processes that it started still run.  "
            "weir record continues until the recorded processes end, or until SIGINT or SIGTERM.\n",
            stderr);
    }
    return 0;
}

/* Records events until the command and all its processes have ended, or until should_end_recording() returns 1.
 * Returns 1 if all processes that loaded the library have ended, else 0. */
static int record_all(pid_t started, int *status) {
    for (;;) {
        pid_t ended;
        int how;

        while ((ended = waitpid(-1, &how, WNOHANG)) > 0)
            if (ended == started) {
                *status = how;
                record.ended_ns = record.last_running_ns = record.last_unsignalled_ns =
                    weir__clock_ns();
                command_stop_forwarding();
            }
        if (ended < 0 && errno == ECHILD)
            return 1;
        /* A running process that has loaded the library holds a lock on the shared file. */
        if (record.ended_ns && should_end_recording())
            return !is_locked_by_other(WEIR_RECORD_LOCK_FIRST, 0);
        begin_new_traces();
        find_ended_processes();
        if (drain_all_processes(0) < BUSY_EVENTS)
            (void)poll(NULL, 0, PAUSE_US / 1000);
    }
}

/* Raises this process's limit on open files.  The command already runs, and keeps the old limit. */
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
        remove_created_file();
        board_end();
        return command_report_failure("record", record.command[0], error);
    }
    raise_descriptors();
    /* A write to a pipe whose reader has ended must not end this process. */
    signal(SIGPIPE, SIG_IGN);
    weir__file_guard(&guard);
    end_recording(record_all(started, &status));
    board_end();
    weir__file_unguard(&guard);
    return end_with_record_status(status);
}

/* ---------------------------------------------------------------- preparation ---- */

/* Opens record.path, which exists.  If it is a pipe without a reader, waits for a reader. */
static int open_existing(void) {
    struct stat is;
    int file = -1;

    if (stat(record.path, &is) == 0 && S_ISFIFO(is.st_mode)) {
        file = open(record.path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (file >= 0)
            (void)fcntl(file, F_SETFL, 0);
        else if (errno == ENXIO)
            fprintf(stderr, "weir: --output %s: waiting for a program that reads this pipe\n",
                    record.path);
    }
    return file >= 0 ? file : open(record.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
}

/* Opens record.path before the command runs, and locks it against another weir record.  Does not truncate the file, so
 * an earlier trace stays until there is an event to write.  Returns 0 on success.  On failure, prints a message and
 * returns the exit code. */
static int open_recording_file(void) {
    struct stat is;
    int file = open(record.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    record.is_made = file >= 0;
    if (file < 0 && errno == EEXIST)
        file = open_existing();
    if (file < 0) {
        fprintf(stderr, "weir: --output %s: %s\n", record.path, strerror(errno));
        return EXIT_WEIR_FAILED;
    }
    if (fstat(file, &is) == 0 && S_ISREG(is.st_mode) && flock(file, LOCK_EX | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK) {
        close(file);
        return fail_record(EXIT_WEIR_FAILED, record.path,
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
        return fail_record(EXIT_WEIR_FAILED, library, why);
    if ((record.ranges || record.callers) && getenv(NVTX_LIBRARY) &&
        strcmp(getenv(NVTX_LIBRARY), library) != 0) {
        fprintf(stderr, "weir record: %s: NVTX reports to another tool, %s\n", NVTX_LIBRARY,
                getenv(NVTX_LIBRARY));
        return EXIT_WEIR_FAILED;
    }
    code = open_recording_file();
    if (code == 0 && (error = board_begin()) != 0) {
        remove_created_file();
        code = fail_record(EXIT_WEIR_FAILED, board_places[BOARD_FOLDERS - 1], strerror(error));
    }
    if (code)
        return code;
    snprintf(folders, sizeof folders, "%s%s%s", board.folders[0],
             *board.folders[0] && *board.folders[1] ? ":" : "", board.folders[1]);
    if (preloading_set_variables(library, command_put, NULL) != 0 ||
        setenv(WEIR_RECORD_FOLDER, folders, 1) != 0 ||
        (record.ranges && setenv(WEIR_RECORD_RANGES, record.ranges, 1) != 0) ||
        (record.callers && setenv(WEIR_RECORD_CALLERS, "1", 1) != 0) ||
        ((record.ranges || record.callers) && setenv(NVTX_LIBRARY, library, 1) != 0) ||
        (record.marks_at_sync && setenv(WEIR_RECORD_SYNCS, "1", 1) != 0)) {
        board_end();
        code = fail_record(EXIT_WEIR_FAILED, "the environment", strerror(ENOMEM));
    }
    record.has_counter = weir__record_has_counter();
    read_record_clocks();
    record.first_ns = record.now_ns;
    record.first_time = record.now_time;
    return code;
}

static void read_trace_flag(struct argp_state *state, const char *flag, const char *text,
                            void *field) {
    weir_cli_read_file(state, flag, text, field);
    if (!sink_can_write(text))
        argp_error(state,
                   "%s '%s': this weir was built without zstd; expected a name that ends in .gz",
                   flag, text);
}

static void read_range_flag(struct argp_state *state, const char *flag, const char *text,
                            void *field) {
    if (!*text)
        argp_error(state, "%s '': expected a name, or a pattern such as 'step*'", flag);
    *(const char **)field = text;
}

static const struct weir_cli_flag flags[] = {
    {"output", 'o', "FILE", read_trace_flag, offsetof(struct record, path),
     "Write the trace to FILE (" DEFAULT_FILE ")."},
    {"callers", 0, NULL, weir_cli_read_switch, offsetof(struct record, callers),
     "Record the caller of each request: the line of Python or the function, and the NVTX range.  "
     "This takes some microseconds a request, and up to a millisecond in Python."},
    {"mark-at-sync", 0, NULL, weir_cli_read_switch, offsetof(struct record, marks_at_sync),
     "End an iteration where the program waits for the device or a stream, if it sets no marks."},
    {"mark-at-nvtx", 0, "NAME", read_range_flag, offsetof(struct record, ranges),
     "End an iteration where the program begins an NVTX range of this name, or sets an NVTX mark.  "
     "NAME may be a shell pattern, 'step*'."},
    {"limit", 0, "SIZE", weir_cli_read_size, offsetof(struct record, limit),
     "Stop writing after about SIZE of text, before compression."},
    {0}};

static error_t parse_record_argument(int key, char *argument, struct argp_state *state) {
    switch (key) {
    case ARGP_KEY_ARG: /* this argument and all arguments after it are the command */
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
