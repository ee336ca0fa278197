/* SPDX-License-Identifier: MIT */
/* version.h: which weir this is. */
#ifndef WEIR_CLI_VERSION_H
#define WEIR_CLI_VERSION_H

/* Prints the version, the wheel that the program is part of, the library that `weir run' loads, and the version of the
 * CUDA driver: a line each, on standard output. */
void version_print(void);

#endif
