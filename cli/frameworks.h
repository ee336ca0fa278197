/* SPDX-License-Identifier: MIT */
/* frameworks.h: sets the environment variables that make JAX and TensorFlow use CUDA's stream-ordered allocator,
 * which `weir run' replaces.  Also finds the versions of the frameworks that a Python interpreter has.
 *
 * This file must not know settings of weir or where variables go.
 */
#ifndef WEIR_CLI_FRAMEWORKS_H
#define WEIR_CLI_FRAMEWORKS_H

#include <stdio.h>

#include "cli/command.h"

/* The frameworks whose versions weir finds.  shims.h does this for PyTorch. */
enum framework { FRAMEWORK_JAX, FRAMEWORK_CUPY, FRAMEWORK_RMM, FRAMEWORK_NUMBA, FRAMEWORK_COUNT };

struct version {
    /* The version as text, such as "0.11.2", or "" if the framework is not installed or not built for CUDA. */
    char text[32];
    int major, minor, patch;
};

/* Finds the versions of frameworks that are installed in the folders.  `folders' is a list of paths with newlines
 * between them.  If a framework is in two folders, the first folder counts. */
void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders);

/* If this version of the framework is not one that weir knows, returns the known versions as a text such as "0.9 to
 * 0.12".  Returns NULL if weir knows the version, or if the framework is not installed. */
const char *version_unknown(enum framework framework, const struct version *version);

/* Writes a note for each installed framework, as "; ...": its version, and which of its memory weir serves. */
void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes);

/* Calls `put' to set variables of JAX and TensorFlow, so that they request memory from CUDA's pools.  Does not
 * change a variable that the environment has.  PyTorch needs no variables.  If `put' is NULL, sets nothing and only
 * writes texts: the user's wishes that weir cannot meet to `lacks', and other facts to `notes', each as "; ...".
 *
 * `serves_plain' is set if weir serves cuMemAlloc, too.  `preallocates' is set if weir reads JAX's variables and
 * preallocates instead of JAX.  `jax' is the version of JAX, or zeroed.  Returns 0 on success, 1 if there is no host
 * memory.
 */
int frameworks_set_variables(command_put_function *put, void *context, int serves_plain,
                             int preallocates, const struct version *jax, FILE *lacks, FILE *notes);

/* Returns 1 if the environment chooses JAX's allocator "platform", else 0.  The messages about this allocator depend
 * on the version of JAX. */
int frameworks_need_version(void);

/* Writes a note that weir preallocates `amount' because the variable `name' says so, and for which frameworks.
 * `chooses_allocators' is set if weir run chooses the allocator of each framework for which the user has chosen none.
 */
void frameworks_note_prealloc(const char *name, const char *amount, int chooses_allocators,
                              FILE *notes);

#endif
