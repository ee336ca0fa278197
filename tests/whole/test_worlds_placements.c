/* SPDX-License-Identifier: MIT */
/* test_worlds_placements.c: compares every short life of a placement with a slow model. */
#include "test_worlds.h"

#define MODEL_PIECES 16
#define MODEL_STREAMS 3
#define MODEL_REGIONS 2
#include "tests/fixtures/placement_model.h"

/* ---- placements: the host's memory ----------------------------------------------------------- */

/* The placement's host memory.  No piece is used again until the search restores an earlier copy. */
static struct {
    _Alignas(16) unsigned char byte[1 << 17];
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
enum { MOST_REGIONS = 2 };

static struct weir_placement *placement;                        /* the placement under test */
static struct weir_placement_stream records[MODEL_STREAMS + 1]; /* indexed by the streams' ids */
static struct {
    uint64_t address[MOST_STEPS + 1]; /* indexed by block numbers from 1 on; 0 for a freed block */
    int blocks, granules;
    uint32_t clock;
} life;

/* ---- placements: comparison ------------------------------------------------------------------ */

static void same_chunk(size_t at, const struct weir_placement_span *span) {
    const struct piece *c = &model.piece[at];
    int waits = !c->requested && model_waits(c);

    HOLDS(at < model.pieces);
    SAME(span->address, c->base);
    SAME(span->size, c->size);
    SAME(span->live, c->requested != 0);
    SAME(span->requested, c->requested);
    SAME(span->sequence, waits ? c->sequence : 0);
    SAME(span->stream, waits ? (model.several ? c->stream : model.only) : 0);
}

static void same_figures(void) {
    struct weir_placement_figures f, wanted = {0};

    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        if (i == 0 || c[-1].region != c->region) {
            wanted.regions++;
            wanted.extent += model.high[c->region] - c->base;
        }
        wanted.total += c->size;
        wanted.blocks += c->requested != 0;
    }
    weir__placement_figures(placement, &f);
    wanted.host_bytes = f.host_bytes;
    HOLDS(memcmp(&f, &wanted, sizeof f) == 0);
}

/* Checks that each granule except the start of a block is refused, with the status that it calls for. */
static void wrong_addresses(void) {
    struct weir_placement_block found;
    const struct piece *c = model.piece;

    for (int i = 0; i < life.granules; i++) {
        uint64_t address = BASE + (uint64_t)i * G;
        int wanted;

        c += address == c->base + c->size;
        wanted = !c->requested        ? WEIR_PLACEMENT_FREE
                 : address == c->base ? WEIR_PLACEMENT_OK
                                      : WEIR_PLACEMENT_INTERIOR;
        SAME(weir__placement_find(placement, address, &found), wanted);
        if (wanted != WEIR_PLACEMENT_OK)
            SAME(weir__placement_free(placement, address, &records[1], life.clock + 1, NULL),
                 wanted);
    }
    SAME(weir__placement_free(placement, BASE + (uint64_t)life.granules * G, &records[1],
                              life.clock + 1, NULL),
         WEIR_PLACEMENT_FOREIGN);
}

static void compare(void) {
    struct weir_placement_span span = {0};
    size_t at = 0;

    wrong_addresses();
    while (weir__placement_next(placement, &span))
        same_chunk(at++, &span);
    SAME(at, model.pieces);
    same_figures();
    HOLDS(weir__placement_is_valid(placement));
}

/* ---- placements: all sequences --------------------------------------------------------------- */

static const struct small_placement {
    const char *name;
    int regions[MOST_REGIONS]; /* granules of each */
    int sizes;                 /* the largest block, in granules */
    int streams, waste;        /* the split rule's waste, in granules */
    int steps;
    int prefer_tagged;
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

    print_steps(words);
}

/* Applies a step to the placement and the model.  Returns 1 on success, 0 if the step is impossible here. */
static int apply(const struct step *s) {
    struct weir_placement_block got = {0}, wanted = {0};
    struct model_stream *stream = s->stream ? model_stream((uint64_t)s->stream) : NULL;
    size_t bytes;
    int result;

    switch (s->kind) {
    case TAKE:
        /* The bytes asked for differ from block to block, and from the size. */
        bytes = (size_t)s->what * G - (size_t)life.blocks;
        result = model_take(bytes, stream->id, &wanted);
        SAME(weir__placement_alloc(placement, bytes, &records[s->stream], &got), result);
        HOLDS(memcmp(&got, &wanted, sizeof got) == 0);
        if (result == WEIR_PLACEMENT_OK)
            life.address[++life.blocks] = wanted.address;
        return 1;
    case GIVE:
        if (!life.address[s->what])
            return 0;
        life.clock++;
        SAME(model_give(life.address[s->what], stream->id, life.clock, &wanted), WEIR_PLACEMENT_OK);
        SAME(weir__placement_free(placement, wanted.address, &records[s->stream], life.clock, &got),
             WEIR_PLACEMENT_OK);
        HOLDS(memcmp(&got, &wanted, sizeof got) == 0);
        life.address[s->what] = 0;
        return 1;
    case OBSERVE:
    case OBSERVE_EARLIER: {
        uint64_t to = stream->last - (s->kind == OBSERVE_EARLIER);

        if (stream->last == 0 || to <= stream->observed)
            return 0;
        records[s->stream].observed = to;
        weir__placement_observe(placement, &records[s->stream]);
        model_observe(stream->id, to);
        return 1;
    }
    case PART:
        if (!model.several || stream->merge_floor == stream->last)
            return 0;
        weir__placement_set_merge_floor(placement, &records[s->stream], stream->last);
        model_part(stream->id);
        return 1;
    default:
        compare();
        return 1;
    }
}

static void explore(int named);

/* Tries one more step, and all steps that may follow. */
static void try_step(int named, struct step step) {
    unsigned char *memory = memory_before[search.depth];
    struct placement_model model_before = model;
    struct weir_placement_stream records_before[MODEL_STREAMS + 1];
    size_t used = heap.used;
    uint64_t block = step.kind == GIVE ? life.address[step.what] : 0;
    int blocks = life.blocks;
    uint32_t clock = life.clock;

    memcpy(memory, heap.byte, used);
    memcpy(records_before, records, sizeof records);
    search.done[search.depth++] = step;
    if (apply(&step)) {
        search.sequences++;
        if (search.depth == search.steps)
            compare();
        else
            explore(named > step.stream ? named : step.stream);
    }
    search.depth--;
    model = model_before;
    memcpy(records, records_before, sizeof records);
    life.blocks = blocks;
    life.clock = clock;
    if (step.kind == GIVE)
        life.address[step.what] = block;
    heap.used = used;
    memcpy(heap.byte, memory, used);
}

/* Tries all next steps after a sequence that has named the streams 1 to `named'. */
static void explore(int named) {
    const struct small_placement *w = world;
    int streams = named < w->streams ? named + 1 : named;

    for (int stream = 1; stream <= streams; stream++) {
        for (int size = 1; size <= w->sizes; size++)
            try_step(named, (struct step){TAKE, size, stream});
        for (int block = 1; block <= life.blocks; block++)
            try_step(named, (struct step){GIVE, block, stream});
        try_step(named, (struct step){OBSERVE, 0, stream});
        try_step(named, (struct step){OBSERVE_EARLIER, 0, stream});
        try_step(named, (struct step){PART, 0, stream});
    }
    if (search.depth > 0 && search.done[search.depth - 1].kind != LOOK)
        try_step(named, (struct step){LOOK, 0, 0});
}

CASE("placements", 300, NULL, NULL);

TEST_EACH(SMALL_PLACEMENTS, every_short_life_of_a_placement_is_right) {
    const struct small_placement *w = &small_placements[_i];

    world = w;
    world_rule = (struct weir_placement_rule){.granularity = G,
                                              .split_waste = (size_t)w->waste * G,
                                              .prefer_tagged = w->prefer_tagged,
                                              .resize = heap_resize};
    begin_search(depth_of(w->steps), tell_placement);
    SAME(weir__placement_create(&world_rule, &placement), WEIR_PLACEMENT_OK);
    memset(&model, 0, sizeof model);
    memset(&life, 0, sizeof life);
    memset(records, 0, sizeof records);
    for (uint64_t id = 1; id <= MODEL_STREAMS; id++)
        records[id].id = id;
    model.rule = world_rule;
    for (int r = 0; r < MOST_REGIONS && w->regions[r]; life.granules += w->regions[r], r++) {
        uint64_t base = BASE + (uint64_t)life.granules * G;

        SAME(weir__placement_add(placement, base, (size_t)w->regions[r] * G), WEIR_PLACEMENT_OK);
        model_add(base, (size_t)w->regions[r] * G);
    }
    explore(0);
    show_bounds("placement", w->name);
}
