/* SPDX-License-Identifier: MIT */
/* shim.h: where the shim for a PyTorch lies, and whether a process is to have it.
 *
 * Glossary
 *   shim      weir_torch.cpp of this folder, compiled for one PyTorch; its weir_torch_install makes weir its allocator
 *   build id  of that PyTorch's libc10_cuda.so, in hexadecimal: neither its version nor a size shows which virtual
 *             functions it calls, and in which order
 *
 * The program makes shims, and the preload library loads them, so both take the path from here.
 *
 * Must not know: how a shim is made, or loaded.
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

/* Writes the path of the shim for a build id, with ".so" or ".failed" as `ending`, by XDG_CACHE_HOME and HOME.  Returns 1,
 * or 0 if neither variable names a folder or the path is too long. */
int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending);

/* Opens a file beside the shims and locks it for as long as the file, or a copy of it in a child process, is open.  A
 * process that makes a shim holds this lock; several processes may hold it.  The folder exists.  Returns the file, or -1
 * with errno. */
int weir__shim_lock(void);

/* Locks the shim for a build id in that file, so that one process compiles it.  Returns 1 if another process has locked
 * this shim, else 0. */
int weir__shim_is_others(int file, const char *id);

/* Waits while the shim's file is missing and a process holds the lock.  Returns 1, or 0 if the process still holds the
 * lock after the timeout. */
int weir__shim_await(const char *path, uint64_t timeout_ns);

/* Reads the line that says why the shim for a build id could not be made and what the user can do.  Returns 1, or 0 if no
 * failure is noted. */
int weir__shim_failure(const char *id, char *why, size_t bytes);

/* Checks that nobody else can have written to a file that is loaded as code.  Returns 1 if the file is a plain file of this
 * user, or of root, and only its owner may write to it, else 0. */
int weir__shim_is_safe(const char *path);

/* Returns the variable by which the user chose among PyTorch's own allocators, or NULL if there is none. */
const char *weir__shim_unwanted_by(void);
/* Finds an option by its name in a list of PyTorch's (NAME:VALUE,... where a value may be a list in brackets).  Returns the
 * option with its length, or NULL if the list lacks it. */
const char *weir__torch_option(const char *list, const char *name, size_t *length);

#endif
