/* SPDX-License-Identifier: MIT */
/* test_option_structs.c: options as a struct, with their defaults, errors and warnings. */
#include "tests/fixtures/settings.h"

CASE("struct", 60, clear_settings, NULL);

/* The layout is part of the binary interface; these numbers never change. */
TEST(test_the_layout_is_fixed) {
    ck_assert_uint_eq(sizeof(weir_amount), 16);
    ck_assert_uint_eq(sizeof(weir_growth_state), 64);
    ck_assert_uint_eq(offsetof(weir_options, size), 0);
    ck_assert_uint_eq(offsetof(weir_options, device), 8);
}

TEST(test_init_writes_only_the_size_of_the_caller) {
    union {
        weir_options options;
        unsigned char bytes[512];
    } room;
    size_t middle = offsetof(weir_options, prealloc_min);

    memset(&room, 0xaa, sizeof room);
    ck_assert_int_eq(weir_options_init_sized(&room.options, offsetof(weir_options, oom_callback)),
                     WEIR_OK);
    ck_assert_int_eq(
        weir_options_init_sized(&room.options, offsetof(weir_options, oom_callback_data)), WEIR_OK);
    memset(&room, 0xaa, sizeof room);
    ck_assert_int_eq(weir_options_init_sized(&room.options, middle), WEIR_OK);
    ck_assert_uint_eq(room.options.size, middle);
    for (size_t i = sizeof room.options.size; i < middle; i++)
        ck_assert_uint_eq(room.bytes[i], 0);
    ck_assert_uint_eq(room.bytes[middle], 0xaa);
    ck_assert_int_eq(weir_options_init_sized(NULL, sizeof options), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, middle - 1), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, middle - 8),
                     WEIR_E_INVALID); /* half an amount */
    ck_assert_int_eq(weir_options_init_sized(&room.options, 0), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&room.options, SIZE_MAX), WEIR_E_INVALID);
    ck_assert_uint_eq(room.options.size, middle);
}

/* A caller of a later version may have unknown fields. The fields must be zero, and weir never writes them. */
TEST(test_a_newer_caller_may_have_zero_fields) {
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
    set_variable("WEIR_ENGINE", "bfc");
    ck_assert_int_eq(weir_options_from_env(&room.options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(room.options.engine, WEIR_ENGINE_BFC);
    ck_assert_uint_eq(room.options.size, sizeof room);
    ck_assert_uint_eq(room.bytes[511], 1);
    room.bytes[511] = 0;
    room.bytes[sizeof(weir_options)] = 1;
    ck_assert_int_eq(weir__options_complete(&room.options, &completed, NULL, 0), WEIR_E_INVALID);
}

/* The struct of a caller of version 1 ends before these fields, so the memory after the struct is not weir's. */
TEST(test_the_memory_after_an_older_struct_is_unchanged) {
    weir_options completed;

    options.size = offsetof(weir_options, cache);
    options.cache = 99;
    options.internal_dependencies = 99;
    EXPECT_COMPLETE(WEIR_OK);
    ck_assert_int_eq(completed.cache, WEIR_SWITCH_ON);
    set_variable("WEIR_CACHE", "off");
    ck_assert_int_eq(weir_options_from_env(&options, NULL, 0), WEIR_OK);
    ck_assert_int_eq(options.cache, 99);
    ck_assert_uint_eq(options.size, offsetof(weir_options, cache));
}

TEST(test_a_bad_size_is_refused) {
    static const size_t sizes[] = {0,
                                   1,
                                   8,
                                   offsetof(weir_options, cache) - 4,
                                   offsetof(weir_options, cache) - 1,
                                   offsetof(weir_options, cache) + 2,
                                   offsetof(weir_options, cache_limit) + 8,
                                   offsetof(weir_options, harden) + 4,
                                   sizeof(weir_options) - 1,
                                   65537,
                                   SIZE_MAX};
    weir_options completed = {.size = 77};

    for (size_t i = 0; i < COUNT(sizes); i++) {
        options.size = sizes[i];
        EXPECT_COMPLETE(WEIR_E_INVALID);
        assert_contains(message, "weir_options_init");
        EXPECT_READ(WEIR_E_INVALID);
        assert_contains(message, "weir_options_init");
    }
    ck_assert_int_eq(weir_options_from_env(NULL, message, sizeof message), WEIR_E_INVALID);
    ck_assert_uint_eq(completed.size, 77);
}

/* test_defaults_are_shown has the default of each setting, as text. */
TEST(test_complete_fills_defaults) {
    weir_options completed;

    ck_assert_int_eq(weir__options_complete(NULL, &completed, message, sizeof message), WEIR_OK);
    ck_assert_str_eq(message, "");
    ck_assert_str_eq(completed.device, "cuda");
    ck_assert_int_eq(completed.engine, WEIR_ENGINE_POOL);
    ck_assert_uint_eq(completed.decay_ms, UINT64_MAX);
    options.engine = WEIR_ENGINE_BFC;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_int_eq(completed.growth, WEIR_GROWTH_BFC);
    ck_assert_int_eq(completed.limit.kind, WEIR_AMOUNT_MAX);
    options.engine = WEIR_ENGINE_DIRECT;
    options.cache = WEIR_SWITCH_ON;
    options.growth = WEIR_GROWTH_GEOMETRIC;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert_double_eq(completed.growth_factor, 2);
    ck_assert_int_eq(completed.cache, WEIR_SWITCH_ON);
}

/* Fields with invalid values, and the beginning of the message for each. */
static const struct {
    const char *name;
    weir_options options;
} breaks[] = {
    {"engine: ", {.engine = 6}},
    {"engine: ", {.engine = -1}},
    {"prealloc: ", {.prealloc.kind = 7}},
    {"prealloc: ", {.prealloc.value = GIB}},
    {"release-threshold: ", {.release_threshold = {1000001, WEIR_AMOUNT_OF_TOTAL}}},
    {"limit: ", {.limit = {1000001, WEIR_AMOUNT_OF_FREE}}},
    {"limit: ", {.limit = {0, WEIR_AMOUNT_BYTES}}},
    {"growth: ", {.growth = 7}},
    {"growth: ", {.growth = WEIR_GROWTH_CALLBACK}},
    {"growth: ", {.growth = WEIR_GROWTH_EXACT, .growth_function = no_growth}},
    {"growth: ", {.growth_function = no_growth}},
    {"oom_callback_data: ", {.oom_callback_data = &options}},
    {"growth: ", {.growth = WEIR_GROWTH_GEOMETRIC, .growth_factor = 1}},
    {"growth: ", {.growth = WEIR_GROWTH_GEOMETRIC, .growth_factor = __builtin_nan("")}},
    {"growth: ", {.growth = WEIR_GROWTH_GEOMETRIC, .growth_factor = __builtin_inf()}},
    {"growth: ", {.growth = WEIR_GROWTH_REMAINING, .growth_factor = 1.5}},
    {"growth: ", {.growth = WEIR_GROWTH_REMAINING, .growth_factor = -0.5}},
    {"latency: ", {.latency = 3}},
    {"log: ", {.log = 6}},
    {"device: ", {.device = "tpu"}},
    {"prealloc: it is a share of what is in use", {.prealloc = {50000, WEIR_AMOUNT_OF_IN_USE}}},
    {"cache: ", {.cache = 3}},
    {"cache-limit: it is a share of the device", {.cache_limit = {50000, WEIR_AMOUNT_OF_TOTAL}}},
    {"cache-limit: it is a share of what is free",
     {.cache_limit = {50000, WEIR_AMOUNT_OF_FREE}}},
    {"cache-limit: it is more than 100%", {.cache_limit = {1000001, WEIR_AMOUNT_OF_IN_USE}}},
    {"stream-checks: ", {.stream_checks = -1}},
    {"harden: there is no bit 0x20", {.harden = 32}},
    {"harden: off goes with none", {.harden = WEIR_HARDEN_OFF | WEIR_HARDEN_GUARD}},
    {"decay: it is too long", {.decay_ms = UINT32_MAX}},
    {"internal-dependencies: ", {.internal_dependencies = 3}},
    {"grow-ahead: there is no room beyond max", {.grow_ahead = {0, WEIR_AMOUNT_MAX}}},
};

TEST_EACH(ROWS(breaks), test_complete_refuses) {
    weir_options completed = {.size = 77};

    options = breaks[_i].options;
    options.size = sizeof options;
    EXPECT_COMPLETE(WEIR_E_INVALID);
    ck_assert_msg(strncmp(message, breaks[_i].name, strlen(breaks[_i].name)) == 0, "\"%s\"",
                  message);
    assert_contains(message, "; expected ");
    ck_assert_uint_eq(completed.size, 77);
}

TEST(test_complete_accepts_a_callback) {
    weir_options completed;

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = no_growth;
    options.growth_context = &options;
    ck_assert_int_eq(weir__options_complete(&options, &completed, NULL, 0), WEIR_OK);
    ck_assert(completed.growth_function == no_growth);
    ck_assert_ptr_eq(completed.growth_context, &options);
}

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

TEST_EACH(ROWS(pairs), test_limit_below_preallocation) {
    weir_options completed;
    char quoted[64];

    ck_assert_int_eq(weir_options_set(&options, "prealloc", pairs[_i].prealloc, NULL, 0), WEIR_OK);
    ck_assert_int_eq(weir_options_set(&options, "limit", pairs[_i].limit, NULL, 0), WEIR_OK);
    EXPECT_COMPLETE(pairs[_i].ok ? WEIR_OK : WEIR_E_LIMIT);
    if (pairs[_i].ok)
        return;
    snprintf(quoted, sizeof quoted, "prealloc '%s'", pairs[_i].prealloc);
    assert_contains(message, quoted);
    snprintf(quoted, sizeof quoted, "limit '%s'", pairs[_i].limit);
    assert_contains(message, quoted);
    assert_contains(message, "; expected ");
}

/* The default limit of engine bfc-fixed counts, too. */
TEST(test_a_fixed_arena_below_its_preallocation_is_refused) {
    weir_options completed;

    options.engine = WEIR_ENGINE_BFC_FIXED;
    options.prealloc = (weir_amount){800000, WEIR_AMOUNT_OF_TOTAL};
    EXPECT_COMPLETE(WEIR_E_LIMIT);
    assert_contains(message, "limit '75%'");
}

static enum weir_place read_in = WEIR_PLACE_OWN;

/* Reads the environment once more. Returns the text that the reading writes to standard error. */
static const char *warnings_of_a_reading(int warn) {
    static char text[4096];
    int ends[2], saved = dup(STDERR_FILENO);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    EXPECT_READ_AT(NULL, read_in, warn, WEIR_OK);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t length = read(ends[0], text, sizeof text - 1);
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
    {"WEIR_GROWHT", "WEIR_GROWTH"},
    {"WEIR_Limit", "WEIR_LIMIT"},
    {"WEIR_RELEASE_TRESHOLD", "WEIR_RELEASE_THRESHOLD"},
    {"WEIR_CACHE_LIMITS", "WEIR_CACHE_LIMIT"},
    {"WEIR_COMPATIBILITY", "WEIR_COMPAT"},
    {"WEIR_MODEL_DEVICE", "WEIR_MODEL_DEVICES"},
    {"WEIR_MODEL_PROFIL", "WEIR_MODEL_PROFILE"},
    {"WEIR_MODEL_SHARED_FILE", "WEIR_MODEL_SHARED"},
    {"WEIR_RUN_STAT", "WEIR_RUN_STATS"},
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

CASE("environment", 60, clear_settings, NULL);

TEST_EACH(ROWS(look_alikes), test_look_alike) {
    const char *unknown = look_alikes[_i].unknown;
    set_variable(unknown, "1");
    ck_assert_str_eq(warnings_of_a_reading(0), ""); /* no warning, and none used up */
    const char *text = warnings_of_a_reading(1);
    ck_assert_msg(strncmp(text, "weir: warning: ", 15) == 0, "\"%s\"", text);
    assert_contains(text, unknown);
    assert_contains(text + 15 + strlen(unknown), look_alikes[_i].like);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    ck_assert_str_eq(warnings_of_a_reading(1), "");                /* once per process */
}

/* Some names differ from known names in most letters, and some contain a known name as a small part. */
TEST_EACH(6, test_own_name_like_no_other) {
    static const char *const names[] = {"WEIR_RESERVE", "WEIR_BACKGROUND_THREADS",
                                        "WEIR_TOP",     "WEIR_X",
                                        "WEIR_",        "WEIR_LOGARITHMIC"};
    set_variable(names[_i], "1");
    const char *text = warnings_of_a_reading(1);
    assert_contains(text, names[_i]);
    assert_contains(text, "weir-settings(7)");
    ck_assert_ptr_eq(strstr(text + strlen("weir: warning: ") + strlen(names[_i]), "WEIR_"), NULL);
}

/* Some of weir's names are the beginning of other ones. */
TEST(test_known_variables_draw_no_warning) {
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

TEST(test_known_variables_cause_no_warning) {
    char names[] =
        "WEIR_COMPAT WEIR_MODEL_PROFILE WEIR_MODEL_DEVICES WEIR_MODEL_SHARED "
        "WEIR_RECORD_FOLDER WEIR_RECORD_RANGES WEIR_RECORD_CALLERS "
        "WEIR_RECORD_SYNCS WEIR_RUN_FIRST WEIR_RUN_FOLDER "
        "WEIR_RUN_JSON WEIR_RUN_PREALLOC_OF WEIR_RUN_SAMPLES "
        "WEIR_RUN_SERVE_MALLOC WEIR_RUN_STATS WEIR_RUN_TOLD WEIR_RUN_TRACE "
        "WEIR_RUN_VERBOSE WEIR_TEST_DEVICE WEIRD TF_GPU_THREAD_MODE TF_CPU_ALLOCATOR_USE_BFC "
        "TF_FORCE_UNIFIED_MEMORY XLA_FLAGS XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB "
        "XLA_PYTHON_CLIENT TF_GPU PATH_LIKE X";
    char *rest = names;

    for (const char *name; (name = strtok_r(rest, " ", &rest));)
        set_variable(name, "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
}

TEST(test_own_warnings_survive_without_compatibility) {
    set_variable("WEIR_COMPAT", "0");
    set_variable("TF_GPU_ALOCATOR", "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
    set_variable("WEIR_PREALOC", "1");
    assert_contains(warnings_of_a_reading(1), "WEIR_PREALOC");
}

/* `weir run' passes on the names that it has reported, so that no program below it reports them again. */
TEST_EACH(5, test_names_reported_above_are_not_reported_again) {
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
    for (int i = 0; i < 2; i++) { /* a nested run passes the names on */
        EXPECT_READ_AT(&sources, read_in, 1, WEIR_OK);
        ck_assert_str_eq(sources.unknown, cases[_i].name);
    }
}

/* A name that the log level hides counts as reported only if an outer run has reported it. */
TEST(test_hidden_names_do_not_count_as_reported) {
    struct weir_sources sources = {.of = {NULL}};

    set_variable("WEIR_LOG", "error");
    set_variable("WEIR_LIMT", "1");
    EXPECT_READ_AT(&sources, read_in, 1, WEIR_OK);
    ck_assert_str_eq(sources.unknown, "");
    set_variable("WEIR_RUN_TOLD", "WEIR_LIMT");
    EXPECT_READ_AT(&sources, read_in, 1, WEIR_OK);
    ck_assert_str_eq(sources.unknown, "WEIR_LIMT");
}

/* Names without room in the list are reported again below, but no name is cut. */
TEST(test_more_unknown_names_than_room) {
    struct weir_sources sources = {.of = {NULL}};
    char name[64], *rest = sources.unknown;
    int count = 0;

    for (int i = 10; i < 50; i++) {
        snprintf(name, sizeof name, "WEIR_NOBODY_READS_THIS_%d", i);
        set_variable(name, "1");
    }
    EXPECT_READ_AT(&sources, read_in, 1, WEIR_OK);
    for (const char *one = strtok_r(rest, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        ck_assert_uint_eq(strlen(one), strlen(name));
        count++;
    }
    ck_assert_int_eq(count, (int)(sizeof sources.unknown / (strlen(name) + 1)));
}

TEST(test_no_warning_is_made_below_the_log_level) {
    set_variable("WEIR_LOG", "error");
    set_variable("WEIR_PREALOC", "1");
    ck_assert_str_eq(warnings_of_a_reading(1), "");
}

TEST(test_unknown_engines_of_frameworks_draw_a_warning) {
    static const struct {
        const char *variable, *value;
    } cases[] = {{"XLA_PYTHON_CLIENT_ALLOCATOR", "vmm"},
                 {"XLA_PYTHON_CLIENT_ALLOCATOR", "address"},
                 {"TF_GPU_ALLOCATOR", "cuda_malloc"},
                 {"TF_GPU_ALLOCATOR", "memory_guard"}};
    char expected[128];
    const char *text;

    for (size_t i = 0; i < COUNT(cases); i++) {
        clear_settings();
        set_variable(cases[i].variable, cases[i].value);
        ck_assert_str_eq(warnings_of_a_reading(0), "");
        read_in = WEIR_PLACE_UNMODIFIED; /* weir does not own these variables here */
        ck_assert_str_eq(warnings_of_a_reading(1), "");
        read_in = WEIR_PLACE_OWN;
        text = warnings_of_a_reading(1);
        snprintf(expected, sizeof expected, "weir: warning: %s '%s' is ignored", cases[i].variable,
                 cases[i].value);
        assert_contains(text, expected);
        ck_assert_str_eq(warnings_of_a_reading(1), "");
    }
}

SUITE("option structs", CK_FORK_GETENV);
