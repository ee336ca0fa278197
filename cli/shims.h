/* SPDX-License-Identifier: MIT */
/* shims.h: shims for PyTorch (lib/adapters/torch): which interpreter a command starts, which PyTorch that has, and the
 * shim for it, which is compiled at the first need.
 *
 * Nothing of this imports PyTorch but the process that compiles.
 *
 * Must not know: the caller.
 */
#ifndef WEIR_CLI_SHIMS_H
#define WEIR_CLI_SHIMS_H

#include <limits.h>
#include <stddef.h>
#include <stdio.h>

#include "adapters/torch/shim.h"

enum shim_state {
    SHIM_NONE,        /* there is no PyTorch for CUDA: `why' tells */
    SHIM_UNSUPPORTED, /* nor can there be one: `why' tells */
    SHIM_READY,       /* `path' is a shim */
    SHIM_MISSING,     /* it can be built */
    SHIM_FAILED       /* `why' tells, and shim_advise what to do */
};

struct shim {
    enum shim_state state;
    const char *python;
    char torch[PATH_MAX]; /* the folder of the package */
    char version[64];     /* "2.11.0+cu130" */
    char path[PATH_MAX];
    char folders[16384]; /* in which the interpreter looks for packages, a line each */
    char why[512 + PATH_MAX];
};

/* The Python interpreter that the command starts: itself, behind env, or by the #! line of a script.  1; or 0: there is
 * none, with errno if `python', which is a file then, cannot be run, and else 0. */
int shim_python(char *const *command, char *python, size_t bytes);

/* Looks for the PyTorch of an interpreter and for its shim. */
void shim_find(struct shim *shim, const char *python);

/* Compiles one: it is SHIM_READY or SHIM_FAILED then, which is noted beside where it would be.  Tells of the wait on
 * standard error, as the subcommand `by'; after a failure the line is not ended. */
void shim_build(struct shim *shim, const char *by);

/* What to do about a failure: sentences without the last point, behind that of the one before; or nothing. */
void shim_advise(const struct shim *shim, FILE *out);

#endif
