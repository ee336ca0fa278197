/* SPDX-License-Identifier: MIT */
/* environment.c: reads options from environment variables.
 *
 * weir reads its own variables, one for each row of the option table, and then, unless WEIR_COMPAT=0, the variables of
 * TensorFlow, XLA and JAX.  The first row of this table that matches is the preallocation that those programs request.
 *     TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=N    N bytes, none for N = 0
 *                                           =-1    a fraction of the device
 *     XLA_PYTHON_CLIENT_PREALLOCATE=false          none
 *                                  =anything else  a fraction of the device
 *     XLA_CLIENT_MEM_FRACTION=F or XLA_PYTHON_CLIENT_MEM_FRACTION=F   the fraction F of the device
 * The last row also sets the fraction for the rows above, which is otherwise 75%.  "none" concerns only the framework's
 * own preallocation: a profile of earlier runs is still preallocated.  Engine direct reserves no memory and ignores the
 * table.  enum weir_place (settings.h) says in which programs a row has no effect.
 *
 * weir replaces the caller's options only if all variables are valid.  At the end, it warns about variables whose names
 * are similar to known names, once in each process and each `weir run`. */
#include "config/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/log.h"
#include "base/result.h"
#include "base/text.h"
#include "base/variable.h"

#define TF_PREALLOC "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
#define TF_ALLOCATOR "TF_GPU_ALLOCATOR"
#define TF_GROWTH "TF_FORCE_GPU_ALLOW_GROWTH"
#define XLA_PREALLOCATE "XLA_PYTHON_CLIENT_PREALLOCATE"
#define XLA_FRACTION "XLA_CLIENT_MEM_FRACTION"
#define XLA_OLD_FRACTION "XLA_PYTHON_CLIENT_MEM_FRACTION"
#define XLA_ALLOCATOR "XLA_PYTHON_CLIENT_ALLOCATOR"
#define COMPAT "WEIR_COMPAT"

#define DEFAULT_FRACTION 750000 /* the default of JAX and XLA, in millionths */

static const char *const compat_names[] = {TF_PREALLOC,     TF_ALLOCATOR, TF_GROWTH,
                                           XLA_PREALLOCATE, XLA_FRACTION, XLA_OLD_FRACTION,
                                           XLA_ALLOCATOR};
#define COMPAT_NAMES (sizeof compat_names / sizeof compat_names[0])

/* The upper bits of prealloc.kind store which variable in compat_names set the preallocation (index + 1), or 0. */
enum { VARIABLE_SHIFT = 8 };
_Static_assert(WEIR_AMOUNT_KIND == (1 << VARIABLE_SHIFT) - 1, "both parts of the kind are apart");

const char *weir__framework_prealloc(const weir_options *options) {
    unsigned number = (unsigned)options->prealloc.kind >> VARIABLE_SHIFT;

    return number > 0 && number <= COMPAT_NAMES ? compat_names[number - 1] : NULL;
}

/* Records which framework's variable has set the preallocation.  `variable` may be NULL. */
static void set_prealloc_variable(weir_options *options, const char *variable) {
    for (size_t i = 0; variable && i < COMPAT_NAMES; i++)
        if (strcmp(compat_names[i], variable) == 0)
            options->prealloc.kind |= (int)(i + 1) << VARIABLE_SHIFT;
}

/* Variables that are not in the option table, because the device model or a preloaded library reads them.
 * tests/tree/check-variables compares this list with the sources. */
static const struct {
    const char *name;
    /* Set if the variable must be on or off.  The preload library uses the variable, but this file checks its value. */
    int is_switch;
} part_names[] = {
    {"WEIR_GROUP", 0},         {"WEIR_GROUP_DIR", 0},        {"WEIR_GROUP_LIMIT", 0},
    {"WEIR_GROUP_SHARE", 0},   {"WEIR_MODEL_PROFILE", 0},    {"WEIR_MODEL_DEVICES", 0},
    {"WEIR_MODEL_SHARED", 0},  {"WEIR_RECORD_FOLDER", 0},    {"WEIR_RECORD_CALLERS", 0},
    {"WEIR_RECORD_RANGES", 0}, {"WEIR_RECORD_SYNCS", 0},     {"WEIR_RUN_FIRST", 0},
    {"WEIR_RUN_FOLDER", 0},    {"WEIR_RUN_JSON", 0},         {"WEIR_RUN_PREALLOC_OF", 0},
    {"WEIR_RUN_SAMPLES", 1},   {"WEIR_RUN_SERVE_MALLOC", 1}, {"WEIR_RUN_STATS", 1},
    {"WEIR_RUN_TOLD", 0},      {"WEIR_RUN_TORCH", 1},        {"WEIR_RUN_TRACE", 0},
    {"WEIR_RUN_VERBOSE", 1}};
#define PART_NAMES (sizeof part_names / sizeof part_names[0])

enum { OWN_START = 5 /* the length of "WEIR_" */ };

/* The prefix of variables that only tests use, about which weir never warns. */
#define TEST_PREFIX "WEIR_TEST_"

struct reading {
    weir_options options;
    struct weir_sources sources;
    enum weir_place place;
    int warn;
    struct weir_message message;
};

static weir_status refuse_value(const struct reading *reading, const char *variable,
                                const char *value, const char *problem, const char *expected) {
    char quoted[80];

    weir__quote(value, quoted, sizeof quoted);
    return weir__refuse(WEIR_E_PARSE, &reading->message, "%s %s: %s; expected %s%s", variable,
                        quoted, problem, expected,
                        strncmp(variable, "WEIR_", OWN_START) == 0
                            ? ""
                            : " (weir leaves it alone under WEIR_COMPAT=0)");
}

/* Returns 1 if this process shall log the warning now, else 0. */
static int first_warning(const struct reading *reading, const char *text) {
    int is_new = 0;

    return reading->warn && (weir__text_intern(text, &is_new) == NULL || is_new);
}

static int warning_threshold(const struct reading *reading) {
    return reading->options.log == WEIR_LOG_DEFAULT ? WEIR_LOG_WARNING : reading->options.log;
}

/* ------------------------------------------------------------ own variables ---- */

static weir_status read_variable(struct reading *reading, enum weir_setting setting) {
    const char *variable = weir__setting_row(setting)->variable;
    const char *value = weir__variable(variable);
    weir_options with_it = reading->options;
    weir_status status;

    if (!value)
        return WEIR_OK;
    status = weir__option_set(&with_it, setting, variable, value, reading->message.text,
                              reading->message.bytes);
    if (status != WEIR_OK || weir__option_is_set(&reading->options, setting))
        return status;
    reading->options = with_it;
    reading->sources.of[setting] = variable;
    /* If a variable of a framework made `weir run` set WEIR_PREALLOC, WEIR_RUN_PREALLOC_OF has the variable's name. */
    if (setting == WEIR_SETTING_PREALLOC)
        set_prealloc_variable(&reading->options, weir__variable("WEIR_RUN_PREALLOC_OF"));
    return WEIR_OK;
}

/* Reads a variable that is on or off.  If the variable is not set, does not change *on. */
static weir_status read_switch(struct reading *reading, const char *variable, int *on) {
    const char *value = weir__variable(variable);
    struct weir_problem problem;

    if (!value || weir__switch_read(value, on, &problem))
        return WEIR_OK;
    return refuse_value(reading, variable, value, problem.text, "0 or 1");
}

static weir_status read_part_switches(struct reading *reading) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; i < PART_NAMES && status == WEIR_OK; i++) {
        const char *value = part_names[i].is_switch ? weir__variable(part_names[i].name) : NULL;
        int on;

        if (value && *value) /* an empty variable has no effect */
            status = read_switch(reading, part_names[i].name, &on);
    }
    return status;
}

/* ------------------------------------------------ variables of other programs ---- */

enum { NOT_SET, NO, YES };

/* The variables of TensorFlow, XLA and JAX that weir reads. */
struct compat {
    /* TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC: NOT_SET, YES (a fraction of the device) or NO (`bytes` bytes). */
    int tf_prealloc;
    uint64_t bytes;
    int preallocate; /* XLA_PYTHON_CLIENT_PREALLOCATE: NOT_SET, NO or YES */
    /* The fraction of the device to preallocate, in millionths, or 0 if no variable sets one. */
    uint64_t fraction;
    const char *fraction_name;
    int engine; /* the engine that the variable engine_name selects */
    const char *engine_name;
    /* Set if the variables make JAX or TensorFlow use CUDA's memory pools. */
    int jax_asks_pools, tf_asks_pools;
};

/* Reads TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC, a decimal int64.  TensorFlow itself aborts on any other text. */
static weir_status read_tf_prealloc(struct reading *reading, struct compat *compat) {
    const char *value = getenv(TF_PREALLOC);
    struct weir_problem problem;

    if (!value)
        return WEIR_OK;
    if (strcmp(value, "-1") == 0) {
        compat->tf_prealloc = YES;
        return WEIR_OK;
    }
    if (!weir__count_read(value, INT64_MAX, &compat->bytes, &problem))
        return refuse_value(reading, TF_PREALLOC, value, problem.text,
                            "a whole number of bytes, -1 (as much as the default allocator would "
                            "preallocate) or 0 (none); WEIR_PREALLOC takes 4GiB or 75% as well");
    compat->tf_prealloc = NO;
    return WEIR_OK;
}

/* Reads XLA_PYTHON_CLIENT_PREALLOCATE like JAX: `false_words` mean no preallocation, an empty value means not set. */
static void read_preallocate(struct compat *compat) {
    static const char *const false_words[] = {"false", "False", "0"};
    const char *value = getenv(XLA_PREALLOCATE);

    if (!value || !*value)
        return;
    compat->preallocate = YES;
    for (size_t i = 0; i < sizeof false_words / sizeof false_words[0]; i++)
        if (strcmp(value, false_words[i]) == 0)
            compat->preallocate = NO;
}

static weir_status read_fraction(struct reading *reading, struct compat *compat) {
    const char *name = XLA_FRACTION, *value = getenv(XLA_FRACTION);
    const char *old_value = getenv(XLA_OLD_FRACTION);
    struct weir_problem problem;
    char quoted[80], old_quoted[80];

    if (value && *value && old_value && *old_value) {
        weir__quote(value, quoted, sizeof quoted);
        weir__quote(old_value, old_quoted, sizeof old_quoted);
        return weir__refuse(WEIR_E_PARSE, &reading->message,
                            "%s %s and %s %s: both are set; expected one of them, the first: the "
                            "second is its former name",
                            XLA_FRACTION, quoted, XLA_OLD_FRACTION, old_quoted);
    }
    if (!value || !*value) {
        name = XLA_OLD_FRACTION;
        value = old_value;
    }
    if (!value || !*value)
        return WEIR_OK;
    if (!weir__fraction_read(value, &compat->fraction, &problem))
        return refuse_value(reading, name, value, problem.text,
                            "a fraction above 0 and at most 1, such as .75");
    compat->fraction_name = name;
    return WEIR_OK;
}

struct engine_word {
    const char *word;
    int engine; /* weir's engine for this word; WEIR_ENGINE_DEFAULT if there is none */
};

/* Reads a variable that names a framework's allocator, and chooses the most similar engine.  Sets *asks_pools if the
 * framework will use CUDA's memory pools. */
static weir_status read_engine(struct reading *reading, struct compat *compat, const char *variable,
                               const struct engine_word *words, int *asks_pools, const char *known,
                               const char *expected) {
    const char *value = getenv(variable);
    /* In an unmodified program, TensorFlow itself reads TF_GPU_ALLOCATOR, and distinguishes upper and lower case. */
    int by_case = reading->place != WEIR_PLACE_OWN && strcmp(variable, TF_ALLOCATOR) == 0;
    char key[160];

    *asks_pools = reading->place == WEIR_PLACE_RUN;
    if (!value)
        return WEIR_OK;
    for (; words->word; words++)
        if ((by_case ? strcmp(value, words->word) : strcasecmp(value, words->word)) == 0)
            break;
    if (!words->word)
        return refuse_value(reading, variable, value,
                            *value ? "there is no such allocator" : "it is empty", expected);
    *asks_pools = words->engine == WEIR_ENGINE_POOL;
    if (reading->place != WEIR_PLACE_OWN)
        return WEIR_OK;
    if (words->engine == WEIR_ENGINE_DEFAULT) {
        snprintf(key, sizeof key, "%s=%s", variable, words->word);
        if (first_warning(reading, key))
            weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                      "%s '%s' is ignored: weir has no such engine; it has %s", variable,
                      words->word, known);
    } else if (!compat->engine_name) {
        compat->engine = words->engine;
        compat->engine_name = variable;
    }
    return WEIR_OK;
}

/* WEIR_JAX_OPTIONS consists of pairs NAME:VALUE, which semicolons separate. */
int weir__jax_options_allocator(char *name, size_t bytes) {
    static const char option[] = "allocator:";
    const char *list = getenv(WEIR_JAX_OPTIONS);

    while (list && *list) {
        size_t length = strcspn(list, ";");

        if (strncmp(list, option, strlen(option)) == 0) {
            snprintf(name, bytes, "%.*s", (int)(length - strlen(option)), list + strlen(option));
            return 1;
        }
        list += length + (list[length] == ';');
    }
    return 0;
}

static weir_status read_engines(struct reading *reading, struct compat *compat) {
    static const struct engine_word xla[] = {{"default", WEIR_ENGINE_BFC},
                                             {"bfc", WEIR_ENGINE_BFC},
                                             {"platform", WEIR_ENGINE_DIRECT},
                                             {"cuda_async", WEIR_ENGINE_POOL},
                                             {"vmm", WEIR_ENGINE_DEFAULT},
                                             {"address", WEIR_ENGINE_DEFAULT},
                                             {NULL, 0}};
    static const struct engine_word tf[] = {{"cuda_malloc_async", WEIR_ENGINE_POOL},
                                            {"cuda_malloc", WEIR_ENGINE_DEFAULT},
                                            {"memory_guard", WEIR_ENGINE_DEFAULT},
                                            {NULL, 0}};
    char jax[16];
    weir_status status = read_engine(
        reading, compat, XLA_ALLOCATOR, xla, &compat->jax_asks_pools,
        "platform (engine direct), default and bfc (engine bfc), and cuda_async (engine pool)",
        "default, bfc, platform, cuda_async, vmm or address");

    if (status != WEIR_OK)
        return status;
    if (reading->place != WEIR_PLACE_OWN && weir__jax_options_allocator(jax, sizeof jax))
        compat->jax_asks_pools = strcmp(jax, "cuda_async") == 0;
    return read_engine(reading, compat, TF_ALLOCATOR, tf, &compat->tf_asks_pools,
                       "cuda_malloc_async (engine pool)",
                       "cuda_malloc_async, cuda_malloc or memory_guard");
}

static weir_status read_allow_growth(struct reading *reading, struct compat *compat) {
    const char *value = getenv(TF_GROWTH);

    if (!value || strcmp(value, "false") == 0 || strcmp(value, "0") == 0)
        return WEIR_OK;
    if (strcmp(value, "true") != 0 && strcmp(value, "1") != 0)
        return refuse_value(reading, TF_GROWTH, value, *value ? "it is no switch" : "it is empty",
                            "true or false");
    if (!compat->engine_name && reading->place == WEIR_PLACE_OWN) {
        compat->engine = WEIR_ENGINE_BFC;
        compat->engine_name = TF_GROWTH;
    }
    return WEIR_OK;
}

/* Reads the variables by which TensorFlow and JAX request a preallocation.  In an unmodified program, reads only those
 * of a framework that uses CUDA's memory pools, since others preallocate by themselves.  JAX with these pools obeys
 * TensorFlow's variable, too. */
static weir_status read_preallocations(struct reading *reading, struct compat *compat) {
    int is_own = reading->place == WEIR_PLACE_OWN;
    weir_status status = WEIR_OK;

    if (is_own || compat->jax_asks_pools || compat->tf_asks_pools)
        status = read_tf_prealloc(reading, compat);
    if (status != WEIR_OK || (!is_own && !compat->jax_asks_pools))
        return status;
    read_preallocate(compat);
    return read_fraction(reading, compat);
}

/* Writes the preallocation that the frameworks' variables request.  Returns the name of the variable, or NULL. */
static const char *compat_prealloc(const struct compat *compat, weir_amount *amount) {
    weir_amount fraction = {compat->fraction ? compat->fraction : DEFAULT_FRACTION,
                            WEIR_AMOUNT_OF_TOTAL};
    weir_amount bytes = {compat->tf_prealloc == NO ? compat->bytes : 0, WEIR_AMOUNT_BYTES};

    if (compat->tf_prealloc != NOT_SET) {
        *amount = compat->tf_prealloc == YES ? fraction : bytes;
        return TF_PREALLOC;
    }
    if (compat->preallocate != NOT_SET) {
        *amount = compat->preallocate == YES ? fraction : bytes;
        return XLA_PREALLOCATE;
    }
    *amount = fraction;
    return compat->fraction_name;
}

static void apply_compat(struct reading *reading, const struct compat *compat) {
    weir_options *options = &reading->options;
    const char **of = reading->sources.of;
    weir_amount amount;
    const char *prealloc_name = compat_prealloc(compat, &amount);
    int has_profile = options->profile && strcmp(options->profile, "off") != 0;

    if (compat->engine_name && !weir__option_is_set(options, WEIR_SETTING_ENGINE)) {
        options->engine = compat->engine;
        of[WEIR_SETTING_ENGINE] = compat->engine_name;
    }
    if (!prealloc_name || weir__option_is_set(options, WEIR_SETTING_PREALLOC) ||
        options->engine == WEIR_ENGINE_DIRECT || (amount.value == 0 && has_profile))
        return;
    options->prealloc = amount;
    set_prealloc_variable(options, prealloc_name);
    of[WEIR_SETTING_PREALLOC] = prealloc_name;
}

/* -------------------------------------------------------------- look-alikes ---- */

enum { LONGEST_NAME = WEIR_DISTANT, FURTHEST_LIKENESS = 2 };

/* The known variable whose name is most similar to an unknown name. */
struct likeness {
    const char *name; /* NULL before the first comparison */
    size_t distance;
    size_t prefix; /* the length of `name` if the unknown name begins with it, else 0 */
    int is_known; /* set if the compared name is itself known */
};

/* Keeps the known name that is most similar to the variable's name. */
static void compare_name(struct likeness *likeness, const char *name, size_t length,
                         const char *known) {
    size_t known_length = strlen(known);
    size_t prefix =
        length > known_length && strncmp(name, known, known_length) == 0 ? known_length : 0;
    int is_far =
        length > known_length + FURTHEST_LIKENESS || known_length > length + FURTHEST_LIKENESS;
    size_t distance = is_far ? WEIR_DISTANT : weir__text_distance(name, length, known);

    if (strcmp(name, known) == 0)
        likeness->is_known = 1;
    if (likeness->name && (prefix < likeness->prefix ||
                           (prefix == likeness->prefix && distance >= likeness->distance)))
        return;
    likeness->name = known;
    likeness->distance = distance;
    likeness->prefix = prefix;
}

/* Returns 1 if a variable's name is probably a misspelt known name, else 0.  Ignores the first `start` letters. */
static int is_misspelt(const struct likeness *likeness, size_t start, size_t length) {
    size_t letters = length - start;

    return (likeness->prefix > 0 && (likeness->prefix - start) * 3 >= letters) ||
           (likeness->distance <= FURTHEST_LIKENESS && likeness->distance * 2 < letters);
}

static int is_listed(const char *list, const char *name, size_t length) {
    while (list && (strncmp(list, name, length) != 0 || (list[length] && list[length] != ','))) {
        list = strchr(list, ',');
        if (list)
            list++;
    }
    return list != NULL;
}

/* Records an unknown variable, so that child processes do not warn.  Returns 1 if this process shall warn, else 0. */
static int record_unknown_variable(struct reading *reading, const char *name, size_t length) {
    int was_told = is_listed(weir__variable("WEIR_RUN_TOLD"), name, length);
    char *unknown = reading->sources.unknown;
    size_t used = strlen(unknown);

    if ((was_told || warning_threshold(reading) >= WEIR_LOG_WARNING) &&
        used + 1 + length < sizeof reading->sources.unknown)
        snprintf(unknown + used, length + 2, "%s%s", used ? "," : "", name);
    return !was_told && first_warning(reading, name);
}

/* Warns about a variable that weir does not know, if its name is probably misspelt or begins with WEIR_ (`is_own`). */
static void warn_unknown_variable(struct reading *reading, const char *name, size_t length,
                                  int is_own) {
    struct likeness likeness = {NULL, 0, 0, 0};
    int is_near;

    if (is_own)
        compare_name(&likeness, name, length, COMPAT);
    for (size_t i = 0; i < (is_own ? PART_NAMES : COMPAT_NAMES); i++)
        compare_name(&likeness, name, length, is_own ? part_names[i].name : compat_names[i]);
    for (int i = 0; is_own && i < WEIR_SETTING_COUNT; i++)
        compare_name(&likeness, name, length, weir__setting_row((enum weir_setting)i)->variable);
    is_near = is_misspelt(&likeness, is_own ? OWN_START : 0, length);
    if (likeness.is_known || !(is_near || is_own) ||
        !record_unknown_variable(reading, name, length))
        return;
    if (is_near)
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s is %s ignored; did you mean %s?", name,
                  is_own ? "no variable of weir's and is" : "unknown and", likeness.name);
    else
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s is no variable of weir's and is ignored; `weir help --all' and "
                  "weir-settings(7) have them all",
                  name);
}

static void warn_unknown_variables(struct reading *reading, int compat_on) {
    char name[LONGEST_NAME + 1];

    reading->sources.unknown[0] = '\0';
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");
        int is_own;

        if (length == 0 || length > LONGEST_NAME)
            continue;
        memcpy(name, *entry, length);
        name[length] = '\0';
        is_own = strncmp(name, "WEIR_", OWN_START) == 0;
        if ((is_own || compat_on) && strncmp(name, TEST_PREFIX, strlen(TEST_PREFIX)) != 0)
            warn_unknown_variable(reading, name, length, is_own);
    }
}

/* ------------------------------------------------------------------- public ---- */

static weir_status read_environment_variables(struct reading *reading) {
    struct compat compat = {0};
    int compat_on = 1;
    weir_status status = WEIR_OK;

    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (!reading->sources.of[i] && weir__option_is_set(&reading->options, (enum weir_setting)i))
            reading->sources.of[i] = "the program";
    for (int i = 0; i < WEIR_SETTING_COUNT && status == WEIR_OK; i++)
        status = read_variable(reading, (enum weir_setting)i);
    if (status == WEIR_OK)
        status = read_part_switches(reading);
    if (status == WEIR_OK)
        status = read_switch(reading, COMPAT, &compat_on);
    if (status == WEIR_OK && compat_on)
        status = read_engines(reading, &compat);
    if (status == WEIR_OK && compat_on)
        status = read_preallocations(reading, &compat);
    if (status == WEIR_OK && compat_on)
        status = read_allow_growth(reading, &compat);
    if (status != WEIR_OK)
        return status;
    apply_compat(reading, &compat);
    if (reading->warn)
        warn_unknown_variables(reading, compat_on);
    return WEIR_OK;
}

weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes) {
    struct reading reading = {
        .place = place, .warn = warn, .message = {message, message ? message_bytes : 0}};
    weir_status status = weir__options_copy_in(options, &reading.options, message, message_bytes);

    if (status != WEIR_OK)
        return status;
    if (sources)
        reading.sources = *sources;
    status = read_environment_variables(&reading);
    if (status != WEIR_OK)
        return status;
    weir__options_copy_out(&reading.options, options);
    if (sources)
        *sources = reading.sources;
    return WEIR_OK;
}

weir_status weir_options_from_env(weir_options *options, char *message, size_t message_bytes) {
    return weir__without_driver(
        weir__options_from_env(options, NULL, WEIR_PLACE_OWN, 1, message, message_bytes));
}
