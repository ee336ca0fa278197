/* SPDX-License-Identifier: MIT */
/* test_peers.c: access of other devices to an allocator's blocks (options.peers, weir_set_access).
 *
 * Devices 0 and 1 can access each other's memory, device 2 has no peers.  The model's oracle reports each use by a
 * device without access, and each use that is not ordered behind another device's. */
#include "tests/fixtures/model_device.h"

#include <dlfcn.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/logged.h"
#include "engine/peer_access.h"

#define CAPACITY (1 * GIB)

static const struct {
    int kind, cache;
} worlds[] = {
    {KIND_POOL, WEIR_SWITCH_ON},
    {KIND_POOL, WEIR_SWITCH_OFF},
    {KIND_MAPPED, WEIR_SWITCH_ON},
    {KIND_MAPPED, WEIR_SWITCH_OFF},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

static CUcontext second;
static CUstream far; /* of device 1 */
static CUevent event, far_event;
static weir_allocator *a;
static uint64_t owner;

static void start_two_peers(void) {
    char path[] = "/tmp/weir-profile-XXXXXX";
    int file = mkstemp(path);
    struct weir_driver_failure failure;
    CUcontext popped;

    MUST(file >= 0 && write(file, "peers = 2\n", 10) == 10 && close(file) == 0);
    driver = weir__driver_open("model", &failure);
    MUST(driver != NULL);
    MUST_EQ(weir__model_reset(
                &(struct weir_model_setup){.devices = 3, .capacity = CAPACITY, .profile = path}),
            0);
    MUST(unlink(path) == 0);
    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    CU(driver->cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    CU(driver->cuEventCreate(&far_event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING));
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    owner = 0;
    catch_log();
}

static weir_options peer_options(int world, const char *peers) {
    weir_options options = options_of(worlds[world].kind, "model", 512 * MIB);

    options.cache = worlds[world].cache;
    options.peers = peers;
    options.log = WEIR_LOG_ERROR;
    return options;
}

static void make_with_peers(int world, const char *peers) {
    weir_options options = peer_options(world, peers);

    OK(weir_allocator_create(&options, &a));
}

static void end_peers(void) {
    const char *fault = weir__model_fault();

    ck_assert_msg(!fault, "%s", fault);
    CU(driver->cuStreamSynchronize(far));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    check_model();
    MUST_EQ(device_free(), CAPACITY);
}

static void *alloc_with_peers(size_t bytes) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, A, &block));
    return block;
}

/* Uses the block on the far stream after its allocation, and lets A continue after that use. */
static void use_from_far(void *block, size_t bytes) {
    CU(driver->cuEventRecord(event, A));
    CU(driver->cuStreamWaitEvent(far, event, 0));
    CU(weir__model_use(far, (uintptr_t)block, bytes, ++owner, MS));
    CU(driver->cuEventRecord(far_event, far));
    CU(driver->cuStreamWaitEvent(A, far_event, 0));
}

static int has_access(void *block) {
    CUresult result = driver->cuMemsetD8Async((uintptr_t)block, 1, 256, far);

    CU(driver->cuStreamSynchronize(far));
    MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE);
    return result == CUDA_SUCCESS;
}

CASE("access", 30, start_two_peers, NULL);

/* Blocks of all sizes come and go, make the reserved memory grow, and move.  Another device can use each of them. */
TEST_EACH(2 * WORLDS, a_peer_uses_all_that_comes) {
    static const size_t sizes[] = {300, 5000, 70000, 600000, 3 * MIB, 17 * MIB, 40 * MIB};
    struct {
        void *block;
        size_t bytes;
    } live[8] = {{0}};
    uint32_t random = 7;

    make_with_peers(_i % WORLDS, _i < WORLDS ? "1" : "all");
    for (int i = 0; i < 400; i++) {
        random = random * 1664525 + 1013904223;
        int at = (int)(random >> 24) % 8;
        if (live[at].block)
            OK(weir_free(a, live[at].block, A));
        live[at].bytes = sizes[(random >> 16) % 7];
        live[at].block = alloc_with_peers(live[at].bytes);
        use_from_far(live[at].block, live[at].bytes);
        if (i % 50 == 49)
            OK(weir_trim(a, 0, NULL));
    }
    for (int at = 0; at < 8; at++)
        if (live[at].block)
            OK(weir_free(a, live[at].block, A));
    end_peers();
}

TEST_EACH(WORLDS, without_leave_a_peer_has_no_access) {
    make_with_peers(_i, "none");
    void *block = alloc_with_peers(3 * MIB);
    MUST(!has_access(block));
    use_from_far(block, 100);
    ck_assert_msg(weir__model_fault() && strstr(weir__model_fault(), "device has no access"), "%s",
                  weir__model_fault());
}

TEST_EACH(WORLDS, access_is_given_and_taken_at_run_time) {
    make_with_peers(_i, NULL);
    void *small = alloc_with_peers(1000);
    void *block = alloc_with_peers(3 * MIB);
    MUST(!has_access(small) && !has_access(block));
    OK(weir_set_access(a, 1, WEIR_ACCESS_READ_WRITE));
    void *more = alloc_with_peers(90 * MIB);
    MUST(has_access(small) && has_access(block) && has_access(more));
    CU(driver->cuCtxSynchronize());
    OK(weir_set_access(a, 1, WEIR_ACCESS_READ));
    MUST(!has_access(small) && !has_access(more));
    OK(weir_set_access(a, 1, WEIR_ACCESS_NONE));
    OK(weir_set_access(a, 1, WEIR_ACCESS_NONE));
    OK(weir_free(a, more, A));
    more = alloc_with_peers(200 * MIB);
    MUST(!has_access(small) && !has_access(block) && !has_access(more));
    CU(driver->cuMemsetD8Async((uintptr_t)more, 1, 200 * MIB, A)); /* its own device's as ever */
    OK(weir_set_access(a, 1, WEIR_ACCESS_READ_WRITE));
    MUST(has_access(small) && has_access(block) && has_access(more));
    OK(weir_free(a, more, A));
    OK(weir_free(a, small, A));
    OK(weir_free(a, block, A));
    MUST_EQ(lines(), 0);
    end_peers();
}

static const struct {
    const char *peers, *says;
    weir_status status;
} refused[] = {
    {"3", "peer 3: there are 3 devices", WEIR_E_NO_DEVICE},
    {"1,2", "device 2 cannot reach memory of device 0: they are no peers", WEIR_E_NOT_SUPPORTED},
    {"2", "no peers", WEIR_E_NOT_SUPPORTED},
    {"1,,2", "peers: it is empty", WEIR_E_INVALID},
    {"some", "expected device numbers", WEIR_E_INVALID},
    {"64", "too large", WEIR_E_INVALID},
};

TEST_EACH(ROWS(refused), a_device_that_is_no_peer_makes_no_allocator) {
    for (int world = 0; world < WORLDS; world++) {
        weir_options options = peer_options(world, refused[_i].peers);

        a = NULL;
        EXPECT(refused[_i].status, weir_allocator_create(&options, &a));
        MUST(!a);
        MUST(lines() == 1);
        ck_assert_msg(strstr(logged, refused[_i].says) != NULL, "%s", logged);
        MUST_EQ(device_free(), CAPACITY);
        check_model();
    }
}

/* No allocator is made if the driver fails to tell which devices are peers. */
TEST(a_driver_that_fails_makes_no_allocator) {
    weir_options options = peer_options(2, "1");

    weir__model_fail(WEIR_ENTRY_cuDeviceCanAccessPeer, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_allocator_create(&options, &a));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    MUST(lines() > 0);
    ck_assert_msg(strstr(logged, "cannot ask which devices are peers: the driver") != NULL, "%s",
                  logged);
    MUST_EQ(device_free(), CAPACITY);
}

/* "all" means all peers there are.  A list may name the device itself, so that it serves several devices. */
TEST_EACH(4, a_list_of_peers_may_name_the_device_itself) {
    static const char *const lists[] = {"0", "0,1", "all", "none"};
    weir_options options = peer_options(2, lists[_i]);

    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_destroy(a));
    options.device = "model:1";
    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_destroy(a));
    options.device = "model:2";
    options.peers = "2";
    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_destroy(a));
    options.peers = "all"; /* which are none */
    OK(weir_allocator_create(&options, &a));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE));
    OK(weir_allocator_destroy(a));
}

TEST_EACH(WORLDS, wrong_access_is_refused) {
    static const struct {
        int device, access;
        const char *why;
    } wrong[] = {
        {-1, WEIR_ACCESS_NONE, "weir_set_access: device -1: devices are numbered from 0\n"},
        {1, 2, "weir_set_access: access 2: expected WEIR_ACCESS_NONE, _READ or _READ_WRITE\n"},
        {0, WEIR_ACCESS_NONE, "access 0: expected WEIR_ACCESS_READ_WRITE for its own device 0\n"},
        {0, WEIR_ACCESS_READ, "access 1: expected WEIR_ACCESS_READ_WRITE for its own device 0\n"},
    };
    void *block;

    make_with_peers(_i, "1");
    block = alloc_with_peers(5000);
    EXPECT(WEIR_E_INVALID, weir_set_access(NULL, 1, WEIR_ACCESS_NONE));
    (void)lines();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        EXPECT(WEIR_E_INVALID, weir_set_access(a, wrong[i].device, wrong[i].access));
        MUST(lines() == 1 && strstr(logged, wrong[i].why));
    }
    OK(weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE));
    (void)lines();
    EXPECT(WEIR_E_NO_DEVICE, weir_set_access(a, 3, WEIR_ACCESS_READ_WRITE));
    MUST(lines() == 1 && strstr(logged, "there are 3 devices"));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_access(a, 2, WEIR_ACCESS_READ_WRITE));
    MUST(lines() == 1 && strstr(logged, "they are no peers"));
    MUST(has_access(block));
    OK(weir_free(a, block, A));
    end_peers();
}

static const struct {
    int kind, cache;
} closed[] = {
    {KIND_REGIONS, WEIR_SWITCH_ON},
    {KIND_FIXED, WEIR_SWITCH_ON},
    {KIND_DIRECT, WEIR_SWITCH_ON},
    {KIND_DIRECT, WEIR_SWITCH_OFF},
};

TEST_EACH(ROWS(closed), memory_of_cuMemAlloc_is_the_programs_to_open) {
    weir_options options = options_of(closed[_i].kind, "model", 512 * MIB);

    options.cache = closed[_i].cache;
    options.log = WEIR_LOG_ERROR;
    options.peers = "1";
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_allocator_create(&options, &a));
    MUST(lines() == 1 && strstr(logged, "cuCtxEnablePeerAccess"));
    options.peers = "all";
    options.device = "model:2"; /* whichever peers it may have */
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_allocator_create(&options, &a));
    MUST(lines() == 1 && strstr(logged, "peers 'all': memory of cuMemAlloc"));
    options.device = "model";
    options.peers = "0"; /* itself */
    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_destroy(a));
    options.peers = "none";
    OK(weir_allocator_create(&options, &a));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_access(a, 1, WEIR_ACCESS_READ_WRITE));
    MUST(lines() == 1 && strstr(logged, "cuCtxEnablePeerAccess"));
    end_peers();
}

static const struct {
    CUresult result;
    weir_status status;
} failures[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, WEIR_E_NO_MEMORY},
    {CUDA_ERROR_UNKNOWN, WEIR_E_DRIVER},
};
enum { FAILURES = sizeof failures / sizeof failures[0] };

/* If a driver call fails, in whatever way, access stays as it was for present and future blocks, also after an earlier
 * change.  The allocator serves further calls. */
TEST_EACH(2 * WORLDS * FAILURES, a_refused_change_changes_nothing) {
    int given = _i / WORLDS % 2, failure = _i / WORLDS / 2, failed = 0;
    void *block[3], *more;

    make_with_peers(_i % WORLDS, given ? "none" : "1");
    OK(weir_set_access(a, 1, given ? WEIR_ACCESS_READ_WRITE : WEIR_ACCESS_NONE));
    for (int i = 0; i < 3; i++)
        block[i] = alloc_with_peers((size_t)(i + 1) * 20 * MIB);
    CU(driver->cuCtxSynchronize());
    for (uint64_t k = 1;; k++) {
        weir__model_fail_any(k, 0, failures[failure].result, 0);
        weir_status status =
            weir_set_access(a, 1, given ? WEIR_ACCESS_NONE : WEIR_ACCESS_READ_WRITE);
        weir__model_faults_clear();
        for (int i = 0; i < 3; i++)
            MUST(has_access(block[i]) == (status == WEIR_OK ? !given : given));
        if (status == WEIR_OK)
            break;
        EXPECT(failures[failure].status, status);
        failed++;
        more = alloc_with_peers(100 * MIB);
        MUST(has_access(more) == given);
        OK(weir_free(a, more, A));
        OK(weir_trim(a, 0, NULL));
    }
    MUST(failed >= 4);
    for (int i = 0; i < 3; i++)
        OK(weir_free(a, block[i], A));
    end_peers();
}

/* A failed creation leaves nothing behind, whichever driver call fails. */
TEST_EACH(WORLDS, a_refused_creation_leaves_nothing) {
    weir_options options = peer_options(_i, "all");
    weir_status status = WEIR_E_DRIVER;
    uint64_t k = 0;

    while (status != WEIR_OK) {
        MUST(++k < 100);
        weir__model_fail_any(k, 0, CUDA_ERROR_UNKNOWN, 0);
        status = weir_allocator_create(&options, &a);
        weir__model_faults_clear();
        if (status != WEIR_OK)
            MUST_EQ(device_free(), CAPACITY);
    }
    MUST(k > 6);
    end_peers();
}

/* ---- several at once --------------------------------------------------------------------------- */

static size_t free_bytes_of_device(int device) {
    size_t free_bytes = 0, total = 0;
    CUcontext context, popped;

    CU(driver->cuDevicePrimaryCtxRetain(&context, device));
    CU(driver->cuCtxPushCurrent(context));
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(device));
    return free_bytes;
}

/* Allocates and frees a block of a graph on A.  Returns how often a pool's access was set for it. */
static uint64_t captured_sets(void) {
    count_from_here();
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(weir_free(a, alloc_with_peers(1000), A));
    drop_capture(A);
    return calls(WEIR_ENTRY_cuMemPoolSetAccess);
}

/* Requests a block of a graph while the context cannot be entered. */
static void refuse_captured(void) {
    void *none = NULL;

    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    if (weir_alloc(a, 1000, A, &none) == WEIR_OK)
        OK(weir_free(a, none, A));
    weir__model_faults_clear();
    drop_capture(A);
}

/* A node has the access of the pool that it is captured from.  An arena makes a pool for that. */
TEST_EACH(WORLDS, memory_of_graphs_is_opened_too) {
    void *none = NULL;

    if (worlds[_i].kind != KIND_MAPPED)
        return;
    make_with_peers(_i, "1");
    weir__model_fail(WEIR_ENTRY_cuMemPoolSetAccess, 1, CUDA_ERROR_NOT_PERMITTED, 0);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 1000, A, &none));
    drop_capture(A);
    ANSWERS(1, captured_sets());
    ANSWERS(0, captured_sets());
    OK(weir_set_access(a, 1, WEIR_ACCESS_READ));
    ANSWERS(1, captured_sets());
    ANSWERS(0, calls(WEIR_ENTRY_cuMemPoolDestroy)); /* not under capture */
    OK(weir_set_access(a, 1, WEIR_ACCESS_NONE));
    ANSWERS(0, captured_sets());
    end_peers();
}

static int opened; /* the device that got access last */

static CUresult note_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    MUST_EQ(count, 1);
    opened = access->location.id;
    return driver->cuMemPoolSetAccess(pool, access, count);
}

TEST_EACH(WORLDS, memory_of_graphs_is_opened_for_the_peer) {
    weir_options options = peer_options(_i, "1");
    struct weir_driver noting = *driver;

    if (worlds[_i].kind != KIND_MAPPED)
        return;
    noting.cuMemPoolSetAccess = note_access;
    OK(weir__allocator_create_on(&noting, &options, &a, NULL, 0));
    ANSWERS(1, captured_sets());
    MUST_EQ(opened, 1);
    end_peers();
}

/* A change that returns OK changes both the arena and the graphs' memory, whichever entry of the context fails on the
 * way.  A change that fails changes neither. */
TEST_EACH(WORLDS, memory_of_graphs_is_opened_with_the_rest) {
    uint64_t failed = 0, met = 1;
    if (worlds[_i].kind != KIND_MAPPED)
        return;
    make_with_peers(_i, "none");
    ANSWERS(0, captured_sets());
    void *block = alloc_with_peers(MIB);
    for (uint64_t k = 1; met > 0; k++) {
        weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, k, CUDA_ERROR_OUT_OF_MEMORY, 0);
        weir_status status = weir_set_access(a, 1, WEIR_ACCESS_READ_WRITE);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        MUST(status == WEIR_OK || (met > 0 && status == WEIR_E_NO_MEMORY));
        failed += status != WEIR_OK;
        ANSWERS(status == WEIR_OK, has_access(block));
        refuse_captured(); /* must not change the pool's access */
        ANSWERS(status == WEIR_OK, captured_sets());
        OK(weir_set_access(a, 1, WEIR_ACCESS_NONE));
        ANSWERS(0, captured_sets());
    }
    MUST_EQ(failed, 1);
    OK(weir_free(a, block, A));
    end_peers();
}

/* The driver frees the pool with its context. */
TEST_EACH(WORLDS, memory_of_graphs_is_freed_with_its_context) {
    if (worlds[_i].kind != KIND_MAPPED)
        return;
    make_with_peers(_i, "1");
    ANSWERS(1, captured_sets());
    count_from_here();
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_CONTEXT_IS_DESTROYED, 1);
    OK(weir_allocator_destroy(a));
    weir__model_faults_clear();
    ANSWERS(0, calls(WEIR_ENTRY_cuMemPoolDestroy));
}

CASE("several", 30, start_two_peers, NULL);

/* Each allocator is on its device, with separate figures and all peers of that device. */
TEST_EACH(WORLDS, each_device_has_its_own_allocator) {
    static const int backwards[] = {2, 1, 0};
    weir_options options = peer_options(_i, "all");
    weir_allocator *all[3] = {NULL};
    void *block = NULL;

    options.prealloc = (weir_amount){.value = 64 * MIB, .kind = WEIR_AMOUNT_BYTES};
    OK(weir_allocators_create(&options, NULL, 2, all));
    MUST(!all[2]);
    for (int i = 0; i < 2; i++) {
        MUST_EQ(stats_of(all[i]).reserved, 64 * MIB);
        MUST_EQ(free_bytes_of_device(i), CAPACITY - 64 * MIB);
    }
    OK(weir_alloc(all[0], 5 * MIB, A, &block));
    MUST_EQ(stats_of(all[0]).blocks, 1);
    MUST_EQ(stats_of(all[1]).blocks, 0);
    MUST(has_access(block));
    OK(weir_free(all[0], block, A));
    for (int i = 0; i < 2; i++)
        OK(weir_allocator_destroy(all[i]));
    OK(weir_allocators_create(&options, backwards, 3, all));
    OK(weir_alloc(all[1], 5 * MIB, far, &block));
    MUST(has_access(block));
    OK(weir_free(all[1], block, far));
    for (int i = 0; i < 3; i++)
        OK(weir_allocator_destroy(all[i]));
    for (int i = 0; i < 3; i++)
        MUST_EQ(free_bytes_of_device(i), CAPACITY);
}

TEST_EACH(WORLDS, all_allocators_are_created_or_none) {
    static const int twice[] = {0, 1, 0}, negative[] = {0, -1}, none_there[] = {0, 1, 3};
    static const int none_twice[] = {3, 0, 3};
    static const struct {
        const int *devices;
        size_t count;
        weir_status status;
        const char *why;
    } wrong[] = {
        {twice, 3, WEIR_E_INVALID, "weir_allocators_create: device 0: it is named twice\n"},
        {none_twice, 3, WEIR_E_INVALID, "weir_allocators_create: device 3: it is named twice\n"},
        {negative, 2, WEIR_E_INVALID, "device -1: devices are numbered from 0\n"},
        {none_there, 3, WEIR_E_NO_DEVICE, "there are 3 devices, numbered from 0\n"},
        {NULL, 4, WEIR_E_NO_DEVICE, "there are 3 devices, numbered from 0\n"},
        {NULL, 0, WEIR_E_INVALID, "weir_allocators_create: 0 devices: expected 1 to 64\n"},
        {NULL, WEIR_MOST_DEVICES + 1, WEIR_E_INVALID, "65 devices: expected 1 to 64\n"},
    };
    weir_options options = peer_options(_i, NULL);
    weir_allocator *all[3] = {NULL};
    uint64_t k = 0, met = 1;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        (void)lines();
        EXPECT(wrong[i].status,
               weir_allocators_create(&options, wrong[i].devices, wrong[i].count, all));
        MUST(!all[0]);
        MUST(lines() > 0 && strstr(logged, wrong[i].why));
    }
    EXPECT(WEIR_E_INVALID, weir_allocators_create(&options, NULL, 1, NULL));
    MUST(lines() == 1 && strstr(logged, "weir_allocators_create: allocators is NULL\n"));
    options.prealloc = (weir_amount){.value = 64 * MIB, .kind = WEIR_AMOUNT_BYTES};
    while (met > 0) {
        MUST(++k < 400);
        weir__model_fail_any(k, 0, CUDA_ERROR_OUT_OF_MEMORY, 0);
        weir_status status = weir_allocators_create(&options, NULL, 3, all);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        for (int i = 0; i < 3; i++)
            if (status == WEIR_OK) { /* a preallocation may be retried, or be less */
                OK(weir_allocator_destroy(all[i]));
                all[i] = NULL;
            } else {
                MUST(!all[i]);
            }
        for (int i = 0; i < 3; i++)
            MUST_EQ(free_bytes_of_device(i), CAPACITY);
    }
    MUST(k > 30);
    check_model();
}

/* The driver lacks the entry for peers, or its call fails once. */
TEST(peers_are_refused_if_the_driver_does_not_tell_them) {
    struct weir_driver table = *driver;
    struct weir_access access;
    CUresult result;
    char text[200];

    table.capabilities &= ~(unsigned)WEIR_CAP_PEER;
    EXPECT(WEIR_E_NOT_SUPPORTED, weir__peers_check(&table, 0, 1, &result, text, sizeof text));
    OK(weir__peers_read(&table, 0, "all", &access, &result, text, sizeof text));
    MUST_EQ(access.count, 1);
    EXPECT(WEIR_E_NO_DEVICE, weir__peers_check(driver, 0, -1, &result, text, sizeof text));
    ck_assert_str_eq(text, "peer -1: there are 3 devices, numbered from 0");
    EXPECT(WEIR_E_PARSE, weir__peers_read(driver, 0, "both", &access, &result, text, sizeof text));
    OK(weir__peers_read(driver, 0, "all", &access, &result, text, sizeof text));
    MUST_EQ(access.count, 2);
    for (int i = 0; i < 2; i++) {
        weir__model_fail(i ? WEIR_ENTRY_cuDeviceCanAccessPeer : WEIR_ENTRY_cuDeviceGetCount, 1,
                         CUDA_ERROR_UNKNOWN, 0);
        EXPECT(WEIR_E_DRIVER,
               weir__peers_read(driver, 0, "all", &access, &result, text, sizeof text));
        MUST_EQ(result, CUDA_ERROR_UNKNOWN);
    }
    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.devices = 1}));
    EXPECT(WEIR_E_NO_DEVICE, weir__peers_check(driver, 0, 1, &result, text, sizeof text));
    ck_assert_str_eq(text, "peer 1: there is 1 device, numbered from 0");
}

TEST(wrong_options_create_no_allocator) {
    static const int last_is_none[] = {0, 1, 3};
    weir_options options = peer_options(WORLDS - 1, NULL);
    weir_allocator *all[3] = {NULL};

    options.device = "hardware:1";
    EXPECT(WEIR_E_INVALID, weir_allocators_create(&options, NULL, 1, all));
    options.device = "model";
    options.engine = 77;
    (void)lines();
    EXPECT(WEIR_E_INVALID, weir_allocators_create(&options, NULL, 1, all));
    MUST(lines() == 1 && strstr(logged, "weir_allocators_create: engine: there is no value 77"));
    if (dlopen("libcuda.so.1", RTLD_LAZY) == NULL)
        EXPECT(WEIR_E_NO_DEVICE, weir_allocators_create(NULL, NULL, 1, all));
    options = peer_options(0, NULL);
    options.prealloc = (weir_amount){.value = 64 * MIB, .kind = WEIR_AMOUNT_BYTES};
    refuse_waits(); /* so that the first two cannot end, and stay */
    EXPECT(WEIR_E_NO_DEVICE, weir_allocators_create(&options, last_is_none, 3, all));
    weir__model_faults_clear();
    MUST(!all[0] && !all[1] && !all[2]);
}

SUITE("peers", CK_FORK_GETENV);
