/* SPDX-License-Identifier: MIT */
/* table.h: the results as a person reads them, at most 120 columns wide. */
#ifndef WEIR_CLI_TABLE_H
#define WEIR_CLI_TABLE_H

#include <stdio.h>

#include "cli/replay/contest.h"
#include "cli/replay/findings.h"

/* Prints where it ran. */
void table_head(FILE *file, const struct contest *contest);
/* Prints what a trace is, above its rows. */
void table_trace(FILE *file, const struct tape_header *header);
/* Prints all rows, and the findings. */
void table_print(FILE *file, const struct contest *contest, const struct findings *findings);

#endif
