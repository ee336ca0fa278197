/* SPDX-License-Identifier: MIT */
/* test_timeline.c: the counters and slices that stay in bounded memory, and their JSON text.
 *
 * The tests read the text line by line, one event a line. */
#include <inttypes.h>

#include "tests/fixtures/refuse.h"
#include "tests/fixtures/support.h"
#include "api/timeline.h"

static struct weir_timeline *timeline;
static char *text;
static size_t text_bytes;

static void open_timeline(void) {
    timeline = weir__timeline_open();
    ck_assert_ptr_nonnull(timeline);
    text = NULL;
}

static void close_timeline(void) {
    weir__timeline_close(timeline);
    free(text);
}

static void count_at(uint64_t time_ns, uint64_t requested, uint64_t in_use, uint64_t reserve) {
    const uint64_t values[WEIR_TIMELINE_COUNTERS] = {requested, in_use, reserve};

    weir__timeline_count(timeline, time_ns, values);
}

static void add_event(uint64_t made_ns, const weir_event *event) {
    (void)weir__timeline_events(timeline, made_ns, event->sequence - 1, event, 1);
}

static void write_text(void) {
    FILE *file = open_memstream(&text, &text_bytes);

    ck_assert_ptr_nonnull(file);
    weir__timeline_begin_file(file);
    weir__timeline_write(timeline, file, 42, "prog \"x\"\n", 1, "cuda:0");
    weir__timeline_end_file(file, weir__timeline_missing(timeline));
    ck_assert_int_eq(fclose(file), 0);
    for (size_t i = 0; i < text_bytes; i++)
        if (text[i] == '\n')
            text[i] = '\0';
}

/* Returns the line after another one, or the first one after NULL, or NULL at the end.  A search in all of the text
 * takes very long under AddressSanitizer. */
static const char *next_line(const char *line) {
    const char *next = line ? line + strlen(line) + 1 : text;

    return next < text + text_bytes ? next : NULL;
}

static size_t occurrences(const char *what) {
    size_t found = 0;

    for (const char *line = next_line(NULL); line; line = next_line(line))
        found += strstr(line, what) != NULL;
    return found;
}

#define EXPECT_TEXT(what) ck_assert_msg(occurrences(what) > 0, "there is no %s", what)

CASE("timeline", 30, open_timeline, close_timeline);

TEST(test_an_empty_timeline_has_no_counters) {
    write_text();
    EXPECT_TEXT("\"traceEvents\":[");
    EXPECT_TEXT("\"slices missing\":\"0\"");
    ck_assert_uint_eq(occurrences("\"ph\":\"C\""), 0);
}

TEST(test_as_it_was) {
    const weir_event grew = {.time_ns = 5000,
                             .asked = 10,
                             .got = 20,
                             .stall_ns = 1500,
                             .reserved_after = 30,
                             .cause = WEIR_EVENT_POLICY},
                     went = {.time_ns = 9000, .got = 7, .cause = WEIR_EVENT_TRIM, .shrink = 1};

    count_at(1001, 1, 2, 3);
    count_at(1002, 1, 2, 3); /* nothing new */
    count_at(2000000, 4, WEIR_TIMELINE_UNKNOWN, 6);
    add_event(1000, &grew);
    add_event(1000, &went);
    weir__timeline_failure(timeline, 12345, 99);
    weir__timeline_iteration(timeline, 0, 10500, "warm \"up\"");
    write_text();
    ck_assert_uint_eq(occurrences("\"ph\":\"C\""), 2);
    EXPECT_TEXT(
        "\"ts\":1.001,\"name\":\"cuda:0\",\"args\":{\"requested\":1,\"in use\":2,\"reserved\":3}");
    EXPECT_TEXT("\"ts\":2000.000,\"name\":\"cuda:0\",\"args\":{\"requested\":4,\"reserved\":6}");
    EXPECT_TEXT(
        "\"ph\":\"X\",\"pid\":42,\"tid\":34,\"ts\":4.500,\"dur\":1.500,\"cat\":\"growth\",\"name\":"
        "\"grow: policy\",\"args\":{\"asked\":10,\"got\":20,\"reserved after\":30}");
    EXPECT_TEXT("\"ts\":10.000,\"dur\":0.000,\"cat\":\"given back\",\"name\":\"give back: trim\"");
    EXPECT_TEXT(
        "\"ph\":\"i\",\"pid\":42,\"tid\":34,\"ts\":12.345,\"s\":\"t\",\"cat\":\"failed request\"");
    EXPECT_TEXT("\"args\":{\"bytes\":99}");
    EXPECT_TEXT("\"tid\":33,\"ts\":0.000,\"dur\":10.500,\"cat\":\"iteration\",\"name\":\"warm "
                "\\\"up\\\"\"");
    EXPECT_TEXT("\"name\":\"prog \\\"x\\\"\\u000a\"");
}

/* Returns the largest value of a counter in the text. */
static uint64_t largest_value(const char *counter) {
    uint64_t most = 0, value;
    char key[64];

    snprintf(key, sizeof key, "\"%s\":", counter);
    for (const char *line = next_line(NULL); line; line = next_line(line)) {
        const char *at = strstr(line, key);

        if (at && sscanf(at + strlen(key), "%" SCNu64, &value) == 1 && value > most)
            most = value;
    }
    return most;
}

/* Each counter has its peak at another time, for one moment. */
TEST(test_peaks_stay) {
    enum { MANY = 10 * WEIR_TIMELINE_POINTS + 17 };

    for (uint64_t i = 0; i < MANY; i++)
        count_at(i * 1000, i == 70001 ? 1000000 : i % 7, i == 90010 ? 2000000 : i % 11,
                 i == MANY - 2 ? 3000000 : i % 13);
    count_at((uint64_t)MANY * 1000, 1, 1, 2);
    write_text();
    ck_assert_uint_le(occurrences("\"ph\":\"C\""), WEIR_TIMELINE_POINTS + 1);
    ck_assert_uint_ge(occurrences("\"ph\":\"C\""), WEIR_TIMELINE_POINTS / 2);
    ck_assert_uint_eq(largest_value("requested"), 1000000);
    ck_assert_uint_eq(largest_value("in use"), 2000000);
    ck_assert_uint_eq(largest_value("reserved"), 3000000);
    EXPECT_TEXT("\"args\":{\"requested\":1,\"in use\":1,\"reserved\":2}"); /* the last values */
}

/* A point has the time of its first value, so that it is never later than its peak.  No two points have one time. */
TEST(test_points_in_order) {
    uint64_t last = 0, whole, part, points = 0;

    for (uint64_t i = 0; i < 5 * WEIR_TIMELINE_POINTS; i++)
        count_at((i + 1) * 1000, i, i, i);
    write_text();
    for (const char *line = next_line(NULL); line; line = next_line(line)) {
        const char *counted = strstr(line, "\"requested\":");
        uint64_t value;

        if (!counted)
            continue;
        MUST(sscanf(strstr(line, "\"ts\":") + 5, "%" SCNu64 ".%" SCNu64, &whole, &part) == 2);
        MUST(sscanf(counted + 12, "%" SCNu64, &value) == 1);
        MUST(whole * 1000 + part > last);
        MUST_LE(whole, value + 1);
        last = whole * 1000 + part;
        points++;
    }
    ck_assert_uint_gt(points, WEIR_TIMELINE_POINTS / 2);
}

/* For any number of parts, the first and the last value stay, and no peak and no dip is lost. */
TEST(test_extents_keep_peaks_and_dips) {
    enum { VALUES = 1000, MOST = 16 };
    struct weir_timeline_extent parts[VALUES + 1];

    ck_assert_uint_eq(weir__timeline_extents(timeline, parts, MOST), 0);
    for (uint64_t i = 0; i < VALUES; i++)
        count_at(i * 10, 500 + i, i == 400 ? 9000 : i, i == 700 ? 1 : 2000 + i);
    ck_assert_uint_eq(weir__timeline_extents(timeline, parts, VALUES), VALUES);
    for (uint64_t i = 0; i < VALUES; i++) {
        MUST(parts[i].time_ns == i * 10);
        MUST(parts[i].low[WEIR_TIMELINE_REQUESTED] == 500 + i);
        MUST(parts[i].high[WEIR_TIMELINE_REQUESTED] == 500 + i);
    }
    for (size_t most = 1; most <= MOST; most++) {
        size_t parts_there = weir__timeline_extents(timeline, parts, most);
        uint64_t highest = 0, lowest = UINT64_MAX;

        MUST(parts_there >= 1 && parts_there <= most);
        for (size_t i = 0; i < parts_there; i++) {
            MUST(i == 0 || parts[i].time_ns > parts[i - 1].time_ns);
            if (parts[i].high[WEIR_TIMELINE_IN_USE] > highest)
                highest = parts[i].high[WEIR_TIMELINE_IN_USE];
            if (parts[i].low[WEIR_TIMELINE_RESERVED] < lowest)
                lowest = parts[i].low[WEIR_TIMELINE_RESERVED];
        }
        ck_assert_uint_eq(highest, 9000);
        ck_assert_uint_eq(lowest, 1);
        ck_assert_uint_eq(parts[0].low[WEIR_TIMELINE_REQUESTED], 500);
        ck_assert_uint_eq(parts[parts_there - 1].high[WEIR_TIMELINE_REQUESTED], 500 + VALUES - 1);
    }
}

/* If neighbours were joined, the last part still has the last values. */
TEST(test_extents_keep_the_last_values_of_many) {
    struct weir_timeline_extent parts[64];
    size_t parts_there;

    for (uint64_t i = 0; i < 3 * WEIR_TIMELINE_POINTS; i++)
        count_at(i, i + 1, i + 1, i + 1);
    count_at(3 * WEIR_TIMELINE_POINTS, 7, 7, 7);
    parts_there = weir__timeline_extents(timeline, parts, 64);
    MUST(parts_there > 32 && parts_there <= 64);
    ck_assert_uint_eq(parts[parts_there - 1].low[WEIR_TIMELINE_REQUESTED], 7);
    ck_assert_uint_eq(parts[parts_there - 1].high[WEIR_TIMELINE_RESERVED],
                      3 * WEIR_TIMELINE_POINTS);
}

TEST(test_events_that_were_missed_are_counted) {
    weir_event events[3] = {{.sequence = 3, .time_ns = 10, .got = 1, .cause = WEIR_EVENT_POLICY},
                            {.sequence = 4, .time_ns = 20, .got = 1, .cause = WEIR_EVENT_POLICY},
                            {.sequence = 9, .time_ns = 30, .got = 1, .cause = WEIR_EVENT_POLICY}};

    ck_assert_uint_eq(weir__timeline_events(timeline, 0, 2, events, 0), 2);
    ck_assert_uint_eq(weir__timeline_missing(timeline), 0);
    ck_assert_uint_eq(weir__timeline_events(timeline, 0, 1, events, 3), 9);
    ck_assert_uint_eq(weir__timeline_missing(timeline), 1 + 4);
}

TEST(test_no_slice_is_dropped_unsaid) {
    const uint64_t more = 1000;
    const weir_event late = {.sequence = 6}; /* five events before this one are missing */

    for (uint64_t i = 0; i < WEIR_TIMELINE_SLICES + more; i++)
        weir__timeline_failure(timeline, i, i);
    (void)weir__timeline_events(timeline, 0, 0, &late, 1);
    ck_assert_uint_eq(weir__timeline_missing(timeline), more + 5 + 1);
    write_text();
    ck_assert_uint_eq(occurrences("\"ph\":\"i\""), WEIR_TIMELINE_SLICES);
    EXPECT_TEXT("\"slices missing\":\"1006\"");
}

static void add_step(uint64_t from, uint64_t to) {
    const weir_event event = {.time_ns = to, .stall_ns = to - from, .cause = WEIR_EVENT_REQUEST};

    add_event(0, &event);
}

/* The steps are of several threads, in the order of their ends. */
TEST(test_slices_of_a_lane_do_not_overlap) {
    add_step(1000, 5000);
    add_step(3000, 8000);
    add_step(5000, 9000);
    add_step(2000, 10000);
    write_text();
    EXPECT_TEXT("\"tid\":34,\"ts\":1.000,\"dur\":4.000");
    EXPECT_TEXT("\"tid\":35,\"ts\":2.000,\"dur\":8.000");
    EXPECT_TEXT("\"tid\":36,\"ts\":3.000,\"dur\":5.000");
    EXPECT_TEXT("\"tid\":34,\"ts\":5.000,\"dur\":4.000");
    ck_assert_uint_eq(occurrences("\"cuda:0 growth\""), 3);
}

/* The longest of steps that begin together encloses the rest.  The last lane has all steps that find no lane. */
TEST(test_the_longest_of_equal_starts_encloses_the_rest) {
    for (uint64_t i = 0; i < 20; i++)
        add_step(1000, 2000 + 1000 * (i % 4));
    write_text();
    EXPECT_TEXT("\"tid\":34,\"ts\":1.000,\"dur\":4.000");
    EXPECT_TEXT("\"tid\":49,\"ts\":1.000,\"dur\":1.000");
    ck_assert_uint_eq(occurrences("\"tid\":49,\"ts\":1.000"), 5);
    ck_assert_uint_eq(occurrences("\"cuda:0 growth\""), 16);
}

TEST(test_names_of_iterations_are_escaped) {
    weir__timeline_iteration(timeline, 5000, 4000, "a\\b\x7f\xc3");
    write_text();
    EXPECT_TEXT(
        "\"ts\":5.000,\"dur\":0.000,\"cat\":\"iteration\",\"name\":\"a\\\\b\\u007f\\u00c3\"");
}

/* Joined points keep their peaks, and the last point stays unchanged. */
TEST(test_the_end_of_many) {
    static struct weir_timeline_extent extent[WEIR_TIMELINE_POINTS];
    size_t extents;

    for (uint64_t i = 0; i < WEIR_TIMELINE_POINTS + 2; i++)
        count_at(i, 0, 0, i % 2 ? 1 : 1000);
    extents = weir__timeline_extents(timeline, extent, WEIR_TIMELINE_POINTS);
    ck_assert_uint_eq(extent[extents - 1].time_ns, WEIR_TIMELINE_POINTS + 1);
    ck_assert_uint_eq(extent[extents - 1].high[WEIR_TIMELINE_RESERVED], 1);
    ck_assert_uint_eq(extent[extents - 2].high[WEIR_TIMELINE_RESERVED], 1000);
}

TEST(test_an_unfinished_timeline_names_its_process) {
    char unfinished[300];
    int length = weir__timeline_unfinished(unfinished, sizeof unfinished, 42);

    ck_assert_int_lt(length, 300);
    ck_assert_int_eq((int)strlen(unfinished), length);
    ck_assert_ptr_nonnull(strstr(unfinished, "\"name\":\"unfinished\",\"pid\":42,"));
}

#ifdef CAN_REFUSE_HOST_MEMORY
TEST(test_no_timeline_opens_without_host_memory) {
    refuse_in = 1;
    ck_assert_ptr_null(weir__timeline_open());
    weir__timeline_close(NULL);
    refuse_in = 0;
}
#endif

SUITE("timeline", CK_FORK_GETENV);
