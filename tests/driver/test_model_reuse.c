/* SPDX-License-Identifier: MIT */
/* test_model_reuse.c: which requests may reuse which memory of a pool, and when. */
#include "test_model.h"

/* ------------------------------------------------------------------ blocks of pools ---- */

CASE("blocks", 60, set_up_model, check_pools);

TEST(only_high_water_marks_and_policies_are_set) {
    uint64_t number = 0;

    EXPECT(CUDA_ERROR_INVALID_VALUE,
           d->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &number));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolSetAttribute(pool, 0, &number));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolGetAttribute(pool, 9, &number));
}

TEST(pool_properties_are_checked) {
    CUmemPoolProps props = plain_pool_properties();
    CUmemoryPool other;

    props.handleTypes = 2; /* Windows' */
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, d->cuMemPoolCreate(&other, &props));
    props = plain_pool_properties();
    props.location.id = 1;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuMemPoolCreate(&other, &props));
    props = plain_pool_properties();
    props.reserved[53] = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolCreate(&other, &props));
    props = plain_pool_properties();
    props.allocType = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolCreate(&other, &props));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolDestroy((CUmemoryPool)(void *)s));
}

TEST(destroyed_pool_goes_when_its_last_block_goes) {
    size_t before = free_bytes_now();
    CUdeviceptr first = alloc(MIB, s), last = alloc(MIB, s), none;

    OK(d->cuMemPoolDestroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolDestroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocFromPoolAsync(&none, 1, pool, s));
    free_async(first, s);
    memset((void *)(uintptr_t)last, 1, MIB);
    ck_assert_uint_eq(free_bytes_now(), before - 32 * MIB);
    free_async(last, s);
    ck_assert_uint_eq(free_bytes_now(), before);
}

/* ------------------------------------------------------------------ allowed reuse ---- */

CASE("reuse", 60, set_up_model, check_pools);

TEST(growth_on_an_idle_stream_serves_a_busy_one) {
    CUstream own;

    OK(d->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(weir__model_kernel(s, 40 * MS));
    free_async(alloc(GIB, own), own);
    alloc(GIB, s);
    ck_assert_uint_eq(reserved_by_pool(), GIB);
}

/* A free on an idle stream is complete at once, but hidden until the next work there begins, as on an H200. */
TEST(launch_hides_what_was_done_until_its_work_begins) {
    CUdeviceptr block = alloc(MIB, s);

    free_async(block, s);
    OK(weir__model_kernel(s, 40 * MS));
    ck_assert_uint_ne(alloc(MIB, t), block);
    d->sleep_ns(10000);
    ck_assert_uint_eq(alloc(MIB, t), block);
}

/* The stream waits on the device for the free, and so for all work before it.  The host waits for nothing. */
TEST(full_device_orders_a_stream_behind_pending_room) {
    CUdeviceptr block, beside;
    uint64_t start;

    reset_to(GIB);
    block = alloc(GIB / 2, s);
    beside = alloc(GIB / 2, s);
    OK(weir__model_kernel(s, 48 * MS));
    OK(weir__model_use(s, block, GIB / 2, 1, MS));
    OK(weir__model_use(s, beside, GIB / 2, 1, MS));
    free_async(block, s);
    start = model_ticks();
    ck_assert_uint_eq(alloc(GIB / 2, t), block);
    OK(weir__model_use(t, block, GIB / 2, 2, MS));
    OK(weir__model_use(t, beside, GIB / 2, 2, MS));
    ck_assert_uint_lt(model_ticks() - start, MS);
    ck_assert_ptr_eq(weir__model_fault(), NULL);
    OK(d->cuStreamSynchronize(t));
    ABOUT(model_ticks() - start, 52 * MS, 2);
}

/* The smallest block that holds the request serves, or, of equal ones, the block done first.  This is assumed. */
TEST(internal_dependencies_are_on_the_best_fit) {
    CUdeviceptr large, late, early;
    CUstream third;

    make_model_pool(160 * MIB);
    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    large = alloc(96 * MIB, s);
    late = alloc(32 * MIB, t);
    early = alloc(32 * MIB, third);
    OK(weir__model_kernel(s, 10 * MS));
    OK(weir__model_kernel(t, 30 * MS));
    OK(weir__model_kernel(third, 20 * MS));
    free_async(large, s);
    free_async(late, t);
    free_async(early, third);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), early);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), late);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), large);
}

/* Memory that no stream waited for stays unavailable, although its work is done. */
TEST(internal_dependencies_see_nothing_else) {
    CUdeviceptr first, second, block;
    CUstream third;

    reset_to(GIB);
    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    set_pool_attribute(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    first = alloc(GIB / 2, s);
    second = alloc(GIB / 2, third);
    OK(weir__model_kernel(s, MS));
    OK(weir__model_kernel(third, 2 * MS));
    free_async(first, s);
    free_async(second, third);
    d->sleep_ns(10 * MS);
    ck_assert_uint_eq(alloc(GIB / 2, t), first);
    set_pool_attribute(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, GIB / 2, pool, t));
    OK(d->cuStreamSynchronize(third));
    ck_assert_uint_eq(alloc(GIB / 2, t), second);
}

/* The replay of a busy trace reserved as much on an H200. */
TEST(its_own_and_free_adjacent_ranges_are_not_taken_together) {
    CUdeviceptr own = alloc(16 * MIB, s), other = alloc(16 * MIB, s);

    free_async(other, s);
    OK(d->cuStreamSynchronize(s));
    OK(weir__model_kernel(s, 40 * MS));
    free_async(own, s);
    ck_assert_uint_ne(alloc(32 * MIB, s), own);
    ck_assert_uint_eq(reserved_by_pool(), 64 * MIB);
}

SUITE("model reuse", CK_FORK_GETENV);
