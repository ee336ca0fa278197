/* SPDX-License-Identifier: MIT */
/* test_options.c: every option, as text, as a struct, and from the environment.
 *
 * What a variable means is written out as tables that a person can read beside weir-settings(7);
 * nothing here computes an expectation the way the library does.  Each test runs in a process of
 * its own, so the environment of one is not seen by the next; the fixture takes away what the caller
 * had set.
 */
#include "config/settings.h"

#include <check.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/result.h"
#include "base/text.h"
#include "tests/fixtures/suite.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *const compat_variables[] = {
    "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC",
    "TF_GPU_ALLOCATOR",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
};

static char message[1024];
static weir_options options;

/* The environment without anything that an option could come from. */
static void setup(void) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        unsetenv(weir__setting_row((enum weir_setting)i)->variable);
    for (size_t i = 0; i < COUNT(compat_variables); i++)
        unsetenv(compat_variables[i]);
    unsetenv("WEIR_COMPAT");
    ck_assert_int_eq(weir_options_init(&options), WEIR_OK);
    strcpy(message, "untouched");
}

static void set_variable(const char *name, const char *value) {
    if (value)
        ck_assert_int_eq(setenv(name, value, 1), 0);
    else
        ck_assert_int_eq(unsetenv(name), 0);
}

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part))
        ck_abort_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* The message says 'VALUE' in quotes, names what the user typed, and what would parse. */
static void assert_complains(const char *label, const char *value, const char *accepts) {
    char start[256];

    snprintf(start, sizeof start, "%s '%s': ", label, value);
    if (strncmp(message, start, strlen(start)) != 0)
        ck_abort_msg("\"%s\" does not begin with \"%s\"", message, start);
    assert_contains(message, "; expected ");
    assert_contains(message, accepts);
}

static int same_options(const weir_options *a, const weir_options *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ------------------------------------------------------------------ the table ---- */

START_TEST(test_rows_are_complete) {
    const struct weir_setting_row *row = weir__setting_row((enum weir_setting)_i);
    char variable[64] = "WEIR_";
    size_t i;

    for (i = 0; row->name[i]; i++)
        variable[5 + i] = row->name[i] == '-' ? '_' : (char)(row->name[i] - 'a' + 'A');
    variable[5 + i] = '\0';
    ck_assert_str_eq(row->variable, variable);
    ck_assert_int_gt((int)strlen(row->argument), 0);
    ck_assert_int_gt((int)strlen(row->accepts), 0);
    ck_assert_int_gt((int)strlen(row->default_text), 0);
    ck_assert_int_gt((int)strlen(row->help), 0);
}
END_TEST

START_TEST(test_names_are_unique) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(weir__setting_row((enum weir_setting)i)->name,
                             weir__setting_row((enum weir_setting)j)->name);
}
END_TEST

/* The manual page is written by hand: nobody may be left out. */
START_TEST(test_manual_names_every_variable) {
    const char *top = getenv("top_srcdir");
    char path[512], *page;
    size_t length;
    FILE *file;

    snprintf(path, sizeof path, "%s/man/weir-settings.7", top ? top : ".");
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    page = calloc(1, 1 << 18);
    ck_assert_ptr_nonnull(page);
    length = fread(page, 1, (1 << 18) - 1, file);
    ck_assert_uint_gt(length, 0);
    fclose(file);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const struct weir_setting_row *row = weir__setting_row((enum weir_setting)i);
        char flag[64] = "\\-\\-";
        size_t used = strlen(flag);

        for (const char *c = row->name; *c; c++)
            used += (size_t)snprintf(flag + used, sizeof flag - used, *c == '-' ? "\\-" : "%c", *c);
        assert_contains(page, row->variable);
        assert_contains(page, flag);
    }
    for (size_t i = 0; i < COUNT(compat_variables); i++)
        assert_contains(page, compat_variables[i]);
    assert_contains(page, "WEIR_COMPAT");
    free(page);
}
END_TEST

/* -------------------------------------------------------------------- amounts ---- */

static const struct {
    const char *text;
    int kind;
    uint64_t value;
} good_amounts[] = {
    {"0", WEIR_AMOUNT_BYTES, 0},
    {"1B", WEIR_AMOUNT_BYTES, 1},
    {"1048576", WEIR_AMOUNT_BYTES, 1048576},
    {"1073741824", WEIR_AMOUNT_BYTES, 1073741824},
    {"512B", WEIR_AMOUNT_BYTES, 512},
    {"4GiB", WEIR_AMOUNT_BYTES, 4294967296},
    {"4G", WEIR_AMOUNT_BYTES, 4294967296},
    {"4g", WEIR_AMOUNT_BYTES, 4294967296},
    {"4gib", WEIR_AMOUNT_BYTES, 4294967296},
    {"4 GiB", WEIR_AMOUNT_BYTES, 4294967296},
    {"512MB", WEIR_AMOUNT_BYTES, 512000000},
    {"512MiB", WEIR_AMOUNT_BYTES, 536870912},
    {"512M", WEIR_AMOUNT_BYTES, 536870912},
    {"3KB", WEIR_AMOUNT_BYTES, 3000},
    {"3K", WEIR_AMOUNT_BYTES, 3072},
    {"3KiB", WEIR_AMOUNT_BYTES, 3072},
    {"2GB", WEIR_AMOUNT_BYTES, 2000000000},
    {"1TB", WEIR_AMOUNT_BYTES, 1000000000000},
    {"1T", WEIR_AMOUNT_BYTES, 1099511627776},
    {"1TiB", WEIR_AMOUNT_BYTES, 1099511627776},
    {"1.5GiB", WEIR_AMOUNT_BYTES, 1610612736},
    {".5GiB", WEIR_AMOUNT_BYTES, 536870912},
    {"0.1TiB", WEIR_AMOUNT_BYTES, 109951162777},
    {"0.0000000001GiB", WEIR_AMOUNT_BYTES, 0},
    {"0.333333333333333333333333333333GB", WEIR_AMOUNT_BYTES, 333333333},
    {"0.999999999999999999999999999999999GiB", WEIR_AMOUNT_BYTES, 1073741823},
    {"18446744073709551615", WEIR_AMOUNT_BYTES, UINT64_MAX},
    {"16777215.999999999999999TiB", WEIR_AMOUNT_BYTES, UINT64_MAX},
    {"17179869183GiB", WEIR_AMOUNT_BYTES, UINT64_MAX - GIB + 1},
    {"75%", WEIR_AMOUNT_OF_TOTAL, 750000},
    {"100%", WEIR_AMOUNT_OF_TOTAL, 1000000},
    {"100.0%", WEIR_AMOUNT_OF_TOTAL, 1000000},
    {"0%", WEIR_AMOUNT_OF_TOTAL, 0},
    {"12.5%", WEIR_AMOUNT_OF_TOTAL, 125000},
    {"33.33339%", WEIR_AMOUNT_OF_TOTAL, 333333},
    {"0.0001%", WEIR_AMOUNT_OF_TOTAL, 1},
    {"90%free", WEIR_AMOUNT_OF_FREE, 900000},
    {"90% free", WEIR_AMOUNT_OF_FREE, 900000},
    {"max", WEIR_AMOUNT_MAX, 0},
    {"MAX", WEIR_AMOUNT_MAX, 0},
};

START_TEST(test_good_amount) {
    ck_assert_msg(weir_options_set(&options, "prealloc", good_amounts[_i].text, message,
                                   sizeof message) == WEIR_OK,
                  "%s: %s", good_amounts[_i].text, message);
    ck_assert_str_eq(message, "");
    ck_assert_int_eq(options.prealloc.kind, good_amounts[_i].kind);
    ck_assert_uint_eq(options.prealloc.value, good_amounts[_i].value);
}
END_TEST

static const struct {
    const char *text;
    const char *reason;
} bad_amounts[] = {
    {"", "it is empty"},
    {" ", "it is not a number"},
    {"-1", "it is negative"},
    {"-4GiB", "it is negative"},
    {"-75%", "it is negative"},
    {"+4GiB", "it is not a number"},
    {"nan", "it is not a number"},
    {"NaN%", "it is not a number"},
    {"inf", "it is not a number"},
    {"infinity%", "it is not a number"},
    {"abc", "it is not a number"},
    {"GiB", "it is not a number"},
    {"%", "it is not a number"},
    {".", "no digits follow the point"},
    {"4.GiB", "no digits follow the point"},
    {"4X", "the unit is unknown"},
    {"4GiBs", "the unit is unknown"},
    {"4GiB ", "the unit is unknown"},
    {"4Gib8", "the unit is unknown"},
    {"4G4", "the unit is unknown"},
    {"4,5GiB", "the unit is unknown"},
    {"1.2.3GiB", "the unit is unknown"},
    {"0x10", "the unit is unknown"},
    {"1e9", "the unit is unknown"},
    {"4PiB", "the unit is unknown"},
    {"10 ", "a plain number is bytes"},
    {"0.95", "write 95%"},
    {".5", "write 50%"},
    {"1.0", "write 100%"},
    {"0.333", "write 33.3%"},
    {"1.5", "write a size such as 1.5GiB"},
    {"0.5B", "write 50%"},
    {"100.00001%", "it is more than 100%"},
    {"101%", "it is more than 100%"},
    {"99999999999999999999%", "it is more than 100%"},
    {"90%fre", "only \"free\" may follow"},
    {"90%total", "only \"free\" may follow"},
    {"90%%", "only \"free\" may follow"},
    {"max4", "it is not a number"},
    {"18446744073709551616", "it is too large"},
    {"99999999999999999999999", "it is too large"},
    {"16777216TiB", "it is too large"},
    {"17179869184GiB", "it is too large"},
    {"18446744073710MB", "it is too large"},
};

START_TEST(test_bad_amount) {
    static const char *const names[] = {"prealloc", "limit", "release-threshold"};
    weir_options before = options;

    for (size_t i = 0; i < COUNT(names); i++) {
        ck_assert_msg(weir_options_set(&options, names[i], bad_amounts[_i].text, message,
                                       sizeof message) == WEIR_E_PARSE,
                      "%s parses", bad_amounts[_i].text);
        assert_complains(names[i], bad_amounts[_i].text, "a size (4GiB, 512MB, 75%, 90%free, max)");
        assert_contains(message, bad_amounts[_i].reason);
        ck_assert(same_options(&before, &options));
    }
}
END_TEST

START_TEST(test_limit_of_nothing) {
    ck_assert_int_eq(weir_options_set(&options, "limit", "0", message, sizeof message),
                     WEIR_E_PARSE);
    assert_complains("limit", "0", "a size");
    ck_assert_int_eq(weir_options_set(&options, "limit", "0%", NULL, 0), WEIR_E_PARSE);
    ck_assert_int_eq(weir_options_set(&options, "release-threshold", "0", NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "0", NULL, 0), WEIR_OK);
}
END_TEST

/* Whatever the locale of the program says about points. */
START_TEST(test_shown_bytes) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0B"},
        {1, "1B"},
        {1023, "1023B"},
        {1024, "1KiB"},
        {1536, "1.5KiB"},
        {UINT64_C(8) << 30, "8GiB"},
        {1642824991, "1.53GiB"},
        {150109880320, "139.8GiB"},
        {1048575, "1MiB"},
        {1073741823, "1GiB"},
        {UINT64_MAX, "16777216TiB"},
        {1100585369600, "1TiB"},
    };
    char text[32];

    for (size_t i = 0; i < COUNT(cases); i++) {
        weir__bytes_show(cases[i].bytes, text, sizeof text);
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

/* --------------------------------------------------------------- other options ---- */

static const struct {
    const char *text;
    int growth;
    uint64_t step;
    double factor;
    uint64_t cap;
} good_growth[] = {
    {"exact", WEIR_GROWTH_EXACT, 0, 0, 0},
    {"bfc", WEIR_GROWTH_BFC, 0, 0, 0},
    {"BFC", WEIR_GROWTH_BFC, 0, 0, 0},
    {"step", WEIR_GROWTH_STEP, 0, 0, 0},
    {"step:64MiB", WEIR_GROWTH_STEP, 64 * MIB, 0, 0},
    {"step:1B", WEIR_GROWTH_STEP, 1, 0, 0},
    {"geometric", WEIR_GROWTH_GEOMETRIC, 0, 0, 0},
    {"geometric:2", WEIR_GROWTH_GEOMETRIC, 0, 2, 0},
    {"geometric:1.5:4GiB", WEIR_GROWTH_GEOMETRIC, 0, 1.5, 4 * GIB},
    {"geometric:1.0001", WEIR_GROWTH_GEOMETRIC, 0, 1.0001, 0},
    {"remaining", WEIR_GROWTH_REMAINING, 0, 0, 0},
    {"remaining:0.5", WEIR_GROWTH_REMAINING, 0, 0.5, 0},
    {"remaining:.5", WEIR_GROWTH_REMAINING, 0, 0.5, 0},
    {"remaining:1", WEIR_GROWTH_REMAINING, 0, 1, 0},
};

START_TEST(test_good_growth) {
    ck_assert_msg(weir_options_set(&options, "growth", good_growth[_i].text, message,
                                   sizeof message) == WEIR_OK,
                  "%s", message);
    ck_assert_int_eq(options.growth, good_growth[_i].growth);
    ck_assert_uint_eq(options.growth_step, good_growth[_i].step);
    ck_assert_double_eq(options.growth_factor, good_growth[_i].factor);
    ck_assert_uint_eq(options.growth_cap, good_growth[_i].cap);
}
END_TEST

static size_t no_growth(const weir_growth_state *state, void *context) {
    (void)context;
    return state->request;
}

/* An earlier argument, or callback, does not outlive a new policy. */
START_TEST(test_growth_replaces_all_of_it) {
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = no_growth;
    options.growth_context = &options;
    options.growth_step = 7;
    ck_assert_int_eq(weir_options_set(&options, "growth", "geometric:3:1GiB", NULL, 0), WEIR_OK);
    ck_assert(options.growth_function == NULL);
    ck_assert_ptr_null(options.growth_context);
    ck_assert_uint_eq(options.growth_step, 0);
    ck_assert_int_eq(weir_options_set(&options, "growth", "step:1MiB", NULL, 0), WEIR_OK);
    ck_assert_double_eq(options.growth_factor, 0);
    ck_assert_uint_eq(options.growth_cap, 0);
    ck_assert_uint_eq(options.growth_step, MIB);
}
END_TEST

static const struct {
    const char *name;
    const char *text;
    const char *reason;
    const char *accepts;
} bad_options[] = {
    {"growth", "", "empty", "geometric:FACTOR[:CAP]"},
    {"growth", "doubling", "no such policy", "step:SIZE"},
    {"growth", "default", "no such policy", "bfc"},
    {"growth", "callback", "a function of the program", "exact"},
    {"growth", "exact:", "takes nothing", "exact"},
    {"growth", "exact:4", "takes nothing", "exact"},
    {"growth", "bfc:2", "takes nothing", "bfc"},
    {"growth", "step:", "empty", "step:SIZE"},
    {"growth", "step:0", "the step is 0", "step:SIZE"},
    {"growth", "step:-1", "negative", "step:SIZE"},
    {"growth", "step:10%", "percentage", "step:SIZE"},
    {"growth", "step:64", "a plain number is bytes: write 64MiB, 64GiB, or 64B if", "step:SIZE"},
    {"growth", "step:64MiB:2", "unit", "step:SIZE"},
    {"growth", "geometric:", "empty", "geometric:FACTOR"},
    {"growth", "geometric:0.5", "above 1", "geometric:FACTOR"},
    {"growth", "geometric:1", "above 1", "geometric:FACTOR"},
    {"growth", "geometric:-2", "negative", "geometric:FACTOR"},
    {"growth", "geometric:nan", "not a number", "geometric:FACTOR"},
    {"growth", "geometric:inf", "not a number", "geometric:FACTOR"},
    {"growth", "geometric:2x", "follows", "geometric:FACTOR"},
    {"growth", "geometric:2:", "empty", "CAP"},
    {"growth", "geometric:2:0", "the cap is 0", "CAP"},
    {"growth", "geometric:2:4", "write 4MiB, 4GiB, or 4B", "CAP"},
    {"growth", "geometric:2:1GiB:", "unit", "CAP"},
    {"growth", "geometric:1000000000000000", "too large", "geometric:FACTOR"},
    {"growth", "geometric:999999999999999.99", "too large", "geometric:FACTOR"},
    {"growth", "remaining:0", "above 0", "remaining:FRACTION"},
    {"growth", "remaining:1.01", "at most 1", "remaining:FRACTION"},
    {"growth", "remaining:50%", "follows", "remaining:FRACTION"},
    {"growth", "remaining:0.5:1GiB", "follows", "remaining:FRACTION"},
    {"engine", "", "empty", "mapped, pool, bfc or direct"},
    {"engine", "regions", "none of the words", "mapped, pool, bfc or direct"},
    {"engine", "default", "none of the words", "mapped, pool, bfc or direct"},
    {"arena", "growing", "none of the words", "fixed, regions or mapped"},
    {"prealloc-at", "now", "none of the words", "create or first"},
    {"latency", "2", "none of the words", "on or off"},
    {"log", "verbose", "none of the words", "none, error, warning, info or debug"},
    {"device", "", "empty", "cuda, cuda:N, model or model:N"},
    {"device", "gpu", "no such device", "cuda:N"},
    {"device", "cuda:", "no device number", "cuda:N"},
    {"device", "cuda:-1", "no device number", "cuda:N"},
    {"device", "cuda:x", "no device number", "cuda:N"},
    {"device", "cuda:1024", "no device number", "cuda:N"},
    {"device", "cuda0", "no such device", "cuda:N"},
    {"recovery-timeout", "", "empty", "milliseconds"},
    {"recovery-timeout", "-1", "negative", "0 does not wait"},
    {"recovery-timeout", "1.5s", "not a whole number", "2s"},
    {"recovery-timeout", "5min", "not a whole number", "2s"},
    {"recovery-timeout", "4294967295", "too large", "2s"},
    {"recovery-timeout", "4294968s", "too large", "2s"},
    {"recovery-timeout", "99999999999999999999999999", "too large", "2s"},
    {"cache", "maybe", "none of the words", "on or off"},
    {"stream-checks", "", "empty", "on or off"},
    {"harden", "", "empty", "poison,guard"},
    {"harden", "zero", "'zero' is none of the words", "zero-stream"},
    {"harden", "zero=always", "'zero=always' is none of the words", "zero-stream"},
    {"harden", "poison,gaurd", ": 'gaurd' is none of the words", "a list of poison"},
    {"harden", "poison,", "a word is empty", "a list of poison"},
    {"harden", "poison guard", "'poison guard' is none of the words", "a list of poison"},
    {"harden", "off,guard", "off goes with none", "a list of poison"},
    {"limit", "1", "write 1MiB, 1GiB, or 1B", "a size"},
    {"limit", "1048575", "a plain number is bytes: write 1048575MiB", "a size"},
    {"prealloc", "0010", "write 10MiB", "a size"},
    {"grow-ahead", "10", "write 10MiB, 10GiB, or 10B", "a size or two"},
    {"grow-ahead", "1GiB:10", "write 10MiB", "a size or two"},
    {"cache-limit", "32", "write 32MiB", "a size"},
    {"release-threshold", "1024", "write 1024MiB", "a size"},
    {"keep-free", "512", "write 512MiB", "a size"},
    {"prealloc-min", "8", "write 8MiB", "a size"},
    {"prealloc-min", "some", "", "a size"},
    {"prealloc-deadline", "0", "gets nothing", "or never"},
    {"prealloc-deadline", "soon", "no", "or never"},
    {"prealloc-mode", "", "empty", "foreground or background"},
    {"grow-ahead", "", "empty", "a size or two"},
    {"grow-ahead", "1GiB:", "empty", "a size or two"},
    {"grow-ahead", ":1GiB", "empty", "a size or two"},
    {"grow-ahead", "2GiB:1GiB", "less than what precedes", "a size or two"},
    {"grow-ahead", "1GiB:2GiB:3GiB", "", "a size or two"},
    {"grow-ahead", "max", "preallocate max", "a size or two"},
    {"grow-ahead", "1GiB:max", "preallocate max", "a size or two"},
    {"grow-ahead", "0.5", "", "a size or two"},
    {"cache-limit", "", "empty", "a percentage of what is in use (5%)"},
    {"cache-limit", "-1", "negative", "a size (64MiB, 0)"},
    {"cache-limit", "4X", "the unit is unknown", "or max"},
    {"cache-limit", "0.05", "write 5%", "or max"},
    {"cache-limit", "101%", "it is more than 100%", "or max"},
    {"cache-limit", "5%free", "a share of what is free", "a percentage of what is in use (5%)"},
    {"cache-idle", "", "empty", "or never"},
    {"cache-idle", "0", "set cache-limit to 0 for that", "or never"},
    {"cache-idle", "0s", "set cache-limit to 0 for that", "or never"},
    {"cache-idle", "nevermore", "not a whole number", "or never"},
    {"cache-idle", "-1", "negative", "or never"},
    {"cache-idle", "4294967295", "too large", "or never"},
    {"profile", "", "empty", "a file, a folder, or off"},
    {"profile", "on", "it is a switch; a file of that name is ./on", "a file, a folder, or off"},
    {"profile", "0", "it is a switch", "a file, a folder, or off"},
    {"oom-report", "True", "it is a switch", "stderr, a file, or off"},
    {"oom-report", "sterr", "it is nearly stderr; a file of that name is ./sterr",
     "stderr, a file"},
    {"oom-report", "stdout", "it is nearly stderr", "stderr, a file, or off"},
    {"peers", "", "empty", "all or none"},
    {"peers", "1,", "empty", "all or none"},
    {"peers", "1 2", "not a", "all or none"},
    {"peers", "64", "too large", "all or none"},
    {"peers", "all,1", "not a", "all or none"},
    {"decay", "", "empty", "or off"},
    {"decay", "0", "leaves nothing", "or off"},
    {"decay", "-1", "negative", "or off"},
    {"decay", "never", "not a whole number", "or off"},
    {"decay", "4294967295", "too large", "or off"},
    {"event-ring", "0", "too small", "1 to 1048576"},
    {"event-ring", "1048577", "too large", "1 to 1048576"},
    {"event-ring", "1K", "not a whole number", "1 to 1048576"},
    {"priority", "0", "too small", "1 to 1000"},
    {"priority", "1001", "too large", "1 to 1000"},
    {"priority", "-1", "negative", "1 to 1000"},
    {"limit", "share:", "empty", "share:WEIGHT"},
    {"limit", "share:-1", "negative", "share:WEIGHT"},
    {"limit", "share:2x", "something follows", "share:WEIGHT"},
    {"prealloc", "share:1000001", "weight is too large", "share:WEIGHT"},
    {"prealloc-min", "share", "not a number", "a size"},
    {"keep-free", "share", "not a number", "a size"},
    {"registry", "perhaps", "none of the words", "on or off"},
};

START_TEST(test_bad_option) {
    weir_options before = options;

    ck_assert_msg(weir_options_set(&options, bad_options[_i].name, bad_options[_i].text, message,
                                   sizeof message) == WEIR_E_PARSE,
                  "%s %s parses", bad_options[_i].name, bad_options[_i].text);
    assert_complains(bad_options[_i].name, bad_options[_i].text, bad_options[_i].accepts);
    assert_contains(message, bad_options[_i].reason);
    ck_assert(same_options(&before, &options));
}
END_TEST

START_TEST(test_long_factor_is_refused) {
    char text[600] = "geometric:";

    memset(text + strlen(text), '9', 400);
    ck_assert_int_eq(weir_options_set(&options, "growth", text, message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "too large");
    assert_contains(message, "999...'"); /* a long value is cut */
}
END_TEST

START_TEST(test_control_characters_are_not_repeated) {
    ck_assert_int_eq(weir_options_set(&options, "engine", "a\033[2Jb\n", message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "'a?[2Jb?'");
}
END_TEST

START_TEST(test_names_of_files) {
    char name[WEIR_SHOW_BYTES + 1], shown[WEIR_SHOW_BYTES];

    memset(name, 'n', sizeof name);
    name[WEIR_SHOW_BYTES] = '\0';
    ck_assert_int_eq(weir_options_set(&options, "profile", name, message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "longer than 1023 bytes");
    name[WEIR_SHOW_BYTES - 1] = '\0';
    ck_assert_int_eq(weir_options_set(&options, "profile", name, NULL, 0), WEIR_OK);
    weir__option_show(&options, WEIR_SETTING_PROFILE, shown, sizeof shown);
    ck_assert_str_eq(shown, name);
    ck_assert_int_eq(weir_options_set(&options, "profile", "a\nb", message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "a control character");
    options.profile = "a\x7f";
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message),
                     WEIR_E_INVALID);
    assert_contains(message, "profile: there is a control character");
}
END_TEST

START_TEST(test_set_refuses) {
    char tiny[4];

    ck_assert_int_eq(weir_options_set(&options, "preallocate", "1", message, sizeof message),
                     WEIR_E_INVALID);
    assert_contains(message, "'preallocate'");
    ck_assert_int_eq(weir_options_set(NULL, "prealloc", "1", message, sizeof message),
                     WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_set(&options, NULL, "1", message, sizeof message),
                     WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", NULL, message, sizeof message),
                     WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "4X", tiny, sizeof tiny), WEIR_E_PARSE);
    ck_assert_str_eq(tiny, "pre");
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "4X", tiny, 0), WEIR_E_PARSE);
    ck_assert_str_eq(tiny, "pre");
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "4X", NULL, 0), WEIR_E_PARSE);
    options.size = 0;
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "1", message, sizeof message),
                     WEIR_E_INVALID);
    assert_contains(message, "weir_options_init");
}
END_TEST

/* The driver has no part in any failure here; success leaves its last result alone. */
START_TEST(test_driver_result) {
    weir__set_driver_result(2);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "1GiB", NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_last_driver_result(), 2);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "4X", NULL, 0), WEIR_E_PARSE);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    weir__set_driver_result(2);
    ck_assert_int_eq(weir_options_from_env(NULL, NULL, 0), WEIR_E_INVALID);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    weir__set_driver_result(2);
    ck_assert_int_eq(weir_options_init_sized(NULL, 0), WEIR_E_INVALID);
    ck_assert_int_eq(weir_last_driver_result(), 0);
}
END_TEST

/* A text may be gone after the call: what refers to it is a copy. */
START_TEST(test_device_text_is_kept) {
    char text[] = "cuda:3";

    ck_assert_int_eq(weir_options_set(&options, "device", text, NULL, 0), WEIR_OK);
    memset(text, 'x', sizeof text - 1);
    ck_assert_str_eq(options.device, "cuda:3");
}
END_TEST

START_TEST(test_device_parse) {
    static const struct {
        const char *text, *driver;
        int ordinal;
    } cases[] = {{NULL, "cuda", 0},          {"cuda", "cuda", 0},   {"cuda:0", "cuda", 0},
                 {"cuda:7", "cuda", 7},      {"model", "model", 0}, {"model:1", "model", 1},
                 {"cuda:1023", "cuda", 1023}};
    const char *driver = "kept";
    int ordinal = -5;

    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_int_eq(
            weir__device_parse(cases[i].text, &driver, &ordinal, message, sizeof message), WEIR_OK);
        ck_assert_str_eq(driver, cases[i].driver);
        ck_assert_int_eq(ordinal, cases[i].ordinal);
    }
    driver = "kept";
    ck_assert_int_eq(weir__device_parse("rocm", &driver, &ordinal, message, sizeof message),
                     WEIR_E_PARSE);
    assert_complains("device", "rocm", "cuda, cuda:N, model or model:N");
    ck_assert_str_eq(driver, "kept");
}
END_TEST

/* Set, show, set again: the same value and the same text.  `shown` NULL: as typed. */
static const struct {
    const char *name, *text, *shown;
} round_trips[] = {
    {"device", "cuda", NULL},
    {"device", "cuda:007", "cuda:7"},
    {"device", "model", NULL},
    {"device", "model:1", NULL},
    {"engine", "pool", NULL},
    {"engine", "mapped", NULL},
    {"engine", "bfc", NULL},
    {"engine", "direct", NULL},
    {"engine", "ARENA", "bfc"},
    {"engine", "platform", "direct"},
    {"arena", "fixed", NULL},
    {"arena", "regions", NULL},
    {"prealloc", "8GiB", NULL},
    {"prealloc", "1.5GiB", "1536MiB"},
    {"prealloc", "0", NULL},
    {"prealloc", "1000B", NULL},
    {"prealloc", "512MB", "500000KiB"},
    {"prealloc", "18446744073709551615", NULL},
    {"prealloc", "75%", NULL},
    {"prealloc", "0%", NULL},
    {"prealloc", "12.5%", NULL},
    {"prealloc", "0.0001%", NULL},
    {"prealloc", "33.3333%free", NULL},
    {"prealloc", "max", NULL},
    {"arena", "mapped", NULL},
    {"packing", "compact", NULL},
    {"packing", "balanced", NULL},
    {"packing", "fast", NULL},
    {"prealloc-at", "create", NULL},
    {"prealloc-at", "first", NULL},
    {"growth", "exact", NULL},
    {"growth", "bfc", NULL},
    {"growth", "step:64MiB", NULL},
    {"growth", "step", "step:64MiB"},
    {"growth", "geometric", "geometric:2"},
    {"growth", "geometric:1.1", NULL},
    {"growth", "geometric:1.1:3GiB", NULL},
    {"growth", "geometric:1.0000000001", NULL},
    {"growth", "geometric:2.718281828459045", NULL},
    {"growth", "geometric:123456789", NULL},
    {"growth", "geometric:999999999999999.875", "geometric:999999999999999.9"},
    {"growth", "remaining", "remaining:0.5"},
    {"growth", "remaining:.3", "remaining:0.3"},
    {"growth", "remaining:0.000001", NULL},
    {"growth", "remaining:0.07976931348621157", NULL},
    {"growth", "geometric:1.8745956553937753", NULL},
    {"growth", "remaining:1", NULL},
    {"limit", "90%free", NULL},
    {"limit", "max", NULL},
    {"limit", "40GB", "39062500KiB"},
    {"limit", "1048575B", NULL},
    {"limit", "1048577", NULL},
    {"release-threshold", "0", NULL},
    {"release-threshold", "50%", NULL},
    {"recovery-timeout", "0", NULL},
    {"recovery-timeout", "250", "250ms"},
    {"recovery-timeout", "2s", NULL},
    {"recovery-timeout", "3000ms", "3s"},
    {"recovery-timeout", "4294967294", "4294967294ms"},
    {"event-ring", "1", NULL},
    {"event-ring", "1048576", NULL},
    {"latency", "on", NULL},
    {"latency", "0", "off"},
    {"latency", "yes", "on"},
    {"log", "none", NULL},
    {"log", "debug", NULL},
    {"cache", "off", NULL},
    {"cache", "YES", "on"},
    {"cache-limit", "0", NULL},
    {"cache-limit", "64MiB", NULL},
    {"cache-limit", "5%", NULL},
    {"cache-limit", "0.5%", NULL},
    {"cache-limit", "max", NULL},
    {"cache-idle", "250", "250ms"},
    {"cache-idle", "2s", NULL},
    {"cache-idle", "Never", "never"},
    {"cache-idle", "4294967294", "4294967294ms"},
    {"stream-checks", "on", NULL},
    {"stream-checks", "false", "off"},
    {"harden", "off", NULL},
    {"harden", "poison", NULL},
    {"harden", "Guard,poison,guard", "poison,guard"},
    {"harden", "zero-always,zero-stream,guard,poison", "poison,guard,zero-stream,zero-always"},
    {"prealloc-min", "0", NULL},
    {"prealloc-min", "4GiB", NULL},
    {"prealloc-min", "10%", NULL},
    {"prealloc-deadline", "never", NULL},
    {"prealloc-deadline", "250", "250ms"},
    {"prealloc-deadline", "2s", NULL},
    {"prealloc-mode", "Background", "background"},
    {"prealloc-mode", "foreground", NULL},
    {"grow-ahead", "0", NULL},
    {"grow-ahead", "1GiB", "1GiB:2GiB"},
    {"grow-ahead", "256MiB:1GiB", NULL},
    {"grow-ahead", "2%", "2%:4%"},
    {"grow-ahead", "75%", "75%:100%"},
    {"grow-ahead", "1%free:512MiB", NULL},
    {"grow-ahead", "18446744073709551615", "18446744073709551615:18446744073709551615"},
    {"internal-dependencies", "on", NULL},
    {"registry", "off", NULL},
    {"prealloc", "share", NULL},
    {"prealloc", "Share:1", "share"},
    {"limit", "share:2.5", NULL},
    {"limit", "share:0", NULL},
    {"limit", "share:1000000", NULL},
    {"registry", "ON", "on"},
    {"priority", "1", NULL},
    {"priority", "1000", NULL},
    {"keep-free", "1GiB", NULL},
    {"keep-free", "5%", NULL},
    {"internal-dependencies", "0", "off"},
    {"peers", "none", NULL},
    {"export", "on", NULL},
    {"peers", "All", "all"},
    {"peers", "3,0,003,63", "0,3,63"},
    {"peers", "1", NULL},
    {"decay", "off", NULL},
    {"decay", "60s", NULL},
    {"decay", "250", "250ms"},
    {"decay", "4294967294", "4294967294ms"},
    {"profile", "off", NULL},
    {"profile", "OFF", "off"},
    {"profile", "a folder/Name", NULL},
    {"profile", "/tmp/4X", NULL},
    {"oom-report", "off", NULL},
    {"oom-report", "stderr", NULL},
    {"oom-report", "StdErr", "stderr"},
    {"oom-report", "./sterr", NULL},
    {"oom-report", "stderr.txt", NULL},
    {"oom-report", "/tmp/a.json", NULL},
};

static enum weir_setting setting_named(const char *name) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(name, weir__setting_row((enum weir_setting)i)->name) == 0)
            return (enum weir_setting)i;
    ck_abort_msg("no option %s", name);
}

START_TEST(test_round_trip) {
    const char *name = round_trips[_i].name, *text = round_trips[_i].text;
    enum weir_setting setting = setting_named(name);
    weir_options again, third;
    char shown[128], shown_again[128];

    weir_options_init(&again);
    weir_options_init(&third);
    ck_assert(!weir__option_is_set(&options, setting));
    ck_assert_int_eq(weir_options_set(&options, name, text, message, sizeof message), WEIR_OK);
    ck_assert(weir__option_is_set(&options, setting));
    weir__option_show(&options, setting, shown, sizeof shown);
    ck_assert_str_eq(shown, round_trips[_i].shown ? round_trips[_i].shown : text);
    ck_assert_msg(weir_options_set(&again, name, shown, message, sizeof message) == WEIR_OK, "%s",
                  message);
    weir__option_show(&again, setting, shown_again, sizeof shown_again);
    ck_assert_str_eq(shown, shown_again);
    ck_assert_int_eq(weir_options_set(&third, name, shown_again, NULL, 0), WEIR_OK);
    ck_assert(same_options(&again, &third));
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) /* nothing else was touched */
        ck_assert_int_eq(weir__option_is_set(&options, (enum weir_setting)i), i == (int)setting);
}
END_TEST

START_TEST(test_round_trip_covers_every_row) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        int found = 0;

        for (size_t j = 0; j < COUNT(round_trips); j++)
            found |= setting_named(round_trips[j].name) == (enum weir_setting)i;
        ck_assert_int_eq(found, 1);
    }
}
END_TEST

/* Every short text of these letters, behind every beginning: it is refused with a message, or what it
 * is shown as sets the same value again.  The text ends where its memory does. */
START_TEST(test_any_text) {
    static const char letters[] = "019.%Gsx:- ";
    static const char *const beginnings[] = {
        "", "step:", "geometric:", "geometric:2:", "remaining:", "cuda:", "1", "0.5", "90%"};
    enum { LETTERS = sizeof letters - 1, TEXTS = LETTERS * LETTERS * LETTERS };
    enum weir_setting setting = (enum weir_setting)_i;
    const char *name = weir__setting_row(setting)->name;
    weir_options first, second;
    char shown[128];

    for (size_t b = 0; b < COUNT(beginnings); b++)
        for (size_t i = 0; i < TEXTS; i++) {
            char ending[4] = {letters[i % LETTERS], letters[i / LETTERS % LETTERS],
                              letters[i / LETTERS / LETTERS], '\0'};
            char *text = malloc(strlen(beginnings[b]) + (i % 4) + 1);

            MUST(text != NULL);
            ending[i % 4] = '\0';
            strcat(strcpy(text, beginnings[b]), ending);
            weir_options_init(&first);
            weir_options_init(&second);
            if (weir_options_set(&first, name, text, message, sizeof message) != WEIR_OK) {
                assert_complains(name, text, weir__setting_row(setting)->accepts);
                MUST(!weir__option_is_set(&first, setting));
            } else {
                weir__option_show(&first, setting, shown, sizeof shown);
                if (weir_options_set(&second, name, shown, message, sizeof message) != WEIR_OK)
                    ck_abort_msg("%s is shown as %s: %s", text, shown, message);
                if (setting != WEIR_SETTING_GROWTH && setting != WEIR_SETTING_GROW_AHEAD &&
                    !same_options(&first, &second))
                    ck_abort_msg("%s is shown as %s", text, shown);
                MUST(weir__options_complete(&first, &second, message, sizeof message) == WEIR_OK);
            }
            free(text);
        }
}
END_TEST

/* One word names what two settings named: the options come to the same, by text and by value. */
START_TEST(test_engine_words) {
    static const struct {
        const char *engine, *arena; /* NULL: not set */
        int is, has;
        const char *shown;
    } cases[] = {
        {"mapped", NULL, WEIR_ENGINE_BFC, WEIR_ARENA_MAPPED, "mapped"},
        {"arena", "mapped", WEIR_ENGINE_BFC, WEIR_ARENA_MAPPED, "mapped"},
        {"bfc", "mapped", WEIR_ENGINE_BFC, WEIR_ARENA_MAPPED, "mapped"},
        {NULL, "mapped", WEIR_ENGINE_BFC, WEIR_ARENA_MAPPED, "mapped"},
        {"mapped", "fixed", WEIR_ENGINE_BFC, WEIR_ARENA_MAPPED, "mapped"},
        {"bfc", NULL, WEIR_ENGINE_BFC, WEIR_ARENA_REGIONS, "bfc"},
        {"arena", NULL, WEIR_ENGINE_BFC, WEIR_ARENA_REGIONS, "bfc"},
        {"arena", "fixed", WEIR_ENGINE_BFC, WEIR_ARENA_FIXED, "bfc"},
        {"pool", "mapped", WEIR_ENGINE_POOL, WEIR_ARENA_MAPPED, "pool"},
        {"direct", NULL, WEIR_ENGINE_DIRECT, WEIR_ARENA_REGIONS, "direct"},
        {"platform", NULL, WEIR_ENGINE_DIRECT, WEIR_ARENA_REGIONS, "direct"},
    };
    weir_options completed;
    char text[128];

    for (size_t i = 0; i < COUNT(cases); i++) {
        ck_assert_int_eq(weir_options_init(&options), WEIR_OK);
        if (cases[i].engine)
            ck_assert_int_eq(weir_options_set(&options, "engine", cases[i].engine, NULL, 0),
                             WEIR_OK);
        if (cases[i].arena)
            ck_assert_int_eq(weir_options_set(&options, "arena", cases[i].arena, NULL, 0), WEIR_OK);
        weir__option_show(&options, WEIR_SETTING_ENGINE, text, sizeof text);
        ck_assert_str_eq(text, cases[i].shown);
        ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
        ck_assert_int_eq(completed.engine, cases[i].is);
        ck_assert_int_eq(completed.arena, cases[i].has);
    }
    ck_assert_int_eq(weir_options_init(&options), WEIR_OK);
    options.engine = WEIR_ENGINE_MAPPED;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_int_eq(completed.arena, WEIR_ARENA_MAPPED);
    ck_assert_int_eq(completed.growth, WEIR_GROWTH_EXACT);
}
END_TEST

/* Names that settings had are theirs still. */
START_TEST(test_earlier_names) {
    ck_assert_int_eq(weir_options_set(&options, "leave", "1GiB", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.leave.value, GIB);
    ck_assert_int_eq(weir_options_set(&options, "headroom", "1GiB:3GiB", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.headroom_high.value, 3 * GIB);
    ck_assert_int_eq(weir_options_set(&options, "keep-free", "2GiB", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.leave.value, 2 * GIB);
    ck_assert_int_eq(weir_options_set(&options, "leave", "much", message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "keep-free 'much': ");
    ck_assert_int_eq(weir_options_set(&options, "front", "off", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.front, WEIR_SWITCH_OFF);
    ck_assert_int_eq(weir_options_set(&options, "front-cache", "5%", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.front_cache.value, 50000);
    ck_assert_int_eq(weir_options_set(&options, "front-idle", "2s", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.front_idle_ms, 2000);
    ck_assert_int_eq(weir_options_set(&options, "verdict", "stderr", NULL, 0), WEIR_OK);
    ck_assert_str_eq(options.verdict, "stderr");
    ck_assert_int_eq(weir_options_set(&options, "ledger", "off", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.ledger, WEIR_SWITCH_OFF);
}
END_TEST

/* "default" says nothing: a default is shown as what it means. */
START_TEST(test_defaults_are_shown) {
    static const struct {
        enum weir_setting setting;
        const char *pool, *fixed_arena;
    } cases[] = {
        {WEIR_SETTING_DEVICE, "cuda", "cuda"},
        {WEIR_SETTING_ENGINE, "pool", "bfc"},
        {WEIR_SETTING_ARENA, "regions", "fixed"},
        {WEIR_SETTING_PACKING, "balanced", "balanced"},
        {WEIR_SETTING_PREALLOC, "0", "0"},
        {WEIR_SETTING_PREALLOC_AT, "create", "create"},
        {WEIR_SETTING_GROWTH, "exact", "bfc"},
        {WEIR_SETTING_LIMIT, "max", "75%"},
        {WEIR_SETTING_RELEASE_THRESHOLD, "max", "max"},
        {WEIR_SETTING_RECOVERY_TIMEOUT, "1s", "1s"},
        {WEIR_SETTING_EVENT_RING, "1024", "1024"},
        {WEIR_SETTING_LATENCY, "off", "off"},
        {WEIR_SETTING_LOG, "none", "none"},
        {WEIR_SETTING_FRONT, "on", "on"},
        {WEIR_SETTING_FRONT_CACHE, "2%, at first 32MiB", "2%, at first 32MiB"},
        {WEIR_SETTING_FRONT_IDLE, "1s", "1s"},
        {WEIR_SETTING_STREAM_CHECKS, "on", "on"},
        {WEIR_SETTING_HARDEN, "off", "off"},
        {WEIR_SETTING_GROW_AHEAD, "0", "0"},
        {WEIR_SETTING_PREALLOC_MIN, "0", "0"},
        {WEIR_SETTING_PREALLOC_DEADLINE, "never", "never"},
        {WEIR_SETTING_PREALLOC_MODE, "foreground", "foreground"},
        {WEIR_SETTING_PROFILE, "off", "off"},
        {WEIR_SETTING_VERDICT, "off", "off"},
        {WEIR_SETTING_DECAY, "off", "off"},
        {WEIR_SETTING_INTERNAL_DEPENDENCIES, "off", "off"},
        {WEIR_SETTING_LEDGER, "on", "on"},
        {WEIR_SETTING_PRIORITY, "100", "100"},
        {WEIR_SETTING_KEEP_FREE, "0", "0"},
        {WEIR_SETTING_PEERS, "none", "none"},
        {WEIR_SETTING_EXPORT, "off", "off"},
    };
    char text[128];

    ck_assert_uint_eq(COUNT(cases), WEIR_SETTING_COUNT);
    for (size_t i = 0; i < COUNT(cases); i++) {
        weir__option_show(&options, cases[i].setting, text, sizeof text);
        ck_assert_str_eq(text, cases[i].pool);
    }
    options.engine = WEIR_ENGINE_ARENA;
    options.arena = WEIR_ARENA_FIXED;
    for (size_t i = 0; i < COUNT(cases); i++) {
        weir__option_show(&options, cases[i].setting, text, sizeof text);
        ck_assert_str_eq(text, cases[i].fixed_arena);
    }
    options.arena = WEIR_ARENA_MAPPED;
    options.packing = WEIR_PACKING_COMPACT;
    weir__option_show(&options, WEIR_SETTING_INTERNAL_DEPENDENCIES, text, sizeof text);
    ck_assert_str_eq(text, "on");
    options.engine = WEIR_ENGINE_PLATFORM;
    weir__option_show(&options, WEIR_SETTING_FRONT, text, sizeof text);
    ck_assert_str_eq(text, "off");
}
END_TEST

/* The same text, a share of another whole. */
START_TEST(test_percentage_of_what_is_in_use) {
    ck_assert_int_eq(weir_options_set(&options, "cache-limit", "5%", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.front_cache.kind, WEIR_AMOUNT_OF_IN_USE);
    ck_assert_uint_eq(options.front_cache.value, 50000);
    ck_assert_int_eq(weir_options_set(&options, "limit", "5%", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.limit.kind, WEIR_AMOUNT_OF_TOTAL);
}
END_TEST

/* For ever is no time: the struct has its largest number for it. */
START_TEST(test_never) {
    ck_assert_int_eq(weir_options_set(&options, "cache-idle", "never", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.front_idle_ms, UINT32_MAX);
}
END_TEST

/* ------------------------------------------------------------------ the struct ---- */

/* The layout is part of the binary interface; these numbers never change. */
START_TEST(test_layout) {
    ck_assert_uint_eq(sizeof(weir_amount), 16);
    ck_assert_uint_eq(sizeof(weir_growth_state), 64);
    ck_assert_uint_eq(offsetof(weir_options, size), 0);
    ck_assert_uint_eq(offsetof(weir_options, device), 8);
    ck_assert_uint_eq(offsetof(weir_options, prealloc), 24);
    ck_assert_uint_eq(offsetof(weir_options, growth), 44);
    ck_assert_uint_eq(offsetof(weir_options, growth_function), 72);
    ck_assert_uint_eq(offsetof(weir_options, limit), 88);
    ck_assert_uint_eq(offsetof(weir_options, recovery_timeout_ms), 120);
    ck_assert_uint_eq(offsetof(weir_options, log), 132);
    ck_assert_uint_eq(offsetof(weir_options, front), 136);
    ck_assert_uint_eq(offsetof(weir_options, front_cache), 144);
    ck_assert_uint_eq(offsetof(weir_options, stream_checks), 160);
    ck_assert_uint_eq(offsetof(weir_options, harden), 168);
    ck_assert_uint_eq(offsetof(weir_options, headroom), 192);
    ck_assert_uint_eq(offsetof(weir_options, prealloc_min), 224);
    ck_assert_uint_eq(offsetof(weir_options, profile), 248);
    ck_assert_uint_eq(offsetof(weir_options, decay_ms), 256);
    ck_assert_uint_eq(offsetof(weir_options, internal_dependencies), 264);
    ck_assert_uint_eq(offsetof(weir_options, ledger), 268);
    ck_assert_uint_eq(offsetof(weir_options, leave), 280);
    ck_assert_uint_eq(offsetof(weir_options, verdict), 296);
    ck_assert_uint_eq(offsetof(weir_options, peers), 304);
    ck_assert_uint_eq(sizeof(weir_options), 312);
}
END_TEST

START_TEST(test_init) {
    union {
        weir_options options;
        unsigned char bytes[512];
    } room;

    memset(&room, 0xaa, sizeof room);
    ck_assert_int_eq(weir_options_init_sized(&room.options, offsetof(weir_options, oom_callback)),
                     WEIR_OK);
    ck_assert_int_eq(
        weir_options_init_sized(&room.options, offsetof(weir_options, oom_callback_data)), WEIR_OK);
    memset(&room, 0xaa, sizeof room);
    ck_assert_int_eq(weir_options_init_sized(&room.options, 208), WEIR_OK);
    ck_assert_uint_eq(room.options.size, 208);
    for (size_t i = sizeof room.options.size; i < 208; i++)
        ck_assert_uint_eq(room.bytes[i], 0);
    ck_assert_uint_eq(room.bytes[208], 0xaa);
    ck_assert_int_eq(weir_options_init_sized(NULL, sizeof options), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, 135), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, 200),
                     WEIR_E_INVALID); /* half an amount */
    ck_assert_int_eq(weir_options_init_sized(&room.options, 0), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, SIZE_MAX), WEIR_E_INVALID);
    ck_assert_uint_eq(room.options.size, 208);
}
END_TEST

/* A caller from a later version: its unknown fields may be zero, and are never written. */
START_TEST(test_newer_caller) {
    union {
        weir_options options;
        unsigned char bytes[512];
    } room;
    weir_options completed;

    ck_assert_int_eq(weir_options_init_sized(&room.options, sizeof room), WEIR_OK);
    ck_assert_int_eq(weir__options_complete(&room.options, &completed, NULL, 0), WEIR_OK);
    ck_assert_uint_eq(completed.size, sizeof completed);
    room.bytes[511] = 1;
    ck_assert_int_eq(weir__options_complete(&room.options, &completed, message, sizeof message),
                     WEIR_E_INVALID);
    assert_contains(message, "does not know");
    ck_assert_int_eq(weir_options_set(&room.options, "prealloc", "1GiB", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(room.options.prealloc.value, GIB);
    ck_assert_uint_eq(room.options.size, sizeof room);
    set_variable("WEIR_ENGINE", "arena");
    ck_assert_int_eq(weir_options_from_env(&room.options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(room.options.engine, WEIR_ENGINE_ARENA);
    ck_assert_uint_eq(room.options.size, sizeof room);
    ck_assert_uint_eq(room.bytes[511], 1);
    room.bytes[511] = 0;
    room.bytes[sizeof(weir_options)] = 1;
    ck_assert_int_eq(weir__options_complete(&room.options, &completed, NULL, 0), WEIR_E_INVALID);
}
END_TEST

/* A caller from version 1, whose struct ends before these fields: what lies behind it is another's. */
START_TEST(test_older_caller) {
    weir_options completed;

    options.size = offsetof(weir_options, front);
    options.front = 99;
    options.packing = 99;
    ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                     WEIR_OK);
    ck_assert_int_eq(completed.front, WEIR_SWITCH_ON);
    ck_assert_uint_eq(completed.front_idle_ms, 1000);
    set_variable("WEIR_CACHE", "off");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.front, 99);
    ck_assert_uint_eq(options.size, offsetof(weir_options, front));
}
END_TEST

START_TEST(test_bad_size) {
    static const size_t sizes[] = {0, 1, 8, 132, 135, 138, 152, 172, 300, 311, 65537, SIZE_MAX};
    weir_options completed = {.size = 77};

    for (size_t i = 0; i < COUNT(sizes); i++) {
        options.size = sizes[i];
        ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                         WEIR_E_INVALID);
        assert_contains(message, "weir_options_init");
        ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_INVALID);
        assert_contains(message, "weir_options_init");
    }
    ck_assert_int_eq(weir_options_from_env(NULL, message, sizeof message), WEIR_E_INVALID);
    ck_assert_uint_eq(completed.size, 77);
}
END_TEST

START_TEST(test_complete_fills_defaults) {
    weir_options completed;

    ck_assert_int_eq(weir__options_complete(NULL, &completed, message, sizeof message), WEIR_OK);
    ck_assert_str_eq(message, "");
    ck_assert_str_eq(completed.device, "cuda");
    ck_assert_int_eq(completed.engine, WEIR_ENGINE_POOL);
    ck_assert_int_eq(completed.arena, WEIR_ARENA_REGIONS);
    ck_assert_int_eq(completed.prealloc.kind, WEIR_AMOUNT_BYTES);
    ck_assert_uint_eq(completed.prealloc.value, 0);
    ck_assert_int_eq(completed.prealloc_at, WEIR_PREALLOC_AT_CREATE);
    ck_assert_int_eq(completed.growth, WEIR_GROWTH_EXACT);
    ck_assert_int_eq(completed.limit.kind, WEIR_AMOUNT_MAX);
    ck_assert_int_eq(completed.release_threshold.kind, WEIR_AMOUNT_MAX);
    ck_assert_uint_eq(completed.recovery_timeout_ms, 1000);
    ck_assert_uint_eq(completed.event_ring, 1024);
    ck_assert_int_eq(completed.latency, WEIR_SWITCH_OFF);
    ck_assert_int_eq(completed.log, WEIR_LOG_NONE);
    ck_assert_int_eq(completed.front, WEIR_SWITCH_ON);
    ck_assert_int_eq(completed.front_cache.kind, WEIR_AMOUNT_DEFAULT);
    ck_assert_uint_eq(completed.front_idle_ms, 1000);
    ck_assert_int_eq(completed.stream_checks, WEIR_SWITCH_ON);
    ck_assert_uint_eq(completed.harden, WEIR_HARDEN_OFF);
    ck_assert_str_eq(completed.profile, "off");
    ck_assert_uint_eq(completed.decay_ms, UINT64_MAX);
    options.engine = WEIR_ENGINE_ARENA;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_int_eq(completed.growth, WEIR_GROWTH_BFC);
    ck_assert_int_eq(completed.front, WEIR_SWITCH_ON);
    ck_assert_int_eq(completed.limit.kind, WEIR_AMOUNT_MAX);
    options.arena = WEIR_ARENA_FIXED;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_int_eq(completed.limit.kind, WEIR_AMOUNT_OF_TOTAL);
    ck_assert_uint_eq(completed.limit.value, 750000);
    options.engine = WEIR_ENGINE_PLATFORM;
    options.growth = WEIR_GROWTH_STEP;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_uint_eq(completed.growth_step, 64 * MIB);
    ck_assert_int_eq(completed.front, WEIR_SWITCH_OFF);
    options.front = WEIR_SWITCH_ON;
    options.growth = WEIR_GROWTH_GEOMETRIC;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_double_eq(completed.growth_factor, 2);
    ck_assert_int_eq(completed.front, WEIR_SWITCH_ON);
    options.growth = WEIR_GROWTH_REMAINING;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_double_eq(completed.growth_factor, 0.5);
}
END_TEST

static void break_engine(weir_options *o) {
    o->engine = 5;
}
static void break_engine_below(weir_options *o) {
    o->engine = -1;
}
static void break_arena(weir_options *o) {
    o->arena = 4;
}
static void break_prealloc_at(weir_options *o) {
    o->prealloc_at = 3;
}
static void break_kind(weir_options *o) {
    o->prealloc.kind = 7;
}
static void break_no_kind(weir_options *o) {
    o->prealloc.value = GIB;
}
static void break_reserved(weir_options *o) {
    o->limit = (weir_amount){GIB, WEIR_AMOUNT_BYTES, 1};
}
static void break_share(weir_options *o) {
    o->release_threshold = (weir_amount){1000001, WEIR_AMOUNT_OF_TOTAL, 0};
}
static void break_free_share(weir_options *o) {
    o->limit = (weir_amount){1000001, WEIR_AMOUNT_OF_FREE, 0};
}
static void break_share_of_in_use(weir_options *o) {
    o->prealloc = (weir_amount){50000, WEIR_AMOUNT_OF_IN_USE, 0};
}
static void break_limit(weir_options *o) {
    o->limit = (weir_amount){0, WEIR_AMOUNT_BYTES, 0};
}
static void break_policy(weir_options *o) {
    o->growth = 7;
}
static void break_no_callback(weir_options *o) {
    o->growth = WEIR_GROWTH_CALLBACK;
}
static void break_callback(weir_options *o) {
    o->growth = WEIR_GROWTH_EXACT;
    o->growth_function = no_growth;
}
static void break_lone_callback(weir_options *o) {
    o->growth_function = no_growth;
}
static void break_oom_data(weir_options *o) {
    o->oom_callback_data = o;
}
static void break_factor(weir_options *o) {
    o->growth = WEIR_GROWTH_GEOMETRIC;
    o->growth_factor = 1;
}
static void break_nan(weir_options *o) {
    o->growth = WEIR_GROWTH_GEOMETRIC;
    o->growth_factor = __builtin_nan("");
}
static void break_infinity(weir_options *o) {
    o->growth = WEIR_GROWTH_GEOMETRIC;
    o->growth_factor = __builtin_inf();
}
static void break_fraction(weir_options *o) {
    o->growth = WEIR_GROWTH_REMAINING;
    o->growth_factor = 1.5;
}
static void break_negative(weir_options *o) {
    o->growth = WEIR_GROWTH_REMAINING;
    o->growth_factor = -0.5;
}
static void break_ring(weir_options *o) {
    o->event_ring = 1048577;
}
static void break_latency(weir_options *o) {
    o->latency = 3;
}
static void break_log(weir_options *o) {
    o->log = 6;
}
static void break_caches(weir_options *o) {
    o->front = 3;
}
static void break_cache_of_total(weir_options *o) {
    o->front_cache = (weir_amount){50000, WEIR_AMOUNT_OF_TOTAL, 0};
}
static void break_cache_of_free(weir_options *o) {
    o->front_cache = (weir_amount){50000, WEIR_AMOUNT_OF_FREE, 0};
}
static void break_cache_share(weir_options *o) {
    o->front_cache = (weir_amount){1000001, WEIR_AMOUNT_OF_IN_USE, 0};
}
static void break_stream_checks(weir_options *o) {
    o->stream_checks = -1;
}
static void break_harden(weir_options *o) {
    o->harden = 32;
}
static void break_harden_off(weir_options *o) {
    o->harden = WEIR_HARDEN_OFF | WEIR_HARDEN_GUARD;
}
static void break_decay(weir_options *o) {
    o->decay_ms = UINT32_MAX;
}
static void break_device(weir_options *o) {
    o->device = "tpu";
}

static const struct {
    void (*apply)(weir_options *options);
    const char *name;
} breaks[] = {
    {break_engine, "engine: "},
    {break_engine_below, "engine: "},
    {break_arena, "arena: "},
    {break_prealloc_at, "prealloc-at: "},
    {break_kind, "prealloc: "},
    {break_no_kind, "prealloc: "},
    {break_reserved, "limit: "},
    {break_share, "release-threshold: "},
    {break_free_share, "limit: "},
    {break_limit, "limit: "},
    {break_policy, "growth: "},
    {break_no_callback, "growth: "},
    {break_callback, "growth: "},
    {break_lone_callback, "growth: "},
    {break_oom_data, "oom_callback_data: "},
    {break_factor, "growth: "},
    {break_nan, "growth: "},
    {break_infinity, "growth: "},
    {break_fraction, "growth: "},
    {break_negative, "growth: "},
    {break_ring, "event-ring: "},
    {break_latency, "latency: "},
    {break_log, "log: "},
    {break_device, "device: "},
    {break_share_of_in_use, "prealloc: it is a share of what is in use"},
    {break_caches, "cache: "},
    {break_cache_of_total, "cache-limit: it is a share of the device"},
    {break_cache_of_free, "cache-limit: it is a share of what is free"},
    {break_cache_share, "cache-limit: it is more than 100%"},
    {break_stream_checks, "stream-checks: "},
    {break_harden, "harden: there is no bit 0x20"},
    {break_harden_off, "harden: off goes with none"},
    {break_decay, "decay: it is too long"},
};

START_TEST(test_complete_refuses) {
    weir_options completed = {.size = 77};

    breaks[_i].apply(&options);
    ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                     WEIR_E_INVALID);
    ck_assert_msg(strncmp(message, breaks[_i].name, strlen(breaks[_i].name)) == 0, "\"%s\"",
                  message);
    assert_contains(message, "; expected ");
    ck_assert_uint_eq(completed.size, 77);
}
END_TEST

START_TEST(test_complete_accepts_a_callback) {
    weir_options completed;

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = no_growth;
    options.growth_context = &options;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert(completed.growth_function == no_growth);
    ck_assert_ptr_eq(completed.growth_context, &options);
}
END_TEST

static const struct {
    const char *prealloc, *limit;
    int ok;
} pairs[] = {
    {"8GiB", "4GiB", 0}, {"4GiB", "4GiB", 1},   {"4294967297", "4GiB", 0},
    {"80%", "75%", 0},   {"75%", "75%", 1},     {"80%free", "75%free", 0},
    {"8GiB", "75%", 1}, /* the device decides */
    {"80%", "4GiB", 1},  {"80%free", "75%", 1}, {"max", "4GiB", 1},
    {"8GiB", "max", 1},  {"max", "max", 1},     {"0", "1B", 1},
};

START_TEST(test_limit_below_preallocation) {
    weir_options completed;
    char quoted[64];

    ck_assert_int_eq(weir_options_set(&options, "prealloc", pairs[_i].prealloc, NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_set(&options, "limit", pairs[_i].limit, NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                     pairs[_i].ok ? WEIR_OK : WEIR_E_LIMIT);
    if (pairs[_i].ok)
        return;
    snprintf(quoted, sizeof quoted, "prealloc '%s'", pairs[_i].prealloc);
    assert_contains(message, quoted);
    snprintf(quoted, sizeof quoted, "limit '%s'", pairs[_i].limit);
    assert_contains(message, quoted);
    assert_contains(message, "; expected ");
}
END_TEST

/* The default limit of a fixed arena counts too. */
START_TEST(test_fixed_arena_below_preallocation) {
    weir_options completed;

    options.engine = WEIR_ENGINE_ARENA;
    options.arena = WEIR_ARENA_FIXED;
    options.prealloc = (weir_amount){800000, WEIR_AMOUNT_OF_TOTAL, 0};
    ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                     WEIR_E_LIMIT);
    assert_contains(message, "limit '75%'");
}
END_TEST

/* ---------------------------------------------------------- own variables ---- */

static const struct {
    enum weir_setting setting;
    const char *variable, *value, *other_text;
} own_variables[] = {
    {WEIR_SETTING_DEVICE, "WEIR_DEVICE", "model", "cuda:1"},
    {WEIR_SETTING_ENGINE, "WEIR_ENGINE", "bfc", "mapped"},
    {WEIR_SETTING_ARENA, "WEIR_ARENA", "fixed", "regions"},
    {WEIR_SETTING_PACKING, "WEIR_PACKING", "compact", "fast"},
    {WEIR_SETTING_PREALLOC, "WEIR_PREALLOC", "8GiB", "4GiB"},
    {WEIR_SETTING_PREALLOC_AT, "WEIR_PREALLOC_AT", "first", "create"},
    {WEIR_SETTING_GROWTH, "WEIR_GROWTH", "geometric:1.5:1GiB", "exact"},
    {WEIR_SETTING_LIMIT, "WEIR_LIMIT", "90%free", "50%"},
    {WEIR_SETTING_RELEASE_THRESHOLD, "WEIR_RELEASE_THRESHOLD", "1GiB", "0"},
    {WEIR_SETTING_RECOVERY_TIMEOUT, "WEIR_RECOVERY_TIMEOUT", "250ms", "2s"},
    {WEIR_SETTING_EVENT_RING, "WEIR_EVENT_RING", "64", "65"},
    {WEIR_SETTING_LATENCY, "WEIR_LATENCY", "on", "off"},
    {WEIR_SETTING_LOG, "WEIR_LOG", "error", "none"},
    {WEIR_SETTING_FRONT, "WEIR_CACHE", "off", "on"},
    {WEIR_SETTING_FRONT_CACHE, "WEIR_CACHE_LIMIT", "5%", "0"},
    {WEIR_SETTING_FRONT_IDLE, "WEIR_CACHE_IDLE", "never", "2s"},
    {WEIR_SETTING_STREAM_CHECKS, "WEIR_STREAM_CHECKS", "off", "on"},
    {WEIR_SETTING_HARDEN, "WEIR_HARDEN", "poison,guard", "off"},
    {WEIR_SETTING_GROW_AHEAD, "WEIR_GROW_AHEAD", "1GiB:3GiB", "0"},
    {WEIR_SETTING_PREALLOC_MIN, "WEIR_PREALLOC_MIN", "1GiB", "0"},
    {WEIR_SETTING_PREALLOC_DEADLINE, "WEIR_PREALLOC_DEADLINE", "250ms", "never"},
    {WEIR_SETTING_PREALLOC_MODE, "WEIR_PREALLOC_MODE", "background", "foreground"},
    {WEIR_SETTING_PROFILE, "WEIR_PROFILE", "/tmp/a", "off"},
    {WEIR_SETTING_DECAY, "WEIR_DECAY", "60s", "off"},
    {WEIR_SETTING_INTERNAL_DEPENDENCIES, "WEIR_INTERNAL_DEPENDENCIES", "on", "off"},
    {WEIR_SETTING_VERDICT, "WEIR_OOM_REPORT", "stderr", "off"},
    {WEIR_SETTING_LEDGER, "WEIR_REGISTRY", "off", "on"},
    {WEIR_SETTING_PRIORITY, "WEIR_PRIORITY", "7", "1000"},
    {WEIR_SETTING_KEEP_FREE, "WEIR_KEEP_FREE", "1GiB", "5%"},
    {WEIR_SETTING_PEERS, "WEIR_PEERS", "1,3", "all"},
    {WEIR_SETTING_EXPORT, "WEIR_EXPORT", "on", "off"},
};

static void assert_shown(enum weir_setting setting, const char *expected) {
    char text[128];

    weir__option_show(&options, setting, text, sizeof text);
    ck_assert_str_eq(text, expected);
}

START_TEST(test_own_variable) {
    enum weir_setting setting = own_variables[_i].setting;
    struct weir_sources sources = {.of = {NULL}};

    ck_assert_uint_eq(COUNT(own_variables), WEIR_SETTING_COUNT);
    set_variable(own_variables[_i].variable, own_variables[_i].value);
    ck_assert_int_eq(
        weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, message, sizeof message),
        WEIR_OK);
    assert_shown(setting, own_variables[_i].value);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        ck_assert_int_eq(weir__option_is_set(&options, (enum weir_setting)i), i == (int)setting);
        if (i != (int)setting)
            ck_assert_ptr_null(sources.of[i]);
    }
    ck_assert_str_eq(sources.of[setting], own_variables[_i].variable);
}
END_TEST

START_TEST(test_what_is_set_stays) {
    enum weir_setting setting = own_variables[_i].setting;
    struct weir_sources sources = {.of = {NULL}};

    ck_assert_int_eq(
        weir__option_set(&options, setting, NULL, own_variables[_i].other_text, NULL, 0), WEIR_OK);
    set_variable(own_variables[_i].variable, own_variables[_i].value);
    ck_assert_int_eq(weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, NULL, 0),
                     WEIR_OK);
    assert_shown(setting, own_variables[_i].other_text);
    ck_assert_str_eq(sources.of[setting], "the program");
    sources.of[setting] = "flag --x";
    ck_assert_int_eq(weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, NULL, 0),
                     WEIR_OK);
    ck_assert_str_eq(sources.of[setting], "flag --x");
}
END_TEST

static int is_file(int setting) {
    return setting == WEIR_SETTING_PROFILE || setting == WEIR_SETTING_VERDICT;
}

START_TEST(test_bad_own_variable) {
    weir_options before;
    struct weir_sources sources = {.of = {NULL}};
    const struct weir_setting_row *row = weir__setting_row((enum weir_setting)_i);

    set_variable("WEIR_ENGINE", "arena"); /* must not be applied either */
    /* any other text names a file */
    set_variable(row->variable, is_file(_i) ? "" : "4X");
    before = options;
    ck_assert_int_eq(
        weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, message, sizeof message),
        WEIR_E_PARSE);
    assert_complains(row->variable, is_file(_i) ? "" : "4X", row->accepts);
    ck_assert(same_options(&before, &options));
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        ck_assert_ptr_null(sources.of[i]);
    set_variable(row->variable, "");
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
    assert_complains(row->variable, "", row->accepts);
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_E_PARSE);
}
END_TEST

/* Even where a flag makes it count for nothing. */
START_TEST(test_bad_variable_under_a_set_field) {
    options.prealloc = (weir_amount){GIB, WEIR_AMOUNT_BYTES, 0};
    set_variable("WEIR_PREALLOC", "0.95");
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
    assert_complains("WEIR_PREALLOC", "0.95", "write 95%, or a size such as 4GiB; expected");
}
END_TEST

/* -------------------------------------------------- compatibility: preallocation ---- */

#define NONE "none" /* nobody asks: prealloc stays default */

/* n: TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC, p: XLA_PYTHON_CLIENT_PREALLOCATE,
 * f: XLA_PYTHON_CLIENT_MEM_FRACTION; the source: 'n', 'p', 'f'. */
static const struct {
    const char *n, *p, *f;
    const char *prealloc;
    char source;
} truth[] = {
    {NULL, NULL, NULL, NONE, 0},
    {NULL, NULL, ".5", "50%", 'f'},
    {NULL, "false", NULL, "0", 'p'},
    {NULL, "false", ".5", "0", 'p'},
    {NULL, "true", NULL, "75%", 'p'},
    {NULL, "true", ".5", "50%", 'p'},
    {"-1", NULL, NULL, "75%", 'n'},
    {"-1", NULL, ".5", "50%", 'n'},
    {"-1", "false", NULL, "75%", 'n'},
    {"-1", "false", ".5", "50%", 'n'},
    {"-1", "true", NULL, "75%", 'n'},
    {"-1", "true", ".5", "50%", 'n'},
    {"0", NULL, NULL, "0", 'n'},
    {"0", NULL, ".5", "0", 'n'},
    {"0", "false", NULL, "0", 'n'},
    {"0", "false", ".5", "0", 'n'},
    {"0", "true", NULL, "0", 'n'},
    {"0", "true", ".5", "0", 'n'},
    {"1048576", NULL, NULL, "1MiB", 'n'},
    {"1048576", NULL, ".5", "1MiB", 'n'},
    {"1048576", "false", NULL, "1MiB", 'n'},
    {"1048576", "false", ".5", "1MiB", 'n'},
    {"1048576", "true", NULL, "1MiB", 'n'},
    {"1048576", "true", ".5", "1MiB", 'n'},
    {"10", NULL, NULL, "10B", 'n'}, /* bytes by its own definition, however few */
};

static void set_row(int row) {
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", truth[row].n);
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", truth[row].p);
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", truth[row].f);
}

static const char *source_name(char source) {
    switch (source) {
    case 'n':
        return "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC";
    case 'p':
        return "XLA_PYTHON_CLIENT_PREALLOCATE";
    default:
        return "XLA_PYTHON_CLIENT_MEM_FRACTION";
    }
}

START_TEST(test_preallocation_by_compatibility) {
    struct weir_sources sources = {.of = {NULL}};
    int some = strcmp(truth[_i].prealloc, "0") != 0;
    weir_options completed;

    set_row(_i);
    ck_assert_int_eq(
        weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, message, sizeof message),
        WEIR_OK);
    if (strcmp(truth[_i].prealloc, NONE) == 0) {
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC_AT));
        ck_assert_ptr_null(sources.of[WEIR_SETTING_PREALLOC]);
        return;
    }
    assert_shown(WEIR_SETTING_PREALLOC, truth[_i].prealloc);
    ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], source_name(truth[_i].source));
    /* At the first request, never at load; and of nothing there is no time. */
    ck_assert_int_eq(options.prealloc_at, some ? WEIR_PREALLOC_AT_FIRST : WEIR_PREALLOC_AT_DEFAULT);
    if (some)
        ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC_AT], source_name(truth[_i].source));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_ENGINE));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_LIMIT));
    ck_assert_str_eq(weir__compat_name(options.prealloc.reserved), source_name(truth[_i].source));
    options.prealloc_min = options.prealloc;
    options.prealloc_min.reserved = 0;
    options.prealloc_min.value += 2;
    ck_assert_int_eq(weir__options_complete(&options, &completed, message, sizeof message),
                     WEIR_E_INVALID);
    assert_contains(message, source_name(truth[_i].source));
    options.prealloc_min = (weir_amount){0};
    if (!some)
        return;
    options.limit = options.prealloc; /* which the variable knows nothing of */
    options.limit.reserved = 0;
    options.limit.value /= 2;
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message), WEIR_OK);
    options.prealloc.reserved = 0;
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message),
                     WEIR_E_LIMIT);
    options.prealloc.reserved = 1000;
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message),
                     WEIR_E_INVALID);
}
END_TEST

START_TEST(test_own_variable_beats_compatibility) {
    struct weir_sources sources = {.of = {NULL}};

    set_row(_i);
    set_variable("WEIR_PREALLOC", "3GiB");
    ck_assert_int_eq(weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, NULL, 0),
                     WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "3GiB");
    ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], "WEIR_PREALLOC");
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC_AT)); /* create */
}
END_TEST

START_TEST(test_field_beats_every_variable) {
    set_row(_i);
    set_variable("WEIR_PREALLOC", "3GiB");
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "0", NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "0");
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC_AT));
}
END_TEST

START_TEST(test_time_that_is_set_stays) {
    set_row(_i);
    set_variable("WEIR_PREALLOC_AT", "create");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.prealloc_at, WEIR_PREALLOC_AT_CREATE);
}
END_TEST

START_TEST(test_no_compatibility) {
    static const char *const words[] = {"0", "off", "false", "no", "OFF"};

    set_row(_i);
    set_variable("TF_GPU_ALLOCATOR", "nonsense"); /* not even looked at */
    for (size_t i = 0; i < COUNT(words); i++) {
        set_variable("WEIR_COMPAT", words[i]);
        ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_OK);
        for (int j = 0; j < WEIR_SETTING_COUNT; j++)
            ck_assert(!weir__option_is_set(&options, (enum weir_setting)j));
    }
}
END_TEST

START_TEST(test_compatibility_switch) {
    static const char *const words[] = {"1", "on", "true", "yes"};
    static const char *const bad[] = {"", "2", "maybe", "0 ", "-1"};

    set_variable("TF_GPU_ALLOCATOR", "cuda_malloc_async");
    for (size_t i = 0; i < COUNT(words); i++) {
        setup();
        set_variable("TF_GPU_ALLOCATOR", "cuda_malloc_async");
        set_variable("WEIR_COMPAT", words[i]);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
        ck_assert_int_eq(options.engine, WEIR_ENGINE_POOL);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        set_variable("WEIR_COMPAT", bad[i]);
        ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
        assert_complains("WEIR_COMPAT", bad[i], "0 or 1");
    }
}
END_TEST

START_TEST(test_switches_of_parts) {
    static const char *const names[] = {"WEIR_RUN_CHILDREN",     "WEIR_RUN_SAMPLES",
                                        "WEIR_RUN_SERVE_MALLOC", "WEIR_RUN_STATS",
                                        "WEIR_RUN_TOP",          "WEIR_RUN_VERBOSE"};
    static const char *const good[] = {"0", "off", "False", "no", "1", "ON", "true", "yes", ""};
    static const char *const bad[] = {"2", "maybe", "0 "};

    for (size_t i = 0; i < COUNT(good); i++) {
        set_variable(names[_i], good[i]);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        set_variable(names[_i], bad[i]);
        ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
        assert_complains(names[_i], bad[i], "0 or 1");
    }
    unsetenv(names[_i]);
}
END_TEST

/* The direct engine has no reserved memory; JAX ignores the fraction there too. */
START_TEST(test_direct_is_not_preallocated) {
    set_row(_i);
    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", "platform");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.engine, WEIR_ENGINE_PLATFORM);
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC_AT));
}
END_TEST

/* Only these three are false; "FALSE" is true, and an empty variable is not set, as in JAX. */
START_TEST(test_words_of_preallocate) {
    static const struct {
        const char *value, *prealloc;
    } cases[] = {{"false", "0"}, {"False", "0"}, {"0", "0"},       {"FALSE", "75%"},
                 {"no", "75%"},  {"off", "75%"}, {"true", "75%"},  {"True", "75%"},
                 {"1", "75%"},   {"", NULL},     {" false", "75%"}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        setup();
        set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", cases[i].value);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
        ck_assert_int_eq(weir__option_is_set(&options, WEIR_SETTING_PREALLOC),
                         cases[i].prealloc != NULL);
        if (cases[i].prealloc)
            assert_shown(WEIR_SETTING_PREALLOC, cases[i].prealloc);
    }
}
END_TEST

START_TEST(test_fractions) {
    static const struct {
        const char *value;
        uint64_t millionths;
    } cases[] = {{".75", 750000},         {"0.30", 300000},     {"1", 1000000},  {"1.0", 1000000},
                 {"1.00000000", 1000000}, {".9999999", 999999}, {"0.000001", 1}, {"", 0}};
    static const char *const names[] = {"XLA_CLIENT_MEM_FRACTION",
                                        "XLA_PYTHON_CLIENT_MEM_FRACTION"};

    for (size_t n = 0; n < COUNT(names); n++)
        for (size_t i = 0; i < COUNT(cases); i++) {
            struct weir_sources sources = {.of = {NULL}};

            setup();
            set_variable(names[n], cases[i].value);
            ck_assert_int_eq(weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 1, NULL, 0),
                             WEIR_OK);
            ck_assert_uint_eq(options.prealloc.value, cases[i].millionths);
            if (cases[i].millionths == 0)
                continue;
            ck_assert_int_eq(options.prealloc.kind, WEIR_AMOUNT_OF_TOTAL);
            ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], names[n]);
        }
}
END_TEST

START_TEST(test_both_fractions) {
    set_variable("XLA_CLIENT_MEM_FRACTION", ".5");
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", ".75");
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
    assert_contains(message, "XLA_CLIENT_MEM_FRACTION '.5'");
    assert_contains(message, "XLA_PYTHON_CLIENT_MEM_FRACTION '.75'");
    assert_contains(message, "expected one of them");
    set_variable("XLA_CLIENT_MEM_FRACTION", ""); /* not set, as in JAX */
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "75%");
}
END_TEST

/* That a framework preallocates nothing itself is no word about what earlier runs needed; that it does is. */
START_TEST(test_profile_and_compatibility) {
    int place = _i / 4;
    int none = _i % 4 < 2;

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", place == WEIR_PLACE_OWN ? NULL : "cuda_async");
    if (_i % 2 == 0)
        set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", none ? "false" : "true");
    else
        set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", none ? "0" : "-1");
    set_variable("WEIR_PROFILE", "runs");
    ck_assert_int_eq(weir__options_from_env(&options, NULL, (enum weir_place)place, 0, NULL, 0),
                     WEIR_OK);
    ck_assert_int_eq(weir__option_is_set(&options, WEIR_SETTING_PREALLOC), !none);
    setup();
    set_variable("WEIR_PROFILE", "off");
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
    ck_assert_int_eq(weir__options_from_env(&options, NULL, WEIR_PLACE_TELLS, 0, NULL, 0), WEIR_OK);
    ck_assert(weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
}
END_TEST

#define TF_ACCEPTS "a whole number of bytes, -1 "
#define FRACTION_ACCEPTS "a fraction above 0 and at most 1, such as .75"
#define XLA_ACCEPTS "default, bfc, platform, cuda_async, vmm or address"

static const struct {
    const char *variable, *value, *reason, *accepts;
} bad_compat[] = {
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "", "empty", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "0.95", "not a whole number", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "4G", "not a whole number", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "-2", "negative", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "-1.0", "negative", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "-", "negative", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "1 ", "not a whole number", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "0x10", "not a whole number", TF_ACCEPTS},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "9223372036854775808", "too large", TF_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "0", "it is 0", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "0.0000001", "too small", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "1.0000001", "more than 1", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "75", "more than 1", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "75%", "plain decimal", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "-.5", "negative", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "nan", "not a number", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "0,75", "plain decimal", FRACTION_ACCEPTS},
    {"XLA_CLIENT_MEM_FRACTION", "1.5", "more than 1", FRACTION_ACCEPTS},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "", "empty", XLA_ACCEPTS},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "pool", "no such", XLA_ACCEPTS},
    {"TF_GPU_ALLOCATOR", "", "empty", "cuda_malloc_async, cuda_malloc or memory_guard"},
    {"TF_GPU_ALLOCATOR", "async", "no such", "cuda_malloc_async, cuda_malloc or memory_guard"},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "", "empty", "true or false"},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "yes", "no switch", "true or false"},
};

START_TEST(test_bad_compatibility_variable) {
    weir_options before = options;

    set_variable(bad_compat[_i].variable, bad_compat[_i].value);
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_E_PARSE);
    assert_complains(bad_compat[_i].variable, bad_compat[_i].value, bad_compat[_i].accepts);
    assert_contains(message, bad_compat[_i].reason);
    assert_contains(message, "WEIR_COMPAT=0");
    ck_assert(same_options(&before, &options));
    set_variable("WEIR_COMPAT", "0");
    ck_assert_int_eq(weir_options_from_env(&options, message, sizeof message), WEIR_OK);
}
END_TEST

START_TEST(test_largest_tf_value) {
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "9223372036854775807");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.prealloc.value, INT64_MAX);
    ck_assert_int_eq(options.prealloc.kind, WEIR_AMOUNT_BYTES);
}
END_TEST

/* --------------------------------------------------------- compatibility: engine ---- */

/* x: XLA_PYTHON_CLIENT_ALLOCATOR, t: TF_GPU_ALLOCATOR, g: TF_FORCE_GPU_ALLOW_GROWTH. */
static const struct {
    const char *x, *t, *g;
    int engine, arena;
    char source;
} engine_truth[] = {
    {NULL, NULL, NULL, WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {NULL, NULL, "true", WEIR_ENGINE_ARENA, WEIR_ARENA_REGIONS, 'g'},
    {NULL, NULL, "1", WEIR_ENGINE_ARENA, WEIR_ARENA_REGIONS, 'g'},
    {NULL, NULL, "false", WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {NULL, NULL, "0", WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {NULL, "cuda_malloc_async", NULL, WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 't'},
    {NULL, "cuda_malloc_async", "true", WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 't'},
    {NULL, "CUDA_MALLOC_ASYNC", NULL, WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 't'},
    {NULL, "cuda_malloc", NULL, WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {NULL, "memory_guard", "true", WEIR_ENGINE_ARENA, WEIR_ARENA_REGIONS, 'g'},
    {"platform", NULL, NULL, WEIR_ENGINE_PLATFORM, WEIR_ARENA_DEFAULT, 'x'},
    {"PLATFORM", NULL, NULL, WEIR_ENGINE_PLATFORM, WEIR_ARENA_DEFAULT, 'x'},
    {"default", NULL, NULL, WEIR_ENGINE_ARENA, WEIR_ARENA_DEFAULT, 'x'},
    {"bfc", NULL, NULL, WEIR_ENGINE_ARENA, WEIR_ARENA_DEFAULT, 'x'},
    {"cuda_async", NULL, NULL, WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 'x'},
    {"bfc", "cuda_malloc_async", "true", WEIR_ENGINE_ARENA, WEIR_ARENA_DEFAULT, 'x'},
    {"cuda_async", NULL, "true", WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 'x'},
    {"platform", "cuda_malloc_async", NULL, WEIR_ENGINE_PLATFORM, WEIR_ARENA_DEFAULT, 'x'},
    {"vmm", NULL, NULL, WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {"address", NULL, NULL, WEIR_ENGINE_DEFAULT, WEIR_ARENA_DEFAULT, 0},
    {"vmm", "cuda_malloc_async", NULL, WEIR_ENGINE_POOL, WEIR_ARENA_DEFAULT, 't'},
};

START_TEST(test_engine_by_compatibility) {
    struct weir_sources sources = {.of = {NULL}};
    const char *name = engine_truth[_i].source == 'x'   ? "XLA_PYTHON_CLIENT_ALLOCATOR"
                       : engine_truth[_i].source == 't' ? "TF_GPU_ALLOCATOR"
                                                        : "TF_FORCE_GPU_ALLOW_GROWTH";

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", engine_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", engine_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", engine_truth[_i].g);
    ck_assert_int_eq(
        weir__options_from_env(&options, &sources, WEIR_PLACE_OWN, 0, message, sizeof message),
        WEIR_OK);
    ck_assert_int_eq(options.engine, engine_truth[_i].engine);
    ck_assert_int_eq(options.arena, engine_truth[_i].arena);
    if (engine_truth[_i].source)
        ck_assert_str_eq(sources.of[WEIR_SETTING_ENGINE], name);
    else
        ck_assert_ptr_null(sources.of[WEIR_SETTING_ENGINE]);
    setup();
    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", engine_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", engine_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", engine_truth[_i].g);
    set_variable("WEIR_ENGINE", "platform");
    ck_assert_int_eq(weir__options_from_env(&options, NULL, WEIR_PLACE_OWN, 0, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.engine, WEIR_ENGINE_PLATFORM);
    ck_assert_int_eq(options.arena, WEIR_ARENA_DEFAULT);
}
END_TEST

START_TEST(test_arena_kind_that_is_set_stays) {
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", "true");
    set_variable("WEIR_ARENA", "fixed");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.engine, WEIR_ENGINE_ARENA);
    ck_assert_int_eq(options.arena, WEIR_ARENA_FIXED);
}
END_TEST

/* --------------------------------------------------- compatibility: a user's place ---- */

#define TELLS WEIR_PLACE_TELLS
#define USER WEIR_PLACE_USER

/* As above, and the place.  What is preallocated, and by which; no engine in any case. */
static const struct {
    enum weir_place place;
    const char *x, *t, *g, *n, *p, *f;
    const char *prealloc;
    char source;
} place_truth[] = {
    {TELLS, NULL, NULL, NULL, NULL, NULL, ".5", "50%", 'f'},
    {TELLS, NULL, NULL, NULL, NULL, "true", NULL, "75%", 'p'},
    {TELLS, NULL, NULL, NULL, NULL, "false", ".5", "0", 'p'},
    {TELLS, NULL, NULL, "true", "1048576", NULL, NULL, "1MiB", 'n'},
    {TELLS, "cuda_async", NULL, NULL, NULL, NULL, ".5", "50%", 'f'},
    {TELLS, "CUDA_ASYNC", NULL, "true", NULL, "true", NULL, "75%", 'p'},
    {TELLS, "bfc", NULL, NULL, NULL, NULL, ".5", NONE, 0},
    {TELLS, "bfc", NULL, NULL, NULL, "true", ".5", NONE, 0},
    {TELLS, "platform", NULL, NULL, NULL, "false", ".5", NONE, 0},
    {TELLS, "vmm", NULL, NULL, NULL, NULL, ".5", NONE, 0},
    {TELLS, "bfc", NULL, NULL, "1048576", "true", ".5", "1MiB", 'n'}, /* TensorFlow is told */
    {TELLS, "default", NULL, NULL, "-1", NULL, ".5", "75%", 'n'},     /* the fraction is JAX's */
    {TELLS, "bfc", "cuda_malloc", NULL, "1048576", NULL, NULL, NONE, 0},
    {TELLS, NULL, "cuda_malloc", NULL, "-1", NULL, ".5", "50%", 'n'},
    {USER, NULL, NULL, "true", NULL, "true", ".5", NONE, 0},
    {USER, NULL, NULL, NULL, "1048576", NULL, NULL, NONE, 0},
    {USER, "bfc", NULL, NULL, "-1", "true", ".5", NONE, 0},
    {USER, "cuda_async", NULL, NULL, NULL, NULL, ".5", "50%", 'f'},
    {USER, "cuda_async", NULL, NULL, "1048576", "true", ".5", "1MiB", 'n'},
    {USER, NULL, "cuda_malloc_async", NULL, "1048576", "true", ".5", "1MiB", 'n'},
    {USER, NULL, "cuda_malloc_async", "true", NULL, "true", ".5", NONE, 0},
    {USER, NULL, "memory_guard", NULL, "1048576", NULL, NULL, NONE, 0},
};

START_TEST(test_compatibility_in_a_users_place) {
    struct weir_sources sources = {.of = {NULL}};

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", place_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", place_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", place_truth[_i].g);
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", place_truth[_i].n);
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", place_truth[_i].p);
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", place_truth[_i].f);
    ck_assert_int_eq(weir__options_from_env(&options, &sources, place_truth[_i].place, 0, message,
                                            sizeof message),
                     WEIR_OK);
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_ENGINE));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_ARENA));
    if (place_truth[_i].source) {
        assert_shown(WEIR_SETTING_PREALLOC, place_truth[_i].prealloc);
        ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], source_name(place_truth[_i].source));
    } else {
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC_AT));
    }
}
END_TEST

START_TEST(test_mistakes_in_a_users_place) {
    for (int place = USER; place <= TELLS; place++) {
        set_variable("TF_GPU_ALLOCATOR", "async");
        ck_assert_int_eq(weir__options_from_env(&options, NULL, (enum weir_place)place, 0, message,
                                                sizeof message),
                         WEIR_E_PARSE);
        assert_complains("TF_GPU_ALLOCATOR", "async", "cuda_malloc_async");
        set_variable("TF_GPU_ALLOCATOR", "CUDA_MALLOC_ASYNC"); /* TensorFlow's is another word */
        ck_assert_int_eq(weir__options_from_env(&options, NULL, (enum weir_place)place, 0, message,
                                                sizeof message),
                         WEIR_E_PARSE);
        assert_complains("TF_GPU_ALLOCATOR", "CUDA_MALLOC_ASYNC", "cuda_malloc_async");
    }
}
END_TEST

/* Where weir does not preallocate by it, its own program judges it. */
START_TEST(test_what_a_framework_alone_reads) {
    static const struct {
        enum weir_place place;
        const char *x, *t, *variable, *value;
        int is_good;
    } cases[] = {
        {USER, NULL, NULL, "XLA_PYTHON_CLIENT_MEM_FRACTION", "4.0", 1},
        {USER, NULL, "cuda_malloc_async", "XLA_PYTHON_CLIENT_MEM_FRACTION", "4.0", 1},
        {USER, "cuda_async", NULL, "XLA_PYTHON_CLIENT_MEM_FRACTION", "4.0", 0},
        {TELLS, "bfc", NULL, "XLA_CLIENT_MEM_FRACTION", "4.0", 1},
        {TELLS, NULL, NULL, "XLA_CLIENT_MEM_FRACTION", "4.0", 0},
        {USER, NULL, NULL, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "4GiB", 1},
        {TELLS, "bfc", "cuda_malloc", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "4GiB", 1},
        {TELLS, "bfc", NULL, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "4GiB", 0},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        setup();
        set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", cases[i].x);
        set_variable("TF_GPU_ALLOCATOR", cases[i].t);
        set_variable(cases[i].variable, cases[i].value);
        ck_assert_int_eq(
            weir__options_from_env(&options, NULL, cases[i].place, 0, message, sizeof message),
            cases[i].is_good ? WEIR_OK : WEIR_E_PARSE);
    }
}
END_TEST

/* ------------------------------------------------------------------- warnings ---- */

static enum weir_place read_in = WEIR_PLACE_OWN;

/* What one more reading of the environment writes to standard error. */
static const char *warnings_of_a_reading(int warn) {
    static char text[4096];
    int ends[2], saved = dup(STDERR_FILENO);
    ssize_t length;

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    ck_assert_int_eq(weir__options_from_env(&options, NULL, read_in, warn, message, sizeof message),
                     WEIR_OK);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    length = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    ck_assert_int_ge((int)length, 0);
    text[length] = '\0';
    return text;
}

static const struct {
    const char *unknown, *like;
} look_alikes[] = {
    {"WEIR_PREALOC", "WEIR_PREALLOC"},
    {"WEIR_PREALLOC_SIZE_BYTES", "WEIR_PREALLOC"},
    {"WEIR_PREALLOC_AT_ONCE", "WEIR_PREALLOC_AT"},
    {"WEIR_GROWHT", "WEIR_GROWTH"},
    {"WEIR_Limit", "WEIR_LIMIT"},
    {"WEIR_RELEASE_TRESHOLD", "WEIR_RELEASE_THRESHOLD"},
    {"WEIR_CACHE_LIMITS", "WEIR_CACHE_LIMIT"},
    {"WEIR_COMPATIBILITY", "WEIR_COMPAT"},
    {"WEIR_MODEL_DEVICE", "WEIR_MODEL_DEVICES"},
    {"WEIR_MODEL_PROFIL", "WEIR_MODEL_PROFILE"},
    {"WEIR_MODEL_SHARED_FILE", "WEIR_MODEL_SHARED"},
    {"WEIR_RUN_STAT", "WEIR_RUN_STATS"},
    {"WEIR_RUN_HEAP_PROFILES", "WEIR_RUN_HEAP_PROFILE"},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC_SIZE_BYTES",
     "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALOC", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"},
    {"XLA_PYTHON_CLIENT_MEM_FRACTON", "XLA_PYTHON_CLIENT_MEM_FRACTION"},
    {"XLA_PYTHON_CLIENT_PREALOCATE", "XLA_PYTHON_CLIENT_PREALLOCATE"},
    {"XLA_PYTHON_CLIENT_PREALLOCATED", "XLA_PYTHON_CLIENT_PREALLOCATE"},
    {"XLA_PYTHON_CLIENT_ALOCATER", "XLA_PYTHON_CLIENT_ALLOCATOR"},
    {"XLA_CLIENT_MEM_FRACTIONS", "XLA_CLIENT_MEM_FRACTION"},
    {"TF_GPU_ALOCATOR", "TF_GPU_ALLOCATOR"},
    {"TF_FORCE_GPU_ALLOW_GROWTHS", "TF_FORCE_GPU_ALLOW_GROWTH"},
    {"tf_gpu_allocator", "TF_GPU_ALLOCATOR"},
};

START_TEST(test_look_alike) {
    const char *text, *unknown = look_alikes[_i].unknown;

    set_variable(unknown, "1");
    ck_assert_str_eq(warnings_of_a_reading(0), ""); /* not asked for, and not used up */
    text = warnings_of_a_reading(1);
    ck_assert_msg(strncmp(text, "weir: warning: ", 15) == 0, "\"%s\"", text);
    assert_contains(text, unknown);
    assert_contains(text + 15 + strlen(unknown), look_alikes[_i].like);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    ck_assert_str_eq(warnings_of_a_reading(1), "");                /* once per process */
}
END_TEST

/* Nothing like them is known, or the two letters that are off are most of them, or what is known is little of them. */
START_TEST(test_own_name_like_no_other) {
    static const char *const names[] = {"WEIR_RESERVE", "WEIR_BACKGROUND_THREADS",
                                        "WEIR_TOP",     "WEIR_X",
                                        "WEIR_",        "WEIR_LOGARITHMIC"};
    const char *text;

    set_variable(names[_i], "1");
    text = warnings_of_a_reading(1);
    assert_contains(text, names[_i]);
    assert_contains(text, "weir-settings(7)");
    ck_assert_ptr_eq(strstr(text + strlen("weir: warning: ") + strlen(names[_i]), "WEIR_"), NULL);
}
END_TEST

/* Some of weir's names begin with another one of them. */
START_TEST(test_known_variables_draw_no_warning) {
    for (size_t i = 0; i < COUNT(own_variables); i++)
        set_variable(own_variables[i].variable, own_variables[i].value);
    set_variable("WEIR_LOG", "debug");
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "-1");
    set_variable("TF_GPU_ALLOCATOR", "cuda_malloc_async");
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", "true");
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", "true");
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5");
    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async");
    set_variable("WEIR_COMPAT", "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", NULL);
    set_variable("XLA_CLIENT_MEM_FRACTION", ".5");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
}
END_TEST

START_TEST(test_no_false_alarm) {
    static const char *const names[] = {"WEIR_COMPAT",
                                        "WEIR_MODEL_PROFILE",
                                        "WEIR_MODEL_DEVICES",
                                        "WEIR_MODEL_SHARED",
                                        "WEIR_RECORD_FOLDER",
                                        "WEIR_RECORD_PROCESS",
                                        "WEIR_RECORD_RANGES",
                                        "WEIR_RECORD_CALLERS",
                                        "WEIR_RECORD_SYNCS",
                                        "WEIR_RUN_CHILDREN",
                                        "WEIR_RUN_FIRST",
                                        "WEIR_RUN_FOLDER",
                                        "WEIR_RUN_HEAP_PROFILE",
                                        "WEIR_RUN_JSON",
                                        "WEIR_RUN_PREALLOC_OF",
                                        "WEIR_RUN_SAMPLES",
                                        "WEIR_RUN_SERVE_MALLOC",
                                        "WEIR_RUN_STATS",
                                        "WEIR_RUN_TOLD",
                                        "WEIR_RUN_TOP",
                                        "WEIR_RUN_TRACE",
                                        "WEIR_RUN_VERBOSE",
                                        "WEIR_TEST_DEVICE",
                                        "WEIRD",
                                        "TF_GPU_THREAD_MODE",
                                        "TF_CPU_ALLOCATOR_USE_BFC",
                                        "TF_FORCE_UNIFIED_MEMORY",
                                        "XLA_FLAGS",
                                        "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB",
                                        "XLA_PYTHON_CLIENT",
                                        "TF_GPU",
                                        "PATH_LIKE",
                                        "X"};

    for (size_t i = 0; i < COUNT(names); i++)
        set_variable(names[i], "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
}
END_TEST

START_TEST(test_own_warnings_survive_without_compatibility) {
    set_variable("WEIR_COMPAT", "0");
    set_variable("TF_GPU_ALOCATOR", "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
    set_variable("WEIR_PREALOC", "1");
    assert_contains(warnings_of_a_reading(1), "WEIR_PREALOC");
}
END_TEST

/* What `weir run' has told is told once, whatever the program below it becomes. */
START_TEST(test_told_above) {
    static const struct {
        const char *told, *name;
        int warns;
    } cases[] = {{"WEIR_PREALOC", "WEIR_PREALOC", 0},
                 {"TF_GPU_ALOCATOR,WEIR_LIMT,WEIR_PREALOC", "WEIR_LIMT", 0},
                 {"TF_GPU_ALOCATOR,WEIR_LIMT,WEIR_PREALOC", "TF_GPU_ALOCATOR", 0},
                 {"WEIR_LIMTS,WEIR_LIM,MYWEIR_LIMT", "WEIR_LIMT", 1},
                 {"", "WEIR_LIMT", 1}};
    struct weir_sources sources = {.of = {NULL}};

    set_variable("WEIR_RUN_TOLD", cases[_i].told);
    set_variable(cases[_i].name, "1");
    ck_assert_int_eq(warnings_of_a_reading(1)[0] != '\0', cases[_i].warns);
    for (int i = 0; i < 2; i++) { /* a run within that one hands it on */
        ck_assert_int_eq(weir__options_from_env(&options, &sources, read_in, 1, message, 0),
                         WEIR_OK);
        ck_assert_str_eq(sources.unknown, cases[_i].name);
    }
}
END_TEST

/* What the level keeps from being said has not been told, unless it was above. */
START_TEST(test_not_told) {
    struct weir_sources sources = {.of = {NULL}};

    set_variable("WEIR_LOG", "error");
    set_variable("WEIR_LIMT", "1");
    ck_assert_int_eq(weir__options_from_env(&options, &sources, read_in, 1, message, 0), WEIR_OK);
    ck_assert_str_eq(sources.unknown, "");
    set_variable("WEIR_RUN_TOLD", "WEIR_LIMT");
    ck_assert_int_eq(weir__options_from_env(&options, &sources, read_in, 1, message, 0), WEIR_OK);
    ck_assert_str_eq(sources.unknown, "WEIR_LIMT");
}
END_TEST

/* Those that there is no room for are told again below, but none is cut. */
START_TEST(test_more_unknown_names_than_room) {
    struct weir_sources sources = {.of = {NULL}};
    char name[64], *rest = sources.unknown;
    int count = 0;

    for (int i = 10; i < 50; i++) {
        snprintf(name, sizeof name, "WEIR_NOBODY_READS_THIS_%d", i);
        set_variable(name, "1");
    }
    ck_assert_int_eq(weir__options_from_env(&options, &sources, read_in, 1, message, 0), WEIR_OK);
    for (const char *one = strtok_r(rest, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        ck_assert_uint_eq(strlen(one), strlen(name));
        count++;
    }
    ck_assert_int_eq(count, (int)(sizeof sources.unknown / (strlen(name) + 1)));
}
END_TEST

START_TEST(test_log_level_below_warnings) {
    set_variable("WEIR_LOG", "error");
    set_variable("WEIR_PREALOC", "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
}
END_TEST

START_TEST(test_engines_that_weir_has_not) {
    static const struct {
        const char *variable, *value;
    } cases[] = {{"XLA_PYTHON_CLIENT_ALLOCATOR", "vmm"},
                 {"XLA_PYTHON_CLIENT_ALLOCATOR", "address"},
                 {"TF_GPU_ALLOCATOR", "cuda_malloc"},
                 {"TF_GPU_ALLOCATOR", "memory_guard"}};
    char expected[128];
    const char *text;

    for (size_t i = 0; i < COUNT(cases); i++) {
        setup();
        set_variable(cases[i].variable, cases[i].value);
        ck_assert_str_eq(warnings_of_a_reading(0), "");
        read_in = WEIR_PLACE_USER; /* where they are none of weir's */
        ck_assert_str_eq(warnings_of_a_reading(1), "");
        read_in = WEIR_PLACE_OWN;
        text = warnings_of_a_reading(1);
        snprintf(expected, sizeof expected, "weir: warning: %s '%s' is ignored", cases[i].variable,
                 cases[i].value);
        assert_contains(text, expected);
        ck_assert_str_eq(warnings_of_a_reading(1), "");
    }
}
END_TEST

/* ----------------------------------------------------------------------- main ---- */

#define LOOP(tests, test, array) tcase_add_loop_test(tests, test, 0, (int)COUNT(array))

static TCase *text_tests(void) {
    TCase *tests = tcase_create("text");

    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_loop_test(tests, test_rows_are_complete, 0, WEIR_SETTING_COUNT);
    tcase_add_test(tests, test_names_are_unique);
    tcase_add_test(tests, test_manual_names_every_variable);
    LOOP(tests, test_good_amount, good_amounts);
    LOOP(tests, test_bad_amount, bad_amounts);
    tcase_add_test(tests, test_limit_of_nothing);
    tcase_add_test(tests, test_shown_bytes);
    LOOP(tests, test_good_growth, good_growth);
    tcase_add_test(tests, test_growth_replaces_all_of_it);
    LOOP(tests, test_bad_option, bad_options);
    tcase_add_test(tests, test_long_factor_is_refused);
    tcase_add_test(tests, test_control_characters_are_not_repeated);
    tcase_add_test(tests, test_names_of_files);
    tcase_add_test(tests, test_set_refuses);
    tcase_add_test(tests, test_driver_result);
    tcase_add_test(tests, test_device_text_is_kept);
    tcase_add_test(tests, test_device_parse);
    LOOP(tests, test_round_trip, round_trips);
    tcase_add_test(tests, test_round_trip_covers_every_row);
    tcase_add_loop_test(tests, test_any_text, 0, WEIR_SETTING_COUNT);
    tcase_add_test(tests, test_engine_words);
    tcase_add_test(tests, test_earlier_names);
    tcase_add_test(tests, test_defaults_are_shown);
    tcase_add_test(tests, test_percentage_of_what_is_in_use);
    tcase_add_test(tests, test_never);
    return tests;
}

static TCase *struct_tests(void) {
    TCase *tests = tcase_create("struct");

    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_layout);
    tcase_add_test(tests, test_init);
    tcase_add_test(tests, test_newer_caller);
    tcase_add_test(tests, test_older_caller);
    tcase_add_test(tests, test_bad_size);
    tcase_add_test(tests, test_complete_fills_defaults);
    LOOP(tests, test_complete_refuses, breaks);
    tcase_add_test(tests, test_complete_accepts_a_callback);
    LOOP(tests, test_limit_below_preallocation, pairs);
    tcase_add_test(tests, test_fixed_arena_below_preallocation);
    return tests;
}

static TCase *environment_tests(void) {
    TCase *tests = tcase_create("environment");

    tcase_add_checked_fixture(tests, setup, NULL);
    LOOP(tests, test_own_variable, own_variables);
    LOOP(tests, test_what_is_set_stays, own_variables);
    tcase_add_loop_test(tests, test_bad_own_variable, 0, WEIR_SETTING_COUNT);
    tcase_add_test(tests, test_bad_variable_under_a_set_field);
    LOOP(tests, test_preallocation_by_compatibility, truth);
    LOOP(tests, test_own_variable_beats_compatibility, truth);
    LOOP(tests, test_field_beats_every_variable, truth);
    LOOP(tests, test_time_that_is_set_stays, truth);
    LOOP(tests, test_no_compatibility, truth);
    LOOP(tests, test_direct_is_not_preallocated, truth);
    tcase_add_test(tests, test_compatibility_switch);
    tcase_add_loop_test(tests, test_switches_of_parts, 0, 6);
    tcase_add_test(tests, test_words_of_preallocate);
    tcase_add_test(tests, test_fractions);
    tcase_add_test(tests, test_both_fractions);
    tcase_add_loop_test(tests, test_profile_and_compatibility, 0, 4 * (WEIR_PLACE_TELLS + 1));
    LOOP(tests, test_bad_compatibility_variable, bad_compat);
    tcase_add_test(tests, test_largest_tf_value);
    LOOP(tests, test_engine_by_compatibility, engine_truth);
    LOOP(tests, test_compatibility_in_a_users_place, place_truth);
    tcase_add_test(tests, test_mistakes_in_a_users_place);
    tcase_add_test(tests, test_what_a_framework_alone_reads);
    tcase_add_test(tests, test_arena_kind_that_is_set_stays);
    LOOP(tests, test_look_alike, look_alikes);
    tcase_add_loop_test(tests, test_own_name_like_no_other, 0, 6);
    tcase_add_test(tests, test_known_variables_draw_no_warning);
    tcase_add_test(tests, test_no_false_alarm);
    tcase_add_test(tests, test_own_warnings_survive_without_compatibility);
    tcase_add_loop_test(tests, test_told_above, 0, 5);
    tcase_add_test(tests, test_not_told);
    tcase_add_test(tests, test_more_unknown_names_than_room);
    tcase_add_test(tests, test_log_level_below_warnings);
    tcase_add_test(tests, test_engines_that_weir_has_not);
    return tests;
}

int main(void) {
    Suite *suite = suite_create("options");

    suite_add_tcase(suite, text_tests());
    suite_add_tcase(suite, struct_tests());
    suite_add_tcase(suite, environment_tests());
    return run_suite(suite, CK_FORK_GETENV);
}
