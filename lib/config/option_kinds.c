/* SPDX-License-Identifier: MIT */
/* option_kinds.c: reads, writes and checks the values of options of each kind, such as sizes, times and switches. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

/* ---- words ---- */

/* Returns the word that equals the first `length` characters of `text`, in upper or lower case, or NULL. */
static const struct weir_option_word *find_word(const struct weir_option_word *words,
                                                const char *text, size_t length) {
    for (; words->word; words++)
        if (strlen(words->word) == length && strncasecmp(text, words->word, length) == 0)
            return words;
    return NULL;
}

/* Returns the first word that stands for `value`, or NULL. */
static const char *word_for(const struct weir_option_word *words, int value) {
    while (words->word && words->value != value)
        words++;
    return words->word;
}

/* Reads a whole number, at most `most`, from the first `length` characters of a text, which must be digits. */
static int digits_read(const char *text, size_t length, uint64_t most, uint64_t *value,
                       struct weir_problem *problem) {
    char digits[24];

    snprintf(digits, sizeof digits, "%.*s", (int)(length < sizeof digits ? length : 23), text);
    return weir__count_read(digits, most, value, problem);
}

static int word_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    const struct weir_option_word *word = find_word(row->words, text, strlen(text));

    if (!word)
        return weir__problem(problem, *text ? "it is none of the words known here" : "it is empty");
    *(int *)mutable_field(row, options) = word->value;
    return 1;
}

static void word_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    int value = *(const int *)field(row, options);
    const char *word = word_for(row->words, value);

    if (word)
        snprintf(text, bytes, "%s", word);
    else
        snprintf(text, bytes, "%d", value);
}

int weir__option_word_is_set(const struct weir_option_row *row, const weir_options *options) {
    return *(const int *)field(row, options) != 0;
}

static int word_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    int value = *(const int *)field(row, options);

    return value == 0 || word_for(row->words, value) ||
           weir__problem(problem, "there is no value %d", value);
}

const struct weir_option_kind weir__option_word = {
    FUNCTIONS(word_read, word_spell, weir__option_word_is_set, word_check)};

/* ---- times ---- */

static uint64_t field_number(const struct weir_option_row *row, const weir_options *options) {
    const void *at = field(row, options);

    return row->kind->is_wide ? *(const uint64_t *)at : *(const uint32_t *)at;
}

static int set_number(const struct weir_option_row *row, weir_options *options, uint64_t value) {
    if (row->kind->is_wide)
        *(uint64_t *)mutable_field(row, options) = value;
    else
        *(uint32_t *)mutable_field(row, options) = (uint32_t)value;
    return 1;
}

static int number_is_set(const struct weir_option_row *row, const weir_options *options) {
    return field_number(row, options) != 0;
}

static uint64_t endless(const struct weir_option_row *row) {
    return row->kind->is_wide ? UINT64_MAX : UINT32_MAX;
}

/* Reads a time such as "250", "250ms" or "2s".  Refuses UINT32_MAX milliseconds and more, because the field uses
 * UINT32_MAX for a word such as "off". */
static int time_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    size_t length = strspn(text, "0123456789");
    uint64_t value, factor = 1;

    if (strcasecmp(text, row->kind->endless) == 0)
        return set_number(row, options, endless(row));
    if (strcasecmp(text + length, "s") == 0)
        factor = 1000;
    else if (text[length] != '\0' && strcasecmp(text + length, "ms") != 0)
        return weir__problem(problem, *text == '-' ? "it is negative"
                                                   : "it is not a whole number with ms or s");
    if (!digits_read(text, length, (UINT32_MAX - 1) / factor, &value, problem))
        return 0;
    if (value == 0 && row->kind->zero)
        return weir__problem(problem, "%s", row->kind->zero);
    return set_number(row, options, value ? value * factor : endless(row));
}

static void time_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint64_t value = field_number(row, options);

    if (value == endless(row))
        snprintf(text, bytes, "%s", row->kind->endless);
    else if (value % 1000 == 0)
        snprintf(text, bytes, "%us", (unsigned)value / 1000);
    else
        snprintf(text, bytes, "%ums", (unsigned)value);
}

static int time_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    uint64_t value = field_number(row, options);

    return value < UINT32_MAX || value == endless(row) || weir__problem(problem, "it is too long");
}

#define TIME FUNCTIONS(time_read, time_spell, number_is_set, time_check)

const struct weir_option_kind weir__option_timeout = {TIME, .endless = "0"};
const struct weir_option_kind weir__option_decay = {TIME, .is_wide = 1, .endless = "off",
                                                    .zero = "a half-life of 0 leaves nothing"};

/* ---- a priority ---- */

#define MOST_PRIORITY 1000

static int priority_read(const struct weir_option_row *row, const char *text, weir_options *options,
                         struct weir_problem *problem) {
    uint64_t value;

    if (!weir__count_read(text, MOST_PRIORITY, &value, problem))
        return 0;
    return value > 0 ? set_number(row, options, value) : weir__problem(problem, "it is too small");
}

static int priority_check(const struct weir_option_row *row, const weir_options *options,
                          struct weir_problem *problem) {
    return field_number(row, options) <= MOST_PRIORITY || weir__problem(problem, "it is too large");
}

static void priority_spell(const struct weir_option_row *row, const weir_options *options,
                           char *text, size_t bytes) {
    snprintf(text, bytes, "%u", (unsigned)field_number(row, options));
}

const struct weir_option_kind weir__option_priority = {
    FUNCTIONS(priority_read, priority_spell, number_is_set, priority_check)};

/* ---- a list of words ---- */

/* Checks a value with one bit for each word of a list.  The first word, such as "off", excludes all others. */
static int bits_valid(const struct weir_option_row *row, uint64_t bits,
                      struct weir_problem *problem) {
    uint64_t none = (uint64_t)row->words[0].value, all = 0;

    for (const struct weir_option_word *w = row->words; w->word; w++)
        all |= (uint64_t)w->value;
    if ((bits & none) && bits != none)
        return weir__problem(problem, "%s goes with none of the others", row->words[0].word);
    return !(bits & ~all) ||
           weir__problem(problem, "there is no bit %#llx", (unsigned long long)(bits & ~all));
}

static int list_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    uint64_t bits = 0;

    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        const struct weir_option_word *word = find_word(row->words, at, length);
        char cut[40], quoted[80];

        if (length == 0)
            return weir__problem(problem, "a word is empty");
        if (!word) {
            snprintf(cut, sizeof cut, "%.*s", length < sizeof cut ? (int)length : 40, at);
            weir__quote(cut, quoted, sizeof quoted);
            return weir__problem(problem, "%s is none of the words known here", quoted);
        }
        bits |= (uint64_t)word->value;
        at += length;
        if (*at == '\0')
            break;
    }
    if (!bits_valid(row, bits, problem))
        return 0;
    *(uint64_t *)mutable_field(row, options) = bits;
    return 1;
}

static void list_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint64_t bits = *(const uint64_t *)field(row, options);
    size_t length = 0;

    text[0] = '\0';
    for (const struct weir_option_word *w = row->words; w->word && length < bytes; w++)
        if (bits & (uint64_t)w->value)
            length +=
                (size_t)snprintf(text + length, bytes - length, "%s%s", length ? "," : "", w->word);
}

static int list_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    return bits_valid(row, *(const uint64_t *)field(row, options), problem);
}

const struct weir_option_kind weir__option_list = {
    FUNCTIONS(list_read, list_spell, number_is_set, list_check), .is_wide = 1};

/* ---- stored texts ---- */

static const char *kept_text(const struct weir_option_row *row, const weir_options *options) {
    return *(const char *const *)field(row, options);
}

/* Stores a text that is never freed.  `kept` is NULL if there was no host memory. */
static int set_text(const struct weir_option_row *row, weir_options *options, const char *kept,
                    struct weir_problem *problem) {
    if (!kept)
        return weir__problem(problem, "out of host memory");
    *(const char **)mutable_field(row, options) = kept;
    return 1;
}

static void name_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    snprintf(text, bytes, "%s", kept_text(row, options));
}

static int name_is_set(const struct weir_option_row *row, const weir_options *options) {
    return kept_text(row, options) != NULL;
}

/* ---- a device ---- */

#define LARGEST_ORDINAL 1023
#define MOST_PEER 63

int weir__option_device_scan(const char *text, const char **driver, int *ordinal,
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

/* Stores the name of a device without leading zeros in its number, so that equal devices have equal texts. */
static int device_read(const struct weir_option_row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    char spelled[24];
    const char *driver;
    int ordinal;

    if (!weir__option_device_scan(text, &driver, &ordinal, problem))
        return 0;
    if (strchr(text, ':'))
        snprintf(spelled, sizeof spelled, "%s:%d", driver, ordinal);
    else
        snprintf(spelled, sizeof spelled, "%s", driver);
    return set_text(row, options, weir__text_intern(spelled, NULL), problem);
}

static int device_check(const struct weir_option_row *row, const weir_options *options,
                        struct weir_problem *problem) {
    const char *text = kept_text(row, options), *driver;
    int ordinal;

    return !text || weir__option_device_scan(text, &driver, &ordinal, problem);
}

const struct weir_option_kind weir__option_device = {
    FUNCTIONS(device_read, name_spell, name_is_set, device_check)};

/* ---- a file ---- */

const char weir__option_no_file[] = "off";

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

static int file_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    int on;

    if (!file_valid(text, problem))
        return 0;
    if (strcasecmp(text, weir__option_no_file) == 0)
        text = weir__option_no_file;
    else if (weir__switch_read(text, &on, problem))
        /* The text is a word such as "on", so the user probably takes this option for a switch. */
        return weir__problem(problem, "it is a switch; a file of that name is ./%s", text);
    return set_text(row, options, weir__text_intern(text, NULL), problem);
}

static int file_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    const char *text = kept_text(row, options);

    return !text || file_valid(text, problem);
}

const struct weir_option_kind weir__option_file = {
    FUNCTIONS(file_read, name_spell, name_is_set, file_check)};

static const char to_stderr[] = "stderr";

/* Refuses "stdout" and words similar to "stderr", which are probably mistakes and not names of files. */
static int oom_report_read(const struct weir_option_row *row, const char *text,
                           weir_options *options, struct weir_problem *problem) {
    if (strcasecmp(text, to_stderr) == 0)
        text = to_stderr;
    else if (strcasecmp(text, "stdout") == 0 ||
             (!strchr(text, '/') && weir__text_distance(text, strlen(text), to_stderr) <= 2))
        return weir__problem(problem, "it is nearly %s; a file of that name is ./%s", to_stderr,
                             text);
    return file_read(row, text, options, problem);
}

const struct weir_option_kind weir__option_oom_report = {
    FUNCTIONS(oom_report_read, name_spell, name_is_set, file_check)};

/* ---- peers ---- */

const char weir__option_no_peers[] = "none";

static const char all_peers[] = "all";

int weir__option_peers_scan(const char *text, uint64_t *devices, struct weir_problem *problem) {
    *devices = 0;
    if (strcasecmp(text, weir__option_no_peers) == 0)
        return 1;
    *devices = UINT64_MAX;
    if (strcasecmp(text, all_peers) == 0)
        return 1;
    *devices = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        uint64_t number;

        if (!digits_read(at, length, MOST_PEER, &number, problem))
            return 0;
        *devices |= UINT64_C(1) << number;
        at += length;
        if (*at == '\0')
            return *devices != UINT64_MAX || weir__problem(problem, "write all for all");
    }
}

/* Stores a list of peer devices sorted and with each device once, so that equal lists have equal texts. */
static int peers_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    char spelled[256] = "";
    const char *list = spelled;
    size_t length = 0;
    uint64_t devices;

    if (!weir__option_peers_scan(text, &devices, problem))
        return 0;
    for (int i = 0; i <= MOST_PEER && devices != UINT64_MAX; i++)
        if (devices >> i & 1)
            length += (size_t)snprintf(spelled + length, sizeof spelled - length, "%s%d",
                                       length ? "," : "", i);
    if (devices == 0 || devices == UINT64_MAX)
        list = devices == 0 ? weir__option_no_peers : all_peers;
    return set_text(row, options, weir__text_intern(list, NULL), problem);
}

static int peers_check(const struct weir_option_row *row, const weir_options *options,
                       struct weir_problem *problem) {
    const char *text = kept_text(row, options);
    uint64_t devices;

    return !text || weir__option_peers_scan(text, &devices, problem);
}

const struct weir_option_kind weir__option_peers = {
    FUNCTIONS(peers_read, name_spell, name_is_set, peers_check)};

/* ---- amounts of memory ---- */

/* One million, in millionths. */
#define LARGEST_WEIGHT UINT64_C(1000000000000)

static int share_valid(const weir_amount *amount, int percent, struct weir_problem *problem) {
    if (percent == WEIR_AMOUNT_OF_IN_USE && amount->kind != percent)
        return weir__problem(problem, "it is a share of %s, which does not do here",
                             amount->kind == WEIR_AMOUNT_OF_FREE ? "what is free" : "the device");
    if (percent == WEIR_AMOUNT_OF_TOTAL && amount->kind == WEIR_AMOUNT_OF_IN_USE)
        return weir__problem(problem, "it is a share of what is in use, which does not do here");
    return amount->value <= 1000000 || weir__problem(problem, "it is more than 100%%");
}

static int amount_valid(const struct weir_option_row *row, const weir_amount *amount,
                        const weir_options *options, struct weir_problem *problem) {
    int has_origin = row->kind == &weir__option_part && weir__framework_prealloc(options);

    switch (has_origin ? amount->kind & WEIR_AMOUNT_KIND : amount->kind) {
    case WEIR_AMOUNT_DEFAULT:
        return amount->value == 0 || weir__problem(problem, "it has a value but no kind");
    case WEIR_AMOUNT_OF_TOTAL:
    case WEIR_AMOUNT_OF_FREE:
    case WEIR_AMOUNT_OF_IN_USE:
        if (!share_valid(amount, row->kind->percent, problem))
            return 0;
        break;
    case WEIR_AMOUNT_BYTES:
        break;
    case WEIR_AMOUNT_MAX:
        return row->kind != &weir__option_ahead ||
               weir__problem(problem, "there is no room beyond max: preallocate max for that");
    case WEIR_AMOUNT_SHARE:
        if (row->kind != &weir__option_part && row->kind != &weir__option_limit)
            return weir__problem(problem, "it is a share among processes, which does not do here");
        return amount->value <= LARGEST_WEIGHT || weir__problem(problem, "the weight is too large");
    default:
        return weir__problem(problem, "there is no amount of kind %d", amount->kind);
    }
    if (amount->value == 0 && row->kind == &weir__option_limit)
        return weir__problem(problem, "nothing could be allocated; max means no limit");
    return 1;
}

static int set_amount(const struct weir_option_row *row, const weir_amount *amount,
                      weir_options *options, struct weir_problem *problem) {
    weir_amount *set = mutable_field(row, options);

    if (!amount_valid(row, amount, options, problem))
        return 0;
    /* Assigns the fields one by one.  An assignment of the struct could change its padding, which must stay 0. */
    set->value = amount->value;
    set->kind = amount->kind;
    return 1;
}

static int amount_read(const struct weir_option_row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    weir_amount amount;

    if (!weir__amount_read(text, &amount, problem))
        return 0;
    if (amount.kind == WEIR_AMOUNT_OF_TOTAL)
        amount.kind = row->kind->percent;
    return set_amount(row, &amount, options, problem);
}

/* Reads an amount of memory or a share of the device, such as "share" or "share:2". */
static int part_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    weir_amount amount = {1000000, WEIR_AMOUNT_SHARE};
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
    return set_amount(row, &amount, options, problem);
}

static int amount_is_set(const struct weir_option_row *row, const weir_options *options) {
    return ((const weir_amount *)field(row, options))->kind != WEIR_AMOUNT_DEFAULT;
}

static void amount_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                         size_t bytes) {
    weir__amount_spell(field(row, options), text, bytes);
}

static int amount_check(const struct weir_option_row *row, const weir_options *options,
                        struct weir_problem *problem) {
    return amount_valid(row, field(row, options), options, problem);
}

const struct weir_option_kind weir__option_amount = {
    FUNCTIONS(amount_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};
const struct weir_option_kind weir__option_part = {
    FUNCTIONS(part_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};
/* The option `limit` must not be 0. */
const struct weir_option_kind weir__option_limit = {
    FUNCTIONS(part_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};

/* If the cache limit is not set, describes its default in words, since the default depends on the bytes in use. */
static void cache_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                        size_t bytes) {
    if (amount_is_set(row, options))
        amount_spell(row, options, text, bytes);
    else
        snprintf(text, bytes, "%s", row->text.default_text);
}

const struct weir_option_kind weir__option_cache = {
    FUNCTIONS(amount_read, cache_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_IN_USE};

/* ---- grow-ahead ---- */

static int ahead_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    if (strchr(text, ':'))
        return weir__problem(problem, "write one size: growth stops when twice that is idle");
    return amount_read(row, text, options, problem);
}

const struct weir_option_kind weir__option_ahead = {
    FUNCTIONS(ahead_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};

/* ---- growth policies ---- */

const struct weir_option_word weir__option_policies[] = {
#define POLICY_WORD(name, word, value) {word, value},
    WEIR_GROWTH_POLICIES(POLICY_WORD)
#undef POLICY_WORD
        {NULL, 0},
};

static int factor_valid(int growth, double factor, struct weir_problem *problem) {
    if (growth == WEIR_GROWTH_GEOMETRIC && !(factor > 1 && factor <= 1e300))
        return weir__problem(problem, "the factor must be above 1 and finite");
    if (growth == WEIR_GROWTH_REMAINING && !(factor > 0 && factor <= 1))
        return weir__problem(problem, "the fraction must be above 0 and at most 1");
    return 1;
}

/* Reads the part behind the colon in a growth policy such as "step:64MiB", "geometric:2:4GiB" or "remaining:0.5". */
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
    if (!weir__size_read(end + 1, &growth->growth_step, problem))
        return 0;
    return growth->growth_step > 0 || weir__problem(problem, "the cap is 0");
}

/* Reads a growth policy such as "step:64MiB".  Sets all growth fields, so that none keeps an earlier value. */
static int growth_read(const struct weir_option_row *row, const char *text, weir_options *options,
                       struct weir_problem *problem) {
    size_t length = strcspn(text, ":");
    const struct weir_option_word *word = find_word(weir__option_policies, text, length);
    weir_options growth = {.growth = word ? word->value : WEIR_GROWTH_DEFAULT};

    (void)row;
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
    options->growth_function = NULL;
    options->growth_context = NULL;
    return 1;
}

static void growth_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                         size_t bytes) {
    char argument[WEIR_SPELL_BYTES] = "", cap[WEIR_SPELL_BYTES] = "";
    const char *word = word_for(weir__option_policies, options->growth);

    (void)row;
    if (options->growth == WEIR_GROWTH_STEP)
        weir__bytes_spell(options->growth_step, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC || options->growth == WEIR_GROWTH_REMAINING)
        weir__factor_spell(options->growth_factor, argument, sizeof argument);
    if (options->growth == WEIR_GROWTH_GEOMETRIC && options->growth_step > 0)
        weir__bytes_spell(options->growth_step, cap, sizeof cap);
    snprintf(text, bytes, "%s%s%s%s%s", word ? word : "?", argument[0] ? ":" : "", argument,
             cap[0] ? ":" : "", cap);
}

static int growth_is_set(const struct weir_option_row *row, const weir_options *options) {
    (void)row;
    return options->growth != WEIR_GROWTH_DEFAULT || options->growth_function != NULL;
}

static int growth_check(const struct weir_option_row *row, const weir_options *options,
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
        return 1; /* 0 means the policy's default */
    return factor_valid(options->growth, options->growth_factor, problem);
}

const struct weir_option_kind weir__option_growth = {
    FUNCTIONS(growth_read, growth_spell, growth_is_set, growth_check)};
