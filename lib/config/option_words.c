/* SPDX-License-Identifier: MIT */
/* option_words.c: options whose value is one word, or a list of words. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

static int word_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    for (const struct weir_option_word *w = row->words; w->word; w++)
        if (strcasecmp(text, w->word) == 0) {
            *(int *)mutable_field(row, options) = w->value;
            return 1;
        }
    return weir__problem(problem, *text ? "it is none of the words known here" : "it is empty");
}

static void word_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    int value = *(const int *)field(row, options);

    for (const struct weir_option_word *w = row->words; w->word; w++)
        if (w->value == value) {
            snprintf(text, bytes, "%s", w->word);
            return;
        }
    snprintf(text, bytes, "%d", value);
}

int weir__option_word_is_set(const struct weir_option_row *row, const weir_options *options) {
    return *(const int *)field(row, options) != 0;
}

static int word_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    int value = *(const int *)field(row, options);

    for (const struct weir_option_word *w = row->words; w->word; w++)
        if (value == 0 || w->value == value)
            return 1;
    return weir__problem(problem, "there is no value %d", value);
}

const struct weir_option_kind weir__option_word = {
    FUNCTIONS(word_read, word_spell, weir__option_word_is_set, word_check)};

/* ---- a list of words ---- */

/* Bits of a uint64_t; the first word stands for none of the others. */
static int word_of(const struct weir_option_row *row, const char *text, size_t length,
                   uint64_t *bit) {
    for (const struct weir_option_word *w = row->words; w->word; w++)
        if (strlen(w->word) == length && strncasecmp(text, w->word, length) == 0) {
            *bit = (uint64_t)w->value;
            return 1;
        }
    return 0;
}

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

static int unknown_word(const char *text, size_t length, struct weir_problem *problem) {
    char word[40], quoted[80];

    if (length == 0)
        return weir__problem(problem, "a word is empty");
    snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word), text);
    weir__quote(word, quoted, sizeof quoted);
    return weir__problem(problem, "%s is none of the words known here", quoted);
}

static int list_read(const struct weir_option_row *row, const char *text, weir_options *options,
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
    FUNCTIONS(list_read, list_spell, weir__option_number_is_set, list_check), .is_wide = 1};
