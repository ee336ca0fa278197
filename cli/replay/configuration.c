/* SPDX-License-Identifier: MIT */
/* configuration.c: the table of configurations, and what each one's settings are. */
#include "cli/replay/configuration.h"

#include <string.h>

/* Everything as given: `weir replay`. */
static void choose_given(const struct session *session, weir_options *options) {
    *options = *session->given;
}

static void choose_direct(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_DIRECT;
}

static void choose_pool(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_POOL;
}

static void choose_pool_unchecked(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_POOL;
    options->stream_checks = WEIR_SWITCH_OFF;
}

static void choose_pool_prealloc(const struct session *session, weir_options *options) {
    options->engine = WEIR_ENGINE_POOL;
    options->prealloc = (weir_amount){session->live_peak_bytes, WEIR_AMOUNT_BYTES, 0};
}

static void choose_bfc_fixed(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_BFC;
    options->arena = WEIR_ARENA_FIXED;
    options->limit = (weir_amount){750000, WEIR_AMOUNT_OF_TOTAL, 0};
}

static void choose_bfc(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_BFC;
    options->arena = WEIR_ARENA_REGIONS;
    options->growth = WEIR_GROWTH_BFC;
}

static void choose_mapped(weir_options *options, int packing) {
    options->engine = WEIR_ENGINE_MAPPED;
    options->packing = packing;
}

static void choose_mapped_balanced(const struct session *session, weir_options *options) {
    (void)session;
    choose_mapped(options, WEIR_PACKING_BALANCED);
}

static void choose_mapped_vouched(const struct session *session, weir_options *options) {
    (void)session;
    choose_mapped(options, WEIR_PACKING_BALANCED);
    options->stream_checks = WEIR_SWITCH_OFF;
}

static void choose_mapped_fit(const struct session *session, weir_options *options) {
    (void)session;
    choose_mapped(options, WEIR_PACKING_COMPACT);
}

static void choose_mapped_fast(const struct session *session, weir_options *options) {
    (void)session;
    choose_mapped(options, WEIR_PACKING_FAST);
}

static void choose_pool_learned(const struct session *session, weir_options *options) {
    options->engine = WEIR_ENGINE_POOL;
    options->profile = session->given->profile;
}

static void choose_mapped_learned(const struct session *session, weir_options *options) {
    options->engine = WEIR_ENGINE_MAPPED;
    options->profile = session->given->profile;
}

/* Idle, in the background: an eighth of the peak requested memory, up to a quarter. */
static void choose_grow_ahead(const struct session *session, weir_options *options) {
    options->headroom = (weir_amount){session->live_peak_bytes / 8, WEIR_AMOUNT_BYTES, 0};
    options->headroom_high = (weir_amount){session->live_peak_bytes / 4, WEIR_AMOUNT_BYTES, 0};
}

static void choose_pool_grow_ahead(const struct session *session, weir_options *options) {
    options->engine = WEIR_ENGINE_POOL;
    choose_grow_ahead(session, options);
}

static void choose_mapped_grow_ahead(const struct session *session, weir_options *options) {
    choose_mapped(options, WEIR_PACKING_BALANCED);
    choose_grow_ahead(session, options);
}

#define RAW                                                                                        \
    .open = raw_open, .alloc = raw_alloc, .free = raw_free, .use = raw_use,                        \
    .after_slow = raw_after_slow, .figures = raw_figures, .watch = raw_figures,                    \
    .options = raw_options, .close = raw_close

#define PUBLIC                                                                                     \
    .open = public_open, .alloc = public_alloc, .free = public_free, .use = public_use,            \
    .figures = public_figures, .watch = public_watch, .steps = public_steps,                       \
    .options = public_options, .latency = public_latency, .verdict = public_oom_report,            \
    .front = public_caches, .close = public_close

const struct configuration configurations[] = {
    {.name = "driver",
     .what = "the driver's pool, release threshold 0 (its default)",
     RAW,
     .has_threshold = 1},
    {.name = "driver-keep",
     .what = "the driver's pool, release threshold max",
     RAW,
     .release_threshold_max = 1},
    {.name = "direct",
     .was = "platform",
     .what = "one cuMemAlloc and cuMemFree per block",
     PUBLIC,
     .choose = choose_direct},
    {.name = "pool",
     .what = "weir's pool engine, defaults",
     PUBLIC,
     .has_threshold = 1,
     .choose = choose_pool},
    {.name = "pool-prealloc",
     .what = "the same, preallocating the trace's peak requested memory",
     PUBLIC,
     .choose = choose_pool_prealloc},
    {.name = "bfc-fixed",
     .was = "arena-fixed",
     .what = "weir's BFC, one arena of 75% of the device",
     PUBLIC,
     .choose = choose_bfc_fixed},
    {.name = "bfc",
     .was = "arena-grow",
     .what = "weir's BFC, growing by doubling regions",
     PUBLIC,
     .choose = choose_bfc},
    {.name = "mapped",
     .was = "arena-mapped",
     .what = "weir's default: memory mapped where it is wanted",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_balanced},
    {.name = "mapped-compact",
     .was = "arena-fit",
     .what = "the same, packing compact: less reserved memory",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_fit},
    {.name = "mapped-fast",
     .was = "arena-fast",
     .what = "the same, packing fast: fewer growths and moves",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_fast},
    {.name = "driver-warm",
     .was = "driver-primed",
     .what = "driver-keep, the requested peak allocated and freed before",
     RAW,
     .release_threshold_max = 1,
     .primed = 1,
     .by_name_only = 1},
    {.name = "pool-unchecked",
     .what = "pool, without checks of streams",
     PUBLIC,
     .has_threshold = 1,
     .choose = choose_pool_unchecked,
     .by_name_only = 1},
    {.name = "mapped-trusted",
     .was = "arena-vouched",
     .what = "mapped, without checks of streams",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_vouched,
     .by_name_only = 1},
    {.name = "pool-learned",
     .what = "pool, preallocating what a run before needed",
     PUBLIC,
     .choose = choose_pool_learned,
     .learns = 1,
     .by_name_only = 1},
    {.name = "mapped-learned",
     .was = "arena-learned",
     .what = "mapped, preallocating what a run before needed",
     PUBLIC,
     .choose = choose_mapped_learned,
     .learns = 1,
     .needs_virtual = 1,
     .by_name_only = 1},
    {.name = "pool-ahead",
     .was = "pool-headroom",
     .what = "pool, an eighth to a quarter of that peak kept idle",
     PUBLIC,
     .choose = choose_pool_grow_ahead,
     .by_name_only = 1},
    {.name = "mapped-ahead",
     .was = "arena-headroom",
     .what = "mapped, the same kept idle",
     PUBLIC,
     .choose = choose_mapped_grow_ahead,
     .needs_virtual = 1,
     .by_name_only = 1},
    {.name = NULL},
};

static const struct configuration given = {
    .name = "replay", PUBLIC, .is_given = 1, .choose = choose_given};

const struct configuration *configuration_find(const char *name) {
    if (strcmp(name, given.name) == 0)
        return &given;
    for (const struct configuration *c = configurations; c->name; c++)
        if (strcmp(name, c->name) == 0 || (c->was && strcmp(name, c->was) == 0))
            return c;
    return NULL;
}

const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device, int limited) {
    int can = 0;

    if (limited && !configuration->choose && !(driver->capabilities & WEIR_CAP_POOL_MAX_SIZE))
        return "pools with a limit (driver 12.2)";
    if (!configuration->needs_virtual)
        return NULL;
    if ((driver->capabilities & WEIR_CAP_VIRTUAL) &&
        driver->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                     device) == CUDA_SUCCESS &&
        can)
        return NULL;
    return "memory mapped by handles";
}
