/* SPDX-License-Identifier: MIT */
/* test_adapters.c: the functions that frameworks call, on the device model: the stream of a block, the message of a
 * failed allocation, and frees that a capture delays.
 *
 * check-python and check-adapters call some of the functions in the module.  check-exports finds each of them. */
#include <dlfcn.h>

#include <weir/adapters.h>

#include "tests/fixtures/logged.h"
#include "tests/fixtures/model_device.h"

#define ROOM (64 * MIB)
#define LARGE (40 * MIB)

static weir_allocator *process; /* the allocator of device 0 */

/* The limit leaves room for one large block, so that freed memory must be reused. */
static void begin_adapters(void) {
    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_LIMIT", "64MiB", 1);
    start_model(8 * GIB);
    OK(weir_device_allocator(0, &process));
    catch_log();
}

/* Expects that many log lines since the last call, and the text in them. */
#define TOLD(count, text) expect_lines_with(__LINE__, count, text)

static void expect_lines_with(int at, int count, const char *text) {
    expect_lines(at, count);
    if (!strstr(logged, text))
        ck_abort_msg("line %d: %s", at, logged);
}

/* Allocates a large block on the stream, uses it there for `ns`, and frees it. */
static void live_in_torch(CUstream stream, uint64_t owner, uint64_t ns) {
    void *block = weir_torch_alloc(LARGE, 0, stream);

    use_and_check(stream, block, LARGE, owner, ns);
    weir_torch_free(block, LARGE, 0, stream);
}

static void end_adapters(void) {
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(process).blocks, 0);
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    check_model();
}

/* Returns 1 if a C++ library is loaded, as by sanitizers.  A failure then throws: see check-adapters. */
static int throws(void) {
    return dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD) != NULL;
}

/* ---- PyTorch --------------------------------------------------------------------------------- */

CASE("adapters", 30, begin_adapters, end_adapters);

TEST(torch_in_the_order_of_the_stream) {
    uint64_t now;
    void *block;

    weir_torch_init(1);
    block = weir_torch_alloc(LARGE, 0, A);
    MUST(block != NULL);
    now = weir__model_now_ns();
    use_and_check(A, block, LARGE, 1, 50 * MS);
    weir_torch_free(block, LARGE, 0, A);
    MUST(weir_torch_alloc(LARGE, 0, A) == block); /* without a wait */
    MUST_LE(weir__model_now_ns(), now + 10 * MS);
    use_and_check(A, block, LARGE, 2, MS);
    weir_torch_free(block, LARGE, 0, A);
    block = weir_torch_alloc(LARGE, 0, B); /* ordered after the work of A */
    use_and_check(B, block, LARGE, 3, MS);
    weir_torch_free(block, LARGE, 0, B);
    weir_torch_free(NULL, 0, 0, A);
    MUST(weir_torch_alloc(0, 0, A) == NULL);
    MUST_EQ(stats_of(process).allocs, 3);
}

TEST(torch_record_stream) {
    void *block;

    block = weir_torch_alloc(LARGE, 0, A);
    use_and_check(A, block, LARGE, 1, MS);
    weir_torch_record_stream(block, B);
    use_and_check(B, block, LARGE, 1, 50 * MS);
    weir_torch_free(block, LARGE, 0, A);
    live_in_torch(A, 2, MS);
    weir_torch_record_stream(NULL, B);
    weir_torch_record_stream(&block, B); /* an address that weir did not allocate */
    TOLD(0, "");
}

/* A stream that was destroyed may still run work on the block. */
TEST(torch_a_noted_stream_has_ended) {
    uint64_t now = 0;
    void *block;

    block = weir_torch_alloc(LARGE, 0, A);
    weir_torch_record_stream(block, B);
    use_and_check(B, block, LARGE, 1, 50 * MS);
    now = weir__model_now_ns();
    CU(driver->cuStreamDestroy(B));
    weir_torch_free(block, LARGE, 0, A);
    TOLD(0, "");
    MUST_LE(now + 50 * MS, weir__model_now_ns());
    live_in_torch(A, 2, MS);
}

TEST(torch_finds_the_base_and_frees_idle_memory) {
    unsigned char *block;
    size_t bytes = 1;

    block = weir_torch_alloc(LARGE, 0, A);
    MUST(weir_torch_base_alloc(block + LARGE - 1, &bytes) == block);
    MUST_EQ(bytes, LARGE);
    MUST(weir_torch_base_alloc(block + 77, NULL) == block);
    MUST(weir_torch_base_alloc(&bytes, &bytes) == &bytes);
    MUST_EQ(bytes, 0);
    weir_torch_free(block, LARGE, 0, A);
    MUST_LE(LARGE, stats_of(process).reserved);
    weir_torch_reset();
    MUST_EQ(stats_of(process).reserved, 0);
}

CASE("adapters", 30, NULL, NULL);

TEST(torch_memory_fraction_limits_the_allocator) {
    void *block;

    if (throws())
        return;
    unsetenv("WEIR_LIMIT");
    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_ENGINE", "pool", 1);
    start_model(8 * GIB);
    catch_log();
    weir_torch_memory_fraction(0.25, 0);
    MUST(weir_torch_alloc(3 * GIB, 0, A) == NULL);
    TOLD(1, "limit 2048.0 MiB");
    block = weir_torch_alloc(GIB, 0, A);
    MUST(block != NULL);
    weir_torch_memory_fraction(1, 0);
    weir_torch_free(weir_torch_alloc(3 * GIB, 0, A), 3 * GIB, 0, A);
    weir_torch_free(block, GIB, 0, A);
    weir_torch_memory_fraction(0.0001, 0); /* less than the step of pool growth: ignored */
    TOLD(0, "");
    weir_torch_free(weir_torch_alloc(3 * GIB, 0, A), 3 * GIB, 0, A); /* keeps its memory */
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 0);
    weir_torch_memory_fraction(0.25, 0);
    TOLD(1, "weir: error: weir_torch_memory_fraction: ");
    weir_torch_memory_fraction(2, 0);
    weir_torch_memory_fraction(-1, 0);
    weir_torch_memory_fraction(0.0 / 0.0, 0);
    TOLD(0, "");
    OK(weir_device_allocator(0, &process));
    end_adapters();
}

CASE("adapters", 30, NULL, end_adapters);

TEST(torch_allocates_on_the_named_device) {
    weir_allocator *other;
    CUcontext second;
    CUstream stream;
    void *here, *there;
    size_t bytes = 0;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_adapters();
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    stream = make_stream();
    CU(driver->cuCtxPopCurrent(&second));
    here = weir_torch_alloc(LARGE, 0, A);
    there = weir_torch_alloc(LARGE, 1, stream);
    OK(weir_device_allocator(1, &other));
    MUST(here && there && other != process);
    MUST_EQ(stats_of(other).blocks, 1);
    weir_torch_record_stream(there, stream);
    MUST(weir_torch_base_alloc((char *)there + 5, &bytes) == there && bytes == LARGE);
    weir_torch_free(here, LARGE, 0, A);
    weir_torch_free(there, LARGE, 1, stream);
    weir_torch_reset();
    MUST_EQ(stats_of(other).reserved, 0);
}

CASE("adapters", 30, NULL, NULL);

/* A failure gives no hint at OOM reports if no allocator failed (_i 0), or if the user has set OOM reports. */
TEST_EACH(2, refused_without_an_oom_report) {
    if (throws())
        return;
    if (_i == 0) {
        setenv("WEIR_DEVICE", "model", 1);
        setenv("WEIR_PREALLOC", "16GiB", 1);
        start_model(8 * GIB);
        catch_log();
    } else {
        setenv("WEIR_OOM_REPORT", "off", 1);
        begin_adapters();
    }
    MUST(weir_torch_alloc(100 * MIB, 0, A) == NULL);
    expect_lines_with(__LINE__, _i == 0 ? 2 : 1, "(further errors like it are not reported)\n");
    MUST(!strstr(logged, "WEIR_OOM_REPORT"));
}

TEST(torch_logs_requests_that_fail) {
    if (throws())
        return;
    begin_adapters();
    MUST(weir_torch_alloc(100 * MIB, 0, A) == NULL);
    TOLD(1, "weir: error: weir_torch_alloc: could not allocate 104857600 bytes (100.0 MiB): the "
            "allocator's limit is reached; reserved 0.0 MiB, in use 0.0 MiB, limit 64.0 MiB, free "
            "on the device ");
    MUST(strstr(
        logged,
        "(further errors like it are not reported; set WEIR_OOM_REPORT=stderr for the cause)\n"));
    MUST(weir_torch_alloc(MIB, 7, A) == NULL);
    TOLD(2, "weir: error: model:7 has no allocator: device 'model:7': there is 1 device");
    MUST(strstr(logged, "no usable device or driver (further errors like it are not reported)"));
    for (int i = 0; i < 100; i++)
        MUST(weir_torch_alloc((size_t)(100 + i) * MIB, 0, A) == NULL &&
             weir_cupy_malloc(NULL, 100 * MIB, 0) == NULL);
    TOLD(0, ""); /* both failures were reported before */
    end_adapters();
}

CASE("adapters", 30, begin_adapters, end_adapters);

/* PyTorch frees a block within a capture, after several streams used the block before the capture. */
TEST(torch_frees_in_a_capture_are_kept) {
    void *block, *later;

    block = weir_torch_alloc(20 * MIB, 0, A);
    weir_torch_record_stream(block, B);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    weir_torch_free(block, 20 * MIB, 0, A);
    TOLD(0, "");
    MUST_EQ(stats_of(process).blocks, 1);
    later = weir_torch_alloc(MIB, 0, B); /* frees `block`, ordered after all work */
    MUST_EQ(stats_of(process).blocks, 1);
    drop_capture(A);
    weir_torch_free(later, MIB, 0, B);
}

/* One block is freed within the capture, and another one outlives it.  Both are memory of the graph. */
TEST(torch_allocates_in_a_capture) {
    CUgraphExec exec;
    CUgraph graph;
    void *inside, *result;

    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    inside = weir_torch_alloc(MIB, 0, A);
    result = weir_torch_alloc(2 * MIB, 0, A);
    MUST(inside && result && inside != result);
    CU(weir__model_kernel(A, MS));
    weir_torch_free(inside, MIB, 0, A);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 3; i++)
        CU(driver->cuGraphLaunch(exec, A));
    weir_torch_free(result, 2 * MIB, 0, A);
    TOLD(0, "");
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

TEST(frees_that_are_mistakes_are_told) {
    char *block;

    block = weir_torch_alloc(MIB, 0, A);
    weir_torch_free(block + 256, MIB, 0, A);
    TOLD(1, "not a live block of this allocator");
    weir_torch_free(block, MIB, 0, A);
    TOLD(0, "");
}

CASE("adapters", 30, NULL, NULL);

/* A framework may free blocks while the process ends, and the driver with it.  weir does not log such frees. */
TEST(frees_after_the_driver_are_not_told) {
    void *block;

    begin_adapters();
    block = weir_torch_alloc(MIB, 0, A);
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        weir__model_fail((enum weir_driver_entry)entry, 1, CUDA_ERROR_DEINITIALIZED, 1);
    weir_torch_free(block, MIB, 0, A);
    weir_cupy_free(NULL, block, 0);
    TOLD(0, "");
}

/* ---- CuPy ------------------------------------------------------------------------------------ */

CASE("adapters", 30, begin_adapters, end_adapters);

/* Uses of a block without a stream come after all earlier uses of its memory, and before all later ones. */
TEST(cupy_without_a_stream_waits_for_all_streams) {
    void *block;

    live_in_torch(A, 1, 20 * MS);
    for (uint64_t i = 2; i < 5; i++) {
        block = weir_cupy_malloc(NULL, LARGE, 0);
        use_and_check(B, block, LARGE, i, 5 * MS);
        use_and_check(C, block, LARGE, i, 50 * MS);
        weir_cupy_free(NULL, block, 0);
    }
    live_in_torch(A, 5, MS);
    weir_cupy_free(NULL, NULL, 0);
    MUST(weir_cupy_malloc(NULL, 0, 0) == NULL);
}

TEST(cupy_on_one_stream_waits_for_nothing) {
    uint64_t now;
    void *block;

    block = weir_cupy_malloc(A, LARGE, 0);
    now = weir__model_now_ns();
    use_and_check(A, block, LARGE, 1, 50 * MS);
    weir_cupy_free(A, block, 0);
    block = weir_cupy_malloc(A, LARGE, 0);
    use_and_check(A, block, LARGE, 2, MS);
    weir_cupy_free(A, block, 0);
    MUST_LE(weir__model_now_ns(), now + 10 * MS);
    MUST(weir_cupy_malloc(NULL, 100 * MIB, 0) == NULL && weir_cupy_malloc(A, 100 * MIB, 0) == NULL);
    TOLD(1, "weir_cupy_malloc: could not allocate 104857600 bytes"); /* its first failure */
}

/* ---- ONNX Runtime ---------------------------------------------------------------------------- */

TEST(onnx_waits_for_all_streams_until_one_is_set) {
    uint64_t now;
    void *block;

    block = weir_onnx_alloc(LARGE);
    use_and_check(B, block, LARGE, 1, 20 * MS);
    weir_onnx_free(block);
    block = weir_onnx_alloc(LARGE);
    use_and_check(C, block, LARGE, 2, 20 * MS);
    CU(driver->cuStreamSynchronize(C));
    now = weir__model_now_ns();
    weir_onnx_stream(A);
    weir_onnx_free(block);
    block = weir_onnx_alloc(LARGE);
    use_and_check(A, block, LARGE, 3, 50 * MS);
    weir_onnx_free(block);
    MUST_LE(weir__model_now_ns(), now + 10 * MS);
    weir_onnx_stream(NULL);
    block = weir_onnx_alloc(LARGE);
    use_and_check(B, block, LARGE, 4, MS);
    weir_onnx_free(block);
    weir_onnx_free(NULL);
    weir_onnx_empty_cache();
    MUST_EQ(stats_of(process).reserved, 0);
    MUST(weir_onnx_alloc(100 * MIB) == NULL);
    TOLD(1, "weir_onnx_alloc: could not allocate 104857600 bytes");
}

CASE("adapters", 30, NULL, end_adapters);

TEST(onnx_allocates_on_the_current_device) {
    weir_allocator *other;
    CUcontext second;
    void *here, *there;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_adapters();
    here = weir_onnx_alloc(MIB);
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    there = weir_onnx_alloc(MIB);
    OK(weir_device_allocator(1, &other));
    MUST_EQ(stats_of(other).blocks, 1);
    weir_onnx_free(here); /* the address tells the device */
    CU(driver->cuCtxPopCurrent(&second));
    weir_onnx_free(there);
    MUST_EQ(stats_of(other).blocks, 0);
}

/* ---- handlers -------------------------------------------------------------------------------- */

TEST(a_handler_serves_from_its_allocator_or_the_process) {
    weir_options options = options_of(KIND_POOL, "model", 0);
    weir_mem_handler handler;
    weir_allocator *own;

    begin_adapters();
    OK(weir_allocator_create(&options, &own));
    for (int i = 0; i < 2; i++) {
        weir_allocator *serves = i ? own : process;
        void *block = NULL;

        memset(&handler, 0xff, sizeof handler);
        weir_mem_handler_init(&handler, i ? own : NULL);
        ck_assert_str_eq(handler.name, "weir");
        ANSWERS(0, handler.device_alloc(handler.ctx, &block, LARGE, A));
        MUST(block != NULL);
        MUST_EQ(stats_of(serves).blocks, 1);
        use_and_check(A, block, LARGE, (uint64_t)i + 1, MS);
        ANSWERS(0, handler.device_free(handler.ctx, block, LARGE, A));
        MUST_EQ(stats_of(serves).blocks, 0);
        ANSWERS(0, handler.device_free(handler.ctx, NULL, 0, A));
        MUST(handler.device_free(handler.ctx, (char *)block + 256, 1, A) == WEIR_E_NOT_OWNED);
        TOLD(1 - i, i ? "" : "weir_handler_free"); /* the first such failure of the process */
    }
    weir_mem_handler_init(&handler, NULL);
    MUST(handler.device_alloc(handler.ctx, &(void *){NULL}, 100 * MIB, A) == WEIR_E_LIMIT);
    TOLD(1, "weir_handler_alloc: could not allocate 104857600 bytes");
    OK(weir_allocator_destroy(own));
}

/* ---- no allocator ---------------------------------------------------------------------------- */

static void ask_torch(void) {
    if (!throws())
        MUST(weir_torch_alloc(MIB, 0, A) == NULL);
}

static void ask_cupy(void) {
    MUST(weir_cupy_malloc(NULL, MIB, 0) == NULL);
}

static void ask_onnx(void) {
    MUST(weir_onnx_alloc(MIB) == NULL);
}

static void ask_handler(void) {
    void *block = NULL;

    MUST(weir_handler_alloc(NULL, &block, MIB, A) != WEIR_OK && block == NULL);
}

static void (*const asks[])(void) = {ask_torch, ask_cupy, ask_onnx, ask_handler};

enum { ASKS = sizeof asks / sizeof asks[0] };

/* Returns how often the last log lines contain the text. */
static int times(const char *text) {
    int count = 0;

    for (const char *at = logged; (at = strstr(at, text)); at++)
        count++;
    return count;
}

#define NOTHING WEIR_ENTRY_COUNT

static const struct {
    const char *name, *value, *log, *says;
    enum weir_driver_entry refuses; /* this entry runs out of memory */
} reasons[] = {
    {"WEIR_LIMIT", "much", NULL,
     "weir: error: WEIR_LIMIT 'much': it is not a number; expected a size", NOTHING},
    {"WEIR_PREALLOC", "200GiB", NULL,
     "weir: error: model:0 has no allocator: preallocation of 200GiB is above the device's 8GiB: "
     "preallocate at most that; set are WEIR_PREALLOC '200GiB', WEIR_DEVICE 'model'",
     NOTHING},
    {"WEIR_PEERS", "3", NULL, "peers '3': peer 3: there is 1 device", NOTHING},
    {"WEIR_KEEP_FREE", "200GiB", NULL, "keep-free '200GiB' is above the device's 8GiB: ", NOTHING},
    {"WEIR_PREALLOC_MIN", "8GiB", NULL,
     "weir: error: preallocation: requested 8GiB, at least 8GiB, got only ",
     WEIR_ENTRY_cuMemCreate},
    {"WEIR_PRIORITY", "1", NULL,
     "has no allocator: cannot open the device's context: ", WEIR_ENTRY_cuDevicePrimaryCtxRetain},
    {"WEIR_KEEP_FREE", "200GiB", "debug",
     "keep-free '200GiB' is above the device's 8GiB: ", NOTHING},
};

CASE("adapters", 30, NULL, NULL);

/* However many functions fail, and however often, the reason is logged once. */
TEST_EACH(ROWS(reasons), why_there_is_none_is_told_once) {
    setenv("WEIR_DEVICE", "model", 1);
    setenv(reasons[_i].name, reasons[_i].value, 1);
    if (reasons[_i].log)
        setenv("WEIR_LOG", reasons[_i].log, 1);
    start_model(8 * GIB);
    catch_log();
    if (reasons[_i].refuses != NOTHING)
        weir__model_fail(reasons[_i].refuses, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    for (int i = 0; i < 3 * ASKS; i++)
        asks[(i + _i) % ASKS]();
    (void)lines();
    if (times(reasons[_i].says) != 1)
        ck_abort_msg("not once '%s': %s", reasons[_i].says, logged);
    weir__model_faults_clear();
}

TEST(nor_where_the_log_is_to_say_nothing) {
    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_PREALLOC", "200GiB", 1);
    setenv("WEIR_LOG", "none", 1);
    start_model(8 * GIB);
    catch_log();
    ask_cupy();
    TOLD(1, "weir: error: weir_cupy_malloc: ");
}

SUITE("adapters", CK_FORK);
