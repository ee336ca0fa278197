/* SPDX-License-Identifier: MIT */
/* test_samples.c: what is kept of a replay that is longer than what can be kept. */
#include <check.h>
#include <stdint.h>
#include <string.h>

#include "cli/replay/samples.h"
#include "tests/fixtures/suite.h"

enum { MOST_OPS = 20000, MOST_BLOCKS = 16, PAGE = 2 << 20 };

static struct tape_op ops[MOST_OPS];
static struct tape_header header;
static struct tape tape;
static void *addresses[MOST_BLOCKS];
static struct figures figures;
static struct samples *samples;
static json_t *told;
static uint64_t next;

static void begin(void) {
    memset(&header, 0, sizeof header);
    memset(&figures, 0, sizeof figures);
    memset(addresses, 0, sizeof addresses);
    header.blocks = MOST_BLOCKS;
    figures.has_in_use = figures.has_reserve = 1;
    tape = (struct tape){.header = &header, .ops = ops};
    samples = NULL;
    told = NULL;
    next = 0;
}

static void end(void) {
    samples_close(samples);
    json_decref(told);
}

static void add(char code, uint32_t block, uint64_t bytes) {
    ck_assert_uint_lt(header.ops, MOST_OPS);
    header.marks += code == 'm';
    ops[header.ops++] = (struct tape_op){.code = (uint8_t)code, .block = block, .bytes = bytes};
}

static void open_samples(void) {
    samples = samples_open(&tape, &figures);
    ck_assert_ptr_nonnull(samples);
}

/* The next operation was played: its block lies there, or nowhere. */
static void play(uint64_t address) {
    addresses[ops[next].block] = (void *)(uintptr_t)address;
    samples_note(samples, next++, addresses, &figures);
}

static void tell(void) {
    ck_assert_uint_eq(next, header.ops);
    told = samples_json(samples);
    ck_assert_ptr_nonnull(told);
}

static const json_t *at(const char *key, const char *inner) {
    const json_t *value = json_object_get(told, key);

    return inner ? json_object_get(value, inner) : value;
}

static uint64_t number(const json_t *array, size_t i) {
    return (uint64_t)json_integer_value(json_array_get(array, i));
}

static uint64_t field(const json_t *array, size_t i, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(json_array_get(array, i), key));
}

static const char *cells(size_t column) {
    return json_string_value(
        json_object_get(json_array_get(at("map", "columns"), column), "cells"));
}

CASE("samples", 20, begin, end);

/* One operation in the midst is higher, and one lower, than all others. */
TEST(test_peaks_are_kept) {
    uint64_t most = 0, least = UINT64_MAX, reserve = 0;

    for (int i = 0; i < MOST_OPS / 2; i++) {
        add('a', 1, i == 4321 ? 9000 : 100);
        add('f', 1, i == 4321 ? 9000 : 100);
    }
    open_samples();
    while (next < header.ops) {
        figures.reserve = next == 7001 ? 77777 : 5000;
        figures.in_use = next == 12345 ? 1 : 512;
        play(ops[next].code == 'a' ? PAGE : 0);
    }
    tell();
    ck_assert_uint_eq(json_array_size(at("timeline", "requested_high")), SAMPLES_POINTS);
    for (size_t i = 0; i < SAMPLES_POINTS; i++) {
        uint64_t high = number(at("timeline", "requested_high"), i);

        ck_assert_uint_eq(number(at("timeline", "requested_low"), i), 0);
        most = high > most ? high : most;
        if (number(at("timeline", "in_use_low"), i) < least)
            least = number(at("timeline", "in_use_low"), i);
        if (number(at("timeline", "reserved_high"), i) > reserve)
            reserve = number(at("timeline", "reserved_high"), i);
    }
    ck_assert_uint_eq(most, 9000);
    ck_assert_uint_eq(least, 1);
    ck_assert_uint_eq(reserve, 77777);
    ck_assert_uint_eq(json_array_size(at("steps", NULL)), 0);
}

/* 1,500 steps, of which each third is small. */
TEST(test_the_largest_steps_are_kept) {
    uint64_t last = 0;

    for (int i = 0; i < 1500; i++)
        add('m', 0, 0);
    open_samples();
    while (next < header.ops) {
        figures.reserve += next % 3 ? 1000 : 10;
        figures.growths++;
        figures.stall_ns += 7;
        play(0);
    }
    tell();
    ck_assert_uint_eq(json_array_size(at("steps", NULL)), SAMPLES_STEPS);
    ck_assert_int_eq(json_integer_value(at("steps_left_out", NULL)), 500);
    for (size_t i = 0; i < SAMPLES_STEPS; i++) {
        uint64_t op = field(at("steps", NULL), i, "op");

        ck_assert(i == 0 || op > last);
        ck_assert_uint_eq(field(at("steps", NULL), i, "bytes"), 1000);
        ck_assert_uint_eq(field(at("steps", NULL), i, "growths"), 1);
        ck_assert_uint_eq(field(at("steps", NULL), i, "stall_ns"), 7);
        last = op;
    }
    ck_assert_ptr_null(at("marks", NULL)); /* too many */
}

/* The first step is one from what was there before the first operation. */
TEST(test_first_step_and_giving_back) {
    add('a', 0, 100);
    add('f', 0, 100);
    add('m', 0, 0);
    figures.reserve = 50;
    figures.growths = 3;
    open_samples();
    figures.reserve = 250;
    figures.growths = 4;
    play(PAGE);
    play(0);
    figures.reserve = 0;
    figures.given_back = 1;
    play(0);
    tell();
    ck_assert_uint_eq(json_array_size(at("steps", NULL)), 2);
    ck_assert_uint_eq(field(at("steps", NULL), 0, "bytes"), 200);
    ck_assert_uint_eq(field(at("steps", NULL), 0, "growths"), 1);
    ck_assert_uint_eq(field(at("steps", NULL), 1, "op"), 2);
    ck_assert_uint_eq(field(at("steps", NULL), 1, "given_back"), 1);
    ck_assert_uint_eq(field(at("steps", NULL), 1, "bytes"), 250);
    ck_assert_uint_eq(number(at("marks", NULL), 0), 2);
}

/* Two pages far apart stand side by side, in a little less than 48 cells each. */
TEST(test_map) {
    const uint64_t far = UINT64_C(1) << 40;

    add('a', 0, PAGE);
    add('a', 1, PAGE / 4);
    add('f', 0, PAGE);
    open_samples();
    play(far);
    play(PAGE + PAGE / 2 + 100);
    play(0);
    tell();
    ck_assert_int_eq(json_integer_value(at("map", "range_count")), 2);
    ck_assert_uint_eq(number(at("map", "ranges"), 0), PAGE);
    ck_assert_int_eq(json_integer_value(at("map", "cell_bytes")), 2 * PAGE / 96 + 1);
    ck_assert_uint_eq(json_array_size(at("map", "columns")), 3);
    ck_assert_uint_eq(field(at("map", "columns"), 1, "live_bytes"), PAGE + PAGE / 4);
    ck_assert_uint_eq(field(at("map", "columns"), 1, "page_bytes"), 2 * PAGE);
    ck_assert_uint_eq(strspn(cells(0), "."), 47);
    ck_assert_uint_eq(strspn(cells(1), "."), 24);
    ck_assert_uint_eq(strspn(cells(1) + 25, "#"), 11);
    ck_assert_uint_eq(strspn(cells(1) + 49, "#"), 46);
    ck_assert_uint_eq(strspn(cells(2) + 37, "."), 59);
    ck_assert_uint_eq(strlen(cells(2)), SAMPLES_ROWS);
}

/* A column stands where most is live, though it is one operation of many. */
TEST(test_a_column_at_the_peak) {
    int found = 0;

    for (int i = 0; i < 5000; i++) {
        add('a', 1, i == 2345 ? 5 * PAGE : 512);
        add('f', 1, i == 2345 ? 5 * PAGE : 512);
    }
    open_samples();
    while (next < header.ops)
        play(ops[next].code == 'a' ? 64 * (uint64_t)PAGE : 0);
    tell();
    ck_assert_uint_eq(json_array_size(at("map", "columns")), SAMPLES_COLUMNS);
    for (size_t i = 0; i < SAMPLES_COLUMNS; i++)
        found += field(at("map", "columns"), i, "op") == 4690 &&
                 field(at("map", "columns"), i, "live_bytes") == 5 * PAGE;
    ck_assert_int_eq(found, 1);
}

/* Requests that were refused, and of no bytes, are nowhere; of nothing there is no map. */
TEST(test_nothing) {
    figures.has_in_use = 0;
    add('a', 0, 4096);
    add('a', 1, 0);
    add('f', 0, 4096);
    add('f', 1, 0);
    open_samples();
    while (next < header.ops)
        play(0);
    tell();
    ck_assert_uint_eq(number(at("timeline", "requested_high"), 1), 0);
    ck_assert_ptr_null(at("timeline", "in_use_high"));
    ck_assert_uint_eq(json_array_size(at("map", "columns")), 0);
    end();
    begin();
    open_samples();
    tell();
    ck_assert_int_eq(json_integer_value(at("ops", NULL)), 0);
}

int main(void) {
    return run_tests("samples", CK_FORK_GETENV);
}
