/* SPDX-License-Identifier: MIT */
/* model_profile.c: reads the built-in profile, then the user's file, which replaces single keys. */
#include "driver/model/model_profile.h"
#include "base/file.h"
#include "driver/model/h200_profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

static const char *const call_names[WEIR_ENTRY_COUNT] = {
#define WEIR_ENTRY(group, name, symbol, version, params, args) #name,
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

/* Reads a decimal number at *text, and moves *text behind it.  Returns 0 on success, else -1. */
static int read_number(const char **text, uint64_t *value) {
    char *end;

    if (!isdigit((unsigned char)**text))
        return -1;
    errno = 0;
    *value = strtoull(*text, &end, 10);
    *text = end;
    return errno ? -1 : 0;
}

static int parse_number(const char *text, uint64_t *value) {
    return read_number(&text, value) == 0 && *text == '\0' ? 0 : -1;
}

static int parse_curve(const char *text, struct model_curve *curve) {
    struct model_curve read = {0};

    while (*text) {
        size_t i = read.count;

        if (i == MODEL_CURVE_POINTS || read_number(&text, &read.x[i]) != 0 || *text++ != ':' ||
            read_number(&text, &read.y[i]) != 0)
            return -1;
        if (i > 0 && (read.x[i] <= read.x[i - 1] || read.y[i] < read.y[i - 1]))
            return -1;
        read.count++;
        while (*text == ' ')
            text++;
    }
    if (read.count == 0)
        return -1;
    *curve = read;
    return 0;
}

/* Sets the field that `key` names.  Returns 0 on success, -1 if the value is malformed, -2 if the key is unknown. */
static int set_key(struct model_profile *profile, const char *key, const char *value) {
    size_t i;

    if (strcmp(key, "name") == 0) {
        size_t bytes = strlen(value) + 1;

        if (bytes < 2 || bytes > sizeof profile->name)
            return -1;
        memcpy(profile->name, value, bytes);
        return 0;
    }
#define MODEL_NUMBER(field)                                                                        \
    if (strcmp(key, #field) == 0)                                                                  \
        return parse_number(value, &profile->field);
    MODEL_PROFILE_NUMBERS(MODEL_NUMBER)
#undef MODEL_NUMBER
#define MODEL_CURVE(field)                                                                         \
    if (strcmp(key, #field) == 0)                                                                  \
        return parse_curve(value, &profile->field);
    MODEL_PROFILE_CURVES(MODEL_CURVE)
#undef MODEL_CURVE
    for (i = 0; i < WEIR_ENTRY_COUNT; i++)
        if (strcmp(key, call_names[i]) == 0)
            return parse_number(value, &profile->call_ns[i]);
    return -2;
}

static char *trim(char *text) {
    size_t bytes;

    while (isspace((unsigned char)*text))
        text++;
    for (bytes = strlen(text); bytes > 0 && isspace((unsigned char)text[bytes - 1]); bytes--)
        ;
    text[bytes] = '\0';
    return text;
}

/* Parses one line, `key = value`, and changes its text.  Returns 0 on success, -1 with the reason in *failure. */
static int parse_line(struct model_profile *profile, char *line, const char *file, unsigned number,
                      struct weir_driver_failure *failure) {
    char *text = trim(line), *equals = strchr(text, '='), *key, *value;
    int result;

    if (*text == '\0' || *text == '#')
        return 0;
    if (!equals) {
        snprintf(failure->text, sizeof failure->text, "%.120s:%u: \"%.60s\" is not `key = value`",
                 file, number, text);
        return -1;
    }
    *equals = '\0';
    key = trim(text);
    value = trim(equals + 1);
    result = set_key(profile, key, value);
    if (result == -2)
        snprintf(failure->text, sizeof failure->text, "%.120s:%u: no figure is called \"%.60s\"",
                 file, number, key);
    else if (result != 0)
        snprintf(failure->text, sizeof failure->text, "%.90s:%u: %.40s: \"%.40s\" is not %s", file,
                 number, key, value, "a number, rising points x:y, or a short name");
    return result ? -1 : 0;
}

static int parse_text(struct model_profile *profile, const char *text, const char *file,
                      struct weir_driver_failure *failure) {
    char line[LINE_BYTES];
    unsigned number = 1;

    for (; *text; number++) {
        size_t bytes = strcspn(text, "\n");

        if (bytes >= sizeof line) {
            snprintf(failure->text, sizeof failure->text, "%.120s:%u: line too long", file, number);
            return -1;
        }
        memcpy(line, text, bytes);
        line[bytes] = '\0';
        if (parse_line(profile, line, file, number, failure) != 0)
            return -1;
        text += bytes + (text[bytes] == '\n');
    }
    return 0;
}

static int parse_file(struct model_profile *profile, const char *path,
                      struct weir_driver_failure *failure) {
    char why[80], *text = weir__file_text(path, why, sizeof why);
    int result = -1;

    if (!text)
        snprintf(failure->text, sizeof failure->text, "cannot read the profile %.110s: %s", path,
                 why);
    else if (!*text)
        snprintf(failure->text, sizeof failure->text,
                 "the profile %.120s is empty; expected lines \"key = value\"", path);
    else
        result = parse_text(profile, text, path, failure);
    free(text);
    return result;
}

static int is_power_of_two(uint64_t value) {
    return value != 0 && (value & (value - 1)) == 0;
}

/* Checks that the model supports all values of the profile.  Returns 0 on success, -1 with the reason in *failure. */
static int check(const struct model_profile *p, const char *file,
                 struct weir_driver_failure *failure) {
    const struct {
        int holds;
        const char *rule;
    } rules[] = {
        {p->driver_version >= WEIR_DRIVER_OLDEST && p->driver_version <= 99990,
         "driver_version must be from 11020 on, as 1000 * major + 10 * minor"},
        {p->devices >= 1 && p->devices <= 16, "devices must be 1 to 16"},
        {is_power_of_two(p->unit_bytes) && p->unit_bytes >= 65536,
         "unit_bytes must be a power of two from 65536 on"},
        {is_power_of_two(p->block_align) && p->block_align >= 256 &&
             p->block_align <= p->unit_bytes,
         "block_align must be a power of two from 256 to unit_bytes"},
        {is_power_of_two(p->page_bytes) && p->page_bytes >= 65536 && p->page_bytes <= 4194304,
         "page_bytes must be a power of two from 65536 to 4194304"},
        {p->small_bytes <= p->page_bytes, "small_bytes must not pass page_bytes"},
        {p->capacity >= p->unit_bytes && p->capacity <= (uint64_t)1 << 44,
         "capacity must be from unit_bytes to 2^44"},
        {p->context_bytes < p->capacity, "context_bytes must be less than capacity"},
        {p->room_factor >= 1 && p->room_factor <= 64, "room_factor must be 1 to 64"},
        {p->pool_alloc_percent <= 100, "pool_alloc_percent must be 0 to 100"},
        {p->memset_bytes_per_us > 0 && p->copy_bytes_per_us > 0,
         "memset_bytes_per_us and copy_bytes_per_us must not be 0"},
        {p->first_stream_id > 0, "first_stream_id must not be 0"},
    };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (!rules[i].holds) {
            snprintf(failure->text, sizeof failure->text, "%.120s: %s", file, rules[i].rule);
            return -1;
        }
    return 0;
}

int weir__model_profile_load(struct model_profile *profile, const char *path,
                             struct weir_driver_failure *failure) {
    *profile = (struct model_profile){0};
    if (parse_text(profile, weir__h200_profile, "h200.profile", failure) != 0)
        return -1;
    if (path && parse_file(profile, path, failure) != 0)
        return -1;
    return check(profile, path ? path : "h200.profile", failure);
}

uint64_t weir__model_curve(const struct model_curve *curve, uint64_t x) {
    size_t i = 1;
    uint64_t dx, dy;

    if (x <= curve->x[0] || curve->count == 1)
        return curve->y[0];
    while (i + 1 < curve->count && x > curve->x[i])
        i++;
    dx = curve->x[i] - curve->x[i - 1];
    dy = curve->y[i] - curve->y[i - 1];
    return curve->y[i - 1] + (uint64_t)((double)(x - curve->x[i - 1]) * (double)dy / (double)dx);
}
