/* SPDX-License-Identifier: MIT */
/* test_engine.c: parts that all engines share: extents, surveys, the log, which device a stream belongs to, and waits
 * for the device. */
#include "tests/fixtures/bare_engine.h"

#include "tests/fixtures/logged.h"
#include "reserve/reserve.h"
#include "ipc/local_peers.h"

static struct weir_engine engine;

static void start_two_devices(void) {
    start_model(GIB);
    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = GIB}));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    A = make_stream();
    MUST(weir__counters_open(&counters, 0));
    engine = bare_engine();
    engine_options.log = WEIR_LOG_INFO;
    device.log = WEIR_LOG_INFO;
    catch_log();
}

static void close_counters(void) {
    weir__counters_close(&counters);
}

CASE("engine", 30, start_two_devices, close_counters);

/* A survey counts the streams for which it has no room in one row, whose stream is 0 (unknown). */
TEST(more_streams_than_are_told_apart) {
    struct weir_survey survey = {0};

    for (uint64_t stream = 1; stream <= WEIR_SURVEY_STREAMS + 4; stream++) {
        weir__survey_add_pending(&survey, stream, stream);
        weir__survey_add_pending(&survey, 1, 100);
    }
    MUST_EQ(survey.streams, WEIR_SURVEY_STREAMS);
    MUST_EQ(survey.pending, 20 * 100 + 20 * 21 / 2);
    MUST_EQ(survey.by[0].bytes, 20 * 100 + 1);
    MUST_EQ(survey.by[1].bytes, 2);
    MUST_EQ(survey.by[WEIR_SURVEY_STREAMS - 1].stream, 0);
    MUST_EQ(survey.by[WEIR_SURVEY_STREAMS - 1].bytes, 16 + 17 + 18 + 19 + 20);
}

static void expect_logged_words(const char *words) {
    (void)lines();
    ck_assert_msg(strstr(logged, words) != NULL, "%s", logged);
}

TEST(events_are_logged) {
    weir__engine_record(&engine, WEIR_EVENT_REQUEST, 0, MIB, 32 * MIB, 5, 64 * MIB);
    expect_logged_words("reserved memory grew by 32MiB (request), now 64MiB, 5 ns");
    weir__engine_record(&engine, WEIR_EVENT_TRIM, 1, 0, 64 * MIB, 7, 0);
    expect_logged_words("reserved memory fell by 64MiB (trim), now 0B, 7 ns");
    weir__engine_record(&engine, WEIR_EVENT_RECLAIM, 0, MIB, 96 * MIB, 9, 0);
    expect_logged_words("other processes released 96MiB, 9 ns");
    engine_options.log = WEIR_LOG_WARNING;
    device.log = WEIR_LOG_WARNING;
    weir__engine_record(&engine, WEIR_EVENT_TRIM, 1, 0, MIB, 7, 0);
    (void)lines();
    ck_assert_str_eq(logged, "");
}

/* In drop-in mode the driver's own call reports the error, so weir does not log it. */
TEST(requests_on_wrong_streams_are_logged) {
    weir__device_log_alloc(&device, 77, WEIR_E_NO_MEMORY);
    device.drop_in = 1;
    weir__device_log_alloc(&device, 77, WEIR_E_STREAM);
    weir__device_log_free(&device, 77, WEIR_E_NOT_OWNED);
    (void)lines();
    ck_assert_str_eq(logged, "");
    device.drop_in = 0;
    weir__device_log_alloc(&device, 77, WEIR_E_STREAM);
    expect_logged_words("request for 77 bytes");
    weir__device_log_free(&device, 255, WEIR_E_NOT_OWNED);
    expect_logged_words("free of 0xff");
}

/* A stream passes the check if the driver does not tell its device. */
TEST(a_stream_of_another_device_fails_the_check) {
    CUcontext second, popped;
    CUstream elsewhere;

    CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
    CU(driver->cuCtxPushCurrent(second));
    elsewhere = make_stream();
    CU(driver->cuCtxPopCurrent(&popped));
    OK(weir__device_check_stream(&device, A));
    EXPECT(WEIR_E_STREAM, weir__device_check_stream(&device, elsewhere));
    weir__model_fail(WEIR_ENTRY_cuStreamGetCtx, 1, CUDA_ERROR_UNKNOWN, 0);
    OK(weir__device_check_stream(&device, elsewhere));
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    OK(weir__device_check_stream(&device, elsewhere));
    weir__model_fail(WEIR_ENTRY_cuCtxGetDevice, 1, CUDA_ERROR_UNKNOWN, 0);
    OK(weir__device_check_stream(&device, elsewhere));
    EXPECT(WEIR_E_STREAM, weir__device_check_stream(&device, elsewhere));
}

/* Memory of a wait that the driver fails to free serves the next wait, or is freed at the end. */
TEST(waits_whose_memory_stays) {
    uint64_t before = weir__model_calls(WEIR_ENTRY_cuMemAlloc);
    weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_UNKNOWN);
    busy(A, 10 * MS);
    uint64_t now = weir__model_now_ns();
    CU(weir__device_wait(&device));
    MUST_LE(now + 10 * MS, weir__model_now_ns());
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemAlloc), before + 1);
    weir__device_free_wait_block(&device);
    weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_UNKNOWN);
    weir__device_free_wait_block(&device);
    MUST_EQ(device_free(), GIB);
    weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_UNKNOWN);
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__device_free_wait_block(&device); /* the context's end frees the memory */
}

/* On a full device the wait uses host memory, whose free is tried twice. */
TEST(a_wait_on_a_full_device_uses_host_memory) {
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CU(weir__device_wait(&device));
    weir__model_fail(WEIR_ENTRY_cuMemFreeHost, 1, CUDA_ERROR_UNKNOWN, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_UNKNOWN);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemFreeHost), 3);
    weir__model_fail(WEIR_ENTRY_cuMemAllocHost, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_OUT_OF_MEMORY);
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    ck_assert_int_eq(weir__device_wait(&device), CUDA_ERROR_UNKNOWN);
}

/* Waits for the device until a wait makes no proof.  Returns the number of proofs.  A proof fails if the thread is
 * preempted meanwhile. */
static uint64_t proofs_made(void) {
    uint64_t before = weir__model_calls(WEIR_ENTRY_cuLaunchHostFunc), made = 0, last;

    do {
        last = made;
        CU(weir__device_wait(&device));
        made = weir__model_calls(WEIR_ENTRY_cuLaunchHostFunc) - before;
    } while (made > last);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuCtxSynchronize), 0);
    return made;
}

/* The first wait of a process on a device proves that the driver's free does wait. */
TEST(a_wait_is_proved_once) {
    device.ordinal = 1;
    MUST(proofs_made() > 0 && proofs_made() == 0);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    MUST(proofs_made() > 0 && proofs_made() == 0);
    (void)lines();
    ck_assert_str_eq(logged, "");
}

/* If the proof cannot be made now, the next wait makes it. */
TEST(a_proof_that_fails_is_made_at_the_next_wait) {
    device.ordinal = 2;
    weir__model_fail(WEIR_ENTRY_cuStreamCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    CU(weir__device_wait(&device));
    weir__model_fail(WEIR_ENTRY_cuLaunchHostFunc, 1, CUDA_ERROR_UNKNOWN, 0);
    MUST(proofs_made() > 1);
}

static CUresult free_at_once(CUdeviceptr block) {
    (void)block;
    return CUDA_SUCCESS;
}

static CUresult free_host_at_once(void *host) {
    (void)host;
    return CUDA_SUCCESS;
}

static void wait_for_work(void) {
    uint64_t now = weir__model_now_ns();

    busy(A, 10 * MS);
    CU(weir__device_wait(&device));
    MUST_LE(now + 10 * MS, weir__model_now_ns());
}

/* weir logs once that the driver's free does not wait.  From then on weir synchronizes the context. */
TEST(a_driver_whose_frees_do_not_wait) {
    struct weir_driver hasty = *driver;

    hasty.cuMemFree = free_at_once;
    hasty.cuMemFreeHost = free_host_at_once;
    device.driver = &hasty;
    device.ordinal = 3;
    wait_for_work();
    expect_logged_words("cuMemFree does not wait");
    weir__model_fail(WEIR_ENTRY_cuStreamCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    wait_for_work();
    (void)lines();
    ck_assert_str_eq(logged, "");
    weir__model_faults_clear();
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    wait_for_work();
    expect_logged_words("cuMemFreeHost does not wait");
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuCtxSynchronize), 3);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuLaunchHostFunc), 2);
}

/* ---- local peers --------------------------------------------------------------------------- */

static struct weir_local_peer local_peer[4];

static void *leave_first(void *has_left) {
    weir__local_peers_leave(&local_peer[0]);
    atomic_store((atomic_int *)has_left, 1);
    return NULL;
}

/* A peer that leaves waits until no other peer holds it. */
TEST(a_local_peer_leaves_after_its_last_holder) {
    atomic_int has_left = 0;
    pthread_t thread;
    for (int i = 0; i < 4; i++) {
        local_peer[i] = (struct weir_local_peer){.driver = i == 2 ? (void *)&device : driver};
        local_peer[i].device = i == 3;
        weir__local_peers_join(&local_peer[i]);
    }
    struct weir_local_peer *one = weir__local_peers_next(&local_peer[1], NULL);
    struct weir_local_peer *other = weir__local_peers_next(&local_peer[1], NULL);
    MUST(one == &local_peer[0] && other == one);
    ANSWERS(0, pthread_create(&thread, NULL, leave_first, &has_left));
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    weir__local_peers_release(one);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    MUST(!atomic_load(&has_left));
    MUST(weir__local_peers_next(&local_peer[1], other) == NULL);
    ANSWERS(0, pthread_join(thread, NULL));
    MUST(weir__local_peers_next(&local_peer[1], NULL) == NULL);
    for (int i = 1; i < 4; i++)
        weir__local_peers_leave(&local_peer[i]);
}

/* ---- relief ---------------------------------------------------------------------------------- */

/* The largest request counts, and only one thread at a time releases memory. */
TEST(the_largest_signal_counts) {
    static struct weir_reserve v;
    struct weir_pressure *pressure = &v.goal.pressure;

    v.engine = &engine;
    v.device = &device;
    v.goal.in_requests = 1;
    weir__goal_signal(&v.goal, 300);
    weir__goal_signal(&v.goal, 200);
    MUST_EQ(atomic_load(&pressure->wanted), 300);
    atomic_store(&pressure->is_release_running, 1);
    weir__goal_lower_in_request(&v, &(struct weir_request){.bytes = 1});
    MUST_EQ(atomic_load(&pressure->wanted), 300);
}

SUITE("engine", CK_FORK);
