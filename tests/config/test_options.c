/* SPDX-License-Identifier: MIT */
/* test_options.c: the table of options, amounts, and the variable of each option.
 *
 * Tables state what each variable means, so that a person can compare them with weir-settings(7). No test computes an
 * expected value as the library does. */
#include "tests/fixtures/settings.h"

#include "base/text.h"

CASE("text", 60, clear_settings, NULL);

TEST_EACH(WEIR_SETTING_COUNT, test_rows_are_complete) {
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

TEST(test_names_are_unique) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(weir__setting_row((enum weir_setting)i)->name,
                             weir__setting_row((enum weir_setting)j)->name);
}

/* The manual page is written by hand, so it could lack a variable. */
TEST(test_manual_names_every_variable) {
    const char *top = getenv("top_srcdir");
    char path[512];
    snprintf(path, sizeof path, "%s/man/weir-settings.7", top ? top : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    char *page = calloc(1, 1 << 18);
    ck_assert_ptr_nonnull(page);
    size_t length = fread(page, 1, (1 << 18) - 1, file);
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

TEST_EACH(ROWS(good_amounts), test_good_amount) {
    ck_assert_msg(weir_options_set(&options, "prealloc", good_amounts[_i].text, message,
                                   sizeof message) == WEIR_OK,
                  "%s: %s", good_amounts[_i].text, message);
    ck_assert_str_eq(message, "");
    ck_assert_int_eq(options.prealloc.kind, good_amounts[_i].kind);
    ck_assert_uint_eq(options.prealloc.value, good_amounts[_i].value);
}

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

TEST_EACH(ROWS(bad_amounts), test_bad_amount) {
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

TEST(test_a_limit_of_nothing_is_refused) {
    ck_assert_int_eq(weir_options_set(&options, "limit", "0", message, sizeof message),
                     WEIR_E_PARSE);
    assert_complains("limit", "0", "a size");
    ck_assert_int_eq(weir_options_set(&options, "limit", "0%", NULL, 0), WEIR_E_PARSE);
    ck_assert_int_eq(weir_options_set(&options, "release-threshold", "0", NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "0", NULL, 0), WEIR_OK);
}

/* The decimal point does not depend on the program's locale. */
TEST(test_bytes_are_shown_with_a_unit) {
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

CASE("environment", 60, clear_settings, NULL);

TEST_EACH(ROWS(own_variables), test_own_variable) {
    enum weir_setting setting = own_variables[_i].setting;
    struct weir_sources sources = {.of = {NULL}};

    ck_assert_uint_eq(COUNT(own_variables), WEIR_SETTING_COUNT);
    set_variable(own_variables[_i].variable, own_variables[_i].value);
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
    assert_shown(setting, own_variables[_i].value);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        ck_assert_int_eq(weir__option_is_set(&options, (enum weir_setting)i), i == (int)setting);
        if (i != (int)setting)
            ck_assert_ptr_null(sources.of[i]);
    }
    ck_assert_str_eq(sources.of[setting], own_variables[_i].variable);
}

TEST_EACH(ROWS(own_variables), test_what_is_set_stays) {
    enum weir_setting setting = own_variables[_i].setting;
    struct weir_sources sources = {.of = {NULL}};

    ck_assert_int_eq(
        weir__option_set(&options, setting, NULL, own_variables[_i].other_text, NULL, 0), WEIR_OK);
    set_variable(own_variables[_i].variable, own_variables[_i].value);
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
    assert_shown(setting, own_variables[_i].other_text);
    ck_assert_str_eq(sources.of[setting], "the program");
    sources.of[setting] = "flag --x";
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
    ck_assert_str_eq(sources.of[setting], "flag --x");
}

static int is_file_setting(int setting) {
    return setting == WEIR_SETTING_PROFILE || setting == WEIR_SETTING_OOM_REPORT;
}

TEST_EACH(WEIR_SETTING_COUNT, test_a_bad_variable_of_weir_is_refused) {
    struct weir_sources sources = {.of = {NULL}};
    const struct weir_setting_row *row = weir__setting_row((enum weir_setting)_i);
    set_variable("WEIR_ENGINE", "bfc"); /* weir must not apply this variable either */
    /* any other text names a file */
    set_variable(row->variable, is_file_setting(_i) ? "" : "4X");
    weir_options before = options;
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_E_PARSE);
    assert_complains(row->variable, is_file_setting(_i) ? "" : "4X", row->accepts);
    ck_assert(same_options(&before, &options));
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        ck_assert_ptr_null(sources.of[i]);
    set_variable(row->variable, "");
    EXPECT_READ(WEIR_E_PARSE);
    assert_complains(row->variable, "", row->accepts);
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_E_PARSE);
}

/* weir reports a bad variable even if a field that is set overrides the variable. */
TEST(test_a_bad_variable_is_refused_under_a_set_field) {
    options.prealloc = (weir_amount){GIB, WEIR_AMOUNT_BYTES};
    set_variable("WEIR_PREALLOC", "0.95");
    EXPECT_READ(WEIR_E_PARSE);
    assert_complains("WEIR_PREALLOC", "0.95", "write 95%, or a size such as 4GiB; expected");
}

SUITE("options", CK_FORK_GETENV);
