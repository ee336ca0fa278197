/* SPDX-License-Identifier: MIT */
/* weir/share.h: blocks that another process uses.
 *
 * An allocator that was made for it (options.exportable) hands out two files once, and a handle for each block that
 * is shared.  Another process makes an import of the files, and a block of each handle:
 *
 *     exporter                                    importer
 *     weir_export(allocator, files)           ->  weir_import_create("cuda", files, &device, &import)
 *     weir_share(allocator, block, s, &handle) -> weir_import_block(import, &handle, &block)
 *                                                 kernels use it on any stream of that device
 *     weir_free(allocator, block, s)          <-  weir_import_free(import, block, t)
 *
 * Files travel by SCM_RIGHTS over a Unix socket, or by inheritance; handles are bytes.  CUDA's rules are kept by
 * status: a block is shared when the work that made it is done, is imported once by one importer, and is not freed
 * by its exporter while an importer has it, unless that has ended without freeing it.  (A child of fork() that
 * does not exec keeps what its parent had from being over.)
 *
 * For the pool engine.  Engine mapped has no exports: its handles move to where memory is wanted, and a block lies
 * in several of them, which no importer would follow; memory of cuMemAlloc has CUDA's own legacy handles.
 */
#ifndef WEIR_SHARE_H
#define WEIR_SHARE_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One block for one importer: bytes to be sent as they are, to a process with a libweir of the same version. */
typedef struct weir_shared {
    uint64_t opaque[16];
} weir_shared;

/* What another process has exported. */
typedef struct weir_import weir_import;

/* Writes two file descriptors, of the memory and of the list in which both sides note who has what, to
 * files[0] and files[1].  Each call makes new ones, which the caller closes; closed on exec.
 * E_INVALID: NULL; E_NOT_SUPPORTED: options.exportable is not on; E_HOST_MEMORY: no descriptor is left;
 * E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_export(weir_allocator *allocator, int files[2]);

/* Makes a handle of a live block for one importer.  `stream` is that on which the block was written last: its work
 * must be done, so that the importer needs no event.  A block whose importer has freed it may be shared again.
 * Frees of all blocks take some nanoseconds more while any is shared.
 * E_INVALID: NULL; E_NOT_SUPPORTED: as above; E_NOT_OWNED: no live block begins there; E_BUSY: the stream is still
 * at work, or the block is shared already and was not freed by its importer; E_LIMIT: 4096 blocks are shared;
 * E_STREAM; E_CAPTURE; E_HOST_MEMORY; E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1.
 *
 * weir_free of a shared block: E_BUSY while an importer has it, and nothing changed.  Before it is imported the
 * handle is withdrawn. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_share(weir_allocator *allocator, void *block,
                                                  weir_stream stream, weir_shared *handle);

/* Opens what weir_export gave.  `driver` is "cuda" or "model" (NULL: "cuda"), where the device is found by its
 * UUID, whatever its number is here: *device (may be NULL).  The files stay the caller's, who may close them.
 * E_INVALID: NULL, or files that weir_export did not give; E_NOT_OWNED: the exporter has ended; E_NO_DEVICE: its
 * device is not to be seen here; E_NOT_SUPPORTED: the driver cannot; E_HOST_MEMORY; E_DRIVER; E_FORKED.
 * Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_create(const char *driver, const int files[2],
                                                          int *device, weir_import **import);

/* The block of a handle, at an address of its own, for all streams of the device.
 * E_INVALID: NULL, or a handle of another allocator; E_BUSY: somebody has imported it; E_NOT_OWNED: it was freed,
 * by its importer or by the exporter, or the exporter has ended; E_HOST_MEMORY; E_DRIVER; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_block(weir_import *import,
                                                         const weir_shared *handle, void **block);

/* Gives a block up, and waits until all work of `stream` is done, behind which the caller has ordered all uses: only
 * then may the exporter free it.
 * E_INVALID: import NULL; E_NOT_OWNED: no imported block begins there; E_STREAM; E_CAPTURE; E_DRIVER: nothing
 * changed; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_import_free(weir_import *import, void *block,
                                                        weir_stream stream);

/* NULL is OK.  E_BUSY: blocks are imported, and nothing changed; E_FORKED.  Since 0.1. */
WEIR_API weir_status weir_import_destroy(weir_import *import);

#ifdef __cplusplus
}
#endif

#endif
