/* SPDX-License-Identifier: MIT */
/* text.h: reads and writes sizes, amounts, factors and counts as text.
 *
 * The functions weir__..._read accept a text only if the whole text is a value, without a sign, an exponent or
 * hexadecimal digits, and with the decimal point ".".  They return 1 and write the value, or return 0 and write only
 * the reason to *problem.  A text of weir__..._spell is read as an equal value. */
#ifndef WEIR_TEXT_H
#define WEIR_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>

/* The reason why a text is not a valid value. */
struct weir_problem {
    char text[160];
};

/* The size of a buffer for the text of an amount or of a factor.  The text of a factor above 1e15 is cut. */
enum { WEIR_SPELL_BYTES = 48 };

/* Writes to *problem why a text is not a valid value.  Returns 0. */
int weir__problem(struct weir_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads a number of bytes such as "4GiB", "512MB", "1.5G" or "1073741824".  A number with a fraction needs a unit, and
 * is rounded down to whole bytes. */
int weir__bytes_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads a size such as "4GiB".  Refuses a number below 2^20 without a unit, except 0: the user probably means MiB. */
int weir__size_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads an amount of memory such as "4GiB", "75%" (of the device's memory), "90%free" (of its free memory) or "max". */
int weir__amount_read(const char *text, weir_amount *amount, struct weir_problem *problem);
/* Reads a fraction such as ".75" or "1", and converts it to millionths.  The fraction must be above 0 and at most 1. */
int weir__fraction_read(const char *text, uint64_t *millionths, struct weir_problem *problem);
/* Reads a factor such as "2" or "1.25", below 1e15.  Sets *end to the first character after the factor. */
int weir__factor_read(const char *text, const char **end, double *factor,
                      struct weir_problem *problem);
/* Reads a switch, in upper or lower case: "on", "1", "true" and "yes" mean 1; "off", "0", "false" and "no" mean 0. */
int weir__switch_read(const char *text, int *on, struct weir_problem *problem);
/* Reads digits, and moves *at behind them.  Returns 1, 0 if there are no digits, -1 if the number is above `most`. */
int weir__digits_read(const char **at, uint64_t most, uint64_t *value);
int weir__count_read(const char *text, uint64_t most, uint64_t *count,
                     struct weir_problem *problem);

/* Writes a number of bytes exactly, as weir__size_read() reads it: "8GiB", "1536MiB", "4GB", "1001B", "0". */
void weir__bytes_spell(uint64_t bytes, char *text, size_t text_bytes);
/* Writes a number of bytes for tables and messages, with at most two digits after the point: "8GiB", "1.53GiB". */
void weir__bytes_show(uint64_t bytes, char *text, size_t text_bytes);
/* WEIR_SHOWN evaluates to a number of bytes as text, such as "1.53GiB", or to "not known" for UINT64_MAX.  The text is
 * valid until the end of the full expression. */
struct weir_shown {
    char text[24];
};
struct weir_shown weir__shown(uint64_t bytes);
#define WEIR_SHOWN(bytes) (weir__shown(bytes).text)
/* Writes an amount of memory, such as "75%", or "default" if it is not set. */
void weir__amount_spell(const weir_amount *amount, char *text, size_t text_bytes);
void weir__factor_spell(double factor, char *text, size_t text_bytes);

/* Writes a text in quotes for a message, cut if it is long, with '?' for control characters. */
void weir__quote(const char *text, char *quoted, size_t quoted_bytes);

static inline const char *weir__plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

/* Returns the ending of a noun and the verb: "1 step is", "2 steps are". */
static inline const char *weir__plural_are(uint64_t count) {
    return count == 1 ? " is" : "s are";
}

enum { WEIR_DISTANT = 96 };
/* Returns the edit distance of two names, ignoring case, or WEIR_DISTANT if one is longer than WEIR_DISTANT.  `a` need
 * not end with a NUL. */
size_t weir__text_distance(const char *a, size_t a_length, const char *b);

/* Returns a copy of `text` that is never freed.  All equal texts have one copy.  Sets *is_new, if not NULL, to 1 if
 * the text is new, else to 0.  Returns NULL without host memory.  Thread-safe. */
const char *weir__text_intern(const char *text, int *is_new);

#endif
