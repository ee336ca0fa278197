/* SPDX-License-Identifier: MIT */
/* test_status.c: statuses as text, the thread's driver result, and log lines. */
#include <weir/status.h>

#include "base/log.h"
#include "base/result.h"
#include "tests/fixtures/suite.h"

/* ------------------------------------------------------------------- statuses ---- */

/* Values never change once released, so the test repeats them. */
static const struct {
    weir_status status;
    int value;
    const char *name;
} statuses[] = {
    {WEIR_OK, 0, "WEIR_OK"},
    {WEIR_E_INVALID, -1, "WEIR_E_INVALID"},
    {WEIR_E_NO_MEMORY, -2, "WEIR_E_NO_MEMORY"},
    {WEIR_E_HOST_MEMORY, -3, "WEIR_E_HOST_MEMORY"},
    {WEIR_E_LIMIT, -4, "WEIR_E_LIMIT"},
    {WEIR_E_NO_DEVICE, -5, "WEIR_E_NO_DEVICE"},
    {WEIR_E_DRIVER, -6, "WEIR_E_DRIVER"},
    {WEIR_E_DEVICE_LOST, -7, "WEIR_E_DEVICE_LOST"},
    {WEIR_E_BUSY, -8, "WEIR_E_BUSY"},
    {WEIR_E_NOT_OWNED, -9, "WEIR_E_NOT_OWNED"},
    {WEIR_E_STREAM, -10, "WEIR_E_STREAM"},
    {WEIR_E_CAPTURE, -11, "WEIR_E_CAPTURE"},
    {WEIR_E_FORKED, -12, "WEIR_E_FORKED"},
    {WEIR_E_PARSE, -13, "WEIR_E_PARSE"},
    {WEIR_E_NOT_SUPPORTED, -14, "WEIR_E_NOT_SUPPORTED"},
    {WEIR_E_FILE, -15, "WEIR_E_FILE"},
};
enum { STATUSES = sizeof statuses / sizeof statuses[0] };

CASE("status", 4, NULL, NULL);

TEST_EACH(STATUSES, test_each_status_has_a_name_and_a_message) {
    int listed = 0;

#define COUNT_STATUS(name, value, text) listed++;
    WEIR_STATUSES(COUNT_STATUS)
#undef COUNT_STATUS
    ck_assert_int_eq(listed, STATUSES);
    ck_assert_int_eq((int)statuses[_i].status, statuses[_i].value);
    ck_assert_str_eq(weir_status_name(statuses[_i].status), statuses[_i].name);
    ck_assert_str_ne(weir_status_message(statuses[_i].status), "unknown status");
    for (int j = 0; j < _i; j++)
        ck_assert_str_ne(weir_status_message(statuses[_i].status),
                         weir_status_message(statuses[j].status));
}

TEST(test_an_unknown_status_is_called_so) {
    static const int values[] = {1, -16, 0x7fffffff, -0x7fffffff - 1};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        ck_assert_str_eq(weir_status_name((weir_status)values[i]), "unknown status");
        ck_assert_str_eq(weir_status_message((weir_status)values[i]), "unknown status");
    }
}

static void *other_thread(void *seen) {
    *(int *)seen = weir_last_driver_result();
    weir__set_driver_result(700);
    return NULL;
}

TEST(test_driver_result_is_the_threads_own) {
    int seen = -1;

    ck_assert_int_eq(weir_last_driver_result(), 0);
    weir__set_driver_result(2);
    ck_assert_int_eq(weir_last_driver_result(), 2);
    run_in_thread(other_thread, &seen);
    ck_assert_int_eq(seen, 0);
    ck_assert_int_eq(weir_last_driver_result(), 2);
    weir__set_driver_result(0);
    ck_assert_int_eq(weir_last_driver_result(), 0);
}

/* ------------------------------------------------------------------- log lines ---- */

static int saved_stderr, log_end;

static void catch_stderr(void) {
    int ends[2];

    saved_stderr = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    close(ends[1]);
    log_end = ends[0];
}

/* Returns the text that was written since catch_stderr. */
static const char *caught(void) {
    static char text[8192];
    ssize_t length;

    ck_assert_int_ge(dup2(saved_stderr, STDERR_FILENO), 0);
    close(saved_stderr);
    length = read(log_end, text, sizeof text - 1);
    close(log_end);
    ck_assert_int_ge((int)length, 0);
    text[length] = '\0';
    return text;
}

TEST_WHERE(WEIR_LOG_DEFAULT, WEIR_LOG_DEBUG + 1, NULL, test_each_log_level_hides_later_ones) {
    static const char *const lines[] = {"",
                                        "",
                                        "weir: error: e 7\n",
                                        "weir: error: e 7\nweir: warning: w\n",
                                        "weir: error: e 7\nweir: warning: w\nweir: info: i\n",
                                        ("weir: error: e 7\nweir: warning: w\nweir: info: i\n"
                                         "weir: debug: d\n")};

    catch_stderr();
    weir__log(_i, WEIR_LOG_NONE, "never");
    weir__log(_i, WEIR_LOG_DEFAULT, "never");
    weir__log(_i, WEIR_LOG_ERROR, "e %d", 7);
    weir__log(_i, WEIR_LOG_WARNING, "w");
    weir__log(_i, WEIR_LOG_INFO, "%s", "i");
    weir__log(_i, WEIR_LOG_DEBUG, "d");
    ck_assert_str_eq(caught(), lines[_i]);
}

TEST(test_log_keeps_errno) {
    catch_stderr();
    errno = ERANGE;
    weir__log(WEIR_LOG_DEBUG, WEIR_LOG_ERROR, "x");
    ck_assert_int_eq(errno, ERANGE);
    caught();
    saved_stderr = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    errno = ERANGE;
    weir__log(WEIR_LOG_DEBUG, WEIR_LOG_ERROR, "nowhere to go");
    ck_assert_int_eq(errno, ERANGE);
    ck_assert_int_ge(dup2(saved_stderr, STDERR_FILENO), 0);
    close(saved_stderr);
}

/* A line that is too long is cut, but still ends with a newline. */
TEST(test_a_long_log_line_is_cut) {
    char text[5000];
    const char *line;

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int shorter = 0; shorter < 4; shorter++) {
        catch_stderr();
        weir__log(WEIR_LOG_DEBUG, WEIR_LOG_INFO, "%.*s", 1010 + shorter, text);
        line = caught();
        ck_assert_uint_eq(strlen(line),
                          1010 + (size_t)shorter + 12 < 1023 ? 1010 + (size_t)shorter + 13 : 1024);
        ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
    }
    catch_stderr();
    weir__log(WEIR_LOG_DEBUG, WEIR_LOG_INFO, "%s", text);
    line = caught();
    ck_assert_uint_eq(strlen(line), 1024);
    ck_assert_ptr_eq(strchr(line, '\n'), line + 1023);
}

SUITE("status", CK_FORK_GETENV);
