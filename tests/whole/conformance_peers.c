/* SPDX-License-Identifier: MIT */
/* conformance_peers.c: checks the access between devices on which weir and the model rely, and the access that weir
 * gives, on the device model and on two GPUs.
 *
 * As in conformance_driver.c the tests assert a point on both, or print an answer and assert it on the model alone.
 * They check nothing without two devices that are peers.  tests/whole/peers checks a device without access, in a
 * separate process.
 *
 * Must not know: how weir places blocks. */
#include "conformance.h"

#define UNIT (2 * MIB)

static int is_pair;
static CUcontext context[2];
static CUstream stream[2];

static void enter_peer_device(int i) {
    CUcontext popped;

    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuCtxPushCurrent(context[i]));
}

static void open_two_devices(void) {
    int count = 0, can = 0;

    open_tested_driver((struct weir_model_setup){.devices = 2, .capacity = 2 * GIB});
    CU(driver->cuDeviceGetCount(&count));
    if (count > 1 && driver->capabilities & WEIR_CAP_PEER)
        CU(driver->cuDeviceCanAccessPeer(&can, 1, 0));
    is_pair = can;
    if (!is_pair)
        printf("# driver: no two devices that are peers: nothing is asked of them\n");
    for (int i = 1; i >= 0 && is_pair; i--) {
        context[i] = enter_device(i);
        stream[i] = make_stream();
    }
}

static void close_devices(void) {
    for (int i = 0; i < 2 && is_pair; i++) {
        drop_stream(stream[i]);
        leave_device(i);
    }
}

static CUmemAccessDesc to_device(int device, CUmemAccess_flags flags) {
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = flags};
}

/* Fills the bytes on the device, and checks that the other device reads the last of them. */
static void fill_and_see(int device, CUdeviceptr at, size_t bytes, unsigned char value) {
    unsigned char seen = 0;

    enter_peer_device(device);
    CU(driver->cuMemsetD8Async(at, value, bytes, stream[device]));
    CU(driver->cuStreamSynchronize(stream[device]));
    enter_peer_device(!device);
    CU(driver->cuMemcpyDtoHAsync(&seen, at + bytes - 1, 1, stream[!device]));
    CU(driver->cuStreamSynchronize(stream[!device]));
    enter_peer_device(0);
    MUST_EQ(seen, value);
}

/* ---- the driver ------------------------------------------------------------------------------ */

CASE("peers", 120, open_two_devices, close_devices);

TEST(the_devices_of_a_pair_are_peers) {
    int can[3] = {-1, -1, -1};
    CUresult none;

    if (!is_pair)
        return;
    CU(driver->cuDeviceCanAccessPeer(&can[0], 0, 1));
    CU(driver->cuDeviceCanAccessPeer(&can[1], 0, 0));
    none = driver->cuDeviceCanAccessPeer(&can[2], 0, 63);
    MUST_EQ(can[0], 1);
    answer("a device is a peer of itself", can[1], 0);
    answer("a device that is not there is an invalid device", none == CUDA_ERROR_INVALID_DEVICE, 1);
}

TEST(peers_get_access_to_a_pool) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc give = to_device(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), wrong;
    CUmemLocation second = give.location;
    CUmemAccess_flags flags = 77;
    CUdeviceptr block, later;
    CUmemoryPool pool;

    if (!is_pair)
        return;
    CU(driver->cuMemPoolCreate(&pool, &properties));
    CU(driver->cuMemAllocFromPoolAsync(&block, 5 * MIB, pool, stream[0]));
    CU(driver->cuStreamSynchronize(stream[0]));
    CU(driver->cuMemPoolGetAccess(&flags, pool, &second));
    MUST_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CU(driver->cuMemPoolSetAccess(pool, &give, 1));
    CU(driver->cuMemPoolGetAccess(&flags, pool, &second));
    MUST_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill_and_see(1, block, 5 * MIB, 3); /* a block from before the access was given */
    CU(driver->cuMemAllocFromPoolAsync(&later, 200 * MIB, pool, stream[0]));
    CU(driver->cuStreamSynchronize(stream[0]));
    fill_and_see(1, later, 200 * MIB, 4); /* a later block, for which the pool grew */
    wrong = to_device(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    answer("a pool's own device cannot lose it: invalid device",
           driver->cuMemPoolSetAccess(pool, &wrong, 1) == CUDA_ERROR_INVALID_DEVICE, 1);
    give.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    answer("access can be taken back", driver->cuMemPoolSetAccess(pool, &give, 1) == CUDA_SUCCESS,
           1);
    CU(driver->cuMemFreeAsync(block, stream[0]));
    CU(driver->cuMemFreeAsync(later, stream[0]));
    CU(driver->cuStreamSynchronize(stream[0]));
    CU(driver->cuMemPoolDestroy(pool));
}

static CUmemGenericAllocationHandle map_on_first_device(CUdeviceptr at) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemGenericAllocationHandle memory;

    CU(driver->cuMemCreate(&memory, UNIT, &properties, 0));
    CU(driver->cuMemMap(at, UNIT, 0, memory, 0));
    return memory;
}

/* One call gives access to both devices, or two calls do.  The test prints the cost. */
TEST(peers_get_access_to_handles) {
    enum { HANDLES = 64 };
    CUmemAccessDesc both[2] = {to_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                               to_device(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
    CUmemGenericAllocationHandle memory[HANDLES];
    uint64_t ns[3] = {0}, began;
    CUdeviceptr at;

    if (!is_pair || !(driver->capabilities & WEIR_CAP_VIRTUAL))
        return;
    CU(driver->cuMemAddressReserve(&at, HANDLES * UNIT, 0, 0, 0));
    for (int i = 0; i < HANDLES; i++) {
        int way = i % 3; /* own device; own and peer at once; own, then peer */

        memory[i] = map_on_first_device(at + (size_t)i * UNIT);
        began = driver->ticks();
        CU(driver->cuMemSetAccess(at + (size_t)i * UNIT, UNIT, both, way == 1 ? 2 : 1));
        ns[way] += driver->ticks() - began;
        if (way == 2)
            CU(driver->cuMemSetAccess(at + (size_t)i * UNIT, UNIT, &both[1], 1));
        if (way > 0) {
            fill_and_see(1, at + (size_t)i * UNIT, UNIT, (unsigned char)(i + 1));
            fill_and_see(0, at + (size_t)i * UNIT, UNIT, (unsigned char)(i + 2));
        }
    }
    printf("# driver: access to a handle of 2 MiB: %llu ns for its own device, %llu for two\n",
           (unsigned long long)ns[0] / (HANDLES / 3 + 1),
           (unsigned long long)ns[1] / (HANDLES / 3));
    both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    answer("a peer's access to a handle can be taken",
           driver->cuMemSetAccess(at + UNIT, UNIT, &both[1], 1) == CUDA_SUCCESS, 1);
    enter_peer_device(0);
    CU(driver->cuMemsetD8Async(at + UNIT, 1, UNIT, stream[0]));
    CU(driver->cuStreamSynchronize(stream[0]));
    for (int i = 0; i < HANDLES; i++) {
        CU(driver->cuMemUnmap(at + (size_t)i * UNIT, UNIT));
        CU(driver->cuMemRelease(memory[i]));
    }
    CU(driver->cuMemAddressFree(at, HANDLES * UNIT));
}

/* ---- weir ------------------------------------------------------------------------------------ */

static const struct {
    int kind, cache;
} worlds[] = {
    {KIND_POOL, WEIR_SWITCH_ON},
    {KIND_POOL, WEIR_SWITCH_OFF},
    {KIND_MAPPED, WEIR_SWITCH_ON},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

static weir_allocator *make_on_peers(int world, const char *peers) {
    weir_options options = options_of(worlds[world].kind, device_name, GIB);
    weir_allocator *allocator = NULL;

    options.cache = worlds[world].cache;
    options.peers = peers;
    OK(weir_allocator_create(&options, &allocator));
    return allocator;
}

/* One device fills each block and the other reads it, while memory grows and moves. */
TEST_EACH(2 * WORLDS, a_peer_uses_blocks) {
    static const size_t sizes[] = {3000, 700000, 5 * MIB, 40 * MIB, 90 * MIB};
    weir_allocator *a;
    void *block[4] = {NULL};
    CUevent done;

    if (!is_pair)
        return;
    a = make_on_peers(_i % WORLDS, _i < WORLDS ? "all" : "none");
    if (_i >= WORLDS)
        OK(weir_set_access(a, 1, WEIR_ACCESS_READ_WRITE));
    for (int i = 0; i < 60; i++) {
        size_t bytes = sizes[(size_t)(i * 7) % 5];
        int at = i % 4;

        if (block[at])
            OK(weir_free(a, block[at], stream[0]));
        OK(weir_alloc(a, bytes, stream[0], &block[at]));
        CU(driver->cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
        CU(driver->cuEventRecord(done, stream[0]));
        enter_peer_device(1);
        CU(driver->cuStreamWaitEvent(stream[1], done, 0));
        enter_peer_device(0);
        fill_and_see(1, (uintptr_t)block[at], bytes, (unsigned char)(i + 1));
        CU(driver->cuEventDestroy(done));
        if (i % 20 == 19)
            OK(weir_trim(a, 0, NULL));
    }
    OK(weir_set_access(a, 1, WEIR_ACCESS_NONE));
    for (int i = 0; i < 4; i++)
        OK(weir_free(a, block[i], stream[0]));
    OK(weir_allocator_destroy(a));
}

TEST(each_device_of_a_pair_has_its_own_allocator) {
    weir_options options = options_of(KIND_POOL, device_name, GIB);
    weir_allocator *a[2] = {NULL};
    void *block;

    if (!is_pair)
        return;
    options.peers = "all";
    OK(weir_allocators_create(&options, NULL, 2, a));
    for (int i = 0; i < 2; i++) {
        enter_peer_device(i);
        OK(weir_alloc(a[i], 9 * MIB, stream[i], &block));
        CU(driver->cuStreamSynchronize(stream[i]));
        enter_peer_device(0);
        fill_and_see(!i, (uintptr_t)block, 9 * MIB, 5);
        OK(weir_free(a[i], block, stream[i]));
        MUST_EQ(stats_of(a[i]).allocs, 1);
        OK(weir_allocator_destroy(a[i]));
    }
}
