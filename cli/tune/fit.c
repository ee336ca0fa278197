/* SPDX-License-Identifier: MIT */
/* fit.c: see fit.h.  A trial replays all of a trace, in a fresh process, and ends where a request is refused. */
#include "cli/tune/fit.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/text.h"
#include "cli/common/interrupt.h"
#include "cli/common/runner.h"
#include "cli/replay/least.h"

static uint64_t integer_at(const json_t *object, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static int tell(const char *name, const char *message) {
    if (!interrupt_came() && message[0])
        fprintf(stderr, "weir: %s: %s\n", name, message);
    return -1;
}

static weir_options options_of(const struct tuning *tuning, const struct candidate *candidate) {
    weir_options options = tuning->contest->options;

    candidate_apply(candidate, &tuning->space, &options);
    options.log = WEIR_LOG_NONE; /* failures are expected */
    return options;
}

/* NULL, with a message printed, if it cannot be told. */
static json_t *try(const struct tuning *tuning, const struct candidate *candidate, size_t trace,
                   uint64_t limit) {
    const struct contest *contest = tuning->contest;
    weir_options options = options_of(tuning, candidate);
    char message[RUNNER_MESSAGE_BYTES];
    json_t *result = least_try(contest, trace, "replay", &options, 0, limit, message);

    if (!result)
        tell(contest->traces[trace].header.name, message);
    return result;
}

static int serves(const struct tuning *tuning, const struct candidate *candidate, uint64_t limit) {
    int served = 1;

    for (size_t i = 0; i < tuning->contest->trace_count && served; i++) {
        json_t *result = try(tuning, candidate, i, limit);

        if (!result)
            return -1;
        served = json_is_true(json_object_get(result, "served"));
        json_decref(result);
    }
    return served;
}

int fit_holds(const struct tuning *tuning, const struct candidate *candidate) {
    return serves(tuning, candidate, tuning->space.limit);
}

/* The smallest limit at which that base serves every trace; 0: there is none, or it cannot be told. */
static uint64_t least_of(const struct tuning *tuning, const struct candidate *base) {
    weir_options options = options_of(tuning, base);
    char message[RUNNER_MESSAGE_BYTES] = "";
    uint64_t least = 0;

    for (size_t i = 0; i < tuning->contest->trace_count; i++) {
        uint64_t found = least_limit(tuning->contest, i, "replay", &options, 0, message);

        if (!found) {
            tell(tuning->contest->traces[i].header.name, message);
            return 0;
        }
        if (found > least)
            least = found;
    }
    return least;
}

static int find_missing(const struct tuning *tuning, struct fit *fit) {
    for (int base = 0; base < BASES; base++) {
        struct candidate candidate = {{base}};
        int served = tuning->space.has_base[base];
        uint64_t least;

        if (served && fit->least)
            served = serves(tuning, &candidate, fit->least - least_unit);
        if (served < 0 || interrupt_came())
            return -1;
        least = served ? least_of(tuning, &candidate) : 0;
        if (least && (!fit->least || least < fit->least)) {
            fit->least = least;
            fit->by = candidate;
        }
    }
    return 0;
}

/* Of a device there is what it does not have itself. */
static int set_limit(struct tuning *tuning, struct fit *fit) {
    const struct contest *contest = tuning->contest;
    const struct candidate base = {{0}};
    json_t *result = try(tuning, &base, 0, 0);
    uint64_t device = integer_at(result, "device_bytes");
    char asked[24], there[24];

    if (!result)
        return 0;
    if (fit->is_device)
        fit->taken = integer_at(result, "device_taken_bytes");
    json_decref(result);
    tuning->space.limit = weir__size_less(fit->bytes, fit->taken);
    if (fit->bytes <= device && tuning->space.limit)
        return 1;
    weir__bytes_show(fit->bytes, asked, sizeof asked);
    weir__bytes_show(fit->bytes > device ? device : fit->taken, there, sizeof there);
    fprintf(stderr, "weir: %s '%s': %s %s %s; expected %s that\n",
            fit->is_device ? "--device-memory" : "--limit", asked, contest->device,
            fit->bytes > device ? "has" : "takes for its context", there,
            fit->bytes > device ? "at most" : "more than");
    return 0;
}

int fit_run(struct tuning *tuning, struct fit *fit) {
    struct space *space = &tuning->space;
    int has_base[BASES], any = 0;

    if (!set_limit(tuning, fit))
        return -1;
    for (int base = 0; base < BASES; base++) {
        const struct candidate candidate = {{base}};
        int served = space->has_base[base] ? fit_holds(tuning, &candidate) : 0;

        if (served < 0)
            return -1;
        any |= has_base[base] = served;
    }
    if (!any)
        return find_missing(tuning, fit);
    memcpy(space->has_base, has_base, sizeof has_base);
    return 1;
}
