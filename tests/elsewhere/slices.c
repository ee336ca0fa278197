/* SPDX-License-Identifier: MIT */
/* slices.c: of a suite of Check's one slice of several, so that processors may share it.
 *
 * WEIR_TEST_SLICE=2/16 leaves every 16th test in, from the third on; a loop's iterations count each for itself.
 * Without it all are.  The suites know nothing of it: tests/elsewhere/bundle links this into them, with --wrap.  Who
 * adds up the slices finds in their first lines how many tests each has, of how many.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned slice, slices = 1, seen, left;

/* The names are the linker's. */
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
