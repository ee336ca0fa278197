/* SPDX-License-Identifier: MIT */
/* micro.c: measures the host time of an allocation and its free, with weir, with the driver's pool and with malloc.
 *
 * A subject is an allocator to measure.  A case is a load with its sizes, live blocks, threads and streams.  The
 * subjects are measured in turn, in several rounds.  Each round begins with another subject, because the speed of a
 * machine changes by a third within minutes.  In a round, each subject runs three batches.  The first is not timed,
 * because other subjects have used the processor's caches before.  The second is timed as a whole, for the mean time
 * of a pair.  The third is timed call by call, for the percentiles.
 *
 * If a case has many live blocks, the blocks of all subjects together would not fit on a device.  Each subject is
 * then measured alone.
 *
 * On the device model, the time of a single thread is real time without the time spent in the model (span.h).  With
 * several threads, the model's time is included, because the model cannot tell how its time is divided among
 * threads.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "api/allocator_internal.h"
#include "base/histogram.h"
#include "base/text.h"
#include "bench/common.h"
#include "cli/common/span.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { MAX_THREADS = 64, MAX_ROUNDS = 1000, GROUP = 64, HOT_BYTES = 65536, RING_SLOTS = 256 };
/* With more live blocks, each allocator is measured alone: the blocks of all allocators would not fit. */
enum { TOGETHER_LIVE = 1000 };

/* ------------------------------------------------------------------ subjects ---- */

struct subject;

struct instance {
    const struct subject *subject;
    weir_allocator *allocator; /* used if the subject is weir */
    CUmemoryPool pool;         /* used if the subject is the driver's pool */
};

static const struct subject {
    const char *name, *what;
    const char *engine; /* weir's engine, or NULL for its default engine */
    int is_bound, on_host;
    void (*open)(struct instance *instance);
    void (*close)(struct instance *instance);
    weir_status (*alloc)(struct instance *instance, size_t bytes, CUstream stream, void **block);
    weir_status (*free)(struct instance *instance, void *block, CUstream stream);
} subjects[];

static struct {
    const char *device, *json_file;
    unsigned subjects, scenarios; /* a bit for each subject and scenario to measure */
    uint64_t threads, rounds;
    int is_quick;
} asked = {.device = "cuda"};

static const struct weir_driver
    *table; /* the driver table for the subjects; on the device model, it counts calls */
/* The clocks for measurements with one thread, and with several threads. */
static struct span_clock one_thread_clock, threads_clock;
static CUcontext context;
static FILE *json;

static void weir_check(const char *what, weir_status status) {
    if (status != WEIR_OK)
        bench_fail(what, weir_status_message(status));
}

static void open_weir(struct instance *instance) {
    char message[512];
    weir_options options;

    weir_options_init(&options);
    if (weir_options_from_env(&options, message, sizeof message) != WEIR_OK)
        bench_fail("settings", message);
    options.device = asked.device;
    if (instance->subject->engine && weir_options_set(&options, "engine", instance->subject->engine,
                                                      message, sizeof message) != WEIR_OK)
        bench_fail("engine", message);
    if (weir__allocator_create_on(table, &options, &instance->allocator, message, sizeof message) !=
        WEIR_OK)
        bench_fail(instance->subject->name, message);
}

static void close_weir(struct instance *instance) {
    weir_check("weir_allocator_destroy", weir_allocator_destroy(instance->allocator));
}

static weir_status alloc_weir(struct instance *instance, size_t bytes, CUstream stream,
                              void **block) {
    return weir_alloc(instance->allocator, bytes, stream, block);
}

static weir_status free_weir(struct instance *instance, void *block, CUstream stream) {
    return weir_free(instance->allocator, block, stream);
}

static void open_driver_pool(struct instance *instance) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, bench_device}};
    uint64_t keep = UINT64_MAX;

    BENCH_CALL(cuMemPoolCreate, &instance->pool, &properties);
    BENCH_CALL(cuMemPoolSetAttribute, instance->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
}

static void close_driver_pool(struct instance *instance) {
    BENCH_CALL(cuMemPoolDestroy, instance->pool);
}

static weir_status alloc_driver_pool(struct instance *instance, size_t bytes, CUstream stream,
                                     void **block) {
    CUdeviceptr address = 0;
    CUresult result = table->cuMemAllocFromPoolAsync(&address, bytes, instance->pool, stream);

    *block = (void *)(uintptr_t)address;
    return result == CUDA_SUCCESS               ? WEIR_OK
           : result == CUDA_ERROR_OUT_OF_MEMORY ? WEIR_E_NO_MEMORY
                                                : WEIR_E_DRIVER;
}

static weir_status free_driver_pool(struct instance *instance, void *block, CUstream stream) {
    (void)instance;
    return table->cuMemFreeAsync((CUdeviceptr)(uintptr_t)block, stream) == CUDA_SUCCESS
               ? WEIR_OK
               : WEIR_E_DRIVER;
}

static void open_nothing(struct instance *instance) {
    (void)instance;
}

static void close_malloc(struct instance *instance) {
    (void)instance;
    malloc_trim(0); /* returns host memory to the system */
}

static weir_status alloc_malloc(struct instance *instance, size_t bytes, CUstream stream,
                                void **block) {
    (void)instance;
    (void)stream;
    *block = malloc(bytes);
    return *block ? WEIR_OK : WEIR_E_HOST_MEMORY;
}

static weir_status free_malloc(struct instance *instance, void *block, CUstream stream) {
    (void)instance;
    (void)stream;
    free(block);
    return WEIR_OK;
}

static weir_status alloc_nothing(struct instance *instance, size_t bytes, CUstream stream,
                                 void **block) {
    (void)bytes;
    (void)stream;
    *block = instance;
    return WEIR_OK;
}

static weir_status free_nothing(struct instance *instance, void *block, CUstream stream) {
    (void)stream;
    return block == instance ? WEIR_OK : WEIR_E_NOT_OWNED;
}

#define WEIR_SUBJECT .open = open_weir, .close = close_weir, .alloc = alloc_weir, .free = free_weir

static const struct subject subjects[] = {
    {.name = "weir", .what = "weir with its default engine, or WEIR_ENGINE", WEIR_SUBJECT},
    {.name = "weir-bound",
     .what = "weir with that engine and bound streams",
     .is_bound = 1,
     WEIR_SUBJECT},
    {.name = "pool", .what = "weir's pool engine", .engine = "pool", WEIR_SUBJECT},
    {.name = "bfc", .what = "weir's bfc engine", .engine = "bfc", WEIR_SUBJECT},
    {.name = "driver",
     .what = "the driver's pool, release threshold max",
     .open = open_driver_pool,
     .close = close_driver_pool,
     .alloc = alloc_driver_pool,
     .free = free_driver_pool},
    {.name = "malloc",
     .what = "malloc, on the host; LD_PRELOAD chooses another one",
     .on_host = 1,
     .open = open_nothing,
     .close = close_malloc,
     .alloc = alloc_malloc,
     .free = free_malloc},
    {.name = "loop",
     .what = "the loop alone, which all other figures contain",
     .on_host = 1,
     .open = open_nothing,
     .close = open_nothing,
     .alloc = alloc_nothing,
     .free = free_nothing},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

/* --------------------------------------------------------------------- cases ---- */

struct worker;

struct load {
    /* Set if every second thread frees the blocks that another thread allocates. */
    int has_producer;
    void (*run_pairs)(struct worker *worker, uint64_t pairs);
};

struct micro_case {
    const char *scenario;
    const struct load *load;
    size_t bytes;             /* the size to allocate and free, or 0 for random sizes */
    size_t smallest, largest; /* the range of the live blocks' sizes, which are log-uniform */
    uint64_t live;
    /* Set if gaps lie between the live blocks, because a random half of the blocks has been freed. */
    int has_gaps;
    unsigned threads, streams;
};

struct latency {
    struct weir_histogram alloc, free;
};

/* A ring of blocks that the producer thread has allocated and the consumer thread has not freed yet.  Each thread
 * writes only its own cache line, which contains its counter and a copy of the other thread's counter. */
struct ring {
    _Alignas(128) _Atomic uint64_t pushed;
    uint64_t popped_seen;
    _Alignas(128) _Atomic uint64_t popped;
    uint64_t pushed_seen;
    _Alignas(128) atomic_int is_closed;
    void *slots[RING_SLOTS];
};

/* A thread that allocates and frees.  Two workers share no cache line. */
struct worker {
    _Alignas(128) struct run *run;
    struct instance *instance;
    CUstream stream;
    /* Histograms of the times of single calls, or NULL if only whole batches are timed. */
    struct latency *latency;
    const struct span_clock *clock;
    uint64_t random;
    size_t next_stream;
    struct ring *ring;
    unsigned index;
    /* The pairs between two reads of the clock (a pair: an allocation and its free). */
    uint64_t chunk;
    uint64_t pairs; /* the number of pairs in the last batch */
    double ns;      /* the time of all pairs in the last batch */
    struct latency own_latency;
};

/* The measurement of one allocator with one load. */
struct run {
    const struct micro_case *of;
    struct instance instance;
    struct worker *workers;
    CUstream *streams;
    void **live;
    uint64_t live_count;
    uint64_t batch_ns;
    pthread_barrier_t gate;
    double ns[MAX_ROUNDS]; /* for each round: the time of an allocation and its free in a thread */
    char left_out[256];    /* why the subject is not measured, or "" */
};

/* Random block sizes, drawn before the measurement, because drawing takes time. */
enum { SIZES = 4096 };
static uint32_t sizes[SIZES];

static inline uint64_t micro_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void draw_live_sizes(const struct micro_case *of) {
    uint64_t random = UINT64_C(88172645463325252);
    unsigned octaves = 0;

    while (of->smallest << (octaves + 1) <= of->largest)
        octaves++;
    for (size_t i = 0; i < SIZES; i++) {
        size_t from = of->smallest << (micro_random(&random) >> 32) % (octaves + 1), to = from * 2;

        to = to < of->largest ? to : of->largest;
        sizes[i] = (uint32_t)(from + (micro_random(&random) >> 32) % (to - from + 1));
    }
}

static uint64_t own_ns(const struct span_clock *clock, const struct span *span) {
    return clock->driver ? span->own_ns : span->ns;
}

/* ------------------------------------------------------------------- calls ---- */

static void add_call_time(const struct worker *worker, const struct span_start *start,
                          struct weir_histogram *times) {
    struct span span = {0, 0, 0};

    span_end(worker->clock, start, &span);
    weir__histogram_add(times, own_ns(worker->clock, &span));
}

static inline void *timed_alloc(struct worker *worker, size_t bytes, CUstream stream) {
    void *block = NULL;
    weir_status status;
    struct span_start start;

    if (worker->latency)
        span_begin(worker->clock, &start);
    status = worker->instance->subject->alloc(worker->instance, bytes, stream, &block);
    if (worker->latency)
        add_call_time(worker, &start, &worker->latency->alloc);
    if (status != WEIR_OK)
        weir_check("an allocation", status);
    return block;
}

static inline void timed_free(struct worker *worker, void *block, CUstream stream) {
    weir_status status;
    struct span_start start;

    if (worker->latency)
        span_begin(worker->clock, &start);
    status = worker->instance->subject->free(worker->instance, block, stream);
    if (worker->latency)
        add_call_time(worker, &start, &worker->latency->free);
    if (status != WEIR_OK)
        weir_check("a free", status);
}

/* --------------------------------------------------------------------- loads ---- */

static void run_pairs_of_one_size(struct worker *worker, uint64_t pairs) {
    const size_t bytes = worker->run->of->bytes;

    for (uint64_t i = 0; i < pairs; i++)
        timed_free(worker, timed_alloc(worker, bytes, worker->stream), worker->stream);
}

/* Frees a random live block and allocates another block in its place, `pairs' times. */
static void run_churn_pairs(struct worker *worker, uint64_t pairs) {
    struct run *run = worker->run;

    for (uint64_t i = 0; i < pairs; i++) {
        uint64_t random = micro_random(&worker->random);
        void **block = &run->live[((random & 0xffffffffu) * run->live_count) >> 32];

        timed_free(worker, *block, worker->stream);
        *block = timed_alloc(worker, sizes[random >> 52], worker->stream);
    }
}

static void run_pairs_on_streams(struct worker *worker, uint64_t pairs) {
    const struct run *run = worker->run;
    const size_t bytes = run->of->bytes;

    for (uint64_t i = 0; i < pairs; i++) {
        CUstream stream = run->streams[worker->next_stream];

        if (++worker->next_stream == run->of->streams)
            worker->next_stream = 0;
        timed_free(worker, timed_alloc(worker, bytes, stream), stream);
    }
}

/* Yields the processor at every 256th call, because a waiting thread may occupy the other thread's processor. */
static void yield_while_waiting(unsigned *waits) {
    if (++*waits % 256 == 0)
        sched_yield();
}

static void run_producer_pairs(struct worker *worker, uint64_t pairs) {
    struct ring *ring = worker->ring;
    uint64_t pushed = atomic_load_explicit(&ring->pushed, memory_order_relaxed);
    const size_t bytes = worker->run->of->bytes;
    unsigned waits = 0;

    for (uint64_t i = 0; i < pairs; i++) {
        while (pushed - ring->popped_seen == RING_SLOTS) {
            ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
            if (pushed - ring->popped_seen == RING_SLOTS)
                yield_while_waiting(&waits);
        }
        ring->slots[pushed % RING_SLOTS] = timed_alloc(worker, bytes, worker->stream);
        atomic_store_explicit(&ring->pushed, ++pushed, memory_order_release);
    }
}

/* Frees the blocks in the ring.  Returns when the producer has closed the ring and the ring is empty. */
static void free_produced_blocks(struct worker *worker) {
    struct ring *ring = worker->ring;
    uint64_t popped = 0;
    unsigned waits = 0;

    for (;;) {
        if (popped == ring->pushed_seen) {
            /* Reads the flag before the counter; otherwise a last block could stay in the ring. */
            int is_closed = atomic_load_explicit(&ring->is_closed, memory_order_acquire);

            ring->pushed_seen = atomic_load_explicit(&ring->pushed, memory_order_acquire);
            if (popped == ring->pushed_seen && is_closed)
                return;
            if (popped == ring->pushed_seen) {
                yield_while_waiting(&waits);
                continue;
            }
        }
        timed_free(worker, ring->slots[popped % RING_SLOTS], worker->stream);
        atomic_store_explicit(&ring->popped, ++popped, memory_order_release);
    }
}

/* Closes the ring, and waits until the consumer has freed all blocks. */
static void close_ring(struct ring *ring) {
    unsigned waits = 0;

    atomic_store_explicit(&ring->is_closed, 1, memory_order_release);
    while (atomic_load_explicit(&ring->popped, memory_order_acquire) !=
           atomic_load_explicit(&ring->pushed, memory_order_relaxed))
        yield_while_waiting(&waits);
}

static const struct load pair_load = {.run_pairs = run_pairs_of_one_size},
                         churn_load = {.run_pairs = run_churn_pairs},
                         streams_load = {.run_pairs = run_pairs_on_streams},
                         producer_load = {.run_pairs = run_producer_pairs, .has_producer = 1};

/* ------------------------------------------------------------------- batches ---- */

/* The processors on which this process may run. */
static int *cpus;
static size_t cpu_count;

static void find_cpus(void) {
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    cpus = calloc((size_t)CPU_COUNT(&set), sizeof *cpus);
    for (int cpu = 0; cpus && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set))
            cpus[cpu_count++] = cpu;
}

/* Pins this thread to one processor, if the system allows it. */
static void pin_to_processor(size_t index) {
    cpu_set_t set;

    if (cpu_count == 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpus[index % cpu_count], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* Allocates and frees until `batch_ns' have passed.  Stores the number of pairs and their time.  The time does not
 * include the reads of the clock. */
static void make_pairs_for(struct worker *worker, uint64_t batch_ns) {
    enum { CHUNK_NS = 20000, MOST = 1 << 16 };
    const struct stopwatch *watch = &worker->clock->watch;
    uint64_t readings = 1, cost, from, last, now;
    struct span span = {0, 0, 0};
    struct span_start start;

    worker->pairs = 0;
    span_begin(worker->clock, &start);
    from = last = stopwatch_read(watch);
    do {
        worker->run->of->load->run_pairs(worker, worker->chunk);
        worker->pairs += worker->chunk;
        now = stopwatch_read(watch);
        readings++;
        if (stopwatch_ns(watch, now - last) < CHUNK_NS && worker->chunk < MOST)
            worker->chunk *= 2;
        last = now;
    } while (stopwatch_ns(watch, last - from) < batch_ns);
    if (worker->ring)
        close_ring(worker->ring);
    span_end(worker->clock, &start, &span);
    cost = stopwatch_ns(watch, readings * watch->cost);
    worker->ns =
        own_ns(worker->clock, &span) > cost ? (double)(own_ns(worker->clock, &span) - cost) : 0.0;
}

static void *run_worker(void *argument) {
    struct worker *worker = argument;
    struct latency *latency = worker->latency;
    CUcontext popped;

    pin_to_processor(worker->index);
    BENCH_CALL(cuCtxPushCurrent, context);
    worker->latency = NULL;
    if (!worker->ring)
        worker->run->of->load->run_pairs(
            worker, GROUP); /* to warm up; the first calls of a thread take longer */
    worker->latency = latency;
    pthread_barrier_wait(&worker->run->gate);
    if (worker->ring && worker->index % 2 == 1)
        free_produced_blocks(worker);
    else
        make_pairs_for(worker, worker->run->batch_ns);
    BENCH_CALL(cuCtxPopCurrent, &popped);
    return NULL;
}

/* Runs one batch in all threads.  Returns the number of pairs (an allocation and its free) in all threads, and stores
 * the time of a pair in *ns. */
static uint64_t run_batch(struct run *run, int times_calls, double *ns) {
    const unsigned threads = run->of->threads, step = run->of->load->has_producer ? 2 : 1;
    pthread_t ids[MAX_THREADS];
    uint64_t pairs = 0;

    *ns = 0;
    if (span_clock_adjust(&one_thread_clock, table) != CUDA_SUCCESS)
        bench_fail("cuCtxGetCurrent", "failed");
    for (unsigned i = 0; i < threads; i++) {
        struct worker *worker = &run->workers[i];

        worker->latency = times_calls ? &worker->own_latency : NULL;
        if (worker->ring && i % 2 == 0)
            memset(worker->ring, 0, sizeof *worker->ring);
    }
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, run_worker, &run->workers[i]) != 0)
            bench_fail("pthread_create", "there is no thread to be had");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    for (unsigned i = 0; i < threads; i += step) {
        pairs += run->workers[i].pairs;
        *ns += run->workers[i].ns;
    }
    *ns /= (double)pairs;
    return pairs;
}

/* Warms up with 1 to 32 batches, until nearly all live blocks have been replaced. */
static void warm_run(struct run *run) {
    uint64_t pairs = 0;
    double unused;

    for (int i = 0; i == 0 || (i < 32 && pairs < 4 * run->of->live); i++)
        pairs += run_batch(run, 0, &unused);
}

/* ---------------------------------------------------------------------- runs ---- */

static void *get_zeroed(size_t count, size_t bytes) {
    void *memory = aligned_alloc(128, (count * bytes + 127) / 128 * 128);

    if (!memory)
        bench_fail("aligned_alloc", "out of memory");
    return memset(memory, 0, count * bytes);
}

static void make_run_streams(struct run *run) {
    run->streams = get_zeroed(run->of->streams, sizeof *run->streams);
    for (unsigned i = 0; i < run->of->streams; i++) {
        BENCH_CALL(cuStreamCreate, &run->streams[i], CU_STREAM_NON_BLOCKING);
        if (run->instance.subject->is_bound)
            weir_check("weir_bind", weir_bind(run->instance.allocator, run->streams[i]));
    }
}

static void make_workers(struct run *run) {
    run->workers = get_zeroed(run->of->threads, sizeof *run->workers);
    for (unsigned i = 0; i < run->of->threads; i++) {
        struct worker *worker = &run->workers[i];

        worker->run = run;
        worker->instance = &run->instance;
        worker->clock = run->of->threads > 1 || worker->instance->subject->on_host
                            ? &threads_clock
                            : &one_thread_clock;
        worker->random = UINT64_C(88172645463325252) + i;
        worker->chunk = GROUP;
        worker->index = i;
        worker->stream = run->streams[(run->of->load->has_producer ? i / 2 : i) % run->of->streams];
        if (run->of->load->has_producer)
            worker->ring = i % 2 ? run->workers[i - 1].ring : get_zeroed(1, sizeof *worker->ring);
    }
}

/* Allocates the live blocks.  If there must be gaps between them, allocates twice as many and frees a random half. */
static void make_live(struct run *run) {
    struct worker *worker = &run->workers[0];
    uint64_t count = run->of->has_gaps ? 2 * run->of->live : run->of->live,
             random = UINT64_C(2463534242);
    weir_status status = WEIR_OK;

    run->live = get_zeroed(count + 1, sizeof *run->live);
    while (run->live_count < count) {
        status =
            worker->instance->subject->alloc(worker->instance, sizes[micro_random(&random) >> 52],
                                             worker->stream, &run->live[run->live_count]);
        if (status != WEIR_OK)
            break;
        run->live_count++;
    }
    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT || status == WEIR_E_HOST_MEMORY)
        snprintf(run->left_out, sizeof run->left_out, "block %" PRIu64 " of %" PRIu64 ": %s",
                 run->live_count + 1, count, weir_status_message(status));
    else
        weir_check("an allocation", status);
    while (!run->left_out[0] && run->live_count > run->of->live) {
        uint64_t at = (micro_random(&random) >> 8) % run->live_count;

        timed_free(worker, run->live[at], worker->stream);
        run->live[at] = run->live[--run->live_count];
    }
}

static void begin_run(struct run *run) {
    run->instance.subject->open(&run->instance);
    make_run_streams(run);
    make_workers(run);
    make_live(run);
    pthread_barrier_init(&run->gate, NULL, run->of->threads);
}

static void end_run(struct run *run) {
    for (uint64_t i = 0; i < run->live_count; i++)
        timed_free(&run->workers[0], run->live[i], run->workers[0].stream);
    BENCH_CALL(cuCtxSynchronize);
    for (unsigned i = 0; i < run->of->streams && run->instance.subject->is_bound; i++)
        weir_check("weir_unbind", weir_unbind(run->instance.allocator, run->streams[i]));
    run->instance.subject->close(&run->instance);
    for (unsigned i = 0; i < run->of->streams; i++)
        BENCH_CALL(cuStreamDestroy, run->streams[i]);
    for (unsigned i = 0; i < run->of->threads; i += 2)
        free(run->workers[i].ring);
    pthread_barrier_destroy(&run->gate);
    free(run->workers);
    free(run->streams);
    free(run->live);
}

/* ------------------------------------------------------------------- results ---- */

static void add_histogram(struct weir_histogram *sum, const struct weir_histogram *part) {
    for (size_t i = 0; i < WEIR_HISTOGRAM_BUCKETS; i++)
        sum->count[i] += part->count[i];
    sum->total += part->total;
    sum->sum += part->sum;
    if (sum->max < part->max)
        sum->max = part->max;
}

static void write_calls(const char *key, const struct weir_histogram *calls) {
    fprintf(json,
            ", \"%s\": {\"p50\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"p999\": %" PRIu64
            ", \"max\": %" PRIu64 "}",
            key, weir__histogram_quantile(calls, 0.5), weir__histogram_quantile(calls, 0.99),
            weir__histogram_quantile(calls, 0.999), calls->max);
}

static void write_row(const struct run *run, double ns, const struct latency *calls) {
    const struct micro_case *of = run->of;
    const int on_host = run->instance.subject->on_host;

    fprintf(json,
            ",\n {\"scenario\": \"%s\", \"subject\": \"%s\", \"device\": \"%s\", \"modelled\": %s, "
            "\"bytes\": %zu, \"live\": %" PRIu64 ", \"threads\": %u, \"streams\": %u",
            of->scenario, run->instance.subject->name, on_host ? "host" : bench_device_name,
            !on_host && bench_driver->charge ? "true" : "false", of->bytes, of->live, of->threads,
            of->streams);
    if (run->left_out[0]) {
        fprintf(json, ", \"left_out\": \"%s\"}", run->left_out);
        return;
    }
    fprintf(json, ", \"pair_ns\": {\"median\": %.2f, \"min\": %.2f}", ns, run->ns[0]);
    write_calls("alloc_ns", &calls->alloc);
    write_calls("free_ns", &calls->free);
    fputc('}', json);
}

static void print_subject(struct run *run) {
    static struct latency calls; /* static, because the struct takes some kilobytes */
    double ns;

    memset(&calls, 0, sizeof calls);
    for (unsigned i = 0; i < run->of->threads; i++) {
        add_histogram(&calls.alloc, &run->workers[i].own_latency.alloc);
        add_histogram(&calls.free, &run->workers[i].own_latency.free);
    }
    ns = bench_median(run->ns, asked.rounds);
    if (json)
        write_row(run, ns, &calls);
    if (run->left_out[0])
        printf("  %-12s left out: %s\n", run->instance.subject->name, run->left_out);
    else
        printf("  %-12s %10.1f %10.1f %10" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
               run->instance.subject->name, ns, run->ns[0],
               weir__histogram_quantile(&calls.alloc, 0.999), calls.alloc.max,
               weir__histogram_quantile(&calls.free, 0.999), calls.free.max);
}

/* ---------------------------------------------------------------- measuring ---- */

static void measure_together(struct run *runs, size_t count) {
    double unused;

    for (size_t i = 0; i < count; i++)
        begin_run(&runs[i]);
    for (uint64_t round = 0; round < asked.rounds; round++)
        for (size_t i = 0; i < count; i++) {
            struct run *run = &runs[(i + round) % count];

            if (run->left_out[0])
                continue;
            warm_run(run);
            run_batch(run, 0, &run->ns[round]);
            run_batch(run, 1, &unused);
        }
    for (size_t i = 0; i < count; i++) {
        print_subject(&runs[i]);
        end_run(&runs[i]);
    }
    fflush(stdout);
}

__attribute__((format(printf, 2, 3))) static void measure_case(const struct micro_case *of,
                                                               const char *title, ...) {
    struct run *runs = get_zeroed(SUBJECTS, sizeof *runs);
    size_t count = 0, together;
    va_list arguments;

    if (of->threads > asked.threads)
        goto unused;
    printf("\n%s: ", of->scenario);
    va_start(arguments, title);
    vprintf(title, arguments);
    va_end(arguments);
    printf("%s\n  %-12s %10s %10s %10s %10s %10s %10s\n",
           of->live > TOGETHER_LIVE ? " (subjects one after another)" : "", "subject", "ns a pair",
           "least", "alloc .999", "max", "free .999", "max");
    for (size_t i = 0; i < SUBJECTS; i++)
        if (asked.subjects & (1u << i)) {
            runs[count].of = of;
            runs[count].batch_ns = asked.is_quick ? 500000 : 10000000;
            runs[count++].instance.subject = &subjects[i];
        }
    if (of->largest)
        draw_live_sizes(of);
    together = of->live > TOGETHER_LIVE ? 1 : count;
    for (size_t i = 0; i < count; i += together)
        measure_together(&runs[i], together);
unused:
    free(runs);
}

static void run_pair_cases(void) {
    static const size_t bytes[] = {512, 4 * KIB, 64 * KIB, MIB, 16 * MIB};
    static const uint64_t lives[] = {0, 1000, 100000};
    char size[32];

    for (size_t l = 0; l < (asked.is_quick ? 2 : 3); l++)
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            const struct micro_case of = {"pair",   &pair_load, bytes[b], 512, MIB,
                                          lives[l], 1,          1,        1};

            weir__bytes_show(bytes[b], size, sizeof size);
            measure_case(&of, "%s, one thread, one stream, %" PRIu64 " live blocks%s", size,
                         lives[l], lives[l] ? " of 512B to 1MiB with gaps" : "");
        }
}

static void run_churn_cases(void) {
    for (uint64_t live = 100; live <= (asked.is_quick ? 1000 : 1000000); live *= 10) {
        const struct micro_case of = {"churn", &churn_load, 0, 4 * KIB, 32 * KIB, live, 0, 1, 1};

        measure_case(&of, "a random one of %" PRIu64 " live blocks of 4KiB to 32KiB is replaced",
                     live);
    }
}

static void run_threads_cases(void) {
    for (unsigned threads = 1; threads <= 16; threads *= 2) {
        const struct micro_case of = {"threads", &pair_load, HOT_BYTES, 0,      0,
                                      0,         0,          threads,   threads};

        measure_case(&of, "64KiB, by threads with a stream each: %u", threads);
    }
}

static void run_streams_cases(void) {
    static const unsigned streams[] = {1, 4, 64, 1024};

    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        const struct micro_case of = {"streams", &streams_load, HOT_BYTES, 0, 0, 0, 0,
                                      1,         streams[i]};

        measure_case(&of, "64KiB, one thread, by streams in turn: %u", streams[i]);
    }
}

static void run_sides_cases(void) {
    for (unsigned couples = 1; couples <= 2; couples++) {
        const struct micro_case of = {"producer-consumer", &producer_load, HOT_BYTES, 0, 0, 0, 0,
                                      2 * couples,         couples};

        measure_case(&of, "64KiB, one thread allocates, another frees on that stream: %u to %u",
                     couples, couples);
    }
}

static const struct scenario {
    const char *name, *what;
    void (*measure)(void);
} scenarios[] = {
    {"pair", "an allocation and its free, by size and live blocks", run_pair_cases},
    {"churn", "a random live block is freed, another one allocated", run_churn_cases},
    {"threads", "pairs by threads", run_threads_cases},
    {"streams", "pairs of one thread by streams", run_streams_cases},
    {"producer-consumer", "one thread allocates, another one frees", run_sides_cases},
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ------------------------------------------------------------------- command ---- */

static void print_micro_usage(FILE *file) {
    fprintf(file,
            "usage: micro [OPTION...] [cuda[:N]|model[:N]]\n"
            "Measures pairs of an allocation and its free: what they cost on the host, in ns.\n"
            "The settings of weir's subjects are the environment's (WEIR_LIMIT and so on).\n\n"
            "  --subject NAME   only this one; may be repeated\n"
            "  --scenario NAME  only this one; may be repeated\n"
            "  --threads N      at most N threads; default: the processors, at most 16\n"
            "  --rounds N       medians of N rounds; default: 9\n"
            "  --quick          short batches and few live blocks, only to see that all works\n"
            "  --json FILE      write the results to FILE, too\n\nSubjects:\n");
    for (size_t i = 0; i < SUBJECTS; i++)
        fprintf(file, "  %-18s %s\n", subjects[i].name, subjects[i].what);
    fprintf(file, "\nScenarios:\n");
    for (size_t i = 0; i < SCENARIOS; i++)
        fprintf(file, "  %-18s %s\n", scenarios[i].name, scenarios[i].what);
}

static _Noreturn void refuse_word(const char *what, const char *value) {
    fprintf(stderr, "micro: %s '%s' is not known; see micro --help\n", what, value);
    exit(2);
}

static uint64_t read_option_number(const char *option, const char *text, uint64_t most) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);

    if (*end || value == 0 || value > most)
        refuse_word(option, text);
    return value;
}

static void read_command(int argc, char **argv) {
    static const struct option options[] = {
        {"subject", required_argument, NULL, 's'}, {"scenario", required_argument, NULL, 'c'},
        {"threads", required_argument, NULL, 't'}, {"rounds", required_argument, NULL, 'r'},
        {"quick", no_argument, NULL, 'q'},         {"json", required_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    unsigned bit;

    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;)
        switch (option) {
        case 's':
            for (bit = 0; bit < SUBJECTS && strcmp(subjects[bit].name, optarg) != 0;)
                bit++;
            if (bit == SUBJECTS)
                refuse_word("subject", optarg);
            asked.subjects |= 1u << bit;
            break;
        case 'c':
            for (bit = 0; bit < SCENARIOS && strcmp(scenarios[bit].name, optarg) != 0;)
                bit++;
            if (bit == SCENARIOS)
                refuse_word("scenario", optarg);
            asked.scenarios |= 1u << bit;
            break;
        case 't':
            asked.threads = read_option_number("--threads", optarg, MAX_THREADS);
            break;
        case 'r':
            asked.rounds = read_option_number("--rounds", optarg, MAX_ROUNDS);
            break;
        case 'q':
            asked.is_quick = 1;
            break;
        case 'j':
            asked.json_file = optarg;
            break;
        case 'h':
            print_micro_usage(stdout);
            exit(0);
        default:
            exit(2);
        }
    if (optind < argc)
        asked.device = argv[optind++];
    if (optind < argc)
        refuse_word("argument", argv[optind]);
    if (!asked.subjects)
        asked.subjects = (1u << SUBJECTS) - 1;
    if (!asked.scenarios)
        asked.scenarios = (1u << SCENARIOS) - 1;
    if (!asked.rounds)
        asked.rounds = asked.is_quick ? 2 : 9;
    if (!asked.threads)
        asked.threads = cpu_count > 16 ? 16 : cpu_count ? cpu_count : 1;
}

static void open_clocks(void) {
    table = weir__driver_counted(bench_driver);
    if (!table)
        bench_fail("the driver", "its calls cannot be counted");
    if (!bench_driver->charge)
        table = bench_driver;
    BENCH_CALL(cuCtxGetCurrent, &context);
    bench_check("cuCtxGetCurrent", span_clock_make(&one_thread_clock, bench_driver, table));
    threads_clock = one_thread_clock;
    threads_clock.driver = NULL;
}

static void print_about(int argc, char **argv) {
    const uint64_t timer_ns = stopwatch_ns(&one_thread_clock.watch, one_thread_clock.watch.cost);

    printf("weir %s on %s, driver %d.%d\n%" PRIu64 " rounds; the timer's cost, %" PRIu64
           " ns a call, is subtracted\n",
           weir_version(), bench_device_name, bench_driver->version / 1000,
           bench_driver->version % 1000 / 10, asked.rounds, timer_ns);
    if (bench_driver->charge)
        puts("device model: no GPU was used.  The time of one thread is real time outside the "
             "model;\nthat of several threads contains the model's.");
    if (!json)
        return;
    fprintf(json,
            "[\n {\"scenario\": \"about\", \"weir\": \"%s\", \"driver_version\": %d, "
            "\"timer_ns\": %" PRIu64 ", \"rounds\": %" PRIu64 ", \"command\": \"",
            weir_version(), bench_driver->version, timer_ns, asked.rounds);
    for (int i = 0; i < argc; i++) {
        fputs(i ? " " : "", json);
        for (const char *c = argv[i]; *c; c++)
            fputc(*c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '?' : *c, json);
    }
    fputs("\"}", json);
}

int main(int argc, char **argv) {
    find_cpus();
    read_command(argc, argv);
    if (asked.json_file && !(json = fopen(asked.json_file, "we")))
        bench_fail(asked.json_file, strerror(errno));
    bench_open(asked.device);
    open_clocks();
    print_about(argc, argv);
    for (size_t i = 0; i < SCENARIOS; i++)
        if (asked.scenarios & (1u << i))
            scenarios[i].measure();
    if (json)
        fputs("\n]\n", json);
    if (ferror(stdout) || fflush(stdout) != 0 || (json && fclose(json) != 0))
        bench_fail("the results", "they cannot be written");
    return 0;
}
