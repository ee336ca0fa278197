/* SPDX-License-Identifier: MIT */
/* samples.c: see samples.h.
 *
 * A tape says beforehand how long it is and when most is live, so where parts end and columns stand is
 * settled before the first operation.  Where memory lies is known only in the end: until then a column is
 * a list of pieces in order of address.
 */
#include "cli/replay/samples.h"

#include <stdlib.h>
#include <string.h>

#include "cli/common/jsonfile.h"

enum { PAGE = 2 << 20, MOST_PIECES = 8 << 20, MOST_RANGES = 64 };

/* Addresses from `from` to `to`, exclusive. */
struct piece {
    uint64_t from, to;
};

struct column {
    uint64_t op, live, pages;
    struct piece *pieces;
    size_t count;
};

struct extent {
    uint64_t low, high;
};

struct point {
    int any;
    struct extent requested, in_use, reserve;
};

struct step {
    uint64_t op, grew, gave_back, bytes, stall_ns, reserve;
};

struct samples {
    const struct tape *tape;
    uint64_t *bytes;    /* by block; 0: not live */
    uint64_t requested; /* in live blocks */
    size_t point_count, column_count, next_column;
    struct point points[SAMPLES_POINTS];
    struct column columns[SAMPLES_COLUMNS];
    struct step steps[SAMPLES_STEPS];
    size_t step_count;
    uint64_t steps_left_out;
    struct figures before;
    int has_in_use, has_reserve, failed;
};

/* --------------------------------------------------------------- preparation ---- */

/* The operation after which most is live, as the trace has it. */
static uint64_t find_peak(const struct tape *tape) {
    uint64_t live = 0, most = 0, at = 0;

    for (uint64_t i = 0; i < tape->header->ops; i++) {
        if (tape->ops[i].code == 'a')
            live += tape->ops[i].bytes;
        else if (tape->ops[i].code == 'f')
            live -= tape->ops[i].bytes;
        if (live > most) {
            most = live;
            at = i;
        }
    }
    return at;
}

/* Equal distances; the one next to the peak goes there.  Fewer where many blocks are live at once. */
static void place_columns(struct samples *samples) {
    const struct tape_header *header = samples->tape->header;
    uint64_t peak = find_peak(samples->tape), count = SAMPLES_COLUMNS;

    if (header->blocks > MOST_PIECES / SAMPLES_COLUMNS)
        count = MOST_PIECES / header->blocks;
    if (count > header->ops)
        count = header->ops;
    samples->column_count = (size_t)count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = header->ops * i / count, to = header->ops * (i + 1) / count;

        samples->columns[i].op = from <= peak && peak < to ? peak : to - 1;
    }
}

struct samples *samples_open(const struct tape *tape, const struct figures *before) {
    struct samples *samples = calloc(1, sizeof *samples);
    const struct tape_header *header = tape->header;

    if (!samples)
        return NULL;
    samples->tape = tape;
    samples->before = *before;
    samples->bytes = calloc(header->blocks ? header->blocks : 1, sizeof *samples->bytes);
    samples->point_count = header->ops < SAMPLES_POINTS ? (size_t)header->ops : SAMPLES_POINTS;
    place_columns(samples);
    if (samples->bytes)
        return samples;
    free(samples);
    return NULL;
}

void samples_close(struct samples *samples) {
    if (!samples)
        return;
    for (size_t i = 0; i < samples->column_count; i++)
        free(samples->columns[i].pieces);
    free(samples->bytes);
    free(samples);
}

/* -------------------------------------------------------------------- noting ---- */

static void follow_blocks(struct samples *samples, const struct tape_op *op,
                          void *const *addresses) {
    uint64_t *bytes = &samples->bytes[op->block];

    if (op->code == 'a' && addresses[op->block])
        *bytes = op->bytes;
    else if (op->code != 'f')
        return;
    if (op->code == 'a') {
        samples->requested += *bytes;
    } else {
        samples->requested -= *bytes;
        *bytes = 0;
    }
}

static void widen(struct extent *extent, int any, uint64_t value) {
    if (!any || value < extent->low)
        extent->low = value;
    if (!any || value > extent->high)
        extent->high = value;
}

static void note_point(struct samples *samples, uint64_t i, const struct figures *figures) {
    size_t at = (size_t)(i * samples->point_count / samples->tape->header->ops);
    struct point *point = &samples->points[at];

    widen(&point->requested, point->any, samples->requested);
    widen(&point->in_use, point->any, figures->in_use);
    widen(&point->reserve, point->any, figures->reserve);
    point->any = 1;
    samples->has_in_use = figures->has_in_use;
    samples->has_reserve = figures->has_reserve;
}

/* The smallest makes room. */
static void keep_step(struct samples *samples, const struct step *step) {
    size_t least = 0;

    if (samples->step_count < SAMPLES_STEPS) {
        samples->steps[samples->step_count++] = *step;
        return;
    }
    samples->steps_left_out++;
    for (size_t i = 1; i < SAMPLES_STEPS; i++)
        if (samples->steps[i].bytes < samples->steps[least].bytes)
            least = i;
    if (step->bytes <= samples->steps[least].bytes)
        return;
    memmove(&samples->steps[least], &samples->steps[least + 1],
            (SAMPLES_STEPS - 1 - least) * sizeof *step);
    samples->steps[SAMPLES_STEPS - 1] = *step;
}

static void note_step(struct samples *samples, uint64_t i, const struct figures *now) {
    const struct figures *before = &samples->before;
    struct step step = {.op = i, .reserve = now->reserve};

    step.grew = now->growths - before->growths;
    step.gave_back = now->given_back - before->given_back;
    step.stall_ns = now->stall_ns - before->stall_ns;
    step.bytes = now->reserve > before->reserve ? now->reserve - before->reserve
                                                : before->reserve - now->reserve;
    if (step.grew || step.gave_back || step.stall_ns)
        keep_step(samples, &step);
    samples->before = *now;
}

static int compare_pieces(const void *a, const void *b) {
    const struct piece *x = a, *y = b;

    return (x->from > y->from) - (x->from < y->from);
}

/* Neighbours become one. */
static size_t join(struct piece *pieces, size_t count, uint64_t gap) {
    size_t kept = 0;

    qsort(pieces, count, sizeof *pieces, compare_pieces);
    for (size_t i = 0; i < count; i++) {
        if (kept && pieces[i].from <= pieces[kept - 1].to + gap) {
            if (pieces[i].to > pieces[kept - 1].to)
                pieces[kept - 1].to = pieces[i].to;
        } else {
            pieces[kept++] = pieces[i];
        }
    }
    return kept;
}

static uint64_t pages_of(const struct piece *pieces, size_t count) {
    uint64_t pages = 0, next = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t from = pieces[i].from / PAGE, to = (pieces[i].to - 1) / PAGE + 1;

        if (from < next)
            from = next;
        if (to > from)
            pages += to - from;
        if (to > next)
            next = to;
    }
    return pages;
}

static void note_column(struct samples *samples, struct column *column, void *const *addresses) {
    uint64_t blocks = samples->tape->header->blocks;
    struct piece *pieces = calloc(blocks ? blocks : 1, sizeof *pieces), *smaller;
    size_t count = 0;

    if (!pieces) {
        samples->failed = 1;
        return;
    }
    for (uint64_t i = 0; i < blocks; i++)
        if (samples->bytes[i]) {
            uint64_t from = (uint64_t)(uintptr_t)addresses[i];

            pieces[count++] = (struct piece){from, from + samples->bytes[i]};
        }
    column->live = samples->requested;
    column->count = join(pieces, count, 0);
    column->pages = pages_of(pieces, column->count);
    smaller = realloc(pieces, (column->count ? column->count : 1) * sizeof *pieces);
    column->pieces = smaller ? smaller : pieces;
}

void samples_note(struct samples *samples, uint64_t i, void *const *addresses,
                  const struct figures *figures) {
    follow_blocks(samples, &samples->tape->ops[i], addresses);
    note_point(samples, i, figures);
    note_step(samples, i, figures);
    if (samples->next_column < samples->column_count &&
        samples->columns[samples->next_column].op == i)
        note_column(samples, &samples->columns[samples->next_column++], addresses);
}

/* ---------------------------------------------------------------------- JSON ---- */

static void set_extents(json_t *out, const char *low, const char *high,
                        const struct samples *samples, size_t offset) {
    json_t *lows = json_array(), *highs = json_array();

    for (size_t i = 0; i < samples->point_count; i++) {
        const struct extent *extent =
            (const struct extent *)(const void *)((const char *)&samples->points[i] + offset);

        json_array_append_new(lows, jsonfile_integer(extent->low));
        json_array_append_new(highs, jsonfile_integer(extent->high));
    }
    json_object_set_new(out, low, lows);
    json_object_set_new(out, high, highs);
}

static json_t *timeline_json(const struct samples *samples) {
    json_t *out = json_object();

    set_extents(out, "requested_low", "requested_high", samples, offsetof(struct point, requested));
    if (samples->has_in_use)
        set_extents(out, "in_use_low", "in_use_high", samples, offsetof(struct point, in_use));
    if (samples->has_reserve)
        set_extents(out, "reserved_low", "reserved_high", samples, offsetof(struct point, reserve));
    return out;
}

static json_t *steps_json(const struct samples *samples) {
    json_t *array = json_array();

    for (size_t i = 0; i < samples->step_count; i++) {
        const struct step *step = &samples->steps[i];

        json_array_append_new(array, json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "op",
                                               jsonfile_integer(step->op), "growths",
                                               jsonfile_integer(step->grew), "given_back",
                                               jsonfile_integer(step->gave_back), "bytes",
                                               jsonfile_integer(step->bytes), "stall_ns",
                                               jsonfile_integer(step->stall_ns), "reserved",
                                               jsonfile_integer(step->reserve)));
    }
    return array;
}

static json_t *marks_json(const struct tape *tape) {
    json_t *array = json_array();

    for (uint64_t i = 0; i < tape->header->ops; i++)
        if (tape->ops[i].code == 'm')
            json_array_append_new(array, jsonfile_integer(i));
    return array;
}

/* Every address that any column has, in whole pages; NULL: out of memory. */
static struct piece *find_ranges(const struct samples *samples, size_t *count) {
    size_t total = 0;
    struct piece *ranges;

    for (size_t i = 0; i < samples->next_column; i++)
        total += samples->columns[i].count;
    ranges = calloc(total ? total : 1, sizeof *ranges);
    if (!ranges)
        return NULL;
    total = 0;
    for (size_t i = 0; i < samples->next_column; i++)
        for (size_t k = 0; k < samples->columns[i].count; k++) {
            const struct piece *piece = &samples->columns[i].pieces[k];

            ranges[total++] =
                (struct piece){piece->from / PAGE * PAGE, ((piece->to - 1) / PAGE + 1) * PAGE};
        }
    *count = join(ranges, total, 0);
    return ranges;
}

/* What lies in each cell; ranges stand one behind the other. */
static void fill_cells(const struct column *column, const struct piece *ranges, uint64_t cell,
                       uint64_t *cells) {
    uint64_t base = 0; /* of the range, where the ranges are one */
    size_t range = 0;

    memset(cells, 0, SAMPLES_ROWS * sizeof *cells);
    for (size_t i = 0; i < column->count; i++) {
        struct piece piece = column->pieces[i];
        uint64_t at, left = piece.to - piece.from;

        while (piece.from >= ranges[range].to) {
            base += ranges[range].to - ranges[range].from;
            range++;
        }
        at = base + piece.from - ranges[range].from;
        while (left > 0) {
            uint64_t room = cell - at % cell, part = left < room ? left : room;

            cells[at / cell] += part;
            at += part;
            left -= part;
        }
    }
}

/* '.' nothing, 1 to 9 tenths, # all of it. */
static char spell_cell(uint64_t filled, uint64_t cell) {
    uint64_t tenths = (filled * 10 + cell / 2) / cell;

    if (filled == 0)
        return '.';
    if (filled == cell)
        return '#';
    return (char)('0' + (tenths < 1 ? 1 : tenths > 9 ? 9 : tenths));
}

static json_t *column_json(const struct column *column, const struct piece *ranges, uint64_t cell) {
    uint64_t cells[SAMPLES_ROWS];
    char text[SAMPLES_ROWS + 1] = "";

    fill_cells(column, ranges, cell, cells);
    for (size_t i = 0; i < SAMPLES_ROWS; i++)
        text[i] = spell_cell(cells[i], cell);
    return json_pack("{s:o,s:o,s:o,s:s}", "op", jsonfile_integer(column->op), "live_bytes",
                     jsonfile_integer(column->live), "page_bytes",
                     jsonfile_integer(column->pages * PAGE), "cells", text);
}

static json_t *map_json(const struct samples *samples) {
    size_t range_count = 0;
    struct piece *ranges = find_ranges(samples, &range_count);
    json_t *columns, *lengths;
    uint64_t total = 0, cell;

    if (!ranges)
        return NULL;
    columns = json_array();
    lengths = json_array();
    for (size_t i = 0; i < range_count; i++) {
        total += ranges[i].to - ranges[i].from;
        if (range_count <= MOST_RANGES)
            json_array_append_new(lengths, jsonfile_integer(ranges[i].to - ranges[i].from));
    }
    cell = total / SAMPLES_ROWS + (total % SAMPLES_ROWS != 0);
    for (size_t i = 0; cell && i < samples->next_column; i++)
        json_array_append_new(columns, column_json(&samples->columns[i], ranges, cell));
    free(ranges);
    return json_pack("{s:o,s:i,s:o,s:o}", "cell_bytes", jsonfile_integer(cell), "range_count",
                     (int)range_count, "ranges", lengths, "columns", columns);
}

json_t *samples_json(const struct samples *samples) {
    const struct tape_header *header = samples->tape->header;
    json_t *out, *map = samples->failed ? NULL : map_json(samples);

    if (!map)
        return NULL;
    out = json_pack("{s:o,s:o,s:o,s:o,s:o}", "ops", jsonfile_integer(header->ops), "timeline",
                    timeline_json(samples), "steps", steps_json(samples), "steps_left_out",
                    jsonfile_integer(samples->steps_left_out), "map", map);
    if (out && header->marks <= SAMPLES_MARKS)
        json_object_set_new(out, "marks", marks_json(samples->tape));
    return out;
}
