/* SPDX-License-Identifier: MIT */
/* stream_lateness.h: how long after it was recorded an event of a stream is done, learned from its earlier events.
 *
 * An event's lateness is the work that was queued before it.  Programs repeat themselves, so lateness is kept by how
 * far the stream was in its burst: by the logarithm of its calls since it last had nothing queued.  For each such place
 * the largest and the smallest lateness of the last two bursts are kept; 64 events are a burst, too, for a stream that
 * always has something queued.  Who waits for the stream counts with the largest, who goes on in it with the smallest.
 *
 * Must not know: events, clocks, who waits.
 */
#ifndef WEIR_STREAM_LATENESS_H
#define WEIR_STREAM_LATENESS_H

#include <stdint.h>

enum { WEIR_LATENESS_PLACES = 12 }; /* calls: 0, 1, 2 to 3, 4 to 7, ... 1,024 and more */

/* Below 0: all are told against one clock, which may be ahead of the host's. */
struct weir_lateness_bounds {
    int64_t least_ns, most_ns;
};

/* All zero: nothing is known. */
struct weir_lateness {
    struct {
        struct weir_lateness_bounds now, before; /* of the last two bursts */
        unsigned burst;                          /* the last one, */
        unsigned samples;                        /* its events, 0: there was none, */
        int had_before;                          /* and there was one before it */
    } place[WEIR_LATENESS_PLACES];
};

/* An event that was recorded in that burst after so many calls of it was so late. */
void weir__lateness_note(struct weir_lateness *l, unsigned burst, unsigned calls, int64_t ns);
/* Of an event after so many calls of a burst: 1, or 0: it is not known. */
int weir__lateness_foresee(const struct weir_lateness *l, unsigned calls,
                           struct weir_lateness_bounds *out);

#endif
