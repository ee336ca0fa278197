/* SPDX-License-Identifier: MIT */
/* test_map.c: compares the map with a plain array, and lets the host run out of memory.
 *
 * The test compiles the map with a calloc that can fail. */
#include "tests/fixtures/suite.h"

static int refuse; /* calloc fails */
static int asked;  /* calls of calloc */

static void *refusing_calloc(size_t count, size_t bytes) {
    asked++;
    return refuse ? NULL : calloc(count, bytes);
}

#define calloc refusing_calloc
#include "base/map.c"
#undef calloc

static struct weir_map map;

static void start_empty_map(void) {
    memset(&map, 0, sizeof map);
}

static void clear_map(void) {
    refuse = 0;
    weir__map_clear(&map);
    ck_assert(!map.slots && map.capacity == 0 && map.count == 0);
}

static uint64_t map_key(size_t i) {
    return 0x7f0000000000 + 256 * (uint64_t)i;
}

/* Puts the keys first to last, each with its number as the value. */
static void put_keys(size_t first, size_t last) {
    for (size_t i = first; i <= last; i++)
        ck_assert_int_eq(weir__map_put(&map, map_key(i), i), 1);
}

CASE("map", 4, start_empty_map, clear_map);

TEST(an_empty_map_holds_nothing) {
    uintptr_t value = 7;

    ck_assert_int_eq(weir__map_get(&map, 256, &value), 0);
    ck_assert_int_eq(weir__map_remove(&map, 256, &value), 0);
    ck_assert_uint_eq(value, 7);
    ck_assert_uint_eq(map.count, 0);
    weir__map_clear(&map);
}

TEST(what_was_put_is_got_and_taken_once) {
    uintptr_t value = 0;

    put_keys(1, 100);
    ck_assert_uint_eq(map.count, 100);
    ck_assert_int_eq(weir__map_get(&map, map_key(101), &value), 0);
    ck_assert_uint_eq(value, 0);
    for (size_t i = 1; i <= 100; i++) {
        ck_assert_int_eq(weir__map_get(&map, map_key(i), &value), 1);
        ck_assert_uint_eq(value, i);
        ck_assert_int_eq(weir__map_get(&map, map_key(i), NULL), 1);
        ck_assert_int_eq(weir__map_remove(&map, map_key(i), i % 2 ? &value : NULL), 1);
        ck_assert_uint_eq(value, i);
        ck_assert_int_eq(weir__map_remove(&map, map_key(i), &value), 0);
        ck_assert_uint_eq(map.count, 100 - i);
    }
}

TEST(a_second_put_replaces_the_value) {
    uintptr_t value = 0;

    put_keys(1, 3);
    ck_assert_int_eq(weir__map_put(&map, map_key(2), 22), 1);
    ck_assert_uint_eq(map.count, 3);
    ck_assert_int_eq(weir__map_get(&map, map_key(2), &value), 1);
    ck_assert_uint_eq(value, 22);
}

/* The test puts the largest and smallest possible keys and values. */
TEST(keys_and_values_may_be_anything_but_key_0) {
    uintptr_t value = 1;

    ck_assert_int_eq(weir__map_put(&map, UINT64_MAX, 0), 1);
    ck_assert_int_eq(weir__map_put(&map, 1, UINTPTR_MAX), 1);
    ck_assert_int_eq(weir__map_remove(&map, UINT64_MAX, &value), 1);
    ck_assert_uint_eq(value, 0);
    ck_assert_int_eq(weir__map_remove(&map, 1, &value), 1);
    ck_assert_uint_eq(value, UINTPTR_MAX);
}

CASE("host memory", 4, start_empty_map, clear_map);

/* The test fills the map to each size at which the next new key makes the map grow. */
TEST(a_key_that_is_there_needs_no_memory) {
    uintptr_t value;
    size_t filled = 0;

    for (size_t border = 32; border <= 1024; border *= 2) {
        size_t capacity;

        put_keys(filled + 1, border);
        filled = border;
        capacity = map.capacity;
        refuse = 1;
        ck_assert_int_eq(weir__map_put(&map, map_key(border + 1), 1), 0);
        ck_assert_int_eq(weir__map_get(&map, map_key(border + 1), NULL), 0);
        ck_assert_uint_eq(map.count, border);
        asked = 0;
        for (size_t i = 1; i <= border; i++)
            ck_assert_int_eq(weir__map_put(&map, map_key(i), 2 * i), 1);
        ck_assert_int_eq(asked, 0);
        ck_assert_uint_eq(map.capacity, capacity);
        for (size_t i = 1; i <= border; i++) {
            ck_assert_int_eq(weir__map_get(&map, map_key(i), &value), 1);
            ck_assert_uint_eq(value, 2 * i);
        }
        refuse = 0;
        ck_assert_int_eq(weir__map_put(&map, map_key(border + 1), 1), 1);
        ck_assert_uint_gt(map.capacity, capacity);
    }
}

TEST(without_memory_an_empty_map_stays_empty) {
    refuse = 1;
    ck_assert_int_eq(weir__map_put(&map, 256, 1), 0);
    ck_assert(!map.slots && map.capacity == 0 && map.count == 0);
    ck_assert_int_eq(weir__map_get(&map, 256, NULL), 0);
}

/* ---- against an array ---- */

enum { KEYS = 600, STEPS = 200000 };

static uint64_t random_state;

static size_t random_index(size_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % limit);
}

CASE("random", 60, start_empty_map, clear_map);

/* Keys crowd together, so that most deletions move an entry.  `there` and `values` are the expected contents.  The map
 * fills and empties in turn. */
TEST_EACH(4, a_long_random_run_agrees_with_an_array) {
    static uint64_t keys[KEYS];
    static uintptr_t values[KEYS];
    static char there[KEYS];
    size_t count = 0;

    random_state = 88172645463325252u + (uint64_t)_i;
    for (size_t i = 0; i < KEYS; i++)
        keys[i] =
            _i % 2 ? map_key(i * (size_t)(_i + 1)) : (random_index(SIZE_MAX) / KEYS + 1) * KEYS + i;
    for (size_t step = 0; step < STEPS; step++) {
        size_t i = random_index(KEYS), puts = step / 5000 % 2 ? 30 : 60, what = random_index(100);
        uintptr_t value = 12345;

        if (what < puts) {
            values[i] = random_index(SIZE_MAX);
            refuse = there[i];
            MUST(weir__map_put(&map, keys[i], values[i]) == 1);
            refuse = 0;
            count += !there[i];
            there[i] = 1;
        } else if (what < 90) {
            MUST(weir__map_remove(&map, keys[i], &value) == there[i]);
            MUST(value == (there[i] ? values[i] : 12345));
            count -= there[i] != 0;
            there[i] = 0;
        } else {
            MUST(weir__map_get(&map, keys[i], &value) == there[i]);
            MUST(value == (there[i] ? values[i] : 12345));
        }
        MUST(map.count == count);
        MUST(2 * map.count <= map.capacity || map.capacity == 0);
        if (step % 500 == 0)
            for (i = 0; i < KEYS; i++) {
                MUST(weir__map_get(&map, keys[i], &value) == there[i]);
                MUST(!there[i] || value == values[i]);
            }
    }
}

SUITE("map", CK_FORK_GETENV);
