/* SPDX-License-Identifier: MIT */
/* search.c: see search.h. */
#include "cli/tune/search.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/interrupt.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/tune/part.h"

enum {
    MOST_AT_ONCE = 8,
    STARTS = 2,            /* bases from which the search goes on */
    ROUNDS = 2,            /* along all axes, the second only where the first found anything */
    MOST_OPERATIONS = 200000 /* of what is searched, if it has two iterations at least */
};
/* A setting is worth naming if it gains more. */
static const double least_gain = 0.002;

/* What 1 % more of it weighs, for each goal. */
static const struct {
    double memory, time;
} weights[] = {[GOAL_BALANCED] = {1, 0.25}, [GOAL_MEMORY] = {1, 0.01}, [GOAL_SPEED] = {0.1, 1}};

static double number(const json_t *object, const char *key) {
    return (double)json_integer_value(json_object_get(object, key));
}

/* ----------------------------------------------------------------- parts ---- */

/* Half of the iterations, or as many as can be searched quickly. */
static uint64_t searched_marks(const struct tape *tape) {
    uint64_t half = tape->header->marks / 2, marks = 0;

    for (uint64_t i = 0; i < tape->header->ops && marks < half; i++) {
        marks += tape->ops[i].code == 'm';
        if (marks >= 2 && i >= MOST_OPERATIONS)
            break;
    }
    return marks;
}

static int divide(const struct contest_trace *trace, struct tuned_trace *tuned) {
    char message[RUNNER_MESSAGE_BYTES] = "it cannot be mapped";
    struct tape tape;
    int good;

    if (!tape_map(trace->tape_fd, &tape))
        return fprintf(stderr, "weir: %s: %s\n", trace->path, message) < 0;
    if (tape.header->marks >= 2)
        tuned->searched = searched_marks(&tape);
    tuned->fd[PART_SEARCHED] = part_make(&tape, 0, tuned->searched, &tuned->header[PART_SEARCHED],
                                         message, sizeof message);
    tuned->fd[PART_REST] = part_make(&tape, tuned->searched, 0, &tuned->header[PART_REST], message,
                                     sizeof message);
    good = tuned->fd[PART_SEARCHED] >= 0 && tuned->fd[PART_REST] >= 0;
    if (!good)
        fprintf(stderr, "weir: %s: %s\n", trace->path, message);
    tape_unmap(&tape);
    return good;
}

int search_begin(struct tuning *tuning) {
    struct contest *contest = tuning->contest;

    tuning->traces = calloc(contest->trace_count, sizeof *tuning->traces);
    if (!tuning->traces) {
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    for (size_t i = 0; i < contest->trace_count; i++)
        tuning->traces[i].fd[PART_SEARCHED] = tuning->traces[i].fd[PART_REST] = -1;
    for (size_t i = 0; i < contest->trace_count; i++) {
        uint64_t peak;

        if (!divide(&contest->traces[i], &tuning->traces[i]))
            return 0;
        peak = tuning->traces[i].header[PART_SEARCHED].live_peak_bytes;
        if (peak > tuning->space.live_peak)
            tuning->space.live_peak = peak;
    }
    for (size_t i = 0; i < contest->contestant_count; i++)
        for (int base = 0; base < BASES; base++)
            tuning->space.has_base[base] |= strcmp(contest->contestants[i], base_names[base]) == 0;
    return 1;
}

/* ----------------------------------------------------------- measurement ---- */

/* On the device model by what driver calls take. */
static void measure(const struct contest *contest, const json_t *result, struct measured *out) {
    const char *key = contest->modelled ? "driver_ns" : "alloc_ns";
    const json_t *iteration;
    double count, sum = 0;
    size_t i;

    out->reserved = (uint64_t)number(result, "reserved_peak_bytes");
    out->requested = (uint64_t)number(result, "requested_peak_bytes");
    out->creation_ns = number(result, contest->modelled ? "open_driver_ns" : "creation_ns");
    out->first_ns =
        number(result, contest->modelled ? "first_iteration_driver_ns" : "first_iteration_ns");
    out->steady_ns =
        number(result, contest->modelled ? "steady_alloc_driver_ns" : "steady_alloc_ns");
    json_array_foreach(json_object_get(result, "iterations"), i, iteration) sum +=
        number(iteration, key);
    count = (double)json_array_size(json_object_get(result, "iterations"));
    out->run_ns = out->creation_ns + sum;
    if (count > 1 && count < RUN_ITERATIONS) {
        out->run_ns += (RUN_ITERATIONS - count) * out->steady_ns;
        count = RUN_ITERATIONS;
    }
    out->run_ns /= count;
}

struct work {
    struct tuning *tuning;
    enum part part;
    struct evaluation *evaluations;
    size_t count;
    atomic_size_t next;
    atomic_int failed;
    pthread_mutex_t lock; /* of tuning->error */
};

static int run_one(struct work *work, struct evaluation *evaluation, size_t trace) {
    struct tuning *tuning = work->tuning;
    const struct contest *contest = tuning->contest;
    weir_options options = contest->options;
    char message[RUNNER_MESSAGE_BYTES];
    struct job job;
    json_t *result;

    candidate_apply(&evaluation->candidate, &tuning->space, &options);
    options.log = WEIR_LOG_NONE;
    job_make(&job, "replay", 0, &options, contest->device_source);
    job.limit = tuning->space.limit;
    job.forgets = 1;
    result = runner_run(&job, tuning->traces[trace].fd[work->part], message, sizeof message);
    if (result) {
        measure(contest, result, &evaluation->measured[trace]);
        if (number(result, "failed") > 0)
            evaluation->served = 0;
        json_decref(result);
        return 1;
    }
    evaluation->served = 0;
    if (tuning->space.limit && !interrupt_came()) /* it cannot even be created */
        return 1;
    pthread_mutex_lock(&work->lock);
    if (!tuning->error[0])
        snprintf(tuning->error, sizeof tuning->error, "%s", message);
    pthread_mutex_unlock(&work->lock);
    return 0;
}

static void *do_work(void *argument) {
    struct work *work = argument;
    size_t traces = work->tuning->contest->trace_count, i;

    while (!work->failed && (i = atomic_fetch_add(&work->next, 1)) < work->count * traces)
        if (!run_one(work, &work->evaluations[i / traces], i % traces))
            work->failed = 1;
    return NULL;
}

/* Each replay is a process of its own.  On a GPU they would disturb each other. */
static void work_at_once(struct work *work) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MOST_AT_ONCE];
    int count = 0;

    while (work->tuning->contest->modelled && count + 1 < processors && count < MOST_AT_ONCE &&
           pthread_create(&threads[count], NULL, do_work, work) == 0)
        count++;
    do_work(work);
    while (count > 0)
        pthread_join(threads[--count], NULL);
}

static void rate(const struct tuning *tuning, struct evaluation *evaluation) {
    evaluation->score = evaluation->served ? 0 : INFINITY;
    for (size_t i = 0; i < tuning->contest->trace_count; i++) {
        const struct measured *m = &evaluation->measured[i];

        evaluation->score += weights[tuning->goal].memory * log(fmax((double)m->reserved, 1)) +
                             weights[tuning->goal].time * log(fmax(m->run_ns, 1));
    }
    evaluation->score /= (double)tuning->contest->trace_count;
}

int search_measure(struct tuning *tuning, enum part part, struct evaluation *evaluations,
                   size_t count) {
    struct work work = {.tuning = tuning,
                        .part = part,
                        .evaluations = evaluations,
                        .count = count,
                        .lock = PTHREAD_MUTEX_INITIALIZER};

    for (size_t i = 0; i < count; i++) {
        evaluations[i].served = 1;
        evaluations[i].measured =
            calloc(tuning->contest->trace_count, sizeof *evaluations[i].measured);
        if (!evaluations[i].measured) {
            snprintf(tuning->error, sizeof tuning->error, "out of memory");
            return 0;
        }
    }
    work_at_once(&work);
    for (size_t i = 0; i < count; i++)
        rate(tuning, &evaluations[i]);
    return !work.failed;
}

/* ---------------------------------------------------------------- search ---- */

static const struct evaluation *find(const struct tuning *tuning,
                                     const struct candidate *candidate) {
    for (size_t i = 0; i < tuning->count; i++)
        if (candidate_is(&tuning->evaluations[i].candidate, candidate))
            return &tuning->evaluations[i];
    return NULL;
}

/* Measures those that have not been. */
static int try_all(struct tuning *tuning, const struct candidate *candidates, size_t count) {
    struct evaluation *more =
        reallocarray(tuning->evaluations, tuning->count + count, sizeof *more);
    size_t added = 0;

    if (!more) {
        snprintf(tuning->error, sizeof tuning->error, "out of memory");
        return 0;
    }
    tuning->evaluations = more;
    for (size_t i = 0; i < count; i++)
        if (!find(tuning, &candidates[i]))
            more[tuning->count + added++] = (struct evaluation){.candidate = candidates[i]};
    if (!search_measure(tuning, PART_SEARCHED, more + tuning->count, added)) {
        search_drop(more + tuning->count, added);
        return 0;
    }
    tuning->count += added;
    return 1;
}

static double score_of(const struct tuning *tuning, const struct candidate *candidate) {
    return find(tuning, candidate)->score;
}

static int try_bases(struct tuning *tuning) {
    struct candidate bases[BASES] = {0};
    size_t count = 0;

    for (int base = 0; base < BASES; base++)
        if (tuning->space.has_base[base])
            bases[count++].value[AXIS_BASE] = base;
    if (!try_all(tuning, bases, count))
        return 0;
    for (size_t i = 0; i < count; i++)
        for (size_t trace = 0; trace < tuning->contest->trace_count; trace++) {
            uint64_t *peak = &tuning->space.reserved_peak[bases[i].value[AXIS_BASE]];
            uint64_t reserved = find(tuning, &bases[i])->measured[trace].reserved;

            if (reserved > *peak)
                *peak = reserved;
        }
    return 1;
}

/* *best moves to the best value of that axis. */
static int try_axis(struct tuning *tuning, enum axis axis, struct candidate *best) {
    struct candidate values[8];
    int count = candidate_values(best, axis);

    for (int value = 0; value < count; value++) {
        values[value] = *best;
        values[value].value[axis] = value;
    }
    if (!try_all(tuning, values, (size_t)count))
        return 0;
    for (int value = 0; value < count; value++)
        if (score_of(tuning, &values[value]) < score_of(tuning, best) - least_gain)
            *best = values[value];
    return 1;
}

static int try_axes(struct tuning *tuning, struct candidate best) {
    for (int round = 0; round < ROUNDS; round++) {
        struct candidate before = best;

        for (int axis = AXIS_BASE + 1; axis < AXES; axis++)
            if (!try_axis(tuning, (enum axis)axis, &best))
                return 0;
        if (candidate_is(&best, &before))
            break;
    }
    return 1;
}

static int by_score(const void *a, const void *b) {
    const struct evaluation *x = a, *y = b;

    return (x->score > y->score) - (x->score < y->score);
}

int search_run(struct tuning *tuning) {
    struct candidate starts[STARTS];
    size_t count = 0;

    if (!try_bases(tuning))
        return 0;
    qsort(tuning->evaluations, tuning->count, sizeof *tuning->evaluations, by_score);
    for (size_t i = 0; i < tuning->count && count < STARTS; i++)
        if (tuning->evaluations[i].served)
            starts[count++] = tuning->evaluations[i].candidate;
    for (size_t i = 0; i < count; i++)
        if (!try_axes(tuning, starts[i]))
            return 0;
    qsort(tuning->evaluations, tuning->count, sizeof *tuning->evaluations, by_score);
    return 1;
}

/* ------------------------------------------------------------------ ends ---- */

struct evaluation *search_grid(const struct tuning *tuning, size_t *count) {
    struct evaluation *grid = NULL;
    struct candidate at = {0};
    int axis;

    *count = 0;
    do {
        struct evaluation *more = tuning->space.has_base[at.value[AXIS_BASE]]
                                      ? reallocarray(grid, *count + 1, sizeof *grid)
                                      : NULL;

        if (more) {
            grid = more;
            grid[(*count)++] = (struct evaluation){.candidate = at};
        }
        for (axis = AXES - 1; axis >= 0; axis--) {
            if (++at.value[axis] < candidate_values(&at, (enum axis)axis))
                break;
            at.value[axis] = 0;
        }
    } while (axis >= 0);
    return grid;
}

void search_drop(struct evaluation *evaluations, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(evaluations[i].measured);
}

void search_end(struct tuning *tuning) {
    search_drop(tuning->evaluations, tuning->count);
    free(tuning->evaluations);
    for (size_t i = 0; tuning->traces && i < tuning->contest->trace_count; i++)
        for (int part = 0; part < PARTS; part++)
            if (tuning->traces[i].fd[part] >= 0)
                close(tuning->traces[i].fd[part]);
    free(tuning->traces);
}
