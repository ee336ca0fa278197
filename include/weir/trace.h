/* SPDX-License-Identifier: MIT */
/* weir/trace.h: reading allocation traces, version 1.
 *
 * Text, one event a line; fields are separated by blanks or tabs; a line that starts with '#' is a
 * comment, and the first may be "# weir-trace 1".  Times are microseconds since the start:
 *     t_us a id bytes stream       allocate
 *     t_us f id bytes stream       free
 *     t_us u id stream             another stream uses the block
 *     t_us w stream on_stream      stream waits for all work of on_stream so far
 *     t_us x id bytes stream       a request that failed
 *     t_us m label                 an iteration ends; the device is synchronised
 * key=value fields may follow (dev, tid, kind, cap, ...); unknown keys are ignored.
 */
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
    uint64_t line; /* where it stands, from 1 */
    uint64_t time_us;
    uint64_t id;        /* a f u x: the block; an id may be used again after its free */
    uint64_t bytes;     /* a f x; at least 0, at most INT64_MAX */
    uint64_t stream;    /* a f u x w */
    uint64_t on_stream; /* w */
    int operation;      /* 'a' 'f' 'u' 'w' 'x' 'm'; 0: the end of the trace */
    char label[WEIR_TRACE_LABEL_BYTES]; /* m: NUL-terminated, longer labels are cut */
} weir_trace_event;

/* Brings the next bytes of the text: how many (at most `bytes`), 0 at the end, negative on an error,
 * of which a text may be written to `message`. */
typedef ptrdiff_t (*weir_trace_source)(void *context, char *buffer, size_t bytes, char *message,
                                       size_t message_bytes);

typedef struct weir_trace_reader weir_trace_reader;

/* Makes a reader over a source, which is called from weir_trace_next alone.  E_INVALID: NULL;
 * E_HOST_MEMORY. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_reader_create(weir_trace_source source,
                                                                void *context,
                                                                weir_trace_reader **reader);
WEIR_API void weir_trace_reader_destroy(weir_trace_reader *reader); /* NULL is fine */

/* The next event, checked: OK and operation 0 at the end.
 * E_PARSE: the line is wrong (malformed, unknown operation, negative or overflowing number, free or
 * use of an id that is not live, an id allocated twice, a free whose size differs, a last line
 * without its newline: a truncated file, a trace without any event) or the source failed;
 * weir_trace_message tells line and reason.
 * E_INVALID, E_HOST_MEMORY.  After E_PARSE or E_HOST_MEMORY nothing more is read: every later call
 * answers the same again, and the message stays.  One thread at a time. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_next(weir_trace_reader *reader,
                                                       weir_trace_event *event);

/* "line 17: free of id 5, which is not live": the reason of the last E_PARSE, else "".  Owned by the
 * reader, until its next call. */
WEIR_API const char *weir_trace_message(const weir_trace_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
