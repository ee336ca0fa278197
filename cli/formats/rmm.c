/* SPDX-License-Identifier: MIT */
/* rmm.c: converts logs of RMM's logging_resource_adaptor (github.com/rapidsai/rmm) to traces.  A log has the header
 * "Thread,Time,Action,Pointer,Size,Stream" and lines such as
 * "1234,11:19:04.000123,allocate,0x7f0000000000,1000000,0x0".
 *
 * Time is the time of day.  Action is allocate, free, or allocate failure, whose pointer is (nil).  The trace leaves
 * out the free of a pointer that the log has not allocated.  If the log allocates a pointer twice without a free
 * between, the trace has an additional free.
 */
#include "cli/formats/input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "cli/common/memory.h"

#define DAY_US UINT64_C(86400000000)

enum { THREAD, TIME, ACTION, POINTER, SIZE, STREAM, COLUMNS };
static const struct lines_column columns[COLUMNS] = {
    [THREAD] = {{"Thread"}},   [TIME] = {{"Time"}}, [ACTION] = {{"Action"}},
    [POINTER] = {{"Pointer"}}, [SIZE] = {{"Size"}}, [STREAM] = {{"Stream"}},
};

struct block {
    uint64_t id, bytes, stream;
};

static int is_rmm_log(const char *first_line) {
    return strstr(first_line, "Action") && strstr(first_line, "Pointer") &&
           strstr(first_line, "Size");
}

/* The state of the conversion of one log. */
struct log {
    struct lines *lines;
    FILE *trace;
    size_t at[COLUMNS];      /* the position of each column in a line */
    struct weir_map blocks;  /* a map from pointers to their struct block */
    struct weir_map streams; /* a map from a stream handle + 1 to the number of the stream + 1 */
    struct weir_map threads; /* a map from a thread id + 1 to the number of the thread */
    uint64_t next_id;
    uint64_t left_out_frees; /* frees of pointers without an allocation in the log */
    uint64_t added_frees;    /* frees in the trace that are not in the log */
    uint64_t back;           /* lines whose time is before that of the previous line */
    uint64_t first_us, days_us, of_day_us, last_us;
    int has_time;
};

/* Returns the number of a value (a stream or a thread).  A new value gets the next number; the first number is 1.
 * Returns 0 if there is no host memory. */
static uint64_t number_of_value(struct weir_map *map, uint64_t value) {
    uintptr_t number;

    if (weir__map_get(map, value + 1, &number))
        return number;
    return weir__map_put(map, value + 1, map->count + 1) ? map->count : 0;
}

/* Reads at most `most' decimal digits, and advances *text past them.  Returns their value, and stores the number of
 * digits in *count. */
static unsigned read_digits(const char **text, size_t most, size_t *count) {
    unsigned value = 0;

    for (*count = 0; *count < most && **text >= '0' && **text <= '9'; (*count)++)
        value = value * 10 + (unsigned)(*(*text)++ - '0');
    return value;
}

/* Converts a time of day such as "11:19:04.000123" to microseconds.  Older logs have a colon and a number of
 * microseconds instead of the point and a fraction of a second. */
static int read_time_of_day(const char *text, uint64_t *us) {
    static const unsigned most[] = {23, 59, 60};
    size_t digits;
    uint64_t now = 0;
    char point;

    for (int i = 0; i < 3; i++) {
        unsigned part = read_digits(&text, 2, &digits);

        if (digits == 0 || part > most[i] || (i < 2 && *text++ != ':'))
            return 0;
        now = now * 60 + part;
    }
    now *= 1000000;
    point = *text;
    if (point == '.' || point == ':') {
        unsigned part = (text++, read_digits(&text, 6, &digits));

        if (digits == 0)
            return 0;
        for (; point == '.' && digits < 6; digits++)
            part *= 10;
        now += part;
        if (point == '.') /* skips digits below a microsecond */
            (void)read_digits(&text, 3, &digits);
    }
    *us = now;
    return *text == '\0';
}

/* Stores the time from the first line to the current line in *time_us.  If the time of day is more than half a day
 * earlier than in the previous line, a new day has begun; if it is a little earlier, uses the time of the previous
 * line.  Returns 1 on success.  If the field is not a time, writes the reason to lines->message and returns 0. */
static int read_event_time(struct log *log, uint64_t *time_us) {
    struct lines *lines = log->lines;
    const char *text = lines->fields[log->at[TIME]];
    uint64_t now;

    if (!read_time_of_day(text, &now))
        return lines_fail(lines, "Time \"%.40s\" is not a time such as 11:19:04.000123", text);
    if (!log->has_time)
        log->first_us = now;
    else if (now + DAY_US / 2 < log->of_day_us)
        log->days_us += DAY_US;
    log->has_time = 1;
    log->of_day_us = now;
    now += log->days_us;
    log->back += now < log->first_us + log->last_us;
    now = now > log->first_us ? now - log->first_us : 0;
    log->last_us = now > log->last_us ? now : log->last_us;
    *time_us = log->last_us;
    return 1;
}

static void write_rmm_event(const struct log *log, uint64_t time_us, char operation,
                            const struct block *block, uint64_t thread) {
    fprintf(log->trace, "%" PRIu64 " %c %" PRIu64 " %" PRIu64 " %" PRIu64 " tid=%" PRIu64 "\n",
            time_us, operation, block->id, block->bytes, block->stream, thread);
}

/* Writes the free of the block at `pointer'.  A NULL `stream' means the stream of the allocation.  Returns 0 if there
 * is no such block. */
static int write_rmm_free(struct log *log, uint64_t pointer, uint64_t time_us, uint64_t thread,
                          const uint64_t *stream) {
    uintptr_t value;
    struct block *block;

    if (!weir__map_remove(&log->blocks, pointer, &value))
        return 0;
    block = (struct block *)value;
    if (stream)
        block->stream = *stream;
    write_rmm_event(log, time_us, 'f', block, thread);
    free(block);
    return 1;
}

/* Writes an allocation at `pointer' to the trace, after the free of an older block there.  Returns 0 if there is no
 * host memory. */
static int write_rmm_alloc(struct log *log, uint64_t pointer, const struct block *like,
                           uint64_t time_us, uint64_t thread) {
    struct block *block = malloc(sizeof *block);

    log->added_frees += (uint64_t)write_rmm_free(log, pointer, time_us, thread, NULL);
    if (!block || !weir__map_put(&log->blocks, pointer, (uintptr_t)block)) {
        free(block);
        return lines_fail(log->lines, "out of memory");
    }
    *block = *like;
    write_rmm_event(log, time_us, 'a', block, thread);
    return 1;
}

/* Writes the event of the current line to the trace.  Returns 1 on success.  On failure, writes the reason to
 * lines->message and returns 0. */
static int read_log_line(struct log *log) {
    struct lines *lines = log->lines;
    const size_t *at = log->at;
    uint64_t thread, pointer = 0, handle, time_us = 0;
    const char *action;
    struct block block;

    if (!lines_has_columns(lines, columns, COLUMNS, at))
        return 0;
    action = lines->fields[at[ACTION]];
    if (strcmp(lines->fields[at[POINTER]], "(nil)") != 0 &&
        !lines_number(lines, at[POINTER], "Pointer", UINT64_MAX - 1, &pointer))
        return 0;
    if (!read_event_time(log, &time_us) ||
        !lines_number(lines, at[THREAD], "Thread", UINT64_MAX - 1, &thread) ||
        !lines_number(lines, at[SIZE], "Size", INT64_MAX, &block.bytes) ||
        !lines_number(lines, at[STREAM], "Stream", UINT64_MAX - 1, &handle))
        return 0;
    thread = number_of_value(&log->threads, thread);
    block.stream = number_of_value(&log->streams, handle) - 1;
    if (strcmp(action, "free") == 0) {
        log->left_out_frees +=
            !write_rmm_free(log, pointer, time_us, thread, &block.stream) && pointer;
        return 1;
    }
    /* An allocation without a pointer has 0 bytes; the trace leaves it out. */
    if (strcmp(action, "allocate") == 0 && !pointer)
        return 1;
    block.id = log->next_id++;
    if (strcmp(action, "allocate") == 0)
        return write_rmm_alloc(log, pointer, &block, time_us, thread);
    if (strcmp(action, "allocate failure") != 0)
        return lines_fail(lines, "Action \"%.40s\" is not one of allocate, allocate failure, free",
                          action);
    write_rmm_event(log, time_us, 'x', &block, thread);
    return 1;
}

static int write_trace_of_log(struct lines *lines, FILE *trace) {
    struct log log = {.lines = lines, .trace = trace};
    int good = lines_find_columns(lines, columns, COLUMNS, log.at);

    fprintf(trace, "# weir-trace 1\n# weir %s converted a log of RMM\n", weir_version());
    while (good && lines_next(lines))
        good = read_log_line(&log);
    good = good && !lines->message[0];
    if (good && log.next_id == 0)
        good = lines_fail(lines, "the log ends without any allocation");
    if (log.left_out_frees)
        fprintf(trace, "# %" PRIu64 " frees left out: their blocks are unknown\n",
                log.left_out_frees);
    if (log.added_frees)
        fprintf(trace, "# %" PRIu64 " frees added: the address was allocated again\n",
                log.added_frees);
    if (log.back)
        fprintf(trace, "# %" PRIu64 " times replaced by the time before: they were earlier\n",
                log.back);
    memory_free_values(&log.blocks);
    weir__map_clear(&log.streams);
    weir__map_clear(&log.threads);
    return good;
}

const struct format format_rmm = {is_rmm_log, write_trace_of_log};
