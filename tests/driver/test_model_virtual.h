/* SPDX-License-Identifier: MIT */
/* test_model_virtual.h: shared parts of the suites of memory by handles on the device model. */
#ifndef WEIR_TEST_MODEL_VIRTUAL_H
#define WEIR_TEST_MODEL_VIRTUAL_H

#include "tests/fixtures/faults.h"
#include "tests/fixtures/model_device.h"
#include "tests/fixtures/refuse.h"

#define UNIT (2 * MIB)
#define CAPACITY (1 * GIB)
#define WRONG CUDA_ERROR_INVALID_VALUE

/* Compares like MUST_EQ, but evaluates the call only once. */
#define GIVES(wanted, call)                                                                        \
    do {                                                                                           \
        uint64_t gives_is = (uint64_t)(call);                                                      \
        must_compare(gives_is == (uint64_t)(wanted), #call " gives " #wanted, gives_is,            \
                     (uint64_t)(wanted), __LINE__);                                                \
    } while (0)

typedef CUmemGenericAllocationHandle handle;

static inline void set_up_virtual(void) {
    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    start_model(CAPACITY);
}

static inline CUmemAllocationProp handle_properties(int device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUdeviceptr reserve_range_of(size_t bytes) {
    CUdeviceptr address = 1;

    CU(driver->cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MUST_EQ(address % UNIT, 0);
    return address;
}

static inline CUresult try_create(size_t bytes, handle *memory) {
    CUmemAllocationProp props = handle_properties(0);

    return driver->cuMemCreate(memory, bytes, &props, 0);
}

static inline handle create_handle(size_t bytes) {
    handle memory = 0;

    CU(try_create(bytes, &memory));
    return memory;
}

static inline CUresult try_access(CUdeviceptr address, size_t bytes, int device,
                                  CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = flags};

    return driver->cuMemSetAccess(address, bytes, &access, 1);
}

static inline void open_device_range(CUdeviceptr address, size_t bytes) {
    CU(try_access(address, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static inline void map_handle(CUdeviceptr address, size_t bytes, handle memory) {
    CU(driver->cuMemMap(address, bytes, 0, memory, 0));
}

/* Maps a new handle of `bytes` at `address`, and opens it for access.  Returns the handle. */
static inline handle back(CUdeviceptr address, size_t bytes) {
    handle memory = create_handle(bytes);

    map_handle(address, bytes, memory);
    open_device_range(address, bytes);
    return memory;
}

static inline CUresult fill_async(CUdeviceptr address, size_t bytes, unsigned char value) {
    return driver->cuMemsetD8Async(address, value, bytes, A);
}

static inline unsigned char read_byte(CUdeviceptr address) {
    unsigned char byte = 0;

    CU(driver->cuMemcpyDtoHAsync(&byte, address, 1, A));
    CU(driver->cuStreamSynchronize(A));
    return byte;
}

static inline uint64_t virtual_ticks(void) {
    return driver->ticks();
}

static inline void reset_with(const char *profile_text, int devices) {
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

static struct {
    CUdeviceptr address, mapped, spare, scratch;
    handle memory, mapped_memory, spare_memory, scratch_memory;
} ready;

static inline void get_ready(void) {
    ready.address = reserve_range_of(UNIT);
    ready.memory = create_handle(UNIT);
    ready.mapped = reserve_range_of(UNIT);
    ready.mapped_memory = back(ready.mapped, UNIT);
    ready.spare = reserve_range_of(UNIT);
    ready.spare_memory = create_handle(UNIT);
}

#endif
