/* SPDX-License-Identifier: MIT */
/* environment.c: options from the environment.
 *
 * Three passes.  First weir's own variables, one per row of the option table.  Below them, unless
 * WEIR_COMPAT=0, the variables that users of TensorFlow, XLA and JAX already set: all are read
 * before any is applied, since what one of them means depends on others.  Last, names that look like
 * a known one but are not draw a warning, once per process and name, and not below a `weir run' that
 * has given it; setting a variable that nobody reads is how a preallocation comes to be "ignored".
 *
 * What the compatibility variables make of the preallocation, first match:
 *     TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=N    N bytes, N = 0 none
 *                                           =-1    fraction of total
 *     XLA_PYTHON_CLIENT_PREALLOCATE false          none
 *                                   anything else  fraction of total
 *     a fraction is set                            that fraction of total
 * where the fraction is XLA_CLIENT_MEM_FRACTION or XLA_PYTHON_CLIENT_MEM_FRACTION, else 75%.  -1
 * wins over PREALLOCATE=false because it is the more special request of the two.  "None" is a word about the
 * framework's own preallocation: where a profile of weir's is named, that decides.  The engine direct has no reserved memory,
 * so none of this touches it.
 *
 * That is for a program that makes an allocator of its own.  Where weir stands in a user's place (settings.h), the
 * variables are still those of the frameworks: what names an allocator says where a framework takes its memory, which
 * is not of which engine weir has it, and what a framework preallocates itself is not to be taken a second time.
 *
 * Work is done on a copy; the caller's options change only when everything parses.
 *
 * Must not know: devices, engines, what an option does; how a row reads its text.
 */
#include "config/settings.h"

#include <stdatomic.h>
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

#define DEFAULT_FRACTION 750000 /* millionths: JAX's and XLA's own default */

static const char *const compat_names[] = {TF_PREALLOC,     TF_ALLOCATOR, TF_GROWTH,
                                           XLA_PREALLOCATE, XLA_FRACTION, XLA_OLD_FRACTION,
                                           XLA_ALLOCATOR};
#define COMPAT_NAMES (sizeof compat_names / sizeof compat_names[0])

/* The preallocation that was last read from a variable of another program, and that variable.  Threads read one
 * environment, and so write equal values. */
static struct {
    _Atomic uint64_t value;
    atomic_int kind;
    const char *_Atomic variable;
} foreign;

static void note_foreign(const weir_amount *amount, const char *variable) {
    atomic_store(&foreign.value, amount->value);
    atomic_store(&foreign.kind, amount->kind);
    atomic_store(&foreign.variable, variable);
}

const char *weir__foreign_prealloc(const weir_options *options) {
    const weir_amount *prealloc = &options->prealloc;

    return prealloc->value == foreign.value && prealloc->kind == foreign.kind ? foreign.variable
                                                                             : NULL;
}

/* What a part of weir reads itself: the device model, and what `weir run' and `weir record' preload.
 * tests/tree/check-variables holds them against the sources. */
static const char *const part_names[] = {
    "WEIR_GROUP",         "WEIR_GROUP_DIR",        "WEIR_GROUP_LIMIT",
    "WEIR_GROUP_SHARE",   "WEIR_MODEL_PROFILE",    "WEIR_MODEL_DEVICES",
    "WEIR_MODEL_SHARED",  "WEIR_RECORD_FOLDER",    "WEIR_RECORD_CALLERS",
    "WEIR_RECORD_RANGES", "WEIR_RECORD_SYNCS",     "WEIR_RUN_FIRST",
    "WEIR_RUN_FOLDER",    "WEIR_RUN_JSON",         "WEIR_RUN_PREALLOC_OF",
    "WEIR_RUN_SAMPLES",   "WEIR_RUN_SERVE_MALLOC", "WEIR_RUN_STATS",
    "WEIR_RUN_TOLD",      "WEIR_RUN_TORCH",        "WEIR_RUN_TRACE",
    "WEIR_RUN_VERBOSE"};
#define PART_NAMES (sizeof part_names / sizeof part_names[0])

/* Of these the switches, which the preload library reads: by then what is none has been refused here. */
static const char *const part_switches[] = {"WEIR_RUN_SAMPLES", "WEIR_RUN_SERVE_MALLOC",
                                            "WEIR_RUN_STATS", "WEIR_RUN_TORCH", "WEIR_RUN_VERBOSE"};
#define PART_SWITCHES (sizeof part_switches / sizeof part_switches[0])

enum { OWN_START = 5 /* of "WEIR_" */ };

/* Names that begin so are the tests'. */
#define TEST_PREFIX "WEIR_TEST_"

/* One reading of the environment. */
struct reading {
    weir_options options;
    struct weir_sources sources;
    enum weir_place place;
    int warn;
    char *message;
    size_t message_bytes;
};

static weir_status refuse(const struct reading *reading, const char *variable, const char *value,
                          const char *problem, const char *expected) {
    char quoted[80];

    weir__quote(value, quoted, sizeof quoted);
    if (reading->message && reading->message_bytes > 0)
        snprintf(reading->message, reading->message_bytes, "%s %s: %s; expected %s%s", variable,
                 quoted, problem, expected,
                 strncmp(variable, "WEIR_", OWN_START) == 0
                     ? ""
                     : " (weir leaves it alone under WEIR_COMPAT=0)");
    return WEIR_E_PARSE;
}

/* 1 for the first call of the process with this text, when warnings are wanted. */
static int first_warning(const struct reading *reading, const char *text) {
    int is_new = 0;

    return reading->warn && (weir__text_keep(text, &is_new) == NULL || is_new);
}

static int warning_threshold(const struct reading *reading) {
    return reading->options.log == WEIR_LOG_DEFAULT ? WEIR_LOG_WARNING : reading->options.log;
}

/* ------------------------------------------------------------ own variables ---- */

static weir_status read_variable(struct reading *reading, enum weir_setting setting) {
    const char *variable = weir__setting_row(setting)->variable;
    const char *value = weir__variable(variable), *of = weir__variable("WEIR_RUN_PREALLOC_OF");
    weir_options with_it = reading->options;
    weir_status status;

    if (!value)
        return WEIR_OK;
    status = weir__option_set(&with_it, setting, variable, value, reading->message,
                              reading->message_bytes);
    if (status != WEIR_OK || weir__option_is_set(&reading->options, setting))
        return status;
    reading->options = with_it;
    reading->sources.of[setting] = variable;
    if (setting == WEIR_SETTING_PREALLOC && of) /* `weir run' read the variable of another program */
        note_foreign(&with_it.prealloc, weir__text_keep(of, NULL));
    return WEIR_OK;
}

static weir_status read_own(struct reading *reading) {
    weir_status status = WEIR_OK;

    for (int i = 0; i < WEIR_SETTING_COUNT && status == WEIR_OK; i++)
        status = read_variable(reading, (enum weir_setting)i);
    return status;
}

/* *on stays where the variable is not set. */
static weir_status read_switch(struct reading *reading, const char *variable, int *on) {
    const char *value = weir__variable(variable);
    struct weir_problem problem;

    if (!value || weir__switch_read(value, on, &problem))
        return WEIR_OK;
    return refuse(reading, variable, value, problem.text, "0 or 1");
}

static weir_status read_part_switches(struct reading *reading) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; i < PART_SWITCHES && status == WEIR_OK; i++) {
        const char *value = weir__variable(part_switches[i]);
        int on;

        if (value && *value) /* empty counts as not set */
            status = read_switch(reading, part_switches[i], &on);
    }
    return status;
}

/* -------------------------------------------------- what other programs read ---- */

enum { NOT_SET, NO, YES };

/* What the compatibility variables say, before anything is made of it. */
struct compat {
    int tf_prealloc; /* NOT_SET; NO: a number of bytes; YES: -1, what the default would be */
    uint64_t bytes;
    int preallocate;   /* NOT_SET, NO, YES */
    uint64_t fraction; /* millionths; 0: not set */
    const char *fraction_name;
    int engine; /* WEIR_ENGINE_ */
    const char *engine_name;
    int jax_asks_pools, tf_asks_pools; /* where they are told, or will be */
};

/* A base-10 int64, as TensorFlow reads it; all else it answers by aborting. */
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
        return refuse(reading, TF_PREALLOC, value, problem.text,
                      "a whole number of bytes, -1 (as much as the default allocator would "
                      "preallocate) or 0 (none); WEIR_PREALLOC takes 4GiB or 75% as well");
    compat->tf_prealloc = NO;
    return WEIR_OK;
}

/* JAX's rule: an empty variable counts as not set, and only these three words are false. */
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
        if (reading->message && reading->message_bytes > 0)
            snprintf(
                reading->message, reading->message_bytes,
                "%s %s and %s %s: both are set; expected one of them, the first: the second is "
                "its former name",
                XLA_FRACTION, quoted, XLA_OLD_FRACTION, old_quoted);
        return WEIR_E_PARSE;
    }
    if (!value || !*value) {
        name = XLA_OLD_FRACTION;
        value = old_value;
    }
    if (!value || !*value)
        return WEIR_OK;
    if (!weir__fraction_read(value, &compat->fraction, &problem))
        return refuse(reading, name, value, problem.text,
                      "a fraction above 0 and at most 1, such as .75");
    compat->fraction_name = name;
    return WEIR_OK;
}

/* A value that its own program knows and weir has nothing for. */
static void warn_ignored(const struct reading *reading, const char *variable, const char *value,
                         const char *known) {
    char key[160];

    snprintf(key, sizeof key, "%s=%s", variable, value);
    if (first_warning(reading, key))
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s '%s' is ignored: weir has no such engine; it has %s", variable, value, known);
}

struct engine_word {
    const char *word;
    int engine; /* WEIR_ENGINE_DEFAULT: weir has none like it */
};

/* Where weir stands in a user's place, a word is one to its framework: TensorFlow tells them by case, JAX does not. */
static int is_word(const struct reading *reading, const char *variable, const char *value,
                   const char *word) {
    int by_case = reading->place != WEIR_PLACE_OWN && strcmp(variable, TF_ALLOCATOR) == 0;

    return (by_case ? strcmp(value, word) : strcasecmp(value, word)) == 0;
}

/* Sets the engine unless a variable of higher precedence has. */
static weir_status read_engine(struct reading *reading, struct compat *compat, const char *variable,
                               const struct engine_word *words, int *asks_pools, const char *known,
                               const char *expected) {
    const char *value = getenv(variable);

    *asks_pools = reading->place == WEIR_PLACE_TELLS;
    if (!value)
        return WEIR_OK;
    for (; words->word; words++)
        if (is_word(reading, variable, value, words->word))
            break;
    if (!words->word)
        return refuse(reading, variable, value,
                      *value ? "there is no such allocator" : "it is empty", expected);
    *asks_pools = words->engine == WEIR_ENGINE_POOL;
    if (reading->place != WEIR_PLACE_OWN)
        return WEIR_OK;
    if (words->engine == WEIR_ENGINE_DEFAULT) {
        warn_ignored(reading, variable, words->word, known);
    } else if (!compat->engine_name) {
        compat->engine = words->engine;
        compat->engine_name = variable;
    }
    return WEIR_OK;
}

/* A list of NAME:VALUE;... */
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
        return refuse(reading, TF_GROWTH, value, *value ? "it is no switch" : "it is empty",
                      "true or false");
    if (!compat->engine_name && reading->place == WEIR_PLACE_OWN) {
        compat->engine = WEIR_ENGINE_BFC;
        compat->engine_name = TF_GROWTH;
    }
    return WEIR_OK;
}

/* What a framework that takes its memory elsewhere preallocates there is its own, by values that may mean nothing to
 * weir: JAX takes a fraction above 1 of unified memory.  TensorFlow's bytes are those of its allocator of CUDA's pools,
 * which JAX has too. */
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

static weir_status read_compat(struct reading *reading, struct compat *compat) {
    weir_status status = read_engines(reading, compat);

    if (status == WEIR_OK)
        status = read_preallocations(reading, compat);
    if (status == WEIR_OK)
        status = read_allow_growth(reading, compat);
    return status;
}

/* The truth table at the top.  NULL: nobody asks. */
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

static int has_profile(const weir_options *options) {
    return options->profile && strcmp(options->profile, "off") != 0;
}

static void apply_compat(struct reading *reading, const struct compat *compat) {
    weir_options *options = &reading->options;
    const char **of = reading->sources.of;
    weir_amount amount;
    const char *prealloc_name = compat_prealloc(compat, &amount);

    if (compat->engine_name && !weir__option_is_set(options, WEIR_SETTING_ENGINE)) {
        options->engine = compat->engine;
        of[WEIR_SETTING_ENGINE] = compat->engine_name;
    }
    if (!prealloc_name || weir__option_is_set(options, WEIR_SETTING_PREALLOC) ||
        options->engine == WEIR_ENGINE_DIRECT || (amount.value == 0 && has_profile(options)))
        return;
    options->prealloc = amount;
    note_foreign(&amount, prealloc_name);
    of[WEIR_SETTING_PREALLOC] = prealloc_name;
}

/* -------------------------------------------------------------- look-alikes ---- */

enum { LONGEST_NAME = WEIR_DISTANT, FURTHEST_LIKENESS = 2 };

/* What a name has been found to be like so far. */
struct likeness {
    const char *name; /* NULL: nothing yet */
    size_t distance;
    size_t prefix; /* length of `name` when the other one is this and more, else 0 */
    int is_known;  /* it is one of the known names */
};

/* A known name with something behind it is closer than any spelling; the longest such name wins. */
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

/* A known name with something behind it, a third of the `letters` behind `start` at least, or two letters off, which
 * are not most of them. */
static int is_near(const struct likeness *likeness, size_t start, size_t length) {
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

/* A name that nobody reads; 1 if this is the place to say so.  It is noted if that is said, or was by who began this
 * process. */
static int note_unknown(struct reading *reading, const char *name, size_t length) {
    int was_told = is_listed(weir__variable("WEIR_RUN_TOLD"), name, length);
    char *unknown = reading->sources.unknown;
    size_t used = strlen(unknown);

    if ((was_told || warning_threshold(reading) >= WEIR_LOG_WARNING) &&
        used + 1 + length < sizeof reading->sources.unknown)
        snprintf(unknown + used, length + 2, "%s%s", used ? "," : "", name);
    return !was_told && first_warning(reading, name);
}

static void warn_own(struct reading *reading, const char *name, size_t length) {
    struct likeness likeness = {NULL, 0, 0, 0};

    if (strncmp(name, TEST_PREFIX, strlen(TEST_PREFIX)) == 0)
        return;
    compare_name(&likeness, name, length, COMPAT);
    for (size_t i = 0; i < PART_NAMES; i++)
        compare_name(&likeness, name, length, part_names[i]);
    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        compare_name(&likeness, name, length, weir__setting_row((enum weir_setting)i)->variable);
    if (likeness.is_known || !note_unknown(reading, name, length))
        return;
    if (is_near(&likeness, OWN_START, length))
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s is no variable of weir's and is ignored; did you mean %s?", name,
                  likeness.name);
    else
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s is no variable of weir's and is ignored; `weir help --all' and "
                  "weir-settings(7) have them all",
                  name);
}

static void warn_look_alike(struct reading *reading, const char *name, size_t length) {
    struct likeness likeness = {NULL, 0, 0, 0};

    for (size_t i = 0; i < COMPAT_NAMES; i++)
        compare_name(&likeness, name, length, compat_names[i]);
    if (likeness.name && !likeness.is_known && is_near(&likeness, 0, length) &&
        note_unknown(reading, name, length))
        weir__log(warning_threshold(reading), WEIR_LOG_WARNING,
                  "%s is unknown and ignored; did you mean %s?", name, likeness.name);
}

static void warn_unknown(struct reading *reading, int compat_on) {
    char name[LONGEST_NAME + 1];

    reading->sources.unknown[0] = '\0';
    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = strcspn(*entry, "=");

        if (length == 0 || length > LONGEST_NAME)
            continue;
        memcpy(name, *entry, length);
        name[length] = '\0';
        if (strncmp(name, "WEIR_", OWN_START) == 0)
            warn_own(reading, name, length);
        else if (compat_on)
            warn_look_alike(reading, name, length);
    }
}

/* ------------------------------------------------------------------- public ---- */

/* Reads everything into reading->options and ->sources. */
static weir_status read_all(struct reading *reading) {
    struct compat compat = {0};
    int compat_on = 1;
    weir_status status;

    for (int i = 0; i < WEIR_SETTING_COUNT; i++)
        if (!reading->sources.of[i] && weir__option_is_set(&reading->options, (enum weir_setting)i))
            reading->sources.of[i] = "the program";
    status = read_own(reading);
    if (status == WEIR_OK)
        status = read_part_switches(reading);
    if (status == WEIR_OK)
        status = read_switch(reading, COMPAT, &compat_on);
    if (status == WEIR_OK && compat_on)
        status = read_compat(reading, &compat);
    if (status != WEIR_OK)
        return status;
    apply_compat(reading, &compat);
    if (reading->warn)
        warn_unknown(reading, compat_on);
    return WEIR_OK;
}

weir_status weir__options_from_env(weir_options *options, struct weir_sources *sources,
                                   enum weir_place place, int warn, char *message,
                                   size_t message_bytes) {
    struct reading reading = {
        .place = place, .warn = warn, .message = message, .message_bytes = message_bytes};
    weir_status status = weir__options_take(options, &reading.options, message, message_bytes);

    if (status != WEIR_OK)
        return status;
    if (sources)
        reading.sources = *sources;
    status = read_all(&reading);
    if (status != WEIR_OK)
        return status;
    weir__options_give(&reading.options, options);
    if (sources)
        *sources = reading.sources;
    return WEIR_OK;
}

weir_status weir_options_from_env(weir_options *options, char *message, size_t message_bytes) {
    return weir__without_driver(
        weir__options_from_env(options, NULL, WEIR_PLACE_OWN, 1, message, message_bytes));
}
