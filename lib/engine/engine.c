/* SPDX-License-Identifier: MIT */
/* engine.c: the functions that all engines share.  They must not depend on a particular engine. */
#include "engine/engine.h"

#include <stdlib.h>

#include "base/hostmem.h"
#include "base/log.h"
#include "base/result.h"
#include "base/text.h"

/* If survey->by is full, its last entry counts all streams that have no entry of their own. */
void weir__survey_add_pending(struct weir_survey *survey, uint64_t stream, uint64_t bytes) {
    size_t at = 0;

    survey->pending += bytes;
    while (at < survey->streams && survey->by[at].stream != stream)
        at++;
    if (at == WEIR_SURVEY_STREAMS) {
        stream = 0;
        at--;
    }
    if (at == survey->streams)
        survey->streams++;
    survey->by[at].stream = stream;
    survey->by[at].bytes += bytes;
}

void weir__engine_record(const struct weir_engine *e, int cause, int shrink, uint64_t asked,
                         uint64_t got, uint64_t stall_ns, uint64_t reserved_after) {
    struct weir_event_sink *sink = e->events;
    weir_event event = {
        .time_ns = weir__device_elapsed_ns(e->device, e->device->created_ticks),
        .asked = asked,
        .got = got,
        .stall_ns = stall_ns,
        .reserved_after = reserved_after,
        .cause = cause,
        .shrink = shrink,
    };

    weir__counters_event(sink->counters, &event);
    if (sink->peers && cause != WEIR_EVENT_RECLAIM)
        weir__process_peers_publish_reserved(sink->peers, &sink->shown, reserved_after);
    if (sink->grew && !shrink && (cause == WEIR_EVENT_REQUEST || cause == WEIR_EVENT_POLICY))
        atomic_store_explicit(sink->grew, 1, memory_order_relaxed);
    if (e->options->log < WEIR_LOG_INFO)
        return;
    if (cause == WEIR_EVENT_RECLAIM) {
        weir__log(e->options->log, WEIR_LOG_INFO, "other processes released %s, %llu ns",
                  WEIR_SHOWN(got), (unsigned long long)stall_ns);
        return;
    }
    weir__log(e->options->log, WEIR_LOG_INFO, "reserved memory %s %s (%s), now %s, %llu ns",
              shrink ? "fell by" : "grew by", WEIR_SHOWN(got), weir_event_cause_word(cause),
              WEIR_SHOWN(reserved_after), (unsigned long long)stall_ns);
}

int weir__engine_predicts_failure(const struct weir_engine *e, struct weir_request *r,
                                  uint64_t bytes, uint64_t idle) {
    uint64_t device;

    if (r->flags & WEIR_REQUEST_FORCED)
        return 0;
    device = weir__device_free(e->device);
    if (device == UINT64_MAX || bytes <= device + idle)
        return 0;
    r->is_predicted = 1;
    return 1;
}

/* Trims a driver's pool first, since it reports blocks freed by cuMemFree as used until a trim (H200, driver 580). */
int weir__engine_has_blocks(struct weir_engine *e) {
    weir_statistics figures = {.size = sizeof figures};
    size_t released;

    e->ops->figures(e, &figures);
    if (figures.requested == 0 || !e->driver_pool)
        return figures.requested > 0;
    return weir__engine_trim(e, 0, WEIR_EVENT_TRIM, &released) != WEIR_OK ||
           weir__engine_reserve(e) > 0;
}

struct extents {
    struct weir_extent *list;
    size_t count, room;
};

static void add_extent(void *context, const struct weir_extent *extent) {
    struct extents *all = context;
    struct weir_extent *list = weir__hostmem_room(all->list, all->count, &all->room, sizeof *list);

    if (list) {
        all->list = list;
        list[all->count++] = *extent;
    }
}

size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out) {
    struct extents all = {0};
    int count =
        e->ops->visit(e, &(struct weir_visit){.what = what, .show = add_extent, .context = &all});

    *out = all.list;
    if (count > 0 && all.count == (size_t)count)
        return all.count;
    free(all.list);
    *out = NULL;
    return 0;
}

static void copy_extent(void *context, const struct weir_extent *extent) {
    *(struct weir_extent *)context = *extent;
}

int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out) {
    return e->ops->visit(
        e, &(struct weir_visit){
               .what = what, .address = address, .show = copy_extent, .context = out});
}

int weir__visit_show(const struct weir_visit *visit, uint64_t base, size_t bytes) {
    if (visit->show)
        visit->show(visit->context, &(struct weir_extent){.base = base, .bytes = bytes});
    return 1;
}
