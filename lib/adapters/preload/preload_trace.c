/* SPDX-License-Identifier: MIT */
/* preload_trace.c: records the allocators' events of this process with their times, for a file that Perfetto reads
 * (`weir run --trace-events`), and for the time line of memory in a report (`weir run --report`).
 *
 * A hundred times a second, a thread reads the statistics of each allocator, and the events that the allocator has
 * logged since the last reading.  A thread whose request fails records the failure itself.  When the process ends,
 * weir reads the statistics a last time and writes the file.
 *
 * The first process in which weir allocates memory writes the file that the user has named.  Other processes add their
 * process ids to the name.  Until the end of the process, the file contains only the process id.  If the process
 * executes another program, that program finds the id and reuses the file.  Earlier events are lost.
 *
 * Locks: `lock` guards the rows and is the innermost lock.  While a thread holds `lock`, it calls only malloc.  A
 * thread reads statistics without `lock`, since the reading may take long.  weir__show_pause() admits one reader.
 *
 * The code in this file must not depend on the format of the file. */
#include "adapters/preload/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/timeline.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/replace.h"
#include "base/text.h"
#include "base/variable.h"
#include "base/who.h"

enum { PAUSE_NS = 10000000, MOST = 16 };

static struct row {
    struct weir_timeline *timeline; /* NULL if the row is unused */
    const struct weir_served *of;
    uint64_t made_ns; /* from `began_ns` to the creation of the allocator */
    uint64_t last;    /* the number of the last event that was read */
} rows[MOST];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int is_on;
static uint64_t began_ns;
static char path[4200];

/* Returns the row of allocator `i`, created if needed, or NULL.  The caller holds `lock`. */
static struct row *find_or_create_row(unsigned i) {
    struct weir_served *s = weir__served_at(i);
    uint64_t age, now;

    if (i >= MOST || rows[i].timeline)
        return i < MOST ? &rows[i] : NULL;
    rows[i].timeline = weir__timeline_open();
    rows[i].of = s;
    age = weir__show_age(s->allocator);
    now = weir__clock_ns() - began_ns;
    rows[i].made_ns = now > age ? now - age : 0;
    return rows[i].timeline ? &rows[i] : NULL;
}

static void read_row_events(struct row *row) {
    weir_event events[64];
    size_t count;

    do {
        if (weir_events(row->of->allocator, row->last, events, sizeof events[0],
                        sizeof events / sizeof events[0], &count) != WEIR_OK)
            return;
        pthread_mutex_lock(&lock);
        row->last = weir__timeline_events(row->timeline, row->made_ns, row->last, events, count);
        pthread_mutex_unlock(&lock);
    } while (count == sizeof events / sizeof events[0]);
}

static void read_row_figures(struct row *row) {
    weir_statistics f = {.size = sizeof f};
    uint64_t values[WEIR_TIMELINE_COUNTERS];

    if (weir_stats(row->of->allocator, &f) == WEIR_OK) {
        values[WEIR_TIMELINE_REQUESTED] = f.requested;
        values[WEIR_TIMELINE_IN_USE] = f.in_use;
        values[WEIR_TIMELINE_RESERVED] = f.reserved;
        pthread_mutex_lock(&lock);
        weir__timeline_count(row->timeline, row->made_ns + weir__show_age(row->of->allocator),
                             values);
        pthread_mutex_unlock(&lock);
    }
    read_row_events(row);
}

int weir__trace_read(void) {
    int goes_on;

    weir__show_pause();
    goes_on = atomic_load(&is_on);
    for (unsigned i = 0; goes_on && i < weir__served_known() && i < MOST; i++) {
        struct row *row;

        pthread_mutex_lock(&lock);
        row = find_or_create_row(i);
        pthread_mutex_unlock(&lock);
        if (row)
            read_row_figures(row);
        goes_on = atomic_load(&is_on);
    }
    weir__show_resume();
    return goes_on;
}

static void *run_trace_thread(void *unused) {
    weir__is_serving = 1; /* driver calls of this thread go to the driver unchanged */
    while (weir__trace_read())
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    return unused;
}

void weir__trace_record_failure(const struct weir_served *s, size_t bytes) {
    if (!atomic_load_explicit(&is_on, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < weir__served_known() && i < MOST; i++) {
        struct row *row = weir__served_at(i) == s ? find_or_create_row(i) : NULL;

        if (row)
            weir__timeline_failure(row->timeline, row->made_ns + weir__show_age(s->allocator),
                                   bytes);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- begin and end ------------------------------------------------------------------------------- */

/* Returns 1 if this process created the file before its execve(2), else 0.  Such a file contains `text`. */
static int is_own_earlier_file(const char *text, size_t length) {
    char found[300];
    int file = weir__file_open(path, O_RDONLY, 0);
    ssize_t bytes = file < 0 ? -1 : read(file, found, sizeof found);

    if (file >= 0)
        close(file);
    return bytes == (ssize_t)length && memcmp(found, text, length) == 0;
}

/* Creates the file early, so that other processes use other names.  Returns 0 on success, else an errno. */
static int create_trace_file(const char *wanted) {
    char text[300];
    size_t length = (size_t)weir__timeline_unfinished(text, sizeof text, (long)getpid());
    int file, error = 0;

    snprintf(path, sizeof path, "%s", wanted);
    file = weir__file_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file < 0 && errno == EEXIST) {
        if (!is_own_earlier_file(text, length))
            snprintf(path, sizeof path, "%.4096s.%ld", wanted, (long)getpid());
        file = weir__replace_open(path, 0666);
    }
    if (file < 0)
        return errno;
    error = weir__write_all(file, text, length);
    return close(file) != 0 && !error ? errno : error;
}

void weir__trace_begin(void) {
    const char *wanted = weir__variable("WEIR_RUN_TRACE");
    int before = errno, error;

    if (!wanted || !*wanted)
        wanted = NULL;
    if (!wanted && !weir__run_switch("WEIR_RUN_SAMPLES", 0))
        return;
    error = wanted ? create_trace_file(wanted) : 0;
    began_ns = weir__clock_ns();
    atomic_store(&is_on, 1);
    if (!error)
        error = weir__start_thread(run_trace_thread, "weir-trace");
    if (error) {
        atomic_store(&is_on, 0);
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "there will be no %s%s: %s",
                  wanted ? "trace events in " : "time line in the report", path, strerror(error));
    }
    errno = before;
}

static int write_rows(FILE *file, uint64_t *missing) {
    char command[WEIR_SHOW_COMMAND], name[64];

    weir__process_command(0, command, sizeof command);
    weir__timeline_begin_file(file);
    for (int i = 0; i < MOST; i++) {
        const struct row *row = &rows[i];

        if (!row->timeline)
            continue;
        snprintf(name, sizeof name, "%s%s", row->of->device_text,
                 row->of->is_plain ? " plain memory" : "");
        if (i > 0)
            snprintf(name + strlen(name), sizeof name - strlen(name), " (%d)", i + 1);
        *missing += weir__timeline_missing(row->timeline);
        weir__timeline_write(row->timeline, file, (long)getpid(), command, i, name);
    }
    weir__timeline_end_file(file, *missing);
    return !ferror(file);
}

size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most) {
    size_t count = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++) {
        if (!rows[i].timeline || rows[i].of != s)
            continue;
        count = weir__timeline_extents(rows[i].timeline, out, most);
        for (size_t k = 0; k < count; k++)
            out[k].time_ns -= rows[i].made_ns;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static FILE *open_trace_file(void) {
    int file = weir__file_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);

    return file < 0 ? NULL : fdopen(file, "w");
}

/* A thread that still reads statistics may add events later.  Nobody reads these events. */
void weir__trace_end(void) {
    struct weir_file_guard guard;
    uint64_t missing = 0;
    FILE *file;
    int good;

    if (!atomic_exchange(&is_on, 0))
        return;
    pthread_mutex_lock(&lock);
    weir__file_guard(&guard);
    file = path[0] ? open_trace_file() : NULL;
    good = file && write_rows(file, &missing);
    if (path[0] && (!file || fclose(file) != 0 || !good))
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "trace events cannot be written to %s: %s", path,
                  strerror(errno));
    else if (missing > 0)
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING, "%s: %llu step%s missing", path,
                  (unsigned long long)missing, weir__plural_are(missing));
    if (path[0] && weir__served_known() > MOST)
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING, "%s: only the first %d pools are in it", path,
                  MOST);
    weir__file_unguard(&guard);
    pthread_mutex_unlock(&lock);
}

int weir__trace_is_on(void) {
    return atomic_load(&is_on);
}
