/* SPDX-License-Identifier: MIT */
/* shim.h: the path of the shim for a PyTorch, the lock of the processes that compile shims, and PyTorch's variables.
 *
 * Glossary
 *   shim      weir_torch.cpp of this folder, compiled for one PyTorch.  The shim's weir_torch_install makes weir the
 *             allocator of this PyTorch.
 *   build id  the build id of PyTorch's libc10_cuda.so, in hexadecimal.  PyTorch's version does not tell which virtual
 *             functions PyTorch calls, and in which order.
 *
 * `weir torch' compiles shims, and the preload library loads shims, so both read the path here.
 *
 * This file must not know how a shim is compiled or loaded.
 */
#ifndef WEIR_SHIM_H
#define WEIR_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define WEIR_SHIM_LIBRARY "libc10_cuda.so"

enum {
    WEIR_BUILD_ID_BYTES = 2 * 32 + 1,
    /* The first version of PyTorch for which weir_torch.cpp can be compiled; versions.h has this number, too. */
    WEIR_TORCH_FIRST = 206
};

/* Finds the build id among the notes of an ELF segment.  Returns 1 if the build id is there, else 0. */
int weir__shim_id_in(const void *notes, size_t bytes, char id[WEIR_BUILD_ID_BYTES]);
/* Reads the build id of a 64-bit ELF file.  Returns 1 if the file has one, else 0. */
int weir__shim_id_of(const char *path, char id[WEIR_BUILD_ID_BYTES]);

/* Writes the path of the shim for a build id below XDG_CACHE_HOME or HOME.  `ending` is ".so" or ".failed".  Returns 1
 * on success, 0 if neither variable names a folder or the path is too long. */
int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending);

/* Opens a file beside the shims, whose folder exists, and locks the file until the file is closed here and in all
 * children.  Each process that compiles a shim holds this lock, and several processes may hold the lock at once.
 * Returns the file on success, -1 with errno if the file cannot be opened or locked. */
int weir__shim_lock(void);

/* Locks the shim for a build id in the file of weir__shim_lock(), so that one process compiles the shim.  Returns 1 if
 * another process has locked the shim, else 0. */
int weir__shim_is_others(int file, const char *id);

/* Waits while the shim's file is missing and a process holds the lock of weir__shim_lock().  Returns 0 if a process
 * still holds the lock after the timeout, else 1. */
int weir__shim_await(const char *path, uint64_t timeout_ns);

/* Reads the line that says why compiling the shim for a build id failed and what the user can do.  Returns 1 if there
 * is such a line, else 0. */
int weir__shim_failure(const char *id, char *why, size_t bytes);

/* Checks that no other user can have changed a file before the process loads the file as code.  Returns 1 if the file
 * is a plain file of this user or of root, and only the owner may write to the file, else 0. */
int weir__shim_is_safe(const char *path);

/* Returns the variable with which the user chose one of PyTorch's own allocators, or NULL if no such variable is
 * set. */
const char *weir__shim_unwanted_by(void);
/* Finds an option by name in a list of PyTorch's options (NAME:VALUE,... where a value may be a list in brackets).
 * Returns the option and writes the option's length, or returns NULL if the list lacks the option. */
const char *weir__torch_option(const char *list, const char *name, size_t *length);

#endif
