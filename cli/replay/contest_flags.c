/* SPDX-License-Identifier: MIT */
/* contest_flags.c: what is to be compared: flags, and traces that are read and checked. */
#include "cli/replay/contest_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/timeline.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/common/jsonfile.h"
#include "cli/common/outputs.h"
#include "cli/common/runner.h"
#include "cli/common/shipped.h"
#include "cli/replay/configuration.h"
#include "cli/report/report.h"

enum { SAMPLES_KEY = 0x5650, REPORT_KEY, TIMELINE_KEY };

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

/* ---- traces ---- */

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

int contest_make_tapes(struct contest *contest) {
    char message[RUNNER_MESSAGE_BYTES];
    int good = 1;

    for (size_t i = 0; i < contest->trace_count; i++) {
        struct contest_trace *trace = &contest->traces[i];

        trace->tape_fd =
            tape_make(trace->path, contest->iterations, &trace->header, message, sizeof message);
        if (trace->tape_fd >= 0 && contest->iterations == 1)
            fprintf(stderr, "weir: %s: --iterations 1 leaves no steady time: 2 is the least\n",
                    trace->header.name);
        else if (trace->tape_fd >= 0 && trace->header.marks < 2)
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
