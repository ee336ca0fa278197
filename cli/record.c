/* SPDX-License-Identifier: MIT */
/* record.c: `weir record': a program as it is, its requests for device memory written as a trace.
 *
 * The command runs with libweir-record.so preloaded, which puts what it asks into memory that is shared with
 * this process; this one writes.  So nothing is lost however the command ends, and nothing but
 * a few stores is done in it.  This process waits for it, passes signals on, and ends as it ended.
 *
 * The first process that asks for memory is written to FILE, each other one to FILE.PID.
 *
 * Must not know: which calls are recorded; what the lines look like.
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/replace.h"
#include "base/text.h"
#include "base/who.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/temporary.h"
#include "cli/modules.h"
#include "cli/preloading.h"
#include "cli/tracing.h"

#define LIBRARY "libweir-record.so"
#define NVTX_LIBRARY "NVTX_INJECTION64_PATH"
#ifdef HAVE_ZSTD
#define DEFAULT_FILE "weir.trace.zst"
#else
#define DEFAULT_FILE "weir.trace.gz"
#endif

enum { SYNC_KEY = 0x5701, NVTX_KEY, LIMIT_KEY, CALLERS_KEY };

enum {
    MOST_PROCESSES = 1024,
    FOLDERS = 2,
    PAUSE_US = 1000,
    BUSY_EVENTS = WEIR_RECORD_EVENTS / 4, /* found at once: no pause */
    MOST_FOUND = 64,                      /* at one look */
    MOST_WAITING = 1 << 17,               /* events of a process */
    LOOK_EVERY = 10,                      /* turns; at the folder */
    SLACK_NS = 2000000                    /* in which a store of another processor is seen */
};

/* Of the rings, in the order in which they are tried. */
static const char *const places[FOLDERS] = {"/dev/shm", "/tmp"};

/* A file of a new process. */
struct found {
    struct weir_record_file *file;
    char name[48];
};

/* Events of a ring, in order, that wait for those of other threads that may have been before them: [first, end). */
struct waiting {
    struct weir_record_event *events;
    size_t first, end, room;
};

struct process {
    struct weir_record_file *file; /* NULL: it has ended, and all was written */
    struct weir_record_ring *rings[WEIR_RECORD_RINGS];
    char name[48]; /* of the file */
    int id, has_ended;
    uint64_t began; /* the process */
    uint64_t start; /* its times */
    char *path;
    char command[256]; /* "": it had ended already */
    struct waiting waiting[WEIR_RECORD_RINGS + 1];
    size_t count; /* of all that wait */
    uint64_t safe, last_us;
    struct modules modules;
    struct tracing tracing;
};

static struct record {
    const char *path;
    int file;    /* that path's, until a process has it */
    int is_made; /* the file was not there before */
    int marks_at_sync, callers;
    const char *ranges; /* NULL: NVTX's count for nothing */
    uint64_t limit;
    char **command;
    char folders[FOLDERS][64]; /* "": it could not be made */
    struct process *processes[MOST_PROCESSES];
    size_t count;
    int has_counter, failed;
    /* The counter of the processor and the clock, at the beginning and now. */
    uint64_t first_time, first_ns, now_time, now_ns;
} record;

static int fail(int code, const char *what, const char *why) {
    fprintf(stderr, "weir record: %s: %s\n", what, why);
    return code;
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

/* Never back, though the counter's rate is known better and better. */
static uint64_t time_us(struct process *process, uint64_t time) {
    double ns = time > process->start ? (double)(time - process->start) * ns_a_tick() : 0.0;
    uint64_t us = (uint64_t)(ns / 1000.0);

    if (us > process->last_us)
        process->last_us = us;
    return process->last_us;
}

/* ------------------------------------------------------------------ processes ---- */

static int keep(struct waiting *waiting, const struct weir_record_event *event) {
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

/* How many events there were. */
static size_t drain_ring(struct process *process, struct weir_record_ring *ring,
                         struct waiting *waiting) {
    uint64_t first = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire);

    for (uint64_t read = first; read != written; read++)
        if (keep(waiting, &ring->events[read % WEIR_RECORD_EVENTS]))
            process->count++;
        else
            process->tracing.failed = ENOMEM;
    atomic_store_explicit(&ring->read, written, memory_order_release);
    return (size_t)(written - first);
}

/* What is before `safe', in order; `is_last': all of it.  A thread that is long in the driver, in a free, keeps no more
 * than so many waiting: then its event comes late (tracing.h). */
static void write_waiting(struct process *process, uint32_t rings, int is_last) {
    for (;;) {
        uint64_t next = UINT64_MAX; /* of the other rings */
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

static void *map_shared(const char *name, size_t bytes) {
    int fd = -1;
    void *map = NULL;
    char path[PATH_MAX];
    struct stat status;

    for (int i = 0; fd < 0 && i < FOLDERS; i++) {
        snprintf(path, sizeof path, "%s/%s", record.folders[i], name);
        if (*record.folders[i])
            fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    if (fd < 0)
        return NULL;
    if (fstat(fd, &status) == 0 && status.st_size == (off_t)bytes) {
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        map = map == MAP_FAILED ? NULL : map;
    }
    close(fd);
    unlink(path);
    return map;
}

/* NULL: it cannot be mapped, and the recording ends. */
static struct weir_record_ring *ring_of(struct process *process, uint32_t i) {
    char name[64];

    if (process->rings[i])
        return process->rings[i];
    snprintf(name, sizeof name, "%s.%" PRIu32, process->name, i);
    process->rings[i] = map_shared(name, sizeof *process->rings[i]);
    if (!process->rings[i]) {
        process->tracing.failed = errno ? errno : EIO;
        atomic_store(&process->file->head.is_closed, 1);
    }
    return process->rings[i];
}

/* Takes what is in the rings and writes what nothing more can come before; `is_last': all of it.  How many
 * events were in the rings. */
static size_t drain(struct process *process, int is_last) {
    uint32_t rings = atomic_load(&process->file->head.rings);
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
    (void)sink_flush(process->tracing.sink); /* an error is told as the file is closed */
    return found;
}

static char *path_of(int id) {
    char *path = NULL;
    int before = 0, made;

    for (size_t i = 0; i < record.count; i++)
        before += record.processes[i]->id == id;
    made = record.count == 0 ? asprintf(&path, "%s", record.path)
           : before          ? asprintf(&path, "%s.%d.%d", record.path, id, before + 1)
                             : asprintf(&path, "%s.%d", record.path, id);
    return made < 0 ? NULL : path;
}

static struct weir_record_file *map_file(const char *name) {
    struct weir_record_file *file = map_shared(name, sizeof *file);

    if (file && file->head.magic != WEIR_RECORD_MAGIC) {
        munmap(file, sizeof *file);
        file = NULL;
    }
    return file;
}

static void stop_process(struct process *process) {
    atomic_store(&process->file->head.is_closed, 1);
    for (int i = 0; i < WEIR_RECORD_RINGS; i++)
        if (process->rings[i])
            munmap(process->rings[i], sizeof *process->rings[i]);
    munmap(process->file, sizeof *process->file);
    process->file = NULL;
}

/* What stands between a program and the driver is not who asked. */
static const char *file_of(void *context, uint64_t address) {
    const char *name = modules_find(context, address);

    return name && strcmp(name, LIBRARY) != 0 ? name : NULL;
}

/* Of the first process: what another recording left in it goes now.  A pipe is opened once, or its reader would see its
 * end. */
static int take_file(void) {
    int file = record.file;

    if (file < 0) /* a process had it, and could not be written */
        file = open(record.path, O_WRONLY | O_CLOEXEC);
    record.file = -1;
    if (file < 0)
        return -1;
    return ftruncate(file, 0) == 0 || errno == EINVAL ? file : -1;
}

static void add_process(const struct found *found) {
    struct weir_record_file *file = found->file;
    struct process *process = calloc(1, sizeof *process);
    const char *why = strerror(ENOMEM);
    int output;

    if (!process)
        goto fail;
    process->file = file;
    memcpy(process->name, found->name, sizeof process->name);
    process->id = file->head.process;
    process->began = weir__process_start(process->id);
    process->start = file->head.start;
    process->tracing.limit = record.limit;
    process->tracing.file_of = file_of;
    process->tracing.context = &process->modules;
    process->path = path_of(process->id);
    if (!process->path)
        goto fail;
    output = record.count == 0 ? take_file() : weir__replace_open(process->path, 0666);
    if (output < 0 || !(process->tracing.sink = sink_on(output, record.path))) {
        why = strerror(errno);
        goto fail;
    }
    modules_begin(&process->modules, process->id);
    weir__process_command_of(process->id, process->command, sizeof process->command);
    tracing_begin(&process->tracing, process->command[0] ? process->command : record.command[0]);
    record.processes[record.count++] = process;
    return;

fail:
    record.failed = fail(EXIT_OWN, process && process->path ? process->path : record.path, why);
    atomic_store(&file->head.is_closed, 1);
    munmap(file, sizeof *file);
    if (process)
        free(process->path);
    free(process);
}

/* A process that found no room for its events: lost-PID-ERRNO. */
static void tell_lost(const char *name) {
    int id, error;

    if (sscanf(name, "lost-%d-%d", &id, &error) != 2)
        return;
    fprintf(stderr,
            "weir record: process %d runs on unrecorded: no room for its events in %s or %s: %s\n",
            id, places[0], places[1], strerror(error));
    record.failed = EXIT_OWN;
}

static size_t look_at_folder(const char *path, struct found *found, size_t count) {
    DIR *folder = *path ? opendir(path) : NULL;
    struct dirent *entry;
    char lost[PATH_MAX];

    while (folder && count < MOST_FOUND && record.count + count < MOST_PROCESSES &&
           (entry = readdir(folder)))
        if (strncmp(entry->d_name, "lost-", 5) == 0) {
            snprintf(lost, sizeof lost, "%s/%s", path, entry->d_name);
            if (unlink(lost) == 0)
                tell_lost(entry->d_name);
        } else if (isdigit((unsigned char)entry->d_name[0]) && !strchr(entry->d_name, '.') &&
                   (found[count].file = map_file(entry->d_name))) {
            snprintf(found[count].name, sizeof found[count].name, "%.40s", entry->d_name);
            count++;
        }
    if (folder)
        closedir(folder);
    return count;
}

/* Which have ended; and new ones, the oldest first. */
static void look_at_processes(void) {
    struct found found[MOST_FOUND];
    size_t count = 0;

    for (size_t i = 0; i < record.count; i++) {
        struct process *process = record.processes[i];

        if (process->file)
            process->has_ended = !weir__process_lives(process->id, process->began);
    }
    for (int i = 0; i < FOLDERS; i++)
        count = look_at_folder(record.folders[i], found, count);
    while (count) {
        size_t oldest = 0;

        for (size_t i = 1; i < count; i++)
            if (found[i].file->head.start < found[oldest].file->head.start)
                oldest = i;
        add_process(&found[oldest]);
        found[oldest] = found[--count];
    }
}

static size_t drain_all(int is_last) {
    size_t found = 0;

    look_at_clock();
    for (size_t i = 0; i < record.count; i++) {
        struct process *process = record.processes[i];

        if (!process->file)
            continue;
        found += drain(process, is_last || process->has_ended);
        if (is_last || process->has_ended)
            stop_process(process);
    }
    return found;
}

/* ------------------------------------------------------------------- the ends ---- */

/* Nothing was recorded: an empty file would be no trace. */
static void take_file_back(void) {
    if (record.is_made)
        unlink(record.path);
}

/* What became of it. */
static void tell_process(const struct process *process) {
    const struct tracing *tracing = &process->tracing;

    fprintf(stderr, "weir record: %s: %" PRIu64 " event%s of process %d", process->path,
            tracing->events, weir__plural(tracing->events), process->id);
    if (process->command[0])
        fprintf(stderr, " (%.60s)", process->command);
    if (tracing->left_out)
        fprintf(stderr, ", and %" PRIu64 " more left out: --limit", tracing->left_out);
    fputc('\n', stderr);
}

static void end_process(struct process *process) {
    int error;

    tracing_end(&process->tracing);
    error = process->tracing.failed;
    if (!sink_close(process->tracing.sink) && !error)
        error = errno;
    if (error)
        record.failed = fail(EXIT_OWN, process->path, strerror(error));
    else
        tell_process(process);
    modules_end(&process->modules);
    for (size_t i = 0; i <= WEIR_RECORD_RINGS; i++)
        free(process->waiting[i].events);
    free(process->path);
    free(process);
}

static void end_recording(void) {
    look_at_processes();
    (void)drain_all(1);
    for (size_t i = 0; i < record.count; i++)
        end_process(record.processes[i]);
    if (record.count > 0) {
        if (!record.callers)
            fputs("weir record: without --callers a trace names no function, line of Python or "
                  "NVTX range\n",
                  stderr);
        return;
    }
    take_file_back();
    if (!record.failed)
        fprintf(stderr,
                "weir record: the command made no call that weir records, so there is no trace: %s "
                "is %s\n",
                record.path, record.is_made ? "not made" : "as it was");
}

static void remove_folders(void) {
    for (int i = 0; i < FOLDERS; i++)
        temporary_remove(record.folders[i]);
}

/* ------------------------------------------------------------------ the child ---- */

/* As the command ended. */
static int end_as(int status) {
    return record.failed ? record.failed : command_end_as(status);
}

static int run_command(void) {
    pid_t started;
    int status = 0, error = command_start(record.command, &started);

    if (error) {
        take_file_back();
        remove_folders();
        return command_refuse("record", record.command[0], error);
    }
    for (unsigned turn = 0; waitpid(started, &status, WNOHANG) == 0; turn++) {
        if (turn % LOOK_EVERY == 0)
            look_at_processes();
        if (drain_all(0) < BUSY_EVENTS)
            (void)poll(NULL, 0, PAUSE_US / 1000);
    }
    command_ended();
    end_recording();
    remove_folders();
    return end_as(status);
}

/* ---------------------------------------------------------------- preparation ---- */

/* Memory first, where there is such a folder. */
static int make_folders(void) {
    int made = 0;

    for (int i = 0; i < FOLDERS; i++) {
        char *folder = record.folders[i];

        snprintf(folder, sizeof record.folders[i], "%s/weir-record-XXXXXX", places[i]);
        if (mkdtemp(folder))
            made++;
        else
            *folder = '\0';
    }
    return made ? 0 : fail(EXIT_OWN, places[FOLDERS - 1], strerror(errno));
}

/* The file is there at once, so that a path that cannot be written is said before the command runs.  What another
 * recording left in it stays until there is something to be written. */
static int try_file(void) {
    int fd = open(record.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct stat is;

    record.is_made = fd >= 0;
    if (fd < 0 && stat(record.path, &is) == 0 && S_ISFIFO(is.st_mode)) {
        fd = open(record.path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0)
            (void)fcntl(fd, F_SETFL, 0);
        else if (errno == ENXIO)
            fprintf(stderr, "weir record: --output %s: waits for a program that reads this pipe\n",
                    record.path);
        errno = EEXIST;
    }
    if (fd < 0 && errno == EEXIST)
        fd = open(record.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        fprintf(stderr, "weir record: --output %s: %s\n", record.path, strerror(errno));
        return EXIT_OWN;
    }
    record.file = fd;
    return 0;
}

static int put(void *to, const char *name, const char *value) {
    (void)to;
    return setenv(name, value, 1);
}

static int prepare(void) {
    char library[4200], process[40], folders[sizeof record.folders + FOLDERS];
    const char *why;
    int code;

    if (preloading_find(LIBRARY, library, sizeof library, &why) != 0)
        return fail(EXIT_OWN, library, why);
    if ((record.ranges || record.callers) && getenv(NVTX_LIBRARY) &&
        strcmp(getenv(NVTX_LIBRARY), library) != 0) {
        fprintf(stderr, "weir record: %s: NVTX reports to another tool, %s\n", NVTX_LIBRARY,
                getenv(NVTX_LIBRARY));
        return EXIT_OWN;
    }
    code = try_file();
    if (code == 0 && (code = make_folders()) != 0)
        take_file_back();
    if (code)
        return code;
    snprintf(process, sizeof process, "%d %" PRIu64, (int)getpid(), weir__process_start(getpid()));
    snprintf(folders, sizeof folders, "%s%s%s", record.folders[0],
             *record.folders[0] && *record.folders[1] ? ":" : "", record.folders[1]);
    if (preloading_tell(library, put, NULL) != 0 || setenv(WEIR_RECORD_FOLDER, folders, 1) != 0 ||
        setenv(WEIR_RECORD_PROCESS, process, 1) != 0 ||
        (record.ranges && setenv(WEIR_RECORD_RANGES, record.ranges, 1) != 0) ||
        (record.callers && setenv(WEIR_RECORD_CALLERS, "1", 1) != 0) ||
        ((record.ranges || record.callers) && setenv(NVTX_LIBRARY, library, 1) != 0) ||
        (record.marks_at_sync && setenv(WEIR_RECORD_SYNCS, "1", 1) != 0)) {
        remove_folders();
        code = fail(EXIT_OWN, "the environment", strerror(ENOMEM));
    }
    record.has_counter = weir__record_has_counter();
    look_at_clock();
    record.first_ns = record.now_ns;
    record.first_time = record.now_time;
    return code;
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct weir_problem problem;

    switch (key) {
    case 'o':
        record.path = weir_cli_file(state, "--output", argument, 0);
        if (!sink_can(argument))
            argp_error(state,
                       "--output '%s': this weir was built without zstd; expected a name in .gz",
                       argument);
        return 0;
    case SYNC_KEY:
        record.marks_at_sync = 1;
        return 0;
    case CALLERS_KEY:
        record.callers = 1;
        return 0;
    case NVTX_KEY:
        if (!*argument)
            argp_error(state, "--mark-at-nvtx '': expected a name, or a pattern as 'step*'");
        record.ranges = argument;
        return 0;
    case LIMIT_KEY:
        if (!weir__size_read(argument, &record.limit, &problem))
            argp_error(state, "--limit '%s': %s; expected a size, as 100MiB", argument,
                       problem.text);
        if (record.limit == 0)
            argp_error(state, "--limit '%s': it is 0; expected a size, as 100MiB", argument);
        return 0;
    case ARGP_KEY_ARG: /* the rest is the command's, whatever it looks like */
        record.command = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        preloading_no_command(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] =
    "Records a trace of an unmodified program, for weir replay and weir bench: each allocation and "
    "free of device memory that it requests from the CUDA driver.\vAn iteration ends where the "
    "program calls weir_mark(\"LABEL\") of the preloaded library, or by the flags below.  FILE is "
    "compressed if its name ends in .zst or .gz.  Each further process of the command that "
    "requests memory has a trace FILE.PID.\n\nExit code: the command's; 126 if it cannot be run, "
    "127 if there is none; 2 usage or a bad value, 125 another failure.";

int weir_cmd_record(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"output", 'o', "FILE", 0, "Write the trace to FILE (" DEFAULT_FILE ").", 0},
        {"callers", CALLERS_KEY, NULL, 0,
         "Record the caller of each request: the line of Python or the function, and the NVTX "
         "range. "
         " This takes some microseconds a request, and up to a millisecond in Python.",
         0},
        {"mark-at-sync", SYNC_KEY, NULL, 0,
         "End an iteration where the program waits for the device or a stream, if it sets no "
         "marks.",
         0},
        {"mark-at-nvtx", NVTX_KEY, "NAME", 0,
         "End an iteration where the program begins an NVTX range of this name, or sets an NVTX "
         "mark.  NAME may be a shell pattern, 'step*'.",
         0},
        {"limit", LIMIT_KEY, "SIZE", 0, "Stop writing at about SIZE of text, before compression.",
         0},
        {0}};
    struct argp argp = {options, parse_argument, "[--] COMMAND [ARGUMENT...]", doc, NULL, NULL,
                        NULL};
    int code;

    record.path = DEFAULT_FILE;
    if (weir_cli_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL) != 0)
        return EXIT_USAGE;
    code = prepare();
    return code ? code : run_command();
}
