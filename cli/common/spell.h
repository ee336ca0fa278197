/* SPDX-License-Identifier: MIT */
/* spell.h: writes numbers as text for tables and sentences.
 *
 * The functions return a struct, whose text exists until the end of the expression that calls the function.
 */
#ifndef WEIR_CLI_SPELL_H
#define WEIR_CLI_SPELL_H

#include <stdint.h>

struct spelled {
    char text[32];
};

/* Writes a count with commas: "1,234,567". */
struct spelled spell_count(uint64_t count);
/* Writes a time with a suitable unit and three digits: "850 ns", "1.23 us", "45.6 s". */
struct spelled spell_time(uint64_t ns);
/* Writes a time as milliseconds with four significant digits, without the unit: "17.55". */
struct spelled spell_ms(double ns);
/* Writes a ratio with four significant digits, of which at most three follow the decimal point. */
struct spelled spell_ratio(double ratio);

#define SPELL_COUNT(count) (spell_count(count).text)
#define SPELL_TIME(ns) (spell_time(ns).text)

#endif
