/* SPDX-License-Identifier: MIT */
/* test_registry_going.c: the last process with a slot removes the file, unless another process is ending. */
#include "test_registry.h"

/* Joins and leaves again and again.  Returns 0 if the file kept its name each time, else another value. */
static int visit_often(void) {
    for (int i = 0; i < VISITS; i++) {
        struct weir_slot_file own;

        if (weir__registry_open(&own, DEVICE) != 0)
            return 1;
        for (int looks = 0; looks < 3; looks++) {
            if (!has_its_name(&own))
                return 2;
            sleep_for_ns(50000);
        }
        weir__registry_close(&own);
        sleep_for_ns(i % 8 * 50000); /* often no process is joined */
    }
    return 0;
}

CASE("going", 60, set_up_registry, remove_folder);

/* Processes that join and leave at once are never in two files, and the last one leaves no file. */
TEST(test_they_come_and_go) {
    pid_t guests[GUESTS];
    int status;

    for (int i = 0; i < GUESTS; i++) {
        guests[i] = fork();
        if (guests[i] == 0)
            _exit(visit_often());
    }
    for (int i = 0; i < GUESTS; i++) {
        ck_assert_int_eq(waitpid(guests[i], &status, 0), guests[i]);
        ck_assert_int_eq(status, 0);
    }
    ck_assert_int_eq(files_in_folder(), 0);
}

TEST(test_two_members_may_leave_at_once) {
    for (int i = 0; i < 300; i++) {
        int ready[2], go[2], status;
        pid_t pid;
        char byte = 0;

        open_registry(&registry);
        ck_assert_int_eq(pipe(ready), 0);
        ck_assert_int_eq(pipe(go), 0);
        pid = fork();
        if (pid == 0) {
            struct weir_slot_file own;

            if (weir__registry_open(&own, DEVICE) != 0 || write(ready[1], &byte, 1) != 1 ||
                read(go[0], &byte, 1) != 1)
                _exit(1);
            weir__registry_close(&own);
            _exit(0);
        }
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(write(go[1], &byte, 1), 1);
        sleep_for_ns(i % 30 * 10000);
        weir__registry_close(&registry);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        ck_assert_int_eq(files_in_folder(), 0);
        for (int end = 0; end < 2; end++) {
            close(ready[end]);
            close(go[end]);
        }
    }
}

/* A child of fork has the open file, but no slot any more. */
TEST(test_it_goes_beside_a_child) {
    pid_t child;

    open_registry(&registry);
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    close_last(&registry);
    end_holder(child, SIGKILL);
}

TEST(test_what_was_left_goes_with_who_looks) {
    end_holder(holder(be_member, 10), SIGKILL);
    ck_assert_int_eq(files_in_folder(), 1);
    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
    expect_count(0, 0);
    close_last(&registry);
}

/* An ending process may still have memory, and a process that joins must know of that. */
TEST(test_it_stays_while_somebody_is_ending) {
    pid_t pid = begin_ending();

    for (int i = 0; i < 2; i++) {
        weir__registry_close(&registry);
        ck_assert_int_eq(files_in_folder(), 1);
        ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
        ck_assert(ending() == 10);
    }
    weir__registry_close(&registry);
    end_holder(pid, SIGKILL);
    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
    ck_assert(ending() == 0);
    close_last(&registry);
}

/* The entry of an ending process is kept until no other slot is free. */
TEST(test_who_is_ending_loses_its_slot_last) {
    static struct weir_slot_file all[WEIR_SLOTS];
    pid_t pid;
    int last = WEIR_SLOTS - 1;

    pid = begin_ending();
    for (int i = 0; i < last; i++) {
        open_registry(&all[i]);
        ck_assert_int_eq(weir__registry_slot(&all[i]), i + 1);
    }
    ck_assert(ending() == 10);
    open_registry(&all[last]);
    ck_assert_int_eq(weir__registry_slot(&all[last]), 0);
    ck_assert(ending() == 0);
    ck_assert_int_eq(weir__registry_open(&all[last], DEVICE), -1);
    ck_assert_int_eq(errno, EUSERS);
    end_holder(pid, SIGKILL);
    weir__registry_close(&registry);
}

static void *ask_of_itself(void *ready) {
    char is_it;

    while (!weir__process_is_ending(getpid(), registry.start))
        sleep_for_ns(1000000);
    is_it = ending() != 0;
    if (write(*(int *)ready, &is_it, 1) != 1)
        _exit(1);
    return pause_forever(NULL);
}

/* A process whose first thread has ended looks like an ending one, but does not wait for itself. */
TEST(test_who_asks_is_not_ending) {
    static int ready[2]; /* static, since the first thread ends early */
    char is_it = 1;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        pthread_t other;

        if (weir__registry_open(&registry, DEVICE) != 0)
            _exit(1);
        publish(&registry, 10);
        if (pthread_create(&other, NULL, ask_of_itself, &ready[1]) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &is_it, 1), 1);
    ck_assert_int_eq(is_it, 0);
    close(ready[0]);
    end_holder(pid, SIGKILL);
}

/* A process that joins while another one removes the file waits for the removal, but not for long. */
TEST(test_a_join_waits_briefly_for_a_stopped_removal) {
    uint64_t began;
    struct stat is, was;
    pid_t pid;

    end_holder(holder(be_member, 10), SIGKILL);
    ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0);
    ck_assert_int_eq(lstat(registry.path, &was), 0);
    pid = holder(have_all, 0);
    began = weir__registry_now();
    open_registry(&registry);
    ck_assert_uint_ge(weir__registry_now() - began, UINT64_C(100000000));
    ck_assert(has_its_name(&registry));
    ck_assert_int_eq(lstat(registry.path, &is), 0);
    ck_assert_uint_ne(is.st_ino, was.st_ino);
    weir__registry_close(&registry);
    end_holder(pid, SIGKILL);
    ck_assert_int_eq(files_in_folder(), 0);
}
