/* SPDX-License-Identifier: MIT */
/* pinned.c: see pinned.h. */
#include "cache/pinned.h"

#include <stdlib.h>

#include "base/bounds.h"

/* Pieces come and go meanwhile: who is told of one too few is told of less that is held. */
struct held {
    struct weir_extent *piece; /* from low addresses to high; 0 bytes: it is counted */
    size_t count;
    uint64_t bytes;
};

/* Some bytes of the engine's have a live block in them. */
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
