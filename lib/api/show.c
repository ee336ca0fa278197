/* SPDX-License-Identifier: MIT */
/* show.c: fills and checks the figures that a process publishes for the command `weir top` (show.h). */
#include "api/show.h"

#include <stdio.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "api/create.h"
#include "config/settings.h"

_Static_assert(sizeof(struct weir_show) % sizeof(uint64_t) == 0, "words");

const struct weir_segment_kind weir__show_kind = {"stats", WEIR_SHOW_VERSION,
                                                  sizeof(struct weir_show)};

/* ---- writing ------------------------------------------------------------------------------- */

void weir__show_engine(const weir_allocator *a, char *text, size_t bytes) {
    weir__option_show(&a->options, WEIR_SETTING_ENGINE, text, bytes);
}

static void fill_latency(weir_allocator *a, int operation, struct weir_show_latency *out) {
    weir_latency l = {.size = sizeof l};

    memset(out, 0, sizeof *out);
    if (weir_latencies(a, operation, &l) == WEIR_OK)
        *out =
            (struct weir_show_latency){l.count, l.p50_ns, l.p90_ns, l.p99_ns, l.p999_ns, l.max_ns};
}

uint64_t weir__show_age(weir_allocator *a) {
    return weir__device_elapsed_ns(&a->device, a->device.created_ticks);
}

static void fill_events(weir_allocator *a, struct weir_show_allocator *out) {
    uint64_t age = weir__show_age(a), last;
    weir_event events[WEIR_SHOW_EVENTS];
    size_t count = 0;

    pthread_mutex_lock(&a->counters.lock);
    last = a->counters.ring.next_sequence - 1;
    pthread_mutex_unlock(&a->counters.lock);
    if (weir_events(a, last > WEIR_SHOW_EVENTS ? last - WEIR_SHOW_EVENTS : 0, events,
                    sizeof events[0], WEIR_SHOW_EVENTS, &count) != WEIR_OK)
        count = 0;
    out->events = count;
    for (size_t i = 0; i < count; i++)
        out->event[i] = (struct weir_show_event){
            .ago_ns = age > events[i].time_ns ? age - events[i].time_ns : 0,
            .asked = events[i].asked,
            .got = events[i].got,
            .stall_ns = events[i].stall_ns,
            .reserved_after = events[i].reserved_after,
            .cause = (uint64_t)events[i].cause,
            .shrink = (uint64_t)events[i].shrink};
}

int weir__show_fill(weir_allocator *a, struct weir_show_allocator *out) {
    weir_statistics figures = {.size = sizeof figures};

    if (weir_stats(a, &figures) != WEIR_OK)
        return 0;
#define COPY(name) out->name = figures.name;
    WEIR_SHOW_FIGURES(COPY)
#undef COPY
    weir__show_engine(a, out->engine, sizeof out->engine);
    out->limit = atomic_load_explicit(&a->reserve.limit.bytes, memory_order_relaxed);
    fill_latency(a, WEIR_OPERATION_ALLOC, &out->latency[WEIR_OPERATION_ALLOC]);
    fill_latency(a, WEIR_OPERATION_FREE, &out->latency[WEIR_OPERATION_FREE]);
    fill_events(a, out);
    return 1;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Ends the text with a NUL, and replaces characters that are not printable, which could control a terminal. */
static void check_text(char *text, size_t bytes) {
    text[bytes - 1] = '\0';
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
            *text = '?';
}

void weir__show_check(struct weir_show *show, uint64_t now) {
    if (show->time_ns > now)
        show->time_ns = now;
    check_text(show->command, sizeof show->command);
    for (int i = 0; i < WEIR_SHOW_KINDS; i++)
        check_text(show->kind[i].call, sizeof show->kind[i].call);
    for (int i = 0; i < WEIR_SHOW_CALLERS; i++)
        check_text(show->caller[i].object, sizeof show->caller[i].object);
    if (show->allocators > WEIR_SHOW_MOST)
        show->allocators = WEIR_SHOW_MOST;
    if (show->all < show->allocators)
        show->all = show->allocators;
    for (uint64_t i = 0; i < show->allocators; i++) {
        struct weir_show_allocator *a = &show->allocator[i];

        check_text(a->device, sizeof a->device);
        check_text(a->engine, sizeof a->engine);
        check_text(a->serves, sizeof a->serves);
        if (a->events > WEIR_SHOW_EVENTS)
            a->events = WEIR_SHOW_EVENTS;
        for (uint64_t e = 0; e < a->events; e++)
            if (a->event[e].cause >= WEIR_EVENT_CAUSE_COUNT)
                a->event[e].cause = WEIR_EVENT_CAUSE_COUNT;
    }
}
