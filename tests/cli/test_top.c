/* SPDX-License-Identifier: MIT */
/* test_top.c: the figures that an allocator publishes, and what `weir top' prints for any bytes that it finds. */
#include <ctype.h>

#include "tests/fixtures/folder.h"
#include "tests/fixtures/holder.h"
#include "cli/top_view.h"

static struct top_program program;
static struct top_program *programs[] = {&program};
static struct top top = {.programs = programs, .count = 1};

static void fill_program(void) {
    memset(&program, 0, sizeof program);
    program.name.pid = 4711;
    program.is_running = program.has_now = 1;
    top.now_ns = UINT64_C(100000000000);
}

/* Returns the printed text, for free(3).  Checks that the text has printable characters and newlines alone. */
static char *printed(void) {
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    top_print(file, &top);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_uint_eq(bytes, strlen(text));
    for (size_t i = 0; i < bytes; i++)
        MUST(text[i] == '\n' || isprint((unsigned char)text[i]));
    return text;
}

static char *as_json(void) {
    json_t *object = top_json(&top);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12));

    ck_assert_ptr_nonnull(text);
    json_decref(object);
    return text;
}

CASE("top", 30, fill_program, NULL);

/* A faulty process may have published any bytes. */
TEST(test_random_bodies_are_shown_safely) {
    uint64_t state = 88172645463325252u;

    for (int round = 0; round < 300; round++) {
        uint64_t *words = (uint64_t *)(void *)(round % 2 ? &program.now : &program.before);

        for (size_t i = 0; i < sizeof program.now / sizeof *words; i++)
            words[i] = round % 3 ? next_random(&state) : next_random(&state) % 20;
        program.has_before = round > 1;
        weir__show_check(&program.now, top.now_ns);
        weir__show_check(&program.before, top.now_ns);
        MUST_LE(program.now.allocators, WEIR_SHOW_MOST);
        MUST_LE(program.now.time_ns, top.now_ns);
        free(printed());
        free(as_json());
    }
}

/* With all bits set, each number has its largest value, and no text has an end. */
TEST(test_the_largest_body_is_shown_safely) {
    char *text;

    memset(&program.now, 0xff, sizeof program.now);
    weir__show_check(&program.now, top.now_ns);
    ck_assert_uint_eq(program.now.allocators, WEIR_SHOW_MOST);
    ck_assert_uint_eq(strlen(program.now.command), WEIR_SHOW_COMMAND - 1);
    text = printed();
    ck_assert_ptr_nonnull(strstr(text, "unknown")); /* the cause of a step */
    free(text);
    free(as_json());
}

/* Compares the published figures with weir_stats. */
TEST(test_figures_are_the_allocators) {
    weir_options options = options_of(KIND_REGIONS, "model", 0);
    struct weir_show_allocator *shown = &program.now.allocator[0];
    weir_statistics f;
    weir_allocator *a;
    void *block, *other;
    char *text;

    options.latency = WEIR_SWITCH_ON;
    options.limit = bytes_amount(1 * GIB);
    OK(weir_allocator_create(&options, &a));
    OK(weir_alloc(a, 100 * MIB, NULL, &block));
    OK(weir_alloc(a, 3 * MIB, NULL, &other));
    OK(weir_free(a, other, NULL));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 2 * GIB, NULL, &other));
    ck_assert_int_eq(weir__show_fill(a, shown), 1);
    f = stats_of(a);
    ck_assert_uint_eq(shown->limit, 1 * GIB);
    ck_assert_str_eq(shown->engine, "bfc");
    ck_assert_uint_eq(shown->allocs, f.allocs);
    ck_assert_uint_eq(shown->frees, 1);
    ck_assert_uint_eq(shown->failed_requests, 1);
    ck_assert_uint_eq(shown->in_use, f.in_use);
    ck_assert_uint_eq(shown->requested, 100 * MIB);
    ck_assert_uint_eq(shown->reserved, f.reserved);
    ck_assert_uint_eq(shown->events, f.growths);
    ck_assert_uint_eq(shown->event[shown->events - 1].reserved_after, f.reserved);
    ck_assert_uint_eq(shown->latency[0].count, 3);
    ck_assert_uint_eq(shown->latency[1].count, 1);
    program.now.allocators = program.now.all = 1;
    program.now.time_ns = top.now_ns;
    strcpy(shown->device, "model");
    strcpy(shown->serves, "pool");
    strcpy(program.now.command, "a program");
    text = printed();
    ck_assert_ptr_nonnull(strstr(text, "   4711 model  bfc        1GiB "));
    ck_assert_ptr_nonnull(strstr(text, "a program\n        1 request failed\n"));
    ck_assert_ptr_nonnull(strstr(text, "request\n"));
    free(text);
    OK(weir_free(a, block, NULL));
    OK(weir_allocator_destroy(a));
}

/* An allocator makes more steps than are shown.  Its last steps are shown, oldest first. */
TEST(test_the_last_steps_are_shown_oldest_first) {
    weir_options options = options_of(KIND_REGIONS, "model", 0);
    struct weir_show_allocator *shown = &program.now.allocator[0];
    weir_allocator *a;
    size_t released;
    void *block;

    OK(weir_allocator_create(&options, &a));
    for (int i = 0; i < 20; i++) {
        OK(weir_alloc(a, (size_t)(i + 1) * 32 * MIB, NULL, &block));
        OK(weir_free(a, block, NULL));
        OK(weir_trim(a, 0, &released));
    }
    ck_assert_int_eq(weir__show_fill(a, shown), 1);
    ck_assert_uint_eq(shown->events, WEIR_SHOW_EVENTS);
    ck_assert_uint_eq(shown->event[WEIR_SHOW_EVENTS - 1].shrink, 1);
    ck_assert_uint_eq(shown->event[WEIR_SHOW_EVENTS - 2].shrink, 0);
    for (int i = 1; i < WEIR_SHOW_EVENTS; i++)
        ck_assert_uint_le(shown->event[i].ago_ns, shown->event[i - 1].ago_ns);
    OK(weir_allocator_destroy(a));
}

static void set_counts(uint64_t seconds, uint64_t allocs, uint64_t frees, uint64_t hits) {
    program.now.allocators = program.now.all = 1;
    program.now.time_ns = seconds * 1000000000;
    program.now.allocator[0].allocs = allocs;
    program.now.allocator[0].frees = frees;
    program.now.allocator[0].cache_hits = hits;
    top.now_ns = program.now.time_ns;
}

static void expect_json_part(const char *what) {
    char *text = as_json();

    ck_assert_msg(strstr(text, what) != NULL, "no %s in %s", what, text);
    free(text);
}

TEST(test_rates_need_two_samples_of_one_allocator) {
    set_counts(10, 1000, 900, 500);
    expect_json_part("\"requests_per_s\":null,\"frees_per_s\":null,\"cached\":0.5");
    program.before = program.now;
    program.has_before = 1;
    set_counts(12, 3000, 1100, 2400);
    expect_json_part("\"requests_per_s\":1000.0,\"frees_per_s\":100.0,\"cached\":0.95");
    set_counts(10, 3000, 1100, 2400); /* no time has passed */
    expect_json_part("\"requests_per_s\":null");
    set_counts(14, 10, 10, 10); /* the counts fell: it is another allocator */
    expect_json_part("\"requests_per_s\":null");
}

/* Sorts two programs.  Returns the process id of the first one. */
static int first_of(enum top_order order) {
    top.order = order;
    top_sort(&top);
    return (int)top.programs[0]->name.pid;
}

TEST(test_order) {
    static struct top_program other;
    struct top_program *both[] = {&program, &other};

    memset(&other, 0, sizeof other);
    other.name.pid = 815;
    other.is_running = other.has_now = other.has_before = 1;
    program.has_before = 1;
    top.programs = both;
    top.count = 2;
    ck_assert_int_eq(first_of(TOP_BY_RESERVED), 815); /* equal keys: the smaller process id */
    program.now.allocators = program.before.allocators = 2;
    other.now.allocators = other.before.allocators = 1;
    program.now.allocator[0].reserved = program.now.allocator[1].reserved = 300;
    program.now.allocator[0].in_use = 100;
    other.now.allocator[0].reserved = 500;
    other.now.allocator[0].in_use = 400;
    program.now.time_ns = other.now.time_ns = 1000000000;
    program.now.allocator[1].allocs = 9;
    other.now.allocator[0].allocs = 8;
    ck_assert_int_eq(first_of(TOP_BY_RESERVED), 4711); /* 600 in two pools */
    ck_assert_int_eq(first_of(TOP_BY_IN_USE), 815);
    ck_assert_int_eq(first_of(TOP_BY_REQUESTS), 4711);
    ck_assert_int_eq(first_of(TOP_BY_PID), 815);
    ck_assert_str_eq(top_order_name(TOP_BY_REQUESTS), "REQ/S");
    top.programs = programs;
    top.count = 1;
    top.order = TOP_BY_RESERVED;
}

/* A row of 80 columns shows the command, without the folder of the program, and CACHED. */
TEST(test_a_row_fits_into_eighty_columns) {
    const char *row, *command, *end;
    char *text;

    set_counts(10, 1000, 900, 500);
    program.now.allocator[0].reserved = program.now.allocator[0].in_use = 150109880320u;
    program.now.allocator[0].limit = 150109880319u;
    strcpy(program.now.allocator[0].device, "cuda:0");
    strcpy(program.now.allocator[0].engine, "mapped");
    strcpy(program.now.command, "/usr/bin/python3 train.py --data /data");
    text = printed();
    row = strstr(text, "   4711 cuda:0");
    ck_assert_ptr_nonnull(row);
    end = strchr(row, '\n');
    command = strstr(row, "  python3 train.py");
    ck_assert_msg(command && command + strlen("  python3 train") - row <= 80, "%s", text);
    ck_assert_msg(strstr(row, " 50.0%  python3") && strstr(row, " 50.0%  python3") < end, "%s",
                  text);
    free(text);
}

TEST(test_a_silent_program_is_shown_as_silent) {
    char *text;

    set_counts(10, 1, 1, 1);
    top.now_ns += UINT64_C(7000000000);
    text = printed();
    ck_assert_ptr_nonnull(strstr(text, "    silent 7 s  "));
    free(text);
    program.has_now = 0;
    program.fault = WEIR_SEGMENT_OTHER_VERSION;
    text = printed();
    ck_assert_ptr_nonnull(strstr(text, "4711 it is of another version of weir\n"));
    free(text);
}

/* ---- other processes on the device -------------------------------------------------------------- */

#define DEVICE "GPU-00112233"

/* Publishes an entry with `bytes` of reserved and idle memory.  With 0 bytes, the process does not answer. */
static int run_member(uint64_t bytes) {
    static struct weir_slot_file own;
    struct weir_registry_entry e = {.reserved = bytes, .idle = bytes, .command = "a program"};

    if (bytes > 0) { /* answers every later question */
        e.as_of_ns = UINT64_MAX;
        e.limit = 8 * bytes;
    }
    if (weir__registry_open(&own, DEVICE) != 0)
        return 0;
    weir__registry_publish(&own, &e);
    return 1;
}

/* Expects one program, with that row after its process id, and with that JSON. */
static void expect_row(pid_t pid, const char *row, const char *json) {
    char wanted[256], *text;

    holders_query(&top.holders, 1000000);
    text = printed();
    snprintf(wanted, sizeof wanted, "%7ld %s\n", (long)pid, row);
    ck_assert_msg(strstr(text, wanted) != NULL, "no %s in %s", wanted, text);
    ck_assert_msg(strstr(text, ": 1 program\n") != NULL, "what is listed is not counted: %s", text);
    free(text);
    text = as_json();
    ck_assert_msg(strstr(text, json) != NULL, "no %s in %s", json, text);
    free(text);
}

TEST(test_what_is_not_known_is_not_nothing) {
    pid_t quiet, stopped;

    make_folder("/tmp");
    program.is_running = 0;
    quiet = holder(run_member, 0);
    expect_row(quiet,
               "       -       0B        -           -       0B       0B  a program, priority 0 "
               "(does not answer)",
               "\"limit\":null,\"reserved\":0,\"in_use\":null,\"reclaimable\":null,");
    end_holder(quiet, SIGKILL);
    stopped = holder(run_member, GIB);
    expect_row(stopped,
               "    8GiB     1GiB       0B        1GiB       0B       0B  a program, priority 0",
               "\"in_use\":0,\"reclaimable\":1073741824,");
    ck_assert_int_eq(kill(stopped, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(stopped, NULL, WUNTRACED), stopped);
    expect_row(stopped,
               "    8GiB     1GiB        -           -       0B       0B  a program, priority 0 "
               "(stopped, does not answer)",
               "\"in_use\":null,\"reclaimable\":null,\"priority\":0,\"received\":0,\"released\":0,"
               "\"stopped\":true,"
               "\"answers\":false}");
    end_holder(stopped, SIGKILL);
    remove_folder();
}

SUITE("top", CK_FORK_GETENV);
