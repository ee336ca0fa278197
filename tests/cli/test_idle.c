/* SPDX-License-Identifier: MIT */
/* test_idle.c: processes with a gate are parked and woken on the device model by keepers that are stopped and killed at
 * any moment.
 *
 * A victim is a child whose threads pass the gate before each call, as libweir-gate.so has it.  A keeper is another
 * child, which parks and wakes the victim all the time.  Whatever it leaves, `weir wake' (move_back) must mend, with
 * all contents.  WEIR_TEST_ROUNDS: how many keepers (50 if not set). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "adapters/gate/gate.h"
#include "base/clock.h"
#include "base/who.h"
#include "cli/common/interrupt.h"
#include "cli/parking/moves.h"
#include "cli/parking/record.h"
#include "tests/fixtures/model_device.h"

#define CAPACITY (1000 * MIB)
#define HELD (600 * MIB)

enum { PATTERN = 4096, MOVE_MS = 2, TRIES = 20000, THREADS = 3 };

static char folder[] = "/tmp/weir-idle-XXXXXX";

/* Seen by all processes of a test. */
static struct shared {
    atomic_ullong beats, moves;
    atomic_int has_to_end, wrong;
} * shared;

void weir__gate_look_at_links(void) {
}

void weir__gate_pause(uint64_t lacks, unsigned ms);

static void nap_us(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void put_folder(const char *variable, const char *name) {
    char path[128];

    snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", name);
    ck_assert_int_eq(setenv(variable, path, 1), 0);
}

static void set_up(void) {
    char text[128];
    FILE *file;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    put_folder("WEIR_RUN_FOLDER", "");
    put_folder("WEIR_MODEL_SHARED", "device");
    put_folder("WEIR_MODEL_PROFILE", "profile");
    file = fopen(getenv("WEIR_MODEL_PROFILE"), "we");
    ck_assert(file && fprintf(file, "checkpoint_ms = %d\n", MOVE_MS) > 0 && fclose(file) == 0);
    snprintf(text, sizeof text, "%ld %llu", (long)getpid(),
             (unsigned long long)weir__process_start(getpid()));
    ck_assert_int_eq(setenv("WEIR_RUN_PARK", text, 1), 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
}

static void tear_down(void) {
    char command[64];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

/* ---- Victims ---- */

/* The call, behind the gate. */
#define GATED(call)                                                                                \
    do {                                                                                           \
        int is_inside_ = weir__gate_enter();                                                       \
        CUresult result_ = (call);                                                                 \
        if (is_inside_)                                                                            \
            weir__gate_leave();                                                                    \
        if (result_ != CUDA_SUCCESS)                                                               \
            atomic_store(&shared->wrong, 1);                                                       \
    } while (0)

static CUdeviceptr block;

static void *work(void *own_stream) {
    unsigned char content[PATTERN], found[PATTERN];

    memset(content, 0x5a, sizeof content);
    GATED(driver->cuCtxPushCurrent(primary));
    while (!atomic_load(&shared->has_to_end)) {
        GATED(driver->cuStreamQuery(own_stream)); /* which would end a parked process */
        GATED(driver->cuMemcpyDtoHAsync(found, block, sizeof found, own_stream));
        GATED(driver->cuStreamSynchronize(own_stream));
        if (memcmp(found, content, sizeof found) != 0)
            atomic_store(&shared->wrong, 1);
        atomic_fetch_add(&shared->beats, 1);
        nap_us(300);
    }
    return NULL;
}

static void be_victim(int ready) {
    unsigned char content[PATTERN];
    CUstream streams[THREADS] = {A, B, A};
    pthread_t threads[THREADS];

    start_model(CAPACITY);
    memset(content, 0x5a, sizeof content);
    GATED(driver->cuMemAlloc(&block, HELD));
    GATED(driver->cuMemcpyHtoDAsync(block, content, sizeof content, A));
    GATED(driver->cuStreamSynchronize(A));
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, streams[i]), 0);
    ck_assert_int_eq(write(ready, "r", 1), 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    _exit(atomic_load(&shared->wrong));
}

static pid_t begin_victim(void) {
    int ready[2];
    char byte;
    pid_t pid;

    atomic_store(&shared->has_to_end, 0);
    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_victim(ready[1]);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    start_model(CAPACITY);
    return pid;
}

static int works_on(void) {
    unsigned long long before = atomic_load(&shared->beats);

    for (int i = 0; i < TRIES && atomic_load(&shared->beats) < before + 2 * THREADS; i++)
        nap_us(500);
    return atomic_load(&shared->beats) >= before + 2 * THREADS;
}

static void end_victim(pid_t pid) {
    int status;

    atomic_store(&shared->has_to_end, 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the victim ended with %x",
                  (unsigned)status);
}

/* ---- Keepers ---- */

static struct move move_of(pid_t pid, struct weir_gate *gate) {
    return (struct move){.driver = driver,
                         .pid = pid,
                         .start = weir__process_start(pid),
                         .timeout_ms = 2000,
                         .gate = gate};
}

/* The gate's lock is held. */
static int park(struct weir_gate *gate, pid_t pid) {
    struct move move = move_of(pid, gate);

    if (!weir__gate_close(gate, 100))
        return 0;
    if (move_out(&move) == MOVED) {
        weir__gate_set_away(gate, 1);
        return 1;
    }
    weir__gate_open(gate);
    return 0;
}

static void move_once(struct weir_gate *gate, pid_t pid) {
    struct move move = move_of(pid, gate);

    while (!weir__gate_lock(gate))
        nap_us(1000);
    if (atomic_load(&gate->page->gate) != WEIR_GATE_OPEN)
        (void)move_back(&move);
    else if (park(gate, pid))
        atomic_fetch_add(&shared->moves, 1);
    weir__gate_unlock(gate);
}

static void be_keeper(pid_t pid) {
    struct weir_gate gate;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY}) != 0 ||
        weir__gate_find(&gate, pid, weir__process_start(pid)) != 0)
        _exit(1);
    for (;;)
        move_once(&gate, pid);
}

static void disturb(pid_t pid, unsigned *seed) {
    pid_t keeper = fork();

    if (keeper == 0)
        be_keeper(pid);
    nap_us(rand_r(seed) % 20000);
    if (rand_r(seed) % 4 == 0) {
        kill(keeper, SIGSTOP);
        nap_us(rand_r(seed) % 4000);
        kill(keeper, SIGCONT);
        nap_us(rand_r(seed) % 4000);
    }
    kill(keeper, SIGKILL);
    ck_assert_int_eq(waitpid(keeper, NULL, 0), keeper);
}

/* ---- Tests ---- */

TEST(who_is_parked_at_its_gate_is_not_stopped_and_wakes) {
    pid_t pid = begin_victim();
    struct record record;
    struct weir_gate gate;
    CUdeviceptr all;

    ck_assert_int_eq(weir__gate_find(&gate, pid, weir__process_start(pid)), 0);
    for (int i = 0; i < 3; i++) {
        struct move move = move_of(pid, i == 1 ? NULL : &gate); /* by `weir wake' */

        ck_assert(park(&gate, pid));
        ck_assert(!weir__process_is_stopped(pid));
        ck_assert(record_find(pid, &record) && record.is_gated);
        CU(driver->cuMemAlloc(&all, CAPACITY));
        ck_assert_int_eq(move_back(&move), NOT_MOVED);
        ck_assert(move.is_full && !weir__process_is_stopped(pid));
        CU(driver->cuMemFree(all));
        ck_assert_msg(move_back(&move) == MOVED, "%s", move.why);
        ck_assert(!record_find(pid, &record));
        ck_assert(works_on());
    }
    weir__gate_unmap(&gate);
    end_victim(pid);
}

static void *interrupt_soon(void *unused) {
    nap_us(50000);
    kill(getpid(), SIGTERM);
    return unused;
}

TEST(who_waits_for_another_that_moves_it_can_be_interrupted) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid, NULL);
    struct weir_gate gate;
    pthread_t thread;

    ck_assert_int_eq(weir__gate_find(&gate, pid, weir__process_start(pid)), 0);
    ck_assert(weir__gate_lock(&gate));
    interrupt_watch();
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_soon, NULL), 0);
    ck_assert_int_eq(move_back(&move), INTERRUPTED);
    ck_assert_int_eq(move_out(&move), INTERRUPTED);
    pthread_join(thread, NULL);
    weir__gate_unmap(&gate);
    ck_assert(works_on());
    end_victim(pid);
}

static const struct {
    enum weir_driver_entry entry;
    CUresult result;
} failures[] = {
    {WEIR_ENTRY_cuCheckpointProcessGetState, CUDA_ERROR_UNKNOWN},
    {WEIR_ENTRY_cuCheckpointProcessGetRestoreThreadId, CUDA_ERROR_UNKNOWN},
    {WEIR_ENTRY_cuCheckpointProcessLock, CUDA_ERROR_NOT_READY},
    {WEIR_ENTRY_cuCheckpointProcessCheckpoint, CUDA_ERROR_NOT_SUPPORTED},
};

TEST(what_fails_before_the_memory_has_moved_is_undone) {
    pid_t pid = begin_victim();
    struct weir_gate gate;

    ck_assert_int_eq(weir__gate_find(&gate, pid, weir__process_start(pid)), 0);
    weir__model_fail(failures[_i].entry, 1, failures[_i].result, 0);
    ck_assert(!park(&gate, pid));
    ck_assert(works_on());
    weir__gate_unmap(&gate);
    end_victim(pid);
}

TEST(what_cannot_be_undone_has_to_be_woken) {
    pid_t pid = begin_victim();
    struct weir_gate gate;
    struct move move;

    ck_assert_int_eq(weir__gate_find(&gate, pid, weir__process_start(pid)), 0);
    ck_assert(weir__gate_close(&gate, 1000));
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessCheckpoint, 1, CUDA_ERROR_NOT_SUPPORTED, 0);
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessUnlock, 1, CUDA_ERROR_UNKNOWN, 0);
    move = move_of(pid, &gate);
    ck_assert_int_eq(move_out(&move), NOT_MOVED);
    ck_assert(move.is_stuck);
    ck_assert_msg(move_back(&move) == MOVED, "%s", move.why);
    ck_assert(works_on());
    weir__gate_unmap(&gate);
    end_victim(pid);
}

static void *lack_memory(void *unused) {
    ck_assert(weir__gate_enter());
    weir__gate_pause(MIB, 50);
    weir__gate_leave();
    return unused;
}

TEST(a_thread_that_lacks_memory_wakes_the_process_if_another_got_some) {
    struct weir_gate gate;
    pthread_t thread;

    ck_assert(weir__gate_enter());
    weir__gate_leave();
    ck_assert_int_eq(weir__gate_find(&gate, getpid(), weir__process_start(getpid())), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, lack_memory, NULL), 0);
    while (atomic_load(&gate.page->aside) == 0)
        nap_us(100);
    ck_assert(weir__gate_close(&gate, 1000));
    weir__gate_set_away(&gate, 1);
    weir__gate_pause(0, 0);
    for (int i = 0; i < TRIES && atomic_load(&gate.page->waiting) == 0; i++)
        nap_us(500);
    ck_assert_uint_eq(atomic_load(&gate.page->waiting), 1);
    weir__gate_open(&gate);
    pthread_join(thread, NULL);
    weir__gate_unmap(&gate);
}

static int rounds(void) {
    const char *text = getenv("WEIR_TEST_ROUNDS");

    return text ? atoi(text) : 50;
}

TEST(whatever_a_killed_keeper_leaves_can_be_woken) {
    unsigned seed = (unsigned)weir__clock_ns();
    pid_t pid = begin_victim();
    struct move move = move_of(pid, NULL);
    int mended = 0;

    printf("# seed %u\n", seed);
    for (int done = 0; done < rounds(); done++) {
        enum moved moved;

        disturb(pid, &seed);
        moved = move_back(&move);
        ck_assert_msg(moved == MOVED || strcmp(move.why, "it is not parked") == 0, "%s", move.why);
        mended += moved == MOVED;
        ck_assert_msg(works_on(), "round %d", done);
    }
    printf("# %d keepers were killed, which had parked %llu times, and left the victim parked %d "
           "times\n",
           rounds(), atomic_load(&shared->moves), mended);
    end_victim(pid);
}

int main(void) {
    Suite *suite = suite_create("idle");
    TCase *moves = suite_add_case(suite, "moves", 60, set_up, tear_down),
          *many = suite_add_case(suite, "many", 120 + rounds(), set_up, tear_down);

    ADD_TESTS(moves, who_is_parked_at_its_gate_is_not_stopped_and_wakes,
              who_waits_for_another_that_moves_it_can_be_interrupted,
              what_cannot_be_undone_has_to_be_woken,
              a_thread_that_lacks_memory_wakes_the_process_if_another_got_some);
    ADD_FOR_EACH(moves, (int)(sizeof failures / sizeof failures[0]),
                 what_fails_before_the_memory_has_moved_is_undone);
    ADD_TESTS(many, whatever_a_killed_keeper_leaves_can_be_woken);
    return run_suite(suite, CK_FORK);
}
