/* SPDX-License-Identifier: MIT */
/* weir/trace.h: reads allocation traces, version 1.
 *
 * A trace is a text with one event in each line.  Blanks or tabs separate the fields of an event.  A line that begins
 * with '#' is a comment.  The first line may be the comment "# weir-trace 1".  Times are microseconds since the start,
 * and never decrease from line to line.  The events are:
 *     t_us a id bytes stream       allocate a block
 *     t_us f id bytes stream       free a block
 *     t_us u id stream             another stream uses the block
 *     t_us w stream on_stream      stream waits for all work of on_stream so far
 *     t_us x id bytes stream       a request failed
 *     t_us m label                 an iteration ends, and the host waits for the device
 * Fields of the form key=value may follow.  The reader ignores keys that it does not know.  `weir record` writes these
 * keys:
 *     dev=N        the number of the device
 *     tid=N        the number of the thread, from 1
 *     kind=WORD    the driver's call: async (cuMemAllocAsync), pool (cuMemAllocFromPoolAsync), plain (cuMemAlloc),
 *                  pitch (cuMemAllocPitch), managed (cuMemAllocManaged), vmm (cuMemCreate)
 *     by=FILE      for a and x: the library or program that made the call
 *     at=PLACE     for a and x: the caller, "train.py:12(step)", "step", or "program+0x1a2b" (--callers)
 *     range=NAME   for a and x: the innermost NVTX range of the thread (--callers)
 *     cap=1        the stream was being captured
 * `weir record` also writes these comments:
 *     # device N: BYTES bytes, NAME
 *     # calls NAME=COUNT bytes=BYTES most=BYTES     (all bytes, and the most bytes at once; for cuMemAddressReserve,
 *                                                   cuMemMap, and host: host memory by cuMemCreate and from pools) */
#ifndef WEIR_TRACE_H
#define WEIR_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIR_TRACE_LABEL_BYTES = 64 };

typedef struct weir_trace_event {
    uint64_t line; /* the line of the trace that contains the event; the first is 1 */
    uint64_t time_us;
    /* The id of the block, in events a f u x.  After the free, a later block may have this id again. */
    uint64_t id;
    uint64_t bytes;     /* the size of the block, in events a f x; at most INT64_MAX */
    uint64_t stream;    /* the id of the stream, in events a f u x w */
    uint64_t on_stream; /* the id of the stream for which `stream` waits, in event w */
    /* The kind of event: 'a', 'f', 'u', 'w', 'x', 'm', or NUL at the end of the trace. */
    int operation;
    /* The label, in event m.  If the label in the trace is too long, weir cuts it. */
    char label[WEIR_TRACE_LABEL_BYTES];
} weir_trace_event;

/* The type of a function that returns the text of a trace.  The function writes the next bytes of the text, at most
 * `bytes`, to `buffer`.  It returns the number of these bytes, 0 at the end of the text, or a negative number on an
 * error.  On an error, the function may write a reason to `message`. */
typedef ptrdiff_t (*weir_trace_source)(void *context, char *buffer, size_t bytes, char *message,
                                       size_t message_bytes);

typedef struct weir_trace_reader weir_trace_reader;

/* Creates a reader for the text of `source`, and writes the reader to *reader.  The caller destroys the reader.  Only
 * weir_trace_next calls `source`, and passes `context` to it.  Thread-safe, never blocks.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: `source` or `reader` is NULL.
 * E_HOST_MEMORY: the host has no memory.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_reader_create(weir_trace_source source,
                                                                void *context,
                                                                weir_trace_reader **reader);
/* Destroys a reader.  NULL is OK and does nothing.  Never blocks.  Since 0.1. */
WEIR_API void weir_trace_reader_destroy(weir_trace_reader *reader);

/* Reads and checks the next event of the trace.  On success writes the event to *event.  At the end of the trace, the
 * call returns OK, and the operation of the event is NUL.  Only one thread at a time may use a reader.  The call blocks
 * as long as the source blocks.
 *
 * Returns OK or one of these statuses.
 * E_PARSE: the line is wrong, or the source failed.  weir_trace_message returns the number of the line and the reason.
 * A line is wrong if it has a wrong form, an unknown operation, a number that is negative or too large, or an earlier
 * time than the line before.  A free or a use of an id that is not live is wrong, an allocation of a live id is wrong,
 * and so is a free with another size than the allocation.  A last line without a newline (a truncated file), and a
 * trace without any event, are also wrong.
 * E_INVALID: an argument is NULL.
 * E_HOST_MEMORY: the host has no memory.
 *
 * After E_PARSE or E_HOST_MEMORY, the reader reads nothing more.  Every later call returns this status, and the message
 * stays.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_next(weir_trace_reader *reader,
                                                       weir_trace_event *event);

/* Copies the value of a field key=value of the last event to `value`, cut to `value_bytes` bytes.  If the event has
 * several fields with this key, copies the first field's value.  Returns 1 on success.  Returns 0 and writes "" if the
 * event has no such field.  Never blocks.  Since 0.1. */
WEIR_API int weir_trace_field(const weir_trace_reader *reader, const char *key, char *value,
                              size_t value_bytes);

/* The type of a function that receives the comments of a trace.  `text` is a comment that weir_trace_next has read,
 * without the '#' and the blanks after the '#', and ends with a NUL.  `text` is valid only during the call. */
typedef void (*weir_trace_comment)(void *context, const char *text);

/* Sets the function that receives comments from now on.  NULL means that no function receives comments.  The reader
 * skips comments above 100 kB.  Since 0.1. */
WEIR_API void weir_trace_comments(weir_trace_reader *reader, weir_trace_comment comment,
                                  void *context);

/* Returns the reason of the last E_PARSE, or "" if there was no E_PARSE.  The text is, for example, "line 17: free of
 * id 5, which is not live".  After an error of the source, the text is "behind line 16: " and the message of the
 * source.  The reader owns the text, which is valid until the next call with this reader.  Never blocks.  Since 0.1. */
WEIR_API const char *weir_trace_message(const weir_trace_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
