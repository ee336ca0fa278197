/* SPDX-License-Identifier: MIT */
/* suite.h: how a suite of Check's is put together and run, and assertions that may run often.
 *
 * Must not know: what it tests.
 */
#ifndef WEIR_TEST_SUITE_H
#define WEIR_TEST_SUITE_H

#include <check.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* Check writes a note to a file at each of its assertions, which is too slow for what runs a million
 * times: these say nothing until they fail. */
#define MUST(condition) ((condition) ? (void)0 : ck_abort_msg("not so: %s", #condition))
#define MUST_EQ(a, b) must_compare((a) == (b), #a " == " #b, (uint64_t)(a), (uint64_t)(b), __LINE__)
#define MUST_LE(a, b) must_compare((a) <= (b), #a " <= " #b, (uint64_t)(a), (uint64_t)(b), __LINE__)

static inline void must_compare(int holds, const char *what, uint64_t a, uint64_t b, int line) {
    if (!holds)
        ck_abort_msg("line %d: not so: %s (%llu, %llu)", line, what, (unsigned long long)a,
                     (unsigned long long)b);
}

/* The suite's program anew, by its name: what /proc/self/exe leads to may be Valgrind.  Comes back where it cannot. */
static inline void exec_itself(char *const argv[]) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);

    if (length <= 0)
        return;
    path[length] = '\0';
    execv(path, argv);
}

/* Whether the process has the addresses for whole devices: Valgrind gives it less, and is slow over what it gives. */
static inline int is_roomy(void) {
    size_t bytes = (size_t)1 << 40;
    void *addresses =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (addresses == MAP_FAILED) {
        printf("# skipped: this process has little address space\n");
        return 0;
    }
    munmap(addresses, bytes);
    return 1;
}

/* A case of the suite, of which each test may take so many seconds. */
static inline TCase *suite_add_case(Suite *suite, const char *name, double seconds, SFun set_up,
                                    SFun tear_down) {
    TCase *tests = tcase_create(name);

    tcase_set_timeout(tests, seconds);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    suite_add_tcase(suite, tests);
    return tests;
}

/* What main returns. */
static inline int run_suite(Suite *suite, enum fork_status fork) {
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_set_fork_status(runner, fork);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
