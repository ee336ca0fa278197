/* SPDX-License-Identifier: MIT */
/* pinned.c: see pinned.h. */
#include "cache/pinned.h"

#include <stdlib.h>

/* Pieces come and go meanwhile: who is told of one too few is told of less that is held. */
enum { MORE = 16 };

struct held {
    struct weir_extent *piece; /* from low addresses to high; 0 bytes: it is counted */
    size_t count;
    uint64_t bytes;
};

/* Some bytes of the engine's have a live block in them. */
static void hold(void *context, uint64_t base, size_t bytes) {
    struct held *h = context;
    size_t low = 0, high = h->count;

    while (low < high) { /* the first piece that begins above */
        size_t middle = low + (high - low) / 2;

        if (h->piece[middle].base > base)
            high = middle;
        else
            low = middle + 1;
    }
    for (size_t at = low > 0 ? low - 1 : 0; at < h->count && h->piece[at].base < base + bytes; at++)
        if (h->piece[at].base + h->piece[at].bytes > base) {
            h->bytes += h->piece[at].bytes;
            h->piece[at].bytes = 0;
        }
}

/* Those that are larger stay, too. */
static void hold_larger(struct held *h, uint64_t most) {
    for (size_t i = 0; i < h->count; i++)
        if (h->piece[i].bytes > most) {
            h->bytes += h->piece[i].bytes;
            h->piece[i].bytes = 0;
        }
}

uint64_t weir__held(struct weir_engine *engine, struct weir_caches *caches,
                    struct weir_harden *harden, uint64_t most) {
    struct held h = {0};
    int count = weir__engine_list(engine, WEIR_VISIT_WHOLES, NULL, 0);
    size_t room = count > 0 ? (size_t)count + MORE : MORE;

    if (count < 0)
        return 0;
    h.piece = malloc(room * sizeof *h.piece);
    if (!h.piece)
        return 0;
    count = weir__engine_list(engine, WEIR_VISIT_WHOLES, h.piece, room);
    h.count = count < (int)room ? (size_t)count : room;
    if (harden)
        weir__harden_live(harden, hold, &h);
    else if (caches)
        weir__caches_live(caches, hold, &h);
    hold_larger(&h, most);
    free(h.piece);
    return h.bytes;
}
