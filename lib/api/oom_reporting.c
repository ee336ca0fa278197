/* SPDX-License-Identifier: MIT */
/* oom_reporting.c: finds the cause of a failed request, and fills an OOM report.
 *
 * weir reads all figures only when a report is requested, so a failure without a report costs no additional time.  This
 * file holds no lock.  The engine and the caches list their memory under their own locks. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/oom_reporting.h"

#include "api/allocator_internal.h"
#include "base/counters.h"
#include "base/file.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"
#include "ipc/group_process.h"
#include "ipc/process_peers.h"

_Static_assert((int)WEIR_OOM_REPORT_PROCESSES <= (int)WEIR_MOST_HOLDERS,
               "the registry names enough processes");

enum {
    TABLE_ROOM = 4096, /* the entries of the table of groups; a power of two, as is STACK_ROOM */
    STACK_ROOM = 64,
    OTHERS_PART = 16, /* other processes with less than 1/16 of the device are no cause */
    MOST_REPORTS = 16 /* the most reports that weir writes by itself for an allocator */
};
#define PAGE ((size_t)2 << 20) /* the unit of cuMemAlloc and of mapped memory, in bytes */
#define UNIT ((size_t)32 << 20)  /* the largest unit to which advice is rounded, in bytes */
#define BLOCK ((size_t)16 << 10) /* the unit of the caches' requests to the engine, in bytes */

/* ---- groups ---------------------------------------------------------------------------------- */

struct groups {
    /* A hash table by size and stream, with open addressing, allocated under no lock.  An unused entry has 0 blocks. */
    weir_oom_report_group *group;
    size_t room, count;
    uint64_t left_out; /* the bytes of blocks in no group, because the table is full */
};

static weir_oom_report_group *entry_for(const struct groups *g, uint64_t bytes, uint64_t stream) {
    size_t at =
        (size_t)((bytes * UINT64_C(0x9E3779B97F4A7C15) ^ stream) * UINT64_C(0xD6E8FEB86659FD93) >>
                 32) &
        (g->room - 1);

    while (g->group[at].blocks > 0 &&
           (g->group[at].bytes != bytes || g->group[at].stream != stream))
        at = (at + 1) & (g->room - 1);
    return &g->group[at];
}

static void count_block(void *context, const struct weir_extent *block) {
    struct groups *g = context;
    uint64_t bytes = block->bytes, stream = block->stream;
    weir_oom_report_group *group = entry_for(g, bytes, stream);

    if (group->blocks == 0 && g->count >= g->room / 4 * 3) {
        g->left_out += bytes;
        return;
    }
    g->count += group->blocks == 0;
    group->bytes = bytes;
    group->stream = stream;
    group->blocks++;
    group->total += bytes;
}

/* Orders groups by total, then by block size, from large to small, then by stream. */
static int comes_before(const weir_oom_report_group *a, const weir_oom_report_group *b) {
    if (a->total != b->total)
        return a->total > b->total;
    return a->bytes != b->bytes ? a->bytes > b->bytes : a->stream < b->stream;
}

static void keep_largest(weir_oom_report *v, const weir_oom_report_group *group) {
    uint32_t at = v->group_count;

    while (at > 0 && comes_before(group, &v->groups[at - 1]))
        at--;
    if (at == WEIR_OOM_REPORT_GROUPS)
        return;
    v->group_count += v->group_count < WEIR_OOM_REPORT_GROUPS;
    memmove(&v->groups[at + 1], &v->groups[at], (v->group_count - 1 - at) * sizeof *group);
    v->groups[at] = *group;
}

static void read_groups(weir_allocator *a, weir_oom_report *v) {
    struct weir_engine *e = a->reserve.engine;
    weir_oom_report_group few[STACK_ROOM];
    weir_oom_report_group *table = calloc(TABLE_ROOM, sizeof *table);
    struct groups g = {.group = table ? table : few, .room = table ? TABLE_ROOM : STACK_ROOM};

    if (!table)
        memset(few, 0, sizeof few);
    if (a->caches)
        weir__caches_blocks(a->caches, count_block, &g);
    else
        (void)e->ops->visit(
            e, &(struct weir_visit){.what = WEIR_VISIT_BLOCKS, .show = count_block, .context = &g});
    for (size_t i = 0; i < g.room; i++)
        if (g.group[i].blocks > 0)
            keep_largest(v, &g.group[i]);
    v->ungrouped = g.left_out;
    free(table);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void read_pending(const struct weir_survey *survey, weir_oom_report *v) {
    weir_oom_report_stream *by = v->pending_by;

    v->pending = survey->pending;
    /* Keeps the streams with most pending bytes, sorted from most to fewest. */
    for (size_t i = 0; i < survey->streams; i++) {
        uint32_t at = v->pending_streams;

        while (at > 0 && survey->by[i].bytes > by[at - 1].bytes)
            at--;
        if (at == WEIR_OOM_REPORT_STREAMS)
            continue;
        v->pending_streams += v->pending_streams < WEIR_OOM_REPORT_STREAMS;
        memmove(&by[at + 1], &by[at], (v->pending_streams - 1 - at) * sizeof *by);
        by[at] = (weir_oom_report_stream){survey->by[i].stream, survey->by[i].bytes};
    }
}

/* Returns the value of a driver attribute that counts bytes of graphs, or 0 if the driver does not report the value. */
static uint64_t graph_bytes(const struct weir_device *device, CUgraphMem_attribute attribute) {
    const struct weir_driver *driver = device->driver;
    uint64_t bytes = 0;

    return (driver->capabilities & WEIR_CAP_GRAPH) &&
                   WEIR_IN_SCOPE(driver, device->context,
                                 driver->cuDeviceGetGraphMemAttribute(device->ordinal, attribute,
                                                                      &bytes)) == CUDA_SUCCESS
               ? bytes
               : 0;
}

/* Returns the reserved bytes of the process's other allocators on the device.  Sets *idle to their idle bytes. */
static uint64_t local_peer_reserve(const weir_allocator *a, uint64_t *idle) {
    weir_statistics figures;
    struct weir_local_peer *s = NULL;
    uint64_t bytes = 0;

    *idle = 0;
    while ((s = weir__local_peers_next(&a->local_peer, s))) {
        weir__stats_read(s->owner, &figures);
        bytes += figures.reserved;
        *idle += weir__size_subtract(figures.reserved, figures.in_use);
    }
    return bytes;
}

static void read_device(weir_allocator *a, weir_oom_report *v) {
    uint64_t used = graph_bytes(&a->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), idle;

    v->device_total = a->device.total;
    v->device_free = weir__device_free(&a->device);
    v->graphs = graph_bytes(&a->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    v->graphs_idle = weir__size_subtract(v->graphs, used);
    v->other_allocators = local_peer_reserve(a, &idle);
    v->others = v->device_free == UINT64_MAX
                    ? UINT64_MAX
                    : weir__size_subtract(v->device_total, v->device_free + v->reserved +
                                                               v->graphs + v->other_allocators);
}

/* Reads the reserved and idle memory.  Sets *at_rest to the size of the largest free range after all frees complete. */
static void read_reserved(weir_allocator *a, weir_oom_report *v, uint64_t *at_rest) {
    struct weir_engine *e = a->reserve.engine;
    struct weir_survey survey = {.what = WEIR_SURVEY_IDLE, .id = v->stream};
    weir_statistics figures;

    *at_rest = 0;
    v->limit = a->reserve.limit.bytes;
    v->limit_is_set = atomic_load(&a->reserve.limit.by_program) < a->reserve.limit.by_settings;
    v->is_share = (uint64_t)weir__limit_is_share(&a->reserve);
    v->weight = v->is_share ? a->options.limit.value : 0;
    if (v->limit < weir__limit_own(&a->reserve.limit))
        v->keep_free = a->reserve.limit.keep_free;
    weir__stats_read(a, &figures);
    v->reserved = figures.reserved;
    v->in_use = figures.in_use;
    v->idle = weir__size_subtract(v->reserved, v->in_use);
    v->largest_free_block = v->pending = UINT64_MAX;
    e->ops->survey(e, &survey);
    /* largest_free_block and pending stay unknown (UINT64_MAX), since a driver pool does not report idle memory. */
    if (e->driver_pool)
        return;
    if (a->caches)
        weir__caches_survey(a->caches, v->stream, &survey);
    read_pending(&survey, v);
    v->largest_free_block = survey.largest_free;
    *at_rest = survey.largest_free_at_rest;
}

/* ---- the process group ------------------------------------------------------------------------ */

static void read_group(weir_allocator *a, weir_oom_report *v) {
    struct weir_group *g = weir__group_of(a->device.driver, a->device.ordinal);
    struct weir_group_member *members;

    if (!g)
        return;
    snprintf(v->process_group, sizeof v->process_group, "%s", g->name);
    v->group_limit = weir__group_limit(g);
    v->group_used = weir__group_used(g);
    members = malloc(WEIR_GROUP_SLOTS * sizeof *members);
    if (!members)
        return;
    v->members = (uint32_t)weir__group_members(g, members);
    v->member_count = (uint32_t)weir__size_smaller(v->members, WEIR_OOM_REPORT_MEMBERS);
    for (uint32_t i = 0; i < v->member_count; i++) {
        v->member[i] = (weir_oom_report_member){.pid = members[i].pid,
                                                .bytes = members[i].bytes,
                                                .share = members[i].share,
                                                .idle = members[i].idle};
        snprintf(v->member[i].command, sizeof v->member[i].command, "%.39s", members[i].command);
    }
    free(members);
}

static uint64_t device_room(const weir_oom_report *v) {
    return v->device_free == UINT64_MAX ? v->device_total : v->device_free;
}

/* ---- the cause ------------------------------------------------------------------------------- */

/* Returns the smallest step, in bytes, by which the reserved memory can grow. */
static size_t unit_of(const weir_allocator *a) {
    size_t unit = a->reserve.engine->least_limit;

    return unit ? unit : PAGE;
}

static int uses_mapped(const weir_allocator *a) {
    return a->options.engine == WEIR_ENGINE_MAPPED;
}

/* Rounds up to a multiple of `unit`.  The sum overflows only for requests that are larger than the device. */
static uint64_t round_to(uint64_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Returns the bytes that the request needs from the engine.  Caches round requests up. */
static uint64_t bytes_needed(const weir_allocator *a, const weir_oom_report *v) {
    return a->caches ? round_to(v->asked, BLOCK) : v->asked;
}

static uint64_t lacking_bytes(const weir_allocator *a, const weir_oom_report *v) {
    return weir__size_subtract(bytes_needed(a, v),
                               v->idle + device_room(v) / unit_of(a) * unit_of(a));
}

/* Returns the cause of a failure if all figures show enough memory. */
static int cause_without_figures(const weir_oom_report *v) {
    return v->device_free == UINT64_MAX ? WEIR_OOM_REPORT_OTHERS : WEIR_OOM_REPORT_DRIVER;
}

/* Returns the cause of a failure if the limit is not the cause.  `lacks` has the bytes that the device lacks. */
static int cause_of_full_device(const weir_oom_report *v, uint64_t lacks) {
    uint64_t others = v->other_allocators + (v->others == UINT64_MAX ? 0 : v->others);
    int much = others > v->device_total / OTHERS_PART;

    if (lacks == 0)
        return cause_without_figures(v);
    if (v->process_group[0] && weir__size_subtract(v->group_limit, v->group_used) <= device_room(v))
        return WEIR_OOM_REPORT_GROUP;
    if (v->graphs >= lacks && (v->graphs >= others || !much))
        return WEIR_OOM_REPORT_GRAPHS;
    if (v->graphs + others < lacks || !(much || v->graphs > v->device_total / OTHERS_PART))
        return WEIR_OOM_REPORT_IN_USE;
    return v->graphs > others ? WEIR_OOM_REPORT_GRAPHS : WEIR_OOM_REPORT_OTHERS;
}

/* Returns the cause of a failed request.  `then` is the largest size that would have succeeded at the failure.
 * `at_rest` is the largest free range after all pending frees. */
static int cause_of(const weir_allocator *a, const weir_oom_report *v, uint64_t at_rest,
                    uint64_t then) {
    size_t unit = unit_of(a);
    uint64_t need = bytes_needed(a, v), free_bytes = device_room(v) / unit * unit;
    uint64_t left = weir__size_subtract(v->limit, v->reserved);
    /* Engine mapped reserves memory in whole 2 MiB pages. */
    uint64_t growth = uses_mapped(a) ? left / PAGE * PAGE : left;
    /* If the request is larger than the limit and than each idle range, idle memory cannot serve the request. */
    uint64_t idle = need > v->limit && at_rest < need ? 0 : v->idle;
    uint64_t room = weir__size_smaller(free_bytes, growth), had = idle + room;

    if (v->asked > v->device_total)
        return WEIR_OOM_REPORT_TOO_LARGE;
    /* The request would fit now.  If it fitted at the failure, too, blames the driver; else memory was freed since. */
    if (v->largest >= v->asked)
        return then >= v->asked ? cause_without_figures(v) : WEIR_OOM_REPORT_NONE;
    if (had >= need && v->pending != UINT64_MAX && v->pending > 0 &&
        (at_rest >= need || had - v->pending < need))
        return WEIR_OOM_REPORT_PENDING;
    if (had >= need && idle > 0)
        return WEIR_OOM_REPORT_FRAGMENTED;
    /* The limit is the cause, unless keep-free has lowered the limit because the device is full. */
    if (v->limit != UINT64_MAX && idle + growth < need &&
        (v->keep_free == 0 || v->idle + free_bytes >= need))
        return WEIR_OOM_REPORT_LIMIT;
    return cause_of_full_device(v, lacking_bytes(a, v));
}

/* Returns how many bytes a failed request in a capture lacks.  The limit matters only if the status is WEIR_E_LIMIT. */
static uint64_t lack_under_capture(const weir_oom_report *v) {
    uint64_t growth =
        v->status == WEIR_E_LIMIT ? weir__size_subtract(v->limit, v->reserved) : UINT64_MAX;

    return weir__size_subtract(v->asked, weir__size_smaller(device_room(v), growth));
}

/* Returns the cause of a failed request on a captured stream.  The driver cannot use weir's idle memory for graphs. */
static int cause_under_capture(const weir_oom_report *v) {
    uint64_t lacks = lack_under_capture(v);

    if (v->asked > v->device_total)
        return WEIR_OOM_REPORT_TOO_LARGE;
    /* Only the pool engine returns WEIR_E_LIMIT here.  Other engines apply no limit to requests in a capture. */
    if (v->status == WEIR_E_LIMIT && v->asked > weir__size_subtract(v->limit, v->in_use))
        return WEIR_OOM_REPORT_LIMIT;
    if (lacks > 0 && v->idle >= lacks)
        return WEIR_OOM_REPORT_RESERVE;
    return cause_of_full_device(v, lacks);
}

/* ---- what to try ----------------------------------------------------------------------------- */

/* Adds a setting and its value to the report's advice.  Returns the new entry. */
static weir_oom_report_setting *add_advice(weir_oom_report *v, enum weir_setting setting,
                                           const char *value) {
    weir_oom_report_setting *advice = v->settings;

    while (advice->name)
        advice++;
    advice->name = weir__setting_row(setting)->name;
    snprintf(advice->value, sizeof advice->value, "%s", value);
    return advice;
}

static weir_oom_report_setting *advise_bytes(weir_oom_report *v, enum weir_setting setting,
                                             uint64_t bytes) {
    char text[WEIR_SPELL_BYTES];

    weir__bytes_spell(bytes, text, sizeof text);
    return add_advice(v, setting, text);
}

/* Estimates the reserved memory with which the request would have succeeded. */
static uint64_t estimated_reserve(const weir_allocator *a, const weir_oom_report *v) {
    size_t unit = unit_of(a);
    uint64_t need = round_to(bytes_needed(a, v), unit);
    int is_beside = need <= device_room(v) && v->in_use > 0;

    return round_to((is_beside ? v->reserved : v->in_use) + need, unit);
}

/* Returns the limit to advise, rounded up by at most an eighth, because the next request may be a little larger. */
static uint64_t advised_limit(const weir_allocator *a, const weir_oom_report *v) {
    uint64_t bytes = estimated_reserve(a, v);
    size_t step = UNIT;

    while (step > unit_of(a) && step > bytes / 8)
        step /= 2;
    return round_to(bytes, step);
}

const char weir__oom_report_own_limit[] = "limit";

/* Returns 1 if the program's code has set options.limit, 0 if the environment has set it. */
static int has_own_limit(const weir_allocator *a) {
    const weir_amount *limit = &a->options.limit;
    weir_options said;

    if (!a->has_own_limit)
        return 0;
    weir_options_init(&said);
    return weir__options_from_env(&said, NULL, WEIR_PLACE_OWN, 0, NULL, 0) != WEIR_OK ||
           said.limit.kind != limit->kind || said.limit.value != limit->value;
}

/* Advises a higher limit where the limit was set: weir_set_limit, the settings, or both. */
static void advise_limit(const weir_allocator *a, weir_oom_report *v, uint64_t limit) {
    weir_oom_report_setting *advice;

    if (v->limit_is_set)
        v->set_limit = limit;
    if (v->limit_is_set && a->reserve.limit.by_settings >= limit)
        return;
    advice = advise_bytes(v, WEIR_SETTING_LIMIT, limit);
    if (has_own_limit(a))
        advice->name = weir__oom_report_own_limit;
}

/* Advises a smaller value of keep-free and, if the limit is too low, a higher limit. */
static void advise_keep_free(const weir_allocator *a, weir_oom_report *v) {
    uint64_t limit = advised_limit(a, v);
    uint64_t keep_free = weir__size_subtract(v->reserved + device_room(v), limit);

    advise_bytes(v, WEIR_SETTING_KEEP_FREE, keep_free / UNIT * UNIT);
    if (atomic_load(&a->reserve.limit.before_keep_free) < limit)
        advise_limit(a, v, limit);
}

/* Advises a longer recovery-timeout.  Never advises internal_dependencies, which can make a program hang. */
static void advise_recovery_timeout(const weir_allocator *a, weir_oom_report *v) {
    uint32_t ms = a->options.recovery_timeout_ms;
    char text[16];

    snprintf(text, sizeof text, "%us", ms == UINT32_MAX ? 1 : (ms + 499) / 500);
    add_advice(v, WEIR_SETTING_RECOVERY_TIMEOUT, text);
}

/* If another engine is in use, advises the mapped engine, which can map separate idle pieces to one range. */
static void advise_mapped_engine(const weir_allocator *a, weir_oom_report *v) {
    if (!uses_mapped(a) && (a->device.driver->capabilities & WEIR_CAP_VIRTUAL))
        add_advice(v, WEIR_SETTING_ENGINE, "mapped");
}

/* Lists the other processes on the device, and names one in the report: one that does not answer, else the largest. */
static void find_holder(const weir_allocator *a, weir_oom_report *v, uint64_t lacks) {
    struct weir_holders has;

    if (!a->reserve.events.peers || lacks == 0)
        return;
    weir__process_peers_holders(a->reserve.events.peers, &has);
    v->processes = (uint32_t)has.count;
    v->process_count = (uint32_t)weir__size_smaller(has.count, WEIR_OOM_REPORT_PROCESSES);
    for (uint32_t i = 0; i < v->process_count; i++) {
        const struct weir_holder *h = &has.most[i];

        v->process[i] =
            (weir_oom_report_member){.pid = h->pid, .bytes = h->reserved, .idle = h->idle};
        snprintf(v->process[i].command, sizeof v->process[i].command, "%.39s", h->command);
    }
    if (has.unresponsive.reserved >= lacks) {
        v->silent_pid = has.unresponsive.pid;
        v->silent_reserved = has.unresponsive.reserved;
        v->silent_stopped = (uint64_t)has.unresponsive.is_stopped;
    } else if (has.responsive.reserved > v->device_total / OTHERS_PART &&
               (has.responsive.reserved > v->other_allocators || has.responsive.idle >= lacks)) {
        v->holder_pid = has.responsive.pid;
        v->holder_reserved = has.responsive.reserved;
        v->holder_reclaimable = has.responsive.idle;
    }
}

/* Advises a preallocation, which reserves memory before other processes use it. */
static void advise_prealloc(const weir_allocator *a, weir_oom_report *v) {
    uint64_t bytes = round_to(v->in_use + bytes_needed(a, v), unit_of(a));

    if (a->options.engine != WEIR_ENGINE_DIRECT && bytes > a->prealloc &&
        bytes <= weir__size_subtract(a->free_at_first, a->reserve.limit.keep_free))
        advise_bytes(v, WEIR_SETTING_PREALLOC, bytes);
}

/* Returns the bytes that the allocator could reserve if other processes released all their memory. */
static uint64_t reservable_bytes(const weir_allocator *a, const weir_oom_report *v) {
    uint64_t bytes = v->reserved + v->device_free, idle;

    if (v->device_free == UINT64_MAX)
        return v->device_total;
    (void)local_peer_reserve(a, &idle);
    bytes += idle + (a->reserve.events.peers
                         ? weir__process_peers_read_reserved(a->device.driver, a->device.ordinal)
                         : 0);
    return weir__size_smaller(bytes, v->device_total);
}

/* Advises a smaller keep-free if this setting is above 0, or else a higher limit if the device has enough memory. */
static void advise_more(const weir_allocator *a, weir_oom_report *v) {
    if (v->keep_free > 0)
        advise_keep_free(a, v);
    else if (estimated_reserve(a, v) <= reservable_bytes(a, v))
        advise_limit(a, v, weir__size_smaller(advised_limit(a, v), v->device_total));
}

/* Advises "registry on" if the registry is off and other processes have reserved at least the missing bytes. */
static void advise_registry(const weir_allocator *a, weir_oom_report *v) {
    const weir_options *o = &a->options;
    uint64_t lacks = lacking_bytes(a, v);

    if (o->registry == WEIR_SWITCH_ON || lacks == 0 ||
        weir__process_peers_read_reserved(a->device.driver, a->device.ordinal) < lacks)
        return;
    add_advice(v, WEIR_SETTING_REGISTRY, "on");
    if (o->recovery_timeout_ms == UINT32_MAX)
        advise_recovery_timeout(a, v);
}

/* Advises the mapped engine.  If the idle pieces are smaller than a page, advises a higher limit instead. */
static void advise_for_fragmentation(const weir_allocator *a, weir_oom_report *v) {
    int is_short = bytes_needed(a, v) <= device_room(v) && estimated_reserve(a, v) > v->limit;

    if (!is_short || v->largest_free_block >= PAGE)
        advise_mapped_engine(a, v);
    if (!v->settings[0].name && is_short)
        advise_more(a, v);
}

static void advise_sharing(const weir_allocator *a, weir_oom_report *v) {
    /* Another process could free enough, but the options forbid requests to wait for it. */
    if (a->options.recovery_timeout_ms == UINT32_MAX && v->holder_pid != 0 &&
        v->holder_reclaimable >= lacking_bytes(a, v))
        advise_recovery_timeout(a, v);
    else if (v->silent_pid == 0)
        advise_prealloc(a, v);
    if (!v->settings[0].name)
        advise_registry(a, v);
}

/* For each cause, the function that advises settings, or NULL if no setting helps. */
static void (*const advisers[WEIR_OOM_REPORT_CAUSE_COUNT])(const weir_allocator *a,
                                                           weir_oom_report *v) = {
    [WEIR_OOM_REPORT_PENDING] = advise_recovery_timeout,
    [WEIR_OOM_REPORT_FRAGMENTED] = advise_for_fragmentation,
    [WEIR_OOM_REPORT_LIMIT] = advise_more,
    [WEIR_OOM_REPORT_GRAPHS] = advise_prealloc,
    [WEIR_OOM_REPORT_OTHERS] = advise_sharing,
};

/* ---- the driver ------------------------------------------------------------------------------ */

/* Records an error of the driver, after which the device's free memory is not a reliable figure. */
static void blame_driver(weir_oom_report *v, const struct weir_failed_request *refused) {
    int saved_errno = errno, file = weir__file_open("/", O_PATH, 0);

    v->driver_result = (uint64_t)refused->result;
    v->no_descriptors = file < 0 && (errno == EMFILE || errno == ENFILE);
    if (file >= 0)
        (void)close(file);
    v->largest = v->largest_free_block == UINT64_MAX
                     ? 0
                     : weir__size_smaller(v->largest_free_block, v->largest);
    errno = saved_errno;
}

/* ---- the whole report ------------------------------------------------------------------------------- */

static void fill_report(weir_allocator *a, const struct weir_failed_request *refused,
                        weir_oom_report *v) {
    int result_before = weir__driver_result;
    uint64_t at_rest;

    *v = (weir_oom_report){
        .size = sizeof *v,
        .status = refused->status,
        .asked = refused->figures.asked,
        .stream = refused->stream,
        .waited_ns = refused->figures.waited_ns,
    };
    snprintf(v->device, sizeof v->device, "%.5s:%d", a->device.driver->name, a->device.ordinal);
    (void)weir__device_stream_id(&a->device, NULL, &v->default_stream);
    read_reserved(a, v, &at_rest);
    read_device(a, v);
    read_group(a, v);
    v->largest = weir__allocator_largest(a, refused);
    v->cause = refused->is_captured ? cause_under_capture(v)
                                    : cause_of(a, v, at_rest, refused->figures.largest);
    if (v->cause == WEIR_OOM_REPORT_DRIVER)
        blame_driver(v, refused);
    if (v->cause == WEIR_OOM_REPORT_OTHERS)
        find_holder(a, v, refused->is_captured ? lack_under_capture(v) : lacking_bytes(a, v));
    if (advisers[v->cause] && (!refused->is_captured || v->cause == WEIR_OOM_REPORT_LIMIT))
        advisers[v->cause](a, v);
    read_groups(a, v);
    weir__set_driver_result(result_before);
}

weir_status weir_last_oom_report(weir_allocator *a, weir_oom_report *out) {
    struct weir_failed_request refused;
    weir_oom_report oom_report;

    if (!a || !out || out->size < sizeof out->size)
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_last_oom_report",
                                      out ? "out->size is not set; expected sizeof(*out)"
                                          : "out is NULL");
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    weir__failure_get(&refused);
    if (refused.by != a->number)
        return weir__without_driver(WEIR_E_INVALID);
    if (weir__slow_path_is(&a->device.slow_path, WEIR_SLOW_PATH_LOST))
        return weir__without_driver(WEIR_E_DEVICE_LOST);
    fill_report(a, &refused, &oom_report);
    weir__copy_out(out, &oom_report, sizeof oom_report);
    return WEIR_OK;
}

/* ---- reports at a failure ---------------------------------------------------------------------------- */

int weir__oom_report_is_wanted(const char *to) {
    return strcmp(to, "off") != 0;
}

int weir__oom_report_new(weir_allocator *a, weir_oom_report *out) {
    unsigned bit;

    *out = (weir_oom_report){.size = sizeof *out};
    if (!weir__oom_report_is_wanted(a->options.oom_report) ||
        atomic_fetch_add_explicit(&a->oom_reports, 1, memory_order_relaxed) >= MOST_REPORTS ||
        weir_last_oom_report(a, out) != WEIR_OK)
        return 0;
    bit = 1u << out->cause;
    if (atomic_fetch_or_explicit(&a->causes_reported, bit, memory_order_relaxed) & bit)
        return 0;
    weir__oom_report_write(out, a->options.oom_report);
    return 1;
}
