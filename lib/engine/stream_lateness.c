/* SPDX-License-Identifier: MIT */
/* stream_lateness.c: see stream_lateness.h. */
#include "engine/stream_lateness.h"

enum { LONGEST = 64 }; /* events of a place that are a burst */

static unsigned place_of(unsigned calls) {
    unsigned place = 0;

    for (; calls > 0 && place < WEIR_LATENESS_PLACES - 1; calls /= 2)
        place++;
    return place;
}

static void widen(struct weir_lateness_bounds *bounds, int64_t least_ns, int64_t most_ns) {
    if (least_ns < bounds->least_ns)
        bounds->least_ns = least_ns;
    if (most_ns > bounds->most_ns)
        bounds->most_ns = most_ns;
}

void weir__lateness_note(struct weir_lateness *l, unsigned burst, unsigned calls, int64_t ns) {
    unsigned at = place_of(calls);

    if (l->place[at].burst != burst || l->place[at].samples == LONGEST) {
        l->place[at].had_before = l->place[at].samples > 0;
        l->place[at].before = l->place[at].now;
        l->place[at].burst = burst;
        l->place[at].samples = 0;
    }
    if (l->place[at].samples++ == 0)
        l->place[at].now = (struct weir_lateness_bounds){ns, ns};
    widen(&l->place[at].now, ns, ns);
}

int weir__lateness_foresee(const struct weir_lateness *l, unsigned calls,
                           struct weir_lateness_bounds *out) {
    unsigned at = place_of(calls);

    *out = l->place[at].now;
    widen(out, l->place[at].before.least_ns, l->place[at].before.most_ns);
    return l->place[at].had_before;
}
