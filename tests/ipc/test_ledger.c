/* SPDX-License-Identifier: MIT */
/* test_ledger.c: the ledger's file: who has a slot, who has lost it, and what becomes of a file that is not as it
 * should be.
 *
 * Every test has a folder of its own by $WEIR_RUN_FOLDER.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/fixtures/deny.h"
#include "tests/fixtures/holder.h"
#include "ipc/ledger.h"
#include "tests/fixtures/own_file.h"
#include "tests/fixtures/support.h"
#include "base/who.h"

#define DEVICE "00112233445566778899aabbccddeeff"

enum { WRITERS = 3, KILLS = 60, GUESTS = 4, VISITS = 600 };

static char folder[40];
static struct weir_ledger ledger;
static struct weir_ledger_entry entry;

/* Files are made by the thousand. */
static void set_up(void) {
    const char *in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";

    snprintf(folder, sizeof folder, "%s/weir-ledger-XXXXXX", in);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    memset(&entry, 0, sizeof entry);
}

static void tear_down(void) {
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static void nap(long ns) {
    nanosleep(&(struct timespec){0, ns}, NULL);
}

static void publish(struct weir_ledger *l, uint64_t reserve) {
    struct weir_ledger_entry e = {.reserve = reserve, .in_use = ~reserve, .command = "a test"};

    nap(1200000); /* so that it looks at its file */
    weir__ledger_publish(l, &e);
}

static void open_ledger(struct weir_ledger *l) {
    ck_assert_msg(weir__ledger_open(l, DEVICE) == 0, "%s", strerror(errno));
}

/* Entries that can be read, and the sum of what they have. */
static int count(uint64_t *reserve) {
    int found = 0;

    *reserve = 0;
    for (int slot = 0; slot < WEIR_LEDGER_SLOTS; slot++)
        if (weir__ledger_read(&ledger, slot, &entry)) {
            ck_assert_uint_eq(entry.in_use, ~entry.reserve);
            *reserve += entry.reserve;
            found++;
        }
    return found;
}

static void expect_count(int wanted, uint64_t wanted_reserve) {
    uint64_t reserve;

    ck_assert_int_eq(count(&reserve), wanted);
    ck_assert_uint_eq(reserve, wanted_reserve);
}

static int files_in_folder(void) {
    DIR *entries = opendir(folder);
    int files = 0;

    while (readdir(entries))
        files++;
    closedir(entries);
    return files - 2;
}

/* A slot with so much in it. */
static int be_member(uint64_t reserve) {
    struct weir_ledger own;

    if (weir__ledger_open(&own, DEVICE) != 0)
        return 0;
    publish(&own, reserve);
    return 1;
}

/* ---- slots --------------------------------------------------------------------------------------- */

TEST(test_file_is_private_and_goes_with_the_last) {
    struct weir_ledger other;
    struct stat is;

    umask(0);
    open_ledger(&ledger);
    open_ledger(&other);
    ck_assert_int_eq(strncmp(ledger.path, folder, strlen(folder)), 0);
    ck_assert_int_eq(lstat(ledger.path, &is), 0);
    ck_assert(S_ISREG(is.st_mode));
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    ck_assert_uint_eq(is.st_uid, geteuid());
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 1);
    weir__ledger_close(&other);
    ck_assert_int_eq(files_in_folder(), 0);
}

TEST(test_each_sees_the_others) {
    struct weir_ledger other;

    open_ledger(&ledger);
    open_ledger(&other);
    ck_assert_int_ne(weir__ledger_slot(&ledger), weir__ledger_slot(&other));
    expect_count(0, 0);
    publish(&ledger, 1000);
    for (uint64_t reserve = 0; reserve <= 300; reserve++) { /* faster than the file is looked at */
        entry =
            (struct weir_ledger_entry){.reserve = reserve, .in_use = ~reserve, .command = "a test"};
        weir__ledger_publish(&other, &entry);
    }
    expect_count(2, 1300);
    ck_assert(weir__ledger_read(&ledger, weir__ledger_slot(&other), &entry));
    ck_assert_uint_eq(entry.pid, (uint64_t)getpid());
    ck_assert_str_eq(entry.command, "a test");
    weir__ledger_close(&other);
    expect_count(1, 1000);
}

TEST(test_the_dead_have_no_entry) {
    pid_t one, two;

    open_ledger(&ledger);
    publish(&ledger, 1);
    one = holder(be_member, 10);
    two = holder(be_member, 100);
    expect_count(3, 111);
    end(one, SIGKILL);
    expect_count(2, 101);
    ck_assert_int_eq(kill(two, SIGSTOP), 0);
    expect_count(2, 101);
    end(two, SIGKILL);
    expect_count(1, 1);
    one = holder(be_member, 20); /* has the slot of one that is dead */
    expect_count(2, 21);
    end(one, SIGKILL);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* A zombie's pid is still there, and its parent may never ask. */
TEST(test_a_zombie_has_no_entry) {
    uint64_t reserve;
    pid_t other;
    int i;

    open_ledger(&ledger);
    other = holder(be_member, 10);
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    for (i = 0; i < 1000 && count(&reserve) > 0; i++)
        nap(1000000);
    ck_assert_int_lt(i, 1000);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
}

/* What a child of fork inherits keeps the slot, but the entry names the dead. */
TEST(test_a_child_is_not_its_parent) {
    int ready[2];
    pid_t parent, child = 0;

    open_ledger(&ledger);
    ck_assert_int_eq(pipe(ready), 0);
    parent = fork();
    if (parent == 0) {
        struct weir_ledger own;

        if (weir__ledger_open(&own, DEVICE) != 0)
            _exit(1);
        publish(&own, 10);
        child = fork();
        if (child == 0)
            for (;;)
                pause();
        if (write(ready[1], &child, sizeof child) != (ssize_t)sizeof child)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ready[0], &child, sizeof child), (ssize_t)sizeof child);
    expect_count(1, 10);
    end(parent, SIGKILL);
    expect_count(0, 0);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
}

#ifdef CAN_DENY
/* Then its pid says nothing, and the lock alone tells. */
TEST(test_a_start_that_is_not_known) {
    deny("open", 1, 0, EACCES); /* of what tells when it began */
    open_ledger(&ledger);
    ck_assert_uint_eq(deny_none(), 1);
    publish(&ledger, 10);
    expect_count(1, 10);
}
#endif

TEST(test_full) {
    static struct weir_ledger all[WEIR_LEDGER_SLOTS];

    for (int i = 0; i < WEIR_LEDGER_SLOTS; i++)
        open_ledger(&all[i]);
    ck_assert_int_eq(weir__ledger_open(&ledger, DEVICE), -1);
    ck_assert_int_eq(errno, EUSERS);
    weir__ledger_close(&all[7]);
    open_ledger(&ledger);
    ck_assert_int_eq(weir__ledger_slot(&ledger), 7);
}

/* Writers that are killed while they write: whoever reads finds whole entries, of those that live. */
TEST(test_killed_while_they_write) {
    pid_t writers[WRITERS] = {0};
    uint64_t reserve, most = 0;
    int found, i;

    open_ledger(&ledger);
    for (i = 0; i < KILLS; i++) {
        pid_t *at = &writers[i % WRITERS];

        if (*at > 0)
            end(*at, SIGKILL);
        *at = fork();
        if (*at == 0) {
            struct weir_ledger own;

            if (weir__ledger_open(&own, DEVICE) != 0)
                _exit(1);
            for (uint64_t n = 1;; n++)
                publish(&own, n);
        }
        for (int look = 0; look < 20; look++) {
            found = count(&reserve);
            ck_assert_int_le(found, WRITERS);
            most = reserve > most ? reserve : most;
            nap(100000);
        }
    }
    ck_assert_uint_gt(most, 0);
    for (i = 0; i < WRITERS; i++)
        end(writers[i], SIGKILL);
    expect_count(0, 0);
    ck_assert_int_lt(weir__ledger_slot(&ledger), WRITERS + 1);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* ---- who removes it ------------------------------------------------------------------------------ */

/* 1: whoever comes now finds the file that it has a slot in. */
static int has_its_name(const struct weir_ledger *l) {
    struct stat is, named;

    return fstat(l->file.number, &is) == 0 && lstat(l->path, &named) == 0 &&
           is.st_ino == named.st_ino;
}

/* Comes and goes: 0 as long as its file never lost its name meanwhile. */
static int visit_often(void) {
    for (int i = 0; i < VISITS; i++) {
        struct weir_ledger own;

        if (weir__ledger_open(&own, DEVICE) != 0)
            return 1;
        for (int looks = 0; looks < 3; looks++) {
            if (!has_its_name(&own))
                return 2;
            nap(50000);
        }
        weir__ledger_close(&own);
        nap(i % 8 * 50000); /* and often nobody is there */
    }
    return 0;
}

/* Many that come and go at once are never in two files, and the last one leaves none. */
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

TEST(test_two_that_leave_at_once) {
    for (int i = 0; i < 300; i++) {
        int ready[2], go[2], status;
        pid_t pid;
        char byte = 0;

        open_ledger(&ledger);
        ck_assert_int_eq(pipe(ready), 0);
        ck_assert_int_eq(pipe(go), 0);
        pid = fork();
        if (pid == 0) {
            struct weir_ledger own;

            if (weir__ledger_open(&own, DEVICE) != 0 || write(ready[1], &byte, 1) != 1 ||
                read(go[0], &byte, 1) != 1)
                _exit(1);
            weir__ledger_close(&own);
            _exit(0);
        }
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(write(go[1], &byte, 1), 1);
        nap(i % 30 * 10000);
        weir__ledger_close(&ledger);
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

    open_ledger(&ledger);
    child = fork();
    if (child == 0)
        for (;;)
            pause();
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
    end(child, SIGKILL);
}

TEST(test_what_was_left_goes_with_who_looks) {
    end(holder(be_member, 10), SIGKILL);
    ck_assert_int_eq(files_in_folder(), 1);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
    expect_count(0, 0);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

static void note_ending(int slot, const struct weir_ledger_entry *of, void *reserve) {
    (void)slot;
    *(uint64_t *)reserve += of->reserve;
}

/* What those who are ending have. */
static uint64_t ending(void) {
    uint64_t reserve = 0;

    weir__ledger_ending(&ledger, note_ending, &reserve);
    return reserve;
}

static void *stay(void *unused) {
    for (;;)
        pause();
    return unused;
}

/* What is left of a process that was killed, as the kernel takes it apart: neither file nor first thread.  Once it is
 * told to, if it is. */
static void be_ending(int ready, int told) {
    char byte = 0;
    pthread_t other;

    if (weir__ledger_open(&ledger, DEVICE) != 0 || pthread_create(&other, NULL, stay, NULL) != 0)
        _exit(1);
    publish(&ledger, 10);
    if (write(ready, &byte, 1) != 1 || (told >= 0 && read(told, &byte, 1) != 1))
        _exit(1);
    close(ledger.file.number);
    munmap(ledger.page, 4096);
    pthread_exit(NULL);
}

/* It is the first in its file, and is looked at. */
static pid_t begin_ending(void) {
    int ready[2];
    char byte;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0)
        be_ending(ready[1], -1);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
    while (ending() == 0)
        nap(1000000);
    return pid;
}

/* It may still have memory, which who comes is to know. */
TEST(test_it_stays_while_somebody_is_ending) {
    pid_t pid = begin_ending();

    for (int i = 0; i < 2; i++) {
        weir__ledger_close(&ledger);
        ck_assert_int_eq(files_in_folder(), 1);
        ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
        ck_assert(ending() == 10);
    }
    weir__ledger_close(&ledger);
    end(pid, SIGKILL);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
    ck_assert(ending() == 0);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

#ifdef CAN_DENY
static pid_t ender;
static int ends_in, tell; /* calls, and how it is told */

static void have_it_end(const char *name) {
    uint64_t start;

    (void)name;
    if (--ends_in > 0)
        return;
    meanwhile = NULL;
    start = weir__process_start(ender);
    ck_assert_int_eq(write(tell, "", 1), 1);
    while (!weir__process_is_ending(ender, start))
        nap(100000);
}

/* The first in its file, which lives until have_it_end was called for the k-th time. */
static void begin_ender(int k) {
    int ready[2], told[2];
    char byte;

    ck_assert_int_lt(k, 200);
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(told), 0);
    ender = fork();
    if (ender == 0)
        be_ending(ready[1], told[0]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(told[0]);
    tell = told[1];
    ends_in = k;
}

/* 1 if it had been told: another call may be the one that matters. */
static int end_ender(void) {
    end(ender, SIGKILL);
    close(tell);
    return ends_in <= 0;
}

/* Whenever somebody begins to end while another leaves: that one is not the last as long as the slot is there, and
 * sees who is ending when it is not. */
TEST(test_it_stays_for_who_begins_to_end_meanwhile) {
    int k = 0;

    do {
        begin_ender(++k);
        open_ledger(&ledger);
        meanwhile = have_it_end;
        weir__ledger_leave(&ledger);
        meanwhile = NULL;
        ck_assert_msg(files_in_folder() == 1, "at call %d", k);
        weir__ledger_close(&ledger);
    } while (end_ender());
    ck_assert_int_gt(k, 3);
}

/* Nor does who comes take its slot, whenever that is. */
TEST(test_who_begins_to_end_meanwhile_keeps_its_slot) {
    int k = 0, more;

    do {
        begin_ender(++k);
        meanwhile = have_it_end;
        open_ledger(&ledger);
        meanwhile = NULL;
        ck_assert_msg(weir__ledger_slot(&ledger) != 0, "at call %d", k);
        ck_assert_msg(ends_in > 0 || ending() == 10, "at call %d", k);
        weir__ledger_close(&ledger);
        more = end_ender();
        ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0); /* which removes it */
        weir__ledger_close(&ledger);
    } while (more);
    ck_assert_int_gt(k, 3);
}
#endif

/* What stands there is to be known as long as there is room. */
TEST(test_who_is_ending_loses_its_slot_last) {
    static struct weir_ledger all[WEIR_LEDGER_SLOTS];
    pid_t pid;
    int last = WEIR_LEDGER_SLOTS - 1;

    pid = begin_ending();
    for (int i = 0; i < last; i++) {
        open_ledger(&all[i]);
        ck_assert_int_eq(weir__ledger_slot(&all[i]), i + 1);
    }
    ck_assert(ending() == 10);
    open_ledger(&all[last]);
    ck_assert_int_eq(weir__ledger_slot(&all[last]), 0);
    ck_assert(ending() == 0);
    ck_assert_int_eq(weir__ledger_open(&all[last], DEVICE), -1);
    ck_assert_int_eq(errno, EUSERS);
    end(pid, SIGKILL);
    weir__ledger_close(&ledger);
}

static void *ask_of_itself(void *ready) {
    char is_it;

    while (!weir__process_is_ending(getpid(), ledger.start))
        nap(1000000);
    is_it = ending() != 0;
    if (write(*(int *)ready, &is_it, 1) != 1)
        _exit(1);
    return stay(NULL);
}

/* Whose first thread has ended, as the others go on, does not wait for itself. */
TEST(test_who_asks_is_not_ending) {
    static int ready[2]; /* on no stack, as that thread ends first */
    char is_it = 1;
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        pthread_t other;

        if (weir__ledger_open(&ledger, DEVICE) != 0)
            _exit(1);
        publish(&ledger, 10);
        if (pthread_create(&other, NULL, ask_of_itself, &ready[1]) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &is_it, 1), 1);
    ck_assert_int_eq(is_it, 0);
    close(ready[0]);
    end(pid, SIGKILL);
}

#ifdef CAN_DENY
/* Who cannot open it does not remove it: others are in there. */
TEST(test_who_cannot_open_it_leaves_it) {
    static const int with[] = {EMFILE, ENFILE, ENOMEM, EINTR, EIO};
    struct weir_ledger other;

    open_ledger(&ledger);
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        memset(&other, 0, sizeof other);
        deny("open", 2, 0, with[i]); /* the first is of what tells when it began */
        ck_assert_int_eq(weir__ledger_open(&other, DEVICE), -1);
        ck_assert_int_eq(errno, with[i]);
        ck_assert_uint_eq(deny_none(), 1);
        ck_assert(has_its_name(&ledger));
    }
    weir__ledger_close(&ledger);
}
#endif

/* All slots, as one has that removes the file. */
static int have_all(uint64_t unused) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open(ledger.path, O_RDWR);

    (void)unused;
    return file >= 0 && fcntl(file, F_OFD_SETLK, &all) == 0;
}

/* Who comes while a file is being removed waits for that, but not for long. */
TEST(test_who_is_stopped_as_it_removes_it) {
    uint64_t began;
    struct stat is, was;
    pid_t pid;

    end(holder(be_member, 10), SIGKILL);
    ck_assert_int_eq(weir__ledger_look(&ledger, DEVICE), 0);
    ck_assert_int_eq(lstat(ledger.path, &was), 0);
    pid = holder(have_all, 0);
    began = weir__ledger_now();
    open_ledger(&ledger);
    ck_assert_uint_ge(weir__ledger_now() - began, UINT64_C(100000000));
    ck_assert(has_its_name(&ledger));
    ck_assert_int_eq(lstat(ledger.path, &is), 0);
    ck_assert_uint_ne(is.st_ino, was.st_ino);
    weir__ledger_close(&ledger);
    end(pid, SIGKILL);
    ck_assert_int_eq(files_in_folder(), 0);
}

#ifdef CAN_DENY
static int of_all, lets_go_in; /* the open file of who has all slots, and calls */

static void let_go(const char *name) {
    if (strcmp(name, "fcntl") != 0 || --lets_go_in > 0)
        return;
    meanwhile = NULL;
    close(of_all);
}

/* It has seen that somebody is ending: whenever it lets them go, who comes does not take that one's slot. */
TEST(test_who_had_all_lets_go_meanwhile) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pid_t pid = begin_ending();

    for (int k = 1; k <= WEIR_LEDGER_SLOTS + 3; k++) {
        weir__ledger_close(&ledger);
        of_all = open(ledger.path, O_RDWR);
        ck_assert_int_eq(fcntl(of_all, F_OFD_SETLK, &all), 0);
        lets_go_in = k;
        meanwhile = let_go;
        open_ledger(&ledger);
        ck_assert_ptr_null(meanwhile);
        ck_assert_msg(weir__ledger_slot(&ledger) != 0 && ending() == 10, "at call %d", k);
    }
    end(pid, SIGKILL);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}
#endif

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

static void write_over(const char *path, size_t at, const void *bytes, size_t length) {
    int file = open(path, O_WRONLY);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, bytes, length, (off_t)at), (ssize_t)length);
    close(file);
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

/* ---- calls that fail ----------------------------------------------------------------------------- */

#ifdef CAN_DENY
static struct weir_ledger tried;

/* At once, and with a look at the file. */
static void write_entry(struct weir_ledger *l, uint64_t reserve) {
    struct weir_ledger_entry e = {.reserve = reserve, .in_use = ~reserve};

    l->looked_ns = 0;
    weir__ledger_publish(l, &e);
}

/* What a process does with a ledger: 0, or -1 and errno. */
static int try_open(void) {
    return weir__ledger_open(&tried, DEVICE);
}

static int try_look(void) {
    return weir__ledger_look(&tried, DEVICE);
}

static int try_publish(void) {
    write_entry(&tried, 7);
    return 0;
}

static int try_read(void) {
    for (int slot = 0; slot < 3; slot++)
        if (weir__ledger_read(&tried, slot, &entry))
            ck_assert_uint_eq(entry.reserve, slot == weir__ledger_slot(&tried) ? 7 : 3);
    return 0;
}

static int try_leave(void) {
    weir__ledger_leave(&tried);
    return 0;
}

static int try_bell(void) {
    (void)weir__ledger_bell(&tried);
    return 0;
}

enum { NO_FILE, SOUND, CUT, REMOVED, FOREIGN, STATES };

static const struct {
    int (*attempt)(void);
    int has_slot, states; /* in how many of these it is tried */
} attempts[] = {{try_open, 0, STATES}, {try_look, 0, STATES},  {try_publish, 1, STATES},
                {try_read, 1, STATES}, {try_leave, 1, STATES}, {try_bell, 1, SOUND + 1}};

/* What is there before: `other' has a slot in it in each state but the first. */
static void prepare(int state, struct weir_ledger *other, int has_slot) {
    uint32_t version = WEIR_LEDGER_VERSION + 1;

    if (state != NO_FILE) {
        open_ledger(other);
        write_entry(other, 3);
    }
    if (has_slot) {
        open_ledger(&tried);
        write_entry(&tried, 7);
    }
    if (state == CUT)
        ck_assert_int_eq(truncate(other->path, 100), 0);
    else if (state == REMOVED)
        ck_assert_int_eq(unlink(other->path), 0);
    else if (state == FOREIGN)
        write_over(other->path, 8, &version, sizeof version);
}

/* Nothing is in the way of those that come later, or of the file's end. */
static void expect_sound(int state, struct weir_ledger *other) {
    struct weir_ledger late;

    if (state != NO_FILE)
        write_entry(other, 3);
    open_ledger(&late);
    write_entry(&late, 5);
    ck_assert(weir__ledger_read(&late, weir__ledger_slot(&late), &entry));
    ck_assert(state == NO_FILE || weir__ledger_read(&late, weir__ledger_slot(other), &entry));
    if (state != NO_FILE)
        weir__ledger_close(other);
    weir__ledger_close(&late);
    ck_assert_int_eq(files_in_folder(), 0);
}

/* With the k-th call denied, for each k: it works or says why not, nothing stays open, and the next one works. */
static void deny_each(int which, int state, int for_good, int with) {
    int files = files_open(), has_slot = attempts[which].has_slot, result, reason;
    struct weir_ledger other;

    for (uint64_t k = 1, all = 1; all > 0; k++) {
        ck_assert_uint_lt(k, 400);
        prepare(state, &other, has_slot);
        errno = 0;
        deny(NULL, k, for_good, with);
        result = attempts[which].attempt();
        reason = errno;
        all = deny_none();
        ck_assert(result == 0 || attempts[which].attempt == try_look || reason == with ||
                  reason == EAGAIN || (reason == EUSERS && with == EACCES));
        if (has_slot || result == 0) {
            write_entry(&tried, 7);
            if (weir__ledger_slot(&tried) >= 0 &&
                tried.start != 0) /* it was told that it has ended */
                ck_assert(weir__ledger_read(&tried, weir__ledger_slot(&tried), &entry));
            weir__ledger_close(&tried);
        }
        expect_sound(state, &other);
        ck_assert_int_eq(files_open(), files);
    }
}

TEST(test_each_call_denied) {
    static const int with[] = {EIO, EACCES, EEXIST, ENOENT};

    for (int state = 0; state < attempts[_i].states; state++)
        for (int i = 0; i < 8; i += state % 2 ? 3 : 1)
            deny_each(_i, state, i % 2, with[i / 2]);
}

/* Neither a file that is never sound nor a bell that cannot be had is tried for ever. */
TEST(test_no_end_of_tries) {
    static const char *const calls[] = {"fstat", "mmap", "linkat"};

    deny(calls[_i], 1, 1, EEXIST);
    ck_assert_int_eq(weir__ledger_open(&ledger, DEVICE), -1);
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_uint_gt(deny_none(), 1);
    open_ledger(&ledger);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(files_in_folder(), 0);
}

static void expect_folder(const char *begins) {
    if (weir__ledger_look(&ledger, DEVICE) == 0)
        weir__ledger_close(&ledger);
    ck_assert_msg(strncmp(ledger.path, begins, strlen(begins)) == 0, "%s", ledger.path);
}

/* Where no folder is told: the first one, or the other where nothing can be made there. */
TEST(test_folders) {
    ck_assert_int_eq(_i == 0 ? unsetenv("WEIR_RUN_FOLDER") : setenv("WEIR_RUN_FOLDER", "run", 1),
                     0);
    expect_folder("/dev/shm/weir-");
    deny("access", 1, 0, EACCES);
    expect_folder("/tmp/weir-");
    ck_assert_uint_eq(deny_none(), 1);
}
#endif

static void count_own(const char *device, void *context) {
    int *visits = context;

    *visits += atol(device) == (long)getpid();
}

/* A process of a login session and one of a service. */
TEST(test_the_same_whatever_the_environment) {
    char device[WEIR_LEDGER_DEVICE], elsewhere[WEIR_LEDGER_PATH];
    int status, visits = 0;
    pid_t pid;

    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    ck_assert_int_eq(_i == 0 ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", folder, 1),
                     0);
    snprintf(device, sizeof device, "%ld", (long)getpid()); /* this process's alone */
    ck_assert_int_eq(weir__ledger_open(&ledger, device), 0);
    publish(&ledger, 5);
    pid = fork();
    if (pid == 0) {
        if ((_i == 0 ? setenv("XDG_RUNTIME_DIR", folder, 1) : unsetenv("XDG_RUNTIME_DIR")) != 0 ||
            weir__ledger_look(&ledger, device) != 0)
            _exit(1);
        _exit(weir__ledger_read(&ledger, 0, &entry) && entry.reserve == 5 ? 0 : 2);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    snprintf(elsewhere, sizeof elsewhere, "/tmp%s", strrchr(ledger.path, '/'));
    close(open(elsewhere, O_CREAT | O_WRONLY, 0600)); /* nobody looks for it there */
    weir__ledger_each(count_own, &visits);
    weir__ledger_close(&ledger);
    ck_assert_int_eq(unlink(elsewhere), 0);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(visits, 1);
}

TEST(test_a_name_that_is_too_long) {
    char name[WEIR_LEDGER_PATH];

    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(weir__ledger_open(&ledger, name), -1);
    ck_assert_int_eq(errno, ENAMETOOLONG);
    ck_assert_int_eq(weir__ledger_look(&ledger, name), -1);
}

static void visit(const char *device, void *context) {
    ck_assert_int_eq(strcmp(device, DEVICE), 0);
    ++*(int *)context;
}

TEST(test_devices_that_have_one) {
    char path[2 * WEIR_LEDGER_PATH];
    int visits = 0;

    open_ledger(&ledger);
    snprintf(path, sizeof path, "%s%064d", ledger.path, 0); /* no device's name is so long */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    weir__ledger_each(visit, &visits);
    ck_assert_int_eq(visits, 1);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    weir__ledger_each(visit, &visits);
    ck_assert_int_eq(visits, 1);
    snprintf(path, sizeof path, "%s", folder);
    while (strlen(path) < WEIR_LEDGER_PATH) /* a ledger's path is not so long */
        strcat(path, "/.");
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", path, 1), 0);
    weir__ledger_each(visit, &visits);
    ck_assert_int_eq(visits, 1);
}

/* Its pid says nothing here. */
TEST(test_of_another_namespace) {
    pid_t pid;

    open_ledger(&ledger);
    pid = holder(be_member, 10);
    expect_count(1, 10);
    ck_assert(weir__ledger_read(&ledger, 1, &entry));
    ck_assert_int_eq(weir__ledger_is_stopped(&ledger, &entry), 0);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    ck_assert_int_eq(weir__ledger_is_stopped(&ledger, &entry), 1);
    ledger.namespace = 1;
    expect_count(1, 10);
    ck_assert_int_eq(weir__ledger_is_stopped(&ledger, &entry), 0);
    ledger.namespace = entry.namespace = 0; /* neither can tell */
    ck_assert_int_eq(weir__ledger_is_stopped(&ledger, &entry), 0);
    end(pid, SIGKILL); /* the lock tells */
    expect_count(0, 0);
    weir__ledger_close(&ledger);
    pid = begin_ending();
    ledger.namespace = 1;
    ck_assert(ending() == 0);
    end(pid, SIGKILL);
}

int main(void) {
    Suite *suite = suite_create("ledger");
    TCase *slots = suite_add_case(suite, "slots", 30, set_up, tear_down);
    TCase *going = suite_add_case(suite, "going", 60, set_up, tear_down);
    TCase *bad = suite_add_case(suite, "bad", 30, set_up, tear_down);
    TCase *lost = suite_add_case(suite, "lost", 30, set_up, tear_down);
    TCase *bell = suite_add_case(suite, "bell", 30, set_up, tear_down);
#ifdef CAN_DENY
    TCase *denied_calls = suite_add_case(suite, "denied", 60, set_up, tear_down);
#endif

    ADD_TESTS(slots, test_file_is_private_and_goes_with_the_last, test_each_sees_the_others,
              test_the_dead_have_no_entry, test_a_zombie_has_no_entry,
              test_a_child_is_not_its_parent, test_full, test_killed_while_they_write);
#ifdef CAN_DENY
    tcase_add_test(slots, test_a_start_that_is_not_known);
#endif
    tcase_add_test(slots, test_of_another_namespace);
    ADD_TESTS(going, test_they_come_and_go, test_two_that_leave_at_once,
              test_it_goes_beside_a_child, test_what_was_left_goes_with_who_looks,
              test_it_stays_while_somebody_is_ending, test_who_is_ending_loses_its_slot_last,
              test_who_asks_is_not_ending);
#ifdef CAN_DENY
    ADD_TESTS(going, test_it_stays_for_who_begins_to_end_meanwhile,
              test_who_begins_to_end_meanwhile_keeps_its_slot, test_who_had_all_lets_go_meanwhile,
              test_who_cannot_open_it_leaves_it);
#endif
    tcase_add_test(going, test_who_is_stopped_as_it_removes_it);
    ADD_TESTS(bad, test_truncated, test_another_version, test_random_bytes, test_removed,
              test_links_are_not_followed, test_no_plain_file, test_others_may_open_it,
              test_of_another_user, test_no_folder, test_a_name_that_is_too_long);
    tcase_add_loop_test(lost, test_a_number_that_was_lost, 0, 4);
    tcase_add_test(lost, test_a_number_that_was_lost_just_now);
    tcase_add_loop_test(lost, test_a_number_that_another_has, 0, 2);
    ADD_TESTS(bell, test_who_looks_has_no_slot, test_bell_wakes_others,
              test_who_has_left_stays_away, test_devices_that_have_one);
    ADD_FOR_EACH(bell, 2, test_without_a_file, test_the_same_whatever_the_environment);
#ifdef CAN_DENY
    tcase_add_loop_test(denied_calls, test_each_call_denied, 0, 6);
    tcase_add_loop_test(denied_calls, test_no_end_of_tries, 0, 3);
    tcase_add_loop_test(denied_calls, test_folders, 0, 2);
#endif
    return run_suite(suite, CK_FORK);
}
