/* SPDX-License-Identifier: MIT */
/* test_worlds_placements.c: every short life of a placement, beside a reference that marks granules. */
#include "test_worlds.h"

#include "tests/fixtures/placement_check.h"

/* ---- placements: the host's memory ----------------------------------------------------------- */

/* Memory that is never used again until it is put back as it was. */
static struct {
    _Alignas(16) unsigned char byte[1 << 15];
    size_t used;
} heap;

static void *heap_resize(void *context, void *memory, size_t bytes) {
    size_t *piece;

    (void)context;
    if (bytes == 0)
        return NULL;
    HOLDS(heap.used + bytes + 32 <= sizeof heap.byte);
    piece = (void *)(heap.byte + heap.used); /* its size, before it */
    heap.used += 16 + (bytes + 15) / 16 * 16;
    *piece = bytes;
    if (memory) {
        size_t held = ((size_t *)memory)[-2];

        memcpy(piece + 2, memory, held < bytes ? held : bytes);
    }
    return piece + 2;
}

/* ---- placements: the reference --------------------------------------------------------------- */

#define BASE UINT64_C(0x7f0000000000)
enum { GRANULES = 8, MOST_REGIONS = 2, MOST_STREAMS = 3 };

struct granules {
    struct granule {
        uint8_t region, block; /* 0: free */
        uint8_t stream;    /* the tag of a free one; as long as there is one stream: that one's */
        uint32_t sequence; /* 0: clean */
    } at[GRANULES];
    uint32_t last[MOST_STREAMS + 1], observed[MOST_STREAMS + 1]; /* by stream, from 1 */
    uint32_t parted[MOST_STREAMS + 1];
    uint8_t high[MOST_REGIONS]; /* above it nothing was handed out */
    uint8_t count, regions, only, several;
    uint8_t blocks;
    size_t requested[MOST_STEPS + 1];
    uint32_t clock;
};

static struct weir_placement *placement; /* under test */
static struct granules ref;

static int may_join(int i, int j) {
    const struct granule *a = &ref.at[i], *b = &ref.at[j];

    if (a->region != b->region || a->block != b->block)
        return 0;
    if (a->block || !ref.several)
        return 1;
    if (a->sequence == b->sequence)
        return !a->sequence || a->stream == b->stream;
    return a->sequence > ref.parted[a->stream] && b->sequence > ref.parted[b->stream] &&
           a->stream == b->stream;
}

/* The end of the chunk that begins at i. */
static int end_of(int i) {
    int j = i + 1;

    while (j < ref.count && may_join(j - 1, j))
        j++;
    return j;
}

/* Free space that has joined waits for the latest of its frees. */
static void join(void) {
    for (int i = 0, end; i < ref.count; i = end) {
        uint32_t latest = 0;

        end = end_of(i);
        for (int j = i; j < end; j++)
            latest = ref.at[j].sequence > latest ? ref.at[j].sequence : latest;
        for (int j = i; j < end; j++)
            ref.at[j].sequence = latest;
    }
}

static void ref_begin(const int *regions) {
    memset(&ref, 0, sizeof ref);
    for (int r = 0; r < MOST_REGIONS && regions[r]; r++) {
        ref.high[r] = ref.count;
        for (int i = 0; i < regions[r]; i++)
            ref.at[ref.count++].region = (uint8_t)r;
        ref.regions++;
    }
}

/* The second stream makes of what was everybody's the first one's, or nobody's. */
static void ref_seen(int stream) {
    if (ref.several || stream == ref.only)
        return;
    if (!ref.only) {
        ref.only = (uint8_t)stream;
        return;
    }
    for (int i = 0; i < ref.count; i++) {
        struct granule *g = &ref.at[i];

        if (g->sequence <= ref.observed[ref.only] || i >= ref.high[g->region])
            g->sequence = 0;
        g->stream = ref.only;
    }
    ref.several = 1;
}

/* Where a block of that many granules goes, or -1; `tagged`: among what the stream has freed alone. */
static int ref_fit(int granules, int stream, int tagged) {
    int best = -1, best_size = GRANULES + 1;

    for (int i = 0, end; i < ref.count; i = end) {
        const struct granule *g = &ref.at[i];

        end = end_of(i);
        if (g->block || end - i < granules || end - i >= best_size || (tagged && !g->sequence))
            continue;
        if (ref.several && g->sequence && g->stream != stream)
            continue;
        best = i;
        best_size = end - i;
    }
    return best;
}

static int ref_take(size_t bytes, int stream, const struct weir_placement_rule *rule,
                    struct weir_placement_block *out) {
    int granules = (int)((bytes + G - 1) / G), waste = (int)(rule->split_waste / G), at = -1, size;

    ref_seen(stream);
    if (rule->own_first && ref.several)
        at = ref_fit(granules, stream, 1);
    if (at < 0)
        at = ref_fit(granules, stream, 0);
    if (at < 0)
        return WEIR_PLACEMENT_NO_FIT;
    size = end_of(at) - at;
    if (size >= 2 * granules || size - granules >= waste)
        size = granules;
    ref.blocks++;
    ref.requested[ref.blocks] = bytes;
    for (int i = at; i < at + size; i++)
        ref.at[i] = (struct granule){.region = ref.at[i].region, .block = ref.blocks};
    if (ref.high[ref.at[at].region] < at + size)
        ref.high[ref.at[at].region] = (uint8_t)(at + size);
    *out = (struct weir_placement_block){BASE + (uint64_t)at * G, bytes, (size_t)size * G};
    return WEIR_PLACEMENT_OK;
}

static void ref_give(int block, int stream, uint32_t sequence) {
    ref_seen(stream);
    if (sequence <= ref.observed[stream])
        sequence = 0;
    else if (sequence < ref.last[stream])
        sequence = ref.last[stream];
    else
        ref.last[stream] = sequence;
    for (int i = 0; i < ref.count; i++)
        if (ref.at[i].block == block)
            ref.at[i] = (struct granule){ref.at[i].region, 0, (uint8_t)stream, sequence};
    ref.requested[block] = 0;
    join();
}

static void ref_observe(int stream, uint32_t sequence) {
    if (sequence > ref.last[stream])
        sequence = ref.last[stream];
    if (sequence > ref.observed[stream])
        ref.observed[stream] = sequence;
    for (int i = 0; ref.several && i < ref.count; i++)
        if (ref.at[i].stream == stream && ref.at[i].sequence <= ref.observed[stream])
            ref.at[i].sequence = 0;
}

/* ---- placements: comparison ------------------------------------------------------------------ */

/* Does the free granule wait for anybody? */
static int waits(const struct granule *g) {
    return g->sequence > (ref.several ? 0 : ref.observed[ref.only]);
}

static int same_chunk(void *context, const struct weir_placement_span *span) {
    int *at = context;
    const struct granule *g = &ref.at[*at];
    int wait = !g->block && waits(g);

    HOLDS(*at < ref.count);
    SAME(span->address, BASE + (uint64_t)*at * G);
    SAME(span->size, (size_t)(end_of(*at) - *at) * G);
    SAME(span->live, g->block != 0);
    SAME(span->requested, g->block ? ref.requested[g->block] : 0);
    SAME(span->sequence, wait ? g->sequence : 0);
    SAME(span->stream, wait ? (ref.several ? g->stream : ref.only) : 0);
    *at = end_of(*at);
    return 0;
}

static void same_figures(void) {
    struct weir_placement_figures f, wanted = {.regions = ref.regions};
    uint8_t base = 0;

    for (int i = 0, end; i < ref.count; i = end) {
        size_t bytes;

        end = end_of(i);
        bytes = (size_t)(end - i) * G;
        wanted.total += bytes;
        if (ref.at[i].block) {
            wanted.used += bytes;
            wanted.requested += ref.requested[ref.at[i].block];
            wanted.blocks++;
            continue;
        }
        wanted.free_chunks++;
        wanted.largest_free = bytes > wanted.largest_free ? bytes : wanted.largest_free;
        wanted.unobserved += ref.several && ref.at[i].sequence ? bytes : 0;
    }
    for (int i = 0; i < ref.count; i++) {
        if (i > 0 && ref.at[i].region != ref.at[i - 1].region)
            base = (uint8_t)i;
        if (i == base)
            wanted.extent += (size_t)(ref.high[ref.at[i].region] - base) * G;
    }
    if (!ref.several && ref.last[ref.only] > ref.observed[ref.only])
        wanted.unobserved = wanted.extent - wanted.used;
    weir__placement_figures(placement, &f);
    wanted.host_bytes = f.host_bytes;
    HOLDS(memcmp(&f, &wanted, sizeof f) == 0);
}

/* Every granule but the starts of blocks is refused, and named for what it is. */
static void wrong_addresses(void) {
    struct weir_placement_block found;

    for (int i = 0; i < ref.count; i++) {
        uint64_t address = BASE + (uint64_t)i * G;
        int block = ref.at[i].block;
        int starts = block && (i == 0 || ref.at[i - 1].block != block);
        int wanted = starts  ? WEIR_PLACEMENT_OK
                     : block ? WEIR_PLACEMENT_INTERIOR
                             : WEIR_PLACEMENT_FREE;

        SAME(weir__placement_find(placement, address, &found), wanted);
        if (!starts)
            SAME(weir__placement_give(placement, address, 1, ref.clock + 1, NULL), wanted);
    }
    SAME(weir__placement_give(placement, BASE + ref.count * G, 1, ref.clock + 1, NULL),
         WEIR_PLACEMENT_FOREIGN);
}

static void compare(void) {
    int at = 0;

    wrong_addresses();
    weir__placement_walk(placement, same_chunk, &at);
    SAME(at, ref.count);
    same_figures();
    HOLDS(placement_check(placement, stderr));
}

/* ---- placements: all sequences --------------------------------------------------------------- */

static const struct small_placement {
    const char *name;
    int regions[MOST_REGIONS]; /* granules of each */
    int sizes;                 /* blocks of 1 to so many granules */
    int streams, waste;        /* of the split rule, in granules */
    int steps;
    int own_first;
} small_placements[] = {
    {"one region, always split", {6}, 3, 2, 1, 6, 0},
    {"one region, by halves", {6}, 3, 2, 64, 6, 0},
    {"two regions", {3, 3}, 2, 2, 1, 7, 0},
    {"three streams", {4}, 2, 3, 1, 6, 0},
    {"one stream", {7}, 3, 1, 64, 7, 0},
    {"own before clean", {6}, 2, 2, 1, 6, 1},
};
enum { SMALL_PLACEMENTS = sizeof small_placements / sizeof small_placements[0] };

enum { TAKE, GIVE, OBSERVE, OBSERVE_EARLIER, PART, LOOK };

static const struct small_placement *world;
static struct weir_placement_rule world_rule;
static unsigned char memory_before[MOST_STEPS][sizeof heap.byte];

static void tell_placement(void) {
    static const char *const words[] = {"take", "give", "observe", "observe earlier",
                                        "part", "look"};

    tell_steps(words);
}

/* Applies a step to both; 0 if there is no such step here. */
static int apply(const struct step *s) {
    struct weir_placement_block got = {0}, wanted = {0};
    size_t bytes;

    switch (s->kind) {
    case TAKE:
        /* The bytes asked for differ from block to block, and from the size. */
        bytes = (size_t)s->what * G - ref.blocks;
        SAME(weir__placement_take(placement, bytes, (uint64_t)s->stream, &got),
             ref_take(bytes, s->stream, &world_rule, &wanted));
        HOLDS(memcmp(&got, &wanted, sizeof got) == 0);
        return 1;
    case GIVE:
        if (!ref.requested[s->what])
            return 0;
        ref.clock++;
        for (int i = ref.count; i-- > 0;)
            if (ref.at[i].block == s->what)
                wanted.address = BASE + (uint64_t)i * G, wanted.size += G;
        wanted.requested = ref.requested[s->what];
        SAME(weir__placement_give(placement, wanted.address, (uint64_t)s->stream, ref.clock, &got),
             WEIR_PLACEMENT_OK);
        HOLDS(memcmp(&got, &wanted, sizeof got) == 0);
        ref_give(s->what, s->stream, ref.clock);
        return 1;
    case OBSERVE:
    case OBSERVE_EARLIER: {
        uint32_t to = ref.last[s->stream] - (s->kind == OBSERVE_EARLIER);

        if (ref.last[s->stream] == 0 || to <= ref.observed[s->stream])
            return 0;
        weir__placement_observe(placement, (uint64_t)s->stream, to);
        ref_observe(s->stream, to);
        join();
        return 1;
    }
    case PART:
        if (!ref.several || ref.parted[s->stream] == ref.last[s->stream])
            return 0;
        weir__placement_part(placement, (uint64_t)s->stream);
        ref.parted[s->stream] = ref.last[s->stream];
        return 1;
    default:
        compare();
        return 1;
    }
}

static void explore(int named);

/* One step more, compared, and everything that may follow. */
static void try_step(int named, struct step step) {
    unsigned char *memory = memory_before[search.depth];
    struct granules before = ref;
    size_t used = heap.used;

    memcpy(memory, heap.byte, used);
    search.done[search.depth++] = step;
    if (apply(&step)) {
        search.sequences++;
        if (search.depth == search.steps)
            compare();
        else
            explore(named > step.stream ? named : step.stream);
    }
    search.depth--;
    ref = before;
    heap.used = used;
    memcpy(heap.byte, memory, used);
}

/* All that may come next, where the streams 1 to `named` have been named. */
static void explore(int named) {
    const struct small_placement *w = world;
    int streams = named < w->streams ? named + 1 : named;

    for (int stream = 1; stream <= streams; stream++) {
        for (int size = 1; size <= w->sizes; size++)
            try_step(named, (struct step){TAKE, size, stream});
        for (int block = 1; block <= ref.blocks; block++)
            try_step(named, (struct step){GIVE, block, stream});
        try_step(named, (struct step){OBSERVE, 0, stream});
        try_step(named, (struct step){OBSERVE_EARLIER, 0, stream});
        try_step(named, (struct step){PART, 0, stream});
    }
    if (search.depth > 0 && search.done[search.depth - 1].kind != LOOK)
        try_step(named, (struct step){LOOK, 0, 0});
}

CASE("placements", 300, NULL, NULL);

TEST_EACH(SMALL_PLACEMENTS, every_short_life_of_a_placement) {
    const struct small_placement *w = &small_placements[_i];
    int first = 0;

    world = w;
    world_rule = (struct weir_placement_rule){.granularity = G,
                                              .split_waste = (size_t)w->waste * G,
                                              .own_first = w->own_first,
                                              .resize = heap_resize};
    begin_search(depth_of(w->steps), tell_placement);
    SAME(weir__placement_create(&world_rule, &placement), WEIR_PLACEMENT_OK);
    for (int r = 0; r < MOST_REGIONS && w->regions[r]; first += w->regions[r], r++)
        SAME(weir__placement_add(placement, BASE + (uint64_t)first * G, (size_t)w->regions[r] * G),
             WEIR_PLACEMENT_OK);
    ref_begin(w->regions);
    explore(0);
    show_bounds("placement", w->name);
}
