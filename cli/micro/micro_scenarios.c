/* SPDX-License-Identifier: MIT */
/* micro_scenarios.c: what subjects do: the loads, and the cases of each scenario.
 *
 * A scenario asks one question: what a pair costs alone and among other blocks (pair, churn), by
 * threads, by streams, when one thread frees what another allocates, when a stream lives on what
 * another has freed, and what streams cost that come and go.
 *
 * Must not know: how time is taken, who the subjects are.
 */
#include "cli/micro/micro.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/settings.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { HOT_BYTES = 65536 };

/* --------------------------------------------------------------------- loads ---- */

static int turn_pair(struct micro_worker *worker, uint64_t count) {
    size_t bytes = worker->run->of->bytes;
    void *block;

    for (uint64_t i = 0; i < count; i++)
        if (!micro_alloc(worker, bytes, worker->stream, &block) ||
            !micro_free(worker, block, worker->stream))
            return 0;
    return 1;
}

/* A random one of the live blocks goes, a new one comes. */
static int turn_churn(struct micro_worker *worker, uint64_t count) {
    struct micro_run *run = worker->run;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t random = micro_random(&worker->random);
        void **block = &run->live[((random & 0xffffffffu) * run->live_count) >> 32];

        if (!micro_free(worker, *block, worker->stream) ||
            !micro_alloc(worker, micro_size(random), worker->stream, block)) {
            *block = run->live[--run->live_count]; /* it is gone */
            return 0;
        }
    }
    return 1;
}

static int turn_streams(struct micro_worker *worker, uint64_t count) {
    const struct micro_run *run = worker->run;
    size_t bytes = run->of->bytes;
    void *block;

    for (uint64_t i = 0; i < count; i++) {
        CUstream stream = run->streams[worker->next];

        if (++worker->next == run->stream_count)
            worker->next = 0;
        if (!micro_alloc(worker, bytes, stream, &block) || !micro_free(worker, block, stream))
            return 0;
    }
    return 1;
}

enum { STEAL_BLOCKS = MICRO_GROUP };

/* Blocks lie free on the first stream, and the second one asks for as many, while the first one's
 * owner goes on calling.  What the second one got is freed on the first one, so that it never has
 * anything of its own.  Timed are the second one's requests alone. */
static int steal_some(struct micro_worker *worker, CUstream from, CUstream to) {
    enum { REQUESTS = 8 };
    size_t bytes = worker->run->of->bytes;
    void *blocks[STEAL_BLOCKS], *own;
    int good = 1, held = 0;

    micro_pause(worker);
    while (good && held < STEAL_BLOCKS && (good = micro_alloc(worker, bytes, from, &blocks[held])))
        held++;
    while (held > 0)
        good &= micro_free(worker, blocks[--held], from);
    while (good && held < STEAL_BLOCKS) {
        micro_resume(worker);
        for (int i = 0; good && i < REQUESTS; i++)
            held += good = micro_alloc(worker, bytes, to, &blocks[held]);
        micro_pause(worker);
        good = good && micro_alloc(worker, bytes, from, &own) && micro_free(worker, own, from);
    }
    while (held > 0)
        good &= micro_free(worker, blocks[--held], from);
    micro_resume(worker);
    return good;
}

static int turn_steal(struct micro_worker *worker, uint64_t count) {
    const struct micro_run *run = worker->run;

    for (uint64_t i = 0; i < count; i += STEAL_BLOCKS)
        if (!steal_some(worker, run->streams[0], run->streams[1]))
            return 0;
    return 1;
}

/* A stream is made, serves a few pairs, and goes. */
static int live_once(struct micro_worker *worker) {
    const struct weir_driver *driver = worker->run->micro->driver;
    const struct micro_subject *subject = worker->subject;
    enum { PAIRS = 4 };
    CUstream stream;
    void *block;
    int good = 1;

    if (driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return micro_fail(worker, "cuStreamCreate", WEIR_E_DRIVER);
    if (subject->enter && subject->enter(worker->instance, stream) != WEIR_OK)
        good = micro_fail(worker, "binding a stream", WEIR_E_STREAM);
    for (int i = 0; good && i < PAIRS; i++)
        good = micro_alloc(worker, worker->run->of->bytes, stream, &block) &&
               micro_free(worker, block, stream);
    if (good && subject->leave && subject->leave(worker->instance, stream) != WEIR_OK)
        good = micro_fail(worker, "unbinding a stream", WEIR_E_STREAM);
    if (driver->cuStreamDestroy(stream) != CUDA_SUCCESS)
        good = micro_fail(worker, "cuStreamDestroy", WEIR_E_DRIVER);
    return good;
}

static int turn_lifecycle(struct micro_worker *worker, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        if (!live_once(worker))
            return 0;
    return 1;
}

/* ------------------------------------------------- one allocates, another frees ---- */

enum { RING_SLOTS = 256 };

/* One producer, one consumer; each side's counter on a cache line of its own, with what the side
 * last saw of the other. */
struct micro_ring {
    _Alignas(128) _Atomic uint64_t pushed;
    uint64_t popped_seen;
    _Alignas(128) _Atomic uint64_t popped;
    uint64_t pushed_seen;
    _Alignas(128) atomic_int is_closed;
    atomic_int is_drained;
    void *slots[RING_SLOTS];
};

struct micro_ring *micro_ring_make(void) {
    struct micro_ring *ring = aligned_alloc(_Alignof(struct micro_ring), sizeof *ring);

    if (ring)
        micro_ring_reset(ring);
    return ring;
}

void micro_ring_reset(struct micro_ring *ring) {
    memset(ring, 0, sizeof *ring);
}

/* A thread that waits for another one may share its processor. */
static void rest(unsigned *waits) {
    if (++*waits % 256 == 0)
        sched_yield();
}

/* Until the ring has room; 0: another thread has failed. */
static int wait_for_room(struct micro_worker *worker, uint64_t pushed) {
    const struct stopwatch *watch = &worker->clock->watch;
    struct micro_ring *ring = worker->ring;
    uint64_t from = stopwatch_read(watch);
    unsigned waits = 0;

    do {
        if (atomic_load_explicit(&worker->run->has_failed, memory_order_relaxed))
            return 0;
        rest(&waits);
        ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
    } while (pushed - ring->popped_seen == RING_SLOTS);
    worker->waited_ns += stopwatch_span(watch, from, stopwatch_read(watch));
    return 1;
}

static int turn_produce(struct micro_worker *worker, uint64_t count) {
    struct micro_ring *ring = worker->ring;
    uint64_t pushed = atomic_load_explicit(&ring->pushed, memory_order_relaxed);
    size_t bytes = worker->run->of->bytes;

    for (uint64_t i = 0; i < count; i++) {
        if (pushed - ring->popped_seen == RING_SLOTS) {
            ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
            if (pushed - ring->popped_seen == RING_SLOTS && !wait_for_room(worker, pushed))
                return 0;
        }
        if (!micro_alloc(worker, bytes, worker->stream, &ring->slots[pushed % RING_SLOTS]))
            return 0;
        atomic_store_explicit(&ring->pushed, ++pushed, memory_order_release);
    }
    return 1;
}

void micro_ring_close(struct micro_worker *worker) {
    const struct stopwatch *watch = &worker->clock->watch;
    uint64_t from = stopwatch_read(watch);
    unsigned waits = 0;

    atomic_store_explicit(&worker->ring->is_closed, 1, memory_order_release);
    while (!atomic_load_explicit(&worker->ring->is_drained, memory_order_acquire))
        rest(&waits);
    worker->waited_ns += stopwatch_span(watch, from, stopwatch_read(watch));
}

/* Until something is there; 0: nothing will come any more. */
static int wait_for_block(struct micro_worker *worker, uint64_t popped) {
    const struct stopwatch *watch = &worker->clock->watch;
    struct micro_ring *ring = worker->ring;
    uint64_t from = stopwatch_read(watch);
    unsigned waits = 0;
    int is_closed;

    do {
        rest(&waits);
        is_closed = atomic_load_explicit(&ring->is_closed, memory_order_acquire);
        ring->pushed_seen = atomic_load_explicit(&ring->pushed, memory_order_acquire);
    } while (popped == ring->pushed_seen && !is_closed);
    worker->waited_ns += stopwatch_span(watch, from, stopwatch_read(watch));
    return popped != ring->pushed_seen;
}

/* Goes on after a failure: blocks must not stay behind. */
static void consume(struct micro_worker *worker) {
    struct micro_ring *ring = worker->ring;
    uint64_t popped = 0;

    for (;;) {
        if (popped == ring->pushed_seen) {
            ring->pushed_seen = atomic_load_explicit(&ring->pushed, memory_order_acquire);
            if (popped == ring->pushed_seen && !wait_for_block(worker, popped))
                break;
        }
        micro_free(worker, ring->slots[popped % RING_SLOTS], worker->stream);
        atomic_store_explicit(&ring->popped, ++popped, memory_order_release);
    }
    atomic_store_explicit(&ring->is_drained, 1, memory_order_release);
}

/* --------------------------------------------------------------------- cases ---- */

static const struct micro_load pair_load = {.key = "pair_ns", .on_host = 1, .turn = turn_pair};
static const struct micro_load churn_load = {.key = "pair_ns", .on_host = 1, .turn = turn_churn};
static const struct micro_load streams_load = {.key = "pair_ns", .turn = turn_streams};
static const struct micro_load sides_load = {
    .key = "pair_ns", .on_host = 1, .on_two_sides = 1, .turn = turn_produce, .consume = consume};
static const struct micro_load steal_load = {.key = "request_ns", .turn = turn_steal};
static const struct micro_load lifecycle_load = {.key = "cycle_ns", .turn = turn_lifecycle};

/* Where the cases of a scenario go. */
struct list {
    const struct micro *micro;
    struct micro_case *cases;
    size_t count, room;
};

static struct micro_case *add(struct list *list, const char *scenario,
                              const struct micro_load *load, const char *column, const char *group,
                              ...) __attribute__((format(printf, 5, 6)));

static struct micro_case *add(struct list *list, const char *scenario,
                              const struct micro_load *load, const char *column, const char *group,
                              ...) {
    static struct micro_case none;
    struct micro_case *added = list->count < list->room ? &list->cases[list->count++] : &none;
    va_list arguments;

    *added = (struct micro_case){.scenario = scenario, .load = load, .threads = 1, .streams = 1};
    snprintf(added->column, sizeof added->column, "%s", column);
    va_start(arguments, group);
    vsnprintf(added->group, sizeof added->group, group, arguments);
    va_end(arguments);
    return added;
}

/* "10,000" */
static const char *thousands(uint64_t value, char text[32]) {
    if (value < 1000)
        snprintf(text, 32, "%" PRIu64, value);
    else if (value < 1000000)
        snprintf(text, 32, "%" PRIu64 ",%03" PRIu64, value / 1000, value % 1000);
    else
        snprintf(text, 32, "%" PRIu64 ",%03" PRIu64 ",%03" PRIu64, value / 1000000,
                 value / 1000 % 1000, value % 1000);
    return text;
}

static void pair_among(struct list *list, uint64_t live, size_t bytes) {
    char column[32], count[32];
    struct micro_case *added;

    weir__bytes_show(bytes, column, sizeof column);
    added = add(list, "pair", &pair_load, column, "one thread, one stream, %s live blocks around%s",
                thousands(live, count), live ? " (512B to 1MiB, half of those laid freed)" : "");
    added->bytes = bytes;
    added->live = live;
    added->unmapped_ranges = 1;
    added->smallest = 512;
    added->largest = MIB;
    added->by_octave = 1;
}

static void pair_cases(struct list *list) {
    static const size_t sizes[] = {512, 4 * KIB, 64 * KIB, MIB, 16 * MIB};
    static const uint64_t lives[] = {0, 1000, 100000};
    static const size_t among_most[] = {4 * KIB, 64 * KIB, 16 * MIB};
    struct micro_case *added;
    char column[32], count[32];

    for (size_t l = 0; l < (list->micro->is_quick ? 2 : 3); l++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            pair_among(list, lives[l], sizes[s]);
    /* Smaller ones, so that a GPU has the memory. */
    for (size_t s = 0; !list->micro->is_quick && s < sizeof among_most / sizeof among_most[0];
         s++) {
        weir__bytes_show(among_most[s], column, sizeof column);
        added = add(list, "pair", &pair_load, column,
                    "one thread, one stream, %s live blocks around (4KiB to 36KiB)",
                    thousands(1000000, count));
        added->bytes = among_most[s];
        added->live = 1000000;
        added->smallest = 4 * KIB;
        added->largest = 36 * KIB;
    }
}

static void churn_cases(struct list *list) {
    static const uint64_t narrow[] = {100, 1000, 10000, 100000, 1000000};
    static const uint64_t wide[] = {1000, 10000, 100000};
    struct micro_case *added;
    char column[32];

    for (size_t i = 0; i < (list->micro->is_quick ? 2 : 5); i++) {
        snprintf(column, sizeof column, "%" PRIu64, narrow[i]);
        added = add(list, "churn", &churn_load, column,
                    "a random one of so many live blocks freed, a new one of 4KiB to 36KiB taken");
        added->live = narrow[i];
        added->smallest = 4 * KIB;
        added->largest = 36 * KIB;
    }
    for (size_t i = 0; i < (list->micro->is_quick ? 1 : 3); i++) {
        snprintf(column, sizeof column, "%" PRIu64, wide[i]);
        added = add(list, "churn", &churn_load, column, "the same, 512B to 1MiB, log-uniform");
        added->live = wide[i];
        added->smallest = 512;
        added->largest = MIB;
        added->by_octave = 1;
    }
}

static void threads_cases(struct list *list) {
    char column[32];

    for (unsigned threads = 1; threads <= 16 && threads <= list->micro->threads; threads *= 2) {
        struct micro_case *added;

        snprintf(column, sizeof column, "%u", threads);
        added = add(list, "threads", &pair_load, column,
                    "64KiB pairs, by threads, each on its own stream");
        added->bytes = HOT_BYTES;
        added->threads = added->streams = threads;
    }
}

static void streams_cases(struct list *list) {
    static const unsigned streams[] = {1, 4, 64, 1024};
    char column[32];

    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        struct micro_case *added;

        snprintf(column, sizeof column, "%u", streams[i]);
        added = add(list, "streams", &streams_load, column,
                    "64KiB pairs of one thread, by streams in turn");
        added->bytes = HOT_BYTES;
        added->streams = streams[i];
    }
}

static void sides_cases(struct list *list) {
    static const char *const columns[] = {"1 to 1", "2 to 2"};

    for (unsigned sides = 1; sides <= 2; sides++) {
        struct micro_case *added = add(list, "producer-consumer", &sides_load, columns[sides - 1],
                                       "64KiB, one thread allocates, another frees on the same "
                                       "stream");

        added->bytes = HOT_BYTES;
        added->threads = 2 * sides;
        added->streams = sides;
        if (added->threads > list->micro->threads)
            snprintf(added->why_not, sizeof added->why_not,
                     "needs %u threads, --threads is %" PRIu64, added->threads,
                     list->micro->threads);
    }
}

static void steal_cases(struct list *list) {
    struct micro_case *added = add(list, "steal", &steal_load, "64KiB",
                                   "requests of a stream, all that is free was freed on another");

    added->bytes = HOT_BYTES;
    added->streams = 2;
}

static void lifecycle_cases(struct list *list) {
    uint64_t cycles = list->micro->is_quick ? 200 : 10000, rounds = list->micro->rounds;
    char count[32];
    struct micro_case *added =
        add(list, "lifecycle", &lifecycle_load, "64KiB", "%s streams made, used for 4 pairs, gone",
            thousands(cycles, count));

    added->bytes = HOT_BYTES;
    added->count = (cycles + rounds - 1) / rounds;
}

static void (*const makers[])(struct list *list) = {pair_cases,     churn_cases, threads_cases,
                                                    streams_cases,  sides_cases, steal_cases,
                                                    lifecycle_cases};

const char *const micro_scenarios[] = {
    "pair", "churn", "threads", "streams", "producer-consumer", "steal", "lifecycle", NULL};

size_t micro_cases(const struct micro *micro, const char *scenario, struct micro_case *cases,
                   size_t room) {
    struct list list = {micro, cases, 0, room};

    for (size_t i = 0; micro_scenarios[i]; i++)
        if (strcmp(scenario, micro_scenarios[i]) == 0)
            makers[i](&list);
    return list.count;
}

/* ---------------------------------------------------------------- comparison ---- */

static double number(const json_t *object, const char *key, const char *inner) {
    const json_t *value = json_object_get(object, key);

    return json_number_value(inner ? json_object_get(value, inner) : value);
}

static void set_number(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, json_real((double)(int64_t)(value * 1000.0 + 0.5) / 1000.0));
}

/* The row of the same subject in the same scenario of which `key` is `value`; NULL: none. */
static const json_t *row_with(const struct micro *micro, const struct micro_row *like,
                              const char *key, double value) {
    for (size_t i = 0; i < micro->row_count; i++) {
        const struct micro_row *row = &micro->rows[i];

        if (row->subject == like->subject && strcmp(row->of->group, like->of->group) == 0 &&
            number(row->object, key, NULL) == value)
            return row->object;
    }
    return NULL;
}

/* The row of the bare loop in the same case. */
static const json_t *loop_of(const struct micro *micro, const struct micro_row *like) {
    for (size_t i = 0; i < micro->row_count; i++)
        if (micro->rows[i].of == like->of && micro->rows[i].subject->place == MICRO_ON_NOTHING)
            return micro->rows[i].object;
    return NULL;
}

void micro_compare(struct micro *micro) {
    for (size_t i = 0; i < micro->row_count; i++) {
        const struct micro_row *row = &micro->rows[i];
        double time = number(row->object, row->of->load->key, "median"), other;

        if (time <= 0.0)
            continue;
        if (strcmp(row->of->scenario, "threads") == 0) {
            other = number(row_with(micro, row, "threads", 1.0), "pairs_per_s", NULL);
            if (other > 0.0)
                set_number(row->object, "efficiency",
                           number(row->object, "pairs_per_s", NULL) / other / row->of->threads);
        } else if (strcmp(row->of->scenario, "churn") == 0) {
            other = number(row_with(micro, row, "live", 1000.0), "pair_ns", "median");
            if (other > 0.0)
                set_number(row->object, "over_1000_live", time / other);
        } else if (strcmp(row->of->scenario, "lifecycle") == 0) {
            other = number(loop_of(micro, row), "cycle_ns", "median");
            set_number(row->object, "cycle_less_streams_ns", time > other ? time - other : 0.0);
        }
    }
}
