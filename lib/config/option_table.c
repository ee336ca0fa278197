/* SPDX-License-Identifier: MIT */
/* option_table.c: the table of options, and everything that one row can do.
 *
 * A row says how an option is called, which field holds it, of which kind it is, and how it is
 * explained.  A kind is four functions: read from text, spell as text, is it set, is it in range.
 * Whoever reads, shows, checks or documents options walks the rows; adding an option is a field in
 * weir/options.h, a line in WEIR_SETTING_LIST and a row here.
 *
 * A value that text cannot set is refused by the same range check as one that a program put into
 * the struct, so both ways in accept the same values.
 *
 * What options are to each other comes when all are there: defaults that go by the engine, amounts that must hold
 * one another, and what an engine cannot do for others.
 *
 * Must not know: the environment, but that an amount may be another program's; which devices there are; what
 * an option does.
 */
#include "config/settings.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/result.h"
#include "base/text.h"

/* The least a caller's struct can be: what version 1 had, before the fields that came since. */
#define SMALLEST_SIZE offsetof(weir_options, front)
/* More than any version will need: a size above it was never initialised. */
#define LARGEST_SIZE ((size_t)65536)

#define LARGEST_ORDINAL 1023
#define MOST_PEER 63
#define LARGEST_EVENT_RING 1048576
#define LARGEST_PRIORITY 1000
#define LARGEST_WEIGHT UINT64_C(1000000000000) /* a million, in millionths */
#define NO_WAIT UINT32_MAX
#define NEVER UINT32_MAX
#define NO_DECAY UINT64_MAX

struct word {
    const char *word;
    int value;
};

struct row;

struct kind {
    int (*read)(const struct row *row, const char *text, weir_options *options,
                struct weir_problem *problem);
    void (*spell)(const struct row *row, const weir_options *options, char *text, size_t bytes);
    int (*is_set)(const struct row *row, const weir_options *options);
    int (*check)(const struct row *row, const weir_options *options, struct weir_problem *problem);
};

struct row {
    struct weir_setting_row text;
    const struct kind *kind;
    size_t offset;            /* of the field in weir_options; growth: of the first of its fields */
    const struct word *words; /* of kind word, ended by NULL; the first is the default's meaning,
                               * unless fill_defaults knows another */
    int zero_is_wrong;        /* of kind amount: nothing can work with 0 */
};

static const void *field(const struct row *row, const weir_options *options) {
    return (const char *)options + row->offset;
}

static void *mutable_field(const struct row *row, weir_options *options) {
    return (char *)options + row->offset;
}

/* ----------------------------------------------------------------- a device ---- */

static int device_scan(const char *text, const char **driver, int *ordinal,
                       struct weir_problem *problem) {
    static const char *const drivers[] = {"cuda", "model"};
    uint64_t number = 0;

    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) {
        size_t length = strlen(drivers[i]);

        if (strncmp(text, drivers[i], length) != 0 || (text[length] != '\0' && text[length] != ':'))
            continue;
        if (text[length] == ':' &&
            !weir__count_read(text + length + 1, LARGEST_ORDINAL, &number, problem))
            return weir__problem(problem, "what follows the colon is no device number");
        *driver = drivers[i];
        *ordinal = (int)number;
        return 1;
    }
    return weir__problem(problem, *text ? "there is no such device" : "it is empty");
}

/* Keeps one spelling of each device, whatever zeros precede its number. */
static int device_read(const struct row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    char spelled[24];
    const char *driver, *kept;
    int ordinal;

    if (!device_scan(text, &driver, &ordinal, problem))
        return 0;
    if (strchr(text, ':'))
        snprintf(spelled, sizeof spelled, "%s:%d", driver, ordinal);
    else
        snprintf(spelled, sizeof spelled, "%s", driver);
    kept = weir__text_keep(spelled, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static void device_spell(const struct row *row, const weir_options *options, char *text,
                         size_t bytes) {
    snprintf(text, bytes, "%s", *(const char *const *)field(row, options));
}

static int device_is_set(const struct row *row, const weir_options *options) {
    return *(const char *const *)field(row, options) != NULL;
}

static int device_check(const struct row *row, const weir_options *options,
                        struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options), *driver;
    int ordinal;

    return !text || device_scan(text, &driver, &ordinal, problem);
}

static const struct kind device_kind = {device_read, device_spell, device_is_set, device_check};

/* ------------------------------------------------------------------- a word ---- */

static int word_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    for (const struct word *w = row->words; w->word; w++)
        if (strcasecmp(text, w->word) == 0) {
            *(int *)mutable_field(row, options) = w->value;
            return 1;
        }
    return weir__problem(problem, *text ? "it is none of the words known here" : "it is empty");
}

static void word_spell(const struct row *row, const weir_options *options, char *text,
                       size_t bytes) {
    int value = *(const int *)field(row, options);

    for (const struct word *w = row->words; w->word; w++)
        if (w->value == value) {
            snprintf(text, bytes, "%s", w->word);
            return;
        }
    snprintf(text, bytes, "%d", value);
}

static int word_is_set(const struct row *row, const weir_options *options) {
    return *(const int *)field(row, options) != 0;
}

static int word_check(const struct row *row, const weir_options *options,
                      struct weir_problem *problem) {
    int value = *(const int *)field(row, options);

    for (const struct word *w = row->words; w->word; w++)
        if (value == 0 || w->value == value)
            return 1;
    return weir__problem(problem, "there is no value %d", value);
}

static const struct kind word_kind = {word_read, word_spell, word_is_set, word_check};

/* --------------------------------------------------------------- an amount ---- */

static int part_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem);

/* `percent`: the kind that a percentage has where the amount is used. */
static int share_valid(const weir_amount *amount, int percent, struct weir_problem *problem) {
    if (percent == WEIR_AMOUNT_OF_IN_USE && amount->kind != percent)
        return weir__problem(problem, "it is a share of %s, which does not do here",
                             amount->kind == WEIR_AMOUNT_OF_FREE ? "what is free" : "the device");
    if (percent == WEIR_AMOUNT_OF_TOTAL && amount->kind == WEIR_AMOUNT_OF_IN_USE)
        return weir__problem(problem, "it is a share of what is in use, which does not do here");
    return amount->value <= 1000000 || weir__problem(problem, "it is more than 100%%");
}

static int amount_valid(const struct row *row, const weir_amount *amount, int percent,
                        struct weir_problem *problem) {
    if (amount->reserved != 0 &&
        (row->offset != offsetof(weir_options, prealloc) || !weir__compat_name(amount->reserved)))
        return weir__problem(problem, "its reserved field is not 0");
    switch (amount->kind) {
    case WEIR_AMOUNT_DEFAULT:
        return amount->value == 0 || weir__problem(problem, "it has a value but no kind");
    case WEIR_AMOUNT_OF_TOTAL:
    case WEIR_AMOUNT_OF_FREE:
    case WEIR_AMOUNT_OF_IN_USE:
        if (!share_valid(amount, percent, problem))
            return 0;
        break;
    case WEIR_AMOUNT_BYTES:
        break;
    case WEIR_AMOUNT_MAX:
        return 1;
    case WEIR_AMOUNT_SHARE:
        if (row->kind->read != part_read)
            return weir__problem(problem, "it is a share among processes, which does not do here");
        return amount->value <= LARGEST_WEIGHT || weir__problem(problem, "the weight is too large");
    default:
        return weir__problem(problem, "there is no amount of kind %d", amount->kind);
    }
    if (amount->value == 0 && row->zero_is_wrong)
        return weir__problem(problem, "nothing could be allocated; max means no limit");
    return 1;
}

static int amount_read_as(const struct row *row, const char *text, weir_options *options,
                          int percent, struct weir_problem *problem) {
    weir_amount amount;

    if (!weir__amount_read(text, &amount, problem))
        return 0;
    if (amount.kind == WEIR_AMOUNT_OF_TOTAL)
        amount.kind = percent;
    if (!amount_valid(row, &amount, percent, problem))
        return 0;
    *(weir_amount *)mutable_field(row, options) = amount;
    return 1;
}

static int amount_read(const struct row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    return amount_read_as(row, text, options, WEIR_AMOUNT_OF_TOTAL, problem);
}

/* "share", "share:2", or another amount. */
static int part_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    weir_amount amount = {1000000, WEIR_AMOUNT_SHARE, 0};
    double weight = 1;
    const char *end;

    if (strncasecmp(text, "share", 5) != 0 || (text[5] != '\0' && text[5] != ':'))
        return amount_read(row, text, options, problem);
    if (text[5] == ':') {
        if (!weir__factor_read(text + 6, &end, &weight, problem))
            return 0;
        if (*end != '\0')
            return weir__problem(problem, "something follows the weight");
    }
    amount.value = weight > 1e7 ? UINT64_MAX : (uint64_t)(weight * 1e6 + 0.5);
    if (!amount_valid(row, &amount, WEIR_AMOUNT_OF_TOTAL, problem))
        return 0;
    *(weir_amount *)mutable_field(row, options) = amount;
    return 1;
}

static int amount_is_set(const struct row *row, const weir_options *options) {
    return ((const weir_amount *)field(row, options))->kind != WEIR_AMOUNT_DEFAULT;
}

static void amount_spell(const struct row *row, const weir_options *options, char *text,
                         size_t bytes) {
    weir__amount_spell(field(row, options), text, bytes);
}

static int amount_check(const struct row *row, const weir_options *options,
                        struct weir_problem *problem) {
    return amount_valid(row, field(row, options), WEIR_AMOUNT_OF_TOTAL, problem);
}

static const struct kind amount_kind = {amount_read, amount_spell, amount_is_set, amount_check};
static const struct kind part_kind = {part_read, amount_spell, amount_is_set, amount_check};

static int cache_read(const struct row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    return amount_read_as(row, text, options, WEIR_AMOUNT_OF_IN_USE, problem);
}

/* No amount says the default, so it stays and is told in words. */
static void cache_spell(const struct row *row, const weir_options *options, char *text,
                        size_t bytes) {
    if (amount_is_set(row, options))
        amount_spell(row, options, text, bytes);
    else
        snprintf(text, bytes, "%s", row->text.default_text);
}

static int cache_check(const struct row *row, const weir_options *options,
                       struct weir_problem *problem) {
    return amount_valid(row, field(row, options), WEIR_AMOUNT_OF_IN_USE, problem);
}

static const struct kind cache_kind = {cache_read, cache_spell, amount_is_set, cache_check};

/* ------------------------------------------------------------------- growth ---- */

static const struct word policies[] = {
#define POLICY_WORD(name, word, value) {word, value},
    WEIR_GROWTH_POLICIES(POLICY_WORD)
#undef POLICY_WORD
        {NULL, 0},
};

/* The engine mapped is bfc's with an arena of that kind. */
static void engine_spell(const struct row *row, const weir_options *options, char *text,
                         size_t bytes) {
    if (weir__options_map(options))
        snprintf(text, bytes, "mapped");
    else
        word_spell(row, options, text, bytes);
}

static const struct kind engine_kind = {word_read, engine_spell, word_is_set, word_check};

/* The policy that measured best for each engine; see weir-settings(7). */
static int default_growth(const weir_options *options) {
    return options->engine == WEIR_ENGINE_BFC && !weir__options_map(options) ? WEIR_GROWTH_BFC
                                                                             : WEIR_GROWTH_EXACT;
}

static int factor_valid(int growth, double factor, struct weir_problem *problem) {
    if (growth == WEIR_GROWTH_GEOMETRIC && !(factor > 1 && factor <= 1e300))
        return weir__problem(problem, "the factor must be above 1 and finite");
    if (growth == WEIR_GROWTH_REMAINING && !(factor > 0 && factor <= 1))
        return weir__problem(problem, "the fraction must be above 0 and at most 1");
    return 1;
}

/* What follows the colon of a policy: ":64MiB", ":2:4GiB", ":0.5". */
static int growth_argument(const char *text, weir_options *growth, struct weir_problem *problem) {
    const char *end;

    if (growth->growth == WEIR_GROWTH_STEP) {
        if (!weir__size_read(text, &growth->growth_step, problem))
            return 0;
        return growth->growth_step > 0 || weir__problem(problem, "the step is 0");
    }
    if (growth->growth != WEIR_GROWTH_GEOMETRIC && growth->growth != WEIR_GROWTH_REMAINING)
        return weir__problem(problem, "this policy takes nothing after a colon");
    if (!weir__factor_read(text, &end, &growth->growth_factor, problem))
        return 0;
    if (*end != '\0' && (*end != ':' || growth->growth != WEIR_GROWTH_GEOMETRIC))
        return weir__problem(problem, "something follows the number");
    if (!factor_valid(growth->growth, growth->growth_factor, problem))
        return 0;
    if (*end == '\0')
        return 1;
    if (!weir__size_read(end + 1, &growth->growth_cap, problem))
        return 0;
    return growth->growth_cap > 0 || weir__problem(problem, "the cap is 0");
}

/* Sets all five fields: an argument of an earlier policy does not outlive it. */
static int growth_read(const struct row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    size_t length = strcspn(text, ":");
    weir_options growth = {0};

    (void)row;
    for (const struct word *w = policies; w->word; w++)
        if (strlen(w->word) == length && strncasecmp(text, w->word, length) == 0)
            growth.growth = w->value;
    if (growth.growth == WEIR_GROWTH_CALLBACK)
        return weir__problem(problem, "a callback is a function of the program, no text can name "
                                      "it");
    if (growth.growth == WEIR_GROWTH_DEFAULT)
        return weir__problem(problem, *text ? "there is no such policy" : "it is empty");
    if (text[length] == ':' && !growth_argument(text + length + 1, &growth, problem))
        return 0;
    options->growth = growth.growth;
    options->growth_step = growth.growth_step;
    options->growth_factor = growth.growth_factor;
    options->growth_cap = growth.growth_cap;
    options->growth_function = NULL;
    options->growth_context = NULL;
    return 1;
}

static void growth_spell(const struct row *row, const weir_options *options, char *text,
                         size_t bytes) {
    char argument[WEIR_SPELL_BYTES] = "", cap[WEIR_SPELL_BYTES] = "";
    const char *word = "?";

    (void)row;
    for (const struct word *w = policies; w->word; w++)
        if (w->value == options->growth)
            word = w->word;
    if (options->growth == WEIR_GROWTH_STEP)
        weir__bytes_spell(options->growth_step, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC || options->growth == WEIR_GROWTH_REMAINING)
        weir__factor_spell(options->growth_factor, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC && options->growth_cap > 0)
        weir__bytes_spell(options->growth_cap, cap, sizeof cap);
    snprintf(text, bytes, "%s%s%s%s%s", word, argument[0] ? ":" : "", argument, cap[0] ? ":" : "",
             cap);
}

static int growth_is_set(const struct row *row, const weir_options *options) {
    (void)row;
    return options->growth != WEIR_GROWTH_DEFAULT || options->growth_function != NULL;
}

static int growth_check(const struct row *row, const weir_options *options,
                        struct weir_problem *problem) {
    int callback = options->growth == WEIR_GROWTH_CALLBACK;

    (void)row;
    if (options->growth < WEIR_GROWTH_DEFAULT || options->growth > WEIR_GROWTH_CALLBACK)
        return weir__problem(problem, "there is no policy %d", options->growth);
    if (callback && !options->growth_function)
        return weir__problem(problem, "the callback policy needs growth_function");
    if (!callback && options->growth_function)
        return weir__problem(problem, "growth_function is set, but the policy is not callback");
    if (options->growth_factor >= 0 && options->growth_factor <= 0)
        return 1; /* 0: the policy's default */
    return factor_valid(options->growth, options->growth_factor, problem);
}

static const struct kind growth_kind = {growth_read, growth_spell, growth_is_set, growth_check};

/* ------------------------------------------------------------------ numbers ---- */

/* "250", "250ms", "2s"; less than UINT32_MAX, which the struct has for what is no time. */
static int milliseconds_read(const char *text, uint32_t *out, struct weir_problem *problem) {
    char digits[24];
    size_t length = strspn(text, "0123456789");
    uint64_t value, factor = 1;

    if (strcasecmp(text + length, "s") == 0)
        factor = 1000;
    else if (text[length] != '\0' && strcasecmp(text + length, "ms") != 0)
        return weir__problem(problem, *text == '-' ? "it is negative"
                                                   : "it is not a whole number with ms or s");
    snprintf(digits, sizeof digits, "%.*s", (int)(length < sizeof digits ? length : 23), text);
    if (!weir__count_read(digits, (UINT32_MAX - 1) / factor, &value, problem))
        return 0;
    *out = (uint32_t)(value * factor);
    return 1;
}

static void milliseconds_spell(uint32_t value, char *text, size_t bytes) {
    if (value % 1000 == 0)
        snprintf(text, bytes, "%us", value / 1000);
    else
        snprintf(text, bytes, "%ums", value);
}

/* Text says 0 for "do not wait", which the struct says as NO_WAIT. */
static int timeout_read(const struct row *row, const char *text, weir_options *options,
                        struct weir_problem *problem) {
    uint32_t value;

    if (!milliseconds_read(text, &value, problem))
        return 0;
    *(uint32_t *)mutable_field(row, options) = value == 0 ? NO_WAIT : value;
    return 1;
}

static void timeout_spell(const struct row *row, const weir_options *options, char *text,
                          size_t bytes) {
    uint32_t value = *(const uint32_t *)field(row, options);

    if (value == NO_WAIT)
        snprintf(text, bytes, "0");
    else
        milliseconds_spell(value, text, bytes);
}

static int number_is_set(const struct row *row, const weir_options *options) {
    return *(const uint32_t *)field(row, options) != 0;
}

/* Every number of milliseconds means something. */
static int time_check(const struct row *row, const weir_options *options,
                      struct weir_problem *problem) {
    (void)row;
    (void)options;
    (void)problem;
    return 1;
}

static const struct kind timeout_kind = {timeout_read, timeout_spell, number_is_set, time_check};

static int idle_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    uint32_t value = NEVER;

    if (strcasecmp(text, "never") != 0 && !milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "a time of 0 keeps nothing: set cache-limit to 0 for that");
    *(uint32_t *)mutable_field(row, options) = value;
    return 1;
}

static void idle_spell(const struct row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint32_t value = *(const uint32_t *)field(row, options);

    if (value == NEVER)
        snprintf(text, bytes, "never");
    else
        milliseconds_spell(value, text, bytes);
}

static int deadline_read(const struct row *row, const char *text, weir_options *options,
                         struct weir_problem *problem) {
    uint32_t value = NEVER;

    if (strcasecmp(text, "never") != 0 && !milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "a time of 0 gets nothing: set prealloc to 0 for that");
    *(uint32_t *)mutable_field(row, options) = value;
    return 1;
}

static const struct kind deadline_kind = {deadline_read, idle_spell, number_is_set, time_check};

static const struct kind idle_kind = {idle_read, idle_spell, number_is_set, time_check};

/* The struct says "off" as for ever. */
static int decay_read(const struct row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    uint64_t *half_life = mutable_field(row, options);
    uint32_t value = 0;

    if (strcasecmp(text, "off") == 0) {
        *half_life = NO_DECAY;
        return 1;
    }
    if (!milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "a half-life of 0 leaves nothing");
    *half_life = value;
    return 1;
}

static void decay_spell(const struct row *row, const weir_options *options, char *text,
                        size_t bytes) {
    uint64_t value = *(const uint64_t *)field(row, options);

    if (value == NO_DECAY)
        snprintf(text, bytes, "off");
    else
        milliseconds_spell((uint32_t)value, text, bytes);
}

static int decay_is_set(const struct row *row, const weir_options *options) {
    return *(const uint64_t *)field(row, options) != 0;
}

static int decay_check(const struct row *row, const weir_options *options,
                       struct weir_problem *problem) {
    uint64_t value = *(const uint64_t *)field(row, options);

    return value < UINT32_MAX || value == NO_DECAY || weir__problem(problem, "it is too long");
}

static const struct kind decay_kind = {decay_read, decay_spell, decay_is_set, decay_check};

static int ring_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    uint64_t value;

    if (!weir__count_read(text, LARGEST_EVENT_RING, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "it is too small");
    *(uint32_t *)mutable_field(row, options) = (uint32_t)value;
    return 1;
}

static void ring_spell(const struct row *row, const weir_options *options, char *text,
                       size_t bytes) {
    snprintf(text, bytes, "%u", *(const uint32_t *)field(row, options));
}

static int ring_check(const struct row *row, const weir_options *options,
                      struct weir_problem *problem) {
    if (*(const uint32_t *)field(row, options) > LARGEST_EVENT_RING)
        return weir__problem(problem, "it is too large");
    return 1;
}

static int priority_read(const struct row *row, const char *text, weir_options *options,
                         struct weir_problem *problem) {
    uint64_t value;

    if (!weir__count_read(text, LARGEST_PRIORITY, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "it is too small");
    *(uint32_t *)mutable_field(row, options) = (uint32_t)value;
    return 1;
}

static int priority_check(const struct row *row, const weir_options *options,
                          struct weir_problem *problem) {
    if (*(const uint32_t *)field(row, options) > LARGEST_PRIORITY)
        return weir__problem(problem, "it is too large");
    return 1;
}

static const struct kind priority_kind = {priority_read, ring_spell, number_is_set, priority_check};

static const struct kind ring_kind = {ring_read, ring_spell, number_is_set, ring_check};

/* -------------------------------------------------------------- grow-ahead ---- */

/* LOW or LOW:HIGH; without HIGH it is twice LOW, which fill_defaults knows. */
static int ahead_valid(const struct row *row, const weir_amount *low, const weir_amount *high,
                       struct weir_problem *problem) {
    if (!amount_valid(row, low, WEIR_AMOUNT_OF_TOTAL, problem) ||
        !amount_valid(row, high, WEIR_AMOUNT_OF_TOTAL, problem))
        return 0;
    if (low->kind == WEIR_AMOUNT_MAX || high->kind == WEIR_AMOUNT_MAX)
        return weir__problem(problem, "there is no room beyond max: preallocate max for that");
    if (low->kind == WEIR_AMOUNT_DEFAULT && high->kind != WEIR_AMOUNT_DEFAULT)
        return weir__problem(problem, "options.headroom_high is set, but options.headroom is not");
    return low->kind != high->kind || high->value >= low->value ||
           weir__problem(problem, "what follows the colon is less than what precedes it");
}

static int ahead_read(const struct row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    size_t length = strcspn(text, ":");
    weir_amount low = {0}, high = {0};
    char first[64];

    if (length >= sizeof first)
        return weir__problem(problem, "it is too long");
    snprintf(first, sizeof first, "%.*s", (int)length, text);
    if (!weir__amount_read(first, &low, problem) ||
        (text[length] == ':' && !weir__amount_read(text + length + 1, &high, problem)) ||
        !ahead_valid(row, &low, &high, problem))
        return 0;
    options->headroom = low;
    options->headroom_high = high;
    return 1;
}

static void ahead_spell(const struct row *row, const weir_options *options, char *text,
                        size_t bytes) {
    char low[WEIR_SPELL_BYTES], high[WEIR_SPELL_BYTES];

    (void)row;
    weir__amount_spell(&options->headroom, low, sizeof low);
    weir__amount_spell(&options->headroom_high, high, sizeof high);
    if (options->headroom.value == 0)
        snprintf(text, bytes, "%s", low);
    else
        snprintf(text, bytes, "%s:%s", low, high);
}

static int ahead_check(const struct row *row, const weir_options *options,
                       struct weir_problem *problem) {
    return ahead_valid(row, &options->headroom, &options->headroom_high, problem);
}

static void fill_ahead(weir_options *options) {
    weir_amount *low = &options->headroom, *high = &options->headroom_high;
    uint64_t most = low->kind == WEIR_AMOUNT_BYTES ? UINT64_MAX : 1000000;

    if (low->kind == WEIR_AMOUNT_DEFAULT)
        low->kind = WEIR_AMOUNT_BYTES;
    if (high->kind != WEIR_AMOUNT_DEFAULT)
        return;
    *high = *low;
    high->value = low->value > most / 2 ? most : 2 * low->value;
}

static const struct kind ahead_kind = {ahead_read, ahead_spell, amount_is_set, ahead_check};

/* ---------------------------------------------------------- a list of words ---- */

/* Bits of a uint64_t; the first word stands for none of the others. */
static int word_of(const struct row *row, const char *text, size_t length, uint64_t *bit) {
    for (const struct word *w = row->words; w->word; w++)
        if (strlen(w->word) == length && strncasecmp(text, w->word, length) == 0) {
            *bit = (uint64_t)w->value;
            return 1;
        }
    return 0;
}

static int bits_valid(const struct row *row, uint64_t bits, struct weir_problem *problem) {
    uint64_t none = (uint64_t)row->words[0].value, all = 0;

    for (const struct word *w = row->words; w->word; w++)
        all |= (uint64_t)w->value;
    if ((bits & none) && bits != none)
        return weir__problem(problem, "%s goes with none of the others", row->words[0].word);
    return !(bits & ~all) ||
           weir__problem(problem, "there is no bit %#llx", (unsigned long long)(bits & ~all));
}

static int unknown_word(const char *text, size_t length, struct weir_problem *problem) {
    char word[40], quoted[80];

    if (length == 0)
        return weir__problem(problem, "a word is empty");
    snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word), text);
    weir__quote(word, quoted, sizeof quoted);
    return weir__problem(problem, "%s is none of the words known here", quoted);
}

static int list_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    uint64_t bits = 0, bit;

    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");

        if (!word_of(row, at, length, &bit))
            return unknown_word(at, length, problem);
        bits |= bit;
        at += length;
        if (*at == '\0')
            break;
    }
    if (!bits_valid(row, bits, problem))
        return 0;
    *(uint64_t *)mutable_field(row, options) = bits;
    return 1;
}

static void list_spell(const struct row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint64_t bits = *(const uint64_t *)field(row, options);
    size_t length = 0;

    text[0] = '\0';
    for (const struct word *w = row->words; w->word && length < bytes; w++)
        if (bits & (uint64_t)w->value)
            length +=
                (size_t)snprintf(text + length, bytes - length, "%s%s", length ? "," : "", w->word);
}

static int list_is_set(const struct row *row, const weir_options *options) {
    return *(const uint64_t *)field(row, options) != 0;
}

static int list_check(const struct row *row, const weir_options *options,
                      struct weir_problem *problem) {
    return bits_valid(row, *(const uint64_t *)field(row, options), problem);
}

static const struct kind list_kind = {list_read, list_spell, list_is_set, list_check};

/* ------------------------------------------------------------------ a file ---- */

/* The word for no file; a file of that name is ./off. */
static const char no_file[] = "off";

static int file_valid(const char *text, struct weir_problem *problem) {
    if (!*text)
        return weir__problem(problem, "it is empty");
    if (strlen(text) >= WEIR_SHOW_BYTES)
        return weir__problem(problem, "it is longer than %d bytes", WEIR_SHOW_BYTES - 1);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return weir__problem(problem, "there is a control character in it");
    return 1;
}

/* The words of other settings, which are mistakes rather than names. */
static int is_switch_word(const char *text) {
    static const char *const words[] = {"0", "1", "on", "yes", "no", "true", "false"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(text, words[i]) == 0)
            return 1;
    return 0;
}

static int file_read(const struct row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    const char *kept;

    if (!file_valid(text, problem))
        return 0;
    if (is_switch_word(text))
        return weir__problem(problem, "it is a switch; a file of that name is ./%s", text);
    kept = strcasecmp(text, no_file) == 0 ? no_file : weir__text_keep(text, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static int file_check(const struct row *row, const weir_options *options,
                      struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options);

    return !text || file_valid(text, problem);
}

/* Shown and set as a device is. */
static const struct kind file_kind = {file_read, device_spell, device_is_set, file_check};

static const char to_stderr[] = "stderr";

/* A name like that word is the word misspelt, or the other stream. */
static int verdict_read(const struct row *row, const char *text, weir_options *options,
                        struct weir_problem *problem) {
    if (strcasecmp(text, to_stderr) == 0)
        text = to_stderr;
    else if (strcasecmp(text, "stdout") == 0 ||
             (!strchr(text, '/') && weir__text_distance(text, strlen(text), to_stderr) <= 2))
        return weir__problem(problem, "it is nearly %s; a file of that name is ./%s", to_stderr,
                             text);
    return file_read(row, text, options, problem);
}

static const struct kind verdict_kind = {verdict_read, device_spell, device_is_set, file_check};

/* ------------------------------------------------------------------- peers ---- */

static const char no_peers[] = "none", all_peers[] = "all";

static int peers_scan(const char *text, uint64_t *devices, struct weir_problem *problem) {
    *devices = 0;
    if (strcasecmp(text, no_peers) == 0)
        return 1;
    *devices = UINT64_MAX;
    if (strcasecmp(text, all_peers) == 0)
        return 1;
    *devices = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        char digits[24];
        uint64_t number;

        snprintf(digits, sizeof digits, "%.*s", (int)(length < sizeof digits ? length : 23), at);
        if (!weir__count_read(digits, MOST_PEER, &number, problem))
            return 0;
        *devices |= UINT64_C(1) << number;
        at += length;
        if (*at == '\0')
            return *devices != UINT64_MAX || weir__problem(problem, "write all for all");
    }
}

/* One spelling of each list: in order, and each device once. */
static int peers_read(const struct row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    char spelled[256] = "";
    size_t length = 0;
    uint64_t devices;
    const char *kept;

    if (!peers_scan(text, &devices, problem))
        return 0;
    for (int i = 0; i <= MOST_PEER && devices != UINT64_MAX; i++)
        if (devices >> i & 1)
            length += (size_t)snprintf(spelled + length, sizeof spelled - length, "%s%d",
                                       length ? "," : "", i);
    kept = devices == 0            ? no_peers
           : devices == UINT64_MAX ? all_peers
                                   : weir__text_keep(spelled, NULL);
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static int peers_check(const struct row *row, const weir_options *options,
                       struct weir_problem *problem) {
    const char *text = *(const char *const *)field(row, options);
    uint64_t devices;

    return !text || peers_scan(text, &devices, problem);
}

/* Shown and set as a device is. */
static const struct kind peers_kind = {peers_read, device_spell, device_is_set, peers_check};

/* ---------------------------------------------------------------- the table ---- */

/* The first word of a value is the one that is shown. */
static const struct word engines[] = {
    {"pool", WEIR_ENGINE_POOL},
    {"mapped", WEIR_ENGINE_MAPPED},
    {"bfc", WEIR_ENGINE_BFC},
    {"direct", WEIR_ENGINE_DIRECT},
    {"arena", WEIR_ENGINE_BFC},
    {"platform", WEIR_ENGINE_DIRECT}, /* earlier words */
    {NULL, 0},
};
static const struct word arenas[] = {
    {"regions", WEIR_ARENA_REGIONS},
    {"fixed", WEIR_ARENA_FIXED},
    {"mapped", WEIR_ARENA_MAPPED},
    {NULL, 0},
};
static const struct word packings[] = {
    {"balanced", WEIR_PACKING_BALANCED},
    {"compact", WEIR_PACKING_COMPACT},
    {"fast", WEIR_PACKING_FAST},
    {"fit", WEIR_PACKING_COMPACT}, /* an earlier word */
    {NULL, 0},
};
static const struct word prealloc_times[] = {
    {"create", WEIR_PREALLOC_AT_CREATE},
    {"first", WEIR_PREALLOC_AT_FIRST},
    {NULL, 0},
};
static const struct word prealloc_modes[] = {
    {"foreground", WEIR_PREALLOC_FOREGROUND},
    {"background", WEIR_PREALLOC_BACKGROUND},
    {NULL, 0},
};
static const struct word switches[] = {
    {"off", WEIR_SWITCH_OFF}, {"on", WEIR_SWITCH_ON},     {"0", WEIR_SWITCH_OFF},
    {"1", WEIR_SWITCH_ON},    {"false", WEIR_SWITCH_OFF}, {"true", WEIR_SWITCH_ON},
    {"no", WEIR_SWITCH_OFF},  {"yes", WEIR_SWITCH_ON},    {NULL, 0},
};
static const struct word dependencies[] = {
    {"off", WEIR_SWITCH_OFF}, {"auto", WEIR_SWITCH_AUTO},
    {"on", WEIR_SWITCH_ON},   {"0", WEIR_SWITCH_OFF},
    {"1", WEIR_SWITCH_ON},    {"false", WEIR_SWITCH_OFF},
    {"true", WEIR_SWITCH_ON}, {"no", WEIR_SWITCH_OFF},
    {"yes", WEIR_SWITCH_ON},  {NULL, 0},
};
static const struct word log_levels[] = {
    {"none", WEIR_LOG_NONE}, {"error", WEIR_LOG_ERROR}, {"warning", WEIR_LOG_WARNING},
    {"info", WEIR_LOG_INFO}, {"debug", WEIR_LOG_DEBUG}, {NULL, 0},
};

static const struct word hardenings[] = {
#define HARDENING_WORD(name, word, bit) {word, bit},
    WEIR_HARDENINGS(HARDENING_WORD)
#undef HARDENING_WORD
        {NULL, 0},
};

#define SIZE_ACCEPTS "a size (4GiB, 512MB, 75%, 90%free, max)"
#define PART_ACCEPTS "a size (4GiB, 512MB, 75%, 90%free, max), share or share:WEIGHT"
#define AT(member) offsetof(weir_options, member)

/* Which settings are shown where not all are asked for. */
#define BASIC .is_advanced = 0
#define ADVANCED .is_advanced = 1

static const struct row rows[WEIR_SETTING_COUNT] = {
    [WEIR_SETTING_DEVICE] =
        {{"device", "WEIR_DEVICE", "DEVICE", "cuda, cuda:N, model or model:N", "cuda",
          "Use this device: a GPU, or the device model, which is a GPU in software.  Programs that "
          "use the library get the model only by its name.",
          BASIC},
         &device_kind,
         AT(device),
         NULL,
         0},
    [WEIR_SETTING_ENGINE] =
        {{"engine", "WEIR_ENGINE", "ENGINE", "mapped, pool, bfc or direct",
          "mapped where the device can map memory, else pool",
          "Choose where blocks come from.  mapped: one range of addresses, where weir maps memory "
          "as needed; pool: a private CUDA memory pool; bfc: best fit in regions, as in TensorFlow "
          "and XLA; direct: one driver call for each block.",
          BASIC},
         &engine_kind,
         AT(engine),
         engines,
         0},
    [WEIR_SETTING_ARENA] =
        {{"arena", "WEIR_ARENA", "KIND", "fixed, regions or mapped",
          "mapped for engine mapped, else regions",
          "Choose how the bfc engine takes memory: at once, in one region of the size of the "
          "limit; or in regions that the growth policy adds.  mapped makes it the mapped engine.  "
          "Without an engine setting, this selects the bfc engine.",
          ADVANCED},
         &word_kind,
         AT(arena),
         arenas,
         0},
    [WEIR_SETTING_PACKING] = {{"packing", "WEIR_PACKING", "HOW", "compact, balanced or fast",
                               "balanced",
                               "Trade time for memory in the mapped engine.  compact: small "
                               "physical allocations that move, so that little more is reserved "
                               "than in use; fast: few large ones; balanced: between the two.",
                               ADVANCED},
                              &word_kind,
                              AT(packing),
                              packings,
                              0},
    [WEIR_SETTING_PREALLOC] =
        {{"prealloc", "WEIR_PREALLOC", "SIZE", PART_ACCEPTS, "0",
          "Reserve SIZE before the first request.  A larger SIZE makes the first iterations faster "
          "and leaves less to other programs.  share: an equal or weighted part, with other "
          "processes.",
          BASIC},
         &part_kind,
         AT(prealloc),
         NULL,
         0},
    [WEIR_SETTING_PREALLOC_AT] =
        {{"prealloc-at", "WEIR_PREALLOC_AT", "WHEN", "create or first", "create",
          "Preallocate when the allocator is created, or at the first request.", ADVANCED},
         &word_kind,
         AT(prealloc_at),
         prealloc_times,
         0},
    [WEIR_SETTING_GROWTH] = {{"growth", "WEIR_GROWTH", "POLICY",
                              "exact, step:SIZE, geometric:FACTOR[:CAP], remaining:FRACTION or bfc",
                              "exact; bfc for engine bfc",
                              "Choose how much memory to add when reserved memory must grow.",
                              BASIC},
                             &growth_kind,
                             AT(growth),
                             policies,
                             0},
    [WEIR_SETTING_LIMIT] = {{"limit", "WEIR_LIMIT", "SIZE", PART_ACCEPTS,
                             "max; 75% with --arena fixed",
                             "Limit reserved memory; with --arena fixed, set its size.  share: an "
                             "equal or weighted part, while other processes come and go.",
                             BASIC},
                            &part_kind,
                            AT(limit),
                            NULL,
                            1},
    [WEIR_SETTING_RELEASE_THRESHOLD] =
        {{"release-threshold", "WEIR_RELEASE_THRESHOLD", "SIZE", SIZE_ACCEPTS, "max",
          "Keep up to SIZE of idle memory when a synchronisation lets memory go back to the "
          "device.  A lower value leaves more to other programs, but memory has to grow again.",
          BASIC},
         &amount_kind,
         AT(release_threshold),
         NULL,
         0},
    [WEIR_SETTING_RECOVERY_TIMEOUT] =
        {{"recovery-timeout", "WEIR_RECOVERY_TIMEOUT", "TIME",
          "milliseconds (250), or a number with ms or s (250ms, 2s); 0 does not wait", "1s",
          "When memory runs out, wait at most this long for frees to complete.", ADVANCED},
         &timeout_kind,
         AT(recovery_timeout_ms),
         NULL,
         0},
    [WEIR_SETTING_EVENT_RING] = {{"event-ring", "WEIR_EVENT_RING", "COUNT",
                                  "a number from 1 to 1048576", "1024",
                                  "Keep this many growth events for weir_events.", ADVANCED},
                                 &ring_kind,
                                 AT(event_ring),
                                 NULL,
                                 0},
    [WEIR_SETTING_LATENCY] = {{"latency", "WEIR_LATENCY", "SWITCH", "on or off", "off",
                               "Keep a histogram of the latency of every call.", ADVANCED},
                              &word_kind,
                              AT(latency),
                              switches,
                              0},
    [WEIR_SETTING_LOG] =
        {{"log", "WEIR_LOG", "LEVEL", "none, error, warning, info or debug",
          "none; warning for weir run, replay and bench, with one report instead of a "
          "line for each failed request",
          "Write messages to standard error; each level includes those before it.", BASIC},
         &word_kind,
         AT(log),
         log_levels,
         0},
    [WEIR_SETTING_FRONT] =
        {{"cache", "WEIR_CACHE", "SWITCH", "on or off", "on; off for engine direct",
          "Keep freed memory in per-stream caches above the engine.  Off: the driver sees every "
          "block of the pool and direct engines, so that compute-sanitizer can check each.",
          ADVANCED, .was = "front", .was_variable = "WEIR_FRONT"},
         &word_kind,
         AT(front),
         switches,
         0},
    [WEIR_SETTING_FRONT_CACHE] =
        {{"cache-limit", "WEIR_CACHE_LIMIT", "SIZE",
          "a size (64MiB, 0), a percentage of what is in use (5%) or max", "2%, at first 32MiB",
          "Limit the idle memory that per-stream caches keep in blocks above 512KiB and in idle "
          "slabs.  A higher limit saves driver calls and leaves less to other streams.",
          ADVANCED, .was = "front-cache", .was_variable = "WEIR_FRONT_CACHE"},
         &cache_kind,
         AT(front_cache),
         NULL,
         0},
    [WEIR_SETTING_FRONT_IDLE] =
        {{"cache-idle", "WEIR_CACHE_IDLE", "TIME",
          "milliseconds (250), a number with ms or s (250ms, 2s), or never", "1s",
          "Limit how long a per-stream cache keeps memory that its stream does not use.  A later "
          "call on the stream gives older memory to the engine.",
          ADVANCED, .was = "front-idle", .was_variable = "WEIR_FRONT_IDLE"},
         &idle_kind,
         AT(front_idle_ms),
         NULL,
         0},
    [WEIR_SETTING_STREAM_CHECKS] =
        {{"stream-checks", "WEIR_STREAM_CHECKS", "SWITCH", "on or off", "on",
          "Ask the driver whether a stream is being captured, and whether it is still the same.  "
          "Off saves these calls: the program promises to allocate on no stream under capture, and "
          "to destroy no stream while the allocator lives.",
          ADVANCED},
         &word_kind,
         AT(stream_checks),
         switches,
         0},
    [WEIR_SETTING_HARDEN] =
        {{"harden", "WEIR_HARDEN", "LIST",
          "off, or a list of poison, guard, zero-stream and zero-always (poison,guard)", "off",
          "Find writes to freed memory (poison) and beside blocks (guard); zero memory that is new "
          "to its stream (zero-stream), or all memory (zero-always).  Each finding is a line of "
          "the log.  The checks wait for the stream.",
          BASIC},
         &list_kind,
         AT(harden),
         hardenings,
         0},
    [WEIR_SETTING_GROW_AHEAD] =
        {{"grow-ahead", "WEIR_GROW_AHEAD", "LOW[:HIGH]",
          "a size or two with a colon between (1GiB, 1GiB:4GiB, 2%:5%), or 0", "0",
          "Grow in the background, so that requests do not wait for growth.  weir reserves LOW at "
          "first, and grows when less than LOW is idle, up to HIGH (twice LOW by default); % is of "
          "the device's memory.  A larger size leaves less to other programs.",
          BASIC, .was = "headroom", .was_variable = "WEIR_HEADROOM"},
         &ahead_kind,
         AT(headroom),
         NULL,
         0},
    [WEIR_SETTING_PREALLOC_MIN] =
        {{"prealloc-min", "WEIR_PREALLOC_MIN", "SIZE", SIZE_ACCEPTS, "0",
          "Fail if less than SIZE can be preallocated: at creation of the allocator, or at the "
          "first request.  Without a prealloc setting, weir preallocates SIZE.",
          ADVANCED},
         &amount_kind,
         AT(prealloc_min),
         NULL,
         0},
    [WEIR_SETTING_PREALLOC_DEADLINE] =
        {{"prealloc-deadline", "WEIR_PREALLOC_DEADLINE", "TIME",
          "milliseconds (250), a number with ms or s (250ms, 2s), or never", "never",
          "Stop a preallocation after this time, and keep what it has reserved.", ADVANCED},
         &deadline_kind,
         AT(prealloc_deadline_ms),
         NULL,
         0},
    [WEIR_SETTING_PREALLOC_MODE] =
        {{"prealloc-mode", "WEIR_PREALLOC_MODE", "MODE", "foreground or background", "foreground",
          "Preallocate in the calling thread (foreground), or in small steps in a thread of "
          "weir's, for which no caller waits (background).",
          ADVANCED},
         &word_kind,
         AT(prealloc_mode),
         prealloc_modes,
         0},
    [WEIR_SETTING_PROFILE] = {{"profile", "WEIR_PROFILE", "FILE", "a file, a folder, or off", "off",
                               "Preallocate what earlier runs needed, and save what this run "
                               "needs.  In a folder, each combination of device and settings has a "
                               "file.  A prealloc setting overrides the profile.",
                               BASIC},
                              &file_kind,
                              AT(profile),
                              NULL,
                              0},
    [WEIR_SETTING_DECAY] = {{"decay", "WEIR_DECAY", "HALF-LIFE",
                             "milliseconds (250), a number with ms or s (250ms, 60s), or off",
                             "off",
                             "Give idle memory that nothing has needed for HALF-LIFE back to the "
                             "device: half of it each HALF-LIFE.  Preallocated memory stays.",
                             BASIC},
                            &decay_kind,
                            AT(decay_ms),
                            NULL,
                            0},
    [WEIR_SETTING_INTERNAL_DEPENDENCIES] =
        {{"internal-dependencies", "WEIR_INTERNAL_DEPENDENCIES", "SWITCH", "on, auto or off",
          "auto for engine mapped, on with packing compact; else off",
          "Before growing, reuse memory freed on other streams by waiting on an event.  This saves "
          "memory, but less work runs in parallel.  auto: only where the wait is predicted to cost "
          "no time.",
          ADVANCED},
         &word_kind,
         AT(internal_dependencies),
         dependencies,
         0},
    [WEIR_SETTING_VERDICT] =
        {{"oom-report", "WEIR_OOM_REPORT", "FILE", "stderr, a file, or off",
          "off; stderr for weir run",
          "Write an OOM report when a request fails: the cause, the figures that show it, and the "
          "setting to try first.  If the file's name ends in .json, the report is JSON.",
          ADVANCED, .was = "verdict", .was_variable = "WEIR_VERDICT"},
         &verdict_kind,
         AT(verdict),
         NULL,
         0},
    [WEIR_SETTING_LEDGER] = {{"registry", "WEIR_REGISTRY", "SWITCH", "on or off", "on",
                              "Keep a shared registry of a user's processes on each GPU.  When one "
                              "process runs out of memory, the others give idle memory back.",
                              ADVANCED, .was = "ledger", .was_variable = "WEIR_LEDGER"},
                             &word_kind,
                             AT(ledger),
                             switches,
                             0},
    [WEIR_SETTING_PRIORITY] =
        {{"priority", "WEIR_PRIORITY", "N", "a number from 1 to 1000", "100",
          "Processes with the lowest priority on a GPU give idle memory back first.", ADVANCED},
         &priority_kind,
         AT(priority),
         NULL,
         0},
    [WEIR_SETTING_KEEP_FREE] = {{"keep-free", "WEIR_KEEP_FREE", "SIZE", SIZE_ACCEPTS, "0",
                                 "Leave SIZE of the device's memory free when growing, for a "
                                 "display or for programs without weir.",
                                 BASIC, .was = "leave", .was_variable = "WEIR_LEAVE"},
                                &amount_kind,
                                AT(leave),
                                NULL,
                                0},
    [WEIR_SETTING_PEERS] = {{"peers", "WEIR_PEERS", "LIST",
                             "device numbers with commas between (1,2,3), all or none", "none",
                             "Let work on other devices use the blocks, through NVLink or PCIe; "
                             "all: every device that can.  Engines pool and mapped only.",
                             ADVANCED},
                            &peers_kind,
                            AT(peers),
                            NULL,
                            0},
    [WEIR_SETTING_EXPORT] = {{"export", "WEIR_EXPORT", "SWITCH", "on or off", "off",
                              "Let other processes use blocks (weir/share.h).  The driver then "
                              "gives no memory of a pool back.  Engines pool and mapped only.",
                              ADVANCED},
                             &word_kind,
                             AT(exportable),
                             switches,
                             0},
};

static int default_dependencies(const weir_options *options) {
    if (!weir__options_map(options))
        return WEIR_SWITCH_OFF;
    return options->packing == WEIR_PACKING_COMPACT ? WEIR_SWITCH_ON : WEIR_SWITCH_AUTO;
}

/* Every field's default replaced by its meaning; no amount says that of front_cache. */
static void fill_defaults(weir_options *options) {
    if (weir__options_map(options)) {
        options->engine = WEIR_ENGINE_BFC;
        options->arena = WEIR_ARENA_MAPPED;
    }
    if (options->engine == WEIR_ENGINE_DEFAULT)
        options->engine = options->arena == WEIR_ARENA_DEFAULT ? WEIR_ENGINE_POOL : WEIR_ENGINE_BFC;
    if (!options->device)
        options->device = "cuda";
    if (!options->profile)
        options->profile = no_file;
    if (!options->verdict)
        options->verdict = no_file;
    if (!options->peers)
        options->peers = no_peers;
    if (options->decay_ms == 0)
        options->decay_ms = NO_DECAY;
    if (options->front == WEIR_SWITCH_DEFAULT)
        options->front = options->engine == WEIR_ENGINE_DIRECT ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON;
    if (options->internal_dependencies == WEIR_SWITCH_DEFAULT)
        options->internal_dependencies = default_dependencies(options);
    if (options->internal_dependencies == WEIR_SWITCH_AUTO && !weir__options_map(options))
        options->internal_dependencies = WEIR_SWITCH_OFF;
    if (options->harden == 0)
        options->harden = WEIR_HARDEN_OFF;
    if (options->stream_checks == WEIR_SWITCH_DEFAULT)
        options->stream_checks = WEIR_SWITCH_ON;
    if (options->ledger == WEIR_SWITCH_DEFAULT)
        options->ledger = WEIR_SWITCH_ON;
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (rows[i].kind == &word_kind && !word_is_set(&rows[i], options))
            *(int *)mutable_field(&rows[i], options) = rows[i].words[0].value;
    if (options->growth == WEIR_GROWTH_DEFAULT)
        options->growth = default_growth(options);
    if (options->growth == WEIR_GROWTH_STEP && options->growth_step == 0)
        options->growth_step = UINT64_C(64) << 20;
    if (!(options->growth_factor > 0) && options->growth == WEIR_GROWTH_GEOMETRIC)
        options->growth_factor = 2;
    if (!(options->growth_factor > 0) && options->growth == WEIR_GROWTH_REMAINING)
        options->growth_factor = 0.5;
    if (options->leave.kind == WEIR_AMOUNT_DEFAULT)
        options->leave.kind = WEIR_AMOUNT_BYTES;
    if (options->prealloc_min.kind == WEIR_AMOUNT_DEFAULT)
        options->prealloc_min.kind = WEIR_AMOUNT_BYTES;
    if (options->prealloc.kind == WEIR_AMOUNT_DEFAULT)
        options->prealloc = options->prealloc_min;
    if (options->limit.kind == WEIR_AMOUNT_DEFAULT) {
        int fixed = options->engine == WEIR_ENGINE_BFC && options->arena == WEIR_ARENA_FIXED;

        options->limit.kind = fixed ? WEIR_AMOUNT_OF_TOTAL : WEIR_AMOUNT_MAX;
        options->limit.value = fixed ? 750000 : 0;
    }
    fill_ahead(options);
    if (options->prealloc_deadline_ms == 0)
        options->prealloc_deadline_ms = NEVER;
    if (options->release_threshold.kind == WEIR_AMOUNT_DEFAULT)
        options->release_threshold.kind = WEIR_AMOUNT_MAX;
    if (options->priority == 0)
        options->priority = 100;
    if (options->recovery_timeout_ms == 0)
        options->recovery_timeout_ms = 1000;
    if (options->event_ring == 0)
        options->event_ring = 1024;
    if (options->front_idle_ms == 0)
        options->front_idle_ms = 1000;
}

/* ---------------------------------------------------------- a caller's struct ---- */

/* Some version of the struct was, or will be, so long: fields are added at its end, so each one's beginning is an end
 * that it had, and no other place is.  Most fields are a setting's. */
static int is_size(size_t bytes) {
    _Static_assert(sizeof(weir_options) - AT(peers) <= sizeof(uint64_t),
                   "a field behind peers, if it is no setting's, is named below");
    if (bytes >= sizeof(weir_options))
        return bytes <= LARGEST_SIZE;
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (rows[i].offset == bytes)
            return bytes >= SMALLEST_SIZE;
    return bytes == AT(oom_callback) || bytes == AT(oom_callback_data) ||
           bytes == AT(headroom_high);
}

static const char *size_problem(const weir_options *options) {
    if (!options)
        return "options is NULL";
    if (!is_size(options->size))
        return "options.size is not a size of weir_options: call weir_options_init first";
    return NULL;
}

/* `size` must have been checked; the caller's tail that this library does not know is left out. */
static void take(const weir_options *options, weir_options *out) {
    memset(out, 0, sizeof *out);
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    out->size = sizeof *out;
}

void weir__options_give(const weir_options *from, weir_options *options) {
    size_t size = options->size;

    memcpy(options, from, size < sizeof *from ? size : sizeof *from);
    options->size = size;
}

static int tail_is_zero(const weir_options *options) {
    const unsigned char *bytes = (const unsigned char *)options;

    for (size_t i = sizeof *options; i < options->size; i++)
        if (bytes[i] != 0)
            return 0;
    return 1;
}

static void no_message(char *message, size_t message_bytes) {
    if (message && message_bytes > 0)
        message[0] = '\0';
}

static weir_status refuse(weir_status status, char *message, size_t message_bytes,
                          const char *text) {
    if (message && message_bytes > 0)
        snprintf(message, message_bytes, "%s", text);
    return status;
}

weir_status weir__options_take(const weir_options *options, weir_options *out, char *message,
                               size_t message_bytes) {
    no_message(message, message_bytes);
    if (size_problem(options))
        return refuse(WEIR_E_INVALID, message, message_bytes, size_problem(options));
    take(options, out);
    return WEIR_OK;
}

/* -------------------------------------------------------------------- public ---- */

weir_status weir_options_init_sized(weir_options *options, size_t bytes) {
    if (!options || !is_size(bytes))
        return weir__without_driver(WEIR_E_INVALID);
    memset(options, 0, bytes);
    options->size = bytes;
    return WEIR_OK;
}

static weir_status set_by_name(weir_options *options, const char *name, const char *text,
                               char *message, size_t message_bytes) {
    char quoted[80];

    no_message(message, message_bytes);
    if (size_problem(options))
        return refuse(WEIR_E_INVALID, message, message_bytes, size_problem(options));
    if (!name || !text)
        return refuse(WEIR_E_INVALID, message, message_bytes,
                      name ? "the text is NULL" : "the option's name is NULL");
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(name, rows[i].text.name) == 0 ||
            (rows[i].text.was && strcmp(name, rows[i].text.was) == 0))
            return weir__option_set(options, (enum weir_setting)i, NULL, text, message,
                                    message_bytes);
    weir__quote(name, quoted, sizeof quoted);
    if (message && message_bytes > 0)
        snprintf(message, message_bytes, "there is no option %s: weir-settings(7) lists them",
                 quoted);
    return WEIR_E_INVALID;
}

weir_status weir_options_set(weir_options *options, const char *name, const char *text,
                             char *message, size_t message_bytes) {
    return weir__without_driver(set_by_name(options, name, text, message, message_bytes));
}

/* ------------------------------------------------------------------ internal ---- */

const struct weir_setting_row *weir__setting_row(enum weir_setting setting) {
    return &rows[setting].text;
}

weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes) {
    const struct row *row = &rows[setting];
    struct weir_problem problem;
    weir_options work;
    char quoted[80];

    no_message(message, message_bytes);
    take(options, &work);
    if (row->kind->read(row, text, &work, &problem)) {
        weir__options_give(&work, options);
        return WEIR_OK;
    }
    weir__quote(text, quoted, sizeof quoted);
    if (message && message_bytes > 0)
        snprintf(message, message_bytes, "%s %s: %s; expected %s", label ? label : row->text.name,
                 quoted, problem.text, row->text.accepts);
    return WEIR_E_PARSE;
}

int weir__option_is_set(const weir_options *options, enum weir_setting setting) {
    return rows[setting].kind->is_set(&rows[setting], options);
}

void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes) {
    weir_options work;

    take(options, &work);
    fill_defaults(&work);
    rows[setting].kind->spell(&rows[setting], &work, text, bytes);
}

/* Both in bytes, both of the total, or both of what is free: only then can they be compared without
 * a device. */
static int limit_holds_prealloc(const weir_options *filled, char *message, size_t message_bytes) {
    char prealloc[WEIR_SPELL_BYTES], limit[WEIR_SPELL_BYTES];

    if (filled->prealloc.reserved != 0 || /* as much of it as the limit lets it have */
        filled->prealloc.kind != filled->limit.kind || filled->limit.kind == WEIR_AMOUNT_MAX ||
        filled->prealloc.value <= filled->limit.value)
        return 1;
    weir__amount_spell(&filled->prealloc, prealloc, sizeof prealloc);
    weir__amount_spell(&filled->limit, limit, sizeof limit);
    if (message && message_bytes > 0)
        snprintf(message, message_bytes,
                 "prealloc '%s' is more than limit '%s'; expected at most the limit, or a higher "
                 "limit",
                 prealloc, limit);
    return 0;
}

/* Likewise; nothing is less than 0 bytes of any kind. */
static int prealloc_holds_min(const weir_options *filled, char *message, size_t message_bytes) {
    const weir_amount *all = &filled->prealloc, *least = &filled->prealloc_min;
    const char *of_another = weir__compat_name(all->reserved);
    char prealloc[WEIR_SPELL_BYTES], min[WEIR_SPELL_BYTES];

    if (all->kind == WEIR_AMOUNT_MAX ||
        (least->kind == all->kind ? least->value <= all->value
                                  : least->value == 0 || all->value > 0))
        return 1;
    weir__amount_spell(all, prealloc, sizeof prealloc);
    weir__amount_spell(least, min, sizeof min);
    if (message && message_bytes > 0)
        snprintf(message, message_bytes,
                 "prealloc-min '%s' is more than %s '%s'; expected at most that", min,
                 of_another ? of_another : "prealloc", prealloc);
    return 0;
}

int weir__options_map(const weir_options *o) {
    return o->engine == WEIR_ENGINE_MAPPED ||
           (o->arena == WEIR_ARENA_MAPPED &&
            (o->engine == WEIR_ENGINE_BFC || o->engine == WEIR_ENGINE_DEFAULT));
}

int weir__options_can_open(const weir_options *o) {
    return o->engine == WEIR_ENGINE_POOL || weir__options_map(o);
}

/* Whoever lists no device but the allocator's own wants no peer. */
static int has_peers(const weir_options *filled) {
    uint64_t devices = 0;
    const char *driver;
    int own = 0;

    if (weir__peers_parse(filled->peers, &devices, NULL, 0) != WEIR_OK ||
        weir__device_parse(filled->device, &driver, &own, NULL, 0) != WEIR_OK)
        return 0;
    return devices == UINT64_MAX || (devices & ~(own < 64 ? UINT64_C(1) << own : 0)) != 0;
}

/* What is for others needs an engine that can give it to them. */
static int engine_serves_others(const weir_options *filled, char *message, size_t message_bytes) {
    if (filled->exportable == WEIR_SWITCH_ON && !weir__options_can_open(filled)) {
        if (message && message_bytes > 0)
            snprintf(message, message_bytes,
                     "export: memory of cuMemAlloc cannot be exported: choose engine mapped or "
                     "pool");
        return 0;
    }
    if (has_peers(filled) && !weir__options_can_open(filled)) {
        if (message && message_bytes > 0)
            snprintf(message, message_bytes, "peers '%s': %s", filled->peers, WEIR_NOT_OPENED);
        return 0;
    }
    return 1;
}

static int is_in_range(const struct row *row, const weir_options *options, char *message,
                       size_t message_bytes) {
    struct weir_problem problem;

    if (row->kind->check(row, options, &problem))
        return 1;
    if (message && message_bytes > 0)
        snprintf(message, message_bytes, "%s: %s; expected %s", row->text.name, problem.text,
                 row->text.accepts);
    return 0;
}

int weir__options_log(const weir_options *options) {
    return options && options->size >= AT(log) + sizeof options->log &&
                   options->log <= WEIR_LOG_DEBUG
               ? options->log
               : WEIR_LOG_NONE;
}

/* With nothing the reserve grows no more. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes) {
    static const struct row row = {.text = {.name = "limit", .accepts = SIZE_ACCEPTS},
                                   .kind = &amount_kind,
                                   .offset = AT(limit)};
    const weir_options options = {.limit = *limit};

    return is_in_range(&row, &options, message, message_bytes) ? WEIR_OK : WEIR_E_INVALID;
}

weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes) {
    static const weir_options defaults = {.size = sizeof defaults};
    weir_options work;

    no_message(message, message_bytes);
    if (!options)
        options = &defaults;
    if (size_problem(options))
        return refuse(WEIR_E_INVALID, message, message_bytes, size_problem(options));
    if (!tail_is_zero(options))
        return refuse(WEIR_E_INVALID, message, message_bytes,
                      "options has fields set that this version of the library does not know");
    take(options, &work);
    if (work.oom_callback_data && !work.oom_callback)
        return refuse(WEIR_E_INVALID, message, message_bytes,
                      "oom_callback_data: it is set without oom_callback; expected NULL");
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (!is_in_range(&rows[i], &work, message, message_bytes))
            return WEIR_E_INVALID;
    /* What hardening finds is for somebody to read. */
    if (work.log == WEIR_LOG_DEFAULT && work.harden & ~(uint64_t)WEIR_HARDEN_OFF)
        work.log = WEIR_LOG_ERROR;
    fill_defaults(&work);
    if (!limit_holds_prealloc(&work, message, message_bytes))
        return WEIR_E_LIMIT;
    if (!prealloc_holds_min(&work, message, message_bytes))
        return WEIR_E_INVALID;
    if (!engine_serves_others(&work, message, message_bytes))
        return WEIR_E_NOT_SUPPORTED;
    *out = work;
    return WEIR_OK;
}

/* The message about a text that a row does not take. */
static weir_status no_parse(const struct row *row, const char *text,
                            const struct weir_problem *problem, char *message,
                            size_t message_bytes) {
    char quoted[80];

    weir__quote(text, quoted, sizeof quoted);
    if (message && message_bytes > 0)
        snprintf(message, message_bytes, "%s %s: %s; expected %s", row->text.name, quoted,
                 problem->text, row->text.accepts);
    return WEIR_E_PARSE;
}

weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes) {
    struct weir_problem problem;

    no_message(message, message_bytes);
    if (peers_scan(text, devices, &problem))
        return WEIR_OK;
    return no_parse(&rows[WEIR_SETTING_PEERS], text, &problem, message, message_bytes);
}

weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes) {
    struct weir_problem problem;

    no_message(message, message_bytes);
    if (device_scan(text ? text : "cuda", driver, ordinal, &problem))
        return WEIR_OK;
    return no_parse(&rows[WEIR_SETTING_DEVICE], text, &problem, message, message_bytes);
}
