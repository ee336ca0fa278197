/* SPDX-License-Identifier: MIT */
/* temporary.h: files without a name. */
#ifndef WEIR_CLI_TEMPORARY_H
#define WEIR_CLI_TEMPORARY_H

/* An unlinked file in TMPDIR, or /tmp, for as long as it is open.  -1: errno tells why there is none. */
int temporary_file(void);

#endif
