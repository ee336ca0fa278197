/* SPDX-License-Identifier: MIT */
/* two_builds.c: compares the speed of two builds of the library.
 *
 *     bench/two_builds OLD/libweir.so.1 NEW/libweir.so.1 [cuda[:N] [PROCESSES [ROUNDS]]]
 *
 * Each process loads both builds.  The builds do equal work alternately, for about a millisecond each, so that
 * changes of the machine's speed affect both.  The speed of a library also depends on where it is in memory.
 * Therefore half of the processes load the old build first, and the other half load the new build first.
 *
 * The program prints a line for each load and engine.  The line has the median time of each build in nanoseconds,
 * for one allocation and its free.  (For growth, it is the time of one allocation; for creation, of the whole turn.)
 * It also has the ratio of new to old, and the smallest and the largest ratio of a process.  The ratio of a process
 * is the median over its rounds.  The printed ratio is computed from the medians over the processes with each order
 * of loading: it is the geometric mean of these two medians.
 */
#include <weir/weir.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/common.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { OLD, NEW, BUILDS };
enum { THREADS = 16, MAX_ROUNDS = 1001, MAX_PROCESSES = 100 };

static const struct load {
    const char *name;
    size_t smallest, largest; /* the range of sizes in bytes */
    size_t live;              /* the number of live blocks, or 0 if each block is freed at once */
    unsigned threads;
    unsigned pairs; /* how often each thread allocates and frees in one turn */
    int is_bound;   /* set if the streams are bound to the allocator */
    int grows;      /* set if a turn allocates `live' blocks in an allocator without memory */
    int creates;    /* set if a turn also creates the allocator */
} loads[] = {
    {"pair, 4 KiB", 4 * KIB, 4 * KIB, 0, 1, 20000, 0, 0, 0},
    {"pair, 64 KiB", 64 * KIB, 64 * KIB, 0, 1, 20000, 0, 0, 0},
    {"pair, 64 KiB, bound", 64 * KIB, 64 * KIB, 0, 1, 20000, 1, 0, 0},
    {"pair, 1 MiB", MIB, MIB, 0, 1, 20000, 0, 0, 0},
    {"pair, 16 MiB", 16 * MIB, 16 * MIB, 0, 1, 20000, 0, 0, 0},
    {"churn, 10^4 live", 4 * KIB, 36 * KIB, 10000, 1, 10000, 0, 0, 0},
    {"churn, 10^5 live", 4 * KIB, 36 * KIB, 100000, 1, 10000, 0, 0, 0},
    {"16 threads, 64 KiB", 64 * KIB, 64 * KIB, 0, THREADS, 20000, 0, 0, 0},
    {"16 threads, 64 KiB, bound", 64 * KIB, 64 * KIB, 0, THREADS, 20000, 1, 0, 0},
    {"16 threads, 1 MiB", MIB, MIB, 0, THREADS, 20000, 0, 0, 0},
    {"misses, 1 to 64 MiB", MIB, 64 * MIB, 100, 1, 2000, 0, 0, 0},
    {"growth, 16 to 32 MiB", 16 * MIB, 32 * MIB, 100, 1, 100, 0, 1, 0},
    {"creation, and a block", 64 * KIB, 64 * KIB, 1, 1, 1, 0, 1, 1},
};

static const struct engine {
    const char *name;
    int engine;
} engines[] = {
    {"pool", WEIR_ENGINE_POOL},
    {"bfc", WEIR_ENGINE_BFC},
    {"mapped", WEIR_ENGINE_MAPPED},
};

enum { LOADS = sizeof loads / sizeof *loads, ENGINES = sizeof engines / sizeof *engines };

/* The result of one process for one load and engine. */
struct result {
    double ns[BUILDS]; /* the median time over the rounds, for each build */
    double ratio;      /* the ratio of new to old, the median over the rounds */
};

static struct build {
    weir_status (*allocator_create)(const weir_options *options, weir_allocator **allocator);
    weir_status (*allocator_destroy)(weir_allocator *allocator);
    weir_status (*bind)(weir_allocator *allocator, weir_stream stream);
    weir_status (*alloc)(weir_allocator *allocator, size_t bytes, weir_stream stream, void **block);
    weir_status (*free)(weir_allocator *allocator, void *block, weir_stream stream);
    weir_allocator *allocator;
    void **live;
    uint64_t random;
} builds[BUILDS];

static const char *device = "cuda";
static weir_stream streams[THREADS];

/* --------------------------------------------------------------------- loads ---- */

static uint64_t draw_random(struct build *b) { /* the upper half of Knuth's MMIX generator */
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return b->random >> 32;
}

static int allocate_block(struct build *b, const struct load *load, void **place) {
    const size_t more = draw_random(b) * (load->largest - load->smallest) >> 32;

    return b->alloc(b->allocator, load->smallest + more, streams[0], place) == WEIR_OK;
}

static int replace_one(struct build *b, const struct load *load) {
    void **place = &b->live[draw_random(b) * load->live >> 32];

    return b->free(b->allocator, *place, streams[0]) == WEIR_OK && allocate_block(b, load, place);
}

static int alloc_and_free(struct build *b, const struct load *load, weir_stream stream) {
    void *block;

    return b->alloc(b->allocator, load->largest, stream, &block) == WEIR_OK &&
           b->free(b->allocator, block, stream) == WEIR_OK;
}

static void fill_build(struct build *b, const struct load *load) {
    for (size_t i = 0; i < load->live; i++)
        if (!allocate_block(b, load, &b->live[i]))
            bench_fail(load->name, "weir_alloc failed");
}

static void run_load(struct build *b, const struct load *load, weir_stream stream) {
    int good = 1;

    for (unsigned i = 0; i < load->pairs; i++)
        good &= load->live ? replace_one(b, load) : alloc_and_free(b, load, stream);
    if (!good)
        bench_fail(load->name, "weir_alloc or weir_free failed");
}

static void open_allocator_of(struct build *b, const struct load *load,
                              const struct engine *engine) {
    weir_options options;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.device = device;
    options.engine = engine->engine;
    if (b->allocator_create(&options, &b->allocator) != WEIR_OK)
        bench_fail("weir_allocator_create", device);
    for (unsigned i = 0; i < load->threads && load->is_bound; i++)
        if (b->bind(b->allocator, streams[i]) != WEIR_OK)
            bench_fail("weir_bind", load->name);
    b->random = 1;
    b->live = calloc(load->live + 1, sizeof *b->live);
    if (!b->live)
        bench_fail("calloc", load->name);
}

static void close_allocator_of(struct build *b, const struct load *load) {
    for (size_t i = 0; i < load->live; i++)
        if (b->free(b->allocator, b->live[i], streams[0]) != WEIR_OK)
            bench_fail("weir_free", load->name);
    free(b->live);
    if (b->allocator_destroy(b->allocator) != WEIR_OK)
        bench_fail("weir_allocator_destroy", load->name);
}

/* --------------------------------------------------------------------- turns ---- */

/* The threads of a load wait at this barrier between two turns. */
static pthread_barrier_t gate;
static struct build *measured_build;
static const struct load *measured_load; /* NULL tells the threads to end */

static void *run_build_thread(void *stream) {
    for (pthread_barrier_wait(&gate); measured_load; pthread_barrier_wait(&gate)) {
        run_load(measured_build, measured_load, stream);
        pthread_barrier_wait(&gate);
    }
    return NULL;
}

/* Runs one turn of a load with one build.  Returns the time of an allocation and its free in nanoseconds. */
static double measure_turn(struct build *b, const struct load *load, const struct engine *engine) {
    struct timespec from, to;

    if (load->grows && !load->creates)
        open_allocator_of(b, load, engine);
    measured_build = b;
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (load->creates)
        open_allocator_of(b, load, engine);
    if (load->grows) {
        fill_build(b, load);
    } else if (load->threads > 1) {
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate);
    } else {
        run_load(b, load, streams[0]);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (load->grows)
        close_allocator_of(b, load);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           load->pairs;
}

static struct result measure_builds(const struct load *load, const struct engine *engine, int first,
                                    size_t rounds) {
    static double ns[BUILDS][MAX_ROUNDS], ratios[MAX_ROUNDS];
    pthread_t threads[THREADS];
    struct result result;

    for (int i = 0; i < BUILDS && !load->grows; i++) {
        open_allocator_of(&builds[i ^ first], load, engine);
        fill_build(&builds[i ^ first], load);
    }
    measured_load = load;
    pthread_barrier_init(&gate, NULL, load->threads + 1);
    for (unsigned i = 0; i < load->threads && load->threads > 1; i++)
        if (pthread_create(&threads[i], NULL, run_build_thread, streams[i]) != 0)
            bench_fail("pthread_create", load->name);
    for (int i = 0; i < BUILDS; i++)
        measure_turn(&builds[i ^ first], load, engine); /* to warm up */
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < BUILDS; i++) {
            const size_t which = (i + round + (size_t)first) % BUILDS;

            ns[which][round] = measure_turn(&builds[which], load, engine);
        }
        ratios[round] = ns[NEW][round] / ns[OLD][round];
    }
    measured_load = NULL;
    if (load->threads > 1)
        pthread_barrier_wait(&gate);
    for (unsigned i = 0; i < load->threads && load->threads > 1; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&gate);
    for (int i = 0; i < BUILDS && !load->grows; i++)
        close_allocator_of(&builds[i], load);
    result.ns[OLD] = bench_median(ns[OLD], rounds);
    result.ns[NEW] = bench_median(ns[NEW], rounds);
    result.ratio = bench_median(ratios, rounds);
    return result;
}

/* ----------------------------------------------------------------- processes ---- */

static void open_build(struct build *b, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        bench_fail("dlopen", dlerror());
#define FUNCTION(name)                                                                             \
    if (!(*(void **)&b->name = dlsym(library, "weir_" #name)))                                     \
    bench_fail(path, "has no weir_" #name)
    FUNCTION(allocator_create);
    FUNCTION(allocator_destroy);
    FUNCTION(bind);
    FUNCTION(alloc);
    FUNCTION(free);
#undef FUNCTION
}

static void open_streams(void) {
    bench_open(device);
    for (int i = 0; i < THREADS; i++)
        BENCH_CALL(cuStreamCreate, (CUstream *)&streams[i], CU_STREAM_NON_BLOCKING);
}

static void run_process(char **paths, int first, size_t rounds, int to) {
    open_build(&builds[first], paths[first]);
    open_build(&builds[!first], paths[!first]);
    open_streams();
    for (size_t i = 0; i < LOADS * ENGINES; i++) {
        const struct result result =
            measure_builds(&loads[i / ENGINES], &engines[i % ENGINES], first, rounds);

        if (write(to, &result, sizeof result) != sizeof result)
            bench_fail("write", "the results are lost");
    }
}

static void start_process(char **paths, int first, size_t rounds, struct result *results) {
    int ends[2], status;
    pid_t child;

    if (pipe(ends) != 0 || (child = fork()) < 0)
        bench_fail("fork", "there is no process to be had");
    if (child == 0) {
        close(ends[0]);
        run_process(paths, first, rounds, ends[1]);
        exit(0);
    }
    close(ends[1]);
    for (size_t i = 0; i < LOADS * ENGINES; i++)
        if (read(ends[0], &results[i], sizeof results[i]) != sizeof results[i])
            bench_fail("process", "it ended early");
    close(ends[0]);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("process", "it failed");
}

static void print_line(size_t which, struct result (*results)[LOADS * ENGINES], size_t processes) {
    double ns[BUILDS][MAX_PROCESSES], ratios[BUILDS][MAX_PROCESSES], order[BUILDS],
        all[MAX_PROCESSES];

    for (size_t i = 0; i < processes; i++) {
        ns[OLD][i] = results[i][which].ns[OLD];
        ns[NEW][i] = results[i][which].ns[NEW];
        all[i] = ratios[i % BUILDS][i / BUILDS] = results[i][which].ratio;
    }
    for (int i = 0; i < BUILDS; i++)
        order[i] = bench_median(ratios[i], processes / BUILDS);
    bench_median(all, processes); /* also sorts the ratios */
    printf("%-6s  %-26s %9.1f %9.1f  %6.3f  %6.3f to %.3f\n", engines[which % ENGINES].name,
           loads[which / ENGINES].name, bench_median(ns[OLD], processes),
           bench_median(ns[NEW], processes), sqrt(order[0] * order[1]), all[0], all[processes - 1]);
}

/* Converts a word of the command line to a number.  Returns 0 if the word is not a number from 0 to `most'. */
static size_t parse_count(const char *word, size_t most) {
    char *rest;
    unsigned long value = strtoul(word, &rest, 10);

    return *rest == 0 && value <= most ? value : 0;
}

int main(int count, char **words) {
    static struct result results[MAX_PROCESSES][LOADS * ENGINES];
    const size_t processes = count > 4 ? parse_count(words[4], MAX_PROCESSES) : 8;
    const size_t rounds = count > 5 ? parse_count(words[5], MAX_ROUNDS) : 31;

    if (count > 3)
        device = words[3];
    if (count < 3 || processes == 0 || processes % BUILDS != 0 || rounds == 0 ||
        strncmp(device, "cuda", 4) != 0) {
        fprintf(
            stderr,
            "usage: two_builds OLD/libweir.so.1 NEW/libweir.so.1 [cuda[:N] [PROCESSES [ROUNDS]]]\n"
            "PROCESSES: an even number, 2 to %d; 8 by default.  ROUNDS: 1 to %d; 31 by default.\n",
            MAX_PROCESSES, MAX_ROUNDS);
        return 2;
    }
    for (size_t i = 0; i < processes; i++)
        start_process(words + 1, (int)(i % BUILDS), rounds, results[i]);
    printf("%-6s  %-26s %9s %9s  %6s  %s\n", "engine", "load", "old, ns", "new, ns", "ratio",
           "of the processes");
    for (size_t i = 0; i < LOADS * ENGINES; i++)
        print_line(i, results, processes);
    return 0;
}
