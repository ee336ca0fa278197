/* SPDX-License-Identifier: MIT */
/* test_drivers.c: drivers that fail for good, lack entries of newer drivers, or capture.  Faults of single calls are
 * tested in test_faults.c. */
#include "tests/fixtures/engines.h"

#include "api/drop_in.h"
#include "base/result.h"

/* ---- faults ---------------------------------------------------------------------------------- */

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* cuMemAlloc may place a region beside other blocks, at any address, but blocks under the caches need whole pages.
 * weir exchanges such a region for another.  In case 1 the driver fails once to free the first one. */
TEST_EACH(2, a_region_that_begins_inside_a_page_is_exchanged) {
    CUdeviceptr other;
    make_engine(KIND_REGIONS, 0, "growth=exact");
    CU(driver->cuMemAlloc(&other, 512));
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    void *block = alloc_live(20 * KIB, A);
    weir__model_faults_clear();
    if (cache == WEIR_SWITCH_ON)
        MUST_EQ((uintptr_t)block % (16 * KIB), 0);
    free_live(block, A);
    CU(driver->cuMemFree(other));
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
}

/* A full device has no memory for the exchange, so a request under the caches fails. */
TEST(a_region_inside_a_page_fails_on_a_full_device) {
    CUdeviceptr other, rest;
    size_t bytes, total;
    void *block = NULL;
    make_engine(KIND_REGIONS, 0, "growth=exact");
    CU(driver->cuMemAlloc(&other, 512));
    CU(driver->cuMemGetInfo(&bytes, &total));
    CU(driver->cuMemAlloc(&rest, bytes));
    weir_status status = weir_alloc(a, 20 * KIB, A, &block);
    MUST_EQ(status, cache == WEIR_SWITCH_ON ? WEIR_E_NO_MEMORY : WEIR_OK);
    free_live(block, A);
    CU(driver->cuMemFree(rest));
    CU(driver->cuMemFree(other));
    free_live(alloc_live(20 * KIB, A), A);
}

/* The exchange takes a driver page of 2 MiB, so it fails under a limit of 1 MiB. */
TEST_EACH(2, a_region_inside_a_page_fails_under_a_low_limit) {
    int room = _i;
    CUdeviceptr other;
    void *block = NULL;
    make_engine(KIND_REGIONS, room ? 2 * MIB : MIB, "growth=exact");
    CU(driver->cuMemAlloc(&other, 512));
    weir_status status = weir_alloc(a, 100, A, &block);
    MUST_EQ(status, cache == WEIR_SWITCH_ON && !room ? WEIR_E_LIMIT : WEIR_OK);
    free_live(block, A);
    CU(driver->cuMemFree(other));
}

static CUresult alloc_askew(CUdeviceptr *block, size_t bytes) {
    CUresult result = driver->cuMemAlloc(block, bytes + 512);

    *block += 512;
    return result;
}

static CUresult free_askew(CUdeviceptr block) {
    return driver->cuMemFree(block - 512);
}

/* This driver places each region inside a page.  weir frees the region again and retries at most once, after a trim. */
TEST(regions_inside_pages_are_retried_once) {
    copy_driver();

    table.cuMemAlloc = alloc_askew;
    table.cuMemFree = free_askew;
    make_engine_on(&table, KIND_REGIONS, 0, "growth=exact cache=on");
    for (size_t mib = 2; mib <= 4; mib++) {
        count_from_here();
        expect_alloc_status(WEIR_E_NO_MEMORY, mib * MIB, A);
        MUST_EQ(calls(WEIR_ENTRY_cuMemAlloc), calls(WEIR_ENTRY_cuMemFree));
        MUST_LE(calls(WEIR_ENTRY_cuMemAlloc), 2); /* the request, and once more after a trim */
    }
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
}

/* A fatal result makes later calls fail, except destroy and the statistics, which keep their last values. */
TEST_EACH(KIND_COUNT * 7, calls_after_the_loss_of_a_device_fail) {
    static const CUresult fatal[] = {CUDA_ERROR_ILLEGAL_ADDRESS,
                                     CUDA_ERROR_LAUNCH_FAILED,
                                     CUDA_ERROR_ECC_UNCORRECTABLE,
                                     CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                     710,
                                     702,
                                     716};
    enum { COUNT = sizeof fatal / sizeof fatal[0] };
    CUresult result = fatal[_i % COUNT];
    make_engine(_i / COUNT, 64 * MIB, "");
    weir_statistics before, after;
    void *block = alloc_live(10 * MIB, A);
    size_t bytes = 77;

    before = stats_of(a);
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        if (entry != WEIR_ENTRY_cuGetErrorName)
            weir__model_fail((enum weir_driver_entry)entry, 1, result, 1);
    expect_alloc_status(WEIR_E_DEVICE_LOST, 60 * MIB, A);
    ck_assert_int_eq(weir_last_driver_result(), (int)result);
    expect_alloc_status(WEIR_E_DEVICE_LOST, 10, A);
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, block, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(a, block, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(a, MIB, &bytes));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(a, 0, &bytes));
    ck_assert_uint_eq(bytes, 77);
    after = stats_of(a);
    ck_assert_mem_eq(&before, &after, sizeof before);
    destroy_as_it_is();
    weir__model_faults_clear();
}

/* ---- drivers that lack something ------------------------------------------------------------- */

TEST_EACH(KIND_COUNT, a_device_without_pools_serves_other_engines) {
    const struct weir_driver *old = older_driver(0);
    weir_options options = default_options(_i, 64 * MIB);

    has_pools = 0;
    if (_i == KIND_POOL) {
        EXPECT(WEIR_E_NO_DEVICE, weir__allocator_create_on(old, &options, &a, NULL, 0));
        ck_assert_ptr_null(a);
        return;
    }
    make_with_on(old, &options);
    free_live(alloc_live(MIB, A), A);
}

static CUresult maps_nothing(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, attribute, device);

    if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        *value = 0;
    return result;
}

/* Creating a mapped arena fails if the driver lacks the entries for mapping or the device does not support it. */
TEST_EACH(2, a_mapped_arena_needs_a_device_that_maps) {
    (void)older_driver(_i ? WEIR_CAP_VIRTUAL : 0);
    weir_options options = default_options(KIND_REGIONS, 0);

    options.engine = WEIR_ENGINE_MAPPED;
    if (!_i)
        table.cuDeviceGetAttribute = maps_nothing;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__allocator_create_on(&table, &options, &a, NULL, 0));
    ck_assert_ptr_null(a);
}

TEST(a_pool_without_figures_is_counted_by_weir) {
    const struct weir_driver *old = older_driver(WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE);
    make_engine_on(old, KIND_POOL, 0, "");
    void *block[10];

    for (int i = 0; i < 10; i++) {
        block[i] = alloc_live(5 * MIB, A);
        ck_assert_uint_eq(check_identities(a).requested, (uint64_t)(i + 1) * 5 * MIB);
    }
    ck_assert_uint_eq(reserved_under_test(), 64 * MIB);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (char *)block[0] + 256, A));
    OK(weir_use(a, block[0], B));
    for (int i = 0; i < 10; i++) {
        free_live(block[i], A);
        EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block[i], A));
    }
    ck_assert_uint_eq(check_identities(a).requested, 0);
    ck_assert_uint_eq(stats_of(a).requested_peak, 50 * MIB);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    OK(weir_trim(a, 0, NULL));
}

/* This driver does not enforce the limit, so weir frees each block that exceeded it. */
TEST(a_pool_without_maximum_stays_below_the_limit) {
    make_engine_on(older_driver(WEIR_CAP_POOL_MAX_SIZE), KIND_POOL, 100 * MIB, "");
    void *block[10];
    int count = 0;

    while (count < 10 && weir_alloc(a, 16 * MIB, A, &block[count]) == WEIR_OK)
        count++;
    ck_assert_int_eq(count, 6);
    expect_alloc_status(WEIR_E_LIMIT, 16 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 97 * MIB, A);
    CU(driver->cuStreamSynchronize(A));
    OK(weir_trim(a, 96 * MIB, NULL));
    ck_assert_uint_eq(check_identities(a).reserved, 96 * MIB);
    ck_assert_uint_eq(stats_of(a).requested, 96 * MIB);
    while (count > 0)
        free_live(block[--count], A);
    destroy();
    ck_assert_uint_eq(device_free(), 4 * GIB);
}

/* A block whose request was undone does not count as requested, even if the driver fails to free it (case 1). */
TEST_EACH(2, what_was_undone_is_nobodys) {
    make_engine_on(older_driver(WEIR_CAP_POOL_MAX_SIZE), KIND_POOL, 128 * MIB, "");
    void *block = alloc_live(80 * MIB, A);

    free_live(block, A);
    CU(driver->cuCtxSynchronize());
    block = alloc_live(60 * MIB, A);
    if (_i)
        weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    expect_alloc_status(WEIR_E_LIMIT, 80 * MIB, A);
    MUST_EQ(stats_of(a).requested, 60 * MIB);
    MUST_EQ(stats_of(a).requested_peak, 80 * MIB);
    weir__model_faults_clear();
    if (_i) { /* the driver refuses waits too */
        refuse_waits();
        MUST_EQ(stats_of(a).requested, 60 * MIB);
        weir__model_faults_clear();
    }
    MUST_EQ(stats_of(a).requested, 60 * MIB);
    MUST_EQ(stats_of(a).requested_peak, 80 * MIB);
}

CASE("alone", 120, open_engine_device, end_test);

/* A block whose request is undone may hold memory that its stream still uses.  If the driver does not free the block at
 * once, the next trim frees it after that work. */
TEST(what_was_undone_is_behind_its_users) {
    weir_status status = WEIR_E_DRIVER;
    void *block;

    make_engine_on(older_driver(WEIR_CAP_POOL_MAX_SIZE), KIND_POOL, 128 * MIB, "");
    for (uint64_t k = 1; status != WEIR_OK; k++) {
        block = alloc_live(80 * MIB, A);
        busy(A, 50 * MS);
        free_live(block, A);
        weir__model_fail(WEIR_ENTRY_cuMemPoolGetAttribute, k, CUDA_ERROR_UNKNOWN, 1);
        weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
        status = weir_alloc(a, 80 * MIB, A, &block);
        MUST(k > 1 || status != WEIR_OK);
        weir__model_faults_clear();
        MUST_EQ(stats_of(a).requested, status == WEIR_OK ? 80 * MIB : 0);
        OK(weir_trim(a, 0, NULL));
        MUST(status == WEIR_OK || driver->cuStreamQuery(A) == CUDA_SUCCESS);
    }
    OK(weir_free(a, block, A));
}

/* ---- captures -------------------------------------------------------------------------------- */

static weir_stream captured;
static CUresult capture_result;

static CUresult report_captured_stream(CUstream stream, CUstreamCaptureStatus *status) {
    CUresult result = driver->cuStreamIsCapturing(stream, status);

    if (result == CUDA_SUCCESS && captured == stream) {
        *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        result = capture_result;
    }
    return result;
}

static CUresult record_elsewhere(CUevent event, CUstream stream) {
    MUST(!captured || stream != captured);
    return driver->cuEventRecord(event, stream);
}

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* The driver reports a captured stream in two ways: as active, or with the result that the legacy stream has during a
 * capture.  With either, weir records no event and waits for none on that stream, and the capture stays valid. */
TEST_EACH(2 * KIND_COUNT, a_captured_stream_gets_no_event_and_no_wait) {
    static const CUresult results[] = {CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT};
    int kind = _i / 2;
    void *none = &none;
    copy_driver();
    table.cuStreamIsCapturing = report_captured_stream;
    table.cuEventRecord = record_elsewhere;
    capture_result = results[_i % 2];
    captured = NULL;
    make_engine_on(&table, kind, 256 * MIB, "");
    free_live(alloc_live(1000, B), B);
    void *block = alloc_live(MIB, A);
    void *used = alloc_live(MIB, B);
    OK(weir_use(a, used, A));
    captured = A;
    count_from_here();
    /* An arena makes a node of the request, except on the legacy stream. */
    if (kind == KIND_DIRECT || (kind != KIND_POOL && capture_result != CUDA_SUCCESS)) {
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 1000, A, &none));
        ck_assert_ptr_eq(none, &none);
    }
    if (kind != KIND_DIRECT) {
        EXPECT(WEIR_E_CAPTURE, weir_free(a, used, B));
        OK(weir_use(a, block, B));
        EXPECT(WEIR_E_CAPTURE, weir_free(a, block, A));
        ck_assert_uint_eq(check_identities(a).blocks, 2);
    }
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuStreamWaitEvent), 0);
    /* Frees of blocks without noted uses succeed and record no event. */
    for (int i = 0; i < 40 && kind != KIND_POOL; i++) {
        captured = NULL;
        none = alloc_live(1000, A);
        captured = A;
        free_live(none, A);
    }
    captured = NULL;
}

static CUgraphExec launch_captured_on(CUstream stream, CUgraph *graph) {
    CUgraphExec exec;

    CU(driver->cuStreamEndCapture(stream, graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, *graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    CU(driver->cuGraphLaunch(exec, stream));
    return exec;
}

static void drop_graph(CUgraphExec exec, CUgraph graph) {
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuCtxSynchronize());
    CU(driver->cuDeviceGraphMemTrim(0));
}

/* Expects that weir refuses addresses that no graph allocated, without a call of the driver. */
static void expect_foreign(CUdeviceptr other, void *freed) {
    int host;

    count_from_here();
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, (void *)(uintptr_t)other, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &host, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, freed, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, (void *)(uintptr_t)other, B));
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFreeAsync), 0);
}

/* A graph cannot own an arena's memory, so the driver allocates the node's memory. */
TEST_WHERE(KIND_FIXED, KIND_DIRECT, NULL, a_graph_has_memory_of_its_own) {
    make_engine(_i, 64 * MIB, "");
    void *freed = alloc_live(MIB, A), *live = alloc_live(MIB, A);
    CUdeviceptr other;
    CUgraph graph;
    CU(driver->cuMemAlloc(&other, MIB));
    free_live(freed, A);
    expect_foreign(other, freed);
    weir_statistics before = stats_of(a);
    weir__set_driver_result(CUDA_ERROR_UNKNOWN);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    void *passing = alloc_live(3 * MIB, A);
    void *left = alloc_live(100 * MIB, A); /* the arena's limit does not apply */
    void *used = alloc_live(MIB, A);
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    CU(driver->cuMemsetD8Async((uintptr_t)passing, 1, 3 * MIB, A));
    free_live(passing, A);
    CUgraphExec exec = launch_captured_on(A, &graph);
    MUST_EQ(stats_of(a).in_use, before.in_use);
    MUST_EQ(stats_of(a).reserved, before.reserved);
    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, left, NULL, NULL));
    expect_foreign(other, freed);
    CU(driver->cuGraphLaunch(exec, A));
    free_live(left, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, left, A));
    /* The free is ordered after B's noted use, and adds no other wait. */
    OK(weir_use(a, used, B));
    CU(weir__model_use(B, (uintptr_t)used, MIB, 1, 5 * MS));
    free_live(used, A);
    CU(driver->cuStreamSynchronize(A));
    MUST_LE(weir__model_now_ns(), 5 * MS);
    free_live(live, A);
    MUST_EQ(check_identities(a).blocks, 0);
    drop_graph(exec, graph);
    CU(driver->cuMemFree(other));
    destroy();
    ck_assert_msg(!weir__model_fault(), "%s", weir__model_fault());
}

/* A block of an aborted capture is unknown to weir, as if no request had been made. */
TEST_WHERE(KIND_FIXED, KIND_DIRECT, NULL, a_block_of_an_aborted_capture_is_unknown) {
    make_engine(_i, 64 * MIB, "");
    CUgraph graph = NULL;
    free_live(alloc_live(MIB, A), A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    void *block = alloc_live(MIB, A);
    drop_live(block);
    MUST(driver->cuStreamQuery(A) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_alloc_status(WEIR_E_CAPTURE, MIB, A);
    MUST(driver->cuStreamEndCapture(A, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    free_live(alloc_live(MIB, A), A);
}

static CUresult no_pools(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    (void)pool, (void)properties;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* A request during a capture fails and leaves the capture valid if there can be no node: the driver has no pools, is
 * older than 11.4, or has its pools replaced by the arena. */
TEST_WHERE(3 * KIND_FIXED, 3 * KIND_DIRECT, NULL, where_graphs_have_no_memory) {
    (void)older_driver(_i % 3 == 1 ? WEIR_CAP_GRAPH : 0);
    CUstreamCaptureStatus status;

    if (_i % 3 == 0)
        table.cuMemPoolCreate = no_pools;
    make_engine_on(&table, _i / 3, 64 * MIB, "");
    if (_i % 3 == 2)
        weir__drop_in_begin(a, NULL);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_alloc_status(WEIR_E_CAPTURE, MIB, A);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop_capture(A);
}

static CUdeviceptr place_of_nodes;

static CUresult node_at(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)bytes, (void)pool, (void)stream;
    *block = place_of_nodes;
    return CUDA_SUCCESS;
}

CASE("alone", 120, open_engine_device, end_test);

/* A region may be placed where a graph's memory was.  Its address then belongs to the arena alone. */
TEST_WHERE(KIND_FIXED, KIND_DIRECT, NULL, an_address_of_a_past_graph_belongs_to_the_arena) {
    void *none = NULL;
    copy_driver();
    table.cuStreamIsCapturing = report_captured_stream;
    table.cuMemAllocFromPoolAsync = node_at;
    capture_result = CUDA_SUCCESS;
    make_engine_on(&table, _i, 64 * MIB, "");
    void *block = alloc_live(MIB, A);
    place_of_nodes = (uintptr_t)block;
    captured = B;
    MUST(alloc_live(MIB, B) == block);
    captured = NULL;
    count_from_here();
    free_live(block, A);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, A));
    EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block, B));
    /* A node that the driver fails to make leaves no block, so weir frees nothing in the driver. */
    table.cuMemAllocFromPoolAsync = driver->cuMemAllocFromPoolAsync;
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_NOT_PERMITTED, 0);
    captured = B;
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, MIB, B, &none));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_NOT_PERMITTED);
    captured = NULL;
    ck_assert_uint_eq(calls(WEIR_ENTRY_cuMemFreeAsync), 0);
    abandon();
}

/* Drivers before 12.2 do not enforce a limit.  The pending frees of undone requests must not let a later request exceed
 * the limit. */
TEST_EACH(2, an_old_driver_is_held_to_the_limit) {
    const struct weir_driver *old =
        older_driver(_i ? WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE : WEIR_CAP_POOL_MAX_SIZE);
    make_engine_on(old, KIND_POOL, 128 * MIB, "");
    void *block[32], *refused = NULL;
    size_t count = 0;

    busy(A, 1000000000);
    for (int i = 0; i < 32; i++)
        if (weir_alloc(a, 20 * MIB, A, &refused) == WEIR_OK)
            block[count++] = refused;
    ck_assert_uint_le(count, 6);
    ck_assert_uint_le(stats_of(a).in_use, 128 * MIB);
    while (count > 0)
        free_live(block[--count], A);
}

SUITE("drivers", CK_FORK_GETENV);
