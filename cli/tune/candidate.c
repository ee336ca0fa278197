/* SPDX-License-Identifier: MIT */
/* candidate.c: see candidate.h. */
#include "cli/tune/candidate.h"

#include <string.h>

/* Mapped memory and pools are cut in such units, so a preallocation is of whole ones. */
static const uint64_t unit = UINT64_C(2) << 20, least_step = UINT64_C(32) << 20;
enum { STEPS_OF_PEAK = 16 };

const char *const base_names[BASES] = {"mapped", "mapped-compact", "mapped-fast", "pool", "bfc"};

static const char *const engines[BASES] = {"mapped", "mapped", "mapped", "pool", "bfc"};
static const char *const packings[BASES] = {NULL, "compact", "fast", NULL, NULL};
static const char *const cache_limits[] = {NULL, "0", "max"};

enum { PREALLOC_PEAK = 1, PREALLOC_RESERVED };

int candidate_values(const struct candidate *candidate, enum axis axis) {
    switch (axis) {
    case AXIS_BASE:
        return BASES;
    case AXIS_PREALLOC:
        return PREALLOC_RESERVED + 1;
    case AXIS_CACHE:
        return sizeof cache_limits / sizeof cache_limits[0];
    case AXIS_THRESHOLD: /* mapped and bfc keep what is idle at a synchronisation */
        return strcmp(engines[candidate->value[AXIS_BASE]], "pool") == 0 ? 2 : 1;
    default:
        return 2;
    }
}

int candidate_is(const struct candidate *a, const struct candidate *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static uint64_t whole_units(uint64_t bytes) {
    return (bytes + unit - 1) / unit * unit;
}

static void add(struct candidate_setting *settings, size_t *count, enum weir_setting setting,
                const char *text) {
    settings[*count].setting = setting;
    snprintf(settings[(*count)++].text, sizeof settings->text, "%s", text);
}

static void add_bytes(struct candidate_setting *settings, size_t *count, enum weir_setting setting,
                      const char *before, uint64_t bytes) {
    char amount[WEIR_SPELL_BYTES / 2], text[WEIR_SPELL_BYTES];

    weir__bytes_spell(bytes, amount, sizeof amount);
    snprintf(text, sizeof text, "%s%s", before, amount);
    add(settings, count, setting, text);
}

static uint64_t prealloc_of(const struct candidate *candidate, const struct space *space) {
    uint64_t bytes = whole_units(candidate->value[AXIS_PREALLOC] == PREALLOC_PEAK
                                     ? space->live_peak
                                     : space->reserved_peak[candidate->value[AXIS_BASE]]);

    return space->limit && bytes > space->limit ? space->limit : bytes;
}

size_t candidate_settings(const struct candidate *candidate, const struct space *space,
                          struct candidate_setting settings[AXES + 1]) {
    int base = candidate->value[AXIS_BASE];
    uint64_t step = whole_units(space->live_peak / STEPS_OF_PEAK);
    size_t count = 0;

    add(settings, &count, WEIR_SETTING_ENGINE, engines[base]);
    if (packings[base])
        add(settings, &count, WEIR_SETTING_PACKING, packings[base]);
    if (candidate->value[AXIS_PREALLOC])
        add_bytes(settings, &count, WEIR_SETTING_PREALLOC, "", prealloc_of(candidate, space));
    if (candidate->value[AXIS_GROWTH])
        add_bytes(settings, &count, WEIR_SETTING_GROWTH,
                  "step:", step > least_step ? step : least_step);
    if (candidate->value[AXIS_CACHE])
        add(settings, &count, WEIR_SETTING_FRONT_CACHE, cache_limits[candidate->value[AXIS_CACHE]]);
    if (candidate->value[AXIS_THRESHOLD])
        add_bytes(settings, &count, WEIR_SETTING_RELEASE_THRESHOLD, "",
                  whole_units(space->live_peak));
    return count;
}

void candidate_apply(const struct candidate *candidate, const struct space *space,
                     weir_options *options) {
    struct candidate_setting settings[AXES + 1];
    size_t count = candidate_settings(candidate, space, settings);

    for (size_t i = 0; i < count; i++)
        (void)weir__option_set(options, settings[i].setting, NULL, settings[i].text, NULL, 0);
}

void candidate_print(FILE *file, const struct candidate *candidate, const struct space *space) {
    struct candidate_setting settings[AXES + 1];
    size_t count = candidate_settings(candidate, space, settings);

    for (size_t i = 0; i < count; i++)
        fprintf(file, " --%s %s", weir__setting_row(settings[i].setting)->name, settings[i].text);
}
