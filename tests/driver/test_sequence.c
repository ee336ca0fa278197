/* SPDX-License-Identifier: MIT */
/* test_sequence.c: the digest of driver calls (lib/driver/model/model_sequence.c) changes with a program's calls of the
 * driver, and with nothing else. */
#include "tests/fixtures/model_device.h"

#define MIB ((size_t)1 << 20)

enum change {
    NOTHING,
    OTHER_ADDRESS,
    OTHER_TIME,
    OTHER_ENTRY,
    OTHER_BYTES,
    OTHER_ORDER,
    OTHER_STREAM,
    OTHER_EVENT,
    OTHER_THRESHOLD,
    OTHER_RESULT,
    ONE_MORE,
    CHANGES
};

/* Plays a small program. */
static void play_change(enum change change, FILE *lines) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    uint64_t threshold = change == OTHER_THRESHOLD ? MIB : 2 * MIB;
    CUdeviceptr unseen, block, second;
    CUevent event, other;
    CUmemoryPool pool;

    start_model(64 * MIB);
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
    if (change == OTHER_ADDRESS)
        CU(driver->cuMemAlloc(&unseen, 4 * MIB));
    weir__model_sequence_start(lines);
    if (change == OTHER_TIME)
        weir__model_advance(MS);
    if (change == OTHER_RESULT)
        weir__model_fail(WEIR_ENTRY_cuStreamQuery, 1, CUDA_ERROR_NOT_READY, 0);
    CU(driver->cuMemPoolCreate(&pool, &properties));
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CU(driver->cuMemAllocFromPoolAsync(&block, change == OTHER_BYTES ? 3 * MIB : MIB, pool, A));
    CU(driver->cuMemAlloc(&second, MIB));
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuEventRecord(other, A));
    CU(driver->cuStreamWaitEvent(B, change == OTHER_EVENT ? other : event, 0));
    if (change == OTHER_ORDER) {
        CU(driver->cuMemFree(second));
        CU(driver->cuMemFreeAsync(block, B));
    } else {
        CU(driver->cuMemFreeAsync(block, change == OTHER_STREAM ? A : B));
        CU(driver->cuMemFree(second));
    }
    (void)(change == OTHER_ENTRY ? driver->cuStreamSynchronize(A) : driver->cuStreamQuery(A));
    if (change == ONE_MORE)
        CU(driver->cuCtxSynchronize());
    CU(driver->cuMemPoolDestroy(pool));
}

static struct weir_model_sequence sequence_of(enum change change) {
    struct weir_model_sequence sequence;

    play_change(change, NULL);
    weir__model_sequence(&sequence);
    return sequence;
}

CASE("sequence", 20, NULL, NULL);

TEST(the_same_calls_have_the_same_digest) {
    struct weir_model_sequence plain = sequence_of(NOTHING);

    ck_assert_uint_eq(plain.calls, 11);
    for (int change = NOTHING; change <= OTHER_TIME; change++)
        ck_assert_uint_eq(sequence_of((enum change)change).digest, plain.digest);
}

TEST_WHERE(OTHER_TIME + 1, CHANGES, NULL, other_calls_have_another_digest) {
    struct weir_model_sequence plain = sequence_of(NOTHING), other = sequence_of((enum change)_i);

    ck_assert_uint_ne(other.digest, plain.digest);
    ck_assert_uint_eq(other.calls, plain.calls + (_i == ONE_MORE));
}

/* Streams, events and pools are numbered in the order in which they are named; 0, 1 and 2 are the default streams. */
TEST(each_call_is_a_line) {
    static const char *const wanted = "cuMemPoolCreate most 0 = 0\n"
                                      "cuMemPoolSetAttribute pool 3 4 threshold 2097152 = 0\n"
                                      "cuMemAllocFromPoolAsync 1048576 pool 3 stream 3 = 0\n"
                                      "cuMemAlloc_v2 1048576 = 0\n"
                                      "cuEventRecord event 3 stream 3 = 0\n"
                                      "cuEventRecord event 4 stream 3 = 0\n"
                                      "cuStreamWaitEvent stream 4 event 3 0 = 0\n"
                                      "cuMemFreeAsync stream 4 = 0\n"
                                      "cuMemFree_v2 = 0\n"
                                      "cuStreamQuery stream 3 = 0\n"
                                      "cuMemPoolDestroy pool 3 = 0\n";
    char *text = NULL;
    size_t bytes;
    FILE *lines = open_memstream(&text, &bytes);

    ck_assert_ptr_nonnull(lines);
    play_change(NOTHING, lines);
    ck_assert_int_eq(weir__model_reset(NULL), 0);
    fclose(lines);
    ck_assert_str_eq(text, wanted);
    free(text);
}

SUITE("sequence", CK_FORK_GETENV);
