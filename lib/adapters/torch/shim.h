/* SPDX-License-Identifier: MIT */
/* shim.h: finds the shim for a build of PyTorch, locks shims while they are compiled, and reads PyTorch's environment
 * variables.
 *
 * Glossary
 *   shim      a library that is compiled from weir_torch.cpp of this folder, for one build of PyTorch.  Its function
 *             weir_torch_install makes weir the allocator of this PyTorch
 *   build id  the build id of PyTorch's libc10_cuda.so, in hexadecimal.  PyTorch's version would not suffice: builds of
 *             one version may differ in the virtual functions of the allocator and in their order
 *
 * `weir torch' compiles shims, and the preload library loads shims.  So both programs use the functions of this file.
 *
 * This file must not depend on how a shim is compiled or loaded.
 */
#ifndef WEIR_SHIM_H
#define WEIR_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define WEIR_SHIM_LIBRARY "libc10_cuda.so"

enum {
    WEIR_BUILD_ID_BYTES = 2 * 32 + 1,
    /* The first version of PyTorch (2.6) for which weir_torch.cpp can be compiled.  versions.h contains this number,
     * too. */
    WEIR_TORCH_FIRST = 206
};

/* Finds the build id in the notes of an ELF segment, and writes the build id to `id`.  Returns 1 on success, 0 if
 * the notes contain no build id. */
int weir__shim_id_in(const void *notes, size_t bytes, char id[WEIR_BUILD_ID_BYTES]);
/* Writes the build id of a 64-bit ELF file to `id`.  Returns 1 on success, 0 if the file contains no build id. */
int weir__shim_id_of(const char *path, char id[WEIR_BUILD_ID_BYTES]);

/* Writes the path of the shim (the library for one build of PyTorch) with this build id.  The path lies in the
 * folder that XDG_CACHE_HOME or HOME names.  `ending` is ".so" for the shim, or ".failed" for the reason why there
 * is no shim.  Returns 1 on success, 0 if neither variable names a folder or the path is too long. */
int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending);

/* Locks a file in the folder of the shims, which exists.  The lock ends when the returned file is closed here and in
 * all children.  Each process that compiles a shim holds this lock, and several processes may hold it concurrently.
 * Returns the open file on success, or -1 with the reason in errno if the file cannot be opened or locked. */
int weir__shim_lock(void);

/* Locks the shim with this build id, so that only one process compiles this shim.  `file` is the result of
 * weir__shim_lock().  Returns 1 if another process has locked the shim already, else 0. */
int weir__shim_locked_by_other(int file, const char *id);

/* Waits until the shim's file exists, or until no process is compiling any shim.  Returns 1 in both cases.  Returns
 * 0 if neither has happened before the timeout. */
int weir__shim_await(const char *path, uint64_t timeout_ns);

/* Reads why the shim with this build id could not be compiled, and what the user can do about it.  Writes both to
 * `why` as one line.  Returns 1 on success, 0 if no such failure is recorded. */
int weir__shim_failure(const char *id, char *why, size_t bytes);

/* Checks that no other user can have changed a file, before the process loads the file as code.  Returns 1 if the
 * file is a plain file of this user or of root, and if only its owner may write to the file.  Returns 0 otherwise. */
int weir__shim_is_safe(const char *path);

/* Returns the name of the environment variable by which the user has chosen one of PyTorch's own allocators.
 * Returns NULL if no such variable is set. */
const char *weir__shim_disabled_by(void);
/* Finds an option by its name in a list of PyTorch's options.  The list has the form NAME:VALUE,NAME:VALUE, and a
 * value may be a list in brackets.  Returns the address of the option, and writes the option's length to *length.
 * Returns NULL if the list has no such option. */
const char *weir__torch_option(const char *list, const char *name, size_t *length);

#endif
