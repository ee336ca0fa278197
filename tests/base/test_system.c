/* SPDX-License-Identifier: MIT */
/* test_system.c: weir's use of the operating system, also when a call fails: the state of a process, threads, names of
 * files, locks between processes, and the log. */
#include <sched.h>
#include <sys/time.h>

#include "tests/fixtures/deny.h"
#include "base/log.h"
#include "ipc/process_lock.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/support.h"
#include "base/runfile.h"
#include "base/thread.h"
#include "base/who.h"

static void make_system_folder(void) {
    make_folder("/tmp");
}

static void remove_system_folder(void) {
    remove_folder();
}

/* ---- processes ------------------------------------------------------------------------------- */

#ifdef CAN_DENY
CASE("processes", 30, make_system_folder, remove_system_folder);

TEST(a_process_that_cannot_be_asked_has_no_start) {
    static const int with[] = {EACCES, EMFILE, ENOENT, ESRCH};
    uint64_t is = weir__process_start(getpid());

    MUST(is != 0 && is != UINT64_MAX);
    for (int i = 0; i < 4; i++) { /* /proc may be missing */
        deny(NULL, 1, 1, with[i]);
        ANSWERS(UINT64_MAX, weir__process_start(getpid()));
        MUST_LE(1, deny_none());
    }
    for (int i = 0; i < 4; i++) { /* the process may end between open and read */
        deny("read", 1, 0, with[i]);
        ANSWERS(with[i] == ESRCH ? 0 : UINT64_MAX, weir__process_start(getpid()));
        MUST_EQ(deny_none(), 1);
    }
    ANSWERS(is, weir__process_start(getpid()));
}

TEST(a_stopped_process_is_found) {
    pid_t pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    ANSWERS(0, weir__process_is_stopped(pid));
    ANSWERS(0, kill(pid, SIGSTOP));
    ANSWERS(pid, waitpid(pid, NULL, WUNTRACED));
    ANSWERS(1, weir__process_is_stopped(pid));
    deny("open", 1, 0, EACCES);
    ANSWERS(0, weir__process_is_stopped(pid));
    MUST_EQ(deny_none(), 1);
    ANSWERS(0, kill(pid, SIGKILL));
    ANSWERS(pid, waitpid(pid, NULL, 0));
    ANSWERS(0, weir__process_is_stopped(pid));
}

/* The start time is 4,000.  The fields are in the kernel's format. */
#define ALL_FIELDS(flags, threads)                                                                 \
    " 1 2 3 4 5 " flags " 7 8 9 10 11 12 13 14 15 16 " threads " 0 4000 7\n"
#define FIELDS(threads) ALL_FIELDS("4194304", threads)

TEST(the_start_of_a_process_is_read) {
    static const struct {
        const char *text;
        uint64_t start;
    } told[] = {{"7 (name) S" FIELDS("1"), 4000},
                {"7 (a) Z (b) R" FIELDS("3"), 4000},
                {"7 (name) Z" FIELDS("1"), 0},
                {"7 (name) X" FIELDS("1"), 0},
                {"7 (name) Z" FIELDS("2"), 4000}, /* only the first thread has ended */
                {"", UINT64_MAX},
                {"7 (name S" FIELDS("1"), UINT64_MAX},
                {"7 (name) S 1 2 3", UINT64_MAX}};

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        reads = told[i].text;
        reads_bytes = strlen(told[i].text);
        ANSWERS(told[i].start, weir__process_start(getpid()));
        MUST(reads == NULL);
    }
}

/* A process is stopped by a signal, or by its tracer. */
TEST(a_process_is_stopped_by_a_signal_or_a_tracer) {
    static const struct {
        const char *text;
        int is;
    } told[] = {{"7 (name) T" FIELDS("1"), 1},
                {"7 (name) t" FIELDS("1"), 1},
                {"7 (T) S" FIELDS("1"), 0}, /* sleeps */
                {"7 (name) T 1 2 3", 0}};

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        reads = told[i].text;
        reads_bytes = strlen(told[i].text);
        ANSWERS(told[i].is, weir__process_is_stopped(getpid()));
    }
}

/* The kernel's flag for an ending process is 4. */
TEST(an_ending_process_is_found_by_its_flag) {
    static const struct {
        const char *text;
        int is;
    } told[] = {{"7 (name) R" ALL_FIELDS("4194308", "2"), 1},
                {"7 (name) Z" ALL_FIELDS("4194308", "2"), 1},
                {"7 (name) Z" ALL_FIELDS("4194308", "1"), 0}, /* has ended */
                {"7 (name) S" ALL_FIELDS("4194304", "2"), 0},
                {"7 (name) S 1 2 3", 0}};

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        for (uint64_t began = 3999; began <= 4001; began++) {
            reads = told[i].text;
            reads_bytes = strlen(told[i].text);
            ANSWERS(told[i].is && began == 4000, weir__process_is_ending(getpid(), began));
        }
    ANSWERS(0, weir__process_is_ending(getpid(), weir__process_start(getpid())));
}

TEST(an_unknown_namespace_is_zero) {
    deny("stat", 1, 0, EACCES);
    ANSWERS(0, weir__process_namespace());
    MUST_EQ(deny_none(), 1);
    MUST(weir__process_namespace() != 0);
}

TEST(the_words_of_a_command_are_joined_by_spaces) {
    static const struct {
        const char *text;
        size_t bytes;
        const char *words;
    } told[] = {{"a\0bc\0", 5, "a bc"}, {"a\0\0\0", 4, "a"},
                {"\0\0", 2, ""},        {"", 0, ""},
                {"name", 4, "name"},    {"0123456789abcdef", 16, "0123456"}};
    static const char *const calls[] = {"open", "read"};
    char text[8];

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        reads = told[i].text;
        reads_bytes = told[i].bytes;
        weir__process_command(0, text, sizeof text);
        ck_assert_str_eq(text, told[i].words);
    }
    for (int i = 0; i < 2; i++) {
        deny(calls[i], 1, 0, EACCES);
        weir__process_command(0, text, sizeof text);
        MUST_EQ(deny_none(), 1);
        ck_assert_str_eq(text, "");
    }
}
#endif

/* ---- threads --------------------------------------------------------------------------------- */

static int begun;

static void count_begin(void) {
    begun++;
}

static void *begin_thread(void *unused) {
    weir__thread_begin();
    return unused;
}

CASE("threads", 30, make_system_folder, remove_system_folder);

TEST(a_thread_is_watched) {
    pthread_t thread;

    ANSWERS(0, weir__thread_start(&thread, begin_thread, NULL));
    ANSWERS(0, pthread_join(thread, NULL));
    MUST_EQ(begun, 0);
    weir__thread_watch(count_begin);
    ANSWERS(0, weir__thread_start(&thread, begin_thread, NULL));
    ANSWERS(0, pthread_join(thread, NULL));
    MUST_EQ(begun, 1);
}

static void be_done(void *done) {
    (void)nanosleep(&(struct timespec){0, 60 * 1000000}, NULL);
    atomic_store((atomic_int *)done, 1);
}

static void wake(int unused) {
    (void)unused;
}

TEST(work_is_waited_for_so_long) {
    static atomic_int done;                           /* a thread may outlast the test */
    struct sigaction on_alarm = {.sa_handler = wake}; /* interrupts a wait */
    struct itimerval soon = {.it_value = {0, 20000}};

    ANSWERS(0, sigaction(SIGALRM, &on_alarm, NULL));
    ANSWERS(0, setitimer(ITIMER_REAL, &soon, NULL));
    ANSWERS(1, weir__thread_in_time(be_done, &done, 10));
    ANSWERS(1, atomic_exchange(&done, 0));
    ANSWERS(0, weir__thread_in_time(be_done, &done, 0));
    for (int i = 0; i < 100 && atomic_load(&done) == 0; i++)
        (void)nanosleep(&(struct timespec){0, 10 * 1000000}, NULL);
    ANSWERS(1, atomic_exchange(&done, 0));
#ifdef CAN_DENY
    refuse_in = 1; /* without host memory the caller does the work */
    ANSWERS(1, weir__thread_in_time(be_done, &done, 0));
    ANSWERS(1, atomic_exchange(&done, 0));
    deny("pthread_create", 1, 0, EAGAIN);
    ANSWERS(1, weir__thread_in_time(be_done, &done, 0));
    MUST_EQ(deny_none(), 1);
    ANSWERS(1, atomic_load(&done));
#endif
}

/* ---- a file's name --------------------------------------------------------------------------- */

static int create_new_file(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);

    MUST(file >= 0);
    return file;
}

CASE("names", 30, make_system_folder, remove_system_folder);

TEST(a_file_loses_its_own_name_alone) {
    char path[64], beside[64];
    int file, other;

    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(beside, sizeof beside, "%s/beside", folder);
    file = create_new_file(path);
    ANSWERS(0, weir__runfile_unname(file, path));
    ANSWERS(-1, access(path, F_OK));
    ANSWERS(0, weir__runfile_unname(file, path)); /* the file has no name any more */
    other = create_new_file(path);
    ANSWERS(0, weir__runfile_unname(file, path));
    ANSWERS(0, access(path, F_OK));
    ANSWERS(0, symlink(path, beside));
    ANSWERS(0, weir__runfile_unname(other, beside));
    ANSWERS(0, access(beside, F_OK));
    close(file);
    close(other);
}

/* A file of another file system may have this file's inode number, as the top folders of /proc and /sys do. */
TEST(a_file_of_that_number_elsewhere_is_not_removed) {
    int file = open("/proc", O_RDONLY | O_DIRECTORY);
    struct stat is, named;

    if (file < 0 || fstat(file, &is) != 0 || lstat("/sys", &named) != 0 ||
        is.st_ino != named.st_ino || is.st_dev == named.st_dev)
        return;
    ANSWERS(0, weir__runfile_unname(file, "/sys")); /* removing /sys would fail */
    close(file);
}

#ifdef CAN_DENY
/* weir keeps a name whose file it cannot examine.  A name that is already gone is no error. */
TEST(a_name_stays_if_its_file_cannot_be_examined) {
    static const struct {
        const char *call;
        int with, answer;
    } denials_of[] = {
        {"fstat", EIO, 0}, {"lstat", EIO, 0}, {"unlink", EACCES, -1}, {"unlink", ENOENT, 0}};
    char path[64];
    int file;

    snprintf(path, sizeof path, "%s/file", folder);
    file = create_new_file(path);
    for (size_t i = 0; i < sizeof denials_of / sizeof denials_of[0]; i++) {
        deny(denials_of[i].call, 1, 0, denials_of[i].with);
        ANSWERS(denials_of[i].answer, weir__runfile_unname(file, path));
        ANSWERS(denials_of[i].with, errno);
        MUST_EQ(deny_none(), 1);
        ANSWERS(0, access(path, F_OK));
    }
    close(file);
}
#endif

/* ---- a lock between processes ---------------------------------------------------------------- */

static char lock_name[32];

/* The name of the lock is unique to this run of the suite, because some of the folders are shared by all programs. */
static void set_up_lock(void) {
    make_system_folder();
    snprintf(lock_name, sizeof lock_name, "system-%ld", (long)getpid());
}

static void lock_path_in(const char *where, char path[128]) {
    snprintf(path, 128, "%s/weir-%lu-%s.lock", where, (unsigned long)geteuid(), lock_name);
}

/* Expects that the lock's file is in that folder, and that the lock excludes others. */
static void expect_lock(const char *where) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    char path[128];

    lock_path_in(where, path);
    (void)unlink(path);
    ANSWERS(1, weir__process_lock_try(&one, lock_name));
    ANSWERS(0, access(path, F_OK));
    ANSWERS(0, weir__process_lock_try(&other, lock_name));
    weir__process_lock_release(&one);
    ANSWERS(-1, access(path, F_OK)); /* the owner removes the file */
    ANSWERS(1, weir__process_lock_try(&other, lock_name));
    ANSWERS(0, access(path, F_OK));
    weir__process_lock_release(&other);
    ANSWERS(-1, access(path, F_OK));
}

CASE("locks", 30, set_up_lock, remove_system_folder);

/* Two processes never hold the lock at one time. */
TEST(many_take_it_in_turn) {
    char path[128], turn[160];
    pid_t pid[3];
    int status;

    lock_path_in(folder, path);
    snprintf(turn, sizeof turn, "%s/turn", folder);
    for (int i = 0; i < 3; i++) {
        pid[i] = fork();
        for (int turns = 0; pid[i] == 0 && turns < 500;) {
            struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;

            while (weir__process_lock_try(&own, lock_name) == 0)
                sched_yield();
            turns++;
            if (close(open(turn, O_CREAT | O_EXCL | O_WRONLY, 0600)) != 0)
                _exit(1);
            sched_yield();
            if (unlink(turn) != 0)
                _exit(2);
            weir__process_lock_release(&own);
        }
        if (pid[i] == 0)
            _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        ANSWERS(pid[i], waitpid(pid[i], &status, 0));
        ANSWERS(0, status);
    }
    ANSWERS(-1, access(path, F_OK));
}

/* A cleaner removed the lock's file.  The first owner must not remove the file of the next owner. */
TEST(a_lock_file_of_the_next_owner_stays) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE,
                             third = WEIR_PROCESS_LOCK_NONE;
    char path[128];

    lock_path_in(folder, path);
    ANSWERS(1, weir__process_lock_try(&one, lock_name));
    ANSWERS(0, unlink(path));
    ANSWERS(1, weir__process_lock_try(&other, lock_name));
    weir__process_lock_release(&one);
    ANSWERS(0, weir__process_lock_try(&third, lock_name));
    weir__process_lock_release(&third);
    weir__process_lock_release(&other);
    ANSWERS(-1, access(path, F_OK));
}

TEST(unusable_folders_are_refused) {
    struct weir_process_lock none = WEIR_PROCESS_LOCK_NONE;
    char *longest = malloc(5001);

    memset(longest, 'x', 5000);
    longest[0] = '/';
    longest[5000] = '\0';
    expect_lock(folder);
    MUST(setenv("WEIR_RUN_FOLDER", longest, 1) == 0); /* weir tries no other folder */
    ANSWERS(-1, weir__process_lock_try(&none, lock_name));
    ANSWERS(ENAMETOOLONG, errno);
    MUST(setenv("WEIR_RUN_FOLDER", folder + 1, 1) == 0); /* weir ignores a relative path */
    expect_lock("/dev/shm");
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    expect_lock("/dev/shm");
    free(longest);
}

/* A process of a login session and a process of a service share the lock. */
TEST_EACH(2, one_lock_serves_every_environment) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE;
    int status;
    pid_t pid;

    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    MUST(_i == 0 ? unsetenv("XDG_RUNTIME_DIR") == 0 : setenv("XDG_RUNTIME_DIR", folder, 1) == 0);
    ANSWERS(1, weir__process_lock_try(&one, lock_name));
    pid = fork();
    if (pid == 0) {
        struct weir_process_lock other = WEIR_PROCESS_LOCK_NONE;
        int is_set = _i == 0 ? setenv("XDG_RUNTIME_DIR", folder, 1) : unsetenv("XDG_RUNTIME_DIR");

        _exit(is_set != 0 ? 10 : weir__process_lock_try(&other, lock_name));
    }
    ANSWERS(pid, waitpid(pid, &status, 0));
    weir__process_lock_release(&one);
    ANSWERS(0, status);
}

TEST(a_lock_file_of_another_user_is_not_used) {
    char path[128];

    lock_path_in("/dev/shm", path);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    if (chown(path, 65534, 65534) != 0) { /* needs root */
        ANSWERS(0, unlink(path));
        return;
    }
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    for (int i = 0; i < 2; i++) {
        struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;

        ANSWERS(1, weir__process_lock_try(&own, lock_name));
        weir__process_lock_release(&own);
    }
    expect_lock("/tmp");
    ANSWERS(0, access(path, F_OK)); /* another user's file stays */
    ANSWERS(0, unlink(path));
}

#ifdef CAN_DENY
/* If a system call fails, there is no lock, and errno has the reason.  The next attempt succeeds. */
TEST(a_lock_fails_cleanly_if_a_call_is_denied) {
    int files = files_open();

    for (int for_good = 0; for_good < 2; for_good++)
        for (uint64_t k = 1, all = 1; all > 0; k++) {
            struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;
            int got;

            errno = 0;
            deny(NULL, k, for_good, EIO);
            got = weir__process_lock_try(&own, lock_name);
            all = deny_none();
            MUST(got == 1 || (got == -1 && (errno == EIO || errno == EPERM)));
            weir__process_lock_release(&own);
            ANSWERS(files, files_open());
            ANSWERS(1, weir__process_lock_try(&own, lock_name));
            weir__process_lock_release(&own);
        }
    deny("flock", 1, 0, EINTR); /* only a caller that waits retries */
    {
        struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;

        ANSWERS(0, weir__process_lock_try(&own, lock_name));
        MUST_EQ(deny_none(), 1);
        ANSWERS(1, weir__process_lock_try(&own, lock_name));
        weir__process_lock_release(&own);
    }
}
#endif

/* ---- the log --------------------------------------------------------------------------------- */

/* Expects that text in the log, and empties the log. */
static void expect_read_log(int file, const char *wanted) {
    char text[2048];
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);

    MUST(bytes >= 0 && ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    text[bytes] = '\0';
    ck_assert_str_eq(text, wanted);
}

static uint64_t clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

CASE("waits", 30, make_system_folder, remove_system_folder);

/* Two processes on one processor wait for each other.  A thread that sleeps waits for no processor. */
TEST(only_runnable_threads_wait_for_a_processor) {
    struct weir_waits waits = {0};
    uint64_t from, took, waited;
    cpu_set_t one;
    pid_t other;

#ifdef CAN_DENY
    deny("open", 1, 0, ENOENT);
    waited = weir__thread_waits_in(&waits, 1000000);
    MUST_EQ(deny_none(), 1);
    MUST_EQ(waited, 0); /* the kernel has no figure */
#endif
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    MUST_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    other = fork();
    if (other == 0)
        for (;;)
            ;
    (void)weir__thread_waits_in(&waits, 1000000);
    from = clock_ns();
    while ((took = clock_ns() - from) < 200000000)
        ;
    waited = weir__thread_waits_in(&waits, took);
    MUST_BE_WITHIN(took / 8, waited, took);
    waited = weir__thread_waits_in(&waits, 49999);
    MUST_EQ(waited, 0); /* too short to measure */
    MUST(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    (void)weir__thread_waits_in(&waits, 1000000000);
    from = clock_ns();
    usleep(50000);
    took = clock_ns() - from;
    waited = weir__thread_waits_in(&waits, took);
    MUST_BE_WITHIN(0, waited, took / 2);
}

CASE("log", 30, make_system_folder, remove_system_folder);

/* tests/base/test_status tests lines of each level, and long lines. */
TEST(log_lines_are_written_whole_after_interrupts) {
    char path[64];
    int file;

    snprintf(path, sizeof path, "%s/log", folder);
    file = open(path, O_RDWR | O_CREAT, 0600);
    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO);
    weir__log(99, 99, "%s", "");
    expect_read_log(file, "weir: log: \n");
#ifdef CAN_DENY
    errno = 77; /* weir keeps the caller's errno */
    deny("write", 1, 0, EINTR);
    weir__log(99, WEIR_LOG_ERROR, "again");
    MUST(deny_none() == 1 && errno == 77);
    expect_read_log(file, "weir: error: again\n");
    deny("write", 1, 0, EIO);
    weir__log(99, WEIR_LOG_ERROR, "lost");
    MUST(deny_none() == 1 && errno == 77);
    expect_read_log(file, "");
#endif
}

SUITE("system", CK_FORK);
