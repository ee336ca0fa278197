/* SPDX-License-Identifier: MIT */
/* contest.h: every configuration on every trace, each in fresh processes; `weir replay' and `weir bench' share it.
 *
 * contest.c reads flags and traces, runs all, says why requests failed, finds the smallest limit that serves a trace,
 * and writes the files; explain.c explains traces in place of a replay; table.c prints the results.  All traces and the
 * device are checked before the first run.
 *
 * This file must not know configurations, or flags of allocators except those that name files.
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
    /* The fields of the command's request. */
    uint64_t iterations; /* the mark after which replays end, or 0 */
    double pace;         /* waits between calls as a factor of the recorded program's time, or 0 */
    /* The file of the JSON, or NULL.  If the file is "-", standard output gets the JSON, and standard error gets the
     * table. */
    const char *json_file;
    const char *report;        /* the file of the report, or NULL */
    const char *timeline_file; /* the file of the time line, or NULL */
    struct contest_trace *traces;
    size_t trace_count;
    weir_options options;      /* the options of the jobs */
    const char *device_source; /* the flag or variable that named the device, or NULL */
    int argc;
    char **argv;
    /* Set if a trace or a configuration could not be added, with a message printed. */
    int has_failed;

    /* The fields of the results. */
    char device[128];
    int modelled;
    int driver_version;

    /* `configurations', `repeat' and `busy' in the results belong to the request. */
    struct results results;
};

/* Returns the flags that replay and bench share, for a struct argp_child whose input is a struct contest that
 * contest_init has set up. */
const struct argp *contest_argp(void);
void contest_init(struct contest *contest, int argc, char **argv);
/* Adds a trace, by its path or by the name of a shipped trace. */
void contest_add_trace(struct contest *contest, const char *argument);
/* Adds all traces that are shipped. */
void contest_add_shipped(struct contest *contest);
/* Adds a configuration, once. */
void contest_add_configuration(struct contest *contest, const struct configuration *configuration);
/* Checks that all outputs are different files, and that no output is a trace that the command reads.  The settings name
 * some outputs.  Returns the exit code, with a message printed if it is not 0. */
int contest_check_outputs(const struct contest *contest, const struct weir_cli_settings *settings);
/* Prepares the runs: checks the files, reads the traces, asks for the device.  Returns 1 on success, 0 with a message
 * printed. */
int contest_prepare(struct contest *contest);
/* Prints why a file is no trace. */
void contest_tell_no_trace(const char *path, const char *message);
/* Explains all traces, with at most `most' lines of blocks each, in place of a replay.  Returns the exit code. */
int contest_explain(struct contest *contest, size_t most);
/* Returns the stream of the table. */
FILE *contest_table_file(const struct contest *contest);
/* Runs all, prints the table and writes the files.  Returns the exit code. */
int contest_run(struct contest *contest);
void contest_free(struct contest *contest);

/* The step of limits that least_limit() tries, in which pools grow: 32 MiB. */
extern const uint64_t least_unit;
/* Finds a limit that serves the trace while a limit one step less does not: first upwards from the peak requested
 * memory in growing steps, then by halves.  A larger limit may still fail, because of fragmentation.
 * `configuration' is a name for configuration_find(), `busy' a factor of GPU work or 0.  Returns bytes, a multiple
 * of least_unit.  Returns 0 if no limit up to the device's memory serves, or with the reason in `message' if a
 * trial could not be made. */
uint64_t least_limit(const struct contest *contest, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message);

/* Prints the device on which the replays ran (table.c). */
void table_head(FILE *file, const struct contest *contest);
/* Prints the facts of a trace, above its rows. */
void table_trace(FILE *file, const struct tape_header *header);
/* Prints all rows, and the findings. */
void table_print(FILE *file, const struct contest *contest, const struct findings *findings);

#endif
