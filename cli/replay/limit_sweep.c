/* SPDX-License-Identifier: MIT */
/* limit_sweep.c: see limit_sweep.h.
 *
 * Limits are tried by units of 32 MiB, in which pools grow.  A trial replays the trace under one limit, in
 * a fresh process, and ends where a request is refused.  No limit below the peak requested memory can do; what a
 * run without a limit reserved is tried first, and doubled until it does.  Between the two it is
 * halved.  That more memory is always enough where less was is not taken for granted: what is found has
 * been tried, and so has one unit less; then others below are, next to it and spread, and where one of
 * them does, it goes on below that one.
 */
#include "cli/replay/limit_sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/common/spell.h"
#include "cli/replay/configuration.h"
#include "cli/replay/table.h"

static const uint64_t unit = UINT64_C(32) << 20;
/* Limits that are tried below what was found: next to it, and spread. */
enum { NEAR = 8, SPREAD = 4 };

struct trial {
    uint64_t units;
    json_t *result;
};

/* Of one trace and configuration. */
struct answer {
    size_t trace, configuration;
    uint64_t units;    /* the smallest limit that does; 0: not known */
    uint64_t earlier;  /* what an earlier run said; 0: nothing */
    json_t *unlimited; /* a trial without a limit; NULL: none was made */
    struct trial *trials;
    size_t trial_count;
    char error[RUNNER_MESSAGE_BYTES]; /* why there is no answer; "": there is */
};

struct limits {
    struct contest *contest;
    json_t *earlier; /* NULL: none */
    struct answer *answers;
    size_t count;
};

static const struct tape_header *header_of(const struct limits *limits,
                                           const struct answer *answer) {
    return &limits->contest->traces[answer->trace].header;
}

static const char *name_of(const struct limits *limits, const struct answer *answer) {
    return limits->contest->configurations[answer->configuration];
}

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static uint64_t units_of(uint64_t bytes) {
    return bytes / unit + (bytes % unit != 0);
}

/* ---------------------------------------------------------------- trials ---- */

static json_t *run_trial(const struct limits *limits, struct answer *answer, uint64_t units) {
    const struct contest *contest = limits->contest;
    json_t *result;
    struct job job;

    job_make(&job, name_of(limits, answer), 0, &contest->options, contest->device_source);
    job.options.log = WEIR_LOG_NONE; /* failures are expected */
    job.trial = 1;
    job.limit = units * unit;
    result = runner_run(&job, contest->traces[answer->trace].tape_fd, answer->error,
                        sizeof answer->error);
    if (!result && !answer->error[0]) /* it has said why */
        snprintf(answer->error, sizeof answer->error, "a trial failed");
    return result;
}

static struct trial *trial_at(const struct answer *answer, uint64_t units) {
    for (size_t i = 0; i < answer->trial_count; i++)
        if (answer->trials[i].units == units)
            return &answer->trials[i];
    return NULL;
}

static int is_served(const json_t *trial) {
    return json_is_true(json_object_get(trial, "served"));
}

/* Whether all requests are served under that limit; -1 with answer->error if that cannot be told. */
static int try(const struct limits *limits, struct answer *answer, uint64_t units) {
    struct trial *trial = trial_at(answer, units);

    if (!trial) {
        trial = reallocarray(answer->trials, answer->trial_count + 1, sizeof *trial);
        if (!trial) {
            snprintf(answer->error, sizeof answer->error, "out of memory");
            return -1;
        }
        answer->trials = trial;
        trial += answer->trial_count;
        *trial = (struct trial){units, run_trial(limits, answer, units)};
        if (!trial->result)
            return -1;
        answer->trial_count++;
    }
    return is_served(trial->result);
}

/* ---------------------------------------------------------------- search ---- */

/* `low` does not do and `high` does; makes them neighbours. */
static int halve(const struct limits *limits, struct answer *answer, uint64_t low, uint64_t *high) {
    while (*high - low > 1) {
        uint64_t middle = low + (*high - low) / 2;
        int served = try(limits, answer, middle);

        if (served < 0)
            return 0;
        if (served)
            *high = middle;
        else
            low = middle;
    }
    return 1;
}

/* A limit from `least` on that does and is below *high becomes *high; unchanged: none was seen. */
static int look_below(const struct limits *limits, struct answer *answer, uint64_t least,
                      uint64_t *high) {
    for (uint64_t i = 0; i < NEAR + SPREAD; i++) {
        uint64_t units = i < NEAR ? *high - 1 - i : least + (*high - least) * (i - NEAR) / SPREAD;
        int served = units >= least && units < *high ? try(limits, answer, units) : 0;

        if (served < 0)
            return 0;
        if (served) {
            *high = units;
            return 1;
        }
    }
    return 1;
}

/* A limit that does, from *high on. */
static int find_high(const struct limits *limits, struct answer *answer, uint64_t *high) {
    uint64_t most = integer_at(answer->unlimited, "device_bytes") / unit;

    for (;;) {
        int served = try(limits, answer, *high);

        if (served < 0)
            return 0;
        if (served)
            return 1;
        if (*high >= most) {
            snprintf(answer->error, sizeof answer->error, "requests are refused under any limit");
            return 0;
        }
        *high = *high > most / 2 ? most : *high * 2;
    }
}

/* Sets answer->units or answer->error. */
static void search(const struct limits *limits, struct answer *answer) {
    uint64_t least = units_of(header_of(limits, answer)->live_peak_bytes), reserve, high, found;
    char why[224];

    least += least == 0;
    answer->unlimited = run_trial(limits, answer, 0);
    if (!answer->unlimited)
        return;
    if (!is_served(answer->unlimited)) {
        contest_tell_shortage(answer->unlimited, header_of(limits, answer)->live_peak_bytes, why,
                              sizeof why);
        snprintf(answer->error, sizeof answer->error, "requests are refused without a limit: %s",
                 why);
        return;
    }
    reserve = units_of(integer_at(answer->unlimited, "reserved_peak_bytes"));
    high = reserve > least ? reserve : least;
    if (!find_high(limits, answer, &high))
        return;
    do {
        if (!halve(limits, answer, least - 1, &high))
            return;
        found = high;
        if (!look_below(limits, answer, least, &high))
            return;
    } while (high < found);
    if (high > 1 && try(limits, answer, high - 1) !=
                        0) { /* tried, but for one below the peak requested memory */
        if (!answer->error[0])
            snprintf(answer->error, sizeof answer->error,
                     "all requests are served under a limit below the peak requested memory");
        return;
    }
    answer->units = high;
}

/* Three trials around what was said earlier. */
static void confirm(const struct limits *limits, struct answer *answer) {
    uint64_t units[] = {answer->earlier, answer->earlier - 1, answer->earlier + 1};
    int below_refused = answer->earlier == 1;

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (units[i] > 0 && try(limits, answer, units[i]) < 0)
            return;
    for (uint64_t at = answer->earlier - 1; at <= answer->earlier + 1 && !answer->units; at++) {
        struct trial *trial = trial_at(answer, at);

        if (trial && is_served(trial->result) && below_refused)
            answer->units = at;
        below_refused = trial ? !is_served(trial->result) : below_refused;
    }
}

/* ------------------------------------------------------------ an earlier run ---- */

/* What the earlier run found for that trace and configuration; NULL: nothing. */
static const json_t *find_earlier(const struct limits *limits, const struct answer *answer) {
    const struct tape_header *header = header_of(limits, answer);
    const json_t *object;
    size_t i;

    json_array_foreach(limits->earlier, i, object) {
        const char *trace = json_string_value(json_object_get(object, "trace"));
        const char *name = json_string_value(json_object_get(object, "configuration"));
        const struct configuration *configuration = name ? configuration_find(name) : NULL;

        if (trace && configuration && strcmp(trace, header->name) == 0 &&
            strcmp(configuration->name, name_of(limits, answer)) == 0 &&
            integer_at(object, "requested_peak_bytes") == header->live_peak_bytes &&
            integer_at(object, "limit_bytes") >= unit)
            return object;
    }
    return NULL;
}

static int read_earlier(struct limits *limits, const char *path) {
    json_error_t error;
    const json_t *first;

    limits->earlier = json_load_file(path, 0, &error);
    first = json_array_get(limits->earlier, 0);
    if (limits->earlier && json_object_get(first, "limit_bytes"))
        return 1;
    fprintf(stderr, "weir: --limit-sweep=%s: %s; expected what --limit-sweep --json writes\n", path,
            limits->earlier ? "there are no limits in it" : error.text);
    return 0;
}

/* ---------------------------------------------------------------- output ---- */

/* "9,792 MiB", for the line of a step. */
static void tell_answer(const struct answer *answer, char *text, size_t bytes) {
    char mib[32];

    table_spell(answer->units * (unit >> 20), mib, sizeof mib);
    if (answer->error[0])
        snprintf(text, bytes, "failed");
    else if (answer->earlier && answer->units != answer->earlier)
        snprintf(text, bytes, "differs");
    else
        snprintf(text, bytes, "%s MiB, %zu trial%s", mib, answer->trial_count,
                 weir__plural(answer->trial_count));
}

/* One that is larger than the answer and was refused all the same. */
static int is_uneven(const struct answer *answer) {
    for (size_t i = 0; i < answer->trial_count; i++)
        if (answer->units && answer->trials[i].units > answer->units &&
            !is_served(answer->trials[i].result))
            return 1;
    return 0;
}

static void print_over(FILE *file, uint64_t bytes, uint64_t live) {
    if (live)
        fprintf(file, " %9.3f", (double)bytes / (double)live);
    else
        fprintf(file, " %9s", "-");
}

static void print_points(FILE *file, const struct answer *answer) {
    for (uint64_t at = answer->earlier - 1; at <= answer->earlier + 1; at++) {
        const struct trial *trial = trial_at(answer, at);

        fprintf(file, " %9s", !trial ? "-" : is_served(trial->result) ? "served" : "failed");
    }
    fprintf(file, "  %s", answer->units == answer->earlier ? "confirmed" : "differs");
}

static void print_row(FILE *file, const struct limits *limits, const struct answer *answer) {
    uint64_t live = header_of(limits, answer)->live_peak_bytes;
    uint64_t units = answer->earlier ? answer->earlier : answer->units;
    char mib[32];

    fprintf(file, "  %-14s", name_of(limits, answer));
    if (answer->error[0]) {
        fprintf(file, " failed\n");
        return;
    }
    table_spell(units * (unit >> 20), mib, sizeof mib);
    fprintf(file, " %9s", mib);
    print_over(file, units * unit, live);
    if (answer->earlier) {
        print_points(file, answer);
    } else {
        print_over(file, integer_at(answer->unlimited, "reserved_peak_bytes"), live);
        fprintf(file, " %9zu%s", answer->trial_count, is_uneven(answer) ? " !" : "");
    }
    fputc('\n', file);
}

static void print_table(FILE *file, const struct limits *limits) {
    size_t trace = SIZE_MAX;
    int uneven = 0;

    table_head(file, limits->contest);
    if (limits->contest->modelled)
        fputs("device model: no GPU was used\n", file);
    fputs(limits->earlier ? "limits as an earlier run found them, tried here: 32 MiB less, at it, "
                            "and 32 MiB more\n"
                          : "limit: the smallest at which every request is served, in steps of 32 "
                            "MiB; it was tried, "
                            "and so\nwas one step less, where a request is refused\n",
          file);
    for (size_t i = 0; i < limits->count; i++) {
        const struct answer *answer = &limits->answers[i];

        if (limits->earlier && !answer->earlier)
            continue;
        if (answer->trace != trace) {
            trace = answer->trace;
            table_trace(file, header_of(limits, answer));
            if (limits->earlier)
                fprintf(file, "  %-14s %9s %9s %9s %9s %9s\n", "configuration", "MiB", "/ peak",
                        "less", "at it", "more");
            else
                fprintf(file, "  %-14s %9s %9s %9s\n  %-14s %9s %9s %9s %9s\n", "", "limit",
                        "limit", "no limit:", "configuration", "MiB", "/ peak", "reserved",
                        "trials");
        }
        print_row(file, limits, answer);
        uneven |= !limits->earlier && is_uneven(answer);
    }
    if (uneven)
        fputs("\n! a larger limit failed: see the trials in the JSON\n", file);
}

static json_t *trials_json(const struct answer *answer) {
    json_t *array = json_array();

    for (size_t i = 0; i < answer->trial_count; i++) {
        json_t *object = json_copy(answer->trials[i].result);

        json_object_del(object, "device_bytes");
        json_object_del(object, "device_taken_bytes");
        json_object_set_new(object, "limit_bytes",
                            jsonfile_integer(answer->trials[i].units * unit));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *bytes_or_null(uint64_t units) {
    return units ? jsonfile_integer(units * unit) : json_null();
}

static json_t *answer_json(const struct limits *limits, const struct answer *answer) {
    const struct contest *contest = limits->contest;
    const struct tape_header *header = header_of(limits, answer);
    json_t *reserve = json_object_get(answer->unlimited, "reserved_peak_bytes");
    json_t *object = json_pack("{s:s,s:s,s:s,s:b,s:i,s:o}", "trace", header->name, "configuration",
                               name_of(limits, answer), "device", contest->device, "modelled",
                               contest->modelled, "driver_version", contest->driver_version,
                               "requested_peak_bytes", jsonfile_integer(header->live_peak_bytes));

    if (contest->modelled)
        json_object_set_new(object, "model_profile", json_string(weir_cli_model_profile()));
    if (answer->error[0])
        json_object_set_new(object, "error", json_string(answer->error));
    json_object_set_new(object, "limit_bytes", bytes_or_null(answer->units));
    json_object_set_new(
        object, "limit_over_requested",
        answer->units && header->live_peak_bytes
            ? jsonfile_rounded((double)(answer->units * unit) / (double)header->live_peak_bytes,
                               10000.0)
            : json_null());
    if (answer->earlier)
        json_object_set_new(object, "earlier_limit_bytes", bytes_or_null(answer->earlier));
    else
        json_object_set(object, "unlimited_reserved_bytes", reserve ? reserve : json_null());
    json_object_set_new(object, "trials", trials_json(answer));
    return object;
}

static json_t *results_json(const struct limits *limits) {
    const struct contest *contest = limits->contest;
    json_t *array = json_array(), *common = jsonfile_common(contest->argc, contest->argv);

    for (size_t i = 0; i < limits->count; i++) {
        json_t *object;

        if (limits->earlier && !limits->answers[i].earlier)
            continue;
        object = answer_json(limits, &limits->answers[i]);
        json_object_update(object, common);
        json_array_append_new(array, object);
    }
    json_decref(common);
    return array;
}

/* --------------------------------------------------------------- running ---- */

/* 1 if there is an answer, and the earlier one if there was one. */
static int run_one(const struct limits *limits, struct progress *progress, struct answer *answer) {
    char what[TAPE_NAME_BYTES + 64], told[64];

    snprintf(what, sizeof what, "%s, %s", header_of(limits, answer)->name, name_of(limits, answer));
    progress_step(progress, what);
    if (answer->earlier)
        confirm(limits, answer);
    else
        search(limits, answer);
    tell_answer(answer, told, sizeof told);
    progress_clear(progress);
    if (answer->error[0])
        fprintf(stderr, "weir: %s: %s\n", what, answer->error);
    progress_done(progress, what, told);
    return !answer->error[0] && (!answer->earlier || answer->units == answer->earlier);
}

static int run_all(struct limits *limits) {
    struct progress progress;
    size_t total = 0;
    int good = 1;

    for (size_t i = 0; i < limits->count; i++)
        total += !limits->earlier || limits->answers[i].earlier;
    progress_begin(&progress, total);
    for (size_t i = 0; i < limits->count; i++)
        if (!limits->earlier || limits->answers[i].earlier)
            good &= run_one(limits, &progress, &limits->answers[i]);
    progress_clear(&progress);
    return good;
}

/* Pairs that an earlier run knows nothing of are told, and not run; one at least must be left. */
static int make_answers(struct limits *limits) {
    const struct contest *contest = limits->contest;
    size_t count = contest->trace_count * contest->configuration_count, kept = 0;

    limits->answers = calloc(count, sizeof *limits->answers);
    if (!limits->answers) {
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    limits->count = count;
    for (size_t i = 0; i < count; i++) {
        struct answer *answer = &limits->answers[i];
        const json_t *earlier;

        answer->trace = i / contest->configuration_count;
        answer->configuration = i % contest->configuration_count;
        earlier = find_earlier(limits, answer);
        answer->earlier = integer_at(earlier, "limit_bytes") / unit;
        if (limits->earlier && !earlier)
            fprintf(stderr, "weir: %s, %s is left out: the earlier run has no limit for it\n",
                    header_of(limits, answer)->name, name_of(limits, answer));
        else
            kept++;
    }
    if (kept == 0)
        fputs("weir: no trace and configuration is left\n", stderr);
    return kept > 0;
}

static void drop_answer(struct answer *answer) {
    for (size_t i = 0; i < answer->trial_count; i++)
        json_decref(answer->trials[i].result);
    json_decref(answer->unlimited);
    free(answer->trials);
}

static void drop(struct limits *limits) {
    for (size_t i = 0; i < limits->count; i++)
        drop_answer(&limits->answers[i]);
    free(limits->answers);
    json_decref(limits->earlier);
}

int limit_sweep_run(struct contest *contest, const char *earlier) {
    struct limits limits = {.contest = contest};
    int good = 0;

    contest->limits = 1;
    if ((!earlier || read_earlier(&limits, earlier)) && contest_prepare(contest) &&
        make_answers(&limits)) {
        good = run_all(&limits);
        print_table(contest_table_file(contest), &limits);
        good &= contest_write(contest, results_json(&limits));
    }
    drop(&limits);
    return good ? 0 : 1;
}

uint64_t limit_sweep_least(struct contest *contest, size_t trace) {
    const struct limits limits = {.contest = contest};
    struct answer answer = {.trace = trace};

    search(&limits, &answer);
    if (answer.error[0])
        fprintf(stderr, "weir: %s: %s\n", header_of(&limits, &answer)->name, answer.error);
    drop_answer(&answer);
    return answer.units * unit;
}
