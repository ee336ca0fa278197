/* SPDX-License-Identifier: MIT */
/* test_model_checkpoint.c: the checkpoint calls, as the driver answered them (model_checkpoint.c). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fixtures/holder.h"
#include "tests/fixtures/model_device.h"

#define CAPACITY (1000 * MIB)
#define HELD (600 * MIB)

static char file[] = "/tmp/weir-checkpoint-XXXXXX";

/* What the other process is to call next, and what it has. */
static struct shared {
    atomic_int call, done; /* numbers of calls: 0, none */
    atomic_uint result;
} * shared;

enum { ALLOCATE = 1, FILL, CURRENT, INFO, QUERY };

static void nap(void) {
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void set_up(void) {
    int made = mkstemp(file);

    ck_assert_int_ge(made, 0);
    close(made);
    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", file, 1), 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
}

static void tear_down(void) {
    (void)unlink(file);
}

static CUresult call(int number, CUdeviceptr block) {
    CUcontext context;
    CUdeviceptr other;
    size_t left, total;

    switch (number) {
    case ALLOCATE:
        return driver->cuMemAlloc(&other, MIB);
    case FILL:
        return driver->cuMemsetD8Async(block, 1, MIB, A);
    case CURRENT:
        return driver->cuCtxGetCurrent(&context);
    case INFO:
        return driver->cuMemGetInfo(&left, &total);
    default:
        return driver->cuStreamQuery(A);
    }
}

static void obey(int ready, void *unused) {
    CUdeviceptr block;

    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_model(CAPACITY);
    CU(driver->cuMemAlloc(&block, HELD));
    ck_assert_int_eq(write(ready, "r", 1), 1);
    for (;;) {
        int number = atomic_exchange(&shared->call, 0);

        if (number > 0) {
            atomic_store(&shared->result, call(number, block));
            atomic_store(&shared->done, number);
        }
        nap();
    }
}

static pid_t begin(void) {
    pid_t pid = begin_child(obey, NULL);

    start_model(CAPACITY);
    return pid;
}

/* 1 if it ends soon. */
static int is_answered(int number) {
    atomic_store(&shared->done, 0);
    atomic_store(&shared->call, number);
    for (int i = 0; i < 100 && atomic_load(&shared->done) != number; i++)
        nap();
    return atomic_load(&shared->done) == number;
}

#define RESULT(call, expected) ck_assert_uint_eq(call, expected)

static CUprocessState state_of(pid_t pid) {
    CUprocessState state = 99;

    CU(driver->cuCheckpointProcessGetState(pid, &state));
    return state;
}

CASE("checkpoint", 30, set_up, tear_down);

TEST(states_have_an_order) {
    pid_t pid = begin();
    int thread = 0;

    RESULT(driver->cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    RESULT(driver->cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    RESULT(driver->cuCheckpointProcessUnlock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_RUNNING);
    CU(driver->cuCheckpointProcessLock(pid, NULL));
    RESULT(driver->cuCheckpointProcessLock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    RESULT(driver->cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_LOCKED);
    ck_assert_uint_eq(device_free(), CAPACITY - HELD);
    CU(driver->cuCheckpointProcessCheckpoint(pid, NULL));
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_CHECKPOINTED);
    ck_assert_uint_eq(device_free(), CAPACITY);
    RESULT(driver->cuCheckpointProcessUnlock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
    CU(driver->cuCheckpointProcessRestore(pid, NULL));
    ck_assert_uint_eq(device_free(), CAPACITY - HELD);
    CU(driver->cuCheckpointProcessUnlock(pid, NULL));
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_RUNNING);
    CU(driver->cuCheckpointProcessGetRestoreThreadId(pid, &thread));
    ck_assert_int_gt(thread, 0);
    ck_assert_int_ne(thread, pid);
    end(pid, SIGKILL);
}

TEST(others_are_not_there_or_do_not_use_it) {
    CUprocessState state;
    pid_t pid = begin();

    end(pid, SIGKILL);
    RESULT(driver->cuCheckpointProcessGetState(pid, &state), CUDA_ERROR_OPERATING_SYSTEM);
    RESULT(driver->cuCheckpointProcessLock(pid, NULL), CUDA_ERROR_OPERATING_SYSTEM);
    RESULT(driver->cuCheckpointProcessGetState(getppid(), &state), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_EACH(2, what_a_locked_process_may_call) {
    pid_t pid = begin();

    CU(driver->cuCheckpointProcessLock(pid, NULL));
    ck_assert(is_answered(CURRENT) && is_answered(INFO) && is_answered(QUERY));
    ck_assert(!is_answered(_i ? ALLOCATE : FILL));
    CU(driver->cuCheckpointProcessUnlock(pid, NULL));
    for (int i = 0; i < 1000 && atomic_load(&shared->done) == 0; i++)
        nap();
    ck_assert_int_eq(atomic_load(&shared->done), _i ? ALLOCATE : FILL);
    ck_assert_uint_eq(atomic_load(&shared->result), CUDA_SUCCESS);
    end(pid, SIGKILL);
}

TEST_EACH(2, a_question_ends_a_parked_process) {
    pid_t pid = begin();
    int status;

    CU(driver->cuCheckpointProcessLock(pid, NULL));
    CU(driver->cuCheckpointProcessCheckpoint(pid, NULL));
    ck_assert(is_answered(CURRENT));
    ck_assert(!is_answered(_i ? INFO : QUERY));
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(a_restore_without_room_changes_nothing) {
    CUcheckpointRestoreArgs pairs = {.gpuPairsCount = 1};
    CUdeviceptr block;
    pid_t pid = begin();

    CU(driver->cuCheckpointProcessLock(pid, NULL));
    CU(driver->cuCheckpointProcessCheckpoint(pid, NULL));
    CU(driver->cuMemAlloc(&block, 500 * MIB));
    RESULT(driver->cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_CHECKPOINTED);
    ck_assert_uint_eq(device_free(), CAPACITY - 500 * MIB);
    CU(driver->cuMemFree(block));
    RESULT(driver->cuCheckpointProcessRestore(pid, &pairs), CUDA_ERROR_NOT_SUPPORTED);
    CU(driver->cuCheckpointProcessRestore(pid, NULL));
    CU(driver->cuCheckpointProcessUnlock(pid, NULL));
    ck_assert(is_answered(QUERY));
    end(pid, SIGKILL);
}

int main(void) {
    return run_tests("model_checkpoint", CK_FORK);
}
