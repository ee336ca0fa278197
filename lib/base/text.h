/* SPDX-License-Identifier: MIT */
/* text.h: reads and writes sizes, amounts, factors and counts.
 *
 * Readers are strict: the whole text must be the value, without sign, exponent or hexadecimal digits, and the decimal
 * point is a point in any locale.  A reader returns 1 and writes the value, or returns 0 and writes only the reason
 * into *problem.  A reader reads the text of a writer back as an equal value.
 *
 * This file must not know options or the origin of a text.
 */
#ifndef WEIR_TEXT_H
#define WEIR_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/options.h>

/* The reason why a reader refused a text.  A message puts the quoted text and a colon before the reason. */
struct weir_problem {
    char text[160];
};

/* The bytes for the text of any amount, and of any factor that a reader accepts.  The text of a larger factor, such as
 * 1e308, is cut. */
enum { WEIR_SPELL_BYTES = 48 };

/* Writes the reason.  Returns 0, so that a reader can return the result. */
int weir__problem(struct weir_problem *problem, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads bytes such as "4GiB", "512MB", "1.5G" or "1073741824".  A number with a fraction needs a unit, and is rounded
 * down to whole bytes. */
int weir__bytes_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads a size of memory.  Refuses a plain number below 2^20 other than 0, since its writer probably meant MiB. */
int weir__size_read(const char *text, uint64_t *bytes, struct weir_problem *problem);
/* Reads a size of memory, or "75%", "90%free" or "max".  "75%" means a share of all memory of the device
 * (WEIR_AMOUNT_OF_TOTAL). */
int weir__amount_read(const char *text, weir_amount *amount, struct weir_problem *problem);
/* Reads a fraction such as ".75" or "1", above 0 and at most 1, in millionths. */
int weir__fraction_read(const char *text, uint64_t *millionths, struct weir_problem *problem);
/* Reads a factor such as "2" or "1.25", below 1e15.  Sets *end to the first character behind the factor. */
int weir__factor_read(const char *text, const char **end, double *factor,
                      struct weir_problem *problem);
/* Reads "on", "1", "true", "yes" as 1 and "off", "0", "false", "no" as 0, in upper or lower case. */
int weir__switch_read(const char *text, int *on, struct weir_problem *problem);
/* Reads decimal digits, and moves *at behind the digits.  Returns 1 on success, 0 if there are no digits, -1 if the
 * number is larger than `most`. */
int weir__digits_read(const char **at, uint64_t most, uint64_t *value);
/* Reads a whole number, at most `most`. */
int weir__count_read(const char *text, uint64_t most, uint64_t *count,
                     struct weir_problem *problem);

/* Writes bytes exactly, as weir__size_read reads them: "8GiB", "1536MiB", "4GB", "1001B", "0". */
void weir__bytes_spell(uint64_t bytes, char *text, size_t text_bytes);
/* Writes bytes for tables and messages: "8GiB" if the number is whole, else "1.53GiB". */
void weir__bytes_show(uint64_t bytes, char *text, size_t text_bytes);
/* WEIR_SHOWN evaluates to the text that weir__bytes_show writes for `bytes`, or to "not known" for UINT64_MAX.  The
 * text lives as long as the full expression. */
struct weir_shown {
    char text[24];
};
struct weir_shown weir__shown(uint64_t bytes);
#define WEIR_SHOWN(bytes) (weir__shown(bytes).text)
/* Writes an amount of any kind.  Writes "default" for DEFAULT. */
void weir__amount_spell(const weir_amount *amount, char *text, size_t text_bytes);
void weir__factor_spell(double factor, char *text, size_t text_bytes);

/* Writes a text in quotes for a message, without control characters.  Cuts the text if it is very long. */
void weir__quote(const char *text, char *quoted, size_t quoted_bytes);

/* Returns the plural ending of a counted noun. */
static inline const char *weir__plural(uint64_t count) {
    return count == 1 ? "" : "s";
}

/* Returns the ending of a counted noun and its verb: "1 step is", "2 steps are". */
static inline const char *weir__plural_are(uint64_t count) {
    return count == 1 ? " is" : "s are";
}

enum { WEIR_DISTANT = 96 };
/* Returns the least number of letters to insert, remove, change or swap that turns one name into the other.  Ignores
 * upper and lower case.  Returns WEIR_DISTANT if a name has more letters than WEIR_DISTANT.  `a` need not end with a
 * NUL. */
size_t weir__text_distance(const char *a, size_t a_length, const char *b);

/* Returns a copy of `text` that lives as long as the process: one pointer for equal texts.  Sets *is_new to 1 in the
 * first call with this text, else to 0; `is_new` may be NULL.  Returns NULL if there is no host memory.  Thread-safe.
 * Texts are never freed, so use the function for few different texts. */
const char *weir__text_keep(const char *text, int *is_new);

#endif
