/* SPDX-License-Identifier: MIT */
/* weir/trace.h: reading allocation traces, version 1.
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
    uint64_t line; /* its line, from 1 */
    uint64_t time_us;
    uint64_t id;        /* a f u x: the block; an id may be used again after its free */
    uint64_t bytes;     /* a f x; at least 0, at most INT64_MAX */
    uint64_t stream;    /* a f u x w */
    uint64_t on_stream; /* w */
    int operation;      /* 'a' 'f' 'u' 'w' 'x' 'm'; 0: the end of the trace */
    char label[WEIR_TRACE_LABEL_BYTES]; /* m: NUL-terminated, longer labels are cut */
} weir_trace_event;

/* Reads the next bytes of the text and returns how many (at most `bytes`), 0 at the end, or negative on an error.
 * On an error it may write a text to `message`. */
typedef ptrdiff_t (*weir_trace_source)(void *context, char *buffer, size_t bytes, char *message,
                                       size_t message_bytes);

typedef struct weir_trace_reader weir_trace_reader;

/* Makes a reader over a source.  Only weir_trace_next calls the source.
 * E_INVALID: NULL.
 * E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_reader_create(weir_trace_source source,
                                                                void *context,
                                                                weir_trace_reader **reader);
WEIR_API void weir_trace_reader_destroy(weir_trace_reader *reader); /* NULL is fine */

/* Reads and checks the next event.  At the end it returns OK and operation 0.
 * E_PARSE: the line is wrong, or the source failed; weir_trace_message has line and reason.  A line is wrong if it
 * is malformed, has an unknown operation or a negative or overflowing number, or a time before that of the event
 * before it.  So is a free or use of an id that is not live, an id allocated twice, or a free whose size differs.  A
 * last line without its newline (a truncated file) and a trace without any event are wrong too.
 * E_INVALID, E_HOST_MEMORY.  After E_PARSE or E_HOST_MEMORY the reader reads nothing more: every later call returns
 * the same status, and the message stays.  One thread at a time. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_next(weir_trace_reader *reader,
                                                       weir_trace_event *event);

/* Copies the value of a key=value field of the event read last, cut to the buffer.  Returns 1, or 0 and "" if the
 * event has no such field.  Of several fields with that key the first counts. */
WEIR_API int weir_trace_field(const weir_trace_reader *reader, const char *key, char *value,
                              size_t value_bytes);

/* Receives each comment that weir_trace_next passes: NUL-terminated, without the '#' and the blanks behind it. */
typedef void (*weir_trace_comment)(void *context, const char *text);

/* Sets the function that receives the comments from now on; NULL: none.  The reader leaves out comments above 100
 * kB. */
WEIR_API void weir_trace_comments(weir_trace_reader *reader, weir_trace_comment comment,
                                  void *context);

/* The reason of the last E_PARSE, else "": "line 17: free of id 5, which is not live", or "behind line 16: " and the
 * text of the source.  Owned by the reader, until its next call. */
WEIR_API const char *weir_trace_message(const weir_trace_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
