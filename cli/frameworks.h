/* SPDX-License-Identifier: MIT */
/* frameworks.h: the variables that make JAX and TensorFlow use CUDA's stream-ordered allocator, which `weir run'
 * serves, and the versions of frameworks that an interpreter has.
 *
 * This file must not know settings of weir or where variables go.
 */
#ifndef WEIR_CLI_FRAMEWORKS_H
#define WEIR_CLI_FRAMEWORKS_H

#include <stdio.h>

#include "cli/command.h"

/* shims.h has PyTorch. */
enum framework { FRAMEWORK_JAX, FRAMEWORK_CUPY, FRAMEWORK_RMM, FRAMEWORK_NUMBA, FRAMEWORK_COUNT };

struct version {
    char text[32]; /* for example "0.11.2", or "" if the framework is not installed for CUDA */
    int major, minor, patch;
};

/* Finds the versions of frameworks in these folders, whose names have newlines between.  If two folders have a
 * framework, the earlier folder counts. */
void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders);

/* Returns the versions that weir knows, such as "0.9 to 0.12", or NULL if weir knows this version or the framework
 * is not installed. */
const char *version_unknown(enum framework framework, const struct version *version);

/* Writes the version of each installed framework, and the memory that weir serves, as "; ...". */
void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes);

/* Sets variables of JAX and TensorFlow by `put', unless the environment has them or `put' is NULL.  Sets none of
 * PyTorch.  Writes wishes of the user that weir cannot meet to `lacks', and other facts to `notes', each as "; ...".
 * `serves_plain' is set if weir serves cuMemAlloc, too.  `preallocates' is set if weir preallocates in place of JAX, by
 * JAX's variables.  `jax' is the version of JAX, if it is known.  Returns 0 on success, 1 if there is no host
 * memory. */
int frameworks_tell(command_put_function *put, void *to, int serves_plain, int preallocates,
                    const struct version *jax, FILE *lacks, FILE *notes);

/* Returns 1 if the environment names JAX's allocator platform, about which messages depend on the version of JAX,
 * else 0. */
int frameworks_need_version(void);

/* Writes for which frameworks weir preallocates that amount, by the variable NAME.  `are_told' is set if weir run names
 * an allocator for frameworks for which the user has named none. */
void frameworks_note_prealloc(const char *name, const char *amount, int are_told, FILE *notes);

#endif
