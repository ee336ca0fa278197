/* SPDX-License-Identifier: MIT */
/* moves.c: see moves.h.
 *
 * Why the process is stopped: in a parked process the driver answers some calls, and a process whose threads made others,
 * such as cuStreamQuery, could not be restored (driver 580.159.04).  So no thread of it may run until its memory is back.  A call about a process whose
 * restoring thread stands still never returns, so that thread goes on around each call (freeze.h), and its number is
 * asked for before the process is stopped.
 *
 * A record is there as long as the process may be locked or stopped, wherever this is killed.  After a failure the
 * process goes on only once the driver says that it runs: a stopped one loses nothing.
 *
 * A call that is killed in the middle is completed by the driver.  So whatever is found, waking it asks for the state
 * and goes on from there.
 */
#include "cli/parking/moves.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/runfile.h"
#include "base/size.h"
#include "base/text.h"
#include "base/who.h"
#include "cli/common/interrupt.h"
#include "cli/parking/freeze.h"
#include "cli/parking/nvml.h"
#include "cli/parking/record.h"
#include "cli/parking/room.h"
#include "cli/parking/ticker.h"

enum { SETTLE_TRIES = 600 };
#define SETTLE_NS 100000000L
#define TURN_NS 20000000L
/* What a process's contexts take at most. */
#define CONTEXT (UINT64_C(1) << 30)

static enum moved fail(struct move *move, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum moved fail(struct move *move, const char *format, ...) {
    va_list words;

    va_start(words, format);
    vsnprintf(move->why, sizeof move->why, format, words);
    va_end(words);
    return NOT_MOVED;
}

static void add(struct move *move, const char *text) {
    size_t length = strlen(move->why);

    snprintf(move->why + length, sizeof move->why - length, "%s", text);
}

static enum moved refuse(struct move *move, const char *call, CUresult result) {
    return fail(move, "%s failed with %u (%s)", call, result,
                weir__driver_error_name(move->driver, result));
}

/* Where it is not CUDA_SUCCESS, why says so. */
static CUresult ask_state(struct move *move, CUprocessState *state) {
    CUresult result = move->driver->cuCheckpointProcessGetState(move->pid, state);

    if (result == CUDA_ERROR_NOT_INITIALIZED)
        (void)fail(move, "it does not use CUDA");
    else if (result != CUDA_SUCCESS)
        (void)refuse(move, "cuCheckpointProcessGetState", result);
    return result;
}

/* ---- Out ---- */

static enum moved check_runs(struct move *move) {
    CUprocessState state = CU_PROCESS_STATE_RUNNING;

    if (weir__process_start(move->pid) != move->start)
        return fail(move, "it has ended");
    if (ask_state(move, &state) != CUDA_SUCCESS)
        return NOT_MOVED;
    switch (state) {
    case CU_PROCESS_STATE_RUNNING:
        return MOVED;
    case CU_PROCESS_STATE_LOCKED:
        return fail(move, "it is locked already; `weir wake %ld' unlocks it", (long)move->pid);
    case CU_PROCESS_STATE_CHECKPOINTED:
        return fail(move, "it is parked already; `weir wake %ld' wakes it", (long)move->pid);
    default:
        return fail(move, "the driver is about to move its memory, or failed to (state %u)", state);
    }
}

static enum moved lock(struct move *move) {
    CUcheckpointLockArgs arguments = {.timeoutMs = move->timeout_ms};
    CUresult result = move->driver->cuCheckpointProcessLock(move->pid, &arguments);

    if (result == CUDA_ERROR_NOT_READY)
        return fail(move,
                    "its work on the device was not done within %.3g s; --timeout S waits longer",
                    move->timeout_ms / 1000.0);
    return result == CUDA_SUCCESS ? MOVED : refuse(move, "cuCheckpointProcessLock", result);
}

/* As the driver says; or it has ended. */
static int runs(const struct move *move) {
    CUprocessState state = CU_PROCESS_STATE_FAILED;

    if (weir__process_start(move->pid) != move->start)
        return 1;
    return move->driver->cuCheckpointProcessGetState(move->pid, &state) == CUDA_SUCCESS &&
           state == CU_PROCESS_STATE_RUNNING;
}

/* After what failed, or was interrupted.  `is_frozen': it is stopped, and stays so unless it runs. */
static enum moved undo(struct move *move, enum moved moved, int is_frozen, int *goes_on) {
    CUresult result = move->driver->cuCheckpointProcessUnlock(move->pid, NULL);
    char text[96];

    *goes_on = runs(move);
    move->is_stuck = !*goes_on;
    if (*goes_on)
        return moved;
    if (moved == INTERRUPTED)
        (void)refuse(move, "cuCheckpointProcessUnlock", result);
    snprintf(text, sizeof text, "; it stays %s: try `weir wake %ld'",
             is_frozen ? "stopped" : "locked", (long)move->pid);
    add(move, text);
    return NOT_MOVED;
}

static enum moved cannot_freeze(struct move *move, int error) {
    if (error == EPERM)
        return fail(move, "this user may not trace it: see /proc/sys/kernel/yama/ptrace_scope, or "
                          "a debugger has it");
    if (error == ETIMEDOUT)
        return fail(move, "it does not stop (SIGSTOP)%s",
                    move->pid == 1 ? ": the first process of a container is stopped from outside"
                                   : "");
    return fail(move, "it cannot be stopped: %s", strerror(error));
}

/* The process is locked and stands still. */
static enum moved save(struct move *move, uint64_t *resident) {
    struct ticker ticker;
    CUresult result;

    *resident = ticker_resident(move->pid);
    ticker_begin(&ticker, move->gate ? NULL : "parking", move->pid);
    result = move->driver->cuCheckpointProcessCheckpoint(move->pid, NULL);
    ticker_end(&ticker);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return fail(move, "it has memory that the driver cannot move, such as managed memory");
    return result == CUDA_SUCCESS ? MOVED : refuse(move, "cuCheckpointProcessCheckpoint", result);
}

/* On each device where it had memory.  Without NVML by all that is free, and by what its resident memory grew. */
static int has_room(const struct move *move) {
    struct nvml_bytes room = nvml_free();

    if (nvml_sum(&room) == NVML_UNKNOWN || nvml_sum(&move->had) == NVML_UNKNOWN)
        return room_left(move->driver) >= move->bytes + MOVES_BESIDE;
    for (int i = 0; i < NVML_DEVICES; i++)
        if (move->had.of[i] != NVML_UNKNOWN && move->had.of[i] > 0 &&
            (room.of[i] == NVML_UNKNOWN || room.of[i] < move->had.of[i] + MOVES_BESIDE))
            return 0;
    return 1;
}

/* After a restore that found a full device the process could not be restored at all, with room for it either (driver
 * 580.159.04).  So none is tried without room, and no other process of the user's is restored at the same time.  The
 * driver takes the memory at once, in some tens of milliseconds. */
static CUresult restore_in_turn(struct move *move) {
    int turn = weir__runfile_lock("waking");
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct ticker ticker;

    if (turn < 0 && errno == EWOULDBLOCK)
        return result;
    if (has_room(move)) {
        ticker_begin(&ticker, move->gate ? NULL : "waking", move->pid);
        result = move->driver->cuCheckpointProcessRestore(move->pid, NULL);
        ticker_end(&ticker);
    }
    if (turn >= 0)
        close(turn);
    return result;
}

static enum moved restore(struct move *move) {
    CUresult result = restore_in_turn(move);
    char bytes[32];

    move->is_full = result == CUDA_ERROR_OUT_OF_MEMORY;
    if (move->is_full) {
        weir__bytes_show(move->bytes, bytes, sizeof bytes);
        return fail(move, "the device has too little free memory for it%s%s; it stays parked",
                    move->bytes ? ", which needs " : "", move->bytes ? bytes : "");
    }
    if (result == CUDA_SUCCESS)
        return MOVED;
    (void)refuse(move, "cuCheckpointProcessRestore", result);
    add(move, "; it stays parked.  The driver cannot restore memory that another process shared "
              "with it");
    return NOT_MOVED;
}

/* What it had, where NVML did not know the process, as in some containers: what has become free, some of it by others. */
static void note_size(struct move *move, struct record *record, const struct nvml_bytes *before,
                      uint64_t resident) {
    struct nvml_bytes after = nvml_free();
    uint64_t grown = weir__size_less(ticker_resident(move->pid), resident);

    if (nvml_sum(&move->had) == NVML_UNKNOWN)
        for (int i = 0; i < NVML_DEVICES; i++)
            if (before->of[i] != NVML_UNKNOWN && after.of[i] != NVML_UNKNOWN)
                move->had.of[i] = weir__size_smaller(weir__size_less(after.of[i], before->of[i]),
                                                     grown + CONTEXT);
    if (move->bytes == 0 && nvml_sum(&move->had) != NVML_UNKNOWN)
        move->bytes = nvml_sum(&move->had);
    if (move->bytes == 0)
        move->bytes = grown;
    record->had = move->had;
    record->bytes = move->bytes;
    (void)record_write(record); /* without it, what it needs is not known */
}

/* The process stands still, and a record is there. */
static enum moved save_or_undo(struct move *move, struct record *record) {
    struct nvml_bytes before = nvml_free();
    uint64_t resident = 0;
    enum moved moved = interrupt_came() ? INTERRUPTED : save(move, &resident);

    if (moved == MOVED)
        note_size(move, record, &before, resident);
    if (moved == MOVED && interrupt_came())
        moved = restore(move) == MOVED ? INTERRUPTED : MOVED;
    return moved;
}

/* The process is locked, and a record is there, which somebody may have removed meanwhile. */
static enum moved park(struct move *move, struct record *record) {
    int error, is_frozen = 0, goes_on;
    struct freeze freeze;
    enum moved moved;

    if (interrupt_came()) {
        moved = INTERRUPTED;
    } else if (record_write(record) != 0) {
        moved = fail(move, "no file can be made for it: %s", strerror(errno));
    } else {
        error = freeze_begin(&freeze, move->pid, record->thread);
        is_frozen = error == 0;
        moved = error ? cannot_freeze(move, error) : save_or_undo(move, record);
    }
    if (moved == MOVED) {
        freeze_end(&freeze, move->gate != NULL);
        return MOVED;
    }
    moved = undo(move, moved, is_frozen, &goes_on);
    if (is_frozen)
        freeze_end(&freeze, goes_on);
    if (goes_on)
        record_remove(record);
    return moved;
}

static enum moved move_out_alone(struct move *move) {
    struct record record = {.pid = move->pid, .start = move->start, .is_gated = move->gate != NULL};
    uint64_t began = weir__clock_ns();
    enum moved moved = check_runs(move);
    CUresult result;
    int thread = 0;

    move->is_stuck = 0;
    move->had = record.had = nvml_used(move->pid);
    move->bytes = nvml_sum(&move->had);
    if (move->bytes == NVML_UNKNOWN)
        move->bytes = 0;
    record.bytes = move->bytes;
    if (moved != MOVED)
        return moved;
    result = move->driver->cuCheckpointProcessGetRestoreThreadId(move->pid, &thread);
    if (result != CUDA_SUCCESS)
        return refuse(move, "cuCheckpointProcessGetRestoreThreadId", result);
    record.thread = thread;
    if (record_write(&record) != 0)
        return fail(move, "no file can be made for it: %s", strerror(errno));
    moved = lock(move);
    if (moved == MOVED)
        moved = park(move, &record);
    else if (runs(move))
        record_remove(&record);
    else
        move->is_stuck = 1;
    move->ns = weir__clock_ns() - began;
    return moved;
}

/* A keeper must not move it at the same time.  No gate: there is none. */
static int take_turn(const struct move *move, struct weir_gate *gate) {
    if (move->gate || weir__gate_find(gate, move->pid, move->start) != 0) {
        *gate = (struct weir_gate){.file = -1};
        return 1;
    }
    while (!weir__gate_lock(gate)) {
        if (interrupt_came()) {
            weir__gate_unmap(gate);
            return 0;
        }
        nanosleep(&(struct timespec){0, TURN_NS}, NULL);
    }
    return 1;
}

enum moved move_out(struct move *move) {
    struct weir_gate gate;
    enum moved moved;

    if (!take_turn(move, &gate))
        return INTERRUPTED;
    moved = move_out_alone(move);
    weir__gate_unmap(&gate);
    return moved;
}

/* ---- Back ---- */

/* A command that was killed may have left a call that the driver completes. */
static enum moved unlock_in_time(struct move *move) {
    CUresult result = CUDA_SUCCESS;

    for (int i = 0; i < SETTLE_TRIES; i++) {
        CUprocessState state = CU_PROCESS_STATE_RUNNING;

        result = move->driver->cuCheckpointProcessUnlock(move->pid, NULL);
        if (result != CUDA_ERROR_ILLEGAL_STATE)
            break;
        if (ask_state(move, &state) != CUDA_SUCCESS)
            return NOT_MOVED;
        if (state == CU_PROCESS_STATE_RUNNING)
            return MOVED;
        if (state == CU_PROCESS_STATE_CHECKPOINTED && restore(move) != MOVED)
            return NOT_MOVED;
        nanosleep(&(struct timespec){0, SETTLE_NS}, NULL);
    }
    return result == CUDA_SUCCESS ? MOVED : refuse(move, "cuCheckpointProcessUnlock", result);
}

/* The thread that restores goes on. */
static enum moved wake(struct move *move, int is_recorded) {
    CUprocessState state = CU_PROCESS_STATE_RUNNING;

    if (weir__process_start(move->pid) != move->start)
        return fail(move, "it has ended");
    if (ask_state(move, &state) != CUDA_SUCCESS)
        return NOT_MOVED;
    switch (state) {
    case CU_PROCESS_STATE_RUNNING:
        return is_recorded ? MOVED : fail(move, "it is not parked");
    case CU_PROCESS_STATE_CHECKPOINTED:
        if (restore(move) != MOVED)
            return NOT_MOVED;
        return unlock_in_time(move);
    case CU_PROCESS_STATE_LOCKED:
        return unlock_in_time(move);
    default:
        return fail(move, "the driver is about to move its memory, or failed to (state %u)", state);
    }
}

/* The process waits at its gate, wherever its keeper has left it. */
static int waits_at_gate(const struct weir_gate *gate) {
    return gate && gate->page && atomic_load(&gate->page->gate) != WEIR_GATE_OPEN;
}

static enum moved move_back_alone(struct move *move, struct weir_gate *gate) {
    uint64_t began = weir__clock_ns();
    struct record record;
    struct freeze freeze;
    enum moved moved;
    int error;

    move->bytes = 0;
    memset(&move->had, 0xff, sizeof move->had); /* NVML_UNKNOWN */
    move->is_full = 0;
    if (record_find(move->pid, &record)) {
        move->bytes = record.bytes;
        move->had = record.had;
        error = freeze_begin(&freeze, move->pid, record.thread);
        if (error)
            return cannot_freeze(move, error);
        moved = wake(move, 1);
        freeze_end(&freeze, moved == MOVED || record.is_gated);
        if (moved == MOVED)
            record_remove(&record);
    } else if (weir__process_is_stopped(move->pid)) {
        return fail(move, "it is stopped, but not parked by this user's `weir park'");
    } else {
        moved = wake(move, waits_at_gate(gate));
    }
    if (moved == MOVED && waits_at_gate(gate))
        weir__gate_open(gate);
    move->ns = weir__clock_ns() - began;
    return moved;
}

enum moved move_back(struct move *move) {
    struct weir_gate gate;
    enum moved moved;

    if (!take_turn(move, &gate))
        return INTERRUPTED;
    moved = move_back_alone(move, move->gate ? move->gate : &gate);
    weir__gate_unmap(&gate);
    return moved;
}
