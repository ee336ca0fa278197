/* SPDX-License-Identifier: MIT */
/* model_checkpoint.c: a process of a shared device is locked, parked, restored and unlocked by another.
 *
 * The state of each process lies in the file that all share (model_shared.h).  The content of its memory stays where it
 * is, since the host plays the device; its bytes are free for others meanwhile.  One word holds the state, the state
 * that a call under way leads to, and when that is reached.  So if a caller dies in the middle, the process goes on to
 * that state by itself.
 *
 * Documented: the states, their order, and what a wrong one answers; a lock that comes too late leaves the process
 * running.  Measured on driver 580.159.04:
 *   - a thread of the process answers; while that is stopped every call about the process waits, a lock beyond its limit;
 *   - a caller that is killed undoes nothing: what it began is completed;
 *   - in a locked process calls that take memory or submit work wait; most questions are answered;
 *   - a parked one whose threads ask about streams and memory cannot be restored;
 *   - a restore without room changes nothing.
 * Assumed: such a question ends the process, and which they are, since several were tried at once.  The figure checkpoint_ms is real time, for tests
 * that interrupt.
 *
 * Must not know: how memory is shared.
 */
#include "driver/model/model_inside.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum { PAUSE_US = 500, TARGET_SHIFT = 8, UNTIL_SHIFT = 16, STATE_MASK = 255 };

static void nap(void) {
    nanosleep(&(struct timespec){0, PAUSE_US * 1000L}, NULL);
}

static uint64_t now_us(void) {
    return weir__clock_ns() / 1000;
}

/* What the word is by now. */
static uint64_t settled(struct model_lock *lock) {
    uint64_t word = atomic_load(&lock->state), target = word >> TARGET_SHIFT & STATE_MASK;

    if (word >> UNTIL_SHIFT == 0 || now_us() < word >> UNTIL_SHIFT)
        return word;
    return atomic_compare_exchange_strong(&lock->state, &word, target) ? target
                                                                       : atomic_load(&lock->state);
}

/* ---- The calls of a process that may be locked ---- */

enum answer { ALWAYS, UNLESS_PARKED, UNLESS_LOCKED };

static enum answer answer_of(enum weir_driver_entry entry) {
    switch (entry) {
    case WEIR_ENTRY_cuDriverGetVersion:
    case WEIR_ENTRY_cuGetErrorName:
    case WEIR_ENTRY_cuDeviceGetCount:
    case WEIR_ENTRY_cuDeviceGetAttribute:
    case WEIR_ENTRY_cuCtxGetCurrent:
    case WEIR_ENTRY_cuCtxPushCurrent:
    case WEIR_ENTRY_cuCtxPopCurrent:
    case WEIR_ENTRY_cuStreamGetId:
    case WEIR_ENTRY_cuThreadExchangeStreamCaptureMode:
    case WEIR_ENTRY_cuCheckpointProcessGetState:
    case WEIR_ENTRY_cuCheckpointProcessGetRestoreThreadId:
    case WEIR_ENTRY_cuCheckpointProcessLock:
    case WEIR_ENTRY_cuCheckpointProcessCheckpoint:
    case WEIR_ENTRY_cuCheckpointProcessRestore:
    case WEIR_ENTRY_cuCheckpointProcessUnlock:
        return ALWAYS;
    case WEIR_ENTRY_cuMemGetInfo:
    case WEIR_ENTRY_cuStreamQuery:
    case WEIR_ENTRY_cuStreamIsCapturing:
    case WEIR_ENTRY_cuEventQuery:
    case WEIR_ENTRY_cuCtxSynchronize:
        return UNLESS_PARKED;
    default:
        return UNLESS_LOCKED;
    }
}

static void end_if_parked(struct model_lock *lock) {
    uint64_t word = settled(lock);

    if (word == CU_PROCESS_STATE_RUNNING || word == CU_PROCESS_STATE_LOCKED)
        return;
    fputs("device model: a question about a parked process's memory\n", stderr);
    abort();
}

int weir__model_checkpoint_enter(enum weir_driver_entry entry) {
    struct model_lock *lock = weir__model_shared_own_lock();
    enum answer answer = answer_of(entry);

    if (answer == UNLESS_PARKED)
        end_if_parked(lock);
    if (answer != UNLESS_LOCKED)
        return 0;
    for (;;) {
        atomic_fetch_add(&lock->inside, 1);
        if (settled(lock) == CU_PROCESS_STATE_RUNNING)
            return 1;
        atomic_fetch_sub(&lock->inside, 1);
        nap();
    }
}

void weir__model_checkpoint_leave(void) {
    atomic_fetch_sub(&weir__model_shared_own_lock()->inside, 1);
}

/* ---- The thread that answers ---- */

/* It need not do anything: who calls looks whether it could. */
static void *stay(void *lock) {
    atomic_store(&((struct model_lock *)lock)->thread, (uint64_t)syscall(SYS_gettid));
    while (pause() != 0)
        ;
    return NULL;
}

void weir__model_checkpoint_start(void) {
    static pid_t started; /* by this process; guarded by the model's lock */
    static uint64_t number;
    struct model_lock *lock = weir__model_shared_own_lock();
    sigset_t all, before;
    pthread_t thread;

    if (started == getpid()) {
        atomic_store(&lock->thread, number);
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, stay, lock) == 0) {
        pthread_detach(thread);
        while ((number = atomic_load(&lock->thread)) == 0)
            nap();
        started = getpid();
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* 0: the process has ended. */
static int is_stopped(pid_t pid, uint64_t thread, int *stopped) {
    char path[64], text[512], *at;
    ssize_t length;
    int file;

    *stopped = 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/stat", (long)pid, (long)thread);
    file = weir__file_open(path, O_RDONLY, 0);
    length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    at = strrchr(text, ')');
    *stopped = at && (at[2] == 'T' || at[2] == 't');
    return 1;
}

/* Once the process can answer; NULL: there is none that uses a device, or it has ended. */
static struct model_lock *reach(pid_t pid) {
    for (;;) {
        struct model_lock *lock = weir__model_shared_lock(pid);
        int stopped;

        if (!lock || !is_stopped(pid, atomic_load(&lock->thread), &stopped))
            return NULL;
        if (!stopped)
            return lock;
        nap();
    }
}

/* ---- The entries ---- */

/* Of a process that is not there, and of one that does not use a device. */
static CUresult nobody(pid_t pid) {
    return kill(pid, 0) == 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_OPERATING_SYSTEM;
}

/* From one state to another, which is reached after so long; 0: it is in no such state. */
static int move(struct model_lock *lock, CUprocessState from, CUprocessState to, uint64_t ms) {
    uint64_t word = settled(lock), then = to;

    if (word != from)
        return 0;
    if (ms > 0)
        then = from | (uint64_t)to << TARGET_SHIFT | (now_us() + ms * 1000) << UNTIL_SHIFT;
    return atomic_compare_exchange_strong(&lock->state, &word, then);
}

/* The end of a move that takes a while. */
static CUresult wait_for_move(pid_t pid, struct model_lock *lock) {
    while (settled(lock) >> UNTIL_SHIFT != 0) {
        if (reach(pid) != lock)
            return nobody(pid);
        nap();
    }
    return CUDA_SUCCESS;
}

CUresult weir__model_cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    struct model_lock *lock = reach(pid);

    if (!lock)
        return nobody(pid);
    (void)wait_for_move(pid, lock); /* the thread does one thing after the other */
    *state = (CUprocessState)(settled(lock) & STATE_MASK);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    struct model_lock *lock = reach(pid);

    if (!lock)
        return nobody(pid);
    *thread = (int)atomic_load(&lock->thread);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *arguments) {
    struct model_lock *lock = reach(pid);
    uint64_t limit_ms = arguments ? arguments->timeoutMs : 0, began = now_us();

    if (!lock)
        return nobody(pid);
    if (!move(lock, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED, 0))
        return CUDA_ERROR_ILLEGAL_STATE;
    while (atomic_load(&lock->inside) > 0) {
        if (reach(pid) != lock)
            return nobody(pid);
        if (limit_ms > 0 && now_us() - began > limit_ms * 1000) {
            (void)move(lock, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING, 0);
            return CUDA_ERROR_NOT_READY;
        }
        nap();
    }
    return CUDA_SUCCESS;
}

CUresult weir__model_cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *arguments) {
    struct model_lock *lock = reach(pid);

    (void)arguments;
    if (!lock)
        return nobody(pid);
    if (!move(lock, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED,
              weir__model.profile.checkpoint_ms))
        return CUDA_ERROR_ILLEGAL_STATE;
    weir__model_shared_leave(lock);
    return wait_for_move(pid, lock);
}

CUresult weir__model_cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *arguments) {
    struct model_lock *lock = reach(pid);

    if (!lock)
        return nobody(pid);
    if (arguments && arguments->gpuPairsCount > 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (settled(lock) != CU_PROCESS_STATE_CHECKPOINTED)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (weir__model_shared_return(lock, weir__model.devices[0].capacity) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!move(lock, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED,
              weir__model.profile.checkpoint_ms))
        return CUDA_ERROR_ILLEGAL_STATE;
    return wait_for_move(pid, lock);
}

CUresult weir__model_cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *arguments) {
    struct model_lock *lock = reach(pid);

    (void)arguments;
    if (!lock)
        return nobody(pid);
    return move(lock, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING, 0)
               ? CUDA_SUCCESS
               : CUDA_ERROR_ILLEGAL_STATE;
}
