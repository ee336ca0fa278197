/* SPDX-License-Identifier: MIT */
/* tape.c: see tape.h.  A tape's file contains the header, the operations, the stream ids, the labels and the gaps,
 * in this order. */
#include "cli/replay/tape.h"

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

_Static_assert(sizeof(struct tape_op) == 16, "operations are packed");
_Static_assert(sizeof(struct tape_header) % 8 == 0, "operations are aligned");

/* The state while a tape is made from a trace. */
struct maker {
    struct tape_header *header;
    FILE *file;
    struct weir_map blocks;  /* a map from block id + 1 to the index of the block */
    struct weir_map streams; /* a map from stream id + 1 to the index of the stream */
    uint64_t *stream_ids;    /* the stream id for each index */
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

static int fail_tape(struct maker *maker, const char *why) {
    snprintf(maker->message, maker->message_bytes, "%s", why);
    return 0;
}

static int fail_write(struct maker *maker) {
    snprintf(maker->message, maker->message_bytes, "writing the temporary copy: %s",
             strerror(errno));
    return 0;
}

/* ------------------------------------------------------------- reading in ---- */

static int stream_index(struct maker *maker, uint64_t id, uint16_t *index) {
    uintptr_t found;

    if (!weir__map_get(&maker->streams, id + 1, &found)) {
        found = maker->streams.count;
        if (found > UINT16_MAX)
            return fail_tape(maker, "more than 65536 streams");
        if (!memory_make_room(&maker->stream_ids, &maker->stream_room, found,
                              sizeof *maker->stream_ids) ||
            !weir__map_put(&maker->streams, id + 1, found))
            return fail_tape(maker, "out of memory");
        maker->stream_ids[found] = id;
    }
    *index = (uint16_t)found;
    return 1;
}

static int new_block(struct maker *maker, const weir_trace_event *event, struct tape_op *op) {
    struct tape_header *header = maker->header;

    if (maker->idle_count) {
        op->block = maker->idle[--maker->idle_count];
    } else if (header->blocks > UINT32_MAX) {
        return fail_tape(maker, "more than 4294967296 blocks live at once");
    } else {
        op->block = (uint32_t)header->blocks++;
    }
    if (!weir__map_put(&maker->blocks, event->id + 1, op->block))
        return fail_tape(maker, "out of memory");
    if (__builtin_add_overflow(maker->live_bytes, event->bytes, &maker->live_bytes))
        return fail_tape(maker, "the sum of live bytes is too large");
    if (maker->live_bytes > header->live_peak_bytes)
        header->live_peak_bytes = maker->live_bytes;
    header->allocs++;
    return 1;
}

/* Sets the index of the block in the operation of a free or a use.  After a free, the index may be used again.  The
 * block exists, because the reader of the trace has checked that it is live. */
static int set_live_block(struct maker *maker, const weir_trace_event *event, struct tape_op *op) {
    uintptr_t block = 0;

    if (event->operation == 'u') {
        weir__map_get(&maker->blocks, event->id + 1, &block);
        op->block = (uint32_t)block;
        maker->header->uses++;
        return 1;
    }
    if (!memory_make_room(&maker->idle, &maker->idle_room, maker->idle_count, sizeof *maker->idle))
        return fail_tape(maker, "out of memory");
    weir__map_remove(&maker->blocks, event->id + 1, &block);
    op->block = (uint32_t)block;
    maker->idle[maker->idle_count++] = op->block;
    maker->live_bytes -= event->bytes;
    maker->header->frees++;
    return 1;
}

static int write_mark(struct maker *maker, const weir_trace_event *event, struct tape_op *op) {
    struct tape_header *header = maker->header;

    if (header->marks > UINT32_MAX)
        return fail_tape(maker, "more than 4294967296 iterations");
    if (!memory_make_room(&maker->labels, &maker->label_room, header->marks, sizeof *maker->labels))
        return fail_tape(maker, "out of memory");
    /* Clear all bytes of the label first, because it may be shorter than the array. */
    memset(maker->labels[header->marks], 0, sizeof *maker->labels);
    memcpy(maker->labels[header->marks], event->label, strlen(event->label));
    op->block = (uint32_t)header->marks++;
    return 1;
}

/* Adds the time since the previous event to the gap after the last operation. */
static void add_gap(struct maker *maker, uint64_t now_us) {
    uint64_t passed = now_us - maker->last_us;
    uint16_t *gap = maker->header->ops ? &maker->gaps_us[maker->header->ops - 1] : NULL;

    maker->last_us = now_us;
    if (gap)
        *gap = passed < (uint64_t)(TAPE_MOST_GAP_US - *gap) ? (uint16_t)(*gap + passed)
                                                            : TAPE_MOST_GAP_US;
}

/* Writes the operation for an event to the file.  An event `x' (a failed request) has no operation. */
static int write_operation(struct maker *maker, const weir_trace_event *event) {
    struct tape_op op = {.bytes = event->bytes, .code = (uint8_t)event->operation};
    uint16_t on_stream = 0;
    int good = 1;

    add_gap(maker, event->time_us);
    switch (event->operation) {
    case 'x':
        maker->header->recorded_failures++;
        return 1;
    case 'm':
        good = write_mark(maker, event, &op);
        break;
    case 'w':
        good = stream_index(maker, event->stream, &op.stream) &&
               stream_index(maker, event->on_stream, &on_stream);
        op.block = on_stream;
        maker->header->waits++;
        break;
    case 'a':
        good = stream_index(maker, event->stream, &op.stream) && new_block(maker, event, &op);
        break;
    default:
        good = stream_index(maker, event->stream, &op.stream) && set_live_block(maker, event, &op);
    }
    if (!good)
        return 0;
    if (!memory_make_room(&maker->gaps_us, &maker->gap_room, maker->header->ops,
                          sizeof *maker->gaps_us))
        return fail_tape(maker, "out of memory");
    maker->gaps_us[maker->header->ops++] = 0;
    return fwrite(&op, sizeof op, 1, maker->file) == 1 || fail_write(maker);
}

int tape_read_left_out(const char *comment, uint64_t *count) {
    uint64_t found;
    char why[16];

    if (sscanf(comment, "%" SCNu64 " events left out: %15s", &found, why) != 2 ||
        (strcmp(why, "--limit") != 0 && strcmp(why, "lost") != 0))
        return 0;
    *count += found;
    return 1;
}

void tape_report_left_out(const char *name, uint64_t count) {
    if (count)
        fprintf(stderr,
                "weir: %s: it was cut as it was recorded: %" PRIu64
                " more event%s left out by `weir record'\n",
                name, count, count == 1 ? " was" : "s were");
}

static void read_tape_comment(void *context, const char *text) {
    struct tape_header *header = context;

    (void)tape_read_left_out(text, &header->left_out);
}

static int read_all_events(struct maker *maker, struct input *input, uint64_t most_marks) {
    weir_trace_event event;

    while (most_marks == 0 || maker->header->marks < most_marks) {
        if (!input_next(input, maker->header->name, &event, maker->message, maker->message_bytes))
            return 0;
        if (event.operation == 0)
            return 1;
        if (!input_is_on_device(&input->device, input->reader, &event, maker->message,
                                maker->message_bytes) ||
            !write_operation(maker, &event))
            return 0;
    }
    return 1;
}

void tape_name(const char *path, char name[TAPE_NAME_BYTES]) {
    static const char *const endings[] = {".gz", ".zst", ".txt", ".trace", ".csv"};
    const char *slash = strrchr(path, '/');
    size_t length;

    snprintf(name, TAPE_NAME_BYTES, "%s",
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

static int write_tape(struct maker *maker, struct input *input, uint64_t most_marks) {
    struct tape_header *header = maker->header;

    /* A header without counts, which is written again at the end. */
    if (fwrite(header, sizeof *header, 1, maker->file) != 1)
        return fail_write(maker);
    if (!read_all_events(maker, input, most_marks))
        return 0;
    header->streams = maker->streams.count;
    if ((header->streams && fwrite(maker->stream_ids, sizeof *maker->stream_ids, header->streams,
                                   maker->file) != header->streams) ||
        (header->marks && fwrite(maker->labels, sizeof *maker->labels, header->marks,
                                 maker->file) != header->marks) ||
        (header->ops &&
         fwrite(maker->gaps_us, sizeof *maker->gaps_us, header->ops, maker->file) != header->ops) ||
        fseek(maker->file, 0, SEEK_SET) != 0 ||
        fwrite(header, sizeof *header, 1, maker->file) != 1 || fflush(maker->file) != 0)
        return fail_write(maker);
    return 1;
}

/* Reads the trace, writes the tape to the file, and frees the memory of `maker'.  The file stays open. */
static int read_and_write(struct maker *maker, struct input *input, uint64_t most_marks) {
    int good;

    weir_trace_comments(input->reader, read_tape_comment, maker->header);
    good = write_tape(maker, input, most_marks);
    weir__map_clear(&maker->blocks);
    weir__map_clear(&maker->streams);
    free(maker->stream_ids);
    free(maker->idle);
    free(maker->labels);
    free(maker->gaps_us);
    return good;
}

int tape_make(const char *path, uint64_t most_marks, struct tape_header *header, char *message,
              size_t message_bytes) {
    struct maker maker = {.header = header, .message = message, .message_bytes = message_bytes};
    struct input input;
    int made = -1;

    if (!input_open(&input, path, message, message_bytes))
        return -1;
    memset(header, 0, sizeof *header);
    memcpy(header->magic, magic, sizeof magic);
    tape_name(path, header->name);
    header->is_converted = input.copy != NULL;
    maker.file = temporary_file();
    if (!maker.file) {
        snprintf(message, message_bytes, "cannot make a temporary file: %s", strerror(errno));
        goto close_input;
    }
    if (read_and_write(&maker, &input, most_marks)) {
        made = fcntl(fileno(maker.file), F_DUPFD_CLOEXEC, 10);
        if (made < 0)
            fail_write(&maker);
    }
    fclose(maker.file);
close_input:
    input_close(&input);
    return made;
}

/* ------------------------------------------------------------- mapping it ---- */

int tape_map(int fd, struct tape *tape) {
    struct stat status;
    const char *base;
    size_t bytes;

    if (fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(struct tape_header))
        return 0;
    bytes = (size_t)status.st_size;
    base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return 0;
    tape->header = (const void *)base;
    tape->mapped = bytes;
    tape->ops = (const void *)(base + sizeof(struct tape_header));
    if (memcmp(tape->header->magic, magic, sizeof magic) != 0 ||
        bytes != sizeof(struct tape_header) +
                     tape->header->ops * (sizeof(struct tape_op) + sizeof *tape->gaps_us) +
                     tape->header->streams * sizeof *tape->stream_ids +
                     tape->header->marks * sizeof *tape->labels) {
        tape_unmap(tape);
        return 0;
    }
    tape->stream_ids = (const void *)(tape->ops + tape->header->ops);
    tape->labels = (const void *)(tape->stream_ids + tape->header->streams);
    tape->gaps_us = (const void *)(tape->labels + tape->header->marks);
    return 1;
}

void tape_unmap(struct tape *tape) {
    munmap((void *)(uintptr_t)tape->header, tape->mapped);
}
