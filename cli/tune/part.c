/* SPDX-License-Identifier: MIT */
/* part.c: see part.h.  Indices of blocks and streams stay as they are. */
#include "cli/tune/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct part {
    const struct tape *tape;
    struct tape_header header;
    struct tape_op *ops;
    uint16_t *gaps_us;
    uint64_t *bytes; /* by block; 0: not live */
    uint64_t first_label, live_bytes;
};

/* The first operation behind that mark; behind the last one there may be more. */
static uint64_t behind_mark(const struct tape *tape, uint64_t mark) {
    uint64_t i = 0;

    for (uint64_t marks = 0; marks < mark && i < tape->header->ops; i++)
        marks += tape->ops[i].code == 'm';
    return i;
}

static void count(struct part *part, const struct tape_op *op) {
    struct tape_header *header = &part->header;

    switch (op->code) {
    case 'a':
        part->bytes[op->block] = op->bytes;
        part->live_bytes += op->bytes;
        if (part->live_bytes > header->live_peak_bytes)
            header->live_peak_bytes = part->live_bytes;
        header->allocs++;
        break;
    case 'f':
        part->live_bytes -= part->bytes[op->block];
        header->frees++;
        break;
    case 'u':
        header->uses++;
        break;
    case 'w':
        header->waits++;
        break;
    default:
        header->marks++;
    }
}

static void add(struct part *part, const struct tape_op *op, uint16_t gap_us) {
    struct tape_op *added = &part->ops[part->header.ops];

    *added = *op;
    if (op->code == 'm')
        added->block -= (uint32_t)part->first_label;
    part->gaps_us[part->header.ops++] = gap_us;
    count(part, op);
}

/* 0: out of memory. */
static int add_live(struct part *part, uint64_t begin) {
    const struct tape *tape = part->tape;
    uint64_t *made_by = calloc(tape->header->blocks + 1, sizeof *made_by); /* operation + 1 */

    if (!made_by)
        return 0;
    for (uint64_t i = 0; i < begin; i++)
        if (tape->ops[i].code == 'a')
            made_by[tape->ops[i].block] = i + 1;
        else if (tape->ops[i].code == 'f')
            made_by[tape->ops[i].block] = 0;
    for (uint64_t i = 0; i < begin; i++)
        if (tape->ops[i].code == 'a' && made_by[tape->ops[i].block] == i + 1)
            add(part, &tape->ops[i], 0);
    free(made_by);
    return 1;
}

/* As tape.c writes one. */
static int write_all(const struct part *part, FILE *file) {
    static const char no_label[WEIR_TRACE_LABEL_BYTES];
    const struct tape_header *header = &part->header;
    uint64_t labels = part->tape->header->marks ? header->marks : 0;

    return fwrite(header, sizeof *header, 1, file) == 1 &&
           fwrite(part->ops, sizeof *part->ops, header->ops, file) == header->ops &&
           fwrite(part->tape->stream_ids, sizeof *part->tape->stream_ids, header->streams, file) ==
               header->streams &&
           fwrite(part->tape->labels + part->first_label, sizeof *part->tape->labels, labels,
                  file) == labels &&
           (labels || fwrite(no_label, sizeof no_label, 1, file) == 1) &&
           fwrite(part->gaps_us, sizeof *part->gaps_us, header->ops, file) == header->ops &&
           fflush(file) == 0;
}

static int write_part(const struct part *part) {
    int fd = memfd_create("weir-part", MFD_CLOEXEC), made = -1;
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (file && write_all(part, file))
        made = fcntl(fd, F_DUPFD_CLOEXEC, 10); /* above the numbers that a child uses */
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return made;
}

int part_make(const struct tape *tape, uint64_t from, uint64_t to, struct tape_header *header,
              char *message, size_t message_bytes) {
    const struct tape_op mark = {.code = 'm'};
    uint64_t begin = behind_mark(tape, from), end = to ? behind_mark(tape, to) : tape->header->ops;
    struct part part = {.tape = tape, .first_label = from};
    int fd = -1;

    part.header = (struct tape_header){.streams = tape->header->streams,
                                       .blocks = tape->header->blocks};
    memcpy(part.header.magic, tape->header->magic, sizeof part.header.magic);
    memcpy(part.header.name, tape->header->name, sizeof part.header.name);
    part.ops = calloc(tape->header->ops + 1, sizeof *part.ops);
    part.gaps_us = calloc(tape->header->ops + 1, sizeof *part.gaps_us);
    part.bytes = calloc(tape->header->blocks + 1, sizeof *part.bytes);
    errno = ENOMEM;
    if (part.ops && part.gaps_us && part.bytes && add_live(&part, begin)) {
        for (uint64_t i = begin; i < end; i++)
            add(&part, &tape->ops[i], tape->gaps_us[i]);
        if (!tape->header->marks)
            add(&part, &mark, 0);
        fd = write_part(&part);
    }
    *header = part.header;
    if (fd < 0)
        snprintf(message, message_bytes, "a part of the trace cannot be written: %s",
                 strerror(errno));
    free(part.ops);
    free(part.gaps_us);
    free(part.bytes);
    return fd;
}
