/* SPDX-License-Identifier: MIT */
/* advice.c: see advice.h.
 *
 * A limit is for the goal memory alone, and a quarter above the smallest one that serves the traces at least, since a run that
 * needs more fails.
 */
#include "cli/tune/advice.h"

#include <string.h>

#include "base/size.h"
#include "cli/replay/least.h"

/* How much longer iterations, and the run with the creation of the allocator, may take.  For the goal memory the program may
 * lose 2%; the answers may cost half of that, since the next run may lose more. */
static const double slack_ratio = 1.001, memory_slack_ratio = 1.01, memory_most_ratio = 1.02;
/* The least gains that count: in the time of the run, in memory that is kept, in reserved memory. */
static const double gain_ratios[CHOICES] = {
    [CHOICE_PREALLOC] = 0.99, [CHOICE_DECAY] = 0.9, [CHOICE_LIMIT] = 0.95};
/* Of the smallest limit. */
static const uint64_t limit_percents[] = {125, 150, 200};

enum { HALF_LIFE_ITERATIONS = 5 };
static const uint64_t prealloc_unit = UINT64_C(2) << 20;

double advice_iteration(const struct trials *trials, int trial) {
    return trials_mean(trials, trial, FIGURE_STEADY_MAKESPAN) /
           trials_mean(trials, 0, FIGURE_STEADY_MAKESPAN);
}

/* Returns the figure that a setting is to make smaller; of a preallocation the time of the creation and all iterations. */
static double aim_of(const struct trials *trials, int trial, int setting) {
    return setting == CHOICE_LIMIT   ? trials_mean(trials, trial, FIGURE_RESERVED)
           : setting == CHOICE_DECAY ? trials_mean(trials, trial, FIGURE_KEPT)
                                     : trials_mean(trials, trial, trials->creation) +
                                           trials_mean(trials, trial, FIGURE_MAKESPAN);
}

/* Returns why a trial does harm, or NULL. */
static const char *harm_of(const struct trials *trials, int trial, enum goal goal, double slack) {
    if (trials_mean(trials, trial, FIGURE_STEADY_MAKESPAN) < 0)
        return "requests fail";
    if (advice_iteration(trials, trial) > slack)
        return "slower";
    if (aim_of(trials, trial, CHOICE_PREALLOC) > slack * aim_of(trials, 0, CHOICE_PREALLOC))
        return "slower in all";
    return goal != GOAL_SPEED &&
                   aim_of(trials, trial, CHOICE_LIMIT) > aim_of(trials, 0, CHOICE_LIMIT)
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
        aim_of(trials, trial, setting) > gain_ratios[setting] * aim_of(trials, 0, setting))
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
    double most = gain_ratios[CHOICE_LIMIT] * (double)most_of(trials, FIGURE_RESERVED);
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
    double iteration = trials_mean(trials, 0, FIGURE_STEADY_MAKESPAN);
    uint64_t peak = most_of(trials, FIGURE_REQUESTED) + prealloc_unit - 1;

    if (advice->limit)
        peak = weir__size_smaller(peak, advice->limit);
    peak -= peak % prealloc_unit;
    return try_value(trials, advice, CHOICE_PREALLOC, peak, best) >= 0 &&
           (advice->goal == GOAL_SPEED ||
            try_value(trials, advice, CHOICE_DECAY,
                      (uint64_t)(HALF_LIFE_ITERATIONS * iteration / 1e6) + 1, best) >= 0) &&
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
    advice->fits = trials_mean(trials, 0, FIGURE_RESERVED) >= 0;
    if (trials_mean(trials, 0, FIGURE_STEADY_MAKESPAN) < 0)
        return 1;
    trial = try_all(trials, advice, &best) ? trials_run(trials, &best) : -1;
    if (trial < 0)
        return 0;
    advice->against[trial] = harm_of(trials, trial, advice->goal, slack);
    advice->best = advice->against[trial] ? 0 : trial;
    return 1;
}
