/* SPDX-License-Identifier: MIT */
/* contest_pair.c: one configuration on one trace, in children.
 *
 * What: without work on the streams there are two children: one times iterations, then one single operations.  Iterations
 * come first since it is their times that feel what a predecessor left, and that should not be always the same
 * configuration.  Samples and a time line take more children.
 */
#include "cli/replay/contest_inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "cli/common/runner.h"
#include "cli/replay/configuration.h"
#include "cli/replay/merge.h"
#include "cli/report/report.h"

static weir_amount threshold_of(const struct contest *contest, const struct outcome *outcome) {
    uint64_t live = contest->traces[outcome->trace].header.live_peak_bytes;
    uint64_t part = (uint64_t)contest_thresholds[outcome->threshold];

    if (contest_thresholds[outcome->threshold] == CONTEST_THRESHOLD_MAX)
        return (weir_amount){0, WEIR_AMOUNT_MAX, 0};
    return (weir_amount){live / 100 * part + live % 100 * part / 100, WEIR_AMOUNT_BYTES, 0};
}

/* Of several runs of a pair one will do. */
static int is_sampled(const struct contest *contest, const struct outcome *outcome) {
    return contest->samples && (size_t)(outcome - contest->outcomes) % contest->repeat == 0;
}

static json_t *timeline_of(const json_t *result) {
    return json_object_get(json_object_get(result, "samples"), "timeline");
}

/* What is in use weir tells only when it is asked, which changes what its caches keep: that is one replay
 * more.  What went wrong, which may be `message`; NULL if all went well. */
static const char *add_samples(const struct job *measured, int tape_fd, json_t *extras,
                               char *message, size_t message_bytes) {
    struct job job = *measured;
    json_t *samples, *timeline;

    job.samples = JOB_SAMPLES_WATCH;
    samples = runner_run(&job, tape_fd, message, message_bytes);
    if (!samples)
        return message;
    json_object_update(extras, samples);
    json_decref(samples);
    timeline = timeline_of(extras);
    if (json_object_get(timeline, "in_use_high"))
        return NULL;
    job.samples = JOB_SAMPLES_ASK;
    samples = runner_run(&job, tape_fd, message, message_bytes);
    if (!samples)
        return message;
    json_object_set(timeline, "in_use_low", json_object_get(timeline_of(samples), "in_use_low"));
    json_object_set(timeline, "in_use_high", json_object_get(timeline_of(samples), "in_use_high"));
    json_decref(samples);
    return NULL;
}

/* Of the first repeat. */
static int has_timeline(const struct contest *contest, const struct outcome *outcome) {
    return contest->timeline_file && (size_t)(outcome - contest->outcomes) % contest->repeat == 0;
}

/* Once more, to see what happens when.  0 with a message. */
static int add_timeline(const struct contest *contest, const struct outcome *outcome,
                        const struct job *measured, json_t *extras, char *message,
                        size_t message_bytes) {
    struct job job = *measured;
    json_t *timeline;

    job.timeline = (int)((size_t)(outcome - contest->outcomes) / contest->repeat) + 1;
    timeline = runner_run(&job, contest->traces[outcome->trace].tape_fd, message, message_bytes);
    return timeline && json_object_set_new(extras, "timeline", timeline) == 0;
}

/* What further children tell, before the one that is measured call by call: it alone writes what was learned, so all
 * begin with the same.  What is logged is its to say, too, and why something was refused.  NULL with the reason in
 * `message`. */
static json_t *run_others(const struct contest *contest, const struct outcome *outcome,
                          const struct job *measured, json_t **stretches, char *message,
                          size_t message_bytes) {
    int tape_fd = contest->traces[outcome->trace].tape_fd;
    json_t *extras = json_object();
    struct job job = *measured;

    job.forgets = 1;
    job.options.log = WEIR_LOG_NONE;
    if (outcome->busy_factor <= 0 && contest->pace <= 0) {
        job.stretches = 1;
        *stretches = runner_run(&job, tape_fd, message, message_bytes);
        if (!*stretches)
            goto fail;
        job.stretches = 0;
    }
    if (is_sampled(contest, outcome) && add_samples(&job, tape_fd, extras, message, message_bytes))
        goto fail;
    if (has_timeline(contest, outcome) &&
        !add_timeline(contest, outcome, &job, extras, message, message_bytes))
        goto fail;
    return extras;

fail:
    json_decref(*stretches);
    *stretches = NULL;
    json_decref(extras);
    return NULL;
}

/* As runner_run. */
static json_t *run_measured(const struct contest *contest, const struct outcome *outcome,
                            const weir_options *options, char *message, size_t message_bytes) {
    int tape_fd = contest->traces[outcome->trace].tape_fd;
    json_t *stretches = NULL, *result, *extras;
    const char *wrong = NULL;
    struct job job;

    job_make(&job, contest->configurations[outcome->configuration], outcome->busy_factor, options,
             contest->device_source);
    job.has_threshold = contest->thresholds;
    if (contest->thresholds)
        job.threshold = threshold_of(contest, outcome);
    job.pace = contest->pace;
    job.forgets = !outcome->notes;
    extras = run_others(contest, outcome, &job, &stretches, message, message_bytes);
    if (!extras)
        return NULL;
    job.buckets = contest->samples;
    result = runner_run(&job, tape_fd, message, message_bytes);
    if (result && stretches)
        wrong = merge_stretches(result, stretches);
    if (result && json_object_update(result, extras) != 0)
        wrong = "out of memory";
    json_decref(stretches);
    json_decref(extras);
    if (!wrong)
        return result;
    snprintf(message, message_bytes, "%s", wrong);
    json_decref(result);
    return NULL;
}

/* The first run, which does not count, leaves a profile to those that do. */
static json_t *run_learning(const struct contest *contest, const struct outcome *outcome,
                            char *message, size_t message_bytes) {
    const char *place = getenv("TMPDIR");
    weir_options options = contest->options;
    char profile[WEIR_SHOW_BYTES];
    json_t *result = NULL;
    struct job job;
    int file;

    if (!place || !*place)
        place = "/tmp";
    snprintf(profile, sizeof profile, "%s/weir-profile-XXXXXX", place);
    file = mkstemp(profile);
    if (file < 0) {
        snprintf(message, message_bytes, "cannot make a file in %.200s: %s", place,
                 strerror(errno));
        return NULL;
    }
    close(file);
    options.profile = profile;
    job_make(&job, contest->configurations[outcome->configuration], outcome->busy_factor, &options,
             contest->device_source);
    job.pace = contest->pace;
    job.options.log = WEIR_LOG_NONE;
    result = runner_run(&job, contest->traces[outcome->trace].tape_fd, message, message_bytes);
    if (result) {
        json_decref(result);
        result = run_measured(contest, outcome, &options, message, message_bytes);
    }
    unlink(profile);
    return result;
}

json_t *contest_run_pair(const struct contest *contest, const struct outcome *outcome,
                         char *message, size_t message_bytes) {
    const struct configuration *configuration =
        configuration_find(contest->configurations[outcome->configuration]);

    if (configuration && configuration->learns)
        return run_learning(contest, outcome, message, message_bytes);
    return run_measured(contest, outcome, &contest->options, message, message_bytes);
}
