/* SPDX-License-Identifier: MIT */
/* test_failures.c: a sequence of tensors runs while each driver call fails once, and each request for host memory fails
 * once or with all that follow.  No memory may then be reused too early, and none may be lost. */
#include "tests/fixtures/refuse.h"

#include "tests/fixtures/tensors.h"

enum { MOST = 16 };
static void *blocks[MOST];
static size_t count;
static uint64_t owner;
static int free_failed, restored;
static int for_good; /* host memory fails to the end */
static CUevent order;

/* Runs the model's work, which is not weir's, so that its host memory does not fail. */
static void use_now(CUstream stream, void *block, size_t bytes) {
#ifdef CAN_REFUSE_HOST_MEMORY
    uint64_t kept = refuse_in;

    refuse_in = 0;
#endif
    CU(weir__model_use(stream, (uintptr_t)block, bytes, owner, MS / 10));
#ifdef CAN_REFUSE_HOST_MEMORY
    refuse_in = kept;
#endif
}

static void *take_if(size_t bytes, CUstream stream) {
    void *block = NULL;

    if (weir_tensors_alloc(t, bytes, bytes, stream, stream == C, NULL, &block) != WEIR_OK)
        return NULL;
    blocks[count++] = block;
    owner++;
    use_now(stream, block, bytes);
    return block;
}

/* B uses the block of A, ordered after A's work, unless a call for that order fails. */
static void use_on_b(void *block, size_t bytes) {
    if (block && driver->cuEventRecord(order, A) == CUDA_SUCCESS &&
        driver->cuStreamWaitEvent(B, order, 0) == CUDA_SUCCESS &&
        weir_tensors_use(block, B) == WEIR_OK)
        use_now(B, block, bytes);
}

static void give_last(void) {
    if (count > 0)
        free_failed |= weir_tensors_free(blocks[--count]) != WEIR_OK;
}

static void drop_listed_block(void *context, void *block) {
    (void)context;
    for (size_t i = 0; i < count; i++)
        if (blocks[i] == block)
            blocks[i] = blocks[--count];
}

static void remember(void *context, void *block) {
    (void)context;
    blocks[count++] = block;
}

/* Makes only calls of weir, since the plan of failures counts the calls. */
static void story(void) {
    weir_tensors_state *state = NULL;
    int is_open = 0, is_routed = 0;
    void *block = take_if(MIB, A);

    use_on_b(block, MIB);
    give_last();
    (void)take_if(8 * KIB, C);
    is_open = weir_tensors_pool_open(t, other, NULL) == WEIR_OK;
    is_routed = is_open && weir_tensors_begin(t, other, always, NULL) == WEIR_OK;
    (void)take_if(MIB, A);
    block = take_if(2 * MIB, A);
    use_on_b(block, 2 * MIB);
    if (block)
        give_last();
    (void)take_if(2 * MIB, A);
    if (is_open && weir_tensors_save(t, other, &state) == WEIR_OK) {
        (void)take_if(3 * MIB, B);
        if (weir_tensors_restore(t, state, drop_listed_block, remember, NULL) == WEIR_OK)
            restored++;
        weir_tensors_state_destroy(state);
    }
    (void)take_if(3 * MIB, A);
    if (is_routed)
        OK(weir_tensors_end(t, other, NULL));
    while (count > 0)
        give_last();
    if (is_open)
        OK(weir_tensors_pool_close(t, other));
    (void)weir_tensors_trim(t, none);
}

static void all_is_back(void) {
    weir_tensors_figures f;
    int users;

    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_trim(t, none));
    OK(weir_tensors_free(alloc_tensor(512, A)));
    OK(weir_tensors_trim(t, none));
    f = tensor_figures();
    MUST_EQ(f.allocation[0].current, 0);
    MUST_EQ(f.active[0].current, 0);
    if (!free_failed &&
        !for_good) /* a request that failed halfway cannot free its block if failures go on */
        MUST_EQ(f.reserved_bytes[0].current, 0);
    EXPECT(WEIR_E_NOT_OWNED, weir_tensors_pool_users(t, other, &users));
    MUST_EQ(grown, f.reserved_bytes[0].current);
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
}

CASE("failures", 60, NULL, NULL);

TEST_EACH(3, a_story_survives_each_failure_of_the_driver) {
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                       CUDA_ERROR_NOT_SUPPORTED};
    uint64_t k = 0, met;

    begin_tensors();
    CU(driver->cuEventCreate(&order, CU_EVENT_DISABLE_TIMING));
    do {
        weir__model_faults_clear();
        free_failed = 0;
        weir__model_fail_any(++k, 0, results[_i], 0);
        story();
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        all_is_back();
    } while (met > 0 && k < 2000);
    MUST_LE(30, k);
    MUST_LE(1, restored);
    end_tensors();
}

#ifdef CAN_REFUSE_HOST_MEMORY
TEST_EACH(2, a_story_survives_each_failure_of_host_memory) {
    uint64_t k = 0;
    int met;

    begin_tensors();
    CU(driver->cuEventCreate(&order, CU_EVENT_DISABLE_TIMING));
    do {
        free_failed = 0;
        refuse_for_good = for_good = _i;
        was_refused = 0;
        refuse_in = ++k;
        story();
        refuse_in = 0;
        met = was_refused;
        all_is_back();
    } while (met && k < 2000);
    end_tensors();
}

/* The free of a branch of a capture lacks host memory for the stream's record.  Another branch does not get the
 * memory. */
TEST(a_branch_frees_without_host_memory) {
    void *block, *another;

    begin_tensors();
    CU(driver->cuEventCreate(&order, CU_EVENT_DISABLE_TIMING));
    begin_pool_capture(A);
    CU(driver->cuEventRecord(order, A));
    CU(driver->cuStreamWaitEvent(B, order, 0));
    (void)alloc_tensor(64 * MIB, A);
    block = alloc_tensor(64 * MIB, B);
    refuse_for_good = 1;
    refuse_in = 1;
    OK(weir_tensors_free(block));
    refuse_in = 0;
    MUST(was_refused);
    another = alloc_tensor(64 * MIB, A);
    MUST((uintptr_t)another + 64 * MIB <= (uintptr_t)block ||
         (uintptr_t)block + 64 * MIB <= (uintptr_t)another);
    OK(weir_tensors_free(another));
    CU(driver->cuEventRecord(order, B));
    CU(driver->cuStreamWaitEvent(A, order, 0));
    CU(driver->cuGraphDestroy(end_pool_capture(A)));
    OK(weir_tensors_pool_close(t, graph));
    OK(weir_tensors_trim(t, none)); /* waits without a route */
    MUST_EQ((size_t)tensor_figures().reserved_bytes[0].current, 64 * MIB);
}

/* No event can be recorded for a use of a stream that was destroyed. */
TEST(a_use_whose_stream_has_ended_leaves_no_host_memory) {
    int64_t before = 0;
    void *block;

    begin_tensors();
    for (int i = 0; i < 200; i++) {
        if (i == 100)
            before = pieces_held;
        OK(weir_tensors_alloc(t, 64 * KIB, 64 * KIB, A, 1, NULL, &block));
        OK(weir_tensors_use(block, B));
        CU(driver->cuStreamDestroy(B));
        CU(driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING));
        OK(weir_tensors_free(block));
    }
    MUST_LE(pieces_held, before);
    end_tensors();
}
#endif

SUITE("failures", CK_FORK);
