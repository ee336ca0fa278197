/* SPDX-License-Identifier: MIT */
/* lines.c: see lines.h.
 *
 * A source has one buffer of compressed bytes.  The state of zlib or zstd lives for the whole file, since both formats
 * allow several members or frames in a row.  If a file ends inside a member or frame, source_read returns all bytes
 * before the end, and then an error; the caller decides whether it uses these bytes.
 */
#include "cli/common/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/text.h"
#include "cli/common/help.h"

/* ---- bytes ---- */

enum { INPUT_BYTES = 1 << 16 };

enum packing { PLAIN, GZIP, ZSTD };

struct source {
    int fd;
    enum packing packing;
    int at_end; /* the file has no more bytes */
    int inside; /* the last byte was inside a gzip member or a zstd frame */
    int is_cut;
    char last; /* the last byte that was read */
    z_stream gzip;
#ifdef HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    size_t at; /* the bytes input[at .. filled) were read from the file and not used yet */
    size_t filled;
    unsigned char input[INPUT_BYTES];
};

/* Reads more bytes behind the unused ones, until there are `least` bytes or the file ends. */
static int fill(struct source *source, size_t least, char *message, size_t message_bytes) {
    memmove(source->input, source->input + source->at, source->filled - source->at);
    source->filled -= source->at;
    source->at = 0;
    while (source->filled < least && !source->at_end) {
        ssize_t got =
            read(source->fd, source->input + source->filled, INPUT_BYTES - source->filled);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            snprintf(message, message_bytes, "cannot be read: %s", strerror(errno));
            return 0;
        }
        source->at_end = got == 0;
        source->filled += (size_t)got;
    }
    return 1;
}

static int open_file(const char *path, char *message, size_t message_bytes) {
    struct stat status;
    int fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                    : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        snprintf(message, message_bytes, "%s", strerror(errno));
        return -1;
    }
    if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
        snprintf(message, message_bytes, "%s", strerror(EISDIR));
        close(fd);
        return -1;
    }
    return fd;
}

/* Finds out from the first bytes how the file is compressed. */
static int choose_packing(struct source *source, char *message, size_t message_bytes) {
    static const unsigned char zstd_magic[] = {0x28, 0xb5, 0x2f, 0xfd};

    if (!fill(source, sizeof zstd_magic, message, message_bytes))
        return 0;
    if (source->filled == 0) {
        snprintf(message, message_bytes, "is empty");
        return 0;
    }
    if (source->filled >= 2 && source->input[0] == 0x1f && source->input[1] == 0x8b) {
        source->packing = GZIP;
        if (inflateInit2(&source->gzip, 15 + 16) == Z_OK)
            return 1;
    } else if (source->filled >= 4 && memcmp(source->input, zstd_magic, 4) == 0) {
#ifdef HAVE_ZSTD
        source->zstd = ZSTD_createDStream();
        source->packing = ZSTD;
        if (source->zstd)
            return 1;
#else
        snprintf(message, message_bytes, "is packed by zstd, and this weir was built without");
        return 0;
#endif
    } else {
        return 1;
    }
    source->packing = PLAIN; /* source_close then ends neither zlib nor zstd */
    snprintf(message, message_bytes, "out of memory");
    return 0;
}

/* Opens a file; "-" is standard input.  Returns NULL with a message if the file is missing, a directory, empty or cannot
 * be read. */
static struct source *source_open(const char *path, char *message, size_t message_bytes) {
    struct source *source = calloc(1, sizeof *source);

    if (!source) {
        snprintf(message, message_bytes, "out of memory");
        return NULL;
    }
    source->fd = open_file(path, message, message_bytes);
    if (source->fd < 0)
        goto free_source;
    if (!choose_packing(source, message, message_bytes))
        goto close_file;
    return source;

close_file:
    close(source->fd);
free_source:
    free(source);
    return NULL;
}

static void source_close(struct source *source) {
    if (!source)
        return;
    if (source->packing == GZIP)
        inflateEnd(&source->gzip);
#ifdef HAVE_ZSTD
    if (source->packing == ZSTD)
        ZSTD_freeDStream(source->zstd);
#endif
    close(source->fd);
    free(source);
}

static ptrdiff_t refuse_cut(struct source *source, char *message, size_t message_bytes) {
    const char *format = source->packing == GZIP ? "gzip" : "zstd";

    source->is_cut = 1;
    snprintf(message, message_bytes, "the %s data ends too early: the file is truncated", format);
    return -1;
}

static ptrdiff_t refuse_damaged(const char *format, const char *why, char *message,
                                size_t message_bytes) {
    snprintf(message, message_bytes, "the %s data is damaged: %s", format, why);
    return -1;
}

/* Decompresses once.  Returns the number of bytes; 0 is not the end. */
static ptrdiff_t step_gzip(struct source *source, char *buffer, size_t bytes, char *message,
                           size_t message_bytes) {
    z_stream *gzip = &source->gzip;
    unsigned room = bytes < 1u << 30 ? (unsigned)bytes : 1u << 30;
    int result;

    if (!source->inside && inflateReset(gzip) != Z_OK)
        return refuse_damaged("gzip", "cannot start", message, message_bytes);
    source->inside = 1;
    gzip->next_in = source->input + source->at;
    gzip->avail_in = (unsigned)(source->filled - source->at);
    gzip->next_out = (unsigned char *)buffer;
    gzip->avail_out = room;
    result = inflate(gzip, Z_NO_FLUSH);
    source->at = source->filled - gzip->avail_in;
    if (result == Z_STREAM_END)
        source->inside = 0;
    else if (result != Z_OK && result != Z_BUF_ERROR)
        return refuse_damaged("gzip", gzip->msg ? gzip->msg : "unknown reason", message,
                              message_bytes);
    return (ptrdiff_t)(room - gzip->avail_out);
}

static ptrdiff_t step_zstd(struct source *source, char *buffer, size_t bytes, char *message,
                           size_t message_bytes) {
#ifdef HAVE_ZSTD
    ZSTD_inBuffer in = {source->input + source->at, source->filled - source->at, 0};
    ZSTD_outBuffer out = {buffer, bytes, 0};
    size_t result = ZSTD_decompressStream(source->zstd, &out, &in);

    source->at += in.pos;
    if (ZSTD_isError(result))
        return refuse_damaged("zstd", ZSTD_getErrorName(result), message, message_bytes);
    source->inside = result != 0;
    return (ptrdiff_t)out.pos;
#else
    (void)source, (void)buffer, (void)bytes;
    return refuse_damaged("zstd", "not read here", message, message_bytes);
#endif
}

/* Notes the end of the text. */
static ptrdiff_t end(struct source *source) {
    source->is_cut = source->last != '\n';
    return 0;
}

static ptrdiff_t give(struct source *source, const char *buffer, ptrdiff_t bytes) {
    if (bytes > 0)
        source->last = buffer[bytes - 1];
    return bytes;
}

/* Reads bytes.  Returns how many, 0 at the end, or -1 with a message. */
static ptrdiff_t source_read(struct source *source, char *buffer, size_t bytes, char *message,
                             size_t message_bytes) {
    for (;;) {
        ptrdiff_t got;
        int starved = source->at == source->filled;

        if (starved && !fill(source, 1, message, message_bytes))
            return -1;
        if (source->at == source->filled && !source->inside)
            return end(source);
        if (source->packing == PLAIN) {
            size_t n = source->filled - source->at;

            n = n < bytes ? n : bytes;
            memcpy(buffer, source->input + source->at, n);
            source->at += n;
            return give(source, buffer, (ptrdiff_t)n);
        }
        got = (source->packing == GZIP ? step_gzip : step_zstd)(source, buffer, bytes, message,
                                                                message_bytes);
        if (got != 0)
            return give(source, buffer, got);
        /* There is no output, and without more input there will be none. */
        if (source->inside && source->at == source->filled && source->at_end)
            return refuse_cut(source, message, message_bytes);
    }
}

/* ---- lines ---- */

enum { FIRST_BYTES = 1 << 16, MOST_BYTES = 1 << 20 };

int lines_refuse(struct lines *lines, const char *format, ...) {
    int used = snprintf(lines->message, sizeof lines->message, "line %" PRIu64 ": ", lines->number);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(lines->message + used, sizeof lines->message - (size_t)used, format, arguments);
    va_end(arguments);
    return 0;
}

int lines_open(struct lines *lines, const char *path) {
    *lines = (struct lines){.source = NULL};
    lines->source = source_open(path, lines->message, sizeof lines->message);
    return lines->source != NULL;
}

int lines_is_cut(const struct lines *lines) {
    return lines->source->is_cut;
}

void lines_close(struct lines *lines) {
    source_close(lines->source);
    free(lines->buffer);
}

/* Reads more bytes behind those in the buffer.  Returns 1 on success, 0 with a message on failure. */
static int fill_buffer(struct lines *lines) {
    ptrdiff_t got;

    if (lines->at) {
        memmove(lines->buffer, lines->buffer + lines->at, lines->filled - lines->at);
        lines->filled -= lines->at;
        lines->at = 0;
    }
    if (lines->filled + 1 >= lines->room) {
        size_t room = lines->room ? 2 * lines->room : FIRST_BYTES;
        char *buffer = room <= MOST_BYTES ? realloc(lines->buffer, room) : NULL;

        if (!buffer) {
            lines->number++;
            return lines_refuse(lines, "is too long");
        }
        lines->buffer = buffer;
        lines->room = room;
    }
    got = source_read(lines->source, lines->buffer + lines->filled, lines->room - 1 - lines->filled,
                      lines->message, sizeof lines->message);
    if (got < 0)
        return 0;
    lines->at_end = got == 0;
    lines->filled += (size_t)got;
    return 1;
}

/* Returns the end of the next line, or NULL if there is no more line.  The end of the file ends the last line. */
static char *find_line_end(struct lines *lines) {
    for (;;) {
        size_t there = lines->filled - lines->at;
        char *end = there ? memchr(lines->buffer + lines->at, '\n', there) : NULL;

        if (end)
            return end;
        if (lines->at_end)
            return there ? lines->buffer + lines->filled : NULL;
        if (!fill_buffer(lines))
            return NULL;
    }
}

const char *lines_peek(struct lines *lines) {
    static char first[256];
    size_t bytes;

    while (!lines->at_end && lines->filled - lines->at < sizeof first && fill_buffer(lines))
        ;
    if (lines->message[0] && lines->filled == lines->at)
        return NULL;
    lines->message[0] = '\0'; /* the next read has the same error */
    bytes = lines->filled - lines->at;
    bytes = bytes < sizeof first ? bytes : sizeof first - 1;
    memcpy(first, lines->buffer + lines->at, bytes);
    first[bytes] = '\0';
    first[strcspn(first, "\r\n")] = '\0';
    return first;
}

/* Returns the next line without its end, or NULL: there is no more line, or a message says why not. */
static char *next_line(struct lines *lines) {
    char *end = find_line_end(lines), *line;

    if (!end)
        return NULL;
    line = lines->buffer + lines->at;
    lines->at = (size_t)(end - lines->buffer) + (end < lines->buffer + lines->filled);
    lines->number++;
    if (memchr(line, '\0', (size_t)(end - line))) {
        (void)lines_refuse(lines, "a NUL byte: this is no text");
        return NULL;
    }
    *end = '\0';
    if (end > line && end[-1] == '\r')
        end[-1] = '\0';
    return line;
}

int lines_cut(struct lines *lines) {
    char *line;

    do
        line = next_line(lines);
    while (line && !*line);
    lines->count = 0;
    if (!line)
        return 0;
    for (char *comma = line; comma; line = comma + 1) {
        if (lines->count == LINES_FIELDS)
            return lines_refuse(lines, "more than %d fields", LINES_FIELDS);
        lines->fields[lines->count++] = line;
        comma = strchr(line, ',');
        if (!comma)
            break;
        *comma = '\0';
    }
    return 1;
}

ptrdiff_t lines_read(void *context, char *buffer, size_t bytes, char *message,
                     size_t message_bytes) {
    struct lines *lines = context;
    size_t there = lines->filled - lines->at;

    if (!there)
        return source_read(lines->source, buffer, bytes, message, message_bytes);
    bytes = bytes < there ? bytes : there;
    memcpy(buffer, lines->buffer + lines->at, bytes);
    lines->at += bytes;
    return (ptrdiff_t)bytes;
}

int lines_is_column(const struct lines_column *column, const char *word) {
    enum { NAMES = sizeof column->names / sizeof column->names[0] };

    for (size_t i = 0; i < NAMES && column->names[i]; i++)
        if (strcmp(word, column->names[i]) == 0)
            return 1;
    return 0;
}

int lines_find_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                       size_t *at) {
    char expected[128] = "";

    if (!lines_cut(lines))
        return lines->message[0] ? 0 : lines_refuse(lines, "there is no header");
    for (size_t i = 0; i < count; i++)
        help_join(expected, sizeof expected, columns[i].names[0]);
    for (size_t i = 0; i < count; i++) {
        size_t field = 0;

        while (field < lines->count && !lines_is_column(&columns[i], lines->fields[field]))
            field++;
        if (field == lines->count)
            return lines_refuse(lines, "column \"%s\" is missing; expected %s", columns[i].names[0],
                                expected);
        at[i] = field;
    }
    return 1;
}

int lines_has_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                      const size_t *at) {
    for (size_t i = 0; i < count; i++)
        if (at[i] >= lines->count)
            return lines_refuse(lines, "%s is missing; expected a field for each column of line 1",
                                columns[i].names[0]);
    return 1;
}

int lines_number(struct lines *lines, size_t field, const char *what, uint64_t most,
                 uint64_t *out) {
    const char *text = lines->fields[field];
    int base = strncmp(text, "0x", 2) == 0 ? 16 : 10;
    const char *at = base == 16 ? text + 2 : text;
    uint64_t value = 0;
    char quoted[80];

    for (; *at; at++) {
        int digit = *at >= '0' && *at <= '9'                 ? *at - '0'
                    : base == 16 && *at >= 'a' && *at <= 'f' ? *at - 'a' + 10
                    : base == 16 && *at >= 'A' && *at <= 'F' ? *at - 'A' + 10
                                                             : -1;

        if (digit < 0 || __builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value))
            break;
    }
    if (*at || at == text || at[-1] == 'x' || value > most) {
        weir__quote(text, quoted, sizeof quoted);
        return lines_refuse(lines, "%s %s is no whole number from 0 to %" PRIu64, what, quoted,
                            most);
    }
    *out = value;
    return 1;
}
