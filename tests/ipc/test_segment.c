/* SPDX-License-Identifier: MIT */
/* test_segment.c: which files of segments are read, and which are removed.  Each test has a separate folder. */
#include "test_segment.h"

#include "tests/fixtures/deny.h"

CASE("file", 20, set_up_segment, tear_down_segment);

TEST(test_file_is_private_and_goes) {
    struct stat is;

    umask(0);
    create_segment();
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
        fill_body(&body, i);
        weir__segment_publish(&segment, &body);
        fill_body(&body, 0);
        expect_read(WEIR_SEGMENT_NONE);
        ck_assert_uint_eq(body.words[0], i);
        ck_assert_uint_eq(body.words[WORDS - 1], i);
    }
}

TEST(test_a_segment_falls_back_to_other_folders) {
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", "/nonexistent/folder", 1), 0);
    create_segment();
    ck_assert_int_eq(strncmp(segment.path, folder, strlen(folder)), 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    create_segment();
    ck_assert_int_eq(strncmp(segment.path, "/dev/shm/", 9), 0);
    expect_read(WEIR_SEGMENT_NONE);
    weir__segment_remove(&segment);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "relative", 1), 0);
    create_segment();
    ck_assert_int_eq(strncmp(segment.path, "/dev/shm/", 9), 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0); /* no fallback */
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENOENT);
}

/* A program that calls exec keeps its pid and its start time. */
TEST(test_a_segment_is_created_again_in_place) {
    struct weir_segment before;

    create_segment();
    before = segment;
    ck_assert_int_eq(weir__segment_create(&segment, &kind), 0);
    ck_assert_str_eq(before.path, segment.path);
    expect_read(WEIR_SEGMENT_NOT_YET);
    weir__segment_publish(&before, &body); /* into the replaced file */
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

CASE("hostile", 20, set_up_segment, tear_down_segment);

TEST(test_a_segment_that_is_cut_short_is_foreign) {
    struct stat is;

    create_segment();
    ck_assert_int_eq(stat(segment.path, &is), 0);
    for (off_t length = is.st_size - 1; length >= 0; length -= 41) {
        ck_assert_int_eq(truncate(segment.path, length), 0);
        expect_read(WEIR_SEGMENT_FOREIGN);
    }
    ck_assert_int_eq(truncate(segment.path, 0), 0);
    expect_read(WEIR_SEGMENT_FOREIGN);
}

TEST(test_a_segment_of_another_version_is_refused) {
    static const struct weir_segment_kind newer = {"test", 4, sizeof(struct body)},
                                          larger = {"test", 3, sizeof(struct body) + 8},
                                          another = {"tests", 3, sizeof(struct body)};
    struct body more[2];

    create_segment();
    ck_assert_int_eq(weir__segment_read(segment.path, &newer, more), WEIR_SEGMENT_OTHER_VERSION);
    ck_assert_int_eq(weir__segment_read(segment.path, &larger, more), WEIR_SEGMENT_OTHER_VERSION);
    ck_assert_int_eq(weir__segment_read(segment.path, &another, more), WEIR_SEGMENT_FOREIGN);
}

/* Changes the size of the head, which follows its magic, its kind and its version. */
TEST(test_a_segment_with_another_head_is_refused) {
    uint32_t head_bytes = 8;

    create_segment();
    overwrite_segment(8 + WEIR_SEGMENT_KIND_BYTES + sizeof(uint32_t), &head_bytes,
                      sizeof head_bytes);
    expect_read(WEIR_SEGMENT_OTHER_VERSION);
}

TEST(test_random_bytes_in_a_segment_are_refused) {
    uint64_t state = 88172645463325252u, random[16];
    struct stat is;

    create_segment();
    ck_assert_int_eq(stat(segment.path, &is), 0);
    for (int i = 0; i < 2000; i++) {
        for (size_t w = 0; w < 16; w++)
            random[w] = next_random(&state);
        overwrite_segment(0, random, sizeof random);
        expect_read(WEIR_SEGMENT_FOREIGN);
    }
    /* If the head is valid, any bytes are a body, except while the sequence says that a write goes on. */
    weir__segment_remove(&segment);
    create_segment();
    for (int i = 0; i < 200; i++) {
        enum weir_segment_fault fault;
        uint64_t word = next_random(&state);
        size_t at = 64 + (size_t)(next_random(&state) % ((uint64_t)is.st_size - 64 - 8));

        overwrite_segment(at, &word, sizeof word);
        fault = weir__segment_read(segment.path, &kind, &body);
        ck_assert(fault == WEIR_SEGMENT_NONE || fault == WEIR_SEGMENT_TORN ||
                  fault == WEIR_SEGMENT_NOT_YET);
        weir__segment_publish(&segment, &body);
    }
}

TEST(test_a_write_that_stopped_half_way_is_torn) {
    uint64_t odd = 5;

    create_segment();
    overwrite_segment(64, &odd, sizeof odd); /* the sequence */
    expect_read(WEIR_SEGMENT_TORN);
    weir__segment_publish(&segment, &body);
    expect_read(WEIR_SEGMENT_NONE);
}

TEST(test_a_segment_must_be_a_plain_file) {
    char target[64];

    create_segment();
    snprintf(target, sizeof target, "%s/target", folder);
    ck_assert_int_eq(rename(segment.path, target), 0);
    ck_assert_int_eq(symlink(target, segment.path), 0);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(mkfifo(segment.path, 0600), 0);
    expect_read(WEIR_SEGMENT_FOREIGN);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(mkdir(segment.path, 0700), 0);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    ck_assert_int_eq(rmdir(segment.path), 0);
    ck_assert_int_eq(symlink("/nonexistent", segment.path), 0);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    ck_assert_int_eq(unlink(segment.path), 0);
    ck_assert_int_eq(rename(target, segment.path), 0);
    expect_read(WEIR_SEGMENT_NONE);
}

/* A writer neither follows nor writes to a link that has its file's name. */
TEST(test_writer_meets_a_link) {
    char target[64], text[8];
    int file;

    create_segment();
    weir__segment_remove(&segment);
    snprintf(target, sizeof target, "%s/target", folder);
    file = open(target, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(file, "theirs", 6), 6);
    ck_assert_int_eq(symlink(target, segment.path), 0);
    create_segment();
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_int_eq(pread(file, text, sizeof text, 0), 6);
    ck_assert_int_eq(memcmp(text, "theirs", 6), 0);
    ck_assert_int_eq(close(file), 0);
}

TEST(test_a_segment_that_others_can_write_is_refused) {
    create_segment();
    ck_assert_int_eq(chmod(segment.path, 0644), 0);
    expect_read(WEIR_SEGMENT_FOREIGN);
    ck_assert_int_eq(chmod(segment.path, 0620), 0);
    expect_read(WEIR_SEGMENT_FOREIGN);
    ck_assert_int_eq(chmod(segment.path, 0600), 0);
    if (geteuid() != 0) /* only root can give a file away */
        return;
    ck_assert_int_eq(chown(segment.path, 12345, (gid_t)-1), 0);
    expect_read(WEIR_SEGMENT_FOREIGN);
    ck_assert_int_eq(chown(segment.path, 0, (gid_t)-1), 0);
    expect_read(WEIR_SEGMENT_NONE);
}

CASE("denied", 20, set_up_segment, tear_down_segment);

TEST(test_faults_have_texts) {
    for (int fault = WEIR_SEGMENT_NONE; fault <= WEIR_SEGMENT_TORN; fault++)
        ck_assert_uint_gt(strlen(weir__segment_fault_text((enum weir_segment_fault)fault)), 0);
}

/* Files whose names are not those of segments are neither read nor removed. */
TEST(test_names_of_others) {
    static const char *const ends[] = {
        "",    "x-1",  "12",    "12x-1",    "0-1", "99999999999-1", "99999999999999999999-1", "1-",
        "1-x", "1-1x", "1-1-1", "1-1.new-", "."};
    char prefix[WEIR_SEGMENT_PATH_BYTES], path[2 * WEIR_SEGMENT_PATH_BYTES], *at;
    size_t count = sizeof ends / sizeof ends[0];

    create_segment();
    strcpy(prefix, segment.path);
    at = strrchr(prefix, '-'); /* cuts off the start time, then the pid */
    *at = '\0';
    strrchr(prefix, '-')[1] = '\0';
    for (size_t i = 0; i <= count; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, i < count ? ends[i] : "");
        if (i == count) /* the longest name */
            for (char *name = strrchr(path, '/') + 1; strlen(name) < 255;)
                strcat(path, "1");
        make_file(path);
        ck_assert_uint_eq(find_segments().count, 1);
        ck_assert(exists(path));
        ck_assert_int_eq(unlink(path), 0);
    }
    snprintf(path, sizeof path, "%s/n", folder); /* shorter than the suffix of a new file */
    make_file(path);
    ck_assert_uint_eq(find_segments().count, 1);
}

TEST(test_no_segment_is_made_in_unusable_folders) {
    char long_folder[WEIR_SEGMENT_PATH_BYTES];

    create_segment();
    ck_assert_uint_eq(find_segments().count, 1);
    snprintf(long_folder, sizeof long_folder, "%s", folder);
    while (strlen(long_folder) + 3 < sizeof long_folder)
        strcat(long_folder, "/.");
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", long_folder, 1), 0);
    ck_assert_uint_eq(find_segments().count, 0);
    weir__segment_remove(&segment);
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENAMETOOLONG);
}

/* The first letter of the folder in which a segment of `seen_pid` was found, or 0. */
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

/* A program of a login session and one of a service, or one for which /dev/shm is not available, see each other. */
TEST_EACH(3, test_segments_are_found_in_every_environment) {
    int ready[2], go[2], status;
    pid_t parent = getpid(), child;

    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    ck_assert_int_eq(_i == 0 ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", folder, 1),
                     0);
    create_segment();
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
/* Acts as another thread that closes the file between two writes, and opens a file that gets its number. */
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

    create_segment();
    was = segment.file.number;
    fill_body(&body, 8);
    meanwhile = close_behind_the_first;
    weir__segment_publish(&segment, &body);
    ck_assert_ptr_null(meanwhile);
    ck_assert_int_eq(fstat(was, &is), 0);
    ck_assert_int_eq(is.st_size, 0); /* the other file is unchanged */
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(body.words[WORDS - 1], 8);
    close(was);
}

/* Denies the k-th system call, for each k.  The function succeeds or gives a reason, and leaves nothing. */
TEST(test_a_writer_survives_each_denied_call) {
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
            create_segment();
            expect_read(WEIR_SEGMENT_NONE);
            weir__segment_remove(&segment);
            weir__kept_close(&segment.file);
            ck_assert_int_eq(rmdir(folder), 0);
            ck_assert_int_eq(mkdir(folder, 0700), 0);
        }
    deny("open", 1, 0, ENOENT); /* /proc shows no such process */
    ck_assert_int_eq(weir__segment_create(&segment, &kind), -1);
    ck_assert_int_eq(errno, ENOSYS);
    (void)deny_none();
}

TEST(test_a_reader_survives_each_denied_call) {
    enum weir_segment_fault is;
    int files;

    create_segment();
    files = files_open();
    for (int for_good = 0; for_good < 2; for_good++)
        for (uint64_t k = 1, all = 1; all > 0; k++) {
            deny(NULL, k, for_good, EIO);
            is = weir__segment_read(segment.path, &kind, &body);
            all = deny_none();
            ck_assert(is == WEIR_SEGMENT_NONE || is == WEIR_SEGMENT_UNREADABLE ||
                      is == WEIR_SEGMENT_FOREIGN);
            ck_assert_int_eq(files_open(), files);
            expect_read(WEIR_SEGMENT_NONE);
        }
    deny("pread", 1, 0, EINTR);
    expect_read(WEIR_SEGMENT_NONE);
    ck_assert_uint_eq(deny_none(), 1);
    deny("open", 1, 0, EIO); /* the check whether the process lives */
    ck_assert_uint_eq(find_segments().count, 1);
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

    create_segment();
    fill_body(&body, 8);
    meanwhile = publish_behind_its_back;
    ck_assert_int_eq(weir__segment_read(segment.path, &kind, &read), WEIR_SEGMENT_NONE);
    meanwhile = NULL;
    ck_assert_int_gt(reads_of_it, 4);
    ck_assert_uint_eq(read.words[0], 8);
    ck_assert_uint_eq(read.words[WORDS - 1], 8);
}

TEST(test_a_file_that_cannot_be_opened_is_unreadable) {
    create_segment();
    deny("open", 1, 0, EACCES);
    expect_read(WEIR_SEGMENT_UNREADABLE);
    deny(NULL, 1, 1, EACCES);
    expect_read(WEIR_SEGMENT_UNREADABLE);
}
#endif

SUITE("segment", CK_FORK_GETENV);
