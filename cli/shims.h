/* SPDX-License-Identifier: MIT */
/* shims.h: finds and compiles shims for PyTorch.  A shim is the C++ part that makes PyTorch use weir; it is compiled
 * for one build of PyTorch (lib/adapters/torch).
 *
 * The functions find the Python interpreter of a command, its PyTorch, and the shim for this PyTorch.  Only the
 * process that compiles a shim imports PyTorch.
 *
 * This file must not know the caller.
 */
#ifndef WEIR_CLI_SHIMS_H
#define WEIR_CLI_SHIMS_H

#include <limits.h>
#include <stddef.h>

#include "adapters/torch/shim.h"

enum shim_state {
    SHIM_NONE,        /* the interpreter has no PyTorch for CUDA; `why' says why */
    SHIM_UNSUPPORTED, /* weir does not support this version of PyTorch; `why' names the version */
    SHIM_READY,       /* the shim exists in the file `path' */
    SHIM_MISSING,     /* the shim does not exist, but can be compiled */
    /* The shim could not be compiled or used; `why' has the reason and what the user can do. */
    SHIM_FAILED
};

struct shim {
    enum shim_state state;
    const char *python;
    char torch[PATH_MAX]; /* the folder of the package torch */
    char version[64];     /* the version of PyTorch, such as "2.11.0+cu130" */
    char path[PATH_MAX];
    /* The path of the file with the reason why the shim could not be compiled. */
    char failed[PATH_MAX];
    /* The folders in which the interpreter finds packages, with newlines between them. */
    char folders[16384];
    char why[1024 + 2 * PATH_MAX];
};

/* Finds the Python interpreter that a command starts: directly, through env(1), or through the #! line of a script.
 * Writes its path to `python' and returns 1.  If the command starts no interpreter, sets errno to 0 and returns 0.
 * If a file cannot be run, sets errno, writes the path of the file to `python' and returns 0. */
int shim_python(char *const *command, char *python, size_t bytes);

/* Finds the PyTorch of an interpreter, and the shim for this PyTorch.  Fills the struct. */
void shim_find(struct shim *shim, const char *python);

/* Compiles the shim.  Its state becomes SHIM_READY or SHIM_FAILED.  On failure, writes the reason to the file
 * shim->failed. */
void shim_build(struct shim *shim);

/* Starts a process that finds the shim for an interpreter's PyTorch and compiles it if it is missing.  Returns at
 * once.  The new process is no child of this process and has none of its files open.  A program that needs the shim
 * waits for the new process (weir__shim_await()). */
void shim_build_beside(const char *python);

#endif
