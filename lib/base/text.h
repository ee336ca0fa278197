/* SPDX-License-Identifier: MIT */
/* text.h: sizes, amounts, factors and counts to and from text.
 *
 * Readers are strict: the whole text must be the value, no sign, no exponent, no hexadecimal, and
 * independent of the locale (a decimal point is a point).  They return 1 and the value, or 0 with
 * the reason in *problem and nothing else written.  A speller writes a text that the reader reads
 * back to an equal value.
 *
 * Must not know: options, where a text comes from.
 */
#ifndef WEIR_TEXT_H
#define WEIR_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>

/* The reason why a text was refused, for a message that has the quoted value and a colon before it. */
struct weir_problem {
    char text[160];
};

/* Room for any spelled amount, and for any factor that was read; a program's own of 1e308 has 309 digits
 * and is cut. */
enum { WEIR_SPELL_BYTES = 48 };

/* Writes the reason; returns 0 so that a reader can return it. */
int weir__problem(struct weir_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "4GiB", "512MB", "1.5G", "1073741824": bytes.  A fraction needs a unit; fractions of a byte are
 * dropped. */
int weir__bytes_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads a size of memory.  Refuses a plain number below 2^20 other than 0, since its writer probably meant MiB. */
int weir__size_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads a size of memory, or "75%", "90%free" or "max"; a percentage alone is OF_TOTAL. */
int weir__amount_read(const char *text, weir_amount *amount, struct weir_problem *problem);
/* ".75", "1": a fraction above 0 and at most 1, in millionths. */
int weir__fraction_read(const char *text, uint64_t *millionths, struct weir_problem *problem);
/* "2", "1.25" up to the first character that does not belong to it, which is written to *end.  Below
 * 1e15. */
int weir__factor_read(const char *text, const char **end, double *factor,
                      struct weir_problem *problem);
/* "on", "1", "true", "yes", "off", "0", "false", "no", whatever the case: 1 or 0. */
int weir__switch_read(const char *text, int *on, struct weir_problem *problem);
/* Decimal digits, at most `most`. */
int weir__count_read(const char *text, uint64_t most, uint64_t *count,
                     struct weir_problem *problem);

/* Exact, and as weir__size_read takes it: "8GiB", "1536MiB", "1000B", "0". */
void weir__bytes_spell(uint64_t bytes, char *text, size_t text_bytes);
/* Bytes as a person reads them: "8GiB" where exact, else "1.53GiB"; for tables and messages. */
void weir__bytes_show(uint64_t bytes, char *text, size_t text_bytes);
/* Formats bytes as weir__bytes_show does, within an expression, at the end of which the text is gone.  UINT64_MAX is
 * "not known". */
struct weir_shown {
    char text[24];
};
struct weir_shown weir__shown(uint64_t bytes);
#define WEIR_SHOWN(bytes) (weir__shown(bytes).text)
/* Spells an amount of any kind; DEFAULT gives "default". */
void weir__amount_spell(const weir_amount *amount, char *text, size_t text_bytes);
void weir__factor_spell(double factor, char *text, size_t text_bytes);

/* A text as messages show it: 'text', without control characters and cut when very long. */
void weir__quote(const char *text, char *quoted, size_t quoted_bytes);

/* Returns the ending of a noun that is counted. */
static inline const char *weir__plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

/* Returns the ending of a noun that is counted, and the verb: "1 step is", "2 steps are". */
static inline const char *weir__plural_are(uint64_t count) {
    return count == 1 ? " is" : "s are";
}

enum { WEIR_DISTANT = 96 };
/* Letters to insert, remove or change to make one name of the other, whatever the case; WEIR_DISTANT if one is longer
 * than that.  `a' need not end. */
size_t weir__text_distance(const char *a, size_t a_length, const char *b);

/* Returns a copy of `text` that lives as long as the process: one pointer for equal texts.  *is_new (may be NULL) is
 * 1 in the first call with a text.  Returns NULL without host memory.  Thread-safe.  For few different texts. */
const char *weir__text_keep(const char *text, int *is_new);

#endif
