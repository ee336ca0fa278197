/* SPDX-License-Identifier: MIT */
/* test_segment.c: what a process shows to others: whose files are read, and which of them go.
 *
 * Every test has a folder of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fixtures/deny.h"
#include "ipc/segment.h"
#include "tests/fixtures/support.h"

enum { WORDS = 500 };

struct body {
    uint64_t words[WORDS];
};

static const struct weir_segment_kind kind = {"test", 3, sizeof(struct body)};
static char folder[] = "/tmp/weir-segment-XXXXXX";
static struct weir_segment segment;
static struct body body;

static void set_up(void) {
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    memset(&segment, 0, sizeof segment);
}

static void tear_down(void) {
    char command[128];

    weir__segment_remove(&segment);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
}

static void fill(struct body *b, uint64_t with) {
    for (size_t i = 0; i < WORDS; i++)
        b->words[i] = with;
}

static void create(void) {
    ck_assert_int_eq(weir__segment_create(&segment, &kind), 0);
    fill(&body, 7);
    weir__segment_publish(&segment, &body);
    fill(&body, 0);
}

static void expect_read(enum weir_segment_fault wanted) {
    enum weir_segment_fault is = weir__segment_read(segment.path, &kind, &body);

    if (is != wanted)
        ck_abort_msg("%s, not: %s", weir__segment_fault_text(is), weir__segment_fault_text(wanted));
}

static int exists(const char *path) {
    struct stat is;

    return lstat(path, &is) == 0;
}

/* ---- the file ------------------------------------------------------------------------------------ */

TEST(test_file_is_private_and_goes) {
    struct stat is;

    umask(0);
    create();
    ck_assert_int_eq(strncmp(segment.path, folder, strlen(folder)), 0);
    ck_assert_int_eq(lstat(segment.path, &is), 0);
    ck_assert(S_ISREG(is.st_mode));
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    ck_assert_uint_eq(is.st_uid, geteuid());
    weir__segment_remove(&segment);
    ck_assert(!exists(segment.path));
    expect_read(WEIR_SEGMENT_GONE);
}

TEST(test_what_was_published_is_read) {
    ck_assert_int_eq(weir__segment_create(&segment, &kind), 0);
    expect_read(WEIR_SEGMENT_NOT_YET);
    for (uint64_t i = 1; i < 10; i++) {
        fill(&body, i);
        weir__segment_publish(&segment, &body);
        fill(&body, 0);
        expect_read(WEIR_SEGMENT_NONE);
        ck_assert_uint_eq(body.words[0], i);
        ck_assert_uint_eq(body.words[WORDS - 1], i);
    }
}

TEST(test_elsewhere_without_the_folder) {
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", "/nonexistent/folder", 1), 0);
    create();
    ck_assert_int_eq(strncmp(segment.path, folder, strlen(folder)), 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    create();
    ck_assert_int_eq(strncmp(segment.path, "/dev/shm/", 9), 0);
    expect_read(WEIR_SEGMENT_NONE);
    weir__segment_remove(&segment);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "relative", 1), 0);
    create();
    ck_assert_int_eq(strncmp(segment.path, "/dev/shm/", 9), 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0); /* that or none */
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENOENT);
}

/* A program that becomes another has pid and start of before. */
TEST(test_created_anew_in_place) {
    struct weir_segment before;

    create();
    before = segment;
    ck_assert_int_eq(weir__segment_create(&segment, &kind), 0);
    ck_assert_str_eq(before.path, segment.path);
    expect_read(WEIR_SEGMENT_NOT_YET);
    weir__segment_publish(&before, &body); /* what is in nobody's sight */
    expect_read(WEIR_SEGMENT_NOT_YET);
}

TEST(test_full_folder_is_an_error) {
    static const struct weir_segment_kind vast = {"vast", 1, (size_t)1 << 60};

    ck_assert_int_eq(weir__segment_create(&segment, &vast), -1);
    ck_assert_int_ne(errno, 0);
    ck_assert_ptr_null(segment.page);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing was left */
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

/* ---- what readers may meet ----------------------------------------------------------------------- */

TEST(test_cut_short) {
    struct stat is;

    create();
    ck_assert_int_eq(stat(segment.path, &is), 0);
    for (off_t length = is.st_size - 1; length >= 0; length -= 41) {
        ck_assert_int_eq(truncate(segment.path, length), 0);
        expect_read(WEIR_SEGMENT_SHORT);
    }
    ck_assert_int_eq(truncate(segment.path, 0), 0);
    expect_read(WEIR_SEGMENT_SHORT);
}

TEST(test_other_version) {
    static const struct weir_segment_kind newer = {"test", 4, sizeof(struct body)},
                                          larger = {"test", 3, sizeof(struct body) + 8},
                                          another = {"tests", 3, sizeof(struct body)};
    struct body more[2];

    create();
    ck_assert_int_eq(weir__segment_read(segment.path, &newer, more), WEIR_SEGMENT_OTHER_VERSION);
    ck_assert_int_eq(weir__segment_read(segment.path, &larger, more), WEIR_SEGMENT_OTHER_VERSION);
    ck_assert_int_eq(weir__segment_read(segment.path, &another, more), WEIR_SEGMENT_FOREIGN);
}

static void put(size_t at, const void *bytes, size_t count) {
    int file = open(segment.path, O_WRONLY);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, bytes, count, (off_t)at), (ssize_t)count);
    ck_assert_int_eq(close(file), 0);
}

/* Behind its magic, its kind and its version. */
TEST(test_another_head) {
    uint32_t head_bytes = 8;

    create();
    put(8 + WEIR_SEGMENT_KIND_BYTES + sizeof(uint32_t), &head_bytes, sizeof head_bytes);
    expect_read(WEIR_SEGMENT_OTHER_VERSION);
}

TEST(test_random_bytes) {
    uint64_t state = 88172645463325252u, random[16];
    struct stat is;

    create();
    ck_assert_int_eq(stat(segment.path, &is), 0);
    for (int i = 0; i < 2000; i++) {
        for (size_t w = 0; w < 16; w++)
            random[w] = next_random(&state);
        put(0, random, sizeof random);
        expect_read(WEIR_SEGMENT_FOREIGN);
    }
    /* Behind a head that is right, anything is a body, once it is not being written. */
    weir__segment_remove(&segment);
    create();
    for (int i = 0; i < 200; i++) {
        enum weir_segment_fault fault;
        uint64_t word = next_random(&state);
        size_t at = 64 + (size_t)(next_random(&state) % ((uint64_t)is.st_size - 64 - 8));

        put(at, &word, sizeof word);
        fault = weir__segment_read(segment.path, &kind, &body);
        ck_assert(fault == WEIR_SEGMENT_NONE || fault == WEIR_SEGMENT_TORN ||
                  fault == WEIR_SEGMENT_NOT_YET);
        weir__segment_publish(&segment, &body);
    }
}

TEST(test_writer_that_stopped_in_the_middle) {
    uint64_t odd = 5;

    create();
    put(64, &odd, sizeof odd); /* the sequence */
    expect_read(WEIR_SEGMENT_TORN);
    weir__segment_publish(&segment, &body);
    expect_read(WEIR_SEGMENT_NONE);
}

TEST(test_no_plain_file) {
    char target[64];

    create();
    snprintf(target, sizeof target, "%s/target", folder);
    ck_assert_int_eq(rename(segment.path, target), 0);
    ck_assert_int_eq(symlink(target, segment.path), 0);
    expect_read(WEIR_SEGMENT_NOT_PLAIN);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(mkfifo(segment.path, 0600), 0);
    expect_read(WEIR_SEGMENT_NOT_PLAIN);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(mkdir(segment.path, 0700), 0);
    expect_read(WEIR_SEGMENT_NOT_PLAIN);
    ck_assert_int_eq(rmdir(segment.path), 0);
    ck_assert_int_eq(symlink("/nonexistent", segment.path), 0);
    expect_read(WEIR_SEGMENT_NOT_PLAIN);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(rename(target, segment.path), 0);
    expect_read(WEIR_SEGMENT_NONE);
}

/* A writer does not follow what somebody has put where its file is to be, nor write into it. */
TEST(test_writer_meets_a_link) {
    char made[WEIR_SEGMENT_PATH_BYTES + 8], target[64], text[8];
    int file;

    create();
    weir__segment_remove(&segment);
    snprintf(target, sizeof target, "%s/target", folder);
    file = open(target, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(file, "theirs", 6), 6);
    snprintf(made, sizeof made, "%s.new", segment.path);
    ck_assert_int_eq(symlink(target, made), 0);
    ck_assert_int_eq(symlink(target, segment.path), 0);
    create();
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_int_eq(pread(file, text, sizeof text, 0), 6);
    ck_assert_int_eq(memcmp(text, "theirs", 6), 0);
    ck_assert_int_eq(close(file), 0);
}

TEST(test_of_another_user) {
    create();
    ck_assert_int_eq(chmod(segment.path, 0644), 0);
    expect_read(WEIR_SEGMENT_NOT_PRIVATE);
    ck_assert_int_eq(chmod(segment.path, 0620), 0);
    expect_read(WEIR_SEGMENT_NOT_PRIVATE);
    ck_assert_int_eq(chmod(segment.path, 0600), 0);
    if (geteuid() != 0) /* nobody else can give a file away */
        return;
    ck_assert_int_eq(chown(segment.path, 12345, (gid_t)-1), 0);
    expect_read(WEIR_SEGMENT_NOT_OWN);
    ck_assert_int_eq(chown(segment.path, 0, (gid_t)-1), 0);
    expect_read(WEIR_SEGMENT_NONE);
}

/* ---- who lives ----------------------------------------------------------------------------------- */

struct seen {
    size_t count;
    struct weir_segment_name last;
};

static void note(const struct weir_segment_name *name, void *context) {
    struct seen *seen = context;

    seen->count++;
    seen->last = *name;
}

static struct seen look(void) {
    struct seen seen = {0};

    weir__segment_each(&kind, note, &seen);
    return seen;
}

static void make_file(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(close(file), 0);
}

/* The own segment's path with another pid, start and namespace (0: its own). */
static void path_like(char *path, pid_t pid, uint64_t start, uint64_t space, const char *suffix) {
    char own[WEIR_SEGMENT_PATH_BYTES], *at;
    unsigned long uid;
    uint64_t own_space;

    strcpy(own, strrchr(segment.path, '/') + 1);
    at = strstr(own, "-test-");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(own, "weir-%lu-test-%llu-", &uid, (unsigned long long *)&own_space), 2);
    snprintf(path, WEIR_SEGMENT_PATH_BYTES, "%s/weir-%lu-test-%llu-%ld-%llu%s", folder, uid,
             (unsigned long long)(space ? space : own_space), (long)pid, (unsigned long long)start,
             suffix);
}

TEST(test_the_living_are_seen) {
    struct seen seen;

    create();
    seen = look();
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_int_eq(seen.last.pid, getpid());
    ck_assert_str_eq(seen.last.path, segment.path);
    ck_assert(weir__segment_lives(&seen.last));
    seen.last.start++;
    ck_assert(!weir__segment_lives(&seen.last));
}

/* Its pid is another process's by now: this one's. */
TEST(test_a_pid_that_was_given_away_again) {
    char path[WEIR_SEGMENT_PATH_BYTES];

    create();
    path_like(path, getpid(), 1, 0, "");
    make_file(path);
    ck_assert_uint_eq(look().count, 1);
    ck_assert(!exists(path));
    ck_assert(exists(segment.path));
}

TEST(test_what_is_not_ours_to_judge_stays) {
    char other[WEIR_SEGMENT_PATH_BYTES], made[WEIR_SEGMENT_PATH_BYTES], odd[64];
    struct seen seen;

    create();
    path_like(other, 1 << 22, 1, 17, ""); /* a container's */
    make_file(other);
    snprintf(odd, sizeof odd, "%s/weir-0-test-notes", folder);
    make_file(odd);
    seen = look();
    path_like(made, getpid(), seen.last.start, 0, ".new"); /* it is being made */
    make_file(made);
    ck_assert_uint_eq(look().count, 1);
    ck_assert(exists(other) && exists(odd) && exists(made));
    ck_assert_int_eq(unlink(made), 0);
    path_like(made, getpid(), 1, 0, ".new"); /* its maker has ended */
    make_file(made);
    ck_assert_uint_eq(look().count, 1);
    ck_assert(!exists(made));
}

/* A child with a segment, which is killed; once it is a zombie its file is nobody's. */
static pid_t kill_a_child(void) {
    int ready[2];
    char letter;
    pid_t child;

    ck_assert_int_eq(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        struct weir_segment own;

        letter = weir__segment_create(&own, &kind) == 0 ? 'y' : 'n';
        if (write(ready[1], &letter, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(read(ready[0], &letter, 1), 1);
    ck_assert_int_eq(letter, 'y');
    close(ready[0]);
    close(ready[1]);
    ck_assert_uint_eq(look().count, 1);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    return child;
}

TEST(test_the_dead_are_cleared_away_by_a_reader) {
    pid_t child = kill_a_child();

    ck_assert_uint_eq(look().count, 0);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

TEST(test_the_dead_are_cleared_away) {
    pid_t child = kill_a_child();

    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    create();
    weir__segment_each(&kind, NULL, NULL);
    weir__segment_remove(&segment);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static void *show_one(void *ready) {
    struct weir_segment own;
    char letter;

    while (weir__segment_create(&own, &kind) != 0) /* the first thread may be on its way */
        usleep(1000);
    letter = 'y';
    if (write(*(int *)ready, &letter, 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* The kernel tells of it what it tells of the dead. */
TEST(test_a_process_whose_first_thread_has_ended_lives) {
    char path[64], text[512] = "", letter;
    static int way[2]; /* the stack of the child's first thread ends with it */
    pthread_t thread;
    int file;
    pid_t child;

    ck_assert_int_eq(pipe(way), 0);
    child = fork();
    if (child == 0) {
        if (pthread_create(&thread, NULL, show_one, &way[1]) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(read(way[0], &letter, 1), 1);
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)child);
    while (!strstr(text, ") Z ")) {
        file = open(path, O_RDONLY);
        ck_assert_int_ge(file, 0);
        ck_assert_int_gt(read(file, text, sizeof text - 1), 0);
        close(file);
    }
    ck_assert_uint_eq(look().count, 1);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    ck_assert_uint_eq(look().count, 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(way[0]);
    close(way[1]);
}

TEST(test_a_child_of_fork_leaves_it_alone) {
    pid_t child;
    int status;

    create();
    child = fork();
    if (child == 0) {
        weir__segment_remove(&segment);
        _exit(7);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 7);
    expect_read(WEIR_SEGMENT_NONE);
}

/* ---- between threads ----------------------------------------------------------------------------- */

static atomic_int is_over;

static void *publish_on(void *unused) {
    static struct body mine;

    for (uint64_t i = 1; !atomic_load(&is_over); i++) {
        fill(&mine, i);
        weir__segment_publish(&segment, &mine);
    }
    return unused;
}

TEST(test_a_body_is_of_one_time) {
    uint64_t last = 0, whole = 0;
    pthread_t writer;

    create();
    atomic_store(&is_over, 0);
    ck_assert_int_eq(pthread_create(&writer, NULL, publish_on, NULL), 0);
    for (int i = 0; i < 1000; i++) {
        enum weir_segment_fault fault = weir__segment_read(segment.path, &kind, &body);

        if (fault == WEIR_SEGMENT_TORN)
            continue;
        MUST_EQ(fault, WEIR_SEGMENT_NONE);
        whole++;
        for (size_t w = 1; w < WORDS; w++)
            MUST_EQ(body.words[w], body.words[0]);
        MUST(body.words[0] >= last || last == 7);
        last = body.words[0];
    }
    atomic_store(&is_over, 1);
    pthread_join(writer, NULL);
    ck_assert_uint_gt(whole, 0);
}

static void set_watched(int64_t from_now) {
    struct timespec now;
    uint64_t when;

    clock_gettime(CLOCK_MONOTONIC, &now);
    when = (uint64_t)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec + from_now);
    put(128, &when, sizeof when);
}

TEST(test_watched_for_a_while) {
    create();
    ck_assert(!weir__segment_is_watched(&segment));
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert(weir__segment_is_watched(&segment));
    set_watched(-(int64_t)WEIR_SEGMENT_WATCHED_NS - 1000000);
    ck_assert(!weir__segment_is_watched(&segment));
    set_watched(-(int64_t)WEIR_SEGMENT_WATCHED_NS / 2);
    ck_assert(weir__segment_is_watched(&segment));
    set_watched((int64_t)1 << 60); /* nobody's clock */
    ck_assert(!weir__segment_is_watched(&segment));
}

static atomic_int woken;

static void *sleep_until_watched(void *unused) {
    while (!weir__segment_is_watched(&segment)) {
        weir__segment_wait(&segment, 10);
        atomic_fetch_add(&woken, 1);
    }
    return unused;
}

TEST(test_a_reader_wakes_its_writer) {
    pthread_t writer;

    create();
    atomic_store(&woken, 0);
    ck_assert_int_eq(pthread_create(&writer, NULL, sleep_until_watched, NULL), 0);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    ck_assert_int_eq(atomic_load(&woken), 0);
    expect_read(WEIR_SEGMENT_NONE);
    pthread_join(writer, NULL);
    ck_assert_int_ge(atomic_load(&woken), 1);
    weir__segment_wait(&segment, 1); /* watched: it comes back by itself */
}

/* A signal would end it.  It does not turn round and round either. */
TEST(test_a_writer_whose_file_is_cut_short) {
    create();
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_int_eq(truncate(segment.path, 0), 0);
    ck_assert(!weir__segment_is_watched(&segment));
    weir__segment_wait(&segment, 10);
    weir__segment_publish(&segment, &body);
    ck_assert_int_eq(truncate(segment.path, 192), 0);
    weir__segment_publish(&segment, &body);
    expect_read(WEIR_SEGMENT_FOREIGN);
}

TEST(test_a_writer_whose_file_is_closed) {
    uint64_t was = 0;
    int another;

    create();
    close(segment.file.number);
    another = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    ck_assert_int_eq(another, segment.file.number);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert(weir__segment_is_watched(&segment));
    fill(&body, 8);
    weir__segment_publish(&segment, &body);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(body.words[WORDS - 1], 8);
    ck_assert_int_eq(pread(another, &was, sizeof was, 0), 0);
    weir__segment_remove(&segment);
    close(segment.file.number);
    ck_assert(!weir__segment_is_watched(&segment)); /* it is in no folder any more */
    weir__segment_wait(&segment, 10);
    weir__segment_publish(&segment, &body);
    close(another);
}

/* ---- calls that fail ----------------------------------------------------------------------------- */

TEST(test_faults_have_texts) {
    for (int fault = WEIR_SEGMENT_NONE; fault <= WEIR_SEGMENT_TORN; fault++)
        ck_assert_uint_gt(strlen(weir__segment_fault_text((enum weir_segment_fault)fault)), 0);
}

/* Names that no process's file has: they are not looked at, and stay. */
TEST(test_names_of_others) {
    static const char *const ends[] = {
        "",    "x-1",  "12",    "12x-1",    "0-1", "99999999999-1", "99999999999999999999-1", "1-",
        "1-x", "1-1x", "1-1-1", "1-1.new-", "."};
    char prefix[WEIR_SEGMENT_PATH_BYTES], path[2 * WEIR_SEGMENT_PATH_BYTES], *at;
    size_t count = sizeof ends / sizeof ends[0];

    create();
    strcpy(prefix, segment.path);
    at = strrchr(prefix, '-'); /* before the start, and the pid */
    *at = '\0';
    strrchr(prefix, '-')[1] = '\0';
    for (size_t i = 0; i <= count; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, i < count ? ends[i] : "");
        if (i == count) /* as long as a name may be */
            for (char *name = strrchr(path, '/') + 1; strlen(name) < 255;)
                strcat(path, "1");
        make_file(path);
        ck_assert_uint_eq(look().count, 1);
        ck_assert(exists(path));
        ck_assert_int_eq(unlink(path), 0);
    }
    snprintf(path, sizeof path, "%s/n", folder); /* shorter than what is behind a new one */
    make_file(path);
    ck_assert_uint_eq(look().count, 1);
}

TEST(test_folders_that_will_not_do) {
    char long_folder[WEIR_SEGMENT_PATH_BYTES];

    create();
    ck_assert_uint_eq(look().count, 1);
    snprintf(long_folder, sizeof long_folder, "%s", folder);
    while (strlen(long_folder) + 3 < sizeof long_folder)
        strcat(long_folder, "/.");
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", long_folder, 1), 0);
    ck_assert_uint_eq(look().count, 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENAMETOOLONG);
}

/* In which folder a segment of that process is seen, if it is. */
static char seen_in;
static pid_t seen_pid;

static void note_its(const struct weir_segment_name *name, void *unused) {
    (void)unused;
    if (name->pid == seen_pid)
        seen_in = name->path[1];
}

static char folder_of(pid_t pid) {
    seen_in = 0;
    seen_pid = pid;
    weir__segment_each(&kind, note_its, NULL);
    return seen_in;
}

static void await(int way) {
    char byte;

    ck_assert_int_eq(read(way, &byte, 1), 1);
}

/* A program of a login session and one of a service, or one for which /dev/shm cannot be had, see each other. */
TEST(test_seen_whatever_the_environment) {
    int ready[2], go[2], status;
    pid_t parent = getpid(), child;

    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    ck_assert_int_eq(_i == 0 ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", folder, 1),
                     0);
    create();
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(go), 0);
    child = fork();
    if (child == 0) {
        struct weir_segment own;

        if ((_i == 0 ? setenv("XDG_RUNTIME_DIR", folder, 1) : unsetenv("XDG_RUNTIME_DIR")) != 0)
            _exit(1);
#ifdef CAN_DENY
        if (_i == 2)
            deny("access", 1, 0, EACCES);
#endif
        if (weir__segment_create(&own, &kind) != 0 || write(ready[1], "", 1) != 1)
            _exit(2);
        await(go[0]);
        weir__segment_remove(&own);
        _exit(folder_of(parent) == 'd' ? 0 : 3);
    }
    await(ready[0]);
#ifdef CAN_DENY
    ck_assert_int_eq(folder_of(child), _i == 2 ? 't' : 'd');
#else
    ck_assert_int_eq(folder_of(child), 'd');
#endif
    ck_assert_int_eq(write(go[1], "", 1), 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    weir__segment_remove(&segment);
    ck_assert_int_eq(status, 0);
}

#ifdef CAN_DENY
/* Another of the program's threads closes it between two writes, and opens a file that gets its number. */
static void close_behind_the_first(const char *name) {
    static int writes;

    if (strcmp(name, "pwrite") == 0 && writes++ == 0)
        return;
    if (writes == 0)
        return;
    meanwhile = NULL;
    close(segment.file.number);
    ck_assert_int_eq(open("/tmp", O_RDWR | O_TMPFILE, 0600), segment.file.number);
}

TEST(test_a_writer_whose_file_is_closed_meanwhile) {
    int was;
    struct stat is;

    create();
    was = segment.file.number;
    fill(&body, 8);
    meanwhile = close_behind_the_first;
    weir__segment_publish(&segment, &body);
    ck_assert_ptr_null(meanwhile);
    ck_assert_int_eq(fstat(was, &is), 0);
    ck_assert_int_eq(is.st_size, 0); /* the stranger's */
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(body.words[WORDS - 1], 8);
    close(was);
}

/* With the k-th call denied, for each k, it works or says why not; nothing is left, and the next one works. */
TEST(test_each_call_of_a_writer_denied) {
    int files = files_open(), result;

    for (int for_good = 0; for_good < 2; for_good++)
        for (uint64_t k = 1, all = 1; all > 0; k++) {
            errno = 0;
            deny(NULL, k, for_good, EIO);
            result = weir__segment_create(&segment, &kind);
            all = deny_none();
            if (result == 0) {
                weir__segment_publish(&segment, &body);
                expect_read(WEIR_SEGMENT_NONE);
                weir__segment_remove(&segment);
                weir__kept_close(&segment.file);
            } else {
                ck_assert(errno == EIO || errno == ENOSYS);
                ck_assert_ptr_null(segment.page);
            }
            ck_assert_int_eq(files_open(), files);
            create();
            expect_read(WEIR_SEGMENT_NONE);
            weir__segment_remove(&segment);
            weir__kept_close(&segment.file);
            ck_assert_int_eq(rmdir(folder), 0);
            ck_assert_int_eq(mkdir(folder, 0700), 0);
        }
    deny("open", 1, 0, ENOENT); /* as if it had ended */
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENOSYS);
    (void)deny_none();
}

TEST(test_each_call_of_a_reader_denied) {
    enum weir_segment_fault is;
    int files;

    create();
    files = files_open();
    for (int for_good = 0; for_good < 2; for_good++)
        for (uint64_t k = 1, all = 1; all > 0; k++) {
            deny(NULL, k, for_good, EIO);
            is = weir__segment_read(segment.path, &kind, &body);
            all = deny_none();
            ck_assert(is == WEIR_SEGMENT_NONE || is == WEIR_SEGMENT_UNREADABLE ||
                      is == WEIR_SEGMENT_SHORT);
            ck_assert_int_eq(files_open(), files);
            expect_read(WEIR_SEGMENT_NONE);
        }
    deny("pread", 1, 0, EINTR);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(deny_none(), 1);
    deny("open", 1, 0, EIO); /* of what tells whether its process lives */
    ck_assert_uint_eq(look().count, 1);
    ck_assert_uint_eq(deny_none(), 1);
}

static int reads_of_it;

static void publish_behind_its_back(const char *call) {
    if (strcmp(call, "pread") == 0 &&
        ++reads_of_it == 3) /* the head, the sequence, and now the body */
        weir__segment_publish(&segment, &body);
}

TEST(test_published_while_it_is_read) {
    static struct body read;

    create();
    fill(&body, 8);
    meanwhile = publish_behind_its_back;
    ck_assert_int_eq(weir__segment_read(segment.path, &kind, &read), WEIR_SEGMENT_NONE);
    meanwhile = NULL;
    ck_assert_int_gt(reads_of_it, 4);
    ck_assert_uint_eq(read.words[0], 8);
    ck_assert_uint_eq(read.words[WORDS - 1], 8);
}

static void remove_it(const char *call) {
    if (strcmp(call, "lstat") != 0)
        return;
    meanwhile = NULL;
    ck_assert_int_eq(unlink(segment.path), 0);
}

/* Why a file cannot be opened is found out by its name, which may be gone by then. */
TEST(test_what_cannot_be_opened) {
    create();
    deny("open", 1, 0, EACCES);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    deny(NULL, 1, 1, EACCES);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    if (chown(segment.path, 65534, 65534) == 0) {
        deny("open", 1, 0, EACCES);
        expect_read(WEIR_SEGMENT_NOT_OWN);
    }
    deny("open", 1, 0, EACCES);
    meanwhile = remove_it;
    expect_read(WEIR_SEGMENT_GONE);
    ck_assert_uint_eq(deny_none(), 1);
}
#endif

int main(void) {
    Suite *suite = suite_create("segment");
    TCase *tests = suite_add_case(suite, "file", 20, set_up, tear_down);

    ADD_TESTS(tests, test_file_is_private_and_goes, test_what_was_published_is_read,
              test_elsewhere_without_the_folder, test_created_anew_in_place,
              test_full_folder_is_an_error);
    tests = suite_add_case(suite, "hostile", 20, set_up, tear_down);
    ADD_TESTS(tests, test_cut_short, test_other_version, test_another_head, test_random_bytes,
              test_writer_that_stopped_in_the_middle, test_no_plain_file, test_writer_meets_a_link,
              test_of_another_user);
    tests = suite_add_case(suite, "lives", 20, set_up, tear_down);
    ADD_TESTS(tests, test_the_living_are_seen, test_a_pid_that_was_given_away_again,
              test_what_is_not_ours_to_judge_stays, test_the_dead_are_cleared_away_by_a_reader,
              test_the_dead_are_cleared_away, test_a_process_whose_first_thread_has_ended_lives,
              test_a_child_of_fork_leaves_it_alone);
    tests = suite_add_case(suite, "threads", 60, set_up, tear_down);
    ADD_TESTS(tests, test_a_body_is_of_one_time, test_watched_for_a_while,
              test_a_reader_wakes_its_writer, test_a_writer_whose_file_is_cut_short,
              test_a_writer_whose_file_is_closed);
    tests = suite_add_case(suite, "denied", 20, set_up, tear_down);
    ADD_TESTS(tests, test_faults_have_texts, test_names_of_others, test_folders_that_will_not_do);
    tcase_add_loop_test(tests, test_seen_whatever_the_environment, 0, 3);
#ifdef CAN_DENY
    ADD_TESTS(tests, test_each_call_of_a_writer_denied,
              test_a_writer_whose_file_is_closed_meanwhile, test_each_call_of_a_reader_denied,
              test_published_while_it_is_read, test_what_cannot_be_opened);
#endif
    return run_suite(suite, CK_FORK_GETENV);
}
