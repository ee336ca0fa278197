/* SPDX-License-Identifier: MIT */
/* formats.h: whether another tool wrote a file of allocations.  Must not know: what to do with it. */
#ifndef WEIR_CLI_FORMATS_H
#define WEIR_CLI_FORMATS_H

/* Whether a log of RMM begins with that line. */
int rmm_is(const char *first_line);

/* Whether that file is one; 0, too: it cannot be read. */
int rmm_wrote(const char *path);

#endif
