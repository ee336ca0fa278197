/* SPDX-License-Identifier: MIT */
/* test_compatibility.c: the variables of TensorFlow and XLA, as tables to compare with weir-settings(7). */
#include "tests/fixtures/settings.h"

#define NONE "none" /* no variable requests a preallocation */

/* The columns are n: TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC, p: XLA_PYTHON_CLIENT_PREALLOCATE, and f:
 * XLA_PYTHON_CLIENT_MEM_FRACTION. The source is 'n', 'p' or 'f'. */
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
    {"10", NULL, NULL, "10B", 'n'}, /* the variable counts bytes, however few */
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

CASE("environment", 60, clear_settings, NULL);

TEST_EACH(ROWS(truth), test_preallocation_by_compatibility) {
    struct weir_sources sources = {.of = {NULL}};
    int some = strcmp(truth[_i].prealloc, "0") != 0;
    weir_options completed;
    weir_amount plain;

    set_row(_i);
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
    if (strcmp(truth[_i].prealloc, NONE) == 0) {
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
        ck_assert_ptr_null(sources.of[WEIR_SETTING_PREALLOC]);
        return;
    }
    assert_shown(WEIR_SETTING_PREALLOC, truth[_i].prealloc);
    ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], source_name(truth[_i].source));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_ENGINE));
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_LIMIT));
    ck_assert_str_eq(weir__framework_prealloc(&options), source_name(truth[_i].source));
    plain = (weir_amount){options.prealloc.value, options.prealloc.kind & WEIR_AMOUNT_KIND};
    options.prealloc_min = plain;
    options.prealloc_min.value += 2;
    EXPECT_COMPLETE(WEIR_E_INVALID);
    assert_contains(message, source_name(truth[_i].source));
    options.prealloc_min = (weir_amount){0};
    if (!some)
        return;
    options.limit = plain;
    options.limit.value /= 2;
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message), WEIR_OK);
    options.prealloc = plain; /* an amount of the program */
    ck_assert_int_eq(weir__options_complete(&options, &options, message, sizeof message),
                     WEIR_E_LIMIT);
}

TEST_EACH(ROWS(truth), test_own_variable_beats_compatibility) {
    struct weir_sources sources = {.of = {NULL}};

    set_row(_i);
    set_variable("WEIR_PREALLOC", "3GiB");
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "3GiB");
    ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], "WEIR_PREALLOC");
}

TEST_EACH(ROWS(truth), test_field_beats_every_variable) {
    set_row(_i);
    set_variable("WEIR_PREALLOC", "3GiB");
    ck_assert_int_eq(weir_options_set(&options, "prealloc", "0", NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "0");
}

TEST_EACH(ROWS(truth), test_no_compatibility) {
    static const char *const words[] = {"0", "off", "false", "no", "OFF"};

    set_row(_i);
    set_variable("TF_GPU_ALLOCATOR", "nonsense"); /* weir does not read this variable */
    for (size_t i = 0; i < COUNT(words); i++) {
        set_variable("WEIR_COMPAT", words[i]);
        EXPECT_READ(WEIR_OK);
        for (int j = 0; j < WEIR_SETTING_COUNT; j++)
            ck_assert(!weir__option_is_set(&options, (enum weir_setting)j));
    }
}

TEST(test_variables_of_others_are_read_only_if_switched_on) {
    static const char *const words[] = {"1", "on", "true", "yes"};
    static const char *const bad[] = {"", "2", "maybe", "0 ", "-1"};

    set_variable("TF_GPU_ALLOCATOR", "cuda_malloc_async");
    for (size_t i = 0; i < COUNT(words); i++) {
        clear_settings();
        set_variable("TF_GPU_ALLOCATOR", "cuda_malloc_async");
        set_variable("WEIR_COMPAT", words[i]);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
        ck_assert_int_eq(options.engine, WEIR_ENGINE_POOL);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        set_variable("WEIR_COMPAT", bad[i]);
        EXPECT_READ(WEIR_E_PARSE);
        assert_complains("WEIR_COMPAT", bad[i], "0 or 1");
    }
}

TEST_EACH(4, test_switches_of_parts) {
    static const char *const names[] = {"WEIR_RUN_SAMPLES",
                                        "WEIR_RUN_SERVE_MALLOC", "WEIR_RUN_STATS",
                                        "WEIR_RUN_VERBOSE"};
    static const char *const good[] = {"0", "off", "False", "no", "1", "ON", "true", "yes", ""};
    static const char *const bad[] = {"2", "maybe", "0 "};

    for (size_t i = 0; i < COUNT(good); i++) {
        set_variable(names[_i], good[i]);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        set_variable(names[_i], bad[i]);
        EXPECT_READ(WEIR_E_PARSE);
        assert_complains(names[_i], bad[i], "0 or 1");
    }
    unsetenv(names[_i]);
}

/* The direct engine has no reserved memory; JAX ignores the fraction there too. */
TEST_EACH(ROWS(truth), test_direct_is_not_preallocated) {
    set_row(_i);
    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", "platform");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.engine, WEIR_ENGINE_DIRECT);
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
}

/* Only false, False and 0 mean false. FALSE means true, and an empty variable is not set, as in JAX. */
TEST(test_only_three_words_mean_no_preallocation) {
    static const struct {
        const char *value, *prealloc;
    } cases[] = {{"false", "0"}, {"False", "0"}, {"0", "0"},       {"FALSE", "75%"},
                 {"no", "75%"},  {"off", "75%"}, {"true", "75%"},  {"True", "75%"},
                 {"1", "75%"},   {"", NULL},     {" false", "75%"}};

    for (size_t i = 0; i < COUNT(cases); i++) {
        clear_settings();
        set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", cases[i].value);
        ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
        ck_assert_int_eq(weir__option_is_set(&options, WEIR_SETTING_PREALLOC),
                         cases[i].prealloc != NULL);
        if (cases[i].prealloc)
            assert_shown(WEIR_SETTING_PREALLOC, cases[i].prealloc);
    }
}

TEST(test_fractions_are_read_in_millionths) {
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

            clear_settings();
            set_variable(names[n], cases[i].value);
            EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 1, WEIR_OK);
            ck_assert_uint_eq(options.prealloc.value, cases[i].millionths);
            if (cases[i].millionths == 0)
                continue;
            ck_assert_int_eq(options.prealloc.kind & WEIR_AMOUNT_KIND, WEIR_AMOUNT_OF_TOTAL);
            ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], names[n]);
        }
}

TEST(test_both_fractions_at_once_are_refused) {
    set_variable("XLA_CLIENT_MEM_FRACTION", ".5");
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", ".75");
    EXPECT_READ(WEIR_E_PARSE);
    assert_contains(message, "XLA_CLIENT_MEM_FRACTION '.5'");
    assert_contains(message, "XLA_PYTHON_CLIENT_MEM_FRACTION '.75'");
    assert_contains(message, "expected one of them");
    set_variable("XLA_CLIENT_MEM_FRACTION", ""); /* not set, as in JAX */
    EXPECT_READ(WEIR_OK);
    assert_shown(WEIR_SETTING_PREALLOC, "75%");
}

/* A framework's preallocation replaces that of a profile. A framework that preallocates nothing leaves the profile in
 * effect. */
TEST_EACH(4 * (WEIR_PLACE_RUN + 1), test_profile_and_compatibility) {
    int place = _i / 4;
    int none = _i % 4 < 2;

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", place == WEIR_PLACE_OWN ? NULL : "cuda_async");
    if (_i % 2 == 0)
        set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", none ? "false" : "true");
    else
        set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", none ? "0" : "-1");
    set_variable("WEIR_PROFILE", "runs");
    EXPECT_READ_AT(NULL, place, 0, WEIR_OK);
    ck_assert_int_eq(weir__option_is_set(&options, WEIR_SETTING_PREALLOC), !none);
    clear_settings();
    set_variable("WEIR_PROFILE", "off");
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", "false");
    EXPECT_READ_AT(NULL, WEIR_PLACE_RUN, 0, WEIR_OK);
    ck_assert(weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
}

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

TEST_EACH(ROWS(bad_compat), test_bad_compatibility_variable) {
    weir_options before = options;

    set_variable(bad_compat[_i].variable, bad_compat[_i].value);
    EXPECT_READ(WEIR_E_PARSE);
    assert_complains(bad_compat[_i].variable, bad_compat[_i].value, bad_compat[_i].accepts);
    assert_contains(message, bad_compat[_i].reason);
    assert_contains(message, "WEIR_COMPAT=0");
    ck_assert(same_options(&before, &options));
    set_variable("WEIR_COMPAT", "0");
    EXPECT_READ(WEIR_OK);
}

TEST(test_the_largest_tf_value_is_accepted) {
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "9223372036854775807");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_uint_eq(options.prealloc.value, INT64_MAX);
    ck_assert_int_eq(options.prealloc.kind & WEIR_AMOUNT_KIND, WEIR_AMOUNT_BYTES);
}

/* The columns are x: XLA_PYTHON_CLIENT_ALLOCATOR, t: TF_GPU_ALLOCATOR, and g: TF_FORCE_GPU_ALLOW_GROWTH. */
static const struct {
    const char *x, *t, *g;
    int engine;
    char source;
} engine_truth[] = {
    {NULL, NULL, NULL, WEIR_ENGINE_DEFAULT, 0},
    {NULL, NULL, "true", WEIR_ENGINE_BFC, 'g'},
    {NULL, NULL, "1", WEIR_ENGINE_BFC, 'g'},
    {NULL, NULL, "false", WEIR_ENGINE_DEFAULT, 0},
    {NULL, NULL, "0", WEIR_ENGINE_DEFAULT, 0},
    {NULL, "cuda_malloc_async", NULL, WEIR_ENGINE_POOL, 't'},
    {NULL, "cuda_malloc_async", "true", WEIR_ENGINE_POOL, 't'},
    {NULL, "CUDA_MALLOC_ASYNC", NULL, WEIR_ENGINE_POOL, 't'},
    {NULL, "cuda_malloc", NULL, WEIR_ENGINE_DEFAULT, 0},
    {NULL, "memory_guard", "true", WEIR_ENGINE_BFC, 'g'},
    {"platform", NULL, NULL, WEIR_ENGINE_DIRECT, 'x'},
    {"PLATFORM", NULL, NULL, WEIR_ENGINE_DIRECT, 'x'},
    {"default", NULL, NULL, WEIR_ENGINE_BFC, 'x'},
    {"bfc", NULL, NULL, WEIR_ENGINE_BFC, 'x'},
    {"cuda_async", NULL, NULL, WEIR_ENGINE_POOL, 'x'},
    {"bfc", "cuda_malloc_async", "true", WEIR_ENGINE_BFC, 'x'},
    {"cuda_async", NULL, "true", WEIR_ENGINE_POOL, 'x'},
    {"platform", "cuda_malloc_async", NULL, WEIR_ENGINE_DIRECT, 'x'},
    {"vmm", NULL, NULL, WEIR_ENGINE_DEFAULT, 0},
    {"address", NULL, NULL, WEIR_ENGINE_DEFAULT, 0},
    {"vmm", "cuda_malloc_async", NULL, WEIR_ENGINE_POOL, 't'},
};

TEST_EACH(ROWS(engine_truth), test_engine_by_compatibility) {
    struct weir_sources sources = {.of = {NULL}};
    const char *name = engine_truth[_i].source == 'x'   ? "XLA_PYTHON_CLIENT_ALLOCATOR"
                       : engine_truth[_i].source == 't' ? "TF_GPU_ALLOCATOR"
                                                        : "TF_FORCE_GPU_ALLOW_GROWTH";

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", engine_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", engine_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", engine_truth[_i].g);
    EXPECT_READ_AT(&sources, WEIR_PLACE_OWN, 0, WEIR_OK);
    ck_assert_int_eq(options.engine, engine_truth[_i].engine);
    if (engine_truth[_i].source)
        ck_assert_str_eq(sources.of[WEIR_SETTING_ENGINE], name);
    else
        ck_assert_ptr_null(sources.of[WEIR_SETTING_ENGINE]);
    clear_settings();
    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", engine_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", engine_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", engine_truth[_i].g);
    set_variable("WEIR_ENGINE", "direct");
    EXPECT_READ_AT(NULL, WEIR_PLACE_OWN, 0, WEIR_OK);
    ck_assert_int_eq(options.engine, WEIR_ENGINE_DIRECT);
}

#define TELLS WEIR_PLACE_RUN
#define USER WEIR_PLACE_UNMODIFIED

/* The columns x to f are those of the tables above. Each row states the preallocation and its source. No row sets the
 * engine. */
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
    {TELLS, "bfc", NULL, NULL, "1048576", "true", ".5", "1MiB", 'n'}, /* TensorFlow's applies */
    {TELLS, "default", NULL, NULL, "-1", NULL, ".5", "75%", 'n'},     /* a fraction is JAX's */
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

TEST_EACH(ROWS(place_truth), test_compatibility_in_a_users_place) {
    struct weir_sources sources = {.of = {NULL}};

    set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", place_truth[_i].x);
    set_variable("TF_GPU_ALLOCATOR", place_truth[_i].t);
    set_variable("TF_FORCE_GPU_ALLOW_GROWTH", place_truth[_i].g);
    set_variable("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", place_truth[_i].n);
    set_variable("XLA_PYTHON_CLIENT_PREALLOCATE", place_truth[_i].p);
    set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", place_truth[_i].f);
    EXPECT_READ_AT(&sources, place_truth[_i].place, 0, WEIR_OK);
    ck_assert(!weir__option_is_set(&options, WEIR_SETTING_ENGINE));
    if (place_truth[_i].source) {
        assert_shown(WEIR_SETTING_PREALLOC, place_truth[_i].prealloc);
        ck_assert_str_eq(sources.of[WEIR_SETTING_PREALLOC], source_name(place_truth[_i].source));
    } else {
        ck_assert(!weir__option_is_set(&options, WEIR_SETTING_PREALLOC));
    }
}

TEST(test_mistakes_are_refused_in_a_users_place) {
    for (int place = USER; place <= TELLS; place++) {
        set_variable("TF_GPU_ALLOCATOR", "async");
        EXPECT_READ_AT(NULL, place, 0, WEIR_E_PARSE);
        assert_complains("TF_GPU_ALLOCATOR", "async", "cuda_malloc_async");
        set_variable("TF_GPU_ALLOCATOR", "CUDA_MALLOC_ASYNC"); /* TensorFlow distinguishes case */
        EXPECT_READ_AT(NULL, place, 0, WEIR_E_PARSE);
        assert_complains("TF_GPU_ALLOCATOR", "CUDA_MALLOC_ASYNC", "cuda_malloc_async");
    }
}

/* weir checks a variable only if weir preallocates by it. Otherwise, the framework checks the variable. */
TEST(test_variables_that_weir_does_not_use_are_not_checked) {
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
        clear_settings();
        set_variable("XLA_PYTHON_CLIENT_ALLOCATOR", cases[i].x);
        set_variable("TF_GPU_ALLOCATOR", cases[i].t);
        set_variable(cases[i].variable, cases[i].value);
        EXPECT_READ_AT(NULL, cases[i].place, 0, cases[i].is_good ? WEIR_OK : WEIR_E_PARSE);
    }
}

SUITE("compatibility", CK_FORK_GETENV);
