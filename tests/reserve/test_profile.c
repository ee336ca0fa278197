/* SPDX-License-Identifier: MIT */
/* test_profile.c: what a run leaves for the next one, and what becomes of files that are not that.
 *
 * Runs are allocators that are made, loaded and destroyed one after another on the device model, in every
 * way of handing out blocks that has something to learn.  The file alone is tested on lib/reserve/profile.h.
 */
#include "tests/fixtures/model_device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/deny.h"
#include "tests/fixtures/logged.h"
#include "reserve/profile.h"

#define CAPACITY (8 * GIB)

static char all[200]; /* the folders of the tests: one that fails does not come to remove its own */
static char folder[240], file[256];

/* Where run-tap clears up, or in memory where that is available: some hundreds of files are synchronised. */
static int make_all(void) {
    const char *own = getenv("WEIR_RUN_FOLDER");

    snprintf(all, sizeof all, "%s/weir-profile-XXXXXX",
             own && *own                            ? own
             : access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm"
                                                    : "/tmp");
    return mkdtemp(all) != NULL;
}

static void make_folder(void) {
    snprintf(folder, sizeof folder, "%s/XXXXXX", all);
    MUST(mkdtemp(folder) != NULL);
    MUST(setenv("WEIR_RUN_FOLDER", folder, 1) ==
         0); /* no turns with other processes, in real time */
    snprintf(file, sizeof file, "%s/profile", folder);
}

static void set_up(void) {
    make_folder();
    start_model(CAPACITY);
    catch_log();
}

static int remove_all(const char *path) {
    char command[280];

    snprintf(command, sizeof command, "rm -rf '%s'", path);
    return system(command) == 0;
}

static void tear_down(void) {
    MUST(remove_all(folder));
}

/* ---- runs ------------------------------------------------------------------------------------ */

enum { POOL, POOL_WITHOUT_CACHES, REGIONS, MAPPED_FIT, MAPPED, MAPPED_FAST, WAYS };

static weir_options options_for(int way) {
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.profile = file;
    options.log = WEIR_LOG_WARNING;
    options.engine = way >= REGIONS ? WEIR_ENGINE_ARENA : WEIR_ENGINE_POOL;
    if (way == POOL_WITHOUT_CACHES)
        options.front = WEIR_SWITCH_OFF;
    if (way >= MAPPED_FIT) {
        options.arena = WEIR_ARENA_MAPPED;
        options.packing = way == MAPPED_FIT ? WEIR_PACKING_COMPACT
                          : way == MAPPED   ? WEIR_PACKING_DEFAULT
                                            : WEIR_PACKING_FAST;
    }
    return options;
}

static void load(weir_allocator *a, int blocks) {
    void *block[64];

    MUST(blocks <= 64);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < blocks; i++)
            OK(weir_alloc(a, (size_t)(i % 5 + 1) * 4 * MIB, A, &block[i]));
        for (int i = 0; i < blocks; i++)
            OK(weir_free(a, block[i], A));
        CU(driver->cuStreamSynchronize(A));
    }
}

/* One run, of which these are the figures at its end. */
static weir_statistics run_with(const weir_options *options, int blocks) {
    weir_allocator *a;
    weir_statistics s;

    OK(weir_allocator_create(options, &a));
    load(a, blocks);
    s = check_identities(a);
    OK(weir_allocator_destroy(a));
    return s;
}

static weir_statistics run(int way, int blocks) {
    weir_options options = options_for(way);

    return run_with(&options, blocks);
}

static size_t read_whole(const char *path, char *text, size_t room) {
    FILE *from = fopen(path, "r");
    size_t bytes;

    MUST(from != NULL);
    bytes = fread(text, 1, room, from);
    MUST(fclose(from) == 0);
    return bytes;
}

static void write_whole(const char *path, const char *text, size_t bytes) {
    FILE *to = fopen(path, "w");

    MUST(to != NULL && fwrite(text, 1, bytes, to) == bytes && fclose(to) == 0);
}

/* Warnings since the last call; each of them has both texts. */
static void expect_warnings(int line, int count, const char *about, const char *reason) {
    const char *at = logged;

    (void)lines();
    for (int i = 0; i < count; i++) {
        at = strstr(at, "weir: warning: ");
        ck_assert_msg(at != NULL, "line %d: %d warnings: %s", line, i, logged);
        at++;
    }
    ck_assert_msg(!strstr(at, "weir: warning: "), "line %d: too many: %s", line, logged);
    ck_assert_msg(count == 0 || (strstr(logged, about) && strstr(logged, reason)),
                  "line %d: not \"%s\" and \"%s\": %s", line, about, reason, logged);
}
#define EXPECT_WARNINGS(count, about, reason) expect_warnings(__LINE__, count, about, reason)

/* A plan may need less than the run had reserved, never less than it had in use; without one all of it counts. */
static void expect_learned(uint64_t asked, const weir_statistics *s) {
    static char text[WEIR_PROFILE_MOST_BYTES + 1];

    text[read_whole(file, text, sizeof text - 1)] = '\0';
    MUST_LE(asked, s->reserve_peak);
    MUST_LE(strstr(text, "\nplan ") ? s->in_use_peak : s->reserve_peak, asked);
}

START_TEST(the_second_run_does_not_grow) {
    weir_statistics first = run(_i, 40), second;
    struct stat about;

    MUST_LE(1, first.growth_allocs);
    MUST_EQ(first.profile_runs, 0);
    MUST_EQ(first.profile_asked, 0);
    MUST_EQ(first.prealloc_asked, 0);
    MUST(stat(file, &about) == 0 && S_ISREG(about.st_mode));
    MUST_EQ(about.st_mode & 07777, 0600);
    for (unsigned again = 1; again < 12; again++) { /* more runs than are kept */
        second = run(_i, 40);
        MUST_EQ(second.profile_runs, again);
        MUST_EQ(second.prealloc_asked, second.profile_asked);
        MUST_EQ(second.growths, 1);
        MUST_EQ(second.growth_allocs, 0);
        expect_learned(second.profile_asked, &first);
        MUST_LE(second.reserve_peak, first.reserve_peak);
    }
    EXPECT_WARNINGS(0, "", "");
}
END_TEST

START_TEST(a_larger_load_raises_it_at_once) {
    weir_statistics small = run(_i, 20), large, again;

    large = run(_i, 60);
    expect_learned(large.profile_asked, &small);
    MUST_LE(1, large.growth_allocs);
    again = run(_i, 60);
    expect_learned(again.profile_asked, &large);
    MUST_EQ(again.growth_allocs, 0);
}
END_TEST

/* With the fourth small run the large one counts half, then a quarter; the small one never grows. */
START_TEST(a_smaller_load_lowers_it_after_four_runs) {
    weir_statistics large = run(_i, 60), small;

    for (int i = 0; i < 4; i++) {
        small = run(_i, 10);
        expect_learned(small.profile_asked, &large);
        MUST_EQ(small.growth_allocs, 0);
    }
    small = run(_i, 10);
    MUST_LE(small.profile_asked, large.reserve_peak / 2);
    MUST_LE(large.in_use_peak / 2 - 1, small.profile_asked);
    MUST_EQ(small.growth_allocs, 0);
    for (int i = 0; i < 6; i++)
        small = run(_i, 10);
    MUST_LE(small.profile_asked, large.reserve_peak / 3);
    MUST_LE(small.in_use_peak, small.profile_asked);
}
END_TEST

START_TEST(a_preallocation_that_is_set_wins) {
    static const uint64_t amounts[] = {0, 96 * 1024 * 1024};
    weir_options options = options_for(MAPPED);
    weir_statistics s = run(MAPPED, 40);

    for (unsigned i = 0; i < 2; i++) {
        options.prealloc = bytes_amount(amounts[i]);
        s = run_with(&options, 40);
        MUST_EQ(s.prealloc_asked, amounts[i]);
        MUST_EQ(s.profile_asked, 0);
        MUST_EQ(s.profile_runs, i + 1); /* it learns all the same */
    }
}
END_TEST

/* What it preallocates stays, whatever the release threshold. */
START_TEST(a_threshold_below_it_is_raised) {
    weir_options options = options_for(POOL_WITHOUT_CACHES);
    weir_allocator *a;

    options.release_threshold = bytes_amount(0);
    (void)run_with(&options, 40);
    OK(weir_allocator_create(&options, &a));
    load(a, 10);
    MUST_LE(40 * MIB, stats_of(a).profile_asked);
    MUST_EQ(stats_of(a).reserve, stats_of(a).profile_asked);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* What a program must have says nothing about what it wants. */
START_TEST(at_least_what_must_be) {
    static const weir_amount little[] = {{.value = 96 * MIB, .kind = WEIR_AMOUNT_BYTES},
                                         {.value = 10000, .kind = WEIR_AMOUNT_OF_FREE}};
    weir_options options = options_for(_i);
    weir_statistics before = run(_i, 40), s;

    for (int i = 0; i < 2; i++) {
        options.prealloc_min = little[i];
        s = run_with(&options, 40);
        expect_learned(s.prealloc_asked, &before);
        expect_learned(s.profile_asked, &before);
        MUST_EQ(s.growth_allocs, 0);
    }
    options.prealloc_min = bytes_amount(2 * before.reserve_peak);
    s = run_with(&options, 40);
    MUST_EQ(s.prealloc_asked, 2 * before.reserve_peak);
    MUST_EQ(s.profile_asked, 0);
}
END_TEST

START_TEST(in_the_background_where_that_is_asked) {
    weir_options options = options_for(_i);
    weir_statistics before = run(_i, 40), s;
    weir_allocator *a;

    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    OK(weir_allocator_create(&options, &a));
    for (int i = 0; i < 100; i++) { /* a step each */
        void *block;

        weir__model_advance(10 * MS);
        OK(weir_alloc(a, 4 * MIB + (size_t)(i % 7) * 256 * KIB, A, &block));
        OK(weir_free(a, block, A));
    }
    s = stats_of(a);
    expect_learned(s.profile_asked, &before);
    expect_learned(s.prealloc_asked, &before);
    MUST_EQ(s.prealloc_pending, 0);
    MUST_LE(1, s.ahead_steps);
    load(a, 40);
    MUST_EQ(stats_of(a).growth_allocs, s.growth_allocs);
    OK(weir_allocator_destroy(a));
    s = run(_i, 40);
    MUST_EQ(s.profile_runs, 2);
}
END_TEST

START_TEST(at_the_first_request_where_that_is_asked) {
    weir_options options = options_for(POOL);
    weir_statistics before = run(POOL, 40), s;
    weir_allocator *a;

    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    OK(weir_allocator_create(&options, &a));
    s = stats_of(a);
    MUST_EQ(s.reserve, 0);
    expect_learned(s.profile_asked, &before);
    load(a, 40);
    s = stats_of(a);
    MUST_EQ(s.growths, 1);
    MUST_EQ(s.prealloc_got, before.reserve_peak);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* A run that asked for nothing needed nothing, and says nothing. */
START_TEST(an_idle_run_is_not_noted) {
    weir_options options = options_for(POOL);
    weir_allocator *a;

    OK(weir_allocator_create(&options, &a));
    OK(weir_profile_save(a, NULL));
    OK(weir_allocator_destroy(a));
    MUST(access(file, F_OK) != 0);
}
END_TEST

/* ---- what is learned is held against the device ---------------------------------------------- */

static struct weir_profile_key key_of(const weir_options *options) {
    struct weir_profile_key key;
    weir_allocator *a;

    OK(weir_allocator_create(options, &a));
    key = a->learn->key;
    OK(weir_allocator_destroy(a));
    return key;
}

/* A good file that says that so much is needed. */
static void plant(const weir_options *options, uint64_t need) {
    struct weir_profile_run planted = {.id = 1, .reserve = need, .in_use = need, .grew = 1};
    struct weir_profile_key key = key_of(options);
    struct weir_profile profile = {0};
    struct weir_problem problem;

    weir__profile_add(&profile, &planted, NULL, 0);
    MUST(weir__profile_store(options->profile, &key, &profile, &problem));
}

START_TEST(no_more_than_the_device_has_free) {
    weir_options options = options_for(_i);
    weir_statistics s;
    CUdeviceptr other;

    plant(&options, UINT64_MAX);
    s = run_with(&options, 4);
    MUST_LE(s.profile_asked, CAPACITY);
    ANSWERS(0, unlink(file));
    plant(&options, 6 * GIB);
    CU(driver->cuMemAlloc(&other, 5 * GIB));
    s = run_with(&options, 4);
    MUST_LE(s.profile_asked, 3 * GIB);
    MUST_LE(2 * GIB, s.profile_asked);
    CU(driver->cuMemFree(other));
}
END_TEST

START_TEST(no_more_than_the_limit) {
    weir_options options = options_for(_i);
    weir_statistics s;

    options.limit = bytes_amount(256 * MIB);
    plant(&options, 4 * GIB);
    s = run_with(&options, 4);
    MUST_EQ(s.profile_asked, 256 * MIB);
    MUST_EQ(s.reserve_peak, 256 * MIB);
}
END_TEST

/* ---- the rule -------------------------------------------------------------------------------- */

static struct weir_profile learned;
static uint64_t next_id;

static uint64_t learn_run(uint64_t reserve, uint64_t in_use, int grew) {
    struct weir_profile_run run = {++next_id, 0, reserve, in_use, grew, 0};

    weir__profile_add(&learned, &run, NULL, 0);
    return weir__profile_target(&learned);
}

START_TEST(the_rule_by_numbers) {
    memset(&learned, 0, sizeof learned);
    MUST_EQ(weir__profile_target(&learned), 0);
    /* nothing has grown: an eighth more than in use, if there was as much */
    ANSWERS(900, learn_run(8000, 800, 0));
    ANSWERS(900, learn_run(850, 800, 0));
    MUST_EQ(learned.run[1].need, 850);
    /* one that grew */
    ANSWERS(2000, learn_run(2000, 1000, 1));
    /* less by no more than an eighth is the same, 2000 for each 1000 in use */
    ANSWERS(2000, learn_run(2000, 875, 0));
    MUST_EQ(learned.run[3].need, 2000);
    ANSWERS(2000, learn_run(2000, 874, 0));
    MUST_EQ(learned.run[4].need, 1748);
    /* the last four in full */
    ANSWERS(2000, learn_run(2000, 500, 0));
    ANSWERS(2000, learn_run(2000, 500, 0));
    ANSWERS(1748, learn_run(2000, 500, 0)); /* 2000 counts half */
    ANSWERS(1000, learn_run(2000, 500, 0));
    ANSWERS(1000, learn_run(2000, 100, 0));
    /* more than was given beforehand, but the reserved memory was there */
    ANSWERS(3000, learn_run(4000, 1500, 0));
    MUST_EQ(learned.merged, 11);
    MUST_EQ(learned.runs, WEIR_PROFILE_RUNS);
    /* much for each byte, and many bytes: no more than there was */
    learn_run(UINT64_MAX, 1, 1);
    learn_run(5000, 4000, 0);
    MUST_EQ(learned.run[WEIR_PROFILE_RUNS - 1].need, 5000);
}
END_TEST

/* A load that is large every fourth time finds room each time. */
START_TEST(a_load_that_comes_back_finds_room) {
    memset(&learned, 0, sizeof learned);
    learn_run(1000, 1000, 1);
    for (int i = 1; i < 40; i++) {
        uint64_t target = weir__profile_target(&learned), load = i % 4 ? 300 : 1000;

        MUST_EQ(target, 1000);
        learn_run(target, load, load > target);
    }
}
END_TEST

START_TEST(a_later_account_replaces_an_earlier_one) {
    struct weir_profile_run first = {77, 0, 500, 500, 1, 0}, later = {77, 0, 800, 700, 1, 0};
    struct weir_profile_step steps[WEIR_PROFILE_STEPS + 3];

    memset(&learned, 0, sizeof learned);
    learn_run(100, 100, 1);
    weir__profile_add(&learned, &first, NULL, 0);
    learn_run(200, 200, 1);
    for (size_t i = 0; i < WEIR_PROFILE_STEPS + 3; i++)
        steps[i] = (struct weir_profile_step){i, WEIR_EVENT_REQUEST};
    weir__profile_add(&learned, &later, steps, WEIR_PROFILE_STEPS + 3);
    MUST_EQ(learned.runs, 3);
    MUST_EQ(learned.merged, 3);
    MUST_EQ(learned.run[2].reserve, 800);
    MUST_EQ(learned.steps, WEIR_PROFILE_STEPS);
    MUST_EQ(learned.step[0].bytes, 3); /* the newest */
    learned.merged = 1000000000;       /* counted no further */
    weir__profile_add(&learned, &(struct weir_profile_run){.id = 99, .reserve = 1}, NULL, 0);
    MUST_EQ(learned.merged, 1000000000);
}
END_TEST

/* ---- files that are not what they should be --------------------------------------------------- */

static const struct weir_profile_key a_key = {"model a device", "engine=pool"};
static char good[WEIR_PROFILE_MOST_BYTES];
static size_t good_bytes;

static void make_good(void) {
    static const struct weir_profile_step steps[] = {{2 * MIB, WEIR_EVENT_REQUEST},
                                                     {1000, WEIR_EVENT_POLICY}};
    struct weir_profile profile = {0};
    struct weir_profile_run runs[] = {{1, 0, 5 * GIB, 4 * GIB, 1, 0},
                                      {2, 0, 5 * GIB, GIB + 1, 0, 0}};

    weir__profile_add(&profile, &runs[0], NULL, 0);
    weir__profile_add(&profile, &runs[1], steps, 2);
    good_bytes = weir__profile_spell(&profile, &a_key, good);
}

static int parses(const char *text, size_t bytes, const char **reason) {
    static struct weir_problem problem;
    struct weir_profile profile, before;
    char *exact = malloc(bytes + !bytes); /* so that reading past its end is seen */
    int good_one;

    MUST(exact != NULL);
    memcpy(exact, text, bytes);
    memset(&profile, 77, sizeof profile);
    before = profile;
    memset(&problem, 0, sizeof problem);
    good_one = weir__profile_parse(exact, bytes, &a_key, &profile, &problem);
    free(exact);
    MUST(good_one || (problem.text[0] && memcmp(&profile, &before, sizeof profile) == 0));
    *reason = problem.text;
    return good_one;
}

/* Puts the right checksum under a text whose last line is one. */
static size_t seal(char *text, size_t bytes) {
    size_t body = bytes - strlen("checksum 0123456789abcdef\n");

    return body + (size_t)sprintf(text + body, "checksum %016llx\n",
                                  (unsigned long long)weir__profile_hash(text, body));
}

START_TEST(a_good_one_reads_as_it_was_written) {
    struct weir_profile profile;
    struct weir_problem problem;
    char again[WEIR_PROFILE_MOST_BYTES];

    make_good();
    MUST(weir__profile_parse(good, good_bytes, &a_key, &profile, &problem));
    MUST_EQ(weir__profile_target(&profile), 5 * GIB);
    MUST_EQ(profile.runs, 2);
    MUST_EQ(profile.merged, 2);
    MUST_EQ(profile.steps, 2);
    MUST_EQ(profile.step[1].cause, WEIR_EVENT_POLICY);
    MUST_EQ(profile.run[1].in_use, GIB + 1);
    MUST_EQ(weir__profile_spell(&profile, &a_key, again), good_bytes);
    MUST(memcmp(again, good, good_bytes) == 0);
}
END_TEST

/* The hash is the one that is known by this name. */
START_TEST(the_hash_is_fnv_1a) {
    MUST_EQ(weir__profile_hash("", 0), UINT64_C(0xcbf29ce484222325));
    MUST_EQ(weir__profile_hash("a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    MUST_EQ(weir__profile_hash("foobar", 6), UINT64_C(0x85944171f73967e8));
}
END_TEST

START_TEST(every_cut_and_every_changed_byte_is_refused) {
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
    memset(text, '\n', sizeof text);
    memcpy(text, good, good_bytes);
    MUST(!parses(text, WEIR_PROFILE_MOST_BYTES, &reason));
    MUST(strstr(reason, "larger than any"));
}
END_TEST

#define SIXTY "............................................................"
#define LONG SIXTY SIXTY SIXTY SIXTY SIXTY SIXTY SIXTY /* than a line may be */

/* Made by somebody who knows the checksum; the first text is replaced by the second. */
static const struct {
    const char *old, *new, *reason;
} forged[] = {
    {"weir profile 1", "weir profile 3", "another version"},
    {"weir profile 1", "weir profile 2", "not as a profile"},
    {"weir profile 1", "wier profile 1", "it is no profile"},
    {"key ", "kay ", "it has no key"},
    {"device model", "device " LONG "model", "another device"},
    {"settings engine", "settings " LONG "engine", "other settings"},
    {"model a device", "model b device", "another device"},
    {"engine=pool", "engine=arena", "other settings"},
    {"target 5GiB", "target 6GiB", "not as a profile"},
    {"target 5GiB", "target  5GiB", "not as a profile"},
    {"target 5GiB", "target 5120MiB", "not as a profile"},
    {"target 5GiB\n", "", "not as a profile"},
    {"basis 5GiB 4GiB", "basis 4GiB 5GiB", "not as a profile"},
    {"basis 5GiB 4GiB", "basis much 4GiB", "not as a profile"},
    {"basis 5GiB 4GiB", "basis 5GiB much", "not as a profile"},
    {"basis 5GiB 4GiB\n", "", "not as a profile"},
    {"runs 2\n", "", "not as a profile"},
    {"runs 2", "runs 1", "not as a profile"},
    {"runs 2", "runs 02", "not as a profile"},
    {"runs 2", "runs 99999999999999999999", "not as a profile"},
    {"need 5GiB reserve 5GiB in-use 4GiB", "need 6GiB reserve 5GiB in-use 4GiB", "not as a"},
    {"need 5GiB reserve 5GiB in-use 4GiB", "need 5GiB reserve 5GiB in-use 6GiB", "not as a"},
    {"need 5GiB reserve 5GiB in-use 4GiB", "need 5GiB reserve 99999TiB in-use 4GiB", "not as a"},
    {"need 5GiB reserve 5GiB in-use 4GiB", "need 5GiB reserve 5GiB in-use -1", "not as a"},
    {"need 5GiB reserve 5GiB in-use 4GiB", "need much reserve 5GiB in-use 4GiB", "not as a"},
    {"in-use 4GiB grew", "in-use 4GiB shrank", "not as a profile"},
    {"run 0000000000000001 ", "run 000000000000001 ", "not as a profile"},
    {"run 0000000000000001 ", "run 000000000000000G ", "not as a profile"},
    {"2MiB request", "2MiB whim", "not as a profile"},
    {"2MiB request", "2MiB request more", "not as a profile"},
    {"2MiB request", "2MiB a b c d e f g h i j k l m", "not as a profile"},
    {"step 2MiB request\n", "a line\n", "not as a profile"},
    {"step 2MiB request\n", "\n", "not as a profile"},
    {"run 0000000000000002", "run 0000000000000002 need 1 reserve 1 in-use 1 grew\nrun 2",
     "not as"},
};

START_TEST(a_forged_one_is_refused) {
    char text[WEIR_PROFILE_MOST_BYTES];
    const char *at, *reason;
    size_t bytes;

    make_good();
    good[good_bytes] = '\0';
    at = strstr(good, forged[_i].old);
    MUST(at != NULL);
    bytes = (size_t)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, forged[_i].new,
                             at + strlen(forged[_i].old));
    bytes = seal(text, bytes);
    MUST(!parses(text, bytes, &reason));
    ck_assert_msg(strstr(reason, forged[_i].reason) != NULL, "%s", reason);
    /* the same with a NUL in it */
    *strchr(text, ' ') = '\0';
    MUST(!parses(text, seal(text, bytes), &reason));
}
END_TEST

/* Of a plan with two places; the second text takes the place of the first. */
static const struct {
    const char *old, *new;
} plan_forged[] = {
    {"weir profile 2", "weir profile 1"},
    {"pivot 4MiB", "pivot much"},
    {"bytes 8MiB", "bytes 0"},
    {"exact 6MiB", "exact 4MiB"},
    {"round 1", "round 3"},
    {"round 1 new", "round 1 old"},
    {"places 1000:0 2000:1000", "places 1000:0  2000:1000"},
    {"places 1000:0 2000:1000", "places 01000:0 2000:1000"},
    {"places 1000:0 2000:1000", "places 0:0 2000:1000"},
    {"places 1000:0 2000:1000", "places 1000:0 2000:1001"},
    {"places 1000:0 2000:1000", "places 1000:0 2000:1g"},
    {"places 1000:0 2000:1000", "places 1000 2000:1000"},
    {"places 1000:0 2000:1000", "places 1000:0\nplaces 2000:1000"},
    {"places 1000:0 2000:1000\n", ""},
    {"places 1000:0 2000:1000", "places 100000000:0 2000:1000"},
};

static void make_planned(struct weir_plan_place place[2]) {
    struct weir_profile profile = {0};
    struct weir_profile_run run = {1, 0, 5 * GIB, 4 * GIB, 1, 0};

    weir__profile_add(&profile, &run, NULL, 0);
    place[0] = (struct weir_plan_place){0x1000, 0};
    place[1] = (struct weir_plan_place){0x2000, 0x1000};
    profile.planned.plan = (struct weir_plan){4 * MIB, 8 * MIB, 6 * MIB, place, 2, 1};
    profile.planned.small = MIB;
    good_bytes = weir__profile_spell(&profile, &a_key, good);
    good[good_bytes] = '\0';
}

START_TEST(a_plan_reads_as_it_was_written) {
    struct weir_plan_place place[2];
    struct weir_profile profile;
    struct weir_problem problem;
    static char again[WEIR_PROFILE_MOST_BYTES];

    make_planned(place);
    MUST(weir__profile_parse(good, good_bytes, &a_key, &profile, &problem));
    MUST_EQ(profile.planned.plan.places, 2);
    MUST(memcmp(profile.planned.plan.place, place, sizeof place) == 0);
    MUST_EQ(weir__profile_spell(&profile, &a_key, again), good_bytes);
    MUST(memcmp(again, good, good_bytes) == 0);
    weir__profile_drop(&profile);
}
END_TEST

START_TEST(a_damaged_plan_is_refused) {
    static char text[WEIR_PROFILE_MOST_BYTES];
    struct weir_plan_place place[2];
    const char *at, *reason;
    size_t bytes;

    make_planned(place);
    at = strstr(good, plan_forged[_i].old);
    MUST(at != NULL);
    bytes = (size_t)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good,
                             plan_forged[_i].new, at + strlen(plan_forged[_i].old));
    MUST(!parses(text, seal(text, bytes), &reason));
    ck_assert_msg(strstr(reason, "not as a profile") != NULL, "%s", reason);
}
END_TEST

START_TEST(one_of_no_run_is_refused) {
    const struct weir_profile none = {0};
    char text[WEIR_PROFILE_MOST_BYTES];
    const char *reason;

    MUST(!parses(text, weir__profile_spell(&none, &a_key, text), &reason));
    ck_assert_ptr_nonnull(strstr(reason, "not as a profile"));
}
END_TEST

#ifdef CAN_DENY
START_TEST(a_file_that_cannot_be_read) {
    struct weir_profile profile;
    struct weir_problem problem;

    make_good();
    write_whole(file, good, good_bytes);
    for (uint64_t k = 1; k <= 3; k++) { /* open, fstat, read */
        deny(NULL, k, 0, EIO);
        MUST(!weir__profile_load(file, &a_key, &profile, &problem));
        MUST_EQ(deny_none(), 1);
        MUST(problem.text[0] != '\0');
    }
    deny("read", 2, 0, EIO); /* at its end */
    MUST(!weir__profile_load(file, &a_key, &profile, &problem));
    MUST_EQ(deny_none(), 1);
    deny("read", 1, 0, EINTR);
    MUST(weir__profile_load(file, &a_key, &profile, &problem));
    MUST_EQ(deny_none(), 1);
    MUST_EQ(profile.runs, 2);
}
END_TEST
#endif

/* A damaged file costs the run nothing, and the next finds a good one. */
START_TEST(a_damaged_file_is_ignored_and_replaced) {
    char text[2 * WEIR_PROFILE_MOST_BYTES];
    weir_statistics s = run(POOL, 40);
    size_t bytes = read_whole(file, text, sizeof text);
    static const char *const reasons[] = {"cut off", "checksum is wrong", "is empty",
                                          "larger than any", "another version"};

    if (_i == 0)
        bytes -= 1;
    if (_i == 1)
        text[bytes / 2] ^= 1;
    if (_i == 2)
        bytes = 0;
    if (_i == 3)
        memset(text + bytes, '\n', sizeof text - bytes), bytes = sizeof text;
    if (_i == 4)
        *strchr(text, '1') = '7';
    write_whole(file, text, bytes);
    EXPECT_WARNINGS(0, "", "");
    s = run(POOL, 40);
    EXPECT_WARNINGS(1, reasons[_i], "it is ignored, and replaced as a run is noted");
    MUST_EQ(s.profile_asked, 0);
    MUST_EQ(s.profile_runs, 0);
    MUST_LE(1, s.growth_allocs);
    ANSWERS(1, run(POOL, 40).profile_runs);
    EXPECT_WARNINGS(0, "", "");
}
END_TEST

/* What is no profile is neither believed nor destroyed. */
START_TEST(a_file_of_somebody_else_is_left_alone) {
    static const char words[] = "my thesis\n";
    char text[64];
    weir_statistics s;

    write_whole(file, words, strlen(words));
    s = run(POOL, 40);
    MUST_EQ(s.profile_runs, 0);
    EXPECT_WARNINGS(2, "it is no profile: it is ignored, and left alone",
                    "is no profile, which is left alone");
    MUST_EQ(read_whole(file, text, sizeof text), strlen(words));
    MUST(memcmp(text, words, strlen(words)) == 0);
}
END_TEST

START_TEST(what_is_no_file_is_left_alone) {
    struct stat about;

    ANSWERS(0, mkfifo(file, 0600));
    run(POOL, 40); /* nobody waits for a writer */
    EXPECT_WARNINGS(2, file, "no regular file");
    MUST(stat(file, &about) == 0 && S_ISFIFO(about.st_mode));
}
END_TEST

/* Also for root, whom no mode keeps out. */
START_TEST(a_place_that_cannot_be_written) {
    static const char *const places[] = {"/proc/weir-profile", "/nowhere/at/all", NULL};
    weir_options options = options_for(POOL);
    weir_allocator *a;
    char within[280];

    write_whole(file, "", 0);
    snprintf(within, sizeof within, "%s/below", file); /* of a file */
    options.profile = places[_i] ? places[_i] : within;
    OK(weir_allocator_create(&options, &a));
    load(a, 10);
    (void)lines();
    EXPECT(WEIR_E_FILE, weir_profile_save(a, NULL));
    EXPECT_WARNINGS(1, options.profile, "cannot");
    MUST_EQ(weir_last_driver_result(), 0);
    OK(weir_allocator_destroy(a));
    EXPECT_WARNINGS(1, options.profile, "this run is not noted");
}
END_TEST

START_TEST(a_folder_without_leave_to_write) {
    weir_allocator *a;
    weir_options options = options_for(POOL);

    run(POOL, 10);
    ANSWERS(0, chmod(folder, 0500));
    if (geteuid() == 0)
        ANSWERS(0, chmod(folder, 0700)); /* root may all the same */
    OK(weir_allocator_create(&options, &a));
    load(a, 20);
    EXPECT(geteuid() == 0 ? WEIR_OK : WEIR_E_FILE, weir_profile_save(a, NULL));
    OK(weir_allocator_destroy(a));
    ANSWERS(0, chmod(folder, 0700));
    if (geteuid() != 0)
        ANSWERS(1, run(POOL, 20).profile_runs); /* what was there is whole */
}
END_TEST

/* ---- whose it is ----------------------------------------------------------------------------- */

static void other_engine(weir_options *o) {
    o->engine = WEIR_ENGINE_POOL;
    o->arena = WEIR_ARENA_DEFAULT;
}
static void other_packing(weir_options *o) {
    o->packing = WEIR_PACKING_COMPACT;
}
static void other_growth(weir_options *o) {
    o->growth = WEIR_GROWTH_STEP;
}
static void other_limit(weir_options *o) {
    o->limit = bytes_amount(4 * GIB);
}
static void other_caches(weir_options *o) {
    o->front = WEIR_SWITCH_OFF;
}
static void other_arena(weir_options *o) {
    o->arena = WEIR_ARENA_REGIONS;
    o->growth = WEIR_GROWTH_EXACT;
}
static void (*const others[])(weir_options *o) = {other_engine, other_packing, other_growth,
                                                  other_limit,  other_caches,  other_arena};

START_TEST(other_settings_are_told_apart) {
    weir_options options = options_for(MAPPED);

    run(MAPPED, 40);
    others[_i](&options);
    ANSWERS(0, run_with(&options, 40).profile_asked);
    EXPECT_WARNINGS(1, "learned with other settings (in a folder each have their own)",
                    ": it is ignored, and replaced as a run is noted");
    MUST(run_with(&options, 40).profile_asked > 0); /* the last one's */
}
END_TEST

/* Two that differ in their ids alone, and one that has another size. */
START_TEST(another_device_is_told_apart) {
    weir_options options = options_for(POOL);
    CUcontext second;

    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .devices = 2}));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    run(POOL, 40);
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
END_TEST

/* Of two at once neither has been told as it began. */
START_TEST(who_ends_later_says_that_it_replaces) {
    weir_options pool = options_for(POOL), arena = options_for(MAPPED);
    weir_allocator *first, *second;

    OK(weir_allocator_create(&pool, &first));
    OK(weir_allocator_create(&arena, &second));
    load(first, 10);
    load(second, 10);
    OK(weir_allocator_destroy(first));
    EXPECT_WARNINGS(0, "", "");
    OK(weir_profile_save(second, NULL));
    EXPECT_WARNINGS(
        1, file,
        "learned with other settings (in a folder each have their own): this run replaces it");
    OK(weir_allocator_destroy(second));
    EXPECT_WARNINGS(0, "", "");
}
END_TEST

START_TEST(in_a_folder_each_has_its_own) {
    weir_options pool = options_for(POOL), arena = options_for(MAPPED);

    pool.profile = arena.profile = folder;
    for (unsigned i = 0; i < 3; i++) {
        ANSWERS(i, run_with(&pool, 40).profile_runs);
        ANSWERS(i, run_with(&arena, 20).profile_runs);
    }
    EXPECT_WARNINGS(0, "", "");
}
END_TEST

START_TEST(a_name_is_from_where_the_process_was) {
    weir_options options = options_for(POOL);
    weir_allocator *a;
    char name[16] = "profile";

    ANSWERS(0, chdir(folder));
    options.profile = name;
    OK(weir_allocator_create(&options, &a));
    memset(name, 'x', sizeof name); /* the caller's again */
    ANSWERS(0, chdir("/"));
    load(a, 10);
    OK(weir_allocator_destroy(a));
    ANSWERS(0, access(file, F_OK));
}
END_TEST

START_TEST(engines_with_nothing_to_learn) {
    weir_options options = options_for(REGIONS);
    weir_allocator *a;

    if (_i == 0)
        options.engine = WEIR_ENGINE_PLATFORM;
    options.arena = _i == 0 ? WEIR_ARENA_DEFAULT : WEIR_ARENA_FIXED;
    OK(weir_allocator_create(&options, &a));
    EXPECT_WARNINGS(1, "profile", "has no effect");
    load(a, 10);
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, NULL));
    (void)lines();
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_profile_save(a, file));
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, "weir: error: weir_profile_save: engine direct and fixed arenas have "
                        "nothing to learn\n"));
    OK(weir_allocator_destroy(a));
    MUST(access(file, F_OK) != 0);
}
END_TEST

/* ---- saving ---------------------------------------------------------------------------------- */

static uint64_t runs_in(const char *path, const struct weir_profile_key *key) {
    struct weir_profile profile = {0};
    struct weir_problem problem;

    MUST(weir__profile_load(path, key, &profile, &problem));
    return profile.merged;
}

START_TEST(one_run_is_noted_once) {
    weir_options options = options_for(POOL);
    struct weir_profile_key key;
    weir_allocator *a;

    OK(weir_allocator_create(&options, &a));
    key = a->learn->key;
    for (int i = 1; i <= 3; i++) {
        load(a, 10 * i);
        OK(weir_profile_save(a, NULL));
        ANSWERS(1, runs_in(file, &key));
    }
    MUST_EQ(stats_of(a).profile_runs, 0);
    OK(weir_allocator_destroy(a));
    ANSWERS(1, runs_in(file, &key));
}
END_TEST

START_TEST(where_the_caller_says) {
    weir_options options = options_for(POOL);
    weir_statistics s;
    weir_allocator *a;

    options.profile = _i ? "off" : NULL;
    OK(weir_allocator_create(&options, &a));
    load(a, 40);
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, NULL));
    EXPECT(WEIR_E_INVALID, weir_profile_save(a, ""));
    EXPECT(WEIR_E_INVALID, weir_profile_save(NULL, file));
    OK(weir_profile_save(a, file));
    s = stats_of(a);
    OK(weir_allocator_destroy(a));
    ANSWERS(s.reserve_peak, run(POOL, 40).profile_asked);
}
END_TEST

/* By one that has a profile of its own, too: as the same run. */
START_TEST(where_else_the_caller_says) {
    weir_options options = options_for(POOL);
    weir_allocator *a;
    char elsewhere[300], one[WEIR_PROFILE_MOST_BYTES], other[WEIR_PROFILE_MOST_BYTES];
    size_t bytes;

    snprintf(elsewhere, sizeof elsewhere, "%s.elsewhere", file);
    OK(weir_allocator_create(&options, &a));
    load(a, 40);
#ifdef CAN_REFUSE_HOST_MEMORY
    for (uint64_t k = 1, refusals = 0; k == 1 || was_refused; k++) {
        was_refused = 0;
        refuse_in = k;
        refusals += weir_profile_save(a, elsewhere) == WEIR_E_HOST_MEMORY;
        refuse_in = 0;
        MUST(was_refused || refusals > 0);
    }
#endif
    OK(weir_trim(a, 0, NULL)); /* which is no step */
    OK(weir_profile_save(a, elsewhere));
    OK(weir_profile_save(a, NULL));
    bytes = read_whole(file, one, sizeof one);
    MUST_EQ(read_whole(elsewhere, other, sizeof other), bytes);
    MUST(memcmp(one, other, bytes) == 0);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* As many as are read at once. */
START_TEST(steps_of_a_round_number) {
    weir_options options = options_for(REGIONS);
    weir_allocator *a;
    weir_event event[64];
    size_t count = 0;
    void *block;

    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    while (count < 32) {
        OK(weir_alloc(a, 40 * MIB, A, &block));
        OK(weir_events(a, 0, event, sizeof event[0], 64, &count));
    }
    MUST_EQ(count, 32);
    OK(weir_profile_save(a, NULL));
    ANSWERS(1, run(REGIONS, 1).profile_asked == 0); /* of another policy */
}
END_TEST

/* A line of the profile has no other letters. */
START_TEST(a_device_with_any_name) {
    char profile[300], text[WEIR_PROFILE_MOST_BYTES];
    static const char words[] = "name = Gr\xc3\xb6\xc3\x7f\x01"
                                "e\n";

    snprintf(profile, sizeof profile, "%s.model", file);
    write_whole(profile, words, sizeof words - 1);
    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY, .profile = profile}),
            0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    run(POOL, 20);
    text[read_whole(file, text, sizeof text - 1)] = '\0';
    ck_assert_msg(strstr(text, " Gr?????e ") != NULL, "%s", text);
    MUST_LE(1, run(POOL, 20).profile_runs);
}
END_TEST

/* Two allocators at once: both are noted. */
START_TEST(runs_beside_each_other) {
    weir_options options = options_for(POOL);
    weir_allocator *a, *b;
    weir_statistics large;

    OK(weir_allocator_create(&options, &a));
    OK(weir_allocator_create(&options, &b));
    load(a, 60);
    load(b, 10);
    large = stats_of(a);
    OK(weir_allocator_destroy(a));
    OK(weir_allocator_destroy(b));
    ANSWERS(large.reserve_peak, run(POOL, 1).profile_asked);
    ANSWERS(3, run(POOL, 1).profile_runs);
}
END_TEST

enum { SAVERS = 3, SAVES = 60 };

static void save_often(int saver) {
    struct weir_problem problem;

    for (int i = 0; i < SAVES; i++) {
        struct weir_profile profile = {0};
        struct weir_profile_run run = {(uint64_t)(saver * SAVES + i + 1), 0, GIB, GIB, 1, 0};

        (void)weir__profile_load(file, &a_key, &profile, &problem);
        weir__profile_add(&profile, &run, NULL, 0);
        if (!weir__profile_store(file, &a_key, &profile, &problem))
            _exit(1);
    }
}

/* Whoever reads meanwhile reads a whole one, and nothing is left beside it. */
START_TEST(processes_that_save_at_once) {
    struct weir_profile profile;
    struct weir_problem problem;
    int running = SAVERS, status, seen = 0;
    char command[280];

    make_folder();
    for (int i = 0; i < SAVERS; i++)
        if (fork() == 0) {
            save_often(i);
            _exit(0);
        }
    while (running > 0) {
        int there = weir__profile_load(file, &a_key, &profile, &problem);

        ck_assert_msg(there || !problem.text[0], "%s", problem.text);
        MUST(there || !seen);
        seen |= there;
        if (waitpid(-1, &status, WNOHANG) > 0) {
            MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            running--;
        }
    }
    MUST_EQ(profile.runs, WEIR_PROFILE_RUNS);
    snprintf(command, sizeof command, "test \"$(ls -A %s)\" = profile", folder);
    ANSWERS(0, system(command));
    tear_down();
}
END_TEST

static void *save_from_thread(void *allocator) {
    for (int i = 0; i < SAVES; i++)
        OK(weir_profile_save(allocator, NULL));
    return NULL;
}

START_TEST(threads_that_save_at_once) {
    weir_options options = options_for(POOL);
    pthread_t thread[SAVERS];
    struct weir_profile_key key;
    weir_allocator *a;

    OK(weir_allocator_create(&options, &a));
    key = a->learn->key;
    load(a, 10);
    for (int i = 0; i < SAVERS; i++)
        ANSWERS(0, pthread_create(&thread[i], NULL, save_from_thread, a));
    for (int i = 0; i < SAVERS; i++)
        ANSWERS(0, pthread_join(thread[i], NULL));
    ANSWERS(1, runs_in(file, &key));
    OK(weir_allocator_destroy(a));
}
END_TEST

/* ---- what fails ------------------------------------------------------------------------------ */

/* A device that will not say who it is: the run goes on without a profile. */
START_TEST(a_driver_that_does_not_answer) {
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuDeviceGetName, WEIR_ENTRY_cuDeviceGetUuid, WEIR_ENTRY_cuDeviceTotalMem};
    weir_options options = options_for(POOL);
    weir_statistics s;
    weir_allocator *a;

    run(POOL, 40);
    weir__model_fail(entries[_i], 1, CUDA_ERROR_UNKNOWN, 1);
    s = run(POOL, 40);
    MUST_EQ(s.profile_asked, 0);
    MUST_EQ(s.profile_runs, 0);
    EXPECT_WARNINGS(1, file, "cannot be used");
    options.profile = NULL;
    OK(weir_allocator_create(&options, &a));
    load(a, 1);
    EXPECT(WEIR_E_DRIVER, weir_profile_save(a, file));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    OK(weir_allocator_destroy(a));
    weir__model_faults_clear();
    ANSWERS(1, run(POOL, 40).profile_runs); /* and what was there is whole */
}
END_TEST

#ifdef CAN_REFUSE_HOST_MEMORY
/* Without the k-th piece of memory there is no allocator, or one without a profile, or with; and no piece
 * is lost. */
START_TEST(host_memory_runs_out) {
    weir_options options = options_for(POOL);
    int without = 0, with = 0, none = 0;

    run(POOL, 40);
    run(POOL, 40); /* what is made once for the process */
    for (uint64_t k = 1; with == 0 || was_refused; k++) {
        int64_t held_before = pieces_held;
        weir_allocator *a = NULL;
        weir_status status;

        was_refused = 0;
        refuse_in = k;
        status = weir_allocator_create(&options, &a);
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
END_TEST

START_TEST(host_memory_runs_out_at_the_end) {
    weir_options options = options_for(POOL);
    weir_allocator *a;
    uint64_t k = 1;

    for (was_refused = 1; was_refused; k++) {
        int64_t held_before = pieces_held;

        OK(weir_allocator_create(&options, &a));
        load(a, 4);
        was_refused = 0;
        refuse_in = k;
        OK(weir_allocator_destroy(a));
        refuse_in = 0;
        MUST_EQ(pieces_held, held_before);
    }
}
END_TEST
#endif

/* ---- processes ------------------------------------------------------------------------------- */

static int wait_for(pid_t child) {
    int status;

    MUST(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(a_child_saves_nothing) {
    weir_options options = options_for(POOL);
    weir_allocator *a;
    pid_t child;

    OK(weir_allocator_create(&options, &a));
    load(a, 10);
    child = fork();
    if (child == 0)
        _exit(weir_profile_save(a, NULL) != WEIR_E_FORKED ||
              weir_profile_save(a, file) != WEIR_E_FORKED ||
              weir_allocator_destroy(a) != WEIR_E_FORKED);
    ANSWERS(0, wait_for(child));
    MUST(access(file, F_OK) != 0);
    OK(weir_allocator_destroy(a));
    ANSWERS(0, access(file, F_OK));
}
END_TEST

/* What a process does with the default allocator, before it ends by exit. */
static int use_default(int grandchild) {
    weir_allocator *a;
    weir_statistics s = {.size = sizeof s};
    void *block;
    pid_t child = -1;

    if (weir_default_allocator(&a) != WEIR_OK ||
        weir_alloc(a, 50 * MIB, (weir_stream)2, &block) != WEIR_OK || weir_stats(a, &s) != WEIR_OK)
        return 100;
    if (grandchild && (child = fork()) == 0)
        exit(0); /* and what is to be done at exit */
    if (grandchild && (wait_for(child) != 0 || access(file, F_OK) == 0))
        return 101;
    return (int)s.profile_runs; /* the block is live: the process just ends */
}

START_TEST(the_default_allocator_saves_at_exit) {
    make_folder();
    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_PROFILE", file, 1);
    for (int runs = 0; runs < 3; runs++) {
        pid_t child = fork();

        if (child == 0)
            exit(use_default(runs == 0));
        ANSWERS(runs, wait_for(child));
    }
    tear_down();
}
END_TEST

int main(void) {
    Suite *suite = suite_create("profile");
    TCase *runs = suite_add_case(suite, "runs", 60, set_up, tear_down);
    TCase *files = suite_add_case(suite, "files", 60, set_up, tear_down);
    TCase *bare = tcase_create("bare");
    int failed;

    tcase_add_loop_test(runs, the_second_run_does_not_grow, 0, WAYS);
    tcase_add_loop_test(runs, a_larger_load_raises_it_at_once, 0, WAYS);
    tcase_add_loop_test(runs, a_smaller_load_lowers_it_after_four_runs, 0, WAYS);
    tcase_add_test(runs, a_preallocation_that_is_set_wins);
    tcase_add_test(runs, a_threshold_below_it_is_raised);
    tcase_add_loop_test(runs, at_least_what_must_be, 0, WAYS);
    tcase_add_loop_test(runs, in_the_background_where_that_is_asked, 0, WAYS);
    tcase_add_test(runs, at_the_first_request_where_that_is_asked);
    tcase_add_test(runs, an_idle_run_is_not_noted);
    tcase_add_loop_test(runs, no_more_than_the_device_has_free, 0, WAYS);
    tcase_add_loop_test(runs, no_more_than_the_limit, 0, WAYS);
    tcase_add_loop_test(runs, other_settings_are_told_apart, 0, 6);
    tcase_add_loop_test(runs, another_device_is_told_apart, 0, 2);
    tcase_add_test(runs, in_a_folder_each_has_its_own);
    tcase_add_test(runs, a_name_is_from_where_the_process_was);
    tcase_add_loop_test(runs, engines_with_nothing_to_learn, 0, 2);
    tcase_add_test(runs, one_run_is_noted_once);
    tcase_add_loop_test(runs, where_the_caller_says, 0, 2);
    tcase_add_test(runs, where_else_the_caller_says);
    tcase_add_test(runs, steps_of_a_round_number);
    tcase_add_test(runs, a_device_with_any_name);
    tcase_add_test(runs, runs_beside_each_other);
    tcase_add_test(runs, threads_that_save_at_once);
    tcase_add_test(runs, a_child_saves_nothing);
    tcase_add_loop_test(runs, a_driver_that_does_not_answer, 0, 3);
#ifdef CAN_REFUSE_HOST_MEMORY
    tcase_add_test(runs, host_memory_runs_out);
    tcase_add_test(runs, host_memory_runs_out_at_the_end);
#endif
    tcase_add_test(files, who_ends_later_says_that_it_replaces);
    tcase_add_loop_test(files, a_damaged_file_is_ignored_and_replaced, 0, 5);
    tcase_add_test(files, a_file_of_somebody_else_is_left_alone);
    tcase_add_test(files, what_is_no_file_is_left_alone);
    tcase_add_loop_test(files, a_place_that_cannot_be_written, 0, 3);
    tcase_add_test(files, a_folder_without_leave_to_write);
#ifdef CAN_DENY
    tcase_add_test(files, a_file_that_cannot_be_read);
#endif
    tcase_set_timeout(bare, 60);
    tcase_add_test(bare, the_rule_by_numbers);
    tcase_add_test(bare, a_load_that_comes_back_finds_room);
    tcase_add_test(bare, a_later_account_replaces_an_earlier_one);
    tcase_add_test(bare, a_good_one_reads_as_it_was_written);
    tcase_add_test(bare, the_hash_is_fnv_1a);
    tcase_add_test(bare, every_cut_and_every_changed_byte_is_refused);
    tcase_add_loop_test(bare, a_forged_one_is_refused, 0, sizeof forged / sizeof forged[0]);
    tcase_add_test(bare, a_plan_reads_as_it_was_written);
    tcase_add_loop_test(bare, a_damaged_plan_is_refused, 0,
                        sizeof plan_forged / sizeof plan_forged[0]);
    tcase_add_test(bare, one_of_no_run_is_refused);
    tcase_add_test(bare, processes_that_save_at_once);
    tcase_add_test(bare, the_default_allocator_saves_at_exit);
    suite_add_tcase(suite, bare);
    if (!make_all())
        return 1;
    failed = run_suite(suite, CK_FORK);
    return !remove_all(all) || failed;
}
