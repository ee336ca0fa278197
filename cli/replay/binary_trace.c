/* SPDX-License-Identifier: MIT */
/* binary_trace.c: see binary_trace.h.  The file contains the header, the operations, the stream ids, the
 * labels and the gaps, in this order. */
#include "cli/replay/binary_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cli/common/files.h"
#include "cli/common/memory.h"
#include "cli/formats/input.h"

static const char magic[8] = "weirtap1";

_Static_assert(sizeof(struct trace_operation) == 16, "operations are packed");
_Static_assert(sizeof(struct trace_header) % 8 == 0, "operations are aligned");

/* The conversion of a trace to a binary trace. */
struct converter {
    struct trace_header *header;
    FILE *file;
    struct weir_map blocks;  /* a map from block id + 1 to the index of the block */
    struct weir_map streams; /* a map from stream id + 1 to the index of the stream */
    uint64_t *stream_ids;    /* the ids in the trace, by index */
    size_t stream_room;
    uint32_t *idle; /* a stack of the indices that are free, because their blocks were freed */
    size_t idle_count;
    size_t idle_room;
    char (*labels)[WEIR_TRACE_LABEL_BYTES];
    size_t label_room;
    uint16_t *gaps_us; /* the gap after each operation, in microseconds */
    size_t gap_room;
    uint64_t last_us; /* the time of the previous event, in microseconds */
    uint64_t live_bytes;
    char *message;
    size_t message_bytes;
};

static int fail_conversion(struct converter *converter, const char *why) {
    snprintf(converter->message, converter->message_bytes, "%s", why);
    return 0;
}

static int fail_write(struct converter *converter) {
    snprintf(converter->message, converter->message_bytes, "writing the temporary copy: %s",
             strerror(errno));
    return 0;
}

/* ------------------------------------------------------------- reading in ---- */

static int stream_index(struct converter *converter, uint64_t id, uint16_t *index) {
    uintptr_t found;

    if (!weir__map_get(&converter->streams, id + 1, &found)) {
        found = converter->streams.count;
        if (found > UINT16_MAX)
            return fail_conversion(converter, "more than 65536 streams");
        if (!memory_make_room(&converter->stream_ids, &converter->stream_room, found,
                              sizeof *converter->stream_ids) ||
            !weir__map_put(&converter->streams, id + 1, found))
            return fail_conversion(converter, "out of memory");
        converter->stream_ids[found] = id;
    }
    *index = (uint16_t)found;
    return 1;
}

static int new_block(struct converter *converter, const weir_trace_event *event,
                     struct trace_operation *op) {
    struct trace_header *header = converter->header;

    if (converter->idle_count) {
        op->block = converter->idle[--converter->idle_count];
    } else if (header->blocks > UINT32_MAX) {
        return fail_conversion(converter, "more than 4294967296 blocks live at once");
    } else {
        op->block = (uint32_t)header->blocks++;
    }
    if (!weir__map_put(&converter->blocks, event->id + 1, op->block))
        return fail_conversion(converter, "out of memory");
    if (__builtin_add_overflow(converter->live_bytes, event->bytes, &converter->live_bytes))
        return fail_conversion(converter, "the sum of live bytes is too large");
    if (converter->live_bytes > header->live_peak_bytes)
        header->live_peak_bytes = converter->live_bytes;
    header->allocs++;
    return 1;
}

/* Sets op->block for a free or a use of a live block. */
static int set_live_block(struct converter *converter, const weir_trace_event *event,
                          struct trace_operation *op) {
    uintptr_t block = 0;

    if (event->operation == 'u') {
        weir__map_get(&converter->blocks, event->id + 1, &block);
        op->block = (uint32_t)block;
        converter->header->uses++;
        return 1;
    }
    if (!memory_make_room(&converter->idle, &converter->idle_room, converter->idle_count,
                          sizeof *converter->idle))
        return fail_conversion(converter, "out of memory");
    weir__map_remove(&converter->blocks, event->id + 1, &block);
    op->block = (uint32_t)block;
    converter->idle[converter->idle_count++] = op->block;
    converter->live_bytes -= event->bytes;
    converter->header->frees++;
    return 1;
}

static int write_mark(struct converter *converter, const weir_trace_event *event,
                      struct trace_operation *op) {
    struct trace_header *header = converter->header;

    if (header->marks > UINT32_MAX)
        return fail_conversion(converter, "more than 4294967296 iterations");
    if (!memory_make_room(&converter->labels, &converter->label_room, header->marks,
                          sizeof *converter->labels))
        return fail_conversion(converter, "out of memory");
    /* The label may be shorter than the array; the rest of the array must be 0. */
    memset(converter->labels[header->marks], 0, sizeof *converter->labels);
    memcpy(converter->labels[header->marks], event->label, strlen(event->label));
    op->block = (uint32_t)header->marks++;
    return 1;
}

/* Adds the time since the previous event to the gap after the last operation of the binary trace. */
static void add_gap(struct converter *converter, uint64_t now_us) {
    uint64_t passed = now_us - converter->last_us;
    uint16_t *gap = converter->header->ops ? &converter->gaps_us[converter->header->ops - 1] : NULL;

    converter->last_us = now_us;
    if (gap)
        *gap = passed < (uint64_t)(MAX_GAP_US - *gap) ? (uint16_t)(*gap + passed) : MAX_GAP_US;
}

/* Writes an event to the file as an operation, unless the event is a failed request (`x'). */
static int write_operation(struct converter *converter, const weir_trace_event *event) {
    struct trace_operation op = {.bytes = event->bytes, .code = (uint8_t)event->operation};
    uint16_t on_stream = 0;
    int good = 1;

    add_gap(converter, event->time_us);
    switch (event->operation) {
    case 'x':
        converter->header->recorded_failures++;
        return 1;
    case 'm':
        good = write_mark(converter, event, &op);
        break;
    case 'w':
        good = stream_index(converter, event->stream, &op.stream) &&
               stream_index(converter, event->on_stream, &on_stream);
        op.block = on_stream;
        converter->header->waits++;
        break;
    case 'a':
        good =
            stream_index(converter, event->stream, &op.stream) && new_block(converter, event, &op);
        break;
    default:
        good = stream_index(converter, event->stream, &op.stream) &&
               set_live_block(converter, event, &op);
    }
    if (!good)
        return 0;
    if (!memory_make_room(&converter->gaps_us, &converter->gap_room, converter->header->ops,
                          sizeof *converter->gaps_us))
        return fail_conversion(converter, "out of memory");
    converter->gaps_us[converter->header->ops++] = 0;
    return fwrite(&op, sizeof op, 1, converter->file) == 1 || fail_write(converter);
}

int trace_read_left_out(const char *comment, uint64_t *count) {
    uint64_t found;
    char why[16];

    if (sscanf(comment, "%" SCNu64 " events left out: %15s", &found, why) != 2 ||
        (strcmp(why, "--limit") != 0 && strcmp(why, "lost") != 0))
        return 0;
    *count += found;
    return 1;
}

void trace_report_left_out(const char *name, uint64_t count) {
    if (count)
        fprintf(stderr,
                "weir: %s: the recording is incomplete: %" PRIu64
                " more event%s left out by `weir record'\n",
                name, count, count == 1 ? " was" : "s were");
}

static void read_trace_comment(void *context, const char *text) {
    struct trace_header *header = context;

    (void)trace_read_left_out(text, &header->left_out);
}

static int read_all_events(struct converter *converter, struct input *input, uint64_t most_marks) {
    weir_trace_event event;

    while (most_marks == 0 || converter->header->marks < most_marks) {
        if (!input_next(input, converter->header->name, &event, converter->message,
                        converter->message_bytes))
            return 0;
        if (event.operation == 0)
            return 1;
        if (!input_is_on_device(&input->device, input->reader, &event, converter->message,
                                converter->message_bytes) ||
            !write_operation(converter, &event))
            return 0;
    }
    return 1;
}

void name_of_trace(const char *path, char name[TRACE_NAME_BYTES]) {
    static const char *const endings[] = {".gz", ".zst", ".txt", ".trace", ".csv"};
    const char *slash = strrchr(path, '/');
    size_t length;

    snprintf(name, TRACE_NAME_BYTES, "%s",
             strcmp(path, "-") == 0 ? "stdin"
             : slash                ? slash + 1
                                    : path);
    length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t cut = strlen(endings[i]);

        if (length > cut && strcmp(name + length - cut, endings[i]) == 0)
            name[length -= cut] = '\0';
    }
}

static int write_binary_trace(struct converter *converter, struct input *input,
                              uint64_t most_marks) {
    struct trace_header *header = converter->header;

    /* The header is still incomplete; it is written again at the end. */
    if (fwrite(header, sizeof *header, 1, converter->file) != 1)
        return fail_write(converter);
    if (!read_all_events(converter, input, most_marks))
        return 0;
    header->streams = converter->streams.count;
    if ((header->streams && fwrite(converter->stream_ids, sizeof *converter->stream_ids,
                                   header->streams, converter->file) != header->streams) ||
        (header->marks && fwrite(converter->labels, sizeof *converter->labels, header->marks,
                                 converter->file) != header->marks) ||
        (header->ops && fwrite(converter->gaps_us, sizeof *converter->gaps_us, header->ops,
                               converter->file) != header->ops) ||
        fseek(converter->file, 0, SEEK_SET) != 0 ||
        fwrite(header, sizeof *header, 1, converter->file) != 1 || fflush(converter->file) != 0)
        return fail_write(converter);
    return 1;
}

/* Reads the trace, writes the binary trace to the file, and frees the memory of `converter'.  The file stays open. */
static int read_and_write(struct converter *converter, struct input *input, uint64_t most_marks) {
    int good;

    weir_trace_comments(input->reader, read_trace_comment, converter->header);
    good = write_binary_trace(converter, input, most_marks);
    weir__map_clear(&converter->blocks);
    weir__map_clear(&converter->streams);
    free(converter->stream_ids);
    free(converter->idle);
    free(converter->labels);
    free(converter->gaps_us);
    return good;
}

int binary_trace_make(const char *path, uint64_t most_marks, struct trace_header *header,
                      char *message, size_t message_bytes) {
    struct converter converter = {
        .header = header, .message = message, .message_bytes = message_bytes};
    struct input input;
    int made = -1;

    if (!input_open(&input, path, message, message_bytes))
        return -1;
    memset(header, 0, sizeof *header);
    memcpy(header->magic, magic, sizeof magic);
    name_of_trace(path, header->name);
    header->is_converted = input.copy != NULL;
    converter.file = temporary_file();
    if (!converter.file) {
        snprintf(message, message_bytes, "cannot make a temporary file: %s", strerror(errno));
        goto close_input;
    }
    if (read_and_write(&converter, &input, most_marks)) {
        made = fcntl(fileno(converter.file), F_DUPFD_CLOEXEC, 10);
        if (made < 0)
            fail_write(&converter);
    }
    fclose(converter.file);
close_input:
    input_close(&input);
    return made;
}

/* ------------------------------------------------------------- mapping it ---- */

int binary_trace_map(int fd, struct binary_trace *trace) {
    struct stat status;
    const char *base;
    size_t bytes;

    if (fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(struct trace_header))
        return 0;
    bytes = (size_t)status.st_size;
    base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return 0;
    trace->header = (const void *)base;
    trace->mapped = bytes;
    trace->ops = (const void *)(base + sizeof(struct trace_header));
    if (memcmp(trace->header->magic, magic, sizeof magic) != 0 ||
        bytes !=
            sizeof(struct trace_header) +
                trace->header->ops * (sizeof(struct trace_operation) + sizeof *trace->gaps_us) +
                trace->header->streams * sizeof *trace->stream_ids +
                trace->header->marks * sizeof *trace->labels) {
        binary_trace_unmap(trace);
        return 0;
    }
    trace->stream_ids = (const void *)(trace->ops + trace->header->ops);
    trace->labels = (const void *)(trace->stream_ids + trace->header->streams);
    trace->gaps_us = (const void *)(trace->labels + trace->header->marks);
    return 1;
}

void binary_trace_unmap(struct binary_trace *trace) {
    munmap((void *)(uintptr_t)trace->header, trace->mapped);
}
