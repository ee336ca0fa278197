/* SPDX-License-Identifier: MIT */
/* pinned.c: see pinned.h. */
#include "cache/pinned.h"

#include <stdlib.h>

#include "base/bounds.h"

/* The engine's pieces.  The list may change meanwhile; a missing piece only makes the result smaller. */
struct held {
    struct weir_extent *piece; /* sorted by address; bytes is 0 once the piece is counted */
    size_t count;
    uint64_t bytes;
};

/* Counts the pieces that contain a part of a live block. */
static void hold(void *context, uint64_t base, size_t bytes) {
    struct held *h = context;
    size_t above = h->count, at;

    WEIR_FIND_FIRST(above, at, h->piece[at].base > base);
    for (at = above > 0 ? above - 1 : 0; at < h->count && h->piece[at].base < base + bytes; at++)
        if (h->piece[at].base + h->piece[at].bytes > base) {
            h->bytes += h->piece[at].bytes;
            h->piece[at].bytes = 0;
        }
}

/* Counts the pieces that are larger than `most`: they stay, too. */
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

    h.count = weir__engine_list_all(engine, WEIR_VISIT_WHOLES, &h.piece);
    if (!h.piece)
        return 0;
    if (harden)
        weir__harden_live(harden, hold, &h);
    else if (caches)
        weir__caches_live(caches, hold, &h);
    hold_larger(&h, most);
    free(h.piece);
    return h.bytes;
}
