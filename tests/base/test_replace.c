/* SPDX-License-Identifier: MIT */
/* test_replace.c: weir replaces a file as a whole or not at all; links, pipes, folders that everybody may write. */
#include <grp.h>

#include "tests/fixtures/deny.h"
#include "base/replace.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/support.h"

/* The folder is in memory, since the tests synchronise hundreds of files. */
static void enter_replace_folder(void) {
    make_folder(memory_folder());
    MUST(chdir(folder) == 0);
    umask(022);
}

static void remove_replace_folder(void) {
    MUST(chdir("/") == 0);
    remove_folder();
}

static int replace_with(const char *path, const char *text) {
    return weir__replace_file(path, 0666, 0, text, strlen(text));
}

static void write_file(const char *path, const char *text, mode_t mode) {
    FILE *file = fopen(path, "w");

    MUST(file && fputs(text, file) >= 0 && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void expect_content(const char *path, const char *text) {
    char read[64];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(read, 1, sizeof read - 1, file) : 0;

    MUST(file && fclose(file) == 0);
    read[bytes] = '\0';
    ck_assert_str_eq(read, text);
}

static mode_t mode_of(const char *path) {
    struct stat is;

    MUST(lstat(path, &is) == 0);
    return is.st_mode;
}

/* Checks that the folder holds those names and no more. */
static void expect_names(const char *names) {
    char command[128];

    snprintf(command, sizeof command, "test \"$(ls -A | tr '\\n' ' ')\" = '%s'", names);
    ANSWERS(0, system(command));
}

CASE("files", 30, enter_replace_folder, remove_replace_folder);

TEST(there_is_none) {
    ANSWERS(0, replace_with("file", "new"));
    expect_content("file", "new");
    MUST_EQ(mode_of("file"), S_IFREG | 0644);
    ANSWERS(0, weir__replace_file("private", 0600, 1, "", 0));
    expect_content("private", "");
    MUST_EQ(mode_of("private"), S_IFREG | 0600);
    expect_names("file private ");
}

/* A program that has the old file open reads the old contents to the end. */
TEST(one_takes_the_place_of_another) {
    char old[8] = "";
    int file;

    write_file("file", "old", 0640);
    file = open("file", O_RDONLY);
    ANSWERS(0, replace_with("file", "new"));
    ANSWERS(3, read(file, old, sizeof old));
    ck_assert_str_eq(old, "old");
    close(file);
    expect_content("file", "new");
    MUST_EQ(mode_of("file"), S_IFREG | 0640);
    ANSWERS(0, chmod("file", 0644));
    ANSWERS(0, weir__replace_file("file", 0600, 1, "x", 1));
    MUST_EQ(mode_of("file"), S_IFREG | 0600);
    expect_names("file ");
}

TEST(what_cannot_be_leaves_all_as_it_was) {
    char name[300];

    write_file("file", "old", 0644);
    ANSWERS(ENOENT, replace_with("", "new"));
    ANSWERS(ENOENT, replace_with("missing/file", "new"));
    ANSWERS(ENOTDIR, replace_with("file/file", "new"));
    ANSWERS(EISDIR, replace_with(folder, "new"));
    memset(name, 'x', sizeof name);
    name[NAME_MAX] = '\0';
    ANSWERS(ENAMETOOLONG, replace_with(name, "new")); /* the temporary name would be too long */
    expect_content("file", "old");
    expect_names("file ");
}

/* weir neither writes to nor removes a file or link that already has the temporary name. */
TEST(names_beside_that_are_taken_stay_untouched) {
    char beside[64];

    write_file("victim", "kept", 0644);
    snprintf(beside, sizeof beside, "file.new.%ld.0", (long)getpid());
    ANSWERS(0, symlink("victim", beside));
    snprintf(beside, sizeof beside, "file.new.%ld.1", (long)getpid());
    write_file(beside, "another's", 0644);
    ANSWERS(0, replace_with("file", "new"));
    expect_content("file", "new");
    expect_content("victim", "kept");
    expect_content(beside, "another's");
}

CASE("links", 30, enter_replace_folder, remove_replace_folder);

TEST(a_link_stays_and_its_file_is_replaced) {
    struct stat before, after;

    ANSWERS(0, mkdir("there", 0755));
    write_file("there/file", "old", 0600);
    ANSWERS(0, symlink("there/file", "second"));
    ANSWERS(0, symlink("second", "link"));
    ANSWERS(0, stat("link", &before));
    ANSWERS(0, replace_with("link", "new"));
    MUST(S_ISLNK(mode_of("link")) && S_ISLNK(mode_of("second")));
    expect_content("there/file", "new");
    ANSWERS(0, stat("link", &after));
    MUST(before.st_ino != after.st_ino);
    MUST_EQ(after.st_mode, S_IFREG | 0600);
    ANSWERS(0, unlink("there/file")); /* the link now leads nowhere */
    ANSWERS(0, replace_with("link", "newer"));
    MUST(S_ISLNK(mode_of("link")));
    expect_content("there/file", "newer");
    ANSWERS(0, symlink("loop", "loop"));
    ANSWERS(ELOOP, replace_with("loop", "new"));
    expect_names("link loop second there ");
}

/* In a folder in which everybody may write, a link of another user could redirect the file. */
TEST(links_of_other_users_are_not_followed) {
    write_file("victim", "kept", 0644);
    ANSWERS(0, symlink("victim", "own"));
    ANSWERS(0, symlink("victim", "other"));
    if (lchown("other", 12345, 12345) != 0) /* needs root */
        return;
    ANSWERS(0, chmod(".", 01777));
    ANSWERS(EACCES, replace_with("other", "new"));
    expect_content("victim", "kept");
    ANSWERS(0, replace_with("own", "own"));
    expect_content("victim", "own");
    ANSWERS(0, seteuid(12345));
    ANSWERS(EPERM,
            replace_with("own", "new")); /* follows root's link, but cannot replace root's file */
    ANSWERS(0, seteuid(0));
    expect_content("victim", "own");
    ANSWERS(0, chmod(".", 0755));
    ANSWERS(0, replace_with("other", "other"));
    expect_content("victim", "other");
}

enum { NOBODY = 65534, ANOTHER = 12345 };

/* Returns the result of weir__replace_file in a child process of a user to whom file modes apply. */
static int put_as_nobody(const char *path, const char *text) {
    pid_t child = fork();
    int status = -1;

    if (child == 0) {
        if (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
            _exit(255);
        _exit(weir__replace_file(path, 0666, 1, text, strlen(text)));
    }
    MUST(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The folder's mode says whether others may create links there.  Its files can be replaced, but not listed. */
TEST(files_in_an_unreadable_folder_can_be_replaced) {
    if (geteuid() != 0) { /* only root can change its user, or give files away */
        printf("# a folder that cannot be read: it takes root\n");
        return;
    }
    ANSWERS(0, chmod(".", 0755));
    ANSWERS(0, mkdir("dark", 0700));
    write_file("dark/file", "old", 0644);
    ANSWERS(0, symlink("file", "dark/link"));
    ANSWERS(0, lchown("dark/link", ANOTHER, ANOTHER));
    ANSWERS(0, chown("dark", NOBODY, NOBODY));
    ANSWERS(0, chmod("dark", 0300));
    ANSWERS(0, put_as_nobody("dark/file", "new"));
    expect_content("dark/file", "new");
    ANSWERS(0, put_as_nobody("dark/link", "newer"));
    expect_content("dark/file", "newer");
    MUST(S_ISLNK(mode_of("dark/link")));
    ANSWERS(0, chmod("dark", 0333));
    ANSWERS(EACCES, put_as_nobody("dark/link", "newest"));
    expect_content("dark/file", "newer");
    ANSWERS(0, chmod("dark", 0500)); /* no temporary file can be created */
    ANSWERS(EACCES, put_as_nobody("dark/file", "newest"));
    expect_content("dark/file", "newer");
}

TEST(a_folder_behind_a_link_is_not_replaced) {
    struct stat is;

    if (lstat("/bin", &is) == 0 && S_ISLNK(is.st_mode))
        ANSWERS(EISDIR, replace_with("/bin", "new"));
}

CASE("others", 30, enter_replace_folder, remove_replace_folder);

/* weir appends to what standard output already has, like a shell's redirection. */
TEST(what_is_no_plain_file_is_written_to) {
    int ends[2], before = dup(STDOUT_FILENO), file = open("out", O_RDWR | O_CREAT, 0644);
    char path[32], text[16] = "";

    MUST(pipe(ends) == 0);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    ANSWERS(0, replace_with(path, "piped"));
    ANSWERS(5, read(ends[0], text, sizeof text));
    ck_assert_str_eq(text, "piped");
    ANSWERS(0, replace_with("/dev/null", "new"));
    MUST(S_ISCHR(mode_of("/dev/null")));

    MUST(write(file, "first ", 6) == 6 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    ANSWERS(0, replace_with("/dev/stdout", "second "));
    ANSWERS(0, replace_with("out", "third"));
    MUST(dup2(before, STDOUT_FILENO) == STDOUT_FILENO);
    expect_content("out", "first second third");
    expect_names("out ");
}

CASE("files", 30, enter_replace_folder, remove_replace_folder);

/* The path is a name of one letter, below folders whose names are as long as names may be. */
TEST(the_longest_path_can_be_replaced) {
    char path[PATH_MAX] = "";

    while (strlen(path) + 2 * (NAME_MAX + 1) < PATH_MAX) {
        size_t length = strlen(path);

        memset(path + length, 'x', NAME_MAX);
        strcpy(path + length + NAME_MAX, "/");
    }
    memset(path + strlen(path), 'x', PATH_MAX - 2 - strlen(path));
    ANSWERS(ENAMETOOLONG, replace_with(path, "new"));
}

TEST(a_replacement_fails_if_all_names_are_taken) {
    char beside[64];

    for (int i = 0; i < 64; i++) {
        snprintf(beside, sizeof beside, "file.new.%ld.%d", (long)getpid(), i);
        write_file(beside, "another's", 0644);
    }
    ANSWERS(EEXIST, replace_with("file", "new"));
    ANSWERS(0, unlink(beside));
    ANSWERS(0, replace_with("file", "new"));
    expect_content("file", "new");
}

CASE("others", 30, enter_replace_folder, remove_replace_folder);

/* weir appends to the file of standard error, too.  If both streams are closed, weir replaces the file. */
TEST(the_file_of_standard_error_is_appended_to) {
    int out = dup(STDOUT_FILENO), error = dup(STDERR_FILENO), file;

    write_file("err", "first ", 0644);
    file = open("err", O_RDWR | O_APPEND);
    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO);
    ANSWERS(0, replace_with("err", "second"));
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    MUST_EQ(replace_with("err", "third"), 0);
    MUST(dup2(out, STDOUT_FILENO) == STDOUT_FILENO && dup2(error, STDERR_FILENO) == STDERR_FILENO);
    expect_content("err", "third");
}

#ifdef CAN_DENY
CASE("denied", 30, enter_replace_folder, remove_replace_folder);

/* weir need not synchronise the folder, which holds the name of the new file. */
TEST(a_folder_need_not_be_synchronised) {
    deny("open", 2, 0, EACCES);
    ANSWERS(0, weir__replace_file("file", 0600, 1, "new", 3));
    MUST_EQ(deny_none(), 1);
    expect_content("file", "new");
}

enum { NONE, PLAIN, LINK, LINK_TO_NONE, PIPE, STATES };

static void prepare_target(int state) {
    (void)unlink("file");
    (void)unlink("there");
    if (state == PLAIN)
        write_file("file", "old", 0644);
    if (state == LINK)
        write_file("there", "old", 0644);
    if (state == LINK || state == LINK_TO_NONE)
        ANSWERS(0, symlink("there", "file"));
    if (state == PIPE)
        ANSWERS(0, symlink("/dev/null", "file"));
}

/* Denies the k-th call, for each k.  The file is then new or as before, and weir returns the error.  No temporary file
 * stays, unless it could not be removed, and no descriptor stays open. */
static void deny_each_call(int state, int for_good) {
    int files = files_open(), why, is_folder_denied;

    for (uint64_t k = 1, all = 1; all > 0; k++) {
        prepare_target(state);
        deny(NULL, k, for_good, EIO);
        why = weir__replace_file("file", 0644, 1, "new", 3);
        all = deny_none();
        MUST(why == 0 || why == EIO);
        if (state == PLAIN || state == LINK)
            expect_content("file", why == 0 ? "new" : "old");
        else if (state != PIPE && why == 0)
            expect_content("file", "new");
        if (state == LINK || state == LINK_TO_NONE || state == PIPE)
            MUST(S_ISLNK(mode_of("file")));
        is_folder_denied = for_good && why != 0;
        if (is_folder_denied)
            ANSWERS(0, system("rm -f *.new.*"));
        if (state == NONE)
            expect_names(access("file", F_OK) == 0 ? "file " : "");
        else if (state == PLAIN || state == PIPE || access("there", F_OK) != 0)
            expect_names("file ");
        else
            expect_names("file there ");
        ANSWERS(files, files_open());
        ANSWERS(0, replace_with("file", "newer"));
    }
}

TEST_EACH(2 * STATES, a_replacement_survives_each_denied_call) {
    deny_each_call(_i / 2, _i % 2);
}

/* weir returns a failure of fsync if the caller asked for fsync, also through a link to a missing file. */
TEST_EACH(PIPE, what_does_not_come_to_the_disk_is_told) {
    prepare_target(_i);
    deny("fsync", 1, 0, EIO);
    ANSWERS(EIO, weir__replace_file("file", 0600, 1, "new", 3));
    (void)deny_none();
    prepare_target(_i);
    deny("fsync", 1, 0, EIO);
    ANSWERS(0, weir__replace_file("file", 0600, 0, "new", 3));
    (void)deny_none();
}

TEST(an_interrupted_write_is_repeated) {
    deny("write", 1, 0, EINTR);
    ANSWERS(0, replace_with("file", "new"));
    MUST_EQ(deny_none(), 1);
    expect_content("file", "new");
}
#endif

SUITE("replace", CK_FORK);
