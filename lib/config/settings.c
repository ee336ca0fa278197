/* SPDX-License-Identifier: MIT */
/* settings.c: reads options from a caller's struct, sets single options by name, and replaces defaults by their values.
 *
 * A caller may have been compiled with another version of weir_options.  Each version adds fields at the end of the
 * struct, so the field `size` tells which fields exist in the caller's version. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/result.h"
#include "base/text.h"

/* Writes a message that an option does not accept a text.  If `label` is NULL, uses the option's name in the table. */
static weir_status refuse_option_text(const struct weir_option_row *row, const char *label,
                                      const char *text, const struct weir_problem *problem,
                                      const struct weir_message *message) {
    char quoted[80];

    weir__quote(text, quoted, sizeof quoted);
    return weir__refuse(WEIR_E_PARSE, message, "%s %s: %s; expected %s",
                        label ? label : row->text.name, quoted, problem->text, row->text.accepts);
}

/* Returns a buffer for a message, and sets its text to "".  `text` may be NULL. */
static struct weir_message message_at(char *text, size_t bytes) {
    if (text && bytes > 0)
        text[0] = '\0';
    return (struct weir_message){text, text ? bytes : 0};
}

/* ---- the struct ---- */

#define AT(member) offsetof(weir_options, member)

/* The size of weir_options in the first version of the library. */
#define SMALLEST_SIZE offsetof(weir_options, cache)

/* A larger size of a caller's weir_options is probably memory that was never initialised. */
#define LARGEST_SIZE ((size_t)65536)

/* Returns 1 if a version of weir_options can have this size, else 0.  An older size is the offset of a newer field. */
static int is_size(size_t bytes) {
    _Static_assert(sizeof(weir_options) - AT(peers) <= sizeof(uint64_t),
                   "a field behind peers, if it is no setting's, is named below");
    if (bytes >= sizeof(weir_options))
        return bytes <= LARGEST_SIZE;
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (weir__option_rows[i].offset == bytes)
            return bytes >= SMALLEST_SIZE;
    return bytes == AT(oom_callback) || bytes == AT(oom_callback_data);
}

static const char *size_problem(const weir_options *options) {
    if (!options)
        return "options is NULL";
    if (!is_size(options->size))
        return "options.size is not a size of weir_options: call weir_options_init first";
    return NULL;
}

/* Copies the fields of a caller's options that this version of the library knows.  options->size was checked before. */
static void copy_options(const weir_options *options, weir_options *out) {
    memset(out, 0, sizeof *out);
    memcpy(out, options, options->size < sizeof *out ? options->size : sizeof *out);
    out->size = sizeof *out;
}

void weir__options_copy_out(const weir_options *from, weir_options *options) {
    size_t size = options->size;

    memcpy(options, from, size < sizeof *from ? size : sizeof *from);
    options->size = size;
}

/* Returns 1 if all fields behind the last field that this version knows are 0 (not set), else 0. */
static int tail_is_zero(const weir_options *options) {
    const unsigned char *bytes = (const unsigned char *)options;

    for (size_t i = sizeof *options; i < options->size; i++)
        if (bytes[i] != 0)
            return 0;
    return 1;
}

weir_status weir__options_copy_in(const weir_options *options, weir_options *out, char *message,
                                  size_t message_bytes) {
    const struct weir_message to = message_at(message, message_bytes);

    if (size_problem(options))
        return weir__refuse(WEIR_E_INVALID, &to, "%s", size_problem(options));
    copy_options(options, out);
    return WEIR_OK;
}

weir_status weir_options_init_sized(weir_options *options, size_t bytes) {
    if (!options || !is_size(bytes))
        return weir__without_driver(WEIR_E_INVALID);
    memset(options, 0, bytes);
    options->size = bytes;
    return WEIR_OK;
}

int weir__options_log(const weir_options *options) {
    return options && options->size >= AT(log) + sizeof options->log &&
                   options->log <= WEIR_LOG_DEBUG
               ? options->log
               : WEIR_LOG_NONE;
}

/* ---- defaults ---- */

int weir__options_suballocate(const weir_options *o) {
    return o->engine == WEIR_ENGINE_MAPPED || o->engine == WEIR_ENGINE_BFC ||
           o->engine == WEIR_ENGINE_BFC_FIXED;
}

int weir__options_allow_peer_access(const weir_options *o) {
    return o->engine == WEIR_ENGINE_POOL || o->engine == WEIR_ENGINE_MAPPED;
}

/* Replaces every default by its value, except that of cache_limit, which depends on the bytes in use. */
static void fill_defaults(weir_options *options) {
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

/* ---- by name ---- */

weir_status weir__option_set(weir_options *options, enum weir_setting setting, const char *label,
                             const char *text, char *message, size_t message_bytes) {
    const struct weir_message to = message_at(message, message_bytes);
    const struct weir_option_row *row = &weir__option_rows[setting];
    struct weir_problem problem;
    weir_options work;

    copy_options(options, &work);
    if (!row->kind->read(row, text, &work, &problem))
        return refuse_option_text(row, label, text, &problem, &to);
    weir__options_copy_out(&work, options);
    return WEIR_OK;
}

weir_status weir_options_set(weir_options *options, const char *name, const char *text,
                             char *message, size_t message_bytes) {
    const struct weir_message to = message_at(message, message_bytes);
    const char *problem = size_problem(options);
    char quoted[80];

    if (!problem && (!name || !text))
        problem = name ? "the text is NULL" : "the option's name is NULL";
    if (problem)
        return weir__refuse(WEIR_E_INVALID, &to, "%s", problem);
    for (size_t i = 0; i < WEIR_SETTING_COUNT; i++)
        if (strcmp(name, weir__option_rows[i].text.name) == 0)
            return weir__without_driver(weir__option_set(options, (enum weir_setting)i, NULL, text,
                                                         message, message_bytes));
    weir__quote(name, quoted, sizeof quoted);
    return weir__refuse(WEIR_E_INVALID, &to, "there is no option %s: weir-settings(7) lists them",
                        quoted);
}

int weir__option_is_set(const weir_options *options, enum weir_setting setting) {
    return weir__option_rows[setting].kind->is_set(&weir__option_rows[setting], options);
}

void weir__option_show(const weir_options *options, enum weir_setting setting, char *text,
                       size_t bytes) {
    weir_options work;

    copy_options(options, &work);
    fill_defaults(&work);
    weir__option_rows[setting].kind->spell(&weir__option_rows[setting], &work, text, bytes);
}

weir_status weir__peers_parse(const char *text, uint64_t *devices, char *message,
                              size_t message_bytes) {
    const struct weir_message to = message_at(message, message_bytes);
    struct weir_problem problem;

    return weir__option_peers_scan(text, devices, &problem)
               ? WEIR_OK
               : refuse_option_text(&weir__option_rows[WEIR_SETTING_PEERS], NULL, text, &problem,
                                    &to);
}

weir_status weir__device_parse(const char *text, const char **driver, int *ordinal, char *message,
                               size_t message_bytes) {
    const struct weir_message to = message_at(message, message_bytes);
    struct weir_problem problem;

    return weir__option_device_scan(text ? text : "cuda", driver, ordinal, &problem)
               ? WEIR_OK
               : refuse_option_text(&weir__option_rows[WEIR_SETTING_DEVICE], NULL, text, &problem,
                                    &to);
}

/* ---- completion ---- */

/* Reports an error if prealloc is above limit.  Skips values that depend on the device's memory. */
static weir_status check_prealloc_limit(const weir_options *filled,
                                        const struct weir_message *message) {
    char prealloc[WEIR_SPELL_BYTES], limit[WEIR_SPELL_BYTES];

    if (weir__framework_prealloc(filled) || filled->prealloc.kind != filled->limit.kind ||
        filled->limit.kind == WEIR_AMOUNT_MAX || filled->prealloc.value <= filled->limit.value)
        return WEIR_OK;
    weir__amount_spell(&filled->prealloc, prealloc, sizeof prealloc);
    weir__amount_spell(&filled->limit, limit, sizeof limit);
    return weir__refuse(
        WEIR_E_LIMIT, message,
        "prealloc '%s' is more than limit '%s'; expected at most the limit, or a higher limit",
        prealloc, limit);
}

/* Reports an error if prealloc_min is above prealloc.  Does not compare a percentage with a number of bytes. */
static weir_status check_min_of_kind(const weir_options *filled,
                                     const struct weir_message *message) {
    const weir_amount *all = &filled->prealloc, *least = &filled->prealloc_min;
    const char *of_another = weir__framework_prealloc(filled);
    char prealloc[WEIR_SPELL_BYTES], min[WEIR_SPELL_BYTES];

    if (all->kind == WEIR_AMOUNT_MAX ||
        (least->kind == (all->kind & WEIR_AMOUNT_KIND) ? least->value <= all->value
                                                       : least->value == 0 || all->value > 0))
        return WEIR_OK;
    weir__amount_spell(all, prealloc, sizeof prealloc);
    weir__amount_spell(least, min, sizeof min);
    return weir__refuse(WEIR_E_INVALID, message,
                        "prealloc-min '%s' is more than %s '%s'; expected at most that", min,
                        of_another ? of_another : "prealloc", prealloc);
}

/* Returns E_NOT_SUPPORTED if `peers` names other devices, but the engine cannot share memory with them. */
static weir_status check_peers(const weir_options *filled, const struct weir_message *message) {
    uint64_t devices = 0;
    const char *driver;
    int own = 0;

    if (weir__options_allow_peer_access(filled) ||
        weir__peers_parse(filled->peers, &devices, NULL, 0) != WEIR_OK ||
        weir__device_parse(filled->device, &driver, &own, NULL, 0) != WEIR_OK ||
        (devices != UINT64_MAX && (devices & ~(own < 64 ? UINT64_C(1) << own : 0)) == 0))
        return WEIR_OK;
    return weir__refuse(WEIR_E_NOT_SUPPORTED, message, "peers '%s': %s", filled->peers,
                        WEIR_NO_PEER_ACCESS);
}

static weir_status check_option(const struct weir_option_row *row, const weir_options *options,
                                const struct weir_message *message) {
    struct weir_problem problem;

    return row->kind->check(row, options, &problem)
               ? WEIR_OK
               : weir__refuse(WEIR_E_INVALID, message, "%s: %s; expected %s", row->text.name,
                              problem.text, row->text.accepts);
}

/* Accepts a limit of 0, because an allocator can work with the memory that it has already reserved. */
weir_status weir__limit_check(const weir_amount *limit, char *message, size_t message_bytes) {
    static const struct weir_option_row row = {
        .text = {.name = "limit", .accepts = WEIR_SIZE_ACCEPTS},
        .kind = &weir__option_amount,
        .offset = offsetof(weir_options, limit)};
    const weir_options options = {.limit = *limit};

    return check_option(&row, &options, &(struct weir_message){message, message_bytes});
}

weir_status weir__options_complete(const weir_options *options, weir_options *out, char *message,
                                   size_t message_bytes) {
    static const weir_options defaults = {.size = sizeof defaults};
    const struct weir_message to = message_at(message, message_bytes);
    weir_options work;
    weir_status status =
        weir__options_copy_in(options ? options : &defaults, &work, message, message_bytes);

    if (status != WEIR_OK)
        return status;
    if (options && !tail_is_zero(options))
        return weir__refuse(
            WEIR_E_INVALID, &to,
            "options has fields set that this version of the library does not know");
    if (work.oom_callback_data && !work.oom_callback)
        return weir__refuse(WEIR_E_INVALID, &to,
                            "oom_callback_data: it is set without oom_callback; expected NULL");
    for (size_t i = 0; i < WEIR_SETTING_COUNT && status == WEIR_OK; i++)
        status = check_option(&weir__option_rows[i], &work, &to);
    if (status != WEIR_OK)
        return status;
    /* Switches the log on if hardening is on, because hardening reports errors only in the log. */
    if (work.log == WEIR_LOG_DEFAULT && work.harden & ~(uint64_t)WEIR_HARDEN_OFF)
        work.log = WEIR_LOG_ERROR;
    fill_defaults(&work);
    status = check_prealloc_limit(&work, &to);
    if (status == WEIR_OK)
        status = check_min_of_kind(&work, &to);
    if (status == WEIR_OK)
        status = check_peers(&work, &to);
    if (status == WEIR_OK)
        *out = work;
    return status;
}
