/* SPDX-License-Identifier: MIT */
/* test_process_group.c: an allocator in a process group, by public functions alone.  The environment names the group.
 *
 * A context counts as an estimate, so that limits here are that estimate and the available memory. */
#include <weir/weir.h>

#include "tests/fixtures/folder.h"

#define MIB ((size_t)1 << 20)

enum { CONTEXT = 528, ROOM = 256, BLOCK = 16, MOST = ROOM / BLOCK };

static const char *const engines[] = {"mapped", "pool", "bfc", "direct"};

static void set_up_process_group(void) {
    char limit[32];

    make_folder("/tmp");
    snprintf(limit, sizeof limit, "%dMiB", CONTEXT + ROOM);
    ck_assert_int_eq(setenv("WEIR_GROUP", "api", 1), 0);
    ck_assert_int_eq(setenv("WEIR_GROUP_LIMIT", limit, 1), 0);
}

static weir_status create_member(const char *engine, weir_allocator **allocator) {
    weir_options options;
    char message[320];

    weir_options_init(&options);
    options.device = "model";
    options.oom_report = "off";
    ck_assert_int_eq(weir_options_set(&options, "engine", engine, message, sizeof message),
                     WEIR_OK);
    return weir_allocator_create(&options, allocator);
}

/* Allocates blocks until a request fails.  Returns the number of blocks. */
static int alloc_until_full(weir_allocator *a, void **block) {
    int count = 0;

    while (count <= MOST && weir_alloc(a, BLOCK * MIB, NULL, &block[count]) == WEIR_OK)
        count++;
    return count;
}

static void free_first_blocks(weir_allocator *a, void **block, int count) {
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(weir_free(a, block[i], NULL), WEIR_OK);
}

CASE("all", 20, set_up_process_group, remove_folder);

/* The whole group is used by this process, and the report says so. */
static void expect_group_named(const weir_oom_report *oom_report) {
    char text[4097];

    ck_assert_int_eq(oom_report->cause, WEIR_OOM_REPORT_GROUP);
    ck_assert_str_eq(oom_report->process_group, "api");
    ck_assert_uint_eq(oom_report->group_limit, (CONTEXT + ROOM) * MIB);
    ck_assert_uint_eq(oom_report->group_used, (CONTEXT + ROOM) * MIB);
    ck_assert_uint_eq(oom_report->members, 1);
    ck_assert_uint_eq(oom_report->member[0].pid, (uint64_t)getpid());
    ck_assert_uint_eq(oom_report->member[0].bytes, oom_report->group_used);
    ck_assert_uint_lt(weir_oom_report_text(oom_report, WEIR_OOM_REPORT_AS_TEXT, text, sizeof text),
                      sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "cause       group: the process group has 784MiB of its "
                                       "limit of 784MiB"));
}

/* The driver does not say beforehand whether a pool will grow, so a group counts a whole unit of 32 MiB for each request
 * to a pool, and its last half unit serves no block of 16 MiB.  A report then speaks of that idle memory. */
TEST_EACH(4, test_each_engine_has_the_limit_and_no_more) {
    weir_oom_report oom_report = {.size = sizeof oom_report};
    const int most = strcmp(engines[_i], "pool") == 0 ? MOST - 1 : MOST;
    void *block[MOST + 1];
    weir_allocator *a;

    ck_assert_int_eq(create_member(engines[_i], &a), WEIR_OK);
    ck_assert_int_eq(alloc_until_full(a, block), most);
    ck_assert_int_eq(weir_last_oom_report(a, &oom_report), WEIR_OK);
    if (most == MOST)
        expect_group_named(&oom_report);
    free_first_blocks(a, block, most);
    ck_assert_int_eq(alloc_until_full(a, block), most);
    free_first_blocks(a, block, most);
    ck_assert_int_eq(weir_allocator_destroy(a), WEIR_OK);
}

TEST_EACH(4, test_allocators_of_a_process_have_it_together) {
    void *one[MOST + 1], *two[MOST + 1];
    weir_allocator *a, *b;
    int count;

    ck_assert_int_eq(create_member("mapped", &a), WEIR_OK);
    ck_assert_int_eq(create_member(engines[_i], &b), WEIR_OK); /* both share a context */
    ck_assert_int_eq(alloc_until_full(a, one), MOST);
    ck_assert_int_eq(alloc_until_full(b, two), 0);
    free_first_blocks(a, one, MOST);
    count = alloc_until_full(b, two); /* idle memory of the other allocator */
    ck_assert_int_gt(count, 0);
    free_first_blocks(b, two, count);
    ck_assert_int_eq(weir_allocator_destroy(b), WEIR_OK);
    ck_assert_int_eq(weir_allocator_destroy(a), WEIR_OK);
}

TEST(test_a_limit_below_a_context_is_refused) {
    weir_allocator *a;

    ck_assert_int_eq(setenv("WEIR_GROUP_LIMIT", "100MiB", 1), 0);
    ck_assert_int_eq(create_member("mapped", &a), WEIR_E_LIMIT);
}

TEST(test_bad_settings_are_refused) {
    weir_allocator *a;

    ck_assert_int_eq(setenv("WEIR_GROUP_LIMIT", "lots", 1), 0);
    ck_assert_int_eq(create_member("mapped", &a), WEIR_E_PARSE);
    ck_assert_int_eq(unsetenv("WEIR_GROUP_LIMIT"), 0);
    ck_assert_int_eq(create_member("mapped", &a), WEIR_E_INVALID); /* no member has a limit */
    ck_assert_int_eq(setenv("WEIR_GROUP", "a/b", 1), 0);
    ck_assert_int_eq(create_member("mapped", &a), WEIR_E_PARSE);
}

SUITE("process_group", CK_FORK_GETENV);
