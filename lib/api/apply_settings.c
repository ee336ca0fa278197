/* SPDX-License-Identifier: MIT */
/* apply_settings.c: checks the settings of a new allocator against its device, and converts amounts to bytes. */
#include "config.h"

#include <stdio.h>

#include "api/create.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/amount.h"
#include "config/settings.h"
#include "engine/peer_access.h"

/* If weir preallocates a share of the device, 1/SHARE_MARGIN_PART of the memory stays free for contexts and code. */
enum { SHARE_MARGIN_PART = 64 };

/* Converts keep_free to bytes, and then the options that request a share of the device, which depend on keep_free. */
static weir_status set_shares(weir_allocator *a, const struct weir_device_memory *memory) {
    struct weir_limit *limit = &a->reserve.limit;
    weir_options *o = &a->options;
    char asked[32];
    uint64_t weights;

    limit->keep_free = weir__budget_bytes(&o->keep_free, memory, 0);
    if (limit->keep_free > memory->total) {
        weir__amount_spell(&o->keep_free, asked, sizeof asked);
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_NO_MEMORY),
            "keep-free '%s' is above the device's %s: nothing could be allocated; keep less free",
            asked, WEIR_SHOWN(memory->total));
    }
    limit->is_dynamic =
        o->engine != WEIR_ENGINE_BFC_FIXED && (limit->keep_free > 0 || weir__limit_has_share(o));
    if (!weir__limit_has_share(o))
        return WEIR_OK;
    if (o->registry != WEIR_SWITCH_ON)
        weir__log(o->log, WEIR_LOG_WARNING,
                  "%s share is all of the device: with the shared registry off, weir knows of no "
                  "other process",
                  o->limit.kind == WEIR_AMOUNT_SHARE ? "limit" : "prealloc");
    weights = weir__limit_weights(&a->reserve);
    if (weights == 0)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_INVALID),
            "the weights of all processes on the device sum to 0: give one of them a "
            "share above 0");
    limit->share_margin =
        limit->keep_free > 0 ? limit->keep_free : memory->total / SHARE_MARGIN_PART;
    if (o->limit.kind == WEIR_AMOUNT_SHARE && o->engine == WEIR_ENGINE_BFC_FIXED)
        limit->bytes = weir__limit_part(&a->device, limit->keep_free, o->limit.value, weights);
    else if (o->limit.kind == WEIR_AMOUNT_SHARE)
        /* Without other processes, this process's share is the whole device. */
        limit->bytes = memory->total;
    if (o->prealloc.kind == WEIR_AMOUNT_SHARE)
        a->prealloc = weir__size_smaller(
            weir__limit_part(&a->device, limit->share_margin, o->prealloc.value, weights),
            limit->bytes);
    return WEIR_OK;
}

/* Lowers the preallocation, which a framework's environment variable has requested, to the limit, and warns. */
static void cap_prealloc(weir_allocator *a, const char *asked) {
    weir__log(a->options.log, WEIR_LOG_WARNING,
              "%s requests a preallocation of %s, above the limit of %s: weir preallocates up to "
              "the limit",
              weir__framework_prealloc(&a->options), asked, WEIR_SHOWN(a->reserve.limit.bytes));
    a->prealloc = a->reserve.limit.bytes < WEIR_POOL_UNIT
                      ? a->reserve.limit.bytes
                      : a->reserve.limit.bytes / WEIR_POOL_UNIT * WEIR_POOL_UNIT;
}

/* Checks that prealloc-min is not above prealloc.  Skips percentages of free memory and shares, whose values change. */
static weir_status check_prealloc_min(const weir_allocator *a, const char *asked) {
    const weir_options *o = &a->options;
    const char *of_another = weir__framework_prealloc(o);
    int kind = o->prealloc.kind & WEIR_AMOUNT_KIND;
    char min[WEIR_SPELL_BYTES], prealloc[WEIR_SPELL_BYTES];

    if ((kind != WEIR_AMOUNT_BYTES && kind != WEIR_AMOUNT_OF_TOTAL) ||
        o->prealloc_min.kind == WEIR_AMOUNT_MAX || a->prealloc_min <= a->prealloc)
        return WEIR_OK;
    weir__amount_spell(&o->prealloc_min, min, sizeof min);
    weir__amount_spell(&o->prealloc, prealloc, sizeof prealloc);
    return weir__create_cannot(
        a, weir__without_driver(WEIR_E_INVALID),
        "prealloc-min '%s' is more than %s '%s', which is %s; expected at most that", min,
        of_another ? of_another : "prealloc", prealloc, asked);
}

/* Converts the amounts in the options (such as "75%") to bytes, and compares them with each other. */
static weir_status set_budget(weir_allocator *a) {
    struct weir_limit *limit = &a->reserve.limit;
    weir_options *options = &a->options;
    struct weir_device_memory memory;
    weir_status status = weir__read_memory(a, &memory);
    weir_amount twice = options->grow_ahead;
    size_t least_limit = options->engine == WEIR_ENGINE_POOL ? WEIR_POOL_UNIT : 0;
    char asked[32];

    if (status != WEIR_OK)
        return status;
    a->device.total = memory.total;
    a->free_at_first = memory.free;
    limit->bytes = weir__budget_bytes(&options->limit, &memory, UINT64_MAX);
    if (limit->bytes > memory.total && options->engine == WEIR_ENGINE_BFC_FIXED)
        limit->bytes = memory.total;
    a->threshold = weir__budget_bytes(&options->release_threshold, &memory, UINT64_MAX);
    a->low = weir__budget_bytes(&options->grow_ahead, &memory, 0);
    twice.value = twice.value > UINT64_MAX / 2 ? UINT64_MAX : 2 * twice.value;
    a->high = weir__budget_bytes(&twice, &memory, 0);
    a->prealloc = weir__budget_bytes(&options->prealloc, &memory, 0);
    status = set_shares(a, &memory);
    if (status != WEIR_OK)
        return status;
    /* For prealloc, "max" means all memory that the limit and the device allow. */
    if (a->prealloc == UINT64_MAX)
        a->prealloc = memory.free < limit->bytes ? memory.free : limit->bytes;
    a->prealloc_min = weir__budget_bytes(&options->prealloc_min, &memory, 0);
    weir__bytes_show(a->prealloc, asked, sizeof asked);
    status = check_prealloc_min(a, asked);
    if (status != WEIR_OK)
        return status;
    if (a->prealloc > limit->bytes && weir__framework_prealloc(options))
        cap_prealloc(a, asked);
    /* For prealloc-min, "max" means that the whole preallocation must succeed. */
    if (a->prealloc_min == UINT64_MAX)
        a->prealloc_min = a->prealloc;
    if (a->prealloc > memory.total)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_NO_MEMORY),
            "preallocation of %s is above the device's %s: preallocate at most that", asked,
            WEIR_SHOWN(memory.total));

    if (a->prealloc > limit->bytes)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_LIMIT),
            "preallocation of %s is above the limit of %s: raise the limit, or "
            "preallocate at most that",
            asked, WEIR_SHOWN(limit->bytes));

    if (limit->bytes < least_limit)
        return weir__create_cannot(
            a, weir__without_driver(WEIR_E_LIMIT),
            "a limit of %s leaves the engine nothing: its memory grows by %s",
            WEIR_SHOWN(limit->bytes), WEIR_SHOWN(least_limit));

    atomic_init(&limit->least_floor,
                weir__size_larger(a->threshold < memory.total ? a->threshold : 0, a->prealloc_min));
    if (a->threshold < a->prealloc)
        a->threshold = a->prealloc;
    return WEIR_OK;
}

/* Warns if grow-ahead exceeds the limit, or if the driver would release new memory at the next synchronisation. */
static void warn_of_useless_growth(const weir_allocator *a) {
    uint64_t all = weir__size_smaller(a->reserve.limit.bytes, a->device.total);

    if (a->low > all)
        weir__log(a->options.log, WEIR_LOG_WARNING,
                  "grow-ahead of %s is above the %s that can be reserved: weir keeps as much idle "
                  "as there is",
                  WEIR_SHOWN(a->low), WEIR_SHOWN(all));
    if (a->options.engine == WEIR_ENGINE_POOL && a->options.grow_ahead.value > 0 &&
        a->threshold < a->device.total)
        weir__log(a->options.log, WEIR_LOG_WARNING,
                  "the release threshold makes each synchronisation release what grow-ahead "
                  "reserved: raise it");
    if (a->options.engine == WEIR_ENGINE_POOL && a->options.growth != WEIR_GROWTH_EXACT &&
        a->threshold < a->device.total && a->threshold < ((uint64_t)32 << 20))
        weir__log(a->options.log, WEIR_LOG_WARNING,
                  "the release threshold makes each synchronisation release what the growth policy "
                  "added: raise it, or choose growth exact");
}

static weir_status open_to_peers(weir_allocator *a) {
    const char *peers = a->options.peers;
    char why[256] = "";
    CUresult result;
    weir_status status = weir__peers_read(a->device.driver, a->device.ordinal, peers,
                                          &a->device.access, &result, why, sizeof why);

    a->options.peers = NULL; /* the caller may free the text of the option */
    if (status == WEIR_OK)
        return WEIR_OK;
    status = result == CUDA_SUCCESS ? weir__without_driver(status)
                                    : weir__device_status(&a->device, result);
    return weir__create_cannot(a, status, "peers '%s': %s", peers, why);
}

void weir__size_fixed_region(weir_allocator *a) {
    weir_options *options = &a->options;

    if (options->engine == WEIR_ENGINE_BFC_FIXED) {
        a->prealloc = a->reserve.limit.bytes < 256 ? a->reserve.limit.bytes
                                                   : a->reserve.limit.bytes / 256 * 256;
        a->prealloc_min = 0;
        options->prealloc = (weir_amount){.value = a->prealloc, .kind = WEIR_AMOUNT_BYTES};
    }
    if (options->engine == WEIR_ENGINE_DIRECT)
        a->prealloc = a->prealloc_min = 0;
}

/* Warns if the options request a share, which shrinks as processes join, but the engine cannot release memory. */
static void warn_of_kept_share(const weir_allocator *a) {
    const weir_options *o = &a->options;

    if (!weir__limit_has_share(o))
        return;
    if (o->engine == WEIR_ENGINE_BFC_FIXED)
        weir__log(o->log, WEIR_LOG_WARNING,
                  "engine bfc-fixed keeps the share that it has now, also as others come: choose "
                  "engine mapped or pool to have it fall");
    else if (o->engine == WEIR_ENGINE_BFC && a->prealloc > 0 &&
             (o->prealloc.kind == WEIR_AMOUNT_SHARE || o->prealloc.kind == WEIR_AMOUNT_MAX ||
              /* the preallocation exceeds the share that a second, equal process would leave */
              a->prealloc > weir__limit_part(&a->device, a->reserve.limit.keep_free, o->limit.value,
                                             weir__limit_weights(&a->reserve)) /
                                2))
        weir__log(o->log, WEIR_LOG_WARNING,
                  "engine bfc preallocates one region, which goes whole or not at all: it stays "
                  "above its share as others come; choose engine mapped or pool");
}

/* Warns of each setting of the user that has no effect with the chosen engine. */
static void warn_of_unused(const weir_allocator *a) {
    const weir_options *o = &a->options, *given = &a->creation->given;
    int direct = o->engine == WEIR_ENGINE_DIRECT;
    int fixed = o->engine == WEIR_ENGINE_BFC_FIXED, cuts = weir__options_suballocate(o);
    const struct {
        int unused;
        enum weir_setting setting;
    } settings[] = {
        {direct || fixed, WEIR_SETTING_PREALLOC},
        {direct || fixed, WEIR_SETTING_GROWTH},
        {fixed, WEIR_SETTING_KEEP_FREE},
        {(direct && o->cache == WEIR_SWITCH_OFF) || fixed, WEIR_SETTING_RELEASE_THRESHOLD},
        {!cuts, WEIR_SETTING_INTERNAL_DEPENDENCIES},
        {direct || fixed, WEIR_SETTING_GROW_AHEAD},
        {direct || fixed, WEIR_SETTING_PREALLOC_MIN},
        {!weir__run_profile_is_possible(o), WEIR_SETTING_PROFILE},
        {direct || fixed, WEIR_SETTING_DECAY},
    };
    char engine[WEIR_SHOW_BYTES];

    weir__option_show(o, WEIR_SETTING_ENGINE, engine, sizeof engine);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].unused && weir__option_is_set(given, settings[i].setting))
            weir__log(o->log, WEIR_LOG_WARNING, "%s has no effect with engine %s%s",
                      weir__setting_row(settings[i].setting)->name, engine,
                      fixed ? ": its size is the limit" : "");
}

weir_status weir__apply_settings(weir_allocator *a) {
    weir_status status = set_budget(a);

    if (status == WEIR_OK)
        status = open_to_peers(a);
    if (status != WEIR_OK)
        return status;
    warn_of_useless_growth(a);
    warn_of_unused(a);
    warn_of_kept_share(a);
    return WEIR_OK;
}
