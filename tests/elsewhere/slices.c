/* SPDX-License-Identifier: MIT */
/* slices.c: runs one slice of a Check suite, so that several processors may share the suite.
 *
 * WEIR_TEST_SLICE=2/16 runs every 16th test, from the third on; each iteration of a loop counts as a test.  Without the
 * variable all tests run.  The suites do not know of slices: tests/elsewhere/bundle links this file into them with
 * --wrap.  The first line of each slice says how many of how many tests it runs, so that a script can add them up. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned slice, slices = 1, seen, left;

/* The linker requires these names. */
void __real__tcase_add_test(TCase *tests, const TTest *test, int signal, int status, int from, int to);
void __wrap__tcase_add_test(TCase *tests, const TTest *test, int signal, int status, int from, int to);
void __real_srunner_run_all(SRunner *runner, enum print_output mode);
void __wrap_srunner_run_all(SRunner *runner, enum print_output mode);

void __wrap__tcase_add_test(TCase *tests, const TTest *test, int signal, int status, int from, int to) {
    const char *text = getenv("WEIR_TEST_SLICE");

    if (text && (sscanf(text, "%u/%u", &slice, &slices) != 2 || slice >= slices)) {
        fprintf(stderr, "WEIR_TEST_SLICE=%s\n", text);
        exit(2);
    }
    for (int i = from; i < to; i++) {
        if (seen++ % slices != slice)
            continue;
        left++;
        __real__tcase_add_test(tests, test, signal, status, i, i + 1);
    }
}

void __wrap_srunner_run_all(SRunner *runner, enum print_output mode) {
    printf("# slice %u/%u: %u of %u tests\n", slice, slices, left, seen);
    fflush(stdout);
    __real_srunner_run_all(runner, mode);
}
