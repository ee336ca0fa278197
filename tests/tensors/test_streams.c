/* SPDX-License-Identifier: MIT */
/* test_streams.c: streams end before their blocks, and new streams get their handles.  No stream reuses another
 * stream's memory too early. */
#include "tests/fixtures/tensors.h"

/* Destroys the stream, and creates another one with its handle. */
static void renew(CUstream *stream) {
    CUstream old = *stream;

    CU(driver->cuStreamDestroy(old));
    CU(driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    MUST(*stream == old);
}

static uint64_t stream_questions(void) {
    return weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing) +
           weir__model_calls(WEIR_ENTRY_cuStreamGetId) +
           weir__model_calls(WEIR_ENTRY_cuCtxPushCurrent);
}

CASE("pools", 30, begin_tensors, end_tensors);

TEST(a_handle_that_is_used_again_has_nothing_of_its_pool) {
    void *block;

    open_route(other);
    for (int i = 0; i < 20; i++) {
        block = alloc_tensor(4 * MIB, A);
        use_tensor_block(A, block, 4 * MIB, (uint64_t)i + 1);
        OK(weir_tensors_free(block));
        renew(&A);
    }
    MUST_LE(reserved_bytes(), 6 * MIB); /* memory of ended streams serves later ones after a wait */
    OK(weir_tensors_end(t, other, NULL));
}

/* A request that fits does not wait for the device. */
TEST(what_an_ended_stream_freed_is_waited_for_before_growth) {
    void *block[2], *again;
    uint64_t before;

    open_route(other);
    for (int i = 0; i < 2; i++)
        block[i] = alloc_tensor(16 * MIB, A);
    use_tensor_block(A, block[0], 16 * MIB, 1);
    for (int i = 0; i < 2; i++)
        OK(weir_tensors_free(block[i]));
    renew(&A);
    busy(B, 50 * MS);
    before = weir__model_now_ns();
    again = alloc_tensor(32 * MIB, A);
    MUST_LE(50 * MS, weir__model_now_ns() - before);
    for (int i = 0; i < 3; i++) {
        OK(weir_tensors_free(again));
        busy(B, 50 * MS);
        before = weir__model_now_ns();
        again = alloc_tensor(32 * MIB, A);
        MUST_LE(weir__model_now_ns() - before, 10 * MS);
    }
    OK(weir_tensors_free(again));
    OK(weir_tensors_end(t, other, NULL));
}

/* The block is freed after its stream has ended, and (_i) after the next stream of the handle has had a block. */
TEST_EACH(2, a_block_that_outlives_its_stream_serves_the_pool) {
    void *block, *again;

    open_route(other);
    block = alloc_tensor(4 * MIB, A);
    use_tensor_block(A, block, 4 * MIB, 1);
    renew(&A);
    if (_i)
        OK(weir_tensors_free(alloc_tensor(4 * MIB, A)));
    OK(weir_tensors_free(block));
    again = alloc_tensor(8 * MIB, A);
    use_tensor_block(A, again, 8 * MIB, 2);
    MUST_LE(reserved_bytes(), 8 * MIB + 2 * MIB);
    OK(weir_tensors_free(again));
    OK(weir_tensors_end(t, other, NULL));
}

/* A block of a captured stream, whose id cannot be queried, is freed after the capture. */
TEST(a_block_of_a_capture_serves_nobody_at_once_after_it) {
    void *block, *again;

    begin_pool_capture(A);
    block = alloc_tensor(4 * MIB, A);
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    use_tensor_block(A, block, 4 * MIB, 1);
    OK(weir_tensors_free(block));
    renew(&A);
    begin_pool_capture(A);
    again = alloc_tensor(4 * MIB, A);
    MUST_EQ((uintptr_t)again, (uintptr_t)block);
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    use_tensor_block(B, again, 4 * MIB, 2); /* stands for a graph that runs on B */
    OK(weir_tensors_free(again));
}

/* The pool keeps its route over two captures.  A block of the first capture is used after it, and freed before or
 * during the second one.  The handle means another stream by then. */
TEST_EACH(2, a_block_used_between_two_captures_waits_for_its_use) {
    void *block, *again;
    CUgraph captured;

    open_route(other);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    block = alloc_tensor(64 * MIB, A);
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    use_tensor_block(A, block, 64 * MIB, 1);
    if (_i == 0)
        OK(weir_tensors_free(block));
    renew(&A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (_i == 1)
        OK(weir_tensors_free(block));
    again = alloc_tensor(64 * MIB, A);
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    use_tensor_block(A, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
    OK(weir_tensors_end(t, other, NULL));
}

TEST(a_restored_block_outlives_its_stream) {
    weir_tensors_state *state;
    void *block, *again;

    open_route(other);
    block = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_save(t, other, &state));
    renew(&A);
    (void)alloc_tensor(4 * MIB, A);
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    use_tensor_block(B, block, 4 * MIB, 1);
    OK(weir_tensors_free(block));
    again = alloc_tensor(8 * MIB, A);
    use_tensor_block(A, again, 8 * MIB, 2);
    MUST_EQ((uintptr_t)again, (uintptr_t)block);
    weir_tensors_state_destroy(state);
    OK(weir_tensors_end(t, other, NULL));
}

CASE("waits", 30, NULL, end_tensors);

/* With recovery_timeout 0 no request waits for the device: the pool grows instead. */
TEST(a_pool_grows_where_waits_are_forbidden) {
    void *block;
    uint64_t before;

    setenv("WEIR_RECOVERY_TIMEOUT", "0", 1);
    begin_tensors();
    open_route(other);
    block = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_free(block));
    renew(&A);
    busy(B, 50 * MS);
    before = weir__model_now_ns();
    MUST(alloc_tensor(4 * MIB, A) != block);
    MUST_LE(weir__model_now_ns() - before, 10 * MS);
    OK(weir_tensors_end(t, other, NULL));
}

CASE("shared", 30, begin_tensors, end_tensors);

/* The handle means no stream (_i 0), a new stream, or a new stream that has had blocks. */
TEST_EACH(3, a_block_whose_stream_has_ended) {
    void *block, *again;

    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 1);
    if (_i > 0)
        renew(&A);
    else
        CU(driver->cuStreamDestroy(A));
    if (_i == 2)
        OK(weir_tensors_free(alloc_tensor(KIB, A)));
    OK(weir_tensors_free(block));
    if (_i == 0)
        CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    again = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

TEST_EACH(2, a_use_whose_stream_has_ended) {
    void *block, *again;

    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 1);
    order_streams(B, A);
    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, 64 * MIB, 1);
    if (_i)
        renew(&B);
    else
        CU(driver->cuStreamDestroy(B));
    OK(weir_tensors_free(block));
    again = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

static void *free_without_context(void *block) {
    OK(weir_tensors_free(block));
    return NULL;
}

TEST(a_thread_without_a_context_frees_a_block_whose_stream_has_ended) {
    pthread_t thread;
    void *block, *again;

    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 1);
    renew(&A);
    OK(weir_tensors_free(alloc_tensor(KIB, A)));
    ck_assert_int_eq(pthread_create(&thread, NULL, free_without_context, block), 0);
    pthread_join(thread, NULL);
    again = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

/* Two uses wait for the end of a capture: one of an ended stream, one of the next stream with its handle. */
TEST(two_streams_of_a_handle_share_no_event) {
    void *blocks[2], *again;
    CUgraph captured;

    for (int i = 0; i < 2; i++) {
        OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, A, 1, NULL, &blocks[i]));
        if (i)
            renew(&B);
        OK(weir_tensors_use(blocks[i], B));
        CU(weir__model_use(B, (uintptr_t)blocks[i], 64 * MIB, (uint64_t)i + 1, i ? MS : 50 * MS));
    }
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 2; i++)
        OK(weir_tensors_free(blocks[i]));
    CU(driver->cuStreamEndCapture(B, &captured));
    CU(driver->cuGraphDestroy(captured));
    weir__model_advance(2 * MS);
    for (int i = 0; i < 4; i++) {
        OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, A, 1, NULL, &again));
        use_tensor_block(A, again, 64 * MIB, (uint64_t)i + 3);
    }
}

/* The block's own stream has ended, and another stream with its handle uses the block. */
TEST(a_use_by_the_next_stream_of_the_handle_is_waited_for) {
    void *block, *again;

    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 1);
    order_streams(B, A);
    renew(&A);
    order_streams(A, B);
    OK(weir_tensors_use(block, A));
    use_tensor_block(A, block, 64 * MIB, 1);
    OK(weir_tensors_free(block));
    again = alloc_tensor(64 * MIB, B);
    use_tensor_block(B, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

/* The stream that has the handle now is being captured, so that nobody can query its id. */
TEST_EACH(2, a_free_beside_a_capture_on_the_handle) {
    enum { BLOCKS = 64 };

    size_t bytes = _i ? MIB : 4 * KIB;
    void *blocks[BLOCKS], *again[BLOCKS];
    CUgraph captured;

    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = alloc_tensor(bytes, A);
        use_tensor_block(A, blocks[i], bytes, (uint64_t)i + 1);
    }
    renew(&A);
    for (int i = 0; i < 200; i++)
        OK(weir_tensors_free(alloc_tensor(bytes, A)));
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < BLOCKS; i++)
        OK(weir_tensors_free(blocks[i]));
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    for (int i = 0; i < BLOCKS; i++) {
        again[i] = alloc_tensor(bytes, A);
        use_tensor_block(A, again[i], bytes, (uint64_t)i + 1000);
    }
    for (int i = 0; i < BLOCKS; i++)
        OK(weir_tensors_free(again[i]));
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_trim(t, none));
    MUST_EQ(reserved_bytes(), 0);
}

/* The block's own stream ends after the free, which still waits for another one.  A later request neither queries the
 * stream (_i 0), nor waits for the device, since another stream has the handle (_i 1). */
TEST_EACH(2, a_waiting_block_outlives_its_stream) {
    uint64_t asked, before;
    CUstream own;
    void *block, *again;

    CU(driver->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    block = alloc_tensor(64 * MIB, own);
    use_tensor_block(own, block, 64 * MIB, 1);
    order_streams(B, own);
    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, 64 * MIB, 1);
    busy(C, 50 * MS);
    OK(weir_tensors_free(block));
    if (_i)
        renew(&own);
    else
        CU(driver->cuStreamDestroy(own));
    OK(weir_tensors_alloc(t, KIB, KIB, A, 1, NULL, &again)); /* makes A known */
    OK(weir_tensors_free(again));
    MUST_EQ(tensor_figures().active[0].current, 1);
    weir__model_advance(5 * MS);
    asked = weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing);
    before = weir__model_now_ns();
    OK(weir_tensors_alloc(t, KIB, KIB, A, 1, NULL, &again));
    MUST_EQ(tensor_figures().active[0].current, 1);
    MUST_LE(weir__model_now_ns() - before, 10 * MS);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing), asked);
    OK(weir_tensors_alloc(t, 32 * MIB, 32 * MIB, A, 1, NULL, &again));
    MUST_LE((uintptr_t)again - (uintptr_t)block, 32 * MIB);
    use_tensor_block(A, again, 32 * MIB, 2);
    OK(weir_tensors_free(again));
}

/* The block's own stream still works on it when the other stream is done. */
TEST(a_block_waits_for_its_own_stream_too) {
    void *block, *again;
    uint64_t owner = 2;

    block = alloc_tensor(64 * MIB, A);
    OK(weir_tensors_use(block, B));
    CU(weir__model_use(A, (uintptr_t)block, 64 * MIB, 1, 50 * MS));
    OK(weir_tensors_free(block));
    for (int i = 0; i < 4; i++) {
        weir__model_advance(MS);
        again = alloc_tensor(64 * MIB, C);
        use_tensor_block(C, again, 64 * MIB, owner++);
    }
}

/* A use is noted during a capture of its stream, so that only a wait for the device completes the use. */
TEST(a_use_noted_in_a_capture_waits_for_the_device) {
    CUgraph captured;
    void *block, *again;

    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 1);
    order_streams(B, A);
    use_tensor_block(B, block, 64 * MIB, 1);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_tensors_use(block, B));
    CU(driver->cuStreamEndCapture(B, &captured));
    CU(driver->cuGraphDestroy(captured));
    renew(&B);
    OK(weir_tensors_free(block));
    again = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

/* ---- default streams ---------------------------------------------------------------------------- */

#define OWN_STREAM ((CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE)

static void *take_on_own(void *context) {
    void *block;

    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, OWN_STREAM, *(int *)context, NULL, &block));
    use_tensor_block(OWN_STREAM, block, 64 * MIB, 1);
    return block;
}

/* The per-thread default stream is another stream in each thread.  `lasts`: the program vouches for it. */
static void blocks_of_two_threads(int lasts) {
    pthread_t thread;
    void *block, *again;

    ck_assert_int_eq(pthread_create(&thread, NULL, take_on_own, &lasts), 0);
    pthread_join(thread, &block);
    OK(weir_tensors_free(block));
    OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, OWN_STREAM, lasts, NULL, &again));
    use_tensor_block(OWN_STREAM, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

TEST_EACH(2, default_streams_of_two_threads_are_ordered) {
    blocks_of_two_threads(_i);
}

TEST_EACH(2, default_streams_of_two_threads_are_ordered_in_a_pool) {
    open_route(other);
    blocks_of_two_threads(_i);
    OK(weir_tensors_end(t, other, NULL));
}

static void *free_on_own(void *context) {
    int lasts = 0;
    void *block = take_on_own(&lasts);

    (void)context;
    OK(weir_tensors_free(block));
    return NULL;
}

/* Both streams still exist, so no request waits for the device, which is at work. */
TEST(default_streams_of_two_threads_have_not_ended) {
    pthread_t thread;
    uint64_t before;

    open_route(other);
    (void)free_on_own(NULL);
    busy(B, 50 * MS);
    before = weir__model_now_ns();
    ck_assert_int_eq(pthread_create(&thread, NULL, free_on_own, NULL), 0);
    pthread_join(thread, NULL);
    OK(weir_tensors_free(take_on_own(&(int){0})));
    OK(weir_tensors_free(alloc_tensor(65 * MIB, A)));
    MUST_LE(weir__model_now_ns() - before, 10 * MS);
    OK(weir_tensors_end(t, other, NULL));
}

static void *use_on_own(void *block) {
    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_tensors_use(block, OWN_STREAM));
    CU(weir__model_use(OWN_STREAM, (uintptr_t)block, 64 * MIB, 1, 20 * MS));
    return NULL;
}

/* The handle is that of the block's own stream, but in this thread the handle means another stream. */
TEST(a_use_by_another_threads_default_stream_is_waited_for) {
    pthread_t thread;
    void *block, *again;

    OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, OWN_STREAM, 0, NULL, &block));
    ck_assert_int_eq(pthread_create(&thread, NULL, use_on_own, block), 0);
    pthread_join(thread, NULL);
    OK(weir_tensors_free(block));
    OK(weir_tensors_alloc(t, 64 * MIB, 64 * MIB, OWN_STREAM, 0, NULL, &again));
    use_tensor_block(OWN_STREAM, again, 64 * MIB, 2);
    OK(weir_tensors_free(again));
}

/* ---- drivers without ids ------------------------------------------------------------------------ */

CASE("older", 30, NULL, end_tensors);

/* Streams cannot be told apart, so that memory of ended streams is reused only after a wait for the device. */
TEST(a_pool_with_a_driver_that_has_no_ids) {
    void *block;

    begin_without_ids(NULL);
    open_route(other);
    for (int i = 0; i < 20; i++) {
        CUstream stream = i % 3 ? A : B;

        block = alloc_tensor(4 * MIB, stream);
        use_tensor_block(stream, block, 4 * MIB, (uint64_t)i + 1);
        OK(weir_tensors_free(block));
        renew(&A);
    }
    MUST_LE(reserved_bytes(), 6 * MIB);
    OK(weir_tensors_end(t, other, NULL));
    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 100);
    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, 64 * MIB, 100);
    OK(weir_tensors_free(block));
    block = alloc_tensor(64 * MIB, A);
    use_tensor_block(A, block, 64 * MIB, 101);
}

/* ---- cost --------------------------------------------------------------------------------------- */

CASE("cost", 30, begin_tensors, end_tensors);

/* In a pool (_i 1) or not, weir makes no driver query about a stream that is never destroyed. */
TEST_EACH(2, streams_that_last_are_not_asked_about) {
    uint64_t before = 0;
    void *block;

    block = alloc_tensor(MIB, A);
    use_tensor_block(B, block, MIB, 1);
    OK(weir_tensors_use(block, B));
    OK(weir_tensors_free(block));
    CU(driver->cuCtxSynchronize());
    if (_i)
        open_route(other);
    for (int i = 0; i < 12100; i++) {
        if (i == 12000) /* the engine records few events once no request has lacked memory for long */
            before = stream_questions();
        OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &block));
        OK(weir_tensors_use(block, A));
        OK(weir_tensors_free(block));
    }
    MUST_LE(stream_questions() - before, 1); /* the cache checks itself now and then */
    if (_i)
        OK(weir_tensors_end(t, other, NULL));
}

static void *take_on_legacy(size_t bytes) {
    void *block;

    OK(weir_tensors_alloc(t, bytes, bytes, NULL, 1, NULL, &block));
    return block;
}

static void *free_many(void *blocks) {
    CU(driver->cuCtxPushCurrent(primary));
    for (void **block = blocks; *block; block++)
        OK(weir_tensors_free(*block));
    return NULL;
}

/* Slots (_i 0) and whole blocks of the default stream are freed in another thread. */
TEST_EACH(2, frees_on_the_default_stream_are_not_asked_about) {
    size_t bytes = _i ? MIB : 1000;
    void *blocks[41] = {NULL};
    uint64_t before;

    for (int i = 0; i < 300; i++)
        OK(weir_tensors_free(take_on_legacy(bytes)));
    for (int i = 0; i < 40; i++)
        blocks[i] = take_on_legacy(bytes);
    before = stream_questions();
    run_in_thread(free_many, blocks);
    MUST_LE(stream_questions() - before, 1); /* the thread's context */
}

/* While a blocking stream is captured, a query of the default stream fails and breaks the capture. */
TEST(frees_on_the_default_stream_break_no_capture) {
    size_t before = 0;
    CUgraph captured = NULL;
    CUstream blocking;
    void *block;

    CU(driver->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(weir_tensors_free(take_on_legacy(KIB)));
    for (int i = 0; i < 8; i++) {
        block = take_on_legacy(64 * MIB);
        before = before ? before : reserved_bytes();
        CU(driver->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(weir_tensors_free(block));
        CU(driver->cuStreamEndCapture(blocking, &captured));
        CU(driver->cuGraphDestroy(captured));
    }
    MUST_EQ(reserved_bytes(), before);
}

/* A use of such a stream needs no query of the id, only one at the free whether it is captured. */
TEST(uses_of_streams_that_last_are_not_asked_about) {
    uint64_t before, ids;
    void *block;

    open_route(other);
    OK(weir_tensors_alloc(t, KIB, KIB, B, 1, NULL, &block));
    OK(weir_tensors_free(block));
    OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &block));
    before = stream_questions();
    ids = weir__model_calls(WEIR_ENTRY_cuStreamGetId);
    OK(weir_tensors_use(block, B));
    MUST_EQ(stream_questions(), before);
    OK(weir_tensors_free(block));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetId), ids);
    OK(weir_tensors_end(t, other, NULL));
}

/* One request of the pool comes between requests outside of it. */
TEST(a_stream_is_bound_once) {
    uint64_t before = 0;
    void *block;

    for (int i = 0; i < 300; i++) {
        if (i == 200) {
            open_route(other);
            OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &block));
            OK(weir_tensors_end(t, other, NULL));
            before = stream_questions();
        }
        OK(weir_tensors_alloc(t, KIB, KIB, i % 2 ? A : B, 1, NULL, &block));
        OK(weir_tensors_free(block));
    }
    MUST_LE(stream_questions() - before, 2);
}

SUITE("streams", CK_FORK);
