/* SPDX-License-Identifier: MIT */
/* benchmark.h: replays every trace on every configuration, each time in a new process.  `weir replay' and `weir bench'
 * share this code.
 *
 * benchmark.c reads the flags and the traces, runs all replays and writes the files.  It also explains why requests
 * failed, and finds the smallest limit for a trace.  explain.c prints a summary of a trace, in place of a replay.
 * table.c prints the results.  All traces and the device are checked before the first replay.
 *
 * This file must not depend on what a configuration or a setting does.
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
#include "cli/replay/binary_trace.h"

struct benchmark_trace {
    char *path;
    int trace_fd;
    struct trace_header header;
};

struct benchmark {
    /* ---- from the command line ---- */
    uint64_t iterations; /* the number of iterations to replay, or 0 for the whole trace */
    double pace; /* pauses between calls as a factor of the times in the trace, or 0 for none */
    /* The file for the results, or NULL.  If it is "-", the table goes to standard error. */
    const char *json_file;
    const char *report;        /* the file for the HTML page (--report), or NULL */
    const char *timeline_file; /* the file of --trace-events, or NULL */
    struct benchmark_trace *traces;
    size_t trace_count;
    weir_options options;
    const char *device_source; /* the flag or variable that named the device, or NULL */
    int argc;
    char **argv;
    int has_failed; /* set if a trace or a configuration could not be added, after a message */

    /* ---- from the child processes ---- */
    char device[128];
    int modelled; /* set if the device is the device model */
    int driver_version;

    /* The fields `configurations', `repeat' and `busy' are from the command line. */
    struct results results;
};

/* Returns the flags that weir replay and weir bench share, for a struct argp_child.  The input of the child is a
 * struct benchmark that benchmark_init() has initialised. */
const struct argp *benchmark_argp(void);
void benchmark_init(struct benchmark *benchmark, int argc, char **argv);
/* Adds a trace: `argument' is a path, or the name of a trace that comes with weir. */
void benchmark_add_trace(struct benchmark *benchmark, const char *argument);
/* Adds all traces that come with weir. */
void benchmark_add_shipped(struct benchmark *benchmark);
/* Adds a configuration, unless it has already been added. */
void benchmark_add_configuration(struct benchmark *benchmark,
                                 const struct configuration *configuration);
/* Checks that all output files, including those of `settings', differ from each other and from the traces.  Returns 0
 * if so.  Otherwise prints a message and returns the exit code. */
int benchmark_check_outputs(const struct benchmark *benchmark,
                            const struct weir_cli_settings *settings);
/* Checks the output files, reads the traces, and finds the device, before the first replay.  Returns 1 on success.  On
 * failure, prints a message and returns 0. */
int benchmark_prepare(struct benchmark *benchmark);
/* Prints the reason why a file is not a trace. */
void benchmark_report_no_trace(const char *path, const char *message);
/* Prints a summary of each trace, with at most `most' lines about the largest requests.  Returns the exit code. */
int benchmark_explain(struct benchmark *benchmark, size_t most);
/* Returns the stream for the table: standard output, or standard error if the JSON goes to standard output. */
FILE *benchmark_table_file(const struct benchmark *benchmark);
/* Runs all replays, prints the table and writes the files.  Returns the exit code. */
int benchmark_run(struct benchmark *benchmark);
void benchmark_free(struct benchmark *benchmark);

/* find_smallest_limit() tries multiples of this number: 32 MiB, the step by which CUDA's pools grow. */
extern const uint64_t limit_step;
/* Finds a limit on reserved memory with which a replay of the trace succeeds, while a replay with limit_step less
 * fails.  Because of fragmentation, a larger limit may fail.  `busy' is a factor of GPU work or 0.
 *
 * Returns the limit in bytes, or 0 if no limit is enough.  If a replay cannot run, writes the reason to `message' and
 * returns 0.
 */
uint64_t find_smallest_limit(const struct benchmark *benchmark, size_t trace,
                             const char *configuration, const weir_options *options, double busy,
                             char *message);

/* Prints the name of the device on which the replays ran. */
void table_head(FILE *file, const struct benchmark *benchmark);
/* Prints the name of a trace, and how many operations of each kind it has. */
void table_trace(FILE *file, const struct trace_header *header);
/* Prints the table of all rows, and the findings below it. */
void table_print(FILE *file, const struct benchmark *benchmark, const struct findings *findings);

#endif
