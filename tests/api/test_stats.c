/* SPDX-License-Identifier: MIT */
/* test_stats.c: the counters alone, and the public structs of every size that a caller may have.
 *
 * conformance.c checks the identities of weir/stats.h after each step of its random runs.  This file tests the edges:
 * empty, full and overflowing rings, counters raised by more threads than have their own stripe, structs shorter and
 * longer than the library's. */
#include "tests/fixtures/support.h"

#include "api/allocator_internal.h"
#include "base/counters.h"
#include "driver/model/model.h"

static struct weir_counters counters;

static void note_event(int cause, int shrink, uint64_t got) {
    weir_event event = {
        .cause = cause, .shrink = shrink, .got = got, .asked = 2 * got, .stall_ns = 10};

    weir__counters_event(&counters, &event);
}

static size_t read_events(uint64_t after, weir_event *events, size_t capacity) {
    return weir__counters_events(&counters, after, events, sizeof *events, capacity);
}

CASE("books", 4, NULL, NULL);

TEST(growth_and_giving_back_are_counted_apart) {
    weir_statistics s = {.size = sizeof s};

    ck_assert_int_eq(weir__counters_open(&counters, 0), 1);
    note_event(WEIR_EVENT_REQUEST, 0, 100);
    note_event(WEIR_EVENT_POLICY, 0, 20);
    note_event(WEIR_EVENT_PREALLOC, 0, 3);
    note_event(WEIR_EVENT_TRIM, 1, 50);
    note_event(WEIR_EVENT_RECOVERY, 1, 7); /* not counted: no caller asked for it */
    weir__counters_read(&counters, &s);
    ck_assert_uint_eq(s.growths, 3);
    ck_assert_uint_eq(s.growth_bytes, 123);
    ck_assert_uint_eq(s.trims, 1);
    ck_assert_uint_eq(s.trim_bytes, 50);
    ck_assert_uint_eq(s.stall_ns, 30); /* a release is no stall */
    weir__counters_close(&counters);
}

/* The test fills the ring to every level, with every `after' near its ends. */
TEST(the_ring_at_every_fill) {
    const uint64_t ring = WEIR_KEPT_EVENTS;
    weir_event events[16];

    ck_assert_int_eq(weir__counters_open(&counters, 0), 1);
    for (uint64_t noted = 0; noted <= 2 * ring + 2; noted++) {
        uint64_t oldest = noted > ring ? noted - ring + 1 : 1;

        for (int end = 0; end < 2; end++)
            for (uint64_t i = 0; i < 6; i++) {
                uint64_t at = end ? noted : oldest, after = at + i > 3 ? at + i - 3 : 0;
                uint64_t first = after + 1 > oldest ? after + 1 : oldest;
                size_t count = first <= noted ? (size_t)(noted - first + 1) : 0;

                MUST_EQ(read_events(after, events, 16), count < 16 ? count : 16);
                for (size_t e = 0; e < count && e < 16; e++) {
                    MUST_EQ(events[e].sequence, first + e);
                    MUST_EQ(events[e].got, first + e);
                }
                MUST_EQ(read_events(after, events, 2), count < 2 ? count : 2);
                MUST_EQ(read_events(after, events, 0), 0);
            }
        MUST_EQ(read_events(UINT64_MAX, events, 16), 0);
        MUST_EQ(read_events(UINT64_MAX - 1, events, 16), 0);
        note_event(WEIR_EVENT_REQUEST, 0, noted + 1);
    }
    weir__counters_close(&counters);
}

enum { THREADS = 100, ROUNDS = 1000 };

static void *raise_counters(void *arg) {
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        weir__striped_add(&counters.striped, WEIR_STRIPED_ALLOCS);
        if (i % 2)
            weir__striped_add(&counters.striped, WEIR_STRIPED_FREES);
    }
    return NULL;
}

/* All threads run at once, so that each has another number. */
TEST(more_threads_than_stripes_are_counted_exactly) {
    weir_statistics s = {.size = sizeof s};

    ck_assert_int_gt(THREADS, WEIR_STRIPED_STRIPES);
    ck_assert_int_eq(weir__counters_open(&counters, 0), 1);
    run_threads(THREADS, raise_counters, NULL, 0);
    weir__counters_read(&counters, &s);
    ck_assert_uint_eq(s.allocs, THREADS * ROUNDS);
    ck_assert_uint_eq(s.frees, THREADS * ROUNDS / 2);
    ck_assert_uint_eq(s.blocks, THREADS * ROUNDS / 2);
    ck_assert_uint_eq(s.attempts, s.allocs);
    weir__counters_close(&counters);
}

TEST(causes_have_words) {
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_REQUEST), "request");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_POLICY), "policy");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_PREALLOC), "prealloc");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_TRIM), "trim");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_RECOVERY), "recovery");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_DECAY), "decay");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_LOW_MEMORY), "low-memory");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_RELEASE), "release");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_RECLAIM), "reclaim");
    ck_assert_str_eq(weir_event_cause_word(-1), "unknown");
    ck_assert_str_eq(weir_event_cause_word(WEIR_EVENT_CAUSE_COUNT), "unknown");
}

/* ---- structs of other sizes ------------------------------------------------------------------ */

static weir_allocator *a;

static void open_timed_allocator(void) {
    weir_options options = options_of(KIND_REGIONS, "model", 0);
    void *block;

    options.latency = WEIR_SWITCH_ON;
    OK(weir_allocator_create(&options, &a));
    OK(weir_alloc(a, 1000, (weir_stream)2, &block));
    OK(weir_free(a, block, (weir_stream)2));
}

static void close_timed_allocator(void) {
    OK(weir_allocator_destroy(a));
}

CASE("sizes", 4, open_timed_allocator, close_timed_allocator);

enum { STATISTICS, LATENCY, FAILURE, STRUCTS };

static weir_status query_struct(int which, void *out) {
    return which == STATISTICS ? weir_stats(a, out)
           : which == LATENCY  ? weir_latencies(a, WEIR_OPERATION_FREE, out)
                               : weir_last_failure(out);
}

/* The test uses every size from that of `size` to more than the library's.  weir copies what fits, leaves the memory
 * after it alone, and sets `size`. */
TEST_EACH(STRUCTS, queries_fit_every_size_of_struct) {
    static const size_t sizes[] = {sizeof(weir_statistics), sizeof(weir_latency),
                                   sizeof(weir_failure)};
    union {
        size_t size; /* the first field of each struct */
        weir_statistics s;
        weir_latency l;
        weir_failure r;
        unsigned char bytes[4096];
    } whole = {.size = sizes[_i]}, out;
    void *none;

    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, (weir_stream)2, &none));
    OK(query_struct(_i, &whole));
    MUST(_i != LATENCY || whole.l.count == 1);
    MUST(_i != FAILURE || whole.r.asked == SIZE_MAX);
    for (size_t size = sizeof(size_t); size <= sizes[_i] + 64; size++) {
        size_t copied = size < sizes[_i] ? size : sizes[_i];

        memset(&out, 0xa5, sizeof out);
        out.size = size;
        OK(query_struct(_i, &out));
        MUST_EQ(out.size, copied);
        MUST(memcmp(out.bytes + sizeof(size_t), whole.bytes + sizeof(size_t),
                    copied - sizeof(size_t)) == 0);
        for (size_t i = copied; i < sizeof out.bytes; i++)
            MUST_EQ(out.bytes[i], 0xa5);
    }
    out.size = 0;
    EXPECT(WEIR_E_INVALID, query_struct(_i, &out));
}

/* The time of an event is virtual on the model, like every other time, and counts from the creation. */
TEST(times_count_from_creation) {
    weir_event event;
    size_t count;

    OK(weir_events(a, 0, &event, sizeof event, 1, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_gt(event.time_ns, 0);
    ck_assert_uint_lt(event.time_ns, UINT64_C(1000000000));
    ck_assert_uint_le(event.stall_ns, event.time_ns);
    ck_assert_uint_eq(stats_of(a).stall_ns, event.stall_ns);
    weir__model_advance(UINT64_C(5000000000));
    OK(weir_preallocate(a, 64 * MIB, NULL));
    OK(weir_events(a, 1, &event, sizeof event, 1, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_gt(event.time_ns, UINT64_C(5000000000));
}

TEST(queries_fail_without_counters_or_arguments) {
    weir_options options = options_of(KIND_REGIONS, "model", 0);
    weir_statistics s = {.size = sizeof s};
    weir_latency l = {.size = sizeof l};
    weir_allocator *silent;
    weir_event event;
    size_t count;

    OK(weir_allocator_create(&options, &silent));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_latencies(silent, WEIR_OPERATION_ALLOC, &l));
    OK(weir_allocator_destroy(silent));
    if (is_forked_child())
        _exit(weir_stats(a, &s) != WEIR_E_FORKED ||
              weir_latencies(a, WEIR_OPERATION_ALLOC, &l) != WEIR_E_FORKED ||
              weir_events(a, 0, &event, sizeof event, 1, &count) != WEIR_E_FORKED);
}

SUITE("stats", CK_FORK_GETENV);
