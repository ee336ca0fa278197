/* SPDX-License-Identifier: MIT */
/* weir/share.h: shares blocks with other processes.
 *
 * The mapped engine lets other processes map the memory of a block.  The sender makes a text, which it sends in any
 * way.  The receiver opens the text:
 *
 *     sender                                      receiver
 *     weir_ipc_make(allocator, p, text, ...)  ->  weir_ipc_open(text, &device, &base, ...)
 *                                                 base + offset is the same memory
 *     weir_free after all receivers' close    <-  weir_ipc_close(base)
 *
 * One rule says how long a receiver may use the memory: the sender keeps the block live until every receiver has closed
 * it.  weir does not count receivers and does not check the rule.  If the sender frees the block before that, weir may
 * hand its memory out again while a receiver still uses it.
 *
 * Memory of cuMemAlloc, which the engines direct and bfc allocate, has CUDA's own handles (cuIpcGetMemHandle).  Memory
 * of the pool engine cannot be shared. */
#ifndef WEIR_SHARE_H
#define WEIR_SHARE_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes a text by which other processes of the user on the machine can open the memory of a live block, as often as
 * they like.  For engine mapped.
 *
 * `address` is any address in the block.  `text` has room for `text_bytes` bytes, and receives printable ASCII with a
 * NUL.  With text NULL and 0 bytes the call sets *needed and *offset only.  *needed receives the size of the whole
 * text with the NUL: some hundred bytes, and some 30 for each physical allocation that the block lies in.  *offset
 * receives the bytes from the base that weir_ipc_open returns to `address`.  `needed` and `offset` may be NULL.  Two
 * blocks in one physical allocation have equal texts.
 *
 * The caller keeps the block live until all receivers have closed it.  A live block never moves.  Receivers can read
 * and write all physical allocations of the block, also other blocks there.  The caller orders uses across processes,
 * with events for instance.
 *
 * weir exports each physical allocation once.  Its file descriptor stays open until the memory goes back to the device.
 * A child of fork() that does not exec has the descriptors, too, and so keeps the memory.  The first call of a
 * process lets all processes of the user trace it (PR_SET_PTRACER_ANY).  Without that, Yama would not let receivers
 * take the descriptors.
 *
 * Thread-safe.  Waits for no work on the device.
 * E_INVALID: NULL; or the text does not fit: then *needed and *offset are set, and `text` is unchanged.
 * E_NOT_SUPPORTED: the engine is not the mapped engine, or the driver or the device cannot.  The reason is logged.
 * E_NOT_OWNED: no live block contains the address, or the block is a graph's.
 * E_HOST_MEMORY: no host memory, or no file descriptor is left: raise the limit (ulimit -n).
 * E_DRIVER; E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_make(weir_allocator *allocator, const void *address,
                                                     char *text, size_t text_bytes, size_t *needed,
                                                     size_t *offset);

/* Maps the memory that a text of weir_ipc_make names, for all streams of its device.  weir finds the device by its
 * UUID, and writes its number in this process to *device (may be NULL).  *base receives the address, which is the
 * caller's until weir_ipc_close.  The mapping keeps the memory from the device, even if the sender ends.  The sender
 * may open its own text.  Each call maps the memory again, at other addresses, so callers should open a text once.
 * `message` receives the reason of a failure.  It may be NULL, and ends with a NUL if message_bytes > 0.
 *
 * weir takes the sender's file descriptors with pidfd_getfd (Linux 5.6).  Both processes must run as the same user and
 * see the same process ids.  kernel.yama.ptrace_scope must be 0 or 1.  Containers need CAP_SYS_PTRACE.
 *
 * Thread-safe.  Makes the device's context if there is none.  Waits for no work on the device.
 * E_INVALID: text or base is NULL.
 * E_PARSE: the text does not come from weir_ipc_make of this version.
 * E_NOT_OWNED: the sender has ended (also if another process has its number now), or has freed the block.  weir does
 * not detect the free if the sender has since exported other memory under that descriptor's number.
 * E_NOT_SUPPORTED: the kernel refuses the descriptors, or the driver cannot.
 * E_NO_DEVICE: the device is not visible here, or there is no driver.
 * E_NO_MEMORY: no addresses are left.
 * E_HOST_MEMORY: no host memory, or no file descriptor is left.
 * E_DRIVER; E_FORKED.  On an error nothing stays mapped.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_open(const char *text, int *device, void **base,
                                                     char *message, size_t message_bytes);

/* Unmaps memory that weir_ipc_open mapped.  The call first waits until the device has finished all work of this
 * process.  It disturbs no capture.  NULL is OK.  Thread-safe.
 * E_NOT_OWNED: nothing is mapped from there, or another thread closes it.
 * E_NO_MEMORY: neither device nor host has the memory that the wait takes; E_DRIVER; E_DEVICE_LOST: nothing changed.
 * E_FORKED.  Since 0.1. */
WEIR_API weir_status weir_ipc_close(void *base);

#ifdef __cplusplus
}
#endif

#endif
