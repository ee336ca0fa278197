/* SPDX-License-Identifier: MIT */
/* benchmark.c: replays every trace on every configuration; see benchmark.h.
 *
 * For each trace, all configurations run one after another, as often as --repeat says.  A run affects the next run: the
 * driver must clear pages, and clocks have risen.  Therefore each repetition starts with another configuration.  With
 * --profile, only the last run of a trace saves the profile, so all runs read the same profile.
 */
#include "cli/replay/benchmark.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/timeline.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/common/files.h"
#include "cli/common/jsonfile.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/common/shipped.h"
#include "cli/report/report.h"

/* ---- flags ---- */

static void read_count_flag(struct argp_state *state, const char *flag, const char *text,
                            void *field) {
    struct weir_problem problem;

    if (!weir__count_read(text, 1000000, field, &problem) || *(uint64_t *)field == 0)
        argp_error(state, "%s '%s': expected a whole number from 1 to 1000000", flag, text);
}

static void read_factor_flag(struct argp_state *state, const char *flag, const char *text,
                             void *field) {
    struct weir_problem problem;
    double *factor = field;
    const char *end;

    if (!weir__factor_read(text, &end, factor, &problem) || *end || *factor < 0.001 ||
        *factor > 1000)
        argp_error(state, "%s '%s': expected a number from 0.001 to 1000, such as 1 or 0.5", flag,
                   text);
}

#define FIELD(name) offsetof(struct benchmark, name)

static const struct weir_cli_flag flags[] = {
    {"repeat", 'r', "N", read_count_flag, FIELD(results.repeat),
     "Run each pair of trace and configuration N times; the table shows medians."},
    {"iterations", 'i', "N", read_count_flag, FIELD(iterations),
     "Stop after N iterations of each trace."},
    {"busy", 'b', "FACTOR", read_factor_flag, FIELD(results.busy),
     "Replay with GPU work, too: delays on the streams of FACTOR times the time that the trace "
     "took there."},
    {"pace", 'p', "FACTOR", read_factor_flag, FIELD(pace),
     "Wait between calls for FACTOR times the time that the recorded program took."},
    {"json", 'j', "FILE", weir_cli_read_output, FIELD(json_file),
     "Write all results to FILE as JSON.  '-' is standard output; the table then goes to "
     "standard error."},
    {"report", 0, "FILE", weir_cli_read_page, FIELD(report),
     "Write a page of the results to FILE, whose name ends in .html (weir report)."},
    {"trace-events", 0, "FILE", weir_cli_read_file, FIELD(timeline_file),
     "Write a time line to FILE for Perfetto or Chrome: counters, growth, iterations.  This takes "
     "one more replay of each pair."},
    {0}};

static error_t parse_benchmark_flag(int key, char *argument, struct argp_state *state) {
    return weir_cli_read_flag(flags, key, argument, state);
}

const struct argp *benchmark_argp(void) {
    static struct argp argp = {.parser = parse_benchmark_flag};

    argp.options = weir_cli_options(flags);
    return &argp;
}

void benchmark_init(struct benchmark *benchmark, int argc, char **argv) {
    memset(benchmark, 0, sizeof *benchmark);
    benchmark->results.repeat = 1;
    benchmark->argc = argc;
    benchmark->argv = argv;
}

static void fail_to_add(struct benchmark *benchmark) {
    fputs("weir: out of memory\n", stderr);
    benchmark->has_failed = 1;
}

void benchmark_add_configuration(struct benchmark *benchmark,
                                 const struct configuration *configuration) {
    struct results *results = &benchmark->results;
    const struct configuration **list;

    for (size_t i = 0; i < results->configuration_count; i++)
        if (results->configurations[i] == configuration)
            return;
    list = reallocarray(results->configurations, results->configuration_count + 1, sizeof *list);
    if (!list) {
        fail_to_add(benchmark);
        return;
    }
    list[results->configuration_count++] = configuration;
    results->configurations = list;
}

/* ---- traces ---- */

static void add_path(struct benchmark *benchmark, char *path) {
    struct benchmark_trace *traces =
        path ? reallocarray(benchmark->traces, benchmark->trace_count + 1, sizeof *traces) : NULL;

    if (!traces) {
        free(path);
        fail_to_add(benchmark);
        return;
    }
    benchmark->traces = traces;
    traces[benchmark->trace_count++] = (struct benchmark_trace){.path = path, .trace_fd = -1};
}

void benchmark_add_trace(struct benchmark *benchmark, const char *argument) {
    add_path(benchmark, shipped_resolve(argument));
}

void benchmark_add_shipped(struct benchmark *benchmark) {
    const char *folder = shipped_folder();
    size_t count;
    char **paths = shipped_list(&count);

    if (!paths) {
        fprintf(stderr, "weir: no traces %s%s: name some as arguments\n",
                folder ? "in " : "are installed", folder ? folder : "");
        benchmark->has_failed = 1;
    }
    for (size_t i = 0; i < count && !benchmark->has_failed; i++)
        add_path(benchmark, strdup(paths[i]));
    shipped_free(paths, count);
}

void benchmark_report_no_trace(const char *path, const char *message) {
    fprintf(stderr, "weir: %s: %s\n", strcmp(path, "-") == 0 ? "stdin" : path, message);
    shipped_print_names(path);
}

/* If an earlier trace has the name of this trace, adds a number to the name: "gpt2-train (2)". */
static void make_name_unique(struct benchmark *benchmark, size_t trace) {
    char *name = benchmark->traces[trace].header.name, other[TRACE_NAME_BYTES];
    size_t same = 0, length = strlen(name), room = 24;

    for (size_t i = 0; i < trace; i++) {
        name_of_trace(benchmark->traces[i].path, other);
        same += strcmp(name, other) == 0;
    }
    length = length < TRACE_NAME_BYTES - room ? length : TRACE_NAME_BYTES - room;
    if (same)
        snprintf(name + length, room, " (%zu)", same + 1);
}

/* Converts all traces to binary traces.  Prints a message for each bad trace.  Returns 1 on success, 0 if a trace is
 * bad. */
static int convert_traces(struct benchmark *benchmark) {
    char message[RUNNER_MESSAGE_BYTES];
    int good = 1;

    for (size_t i = 0; i < benchmark->trace_count; i++) {
        struct benchmark_trace *trace = &benchmark->traces[i];

        trace->trace_fd = binary_trace_make(trace->path, benchmark->iterations, &trace->header,
                                            message, sizeof message);
        if (trace->trace_fd < 0) {
            benchmark_report_no_trace(trace->path, message);
            good = 0;
            continue;
        }
        make_name_unique(benchmark, i);
        if (benchmark->iterations == 1)
            fprintf(stderr, "weir: %s: --iterations 1 gives no steady time: use at least 2\n",
                    trace->header.name);
        else if (trace->header.marks < 2)
            fprintf(
                stderr, "weir: %s: the trace has %s, so there is no steady time%s\n",
                trace->header.name, trace->header.marks ? "only one mark" : "no marks",
                trace->header.is_converted
                    ? ""
                    : ".  Record with --mark-at-nvtx NAME, or call weir_mark() in the program; "
                      "--mark-at-sync finds marks only where the program waits for the device.  "
                      "In a trace of your own, a mark is a line 'TIME m LABEL'");
        trace_report_left_out(trace->header.name, trace->header.left_out);
    }
    return good;
}

/* ---- JSON ---- */

/* Adds the ends of iterations, their labels, and the curve of requested memory over time to the JSON object. */
static void set_over_time(const struct binary_trace *trace, json_t *out) {
    json_t *labels = json_array(), *marks = json_array(), *requested = json_array();
    uint64_t live = 0, high = 0, ops = trace->header->ops;

    for (uint64_t i = 0; i < ops; i++) {
        const struct trace_operation *op = &trace->ops[i];

        if (op->code == 'm') {
            json_array_append_new(marks, jsonfile_integer(i));
            json_array_append_new(labels, jsonfile_text(trace->labels[op->block]));
        }
        live += op->code == 'a' ? op->bytes : 0;
        if (live > high)
            high = live;
        live -= op->code == 'f' ? op->bytes : 0;
        if (i + 1 == ops ||
            /* The operation is the last one before the next point of the curve. */
            i * RESULT_POINTS / ops != (i + 1) * RESULT_POINTS / ops) {
            json_array_append_new(requested, jsonfile_integer(high));
            high = live;
        }
    }
    json_object_set_new(out, "labels", labels);
    json_object_set_new(out, "marks", marks);
    json_object_set_new(out, "requested_high", requested);
}

static json_t *trace_json(const struct benchmark_trace *trace) {
    const struct trace_header *header = &trace->header;
    struct binary_trace binary = {0};
    json_t *out =
        json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "trace", jsonfile_text(header->name),
                  "iterations", header->marks, "ops", header->ops, "allocs", header->allocs,
                  "frees", header->frees, "uses", header->uses, "waits", header->waits, "streams",
                  header->streams, "recorded_failures", header->recorded_failures,
                  "requested_peak_bytes", jsonfile_integer(header->live_peak_bytes));

    if (binary_trace_map(trace->trace_fd, &binary)) {
        set_over_time(&binary, out);
        binary_trace_unmap(&binary);
    }
    return out;
}

/* Returns all results as one JSON object (weir-json(7)). */
static json_t *document_json(const struct benchmark *benchmark, const struct findings *findings) {
    const struct results *results = &benchmark->results;
    json_t *out = jsonfile_common(benchmark->argc, benchmark->argv), *own, *run = NULL;
    json_t *traces = json_array(), *subjects = json_array(), *rows = json_array();

    for (size_t i = 0; i < benchmark->trace_count; i++)
        json_array_append_new(traces, trace_json(&benchmark->traces[i]));
    for (size_t i = 0; i < results->configuration_count; i++) {
        const struct configuration *c = results->configurations[i];

        json_array_append_new(subjects,
                              json_pack("{s:s,s:s?,s:b,s:s?}", "configuration", c->name, "what",
                                        c->what, "usable", !c->unusable, "unusable", c->unusable));
    }
    for (size_t i = 0; i < results->row_count; i++) {
        const struct row *row = &results->rows[i];

        /* An interrupt came before the first run of this row. */
        if (json_array_size(row->runs) == 0 && !row->error)
            continue;
        if (!run)
            run = json_array_get(row->runs, 0);
        json_array_append_new(rows, result_row_json(results, row));
    }
    own = json_pack("{s:s,s:b,s:s?,s:i,s:I,s:I,s:I,s:o,s:o,s:O*,s:o,s:o,s:o,s:o}", "device",
                    benchmark->device, "modelled", benchmark->modelled, "model_profile",
                    benchmark->modelled ? weir_cli_model_profile() : NULL, "driver_version",
                    benchmark->driver_version, "repeat", results->repeat, "planned_runs",
                    result_planned(results), "made_runs", result_runs(results, 0), "busy",
                    results->busy > 0 ? json_real(results->busy) : json_null(), "pace",
                    benchmark->pace > 0 ? json_real(benchmark->pace) : json_null(), "timer_ns",
                    json_object_get(run, "timer_ns"), "traces", traces, "configurations", subjects,
                    "rows", rows, "findings", findings_json(findings));
    json_object_update(out, own);
    json_decref(own);
    return out;
}

FILE *benchmark_table_file(const struct benchmark *benchmark) {
    return benchmark->json_file && strcmp(benchmark->json_file, "-") == 0 ? stderr : stdout;
}

/* ---- the device ---- */

/* Removes configurations that the device cannot run, and prints a message for each.  Returns 1 if any remain, else
 * 0. */
static int remove_unsupported(struct benchmark *benchmark, const json_t *lacks) {
    struct results *results = &benchmark->results;
    size_t kept = 0;

    for (size_t i = 0; i < results->configuration_count; i++) {
        const struct configuration *configuration = results->configurations[i];
        const char *what = json_string_value(json_object_get(lacks, configuration->name));

        if (what)
            fprintf(stderr, "weir: %s is left out: it needs %s, which %s lacks\n",
                    configuration->name, what, benchmark->device);
        else
            results->configurations[kept++] = configuration;
    }
    results->configuration_count = kept;
    if (kept == 0)
        fputs("weir: no configuration is left\n", stderr);
    return kept > 0;
}

/* Runs a child process that opens the device, and stores the name of the device.  Returns 1 on success.  On failure,
 * prints the reason and returns 0. */
static int query_benchmark_device(struct benchmark *benchmark) {
    static char spec[64]; /* the name of the device, to which options.device points */
    char message[RUNNER_MESSAGE_BYTES];
    struct job job;
    json_t *result;
    int good;

    job_make(&job, NULL, benchmark->results.busy, &benchmark->options, benchmark->device_source);
    result = runner_run(&job, -1, message, sizeof message);
    if (!result) {
        if (message[0])
            fprintf(stderr, "weir: cannot read the properties of the device: %s\n", message);
        return 0;
    }
    snprintf(benchmark->device, sizeof benchmark->device, "%s",
             json_string_value(json_object_get(result, "device")));
    snprintf(spec, sizeof spec, "%s", json_string_value(json_object_get(result, "spec")));
    benchmark->options.device = spec[0] ? spec : NULL;
    benchmark->modelled = json_is_true(json_object_get(result, "modelled"));
    benchmark->driver_version = (int)json_integer_value(json_object_get(result, "driver_version"));
    good = remove_unsupported(benchmark, json_object_get(result, "lacks"));
    json_decref(result);
    return good;
}

/* ---- the smallest limit ---- */

const uint64_t limit_step = UINT64_C(32) << 20;

/* Replays the trace with a limit of `units' times limit_step.  Sets *most to the device's memory divided by limit_step.
 * Returns 1 if all requests succeed, 0 if one fails, -1 if the replay cannot run. */
static int try_limit_units(const struct benchmark *benchmark, size_t trace,
                           const char *configuration, const weir_options *options, double busy,
                           uint64_t units, uint64_t *most, char *message) {
    struct job job;
    json_t *trial;
    int served;

    job_make(&job, configuration, busy, options, benchmark->device_source);
    job.options.limit = (weir_amount){0, WEIR_AMOUNT_DEFAULT};
    /* Requests that fail are results, and must not be logged as errors. */
    job.options.log = WEIR_LOG_NONE;
    job.trial = 1;
    job.limit = units * limit_step;
    trial = runner_run(&job, benchmark->traces[trace].trace_fd, message, RUNNER_MESSAGE_BYTES);
    served = trial ? json_is_true(json_object_get(trial, "served")) : -1;
    if (trial)
        *most = (uint64_t)json_integer_value(json_object_get(trial, "device_bytes")) / limit_step;
    json_decref(trial);
    return served;
}

uint64_t find_smallest_limit(const struct benchmark *benchmark, size_t trace,
                             const char *configuration, const weir_options *options, double busy,
                             char *message) {
    uint64_t live = benchmark->traces[trace].header.live_peak_bytes, most = UINT64_MAX;
    uint64_t low = live ? (live - 1) / limit_step : 0, high = low + 1, step = high / 32 + 1;
    int served;

#define SERVES(units)                                                                              \
    try_limit_units(benchmark, trace, configuration, options, busy, units, &most, message)
    while ((served = SERVES(high)) == 0) {
        if (high >= most)
            return 0;
        low = high;
        high = high + step < most ? high + step : most;
        step *= 2;
    }
    while (served >= 0 && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        served = SERVES(middle);
        if (served > 0)
            high = middle;
        else
            low = middle;
    }
#undef SERVES
    return served >= 0 ? high * limit_step : 0;
}

/* ---- failed requests ---- */

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* A message mentions other processes only if they use more than 1 / OTHERS_PART of the device's memory.  Less memory
 * may be only the contexts of these processes. */
enum { OTHERS_PART = 16 };

/* Returns the device memory of other processes: before the replay or in the OOM report, whichever is larger. */
static uint64_t memory_of_others(const json_t *result, const json_t *oom_report) {
    uint64_t before = integer_at(result, "device_taken_bytes");
    uint64_t since = integer_at(oom_report, "others");

    return since > before ? since : before;
}

/* Returns 1 if the request would have succeeded without other processes on the device, else 0. */
static int is_caused_by_others(const json_t *oom_report, uint64_t others, uint64_t device,
                               uint64_t live) {
    const json_t *limit = json_object_get(oom_report, "limit");
    uint64_t there = weir__size_subtract(device, others);

    if (others <= device / OTHERS_PART)
        return 0;
    return integer_at(oom_report, "keep_free") > 0
               ? there < live
               : !json_is_integer(limit) || (uint64_t)json_integer_value(limit) > there;
}

/* Returns how much memory the process could reserve under the limit of its process group. */
static uint64_t group_left(const json_t *oom_report) {
    return integer_at(oom_report, "reserved") +
           weir__size_subtract(integer_at(oom_report, "group_limit"),
                               integer_at(oom_report, "group_used"));
}

static int is_group(const json_t *oom_report, uint64_t live) {
    return json_is_string(json_object_get(oom_report, "process_group")) &&
           group_left(oom_report) < live;
}

/* Writes to `text' why requests failed.  `live' is the peak requested memory of the trace. */
static void write_shortage(const json_t *result, uint64_t live, char *text, size_t bytes) {
    const json_t *oom_report = json_object_get(result, "oom_report");
    const json_t *has_limit = json_object_get(oom_report, "limit");
    uint64_t limit = integer_at(oom_report, "limit"),
             keep_free = integer_at(oom_report, "keep_free");
    uint64_t device = integer_at(result, "device_bytes"),
             others = memory_of_others(result, oom_report);

    if (device < live)
        snprintf(text, bytes,
                 "the device has %s, and the trace's peak requested memory is %s: no setting helps",
                 WEIR_SHOWN(device), WEIR_SHOWN(live));
    else if (is_group(oom_report, live))
        snprintf(text, bytes,
                 "the limit of the process group '%s' is %s (WEIR_GROUP_LIMIT), of which this "
                 "replay could have %s; the trace's peak requested memory is %s",
                 json_string_value(json_object_get(oom_report, "process_group")),
                 WEIR_SHOWN(integer_at(oom_report, "group_limit")),
                 WEIR_SHOWN(group_left(oom_report)), WEIR_SHOWN(live));
    else if (is_caused_by_others(oom_report, others, device, live))
        snprintf(text, bytes,
                 "other processes and contexts have %s of the device's %s; the %s that is left is "
                 "too little for this trace, whose peak requested memory is %s",
                 WEIR_SHOWN(others), WEIR_SHOWN(device),
                 WEIR_SHOWN(weir__size_subtract(device, others)), WEIR_SHOWN(live));
    else if (!json_is_integer(has_limit))
        snprintf(text, bytes, "the device is too small for this trace");
    else if (limit >= live)
        snprintf(text, bytes,
                 "%s %s is too small, because of fragmentation (peak requested memory "
                 "%s)",
                 keep_free > 0 ? "the memory that keep-free leaves," : "the limit of",
                 WEIR_SHOWN(limit), WEIR_SHOWN(live));
    else if (keep_free > 0)
        snprintf(text, bytes,
                 "--keep-free %s leaves %s, which is below the trace's peak requested memory of "
                 "%s: keep less free",
                 WEIR_SHOWN(keep_free), WEIR_SHOWN(limit), WEIR_SHOWN(live));
    else
        snprintf(text, bytes, "the limit of %s is below the trace's peak requested memory of %s",
                 WEIR_SHOWN(limit), WEIR_SHOWN(live));
}

/* ---- advice ---- */

/* Returns 1 if requests failed because of the user's limit, else 0. */
static int would_larger_limit_help(const struct benchmark *benchmark, const struct row *row,
                                   const json_t *run) {
    const json_t *report = json_object_get(run, "oom_report");
    uint64_t live = integer_at(run, "requested_peak_bytes");
    uint64_t device = integer_at(run, "device_bytes");

    return benchmark->options.limit.kind != WEIR_AMOUNT_SHARE &&
           row->configuration->uses_command_options && row->busy <= 0 && benchmark->pace <= 0 &&
           json_is_integer(json_object_get(report, "limit")) &&
           integer_at(report, "keep_free") == 0 && live <= device &&
           !is_caused_by_others(report, memory_of_others(run, report), device, live);
}

/* Returns the text of an OOM report with `limit' as the advice.  0 means that no limit is enough. */
static json_t *replace_advice_text(const char *text, uint64_t limit, int is_busy) {
    const char *advice = strstr(text, ").\n"), *rest = strstr(text, "\n  request ");
    char spelled[WEIR_SPELL_BYTES], line[192];

    if (!advice || !rest || rest < advice) /* unreached: every report has both texts */
        return json_string(text);
    weir__bytes_spell(limit, spelled, sizeof spelled);
    snprintf(line, sizeof line,
             "  Try --limit %s (WEIR_LIMIT=%s): this limit is enough for the trace%s.", spelled,
             spelled, is_busy ? " without GPU work" : "");
    return json_pack("s#++", text, (int)(advice + 3 - text),
                     limit > 0 ? line
                               : "  No limit is enough for this trace on this device.  weir bench "
                                 "tries other configurations.",
                     rest);
}

/* Replaces the limit that an OOM report advises.  Removes the advice if `limit' is 0. */
static void set_advice(json_t *report, uint64_t limit, int is_busy) {
    const char *text = json_string_value(json_object_get(report, "text"));
    char spelled[WEIR_SPELL_BYTES];
    json_t *settings = json_array();

    weir__bytes_spell(limit, spelled, sizeof spelled);
    if (limit > 0)
        json_array_append_new(settings, json_pack("{s:s,s:s,s:s}", "flag", "--limit", "variable",
                                                  "WEIR_LIMIT", "value", spelled));
    json_object_set_new(report, "try", settings);
    if (text)
        json_object_set_new(report, "text", replace_advice_text(text, limit, is_busy));
}

/* Appends an OOM report to the file of --oom-report, if there is one. */
static void append_oom_report(const struct benchmark *benchmark, json_t *report) {
    const char *path = weir_cli_file_of(&benchmark->options, WEIR_SETTING_OOM_REPORT);
    const char *text = json_string_value(json_object_get(report, "text"));
    size_t length = path ? strlen(path) : 0;
    json_t *plain;
    FILE *file;
    int good;

    if (!path || !text)
        return;
    file = fopen(path, "ae");
    good = file != NULL;
    if (good && length > 5 && strcmp(path + length - 5, ".json") == 0) {
        plain = json_copy(report);
        json_object_del(plain, "text");
        good = json_dumpf(plain, file, JSON_COMPACT) == 0 && fputc('\n', file) != EOF;
        json_decref(plain);
    } else if (good) {
        good = fputs(text, file) != EOF;
    }
    if ((file && fclose(file) != 0) || !good)
        fprintf(stderr, "weir: cannot write %s: %s\n", path, strerror(errno));
}

static void report_failed_requests(const struct benchmark *benchmark, const struct row *row,
                                   json_t *run, const char *what, uint64_t failed) {
    json_t *report = json_object_get(run, "oom_report"); /* the report of the first failure */
    char why[256], message[RUNNER_MESSAGE_BYTES];
    const char *text;

    write_shortage(run, integer_at(run, "requested_peak_bytes"), why, sizeof why);
    fprintf(stderr, "weir: %s: %" PRIu64 " request%s failed: %s\n", what, failed,
            weir__plural(failed), why);
    if (would_larger_limit_help(benchmark, row, run))
        set_advice(report,
                   find_smallest_limit(benchmark, row->trace, row->configuration->name,
                                       &benchmark->options, 0, message),
                   benchmark->results.busy > 0);
    text = json_string_value(json_object_get(report, "text"));
    if (text &&
        !(benchmark->options.oom_report && strcmp(benchmark->options.oom_report, "off") == 0))
        fputs(text, stderr);
    append_oom_report(benchmark, report);
}

/* If a row's newest run or some requests of the run failed, prints the reason and returns 0.  Otherwise returns 1. */
static int report_failed_run(const struct benchmark *benchmark, const struct row *row, json_t *run,
                             const char *error, const char *what) {
    uint64_t failed = integer_at(run, "failed");

    if (run && failed == 0)
        return 1;
    if (run)
        report_failed_requests(benchmark, row, run, what, failed);
    else if (error[0])
        fprintf(stderr, "weir: %s: %s\n", what, error);
    return 0;
}

/* ---- running ---- */

/* Replays the trace of a row once, in a child process.  Returns the result as a new reference.  On failure, writes the
 * reason to `message' and returns NULL. */
static json_t *run_with_options(const struct benchmark *benchmark, const struct row *row,
                                const weir_options *options, int notes, int timeline,
                                char *message) {
    struct job job;

    job_make(&job, row->configuration->name, row->busy, options, benchmark->device_source);
    job.pace = benchmark->pace;
    job.discards_profile = !notes;
    job.timeline = timeline;
    job.limit = row->limit;
    return runner_run(&job, benchmark->traces[row->trace].trace_fd, message, RUNNER_MESSAGE_BYTES);
}

/* Replays the trace of a row twice: the first replay writes a profile, and the second reads it.  Returns the second
 * result, or NULL with the reason in `message'. */
static json_t *run_learning(const struct benchmark *benchmark, const struct row *row, int timeline,
                            char *message) {
    weir_options options = benchmark->options;
    char folder[PATH_MAX], profile[PATH_MAX + 16];
    json_t *result;

    snprintf(folder, sizeof folder, "%s/weir-bench-XXXXXX", temporary_folder());
    if (!mkdtemp(folder)) {
        snprintf(message, RUNNER_MESSAGE_BYTES, "cannot make a folder in %.200s: %s",
                 temporary_folder(), strerror(errno));
        return NULL;
    }
    snprintf(profile, sizeof profile, "%s/profile", folder);
    options.profile = profile;
    result = run_with_options(benchmark, row, &options, 1, 0, message);
    if (result) {
        json_decref(result);
        result = run_with_options(benchmark, row, &options, 0, timeline, message);
    }
    temporary_remove(folder);
    return result;
}

/* Before the first run of a row, finds the smallest limit for the trace if the configuration needs this limit.  Returns
 * 1 on success.  If no limit is enough, writes the reason to `message' and returns 0. */
static int find_limit(const struct benchmark *benchmark, struct row *row, char *message) {
    message[0] = '\0';
    if (row->limit == 0 && row->configuration->needs_smallest_limit)
        row->limit = find_smallest_limit(benchmark, row->trace, row->configuration->name,
                                         &benchmark->options, row->busy, message);
    if (row->limit || !row->configuration->needs_smallest_limit)
        return 1;
    if (!message[0])
        snprintf(message, RUNNER_MESSAGE_BYTES, "no size serves this trace here");
    return 0;
}

static json_t *run_row(const struct benchmark *benchmark, struct row *row, int notes, int timeline,
                       char *message) {
    if (!find_limit(benchmark, row, message))
        return NULL;
    if (row->configuration->has_learning_run)
        return run_learning(benchmark, row, timeline, message);
    return run_with_options(benchmark, row, &benchmark->options, notes, timeline, message);
}

static void store_run(struct row *row, json_t *run, const char *message) {
    if (run) {
        json_t *timeline = json_object_get(run, "timeline");

        if (timeline)
            row->timeline = json_incref(timeline);
        json_object_del(run, "timeline");
        json_array_append_new(row->runs, run);
        return;
    }
    row->failed_runs++;
    if (!row->error)
        row->error = strdup(message);
}

static int run_row_once(struct benchmark *benchmark, struct progress *progress, struct row *row,
                        uint64_t repeat, int notes) {
    char message[RUNNER_MESSAGE_BYTES], what[TRACE_NAME_BYTES + 64];
    int is_shown = benchmark->timeline_file && repeat == 0, good;
    json_t *run;

    snprintf(what, sizeof what, "%s, %s%s", benchmark->results.traces[row->trace],
             row->configuration->name, row->busy > 0 ? ", busy" : "");
    progress_step(progress, what);
    run = run_row(benchmark, row, notes, is_shown ? (int)(row - benchmark->results.rows) + 1 : 0,
                  message);
    progress_clear(progress);
    if (!run && interrupt_has_arrived()) /* the signal has ended the child process, too */
        return 0;
    good = report_failed_run(benchmark, row, run, message, what);
    progress_done(progress, what, run ? "done" : "failed");
    store_run(row, run, message);
    return good;
}

static int run_all(struct benchmark *benchmark) {
    struct results *results = &benchmark->results;
    size_t count = results->row_count / results->trace_count; /* the number of rows of each trace */
    struct progress progress;
    int good = 1;

    progress_begin(&progress, results->row_count * benchmark->results.repeat);
    for (size_t trace = 0; trace < results->trace_count; trace++)
        for (uint64_t repeat = 0; repeat < benchmark->results.repeat; repeat++)
            for (size_t i = 0; i < count && !interrupt_has_arrived(); i++)
                good &=
                    run_row_once(benchmark, &progress,
                                 &results->rows[trace * count + (i + trace + repeat) % count],
                                 repeat, repeat + 1 == benchmark->results.repeat && i + 1 == count);
    progress_clear(&progress);
    return good;
}

static int create_benchmark_rows(struct benchmark *benchmark) {
    struct results *results = &benchmark->results;
    size_t modes = results->busy > 0 ? 2 : 1;
    size_t count = benchmark->trace_count * results->configuration_count * modes;

    results->traces = calloc(benchmark->trace_count, sizeof *results->traces);
    results->rows = calloc(count, sizeof *results->rows);
    if (!results->traces || !results->rows) {
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    for (size_t i = 0; i < benchmark->trace_count; i++)
        results->traces[i] = benchmark->traces[i].header.name;
    results->trace_count = benchmark->trace_count;
    results->row_count = count;
    for (size_t i = 0; i < count; i++)
        results->rows[i] = (struct row){
            .trace = i / (results->configuration_count * modes),
            .configuration = results->configurations[i / modes % results->configuration_count],
            .busy = i % modes ? results->busy : 0,
            .runs = json_array()};
    return 1;
}

/* ---- files ---- */

/* Writes the events of all rows of the results table to the file of --trace-events.  The file shows each row as a
 * process.  Returns 1 on success.  On failure, prints a message and returns 0. */
static int write_timelines(const struct benchmark *benchmark) {
    FILE *file = benchmark->timeline_file ? fopen(benchmark->timeline_file, "we") : NULL;
    uint64_t missing = 0;
    int good;

    if (!benchmark->timeline_file)
        return 1;
    if (file)
        weir__timeline_begin_file(file);
    for (size_t i = 0; file && i < benchmark->results.row_count; i++) {
        const json_t *timeline = benchmark->results.rows[i].timeline;

        if (timeline)
            fputs(json_string_value(json_object_get(timeline, "timeline")), file);
        missing += (uint64_t)json_integer_value(json_object_get(timeline, "missing"));
    }
    if (file)
        weir__timeline_end_file(file, missing);
    good = file && !ferror(file);
    if (!file || fclose(file) != 0 || !good) {
        fprintf(stderr, "weir: cannot write %s: %s\n", benchmark->timeline_file, strerror(errno));
        return 0;
    }
    if (missing > 0)
        fprintf(stderr, "weir: %s: %" PRIu64 " step%s missing\n", benchmark->timeline_file, missing,
                weir__plural_are(missing));
    return 1;
}

int benchmark_check_outputs(const struct benchmark *benchmark,
                            const struct weir_cli_settings *settings) {
    const struct output outputs[] = {
        {"--json", benchmark->json_file},
        {"--trace-events", benchmark->timeline_file},
        {"--report", benchmark->report},
        {weir_cli_source_name(settings, WEIR_SETTING_OOM_REPORT),
         weir_cli_file_of(&benchmark->options, WEIR_SETTING_OOM_REPORT)},
        {weir_cli_source_name(settings, WEIR_SETTING_PROFILE),
         weir_cli_file_of(&benchmark->options, WEIR_SETTING_PROFILE)}};
    size_t count = sizeof outputs / sizeof outputs[0];

    for (size_t i = 0; i < benchmark->trace_count; i++)
        if (!outputs_differ_from_input(outputs, count, "trace", benchmark->traces[i].path))
            return 2;
    return outputs_differ(outputs, count) ? 0 : 2;
}

int benchmark_prepare(struct benchmark *benchmark) {
    return !benchmark->has_failed && output_check("--json", benchmark->json_file) &&
           output_check("--trace-events", benchmark->timeline_file) &&
           output_check("--report", benchmark->report) && convert_traces(benchmark) &&
           query_benchmark_device(benchmark);
}

/* Writes the files of --trace-events, --json and --report.  Returns the exit code; prints a message on failure. */
static int write_files(const struct benchmark *benchmark, const struct findings *findings) {
    json_t *document = document_json(benchmark, findings);
    int good = write_timelines(benchmark), code = 0;

    good &= !benchmark->json_file || jsonfile_write(benchmark->json_file, document);
    good &= weir_cli_flush_output();
    if (benchmark->report)
        code = report_of(document, benchmark->json_file ? benchmark->json_file : "",
                         benchmark->report);
    json_decref(document);
    return good ? code : 1;
}

int benchmark_run(struct benchmark *benchmark) {
    struct results *results = &benchmark->results;
    struct findings findings = {0};
    int good, code = 1;

    if (!benchmark_prepare(benchmark) || !create_benchmark_rows(benchmark))
        return 1;
    interrupt_watch();
    good = run_all(benchmark);
    if (interrupt_has_arrived()) {
        fprintf(stderr, "weir: interrupted: %zu of %zu runs were made\n", result_runs(results, 0),
                result_planned(results));
        good = 0;
    }
    /* Without a result there is no table and no file. */
    if (result_runs(results, 1) == 0)
        return 1;
    good &= result_align(results);
    for (size_t i = 0; i < results->row_count; i++)
        result_row(&results->rows[i]);
    result_mark(results);
    if (findings_make(results, &findings)) {
        table_print(benchmark_table_file(benchmark), benchmark, &findings);
        code = write_files(benchmark, &findings);
    }
    findings_free(&findings);
    return good ? code : 1;
}

void benchmark_free(struct benchmark *benchmark) {
    for (size_t i = 0; i < benchmark->trace_count; i++) {
        free(benchmark->traces[i].path);
        if (benchmark->traces[i].trace_fd >= 0)
            close(benchmark->traces[i].trace_fd);
    }
    for (size_t i = 0; i < benchmark->results.row_count; i++) {
        json_decref(benchmark->results.rows[i].runs);
        json_decref(benchmark->results.rows[i].timeline);
        free(benchmark->results.rows[i].error);
    }
    free(benchmark->results.rows);
    free(benchmark->results.traces);
    free(benchmark->traces);
    free(benchmark->results.configurations);
}
