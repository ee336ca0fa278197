/* SPDX-License-Identifier: MIT */
/* test_prealloc_processes.c: preallocation by several processes, which a lock orders.
 *
 * Each process has its own device model, so the processes share only the lock. Pipes report how far each process is. */
#include "tests/fixtures/preallocated.h"

#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>

#include "ipc/process_lock.h"
#include "tests/fixtures/own_file.h"

/* A process that holds the lock until a byte arrives in its pipe, or until it is killed. */
struct holder {
    pid_t pid;
    int tell;
};

static void lock_name(char name[WEIR_UUID_BYTES]) {
    CU(weir__driver_uuid(driver, 0, name));
}

static void release_holder(const struct holder *holder) {
    int state;

    MUST(write(holder->tell, "", 1) == 1);
    close(holder->tell);
    MUST(waitpid(holder->pid, &state, 0) == holder->pid);
}

/* The result of preallocation in a child process, which has its own device. */
struct outcome {
    weir_status status;
    uint64_t kept, waited_ns, took_ms;
    uint64_t named; /* the number of calls of cuDeviceGetUuid */
    char log[512];
};

struct child {
    pid_t pid;
    int result; /* delivers one byte at the start, and the outcome at the end */
};

static struct child start_preallocating(const weir_options *options) {
    struct child child;
    int ends[2];
    char begun;

    MUST(pipe(ends) == 0);
    child.pid = fork();
    if (child.pid == 0) {
        struct outcome o;
        alarm(60);
        memset(&o, 0, sizeof o);
        start_model(8 * GIB);
        catch_log();
        MUST(write(ends[1], "", 1) == 1);
        uint64_t from = real_ms();
        o.status = try_on(driver, options);
        o.took_ms = real_ms() - from;
        if (a) {
            o.kept = stats_of(a).prealloc_kept;
            o.waited_ns = stats_of(a).prealloc_waited_ns;
            o.named = weir__model_calls(WEIR_ENTRY_cuDeviceGetUuid);
            (void)weir_allocator_destroy(a);
        }
        (void)lines();
        snprintf(o.log, sizeof o.log, "%.*s", (int)sizeof o.log - 1, logged);
        _exit(write(ends[1], &o, sizeof o) != (ssize_t)sizeof o);
    }
    close(ends[1]);
    child.result = ends[0];
    MUST(read(child.result, &begun, 1) == 1);
    return child;
}

static int has_ended(const struct child *child, int ms) {
    return poll(&(struct pollfd){.fd = child->result, .events = POLLIN}, 1, ms) == 1;
}

static struct outcome outcome_of(const struct child *child) {
    struct outcome o;
    int state;

    MUST(read(child->result, &o, sizeof o) == (ssize_t)sizeof o);
    MUST(waitpid(child->pid, &state, 0) == child->pid);
    ck_assert_int_eq(state, 0);
    close(child->result);
    return o;
}

/* These tests open no driver in the process that forks. */
static void set_up_apart(void) {
    MUST(mkdtemp(folder) != NULL);
    folder_owner = getpid();
    MUST(setenv("WEIR_RUN_FOLDER", folder, 1) == 0);
}

/* Starts a process that holds the lock. Only the child opens the device that gives the lock its name. */
static struct holder hold_apart(void) {
    struct holder holder;
    int told[2], ready[2];
    char byte = 1;

    MUST(pipe(told) == 0);
    MUST(pipe(ready) == 0);
    holder.pid = fork();
    if (holder.pid == 0) {
        struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
        char name[WEIR_UUID_BYTES];

        alarm(60);
        close(told[1]);
        start_model(8 * GIB);
        lock_name(name);
        if (weir__process_lock_try(&lock, name) != 1 || write(ready[1], &byte, 1) != 1)
            _exit(1);
        (void)!read(told[0], &byte, 1);
        _exit(0);
    }
    close(ready[1]);
    MUST(read(ready[0], &byte, 1) == 1);
    close(told[0]);
    holder.tell = told[1];
    return holder;
}

CASE("processes", 60, set_up_apart, tear_down_preallocation);

TEST_EACH(WAYS, processes_preallocate_one_after_the_other) {
    weir_options options = prealloc_options(_i, GIB);
    struct holder holder = hold_apart();
    struct child child = start_preallocating(&options);
    ck_assert(!has_ended(&child, 200));
    release_holder(&holder);
    struct outcome o = outcome_of(&child);
    ck_assert_int_eq(o.status, WEIR_OK);
    ck_assert_uint_eq(o.kept, GIB);
    MUST_LE(200, o.took_ms + 1);
    MUST_LE(1, o.waited_ns);
    ck_assert_uint_eq(o.named, 1); /* the process tried the lock many times */
    ck_assert_str_eq(o.log, "");
}

TEST(who_dies_gives_it_up) {
    weir_options options = prealloc_options(_i, GIB);
    struct holder holder = hold_apart();
    struct child child = start_preallocating(&options);

    ck_assert(!has_ended(&child, 100));
    MUST(kill(holder.pid, SIGKILL) == 0);
    ck_assert_int_eq(outcome_of(&child).status, WEIR_OK);
    MUST(waitpid(holder.pid, NULL, 0) == holder.pid);
}

TEST_EACH(WAYS, many_processes_preallocate_their_share) {
    weir_options options = prealloc_options(_i, 0);
    struct child child[6];

    options.prealloc = (weir_amount){.value = 900000, .kind = WEIR_AMOUNT_OF_FREE};
    for (int i = 0; i < 6; i++)
        child[i] = start_preallocating(&options);
    for (int i = 0; i < 6; i++) {
        struct outcome o = outcome_of(&child[i]);

        ck_assert_int_eq(o.status, WEIR_OK);
        MUST_LE(7 * GIB, o.kept);
    }
}

static void path_in(const char *where, char path[512]) {
    snprintf(path, 512, "%s/weir-%lu-test.lock", where, (unsigned long)geteuid());
}

TEST(the_lock_excludes) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    struct stat is;
    char path[512];

    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1); /* `one` holds the lock already */
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    path_in(folder, path);
    MUST(stat(path, &is) == 0);
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    weir__process_lock_release(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_release(&other);
    weir__process_lock_release(&other);
    ck_assert_int_eq(weir__process_lock_try(&one, "other"), 1);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_release(&one);
    weir__process_lock_release(&other);
}

/* The program has closed weir's file descriptor and opened its own file there. weir does not close that file. */
TEST_EACH(2, a_file_at_a_lost_descriptor_is_not_closed) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    if (_i == 1) /* `other` waits for the lock */
        ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    int number = _i == 0 ? one.file.number : other.file.number;
    MUST(own_file_put(number));
    MUST(flock(number, LOCK_EX | LOCK_NB) == 0);
    if (_i == 1)
        ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    weir__process_lock_release(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_release(&other);
    MUST(own_file_is_whole(number));
}

TEST(a_child_of_fork_does_not_keep_it) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    weir__process_lock_release(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_release(&other);
    MUST(kill(child, SIGKILL) == 0);
    MUST(waitpid(child, NULL, 0) == child);
}

static void put_in_the_way(const char *path, const char *target, int what) {
    if (what == 0)
        MUST(symlink(target, path) == 0);
    else if (what == 1)
        MUST(mkfifo(path, 0600) == 0);
    else
        MUST(mkdir(path, 0700) == 0);
}

/* weir leaves a foreign file at the path of its lock alone, and uses another folder unless WEIR_RUN_FOLDER is set. */
TEST_EACH(3, a_link_is_not_followed_nor_a_pipe_waited_for) {
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    char path[512], target[512], made[512], name[32];
    struct stat is;

    path_in(folder, path);
    snprintf(target, sizeof target, "%s/target", folder);
    put_in_the_way(path, target, _i);
    ck_assert_int_eq(weir__process_lock_try(&lock, "test"), -1);
    ck_assert_int_eq(stat(target, &is), -1);
    MUST(lstat(path, &is) == 0);
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    snprintf(name, sizeof name, "preallocation-%ld", (long)getpid()); /* unique to this process */
    snprintf(path, sizeof path, "/dev/shm/weir-%lu-%s.lock", (unsigned long)geteuid(), name);
    put_in_the_way(path, target, _i);
    ck_assert_int_eq(weir__process_lock_try(&lock, name), 1);
    snprintf(made, sizeof made, "/tmp/weir-%lu-%s.lock", (unsigned long)geteuid(), name);
    ck_assert_str_eq(lock.path, made);
    ck_assert_int_eq(stat(target, &is), -1);
    MUST(lstat(path, &is) == 0);
    weir__process_lock_release(&lock);
    MUST(remove(path) == 0);
    ck_assert_int_eq(lstat(made, &is), -1);
}

CASE("amounts", 60, set_up_preallocation, tear_down_preallocation);

TEST(without_a_lock_it_goes_on) {
    struct rlimit before;
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = before;
    none.rlim_cur = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    make_preallocated(POOL, GIB, "");
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    expect_prealloc_log(
        "no lock against other processes (Too many open files): it goes on without");
    ck_assert_uint_eq(stats_of(a).prealloc_kept, GIB);
}

SUITE("preallocation of processes", CK_FORK);
