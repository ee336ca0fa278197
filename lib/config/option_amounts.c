/* SPDX-License-Identifier: MIT */
/* option_amounts.c: options whose value is an amount of memory: bytes, a share of something, or max. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define LARGEST_WEIGHT UINT64_C(1000000000000) /* a million, in millionths */

static int share_valid(const weir_amount *amount, int percent, struct weir_problem *problem) {
    if (percent == WEIR_AMOUNT_OF_IN_USE && amount->kind != percent)
        return weir__problem(problem, "it is a share of %s, which does not do here",
                             amount->kind == WEIR_AMOUNT_OF_FREE ? "what is free" : "the device");
    if (percent == WEIR_AMOUNT_OF_TOTAL && amount->kind == WEIR_AMOUNT_OF_IN_USE)
        return weir__problem(problem, "it is a share of what is in use, which does not do here");
    return amount->value <= 1000000 || weir__problem(problem, "it is more than 100%%");
}

static int amount_valid(const struct weir_option_row *row, const weir_amount *amount,
                        struct weir_problem *problem) {
    switch (amount->kind) {
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
    if (!amount_valid(row, amount, problem))
        return 0;
    *(weir_amount *)mutable_field(row, options) = *amount;
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

/* Reads "share", "share:2", or another amount. */
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
    return amount_valid(row, field(row, options), problem);
}

const struct weir_option_kind weir__option_amount = {
    FUNCTIONS(amount_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};
const struct weir_option_kind weir__option_part = {
    FUNCTIONS(part_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};
/* A limit must not be 0. */
const struct weir_option_kind weir__option_limit = {
    FUNCTIONS(part_read, amount_spell, amount_is_set, amount_check),
    .percent = WEIR_AMOUNT_OF_TOTAL};

/* Writes the default of cache-limit in words, since no amount stands for it. */
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
