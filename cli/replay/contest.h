/* SPDX-License-Identifier: MIT */
/* contest.h: every configuration on every trace, each in fresh processes: what `weir replay` and
 * `weir bench` have in common.
 *
 * What: contest.c reads flags and traces, runs all, and has the table and the file written;
 * contest_shortage.c says why requests failed, and what would help; explain.c explains traces in place of a replay;
 * table.c shows the results to a person, at most 120 columns wide; least.c finds the smallest limit of a configuration.
 *
 * Nothing is run before all traces are read and checked and the device has been looked at, and
 * nothing is written before all is over.
 *
 * Must not know: what configurations do, flags of allocators but of those that name files.
 */
#ifndef WEIR_CLI_CONTEST_H
#define WEIR_CLI_CONTEST_H

#include <argp.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/options.h>

#include "cli/common/flags.h"
#include "cli/replay/findings.h"
#include "cli/replay/tape.h"

struct contest_trace {
    char *path;
    int tape_fd;
    struct tape_header header;
};

struct contest {
    /* What was asked. */
    uint64_t iterations; /* stop after this mark; 0: none */
    double pace; /* what the program does between its calls, of the trace's time; 0: nothing */
    const char *json_file; /* NULL: none; "-": standard output, and the table to standard error */
    const char *report;    /* where the report goes; NULL: none */
    const char *timeline_file; /* of what happened when; NULL: none */
    struct contest_trace *traces;
    size_t trace_count;
    weir_options options;      /* of the jobs */
    const char *device_source; /* where the device was named; NULL if nowhere */
    int argc;
    char **argv;
    int has_failed; /* a trace or a configuration could not be added, as a message has told */

    /* What came of it. */
    char device[128];
    int modelled;
    int driver_version;

    struct results results; /* configurations, repeat and busy are what was asked */
};

/* Returns the flags that replay and bench share, for a struct argp_child whose input is a struct contest that contest_init
 * has set up. */
const struct argp *contest_argp(void);
void contest_init(struct contest *contest, int argc, char **argv);
/* Adds a trace, by path or by the name of a shipped one. */
void contest_add_trace(struct contest *contest, const char *argument);
/* Adds all traces that are shipped. */
void contest_add_shipped(struct contest *contest);
/* Adds a configuration, once. */
void contest_add_configuration(struct contest *contest, const struct configuration *configuration);
/* Checks that no output is a trace that is read, nor another's, by the names that these settings have.  Returns the
 * program's exit code, with a message printed if it is not 0. */
int contest_check_outputs(const struct contest *contest, const struct weir_cli_settings *settings);
/* Does what comes before any run: checks the files, reads the traces, looks at the device.  Returns 1, or 0 with a message
 * printed. */
int contest_prepare(struct contest *contest);
/* Prints why that file is no trace. */
void contest_tell_no_trace(const char *path, const char *message);
/* Explains all traces in place of a replay, with so many of the largest blocks.  Returns the program's exit code. */
int contest_explain(struct contest *contest, size_t most);
/* Prints what went wrong in the newest run of a row, and why, to standard error.  Returns 1 if all went well. */
int contest_tell_failure(const struct contest *contest, const struct row *row, json_t *run,
                         const char *error, const char *what);
/* Returns where the table goes. */
FILE *contest_table_file(const struct contest *contest);
/* Runs all, prints the table and writes the files.  Returns the program's exit code. */
int contest_run(struct contest *contest);
void contest_free(struct contest *contest);

/* least.c: limits are tried in such steps, in which pools grow: 32 MiB. */
extern const uint64_t least_unit;
/* Finds a limit that serves the trace while one step less does not: first upwards from the peak requested memory in
 * growing steps, then by halves.  A larger limit may still fail, because of fragmentation.  `configuration` is a name for
 * configuration_find(); `options` are those of the job; `busy` is GPU work as a factor of the trace's time, 0 for none.
 * Returns bytes, a multiple of least_unit; 0 if no limit up to the device's memory serves, or with the reason in
 * `message`, which has RUNNER_MESSAGE_BYTES, if a trial could not be made. */
uint64_t least_limit(const struct contest *contest, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message);

/* table.c: prints where it ran. */
void table_head(FILE *file, const struct contest *contest);
/* Prints what a trace is, above its rows. */
void table_trace(FILE *file, const struct tape_header *header);
/* Prints all rows, and the findings. */
void table_print(FILE *file, const struct contest *contest, const struct findings *findings);

#endif
