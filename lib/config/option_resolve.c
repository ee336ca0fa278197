/* SPDX-License-Identifier: MIT */
/* option_resolve.c: completes options.
 *
 * Some defaults depend on the engine, some amounts limit each other, and some engines cannot serve peers.  So this file
 * works on all options together.
 */
#include "config/option_kinds.h"

#include <stddef.h>

#include "base/text.h"

/* ---- defaults ---- */

int weir__options_suballocate(const weir_options *o) {
    return o->engine == WEIR_ENGINE_MAPPED || o->engine == WEIR_ENGINE_BFC ||
           o->engine == WEIR_ENGINE_BFC_FIXED;
}

int weir__options_can_open(const weir_options *o) {
    return o->engine == WEIR_ENGINE_POOL || o->engine == WEIR_ENGINE_MAPPED;
}

void weir__options_fill(weir_options *options) {
    if (options->engine == WEIR_ENGINE_DEFAULT)
        options->engine = WEIR_ENGINE_POOL;
    if (!options->device)
        options->device = "cuda";
    if (!options->profile)
        options->profile = weir__option_no_file;
    if (!options->oom_report)
        options->oom_report = weir__option_no_file;
    if (!options->peers)
        options->peers = weir__option_no_peers;
    if (options->decay_ms == 0)
        options->decay_ms = WEIR_NO_DECAY;
    if (options->cache == WEIR_SWITCH_DEFAULT)
        options->cache = options->engine == WEIR_ENGINE_DIRECT ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON;
    if (options->harden == 0)
        options->harden = WEIR_HARDEN_OFF;
    if (options->stream_checks == WEIR_SWITCH_DEFAULT)
        options->stream_checks = WEIR_SWITCH_ON;
    if (options->registry == WEIR_SWITCH_DEFAULT)
        options->registry = WEIR_SWITCH_ON;
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (weir__option_rows[i].kind == &weir__option_word &&
            !weir__option_word_is_set(&weir__option_rows[i], options))
            *(int *)mutable_field(&weir__option_rows[i], options) =
                weir__option_rows[i].words[0].value;
    if (options->growth == WEIR_GROWTH_DEFAULT)
        options->growth =
            options->engine == WEIR_ENGINE_BFC || options->engine == WEIR_ENGINE_BFC_FIXED
                ? WEIR_GROWTH_BFC
                : WEIR_GROWTH_EXACT;
    if (options->growth == WEIR_GROWTH_STEP && options->growth_step == 0)
        options->growth_step = UINT64_C(64) << 20;
    if (!(options->growth_factor > 0) && options->growth == WEIR_GROWTH_GEOMETRIC)
        options->growth_factor = 2;
    if (!(options->growth_factor > 0) && options->growth == WEIR_GROWTH_REMAINING)
        options->growth_factor = 0.5;
    if (options->keep_free.kind == WEIR_AMOUNT_DEFAULT)
        options->keep_free.kind = WEIR_AMOUNT_BYTES;
    if (options->prealloc_min.kind == WEIR_AMOUNT_DEFAULT)
        options->prealloc_min.kind = WEIR_AMOUNT_BYTES;
    if (options->prealloc.kind == WEIR_AMOUNT_DEFAULT)
        options->prealloc = options->prealloc_min;
    if (options->limit.kind == WEIR_AMOUNT_DEFAULT && options->engine == WEIR_ENGINE_BFC_FIXED)
        options->limit = (weir_amount){750000, WEIR_AMOUNT_OF_TOTAL};
    if (options->limit.kind == WEIR_AMOUNT_DEFAULT)
        options->limit.kind = WEIR_AMOUNT_MAX;
    if (options->grow_ahead.kind == WEIR_AMOUNT_DEFAULT)
        options->grow_ahead.kind = WEIR_AMOUNT_BYTES;
    if (options->release_threshold.kind == WEIR_AMOUNT_DEFAULT)
        options->release_threshold.kind = WEIR_AMOUNT_MAX;
    if (options->priority == 0)
        options->priority = 100;
    if (options->recovery_timeout_ms == 0)
        options->recovery_timeout_ms = 1000;
}

/* ---- one beside another ---- */

/* Refuses a preallocation above the limit, if both have one kind: without a device, weir cannot compare others.  A
 * preallocation from a variable of another program is capped later. */
static weir_status hold_to_limit(const weir_options *filled, char *message, size_t message_bytes) {
    char prealloc[WEIR_SPELL_BYTES], limit[WEIR_SPELL_BYTES];

    if (weir__foreign_prealloc(filled) || filled->prealloc.kind != filled->limit.kind ||
        filled->limit.kind == WEIR_AMOUNT_MAX || filled->prealloc.value <= filled->limit.value)
        return WEIR_OK;
    weir__amount_spell(&filled->prealloc, prealloc, sizeof prealloc);
    weir__amount_spell(&filled->limit, limit, sizeof limit);
    return weir__option_refuse(
        WEIR_E_LIMIT, message, message_bytes,
        "prealloc '%s' is more than limit '%s'; expected at most the limit, or a higher limit",
        prealloc, limit);
}

/* Refuses a prealloc-min above prealloc, if both have one kind, or if prealloc is 0. */
static weir_status hold_min(const weir_options *filled, char *message, size_t message_bytes) {
    const weir_amount *all = &filled->prealloc, *least = &filled->prealloc_min;
    const char *of_another = weir__foreign_prealloc(filled);
    char prealloc[WEIR_SPELL_BYTES], min[WEIR_SPELL_BYTES];

    if (all->kind == WEIR_AMOUNT_MAX ||
        (least->kind == all->kind ? least->value <= all->value
                                  : least->value == 0 || all->value > 0))
        return WEIR_OK;
    weir__amount_spell(all, prealloc, sizeof prealloc);
    weir__amount_spell(least, min, sizeof min);
    return weir__option_refuse(WEIR_E_INVALID, message, message_bytes,
                               "prealloc-min '%s' is more than %s '%s'; expected at most that", min,
                               of_another ? of_another : "prealloc", prealloc);
}

/* Checks that the engine can open its memory to other devices if the options name a device other than that of the
 * allocator.  Returns E_NOT_SUPPORTED with a message if the engine cannot. */
static weir_status check_peers(const weir_options *filled, char *message, size_t message_bytes) {
    uint64_t devices = 0;
    const char *driver;
    int own = 0;

    if (weir__options_can_open(filled) ||
        weir__peers_parse(filled->peers, &devices, NULL, 0) != WEIR_OK ||
        weir__device_parse(filled->device, &driver, &own, NULL, 0) != WEIR_OK ||
        (devices != UINT64_MAX && (devices & ~(own < 64 ? UINT64_C(1) << own : 0)) == 0))
        return WEIR_OK;
    return weir__option_refuse(WEIR_E_NOT_SUPPORTED, message, message_bytes, "peers '%s': %s",
                               filled->peers, WEIR_NOT_OPENED);
}

static weir_status check(const struct weir_option_row *row, const weir_options *options,
                         char *message, size_t message_bytes) {
    struct weir_problem problem;

    return row->kind->check(row, options, &problem)
               ? WEIR_OK
               : weir__option_refuse(WEIR_E_INVALID, message, message_bytes, "%s: %s; expected %s",
                                     row->text.name, problem.text, row->text.accepts);
}

/* Accepts a limit of 0, after which reserved memory does not grow. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes) {
    static const struct weir_option_row row = {
        .text = {.name = "limit", .accepts = WEIR_SIZE_ACCEPTS},
        .kind = &weir__option_amount,
        .offset = offsetof(weir_options, limit)};
    const weir_options options = {.limit = *limit};

    return check(&row, &options, message, message_bytes);
}

weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes) {
    static const weir_options defaults = {.size = sizeof defaults};
    weir_options work;
    weir_status status =
        weir__options_take(options ? options : &defaults, &work, message, message_bytes);

    if (status != WEIR_OK)
        return status;
    if (options && !weir__options_tail_is_zero(options))
        return weir__option_refuse(
            WEIR_E_INVALID, message, message_bytes,
            "options has fields set that this version of the library does not know");
    if (work.oom_callback_data && !work.oom_callback)
        return weir__option_refuse(
            WEIR_E_INVALID, message, message_bytes,
            "oom_callback_data: it is set without oom_callback; expected NULL");
    for (size_t i = 0; i < WEIR_SETTING_COUNT && status == WEIR_OK; i++)
        status = check(&weir__option_rows[i], &work, message, message_bytes);
    if (status != WEIR_OK)
        return status;
    /* Hardening reports to the log. */
    if (work.log == WEIR_LOG_DEFAULT && work.harden & ~(uint64_t)WEIR_HARDEN_OFF)
        work.log = WEIR_LOG_ERROR;
    weir__options_fill(&work);
    status = hold_to_limit(&work, message, message_bytes);
    if (status == WEIR_OK)
        status = hold_min(&work, message, message_bytes);
    if (status == WEIR_OK)
        status = check_peers(&work, message, message_bytes);
    if (status == WEIR_OK)
        *out = work;
    return status;
}
