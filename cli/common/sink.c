/* SPDX-License-Identifier: MIT */
/* sink.c: see sink.h. */
#include "cli/common/sink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/clock.h"

/* The shortest time between two flushes of a compressed file, since each flush makes the file larger. */
enum { FLUSH_NS = 1000000000 };

struct sink {
    FILE *file; /* the file, unless gzip compresses it */
    gzFile gzip;
#ifdef HAVE_ZSTD
    ZSTD_CCtx *zstd;
#endif
    int error;
    int is_dirty; /* set if some text has not been flushed */
    uint64_t flushed_ns;
    char packed[1 << 17];
};

static int ends_in(const char *name, const char *end) {
    size_t length = strlen(name), most = strlen(end);

    return length > most && strcmp(name + length - most, end) == 0;
}

int sink_can_write(const char *name) {
#ifdef HAVE_ZSTD
    (void)name;
    return 1;
#else
    return !ends_in(name, ".zst");
#endif
}

struct sink *sink_open(int file, const char *name) {
    struct sink *sink = calloc(1, sizeof *sink);

    if (!sink)
        goto fail;
    if (ends_in(name, ".gz"))
        sink->gzip = gzdopen(file, "wb6");
    else
        sink->file = fdopen(file, "w");
#ifdef HAVE_ZSTD
    if (sink->file && ends_in(name, ".zst") && !(sink->zstd = ZSTD_createCCtx())) {
        fclose(sink->file);
        free(sink);
        errno = ENOMEM;
        return NULL;
    }
#endif
    if (sink->file || sink->gzip)
        return sink;

fail:
    free(sink);
    close(file);
    return NULL;
}

static int fail_sink(struct sink *sink) {
    sink->error = errno ? errno : EIO;
    return 0;
}

#ifdef HAVE_ZSTD
static int compress_with_zstd(struct sink *sink, const char *text, size_t bytes,
                              ZSTD_EndDirective how) {
    ZSTD_inBuffer in = {text, bytes, 0};
    size_t left;

    do {
        ZSTD_outBuffer out = {sink->packed, sizeof sink->packed, 0};

        left = ZSTD_compressStream2(sink->zstd, &out, &in, how);
        if (ZSTD_isError(left) || fwrite(out.dst, 1, out.pos, sink->file) != out.pos)
            return fail_sink(sink);
    } while (how == ZSTD_e_continue ? in.pos < in.size : left != 0);
    return 1;
}
#endif

int sink_write(struct sink *sink, const char *text, size_t bytes) {
    errno = sink->error;
    if (sink->error || bytes == 0)
        return !sink->error;
    sink->is_dirty = 1;
    if (sink->gzip)
        return gzwrite(sink->gzip, text, (unsigned)bytes) == (int)bytes || fail_sink(sink);
#ifdef HAVE_ZSTD
    if (sink->zstd)
        return compress_with_zstd(sink, text, bytes, ZSTD_e_continue);
#endif
    return fwrite(text, 1, bytes, sink->file) == bytes || fail_sink(sink);
}

/* Flushes all text to the file.  Does not end the zstd frame or gzip member, so that a reader can notice if the writer
 * never closed the file. */
static int flush_sink_file(struct sink *sink) {
#ifdef HAVE_ZSTD
    if (sink->zstd && !compress_with_zstd(sink, NULL, 0, ZSTD_e_flush))
        return 0;
#endif
    return (sink->gzip ? gzflush(sink->gzip, Z_SYNC_FLUSH) == Z_OK : fflush(sink->file) == 0) ||
           fail_sink(sink);
}

int sink_flush(struct sink *sink) {
    int is_packed = sink->gzip != NULL;
    uint64_t now;

#ifdef HAVE_ZSTD
    is_packed |= sink->zstd != NULL;
#endif
    if (sink->error || !sink->is_dirty)
        return !sink->error;
    now = weir__clock_ns();
    if (is_packed && now - sink->flushed_ns < FLUSH_NS)
        return 1;
    sink->flushed_ns = now;
    sink->is_dirty = 0;
    return flush_sink_file(sink);
}

int sink_close(struct sink *sink) {
    int error = sink->error;

#ifdef HAVE_ZSTD
    if (sink->zstd) {
        if (!error && !compress_with_zstd(sink, NULL, 0, ZSTD_e_end))
            error = sink->error;
        ZSTD_freeCCtx(sink->zstd);
    }
#endif
    errno = 0;
    if (sink->gzip ? gzclose(sink->gzip) != Z_OK : fclose(sink->file) != 0)
        error = error ? error : errno ? errno : EIO;
    free(sink);
    errno = error;
    return !error;
}
