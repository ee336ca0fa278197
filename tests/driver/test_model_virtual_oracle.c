/* SPDX-License-Identifier: MIT */
/* test_model_virtual_oracle.c: faults that the oracle finds, and several devices. */
#include "test_model_virtual.h"

/* ---- the oracle ------------------------------------------------------------------------------ */

enum { OLD = 1, NEW = 2 };
#define UNMAPPED "unmapped before the host saw its uses done"

static void use_page(CUstream stream, CUdeviceptr address, uint64_t owner) {
    CU(weir__model_use(stream, address, 4096, owner, MS));
}

CASE("oracle", 30, set_up_virtual, check_model);

TEST(an_unmap_under_its_users_is_a_fault) {
    char wanted[64];

    get_ready();
    use_page(B, ready.mapped + 4096, OLD);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_fault(UNMAPPED);
    snprintf(wanted, sizeof wanted, "owner %d (stream:operation %llu:", OLD,
             (unsigned long long)id_of(B));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), wanted));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), "the host has seen none"));
}

TEST(an_unmap_of_unobserved_work_is_a_fault) {
    get_ready();
    use_page(B, ready.mapped, OLD);
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
    case BEHIND_ANOTHER: /* C's end shows work that C waited for */
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

TEST_EACH(SIGHTS, unmapped_when_the_host_saw_the_end) {
    get_ready();
    use_page(B, ready.mapped, OLD);
    see(_i, B);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_no_fault();
}

TEST_EACH(SIGHTS, an_unmap_needs_both_users_observed) {
    get_ready();
    use_page(A, ready.mapped, OLD);
    use_page(B, ready.mapped + UNIT - 4096, NEW);
    see(_i, A);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    if (_i == DEVICE)
        expect_no_fault();
    else
        expect_fault(UNMAPPED);
}

enum { FILL, COPY_IN, COPY_OUT, LAUNCH, TOUCHES };

/* Work without an owner counts, too, such as fills by weir itself. */
TEST_EACH(2 * TOUCHES, unmapped_under_fills_and_copies) {
    int way = _i / 2, seen = _i % 2;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    char byte = 1;

    get_ready();
    busy(A, MS);
    switch (way) {
    case FILL:
        CU(fill_async(ready.mapped + 4096, 1, 1));
        break;
    case COPY_IN:
        CU(driver->cuMemcpyHtoDAsync(ready.mapped, &byte, 1, A));
        break;
    case COPY_OUT:
        CU(driver->cuMemcpyDtoHAsync(&byte, ready.mapped + UNIT - 1, 1, A));
        break;
    case LAUNCH:
        CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
        CU(fill_async(ready.mapped, UNIT, 1));
        CU(driver->cuStreamEndCapture(A, &graph));
        CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
        CU(driver->cuGraphLaunch(exec, A));
        break;
    }
    if (seen)
        CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    if (seen)
        expect_no_fault();
    else
        expect_fault(UNMAPPED);
    if (!seen)
        ck_assert_ptr_nonnull(strstr(weir__model_fault(), "used by fills or copies (stream"));
    if (exec) {
        CU(driver->cuGraphExecDestroy(exec));
        CU(driver->cuGraphDestroy(graph));
    }
}

TEST_EACH(2, a_fill_over_two_mappings_is_of_both) {
    CUdeviceptr address = reserve_range_of(4 * UNIT);

    for (size_t i = 0; i < 4; i++)
        back(address + i * UNIT, UNIT);
    busy(A, MS);
    CU(fill_async(address + 2 * UNIT - 1, 2, 1));
    CU(driver->cuMemUnmap(address, UNIT));
    CU(driver->cuMemUnmap(address + 3 * UNIT, UNIT));
    expect_no_fault();
    CU(driver->cuMemUnmap(address + (size_t)(1 + _i) * UNIT, UNIT));
    expect_fault(UNMAPPED);
}

TEST(fills_are_seen_with_the_device) {
    get_ready();
    CU(fill_async(ready.mapped, UNIT, 1));
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    map_handle(ready.mapped, UNIT, ready.mapped_memory);
    open_device_range(ready.mapped, UNIT);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_no_fault();
}

TEST(used_again_after_it_was_seen) {
    get_ready();
    use_page(A, ready.mapped, OLD);
    CU(driver->cuStreamSynchronize(A));
    use_page(A, ready.mapped, OLD);
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    expect_fault(UNMAPPED);
}

TEST(a_neighbour_is_not_concerned) {
    CUdeviceptr address = reserve_range_of(2 * UNIT);

    back(address, UNIT);
    back(address + UNIT, UNIT);
    use_page(A, address, OLD);
    CU(driver->cuMemUnmap(address + UNIT, UNIT));
    expect_no_fault();
    CU(weir__model_use(A, address + UNIT - 4096, 8192, OLD, MS)); /* half of it is gone */
    expect_fault("use of memory that the driver has not given out");
}

TEST(remapped_memory_begins_without_an_owner) {
    CUdeviceptr other = reserve_range_of(UNIT);

    get_ready();
    use_page(A, ready.mapped, OLD);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(ready.mapped, UNIT));
    map_handle(other, UNIT, ready.mapped_memory);
    open_device_range(other, UNIT);
    use_page(B, other, NEW);
    map_handle(ready.mapped, UNIT, ready.memory);
    open_device_range(ready.mapped, UNIT);
    use_page(C, ready.mapped, NEW);
    expect_no_fault();
    MUST_EQ(weir__model_uses(), 3);
    use_page(B, ready.mapped, OLD);
    expect_fault("use beside another's");
}

TEST_EACH(3, a_use_of_memory_without_access_is_a_fault) {
    get_ready();
    if (_i == 0) {
        map_handle(ready.address, UNIT, ready.memory);
    } else if (_i == 1) {
        CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
        ready.address = ready.mapped;
    }
    use_page(A, ready.address, OLD);
    expect_fault("use of memory that the driver has not given out");
}

TEST_EACH(2, access_is_taken_from_no_user) {
    get_ready();
    use_page(A, ready.mapped, OLD);
    if (_i == 1)
        CU(driver->cuStreamSynchronize(A));
    CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)); /* as it was */
    expect_no_fault();
    CU(try_access(ready.mapped, UNIT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    if (_i == 1)
        expect_no_fault();
    else
        expect_fault("access taken before the host saw its uses done");
}

/* ---- peers ----------------------------------------------------------------------------------- */

static CUcontext second;
static CUstream far; /* of device 1 */

static void set_up_two_peers(void) {
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

CASE("peers", 10, set_up_two_peers, NULL);

/* V9. */
TEST(access_is_each_devices_own) {
    CUdeviceptr address = reserve_range_of(2 * UNIT);
    handle memory = create_handle(2 * UNIT);
    CUmemAccessDesc both[2] = {
        {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ}};
    unsigned char byte = 0;

    map_handle(address, 2 * UNIT, memory);
    CU(try_access(address, 2 * UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    GIVES(WRONG, fill_async(address, 100, 3));
    CU(driver->cuMemsetD8Async(address, 3, 100, far));
    CU(driver->cuStreamSynchronize(far));
    CU(driver->cuMemSetAccess(address, 2 * UNIT, both, 2));
    CU(fill_async(address, 1, 4));
    GIVES(WRONG, driver->cuMemsetD8Async(address, 5, 100, far));
    CU(driver->cuMemcpyDtoHAsync(&byte, address, 1, far));
    MUST_EQ(byte, 4);
    CU(driver->cuStreamSynchronize(A));
    CU(driver->cuStreamSynchronize(far));
    CU(try_access(address, 2 * UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    GIVES(WRONG, driver->cuMemcpyDtoHAsync(&byte, address, 1, far));
    MUST_EQ(read_byte(address), 4);
    CU(driver->cuMemUnmap(address, 2 * UNIT));
    map_handle(address, 2 * UNIT, memory); /* again: nobody's */
    GIVES(WRONG, fill_async(address, 100, 3));
    check_model();
}

/* A change succeeds or fails as a whole; this is assumed.  Two of three devices are peers, the third one is not. */
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
    address = reserve_range_of(UNIT);
    map_handle(address, UNIT, create_handle(UNIT));
    GIVES(CUDA_ERROR_INVALID_DEVICE, driver->cuMemSetAccess(address, UNIT, access, 2));
    GIVES(WRONG, fill_async(address, 1, 1));
    access[1].location.id = 1;
    CU(driver->cuMemSetAccess(address, UNIT, access, 2));
    CU(fill_async(address, 1, 1));
}

/* The oracle reports a use by a device without access, although another device may use the bytes. */
TEST_EACH(2, a_use_without_access_is_a_fault) {
    CUdeviceptr address = reserve_range_of(UNIT);

    back(address, UNIT);
    CU(weir__model_use(A, address, 100, 1, MS));
    MUST(weir__model_fault() == NULL);
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CU(weir__model_use(far, address + 4096, 100, 2, MS));
    MUST(weir__model_fault() == NULL);
    if (_i == 0) {
        CU(driver->cuCtxSynchronize()); /* waits for device 0 alone */
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

/* A wait for a device also shows the work on the other device that its streams waited for. */
TEST_EACH(2, a_device_is_seen_with_what_it_waited_for) {
    CUdeviceptr address = reserve_range_of(UNIT);
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

/* A wait for one device does not show the work of another device on these bytes. */
TEST_EACH(2, a_device_is_seen_alone) {
    CUdeviceptr address = reserve_range_of(UNIT);

    back(address, UNIT);
    CU(try_access(address, UNIT, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    CU(weir__model_use(_i ? A : far, address, 100, 1, MS));
    CU(weir__model_use(_i ? far : A, address, 100, 1, MS));
    CU(driver->cuCtxSynchronize());
    CU(weir__model_use(A, address, 100, 2, MS));
    ck_assert_msg(weir__model_fault() && strstr(weir__model_fault(), "beside another's"), "%s",
                  weir__model_fault());
}

SUITE("model-virtual oracle", CK_FORK_GETENV);
