/* SPDX-License-Identifier: MIT */
/* weir/share.h: blocks that another process uses.
 *
 * An exportable allocator (options.exportable) exports two files once, and makes a handle for each shared block.
 * Another process makes an import from the files, and gets a block from each handle:
 *
 *     exporter                                    importer
 *     weir_export(allocator, files)           ->  weir_import_create("cuda", files, &device, &import)
 *     weir_share(allocator, block, s, &handle) -> weir_import_block(import, &handle, &block)
 *                                                 kernels use it on any stream of that device
 *     weir_free(allocator, block, s)          <-  weir_import_free(import, block, t)
 *
 * Files travel by SCM_RIGHTS over a Unix socket, or by inheritance; handles are bytes.  weir's statuses enforce
 * CUDA's rules.  A block can be shared when the work that wrote it is done.  One importer imports it once.  Its
 * exporter cannot free it while an importer has it, unless the importer has ended without freeing it.  (A child of
 * fork() that does not exec keeps what its parent had alive.)
 *
 * For the pool engine.  Engine mapped has no exports: it moves physical allocations to where memory is needed, and a
 * block lies in several of them, which no importer could follow.  Memory of cuMemAlloc has CUDA's own legacy
 * handles. */
#ifndef WEIR_SHARE_H
#define WEIR_SHARE_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block for one importer: bytes to send as they are, to a process with a libweir of the same version. */
typedef struct weir_shared {
    uint64_t opaque[16];
} weir_shared;

/* The memory that another process exports. */
typedef struct weir_import weir_import;

/* Writes two file descriptors to files[0] and files[1]: of the memory, and of the list in which both sides note who
 * has what.  Each call makes new ones, which the caller closes.  They are closed on exec.
 * E_INVALID: NULL.
 * E_NOT_SUPPORTED: options.exportable is not on.
 * E_HOST_MEMORY: no descriptor is left.
 * E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_export(weir_allocator *allocator, int files[2]);

/* Makes a handle of a live block for one importer.  `stream` is the one on which the block was written last.  Its
 * work must be done, so that the importer needs no event.  After its importer has freed it, a block may be shared
 * again.  Frees of all blocks take some nanoseconds more while any block is shared.
 * E_INVALID: NULL.
 * E_NOT_SUPPORTED: as above.
 * E_NOT_OWNED: no live block begins there.
 * E_BUSY: the stream is still at work, or the block is shared already and its importer has not freed it.
 * E_LIMIT: 4096 blocks are shared.
 * E_STREAM; E_CAPTURE; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1.
 *
 * weir_free of a shared block returns E_BUSY while an importer has it, and changes nothing.  Before the import it
 * withdraws the handle. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_share(weir_allocator *allocator, void *block,
                                                  weir_stream stream, weir_shared *handle);

/* Opens the files of weir_export.  `driver` is "cuda" or "model" (NULL: "cuda").  weir finds the device there by its
 * UUID, whatever its number is here, and writes the number to *device (may be NULL).  The files stay the caller's,
 * who may close them.
 * E_INVALID: NULL, or files that are not from weir_export.
 * E_NOT_OWNED: the exporter has ended.
 * E_NO_DEVICE: its device is not visible here.
 * E_NOT_SUPPORTED: the driver cannot.
 * E_HOST_MEMORY; E_DRIVER; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_create(const char *driver, const int files[2],
                                                          int *device, weir_import **import);

/* Imports the block of a handle, at its own address, for all streams of the device.
 * E_INVALID: NULL, or a handle of another allocator.
 * E_BUSY: it is already imported.
 * E_NOT_OWNED: its importer or the exporter freed it, or the exporter has ended.
 * E_HOST_MEMORY; E_DRIVER; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_block(weir_import *import,
                                                         const weir_shared *handle, void **block);

/* Gives an imported block up.  The caller has ordered all uses before the work of `stream`.  The call waits until
 * that work is done: only then may the exporter free the block.
 * E_INVALID: import NULL.
 * E_NOT_OWNED: no imported block begins there.
 * E_STREAM; E_CAPTURE; E_DRIVER: nothing changed; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_free(weir_import *import, void *block,
                                                        weir_stream stream);

/* Destroys an import.  NULL is OK.
 * E_BUSY: blocks are imported, and nothing changed.
 * E_FORKED.  Since 0.1. */
WEIR_API weir_status weir_import_destroy(weir_import *import);

#ifdef __cplusplus
}
#endif

#endif
