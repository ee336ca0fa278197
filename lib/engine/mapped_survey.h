/* SPDX-License-Identifier: MIT */
/* mapped_survey.h: what lies where in the range of a mapped arena, and where in it a request goes.
 *
 * What: a survey parts the range into pieces, as the stream of a request sees them.  Spares are the idle handles among
 * them.  A window is where the request would go, over free memory and unmapped ranges side by side.
 */
#ifndef WEIR_MAPPED_SURVEY_H
#define WEIR_MAPPED_SURVEY_H

#include "engine/mapped_state.h"

/* What a piece of the range is, as the caller's stream sees it. */
enum {
    BORDER, /* of no bytes: where the addresses of large or of small requests begin, or end */
    TAKEN,
    ALIAS,  /* in an unmapped range, but not to be used */
    OTHERS, /* free, but not for this stream; its last uses were not completed */
    BEHIND, /* the same, but they could be waited for */
    OWN,    /* free for this stream; its last uses were not completed */
    CLEAN,  /* free for everybody, and done */
    UNMAPPED
};

struct weir_mapped_piece {
    uint64_t base;
    size_t bytes;
    int what;
    uint64_t
        chunk; /* where the placement's chunk begins that it is of: an unmapped range may be in pieces */
    struct weir_mapped_tag tag; /* BEHIND and OWN */
};

/* An idle handle: the piece that it begins in, and where it is mapped. */
struct weir_mapped_spare {
    size_t piece;
    uint64_t base;
    size_t bytes;
    int what; /* CLEAN, or the least of its pieces: OWN or BEHIND */
};

/* Where a request goes. */
struct weir_mapped_window {
    uint64_t base, end;
    size_t missing;
    int what; /* the free memory around is that, or better: CLEAN, OWN or BEHIND */
};

/* ---- mapped_survey.c ---- */

/* Sees the pieces as the stream of that id does; 0: as nobody's. 1, or 0: no host memory. */
int weir__mapped_survey(struct weir_block_engine *a, uint64_t id);
/* The piece that has the address, by the last survey. */
size_t weir__mapped_piece_of(const struct weir_mapped_range *g, uint64_t address);
/* What a handle in pieces from `first` on is, the least of them, and how many were not completed. */
int weir__mapped_what_holds(const struct weir_mapped_range *g, size_t first,
                            const struct weir_mapped_handle *h, size_t *unseen);
/* Finds the idle handles outside the window, in what is `least` or better. */
void weir__mapped_find_spares(struct weir_mapped_range *g, const struct weir_mapped_window *w,
                              int least);

/* ---- mapped_window.c ---- */

/* The part of an unmapped range that the window covers, in whole pages.  0: none. */
int weir__mapped_covers(const struct weir_mapped_window *w, const struct weir_mapped_piece *p,
                        uint64_t *from, uint64_t *to);
/* The window that lacks least, and of these the lowest. */
void weir__mapped_find_window(const struct weir_mapped_range *g, int small, size_t bytes, int what,
                              struct weir_mapped_window *best);
/* For a request with handles of its own: the window that lacks least of those that begin with a handle, or in a
 * unmapped range. */
void weir__mapped_find_own(const struct weir_mapped_range *g, size_t bytes, int what,
                           struct weir_mapped_window *best);
/* Behind the last memory of its range; what is free there counts in. */
void weir__mapped_find_tail(const struct weir_mapped_range *g, int small, size_t bytes,
                            struct weir_mapped_window *w);

#endif
