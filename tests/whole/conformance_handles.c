/* SPDX-License-Identifier: MIT */
/* conformance_handles.c: checks how a driver maps physical allocations (VMM handles). */
#include "conformance_allocator.h"

/* An arena of mapped memory relies on these rules of a driver.  The comments in <cuda.h> state them, and list the
 * results of a call, but not the fault of each.  So any failure is right, but a lack of memory has its own result. */
static struct {
    size_t unit;
    CUmemAllocationProp props;
    CUmemAccessDesc access;
    CUstream s;
    size_t before; /* free bytes of the device */
} space;

static void begin_virtual(void) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};

    space.props = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    space.access = (CUmemAccessDesc){.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(driver->cuMemGetAllocationGranularity(&space.unit, &space.props,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    space.s = make_stream();
    space.before = device_free();
}

static void end_virtual(void) {
    expect_free_again(space.before);
    drop_stream(space.s);
}

static int has_virtual(void) {
    int can = 0;

    if (driver->capabilities & WEIR_CAP_VIRTUAL)
        CU(driver->cuDeviceGetAttribute(
            &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    if (!can)
        printf("# skipped: the device maps no memory by handles\n");
    else
        begin_virtual();
    return can;
}

static CUdeviceptr reserve_at_unit(size_t bytes) {
    CUdeviceptr address = 0;

    CU(driver->cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MUST_EQ(address % space.unit, 0);
    return address;
}

static CUmemGenericAllocationHandle create_of_space(size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;

    CU(driver->cuMemCreate(&handle, bytes, &space.props, 0));
    return handle;
}

static void map_with_access(CUdeviceptr address, size_t bytes,
                            CUmemGenericAllocationHandle handle) {
    CU(driver->cuMemMap(address, bytes, 0, handle, 0));
    CU(driver->cuMemSetAccess(address, bytes, &space.access, 1));
}

static void *at(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

#define REFUSED(call)                                                                              \
    do {                                                                                           \
        CUresult refused_is = (call);                                                              \
        if (refused_is == CUDA_SUCCESS)                                                            \
            ck_abort_msg("%s was not refused", #call);                                             \
    } while (0)

CASE("handles", 120, open_device_with_caches, close_tested_device);

TEST(handles_keep_their_bytes_wherever_they_are_mapped) {
    CUdeviceptr range, other;
    CUmemGenericAllocationHandle first, second;
    size_t unit;

    if (!has_virtual())
        return;
    unit = space.unit;
    range = reserve_at_unit(64 * unit);
    other = reserve_at_unit(8 * unit);
    first = create_of_space(2 * unit);
    second = create_of_space(2 * unit);
    map_with_access(range + 32 * unit, 2 * unit, first);
    fill_with_pattern(at(range + 32 * unit), unit, 1, space.s);
    fill_with_pattern(at(range + 33 * unit), unit, 2, space.s);
    expect_pattern(at(range + 32 * unit), unit, 1, space.s);
    CU(driver->cuMemUnmap(range + 32 * unit, 2 * unit));
    map_with_access(range + 32 * unit, 2 * unit,
                    second); /* the second one takes the first one's addresses */
    map_with_access(other + unit, 2 * unit, first);
    fill_with_pattern(at(range + 32 * unit), 2 * unit, 3, space.s);
    expect_pattern(at(other + unit), unit, 1, space.s);
    expect_pattern(at(other + 2 * unit), unit, 2, space.s);
    expect_pattern(at(range + 32 * unit), 2 * unit, 3, space.s);
    CU(driver->cuMemUnmap(range + 32 * unit, 2 * unit));
    CU(driver->cuMemUnmap(other + unit, 2 * unit));
    CU(driver->cuMemRelease(first));
    CU(driver->cuMemRelease(second));
    CU(driver->cuMemAddressFree(range, 64 * unit));
    CU(driver->cuMemAddressFree(other, 8 * unit));
    end_virtual();
}

TEST(handles_side_by_side_are_one_range) {
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle[4];
    size_t unit;

    if (!has_virtual())
        return;
    unit = space.unit;
    range = reserve_at_unit(16 * unit);
    for (size_t i = 0; i < 4; i++) {
        handle[i] = create_of_space((i + 1) * unit);
        CU(driver->cuMemMap(range + i * (i + 1) / 2 * unit, (i + 1) * unit, 0, handle[i], 0));
    }
    CU(driver->cuMemSetAccess(range, 10 * unit, &space.access, 1));
    fill_with_pattern(at(range), 10 * unit, 7, space.s);
    fill_with_pattern(at(range + unit / 2), 8 * unit, 8, space.s);
    expect_pattern(at(range), unit / 2, 7, space.s);
    expect_pattern(at(range + unit / 2), 8 * unit, 8, space.s);
    expect_pattern(at(range + 17 * unit / 2), 3 * unit / 2, 7, space.s);
    for (size_t i = 0; i < 4; i++) {
        CU(driver->cuMemUnmap(range + i * (i + 1) / 2 * unit, (i + 1) * unit));
        CU(driver->cuMemRelease(handle[i]));
    }
    CU(driver->cuMemAddressFree(range, 16 * unit));
    end_virtual();
}

TEST(a_released_handle_lives_while_it_is_mapped) {
    CUdeviceptr one, other;
    CUmemGenericAllocationHandle handle;
    size_t bytes;

    if (!has_virtual())
        return;
    bytes = 32 * space.unit;
    one = reserve_at_unit(bytes);
    other = reserve_at_unit(bytes);
    handle = create_of_space(bytes);
    map_with_access(one, bytes, handle);
    map_with_access(other, bytes, handle); /* both ranges map one allocation */
    CU(driver->cuMemRelease(handle));
    fill_with_pattern(at(one), bytes, 5, space.s);
    CU(driver->cuStreamSynchronize(space.s));
    expect_pattern(at(other), bytes, 5, space.s);
    CU(driver->cuMemUnmap(one, bytes));
    expect_pattern(at(other), bytes, 5, space.s);
    CU(driver->cuMemUnmap(other, bytes));
    CU(driver->cuMemAddressFree(one, bytes));
    CU(driver->cuMemAddressFree(other, bytes));
    end_virtual();
}

TEST(what_cannot_be_mapped_is_refused) {
    CUdeviceptr range, gone;
    CUmemGenericAllocationHandle handle, other, none;
    size_t unit, total;

    if (!has_virtual())
        return;
    unit = space.unit;
    REFUSED(driver->cuMemCreate(&none, unit / 2, &space.props, 0));
    REFUSED(driver->cuMemCreate(&none, unit + 512, &space.props, 0));
    REFUSED(driver->cuMemAddressReserve(&gone, unit + 512, 0, 0, 0));
    CU(driver->cuDeviceTotalMem(&total, device));
    MUST_EQ(driver->cuMemCreate(&none, total / unit * unit + unit, &space.props, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
    gone = reserve_at_unit(8 * unit);
    CU(driver->cuMemAddressFree(gone, 8 * unit));
    range = reserve_at_unit(8 * unit);
    handle = create_of_space(2 * unit);
    other = create_of_space(2 * unit);
    if (gone != range)
        REFUSED(driver->cuMemMap(gone, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemSetAccess(range, 2 * unit, &space.access, 1));
    REFUSED(driver->cuMemMap(range + unit / 2, 2 * unit, 0, handle, 0));
    REFUSED(driver->cuMemMap(range, unit + unit / 2, 0, handle, 0));
    REFUSED(driver->cuMemMap(range, unit, unit, handle, 0));
    REFUSED(driver->cuMemMap(range, 4 * unit, 0, handle, 0));
    map_with_access(range, 2 * unit, handle);
    fill_with_pattern(at(range), 2 * unit, 6, space.s);
    REFUSED(driver->cuMemMap(range, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemMap(range + unit, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemUnmap(range, unit));
    REFUSED(driver->cuMemUnmap(range + unit, unit));
    expect_pattern(at(range), 2 * unit, 6, space.s); /* the refused calls have changed nothing */
    CU(driver->cuMemUnmap(range, 2 * unit));
    REFUSED(driver->cuMemAddressFree(range, 4 * unit));
    REFUSED(driver->cuMemAddressFree(range + unit, 7 * unit));
    CU(driver->cuMemAddressFree(range, 8 * unit));
    CU(driver->cuMemRelease(handle));
    CU(driver->cuMemRelease(other));
    end_virtual();
}

/* Compares a result with the model's assumption about a point that CUDA's documentation leaves open
 * (lib/driver/model/model_virtual.c).  A different result is printed on a GPU, and fails the test on the model. */
static void compare_assumption(const char *what, CUresult assumed, CUresult is) {
    if (is == assumed)
        return;
    if (!on_cuda)
        ck_abort_msg("%s: %u, not %u", what, is, assumed);
    printf("# %s: %u, where the model plays %u\n", what, is, assumed);
}

TEST(the_model_assumes_what_the_documentation_leaves_open) {
    CUmemAccessDesc reading, none_at_all;
    CUmemGenericAllocationHandle handle[2], none;
    CUdeviceptr range, other, page;
    CUcontext popped;
    CUresult result;
    size_t unit, page_bytes = (size_t)sysconf(_SC_PAGESIZE);

    if (!has_virtual())
        return;
    unit = space.unit;
    reading = space.access;
    reading.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    none_at_all = space.access;
    none_at_all.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    range = reserve_at_unit(8 * unit);
    handle[0] = create_of_space(2 * unit);
    handle[1] = create_of_space(2 * unit);
    for (size_t offset = 0; offset <= unit; offset += unit) {
        result = driver->cuMemMap(range, unit, offset, handle[0], 0);
        compare_assumption("part of a handle mapped", CUDA_ERROR_NOT_SUPPORTED, result);
        if (result == CUDA_SUCCESS)
            CU(driver->cuMemUnmap(range, unit));
    }
    compare_assumption("what is not mapped unmapped", CUDA_SUCCESS,
                       driver->cuMemUnmap(range, 2 * unit));
    CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
    CU(driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    compare_assumption("access to part of a mapping", CUDA_ERROR_INVALID_VALUE,
                       driver->cuMemSetAccess(range, unit, &space.access, 1));
    compare_assumption("no access to part of a mapping", CUDA_ERROR_INVALID_VALUE,
                       driver->cuMemSetAccess(range, unit, &none_at_all, 1));
    result = driver->cuMemUnmap(range, 6 * unit);
    compare_assumption("mappings and a gap unmapped", CUDA_ERROR_INVALID_VALUE, result);
    if (result == CUDA_SUCCESS) {
        CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
        CU(driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    }
    compare_assumption("access for reading alone", CUDA_SUCCESS,
                       driver->cuMemSetAccess(range, 4 * unit, &reading, 1));
    result = driver->cuMemUnmap(range, 4 * unit);
    compare_assumption("two mappings unmapped at once", CUDA_SUCCESS, result);
    if (result != CUDA_SUCCESS) {
        CU(driver->cuMemUnmap(range, 2 * unit));
        CU(driver->cuMemUnmap(range + 2 * unit, 2 * unit));
    }
    result = driver->cuMemMap(range + 7 * unit, 2 * unit, 0, handle[0], 0);
    compare_assumption("mapped beyond the end of what is reserved", CUDA_ERROR_INVALID_VALUE,
                       result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemUnmap(range + 7 * unit, 2 * unit));
    result = driver->cuMemAddressReserve(&page, page_bytes, 0, 0, 0);
    compare_assumption("a page of addresses", CUDA_ERROR_INVALID_VALUE, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(page, page_bytes));
    result = driver->cuMemAddressReserve(&page, (size_t)1 << 48, 0, 0, 0);
    compare_assumption("2^48 bytes of addresses", CUDA_ERROR_OUT_OF_MEMORY, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(page, (size_t)1 << 48));
    CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
    CU(driver->cuCtxPopCurrent(&popped));
    result = driver->cuMemCreate(&none, unit, &space.props, 0);
    compare_assumption("a handle without a current context", CUDA_SUCCESS, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemRelease(none));
    compare_assumption("mapped without a current context", CUDA_SUCCESS,
                       driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    compare_assumption("access without a current context", CUDA_SUCCESS,
                       driver->cuMemSetAccess(range, 2 * unit, &space.access, 1));
    compare_assumption("unmapped without a current context", CUDA_SUCCESS,
                       driver->cuMemUnmap(range, 2 * unit));
    CU(driver->cuCtxPushCurrent(popped));
    (void)driver->cuMemUnmap(range, 2 * unit); /* the call above may have been refused */
    (void)driver->cuMemUnmap(range + 2 * unit, 2 * unit);
    other = reserve_at_unit(2 * unit);
    CU(driver->cuMemMap(other, 2 * unit, 0, handle[0], 0));
    result = driver->cuMemAddressFree(other, 2 * unit);
    compare_assumption("addresses freed under a mapping", CUDA_ERROR_INVALID_VALUE, result);
    (void)driver->cuMemUnmap(other, 2 * unit);
    if (result != CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(other, 2 * unit));
    CU(driver->cuMemRelease(handle[0]));
    CU(driver->cuMemRelease(handle[1]));
    CU(driver->cuMemAddressFree(range, 8 * unit));
    end_virtual();
}

/* Makes one of the calls that reserve, map and free memory, beside a capture.  If a capture mode forbids the call, it
 * must succeed in a relaxed thread, since weir relies on that. */
static CUresult call_virtual(int call) {
    static CUdeviceptr address;
    static CUmemGenericAllocationHandle handle;

    switch (call) {
    case 0:
        return driver->cuMemAddressReserve(&address, space.unit, 0, 0, 0);
    case 1:
        return driver->cuMemCreate(&handle, space.unit, &space.props, 0);
    case 2:
        return driver->cuMemMap(address, space.unit, 0, handle, 0);
    case 3:
        return driver->cuMemSetAccess(address, space.unit, &space.access, 1);
    case 4:
        return driver->cuMemUnmap(address, space.unit);
    case 5:
        return driver->cuMemRelease(handle);
    default:
        return driver->cuMemAddressFree(address, space.unit);
    }
}

enum { VIRTUAL_CALLS = 7 };

TEST_EACH(CAPTURE_MODES, memory_is_mapped_beside_a_capture) {
    static const char *const names[VIRTUAL_CALLS] = {
        "cuMemAddressReserve", "cuMemCreate",  "cuMemMap",        "cuMemSetAccess",
        "cuMemUnmap",          "cuMemRelease", "cuMemAddressFree"};
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    CUgraph graph;
    CUresult result;
    char what[64];

    if (!has_graphs() || !has_virtual())
        return;
    for (int call = 0; call < VIRTUAL_CALLS; call++) {
        begin_capture_in_mode(space.s, _i);
        result = call_virtual(call);
        CU(driver->cuStreamIsCapturing(space.s, &status));
        snprintf(what, sizeof what, "%s beside a capture in mode %d", names[call], _i);
        compare_assumption(what, CUDA_SUCCESS, result);
        strcat(what, ": status");
        compare_assumption(what, CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
        graph = NULL;
        if (driver->cuStreamEndCapture(space.s, &graph) == CUDA_SUCCESS)
            CU(driver->cuGraphDestroy(graph));
        if (result == CUDA_SUCCESS)
            continue; /* the call has succeeded */
        begin_capture_in_mode(space.s, _i);
        mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
        CU(call_virtual(call));
        CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
        expect_capturing(space.s);
        CU(driver->cuGraphDestroy(end_tested_capture(space.s)));
    }
    end_virtual();
}
