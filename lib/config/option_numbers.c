/* SPDX-License-Identifier: MIT */
/* option_numbers.c: options whose value is a time or a count. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

/* ---- times ---- */

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

static uint64_t number_of(const struct weir_option_row *row, const weir_options *options) {
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

int weir__option_number_is_set(const struct weir_option_row *row, const weir_options *options) {
    return number_of(row, options) != 0;
}

static uint64_t endless(const struct weir_option_row *row) {
    return row->kind->is_wide ? UINT64_MAX : UINT32_MAX;
}

static int time_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    uint32_t value = 0;

    if (strcasecmp(text, row->kind->endless) == 0)
        return set_number(row, options, endless(row));
    if (!milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0 && row->kind->zero)
        return weir__problem(problem, "%s", row->kind->zero);
    return set_number(row, options, value ? value : endless(row));
}

static void time_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint64_t value = number_of(row, options);

    if (value == endless(row))
        snprintf(text, bytes, "%s", row->kind->endless);
    else
        milliseconds_spell((uint32_t)value, text, bytes);
}

static int time_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    uint64_t value = number_of(row, options);

    return value < UINT32_MAX || value == endless(row) || weir__problem(problem, "it is too long");
}

#define TIME FUNCTIONS(time_read, time_spell, weir__option_number_is_set, time_check)

const struct weir_option_kind weir__option_timeout = {TIME, .endless = "0"};
const struct weir_option_kind weir__option_decay = {TIME, .is_wide = 1, .endless = "off",
                                                    .zero = "a half-life of 0 leaves nothing"};

/* ---- counts ---- */

/* From 1 to the kind's most. */
static int count_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    uint64_t value;

    if (!weir__count_read(text, row->kind->most, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "it is too small");
    return set_number(row, options, value);
}

static int count_check(const struct weir_option_row *row, const weir_options *options,
                       struct weir_problem *problem) {
    return number_of(row, options) <= row->kind->most || weir__problem(problem, "it is too large");
}

static void count_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                        size_t bytes) {
    snprintf(text, bytes, "%u", (unsigned)number_of(row, options));
}

#define COUNT FUNCTIONS(count_read, count_spell, weir__option_number_is_set, count_check)

const struct weir_option_kind weir__option_priority = {COUNT, .most = 1000};
