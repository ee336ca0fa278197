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

/* Which operations there are, and what is live at once. */
static int count(const struct tape *tape, struct tape_header *header) {
    uint64_t *bytes = calloc(header->blocks + 1, sizeof *bytes), live = 0;

    header->allocs = header->frees = header->uses = header->waits = header->live_peak_bytes = 0;
    for (uint64_t i = 0; bytes && i < header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        header->uses += op->code == 'u';
        header->waits += op->code == 'w';
        if (op->code == 'a') {
            live += bytes[op->block] = op->bytes;
            header->allocs++;
        } else if (op->code == 'f') {
            live -= bytes[op->block];
            header->frees++;
        }
        if (live > header->live_peak_bytes)
            header->live_peak_bytes = live;
    }
    free(bytes);
    return bytes != NULL;
}

static int put(FILE *file, const void *from, size_t size, uint64_t items) {
    return items == 0 || fwrite(from, size, items, file) == items;
}

/* As tape.c writes one. */
static int write_all(const struct tape *tape, const struct tape_header *part, FILE *file) {
    static const char no_label[WEIR_TRACE_LABEL_BYTES];
    static const struct tape_op mark = {.code = 'm'};
    static const uint16_t no_gap;
    uint64_t ends = tape->header->marks == 0;
    struct tape_header header = *part;

    header.ops += ends;
    header.marks += ends;
    return put(file, &header, sizeof header, 1) &&
           put(file, tape->ops, sizeof *tape->ops, part->ops) &&
           put(file, &mark, sizeof mark, ends) &&
           put(file, tape->stream_ids, sizeof *tape->stream_ids, part->streams) &&
           put(file, tape->labels, sizeof *tape->labels, part->marks) &&
           put(file, no_label, sizeof no_label, ends) &&
           put(file, tape->gaps_us, sizeof *tape->gaps_us, part->ops) &&
           put(file, &no_gap, sizeof no_gap, ends) && fflush(file) == 0;
}

static int write_part(const struct tape *tape, const struct tape_header *part) {
    int fd = memfd_create("weir-part", MFD_CLOEXEC), made = -1;
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (file && write_all(tape, part, file))
        made = fcntl(fd, F_DUPFD_CLOEXEC, 10); /* above the numbers that a child uses */
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return made;
}

int part_make(const struct tape *tape, uint64_t marks, char *message, size_t message_bytes) {
    struct tape_header part = *tape->header;
    int fd = -1;

    errno = ENOMEM;
    if (marks)
        part.ops = part.marks = 0;
    while (part.marks < marks)
        part.marks += tape->ops[part.ops++].code == 'm';
    if (count(tape, &part))
        fd = write_part(tape, &part);
    if (fd < 0)
        snprintf(message, message_bytes, "a part of the trace cannot be written: %s",
                 strerror(errno));
    return fd;
}
