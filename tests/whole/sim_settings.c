/* SPDX-License-Identifier: MIT */
/* sim_settings.c: draws the settings of a world from its seed: the allocator's options, the device, threads, streams,
 * and the weight of each operation. */
#include "sim_world.h"

#include <string.h>

static uint64_t pick_below(uint64_t *state, uint64_t count) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(*state) % count;
}

static const unsigned weights[] = {
#define OPERATION(name, weight, function) weight,
    OPERATIONS(OPERATION)
#undef OPERATION
};

static void draw_chances(struct settings *s, uint64_t *state) {
    unsigned sum = 0, at = 0, own[OP_COUNT];

    for (int i = 0; i < OP_COUNT; i++) { /* from a quarter to four times as often */
        own[i] = weights[i] * (1u << pick_below(state, 5)) / 4;
        sum += own[i];
    }
    for (unsigned i = 0, up_to = own[0]; i < sizeof s->chances; i++) {
        while (at + 1 < OP_COUNT && (uint64_t)i * sum >= (uint64_t)up_to * sizeof s->chances)
            up_to += own[++at];
        s->chances[i] = (uint8_t)at;
    }
}

void sim_draw_settings(struct settings *s, uint64_t seed) {
    static const int kinds[] = {POOL,         POOL,         POOL,          POOL,
                                POOL,         ARENA_FIXED,  ARENA_FIXED,   ARENA_MAPPED,
                                ARENA_MAPPED, ARENA_MAPPED, ARENA_REGIONS, ARENA_REGIONS,
                                DIRECT};
    uint64_t state = sim_mix(seed ^ UINT64_C(0x77656972));

    memset(s, 0, sizeof *s);
    s->kind = kinds[pick_below(&state, sizeof kinds / sizeof kinds[0])];
    s->cache = pick_below(&state, 5) > 0;
    s->checks = pick_below(&state, 6) > 0;
    s->capacity = (uint64_t)(128 * MIB) << pick_below(&state, 5);
    s->limit = pick_below(&state, 3) == 0 ? s->capacity / 4 * (1 + pick_below(&state, 3)) : 0;
    s->growth = (int)pick_below(&state, 7);
    s->threshold = (int)pick_below(&state, 4);
    s->cache_limit = (int)pick_below(&state, 6);
    s->patience = (int)pick_below(&state, 3);
    s->threads = 1 + (unsigned)pick_below(&state, THREADS);
    s->streams = 1 + (unsigned)pick_below(&state, STREAMS - 1);
    s->legacy = pick_below(&state, 4) == 0;
    s->faults = pick_below(&state, 4) == 0;
    s->sizes = (unsigned)pick_below(&state, 6);
    s->few = (unsigned[]){0, 0, 3, 12}[pick_below(&state, 4)];
    if (s->sizes < 2 && pick_below(&state, 3) == 0)
        s->harden = (uint64_t[]){WEIR_HARDEN_POISON, WEIR_HARDEN_GUARD, WEIR_HARDEN_ZERO_STREAM,
                                 WEIR_HARDEN_POISON | WEIR_HARDEN_GUARD |
                                     WEIR_HARDEN_ZERO_ALWAYS}[pick_below(&state, 4)];
    s->longest_ns = (uint64_t[]){0, 20000, 1000000, 50000000}[pick_below(&state, 4)];
    s->most_blocks = 1u << (2 + pick_below(&state, 6));
    if (s->most_blocks > BLOCKS)
        s->most_blocks = BLOCKS;
    draw_chances(s, &state);
    s->asks = pick_below(&state, 3) == 0;
    if (pick_below(&state, 4) == 0)
        s->grow_ahead = (uint64_t)MIB << pick_below(&state, 8);
    if (pick_below(&state, 5) == 0 && s->kind != DIRECT)
        s->prealloc = (s->limit ? s->limit : s->capacity) / 64 * (1 + pick_below(&state, 48));
    s->at_first = (int)pick_below(&state, 2);
    if (pick_below(&state, 3) == 0 && s->kind != DIRECT && s->kind != ARENA_FIXED)
        s->half_life_ms = 1 + pick_below(&state, 100);
    s->learns = pick_below(&state, 6) == 0;
    s->dependencies =
        (int[]){WEIR_SWITCH_DEFAULT, WEIR_SWITCH_ON, WEIR_SWITCH_OFF}[pick_below(&state, 3)];
    s->old = pick_below(&state, 8) == 0;
    s->growth_step = (uint64_t[]){0, 1 << 20, 48 << 20}[pick_below(&state, 3)];
    s->growth_size = (int)pick_below(&state, 3);
    s->latency = pick_below(&state, 4) == 0;
}

static const char *const kind_words[KINDS] = {"pool", "bfc-fixed", "bfc", "mapped", "direct"};

void sim_describe(uint64_t seed, FILE *out) {
    struct settings s;

    sim_draw_settings(&s, seed);
    fprintf(out,
            "%s, cache %s, checks %s, %llu MiB, limit %llu MiB, growth %d, threshold %d, cache "
            "limit %d, "
            "%u threads, %u streams%s%s%s, grow-ahead %llu MiB, prealloc %llu MiB%s, half-life "
            "%llu ms%s%s\n",
            kind_words[s.kind], s.cache ? "on" : "off", s.checks ? "on" : "off",
            (unsigned long long)(s.capacity / MIB), (unsigned long long)(s.limit / MIB), s.growth,
            s.threshold, s.cache_limit, s.threads, s.streams, s.legacy ? ", legacy" : "",
            s.faults ? ", faults" : "", s.asks ? ", asks" : "",
            (unsigned long long)(s.grow_ahead / MIB), (unsigned long long)(s.prealloc / MIB),
            s.at_first ? " at first" : "", (unsigned long long)s.half_life_ms,
            s.learns ? ", learns" : "", s.old ? ", old driver" : "");
}

/* The growth policy of the program. */
static size_t grow_by_half(const weir_growth_state *state, void *context) {
    if (context != &w || state->size != sizeof *state || state->request == 0)
        sim_fail("the growth function is told something else");
    return state->request + state->reserved / 2;
}

static void set_growth(const struct settings *s, weir_options *options) {
    static const int growths[] = {WEIR_GROWTH_DEFAULT,   WEIR_GROWTH_EXACT,     WEIR_GROWTH_STEP,
                                  WEIR_GROWTH_GEOMETRIC, WEIR_GROWTH_REMAINING, WEIR_GROWTH_BFC,
                                  WEIR_GROWTH_CALLBACK};

    options->growth = growths[s->growth];
    if (options->growth == WEIR_GROWTH_STEP || options->growth == WEIR_GROWTH_GEOMETRIC)
        options->growth_step = s->growth_step;
    if (options->growth == WEIR_GROWTH_GEOMETRIC)
        options->growth_factor = (double[]){0, 1.1, 3}[s->growth_size];
    if (options->growth == WEIR_GROWTH_REMAINING)
        options->growth_factor = (double[]){0, 0.01, 1}[s->growth_size];
    if (options->growth == WEIR_GROWTH_CALLBACK) {
        options->growth_function = grow_by_half;
        options->growth_context = &w;
    }
}

weir_options sim_options(const struct settings *s) {
    static const weir_amount thresholds[] = {{0, WEIR_AMOUNT_DEFAULT},
                                             {0, WEIR_AMOUNT_MAX},
                                             {0, WEIR_AMOUNT_BYTES},
                                             {64 << 20, WEIR_AMOUNT_BYTES}};
    static const weir_amount caches[] = {
        {0, WEIR_AMOUNT_DEFAULT},        {0, WEIR_AMOUNT_DEFAULT},
        {0, WEIR_AMOUNT_BYTES},          {1 << 20, WEIR_AMOUNT_BYTES},
        {100000, WEIR_AMOUNT_OF_IN_USE}, {0, WEIR_AMOUNT_MAX}};
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = s->kind == POOL           ? WEIR_ENGINE_POOL
                     : s->kind == DIRECT       ? WEIR_ENGINE_DIRECT
                     : s->kind == ARENA_FIXED  ? WEIR_ENGINE_BFC_FIXED
                     : s->kind == ARENA_MAPPED ? WEIR_ENGINE_MAPPED
                                               : WEIR_ENGINE_BFC;
    options.internal_dependencies = s->dependencies;
    if (s->limit)
        options.limit = sim_bytes_amount(s->limit);
    set_growth(s, &options);
    options.latency = s->latency ? WEIR_SWITCH_ON : WEIR_SWITCH_DEFAULT;
    options.release_threshold = thresholds[s->threshold];
    options.cache = s->cache ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.cache_limit = caches[s->cache_limit];
    options.recovery_timeout_ms = (uint32_t[]){0, 1, UINT32_MAX}[s->patience];
    options.harden = s->harden;
    if (s->grow_ahead)
        options.grow_ahead = sim_bytes_amount(s->grow_ahead);
    if (s->prealloc)
        options.prealloc = sim_bytes_amount(s->prealloc);
    options.decay_ms = s->half_life_ms;
    if (s->learns)
        options.profile = sim_profile_path();
    options.log = WEIR_LOG_NONE;
    options.stream_checks = s->checks ? WEIR_SWITCH_DEFAULT : WEIR_SWITCH_OFF;
    return options;
}
