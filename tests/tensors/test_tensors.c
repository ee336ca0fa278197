/* SPDX-License-Identifier: MIT */
/* test_tensors.c: memory of tensors on the device model: frees without a stream, private pools, checkpoints, figures.
 */
#include "tests/fixtures/tensors.h"

/* ---- blocks ------------------------------------------------------------------------------------- */

CASE("blocks", 30, begin_tensors, end_tensors);

TEST(a_free_goes_to_the_stream_of_the_request) {
    void *block, *again;

    block = alloc_tensor(4 * MIB, A);
    use_tensor_block(A, block, 4 * MIB, 1);
    OK(weir_tensors_free(block));
    again = alloc_tensor(4 * MIB, A);
    MUST_EQ((uintptr_t)again, (uintptr_t)block); /* ordered by the stream itself */
    use_tensor_block(A, again, 4 * MIB, 2);
    OK(weir_tensors_free(again));
    block = alloc_tensor(4 * MIB, B);
    use_tensor_block(B, block, 4 * MIB, 3);
    OK(weir_tensors_free(block));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_free(block));
    OK(weir_tensors_free(NULL));
}

TEST(a_block_that_another_stream_uses_waits_for_it) {
    void *block, *again;

    for (size_t bytes = 4 * KIB; bytes <= 4 * MIB; bytes *= 32) {
        block = alloc_tensor(bytes, A);
        use_tensor_block(B, block, bytes, 1);
        OK(weir_tensors_use(block, B));
        OK(weir_tensors_use(block, A)); /* its own stream: no wait */
        OK(weir_tensors_free(block));
        again = alloc_tensor(bytes, A);
        use_tensor_block(A, again, bytes, 2);
        OK(weir_tensors_free(again));
    }
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_use(block, B));
}

TEST(a_stream_that_is_gone_is_no_harm) {
    CUstream gone;
    void *block, *used;

    CU(driver->cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    block = alloc_tensor(MIB, gone);
    used = alloc_tensor(MIB, A);
    OK(weir_tensors_use(used, gone));
    CU(driver->cuStreamDestroy(gone));
    OK(weir_tensors_free(block));
    OK(weir_tensors_free(used));
    MUST_EQ(tensor_figures().allocation[0].current, 0);
}

TEST(figures_are_those_of_the_blocks) {
    weir_tensors_figures f;
    void *one, *two;

    OK(weir_tensors_alloc(t, 1024, 700, A, 1, NULL, &one));
    OK(weir_tensors_alloc(t, 3 * MIB, 3 * MIB, A, 1, NULL, &two));
    f = tensor_figures();
    MUST_EQ(f.allocation[0].current, 2);
    MUST_EQ(f.allocated_bytes[0].current, 3 * MIB + 1024);
    MUST_EQ(f.requested_bytes[0].current, 3 * MIB + 700);
    MUST_EQ(f.active_bytes[0].current, f.allocated_bytes[0].current);
    MUST_EQ(f.allocated_bytes[1].current, 1024);
    MUST_EQ(f.allocated_bytes[2].current, 3 * MIB);
    MUST_EQ(f.reserved_bytes[1].current + f.reserved_bytes[2].current, f.reserved_bytes[0].current);
    MUST_LE(f.allocated_bytes[0].current, f.reserved_bytes[0].current);
    OK(weir_tensors_free(two));
    f = tensor_figures();
    MUST_EQ(f.allocated_bytes[0].current, 1024);
    MUST_EQ(f.allocated_bytes[0].peak, 3 * MIB + 1024);
    MUST_EQ(f.allocated_bytes[0].allocated, 3 * MIB + 1024);
    MUST_EQ(f.allocated_bytes[0].freed, 3 * MIB);
    OK(weir_tensors_reset_peaks(t));
    OK(weir_tensors_reset_sums(t));
    f = tensor_figures();
    MUST_EQ(f.allocated_bytes[0].peak, 1024);
    MUST_EQ(f.allocated_bytes[0].allocated, 0);
    MUST_EQ(f.device_allocs, 0);
    OK(weir_tensors_free(one));
    OK(weir_tensors_trim(t, none));
    f = tensor_figures();
    MUST_EQ(f.reserved_bytes[0].current, 0);
    MUST_LE(1, f.reserved_bytes[0].peak);
    OK(weir_tensors_reset_peaks(t));
    MUST_EQ(tensor_figures().reserved_bytes[0].peak, 0);
    MUST_EQ(events[WEIR_TENSORS_ALLOC], 2);
    MUST_EQ(events[WEIR_TENSORS_FREE_REQUESTED], 2);
    MUST_EQ(events[WEIR_TENSORS_FREE_COMPLETED], 2);
    MUST_LE(1, events[WEIR_TENSORS_SEGMENT_MAP]);
}

TEST(a_note_stays_with_its_block) {
    weir_tensors_block found;
    weir_tensors *whose;
    int note;
    void *block;

    OK(weir_tensors_alloc(t, 1024, 1000, A, 0, &note, &block));
    OK(weir_tensors_find(block, &whose, &found));
    MUST(whose == t && found.note == &note && found.stream == A);
    MUST_EQ(found.requested, 1000);
    MUST_EQ(drops, 0);
    OK(weir_tensors_free(block));
    MUST_EQ(drops, 1);
    MUST(last_note == &note);
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_find(block, &whose, &found));
}

CASE("blocks", 30, NULL, end_tensors);

TEST(a_failure_is_counted_and_told) {
    void *block = &block;
    int note;

    begin_tensors_with("64MiB");
    EXPECT(WEIR_E_LIMIT, weir_tensors_alloc(t, 65 * MIB, 65 * MIB, A, 0, &note, &block));
    MUST(block == &block);
    MUST_EQ(tensor_figures().ooms, 1);
    MUST_EQ(events[WEIR_TENSORS_OOM], 1);
    MUST_EQ(drops, 0);
    MUST_EQ(tensor_figures().allocation[0].current, 0);
    OK(weir_tensors_free(alloc_tensor(32 * MIB, A)));
}

/* ---- pools -------------------------------------------------------------------------------------- */

CASE("pools", 30, begin_tensors, end_tensors);

TEST(a_capture_has_memory_of_its_pool) {
    void *before, *a, *b, *elsewhere;
    CUgraph captured;
    CUgraphExec ready;

    before = alloc_tensor(MIB, A);
    OK(weir_tensors_free(before));
    begin_pool_capture(A);
    a = alloc_tensor(MIB, A);
    MUST((uintptr_t)a != (uintptr_t)before);
    use_tensor_block(A, a, MIB, 1);
    OK(weir_tensors_free(a));
    b = alloc_tensor(MIB, A); /* one stream, one capture */
    MUST_EQ((uintptr_t)b, (uintptr_t)a);
    use_tensor_block(A, b, MIB, 2);
    elsewhere = alloc_tensor(MIB, B); /* a stream without a capture */
    MUST((uintptr_t)elsewhere != (uintptr_t)b);
    use_tensor_block(B, elsewhere, MIB, 3);
    OK(weir_tensors_free(b));
    captured = end_pool_capture(A);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 0); /* no allocation nodes */
    CU(driver->cuGraphInstantiateWithFlags(&ready, captured, 0));
    for (int i = 0; i < 100; i++) {
        void *block = alloc_tensor(MIB, A);

        use_tensor_block(A, block, MIB, 4);
        CU(driver->cuGraphLaunch(ready, A));
        MUST((uintptr_t)block != (uintptr_t)b); /* belongs to the graph */
        OK(weir_tensors_free(block));
    }
    OK(weir_tensors_free(elsewhere));
    CU(driver->cuGraphExecDestroy(ready));
    CU(driver->cuGraphDestroy(captured));
}

TEST(a_free_that_waits_for_a_captured_stream_comes_with_its_end) {
    void *block, *other_block, *shared;
    CUevent fork;

    CU(driver->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    shared = alloc_tensor(MIB, C);
    begin_pool_capture(A);
    block = alloc_tensor(MIB, A);
    CU(driver->cuEventRecord(fork, A));
    CU(driver->cuStreamWaitEvent(B, fork, 0));
    OK(weir_tensors_use(block, B));
    OK(weir_tensors_use(shared, B));
    OK(weir_tensors_free(block));
    OK(weir_tensors_free(shared));
    MUST_EQ(tensor_figures().active[0].current, 2);
    MUST_EQ(tensor_figures().allocation[0].current, 0);
    other_block = alloc_tensor(MIB, A);
    MUST((uintptr_t)other_block != (uintptr_t)block);
    CU(driver->cuEventRecord(fork, B));
    CU(driver->cuStreamWaitEvent(A, fork, 0));
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    OK(weir_tensors_free(other_block));
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(alloc_tensor(MIB, A)));
    MUST_EQ(tensor_figures().active[0].current, 0);
}

TEST(a_pool_needs_no_capture) {
    int on = 1;
    void *a, *b;

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_begin(t, other, always, &on));
    EXPECT(WEIR_E_BUSY, weir_tensors_begin(t, other, always, &on));
    a = alloc_tensor(MIB, A);
    OK(weir_tensors_use(a, B));
    use_tensor_block(B, a, MIB, 1);
    OK(weir_tensors_free(a));
    b = alloc_tensor(MIB, A); /* B is still at work */
    MUST((uintptr_t)b != (uintptr_t)a);
    use_tensor_block(A, b, MIB, 2);
    OK(weir_tensors_free(b));
    CU(driver->cuCtxSynchronize());
    on = 0;
    a = alloc_tensor(MIB, A);
    MUST((uintptr_t)a != (uintptr_t)b);
    OK(weir_tensors_free(a));
    OK(weir_tensors_end(t, other, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_end(t, other, NULL));
}

TEST(a_pool_goes_with_its_last_user) {
    int users;
    void *block;

    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, graph, &users));
    begin_pool_capture(A);
    OK(weir_tensors_pool_open(t, graph, NULL));
    OK(weir_tensors_pool_users(t, graph, &users));
    MUST_EQ(users, 2);
    block = alloc_tensor(5 * MIB, A);
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    OK(weir_tensors_free(block));
    OK(weir_tensors_pool_close(t, graph));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().segment[0].current, 2); /* the pool has a user */
    OK(weir_tensors_pool_close(t, graph));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_close(t, graph));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
    MUST_EQ(tensor_figures().segment[0].current, 0);
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, graph, &users));
}

TEST(blocks_outlive_their_pool) {
    weir_tensors_block found;
    weir_tensors *whose;
    void *block[3];

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_begin(t, other, always, NULL));
    for (int i = 0; i < 3; i++)
        block[i] = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, other));
    for (int i = 0; i < 3; i++) {
        use_tensor_block(A, block[i], 4 * MIB, (uint64_t)i + 1);
        OK(weir_tensors_free(block[i]));
        OK(weir_tensors_trim(t, other));
    }
    OK(weir_tensors_trim(t, none));
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
    OK(weir_tensors_pool_open(t, graph,
                              NULL)); /* may get the host memory of the old pool's record */
    block[0] = alloc_tensor(4 * MIB, A);
    OK(weir_tensors_find(block[0], &whose, &found));
    MUST(found.pool.first == 0 && found.pool.second == 0);
    OK(weir_tensors_free(block[0]));
}

CASE("pools", 30, NULL, end_tensors);

/* Requests where the branches of a capture could share memory.  In all but the first two rows nothing else is free. */
static const struct branch {
    const char *limit;
    int lasts;             /* streams are never destroyed */
    int is_older;          /* the block is older than the capture */
    int follows_a_capture; /* an older capture left enough memory, if joined */
    int lacks_ids;         /* the driver has no ids */
} branches[] = {{NULL, 0, 0, 0, 0},     {NULL, 1, 0, 0, 0},     {"100MiB", 0, 0, 0, 0},
                {"100MiB", 1, 0, 0, 0}, {"100MiB", 0, 1, 0, 0}, {NULL, 0, 0, 1, 0},
                {"100MiB", 0, 0, 0, 1}, {NULL, 0, 1, 0, 1},     {"100MiB", 0, 1, 0, 1}};
enum { BRANCHES = sizeof branches / sizeof *branches };

static void *take_as(const struct branch *from, size_t bytes, CUstream stream) {
    void *block = NULL;
    weir_status status = weir_tensors_alloc(t, bytes, bytes, stream, from->lasts, NULL, &block);

    ck_assert_int_eq(status, block ? WEIR_OK : WEIR_E_LIMIT);
    return block;
}

/* The oracle sees no fault, since the model runs the branches of a graph one after the other. */
TEST_EACH(BRANCHES, other_streams_of_a_capture_have_other_memory) {
    const struct branch *from = &branches[_i];
    size_t bytes = (from->follows_a_capture ? 32 : 64) * MIB;
    void *a = NULL, *b, *left;
    CUevent fork;

    (from->lacks_ids ? begin_without_ids : begin_tensors_with)(from->limit);
    CU(driver->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    if (from->follows_a_capture) {
        begin_pool_capture(A);
        left = alloc_tensor(bytes, A);
        OK(weir_tensors_free(alloc_tensor(bytes, A)));
        CU(driver->cuGraphDestroy(end_pool_capture(A)));
        OK(weir_tensors_free(left));
    }
    if (from->is_older) {
        OK(weir_tensors_pool_open(t, graph, NULL));
        OK(weir_tensors_begin(t, graph, always, NULL));
        a = alloc_tensor(bytes, A);
        OK(weir_tensors_end(t, graph, NULL));
    }
    begin_pool_capture(A);
    if (!a)
        a = take_as(from, bytes, A);
    use_tensor_block(A, a, bytes, 1);
    CU(driver->cuEventRecord(fork, A));
    CU(driver->cuStreamWaitEvent(B, fork, 0));
    OK(weir_tensors_free(a));
    b = take_as(from, 64 * MIB, B);
    MUST_EQ(b == NULL, from->limit != NULL);
    MUST(!b || (uintptr_t)b + 64 * MIB <= (uintptr_t)a || (uintptr_t)a + bytes <= (uintptr_t)b);
    OK(weir_tensors_free(b));
    CU(driver->cuEventRecord(fork, B));
    CU(driver->cuStreamWaitEvent(A, fork, 0));
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
}

TEST(what_a_pool_without_users_has_serves_a_request_that_fails) {
    void *block;

    begin_tensors_with("64MiB");
    begin_pool_capture(A);
    block = alloc_tensor(40 * MIB, A);
    OK(weir_tensors_free(block));
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    OK(weir_tensors_pool_lend(t, graph, 0));
    EXPECT(WEIR_E_LIMIT, weir_tensors_alloc(t, 40 * MIB, 40 * MIB, A, 0, NULL, &block));
    OK(weir_tensors_pool_lend(t, graph, 1));
    block = alloc_tensor(40 * MIB, A); /* borrowed */
    OK(weir_tensors_free(block));
    OK(weir_tensors_pool_lend(t, graph, 0));
    OK(weir_tensors_pool_close(t, graph));
    block = alloc_tensor(40 * MIB, A); /* the pool is gone */
    OK(weir_tensors_free(block));
    MUST_EQ(tensor_figures().ooms, 1);
}

CASE("pools", 30, begin_tensors, end_tensors);

TEST(an_undivided_segment_holds_one_block) {
    void *large, *small;

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_pool_whole(t, other));
    OK(weir_tensors_begin(t, other, always, NULL));
    large = alloc_tensor(8 * MIB, A);
    OK(weir_tensors_free(large));
    small = alloc_tensor(MIB, A);
    MUST_EQ((uintptr_t)small, (uintptr_t)large);
    large = alloc_tensor(8 * MIB, A);
    MUST((uintptr_t)large >= (uintptr_t)small + 8 * MIB || (uintptr_t)large < (uintptr_t)small);
    OK(weir_tensors_free(large));
    OK(weir_tensors_free(small));
    OK(weir_tensors_end(t, other, NULL));
}

/* The smallest segment that holds the block serves, at any address. */
TEST(segments_that_are_not_divided_serve_by_size) {
    static const size_t sizes[] = {2 * MIB, 8 * MIB, MIB, 8 * MIB, 2 * MIB};
    void *blocks[5], *found;

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_pool_whole(t, other));
    OK(weir_tensors_begin(t, other, always, NULL));
    for (int i = 0; i < 5; i++)
        blocks[i] = alloc_tensor(sizes[i], A);
    for (int i = 0; i < 5; i++)
        OK(weir_tensors_free(blocks[i]));
    found = alloc_tensor(4 * MIB, A);
    MUST(found == blocks[1] || found == blocks[3]);
    MUST(alloc_tensor(512 * KIB, A) == blocks[2]);
    OK(weir_tensors_end(t, other, NULL));
}

static void *given;
static int source_ends;

static void free_given_segment(void *context, void *segment) {
    (void)context;
    given = segment;
    CU(driver->cuMemFree((uintptr_t)segment));
}

static void count_source_end(void *context) {
    source_ends += *(int *)context;
}

/* Frees the pool's only block, and both its users leave. */
static void leave_pool(void *block) {
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_trim(t, none));
}

TEST(a_pool_may_have_memory_from_elsewhere) {
    int one = 1;
    weir_tensors_source source = {&one, alloc_segment, free_given_segment, count_source_end};
    weir_tensors_figures f;
    void *block;

    OK(weir_tensors_pool_open(t, other, &source));
    OK(weir_tensors_pool_open(t, other, &source));
    MUST_EQ(source_ends, 1); /* the second source is not needed */
    OK(weir_tensors_begin(t, other, always, NULL));
    block = alloc_tensor(3 * MIB, A);
    f = tensor_figures();
    MUST_EQ(f.reserved_bytes[0].current, 4 * MIB);
    MUST_EQ(f.segment[0].current, 1);
    leave_pool(block);
    MUST_EQ((uintptr_t)given, (uintptr_t)block);
    MUST_EQ(source_ends, 2);
    MUST_EQ(tensor_figures().reserved_bytes[0].current, 0);
    MUST_EQ(tensor_figures().reserved_bytes[0].freed, 4 * MIB);
}

TEST(a_later_source_still_serves_the_pool) {
    int one = 1, before = source_ends;
    weir_tensors_source source = {&one, alloc_segment, free_given_segment, count_source_end};
    void *block;

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_pool_open(t, other, &source));
    MUST_EQ(source_ends, before);
    OK(weir_tensors_begin(t, other, always, NULL));
    block = alloc_tensor(3 * MIB, A);
    leave_pool(block);
    MUST_EQ((uintptr_t)given, (uintptr_t)block);
    MUST_EQ(source_ends, before + 1);

    OK(weir_tensors_pool_open(t, other, NULL));
    OK(weir_tensors_begin(t, other, always, NULL));
    block = alloc_tensor(3 * MIB, A);
    OK(weir_tensors_pool_open(t, other, &source)); /* too late, since it has a segment */
    MUST_EQ(source_ends, before + 2);
    leave_pool(block);
    MUST_EQ(source_ends, before + 2);
}

/* ---- checkpoints -------------------------------------------------------------------------------- */

enum { MOST = 64 };
static void *freed[MOST], *made[MOST];
static size_t freed_count, made_count;

static void on_freed(void *context, void *block) {
    (void)context;
    freed[freed_count++] = block;
}

static void keep_made_block(void *context, void *block) {
    (void)context;
    made[made_count++] = block;
}

static int is_among(void *const *list, size_t count, const void *block) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == block)
            return 1;
    return 0;
}

CASE("states", 30, begin_tensors, end_tensors);

TEST(a_pool_comes_back_to_a_state) {
    weir_tensors_state *state;
    void *block[8], *later[3], *expected[4];
    int same;

    OK(weir_tensors_pool_open(t, graph, NULL));
    OK(weir_tensors_begin(t, graph, always, NULL));
    for (int i = 0; i < 8; i++)
        block[i] = alloc_tensor((size_t)(i + 1) * 700 * KIB, i % 3 == 2 ? C : A);
    for (int i = 0; i < 8; i += 2)
        OK(weir_tensors_free(block[i]));
    OK(weir_tensors_save(t, graph, &state));
    OK(weir_tensors_free(block[1]));
    OK(weir_tensors_free(block[5]));
    for (int i = 0; i < 3; i++)
        later[i] = alloc_tensor((size_t)(i + 2) * MIB, A);
    alloc_tensor(60 * MIB, A); /* a segment that is not in the state */
    OK(weir_tensors_end(t, graph, NULL));
    OK(weir_tensors_restore(t, state, on_freed, keep_made_block, NULL));
    MUST_EQ(freed_count, 6);
    MUST_EQ(made_count, 4);
    for (int i = 0; i < 3; i++)
        MUST(is_among(freed, freed_count, later[i]));
    for (int i = 1, at = 0; i < 8; i += 2, at++) {
        MUST(is_among(made, made_count, block[i]));
        expected[at] = block[i];
    }
    OK(weir_tensors_pool_is(t, graph, expected, 4, &same));
    MUST(same);
    OK(weir_tensors_pool_is(t, graph, expected, 3, &same));
    MUST(!same);
    expected[3] = block[0];
    OK(weir_tensors_pool_is(t, graph, expected, 4, &same));
    MUST(!same);
    MUST_EQ(tensor_figures().allocation[0].current, 4);
    /* Memory that was free in the state is free again, and live blocks are not handed out. */
    OK(weir_tensors_begin(t, graph, always, NULL));
    for (int i = 0; i < 20; i++)
        MUST(!is_among(made, made_count, alloc_tensor(300 * KIB, A)));
    OK(weir_tensors_end(t, graph, NULL));
    /* A state can be restored any number of times. */
    freed_count = made_count = 0;
    OK(weir_tensors_restore(t, state, on_freed, keep_made_block, NULL));
    MUST_EQ(freed_count, 24);
    MUST_EQ(made_count, 4);
    for (size_t i = 0; i < made_count; i++)
        OK(weir_tensors_free(made[i]));
    weir_tensors_state_destroy(state);
    weir_tensors_state_destroy(NULL);
}

TEST(a_state_whose_segments_have_gone) {
    weir_tensors_state *state;
    void *block;

    begin_pool_capture(A);
    block = alloc_tensor(MIB, A);
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    OK(weir_tensors_save(t, graph, &state));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_save(t, other, &state));
    OK(weir_tensors_free(block));
    OK(weir_tensors_pool_close(t, graph));
    OK(weir_tensors_trim(t, graph));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_restore(t, state, on_freed, keep_made_block, NULL));
    OK(weir_tensors_pool_open(t, graph, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_restore(t, state, on_freed, keep_made_block, NULL));
    OK(weir_tensors_pool_close(t, graph));
    weir_tensors_state_destroy(state);
}

/* ---- the list ----------------------------------------------------------------------------------- */

struct sums {
    uint64_t allocated, pending, free, reserved, segment, blocks, pools;
    uint64_t end; /* end of the last piece in the segment */
};

static void sum_segments(void *context, const weir_tensors_block *block) {
    struct sums *s = context;

    if (block->segment != s->segment) {
        s->reserved += block->segment_bytes;
        s->segment = block->segment;
        s->end = block->segment;
        s->pools += block->pool.first != 0 || block->pool.second != 0;
    }
    MUST_EQ(block->address, s->end); /* pieces tile their segment */
    s->end += block->bytes;
    MUST_LE(s->end, block->segment + block->segment_bytes);
    s->free += block->is_free ? block->bytes : 0;
    s->pending += block->is_pending ? block->bytes : 0;
    s->allocated += block->is_free || block->is_pending ? 0 : block->bytes;
    s->blocks += !block->is_free && !block->is_pending;
}

TEST(the_list_agrees_with_the_figures) {
    struct sums all = {0}, of_pool = {0};
    weir_tensors_figures f;
    uint64_t seed = 7;
    void *block[200], *pending;

    OK(weir_tensors_pool_open(t, other, NULL));
    for (int i = 0; i < 200; i++) {
        if (i == 100)
            OK(weir_tensors_begin(t, other, always, NULL));
        block[i] = alloc_tensor(random_size(&seed, 9 * MIB) / 512 * 512 + 512, i % 2 ? A : B);
    }
    pending = alloc_tensor(2 * MIB, A);
    use_tensor_block(B, pending, 2 * MIB, 1);
    OK(weir_tensors_use(pending, B));
    OK(weir_tensors_free(pending));
    OK(weir_tensors_end(t, other, NULL));
    for (int i = 0; i < 200; i += 3)
        OK(weir_tensors_free(block[i]));
    OK(weir_tensors_visit(t, none, sum_segments, &all));
    f = tensor_figures();
    MUST_EQ(all.allocated, (uint64_t)f.allocated_bytes[0].current);
    MUST_EQ(all.allocated + all.pending, (uint64_t)f.active_bytes[0].current);
    MUST_EQ(all.blocks, (uint64_t)f.allocation[0].current);
    MUST_EQ(all.reserved, (uint64_t)f.reserved_bytes[0].current);
    MUST_EQ(all.pending, 2 * MIB);
    OK(weir_tensors_visit(t, other, sum_segments, &of_pool));
    MUST_EQ(of_pool.pools, all.pools);
    MUST_EQ(of_pool.blocks, 67);
}

CASE("blocks", 30, begin_tensors, end_tensors);

TEST(wrong_calls_are_refused) {
    void *block;
    int same;

    EXPECT(WEIR_E_INVALID, weir_tensors_open(0, NULL, NULL));
    EXPECT(WEIR_E_NO_DEVICE, weir_tensors_open(64, NULL, &t));
    EXPECT(WEIR_E_INVALID, weir_tensors_alloc(NULL, 1, 1, A, 0, NULL, &block));
    EXPECT(WEIR_E_INVALID, weir_tensors_pool_open(t, none, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_begin(t, graph, always, NULL));
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_is(t, none, NULL, 0, &same));
    EXPECT(WEIR_E_INVALID, weir_tensors_begin(t, graph, NULL, NULL));
    OK(weir_tensors_alloc(t, 0, 0, A, 0, NULL, &block));
    MUST(block == NULL);
    MUST(weir_tensors_allocator(t) != NULL && weir_tensors_allocator(NULL) == NULL);
}

SUITE("tensors", CK_FORK);
