/* SPDX-License-Identifier: MIT */
/* test_model_units.c: the reserved memory of a pool: units of 32 MiB, and where blocks are placed. */
#include "test_model.h"

/* ------------------------------------------------------------- units of 32 MiB ---- */

CASE("units", 60, set_up_model, check_pools);

TEST(freed_adjacent_ranges_serve_one_large_request_without_growth) {
    CUdeviceptr blocks[8];
    uint64_t start;

    for (int i = 0; i < 8; i++)
        blocks[i] = alloc(512 * MIB, s);
    for (int i = 0; i < 8; i++)
        free_async(blocks[i], s);
    start = model_ticks();
    ck_assert_uint_eq(alloc(4 * GIB, s), blocks[0]);
    ck_assert_uint_lt(model_ticks() - start, 2000);
    ck_assert_uint_eq(reserved_by_pool(), 4 * GIB);
}

TEST(scattered_free_ranges_are_remapped) {
    CUdeviceptr free_ranges[4], keep[4];
    uint64_t before, start;

    for (int i = 0; i < 4; i++) {
        free_ranges[i] = alloc(512 * MIB, s);
        keep[i] = alloc(32 * MIB, s);
    }
    before = reserved_by_pool();
    for (int i = 0; i < 4; i++)
        free_async(free_ranges[i], s);
    start = model_ticks();
    alloc(2 * GIB, s);
    ABOUT(model_ticks() - start, 2.1e6, 10);
    ck_assert_uint_eq(reserved_by_pool(), before);
    for (int i = 0; i < 4; i++)
        free_async(keep[i], s);
}

/* The reuse policies make no difference. */
TEST(trim_gives_back_what_was_waited_for_not_what_is_done) {
    for (int on = 1; on >= 0; on--) {
        make_model_pool(0);
        set_pool_attribute(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, (uint64_t)on);
        OK(weir__model_kernel(s, 40 * MS));
        free_async(alloc(32 * MIB, s), s);
        d->sleep_ns(50 * MS);
        OK(d->cuStreamQuery(s));
        OK(d->cuMemPoolTrimTo(pool, 0));
        ck_assert_uint_eq(reserved_by_pool(), 32 * MIB);
        OK(d->cuStreamSynchronize(s));
        OK(d->cuMemPoolTrimTo(pool, 0));
        ck_assert_uint_eq(reserved_by_pool(), 0);
    }
}

TEST(growth_and_trim_wait_for_no_kernel) {
    CUdeviceptr block;

    OK(weir__model_kernel(t, 100 * MS));
    block = alloc(GIB, s);
    free_async(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved_by_pool(), 0);
    ck_assert_uint_lt(model_ticks(), FIRST + 5 * MS);
}

/* The pool keeps all units that it could get.  This is assumed. */
TEST(what_grew_for_a_refused_request_stays) {
    CUdeviceptr block, keep;
    uint64_t start;

    make_model_pool(100 * MIB);
    keep = alloc(MIB, s);
    start = model_ticks();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s));
    ck_assert_uint_gt(model_ticks() - start, 60000);
    ck_assert_uint_eq(reserved_by_pool(), 128 * MIB);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 128 * MIB);
    start = model_ticks();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s));
    block = alloc(127 * MIB, s);
    ck_assert_uint_eq(block, keep + MIB);
    ck_assert_uint_lt(model_ticks() - start, 5000); /* it is there already */
    free_async(keep, s);
    free_async(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved_by_pool(), 0);
    reset_to(256 * MIB); /* the device is full, not the pool */
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 512 * MIB, pool, s));
    ck_assert_uint_eq(reserved_by_pool(), 256 * MIB);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved_by_pool(), 0);
}

/* The memory counts as used, but is free, and a trim frees its units. */
TEST(what_cuMemFree_took_counts_as_used) {
    CUdeviceptr block = alloc(MIB, s), kept = alloc(MIB, s);

    OK(d->cuMemFree(block));
    OK(d->cuCtxSynchronize());
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 2 * MIB);
    ck_assert_uint_eq(alloc(MIB, t), block);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * MIB);
    free_async(block, t);
    free_async(kept, s);
    OK(d->cuCtxSynchronize());
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved_by_pool(), 0);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
}

TEST(impossible_request_is_refused_after_159_ms) {
    CUdeviceptr block = 5;
    uint64_t start = model_ticks();

    if (!is_roomy())
        return;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 200 * GIB, pool, s));
    ABOUT(model_ticks() - start, 159 * MS, 1);
    ck_assert_uint_eq(block, 0);
    ck_assert_uint_lt(free_bytes_now(), 32 * MIB); /* growing to this took the time */
    start = model_ticks();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 200 * GIB, pool, s));
    ck_assert_uint_lt(model_ticks() - start, MS);
}

TEST(whole_device_can_be_taken) {
    size_t room = free_bytes_now() / (32 * MIB) * (32 * MIB);
    CUdeviceptr block;

    if (!is_roomy())
        return;
    block = alloc(room, s);
    ck_assert_uint_lt(free_bytes_now(), 32 * MIB);
    ((char *)(uintptr_t)block)[0] = 1;
    ((char *)(uintptr_t)block)[room - 1] = 1;
    free_async(block, s);
}

/* -------------------------------------------------------- placement of blocks ---- */

CASE("placement", 60, set_up_model, check_pools);

TEST(among_equal_free_ranges_the_first_freed_serves_first) {
    static const int order[] = {9, 3, 12, 1, 7};
    CUdeviceptr blocks[16];

    for (int i = 0; i < 16; i++) {
        blocks[i] = alloc(4096, s);
        alloc(512, s);
    }
    for (int i = 0; i < 5; i++)
        free_async(blocks[order[i]], s);
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(alloc(4096, s), blocks[order[i]]);
}

/* Free ranges have one and a half units each, but no whole unit. */
TEST(unmapped_ranges_that_were_settled_serve_latest_freed_first) {
    CUdeviceptr base = alloc(512, s), blocks[16];

    for (int i = 0; i < 16; i++)
        blocks[i] = alloc(48 * MIB, s);
    for (int i = 0; i < 16; i += 2)
        free_async(blocks[i], s);
    ck_assert_uint_eq(alloc(60 * MIB, s) - base, 805306880);
    ck_assert_uint_eq(alloc(90 * MIB, s) - base, 868221440);
    ck_assert_uint_eq(alloc(49 * MIB, s) - base, 962593280);
    ck_assert_uint_eq(alloc(20 * MIB, s), blocks[14]);
    ck_assert_uint_eq(reserved_by_pool(), 992 * MIB);
}

/* The best fit may be a block that the request is not ordered behind, as measured while work kept all streams busy. */
TEST(of_a_stream_the_best_fit_serves_or_else_the_oldest_that_holds_it) {
    CUdeviceptr free_ranges[3];
    CUevent event;

    for (int i = 0; i < 3; i++) {
        free_ranges[i] = alloc((size_t)(8 - 2 * i) * MIB, s);
        alloc(512, s);
    }
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    free_async(free_ranges[0], s);
    free_async(free_ranges[1], s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    free_async(free_ranges[2], s);
    ck_assert_uint_eq(alloc(4 * MIB, t), free_ranges[0]);
    ck_assert_uint_eq(alloc(5 * MIB, t), free_ranges[1]);
}

/* The first requests of a load of four streams without work, STREAM:BYTES@OFFSET, and its frees, STREAM:free@REQUEST,
 * as they went on an H200 (driver 580.159.04). */
TEST(idle_streams_take_from_each_other_as_on_an_h200) {
    static const char steps[] =
        "3:21107959@0 3:free@0 3:7614461@0 3:free@1 3:14723897@0 3:free@2 3:4026913@0 "
        "3:free@3 3:904@0 3:free@4 3:548590@0 3:free@5 3:5497997@0 3:free@6 1:11581520@0 "
        "1:11389513@11581952 1:free@7 1:48164@0 1:free@9 1:18306130@22971904 1:free@8 "
        "1:20781095@0 1:free@11 1:4448086@0 1:free@12 1:246491@0 1:free@10 "
        "1:1285976@22971904 1:free@14 1:52505@22971904 1:4129@23024640 1:free@15 "
        "1:761@22971904 1:free@13 1:104014@23029248 1:2049@22972928 1:703738@23133696 "
        "1:1418878@23837696 0:122696644@25256960 0:598618@0 0:free@23 0:1871954@599040 "
        "0:free@24 0:94618@0 0:free@22 3:676612@2471424 3:free@26 3:1718306@3148288 "
        "3:free@27 3:630@2471424 3:free@28 3:14145@2471424 3:16752921@4867072 "
        "2:492777@21620224 2:4434423@25256960 2:free@31 2:43721823@29691392 "
        "2:10181667@73413632 2:7563@21620224 2:free@35 2:1046951@2485760 ";
    CUdeviceptr blocks[64];
    CUstream four[4];
    size_t count = 0, bytes, number;
    unsigned stream;
    int length;

    for (int i = 0; i < 4; i++)
        OK(d->cuStreamCreate(&four[i], CU_STREAM_NON_BLOCKING));
    for (const char *step = steps; *step; step += length) {
        if (sscanf(step, "%u:free@%zu %n", &stream, &number, &length) == 2) {
            free_async(blocks[number], four[stream]);
            continue;
        }
        ck_assert_int_eq(sscanf(step, "%u:%zu@%zu %n", &stream, &bytes, &number, &length), 3);
        blocks[count] = alloc(bytes, four[stream]);
        ck_assert_uint_eq(blocks[count++] - blocks[0], number);
    }
}

/* The pool may grow a smaller, partly backed range although a larger backed one is free. */
TEST(growth_takes_the_smallest_free_range_backed_or_not) {
    CUdeviceptr free_range = alloc(100 * MIB, s), first, second;

    alloc(512, s);
    first = alloc(60 * MIB, s);
    second = alloc(60 * MIB, s);
    alloc(512, s);
    free_async(free_range, s);
    OK(d->cuStreamSynchronize(s));
    alloc(160 * MIB, s); /* moves units out of the unmapped range */
    free_async(first, s);
    OK(d->cuStreamSynchronize(s));
    free_async(second, s);
    ck_assert_uint_eq(alloc(90 * MIB, s), free_range);
    ck_assert_uint_eq(alloc(100 * MIB, s), first);
}

/* Recorded programs, replayed on an H200: a hash of the offset and the reserved memory after each allocation (FNV-1a,
 * 64 bits), and the peak of the reserved memory.  The program with several streams has only the peak. */
static const struct program {
    const char *name;
    uint64_t hash, reserved;
} programs[] = {
    {"gat-dynamic", UINT64_C(0x28b35f2da0f223f5), 10536091648},
    {"gpt2-dynamic", UINT64_C(0xc419ec5b17b2057d), 15669919744},
    {"gpt2-train", UINT64_C(0xf6cab46b353e64ad), 13925089280},
    {"resnet50-train", UINT64_C(0x225b0bc9c397d1e5), 3355443200},
    {"multistream-infer", 0, 1577058304},
};

static CUdeviceptr live[65536];
static CUstream streams[64];

static uint64_t hash_step(uint64_t hash, uint64_t value) {
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

/* Returns WEIR_TEST_STEPS, which limits each program to its first lines.  Such a run compares no figures. */
static long most_steps(void) {
    const char *text = getenv("WEIR_TEST_STEPS");

    return text ? strtol(text, NULL, 0) : LONG_MAX;
}

static uint64_t replay(FILE *trace, int *whole) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    long most = most_steps(), steps = 0;
    unsigned long long id, bytes;
    CUdeviceptr first = 0;
    unsigned stream;
    char line[256], op;

    while (fgets(line, sizeof line, trace)) {
        if (++steps > most)
            continue; /* so that zstd does not fail */
        if (sscanf(line, "%*u %c %llu %llu %u", &op, &id, &bytes, &stream) == 4) {
            ck_assert(id < 65536 && stream < 64);
            if (!streams[stream])
                OK(d->cuStreamCreate(&streams[stream], CU_STREAM_NON_BLOCKING));
            if (op == 'f') {
                free_async(live[id], streams[stream]);
                continue;
            }
            live[id] = alloc(bytes, streams[stream]);
            first = first ? first : live[id];
            hash = hash_step(hash_step(hash, live[id] - first), reserved_by_pool());
        } else if (sscanf(line, "%*u %c", &op) == 1 && op == 'm') {
            OK(d->cuCtxSynchronize());
        }
    }
    *whole = steps <= most;
    return hash;
}

TEST_EACH(ROWS(programs), recorded_programs_get_the_addresses_of_an_h200) {
    const struct program *program = &programs[_i];
    const char *top = getenv("top_srcdir");
    char command[512];
    uint64_t hash;
    FILE *trace;
    int whole;

    snprintf(command, sizeof command, "exec zstd -dqc '%s/bench/traces/%s.trace.zst' 2>/dev/null",
             top ? top : ".", program->name);
    trace = popen(command, "r");
    ck_assert(trace != NULL);
    hash = replay(trace, &whole);
    if (pclose(trace) != 0)
        return; /* no traces here, or no zstd */
    if (whole)
        ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), program->reserved);
    if (whole && program->hash)
        ck_assert_uint_eq(hash, program->hash);
    check_pools();
}

SUITE("model units", CK_FORK_GETENV);
