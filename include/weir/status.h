/* SPDX-License-Identifier: MIT */
/* weir/status.h: the statuses that functions return, and the functions that still work after each failure. */
#ifndef WEIR_STATUS_H
#define WEIR_STATUS_H

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#define WEIR_CHECK_RESULT __attribute__((warn_unused_result))
#else
#define WEIR_API
#define WEIR_CHECK_RESULT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* All statuses, as X(name, value, message).  0 is success, and errors are negative.  A value never changes after a
 * release.  The constants begin with WEIR_: a program compares with WEIR_E_LIMIT.  The comments of this folder and the
 * manual pages write E_LIMIT.
 *
 *   OK                 Success.
 *   E_INVALID          An argument is wrong: a pointer is NULL that must not be NULL, an option is out of its
 *                      range, or an options struct of a newer library has fields set that this library does
 *                      not know.  Nothing has changed.  The allocator's log, if there is a log, contains the
 *                      name of the argument.
 *   E_NO_MEMORY        The device has no memory for the request, even after OOM recovery
 *                      (weir_last_failure has the figures).  All other functions still work.
 *   E_HOST_MEMORY      malloc failed.  Nothing has changed.  A block that the caller tried to free is still live.
 *   E_LIMIT            The reserved memory would have to grow above the allocator's limit, and no free memory is
 *                      suitable for the request.  All other functions still work.
 *   E_NO_DEVICE        There is no driver or no such device, the driver is older than 11.2, or the pool engine
 *                      was chosen on a device without memory pools.
 *   E_DRIVER           A driver call failed for another reason.  weir_last_driver_result returns its code.  The
 *                      allocator works as far as the driver works.
 *   E_DEVICE_LOST      A fault on the device, or a reset, has made the device's context unusable.  All blocks
 *                      are lost.  Only weir_stats and weir_allocator_destroy still work.
 *   E_BUSY             weir_allocator_destroy found live blocks, or could not wait for pending frees.  Nothing
 *                      has changed.  Free the blocks and call again.
 *   E_NOT_OWNED        The pointer is not the start of a live block of this allocator.  It belongs to other
 *                      memory, points into a block, or was freed before.  Nothing has changed.
 *   E_STREAM           The driver does not know the stream, or the stream belongs to another device
 *                      (options.cache on).  Nothing has changed.  The block is still live, and the caller can
 *                      free it on another stream.
 *   E_CAPTURE          The call is not possible while the stream is being captured.  Such calls are: a request
 *                      with engine direct, or with a driver or device without memory of graphs; a free of a
 *                      block of weir_use; weir_use and weir_bind.  The call does not invalidate the capture.
 *   E_FORKED           The call came from a child of fork(), where CUDA does not work.  Nothing has changed.
 *   E_PARSE            A text is wrong: a setting, a size, or a line of a trace.  The message contains the text
 *                      and the form that is expected.
 *   E_NOT_SUPPORTED    The driver or the engine cannot do this.  The comment of each function says when.
 *   E_FILE             A file cannot be written, or must not be replaced.  Nothing has changed.  The log
 *                      contains the name of the file and the reason.
 */
#define WEIR_STATUSES(X)                                                                           \
    X(OK, 0, "success")                                                                            \
    X(E_INVALID, -1, "invalid argument")                                                           \
    X(E_NO_MEMORY, -2, "out of device memory")                                                     \
    X(E_HOST_MEMORY, -3, "out of host memory")                                                     \
    X(E_LIMIT, -4, "the allocator's limit is reached")                                             \
    X(E_NO_DEVICE, -5, "no usable device or driver")                                               \
    X(E_DRIVER, -6, "the driver refused the call")                                                 \
    X(E_DEVICE_LOST, -7, "the device or its context is lost")                                      \
    X(E_BUSY, -8, "live blocks or pending frees remain")                                           \
    X(E_NOT_OWNED, -9, "not a live block of this allocator")                                       \
    X(E_STREAM, -10, "unknown stream")                                                             \
    X(E_CAPTURE, -11, "not possible under stream capture")                                         \
    X(E_FORKED, -12, "called in a forked child")                                                   \
    X(E_PARSE, -13, "cannot be parsed")                                                            \
    X(E_NOT_SUPPORTED, -14, "not supported by this driver or engine")                              \
    X(E_FILE, -15, "a file cannot be written")

typedef enum weir_status {
#define WEIR_STATUS_ENUM(name, value, message) WEIR_##name = (value),
    WEIR_STATUSES(WEIR_STATUS_ENUM)
#undef WEIR_STATUS_ENUM
    /* Makes the enum as large as an int, so that later statuses do not change its size; no function returns this
     * value. */
    WEIR_STATUS_MAX_ENUM = 0x7fffffff
} weir_status;

/* Returns the name of a status, such as "WEIR_E_LIMIT", or "unknown status" for any other number.  The text is static
 * and never NULL.  Thread-safe, never blocks.  Since 0.1. */
WEIR_API const char *weir_status_name(weir_status status);
/* Returns the message of a status, such as "the allocator's limit is reached", or "unknown status" for any other
 * number.  The text is static and never NULL.  Thread-safe, never blocks.  Since 0.1. */
WEIR_API const char *weir_status_message(weir_status status);

/* Returns the CUresult of the driver call because of which the last failed call of weir on this thread failed.  Returns
 * 0 if the failure had another reason.  Every call of weir that fails sets this result, and a successful call does not
 * change it.  Thread-local, never blocks.  Since 0.1. */
WEIR_API int weir_last_driver_result(void);

#ifdef __cplusplus
}
#endif

#endif
