/* SPDX-License-Identifier: MIT */
#include "engine/lifetimes.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"

void weir__lifetimes_open(struct weir_lifetimes *l) {
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
}

void weir__lifetimes_close(struct weir_lifetimes *l) {
    free(l->events);
    pthread_mutex_destroy(&l->lock);
}

void weir__lifetimes_stream(struct weir_lifetimes *l, uint64_t id) {
    pthread_mutex_lock(&l->lock);
    if (l->count > 0 && l->stream != id)
        atomic_store_explicit(&l->several, 1, memory_order_relaxed);
    l->stream = id;
    pthread_mutex_unlock(&l->lock);
}

/* 1 if there is room for one more event; the caller holds the lock. */
static int has_room(struct weir_lifetimes *l) {
    struct weir_plan_event *more;

    if (l->is_full)
        return 0;
    more = l->count < WEIR_LIFETIMES_MOST
               ? weir__hostmem_room(l->events, l->count, &l->capacity, sizeof *more)
               : NULL;
    l->is_full = !more;
    if (more)
        l->events = more;
    return more != NULL;
}

void weir__lifetimes_note(struct weir_lifetimes *l, uint64_t address, size_t bytes) {
    pthread_mutex_lock(&l->lock);
    if (has_room(l))
        l->events[l->count++] = (struct weir_plan_event){address, bytes};
    pthread_mutex_unlock(&l->lock);
}

void weir__lifetimes_small(struct weir_lifetimes *l, size_t end) {
    pthread_mutex_lock(&l->lock);
    l->small = end > l->small ? end : l->small;
    pthread_mutex_unlock(&l->lock);
}

int weir__lifetimes_plan(struct weir_lifetimes *l, struct weir_plan *plan, size_t *small) {
    struct weir_plan_event *events;
    size_t count;

    pthread_mutex_lock(&l->lock);
    count = l->count;
    *small = l->small;
    events = count > 0 && !l->several ? malloc(count * sizeof *events) : NULL;
    if (events)
        memcpy(events, l->events, count * sizeof *events);
    pthread_mutex_unlock(&l->lock);
    *plan = (struct weir_plan){0};
    if (!events)
        return 0;
    (void)weir__plan_make(events, count, plan);
    free(events);
    return plan->bytes > 0;
}
