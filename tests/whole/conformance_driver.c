/* SPDX-License-Identifier: MIT */
/* conformance_driver.c: checks the properties of a driver's memory pools on which weir and the model rely, by the
 * driver table alone, on the device model and on a GPU.
 *
 * The tests assert a measured or documented point on both.  Any other point is a question: the tests print its answer
 * ("# driver: ...") and assert it on the model alone, which must answer like an H200 (driver 580) unless a comment says
 * that the answer is assumed.  A separate process makes each call in which a driver may crash.
 *
 * Must not know: weir. */
#include "conformance_driver.h"

/* ---- requests and frees ---------------------------------------------------------------------- */

CASE("the driver's pools", 120, open_driver_device, close_driver_device);

TEST(nothing_is_a_null_pointer) {
    CUdeviceptr block = 1;

    CU(driver->cuMemAllocFromPoolAsync(&block, 0, pool, s));
    MUST_EQ(block, 0);
    CU(driver->cuMemFreeAsync(0, s));
    MUST(driver->cuMemAlloc(&block, 0) == CUDA_ERROR_INVALID_VALUE);
    if (has_figures())
        MUST_EQ(reserved_by_driver_pool(), 0);
}

/* A refused free loses no memory and does not harm the stream. */
TEST(wrong_frees_are_invalid_values) {
    CUdeviceptr block = alloc_pool_block(MIB, s), again;
    char host;

    MUST(driver->cuMemFreeAsync(block + 512, s) == CUDA_ERROR_INVALID_VALUE);
    MUST(driver->cuMemFree(block + 512) == CUDA_ERROR_INVALID_VALUE);
    MUST(driver->cuMemFreeAsync((uintptr_t)&host, s) == CUDA_ERROR_INVALID_VALUE);
    free_pool_block(block, s);
    MUST(driver->cuMemFreeAsync(block, s) == CUDA_ERROR_INVALID_VALUE);
    again = alloc_pool_block(MIB, s);
    MUST_EQ(again, block);
    CU(driver->cuStreamSynchronize(s));
    free_pool_block(block, s);
    CU(driver->cuStreamSynchronize(s));
}

TEST(either_call_frees_either_block) {
    CUdeviceptr pooled = alloc_pool_block(MIB, s), direct;
    uint64_t start;

    CU(driver->cuMemAlloc(&direct, MIB));
    CU(driver->cuMemFreeAsync(direct, s));
    CU(driver->cuStreamSynchronize(s));
    submit_long_work(s);
    start = driver_ticks();
    CU(driver->cuMemFree(pooled));
    answer("cuMemFree of a pool's block waits for its stream",
           driver_ticks() - start > LONG_WORK / 4, 0);
    if (!has_figures())
        return;
    CU(driver->cuCtxSynchronize());
    answer("a block that cuMemFree took is used no more",
           driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, 0);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what cuMemFree took", reserved_by_driver_pool() == 0, 1);
    /* assumed */
    answer("a block that cuMemFree took is used no more once a trim gave it back",
           driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, 0);
}

TEST(used_is_what_was_asked) {
    CUdeviceptr one, more;

    if (!has_figures())
        return;
    one = alloc_pool_block(1, s);
    more = alloc_pool_block(1000, s);
    MUST_EQ(driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1001);
    submit_long_work(s);
    free_pool_block(more, s); /* pending */
    MUST_EQ(driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1);
    free_pool_block(one, s);
    MUST_EQ(driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    MUST_EQ(driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1001);
}

TEST(high_marks_take_zero_alone) {
    uint64_t one = 1, zero = 0;

    if (!has_figures())
        return;
    free_pool_block(alloc_pool_block(MIB, s), s);
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
         a <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; a++)
        MUST(driver->cuMemPoolSetAttribute(pool, a, &one) == CUDA_ERROR_INVALID_VALUE);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    MUST_EQ(driver_pool_figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH),
            0); /* the mark falls to the used bytes */
    free_pool_block(alloc_pool_block(100 * MIB, s), s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    MUST_LE(driver_pool_figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
            driver_pool_figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    free_pool_block(alloc_pool_block(MIB, s), s);
    MUST_LE(32 * MIB, driver_pool_figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
    MUST_LE(driver_pool_figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 64 * MIB);
}

TEST(the_range_of_a_block_is_found_from_inside) {
    CUdeviceptr block, base = 0;
    size_t bytes = 0;

    if (!driver->cuMemGetAddressRange)
        return;
    block = alloc_pool_block(1000, s);
    CU(driver->cuMemGetAddressRange(&base, &bytes, block));
    MUST_EQ(base, block);
    MUST_EQ(bytes, 1000);
    base = 0;
    answer("the range around an address inside a block is the block's",
           driver->cuMemGetAddressRange(&base, &bytes, block + 500) == CUDA_SUCCESS &&
               base == block && bytes == 1000,
           1);
    free_pool_block(block, s);
}

/* ---- destroyed streams ----------------------------------------------------------------------- */

TEST(a_handle_is_used_again) {
    unsigned long long before, after;
    CUstream third, fourth;

    if (!driver->cuStreamGetId)
        return;
    third = make_stream();
    CU(driver->cuStreamGetId(third, &before));
    CU(driver->cuStreamDestroy(third));
    fourth = make_stream();
    CU(driver->cuStreamGetId(fourth, &after));
    MUST(before != after);
    answer("the next stream has a destroyed one's handle", fourth == third, 1);
    CU(driver->cuStreamDestroy(fourth));
}

/* The stream frees a block behind work, and is destroyed before the work has completed. */
TEST(memory_of_an_ended_stream_is_reused) {
    CUdeviceptr block, other;
    CUstream third;

    for (int ordered = 0; ordered < 2; ordered++) {
        third = make_stream();
        block = alloc_pool_block(UNIT, third);
        submit_long_work(third);
        free_pool_block(block, third);
        CU(driver->cuEventRecord(event, third));
        if (ordered)
            CU(driver->cuStreamWaitEvent(t, event, 0));
        CU(driver->cuStreamDestroy(third));
        if (!ordered)
            driver->sleep_ns(8 * LONG_WORK);
        other = alloc_pool_block(UNIT, t);
        answer(ordered ? "what an ended stream freed serves who waits for its event"
                       : "what an ended stream freed serves others once it is done",
               other == block, 1);
        free_pool_block(other, t);
        CU(driver->cuCtxSynchronize());
    }
}

/* ---- questions in a separate process --------------------------------------------------------- */

/* The destroyed stream and the block that the questions are about. */
static CUstream dead;
static CUdeviceptr asked_block;

static void end_stream(void) {
    dead = t;
    CU(driver->cuStreamDestroy(t));
}

static CUresult free_there(void) {
    return driver->cuMemFreeAsync(asked_block, dead);
}
static CUresult allocate_there(void) {
    return driver->cuMemAllocFromPoolAsync(&asked_block, MIB, pool, dead);
}
static CUresult ask_whether_it_captures(void) {
    CUstreamCaptureStatus status;

    return driver->cuStreamIsCapturing(dead, &status);
}
static CUresult ask_its_id(void) {
    unsigned long long id;

    return driver->cuStreamGetId ? driver->cuStreamGetId(dead, &id) : CUDA_ERROR_INVALID_HANDLE;
}
static CUresult wait_for_it(void) {
    return driver->cuStreamSynchronize(dead);
}

static void fill_block(void) {
    CU(driver->cuMemsetD8Async(asked_block, 7, MIB, s));
    CU(driver->cuStreamSynchronize(s));
}
static void end_pool(void) {
    fill_block();
    CU(driver->cuMemPoolDestroy(pool));
}
static void end_pool_behind_a_free(void) {
    submit_long_work(s);
    free_pool_block(asked_block, s);
    CU(driver->cuMemPoolDestroy(pool));
}

/* Waits for the stream if the call succeeded.  Returns the first failure. */
static CUresult then_wait(CUresult result) {
    return result == CUDA_SUCCESS ? driver->cuStreamSynchronize(s) : result;
}
static CUresult destroy_pool(void) {
    return then_wait(driver->cuMemPoolDestroy(pool));
}
static CUresult wait_for_stream(void) {
    return driver->cuStreamSynchronize(s);
}
static CUresult fill_it(void) {
    return then_wait(driver->cuMemsetD8Async(asked_block, 8, MIB, s));
}
static CUresult copy_it_back(void) {
    unsigned char byte = 0;
    CUresult result = then_wait(driver->cuMemcpyDtoHAsync(&byte, asked_block + MIB - 1, 1, s));

    return result == CUDA_SUCCESS && byte != 7 ? CUDA_ERROR_ILLEGAL_ADDRESS : result;
}
static CUresult free_it(void) {
    return then_wait(driver->cuMemFreeAsync(asked_block, s));
}
static CUresult free_it_directly(void) {
    return driver->cuMemFree(asked_block);
}
static CUresult make_another(void) {
    make_driver_pool(0);
    return driver->cuMemAllocFromPoolAsync(&asked_block, MIB, pool, s);
}

/* Makes a request in a child of fork.  Returns the driver's result, or 128 plus the signal that ended the child. */
static CUresult ask_in_a_child_for(size_t bytes) {
    pid_t child = fork();
    int code = 0;

    if (child == 0) {
        alarm(20);
        _exit((int)(driver->cuMemAllocFromPoolAsync(&asked_block, bytes, pool, s) & 127));
    }
    MUST(child > 0 && waitpid(child, &code, 0) == child);
    return (CUresult)(WIFSIGNALED(code) ? 128 + WTERMSIG(code) : WEXITSTATUS(code));
}
static CUresult ask_in_a_child(void) {
    return ask_in_a_child_for(MIB);
}
static CUresult ask_for_more_in_a_child(void) {
    return ask_in_a_child_for(UNIT);
}

/* CUDA documents that the blocks of a destroyed pool live until they are freed. */
static const struct {
    const char *what;
    void (*before)(void);
    CUresult (*ask)(void);
    CUresult wanted;
} alone[] = {
    {"a free on a destroyed stream", end_stream, free_there, CUDA_ERROR_INVALID_HANDLE},
    {"a request on a destroyed stream", end_stream, allocate_there, CUDA_ERROR_INVALID_HANDLE},
    {"the capture status of a destroyed stream", end_stream, ask_whether_it_captures,
     CUDA_ERROR_INVALID_HANDLE},
    {"the id of a destroyed stream", end_stream, ask_its_id, CUDA_ERROR_INVALID_HANDLE},
    {"a wait for a destroyed stream", end_stream, wait_for_it, CUDA_ERROR_INVALID_HANDLE},
    {"the end of a pool with a live block", fill_block, destroy_pool, CUDA_SUCCESS},
    {"a wait for the device behind that", end_pool, wait_for_context, CUDA_SUCCESS},
    {"a fill of a destroyed pool's block", end_pool, fill_it, CUDA_SUCCESS},
    {"a copy from a destroyed pool's block", end_pool, copy_it_back, CUDA_SUCCESS},
    {"a free of a destroyed pool's block", end_pool, free_it, CUDA_SUCCESS},
    {"cuMemFree of a destroyed pool's block", end_pool, free_it_directly, CUDA_SUCCESS},
    {"another pool beside a destroyed one's block", end_pool, make_another, CUDA_SUCCESS},
    {"a wait for a free in a destroyed pool", end_pool_behind_a_free, wait_for_stream,
     CUDA_SUCCESS},
    /* The child gets the bytes that the parent would get next. */
    {"a request in a child of fork", fill_block, ask_in_a_child, CUDA_SUCCESS},
    {"a request in a child of fork for which the pool would have to grow", fill_block,
     ask_for_more_in_a_child, CUDA_ERROR_OUT_OF_MEMORY}, /* assumed */
};
enum { ALONE = sizeof alone / sizeof alone[0] };

int answer_alone(const char *question) {
    int i = atoi(question);

    if (i < 0 || i >= ALONE)
        return 1;
    alarm(30);
    open_driver_device();
    asked_block = alloc_pool_block(MIB, s);
    alone[i].before();
    printf("%u\n", (unsigned)alone[i].ask());
    fflush(stdout);
    _exit(0); /* ends without a clean-up */
}

TEST_EACH(ALONE, each_question_is_answered_in_its_own_process) {
    char path[512], command[640];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    unsigned result = 0;
    FILE *answers;
    int told, code;

    MUST(length > 0);
    path[length] = '\0';
    snprintf(command, sizeof command, "WEIR_TEST_ASK=%d '%s' 2>/dev/null", _i, path);
    fflush(stdout);
    answers = popen(command, "r");
    MUST(answers != NULL);
    told = fscanf(answers, "%u", &result) == 1;
    code = pclose(answers);
    if (told)
        printf("# driver: %s: %u%s\n", alone[_i].what, result,
               result == alone[_i].wanted ? "" : " (the model: otherwise)");
    else
        printf("# driver: %s: no answer, status 0x%x\n", alone[_i].what, (unsigned)code);
    if (!on_cuda)
        MUST(told && result == alone[_i].wanted);
}

/* ---- units and places ------------------------------------------------------------------------ */

TEST(the_reserve_grows_by_units) {
    CUdeviceptr block[4];

    if (!has_figures())
        return;
    block[0] = alloc_pool_block(1, s);
    MUST_EQ(reserved_by_driver_pool(), UNIT);
    block[1] = alloc_pool_block(UNIT, s); /* packed behind the first */
    MUST_EQ(reserved_by_driver_pool(), 2 * UNIT);
    block[2] = alloc_pool_block(UNIT - 4096, s);
    MUST_EQ(reserved_by_driver_pool(), 2 * UNIT);
    block[3] = alloc_pool_block(2 * UNIT + 1, s);
    MUST_EQ(reserved_by_driver_pool(), 4 * UNIT);
    for (int i = 0; i < 4; i++) {
        MUST_EQ(block[i] % 256, 0);
        free_pool_block(block[i], s);
    }
    answer("blocks begin at multiples of 512 bytes",
           (block[0] | block[1] | block[2] | block[3]) % 512 == 0, 1);
}

/* A trim rounds up to units, and releases only frees that the host has observed.  A threshold is rounded down. */
TEST(trims_round_up_and_thresholds_down) {
    CUdeviceptr keep, most;
    uint64_t threshold = 100 * MIB;

    if (!has_figures())
        return;
    keep = alloc_pool_block(MIB, s);
    most = alloc_pool_block(GIB - MIB, s);
    MUST_EQ(reserved_by_driver_pool(), GIB);
    free_pool_block(most, s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 300 * MIB));
    MUST_EQ(reserved_by_driver_pool(), 320 * MIB);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CU(driver->cuStreamSynchronize(s));
    MUST_EQ(reserved_by_driver_pool(), 96 * MIB);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved_by_driver_pool(), UNIT); /* a unit with a live block stays */
    free_pool_block(keep, s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved_by_driver_pool(), 0);
}

/* Returns 1 if the call makes the driver apply its release threshold, else 0. */
static int falls_after(CUresult (*look)(void)) {
    uint64_t threshold = 0, all = UINT64_MAX;
    int fell;

    free_pool_block(alloc_pool_block(UNIT, s), s);
    CU(driver->cuEventRecord(event, s));
    driver->sleep_ns(LONG_WORK);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST_EQ(reserved_by_driver_pool(), UNIT); /* setting a threshold releases nothing */
    CU(look());
    fell = reserved_by_driver_pool() == 0;
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    return fell;
}

TEST(a_threshold_acts_at_a_wait_for_the_context) {
    if (!has_figures())
        return;
    MUST(falls_after(wait_for_context));
    answer("a threshold acts at a wait for another stream", falls_after(wait_for_other), 0);
    answer("a threshold acts at a query of the stream", falls_after(query_stream), 0);
    answer("a threshold acts at a query of an event", falls_after(query_event), 0);
}

/* Other programs see the reserved memory as used. */
TEST(the_device_loses_the_reserve) {
    size_t before = 0, after = 0, total;
    CUdeviceptr block;

    free_pool_block(alloc_pool_block(1, s), s); /* the first growth of a process may take more */
    CU(driver->cuMemGetInfo(&before, &total));
    block = alloc_pool_block(512 * MIB, s);
    CU(driver->cuMemGetInfo(&after, &total));
    answer("the device has less by what the reserve has more",
           before - after == 15 * UNIT || before - after == 16 * UNIT, 1);
    free_pool_block(block, s);
}

/* No call waits for the free, before or after its work has completed. */
TEST(a_trim_of_what_was_not_seen) {
    if (!has_figures())
        return;
    submit_long_work(s);
    free_pool_block(alloc_pool_block(UNIT, s), s);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved_by_driver_pool(), UNIT);
    driver->sleep_ns(8 * LONG_WORK);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what is done and was not waited for", reserved_by_driver_pool() == 0,
           0);
    CU(free_directly());
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what the wait of cuMemFree was for", reserved_by_driver_pool() == 0,
           0);
}

/* weir makes a trim release completed frees in this way: another stream allocates and frees the memory, and weir waits
 * for that stream. */
TEST(a_trim_of_what_another_stream_had) {
    enum { UNITS = 8 };
    CUdeviceptr whole, part[UNITS], kept;

    if (!has_figures())
        return;
    whole = alloc_pool_block(UNITS * UNIT, s);
    kept = alloc_pool_block(UNIT, s);
    submit_long_work(s);
    free_pool_block(whole, s);
    driver->sleep_ns(8 * LONG_WORK);
    for (int i = 0; i < UNITS; i++)
        part[i] = alloc_pool_block(UNIT, t);
    answer("by units, another stream has all that is done",
           reserved_by_driver_pool() == (UNITS + 1) * (uint64_t)UNIT, 1);
    for (int i = 0; i < UNITS; i++)
        free_pool_block(part[i], t);
    CU(driver->cuStreamSynchronize(t));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what another stream had, which was waited for",
           reserved_by_driver_pool() == UNIT, 1);
    free_pool_block(kept, s);
}

/* The driver moves free whole units to a larger request.  It moves no smaller pieces. */
TEST(free_units_are_moved) {
    enum { COUNT = 48 };
    CUdeviceptr gap[COUNT], keep[COUNT], whole;
    uint64_t before;

    if (!has_figures())
        return;
    for (int i = 0; i < 4; i++) {
        gap[i] = alloc_pool_block(2 * UNIT, s);
        keep[i] = alloc_pool_block(UNIT, s);
    }
    before = reserved_by_driver_pool();
    for (int i = 0; i < 4; i++)
        free_pool_block(gap[i], s);
    CU(driver->cuStreamSynchronize(s));
    whole = alloc_pool_block(8 * UNIT, s);
    MUST_EQ(reserved_by_driver_pool(), before);
    free_pool_block(whole, s);
    for (int i = 0; i < 4; i++)
        free_pool_block(keep[i], s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved_by_driver_pool(), 0);
    for (int i = 0; i < COUNT; i++) {
        gap[i] = alloc_pool_block(MIB, s);
        keep[i] = alloc_pool_block(MIB, s);
    }
    before = reserved_by_driver_pool();
    for (int i = 0; i < COUNT; i++)
        free_pool_block(gap[i], s);
    CU(driver->cuStreamSynchronize(s));
    whole = alloc_pool_block(UNIT, s);
    MUST_EQ(reserved_by_driver_pool(), before + UNIT);
    free_pool_block(whole, s);
    for (int i = 0; i < COUNT; i++)
        free_pool_block(keep[i], s);
}

/* The pool cuts a block from the front of the smallest free range that fits.  Among equal ranges it takes the first
 * that was freed. */
TEST(the_best_fit_is_cut_from_its_caches) {
    static const size_t sizes[8] = {4 * MIB, 2 * MIB, 3 * MIB, 2 * MIB,
                                    8 * MIB, 2 * MIB, 5 * MIB, MIB};
    static const struct {
        size_t bytes, offset;
    } requests[] = {{2097152, 4195328}, {2097152, 9439232},  {1500000, 19926016},
                    {700000, 27267072}, {3145728, 6292992},  {300000, 27967488},
                    {4194304, 512},     {1048576, 22023680}, {100000, 21426176},
                    {512, 28267520},    {9437184, 28316160}};
    enum { REQUESTS = sizeof requests / sizeof requests[0] };
    CUdeviceptr base = alloc_pool_block(512, s), unmapped_ranges[8], keep[8], block[REQUESTS];

    for (int i = 0; i < 8; i++) {
        unmapped_ranges[i] = alloc_pool_block(sizes[i], s);
        keep[i] = alloc_pool_block(512, s);
    }
    for (int i = 0; i < 8; i++)
        free_pool_block(unmapped_ranges[i], s);
    for (size_t i = 0; i < REQUESTS; i++) {
        block[i] = alloc_pool_block(requests[i].bytes, s);
        MUST_EQ(block[i] - base, requests[i].offset);
    }
    for (size_t i = 0; i < REQUESTS; i++)
        free_pool_block(block[i], s);
    for (int i = 0; i < 8; i++)
        free_pool_block(keep[i], s);
    free_pool_block(base, s);
}

TEST(the_maximum_holds) {
    CUdeviceptr block = 0;
    CUresult result;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_driver_pool(100 * MIB);
    MUST(driver->cuMemAllocFromPoolAsync(&block, 160 * MIB, pool, s) == CUDA_ERROR_OUT_OF_MEMORY);
    answer("a request above the maximum leaves nothing reserved", reserved_by_driver_pool() == 0,
           0);
    /* assumed */
    answer("a request above the maximum leaves all reserved that it may",
           reserved_by_driver_pool() == 4 * UNIT, 1);
    free_pool_block(alloc_pool_block(96 * MIB, s), s);
    result = driver->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s);
    answer("a maximum of 100 MiB lets 128 be reserved", result == CUDA_SUCCESS, 1);
    if (result == CUDA_SUCCESS)
        free_pool_block(block, s);
}

TEST(the_device_holds) {
    CUdeviceptr block = 0;
    size_t left = 0, total;

    if (!has_figures())
        return;
    hog_takes(&hog, 3 * UNIT);
    MUST(driver->cuMemAllocFromPoolAsync(&block, 6 * UNIT, pool, s) == CUDA_ERROR_OUT_OF_MEMORY);
    answer("a request above what the device has leaves nothing reserved",
           reserved_by_driver_pool() == 0, 0);
    CU(driver->cuMemGetInfo(&left, &total));
    /* assumed */
    answer("a request above what the device has leaves all of that reserved",
           reserved_by_driver_pool() >= 3 * UNIT && left < UNIT, 1);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what a refused request left", reserved_by_driver_pool() == 0,
           1); /* assumed */
}
