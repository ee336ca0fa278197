/* SPDX-License-Identifier: MIT */
/* test_tensor_order.c: memory of pools on the device model is never reused too early, whatever happens meanwhile. */
#include "tests/fixtures/tensors.h"

static weir_tensors_id pool_of_block(void *block) {
    weir_tensors_block found;
    weir_tensors *whose;

    OK(weir_tensors_find(block, &whose, &found));
    return found.pool;
}

/* ---- records ------------------------------------------------------------------------------------ */

CASE("pools", 30, begin_tensors, end_tensors);

TEST(a_record_that_is_used_again_knows_nothing_of_its_last_block) {
    int note;
    void *block;

    open_route(other);
    OK(weir_tensors_alloc(t, MIB, MIB, A, 0, &note, &block));
    OK(weir_tensors_free(block));
    MUST_EQ(drops, 1);
    OK(weir_tensors_end(t, other, NULL));
    block = alloc_tensor(MIB, A);
    MUST_EQ(pool_of_block(block).second, 0);
    OK(weir_tensors_free(block));
    MUST_EQ(drops, 1);
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
}

/* ---- routes ------------------------------------------------------------------------------------- */

TEST(the_route_that_began_last_counts) {
    void *blocks[4];

    open_route(graph);
    blocks[0] = alloc_tensor(MIB, A);
    open_route(other);
    blocks[1] = alloc_tensor(MIB, A);
    OK(weir_tensors_end(t, other, NULL));
    blocks[2] = alloc_tensor(MIB, A);
    OK(weir_tensors_begin(t, other, always, NULL));
    OK(weir_tensors_end(t, graph, NULL)); /* the outer one ends first */
    blocks[3] = alloc_tensor(MIB, A);
    MUST_EQ(pool_of_block(blocks[0]).first, graph.first);
    MUST_EQ(pool_of_block(blocks[1]).second, other.second);
    MUST_EQ(pool_of_block(blocks[2]).first, graph.first);
    MUST_EQ(pool_of_block(blocks[3]).second, other.second);
    OK(weir_tensors_end(t, other, NULL));
    for (int i = 0; i < 4; i++)
        OK(weir_tensors_free(blocks[i]));
}

/* ---- trims -------------------------------------------------------------------------------------- */

TEST(a_pool_with_users_gives_nothing_back) {
    uint64_t before;
    void *block;

    begin_pool_capture(A);
    block = alloc_tensor(5 * MIB, A);
    OK(weir_tensors_free(block));
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    busy(B, 50 * MS);
    before = weir__model_now_ns();
    OK(weir_tensors_trim(t, graph)); /* the graph holds these addresses */
    MUST_LE(weir__model_now_ns() - before, 10 * MS);
    MUST_EQ(tensor_figures().segment[0].current, 2);
    OK(weir_tensors_pool_close(t, graph));
    OK(weir_tensors_trim(t, graph));
    MUST_EQ(tensor_figures().segment[0].current, 1);
}

/* The pool's source calls this function while a trim frees a segment. */
static void (*meanwhile)(void);
static int is_meanwhile;

static void elsewhere_free(void *context, void *segment) {
    (void)context;
    CU(driver->cuMemFree((uintptr_t)segment));
    if (meanwhile && !is_meanwhile) {
        is_meanwhile = 1;
        meanwhile();
    }
}

static const weir_tensors_id third = {3, 3};

static void close_other(void) {
    OK(weir_tensors_pool_close(t, other));
}

static void fill_from_source(weir_tensors_id id) {
    weir_tensors_source source = {NULL, alloc_segment, elsewhere_free, NULL};
    void *block;

    OK(weir_tensors_pool_open(t, id, &source));
    OK(weir_tensors_begin(t, id, always, NULL));
    block = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_end(t, id, NULL));
    OK(weir_tensors_free(block));
}

TEST(a_pool_that_loses_its_users_during_a_trim_goes_at_the_next) {
    int users;

    fill_from_source(other);
    fill_from_source(third); /* comes first */
    OK(weir_tensors_pool_close(t, third));
    meanwhile = close_other;
    OK(weir_tensors_trim(t, none));
    MUST(is_meanwhile);
    MUST_EQ(tensor_figures().segment[0].current, 1); /* its graphs may have run since the wait */
    OK(weir_tensors_trim(t, none));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, other, &users));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, third, &users));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
}

static void *freed_late;

static void use_and_free_late(void) {
    use_tensor_block(A, freed_late, 4 * MIB, 1);
    OK(weir_tensors_free(freed_late));
}

static void free_unused(void *context, void *segment) {
    (void)context;
    ck_assert_int_eq(driver->cuStreamQuery(A), CUDA_SUCCESS);
    CU(driver->cuMemFree((uintptr_t)segment));
}

/* A block is freed after the trim has waited for the device.  The next trim waits for the block's use. */
TEST(a_trim_does_not_give_back_what_is_freed_meanwhile) {
    weir_tensors_source source = {NULL, alloc_segment, free_unused, NULL};

    OK(weir_tensors_pool_open(t, other, &source));
    OK(weir_tensors_begin(t, other, always, NULL));
    freed_late = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    fill_from_source(third);
    OK(weir_tensors_pool_close(t, third));
    meanwhile = use_and_free_late;
    OK(weir_tensors_trim(t, none));
    MUST(is_meanwhile);
    MUST_EQ(tensor_figures().segment[0].current, 1);
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().segment[0].current, 0);
}

static void reopen_other(void) {
    OK(weir_tensors_pool_open(t, other, NULL));
}

TEST(a_pool_that_gets_a_user_during_a_trim_stays) {
    int users;

    fill_from_source(other);
    fill_from_source(third);
    OK(weir_tensors_pool_close(t, third));
    OK(weir_tensors_pool_close(t, other));
    meanwhile = reopen_other;
    OK(weir_tensors_trim(t, none));
    OK(weir_tensors_pool_users(t, other, &users));
    MUST_EQ(users, 1);
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, none));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, other, &users));
}

TEST(a_pool_that_gets_a_user_keeps_what_it_has_left) {
    weir_tensors_source source = {NULL, alloc_segment, elsewhere_free, NULL};
    void *blocks[2];

    OK(weir_tensors_pool_open(t, other, &source));
    OK(weir_tensors_begin(t, other, always, NULL));
    for (int i = 0; i < 2; i++)
        blocks[i] = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_end(t, other, NULL));
    for (int i = 0; i < 2; i++)
        OK(weir_tensors_free(blocks[i]));
    OK(weir_tensors_pool_close(t, other));
    meanwhile = reopen_other;
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().segment[0].current, 1);
}

static size_t segments_left;

CASE("pools", 30, NULL, end_tensors);

TEST(a_pool_of_many_segments_goes_at_once) {
    enum { SEGMENTS = 4000 };

    static void *blocks[SEGMENTS];

    begin_tensors();
    OK(weir_tensors_watch(t, 0));
    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_pool_whole(t, other));
    OK(weir_tensors_begin(t, other, always, NULL));
    for (int i = 0; i < SEGMENTS; i++)
        blocks[i] = alloc_tensor(512, A);
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    for (int i = 0; i < SEGMENTS; i += 2) /* half of the blocks stay */
        OK(weir_tensors_free(blocks[i]));
    OK(weir_tensors_trim(t, none));
    segments_left = (size_t)tensor_figures().segment[0].current;
    MUST_LE(SEGMENTS / 2, segments_left);
    MUST_LE(segments_left, SEGMENTS / 2 + 1);
    for (int i = 1; i < SEGMENTS; i += 2)
        OK(weir_tensors_free(blocks[i]));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().segment[0].current, 0);
}

/* ---- memory from elsewhere ---------------------------------------------------------------------- */

static int failed_requests;

static void *alloc_later(void *context, size_t bytes) {
    return failed_requests-- > 0 ? NULL : alloc_segment(context, bytes);
}

CASE("pools", 30, begin_tensors, end_tensors);

TEST(a_source_is_asked_again_once_idle_memory_is_gone) {
    weir_tensors_source source = {NULL, alloc_later, elsewhere_free, NULL};
    void *block;

    OK(weir_tensors_free(alloc_tensor(64 * MIB, A)));
    OK(weir_tensors_pool_open(t, other, &source));
    OK(weir_tensors_begin(t, other, always, NULL));
    failed_requests = 1;
    block = alloc_tensor(MIB, A);
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 2 * MIB);
    failed_requests = 2;
    EXPECT(WEIR_E_NO_MEMORY, weir_tensors_alloc(t, 4 * MIB, 4 * MIB, A, 0, NULL, &block));
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
}

TEST(events_of_memory_add_up_to_what_is_reserved) {
    void *block, *inside;

    block = alloc_tensor(40 * MIB, A);
    MUST_EQ(grown, tensor_figures().reserved_bytes[0].current);
    OK(weir_tensors_free(block));
    open_route(other);
    inside = alloc_tensor(30 * MIB, A); /* idle memory, or new memory */
    MUST_EQ(grown, tensor_figures().reserved_bytes[0].current);
    OK(weir_tensors_free(inside));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
    MUST_EQ(grown, 0);
    MUST_LE(1, events[WEIR_TENSORS_SEGMENT_UNMAP]);
}

/* ---- checkpoints -------------------------------------------------------------------------------- */

TEST(what_was_used_since_a_checkpoint_is_over_when_it_comes_back) {
    weir_tensors_state *state;
    void *block, *again;

    open_route(other);
    block = alloc_tensor(MIB, A);
    OK(weir_tensors_free(block));
    block = alloc_tensor(MIB, B);
    OK(weir_tensors_free(block));
    OK(weir_tensors_save(t, other, &state));
    block = alloc_tensor(8 * MIB, B);
    use_tensor_block(B, block, 8 * MIB, 1);
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    again = alloc_tensor(8 * MIB, A);
    use_tensor_block(A, again, 8 * MIB, 2);
    OK(weir_tensors_free(again));
    weir_tensors_state_destroy(state);
    OK(weir_tensors_end(t, other, NULL));
}

TEST(a_pool_that_came_back_to_a_state_goes_like_others) {
    weir_tensors_state *state;
    void *kept, *block;

    open_route(other);
    kept = alloc_tensor(MIB, A);
    block = alloc_tensor(MIB, A);
    OK(weir_tensors_free(block));
    OK(weir_tensors_save(t, other, &state));
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    weir_tensors_state_destroy(state);
    block = alloc_tensor(MIB, B); /* memory that was free before serves any stream */
    OK(weir_tensors_free(kept));
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().segment[0].current, 0);
}

static CUdeviceptr arena;

static void *alloc_in_arena(void *context, size_t bytes) {
    (void)context;
    (void)bytes;
    return (void *)(uintptr_t)arena;
}

TEST(a_segment_of_another_size_is_not_the_saved_one) {
    weir_tensors_source source = {NULL, alloc_in_arena, NULL, NULL};
    weir_tensors_state *state;
    void *block;

    CU(driver->cuMemAlloc(&arena, 16 * MIB));
    for (int i = 0; i < 2; i++) {
        OK(weir_tensors_pool_open(t, other, &source));
        OK(weir_tensors_begin(t, other, always, NULL));
        block = alloc_tensor((i ? 5 : 3) * MIB, A);
        MUST_EQ((uintptr_t)block, arena);
        if (i)
            EXPECT(WEIR_E_NOT_OWNED, weir_tensors_restore(t, state, NULL, NULL, NULL));
        else
            OK(weir_tensors_save(t, other, &state));
        OK(weir_tensors_free(block));
        OK(weir_tensors_end(t, other, NULL));
        OK(weir_tensors_pool_close(t, other));
        OK(weir_tensors_trim(t, none));
    }
    weir_tensors_state_destroy(state);
    CU(driver->cuMemFree(arena));
}

/* ---- frees that wait ---------------------------------------------------------------------------- */

CASE("pending", 30, begin_tensors, end_tensors);

TEST(a_block_waits_if_no_event_can_be_had) {
    void *block, *again;

    open_route(other);
    block = alloc_tensor(MIB, A);
    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, MIB, 1);
    weir__model_fail(WEIR_ENTRY_cuEventCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    refuse_waits();
    OK(weir_tensors_free(block));
    again = alloc_tensor(MIB, A);
    use_tensor_block(A, again, MIB, 2);
    MUST_EQ(tensor_figures().active[0].current, 2);
    weir__model_faults_clear();
    OK(weir_tensors_free(again));
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(MIB, A)));
    MUST_EQ(tensor_figures().active[0].current, 0);
    OK(weir_tensors_end(t, other, NULL));
}

CASE("pending", 30, NULL, end_tensors);

/* The use is on another device's stream, or (_i) on the default stream while another device is current. */
TEST_EACH(2, uses_beside_another_device_are_waited_for) {
    CUcontext second, popped;
    void *block, *again;
    CUstream stream;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_tensors();
    OK(weir_set_access(weir_tensors_allocator(t), 1, WEIR_ACCESS_READ_WRITE));
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(driver->cuCtxPopCurrent(&popped));
    open_route(other);
    block = alloc_tensor(MIB, A);
    if (_i)
        stream = NULL;
    use_tensor_block(stream, block, MIB, 1);
    OK(weir_tensors_use(block, stream));
    CU(driver->cuCtxPushCurrent(second));
    OK(weir_tensors_free(block));
    CU(driver->cuCtxPopCurrent(&popped));
    again = alloc_tensor(MIB, A);
    use_tensor_block(A, again, MIB, 2);
    OK(weir_tensors_free(again));
    OK(weir_tensors_end(t, other, NULL));
}

/* The free is on the default stream of the block's own device, whatever device is current. */
TEST_EACH(2, a_free_beside_another_device) {
    CUcontext second, popped;
    void *block, *again;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    setenv("WEIR_LIMIT", "8MiB", 1);
    begin_tensors();
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    OK(weir_tensors_alloc(t, 6 * MIB, 6 * MIB, NULL, _i, NULL, &block));
    use_tensor_block(NULL, block, 6 * MIB, 1);
    CU(driver->cuCtxPushCurrent(second));
    OK(weir_tensors_free(block));
    CU(driver->cuCtxPopCurrent(&popped));
    again = alloc_tensor(6 * MIB, B);
    use_tensor_block(B, again, 6 * MIB, 2);
    OK(weir_tensors_free(again));
}

CASE("pending", 30, begin_tensors, end_tensors);

TEST(a_later_free_waits_for_what_came_between) {
    void *first = alloc_tensor(MIB, A), *second = alloc_tensor(MIB, A), *again;

    OK(weir_tensors_use(first, B));
    OK(weir_tensors_use(second, B));
    use_tensor_block(B, first, MIB, 1);
    OK(weir_tensors_free(first));
    CU(weir__model_use(B, (uintptr_t)second, MIB, 2, 50 * MS));
    OK(weir_tensors_free(second));
    weir__model_advance(5 * MS);
    for (uint64_t i = 3; i < 6; i++) {
        again = alloc_tensor(MIB, A);
        use_tensor_block(A, again, MIB, i);
        OK(weir_tensors_use(again, B));
        OK(weir_tensors_free(again));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

/* A use ends with the stream's work at the time of the free.  Later work does not count. */
TEST(a_use_is_over_with_what_the_stream_had_at_the_free) {
    void *block = alloc_tensor(MIB, A);

    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, MIB, 1);
    OK(weir_tensors_free(block));
    busy(B, 500 * MS);
    weir__model_advance(2 * MS);
    OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

TEST(a_use_whose_event_cannot_be_asked_is_not_over) {
    void *block = alloc_tensor(MIB, A);

    OK(weir_tensors_use(block, B));
    CU(weir__model_use(B, (uintptr_t)block, MIB, 1, 50 * MS));
    OK(weir_tensors_free(block));
    CU(driver->cuCtxSynchronize());
    weir__model_fail(WEIR_ENTRY_cuEventQuery, 1, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
    OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 1);
    weir__model_faults_clear();
    OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 0);
    block = alloc_tensor(MIB, A);
    use_tensor_block(A, block, MIB, 2);
}

/* The uses are complete, but the block's own stream is being captured. */
TEST(a_block_whose_own_stream_is_captured_goes_after_it) {
    CUgraph captured;
    void *block = alloc_tensor(MIB, A);

    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, MIB, 1);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_tensors_free(block));
    weir__model_advance(2 * MS);
    for (int i = 0; i < 2; i++)
        OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 1);
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    OK(weir_tensors_free(alloc_tensor(KIB, C)));
    MUST_EQ(tensor_figures().active[0].current, 0);
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
}

/* One capture (_i) has ended, while the other one goes on. */
TEST_EACH(2, a_capture_that_goes_on_holds_no_other_up) {
    CUstream streams[] = {B, C};
    void *blocks[2];
    CUgraph captured;

    for (int i = 0; i < 2; i++) {
        blocks[i] = alloc_tensor(MIB, A);
        OK(weir_tensors_use(blocks[i], streams[i]));
        CU(driver->cuStreamBeginCapture(streams[i], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    }
    for (int i = 0; i < 2; i++)
        OK(weir_tensors_free(blocks[i]));
    CU(driver->cuStreamEndCapture(streams[_i], &captured));
    CU(driver->cuGraphDestroy(captured));
    OK(weir_tensors_free(alloc_tensor(KIB, A)));
    MUST_EQ(tensor_figures().active[0].current, 1);
    CU(driver->cuStreamEndCapture(streams[!_i], &captured));
    CU(driver->cuGraphDestroy(captured));
    OK(weir_tensors_free(alloc_tensor(KIB, A)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

TEST(a_captured_use_is_covered_before_its_block_goes) {
    CUgraph captured;
    void *block, *again;

    OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &block));
    OK(weir_tensors_use(block, C));
    OK(weir_tensors_use(block, B));
    CU(weir__model_use(C, (uintptr_t)block, MIB, 1, 20 * MS));
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_tensors_free(block));
    OK(weir_tensors_free(alloc_tensor(KIB, B))); /* the work of B is complete */
    MUST_EQ(tensor_figures().active[0].current, 1);
    OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &again));
    use_tensor_block(A, again, MIB, 2);
    CU(driver->cuStreamEndCapture(C, &captured));
    CU(driver->cuGraphDestroy(captured));
    OK(weir_tensors_free(again));
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(KIB, B)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

/* The block has one use, or (_i) two. */
TEST_EACH(2, a_pool_counts_blocks_that_wait) {
    weir_tensors_state *state;
    CUgraph captured;
    void *block;
    int same;

    open_route(other);
    block = alloc_tensor(MIB, A);
    OK(weir_tensors_use(block, B));
    if (_i)
        OK(weir_tensors_use(block, C));
    use_tensor_block(B, block, MIB, 1);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_tensors_free(block));
    OK(weir_tensors_pool_is(t, other, NULL, 0, &same));
    MUST(same);
    EXPECT(WEIR_E_CAPTURE, weir_tensors_save(t, other, &state));
    CU(driver->cuStreamEndCapture(B, &captured));
    CU(driver->cuGraphDestroy(captured));
    busy(B, 500 * MS);
    refuse_waits();
    EXPECT(WEIR_E_CAPTURE, weir_tensors_save(t, other, &state));
    weir__model_faults_clear();
    OK(weir_tensors_save(t, other, &state)); /* waits for B */
    OK(weir_tensors_pool_is(t, other, NULL, 0, &same));
    MUST(same);
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    block = alloc_tensor(MIB, A);
    use_tensor_block(A, block, MIB, 2);
    OK(weir_tensors_free(block));
    weir_tensors_state_destroy(state);
    OK(weir_tensors_end(t, other, NULL));
}

TEST(sums_that_begin_again_while_a_block_waits) {
    void *block;

    block = alloc_tensor(MIB, A);
    OK(weir_tensors_use(block, B));
    use_tensor_block(B, block, MIB, 1);
    OK(weir_tensors_free(block));
    OK(weir_tensors_reset_sums(t));
    MUST_EQ(tensor_figures().active[0].freed, 0);
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(MIB, C)));
    MUST_EQ(tensor_figures().active[0].freed, 2);
    MUST_EQ(tensor_figures().active_bytes[0].freed, 2 * MIB);
}

/* The stream was not vouched for, so that weir queries it, and is captured without a route. */
TEST(a_free_that_waits_is_told_once) {
    CUgraph captured;
    void *block;

    block = alloc_tensor(MIB, A);
    weir__model_fail(WEIR_ENTRY_cuStreamGetId, 1, CUDA_ERROR_INVALID_VALUE, 1);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_tensors_free(block));
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    weir__model_faults_clear();
    OK(weir_tensors_free(alloc_tensor(MIB, B)));
    MUST_EQ(events[WEIR_TENSORS_FREE_COMPLETED], 2);
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
}

static atomic_int is_held, may_go;

static int hold_the_lock(void *context, weir_stream stream) {
    (void)context;
    (void)stream;
    atomic_store(&is_held, 1);
    while (!atomic_load(&may_go))
        usleep(1000);
    return 0;
}

static void *ask_once(void *context) {
    void *block;

    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_tensors_alloc(t, MIB, MIB, context, 0, NULL, &block));
    return block;
}

CASE("pending", 30, NULL, end_tensors);

TEST(a_device_that_is_waited_for_holds_no_other_up) {
    CUcontext second, popped;
    weir_tensors *elsewhere;
    pthread_t thread;
    CUstream stream;
    void *block, *late;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_tensors();
    OK(weir_tensors_open(1, NULL, &elsewhere));
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(weir_tensors_alloc(elsewhere, MIB, MIB, stream, 0, NULL, &block));
    CU(driver->cuCtxPopCurrent(&popped));
    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_begin(t, other, hold_the_lock, NULL));
    ck_assert_int_eq(pthread_create(&thread, NULL, ask_once, A), 0);
    while (!atomic_load(&is_held))
        usleep(1000);
    OK(weir_tensors_use(block, stream));
    OK(weir_tensors_free(block));
    atomic_store(&may_go, 1);
    pthread_join(thread, &late);
    OK(weir_tensors_free(late));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_free(late));
    OK(weir_tensors_end(t, other, NULL));
}

static atomic_int is_inside, is_done;
static weir_tensors *second_device;
static CUstream second_stream;

static void wait_for_the_other(void *context, const weir_tensors_block *block) {
    (void)context;
    (void)block;
    atomic_store(&is_inside, 1);
    for (int i = 0; i < 5000 && !atomic_load(&is_done); i++)
        usleep(1000);
}

static void *use_the_second(void *context) {
    void *block;

    while (!atomic_load(&is_inside))
        usleep(1000);
    OK(weir_tensors_free(context));
    OK(weir_tensors_alloc(second_device, MIB, MIB, second_stream, 0, NULL, &block));
    OK(weir_tensors_free(block));
    atomic_store(&is_done, 1);
    return NULL;
}

/* A thread that used two devices and holds the lock of one does not block requests on the other. */
TEST(one_who_used_both_devices_holds_one_up) {
    CUcontext second, popped;
    pthread_t thread;
    void *block, *left;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_tensors();
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING));
    CU(driver->cuCtxPopCurrent(&popped));
    OK(weir_tensors_open(1, NULL, &second_device));
    OK(weir_tensors_alloc(second_device, MIB, MIB, second_stream, 0, NULL, &left));
    for (int i = 0; i < 2000; i++) {
        OK(weir_tensors_alloc(i % 2 ? t : second_device, MIB, MIB, i % 2 ? A : second_stream, 0,
                              NULL, &block));
        OK(weir_tensors_free(block));
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, use_the_second, left), 0);
    OK(weir_tensors_visit(t, none, wait_for_the_other, NULL));
    MUST_EQ(atomic_load(&is_done), 1);
    pthread_join(thread, NULL);
}

/* However many blocks wait, a request queries one event of each stream. */
TEST(a_busy_stream_is_asked_once) {
    enum { BLOCKS = 400, STREAMS = 16 };

    static void *blocks[BLOCKS];
    CUstream streams[STREAMS];
    uint64_t asked;

    begin_tensors();
    for (int i = 0; i < STREAMS; i++)
        CU(driver->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = alloc_tensor(MIB, A);
    for (int i = 0; i < STREAMS; i++)
        use_tensor_block(streams[i], blocks[i], MIB, (uint64_t)i + 1);
    for (int i = 0; i < BLOCKS; i++) {
        OK(weir_tensors_use(blocks[i], streams[i % STREAMS]));
        OK(weir_tensors_free(blocks[i]));
    }
    for (int i = 0; i < 3; i++) {
        asked = weir__model_calls(WEIR_ENTRY_cuEventQuery);
        OK(weir_tensors_free(alloc_tensor(512, C)));
        /* The first request also queries the oldest and the newest event of A, which is not at work. */
        MUST_LE(weir__model_calls(WEIR_ENTRY_cuEventQuery) - asked, STREAMS + 2 * (i == 0));
    }
    CU(driver->cuStreamSynchronize(streams[3]));
    OK(weir_tensors_free(alloc_tensor(512, C)));
    MUST_LE(tensor_figures().active[0].current, BLOCKS - BLOCKS / STREAMS);
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(MIB, A)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

TEST(frees_of_a_capture_share_an_event) {
    enum { BLOCKS = 64 };

    void *blocks[BLOCKS];
    uint64_t recorded, asked;

    begin_tensors();
    for (int i = 0; i < BLOCKS; i++)
        OK(weir_tensors_alloc(t, MIB, MIB, A, 1, NULL, &blocks[i]));
    OK(weir_tensors_alloc(t, 512, 512, B, 1, NULL, &blocks[0]));
    use_tensor_block(B, blocks[1], MIB, 1);
    begin_pool_capture(B);
    for (int i = 1; i < BLOCKS; i++) {
        OK(weir_tensors_use(blocks[i], B));
        OK(weir_tensors_free(blocks[i]));
    }
    recorded = weir__model_calls(WEIR_ENTRY_cuEventRecord);
    CU(driver->cuGraphDestroy(end_pool_capture(B)));
    (void)alloc_tensor(512, C);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuEventRecord) - recorded, 1);
    CU(driver->cuCtxSynchronize());
    asked = weir__model_calls(WEIR_ENTRY_cuEventQuery);
    (void)alloc_tensor(512, C);
    MUST_LE(weir__model_calls(WEIR_ENTRY_cuEventQuery) - asked, 2);
    for (int i = 1; i < BLOCKS; i++) {
        blocks[i] = alloc_tensor(MIB, A);
        use_tensor_block(A, blocks[i], MIB, (uint64_t)i + 1);
    }
}

/* Blocks from before a capture are freed within it, on a stream that the program vouched for. */
TEST_EACH(2, frees_on_a_captured_stream_are_accepted) {
    enum { BLOCKS = 64 };

    void *blocks[BLOCKS], *block;
    size_t bytes = _i ? 4 * MIB : 4 * KIB;
    CUgraphExec ready;
    CUgraph captured;

    begin_tensors();
    OK(weir_tensors_free(alloc_tensor(MIB, B))); /* makes several streams known */
    for (int i = 0; i < BLOCKS; i++) {
        OK(weir_tensors_alloc(t, bytes, bytes, A, 1, NULL, &blocks[i]));
        use_tensor_block(A, blocks[i], bytes, (uint64_t)i + 1);
    }
    begin_pool_capture(A);
    for (int i = 0; i < BLOCKS; i++)
        OK(weir_tensors_free(blocks[i]));
    for (int i = 0; i < BLOCKS; i++) {
        block = alloc_tensor(bytes, B);
        use_tensor_block(B, block, bytes, (uint64_t)i + 1000);
        OK(weir_tensors_free(block));
    }
    captured = end_pool_capture(A);
    CU(driver->cuGraphInstantiateWithFlags(&ready, captured, 0));
    CU(driver->cuGraphLaunch(ready, A));
    for (int i = 0; i < BLOCKS; i++) {
        OK(weir_tensors_alloc(t, bytes, bytes, i % 2 ? A : B, i % 2, NULL, &blocks[i]));
        use_tensor_block(i % 2 ? A : B, blocks[i], bytes, (uint64_t)i + 2000);
    }
    for (int i = 0; i < BLOCKS; i++)
        OK(weir_tensors_free(blocks[i]));
    CU(driver->cuGraphExecDestroy(ready));
    CU(driver->cuGraphDestroy(captured));
}

SUITE("tensor order", CK_FORK);
