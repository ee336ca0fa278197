/* SPDX-License-Identifier: MIT */
/* weir/trace.h: reading allocation traces, version 1.
 *
 * Text, one event a line; fields are separated by blanks or tabs; a line that starts with '#' is a
 * comment, and the first may be "# weir-trace 1".  Times are microseconds since the start, none before that of
 * the line above:
 *     t_us a id bytes stream       allocate
 *     t_us f id bytes stream       free
 *     t_us u id stream             another stream uses the block
 *     t_us w stream on_stream      stream waits for all work of on_stream so far
 *     t_us x id bytes stream       a request that failed
 *     t_us m label                 an iteration ends; the device is synchronised
 * key=value fields may follow; unknown keys are ignored.  `weir record' writes
 *     dev=N        the device
 *     tid=N        the thread, from 1
 *     kind=WORD    the call: async (cuMemAllocAsync), pool (cuMemAllocFromPoolAsync), plain (cuMemAlloc),
 *                  pitch (cuMemAllocPitch), managed (cuMemAllocManaged), vmm (cuMemCreate)
 *     by=FILE      a x: the library or program whose code called
 *     cap=1        on a stream under capture
 * and, as comments, what is no event:
 *     # device N: BYTES bytes, NAME
 *     # calls NAME=COUNT bytes=BYTES most=BYTES     (in all, at once: cuMemAddressReserve, cuMemMap; host: memory
 *                                                   of the host, by cuMemCreate and from pools)
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
 * E_PARSE: the line is wrong (malformed, unknown operation, negative or overflowing number, a time before
 * that of the event before it, free or use of an id that is not live, an id allocated twice, a free whose
 * size differs, a last line without its newline: a truncated file, a trace without any event) or the source
 * failed; weir_trace_message tells line and reason.
 * E_INVALID, E_HOST_MEMORY.  After E_PARSE or E_HOST_MEMORY nothing more is read: every later call
 * answers the same again, and the message stays.  One thread at a time. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_trace_next(weir_trace_reader *reader,
                                                       weir_trace_event *event);

/* The value of a key=value field of the event read last, cut to the room: 1, or 0 and "": it has none.
 * The first of several counts. */
WEIR_API int weir_trace_field(const weir_trace_reader *reader, const char *key, char *value,
                              size_t value_bytes);

/* Gets each comment that weir_trace_next comes by: NUL-terminated, without the '#' and the blanks behind it. */
typedef void (*weir_trace_comment)(void *context, const char *text);

/* Who gets the comments from now on; NULL: nobody.  Comments above 100 kB are left out. */
WEIR_API void weir_trace_comments(weir_trace_reader *reader, weir_trace_comment comment,
                                  void *context);

/* "line 17: free of id 5, which is not live", "behind line 16: " and what the source said: the reason of the last
 * E_PARSE, else "".  Owned by the reader, until its next call. */
WEIR_API const char *weir_trace_message(const weir_trace_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
