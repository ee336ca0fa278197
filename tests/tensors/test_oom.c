/* SPDX-License-Identifier: MIT */
/* test_oom.c: freed tensors serve requests that find no memory: requests for tensors, and all others on the allocator.
 */
#include "api/allocator_internal.h"
#include "tests/fixtures/tensors.h"

static const char *const engines[] = {"mapped", "pool", "bfc", "direct"};
enum { ENGINES = 4 };

static weir_allocator *all;

static void begin_limited(const char *engine) {
    if (engine)
        setenv("WEIR_ENGINE", engine, 1);
    begin_tensors_with("1GiB");
    all = weir_tensors_allocator(t);
}

/* Frees a block of A that B uses for `ns` after the free. */
static void leave_pending(uint64_t ns) {
    void *block = alloc_tensor(800 * MIB, A);

    OK(weir_tensors_use(block, B));
    CU(weir__model_use(B, (uintptr_t)block, 800 * MIB, 1, ns));
    OK(weir_tensors_free(block));
}

static weir_status request_400_mib(CUstream stream, void **block) {
    weir_status status = weir_tensors_alloc(t, 400 * MIB, 400 * MIB, stream, 0, NULL, block);

    if (status == WEIR_OK)
        use_tensor_block(stream, *block, 400 * MIB, 2);
    return status;
}

static void must_serve(CUstream stream) {
    void *block;

    OK(weir_alloc(all, 400 * MIB, stream, &block));
    use_tensor_block(stream, block, 400 * MIB, 2);
    OK(weir_free(all, block, stream));
}

/* ---- requests for tensors ----------------------------------------------------------------------- */

CASE("tensors", 60, NULL, end_tensors);

TEST_EACH(ENGINES, a_request_waits_for_pending_frees) {
    uint64_t began;
    void *block;

    begin_limited(engines[_i]);
    leave_pending(5 * MS);
    began = weir__model_now_ns();
    OK(request_400_mib(_i % 2 ? A : C, &block));
    MUST_LE(weir__model_now_ns() - began, 100 * MS);
    MUST_EQ(tensor_figures().ooms, 0);
    OK(weir_tensors_free(block));
}

/* A stream works on the block, which is freed during a capture of that stream.  The request comes after the capture, by
 * weir_tensors_alloc (_i 0) or weir_alloc. */
TEST_EACH(2, a_request_waits_for_frees_of_a_capture) {
    CUgraph captured;
    void *block;

    begin_limited(NULL);
    block = alloc_tensor(800 * MIB, A);
    use_tensor_block(A, block, 800 * MIB, 1);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(weir_tensors_free(block));
    CU(driver->cuStreamEndCapture(A, &captured));
    CU(driver->cuGraphDestroy(captured));
    MUST_EQ(tensor_figures().active_bytes[0].current, 800 * MIB);
    if (_i)
        must_serve(C);
    else
        OK(request_400_mib(C, &block));
    MUST_EQ((size_t)tensor_figures().active_bytes[0].current, _i ? 0 : 400 * MIB);
}

/* The wait has a limit, because the stream at work may itself wait for the caller. */
TEST(a_request_waits_for_pending_frees_for_so_long) {
    uint64_t began;
    void *block;

    begin_limited(NULL);
    leave_pending(5000 * MS);
    began = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, request_400_mib(A, &block));
    MUST_LE(weir__model_now_ns() - began, 1100 * MS);
}

TEST(a_request_that_may_not_wait_fails_at_once) {
    uint64_t began;
    void *block;

    setenv("WEIR_RECOVERY_TIMEOUT", "0", 1);
    begin_limited(NULL);
    leave_pending(5 * MS);
    began = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, request_400_mib(A, &block));
    MUST_LE(weir__model_now_ns() - began, 1 * MS);
    weir__model_advance(10 * MS);
    OK(request_400_mib(A, &block));
    OK(weir_tensors_free(block));
}

/* The pending free would not be enough. */
TEST(a_request_that_cannot_fit_does_not_wait) {
    uint64_t began;
    void *block;

    begin_limited(NULL);
    leave_pending(5000 * MS);
    began = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, weir_tensors_alloc(t, 1500 * MIB, 1500 * MIB, A, 0, NULL, &block));
    MUST_LE(weir__model_now_ns() - began, 10 * MS);
}

/* The pending free is in the pool of the request (_i 1), or elsewhere. */
TEST_EACH(2, a_request_of_a_pool_waits_for_pending_frees) {
    void *block;

    begin_limited(NULL);
    if (_i)
        open_route(other);
    leave_pending(5 * MS);
    if (!_i)
        open_route(other);
    OK(request_400_mib(C, &block));
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
}

/* If nothing else serves a stream of the pool, memory that the pool's other streams freed serves it. */
TEST(a_request_of_a_pool_has_what_its_other_streams_freed) {
    void *block;

    begin_limited(NULL);
    open_route(other);
    block = alloc_tensor(800 * MIB, A);
    use_tensor_block(A, block, 800 * MIB, 1);
    OK(weir_tensors_free(block));
    OK(request_400_mib(B, &block));
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
}

/* The request waits for the device first, because a stream of the pool has ended.  Only that wait completes the use of
 * A's block, so that a second wait serves the request. */
TEST(a_request_of_a_pool_waits_for_frees_after_a_first_wait) {
    CUstream ended;
    void *block;

    begin_limited(NULL);
    open_route(other);
    leave_pending(5 * MS);
    CU(driver->cuStreamCreate(&ended, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        OK(weir_tensors_free(alloc_tensor(512, ended)));
        CU(driver->cuStreamDestroy(ended));
        CU(driver->cuStreamCreate(&ended, CU_STREAM_NON_BLOCKING));
    }
    OK(request_400_mib(C, &block));
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
}

/* The pool's own memory and borrowed memory are both too small. */
TEST(a_pool_fails_as_the_allocator_does) {
    void *block;

    begin_limited(NULL);
    open_route(other);
    OK(weir_tensors_free(alloc_tensor(300 * MIB, A)));
    EXPECT(WEIR_E_LIMIT, weir_tensors_alloc(t, 1100 * MIB, 1100 * MIB, A, 0, NULL, &block));
    OK(weir_tensors_pool_lend(t, other, 1));
    OK(weir_tensors_end(t, other, NULL));
    EXPECT(WEIR_E_LIMIT, weir_tensors_alloc(t, 1100 * MIB, 1100 * MIB, A, 0, NULL, &block));
    MUST_EQ(tensor_figures().ooms, 2);
}

TEST(a_wait_during_a_capture_does_not_break_it) {
    CUgraph captured;
    void *block;

    begin_limited(NULL);
    leave_pending(5 * MS);
    begin_pool_capture(C);
    block = alloc_tensor(400 * MIB, C);
    captured = end_pool_capture(C);
    MUST(captured != NULL);
    CU(driver->cuGraphDestroy(captured));
    use_tensor_block(C, block, 400 * MIB, 2);
    OK(weir_tensors_free(block));
}

/* ---- other requests on the allocator ------------------------------------------------------------ */

CASE("others", 60, NULL, end_tensors);

TEST_EACH(ENGINES, memory_of_a_pool_without_users_serves_anybody) {
    void *block;

    begin_limited(engines[_i]);
    open_route(other);
    block = alloc_tensor(800 * MIB, A);
    use_tensor_block(A, block, 800 * MIB, 1);
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
    EXPECT(WEIR_E_LIMIT, weir_alloc(all, 400 * MIB, B, &block)); /* the pool has a user */
    OK(weir_tensors_pool_close(t, other));
    must_serve(B);
}

TEST_EACH(ENGINES, tensors_whose_uses_are_over_serve_anybody) {
    begin_limited(engines[_i]);
    leave_pending(MS);
    weir__model_advance(10 * MS);
    must_serve(B);
}

TEST_EACH(2, tensors_whose_uses_end_soon_serve_anybody) {
    if (_i)
        setenv("WEIR_CACHE", "off", 1);
    begin_limited(NULL);
    leave_pending(5 * MS);
    must_serve(C);
}

/* OOM recovery frees a tensor, but then retries no request above the device's memory: an engine would report its limit. */
TEST_EACH(ENGINES, no_engine_gets_a_request_above_the_device) {
    void *block = NULL;

    begin_limited(engines[_i]);
    leave_pending(MS);
    weir__model_advance(10 * MS);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(all, SIZE_MAX, C, &block));
    MUST_EQ((uint64_t)tensor_figures().active_bytes[0].current, 0);
}

/* The process publishes the segments without a live block as idle. */
TEST_EACH(ENGINES, free_segments_of_a_pool_without_users_are_idle) {
    struct weir_reserve *v;
    void *first, *second;

    begin_limited(engines[_i]);
    v = &all->reserve;
    open_route(other);
    first = alloc_tensor(100 * MIB, A);
    second = alloc_tensor(200 * MIB, A);
    OK(weir_tensors_free(second));
    OK(weir_tensors_end(t, other, NULL));
    MUST_EQ(weir__reserve_reclaimable(v), 0); /* the pool has a user */
    OK(weir_tensors_pool_close(t, other));
    MUST_LE((uint64_t)180 * MIB, weir__reserve_reclaimable(v));
    MUST_LE(weir__reserve_reclaimable(v), (uint64_t)220 * MIB);
    OK(weir_tensors_free(first));
    MUST_LE((uint64_t)300 * MIB, weir__reserve_reclaimable(v));
}

/* A trim of the allocator, like weir_process_trim, frees the memory and reports the bytes. */
TEST_EACH(ENGINES, memory_of_a_pool_without_users_goes_by_a_trim) {
    weir_process_memory memory = {.size = sizeof memory};
    size_t before;
    void *block;

    begin_limited(engines[_i]);
    open_route(other);
    block = alloc_tensor(800 * MIB, A);
    use_tensor_block(A, block, 800 * MIB, 1);
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_process_trim(&memory));
    MUST_LE((uint64_t)800 * MIB, memory.reserved); /* the pool has a user */
    OK(weir_tensors_pool_close(t, other));
    before = device_free();
    OK(weir_process_trim(&memory));
    MUST_LE(memory.reserved, (uint64_t)64 * MIB);
    MUST_LE((uint64_t)800 * MIB, memory.released);
    MUST_EQ(memory.released, device_free() - before);
}

/* Another allocator of the process lacks device memory, which a pool without users holds. */
TEST_EACH(ENGINES, memory_of_a_pool_without_users_goes_to_another_allocator) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);
    weir_allocator *second;
    void *block;

    setenv("WEIR_ENGINE", engines[_i], 1);
    begin_tensors_with("6GiB");
    OK(weir__allocator_create_on(driver, &options, &second, NULL, 0));
    open_route(other);
    block = alloc_tensor(6 * GIB, A);
    use_tensor_block(A, block, 6 * GIB, 1);
    OK(weir_tensors_free(block));
    OK(weir_tensors_end(t, other, NULL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(second, 6 * GIB, B, &block)); /* the pool has a user */
    OK(weir_tensors_pool_close(t, other));
    OK(weir_alloc(second, 6 * GIB, B, &block));
    use_tensor_block(B, block, 6 * GIB, 2);
    OK(weir_free(second, block, B));
    OK(weir_allocator_destroy(second));
}

/* The device is at work.  The lender has a pool without users, and enough other idle memory that needs no wait. */
TEST(another_allocator_waits_for_nothing_that_it_does_not_need) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);
    weir_allocator *second;
    uint64_t began;
    void *block;

    setenv("WEIR_ENGINE", "pool", 1);
    setenv("WEIR_CACHE", "off", 1);
    begin_tensors_with("7GiB");
    OK(weir__allocator_create_on(driver, &options, &second, NULL, 0));
    open_route(other);
    OK(weir_tensors_free(alloc_tensor(GIB, A)));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_free(alloc_tensor(5 * GIB, A)));
    CU(driver->cuCtxSynchronize());
    busy(A, 500 * MS);
    began = weir__model_now_ns();
    OK(weir_alloc(second, 4 * GIB, B, &block));
    MUST_LE(weir__model_now_ns() - began, 100 * MS);
    MUST_LE((uint64_t)GIB, weir__reserve_reclaimable(&weir_tensors_allocator(t)->reserve));
    use_tensor_block(B, block, 4 * GIB, 2);
    OK(weir_free(second, block, B));
    OK(weir_allocator_destroy(second));
}

/* A region is freed whole or not at all. */
TEST(a_region_larger_than_the_request_goes_to_another_allocator) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);
    weir_allocator *second;
    void *block;

    setenv("WEIR_ENGINE", "bfc", 1);
    begin_tensors_with("6GiB");
    OK(weir__allocator_create_on(driver, &options, &second, NULL, 0));
    block = alloc_tensor(6 * GIB, A);
    use_tensor_block(A, block, 6 * GIB, 1);
    OK(weir_tensors_free(block));
    OK(weir_alloc(second, 3 * GIB, B, &block));
    use_tensor_block(B, block, 3 * GIB, 2);
    OK(weir_free(second, block, B));
    OK(weir_allocator_destroy(second));
}

/* The pool has no user any more, but another stream still uses its block. */
TEST_EACH(ENGINES, a_pool_without_users_goes_once_its_uses_are_over) {
    void *block;

    begin_limited(engines[_i]);
    open_route(other);
    block = alloc_tensor(800 * MIB, A);
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    OK(weir_tensors_use(block, B));
    CU(weir__model_use(B, (uintptr_t)block, 800 * MIB, 1, 5 * MS));
    OK(weir_tensors_free(block));
    must_serve(C);
}

static void *request_elsewhere(void *context) {
    (void)context;
    CU(driver->cuCtxPushCurrent(primary));
    must_serve(C);
    return NULL;
}

TEST(another_thread_is_served) {
    pthread_t thread;

    begin_limited(NULL);
    leave_pending(5 * MS);
    ck_assert_int_eq(pthread_create(&thread, NULL, request_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
}

/* Tensors of a device serve requests on that device alone. */
TEST(another_device_is_left_alone) {
    weir_tensors *second;
    CUcontext context, popped;
    uint64_t began;
    CUstream stream;
    void *block;

    setenv("WEIR_MODEL_DEVICES", "2", 1);
    begin_limited(NULL);
    OK(weir_tensors_open(1, NULL, &second));
    leave_pending(500 * MS);
    CU(driver->cuDevicePrimaryCtxRetain(&context, 1));
    CU(driver->cuCtxPushCurrent(context));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    began = weir__model_now_ns();
    EXPECT(WEIR_E_LIMIT, weir_alloc(weir_tensors_allocator(second), 1500 * MIB, stream, &block));
    MUST_LE(weir__model_now_ns() - began, 100 * MS);
    CU(driver->cuCtxPopCurrent(&popped));
    must_serve(B);
}

/* The memory of a graph comes from the driver, so that weir frees nothing for it. */
TEST(a_captured_request_frees_nothing) {
    CUgraph captured;
    void *block;

    begin_limited(NULL);
    open_route(other);
    OK(weir_tensors_free(alloc_tensor(800 * MIB, A)));
    OK(weir_tensors_end(t, other, NULL));
    OK(weir_tensors_pool_close(t, other));
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(all, 9000 * MIB, B, &block));
    CU(driver->cuStreamEndCapture(B, &captured));
    CU(driver->cuGraphDestroy(captured));
    MUST_LE(800 * MIB, (size_t)tensor_figures().reserved_bytes[0].current);
}

SUITE("oom", CK_FORK);
