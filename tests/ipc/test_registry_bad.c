/* SPDX-License-Identifier: MIT */
/* test_registry_bad.c: invalid files of the registry, and a program that closes weir's descriptors. */
#include "test_registry.h"

/* ---- invalid files ------------------------------------------------------------------------------- */

/* Checks that two members find each other again once both have published. */
static void expect_healed(struct weir_slot_file *other) {
    publish(&registry, 5);
    publish(other, 6);
    publish(&registry, 5);
    expect_count(2, 11);
}

CASE("bad", 30, set_up_registry, remove_folder);

TEST(test_a_truncated_registry_heals) {
    struct weir_slot_file other, late;
    off_t length;

    open_registry(&registry);
    open_registry(&other);
    for (length = 0; length < 200000; length = length * 3 + 100) {
        uint32_t bell = weir__registry_bell(&registry);

        publish(&registry, 1);
        ck_assert_int_eq(truncate(registry.path, length), 0);
        weir__registry_ring(&registry);
        weir__registry_wait(&registry, bell, 1);
        (void)weir__registry_read(&registry, 3, &entry);
        (void)weir__registry_read(&registry, 0, &entry);
        expect_healed(&other);
    }
    ck_assert_int_eq(truncate(registry.path, 10), 0);
    open_registry(&late);
    expect_healed(&late);
}

TEST(test_a_registry_of_another_version_is_replaced) {
    struct weir_slot_file other;
    uint32_t version = WEIR_REGISTRY_VERSION + 1;

    open_registry(&registry);
    publish(&registry, 1);
    write_over(registry.path, 8, &version, sizeof version);
    open_registry(&other);
    publish(&other, 6);
    ck_assert(weir__registry_read(&other, weir__registry_slot(&other), &entry));
    expect_healed(&other);
}

TEST(test_random_bytes_in_a_registry_do_no_harm) {
    static unsigned char noise[300000];
    struct weir_slot_file other;
    uint64_t reserve;
    struct stat is;

    open_registry(&registry);
    open_registry(&other);
    ck_assert_int_eq(stat(registry.path, &is), 0);
    for (unsigned seed = 1; seed <= 8; seed++) {
        srand(seed);
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (unsigned char)rand();
        publish(&registry, 1);
        publish(&other, 2);
        /* Noise over everything, or over everything but the head, so that the size is right. */
        if (seed % 2)
            write_over(registry.path, 0, noise, (size_t)is.st_size);
        else
            write_over(registry.path, 64, noise, (size_t)is.st_size - 64);
        ck_assert_int_eq(count_entries(&reserve), 0);
        expect_healed(&other);
    }
    write_over(registry.path, 0, noise, sizeof noise); /* a longer file */
    expect_healed(&other);
}

TEST(test_a_removed_registry_is_made_again) {
    struct weir_slot_file other, late;

    open_registry(&registry);
    open_registry(&other);
    ck_assert_int_eq(unlink(registry.path), 0);
    open_registry(&late);
    publish(&registry, 5);
    publish(&other, 6);
    publish(&late, 100);
    expect_count(3, 111);
    ck_assert_int_eq(files_in_folder(), 1);
}

TEST(test_links_are_not_followed) {
    char target[64], path[WEIR_SLOT_PATH];
    struct stat is;
    int file;

    open_registry(&registry);
    snprintf(path, sizeof path, "%s", registry.path);
    weir__registry_close(&registry);
    snprintf(target, sizeof target, "%s/precious", folder);
    file = open(target, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_eq(ftruncate(file, 200000), 0);
    close(file);
    ck_assert_int_eq(symlink(target, path), 0);
    open_registry(&registry);
    publish(&registry, 5);
    expect_count(1, 5);
    ck_assert_int_eq(lstat(path, &is), 0);
    ck_assert(S_ISREG(is.st_mode));
    ck_assert_int_eq(stat(target, &is), 0);
    ck_assert_int_eq(is.st_size, 200000);
    ck_assert_int_eq(is.st_blocks, 0); /* nothing was written */
}

TEST(test_what_is_no_plain_file_is_replaced) {
    char path[WEIR_SLOT_PATH];

    open_registry(&registry);
    snprintf(path, sizeof path, "%s", registry.path);
    weir__registry_close(&registry);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mknod(path, (i == 0 ? S_IFIFO : S_IFSOCK) | 0600, 0), 0);
        open_registry(&registry); /* replaces it */
        weir__registry_close(&registry);
    }
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(weir__registry_open(&registry, DEVICE), -1);
    ck_assert_int_ne(errno, 0);
}

TEST(test_others_may_open_it) {
    struct stat is;
    struct weir_slot_file other;

    open_registry(&registry);
    ck_assert_int_eq(chmod(registry.path, 0666), 0);
    open_registry(&other);
    ck_assert_int_eq(stat(other.path, &is), 0);
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    expect_healed(&other);
}

/* In the user's folder the file is replaced.  In a folder where the user may not remove it, there is no registry. */
TEST(test_a_registry_of_another_user_is_not_used) {
    struct weir_slot_file other;
    pid_t pid;
    int status;

    if (geteuid() != 0)
        return; /* only root can give a file away */
    open_registry(&registry);
    publish(&registry, 1);
    ck_assert_int_eq(chown(registry.path, 65534, 65534), 0);
    open_registry(&other);
    expect_healed(&other);
    /* The user nobody finds root's file in a folder like /tmp. */
    ck_assert_int_eq(chmod(folder, 01777), 0);
    pid = fork();
    if (pid == 0) {
        struct weir_slot_file own;
        char path[WEIR_SLOT_PATH];
        int file;

        snprintf(path, sizeof path, "%s/weir-65534-registry%d-" DEVICE, folder,
                 WEIR_REGISTRY_VERSION);
        file = open(path, O_CREAT | O_WRONLY, 0666);
        if (file < 0 || setuid(65534) != 0)
            _exit(2);
        _exit(weir__registry_open(&own, DEVICE) == -1 && errno == EPERM ? 0 : 3);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

TEST(test_no_registry_opens_without_its_folder) {
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    ck_assert_int_eq(weir__registry_open(&registry, DEVICE), -1);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), -1);
}

/* ---- a program that closes weir's descriptors ---------------------------------------------------- */

/* Checks that the slot is locked for other processes. */
static void expect_held(struct weir_slot_file *l) {
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = 4096 + weir__registry_slot(l) * 512,
                         .l_len = 1};
    int file = open(l->path, O_RDWR | O_CLOEXEC);

    ck_assert_int_eq(fcntl(file, F_OFD_GETLK, &lock), 0);
    ck_assert_int_ne(lock.l_type, F_UNLCK);
    close(file);
}

CASE("lost", 30, set_up_registry, remove_folder);

/* A file that has the lost number is left alone, and the slot stays locked until the process has another one. */
TEST_EACH(4, test_a_slot_stays_locked_after_its_descriptor_is_lost) {
    struct weir_slot_file other;
    int number, is_own = _i % 2, leaves = _i / 2;

    open_registry(&other);
    open_registry(&registry);
    publish(&other, 3);
    publish(&registry, 5);
    number = other.file.number;
    if (is_own)
        ck_assert(own_file_put(number));
    else
        close(number);
    expect_count(2, 8);
    if (leaves) {
        weir__registry_leave(&other);
        expect_count(1, 5);
    } else {
        for (uint64_t i = 0; i < 3; i++) {
            publish(&other, 10 + i);
            expect_count(2, 15 + i);
        }
        ck_assert(weir__registry_read(&other, weir__registry_slot(&other), &entry));
    }
    ck_assert(!is_own || own_file_is_whole(number));
    weir__registry_close(&other);
    expect_count(1, 5);
    close_last(&registry);
}

/* The descriptor is lost between two checks of the file. */
TEST(test_a_descriptor_lost_between_checks_does_no_harm) {
    int number;

    open_registry(&registry);
    publish(&registry, 5);
    number = registry.file.number;
    ck_assert(own_file_put(number));
    registry.checked_ns = UINT64_MAX / 2; /* so that no check is due */
    for (uint64_t i = 0; i < 3; i++) {
        entry = (struct weir_registry_entry){.reserved = i, .in_use = ~i};
        weir__registry_publish(&registry, &entry);
    }
    ck_assert(own_file_is_whole(number));
    expect_count(1, 2);
}

/* Another allocator of the process has opened the registry's file, and has the lost descriptor's number. */
TEST_EACH(2, test_a_descriptor_number_of_another_member_is_left_alone) {
    struct weir_slot_file another;
    int number;

    open_registry(&registry);
    publish(&registry, 5);
    number = registry.file.number;
    close(number);
    open_registry(&another);
    ck_assert_int_eq(another.file.number, number);
    publish(&another, 3);
    if (_i == 0)
        publish(&registry, 6);
    else
        weir__registry_leave(&registry);
    ck_assert_int_eq(fcntl(number, F_GETFD), FD_CLOEXEC);
    expect_held(&another);
    weir__registry_close(&another);
    close_last(&registry);
}

CASE("bell", 30, set_up_registry, remove_folder);

TEST(test_who_looks_has_no_slot) {
    struct weir_slot_file other;

    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), -1);
    ck_assert_int_eq(files_in_folder(), 0);
    open_registry(&other);
    publish(&other, 8);
    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
    expect_count(1, 8);
    close_last(&other);
    weir__registry_close(&registry);
}

TEST(test_bell_wakes_others) {
    uint32_t bell;
    uint64_t began;
    pid_t pid;
    int status;

    open_registry(&registry);
    bell = weir__registry_bell(&registry);
    pid = fork();
    if (pid == 0) {
        struct weir_slot_file own;

        if (weir__registry_open(&own, DEVICE) != 0)
            _exit(1);
        weir__registry_wait(&own, bell, 20000);
        _exit(weir__registry_bell(&own) == bell);
    }
    began = weir__registry_now();
    sleep_for_ns(30000000);
    weir__registry_ring(&registry);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_lt(weir__registry_now() - began, UINT64_C(10000000000));
    weir__registry_wait(&registry, bell, 20000); /* the bell rang before */
    ck_assert_uint_lt(weir__registry_now() - began, UINT64_C(10000000000));
}

/* A process that has left, or whose folder is gone, sleeps a little at each wait, whatever the bell was. */
TEST_EACH(2, test_a_wait_without_a_file_sleeps) {
    uint64_t began;

    open_registry(&registry);
    weir__registry_ring(&registry);
    if (_i == 0) {
        weir__registry_leave(&registry);
    } else {
        ck_assert_int_eq(unlink(registry.path), 0);
        ck_assert_int_eq(rmdir(folder), 0);
        publish(&registry, 1);
    }
    ck_assert(ending() == 0);
    began = weir__registry_now();
    weir__registry_wait(&registry, weir__registry_bell(&registry), 20000);
    ck_assert_uint_ge(weir__registry_now() - began, UINT64_C(10000000));
    ck_assert_uint_lt(weir__registry_now() - began, UINT64_C(10000000000));
}

TEST(test_who_has_left_stays_away) {
    open_registry(&registry);
    publish(&registry, 1);
    weir__registry_leave(&registry);
    ck_assert_int_eq(files_in_folder(), 0);
    publish(&registry, 1);
    expect_count(0, 0);
    ck_assert_uint_eq(weir__registry_bell(&registry), 0);
    ck_assert_int_eq(files_in_folder(), 0);
    weir__registry_close(&registry);
}
