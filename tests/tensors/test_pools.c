/* SPDX-License-Identifier: MIT */
/* test_pools.c: the memory of a pool is one piece: growth joins free memory at its end, addresses stay, and requests
 * whose memory cannot join succeed, too. */
#include <weir/share.h>

#include "ipc/memory_text.h"
#include "tests/fixtures/tensors.h"

static int on = 1;

static void open_watched_route(weir_tensors_id id) {
    OK(weir_tensors_pool_open(t, id, NULL));
    OK(weir_tensors_begin(t, id, always, &on));
}

static void close_pool(weir_tensors_id id) {
    OK(weir_tensors_end(t, id, NULL));
    OK(weir_tensors_pool_close(t, id));
}

/* The segments of a pool, in the order of the list. */
struct segments {
    uint64_t base[16];
    size_t count, bytes, largest;
};

static void see_segment(void *context, const weir_tensors_block *block) {
    struct segments *s = context;

    if (s->count > 0 && s->base[s->count - 1] == block->segment)
        return;
    s->base[s->count++] = block->segment;
    s->bytes += block->segment_bytes;
    if (block->segment_bytes > s->largest)
        s->largest = block->segment_bytes;
}

static struct segments segments_of(weir_tensors_id id) {
    struct segments s = {0};

    OK(weir_tensors_visit(t, id, see_segment, &s));
    return s;
}

/* The reserved bytes of one pool, and the number of pools with its id in weir_tensors_pools. */
struct listed {
    weir_tensors_id id;
    weir_tensors_figure bytes[3];
    int count;
};

static void see_reserved(void *context, weir_tensors_id id, const weir_tensors_figure bytes[3]) {
    struct listed *l = context;

    if (id.first != l->id.first || id.second != l->id.second)
        return;
    memcpy(l->bytes, bytes, sizeof l->bytes);
    l->count++;
}

static struct listed listed_as(weir_tensors_id id) {
    struct listed l = {.id = id};

    OK(weir_tensors_pools(t, see_reserved, &l));
    return l;
}

static void all_goes_back(void) {
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_trim(t, none));
    MUST_EQ(reserved_bytes(), 0);
    MUST_EQ(tensor_figures().segment[0].current, 0);
    MUST_EQ(grown, 0);
}

CASE("joined", 30, begin_tensors, end_tensors);

/* The figures of a pool are those of its segments, and outlive the pool until a reset. */
TEST(each_pool_has_figures_of_its_own) {
    struct listed l = listed_as(graph);
    int64_t held;

    MUST_EQ(l.count, 0);
    open_watched_route(graph);
    OK(weir_tensors_free(alloc_tensor(10 * MIB, A)));
    OK(weir_tensors_free(alloc_tensor(1000, A)));
    l = listed_as(graph);
    held = l.bytes[0].current;
    MUST_EQ(l.count, 1);
    MUST_EQ((size_t)held, segments_of(graph).bytes);
    MUST_EQ(l.bytes[1].current + l.bytes[2].current, held);
    MUST_EQ(l.bytes[2].current >= (int64_t)(10 * MIB), 1);
    close_pool(graph);
    all_goes_back();
    l = listed_as(graph);
    MUST_EQ(l.count, 1);
    MUST_EQ(l.bytes[0].current, 0);
    MUST_EQ(l.bytes[0].peak, held);
    MUST_EQ(l.bytes[0].freed, held);
    open_watched_route(graph); /* the id is used again */
    OK(weir_tensors_free(alloc_tensor(10 * MIB, A)));
    MUST_EQ(listed_as(graph).count, 1);
    MUST_EQ(listed_as(graph).bytes[0].allocated > held, 1);
    OK(weir_tensors_reset_peaks(t));
    MUST_EQ(listed_as(graph).bytes[0].peak, listed_as(graph).bytes[0].current);
    close_pool(graph);
    all_goes_back();
    OK(weir_tensors_reset_sums(t));
    MUST_EQ(listed_as(graph).count, 0);
}

/* The pool has one stream, or (_i) another stream had blocks before. */
TEST_EACH(2, growth_joins_what_is_free_at_the_end) {
    void *first, *last, *large;
    size_t before;

    open_watched_route(graph);
    first = alloc_tensor(10 * MIB, A);
    if (_i)
        OK(weir_tensors_free(alloc_tensor(2 * MIB, B)));
    last = alloc_tensor(6 * MIB, A);
    use_tensor_block(A, last, 6 * MIB, 1);
    OK(weir_tensors_free(last));
    before = reserved_bytes();
    large = alloc_tensor(40 * MIB, A);
    use_tensor_block(A, large, 40 * MIB, 2);
    MUST_LE(reserved_bytes(), before + 34 * MIB);
    MUST_EQ(segments_of(graph).count, 1);
    OK(weir_tensors_free(first));
    OK(weir_tensors_free(large));
    before = reserved_bytes();
    large = alloc_tensor(50 * MIB, A); /* more than any growth before */
    use_tensor_block(A, large, 50 * MIB, 3);
    MUST_LE(reserved_bytes(), before + (_i ? 10 * MIB : 0)); /* memory that B freed cannot join */
    OK(weir_tensors_free(large));
    close_pool(graph);
    all_goes_back();
}

TEST(blocks_of_up_to_a_mebibyte_lie_apart) {
    open_watched_route(graph);
    (void)alloc_tensor(MIB, A);
    (void)alloc_tensor(MIB + 512, A);
    MUST_EQ(segments_of(graph).count, 2);
    OK(weir_tensors_end(t, graph, NULL));
}

TEST(growth_is_a_share_of_the_pool) {
    open_watched_route(graph);
    (void)alloc_tensor(1024 * MIB, A);
    (void)alloc_tensor(2 * MIB, A);
    MUST_EQ(reserved_bytes(), (1024 + 8) * MIB);
    MUST_EQ(segments_of(graph).count, 1);
    OK(weir_tensors_end(t, graph, NULL));
}

TEST(what_another_stream_freed_at_the_end_is_not_counted_on) {
    void *block;

    open_watched_route(graph);
    (void)alloc_tensor(4 * MIB, A);
    block = alloc_tensor(8 * MIB, B);
    use_tensor_block(B, block, 8 * MIB, 1);
    OK(weir_tensors_free(block));
    block = alloc_tensor(12 * MIB, A);
    use_tensor_block(A, block, 12 * MIB, 2);
    MUST_EQ(reserved_bytes(), 24 * MIB);
    MUST_EQ(segments_of(graph).count, 1);
    OK(weir_tensors_end(t, graph, NULL));
}

CASE("joined", 30, NULL, end_tensors);

/* Other requests allocate shared memory in between. */
TEST(pools_may_grow_in_turns) {
    enum { ROUNDS = 12 };

    void *blocks[2][ROUNDS], *shared[ROUNDS], *large;
    size_t before;

    begin_tensors();
    for (int i = 0; i < ROUNDS; i++)
        for (int p = 0; p < 2; p++) {
            open_watched_route(p ? other : graph);
            blocks[p][i] = alloc_tensor((size_t)(5 + i % 3) * MIB, A);
            use_tensor_block(A, blocks[p][i], 5 * MIB, (uint64_t)(2 * i + p + 1));
            OK(weir_tensors_end(t, p ? other : graph, NULL));
            if (p)
                shared[i] = alloc_tensor(7 * MIB, A);
        }
    MUST_EQ(segments_of(graph).count, 1);
    MUST_EQ(segments_of(other).count, 1);
    MUST_EQ(segments_of(other).bytes, 72 * MIB);
    MUST_EQ(tensor_figures().segment[0].current, 3);
    for (int i = 0; i < ROUNDS; i++)
        OK(weir_tensors_free(blocks[1][i]));
    before = reserved_bytes();
    OK(weir_tensors_begin(t, other, always, &on));
    large = alloc_tensor(72 * MIB, A);
    MUST_EQ((uintptr_t)large, (uintptr_t)blocks[1][0]);
    MUST_EQ(reserved_bytes(), before);
    use_tensor_block(A, large, 72 * MIB, 100);
    OK(weir_tensors_free(large));
    OK(weir_tensors_end(t, other, NULL));
    for (int i = 0; i < ROUNDS; i++) {
        OK(weir_tensors_free(blocks[0][i]));
        OK(weir_tensors_free(shared[i]));
        OK(weir_tensors_pool_close(t, graph));
        OK(weir_tensors_pool_close(t, other));
    }
    all_goes_back();
}

CASE("joined", 30, begin_tensors, end_tensors);

TEST(a_small_block_keeps_no_large_ones_apart) {
    void *large[4], *small[4];
    size_t before;

    open_watched_route(graph);
    for (int i = 0; i < 4; i++) {
        large[i] = alloc_tensor(16 * MIB, A);
        small[i] = alloc_tensor(KIB, A);
    }
    for (int i = 0; i < 4; i++)
        OK(weir_tensors_free(large[i]));
    before = reserved_bytes();
    large[0] = alloc_tensor(64 * MIB, A);
    MUST_EQ(reserved_bytes(), before);
    use_tensor_block(A, large[0], 64 * MIB, 1);
    for (int i = 0; i < 4; i++)
        use_tensor_block(A, small[i], KIB, (uint64_t)i + 2);
    OK(weir_tensors_end(t, graph, NULL));
}

static void *made[8];
static size_t made_count;

static void add_made_block(void *context, void *block) {
    (void)context;
    made[made_count++] = block;
}

TEST(addresses_stay_after_trims_and_checkpoints) {
    weir_tensors_state *state;
    void *block[4], *small, *again;
    int same;

    open_watched_route(graph);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_tensor(3 * MIB, A); /* across the borders of growth */
    small = alloc_tensor(KIB, A);
    OK(weir_tensors_free(block[1]));
    OK(weir_tensors_save(t, graph, &state));
    OK(weir_tensors_free(block[3]));
    (void)alloc_tensor(20 * MIB, A);
    OK(weir_tensors_free(block[0]));
    OK(weir_tensors_free(block[2]));
    OK(weir_tensors_free(small));
    OK(weir_tensors_trim(t, none));
    MUST_EQ(segments_of(graph).count, 2); /* one of large, one of small blocks */
    for (int i = 0; i < 2; i++) {
        made_count = 0;
        OK(weir_tensors_restore(t, state, NULL, add_made_block, NULL));
        MUST_EQ(made_count, 4);
        OK(weir_tensors_pool_is(t, graph, (void *[]){block[0], block[2], block[3], small}, 4,
                                &same));
        MUST(same);
        again = alloc_tensor(3 * MIB, A);
        MUST_EQ((uintptr_t)again, (uintptr_t)block[1]);
        again = alloc_tensor(17 * MIB, A);
        MUST_EQ((uintptr_t)again, (uintptr_t)block[3] + 3 * MIB);
    }
    for (int i = 0; i < 4; i++)
        use_tensor_block(A, block[i], 3 * MIB, (uint64_t)i + 1);
    weir_tensors_state_destroy(state);
    OK(weir_tensors_end(t, graph, NULL));
}

/* A restored checkpoint leaves the free memory of one stream in one piece. */
TEST(what_is_free_joins_after_a_checkpoint) {
    weir_tensors_state *state;
    void *block[4];
    size_t before;

    open_watched_route(graph);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_tensor(6 * MIB, A);
    OK(weir_tensors_free(block[3]));
    OK(weir_tensors_save(t, graph, &state));
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    OK(weir_tensors_free(block[2]));
    before = reserved_bytes();
    block[2] = alloc_tensor(12 * MIB, A);
    MUST_EQ(reserved_bytes(), before);
    use_tensor_block(A, block[2], 12 * MIB, 1);
    weir_tensors_state_destroy(state);
    OK(weir_tensors_end(t, graph, NULL));
}

TEST(a_trim_gives_back_what_is_idle_around_a_block) {
    void *block[6];
    size_t before;

    open_watched_route(graph);
    for (int i = 0; i < 6; i++)
        block[i] = alloc_tensor(10 * MIB, A);
    for (int i = 0; i < 6; i++)
        if (i != 2)
            OK(weir_tensors_free(block[i]));
    close_pool(graph);
    OK(weir_tensors_trim(t, none));
    MUST_LE(reserved_bytes(), 12 * MIB);
    MUST_EQ(segments_of(graph).count, 1);
    use_tensor_block(A, block[2], 10 * MIB, 1);
    open_watched_route(graph); /* grows behind it */
    before = reserved_bytes();
    block[0] = alloc_tensor(20 * MIB, A);
    MUST_LE(reserved_bytes(), before + 20 * MIB);
    use_tensor_block(A, block[0], 20 * MIB, 2);
    MUST_EQ(segments_of(graph).count, 1);
    OK(weir_tensors_free(block[0]));
    OK(weir_tensors_free(block[2]));
    close_pool(graph);
    all_goes_back();
}

TEST_EACH(3, growth_that_fails_half_way_loses_nothing) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemCreate, WEIR_ENTRY_cuMemMap,
                                                     WEIR_ENTRY_cuMemSetAccess};
    void *first, *second, *third = NULL;

    open_watched_route(graph);
    first = alloc_tensor(10 * MIB, A);
    use_tensor_block(A, first, 10 * MIB, 1);
    for (int k = 1; k <= 3; k++) { /* the third failure lasts */
        weir__model_fail(entries[_i], k < 3 ? (uint64_t)k : 1, CUDA_ERROR_OUT_OF_MEMORY, k == 3);
        if (weir_tensors_alloc(t, 30 * MIB, 30 * MIB, A, 0, NULL, &third) == WEIR_OK) {
            use_tensor_block(A, third, 30 * MIB, (uint64_t)k + 1);
            OK(weir_tensors_free(third));
        }
        weir__model_faults_clear();
        second = alloc_tensor(50 * MIB + (size_t)k * 40 * MIB, A);
        use_tensor_block(A, second, 50 * MIB, (uint64_t)k + 10);
        use_tensor_block(A, first, 10 * MIB, 1);
        OK(weir_tensors_free(second));
    }
    OK(weir_tensors_free(first));
    close_pool(graph);
    all_goes_back();
}

TEST(a_block_across_segments_can_be_shared) {
    struct weir_memory_text read;
    size_t needed, offset, bytes = 0;
    void *block;
    char text[4096];

    open_watched_route(graph);
    OK(weir_tensors_free(alloc_tensor(6 * MIB, A)));
    OK(weir_tensors_free(alloc_tensor(10 * MIB, A)));
    block = alloc_tensor(20 * MIB, A);
    OK(weir_tensors_ipc_make(block, text, sizeof text, &needed, &offset));
    OK(weir__memory_text_read(text, &read));
    for (size_t i = 0; i < read.count; i++)
        bytes += read.pieces[i].bytes;
    MUST_LE(3, read.count);
    MUST_LE(offset + 20 * MIB, bytes);
    weir__memory_text_clear(&read);
    OK(weir_tensors_free(block));
    block = alloc_tensor(2 * MIB, A); /* the text has only this block's memory */
    OK(weir_tensors_ipc_make(block, text, sizeof text, &needed, &offset));
    OK(weir__memory_text_read(text, &read));
    MUST_EQ(read.count, 1);
    weir__memory_text_clear(&read);
    EXPECT(WEIR_E_NOT_OWNED,
           weir_tensors_ipc_make((char *)block + 512, text, sizeof text, &needed, &offset));
    OK(weir_tensors_end(t, graph, NULL));
}

/* Idle physical allocations larger than the missing bytes move to a pool, also those of (_i) another stream. */
TEST_EACH(2, idle_memory_comes_to_a_pool) {
    void *blocks[10];
    uint64_t before;

    for (int i = 0; i < 10; i++)
        blocks[i] = alloc_tensor(60 * MIB, _i ? B : A);
    for (int i = 0; i < 10; i++) {
        use_tensor_block(_i ? B : A, blocks[i], 60 * MIB, (uint64_t)i + 1);
        OK(weir_tensors_free(blocks[i]));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_free(
        alloc_tensor(KIB, _i ? B : A))); /* memory grows, so weir observes the frees */
    before = reserved_bytes();
    open_watched_route(graph);
    for (int i = 0; i < 25; i++)
        use_tensor_block(A, alloc_tensor(10 * MIB, A), 10 * MIB, (uint64_t)i + 100);
    MUST_LE(reserved_bytes(), before + 64 * MIB);
    OK(weir_tensors_end(t, graph, NULL));
}

CASE("joined", 30, NULL, end_tensors);

/* Idle memory elsewhere is in a piece that is too large to move to the end of the pool. */
TEST(a_pool_has_what_is_idle_elsewhere_at_the_limit) {
    void *shared, *block, *small;

    begin_tensors_with("64MiB");
    small = alloc_tensor(2 * MIB, A);
    shared = alloc_tensor(56 * MIB, A);
    OK(weir_tensors_free(shared));
    open_watched_route(graph);
    block = alloc_tensor(20 * MIB, A);
    use_tensor_block(A, block, 20 * MIB, 1);
    (void)alloc_tensor(20 * MIB, A);
    MUST_LE(reserved_bytes(), 64 * MIB);
    OK(weir_tensors_end(t, graph, NULL));
    OK(weir_tensors_free(small));
}

/* A block never crosses from one driver allocation to another. */
TEST_EACH(3, segments_of_other_engines_stay_apart) {
    static const char *const engines[] = {"pool", "bfc", "direct"};
    void *first, *last, *large;

    setenv("WEIR_ENGINE", engines[_i], 1);
    begin_tensors();
    open_watched_route(graph);
    first = alloc_tensor(10 * MIB, A);
    last = alloc_tensor(6 * MIB, A);
    OK(weir_tensors_free(last));
    large = alloc_tensor(40 * MIB, A);
    use_tensor_block(A, large, 40 * MIB, 1);
    MUST_EQ(segments_of(graph).count, 3);
    MUST_EQ(segments_of(graph).largest, 40 * MIB);
    OK(weir_tensors_free(first));
    OK(weir_tensors_free(large));
    close_pool(graph);
    all_goes_back();
}

SUITE("pools", CK_FORK);
