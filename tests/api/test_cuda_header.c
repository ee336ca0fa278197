/* SPDX-License-Identifier: MIT */
/* test_cuda_header.c: weir/cuda.h, with an allocator that only records its calls.
 *
 * The file is built three times: for legacy default streams, for per-thread default streams
 * (CUDA_API_PER_THREAD_DEFAULT_STREAM), and with WEIR_OVERRIDE, with which tests call CUDA's names.  This file defines
 * all functions that the header calls, also CUDA's, so that no device and no library take part. */
#include <weir/cuda.h>

#include "tests/fixtures/suite.h"

static struct {
    weir_allocator *allocator;
    size_t bytes;
    weir_stream stream, asked;
    void *block, *looked_for;
    int opens, looks, allocs, frees, any_frees;
    int cuda_frees, cuda_async_frees; /* calls of CUDA's own functions */
    weir_status open_status, look_status, range_status, call_status;
    int driver_result;
} fake;

/* The allocators of the stream's device and of the block. */
#define OF_STREAM ((weir_allocator *)&fake)
#define OF_BLOCK ((weir_allocator *)&fake.bytes)

weir_status weir_stream_allocator(weir_stream stream, weir_allocator **allocator) {
    fake.opens++;
    fake.asked = stream;
    if (fake.open_status == WEIR_OK)
        *allocator = OF_STREAM;
    return fake.open_status;
}

weir_status weir_block_allocator(const void *block, weir_allocator **allocator) {
    fake.looks++;
    fake.looked_for = (void *)(uintptr_t)block;
    if (fake.look_status == WEIR_OK)
        *allocator = OF_BLOCK;
    return fake.look_status;
}

#ifdef WEIR_OVERRIDE
weir_status weir_block_range(weir_allocator *allocator, const void *address, void **block,
                             size_t *bytes) {
    ck_assert_ptr_eq(allocator, OF_BLOCK);
    ck_assert(address && !block && !bytes);
    return fake.range_status;
}

weir_status weir_free_any(weir_allocator *allocator, void *block) {
    fake.any_frees++;
    fake.allocator = allocator, fake.block = block;
    return fake.call_status;
}

#undef cudaFreeAsync
#undef cudaFree
cudaError_t cudaFreeAsync(void *block, cudaStream_t stream) {
    fake.cuda_async_frees++;
    fake.block = block, fake.stream = stream;
    return cudaErrorNotPermitted;
}

cudaError_t cudaFree(void *block) {
    fake.cuda_frees++;
    fake.block = block;
    return cudaErrorNotPermitted;
}
#define cudaFreeAsync weirFreeAsyncOrCuda
#define cudaFree weirFreeOrCuda

/* The names that the tests call. */
#define MALLOC cudaMallocAsync
#define MALLOC_FROM_POOL cudaMallocFromPoolAsync
#define FREE cudaFreeAsync
#else
#define MALLOC weirMallocAsync
#define MALLOC_FROM_POOL weirMallocFromPoolAsync
#define FREE weirFreeAsync
#endif

weir_status weir_alloc(weir_allocator *allocator, size_t bytes, weir_stream stream, void **block) {
    fake.allocs++;
    fake.allocator = allocator, fake.bytes = bytes, fake.stream = stream;
    if (fake.call_status == WEIR_OK)
        *block = (void *)0x1000;
    return fake.call_status;
}

weir_status weir_free(weir_allocator *allocator, void *block, weir_stream stream) {
    fake.frees++;
    fake.allocator = allocator, fake.block = block, fake.stream = stream;
    return fake.call_status;
}

int weir_last_driver_result(void) {
    return fake.driver_result;
}

static const cudaStream_t some_stream = (cudaStream_t)0x7000;

CASE("all", 4, NULL, NULL);

TEST(calls_go_to_the_allocator_of_stream_and_block) {
    void *block = NULL;

    ck_assert_int_eq(MALLOC(&block, 4096, some_stream), cudaSuccess);
    ck_assert_ptr_eq(block, (void *)0x1000);
    ck_assert_ptr_eq(fake.allocator, OF_STREAM);
    ck_assert_ptr_eq(fake.asked, some_stream);
    ck_assert_uint_eq(fake.bytes, 4096);
    ck_assert_ptr_eq(fake.stream, some_stream);
    fake.allocator = NULL, fake.stream = NULL;
    ck_assert_int_eq(FREE(block, some_stream), cudaSuccess);
    ck_assert_ptr_eq(fake.allocator, OF_BLOCK);
    ck_assert_ptr_eq(fake.looked_for, block);
    ck_assert_ptr_eq(fake.block, block);
    ck_assert_ptr_eq(fake.stream, some_stream);
}

TEST(a_pool_is_no_more_than_a_word) {
    void *block = NULL;

    ck_assert_int_eq(MALLOC_FROM_POOL(&block, 4096, NULL, some_stream), cudaErrorInvalidValue);
    ck_assert_int_eq(fake.opens + fake.allocs, 0);
    ck_assert_ptr_null(block);
    ck_assert_int_eq(MALLOC_FROM_POOL(&block, 4096, (cudaMemPool_t)0x9000, some_stream),
                     cudaSuccess);
    ck_assert_ptr_eq(block, (void *)0x1000);
    ck_assert_ptr_eq(fake.allocator, OF_STREAM);
    ck_assert_uint_eq(fake.bytes, 4096);
    ck_assert_ptr_eq(fake.stream, some_stream);
}

/* The block may be memory of a graph, which the stream's allocator can free. */
TEST(a_block_of_no_allocator_goes_to_that_of_the_stream) {
    fake.look_status = WEIR_E_NOT_OWNED;
    ck_assert_int_eq(FREE((void *)0x1000, some_stream), cudaSuccess);
    ck_assert_ptr_eq(fake.allocator, OF_STREAM);
    ck_assert_ptr_eq(fake.asked, some_stream);
}

#ifdef WEIR_OVERRIDE
TEST(blocks_of_cuda_go_to_cuda) {
    fake.look_status = WEIR_E_NOT_OWNED;
    fake.call_status = WEIR_E_NOT_OWNED;
    ck_assert_int_eq(FREE((void *)0x5000, some_stream), cudaErrorNotPermitted);
    ck_assert_int_eq(fake.cuda_async_frees, 1);
    ck_assert_ptr_eq(fake.block, (void *)0x5000);
    ck_assert_ptr_eq(fake.stream, some_stream);
    fake.call_status = WEIR_E_STREAM; /* a mistake of the program is reported */
    ck_assert_int_eq(FREE((void *)0x5000, some_stream), cudaErrorInvalidResourceHandle);
    ck_assert_int_eq(fake.cuda_async_frees, 1);
}

TEST(cuda_free_takes_both) {
    ck_assert_int_eq(cudaFree((void *)0x1000), cudaSuccess);
    ck_assert_int_eq(fake.any_frees, 1);
    ck_assert_ptr_eq(fake.allocator, OF_BLOCK);
    ck_assert_ptr_eq(fake.block, (void *)0x1000);
    ck_assert_int_eq(cudaFree(NULL), cudaErrorNotPermitted); /* this call starts CUDA */
    fake.range_status = WEIR_E_NOT_OWNED;
    ck_assert_int_eq(cudaFree((void *)0x5000), cudaErrorNotPermitted);
    fake.look_status = WEIR_E_NOT_OWNED;
    ck_assert_int_eq(cudaFree((void *)0x5000), cudaErrorNotPermitted);
    ck_assert_int_eq(fake.cuda_frees, 3);
    ck_assert_int_eq(fake.any_frees, 1);
}
#endif

TEST(stream_0_is_what_the_file_was_compiled_for) {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    const weir_stream zero = cudaStreamPerThread;
#else
    const weir_stream zero = NULL;
#endif
    void *block;

    ck_assert_int_eq(MALLOC(&block, 1, 0), cudaSuccess);
    ck_assert_ptr_eq(fake.stream, zero);
    ck_assert_int_eq(FREE(block, 0), cudaSuccess);
    ck_assert_ptr_eq(fake.stream, zero);
    /* Explicit handles do not depend on how the file was compiled. */
    ck_assert_ptr_eq(weir_stream_from_cuda(cudaStreamLegacy), cudaStreamLegacy);
    ck_assert_ptr_eq(weir_stream_from_cuda(cudaStreamPerThread), cudaStreamPerThread);
}

TEST(freeing_null_starts_nothing) {
    fake.open_status = WEIR_E_NO_DEVICE;
    ck_assert_int_eq(FREE(NULL, some_stream), cudaSuccess);
    ck_assert_int_eq(fake.opens + fake.looks, 0);
}

TEST(failures_write_nothing) {
    void *block = &fake;

    fake.open_status = WEIR_E_NO_DEVICE;
    fake.look_status = WEIR_E_NOT_OWNED;
    ck_assert_int_eq(MALLOC(&block, 1, some_stream), cudaErrorNoDevice);
    ck_assert_int_eq(FREE(block, some_stream), cudaErrorNoDevice);
    ck_assert_int_eq(fake.allocs + fake.frees, 0);
    fake.open_status = WEIR_OK;
    fake.call_status = WEIR_E_LIMIT;
    ck_assert_int_eq(MALLOC(&block, 1, some_stream), cudaErrorMemoryAllocation);
    ck_assert_ptr_eq(block, &fake);
}

TEST(every_status_has_an_error) {
    static const weir_status statuses[] = {
#define STATUS(name, value, message) WEIR_##name,
        WEIR_STATUSES(STATUS)};

    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        cudaError_t error;

        fake.driver_result = 700;
        error = weir_status_to_cuda(statuses[i]);
        ck_assert_msg(error != cudaErrorUnknown, "status %d has no error", statuses[i]);
        ck_assert_int_eq(error == cudaSuccess, statuses[i] == WEIR_OK);
    }
    ck_assert_int_eq(weir_status_to_cuda((weir_status)-1000), cudaErrorUnknown);
}

TEST(driver_results_pass_through) {
    fake.driver_result = 700;
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DRIVER), cudaErrorIllegalAddress);
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DEVICE_LOST), cudaErrorIllegalAddress);
    fake.driver_result = 0;
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DRIVER), cudaErrorUnknown);
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DEVICE_LOST), cudaErrorContextIsDestroyed);
}

SUITE("cuda_header", CK_FORK_GETENV);
