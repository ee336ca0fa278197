/* SPDX-License-Identifier: MIT */
/* weir/trace.h: reads allocation traces, version 1.
 *
 * A trace is text, one event a line.  Blanks or tabs separate the fields.  A line that starts with '#' is a comment,
 * and the first may be "# weir-trace 1".  Times are microseconds since the start; they never decrease from line to
 * line:
 *     t_us a id bytes stream       allocate
 *     t_us f id bytes stream       free
 *     t_us u id stream             another stream uses the block
 *     t_us w stream on_stream      stream waits for all work of on_stream so far
 *     t_us x id bytes stream       a request that failed
 *     t_us m label                 an iteration ends; the device is synchronised
 * Fields key=value may follow; the reader ignores unknown keys.  `weir record` writes
 *     dev=N        the device
 *     tid=N        the thread, from 1
 *     kind=WORD    the call: async (cuMemAllocAsync), pool (cuMemAllocFromPoolAsync), plain (cuMemAlloc),
 *                  pitch (cuMemAllocPitch), managed (cuMemAllocManaged), vmm (cuMemCreate)
 *     by=FILE      a x: the library or program whose code called
 *     at=PLACE     a x: the caller, "train.py:12(step)", "step", or "program+0x1a2b" (--callers)
 *     range=NAME   a x: the innermost NVTX range of the thread (--callers)
 *     cap=1        on a stream under capture
 * and these comments:
 *     # device N: BYTES bytes, NAME
 *     # calls NAME=COUNT bytes=BYTES most=BYTES     (in all, at once: cuMemAddressReserve, cuMemMap; host: memory
 *                                                   of the host, by cuMemCreate and from pools) */
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
    uint64_t line; /* number of the event's line, from 1 */
    uint64_t time_us;
    uint64_t id;        /* the block, in events a f u x; an id may be used again after its free */
    uint64_t bytes;     /* bytes of the block, in events a f x; at most INT64_MAX */
    uint64_t stream;    /* the stream, in events a f u x w */
    uint64_t on_stream; /* the stream that `stream` waits for, in event w */
    int operation;      /* 'a' 'f' 'u' 'w' 'x' 'm', or NUL at the end of the trace */
    char label[WEIR_TRACE_LABEL_BYTES]; /* the label, in event m; longer labels are cut */
} weir_trace_event;

/* The source of a trace's text.  Reads the next bytes, at most `bytes`, into `buffer`.  Returns their number, 0 at the
 * end of the text, or a negative number on an error, for which it may write a reason to `message`. */
typedef ptrdiff_t (*weir_trace_source)(void *context, char *buffer, size_t bytes, char *message,
                                       size_t message_bytes);

typedef struct weir_trace_reader weir_trace_reader;

/* Makes a reader over a source, which the caller destroys, and writes it to *reader.  Only weir_trace_next calls the
 * source, with `context`.  Thread-safe, never blocks.
 * E_INVALID: `source` or `reader` is NULL.
 * E_HOST_MEMORY.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_reader_create(weir_trace_source source,
                                                                void *context,
                                                                weir_trace_reader **reader);
/* Destroys a reader.  NULL is OK and does nothing.  Never blocks.  Since 0.1. */
WEIR_API void weir_trace_reader_destroy(weir_trace_reader *reader);

/* Reads and checks the next event, and writes it to *event, only on success.  At the end of the trace it returns OK,
 * and the event's operation is NUL.  One thread at a time may use a reader.  Blocks as the source does.
 * E_PARSE: the line is wrong, or the source failed; weir_trace_message has line and reason.  A line is wrong if it
 * is malformed, has an unknown operation or a negative or overflowing number, or an earlier time than the line before.
 * A free or a use of an id that is not live is wrong, and so is an id allocated twice, or a free whose size differs.  A
 * last line without its newline (a truncated file) and a trace without any event are wrong, too.
 * E_INVALID: an argument is NULL.
 * E_HOST_MEMORY.  After E_PARSE or E_HOST_MEMORY the reader reads nothing more: every later call returns that status,
 * and the message stays.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_next(weir_trace_reader *reader,
                                                       weir_trace_event *event);

/* Copies the value of a key=value field of the last event to `value`, cut to `value_bytes`.  Returns 1 on success.
 * Returns 0 and writes "" if the event has no such field.  If there are several fields with that key, the first
 * counts.  Never blocks.  Since 0.1. */
WEIR_API int weir_trace_field(const weir_trace_reader *reader, const char *key, char *value,
                              size_t value_bytes);

/* Receives a comment that weir_trace_next has read: NUL-terminated, without the '#' and the blanks behind it.  The text
 * is valid during the call. */
typedef void (*weir_trace_comment)(void *context, const char *text);

/* Sets the function that receives comments from now on; NULL switches this off.  The reader leaves out comments above
 * 100 kB.  Since 0.1. */
WEIR_API void weir_trace_comments(weir_trace_reader *reader, weir_trace_comment comment,
                                  void *context);

/* Returns the reason of the last E_PARSE, or "" if there was none: "line 17: free of id 5, which is not live", or
 * "behind line 16: " and the text of the source.  The reader owns the text, which is valid until the reader's next
 * call.  Never blocks.  Since 0.1. */
WEIR_API const char *weir_trace_message(const weir_trace_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
