/* SPDX-License-Identifier: MIT */
/* text.c: reads and writes sizes, amounts, factors and counts as text.
 *
 * strtoull accepts signs and leading spaces, so this file reads numbers itself.  Sizes are computed with integers, so
 * 0.1TiB is exact to the byte. */
#include "base/text.h"

#include <inttypes.h>
#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const binary_units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
static const char *const decimal_units[] = {"B", "KB", "MB", "GB", "TB"};
enum { LAST_UNIT = 4 };

/* A smaller number without a unit is refused, since the user probably means MiB. */
#define LEAST_PLAIN (UINT64_C(1) << 20)
/* weir refuses a larger factor, since a double of this size has too few digits after the point. */
#define MOST_FACTOR 1e15
/* The number of digits that are read after the point.  Further digits would change no double above 1. */
enum { FACTOR_DIGITS = 17 };

int weir__problem(struct weir_problem *problem, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    return 0;
}

void weir__quote(const char *text, char *quoted, size_t quoted_bytes) {
    enum { MOST = 60 };
    size_t i;
    char shown[MOST + 4];

    for (i = 0; i < MOST && text[i] != '\0'; i++)
        shown[i] = (unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i];
    memcpy(shown + i, text[i] == '\0' ? "" : "...", text[i] == '\0' ? 1 : 4);
    snprintf(quoted, quoted_bytes, "'%s'", shown);
}

/* ------------------------------------------------------------------ reading ---- */

/* The positions of a decimal number such as "12.25" in a text: its digits before and after the point. */
struct decimal {
    const char *whole;
    size_t whole_digits;
    const char *fraction;
    size_t fraction_digits;
};

static size_t digits_at(const char *text) {
    return strspn(text, "0123456789");
}

/* Finds the decimal number at the start of a text, such as ".5" but not "5.".  Returns 1, or 0 with the reason. */
static int decimal_scan(const char *text, const char **end, struct decimal *out,
                        struct weir_problem *problem) {
    size_t whole_digits = digits_at(text);
    const char *rest = text + whole_digits;
    size_t fraction_digits = *rest == '.' ? digits_at(rest + 1) : 0;

    if (*text == '\0')
        return weir__problem(problem, "it is empty");
    if (*text == '-')
        return weir__problem(problem, "it is negative");
    if (*rest == '.' && fraction_digits == 0)
        return weir__problem(problem, "no digits follow the point");
    if (whole_digits + fraction_digits == 0)
        return weir__problem(problem, "it is not a number");
    out->whole = text;
    out->whole_digits = whole_digits;
    out->fraction = fraction_digits > 0 ? rest + 1 : rest;
    out->fraction_digits = fraction_digits;
    *end = fraction_digits > 0 ? rest + 1 + fraction_digits : rest;
    return 1;
}

static int fraction_is_zero(const struct decimal *decimal) {
    for (size_t i = 0; i < decimal->fraction_digits; i++)
        if (decimal->fraction[i] != '0')
            return 0;
    return 1;
}

int weir__digits_read(const char **at, uint64_t most, uint64_t *value) {
    const char *first = *at;
    int fits = 1;

    *value = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++)
        fits = fits && !__builtin_mul_overflow(*value, UINT64_C(10), value) &&
               !__builtin_add_overflow(*value, (uint64_t)(**at - '0'), value) && *value <= most;
    return *at == first ? 0 : fits ? 1 : -1;
}

/* Computes the value of the digits before the point, 0 if there are none.  Returns 1, or 0 on overflow. */
static int whole_value(const struct decimal *decimal, uint64_t *out) {
    const char *at = decimal->whole;

    return weir__digits_read(&at, UINT64_MAX, out) >= 0;
}

/* Returns floor(0.fraction * factor), where `fraction` is the digits after the point.  `factor` is at most 2^60. */
static uint64_t fraction_of(const struct decimal *decimal, uint64_t factor) {
    uint64_t value = 0;

    for (size_t i = decimal->fraction_digits; i > 0; i--)
        value = ((uint64_t)(decimal->fraction[i - 1] - '0') * factor + value) / 10;
    return value;
}

/* Computes the product of a decimal number and `factor`, rounded down.  Returns 1 on success, 0 on overflow. */
static int decimal_times(const struct decimal *decimal, uint64_t factor, uint64_t *out) {
    uint64_t value;

    if (!whole_value(decimal, &value) || __builtin_mul_overflow(value, factor, &value) ||
        __builtin_add_overflow(value, fraction_of(decimal, factor), &value))
        return 0;
    *out = value;
    return 1;
}

static const char *skip_spaces(const char *text) {
    return text + strspn(text, " ");
}

/* Refuses a number such as "0.95" without a unit, which may mean a part of the device or a size. */
static int refuse_bare_fraction(const struct decimal *decimal, struct weir_problem *problem) {
    weir_amount percent = {0, WEIR_AMOUNT_OF_TOTAL};
    char text[WEIR_SPELL_BYTES];

    if (decimal_times(decimal, 1000000, &percent.value) && percent.value > 0 &&
        percent.value <= 1000000) {
        weir__amount_spell(&percent, text, sizeof text);
        return weir__problem(problem, "a fraction needs a unit: write %s, or a size such as 4GiB",
                             text);
    }
    return weir__problem(problem, "a fraction needs a unit: write a size such as 1.5GiB");
}

static int same_letter(char a, char b) {
    return (a >= 'a' && a <= 'z' ? a - 'a' + 'A' : a) == (b >= 'a' && b <= 'z' ? b - 'a' + 'A' : b);
}

/* Returns the bytes of a unit such as "", "B", "KiB", "K" or "KB", in upper or lower case; 0 if it is unknown. */
static uint64_t unit_factor(const char *unit) {
    uint64_t binary = 1, decimal = 1;

    for (int i = 0; i <= LAST_UNIT; i++, binary *= 1024, decimal *= 1000) {
        if (strcasecmp(unit, binary_units[i]) == 0 ||
            (unit[0] == '\0' ? i == 0 : unit[1] == '\0' && same_letter(*unit, *binary_units[i])))
            return binary;
        if (strcasecmp(unit, decimal_units[i]) == 0)
            return decimal;
    }
    return 0;
}

int weir__bytes_read(const char *text, uint64_t *bytes, struct weir_problem *problem) {
    struct decimal decimal;
    const char *unit;
    uint64_t factor;

    if (!decimal_scan(text, &unit, &decimal, problem))
        return 0;
    unit = skip_spaces(unit);
    factor = unit_factor(unit);
    if (factor == 0)
        return *unit == '%' ? weir__problem(problem, "a percentage does not do here")
                            : weir__problem(problem, "the unit is unknown");
    if (factor == 1 && decimal.fraction_digits > 0)
        return refuse_bare_fraction(&decimal, problem);
    if (!decimal_times(&decimal, factor, bytes))
        return weir__problem(problem, "it is too large");
    return 1;
}

int weir__size_read(const char *text, uint64_t *bytes, struct weir_problem *problem) {
    if (!weir__bytes_read(text, bytes, problem))
        return 0;
    if (*bytes > 0 && *bytes < LEAST_PLAIN && *skip_spaces(text + digits_at(text)) == '\0')
        return weir__problem(problem,
                             "a plain number is bytes: write %" PRIu64 "MiB, %" PRIu64
                             "GiB, or %" PRIu64 "B if so few are meant",
                             *bytes, *bytes, *bytes);
    return 1;
}

static int percent_read(const struct decimal *decimal, const char *rest, weir_amount *amount,
                        struct weir_problem *problem) {
    uint64_t millionths;

    if (*rest != '\0' && strcasecmp(rest, "free") != 0)
        return weir__problem(problem, "only \"free\" may follow the percent sign");
    if (!decimal_times(decimal, 10000, &millionths) || millionths > 1000000 ||
        (millionths == 1000000 && !fraction_is_zero(decimal)))
        return weir__problem(problem, "it is more than 100%%");
    amount->kind = *rest == '\0' ? WEIR_AMOUNT_OF_TOTAL : WEIR_AMOUNT_OF_FREE;
    amount->value = millionths;
    return 1;
}

int weir__amount_read(const char *text, weir_amount *amount, struct weir_problem *problem) {
    struct decimal decimal;
    const char *rest;
    uint64_t bytes;

    if (strcasecmp(text, "max") == 0) {
        *amount = (weir_amount){0, WEIR_AMOUNT_MAX};
        return 1;
    }
    if (!decimal_scan(text, &rest, &decimal, problem))
        return 0;
    rest = skip_spaces(rest);
    if (*rest == '%')
        return percent_read(&decimal, skip_spaces(rest + 1), amount, problem);
    if (!weir__size_read(text, &bytes, problem))
        return 0;
    *amount = (weir_amount){bytes, WEIR_AMOUNT_BYTES};
    return 1;
}

int weir__switch_read(const char *text, int *on, struct weir_problem *problem) {
    static const char *const words[2][4] = {{"off", "0", "false", "no"},
                                            {"on", "1", "true", "yes"}};

    for (int value = 0; value < 2; value++)
        for (size_t i = 0; i < sizeof words[0] / sizeof words[0][0]; i++)
            if (strcasecmp(text, words[value][i]) == 0) {
                *on = value;
                return 1;
            }
    return weir__problem(problem, *text ? "it is no switch" : "it is empty");
}

int weir__fraction_read(const char *text, uint64_t *millionths, struct weir_problem *problem) {
    struct decimal decimal;
    const char *rest;
    uint64_t value;
    int fits;

    if (!decimal_scan(text, &rest, &decimal, problem))
        return 0;
    if (*rest != '\0')
        return weir__problem(problem, "it is not a plain decimal number");
    fits = decimal_times(&decimal, 1000000, &value);
    if (!fits || value > 1000000 || (value == 1000000 && !fraction_is_zero(&decimal)))
        return weir__problem(problem, "it is more than 1");
    if (value == 0)
        return weir__problem(problem, fraction_is_zero(&decimal) ? "it is 0" : "it is too small");
    *millionths = value;
    return 1;
}

int weir__factor_read(const char *text, const char **end, double *factor,
                      struct weir_problem *problem) {
    struct decimal d;
    char plain[64];
    double value;

    if (!decimal_scan(text, end, &d, problem))
        return 0;
    for (; d.whole_digits > 0 && *d.whole == '0'; d.whole_digits--)
        d.whole++;
    /* strtod expects the decimal point of the program's locale */
    snprintf(plain, sizeof plain, "%.*s%s%.*s", d.whole_digits < 20 ? (int)d.whole_digits : 20,
             d.whole, localeconv()->decimal_point,
             d.fraction_digits < FACTOR_DIGITS ? (int)d.fraction_digits : FACTOR_DIGITS,
             d.fraction);
    value = strtod(plain, NULL);
    if (!(value < MOST_FACTOR))
        return weir__problem(problem, "it is too large");
    *factor = value;
    return 1;
}

int weir__count_read(const char *text, uint64_t most, uint64_t *count,
                     struct weir_problem *problem) {
    struct decimal decimal;
    const char *rest;
    uint64_t value;

    if (!decimal_scan(text, &rest, &decimal, problem))
        return 0;
    if (*rest != '\0' || decimal.fraction_digits > 0)
        return weir__problem(problem, "it is not a whole number");
    if (!whole_value(&decimal, &value) || value > most)
        return weir__problem(problem, "it is too large");
    *count = value;
    return 1;
}

/* ----------------------------------------------------------------- spelling ---- */

/* Divides *bytes by `base` (1024 or 1000) while there is no remainder.  Returns the index of the unit, 0 for bytes. */
static unsigned reduce(uint64_t *bytes, unsigned base) {
    unsigned unit = 0;

    while (unit < LAST_UNIT && *bytes != 0 && *bytes % base == 0) {
        *bytes /= base;
        unit++;
    }
    return unit;
}

/* Uses a decimal unit if the text becomes shorter: "4GB" instead of "3906250KiB". */
void weir__bytes_spell(uint64_t bytes, char *text, size_t text_bytes) {
    uint64_t left = bytes, decimal = bytes;
    unsigned unit = reduce(&left, 1024), decimal_unit = reduce(&decimal, 1000);

    if (decimal < left)
        snprintf(text, text_bytes, "%llu%s", (unsigned long long)decimal,
                 decimal_units[decimal_unit]);
    else
        snprintf(text, text_bytes, "%llu%s", (unsigned long long)left,
                 left == 0 || (unit == 0 && left >= LEAST_PLAIN) ? "" : binary_units[unit]);
}

/* Writes a decimal number without zeros at its end.  If `whole` is 12, `fraction` 500 and `digits` 3, writes "12.5". */
static void decimal_spell(uint64_t whole, uint64_t fraction, int digits, const char *unit,
                          char *text, size_t text_bytes) {
    while (digits > 0 && fraction % 10 == 0) {
        fraction /= 10;
        digits--;
    }
    if (digits == 0)
        snprintf(text, text_bytes, "%llu%s", (unsigned long long)whole, unit);
    else
        snprintf(text, text_bytes, "%llu.%0*llu%s", (unsigned long long)whole, digits,
                 (unsigned long long)fraction, unit);
}

void weir__bytes_show(uint64_t bytes, char *text, size_t text_bytes) {
    unsigned unit = 0;
    uint64_t factor = 1, whole, hundredths;

    while (unit < LAST_UNIT && bytes / factor >= 1024) {
        factor *= 1024;
        unit++;
    }
    whole = bytes / factor;
    hundredths = (bytes % factor * 100 + factor / 2) / factor;
    if (hundredths == 100) {
        hundredths = 0;
        whole++;
        if (whole == 1024 && unit < LAST_UNIT) {
            whole = 1;
            unit++;
        }
    }
    decimal_spell(whole, hundredths, 2, binary_units[unit], text, text_bytes);
}

struct weir_shown weir__shown(uint64_t bytes) {
    struct weir_shown shown = {"not known"};

    if (bytes != UINT64_MAX)
        weir__bytes_show(bytes, shown.text, sizeof shown.text);
    return shown;
}

void weir__amount_spell(const weir_amount *amount, char *text, size_t text_bytes) {
    char number[WEIR_SPELL_BYTES];

    switch (amount->kind & WEIR_AMOUNT_KIND) {
    case WEIR_AMOUNT_BYTES:
        weir__bytes_spell(amount->value, text, text_bytes);
        break;
    case WEIR_AMOUNT_OF_TOTAL:
    case WEIR_AMOUNT_OF_FREE:
    case WEIR_AMOUNT_OF_IN_USE:
        decimal_spell(amount->value / 10000, amount->value % 10000, 4,
                      amount->kind == WEIR_AMOUNT_OF_FREE ? "%free" : "%", text, text_bytes);
        break;
    case WEIR_AMOUNT_SHARE:
        decimal_spell(amount->value / 1000000, amount->value % 1000000, 6, "", number,
                      sizeof number);
        if (amount->value == 1000000)
            snprintf(text, text_bytes, "share");
        else
            snprintf(text, text_bytes, "share:%.*s", WEIR_SPELL_BYTES - 8, number);
        break;
    default:
        snprintf(text, text_bytes, amount->kind == WEIR_AMOUNT_MAX ? "max" : "default");
    }
}

/* Writes the smallest number of digits from which weir__factor_read() reads an equal factor. */
void weir__factor_spell(double factor, char *text, size_t text_bytes) {
    size_t point_bytes = strlen(localeconv()->decimal_point), digits;
    struct weir_problem problem;
    char number[400];
    const char *end;
    double read;

    for (int n = 0; n <= FACTOR_DIGITS; n++) {
        snprintf(number, sizeof number, "%.*f", n, factor);
        digits = strspn(number, "-0123456789");
        snprintf(text, text_bytes, "%.*s%s%s", (int)digits, number, n > 0 ? "." : "",
                 number + digits + (n > 0 ? point_bytes : 0));
        if (!(factor < MOST_FACTOR) ||
            (weir__factor_read(text, &end, &read, &problem) && read >= factor && read <= factor))
            return;
    }
}

size_t weir__text_distance(const char *a, size_t a_length, const char *b) {
    size_t b_length = strlen(b), row[WEIR_DISTANT + 1], above[WEIR_DISTANT + 1] = {0};

    if (a_length > WEIR_DISTANT || b_length > WEIR_DISTANT)
        return WEIR_DISTANT;
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        /* `diagonal` is the distance of the first i - 1 and j - 1 letters; `far` is the distance of i - 2 and j - 2. */
        size_t diagonal = row[0], far = 0;

        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);

            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) &&
                same_letter(a[i - 2], b[j - 1]) && far + 1 < best)
                best = far + 1;
            far = above[j - 1];
            above[j - 1] = diagonal;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_length];
}

/* --------------------------------------------------------------- kept texts ---- */

struct kept {
    struct kept *next;
    char text[];
};

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
/* The texts that weir__text_intern() has copied, guarded by kept_lock.  Entries never change and are never freed. */
static struct kept *kept_texts;

const char *weir__text_intern(const char *text, int *is_new) {
    size_t bytes = strlen(text) + 1;
    struct kept *node;

    pthread_mutex_lock(&kept_lock);
    for (node = kept_texts; node; node = node->next)
        if (strcmp(node->text, text) == 0)
            break;
    if (is_new)
        *is_new = node == NULL;
    if (!node && (node = malloc(sizeof *node + bytes)) != NULL) {
        memcpy(node->text, text, bytes);
        node->next = kept_texts;
        kept_texts = node;
    }
    pthread_mutex_unlock(&kept_lock);
    return node ? node->text : NULL;
}
