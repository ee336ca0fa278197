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

#define WEIR_SHIM_LIBRARY "libc10_cuda.so"

enum {
    WEIR_BUILD_ID_BYTES = 2 * 32 + 1,
    /* The first version of PyTorch for which weir_torch.cpp can be compiled; versions.h has this number, too. */
    WEIR_TORCH_FIRST = 206
};

/* Finds the build id among the notes of an ELF segment.  1: it is there. */
int weir__shim_id_in(const void *notes, size_t bytes, char id[WEIR_BUILD_ID_BYTES]);
/* The build id of a 64-bit ELF file.  1: it is there. */
int weir__shim_id_of(const char *path, char id[WEIR_BUILD_ID_BYTES]);

/* The path of the shim for a build id, with ".so" or ".failed" as `ending`, by XDG_CACHE_HOME and HOME.  1, or 0: there
 * is no such folder, or the path is too long. */
int weir__shim_path(char *path, size_t bytes, const char *id, const char *ending);

/* Others must not have written to a file that is loaded as code: 1 if it is a plain file of this user, or of root, and
 * only its owner may write to it. */
int weir__shim_is_safe(const char *path);

/* The variable by which the user chose among PyTorch's own allocators; NULL: none. */
const char *weir__shim_unwanted_by(void);
/* The option of that name in a list of PyTorch's (NAME:VALUE,... where a value may be a list in brackets),
 * with its length; NULL: it is not in the list. */
const char *weir__torch_option(const char *list, const char *name, size_t *length);

#endif
