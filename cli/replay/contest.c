/* SPDX-License-Identifier: MIT */
/* contest.c: see contest.h.
 *
 * Order: for each trace and repeat all contestants run one after another, and who begins moves on by
 * one each time, so that no contestant always inherits the same predecessor's leftovers (pages that
 * are to be scrubbed, clocks that have risen).  Without work on the streams each has two children: one
 * times iterations, then one single operations.  Iterations come first since it is their times that
 * feel what a predecessor left, and that should not be always the same contestant.
 *
 * Of a trace's runs the last alone notes in a profile (--profile) what it needed, so that all of them begin with the
 * same: medians of runs that learn and runs that have learned would be of neither.
 */
#include "cli/replay/contest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/timeline.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/common/interrupt.h"
#include "cli/common/jsonfile.h"
#include "cli/common/outputs.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/common/shipped.h"
#include "cli/replay/contestant.h"
#include "cli/replay/merge.h"
#include "cli/replay/table.h"
#include "cli/report/report.h"

/* ----------------------------------------------------------------- flags ---- */

enum { SAMPLES_KEY = 0x5650, REPORT_KEY, TIMELINE_KEY };
/* What others have is worth a word if it is more than such a part of the device: a context always has some. */
enum { OTHERS_PART = 16 };

static const struct argp_option flags[] = {
    {"repeat", 'r', "N", 0,
     "Run each pair of trace and configuration N times; the table shows medians.", 0},
    {"iterations", 'i', "N", 0, "Stop after N iterations of each trace.", 0},
    {"busy", 'b', "FACTOR", 0,
     "Replay with GPU work, too: delays on the streams of FACTOR times the time that the trace "
     "took there.",
     0},
    {"pace", 'p', "FACTOR", 0,
     "Wait between calls for FACTOR times the time that the recorded program took.", 0},
    {"json", 'j', "FILE", 0,
     "Write all results to FILE as a JSON array.  '-' is standard output; the table then goes to "
     "standard error.",
     0},
    {"samples", SAMPLES_KEY, NULL, 0,
     "Add data for pictures to the JSON: memory over time, addresses of blocks, whole histograms.  "
     "This takes one or two more replays of each pair.",
     0},
    {"report", REPORT_KEY, "DIR|FILE", 0,
     "Make a page with pictures (weir report): a folder, or one file if its name ends in .html.  "
     "Implies --samples.",
     0},
    {"trace-events", TIMELINE_KEY, "FILE", 0,
     "Write a time line to FILE for Perfetto or Chrome: counters, growth, iterations.  This takes "
     "one more replay of each pair.",
     0},
    {0}};

static void take_count(struct argp_state *state, const char *flag, const char *text,
                       uint64_t *out) {
    struct weir_problem problem;

    if (!weir__count_read(text, 1000000, out, &problem) || *out == 0)
        argp_error(state, "%s '%s': expected a whole number from 1 to 1000000", flag, text);
}

static void take_factor(struct argp_state *state, const char *flag, const char *text, double *out) {
    struct weir_problem problem;
    const char *end;

    if (!weir__factor_read(text, &end, out, &problem) || *end || *out < 0.001 || *out > 1000)
        argp_error(state, "%s '%s': expected a number from 0.001 to 1000, such as 1 or 0.5", flag,
                   text);
}

static error_t parse_flag(int key, char *argument, struct argp_state *state) {
    struct contest *contest = state->input;

    switch (key) {
    case 'r':
        take_count(state, "--repeat", argument, &contest->repeat);
        return 0;
    case 'i':
        take_count(state, "--iterations", argument, &contest->iterations);
        return 0;
    case 'b':
        take_factor(state, "--busy", argument, &contest->busy_factor);
        return 0;
    case 'p':
        take_factor(state, "--pace", argument, &contest->pace);
        return 0;
    case 'j':
        contest->json_file = weir_cli_file(state, "--json", argument, 1);
        return 0;
    case TIMELINE_KEY:
        contest->timeline_file = weir_cli_file(state, "--trace-events", argument, 0);
        return 0;
    case SAMPLES_KEY:
        contest->samples = 1;
        return 0;
    case REPORT_KEY:
        if (!*argument || strcmp(argument, "-") == 0)
            argp_error(state,
                       "--report '%s': expected a folder, or a file whose name ends in .html",
                       argument);
        contest->samples = 1;
        contest->report = argument;
        return 0;
    case ARGP_KEY_END:
        if (contest->samples && !contest->report && !contest->json_file)
            argp_error(state, "--samples adds to the JSON: expected --json FILE, too");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp contest_argp = {.options = flags, .parser = parse_flag};

void contest_init(struct contest *contest, int argc, char **argv) {
    memset(contest, 0, sizeof *contest);
    contest->repeat = 1;
    contest->argc = argc;
    contest->argv = argv;
}

/* ---------------------------------------------------------------- traces ---- */

static int add_path(struct contest *contest, char *path) {
    struct contest_trace *traces =
        path ? reallocarray(contest->traces, contest->trace_count + 1, sizeof *traces) : NULL;

    if (!traces) {
        free(path);
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    contest->traces = traces;
    memset(&traces[contest->trace_count], 0, sizeof *traces);
    traces[contest->trace_count].path = path;
    traces[contest->trace_count++].tape_fd = -1;
    return 1;
}

int contest_add_trace(struct contest *contest, const char *argument) {
    return add_path(contest, shipped_resolve(argument));
}

int contest_add_shipped(struct contest *contest) {
    size_t count;
    char **paths = shipped_list(&count);
    int good = 1;

    if (!paths) {
        const char *folder = shipped_folder();

        fprintf(stderr, "weir: no traces %s%s: name some as arguments\n",
                folder ? "in " : "are installed", folder ? folder : "");
        return 0;
    }
    for (size_t i = 0; i < count && good; i++)
        good = add_path(contest, strdup(paths[i]));
    shipped_free(paths, count);
    return good;
}

/* Why that file is no trace. */
static void tell_no_trace(const char *path, const char *message) {
    fprintf(stderr, "weir: %s: %s\n", strcmp(path, "-") == 0 ? "stdin" : path, message);
    shipped_advise(path);
}

/* Reads all; a bad one is told, and the others are still checked. */
static int make_tapes(struct contest *contest) {
    char message[RUNNER_MESSAGE_BYTES];
    int good = 1;

    for (size_t i = 0; i < contest->trace_count; i++) {
        struct contest_trace *trace = &contest->traces[i];

        trace->tape_fd =
            tape_make(trace->path, contest->iterations, &trace->header, message, sizeof message);
        if (trace->tape_fd >= 0 && trace->header.marks < 2 && !contest->limits)
            fprintf(stderr, "weir: %s: the trace has %s, so there is no steady time%s\n",
                    trace->header.name, trace->header.marks ? "only one mark" : "no marks",
                    trace->header.is_converted
                        ? ""
                        : ".  Record with --mark-at-nvtx NAME, or call weir_mark() in the program; "
                          "--mark-at-sync finds marks only where the program waits for the device");
        if (trace->tape_fd >= 0) {
            tape_tell_left_out(trace->header.name, trace->header.left_out);
            continue;
        }
        tell_no_trace(trace->path, message);
        good = 0;
    }
    return good;
}

/* ------------------------------------------------------------ thresholds ---- */

const int contest_thresholds[CONTEST_THRESHOLDS] = {0, 25, 50, 75, CONTEST_THRESHOLD_MAX};

void contest_threshold_spell(const struct outcome *outcome, char *text, size_t bytes) {
    int percent = contest_thresholds[outcome->threshold];

    if (percent == CONTEST_THRESHOLD_MAX)
        snprintf(text, bytes, "max");
    else
        snprintf(text, bytes, "%d%%", percent);
}

static weir_amount threshold_of(const struct contest *contest, const struct outcome *outcome) {
    uint64_t live = contest->traces[outcome->trace].header.live_peak_bytes;
    uint64_t part = (uint64_t)contest_thresholds[outcome->threshold];

    if (contest_thresholds[outcome->threshold] == CONTEST_THRESHOLD_MAX)
        return (weir_amount){0, WEIR_AMOUNT_MAX, 0};
    return (weir_amount){live / 100 * part + live % 100 * part / 100, WEIR_AMOUNT_BYTES, 0};
}

/* ------------------------------------------------------------------ JSON ---- */

/* An interrupt came first. */
static int was_left_out(const struct outcome *outcome) {
    return !outcome->result && !outcome->error;
}

static json_t *results_json(const struct contest *contest) {
    json_t *array = json_array(), *common = jsonfile_common(contest->argc, contest->argv);

    for (size_t i = 0; i < contest->outcome_count; i++) {
        const struct outcome *outcome = &contest->outcomes[i];
        json_t *object;

        if (was_left_out(outcome))
            continue;
        object = outcome->result
                     ? json_copy(outcome->result)
                     : json_pack("{s:s,s:s,s:s,s:b,s:s}", "trace",
                                 contest->traces[outcome->trace].header.name, "configuration",
                                 contest->contestants[outcome->contestant], "device",
                                 contest->device, "modelled", contest->modelled, "error",
                                 outcome->error ? outcome->error : "");

        if (contest->modelled)
            json_object_set_new(object, "model_profile", json_string(weir_cli_model_profile()));
        if (outcome->busy_factor > 0)
            json_object_set_new(object, "busy", json_real(outcome->busy_factor));
        if (contest->pace > 0)
            json_object_set_new(object, "pace", json_real(contest->pace));
        if (contest->thresholds) {
            char threshold[16];

            contest_threshold_spell(outcome, threshold, sizeof threshold);
            json_object_set_new(object, "threshold_over_requested", json_string(threshold));
        }
        json_object_set_new(object, "repeat", json_integer((json_int_t)(i % contest->repeat) + 1));
        json_object_update(object, common);
        json_array_append_new(array, object);
    }
    json_decref(common);
    return array;
}

FILE *contest_table_file(const struct contest *contest) {
    return contest->json_file && strcmp(contest->json_file, "-") == 0 ? stderr : stdout;
}

int contest_write(const struct contest *contest, json_t *array) {
    int good = !contest->json_file || jsonfile_write(contest->json_file, array);

    json_decref(array);
    return weir_cli_written() && good;
}

/* --------------------------------------------------------------- running ---- */

/* Those that the device cannot serve are told and left out; 0 if that leaves none. */
static int leave_out(struct contest *contest, const json_t *lacks) {
    size_t kept = 0;

    for (size_t i = 0; i < contest->contestant_count; i++) {
        const char *name = contest->contestants[i];
        const char *what = json_string_value(json_object_get(lacks, name));

        if (what)
            fprintf(stderr, "weir: %s is left out: it needs %s, which %s lacks\n", name, what,
                    contest->device);
        else
            contest->contestants[kept++] = name;
    }
    contest->contestant_count = kept;
    if (kept == 0)
        fputs("weir: no configuration is left\n", stderr);
    return kept > 0;
}

/* Which device it will be: asked of a child, which says what is wrong. */
static int look_at_device(struct contest *contest) {
    static char spec[64]; /* options.device refers to it */
    char message[RUNNER_MESSAGE_BYTES];
    struct job job;
    json_t *result;
    int good;

    job_make(&job, NULL, contest->busy_factor, &contest->options, contest->device_source);
    job.trial = contest->limits;
    result = runner_run(&job, -1, message, sizeof message);
    if (!result) {
        if (message[0])
            fprintf(stderr, "weir: looking at the device: %s\n", message);
        return 0;
    }
    snprintf(contest->device, sizeof contest->device, "%s",
             json_string_value(json_object_get(result, "device")));
    snprintf(spec, sizeof spec, "%s", json_string_value(json_object_get(result, "spec")));
    contest->options.device = spec[0] ? spec : NULL;
    contest->modelled = json_is_true(json_object_get(result, "modelled"));
    contest->driver_version = (int)json_integer_value(json_object_get(result, "driver_version"));
    good = leave_out(contest, json_object_get(result, "lacks"));
    json_decref(result);
    return good;
}

/* "steady 1.234 ms": for the line of a step. */
static void tell_outcome(const struct outcome *outcome, char *text, size_t bytes) {
    const json_t *first = json_object_get(outcome->result, "first_iteration_ns");
    const json_t *steady = json_object_get(outcome->result, "steady_alloc_ns");

    if (!outcome->result)
        snprintf(text, bytes, "failed");
    else if (json_is_integer(first) && json_is_integer(steady))
        snprintf(text, bytes, "first %.3f ms, steady %.3f ms",
                 (double)json_integer_value(first) / 1e6, (double)json_integer_value(steady) / 1e6);
    else
        snprintf(text, bytes, "done");
}

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Of the device: what there was before the replay, or came since, if that is known. */
static uint64_t others_in(const json_t *result, const json_t *verdict) {
    uint64_t before = integer_at(result, "device_taken_bytes");
    uint64_t since = integer_at(verdict, "others");

    return since > before ? since : before;
}

/* What the others leave decides: there is no lower limit; keeping less free would not do. */
static int is_others(const json_t *verdict, uint64_t others, uint64_t device, uint64_t live) {
    const json_t *limit = json_object_get(verdict, "limit");
    uint64_t there = weir__size_less(device, others);

    if (others <= device / OTHERS_PART)
        return 0;
    return integer_at(verdict, "keep_free") > 0
               ? there < live
               : !json_is_integer(limit) || (uint64_t)json_integer_value(limit) > there;
}

void contest_tell_shortage(const json_t *result, uint64_t live, char *text, size_t bytes) {
    const json_t *verdict = json_object_get(result, "oom_report");
    const json_t *limit = json_object_get(verdict, "limit");
    uint64_t leave = integer_at(verdict, "keep_free"), device = integer_at(result, "device_bytes");
    uint64_t others = others_in(result, verdict);
    char needed[24], there[24], left[24], had[24];

    weir__bytes_show(live, needed, sizeof needed);
    if (device < live) {
        weir__bytes_show(device, there, sizeof there);
        snprintf(text, bytes,
                 "the device has %s, and the trace's peak requested memory is %s: no setting helps",
                 there, needed);
    } else if (is_others(verdict, others, device, live)) {
        weir__bytes_show(device, there, sizeof there);
        weir__bytes_show(others, had, sizeof had);
        weir__bytes_show(weir__size_less(device, others), left, sizeof left);
        snprintf(text, bytes,
                 "other processes and contexts have %s of the device's %s; the %s that is left is "
                 "too little for this trace, whose peak requested memory is %s",
                 had, there, left, needed);
    } else if (json_is_integer(limit) && (uint64_t)json_integer_value(limit) < live) {
        weir__bytes_show((uint64_t)json_integer_value(limit), there, sizeof there);
        weir__bytes_show(leave, left, sizeof left);
        if (leave > 0)
            snprintf(
                text, bytes,
                "--keep-free %s lets it have %s, below the trace's peak requested memory of %s: "
                "keep less free",
                left, there, needed);
        else
            snprintf(text, bytes,
                     "the limit of %s is below the trace's peak requested memory of %s", there,
                     needed);
    } else if (json_is_integer(limit)) {
        weir__bytes_show((uint64_t)json_integer_value(limit), there, sizeof there);
        snprintf(text, bytes,
                 "%s %s is too small for how the blocks of this trace lie (peak requested memory "
                 "%s)",
                 leave > 0 ? "what keep-free leaves," : "the limit of", there, needed);
    } else {
        snprintf(text, bytes, "the device is too small for this trace");
    }
}

/* ---------------------------------------------------------------- advice ---- */

/* What pools grow by, and limits are tried by; and how often one is tried. */
static const uint64_t limit_unit = UINT64_C(32) << 20;
enum { LIMIT_TRIALS = 8 };

/* The limit is what the user set, and not what the device or others leave. */
static int is_for_limit(const struct contest *contest, const struct outcome *outcome) {
    const json_t *verdict = json_object_get(outcome->result, "oom_report");
    uint64_t live = integer_at(outcome->result, "requested_peak_bytes");
    uint64_t device = integer_at(outcome->result, "device_bytes");

    return contest->options.limit.kind != WEIR_AMOUNT_SHARE &&
           strcmp(contest->contestants[outcome->contestant], "replay") == 0 &&
           outcome->busy_factor <= 0 && contest->pace <= 0 &&
           json_is_integer(json_object_get(verdict, "limit")) &&
           integer_at(verdict, "keep_free") == 0 && live <= device &&
           !is_others(verdict, others_in(outcome->result, verdict), device, live);
}

/* Whether all requests are served under that limit, 0: under none; what was reserved then. */
static int try_limit(const struct contest *contest, const struct outcome *outcome, uint64_t limit,
                     uint64_t *reserved) {
    char message[RUNNER_MESSAGE_BYTES];
    struct job job;
    json_t *trial;
    int served;

    job_make(&job, contest->contestants[outcome->contestant], 0, &contest->options,
             contest->device_source);
    job.options.limit = (weir_amount){0, WEIR_AMOUNT_DEFAULT, 0};
    job.options.log = WEIR_LOG_NONE;
    job.forgets = 1;
    job.trial = 1;
    job.limit = limit;
    trial = runner_run(&job, contest->traces[outcome->trace].tape_fd, message, sizeof message);
    served = json_is_true(json_object_get(trial, "served"));
    *reserved = integer_at(trial, "reserved_peak_bytes");
    json_decref(trial);
    return served;
}

/* A limit under which the trace has just been replayed; 0: none was found. */
static uint64_t limit_that_serves(const struct contest *contest, const struct outcome *outcome) {
    uint64_t device = integer_at(outcome->result, "device_bytes"), limit, peak, ignored;

    if (!try_limit(contest, outcome, 0, &peak)) /* a fixed arena has one all the same */
        peak = 0;
    limit = integer_at(outcome->result, "requested_peak_bytes");
    limit = ((peak > limit ? peak : limit) + limit_unit - 1) / limit_unit * limit_unit;
    for (int i = 0; i < LIMIT_TRIALS && limit <= device && !interrupt_came(); i++) {
        if (try_limit(contest, outcome, limit, &ignored))
            return limit;
        limit += (limit / 16 + limit_unit - 1) / limit_unit * limit_unit;
    }
    return 0;
}

/* The text of a report, with what the trials say as its advice. */
static json_t *advised_text(const char *text, uint64_t limit, int is_busy) {
    const char *advice = strstr(text, ").\n"), *cause = strstr(text, "\n  cause ");
    char spelled[WEIR_SPELL_BYTES], line[192];

    if (!advice || !cause || cause < advice) /* unreached: every report has both */
        return json_string(text);
    weir__bytes_spell(limit, spelled, sizeof spelled);
    snprintf(line, sizeof line,
             "  Try --limit %s (WEIR_LIMIT=%s): with it this trace is replayed%s.", spelled,
             spelled, is_busy ? " without GPU work" : "");
    return json_pack(
        "s#++", text, (int)(advice + 3 - text),
        limit > 0 ? line
                  : "  No limit serves this trace here: weir bench tries other configurations.",
        cause);
}

/* Of the report of the first failure. */
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
        json_object_set_new(report, "text", advised_text(text, limit, is_busy));
}

/* Adds the report to the file that is to have it. */
static void add_report(const struct contest *contest, json_t *report) {
    const char *path = weir_cli_file_of(&contest->options, WEIR_SETTING_VERDICT);
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

/* A request failed. */
static void tell_shortage(const struct contest *contest, const struct outcome *outcome,
                          const char *what, uint64_t failed) {
    json_t *report = json_object_get(outcome->result, "oom_report"); /* of the first */
    const char *text;
    char why[256];

    contest_tell_shortage(outcome->result, integer_at(outcome->result, "requested_peak_bytes"), why,
                          sizeof why);
    fprintf(stderr, "weir: %s: %" PRIu64 " request%s failed: %s\n", what, failed,
            weir__plural(failed), why);
    if (is_for_limit(contest, outcome))
        set_advice(report, limit_that_serves(contest, outcome), contest->busy_factor > 0);
    text = json_string_value(json_object_get(report, "text"));
    if (text && !(contest->options.verdict && strcmp(contest->options.verdict, "off") == 0))
        fputs(text, stderr);
    add_report(contest, report);
}

/* What went wrong, on standard error, and why, unless that is off; 1 if all went well. */
static int tell_failure(const struct contest *contest, const struct outcome *outcome,
                        const char *what) {
    uint64_t failed = integer_at(outcome->result, "failed");

    if (outcome->result && failed == 0)
        return 1;
    if (outcome->result)
        tell_shortage(contest, outcome, what, failed);
    else if (outcome->error && outcome->error[0])
        fprintf(stderr, "weir: %s: %s\n", what, outcome->error);
    return 0;
}

/* Of several runs of a pair one will do. */
static int is_sampled(const struct contest *contest, const struct outcome *outcome) {
    return contest->samples && (size_t)(outcome - contest->outcomes) % contest->repeat == 0;
}

static json_t *timeline_of(const json_t *result) {
    return json_object_get(json_object_get(result, "samples"), "timeline");
}

/* What is in use weir tells only when it is asked, which changes what its caches keep: that is one replay
 * more.  What went wrong, which may be `message`; NULL if all went well. */
static const char *add_samples(const struct job *measured, int tape_fd, json_t *extras,
                               char *message, size_t message_bytes) {
    struct job job = *measured;
    json_t *samples, *timeline;

    job.samples = JOB_SAMPLES_WATCH;
    samples = runner_run(&job, tape_fd, message, message_bytes);
    if (!samples)
        return message;
    json_object_update(extras, samples);
    json_decref(samples);
    timeline = timeline_of(extras);
    if (json_object_get(timeline, "in_use_high"))
        return NULL;
    job.samples = JOB_SAMPLES_ASK;
    samples = runner_run(&job, tape_fd, message, message_bytes);
    if (!samples)
        return message;
    json_object_set(timeline, "in_use_low", json_object_get(timeline_of(samples), "in_use_low"));
    json_object_set(timeline, "in_use_high", json_object_get(timeline_of(samples), "in_use_high"));
    json_decref(samples);
    return NULL;
}

/* Of the first repeat. */
static int has_timeline(const struct contest *contest, const struct outcome *outcome) {
    return contest->timeline_file && (size_t)(outcome - contest->outcomes) % contest->repeat == 0;
}

/* Once more, to see what happens when.  0 with a message. */
static int add_timeline(const struct contest *contest, const struct outcome *outcome,
                        const struct job *measured, json_t *extras, char *message,
                        size_t message_bytes) {
    struct job job = *measured;
    json_t *timeline;

    job.timeline = (int)((size_t)(outcome - contest->outcomes) / contest->repeat) + 1;
    timeline = runner_run(&job, contest->traces[outcome->trace].tape_fd, message, message_bytes);
    return timeline && json_object_set_new(extras, "timeline", timeline) == 0;
}

/* What further children tell, before the one that is measured call by call: it alone writes what was learned, so all
 * begin with the same.  What is logged is its to say, too, and why something was refused.  NULL with the reason in
 * `message`. */
static json_t *run_others(const struct contest *contest, const struct outcome *outcome,
                          const struct job *measured, json_t **stretches, char *message,
                          size_t message_bytes) {
    int tape_fd = contest->traces[outcome->trace].tape_fd;
    json_t *extras = json_object();
    struct job job = *measured;

    job.forgets = 1;
    job.options.log = WEIR_LOG_NONE;
    if (outcome->busy_factor <= 0 && contest->pace <= 0) {
        job.stretches = 1;
        *stretches = runner_run(&job, tape_fd, message, message_bytes);
        if (!*stretches)
            goto fail;
        job.stretches = 0;
    }
    if (is_sampled(contest, outcome) && add_samples(&job, tape_fd, extras, message, message_bytes))
        goto fail;
    if (has_timeline(contest, outcome) &&
        !add_timeline(contest, outcome, &job, extras, message, message_bytes))
        goto fail;
    return extras;

fail:
    json_decref(*stretches);
    *stretches = NULL;
    json_decref(extras);
    return NULL;
}

/* As runner_run. */
static json_t *run_measured(const struct contest *contest, const struct outcome *outcome,
                            const weir_options *options, char *message, size_t message_bytes) {
    int tape_fd = contest->traces[outcome->trace].tape_fd;
    json_t *stretches = NULL, *result, *extras;
    const char *wrong = NULL;
    struct job job;

    job_make(&job, contest->contestants[outcome->contestant], outcome->busy_factor, options,
             contest->device_source);
    job.has_threshold = contest->thresholds;
    if (contest->thresholds)
        job.threshold = threshold_of(contest, outcome);
    job.pace = contest->pace;
    job.forgets = !outcome->notes;
    extras = run_others(contest, outcome, &job, &stretches, message, message_bytes);
    if (!extras)
        return NULL;
    job.buckets = contest->samples;
    result = runner_run(&job, tape_fd, message, message_bytes);
    if (result && stretches)
        wrong = merge_stretches(result, stretches);
    if (result && json_object_update(result, extras) != 0)
        wrong = "out of memory";
    json_decref(stretches);
    json_decref(extras);
    if (!wrong)
        return result;
    snprintf(message, message_bytes, "%s", wrong);
    json_decref(result);
    return NULL;
}

/* The first run, which does not count, leaves a profile to those that do. */
static json_t *run_learning(const struct contest *contest, const struct outcome *outcome,
                            char *message, size_t message_bytes) {
    const char *place = getenv("TMPDIR");
    weir_options options = contest->options;
    char profile[WEIR_SHOW_BYTES];
    json_t *result = NULL;
    struct job job;
    int file;

    if (!place || !*place)
        place = "/tmp";
    snprintf(profile, sizeof profile, "%s/weir-profile-XXXXXX", place);
    file = mkstemp(profile);
    if (file < 0) {
        snprintf(message, message_bytes, "cannot make a file in %.200s: %s", place,
                 strerror(errno));
        return NULL;
    }
    close(file);
    options.profile = profile;
    job_make(&job, contest->contestants[outcome->contestant], outcome->busy_factor, &options,
             contest->device_source);
    job.pace = contest->pace;
    job.options.log = WEIR_LOG_NONE;
    result = runner_run(&job, contest->traces[outcome->trace].tape_fd, message, message_bytes);
    if (result) {
        json_decref(result);
        result = run_measured(contest, outcome, &options, message, message_bytes);
    }
    unlink(profile);
    return result;
}

/* As runner_run. */
static json_t *run_children(const struct contest *contest, const struct outcome *outcome,
                            char *message, size_t message_bytes) {
    const struct contestant *contestant =
        contestant_find(contest->contestants[outcome->contestant]);

    if (contestant && contestant->learns)
        return run_learning(contest, outcome, message, message_bytes);
    return run_measured(contest, outcome, &contest->options, message, message_bytes);
}

static int run_one(struct contest *contest, struct progress *progress, struct outcome *outcome) {
    const struct contest_trace *trace = &contest->traces[outcome->trace];
    const char *contestant = contest->contestants[outcome->contestant];
    char message[RUNNER_MESSAGE_BYTES], what[TAPE_NAME_BYTES + 64], told[128], threshold[16] = "";

    if (contest->thresholds)
        contest_threshold_spell(outcome, threshold, sizeof threshold);
    snprintf(what, sizeof what, "%s, %s%s%s%s", trace->header.name, contestant,
             contest->thresholds ? ", threshold " : "", threshold,
             outcome->busy_factor > 0 ? ", busy" : "");
    progress_step(progress, what);
    outcome->result = run_children(contest, outcome, message, sizeof message);
    if (!outcome->result && interrupt_came()) { /* the signal went to the child, too */
        progress_clear(progress);
        return 0;
    }
    outcome->timeline = json_incref(json_object_get(outcome->result, "timeline"));
    json_object_del(outcome->result, "timeline");
    if (!outcome->result)
        outcome->error = strdup(message);
    tell_outcome(outcome, told, sizeof told);
    progress_clear(progress);
    if (tell_failure(contest, outcome, what)) {
        progress_done(progress, what, told);
        return 1;
    }
    progress_done(progress, what, told);
    return 0;
}

static int run_all(struct contest *contest) {
    size_t count = contest->contestant_count * contest_modes(contest);
    struct progress progress;
    int good = 1;

    progress_begin(&progress, contest->outcome_count);
    for (size_t trace = 0; trace < contest->trace_count; trace++)
        for (uint64_t repeat = 0; repeat < contest->repeat; repeat++)
            for (size_t i = 0; i < count; i++) {
                size_t group = trace * count + (i + trace + repeat) % count;
                struct outcome *outcome = &contest->outcomes[group * contest->repeat + repeat];

                if (interrupt_came())
                    break;
                outcome->notes = repeat + 1 == contest->repeat && i + 1 == count;
                good &= run_one(contest, &progress, outcome);
            }
    progress_clear(&progress);
    return good;
}

static int make_outcomes(struct contest *contest) {
    size_t modes = contest_modes(contest), count = contest->contestant_count * modes;
    size_t busy_modes = contest->busy_factor > 0 ? 2 : 1;

    contest->outcome_count = contest->trace_count * count * contest->repeat;
    contest->outcomes = calloc(contest->outcome_count, sizeof *contest->outcomes);
    if (!contest->outcomes) {
        contest->outcome_count = 0;
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    for (size_t i = 0; i < contest->outcome_count; i++) {
        size_t group = i / contest->repeat, mode = group % modes;

        contest->outcomes[i].trace = group / count;
        contest->outcomes[i].contestant = group % count / modes;
        contest->outcomes[i].threshold = mode / busy_modes;
        contest->outcomes[i].busy_factor = mode % busy_modes ? contest->busy_factor : 0;
    }
    return 1;
}

static int any_result(const struct contest *contest) {
    for (size_t i = 0; i < contest->outcome_count; i++)
        if (contest->outcomes[i].result)
            return 1;
    return 0;
}

/* All that was seen, a process each; 1, or 0 with a message printed. */
static int write_timelines(const struct contest *contest) {
    FILE *file = contest->timeline_file ? fopen(contest->timeline_file, "we") : NULL;
    uint64_t missing = 0;
    int good;

    if (!contest->timeline_file)
        return 1;
    if (file) {
        weir__timeline_begin_file(file);
        for (size_t i = 0; i < contest->outcome_count; i++) {
            const json_t *timeline = contest->outcomes[i].timeline;

            if (!timeline)
                continue;
            fputs(json_string_value(json_object_get(timeline, "timeline")), file);
            missing += (uint64_t)json_integer_value(json_object_get(timeline, "missing"));
        }
        weir__timeline_end_file(file, missing);
    }
    good = file && !ferror(file);
    if (!file || fclose(file) != 0 || !good) {
        fprintf(stderr, "weir: cannot write %s: %s\n", contest->timeline_file, strerror(errno));
        return 0;
    }
    if (missing > 0)
        fprintf(stderr, "weir: %s: %" PRIu64 " step%s missing\n", contest->timeline_file, missing,
                weir__plural_are(missing));
    return 1;
}

int contest_check_outputs(const struct contest *contest, const struct weir_cli_settings *settings) {
    const struct output outputs[] = {{"--json", contest->json_file},
                                     {"--trace-events", contest->timeline_file},
                                     {"--report", contest->report},
                                     {weir_cli_label(settings, WEIR_SETTING_VERDICT),
                                      weir_cli_file_of(&contest->options, WEIR_SETTING_VERDICT)},
                                     {weir_cli_label(settings, WEIR_SETTING_PROFILE),
                                      weir_cli_file_of(&contest->options, WEIR_SETTING_PROFILE)}};
    size_t count = sizeof outputs / sizeof outputs[0];

    for (size_t i = 0; i < contest->trace_count; i++)
        if (!outputs_spare(outputs, count, "trace", contest->traces[i].path))
            return 2;
    return outputs_differ(outputs, count) ? 0 : 2;
}

int contest_prepare(struct contest *contest) {
    return jsonfile_check("--json", contest->json_file) &&
           jsonfile_check("--trace-events", contest->timeline_file) &&
           (!contest->report || report_check("--report", contest->report)) && make_tapes(contest) &&
           look_at_device(contest);
}

static int tell_interrupt(const struct contest *contest) {
    size_t done = 0;

    for (size_t i = 0; i < contest->outcome_count; i++)
        done += !was_left_out(&contest->outcomes[i]);
    fprintf(stderr, "weir: interrupted: %zu of %zu runs were made\n", done, contest->outcome_count);
    return 0;
}

int contest_run(struct contest *contest) {
    json_t *results;
    int good, code = 0;

    if (!contest_prepare(contest) || !make_outcomes(contest))
        return 1;
    interrupt_watch();
    good = run_all(contest);
    if (interrupt_came())
        good = tell_interrupt(contest);
    if (!any_result(contest)) /* nothing to show, and no file that says nothing */
        return 1;
    table_print(contest_table_file(contest), contest);
    good &= write_timelines(contest);
    results = results_json(contest);
    good &= contest_write(contest, json_incref(results));
    if (contest->report)
        code =
            report_of(results, contest->json_file ? contest->json_file : "none", contest->report);
    json_decref(results);
    return good ? code : 1;
}

void contest_free(struct contest *contest) {
    for (size_t i = 0; i < contest->trace_count; i++) {
        free(contest->traces[i].path);
        if (contest->traces[i].tape_fd >= 0)
            close(contest->traces[i].tape_fd);
    }
    for (size_t i = 0; i < contest->outcome_count; i++) {
        json_decref(contest->outcomes[i].result);
        json_decref(contest->outcomes[i].timeline);
        free(contest->outcomes[i].error);
    }
    free(contest->traces);
    free(contest->outcomes);
    free(contest->contestants);
}
