/* SPDX-License-Identifier: MIT */
/* least.c: the smallest limit at which a configuration serves a trace, by trials.  Each trial is a fresh process.
 *
 * Must not know: what configurations do.
 */
#include "cli/replay/contest.h"

#include "cli/common/runner.h"

const uint64_t least_unit = UINT64_C(32) << 20;

/* Returns 1 if a limit of that many units serves, 0 if not, -1 if that cannot be known.  *most becomes the memory of the
 * device in units. */
static int serves(const struct contest *contest, size_t trace, const char *configuration,
                  const weir_options *options, double busy, uint64_t units, uint64_t *most,
                  char *message) {
    struct job job;
    json_t *trial;
    int served;

    job_make(&job, configuration, busy, options, contest->device_source);
    job.options.limit = (weir_amount){0, WEIR_AMOUNT_DEFAULT, 0};
    job.options.log = WEIR_LOG_NONE; /* failures are expected */
    job.trial = 1;
    job.limit = units * least_unit;
    trial = runner_run(&job, contest->traces[trace].tape_fd, message, RUNNER_MESSAGE_BYTES);
    served = trial ? json_is_true(json_object_get(trial, "served")) : -1;
    if (trial)
        *most = (uint64_t)json_integer_value(json_object_get(trial, "device_bytes")) / least_unit;
    json_decref(trial);
    return served;
}

uint64_t least_limit(const struct contest *contest, size_t trace, const char *configuration,
                     const weir_options *options, double busy, char *message) {
    uint64_t live = contest->traces[trace].header.live_peak_bytes, most = UINT64_MAX;
    uint64_t low = live ? (live - 1) / least_unit : 0, high = low + 1, step = high / 32 + 1;
    int served;

#define SERVES(units) serves(contest, trace, configuration, options, busy, units, &most, message)
    while ((served = SERVES(high)) == 0) {
        if (high >= most)
            return 0;
        low = high;
        high = high + step < most ? high + step : most;
        step *= 2;
    }
    while (served >= 0 && high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        served = SERVES(middle);
        if (served > 0)
            high = middle;
        else
            low = middle;
    }
#undef SERVES
    return served >= 0 ? high * least_unit : 0;
}
