/* SPDX-License-Identifier: MIT */
/* spell.h: numbers as tables and pages show them. */
#ifndef WEIR_CLI_SPELL_H
#define WEIR_CLI_SPELL_H

#include <stddef.h>
#include <stdint.h>

/* "1,234,567". */
void table_spell(uint64_t value, char *text, size_t bytes);

/* A percentile out of a histogram (base/histogram.h): rounded to what its bucket tells, so that no digit is shown that
 * was not measured. */
uint64_t table_percentile(uint64_t value);
/* A ratio with four digits that count, three behind the point at most. */
void table_ratio(double value, char *text, size_t bytes);

#endif
