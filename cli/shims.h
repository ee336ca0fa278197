/* SPDX-License-Identifier: MIT */
/* shims.h: shims for PyTorch (lib/adapters/torch): which interpreter a command starts, which PyTorch that has, and the
 * shim for it, which is compiled at the first need.
 *
 * Only the process that compiles imports PyTorch.
 *
 * Must not know: the caller.
 */
#ifndef WEIR_CLI_SHIMS_H
#define WEIR_CLI_SHIMS_H

#include <limits.h>
#include <stddef.h>

#include "adapters/torch/shim.h"

enum shim_state {
    SHIM_NONE,        /* there is no PyTorch for CUDA: `why' tells */
    SHIM_UNSUPPORTED, /* weir does not know this version of PyTorch: `why' names it */
    SHIM_READY,       /* `path' is a shim */
    SHIM_MISSING,     /* the shim can be compiled */
    SHIM_FAILED       /* `why' says what failed and what the user can do */
};

struct shim {
    enum shim_state state;
    const char *python;
    char torch[PATH_MAX]; /* the folder of the package */
    char version[64];     /* "2.11.0+cu130" */
    char path[PATH_MAX];
    char failed[PATH_MAX]; /* the file that says why the shim could not be compiled */
    char folders[16384];   /* in which the interpreter looks for packages, a line each */
    char why[1024 + 2 * PATH_MAX];
};

/* The Python interpreter that the command starts: itself, behind env, or by the #! line of a script.  1; or 0: there is
 * none, with errno if `python', which is a file then, cannot be run, and else 0. */
int shim_python(char *const *command, char *python, size_t bytes);

/* Looks for the PyTorch of an interpreter and for its shim. */
void shim_find(struct shim *shim, const char *python);

/* Compiles the shim.  Its state is SHIM_READY or SHIM_FAILED then, and a failure is noted in a file beside its path. */
void shim_build(struct shim *shim);

/* Starts a process that finds the shim and, if the shim is missing, compiles it, and returns at once.  The process is no
 * child of this one and holds none of its files.  Processes that need the shim wait for it (weir__shim_await). */
void shim_build_beside(const char *python);

#endif
