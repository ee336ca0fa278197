/* SPDX-License-Identifier: MIT */
/* test_waits.c: no request makes a stream wait for another stream, unless internal_dependencies is on.
 *
 * A program with two streams repeats itself.  B always has more work queued than A.  In the last round A's work takes
 * ten seconds: a request of B that waited for A would take as long. */
#include "tests/fixtures/engines.h"

enum { ROUNDS = 8, BLOCKS_EACH = 6 };

/* A frees its blocks behind work of `work_of_a` ns.  Returns how long B takes for 120 ms of work on blocks of as many
 * bytes. */
static uint64_t play_round(size_t bytes, uint64_t work_of_a) {
    void *block[BLOCKS_EACH];
    uint64_t began;

    for (int i = 0; i < BLOCKS_EACH; i++) {
        block[i] = alloc_live(bytes, A);
        busy(A, i == 0 ? work_of_a : MS);
    }
    for (int i = 0; i < BLOCKS_EACH; i++)
        free_live(block[i], A);
    began = weir__model_now_ns();
    for (int i = 0; i < BLOCKS_EACH; i++) {
        busy(B, 10 * MS);
        block[i] = alloc_live(bytes, B);
        busy(B, 10 * MS);
    }
    for (int i = 0; i < BLOCKS_EACH; i++)
        free_live(block[i], B);
    CU(driver->cuStreamSynchronize(B));
    return weir__model_now_ns() - began;
}

/* Returns how long B takes in its longest round.  Each round has larger blocks, so that it needs more memory. */
static uint64_t longest_round(const weir_options *options) {
    uint64_t longest = 0;

    make_with(options);
    count_from_here();
    for (size_t i = 0; i < ROUNDS; i++) {
        uint64_t ns = play_round((64 + 8 * i) * MIB, i == ROUNDS - 1 ? UINT64_C(10000) * MS : MS);

        longest = ns > longest ? ns : longest;
        CU(driver->cuStreamSynchronize(A));
        weir__model_advance(MS);
    }
    return longest;
}

static void expect_no_wait(const weir_options *options) {
    MUST_LE(longest_round(options), 121 * MS);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamWaitEvent), 0);
}

CASE("waits", 120, open_engine_device, end_test);

/* The direct engine is left out, since its cuMemFree waits for the device. */
TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, no_engine_adds_a_wait) {
    weir_options options = options_of(_i, "model", 3 * GIB);

    expect_no_wait(&options);
}

/* With internal dependencies the program shows a wait, so the test can detect one. */
TEST(a_wait_that_was_asked_for_has_no_bound) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);

    options.internal_dependencies = WEIR_SWITCH_ON;
    MUST(longest_round(&options) > 10000 * MS);
    MUST(calls(WEIR_ENTRY_cuStreamWaitEvent) > 0);
}

SUITE("waits", CK_FORK_GETENV);
