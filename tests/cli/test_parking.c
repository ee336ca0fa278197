/* SPDX-License-Identifier: MIT */
/* test_parking.c: processes are parked and woken on the device model, with failures at each step and commands that are
 * killed.
 *
 * A victim is a child that works on the device all the time, asks about its stream as programs do, and looks whether
 * its memory is as it left it.  The test's process is the one that parks it.  WEIR_TEST_SECONDS: how long victims are
 * parked and woken by commands that are killed (a few seconds if not set). */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/who.h"
#include "cli/common/interrupt.h"
#include "cli/parking/moves.h"
#include "cli/parking/record.h"
#include "cli/parking/nvml.h"
#include "cli/parking/room.h"
#include "cli/parking/target.h"
#include "tests/fixtures/holder.h"
#include "tests/fixtures/model_device.h"

#define CAPACITY (1000 * MIB)
#define HELD (600 * MIB)

enum { TRIES = 3000, PATTERN = 4096, MOVE_MS = 40 };

static char folder[] = "/tmp/weir-parking-XXXXXX";

/* Seen by all processes of a test. */
static struct shared {
    atomic_ullong beats; /* the victim's rounds */
    atomic_int has_to_end, wrong;
} * shared;

static void nap_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static char *in_folder(const char *name) {
    static char path[2][128];
    static int next;
    char *at = path[next++ % 2];

    snprintf(at, sizeof path[0], "%s/%s", folder, name);
    return at;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "we");

    ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void set_up(void) {
    char text[64];

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", in_folder("device"), 1), 0);
    snprintf(text, sizeof text, "checkpoint_ms = %d\n", MOVE_MS);
    write_file(in_folder("profile"), text);
    ck_assert_int_eq(setenv("WEIR_MODEL_PROFILE", in_folder("profile"), 1), 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
}

static void tear_down(void) {
    char command[64];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

/* ---- Victims ---- */

static unsigned char content[PATTERN], found[PATTERN];

/* Another thread asks about a stream, which would end a parked process. */
static void *ask(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    while (!atomic_load(&shared->has_to_end)) {
        CU(driver->cuStreamQuery(A));
        nap_ms(1);
    }
    return NULL;
}

static void work(int ready, void *unused) {
    CUdeviceptr block, other;
    pthread_t thread;

    (void)unused;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_model(CAPACITY);
    CU(driver->cuMemAlloc(&block, HELD));
    memset(content, 0x5a, sizeof content);
    CU(driver->cuMemcpyHtoDAsync(block, content, sizeof content, A));
    CU(driver->cuStreamSynchronize(A));
    ck_assert_int_eq(pthread_create(&thread, NULL, ask, NULL), 0);
    ck_assert_int_eq(write(ready, "r", 1), 1);
    while (!atomic_load(&shared->has_to_end)) {
        CU(driver->cuMemAlloc(&other, MIB));
        CU(driver->cuMemFree(other));
        CU(driver->cuMemcpyDtoHAsync(found, block, sizeof found, A));
        CU(driver->cuStreamSynchronize(A));
        if (memcmp(found, content, sizeof found) != 0)
            atomic_store(&shared->wrong, 1);
        atomic_fetch_add(&shared->beats, 1);
        nap_ms(1);
    }
    pthread_join(thread, NULL);
    _exit(atomic_load(&shared->wrong));
}

/* Begins one; then this process has the device, too. */
static pid_t begin_victim(void) {
    pid_t pid = begin_child(work, NULL);

    start_model(CAPACITY);
    return pid;
}

static int works_on(void) {
    unsigned long long before = atomic_load(&shared->beats);

    for (int i = 0; i < TRIES && atomic_load(&shared->beats) < before + 3; i++)
        nap_ms(1);
    return atomic_load(&shared->beats) >= before + 3;
}

static int stands_still(void) {
    unsigned long long before = atomic_load(&shared->beats);

    nap_ms(30);
    return atomic_load(&shared->beats) == before;
}

static void end_victim(pid_t pid) {
    int status;

    atomic_store(&shared->has_to_end, 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the victim ended with %x",
                  (unsigned)status);
}

static struct move move_of(pid_t pid) {
    return (struct move){
        .driver = driver, .pid = pid, .start = weir__process_start(pid), .timeout_ms = 2000};
}

static CUprocessState state_of(pid_t pid) {
    CUprocessState state = 99;

    CU(driver->cuCheckpointProcessGetState(pid, &state));
    return state;
}

/* With the page that it may have for a moment. */
static void expect_runs(pid_t pid) {
    struct record record;
    size_t left;

    ck_assert(works_on());
    ck_assert_uint_eq(state_of(pid), CU_PROCESS_STATE_RUNNING);
    ck_assert(!record_find(pid, &record));
    left = device_free();
    ck_assert(left == CAPACITY - HELD || left == CAPACITY - HELD - 2 * MIB);
}

static void expect_parked(pid_t pid) {
    struct record record;

    ck_assert(stands_still());
    ck_assert(weir__process_is_stopped(pid));
    ck_assert(record_find(pid, &record));
    ck_assert_uint_eq(device_free(), CAPACITY);
}

#define EXPECT_HAS(text, words)                                                                    \
    ck_assert_msg(strstr(text, words) != NULL, "'%s' has no '%s'", text, words)

#define EXPECT_MOVE(call, expected, words)                                                         \
    do {                                                                                           \
        enum moved got_ = call;                                                                    \
        ck_assert_msg(got_ == (expected), "%d: %s", got_, move.why);                               \
        EXPECT_HAS(move.why, words);                                                               \
    } while (0)

/* ---- All goes well ---- */

CASE("moves", 60, set_up, tear_down);

TEST(what_is_parked_has_no_device_memory_and_goes_on_afterwards) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    CUdeviceptr all;

    for (int i = 0; i < 3; i++) {
        EXPECT_MOVE(move_out(&move), MOVED, "");
        expect_parked(pid);
        CU(driver->cuMemAlloc(&all, CAPACITY));
        CU(driver->cuMemFree(all));
        EXPECT_MOVE(move_back(&move), MOVED, "");
        expect_runs(pid);
    }
    end_victim(pid);
}

TEST(what_is_parked_or_locked_is_not_parked_again) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);

    CU(driver->cuCheckpointProcessLock(pid, NULL));
    EXPECT_MOVE(move_out(&move), NOT_MOVED, "it is locked already; `weir wake");
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    EXPECT_MOVE(move_back(&move), NOT_MOVED, "it is not parked");
    end_victim(pid);
}

TEST(who_is_stopped_by_others_is_left_alone) {
    pid_t pid = begin_victim();
    struct target target = {.pid = pid, .start = weir__process_start(pid)};
    struct move move = move_of(pid);
    char why[TARGET_WHY];

    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    while (!weir__process_is_stopped(pid))
        nap_ms(1);
    EXPECT_MOVE(move_back(&move), NOT_MOVED, "it is stopped, but not parked");
    ck_assert(!target_may_park(&target, 0, why));
    EXPECT_HAS(why, "it is stopped");
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    expect_runs(pid);
    end_victim(pid);
}

/* ---- A step fails ---- */

static const struct {
    enum weir_driver_entry entry;
    CUresult result;
    const char *words;
} failures[] = {
    {WEIR_ENTRY_cuCheckpointProcessGetState, CUDA_ERROR_NOT_INITIALIZED, "it does not use CUDA"},
    {WEIR_ENTRY_cuCheckpointProcessGetState, CUDA_ERROR_UNKNOWN, "GetState failed with 999"},
    {WEIR_ENTRY_cuCheckpointProcessGetRestoreThreadId, CUDA_ERROR_UNKNOWN, "ThreadId failed"},
    {WEIR_ENTRY_cuCheckpointProcessLock, CUDA_ERROR_UNKNOWN, "Lock failed"},
    {WEIR_ENTRY_cuCheckpointProcessLock, CUDA_ERROR_NOT_READY, "not done within 2 s; --timeout"},
    {WEIR_ENTRY_cuCheckpointProcessCheckpoint, CUDA_ERROR_UNKNOWN, "Checkpoint failed"},
    {WEIR_ENTRY_cuCheckpointProcessCheckpoint, CUDA_ERROR_NOT_SUPPORTED, "such as managed memory"},
};

TEST_EACH(ROWS(failures), what_fails_before_the_memory_has_moved_is_undone) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);

    weir__model_fail(failures[_i].entry, 1, failures[_i].result, 0);
    EXPECT_MOVE(move_out(&move), NOT_MOVED, failures[_i].words);
    expect_runs(pid);
    EXPECT_MOVE(move_out(&move), MOVED, "");
    expect_parked(pid);
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
}

TEST(what_cannot_be_unlocked_is_told_and_mended) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);

    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessCheckpoint, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessUnlock, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT_MOVE(move_out(&move), NOT_MOVED, "; it stays stopped: try `weir wake");
    ck_assert(stands_still());
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
}

TEST(what_is_not_known_to_run_stays_stopped) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    struct record record;

    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessCheckpoint, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessGetState, 2, CUDA_ERROR_UNKNOWN, 0);
    EXPECT_MOVE(move_out(&move), NOT_MOVED, "; it stays stopped: try `weir wake");
    ck_assert(stands_still());
    ck_assert(record_find(pid, &record));
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
}

static int was_recorded;

static CUresult look_and_lock(int pid, CUcheckpointLockArgs *arguments) {
    struct record record;

    was_recorded = record_find(pid, &record);
    return driver->cuCheckpointProcessLock(pid, arguments);
}

TEST(what_is_about_to_be_locked_is_listed) {
    pid_t pid = begin_victim();
    struct weir_driver watched = *driver;
    struct move move = move_of(pid);

    watched.cuCheckpointProcessLock = look_and_lock;
    move.driver = &watched;
    EXPECT_MOVE(move_out(&move), MOVED, "");
    ck_assert(was_recorded);
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
}

TEST(without_a_record_nothing_is_parked) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);

    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nowhere", 1), 0);
    EXPECT_MOVE(move_out(&move), NOT_MOVED, "no file can be made");
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    expect_runs(pid);
    end_victim(pid);
}

TEST(a_restore_that_fails_leaves_it_parked) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    CUdeviceptr block;

    EXPECT_MOVE(move_out(&move), MOVED, "");
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessRestore, 1, CUDA_ERROR_INVALID_VALUE, 0);
    EXPECT_MOVE(move_back(&move), NOT_MOVED, "Restore failed with 1 (CUDA_ERROR_INVALID_VALUE)");
    expect_parked(pid);
    CU(driver->cuMemAlloc(&block, CAPACITY - HELD + MIB));
    EXPECT_MOVE(move_back(&move), NOT_MOVED, "too little free memory");
    CU(driver->cuMemFree(block));
    expect_parked(pid);
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
}

/* ---- Signals ---- */

static void *interrupt_soon(void *ms) {
    nap_ms((long)(intptr_t)ms);
    kill(getpid(), SIGTERM);
    return NULL;
}

/* Before the move; in its middle. */
TEST_EACH(2, what_is_interrupted_is_undone) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    pthread_t thread;

    interrupt_watch();
    ck_assert_int_eq(
        pthread_create(&thread, NULL, interrupt_soon, (void *)(intptr_t)(_i * MOVE_MS / 2)), 0);
    if (_i == 0)
        pthread_join(thread, NULL);
    EXPECT_MOVE(move_out(&move), INTERRUPTED, "");
    if (_i > 0)
        pthread_join(thread, NULL);
    expect_runs(pid);
    end_victim(pid);
}

/* One that dies is not waited for. */
TEST_EACH(8, a_victim_that_is_killed_ends_the_move) {
    pid_t pid = begin_victim();
    struct move move = move_of(pid);

    if (fork() == 0) {
        nap_ms(_i * MOVE_MS / 4);
        kill(pid, SIGKILL);
        _exit(0);
    }
    while (move_out(&move) == MOVED && move_back(&move) == MOVED)
        ;
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_gt(wait(NULL), 0);
}

/* ---- Commands that are killed ---- */

static double seconds(void) {
    const char *text = getenv("WEIR_TEST_SECONDS");

    return text ? atof(text) : 4;
}

/* Another process parks and wakes the victim until it is killed, or stopped for a while first. */
static void disturb(pid_t pid, unsigned *seed) {
    pid_t command = fork();

    if (command == 0) {
        struct move move;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY}) != 0)
            _exit(1);
        move = move_of(pid);
        for (;;) {
            (void)move_back(&move);
            (void)move_out(&move);
        }
    }
    nap_ms(rand_r(seed) % (3 * MOVE_MS));
    if (rand_r(seed) % 4 == 0) {
        kill(command, SIGSTOP);
        nap_ms(rand_r(seed) % MOVE_MS);
        kill(command, SIGCONT);
        nap_ms(rand_r(seed) % MOVE_MS);
    }
    kill(command, SIGKILL);
    ck_assert_int_eq(waitpid(command, NULL, 0), command);
}

CASE("many", 60 + 2 * seconds(), set_up, tear_down);

TEST(whatever_a_killed_command_leaves_can_be_woken) {
    uint64_t end = weir__clock_ns() + (uint64_t)(seconds() * 1e9);
    unsigned seed = (unsigned)weir__clock_ns();
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    int rounds = 0;

    printf("# seed %u\n", seed);
    for (; weir__clock_ns() < end; rounds++) {
        enum moved moved;

        disturb(pid, &seed);
        moved = move_back(&move);
        ck_assert_msg(moved == MOVED || strcmp(move.why, "it is not parked") == 0, "%s", move.why);
        expect_runs(pid);
    }
    printf("# %d commands killed\n", rounds);
    end_victim(pid);
}

/* ---- What is looked for first ---- */

/* Maps files of these names. */
static void map_names(int ready, void *names) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const char *const *name = names; *name; name++) {
        int file = open(in_folder(*name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

        if (ftruncate(file, 4096) != 0 ||
            mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED)
            return;
    }
    stay_ready(ready);
}

static pid_t begin_mapped(const char *name, const char *second) {
    const char *names[] = {name, second, NULL};

    return begin_child(map_names, (void *)names);
}

static void expect_refused(pid_t pid, int is_unshared, const char *words) {
    struct target target = {.pid = pid, .start = weir__process_start(pid)};
    char why[TARGET_WHY] = "";
    int may = target_may_park(&target, is_unshared, why);

    ck_assert_msg(may == !words, "%s", why);
    if (words)
        EXPECT_HAS(why, words);
}

CASE("first", 60, set_up, tear_down);

TEST(some_processes_are_refused) {
    pid_t pid = begin_mapped("data", NULL);
    void *map;
    int file;

    expect_refused(pid, 0, "it has not loaded CUDA's driver");
    end(pid, SIGKILL);
    pid = begin_mapped("libcuda.so.1", "libnccl.so.2");
    expect_refused(pid, 0, "it has loaded NCCL");
    expect_refused(pid, 1, NULL);
    kill(pid, SIGSTOP);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    expect_refused(pid, 1, "it is stopped");
    end(pid, SIGKILL);
    pid = begin_mapped("libcuda.so.1", NULL);
    expect_refused(pid, 0, NULL);
    expect_refused(getpid(), 0, "that is this process");
    file = open(in_folder("libcudart.so.13"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(ftruncate(file, 4096), 0);
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    ck_assert(map != MAP_FAILED);
    /* this process is the one that parks, so a grandchild looks */
    if (fork() == 0) {
        char why[TARGET_WHY] = "", words[64];
        struct target target = {.pid = pid, .start = weir__process_start(pid)};

        snprintf(words, sizeof words, "process %ld uses CUDA and started it", (long)getppid());
        _exit(!target_may_park(&target, 0, why) && strstr(why, words) &&
                      target_may_park(&target, 1, why)
                  ? 0
                  : 1);
    } else {
        int status;

        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    if (geteuid() == 0 && fork() == 0) {
        char why[TARGET_WHY] = "";
        struct target target = {.pid = pid, .start = weir__process_start(pid)};

        _exit(setuid(65534) == 0 && !target_may_park(&target, 0, why) &&
                      strcmp(why, "it belongs to another user") == 0
                  ? 0
                  : 1);
    }
    if (geteuid() == 0) {
        int status;

        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    end(pid, SIGKILL);
}

TEST(a_name_finds_one_process) {
    struct target target;
    char why[TARGET_WHY];
    pid_t pid;

    ck_assert(!target_find("no-such-name-at-all", 0, &target, why));
    ck_assert_str_eq(why, "no process with CUDA has that name");
    ck_assert(!target_find("999999999", 0, &target, why));
    ck_assert_str_eq(why, "there is no such process");
    ck_assert(!target_is_name("12x") && !target_is_name("0") && !target_is_name(""));
    ck_assert(target_is_name("12") && target_is_name("x12"));
    ck_assert(!target_find("x", 1, &target, why));
    ck_assert_str_eq(why, "no parked process has that name");
    pid = begin_victim();
    {
        char number[16];

        snprintf(number, sizeof number, "%ld", (long)pid);
        ck_assert(target_find(number, 0, &target, why));
        ck_assert_int_eq(target.pid, pid);
        ck_assert_uint_eq(target.start, weir__process_start(pid));
    }
    end_victim(pid);
}

/* ---- Room ---- */

static void make_folder(const char *name) {
    ck_assert_int_eq(mkdir(in_folder(name), 0700), 0);
}

TEST(host_memory_is_what_groups_leave) {
    char proc[128], groups[128];

    make_folder("proc");
    make_folder("proc/7");
    make_folder("groups");
    make_folder("groups/a");
    make_folder("groups/a/b");
    make_folder("groups/memory");
    make_folder("groups/memory/c");
    snprintf(proc, sizeof proc, "%s", in_folder("proc"));
    snprintf(groups, sizeof groups, "%s", in_folder("groups"));
    write_file(in_folder("proc/meminfo"), "MemTotal: 900 kB\nMemAvailable:    500 kB\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 500 << 10);
    write_file(in_folder("proc/7/cgroup"), "0::/a/b\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 500 << 10);
    write_file(in_folder("groups/a/b/memory.max"), "max\n");
    write_file(in_folder("groups/a/b/memory.current"), "100\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 500 << 10);
    write_file(in_folder("groups/a/memory.max"), "4096\n");
    write_file(in_folder("groups/a/memory.current"), "3000\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 1096);
    write_file(in_folder("groups/a/memory.stat"), "anon 5\ninactive_file 300\nactive_file 4\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 1400);
    write_file(in_folder("groups/memory/memory.limit_in_bytes"), "500\n");
    write_file(in_folder("groups/memory/memory.usage_in_bytes"), "600\n");
    write_file(in_folder("proc/7/cgroup"), "3:cpu:/\n4:memory:/c\n0::/\n");
    ck_assert_uint_eq(room_of_host(proc, groups, 7), 0);
}

TEST(device_memory_is_what_is_used) {
    pid_t pid = begin_victim();
    uint64_t used;

    ck_assert_uint_eq(room_of_devices(driver), CAPACITY);
    used = room_used(driver, pid);
    ck_assert(used == HELD || used == HELD + 2 * MIB);
    end_victim(pid);
}

static uint64_t sum_used(pid_t pid) {
    struct nvml_bytes used = nvml_used(pid);

    return nvml_sum(&used);
}

/* The driver's management library, which the tests have no other of. */
static void *load_nvml(void) {
    const char *top = getenv("top_builddir");
    char path[4096];
    void *library;

    ck_assert(sum_used(getpid()) == NVML_UNKNOWN);
    snprintf(path, sizeof path, "%s/tests/fake/nvml/.libs/libnvidia-ml.so.1", top ? top : ".");
    library = dlopen(path, RTLD_NOW);
    ck_assert_msg(library != NULL, "%s", dlerror());
    return library;
}

TEST(the_management_library_knows_what_a_process_has) {
    void *library = load_nvml();
    char pid[24];

    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    setenv("WEIR_TEST_NVML", pid, 1);
    ck_assert_uint_eq(sum_used(getpid()), (uint64_t)2 << 30);
    ck_assert(sum_used(getppid()) == NVML_UNKNOWN);
    dlclose(library);
}

CASE("room", 60, set_up, tear_down);

/* The driver would fail otherwise, and is not asked. */
TEST(without_room_no_restore_is_tried) {
    void *library = load_nvml();
    pid_t pid = begin_victim();
    struct move move = move_of(pid);
    char name[24];

    snprintf(name, sizeof name, "%ld", (long)pid);
    setenv("WEIR_TEST_NVML", name, 1);
    EXPECT_MOVE(move_out(&move), MOVED, "");
    ck_assert_uint_eq(move.bytes, (uint64_t)2 << 30);
    weir__model_fail(WEIR_ENTRY_cuCheckpointProcessRestore, 1, CUDA_ERROR_INVALID_VALUE, 0);
    for (int i = 0; i < 3; i++) { /* one of its two devices is full, or almost */
        static const char *const room[] = {"1099511627776 0", "0 1099511627776",
                                           "1099511627776 1073741824"};

        setenv("WEIR_TEST_NVML_FREE", room[i], 1);
        EXPECT_MOVE(move_back(&move), NOT_MOVED, "too little free memory");
        ck_assert(move.is_full);
        expect_parked(pid);
    }
    weir__model_faults_clear();
    setenv("WEIR_TEST_NVML_FREE", "1140850688 1140850688", 1);
    EXPECT_MOVE(move_back(&move), MOVED, "");
    expect_runs(pid);
    end_victim(pid);
    dlclose(library);
}

int main(void) {
    return run_tests("parking", CK_FORK);
}
