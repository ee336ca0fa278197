/* SPDX-License-Identifier: MIT */
/* entry_points.c: the public entry points and an allocator's life cycle; nothing else.
 *
 * An allocator is a host (what the engine is given), one engine, the books and the noted uses.  The
 * hit path is: argument checks, the front.  Everything else hangs behind one word that is 0 in steady
 * state (slow_path.h).
 *
 * Locks: `first` guards the preallocation at the first request; nothing is called under it but the
 * preallocation.  The engine, the books and the uses each have their own.
 *
 * Must not know: how an engine places blocks, the names of settings.
 */
#include "config.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weir/weir.h>

#include "api/allocator_internal.h"
#include "api/oom_report.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "cache/pinned.h"
#include "config/amount.h"
#include "config/settings.h"
#include "driver/nvtx.h"
#include "engine/peer_access.h"
#include "ipc/ledger.h"
#include "reserve/background_growth.h"
#include "reserve/decay.h"
#include "reserve/oom_ladder.h"
#include "reserve/pressure.h"

/* Preallocated memory that host tables are made for beforehand, which take a 2048th of it; and the most pieces that
 * it may lie in. */
#define PREPARED ((size_t)32 << 30)
enum { EXTENTS = 16 };
/* Shares, and what is held to a limit, are multiples of it: what pools grow by. */
#define PART_UNIT ((size_t)32 << 20)
/* Of the device, what shares that are preallocated leave: contexts, and what programs load into theirs. */
enum { APART_PART = 64 };
/* Of two figures that belong together, how often they are read at most. */
enum { READS = 4 };
/* How long others have to answer who wants its share, and how long nothing may come of that: a process that gives all
 * of an H200 takes 0.2 s for it. */
#define SHARE_NS UINT64_C(100000000)
#define STILL_NS UINT64_C(1000000000)
/* Of a process that says nothing of shares, in millionths. */
#define WEIGHT UINT64_C(1000000)
/* On an H200 a context takes 0.5 GiB, and kernels are loaded into it; and how long others have to make room for
 * one: a program that gets none ends. */
#define CONTEXT_BYTES ((uint64_t)1 << 30)
#define CONTEXT_NS UINT64_C(1000000000)
#define CONTEXT_PAUSE_NS 10000000

static weir_allocator *allocator_of(struct weir_host *host) {
    return (weir_allocator *)((char *)host - offsetof(weir_allocator, host));
}

const char *weir_version(void) {
    return PACKAGE_VERSION;
}

/* ---- creation -------------------------------------------------------------------------------- */

struct message {
    char *text;
    size_t bytes;
};

/* A creation that cannot be: the reason goes to the message, for who asked for it to tell, else to the log. */
__attribute__((format(printf, 4, 5))) static weir_status
cannot(const struct message *message, int log, weir_status status, const char *format, ...) {
    char text[640];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (message->bytes > 0)
        snprintf(message->text, message->bytes, "%s", text);
    else
        weir__log(log, WEIR_LOG_ERROR, "%s", text);
    return status;
}

static weir_status driver_refused(struct weir_host *host, const struct message *message,
                                  const char *what, CUresult result) {
    weir_status status = weir__device_status(&host->device, result);

    return cannot(message, host->options.log, status, "%s: the driver answered %s", what,
                  weir__driver_error_name(host->device.driver, result));
}

/* What came of the last call below, as a person reads it. */
static const char *why_not(const struct weir_host *host, weir_status status, char *text,
                           size_t bytes) {
    if (weir__driver_result == CUDA_SUCCESS || status == WEIR_E_NO_MEMORY)
        return weir_status_message(status);
    snprintf(text, bytes, "%s: the driver answered %s", weir_status_message(status),
             weir__driver_error_name(host->device.driver, (CUresult)weir__driver_result));
    return text;
}

static weir_status find_device(struct weir_host *host, int ordinal, const struct message *message) {
    const struct weir_driver *driver = host->device.driver;
    int count = 0, pools = 0;
    CUresult result = driver->cuDeviceGetCount(&count);

    if (result != CUDA_SUCCESS)
        return driver_refused(host, message, "cannot count the devices", result);
    if (ordinal >= count)
        return cannot(message, host->options.log, weir__without_driver(WEIR_E_NO_DEVICE),
                      "device '%s': there %s %d device%s, numbered from 0", host->options.device,
                      count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    result = driver->cuDeviceGet(&host->device.ordinal, ordinal);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                              host->device.ordinal);
    if (result != CUDA_SUCCESS)
        return driver_refused(host, message, "cannot ask the device", result);
    if (!pools && host->options.engine == WEIR_ENGINE_POOL)
        return cannot(message, host->options.log, weir__without_driver(WEIR_E_NO_DEVICE),
                      "device '%s' has no memory pools: choose engine arena or platform",
                      host->options.device);
    return WEIR_OK;
}

int weir__allocator_admit(struct weir_neighbours *n, struct weir_admission *admission) {
    uint64_t now = weir__ledger_now();
    struct weir_answers answers;

    if (admission->began_ns == 0)
        admission->began_ns = now;
    if (!n || admission->is_over || now - admission->began_ns >= CONTEXT_NS)
        return 0;
    answers = weir__neighbours_ask(n, CONTEXT_BYTES, admission->began_ns,
                                   admission->began_ns + CONTEXT_NS);
    admission->is_over = answers.given < CONTEXT_BYTES && !answers.awaited;
    if (answers.given == 0 && answers.awaited) /* nor is it asked again */
        nanosleep(&(struct timespec){0, CONTEXT_PAUSE_NS}, NULL);
    return answers.heard || answers.awaited; /* shares may have fallen for it, and left room */
}

void weir__allocator_not_admitted(struct weir_neighbours *n, char *text, size_t bytes) {
    char holders[WEIR_NEIGHBOURS_SHOWN];

    weir__neighbours_show(n, holders);
    if (holders[0])
        snprintf(text, bytes, "start these with leave 1GiB (--leave) to keep room for it: %s",
                 holders);
    else
        snprintf(text, bytes, "weir knows of no other process that has memory there");
}

/* Retains the primary context, for which there is no room while others hold all of the device. */
static weir_status open_context(struct weir_host *host, const struct message *message) {
    struct weir_admission admission = {0};
    weir_status status;
    CUresult result;
    char why[WEIR_NEIGHBOURS_SHOWN + 80];

    do
        result = host->device.driver->cuDevicePrimaryCtxRetain(&host->device.context,
                                                               host->device.ordinal);
    while (result == CUDA_ERROR_OUT_OF_MEMORY &&
           weir__allocator_admit(host->neighbours, &admission));
    if (result == CUDA_SUCCESS)
        return WEIR_OK;
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !host->neighbours)
        return driver_refused(host, message, "cannot open the device's context", result);
    status = weir__device_status(&host->device, result);
    weir__allocator_not_admitted(host->neighbours, why, sizeof why);
    return cannot(message, host->options.log, status,
                  "cannot open the device's context: the driver answered %s; %s",
                  weir__driver_error_name(host->device.driver, result), why);
}

static weir_status read_memory(struct weir_host *host, struct weir_device_memory *memory,
                               const struct message *message) {
    struct weir_driver_scope scope;
    size_t free_bytes = 0, total = 0;
    CUresult result = weir__driver_enter(host->device.driver, host->device.context, &scope);

    if (result == CUDA_SUCCESS) {
        result = host->device.driver->cuMemGetInfo(&free_bytes, &total);
        weir__driver_leave(host->device.driver, &scope);
    }
    if (result != CUDA_SUCCESS)
        return driver_refused(host, message, "cannot read the device's memory", result);
    *memory = (struct weir_device_memory){.total = total, .free = free_bytes};
    return WEIR_OK;
}

static int is_fixed(const weir_options *options) {
    return options->engine == WEIR_ENGINE_ARENA && options->arena == WEIR_ARENA_FIXED;
}

static int relimit(struct weir_host *host);

/* Of shares of the device. */
static uint64_t weight_of(const weir_options *o) {
    if (o->limit.kind == WEIR_AMOUNT_SHARE)
        return o->limit.value;
    return o->prealloc.kind == WEIR_AMOUNT_SHARE ? o->prealloc.value : WEIGHT;
}

static int has_share(const weir_options *o) {
    return o->limit.kind == WEIR_AMOUNT_SHARE || o->prealloc.kind == WEIR_AMOUNT_SHARE;
}

/* What a share of that weight comes to, beside what is no share; 0 of 0: nothing. */
static uint64_t part_of(const weir_allocator *a, uint64_t apart, uint64_t weight,
                        uint64_t weights) {
    double all = (double)(a->host.device.total - apart), part;

    part = weights > 0 ? all * (double)weight / (double)weights : 0;
    return weir__size_round_down((size_t)(part < all ? part : all), PART_UNIT);
}

/* Of all processes on the device, this one among them, whether it takes part yet or not. */
static uint64_t all_weights(const struct weir_host *host) {
    const weir_options *o = &host->options;
    uint64_t own = weight_of(o);

    if (host->neighbours)
        return weir__neighbours_weights(host->neighbours);
    return o->ledger == WEIR_SWITCH_ON
               ? own + weir__neighbours_look(host->device.driver, host->device.ordinal,
                                             UINT64_MAX - own)
               : own;
}

/* What is left to others, and shares, in bytes. */
static weir_status set_shares(weir_allocator *a, const struct weir_device_memory *memory,
                              const struct message *message) {
    struct weir_host *host = &a->host;
    weir_options *o = &host->options;
    char asked[32], most[32];
    uint64_t weights;

    host->leave = weir__budget_bytes(&o->leave, memory, 0);
    if (host->leave > memory->total) {
        weir__amount_spell(&o->leave, asked, sizeof asked);
        weir__bytes_show(memory->total, most, sizeof most);
        return cannot(message, o->log, weir__without_driver(WEIR_E_NO_MEMORY),
                      "leave '%s' is above the device's %s: nothing could be allocated; leave less",
                      asked, most);
    }
    if (host->leave > 0 && !is_fixed(o))
        host->relimit = relimit;
    if (!has_share(o))
        return WEIR_OK;
    if (!is_fixed(o))
        host->relimit = relimit;
    if (o->ledger != WEIR_SWITCH_ON)
        weir__log(o->log, WEIR_LOG_WARNING,
                  "%s share is all of the device with ledger off, which knows of no other process",
                  o->limit.kind == WEIR_AMOUNT_SHARE ? "limit" : "prealloc");
    weights = all_weights(host);
    if (weights == 0)
        return cannot(message, o->log, weir__without_driver(WEIR_E_INVALID),
                      "the weights of all processes on the device sum to 0: give one of them a "
                      "share above 0");
    host->apart = host->leave > 0 ? host->leave : memory->total / APART_PART;
    if (o->limit.kind == WEIR_AMOUNT_SHARE && is_fixed(o))
        host->limit = part_of(a, host->leave, o->limit.value, weights);
    else if (o->limit.kind == WEIR_AMOUNT_SHARE) /* it can become that */
        host->limit = memory->total;
    if (o->prealloc.kind == WEIR_AMOUNT_SHARE)
        a->prealloc =
            weir__size_smaller(part_of(a, host->apart, o->prealloc.value, weights), host->limit);
    return WEIR_OK;
}

/* Another program's variable knows nothing of weir's limit. */
static void hold_to_limit(weir_allocator *a, const char *asked) {
    const struct weir_host *host = &a->host;
    char most[32];

    weir__bytes_show(host->limit, most, sizeof most);
    weir__log(host->options.log, WEIR_LOG_WARNING,
              "%s asks to preallocate %s, above the limit of %s: no more than the limit is "
              "preallocated",
              weir__compat_name(host->options.prealloc.reserved), asked, most);
    a->prealloc = host->limit < PART_UNIT ? host->limit : host->limit / PART_UNIT * PART_UNIT;
}

/* Of amounts of different kinds the options could not tell.  A part of what is free is another later, and a share may
 * rise. */
static weir_status hold_least(const weir_allocator *a, const char *asked,
                              const struct message *message) {
    const weir_options *o = &a->host.options;
    const char *of_another = weir__compat_name(o->prealloc.reserved);
    char min[WEIR_SPELL_BYTES], prealloc[WEIR_SPELL_BYTES];

    if ((o->prealloc.kind != WEIR_AMOUNT_BYTES && o->prealloc.kind != WEIR_AMOUNT_OF_TOTAL) ||
        o->prealloc_min.kind == WEIR_AMOUNT_MAX || a->prealloc_min <= a->prealloc)
        return WEIR_OK;
    weir__amount_spell(&o->prealloc_min, min, sizeof min);
    weir__amount_spell(&o->prealloc, prealloc, sizeof prealloc);
    return cannot(message, o->log, weir__without_driver(WEIR_E_INVALID),
                  "prealloc-min '%s' is more than %s '%s', which is %s; expected at most that", min,
                  of_another ? of_another : "prealloc", prealloc, asked);
}

/* Amounts become bytes, and are held against each other and the device. */
static weir_status set_budget(weir_allocator *a, const struct message *message) {
    struct weir_host *host = &a->host;
    weir_options *options = &host->options;
    struct weir_device_memory memory;
    weir_status status = read_memory(host, &memory, message);
    char asked[32], most[32];

    if (status != WEIR_OK)
        return status;
    host->device.total = memory.total;
    a->free_at_first = memory.free;
    host->limit = weir__budget_bytes(&options->limit, &memory, UINT64_MAX);
    if (host->limit > memory.total && is_fixed(options))
        host->limit = memory.total;
    host->threshold = weir__budget_bytes(&options->release_threshold, &memory, UINT64_MAX);
    a->low = weir__budget_bytes(&options->headroom, &memory, 0);
    a->high = weir__budget_bytes(&options->headroom_high, &memory, 0);
    if (a->high < a->low) /* shares of different amounts */
        a->high = a->low;
    a->prealloc = weir__budget_bytes(&options->prealloc, &memory, 0);
    status = set_shares(a, &memory, message);
    if (status != WEIR_OK)
        return status;
    if (a->prealloc == UINT64_MAX) /* "max": all that the limit and the device leave */
        a->prealloc = memory.free < host->limit ? memory.free : host->limit;
    weir__bytes_show(a->prealloc, asked, sizeof asked);
    a->prealloc_min = weir__budget_bytes(&options->prealloc_min, &memory, 0);
    status = hold_least(a, asked, message);
    if (status != WEIR_OK)
        return status;
    if (a->prealloc > host->limit && options->prealloc.reserved != 0)
        hold_to_limit(a, asked);
    if (a->prealloc_min == UINT64_MAX) /* "max": all of it */
        a->prealloc_min = a->prealloc;
    if (a->prealloc > memory.total) {
        weir__bytes_show(memory.total, most, sizeof most);
        return cannot(message, options->log, weir__without_driver(WEIR_E_NO_MEMORY),
                      "preallocation of %s is above the device's %s: preallocate at most that",
                      asked, most);
    }
    if (a->prealloc > host->limit) {
        weir__bytes_show(host->limit, most, sizeof most);
        return cannot(message, options->log, weir__without_driver(WEIR_E_LIMIT),
                      "preallocation of %s is above the limit of %s: raise the limit, or "
                      "preallocate at most that",
                      asked, most);
    }
    if (host->limit < a->ops->least_limit) {
        weir__bytes_show(host->limit, asked, sizeof asked);
        weir__bytes_show(a->ops->least_limit, most, sizeof most);
        return cannot(message, options->log, weir__without_driver(WEIR_E_LIMIT),
                      "a limit of %s leaves the engine nothing: its memory grows by %s", asked,
                      most);
    }
    atomic_init(
        &a->promised,
        weir__size_larger(host->threshold < memory.total ? host->threshold : 0, a->prealloc_min));
    if (host->threshold < a->prealloc)
        host->threshold = a->prealloc;
    return WEIR_OK;
}

/* Headroom that cannot be had, and steps that the release threshold throws away again, are worth a word. */
static void warn_of_what_is_lost(const struct weir_host *host, uint64_t low) {
    uint64_t all = host->limit < host->device.total ? host->limit : host->device.total;
    char asked[32], most[32];

    if (low > all) {
        weir__bytes_show(low, asked, sizeof asked);
        weir__bytes_show(all, most, sizeof most);
        weir__log(host->options.log, WEIR_LOG_WARNING,
                  "headroom of %s is above the %s that can be had at most: so much is kept idle as "
                  "there is",
                  asked, most);
    }
    if (host->options.engine == WEIR_ENGINE_POOL && host->options.headroom.value > 0 &&
        host->threshold < host->device.total)
        weir__log(host->options.log, WEIR_LOG_WARNING,
                  "the release threshold gives back at each synchronisation what headroom took: "
                  "raise it");
    if (host->options.engine == WEIR_ENGINE_POOL && host->options.growth != WEIR_GROWTH_EXACT &&
        host->threshold < host->device.total && host->threshold < ((uint64_t)32 << 20))
        weir__log(host->options.log, WEIR_LOG_WARNING,
                  "the release threshold gives back at each synchronisation what the growth policy "
                  "added: raise it, or choose growth exact");
}

/* A thread preallocates, or most of it. */
static int is_behind(const weir_allocator *a) {
    return a->host.options.prealloc_mode == WEIR_PREALLOC_BACKGROUND && a->host.pace > 0;
}

/* Others have more than their share, until they have heard of this process and have given it. */
static int appeal(struct weir_host *host, struct weir_appeal *s, uint64_t enough, uint64_t wanted) {
    uint64_t now = weir__ledger_now(), device_free = weir__device_free(&host->device);

    if (device_free >= enough + host->apart) { /* as is what the driver does not tell */
        *s = (struct weir_appeal){0};
        return 1;
    }
    if (s->is_answered) { /* that is all for now */
        s->is_answered = 0;
        return 1;
    }
    if (s->began_ns == 0)
        s->began_ns = now;
    if (s->moved_ns == 0 || device_free > s->most_free) {
        s->moved_ns = now;
        s->most_free = device_free;
    }
    if (now - s->moved_ns > STILL_NS)
        return 1;
    s->lacks = wanted + host->apart - device_free;
    return 0;
}

static void ask(struct weir_host *host, struct weir_appeal *s) {
    struct weir_answers answers = weir__neighbours_ask(host->neighbours, s->lacks, s->began_ns,
                                                       weir__ledger_now() + SHARE_NS);

    s->lacks = 0;
    s->is_answered = !answers.awaited;
}

/* What is not the thread's.  Not OK: `text` says why, or nothing. */
static weir_status preallocate(weir_allocator *a, char *text, size_t text_bytes) {
    weir_status status = WEIR_OK;

    weir__ahead_hold(a->host.ahead); /* what it adds is not to be counted here */
    if (!is_behind(a) || a->prealloc_min > 0)
        status = weir__priming_run(&a->priming, !is_behind(a), text, text_bytes);
    weir__ahead_go_on(a->host.ahead);
    return status;
}

/* The rest; the foreground's too, if there can be no thread. */
static weir_status preallocate_behind(weir_allocator *a, char *text, size_t text_bytes) {
    if (!is_behind(a))
        return WEIR_OK;
    if (!a->host.ahead)
        return weir__priming_run(&a->priming, 1, text, text_bytes);
    weir__ahead_prime(a->host.ahead, &a->priming);
    return WEIR_OK;
}

/* The front tells streams apart by ids, which drivers before 12.0 do not have. */
static void need_ids_for_front(struct weir_host *host) {
    if (host->options.front != WEIR_SWITCH_ON ||
        (host->device.driver->capabilities & WEIR_CAP_STREAM_ID))
        return;
    host->options.front = WEIR_SWITCH_OFF;
    weir__log(host->options.log, WEIR_LOG_WARNING,
              "the driver has no stream ids (before 12.0): the front is off");
}

/* Under the front the pool and the platform engine are asked for regions, not for blocks. */
static const struct weir_engine *engine_of(const weir_options *options) {
    int front = options->front == WEIR_SWITCH_ON;

    switch (options->engine) {
    case WEIR_ENGINE_ARENA:
        return &weir__engine_arena;
    case WEIR_ENGINE_PLATFORM:
        return front ? &weir__engine_spans_platform : &weir__engine_platform;
    default:
        return front ? &weir__engine_spans_pool : &weir__engine_pool;
    }
}

static weir_status open_to_peers(struct weir_host *host, const struct message *message) {
    const char *peers = host->options.peers;
    char why[256] = "";
    CUresult result;
    weir_status status = weir__peers_read(host->device.driver, host->device.ordinal, peers,
                                          &host->device.access, &result, why, sizeof why);

    host->options.peers = NULL; /* the caller's need not live on */
    if (status == WEIR_OK)
        return WEIR_OK;
    status = result == CUDA_SUCCESS ? weir__without_driver(status)
                                    : weir__device_status(&host->device, result);
    return cannot(message, host->options.log, status, "peers '%s': %s", peers, why);
}

/* Only pools of the driver's are for several processes. */
static weir_status open_exports(weir_allocator *a, const struct message *message) {
    const struct weir_host *host = &a->host;
    int kinds = 0;

    if (host->options.exportable != WEIR_SWITCH_ON)
        return WEIR_OK;
    /* Older drivers do not know the question (11.2). */
    if (!(host->device.driver->capabilities & WEIR_CAP_IPC) ||
        (host->device.driver->cuDeviceGetAttribute(
             &kinds, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, host->device.ordinal) ==
             CUDA_SUCCESS &&
         !(kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
        return cannot(message, host->options.log, weir__without_driver(WEIR_E_NOT_SUPPORTED),
                      "export: neither driver nor device hands pools to other processes");
    return weir__exports_open(host, &a->exports);
}

/* A fixed arena is one region of its whole size, taken at once or at the first request. */
static void size_fixed_arena(weir_allocator *a) {
    weir_options *options = &a->host.options;

    if (is_fixed(options)) {
        a->prealloc = a->host.limit < 256 ? a->host.limit : a->host.limit / 256 * 256;
        a->prealloc_min = 0;
        options->prealloc = (weir_amount){.value = a->prealloc, .kind = WEIR_AMOUNT_BYTES};
        options->prealloc_deadline_ms = UINT32_MAX;
    }
    if (options->engine == WEIR_ENGINE_PLATFORM)
        a->prealloc = a->prealloc_min = 0;
}

/* More than a share falls to when another comes that counts as much. */
static int is_above_share(const weir_allocator *a) {
    const weir_options *o = &a->host.options;

    return a->prealloc > 0 &&
           (o->prealloc.kind == WEIR_AMOUNT_SHARE || o->prealloc.kind == WEIR_AMOUNT_MAX ||
            a->prealloc > part_of(a, a->host.leave, o->limit.value, all_weights(&a->host)) / 2);
}

/* A share falls as others come; not every arena falls with it. */
static void warn_of_what_stays(const weir_allocator *a) {
    const weir_options *o = &a->host.options;

    if (!has_share(o) || o->engine != WEIR_ENGINE_ARENA)
        return;
    if (is_fixed(o))
        weir__log(o->log, WEIR_LOG_WARNING,
                  "a fixed arena keeps the share that it has now, also as others come: choose "
                  "engine pool, or arena mapped, to have it fall");
    else if (o->arena == WEIR_ARENA_REGIONS && is_above_share(a))
        weir__log(o->log, WEIR_LOG_WARNING,
                  "arena regions preallocates one region, which goes whole or not at all: it stays "
                  "above its share as others come; choose engine pool, or arena mapped");
}

/* Nothing is ignored silently: settings that the chosen engine has no use for draw one warning. */
static void warn_of_unused(const struct weir_host *host, const weir_options *given) {
    const weir_options *o = &host->options;
    int platform = o->engine == WEIR_ENGINE_PLATFORM, arena = o->engine == WEIR_ENGINE_ARENA;
    int fixed = arena && o->arena == WEIR_ARENA_FIXED,
        mapped = arena && o->arena == WEIR_ARENA_MAPPED;
    const struct {
        int unused;
        enum weir_setting setting;
    } settings[] = {
        {platform || fixed, WEIR_SETTING_PREALLOC},
        {platform || fixed, WEIR_SETTING_GROWTH},
        {fixed, WEIR_SETTING_LEAVE},
        {platform || arena, WEIR_SETTING_RELEASE_THRESHOLD},
        {!arena, WEIR_SETTING_ARENA},
        {!mapped, WEIR_SETTING_PACKING},
        {!arena && o->front == WEIR_SWITCH_OFF, WEIR_SETTING_INTERNAL_DEPENDENCIES},
        {platform || fixed, WEIR_SETTING_HEADROOM},
        {platform || fixed, WEIR_SETTING_PREALLOC_MIN},
        {platform || fixed, WEIR_SETTING_PREALLOC_DEADLINE},
        {platform || fixed, WEIR_SETTING_PREALLOC_MODE},
        {!weir__learn_can(o), WEIR_SETTING_PROFILE},
        {platform || fixed, WEIR_SETTING_DECAY},
    };

    for (size_t i = 0; given && i < sizeof settings / sizeof settings[0]; i++)
        if (settings[i].unused && weir__option_is_set(given, settings[i].setting))
            weir__log(o->log, WEIR_LOG_WARNING, "%s has no effect with %s",
                      weir__setting_row(settings[i].setting)->name,
                      fixed      ? "a fixed arena: its size is the limit"
                      : platform ? "engine platform"
                      : arena && settings[i].setting == WEIR_SETTING_PACKING
                          ? "an arena that is not mapped"
                      : arena ? "engine arena"
                              : "engines other than arena");
}

/* What gaps and rounding leave of so many bytes of the engine. */
static size_t fit(const struct weir_host *host, size_t bytes) {
    if (host->options.front == WEIR_SWITCH_ON)
        bytes = weir__front_fit(bytes);
    return host->options.harden == WEIR_HARDEN_OFF ? bytes : weir__harden_fit(host, bytes);
}

static void figures_of(struct weir_host *host, weir_statistics *out) {
    weir__stats_read(allocator_of(host), out);
}

/* The first requests would spend most of their time on it. */
static void prepare(struct weir_host *host) {
    weir_allocator *a = allocator_of(host);
    struct weir_extent extents[EXTENTS];
    size_t count, bytes = 0;

    if (!a->ops->extents)
        return;
    count = a->ops->extents(a->engine, extents, EXTENTS);
    if (a->front)
        weir__front_prepare(a->front, extents, count, PREPARED);
    for (size_t i = 0; i < count; i++)
        bytes += extents[i].bytes;
    if (a->ops->stock)
        a->ops->stock(a->engine, weir__size_smaller(bytes, PREPARED));
}

/* Without it requests grow by themselves, and preallocation is done in the foreground. */
static void look_ahead(weir_allocator *a, int at_create) {
    struct weir_host *host = &a->host;
    int behind = a->prealloc > 0 && is_behind(a), result_before = weir__driver_result;

    host->keeps_ahead = a->low > 0 && host->pace > 0;
    if ((a->low == 0 && !behind) || host->pace == 0 ||
        weir__ahead_open(host, a->ops, a->engine, a->low, a->high,
                         behind && at_create ? &a->priming : NULL, &host->ahead) == WEIR_OK)
        return;
    host->keeps_ahead = 0;
    weir__log(host->options.log, WEIR_LOG_WARNING,
              "nothing is done in the background: the host has no memory, or no thread");
    weir__set_driver_result(result_before);
}

/* What earlier runs needed, or what nobody was to wait for, is a wish: without it there is an allocator all
 * the same. */
static weir_status as_a_wish(const weir_allocator *a, weir_status status, int result_before) {
    char why[160];

    if (status == WEIR_OK || status == WEIR_E_DEVICE_LOST || a->prealloc_min > 0 ||
        !(a->profile_asked > 0 || is_behind(a)))
        return status;
    weir__log(a->host.options.log, WEIR_LOG_WARNING, "preallocation is left out: %s",
              why_not(&a->host, status, why, sizeof why));
    weir__set_driver_result(result_before);
    return WEIR_OK;
}

/* As the allocator is made. */
static weir_status preallocate_now(weir_allocator *a, char *text, size_t text_bytes) {
    int result_before = weir__driver_result;
    weir_status status = as_a_wish(a, preallocate(a, text, text_bytes), result_before);

    if (status == WEIR_OK)
        look_ahead(a, 1);
    if (status == WEIR_OK && !a->host.ahead)
        status = as_a_wish(a, preallocate_behind(a, text, text_bytes), result_before);
    return status;
}

/* What earlier runs needed, unless the program says what it wants; never less than it must get. */
static void learn(weir_allocator *a, const weir_options *given) {
    struct weir_host *host = &a->host;
    uint64_t target;

    a->learn = weir__learn_open(host->device.driver, host->device.ordinal, &host->options);
    host->options.profile = a->learn ? a->learn->path : NULL; /* the caller's need not live on */
    if (!a->learn || weir__option_is_set(given, WEIR_SETTING_PREALLOC))
        return;
    target = weir__learn_target(a->learn, host);
    if (target <= a->prealloc)
        return;
    a->profile_asked = a->prealloc = target;
    host->options.prealloc = (weir_amount){.value = target, .kind = WEIR_AMOUNT_BYTES};
    if (host->threshold < a->prealloc)
        host->threshold = a->prealloc;
}

/* NULL: the reserve can be told. */
static const char *why_not_told(const struct weir_host *host) {
    switch (host->options.engine) {
    case WEIR_ENGINE_PLATFORM:
        return "the platform engine has no reserve";
    case WEIR_ENGINE_ARENA:
        return NULL;
    default:
        return host->device.driver->capabilities & WEIR_CAP_POOL_FIGURES
                   ? NULL
                   : "the driver (before 11.3) does not tell what its pool has";
    }
}

/* Why reserve never goes back by itself: it cannot be told, or is fixed.  NULL: it may. */
static const char *why_it_stays(const struct weir_host *host) {
    const char *reason = why_not_told(host);

    return !reason && is_fixed(&host->options) ? "a fixed arena keeps its size" : reason;
}

static int can_shrink(const struct weir_host *host) {
    return !why_it_stays(host);
}

/* What is preallocated raises the floor when it has been. */
static void set_decay(weir_allocator *a) {
    struct weir_host *host = &a->host;
    const weir_options *o = &host->options;
    int off = o->decay_ms == UINT64_MAX || !can_shrink(host);
    int in_requests = o->engine == WEIR_ENGINE_POOL || o->arena == WEIR_ARENA_MAPPED;

    weir__decay_open(&host->decay, off ? 0 : o->decay_ms * UINT64_C(1000000),
                     host->threshold < host->device.total ? host->threshold : 0, in_requests,
                     a->low > 0 ? a->high : 0);
    weir__relief_open(&host->relief, in_requests && can_shrink(host));
}

static uint64_t borrow(struct weir_host *host, uint64_t least, uint64_t most, int may_wait);
static void refused(struct weir_host *host);
static void join_neighbours(weir_allocator *a);
static weir_status serve(void *allocator, size_t bytes, weir_stream stream, CUdeviceptr *block);
static weir_status take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses);

static void leave_neighbours(weir_allocator *a) {
    if (a->host.neighbours)
        weir__neighbours_leave(a->host.neighbours, &a->claim, &a->host.shown);
}

/* What the device says of the settings. */
static weir_status hold_settings(weir_allocator *a, const weir_options *given,
                                 const struct message *message) {
    weir_status status = set_budget(a, message);

    if (status == WEIR_OK)
        status = open_to_peers(&a->host, message);
    if (status == WEIR_OK)
        status = open_exports(a, message);
    if (status != WEIR_OK)
        return status;
    warn_of_what_is_lost(&a->host, a->low);
    warn_of_unused(&a->host, given);
    warn_of_what_stays(a);
    return WEIR_OK;
}

/* A limit as the engine counts. */
static uint64_t in_units(const weir_allocator *a, uint64_t limit) {
    return limit != UINT64_MAX && a->ops->least_limit
               ? weir__size_round_down((size_t)limit, a->ops->least_limit)
               : limit;
}

/* Everything after the context: undone by release_device on failure. */
static weir_status furnish(weir_allocator *a, const weir_options *given,
                           const struct message *message) {
    struct weir_host *host = &a->host;
    weir_status status = hold_settings(a, given, message);
    char why[160] = "";
    int at_create;

    if (status != WEIR_OK)
        return status;
    size_fixed_arena(a);
    learn(a, given);
    set_decay(a);
    status = a->ops->open(host, &a->engine);
    if (status != WEIR_OK) {
        weir__exports_close(a->exports);
        weir__learn_close(a->learn);
        return cannot(message, host->options.log, status, "cannot open the engine: %s",
                      why_not(host, status, why, sizeof why));
    }
    a->asked = a->most =
        in_units(a, host->limit); /* the engine knows the most that it can become */
    if (host->relimit)
        (void)relimit(host);
    if (host->options.front == WEIR_SWITCH_ON)
        status = weir__front_open(host, a->ops, a->engine, &a->front);
    if (status == WEIR_OK && host->options.harden != WEIR_HARDEN_OFF)
        status = weir__harden_open(
            host, &(struct weir_harden_below){.alloc = serve, .free = take_back, .context = a},
            &a->harden);
    atomic_init(&host->share, UINT64_MAX);
    if (host->neighbours && host->options.prealloc.kind == WEIR_AMOUNT_SHARE) {
        host->appeal = appeal;
        host->ask = ask;
    }
    weir__priming_open(&a->priming, host, a->ops, a->engine, a->prealloc, a->prealloc_min);
    at_create = a->prealloc > 0 && host->options.prealloc_at != WEIR_PREALLOC_AT_FIRST;
    if (a->prealloc > 0 && !at_create)
        (void)weir__detour_set(&host->device.slow_path, WEIR_DETOUR_PREALLOC, 1);
    if (status == WEIR_OK && at_create)
        status = preallocate_now(a, why, sizeof why);
    else if (status == WEIR_OK)
        look_ahead(a, 0);
    if (status == WEIR_OK && !at_create)
        prepare(host);
    if (!a->front || a->books.latency || a->harden)
        (void)weir__detour_set(&host->device.slow_path, WEIR_DETOUR_ALWAYS, 1);
    if (host->options.oom_callback)
        (void)weir__detour_set(&host->device.slow_path, WEIR_DETOUR_OOM, 1);
    if (status == WEIR_OK)
        return WEIR_OK;
    weir__ahead_close(host->ahead);
    weir__priming_close(&a->priming);
    weir__harden_close(a->harden);
    weir__front_close(a->front);
    a->ops->close(a->engine);
    weir__exports_close(a->exports);
    weir__learn_close(a->learn);
    return cannot(message, host->options.log, status, "cannot start: %s",
                  why[0] ? why : why_not(host, status, why, sizeof why));
}

/* A zeroed one, its options understood.  NULL: the status says why, and `message` of the options. */
static weir_allocator *begin(const struct weir_driver *driver, const weir_options *options,
                             int *ordinal, weir_status *status, const struct message *message) {
    weir_allocator *a = aligned_alloc(_Alignof(weir_allocator), sizeof *a);
    const char *driver_name;

    *status = a ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
    if (!a)
        return NULL;
    memset(a, 0, sizeof *a);
    a->host.device.driver = driver;
    a->host.books = &a->books;
    atomic_init(&a->host.device.log, WEIR_LOG_NONE);
    *status = weir__options_complete(options, &a->host.options, message->text, message->bytes);
    if (*status == WEIR_OK)
        *status = weir__device_parse(a->host.options.device, &driver_name, ordinal, message->text,
                                     message->bytes);
    if (*status == WEIR_OK)
        return a;
    (void)weir__without_driver(*status);
    free(a);
    return NULL;
}

weir_status weir__allocator_check_on(const struct weir_driver *driver, const weir_options *options,
                                     uint64_t *prealloc, char *message, size_t message_bytes) {
    struct message to = {message, message_bytes};
    weir_status status;
    int ordinal = 0;
    weir_allocator *a = begin(driver, options, &ordinal, &status, &to);

    if (!a)
        return status;
    need_ids_for_front(&a->host);
    a->ops = engine_of(&a->host.options);
    status = find_device(&a->host, ordinal, &to);
    if (status == WEIR_OK)
        status = open_context(&a->host, &to);
    if (status == WEIR_OK) {
        int result;

        status = hold_settings(a, options, &to);
        result = weir__driver_result;
        weir__exports_close(a->exports);
        driver->cuDevicePrimaryCtxRelease(a->host.device.ordinal);
        weir__set_driver_result(result);
    }
    if (status == WEIR_OK)
        *prealloc = a->prealloc;
    free(a);
    return status;
}

/* Who asks for it looks for it there: it is said where the log was not set, too, once in the process. */
static void warn_of_verdict(const weir_options *o, const weir_options *given) {
    int problem = weir__verdict_problem(o->verdict), is_new = 1;
    char line[1024];

    if (!problem)
        return;
    snprintf(line, sizeof line,
             "verdict '%s': %s; expected stderr, off or a file that can be written: refusals are "
             "told on standard error until then",
             o->verdict, strerror(problem));
    (void)weir__text_keep(line, &is_new);
    if (is_new)
        weir__log(weir__option_is_set(given, WEIR_SETTING_LOG) ? o->log : WEIR_LOG_WARNING,
                  WEIR_LOG_WARNING, "%s", line);
}

static weir_status create_on(const struct weir_driver *driver, const weir_options *options,
                             int decompresses, weir_allocator **allocator, char *message,
                             size_t message_bytes) {
    static _Atomic uint64_t made; /* so far */
    struct message to = {message, message_bytes};
    weir_allocator *a;
    weir_status status;
    int ordinal = 0;

    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    weir__nvtx_attach();
    a = begin(driver, options, &ordinal, &status, &to);
    if (!a)
        return status;
    a->host.number = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed) + 1;
    a->host.fit = fit;
    a->host.figures = figures_of;
    a->host.borrow = borrow;
    a->host.prepare = prepare;
    a->host.refused = refused;
    a->host.device.created_ticks = driver->ticks();
    a->host.device.decompresses = decompresses;
    if (weir__verdict_is_wanted(a->host.options.verdict)) /* the caller's need not live on */
        a->host.options.verdict = weir__text_keep(a->host.options.verdict, NULL);
    if (!a->host.options.verdict) {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
        goto free_allocator;
    }
    warn_of_verdict(&a->host.options, options);
    need_ids_for_front(&a->host);
    a->ops = engine_of(&a->host.options);
    if (!weir__books_open(&a->books, a->host.options.event_ring,
                          a->host.options.latency == WEIR_SWITCH_ON)) {
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
        goto free_allocator;
    }
    status = find_device(&a->host, ordinal, &to);
    if (status != WEIR_OK)
        goto close_books;
    join_neighbours(a); /* before there is a context: others make room for it */
    status = open_context(&a->host, &to);
    if (status != WEIR_OK)
        goto leave_neighbours;
    status = furnish(a, options, &to);
    if (status != WEIR_OK)
        goto release_context;
    weir__uses_open(&a->uses, &a->host.device.slow_path);
    pthread_mutex_init(&a->first, NULL);
    a->sibling.driver = driver;
    a->sibling.device = a->host.device.ordinal;
    a->sibling.owner = a;
    atomic_store_explicit(&a->host.device.log, a->host.options.log, memory_order_relaxed);
    weir__siblings_join(&a->sibling); /* from here on others may call it */
    *allocator = a;
    return WEIR_OK;

release_context:
    driver->cuDevicePrimaryCtxRelease(a->host.device.ordinal);
leave_neighbours:
    leave_neighbours(a);
close_books:
    weir__books_close(&a->books);
free_allocator:
    free(a);
    return status;
}

weir_status weir__allocator_create_on(const struct weir_driver *driver, const weir_options *options,
                                      weir_allocator **allocator, char *message,
                                      size_t message_bytes) {
    return create_on(driver, options, 0, allocator, message, message_bytes);
}

weir_status weir__allocator_create(const weir_options *options, int decompresses,
                                   weir_allocator **allocator, char *message,
                                   size_t message_bytes) {
    struct weir_driver_failure failure;
    const struct weir_driver *driver;
    const char *name;
    weir_options completed;
    struct message to = {message, message_bytes};
    weir_status status;
    char why[320];
    int ordinal;

    if (!allocator)
        return cannot(&to, weir__options_log(options), weir__without_driver(WEIR_E_INVALID),
                      "weir_allocator_create: allocator is NULL");
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    status = weir__options_complete(options, &completed, why, sizeof why);
    if (status == WEIR_OK)
        status = weir__device_parse(completed.device, &name, &ordinal, why, sizeof why);
    if (status != WEIR_OK)
        return cannot(&to, weir__options_log(options), weir__without_driver(status), "%s", why);
    driver = weir__driver_open(name, &failure);
    if (!driver)
        return cannot(&to, completed.log, weir__without_driver(WEIR_E_NO_DEVICE), "%s",
                      failure.text);
    return create_on(driver, options, decompresses, allocator, message, message_bytes);
}

weir_status weir_allocator_create(const weir_options *options, weir_allocator **allocator) {
    return weir__allocator_create(options, 0, allocator, NULL, 0);
}

__attribute__((noinline, cold)) weir_status weir__allocator_misuse(const weir_allocator *a,
                                                                   weir_status status,
                                                                   const char *what,
                                                                   const char *why) {
    if (a)
        weir__log(a->host.options.log, WEIR_LOG_ERROR, "%s: %s", what, why);
    return weir__without_driver(status);
}

static weir_status misuse(const weir_allocator *a, weir_status status, const char *what) {
    return weir__allocator_misuse(a, status, what, weir_status_message(status));
}

static int has_blocks(const weir_allocator *a) {
    weir_statistics figures = {.size = sizeof figures};

    if (a->harden &&
        (weir__harden_has_blocks(a->harden) || weir__harden_empty(a->harden, 1) != WEIR_OK))
        return 1;
    if (a->front)
        return weir__front_has_blocks(a->front);
    if (a->ops->has_blocks)
        return a->ops->has_blocks(a->engine);
    a->ops->figures(a->engine, &figures);
    return figures.requested > 0;
}

/* 1 if memory may go.  Where the device cannot be waited for, for want of memory, say, it stays, and the
 * allocator with it: what is still used must not be unmapped, and is not lost either. */
static int is_settled(const weir_allocator *a) {
    weir_status status = a->ops->settle ? a->ops->settle(a->engine) : WEIR_OK;

    return status == WEIR_OK || status == WEIR_E_DEVICE_LOST;
}

weir_status weir_allocator_destroy(weir_allocator *a) {
    int result_before = weir__driver_result, lost, busy;

    if (!a)
        return WEIR_OK;
    if (weir__driver_forked())
        return misuse(a, WEIR_E_FORKED, "destroy");
    lost = weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_LOST);
    weir__ahead_hold(a->host.ahead);
    busy = !lost &&
           (has_blocks(a) || !weir__recovery_drain(a->ops, a->engine, &a->host) || !is_settled(a));
    weir__ahead_go_on(a->host.ahead);
    if (busy)
        return misuse(a, WEIR_E_BUSY, "destroy");
    weir__siblings_leave(&a->sibling);
    weir__ahead_close(a->host.ahead);
    weir__priming_close(&a->priming);
    if (!lost && a->learn)
        (void)weir__learn_save(a, NULL); /* a refusal is in the log */
    weir__learn_close(a->learn);
    weir__harden_close(a->harden);
    weir__front_close(a->front);
    weir__exports_close(a->exports);
    a->ops->close(a->engine);
    weir__anywhere_close(a);
    weir__decay_close(&a->host.decay);
    weir__relief_close(&a->host.relief);
    leave_neighbours(a);
    weir__device_end_waits(&a->host.device);
    weir__set_driver_result(result_before);
    a->host.device.driver->cuDevicePrimaryCtxRelease(a->host.device.ordinal);
    weir__uses_close(&a->uses);
    weir__books_close(&a->books);
    pthread_mutex_destroy(&a->first);
    free(a);
    return WEIR_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* What every request asks first, */
static inline __attribute__((always_inline)) weir_status go_on(const weir_allocator *a) {
    if (weir__driver_forked())
        return misuse(a, WEIR_E_FORKED, "a call");
    if (weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    return WEIR_OK;
}

/* and every call of the program's before that. */
static inline __attribute__((always_inline)) weir_status gate(const weir_allocator *a) {
    return a ? go_on(a) : weir__without_driver(WEIR_E_INVALID);
}

/* The preallocation that waited for the first request; requests beside it wait for it.  A refusal is in the
 * log and the figures, and the request may be served all the same, unless there is less than must be:
 * then it fails, and the next one tries again. */
static weir_status preallocate_first(weir_allocator *a) {
    weir_status status = WEIR_OK;
    char why[160] = "";

    pthread_mutex_lock(&a->first);
    /* unreached: not any more, for which another thread must do it meanwhile */
    if (weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_PREALLOC)) {
        int result_before = weir__driver_result;

        status = preallocate(a, why, sizeof why);
        if (status == WEIR_OK)
            status = preallocate_behind(a, why, sizeof why);
        if (status == WEIR_OK || a->prealloc_min == 0) {
            status = WEIR_OK;
            weir__set_driver_result(result_before);
            (void)weir__detour_set(&a->host.device.slow_path, WEIR_DETOUR_PREALLOC, 0);
        } else {
            weir__log(a->host.says_why ? WEIR_LOG_ERROR : a->host.options.log, WEIR_LOG_ERROR, "%s",
                      why[0] ? why : weir_status_message(status));
            a->host.says_why = 0;
        }
    }
    pthread_mutex_unlock(&a->first);
    return status;
}

static int is_refusal(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* A block from the engine itself. */
static weir_status ask_engine(weir_allocator *a, size_t bytes, weir_stream stream,
                              CUdeviceptr *block) {
    int before = weir__driver_result, grew = 0;
    weir_status status;

    (void)weir__ahead_catch_up(&a->host);
    status = a->ops->alloc(a->engine, bytes, stream, 0, 1, block, &grew);

    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) {
        status = weir__recovery_alloc(a->ops, a->engine, &a->host, status, bytes, bytes, stream,
                                      block, &grew);
        if (status == WEIR_OK)
            weir__set_driver_result(before);
    }
    if (status != WEIR_OK) {
        weir__device_log_alloc(&a->host.device, bytes, status);
        return status;
    }
    weir__ahead_look(&a->host, bytes, grew);
    if (grew && a->host.relimit)
        (void)relimit(&a->host);
    weir__tally_add(&a->books.tally, WEIR_TALLY_ALLOCS);
    if (grew)
        atomic_fetch_add_explicit(&a->books.growth_allocs, 1, memory_order_release);
    weir__decay_look(&a->host, a->ops, a->engine, stream, 0);
    if (weir__relief_is_due(&a->host.relief))
        (void)weir__relief_look(&a->host, a->ops, a->engine, stream, 0);
    return WEIR_OK;
}

/* More than the device has: the driver would take long to find that out. */
static __attribute__((noinline, cold)) weir_status refuse(weir_allocator *a, size_t bytes,
                                                          weir_stream stream) {
    CUdeviceptr none = 0;
    int grew = 0;

    return weir__recovery_alloc(a->ops, a->engine, &a->host, weir__without_driver(WEIR_E_NO_MEMORY),
                                bytes, bytes, stream, &none, &grew);
}

static weir_status serve(void *allocator, size_t bytes, weir_stream stream, CUdeviceptr *block) {
    weir_allocator *a = allocator;
    void *served = NULL;
    weir_status status;

    if (!a->front)
        return ask_engine(a, bytes, stream, block);
    status = weir__front_alloc(a->front, bytes, stream, &served);
    if (status == WEIR_OK)
        *block = (uintptr_t)served;
    return status;
}

/* Of `met` refusals on the way no more count than what came of the request. */
static void one_refusal(weir_allocator *a, uint64_t met, int refused) {
    if (met > (uint64_t)refused)
        atomic_fetch_sub_explicit(&a->books.refusals, met - (uint64_t)refused,
                                  memory_order_relaxed);
}

static weir_status request_here(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    CUdeviceptr address = 0;
    uint64_t met = a->harden ? weir__refusals_met() : 0;
    weir_status status = WEIR_OK;

    if (weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_PREALLOC))
        status = preallocate_first(a);
    if (status != WEIR_OK)
        return status;
    if (bytes > a->host.device.total)
        return refuse(a, bytes, stream);
    status = a->harden ? weir__harden_alloc(a->harden, bytes, stream, &address)
                       : serve(a, bytes, stream, &address);
    if (a->harden) /* which may ask below more than once */
        one_refusal(a, weir__refusals_met() - met, is_refusal(status));
    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)address;
    else if (a->harden && is_refusal(status)) /* what is put around a block is not of the request */
        weir__refusal_asked(bytes);
    if (status == WEIR_OK && weir__uses_any(&a->uses))
        weir__uses_forget(&a->uses, (uintptr_t)*block);
    return status;
}

/* On a thread without a context a default stream needs one: see engine.h. */
static int lend_context(const weir_allocator *a) {
    return weir__device_lacks_context && weir__device_lend_context(&a->host.device);
}

static weir_status request(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    int lent = lend_context(a);
    weir_status status = request_here(a, bytes, stream, block);

    weir__device_end_context(&a->host.device, lent);
    return status;
}

/* A callback of this thread is at work: what fails meanwhile fails. */
static _Thread_local int asking;

/* Asks the program, which may call weir: 1, or 0 with the thread's figures as they were. */
static int ask_program(weir_allocator *a, size_t bytes, weir_stream stream, weir_status status,
                       uint64_t attempt) {
    const weir_options *options = &a->host.options;
    int result = weir__driver_result, again;
    struct weir_refused refused;
    weir_oom oom = {
        .size = sizeof oom,
        .allocator = a,
        .stream = stream,
        .bytes = bytes,
        .attempt = attempt,
        .status = status,
    };

    weir__refusal_get(&refused);
    oom.largest = refused.figures.largest;
    asking = 1;
    again = options->oom_callback(&oom, options->oom_callback_data);
    asking = 0;
    weir__refusal_set(&refused);
    weir__set_driver_result(result);
    return again != 0;
}

/* May the program be asked about this refusal?  The stream is as it was: nothing may be asked of one that
 * is being captured. */
static int may_ask(weir_allocator *a, weir_stream stream) {
    int result = weir__driver_result;
    weir_status captured = weir__device_capture(&a->host.device, stream);

    weir__set_driver_result(result);
    return captured == WEIR_OK;
}

/* The ladder's last rung. */
static weir_status request_or_ask(weir_allocator *a, size_t bytes, weir_stream stream,
                                  void **block) {
    int before = weir__driver_result;

    for (uint64_t attempt = 1;; attempt++) {
        uint64_t met = weir__refusals_met();
        weir_status status = request(a, bytes, stream, block);

        if (status == WEIR_OK && attempt > 1)
            weir__set_driver_result(before);
        if (!is_refusal(status) || asking || weir__refusals_met() == met || !may_ask(a, stream) ||
            !ask_program(a, bytes, stream, status, attempt))
            return status;
        /* It is not refused yet. */
        atomic_fetch_sub_explicit(&a->books.refusals, 1, memory_order_relaxed);
        status = go_on(a);
        if (status != WEIR_OK)
            return status;
    }
}

/* Why this thread was refused goes where the program wants it to. */
static __attribute__((noinline, cold)) void tell(weir_allocator *a) {
    weir_verdict verdict;

    if (weir__verdict_is_news(a, &verdict))
        weir__verdict_tell(&verdict, a->host.options.verdict);
}

/* It may be served yet, where something above the ladder asks again: then they tell. */
static int is_asked_again(const weir_allocator *a) {
    return a->harden || a->host.options.oom_callback;
}

static void refused(struct weir_host *host) {
    weir_allocator *a = allocator_of(host);

    if (weir__verdict_is_wanted(host->options.verdict) && !is_asked_again(a) &&
        !host->device.drop_in)
        tell(a);
}

static void note_latency(weir_allocator *a, int operation, uint64_t started) {
    weir__histogram_add(&a->books.latency[operation], weir__device_since(&a->host.device, started));
}

static __attribute__((noinline)) weir_status alloc_fully(weir_allocator *a, size_t bytes,
                                                         weir_stream stream, void **block) {
    weir_status status = gate(a);
    uint64_t started, met = weir__refusals_met();

    if (status != WEIR_OK)
        return status;
    if (!block)
        return misuse(a, WEIR_E_INVALID, "weir_alloc: block is NULL");
    if (bytes == 0) {
        *block = NULL;
        return WEIR_OK;
    }
    started = a->books.latency ? a->host.device.driver->ticks() : 0;
    status = a->host.options.oom_callback ? request_or_ask(a, bytes, stream, block)
                                          : request(a, bytes, stream, block);
    if (a->books.latency)
        note_latency(a, WEIR_OPERATION_ALLOC, started);
    if (is_refusal(status) && is_asked_again(a) && !asking && weir__refusals_met() > met &&
        weir__verdict_is_wanted(a->host.options.verdict) && !a->host.device.drop_in)
        tell(a);
    return status;
}

/* 1 if there is nothing to do about a call but to hand it to the front: no detour but those that are no
 * concern of the call, which is more than `gate` asks. */
static inline int is_plain(const weir_allocator *a, unsigned no_concern) {
    return a &&
           (atomic_load_explicit(&a->host.device.slow_path, memory_order_acquire) & ~no_concern) ==
               0 &&
           !weir__driver_forked();
}

weir_status weir_alloc(weir_allocator *a, size_t bytes, weir_stream stream, void **block) {
    if (is_plain(a, 0) && block && bytes - 1 < a->host.device.total)
        return weir__front_alloc(a->front, bytes, stream, block);
    return alloc_fully(a, bytes, stream, block);
}

static weir_status take_back(void *allocator, CUdeviceptr block, weir_stream stream,
                             struct weir_use_list *uses) {
    weir_allocator *a = allocator;
    weir_status status;

    if (a->front)
        return weir__front_free_used(a->front, block, stream, uses);
    status = a->ops->free(a->engine, block, stream, uses);
    if (status == WEIR_OK)
        weir__tally_add(&a->books.tally, WEIR_TALLY_FREES);
    else
        weir__device_log_free(&a->host.device, block, status);
    return status;
}

static weir_status release(weir_allocator *a, CUdeviceptr block, weir_stream stream) {
    struct weir_use_list *uses = weir__uses_any(&a->uses) ? weir__uses_take(&a->uses, block) : NULL;
    int lent = lend_context(a);
    weir_status status = a->harden ? weir__harden_free(a->harden, block, stream, uses)
                                   : take_back(a, block, stream, uses);

    if (uses)
        weir__uses_settle(&a->uses, block, uses, status == WEIR_OK);
    weir__device_end_context(&a->host.device, lent);
    return status;
}

static __attribute__((noinline)) weir_status free_fully(weir_allocator *a, void *block,
                                                        weir_stream stream) {
    weir_status status = gate(a);
    uint64_t started;

    if (status != WEIR_OK || !block)
        return status;
    if (weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_SHARED)) {
        status = weir__exports_withdraw(a, (uintptr_t)block);
        if (status != WEIR_OK)
            return misuse(a, status, "a free of a block that another process has");
    }
    started = a->books.latency ? a->host.device.driver->ticks() : 0;
    status = release(a, (uintptr_t)block, stream);
    if (a->books.latency)
        note_latency(a, WEIR_OPERATION_FREE, started);
    return status;
}

weir_status weir_free(weir_allocator *a, void *block, weir_stream stream) {
    if (is_plain(a, WEIR_DETOUR_OOM) && block)
        return weir__front_free(a->front, (uintptr_t)block, stream);
    return free_fully(a, block, stream);
}

int weir__allocator_is_live(const weir_allocator *a, CUdeviceptr block) {
    if (a->harden)
        return weir__harden_is_live(a->harden, block);
    if (a->front)
        return weir__front_is_live(a->front, block);
    return !a->ops->is_live || a->ops->is_live(a->engine, block);
}

weir_status weir_use(weir_allocator *a, void *block, weir_stream stream) {
    weir_status status = gate(a);
    uint64_t id = 0;

    if (status != WEIR_OK)
        return status;
    if (!block)
        return misuse(a, WEIR_E_INVALID, "weir_use: block is NULL");
    if (!weir__allocator_is_live(a, (uintptr_t)block))
        return misuse(a, WEIR_E_NOT_OWNED, "weir_use");
    if ((uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE) { /* means another one elsewhere */
        int lent = lend_context(a);
        CUresult result = weir__device_stream_id(&a->host.device, stream, &id);

        weir__device_end_context(&a->host.device, lent);
        if (result != CUDA_SUCCESS)
            return weir__device_status(&a->host.device, result);
    }
    if (!weir__uses_note(&a->uses, (uintptr_t)block, stream, id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    return WEIR_OK;
}

/* 1, or 0: no live block is there that it could tell. */
static int find(const weir_allocator *a, CUdeviceptr address, CUdeviceptr *block, size_t *bytes) {
    CUdeviceptr below;

    if (!(a->front ? weir__front_find(a->front, address, block, bytes)
                   : a->ops->find(a->engine, address, block, bytes)))
        return 0;
    below = *block;
    return !a->harden ||
           (weir__harden_find(a->harden, below, block, bytes) && address - *block < *bytes);
}

weir_status weir_block_range(weir_allocator *a, const void *address, void **block, size_t *bytes) {
    weir_status status = gate(a);
    CUdeviceptr start = 0;
    size_t asked = 0;

    if (status != WEIR_OK)
        return status;
    if (!address)
        return misuse(a, WEIR_E_INVALID, "weir_block_range: address is NULL");
    if (!a->front && !a->ops->find)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    if (!find(a, (uintptr_t)address, &start, &asked))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (block)
        *block = (void *)(uintptr_t)start;
    if (bytes)
        *bytes = asked;
    return WEIR_OK;
}

/* For another reason than that there is no more.  What the driver answered is in the log by then. */
static weir_status cannot_preallocate(const weir_allocator *a, weir_status status) {
    const char *reason = why_not_told(&a->host);
    char why[160];

    if (status != WEIR_E_DRIVER && status != WEIR_E_DEVICE_LOST)
        weir__log(a->host.options.log, WEIR_LOG_ERROR, "weir_preallocate: %s",
                  reason ? reason : why_not(&a->host, status, why, sizeof why));
    return status;
}

weir_status weir_preallocate(weir_allocator *a, size_t bytes, size_t *reserve) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status = gate(a);

    if (status != WEIR_OK)
        return status;
    if (a->host.relimit)
        (void)a->host.relimit(&a->host);
    status = a->ops->grow(a->engine, bytes, WEIR_EVENT_PREALLOC);
    if (status != WEIR_OK && !is_refusal(status))
        return cannot_preallocate(a, status);
    if (status == WEIR_OK) {
        weir__decay_raise(&a->promised, bytes);
        weir__decay_raise_floor(&a->host.decay, bytes);
        prepare(&a->host);
    }
    if (status != WEIR_OK || reserve)
        a->ops->figures(a->engine, &figures);
    if (status != WEIR_OK)
        weir__priming_tell(&a->priming, bytes, figures.reserve);
    if (reserve)
        *reserve = (size_t)figures.reserve;
    return status;
}

weir_status weir_pool(weir_allocator *a, struct CUmemPoolHandle_st **pool) {
    weir_status status = gate(a);

    if (status != WEIR_OK)
        return status;
    if (!pool)
        return misuse(a, WEIR_E_INVALID, "weir_pool: pool is NULL");
    if (!a->ops->pool)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    *pool = a->ops->pool(a->engine);
    return WEIR_OK;
}

static int is_wrong_access(const weir_allocator *a, int device, int access, char *why,
                           size_t bytes) {
    if (device < 0)
        snprintf(why, bytes, "device %d: devices are numbered from 0", device);
    else if (access != WEIR_ACCESS_NONE && access != WEIR_ACCESS_READ &&
             access != WEIR_ACCESS_READ_WRITE)
        snprintf(why, bytes, "access %d: expected WEIR_ACCESS_NONE, _READ or _READ_WRITE", access);
    else if (device == a->host.device.ordinal && access != WEIR_ACCESS_READ_WRITE)
        snprintf(why, bytes, "access %d: expected WEIR_ACCESS_READ_WRITE for its own device %d",
                 access, device);
    return why[0] != '\0';
}

weir_status weir_set_access(weir_allocator *a, int device, int access) {
    CUmemAccessDesc change = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = (CUmemAccess_flags)access};
    weir_status status = gate(a);
    char why[256] = "";
    CUresult result = CUDA_SUCCESS;

    if (status != WEIR_OK)
        return status;
    if (is_wrong_access(a, device, access, why, sizeof why))
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_set_access", why);
    status = weir__peers_check(a->host.device.driver, a->host.device.ordinal, device, &result, why,
                               sizeof why);
    if (status == WEIR_OK && !weir__options_can_open(&a->host.options)) {
        status = WEIR_E_NOT_SUPPORTED;
        snprintf(why, sizeof why, "%s", WEIR_NOT_OPENED);
    }
    if (status != WEIR_OK) {
        (void)weir__allocator_misuse(a, status, "weir_set_access", why);
        return result == CUDA_SUCCESS ? status : weir__device_status(&a->host.device, result);
    }
    if (device == a->host.device.ordinal) /* nobody can take that */
        return WEIR_OK;
    change.location.id = device;
    return a->ops->allow(a->engine, &change);
}

/* Never more than the program asks for by now, however long ago the bytes were found. */
static void apply_limit(weir_allocator *a, uint64_t bytes) {
    weir__lock_take(&a->limiting);
    atomic_store_explicit(&a->host.limit, weir__size_smaller(bytes, atomic_load(&a->asked)),
                          memory_order_relaxed);
    if (a->ops->limited)
        a->ops->limited(a->engine);
    weir__lock_give(&a->limiting);
}

/* What the reserve may be so that as much as is to be is left on the device.  The figures are of two sides: where the
 * reserve has become another between, they are taken again. */
static uint64_t limit_by_device(weir_allocator *a) {
    weir_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    uint64_t device_free;

    a->ops->figures(a->engine, &after);
    for (int i = 0; i < READS; i++) {
        before.reserve = after.reserve;
        device_free = weir__device_free(&a->host.device);
        if (device_free == UINT64_MAX)
            return UINT64_MAX;
        a->ops->figures(a->engine, &after);
        if (after.reserve == before.reserve)
            break;
    }
    return weir__size_smaller(before.reserve, after.reserve) +
           weir__size_less(device_free, a->host.leave);
}

/* A limit that is a share, or leaves something on the device, is what that comes to now.  1 if it is higher than
 * before.  More may be in use by the time that it is applied: that has been served, stays, and is the less that growth
 * has left, as it would be a moment later; a request that is refused for it has the limit set anew first.  One that the
 * program has set is never exceeded, whatever is in use. */
static int limit_anew(weir_allocator *a, uint64_t in_use) {
    struct weir_host *host = &a->host;
    int result_before = weir__driver_result;
    uint64_t asked = atomic_load(&a->asked), limit = asked, before = host->limit;

    if (host->options.limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&a->host.no_share))
        limit = part_of(a, host->leave, host->options.limit.value,
                        host->neighbours ? weir__neighbours_weights(host->neighbours)
                                         : weight_of(&host->options));
    limit = weir__size_larger(in_units(a, weir__size_smaller(limit, a->most)),
                              weir__size_smaller(a->ops->least_limit, asked));
    atomic_store_explicit(&host->own_limit, limit, memory_order_relaxed);
    if (host->leave > 0)
        limit = weir__size_smaller(limit, limit_by_device(a));
    limit = weir__size_larger(limit, in_use);
    limit = weir__size_larger(limit, a->ops->least_limit);
    apply_limit(a, in_units(a, limit));
    weir__set_driver_result(result_before);
    return host->limit > before;
}

/* In a request: what caches hold counts as in use. */
static int relimit(struct weir_host *host) {
    weir_allocator *a = allocator_of(host);
    weir_statistics figures = {.size = sizeof figures};

    a->ops->figures(a->engine, &figures);
    return limit_anew(a, figures.in_use);
}

weir_status weir_set_limit(weir_allocator *a, weir_amount limit) {
    const struct message nobody = {NULL, 0};
    struct weir_device_memory memory;
    weir_status status = gate(a);
    char why[160];
    uint64_t bytes;

    if (status != WEIR_OK)
        return status;
    if (weir__limit_check(&limit, why, sizeof why) != WEIR_OK)
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_set_limit", why);
    if (is_fixed(&a->host.options))
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_set_limit",
                                      "the limit of a fixed arena is its size");
    status = read_memory(&a->host, &memory, &nobody);
    if (status != WEIR_OK)
        return status;
    bytes =
        in_units(a, weir__size_smaller(weir__budget_bytes(&limit, &memory, UINT64_MAX), a->most));
    atomic_store(&a->host.no_share, 1);
    atomic_store(&a->asked, bytes);
    if (a->host.relimit)
        (void)relimit(&a->host);
    else
        apply_limit(a, UINT64_MAX);
    return WEIR_OK;
}

static weir_status bind(weir_allocator *a, weir_stream stream, int more) {
    weir_status status = gate(a);
    int driver_result;

    if (status != WEIR_OK || !a->front)
        return status;
    status = weir__front_bind(a->front, stream, more);
    if (status == WEIR_E_INVALID || status == WEIR_E_STREAM) {
        driver_result = weir__driver_result;
        (void)misuse(a, status,
                     more                       ? "weir_bind"
                     : status == WEIR_E_INVALID ? "weir_unbind: the stream is not bound"
                                                : "weir_unbind");
        weir__set_driver_result(driver_result);
    }
    return status;
}

weir_status weir_bind(weir_allocator *a, weir_stream stream) {
    return bind(a, stream, 1);
}

weir_status weir_unbind(weir_allocator *a, weir_stream stream) {
    return bind(a, stream, 0);
}

static weir_status trim(weir_allocator *a, size_t keep, int cause, size_t *released) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status, emptied = WEIR_OK;
    size_t bytes = 0;

    if (a->harden || a->front)
        a->ops->figures(a->engine, &figures);
    if (a->harden && figures.reserve > keep)
        emptied = weir__harden_empty(a->harden, 0);
    if (a->front && figures.reserve > keep && emptied == WEIR_OK)
        emptied = weir__front_empty(a->front);
    status = a->ops->trim(a->engine, keep, cause, &bytes);
    weir__ahead_forget(a->host.ahead);
    if (released)
        *released = bytes;
    return status == WEIR_OK ? emptied : status;
}

weir_status weir_trim(weir_allocator *a, size_t keep, size_t *released) {
    weir_status status = gate(a);

    return status == WEIR_OK ? trim(a, keep, WEIR_EVENT_TRIM, released) : status;
}

/* ---- memory that is low elsewhere --------------------------------------------------------------- */

/* Gives idle reserve back until `wanted` bytes have gone, waiting for what that takes. */
static weir_status relieve(weir_allocator *a, uint64_t wanted, int cause, size_t *released) {
    weir_statistics figures;
    uint64_t keep;

    *released = 0;
    weir__stats_read(a, &figures); /* what caches hold is not in use */
    keep = weir__relief_keep(&a->host, figures.reserve, figures.in_use, wanted);
    if (keep >= figures.reserve)
        return WEIR_OK;
    return trim(a, (size_t)keep, cause, released);
}

/* Bytes that it has idle above what stays. */
static uint64_t could_lend(weir_allocator *a, int may_wait) {
    weir_statistics figures;

    if (!can_shrink(&a->host) || weir__detour_is(&a->host.device.slow_path, WEIR_DETOUR_LOST) ||
        (!may_wait && (a->harden || a->front || a->ops->trim_waits)))
        return 0;
    weir__stats_read(a, &figures);
    return weir__size_less(
        figures.reserve, weir__relief_keep(&a->host, figures.reserve, figures.in_use, UINT64_MAX));
}

/* Bytes that went. */
static uint64_t lend(weir_allocator *a, uint64_t wanted, int may_wait) {
    size_t released = 0;

    if (could_lend(a, may_wait) == 0)
        return 0;
    /* What is done goes, whoever has seen it. */
    if (may_wait && !a->ops->trim_waits)
        (void)weir__device_wait(&a->host.device);
    (void)relieve(a, wanted, WEIR_EVENT_LOW_MEMORY, &released);
    return released;
}

static uint64_t borrow(struct weir_host *host, uint64_t least, uint64_t most, int may_wait) {
    weir_allocator *a = allocator_of(host);
    struct weir_sibling *s = NULL;
    uint64_t idle = 0, got = 0;

    while ((s = weir__siblings_next(&a->sibling, s)))
        idle += could_lend(s->owner, may_wait);
    if (idle == 0 || idle < least)
        return 0;
    while (got < most && (s = weir__siblings_next(&a->sibling, s)))
        got += lend(s->owner, most - got, may_wait);
    if (s)
        weir__siblings_let_go(s);
    return got;
}

/* ---- other processes ---------------------------------------------------------------------------- */

/* Bytes that it would give back: what it has idle, less what lies beside live blocks, or beside what stays. */
static uint64_t could_give(weir_allocator *a) {
    uint64_t idle = could_lend(a, 1), held;
    weir_statistics figures;

    if (idle == 0)
        return idle;
    /* Of an arena what is in one piece with what is to stay does not go; a region of the pool's becomes its units. */
    held = weir__held(a->ops, a->engine, a->front, a->harden,
                      a->host.options.engine == WEIR_ENGINE_ARENA ? idle : UINT64_MAX);
    weir__stats_read(a, &figures);
    return weir__size_smaller(idle, weir__size_less(figures.reserve, held));
}

static void tell_holding(void *allocator, struct weir_holding *out) {
    weir_allocator *a = allocator;
    weir_statistics figures;

    weir__stats_read(a, &figures);
    *out = (struct weir_holding){
        .reserve = figures.reserve,
        .in_use = figures.in_use,
        .idle = could_give(a),
        .limit = atomic_load_explicit(&a->host.limit, memory_order_relaxed),
        .device_total = a->host.device.total,
        .device_free = weir__device_free(&a->host.device),
    };
}

/* Bytes that went: at first what nobody need be waited for, if `may_wait` then behind a wait for the device, and more
 * than is wanted, where it lies in pieces that are larger. */
static uint64_t give(weir_allocator *a, uint64_t wanted, int may_wait) {
    int has_waited = !may_wait || a->ops->trim_waits;
    uint64_t given = 0, more = wanted, idle;
    size_t released = 0;

    while (given < wanted && (idle = could_give(a)) > 0) {
        if (relieve(a, more, WEIR_EVENT_YIELD, &released) != WEIR_OK)
            break;
        given += released;
        if (released > 0) {
            more = weir__size_less(wanted, given);
            continue;
        }
        if (has_waited && more >= idle)
            break;
        if (!has_waited)
            (void)weir__device_wait(&a->host.device);
        else
            more *= 2;
        has_waited = 1;
    }
    return given;
}

static uint64_t give_way(void *allocator, uint64_t wanted) {
    int result_before = weir__driver_result;
    uint64_t given = give(allocator, wanted, 1);

    weir__set_driver_result(result_before);
    return given;
}

/* What is above the limit goes, as far as it is idle.  What stayed although it was waited for, as what lies beside
 * blocks does, is left alone until the program has called. */
static void give_above(weir_allocator *a) {
    weir_statistics figures;
    uint64_t above, calls;

    weir__stats_read(a, &figures);
    above = weir__size_less(figures.reserve, a->host.limit);
    calls = figures.allocs + figures.frees;
    if (above == 0 || (a->ops->trim_waits && above == a->stayed && calls == a->stayed_after))
        return;
    a->stayed = weir__size_less(above, give(a, above, 0));
    a->stayed_after = calls;
}

/* What was preallocated is kept no further than a share that it is, or that is the limit, unless the program has
 * promised more. */
static void lower_floor(weir_allocator *a, uint64_t weights) {
    struct weir_host *host = &a->host;
    const weir_amount *prealloc = &host->options.prealloc;
    uint64_t most = UINT64_MAX;

    if (host->options.limit.kind == WEIR_AMOUNT_SHARE && !atomic_load(&a->host.no_share))
        most = atomic_load(&host->own_limit);
    if (prealloc->kind == WEIR_AMOUNT_SHARE) {
        atomic_store(&host->share, part_of(a, host->apart, prealloc->value, weights));
        most = weir__size_smaller(most, atomic_load(&host->share));
    }
    if (most == UINT64_MAX)
        return;
    weir__decay_lower_floor(&host->decay, weir__size_larger(most, atomic_load(&a->promised)));
    /* What another thread has promised meanwhile: it says so before it raises the floor, which came down here. */
    weir__decay_raise_floor(&host->decay, atomic_load(&a->promised));
}

/* Other processes have come or gone, or some time has. */
static void resize(void *allocator, uint64_t weights) {
    weir_allocator *a = allocator;
    struct weir_host *host = &a->host;
    weir_statistics figures;
    int result_before = weir__driver_result;

    if (!host->relimit || weir__detour_is(&host->device.slow_path, WEIR_DETOUR_LOST))
        return;
    weir__stats_read(a, &figures);
    (void)limit_anew(a, figures.in_use);
    lower_floor(a, weights);
    give_above(a);
    weir__set_driver_result(result_before);
}

struct weir_neighbours *weir__allocator_join(const struct weir_driver *driver, CUdevice device,
                                             struct weir_claim *claim, int log) {
    static const struct weir_neighbours_calls calls = {tell_holding, give_way, resize};
    char why[WEIR_LEDGER_PATH + 96];
    struct weir_neighbours *n =
        weir__neighbours_join(driver, device, &calls, claim, why, sizeof why);

    if (!n && why[0])
        weir__log(log, WEIR_LOG_WARNING,
                  "no ledger of the device's processes (%s): they are not asked for memory", why);
    return n;
}

struct weir_claim weir__allocator_claim(const weir_options *o) {
    return (struct weir_claim){.priority = o->priority,
                               .weight = weight_of(o),
                               .shares = has_share(o) || o->leave.value > 0};
}

static void join_neighbours(weir_allocator *a) {
    struct weir_host *host = &a->host;
    const weir_options *o = &host->options;

    a->claim = weir__allocator_claim(o);
    if (o->ledger == WEIR_SWITCH_ON)
        host->neighbours =
            weir__allocator_join(host->device.driver, host->device.ordinal, &a->claim, o->log);
}

weir_status weir_low_memory(weir_allocator *a, size_t bytes) {
    weir_status status = gate(a);
    const char *reason;

    if (status != WEIR_OK)
        return status;
    reason = why_it_stays(&a->host);
    if (reason)
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_low_memory", reason);
    weir__relief_raise(&a->host.relief, bytes ? bytes : UINT64_MAX);
    return WEIR_OK;
}

/* What a signal wants, for which weir_decay may wait. */
static weir_status answer_signal(weir_allocator *a, size_t *released) {
    uint64_t wanted = atomic_load_explicit(&a->host.relief.wanted, memory_order_acquire);
    weir_status status;

    *released = 0;
    if (wanted == 0)
        return WEIR_OK;
    status = relieve(a, wanted, WEIR_EVENT_LOW_MEMORY, released);
    if (status == WEIR_OK)
        weir__relief_end(&a->host.relief, wanted);
    return status;
}

weir_status weir_decay(weir_allocator *a, size_t *released) {
    weir_statistics figures = {.size = sizeof figures};
    weir_status status = gate(a);
    size_t answered = 0, decayed = 0;
    const char *reason;
    uint64_t keep;
    int wanted;

    if (status != WEIR_OK)
        return status;
    wanted = atomic_load_explicit(&a->host.relief.wanted, memory_order_relaxed) != 0;
    if (a->host.decay.half_life_ns == 0 && !wanted) {
        reason = why_it_stays(&a->host);
        if (atomic_exchange(&a->decay_told, 1)) /* programs call it all the time */
            return weir__without_driver(WEIR_E_NOT_SUPPORTED);
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_decay",
                                      reason ? reason : "decay is off, and no memory is wanted");
    }
    status = answer_signal(a, &answered);
    if (status == WEIR_OK && a->host.decay.half_life_ns > 0) {
        a->ops->figures(a->engine, &figures);
        keep = weir__decay_end(&a->host.decay,
                               weir__device_since(&a->host.device, a->host.device.created_ticks),
                               figures.in_use, figures.reserve, 0);
        if (keep < figures.reserve)
            status = trim(a, (size_t)keep, WEIR_EVENT_DECAY, &decayed);
    }
    if (released)
        *released = answered + decayed;
    return status;
}

weir_status weir_profile_save(weir_allocator *a, const char *path) {
    weir_status status = gate(a);

    if (status != WEIR_OK)
        return status;
    if (path ? !*path : !a->learn)
        return misuse(a, WEIR_E_INVALID, "weir_profile_save: no profile is named");
    if (!weir__learn_can(&a->host.options))
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_profile_save",
                                      "the platform engine and fixed arenas have nothing to learn");
    return weir__learn_save(a, path);
}
