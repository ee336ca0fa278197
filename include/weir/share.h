/* SPDX-License-Identifier: MIT */
/* weir/share.h: shares blocks with other processes.
 *
 * With the mapped engine, other processes can map the memory of a block.  The sender creates a text, and sends the text
 * to the receiver in any way.  The receiver opens the text:
 *
 *     sender                                      receiver
 *     weir_ipc_make(allocator, p, text, ...)  ->  weir_ipc_open(text, &device, &base, ...)
 *                                                 base + offset is the memory at p
 *     weir_free after all receivers' close    <-  weir_ipc_close(base)
 *
 * One rule limits how long a receiver may use the memory: the sender keeps the block live until every receiver has
 * closed it.  weir does not count receivers and does not check this rule.  If the sender frees the block too early,
 * weir may reuse its memory while a receiver still uses the memory.
 *
 * The engines direct and bfc allocate memory by cuMemAlloc.  For this memory, use CUDA's own handles
 * (cuIpcGetMemHandle).  Memory of the pool engine cannot be shared. */
#ifndef WEIR_SHARE_H
#define WEIR_SHARE_H

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes a text by which other processes of the user on this machine can open the memory of a live block, any number of
 * times.  For engine mapped.
 *
 * `address` is any address in the block.  `text` has room for `text_bytes` bytes, and receives printable ASCII with a
 * NUL at the end.  If `text` is NULL and `text_bytes` is 0, the call only sets *needed and *offset.  *needed receives
 * the size of the whole text with the NUL.  This is some hundred bytes, and some 30 bytes more for each physical
 * allocation of the block.  *offset receives the distance in bytes from the base that weir_ipc_open returns to
 * `address`.  `needed` and `offset` may be NULL.  Two blocks in one physical allocation have equal texts.
 *
 * The caller keeps the block live until all receivers have closed it.  A live block never moves.  Receivers can read
 * and write all physical allocations of the block, including other blocks in these allocations.  The caller orders uses
 * across processes, for example by events.
 *
 * weir exports each physical allocation once.  The file descriptor of the allocation stays open until weir releases the
 * memory to the device.  A child of fork() that does not exec also has the descriptor, and so keeps the memory.  The
 * first call in a process lets all processes of the user trace this process (PR_SET_PTRACER_ANY).  Without this, Yama
 * would not let receivers take the descriptors.
 *
 * Thread-safe.  Waits for no work on the device.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `allocator`, `address` or `text` is NULL, or the text does not fit.  If the text does not fit, *needed and
 * *offset are set, and `text` is unchanged.
 * E_NOT_SUPPORTED: the engine is not mapped, or the driver or the device cannot share memory.  The log has the reason.
 * E_NOT_OWNED: no live block contains the address, or the block belongs to a graph.
 * E_HOST_MEMORY: the host has no memory, or the process has no file descriptor left.  In the second case, raise the
 * limit (ulimit -n).
 * E_DRIVER, E_DEVICE_LOST, E_FORKED: see weir_status(3).  Since 0.2. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_make(weir_allocator *allocator, const void *address,
                                                     char *text, size_t text_bytes, size_t *needed,
                                                     size_t *offset);

/* Maps the memory that a text of weir_ipc_make names.  All streams of its device may use the memory.  weir finds the
 * device by its UUID, and writes the device's number in this process to *device; `device` may be NULL.  *base receives
 * the address of the mapping, which the caller closes by weir_ipc_close.  The mapping keeps the memory, even if the
 * sender ends.  The sender may open its own text.  Each call maps the memory again at other addresses, so a caller
 * should open a text only once.  On a failure `message` receives the reason.  `message` may be NULL, and always ends
 * with a NUL if message_bytes is above 0.
 *
 * weir takes the sender's file descriptors by pidfd_getfd (Linux 5.6).  Both processes must run as one user, and must
 * have one namespace of process ids.  kernel.yama.ptrace_scope must be 0 or 1.  Containers need CAP_SYS_PTRACE.
 *
 * Thread-safe.  Creates the device's context if there is none.  Waits for no work on the device.
 *
 * Returns OK or one of these statuses.  On an error nothing stays mapped.
 * E_INVALID: `text` or `base` is NULL.
 * E_PARSE: the text does not come from weir_ipc_make of this version.
 * E_NOT_OWNED: the sender has ended or has freed the block.  weir detects the end of the sender even if another process
 * has the sender's process id now.  weir does not detect the free if the sender has since exported other memory with
 * the number of the old descriptor.
 * E_NOT_SUPPORTED: the kernel does not let weir take the descriptors, or the driver cannot share memory.
 * E_NO_DEVICE: the device is not visible to this process, or there is no driver.
 * E_NO_MEMORY: no addresses are left.
 * E_HOST_MEMORY: the host has no memory, or the process has no file descriptor left.
 * E_DRIVER, E_FORKED: see weir_status(3).  Since 0.2. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_ipc_open(const char *text, int *device, void **base,
                                                     char *message, size_t message_bytes);

/* Unmaps memory that weir_ipc_open has mapped.  The call first waits until the device has completed all work of this
 * process.  The wait invalidates no capture.  NULL is OK and does nothing.  Thread-safe.
 *
 * Returns OK or one of these statuses.
 * E_NOT_OWNED: weir_ipc_open has mapped nothing at this base, or another thread is closing the mapping.
 * E_NO_MEMORY: the wait needs a little memory, and neither the device nor the host has this memory.  Nothing has
 * changed.
 * E_DRIVER, E_DEVICE_LOST: see weir_status(3).  Nothing has changed.
 * E_FORKED: see weir_status(3).  Since 0.2. */
WEIR_API weir_status weir_ipc_close(void *base);

#ifdef __cplusplus
}
#endif

#endif
