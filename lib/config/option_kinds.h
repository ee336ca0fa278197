/* SPDX-License-Identifier: MIT */
/* option_kinds.h: what one row of the option table can do, for the files that make up the table.
 *
 * What: a row (option_table.c) says how an option is called, which field holds it, of which kind it is, and how it is
 * explained.  A kind is four functions: read from text, spell as text, is it set, is it in range.  The kinds are in
 * option_amounts.c, option_growth.c and option_values.c.  option_text.c reads and shows options by row, option_struct.c
 * copies a caller's struct, option_resolve.c completes it.
 *
 * A kind of numbers or amounts also has what tells it from others of its file.
 *
 * Invariants: a value that text cannot set is refused by the same range check as one that a program put into the struct,
 * so both ways in accept the same values.
 *
 * Must not know: the environment, but that an amount may be another program's; which devices there are; what an option
 * does.
 */
#ifndef WEIR_OPTION_KINDS_H
#define WEIR_OPTION_KINDS_H

#include "config/settings.h"

#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

/* What the struct has for a time without end, and for no decay. */
#define WEIR_NEVER UINT32_MAX
#define WEIR_NO_DECAY UINT64_MAX

struct weir_option_word {
    const char *word;
    int value;
};

struct weir_option_row;

struct weir_option_kind {
    int (*read)(const struct weir_option_row *row, const char *text, weir_options *options,
                struct weir_problem *problem);
    void (*spell)(const struct weir_option_row *row, const weir_options *options, char *text,
                  size_t bytes);
    int (*is_set)(const struct weir_option_row *row, const weir_options *options);
    int (*check)(const struct weir_option_row *row, const weir_options *options,
                 struct weir_problem *problem);
    int percent;         /* amounts: the kind (WEIR_AMOUNT_) of a percentage */
    int is_wide;         /* numbers: the field has 64 bits rather than 32 */
    uint64_t most;       /* counts */
    const char *endless; /* times: the word for all bits set */
    const char *zero;    /* times: what is wrong with 0; NULL: it is as `endless' */
};

/* Of a kind: the rest is 0 unless it is named. */
#define FUNCTIONS(its_read, its_spell, its_is_set, its_check)                                      \
    .read = its_read, .spell = its_spell, .is_set = its_is_set, .check = its_check

struct weir_option_row {
    struct weir_setting_row text;
    const struct weir_option_kind *kind;
    size_t offset; /* of the field in weir_options; growth: of the first of its fields */
    /* Of kind word, ended by NULL.  The first is the default's meaning, unless weir__options_fill knows another. */
    const struct weir_option_word *words;
};

static inline const void *field(const struct weir_option_row *row, const weir_options *options) {
    return (const char *)options + row->offset;
}

static inline void *mutable_field(const struct weir_option_row *row, weir_options *options) {
    return (char *)options + row->offset;
}

/* ---- the table: option_table.c ---- */

/* In option_growth.c: words of policies. */
extern const struct weir_option_word weir__option_policies[];

extern const struct weir_option_row weir__option_rows[WEIR_SETTING_COUNT];

/* What an amount accepts. */
#define WEIR_SIZE_ACCEPTS "a size (4GiB, 512MB, 75%, 90%free, max)"

/* ---- kinds ---- */

extern const struct weir_option_kind weir__option_device, weir__option_word,
    weir__option_amount, weir__option_part, weir__option_limit, weir__option_cache,
    weir__option_growth, weir__option_timeout, weir__option_decay, weir__option_priority, weir__option_ahead,
    weir__option_list, weir__option_file, weir__option_oom_report, weir__option_peers;

/* The words for no file and for no peers; a file of that name is ./off. */
extern const char weir__option_no_file[], weir__option_no_peers[];

int weir__option_device_scan(const char *text, const char **driver, int *ordinal,
                             struct weir_problem *problem);
int weir__option_peers_scan(const char *text, uint64_t *devices, struct weir_problem *problem);
int weir__option_word_is_set(const struct weir_option_row *row, const weir_options *options);

/* The policy that measured best for each engine; see weir-settings(7). */
int weir__option_default_growth(const weir_options *options);

/* ---- a caller's struct: option_struct.c ---- */

/* Some version of the struct was, or will be, so long: fields are added at its end, so each one's beginning is an end
 * that it had, and no other place is.  Most fields are a setting's. */
int weir__options_is_size(size_t bytes);
/* What is wrong with the struct's size; NULL: nothing. */
const char *weir__options_size_problem(const weir_options *options);
/* `size` must have been checked; the caller's tail that this library does not know is left out. */
void weir__options_copy(const weir_options *options, weir_options *out);
/* What this library does not know of the struct is 0. */
int weir__options_tail_is_zero(const weir_options *options);

/* ---- defaults: option_resolve.c ---- */

/* Every field's default replaced by its meaning; no amount says that of cache_limit. */
void weir__options_fill(weir_options *options);

/* ---- messages ---- */

/* Writes the message, if there is to be one, and returns the status. */
__attribute__((format(printf, 4, 5))) weir_status weir__option_refuse(weir_status status,
                                                                      char *message,
                                                                      size_t message_bytes,
                                                                      const char *format, ...);
/* Empties the message, if there is one. */
static inline void no_message(char *message, size_t message_bytes) {
    if (message && message_bytes > 0)
        message[0] = '\0';
}

#endif
