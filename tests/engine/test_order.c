/* SPDX-License-Identifier: MIT */
/* test_order.c: the host's observations of each stream, and the cost of streams that come and go.
 *
 * The tests run on the device model.  Most of them use stream_order.h, with ids of which only the first few belong to
 * streams.  The last ones use the public interface, where ten thousand streams must leave neither memory nor time
 * behind. */
#include "tests/fixtures/model_device.h"

#include <time.h>

#include "engine/stream_order.h"

enum { YOUNG = 16, UNSETTLED = 2048, FORGET_CALLS = 16384 };

static uint64_t a_id, b_id;
static struct weir_device device;
static struct weir_order order;
static uint64_t told_id, told_sequence, told_times; /* last report, and the number of reports */

static void keep_observation(void *context, struct weir_order_stream *s, int is_forgotten) {
    MUST(context == &order);
    if (is_forgotten)
        return;
    told_id = s->placed.id;
    told_sequence = s->placed.observed;
    told_times++;
}

static void start_order_device(void) {
    start_model(8 * GIB);
    use_blocking_streams();
    memset(&device, 0, sizeof device);
    device.driver = driver;
    device.context = primary;
    a_id = id_of(A);
    b_id = id_of(B);
    told_times = 0;
    weir__order_open(&order, &device, keep_observation, NULL, &order);
}

static struct weir_order_stream *stream_of(uint64_t id) {
    struct weir_order_stream *s = weir__order_stream(&order, id);

    MUST(s != NULL);
    return s;
}

/* Frees `bytes` on a stream, as its owner does.  Returns the sequence. */
static uint64_t free_in_order(CUstream stream, uint64_t id, size_t bytes) {
    struct weir_order_stream *s = weir__order_stream(&order, id);
    uint64_t sequence = weir__order_freed(&order, s, bytes);

    weir__order_maintain(&order, s, stream);
    return sequence;
}

static void free_often(CUstream stream, uint64_t id, size_t bytes, int times) {
    while (times-- > 0)
        free_in_order(stream, id, bytes);
}

/* Brings A past its first frees, and the order into its settled state. */
static void settle(void) {
    (void)stream_of(b_id);
    free_often(A, a_id, 0, UNSETTLED + YOUNG);
    weir__order_observe_all(&order);
}

static uint64_t records(void) {
    MUST_EQ(order.event_records, weir__model_calls(WEIR_ENTRY_cuEventRecord));
    return order.event_records;
}

static uint64_t queries_from(uint64_t before) {
    return weir__model_calls(WEIR_ENTRY_cuEventQuery) - before;
}

/* Marks streams whose ids no stream has, behind the work of A. */
static void mark_streams(uint64_t first, size_t count) {
    uint64_t sequence;

    for (size_t i = 0; i < count; i++)
        OK(weir__order_freed_marked(&order, stream_of(first + i), A, &sequence));
}

/* ---- when events are recorded ------------------------------------------------------------------ */

static void end_order(void) {
    weir__order_close(&order);
    CU(driver->cuCtxSynchronize());
}

CASE("alone", 120, start_order_device, end_order);

TEST(one_stream_records_nothing) {
    free_often(A, a_id, MIB, 5000);
    MUST_EQ(records(), 0);
    weir__order_count_lack(&order);
    free_often(A, a_id, MIB, 5000);
    MUST_EQ(records(), 0);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuEventQuery), 0);
}

TEST(a_young_stream_records_each_free) {
    settle();
    uint64_t before = records();
    for (uint64_t i = 1; i <= YOUNG; i++) {
        free_in_order(B, b_id, 1);
        MUST_EQ(records() - before, i);
    }
    free_often(B, b_id, 1, 1000);
    MUST_EQ(records() - before, YOUNG);
}

static void take_often(size_t bytes, int times) {
    while (times-- > 0)
        weir__order_allocated(weir__order_stream(&order, a_id), bytes);
}

/* A records one event when it holds as little memory as when it was asked for one, whatever happened before. */
TEST(a_burst_ends_with_one_event) {
    uint64_t before, sequence;

    settle();
    order.least_event_bytes = 2 * MIB;
    weir__order_count_lack(&order);
    take_often(20 * MIB, 1);
    free_in_order(A, a_id, MIB); /* it is asked */
    for (int burst = 0; burst < 3; burst++) {
        before = records();
        take_often(3 * MIB, 2);
        for (int i = 0; i < 20; i++) {
            free_in_order(A, a_id, 3 * MIB);
            take_often(3 * MIB, 1);
        }
        free_in_order(A, a_id, 3 * MIB);
        MUST_EQ(records() - before, 0);
        sequence = free_in_order(A, a_id, 3 * MIB);
        MUST_EQ(records() - before, 1);
        MUST_EQ(told_sequence, sequence);
    }
}

/* Frees of four times the bytes that are worth an event are recorded in the midst of a burst, which may end there. */
TEST(much_has_an_event_anywhere) {
    settle();
    order.least_event_bytes = MIB;
    weir__order_count_lack(&order);
    take_often(20 * MIB, 1);
    free_in_order(A, a_id, MIB); /* it is asked */
    take_often(MIB, 20);
    uint64_t before = records();
    free_often(A, a_id, MIB, 3);
    MUST_EQ(records() - before, 0);
    free_in_order(A, a_id, MIB);
    MUST_EQ(records() - before, 1);
    free_often(A, a_id, MIB, 3);
    MUST_EQ(records() - before, 1);
    take_often(MIB, 3); /* memory that A uses again does not count */
    free_often(A, a_id, MIB, 3);
    MUST_EQ(records() - before, 1);
}

/* A allocates 32 blocks of 5 MiB and frees all but `left`, then B calls.  Returns the number of events recorded. */
static uint64_t play_burst(int left) {
    uint64_t before = records();

    take_often(5 * MIB, 32);
    free_often(A, a_id, 5 * MIB, 32 - left);
    before = records() - before;
    (void)weir__order_stream(&order, b_id);
    return before;
}

/* Plays the first burst of a load whose streams run dry.  Returns the number of events recorded. */
static uint64_t begin_bursts(void) {
    settle();
    order.least_event_bytes = MIB;
    weir__order_count_lack(&order);
    return play_burst(0);
}

/* Events become rarer from burst to burst, but an event covers all frees of a stream when another stream calls. */
TEST(useless_records_become_rarer) {
    uint64_t first = begin_bursts();
    MUST_LE(32, first);
    uint64_t next = play_burst(0);
    MUST_LE(next, first / 2 + 2);
    for (int i = 0; i < 3; i++) {
        next = play_burst(0);
        MUST_LE(next, first / 4 + 4);
        MUST_EQ(stream_of(a_id)->open_bytes, 0);
    }
}

/* A burst that ended at another level left memory without an event, so events become as dense as at first. */
TEST(a_burst_that_ends_elsewhere_begins_again) {
    uint64_t first = begin_bursts();
    for (int i = 0; i < 3; i++)
        play_burst(0);
    uint64_t next = play_burst(15);
    MUST_LE(next, first / 2);
    MUST_LE(5 * MIB, stream_of(a_id)->open_bytes);
    next = play_burst(0);
    MUST_LE(first * 3 / 4, next);
}

/* A free is recorded only if its bytes are worth an event.  Nearly as little memory as at the low counts as the low. */
TEST(an_event_must_be_worth_it) {
    settle();
    weir__order_count_lack(&order);
    free_in_order(A, a_id, MIB);
    uint64_t before = records();
    for (int i = 0; i < 100; i++) {
        take_often(64 * KIB - 1, 1);
        free_in_order(A, a_id, 64 * KIB - 1);
    }
    MUST_EQ(records() - before, 0);
    take_often(64 * KIB, 1);
    free_in_order(A, a_id, 64 * KIB);
    MUST_EQ(records() - before, 1);
    order.least_event_bytes = MIB;
    take_often(MIB, 4);
    free_often(A, a_id, MIB, 2);
    MUST_EQ(records() - before, 1);
    free_in_order(A, a_id, MIB); /* one is left */
    MUST_EQ(records() - before, 2);
}

/* A stream that is asked records at once, and the memory that it holds then becomes its low. */
TEST(who_is_asked_learns_a_new_low) {
    settle();
    order.least_event_bytes = 8 * MIB;
    weir__order_count_lack(&order);
    free_in_order(A, a_id, MIB);
    take_often(10 * MIB, 10);
    uint64_t before = records();
    free_in_order(A, a_id, 10 * MIB);
    MUST_EQ(records() - before, 0);
    weir__order_count_lack(&order);
    weir__order_maintain(&order, stream_of(a_id), A);
    MUST_EQ(records() - before, 1);
    take_often(10 * MIB, 3);
    free_often(A, a_id, 10 * MIB, 2);
    MUST_EQ(records() - before, 1);
    free_in_order(A, a_id, 10 * MIB);
    MUST_EQ(records() - before, 2);
}

/* Streams record only on demand after 2,048 frees during which no request ran dry. */
TEST(settled_streams_record_on_demand) {
    settle();
    uint64_t before = records();
    for (int i = 0; i < 10000; i++) {
        take_often(MIB - 1, 1);
        free_in_order(A, a_id, MIB - 1);
    }
    MUST_EQ(records() - before, 0);
    weir__order_count_lack(&order);
    MUST_EQ(records() - before, 0);
    weir__order_maintain(&order, stream_of(a_id), A);
    MUST_EQ(records() - before, 1);
    MUST_EQ(told_id, a_id);
    MUST_EQ(told_sequence, order.sequence);
    free_often(A, a_id, MIB, UNSETTLED - 1);
    MUST_EQ(records() - before, UNSETTLED);
    free_often(A, a_id, MIB, 15);
    MUST_EQ(records() - before, UNSETTLED);
}

/* A settled stream records after frees of 16 times the bytes that are worth an event, and of at least 32 MiB.  No
 * request may have run dry so far, but one that does grows before the stream calls again. */
TEST(a_settled_stream_records_its_share) {
    const size_t worth[] = {MIB, 4 * MIB};
    const int share[] = {32, 64}; /* MiB */
    uint64_t before;

    settle();
    for (int i = 0; i < 2; i++) {
        order.least_event_bytes = worth[i];
        take_often(MIB, 2 * share[i]);
        before = records();
        free_often(A, a_id, MIB, share[i] - 1);
        MUST_EQ(records() - before, 0);
        take_often(MIB, share[i] - 1); /* A uses its own frees again */
        free_often(A, a_id, MIB, share[i] - 1);
        MUST_EQ(records() - before, 0);
        free_in_order(A, a_id, MIB);
        MUST_EQ(records() - before, 1);
        free_often(A, a_id, MIB, share[i] - 1);
        MUST_EQ(records() - before, 1);
    }
}

/* All settled streams together, live or ended, keep no more memory from others than one alone would, except for frees
 * of the first ones while they were few. */
TEST(silent_streams_share_what_they_keep) {
    enum { STREAMS = 64, SHARE = 32 };
    uint64_t open = 0;

    settle();
    for (uint64_t id = 1000; id < 1000 + STREAMS; id++)
        for (int i = 0; i < YOUNG; i++)
            free_in_order(A, id, 0);
    for (int i = 0; i < 2 * SHARE * 16; i++)
        for (uint64_t id = 1000; id < 1000 + STREAMS; id++)
            free_in_order(A, id, 64 * KIB);
    MUST_LE(STREAMS / 2, order.streams_with_open);
    for (uint64_t id = 1000; id < 1000 + STREAMS; id++)
        open += stream_of(id)->open_bytes;
    MUST_LE(open, SHARE * MIB);
    for (uint64_t id = 2000; id < 2000 + 50 * STREAMS;
         id++) /* each ends before the next one begins */
        free_often(A, id, MIB, 2 * YOUNG);
    open = 0;
    for (uint64_t id = 1000; id < 2000 + 50 * STREAMS; id++)
        open += stream_of(id)->open_bytes;
    MUST_LE(open, 2 * SHARE * MIB);
    for (uint64_t id = 10000; id < 11000; id++) /* each costs host memory while it is silent */
        free_often(A, id, 64, 2 * YOUNG);
    MUST_LE(order.streams_with_open, 130);
}

/* A record that the driver refuses is repeated at a later call, even if only a request that ran dry makes it due. */
TEST_EACH(2, a_refused_record_is_tried_again) {
    settle();
    weir__model_fail(WEIR_ENTRY_cuEventRecord, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__order_count_lack(&order);
    uint64_t sequence = free_in_order(A, a_id, _i ? MIB : 0);
    struct weir_order_stream *s = stream_of(a_id);
    MUST_EQ(s->open, 1);
    MUST(!weir__order_is_observed(&order, a_id, sequence));
    weir__order_maintain(&order, s, A);
    MUST_EQ(s->open, 0);
    MUST(weir__order_is_observed(&order, a_id, sequence));
}

/* ---- streams that need no events --------------------------------------------------------------- */

/* A non-blocking stream.  free_apart() frees on it, so that a record is due each time. */
static CUstream apart;
static uint64_t apart_id;

static void start_apart(void) {
    start_order_device();
    CU(driver->cuStreamCreate(&apart, CU_STREAM_NON_BLOCKING));
    apart_id = id_of(apart);
    weir__order_set_several(&order);
}

static uint64_t free_apart(void) {
    weir__order_count_lack(&order);
    return free_in_order(apart, apart_id, MIB);
}

CASE("apart", 120, start_apart, end_order);

TEST(an_idle_stream_needs_no_event) {
    for (int i = 0; i < 100; i++) {
        uint64_t sequence = free_apart();

        MUST_EQ(told_id, apart_id);
        MUST_EQ(told_sequence, sequence);
        MUST(weir__order_is_observed(&order, apart_id, sequence));
        MUST_EQ(order.streams_with_open, 0);
        MUST(!weir__order_is_due(&order, stream_of(apart_id)));
    }
    MUST_EQ(records(), 0);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuEventQuery), 0);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), 100);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetFlags), 1);
}

/* A stream past its first frees that is idle reports once for each time that a request ran dry. */
TEST(an_idle_stream_that_told_has_told) {
    for (int i = 0; i < YOUNG; i++)
        (void)free_apart();
    weir__order_count_lack(&order);
    uint64_t asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    for (int i = 0; i < 10; i++)
        (void)free_in_order(apart, apart_id, 0);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked + 1);
    MUST_EQ(stream_of(apart_id)->open, 9);
}

/* An idle stream has completed the work that its events cover, too. */
TEST(an_idle_stream_has_passed_its_events) {
    busy(apart, 5 * MS);
    (void)free_apart();
    MUST_EQ(records(), 1);
    MUST_EQ(told_times, 0);
    CU(driver->cuStreamSynchronize(apart));
    uint64_t sequence = free_apart();
    MUST_EQ(records(), 1);
    MUST_EQ(told_times, 1);
    MUST_EQ(told_sequence, sequence);
    MUST_EQ(order.pending_marks, 0);
}

/* weir queries a busy stream at frees 1, 2, 4, 8 and 16, and then at every 16th free. */
TEST(a_stream_at_work_is_asked_seldom) {
    const int asked_at[] = {1, 2, 4, 8, 16, 32, 48, 64};
    uint64_t asked = 0;

    busy(apart, 1000 * MS);
    for (int i = 1, next = 0; i <= 64; i++) {
        (void)free_apart();
        if (i == asked_at[next]) {
            asked++;
            next++;
        }
        MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked);
        MUST_EQ(records(), (uint64_t)i);
    }
    MUST_EQ(told_times, 0);
    CU(driver->cuStreamSynchronize(apart));
    for (int i = 0; i < 16; i++)
        (void)free_apart();
    MUST_EQ(records(), 64 + 15);
    for (int i = 0; i < 16; i++) /* once idle, it is queried each time */
        (void)free_apart();
    MUST_EQ(records(), 64 + 15);
    busy(apart, 1000 * MS);
    (void)free_apart();
    asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    (void)free_apart(); /* weir queries it soon when it is busy again */
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked + 1);
    MUST_EQ(records(), 64 + 15 + 2);
}

CASE("alone", 120, start_order_device, end_order);

/* A blocking stream may be behind work of the legacy stream, although a query reports it idle. */
TEST(idle_blocking_streams_prove_nothing) {
    weir__order_set_several(&order);
    busy(NULL, 5 * MS);
    CU(driver->cuStreamQuery(A));
    weir__order_count_lack(&order);
    uint64_t sequence = free_in_order(A, a_id, MIB);
    MUST_EQ(records(), 1);
    weir__order_query_idle(&order, a_id, A);
    MUST(!weir__order_is_observed(&order, a_id, sequence));
    CU(driver->cuStreamSynchronize(NULL));
    weir__order_query_idle(&order, a_id, A);
    MUST(weir__order_is_observed(&order, a_id, sequence));
}

CASE("apart", 120, start_apart, end_order);

/* A stream also needs events if its kind or its id is unknown, or if it is a default stream. */
TEST(who_is_not_known_to_be_apart_has_events) {
    CUstream thread = (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
    weir__model_fail(WEIR_ENTRY_cuStreamGetFlags, 1, CUDA_ERROR_UNKNOWN, 0);
    (void)free_apart();
    (void)free_apart();
    MUST_EQ(records(), 2);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetFlags), 1);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), 0);
    struct weir_order_stream *s = stream_of(0);
    (void)weir__order_freed(&order, s, MIB);
    weir__order_maintain(&order, s, apart);
    MUST_EQ(records(), 3);
    (void)free_in_order(thread, id_of(thread), MIB);
    MUST_EQ(records(), 4);
    weir__order_query_idle(&order, apart_id, apart);
    weir__order_query_idle(&order, id_of(thread), thread);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetFlags), 1);
}

/* A query would break the capture, so weir queries the stream after it. */
TEST_EACH(2, a_captured_stream_is_not_asked) {
    for (int i = 0; i < _i * YOUNG; i++)
        (void)free_apart();
    uint64_t asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    CU(driver->cuStreamBeginCapture(apart, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    weir__order_count_lack(&order);
    (void)free_in_order(apart, apart_id, 0);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamQuery), asked);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetFlags), (uint64_t)_i);
    MUST_EQ(stream_of(apart_id)->open, 1);
    drop_capture(apart);
    weir__order_maintain(&order, stream_of(apart_id), apart);
    MUST_EQ(records(), 0);
    MUST_EQ(stream_of(apart_id)->open, 0);
}

/* The caller learns at once that the stream is idle, and needs no event. */
TEST(who_asks_an_idle_stream_waits_for_nothing) {
    uint64_t sequence = weir__order_freed(&order, stream_of(apart_id), MIB);

    busy(apart, 5 * MS);
    weir__order_query_idle(&order, apart_id, apart);
    MUST(!weir__order_is_observed(&order, apart_id, sequence));
    CU(driver->cuStreamSynchronize(apart));
    weir__order_query_idle(&order, apart_id, apart);
    MUST(weir__order_is_observed(&order, apart_id, sequence));
    MUST_EQ(records(), 0);
}

/* ---- what has completed ------------------------------------------------------------------------ */

CASE("alone", 120, start_order_device, end_order);

TEST(a_busy_stream_is_not_observed) {
    (void)stream_of(b_id);
    busy(A, 5 * MS);
    uint64_t sequence = free_in_order(A, a_id, MIB);
    MUST(!weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(told_times, 0);
    busy(A, 5 * MS);
    (void)free_in_order(A, a_id, MIB);
    weir__model_advance(5 * MS);
    MUST(weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(told_id, a_id);
    MUST_EQ(told_sequence, sequence); /* the first alone */
    weir__model_advance(5 * MS);
    MUST(weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(told_sequence, sequence + 1);
    MUST(!weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(told_times, 2);
}

/* A peek makes no more queries than it may, continues after the last one, and queries only streams with marks. */
TEST(glances_go_round) {
    enum { MARKED = 100, PEEK = 32 };
    struct weir_order_stream *last;
    uint64_t before, sequence;

    for (uint64_t i = 0; i < 1000; i++)
        (void)stream_of(5000 + i); /* without marks */
    busy(A, 5 * MS);
    mark_streams(10000, MARKED);
    before = weir__model_calls(WEIR_ENTRY_cuEventQuery);
    MUST(!weir__order_query_events(&order, PEEK));
    MUST_EQ(queries_from(before), PEEK);
    MUST(!weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(queries_from(before), PEEK + MARKED);
    last = stream_of(20000);
    OK(weir__order_freed_marked(&order, last, B, &sequence)); /* the last mark, already completed */
    before = weir__model_calls(WEIR_ENTRY_cuEventQuery);
    for (int i = 0; i < MARKED / PEEK; i++)
        MUST(!weir__order_query_events(&order, PEEK));
    MUST(weir__order_query_events(&order, PEEK));
    MUST_EQ(told_id, 20000);
    MUST_EQ(told_sequence, sequence);
    MUST_EQ(queries_from(before), (MARKED / PEEK + 1) * PEEK);
    weir__model_advance(5 * MS);
    MUST(weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(order.pending_marks, 0);
    MUST_EQ(told_times, MARKED + 1);
}

/* Streams that have open frees alone cost a peek nothing, and are all observed by a wait for the device. */
TEST(open_streams_cost_a_peek_nothing) {
    clock_t started;

    for (uint64_t i = 0; i < 50000; i++)
        (void)weir__order_freed(&order, stream_of(10000 + i), 0);
    busy(A, 5 * MS);
    mark_streams(100000, 1);
    started = clock();
    for (int i = 0; i < 20000; i++)
        (void)weir__order_query_events(&order, 2);
    MUST(clock() - started < CLOCKS_PER_SEC);
    weir__order_observe_until(&order, order.sequence);
    MUST_EQ(order.streams_with_open, 0);
    MUST_EQ(order.pending_marks, 0);
}

/* A peek may end between two marks of one stream. */
TEST(a_peek_ends_within_a_stream) {
    struct weir_order_stream *s = stream_of(a_id);
    uint64_t sequence[10];
    for (int i = 0; i < 10; i++)
        OK(weir__order_freed_marked(&order, s, A, &sequence[i]));
    uint64_t before = weir__model_calls(WEIR_ENTRY_cuEventQuery);
    MUST(weir__order_query_events(&order, 4));
    MUST_EQ(queries_from(before), 4);
    MUST_EQ(told_sequence, sequence[3]);
    MUST_EQ(order.pending_marks, 6);
    MUST(weir__order_query_events(&order, SIZE_MAX));
    MUST_EQ(told_sequence, sequence[9]);
}

TEST(a_wait_for_the_device_observes_all) {
    settle();
    told_times = 0;
    busy(A, 5 * MS);
    mark_streams(5000, 20);
    uint64_t open = free_in_order(A, a_id, MIB);
    MUST_EQ(order.streams_with_open, 1);
    MUST_EQ(order.pending_marks, 20);
    weir__order_observe_all(&order);
    MUST_EQ(order.streams_with_open, 0);
    MUST_EQ(order.pending_marks, 0);
    MUST_EQ(stream_of(a_id)->open_bytes, 0);
    MUST_EQ(told_times, 21);
    MUST_EQ(told_id, a_id);
    MUST_EQ(told_sequence, open);
}

/* ---- deferred frees ---------------------------------------------------------------------------- */

static void add_ended(void *context, uintptr_t freed) {
    *(uintptr_t *)context += freed;
}

/* A call queries each deferred free once, and frees that wait for a stream at work do not keep it from later ones. */
TEST(a_deferred_free_that_waits_hides_no_other) {
    struct weir_order frees;
    uintptr_t ended = 0;
    uint64_t asked;

    weir__order_open(&frees, &device, NULL, add_ended, &ended);
    busy(A, 5 * MS);
    for (uintptr_t i = 1; i < 1000; i *= 10)
        OK(weir__order_defer(&frees, i == 100 ? B : A, NULL, i));
    weir__model_advance(1 * MS);
    MUST(!weir__order_complete(&frees, 2));
    MUST(weir__order_complete(&frees, 1));
    MUST_EQ(ended, 100);
    asked = weir__model_calls(WEIR_ENTRY_cuEventQuery);
    MUST(!weir__order_complete(&frees, SIZE_MAX));
    MUST_EQ(queries_from(asked), 2);
    MUST_EQ(frees.deferred, 2);
    CU(driver->cuStreamSynchronize(A));
    MUST(weir__order_complete(&frees, 1));
    MUST_EQ(ended, 101);
    weir__order_close(&frees); /* ends the last one, too */
    MUST_EQ(ended, 111);
}

/* ---- streams that come and go ------------------------------------------------------------------ */

/* Records follow the streams in use: ended streams leave none, and live ones stay known. */
TEST(ended_streams_are_forgotten) {
    enum { LIVE = 1000, ENDED = 100000 };
    uint64_t sequence;

    for (uint64_t i = 0; i < ENDED; i++) {
        struct weir_order_stream *s = weir__order_stream(&order, 100000 + i);

        OK(weir__order_freed_marked(&order, s, A, &sequence));
        (void)stream_of(5000 + i % LIVE);
        MUST_LE(order.streams.count, 2 * FORGET_CALLS + LIVE);
        MUST_LE(order.pending_marks, 4);
    }
    for (uint64_t i = 0; i < LIVE; i++)
        MUST(weir__map_get(&order.streams, 5000 + i, NULL));
    MUST_LE(weir__model_calls(WEIR_ENTRY_cuEventCreate), 8);
    MUST_LE(weir__model_calls(WEIR_ENTRY_cuEventQuery), 2 * ENDED);
}

/* A stream with open frees stays known until they are observed. */
TEST(open_frees_are_not_forgotten) {
    settle();
    uint64_t sequence = free_in_order(A, a_id, MIB);
    for (uint64_t i = 0; i < 5 * FORGET_CALLS; i++)
        (void)stream_of(100000 + i);
    MUST_EQ(order.streams_with_open, 1);
    weir__order_observe_all(&order);
    MUST_EQ(told_id, a_id);
    MUST_EQ(told_sequence, sequence);
}

/* A quiet stream stays known while a request holds its record. */
TEST(a_record_that_is_held_is_not_forgotten) {
    stream_of(a_id)->active_requests++;
    for (uint64_t i = 0; i < 5 * FORGET_CALLS; i++)
        (void)stream_of(100000 + i);
    MUST(weir__map_get(&order.streams, a_id, NULL));
    stream_of(a_id)->active_requests--;
    for (uint64_t i = 0; i < 5 * FORGET_CALLS; i++)
        (void)stream_of(200000 + i);
    MUST(!weir__map_get(&order.streams, a_id, NULL));
}

/* A stream comes back after it was forgotten, and is found idle.  Its earlier frees stay observed. */
TEST(a_stream_that_comes_back_keeps_what_was_observed) {
    CUstream unblocked;
    CU(driver->cuStreamCreate(&unblocked, CU_STREAM_NON_BLOCKING));
    uint64_t id = id_of(unblocked), sequence;

    settle();
    sequence = free_in_order(unblocked, id, MIB);
    weir__order_observe_all(&order);
    for (uint64_t i = 0; i < 5 * FORGET_CALLS; i++)
        (void)stream_of(100000 + i);
    MUST(!weir__map_get(&order.streams, id, NULL));
    (void)stream_of(id);
    MUST(weir__order_is_observed(&order, id, sequence));
    weir__order_query_idle(&order, id, unblocked);
    MUST(weir__order_is_observed(&order, id, sequence));
}

/* A free of an unknown stream counts as observed, and no stream can wait for it.  A wait for a free without a stream id
 * waits for all events. */
TEST(a_free_of_an_unknown_stream_counts_as_observed) {
    uint64_t first, last;

    MUST(weir__order_is_observed(&order, 0, 1));
    MUST(weir__order_is_observed(&order, 4711, 1));
    MUST(!weir__order_has_event(&order, 4711, 1));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, weir__order_wait(&order, A, 4711, 1));
    busy(A, 5 * MS);
    busy(B, 7 * MS);
    OK(weir__order_freed_marked(&order, stream_of(0), A, &first));
    OK(weir__order_freed_marked(&order, stream_of(0), B, &last));
    MUST(weir__order_has_event(&order, 0, first) && weir__order_has_event(&order, 0, last));
    weir__model_fail(WEIR_ENTRY_cuStreamWaitEvent, 1, CUDA_ERROR_UNKNOWN, 0);
    ANSWERS(CUDA_ERROR_UNKNOWN, weir__order_wait(&order, C, 0, last));
    weir__model_faults_clear();
    ANSWERS(CUDA_SUCCESS, weir__order_wait(&order, C, 0, last));
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuStreamQuery(A));
    CU(driver->cuStreamQuery(B));
}

/* ---- through the public interface -------------------------------------------------------------- */

static const struct {
    int kind, cache;
} served[] = {{KIND_REGIONS, WEIR_SWITCH_OFF},
              {KIND_REGIONS, WEIR_SWITCH_ON},
              {KIND_POOL, WEIR_SWITCH_ON},
              {KIND_MAPPED, WEIR_SWITCH_OFF},
              {KIND_MAPPED, WEIR_SWITCH_ON}};
enum { SERVED = sizeof served / sizeof served[0] };

static weir_allocator *make_served(int which, uint32_t timeout_ms) {
    weir_options options = options_of(served[which].kind, "model", 0);
    weir_allocator *a;

    options.cache = served[which].cache;
    options.recovery_timeout_ms = timeout_ms;
    OK(weir_allocator_create(&options, &a));
    return a;
}

/* Plays a stream's life: nine times it allocates eight blocks of 1 to 2 MiB and frees them. */
static void live_on(weir_allocator *a, CUstream stream, unsigned which) {
    void *block[8];

    for (int round = 0; round < 9; round++) {
        for (unsigned i = 0; i < 8; i++)
            OK(weir_alloc(a, MIB + (which * 5 + i) % 16 * 64 * KIB, stream, &block[i]));
        for (unsigned i = 0; i < 8; i++)
            OK(weir_free(a, block[i], stream));
    }
}

CASE("whole", 300, start_order_device, end_order);

/* Ten thousand streams live, sixteen at a time.  Memory of ended streams serves later ones. */
TEST_EACH(SERVED, ten_thousand_streams_leave_no_memory_behind) {
    enum { STREAMS = 10000, AT_A_TIME = 16 };
    weir_allocator *a = make_served(_i, 1000);
    CUstream stream[AT_A_TIME] = {NULL};

    for (unsigned i = 0; i < STREAMS; i++) {
        CUstream *slot = &stream[i % AT_A_TIME];

        if (*slot)
            CU(driver->cuStreamDestroy(*slot));
        CU(driver->cuStreamCreate(slot, CU_STREAM_NON_BLOCKING));
        live_on(a, *slot, i);
    }
    MUST_LE(stats_of(a).reserved_peak, 320 * MIB);
    MUST_LE(stats_of(a).host_bytes, 64 * MIB);
    for (int i = 0; i < AT_A_TIME; i++)
        CU(driver->cuStreamDestroy(stream[i]));
    OK(weir_allocator_destroy(a));
}

/* Streams that have enough memory record no events, however many there are. */
TEST_EACH(SERVED, steady_streams_record_nothing) {
    enum { STREAMS = 64, ROUNDS = 200 };
    weir_allocator *a = make_served(_i, 1000);
    CUstream stream[STREAMS];
    uint64_t before = 0;

    for (int i = 0; i < STREAMS; i++)
        CU(driver->cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 2)
            before = stats_of(a).event_records;
        for (int i = 0; i < STREAMS; i++) {
            void *block;

            OK(weir_alloc(a, 100 * KIB, stream[i], &block));
            busy(stream[i], 1000);
            OK(weir_free(a, block, stream[i]));
        }
        CU(driver->cuCtxSynchronize());
    }
    MUST(before > 0 || served[_i].kind == KIND_POOL); /* the driver orders its blocks */
    MUST_EQ(stats_of(a).event_records, before);
    OK(weir_allocator_destroy(a));
}

SUITE("order", CK_FORK_GETENV);
