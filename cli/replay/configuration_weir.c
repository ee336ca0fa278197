/* SPDX-License-Identifier: MIT */
/* configuration_weir.c: configurations that call weir through its public interface.  weir's driver calls are
 * counted. */
#include "cli/replay/configuration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "api/allocator_internal.h"
#include "api/drop_in.h"
#include "api/timeline.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/common/flags.h"

struct public {
    struct session *session;
    weir_allocator *allocator;
    weir_options options;
    uint64_t last_event;     /* the sequence number of the newest event that was read */
    uint64_t recovery_trims; /* events in which OOM recovery returned memory to the device */
    uint64_t reserved;       /* the reserved memory in the newest event, or in newer statistics */
    uint64_t last_step;      /* the sequence number of the newest event in the time line */
};

static void fail_weir_call(struct session *session, const char *what, weir_status status) {
    CUresult result = (CUresult)weir_last_driver_result();
    int is_driver = status == WEIR_E_DRIVER || status == WEIR_E_DEVICE_LOST;

    session->is_out_of_memory = status == WEIR_E_LIMIT || status == WEIR_E_NO_MEMORY;
    snprintf(session->message, sizeof session->message, "%s: %s%s%s%s", what,
             weir_status_message(status), is_driver ? " (" : "",
             is_driver ? weir__driver_error_name(session->driver, result) : "",
             is_driver ? ")" : "");
}

static void *public_open(struct session *session, const struct configuration *self) {
    struct public *opened = calloc(1, sizeof *opened);
    char message[CONFIGURATION_MESSAGE_BYTES - 40] = "";
    weir_options options;
    weir_status status;

    if (!opened) {
        snprintf(session->message, sizeof session->message, "out of memory");
        return NULL;
    }
    opened->session = session;
    status = weir_options_init(&opened->options);
    if (status == WEIR_OK) {
        opened->options.device = session->command_options->device;
        opened->options.log = session->command_options->log;
        configuration_choose(self, session, &opened->options);
        if (opened->options.log == WEIR_LOG_DEFAULT)
            opened->options.log = WEIR_LOG_WARNING;
        if (session->limit)
            opened->options.limit = (weir_amount){session->limit, WEIR_AMOUNT_BYTES};
        options = opened->options;
        options.oom_report =
            NULL; /* the parent process writes the OOM report later, with advice for the whole trace */
        status = weir__allocator_create_on(session->counted, &options, &opened->allocator, message,
                                           sizeof message);
    }
    if (status != WEIR_OK) {
        fail_weir_call(session, "the allocator cannot be made", status);
        if (message[0])
            snprintf(session->message, sizeof session->message, "the allocator cannot be made: %s",
                     message);
        free(opened);
        return NULL;
    }
    /* If the user named no engine, the allocator has chosen one. */
    opened->options.engine = opened->allocator->options.engine;
    if (session->discards_profile) {
        weir__run_profile_close(opened->allocator->run_profile);
        opened->allocator->run_profile = NULL;
    }
    /* Requests that fail are not logged, because the replay counts and reports them. */
    if (session->command_options->log == WEIR_LOG_DEFAULT)
        weir__drop_in_stop_logs(opened->allocator);
    return opened;
}

static weir_status public_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                                void **out) {
    const struct public *opened = allocator;

    (void)block;
    return weir_alloc(opened->allocator, bytes, stream, out);
}

static weir_status public_free(void *allocator, uint32_t block, void *address, CUstream stream) {
    const struct public *opened = allocator;

    (void)block;
    return weir_free(opened->allocator, address, stream);
}

static weir_status public_use(void *allocator, uint32_t block, void *address, CUstream stream) {
    const struct public *opened = allocator;

    (void)block;
    return weir_use(opened->allocator, address, stream);
}

static weir_status public_trim(void *allocator) {
    const struct public *opened = allocator;

    return opened->allocator->reserve.goal.has_threshold ? weir_decay(opened->allocator, NULL)
                                                         : WEIR_OK;
}

enum { EVENTS = 64 };

/* Reads at most EVENTS events after the event with the sequence number `last'.  Returns the number of events. */
static size_t read_new_events(const struct public *opened, uint64_t last, weir_event *events) {
    size_t count = 0;

    return weir_events(opened->allocator, last, events, sizeof *events, EVENTS, &count) == WEIR_OK
               ? count
               : 0;
}

/* Counts OOM recoveries in the events since the last call.  Events that the allocator no longer stores are not
 * counted. */
static void count_recoveries(struct public *opened) {
    weir_event events[EVENTS];
    size_t count;

    while ((count = read_new_events(opened, opened->last_event, events)) > 0) {
        for (size_t i = 0; i < count; i++) {
            if (events[i].shrink && events[i].cause != WEIR_EVENT_TRIM)
                opened->recovery_trims++;
            opened->reserved = events[i].reserved_after;
        }
        opened->last_event = events[count - 1].sequence;
    }
}

static void public_figures(void *allocator, struct figures *out) {
    struct public *opened = allocator;
    weir_statistics stats;

    memset(out, 0, sizeof *out);
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    if (weir_stats(opened->allocator, &stats) != WEIR_OK)
        return;
    count_recoveries(opened);
    out->in_use = stats.in_use;
    out->reserved = opened->reserved = stats.reserved;
    out->reserved_peak = stats.reserved_peak;
    out->growths = stats.growths;
    out->stall_ns = stats.stall_ns;
    out->ahead_growths = stats.ahead_steps;
    out->ahead_bytes = stats.ahead_bytes;
    out->trims = stats.trims + opened->recovery_trims;
    out->has_in_use = out->has_reserve = 1;
}

/* Returns the reserved memory from the newest event, because weir_stats() may change the sizes of per-stream caches.
 * Engine direct has no events and no caches. */
static uint64_t public_reserved(void *allocator) {
    struct public *opened = allocator;
    struct figures figures;

    if (opened->options.engine != WEIR_ENGINE_DIRECT) {
        count_recoveries(opened);
        return opened->reserved;
    }
    public_figures(allocator, &figures);
    return figures.reserved;
}

static void public_steps(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks) {
    struct public *opened = allocator;
    const struct weir_device *device = &opened->allocator->device;
    uint64_t made_ns = device->created_ticks - began_ticks;
    weir_event events[EVENTS];
    size_t count;

    while ((count = read_new_events(opened, opened->last_step, events)) > 0)
        opened->last_step =
            weir__timeline_events(timeline, made_ns, opened->last_step, events, count);
}

static json_t *public_options(void *allocator) {
    const struct public *opened = allocator;
    weir_options complete;
    char message[256];

    if (weir__options_complete(&opened->options, &complete, message, sizeof message) != WEIR_OK)
        complete = opened->options;
    return weir_cli_options_json(&complete);
}

static json_t *latency_of(const struct public *opened, int operation) {
    weir_latency latency;

    memset(&latency, 0, sizeof latency);
    latency.size = sizeof latency;
    if (weir_latencies(opened->allocator, operation, &latency) != WEIR_OK)
        return json_null();
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "count", latency.count, "p50", latency.p50_ns,
                     "p90", latency.p90_ns, "p99", latency.p99_ns, "p999", latency.p999_ns, "max",
                     latency.max_ns, "total", latency.total_ns);
}

static json_t *public_latency(void *allocator) {
    const struct public *opened = allocator;

    if (opened->options.latency != WEIR_SWITCH_ON)
        return NULL;
    return json_pack("{s:o,s:o}", "alloc", latency_of(opened, 0), "free", latency_of(opened, 1));
}

/* Replaces the limit that an OOM report advises.  The new limit suffices for the whole trace. */
static void set_trace_advice(const struct session *session, weir_oom_report *oom_report) {
    uint64_t live = session->live_peak_bytes, unit = UINT64_C(32) << 20;
    uint64_t needed = (live + unit - 1) / unit * unit, there = oom_report->device_total;
    int leaves = oom_report->keep_free > 0;

    if (oom_report->process_group[0] && live <= oom_report->limit &&
        oom_report->reserved +
                weir__size_subtract(oom_report->group_limit, oom_report->group_used) <
            live) {
        oom_report->cause = WEIR_OOM_REPORT_GROUP;
        memset(oom_report->settings, 0, sizeof oom_report->settings);
        return;
    }
    if (live <= oom_report->limit && live <= oom_report->device_total)
        return;
    if (oom_report->cause == WEIR_OOM_REPORT_FRAGMENTED ||
        oom_report->cause == WEIR_OOM_REPORT_PENDING ||
        (oom_report->cause == WEIR_OOM_REPORT_LIMIT && live > oom_report->device_total))
        oom_report->cause =
            live > oom_report->device_total ? WEIR_OOM_REPORT_IN_USE : WEIR_OOM_REPORT_LIMIT;
    memset(oom_report->settings, 0, sizeof oom_report->settings);
    if (leaves)
        there = oom_report->reserved + oom_report->device_free;
    if (live > there)
        return;
    oom_report->settings[0].name =
        weir__setting_row(leaves ? WEIR_SETTING_KEEP_FREE : WEIR_SETTING_LIMIT)->name;
    weir__bytes_spell(leaves ? weir__size_subtract(there, needed) / unit * unit : needed,
                      oom_report->settings[0].value, sizeof oom_report->settings[0].value);
}

/* Returns the OOM report of the last request that failed, as JSON with its text. */
static json_t *public_oom_report(void *allocator) {
    const struct public *opened = allocator;
    weir_oom_report oom_report = {.size = sizeof oom_report};
    char written[4096];
    json_t *out;

    if (weir_last_oom_report(opened->allocator, &oom_report) != WEIR_OK)
        return NULL;
    set_trace_advice(opened->session, &oom_report);
    weir_oom_report_text(&oom_report, WEIR_OOM_REPORT_AS_JSON, written, sizeof written);
    out = json_loads(written, 0, NULL);
    weir_oom_report_text(&oom_report, WEIR_OOM_REPORT_AS_TEXT, written, sizeof written);
    if (out)
        json_object_set_new(out, "text", json_string(written));
    return out;
}

static json_t *public_caches(void *allocator) {
    const struct public *opened = allocator;
    weir_statistics stats = {.size = sizeof stats};

    if (weir_stats(opened->allocator, &stats) != WEIR_OK)
        return json_null();
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "hits", stats.cache_hits,
                     "misses_young", stats.cache_misses_young, "misses_empty",
                     stats.cache_misses_empty, "misses_capture", stats.cache_misses_capture,
                     "steals", stats.steals, "event_records", stats.event_records, "deferred_frees",
                     stats.deferred_frees, "idle_bytes", stats.cache_idle, "streams",
                     stats.cache_streams);
}

static int public_close(void *allocator) {
    struct public *opened = allocator;
    struct session *session = opened->session;
    weir_status status = weir_allocator_destroy(opened->allocator);

    free(opened);
    if (status == WEIR_OK)
        return 1;
    fail_weir_call(session, "the allocator cannot be destroyed", status);
    return 0;
}

const struct allocator_kind weir_kind = {.open = public_open,
                                         .alloc = public_alloc,
                                         .free = public_free,
                                         .use = public_use,
                                         .trim = public_trim,
                                         .figures = public_figures,
                                         .reserved = public_reserved,
                                         .steps = public_steps,
                                         .options = public_options,
                                         .latency = public_latency,
                                         .oom_report = public_oom_report,
                                         .caches = public_caches,
                                         .close = public_close};
