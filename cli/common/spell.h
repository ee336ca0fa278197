/* SPDX-License-Identifier: MIT */
/* spell.h: writes numbers for tables and sentences.  The functions return a struct, whose text lives to the end of the
 * expression. */
#ifndef WEIR_CLI_SPELL_H
#define WEIR_CLI_SPELL_H

#include <stdint.h>

struct spelled {
    char text[32];
};

/* Spells a count: "1,234,567". */
struct spelled spell_count(uint64_t count);
/* Spells nanoseconds with their unit and three digits: "850 ns", "1.23 us", "45.6 s". */
struct spelled spell_time(uint64_t ns);
/* Spells nanoseconds as milliseconds with four significant digits. */
struct spelled spell_ms(double ns);
/* Spells a ratio with four significant digits, but at most three digits behind the point. */
struct spelled spell_ratio(double ratio);

#define SPELL_COUNT(count) (spell_count(count).text)
#define SPELL_TIME(ns) (spell_time(ns).text)

#endif
