/* SPDX-License-Identifier: MIT */
/* shims.h: shims for PyTorch (lib/adapters/torch): finds the interpreter of a command and its PyTorch, and compiles
 * the shim for it.  Only the process that compiles imports PyTorch.
 *
 * This file must not know the caller.
 */
#ifndef WEIR_CLI_SHIMS_H
#define WEIR_CLI_SHIMS_H

#include <limits.h>
#include <stddef.h>

#include "adapters/torch/shim.h"

enum shim_state {
    SHIM_NONE,        /* there is no PyTorch for CUDA, as `why' says */
    SHIM_UNSUPPORTED, /* weir does not know this version of PyTorch, which `why' names */
    SHIM_READY,       /* the shim is in `path' */
    SHIM_MISSING,     /* the shim can be compiled */
    SHIM_FAILED       /* `why' has the failure and the user's remedy */
};

struct shim {
    enum shim_state state;
    const char *python;
    char torch[PATH_MAX]; /* the folder of the package */
    char version[64];     /* "2.11.0+cu130" */
    char path[PATH_MAX];
    char failed[PATH_MAX]; /* the file that says why the shim could not be compiled */
    char folders[16384];   /* the folders of the interpreter's packages, with newlines between */
    char why[1024 + 2 * PATH_MAX];
};

/* Finds the Python interpreter that the command starts, directly, by env, or by the #! line of a script.  Returns 1 on
 * success, 0 if there is none; errno is 0 then, or an error if `python', the file, cannot be run. */
int shim_python(char *const *command, char *python, size_t bytes);

/* Finds the PyTorch of an interpreter and its shim. */
void shim_find(struct shim *shim, const char *python);

/* Compiles the shim.  Its state becomes SHIM_READY or SHIM_FAILED.  A file beside its path gets the reason of a
 * failure. */
void shim_build(struct shim *shim);

/* Starts a process that finds the shim and, if the shim is missing, compiles it.  Returns at once.  The process is
 * no child of this one and holds none of its files.  Processes that need the shim wait for it (weir__shim_await). */
void shim_build_beside(const char *python);

#endif
