/* SPDX-License-Identifier: MIT */
/* test_group.c: one limit for several processes holds to the byte, even if processes are stopped or killed.
 *
 * Each process writes the bytes that it holds to a shared page: after they were counted, and until before they are
 * given back.  So live processes together never hold more than is counted.  The test stops all processes to check this.
 */
#include <sched.h>

#include "base/who.h"
#include "ipc/group.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/holder.h"

#define LIMIT (40 * MIB)
#define DEVICE "GPU-test"

enum { MOST = 8, BLOCKS = 16 };

static char why[WEIR_GROUP_WHY];

static struct shared { _Atomic uint64_t held[MOST], steps[MOST], refused[MOST], over; } * shared;

static void set_up_group(void) {
    make_folder("/tmp");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(shared != MAP_FAILED);
}

static void tear_down_group(void) {
    remove_folder();
    munmap(shared, sizeof *shared);
}

static int files(void) {
    char command[160];

    snprintf(command, sizeof command, "ls %s | grep -q group", folder);
    return system(command) == 0;
}

static void join_training_group(struct weir_group *g, uint64_t limit) {
    ck_assert_msg(weir__group_join(g, "training", DEVICE, limit, 1, why) == 0, "%s", why);
}

/* Leaves as the last member, and checks that this has removed the file. */
static void leave_last(struct weir_group *g) {
    weir__group_leave(g);
    ck_assert(!files());
}

static void expect_join_error(uint64_t limit, const char *says) {
    struct weir_group g;

    ck_assert_int_eq(weir__group_join(&g, "training", DEVICE, limit, 1, why), -1);
    ck_assert_msg(strstr(why, says), "%s", why);
}

CASE("alone", 20, set_up_group, tear_down_group);

TEST(test_a_member_has_the_limit_to_the_byte) {
    struct weir_group g;

    join_training_group(&g, LIMIT);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT - 1));
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_ALLOC, 2));
    ck_assert(weir__group_charge(&g, WEIR_GROUP_ALLOC, 1));
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_ALLOC, 1));
    ck_assert_uint_eq(weir__group_used(&g), LIMIT);
    weir__group_uncharge(&g, WEIR_GROUP_RESERVE, LIMIT - 1);
    weir__group_uncharge(&g, WEIR_GROUP_ALLOC, 1);
    ck_assert_uint_eq(weir__group_used(&g), 0);
    ck_assert(files());
    leave_last(&g);
}

TEST(test_what_is_more_than_any_limit_is_refused) {
    struct weir_group g;

    join_training_group(&g, LIMIT);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, 1));
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, UINT64_MAX));
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    weir__group_leave(&g);
}

TEST(test_no_more_is_given_back_than_was_taken) {
    struct weir_group one, two;

    join_training_group(&one, LIMIT);
    join_training_group(&two, LIMIT);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, 5));
    ck_assert(weir__group_charge(&two, WEIR_GROUP_ALLOC, 7));
    weir__group_uncharge(&one, WEIR_GROUP_ALLOC, 1);
    ck_assert_uint_eq(weir__group_used(&one), 12);
    weir__group_uncharge(&one, WEIR_GROUP_RESERVE, 6);
    ck_assert_uint_eq(weir__group_used(&one), 7);
    weir__group_leave(&two);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT));
    weir__group_leave(&one);
}

TEST(test_names) {
    ck_assert(weir__group_is_name("training-1.b_C"));
    ck_assert(!weir__group_is_name(""));
    ck_assert(!weir__group_is_name("a/b"));
    ck_assert(!weir__group_is_name("a b"));
    ck_assert(!weir__group_is_name("123456789012345678901234567890123"));
}

TEST(test_the_limit_is_the_groups) {
    struct weir_group one, two;

    expect_join_error(0, "expected group-limit with an amount such as 40GiB");
    join_training_group(&one, LIMIT);
    expect_join_error(LIMIT / 2, "limit 40MiB on this device, not 20MiB: give group-limit 40MiB");
    join_training_group(&two, 0);
    ck_assert_uint_eq(weir__group_limit(&two), LIMIT);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT - 5));
    ck_assert(!weir__group_charge(&two, WEIR_GROUP_RESERVE, 6));
    ck_assert(weir__group_charge(&two, WEIR_GROUP_RESERVE, 5));
    weir__group_leave(&one);
    ck_assert_uint_eq(weir__group_used(&two), 5);
    weir__group_leave(&two);
    join_training_group(&one, LIMIT / 2); /* a new group, since the old one has ended */
    weir__group_leave(&one);
}

TEST(test_shares_are_by_weight) {
    struct weir_group_member members[WEIR_GROUP_SLOTS];
    struct weir_group one, two;

    join_training_group(&one, LIMIT);
    ck_assert_int_eq(weir__group_join(&two, "training", DEVICE, LIMIT, 3, why), 0);
    ck_assert(weir__group_charge(&two, WEIR_GROUP_CREATE, 7));
    weir__group_publish_idle(&two, 4);
    ck_assert_uint_eq(weir__group_members(&one, members), 2);
    ck_assert_uint_eq(members[0].share, LIMIT / 4 * 3);
    ck_assert_uint_eq(members[0].bytes, 7);
    ck_assert_uint_eq(members[0].idle, 4);
    ck_assert_uint_eq(members[0].kind[WEIR_GROUP_CREATE], 7);
    ck_assert_uint_eq(members[0].pid, (uint64_t)getpid());
    ck_assert(!members[0].is_own);
    ck_assert_uint_eq(members[1].share, LIMIT / 4);
    ck_assert(members[1].is_own);
    weir__group_leave(&one);
    weir__group_leave(&two);
}

TEST(test_a_folder_that_cannot_be_written_to_is_named) {
    struct weir_group g;

    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/proc/self", 1), 0);
    ck_assert_int_eq(weir__group_join(&g, "training", DEVICE, LIMIT, 1, why), -1);
    ck_assert_msg(strstr(why, "/proc/self/weir-") && strstr(why, "expected a folder"), "%s", why);
}

TEST(test_what_is_no_file_of_a_group_is_replaced) {
    struct weir_group g;
    char path[WEIR_SLOT_PATH];
    FILE *file;

    join_training_group(&g, LIMIT);
    strcpy(path, g.shared.path);
    weir__group_leave(&g);
    file = fopen(path, "w");
    ck_assert_int_ge(fputs("something else", file), 0);
    fclose(file);
    join_training_group(&g, LIMIT);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    weir__group_leave(&g);
}

TEST(test_a_process_that_joins_removes_the_files_of_groups_whose_members_were_killed) {
    struct weir_group g, lives;
    char left[WEIR_SLOT_PATH];
    pid_t child;

    ck_assert_int_eq(weir__group_join(&lives, "lives", DEVICE, LIMIT, 1, why), 0);
    ck_assert_int_eq(weir__group_join(&g, "killed", DEVICE, LIMIT, 1, why), 0);
    strcpy(left, g.shared.path);
    weir__group_leave(&g);
    child = fork();
    if (child == 0) {
        if (weir__group_join(&g, "killed", DEVICE, LIMIT, 1, why) == 0)
            raise(SIGKILL);
        _exit(1);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(access(left, F_OK), 0);
    join_training_group(&g, LIMIT);
    ck_assert_int_ne(access(left, F_OK), 0);
    ck_assert_int_eq(access(lives.shared.path, F_OK), 0);
    weir__group_leave(&g);
    weir__group_leave(&lives);
}

TEST(test_a_program_that_closes_all_files_stays_a_member) {
    struct weir_group one, two;

    join_training_group(&one, LIMIT);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT));
    close(one.shared.file.number);
    join_training_group(&two, LIMIT);
    ck_assert(!weir__group_charge(&two, WEIR_GROUP_RESERVE, 1));
    weir__group_uncharge(&one, WEIR_GROUP_RESERVE, 1);
    ck_assert(weir__group_charge(&two, WEIR_GROUP_RESERVE, 1));
    weir__group_leave(&two);
    weir__group_leave(&one);
}

/* ---- other processes --------------------------------------------------------------------------- */

static int take_as_member(uint64_t bytes) {
    struct weir_group g;

    return weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) == 0 &&
           weir__group_charge(&g, WEIR_GROUP_RESERVE, bytes);
}

CASE("others", 20, set_up_group, tear_down_group);

TEST(test_who_needs_it_has_what_the_dead_had) {
    pid_t pid = holder(take_as_member, LIMIT);
    struct weir_group g;

    join_training_group(&g, LIMIT);
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, 1));
    end_holder(pid, SIGKILL);
    ck_assert_uint_eq(weir__group_used(&g), LIMIT);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    leave_last(&g);
}

TEST(test_another_program_of_the_process_has_nothing) {
    int ready[2];
    struct weir_group g;
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        if (take_as_member(LIMIT))
            execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(1);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 0); /* exec has closed the pipe */
    join_training_group(&g, LIMIT);
    while (
        !weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT)) /* exec closes one file after another */
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
    end_holder(pid, SIGKILL);
    weir__group_leave(&g);
}

TEST(test_a_child_of_fork_does_not_keep_what_its_parent_had) {
    struct weir_group g;
    int ready[2], gone[2], forgets[2];
    pid_t pid, child;
    char byte;

    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(gone), 0);
    ck_assert_int_eq(pipe(forgets), 0);
    pid = fork();
    if (pid == 0) {
        if (weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) != 0 ||
            !weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT))
            _exit(1);
        child = fork();
        if (child == 0) {
            child = getpid();
            close(gone[1]);
            if (write(ready[1], &child, sizeof child) != sizeof child ||
                read(forgets[0], &byte, 1) != 1)
                _exit(1);
            weir__group_close_in_child(&g);
            if (write(ready[1], &child, sizeof child) != sizeof child)
                _exit(1);
            (void)!read(gone[0], &byte, 1); /* waits for the end of the test */
            _exit(0);
        }
        for (;;)
            pause();
    }
    close(gone[0]);
    ck_assert_int_eq(read(ready[0], &child, sizeof child), (int)sizeof child);
    end_holder(pid, SIGKILL);
    join_training_group(&g, LIMIT);
    /* The child still has its parent's lock, so a request waits, as for a process that is ending. */
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    ck_assert_uint_eq(weir__group_recover(&g), LIMIT);
    ck_assert_int_eq(write(forgets[1], "", 1), 1);
    ck_assert_int_eq(read(ready[0], &child, sizeof child), (int)sizeof child);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    ck_assert_int_eq(kill(child, 0), 0);
    weir__group_leave(&g);
    close(gone[1]);
}

TEST(test_who_is_stopped_keeps_what_it_has_and_nobody_waits) {
    pid_t pid = holder(take_as_member, LIMIT / 2);
    struct weir_group g;

    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    join_training_group(&g, LIMIT);
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 2 + 1));
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 2));
    end_holder(pid, SIGKILL);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 2));
    weir__group_leave(&g);
}

TEST(test_a_file_that_only_the_dead_used_takes_another_limit) {
    pid_t pid = holder(take_as_member, LIMIT);
    struct weir_group g;

    end_holder(pid, SIGKILL);
    join_training_group(&g, LIMIT / 2);
    ck_assert_uint_eq(weir__group_limit(&g), LIMIT / 2);
    ck_assert_uint_eq(weir__group_used(&g), 0);
    weir__group_leave(&g);
    pid = holder(take_as_member, LIMIT);
    end_holder(pid, SIGKILL);
    ck_assert_int_eq(weir__group_view(&g, "training", DEVICE), 0);
    weir__group_leave(&g); /* a process that only looks removes an unused file */
    ck_assert(!files());
}

static int leave_by[2], left_by[2];

/* Waits until the first thread has ended, and drops the locks.  The process is now ending, and still has memory. */
static void *go_on_ending(void *group) {
    struct weir_group *g = group;
    uint64_t start = weir__process_start(getpid());
    char byte;

    while (!weir__process_is_ending(getpid(), start))
        sched_yield();
    weir__slot_file_close_in_child(&g->shared);
    if (write(left_by[1], "r", 1) != 1)
        _exit(1);
    (void)!read(leave_by[0], &byte, 1);
    _exit(0);
}

TEST(test_another_limit_leaves_what_the_ending_have) {
    static struct weir_group g;
    pthread_t thread;
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(leave_by), 0);
    ck_assert_int_eq(pipe(left_by), 0);
    pid = fork();
    if (pid == 0) {
        close(leave_by[1]);
        if (weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) != 0 ||
            !weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 4) ||
            pthread_create(&thread, NULL, go_on_ending, &g) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    ck_assert_int_eq(read(left_by[0], &byte, 1), 1);
    join_training_group(&g, LIMIT / 2);
    ck_assert_uint_eq(weir__group_limit(&g), LIMIT / 2);
    ck_assert_uint_eq(weir__group_used(&g), LIMIT / 4);
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 2));
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 4));
    close(leave_by[1]);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT / 4));
    leave_last(&g);
}

static int say_by[2], go_by[2];

/* Starts a member with LIMIT - 1 bytes that is about to end, and exits when the test closes go_by. */
static pid_t fork_ending_member(void) {
    struct weir_group g;
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(say_by), 0);
    ck_assert_int_eq(pipe(go_by), 0);
    pid = fork();
    if (pid == 0) {
        if (weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) != 0 ||
            !weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT - 1))
            _exit(1);
        weir__group_end(&g);
        weir__group_uncharge(&g, WEIR_GROUP_RESERVE, 1); /* a later destructor may do this */
        weir__group_charge_unlimited(&g, WEIR_GROUP_RESERVE, 1);
        if (write(say_by[1], "r", 1) != 1)
            _exit(1);
        close(go_by[1]);
        (void)!read(go_by[0], &byte, 1);
        _exit(0);
    }
    ck_assert_int_eq(read(say_by[0], &byte, 1), 1);
    return pid;
}

TEST(test_what_a_member_has_counts_beside_others_until_it_has_ended) {
    struct weir_group g;
    pid_t pid;

    join_training_group(&g, LIMIT);
    pid = fork_ending_member();
    ck_assert(!weir__group_charge(&g, WEIR_GROUP_RESERVE, 2));
    close(go_by[1]);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(weir__group_charge(&g, WEIR_GROUP_RESERVE, LIMIT));
    leave_last(&g);
}

TEST(test_the_last_member_removes_the_file_as_it_ends) {
    pid_t pid = fork_ending_member();

    ck_assert(!files());
    close(go_by[1]);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(!files());
}

/* No ending member takes another ending one for a member that stays. */
TEST(test_members_that_end_at_once_leave_no_file) {
    enum { ENDING = 3 };
    pid_t pids[ENDING];
    char byte;
    int status;

    for (int round = 0; round < 50; round++) {
        ck_assert_int_eq(pipe(say_by), 0);
        ck_assert_int_eq(pipe(go_by), 0);
        for (int i = 0; i < ENDING; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                struct weir_group g;

                if (weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) != 0 ||
                    !weir__group_charge(&g, WEIR_GROUP_RESERVE, 1) || write(say_by[1], "r", 1) != 1)
                    _exit(1);
                close(go_by[1]);
                (void)!read(go_by[0], &byte, 1);
                if (i == 0)
                    weir__group_leave(&g);
                else
                    weir__group_end(&g);
                _exit(0);
            }
        }
        for (int i = 0; i < ENDING; i++)
            ck_assert_int_eq(read(say_by[0], &byte, 1), 1);
        close(go_by[1]);
        for (int i = 0; i < ENDING; i++) {
            ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
            ck_assert_int_eq(status, 0);
        }
        ck_assert(!files());
        close(go_by[0]);
        close(say_by[0]);
        close(say_by[1]);
    }
}

CASE("removed", 30, set_up_group, tear_down_group);

/* Removes the file, and waits so long that the members' next calls check it. */
static void remove_file(const char *path) {
    ck_assert_int_eq(unlink(path), 0);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
}

/* The end of a login session removes the file.  One old member is another process, and one has lost its descriptors. */
TEST(test_old_and_new_members_have_one_limit) {
    struct weir_group_member members[WEIR_GROUP_SLOTS];
    struct weir_group near, late;
    char byte = 0;
    int status;
    pid_t pid;

    ck_assert_int_eq(pipe(say_by), 0);
    ck_assert_int_eq(pipe(go_by), 0);
    pid = fork();
    if (pid == 0) {
        struct weir_group far;

        join_training_group(&far, LIMIT);
        if (!weir__group_charge(&far, WEIR_GROUP_POOL, LIMIT / 2) ||
            write(say_by[1], &byte, 1) != 1 || read(go_by[0], &byte, 1) != 1)
            _exit(1);
        if (weir__group_charge(&far, WEIR_GROUP_POOL, 1))
            _exit(2);
        weir__group_uncharge(&far, WEIR_GROUP_POOL, 1);
        if (weir__group_used(&far) != LIMIT - 1 || write(say_by[1], &byte, 1) != 1 ||
            read(go_by[0], &byte, 1) != 1)
            _exit(3);
        _exit(0);
    }
    ck_assert_int_eq(read(say_by[0], &byte, 1), 1);
    ck_assert_int_eq(weir__group_join(&near, "training", DEVICE, LIMIT, 3, why), 0);
    ck_assert(weir__group_charge(&near, WEIR_GROUP_GRAPH, LIMIT / 4));
    weir__group_publish_idle(&near, 5);
    remove_file(near.shared.path);
    close(near.shared.file.number);
    join_training_group(&late, LIMIT);
    ck_assert(weir__group_charge(&late, WEIR_GROUP_RESERVE, LIMIT / 4));
    weir__group_uncharge(&near, WEIR_GROUP_GRAPH, 1);
    weir__group_charge_unlimited(&near, WEIR_GROUP_GRAPH, 1);
    ck_assert_uint_eq(weir__group_used(&late), LIMIT / 2);
    ck_assert_int_eq(write(go_by[1], &byte, 1), 1);
    ck_assert_int_eq(read(say_by[0], &byte, 1), 1);
    ck_assert(!weir__group_charge(&near, WEIR_GROUP_RESERVE, 2));
    ck_assert(!weir__group_charge(&late, WEIR_GROUP_RESERVE, 2));
    ck_assert(weir__group_charge(&late, WEIR_GROUP_RESERVE, 1));
    ck_assert_uint_eq(weir__group_members(&late, members), 3);
    ck_assert_uint_eq(members[0].kind[WEIR_GROUP_POOL], LIMIT / 2 - 1);
    for (int i = 1; i < 3; i++)
        if (members[i].weight == 3) {
            ck_assert_uint_eq(members[i].kind[WEIR_GROUP_GRAPH], LIMIT / 4);
            ck_assert_uint_eq(members[i].idle, 5);
            ck_assert_uint_eq(members[i].share, LIMIT / 5 * 3);
        }
    ck_assert_int_eq(write(go_by[1], &byte, 1), 1);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    weir__group_leave(&near);
    ck_assert(weir__group_charge(&late, WEIR_GROUP_RESERVE, LIMIT / 4 * 3 - 1));
    leave_last(&late);
}

/* A query finds the new file, too, and the limit of new members holds for the old one. */
TEST(test_old_members_have_the_new_limit) {
    struct weir_group one, late;

    join_training_group(&one, LIMIT);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT / 4));
    remove_file(one.shared.path);
    ck_assert_uint_eq(weir__group_used(&one), LIMIT / 4);
    ck_assert(files());
    remove_file(one.shared.path);
    join_training_group(&late, LIMIT / 2);
    weir__group_publish_idle(&one, 5);
    ck_assert_uint_eq(weir__group_limit(&one), LIMIT / 2);
    ck_assert_uint_eq(weir__group_used(&late), LIMIT / 4);
    ck_assert(!weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT / 4 + 1));
    weir__group_leave(&one);
    leave_last(&late);
}

/* A member that cannot join the new file gets no more bytes, since the limit would be exceeded otherwise. */
TEST(test_no_new_file_can_be_made) {
    struct weir_group one;

    join_training_group(&one, LIMIT);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT / 2));
    ck_assert_int_eq(unlink(one.shared.path), 0);
    ck_assert_int_eq(mkdir(one.shared.path, 0700), 0);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (int i = 0; i < 2; i++)
        ck_assert(!weir__group_charge(&one, WEIR_GROUP_RESERVE, 1));
    weir__group_uncharge(&one, WEIR_GROUP_RESERVE, 1);
    ck_assert_uint_eq(weir__group_used(&one), LIMIT / 2 - 1);
    ck_assert_int_eq(rmdir(one.shared.path), 0);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    ck_assert(weir__group_charge(&one, WEIR_GROUP_RESERVE, LIMIT / 2 + 1));
    ck_assert(!weir__group_charge(&one, WEIR_GROUP_RESERVE, 1));
    ck_assert(files());
    leave_last(&one);
}

/* ---- all at once ------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t draw_amount(uint64_t most) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (random_state >> 33) % most;
}

/* Counts and gives back random bytes until the process is killed. */
static void charge_at_random(int number, uint64_t seed) {
    uint64_t block[BLOCKS] = {0};
    struct weir_group g;

    random_state = seed;
    if (weir__group_join(&g, "training", DEVICE, LIMIT, 1, why) != 0) {
        fprintf(stderr, "%s\n", why);
        _exit(3);
    }
    for (;;) {
        int at = (int)draw_amount(BLOCKS);
        enum weir_group_kind kind = (enum weir_group_kind)(at % WEIR_GROUP_KIND_COUNT);

        if (block[at] > 0) {
            atomic_fetch_sub(&shared->held[number], block[at]);
            weir__group_uncharge(&g, kind, block[at]);
            block[at] = 0;
        } else {
            uint64_t bytes = 1 + draw_amount(LIMIT / 4);

            if (weir__group_charge(&g, kind, bytes)) {
                block[at] = bytes;
                atomic_fetch_add(&shared->held[number], bytes);
            } else {
                atomic_fetch_add(&shared->refused[number], 1);
            }
        }
        if (weir__group_used(&g) > LIMIT)
            atomic_store(&shared->over, 1);
        atomic_fetch_add(&shared->steps[number], 1);
    }
}

static pid_t fork_charging_worker(int number, uint64_t seed) {
    pid_t pid = fork();

    if (pid == 0) {
        charge_at_random(number, seed);
        _exit(0);
    }
    return pid;
}

static void signal_all(const pid_t *pids, int count, int how) {
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(kill(pids[i], how), 0);
}

/* Waits until all processes have stopped. */
static void await_stopped(const pid_t *pids, int count) {
    int status;

    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(waitpid(pids[i], &status, WUNTRACED), pids[i]);
        ck_assert_msg(WIFSTOPPED(status), "a process failed: %d", status);
    }
}

/* Checks that live processes hold at most the counted bytes, which are the sum of the slots and within the limit. */
static void check_members(struct weir_group *g, int count) {
    struct weir_group_member members[WEIR_GROUP_SLOTS];
    uint64_t held = 0, counted = 0;
    size_t number;

    while (weir__group_recover(g) > 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    for (int i = 0; i < count; i++)
        held += atomic_load(&shared->held[i]);
    number = weir__group_members(g, members);
    for (size_t i = 0; i < number; i++)
        counted += members[i].bytes;
    MUST_EQ(number, (size_t)count);
    MUST_EQ(counted, weir__group_used(g));
    MUST_LE(held, counted);
    MUST_LE(counted, LIMIT);
    MUST_EQ(atomic_load(&shared->over), 0);
}

static uint64_t steps_of(int count) {
    uint64_t steps = 0;

    for (int i = 0; i < count; i++)
        steps += atomic_load(&shared->steps[i]);
    return steps;
}

/* Kills and restarts random processes, some after a stop, for `steps` steps and `least` kills.  Checks at times. */
static void disturb(int count, uint64_t steps, uint64_t least) {
    uint64_t kills = 0, refused = 0;
    struct weir_group watcher;
    pid_t pids[MOST];

    random_state = 42;
    for (int i = 0; i < count; i++)
        pids[i] = fork_charging_worker(i, (uint64_t)i + 1);
    while (steps_of(count) < steps || kills < least) {
        int at = (int)draw_amount((uint64_t)count);

        nanosleep(&(struct timespec){0, (long)draw_amount(3000000)}, NULL);
        if (draw_amount(2)) { /* other processes go on meanwhile */
            ck_assert_int_eq(kill(pids[at], SIGSTOP), 0);
            nanosleep(&(struct timespec){0, (long)draw_amount(2000000)}, NULL);
            ck_assert_int_eq(kill(pids[at], SIGCONT), 0);
        }
        ck_assert_int_eq(kill(pids[at], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[at], NULL, 0), pids[at]);
        atomic_store(&shared->held[at], 0);
        pids[at] = fork_charging_worker(at, draw_amount(UINT64_C(1) << 30));
        if (++kills % 8 != 0)
            continue;
        nanosleep(&(struct timespec){0, 2000000}, NULL); /* so that all have joined */
        signal_all(pids, count, SIGSTOP);
        await_stopped(pids, count);
        if (weir__group_view(&watcher, "training", DEVICE) == 0) {
            struct weir_group_member members[WEIR_GROUP_SLOTS];

            if (weir__group_members(&watcher, members) == (size_t)count)
                check_members(&watcher, count);
            weir__group_leave(&watcher);
        }
        signal_all(pids, count, SIGCONT);
    }
    for (int i = 0; i < count; i++)
        refused += atomic_load(&shared->refused[i]);
    ck_assert_uint_eq(atomic_load(&shared->over), 0);
    ck_assert_uint_gt(refused, 0);
    signal_all(pids, count, SIGKILL);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
    ck_assert_int_eq(weir__group_view(&watcher, "training", DEVICE), 0);
    while (weir__group_recover(&watcher) > 0)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    ck_assert_uint_eq(weir__group_used(&watcher), 0);
    weir__group_leave(&watcher);
    printf("# %llu steps, %llu refused, %llu kills, over-run 0 bytes\n",
           (unsigned long long)steps_of(count), (unsigned long long)refused,
           (unsigned long long)kills);
}

CASE("many", getenv("WEIR_TEST_STEPS") ? 3600 : 60, set_up_group, tear_down_group);

TEST(test_kills_and_stops_at_any_moment) {
    const char *steps = getenv("WEIR_TEST_STEPS");

    disturb(steps ? MOST : 4, steps ? strtoull(steps, NULL, 10) : 20000, steps ? 2000 : 64);
}

CASE("alone", 20, set_up_group, tear_down_group);

static atomic_int working;

static void *charge_and_uncharge(void *group) {
    for (int i = 0; i < 20000; i++) {
        if (weir__group_charge(group, WEIR_GROUP_RESERVE, LIMIT / 3))
            weir__group_uncharge(group, WEIR_GROUP_RESERVE, LIMIT / 3);
    }
    atomic_fetch_sub(&working, 1);
    return NULL;
}

/* In the second round the file is removed again and again. */
TEST_EACH(2, test_charges_of_several_members_add_up) {
    struct weir_group group[3];
    pthread_t thread[6];

    for (int i = 0; i < 3; i++)
        join_training_group(&group[i], LIMIT);
    atomic_store(&working, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, charge_and_uncharge, &group[i % 3]), 0);
    while (_i == 1 && atomic_load(&working) > 0) {
        (void)unlink(group[0].shared.path);
        nanosleep(&(struct timespec){0, 3000000}, NULL);
    }
    for (int i = 0; i < 6; i++)
        pthread_join(thread[i], NULL);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (int i = 0; i < 3; i++)
        weir__group_publish_idle(&group[i], 0); /* so that all are in one file */
    ck_assert_uint_eq(weir__group_used(&group[0]), 0);
    for (int i = 0; i < 3; i++)
        weir__group_leave(&group[i]);
    ck_assert(!files());
}

SUITE("group", CK_FORK_GETENV);
