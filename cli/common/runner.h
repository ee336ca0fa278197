/* SPDX-License-Identifier: MIT */
/* runner.h: runs one replay in a fresh child process.
 *
 * The parent starts this program again with an internal subcommand.  It sends the child a job and a trace in binary
 * form (binary_trace.h), and reads the result as one JSON object.  The parent itself never opens a driver, for two
 * reasons: CUDA does not work after fork, and earlier work of a process on a device would change the measured times.
 *
 * This file must not depend on the contents of the job or of the result.
 */
#ifndef WEIR_CLI_RUNNER_H
#define WEIR_CLI_RUNNER_H

#include <jansson.h>

#include <weir/options.h>

#include "config/settings.h"

enum { RUNNER_MESSAGE_BYTES = 512 };

/* The name of the internal subcommand, and the child's file descriptors for the job, the trace and the result. */
#define RUNNER_SUBCOMMAND "replay-child"
enum { CHILD_JOB_FD = 0, CHILD_TRACE_FD = 3, CHILD_RESULT_FD = 4 };

/* The work of a child process.  The parent sends this struct through a pipe.  Both processes run the same program file,
 * so both have the same layout of the struct. */
struct job {
    char magic[8];
    size_t bytes; /* the size of this struct */
    char configuration[32]; /* the name, or "" if the child only reports its device */
    /* Copies of the options that are text, since a pointer is useless in another process.  "" stands for NULL. */
    char device[64], profile[WEIR_SHOW_BYTES], oom_report[WEIR_SHOW_BYTES], peers[WEIR_SHOW_BYTES];
    char device_source[64]; /* the flag or variable that named the device, for messages, or "" */
    /* Set if the parent needs to know only whether all requests succeed.  The replay then ends at the first failure. */
    int trial;
    int discards_profile; /* set if the child must not save the profile that it reads */
    int timeline; /* the child's number in the time line of all replays, or 0 without a time line */
    uint64_t limit;     /* the limit on reserved bytes, or 0 for the configuration's limit */
    double busy_factor; /* GPU work as a factor of the times in the trace (busy.h), or 0 for none */
    double pace;        /* pauses as a factor of the times in the trace, or 0 for none */
    weir_options options;
};

/* Initialises the job.  If the configuration is NULL or "", the child only reports its device.  options->device and
 * device_source may be NULL. */
void job_make(struct job *job, const char *configuration, double busy_factor,
              const weir_options *options, const char *device_source);

/* Runs the job in a child process, and returns the result as a new reference.  trace_fd is a binary trace, or -1.  On
 * failure, returns NULL and writes the reason to `message', or "" if the child has printed it. */
json_t *runner_run(const struct job *job, int trace_fd, char *message, size_t message_bytes);

/* Reads and checks the job in the child.  Returns 1 on success, 0 if runner_run() has not started this process. */
int job_read(struct job *job);
/* Sends the child's result to the parent, and releases the reference.  The result of a failure is {"error": message}.
 * Returns 1 on success, 0 on failure. */
int result_send(json_t *result);

#endif
