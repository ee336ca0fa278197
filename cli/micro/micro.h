/* SPDX-License-Identifier: MIT */
/* micro.h: what the parts of `weir bench --micro` have in common.
 *
 *   subject   what is measured: the driver's pool, weir in one of its forms, an allocator of the host
 *   instance  one of it, opened for a case and closed after it
 *   load      what threads do with it: a loop of pairs, of requests, of cycles
 *   case      a load with its parameters; scenarios are lists of cases
 *   run       one subject in one case
 *   batch     as many turns of the load as fit a few milliseconds; one figure
 *   round     a batch of each subject, one after the other
 *
 * micro.c is the command, micro_subjects.c who is measured, micro_scenarios.c what they do,
 * micro_run.c a case from beginning to end, micro_measure.c how it is timed, micro_questions.c what
 * the driver's answers cost, micro_table.c what a person sees of it.
 */
#ifndef WEIR_CLI_MICRO_H
#define WEIR_CLI_MICRO_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include <weir/weir.h>

#include "base/histogram.h"
#include "cli/common/flags.h"
#include "cli/common/span.h"

enum {
    MICRO_SUBJECTS = 16,
    MICRO_CASES = 64,
    MICRO_THREADS = 64, /* the most that --threads takes */
    MICRO_GROUP = 64,
    MICRO_TEXT_BYTES = 256
};

struct micro;
struct micro_subject;
struct micro_run;

/* ------------------------------------------------------------------ subjects ---- */

struct micro_instance {
    const struct micro_subject *subject;
    struct micro *micro;
    weir_allocator *allocator; /* weir's forms */
    CUmemoryPool pool;         /* the driver's */
    void *(*take)(size_t);     /* the host's */
    void (*give)(void *);
};

enum micro_place { MICRO_ON_NOTHING, MICRO_ON_DEVICE, MICRO_ON_HOST };

struct micro_subject {
    const char *name;
    const char *was;  /* its earlier name; NULL: none */
    const char *what; /* one line for --help */
    enum micro_place place;
    int engine;                 /* weir's forms: WEIR_ENGINE_ */
    unsigned needs_percent;     /* device memory it takes at most, of what is requested of it */
    const char *const *library; /* names to try, to NULL; NULL: nothing to open */
    const char *take_symbol, *give_symbol;
    /* 1, or 0 with the reason in `why`. */
    int (*open)(struct micro_instance *instance, char *why, size_t why_bytes);
    int (*close)(struct micro_instance *instance, char *why, size_t why_bytes);
    weir_status (*alloc)(struct micro_instance *instance, size_t bytes, CUstream stream,
                         void **block);
    weir_status (*free)(struct micro_instance *instance, void *block, CUstream stream);
    /* Before a stream's first use and after its last; NULL: nothing to do. */
    weir_status (*enter)(struct micro_instance *instance, CUstream stream);
    weir_status (*leave)(struct micro_instance *instance, CUstream stream);
    /* Bytes taken from the device, and host memory for keeping the books; 0: not known. */
    int (*reserve)(struct micro_instance *instance, uint64_t *bytes);
    int (*host_bytes)(struct micro_instance *instance, uint64_t *bytes);
};

/* All there are, in order; ends with a NULL name.  The first is the loop itself. */
extern const struct micro_subject micro_subjects[];
const struct micro_subject *micro_subject_find(const char *name);
/* 0 with the reason in `why`: its library is not installed. */
int micro_subject_is_there(const struct micro_subject *subject, char *why, size_t why_bytes);

/* --------------------------------------------------------------------- cases ---- */

struct micro_worker;

struct micro_load {
    const char *key;  /* of its time in JSON: "pair_ns", "request_ns", "cycle_ns" */
    int on_host;      /* subjects of the host serve it too */
    int on_two_sides; /* workers are pairs: one that turns, one that consumes */
    /* `count` pairs, requests or cycles, a multiple of MICRO_GROUP unless the case has a count of its
     * own.  1, or 0 after micro_fail. */
    int (*turn)(struct micro_worker *worker, uint64_t count);
    void (*consume)(struct micro_worker *worker);
};

struct micro_case {
    const char *scenario;
    char group[MICRO_TEXT_BYTES]; /* what the columns of one table have in common */
    char column[16];
    const struct micro_load *load;
    size_t bytes;             /* of hot pairs; 0: drawn, as those of live blocks */
    size_t smallest, largest; /* live blocks: uniform, or log-uniform by octaves */
    int by_octave;
    uint64_t live;
    int unmapped_ranges; /* twice as many are laid and a random half is freed */
    unsigned threads, streams;
    uint64_t count;                 /* turns of a batch; 0: as many as fit */
    char why_not[MICRO_TEXT_BYTES]; /* it cannot be here; "": it can */
};

/* The names of all scenarios, to NULL. */
extern const char *const micro_scenarios[];
/* Those of the scenario; how many were added. */
size_t micro_cases(const struct micro *micro, const char *scenario, struct micro_case *cases,
                   size_t room);
/* Figures that compare cases: efficiency, cost by live blocks, what a cycle costs beside streams. */
void micro_compare(struct micro *micro);

/* ----------------------------------------------------------------- measuring ---- */

struct micro_latency {
    struct weir_histogram alloc, free, pair;
};

struct micro_ring;

/* A thread of a run; aligned so that none shares a cache line with another. */
struct micro_worker {
    _Alignas(128) struct micro_run *run;
    struct micro_instance *instance;
    const struct micro_subject *subject;
    CUstream stream;
    struct micro_latency *latency; /* single calls are timed into it; NULL: they are not */
    struct micro_latency *muted;   /* what `latency` was before micro_pause */
    const struct span_clock *clock;
    struct span_start started;
    struct span sum;     /* of the batch, without what was paused */
    uint64_t other_half; /* ns of a pair's first call */
    int has_half;
    uint64_t random;
    size_t next;        /* of the streams */
    uint64_t done;      /* turns of the batch */
    uint64_t chunk;     /* turns between two looks at the time */
    uint64_t waited_ns; /* for the other side */
    struct micro_ring *ring;
    unsigned index;
};

struct micro_run {
    struct micro *micro;
    const struct micro_case *of;
    struct micro_instance instance;
    int is_open;  /* the instance is */
    int is_ready; /* streams, threads and live blocks are there */
    void **live;
    uint64_t live_count;
    CUstream *streams;
    unsigned stream_count;
    struct micro_worker *workers;
    struct span_clock clock; /* virtual time only where one thread calls a modelled driver */
    struct micro_latency latency;
    double *ns;   /* per turn and thread, by round */
    double *rate; /* turns a second of all threads, by round */
    uint64_t rounds;
    uint64_t turns, driver_ns; /* of all rounds */
    uint64_t counted_turns;
    uint64_t calls[WEIR_ENTRY_COUNT]; /* in counted_turns */
    uint64_t reserve_before;
    int has_reserve_before;
    int is_interleaved;
    char skipped[MICRO_TEXT_BYTES];
    char error[MICRO_TEXT_BYTES];
    atomic_int has_failed;
};

/* One row of the results. */
struct micro_row {
    const struct micro_case *of;
    const struct micro_subject *subject;
    json_t *object;
};

struct micro {
    /* What was asked. */
    struct weir_cli_settings settings;
    const struct micro_subject *subjects[MICRO_SUBJECTS];
    size_t subject_count;
    unsigned picked_scenarios; /* bits of micro_scenarios; 0: all */
    uint64_t rounds;           /* 0: the default */
    uint64_t threads;          /* 0: the default */
    int is_quick;
    const char *json_file;

    /* Where it runs. */
    struct weir_cli_device device;
    const struct weir_driver *driver;
    const struct weir_driver *counted;
    struct weir_driver table; /* what subjects call; changes only while nobody does */
    CUdevice handle;
    CUcontext context;
    struct span_clock clock;
    uint64_t batch_ns;
    int *cpus; /* that this process may use; NULL: not known */
    size_t cpu_count;
    char absent[MICRO_TEXT_BYTES]; /* subjects that are not installed */

    /* What came of it. */
    struct micro_case cases[MICRO_CASES];
    size_t case_count;
    struct micro_row *rows;
    size_t row_count;
    json_t *call_ns; /* what a question costs, by entry */
    int has_failed;
};

/* The clock and the processors.  1, or 0 with a message printed. */
int micro_begin(struct micro *micro);
/* Fills call_ns: ns a call, on a modelled device virtual ones; without what this driver does not
 * answer. */
void micro_price_questions(struct micro *micro);
/* All subjects in one case; adds a row for each that serves it. */
void micro_measure(struct micro *micro, const struct micro_case *of);
/* All rounds of those runs that are ready. */
void micro_rounds(struct micro_run *runs, size_t run_count);
/* Sorts `values`. */
double micro_median(double *values, uint64_t count);

/* The first failure of a run is kept; 0. */
int micro_run_fail(struct micro_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int micro_fail(struct micro_worker *worker, const char *what, weir_status status);
weir_status micro_alloc_timed(struct micro_worker *worker, size_t bytes, CUstream stream,
                              void **block);
weir_status micro_free_timed(struct micro_worker *worker, void *block, CUstream stream);
/* What comes between is no part of the time, nor of single calls'. */
void micro_pause(struct micro_worker *worker);
void micro_resume(struct micro_worker *worker);

static inline int micro_alloc(struct micro_worker *worker, size_t bytes, CUstream stream,
                              void **block) {
    weir_status status = worker->latency
                             ? micro_alloc_timed(worker, bytes, stream, block)
                             : worker->subject->alloc(worker->instance, bytes, stream, block);

    return status == WEIR_OK || micro_fail(worker, "an allocation", status);
}

static inline int micro_free(struct micro_worker *worker, void *block, CUstream stream) {
    weir_status status = worker->latency ? micro_free_timed(worker, block, stream)
                                         : worker->subject->free(worker->instance, block, stream);

    return status == WEIR_OK || micro_fail(worker, "a free", status);
}

static inline uint64_t micro_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A new size of the case's; drawn ahead, so that little of it is timed. */
enum { MICRO_SIZES = 4096 };
extern uint32_t micro_sizes[MICRO_SIZES];

static inline size_t micro_size(uint64_t random) {
    return micro_sizes[random >> 52];
}

/* The ring between the two sides of a load (micro_scenarios.c). */
struct micro_ring *micro_ring_make(void);
void micro_ring_reset(struct micro_ring *ring);
/* The turning side is done: returns when the consuming side is, too. */
void micro_ring_close(struct micro_worker *worker);

/* ------------------------------------------------------------------- output ---- */

void micro_table_print(FILE *file, const struct micro *micro);

int micro_is_asked(int argc, char **argv);
/* 1: the option of that name and length is one of --micro, settings aside; and of nothing else in `weir bench'. */
int micro_has(const char *option, size_t length);
int micro_alone_has(const char *option, size_t length);
int weir_cmd_micro(int argc, char **argv);

#endif
