/* SPDX-License-Identifier: MIT */
/* test_gate.c: libweir-gate.so in a program (gated.c), with this process as its keeper. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/who.h"
#include "ipc/gate_page.h"
#include "tests/fixtures/suite.h"

static char folder[] = "/tmp/weir-gate-XXXXXX";

static void nap_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void set_up(void) {
    char keeper[64];

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    snprintf(keeper, sizeof keeper, "%ld %llu", (long)getpid(),
             (unsigned long long)weir__process_start(getpid()));
    ck_assert_int_eq(setenv("WEIR_RUN_PARK", keeper, 1), 0);
}

static void tear_down(void) {
    char command[64];

    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static struct program {
    pid_t pid;
    int to, from;
} program;

static void begin(const char *name, const char *what) {
    const char *build = getenv("top_builddir");
    char path[256], gate[256], driver[256], preload[280];
    int in[2], out[2];

    build = build ? build : ".";
    snprintf(path, sizeof path, "%s/tests/gate/%s", build, name);
    snprintf(driver, sizeof driver, "%s/tests/gate/.libs", build);
    ck_assert_ptr_nonnull(realpath(build, gate));
    snprintf(preload, sizeof preload, "%.200s/lib/.libs/libweir-gate.so", gate);
    ck_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    program.pid = fork();
    if (program.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        setenv("LD_PRELOAD", preload, 1);
        setenv("LD_LIBRARY_PATH", driver, 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
        execl(path, path, what, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    program.to = in[1];
    program.from = out[0];
}

/* A line of the program's, within that time. */
static int says(const char *line, int ms) {
    struct pollfd has = {.fd = program.from, .events = POLLIN};
    char text[32] = "";

    for (size_t i = 0; i + 1 < sizeof text && poll(&has, 1, ms) == 1; i++)
        if (read(program.from, text + i, 1) != 1 || text[i] == '\n')
            break;
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, line) == 0;
}

static void tell(void) {
    ck_assert_int_eq(write(program.to, "\n", 1), 1);
}

static void expect_end(void) {
    int status;

    ck_assert_int_eq(waitpid(program.pid, &status, 0), program.pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it ended with %x",
                  (unsigned)status);
    close(program.to);
    close(program.from);
}

static struct weir_gate find(void) {
    struct weir_gate gate;
    int found = -1;

    for (int i = 0; i < 2000 && found != 0; i++) {
        found = weir__gate_find(&gate, program.pid, weir__process_start(program.pid));
        if (found != 0)
            nap_ms(1);
    }
    ck_assert_int_eq(found, 0);
    return gate;
}

/* ---- Tests ---- */

TEST(calls_come_through_with_all_their_arguments) {
    static const char *const ways[] = {"arguments", "threads", "many"};

    begin("gated", ways[_i]);
    ck_assert(says("done", 60000));
    expect_end();
}

TEST(a_closed_gate_holds_all_threads) {
    struct weir_gate gate;
    uint64_t uses;
    int inside;

    begin("gated", "works");
    gate = find();
    for (int i = 0; i < 100; i++) {
        uint32_t bell = atomic_load(&gate.page->bell);

        while (!weir__gate_close(&gate, 100))
            ;
        uses = weir__gate_uses(&gate, &inside); /* a thread that finds it closed is inside for a moment */
        while (atomic_load(&gate.page->waiting) < (i == 0 ? 6 : 1))
            weir__gate_wait(&gate, bell, 10);
        nap_ms(i == 0 ? 50 : 1);
        ck_assert_uint_eq(weir__gate_uses(&gate, &inside), uses);
        weir__gate_open(&gate);
        for (int n = 0; n < 5000 && weir__gate_uses(&gate, &inside) == uses; n++)
            nap_ms(1);
        ck_assert_uint_gt(weir__gate_uses(&gate, &inside), uses);
    }
    kill(program.pid, SIGKILL);
    waitpid(program.pid, NULL, 0);
    ck_assert(!weir__gate_is_current(&gate));
    weir__gate_unmap(&gate);
}

TEST(a_child_of_fork_has_a_gate_of_its_own) {
    struct weir_gate gate;

    begin("gated", "forks");
    ck_assert(says("ready", 20000));
    gate = find();
    ck_assert(weir__gate_close(&gate, 1000));
    tell();
    ck_assert(says("child", 20000));
    ck_assert(!says("done", 100));
    weir__gate_open(&gate);
    ck_assert(says("done", 20000));
    expect_end();
    weir__gate_unmap(&gate);
}

TEST(the_end_of_a_parked_program_waits) {
    struct weir_gate gate;

    begin("gated", "shares");
    ck_assert(says("done", 20000));
    gate = find();
    ck_assert_uint_eq(atomic_load(&gate.page->reason), WEIR_GATE_SHARES);
    ck_assert_str_eq(gate.page->refused_by, "cuIpcGet");
    ck_assert(weir__gate_close(&gate, 1000));
    tell();
    for (int i = 0; i < 5000 && atomic_load(&gate.page->waiting) == 0; i++)
        nap_ms(1);
    ck_assert_uint_eq(atomic_load(&gate.page->waiting), 1);
    ck_assert_int_eq(waitpid(program.pid, NULL, WNOHANG), 0);
    weir__gate_open(&gate);
    expect_end();
    weir__gate_unmap(&gate);
}

TEST(who_is_linked_to_what_no_stub_stands_before_is_told) {
    struct weir_gate gate;

    begin("gated_newer", "newer");
    ck_assert(says("done", 20000));
    gate = find();
    ck_assert_uint_eq(atomic_load(&gate.page->reason), WEIR_GATE_BYPASSED);
    ck_assert_str_eq(gate.page->refused_by, "cuGateNobodyKnows");
    tell();
    expect_end();
    weir__gate_unmap(&gate);
}

int main(void) {
    Suite *suite = suite_create("gate");
    TCase *tests = suite_add_case(suite, "gate", 120, set_up, tear_down);

    ADD_FOR_EACH(tests, 3, calls_come_through_with_all_their_arguments);
    ADD_TESTS(tests, a_closed_gate_holds_all_threads, a_child_of_fork_has_a_gate_of_its_own,
              the_end_of_a_parked_program_waits,
              who_is_linked_to_what_no_stub_stands_before_is_told);
    return run_suite(suite, CK_FORK);
}
