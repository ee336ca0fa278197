/* SPDX-License-Identifier: MIT */
/* test_segment_lives.c: files of live and of dead processes, and segments used by several threads. */
#include "test_segment.h"

/* ---- live and dead processes --------------------------------------------------------------------- */

/* Writes the path of this process's segment with another pid, start time and namespace.  0 keeps the namespace. */
static void path_like(char *path, pid_t pid, uint64_t start, uint64_t space) {
    char own[WEIR_SEGMENT_PATH_BYTES], *at;
    unsigned long uid;
    uint64_t own_space;

    strcpy(own, strrchr(segment.path, '/') + 1);
    at = strstr(own, "-test-");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(sscanf(own, "weir-%lu-test-%llu-", &uid, (unsigned long long *)&own_space), 2);
    snprintf(path, WEIR_SEGMENT_PATH_BYTES, "%s/weir-%lu-test-%llu-%ld-%llu", folder, uid,
             (unsigned long long)(space ? space : own_space), (long)pid, (unsigned long long)start);
}

CASE("lives", 20, set_up_segment, tear_down_segment);

TEST(test_the_living_are_seen) {
    struct seen seen;

    create_segment();
    seen = find_segments();
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_int_eq(seen.last.pid, getpid());
    ck_assert_str_eq(seen.last.path, segment.path);
    ck_assert(weir__process_lives(seen.last.pid, seen.last.start));
    seen.last.start++;
    ck_assert(!weir__process_lives(seen.last.pid, seen.last.start));
}

/* The pid of the dead process is this process's now. */
TEST(test_a_file_of_a_reused_pid_is_removed) {
    char path[WEIR_SEGMENT_PATH_BYTES];

    create_segment();
    path_like(path, getpid(), 1, 0);
    make_file(path);
    ck_assert_uint_eq(find_segments().count, 1);
    ck_assert(!exists(path));
    ck_assert(exists(segment.path));
}

TEST(test_what_is_not_ours_to_judge_stays) {
    char other[WEIR_SEGMENT_PATH_BYTES], odd[64];

    create_segment();
    path_like(other, 1 << 22, 1, 17); /* in a container */
    make_file(other);
    snprintf(odd, sizeof odd, "%s/weir-0-test-notes", folder);
    make_file(odd);
    ck_assert_uint_eq(find_segments().count, 1);
    ck_assert(exists(other) && exists(odd));
}

static int have_segment(uint64_t unused) {
    static struct weir_segment own;

    (void)unused;
    return weir__segment_create(&own, &kind) == 0;
}

/* Starts a child with a segment, and kills it.  A zombie counts as dead. */
static pid_t kill_a_child(void) {
    pid_t child = holder(have_segment, 0);

    ck_assert_uint_eq(find_segments().count, 1);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    return child;
}

TEST(test_the_dead_are_cleared_away_by_a_reader) {
    pid_t child = kill_a_child();

    ck_assert_uint_eq(find_segments().count, 0);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

TEST(test_the_dead_are_cleared_away) {
    pid_t child = kill_a_child();

    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    create_segment();
    weir__segment_each(&kind, NULL, NULL);
    weir__segment_remove(&segment);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
}

static void *show_one(void *ready) {
    struct weir_segment own;
    char letter;

    while (weir__segment_create(&own, &kind) != 0) /* may fail while the first thread exits */
        usleep(1000);
    letter = 'y';
    if (write(*(int *)ready, &letter, 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* The kernel reports such a process as a zombie. */
TEST(test_a_process_whose_first_thread_has_ended_lives) {
    char path[64], text[512] = "", letter;
    static int way[2]; /* static, since the first thread's stack goes with it */
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
    ck_assert_uint_eq(find_segments().count, 1);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    ck_assert_uint_eq(find_segments().count, 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(way[0]);
    close(way[1]);
}

TEST(test_a_child_of_fork_leaves_it_alone) {
    pid_t child;
    int status;

    create_segment();
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
        fill_body(&mine, i);
        weir__segment_publish(&segment, &mine);
    }
    return unused;
}

CASE("threads", 60, set_up_segment, tear_down_segment);

TEST(test_a_body_is_of_one_time) {
    uint64_t last = 0, whole = 0;
    pthread_t writer;

    create_segment();
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
    overwrite_segment(128, &when, sizeof when);
}

TEST(test_a_read_segment_is_watched_for_a_while) {
    create_segment();
    ck_assert(!weir__segment_is_watched(&segment));
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert(weir__segment_is_watched(&segment));
    set_watched(-(int64_t)WEIR_SEGMENT_WATCHED_NS - 1000000);
    ck_assert(!weir__segment_is_watched(&segment));
    set_watched(-(int64_t)WEIR_SEGMENT_WATCHED_NS / 2);
    ck_assert(weir__segment_is_watched(&segment));
    set_watched((int64_t)1 << 60); /* far in the future */
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

    create_segment();
    atomic_store(&woken, 0);
    ck_assert_int_eq(pthread_create(&writer, NULL, sleep_until_watched, NULL), 0);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    ck_assert_int_eq(atomic_load(&woken), 0);
    expect_read(WEIR_SEGMENT_NONE);
    pthread_join(writer, NULL);
    ck_assert_int_ge(atomic_load(&woken), 1);
    weir__segment_wait(&segment, 1); /* returns, since the segment is watched */
}

/* A write to the truncated file raises no signal, and a wait does not spin. */
TEST(test_a_writer_whose_file_is_cut_short) {
    create_segment();
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

    create_segment();
    close(segment.file.number);
    another = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    ck_assert_int_eq(another, segment.file.number);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert(weir__segment_is_watched(&segment));
    fill_body(&body, 8);
    weir__segment_publish(&segment, &body);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(body.words[WORDS - 1], 8);
    ck_assert_int_eq(pread(another, &was, sizeof was, 0), 0);
    weir__segment_remove(&segment);
    close(segment.file.number);
    ck_assert(!weir__segment_is_watched(&segment)); /* the file has no name any more */
    weir__segment_wait(&segment, 10);
    weir__segment_publish(&segment, &body);
    close(another);
}
