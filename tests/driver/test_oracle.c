/* SPDX-License-Identifier: MIT */
/* test_oracle.c: the device model's reports about memory that changes hands (model_oracle.c).
 *
 * Each test plays an allocator that reuses bytes rightly or wrongly, by calls of the driver's table alone. */
#include "tests/fixtures/model_device.h"

enum { OLD = 1, NEW = 2, OTHER = 3 };
#define BYTES (64 * KIB)

static CUdeviceptr block;
static CUmemoryPool pool;
static CUevent event;

static void set_up_oracle(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

    start_model(GIB);
    CU(driver->cuMemPoolCreate(&pool, &properties));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuMemAllocFromPoolAsync(&block, BYTES, pool, A));
    CU(driver->cuStreamSynchronize(A));
}

static void use_shared_block(CUstream stream, uint64_t owner) {
    CU(weir__model_use(stream, block, BYTES, owner, MS));
}

#define BESIDE "use beside another's"

CASE("order", 10, set_up_oracle, NULL);

TEST(on_one_stream_all_is_ordered) {
    use_shared_block(A, OLD);
    use_shared_block(A, NEW);
    expect_no_fault();
    MUST_EQ(weir__model_uses(), 2);
}

/* One handle is mapped at two addresses.  A use at one must be ordered behind uses at the other, and the first mapping
 * may not go before its uses have completed. */
TEST_EACH(3, memory_at_two_addresses_is_one) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t page = 2 * MIB;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr place;

    CU(driver->cuMemAddressReserve(&place, 2 * page, 0, 0, 0));
    CU(driver->cuMemCreate(&memory, page, &properties, 0));
    for (size_t i = 0; i < 2; i++)
        CU(driver->cuMemMap(place + i * page, page, 0, memory, 0));
    CU(driver->cuMemSetAccess(place, 2 * page, &access, 1));
    CU(weir__model_use(A, place + page / 2, page / 4, OLD, MS));
    CU(weir__model_use(B, place + page, page / 2, OTHER, MS)); /* other bytes of it */
    CU(driver->cuEventRecord(event, A));
    if (_i != 0)
        CU(driver->cuStreamWaitEvent(B, event, 0));
    CU(weir__model_use(B, place + page + page / 2, BYTES, NEW, MS));
    if (_i == 0)
        expect_fault(BESIDE " at another address of the same memory");
    else
        expect_no_fault();
    if (_i == 2)
        CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemUnmap(place, page));
    if (_i == 1)
        expect_fault("unmapped before the host saw its uses done");
    else if (_i == 2)
        expect_no_fault();
}

TEST(another_stream_must_wait) {
    char wanted[64];

    use_shared_block(A, OLD);
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
    snprintf(wanted, sizeof wanted, "owner %d (stream:operation %llu:", OLD,
             (unsigned long long)id_of(A));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), wanted));
    snprintf(wanted, sizeof wanted, "stream %llu at operation", (unsigned long long)id_of(B));
    ck_assert_ptr_nonnull(strstr(weir__model_fault(), wanted));
}

TEST(a_wait_orders) {
    use_shared_block(A, OLD);
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuStreamWaitEvent(B, event, 0));
    use_shared_block(B, NEW);
    expect_no_fault();
}

TEST(a_wait_orders_through_a_third_stream) {
    use_shared_block(A, OLD);
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuStreamWaitEvent(C, event, 0));
    CU(driver->cuEventRecord(event, C));
    CU(driver->cuStreamWaitEvent(B, event, 0));
    use_shared_block(B, NEW);
    expect_no_fault();
}

TEST(an_event_covers_what_came_before_it) {
    CU(driver->cuEventRecord(event, A));
    use_shared_block(A, OLD);
    CU(driver->cuStreamWaitEvent(B, event, 0));
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

TEST(an_event_that_was_never_recorded_orders_nothing) {
    use_shared_block(A, OLD);
    CU(driver->cuStreamWaitEvent(B, event, 0));
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

TEST(done_is_not_seen) {
    use_shared_block(A, OLD);
    weir__model_advance(10 * MS);
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

enum { SYNCHRONIZED, QUERIED, EVENT_QUERIED, DEVICE, LEGACY, SIGHTS };

TEST_EACH(SIGHTS, what_the_host_saw_is_ordered) {
    CUdeviceptr direct;

    use_shared_block(A, OLD);
    weir__model_advance(10 * MS);
    switch (_i) {
    case SYNCHRONIZED:
        CU(driver->cuStreamSynchronize(A));
        break;
    case QUERIED:
        CU(driver->cuStreamQuery(A));
        break;
    case EVENT_QUERIED:
        CU(driver->cuEventRecord(event, A));
        CU(driver->cuEventQuery(event));
        break;
    case DEVICE:
        CU(driver->cuCtxSynchronize());
        break;
    case LEGACY: /* waits for all work of the device */
        CU(driver->cuMemAlloc(&direct, KIB));
        CU(driver->cuMemFree(direct));
        break;
    }
    use_shared_block(B, NEW);
    expect_no_fault();
}

TEST(what_is_not_done_was_not_seen) {
    use_shared_block(A, OLD);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

TEST(later_uses_were_not_seen) {
    use_shared_block(A, OLD);
    CU(driver->cuStreamSynchronize(A));
    use_shared_block(A, OLD);
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

TEST(all_users_of_an_owner_count) {
    use_shared_block(A, OLD);
    use_shared_block(C, OLD); /* one block on two streams is its owner's affair */
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuStreamWaitEvent(B, event, 0));
    expect_no_fault();
    use_shared_block(B, NEW);
    expect_fault(BESIDE);
}

TEST(a_handle_is_no_stream) {
    CUstream again;

    use_shared_block(C, OLD);
    CU(driver->cuStreamDestroy(C));
    CU(driver->cuStreamCreate(&again, CU_STREAM_NON_BLOCKING));
    MUST(again == C); /* the real driver does so, too */
    use_shared_block(again, NEW);
    expect_fault(BESIDE);
}

TEST(every_byte_counts) {
    CU(weir__model_use(A, block + 4096, 512, OLD, 0));
    CU(weir__model_use(B, block, 4096, NEW, 0));
    CU(weir__model_use(B, block + 4608, 4096, NEW, 0));
    expect_no_fault();
    CU(weir__model_use(B, block + 4607, 4096, OTHER, 0));
    expect_fault(BESIDE);
}

TEST(parts_keep_their_history) {
    use_shared_block(A, OLD);
    CU(weir__model_use(A, block + 8192, 4096, NEW, 0)); /* in the middle */
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuStreamWaitEvent(B, event, 0));
    CU(weir__model_use(B, block, 4096, OTHER, 0));
    CU(weir__model_use(B, block + 8192, 8192, OTHER, 0));
    expect_no_fault();
    CU(weir__model_use(C, block + 16384, 512, NEW + 2, 0));
    expect_fault(BESIDE);
}

TEST(only_the_first_fault_is_kept) {
    char first[256];

    use_shared_block(A, OLD);
    use_shared_block(B, NEW);
    snprintf(first, sizeof first, "%s", weir__model_fault());
    use_shared_block(C, OTHER);
    MUST(strncmp(first, weir__model_fault(), strlen(first)) == 0);
}

TEST(a_reset_forgets) {
    use_shared_block(A, OLD);
    use_shared_block(B, NEW);
    start_model(GIB);
    expect_no_fault();
    MUST_EQ(weir__model_uses(), 0);
}

TEST(memory_must_be_there) {
    CU(driver->cuMemFreeAsync(block, A));
    use_shared_block(A, OLD);
    expect_fault("use of memory that the driver has not given out");
}

TEST_EACH(2, memory_goes_back_behind_its_uses) {
    use_shared_block(B, OLD);
    if (_i == 1) {
        CU(driver->cuEventRecord(event, B));
        CU(driver->cuStreamWaitEvent(A, event, 0));
    }
    CU(driver->cuMemFreeAsync(block, A));
    if (_i == 1)
        expect_no_fault();
    else
        expect_fault("freed before its uses");
}

TEST_EACH(2, memory_goes_back_at_once_when_the_host_saw_its_uses) {
    use_shared_block(A, OLD);
    if (_i == 1)
        CU(driver->cuStreamSynchronize(A));
    CU(driver->cuMemFree(block));
    if (_i == 1)
        expect_no_fault();
    else
        expect_fault("freed before the host saw its uses");
}

TEST(cuMemFree_waits_for_uses_of_its_own_memory) {
    CU(driver->cuMemAlloc(&block, BYTES));
    use_shared_block(A, OLD);
    CU(driver->cuMemFree(block));
    expect_no_fault();
}

/* The driver orders the reuse of its memory, so the oracle reports no fault. */
TEST(the_driver_vouches_for_its_memory) {
    CUdeviceptr again;

    use_shared_block(A, OLD);
    CU(driver->cuMemFreeAsync(block, A));
    weir__model_advance(10 * MS);
    CU(driver->cuMemAllocFromPoolAsync(&again, BYTES, pool, B));
    MUST_EQ(again, block);
    use_shared_block(B, NEW);
    expect_no_fault();
}

enum { MANY = 300 };

/* Orders `stream` behind the work that was submitted to `other`. */
static void let_wait(CUstream stream, CUstream other) {
    CU(driver->cuEventRecord(event, other));
    CU(driver->cuStreamWaitEvent(stream, event, 0));
}

/* Each stream uses other bytes of the block, all of them for one owner and one stream after the other. */
TEST_EACH(2, order_is_kept_between_many_streams) {
    CUstream many[MANY];

    for (size_t i = 0; i < MANY; i++) {
        CU(driver->cuStreamCreate(&many[i], CU_STREAM_NON_BLOCKING));
        CU(weir__model_use(many[i], block + i * 64, 64, OLD, 0));
        if (_i == 0 || i != 0)
            let_wait(B, many[i]);
    }
    use_shared_block(B, NEW);
    if (_i == 0)
        expect_no_fault();
    else
        expect_fault(BESIDE);
}

TEST_EACH(2, many_users_of_an_owner_count) {
    CUstream many[MANY];

    for (size_t i = 0; i < MANY; i++) {
        CU(driver->cuStreamCreate(&many[i], CU_STREAM_NON_BLOCKING));
        use_shared_block(many[i], OLD);
        if (_i == 0 || i != 0)
            let_wait(B, many[i]);
    }
    expect_no_fault();
    use_shared_block(B, NEW);
    if (_i == 0)
        expect_no_fault();
    else
        expect_fault(BESIDE);
}

/* Destroyed streams count only if their uses matter, so that the fault's text has room for both lists. */
TEST_EACH(3, streams_that_are_gone_do_not_add_up) {
    CUdeviceptr ring = block + BYTES / 2;
    CUstream stream;

    CU(weir__model_use(A, block, KIB, OLD, 0));
    if (_i != 1)
        let_wait(B, A);
    for (uint64_t i = 0; i < 10 * MANY; i++) {
        CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        let_wait(stream, B);
        CU(weir__model_use(stream, ring, KIB, OTHER + i, MS));
        let_wait(B, stream);
        CU(driver->cuStreamDestroy(stream));
    }
    expect_no_fault();
    CU(weir__model_use(B, ring, KIB, NEW, 0));
    CU(weir__model_use(_i == 2 ? C : B, block, KIB, NEW, 0));
    if (_i == 0) {
        expect_no_fault();
    } else {
        expect_fault(BESIDE);
        ck_assert_ptr_nonnull(strstr(weir__model_fault(), "; the host has seen "));
    }
}

TEST_EACH(2, what_is_captured_is_used_by_its_launches) {
    CUgraph graph;
    CUgraphExec exec;

    use_shared_block(A, OLD);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_RELAXED));
    use_shared_block(B, NEW);
    CU(driver->cuStreamEndCapture(B, &graph));
    expect_no_fault(); /* it has not run yet */
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphLaunch(exec, _i == 1 ? A : B));
    if (_i == 1)
        expect_no_fault();
    else
        expect_fault(BESIDE);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

SUITE("oracle", CK_FORK_GETENV);
