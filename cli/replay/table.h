/* SPDX-License-Identifier: MIT */
/* table.h: the results as a person reads them, at most 100 columns wide. */
#ifndef WEIR_CLI_TABLE_H
#define WEIR_CLI_TABLE_H

#include <stdio.h>

#include "cli/replay/contest.h"

/* Where it ran. */
void table_head(FILE *file, const struct contest *contest);
/* What a trace is, above its rows. */
void table_trace(FILE *file, const struct tape_header *header);
/* Medians over the repeats. */
void table_print(FILE *file, const struct contest *contest);

#endif
