/* SPDX-License-Identifier: MIT */
/* shims.h: finds and compiles shims for PyTorch.  A shim is the C++ part that makes PyTorch use weir; it is compiled
 * for one build of PyTorch. */
#ifndef WEIR_CLI_SHIMS_H
#define WEIR_CLI_SHIMS_H

#include <limits.h>
#include <stddef.h>

#include "adapters/torch/shim.h"

enum shim_state {
    SHIM_NONE,        /* the interpreter has no PyTorch for CUDA */
    SHIM_UNSUPPORTED, /* weir does not support this version of PyTorch */
    SHIM_READY,       /* the shim is in the file `path' */
    SHIM_MISSING,     /* the shim must be compiled first */
    SHIM_FAILED       /* the shim could not be compiled or used */
};

struct shim {
    enum shim_state state;
    const char *python;
    char torch[PATH_MAX]; /* the folder of the package torch */
    char version[64];     /* the version of PyTorch, such as "2.11.0+cu130" */
    char path[PATH_MAX];
    /* The file in which weir stores why the shim could not be compiled, for later processes. */
    char failed[PATH_MAX];
    /* The folders in which the interpreter finds packages, with newlines between them. */
    char folders[16384];
    /* The reason for SHIM_NONE, SHIM_UNSUPPORTED or SHIM_FAILED, and what the user can do. */
    char why[1024 + 2 * PATH_MAX];
};

/* Finds the Python interpreter that a command starts, directly, through env(1), or through the #! line of a script.
 * Returns 1 with the path of the interpreter in `python'.  Returns 0 with an errno of 0 if the command starts no
 * interpreter.  Returns 0 with another errno if a file cannot be run, with the path of this file in `python'. */
int shim_python(char *const *command, char *python, size_t bytes);

/* Finds the PyTorch of the interpreter, and the shim for this PyTorch. */
void shim_find(struct shim *shim, const char *python);

/* Compiles the shim, and sets shim->state to SHIM_READY or SHIM_FAILED.  On failure, writes the reason to the file
 * shim->failed. */
void shim_build(struct shim *shim);

/* Starts a process that compiles the shim if it is missing, and returns at once.  The process is no child of this
 * process, and has none of its files open. */
void shim_build_beside(const char *python);

#endif
