/* SPDX-License-Identifier: MIT */
/* contest.c: every configuration on every trace; see contest.h.
 *
 * Order: for each trace and repeat all configurations run one after another, and who begins moves on by one each time, so
 * that no configuration always inherits the same predecessor's leftovers (pages that are to be scrubbed, clocks that have
 * risen).
 *
 * Of a trace's runs the last alone notes in a profile (--profile) what it needed, so that all of them begin with the same:
 * medians of runs that learn and runs that have learned would be of neither.
 */
#include "cli/replay/contest_inside.h"

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
#include "cli/replay/configuration.h"
#include "cli/replay/table.h"
#include "cli/report/report.h"

const int contest_thresholds[CONTEST_THRESHOLDS] = {0, 25, 50, 75, CONTEST_THRESHOLD_MAX};

void contest_threshold_spell(const struct outcome *outcome, char *text, size_t bytes) {
    int percent = contest_thresholds[outcome->threshold];

    if (percent == CONTEST_THRESHOLD_MAX)
        snprintf(text, bytes, "max");
    else
        snprintf(text, bytes, "%d%%", percent);
}

/* ---- JSON ---- */

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
                                 contest->configurations[outcome->configuration], "device",
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

/* ---- running ---- */

/* Those that the device cannot serve are told and left out; 0 if that leaves none. */
static int leave_out(struct contest *contest, const json_t *lacks) {
    size_t kept = 0;

    for (size_t i = 0; i < contest->configuration_count; i++) {
        const char *name = contest->configurations[i];
        const char *what = json_string_value(json_object_get(lacks, name));

        if (what)
            fprintf(stderr, "weir: %s is left out: it needs %s, which %s lacks\n", name, what,
                    contest->device);
        else
            contest->configurations[kept++] = name;
    }
    contest->configuration_count = kept;
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

static int run_one(struct contest *contest, struct progress *progress, struct outcome *outcome) {
    const struct contest_trace *trace = &contest->traces[outcome->trace];
    const char *configuration = contest->configurations[outcome->configuration];
    char message[RUNNER_MESSAGE_BYTES], what[TAPE_NAME_BYTES + 64], told[128], threshold[16] = "";

    if (contest->thresholds)
        contest_threshold_spell(outcome, threshold, sizeof threshold);
    snprintf(what, sizeof what, "%s, %s%s%s%s", trace->header.name, configuration,
             contest->thresholds ? ", threshold " : "", threshold,
             outcome->busy_factor > 0 ? ", busy" : "");
    progress_step(progress, what);
    outcome->result = contest_run_pair(contest, outcome, message, sizeof message);
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
    if (contest_tell_failure(contest, outcome, what)) {
        progress_done(progress, what, told);
        return 1;
    }
    progress_done(progress, what, told);
    return 0;
}

static int run_all(struct contest *contest) {
    size_t count = contest->configuration_count * contest_modes(contest);
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
    size_t modes = contest_modes(contest), count = contest->configuration_count * modes;
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
        contest->outcomes[i].configuration = group % count / modes;
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
           (!contest->report || report_check("--report", contest->report)) &&
           contest_make_tapes(contest) && look_at_device(contest);
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
    free(contest->configurations);
}
