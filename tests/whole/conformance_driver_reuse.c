/* SPDX-License-Identifier: MIT */
/* conformance_driver_reuse.c: asks which freed blocks a driver's pool reuses, and when. */
#include "conformance_driver.h"

/* The state of a block that stream s has freed.  Stream t requests it, or s itself (OWN). */
enum situation {
    OWN,            /* freed behind work, and requested on its own stream */
    SEEN,           /* the host has waited for the free */
    PENDING,        /* the work before the free is unfinished */
    PENDING_BEHIND, /* like PENDING, but t waits for an event after the free */
    DONE,           /* the work has completed, but no call has observed it */
    DONE_BEHIND,    /* like DONE, but t waits for an event after the free */
    SITUATIONS
};

static const char *const situation_names[SITUATIONS] = {
    "own", "seen", "pending", "pending, ordered by an event", "done", "done, ordered by an event"};

enum { FOLLOW = 1, OPPORTUNISTIC = 2, INTERNAL = 4, POLICIES = 8 }; /* which are on */

struct outcome {
    CUresult result;
    int same;         /* the request got the freed block */
    int waited;       /* the call took as long as the pending work */
    uint64_t took_ns; /* by the call */
};

static void set_policies_by_bits(int on) {
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

static struct outcome try_situation(enum situation what) {
    CUdeviceptr block = alloc_pool_block(UNIT, s), other = 0;
    CUstream asks = what == OWN ? s : t;
    struct outcome out;
    uint64_t start;

    submit_long_work(s);
    free_pool_block(block, s);
    if (what == PENDING_BEHIND || what == DONE_BEHIND) {
        order_with_event(t, s);
    }
    if (what == SEEN)
        CU(driver->cuStreamSynchronize(s));
    if (what == DONE || what == DONE_BEHIND)
        driver->sleep_ns(8 * LONG_WORK);
    start = driver_ticks();
    out.result = driver->cuMemAllocFromPoolAsync(&other, UNIT, pool, asks);
    out.took_ns = driver_ticks() - start;
    out.waited = what < DONE && out.took_ns > LONG_WORK / 4;
    out.same = out.result == CUDA_SUCCESS && other == block;
    if (out.result == CUDA_SUCCESS)
        free_pool_block(other, asks);
    return out;
}

/* Returns the outcome by the programming guide ("Memory reuse policies") and by measurements: the driver orders streams
 * on the device, and its call does not wait. */
static struct outcome expected_outcome(enum situation what, int on, int room) {
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

/* The room for another block: there is some, the pool is at its maximum, or the device is full. */
enum { ROOM, MAXIMUM, FULL_DEVICE, ROOMS };

static const char *const room_names[ROOMS] = {"room", "at the maximum", "full device"};

/* Returns 1 if the outcome is known of all drivers: the reuse that an enabled policy gives, and that pending memory
 * goes to no unordered stream while there is other memory.  Returns 0 for the effects of a disabled policy, a full
 * device or a maximum. */
static int is_known(enum situation what, int on, int room) {
    if (expected_outcome(what, on, 1).same)
        return 1;
    return what == PENDING && room == ROOM;
}

CASE("the driver's reuse", 120, open_driver_device, close_driver_device);

/* The test tries the policies with room for another block and without. */
TEST_EACH((ROOMS * POLICIES), each_policy_alone_and_together) {
    int on = _i % POLICIES, room = _i / POLICIES;

    if (room == MAXIMUM && !(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    if (room == FULL_DEVICE)
        hog_takes(&hog, UNIT);
    for (enum situation what = 0; what < SITUATIONS; what++) {
        struct outcome wanted = expected_outcome(what, on, room == ROOM), is;
        int agrees;

        CU(driver->cuCtxSynchronize());
        CU(driver->cuMemPoolDestroy(pool));
        make_driver_pool(room == MAXIMUM ? UNIT : 0);
        set_policies_by_bits(on);
        is = try_situation(what);
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

/* The request needs two adjacent pending blocks together, and there is no other room. */
TEST(room_in_pieces_behind_work) {
    CUdeviceptr first, second, whole = 0;
    CUresult result;
    CUstream third;
    uint64_t start;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_driver_pool(2 * UNIT);
    third = make_stream();
    first = alloc_pool_block(UNIT, s);
    second = alloc_pool_block(UNIT, third);
    submit_long_work(s);
    submit_long_work(third);
    free_pool_block(first, s);
    free_pool_block(second, third);
    start = driver_ticks();
    result = driver->cuMemAllocFromPoolAsync(&whole, 2 * UNIT, pool, t);
    answer("two pending blocks together serve a stream that is behind neither",
           result == CUDA_SUCCESS, 0);
    answer("a call that wants two pending blocks waits for them",
           driver_ticks() - start > LONG_WORK / 4, 0);
    if (result == CUDA_SUCCESS)
        free_pool_block(whole, t);
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

TEST(an_event_before_the_free_does_not_count) {
    CUdeviceptr block = alloc_pool_block(UNIT, s), other;

    submit_long_work(s);
    CU(driver->cuEventRecord(event, s));
    free_pool_block(block, s);
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = alloc_pool_block(UNIT, t);
    MUST(other != block);
    free_pool_block(other, t);
}

/* A wait counts for the work that the event marked at the time of the wait. */
TEST(a_wait_counts_for_the_work_at_its_time) {
    CUdeviceptr block = alloc_pool_block(UNIT, s), other;

    submit_long_work(s);
    free_pool_block(block, s);
    order_with_event(t, s);
    CU(driver->cuEventRecord(event, t));
    other = alloc_pool_block(UNIT, t);
    answer("a wait counts for what the event stood for then", other == block, 1);
    free_pool_block(other, t);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuEventDestroy(event));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    block = alloc_pool_block(UNIT, s);
    submit_long_work(s);
    free_pool_block(block, s);
    CU(driver->cuEventQuery(event)); /* an event without a record is done and orders nothing */
    CU(driver->cuStreamWaitEvent(t, event, 0));
    other = alloc_pool_block(UNIT, t);
    MUST(other != block);
    free_pool_block(other, t);
}

TEST(an_order_goes_through_a_third_stream) {
    CUdeviceptr block = alloc_pool_block(UNIT, s), other;
    CUstream third = make_stream();

    submit_long_work(s);
    free_pool_block(block, s);
    order_with_event(third, s);
    order_with_event(t, third);
    other = alloc_pool_block(UNIT, t);
    answer("an order by events goes through a third stream", other == block, 1);
    free_pool_block(other, t);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(third));
}

/* Returns 1 if the call, with all policies off, lets another stream reuse a completed block; else 0. */
static int serves_after(CUresult (*look)(void)) {
    CUdeviceptr block, other;

    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemPoolDestroy(pool));
    make_driver_pool(0);
    set_policies_by_bits(0);
    block = alloc_pool_block(UNIT, s);
    free_pool_block(block, s);
    CU(driver->cuEventRecord(event, s));
    driver->sleep_ns(LONG_WORK);
    CU(look());
    other = alloc_pool_block(UNIT, t);
    free_pool_block(other, t);
    return other == block;
}

TEST(a_wait_for_the_context_counts_as_seen) {
    MUST(serves_after(wait_for_context));
    answer("a query that finds an event done counts as seen", serves_after(query_event), 0);
    answer("a query that finds the stream done counts as seen", serves_after(query_stream), 0);
    answer("a wait for another stream counts as seen", serves_after(wait_for_other), 0);
    answer("the wait of cuMemFree counts as seen", serves_after(free_directly), 0);
}

/* Stream t may have either of two equal blocks: by an event, or because the block's work has completed. */
TEST(done_and_ordered_blocks_may_be_reused) {
    CUdeviceptr ordered = alloc_pool_block(UNIT, s), done, keep, other;
    CUstream third = make_stream();

    done = alloc_pool_block(UNIT, third);
    keep = alloc_pool_block(UNIT, third); /* keeps `done' from joining the memory behind it */
    free_pool_block(done, third);
    driver->sleep_ns(LONG_WORK);
    submit_long_work(s);
    free_pool_block(ordered, s);
    order_with_event(t, s);
    other = alloc_pool_block(UNIT, t);
    MUST(other == done || other == ordered);
    answer("what is done goes before what is ordered", other == done, 0);
    free_pool_block(other, t);
    free_pool_block(keep, third);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(third));
}

/* One half of a unit was freed by the requesting stream, the other half by a stream that it waits for. */
TEST(adjacent_ranges_of_two_streams_do_not_join) {
    CUdeviceptr first, second, other;

    if (!has_figures())
        return;
    first = alloc_pool_block(UNIT / 2, s);
    second = alloc_pool_block(UNIT / 2, t);
    MUST_EQ(second, first + UNIT / 2);
    submit_long_work(s);
    submit_long_work(t);
    free_pool_block(first, s);
    free_pool_block(second, t);
    order_with_event(t, s);
    other = alloc_pool_block(UNIT, t);
    answer("its own and what it is ordered behind serve as one", other == first, 0);
    free_pool_block(other, t);
}

/* The legacy stream waits for all blocking streams without an event. */
TEST(the_legacy_stream_is_behind_blocking_ones) {
    CUdeviceptr block, other;
    CUstream blocking;

    CU(driver->cuStreamCreate(&blocking, 0));
    block = alloc_pool_block(UNIT, blocking);
    submit_long_work(blocking);
    free_pool_block(block, blocking);
    other = alloc_pool_block(UNIT, NULL);
    answer("the legacy stream has what a blocking stream freed behind work", other == block, 1);
    free_pool_block(other, NULL);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuStreamDestroy(blocking));
}

static void take_time(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* Programs look at the address after a failed request, and weir run sets it to 0 as the driver does. */
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

/* weir's wait for the device relies on these waits of the driver (device_wait.c). */
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

/* A non-blocking stream with nothing but a wait is busy until the awaited work has completed.  A stream that waits for
 * that stream is busy, too. */
TEST_EACH(2, who_waits_is_at_work) {
    CUevent first, second;

    CU(driver->cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventCreate(&second, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuCtxSynchronize());
    if (_i == 0)
        submit_long_work(s);
    else
        submit_long_work(NULL);
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

/* A stream is busy, too, if a pool has ordered it behind another stream's work. */
TEST(who_was_given_what_is_pending_is_at_work) {
    CUdeviceptr block, other;

    if (!(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return;
    CU(driver->cuMemPoolDestroy(pool));
    make_driver_pool(UNIT);
    block = alloc_pool_block(UNIT, s);
    CU(driver->cuCtxSynchronize());
    submit_long_work(s);
    free_pool_block(block, s);
    other = alloc_pool_block(UNIT, t);
    MUST_EQ(other, block);
    answer("who was put behind another's work is at work",
           driver->cuStreamQuery(t) == CUDA_ERROR_NOT_READY, 1);
    free_pool_block(other, t);
}

/* A query of its flags breaks the capture of a stream (lib/engine/stream_order.c). */
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

/* lib/engine/stream_order.h relies on these properties of idle streams. */
TEST(idle_streams_prove_what_the_order_relies_on) {
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
    submit_long_work(s);
    MUST_EQ(driver->cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    CU(driver->cuStreamSynchronize(s));
    CU(driver->cuStreamQuery(s));
    submit_long_work(NULL);
    answer("a blocking stream shows what it is behind", driver->cuStreamQuery(blocking) != 0, 0);
    CU(driver->cuEventRecord(behind, blocking));
    MUST_EQ(driver->cuEventQuery(behind), CUDA_ERROR_NOT_READY);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuEventDestroy(behind));
    CU(driver->cuStreamDestroy(blocking));
}
