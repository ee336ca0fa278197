/* SPDX-License-Identifier: MIT */
/* bare_placement.c: measures the host time that weir needs to choose addresses for blocks (the placement), in
 * nanoseconds for an allocation and its free together.
 *
 *     bench/bare_placement [--placement] [--regions] ... [--case TEXT] [--cpu N] [--json FILE]
 *
 * The program needs no GPU, and there is no memory at the addresses.  `bench/micro --subject bfc' measures the bfc
 * engine, which uses this placement.  Cases:
 *
 *   hot      allocates 64 KiB and frees it again, beside N live blocks of 512 B to 1 MiB (sizes are log-uniform).  In
 *            the cases "packed" the live blocks lie side by side; in the cases "holes" they are a random half of twice
 *            as many blocks.  "two at a time" allocates two blocks and then frees them in the order of their
 *            allocation, so that a free does not simply undo the previous step
 *   churn    frees a random one of N live blocks and allocates a new block of a random size
 *
 * The program also prints how much host memory the placement uses: by its own count, and by the growth of the
 * resident set.
 *
 * Each case runs in three new processes, each pinned to one processor.  A process runs the case once to warm up and
 * then seven times.  The table shows the median and the minimum of all runs.  The time is the processor time of the
 * thread, so that other programs disturb it only through caches.  A process first starts an idle thread, because a C
 * library may use cheaper instructions in a process with one thread.  --nothing measures the cost of the program
 * itself (random numbers, the array of live blocks, indirect calls); it is not subtracted.
 */
#include "placement/placement.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 3
#define RUNS 7
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define RANGE (104 * GIB)
#define BASE ((uint64_t)1 << 46)
/* The number of random sizes.  They are drawn in advance, because logarithms take time. */
#define SIZES ((size_t)1 << 16)
#define STREAMS 4

/* ---------------------------------------------------------------- backends -- */

/* A placement to measure.  Each process opens one placement.  allocate() returns the address of a block, or 0 on
 * failure. */
struct backend {
    const char *option;
    const char *what;
    void (*open)(void);
    uint64_t (*allocate)(size_t bytes);
    void (*free)(uint64_t address);
    /* Returns the host memory that the placement uses.  The pointer is NULL if the placement cannot tell. */
    size_t (*host_bytes)(void);
};

static struct weir_placement *placement;
static struct weir_placement_stream records[STREAMS];
static uint64_t sequence;

static _Noreturn void exit_with_error(const char *what) {
    fprintf(stderr, "bare_placement: %s\n", what);
    exit(1);
}

static void open_placement(size_t regions) {
    static const struct weir_placement_rule bfc = {.granularity = 256, .split_waste = 128 * MIB};

    if (weir__placement_create(&bfc, &placement) != WEIR_PLACEMENT_OK) {
        exit_with_error("no memory");
    }
    for (uint64_t i = 0; i < STREAMS; i++) {
        records[i].id = i + 1;
    }
    for (size_t i = 0; i < regions; i++) {
        if (weir__placement_add(placement, BASE + i * (RANGE / regions), RANGE / regions) !=
            WEIR_PLACEMENT_OK) {
            exit_with_error("no memory");
        }
    }
}

static void open_one_region(void) {
    open_placement(1);
}

static void open_many_regions(void) {
    open_placement(52);
}

static uint64_t allocate_placed(size_t bytes, struct weir_placement_stream *s) {
    struct weir_placement_block block;

    return weir__placement_alloc(placement, bytes, s, &block) == WEIR_PLACEMENT_OK ? block.address
                                                                                   : 0;
}

static void free_placed(uint64_t address, struct weir_placement_stream *s) {
    struct weir_placement_block block;

    if (weir__placement_free(placement, address, s, ++sequence, &block) != WEIR_PLACEMENT_OK) {
        exit_with_error("a block could not be freed");
    }
}

static uint64_t allocate_on_one_stream(size_t bytes) {
    return allocate_placed(bytes, &records[0]);
}

static void free_on_one_stream(uint64_t address) {
    free_placed(address, &records[0]);
}

/* Allocates on four streams in turn. */
static uint64_t allocate_on_streams(size_t bytes) {
    return allocate_placed(bytes, &records[sequence % STREAMS]);
}

/* Frees a block.  At every 64th free, reports one stream's frees as completed, except the last 256 frees. */
static void free_on_streams(uint64_t address) {
    free_placed(address, &records[sequence % STREAMS]);
    if (sequence % 64 == 0 && sequence > 256) {
        records[sequence / 64 % STREAMS].observed = sequence - 256;
        weir__placement_observe(placement, &records[sequence / 64 % STREAMS]);
    }
}

static size_t placement_host_bytes(void) {
    struct weir_placement_figures figures;

    weir__placement_figures(placement, &figures);
    return figures.host_bytes;
}

static void open_no_placement(void) {
}

static uint64_t allocate_no_block(size_t bytes) {
    return bytes;
}

static void free_no_block(uint64_t address) {
    sequence += address;
}

static const struct backend backends[] = {
    {"placement", "placement alone: one region, one stream, no lock", open_one_region,
     allocate_on_one_stream, free_on_one_stream, placement_host_bytes},
    {"regions", "placement alone, 52 regions that touch", open_many_regions, allocate_on_one_stream,
     free_on_one_stream, placement_host_bytes},
    {"streams", "placement alone, four streams in turn, observed after 256 frees", open_one_region,
     allocate_on_streams, free_on_streams, placement_host_bytes},
    {"nothing", "the harness itself", open_no_placement, allocate_no_block, free_no_block, NULL},
};
#define BACKENDS (sizeof backends / sizeof backends[0])

/* ------------------------------------------------------------------- cases -- */

enum pattern { HOT, TWO, CHURN };

struct bench_case {
    const char *name;
    enum pattern pattern;
    size_t live;
    int unmapped_ranges;
    size_t largest; /* the largest size; sizes are log-uniform from 512 B to this size */
    /* The time in ns that the placement with one region should reach, or 0 if there is no such goal. */
    double target;
};

static const struct bench_case cases[] = {
    {"hot 64 KiB, 0 live", HOT, 0, 0, MIB, 60},
    {"hot 64 KiB, 10^3 packed", HOT, 1000, 0, MIB, 60},
    {"hot 64 KiB, 10^3 holes", HOT, 1000, 1, MIB, 60},
    {"hot 64 KiB, 10^5 packed", HOT, 100000, 0, MIB, 60},
    {"hot 64 KiB, 10^5 holes", HOT, 100000, 1, MIB, 60},
    {"hot, two at a time, 0 live", TWO, 0, 0, MIB, 0},
    {"hot, two at a time, 10^5 holes", TWO, 100000, 1, MIB, 0},
    {"churn 10^3 live, 512 B - 64 MiB", CHURN, 1000, 0, 64 * MIB, 75},
    {"churn 10^4 live, 512 B - 64 MiB", CHURN, 10000, 0, 64 * MIB, 85},
    {"churn 10^4 live, 512 B - 1 MiB", CHURN, 10000, 0, MIB, 0},
    {"churn 10^5 live, 512 B - 1 MiB", CHURN, 100000, 0, MIB, 125},
};
#define CASES (sizeof cases / sizeof cases[0])
#define PAIRS 1000000L /* an allocation and its free, in each run */

struct result {
    double ns[RUNS];
    size_t host_bytes;
    size_t rss_growth;
    size_t failed;
};

static size_t sizes[SIZES];
static uint64_t random_state;

static inline uint64_t bench_random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline size_t bench_random_below(size_t limit) {
    return (size_t)((bench_random_next() >> 32) * limit >> 32);
}

static inline size_t bench_random_size(void) {
    return sizes[bench_random_next() >> 48];
}

static void draw_sizes(size_t largest) {
    for (size_t i = 0; i < SIZES; i++) {
        double unit = (double)(bench_random_next() >> 11) / 9007199254740992.0;

        sizes[i] = (size_t)(512.0 * exp(unit * log((double)largest / 512.0)));
    }
}

static double placement_now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static size_t read_resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;

    if (f == NULL || fscanf(f, "%*u %lu", &pages) != 1) {
        pages = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static uint64_t allocate_or_exit(const struct backend *b, size_t bytes) {
    uint64_t address = b->allocate(bytes);

    if (address == 0) {
        exit_with_error("the range is full");
    }
    return address;
}

static double measure_hot_blocks(const struct backend *b, long pairs) {
    double start = placement_now_ns();

    for (long i = 0; i < pairs; i++) {
        b->free(allocate_or_exit(b, 64 * KIB));
    }
    return (placement_now_ns() - start) / (double)pairs;
}

static double measure_two_at_a_time(const struct backend *b, long pairs) {
    double start = placement_now_ns();

    for (long i = 0; i < pairs; i += 2) {
        uint64_t first = allocate_or_exit(b, 64 * KIB);
        uint64_t second = allocate_or_exit(b, 64 * KIB);

        b->free(first);
        b->free(second);
    }
    return (placement_now_ns() - start) / (double)pairs;
}

/* Frees random live blocks, and allocates a new block after each.  If there is no room for a new block, increments
 * *failed and leaves the entry of the array empty.  Returns the time of a free and an allocation in nanoseconds. */
static double measure_replacement(const struct backend *b, uint64_t *live, size_t count, long pairs,
                                  size_t *failed) {
    double start = placement_now_ns();

    for (long i = 0; i < pairs; i++) {
        size_t at = bench_random_below(count);

        if (live[at] != 0) {
            b->free(live[at]);
        }
        live[at] = b->allocate(bench_random_size());
        *failed += live[at] == 0;
    }
    return (placement_now_ns() - start) / (double)pairs;
}

static void allocate_live(const struct backend *b, const struct bench_case *c, uint64_t *live) {
    size_t count = c->unmapped_ranges ? 2 * c->live : c->live;

    for (size_t i = 0; i < count; i++) {
        live[i] = allocate_or_exit(b, bench_random_size());
    }
    for (size_t i = count; i-- > c->live;) {
        size_t at = bench_random_below(i + 1);

        b->free(live[at]);
        live[at] = live[i];
    }
}

static double run_case_once(const struct backend *b, const struct bench_case *c, uint64_t *live,
                            long pairs, struct result *r) {
    return c->pattern == HOT   ? measure_hot_blocks(b, pairs)
           : c->pattern == TWO ? measure_two_at_a_time(b, pairs)
                               : measure_replacement(b, live, c->live, pairs, &r->failed);
}

static void run_case(const struct backend *b, const struct bench_case *c, struct result *r) {
    uint64_t *live = calloc(2 * c->live + 1, sizeof *live);
    size_t before;

    if (live == NULL) {
        exit_with_error("no memory");
    }
    memset(live, 1, (2 * c->live + 1) * sizeof *live);
    random_state = UINT64_C(88172645463325252) + (uint64_t)getpid();
    draw_sizes(c->largest);
    before = read_resident_bytes();
    b->open();
    allocate_live(b, c, live);
    run_case_once(b, c, live, c->pattern == CHURN ? PAIRS / 2 + 20 * (long)c->live : PAIRS / 4, r);
    r->failed = 0;
    for (int i = 0; i < RUNS; i++) {
        r->ns[i] = run_case_once(b, c, live, PAIRS, r);
    }
    r->rss_growth = read_resident_bytes() - before;
    r->host_bytes = b->host_bytes == NULL ? 0 : b->host_bytes();
    free(live);
}

/* --------------------------------------------------------------- processes -- */

static void *wake_processor(void *unused) {
    for (;;) {
        pause();
    }
    return unused;
}

static void run_case_as_child(const struct backend *b, const struct bench_case *c, int cpu,
                              int to) {
    struct result r = {0};
    pthread_t thread;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        exit_with_error("cannot pin to that processor");
    }
    if (pthread_create(&thread, NULL, wake_processor, NULL) != 0) {
        exit_with_error("cannot start a thread");
    }
    run_case(b, c, &r);
    if (write(to, &r, sizeof r) != (ssize_t)sizeof r) {
        exit_with_error("cannot write the result");
    }
    _exit(0);
}

static void run_case_in_process(const struct backend *b, const struct bench_case *c, int cpu,
                                struct result *r) {
    int ends[2];
    int status;
    pid_t pid;

    if (pipe(ends) != 0 || (pid = fork()) < 0) {
        exit_with_error(strerror(errno));
    }
    if (pid == 0) {
        run_case_as_child(b, c, cpu, ends[1]);
    }
    close(ends[1]);
    if (read(ends[0], r, sizeof *r) != (ssize_t)sizeof *r) {
        exit_with_error("a process wrote no result");
    }
    close(ends[0]);
    waitpid(pid, &status, 0);
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Measures one case, prints its line of the table, and appends the result to the JSON array `all'. */
static void measure_case(const struct backend *b, const struct bench_case *c, int cpu,
                         json_t *all) {
    struct result r[PROCESSES];
    double ns[PROCESSES * RUNS];
    json_t *runs = json_array();
    char target[16] = "";

    for (size_t i = 0; i < PROCESSES; i++) {
        run_case_in_process(b, c, cpu, &r[i]);
        memcpy(ns + i * RUNS, r[i].ns, sizeof r[i].ns);
    }
    for (size_t i = 0; i < PROCESSES * RUNS; i++) {
        json_array_append_new(runs, json_real(ns[i]));
    }
    qsort(ns, PROCESSES * RUNS, sizeof ns[0], compare_times);
    if (b == &backends[0] && c->target > 0) {
        snprintf(target, sizeof target, "%.0f", c->target);
    }
    printf("%-34s %8.1f %8.1f %8s %12zu %12zu %8zu\n", c->name, ns[PROCESSES * RUNS / 2], ns[0],
           target, r[0].host_bytes, r[0].rss_growth, r[0].failed);
    fflush(stdout);
    json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:f, s:f, s:o, s:I, s:I}", "backend",
                                         b->option, "case", c->name, "live", (json_int_t)c->live,
                                         "median_ns", ns[PROCESSES * RUNS / 2], "least_ns", ns[0],
                                         "runs_ns", runs, "host_bytes", (json_int_t)r[0].host_bytes,
                                         "rss_growth_bytes", (json_int_t)r[0].rss_growth));
}

/* ------------------------------------------------------------------- main -- */

static void usage(FILE *to) {
    fprintf(to, "usage: bare_placement [BACKEND...] [--case TEXT] [--cpu N] [--json FILE]\n\n"
                "Backends (without any: --placement):\n");
    for (size_t i = 0; i < BACKENDS; i++) {
        fprintf(to, "  --%-12s %s\n", backends[i].option, backends[i].what);
    }
    fprintf(to, "Options:\n"
                "  --case TEXT    only the cases whose name contains TEXT\n"
                "  --cpu N        the processor to run on (the last)\n"
                "  --json FILE    also write the figures to FILE\n");
}

struct choice {
    int chosen[BACKENDS];
    int any;
    int cpu;
    const char *only;
    const char *json;
};

static int parse_placement_options(int argc, char **argv, struct choice *choice) {
    struct option options[BACKENDS + 5] = {{"case", required_argument, NULL, 'o'},
                                           {"cpu", required_argument, NULL, 'c'},
                                           {"json", required_argument, NULL, 'j'},
                                           {"help", no_argument, NULL, 'h'}};
    int option;

    for (size_t i = 0; i < BACKENDS; i++) {
        options[4 + i] = (struct option){backends[i].option, no_argument, NULL, 1000 + (int)i};
    }
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option >= 1000) {
            choice->chosen[option - 1000] = choice->any = 1;
        } else if (option == 'o') {
            choice->only = optarg;
        } else if (option == 'c') {
            choice->cpu = atoi(optarg);
        } else if (option == 'j') {
            choice->json = optarg;
        } else {
            usage(option == 'h' ? stdout : stderr);
            exit(option == 'h' ? 0 : 2);
        }
    }
    return optind == argc;
}

int main(int argc, char **argv) {
    struct choice choice = {.cpu = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1};
    json_t *all = json_array();

    if (!parse_placement_options(argc, argv, &choice)) {
        usage(stderr);
        return 2;
    }
    if (!choice.any) {
        choice.chosen[0] = 1;
    }
    for (size_t b = 0; b < BACKENDS; b++) {
        if (!choice.chosen[b]) {
            continue;
        }
        printf("%s: %s\n%-34s %8s %8s %8s %12s %12s %8s\n", backends[b].option, backends[b].what,
               "ns per pair", "median", "least", "target", "host bytes", "rss growth", "failed");
        for (size_t c = 0; c < CASES; c++) {
            if (choice.only == NULL || strstr(cases[c].name, choice.only) != NULL) {
                measure_case(&backends[b], &cases[c], choice.cpu, all);
            }
        }
    }
    if (choice.json != NULL && json_dump_file(all, choice.json, JSON_INDENT(1)) != 0) {
        exit_with_error("cannot write the JSON file");
    }
    json_decref(all);
    return 0;
}
