/* SPDX-License-Identifier: MIT */
/* conformance_driver.c: what weir and the model build on in a driver's memory pools, asked of the driver
 * table alone, on the device model and on a GPU.
 *
 * A point that was measured or is documented is asserted on both.  Where nobody knows what a driver does, the
 * point is a question: its answer is printed ("# driver: ..."), and asserted of the model alone, so that a run
 * on a GPU tells where the model is wrong.  It has to answer what an H200 did (driver 580), where a
 * comment does not say otherwise.
 *
 * What a driver may crash at is asked by a process of its own, one step in each: the handle of a destroyed
 * stream, what is left of a destroyed pool, a child of fork().
 *
 * Must not know: weir.
 */
#include "conformance.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/support.h"

#define UNIT (32 * MIB)
#define MS UINT64_C(1000000)
#define LONG_WORK (8 * MS)

static int on_cuda;
static const struct weir_driver *driver;
static CUdevice device;
static CUcontext primary;
static CUdeviceptr scratch; /* for long work on a GPU */
static CUmemoryPool pool;
static CUstream s, t; /* non-blocking */
static CUevent event;
static struct hog hog;

/* ---- the device ------------------------------------------------------------------------------ */

static void make_pool(size_t most) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .maxSize = most};
    uint64_t all = UINT64_MAX;

    CU(driver->cuMemPoolCreate(&pool, &props));
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void open_device(void) {
    const char *wanted = getenv("WEIR_TEST_DEVICE");
    struct weir_driver_failure failure;

    on_cuda = wanted && strcmp(wanted, "cuda") == 0;
    driver = weir__driver_open(on_cuda ? "cuda" : "model", &failure);
    if (!driver)
        ck_abort_msg("%s", failure.text);
    if (!on_cuda)
        MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = 4 * GIB}), 0);
    CU(driver->cuDeviceGet(&device, 0));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, device));
    CU(driver->cuCtxPushCurrent(primary));
    if (on_cuda)
        CU(driver->cuMemAlloc(&scratch, 256 * MIB));
    CU(driver->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    make_pool(0);
}

static void close_device(void) {
    CUcontext popped;

    hog_ends(driver, &hog);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemPoolDestroy(pool));
    CU(driver->cuEventDestroy(event));
    CU(driver->cuStreamDestroy(s));
    CU(driver->cuStreamDestroy(t));
    if (on_cuda)
        CU(driver->cuMemFree(scratch));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(device));
}

/* Gives the stream work that is not done for many a call. */
static void busy(CUstream stream) {
    if (!on_cuda) {
        CU(weir__model_kernel(stream, LONG_WORK));
        return;
    }
    for (int i = 0; i < 128; i++) /* 65 us each on an H200 */
        CU(driver->cuMemsetD8Async(scratch, 0, 256 * MIB, stream));
}

static uint64_t now_ns(void) {
    return driver->ticks_to_ns(driver->ticks());
}

static CUdeviceptr take(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    CU(driver->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static void give(CUdeviceptr block, CUstream stream) {
    CU(driver->cuMemFreeAsync(block, stream));
}

static uint64_t get(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    CU(driver->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static uint64_t reserved(void) {
    return get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static int has_figures(void) {
    return (driver->capabilities & WEIR_CAP_POOL_FIGURES) != 0;
}

/* Ways in which the host may see that work is done. */
static CUresult query_event(void) {
    return driver->cuEventQuery(event);
}
static CUresult query_stream(void) {
    return driver->cuStreamQuery(s);
}
static CUresult wait_for_context(void) {
    return driver->cuCtxSynchronize();
}
static CUresult free_directly(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAlloc(&block, MIB);

    return result == CUDA_SUCCESS ? driver->cuMemFree(block) : result;
}
static CUresult wait_for_other(void) {
    return driver->cuStreamSynchronize(t);
}

/* A question's answer, which the model has to give as `wanted`. */
static void answer(const char *what, int is, int wanted) {
    printf("# driver: %s: %s%s\n", what, is ? "yes" : "no",
           is == wanted ? "" : " (the model: the opposite)");
    if (!on_cuda)
        ck_assert_msg(is == wanted, "%s: %d", what, is);
}

/* ---- what is asked and freed ----------------------------------------------------------------- */

TEST(nothing_is_a_null_pointer) {
    CUdeviceptr block = 1;

    CU(driver->cuMemAllocFromPoolAsync(&block, 0, pool, s));
    MUST_EQ(block, 0);
    CU(driver->cuMemFreeAsync(0, s));
    MUST(driver->cuMemAlloc(&block, 0) == CUDA_ERROR_INVALID_VALUE);
    if (has_figures())
        MUST_EQ(reserved(), 0);
}

/* Nothing is lost, and the stream is unharmed. */
TEST(wrong_frees_are_invalid_values) {
    CUdeviceptr block = take(MIB, s), again;
    char host;

    MUST(driver->cuMemFreeAsync(block + 512, s) == CUDA_ERROR_INVALID_VALUE);
    MUST(driver->cuMemFree(block + 512) == CUDA_ERROR_INVALID_VALUE);
    MUST(driver->cuMemFreeAsync((uintptr_t)&host, s) == CUDA_ERROR_INVALID_VALUE);
    give(block, s);
    MUST(driver->cuMemFreeAsync(block, s) == CUDA_ERROR_INVALID_VALUE);
    again = take(MIB, s);
    MUST_EQ(again, block);
    CU(driver->cuStreamSynchronize(s));
    give(block, s);
    CU(driver->cuStreamSynchronize(s));
}

TEST(either_call_frees_either_block) {
    CUdeviceptr pooled = take(MIB, s), direct;
    uint64_t start;

    CU(driver->cuMemAlloc(&direct, MIB));
    CU(driver->cuMemFreeAsync(direct, s));
    CU(driver->cuStreamSynchronize(s));
    busy(s);
    start = now_ns();
    CU(driver->cuMemFree(pooled));
    answer("cuMemFree of a pool's block waits for its stream", now_ns() - start > LONG_WORK / 4, 0);
    if (!has_figures())
        return;
    CU(driver->cuCtxSynchronize());
    answer("a block that cuMemFree took is used no more",
           get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, 0);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what cuMemFree took", reserved() == 0, 1);
    /* assumed */
    answer("a block that cuMemFree took is used no more once a trim gave it back",
           get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, 0);
}

TEST(used_is_what_was_asked) {
    CUdeviceptr one, more;

    if (!has_figures())
        return;
    one = take(1, s);
    more = take(1000, s);
    MUST_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1001);
    busy(s);
    give(more, s); /* pending */
    MUST_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1);
    give(one, s);
    MUST_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    MUST_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1001);
}

TEST(high_marks_take_zero_alone) {
    uint64_t one = 1, zero = 0;

    if (!has_figures())
        return;
    give(take(MIB, s), s);
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
         a <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; a++)
        MUST(driver->cuMemPoolSetAttribute(pool, a, &one) == CUDA_ERROR_INVALID_VALUE);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    MUST_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0); /* which is what is used */
    give(take(100 * MIB, s), s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    MUST_LE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    give(take(MIB, s), s);
    MUST_LE(32 * MIB, get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
    MUST_LE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 64 * MIB);
}

TEST(the_range_of_a_block) {
    CUdeviceptr block, base = 0;
    size_t bytes = 0;

    if (!driver->cuMemGetAddressRange)
        return;
    block = take(1000, s);
    CU(driver->cuMemGetAddressRange(&base, &bytes, block));
    MUST_EQ(base, block);
    MUST_EQ(bytes, 1000);
    base = 0;
    answer("the range around an address inside a block is the block's",
           driver->cuMemGetAddressRange(&base, &bytes, block + 500) == CUDA_SUCCESS &&
               base == block && bytes == 1000,
           1);
    give(block, s);
}

/* ---- streams that are no more ---------------------------------------------------------------- */

TEST(a_handle_is_used_again) {
    unsigned long long before, after;
    CUstream third, fourth;

    if (!driver->cuStreamGetId)
        return;
    CU(driver->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamGetId(third, &before));
    CU(driver->cuStreamDestroy(third));
    CU(driver->cuStreamCreate(&fourth, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamGetId(fourth, &after));
    MUST(before != after);
    answer("the next stream has a destroyed one's handle", fourth == third, 1);
    CU(driver->cuStreamDestroy(fourth));
}

/* Freed behind work on a stream that is destroyed before it is done. */
TEST(what_an_ended_stream_freed) {
    CUdeviceptr block, other;
    CUstream third;

    for (int ordered = 0; ordered < 2; ordered++) {
        CU(driver->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
        block = take(UNIT, third);
        busy(third);
        give(block, third);
        CU(driver->cuEventRecord(event, third));
        if (ordered)
            CU(driver->cuStreamWaitEvent(t, event, 0));
        CU(driver->cuStreamDestroy(third));
        if (!ordered)
            driver->sleep_ns(8 * LONG_WORK);
        other = take(UNIT, t);
        answer(ordered ? "what an ended stream freed serves who waits for its event"
                       : "what an ended stream freed serves others once it is done",
               other == block, 1);
        give(other, t);
        CU(driver->cuCtxSynchronize());
    }
}

/* ---- what is asked alone --------------------------------------------------------------------- */

/* A stream that is destroyed; a live block of a pool that is; and what is asked then. */
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
    busy(s);
    give(asked_block, s);
    CU(driver->cuMemPoolDestroy(pool));
}

/* The call, if it did well: the work. */
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
    make_pool(0);
    return driver->cuMemAllocFromPoolAsync(&asked_block, MIB, pool, s);
}

/* Of the child: its answer, or a signal's number and 128. */
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

/* By the documentation a pool that is destroyed lets its blocks live until they are freed. */
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
    /* The bytes are those that the parent would have next. */
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
    open_device();
    asked_block = take(MIB, s);
    alone[i].before();
    printf("%u\n", (unsigned)alone[i].ask());
    fflush(stdout);
    _exit(0); /* with what it may have left */
}

TEST(what_is_asked_alone) {
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
    block[0] = take(1, s);
    MUST_EQ(reserved(), UNIT);
    block[1] = take(UNIT, s); /* packed behind the first */
    MUST_EQ(reserved(), 2 * UNIT);
    block[2] = take(UNIT - 4096, s);
    MUST_EQ(reserved(), 2 * UNIT);
    block[3] = take(2 * UNIT + 1, s);
    MUST_EQ(reserved(), 4 * UNIT);
    for (int i = 0; i < 4; i++) {
        MUST_EQ(block[i] % 256, 0);
        give(block[i], s);
    }
    answer("blocks begin at multiples of 512 bytes",
           (block[0] | block[1] | block[2] | block[3]) % 512 == 0, 1);
}

/* Up to units for a trim, which needs the host to have seen the frees; down for a threshold. */
TEST(trims_round_up_and_thresholds_down) {
    CUdeviceptr keep, most;
    uint64_t threshold = 100 * MIB;

    if (!has_figures())
        return;
    keep = take(MIB, s);
    most = take(GIB - MIB, s);
    MUST_EQ(reserved(), GIB);
    give(most, s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 300 * MIB));
    MUST_EQ(reserved(), 320 * MIB);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CU(driver->cuStreamSynchronize(s));
    MUST_EQ(reserved(), 96 * MIB);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved(), UNIT); /* a unit that is in part in use stays */
    give(keep, s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved(), 0);
}

/* Which calls let the threshold act, beside a wait for a stream. */
static int falls_after(CUresult (*look)(void)) {
    uint64_t threshold = 0, all = UINT64_MAX;
    int fell;

    give(take(UNIT, s), s);
    CU(driver->cuEventRecord(event, s));
    driver->sleep_ns(LONG_WORK);
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST_EQ(reserved(), UNIT); /* a threshold by itself lets nothing go */
    CU(look());
    fell = reserved() == 0;
    CU(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    return fell;
}

TEST(when_a_threshold_acts) {
    if (!has_figures())
        return;
    MUST(falls_after(wait_for_context));
    answer("a threshold acts at a wait for another stream", falls_after(wait_for_other), 0);
    answer("a threshold acts at a query of the stream", falls_after(query_stream), 0);
    answer("a threshold acts at a query of an event", falls_after(query_event), 0);
}

/* What other programs see is the reserve. */
TEST(the_device_loses_the_reserve) {
    size_t before = 0, after = 0, total;
    CUdeviceptr block;

    give(take(1, s), s); /* the first growth of a process may take more */
    CU(driver->cuMemGetInfo(&before, &total));
    block = take(512 * MIB, s);
    CU(driver->cuMemGetInfo(&after, &total));
    answer("the device has less by what the reserve has more",
           before - after == 15 * UNIT || before - after == 16 * UNIT, 1);
    give(block, s);
}

/* What nobody has waited for. */
TEST(a_trim_of_what_was_not_seen) {
    if (!has_figures())
        return;
    busy(s);
    give(take(UNIT, s), s);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved(), UNIT);
    driver->sleep_ns(8 * LONG_WORK);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what is done and was not waited for", reserved() == 0, 0);
    CU(free_directly());
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what the wait of cuMemFree was for", reserved() == 0, 0);
}

/* How weir has a trim give back what is done: another stream has it, which is waited for. */
TEST(a_trim_of_what_another_stream_had) {
    enum { UNITS = 8 };
    CUdeviceptr whole, part[UNITS], kept;

    if (!has_figures())
        return;
    whole = take(UNITS * UNIT, s);
    kept = take(UNIT, s);
    busy(s);
    give(whole, s);
    driver->sleep_ns(8 * LONG_WORK);
    for (int i = 0; i < UNITS; i++)
        part[i] = take(UNIT, t);
    answer("by units, another stream has all that is done",
           reserved() == (UNITS + 1) * (uint64_t)UNIT, 1);
    for (int i = 0; i < UNITS; i++)
        give(part[i], t);
    CU(driver->cuStreamSynchronize(t));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what another stream had, which was waited for", reserved() == UNIT,
           1);
    give(kept, s);
}

/* Whole units move to where they are needed; what is smaller does not. */
TEST(free_units_are_moved) {
    enum { COUNT = 48 };
    CUdeviceptr hole[COUNT], keep[COUNT], whole;
    uint64_t before;

    if (!has_figures())
        return;
    for (int i = 0; i < 4; i++) {
        hole[i] = take(2 * UNIT, s);
        keep[i] = take(UNIT, s);
    }
    before = reserved();
    for (int i = 0; i < 4; i++)
        give(hole[i], s);
    CU(driver->cuStreamSynchronize(s));
    whole = take(8 * UNIT, s);
    MUST_EQ(reserved(), before);
    give(whole, s);
    for (int i = 0; i < 4; i++)
        give(keep[i], s);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    MUST_EQ(reserved(), 0);
    for (int i = 0; i < COUNT; i++) {
        hole[i] = take(MIB, s);
        keep[i] = take(MIB, s);
    }
    before = reserved();
    for (int i = 0; i < COUNT; i++)
        give(hole[i], s);
    CU(driver->cuStreamSynchronize(s));
    whole = take(UNIT, s);
    MUST_EQ(reserved(), before + UNIT);
    give(whole, s);
    for (int i = 0; i < COUNT; i++)
        give(keep[i], s);
}

/* The smallest hole that fits, cut from its front; of equal ones the first that was freed. */
TEST(the_best_fit_is_cut_from_its_front) {
    static const size_t sizes[8] = {4 * MIB, 2 * MIB, 3 * MIB, 2 * MIB,
                                    8 * MIB, 2 * MIB, 5 * MIB, MIB};
    static const struct {
        size_t bytes, offset;
    } requests[] = {{2097152, 4195328}, {2097152, 9439232},  {1500000, 19926016},
                    {700000, 27267072}, {3145728, 6292992},  {300000, 27967488},
                    {4194304, 512},     {1048576, 22023680}, {100000, 21426176},
                    {512, 28267520},    {9437184, 28316160}};
    enum { REQUESTS = sizeof requests / sizeof requests[0] };
    CUdeviceptr base = take(512, s), holes[8], keep[8], block[REQUESTS];

    for (int i = 0; i < 8; i++) {
        holes[i] = take(sizes[i], s);
        keep[i] = take(512, s);
    }
    for (int i = 0; i < 8; i++)
        give(holes[i], s);
    for (size_t i = 0; i < REQUESTS; i++) {
        block[i] = take(requests[i].bytes, s);
        MUST_EQ(block[i] - base, requests[i].offset);
    }
    for (size_t i = 0; i < REQUESTS; i++)
        give(block[i], s);
    for (int i = 0; i < 8; i++)
        give(keep[i], s);
    give(base, s);
}

TEST(the_maximum_holds) {
    CUdeviceptr block = 0;
    CUresult result;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_pool(100 * MIB);
    MUST(driver->cuMemAllocFromPoolAsync(&block, 160 * MIB, pool, s) == CUDA_ERROR_OUT_OF_MEMORY);
    answer("a request above the maximum leaves nothing reserved", reserved() == 0, 0);
    /* assumed */
    answer("a request above the maximum leaves all reserved that it may", reserved() == 4 * UNIT,
           1);
    give(take(96 * MIB, s), s);
    result = driver->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s);
    answer("a maximum of 100 MiB lets 128 be reserved", result == CUDA_SUCCESS, 1);
    if (result == CUDA_SUCCESS)
        give(block, s);
}

TEST(the_device_holds) {
    CUdeviceptr block = 0;
    size_t left = 0, total;

    if (!has_figures())
        return;
    hog_takes(driver, &hog, 3 * UNIT);
    MUST(driver->cuMemAllocFromPoolAsync(&block, 6 * UNIT, pool, s) == CUDA_ERROR_OUT_OF_MEMORY);
    answer("a request above what the device has leaves nothing reserved", reserved() == 0, 0);
    CU(driver->cuMemGetInfo(&left, &total));
    /* assumed */
    answer("a request above what the device has leaves all of that reserved",
           reserved() >= 3 * UNIT && left < UNIT, 1);
    CU(driver->cuMemPoolTrimTo(pool, 0));
    answer("a trim gives back what a refused request left", reserved() == 0, 1); /* assumed */
}

/* ---- reuse ----------------------------------------------------------------------------------- */

/* What became of the block that t, or its own stream, would like to have. */
enum situation {
    OWN,            /* freed behind work on the stream that asks */
    SEEN,           /* freed on another, and the host has waited for that */
    PENDING,        /* freed on another behind work, */
    PENDING_BEHIND, /* and the stream that asks waits for an event after the free */
    DONE,           /* freed on another, whose work is done, but nobody has asked, */
    DONE_BEHIND,    /* and the same with such an event */
    SITUATIONS
};

static const char *const situation_names[SITUATIONS] = {
    "own", "seen", "pending", "pending, ordered by an event", "done", "done, ordered by an event"};

enum { FOLLOW = 1, OPPORTUNISTIC = 2, INTERNAL = 4, POLICIES = 8 }; /* which are on */

struct outcome {
    CUresult result;
    int same;         /* it is the block that was freed */
    int waited;       /* the call took as long as the work that it might wait for */
    uint64_t took_ns; /* by the call */
};

static void set_policies(int on) {
    for (int i = 0; i < 3; i++) {
        int value = on >> i & 1, is = -1;

        CU(driver->cuMemPoolSetAttribute(
            pool, (CUmemPool_attribute)(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES + i),
            &value));
        CU(driver->cuMemPoolGetAttribute(
            pool, (CUmemPool_attribute)(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES + i), &is));
        MUST_EQ(is, value);
    }
}

static struct outcome try(enum situation what) {
    CUdeviceptr block = take(UNIT, s), other = 0;
    CUstream asks = what == OWN ? s : t;
    struct outcome out;
    uint64_t start;

    busy(s);
    give(block, s);
    if (what == PENDING_BEHIND || what == DONE_BEHIND) {
        CU(driver->cuEventRecord(event, s));
        CU(driver->cuStreamWaitEvent(t, event, 0));
    }
    if (what == SEEN)
        CU(driver->cuStreamSynchronize(s));
    if (what == DONE || what == DONE_BEHIND)
        driver->sleep_ns(8 * LONG_WORK);
    start = now_ns();
    out.result = driver->cuMemAllocFromPoolAsync(&other, UNIT, pool, asks);
    out.took_ns = now_ns() - start;
    out.waited = what < DONE && out.took_ns > LONG_WORK / 4;
    out.same = out.result == CUDA_SUCCESS && other == block;
    if (out.result == CUDA_SUCCESS)
        give(other, asks);
    return out;
}

/* By the words of the programming guide ("Memory reuse policies"), and what was measured: what the driver
 * orders by itself it orders on the device, and the call does not wait. */
static struct outcome expected(enum situation what, int on, int room) {
    int ordered = what == PENDING_BEHIND || what == DONE_BEHIND;
    int done = what == DONE || what == DONE_BEHIND;
    int same =
        what == OWN || what == SEEN || (ordered && (on & FOLLOW)) || (done && (on & OPPORTUNISTIC));

    if (same || room)
        return (struct outcome){.same = same};
    if (on & INTERNAL)
        return (struct outcome){.same = 1};
    return (struct outcome){.result = CUDA_ERROR_OUT_OF_MEMORY};
}

/* Whether there is room for another block. */
enum { ROOM, MAXIMUM, FULL_DEVICE, ROOMS };

static const char *const room_names[ROOMS] = {"room", "at the maximum", "full device"};

/* Known of drivers: what gives reuse; that memory that is at work goes to nobody who is not behind it as long
 * as there is other.  Not: what a policy that is off withholds, nor what becomes of it on a full device or at a
 * maximum. */
static int is_known(enum situation what, int on, int room) {
    if (expected(what, on, 1).same)
        return 1;
    return what == PENDING && room == ROOM;
}

/* The policies one by one and together; with room for another block, and with none. */
TEST(each_policy_alone_and_together) {
    int on = _i % POLICIES, room = _i / POLICIES;

    if (room == MAXIMUM && !(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    if (room == FULL_DEVICE)
        hog_takes(driver, &hog, UNIT);
    for (enum situation what = 0; what < SITUATIONS; what++) {
        struct outcome wanted = expected(what, on, room == ROOM), is;
        int agrees;

        CU(driver->cuCtxSynchronize());
        CU(driver->cuMemPoolDestroy(pool));
        make_pool(room == MAXIMUM ? UNIT : 0);
        set_policies(on);
        is = try(what);
        agrees = is.result == wanted.result && is.same == wanted.same && is.waited == wanted.waited;
        printf("# driver: reuse, policies%s%s%s%s, %s, %s: %s%s, %.2f ms%s\n",
               on & FOLLOW ? " follow" : "", on & OPPORTUNISTIC ? " opportunistic" : "",
               on & INTERNAL ? " internal" : "", on ? "" : " none", room_names[room],
               situation_names[what],
               is.result != CUDA_SUCCESS ? "refused"
               : is.same                 ? "the same block"
                                         : "another",
               is.waited ? ", after the work" : "", (double)is.took_ns / (double)MS,
               agrees ? "" : " (the model: otherwise)");
        if (!on_cuda || is_known(what, on, room))
            ck_assert_msg(agrees, "policies %d, room %d, %s: result %u, same %d, waited %d", on,
                          room, situation_names[what], is.result, is.same, is.waited);
    }
}

/* Two blocks side by side for a request that neither holds alone, and no other room. */
TEST(room_in_pieces_behind_work) {
    CUdeviceptr first, second, whole = 0;
    CUresult result;
    CUstream third;
    uint64_t start;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_pool(2 * UNIT);
    CU(driver->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    first = take(UNIT, s);
    second = take(UNIT, third);
    busy(s);
    busy(third);
    give(first, s);
    give(second, third);
    start = now_ns();
    result = driver->cuMemAllocFromPoolAsync(&whole, 2 * UNIT, pool, t);
    answer("two pending blocks together serve a stream that is behind neither",
           result == CUDA_SUCCESS, 0);
    answer("a call that wants two pending blocks waits for them", now_ns() - start > LONG_WORK / 4,
           0);
    if (result == CUDA_SUCCESS)
        give(whole, t);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(third));
}

TEST(policies_are_on_at_first) {
    struct {
        int value, guard;
    } policy = {0, 77};
    CUmemoryPool other;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    uint64_t threshold = 77;

    CU(driver->cuMemPoolCreate(&other, &props));
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; a++) {
        CU(driver->cuMemPoolGetAttribute(other, a, &policy.value));
        MUST_EQ(policy.value, 1);
        MUST_EQ(policy.guard, 77);
    }
    CU(driver->cuMemPoolGetAttribute(other, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST_EQ(threshold, 0);
    CU(driver->cuMemPoolDestroy(other));
}

/* An event before the free orders nothing. */
TEST(an_event_before_the_free_does_not_count) {
    CUdeviceptr block = take(UNIT, s), other;

    busy(s);
    CU(driver->cuEventRecord(event, s));
    give(block, s);
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = take(UNIT, t);
    MUST(other != block);
    give(other, t);
}

/* A wait is for what the event stood for when it was called. */
TEST(an_event_recorded_again) {
    CUdeviceptr block = take(UNIT, s), other;

    busy(s);
    give(block, s);
    CU(driver->cuEventRecord(event, s));
    CU(driver->cuStreamWaitEvent(t, event, 0));
    CU(driver->cuEventRecord(event, t));
    other = take(UNIT, t);
    answer("a wait counts for what the event stood for then", other == block, 1);
    give(other, t);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuEventDestroy(event));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    block = take(UNIT, s);
    busy(s);
    give(block, s);
    CU(driver->cuEventQuery(event)); /* never recorded: done, and orders nothing */
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = take(UNIT, t);
    MUST(other != block);
    give(other, t);
}

TEST(order_through_a_third_stream) {
    CUdeviceptr block = take(UNIT, s), other;
    CUstream third;

    CU(driver->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    busy(s);
    give(block, s);
    CU(driver->cuEventRecord(event, s));
    CU(driver->cuStreamWaitEvent(third, event, 0));
    CU(driver->cuEventRecord(event, third));
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = take(UNIT, t);
    answer("an order by events goes through a third stream", other == block, 1);
    give(other, t);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(third));
}

/* What the host sees otherwise than by waiting, with nothing but that to go by. */
static int serves_after(CUresult (*look)(void)) {
    CUdeviceptr block, other;

    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemPoolDestroy(pool));
    make_pool(0);
    set_policies(0);
    block = take(UNIT, s);
    give(block, s);
    CU(driver->cuEventRecord(event, s));
    driver->sleep_ns(LONG_WORK);
    CU(look());
    other = take(UNIT, t);
    give(other, t);
    return other == block;
}

TEST(what_counts_as_seen) {
    MUST(serves_after(wait_for_context));
    answer("a query that finds an event done counts as seen", serves_after(query_event), 0);
    answer("a query that finds the stream done counts as seen", serves_after(query_stream), 0);
    answer("a wait for another stream counts as seen", serves_after(wait_for_other), 0);
    answer("the wait of cuMemFree counts as seen", serves_after(free_directly), 0);
}

/* Two blocks that t may have, of the same size: by an event, and since its work is done. */
TEST(done_or_ordered_first) {
    CUdeviceptr ordered = take(UNIT, s), done, keep, other;
    CUstream third;

    CU(driver->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    done = take(UNIT, third);
    keep = take(UNIT, third); /* else it might be one with what lies behind */
    give(done, third);
    driver->sleep_ns(LONG_WORK);
    busy(s);
    give(ordered, s);
    CU(driver->cuEventRecord(event, s));
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = take(UNIT, t);
    MUST(other == done || other == ordered);
    answer("what is done goes before what is ordered", other == done, 0);
    give(other, t);
    give(keep, third);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(third));
}

/* Halves of a unit side by side, one the stream's own and one that it is ordered behind. */
TEST(neighbours_of_two_streams) {
    CUdeviceptr first, second, other;

    if (!has_figures())
        return;
    first = take(UNIT / 2, s);
    second = take(UNIT / 2, t);
    MUST_EQ(second, first + UNIT / 2);
    busy(s);
    busy(t);
    give(first, s);
    give(second, t);
    CU(driver->cuEventRecord(event, s));
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = take(UNIT, t);
    answer("its own and what it is ordered behind serve as one", other == first, 0);
    give(other, t);
}

/* The legacy stream runs behind all blocking ones, without any event. */
TEST(the_legacy_stream_is_behind_blocking_ones) {
    CUdeviceptr block, other;
    CUstream blocking;

    CU(driver->cuStreamCreate(&blocking, 0));
    block = take(UNIT, blocking);
    busy(blocking);
    give(block, blocking);
    other = take(UNIT, NULL);
    answer("the legacy stream has what a blocking stream freed behind work", other == block, 1);
    give(other, NULL);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(blocking));
}

static void take_time(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* What programs look at, and weir run answers likewise. */
TEST(a_refused_block_is_none) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 .maxSize = 1};
    CUdeviceptr block = 77;
    CUmemoryPool small;

    if (driver->version < 12020)
        return;
    CU(driver->cuMemPoolCreate(&small, &properties));
    MUST_EQ(driver->cuMemAllocFromPoolAsync(&block, (size_t)64 << 20, small, s),
            CUDA_ERROR_OUT_OF_MEMORY);
    MUST_EQ(block, 0);
    block = 77;
    MUST_EQ(driver->cuMemAllocFromPoolAsync(&block, (size_t)1 << 50, pool, s),
            CUDA_ERROR_OUT_OF_MEMORY);
    MUST_EQ(block, 0);
    CU(driver->cuMemPoolDestroy(small));
}

/* Which weir's wait for the device rests on, and proves so (device_wait.c). */
TEST(frees_wait_for_a_host_function) {
    CUdeviceptr block;
    void *host;

    CU(driver->cuMemAlloc(&block, UNIT));
    CU(driver->cuLaunchHostFunc(s, take_time, NULL));
    MUST_EQ(driver->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    CU(driver->cuMemFree(block));
    CU(driver->cuStreamQuery(s));
    CU(driver->cuMemAllocHost(&host, 64 << 10));
    CU(driver->cuLaunchHostFunc(s, take_time, NULL));
    MUST_EQ(driver->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    CU(driver->cuMemFreeHost(host));
    CU(driver->cuStreamQuery(s));
}

/* A non-blocking stream that has nothing but a wait is at work until what it waits for is done, and so is one that
 * waits for that. */
TEST(who_waits_is_at_work) {
    CUevent first, second;

    CU(driver->cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuCtxSynchronize());
    if (_i == 0)
        busy(s);
    else
        busy(NULL);
    CU(driver->cuEventRecord(first, _i == 0 ? s : NULL));
    CU(driver->cuStreamWaitEvent(t, first, 0));
    CU(driver->cuEventRecord(second, t));
    CU(driver->cuStreamWaitEvent(s, second, 0));
    MUST_EQ(driver->cuStreamQuery(t), CUDA_ERROR_NOT_READY);
    MUST_EQ(driver->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamQuery(t));
    CU(driver->cuStreamQuery(s));
    CU(driver->cuEventDestroy(first));
    CU(driver->cuEventDestroy(second));
}

/* So is one that a pool has put behind another's work. */
TEST(who_was_given_what_is_pending_is_at_work) {
    CUdeviceptr block, other;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_pool(UNIT);
    block = take(UNIT, s);
    CU(driver->cuCtxSynchronize());
    busy(s);
    give(block, s);
    other = take(UNIT, t);
    MUST_EQ(other, block);
    answer("who was put behind another's work is at work",
           driver->cuStreamQuery(t) == CUDA_ERROR_NOT_READY, 1);
    give(other, t);
}

/* What it is may not be asked of a stream while it is captured (lib/engine/stream_order.c). */
TEST(a_captured_stream_tells_nothing_of_itself) {
    CUgraph graph = NULL;
    unsigned int flags;
    CUresult result;

    CU(driver->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    result = driver->cuStreamGetFlags(s, &flags);
    MUST_EQ(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    result = driver->cuStreamEndCapture(s, &graph);
    MUST_EQ(result, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* lib/engine/stream_order.h: whether a stream is idle, and what that proves. */
TEST(what_an_idle_stream_proves) {
    unsigned int flags = 4711;
    CUstream blocking;
    CUevent behind;

    CU(driver->cuStreamCreate(&blocking, 0));
    CU(driver->cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuStreamGetFlags(blocking, &flags));
    MUST_EQ(flags, 0);
    CU(driver->cuStreamGetFlags(s, &flags));
    MUST_EQ(flags, CU_STREAM_NON_BLOCKING);
    CU(driver->cuStreamGetFlags(NULL, &flags));
    answer("the legacy stream is a blocking one", flags == 0, 1);
    CU(driver->cuCtxSynchronize());
    busy(s);
    MUST_EQ(driver->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuStreamQuery(s));
    busy(NULL);
    answer("a blocking stream shows what it is behind", driver->cuStreamQuery(blocking) != 0, 0);
    CU(driver->cuEventRecord(behind, blocking));
    MUST_EQ(driver->cuEventQuery(behind), CUDA_ERROR_NOT_READY);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuEventDestroy(behind));
    CU(driver->cuStreamDestroy(blocking));
}

/* ---- the cases ------------------------------------------------------------------------------- */

void add_driver_points(Suite *suite) {
    TCase *tests = suite_add_case(suite, "the driver's pools", 120, open_device, close_device);

    ADD_TESTS(tests, nothing_is_a_null_pointer, wrong_frees_are_invalid_values,
              either_call_frees_either_block, used_is_what_was_asked, high_marks_take_zero_alone,
              the_range_of_a_block, a_handle_is_used_again, what_an_ended_stream_freed,
              the_reserve_grows_by_units, trims_round_up_and_thresholds_down,
              a_trim_of_what_was_not_seen, a_trim_of_what_another_stream_had, when_a_threshold_acts,
              the_device_loses_the_reserve, free_units_are_moved,
              the_best_fit_is_cut_from_its_front, the_maximum_holds, the_device_holds);
    tcase_add_loop_test(tests, what_is_asked_alone, 0, ALONE);
    tests = suite_add_case(suite, "the driver's reuse", 120, open_device, close_device);
    ADD_TESTS(tests, policies_are_on_at_first, room_in_pieces_behind_work,
              an_event_before_the_free_does_not_count, an_event_recorded_again,
              order_through_a_third_stream, what_counts_as_seen, done_or_ordered_first,
              neighbours_of_two_streams, the_legacy_stream_is_behind_blocking_ones,
              what_an_idle_stream_proves, frees_wait_for_a_host_function, a_refused_block_is_none,
              who_was_given_what_is_pending_is_at_work, a_captured_stream_tells_nothing_of_itself);
    tcase_add_loop_test(tests, each_policy_alone_and_together, 0, ROOMS * POLICIES);
    tcase_add_loop_test(tests, who_waits_is_at_work, 0, 2);
}
