/* SPDX-License-Identifier: MIT */
/* minimalloc.c: what minimalloc (github.com/google/minimalloc) reads and writes:
 *
 *     id,lower,upper,size
 *     b1,0,3,4
 *
 * A block lives from time lower to before time upper; the columns may stand in any order, and in older files
 * are called start and end, of which end is the last time of a life.  Other columns are left alone.
 *
 * Times become microseconds, and back.  What is freed and what is allocated at one time share no memory there; so
 * where a trace allocates first, its later events are later by one.  Names are kept as name=. */
#include "cli/formats/conversion.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

enum { ID, LOWER, UPPER, SIZE, COLUMNS };
enum { NAME_BYTES = 64 };

struct block {
    uint64_t lower, upper, bytes;
    char name[NAME_BYTES];
};

struct blocks {
    struct block *all;
    size_t count, room;
};

static struct block *add(struct blocks *blocks) {
    if (blocks->count == blocks->room) {
        size_t room = blocks->room ? 2 * blocks->room : 256;
        struct block *all = reallocarray(blocks->all, room, sizeof *all);

        if (!all)
            return NULL;
        blocks->all = all;
        blocks->room = room;
    }
    return &blocks->all[blocks->count++];
}

/* The names that a header may have for each column, the newest first. */
static const char *const called[COLUMNS][4] = {{"id", "buffer", "buffer_id", NULL},
                                               {"lower", "start", "begin", NULL},
                                               {"upper", "end", NULL},
                                               {"size", NULL}};

static int is_called(const char *word, size_t column) {
    for (const char *const *name = called[column]; *name; name++)
        if (strcmp(word, *name) == 0)
            return 1;
    return 0;
}

int minimalloc_is(const char *first_line) {
    char line[256], *rest = line, *word;
    unsigned found = 0;

    snprintf(line, sizeof line, "%s", first_line);
    while ((word = strsep(&rest, ",")))
        for (size_t i = 0; i < COLUMNS; i++)
            found |= (unsigned)is_called(word, i) << i;
    return __builtin_popcount(found) >= COLUMNS - 1; /* reading tells what is missing */
}

/* ------------------------------------------------------------------------ reading ---- */

/* One end of a life. */
struct end {
    uint64_t time;
    size_t block;
    int is_free;
};

/* Frees first, which is what lives that are open at their ends mean. */
static int is_later(const void *left, const void *right) {
    const struct end *a = left, *b = right;

    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->is_free != b->is_free)
        return a->is_free ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

static int take_line(struct lines *lines, const size_t *columns, int is_last_time,
                     struct blocks *blocks) {
    struct block block;

    for (size_t i = 0; i < COLUMNS; i++)
        if (columns[i] >= lines->count)
            return lines_refuse(lines, "%s is missing; expected a field for each column of line 1",
                                called[i][0]);
    if (!lines_number(lines, columns[LOWER], called[LOWER][0], INT64_MAX - 1, &block.lower) ||
        !lines_number(lines, columns[UPPER], called[UPPER][0], INT64_MAX - 1, &block.upper) ||
        !lines_number(lines, columns[SIZE], called[SIZE][0], INT64_MAX, &block.bytes))
        return 0;
    block.upper += (uint64_t)is_last_time;
    if (block.upper <= block.lower)
        return lines_refuse(
            lines, "upper %" PRIu64 " is not above lower %" PRIu64 ", the time of the allocation",
            block.upper, block.lower);
    snprintf(block.name, sizeof block.name, "%s", lines->fields[columns[ID]]);
    for (char *at = block.name; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f)
            *at = '_';
    if (!add(blocks))
        return lines_refuse(lines, "out of memory");
    blocks->all[blocks->count - 1] = block;
    return 1;
}

static int say_all(struct conversion *conversion, const struct blocks *blocks) {
    struct end *ends = reallocarray(NULL, 2 * blocks->count, sizeof *ends);

    if (!ends) {
        conversion->failed = ENOMEM;
        return 0;
    }
    for (size_t i = 0; i < blocks->count; i++) {
        ends[2 * i] = (struct end){blocks->all[i].lower, i, 0};
        ends[2 * i + 1] = (struct end){blocks->all[i].upper, i, 1};
    }
    qsort(ends, 2 * blocks->count, sizeof *ends, is_later);
    convert_say(conversion, "# weir-trace 1\n# weir %s converted a problem of minimalloc\n",
                weir_version());
    for (size_t i = 0; i < 2 * blocks->count; i++) {
        const struct block *block = &blocks->all[ends[i].block];

        convert_say(conversion, "%" PRIu64 " %c %zu %" PRIu64 " 0", ends[i].time,
                    ends[i].is_free ? 'f' : 'a', ends[i].block, block->bytes);
        convert_say(conversion, ends[i].is_free ? "\n" : " name=%s\n", block->name);
    }
    free(ends);
    return 1;
}

int minimalloc_read(struct conversion *conversion) {
    struct lines *lines = &conversion->lines;
    struct blocks blocks = {NULL, 0, 0};
    size_t columns[COLUMNS];
    int is_last_time = 0, good = lines_cut(lines);

    for (size_t i = 0; good && i < COLUMNS; i++) {
        columns[i] = SIZE_MAX;
        for (size_t k = 0; k < lines->count; k++)
            if (is_called(lines->fields[k], i)) {
                columns[i] = k;
                is_last_time |= strcmp(lines->fields[k], "end") == 0;
            }
        good = columns[i] != SIZE_MAX ||
               lines_refuse(lines, "column \"%s\" is missing; expected id, lower, upper and size",
                            called[i][0]);
    }
    while (good && lines_cut(lines))
        good = take_line(lines, columns, is_last_time, &blocks);
    good = good && !lines->message[0];
    if (good && blocks.count == 0)
        good = lines_refuse(lines, "there are no blocks; expected lines such as \"b1,0,3,4096\"");
    good = good && say_all(conversion, &blocks);
    free(blocks.all);
    return good;
}

/* ------------------------------------------------------------------------ writing ---- */

static int begin_block(struct conversion *conversion, struct blocks *blocks, struct weir_map *live,
                       const weir_trace_event *event, uint64_t now) {
    struct block *block = add(blocks);

    if (!block || !weir__map_put(live, event->id + 1, blocks->count - 1)) {
        conversion->failed = ENOMEM;
        return 0;
    }
    *block = (struct block){.lower = now, .bytes = event->bytes};
    if (!weir_trace_field(conversion->reader, "name", block->name, sizeof block->name) ||
        strpbrk(block->name, ","))
        snprintf(block->name, sizeof block->name, "%zu", blocks->count - 1);
    return 1;
}

int minimalloc_write(struct conversion *conversion) {
    struct blocks blocks = {NULL, 0, 0};
    struct weir_map live = {NULL, 0, 0}; /* id + 1 -> index */
    weir_trace_event event;
    uint64_t now = 0;
    int good = 1, has_allocated = 0; /* at this time */
    uintptr_t index = 0;

    while (good && convert_next(conversion, &event)) {
        if (event.operation != 'a' && event.operation != 'f') {
            conversion->left_out++;
            continue;
        }
        if (event.time_us > now) {
            now = event.time_us;
            has_allocated = 0;
        } else if (event.operation == 'f' && has_allocated) {
            now++;
            has_allocated = 0;
        }
        has_allocated |= event.operation == 'a';
        if (event.operation == 'a') {
            good = begin_block(conversion, &blocks, &live, &event, now);
        } else {
            (void)weir__map_take(&live, event.id + 1, &index); /* the reader has seen it */
            blocks.all[index].upper = now;
        }
    }
    convert_say(conversion, "id,lower,upper,size\n");
    for (size_t i = 0; good && i < blocks.count; i++) {
        const struct block *block = &blocks.all[i];

        convert_say(conversion, "%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", block->name,
                    block->lower, block->upper ? block->upper : now + 1, block->bytes);
    }
    free(blocks.all);
    weir__map_clear(&live);
    return good;
}
