/* SPDX-License-Identifier: MIT */
/* micro_measure.c: how the runs of a case are timed.
 *
 * Subjects take turns by rounds, who begins moving on by one, since machines drift by a third within
 * minutes.  A round is two batches of each subject: one timed as a whole, for the cost of a turn; one
 * timed call by call, for the latencies.  Where many blocks live, untimed batches come before them, as
 * the others have had the processor's caches meanwhile.
 *
 * The driver's table that subjects call is a copy of the process's own; it becomes the counted one
 * for one more batch, so that counting costs nothing where time is taken.  It changes only while no
 * call is under way.  On a modelled device it is the counted one throughout: own time rests on it.
 *
 * On a modelled device every time is own time: real time outside the model.  The model keeps one
 * account for the process, so of several threads only the sum is known and no single call.
 *
 * Must not know: what a load does, who the subjects are, output.
 */
#include "cli/micro/micro.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of some batch of all workers. */
struct batch {
    uint64_t turns;
    uint64_t driver_ns; /* virtual */
    double ns;          /* per turn and thread */
    double rate;        /* turns a second */
};

/* -------------------------------------------------------------------- workers ---- */

int micro_fail(struct micro_worker *worker, const char *what, weir_status status) {
    struct micro_run *run = worker->run;

    if (atomic_exchange(&run->has_failed, 1))
        return 0;
    snprintf(run->error, sizeof run->error, "%s failed: %s%s%s", what, weir_status_message(status),
             status == WEIR_E_DRIVER && run->instance.allocator ? ": " : "",
             status == WEIR_E_DRIVER && run->instance.allocator
                 ? weir__driver_error_name(run->micro->driver, (CUresult)weir_last_driver_result())
                 : "");
    return 0;
}

int micro_run_fail(struct micro_run *run, const char *format, ...) {
    va_list arguments;

    if (atomic_exchange(&run->has_failed, 1))
        return 0;
    va_start(arguments, format);
    vsnprintf(run->error, sizeof run->error, format, arguments);
    va_end(arguments);
    return 0;
}

/* Real time on a device; own time on a modelled one. */
static uint64_t shown_ns(const struct span_clock *clock, const struct span *span) {
    return clock->driver ? span->own_ns : span->ns;
}

/* Two calls in a row are a pair. */
static void note(struct micro_worker *worker, struct weir_histogram *of_call, uint64_t ns) {
    weir__histogram_add(of_call, ns);
    if (worker->has_half)
        weir__histogram_add(&worker->latency->pair, worker->other_half + ns);
    worker->other_half = ns;
    worker->has_half = !worker->has_half;
}

weir_status micro_alloc_timed(struct micro_worker *worker, size_t bytes, CUstream stream,
                              void **block) {
    struct span span = {0, 0, 0};
    struct span_start start;
    weir_status status;

    span_begin(worker->clock, &start);
    status = worker->subject->alloc(worker->instance, bytes, stream, block);
    span_end(worker->clock, &start, &span);
    note(worker, &worker->latency->alloc, shown_ns(worker->clock, &span));
    return status;
}

weir_status micro_free_timed(struct micro_worker *worker, void *block, CUstream stream) {
    struct span span = {0, 0, 0};
    struct span_start start;
    weir_status status;

    span_begin(worker->clock, &start);
    status = worker->subject->free(worker->instance, block, stream);
    span_end(worker->clock, &start, &span);
    note(worker, &worker->latency->free, shown_ns(worker->clock, &span));
    return status;
}

void micro_pause(struct micro_worker *worker) {
    struct span span = {0, 0, 0};

    span_end(worker->clock, &worker->started, &span);
    worker->sum.ns += span.ns;
    worker->sum.driver_ns += span.driver_ns;
    worker->sum.own_ns += span.own_ns;
    worker->muted = worker->latency;
    worker->latency = NULL;
}

void micro_resume(struct micro_worker *worker) {
    worker->latency = worker->muted;
    span_begin(worker->clock, &worker->started);
}

static void less(uint64_t *from, uint64_t what) {
    *from -= what < *from ? what : *from;
}

/* Turns until the time is up or the case's count is done; the cost of looking at the time is taken
 * off. */
static void turn_for(struct micro_worker *worker, uint64_t batch_ns) {
    enum { CHUNK_NS = 20000, MOST = 1 << 16 };
    const struct stopwatch *watch = &worker->clock->watch;
    uint64_t count = worker->run->of->count, looks = 0, from, last, now;

    worker->sum = (struct span){0, 0, 0};
    worker->done = 0;
    worker->has_half = 0;
    worker->muted = worker->latency;
    micro_resume(worker);
    from = last = stopwatch_read(watch);
    do {
        uint64_t turns = count ? count : worker->chunk;

        if (!worker->run->of->load->turn(worker, turns))
            break;
        worker->done += turns;
        now = stopwatch_read(watch);
        looks++;
        if (stopwatch_ns(watch, now - last) < CHUNK_NS && worker->chunk < MOST)
            worker->chunk *= 2;
        last = now;
    } while (!count && stopwatch_ns(watch, last - from) < batch_ns);
    if (worker->ring)
        micro_ring_close(worker);
    micro_pause(worker);
    less(&worker->sum.ns, stopwatch_ns(watch, (looks + 1) * watch->cost));
    less(&worker->sum.own_ns, stopwatch_ns(watch, (looks + 1) * watch->cost));
}

/* ------------------------------------------------------------------- batches ---- */

static void batch_alone(struct micro_run *run, uint64_t batch_ns, struct micro_latency *latency,
                        struct batch *batch) {
    struct micro_worker *worker = &run->workers[0];
    double ns;

    worker->latency = latency;
    turn_for(worker, batch_ns);
    ns = (double)shown_ns(&run->clock, &worker->sum);
    batch->turns = worker->done;
    batch->driver_ns = worker->sum.driver_ns;
    batch->ns = worker->done ? ns / (double)worker->done : 0.0;
    batch->rate = ns > 0.0 ? (double)worker->done / ns * 1e9 : 0.0;
}

/* Threads of a batch.  Main opens the gate, and reads the driver's account while it is closed. */
struct crew {
    struct micro_run *run;
    uint64_t batch_ns;
    struct micro_latency *latencies; /* one per thread, or NULL */
    pthread_barrier_t gate;
};

struct member {
    struct crew *crew;
    struct micro_worker *worker;
};

static void pin(const struct micro *micro, size_t index) {
    cpu_set_t set;

    if (micro->cpu_count == 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)micro->cpus[index % micro->cpu_count], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* where it is allowed */
}

/* Of several threads real time alone is known. */
static void work(struct crew *crew, struct micro_worker *worker) {
    int consumes = crew->run->of->load->on_two_sides && worker->index % 2 == 1;

    if (consumes) {
        worker->done = 0;
        worker->sum = (struct span){0, 0, 0};
        worker->muted = worker->latency;
        micro_resume(worker);
        crew->run->of->load->consume(worker);
        micro_pause(worker);
    } else {
        turn_for(worker, crew->batch_ns);
    }
}

static void *member_main(void *argument) {
    struct member *member = argument;
    struct micro_worker *worker = member->worker;
    struct crew *crew = member->crew;
    const struct micro *micro = crew->run->micro;
    struct weir_driver_charge unused;
    CUcontext popped;
    int entered;

    pin(micro, worker->index);
    entered = micro->driver->cuCtxPushCurrent(micro->context) == CUDA_SUCCESS;
    worker->latency = NULL;
    worker->waited_ns = 0;
    if (!entered)
        micro_run_fail(crew->run, "cuCtxPushCurrent failed on a thread");
    else if (!worker->ring) /* a thread's first calls are dearer */
        crew->run->of->load->turn(worker, MICRO_GROUP);
    worker->latency = crew->latencies ? &crew->latencies[worker->index] : NULL;
    pthread_barrier_wait(&crew->gate);
    pthread_barrier_wait(&crew->gate);
    if (!atomic_load(&crew->run->has_failed))
        work(crew, worker);
    if (micro->driver->charge)
        micro->driver->charge(&unused); /* what this thread still owes the account */
    pthread_barrier_wait(&crew->gate);
    pthread_barrier_wait(&crew->gate);
    if (entered)
        micro->driver->cuCtxPopCurrent(&popped);
    return NULL;
}

static void merge(struct weir_histogram *into, const struct weir_histogram *from) {
    for (size_t i = 0; i < WEIR_HISTOGRAM_BUCKETS; i++)
        into->count[i] += from->count[i];
    into->total += from->total;
    into->sum += from->sum;
    if (into->max < from->max)
        into->max = from->max;
}

static void sum_up(const struct micro_run *run, const struct span *account, struct batch *batch) {
    int on_model = run->micro->driver->charge && run->instance.subject->place == MICRO_ON_DEVICE;
    int on_two_sides = run->of->load->on_two_sides;
    uint64_t all_ns = 0, turning_ns = 0;

    *batch = (struct batch){0, account->driver_ns, 0.0, 0.0};
    for (unsigned i = 0; i < run->of->threads; i++) {
        const struct micro_worker *worker = &run->workers[i];

        all_ns += worker->sum.ns - (worker->waited_ns < worker->sum.ns ? worker->waited_ns : 0);
        if (on_two_sides && i % 2 == 1)
            continue;
        turning_ns += worker->sum.ns;
        batch->turns += worker->done;
        if (worker->sum.ns)
            batch->rate += (double)worker->done / (double)worker->sum.ns * 1e9;
    }
    if (on_model) {
        less(&all_ns, account->ns);
        turning_ns = all_ns;
    }
    if (batch->turns)
        batch->ns = (double)turning_ns / (double)batch->turns;
    if (on_model && batch->ns > 0.0)
        batch->rate = (on_two_sides ? run->of->threads / 2 : run->of->threads) * 1e9 / batch->ns;
}

/* The driver's account: in ->ns the real time inside the model, with what it misses. */
static void read_account(const struct micro *micro, struct span *account) {
    struct weir_driver_charge charge = {0, 0};

    if (micro->driver->charge)
        micro->driver->charge(&charge);
    account->driver_ns = charge.driver_ns;
    account->ns = charge.host_ns;
    account->own_ns = span_driver_calls();
}

static void count_calls(const struct micro_run *run, uint64_t calls[]) {
    if (run->instance.subject->place == MICRO_ON_DEVICE)
        weir__driver_counts(calls);
    else
        memset(calls, 0, WEIR_ENTRY_COUNT * sizeof *calls);
}

static void batch_crew(struct micro_run *run, uint64_t batch_ns, struct micro_latency *latency,
                       uint64_t calls[], struct batch *batch) {
    unsigned threads = run->of->threads;
    struct crew crew = {.run = run, .batch_ns = batch_ns};
    struct member members[MICRO_THREADS];
    pthread_t ids[MICRO_THREADS];
    struct span before, account;
    uint64_t calls_before[WEIR_ENTRY_COUNT];

    if (latency)
        crew.latencies = calloc(threads, sizeof *crew.latencies);
    pthread_barrier_init(&crew.gate, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        members[i] = (struct member){&crew, &run->workers[i]};
        if (run->workers[i].ring)
            micro_ring_reset(run->workers[i].ring);
    }
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, member_main, &members[i]) != 0) {
            /* Those that started wait at the gate for good. */
            fputs("weir: cannot start a thread\n", stderr);
            exit(1);
        }
    pthread_barrier_wait(&crew.gate); /* all are ready */
    read_account(run->micro, &before);
    count_calls(run, calls_before);
    pthread_barrier_wait(&crew.gate);
    pthread_barrier_wait(&crew.gate); /* all are done */
    read_account(run->micro, &account);
    count_calls(run, calls);
    pthread_barrier_wait(&crew.gate);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&crew.gate);
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        calls[i] -= calls_before[i];
    account.driver_ns -= before.driver_ns;
    account.ns = account.ns - before.ns +
                 (account.own_ns - before.own_ns) * run->micro->clock.call_cost_ps / 1000;
    sum_up(run, &account, batch);
    for (unsigned i = 0; crew.latencies && i < threads; i++) {
        merge(&latency->alloc, &crew.latencies[i].alloc);
        merge(&latency->free, &crew.latencies[i].free);
        merge(&latency->pair, &crew.latencies[i].pair);
    }
    free(crew.latencies);
}

/* Of some hundred nanoseconds inside the model, a few per cent are as much as weir takes. */
static void adjust_clock(struct micro_run *run) {
    struct micro *micro = run->micro;

    if (run->instance.subject->place == MICRO_ON_DEVICE &&
        span_clock_adjust(&micro->clock, micro->counted) == CUDA_SUCCESS)
        run->clock.call_cost_ps = micro->clock.call_cost_ps;
}

static void do_batch(struct micro_run *run, uint64_t batch_ns, struct micro_latency *latency,
                     struct batch *batch) {
    uint64_t calls[WEIR_ENTRY_COUNT];

    memset(batch, 0, sizeof *batch);
    if (atomic_load(&run->has_failed))
        return;
    adjust_clock(run);
    if (run->of->threads > 1)
        batch_crew(run, batch_ns, latency, calls, batch);
    else
        batch_alone(run, batch_ns, latency, batch);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double micro_median(double *values, uint64_t count) {
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* -------------------------------------------------------------------- rounds ---- */

static int can_time_calls(const struct micro_run *run) {
    return run->of->threads == 1 || !run->micro->driver->charge ||
           run->instance.subject->place != MICRO_ON_DEVICE;
}

/* Turns until nearly every live block was touched, within bounds. */
static void warm_caches(struct micro_run *run) {
    enum { MOST_BATCHES = 32 };
    uint64_t turns = 0;
    struct batch batch;

    for (int i = 0; i < MOST_BATCHES && turns < 4 * run->of->live; i++) {
        do_batch(run, run->micro->batch_ns, NULL, &batch);
        turns += batch.turns;
    }
}

static void do_round(struct micro_run *run, uint64_t round) {
    uint64_t batch_ns = run->micro->batch_ns;
    struct batch batch;

    warm_caches(run);
    do_batch(run, batch_ns, NULL, &batch);
    run->ns[round] = batch.ns;
    run->rate[round] = batch.rate;
    run->turns += batch.turns;
    run->driver_ns += batch.driver_ns;
    run->rounds = round + 1;
    if (can_time_calls(run))
        do_batch(run, batch_ns, &run->latency, &batch);
}

/* How often a turn calls the driver. */
static void count_driver_calls(struct micro_run *run) {
    struct micro *micro = run->micro;
    uint64_t before[WEIR_ENTRY_COUNT];
    struct batch batch = {0, 0, 0.0, 0.0};

    if (run->instance.subject->place != MICRO_ON_DEVICE || atomic_load(&run->has_failed))
        return;
    micro->table = *micro->counted;
    if (run->of->threads > 1) {
        batch_crew(run, micro->batch_ns / 4, NULL, run->calls, &batch);
    } else {
        weir__driver_counts(before);
        batch_alone(run, micro->batch_ns / 4, NULL, &batch);
        weir__driver_counts(run->calls);
        for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
            run->calls[i] -= before[i];
    }
    if (!micro->driver->charge)
        micro->table = *micro->driver;
    run->counted_turns = batch.turns;
}

static void warm_up(struct micro_run *run) {
    struct batch unused;

    do_batch(run, run->micro->batch_ns, NULL, &unused);
    run->has_reserve_before = run->instance.subject->reserve &&
                              run->instance.subject->reserve(&run->instance, &run->reserve_before);
}

void micro_rounds(struct micro_run *runs, size_t run_count) {
    uint64_t rounds = runs->micro->rounds;

    for (size_t i = 0; i < run_count; i++)
        if (runs[i].is_ready)
            warm_up(&runs[i]);
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < run_count; i++) {
            struct micro_run *run = &runs[(i + round) % run_count];

            if (run->is_ready)
                do_round(run, round);
        }
    for (size_t i = 0; i < run_count; i++)
        if (runs[i].is_ready)
            count_driver_calls(&runs[i]);
}

/* ----------------------------------------------------------------- beginning ---- */

static void find_cpus(struct micro *micro) {
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    micro->cpus = calloc((size_t)CPU_COUNT(&set), sizeof *micro->cpus);
    for (int cpu = 0; micro->cpus && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set))
            micro->cpus[micro->cpu_count++] = cpu;
    pin(micro, 0);
}

/* A C library that knows of one thread only leaves out locked instructions, which flatters. */
static void *idle(void *unused) {
    pause();
    return unused;
}

int micro_begin(struct micro *micro) {
    pthread_t thread;
    CUresult result;

    if (pthread_create(&thread, NULL, idle, NULL) != 0) {
        fputs("weir: cannot start a thread\n", stderr);
        return 0;
    }
    pthread_detach(thread);
    find_cpus(micro);
    result = span_clock_make(&micro->clock, micro->driver, micro->counted);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "weir: cuCtxGetCurrent failed: %s\n",
                weir__driver_error_name(micro->driver, result));
        return 0;
    }
    micro->table = micro->driver->charge ? *micro->counted : *micro->driver;
    return 1;
}
