/* SPDX-License-Identifier: MIT */
/* runner.h: runs one replay in a fresh child process.
 *
 * The parent starts this program again with an internal subcommand.  It sends the child a job and a tape (tape.h),
 * and reads the result as one JSON object.  The parent itself never opens a driver, for two reasons: CUDA does not
 * work after fork, and earlier work of a process on a device would change the measured times.
 *
 * This file must not know configurations or figures.
 */
#ifndef WEIR_CLI_RUNNER_H
#define WEIR_CLI_RUNNER_H

#include <jansson.h>

#include <weir/options.h>

#include "config/settings.h"

enum { RUNNER_MESSAGE_BYTES = 512 };

/* The name of the internal subcommand, and the child's file descriptors for the job, the tape and the result. */
#define RUNNER_SUBCOMMAND "replay-child"
enum { CHILD_JOB_FD = 0, CHILD_TAPE_FD = 3, CHILD_RESULT_FD = 4 };

/* The job of a child.  The parent writes this struct to a pipe and the child reads it.  This works because both
 * processes run one program file. */
struct job {
    char magic[8];
    size_t bytes; /* the size of this struct */
    /* The name of the configuration, or "" if the child only reports its device. */
    char configuration[32];
    /* The text of options.device, or "" if it is NULL. */
    char device[64];
    /* The flag or variable that named the device, or ""; for messages. */
    char device_source[64];
    /* The text of options.profile, or "" if it is NULL. */
    char profile[WEIR_SHOW_BYTES];
    /* The text of options.oom_report, or "" if it is NULL. */
    char oom_report[WEIR_SHOW_BYTES];
    /* The text of options.peers, or "" if it is NULL. */
    char peers[WEIR_SHOW_BYTES];
    /* Set if the child only tries whether all requests succeed.  The replay then ends at the first request that
     * fails, and the result only says whether a request failed. */
    int trial;
    int discards_profile; /* set if the child must not save the profile that it reads */
    /* The number of the child in the file of the time line, or 0 if there is no time line. */
    int timeline;
    /* The limit on reserved memory in bytes, or 0 for the configuration's own limit. */
    uint64_t limit;
    /* The duration of GPU work as a factor of the times in the trace (busy.h), or 0 for no GPU work. */
    double busy_factor;
    /* The pause between operations as a factor of the times in the trace, or 0 for no pauses. */
    double pace;
    weir_options options;
};

/* Fills the struct job.  If the configuration is NULL or "", the child only reports its device.  options->device and
 * device_source may be NULL. */
void job_make(struct job *job, const char *configuration, double busy_factor,
              const weir_options *options, const char *device_source);

/* Runs the job in a child process.  tape_fd is the descriptor of the tape, or -1.  Returns the result as a new
 * reference.  Returns NULL if the child crashed, was killed or reported an error, and writes the reason to
 * `message'.  `message' is "" if the child itself has printed the reason. */
json_t *runner_run(const struct job *job, int tape_fd, char *message, size_t message_bytes);

/* Reads the job, in the child, and checks it.  Returns 1 on success, 0 if runner_run() has not started this process. */
int job_read(struct job *job);
/* Sends the result from the child to the parent, and releases the reference.  The result of a child that failed is
 * {"error": message}.  Returns 1 on success, 0 on failure. */
int result_send(json_t *result);

#endif
