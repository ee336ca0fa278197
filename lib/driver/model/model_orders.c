/* SPDX-License-Identifier: MIT */
/* model_orders.c: lists of orders.  An order (X, q) says that some work waits for operation q of stream X.  Streams,
 * events and the oracle have such lists, sorted by the stream's id.
 *
 * Stream ids are never reused, so the lists would grow for ever in a program that makes new streams again and again.
 * So weir__model_orders_collect() removes a stream's orders if no pool has a pending free on the stream, and the host
 * has observed the completion of all its uses.  Later uses and frees have higher numbers than these orders.
 */
#include "driver/model/model_inside.h"

#include <stdlib.h>
#include <string.h>

/* The removal of old streams from all lists is slow, so it happens only after this number of new streams. */
enum { COLLECT_AFTER = 64 };

/* Returns the index of the stream's element in the list, or the index at which it must be inserted. */
static size_t position_of(const struct model_orders *orders, uint64_t id) {
    size_t low = 0, high = orders->count;

    if (high > 0 && orders->item[high - 1].id < id)
        return high;
    while (low < high) {
        size_t middle = (low + high) / 2;

        if (orders->item[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t weir__model_order(const struct model_orders *orders, uint64_t id) {
    size_t at = position_of(orders, id);

    return at < orders->count && orders->item[at].id == id ? orders->item[at].seq : 0;
}

void weir__model_orders_add(struct model_orders *orders, uint64_t id, uint64_t seq) {
    size_t at = position_of(orders, id), room = orders->room ? 2 * orders->room : 4;
    struct model_order *item;

    if (at < orders->count && orders->item[at].id == id) {
        if (orders->item[at].seq < seq)
            orders->item[at].seq = seq;
        return;
    }
    if (orders->count == orders->room) {
        item = realloc(orders->item, room * sizeof *item);
        if (!item) {
            orders->lost = 1;
            return;
        }
        orders->item = item;
        orders->room = room;
    }
    memmove(&orders->item[at + 1], &orders->item[at], (orders->count++ - at) * sizeof *item);
    orders->item[at] = (struct model_order){id, seq};
}

void weir__model_orders_add_all(struct model_orders *orders, const struct model_orders *from) {
    size_t i;

    orders->lost |= from->lost;
    for (i = 0; i < from->count; i++)
        weir__model_orders_add(orders, from->item[i].id, from->item[i].seq);
}

void weir__model_orders_clear(struct model_orders *orders) {
    free(orders->item);
    memset(orders, 0, sizeof *orders);
}

void weir__model_orders_keep_streams(struct model_orders *orders,
                                     const struct model_orders *named) {
    size_t i, kept = 0;

    if (named->lost)
        return;
    for (i = 0; i < orders->count; i++)
        if (weir__model_order(named, orders->item[i].id))
            orders->item[kept++] = orders->item[i];
    orders->count = kept;
}

/* Removes streams that are not in `named` from the lists `after` of a context.  Skips events of captures. */
static void collect_in(struct model_context *context, const struct model_orders *named) {
    struct model_stream *stream;
    struct model_event *event;

    for (stream = context->streams; stream; stream = stream->next)
        weir__model_orders_keep_streams(&stream->after, named);
    for (event = context->events; event; event = event->next)
        if (!event->capture_id)
            weir__model_orders_keep_streams(&event->after, named);
}

void weir__model_orders_collect(void) {
    struct model_orders named = {0};
    int i;

    if (weir__model.next_stream_id < weir__model.collect_at_id)
        return;
    weir__model_oracle_collect(&named);
    weir__model_pools_list_streams(&named);
    for (i = 0; i < weir__model.device_count; i++) {
        collect_in(&weir__model.devices[i].context, &named);
        collect_in(&weir__model.devices[i].green, &named);
    }
    weir__model.collect_at_id = weir__model.next_stream_id + COLLECT_AFTER + named.count;
    weir__model_orders_clear(&named);
}
