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

/* The internal subcommand, and where its child finds job, tape and way back. */
#define RUNNER_SUBCOMMAND "replay-child"
enum { CHILD_JOB_FD = 0, CHILD_TAPE_FD = 3, CHILD_RESULT_FD = 4 };

/* How: as it can be seen without a change of anything; by all figures there are. */
enum { JOB_SAMPLES_WATCH = 1, JOB_SAMPLES_ASK };

/* Handed over as it stands in memory: both sides are the same program. */
struct job {
    char magic[8];
    size_t bytes;                  /* sizeof(struct job) */
    char configuration[32];        /* "": only look at the device */
    char device[64];               /* "": options.device is NULL */
    char device_source[64];        /* where the device was named, for messages; "" if nowhere */
    char profile[WEIR_SHOW_BYTES]; /* "": options.profile is NULL */
    char verdict[WEIR_SHOW_BYTES]; /* likewise */
    char peers[WEIR_SHOW_BYTES];   /* likewise */
    int stretches; /* time whole iterations, and tell of nothing else; not with work */
    int samples;   /* JOB_SAMPLES_: note memory after each operation, and tell of nothing else */
    int trial;     /* only whether every request is served; ends at the first that is not */
    int buckets;   /* single operations: also every bucket of the histograms */
    int forgets; /* a profile is read, and not written: another child of the same result does that */
    int timeline; /* not 0: tell only what happened when, as process of that number in a picture */
    uint64_t limit;    /* the most that the configuration may reserve; 0: as it has it */
    int has_threshold; /* the release threshold is `threshold`, not the configuration's */
    weir_amount threshold;
    double busy_factor; /* work on the streams: busy.h; 0: none */
    double pace; /* of the trace's time, what passes between operations; not with stretches */
    weir_options options;
};

/* For single operations.  configuration NULL or "": a look at the device.  options->device and
 * device_source may be NULL. */
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
