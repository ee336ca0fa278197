/* SPDX-License-Identifier: MIT */
/* frameworks.h: sets the environment variables that make JAX and TensorFlow use CUDA's stream-ordered allocator, which
 * `weir run' replaces.  Also finds the versions of the frameworks that a Python interpreter has.
 *
 * This file must not depend on weir's settings, or on how the caller sets the variables.
 */
#ifndef WEIR_CLI_FRAMEWORKS_H
#define WEIR_CLI_FRAMEWORKS_H

#include <stdio.h>

#include "cli/command.h"

/* The frameworks whose versions versions_find() finds.  shims.h finds the version of PyTorch. */
enum framework { FRAMEWORK_JAX, FRAMEWORK_CUPY, FRAMEWORK_RMM, FRAMEWORK_NUMBA, FRAMEWORK_COUNT };

struct version {
    /* The version as text, such as "0.11.2", or "" if the framework is not installed or not built for CUDA. */
    char text[32];
    int major, minor, patch;
};

/* Finds the versions of frameworks that are installed in the folders.  `folders' is a list of paths with newlines
 * between them.  If a framework is in two folders, uses the first. */
void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders);

/* Returns NULL if weir supports this version of the framework, or if the framework is not installed.  Otherwise returns
 * the versions that weir supports, such as "0.9 to 0.12". */
const char *version_unknown(enum framework framework, const struct version *version);

/* Writes a note for each installed framework, with the version and the memory that weir provides.  A note begins with
 * "; ". */
void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes);

/* Sets variables that make JAX and TensorFlow request memory from CUDA's pools, by calls of `put'.  If `put' is NULL,
 * only writes messages: to `lacks' about settings that weir cannot apply, to `notes' about other facts.  Each message
 * begins with "; ".
 *
 * `serves_plain' is set if weir replaces cuMemAlloc, too.  `preallocates' is set if weir preallocates in place of JAX.
 * `jax' is the version of JAX, or zeroed.  Returns 0 on success, 1 if there is no host memory.
 */
int frameworks_set_variables(command_put_function *put, void *context, int serves_plain,
                             int preallocates, const struct version *jax, FILE *lacks, FILE *notes);

/* Returns 1 if frameworks_set_variables() needs the version of JAX, else 0. */
int frameworks_need_version(void);

/* Writes a note that weir preallocates `amount' because of the variable `name'. */
void frameworks_note_prealloc(const char *name, const char *amount, int chooses_allocators,
                              FILE *notes);

#endif
