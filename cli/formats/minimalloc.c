/* SPDX-License-Identifier: MIT */
/* minimalloc.c: converts problems of minimalloc (github.com/google/minimalloc) to traces.  A problem has a header
 * such as "id,lower,upper,size" and lines such as "b1,0,3,4".
 *
 * A block is allocated at time lower and freed at time upper.  Older files call these columns start and end; `end'
 * is the last time at which the block is still allocated.  One unit of time becomes one microsecond.  The id of a
 * block becomes the field name= of its event.  If a free and an allocation have equal times, the free comes first,
 * so that the two blocks can share memory.
 */
#include "cli/formats/input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "cli/common/memory.h"

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

static const struct lines_column columns[COLUMNS] = {
    [ID] = {{"id", "buffer", "buffer_id"}},
    [LOWER] = {{"lower", "start", "begin"}},
    [UPPER] = {{"upper", "end"}},
    [SIZE] = {{"size"}},
};

/* Returns 1 if the line names the columns of a MiniMalloc file, or all but one; else 0. */
static int is_minimalloc_problem(const char *first_line) {
    char line[256], *rest = line, *word;
    unsigned found = 0;

    snprintf(line, sizeof line, "%s", first_line);
    while ((word = strsep(&rest, ",")))
        for (size_t i = 0; i < COLUMNS; i++)
            found |= (unsigned)lines_is_column(&columns[i], word) << i;
    return __builtin_popcount(found) >= COLUMNS - 1;
}

/* The allocation or the free of a block. */
struct life_end {
    uint64_t time;
    size_t block;
    int is_free;
};

/* Compares two events by time, for qsort(3).  At equal times a free comes before an allocation. */
static int compare_life_ends(const void *left, const void *right) {
    const struct life_end *a = left, *b = right;

    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->is_free != b->is_free)
        return a->is_free ? -1 : 1;
    return a->block < b->block ? -1 : a->block > b->block;
}

/* Appends the block in the current line to `blocks'.  On failure, writes the reason to lines->message and returns 0. */
static int read_problem_block(struct lines *lines, const size_t *at, int is_last_time,
                              struct blocks *blocks) {
    struct block block;

    if (!lines_has_columns(lines, columns, COLUMNS, at) ||
        !lines_number(lines, at[LOWER], "lower", INT64_MAX - 1, &block.lower) ||
        !lines_number(lines, at[UPPER], "upper", INT64_MAX - 1, &block.upper) ||
        !lines_number(lines, at[SIZE], "size", INT64_MAX, &block.bytes))
        return 0;
    block.upper += (uint64_t)is_last_time;
    if (block.upper <= block.lower)
        return lines_fail(
            lines, "upper %" PRIu64 " is not above lower %" PRIu64 ", the time of the allocation",
            block.upper, block.lower);
    snprintf(block.name, sizeof block.name, "%s", lines->fields[at[ID]]);
    for (char *c = block.name; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            *c = '_';
    if (!memory_make_room(&blocks->all, &blocks->room, blocks->count, sizeof block))
        return lines_fail(lines, "out of memory");
    blocks->all[blocks->count++] = block;
    return 1;
}

/* Writes the allocation and the free of every block to the trace, in the order of time.  Returns 1 on success, 0 if
 * there is no host memory. */
static int write_blocks(FILE *trace, const struct blocks *blocks) {
    struct life_end *ends = reallocarray(NULL, 2 * blocks->count, sizeof *ends);

    if (!ends)
        return 0;
    for (size_t i = 0; i < blocks->count; i++) {
        ends[2 * i] = (struct life_end){blocks->all[i].lower, i, 0};
        ends[2 * i + 1] = (struct life_end){blocks->all[i].upper, i, 1};
    }
    qsort(ends, 2 * blocks->count, sizeof *ends, compare_life_ends);
    fprintf(trace, "# weir-trace 1\n# weir %s converted a problem of minimalloc\n", weir_version());
    for (size_t i = 0; i < 2 * blocks->count; i++) {
        const struct block *block = &blocks->all[ends[i].block];

        fprintf(trace, "%" PRIu64 " %c %zu %" PRIu64 " 0%s%s\n", ends[i].time,
                ends[i].is_free ? 'f' : 'a', ends[i].block, block->bytes,
                ends[i].is_free ? "" : " name=", ends[i].is_free ? "" : block->name);
    }
    free(ends);
    return 1;
}

static int write_trace_of_problem(struct lines *lines, FILE *trace) {
    struct blocks blocks = {NULL, 0, 0};
    size_t at[COLUMNS];
    int good = lines_find_columns(lines, columns, COLUMNS, at);
    int is_last_time = good && strcmp(lines->fields[at[UPPER]], "end") == 0;

    while (good && lines_next(lines))
        good = read_problem_block(lines, at, is_last_time, &blocks);
    good = good && !lines->message[0];
    if (good && blocks.count == 0)
        good = lines_fail(lines, "there are no blocks; expected lines such as \"b1,0,3,4096\"");
    if (good && !write_blocks(trace, &blocks))
        good = lines_fail(lines, "out of memory");
    free(blocks.all);
    return good;
}

const struct format format_minimalloc = {is_minimalloc_problem, write_trace_of_problem};
