/* SPDX-License-Identifier: MIT */
/* option_kinds.h: the kinds of options (sizes, times, switches and so on), for the files that make up the option table.
 *
 * A kind has functions that read a text, write a text, check a value (from a text or from a program), and test whether
 * the option is set.  settings.c uses them. */
#ifndef WEIR_OPTION_KINDS_H
#define WEIR_OPTION_KINDS_H

#include "config/settings.h"

#include <stdint.h>
#include <stdio.h>

#include "base/text.h"

/* The value of options.decay_ms that means: weir does not release idle memory as time passes. */
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
    int percent;         /* for amounts: what "75%" is a share of, such as WEIR_AMOUNT_OF_TOTAL */
    int is_wide;         /* for numbers: set if the field has 64 bits, not 32 */
    const char *endless; /* for times: the word that means the field's largest number */
    const char *zero;    /* for times: the error message for 0; NULL: 0 is allowed */
};

#define FUNCTIONS(its_read, its_spell, its_is_set, its_check)                                      \
    .read = its_read, .spell = its_spell, .is_set = its_is_set, .check = its_check

struct weir_option_row {
    struct weir_setting_row text;
    const struct weir_option_kind *kind;
    size_t offset; /* of the option's first field in weir_options */
    /* The accepted words; an entry with a NULL word ends the list.  The first word is usually the default. */
    const struct weir_option_word *words;
};

static inline const void *field(const struct weir_option_row *row, const weir_options *options) {
    return (const char *)options + row->offset;
}

static inline void *mutable_field(const struct weir_option_row *row, weir_options *options) {
    return (char *)options + row->offset;
}

/* ---- the table: option_table.c ---- */

extern const struct weir_option_word weir__option_policies[];

extern const struct weir_option_row weir__option_rows[WEIR_SETTING_COUNT];

/* For messages and help: the texts that an option for an amount of memory accepts. */
#define WEIR_SIZE_ACCEPTS "a size (4GiB, 512MB, 75%, 90%free, max)"

/* ---- kinds ---- */

extern const struct weir_option_kind weir__option_device, weir__option_word, weir__option_amount,
    weir__option_part, weir__option_limit, weir__option_cache, weir__option_growth,
    weir__option_timeout, weir__option_decay, weir__option_priority, weir__option_ahead,
    weir__option_list, weir__option_file, weir__option_oom_report, weir__option_peers;

/* The texts "off" and "none", for options that name a file or peer devices.  A file with the name "off" is ./off. */
extern const char weir__option_no_file[], weir__option_no_peers[];

int weir__option_device_scan(const char *text, const char **driver, int *ordinal,
                             struct weir_problem *problem);
int weir__option_peers_scan(const char *text, uint64_t *devices, struct weir_problem *problem);
int weir__option_word_is_set(const struct weir_option_row *row, const weir_options *options);

#endif
