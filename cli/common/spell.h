/* SPDX-License-Identifier: MIT */
/* spell.h: numbers as tables and pages show them. */
#ifndef WEIR_CLI_SPELL_H
#define WEIR_CLI_SPELL_H

#include <stddef.h>
#include <stdint.h>

/* "1,234,567". */
void table_spell(uint64_t value, char *text, size_t bytes);

#endif
