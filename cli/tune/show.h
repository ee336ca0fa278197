/* SPDX-License-Identifier: MIT */
/* show.h: what `weir tune' says, and the file that it writes.
 *
 * Must not know: how it was found.
 */
#ifndef WEIR_CLI_SHOW_H
#define WEIR_CLI_SHOW_H

#include "cli/tune/fit.h"
#include "cli/tune/search.h"

/* The line to use, of `command' if there is one; figures of both on the rest of each trace.  `lost', if not NULL: what the
 * search chose, and the default did no worse. */
void show_recommended(const struct tuning *tuning, const struct evaluation *usual,
                      const struct evaluation *best, const struct candidate *lost,
                      const struct fit *fit, char *const *command);
void show_missing(const struct tuning *tuning, const struct fit *fit);
/* For `weir run --settings'.  1, or 0 with a message printed. */
int show_write(const struct tuning *tuning, const struct candidate *candidate,
               const struct fit *fit, const char *path);

#endif
