/* SPDX-License-Identifier: MIT */
/* benchmark.h: replays every trace on every configuration, each time in a new process.  `weir replay' and `weir bench'
 * share this code.
 *
 * benchmark.c reads the flags and the traces, runs all replays and writes the files.  It also explains why requests
 * failed, and finds the smallest limit that is enough for a trace.  explain.c prints a summary of a trace, in place
 * of a replay.  table.c prints the results.  All traces and the device are checked before the first replay.
 *
 * This file must not depend on configurations, or flags of allocators except those that name files.
 */
#ifndef WEIR_CLI_BENCHMARK_H
#define WEIR_CLI_BENCHMARK_H

#include <argp.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/options.h>

#include "cli/common/flags.h"
#include "cli/replay/findings.h"
#include "cli/replay/tape.h"

struct benchmark_trace {
    char *path;
    int tape_fd;
    struct tape_header header;
};

struct benchmark {
    /* The fields below describe the user's request. */
    /* The replay ends after this many marks of the trace, or at the end of the trace if the field is 0.  A mark is a
     * line that ends an iteration. */
    uint64_t iterations;
    /* The pause between calls as a factor of the times in the trace, or 0 for no pauses. */
    double pace;
    /* The file for the results as JSON, or NULL.  If the name is "-", the JSON goes to standard output and the table
     * goes to standard error. */
    const char *json_file;
    const char *report;        /* the file for the report, or NULL */
    const char *timeline_file; /* the file for the time line, or NULL */
    struct benchmark_trace *traces;
    size_t trace_count;
    weir_options options;      /* the options that all replays get */
    const char *device_source; /* the flag or variable that named the device, or NULL */
    int argc;
    char **argv;
    /* Set if a trace or a configuration could not be added.  A message has been printed. */
    int has_failed;

    /* The fields below are results. */
    char device[128];
    int modelled;
    int driver_version;

    /* The results.  The user's request has set their fields `configurations', `repeat' and `busy'. */
    struct results results;
};

/* Returns the flags that weir replay and weir bench share, for a struct argp_child.  The input of the child is a
 * struct benchmark that benchmark_init() has initialised. */
const struct argp *benchmark_argp(void);
void benchmark_init(struct benchmark *benchmark, int argc, char **argv);
/* Adds a trace.  The argument is a path, or the name of a trace that comes with weir. */
void benchmark_add_trace(struct benchmark *benchmark, const char *argument);
/* Adds all traces that come with weir. */
void benchmark_add_shipped(struct benchmark *benchmark);
/* Adds a configuration, unless it has already been added. */
void benchmark_add_configuration(struct benchmark *benchmark,
                                 const struct configuration *configuration);
/* Checks that all output files are different, and that no output file is a trace that the command reads.  `settings'
 * names some of the output files.  Returns 0 on success.  On failure, prints a message and returns the exit code. */
int benchmark_check_outputs(const struct benchmark *benchmark,
                            const struct weir_cli_settings *settings);
/* Prepares the replays: checks the files, reads the traces and asks for the device.  Returns 1 on success.  On
 * failure, prints a message and returns 0. */
int benchmark_prepare(struct benchmark *benchmark);
/* Prints the reason why a file is not a trace. */
void benchmark_report_no_trace(const char *path, const char *message);
/* Prints a summary of each trace, with at most `most' lines about its largest blocks, in place of a replay.  Returns
 * the exit code. */
int benchmark_explain(struct benchmark *benchmark, size_t most);
/* Returns the file to which the table is printed: standard output or standard error. */
FILE *benchmark_table_file(const struct benchmark *benchmark);
/* Runs all replays, prints the table and writes the files.  Returns the exit code. */
int benchmark_run(struct benchmark *benchmark);
void benchmark_free(struct benchmark *benchmark);

/* The smallest difference between two limits that least_limit() tries: 32 MiB, the step by which CUDA's pools grow. */
extern const uint64_t least_unit;
/* Finds a limit on reserved memory with which all requests of the trace succeed, while a request fails with the next
 * smaller limit.  Each trial replays the trace with one limit.  The first trials use larger and larger limits, from
 * the peak requested memory on, and further trials halve the interval.  A trial with a larger limit may still fail,
 * because of fragmentation.  `configuration' is a name for configuration_find(), and `busy' is a factor of GPU work
 * or 0.
 *
 * Returns the limit in bytes, a multiple of least_unit, or 0 if no limit up to the device's memory is enough.  If a
 * trial cannot be made, writes the reason to `message' and returns 0.
 */
uint64_t least_limit(const struct benchmark *benchmark, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message);

/* Prints the name of the device on which the replays ran (table.c). */
void table_head(FILE *file, const struct benchmark *benchmark);
/* Prints the name of a trace and its numbers of operations. */
void table_trace(FILE *file, const struct tape_header *header);
/* Prints the table of all rows, and the findings below it. */
void table_print(FILE *file, const struct benchmark *benchmark, const struct findings *findings);

#endif
