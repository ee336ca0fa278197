/* SPDX-License-Identifier: MIT */
/* contest_flags.c: flags that replay and bench share, and the traces, which are read and checked. */
#include "cli/replay/contest.h"

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

static void take_count(struct argp_state *state, const char *flag, const char *text, void *field) {
    struct weir_problem problem;

    if (!weir__count_read(text, 1000000, field, &problem) || *(uint64_t *)field == 0)
        argp_error(state, "%s '%s': expected a whole number from 1 to 1000000", flag, text);
}

static void take_factor(struct argp_state *state, const char *flag, const char *text, void *field) {
    struct weir_problem problem;
    double *factor = field;
    const char *end;

    if (!weir__factor_read(text, &end, factor, &problem) || *end || *factor < 0.001 ||
        *factor > 1000)
        argp_error(state, "%s '%s': expected a number from 0.001 to 1000, such as 1 or 0.5", flag,
                   text);
}

#define FIELD(name) offsetof(struct contest, name)

static const struct weir_cli_flag flags[] = {
    {"repeat", 'r', "N", take_count, FIELD(results.repeat),
     "Run each pair of trace and configuration N times; the table shows medians."},
    {"iterations", 'i', "N", take_count, FIELD(iterations),
     "Stop after N iterations of each trace."},
    {"busy", 'b', "FACTOR", take_factor, FIELD(results.busy),
     "Replay with GPU work, too: delays on the streams of FACTOR times the time that the trace "
     "took there."},
    {"pace", 'p', "FACTOR", take_factor, FIELD(pace),
     "Wait between calls for FACTOR times the time that the recorded program took."},
    {"json", 'j', "FILE", weir_cli_take_output, FIELD(json_file),
     "Write all results to FILE as a JSON array.  '-' is standard output; the table then goes to "
     "standard error."},
    {"report", 0, "FILE", weir_cli_take_page, FIELD(report),
     "Write a page of the results to FILE, whose name ends in .html (weir report)."},
    {"trace-events", 0, "FILE", weir_cli_take_file, FIELD(timeline_file),
     "Write a time line to FILE for Perfetto or Chrome: counters, growth, iterations.  This takes "
     "one more replay of each pair."},
    {0}};

static error_t parse_flag(int key, char *argument, struct argp_state *state) {
    return weir_cli_read_flag(flags, key, argument, state);
}

const struct argp *contest_argp(void) {
    static struct argp argp = {.parser = parse_flag};

    argp.options = weir_cli_options(flags);
    return &argp;
}

void contest_init(struct contest *contest, int argc, char **argv) {
    memset(contest, 0, sizeof *contest);
    contest->results.repeat = 1;
    contest->argc = argc;
    contest->argv = argv;
}

int contest_add_configuration(struct contest *contest, const struct configuration *configuration) {
    const struct configuration **list;

    for (size_t i = 0; i < contest->results.configuration_count; i++)
        if (contest->results.configurations[i] == configuration)
            return 1;
    list = reallocarray(contest->results.configurations, contest->results.configuration_count + 1,
                        sizeof *list);
    if (!list) {
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    list[contest->results.configuration_count++] = configuration;
    contest->results.configurations = list;
    return 1;
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

void contest_tell_no_trace(const char *path, const char *message) {
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
        if (trace->tape_fd >= 0 && contest->iterations == 1 && !contest->trials)
            fprintf(stderr, "weir: %s: --iterations 1 leaves no steady time: 2 is the least\n",
                    trace->header.name);
        else if (trace->tape_fd >= 0 && trace->header.marks < 2 && !contest->trials)
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
        contest_tell_no_trace(trace->path, message);
        good = 0;
    }
    return good;
}
