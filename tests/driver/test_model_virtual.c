/* SPDX-License-Identifier: MIT */
/* test_model_virtual.c: memory by handles on the device model (lib/driver/model/model_virtual.c).
 *
 * A test is named after the rule that it holds the model to; where a rule comes from is said there.
 * A check of the model's accounts ends every test.
 */
#include "tests/fixtures/model_device.h"
#include "tests/fixtures/refuse.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT (2 * MIB)
#define CAPACITY (1 * GIB)
#define WRONG CUDA_ERROR_INVALID_VALUE

/* As MUST_EQ, for a call: it is made once. */
#define GIVES(wanted, call)                                                                        \
    do {                                                                                           \
        uint64_t gives_is = (uint64_t)(call);                                                      \
        must_compare(gives_is == (uint64_t)(wanted), #call " gives " #wanted, gives_is,            \
                     (uint64_t)(wanted), __LINE__);                                                \
    } while (0)

typedef CUmemGenericAllocationHandle handle;

/* ---- what tests use -------------------------------------------------------------------------- */

static void set_up(void) {
    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    start_model(CAPACITY);
}

static CUmemAllocationProp properties(int device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address = 1;

    CU(driver->cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MUST_EQ(address % UNIT, 0);
    return address;
}

static CUresult try_create(size_t bytes, handle *memory) {
    CUmemAllocationProp props = properties(0);

    return driver->cuMemCreate(memory, bytes, &props, 0);
}

static handle create(size_t bytes) {
    handle memory = 0;

    CU(try_create(bytes, &memory));
    return memory;
}

static CUresult try_access(CUdeviceptr address, size_t bytes, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = flags};

    return driver->cuMemSetAccess(address, bytes, &access, 1);
}

static void open_range(CUdeviceptr address, size_t bytes) {
    CU(try_access(address, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static void map(CUdeviceptr address, size_t bytes, handle memory) {
    CU(driver->cuMemMap(address, bytes, 0, memory, 0));
}

/* A new handle of that size there, accessible. */
static handle back(CUdeviceptr address, size_t bytes) {
    handle memory = create(bytes);

    map(address, bytes, memory);
    open_range(address, bytes);
    return memory;
}

static CUresult fill(CUdeviceptr address, size_t bytes, unsigned char value) {
    return driver->cuMemsetD8Async(address, value, bytes, A);
}

static unsigned char read_byte(CUdeviceptr address) {
    unsigned char byte = 0;

    CU(driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    CU(driver->cuStreamSynchronize(A));
    return byte;
}

static uint64_t now(void) {
    return driver->ticks_to_ns(driver->ticks());
}

/* A host access of the byte ends the process. */
static int host_faults(CUdeviceptr address, int writes) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        if (writes)
            *(volatile char *)(uintptr_t)address = 1;
        else
            (void)*(volatile char *)(uintptr_t)address;
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void reset_with(const char *profile_text, int devices) {
    char path[] = "/tmp/weir-profile-XXXXXX";
    int file = mkstemp(path);

    MUST(file >= 0);
    GIVES(strlen(profile_text), write(file, profile_text, strlen(profile_text)));
    close(file);
    GIVES(0, weir__model_reset(&(struct weir_model_setup){
                 .capacity = 8 * GIB, .profile = path, .devices = devices}));
    unlink(path);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
}

/* ---- addresses ------------------------------------------------------------------------------- */

TEST(the_granularity_is_2_mib) {
    CUmemAllocationProp props = properties(0);
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
    CUdeviceptr large = reserve(4096 * UNIT), small = reserve(UNIT);

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
    CUdeviceptr first = reserve(8 * UNIT), again;

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
    CUdeviceptr address = reserve(4 * UNIT);

    GIVES(WRONG, driver->cuMemAddressFree(address, 2 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address, 8 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address + UNIT, 3 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(0, 0));
    CU(driver->cuMemAddressFree(address, 4 * UNIT));
    GIVES(WRONG, driver->cuMemAddressFree(address, 4 * UNIT));
}

TEST(an_address_is_not_freed_under_a_mapping) {
    CUdeviceptr address = reserve(4 * UNIT), next;

    back(address + 3 * UNIT, UNIT);
    GIVES(WRONG, driver->cuMemAddressFree(address, 4 * UNIT));
    CU(driver->cuMemUnmap(address + 3 * UNIT, UNIT));
    CU(driver->cuMemAddressReserve(&next, UNIT, 0, address + 4 * UNIT,
                                   0)); /* behind it, if it may */
    back(next, UNIT);
    CU(driver->cuMemAddressFree(address, 4 * UNIT));
    CU(fill(next, UNIT, 1));
}

/* ---- handles --------------------------------------------------------------------------------- */

TEST(a_handle_takes_memory_of_the_device) {
    size_t before = device_free();
    handle memory = create(96 * UNIT);

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
    memory = create(640 * MIB);
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
    more = create(CAPACITY);
    MUST_EQ(device_free(), 0);
    CU(driver->cuMemRelease(more));
}

/* What waits in a stream's order for its end is there once the work is done. */
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
    CUmemAllocationProp props = properties(0);
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
        bad[i] = properties(0);
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

/* V10: what one file names is one memory, which goes with the last of its handles and mappings. */
TEST(shared_memory_goes_with_its_last_handle) {
    CUmemAllocationProp props = properties(0);
    CUdeviceptr address = reserve(2 * UNIT);
    handle memory = 0, plain = create(UNIT), again[2] = {0, 0};
    int file = -1, none = -1;
    const CUmemAllocationHandleType kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

    props.requestedHandleTypes = kind;
    CU(driver->cuMemCreate(&memory, UNIT, &props, 0));
    map(address, UNIT, memory);
    open_range(address, UNIT);
    CU(fill(address, UNIT, 5));
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
    map(address + UNIT, UNIT, again[0]);
    open_range(address + UNIT, UNIT);
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
    address = reserve(bytes);
    back(address, bytes);
    CU(fill(address, 1, 1));
    CU(fill(address + bytes - 1, 1, 2));
    MUST_EQ(read_byte(address), 1);
    MUST_EQ(read_byte(address + bytes - 1), 2);
    MUST(resident_bytes() - before < 64l << 20);
}

/* Of the file behind all handles; -1: it is not found. */
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
    CUdeviceptr address = reserve(32 * UNIT);
    handle memory = back(address, 32 * UNIT);

    CU(fill(address, 32 * UNIT, 1));
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

/* ---- mappings -------------------------------------------------------------------------------- */

TEST(a_mapping_wants_whole_reserved_addresses) {
    CUdeviceptr address = reserve(4 * UNIT);
    handle memory = create(2 * UNIT), other = create(UNIT);

    GIVES(WRONG, driver->cuMemMap(address + 4096, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT - 4096, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 0, 0, memory, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, driver->cuMemMap(address, UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 3 * UNIT, 0, memory, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, driver->cuMemMap(address, UNIT, UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, UNIT, 4096, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, UNIT, 2 * UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, UNIT, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, 0, memory, 1));
    GIVES(WRONG, driver->cuMemMap(address, 2 * UNIT, 0, memory + 8, 0));
    GIVES(WRONG, driver->cuMemMap(address + 3 * UNIT, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(address - UNIT, UNIT, 0, other, 0));
    GIVES(WRONG, driver->cuMemMap(0, 2 * UNIT, 0, memory, 0));
    GIVES(WRONG, driver->cuMemMap(-(2 * UNIT), 2 * UNIT, 0, memory, 0));
    map(address + UNIT, 2 * UNIT, memory);
    map(address + 3 * UNIT, UNIT, other);
}

TEST(nothing_is_mapped_over_a_mapping) {
    CUdeviceptr address = reserve(6 * UNIT);
    handle memory = create(2 * UNIT);

    back(address + 2 * UNIT, 2 * UNIT);
    CU(fill(address + 2 * UNIT, 2 * UNIT, 9));
    for (size_t at = 1; at <= 3; at++)
        GIVES(WRONG, driver->cuMemMap(address + at * UNIT, 2 * UNIT, 0, memory, 0));
    MUST_EQ(read_byte(address + 2 * UNIT), 9);
    map(address, 2 * UNIT, memory);
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    map(address + 4 * UNIT, 2 * UNIT, memory);
}

/* The model's results are those that it has for addresses of nobody. */
TEST(without_access_there_is_nothing) {
    CUdeviceptr address = reserve(2 * UNIT);
    handle memory = create(UNIT);
    char byte = 1;

    GIVES(WRONG, fill(address, 1, 1));
    map(address, UNIT, memory);
    GIVES(WRONG, fill(address, 1, 1));
    GIVES(WRONG, driver->cuMemcpyHtoDAsync(address, &byte, 1, A));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    MUST(host_faults(address, 0));
    open_range(address, UNIT);
    CU(fill(address, UNIT, 1));
    GIVES(WRONG, fill(address + UNIT - 1, 2, 1)); /* its end is not mapped */
    CU(try_access(address, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(WRONG, fill(address, 1, 2));
    MUST(host_faults(address, 1) && !host_faults(address, 0));
    GIVES(WRONG, driver->cuMemcpyHtoDAsync(address, &byte, 1, A));
    MUST_EQ(read_byte(address), 1);
    CU(try_access(address, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    MUST(host_faults(address, 0));
    open_range(address, UNIT);
    MUST_EQ(read_byte(address), 1);
}

TEST(access_is_of_whole_mappings_without_gaps) {
    CUdeviceptr address = reserve(8 * UNIT);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags all = access.flags;

    map(address, 2 * UNIT, create(2 * UNIT));
    map(address + 2 * UNIT, UNIT, create(UNIT));
    map(address + 4 * UNIT, UNIT, create(UNIT));
    GIVES(WRONG, try_access(address, UNIT, 0, all));
    GIVES(WRONG, try_access(address + UNIT, UNIT, 0, all));
    GIVES(WRONG, try_access(address + UNIT, 2 * UNIT, 0, all));
    GIVES(WRONG, try_access(address, 4 * UNIT, 0, all));
    GIVES(WRONG, try_access(address, 5 * UNIT, 0, all));
    GIVES(WRONG, try_access(address + 5 * UNIT, UNIT, 0, all));
    GIVES(WRONG, try_access(address, 0, 0, all));
    GIVES(WRONG, try_access(address, UNIT + 4096, 0, all));
    GIVES(WRONG, try_access(address, 3 * UNIT, 0, 2));
    GIVES(CUDA_ERROR_INVALID_DEVICE, try_access(address, 3 * UNIT, 1, all));
    GIVES(WRONG, driver->cuMemSetAccess(address, 3 * UNIT, &access, 0));
    GIVES(WRONG, driver->cuMemSetAccess(address, 3 * UNIT, NULL, 1));
    GIVES(WRONG, fill(address, 1, 1)); /* none of them did a thing */
    open_range(address, 3 * UNIT);
    CU(fill(address, 3 * UNIT, 1));
    GIVES(WRONG, fill(address + 4 * UNIT, 1, 1));
}

TEST(work_goes_over_mappings_side_by_side) {
    CUdeviceptr address = reserve(4 * UNIT);

    back(address, UNIT);
    back(address + UNIT, 2 * UNIT);
    CU(fill(address + UNIT / 2, 2 * UNIT, 5));
    MUST_EQ(read_byte(address + UNIT - 1), 5);
    MUST_EQ(read_byte(address + UNIT), 5);
    MUST_EQ(read_byte(address + 5 * UNIT / 2), 0);
    GIVES(WRONG, fill(address + UNIT / 2, 3 * UNIT, 5));
    CU(try_access(address + UNIT, 2 * UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(WRONG, fill(address + UNIT / 2, 2 * UNIT, 5));
}

TEST(what_is_written_moves_with_the_handle) {
    CUdeviceptr from = reserve(3 * UNIT), to = reserve(4 * UNIT);
    handle memory = back(from + UNIT, 2 * UNIT);

    CU(fill(from + UNIT, UNIT, 1));
    CU(fill(from + 2 * UNIT, UNIT, 2));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(from + UNIT, 2 * UNIT));
    GIVES(WRONG, fill(from + UNIT, 1, 1));
    MUST(host_faults(from + UNIT, 0));
    map(to, 2 * UNIT, memory);
    open_range(to, 2 * UNIT);
    MUST_EQ(read_byte(to), 1);
    MUST_EQ(read_byte(to + UNIT - 1), 1);
    MUST_EQ(read_byte(to + 2 * UNIT - 1), 2);
    back(from + UNIT, 2 * UNIT); /* another's bytes */
    CU(fill(from + UNIT, 2 * UNIT, 3));
    MUST_EQ(read_byte(to), 1);
}

TEST(two_addresses_may_mean_the_same_memory) {
    CUdeviceptr one = reserve(UNIT), other = reserve(UNIT);
    handle memory = back(one, UNIT);

    map(other, UNIT, memory);
    open_range(other, UNIT);
    CU(fill(one, UNIT, 1));
    MUST_EQ(read_byte(other + 77), 1);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(one, UNIT));
    MUST_EQ(read_byte(other), 1);
    GIVES(WRONG, fill(one, 1, 1));
}

TEST(memory_goes_with_its_last_mapping_and_its_name) {
    size_t before = device_free();
    CUdeviceptr one = reserve(UNIT), other = reserve(UNIT);
    handle memory = back(one, UNIT);

    map(other, UNIT, memory);
    CU(driver->cuMemRelease(memory));
    GIVES(WRONG, driver->cuMemRelease(memory));
    CU(driver->cuMemUnmap(other, UNIT));
    GIVES(WRONG, driver->cuMemMap(other, UNIT, 0, memory, 0));
    CU(fill(one, UNIT, 4));
    MUST_EQ(read_byte(one), 4);
    MUST_EQ(device_free(), before - UNIT);
    CU(driver->cuMemUnmap(one, UNIT));
    MUST_EQ(device_free(), before);
}

TEST(no_part_of_a_mapping_is_unmapped) {
    CUdeviceptr address = reserve(8 * UNIT);

    back(address + UNIT, 3 * UNIT);
    back(address + 4 * UNIT, UNIT);
    back(address + 6 * UNIT, UNIT);
    CU(fill(address + UNIT, 4 * UNIT, 6));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + 2 * UNIT, 3 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address, 4 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 5 * UNIT)); /* a gap behind */
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 6 * UNIT)); /* a gap between */
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 0));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, 3 * UNIT + 4096));
    GIVES(WRONG, driver->cuMemUnmap(address + UNIT, -UNIT));
    MUST_EQ(read_byte(address + UNIT), 6);
    MUST_EQ(read_byte(address + 5 * UNIT - 1), 6);
    CU(driver->cuMemUnmap(address + UNIT, 4 * UNIT)); /* both at once */
    CU(driver->cuMemUnmap(address + 6 * UNIT, UNIT));
    CU(driver->cuMemAddressFree(address, 8 * UNIT));
}

TEST(where_nothing_is_mapped_unmapping_has_nothing_to_do) {
    CUdeviceptr address = reserve(8 * UNIT), gone = reserve(4 * UNIT);

    CU(driver->cuMemAddressFree(gone, 4 * UNIT));
    CU(driver->cuMemUnmap(address, 8 * UNIT));
    back(address + 2 * UNIT, 2 * UNIT);
    CU(fill(address + 2 * UNIT, 2 * UNIT, 6));
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    CU(driver->cuMemUnmap(address + 5 * UNIT, UNIT));
    GIVES(WRONG, driver->cuMemUnmap(gone, 4 * UNIT));
    GIVES(WRONG, driver->cuMemUnmap(address, 4 * UNIT));
    MUST_EQ(read_byte(address + 2 * UNIT), 6);
    CU(driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    CU(driver->cuMemUnmap(address + 2 * UNIT, 2 * UNIT));
    CU(driver->cuMemAddressFree(address, 8 * UNIT));
}

TEST(what_is_mapped_again_begins_without_access) {
    CUdeviceptr address = reserve(UNIT);
    handle memory = back(address, UNIT);

    CU(fill(address, UNIT, 8));
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(address, UNIT));
    map(address, UNIT, memory);
    GIVES(WRONG, fill(address, 1, 1));
    open_range(address, UNIT);
    MUST_EQ(read_byte(address), 8);
}

TEST(a_mapping_is_no_block) {
    CUdeviceptr address = reserve(UNIT);

    back(address, UNIT);
    GIVES(WRONG, driver->cuMemFree(address));
    GIVES(WRONG, driver->cuMemFreeAsync(address, A));
    CU(fill(address, UNIT, 1));
}

/* An arena that grows behind its end by single units, in a range of thousands, and goes at once. */
TEST(thousands_of_handles_make_one_range) {
    enum { UNITS = 2048 };
    static handle memory[UNITS];
    CUdeviceptr address;
    size_t before;

    if (!is_roomy())
        return;
    start_model(0);
    before = device_free();
    address = reserve(UNITS * UNIT);
    for (size_t i = 0; i < UNITS; i++)
        memory[i] = create(UNIT);
    for (size_t i = 0; i < UNITS; i++)
        map(address + i * UNIT, UNIT, memory[i % 2 ? i : UNITS - 2 - i]);
    open_range(address, UNITS * UNIT);
    for (size_t i = 0; i < UNITS - 1; i += 64)
        CU(fill(address + i * UNIT + UNIT - 1, 2, (unsigned char)i));
    for (size_t i = 0; i < UNITS - 1; i += 64)
        MUST_EQ(read_byte(address + (i + 1) * UNIT), (unsigned char)i);
    check_model();
    CU(driver->cuMemUnmap(address, UNITS * UNIT));
    for (size_t i = 0; i < UNITS; i++)
        CU(driver->cuMemRelease(memory[i]));
    MUST_EQ(device_free(), before);
}

static void *move_units(void *argument) {
    enum { UNITS = 8 };
    uint64_t random = 1 + (uintptr_t)argument;
    CUdeviceptr address = reserve(UNITS * UNIT);
    handle memory[UNITS];
    unsigned char value[UNITS];

    for (size_t i = 0; i < UNITS; i++) {
        value[i] = (unsigned char)next_random(&random);
        memory[i] = back(address + i * UNIT, UNIT);
        memset((void *)(uintptr_t)(address + i * UNIT), value[i], 4096);
    }
    for (int round = 0; round < 50; round++) { /* two change places */
        size_t a = next_random(&random) % UNITS, b = next_random(&random) % UNITS;
        handle other = memory[a];
        unsigned char byte = value[a];

        CU(driver->cuMemUnmap(address + a * UNIT, UNIT));
        if (a != b)
            CU(driver->cuMemUnmap(address + b * UNIT, UNIT));
        memory[a] = memory[b], memory[b] = other;
        value[a] = value[b], value[b] = byte;
        map(address + a * UNIT, UNIT, memory[a]);
        if (a != b)
            map(address + b * UNIT, UNIT, memory[b]);
        open_range(address, UNITS * UNIT);
        for (size_t i = 0; i < UNITS; i++)
            MUST_EQ(*(unsigned char *)(uintptr_t)(address + i * UNIT + 99), value[i]);
    }
    CU(driver->cuMemUnmap(address, UNITS * UNIT));
    for (size_t i = 0; i < UNITS; i++)
        CU(driver->cuMemRelease(memory[i]));
    CU(driver->cuMemAddressFree(address, UNITS * UNIT));
    return NULL;
}

TEST(threads_move_handles_beside_each_other) {
    size_t before = device_free();
    pthread_t threads[4];

    for (uintptr_t i = 0; i < 4; i++)
        GIVES(0, pthread_create(&threads[i], NULL, move_units, (void *)i));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    MUST_EQ(device_free(), before);
}

/* ---- who may call, and when ------------------------------------------------------------------ */

TEST(no_context_is_needed_and_none_takes_it_along) {
    CUdeviceptr address;
    CUcontext popped;
    handle memory;

    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(0));
    address = reserve(UNIT);
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

/* Each of the calls once. */
enum { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, FREE, CALLS };

static struct {
    CUdeviceptr address, mapped, spare, scratch;
    handle memory, mapped_memory, spare_memory, scratch_memory;
} ready;

static void get_ready(void) {
    ready.address = reserve(UNIT);
    ready.memory = create(UNIT);
    ready.mapped = reserve(UNIT);
    ready.mapped_memory = back(ready.mapped, UNIT);
    ready.spare = reserve(UNIT);
    ready.spare_memory = create(UNIT);
}

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
    CU(fill(ready.mapped, UNIT, 1));
    start = now();
    for (int call = 0; call < CALLS; call++)
        CU(make_call(call));
    MUST(now() - start < 10 * MS);
    GIVES(CUDA_ERROR_NOT_READY, driver->cuStreamQuery(A));
}

TEST(a_capture_goes_on_beside_them) {
    CUstreamCaptureMode mode = (CUstreamCaptureMode)(_i / CALLS);
    CUstreamCaptureStatus status;
    CUgraph graph;

    get_ready();
    CU(driver->cuStreamBeginCapture(A, mode));
    CU(make_call(_i % CALLS));
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
}

TEST(what_was_captured_meets_what_is_mapped_at_its_launch) {
    CUgraphExec exec;
    CUgraph graph;

    get_ready();
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    GIVES(WRONG, fill(ready.address, UNIT, 1));
    CU(fill(ready.mapped, UNIT, 1));
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, driver->cuGraphLaunch(exec, A));
    map(ready.mapped, UNIT, ready.memory);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, driver->cuGraphLaunch(exec, A));
    open_range(ready.mapped, UNIT);
    CU(driver->cuGraphLaunch(exec, A));
    MUST_EQ(read_byte(ready.mapped), 1);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

TEST(a_child_of_fork_is_refused) {
    int status;
    pid_t child;

    get_ready();
    child = fork();
    if (child == 0) {
        int wrong = 0;

        for (int call = 0; call < CALLS; call++)
            wrong += make_call(call) != CUDA_ERROR_NOT_INITIALIZED;
        _exit(wrong);
    }
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status));
    MUST_EQ(WEXITSTATUS(status), 0);
    CU(fill(ready.mapped, UNIT, 1));
}

/* The child makes a model of its own; what the parent holds stays. */
TEST(a_reset_in_a_child_leaves_the_parents_memory) {
    int status;
    pid_t child;

    get_ready();
    CU(fill(ready.mapped, UNIT, 5));
    child = fork();
    if (child == 0) {
        reset_with("# as built in\n", 1);
        get_ready();
        CU(fill(ready.mapped, UNIT, 6));
        _exit(read_byte(ready.mapped) == 6 ? 0 : 1);
    }
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status));
    MUST_EQ(WEXITSTATUS(status), 0);
    MUST_EQ(read_byte(ready.mapped), 5);
}

TEST(a_device_may_be_without_it) {
    CUmemAllocationProp props = properties(0);
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
    CUmemAllocationProp props = properties(1);
    CUmemAccessDesc access[2] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUdeviceptr address;
    handle memory, own;

    GIVES(0, weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}));
    CU(driver->cuMemCreate(&memory, CAPACITY, &props, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, driver->cuMemCreate(&own, UNIT, &props, 0));
    own = create(UNIT);
    address = reserve(CAPACITY + UNIT);
    map(address, CAPACITY, memory);
    map(address + CAPACITY, UNIT, own);
    GIVES(CUDA_ERROR_INVALID_DEVICE, try_access(address, CAPACITY, 2, access[0].flags));
    CU(driver->cuMemSetAccess(address, CAPACITY + UNIT, access, 1)); /* they are peers */
    access[1] = access[0];
    access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ; /* the last one counts */
    CU(driver->cuMemSetAccess(address, CAPACITY, access, 2));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 1));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    GIVES(WRONG, fill(address, 1, 1));
}

/* ---- what fails ------------------------------------------------------------------------------ */

TEST(a_planned_fault_changes_nothing) {
    size_t before;

    get_ready();
    CU(fill(ready.mapped, UNIT, 7));
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

TEST(without_host_memory_nothing_changes) {
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
    start = now();
    address = reserve(4 * GIB);
    MUST_EQ(now() - start, 1);
    start = now();
    one = create(GIB);
    MUST_EQ(now() - start, 500000 + 1003);
    start = now();
    two = create(2 * GIB);
    MUST_EQ(now() - start, 2003);
    start = now();
    map(address, GIB, one);
    MUST_EQ(now() - start, 5);
    map(address + GIB, 2 * GIB, two);
    start = now();
    open_range(address, 3 * GIB);
    MUST_EQ(now() - start, 2 * 100000 + 3 * 10000 + 7);
    start = now();
    open_range(address, 3 * GIB); /* as it is */
    MUST_EQ(now() - start, 7);
    CU(try_access(address, GIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    start = now();
    open_range(address, 3 * GIB);
    MUST_EQ(now() - start, 100000 + 10000 + 7);
    start = now();
    CU(driver->cuMemRelease(one));
    MUST_EQ(now() - start, 13); /* it is mapped */
    start = now();
    CU(driver->cuMemUnmap(address, 3 * GIB));
    MUST_EQ(now() - start, 2 * 1000000 + 300 + 10000000 + 11);
    start = now();
    CU(driver->cuMemRelease(two));
    MUST_EQ(now() - start, 13 + 20000000);
    start = now();
    CU(driver->cuMemAddressFree(address, 4 * GIB));
    MUST_EQ(now() - start, 2);
}

/* Sums that were measured on the device of the profile, in ns; the model is within a third. */
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

TEST(the_profile_is_near_what_was_measured) {
    size_t bytes = measured[_i].bytes;
    uint64_t start, there, gone;
    CUdeviceptr address;
    handle memory;

    if (!is_roomy())
        return;
    start_model(0);
    CU(driver->cuMemRelease(create(2 * MIB))); /* not the first of the process */
    start = now();
    address = reserve(bytes);
    memory = back(address, bytes);
    there = now() - start;
    start = now();
    CU(driver->cuMemUnmap(address, bytes));
    CU(driver->cuMemRelease(memory));
    gone = now() - start;
    ck_assert_msg(is_near(there, measured[_i].there), "%llu", (unsigned long long)there);
    ck_assert_msg(is_near(gone, measured[_i].back), "%llu", (unsigned long long)gone);
}

/* The same for 2 GiB unmapped as so many handles. */
static const struct {
    size_t handles;
    uint64_t gone;
} many_measured[] = {{64, 1200000}, {1024, 20000000}};

TEST(the_profile_is_near_what_many_handles_took) {
    size_t count = many_measured[_i].handles, bytes = 2 * GIB / count;
    CUdeviceptr address;
    uint64_t start, gone = 0;

    start_model(0);
    address = reserve(2 * GIB);
    for (size_t i = 0; i < count; i++)
        map(address + i * bytes, bytes, create(bytes));
    for (size_t i = 0; i < count; i++) {
        start = now();
        CU(driver->cuMemUnmap(address + i * bytes, bytes));
        gone += now() - start;
    }
    ck_assert_msg(is_near(gone, many_measured[_i].gone), "%llu", (unsigned long long)gone);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

enum { OLD = 1, NEW = 2 };
#define UNMAPPED "unmapped before the host saw its uses done"

static void expect_none(void) {
    const char *fault = weir__model_fault();

    ck_assert_msg(fault == NULL, "%s", fault);
}

static void expect_fault(const char *what) {
    const char *fault = weir__model_fault();

    ck_assert_msg(fault != NULL, "no fault was found: %s", what);
    ck_assert_msg(strncmp(fault, what, strlen(what)) == 0, "%s", fault);
}

static void use(CUstream stream, CUdeviceptr address, uint64_t owner) {
    CU(weir__model_use(stream, address, 4096, owner, MS));
}

TEST(unmapped_under_its_users) {
    char wanted[64];

    get_ready();
    use(B, ready.mapped + 4096, OLD);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_fault(UNMAPPED);
    snprintf(wanted, sizeof wanted, "owner %d (stream:operation %llu:", OLD,
             (unsigned long long)id_of(B));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), wanted));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), "the host has seen none"));
}

TEST(unmapped_when_done_but_unseen) {
    get_ready();
    use(B, ready.mapped, OLD);
    weir__model_advance(10 * MS);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_fault(UNMAPPED);
}

enum { SYNCHRONIZED, QUERIED, EVENT_QUERIED, BEHIND_ANOTHER, DEVICE, SIGHTS };

static void see(int way, CUstream stream) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, stream));
    weir__model_advance(10 * MS);
    switch (way) {
    case SYNCHRONIZED:
        CU(driver->cuStreamSynchronize(stream));
        break;
    case QUERIED:
        CU(driver->cuStreamQuery(stream));
        break;
    case EVENT_QUERIED:
        CU(driver->cuEventQuery(event));
        break;
    case BEHIND_ANOTHER: /* what C waited for is seen with C */
        CU(driver->cuStreamWaitEvent(C, event, 0));
        busy(C, 1);
        CU(driver->cuStreamSynchronize(C));
        break;
    case DEVICE:
        CU(driver->cuCtxSynchronize());
        break;
    }
    CU(driver->cuEventDestroy(event));
}

TEST(unmapped_when_the_host_saw_the_end) {
    get_ready();
    use(B, ready.mapped, OLD);
    see(_i, B);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_none();
}

TEST(unmapped_with_one_of_two_users_seen) {
    get_ready();
    use(A, ready.mapped, OLD);
    use(B, ready.mapped + UNIT - 4096, NEW);
    see(_i, A);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    if (_i == DEVICE)
        expect_none();
    else
        expect_fault(UNMAPPED);
}

enum { FILL, COPY_IN, COPY_OUT, LAUNCH, TOUCHES };

/* Work that has no owner to tell of: what the library itself fills, for one. */
TEST(unmapped_under_fills_and_copies) {
    int way = _i / 2, seen = _i % 2;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    char byte = 1;

    get_ready();
    busy(A, MS);
    switch (way) {
    case FILL:
        CU(fill(ready.mapped + 4096, 1, 1));
        break;
    case COPY_IN:
        CU(driver->cuMemcpyHtoDAsync(ready.mapped, &byte, 1, A));
        break;
    case COPY_OUT:
        CU(driver->cuMemcpyDtoHAsync(&byte, ready.mapped + UNIT - 1, 1, A));
        break;
    case LAUNCH:
        CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(fill(ready.mapped, UNIT, 1));
        CU(driver->cuStreamEndCapture(A, &graph));
        CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
        CU(driver->cuGraphLaunch(exec, A));
        break;
    }
    if (seen)
        CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    if (seen)
        expect_none();
    else
        expect_fault(UNMAPPED);
    if (!seen)
        ck_assert_ptr_nonnull(strstr(weir__model_fault(), "used by fills or copies (stream"));
    if (exec) {
        CU(driver->cuGraphExecDestroy(exec));
        CU(driver->cuGraphDestroy(graph));
    }
}

TEST(a_fill_over_two_mappings_is_of_both) {
    CUdeviceptr address = reserve(4 * UNIT);

    for (size_t i = 0; i < 4; i++)
        back(address + i * UNIT, UNIT);
    busy(A, MS);
    CU(fill(address + 2 * UNIT - 1, 2, 1));
    CU(driver->cuMemUnmap(address, UNIT));
    CU(driver->cuMemUnmap(address + 3 * UNIT, UNIT));
    expect_none();
    CU(driver->cuMemUnmap(address + (size_t)(1 + _i) * UNIT, UNIT));
    expect_fault(UNMAPPED);
}

TEST(fills_are_seen_with_the_device) {
    get_ready();
    CU(fill(ready.mapped, UNIT, 1));
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    map(ready.mapped, UNIT, ready.mapped_memory);
    open_range(ready.mapped, UNIT);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_none();
}

TEST(used_again_after_it_was_seen) {
    get_ready();
    use(A, ready.mapped, OLD);
    CU(driver->cuStreamSynchronize(A));
    use(A, ready.mapped, OLD);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_fault(UNMAPPED);
}

TEST(a_neighbour_is_not_concerned) {
    CUdeviceptr address = reserve(2 * UNIT);

    back(address, UNIT);
    back(address + UNIT, UNIT);
    use(A, address, OLD);
    CU(driver->cuMemUnmap(address + UNIT, UNIT));
    expect_none();
    CU(weir__model_use(A, address + UNIT - 4096, 8192, OLD, MS)); /* half of it is gone */
    expect_fault("use of memory that the driver has not given out");
}

TEST(remapped_memory_begins_without_an_owner) {
    CUdeviceptr other = reserve(UNIT);

    get_ready();
    use(A, ready.mapped, OLD);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    map(other, UNIT, ready.mapped_memory);
    open_range(other, UNIT);
    use(B, other, NEW);
    map(ready.mapped, UNIT, ready.memory);
    open_range(ready.mapped, UNIT);
    use(C, ready.mapped, NEW);
    expect_none();
    MUST_EQ(weir__model_uses(), 3);
    use(B, ready.mapped, OLD);
    expect_fault("use beside another's");
}

TEST(used_without_access) {
    get_ready();
    if (_i == 0) {
        map(ready.address, UNIT, ready.memory);
    } else if (_i == 1) {
        CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
        ready.address = ready.mapped;
    }
    use(A, ready.address, OLD);
    expect_fault("use of memory that the driver has not given out");
}

TEST(access_is_taken_from_no_user) {
    get_ready();
    use(A, ready.mapped, OLD);
    if (_i == 1)
        CU(driver->cuStreamSynchronize(A));
    CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)); /* as it was */
    expect_none();
    CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    if (_i == 1)
        expect_none();
    else
        expect_fault("access taken before the host saw its uses done");
}

/* ---- the suite ------------------------------------------------------------------------------- */

static void add_addresses(TCase *tests) {
    ADD_TESTS(tests, the_granularity_is_2_mib, a_reservation_takes_address_space_alone,
              a_reservation_is_aligned_as_asked, an_address_to_reserve_is_a_hint,
              reservations_of_other_sizes_are_refused, a_reservation_is_freed_whole_and_once,
              an_address_is_not_freed_under_a_mapping);
}

static void add_handles(TCase *tests) {
    ADD_TESTS(tests, a_handle_takes_memory_of_the_device, handles_blocks_and_pools_share_the_device,
              a_handle_gets_what_left_in_stream_order, handles_of_other_sizes_are_refused,
              what_is_not_played_is_refused, shared_memory_goes_with_its_last_handle,
              memory_costs_nothing_until_it_is_touched, the_host_gets_its_memory_back);
}

static void add_mappings(TCase *tests) {
    ADD_TESTS(tests, a_mapping_wants_whole_reserved_addresses, nothing_is_mapped_over_a_mapping,
              without_access_there_is_nothing, access_is_of_whole_mappings_without_gaps,
              work_goes_over_mappings_side_by_side, what_is_written_moves_with_the_handle,
              two_addresses_may_mean_the_same_memory,
              memory_goes_with_its_last_mapping_and_its_name, no_part_of_a_mapping_is_unmapped,
              where_nothing_is_mapped_unmapping_has_nothing_to_do,
              what_is_mapped_again_begins_without_access, a_mapping_is_no_block,
              thousands_of_handles_make_one_range, threads_move_handles_beside_each_other);
}

static void add_callers(TCase *tests) {
    ADD_TESTS(tests, no_context_is_needed_and_none_takes_it_along, nothing_waits_for_work,
              what_was_captured_meets_what_is_mapped_at_its_launch, a_child_of_fork_is_refused,
              a_reset_in_a_child_leaves_the_parents_memory, a_device_may_be_without_it,
              devices_have_their_own_memory);
    tcase_add_loop_test(tests, a_capture_goes_on_beside_them, 0, 3 * CALLS);
    tcase_add_loop_test(tests, a_planned_fault_changes_nothing, 0, CALLS);
#ifdef CAN_REFUSE_HOST_MEMORY
    tcase_add_loop_test(tests, without_host_memory_nothing_changes, 0, 2);
#endif
    tcase_add_test(tests, costs_are_those_of_the_profile);
    tcase_add_loop_test(tests, the_profile_is_near_what_was_measured, 0,
                        sizeof measured / sizeof measured[0]);
    tcase_add_loop_test(tests, the_profile_is_near_what_many_handles_took, 0, 2);
}

static void add_oracle(TCase *tests) {
    ADD_TESTS(tests, unmapped_under_its_users, unmapped_when_done_but_unseen,
              fills_are_seen_with_the_device, used_again_after_it_was_seen,
              a_neighbour_is_not_concerned, remapped_memory_begins_without_an_owner);
    ADD_FOR_EACH(tests, SIGHTS, unmapped_when_the_host_saw_the_end,
                 unmapped_with_one_of_two_users_seen);
    tcase_add_loop_test(tests, unmapped_under_fills_and_copies, 0, 2 * TOUCHES);
    ADD_FOR_EACH(tests, 2, a_fill_over_two_mappings_is_of_both, access_is_taken_from_no_user);
    tcase_add_loop_test(tests, used_without_access, 0, 3);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static CUcontext second;
static CUstream far; /* of device 1 */

static void set_up_two(void) {
    struct weir_driver_failure failure;
    CUcontext popped;

    unsetenv("WEIR_MODEL_PROFILE");
    driver = weir__driver_open("model", &failure);
    MUST(driver != NULL);
    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.devices = 3, .capacity = CAPACITY}), 0);
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
}

/* V9. */
TEST(access_is_each_devices_own) {
    CUdeviceptr address = reserve(2 * UNIT);
    handle memory = create(2 * UNIT);
    CUmemAccessDesc both[2] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ}};
    unsigned char byte = 0;

    map(address, 2 * UNIT, memory);
    CU(try_access(address, 2 * UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    GIVES(WRONG, fill(address, 100, 3));
    CU(driver->cuMemsetD8Async(address, 3, 100, far));
    CU(driver->cuStreamSynchronize(far));
    CU(driver->cuMemSetAccess(address, 2 * UNIT, both, 2));
    CU(fill(address, 1, 4));
    GIVES(WRONG, driver->cuMemsetD8Async(address, 5, 100, far));
    CU(driver->cuMemcpyDtoHAsync(&byte, address, 1, far));
    MUST_EQ(byte, 4);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuStreamSynchronize(far));
    CU(try_access(address, 2 * UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, far));
    MUST_EQ(read_byte(address), 4);
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    map(address, 2 * UNIT, memory); /* anew: nobody's */
    GIVES(WRONG, fill(address, 100, 3));
    check_model();
}

/* Assumed: all or nothing.  Of three devices, of which two reach each other, the third is no peer. */
TEST(access_of_no_peer_changes_nothing) {
    CUmemAccessDesc access[2] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, 2}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUdeviceptr address;
    int can[2] = {-1, -1};

    reset_with("peers = 2\n", 3);
    CU(driver->cuDeviceCanAccessPeer(&can[0], 1, 0));
    CU(driver->cuDeviceCanAccessPeer(&can[1], 2, 0));
    MUST_EQ(can[0], 1);
    MUST_EQ(can[1], 0);
    address = reserve(UNIT);
    map(address, UNIT, create(UNIT));
    GIVES(CUDA_ERROR_INVALID_DEVICE, driver->cuMemSetAccess(address, UNIT, access, 2));
    GIVES(WRONG, fill(address, 1, 1));
    access[1].location.id = 1;
    CU(driver->cuMemSetAccess(address, UNIT, access, 2));
    CU(fill(address, 1, 1));
}

/* The oracle: a use by a device without access, though its bytes are another's to use. */
TEST(a_use_without_access_is_a_fault) {
    CUdeviceptr address = reserve(UNIT);

    back(address, UNIT);
    CU(weir__model_use(A, address, 100, 1, MS));
    MUST(weir__model_fault() == NULL);
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CU(weir__model_use(far, address + 4096, 100, 2, MS));
    MUST(weir__model_fault() == NULL);
    if (_i == 0) {
        CU(driver->cuCtxSynchronize()); /* of the other device alone */
        CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
        ck_assert_msg(weir__model_fault() && strstr(weir__model_fault(), "access taken"), "%s",
                      weir__model_fault());
        return;
    }
    CU(driver->cuStreamSynchronize(far));
    CU(driver->cuCtxSynchronize());
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    MUST(weir__model_fault() == NULL);
    CU(weir__model_use(far, address, 100, 3, MS));
    ck_assert_msg(weir__model_fault() && strstr(weir__model_fault(), "device has no access"), "%s",
                  weir__model_fault());
}

/* But what its streams waited for there it has seen. */
TEST(a_device_is_seen_with_what_it_waited_for) {
    CUdeviceptr address = reserve(UNIT);
    CUcontext popped;
    CUevent event;

    back(address, UNIT);
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CU(weir__model_use(A, address, 100, 1, MS));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(weir__model_use(far, address, 100, 1, MS));
    CU(driver->cuEventRecord(event, far));
    if (_i == 0)
        CU(driver->cuStreamWaitEvent(A, event, 0));
    CU(driver->cuCtxSynchronize());
    CU(weir__model_use(A, address, 100, 2, MS));
    MUST((weir__model_fault() != NULL) == (_i != 0));
}

/* A wait for one device says nothing of what another does in the same bytes. */
TEST(a_device_is_seen_alone) {
    CUdeviceptr address = reserve(UNIT);

    back(address, UNIT);
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CU(weir__model_use(_i ? A : far, address, 100, 1, MS));
    CU(weir__model_use(_i ? far : A, address, 100, 1, MS));
    CU(driver->cuCtxSynchronize());
    CU(weir__model_use(A, address, 100, 2, MS));
    ck_assert_msg(weir__model_fault() && strstr(weir__model_fault(), "beside another's"), "%s",
                  weir__model_fault());
}

int main(void) {
    Suite *suite = suite_create("model-virtual");
    TCase *tests;

    add_addresses(suite_add_case(suite, "addresses", 30, set_up, check_model));
    add_handles(suite_add_case(suite, "handles", 30, set_up, check_model));
    add_mappings(suite_add_case(suite, "mappings", 60, set_up, check_model));
    add_callers(suite_add_case(suite, "callers", 30, set_up, check_model));
    add_oracle(suite_add_case(suite, "oracle", 30, set_up, check_model));
    tests = suite_add_case(suite, "peers", 10, set_up_two, NULL);
    ADD_TESTS(tests, access_is_each_devices_own, access_of_no_peer_changes_nothing);
    ADD_FOR_EACH(tests, 2, a_use_without_access_is_a_fault, a_device_is_seen_alone,
                 a_device_is_seen_with_what_it_waited_for);
    return run_suite(suite, CK_FORK_GETENV);
}
