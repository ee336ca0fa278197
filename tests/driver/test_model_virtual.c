/* SPDX-License-Identifier: MIT */
/* test_model_virtual.c: memory by handles on the device model (lib/driver/model/model_virtual.c).
 *
 * Each test is named after the rule that it checks; that file says where a rule comes from.  A check of the model's
 * accounts ends every test. */
#include "test_model_virtual.h"

/* ---- addresses ------------------------------------------------------------------------------- */

CASE("addresses", 30, set_up_virtual, check_model);

TEST(the_granularity_is_2_mib) {
    CUmemAllocationProp props = handle_properties(0);
    size_t least = 0, best = 0;

    CU(driver->cuMemGetAllocationGranularity(&least, &props, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CU(driver->cuMemGetAllocationGranularity(&best, &props, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    MUST_EQ(least, UNIT);
    MUST_EQ(best, UNIT);
    GIVES(WRONG, driver->cuMemGetAllocationGranularity(&least, &props, 2));
    GIVES(WRONG, driver->cuMemGetAllocationGranularity(NULL, &props, 0));
    GIVES(WRONG, driver->cuMemGetAllocationGranularity(&least, NULL, 0));
    props.location.id = 1;
    GIVES(CUDA_ERROR_INVALID_DEVICE, driver->cuMemGetAllocationGranularity(&least, &props, 0));
}

TEST(a_reservation_takes_address_space_alone) {
    size_t before = device_free();
    CUdeviceptr large = reserve_range_of(4096 * UNIT), small = reserve_range_of(UNIT);

    MUST_EQ(device_free(), before);
    MUST(small + UNIT <= large || large + 4096 * UNIT <= small);
    MUST(host_faults(large, 0) && host_faults(small, 0));
    CU(driver->cuMemAddressFree(large, 4096 * UNIT));
    CU(driver->cuMemAddressFree(small, UNIT));
}

TEST(a_reservation_is_aligned_as_asked) {
    CUdeviceptr address;

    CU(driver->cuMemAddressReserve(&address, UNIT, GIB, 0, 0));
    MUST_EQ(address % GIB, 0);
    CU(driver->cuMemAddressFree(address, UNIT));
    CU(driver->cuMemAddressReserve(&address, UNIT, 1, 0, 0));
    MUST_EQ(address % UNIT, 0);
}

TEST(an_address_to_reserve_is_a_hint) {
    CUdeviceptr first = reserve_range_of(8 * UNIT), again;

    CU(driver->cuMemAddressFree(first, 8 * UNIT));
    CU(driver->cuMemAddressReserve(&again, UNIT, 0, first, 0));
    MUST_EQ(again, first);
    CU(driver->cuMemAddressReserve(&again, UNIT, 0, first, 0)); /* taken */
    MUST(again != first);
    MUST_EQ(again % UNIT, 0);
}

TEST(reservations_of_other_sizes_are_refused) {
    CUdeviceptr address = 7;

    GIVES(WRONG, driver->cuMemAddressReserve(&address, 0, 0, 0, 0));
    GIVES(WRONG, driver->cuMemAddressReserve(&address, 4096, 0, 0, 0));
    GIVES(WRONG, driver->cuMemAddressReserve(&address, UNIT + 4096, 0, 0, 0));
    GIVES(WRONG, driver->cuMemAddressReserve(&address, UNIT, 3 * UNIT, 0, 0));
    GIVES(WRONG, driver->cuMemAddressReserve(&address, UNIT, 0, 512, 0));
    GIVES(WRONG, driver->cuMemAddressReserve(&address, UNIT, 0, 0, 1));
    GIVES(WRONG, driver->cuMemAddressReserve(NULL, UNIT, 0, 0, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY,
          driver->cuMemAddressReserve(&address, (size_t)1 << 48, 0, 0, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, driver->cuMemAddressReserve(&address, -UNIT, 0, 0, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY,
          driver->cuMemAddressReserve(&address, UNIT, (size_t)1 << 63, 0, 0));
    MUST_EQ(address, 7);
}

TEST(a_reservation_is_freed_whole_and_once) {
    CUdeviceptr address = reserve_range_of(4 * UNIT);

    GIVES(WRONG, driver->cuMemAddressFree(address, 2 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address, 8 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address + UNIT, 3 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(0, 0));
    CU(driver->cuMemAddressFree(address, 4 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address, 4 * UNIT));
}

TEST(an_address_is_not_freed_under_a_mapping) {
    CUdeviceptr address = reserve_range_of(4 * UNIT), next;

    back(address + 3 * UNIT, UNIT);
    GIVES(WRONG, driver->cuMemAddressFree(address, 4 * UNIT));
    CU(driver->cuMemUnmap(address + 3 * UNIT, UNIT));
    CU(driver->cuMemAddressReserve(&next, UNIT, 0, address + 4 * UNIT,
                                   0)); /* a hint: right behind it */
    back(next, UNIT);
    CU(driver->cuMemAddressFree(address, 4 * UNIT));
    CU(fill_async(next, UNIT, 1));
}

/* ---- handles --------------------------------------------------------------------------------- */

CASE("handles", 30, set_up_virtual, check_model);

TEST(a_handle_takes_memory_of_the_device) {
    size_t before = device_free();
    handle memory = create_handle(96 * UNIT);

    MUST_EQ(device_free(), before - 96 * UNIT);
    CU(driver->cuMemRelease(memory));
    MUST_EQ(device_free(), before);
    GIVES(WRONG, driver->cuMemRelease(memory));
    GIVES(WRONG, driver->cuMemRelease(0));
    GIVES(WRONG, driver->cuMemRelease(memory + 1));
}

TEST(handles_blocks_and_pools_share_the_device) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    CUdeviceptr block;
    handle memory, more;

    CU(driver->cuMemPoolCreate(&pool, &props));
    memory = create_handle(640 * MIB);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, try_create(512 * MIB, &more));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, driver->cuMemAlloc(&block, 512 * MIB));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, driver->cuMemAllocFromPoolAsync(&block, 512 * MIB, pool, A));
    CU(driver->cuMemRelease(memory));
    CU(driver->cuMemAllocFromPoolAsync(&block, 512 * MIB, pool, A));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, try_create(640 * MIB, &more));
    CU(driver->cuMemFreeAsync(block, A));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemPoolTrimTo(pool, 0));
    more = create_handle(CAPACITY);
    MUST_EQ(device_free(), 0);
    CU(driver->cuMemRelease(more));
}

/* A handle gets memory that was freed on a stream once the stream's work is done. */
TEST(a_handle_gets_what_left_in_stream_order) {
    CUdeviceptr block;
    handle memory;

    CU(driver->cuMemAlloc(&block, CAPACITY));
    busy(A, MS);
    CU(driver->cuMemFreeAsync(block, A));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, try_create(CAPACITY, &memory));
    weir__model_advance(2 * MS);
    CU(try_create(CAPACITY, &memory));
}

TEST(handles_of_other_sizes_are_refused) {
    CUmemAllocationProp props = handle_properties(0);
    handle memory = 7;

    GIVES(WRONG, try_create(0, &memory));
    GIVES(WRONG, try_create(UNIT - 1, &memory));
    GIVES(WRONG, try_create(MIB, &memory));
    GIVES(WRONG, try_create(UNIT, NULL));
    GIVES(WRONG, driver->cuMemCreate(&memory, UNIT, NULL, 0));
    GIVES(WRONG, driver->cuMemCreate(&memory, UNIT, &props, 1));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, try_create(-UNIT, &memory));
    MUST_EQ(memory, 7);
}

TEST(what_is_not_played_is_refused) {
    CUmemAllocationProp bad[8];
    CUresult wanted[8] = {WRONG,
                          WRONG,
                          WRONG,
                          WRONG,
                          CUDA_ERROR_INVALID_DEVICE,
                          CUDA_ERROR_NOT_SUPPORTED,
                          CUDA_ERROR_NOT_SUPPORTED,
                          CUDA_ERROR_NOT_SUPPORTED};
    handle memory;

    for (int i = 0; i < 8; i++)
        bad[i] = handle_properties(0);
    bad[0].type = 0;
    bad[1].location.type = 2; /* the host's */
    bad[2].win32HandleMetaData = &memory;
    bad[3].allocFlags.reserved[3] = 1;
    bad[4].location.id = 1;
    bad[5].requestedHandleTypes = 2; /* Windows has them */
    bad[6].allocFlags.compressionType = 1;
    bad[7].allocFlags.usage = 1;
    for (int i = 0; i < 8; i++)
        GIVES(wanted[i], driver->cuMemCreate(&memory, UNIT, &bad[i], 0));
}

/* V10: handles from one file are one memory, which goes with the last of its handles and mappings. */
TEST(shared_memory_goes_with_its_last_handle) {
    CUmemAllocationProp props = handle_properties(0);
    CUdeviceptr address = reserve_range_of(2 * UNIT);
    handle memory = 0, plain = create_handle(UNIT), again[2] = {0, 0};
    int file = -1, none = -1;
    const CUmemAllocationHandleType kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

    props.requestedHandleTypes = kind;
    CU(driver->cuMemCreate(&memory, UNIT, &props, 0));
    map_handle(address, UNIT, memory);
    open_device_range(address, UNIT);
    CU(fill_async(address, UNIT, 5));
    GIVES(WRONG, driver->cuMemExportToShareableHandle(&none, plain, kind, 0));
    GIVES(WRONG, driver->cuMemExportToShareableHandle(&none, memory, 0, 0));
    GIVES(WRONG, driver->cuMemExportToShareableHandle(&none, memory, kind, 1));
    GIVES(WRONG, driver->cuMemExportToShareableHandle(NULL, memory, kind, 0));
    MUST_EQ(none, -1);
    CU(driver->cuMemExportToShareableHandle(&file, memory, kind, 0));
    GIVES(WRONG, driver->cuMemImportFromShareableHandle(NULL, (void *)(intptr_t)file, kind));
    GIVES(WRONG, driver->cuMemImportFromShareableHandle(&again[0], (void *)(intptr_t)file, 2));
    GIVES(WRONG, driver->cuMemImportFromShareableHandle(&again[0], (void *)(intptr_t)1, kind));
    for (int i = 0; i < 2; i++)
        CU(driver->cuMemImportFromShareableHandle(&again[i], (void *)(intptr_t)file, kind));
    MUST(close(file) == 0);
    CU(driver->cuMemRelease(memory));
    map_handle(address + UNIT, UNIT, again[0]);
    open_device_range(address + UNIT, UNIT);
    MUST_EQ(read_byte(address + UNIT), 5);
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    MUST_EQ(device_free(), CAPACITY - 2 * UNIT);
    for (int i = 0; i < 2; i++)
        CU(driver->cuMemRelease(again[i]));
    GIVES(WRONG, driver->cuMemRelease(memory));
    MUST_EQ(device_free(), CAPACITY - UNIT);
    CU(driver->cuMemRelease(plain));
    CU(driver->cuMemAddressFree(address, 2 * UNIT));
    check_model();
}

static long resident_bytes(void) {
    long pages = 0, size = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file)
        return 0;
    MUST(fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

TEST(memory_costs_nothing_until_it_is_touched) {
    long before = resident_bytes();
    size_t bytes = 100 * GIB;
    CUdeviceptr address;

    if (!is_roomy())
        return;
    start_model(0);
    address = reserve_range_of(bytes);
    back(address, bytes);
    CU(fill_async(address, 1, 1));
    CU(fill_async(address + bytes - 1, 1, 2));
    MUST_EQ(read_byte(address), 1);
    MUST_EQ(read_byte(address + bytes - 1), 2);
    MUST(resident_bytes() - before < 64l << 20);
}

/* Returns the bytes that the file behind all handles holds, or -1 if the file is not found. */
static long long file_bytes_held(void) {
    char path[64], name[64];
    struct stat status;

    for (int file = 0; file < 256; file++) {
        ssize_t length;

        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        length = readlink(path, name, sizeof name - 1);
        if (length < 0)
            continue;
        name[length] = '\0';
        if (strstr(name, "weir-model") && fstat(file, &status) == 0)
            return (long long)status.st_blocks * 512;
    }
    return -1;
}

TEST(the_host_gets_its_memory_back) {
    CUdeviceptr address = reserve_range_of(32 * UNIT);
    handle memory = back(address, 32 * UNIT);

    CU(fill_async(address, 32 * UNIT, 1));
    if (file_bytes_held() < 0)
        return; /* no /proc */
    MUST(file_bytes_held() >= (long long)(32 * UNIT));
    CU(driver->cuMemUnmap(address, 32 * UNIT));
    MUST(file_bytes_held() >= (long long)(32 * UNIT));
    CU(driver->cuMemRelease(memory));
    MUST_EQ(file_bytes_held(), 0);
    start_model(CAPACITY);
    MUST_EQ(file_bytes_held(), -1);
}

/* ---- callers and conditions ------------------------------------------------------------------ */

CASE("callers", 30, set_up_virtual, check_model);

TEST(no_context_is_needed_and_none_takes_it_along) {
    CUdeviceptr address;
    CUcontext popped;
    handle memory;

    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(0));
    address = reserve_range_of(UNIT);
    memory = back(address, UNIT);
    memset((void *)(uintptr_t)address, 3, UNIT);
    for (int i = 0; i < 2; i++) { /* a context comes and goes */
        CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
        CU(driver->cuCtxPushCurrent(primary));
        CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
        MUST_EQ(read_byte(address), 3);
        CU(driver->cuCtxPopCurrent(&popped));
        CU(driver->cuDevicePrimaryCtxRelease(0));
    }
    CU(driver->cuMemUnmap(address, UNIT));
    CU(driver->cuMemRelease(memory));
    CU(driver->cuMemAddressFree(address, UNIT));
}

/* The calls that make_call() makes. */
enum { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, FREE, CALLS };

static CUresult make_call(int call) {
    switch (call) {
    case RESERVE:
        return driver->cuMemAddressReserve(&ready.scratch, UNIT, 0, 0, 0);
    case CREATE:
        return try_create(UNIT, &ready.scratch_memory);
    case MAP:
        return driver->cuMemMap(ready.address, UNIT, 0, ready.memory, 0);
    case ACCESS:
        return try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    case UNMAP:
        return driver->cuMemUnmap(ready.mapped, UNIT);
    case RELEASE:
        return driver->cuMemRelease(ready.spare_memory);
    default:
        return driver->cuMemAddressFree(ready.spare, UNIT);
    }
}

static const enum weir_driver_entry entry_of[CALLS] = {
    WEIR_ENTRY_cuMemAddressReserve, WEIR_ENTRY_cuMemCreate, WEIR_ENTRY_cuMemMap,
    WEIR_ENTRY_cuMemSetAccess,      WEIR_ENTRY_cuMemUnmap,  WEIR_ENTRY_cuMemRelease,
    WEIR_ENTRY_cuMemAddressFree};

TEST(nothing_waits_for_work) {
    uint64_t start;

    get_ready();
    busy(A, 1000 * MS);
    CU(fill_async(ready.mapped, UNIT, 1));
    start = virtual_ticks();
    for (int call = 0; call < CALLS; call++)
        CU(make_call(call));
    MUST(virtual_ticks() - start < 10 * MS);
    GIVES(CUDA_ERROR_NOT_READY, driver->cuStreamQuery(A));
}

TEST(what_was_captured_meets_what_is_mapped_at_its_launch) {
    CUgraphExec exec;
    CUgraph graph;

    get_ready();
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    GIVES(WRONG, fill_async(ready.address, UNIT, 1));
    CU(fill_async(ready.mapped, UNIT, 1));
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, driver->cuGraphLaunch(exec, A));
    map_handle(ready.mapped, UNIT, ready.memory);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, driver->cuGraphLaunch(exec, A));
    open_device_range(ready.mapped, UNIT);
    CU(driver->cuGraphLaunch(exec, A));
    MUST_EQ(read_byte(ready.mapped), 1);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

TEST(a_forked_child_gets_no_virtual_memory) {
    get_ready();
    if (is_forked_child()) {
        int wrong = 0;

        for (int call = 0; call < CALLS; call++)
            wrong += make_call(call) != CUDA_ERROR_NOT_INITIALIZED;
        _exit(wrong);
    }
    CU(fill_async(ready.mapped, UNIT, 1));
}

/* The child makes a separate model, so the parent's memory stays. */
TEST(a_reset_in_a_child_leaves_the_parents_memory) {
    get_ready();
    CU(fill_async(ready.mapped, UNIT, 5));
    if (is_forked_child()) {
        reset_with("# as built in\n", 1);
        get_ready();
        CU(fill_async(ready.mapped, UNIT, 6));
        _exit(read_byte(ready.mapped) == 6 ? 0 : 1);
    }
    MUST_EQ(read_byte(ready.mapped), 5);
}

TEST(a_device_may_be_without_it) {
    CUmemAllocationProp props = handle_properties(0);
    size_t bytes;
    int value = -1;

    CU(driver->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                    0));
    MUST_EQ(value, 1);
    reset_with("virtual_memory = 0\n", 1);
    CU(driver->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                    0));
    MUST_EQ(value, 0);
    for (int call = 0; call < CALLS; call++) {
        memset(&ready, 0, sizeof ready);
        ready.address = ready.mapped = ready.spare = UNIT;
        GIVES(CUDA_ERROR_NOT_SUPPORTED, make_call(call));
    }
    GIVES(CUDA_ERROR_NOT_SUPPORTED, driver->cuMemGetAllocationGranularity(&bytes, &props, 0));
}

TEST(devices_have_their_own_memory) {
    CUmemAllocationProp props = handle_properties(1);
    CUmemAccessDesc access[2] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUdeviceptr address;
    handle memory, own;

    GIVES(0, weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}));
    CU(driver->cuMemCreate(&memory, CAPACITY, &props, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, driver->cuMemCreate(&own, UNIT, &props, 0));
    own = create_handle(UNIT);
    address = reserve_range_of(CAPACITY + UNIT);
    map_handle(address, CAPACITY, memory);
    map_handle(address + CAPACITY, UNIT, own);
    GIVES(CUDA_ERROR_INVALID_DEVICE, try_access(address, CAPACITY, 2, access[0].flags));
    CU(driver->cuMemSetAccess(address, CAPACITY + UNIT, access, 1)); /* they are peers */
    access[1] = access[0];
    access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ; /* the last one counts */
    CU(driver->cuMemSetAccess(address, CAPACITY, access, 2));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 1));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    GIVES(WRONG, fill_async(address, 1, 1));
}

/* ---- what fails ------------------------------------------------------------------------------ */

TEST_EACH(CALLS, a_planned_fault_changes_nothing) {
    size_t before;

    get_ready();
    CU(fill_async(ready.mapped, UNIT, 7));
    before = device_free();
    weir__model_fail(entry_of[_i], 1, CUDA_ERROR_UNKNOWN, 0);
    GIVES(CUDA_ERROR_UNKNOWN, make_call(_i));
    MUST_EQ(device_free(), before);
    MUST_EQ(read_byte(ready.mapped), 7);
    check_model();
    CU(make_call(_i));
    MUST_LE(2, weir__model_calls(entry_of[_i]));
}

#ifdef CAN_REFUSE_HOST_MEMORY
static const int taking_calls[] = {RESERVE, MAP};

TEST_EACH(2, without_host_memory_nothing_changes) {
    CUresult result;

    get_ready();
    refuse_in = 1;
    result = make_call(taking_calls[_i]);
    refuse_in = 0;
    MUST(was_refused);
    MUST_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
    check_model();
    CU(make_call(taking_calls[_i]));
}
#endif

/* ---- what it costs --------------------------------------------------------------------------- */

TEST(costs_are_those_of_the_profile) {
    CUdeviceptr address = 0;
    handle one, two;
    uint64_t start;

    reset_with("cuMemAddressReserve = 1\ncuMemAddressFree = 2\ncuMemCreate = 3\n"
               "cuMemMap = 5\ncuMemSetAccess = 7\ncuMemUnmap = 11\ncuMemRelease = 13\n"
               "cuMemGetAllocationGranularity = 17\n"
               "virtual_first_ns = 500000\nvirtual_create_gib_ns = 1000\nvirtual_access_handle_ns "
               "= 100000\n"
               "virtual_access_gib_ns = 10000\nvirtual_unmap_handle_ns = 1000000\n"
               "virtual_unmap_gib_ns = 100\nvirtual_release_gib_ns = 10000000\n",
               1);
    start = virtual_ticks();
    address = reserve_range_of(4 * GIB);
    MUST_EQ(virtual_ticks() - start, 1);
    start = virtual_ticks();
    one = create_handle(GIB);
    MUST_EQ(virtual_ticks() - start, 500000 + 1003);
    start = virtual_ticks();
    two = create_handle(2 * GIB);
    MUST_EQ(virtual_ticks() - start, 2003);
    start = virtual_ticks();
    map_handle(address, GIB, one);
    MUST_EQ(virtual_ticks() - start, 5);
    map_handle(address + GIB, 2 * GIB, two);
    start = virtual_ticks();
    open_device_range(address, 3 * GIB);
    MUST_EQ(virtual_ticks() - start, 2 * 100000 + 3 * 10000 + 7);
    start = virtual_ticks();
    open_device_range(address, 3 * GIB); /* as it is */
    MUST_EQ(virtual_ticks() - start, 7);
    CU(try_access(address, GIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    start = virtual_ticks();
    open_device_range(address, 3 * GIB);
    MUST_EQ(virtual_ticks() - start, 100000 + 10000 + 7);
    start = virtual_ticks();
    CU(driver->cuMemRelease(one));
    MUST_EQ(virtual_ticks() - start, 13); /* it is mapped */
    start = virtual_ticks();
    CU(driver->cuMemUnmap(address, 3 * GIB));
    MUST_EQ(virtual_ticks() - start, 2 * 1000000 + 300 + 10000000 + 11);
    start = virtual_ticks();
    CU(driver->cuMemRelease(two));
    MUST_EQ(virtual_ticks() - start, 13 + 20000000);
    start = virtual_ticks();
    CU(driver->cuMemAddressFree(address, 4 * GIB));
    MUST_EQ(virtual_ticks() - start, 2);
}

/* Sums measured on the profile's device, in ns.  The model must be within a third of them. */
static const struct {
    size_t bytes;
    uint64_t there, back;
} measured[] = {
    {32 * MIB, 40000, 30000}, {64 * MIB, 50000, 46000},   {256 * MIB, 57000, 100000},
    {GIB, 105000, 300000},    {4 * GIB, 300000, 1150000}, {16 * GIB, 930000, 6350000},
};

static int is_near(uint64_t is, uint64_t measured_ns) {
    return 3 * is >= 2 * measured_ns && 3 * is <= 4 * measured_ns;
}

TEST_EACH(ROWS(measured), the_profile_is_near_what_was_measured) {
    size_t bytes = measured[_i].bytes;
    uint64_t start, there, gone;
    CUdeviceptr address;
    handle memory;

    if (!is_roomy())
        return;
    start_model(0);
    CU(driver->cuMemRelease(create_handle(2 * MIB))); /* not the first of the process */
    start = virtual_ticks();
    address = reserve_range_of(bytes);
    memory = back(address, bytes);
    there = virtual_ticks() - start;
    start = virtual_ticks();
    CU(driver->cuMemUnmap(address, bytes));
    CU(driver->cuMemRelease(memory));
    gone = virtual_ticks() - start;
    ck_assert_msg(is_near(there, measured[_i].there), "%llu", (unsigned long long)there);
    ck_assert_msg(is_near(gone, measured[_i].back), "%llu", (unsigned long long)gone);
}

/* Times to unmap 2 GiB that many handles hold, in ns. */
static const struct {
    size_t handles;
    uint64_t gone;
} many_measured[] = {{64, 1200000}, {1024, 20000000}};

TEST_EACH(2, the_profile_is_near_what_many_handles_took) {
    size_t count = many_measured[_i].handles, bytes = 2 * GIB / count;
    CUdeviceptr address;
    uint64_t start, gone = 0;

    start_model(0);
    address = reserve_range_of(2 * GIB);
    for (size_t i = 0; i < count; i++)
        map_handle(address + i * bytes, bytes, create_handle(bytes));
    for (size_t i = 0; i < count; i++) {
        start = virtual_ticks();
        CU(driver->cuMemUnmap(address + i * bytes, bytes));
        gone += virtual_ticks() - start;
    }
    ck_assert_msg(is_near(gone, many_measured[_i].gone), "%llu", (unsigned long long)gone);
}

SUITE("model-virtual", CK_FORK_GETENV);
