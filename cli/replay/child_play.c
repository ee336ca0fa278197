/* SPDX-License-Identifier: MIT */
/* child_play.c: a replay in which each operation is timed as a span of its own (cli/common/span.h).
 *
 * What: streams of the trace become non-blocking streams.  `w` is acted on by the replay itself; `u` is the
 * configuration's.  An `m` synchronises the device, which is not timed.  A busy replay submits work behind each operation
 * (busy.h), untimed.
 */
#include "cli/replay/replay_child.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/histogram.h"
#include "base/size.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/pending.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"

/* ---- timing ---- */

static void note_time(struct replay *replay, struct weir_histogram *of_operation,
                      const struct span *span) {
    replay->now.alloc_ns += span->ns;
    weir__histogram_add(of_operation, span->ns);
    weir__histogram_add(&replay->all_times, span->ns);
    if (replay->session.driver->charge) {
        replay->now.driver_ns += span->driver_ns;
        replay->now.own_ns += span->own_ns;
        weir__histogram_add(&replay->driver_times, span->driver_ns);
        weir__histogram_add(&replay->own_times, span->own_ns);
    }
}

int child_check_busy(struct replay *replay, int good) {
    return good || child_fail(replay, "--busy: %s", busy_message(replay->busy));
}

/* What decides whether a configuration looks at its reserved memory must not rest on own time. */
static uint64_t reliable_ns(const struct replay *replay, const struct span *span) {
    return replay->session.driver->charge ? span->driver_ns : span->ns;
}

/* ---- failures ---- */

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
static json_t *oom_report_json(const struct replay *replay) {
    json_t *verdict = replay->configuration->verdict(replay->allocator), *one;
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

int child_check_failure(struct replay *replay, const struct tape_op *op, weir_status status) {
    replay->failed++;
    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) {
        replay->refused = 1;
        if (!replay->trial && !replay->verdict && replay->configuration->verdict)
            replay->verdict = oom_report_json(replay);
        return !replay->trial;
    }
    return child_fail(replay, "allocation %" PRIu64 " of %" PRIu64 " bytes: %s", replay->allocs,
                      op->bytes, weir_status_message(status));
}

int child_check_free(struct replay *replay, weir_status status) {
    return status == WEIR_OK ||
           child_fail(replay, "free %" PRIu64 ": %s", replay->frees, weir_status_message(status));
}

/* ---- operations ---- */

static int do_alloc(struct replay *replay, const struct tape_op *op) {
    const struct configuration *configuration = replay->configuration;
    CUstream stream = replay->streams[op->stream];
    struct span span = {0, 0, 0};
    struct span_start start;
    void *address = NULL;
    weir_status status;

    span_begin(&replay->clock, &start);
    status = configuration->alloc(replay->allocator, op->block, op->bytes, stream, &address);
    span_end(&replay->clock, &start, &span);
    note_time(replay, &replay->alloc_times, &span);
    if (replay->allocs++ == 0)
        replay->first_request = span;
    if (configuration->after_slow && reliable_ns(replay, &span) >= SLOW_NS)
        configuration->after_slow(replay->allocator, reliable_ns(replay, &span));
    replay->addresses[op->block] = address;
    return status == WEIR_OK || child_check_failure(replay, op, status);
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
    status = replay->configuration->free(replay->allocator, op->block, address,
                                         replay->streams[op->stream]);
    span_end(&replay->clock, &start, &span);
    note_time(replay, &replay->free_times, &span);
    replay->frees++;
    return child_check_free(replay, status);
}

static int do_use(struct replay *replay, const struct tape_op *op) {
    struct span span = {0, 0, 0};
    struct span_start start;
    void *address = replay->addresses[op->block];
    weir_status status;

    if (!address)
        return 1;
    span_begin(&replay->clock, &start);
    status = replay->configuration->use(replay->allocator, op->block, address,
                                        replay->streams[op->stream]);
    span_end(&replay->clock, &start, &span);
    replay->uses++;
    replay->use_time.ns += span.ns;
    replay->use_time.driver_ns += span.driver_ns;
    replay->use_time.own_ns += span.own_ns;
    return status == WEIR_OK ||
           child_fail(replay, "use %" PRIu64 ": %s", replay->uses, weir_status_message(status));
}

static int do_wait(struct replay *replay, const struct tape_op *op) {
    const struct weir_driver *driver = replay->session.driver;
    CUstream stream = replay->streams[op->stream], on_stream = replay->streams[op->block];

    if (replay->busy && !child_check_busy(replay, busy_flush(replay->busy, op->stream) &&
                                                      busy_flush(replay->busy, op->block)))
        return 0;
    return child_check(replay, "cuEventRecord",
                       driver->cuEventRecord(replay->session.event, on_stream)) &&
           child_check(replay, "cuStreamWaitEvent",
                       driver->cuStreamWaitEvent(stream, replay->session.event, 0));
}

static int synchronise(struct replay *replay) {
    if (replay->busy)
        return child_check_busy(replay, busy_end(replay->busy, &replay->now.makespan_ns));
    return child_check(replay, "cuCtxSynchronize", replay->session.driver->cuCtxSynchronize());
}

static int do_mark(struct replay *replay) {
    struct figures after;

    if (!synchronise(replay))
        return 0;
    replay->configuration->figures(replay->allocator, &after);
    replay->now.stall_ns = after.stall_ns - replay->before.stall_ns;
    replay->now.growths = after.growths - replay->before.growths;
    replay->now.growth_bytes = after.growth_bytes - replay->before.growth_bytes;
    replay->now.given_back = after.given_back - replay->before.given_back;
    replay->now.reserve_end = after.reserve;
    replay->iterations[replay->iteration_count++] = replay->now;
    replay->before = after;
    memset(&replay->now, 0, sizeof replay->now);
    return !replay->busy || child_check_busy(replay, busy_begin(replay->busy));
}

int child_do_operation(struct replay *replay, const struct tape_op *op) {
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

/* ---- the tape ---- */

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

    (replay->sampled == JOB_SAMPLES_WATCH
         ? replay->configuration->watch
         : replay->configuration->figures)(replay->allocator, &now);
    samples_note(replay->samples, i, replay->addresses, &now);
}

int child_do_and_sample(struct replay *replay, const struct tape_op *op) {
    if (!child_do_operation(replay, op))
        return 0;
    take_sample(replay, (uint64_t)(op - replay->tape.ops));
    return 1;
}

/* The operation, and the work behind it, as the floor of memory has them. */
static int note_pending(struct replay *replay, uint64_t i) {
    const struct weir_driver *driver = replay->session.driver;
    const struct tape_op *op = &replay->tape.ops[i];
    uint64_t now = driver->ticks_to_ns(driver->ticks());

    if (!pending_note(replay->pending, op, now))
        return child_fail(replay, "out of host memory");
    if (op->code != 'm')
        pending_work(replay->pending, op->stream,
                     busy_work_ns(replay->busy, replay->tape.gaps_us[i]), now);
    return 1;
}

int child_play(struct replay *replay, child_step *step) {
    const struct tape *tape = &replay->tape;

    if (replay->busy && !child_check_busy(replay, busy_begin(replay->busy)))
        return 0;
    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (!step(replay, op) || (replay->pending && !note_pending(replay, i)))
            return 0;
        if (replay->busy && op->code != 'm' &&
            !child_check_busy(replay, busy_work(replay->busy, op->stream, tape->gaps_us[i])))
            return 0;
        if (replay->pace > 0)
            pass_time(replay, tape->gaps_us[i]);
    }
    return 1;
}
