/* SPDX-License-Identifier: MIT */
/* preload_report.c: writes the reports that the user wants, and the reason if weir has allocated nothing.
 *
 * exit(3) runs report(), which writes the statistics, before the driver's own exit function, since report() is
 * registered later.  quick_exit(3) has a list of its own, in which report() and report_at_exit() are registered, too.
 * Each line is written by one write(2), so that several processes may write to one file.
 *
 * A process that ends by _exit or by a signal calls no exit function (preload_ends.c).  The ending thread may be
 * inside a signal handler that has interrupted any code.  So a thread "weir-exit" waits on a semaphore.  The ending
 * thread posts the semaphore, and waits for a limited time while "weir-exit" writes the reports.  If weir has
 * allocated nothing, the ending thread reports this itself.  It then allocates no memory and takes no lock.
 *
 * A thread whose driver call never returns may hold the lock of an allocator.  So a separate thread reads the
 * statistics.  The process waits 2 s for the statistics and 10 s for profiles.  The reports name what is missing.
 *
 * The code in this file must not depend on how weir replaces the driver's functions. */
#include "adapters/preload/preload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/oom_reporting.h"
#include "api/show.h"
#include "api/timeline.h"
#include "base/file.h"
#include "base/kept.h"
#include "base/log.h"
#include "base/output.h"
#include "base/replace.h"
#include "base/text.h"
#include "base/variable.h"
#include "ipc/group_process.h"

enum {
    FIGURES_S = 2, /* the longest wait for statistics, in seconds */
    PROFILES_S = 10,
    REPORT_S = FIGURES_S + PROFILES_S + 3, /* the longest wait of _exit for all reports */
    TEXT_BYTES = 400,
    LINE_BYTES = 524288,
    FIGURES_BYTES = 65536, /* room for the statistics in a line of JSON */
    OOM_REPORT_BYTES = 4096,
    MOST_PARTS = 512 /* parts of a time line */
};

_Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

static const char *const unserved_names[WEIR_UNSERVED_COUNT] = {
    "pools", "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemCreate"};

/* The program's name at its start.  A program may overwrite its arguments later. */
static char program[64];

static uint64_t unserved(int which) {
    return atomic_load_explicit(&weir__unserved[which], memory_order_relaxed);
}

static struct { _Atomic uint64_t pools, requests; } fallbacks[WEIR_FALLBACK_COUNT];

const char *weir__fallback_text(enum weir_fallback why) {
    static const char *const texts[WEIR_FALLBACK_COUNT] = {
#define TEXT(name, text) [WEIR_FALLBACK_##name] = (text),
        WEIR_FALLBACK_REASONS(TEXT)
#undef TEXT
    };

    return texts[why];
}

void weir__count_fallback(enum weir_fallback why, struct weir_pool *pool) {
    if (pool && !atomic_exchange_explicit(&pool->has_fallen_back, 1, memory_order_relaxed))
        atomic_fetch_add_explicit(&fallbacks[why].pools, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&fallbacks[why].requests, 1, memory_order_relaxed);
}

int weir__run_switch(const char *variable, int standard) {
    const char *value = weir__variable(variable);
    struct weir_problem problem;

    if (value)
        (void)weir__switch_read(value, &standard, &problem);
    return standard;
}

void weir__run_log(const char *format, ...) {
    char text[TEXT_BYTES];
    va_list arguments;

    if (!weir__run_switch("WEIR_RUN_VERBOSE", 0))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO, "%s", text);
}

/* ---- statistics ---------------------------------------------------------------------------------- */

struct figures {
    atomic_int are_known; /* set once `figures` is complete */
    weir_statistics figures;
};

static struct figures at_end[WEIR_MOST_SERVED];

static atomic_int is_over; /* set once no thread waits for statistics and profiles */

static void read_all_figures(struct figures *all) {
    for (unsigned i = 0; i < weir__served_known() && !atomic_load(&is_over); i++) {
        all[i].figures = (weir_statistics){.size = sizeof all[i].figures};
        if (weir_stats(weir__served_at(i)->allocator, &all[i].figures) == WEIR_OK)
            atomic_store_explicit(&all[i].are_known, 1, memory_order_release);
    }
}

/* Returns an allocator's statistics, or NULL if they could not be read in time. */
static const weir_statistics *find_figures(const struct figures *all, unsigned i) {
    return atomic_load_explicit(&all[i].are_known, memory_order_acquire) ? &all[i].figures : NULL;
}

/* Adds the latencies of an operation to a line of JSON, if weir measures latencies (WEIR_LATENCY). */
static void add_latency(struct weir_output *line, const struct weir_served *s, int operation,
                        const char *name) {
    weir_latency l = {.size = sizeof l};

    if (weir_latencies(s->allocator, operation, &l) == WEIR_OK)
        weir__put_json(line,
                       ",%s:{'count':%ju,'p50':%ju,'p99':%ju,'p999':%ju,'max':%ju,'total':%ju}",
                       name, l.count, l.p50_ns, l.p99_ns, l.p999_ns, l.max_ns, l.total_ns);
}

static void add_numbers(struct weir_output *line, const char *name,
                        const struct weir_timeline_extent *of, size_t count,
                        const uint64_t *first) {
    size_t each = sizeof *of / sizeof *first;

    weir__put_json(line, ",%s:[", name);
    for (size_t i = 0; i < count; i++)
        weir__put_json(line, ",%ju", first[i * each]);
    weir__put_json(line, "]");
}

/* Adds the allocator's time line to a line of JSON, in the form of cli/replay/child.c. */
static void add_timeline(struct weir_output *line, const struct weir_served *s) {
    /* This array is static to save stack space.  Only one thread calls this function. */
    static struct weir_timeline_extent part[MOST_PARTS];
    const struct weir_output before = *line;
    size_t count = weir__trace_extents(s, part, MOST_PARTS);

    if (count == 0)
        return;
    weir__put_json(line, ",'timeline':{");
    add_numbers(line, "time_ns", part, count, &part->time_ns);
    add_numbers(line, "requested_low", part, count, &part->low[WEIR_TIMELINE_REQUESTED]);
    add_numbers(line, "requested_high", part, count, &part->high[WEIR_TIMELINE_REQUESTED]);
    add_numbers(line, "in_use_high", part, count, &part->high[WEIR_TIMELINE_IN_USE]);
    add_numbers(line, "reserved_low", part, count, &part->low[WEIR_TIMELINE_RESERVED]);
    add_numbers(line, "reserved_high", part, count, &part->high[WEIR_TIMELINE_RESERVED]);
    weir__put_json(line, "}");
    if (line->length > line->bytes - FIGURES_BYTES)
        /* Drops the timeline from the line, since too little space is left for the statistics. */
        *line = before;
}

static void add_statistics(struct weir_output *line, const weir_statistics *f) {
/* clang-format off */
#define STATISTICS(X) \
    X(allocs) X(frees) X(hits) X(cache_hits) X(cache_misses_young) X(cache_misses_empty) X(cache_misses_capture) \
    X(steals) X(event_records) X(retries) X(failed_requests) X(blocks) X(requested) X(requested_peak) X(in_use_peak) \
    X(reserved) X(reserved_peak) X(growths) X(growth_bytes) X(stall_ns) X(trims) X(prealloc_asked) X(prealloc_got) \
    X(prealloc_ns)
/* clang-format on */
#define ADD(name) weir__put_json(line, ",'" #name "':%ju", f->name);
    STATISTICS(ADD)
#undef ADD
}

static void add_served(struct weir_output *line, const struct weir_served *s,
                       const weir_statistics *f) {
    weir__put_json(line, ",{'device':%s,'serves':%s,'engine':%s", s->device_text,
                   s->is_plain ? "cuMemAlloc" : "pool", s->engine);
    add_statistics(line, f);
    add_latency(line, s, 0, "alloc_ns");
    add_latency(line, s, 1, "free_ns");
    add_timeline(line, s);
    /* The last part of the time line ends now. */
    weir__put_json(line, ",'ended_ns':%ju}", weir__show_age(s->allocator));
}

static void put_line(const char *path, const struct weir_output *line) {
    int error = weir__append_all(path, line->text, line->length);

    if (error)
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "statistics cannot be written to %s: %s", path,
                  strerror(error));
}

static void report_json(const char *path) {
    /* This buffer is static to save stack space.  This function runs only once. */
    static char text[LINE_BYTES];
    struct weir_output line = {.text = text, .bytes = sizeof text};
    int is_incomplete = 0;

    weir__put_json(&line, "{'weir':%s,'pid':%ju,'served':[", weir_version(), (uintmax_t)getpid());
    for (unsigned i = 0; i < weir__served_known(); i++)
        if (find_figures(at_end, i))
            add_served(&line, weir__served_at(i), find_figures(at_end, i));
        else
            is_incomplete = 1;
    weir__put_json(&line, "],'not_served':[");
    for (int i = WEIR_FALLBACK_NOT + 1; i < WEIR_FALLBACK_COUNT; i++)
        if (fallbacks[i].requests > 0)
            weir__put_json(&line, ",{'why':%s,'pools':%ju,'requests':%ju}",
                           weir__fallback_text((enum weir_fallback)i), fallbacks[i].pools,
                           fallbacks[i].requests);
    weir__put_json(&line, "],'left':{");
    for (int i = 0; i < WEIR_UNSERVED_COUNT; i++)
        weir__put_json(&line, ",%s:%ju", unserved_names[i], unserved(i));
    weir__put_json(&line, is_incomplete ? "},'incomplete':true}\n" : "}}\n");
    if (line.length < line.bytes)
        put_line(path, &line);
    else
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "statistics are too long to be written to %s",
                  path);
}

static double mebibytes(uint64_t bytes) {
    return (double)bytes / (1024.0 * 1024.0);
}

/* Writes the statistics as text.  Each line names the process, since several processes may write to one file. */
static void report_text(const struct figures *all, const char *when) {
    long process = (long)getpid();
    char text[TEXT_BYTES], refused[40];
    struct weir_output left_over = {.text = text, .bytes = sizeof text};
    int is_incomplete = 0;

    for (unsigned i = 0; i < weir__served_known(); i++) {
        const struct weir_served *s = weir__served_at(i);
        const weir_statistics *f = find_figures(all, i);

        if (!f) {
            is_incomplete = 1;
            weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO,
                      "process %ld (%s)%s: %s, %s, engine %s: what was served is not known",
                      process, program, when, s->device_text,
                      s->is_plain ? "cuMemAlloc" : "a memory pool", s->engine);
            continue;
        }
        refused[0] = '\0';
        if (f->failed_requests > 0)
            snprintf(refused, sizeof refused, ", %ju failed", f->failed_requests);
        weir__log(
            WEIR_LOG_INFO, WEIR_LOG_INFO,
            "process %ld (%s)%s: %s, %s, engine %s: %ju request%s served, %ju of them from "
            "caches%s, %ju free%s; at most %.1f MiB requested, %.1f MiB reserved; %ju growth%s "
            "in %.3f ms",
            process, program, when, s->device_text, s->is_plain ? "cuMemAlloc" : "a memory pool",
            s->engine, f->allocs, weir__plural(f->allocs), f->cache_hits, refused, f->frees,
            weir__plural(f->frees), mebibytes(f->requested_peak), mebibytes(f->reserved_peak),
            f->growths, weir__plural(f->growths), (double)f->stall_ns / 1e6);
    }
    for (int i = 0; i < WEIR_UNSERVED_COUNT; i++)
        if (unserved(i) > 0)
            weir__put(&left_over, "%s %ju %s%s", left_over.length ? "," : "", unserved(i),
                      i == WEIR_UNSERVED_POOL ? "of " : "by ", unserved_names[i]);
    if (left_over.length > 0 || !is_incomplete)
        weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO,
                  "process %ld (%s)%s: requests left to the driver:%s", process, program, when,
                  left_over.length > 0 ? text : " none");
}

__attribute__((cold)) void weir__report_oom(const struct weir_served *s) {
    const char *path = weir__variable("WEIR_RUN_JSON");
    char json[OOM_REPORT_BYTES], text[OOM_REPORT_BYTES + 200];
    struct weir_output line = {.text = text, .bytes = sizeof text};
    weir_oom_report oom_report;

    if (!weir__oom_report_new(s->allocator, &oom_report) || !path || !*path)
        return;
    (void)weir_oom_report_text(&oom_report, WEIR_OOM_REPORT_AS_JSON, json, sizeof json);
    weir__put_json(&line, "{'weir':%s,'pid':%ju,'device':%s,'oom_report':", weir_version(),
                   (uintmax_t)getpid(), s->device_text);
    weir__put(&line, "%s}\n", json);
    put_line(path, &line);
}

/* ---- destinations of reports --------------------------------------------------------------------- */

static const char *report_file_of(const char *variable) {
    const char *path = weir__variable(variable);

    return path && *path ? path : NULL;
}

/* Returns 1 if the user wants a report and this is the first process of `weir run`, else 0. */
static int wants_report(void) {
    static const char *const files[] = {"WEIR_RUN_JSON", "WEIR_RUN_TRACE"};
    const char *first = weir__variable("WEIR_RUN_FIRST");
    int asked = weir__run_switch("WEIR_RUN_STATS", 0);

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        asked |= report_file_of(files[i]) != NULL;
    return asked && first && strtol(first, NULL, 10) == (long)getpid();
}

/* A duplicate of standard error, since a program may close standard error before its end. */
static struct weir_kept kept_error = WEIR_KEPT_NONE;

/* Returns 1 if weir's duplicate of standard error is open, else 0.  weir's descriptor has FD_CLOEXEC set. */
static int has_kept_error(void) {
    return weir__kept_is(&kept_error) && (fcntl(kept_error.number, F_GETFD) & FD_CLOEXEC);
}

/* Closes the duplicate of standard error in a child of fork.  Otherwise its reader would wait for the child's end. */
static void close_kept_error(void) {
    if (has_kept_error())
        weir__kept_close(&kept_error);
    kept_error.number = -1;
}

static void duplicate_error_output(void) {
    enum { FIRST_NUMBER = 741 }; /* rarely used by programs, and below most limits on open files */

    int number;

    if (!wants_report() || pthread_atfork(NULL, NULL, close_kept_error) != 0)
        return;
    number = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, FIRST_NUMBER);
    if (number >= 0)
        (void)weir__kept_set(&kept_error, number);
}

/* Restores a closed standard error.  Tries several times, since another thread may briefly use descriptor 2. */
static void restore_error_output(void) {
    enum { TRIES = 20 };

    for (int i = 0; i < TRIES && has_kept_error(); i++) {
        int number = fcntl(kept_error.number, F_DUPFD, STDERR_FILENO);

        if (number <= STDERR_FILENO)
            return;
        close(number);
        (void)usleep(500);
    }
}

/* ---- process end --------------------------------------------------------------------------------- */

/* has_figures is posted when all statistics have been read, has_profiles when all profiles have been written. */
static sem_t has_figures, has_profiles;

static void save_profiles(void) {
    for (unsigned i = 0; i < weir__served_known() && !atomic_load(&is_over); i++)
        weir__served_save(weir__served_at(i));
}

static void *gather_figures(void *unused) {
    weir__is_serving++;
    (void)weir__trace_read();
    read_all_figures(at_end);
    (void)sem_post(&has_figures);
    save_profiles();
    (void)sem_post(&has_profiles);
    weir__is_serving--;
    return unused;
}

static int await_semaphore(sem_t *what, int seconds) {
    struct timespec until;
    int failed;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    do
        failed = sem_timedwait(what, &until);
    while (failed && errno == EINTR);
    return !failed;
}

static int has_any_profile(void) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        if (weir__served_at(i)->has_profile)
            return 1;
    return 0;
}

static void log_missing_parts(int has_all_figures, int wants_figures, int has_profile) {
    if (has_all_figures)
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR,
                  "a profile was not written within %d s: the process ends without it", PROFILES_S);
    else
        weir__log(
            WEIR_LOG_ERROR, WEIR_LOG_ERROR,
            "figures cannot be read within %d s, since a thread holds a lock of weir's, or the "
            "driver does not answer: without%s%s%s the process ends",
            FIGURES_S, weir__trace_is_on() ? " its last trace events," : "",
            wants_figures ? " its statistics," : "", has_profile ? " its profile," : "");
}

/* Reads the statistics and writes the profiles.  Logs which of them a time limit has prevented. */
static void read_with_time_limit(int wants_figures) {
    int has_profile = has_any_profile(), figures = 0, profiles = 0;

    if (!wants_figures && !has_profile && !weir__trace_is_on())
        return;
    if (sem_init(&has_figures, 0, 0) != 0 || sem_init(&has_profiles, 0, 0) != 0)
        return;
    if (weir__start_thread(gather_figures, "weir-end") != 0)
        (void)gather_figures(NULL);
    figures = await_semaphore(&has_figures, FIGURES_S);
    profiles = figures && await_semaphore(&has_profiles, PROFILES_S);
    atomic_store(&is_over, 1);
    if (!figures || !profiles)
        log_missing_parts(figures, wants_figures, has_profile);
}

static pid_t served_process;
/* set by the first thread that writes the reports; other threads wait for this thread */
static atomic_int has_begun;
/* set while this thread writes reports, so that a signal handler on this thread does not write reports, too */
static _Thread_local int is_reporting;
/* A thread that ends the process posts `is_ending`.  The thread that has written all reports posts `has_reported`. */
static sem_t is_ending, has_reported;
static atomic_int has_report_thread; /* set if the thread "weir-exit" waits for `is_ending` */

static void wait_for_reports(void) {
    if (await_semaphore(&has_reported, REPORT_S))
        (void)sem_post(&has_reported); /* wakes the next thread that waits */
    else
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR,
                  "process %ld ends without what was to be written of it within %d s",
                  (long)getpid(), REPORT_S);
}

/* Writes all reports before the driver is unloaded.  Does nothing in a child process, even in a child of vfork(2). */
static void report(void) {
    const char *path = report_file_of("WEIR_RUN_JSON");
    int has_text = weir__run_switch("WEIR_RUN_STATS", 0);

    if (weir__driver_forked() || getpid() != served_process)
        return;
    if (atomic_exchange(&has_begun, 1)) {
        if (has_report_thread && !is_reporting)
            wait_for_reports();
        return;
    }
    is_reporting = 1;
    weir__is_serving++;
    restore_error_output();
    read_with_time_limit(path || has_text);
    weir__trace_end();
    weir__show_end();
    if (has_text)
        report_text(at_end, "");
    if (path)
        report_json(path);
    weir__is_serving--;
    is_reporting = 0;
    if (has_report_thread)
        (void)sem_post(&has_reported);
}

__attribute__((cold)) void weir__report_failure(void) {
    static atomic_int is_done;
    struct figures *now;

    if (atomic_load(&has_begun) || atomic_exchange(&is_done, 1))
        return;
    now = weir__run_switch("WEIR_RUN_STATS", 0) ? calloc(WEIR_MOST_SERVED, sizeof *now) : NULL;
    if (!now)
        return;
    read_all_figures(now);
    report_text(now, ", as a request failed");
    free(now);
}

static void *run_exit_thread(void *unused) {
    while (sem_wait(&is_ending) != 0)
        ;
    report();
    return unused;
}

void weir__report_register(void) {
    served_process = getpid();
    (void)atexit(report);
    (void)at_quick_exit(report);
    has_report_thread = (weir__run_switch("WEIR_RUN_STATS", 0) || report_file_of("WEIR_RUN_JSON") ||
                         weir__trace_is_on() || has_any_profile()) &&
                        sem_init(&is_ending, 0, 0) == 0 && sem_init(&has_reported, 0, 0) == 0 &&
                        weir__start_thread(run_exit_thread, "weir-exit") == 0;
}

/* ---- reasons without allocations ----------------------------------------------------------------- */

static pid_t own_process;

static void report_at_exit(void);

static __attribute__((constructor)) void begin_report(void) {
    own_process = getpid();
    snprintf(program, sizeof program, "%s", program_invocation_short_name);
    (void)at_quick_exit(report_at_exit);
    duplicate_error_output();
}

/* Returns 1 if a mapped file's path contains `name`, else 0.  `name` must begin with a slash, and contain no other
 * slash.  Reads /proc/self/maps, because a signal may have interrupted the dynamic linker. */
static int is_file_mapped(const char *name) {
    size_t length = strlen(name);
    int file = weir__file_open("/proc/self/maps", O_RDONLY, 0);
    size_t found = 0;
    char text[1024];
    ssize_t bytes;

    while (found < length && (bytes = read(file, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < bytes && found < length; i++)
            found = text[i] == name[found] ? found + 1 : text[i] == name[0];
    if (file >= 0)
        close(file);
    return found == length;
}

static void log_nothing_served(void) {
    if (!wants_report())
        return;
    weir__log(WEIR_LOG_INFO, WEIR_LOG_INFO, "the program %s, so there are no statistics of it",
              weir__torch_has_weir()
                  ? "took its memory from weir as PyTorch's allocator (torch.cuda.memory_stats)"
              : unserved(WEIR_UNSERVED_POOL) > 0
                  ? "requested pool memory only in captures, or without success"
              : weir__any_allocator_tried()    ? "ended in its first request for device memory"
              : is_file_mapped("/libcuda.so.") ? "requested no device memory"
                                               : "did not load CUDA, and used no device memory");
}

/* Logs how many requests the driver has served in place of weir, and why.  Returns 1 if there were any, else 0. */
static int log_fallbacks(void) {
    char text[TEXT_BYTES];
    struct weir_output out = {.text = text, .bytes = sizeof text};

    for (int i = WEIR_FALLBACK_NOT + 1; i < WEIR_FALLBACK_COUNT; i++) {
        uint64_t pools = fallbacks[i].pools, requests = fallbacks[i].requests;
        const char *between = out.length ? "; " : "",
                   *why = weir__fallback_text((enum weir_fallback)i);

        if (pools > 0)
            weir__put(&out, "%s%ju pool%s (%s), %ju request%s", between, pools, weir__plural(pools),
                      why, requests, weir__plural(requests));
        else if (requests > 0)
            weir__put(&out, "%s%ju request%s (%s)", between, requests, weir__plural(requests), why);
    }
    if (out.length == 0)
        return 0;
    restore_error_output();
    weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING, "not served: %s", text);
    return 1;
}

/* At the end of the process, logs why the driver has served requests in place of weir. */
static __attribute__((destructor)) void report_at_exit(void) {
    static atomic_int is_done;
    const char *why = weir__torch_reason_unused();
    char text[TEXT_BYTES];
    struct weir_output out = {.text = text, .bytes = sizeof text};

    if (weir__driver_forked() || getpid() != own_process || atomic_exchange(&is_done, 1) ||
        log_fallbacks() || weir__served_known() > 0 || weir__any_refused())
        return;
    for (int i = WEIR_UNSERVED_POOL + 1; i < WEIR_UNSERVED_COUNT; i++)
        if (unserved(i) > 0 && unserved(WEIR_UNSERVED_POOL) == 0)
            weir__put(&out, "%s %s (%ju time%s)", out.length ? "," : "", unserved_names[i],
                      unserved(i), weir__plural(unserved(i)));
    restore_error_output();
    if (out.length > 0 && !weir__torch_has_weir())
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING,
                  "weir served nothing: all device memory was taken by%s, which it leaves to the "
                  "driver%s%s",
                  text, *why ? "; PyTorch used its own allocator, because " : "", why);
    else
        log_nothing_served();
}

/* Does nothing in a child of fork or vfork.  A child of vfork shares all memory, so only its process id differs. */
void weir__report_before_end(int is_sure) {
    int is_own = !weir__driver_forked() && getpid() == own_process;

    if (has_report_thread && is_own && getpid() == served_process && !is_reporting) {
        if (!atomic_load(&has_begun))
            (void)sem_post(&is_ending);
        wait_for_reports();
    }
    report_at_exit();
    if (is_sure)
        weir__show_remove();
    if (is_sure && is_own)
        weir__group_process_ends();
}
