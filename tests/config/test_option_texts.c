/* SPDX-License-Identifier: MIT */
/* test_option_texts.c: every option, set from a text and shown as a text. */
#include "tests/fixtures/settings.h"

#include "base/result.h"

static const struct {
    const char *text;
    int growth;
    uint64_t step;
    double factor;
} good_growth[] = {
    {"exact", WEIR_GROWTH_EXACT, 0, 0},
    {"bfc", WEIR_GROWTH_BFC, 0, 0},
    {"BFC", WEIR_GROWTH_BFC, 0, 0},
    {"step", WEIR_GROWTH_STEP, 0, 0},
    {"step:64MiB", WEIR_GROWTH_STEP, 64 * MIB, 0},
    {"step:1B", WEIR_GROWTH_STEP, 1, 0},
    {"geometric", WEIR_GROWTH_GEOMETRIC, 0, 0},
    {"geometric:2", WEIR_GROWTH_GEOMETRIC, 0, 2},
    {"geometric:1.5:4GiB", WEIR_GROWTH_GEOMETRIC, 4 * GIB, 1.5},
    {"geometric:1.0001", WEIR_GROWTH_GEOMETRIC, 0, 1.0001},
    {"remaining", WEIR_GROWTH_REMAINING, 0, 0},
    {"remaining:0.5", WEIR_GROWTH_REMAINING, 0, 0.5},
    {"remaining:.5", WEIR_GROWTH_REMAINING, 0, 0.5},
    {"remaining:1", WEIR_GROWTH_REMAINING, 0, 1},
};

CASE("text", 60, clear_settings, NULL);

TEST_EACH(ROWS(good_growth), test_good_growth) {
    ck_assert_msg(weir_options_set(&options, "growth", good_growth[_i].text, message,
                                   sizeof message) == WEIR_OK,
                  "%s", message);
    ck_assert_int_eq(options.growth, good_growth[_i].growth);
    ck_assert_uint_eq(options.growth_step, good_growth[_i].step);
    ck_assert_double_eq(options.growth_factor, good_growth[_i].factor);
}

/* A new policy clears the argument and the callback of an earlier policy. */
TEST(test_growth_replaces_all_of_it) {
    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = no_growth;
    options.growth_context = &options;
    options.growth_step = 7;
    ck_assert_int_eq(weir_options_set(&options, "growth", "geometric:3:1GiB", NULL, 0), WEIR_OK);
    ck_assert(options.growth_function == NULL);
    ck_assert_ptr_null(options.growth_context);
    ck_assert_uint_eq(options.growth_step, GIB);
    ck_assert_int_eq(weir_options_set(&options, "growth", "step:1MiB", NULL, 0), WEIR_OK);
    ck_assert_double_eq(options.growth_factor, 0);
    ck_assert_uint_eq(options.growth_step, MIB);
    ck_assert_int_eq(weir_options_set(&options, "growth", "geometric:3", NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.growth_step, 0);
}

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
    {"engine", "", "empty", "mapped, pool, bfc, bfc-fixed or direct"},
    {"engine", "regions", "none of the words", "mapped, pool, bfc, bfc-fixed or direct"},
    {"engine", "default", "none of the words", "mapped, pool, bfc, bfc-fixed or direct"},
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
    {"grow-ahead", "10", "write 10MiB, 10GiB, or 10B", "a size (1GiB, 2%), or 0"},
    {"cache-limit", "32", "write 32MiB", "a size"},
    {"release-threshold", "1024", "write 1024MiB", "a size"},
    {"keep-free", "512", "write 512MiB", "a size"},
    {"prealloc-min", "8", "write 8MiB", "a size"},
    {"prealloc-min", "some", "", "a size"},
    {"grow-ahead", "", "empty", "a size (1GiB, 2%), or 0"},
    {"grow-ahead", "1GiB:2GiB", "write one size: growth stops when twice that", "a size (1GiB, 2%), or 0"},
    {"grow-ahead", "1GiB:", "write one size", "a size (1GiB, 2%), or 0"},
    {"grow-ahead", "max", "preallocate max", "a size (1GiB, 2%), or 0"},
    {"grow-ahead", "0.5", "", "a size (1GiB, 2%), or 0"},
    {"cache-limit", "", "empty", "a percentage of what is in use (5%)"},
    {"cache-limit", "-1", "negative", "a size (64MiB, 0)"},
    {"cache-limit", "4X", "the unit is unknown", "or max"},
    {"cache-limit", "0.05", "write 5%", "or max"},
    {"cache-limit", "101%", "it is more than 100%", "or max"},
    {"cache-limit", "5%free", "a share of what is free", "a percentage of what is in use (5%)"},
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
    {"internal-dependencies", "auto", "none of the words", "on or off"},
};

TEST_EACH(ROWS(bad_options), test_bad_option) {
    weir_options before = options;

    ck_assert_msg(weir_options_set(&options, bad_options[_i].name, bad_options[_i].text, message,
                                   sizeof message) == WEIR_E_PARSE,
                  "%s %s parses", bad_options[_i].name, bad_options[_i].text);
    assert_complains(bad_options[_i].name, bad_options[_i].text, bad_options[_i].accepts);
    assert_contains(message, bad_options[_i].reason);
    ck_assert(same_options(&before, &options));
}

TEST(test_long_factor_is_refused) {
    char text[600] = "geometric:";

    memset(text + strlen(text), '9', 400);
    ck_assert_int_eq(weir_options_set(&options, "growth", text, message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "too large");
    assert_contains(message, "999...'"); /* weir cuts a long value */
}

TEST(test_control_characters_are_not_repeated) {
    ck_assert_int_eq(weir_options_set(&options, "engine", "a\033[2Jb\n", message, sizeof message),
                     WEIR_E_PARSE);
    assert_contains(message, "'a?[2Jb?'");
}

TEST(test_names_of_files) {
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

TEST(test_set_refuses) {
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

/* The driver causes no failure here, so a failure resets the last driver result. A success leaves it unchanged. */
TEST(test_only_a_failure_resets_the_driver_result) {
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

/* The caller may free a text after the call, because weir copies the text. */
TEST(test_device_text_is_kept) {
    char text[] = "cuda:3";

    ck_assert_int_eq(weir_options_set(&options, "device", text, NULL, 0), WEIR_OK);
    memset(text, 'x', sizeof text - 1);
    ck_assert_str_eq(options.device, "cuda:3");
}

TEST(test_devices_are_read_with_their_numbers) {
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

/* An option that is set, shown and set again has an equal value and an equal text. If `shown` is NULL, weir shows the
 * text as it was typed. */
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
    {"engine", "bfc-fixed", NULL},
    {"engine", "direct", NULL},
    {"engine", "BFC", "bfc"},
    {"prealloc", "8GiB", NULL},
    {"prealloc", "1.5GiB", "1536MiB"},
    {"prealloc", "0", NULL},
    {"prealloc", "1000B", "1KB"},
    {"prealloc", "512MB", "512MB"},
    {"prealloc", "18446744073709551615", NULL},
    {"prealloc", "75%", NULL},
    {"prealloc", "0%", NULL},
    {"prealloc", "12.5%", NULL},
    {"prealloc", "0.0001%", NULL},
    {"prealloc", "33.3333%free", NULL},
    {"prealloc", "max", NULL},
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
    {"limit", "40GB", "40GB"},
    {"limit", "1048575B", NULL},
    {"limit", "1048577", NULL},
    {"release-threshold", "0", NULL},
    {"release-threshold", "50%", NULL},
    {"recovery-timeout", "0", NULL},
    {"recovery-timeout", "250", "250ms"},
    {"recovery-timeout", "2s", NULL},
    {"recovery-timeout", "3000ms", "3s"},
    {"recovery-timeout", "4294967294", "4294967294ms"},
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
    {"stream-checks", "on", NULL},
    {"stream-checks", "false", "off"},
    {"harden", "off", NULL},
    {"harden", "poison", NULL},
    {"harden", "Guard,poison,guard", "poison,guard"},
    {"harden", "zero-always,zero-stream,guard,poison", "poison,guard,zero-stream,zero-always"},
    {"prealloc-min", "0", NULL},
    {"prealloc-min", "4GiB", NULL},
    {"prealloc-min", "10%", NULL},
    {"grow-ahead", "0", NULL},
    {"grow-ahead", "1GiB", NULL},
    {"grow-ahead", "2%", NULL},
    {"grow-ahead", "75%", NULL},
    {"grow-ahead", "1%free", NULL},
    {"grow-ahead", "18446744073709551615", NULL},
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

TEST_EACH(ROWS(round_trips), test_round_trip) {
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
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) /* no other option has changed */
        ck_assert_int_eq(weir__option_is_set(&options, (enum weir_setting)i), i == (int)setting);
}

TEST(test_round_trip_covers_every_row) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        int found = 0;

        for (size_t j = 0; j < COUNT(round_trips); j++)
            found |= setting_named(round_trips[j].name) == (enum weir_setting)i;
        ck_assert_int_eq(found, 1);
    }
}

/* Sets every short text of these letters, after each beginning. weir refuses the text with a message, or shows an
 * option that sets an equal value. The text ends where its memory does. */
TEST_EACH(WEIR_SETTING_COUNT, test_any_text_is_refused_or_shown_equal) {
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
                if (setting != WEIR_SETTING_GROWTH && !same_options(&first, &second))
                    ck_abort_msg("%s is shown as %s", text, shown);
                MUST(weir__options_complete(&first, &second, message, sizeof message) == WEIR_OK);
            }
            free(text);
        }
}

/* weir shows a default as its value, not as "default". */
TEST(test_defaults_are_shown) {
    static const struct {
        enum weir_setting setting;
        const char *pool, *fixed_arena;
    } cases[] = {
        {WEIR_SETTING_DEVICE, "cuda", "cuda"},
        {WEIR_SETTING_ENGINE, "pool", "bfc-fixed"},
        {WEIR_SETTING_PREALLOC, "0", "0"},
        {WEIR_SETTING_GROWTH, "exact", "bfc"},
        {WEIR_SETTING_LIMIT, "max", "75%"},
        {WEIR_SETTING_RELEASE_THRESHOLD, "max", "max"},
        {WEIR_SETTING_RECOVERY_TIMEOUT, "1s", "1s"},
        {WEIR_SETTING_LATENCY, "off", "off"},
        {WEIR_SETTING_LOG, "none", "none"},
        {WEIR_SETTING_CACHE, "on", "on"},
        {WEIR_SETTING_CACHE_LIMIT, "2%, at first 16MiB", "2%, at first 16MiB"},
        {WEIR_SETTING_STREAM_CHECKS, "on", "on"},
        {WEIR_SETTING_HARDEN, "off", "off"},
        {WEIR_SETTING_GROW_AHEAD, "0", "0"},
        {WEIR_SETTING_PREALLOC_MIN, "0", "0"},
        {WEIR_SETTING_PROFILE, "off", "off"},
        {WEIR_SETTING_OOM_REPORT, "off", "off"},
        {WEIR_SETTING_DECAY, "off", "off"},
        {WEIR_SETTING_INTERNAL_DEPENDENCIES, "off", "off"},
        {WEIR_SETTING_REGISTRY, "on", "on"},
        {WEIR_SETTING_PRIORITY, "100", "100"},
        {WEIR_SETTING_KEEP_FREE, "0", "0"},
        {WEIR_SETTING_PEERS, "none", "none"},
    };
    char text[128];

    ck_assert_uint_eq(COUNT(cases), WEIR_SETTING_COUNT);
    for (size_t i = 0; i < COUNT(cases); i++) {
        weir__option_show(&options, cases[i].setting, text, sizeof text);
        ck_assert_str_eq(text, cases[i].pool);
    }
    options.engine = WEIR_ENGINE_BFC_FIXED;
    for (size_t i = 0; i < COUNT(cases); i++) {
        weir__option_show(&options, cases[i].setting, text, sizeof text);
        ck_assert_str_eq(text, cases[i].fixed_arena);
    }
    options.engine = WEIR_ENGINE_DIRECT;
    weir__option_show(&options, WEIR_SETTING_CACHE, text, sizeof text);
    ck_assert_str_eq(text, "off");
}

/* A percentage stands for a share of the memory in use, or of the device, as the option requires. */
TEST(test_percentage_of_what_is_in_use) {
    ck_assert_int_eq(weir_options_set(&options, "cache-limit", "5%", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.cache_limit.kind, WEIR_AMOUNT_OF_IN_USE);
    ck_assert_uint_eq(options.cache_limit.value, 50000);
    ck_assert_int_eq(weir_options_set(&options, "limit", "5%", NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.limit.kind, WEIR_AMOUNT_OF_TOTAL);
}

SUITE("option texts", CK_FORK_GETENV);
