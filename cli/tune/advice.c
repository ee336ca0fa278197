/* SPDX-License-Identifier: MIT */
/* advice.c: see advice.h.
 *
 * A limit is for the goal memory alone, and a quarter above the smallest one that serves the traces at least, since a run that
 * needs more fails.
 */
#include "cli/tune/advice.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "cli/replay/least.h"

/* How much longer iterations, and all of them with the creation of the allocator, may take.  For the goal memory the program
 * may lose 2%; each answer may cost half of that, since the next run may lose more. */
static const double slack_ratio = 1.001, memory_slack_ratio = 1.01, memory_most_ratio = 1.02;
/* What each setting is to make smaller, and how much smaller it must get to count. */
static const struct {
    enum result_figure figure;
    double ratio;
} gains[CHOICES] = {[CHOICE_PREALLOC] = {FIGURE_MAKESPAN, 0.99},
                    [CHOICE_DECAY] = {FIGURE_KEPT, 0.9},
                    [CHOICE_LIMIT] = {FIGURE_RESERVED, 0.95}};
/* Of the smallest limit. */
static const uint64_t limit_percents[] = {125, 150, 200};

enum { HALF_LIFE_ITERATIONS = 5 };
static const uint64_t prealloc_unit = UINT64_C(2) << 20;

/* Returns the ratio of one trace: the largest by fmax, the least by fmin. */
static double ratio_by(double (*pick)(double, double), const struct trials *trials, int trial,
                       enum result_figure figure) {
    double picked = trials_ratio(trials, 0, trial, figure);

    for (size_t i = 1; i < trials->contest->trace_count; i++)
        picked = pick(picked, trials_ratio(trials, i, trial, figure));
    return picked;
}

/* Returns why a trial does harm on a trace, or NULL. */
static const char *harm_of(const struct trials *trials, int trial, enum goal goal, double slack) {
    if (isinf(ratio_by(fmax, trials, trial, FIGURE_STEADY_MAKESPAN)))
        return "requests fail";
    if (ratio_by(fmax, trials, trial, FIGURE_STEADY_MAKESPAN) > slack)
        return "slower";
    if (ratio_by(fmax, trials, trial, FIGURE_MAKESPAN) > slack)
        return "slower in all";
    return goal != GOAL_SPEED && ratio_by(fmax, trials, trial, FIGURE_RESERVED) > 1
               ? "reserves more"
               : NULL;
}

/* Makes the trial of a value of a setting, and takes the value over into `best` if it is good.  Returns 1 if it is, 0 if not,
 * -1 with a message printed. */
static int try_value(struct trials *trials, struct advice *advice, int setting, uint64_t value,
                     struct choice *best) {
    double slack = advice->goal == GOAL_MEMORY ? memory_slack_ratio : slack_ratio;
    struct choice choice = trials->choices[0];
    int trial;

    if (setting == CHOICE_DECAY)
        snprintf(choice.text[setting], sizeof choice.text[setting], "%zums", (size_t)value);
    else
        weir__bytes_spell(value, choice.text[setting], sizeof choice.text[setting]);
    trial = trials_run(trials, &choice);
    if (trial < 0)
        return -1;
    advice->against[trial] = harm_of(trials, trial, advice->goal, slack);
    if (!advice->against[trial] &&
        ratio_by(fmin, trials, trial, gains[setting].figure) > gains[setting].ratio)
        advice->against[trial] = "gains nothing";
    if (!advice->against[trial])
        memcpy(best->text[setting], choice.text[setting], sizeof choice.text[setting]);
    return !advice->against[trial];
}

/* Returns the most that weir's defaults come to on any trace. */
static uint64_t most_of(const struct trials *trials, enum result_figure figure) {
    uint64_t most = 0;

    for (size_t i = 0; i < trials->contest->trace_count; i++)
        most = weir__size_larger(most, result_at(&trials->results, i, 0, 0)->median.value[figure]);
    return most;
}

/* Tries limits, the smallest first.  Returns as try_value(). */
static int try_limits(struct trials *trials, struct advice *advice, struct choice *best) {
    double most = gains[CHOICE_LIMIT].ratio * (double)most_of(trials, FIGURE_RESERVED);
    int good = 0;

    for (size_t i = 0; good == 0 && i < sizeof limit_percents / sizeof limit_percents[0]; i++) {
        uint64_t limit = advice->least / least_unit * limit_percents[i] / 100 * least_unit;

        if ((double)limit > most)
            break;
        good = try_value(trials, advice, CHOICE_LIMIT, limit, best);
    }
    return good;
}

/* Tries all that the goal allows.  Returns 1, or 0 with a message printed. */
static int try_all(struct trials *trials, struct advice *advice, struct choice *best) {
    uint64_t half_life_ns = HALF_LIFE_ITERATIONS * most_of(trials, FIGURE_STEADY_MAKESPAN);
    uint64_t peak = most_of(trials, FIGURE_REQUESTED) + prealloc_unit - 1;

    if (advice->limit)
        peak = weir__size_smaller(peak, advice->limit);
    peak -= peak % prealloc_unit;
    return try_value(trials, advice, CHOICE_PREALLOC, peak, best) >= 0 &&
           (advice->goal == GOAL_SPEED ||
            try_value(trials, advice, CHOICE_DECAY, half_life_ns / 1000000 + 1, best) >= 0) &&
           (advice->goal != GOAL_MEMORY || advice->limit || try_limits(trials, advice, best) >= 0);
}

int advise(struct trials *trials, struct advice *advice) {
    double slack = advice->goal == GOAL_MEMORY ? memory_most_ratio : slack_ratio;
    struct choice best = {0};
    int trial;

    if (!trials_least(trials, &advice->least))
        return 0;
    if (!advice->least || (advice->limit && advice->limit + least_unit <= advice->least))
        return 1;
    if (advice->limit)
        weir__bytes_spell(advice->limit, best.text[CHOICE_LIMIT], sizeof best.text[CHOICE_LIMIT]);
    if (trials_run(trials, &best) < 0)
        return 0;
    advice->fits = isfinite(ratio_by(fmax, trials, 0, FIGURE_REQUESTED));
    advice->has_times = isfinite(ratio_by(fmax, trials, 0, FIGURE_STEADY_MAKESPAN));
    if (!advice->has_times)
        return 1;
    trial = try_all(trials, advice, &best) ? trials_run(trials, &best) : -1;
    if (trial < 0)
        return 0;
    advice->against[trial] = harm_of(trials, trial, advice->goal, slack);
    advice->best = advice->against[trial] ? 0 : trial;
    return 1;
}
