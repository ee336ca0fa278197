/* SPDX-License-Identifier: MIT */
/* test_system.c: what weir asks of the system beneath it, where that does not answer: what a process is, a thread of
 * its own, a file's name, a lock between processes. */
#include <sched.h>
#include <sys/time.h>

#include "tests/fixtures/deny.h"
#include "base/log.h"
#include "ipc/turn_lock.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/support.h"
#include "base/runfile.h"
#include "base/thread.h"
#include "base/who.h"

static void set_up(void) {
    make_folder("/tmp");
}

static void tear_down(void) {
    remove_folder();
}

/* ---- processes ------------------------------------------------------------------------------- */

#ifdef CAN_DENY
CASE("processes", 30, set_up, tear_down);

TEST(a_process_that_cannot_be_asked) {
    static const int with[] = {EACCES, EMFILE, ENOENT, ESRCH};
    uint64_t is = weir__process_start(getpid());

    MUST(is != 0 && is != UINT64_MAX);
    for (int i = 0; i < 4; i++) { /* /proc may be missing */
        deny(NULL, 1, 1, with[i]);
        ANSWERS(UINT64_MAX, weir__process_start(getpid()));
        MUST_LE(1, deny_none());
    }
    for (int i = 0; i < 4; i++) { /* it may end between the two */
        deny("read", 1, 0, with[i]);
        ANSWERS(with[i] == ESRCH ? 0 : UINT64_MAX, weir__process_start(getpid()));
        MUST_EQ(deny_none(), 1);
    }
    ANSWERS(is, weir__process_start(getpid()));
}

TEST(a_process_that_is_stopped) {
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

/* 4,000 for the start, as the kernel writes it. */
#define ALL_FIELDS(flags, threads)                                                                 \
    " 1 2 3 4 5 " flags " 7 8 9 10 11 12 13 14 15 16 " threads " 0 4000 7\n"
#define FIELDS(threads) ALL_FIELDS("4194304", threads)

TEST(what_is_told_of_a_process) {
    static const struct {
        const char *text;
        uint64_t start;
    } told[] = {{"7 (name) S" FIELDS("1"), 4000},
                {"7 (a) Z (b) R" FIELDS("3"), 4000},
                {"7 (name) Z" FIELDS("1"), 0},
                {"7 (name) X" FIELDS("1"), 0},
                {"7 (name) Z" FIELDS("2"), 4000}, /* the first thread alone has ended */
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

/* By a signal, or by who traces it. */
TEST(a_process_that_does_nothing) {
    static const struct {
        const char *text;
        int is;
    } told[] = {{"7 (name) T" FIELDS("1"), 1},
                {"7 (name) t" FIELDS("1"), 1},
                {"7 (T) S" FIELDS("1"), 0}, /* it sleeps */
                {"7 (name) T 1 2 3", 0}};

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        reads = told[i].text;
        reads_bytes = strlen(told[i].text);
        ANSWERS(told[i].is, weir__process_is_stopped(getpid()));
    }
}

/* Its bit is 4. */
TEST(a_process_that_is_ending) {
    static const struct {
        const char *text;
        int is;
    } told[] = {{"7 (name) R" ALL_FIELDS("4194308", "2"), 1},
                {"7 (name) Z" ALL_FIELDS("4194308", "2"), 1},
                {"7 (name) Z" ALL_FIELDS("4194308", "1"), 0}, /* it has ended */
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

TEST(a_namespace_that_cannot_be_told) {
    deny("stat", 1, 0, EACCES);
    ANSWERS(0, weir__process_namespace());
    MUST_EQ(deny_none(), 1);
    MUST(weir__process_namespace() != 0);
}

TEST(the_words_of_a_command) {
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
        weir__process_command(text, sizeof text);
        ck_assert_str_eq(text, told[i].words);
    }
    for (int i = 0; i < 2; i++) {
        deny(calls[i], 1, 0, EACCES);
        weir__process_command(text, sizeof text);
        MUST_EQ(deny_none(), 1);
        ck_assert_str_eq(text, "");
    }
}
#endif

/* ---- threads --------------------------------------------------------------------------------- */

static int begun;

static void note(void) {
    begun++;
}

static void *run(void *unused) {
    weir__thread_begin();
    return unused;
}

CASE("threads", 30, set_up, tear_down);

TEST(a_thread_is_watched) {
    pthread_t thread;

    ANSWERS(0, weir__thread_start(&thread, run, NULL));
    ANSWERS(0, pthread_join(thread, NULL));
    MUST_EQ(begun, 0);
    weir__thread_watch(note);
    ANSWERS(0, weir__thread_start(&thread, run, NULL));
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
    static atomic_int done;                           /* a thread may outlast this */
    struct sigaction on_alarm = {.sa_handler = wake}; /* no call is begun again */
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
    refuse_in = 1; /* then the caller does it */
    ANSWERS(1, weir__thread_in_time(be_done, &done, 0));
    ANSWERS(1, atomic_exchange(&done, 0));
    deny("pthread_create", 1, 0, EAGAIN);
    ANSWERS(1, weir__thread_in_time(be_done, &done, 0));
    MUST_EQ(deny_none(), 1);
    ANSWERS(1, atomic_load(&done));
#endif
}

/* ---- a file's name --------------------------------------------------------------------------- */

static int make_file(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);

    MUST(file >= 0);
    return file;
}

CASE("names", 30, set_up, tear_down);

TEST(a_file_loses_its_own_name_alone) {
    char path[64], beside[64];
    int file, other;

    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(beside, sizeof beside, "%s/beside", folder);
    file = make_file(path);
    ANSWERS(0, weir__runfile_unname(file, path));
    ANSWERS(-1, access(path, F_OK));
    ANSWERS(0, weir__runfile_unname(file, path)); /* it has none */
    other = make_file(path);
    ANSWERS(0, weir__runfile_unname(file, path));
    ANSWERS(0, access(path, F_OK));
    ANSWERS(0, symlink(path, beside));
    ANSWERS(0, weir__runfile_unname(other, beside));
    ANSWERS(0, access(beside, F_OK));
    close(file);
    close(other);
}

/* Another file system has the same numbers, as the first folders of these have. */
TEST(a_file_of_that_number_elsewhere) {
    int file = open("/proc", O_RDONLY | O_DIRECTORY);
    struct stat is, named;

    if (file < 0 || fstat(file, &is) != 0 || lstat("/sys", &named) != 0 ||
        is.st_ino != named.st_ino || is.st_dev == named.st_dev)
        return;
    ANSWERS(0, weir__runfile_unname(file, "/sys")); /* else it could not */
    close(file);
}

#ifdef CAN_DENY
/* Of what cannot be looked at nothing goes; what has gone by itself is no mistake. */
TEST(a_name_that_cannot_be_taken) {
    static const struct {
        const char *call;
        int with, answer;
    } denials_of[] = {
        {"fstat", EIO, 0}, {"lstat", EIO, 0}, {"unlink", EACCES, -1}, {"unlink", ENOENT, 0}};
    char path[64];
    int file;

    snprintf(path, sizeof path, "%s/file", folder);
    file = make_file(path);
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

/* Folders of everybody's are used, too: no other run of this suite has the name. */
static void set_up_lock(void) {
    set_up();
    snprintf(lock_name, sizeof lock_name, "system-%ld", (long)getpid());
}

static void path_in(const char *where, char path[128]) {
    snprintf(path, 128, "%s/weir-%lu-%s.lock", where, (unsigned long)geteuid(), lock_name);
}

/* Taken where it can be; then it excludes. */
static void expect_lock(const char *where) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    char path[128];

    path_in(where, path);
    (void)unlink(path);
    ANSWERS(1, weir__process_lock_try(&one, lock_name));
    ANSWERS(0, access(path, F_OK));
    ANSWERS(0, weir__process_lock_try(&other, lock_name));
    weir__process_lock_give(&one);
    ANSWERS(-1, access(path, F_OK)); /* it goes with who had it */
    ANSWERS(1, weir__process_lock_try(&other, lock_name));
    ANSWERS(0, access(path, F_OK));
    weir__process_lock_give(&other);
    ANSWERS(-1, access(path, F_OK));
}

CASE("locks", 30, set_up_lock, tear_down);

/* Who has it never meets another who does. */
TEST(many_take_it_in_turn) {
    char path[128], turn[160];
    pid_t pid[3];
    int status;

    path_in(folder, path);
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
            weir__process_lock_give(&own);
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

/* By who clears a folder away: who has it then does not remove the next one's. */
TEST(a_lock_that_was_swept) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE,
                             third = WEIR_PROCESS_LOCK_NONE;
    char path[128];

    path_in(folder, path);
    ANSWERS(1, weir__process_lock_try(&one, lock_name));
    ANSWERS(0, unlink(path));
    ANSWERS(1, weir__process_lock_try(&other, lock_name));
    weir__process_lock_give(&one);
    ANSWERS(0, weir__process_lock_try(&third, lock_name));
    weir__process_lock_give(&third);
    weir__process_lock_give(&other);
    ANSWERS(-1, access(path, F_OK));
}

TEST(folders_that_will_not_do) {
    struct weir_process_lock none = WEIR_PROCESS_LOCK_NONE;
    char *longest = malloc(5001);

    memset(longest, 'x', 5000);
    longest[0] = '/';
    longest[5000] = '\0';
    expect_lock(folder);
    MUST(setenv("WEIR_RUN_FOLDER", longest, 1) == 0); /* no other in its place */
    ANSWERS(-1, weir__process_lock_try(&none, lock_name));
    ANSWERS(ENAMETOOLONG, errno);
    MUST(setenv("WEIR_RUN_FOLDER", folder + 1, 1) == 0); /* from where the process is */
    expect_lock("/dev/shm");
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    expect_lock("/dev/shm");
    free(longest);
}

/* A process of a login session and one of a service. */
TEST_EACH(2, the_same_lock_whatever_the_environment) {
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
    weir__process_lock_give(&one);
    ANSWERS(0, status);
}

TEST(a_file_of_another_user) {
    char path[128];

    path_in("/dev/shm", path);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    if (chown(path, 65534, 65534) != 0) { /* it takes root */
        ANSWERS(0, unlink(path));
        return;
    }
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    for (int i = 0; i < 2; i++) {
        struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;

        ANSWERS(1, weir__process_lock_try(&own, lock_name));
        weir__process_lock_give(&own);
    }
    expect_lock("/tmp");
    ANSWERS(0, access(path, F_OK)); /* another did */
    ANSWERS(0, unlink(path));
}

#ifdef CAN_DENY
/* Where the system refuses, there is no lock, and why is told; the next one is had. */
TEST(a_lock_with_each_call_denied) {
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
            weir__process_lock_give(&own);
            ANSWERS(files, files_open());
            ANSWERS(1, weir__process_lock_try(&own, lock_name));
            weir__process_lock_give(&own);
        }
    deny("flock", 1, 0, EINTR); /* it is tried again, by who waits */
    {
        struct weir_process_lock own = WEIR_PROCESS_LOCK_NONE;

        ANSWERS(0, weir__process_lock_try(&own, lock_name));
        MUST_EQ(deny_none(), 1);
        ANSWERS(1, weir__process_lock_try(&own, lock_name));
        weir__process_lock_give(&own);
    }
}
#endif

/* ---- the log --------------------------------------------------------------------------------- */

/* What has been written there since; the end of the file is cut off again. */
static void expect_log(int file, const char *wanted) {
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

CASE("waits", 30, set_up, tear_down);

/* Of two processes on one processor each waits for the other; a thread that sleeps waits for no processor. */
TEST(waits_for_a_processor) {
    struct weir_waits waits = {0};
    uint64_t from, took, waited;
    cpu_set_t one;
    pid_t other;

    deny("open", 1, 0, ENOENT);
    waited = weir__thread_waits_in(&waits, 1000000);
    MUST_EQ(deny_none(), 1);
    MUST_EQ(waited, 0); /* the kernel does not tell */
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
    MUST_EQ(waited, 0); /* too short to look */
    MUST(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    (void)weir__thread_waits_in(&waits, 1000000000);
    from = clock_ns();
    usleep(50000);
    took = clock_ns() - from;
    waited = weir__thread_waits_in(&waits, took);
    MUST_BE_WITHIN(0, waited, took / 2);
}

CASE("log", 30, set_up, tear_down);

/* test_status has the lines of each level, and long ones. */
TEST(lines_of_the_log) {
    char path[64];
    int file;

    snprintf(path, sizeof path, "%s/log", folder);
    file = open(path, O_RDWR | O_CREAT, 0600);
    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO);
    weir__log(99, 99, "%s", "");
    expect_log(file, "weir: log: \n");
#ifdef CAN_DENY
    errno = 77; /* The caller's errno stays. */
    deny("write", 1, 0, EINTR);
    weir__log(99, WEIR_LOG_ERROR, "again");
    MUST(deny_none() == 1 && errno == 77);
    expect_log(file, "weir: error: again\n");
    deny("write", 1, 0, EIO);
    weir__log(99, WEIR_LOG_ERROR, "lost");
    MUST(deny_none() == 1 && errno == 77);
    expect_log(file, "");
#endif
}

SUITE("system", CK_FORK);
