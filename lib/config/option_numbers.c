/* SPDX-License-Identifier: MIT */
/* option_numbers.c: options whose value is a time or a count. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define LARGEST_EVENT_RING 1048576
#define LARGEST_PRIORITY 1000
#define NO_WAIT UINT32_MAX

/* ---- times ---- */

/* "250", "250ms", "2s"; less than UINT32_MAX, which the struct has for what is no time. */
static int milliseconds_read(const char *text, uint32_t *out, struct weir_problem *problem) {
    char digits[24];
    size_t length = strspn(text, "0123456789");
    uint64_t value, factor = 1;

    if (strcasecmp(text + length, "s") == 0)
        factor = 1000;
    else if (text[length] != '\0' && strcasecmp(text + length, "ms") != 0)
        return weir__problem(problem, *text == '-' ? "it is negative"
                                                   : "it is not a whole number with ms or s");
    snprintf(digits, sizeof digits, "%.*s", (int)(length < sizeof digits ? length : 23), text);
    if (!weir__count_read(digits, (UINT32_MAX - 1) / factor, &value, problem))
        return 0;
    *out = (uint32_t)(value * factor);
    return 1;
}

static void milliseconds_spell(uint32_t value, char *text, size_t bytes) {
    if (value % 1000 == 0)
        snprintf(text, bytes, "%us", value / 1000);
    else
        snprintf(text, bytes, "%ums", value);
}

/* Text says 0 for "do not wait", which the struct says as NO_WAIT. */
static int timeout_read(const struct weir_option_row *row, const char *text, weir_options *options,
                        struct weir_problem *problem) {
    uint32_t value;

    if (!milliseconds_read(text, &value, problem))
        return 0;
    *(uint32_t *)mutable_field(row, options) = value == 0 ? NO_WAIT : value;
    return 1;
}

static void timeout_spell(const struct weir_option_row *row, const weir_options *options,
                          char *text, size_t bytes) {
    uint32_t value = *(const uint32_t *)field(row, options);

    if (value == NO_WAIT)
        snprintf(text, bytes, "0");
    else
        milliseconds_spell(value, text, bytes);
}

static int number_is_set(const struct weir_option_row *row, const weir_options *options) {
    return *(const uint32_t *)field(row, options) != 0;
}

/* Every number of milliseconds means something. */
static int time_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    (void)row;
    (void)options;
    (void)problem;
    return 1;
}

const struct weir_option_kind weir__option_timeout = {timeout_read, timeout_spell, number_is_set,
                                                      time_check};

/* A time or "never"; `zero` says what is wrong with 0. */
static int read_unless_never(const struct weir_option_row *row, const char *text,
                             weir_options *options, const char *zero,
                             struct weir_problem *problem) {
    uint32_t value = WEIR_NEVER;

    if (strcasecmp(text, "never") != 0 && !milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "%s", zero);
    *(uint32_t *)mutable_field(row, options) = value;
    return 1;
}

static int idle_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    return read_unless_never(row, text, options,
                             "a time of 0 keeps nothing: set cache-limit to 0 for that", problem);
}

static void idle_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                       size_t bytes) {
    uint32_t value = *(const uint32_t *)field(row, options);

    if (value == WEIR_NEVER)
        snprintf(text, bytes, "never");
    else
        milliseconds_spell(value, text, bytes);
}

static int deadline_read(const struct weir_option_row *row, const char *text, weir_options *options,
                         struct weir_problem *problem) {
    return read_unless_never(row, text, options,
                             "a time of 0 gets nothing: set prealloc to 0 for that", problem);
}

const struct weir_option_kind weir__option_idle = {idle_read, idle_spell, number_is_set,
                                                   time_check};

const struct weir_option_kind weir__option_deadline = {deadline_read, idle_spell, number_is_set,
                                                       time_check};

/* The struct says "off" as for ever. */
static int decay_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      struct weir_problem *problem) {
    uint64_t *half_life = mutable_field(row, options);
    uint32_t value = 0;

    if (strcasecmp(text, "off") == 0) {
        *half_life = WEIR_NO_DECAY;
        return 1;
    }
    if (!milliseconds_read(text, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "a half-life of 0 leaves nothing");
    *half_life = value;
    return 1;
}

static void decay_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                        size_t bytes) {
    uint64_t value = *(const uint64_t *)field(row, options);

    if (value == WEIR_NO_DECAY)
        snprintf(text, bytes, "off");
    else
        milliseconds_spell((uint32_t)value, text, bytes);
}

static int decay_is_set(const struct weir_option_row *row, const weir_options *options) {
    return *(const uint64_t *)field(row, options) != 0;
}

static int decay_check(const struct weir_option_row *row, const weir_options *options,
                       struct weir_problem *problem) {
    uint64_t value = *(const uint64_t *)field(row, options);

    return value < UINT32_MAX || value == WEIR_NO_DECAY || weir__problem(problem, "it is too long");
}

const struct weir_option_kind weir__option_decay = {decay_read, decay_spell, decay_is_set,
                                                    decay_check};

/* ---- counts ---- */

/* From 1 to `most`. */
static int count_read(const struct weir_option_row *row, const char *text, weir_options *options,
                      uint64_t most, struct weir_problem *problem) {
    uint64_t value;

    if (!weir__count_read(text, most, &value, problem))
        return 0;
    if (value == 0)
        return weir__problem(problem, "it is too small");
    *(uint32_t *)mutable_field(row, options) = (uint32_t)value;
    return 1;
}

static int count_check(const struct weir_option_row *row, const weir_options *options,
                       uint64_t most, struct weir_problem *problem) {
    return *(const uint32_t *)field(row, options) <= most ||
           weir__problem(problem, "it is too large");
}

static void count_spell(const struct weir_option_row *row, const weir_options *options, char *text,
                        size_t bytes) {
    snprintf(text, bytes, "%u", *(const uint32_t *)field(row, options));
}

static int ring_read(const struct weir_option_row *row, const char *text, weir_options *options,
                     struct weir_problem *problem) {
    return count_read(row, text, options, LARGEST_EVENT_RING, problem);
}

static int ring_check(const struct weir_option_row *row, const weir_options *options,
                      struct weir_problem *problem) {
    return count_check(row, options, LARGEST_EVENT_RING, problem);
}

const struct weir_option_kind weir__option_ring = {ring_read, count_spell, number_is_set,
                                                   ring_check};

static int priority_read(const struct weir_option_row *row, const char *text, weir_options *options,
                         struct weir_problem *problem) {
    return count_read(row, text, options, LARGEST_PRIORITY, problem);
}

static int priority_check(const struct weir_option_row *row, const weir_options *options,
                          struct weir_problem *problem) {
    return count_check(row, options, LARGEST_PRIORITY, problem);
}

const struct weir_option_kind weir__option_priority = {priority_read, count_spell, number_is_set,
                                                       priority_check};
