/* SPDX-License-Identifier: MIT */
/* lines.c: see input.h.
 *
 * A source reads through zlib, which unpacks gzip and leaves other data as they are; zstd, which allows several frames
 * in a row, unpacks the result.  If a file ends inside a gzip member or a zstd frame, source_read() returns all bytes
 * before the end, and then an error.
 */
#include "cli/formats/input.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/text.h"

/* ---- bytes ---- */

enum { INPUT_BYTES = 1 << 16 };

struct source {
    gzFile file; /* zlib reads files that are not gzip without a change */
    int at_end;  /* the file has no more bytes */
    int inside;  /* set if the last byte was inside a zstd frame */
    int is_cut;
    char last; /* the last byte that was read */
#ifdef HAVE_ZSTD
    ZSTD_DStream *zstd; /* NULL: the file is not packed by zstd */
#endif
    size_t at; /* the bytes input[at .. filled) were read from the file and not used yet */
    size_t filled;
    unsigned char input[INPUT_BYTES];
};

/* Writes why zlib could not read, without the name of the file, with which the message of zlib begins. */
static void tell_gzip_error(gzFile file, char *message, size_t message_bytes) {
    int code;
    const char *text = gzerror(file, &code), *why = strstr(text, ": ");

    if (code == Z_ERRNO)
        snprintf(message, message_bytes, "cannot be read: %s", strerror(errno));
    else
        snprintf(message, message_bytes, "the gzip data is damaged: %s", why ? why + 2 : text);
}

/* Reads more bytes behind the unused ones, until there are `least` bytes or the file ends. */
static int fill(struct source *source, size_t least, char *message, size_t message_bytes) {
    memmove(source->input, source->input + source->at, source->filled - source->at);
    source->filled -= source->at;
    source->at = 0;
    while (source->filled < least && !source->at_end) {
        int got = gzread(source->file, source->input + source->filled,
                         (unsigned)(INPUT_BYTES - source->filled));

        if (got < 0) {
            tell_gzip_error(source->file, message, message_bytes);
            return 0;
        }
        source->at_end = got == 0;
        source->filled += (size_t)got;
    }
    return 1;
}

static gzFile open_file(const char *path, char *message, size_t message_bytes) {
    struct stat status;
    int fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                    : open(path, O_RDONLY | O_CLOEXEC);
    gzFile file;

    if (fd < 0) {
        snprintf(message, message_bytes, "%s", strerror(errno));
        return NULL;
    }
    errno = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? EISDIR : ENOMEM;
    file = errno == EISDIR ? NULL : gzdopen(fd, "rb");
    if (file)
        return file;
    snprintf(message, message_bytes, "%s", strerror(errno));
    close(fd);
    return NULL;
}

/* Begins to unpack if the first bytes are those of zstd.  Returns 1, or 0 with a message. */
static int begin_zstd(struct source *source, char *message, size_t message_bytes) {
    static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd};

    if (source->filled < sizeof magic || memcmp(source->input, magic, sizeof magic) != 0)
        return 1;
#ifdef HAVE_ZSTD
    source->zstd = ZSTD_createDStream();
    if (source->zstd)
        return 1;
    snprintf(message, message_bytes, "out of memory");
#else
    snprintf(message, message_bytes, "is packed by zstd, and this weir was built without");
#endif
    return 0;
}

/* Does nothing if the source is NULL. */
static void source_close(struct source *source) {
    if (!source)
        return;
#ifdef HAVE_ZSTD
    ZSTD_freeDStream(source->zstd);
#endif
    if (source->file)
        gzclose(source->file);
    free(source);
}

/* Opens a file; "-" is standard input.  Returns NULL with a message if the file is missing, a directory, empty or cannot
 * be read. */
static struct source *source_open(const char *path, char *message, size_t message_bytes) {
    struct source *source = calloc(1, sizeof *source);

    if (!source) {
        snprintf(message, message_bytes, "out of memory");
        return NULL;
    }
    source->file = open_file(path, message, message_bytes);
    if (source->file && fill(source, 4, message, message_bytes)) {
        if (source->filled == 0 && gzdirect(source->file))
            snprintf(message, message_bytes, "is empty");
        else if (begin_zstd(source, message, message_bytes))
            return source;
    }
    source_close(source);
    return NULL;
}

static ptrdiff_t refuse_cut(struct source *source, const char *format, char *message,
                            size_t message_bytes) {
    source->is_cut = 1;
    snprintf(message, message_bytes, "the %s data ends too early: the file is truncated", format);
    return -1;
}

#ifdef HAVE_ZSTD
/* Unpacks until there are bytes, or the input is used up.  Returns the number of bytes, or -1 with a message. */
static ptrdiff_t unpack(struct source *source, char *buffer, size_t bytes, char *message,
                        size_t message_bytes) {
    ZSTD_inBuffer in = {source->input + source->at, source->filled - source->at, 0};
    ZSTD_outBuffer out = {buffer, bytes, 0};
    size_t result = ZSTD_decompressStream(source->zstd, &out, &in);

    source->at += in.pos;
    if (ZSTD_isError(result)) {
        snprintf(message, message_bytes, "the zstd data is damaged: %s", ZSTD_getErrorName(result));
        return -1;
    }
    source->inside = result != 0;
    return (ptrdiff_t)out.pos;
}
#endif

/* Takes bytes of the file that are not packed by zstd. */
static ptrdiff_t take_bytes(struct source *source, char *buffer, size_t bytes) {
    size_t there = source->filled - source->at, n = there < bytes ? there : bytes;

    memcpy(buffer, source->input + source->at, n);
    source->at += n;
    return (ptrdiff_t)n;
}

/* Reads bytes.  Returns the number of bytes, 0 at the end, or -1 with a message. */
static ptrdiff_t source_read(struct source *source, char *buffer, size_t bytes, char *message,
                             size_t message_bytes) {
    ptrdiff_t got = 0;
    int code;

    while (got == 0) {
        if (source->at == source->filled && !fill(source, 1, message, message_bytes))
            return -1;
        if (source->at == source->filled && !source->inside) {
            (void)gzerror(source->file, &code);
            if (code == Z_BUF_ERROR)
                return refuse_cut(source, "gzip", message, message_bytes);
            source->is_cut = source->last != '\n';
            return 0;
        }
#ifdef HAVE_ZSTD
        got = source->zstd ? unpack(source, buffer, bytes, message, message_bytes)
                           : take_bytes(source, buffer, bytes);
#else
        got = take_bytes(source, buffer, bytes);
#endif
        /* Without more input there is no more output. */
        if (got == 0 && source->inside && source->at == source->filled && source->at_end)
            return refuse_cut(source, "zstd", message, message_bytes);
    }
    if (got > 0)
        source->last = buffer[got - 1];
    return got;
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
    lines->message[0] = '\0'; /* the next read fails again */
    bytes = lines->filled - lines->at;
    bytes = bytes < sizeof first ? bytes : sizeof first - 1;
    memcpy(first, lines->buffer + lines->at, bytes);
    first[bytes] = '\0';
    first[strcspn(first, "\r\n")] = '\0';
    return first;
}

/* Returns the next line without its end.  Returns NULL if there is no more line, or with a message on failure. */
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
    char expected[128];
    size_t used = 0;

    if (!lines_cut(lines))
        return lines->message[0] ? 0 : lines_refuse(lines, "there is no header");
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", i ? ", " : "",
                                 columns[i].names[0]);
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
    char quoted[80], *end = NULL;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    if (!isdigit((unsigned char)*text) || *end || errno || value > most) { /* no sign, no blank */
        weir__quote(text, quoted, sizeof quoted);
        return lines_refuse(lines, "%s %s is no whole number from 0 to %" PRIu64, what, quoted,
                            most);
    }
    *out = value;
    return 1;
}
