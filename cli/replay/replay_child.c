/* SPDX-License-Identifier: MIT */
/* replay_child.c: the child that replays one tape on one contestant and tells what it took.
 *
 * Everything that can be made beforehand is: streams, the pointer array, the iterations' room.
 * Nothing that is counted, and no decision, rests on own_ns.
 *
 * There are several kinds of child.  One times each operation as a span of its own (span.h): it knows
 * latencies, and notices what single calls did.  But two fenced reads of the clock, and the books
 * kept of them, cost as much as a short call, and take the caches and the overlap that the next one
 * would have had.  The other kind times allocations and frees of an iteration as one stretch, and
 * takes off what the same loop takes with an allocator that does nothing; its iterations are all
 * that it tells.  A third kind, only where it is asked for, notes memory after each operation (samples.h), and a
 * child with a timeline what happened when: both look at the allocator, which takes time, so they tell no
 * latencies.  A trial tells only whether every request is served, and ends at the first that is not.
 *
 * Streams of the trace become non-blocking streams.  `w` is acted on by the replay itself; `u` is the
 * contestant's.  An `m` synchronises the device, which is not timed.  A busy replay submits work
 * behind each operation (busy.h), untimed.
 */
#include "cli/common/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "api/timeline.h"
#include "base/histogram.h"
#include "base/size.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/measure/measure.h"
#include "cli/replay/busy.h"
#include "cli/replay/contestant.h"
#include "cli/replay/pending.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"
#include "driver/model/model.h"

struct replay {
    struct session session;
    const struct contestant *contestant;
    void *allocator;
    struct weir_cli_device device;
    struct tape tape;
    struct span_clock clock;
    CUcontext context;
    CUstream *streams;
    int stretches;           /* iterations are timed, not operations */
    int buckets;             /* histograms are told whole */
    int sampled;             /* memory is noted after each operation */
    struct samples *samples; /* NULL until the first operation */
    int trial;               /* the first refusal ends it */
    int refused;             /* and has */
    double busy_factor;      /* 0: no work on the streams */
    struct busy *busy;       /* NULL: likewise, */
    struct pending *pending; /* and where it is not told how much is */
    double pace;             /* of the trace's time, what passes between operations; 0: none */
    void **addresses;        /* by block; NULL: not live */
    struct iteration *iterations;
    size_t iteration_count;
    uint64_t *bare_ns;     /* stretches: by iteration, what the loop alone takes */
    struct iteration now;  /* the one under way */
    struct figures opened; /* before the first request */
    struct figures before; /* at the start of the iteration under way */
    struct figures last;   /* at the end */
    uint64_t allocs, frees, uses, failed;
    json_t *verdict; /* on the first refusal, or NULL */
    struct span open, first_request, use_time;
    struct weir_timeline *timeline;    /* NULL: none */
    int timeline_number;               /* the process in it; 0: none */
    uint64_t began_ticks, mark_ns;     /* of it; where the last iteration ended */
    uint64_t requested;                /* bytes that are live in it */
    uint64_t counts[WEIR_ENTRY_COUNT]; /* driver calls until open */
    uint64_t peak_rss;
    struct weir_model_sequence sequence; /* of driver calls, if a test asks, */
    FILE *lines;                         /* and its lines, or NULL */
    char error[RUNNER_MESSAGE_BYTES];
};

/* 16 KiB each. */
static struct weir_histogram alloc_times, free_times, all_times, driver_times, own_times;

static int fail(struct replay *replay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail(struct replay *replay, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(replay->error, sizeof replay->error, format, arguments);
    va_end(arguments);
    return 0;
}

static int check(struct replay *replay, const char *call, CUresult result) {
    return result == CUDA_SUCCESS || fail(replay, "%s failed: %s", call,
                                          weir__driver_error_name(replay->session.driver, result));
}

/* ---------------------------------------------------------------- timing ---- */

static void note_time(struct replay *replay, struct weir_histogram *of_operation,
                      const struct span *span) {
    replay->now.alloc_ns += span->ns;
    weir__histogram_add(of_operation, span->ns);
    weir__histogram_add(&all_times, span->ns);
    if (replay->session.driver->charge) {
        replay->now.driver_ns += span->driver_ns;
        replay->now.own_ns += span->own_ns;
        weir__histogram_add(&driver_times, span->driver_ns);
        weir__histogram_add(&own_times, span->own_ns);
    }
}

/* What a call of busy.h said. */
static int check_busy(struct replay *replay, int good) {
    return good || fail(replay, "--busy: %s", busy_message(replay->busy));
}

/* What decides whether a contestant looks at its reserve must not rest on own time. */
static uint64_t reliable_ns(const struct replay *replay, const struct span *span) {
    return replay->session.driver->charge ? span->driver_ns : span->ns;
}

/* ------------------------------------------------------------ operations ---- */

/* The trace's id of a stream that the driver calls `id`; that, if it is none of them. */
static uint64_t trace_stream(const struct replay *replay, uint64_t id) {
    const struct weir_driver *driver = replay->session.driver;
    unsigned long long found;

    for (uint64_t i = 0; i < replay->tape.header->streams; i++)
        if (driver->cuStreamGetId(replay->streams[i], &found) == CUDA_SUCCESS && found == id)
            return replay->tape.stream_ids[i];
    return id;
}

static void rename_stream(const struct replay *replay, json_t *object) {
    const json_t *stream = json_object_get(object, "stream");

    if (json_is_integer(stream))
        json_object_set_new(
            object, "stream",
            jsonfile_integer(trace_stream(replay, (uint64_t)json_integer_value(stream))));
}

static json_t *text_with_trace_streams(const struct replay *replay, const char *from) {
    static const char word[] = "stream id ";
    char *text = NULL, *end;
    json_t *string = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    for (const char *at; file && (at = strstr(from, word)); from = end) {
        uint64_t id = strtoull(at + sizeof word - 1, &end, 10);

        fwrite(from, 1, (size_t)(at - from), file);
        fprintf(file, "stream %" PRIu64, trace_stream(replay, id));
    }
    if (file) {
        fputs(from, file);
        if (fclose(file) == 0)
            string = json_string(text);
    }
    free(text);
    return string;
}

/* Why a request was refused, with streams as the trace calls them. */
static json_t *verdict_json(const struct replay *replay) {
    json_t *verdict = replay->contestant->verdict(replay->allocator), *one;
    const char *text = json_string_value(json_object_get(verdict, "text"));
    size_t i;

    rename_stream(replay, verdict);
    if (verdict) /* no trace has it */
        json_object_set_new(verdict, "default_stream", json_null());
    json_array_foreach(json_object_get(verdict, "pending_by"), i, one) rename_stream(replay, one);
    json_array_foreach(json_object_get(verdict, "groups"), i, one) rename_stream(replay, one);
    if (text)
        json_object_set_new(verdict, "text", text_with_trace_streams(replay, text));
    return verdict;
}

/* Requests may be refused for lack of memory. */
static int check_refusal(struct replay *replay, const struct tape_op *op, weir_status status) {
    replay->failed++;
    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) {
        replay->refused = 1;
        if (!replay->trial && !replay->verdict && replay->contestant->verdict)
            replay->verdict = verdict_json(replay);
        return !replay->trial;
    }
    return fail(replay, "allocation %" PRIu64 " of %" PRIu64 " bytes: %s", replay->allocs,
                op->bytes, weir_status_message(status));
}

static int check_free(struct replay *replay, weir_status status) {
    return status == WEIR_OK ||
           fail(replay, "free %" PRIu64 ": %s", replay->frees, weir_status_message(status));
}

static int do_alloc(struct replay *replay, const struct tape_op *op) {
    const struct contestant *contestant = replay->contestant;
    CUstream stream = replay->streams[op->stream];
    struct span span = {0, 0, 0};
    struct span_start start;
    void *address = NULL;
    weir_status status;

    span_begin(&replay->clock, &start);
    status = contestant->alloc(replay->allocator, op->block, op->bytes, stream, &address);
    span_end(&replay->clock, &start, &span);
    note_time(replay, &alloc_times, &span);
    if (replay->allocs++ == 0)
        replay->first_request = span;
    if (contestant->after_slow && reliable_ns(replay, &span) >= SLOW_NS)
        contestant->after_slow(replay->allocator, reliable_ns(replay, &span));
    replay->addresses[op->block] = address;
    return status == WEIR_OK || check_refusal(replay, op, status);
}

static int do_free(struct replay *replay, const struct tape_op *op) {
    struct span span = {0, 0, 0};
    struct span_start start;
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address) /* 0 bytes, or the request failed */
        return 1;
    replay->addresses[op->block] = NULL;
    span_begin(&replay->clock, &start);
    status = replay->contestant->free(replay->allocator, op->block, address,
                                      replay->streams[op->stream]);
    span_end(&replay->clock, &start, &span);
    note_time(replay, &free_times, &span);
    replay->frees++;
    return check_free(replay, status);
}

static int do_use(struct replay *replay, const struct tape_op *op) {
    struct span span = {0, 0, 0};
    struct span_start start;
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address)
        return 1;
    span_begin(&replay->clock, &start);
    status =
        replay->contestant->use(replay->allocator, op->block, address, replay->streams[op->stream]);
    span_end(&replay->clock, &start, &span);
    replay->uses++;
    replay->use_time.ns += span.ns;
    replay->use_time.driver_ns += span.driver_ns;
    replay->use_time.own_ns += span.own_ns;
    return status == WEIR_OK ||
           fail(replay, "use %" PRIu64 ": %s", replay->uses, weir_status_message(status));
}

static int do_wait(struct replay *replay, const struct tape_op *op) {
    const struct weir_driver *driver = replay->session.driver;
    CUstream stream = replay->streams[op->stream], on_stream = replay->streams[op->block];

    if (replay->busy && !check_busy(replay, busy_flush(replay->busy, op->stream) &&
                                                busy_flush(replay->busy, op->block)))
        return 0;
    return check(replay, "cuEventRecord",
                 driver->cuEventRecord(replay->session.event, on_stream)) &&
           check(replay, "cuStreamWaitEvent",
                 driver->cuStreamWaitEvent(stream, replay->session.event, 0));
}

static int synchronise(struct replay *replay) {
    if (replay->busy)
        return check_busy(replay, busy_end(replay->busy, &replay->now.makespan_ns));
    return check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

static int do_mark(struct replay *replay) {
    struct figures after;

    if (!synchronise(replay))
        return 0;
    replay->contestant->figures(replay->allocator, &after);
    replay->now.stall_ns = after.stall_ns - replay->before.stall_ns;
    replay->now.growths = after.growths - replay->before.growths;
    replay->now.growth_bytes = after.growth_bytes - replay->before.growth_bytes;
    replay->now.given_back = after.given_back - replay->before.given_back;
    replay->now.reserve_end = after.reserve;
    replay->iterations[replay->iteration_count++] = replay->now;
    replay->before = after;
    memset(&replay->now, 0, sizeof replay->now);
    return !replay->busy || check_busy(replay, busy_begin(replay->busy));
}

static int do_operation(struct replay *replay, const struct tape_op *op) {
    switch (op->code) {
    case 'a':
        return do_alloc(replay, op);
    case 'f':
        return do_free(replay, op);
    case 'u':
        return do_use(replay, op);
    case 'w':
        return do_wait(replay, op);
    default:
        return do_mark(replay);
    }
}

/* What the program does after an operation.  On a device it computes, as a thread that sleeps would be
 * slow to come back. */
static void pass_time(const struct replay *replay, uint64_t gap_us) {
    const struct stopwatch *watch = &replay->clock.watch;
    uint64_t ns = (uint64_t)((double)gap_us * 1000 * replay->pace), begun = stopwatch_read(watch);

    if (replay->session.driver->charge)
        replay->session.driver->sleep_ns(ns);
    else
        while (stopwatch_span(watch, begun, stopwatch_read(watch)) < ns)
            ;
}

static void take_sample(struct replay *replay, uint64_t i) {
    struct figures now;

    (replay->sampled == JOB_SAMPLES_WATCH ? replay->contestant->watch
                                          : replay->contestant->figures)(replay->allocator, &now);
    samples_note(replay->samples, i, replay->addresses, &now);
}

/* The operation, and the work behind it, as the floor of memory has them. */
static int note_pending(struct replay *replay, uint64_t i) {
    const struct weir_driver *driver = replay->session.driver;
    const struct tape_op *op = &replay->tape.ops[i];
    uint64_t now = driver->ticks_to_ns(driver->ticks());

    if (!pending_note(replay->pending, op, now))
        return fail(replay, "out of host memory");
    if (op->code != 'm')
        pending_work(replay->pending, op->stream,
                     busy_work_ns(replay->busy, replay->tape.gaps_us[i]), now);
    return 1;
}

static int play(struct replay *replay) {
    const struct tape *tape = &replay->tape;

    if (replay->busy && !check_busy(replay, busy_begin(replay->busy)))
        return 0;
    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (!do_operation(replay, op))
            return 0;
        if (replay->samples)
            take_sample(replay, i);
        if (replay->pending && !note_pending(replay, i))
            return 0;
        if (replay->busy && op->code != 'm' &&
            !check_busy(replay, busy_work(replay->busy, op->stream, tape->gaps_us[i])))
            return 0;
        if (replay->pace > 0)
            pass_time(replay, tape->gaps_us[i]);
    }
    return 1;
}

/* --------------------------------------------------------------- timeline ---- */

static uint64_t since_begin(const struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;

    return driver->ticks_to_ns(driver->ticks() - replay->began_ticks);
}

/* What is there now, and how it came to be. */
static void look(struct replay *replay) {
    struct figures figures;
    uint64_t values[WEIR_TIMELINE_COUNTERS];

    replay->contestant->figures(replay->allocator, &figures);
    values[WEIR_TIMELINE_REQUESTED] = replay->requested;
    values[WEIR_TIMELINE_IN_USE] = figures.has_in_use ? figures.in_use : WEIR_TIMELINE_UNKNOWN;
    values[WEIR_TIMELINE_RESERVE] = figures.has_reserve ? figures.reserve : WEIR_TIMELINE_UNKNOWN;
    weir__timeline_count(replay->timeline, since_begin(replay), values);
    if (replay->contestant->steps)
        replay->contestant->steps(replay->allocator, replay->timeline, replay->began_ticks);
}

static void note_mark(struct replay *replay, const struct tape_op *op) {
    uint64_t now = since_begin(replay);

    weir__timeline_iteration(replay->timeline, replay->mark_ns, now,
                             replay->tape.labels[op->block]);
    replay->mark_ns = now;
}

static int do_and_look(struct replay *replay, const struct tape_op *op) {
    int was_live = op->code == 'f' && replay->addresses[op->block] != NULL;
    uint64_t failed = replay->failed;

    if (!do_operation(replay, op))
        return 0;
    if (replay->failed > failed)
        weir__timeline_refusal(replay->timeline, since_begin(replay), op->bytes);
    else if (op->code == 'a')
        replay->requested += op->bytes;
    if (was_live)
        replay->requested -= op->bytes;
    if (op->code == 'm')
        note_mark(replay, op);
    look(replay);
    return 1;
}

static int play_timeline(struct replay *replay) {
    const struct tape *tape = &replay->tape;

    look(replay);
    if (replay->busy && !check_busy(replay, busy_begin(replay->busy)))
        return 0;
    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (!do_and_look(replay, op))
            return 0;
        if (replay->busy && op->code != 'm' &&
            !check_busy(replay, busy_work(replay->busy, op->stream, tape->gaps_us[i])))
            return 0;
        if (replay->pace > 0)
            pass_time(replay, tape->gaps_us[i]);
    }
    return 1;
}

/* The part of a file that is this process's. */
static json_t *timeline_json(const struct replay *replay) {
    char name[TAPE_NAME_BYTES + 64], *part = NULL;
    json_t *result = NULL;
    size_t bytes;
    FILE *file = open_memstream(&part, &bytes);

    snprintf(name, sizeof name, "%s, %s%s", replay->tape.header->name, replay->contestant->name,
             replay->busy ? ", busy" : "");
    if (file) {
        weir__timeline_write(replay->timeline, file, replay->timeline_number, name, 0,
                             replay->device.name);
        if (fclose(file) == 0)
            result = json_pack("{s:s,s:o}", "timeline", part, "missing",
                               jsonfile_integer(weir__timeline_missing(replay->timeline)));
    }
    free(part);
    return result;
}

/* -------------------------------------------------------------- stretches ---- */

static int alloc_in_stretch(struct replay *replay, const struct tape_op *op) {
    void *address = NULL;
    weir_status status = replay->contestant->alloc(replay->allocator, op->block, op->bytes,
                                                   replay->streams[op->stream], &address);

    replay->allocs++;
    replay->addresses[op->block] = address;
    return status == WEIR_OK || check_refusal(replay, op, status);
}

static int free_in_stretch(struct replay *replay, const struct tape_op *op) {
    void *address = replay->addresses[op->block];

    if (!address)
        return 1;
    replay->addresses[op->block] = NULL;
    replay->frees++;
    return check_free(replay, replay->contestant->free(replay->allocator, op->block, address,
                                                       replay->streams[op->stream]));
}

static void end_stretch(struct replay *replay, const struct span_start *start) {
    struct span span = {0, 0, 0};

    span_end(&replay->clock, start, &span);
    replay->now.alloc_ns += span.ns;
    replay->now.driver_ns += span.driver_ns;
    replay->now.own_ns += span.own_ns;
}

/* Marks, waits and uses end a stretch and go to `other`; the next request or free begins one. */
static int play_stretches(struct replay *replay,
                          int (*other)(struct replay *replay, const struct tape_op *op)) {
    const struct tape *tape = &replay->tape;
    struct span_start start;
    int under_way = 0;

    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (op->code == 'a' || op->code == 'f') {
            if (!under_way)
                span_begin(&replay->clock, &start);
            under_way = 1;
            if (!(op->code == 'a' ? alloc_in_stretch(replay, op) : free_in_stretch(replay, op)))
                return 0;
            continue;
        }
        if (under_way)
            end_stretch(replay, &start);
        under_way = 0;
        if (!other(replay, op))
            return 0;
    }
    return 1;
}

static weir_status bare_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                              void **out) {
    static char dummy;

    (void)allocator, (void)block, (void)bytes, (void)stream;
    *out = &dummy;
    return WEIR_OK;
}

static weir_status bare_free(void *allocator, uint32_t block, void *address, CUstream stream) {
    (void)allocator, (void)block, (void)address, (void)stream;
    return WEIR_OK;
}

static int bare_mark(struct replay *replay, const struct tape_op *op) {
    if (op->code == 'm') {
        replay->bare_ns[replay->iteration_count++] = replay->now.alloc_ns;
        memset(&replay->now, 0, sizeof replay->now);
    }
    return 1;
}

/* Sets bare_ns, and leaves no other trace.  The first round warms up. */
static int play_bare(struct replay *replay) {
    static const struct contestant bare = {.name = "bare", .alloc = bare_alloc, .free = bare_free};
    const struct contestant *contestant = replay->contestant;
    const struct tape_header *header = replay->tape.header;
    int good = 1;

    replay->contestant = &bare;
    for (int round = 0; round < 2 && good; round++) {
        good = play_stretches(replay, bare_mark);
        replay->iteration_count = 0;
        memset(&replay->now, 0, sizeof replay->now);
    }
    replay->contestant = contestant;
    replay->allocs = replay->frees = 0;
    memset(replay->addresses, 0, header->blocks * sizeof *replay->addresses);
    return good;
}

static void take_bare_off(struct replay *replay) {
    for (size_t i = 0; i < replay->iteration_count; i++) {
        struct iteration *it = &replay->iterations[i];
        uint64_t *ns = replay->session.driver->charge ? &it->own_ns : &it->alloc_ns;
        uint64_t bare = replay->bare_ns[i] < *ns ? replay->bare_ns[i] : *ns;

        *ns -= bare;
        if (ns == &it->own_ns)
            it->alloc_ns -= bare;
    }
}

/* Blocks that the trace leaves live; belongs to no figure. */
static int free_rest(struct replay *replay) {
    for (uint64_t i = 0; i < replay->tape.header->blocks; i++) {
        void *address = replay->addresses[i];

        if (address && replay->contestant->free(replay->allocator, (uint32_t)i, address,
                                                replay->streams[0]) != WEIR_OK)
            return fail(replay, "a block that the trace leaves live cannot be freed");
        replay->addresses[i] = NULL;
    }
    return check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

/* --------------------------------------------------------------- results ---- */

/* The most memory this process had, in bytes.  VmHWM, since ru_maxrss counts what the process was
 * before exec. */
static uint64_t peak_rss(void) {
    FILE *file = fopen("/proc/self/status", "re");
    struct rusage usage;
    char line[256];
    unsigned long kib = 0;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    if (kib == 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        kib = (unsigned long)usage.ru_maxrss;
    return (uint64_t)kib * 1024;
}

static json_t *integer_or_null(int there, uint64_t value) {
    return there ? jsonfile_integer(value) : json_null();
}

/* Text out of a trace, which may be anything. */
static json_t *text(const char *from) {
    char safe[TAPE_NAME_BYTES];
    json_t *string = json_string(from);
    size_t i;

    if (string)
        return string;
    for (i = 0; from[i] && i < sizeof safe - 1; i++)
        safe[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    safe[i] = '\0';
    return json_string(safe);
}

/* [largest value, how many], for each bucket that has any. */
static json_t *buckets_json(const struct weir_histogram *h) {
    json_t *array = json_array();

    for (unsigned i = 0; i < WEIR_HISTOGRAM_BUCKETS; i++)
        if (h->count[i])
            json_array_append_new(array,
                                  json_pack("[o,o]", jsonfile_integer(weir__histogram_bound(i)),
                                            jsonfile_integer(h->count[i])));
    return array;
}

static json_t *times_json(const struct replay *replay, const struct weir_histogram *h) {
    json_t *out = json_object();

    json_object_set_new(out, "p50", jsonfile_integer(weir__histogram_quantile(h, 0.5)));
    json_object_set_new(out, "p90", jsonfile_integer(weir__histogram_quantile(h, 0.9)));
    json_object_set_new(out, "p99", jsonfile_integer(weir__histogram_quantile(h, 0.99)));
    json_object_set_new(out, "p999", jsonfile_integer(weir__histogram_quantile(h, 0.999)));
    json_object_set_new(out, "max", jsonfile_integer(h->max));
    json_object_set_new(out, "mean", jsonfile_rounded(weir__histogram_mean(h), 10.0));
    if (replay->buckets)
        json_object_set_new(out, "buckets", buckets_json(h));
    return out;
}

static json_t *iterations_json(const struct replay *replay) {
    json_t *array = json_array();

    for (size_t i = 0; i < replay->iteration_count; i++) {
        const struct iteration *it = &replay->iterations[i];
        json_t *out = json_object();

        json_object_set_new(out, "label", text(replay->tape.labels[i]));
        json_object_set_new(out, "alloc_ns", jsonfile_integer(it->alloc_ns));
        if (replay->session.driver->charge) {
            json_object_set_new(out, "driver_ns", jsonfile_integer(it->driver_ns));
            json_object_set_new(out, "own_ns", jsonfile_integer(it->own_ns));
        }
        if (replay->busy)
            json_object_set_new(out, "makespan_ns", jsonfile_integer(it->makespan_ns));
        json_object_set_new(out, "stall_ns", jsonfile_integer(it->stall_ns));
        json_object_set_new(out, "growths", jsonfile_integer(it->growths));
        json_object_set_new(out, "growth_bytes", jsonfile_integer(it->growth_bytes));
        json_object_set_new(out, "given_back", jsonfile_integer(it->given_back));
        json_object_set_new(out, "reserved_end",
                            integer_or_null(replay->last.has_reserve, it->reserve_end));
        json_array_append_new(array, out);
    }
    return array;
}

static json_t *driver_calls_json(const uint64_t before[], const uint64_t after[]) {
    json_t *out = json_object();

    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        if (after[i] > before[i])
            json_object_set_new(out, weir__driver_entry_name((enum weir_driver_entry)i),
                                jsonfile_integer(after[i] - before[i]));
    return out;
}

/* A time under `key`, and on a modelled device its two parts under `key` with another ending. */
static void set_span(const struct replay *replay, json_t *out, const char *stem,
                     const struct span *span) {
    char key[64];

    snprintf(key, sizeof key, "%s_ns", stem);
    json_object_set_new(out, key, jsonfile_integer(span->ns));
    if (!replay->session.driver->charge)
        return;
    snprintf(key, sizeof key, "%s_driver_ns", stem);
    json_object_set_new(out, key, jsonfile_integer(span->driver_ns));
    snprintf(key, sizeof key, "%s_own_ns", stem);
    json_object_set_new(out, key, jsonfile_integer(span->own_ns));
}

static int is_preallocated_behind(const struct replay *replay) {
    return replay->session.given->prealloc_mode == WEIR_PREALLOC_BACKGROUND &&
           replay->last.prealloc_bytes > 0;
}

/* Making the allocator, with what it preallocates at the first request.  Nobody waits for a thread that preallocates. */
static uint64_t creation_ns(const struct replay *replay) {
    return replay->open.ns + (is_preallocated_behind(replay)
                                  ? 0
                                  : replay->last.prealloc_ns - replay->opened.prealloc_ns);
}

/* What was there before the first request was made: by preallocation, at the first request too, and what headroom took
 * as the allocator was made.  A thread that preallocates leaves headroom for later, and its steps count as ahead. */
static struct figures beforehand(const struct replay *replay) {
    int is_behind = is_preallocated_behind(replay);
    struct figures sum = {.prealloc_ns = replay->last.prealloc_ns,
                          .prealloc_bytes = replay->last.prealloc_bytes};

    if (!is_behind) {
        sum.prealloc_ns += replay->opened.ahead_ns;
        sum.prealloc_bytes += replay->opened.ahead_bytes;
    }
    return sum;
}

static void set_iterations(const struct replay *replay, json_t *out,
                           const struct summary *summary) {
    struct span first = {0, 0, 0}, steady = {summary->steady_alloc_ns, summary->steady_driver_ns,
                                             summary->steady_own_ns};
    int any = replay->iteration_count > 0;

    if (any)
        first = (struct span){replay->iterations[0].alloc_ns, replay->iterations[0].driver_ns,
                              replay->iterations[0].own_ns};
    json_object_set_new(out, "settled", json_boolean(summary->settled));
    json_object_set_new(out, "warm_up_iterations", jsonfile_integer(summary->warm_up_iterations));
    set_span(replay, out, "steady_alloc", &steady);
    set_span(replay, out, "first_iteration", &first);
    if (!any) {
        json_object_set_new(out, "steady_alloc_ns", json_null());
        json_object_set_new(out, "first_iteration_ns", json_null());
    }
    json_object_set_new(out, "prealloc_and_first_iteration_ns",
                        integer_or_null(any, replay->last.prealloc_ns + first.ns));
    json_object_set_new(out, "creation_ns", jsonfile_integer(creation_ns(replay)));
    json_object_set_new(out, "creation_and_first_iteration_ns",
                        integer_or_null(any, creation_ns(replay) + first.ns));
}

static void set_busy(const struct replay *replay, json_t *out, const struct summary *summary) {
    int any = replay->iteration_count > 0;
    uint64_t sum = 0, least = pending_floor(replay->pending);

    for (size_t i = 0; i < replay->iteration_count; i++)
        sum += replay->iterations[i].makespan_ns;
    json_object_set_new(out, "makespan_ns", integer_or_null(any, sum));
    json_object_set_new(out, "steady_makespan_ns",
                        integer_or_null(any, summary->steady_makespan_ns));
    json_object_set_new(out, "floor_bytes", jsonfile_integer(least));
    json_object_set_new(
        out, "reserved_over_floor",
        replay->last.has_reserve && least
            ? jsonfile_rounded((double)replay->last.reserve_peak / (double)least, 10000.0)
            : json_null());
}

static void set_memory(const struct replay *replay, json_t *out) {
    const struct tape_header *header = replay->tape.header;
    const struct figures *last = &replay->last, *opened = &replay->opened;

    json_object_set_new(out, "requested_peak_bytes", jsonfile_integer(header->live_peak_bytes));
    json_object_set_new(out, "reserved_peak_bytes",
                        integer_or_null(last->has_reserve, last->reserve_peak));
    json_object_set_new(
        out, "reserved_over_requested",
        last->has_reserve && header->live_peak_bytes
            ? jsonfile_rounded((double)last->reserve_peak / (double)header->live_peak_bytes,
                               10000.0)
            : json_null());
    json_object_set_new(out, "address_extent_bytes",
                        integer_or_null(last->has_extent, last->extent));
    json_object_set_new(out, "growths", jsonfile_integer(last->growths - opened->growths));
    json_object_set_new(out, "growth_bytes",
                        jsonfile_integer(last->growth_bytes - opened->growth_bytes));
    json_object_set_new(out, "ahead_growths",
                        jsonfile_integer(last->ahead_growths - opened->ahead_growths));
    json_object_set_new(out, "ahead_bytes",
                        jsonfile_integer(last->ahead_bytes - opened->ahead_bytes));
    json_object_set_new(out, "ahead_ns", jsonfile_integer(last->ahead_ns - opened->ahead_ns));
    json_object_set_new(out, "stall_ns", jsonfile_integer(last->stall_ns - opened->stall_ns));
    json_object_set_new(out, "prealloc_ns", jsonfile_integer(last->prealloc_ns));
    json_object_set_new(out, "prealloc_bytes", jsonfile_integer(last->prealloc_bytes));
    json_object_set_new(out, "beforehand_ns", jsonfile_integer(beforehand(replay).prealloc_ns));
    json_object_set_new(out, "beforehand_bytes",
                        jsonfile_integer(beforehand(replay).prealloc_bytes));
}

static json_t *taken_json(const struct session *session) {
    return jsonfile_integer(weir__size_less(session->device_bytes, session->device_free));
}

/* Whether two builds do the same: no address and no time is in it. */
static json_t *driver_sequence_json(const struct replay *replay) {
    char digest[17];

    snprintf(digest, sizeof digest, "%016" PRIx64, replay->sequence.digest);
    return json_string(digest);
}

static json_t *result_json(const struct replay *replay, const uint64_t calls[]) {
    const struct tape_header *header = replay->tape.header;
    int modelled = replay->session.driver->charge != NULL;
    json_t *out = json_object(), *options = replay->contestant->options(replay->allocator);
    const char *engine = json_string_value(json_object_get(options, "engine"));
    json_t *latency;
    struct summary summary;

    if (!summarise(replay->iterations, replay->iteration_count, &summary)) {
        json_decref(options);
        json_decref(out);
        return NULL;
    }
    json_object_set_new(out, "trace", text(header->name));
    json_object_set_new(
        out, "configuration",
        json_string(replay->contestant->is_given && engine ? engine : replay->contestant->name));
    json_object_set_new(out, "device", text(replay->device.name));
    json_object_set_new(out, "modelled", json_boolean(modelled));
    json_object_set_new(out, "driver_version", json_integer(replay->session.driver->version));
    json_object_set_new(out, "options", options);
    json_object_set_new(out, "iterations", iterations_json(replay));
    json_object_set_new(out, "op_ns", times_json(replay, &all_times));
    json_object_set_new(out, "alloc_op_ns", times_json(replay, &alloc_times));
    json_object_set_new(out, "free_op_ns", times_json(replay, &free_times));
    if (modelled) {
        json_object_set_new(out, "op_driver_ns", times_json(replay, &driver_times));
        json_object_set_new(out, "op_own_ns", times_json(replay, &own_times));
    }
    json_object_set_new(out, "allocs", jsonfile_integer(replay->allocs));
    json_object_set_new(out, "frees", jsonfile_integer(replay->frees));
    json_object_set_new(out, "failed", jsonfile_integer(replay->failed));
    if (replay->verdict)
        json_object_set_new(out, "oom_report", replay->verdict);
    json_object_set_new(out, "uses", jsonfile_integer(replay->uses));
    json_object_set_new(out, "waits", jsonfile_integer(header->waits));
    json_object_set_new(out, "device_bytes", jsonfile_integer(replay->session.device_bytes));
    json_object_set_new(out, "device_taken_bytes", taken_json(&replay->session));
    json_object_set_new(out, "recorded_failures", jsonfile_integer(header->recorded_failures));
    json_object_set_new(out, "streams", jsonfile_integer(header->streams));
    set_memory(replay, out);
    set_iterations(replay, out, &summary);
    if (replay->busy)
        set_busy(replay, out, &summary);
    set_span(replay, out, "first_request", &replay->first_request);
    set_span(replay, out, "open", &replay->open);
    set_span(replay, out, "use", &replay->use_time);
    json_object_set_new(out, "cache",
                        replay->contestant->front ? replay->contestant->front(replay->allocator)
                                                  : json_null());
    json_object_set_new(out, "driver_calls", driver_calls_json(replay->counts, calls));
    if (replay->sequence.calls > 0)
        json_object_set_new(out, "driver_sequence", driver_sequence_json(replay));
    json_object_set_new(out, "peak_rss_bytes", jsonfile_integer(replay->peak_rss));
    json_object_set_new(
        out, "timer_ns",
        jsonfile_integer(stopwatch_ns(&replay->clock.watch, replay->clock.watch.cost)));
    if (modelled)
        json_object_set_new(out, "model_call_ns",
                            jsonfile_rounded((double)replay->clock.call_cost_ps / 1000.0, 10.0));
    latency = replay->contestant->latency ? replay->contestant->latency(replay->allocator) : NULL;
    if (latency)
        json_object_set_new(out, "latency", latency);
    return out;
}

/* ----------------------------------------------------------- the process ---- */

static int open_device(struct replay *replay, struct weir_cli_settings *settings) {
    struct session *session = &replay->session;

    if (weir_cli_device_open(settings, &replay->device, 1) != 0)
        return 0; /* it has said why */
    session->driver = replay->device.driver;
    /* Stretches on a device are times alone; what a modelled call takes is known by their number. */
    session->counted = replay->stretches && !session->driver->charge
                           ? session->driver
                           : weir__driver_counted(session->driver);
    if (!session->counted)
        return fail(replay, "driver calls cannot be counted");
    return check(replay, "cuDeviceGet",
                 session->driver->cuDeviceGet(&session->device, replay->device.ordinal));
}

/* The device's memory, its context made current, streams and the event. */
static int prepare_device(struct replay *replay) {
    struct session *session = &replay->session;
    const struct weir_driver *driver = session->driver;
    size_t total = 0, unused, count = replay->tape.header->streams;

    if (!check(replay, "cuDeviceTotalMem", driver->cuDeviceTotalMem(&total, session->device)) ||
        !check(replay, "cuDevicePrimaryCtxRetain",
               driver->cuDevicePrimaryCtxRetain(&replay->context, session->device)) ||
        !check(replay, "cuCtxPushCurrent", driver->cuCtxPushCurrent(replay->context)) ||
        !check(replay, "cuEventCreate",
               driver->cuEventCreate(&session->event, CU_EVENT_DISABLE_TIMING)))
        return 0;
    session->device_bytes = total;
    if (!check(replay, "cuMemGetInfo", driver->cuMemGetInfo(&session->device_free, &unused)))
        return 0;
    replay->streams = calloc(count ? count : 1, sizeof *replay->streams);
    if (!replay->streams)
        return fail(replay, "out of host memory");
    for (size_t i = 0; i < count; i++)
        if (!check(replay, "cuStreamCreate",
                   driver->cuStreamCreate(&replay->streams[i], CU_STREAM_NON_BLOCKING)))
            return 0;
    return check(replay, "cuCtxSynchronize", driver->cuCtxSynchronize());
}

/* Before anything is measured: a kernel takes device memory and time when it is loaded. */
static int prepare_work(struct replay *replay) {
    char why[RUNNER_MESSAGE_BYTES - 16];

    if (replay->busy_factor <= 0)
        return 1;
    replay->busy = busy_open(replay->session.driver, replay->busy_factor, replay->streams,
                             replay->tape.header->streams, why, sizeof why);
    return replay->busy != NULL || fail(replay, "--busy: %s", why);
}

static int prepare_memory(struct replay *replay) {
    const struct tape_header *header = replay->tape.header;

    replay->session.blocks = header->blocks;
    replay->session.live_peak_bytes = header->live_peak_bytes;
    replay->addresses = calloc(header->blocks ? header->blocks : 1, sizeof *replay->addresses);
    replay->iterations = calloc(header->marks ? header->marks : 1, sizeof *replay->iterations);
    replay->bare_ns = calloc(header->marks ? header->marks : 1, sizeof *replay->bare_ns);
    return (replay->addresses && replay->iterations && replay->bare_ns) ||
           fail(replay, "out of host memory");
}

static int open_contestant(struct replay *replay) {
    struct span_start start;

    weir__driver_counts(replay->counts);
    span_begin(&replay->clock, &start);
    replay->allocator = replay->contestant->open(&replay->session, replay->contestant);
    span_end(&replay->clock, &start, &replay->open);
    if (!replay->allocator)
        return fail(replay, "%s", replay->session.message);
    replay->contestant->figures(replay->allocator, &replay->opened);
    replay->before = replay->opened;
    return 1;
}

static int close_contestant(struct replay *replay) {
    return replay->contestant->close(replay->allocator) ||
           fail(replay, "%s", replay->session.message);
}

/* Gives back what prepare_device took; what fails here has no cure and no consequence. */
static void release_device(struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;
    CUcontext popped;

    pending_close(replay->pending);
    busy_close(replay->busy);
    for (uint64_t i = 0; replay->streams && i < replay->tape.header->streams; i++)
        if (replay->streams[i])
            driver->cuStreamDestroy(replay->streams[i]);
    if (replay->session.event)
        driver->cuEventDestroy(replay->session.event);
    if (replay->context) {
        driver->cuCtxPopCurrent(&popped);
        driver->cuDevicePrimaryCtxRelease(replay->session.device);
    }
}

/* For tests, which name a file that gets each call as a line, or none.  Nobody else pays for it: though the model leaves
 * it out of all times, it takes caches. */
static int start_sequence(struct replay *replay) {
    const char *path = getenv("WEIR_TEST_SEQUENCE");

    if (!path || !replay->session.driver->charge)
        return 1;
    if (*path && !(replay->lines = fopen(path, "ae")))
        return fail(replay, "%s: %s", path, strerror(errno));
    if (replay->lines)
        fprintf(replay->lines, "# %s %s%s\n", replay->tape.header->name, replay->contestant->name,
                replay->busy_factor > 0 ? " busy" : "");
    weir__model_sequence_start(replay->lines);
    return 1;
}

static json_t *measure_operations(struct replay *replay) {
    uint64_t calls[WEIR_ENTRY_COUNT];
    json_t *result;

    if (replay->busy && !(replay->pending = pending_open(replay->tape.header))) {
        fail(replay, "out of host memory");
        return NULL;
    }
    if (!start_sequence(replay) || !open_contestant(replay) || !play(replay))
        return NULL;
    weir__driver_counts(calls);
    weir__model_sequence(&replay->sequence);
    replay->contestant->figures(replay->allocator, &replay->last);
    replay->peak_rss = peak_rss();
    result = result_json(replay, calls);
    if (!result)
        fail(replay, "out of host memory");
    return result;
}

static json_t *measure_samples(struct replay *replay) {
    json_t *samples = NULL;

    if (!open_contestant(replay))
        return NULL;
    replay->contestant->watch(replay->allocator, &replay->before);
    replay->samples = samples_open(&replay->tape, &replay->before);
    replay->before = replay->opened;
    if (!replay->samples)
        fail(replay, "out of host memory");
    else if (play(replay)) {
        samples = samples_json(replay->samples);
        if (!samples)
            fail(replay, "out of host memory");
    }
    samples_close(replay->samples);
    replay->samples = NULL;
    return samples ? json_pack("{s:o}", "samples", samples) : NULL;
}

static json_t *measure_stretches(struct replay *replay) {
    json_t *result;

    if (!play_bare(replay) || !open_contestant(replay) || !play_stretches(replay, do_operation))
        return NULL;
    take_bare_off(replay);
    result = json_pack("{s:o, s:I}", "iterations", iterations_json(replay), "failed",
                       (json_int_t)replay->failed);
    if (!result)
        fail(replay, "out of host memory");
    else if (replay->verdict)
        json_object_set_new(result, "oom_report", replay->verdict);
    return result;
}

static json_t *measure_timeline(struct replay *replay) {
    json_t *result = NULL;

    replay->timeline = weir__timeline_open();
    replay->began_ticks = replay->session.driver->ticks();
    if (!replay->timeline)
        fail(replay, "out of host memory");
    else if (open_contestant(replay) && play_timeline(replay) && !(result = timeline_json(replay)))
        fail(replay, "out of host memory");
    weir__timeline_close(replay->timeline);
    return result;
}

/* A limit below the live peak may be refused as one that makes no sense. */
static int is_refusal(const struct session *session) {
    return session->refused || (session->limit && session->limit < session->live_peak_bytes);
}

static json_t *measure_trial(struct replay *replay) {
    struct session *session = &replay->session;
    struct figures *last = &replay->last;

    if (open_contestant(replay)) {
        if (!play_stretches(replay, do_operation) && !replay->refused)
            return NULL;
        replay->contestant->figures(replay->allocator, last);
    } else if (!is_refusal(session)) {
        return NULL;
    } else {
        replay->refused = 1;
    }
    return json_pack("{s:b,s:o,s:o,s:o,s:o}", "served", !replay->refused, "requests",
                     jsonfile_integer(replay->allocs), "reserved_peak_bytes",
                     integer_or_null(last->has_reserve, last->reserve_peak), "device_bytes",
                     jsonfile_integer(session->device_bytes), "device_taken_bytes",
                     taken_json(session));
}

/* Opens, plays, tells.  The result, or NULL with replay->error. */
static json_t *replay_all(struct replay *replay) {
    json_t *result;

    if (!prepare_memory(replay) || !prepare_device(replay) || !prepare_work(replay) ||
        !check(replay, "cuCtxGetCurrent",
               span_clock_make(&replay->clock, replay->session.driver, replay->session.counted)))
        return NULL;
    result = replay->trial             ? measure_trial(replay)
             : replay->stretches       ? measure_stretches(replay)
             : replay->sampled         ? measure_samples(replay)
             : replay->timeline_number ? measure_timeline(replay)
                                       : measure_operations(replay);
    if (result && replay->allocator && (!free_rest(replay) || !close_contestant(replay))) {
        json_decref(result);
        result = NULL;
    }
    return result;
}

/* A C library that knows of one thread only leaves out locked instructions, which flatters. */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

static void *idle(void *unused) {
    pthread_mutex_lock(&idle_lock);
    pthread_mutex_unlock(&idle_lock);
    return unused;
}

static json_t *replay_beside_idle_thread(struct replay *replay) {
    pthread_t thread;
    json_t *result;
    int started;

    pthread_mutex_lock(&idle_lock);
    started = pthread_create(&thread, NULL, idle, NULL) == 0;
    result = replay_all(replay);
    release_device(replay);
    pthread_mutex_unlock(&idle_lock);
    if (started)
        pthread_join(thread, NULL);
    return result;
}

/* What contestants lack here, by their names. */
static json_t *lacks_json(const struct weir_driver *driver, CUdevice device, int limited) {
    json_t *out = json_object();

    for (const struct contestant *c = contestants; c->name; c++) {
        const char *lacks = contestant_lacks(c, driver, device, limited);

        if (lacks)
            json_object_set_new(out, c->name, json_string(lacks));
    }
    return out;
}

static json_t *device_json(const struct weir_cli_settings *settings,
                           const struct weir_cli_device *device, const struct job *job) {
    CUdevice handle = 0;

    if (device->driver->cuDeviceGet(&handle, device->ordinal) != CUDA_SUCCESS)
        return json_pack("{s:s}", "error", "cuDeviceGet failed");
    return json_pack("{s:s,s:s,s:b,s:i,s:o}", "device", device->name, "spec",
                     settings->options.device ? settings->options.device : "", "modelled",
                     device->driver->charge != NULL, "driver_version", device->driver->version,
                     "lacks", lacks_json(device->driver, handle, job->trial));
}

/* Only to see which device it will be, and that it can do what is wanted. */
static int look_at_device(struct weir_cli_settings *settings, const struct job *job) {
    struct weir_cli_device device;
    const char *lacks;

    memset(&device, 0, sizeof device);
    if (weir_cli_device_open(settings, &device, 0) != 0)
        goto failed; /* it has said why */
    lacks = job->busy_factor > 0 ? busy_lacks(device.driver) : NULL;
    if (lacks) {
        fprintf(stderr, "weir: --busy needs %s, which the driver of %s lacks\n", lacks,
                device.name);
        goto failed;
    }
    return !result_send(device_json(settings, &device, job));

failed:
    result_send(json_pack("{s:s}", "error", ""));
    return 1;
}

int weir_cmd_replay_child(int argc, char **argv) {
    static struct replay replay;
    static struct job job;
    struct weir_cli_settings settings;
    json_t *result = NULL;

    (void)argc;
    (void)argv;
    if (!job_read(&job)) {
        fputs("weir: " RUNNER_SUBCOMMAND " is started by weir replay and weir bench alone\n",
              stderr);
        return 2;
    }
    weir_cli_settings_init(&settings);
    settings.options = job.options;
    settings.sources.of[WEIR_SETTING_DEVICE] = job.device_source[0] ? job.device_source : NULL;
    if (job.measure)
        return measure_child(&settings, (enum measure_part)job.measure);
    if (!job.contestant[0])
        return look_at_device(&settings, &job);
    replay.contestant = contestant_find(job.contestant);
    replay.session.given = &settings.options;
    replay.session.limit = job.limit;
    replay.session.forgets = job.forgets;
    replay.session.threshold = job.has_threshold ? &job.threshold : NULL;
    replay.stretches = job.stretches;
    replay.sampled = job.samples;
    replay.buckets = job.buckets;
    replay.trial = job.trial;
    replay.timeline_number = job.timeline;
    replay.busy_factor = job.busy_factor;
    replay.pace = job.pace;
    if (!replay.contestant || !tape_map(CHILD_TAPE_FD, &replay.tape)) {
        result_send(json_pack("{s:s}", "error", "the child cannot read its job"));
        return 1;
    }
    if (open_device(&replay, &settings))
        result = replay_beside_idle_thread(&replay);
    if (!result)
        result_send(json_pack("{s:s}", "error", replay.error));
    else if (!result_send(result))
        return 1;
    else
        result = json_true();
    free(replay.streams);
    free(replay.addresses);
    free(replay.iterations);
    free(replay.bare_ns);
    tape_unmap(&replay.tape);
    return result ? 0 : 1;
}
