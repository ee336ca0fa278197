/* SPDX-License-Identifier: MIT */
/* source.c: see source.h.
 *
 * The source has one buffer of compressed bytes.  The state of zlib or zstd lives for the whole file, since both formats
 * allow several members or frames in a row.  If a file ends inside a member or frame, source_read returns all bytes
 * before the end, and then an error; the caller decides whether it uses these bytes.
 */
#include "cli/common/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

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

struct source *source_open(const char *path, char *message, size_t message_bytes) {
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

void source_close(struct source *source) {
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

ptrdiff_t source_read(void *context, char *buffer, size_t bytes, char *message,
                      size_t message_bytes) {
    struct source *source = context;

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

int source_is_cut(const struct source *source) {
    return source->is_cut;
}
