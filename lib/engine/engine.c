/* SPDX-License-Identifier: MIT */
/* engine.c: what the engines share: driver results as statuses, and notes for the books.
 *
 * Must not know: any single engine.
 */
#include "engine/engine.h"

#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "base/text.h"
#include "config/settings.h"
#include "driver/nvtx.h"

size_t weir__engine_extend(struct weir_extent *list, size_t count, size_t most,
                           struct weir_extent extent) {
    struct weir_extent *last = count > 0 ? &list[count - 1] : NULL;

    if (last && last->base + last->bytes == extent.base && last->large == extent.large)
        last->bytes += extent.bytes;
    else if (count < most)
        list[count++] = extent;
    return count;
}

/* Streams beyond those that are told apart count as not known. */
void weir__engine_pends(struct weir_survey *survey, uint64_t stream, uint64_t bytes) {
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

void weir__engine_note(struct weir_host *host, int cause, int shrink, uint64_t asked, uint64_t got,
                       uint64_t stall_ns, uint64_t reserve_after) {
    weir_event event = {
        .time_ns = weir__device_since(&host->device, host->device.created_ticks),
        .asked = asked,
        .got = got,
        .stall_ns = stall_ns,
        .reserve_after = reserve_after,
        .cause = cause,
        .shrink = shrink,
    };
    char got_text[32], reserve_text[32];

    weir__books_event(host->books, &event);
    weir__nvtx_mark(weir__event_name(cause, shrink), shrink, got);
    if (host->neighbours && cause != WEIR_EVENT_APPEAL)
        weir__neighbours_note(host->neighbours, &host->shown, reserve_after);
    if (!shrink && (cause == WEIR_EVENT_REQUEST || cause == WEIR_EVENT_POLICY))
        weir__decay_grew(&host->decay);
    if (host->options.log < WEIR_LOG_INFO)
        return;
    weir__bytes_show(got, got_text, sizeof got_text);
    if (cause == WEIR_EVENT_APPEAL) {
        weir__log(host->options.log, WEIR_LOG_INFO, "other processes gave %s, %llu ns", got_text,
                  (unsigned long long)stall_ns);
        return;
    }
    weir__bytes_show(reserve_after, reserve_text, sizeof reserve_text);
    weir__log(host->options.log, WEIR_LOG_INFO, "reserve %s %s (%s), now %s, %llu ns",
              shrink ? "fell by" : "grew by", got_text, weir_event_cause_word(cause), reserve_text,
              (unsigned long long)stall_ns);
}

static _Thread_local int insists, is_foretold;

int weir__engine_would_refuse(struct weir_host *host, uint64_t bytes, uint64_t idle) {
    uint64_t device;

    if (insists)
        return 0;
    device = weir__device_free(&host->device);
    if (device == UINT64_MAX || bytes <= device + idle)
        return 0;
    is_foretold = 1;
    return 1;
}

void weir__engine_unforetell(void) {
    is_foretold = 0;
}

int weir__engine_insist(int on) {
    int was = is_foretold;

    insists = on;
    is_foretold = 0;
    return was;
}
