/* SPDX-License-Identifier: MIT */
/* test_cuda_header.c: weir/cuda.h, over an allocator that only writes down how it was called.
 *
 * Built twice: for legacy default streams and, with CUDA_API_PER_THREAD_DEFAULT_STREAM, for
 * per-thread ones.  The functions that the header calls are defined here, so neither a device nor
 * the library takes part.
 */
#include <weir/cuda.h>

#include <check.h>
#include <stdlib.h>

#include "suite.h"

static struct {
    weir_allocator *allocator;
    size_t bytes;
    weir_stream stream;
    void *block;
    int opens, allocs, frees;
    weir_status open_status, call_status;
    int driver_result;
} fake;

weir_status weir_default_allocator(weir_allocator **allocator) {
    fake.opens++;
    if (fake.open_status == WEIR_OK)
        *allocator = (weir_allocator *)&fake;
    return fake.open_status;
}

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

START_TEST(calls_go_to_the_default_allocator) {
    void *block = NULL;

    ck_assert_int_eq(weirMallocAsync(&block, 4096, some_stream), cudaSuccess);
    ck_assert_ptr_eq(block, (void *)0x1000);
    ck_assert_ptr_eq(fake.allocator, (weir_allocator *)&fake);
    ck_assert_uint_eq(fake.bytes, 4096);
    ck_assert_ptr_eq(fake.stream, some_stream);
    fake.allocator = NULL, fake.stream = NULL;
    ck_assert_int_eq(weirFreeAsync(block, some_stream), cudaSuccess);
    ck_assert_ptr_eq(fake.allocator, (weir_allocator *)&fake);
    ck_assert_ptr_eq(fake.block, block);
    ck_assert_ptr_eq(fake.stream, some_stream);
}
END_TEST

START_TEST(stream_0_is_what_the_file_was_compiled_for) {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    const weir_stream zero = cudaStreamPerThread;
#else
    const weir_stream zero = NULL;
#endif
    void *block;

    ck_assert_int_eq(weirMallocAsync(&block, 1, 0), cudaSuccess);
    ck_assert_ptr_eq(fake.stream, zero);
    ck_assert_int_eq(weirFreeAsync(block, 0), cudaSuccess);
    ck_assert_ptr_eq(fake.stream, zero);
    /* The explicit handles mean the same in every file. */
    ck_assert_ptr_eq(weir_stream_from_cuda(cudaStreamLegacy), cudaStreamLegacy);
    ck_assert_ptr_eq(weir_stream_from_cuda(cudaStreamPerThread), cudaStreamPerThread);
}
END_TEST

START_TEST(freeing_null_starts_nothing) {
    fake.open_status = WEIR_E_NO_DEVICE;
    ck_assert_int_eq(weirFreeAsync(NULL, some_stream), cudaSuccess);
    ck_assert_int_eq(fake.opens, 0);
}
END_TEST

START_TEST(failures_write_nothing) {
    void *block = &fake;

    fake.open_status = WEIR_E_NO_DEVICE;
    ck_assert_int_eq(weirMallocAsync(&block, 1, some_stream), cudaErrorNoDevice);
    ck_assert_int_eq(weirFreeAsync(block, some_stream), cudaErrorNoDevice);
    ck_assert_int_eq(fake.allocs + fake.frees, 0);
    fake.open_status = WEIR_OK;
    fake.call_status = WEIR_E_LIMIT;
    ck_assert_int_eq(weirMallocAsync(&block, 1, some_stream), cudaErrorMemoryAllocation);
    ck_assert_ptr_eq(block, &fake);
}
END_TEST

START_TEST(every_status_has_an_error) {
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
END_TEST

START_TEST(driver_results_pass_through) {
    fake.driver_result = 700;
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DRIVER), cudaErrorIllegalAddress);
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DEVICE_LOST), cudaErrorIllegalAddress);
    fake.driver_result = 0;
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DRIVER), cudaErrorUnknown);
    ck_assert_int_eq(weir_status_to_cuda(WEIR_E_DEVICE_LOST), cudaErrorContextIsDestroyed);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("cuda_header");
    TCase *all = tcase_create("all");

    tcase_add_test(all, calls_go_to_the_default_allocator);
    tcase_add_test(all, stream_0_is_what_the_file_was_compiled_for);
    tcase_add_test(all, freeing_null_starts_nothing);
    tcase_add_test(all, failures_write_nothing);
    tcase_add_test(all, every_status_has_an_error);
    tcase_add_test(all, driver_results_pass_through);
    suite_add_tcase(suite, all);
    return run_suite(suite, CK_FORK_GETENV);
}
