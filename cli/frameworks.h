/* SPDX-License-Identifier: MIT */
/* frameworks.h: the variables by which JAX and TensorFlow are told to take their memory from CUDA's stream-ordered
 * allocator, where `weir run' serves it; and which versions of frameworks an interpreter has.
 *
 * Must not know: settings of weir, where variables go.
 */
#ifndef WEIR_CLI_FRAMEWORKS_H
#define WEIR_CLI_FRAMEWORKS_H

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

/* Calls `put` (NULL: nothing is told) with each variable that is to be set; what the environment has by now stays, but
 * that JAX preallocates where it does not ask there.  Nothing is set for PyTorch.  Writes
 * to `lacks` what the user asked for and does not get, to `notes` what else there is to know, each as "; ...";
 * `serves_plain': cuMemAlloc is served too; `preallocates': weir does in JAX's place, what its variables say; `jax': its
 * version, if it is known.  0, or 1 when memory is short. */
int frameworks_tell(int (*put)(void *to, const char *name, const char *value), void *to,
                    int serves_plain, int preallocates, const struct version *jax, FILE *lacks,
                    FILE *notes);

/* Returns 1 if the environment names JAX's allocator platform, about which messages depend on JAX's version, else 0. */
int frameworks_need_version(void);

/* Notes whose place weir's preallocation takes, of which the variable NAME says that amount; `are_told': those whose
 * allocator is not named are told to ask there. */
void frameworks_note_prealloc(const char *name, const char *amount, int are_told, FILE *notes);

#endif
