/* SPDX-License-Identifier: MIT */
/* test_merge.c: which figures of a record come from iterations timed as a whole, and which stay. */
#include <check.h>
#include <jansson.h>

#include "cli/replay/merge.h"
#include "tests/fixtures/suite.h"

/* Grows in the first of five; by its single times the second iteration would be the slowest. */
static const char singles[] =
    "{'prealloc_ns': 7, 'creation_ns': 9, 'growths': 1, 'settled': true, 'warm_up_iterations': 1,"
    " 'steady_alloc_ns': 130, 'first_iteration_ns': 500, 'prealloc_and_first_iteration_ns': 507,"
    " 'creation_and_first_iteration_ns': 509,"
    " 'iterations': ["
    "{'alloc_ns': 500, 'growths': 1, 'given_back': 0}, {'alloc_ns': 150, 'growths': 0},"
    "{'alloc_ns': 120, 'growths': 0}, {'alloc_ns': 120, 'growths': 0},"
    "{'alloc_ns': 140, 'growths': 0}]}";
/* Would be unsettled by its own growths. */
static const char stretches[] =
    "{'iterations': [{'alloc_ns': 400, 'growths': 1}, {'alloc_ns': 50, 'growths': 0},"
    "{'alloc_ns': 60, 'growths': 0}, {'alloc_ns': 80, 'growths': 1},"
    "{'alloc_ns': 100, 'growths': 0}]}";

/* JSON with ' for ". */
static json_t *parse(const char *text) {
    char quoted[1024];
    size_t i;
    json_t *value;

    for (i = 0; text[i]; i++) {
        ck_assert_uint_lt(i, sizeof quoted - 1);
        quoted[i] = text[i] == '\'' ? '"' : text[i];
    }
    quoted[i] = '\0';
    value = json_loads(quoted, 0, NULL);
    ck_assert_ptr_nonnull(value);
    return value;
}

static json_int_t at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);

    ck_assert_msg(json_is_integer(value), "%s is there", key);
    return json_integer_value(value);
}

static json_t *merged(const char *result_text, const char *stretches_text) {
    json_t *result = parse(result_text), *whole = parse(stretches_text);

    ck_assert_ptr_null(merge_stretches(result, whole));
    json_decref(whole);
    return result;
}

CASE("merge", 4, NULL, NULL);

TEST(test_times_of_iterations) {
    json_t *result = merged(singles, stretches);
    const json_t *last = json_array_get(json_object_get(result, "iterations"), 4);

    ck_assert_int_eq(at(result, "first_iteration_ns"), 400);
    ck_assert_int_eq(at(result, "first_iteration_single_ns"), 500);
    ck_assert_int_eq(at(result, "prealloc_and_first_iteration_ns"), 407);
    ck_assert_int_eq(at(result, "creation_and_first_iteration_ns"), 409);
    ck_assert_int_eq(at(last, "alloc_ns"), 100);
    ck_assert_int_eq(at(last, "single_ns"), 140);
    json_decref(result);
}

TEST(test_steady_by_growths_of_singles) {
    json_t *result = merged(singles, stretches);

    ck_assert_int_eq(at(result, "steady_alloc_ns"), 70);
    ck_assert_int_eq(at(result, "steady_single_ns"), 130);
    ck_assert_int_eq(at(result, "warm_up_iterations"), 1);
    ck_assert(json_is_true(json_object_get(result, "settled")));
    json_decref(result);
}

TEST(test_parts_on_a_model_only) {
    json_t *result = merged(singles, stretches);

    ck_assert_ptr_null(json_object_get(result, "steady_single_driver_ns"));
    ck_assert_ptr_null(json_object_get(result, "steady_alloc_own_ns"));
    json_decref(result);
    result =
        merged("{'steady_alloc_ns': 30, 'steady_alloc_driver_ns': 20, 'steady_alloc_own_ns': 10,"
               " 'iterations': [{'alloc_ns': 30, 'driver_ns': 20, 'own_ns': 10}]}",
               "{'iterations': [{'alloc_ns': 28, 'driver_ns': 21, 'own_ns': 7}]}");
    ck_assert_int_eq(at(result, "steady_alloc_ns"), 28);
    ck_assert_int_eq(at(result, "steady_alloc_driver_ns"), 21);
    ck_assert_int_eq(at(result, "steady_alloc_own_ns"), 7);
    ck_assert_int_eq(at(result, "steady_single_ns"), 30);
    ck_assert_int_eq(at(result, "steady_single_driver_ns"), 20);
    ck_assert_int_eq(at(result, "steady_single_own_ns"), 10);
    json_decref(result);
}

TEST(test_no_iterations) {
    json_t *result = merged("{'steady_alloc_ns': null, 'first_iteration_ns': null,"
                            " 'prealloc_and_first_iteration_ns': null, 'iterations': []}",
                            "{'iterations': []}");

    ck_assert(json_is_null(json_object_get(result, "steady_alloc_ns")));
    ck_assert(json_is_null(json_object_get(result, "steady_single_ns")));
    ck_assert(json_is_null(json_object_get(result, "first_iteration_ns")));
    ck_assert(json_is_null(json_object_get(result, "prealloc_and_first_iteration_ns")));
    json_decref(result);
}

TEST(test_numbers_of_iterations_differ) {
    json_t *result = parse(singles), *before = json_deep_copy(result);
    json_t *whole = parse("{'iterations': [{'alloc_ns': 1}]}");

    ck_assert_ptr_nonnull(merge_stretches(result, whole));
    ck_assert(json_equal(result, before));
    json_decref(whole);
    json_decref(before);
    json_decref(result);
}

/* Of the one that was refused more, with its reason. */
TEST_EACH(3, test_failures_of_either) {
    static const char *const with[][2] = {
        {"{'failed': 0, 'iterations': []}",
         "{'failed': 3, 'oom_report': {'status': 1}, 'iterations': []}"},
        {"{'failed': 3, 'oom_report': {'status': 1}, 'iterations': []}",
         "{'failed': 2, 'oom_report': {'status': 2}, 'iterations': []}"},
        {"{'failed': 3, 'iterations': []}", "{'failed': 0, 'iterations': []}"}};
    json_t *result = merged(with[_i][0], with[_i][1]);

    ck_assert_int_eq(at(result, "failed"), 3);
    if (_i < 2)
        ck_assert_int_eq(at(json_object_get(result, "oom_report"), "status"), 1);
    else
        ck_assert_ptr_null(json_object_get(result, "oom_report"));
    json_decref(result);
}

int main(void) {
    return run_tests("merge", CK_FORK_GETENV);
}
