/* SPDX-License-Identifier: MIT */
/* fuzz_trace.c: reads any text as a trace (lib/api/trace_read.c).
 *
 * The first byte sets the size of the pieces in which the source returns the text, and whether the source fails at its
 * end.  A byte 1 repeats the byte before it, a thousand times for each unit of the next byte, so that short inputs make
 * long lines.  The size of the pieces changes neither events nor message.  The events agree with a list of live ids.
 * An error is permanent.  The events, written as a trace again, read back unchanged. */
#include "fuzz.h"

#include <inttypes.h>
#include <string.h>

#include <weir/weir.h>

enum { MOST_TEXT = 400000, MOST_EVENTS = 2000 };

static char text[MOST_TEXT], again[MOST_EVENTS * 192];
static weir_trace_event events[MOST_EVENTS];

struct source {
    const char *at;
    size_t left, piece;
    int fails;
};

static ptrdiff_t read_from_source(void *context, char *buffer, size_t bytes, char *message,
                                  size_t message_bytes) {
    struct source *s = context;

    HOLDS(bytes > 0 && message_bytes > 0);
    if (s->left == 0 && s->fails) {
        snprintf(message, message_bytes, "broken %s", s->fails > 1 ? "pipe" : "");
        return -1;
    }
    bytes = bytes < s->left ? bytes : s->left;
    bytes = bytes < s->piece ? bytes : s->piece;
    memcpy(buffer, s->at, bytes);
    s->at += bytes;
    s->left -= bytes;
    return (ptrdiff_t)bytes;
}

static size_t expand(const uint8_t *data, size_t size) {
    size_t bytes = 0;

    for (size_t i = 0; i < size && bytes < MOST_TEXT; i++) {
        size_t more;

        if (data[i] != 1 || i + 1 >= size || bytes == 0) {
            text[bytes++] = (char)data[i];
            continue;
        }
        more = (size_t)data[++i] * 1000;
        more = more < MOST_TEXT - bytes ? more : MOST_TEXT - bytes;
        memset(text + bytes, text[bytes - 1], more);
        bytes += more;
    }
    return bytes;
}

/* ---- the reference: which ids are live ------------------------------------------------------- */

static struct live { uint64_t id, bytes; } live[MOST_EVENTS];
static size_t live_count;

static struct live *find_live_id(uint64_t id) {
    for (size_t i = 0; i < live_count; i++)
        if (live[i].id == id)
            return &live[i];
    return NULL;
}

static void follow_event(const weir_trace_event *e) {
    struct live *there = find_live_id(e->id);

    switch (e->operation) {
    case 'a':
        HOLDS(!there);
        live[live_count++] = (struct live){e->id, e->bytes};
        break;
    case 'f':
        HOLDS(there && there->bytes == e->bytes);
        *there = live[--live_count];
        break;
    case 'u':
        HOLDS(there);
        break;
    default:
        HOLDS(e->operation && strchr("wxm", e->operation));
    }
    HOLDS(e->bytes <= INT64_MAX);
    HOLDS((e->operation == 'm') == (e->label[0] != '\0'));
    HOLDS(memchr(e->label, '\0', sizeof e->label));
}

/* ---- reading --------------------------------------------------------------------------------- */

static void see_comment(void *context, const char *comment) {
    *(size_t *)context += strlen(comment);
}

/* Returns 1 if the message is the source's, with or without the line before the failure; else 0. */
static int is_of_source(const char *message) {
    if (strncmp(message, "behind line ", 12) == 0)
        message += 12 + strspn(message + 12, "0123456789") + 2;
    return strncmp(message, "broken ", 7) == 0;
}

/* Reads all events into `out`, and the status and the message at the end.  Returns the number of events. */
static size_t read_whole_trace(struct source source, weir_trace_event *out, weir_status *status,
                               char message[512]) {
    weir_trace_reader *reader;
    weir_trace_event e;
    uint64_t line = 0;
    size_t count = 0, comments = 0, most = source.left;
    char value[8];

    HOLDS(weir_trace_reader_create(read_from_source, &source, &reader) == WEIR_OK);
    weir_trace_comments(reader, see_comment, &comments);
    for (;;) {
        *status = weir_trace_next(reader, &e);
        if (*status != WEIR_OK || e.operation == 0 || count == MOST_EVENTS)
            break;
        HOLDS(e.line > line);
        HOLDS(weir_trace_field(reader, "k", value, sizeof value) || value[0] == '\0');
        line = e.line;
        out[count++] = e;
    }
    HOLDS(comments <= most);
    snprintf(message, 512, "%s", weir_trace_message(reader));
    HOLDS(*status == WEIR_OK || *status == WEIR_E_PARSE);
    HOLDS((*status == WEIR_E_PARSE) == (message[0] != '\0'));
    HOLDS(message[0] == '\0' || strncmp(message, "line ", 5) == 0 ||
          (source.fails && source.left == 0 && is_of_source(message)));
    if (*status == WEIR_E_PARSE) {
        e.operation = '?';
        HOLDS(weir_trace_next(reader, &e) == WEIR_E_PARSE && e.operation == '?');
        HOLDS(strcmp(message, weir_trace_message(reader)) == 0);
    }
    weir_trace_reader_destroy(reader);
    return count;
}

static int same_event(const weir_trace_event *a, const weir_trace_event *b) {
    return a->time_us == b->time_us && a->id == b->id && a->bytes == b->bytes &&
           a->stream == b->stream && a->on_stream == b->on_stream && a->operation == b->operation &&
           strcmp(a->label, b->label) == 0;
}

static void expect_same(const weir_trace_event *other, size_t count) {
    for (size_t i = 0; i < count; i++)
        HOLDS(same_event(&events[i], &other[i]));
}

static size_t write_event(const weir_trace_event *e, char *to, size_t room) {
    int bytes = snprintf(to, room, "%" PRIu64 " %c", e->time_us, e->operation);

    if (strchr("afux", e->operation))
        bytes += snprintf(to + bytes, room - (size_t)bytes, "\t%" PRIu64, e->id);
    if (strchr("afx", e->operation))
        bytes += snprintf(to + bytes, room - (size_t)bytes, " %" PRIu64, e->bytes);
    if (strchr("afuxw", e->operation))
        bytes += snprintf(to + bytes, room - (size_t)bytes, " %" PRIu64, e->stream);
    if (e->operation == 'w')
        bytes += snprintf(to + bytes, room - (size_t)bytes, " %" PRIu64, e->on_stream);
    bytes += snprintf(to + bytes, room - (size_t)bytes, " %s k=v\n", e->label);
    return (size_t)bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const size_t pieces[] = {1, 2, 3, 7, 64, 1000, 65536, MOST_TEXT};
    static weir_trace_event other[MOST_EVENTS];
    unsigned how = size > 0 ? data[0] : 0;
    size_t bytes = size > 0 ? expand(data + 1, size - 1) : 0, count, written = 0;
    struct source whole = {text, bytes, MOST_TEXT, how & 8 ? 1 + (how & 16 ? 1 : 0) : 0};
    struct source in_pieces = whole;
    weir_status status, other_status;
    char message[512], other_message[512];

    count = read_whole_trace(whole, events, &status, message);
    in_pieces.piece = pieces[bytes < 10000 ? how & 7 : 5 + how % 3];
    SAME(read_whole_trace(in_pieces, other, &other_status, other_message), count);
    expect_same(other, count);
    HOLDS(status == other_status && strcmp(message, other_message) == 0);
    live_count = 0;
    for (size_t i = 0; i < count; i++) {
        follow_event(&events[i]);
        written += write_event(&events[i], again + written, sizeof again - written);
    }
    if (count > 0) {
        struct source rewritten = {again, written, MOST_TEXT, 0};

        SAME(read_whole_trace(rewritten, other, &other_status, other_message), count);
        HOLDS(other_status == WEIR_OK);
        expect_same(other, count);
    }
    return 0;
}
