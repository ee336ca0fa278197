/* SPDX-License-Identifier: MIT */
/* versions.h: which versions of frameworks an interpreter has, and which of them weir knows.
 *
 * Must not know: what a framework is told.
 */
#ifndef WEIR_CLI_VERSIONS_H
#define WEIR_CLI_VERSIONS_H

#include <stdio.h>

/* PyTorch has its own: shims.h. */
enum framework { FRAMEWORK_JAX, FRAMEWORK_CUPY, FRAMEWORK_RMM, FRAMEWORK_NUMBA, FRAMEWORK_COUNT };

struct version {
    char text[32]; /* "0.11.2"; "": it is not installed for CUDA */
    int major, minor, patch;
};

/* Reads the names of what is in these folders, a line each; of two versions the one in the earlier folder counts. */
void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders);

/* The versions that weir knows, as "0.9 to 0.11"; NULL: this one is of them, or is not there. */
const char *version_unknown(enum framework framework, const struct version *version);

/* Notes, of each that is there, its version and what weir serves of it, as "; ...". */
void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes);

#endif
