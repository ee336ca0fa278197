/* SPDX-License-Identifier: MIT */
/* contest.h: every configuration on every trace, each in fresh processes: what `weir replay` and
 * `weir bench` have in common.
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
#include "cli/replay/tape.h"

/* One (trace, configuration, busy or not, repeat). */
struct outcome {
    size_t trace;         /* index into traces */
    size_t configuration; /* index into configurations */
    double busy_factor;   /* work on the streams: busy.h; 0: none */
    size_t threshold;     /* index into contest_thresholds */
    int notes;            /* what it needed, in the profile that the options name, if any */
    json_t *result;       /* NULL: it failed */
    char *error;          /* why; NULL or empty if result, or if it has been said */
    json_t *timeline;     /* its part of the file; NULL: none */
};

struct contest_trace {
    char *path;
    int tape_fd;
    struct tape_header header;
};

struct contest {
    /* What was asked. */
    uint64_t repeat;     /* runs of each (trace, configuration), in fresh processes */
    uint64_t iterations; /* stop after this mark; 0: none */
    double busy_factor;  /* every pair also with this much work on the streams; 0: only without */
    double pace;    /* what the program does between its calls, of the trace's time; 0: nothing */
    int thresholds; /* every pair with each of contest_thresholds; 0: with its own */
    int samples;    /* also replay with memory noted, and keep histograms whole */
    const char *json_file; /* NULL: none; "-": standard output, and the table to standard error */
    const char *report;    /* where the report goes; NULL: none */
    const char *
        timeline_file; /* of what happened when, in runs beside those that are measured; NULL: none */
    struct contest_trace *traces;
    size_t trace_count;
    const char **configurations; /* names for configuration_find */
    size_t configuration_count;
    weir_options options;      /* of the jobs */
    const char *device_source; /* where the device was named; NULL if nowhere */
    int argc;
    char **argv;

    /* What came of it. */
    char device[128];
    int modelled;
    int driver_version;
    struct outcome
        *outcomes; /* by trace, configuration, threshold, without and with work, repeat */
    size_t outcome_count;
};

/* Release thresholds that are compared, in percent of the peak requested memory. */
enum { CONTEST_THRESHOLDS = 5, CONTEST_THRESHOLD_MAX = -1 };
extern const int contest_thresholds[CONTEST_THRESHOLDS];

/* How often each pair runs: with each threshold; without work on the streams, and with. */
static inline size_t contest_modes(const struct contest *contest) {
    return (size_t)(contest->thresholds ? CONTEST_THRESHOLDS : 1) *
           (contest->busy_factor > 0 ? 2 : 1);
}

/* "25%", "max": the release threshold of an outcome of such a contest. */
void contest_threshold_spell(const struct outcome *outcome, char *text, size_t bytes);

/* --repeat, --iterations, --busy, --json and the traces, for a struct argp_child whose input is a struct
 * contest that contest_init has set up. */
extern const struct argp contest_argp;
void contest_init(struct contest *contest, int argc, char **argv);
/* Adds a trace, by path or by the name of a shipped one.  1, or 0: out of memory. */
int contest_add_trace(struct contest *contest, const char *argument);
/* All traces that are shipped; 0 with a message printed if there are none. */
int contest_add_shipped(struct contest *contest);
/* That no output is a trace that is read, nor another's, by the names that these settings have.  The program's exit
 * code, with a message printed if it is not 0. */
int contest_check_outputs(const struct contest *contest, const struct weir_cli_settings *settings);
/* What comes before any run: the file, the traces, the device.  1, or 0 with a message printed. */
int contest_prepare(struct contest *contest);
/* Why requests of a trace with that peak requested memory were refused, by a replay's result or a trial's. */
void contest_tell_shortage(const json_t *result, uint64_t live, char *text, size_t bytes);
/* Where the table goes. */
FILE *contest_table_file(const struct contest *contest);
/* After the table: writes the file, if any.  Takes the reference.  1, or 0 with a message printed. */
int contest_write(const struct contest *contest, json_t *array);
/* Runs all, prints the table and writes the file.  The program's exit code. */
int contest_run(struct contest *contest);
void contest_free(struct contest *contest);

#endif
