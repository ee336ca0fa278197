/* SPDX-License-Identifier: MIT */
/* cell.c: the rare operations of cell.h. */
#include "cell.h"

#include <stdlib.h>
#include <string.h>

int weir__cell_open(struct weir_cell *c) {
    if (!c->store)
        c->store = calloc(1, sizeof *c->store);
    return c->store != NULL;
}

void weir__cell_close(struct weir_cell *c) {
    for (int i = 0; c->store && i < WEIR_SPAN_CLASSES; i++)
        free(c->store->small[i].stray);
    free(c->store);
    c->store = NULL;
}

void weir__cell_add_slab(struct weir_cell *c, struct weir_span *slab) {
    struct weir_cell_class *k = &c->store->small[slab->size_class];

    atomic_store_explicit(&slab->cell, c, memory_order_relaxed);
    slab->epoch = c->epoch;
    k->slabs++;
    weir__cell_link(k, slab);
    weir__cell_idle(c, slab->bytes, 1);
}

int weir__cell_stray_room(struct weir_cell *c, unsigned size_class) {
    struct weir_cell_class *k = &c->store->small[size_class];
    uint32_t room = k->stray_room ? k->stray_room * 2 : WEIR_CELL_STRAYS;
    struct weir_stray *stray;

    if (k->strays < k->stray_room)
        return 1;
    stray = realloc(k->stray, room * sizeof *stray);
    if (!stray)
        return 0;
    k->stray = stray;
    k->stray_room = room;
    return 1;
}

void weir__cell_home(struct weir_cell *c, struct weir_span *slab, uint32_t slot) {
    weir__span_put(slab, slot);
    if (slab->idle == 1)
        weir__cell_link(&c->store->small[slab->size_class], slab);
    if (slab->idle == slab->slots) {
        slab->epoch = c->epoch;
        weir__cell_idle(c, slab->bytes, 1);
    }
}

static void add_span(struct weir_harvest *out, struct weir_span *s) {
    s->next = out->spans;
    out->spans = s;
}

/* The `count` oldest whole blocks. */
static void drop_recents(struct weir_cell *c, unsigned count, struct weir_harvest *out) {
    struct weir_cell_store *store = c->store;

    for (unsigned i = 0; i < count; i++) {
        weir__cell_idle(c, store->recent[i]->bytes, 0);
        add_span(out, store->recent[i]);
    }
    store->recents -= count;
    store->unused = store->unused > count ? store->unused - count : 0;
    memmove(store->recent, store->recent + count, store->recents * sizeof store->recent[0]);
    memmove(store->pages, store->pages + count, store->recents * sizeof store->pages[0]);
}

static void drop_slab(struct weir_cell *c, struct weir_cell_class *k, struct weir_span *s,
                      struct weir_harvest *out) {
    weir__cell_unlink(k, s);
    k->slabs--;
    weir__cell_idle(c, s->bytes, 0);
    add_span(out, s);
}

static size_t idle(const struct weir_cell *c) {
    return atomic_load_explicit(&c->idle, memory_order_relaxed);
}

void weir__cell_shrink(struct weir_cell *c, size_t keep, struct weir_harvest *out) {
    while (idle(c) > keep && c->store->recents > 0)
        drop_recents(c, 1, out);
    for (int i = WEIR_SPAN_CLASSES - 1; i >= 0 && idle(c) > keep; i--) {
        struct weir_cell_class *k = &c->store->small[i];

        for (struct weir_span *s = k->open, *next; s && idle(c) > keep; s = next) {
            next = s->next;
            if (s->idle == s->slots)
                drop_slab(c, k, s, out);
        }
    }
}

void weir__cell_drop_wholes(struct weir_cell *c, struct weir_harvest *out) {
    drop_recents(c, c->store->recents, out);
}

void weir__cell_expire(struct weir_cell *c, struct weir_harvest *out) {
    drop_recents(c, c->store->unused, out);
    c->store->unused = c->store->recents;
    for (int i = 0; i < WEIR_SPAN_CLASSES; i++) {
        struct weir_cell_class *k = &c->store->small[i];

        for (struct weir_span *s = k->open, *next; s; s = next) {
            next = s->next;
            if (s->idle == s->slots && s->epoch != c->epoch)
                drop_slab(c, k, s, out);
        }
    }
    c->epoch++;
}

int weir__cell_strays(struct weir_cell *c, uint32_t least, struct weir_harvest *out) {
    for (int i = 0; i < WEIR_SPAN_CLASSES; i++) {
        struct weir_cell_class *k = &c->store->small[i];
        size_t want = out->strays + k->strays;

        if (k->strays < least)
            continue;
        if (want > out->stray_room) {
            struct weir_stray *stray = realloc(out->stray, want * sizeof *stray);

            if (!stray)
                return 0;
            out->stray = stray;
            out->stray_room = want;
        }
        memcpy(out->stray + out->strays, k->stray, k->strays * sizeof *k->stray);
        out->strays = want;
        k->strays = 0;
    }
    return 1;
}

void weir__cell_disown(struct weir_cell *c) {
    for (int i = 0; i < WEIR_SPAN_CLASSES; i++) {
        struct weir_cell_class *k = &c->store->small[i];

        while (k->open) {
            struct weir_span *s = k->open;

            weir__cell_unlink(k, s);
            k->slabs--;
            atomic_store_explicit(&s->cell, NULL, memory_order_relaxed);
        }
    }
}
