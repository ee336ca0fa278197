/* SPDX-License-Identifier: MIT */
/* contest_shortage.c: explains why requests of a replay failed, and finds the smallest limit that serves a trace,
 * by trials. */
#include "cli/replay/contest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/text.h"
#include "cli/common/runner.h"
#include "cli/replay/configuration.h"

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* Messages mention memory of other processes if it is more than this part of the device, since every context has
 * some. */
enum { OTHERS_PART = 16 };

/* Returns the memory that other processes have of the device: before the replay, or by the OOM report if that says
 * more. */
static uint64_t others_in(const json_t *result, const json_t *oom_report) {
    uint64_t before = integer_at(result, "device_taken_bytes");
    uint64_t since = integer_at(oom_report, "others");

    return since > before ? since : before;
}

/* Returns 1 if other processes' memory caused the failure. */
static int is_others(const json_t *oom_report, uint64_t others, uint64_t device, uint64_t live) {
    const json_t *limit = json_object_get(oom_report, "limit");
    uint64_t there = weir__size_less(device, others);

    if (others <= device / OTHERS_PART)
        return 0;
    return integer_at(oom_report, "keep_free") > 0
               ? there < live
               : !json_is_integer(limit) || (uint64_t)json_integer_value(limit) > there;
}

/* Returns the most that this process may reserve under the limit of its process group. */
static uint64_t group_left(const json_t *oom_report) {
    return integer_at(oom_report, "reserved") +
           weir__size_less(integer_at(oom_report, "group_limit"),
                           integer_at(oom_report, "group_used"));
}

static int is_group(const json_t *oom_report, uint64_t live) {
    return json_is_string(json_object_get(oom_report, "process_group")) &&
           group_left(oom_report) < live;
}

/* Writes why requests failed in a trace with that peak requested memory. */
static void put_shortage(const json_t *result, uint64_t live, char *text, size_t bytes) {
    const json_t *oom_report = json_object_get(result, "oom_report");
    const json_t *has_limit = json_object_get(oom_report, "limit");
    uint64_t limit = integer_at(oom_report, "limit"),
             keep_free = integer_at(oom_report, "keep_free");
    uint64_t device = integer_at(result, "device_bytes"), others = others_in(result, oom_report);

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
    else if (is_others(oom_report, others, device, live))
        snprintf(text, bytes,
                 "other processes and contexts have %s of the device's %s; the %s that is left is "
                 "too little for this trace, whose peak requested memory is %s",
                 WEIR_SHOWN(others), WEIR_SHOWN(device),
                 WEIR_SHOWN(weir__size_less(device, others)), WEIR_SHOWN(live));
    else if (!json_is_integer(has_limit))
        snprintf(text, bytes, "the device is too small for this trace");
    else if (limit >= live)
        snprintf(text, bytes,
                 "%s %s is too small for how the blocks of this trace lie (peak requested memory "
                 "%s)",
                 keep_free > 0 ? "what keep-free leaves," : "the limit of", WEIR_SHOWN(limit),
                 WEIR_SHOWN(live));
    else if (keep_free > 0)
        snprintf(text, bytes,
                 "--keep-free %s lets it have %s, below the trace's peak requested memory of %s: "
                 "keep less free",
                 WEIR_SHOWN(keep_free), WEIR_SHOWN(limit), WEIR_SHOWN(live));
    else
        snprintf(text, bytes, "the limit of %s is below the trace's peak requested memory of %s",
                 WEIR_SHOWN(limit), WEIR_SHOWN(live));
}

/* ---- advice ---- */

/* Returns 1 if the user has set the limit, rather than the device or other processes. */
static int is_for_limit(const struct contest *contest, const struct row *row, const json_t *run) {
    const json_t *report = json_object_get(run, "oom_report");
    uint64_t live = integer_at(run, "requested_peak_bytes");
    uint64_t device = integer_at(run, "device_bytes");

    return contest->options.limit.kind != WEIR_AMOUNT_SHARE && row->configuration->is_given &&
           row->busy <= 0 && contest->pace <= 0 &&
           json_is_integer(json_object_get(report, "limit")) &&
           integer_at(report, "keep_free") == 0 && live <= device &&
           !is_others(report, others_in(run, report), device, live);
}

/* Returns the text of an OOM report, with the limit that was tried as its advice. */
static json_t *advised_text(const char *text, uint64_t limit, int is_busy) {
    const char *advice = strstr(text, ").\n"), *rest = strstr(text, "\n  request ");
    char spelled[WEIR_SPELL_BYTES], line[192];

    if (!advice || !rest || rest < advice) /* unreached: every report has both */
        return json_string(text);
    weir__bytes_spell(limit, spelled, sizeof spelled);
    snprintf(line, sizeof line,
             "  Try --limit %s (WEIR_LIMIT=%s): with it this trace is replayed%s.", spelled,
             spelled, is_busy ? " without GPU work" : "");
    return json_pack(
        "s#++", text, (int)(advice + 3 - text),
        limit > 0 ? line
                  : "  No limit serves this trace here: weir bench tries other configurations.",
        rest);
}

/* Replaces the advice of an OOM report by the limit that serves the trace, or by none if `limit' is 0. */
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

/* Appends the report to the file of --oom-report, if there is one. */
static void add_report(const struct contest *contest, json_t *report) {
    const char *path = weir_cli_file_of(&contest->options, WEIR_SETTING_OOM_REPORT);
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

static void tell_failed_requests(const struct contest *contest, const struct row *row, json_t *run,
                                 const char *what, uint64_t failed) {
    json_t *report = json_object_get(run, "oom_report"); /* the OOM report of the first failure */
    char why[256], message[RUNNER_MESSAGE_BYTES];
    const char *text;

    put_shortage(run, integer_at(run, "requested_peak_bytes"), why, sizeof why);
    fprintf(stderr, "weir: %s: %" PRIu64 " request%s failed: %s\n", what, failed,
            weir__plural(failed), why);
    if (is_for_limit(contest, row, run))
        set_advice(report,
                   least_limit(contest, row->trace, row->configuration->name, &contest->options, 0,
                               message),
                   contest->results.busy > 0);
    text = json_string_value(json_object_get(report, "text"));
    if (text && !(contest->options.oom_report && strcmp(contest->options.oom_report, "off") == 0))
        fputs(text, stderr);
    add_report(contest, report);
}

int contest_tell_failure(const struct contest *contest, const struct row *row, json_t *run,
                         const char *error, const char *what) {
    uint64_t failed = integer_at(run, "failed");

    if (run && failed == 0)
        return 1;
    if (run)
        tell_failed_requests(contest, row, run, what, failed);
    else if (error[0])
        fprintf(stderr, "weir: %s: %s\n", what, error);
    return 0;
}

/* ---- the smallest limit ---- */

const uint64_t least_unit = UINT64_C(32) << 20;

/* Returns 1 if a limit of that many units serves the trace, 0 if not, -1 with a message if the trial could not be
 * made.  *most becomes the device's memory in units. */
static int serves(const struct contest *contest, size_t trace, const char *configuration,
                  const weir_options *options, double busy, uint64_t units, uint64_t *most,
                  char *message) {
    struct job job;
    json_t *trial;
    int served;

    job_make(&job, configuration, busy, options, contest->device_source);
    job.options.limit = (weir_amount){0, WEIR_AMOUNT_DEFAULT, 0};
    job.options.log = WEIR_LOG_NONE; /* failures are results here */
    job.trial = 1;
    job.limit = units * least_unit;
    trial = runner_run(&job, contest->traces[trace].tape_fd, message, RUNNER_MESSAGE_BYTES);
    served = trial ? json_is_true(json_object_get(trial, "served")) : -1;
    if (trial)
        *most = (uint64_t)json_integer_value(json_object_get(trial, "device_bytes")) / least_unit;
    json_decref(trial);
    return served;
}

uint64_t least_limit(const struct contest *contest, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message) {
    uint64_t live = contest->traces[trace].header.live_peak_bytes, most = UINT64_MAX;
    uint64_t low = live ? (live - 1) / least_unit : 0, high = low + 1, step = high / 32 + 1;
    int served;

#define SERVES(units) serves(contest, trace, configuration, options, busy, units, &most, message)
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
    return served >= 0 ? high * least_unit : 0;
}
