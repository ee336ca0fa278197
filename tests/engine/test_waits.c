/* SPDX-License-Identifier: MIT */
/* test_waits.c: a request waits for another stream's work where it has been seen that this costs no time.
 *
 * Engine mapped with its default settings, on the device model.  A program repeats itself: A frees a large block behind
 * work, B has work queued, and at last B requests as much as A freed.
 */
#include "config.h"

#include "tests/fixtures/model_device.h"

#include <weir/tensors.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"

#define LARGE (64 * MIB)

static void open_device(void) {
    start_model(4 * GIB);
}

static weir_allocator *make(int dependencies) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);
    weir_allocator *a = NULL;
    char message[320] = "";

    options.front = WEIR_SWITCH_OFF;
    options.internal_dependencies = dependencies;
    OK(weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    return a;
}

static void destroy(weir_allocator *a) {
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    check_model();
    ck_assert_ptr_null(weir__model_fault());
}

/* A frees a large block behind so much work; so much is queued on B, which has freed two small ones. */
static void begin_round(weir_allocator *a, uint64_t work_of_a, uint64_t work_of_b) {
    void *block = take(a, LARGE, A);

    CU(weir__model_use(A, (CUdeviceptr)(uintptr_t)block, LARGE, weir__model_uses() + 1, work_of_a));
    give(a, block, A);
    for (int i = 0; i < 2; i++) {
        block = take(a, 1000, B);
        busy(B, work_of_b / 2);
        give(a, block, B);
    }
}

static void end_round(void) {
    CU(driver->cuCtxSynchronize());
    weir__model_advance(MS);
}

/* Rounds in which B requests nothing large. */
static void learn(weir_allocator *a, int rounds, uint64_t work_of_a, uint64_t work_of_b) {
    for (int i = 0; i < rounds; i++) {
        begin_round(a, work_of_a, work_of_b);
        end_round();
    }
}

/* B requests as much as A freed, and uses it: 1 if it waits for A, 0 if memory is added. */
static int waits(weir_allocator *a) {
    uint64_t before = reserve(a), waited;
    void *block;

    count_from_here();
    block = take(a, LARGE, B);
    waited = calls(WEIR_ENTRY_cuStreamWaitEvent);
    MUST(waited <= 1);
    MUST_EQ(reserve(a) > before, waited == 0);
    CU(weir__model_use(B, (CUdeviceptr)(uintptr_t)block, LARGE, weir__model_uses() + 1, MS));
    give(a, block, B);
    end_round();
    return (int)waited;
}

/* B has more queued than A: the wait is over before B comes to it. */
TEST(a_wait_that_is_free_comes_before_growth) {
    static const int dependencies[] = {WEIR_SWITCH_DEFAULT, WEIR_SWITCH_AUTO, WEIR_SWITCH_OFF};
    weir_allocator *a = make(dependencies[_i]);
    const int is_on = dependencies[_i] != WEIR_SWITCH_OFF;
    uint64_t before;
    int waited;

    learn(a, 4, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    before = check_identities(a).steals;
    waited = waits(a);
    MUST_EQ(waited, is_on);
    MUST(!is_on || check_identities(a).steals == before + 1);
    destroy(a);
}

/* A has more queued than B. */
TEST(a_wait_that_takes_time_does_not) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    learn(a, 4, 8 * MS, 6 * MS);
    begin_round(a, 8 * MS, 6 * MS);
    MUST(!waits(a));
    destroy(a);
}

/* A was longer in one of the last two rounds: it may be so again. */
TEST(what_took_long_of_late_is_not_waited_for) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    learn(a, 4, 2 * MS, 6 * MS);
    learn(a, 1, 8 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    MUST(!waits(a));
    destroy(a);
}

/* Tensors' streams may run kernels of several communicators. */
TEST(no_stream_of_tensors_waits) {
    weir_tensors *t;
    weir_allocator *a;

    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_CACHE", "off", 1);
    OK(weir_tensors_open(0, NULL, &t));
    a = weir_tensors_allocator(t);
    learn(a, 4, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    MUST(!waits(a));
}

/* Nothing is known in the first rounds. */
TEST(what_is_not_known_is_not_waited_for) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    learn(a, _i, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    MUST(!waits(a));
    destroy(a);
}

/* A should have ended by now, and has not. */
TEST(what_is_overdue_is_not_waited_for) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    learn(a, 4, 2 * MS, 40 * MS);
    begin_round(a, 100 * MS, 40 * MS);
    weir__model_advance(5 * MS);
    MUST(!waits(a));
    destroy(a);
}

/* A graph would wait at each launch, or break. */
TEST(a_captured_stream_waits_for_nothing) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);
    void *block;

    learn(a, 4, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    CU(driver->cuStreamBeginCapture(B, CU_STREAM_CAPTURE_MODE_GLOBAL));
    count_from_here();
    block = take(a, LARGE, B);
    give(a, block, B);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamWaitEvent), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 0);
    drop_capture(B);
    destroy(a);
}

/* The event was recorded before A ended; nothing more is asked of A's handle. */
TEST(a_stream_that_ended_may_be_waited_for) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    learn(a, 4, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    CU(driver->cuStreamDestroy(A));
    MUST(waits(a));
    destroy(a);
}

/* The driver has no times between events, or fails to tell one. */
TEST(without_times_nothing_is_waited_for) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    weir__model_fail(WEIR_ENTRY_cuEventElapsedTime, 1, CUDA_ERROR_UNKNOWN, 1);
    learn(a, 4, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    MUST(!waits(a));
    weir__model_faults_clear();
    destroy(a);
}

/* Times are told from another event each minute. */
TEST(it_goes_on_for_hours) {
    weir_allocator *a = make(WEIR_SWITCH_DEFAULT);

    for (int i = 0; i < 5; i++) {
        learn(a, 4, 2 * MS, 6 * MS);
        weir__model_advance(1800 * 1000 * MS);
    }
    learn(a, 2, 2 * MS, 6 * MS);
    begin_round(a, 2 * MS, 6 * MS);
    MUST(waits(a));
    destroy(a);
}

static Suite *suite(void) {
    Suite *all = suite_create("waits");
    TCase *tests = suite_add_case(all, "waits", 60, open_device, NULL);

    ADD_FOR_EACH(tests, 3, a_wait_that_is_free_comes_before_growth);
    ADD_TESTS(tests, a_wait_that_takes_time_does_not, what_took_long_of_late_is_not_waited_for,
              no_stream_of_tensors_waits, what_is_overdue_is_not_waited_for,
              a_captured_stream_waits_for_nothing, a_stream_that_ended_may_be_waited_for,
              without_times_nothing_is_waited_for, it_goes_on_for_hours);
    ADD_FOR_EACH(tests, 2, what_is_not_known_is_not_waited_for);
    return all;
}

int main(void) {
    return run_suite(suite(), CK_FORK);
}
