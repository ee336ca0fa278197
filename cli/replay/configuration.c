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

/* What JAX preallocates by default. */
static const weir_amount jax_fraction = {750000, WEIR_AMOUNT_OF_TOTAL, 0};

static void choose_pool_prealloc_75(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_POOL;
    options->prealloc = jax_fraction;
}

static void choose_pool_threshold(const struct session *session, weir_options *options) {
    options->engine = WEIR_ENGINE_POOL;
    options->release_threshold = (weir_amount){session->live_peak_bytes / 2, WEIR_AMOUNT_BYTES, 0};
}

/* The limit is the size of the arena; session->limit may replace it. */
static void choose_bfc_fixed(const struct session *session, weir_options *options) {
    (void)session;
    options->engine = WEIR_ENGINE_BFC;
    options->arena = WEIR_ARENA_FIXED;
    options->limit = jax_fraction;
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
    .figures = raw_figures, .reserved = raw_reserved, .options = raw_options, .close = raw_close

#define PUBLIC                                                                                     \
    .open = public_open, .alloc = public_alloc, .free = public_free, .use = public_use,            \
    .figures = public_figures, .reserved = public_reserved, .steps = public_steps,                 \
    .options = public_options, .latency = public_latency, .verdict = public_oom_report,            \
    .front = public_caches, .close = public_close

#define RESERVES_75 "it reserves 75% of the device, whatever runs"

const struct configuration configurations[] = {
    {.name = "driver", .what = "CUDA's pool, release threshold 0 (its default)", RAW},
    {.name = "driver-keep",
     .what = "CUDA's pool, release threshold max",
     RAW,
     .release_threshold_max = 1},
    {.name = "pool", .what = "weir's pool engine, no preallocation", PUBLIC, .choose = choose_pool},
    {.name = "pool-prealloc",
     .what = "pool, preallocating the trace's peak requested memory",
     PUBLIC,
     .foreknows = 1,
     .choose = choose_pool_prealloc},
    {.name = "pool-prealloc-75",
     .what = "pool, preallocating 75% of the device, as JAX does",
     .unusable = RESERVES_75,
     PUBLIC,
     .choose = choose_pool_prealloc_75},
    {.name = "pool-threshold",
     .what = "pool, release threshold of half that peak",
     PUBLIC,
     .foreknows = 1,
     .choose = choose_pool_threshold},
    {.name = "bfc-75",
     .what = "weir's bfc engine, one arena of 75% of the device",
     .unusable = RESERVES_75,
     PUBLIC,
     .choose = choose_bfc_fixed},
    {.name = "bfc-least",
     .what = "bfc, one arena of the smallest size that serves the trace",
     PUBLIC,
     .least = 1,
     .foreknows = 1,
     .choose = choose_bfc_fixed},
    {.name = "bfc", .what = "bfc, growing by doubling regions", PUBLIC, .choose = choose_bfc},
    {.name = "mapped",
     .what = "weir's default: memory mapped where it is wanted",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_balanced},
    {.name = "direct",
     .what = "one cuMemAlloc and cuMemFree for each block",
     .unusable = "it calls the driver for each block",
     PUBLIC,
     .choose = choose_direct},
    {.name = "mapped-compact",
     .what = "mapped, packing compact: less reserved memory",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_fit,
     .by_name_only = 1},
    {.name = "mapped-fast",
     .what = "mapped, packing fast: fewer growths and moves",
     PUBLIC,
     .needs_virtual = 1,
     .choose = choose_mapped_fast,
     .by_name_only = 1},
    {.name = "driver-warm",
     .what = "driver-keep, the requested peak allocated and freed before",
     RAW,
     .release_threshold_max = 1,
     .primed = 1,
     .by_name_only = 1},
    {.name = "pool-unchecked",
     .what = "pool, without checks of streams",
     PUBLIC,
     .choose = choose_pool_unchecked,
     .by_name_only = 1},
    {.name = "mapped-trusted",
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
     .what = "mapped, preallocating what a run before needed",
     PUBLIC,
     .choose = choose_mapped_learned,
     .learns = 1,
     .needs_virtual = 1,
     .by_name_only = 1},
    {.name = "pool-ahead",
     .what = "pool, an eighth to a quarter of that peak kept idle",
     PUBLIC,
     .choose = choose_pool_grow_ahead,
     .by_name_only = 1},
    {.name = "mapped-ahead",
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
        if (strcmp(name, c->name) == 0)
            return c;
    return NULL;
}

const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device) {
    int can = 0;

    if (!configuration->needs_virtual)
        return NULL;
    if ((driver->capabilities & WEIR_CAP_VIRTUAL) &&
        driver->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                     device) == CUDA_SUCCESS &&
        can)
        return NULL;
    return "memory mapped by handles";
}
