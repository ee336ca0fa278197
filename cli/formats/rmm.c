/* SPDX-License-Identifier: MIT */
/* rmm.c: the log of RMM's logging_resource_adaptor (github.com/rapidsai/rmm):
 *
 *     Thread,Time,Action,Pointer,Size,Stream
 *     1234,11:19:04.000123,allocate,0x7f0000000000,1000000,0x0
 *
 * Time is that of the day; Action allocate, allocate failure (Pointer is (nil) then) or free.
 * A free of what was not allocated here is left out, and a pointer that is handed out again is freed first, as
 * `weir record' has it. */
#include "cli/formats/conversion.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#define DAY_US UINT64_C(86400000000)

enum { THREAD, TIME, ACTION, POINTER, SIZE, STREAM, COLUMNS };
static const char *const names[COLUMNS] = {"Thread", "Time", "Action", "Pointer", "Size", "Stream"};

struct block {
    uint64_t id, bytes, stream;
};

int rmm_is(const char *first_line) {
    return strstr(first_line, names[ACTION]) && strstr(first_line, names[POINTER]) &&
           strstr(first_line, names[SIZE]);
}

/* While a log is read. */
struct reading {
    struct conversion *conversion;
    size_t columns[COLUMNS];
    struct weir_map blocks;  /* pointer -> struct block */
    struct weir_map streams; /* handle + 1 -> number + 1 */
    struct weir_map threads;
    uint64_t next_id, unknown, gone, back;
    uint64_t first_us, days_us, of_day_us, last_us;
    int has_time;
};

/* From 1, in the order in which they come; 0: no memory. */
static uint64_t number_of(struct weir_map *map, uint64_t value) {
    uintptr_t number;

    if (weir__map_get(map, value + 1, &number))
        return number;
    return weir__map_put(map, value + 1, map->count + 1) ? map->count : 0;
}

/* Digits from *text on, up to so many: their value, and how many there were. */
static unsigned take_digits(const char **text, size_t most, size_t *count) {
    unsigned value = 0;

    for (*count = 0; *count < most && **text >= '0' && **text <= '9'; (*count)++)
        value = value * 10 + (unsigned)(*(*text)++ - '0');
    return value;
}

/* "11:19:04.000123" in microseconds: behind the point is a part of a second, behind the colon of older logs are
 * microseconds.  1, or 0: it is no time. */
static int read_time(const char *text, uint64_t *us) {
    static const unsigned most[] = {23, 59, 60};
    size_t digits;
    uint64_t now = 0;
    char point;

    for (int i = 0; i < 3; i++) {
        unsigned part = take_digits(&text, 2, &digits);

        if (digits == 0 || part > most[i] || (i < 2 && *text++ != ':'))
            return 0;
        now = now * 60 + part;
    }
    now *= 1000000;
    point = *text;
    if (point == '.' || point == ':') {
        unsigned part = (text++, take_digits(&text, 6, &digits));

        if (digits == 0)
            return 0;
        for (; point == '.' && digits < 6; digits++)
            part *= 10;
        now += part;
        if (point == '.') /* finer than that is left out */
            (void)take_digits(&text, 3, &digits);
    }
    *us = now;
    return *text == '\0';
}

/* Since the first line, and never back, but past midnight. */
static int take_time(struct reading *reading, uint64_t *time_us) {
    struct lines *lines = &reading->conversion->lines;
    const char *text = lines->fields[reading->columns[TIME]];
    uint64_t now;

    if (!read_time(text, &now))
        return lines_refuse(lines, "Time \"%.40s\" is none, such as 11:19:04.000123", text);
    if (!reading->has_time)
        reading->first_us = now;
    else if (now + DAY_US / 2 < reading->of_day_us)
        reading->days_us += DAY_US;
    reading->has_time = 1;
    reading->of_day_us = now;
    now += reading->days_us;
    reading->back += now < reading->first_us + reading->last_us;
    now = now > reading->first_us ? now - reading->first_us : 0;
    reading->last_us = now > reading->last_us ? now : reading->last_us;
    *time_us = reading->last_us;
    return 1;
}

static void say_block(const struct reading *reading, uint64_t time_us, char operation,
                      const struct block *block, uint64_t thread) {
    convert_say(reading->conversion,
                "%" PRIu64 " %c %" PRIu64 " %" PRIu64 " %" PRIu64 " tid=%" PRIu64 "\n", time_us,
                operation, block->id, block->bytes, block->stream, thread);
}

static int end_block(struct reading *reading, uint64_t pointer, uint64_t time_us, uint64_t thread,
                     const uint64_t *stream) {
    uintptr_t value;
    struct block *block;

    if (!weir__map_take(&reading->blocks, pointer, &value))
        return 0;
    block = (struct block *)value;
    if (stream)
        block->stream = *stream;
    say_block(reading, time_us, 'f', block, thread);
    free(block);
    return 1;
}

static int begin_block(struct reading *reading, uint64_t pointer, const struct block *like,
                       uint64_t time_us, uint64_t thread) {
    struct block *block = malloc(sizeof *block);

    reading->gone += (uint64_t)end_block(reading, pointer, time_us, thread, NULL);
    if (!block || !weir__map_put(&reading->blocks, pointer, (uintptr_t)block)) {
        free(block);
        reading->conversion->failed = ENOMEM;
        return 0;
    }
    *block = *like;
    say_block(reading, time_us, 'a', block, thread);
    return 1;
}

static int take_line(struct reading *reading) {
    struct lines *lines = &reading->conversion->lines;
    const size_t *columns = reading->columns;
    uint64_t thread, pointer = 0, handle, time_us = 0;
    const char *action;
    struct block block;

    for (size_t i = 0; i < COLUMNS; i++)
        if (columns[i] >= lines->count)
            return lines_refuse(lines, "%s is missing", names[i]);
    action = lines->fields[columns[ACTION]];
    if (strcmp(lines->fields[columns[POINTER]], "(nil)") != 0 &&
        !lines_number(lines, columns[POINTER], "Pointer", UINT64_MAX - 1, &pointer))
        return 0;
    if (!take_time(reading, &time_us) ||
        !lines_number(lines, columns[THREAD], "Thread", UINT64_MAX - 1, &thread) ||
        !lines_number(lines, columns[SIZE], "Size", INT64_MAX, &block.bytes) ||
        !lines_number(lines, columns[STREAM], "Stream", UINT64_MAX - 1, &handle))
        return 0;
    thread = number_of(&reading->threads, thread);
    block.stream = number_of(&reading->streams, handle) - 1;
    if (strcmp(action, "free") == 0) {
        reading->unknown += !end_block(reading, pointer, time_us, thread, &block.stream) && pointer;
        return 1;
    }
    if (strcmp(action, "allocate") == 0 && !pointer) /* of nothing */
        return 1;
    block.id = reading->next_id++;
    if (strcmp(action, "allocate") == 0)
        return begin_block(reading, pointer, &block, time_us, thread);
    if (strcmp(action, "allocate failure") != 0)
        return lines_refuse(lines, "Action \"%.40s\" is none of allocate, allocate failure, free",
                            action);
    say_block(reading, time_us, 'x', &block, thread);
    return 1;
}

int rmm_read(struct conversion *conversion) {
    struct reading reading = {.conversion = conversion};
    struct lines *lines = &conversion->lines;
    int good = convert_columns(lines, names, COLUMNS, COLUMNS, reading.columns);

    convert_say(conversion, "# weir-trace 1\n# weir %s converted a log of RMM\n", weir_version());
    while (good && lines_cut(lines))
        good = take_line(&reading);
    good = good && !lines->message[0];
    if (good && reading.next_id == 0)
        good = lines_refuse(lines, "the log ends without any allocation");
    if (reading.unknown)
        convert_say(conversion, "# %" PRIu64 " frees left out: of no block that was seen\n",
                    reading.unknown);
    if (reading.gone)
        convert_say(conversion, "# %" PRIu64 " frees added: the address was allocated again\n",
                    reading.gone);
    if (reading.back)
        convert_say(conversion, "# %" PRIu64 " times taken as the one before: they ran back\n",
                    reading.back);
    for (size_t i = 0; i < reading.blocks.capacity; i++)
        if (reading.blocks.slots[i].key)
            free((void *)reading.blocks.slots[i].value);
    weir__map_clear(&reading.blocks);
    weir__map_clear(&reading.streams);
    weir__map_clear(&reading.threads);
    return good;
}

/* Pointers are made up of ids. */
int rmm_write(struct conversion *conversion) {
    weir_trace_event event;

    convert_say(conversion, "Thread,Time,Action,Pointer,Size,Stream\n");
    while (convert_next(conversion, &event)) {
        uint64_t of_day = event.time_us % DAY_US;
        char thread[24], pointer[24] = "(nil)";

        if (event.operation != 'a' && event.operation != 'f' && event.operation != 'x') {
            conversion->left_out++;
            continue;
        }
        if (!weir_trace_field(conversion->reader, "tid", thread, sizeof thread))
            snprintf(thread, sizeof thread, "1");
        if (event.operation != 'x')
            snprintf(pointer, sizeof pointer, "0x%" PRIx64, event.id + 1);
        convert_say(conversion,
                    "%s,%02" PRIu64 ":%02" PRIu64 ":%02" PRIu64 ".%06" PRIu64 ",%s,%s,%" PRIu64
                    ",0x%" PRIx64 "\n",
                    thread, of_day / 3600000000, of_day / 60000000 % 60, of_day / 1000000 % 60,
                    of_day % 1000000,
                    event.operation == 'a'   ? "allocate"
                    : event.operation == 'f' ? "free"
                                             : "allocate failure",
                    pointer, event.bytes, event.stream);
    }
    return 1;
}
