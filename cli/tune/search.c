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
#include "cli/common/runner.h"
#include "cli/replay/result.h"
#include "cli/tune/part.h"

enum {
    MOST_AT_ONCE = 8,
    AGAIN = 3, /* bases that are looked at again */
    FINALISTS = 8,
    STEPS = 7,               /* of the search, the choice and the figures */
    MOST_PAIRS = 9,          /* of values of two axes */
    MOST_OPERATIONS = 200000 /* of what is searched, if it has two iterations at least */
};

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
    struct tape tape = {0};
    int good = tape_map(trace->tape_fd, &tape);

    if (good && tape.header->marks >= 2) {
        uint64_t all = tape.header->marks, searched = searched_marks(&tape);

        tuned->marks[PART_SEARCHED] = searched;
        tuned->marks[PART_CHOSEN] =
            searched + (searched + 1) / 2 < all ? searched + searched / 2 : searched;
        tuned->marks[PART_ALL] = all;
    }
    for (int part = 0; part < PARTS && good; part++) {
        uint64_t marks = part == PART_ALL ? 0 : tuned->marks[part];

        tuned->fd[part] = part_make(&tape, marks, message, sizeof message);
        good = tuned->fd[part] >= 0;
    }
    if (!good)
        fprintf(stderr, "weir: %s: %s\n", trace->path, message);
    if (tape.header)
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
        for (int part = 0; part < PARTS; part++)
            tuning->traces[i].fd[part] = -1;
    for (size_t i = 0; i < contest->trace_count; i++)
        if (!divide(&contest->traces[i], &tuning->traces[i]))
            return 0;
    for (size_t i = 0; i < contest->configuration_count; i++)
        for (int base = 0; base < BASES; base++)
            tuning->space.has_base[base] |=
                strcmp(contest->configurations[i]->name, base_names[base]) == 0;
    return 1;
}

/* ----------------------------------------------------------- measurement ---- */

/* Of the iterations from number `from' on. */
static double steady_of(const json_t *times, size_t from) {
    size_t count = json_array_size(times) - from;
    uint64_t *values = calloc(count ? count : 1, sizeof *values), found;

    for (size_t i = 0; values && i < count; i++)
        values[i] = (uint64_t)json_integer_value(json_array_get(times, from + i));
    found = values ? result_median(values, count) : 0;
    free(values);
    return (double)found;
}

/* On the device model by what driver calls take.  `from': the first iteration that is steady. */
static void measure(const struct contest *contest, const json_t *result, size_t from,
                    struct measured *out) {
    const json_t *times = json_object_get(json_object_get(result, "iterations"),
                                          contest->modelled ? "driver_ns" : "alloc_ns");
    double count = (double)json_array_size(times);

    out->reserved = (uint64_t)number(result, "reserved_peak_bytes");
    out->requested = (uint64_t)number(result, "requested_peak_bytes");
    out->run_ns = number(result, contest->modelled ? "creation_driver_ns" : "creation_ns");
    out->first_ns = out->run_ns + json_number_value(json_array_get(times, 0));
    out->steady_ns = steady_of(times, from);
    for (size_t i = 0; i < json_array_size(times); i++)
        out->run_ns += json_number_value(json_array_get(times, i));
    if (count > 1)
        out->run_ns = fmax(out->run_ns + (RUN_ITERATIONS - count) * out->steady_ns,
                           RUN_ITERATIONS * out->steady_ns);
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

/* Those that the part before does not have; of the first part the second half. */
static size_t first_steady(const struct tuned_trace *trace, enum part part) {
    uint64_t before = part == PART_SEARCHED ? trace->marks[part] / 2 : trace->marks[part - 1];

    return (size_t)(before < trace->marks[part] || !before ? before : before - 1);
}

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
        measure(contest, result, first_steady(&tuning->traces[trace], work->part),
                &evaluation->measured[trace]);
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
    static const char *const steps[] = {"search", "choice", "all iterations"};
    char told[40];
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
    progress_step(&tuning->progress, steps[part]);
    work_at_once(&work);
    snprintf(told, sizeof told, "%zu combination%s", count, weir__plural(count));
    progress_clear(&tuning->progress);
    progress_done(&tuning->progress, steps[part], told);
    progress_clear(&tuning->progress);
    for (size_t i = 0; i < count; i++)
        rate(tuning, &evaluations[i]);
    return !work.failed;
}

/* ---------------------------------------------------------------- search ---- */

static const struct evaluation *find(const struct evaluation *evaluations, size_t count,
                                     const struct candidate *candidate) {
    for (size_t i = 0; i < count; i++)
        if (candidate_is(&evaluations[i].candidate, candidate))
            return &evaluations[i];
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
        if (!find(more, tuning->count + added, &candidates[i]))
            more[tuning->count + added++] = (struct evaluation){.candidate = candidates[i]};
    if (added && !search_measure(tuning, PART_SEARCHED, more + tuning->count, added)) {
        search_drop(more + tuning->count, added);
        return 0;
    }
    tuning->count += added;
    return 1;
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
            const struct measured *m =
                &find(tuning->evaluations, tuning->count, &bases[i])->measured[trace];

            if (m->reserved > *peak)
                *peak = m->reserved;
            if (m->requested > tuning->space.live_peak)
                tuning->space.live_peak = m->requested;
        }
    return 1;
}

static int by_score(const void *a, const void *b) {
    const struct evaluation *x = a, *y = b;

    return (x->score > y->score) - (x->score < y->score);
}

/* All values of these two axes. */
static void add_pair(struct candidate at, enum axis one, enum axis other,
                     struct candidate *candidates, size_t *count) {
    for (int i = 0; i < candidate_values(&at, one); i++)
        for (int k = 0; k < candidate_values(&at, other); k++) {
            at.value[one] = i;
            at.value[other] = k;
            candidates[(*count)++] = at;
        }
}

/* The best of each base, the best first; those of no use are none. */
static size_t best_of_bases(struct tuning *tuning, size_t most, struct candidate best[BASES]) {
    int has_base[BASES] = {0};
    size_t count = 0;

    qsort(tuning->evaluations, tuning->count, sizeof *tuning->evaluations, by_score);
    for (size_t i = 0; i < tuning->count && count < most && tuning->evaluations[i].served; i++) {
        int base = tuning->evaluations[i].candidate.value[AXIS_BASE];

        if (!has_base[base])
            best[count++] = tuning->evaluations[i].candidate;
        has_base[base] = 1;
    }
    return count;
}

static int try_best(struct tuning *tuning, size_t most, enum axis one, enum axis other) {
    struct candidate best[BASES], candidates[BASES * MOST_PAIRS];
    size_t count = best_of_bases(tuning, most, best), all = 0;

    for (size_t i = 0; i < count; i++)
        add_pair(best[i], one, other, candidates, &all);
    return try_all(tuning, candidates, all);
}

/* Which base is best goes by what is preallocated or how it grows, and by what its caches keep. */
static int try_planes(struct tuning *tuning) {
    struct candidate best[BASES], candidates[2 * BASES * MOST_PAIRS];
    size_t count = best_of_bases(tuning, BASES, best), all = 0;

    for (size_t i = 0; i < count; i++) {
        add_pair(best[i], AXIS_PREALLOC, AXIS_CACHE, candidates, &all);
        add_pair(best[i], AXIS_GROWTH, AXIS_CACHE, candidates, &all);
    }
    return try_all(tuning, candidates, all);
}

int search_run(struct tuning *tuning) {
    int good;

    progress_begin(&tuning->progress, STEPS);
    good = try_bases(tuning) && try_planes(tuning) &&
           try_best(tuning, BASES, AXIS_GROWTH, AXIS_THRESHOLD) &&
           try_best(tuning, AGAIN, AXIS_PREALLOC, AXIS_GROWTH) &&
           try_best(tuning, AGAIN, AXIS_GROWTH, AXIS_CACHE);

    qsort(tuning->evaluations, tuning->count, sizeof *tuning->evaluations, by_score);
    return good;
}

struct evaluation *search_finalists(struct tuning *tuning, size_t *count) {
    struct evaluation *finalists = calloc(FINALISTS + 1, sizeof *finalists);

    *count = 1; /* the default */
    for (size_t i = 0; finalists && i < tuning->count && *count <= FINALISTS; i++)
        finalists[(*count)++].candidate = tuning->evaluations[i].candidate;
    if (finalists && search_measure(tuning, PART_CHOSEN, finalists, *count)) {
        qsort(finalists, *count, sizeof *finalists, by_score);
        return finalists;
    }
    if (finalists)
        search_drop(finalists, *count);
    free(finalists);
    return NULL;
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

int search_run_grid(struct tuning *tuning) {
    size_t count;
    struct evaluation *grid = search_grid(tuning, &count);
    struct candidate *candidates = calloc(count, sizeof *candidates);
    int good;

    for (size_t i = 0; candidates && i < count; i++)
        candidates[i] = grid[i].candidate;
    good = candidates && try_all(tuning, candidates, count);
    free(candidates);
    free(grid);
    qsort(tuning->evaluations, tuning->count, sizeof *tuning->evaluations, by_score);
    return good;
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
