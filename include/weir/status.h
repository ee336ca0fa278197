/* SPDX-License-Identifier: MIT */
/* weir/status.h: the statuses that calls return, and which calls still work after each failure. */
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

/* Every status: X(name, value, one-line message).  Zero is success, errors are negative; values
 * never change once released.
 *
 *   OK                 Success.
 *   E_INVALID          An argument is wrong: NULL where a pointer is needed, an option out of its
 *                      range, an options struct from a newer library with set fields that this one
 *                      does not know.  Nothing changed.  The allocator's log, if there is one, names
 *                      the argument.
 *   E_NO_MEMORY        The device cannot hold the request, even after OOM recovery
 *                      (weir_last_failure has the figures).  Everything else keeps working.
 *   E_HOST_MEMORY      malloc failed.  Nothing changed: a block that was to be freed is still live.
 *   E_LIMIT            The request would take reserved memory past the allocator's limit, and no
 *                      free memory inside can serve it.  Everything else keeps working.
 *   E_NO_DEVICE        No driver, no such device, or a driver older than 11.2; or the pool engine on
 *                      a device without memory pools.
 *   E_DRIVER           A call of the driver failed for another reason: weir_last_driver_result has
 *                      its code.  The allocator keeps working as far as the driver does.
 *   E_DEVICE_LOST      A fault on the device or a reset left its context unusable.  Blocks are gone;
 *                      only weir_stats and weir_allocator_destroy still work.
 *   E_BUSY             weir_allocator_destroy found live blocks, or could not wait for pending frees.
 *                      Nothing changed; free the blocks and call again.
 *   E_NOT_OWNED        The pointer is not a live block of this allocator: foreign, interior, or
 *                      freed before.  Nothing changed.
 *   E_STREAM           The driver does not know the stream, or (options.cache on) it belongs to
 *                      another device.  Nothing changed: the block is still live, and the caller can
 *                      free it on another stream.
 *   E_CAPTURE          The call is not possible while the stream is being captured: a request with
 *                      engine direct, or where driver or device have no memory of graphs; a free of
 *                      a block of weir_use; weir_use and weir_bind.  The capture stays as valid as
 *                      it was.
 *   E_FORKED           A child of fork() called: CUDA does not survive fork.  Nothing changed.
 *   E_PARSE            A text does not parse: a setting, a size, a trace line.  The message names
 *                      it and says what would parse.
 *   E_NOT_SUPPORTED    The driver or the engine cannot do this; each call says when.
 *   E_FILE             A file cannot be written, or must not be replaced; the log has its name and
 *                      the reason.  Nothing changed.
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
        WEIR_STATUS_MAX_ENUM = 0x7fffffff /* keeps the type an int; never returned */
} weir_status;

/* Return the name ("WEIR_E_LIMIT") and the message of a status, or "unknown status" for any other number.  The text is
 * static and never NULL.  Thread-safe, never blocks.  Since 0.1. */
WEIR_API const char *weir_status_name(weir_status status);
WEIR_API const char *weir_status_message(weir_status status);

/* Returns the CUresult behind this thread's last failing call of weir, or 0 if the driver had no part in the failure.
 * Every failing weir call sets it; successful calls leave it unchanged.  Thread-local, never blocks.  Since 0.1. */
WEIR_API int weir_last_driver_result(void);

#ifdef __cplusplus
}
#endif

#endif
