/* SPDX-License-Identifier: MIT */
/* test_ledger_bad.c: a file that is not as it should be, and a program that closes what is not its own. */
#include "test_ledger.h"

/* ---- a file that is not as it should be ---------------------------------------------------------- */

/* Two that had the file find each other again, as soon as both have written. */
static void expect_healed(struct weir_ledger *other) {
    publish(&ledger, 5);
    publish(other, 6);
    publish(&ledger, 5);
    expect_count(2, 11);
}

TEST(test_truncated) {
    struct weir_ledger other, late;
    off_t length;

    open_ledger(&ledger);
    open_ledger(&other);
    for (length = 0; length < 200000; length = length * 3 + 100) {
        uint32_t bell = weir__ledger_bell(&ledger);

        publish(&ledger, 1);
        ck_assert_int_eq(truncate(ledger.path, length), 0);
        weir__ledger_ring(&ledger);
        weir__ledger_wait(&ledger, bell, 1);
        (void)weir__ledger_read(&ledger, 3, &entry);
        (void)weir__ledger_read(&ledger, 0, &entry);
        expect_healed(&other);
    }
    ck_assert_int_eq(truncate(ledger.path, 10), 0);
    open_ledger(&late);
    expect_healed(&late);
}

TEST(test_another_version) {
    struct weir_ledger other;
    uint32_t version = WEIR_LEDGER_VERSION + 1;

    open_ledger(&ledger);
    publish(&ledger, 1);
    write_over(ledger.path, 8, &version, sizeof version);
    open_ledger(&other);
    publish(&other, 6);
    ck_assert(weir__ledger_read(&other, weir__ledger_slot(&other), &entry));
    expect_healed(&other);
}

TEST(test_random_bytes) {
    static unsigned char noise[300000];
    struct weir_ledger other;
    uint64_t reserve;
    struct stat is;

    open_ledger(&ledger);
    open_ledger(&other);
    ck_assert_int_eq(stat(ledger.path, &is), 0);
    for (unsigned seed = 1; seed <= 8; seed++) {
        srand(seed);
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (unsigned char)rand();
        publish(&ledger, 1);
        publish(&other, 2);
        /* everything, or all but the head: the size is right */
        if (seed % 2)
            write_over(ledger.path, 0, noise, (size_t)is.st_size);
        else
            write_over(ledger.path, 64, noise, (size_t)is.st_size - 64);
        ck_assert_int_eq(count(&reserve), 0);
        expect_healed(&other);
    }
    write_over(ledger.path, 0, noise, sizeof noise); /* longer */
    expect_healed(&other);
}

TEST(test_removed) {
    struct weir_ledger other, late;

    open_ledger(&ledger);
    open_ledger(&other);
    ck_assert_int_eq(unlink(ledger.path), 0);
    open_ledger(&late);
    publish(&ledger, 5);
    publish(&other, 6);
    publish(&late, 100);
    expect_count(3, 111);
    ck_assert_int_eq(files_in_folder(), 1);
}

TEST(test_links_are_not_followed) {
    char target[64], path[WEIR_LEDGER_PATH];
    struct stat is;
    int file;

    open_ledger(&ledger);
    snprintf(path, sizeof path, "%s", ledger.path);
    weir__ledger_close(&ledger);
    snprintf(target, sizeof target, "%s/precious", folder);
    file = open(target, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_eq(ftruncate(file, 200000), 0);
    close(file);
    ck_assert_int_eq(symlink(target, path), 0);
    open_ledger(&ledger);
    publish(&ledger, 5);
    expect_count(1, 5);
    ck_assert_int_eq(lstat(path, &is), 0);
    ck_assert(S_ISREG(is.st_mode));
    ck_assert_int_eq(stat(target, &is), 0);
    ck_assert_int_eq(is.st_size, 200000);
    ck_assert_int_eq(is.st_blocks, 0); /* nobody wrote */
}

TEST(test_no_plain_file) {
    char path[WEIR_LEDGER_PATH];

    open_ledger(&ledger);
    snprintf(path, sizeof path, "%s", ledger.path);
    weir__ledger_close(&ledger);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mknod(path, (i == 0 ? S_IFIFO : S_IFSOCK) | 0600, 0), 0);
        open_ledger(&ledger); /* instead of it */
        weir__ledger_close(&ledger);
    }
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(weir__ledger_open(&ledger, DEVICE), -1);
    ck_assert_int_ne(errno, 0);
}

TEST(test_others_may_open_it) {
    struct stat is;
    struct weir_ledger other;

    open_ledger(&ledger);
    ck_assert_int_eq(chmod(ledger.path, 0666), 0);
    open_ledger(&other);
    ck_assert_int_eq(stat(other.path, &is), 0);
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    expect_healed(&other);
}

/* In one's own folder it is replaced; where one may not remove it there is no ledger. */
TEST(test_of_another_user) {
    struct weir_ledger other;
    pid_t pid;
    int status;

    if (geteuid() != 0)
        return; /* only root can give a file away */
    open_ledger(&ledger);
    publish(&ledger, 1);
    ck_assert_int_eq(chown(ledger.path, 65534, 65534), 0);
    open_ledger(&other);
    expect_healed(&other);
    /* the other way round: nobody finds root's, in a folder like /tmp */
    ck_assert_int_eq(chmod(folder, 01777), 0);
    pid = fork();
    if (pid == 0) {
        struct weir_ledger own;
        char path[WEIR_LEDGER_PATH];
        int file;

        snprintf(path, sizeof path, "%s/weir-65534-ledger%d-" DEVICE, folder, WEIR_LEDGER_VERSION);
        file = open(path, O_CREAT | O_WRONLY, 0666);
        if (file < 0 || setuid(65534) != 0)
            _exit(2);
        _exit(weir__ledger_open(&own, DEVICE) == -1 && errno == EPERM ? 0 : 3);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

TEST(test_no_folder) {
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    ck_assert_int_eq(weir__ledger_open(&ledger, DEVICE), -1);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), -1);
}

/* ---- a program that closes what is not its own --------------------------------------------------- */

/* Others find its slot taken. */
static void expect_held(struct weir_ledger *l) {
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = 4096 + weir__ledger_slot(l) * 512,
                         .l_len = 1};
    int file = open(l->path, O_RDWR | O_CLOEXEC);

    ck_assert_int_eq(fcntl(file, F_OFD_GETLK, &lock), 0);
    ck_assert_int_ne(lock.l_type, F_UNLCK);
    close(file);
}

/* Whatever has the number since is left alone, and the slot stays taken until there is another. */
TEST(test_a_number_that_was_lost) {
    struct weir_ledger other;
    int number, is_own = _i % 2, leaves = _i / 2;

    open_ledger(&other);
    open_ledger(&ledger);
    publish(&other, 3);
    publish(&ledger, 5);
    number = other.file.number;
    if (is_own)
        ck_assert(own_file_put(number));
    else
        close(number);
    expect_count(2, 8);
    if (leaves) {
        weir__ledger_leave(&other);
        expect_count(1, 5);
    } else {
        for (uint64_t i = 0; i < 3; i++) {
            publish(&other, 10 + i);
            expect_count(2, 15 + i);
        }
        ck_assert(weir__ledger_read(&other, weir__ledger_slot(&other), &entry));
    }
    ck_assert(!is_own || own_file_is_whole(number));
    weir__ledger_close(&other);
    expect_count(1, 5);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* Between two looks at the file, too. */
TEST(test_a_number_that_was_lost_just_now) {
    int number;

    open_ledger(&ledger);
    publish(&ledger, 5);
    number = ledger.file.number;
    ck_assert(own_file_put(number));
    ledger.looked_ns = UINT64_MAX / 2; /* it need not look for long */
    for (uint64_t i = 0; i < 3; i++) {
        entry = (struct weir_ledger_entry){.reserve = i, .in_use = ~i};
        weir__ledger_publish(&ledger, &entry);
    }
    ck_assert(own_file_is_whole(number));
    expect_count(1, 2);
}

/* Another allocator of the process has opened the same file, and has the number. */
TEST(test_a_number_that_another_has) {
    struct weir_ledger another;
    int number;

    open_ledger(&ledger);
    publish(&ledger, 5);
    number = ledger.file.number;
    close(number);
    open_ledger(&another);
    ck_assert_int_eq(another.file.number, number);
    publish(&another, 3);
    if (_i == 0)
        publish(&ledger, 6);
    else
        weir__ledger_leave(&ledger);
    ck_assert_int_eq(fcntl(number, F_GETFD), FD_CLOEXEC);
    expect_held(&another);
    weir__ledger_close(&another);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* ---- looking, and the bell ----------------------------------------------------------------------- */

TEST(test_who_looks_has_no_slot) {
    struct weir_ledger other;

    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), -1);
    ck_assert_int_eq(files_in_folder(), 0);
    open_ledger(&other);
    publish(&other, 8);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
    expect_count(1, 8);
    weir__ledger_close(&other);
    ck_assert_int_eq(files_in_folder(), 0);
    weir__ledger_close(&ledger);
}

TEST(test_bell_wakes_others) {
    uint32_t bell;
    uint64_t began;
    pid_t pid;
    int status;

    open_ledger(&ledger);
    bell = weir__ledger_bell(&ledger);
    pid = fork();
    if (pid == 0) {
        struct weir_ledger own;

        if (weir__ledger_open(&own, DEVICE) != 0)
            _exit(1);
        weir__ledger_wait(&own, bell, 20000);
        _exit(weir__ledger_bell(&own) == bell);
    }
    began = weir__ledger_now();
    nap(30000000);
    weir__ledger_ring(&ledger);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_lt(weir__ledger_now() - began, UINT64_C(10000000000));
    weir__ledger_wait(&ledger, bell, 20000); /* it rang before */
    ck_assert_uint_lt(weir__ledger_now() - began, UINT64_C(10000000000));
}

/* Who has left, or whose folder is gone, sleeps a little all the same, whatever the bell was. */
TEST(test_without_a_file) {
    uint64_t began;

    open_ledger(&ledger);
    weir__ledger_ring(&ledger);
    if (_i == 0) {
        weir__ledger_leave(&ledger);
    } else {
        ck_assert_int_eq(unlink(ledger.path), 0);
        ck_assert_int_eq(rmdir(folder), 0);
        publish(&ledger, 1);
    }
    ck_assert(ending() == 0);
    began = weir__ledger_now();
    weir__ledger_wait(&ledger, weir__ledger_bell(&ledger), 20000);
    ck_assert_uint_ge(weir__ledger_now() - began, UINT64_C(10000000));
    ck_assert_uint_lt(weir__ledger_now() - began, UINT64_C(10000000000));
}

TEST(test_who_has_left_stays_away) {
    open_ledger(&ledger);
    publish(&ledger, 1);
    weir__ledger_leave(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
    publish(&ledger, 1);
    expect_count(0, 0);
    ck_assert_uint_eq(weir__ledger_bell(&ledger), 0);
    ck_assert_int_eq(files_in_folder(), 0);
    weir__ledger_close(&ledger);
}

void add_ledger_bad(Suite *suite) {
    TCase *tests = suite_add_case(suite, "bad", 30, set_up, tear_down);

    ADD_TESTS(tests, test_truncated, test_another_version, test_random_bytes, test_removed,
              test_links_are_not_followed, test_no_plain_file, test_others_may_open_it,
              test_of_another_user, test_no_folder);
    tests = suite_add_case(suite, "lost", 30, set_up, tear_down);
    ADD_FOR_EACH(tests, 4, test_a_number_that_was_lost);
    ADD_TESTS(tests, test_a_number_that_was_lost_just_now);
    ADD_FOR_EACH(tests, 2, test_a_number_that_another_has);
    tests = suite_add_case(suite, "bell", 30, set_up, tear_down);
    ADD_TESTS(tests, test_who_looks_has_no_slot, test_bell_wakes_others,
              test_who_has_left_stays_away);
    ADD_FOR_EACH(tests, 2, test_without_a_file);
}
