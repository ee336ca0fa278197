/* SPDX-License-Identifier: MIT */
/* configuration.c: the table of configurations; see configuration.h. */
#include "cli/replay/configuration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/flags.h"

static const char from_the_trace[] =
    "a setting comes from the trace, which a program does not know before";
static const char reserves_75[] = "75% of the device is reserved, whatever runs";

/* Fields of a row whose allocator is weir.  WEIR uses the settings `text'.  MAPPED adds settings to engine=mapped. */
#define MAPPED(more) .kind = &weir_kind, .settings = "engine=mapped" more, .needs_virtual = 1
#define WEIR(text) .kind = &weir_kind, .settings = text

const struct configuration configurations[] = {
    {"driver", "CUDA's pool, release threshold 0 (its default)", .kind = &driver_pool_kind},
    {"driver-keep", "CUDA's pool, release threshold max", .kind = &driver_pool_kind,
     .release_threshold_max = 1},
    {"pool", "weir's pool engine, no preallocation", WEIR("engine=pool")},
    {"pool-prealloc", "pool, preallocating the trace's peak requested memory",
     WEIR("engine=pool,prealloc=@8"), .unusable = from_the_trace},
    {"pool-prealloc-75", "pool, preallocating 75% of the device, as JAX does",
     WEIR("engine=pool,prealloc=75%"), .unusable = reserves_75},
    {"pool-threshold", "pool, release threshold of half that peak",
     WEIR("engine=pool,release-threshold=@4"), .unusable = from_the_trace},
    {"bfc-75", "weir's engine bfc-fixed, 75% of the device", WEIR("engine=bfc-fixed,limit=75%"),
     .unusable = reserves_75},
    {"bfc-least", "bfc-fixed, the smallest size that serves the trace", WEIR("engine=bfc-fixed"),
     .needs_smallest_limit = 1, .unusable = from_the_trace},
    {"bfc", "bfc, growing by doubling regions", WEIR("engine=bfc,growth=bfc")},
    {"mapped", "weir's default: memory mapped where it is wanted", MAPPED("")},
    {"direct", "one cuMemAlloc and cuMemFree for each block", WEIR("engine=direct"),
     .unusable = "each block is a call of the driver"},
    {"driver-warm", "driver-keep, the requested peak allocated and freed before",
     .kind = &driver_pool_kind, .release_threshold_max = 1, .is_warmed_up = 1,
     .unusable = from_the_trace, .by_name_only = 1},
    {"pool-unchecked", "pool, without checks of streams", WEIR("engine=pool,stream-checks=off"),
     .by_name_only = 1},
    {"mapped-trusted", "mapped, without checks of streams", MAPPED(",stream-checks=off"),
     .by_name_only = 1},
    {"pool-learned", "pool, preallocating what a run before needed", WEIR("engine=pool"),
     .has_learning_run = 1, .by_name_only = 1},
    {"mapped-learned", "mapped, preallocating what a run before needed", MAPPED(""),
     .has_learning_run = 1, .by_name_only = 1},
    {"pool-ahead", "pool, an eighth to a quarter of that peak kept idle",
     WEIR("engine=pool,grow-ahead=@1"), .unusable = from_the_trace, .by_name_only = 1},
    {"mapped-ahead", "mapped, the same kept idle", MAPPED(",grow-ahead=@1"),
     .unusable = from_the_trace, .by_name_only = 1},
    {.name = NULL},
};

static const struct configuration replay_configuration = {"replay", NULL, WEIR(""),
                                                          .uses_command_options = 1};

const struct configuration *configuration_find(const char *name) {
    if (strcmp(name, replay_configuration.name) == 0)
        return &replay_configuration;
    for (const struct configuration *c = configurations; c->name; c++)
        if (strcmp(name, c->name) == 0)
            return c;
    return NULL;
}

int configuration_is_driver(const struct configuration *configuration) {
    return configuration->kind == &driver_pool_kind;
}

/* Copies the value of a setting to `text', with N eighths of `peak' in place of each @N. */
static void expand_setting_value(const char *value, uint64_t peak, char *text, size_t bytes) {
    char spelled[WEIR_SPELL_BYTES];
    size_t length = 0;
    uint64_t eighths;

    for (char *end; *value && length < bytes - 1; value = end) {
        end = (char *)(uintptr_t)value + 1;
        if (*value != '@') {
            text[length++] = *value;
            continue;
        }
        eighths = strtoul(value + 1, &end, 10);
        weir__bytes_spell(peak / 8 * eighths + peak % 8 * eighths / 8, spelled, sizeof spelled);
        length += (size_t)snprintf(text + length, bytes - length, "%s", spelled);
    }
    text[length < bytes ? length : bytes - 1] = '\0';
}

void configuration_choose(const struct configuration *configuration, const struct session *session,
                          weir_options *options) {
    char settings[256], text[2 * WEIR_SPELL_BYTES], *rest = settings, *name;

    if (configuration->uses_command_options) {
        *options = *session->command_options;
        return;
    }
    snprintf(settings, sizeof settings, "%s", configuration->settings);
    while ((name = strsep(&rest, ","))) {
        char *value = strchr(name, '=');

        *value++ = '\0';
        expand_setting_value(value, session->live_peak_bytes, text, sizeof text);
        (void)weir__option_set(options, (enum weir_setting)weir_cli_setting(name, strlen(name)),
                               NULL, text, NULL, 0);
    }
    if (configuration->has_learning_run)
        options->profile = session->command_options->profile;
}

const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device) {
    int can = 0;

    if (configuration->needs_virtual && (driver->capabilities & WEIR_CAP_VIRTUAL))
        (void)driver->cuDeviceGetAttribute(
            &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    return configuration->needs_virtual && !can ? "memory mapped by handles" : NULL;
}
