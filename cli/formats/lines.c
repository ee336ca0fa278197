/* SPDX-License-Identifier: MIT */
/* lines.c: see input.h.  zlib reads the file, and decompresses gzip.  If the file is compressed by zstd, zstd
 * decompresses the bytes from zlib.  If the file ends inside compressed data, read_decompressed() returns all bytes
 * before the end, and the next call fails. */
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
    gzFile file; /* zlib reads all files, and decompresses gzip */
    int at_end;  /* set if the end of the file has been read */
    int inside;  /* set while `zstd' is inside a frame */
    int is_cut;
    char last; /* the last decompressed byte that was returned */
#ifdef HAVE_ZSTD
    ZSTD_DStream *zstd; /* NULL if the file is not compressed by zstd */
#endif
    /* The next unpack() or copy_plain_bytes() reads input[at] to input[filled - 1]. */
    size_t at;
    size_t filled;
    unsigned char input[INPUT_BYTES];
};

/* Writes a message to lines->message.  Returns 0. */
static __attribute__((format(printf, 2, 3))) int write_lines_failure(struct lines *lines,
                                                                     const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(lines->message, sizeof lines->message, format, arguments);
    va_end(arguments);
    return 0;
}

/* Writes zlib's error message, without the name of the file at its beginning, to lines->message.  Returns 0. */
static int write_gzip_error(struct lines *lines) {
    int code;
    const char *text = gzerror(lines->source->file, &code), *why = strstr(text, ": ");

    return code == Z_ERRNO
               ? write_lines_failure(lines, "cannot be read: %s", strerror(errno))
               : write_lines_failure(lines, "the gzip data is damaged: %s", why ? why + 2 : text);
}

/* Reads from the file until source->input contains at least `least' bytes, or until the file ends.  Returns 1 on
 * success.  On failure, writes the reason to lines->message and returns 0. */
static int fill_lines(struct lines *lines, size_t least) {
    struct source *source = lines->source;

    memmove(source->input, source->input + source->at, source->filled - source->at);
    source->filled -= source->at;
    source->at = 0;
    while (source->filled < least && !source->at_end) {
        int got = gzread(source->file, source->input + source->filled,
                         (unsigned)(INPUT_BYTES - source->filled));

        if (got < 0)
            return write_gzip_error(lines);
        source->at_end = got == 0;
        source->filled += (size_t)got;
    }
    return 1;
}

/* Opens the file into lines->source.  Returns 1 on success.  On failure, writes the reason to lines->message and
 * returns 0. */
static int open_lines(struct lines *lines, const char *path) {
    struct stat status;
    int fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                    : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return write_lines_failure(lines, "%s", strerror(errno));
    errno = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? EISDIR : ENOMEM;
    lines->source->file = errno == EISDIR ? NULL : gzdopen(fd, "rb");
    if (lines->source->file)
        return 1;
    write_lines_failure(lines, "%s", strerror(errno));
    close(fd);
    return 0;
}

/* Prepares zstd if the file begins with the magic number of zstd.  Returns 1 on success.  On failure, writes the reason
 * to lines->message and returns 0. */
static int begin_zstd(struct lines *lines) {
    static const unsigned char magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    struct source *source = lines->source;

    if (source->filled < sizeof magic || memcmp(source->input, magic, sizeof magic) != 0)
        return 1;
#ifdef HAVE_ZSTD
    source->zstd = ZSTD_createDStream();
    return source->zstd || write_lines_failure(lines, "out of memory");
#else
    return write_lines_failure(lines, "is packed by zstd, and this weir was built without");
#endif
}

static ptrdiff_t fail_truncated(struct lines *lines, const char *format) {
    lines->source->is_cut = 1;
    return write_lines_failure(lines, "the %s data ends too early: the file is truncated", format) -
           1;
}

#ifdef HAVE_ZSTD
/* Decompresses bytes of source->input into `buffer', as many as fit.  Returns the number of decompressed bytes, which
 * may be 0.  On failure, writes the reason to lines->message and returns -1. */
static ptrdiff_t unpack(struct lines *lines, char *buffer, size_t bytes) {
    struct source *source = lines->source;
    ZSTD_inBuffer in = {source->input + source->at, source->filled - source->at, 0};
    ZSTD_outBuffer out = {buffer, bytes, 0};
    size_t result = ZSTD_decompressStream(source->zstd, &out, &in);

    source->at += in.pos;
    if (ZSTD_isError(result))
        return write_lines_failure(lines, "the zstd data is damaged: %s",
                                   ZSTD_getErrorName(result)) -
               1;
    source->inside = result != 0;
    return (ptrdiff_t)out.pos;
}
#endif

/* Copies bytes of source->input into `buffer', as many as fit.  Returns the number of bytes. */
static ptrdiff_t copy_plain_bytes(struct source *source, char *buffer, size_t bytes) {
    size_t there = source->filled - source->at, n = there < bytes ? there : bytes;

    memcpy(buffer, source->input + source->at, n);
    source->at += n;
    return (ptrdiff_t)n;
}

/* Reads and decompresses bytes of the file.  Returns the number of bytes, or 0 at the end of the file.  On failure,
 * writes the reason to lines->message and returns -1. */
static ptrdiff_t read_decompressed(struct lines *lines, char *buffer, size_t bytes) {
    struct source *source = lines->source;
    ptrdiff_t got = 0;
    int code;

    while (got == 0) {
        if (source->at == source->filled && !fill_lines(lines, 1))
            return -1;
        if (source->at == source->filled && !source->inside) {
            (void)gzerror(source->file, &code);
            if (code == Z_BUF_ERROR)
                return fail_truncated(lines, "gzip");
            source->is_cut = source->last != '\n';
            return 0;
        }
#ifdef HAVE_ZSTD
        got = source->zstd ? unpack(lines, buffer, bytes) : copy_plain_bytes(source, buffer, bytes);
#else
        got = copy_plain_bytes(source, buffer, bytes);
#endif
        /* The file has ended inside a zstd frame. */
        if (got == 0 && source->inside && source->at == source->filled && source->at_end)
            return fail_truncated(lines, "zstd");
    }
    if (got > 0)
        source->last = buffer[got - 1];
    return got;
}

/* ---- lines ---- */

enum { FIRST_BYTES = 1 << 16, MAX_BYTES = 1 << 20 };

int lines_fail(struct lines *lines, const char *format, ...) {
    int used = snprintf(lines->message, sizeof lines->message, "line %" PRIu64 ": ", lines->number);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(lines->message + used, sizeof lines->message - (size_t)used, format, arguments);
    va_end(arguments);
    return 0;
}

int lines_open(struct lines *lines, const char *path) {
    *lines = (struct lines){.source = calloc(1, sizeof(struct source))};
    if (!lines->source)
        return write_lines_failure(lines, "out of memory");
    if (open_lines(lines, path) && fill_lines(lines, 4)) {
        if (lines->source->filled == 0 && gzdirect(lines->source->file))
            write_lines_failure(lines, "is empty");
        else if (begin_zstd(lines))
            return 1;
    }
    lines_close(lines);
    return 0;
}

int lines_is_truncated(const struct lines *lines) {
    return lines->source->is_cut;
}

void lines_close(struct lines *lines) {
#ifdef HAVE_ZSTD
    ZSTD_freeDStream(lines->source->zstd);
#endif
    if (lines->source->file)
        gzclose(lines->source->file);
    free(lines->source);
    free(lines->buffer);
}

/* Reads more bytes of the file and appends them to lines->buffer.  Returns 1 on success.  On failure, writes the
 * reason to lines->message and returns 0. */
static int fill_buffer(struct lines *lines) {
    ptrdiff_t got;

    if (lines->at) {
        memmove(lines->buffer, lines->buffer + lines->at, lines->filled - lines->at);
        lines->filled -= lines->at;
        lines->at = 0;
    }
    if (lines->filled + 1 >= lines->room) {
        size_t room = lines->room ? 2 * lines->room : FIRST_BYTES;
        char *buffer = room <= MAX_BYTES ? realloc(lines->buffer, room) : NULL;

        if (!buffer) {
            lines->number++;
            return lines_fail(lines, "is too long");
        }
        lines->buffer = buffer;
        lines->room = room;
    }
    got = read_decompressed(lines, lines->buffer + lines->filled, lines->room - 1 - lines->filled);
    if (got < 0)
        return 0;
    lines->at_end = got == 0;
    lines->filled += (size_t)got;
    return 1;
}

/* Returns the end of the next line in lines->buffer: a newline, or the end of the file.  Returns NULL if there is no
 * further line or the file cannot be read. */
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
    /* Clears the message of a failed read.  The next lines_next() fails, too, and sets the message again. */
    lines->message[0] = '\0';
    bytes = lines->filled - lines->at;
    bytes = bytes < sizeof first ? bytes : sizeof first - 1;
    memcpy(first, lines->buffer + lines->at, bytes);
    first[bytes] = '\0';
    first[strcspn(first, "\r\n")] = '\0';
    return first;
}

/* Returns the next line without its newline, or NULL if there is no further line.  On failure, writes the reason to
 * lines->message and returns NULL. */
static char *scan_line(struct lines *lines) {
    char *end = find_line_end(lines), *line;

    if (!end)
        return NULL;
    line = lines->buffer + lines->at;
    lines->at = (size_t)(end - lines->buffer) + (end < lines->buffer + lines->filled);
    lines->number++;
    if (memchr(line, '\0', (size_t)(end - line))) {
        (void)lines_fail(lines, "a NUL byte: this is no text");
        return NULL;
    }
    *end = '\0';
    if (end > line && end[-1] == '\r')
        end[-1] = '\0';
    return line;
}

int lines_next(struct lines *lines) {
    char *line;

    do
        line = scan_line(lines);
    while (line && !*line);
    lines->count = 0;
    if (!line)
        return 0;
    for (char *comma = line; comma; line = comma + 1) {
        if (lines->count == LINES_FIELDS)
            return lines_fail(lines, "more than %d fields", LINES_FIELDS);
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

    if (!there) {
        ptrdiff_t got = read_decompressed(lines, buffer, bytes);

        snprintf(message, message_bytes, "%s", lines->message);
        return got;
    }
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

    if (!lines_next(lines))
        return lines->message[0] ? 0 : lines_fail(lines, "there is no header");
    for (size_t i = 0; i < count && used < sizeof expected; i++)
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", i ? ", " : "",
                                 columns[i].names[0]);
    for (size_t i = 0; i < count; i++) {
        size_t field = 0;

        while (field < lines->count && !lines_is_column(&columns[i], lines->fields[field]))
            field++;
        if (field == lines->count)
            return lines_fail(lines, "column \"%s\" is missing; expected %s", columns[i].names[0],
                              expected);
        at[i] = field;
    }
    return 1;
}

int lines_has_columns(struct lines *lines, const struct lines_column *columns, size_t count,
                      const size_t *at) {
    for (size_t i = 0; i < count; i++)
        if (at[i] >= lines->count)
            return lines_fail(lines, "%s is missing; expected a field for each column of line 1",
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
    /* strtoull() would also accept signs and blanks, so the first character must be a digit. */
    if (!isdigit((unsigned char)*text) || *end || errno || value > most) {
        weir__quote(text, quoted, sizeof quoted);
        return lines_fail(lines, "%s %s is no whole number from 0 to %" PRIu64, what, quoted, most);
    }
    *out = value;
    return 1;
}
