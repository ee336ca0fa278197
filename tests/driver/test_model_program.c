/* SPDX-License-Identifier: MIT */
/* test_model_program.c: calls of the device model that programs make and weir does not.
 *
 * Each test is named after the fact that it checks.  CUDA documents the facts. */
#include "driver/model/model_program.h"
#include "test_model.h"

static CUcontext contexts[2];
static CUstream on_second; /* non-blocking, on device 1; s is on device 0 */

static void set_up_two_devices(void) {
    struct weir_model_setup setup = {.devices = 2, .capacity = GIB};
    struct weir_driver_failure failure;

    d = weir__driver_model(&failure);
    ck_assert_msg(d != NULL, "%s", failure.text);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuInit(0));
    for (int i = 1; i >= 0; i--) {
        OK(d->cuDevicePrimaryCtxRetain(&contexts[i], i));
        OK(weir__program_cuCtxSetCurrent(contexts[i]));
        OK(d->cuStreamCreate(i ? &on_second : &s, CU_STREAM_NON_BLOCKING));
    }
}

static CUmemoryPool make_shareable_pool(int device, CUmemAllocationHandleType handles) {
    CUmemPoolProps props = plain_pool_properties();
    CUmemoryPool made;

    props.location.id = device;
    props.handleTypes = handles;
    OK(d->cuMemPoolCreate(&made, &props));
    return made;
}

static CUmemoryPool make_pool_on(int device) {
    return make_shareable_pool(device, CU_MEM_HANDLE_TYPE_NONE);
}

static CUmemoryPool default_pool_on(int device) {
    CUmemoryPool its = NULL;

    OK(weir__program_cuDeviceGetDefaultMemPool(&its, device));
    return its;
}

static CUmemoryPool current_pool(int device) {
    CUmemoryPool its = NULL;

    OK(weir__program_cuDeviceGetMemPool(&its, device));
    return its;
}

static uint64_t pool_figure(CUmemoryPool its, CUmemPool_attribute attribute) {
    uint64_t value = 77;

    OK(d->cuMemPoolGetAttribute(its, attribute, &value));
    return value;
}

static CUdeviceptr alloc_from_program_pool(CUmemoryPool its, size_t bytes, CUstream stream) {
    CUdeviceptr block = 0;

    if (its)
        OK(d->cuMemAllocFromPoolAsync(&block, bytes, its, stream));
    else
        OK(weir__program_cuMemAllocAsync(&block, bytes, stream));
    ck_assert(block != 0);
    return block;
}

/* ------------------------------------------------------------------------- pools ---- */

CASE("pools", 20, set_up_two_devices, check_pools);

TEST(each_device_has_a_default_pool_which_is_current_at_first) {
    CUmemoryPool first = default_pool_on(0), second = default_pool_on(1);

    ck_assert(first && second && first != second);
    ck_assert(current_pool(0) == first && current_pool(1) == second);
    ck_assert(default_pool_on(0) == first);
    ck_assert_uint_eq(pool_figure(first, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, weir__program_cuDeviceGetMemPool(&first, 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuDeviceGetDefaultMemPool(NULL, 0));
}

TEST(default_pool_cannot_be_destroyed) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolDestroy(default_pool_on(0)));
    OK(d->cuMemFreeAsync(alloc_from_program_pool(default_pool_on(0), 1, s), s));
}

TEST(memory_comes_from_the_current_pool_of_the_streams_device) {
    CUmemoryPool own = make_pool_on(1);
    CUdeviceptr first, second;

    OK(weir__program_cuDeviceSetMemPool(1, own));
    ck_assert(current_pool(1) == own && current_pool(0) == default_pool_on(0));
    first = alloc_from_program_pool(NULL, 1000, s);
    second =
        alloc_from_program_pool(NULL, 2000, on_second); /* though device 0's context is current */
    ck_assert_uint_eq(pool_figure(default_pool_on(0), CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1000);
    ck_assert_uint_eq(pool_figure(default_pool_on(1), CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(pool_figure(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 2000);
    OK(d->cuMemFreeAsync(first, s));
    OK(d->cuMemFreeAsync(second, on_second));
}

TEST(a_device_takes_no_pool_of_another) {
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuDeviceSetMemPool(0, make_pool_on(1)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuDeviceSetMemPool(0, NULL));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, weir__program_cuDeviceSetMemPool(2, make_pool_on(1)));
    ck_assert(current_pool(0) == default_pool_on(0));
}

TEST(destroying_the_current_pool_brings_the_default_one_back) {
    CUmemoryPool own = make_pool_on(0);
    CUdeviceptr block;

    OK(weir__program_cuDeviceSetMemPool(0, own));
    block = alloc_from_program_pool(NULL, 1000, s);
    OK(d->cuMemPoolDestroy(own));
    ck_assert(current_pool(0) == default_pool_on(0));
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuMemFreeAsync(alloc_from_program_pool(NULL, 1, s), s));
}

TEST(pools_are_also_found_by_place_and_kind) {
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemoryPool own = make_pool_on(1), its;

    OK(weir__program_cuMemGetDefaultMemPool(&its, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    ck_assert(its == default_pool_on(1));
    OK(weir__program_cuMemSetMemPool(&place, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    OK(weir__program_cuMemGetMemPool(&its, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
    ck_assert(its == own && current_pool(1) == own);
    place.type = 2; /* of the host */
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           weir__program_cuMemGetMemPool(&its, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
}

TEST(an_allocation_of_nothing_is_a_null_pointer) {
    CUdeviceptr block = 1;

    OK(weir__program_cuMemAllocAsync(&block, 0, s));
    ck_assert(block == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemAllocAsync(NULL, 1, s));
    OK(weir__program_cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, weir__program_cuMemAllocAsync(&block, 1, NULL));
}

TEST(under_capture_memory_is_the_graphs) {
    CUdeviceptr block;
    CUgraph graph;

    OK(d->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    block = alloc_from_program_pool(NULL, MIB, s);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuStreamEndCapture(s, &graph));
    ck_assert_uint_eq(pool_figure(default_pool_on(0), CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    OK(d->cuGraphDestroy(graph));
}

/* ------------------------------------------------------------------------ access ---- */

static CUmemAccess_flags pool_access_from(CUmemoryPool its, int device) {
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemAccess_flags flags = 77;

    OK(d->cuMemPoolGetAccess(&flags, its, &place));
    return flags;
}

CASE("access", 20, set_up_two_devices, check_pools);

TEST(another_device_reaches_a_pools_blocks_once_it_may) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemoryPool its = make_pool_on(0);
    CUdeviceptr block = alloc_from_program_pool(its, 100, s);
    char host[100];

    ck_assert_uint_eq(pool_access_from(its, 0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ck_assert_uint_eq(pool_access_from(its, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(d->cuMemsetD8Async(block, 5, 100, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyDtoHAsync(host, block, 100, on_second));
    OK(d->cuMemPoolSetAccess(its, &access, 1));
    OK(d->cuMemcpyDtoHAsync(host, block, 100, on_second));
    ck_assert_int_eq(host[99], 5);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 6, 100, on_second));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(d->cuMemPoolSetAccess(its, &access, 1));
    OK(d->cuMemsetD8Async(block, 6, 100, on_second));
    ck_assert_uint_eq(pool_access_from(its, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(d->cuMemPoolSetAccess(its, &access, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 6, 100, on_second));
    OK(d->cuMemFreeAsync(block, s));
}

TEST(access_is_changed_whole_or_not_at_all) {
    CUmemAccessDesc access[2] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE}};
    CUmemoryPool its = make_pool_on(0);

    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuMemPoolSetAccess(its, access, 2));
    access[1].location.id = 2;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuMemPoolSetAccess(its, access, 2));
    access[1] = access[0];
    access[1].flags = 2;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolSetAccess(its, access, 2));
    ck_assert_uint_eq(pool_access_from(its, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolSetAccess(NULL, access, 1));
}

TEST(only_a_pool_made_for_it_is_shared) {
    CUmemoryPool own = make_pool_on(0),
                 shared = make_shareable_pool(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr block = alloc_from_program_pool(own, 100, s),
                other = alloc_from_program_pool(shared, 100, s);
    CUmemPoolPtrExportData data, next;
    int file = -1;

    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuMemPoolExportToShareableHandle(&file, own, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuMemPoolExportToShareableHandle(&file, shared, 2, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemPoolExportPointer(&data, block));
    ck_assert_int_eq(file, -1);
    OK(weir__program_cuMemPoolExportToShareableHandle(&file, shared, 1, 0));
    ck_assert_int_eq(close(file), 0);
    OK(weir__program_cuMemPoolExportPointer(&data, other));
    OK(weir__program_cuMemPoolExportPointer(&next, other + 1));
    ck_assert(memcmp(&data, &next, sizeof data) != 0);
    OK(d->cuMemFreeAsync(block, s));
    OK(d->cuMemFreeAsync(other, s));
}

/* A pool imported by its own process behaves as in another process: other addresses, equal bytes, a separate free. */
TEST(a_pool_that_is_imported_has_the_same_bytes) {
    CUmemoryPool shared = make_shareable_pool(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 here = NULL;
    CUdeviceptr first = alloc_from_program_pool(shared, MIB, on_second),
                block = alloc_from_program_pool(shared, 3 * MIB, on_second);
    CUdeviceptr there = 0, none = 0;
    CUmemPoolPtrExportData data, wrong = {{0}};
    unsigned char seen[2] = {0};
    int file = -1;

    OK(weir__program_cuMemPoolExportToShareableHandle(&file, shared, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuMemPoolImportFromShareableHandle(&here, (void *)(intptr_t)0, 1, 0));
    OK(weir__program_cuMemPoolImportFromShareableHandle(&here, (void *)(intptr_t)file, 1, 0));
    ck_assert_int_eq(close(file), 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocFromPoolAsync(&none, 100, here, on_second));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuMemPoolExportToShareableHandle(&file, here, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemPoolImportPointer(&there, here, &wrong));
    OK(weir__program_cuMemPoolExportPointer(&data, block + 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemPoolImportPointer(&there, shared, &data));
    OK(weir__program_cuMemPoolImportPointer(&there, here, &data));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemPoolImportPointer(&none, here, &data));
    ck_assert(there != block + 4096);
    OK(d->cuMemsetD8Async(block, 9, 3 * MIB, on_second));
    OK(d->cuMemcpyDtoHAsync(&seen[0], there - 4096, 1, on_second));
    OK(d->cuMemsetD8Async(there, 8, 1, on_second));
    OK(d->cuMemcpyDtoHAsync(&seen[1], block + 4096, 1, on_second));
    ck_assert_uint_eq(seen[0], 9);
    ck_assert_uint_eq(seen[1], 8);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(there, 8, 3 * MIB, on_second));
    OK(d->cuMemPoolDestroy(here));
    OK(d->cuMemcpyDtoHAsync(&seen[0], there, 1, on_second)); /* the pool goes with its last block */
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(there, on_second));
    OK(d->cuMemFreeAsync(there - 4096, on_second));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyDtoHAsync(&seen[0], there, 1, on_second));
    OK(d->cuMemFreeAsync(block, on_second));
    OK(d->cuMemFreeAsync(first, on_second));
    OK(d->cuMemPoolDestroy(shared));
}

TEST(a_shared_pool_gives_nothing_back) {
    CUmemoryPool shared = make_shareable_pool(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    uint64_t reserved;

    OK(d->cuMemFreeAsync(alloc_from_program_pool(shared, MIB, s), s));
    reserved = pool_figure(shared, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    ck_assert_uint_gt(reserved, 0);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(shared, 0));
    ck_assert_uint_eq(pool_figure(shared, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
    OK(d->cuMemPoolDestroy(shared));
}

/* ---------------------------------------------------------------------- pointers ---- */

static uint64_t pointer_attribute(CUpointer_attribute attribute, CUdeviceptr address) {
    uint64_t value = 0;

    OK(weir__program_cuPointerGetAttribute(&value, attribute, address));
    return value;
}

CASE("pointers", 20, set_up_two_devices, check_pools);

TEST(a_block_of_a_pool_names_its_pool_and_no_context) {
    CUmemoryPool its = make_pool_on(1);
    CUdeviceptr block = alloc_from_program_pool(its, 3000, on_second),
                other = alloc_from_program_pool(its, 3000, on_second);

    for (CUdeviceptr at = block; at < block + 3000; at += 2999) {
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at), block);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), 3000);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at),
                          (uintptr_t)its);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 1);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
                          CU_MEMORYTYPE_DEVICE);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_CONTEXT, at), 0);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at),
                          0);
        ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at), at);
    }
    ck_assert(pointer_attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, block) !=
              pointer_attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
    OK(d->cuMemFreeAsync(block, on_second));
    OK(d->cuMemFreeAsync(other, on_second));
}

TEST(the_next_block_at_an_address_has_another_id) {
    CUdeviceptr block = alloc_from_program_pool(NULL, 512, s), again;
    uint64_t id = pointer_attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, block);

    OK(d->cuMemFreeAsync(block, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
    again = alloc_from_program_pool(NULL, 512, s);
    ck_assert(again == block);
    ck_assert(pointer_attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, again) != id);
    OK(d->cuMemFreeAsync(again, s));
}

TEST(a_plain_block_has_a_context_no_pool_and_a_handle_for_other_processes) {
    CUdeviceptr block, of_pool = alloc_from_program_pool(NULL, 100, s);
    CUipcMemHandle handle, same;

    OK(d->cuMemAlloc(&block, 100));
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_CONTEXT, block),
                      (uintptr_t)contexts[0]);
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block), 0);
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block), 1);
    OK(weir__program_cuIpcGetMemHandle(&handle, block));
    OK(weir__program_cuIpcGetMemHandle(&same, block + 5));
    ck_assert(memcmp(&handle, &same, sizeof handle) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuIpcGetMemHandle(&handle, of_pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuIpcGetMemHandle(&handle, 12345));
    OK(d->cuMemFree(block));
    OK(d->cuMemFree(of_pool));
}

TEST(mapped_and_page_locked_memory_is_known_too) {
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr at;
    void *host;

    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 1;
    OK(d->cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    OK(d->cuMemCreate(&memory, 2 * MIB, &properties, 0));
    OK(d->cuMemMap(at, 2 * MIB, 0, memory, 0));
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 1),
                      CU_MEMORYTYPE_DEVICE);
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 1);
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), 2 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_CONTEXT, at + 2 * MIB));
    OK(d->cuMemUnmap(at, 2 * MIB));
    OK(d->cuMemRelease(memory));
    OK(d->cuMemAddressFree(at, 4 * MIB));
    OK(d->cuMemAllocHost(&host, 100));
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)host + 99),
                      CU_MEMORYTYPE_HOST);
    ck_assert_uint_eq(pointer_attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, (uintptr_t)host),
                      (uintptr_t)host);
    OK(d->cuMemFreeHost(host));
}

TEST(several_attributes_of_an_unknown_pointer_are_zeros) {
    CUpointer_attribute attributes[3] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                         CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                         CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    CUmemoryPool its = make_pool_on(0), handle = its;
    CUdeviceptr block = alloc_from_program_pool(its, 3000, s);
    size_t bytes = 77;
    unsigned type = 77;
    void *values[3] = {&type, &bytes, (void *)&handle};

    OK(weir__program_cuPointerGetAttributes(3, attributes, values, (uintptr_t)&type));
    ck_assert(type == 0 && bytes == 0 && handle == NULL);
    OK(weir__program_cuPointerGetAttributes(3, attributes, values, block + 1));
    ck_assert(type == CU_MEMORYTYPE_DEVICE && bytes == 3000 && handle == its);
    attributes[2] = 99;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           weir__program_cuPointerGetAttributes(3, attributes, values, block));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuPointerGetAttributes(0, attributes, values, block));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           weir__program_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096));
    OK(d->cuMemFreeAsync(block, s));
}

/* ------------------------------------------------------------------- work, contexts ---- */

CASE("work", 20, set_up_two_devices, check_pools);

TEST(a_fill_of_words_repeats_the_word) {
    CUdeviceptr block = alloc_from_program_pool(NULL, 64, s);
    unsigned host[16];

    OK(d->cuMemsetD8Async(block, 0xff, 64, s));
    OK(weir__program_cuMemsetD32Async(block + 4, 0x01020304, 14, s));
    OK(d->cuMemcpyDtoHAsync(host, block, 64, s));
    ck_assert_uint_eq(host[0], 0xffffffff);
    ck_assert_uint_eq(host[1], 0x01020304);
    ck_assert_uint_eq(host[14], 0x01020304);
    ck_assert_uint_eq(host[15], 0xffffffff);
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemsetD32Async(block + 2, 1, 1, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, weir__program_cuMemsetD32Async(block, 1, 17, s));
    OK(d->cuMemFreeAsync(block, s));
}

TEST(waiting_for_an_event_waits_and_lets_thresholds_act) {
    CUmemoryPool its = make_pool_on(0);
    CUevent event;
    uint64_t start;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__program_cuEventSynchronize(event));
    OK(d->cuMemFreeAsync(alloc_from_program_pool(its, MIB, s), s));
    start = weir__model_now_ns();
    OK(weir__model_kernel(s, 1000000));
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuEventQuery(event));
    ck_assert_uint_gt(pool_figure(its, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    OK(weir__program_cuEventSynchronize(event));
    ck_assert_uint_ge(weir__model_now_ns(), start + 1000000);
    ck_assert_uint_eq(pool_figure(its, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    OK(d->cuEventQuery(event));
    OK(d->cuEventDestroy(event));
}

TEST(setting_the_context_replaces_the_one_on_top) {
    CUcontext current;
    CUdevice device;
    unsigned flags;
    int active;

    OK(d->cuCtxPushCurrent(contexts[0]));
    OK(weir__program_cuCtxSetCurrent(contexts[1]));
    OK(d->cuCtxGetDevice(&device));
    ck_assert_int_eq(device, 1);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, weir__program_cuCtxSetCurrent((CUcontext)(void *)s));
    OK(d->cuCtxGetCurrent(&current));
    ck_assert(current == contexts[1]);
    OK(weir__program_cuCtxSetCurrent(NULL));
    OK(d->cuCtxGetCurrent(&current));
    ck_assert(current == contexts[0]);
    OK(weir__program_cuDevicePrimaryCtxGetState(1, &flags, &active));
    ck_assert_int_eq(active, 1);
    OK(d->cuDevicePrimaryCtxRelease(1));
    OK(weir__program_cuDevicePrimaryCtxGetState(1, &flags, &active));
    ck_assert_int_eq(active, 0);
}

TEST(a_call_counts_and_fails_as_its_like) {
    uint64_t before = weir__model_calls(WEIR_ENTRY_cuMemAllocFromPoolAsync);
    CUdeviceptr block;

    OK(d->cuMemFreeAsync(alloc_from_program_pool(NULL, 1, s), s));
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), before + 1);
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, weir__program_cuMemAllocAsync(&block, 1, s));
}

SUITE("model-program", CK_FORK_GETENV);
