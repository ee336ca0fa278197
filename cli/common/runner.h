/* SPDX-License-Identifier: MIT */
/* runner.h: one replay in a fresh process.
 *
 * The parent starts the program again with an internal subcommand, hands it a job and a tape, and
 * reads one JSON object back.  It never opens a driver itself: CUDA does not survive fork, and
 * what a process has done with a device shows in its next first iteration.
 *
 * Must not know: what a configuration is, which figures there are.
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

/* What a child is to do.  The struct is passed as it is in memory, since both sides are the same program. */
struct job {
    char magic[8];
    size_t bytes;                     /* sizeof(struct job) */
    char configuration[32];           /* "": only look at the device */
    char device[64];                  /* "": options.device is NULL */
    char device_source[64];           /* where the device was named, for messages; "" if nowhere */
    char profile[WEIR_SHOW_BYTES];    /* "": options.profile is NULL */
    char oom_report[WEIR_SHOW_BYTES]; /* "": options.oom_report is NULL */
    char peers[WEIR_SHOW_BYTES];      /* "": options.peers is NULL */
    int trial;   /* 1: tell only whether every request is served, and end at the first that fails */
    int forgets; /* 1: a profile is read, and not saved */
    int timeline;       /* not 0: also tell what happened when, as the process of that number */
    uint64_t limit;     /* the most that the configuration may reserve; 0: as it has it */
    double busy_factor; /* GPU work as a factor of the trace's time (busy.h); 0: none */
    double pace;        /* time between operations as a factor of the trace's time; 0: none */
    weir_options options;
};

/* Fills a job.  With configuration NULL or "" the child only looks at the device.  options->device and device_source may
 * be NULL. */
void job_make(struct job *job, const char *configuration, double busy_factor,
              const weir_options *options, const char *device_source);

/* The child's result, a new reference; NULL with the reason in `message` if it crashed, was killed or
 * reported an error.  tape_fd may be -1.  A child that has said why on standard error itself leaves
 * `message` empty. */
json_t *runner_run(const struct job *job, int tape_fd, char *message, size_t message_bytes);

/* The child's side: reads and checks the job.  0: this process was not started by runner_run. */
int job_read(struct job *job);
/* Sends {"error": message} or the result back; 0 if that fails.  Takes the reference. */
int result_send(json_t *result);

#endif
