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
 * That is for the pool engine.  Memory of the mapped engine has a text for each block, for programs that keep count
 * of who uses what themselves, as PyTorch does:
 *
 *     sender                                      receiver
 *     weir_ipc_make(allocator, p, text, ...)  ->  weir_ipc_open(text, &device, &base, ...)
 *                                                 base + offset is the same memory
 *     weir_free after all receivers' close        weir_ipc_close(base)
 *
 * Memory of cuMemAlloc has CUDA's own legacy handles. */
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
 * E_NOT_SUPPORTED: options.exportable is not on, or the engine is not the pool engine.
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

/* Writes a text by which other processes of the user on the machine can open the memory of a live block, as often as
 * they like.  For engine mapped.
 *
 * `address` is any address in the block.  `text` has room for `text_bytes` bytes, and receives printable ASCII with a
 * NUL.  With text NULL and 0 bytes the call only tells *needed and *offset.  *needed receives the size of the whole
 * text with the NUL: some hundred bytes, and some 30 for each physical allocation that the block lies in.  *offset
 * receives the bytes from what weir_ipc_open maps to `address`.  Both may be NULL.  Blocks of the same physical
 * allocations have the same text.
 *
 * The caller keeps the block live until all receivers have closed it: a live block never moves.  Receivers can read
 * and write all of its physical allocations, with what lies beside the block.  The caller orders uses across
 * processes, with events for instance.
 *
 * weir exports each physical allocation once.  Its file descriptor stays open until the memory goes back to the device.
 * A child of fork() that does not exec has these descriptors, too, and so keeps that memory.  The first call of a
 * process lets all processes of the user trace it (PR_SET_PTRACER_ANY).  Without that, Yama would not let receivers
 * take the descriptors.
 *
 * Thread-safe.  Waits for no work on the device.
 * E_INVALID: NULL; or the text does not fit: then *needed and *offset are set, and `text` is unchanged.
 * E_NOT_SUPPORTED: another engine, or the driver or the device cannot.
 * E_NOT_OWNED: no live block is there, or it is a graph's.
 * E_HOST_MEMORY: no host memory, or no file descriptor is left: raise the limit (ulimit -n).
 * E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_make(weir_allocator *allocator, const void *address,
                                                     char *text, size_t text_bytes, size_t *needed,
                                                     size_t *offset);

/* Maps the memory of a text, for all streams of its device.  weir finds the device by its UUID, and writes its number
 * in this process to *device (may be NULL).  *base receives the address, which is the caller's until weir_ipc_close.
 * The mapping keeps the memory, even if the sender frees it or ends.  The sender may open its own text.  Each call maps
 * the memory again, at other addresses: keep what is open.  `message` receives the reason of a failure; it may be NULL,
 * and ends with a NUL if message_bytes > 0.
 *
 * weir takes the sender's file descriptors with pidfd_getfd (Linux 5.6).  Both processes must run as the same user and
 * see the same process ids.  kernel.yama.ptrace_scope must be 0 or 1.  Containers need CAP_SYS_PTRACE.
 *
 * Thread-safe.  Makes the device's context if there is none.  Waits for no work on the device.
 * E_INVALID: text or base NULL.
 * E_PARSE: no text of weir_ipc_make of this version.
 * E_NOT_OWNED: the sender has ended (also if another process has its number now), or has freed the block.  weir cannot
 * see the latter if the sender has exported other memory under the same descriptor since.
 * E_NOT_SUPPORTED: the kernel refuses the descriptors, or the driver cannot.
 * E_NO_DEVICE: the device is not visible here, or there is no driver.
 * E_NO_MEMORY: no addresses are left.
 * E_HOST_MEMORY: no host memory, or no file descriptor is left.
 * E_DRIVER; E_FORKED.  On an error nothing stays mapped.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_open(const char *text, int *device, void **base,
                                                     char *message, size_t message_bytes);

/* Unmaps what weir_ipc_open mapped.  The call first waits until the device has finished all work of this process, and
 * harms no capture.  NULL is OK.  Thread-safe.
 * E_NOT_OWNED: nothing is mapped from there, or another thread closes it.
 * E_NO_MEMORY: neither device nor host has the memory that the wait takes; E_DRIVER; E_DEVICE_LOST: nothing changed.
 * E_FORKED.  Since 0.1. */
WEIR_API weir_status weir_ipc_close(void *base);

#ifdef __cplusplus
}
#endif

#endif
