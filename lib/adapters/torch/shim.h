/* SPDX-License-Identifier: MIT */
/* shim.h: finds the shim for a build of PyTorch, locks shims while they are compiled, and reads PyTorch's environment
 * variables, for `weir torch' and for the preload library.
 *
 * Terms
 *   shim      a library that is compiled from weir_torch.cpp of this folder, for one build of PyTorch.  Its function
 *             weir_torch_install makes weir the allocator of this PyTorch
 *   build id  the build id of PyTorch's libc10_cuda.so, in hexadecimal.  PyTorch's version would not suffice: builds of
 *             one version may differ in the virtual functions of the allocator and in their order
 *
 * This file must not depend on how a shim is compiled or loaded. */
#ifndef WEIR_SHIM_H
#define WEIR_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define WEIR_SHIM_LIBRARY "libc10_cuda.so"

enum {
    WEIR_BUILD_ID_BYTES = 2 * 32 + 1,
    /* 2.6, the first version of PyTorch that weir_torch.cpp supports; also in versions.h */
    WEIR_TORCH_FIRST = 206
};

/* Finds the build id in the notes of an ELF segment.  Returns 1 on success, 0 if the notes contain none. */
int weir__shim_id_in(const void *notes, size_t bytes, char id[WEIR_BUILD_ID_BYTES]);
/* Reads the build id of a 64-bit ELF file.  Returns 1 on success, 0 if the file contains none. */
int weir__shim_id_of(const char *path, char id[WEIR_BUILD_ID_BYTES]);

/* Writes the path of a shim (".so"), or of the text about its failure (".failed").  Returns 1 on success, else 0. */
int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending);

/* Takes a shared lock on a file in the folder of the shims.  Returns the open file, or -1 with the reason in errno.
 * The lock ends when this process and all its children have closed the file. */
int weir__shim_lock(void);

/* Locks a shim in the file of weir__shim_lock().  Returns 1 if another process has already locked this shim, else 0. */
int weir__shim_locked_by_other(int file, const char *id);

/* Waits until the shim's file exists, or no process is compiling any shim.  Returns 0 after the timeout, else 1. */
int weir__shim_await(const char *path, uint64_t timeout_ns);

/* Writes the reason for a failed compilation to `why`, as one line.  Returns 1 on success, 0 if there is no reason. */
int weir__shim_failure(const char *id, char *why, size_t bytes);

/* Returns 1 if the file is safe to load as code, since only root or this user may own and write the file, else 0. */
int weir__shim_is_safe(const char *path);

/* Returns the environment variable by which the user has chosen one of PyTorch's own allocators, or NULL. */
const char *weir__shim_disabled_by(void);
/* Finds an option in PyTorch's list NAME:VALUE,NAME:VALUE.  Returns the option and its length, or NULL. */
const char *weir__torch_option(const char *list, const char *name, size_t *length);

#endif
