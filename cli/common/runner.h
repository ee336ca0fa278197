/* SPDX-License-Identifier: MIT */
/* runner.h: one replay in a fresh process.
 *
 * The parent starts the program again with an internal subcommand, sends the child a job and a tape (tape.h), and reads
 * one JSON object.  The parent never opens a driver, since CUDA does not survive fork, and since earlier work of a
 * process on a device changes the times of its next first iteration.
 *
 * This file must not know configurations or figures.
 */
#ifndef WEIR_CLI_RUNNER_H
#define WEIR_CLI_RUNNER_H

#include <jansson.h>

#include <weir/options.h>

#include "config/settings.h"

enum { RUNNER_MESSAGE_BYTES = 512 };

/* The internal subcommand, and the descriptors for job, tape and result. */
#define RUNNER_SUBCOMMAND "replay-child"
enum { CHILD_JOB_FD = 0, CHILD_TAPE_FD = 3, CHILD_RESULT_FD = 4 };

/* The job of a child.  The child gets a copy of the struct, since parent and child run one program. */
struct job {
    char magic[8];
    size_t bytes;           /* sizeof(struct job) */
    char configuration[32]; /* "" if the child only reports its device */
    char device[64];        /* "" if options.device is NULL */
    char device_source[64]; /* the flag or variable that named the device, for messages, or "" */
    char profile[WEIR_SHOW_BYTES];    /* "" if options.profile is NULL */
    char oom_report[WEIR_SHOW_BYTES]; /* "" if options.oom_report is NULL */
    char peers[WEIR_SHOW_BYTES];      /* "" if options.peers is NULL */
    /* Set in a trial, which ends at the first request that fails, and only reports whether one failed. */
    int trial;
    int forgets; /* set if the child reads a profile and does not save it */
    /* The number of the process in a time line of events, or 0 if there is no time line. */
    int timeline;
    uint64_t limit; /* the most memory that the configuration may reserve, or 0 for its own limit */
    double busy_factor; /* GPU work as a factor of the trace's time (busy.h), or 0 */
    double pace;        /* time between operations as a factor of the trace's time, or 0 */
    weir_options options;
};

/* Fills a job.  If the configuration is NULL or "", the child only reports its device.  options->device and
 * device_source may be NULL. */
void job_make(struct job *job, const char *configuration, double busy_factor,
              const weir_options *options, const char *device_source);

/* Runs the job in a child.  Returns the result, a new reference, or NULL with the reason in `message' if the child
 * crashed, was killed or reported an error.  tape_fd may be -1.  If the child itself has printed the reason,
 * `message' is empty. */
json_t *runner_run(const struct job *job, int tape_fd, char *message, size_t message_bytes);

/* Reads and checks the job in the child.  Returns 1 on success, 0 if runner_run() has not started this process. */
int job_read(struct job *job);
/* Sends the result of the child, or {"error": message}, to the parent, and releases the reference.  Returns 1 on
 * success, 0 on failure. */
int result_send(json_t *result);

#endif
