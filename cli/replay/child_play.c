/* SPDX-License-Identifier: MIT */
/* child_play.c: plays a tape operation by operation.
 *
 * What: streams of the trace are non-blocking streams.  The replay itself acts on `w`; an `m` synchronises the device,
 * untimed.  With GPU work (busy.h) the replay submits work behind each operation, untimed.
 */
#include "cli/replay/child.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/jsonfile.h"

int child_fail(struct replay *replay, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(replay->error, sizeof replay->error, format, arguments);
    va_end(arguments);
    return 0;
}

int child_check(struct replay *replay, const char *call, CUresult result) {
    return result == CUDA_SUCCESS ||
           child_fail(replay, "%s failed: %s", call,
                      weir__driver_error_name(replay->session.driver, result));
}

static int check_work(struct replay *replay, int good) {
    return good || child_fail(replay, "--busy: %s", busy_message(replay->busy));
}

/* ---- stretches ---- */

static void end_stretch(struct replay *replay) {
    struct span span = {0, 0, 0};

    if (!replay->in_stretch)
        return;
    span_end(&replay->clock, &replay->stretch, &span);
    replay->in_stretch = 0;
    replay->now.alloc_ns += span.ns;
    replay->now.driver_ns += span.driver_ns;
    if (span.ns > replay->longest_ns)
        replay->longest_ns = span.ns;
}

static inline void begin_stretch(struct replay *replay) {
    if (replay->in_stretch || replay->play > PLAY_TIMED)
        return;
    replay->in_stretch = 1;
    span_begin(&replay->clock, &replay->stretch);
}

/* ---- failures ---- */

/* Returns the trace's id of the stream that the driver calls `id`, or `id` if it is none of the trace's. */
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

/* Returns why a request failed, with the trace's numbers of streams. */
static json_t *oom_report_json(const struct replay *replay) {
    json_t *report = replay->kind->oom_report(replay->allocator), *one;
    const char *text = json_string_value(json_object_get(report, "text"));
    size_t i;

    rename_stream(replay, report);
    if (report) /* traces have no default stream */
        json_object_set_new(report, "default_stream", json_null());
    json_array_foreach(json_object_get(report, "pending_by"), i, one) rename_stream(replay, one);
    json_array_foreach(json_object_get(report, "groups"), i, one) rename_stream(replay, one);
    if (text)
        json_object_set_new(report, "text", text_with_trace_streams(replay, text));
    return report;
}

/* Counts a request that failed.  Returns 0 if that ends the replay, which lack of memory does in a trial alone. */
static int check_failure(struct replay *replay, const struct tape_op *op, weir_status status) {
    replay->failed++;
    if (status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT)
        return child_fail(replay, "allocation %" PRIu64 " of %" PRIu64 " bytes: %s", replay->allocs,
                          op->bytes, weir_status_message(status));
    replay->refused = 1;
    if (!replay->job->trial && replay->play == PLAY_TIMED && !replay->oom_report &&
        replay->kind->oom_report)
        replay->oom_report = oom_report_json(replay);
    return !replay->job->trial;
}

/* ---- operations ---- */

static int do_alloc(struct replay *replay, const struct tape_op *op) {
    void *address = NULL;
    weir_status status = replay->kind->alloc(replay->allocator, op->block, op->bytes,
                                             replay->streams[op->stream], &address);

    replay->allocs++;
    replay->addresses[op->block] = address;
    return status == WEIR_OK || check_failure(replay, op, status);
}

/* A block of 0 bytes, or of a request that failed, has no address. */
static int do_free(struct replay *replay, const struct tape_op *op) {
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address)
        return 1;
    replay->addresses[op->block] = NULL;
    status = replay->kind->free(replay->allocator, op->block, address, replay->streams[op->stream]);
    replay->frees++;
    return status == WEIR_OK ||
           child_fail(replay, "free %" PRIu64 ": %s", replay->frees, weir_status_message(status));
}

static int do_use(struct replay *replay, const struct tape_op *op) {
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address)
        return 1;
    status = replay->kind->use(replay->allocator, op->block, address, replay->streams[op->stream]);
    replay->uses++;
    return status == WEIR_OK ||
           child_fail(replay, "use %" PRIu64 ": %s", replay->uses, weir_status_message(status));
}

static int do_wait(struct replay *replay, const struct tape_op *op) {
    const struct weir_driver *driver = replay->session.driver;
    CUstream stream = replay->streams[op->stream], on_stream = replay->streams[op->block];

    if (replay->busy && !check_work(replay, busy_flush(replay->busy, op->stream) &&
                                                busy_flush(replay->busy, op->block)))
        return 0;
    return child_check(replay, "cuEventRecord",
                       driver->cuEventRecord(replay->session.event, on_stream)) &&
           child_check(replay, "cuStreamWaitEvent",
                       driver->cuStreamWaitEvent(stream, replay->session.event, 0));
}

static int synchronise(struct replay *replay) {
    if (replay->busy)
        return check_work(replay, busy_end(replay->busy, &replay->now.makespan_ns));
    return child_check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

/* Stores the figures of the current iteration: times if it is timed, memory if it is observed. */
static void end_iteration(struct replay *replay) {
    struct iteration *it = &replay->iterations[replay->iteration_count];

    if (replay->play == PLAY_BARE) {
        replay->bare_ns[replay->iteration_count] = replay->now.alloc_ns;
    } else if (replay->play == PLAY_TIMED) {
        *it = replay->now;
    } else if (replay->play == PLAY_OBSERVED) {
        it->growths = replay->now.growths;
        it->trims = replay->now.trims;
        it->reserved_high = replay->now.reserved_high;
        it->reserved_end = replay->now.reserved_end;
    }
    replay->iteration_count++;
    memset(&replay->now, 0, sizeof replay->now);
}

static int do_mark(struct replay *replay) {
    struct figures after;

    if (!synchronise(replay))
        return 0;
    replay->kind->figures(replay->allocator, &after);
    replay->now.growths = after.growths - replay->before.growths;
    replay->now.trims = after.given_back - replay->before.given_back;
    replay->now.reserved_end = after.reserved;
    replay->before = after;
    end_iteration(replay);
    return !replay->busy || check_work(replay, busy_begin(replay->busy));
}

static int do_operation(struct replay *replay, const struct tape_op *op) {
    if (op->code == 'a' || op->code == 'f' || op->code == 'u') {
        begin_stretch(replay);
        return op->code == 'a'   ? do_alloc(replay, op)
               : op->code == 'f' ? do_free(replay, op)
                                 : do_use(replay, op);
    }
    end_stretch(replay);
    if (replay->play > PLAY_BARE)
        return op->code == 'w' ? do_wait(replay, op) : do_mark(replay);
    if (op->code == 'm')
        end_iteration(replay);
    return 1;
}

/* ---- what is seen ---- */

static void observe(struct replay *replay, uint64_t i) {
    uint64_t reserved = replay->kind->reserved(replay->allocator);
    struct point *point = &replay->points[i * RESULT_POINTS / replay->tape.header->ops];

    if (reserved > replay->now.reserved_high)
        replay->now.reserved_high = reserved;
    if (!point->any || reserved < point->low)
        point->low = reserved;
    if (!point->any || reserved > point->high)
        point->high = reserved;
    point->any = 1;
}

static uint64_t since_begin(const struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;

    return driver->ticks_to_ns(driver->ticks() - replay->began_ticks);
}

void child_show_now(struct replay *replay) {
    struct figures figures;
    uint64_t values[WEIR_TIMELINE_COUNTERS];

    replay->kind->figures(replay->allocator, &figures);
    values[WEIR_TIMELINE_REQUESTED] = replay->requested;
    values[WEIR_TIMELINE_IN_USE] = figures.has_in_use ? figures.in_use : WEIR_TIMELINE_UNKNOWN;
    values[WEIR_TIMELINE_RESERVED] = figures.has_reserve ? figures.reserved : WEIR_TIMELINE_UNKNOWN;
    weir__timeline_count(replay->timeline, since_begin(replay), values);
    if (replay->kind->steps)
        replay->kind->steps(replay->allocator, replay->timeline, replay->began_ticks);
}

/* Does an operation, and adds what came of it to the timeline. */
static int do_and_show(struct replay *replay, const struct tape_op *op) {
    uint64_t failed = replay->failed, now;
    int was_live = op->code == 'f' && replay->addresses[op->block];

    if (!do_operation(replay, op))
        return 0;
    if (replay->failed > failed)
        weir__timeline_failure(replay->timeline, since_begin(replay), op->bytes);
    else if (op->code == 'a')
        replay->requested += op->bytes;
    if (was_live)
        replay->requested -= op->bytes;
    if (op->code == 'm') {
        now = since_begin(replay);
        weir__timeline_iteration(replay->timeline, replay->mark_ns, now,
                                 replay->tape.labels[op->block]);
        replay->mark_ns = now;
    }
    child_show_now(replay);
    return 1;
}

json_t *child_timeline(const struct replay *replay, int number) {
    char name[TAPE_NAME_BYTES + 64], *part = NULL;
    json_t *result = NULL;
    size_t bytes;
    FILE *file = open_memstream(&part, &bytes);

    snprintf(name, sizeof name, "%s, %s%s", replay->tape.header->name, replay->configuration->name,
             replay->busy ? ", busy" : "");
    if (file) {
        weir__timeline_write(replay->timeline, file, number, name, 0, replay->device.name);
        if (fclose(file) == 0)
            result = json_pack("{s:s,s:o}", "timeline", part, "missing",
                               jsonfile_integer(weir__timeline_missing(replay->timeline)));
    }
    free(part);
    return result;
}

/* ---- the tape ---- */

/* Lets the time pass that the program took after an operation.  On a device the thread computes, since a thread that
 * sleeps would be slow to come back. */
static void pass_time(const struct replay *replay, uint64_t gap_us) {
    const struct stopwatch *watch = &replay->clock.watch;
    uint64_t ns = (uint64_t)((double)gap_us * 1000 * replay->job->pace),
             begun = stopwatch_read(watch);

    if (replay->modelled)
        replay->session.driver->sleep_ns(ns);
    else
        while (stopwatch_span(watch, begun, stopwatch_read(watch)) < ns)
            ;
}

/* Submits what the program had the device do after an operation, and lets its time pass. */
static int follow(struct replay *replay, uint64_t i) {
    size_t stream = replay->tape.ops[i].stream;
    uint64_t gap_us = replay->tape.gaps_us[i];

    if (replay->busy && replay->tape.ops[i].code != 'm' &&
        busy_gather(replay->busy, stream, gap_us)) {
        end_stretch(replay);
        if (!check_work(replay, busy_flush(replay->busy, stream)))
            return 0;
    }
    if (replay->job->pace > 0) {
        end_stretch(replay);
        pass_time(replay, gap_us);
    }
    return 1;
}

/* Does all operations of the tape. */
int child_play(struct replay *replay) {
    const struct tape *tape = &replay->tape;

    if (replay->busy && replay->play > PLAY_BARE && !check_work(replay, busy_begin(replay->busy)))
        return 0;
    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (!(replay->play == PLAY_SHOWN ? do_and_show : do_operation)(replay, op))
            return 0;
        if (replay->play == PLAY_OBSERVED)
            observe(replay, i);
        if (replay->play > PLAY_BARE && !follow(replay, i))
            return 0;
    }
    end_stretch(replay);
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

void child_begin(struct replay *replay, enum play kind) {
    replay->play = kind;
    replay->in_stretch = 0;
    replay->iteration_count = 0;
    replay->allocs = replay->frees = replay->uses = replay->failed = 0;
    replay->requested = 0;
    memset(&replay->now, 0, sizeof replay->now);
    memset(replay->addresses, 0, replay->tape.header->blocks * sizeof *replay->addresses);
}

/* Sets bare_ns.  The first round warms up. */
int child_play_bare(struct replay *replay) {
    static const struct allocator_kind bare = {
        .alloc = bare_alloc, .free = bare_free, .use = bare_free};
    const struct allocator_kind *kind = replay->kind;
    int good = 1;

    replay->kind = &bare;
    for (int round = 0; round < 2 && good; round++) {
        child_begin(replay, PLAY_BARE);
        good = child_play(replay);
    }
    replay->kind = kind;
    replay->longest_ns = 0;
    return good;
}

void child_subtract_bare(struct replay *replay) {
    for (size_t i = 0; i < replay->iteration_count && !replay->busy && replay->job->pace <= 0;
         i++) {
        struct iteration *it = &replay->iterations[i];
        uint64_t own = it->alloc_ns - it->driver_ns;

        it->alloc_ns -= replay->bare_ns[i] < own ? replay->bare_ns[i] : own;
    }
}
