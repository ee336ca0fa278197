/* SPDX-License-Identifier: MIT */
/* engine_questions.h: what an engine is asked: where its memory lies, which blocks live, what is idle.
 *
 * Must not know: who answers, and how (engine.h).
 */
#ifndef WEIR_ENGINE_QUESTIONS_H
#define WEIR_ENGINE_QUESTIONS_H

#include <stddef.h>
#include <stdint.h>

/* A piece of the device's addresses, or a block. */
struct weir_extent {
    uint64_t base;
    size_t bytes;    /* of a block as asked */
    uint64_t stream; /* of a block: the id of the stream that it was fetched for, 0 if not known */
    int large;       /* what requests up to 512 KiB have will not lie there */
};

/* What `visit` shows. */
enum weir_visited {
    /* Where the reserved memory lies, or what of it was preallocated last, and behind that where it will come, as far as that
     * can be told; those first that small requests will have. */
    WEIR_VISIT_EXTENTS,
    /* The pieces of the reserved memory that go back to the device whole or not at all, from low addresses to high. */
    WEIR_VISIT_WHOLES,
    WEIR_VISIT_BLOCKS,   /* every live block */
    WEIR_VISIT_BLOCK_AT, /* the live block around the address */
    WEIR_VISIT_PIECE_AT, /* the piece around the address that blocks are cut from */
    WEIR_VISIT_APART     /* the addresses that a request may name: at most one piece */
};

/* A physical allocation that other processes may open (mapped_files.h). */
struct weir_memory_file {
    uint64_t base; /* the address of its mapping */
    size_t bytes;
    int file; /* a descriptor of this process, which stays open until the memory goes back to the device */
    uint64_t name; /* a number that the process uses for this export only */
};

struct weir_memory_files {
    struct weir_memory_file *list; /* sorted by base; the caller frees the list */
    size_t count, capacity;
};

typedef void weir__engine_visit_fn(void *context, const struct weir_extent *extent);

/* NULL: it is only counted. */
struct weir_visit {
    enum weir_visited what;
    uint64_t address; /* of what is AT one */
    weir__engine_visit_fn *show;
    void *context;
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* What `survey` tells. */
enum {
    WEIR_SURVEY_IDLE = 1,    /* unmapped range to by[] */
    WEIR_SURVEY_LARGEST = 2, /* largest */
    WEIR_SURVEY_PIECES = 4,  /* piece */
    WEIR_SURVEY_PENDING = 8  /* frees; looks at what is pending first */
};

/* Begins zeroed, but for what is asked. */
struct weir_survey {
    unsigned what;
    uint64_t id; /* of the stream that asks, 0: not known */
    uint64_t
        back; /* LARGEST: after so many bytes of blocks, whole units, had been given back and trimmed */
    /* What of the reserved memory is idle, as that stream sees it. */
    uint64_t
        largest_free; /* bytes of the largest free piece that it may have (UINT64_MAX: not known), */
    uint64_t largest_free_at_rest; /* and of the largest that there were if all streams were done */
    uint64_t pending;              /* free bytes that wait for others; of this, by stream: */
    size_t streams;
    struct {
        uint64_t stream, bytes; /* 0: several, or not known */
    } by[WEIR_SURVEY_STREAMS];
    int is_untold; /* the engine cannot tell what is idle */
    /* Bytes of the largest request that would surely be served now, or by OOM recovery, on that stream,
     * which has just been refused one.  0: none that is known. */
    uint64_t largest;
    /* Of what is idle and everybody's: bytes of the largest piece, and of the one at the end, which grows with
     * reserved memory.  Both 0: it has no end, or that cannot be told. */
    struct {
        uint64_t largest, last;
    } piece;
    /* Frees, or batches of them, that will be known to have completed by asking again; and streams whose frees only
     * their owner's next call will tell of, with what is pending that an allocator's end need not wait for. */
    struct {
        size_t waiting, silent;
    } frees;
};

/* ---- asked: engine.c ---- */

struct weir_engine;

/* 1 if a block is live, as far as can be told. */
int weir__engine_has_blocks(struct weir_engine *e);
/* 1 and what there is of that kind around an address, or 0; -1: the engine cannot tell. */
int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out);
/* What lies in more than one piece, up to `most`: how many there are; -1 likewise. */
int weir__engine_list(struct weir_engine *e, enum weir_visited what, struct weir_extent *out,
                      size_t most);
/* All of them, in memory that the caller frees: how many; 0 and NULL: none, it cannot tell, or no host memory. */
size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out);

#endif
