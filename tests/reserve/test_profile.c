/* SPDX-License-Identifier: MIT */
/* test_profile.c: the profile that a run leaves for the next run, with each engine that can learn. */
#include "tests/fixtures/profiles.h"

CASE("runs", 60, set_up_profiles, tear_down_profiles);

TEST_EACH(WAYS, the_second_run_does_not_grow) {
    weir_statistics first = run_profiled(_i, 40), second;
    struct stat about;

    MUST_LE(1, first.growth_allocs);
    MUST_EQ(first.profile_runs, 0);
    MUST_EQ(first.profile_asked, 0);
    MUST_EQ(first.prealloc_asked, 0);
    MUST(stat(file, &about) == 0 && S_ISREG(about.st_mode));
    MUST_EQ(about.st_mode & 07777, 0600);
    for (unsigned again = 1; again < 12; again++) { /* more runs than a profile keeps */
        second = run_profiled(_i, 40);
        MUST_EQ(second.profile_runs, again);
        MUST_EQ(second.prealloc_asked, second.profile_asked);
        MUST_EQ(second.growths, 1);
        MUST_EQ(second.growth_allocs, 0);
        MUST_EQ(second.profile_asked, first.reserved_peak);
        MUST_LE(second.reserved_peak, first.reserved_peak);
    }
    EXPECT_WARNINGS(0, "", "");
}

TEST_EACH(WAYS, a_larger_load_raises_it_at_once) {
    weir_statistics small = run_profiled(_i, 20);
    weir_statistics large = run_profiled(_i, 60);
    MUST_EQ(large.profile_asked, small.reserved_peak);
    MUST_LE(1, large.growth_allocs);
    weir_statistics again = run_profiled(_i, 60);
    MUST_EQ(again.profile_asked, large.reserved_peak);
    MUST_EQ(again.growth_allocs, 0);
}

/* Allocates and frees blocks of mixed sizes, by a generator that begins alike in each run. */
static void mixed_load(weir_allocator *a) {
    void *block[48] = {NULL};
    uint64_t random = 1;

    for (int i = 0; i < 1000; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        size_t at = (size_t)(random >> 33) % 48, bytes = (size_t)(random >> 40) % (24 * MIB) + MIB;

        OK(weir_free(a, block[at], A));
        OK(weir_alloc(a, bytes, A, &block[at]));
    }
    for (int i = 0; i < 48; i++)
        OK(weir_free(a, block[i], A));
}

/* Blocks lie differently in preallocated memory, so each run grows a little. The next run preallocates no more. */
TEST_EACH(WAYS, runs_of_one_program_leave_one_target) {
    weir_options options = profiled_options(_i);
    uint64_t target = 0;

    for (int i = 0; i < 5; i++) {
        weir_allocator *a;
        OK(weir_allocator_create(&options, &a));
        mixed_load(a);
        weir_statistics s = stats_of(a);
        OK(weir_allocator_destroy(a));
        MUST_EQ(s.profile_asked, target);
        if (i == 0)
            target = s.reserved_peak;
    }
}

/* The large run counts until four smaller ones have followed. The small runs never grow. */
TEST_EACH(WAYS, a_smaller_load_lowers_it_after_four_runs) {
    weir_statistics large = run_profiled(_i, 60), small;

    for (int i = 0; i < 4; i++) {
        small = run_profiled(_i, 10);
        MUST_EQ(small.profile_asked, large.reserved_peak);
        MUST_EQ(small.growth_allocs, 0);
    }
    small = run_profiled(_i, 10);
    MUST_LE(small.profile_asked, large.reserved_peak / 3);
    MUST_LE(small.in_use_peak, small.profile_asked);
    MUST_EQ(run_profiled(_i, 10).growth_allocs, 0);
}

TEST(a_preallocation_that_is_set_wins) {
    static const uint64_t amounts[] = {0, 96 * 1024 * 1024};
    weir_options options = profiled_options(MAPPED);
    weir_statistics s = run_profiled(MAPPED, 40);

    for (unsigned i = 0; i < 2; i++) {
        options.prealloc = bytes_amount(amounts[i]);
        s = run_with(&options, 40);
        MUST_EQ(s.prealloc_asked, amounts[i]);
        MUST_EQ(s.profile_asked, 0);
        MUST_EQ(s.profile_runs, i + 1); /* weir records the run nevertheless */
    }
}

/* Preallocated memory stays, whatever the release threshold is. */
TEST(a_threshold_below_it_is_raised) {
    weir_options options = profiled_options(POOL_WITHOUT_CACHES);
    weir_allocator *a;

    options.release_threshold = bytes_amount(0);
    (void)run_with(&options, 40);
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 10);
    MUST_LE(40 * MIB, stats_of(a).profile_asked);
    MUST_EQ(stats_of(a).reserved, stats_of(a).profile_asked);
    OK(weir_allocator_destroy(a));
}

/* A minimum does not keep the profile from preallocating more. */
TEST_EACH(WAYS, a_minimum_does_not_hold_the_profile_down) {
    static const weir_amount little[] = {{.value = 96 * MIB, .kind = WEIR_AMOUNT_BYTES},
                                         {.value = 10000, .kind = WEIR_AMOUNT_OF_FREE}};
    weir_options options = profiled_options(_i);
    weir_statistics before = run_profiled(_i, 40), s;

    for (int i = 0; i < 2; i++) {
        options.prealloc_min = little[i];
        s = run_with(&options, 40);
        MUST_EQ(s.prealloc_asked, before.reserved_peak);
        MUST_EQ(s.profile_asked, before.reserved_peak);
        MUST_EQ(s.growth_allocs, 0);
    }
    options.prealloc_min = bytes_amount(2 * before.reserved_peak);
    s = run_with(&options, 40);
    MUST_EQ(s.prealloc_asked, 2 * before.reserved_peak);
    MUST_EQ(s.profile_asked, 0);
}

TEST(at_the_first_request_where_that_is_asked) {
    weir_options options = profiled_options(POOL);
    weir_statistics before = run_profiled(POOL, 40);
    weir_allocator *a;
    OK(weir__allocator_create_later(driver, &options, &a, NULL, 0));
    weir_statistics s = stats_of(a);
    MUST_EQ(s.reserved, 0);
    MUST_EQ(s.profile_asked, before.reserved_peak);
    request_rounds(a, 40);
    s = stats_of(a);
    MUST_EQ(s.growths, 1);
    MUST_EQ(s.prealloc_got, before.reserved_peak);
    OK(weir_allocator_destroy(a));
}

/* A run without requests writes no profile. */
TEST(an_idle_run_is_not_noted) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;

    OK(weir_allocator_create(&options, &a));
    OK(weir_profile_save(a, NULL));
    OK(weir_allocator_destroy(a));
    MUST(access(file, F_OK) != 0);
}

/* Writes a valid profile that states a need of `need` bytes. */
static void write_profile_of(const weir_options *options, uint64_t need) {
    struct weir_profile profile = {0};
    struct weir_problem problem;
    weir_allocator *a;

    weir__profile_add(&profile, (struct weir_profile_run){1, need, need}, 1);
    OK(weir_allocator_create(options, &a));
    MUST(weir__profile_store(options->profile, a->run_profile->key, &profile, &problem));
    OK(weir_allocator_destroy(a));
}

TEST_EACH(WAYS, no_more_than_the_device_has_free) {
    weir_options options = profiled_options(_i);
    CUdeviceptr other;
    write_profile_of(&options, UINT64_MAX);
    weir_statistics s = run_with(&options, 4);
    MUST_LE(s.profile_asked, CAPACITY);
    ANSWERS(0, unlink(file));
    write_profile_of(&options, 6 * GIB);
    CU(driver->cuMemAlloc(&other, 5 * GIB));
    s = run_with(&options, 4);
    MUST_LE(s.profile_asked, 3 * GIB);
    MUST_LE(2 * GIB, s.profile_asked);
    CU(driver->cuMemFree(other));
}

TEST_EACH(WAYS, a_profile_preallocates_at_most_the_limit) {
    weir_options options = profiled_options(_i);
    options.limit = bytes_amount(256 * MIB);
    write_profile_of(&options, 4 * GIB);
    weir_statistics s = run_with(&options, 4);
    MUST_EQ(s.profile_asked, 256 * MIB);
    MUST_EQ(s.reserved_peak, 256 * MIB);
}

static void other_engine(weir_options *o) {
    o->engine = WEIR_ENGINE_POOL;
}
static void other_growth(weir_options *o) {
    o->growth = WEIR_GROWTH_STEP;
}
static void other_limit(weir_options *o) {
    o->limit = bytes_amount(4 * GIB);
}
static void other_caches(weir_options *o) {
    o->cache = WEIR_SWITCH_OFF;
}
static void other_regions(weir_options *o) {
    o->engine = WEIR_ENGINE_BFC;
    o->growth = WEIR_GROWTH_EXACT;
}
static void (*const others[])(weir_options *o) = {other_engine, other_growth, other_limit,
                                                  other_caches, other_regions};

TEST_EACH(5, other_settings_are_told_apart) {
    weir_options options = profiled_options(MAPPED);

    run_profiled(MAPPED, 40);
    others[_i](&options);
    ANSWERS(0, run_with(&options, 40).profile_asked);
    EXPECT_WARNINGS(1, "learned on another device or with other settings",
                    ": weir ignores it, and replaces it when this run ends");
    MUST(run_with(&options, 40).profile_asked > 0); /* the profile is now that of the last run */
}

/* Case 0 has a device that differs only in its id. Case 1 has a device of another size. */
TEST_EACH(2, another_device_is_told_apart) {
    weir_options options = profiled_options(POOL);
    CUcontext second;

    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    run_profiled(POOL, 40);
    if (_i == 0) {
        options.device = "model:1";
        CU(driver->cuDevicePrimaryCtxRetain(&second, 1));
        CU(driver->cuCtxPushCurrent(second));
        CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    } else {
        start_model(CAPACITY / 2);
    }
    ANSWERS(0, run_with(&options, 40).profile_asked);
    EXPECT_WARNINGS(1, file, "learned on another device");
    MUST(run_with(&options, 40).profile_asked > 0);
}

CASE("files", 60, set_up_profiles, tear_down_profiles);

/* Each of two allocators began before the other one wrote the file, so only the second one replaces it and says so. */
TEST(who_ends_later_says_that_it_replaces) {
    weir_options pool = profiled_options(POOL), arena = profiled_options(MAPPED);
    weir_allocator *first, *second;

    OK(weir_allocator_create(&pool, &first));
    OK(weir_allocator_create(&arena, &second));
    request_rounds(first, 10);
    request_rounds(second, 10);
    OK(weir_allocator_destroy(first));
    EXPECT_WARNINGS(0, "", "");
    OK(weir_profile_save(second, NULL));
    EXPECT_WARNINGS(
        1, file,
        "learned on another device or with other settings (in a folder each has its own): this run "
        "replaces it");
    OK(weir_allocator_destroy(second));
    EXPECT_WARNINGS(0, "", "");
}

CASE("runs", 60, set_up_profiles, tear_down_profiles);

TEST(in_a_folder_each_has_its_own) {
    weir_options pool = profiled_options(POOL), arena = profiled_options(MAPPED);

    pool.profile = arena.profile = folder;
    for (unsigned i = 0; i < 3; i++) {
        ANSWERS(i, run_with(&pool, 40).profile_runs);
        ANSWERS(i, run_with(&arena, 20).profile_runs);
    }
    EXPECT_WARNINGS(0, "", "");
}

TEST(a_name_is_from_where_the_process_was) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    char name[16] = "profile";

    ANSWERS(0, chdir(folder));
    options.profile = name;
    OK(weir_allocator_create(&options, &a));
    memset(name, 'x', sizeof name); /* the caller may reuse its text */
    ANSWERS(0, chdir("/"));
    request_rounds(a, 10);
    OK(weir_allocator_destroy(a));
    ANSWERS(0, access(file, F_OK));
}

TEST_EACH(2, engines_without_growth_learn_nothing) {
    weir_options options = profiled_options(REGIONS);
    weir_allocator *a;

    options.engine = _i == 0 ? WEIR_ENGINE_DIRECT : WEIR_ENGINE_BFC_FIXED;
    OK(weir_allocator_create(&options, &a));
    EXPECT_WARNINGS(1, "profile", "has no effect");
    request_rounds(a, 10);
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, NULL));
    (void)lines();
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_profile_save(a, file));
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, "weir: error: weir_profile_save: engines direct and bfc-fixed "
                        "have nothing to learn\n"));
    OK(weir_allocator_destroy(a));
    MUST(access(file, F_OK) != 0);
}

static uint64_t runs_in(const char *path, const char *key) {
    struct weir_profile profile = {0};
    struct weir_problem problem;

    ANSWERS(WEIR_PROFILE_READ, weir__profile_load(path, key, &profile, &problem));
    return profile.runs;
}

TEST(one_run_is_noted_once) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    OK(weir_allocator_create(&options, &a));
    char key[WEIR_PROFILE_KEY_BYTES];
    memcpy(key, a->run_profile->key, sizeof key);
    for (int i = 1; i <= 3; i++) {
        request_rounds(a, 10 * i);
        OK(weir_profile_save(a, NULL));
        ANSWERS(1, runs_in(file, key));
    }
    MUST_EQ(stats_of(a).profile_runs, 0);
    OK(weir_allocator_destroy(a));
    ANSWERS(1, runs_in(file, key));
}

TEST_EACH(2, a_profile_is_saved_where_the_caller_says) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    options.profile = _i ? "off" : NULL;
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 40);
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, NULL));
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, ""));
    EXPECT(WEIR_E_INVALID, weir_profile_save(NULL, file));
    for (int i = 0; i < 2; i++)
        OK(weir_profile_save(a, file));
    weir_statistics s = stats_of(a);
    OK(weir_allocator_destroy(a));
    weir_statistics next = run_profiled(POOL, 40);
    MUST_EQ(next.profile_asked, s.reserved_peak);
    MUST_EQ(next.profile_runs, 1); /* both calls record one run */
}

/* weir writes equal records to the allocator's own profile and to the file that the caller names. */
TEST(a_profile_is_saved_in_both_places) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a;
    char elsewhere[300], one[WEIR_PROFILE_MOST_BYTES], other[WEIR_PROFILE_MOST_BYTES];
    snprintf(elsewhere, sizeof elsewhere, "%s.elsewhere", file);
    OK(weir_allocator_create(&options, &a));
    request_rounds(a, 40);
#ifdef CAN_REFUSE_HOST_MEMORY
    for (uint64_t k = 1, failed_requests = 0; k == 1 || was_refused; k++) {
        was_refused = 0;
        refuse_in = k;
        failed_requests += weir_profile_save(a, elsewhere) == WEIR_E_HOST_MEMORY;
        refuse_in = 0;
        MUST(was_refused || failed_requests > 0);
    }
#endif
    OK(weir_profile_save(a, elsewhere));
    OK(weir_profile_save(a, NULL));
    size_t bytes = read_whole(file, one, sizeof one);
    MUST_EQ(read_whole(elsewhere, other, sizeof other), bytes);
    MUST(memcmp(one, other, bytes) == 0);
    OK(weir_allocator_destroy(a));
}

TEST(a_device_with_any_name) {
    char profile[300];
    static const char words[] = "name = Gr\xc3\xb6\xc3\x7f\x01"
                                "e\n";

    snprintf(profile, sizeof profile, "%s.model", file);
    write_whole(profile, words, sizeof words - 1);
    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .profile = profile}),
            0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    run_profiled(POOL, 20);
    ANSWERS(1, run_profiled(POOL, 20).profile_runs);
}

/* The profile records both of two allocators that live at one time. */
TEST(two_allocators_share_one_profile) {
    weir_options options = profiled_options(POOL);
    weir_allocator *a, *b;
    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_create(&options, &b));
    request_rounds(a, 60);
    request_rounds(b, 10);
    weir_statistics large = stats_of(a);
    OK(weir_allocator_destroy(a));
    OK(weir_allocator_destroy(b));
    ANSWERS(large.reserved_peak, run_profiled(POOL, 1).profile_asked);
    ANSWERS(3, run_profiled(POOL, 1).profile_runs);
}

enum { SAVERS = 3, SAVES = 60 };

static void save_often(int saver) {
    struct weir_problem problem;

    for (int i = 0; i < SAVES; i++) {
        struct weir_profile profile = {0};
        struct weir_profile_run run = {(uint64_t)(saver * SAVES + i + 1), GIB, GIB};

        (void)weir__profile_load(file, a_key, &profile, &problem);
        weir__profile_add(&profile, run, 1);
        if (!weir__profile_store(file, a_key, &profile, &problem))
            _exit(1);
    }
}

CASE("bare", 60, NULL, NULL);

/* A process that reads meanwhile reads a whole profile, and no other file remains. */
TEST(processes_may_save_at_once) {
    struct weir_profile profile;
    struct weir_problem problem;
    int running = SAVERS, status, seen = 0;
    char command[280];

    make_profile_folder();
    for (int i = 0; i < SAVERS; i++)
        if (fork() == 0) {
            save_often(i);
            _exit(0);
        }
    while (running > 0) {
        enum weir_profile_found found = weir__profile_load(file, a_key, &profile, &problem);

        ck_assert_msg(found <= WEIR_PROFILE_NONE, "%s", problem.text);
        MUST(found == WEIR_PROFILE_READ || !seen);
        seen |= found == WEIR_PROFILE_READ;
        if (waitpid(-1, &status, WNOHANG) > 0) {
            MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            running--;
        }
    }
    MUST_LE(WEIR_PROFILE_RUNS, profile.runs);
    snprintf(command, sizeof command, "test \"$(ls -A %s)\" = profile", folder);
    ANSWERS(0, system(command));
    tear_down_profiles();
}

static void *save_from_thread(void *allocator) {
    for (int i = 0; i < SAVES; i++)
        OK(weir_profile_save(allocator, NULL));
    return NULL;
}

CASE("runs", 60, set_up_profiles, tear_down_profiles);

TEST(threads_may_save_at_once) {
    weir_options options = profiled_options(POOL);
    pthread_t thread[SAVERS];
    weir_allocator *a;
    OK(weir_allocator_create(&options, &a));
    char key[WEIR_PROFILE_KEY_BYTES];
    memcpy(key, a->run_profile->key, sizeof key);
    request_rounds(a, 10);
    for (int i = 0; i < SAVERS; i++)
        ANSWERS(0, pthread_create(&thread[i], NULL, save_from_thread, a));
    for (int i = 0; i < SAVERS; i++)
        ANSWERS(0, pthread_join(thread[i], NULL));
    ANSWERS(1, runs_in(file, key));
    OK(weir_allocator_destroy(a));
}

int main(void) {
    if (!make_all())
        return 1;
    int failed = run_tests("profile", CK_FORK);
    return !remove_all(all) || failed;
}
