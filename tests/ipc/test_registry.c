/* SPDX-License-Identifier: MIT */
/* test_registry.c: the registry's slots, entries and bell, also if calls fail.  Each test has a separate folder. */
#include "test_registry.h"

#include "tests/fixtures/deny.h"

CASE("slots", 30, set_up_registry, remove_folder);

TEST(test_file_is_private_and_goes_with_the_last) {
    struct weir_slot_file other;
    struct stat is;

    umask(0);
    open_registry(&registry);
    open_registry(&other);
    ck_assert_int_eq(strncmp(registry.path, folder, strlen(folder)), 0);
    ck_assert_int_eq(lstat(registry.path, &is), 0);
    ck_assert(S_ISREG(is.st_mode));
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    ck_assert_uint_eq(is.st_uid, geteuid());
    weir__registry_close(&registry);
    ck_assert_int_eq(files_in_folder(), 1);
    close_last(&other);
}

TEST(test_each_sees_the_others) {
    struct weir_slot_file other;

    open_registry(&registry);
    open_registry(&other);
    ck_assert_int_ne(weir__registry_slot(&registry), weir__registry_slot(&other));
    expect_count(0, 0);
    publish(&registry, 1000);
    for (uint64_t reserve = 0; reserve <= 300; reserve++) { /* faster than the file is checked */
        entry = (struct weir_registry_entry){
            .reserved = reserve, .in_use = ~reserve, .command = "a test"};
        weir__registry_publish(&other, &entry);
    }
    expect_count(2, 1300);
    ck_assert(weir__registry_read(&registry, weir__registry_slot(&other), &entry));
    ck_assert_uint_eq(entry.pid, (uint64_t)getpid());
    ck_assert_str_eq(entry.command, "a test");
    weir__registry_close(&other);
    expect_count(1, 1000);
}

TEST(test_the_dead_have_no_entry) {
    pid_t one, two;

    open_registry(&registry);
    publish(&registry, 1);
    one = holder(be_member, 10);
    two = holder(be_member, 100);
    expect_count(3, 111);
    end_holder(one, SIGKILL);
    expect_count(2, 101);
    ck_assert_int_eq(kill(two, SIGSTOP), 0);
    expect_count(2, 101);
    end_holder(two, SIGKILL);
    expect_count(1, 1);
    one = holder(be_member, 20); /* reuses the slot of a dead process */
    expect_count(2, 21);
    end_holder(one, SIGKILL);
    close_last(&registry);
}

/* A zombie's pid still exists, and its parent may never wait for it. */
TEST(test_a_zombie_has_no_entry) {
    uint64_t reserve;
    pid_t other;
    int i;

    open_registry(&registry);
    other = holder(be_member, 10);
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    for (i = 0; i < 1000 && count_entries(&reserve) > 0; i++)
        sleep_for_ns(1000000);
    ck_assert_int_lt(i, 1000);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
}

/* A child of fork inherits the lock of the slot, but the entry names its dead parent. */
TEST(test_a_child_is_not_its_parent) {
    int ready[2];
    pid_t parent, child = 0;

    open_registry(&registry);
    ck_assert_int_eq(pipe(ready), 0);
    parent = fork();
    if (parent == 0) {
        struct weir_slot_file own;

        if (weir__registry_open(&own, DEVICE) != 0)
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
    end_holder(parent, SIGKILL);
    expect_count(0, 0);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
}

#ifdef CAN_DENY
CASE("denied", 60, set_up_registry, remove_folder);

/* Without a start time a pid proves nothing, so only the lock shows that the process lives. */
TEST(test_without_a_start_time_only_the_lock_counts) {
    deny("open", 1, 0, EACCES); /* the file with the start time */
    open_registry(&registry);
    ck_assert_uint_eq(deny_none(), 1);
    publish(&registry, 10);
    expect_count(1, 10);
}
#endif

CASE("slots", 30, set_up_registry, remove_folder);

TEST(test_a_full_registry_is_refused) {
    static struct weir_slot_file all[WEIR_SLOTS];

    for (int i = 0; i < WEIR_SLOTS; i++)
        open_registry(&all[i]);
    ck_assert_int_eq(weir__registry_open(&registry, DEVICE), -1);
    ck_assert_int_eq(errno, EUSERS);
    weir__registry_close(&all[7]);
    open_registry(&registry);
    ck_assert_int_eq(weir__registry_slot(&registry), 7);
}

/* Writers are killed while they write, and a reader still finds only whole entries of live processes. */
TEST(test_killed_while_they_write) {
    pid_t writers[WRITERS] = {0};
    uint64_t reserve, most = 0;
    int found, i;

    open_registry(&registry);
    for (i = 0; i < KILLS; i++) {
        pid_t *at = &writers[i % WRITERS];

        if (*at > 0)
            end_holder(*at, SIGKILL);
        *at = fork();
        if (*at == 0) {
            struct weir_slot_file own;

            if (weir__registry_open(&own, DEVICE) != 0)
                _exit(1);
            for (uint64_t n = 1;; n++)
                publish(&own, n);
        }
        for (int look = 0; look < 20; look++) {
            found = count_entries(&reserve);
            ck_assert_int_le(found, WRITERS);
            most = reserve > most ? reserve : most;
            sleep_for_ns(100000);
        }
    }
    ck_assert_uint_gt(most, 0);
    for (i = 0; i < WRITERS; i++)
        end_holder(writers[i], SIGKILL);
    expect_count(0, 0);
    ck_assert_int_lt(weir__registry_slot(&registry), WRITERS + 1);
    close_last(&registry);
}

/* ---- calls that fail ----------------------------------------------------------------------------- */

#ifdef CAN_DENY
static struct weir_slot_file tried;

/* Publishes an entry after a check of the file. */
static void write_entry(struct weir_slot_file *l, uint64_t reserve) {
    struct weir_registry_entry e = {.reserved = reserve, .in_use = ~reserve};

    l->checked_ns = 0;
    weir__registry_publish(l, &e);
}

/* The functions to test.  Each returns 0 on success, -1 with errno on failure. */
static int try_open(void) {
    return weir__registry_open(&tried, DEVICE);
}

static int try_look(void) {
    return weir__registry_view(&tried, DEVICE);
}

static int try_publish(void) {
    write_entry(&tried, 7);
    return 0;
}

static int try_read(void) {
    for (int slot = 0; slot < 3; slot++)
        if (weir__registry_read(&tried, slot, &entry))
            ck_assert_uint_eq(entry.reserved, slot == weir__registry_slot(&tried) ? 7 : 3);
    return 0;
}

static int try_leave(void) {
    weir__registry_leave(&tried);
    return 0;
}

static int try_bell(void) {
    (void)weir__registry_bell(&tried);
    return 0;
}

enum { NO_FILE, SOUND, CUT, REMOVED, FOREIGN, STATES };

static const struct {
    int (*attempt)(void);
    int has_slot, states; /* the number of states to try it in */
} attempts[] = {{try_open, 0, STATES}, {try_look, 0, STATES},  {try_publish, 1, STATES},
                {try_read, 1, STATES}, {try_leave, 1, STATES}, {try_bell, 1, SOUND + 1}};

/* Brings the file into a state.  `other` has a slot in each state but NO_FILE. */
static void prepare_file(int state, struct weir_slot_file *other, int has_slot) {
    uint32_t version = WEIR_REGISTRY_VERSION + 1;

    if (state != NO_FILE) {
        open_registry(other);
        write_entry(other, 3);
    }
    if (has_slot) {
        open_registry(&tried);
        write_entry(&tried, 7);
    }
    if (state == CUT)
        ck_assert_int_eq(truncate(other->path, 100), 0);
    else if (state == REMOVED)
        ck_assert_int_eq(unlink(other->path), 0);
    else if (state == FOREIGN)
        write_over(other->path, 8, &version, sizeof version);
}

/* Checks that a later process can join, and that the last one removes the file. */
static void expect_sound(int state, struct weir_slot_file *other) {
    struct weir_slot_file late;

    if (state != NO_FILE)
        write_entry(other, 3);
    open_registry(&late);
    write_entry(&late, 5);
    ck_assert(weir__registry_read(&late, weir__registry_slot(&late), &entry));
    ck_assert(state == NO_FILE || weir__registry_read(&late, weir__registry_slot(other), &entry));
    if (state != NO_FILE)
        weir__registry_close(other);
    close_last(&late);
}

/* Denies the k-th system call of an attempt, for each k.  It succeeds or gives a reason, and leaves no file open. */
static void deny_each(int which, int state, int for_good, int with) {
    int files = files_open(), has_slot = attempts[which].has_slot, result, reason;
    struct weir_slot_file other;

    for (uint64_t k = 1, all = 1; all > 0; k++) {
        ck_assert_uint_lt(k, 400);
        prepare_file(state, &other, has_slot);
        errno = 0;
        deny(NULL, k, for_good, with);
        result = attempts[which].attempt();
        reason = errno;
        all = deny_none();
        ck_assert(result == 0 || attempts[which].attempt == try_look || reason == with ||
                  reason == EAGAIN || (reason == EUSERS && with == EACCES));
        if (has_slot || result == 0) {
            write_entry(&tried, 7);
            if (weir__registry_slot(&tried) >= 0 &&
                tried.start != 0) /* 0 if the process could not read it */
                ck_assert(weir__registry_read(&tried, weir__registry_slot(&tried), &entry));
            weir__registry_close(&tried);
        }
        expect_sound(state, &other);
        ck_assert_int_eq(files_open(), files);
    }
}

CASE("denied", 60, set_up_registry, remove_folder);

TEST_EACH(6, test_a_registry_survives_each_denied_call) {
    static const int with[] = {EIO, EACCES, EEXIST, ENOENT};

    for (int state = 0; state < attempts[_i].states; state++)
        for (int i = 0; i < 8; i += state % 2 ? 3 : 1)
            deny_each(_i, state, i % 2, with[i / 2]);
}

/* The file is never valid, the bell cannot be mapped, or the name is always taken. */
TEST_EACH(3, test_no_end_of_tries) {
    static const char *const calls[] = {"fstat", "mmap", "linkat"};

    deny(calls[_i], 1, 1, EEXIST);
    ck_assert_int_eq(weir__registry_open(&registry, DEVICE), -1);
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_uint_gt(deny_none(), 1);
    open_registry(&registry);
    close_last(&registry);
}

static void expect_folder(const char *begins) {
    if (weir__registry_view(&registry, DEVICE) == 0)
        weir__registry_close(&registry);
    ck_assert_msg(strncmp(registry.path, begins, strlen(begins)) == 0, "%s", registry.path);
}

/* Without a valid WEIR_RUN_FOLDER the registry is in /dev/shm, or in /tmp if /dev/shm is not writable. */
TEST_EACH(2, test_the_registry_falls_back_to_tmp) {
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

CASE("bell", 30, set_up_registry, remove_folder);

/* A process of a login session and one of a service have one registry. */
TEST_EACH(2, test_one_registry_serves_every_environment) {
    char device[WEIR_REGISTRY_DEVICE], elsewhere[WEIR_SLOT_PATH];
    int visits = 0;

    ck_assert_int_eq(unsetenv("WEIR_RUN_FOLDER"), 0);
    ck_assert_int_eq(_i == 0 ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", folder, 1),
                     0);
    snprintf(device, sizeof device, "%ld", (long)getpid()); /* a name that no other test uses */
    ck_assert_int_eq(weir__registry_open(&registry, device), 0);
    publish(&registry, 5);
    if (is_forked_child()) {
        if ((_i == 0 ? setenv("XDG_RUNTIME_DIR", folder, 1) : unsetenv("XDG_RUNTIME_DIR")) != 0 ||
            weir__registry_view(&registry, device) != 0)
            _exit(1);
        _exit(weir__registry_read(&registry, 0, &entry) && entry.reserved == 5 ? 0 : 2);
    }
    snprintf(elsewhere, sizeof elsewhere, "/tmp%s", strrchr(registry.path, '/'));
    close(open(elsewhere, O_CREAT | O_WRONLY, 0600)); /* weir does not search here */
    weir__registry_each(count_own, &visits);
    weir__registry_close(&registry);
    ck_assert_int_eq(unlink(elsewhere), 0);
    ck_assert_int_eq(visits, 1);
}

CASE("bad", 30, set_up_registry, remove_folder);

TEST(test_a_name_that_is_too_long_is_refused) {
    char name[WEIR_SLOT_PATH];

    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(weir__registry_open(&registry, name), -1);
    ck_assert_int_eq(errno, ENAMETOOLONG);
    ck_assert_int_eq(weir__registry_view(&registry, name), -1);
}

static void count_device(const char *device, void *context) {
    ck_assert_int_eq(strcmp(device, DEVICE), 0);
    ++*(int *)context;
}

CASE("bell", 30, set_up_registry, remove_folder);

TEST(test_each_device_with_a_registry_is_visited) {
    char path[2 * WEIR_SLOT_PATH];
    int visits = 0;

    open_registry(&registry);
    snprintf(path, sizeof path, "%s%064d", registry.path, 0); /* longer than a device's name */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    weir__registry_each(count_device, &visits);
    ck_assert_int_eq(visits, 1);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    weir__registry_each(count_device, &visits);
    ck_assert_int_eq(visits, 1);
    snprintf(path, sizeof path, "%s", folder);
    while (strlen(path) < WEIR_SLOT_PATH) /* longer than a registry's path */
        strcat(path, "/.");
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", path, 1), 0);
    weir__registry_each(count_device, &visits);
    ck_assert_int_eq(visits, 1);
}

CASE("slots", 30, set_up_registry, remove_folder);

/* A pid of another namespace proves nothing. */
TEST(test_a_pid_of_another_namespace_proves_nothing) {
    pid_t pid;

    open_registry(&registry);
    pid = holder(be_member, 10);
    expect_count(1, 10);
    ck_assert(weir__registry_read(&registry, 1, &entry));
    ck_assert_int_eq(weir__registry_is_stopped(&registry, &entry), 0);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    ck_assert_int_eq(weir__registry_is_stopped(&registry, &entry), 1);
    registry.namespace = 1;
    expect_count(1, 10);
    ck_assert_int_eq(weir__registry_is_stopped(&registry, &entry), 0);
    registry.namespace = entry.namespace = 0; /* both are unknown */
    ck_assert_int_eq(weir__registry_is_stopped(&registry, &entry), 0);
    end_holder(pid, SIGKILL); /* the lock is gone */
    expect_count(0, 0);
    weir__registry_close(&registry);
    pid = begin_ending();
    registry.namespace = 1;
    ck_assert(ending() == 0);
    end_holder(pid, SIGKILL);
}

#ifdef CAN_DENY
static pid_t ender;
static int ends_in, tell; /* a number of calls, and a pipe to the process */

static void have_it_end(const char *name) {
    uint64_t start;

    (void)name;
    if (--ends_in > 0)
        return;
    meanwhile = NULL;
    start = weir__process_start(ender);
    ck_assert_int_eq(write(tell, "", 1), 1);
    while (!weir__process_is_ending(ender, start))
        sleep_for_ns(100000);
}

/* Starts a process with the first slot, which begins to end at the k-th call of have_it_end(). */
static void begin_ender(int k) {
    int told[2];

    ck_assert_int_lt(k, 200);
    ck_assert_int_eq(pipe(told), 0);
    ender = begin_child(be_ending, &told[0]);
    close(told[0]);
    tell = told[1];
    ends_in = k;
}

/* Kills the process.  Returns 1 if it had begun to end, else 0.  Another call may be the one that matters. */
static int end_ender(void) {
    end_holder(ender, SIGKILL);
    close(tell);
    return ends_in <= 0;
}

CASE("denied", 60, set_up_registry, remove_folder);

/* Another process begins to end at the k-th call of one that leaves.  The leaving process finds the slot locked, or
 * sees that the other is ending, and keeps the file. */
TEST(test_it_stays_for_who_begins_to_end_meanwhile) {
    int k = 0;

    do {
        begin_ender(++k);
        open_registry(&registry);
        meanwhile = have_it_end;
        weir__registry_leave(&registry);
        meanwhile = NULL;
        ck_assert_msg(files_in_folder() == 1, "at call %d", k);
        weir__registry_close(&registry);
    } while (end_ender());
    ck_assert_int_gt(k, 3);
}

/* A process that joins meanwhile takes another slot, whatever k is. */
TEST(test_who_begins_to_end_meanwhile_keeps_its_slot) {
    int k = 0, more;

    do {
        begin_ender(++k);
        meanwhile = have_it_end;
        open_registry(&registry);
        meanwhile = NULL;
        ck_assert_msg(weir__registry_slot(&registry) != 0, "at call %d", k);
        ck_assert_msg(ends_in > 0 || ending() == 10, "at call %d", k);
        weir__registry_close(&registry);
        more = end_ender();
        ck_assert_int_eq(weir__registry_view(&registry, DEVICE), 0); /* removes the file on close */
        weir__registry_close(&registry);
    } while (more);
    ck_assert_int_gt(k, 3);
}
#endif

#ifdef CAN_DENY
CASE("denied", 60, set_up_registry, remove_folder);

/* A process that cannot open the file does not remove it, since other processes use the file. */
TEST(test_who_cannot_open_it_leaves_it) {
    static const int with[] = {EMFILE, ENFILE, ENOMEM, EINTR, EIO};
    struct weir_slot_file other;

    open_registry(&registry);
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        memset(&other, 0, sizeof other);
        deny("open", 2, 0, with[i]); /* the first call reads the start time */
        ck_assert_int_eq(weir__registry_open(&other, DEVICE), -1);
        ck_assert_int_eq(errno, with[i]);
        ck_assert_uint_eq(deny_none(), 1);
        ck_assert(has_its_name(&registry));
    }
    weir__registry_close(&registry);
}
#endif

#ifdef CAN_DENY
static int of_all, lets_go_in; /* the open file with all locks, and a number of calls */

static void drop_lock(const char *name) {
    if (strcmp(name, "fcntl") != 0 || --lets_go_in > 0)
        return;
    meanwhile = NULL;
    close(of_all);
}

CASE("denied", 60, set_up_registry, remove_folder);

/* A process locks all slots to remove the file, and sees that another one is ending.  Whenever it unlocks them, a
 * process that joins does not take the ending process's slot. */
TEST(test_who_had_all_lets_go_meanwhile) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    pid_t pid = begin_ending();

    for (int k = 1; k <= WEIR_SLOTS + 3; k++) {
        weir__registry_close(&registry);
        of_all = open(registry.path, O_RDWR);
        ck_assert_int_eq(fcntl(of_all, F_OFD_SETLK, &all), 0);
        lets_go_in = k;
        meanwhile = drop_lock;
        open_registry(&registry);
        ck_assert_ptr_null(meanwhile);
        ck_assert_msg(weir__registry_slot(&registry) != 0 && ending() == 10, "at call %d", k);
    }
    end_holder(pid, SIGKILL);
    close_last(&registry);
}
#endif

SUITE("registry", CK_FORK);
