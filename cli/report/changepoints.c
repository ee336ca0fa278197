/* SPDX-License-Identifier: MIT */
/* changepoints.c: see changepoints.h.
 *
 * PELT: Killick, Fearnhead, Eckley, "Optimal detection of changepoints with a linear computational cost"
 * (2012).  A start of a last stretch that is worse by the penalty than the best one is left out for
 * good; since a stretch behind it has two iterations at least, two steps later.
 */
#include "cli/report/changepoints.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 1000, LEAST_STRETCH = 2, LEAST_STEADY = 3, LEAST_SERIES = 6 };

static const double least_noise = 0.01, outlier_noises = 6.0, same_ratio = 0.05;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts. */
static double median_of(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    return count ? (values[(count - 1) / 2] + values[count / 2]) / 2.0 : 0.0;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static size_t draw(uint64_t *state, size_t below) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (size_t)((z ^ (z >> 31)) % below);
}

/* ------------------------------------------------------------------ segments ---- */

/* Sums of the values before i, and of their squares. */
struct sums {
    double *sum, *square;
};

static double cost(const struct sums *sums, size_t from, size_t to) {
    double sum = sums->sum[to] - sums->sum[from];
    double rest = sums->square[to] - sums->square[from] - sum * sum / (double)(to - from);

    return rest > 0.0 ? rest : 0.0;
}

static void add_up(const double *values, size_t count, double mean, const struct sums *sums) {
    sums->sum[0] = sums->square[0] = 0.0;
    for (size_t i = 0; i < count; i++) {
        double value = values[i] - mean; /* what is summed stays small */

        sums->sum[i + 1] = sums->sum[i] + value;
        sums->square[i + 1] = sums->square[i] + value * value;
    }
}

/* Candidates for the start of the last stretch before `end`, of which the best goes to *from. */
static double best_start(const struct sums *sums, const double *best, double variance,
                         double penalty, const size_t *starts, size_t count, size_t end,
                         size_t *from) {
    double least = INFINITY;

    for (size_t i = 0; i < count; i++) {
        size_t start = starts[i];
        double total;

        if (start > 0 && end - start < LEAST_STRETCH)
            continue;
        total = best[start] + cost(sums, start, end) / variance + penalty;
        if (total < least) {
            least = total;
            *from = start;
        }
    }
    return least;
}

/* Leaves out those that were found too bad two steps ago, and notes those that are so now. */
static size_t prune(const struct sums *sums, const double *best, double variance, size_t *starts,
                    size_t *bad_from, size_t count, size_t end) {
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        size_t start = starts[i];

        if (bad_from[start] == SIZE_MAX && end - start >= LEAST_STRETCH &&
            best[start] + cost(sums, start, end) / variance >= best[end])
            bad_from[start] = end + LEAST_STRETCH;
        if (end + 1 < bad_from[start])
            starts[kept++] = start;
    }
    return kept;
}

size_t changepoints_pelt(const double *values, size_t count, double noise, size_t *at) {
    double penalty = 15.0 * log((double)(count > 1 ? count : 2)), variance = noise * noise;
    double *room = calloc(3 * (count + 1), sizeof *room);
    size_t *places = calloc(3 * (count + 1), sizeof *places);
    size_t *from = places, *starts = places + count + 1, *bad_from = starts + count + 1;
    struct sums sums = {room, room + count + 1};
    double *best = room + 2 * (count + 1);
    size_t found = SIZE_MAX, start_count = 1;

    if (!room || !places)
        goto out;
    add_up(values, count, count ? values[0] : 0.0, &sums);
    best[0] = -penalty;
    bad_from[0] = SIZE_MAX;
    for (size_t end = 1; end <= count; end++) {
        best[end] =
            best_start(&sums, best, variance, penalty, starts, start_count, end, &from[end]);
        start_count = prune(&sums, best, variance, starts, bad_from, start_count, end);
        bad_from[end] = SIZE_MAX;
        starts[start_count++] = end;
    }
    found = 0;
    for (size_t end = count; end > 0 && from[end] > 0; end = from[end])
        at[found++] = from[end];
    for (size_t i = 0; i < found / 2; i++) {
        size_t other = at[i];

        at[i] = at[found - 1 - i];
        at[found - 1 - i] = other;
    }
out:
    free(room);
    free(places);
    return found;
}

/* ------------------------------------------------------- noise and outliers ---- */

/* The standard deviation of one value, as the median difference of neighbours tells it. */
static double noise_of(const double *values, size_t count, double *room) {
    double noise;

    for (size_t i = 0; i + 1 < count; i++)
        room[i] = fabs(values[i + 1] - values[i]);
    noise = count > 1 ? median_of(room, count - 1) / (0.6745 * sqrt(2.0)) : 0.0;
    return noise > least_noise ? noise : least_noise;
}

/* Puts the neighbours' mean in the place of each outlier. */
static size_t take_outliers_out(double *values, size_t count, double noise,
                                unsigned char *is_outlier) {
    size_t outliers = 0;

    for (size_t i = 1; i < count && count > 2; i++) {
        double left = values[i] - values[i - 1];
        double right = i + 1 < count ? values[i] - values[i + 1] : left;

        if (left * right <= 0.0 || fabs(left) < outlier_noises * noise ||
            fabs(right) < outlier_noises * noise)
            continue;
        is_outlier[i] = 1;
        outliers++;
        values[i] = i + 1 < count ? (values[i - 1] + values[i + 1]) / 2.0 : values[i - 1];
    }
    return outliers;
}

/* ----------------------------------------------------------------- intervals ---- */

static double mean_of(const double *values, size_t count) {
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum / (double)count;
}

static void interval(double *values, double *low, double *high) {
    qsort(values, DRAWS, sizeof *values, compare);
    *low = values[DRAWS / 40];
    *high = values[DRAWS - 1 - DRAWS / 40];
}

/* The mean of the logarithms of what is no outlier, as a time; `room` holds the stretch. */
static void measure_level(const double *values, const unsigned char *is_outlier,
                          struct level *level, uint64_t *seed, double *room, double *draws) {
    size_t count = 0;

    for (size_t i = level->from; i < level->from + level->count; i++)
        if (!is_outlier[i])
            room[count++] = values[i];
    if (count == 0) /* two outliers side by side: what stands in for them */
        for (; count < level->count; count++)
            room[count] = values[level->from + count];
    level->ns = exp(mean_of(room, count));
    for (size_t r = 0; r < DRAWS; r++) {
        double sum = 0.0;

        for (size_t i = 0; i < count; i++)
            sum += room[draw(seed, count)];
        draws[r] = exp(sum / (double)count);
    }
    interval(draws, &level->low_ns, &level->high_ns);
}

/* Where two stretches of these values part best. */
static size_t best_split(const double *values, size_t count, const struct sums *sums,
                         size_t least_left) {
    double least = INFINITY;
    size_t found = least_left;

    add_up(values, count, values[0], sums);
    for (size_t at = least_left; at + LEAST_STRETCH <= count; at++) {
        double total = cost(sums, 0, at) + cost(sums, at, count);

        if (total < least) {
            least = total;
            found = at;
        }
    }
    return found;
}

/* Where the changepoint between two levels would have been found with other noise.  A level of one
 * iteration has no noise of its own, so residuals are drawn from both. */
static void place_changepoint(const double *values, const struct level *before, struct level *after,
                              uint64_t *seed, double *room, double *draws) {
    const double *from = values + before->from;
    size_t left = before->count, count = left + after->count;
    double *residuals = room, *made = room + count;
    struct sums sums = {made + count, made + 2 * count + 1};
    double mean_left = mean_of(from, left), mean_right = mean_of(from + left, after->count);
    double low, high;

    for (size_t i = 0; i < count; i++)
        residuals[i] = from[i] - (i < left ? mean_left : mean_right);
    for (size_t r = 0; r < DRAWS; r++) {
        for (size_t i = 0; i < count; i++)
            made[i] = (i < left ? mean_left : mean_right) + residuals[draw(seed, count)];
        draws[r] = (double)best_split(made, count, &sums, before->from ? LEAST_STRETCH : 1);
    }
    interval(draws, &low, &high);
    after->from_low = before->from + (size_t)low;
    after->from_high = before->from + (size_t)high;
}

/* --------------------------------------------------------------------- class ---- */

static int is_same(const struct level *a, const struct level *b) {
    double larger = fmax(a->ns, b->ns), smaller = fmin(a->ns, b->ns);

    return larger - smaller <= same_ratio * larger ||
           (a->low_ns <= b->high_ns && b->low_ns <= a->high_ns);
}

static enum series_class classify(struct changepoints *points, size_t count) {
    const struct level *last = &points->levels[points->level_count - 1];
    size_t steady = points->level_count - 1, length;
    int any_slower = 0;

    while (steady > 0 && is_same(&points->levels[steady - 1], last))
        steady--;
    points->steady_from = points->levels[steady].from;
    length = count - points->steady_from;
    if (count < LEAST_SERIES)
        return SERIES_SHORT;
    if (length < LEAST_STEADY || 4 * length < count)
        return SERIES_NEVER_STEADY;
    for (size_t i = 0; i < steady; i++) {
        if (is_same(&points->levels[i], last))
            continue;
        if (points->levels[i].ns > last->ns)
            any_slower = 1;
        else if (points->levels[i].count >= LEAST_STEADY)
            return SERIES_SLOWDOWN;
    }
    return any_slower ? SERIES_WARM_UP : SERIES_FLAT;
}

const char *changepoints_word(enum series_class kind) {
    static const char *const words[] = {"too short", "flat", "warm-up", "slowdown", "never steady"};

    return words[kind];
}

/* ----------------------------------------------------------------------- all ---- */

static int measure(const double *values, size_t count, struct changepoints *out) {
    double *room = calloc(4 * count + 2 + DRAWS, sizeof *room);
    uint64_t seed = 1;

    if (!room)
        return 0;
    for (size_t i = 0; i < out->level_count; i++)
        measure_level(values, out->is_outlier, &out->levels[i], &seed, room, room + 4 * count + 2);
    for (size_t i = 1; i < out->level_count; i++)
        place_changepoint(values, &out->levels[i - 1], &out->levels[i], &seed, room,
                          room + 4 * count + 2);
    free(room);
    return 1;
}

int changepoints_find(const uint64_t *ns, size_t count, struct changepoints *out) {
    double *values = calloc(2 * count + 1, sizeof *values);
    size_t *at = calloc(count + 1, sizeof *at), found = SIZE_MAX;

    memset(out, 0, sizeof *out);
    out->is_outlier = calloc(count + 1, 1);
    out->levels = calloc(count + 1, sizeof *out->levels);
    if (values && at && out->is_outlier && out->levels) {
        for (size_t i = 0; i < count; i++)
            values[i] = log(ns[i] ? (double)ns[i] : 1.0);
        out->noise = noise_of(values, count, values + count);
        out->outliers = take_outliers_out(values, count, out->noise, out->is_outlier);
        found = changepoints_pelt(values, count, out->noise, at);
    }
    if (found != SIZE_MAX && count > 0) {
        out->level_count = found + 1;
        for (size_t i = 0; i <= found; i++) {
            out->levels[i].from = i ? at[i - 1] : 0;
            out->levels[i].count = (i < found ? at[i] : count) - out->levels[i].from;
        }
        if (!measure(values, count, out))
            found = SIZE_MAX;
        else
            out->kind = classify(out, count);
    }
    free(values);
    free(at);
    if (found != SIZE_MAX)
        return 1;
    changepoints_free(out);
    return 0;
}

void changepoints_free(struct changepoints *points) {
    free(points->levels);
    free(points->is_outlier);
    memset(points, 0, sizeof *points);
}
