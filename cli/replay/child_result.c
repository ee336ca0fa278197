/* SPDX-License-Identifier: MIT */
/* child_result.c: what a replay tells, as JSON. */
#include "cli/replay/replay_child.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "api/timeline.h"
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
#include "driver/model/model.h"

uint64_t child_peak_rss(void) {
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

json_t *child_integer_or_null(int there, uint64_t value) {
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

json_t *child_iterations(const struct replay *replay) {
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
                            child_integer_or_null(replay->last.has_reserve, it->reserve_end));
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

/* What was there before the first request was made: by preallocation, at the first request too, and what grow-ahead took
 * as the allocator was made.  A thread that preallocates leaves grow-ahead for later, and its steps count as ahead. */
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
                        child_integer_or_null(any, replay->last.prealloc_ns + first.ns));
    json_object_set_new(out, "creation_ns", jsonfile_integer(creation_ns(replay)));
    json_object_set_new(out, "creation_and_first_iteration_ns",
                        child_integer_or_null(any, creation_ns(replay) + first.ns));
}

static void set_busy(const struct replay *replay, json_t *out, const struct summary *summary) {
    int any = replay->iteration_count > 0;
    uint64_t sum = 0, least = pending_floor(replay->pending);

    for (size_t i = 0; i < replay->iteration_count; i++)
        sum += replay->iterations[i].makespan_ns;
    json_object_set_new(out, "makespan_ns", child_integer_or_null(any, sum));
    json_object_set_new(out, "steady_makespan_ns",
                        child_integer_or_null(any, summary->steady_makespan_ns));
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
                        child_integer_or_null(last->has_reserve, last->reserve_peak));
    json_object_set_new(
        out, "reserved_over_requested",
        last->has_reserve && header->live_peak_bytes
            ? jsonfile_rounded((double)last->reserve_peak / (double)header->live_peak_bytes,
                               10000.0)
            : json_null());
    json_object_set_new(out, "address_extent_bytes",
                        child_integer_or_null(last->has_extent, last->extent));
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

json_t *child_taken(const struct session *session) {
    return jsonfile_integer(weir__size_less(session->device_bytes, session->device_free));
}

/* Whether two builds do the same: no address and no time is in it. */
static json_t *driver_sequence_json(const struct replay *replay) {
    char digest[17];

    snprintf(digest, sizeof digest, "%016" PRIx64, replay->sequence.digest);
    return json_string(digest);
}

json_t *child_result(const struct replay *replay, const uint64_t calls[]) {
    const struct tape_header *header = replay->tape.header;
    int modelled = replay->session.driver->charge != NULL;
    json_t *out = json_object(), *options = replay->configuration->options(replay->allocator);
    const char *engine = json_string_value(json_object_get(options, "engine"));
    json_t *latency;
    struct summary summary;

    if (!summarise(replay->iterations, replay->iteration_count, &summary)) {
        json_decref(options);
        json_decref(out);
        return NULL;
    }
    json_object_set_new(out, "trace", text(header->name));
    json_object_set_new(out, "configuration",
                        json_string(replay->configuration->is_given && engine
                                        ? engine
                                        : replay->configuration->name));
    json_object_set_new(out, "device", text(replay->device.name));
    json_object_set_new(out, "modelled", json_boolean(modelled));
    json_object_set_new(out, "driver_version", json_integer(replay->session.driver->version));
    json_object_set_new(out, "options", options);
    json_object_set_new(out, "iterations", child_iterations(replay));
    json_object_set_new(out, "op_ns", times_json(replay, &replay->all_times));
    json_object_set_new(out, "alloc_op_ns", times_json(replay, &replay->alloc_times));
    json_object_set_new(out, "free_op_ns", times_json(replay, &replay->free_times));
    if (modelled) {
        json_object_set_new(out, "op_driver_ns", times_json(replay, &replay->driver_times));
        json_object_set_new(out, "op_own_ns", times_json(replay, &replay->own_times));
    }
    json_object_set_new(out, "allocs", jsonfile_integer(replay->allocs));
    json_object_set_new(out, "frees", jsonfile_integer(replay->frees));
    json_object_set_new(out, "failed", jsonfile_integer(replay->failed));
    if (replay->verdict)
        json_object_set_new(out, "oom_report", replay->verdict);
    json_object_set_new(out, "uses", jsonfile_integer(replay->uses));
    json_object_set_new(out, "waits", jsonfile_integer(header->waits));
    json_object_set_new(out, "device_bytes", jsonfile_integer(replay->session.device_bytes));
    json_object_set_new(out, "device_taken_bytes", child_taken(&replay->session));
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
                        replay->configuration->front
                            ? replay->configuration->front(replay->allocator)
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
    latency =
        replay->configuration->latency ? replay->configuration->latency(replay->allocator) : NULL;
    if (latency)
        json_object_set_new(out, "latency", latency);
    return out;
}
