/* SPDX-License-Identifier: MIT */
/* test_profile_files.c: the rule of lib/reserve/profile.h, and how weir treats files that are no profile. */
#include "tests/fixtures/profiles.h"

static struct weir_profile learned;
static uint64_t next_id;

static uint64_t learn_run(uint64_t reserved, uint64_t in_use, int grew) {
    weir__profile_add(&learned, (struct weir_profile_run){++next_id, reserved, in_use}, grew);
    return weir__profile_target(&learned);
}

CASE("bare", 60, NULL, NULL);

TEST(the_target_follows_the_needs_of_past_runs) {
    memset(&learned, 0, sizeof learned);
    MUST_EQ(weir__profile_target(&learned), 0);
    /* no run has grown: the need is an eighth more than the memory in use, at most the reserved memory */
    ANSWERS(900, learn_run(8000, 800, 0));
    ANSWERS(900, learn_run(850, 800, 0));
    /* a run that grew needs all its reserved memory */
    ANSWERS(2000, learn_run(2000, 1000, 1));
    /* a need that is less by an eighth at most counts as 2000 */
    ANSWERS(2000, learn_run(2000, 875, 0));
    MUST_EQ(learned.last[3].reserved, 2000);
    ANSWERS(2000, learn_run(2000, 874, 0));
    MUST_EQ(learned.last[0].reserved, 1748);
    /* the last four runs count in full */
    ANSWERS(2000, learn_run(2000, 500, 0));
    ANSWERS(2000, learn_run(2000, 500, 0));
    ANSWERS(1748, learn_run(2000, 500, 0));
    ANSWERS(1000, learn_run(2000, 500, 0));
    ANSWERS(1000, learn_run(2000, 100, 0));
    /* the load exceeds the target, although the run did not grow */
    ANSWERS(3000, learn_run(4000, 1500, 0));
    MUST_EQ(learned.runs, 11);
    /* a large ratio times a large load is at most the reserved memory */
    learn_run(UINT64_MAX, 1, 1);
    learn_run(5000, 4000, 0);
    MUST_EQ(learned.last[12 % WEIR_PROFILE_RUNS].reserved, 5000);
}

/* Blocks lie differently in preallocated memory, so a run may need a little more than one that grew step by step. */
TEST(a_program_that_grows_a_little_leaves_one_target) {
    memset(&learned, 0, sizeof learned);
    ANSWERS(1000, learn_run(1000, 900, 1));
    for (unsigned i = 0; i < 10; i++)
        ANSWERS(1000, learn_run(1000 + 30 * (i % 3), 900, 1));
    /* a load that is larger by 3% raises the target by 3% */
    ANSWERS(1030, learn_run(1060, 927, 1));
    /* a run needs much more memory for an equal load */
    ANSWERS(1200, learn_run(1200, 900, 1));
    ANSWERS(1200, learn_run(1210, 900, 1));
}

/* A load that is large every fourth time finds room each time. */
TEST(a_load_that_comes_back_finds_room) {
    memset(&learned, 0, sizeof learned);
    learn_run(1000, 1000, 1);
    for (int i = 1; i < 40; i++) {
        uint64_t target = weir__profile_target(&learned), load = i % 4 ? 300 : 1000;

        MUST_EQ(target, 1000);
        learn_run(target, load, load > target);
    }
}

TEST(a_later_record_replaces_an_earlier_one) {
    memset(&learned, 0, sizeof learned);
    learn_run(100, 100, 1);
    weir__profile_add(&learned, (struct weir_profile_run){77, 500, 500}, 1);
    learn_run(200, 200, 1);
    weir__profile_add(&learned, (struct weir_profile_run){77, 800, 700}, 1);
    MUST_EQ(learned.runs, 3);
    MUST_EQ(learned.last[1].id, 77);
    MUST_EQ(learned.last[1].reserved, 800);
    MUST_EQ(learned.last[1].in_use, 700);
}

static char good[WEIR_PROFILE_MOST_BYTES];
static size_t good_bytes;

static void make_good(void) {
    struct weir_profile profile = {0};

    weir__profile_add(&profile, (struct weir_profile_run){1, 5 * GIB, 4 * GIB}, 1);
    weir__profile_add(&profile, (struct weir_profile_run){2, 5 * GIB, GIB + 1}, 0);
    good_bytes = weir__profile_spell(&profile, a_key, good);
}

/* Parses a text that ends where its memory ends.  Returns 1 if the text is a profile that weir accepts. */
static int parses(const char *text, size_t bytes, const char **reason) {
    static struct weir_problem problem;
    struct weir_profile profile, before;
    enum weir_profile_found found;
    char *exact = malloc(bytes + 1);

    MUST(exact != NULL);
    memcpy(exact, text, bytes);
    exact[bytes] = '\0';
    memset(&profile, 77, sizeof profile);
    before = profile;
    memset(&problem, 0, sizeof problem);
    found = weir__profile_parse(exact, bytes, a_key, &profile, &problem);
    free(exact);
    MUST(found == WEIR_PROFILE_READ ||
         (problem.text[0] && memcmp(&profile, &before, sizeof profile) == 0));
    *reason = problem.text;
    return found == WEIR_PROFILE_READ;
}

/* Puts the right checksum under a text whose last line is one. */
static size_t seal(char *text, size_t bytes) {
    size_t body = bytes - strlen("checksum 0123456789abcdef\n");

    return body + (size_t)sprintf(text + body, "checksum %016llx\n",
                                  (unsigned long long)weir__profile_hash(text, body));
}

TEST(a_good_one_reads_as_it_was_written) {
    struct weir_profile profile;
    struct weir_problem problem;
    char again[WEIR_PROFILE_MOST_BYTES];

    make_good();
    MUST_EQ(weir__profile_parse(good, good_bytes, a_key, &profile, &problem), WEIR_PROFILE_READ);
    MUST_EQ(weir__profile_target(&profile), 5 * GIB);
    MUST_EQ(profile.runs, 2);
    MUST_EQ(profile.last[0].in_use, 4 * GIB);
    MUST_EQ(profile.last[1].id, 2);
    MUST_EQ(weir__profile_spell(&profile, a_key, again), good_bytes);
    MUST(memcmp(again, good, good_bytes) == 0);
}

TEST(the_hash_is_fnv_1a) {
    MUST_EQ(weir__profile_hash("", 0), UINT64_C(0xcbf29ce484222325));
    MUST_EQ(weir__profile_hash("a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    MUST_EQ(weir__profile_hash("foobar", 6), UINT64_C(0x85944171f73967e8));
}

TEST(every_cut_and_every_changed_byte_is_refused) {
    char text[WEIR_PROFILE_MOST_BYTES + 1];
    const char *reason;

    make_good();
    for (size_t bytes = 0; bytes < good_bytes; bytes++)
        MUST(!parses(good, bytes, &reason));
    for (size_t at = 0; at < good_bytes; at++)
        for (int change = 1; change < 256; change++) {
            memcpy(text, good, good_bytes);
            text[at] = (char)(text[at] ^ change);
            MUST(!parses(text, good_bytes, &reason));
        }
    memcpy(text, good, good_bytes);
    for (int c = 0; c < 256; c++) {
        text[good_bytes] = (char)c;
        MUST(!parses(text, good_bytes + 1, &reason));
    }
}

/* Profiles with a correct checksum, in which `new` replaces `old`. */
static const struct {
    const char *old, *new, *reason;
} forged[] = {
    {"weir profile 4", "weir profile 1", "another version"},
    {"weir profile 4", "weir profile 3", "another version"},
    {"weir profile 4", "weir profile 44", "another version"},
    {"weir profile 4", "wier profile 4", "it is no profile"},
    {"model a device", "model b device", "another device"},
    {"model a device", "model a device b", "another device"},
    {"engine=pool", "engine=arena", "other settings"},
    {"engine=pool", "engine=pool limit=1GiB", "other settings"},
    {"target 5GiB", "target 6GiB", "damaged"},
    {"target 5GiB", "target  5GiB", "damaged"},
    {"target 5GiB\n", "", "damaged"},
    {"runs 2\n", "", "damaged"},
    {"runs 2", "runs 1", "damaged"},
    {"runs 2", "runs 3", "damaged"},
    {"runs 2", "runs 02", "damaged"},
    {"runs 2", "runs +2", "damaged"},
    {"runs 2", "runs 99999999999999999999", "damaged"},
    {"run 1 5368709120 4294967296", "run 1 5368709120 much", "damaged"},
    {"run 1 5368709120 4294967296", "run 1 5368709120 -1", "damaged"},
    {"run 1 5368709120 4294967296\n", "", "damaged"},
    {"run 1 ", "run 01 ", "damaged"},
    {"run 1 ", "run 0x1 ", "damaged"},
    {"run 1 5368709120", "run 1 5GiB", "damaged"},
    {"run 1 5368709120", "run 1  5368709120", "damaged"},
    {"run 1 ", "run 1\n", "damaged"},
    {"checksum", "and more\nchecksum", "damaged"},
};

TEST_EACH(ROWS(forged), a_forged_one_is_refused) {
    char text[WEIR_PROFILE_MOST_BYTES];
    const char *reason;
    make_good();
    good[good_bytes] = '\0';
    const char *at = strstr(good, forged[_i].old);
    MUST(at != NULL);
    size_t bytes = (size_t)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good,
                                    forged[_i].new, at + strlen(forged[_i].old));
    bytes = seal(text, bytes);
    MUST(!parses(text, bytes, &reason));
    ck_assert_msg(strstr(reason, forged[_i].reason) != NULL, "%s", reason);
    /* a zero byte in the text is refused, too */
    *strchr(text, ' ') = '\0';
    MUST(!parses(text, seal(text, bytes), &reason));
}

CASE("files", 60, set_up_profiles, tear_down_profiles);

#ifdef CAN_DENY
TEST(an_unreadable_profile_is_reported) {
    struct weir_profile profile;
    struct weir_problem problem;

    make_good();
    write_whole(file, good, good_bytes);
    for (uint64_t k = 1; k <= 2; k++) { /* at the beginning and at the end of the file */
        deny("read", k, 0, EIO);
        ANSWERS(WEIR_PROFILE_FOREIGN, weir__profile_load(file, a_key, &profile, &problem));
        MUST_EQ(deny_none(), 1);
        MUST(strncmp(problem.text, "cannot read it: ", 16) == 0);
    }
    deny("read", 1, 0, EINTR);
    ANSWERS(WEIR_PROFILE_READ, weir__profile_load(file, a_key, &profile, &problem));
    MUST_EQ(deny_none(), 1);
    MUST_EQ(profile.runs, 2);
}
#endif

TEST_EACH(5, a_damaged_file_is_ignored_and_replaced) {
    char text[2 * WEIR_PROFILE_MOST_BYTES];
    weir_statistics s = run_profiled(POOL, 40);
    size_t bytes = read_whole(file, text, sizeof text);
    static const char *const reasons[] = {"is damaged", "is damaged", "is empty", "is damaged",
                                          "this one reads \"weir profile 4\""};

    if (_i == 0)
        bytes -= 1;
    if (_i == 1)
        text[bytes - 30] ^= 1; /* damages the last run */
    if (_i == 2)
        bytes = 0;
    if (_i == 3)
        memset(text + bytes, '\n', sizeof text - bytes), bytes = sizeof text;
    if (_i == 4)
        *strchr(text, '4') = '1';
    write_whole(file, text, bytes);
    EXPECT_WARNINGS(0, "", "");
    s = run_profiled(POOL, 40);
    EXPECT_WARNINGS(1, reasons[_i], "weir ignores it, and replaces it when this run ends");
    MUST_EQ(s.profile_asked, 0);
    MUST_EQ(s.profile_runs, 0);
    MUST_LE(1, s.growth_allocs);
    ANSWERS(1, run_profiled(POOL, 40).profile_runs);
    EXPECT_WARNINGS(0, "", "");
}

/* A program without a log says, too, that the file is ignored and replaced; a program with log none says nothing. */
TEST(without_a_log_the_user_learns_it_too) {
    static const char old[] = "weir profile 1\n";
    weir_options options = profiled_options(POOL);

    options.log = WEIR_LOG_DEFAULT;
    write_whole(file, old, strlen(old));
    run_with(&options, 40);
    EXPECT_WARNINGS(1, "another version", "weir ignores it, and replaces it when this run ends");
    options.log = WEIR_LOG_NONE;
    write_whole(file, old, strlen(old));
    run_with(&options, 40);
    EXPECT_WARNINGS(0, "", "");
}

TEST(a_file_of_somebody_else_is_left_alone) {
    static const char words[] = "my thesis\n";
    char text[64];
    write_whole(file, words, strlen(words));
    weir_statistics s = run_profiled(POOL, 40);
    MUST_EQ(s.profile_runs, 0);
    EXPECT_WARNINGS(2, "it is no profile: weir ignores it, and leaves it alone",
                    "it is no profile: this run is not recorded");
    MUST_EQ(read_whole(file, text, sizeof text), strlen(words));
    MUST(memcmp(text, words, strlen(words)) == 0);
}

TEST(what_is_no_file_is_left_alone) {
    struct stat about;

    ANSWERS(0, mkfifo(file, 0600));
    run_profiled(POOL, 40); /* the run does not wait for a writer of the pipe */
    EXPECT_WARNINGS(2, file, "no regular file");
    MUST(stat(file, &about) == 0 && S_ISFIFO(about.st_mode));
}

/* These places refuse even root, who may write in any folder. */
TEST_EACH(3, an_unwritable_place_is_reported) {
    static const char *const places[] = {"/proc/weir-profile", "/nowhere/at/all", NULL};
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    char within[280];

    write_whole(file, "", 0);
    snprintf(within, sizeof within, "%s/below", file); /* a path below a regular file */
    options.profile = places[_i] ? places[_i] : within;
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 10);
    (void)lines();
    EXPECT(WEIR_E_FILE, weir_profile_save(a, NULL));
    EXPECT_WARNINGS(1, options.profile, "cannot");
    MUST_EQ(weir_last_driver_result(), 0);
    OK(weir_allocator_destroy(a));
    EXPECT_WARNINGS(1, options.profile, "this run is not recorded");
}

TEST(a_folder_without_leave_to_write) {
    weir_allocator *a;
    weir_options options = profiled_options(POOL);

    run_profiled(POOL, 10);
    ANSWERS(0, chmod(folder, 0500));
    if (geteuid() == 0)
        ANSWERS(0, chmod(folder, 0700)); /* root may write in any folder */
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 20);
    EXPECT(geteuid() == 0 ? WEIR_OK : WEIR_E_FILE, weir_profile_save(a, NULL));
    OK(weir_allocator_destroy(a));
    ANSWERS(0, chmod(folder, 0700));
    if (geteuid() != 0)
        ANSWERS(1, run_profiled(POOL, 20).profile_runs); /* the earlier file is whole */
}

CASE("runs", 60, set_up_profiles, tear_down_profiles);

/* The driver does not describe the device, so the run goes on without a profile. */
TEST_EACH(3, a_run_needs_no_profile_if_the_device_is_unknown) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuDeviceGetName, WEIR_ENTRY_cuDeviceGetUuid, WEIR_ENTRY_cuDeviceTotalMem};
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    run_profiled(POOL, 40);
    weir__model_fail(entries[_i], 1, CUDA_ERROR_UNKNOWN, 1);
    weir_statistics s = run_profiled(POOL, 40);
    MUST_EQ(s.profile_asked, 0);
    MUST_EQ(s.profile_runs, 0);
    EXPECT_WARNINGS(1, file, "the driver did not describe the device");
    options.profile = NULL;
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 1);
    EXPECT(WEIR_E_DRIVER, weir_profile_save(a, file));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    OK(weir_allocator_destroy(a));
    weir__model_faults_clear();
    ANSWERS(1, run_profiled(POOL, 40).profile_runs); /* the earlier file is whole */
}

#ifdef CAN_REFUSE_HOST_MEMORY
/* The k-th allocation of host memory fails. weir makes no allocator, or one without a profile, or one with its profile,
 * and leaks no memory. */
TEST(host_memory_runs_out) {
    weir_options options = profiled_options(POOL);
    int without = 0, with = 0, none = 0;

    run_profiled(POOL, 40);
    run_profiled(POOL, 40); /* allocates the memory that the process needs only once */
    for (uint64_t k = 1; with == 0 || was_refused; k++) {
        int64_t held_before = pieces_held;
        weir_allocator *a = NULL;
        was_refused = 0;
        refuse_in = k;
        weir_status status = weir_allocator_create(&options, &a);
        refuse_in = 0;
        MUST(status == WEIR_OK || was_refused);
        none += status != WEIR_OK;
        if (status == WEIR_OK) {
            without += a->profile_asked == 0;
            with += a->profile_asked > 0;
            OK(weir_allocator_destroy(a));
        }
        MUST_EQ(pieces_held, held_before);
    }
    MUST(none > 0 && without >= 3 && with > 0);
}

TEST(host_memory_runs_out_at_the_end) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    uint64_t k = 1;

    for (was_refused = 1; was_refused; k++) {
        int64_t held_before = pieces_held;

        OK(weir_allocator_create(&options, &a));
        request_rounds(a, 4);
        was_refused = 0;
        refuse_in = k;
        OK(weir_allocator_destroy(a));
        refuse_in = 0;
        MUST_EQ(pieces_held, held_before);
    }
}
#endif

static int exit_code_of(pid_t child) {
    int status;

    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_child_saves_nothing) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 10);
    pid_t child = fork();
    if (child == 0)
        _exit(weir_profile_save(a, NULL) != WEIR_E_FORKED ||
              weir_profile_save(a, file) != WEIR_E_FORKED ||
              weir_allocator_destroy(a) != WEIR_E_FORKED);
    ANSWERS(0, exit_code_of(child));
    MUST(access(file, F_OK) != 0);
    OK(weir_allocator_destroy(a));
    ANSWERS(0, access(file, F_OK));
}

/* Uses the default allocator as a process does before it ends by exit.  Returns the runs in the profile. */
static int use_default(int grandchild) {
    weir_allocator *a;
    weir_statistics s = {.size = sizeof s};
    void *block;
    pid_t child = -1;

    if (weir_default_allocator(&a) != WEIR_OK ||
        weir_alloc(a, 50 * MIB, (weir_stream)2, &block) != WEIR_OK || weir_stats(a, &s) != WEIR_OK)
        return 100;
    if (grandchild && (child = fork()) == 0)
        exit(0); /* runs the handlers of atexit */
    if (grandchild && (exit_code_of(child) != 0 || access(file, F_OK) == 0))
        return 101;
    return (int)s.profile_runs; /* the process ends with a live block */
}

CASE("bare", 60, NULL, NULL);

TEST(the_default_allocator_saves_at_exit) {
    make_profile_folder();
    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_PROFILE", file, 1);
    for (int runs = 0; runs < 3; runs++) {
        pid_t child = fork();

        if (child == 0)
            exit(use_default(runs == 0));
        ANSWERS(runs, exit_code_of(child));
    }
    tear_down_profiles();
}

int main(void) {
    if (!make_all())
        return 1;
    int failed = run_tests("profile files", CK_FORK);
    return !remove_all(all) || failed;
}
