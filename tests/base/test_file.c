/* SPDX-License-Identifier: MIT */
/* test_file.c: weir's files in a program that has closed the descriptors 0 to 2, or that has a limit on file sizes. */
#include <sys/resource.h>

#include "base/file.h"
#include "base/log.h"
#include "base/replace.h"
#include "base/runfile.h"
#include "ipc/group.h"
#include "ipc/registry.h"
#include "ipc/segment.h"
#include "ipc/process_lock.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/support.h"

enum { LIMIT_BYTES = 4096 };

static void enter_file_folder(void) {
    make_folder(memory_folder());
    MUST(chdir(folder) == 0);
}

static void remove_file_folder(void) {
    MUST(chdir("/") == 0);
    remove_folder();
}

/* Returns the exit status of `work` in a child process, because Check itself writes to descriptors. */
static int run_in_child(int (*work)(void)) {
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(work());
    MUST(waitpid(pid, &status, 0) == pid);
    return status;
}

/* ---- descriptors --------------------------------------------------------------------------------- */

#define EXPECT_ABOVE(file)                                                                         \
    if ((file) <= STDERR_FILENO)                                                                   \
    return __LINE__ % 256

static int open_each(void) {
    static const struct weir_segment_kind kind = {"kind", 1, 64};
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    struct weir_replacement replacement;
    struct weir_segment segment;
    struct weir_slot_file registry;
    struct weir_group group;
    char why[WEIR_GROUP_WHY];
    struct stat is;
    int file;

    for (int i = 0; i <= STDERR_FILENO; i++)
        close(i);
    file = weir__file_open("a", O_RDWR | O_CREAT, 0600);
    EXPECT_ABOVE(file);
    EXPECT_ABOVE(weir__file_above(dup(file)));
    EXPECT_ABOVE(weir__file_copy(file));
    EXPECT_ABOVE(fileno(weir__file_read("a")));
    EXPECT_ABOVE(weir__runfile_open("a", O_RDWR));
    EXPECT_ABOVE(weir__replace_open("b", 0600));
    if (weir__replace_begin(&replacement, "c", 0600) != 0)
        return 1;
    EXPECT_ABOVE(replacement.file);
    if (weir__process_lock_try(&lock, "turns") != 1)
        return 2;
    EXPECT_ABOVE(lock.file.number);
    if (weir__segment_create(&segment, &kind) != 0)
        return 3;
    EXPECT_ABOVE(segment.file.number);
    if (weir__registry_open(&registry, "device") != 0)
        return 4;
    EXPECT_ABOVE(registry.file.number);
    if (weir__group_join(&group, "g", "device", MIB, 1, why) != 0)
        return 5;
    EXPECT_ABOVE(group.shared.file.number);
    for (int i = 0; i <= STDERR_FILENO; i++) /* the standard three are still closed */
        if (fstat(i, &is) == 0)
            return 7;
    return 0;
}

CASE("descriptors", 10, enter_file_folder, remove_file_folder);

TEST(test_none_of_weirs_is_one_of_the_standard_three) {
    ANSWERS(0, run_in_child(open_each));
}

static int open_without_room(void) {
    struct rlimit three = {3, 3};

    close(STDIN_FILENO);
    return setrlimit(RLIMIT_NOFILE, &three) == 0 && weir__file_open("/", O_RDONLY, 0) == -1 &&
                   fcntl(STDIN_FILENO, F_GETFD) == -1
               ? 0
               : 1;
}

TEST(test_where_there_is_no_other_descriptor_there_is_no_file) {
    ANSWERS(0, run_in_child(open_without_room));
}

/* ---- a limit for files --------------------------------------------------------------------------- */

static int limit_files(void) {
    struct rlimit limit = {LIMIT_BYTES, LIMIT_BYTES};

    return setrlimit(RLIMIT_FSIZE, &limit);
}

static int is_pending(void) {
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

static int write_each(void) {
    static const char bytes[2 * LIMIT_BYTES];
    struct weir_slot_file near;
    struct weir_registry_entry entry = {.reserved = 1};
    struct weir_group group;
    char why[WEIR_GROUP_WHY];
    int file = weir__file_open("a", O_RDWR | O_CREAT, 0600);

    if (weir__registry_open(&near, "device") != 0) /* its slot lies beyond the limit */
        return 1;
    for (int i = 0; i < 10; i++)
        if (weir__registry_open(&near, "device") != 0)
            return 2;
    if (limit_files() != 0)
        return 3;
    weir__registry_publish(&near, &entry);
    if (weir__write_all(file, bytes, sizeof bytes) != EFBIG ||
        weir__file_write_at(file, bytes, 1, LIMIT_BYTES) != -1 || errno != EFBIG ||
        weir__file_resize(file, LIMIT_BYTES + 1) != -1 || errno != EFBIG ||
        weir__file_reserve(file, LIMIT_BYTES + 1) != EFBIG)
        return 4;
    if (weir__replace_file("b", 0600, 0, bytes, sizeof bytes) != EFBIG || access("b", F_OK) == 0)
        return 5;
    if (weir__registry_open(&near, "other") == 0)
        return 6;
    if (weir__group_join(&group, "g", "device", MIB, 1, why) == 0 || !strstr(why, "File too large"))
        return 7;
    if (dup2(file, STDERR_FILENO) != STDERR_FILENO || lseek(file, 0, SEEK_END) != LIMIT_BYTES)
        return 8;
    weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "a line that does not fit");
    return is_pending() ? 9 : 0;
}

CASE("limit", 10, enter_file_folder, remove_file_folder);

TEST(test_no_write_of_weirs_ends_the_program) {
    ANSWERS(0, run_in_child(write_each));
}

/* A signal that the program itself raised stays pending. */
static int write_beside_the_programs(void) {
    int file = weir__file_open("a", O_RDWR | O_CREAT, 0600);
    sigset_t set;

    if (limit_files() != 0)
        return 1;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (weir__file_write_at(file, "a", 1, LIMIT_BYTES) != -1 || is_pending())
        return 2;
    raise(SIGXFSZ);
    if (weir__file_write_at(file, "a", 1, LIMIT_BYTES) != -1 || !is_pending())
        return 3;
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return 4;
}

static int write_as_the_program(void) {
    int file = weir__file_open("a", O_RDWR | O_CREAT, 0600);

    if (limit_files() != 0 || weir__file_write_at(file, "a", 1, LIMIT_BYTES) != -1)
        return 1;
    return pwrite(file, "a", 1, LIMIT_BYTES) == -1 ? 2 : 3;
}

TEST(test_the_programs_own_signal_is_its_own) {
    ANSWERS(SIGXFSZ, run_in_child(write_beside_the_programs) & 0x7f);
    ANSWERS(SIGXFSZ, run_in_child(write_as_the_program) & 0x7f);
}

SUITE("file", CK_FORK_GETENV);
