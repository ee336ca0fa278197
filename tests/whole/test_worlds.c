/* SPDX-License-Identifier: MIT */
/* test_worlds.c: small worlds, whole: every sequence of a few operations against a naive reference.
 *
 * What the random runs of other suites find by luck is tried here without exception, in worlds so small
 * that all of it can be: a placement of a few granules, a fixed arena of two or three, caches of a few blocks.
 *
 * Sequences are enumerated depth first.  Streams are interchangeable (nothing in the library looks at
 * their numbers but to tell them apart), so that the first to be named is always the same, and so on; the
 * other of the 2 or 6 like sequences are left out.  Blocks go by the order in which they were taken.
 *
 * Placement.  The reference knows granules, not chunks: whose each is, or under which tag it was freed;
 * every answer, the layout, the figures and the invariants are compared at the end of each sequence.  The
 * host's memory comes from one piece that is copied and put back, so that the next sequence begins where
 * the common part ended.  Looking ends a short cut of the placement (parking), so that each sequence goes
 * on as if nobody had looked; looking is an operation of its own beside.
 *
 * Arena.  Through the public interface on the device model, each sequence from the making of an allocator
 * to its end.  Every block is used at once by work without end on its stream, so that what another
 * stream gets is a fault (oracle.h) unless it waits behind that work, or the device was waited for.
 *
 * Front.  The same with the caches per stream above the pool engine, small ones.  Making such an allocator
 * and warming it takes as long as a hundred sequences, so that one allocator lives through all of a world:
 * each sequence begins where nothing is live, all work is over and the caches are warm, but with what
 * the earlier ones have left in which cache.  Streams are therefore not interchangeable there.  After a
 * sequence that ends with a trim, everything must be back.
 *
 * How far it goes is printed by each run, and stands in `small_placements`, `small_arenas` and
 * `small_fronts`: sequences of up to 4 to 7 operations, more than two million of them.  WEIR_TEST_DEPTH=N
 * makes all of them N operations longer (-N: shorter), which is about ten times the work each time.
 */
#include "tests/fixtures/model_device.h"

#include <stdio.h>
#include <string.h>

#include "placement/placement.h"

/* What is under way, for whoever has to read it. */
static void (*tell)(void);

#define FAULT(...) (tell(), ck_abort_msg(__VA_ARGS__))
#include "tests/fixtures/oracle.h"

/* ---- sequences ------------------------------------------------------------------------------- */

enum { MOST_STEPS = 12 };

struct step {
    int kind;
    int what, stream; /* a size or a block, by the kind */
};

/* The one that is tried. */
static struct {
    struct step done[MOST_STEPS];
    int depth, steps; /* so many so far, and at most */
    uint64_t sequences;
} search;

static void begin_search(int steps, void (*teller)(void)) {
    memset(&search, 0, sizeof search);
    search.steps = steps;
    tell = teller;
    MUST(steps <= MOST_STEPS);
}

static void tell_steps(const char *const *words) {
    for (int i = 0; i < search.depth; i++)
        fprintf(stderr, "%s%s %d on %d", i > 0 ? ", " : "", words[search.done[i].kind],
                search.done[i].what, search.done[i].stream);
    fprintf(stderr, "\n");
}

static void show_bounds(const char *what, const char *name) {
    printf("# %s, %s: all %llu sequences of up to %d operations\n", what, name,
           (unsigned long long)search.sequences, search.steps);
    fflush(stdout);
}

static int depth_of(int standard) {
    const char *text = getenv("WEIR_TEST_DEPTH");

    return standard + (text ? (int)strtol(text, NULL, 0) : 0);
}

/* As MUST and MUST_EQ, but each side is evaluated once, and the sequence is told. */
#define HOLDS(condition) same(!!(condition), 1, #condition, __LINE__)
#define SAME(a, b) same((uint64_t)(a), (uint64_t)(b), #a " == " #b, __LINE__)

static void same(uint64_t a, uint64_t b, const char *what, int line) {
    if (a == b)
        return;
    tell();
    must_compare(0, what, a, b, line);
}

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

#define G ((size_t)256)
#define BASE UINT64_C(0x7f0000000000)
enum { GRANULES = 8, MOST_REGIONS = 2, MOST_STREAMS = 3 };

struct granules {
    struct granule {
        uint8_t region, block; /* 0: free */
        uint8_t stream;    /* the tag of a free one; as long as there is one stream: that one's */
        uint32_t sequence; /* 0: clean */
    } at[GRANULES];
    uint32_t last[MOST_STREAMS + 1], observed[MOST_STREAMS + 1]; /* by stream, from 1 */
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
    return a->sequence && b->sequence ? a->stream == b->stream : a->sequence == b->sequence;
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
    HOLDS(weir__placement_check(placement, stderr));
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

enum { TAKE, GIVE, OBSERVE, OBSERVE_EARLIER, LOOK };

static const struct small_placement *world;
static struct weir_placement_rule world_rule;
static unsigned char memory_before[MOST_STEPS][sizeof heap.byte];

static void tell_placement(void) {
    static const char *const words[] = {"take", "give", "observe", "observe earlier", "look"};

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
    }
    if (search.depth > 0 && search.done[search.depth - 1].kind != LOOK)
        try_step(named, (struct step){LOOK, 0, 0});
}

TEST(every_short_life_of_a_placement) {
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

/* ---- allocators: one operation --------------------------------------------------------------- */

/* Longer than anything waits but for the device: a stream that works does not end by itself. */
#define ENDLESS (UINT64_C(3600) * 1000 * MS)

enum { ALLOC, FREE, USE, WAIT, SYNC, PASS, TRIM, BIND, BEGIN, END };
static const char *const call_words[] = {"alloc", "free", "use",  "wait",  "sync",
                                         "pass",  "trim", "bind", "begin", "end"};

static void tell_calls(void) {
    tell_steps(call_words);
}

static CUstream streams[3];
static weir_allocator *allocator;
static struct oracle oracle;
static uint64_t refusals, device_bytes;

static void start_calls(void) {
    start_model(256 * MIB);
    streams[0] = A, streams[1] = B, streams[2] = C;
    device_bytes = device_free();
}

/* `later` waits for all of `earlier` so far. */
static void order(int later, int earlier) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, streams[earlier]));
    CU(driver->cuStreamWaitEvent(streams[later], event, 0));
    CU(driver->cuEventDestroy(event));
    oracle_follow(&oracle, later, earlier);
}

static void work_on(int s) {
    uint64_t now = weir__model_now_ns();

    busy(streams[s], ENDLESS);
    oracle_work(&oracle, s, ENDLESS, now);
}

/* The stream uses the block as soon as it has it, and is never done with it by itself. */
static weir_status alloc_on(size_t bytes, int s) {
    void *block = NULL;
    weir_status status = weir_alloc(allocator, bytes, streams[s], &block);

    if (status == WEIR_OK) {
        oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns());
        work_on(s);
    } else {
        HOLDS(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT);
        HOLDS(block == NULL);
        refusals++;
    }
    return status;
}

static void free_on(int i, int s, int captured) {
    void *block = (void *)(uintptr_t)oracle.block[i].at; /* NOLINT(performance-no-int-to-ptr) */

    if (s != oracle.block[i].stream)
        order(s, oracle.block[i].stream);
    SAME(weir_free(allocator, block, streams[s]), WEIR_OK);
    oracle_given(&oracle, i, s, captured, weir__model_now_ns());
}

static void use_on(int i, int s) {
    struct oracle_block *b = &oracle.block[i];

    order(s, b->stream);
    work_on(s);
    SAME(weir_use(allocator, (void *)(uintptr_t)b->at, streams[s]), WEIR_OK);
    b->users |= 1u << s;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

static const struct small_arena {
    const char *name;
    int granules, sizes, streams; /* blocks of 1 to `sizes` granules */
    int uses, passes;             /* are there weir_use, and time that nobody observes? */
    uint32_t timeout_ms;
    int steps;
} small_arenas[] = {
    {"three granules", 3, 2, 2, 0, 0, 1, 6},
    {"with uses", 2, 1, 2, 1, 1, 1, 5},
    {"no waiting", 3, 2, 2, 0, 1, UINT32_MAX, 5},
    {"three streams", 2, 1, 3, 0, 0, 1, 5},
};
enum { SMALL_ARENAS = sizeof small_arenas / sizeof small_arenas[0] };

static const struct small_arena *arena;
static uint64_t reserve, arena_base; /* what and where it is, as far as is known */

static void begin_arena(void) {
    weir_options options = options_of(KIND_FIXED, "model", (uint64_t)arena->granules * G);

    options.front = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = arena->timeout_ms;
    SAME(weir_allocator_create(&options, &allocator), WEIR_OK);
    oracle_begin(&oracle);
    reserve = (uint64_t)arena->granules * G;
    arena_base = refusals = 0;
}

static size_t rounded(size_t bytes) {
    return (bytes + G - 1) / G * G;
}

static weir_statistics expect_figures(void) {
    weir_statistics s = check_identities(allocator);
    size_t least = 0;

    SAME(s.allocs, oracle.allocs);
    SAME(s.frees, oracle.frees);
    SAME(s.refusals, refusals);
    SAME(s.blocks, (uint64_t)oracle.blocks);
    SAME(s.requested, oracle.requested);
    SAME(s.requested_peak, oracle.requested_peak);
    for (int i = 0; i < oracle.blocks; i++)
        least += rounded(oracle.block[i].bytes);
    HOLDS(s.in_use >= least && s.in_use < 2 * least + (least == 0));
    SAME(s.reserve, reserve);
    return s;
}

/* The longest piece of the arena in which no block lies. */
static size_t longest_gap(void) {
    uint64_t end = arena_base + (uint64_t)arena->granules * G;
    size_t longest = 0;

    for (uint64_t from = arena_base; from < end; from += G) {
        uint64_t to = end;

        for (int k = 0; k < oracle.blocks; k++) {
            const struct oracle_block *b = &oracle.block[k];

            if (b->at + rounded(b->bytes) > from && b->at < to)
                to = b->at > from ? b->at : from;
        }
        longest = to - from > longest ? (size_t)(to - from) : longest;
    }
    return longest;
}

static int all_is_over(void) {
    for (int i = 0; i < oracle.freed_count; i++)
        if (!oracle_is_over(&oracle.freed[i], weir__model_now_ns()))
            return 0;
    return 1;
}

/* A request was refused as the last thing.  If all work is over, there was no room, unless the arena may
 * not wait at all.  Where blocks got more than they need, only the arena knows. */
static void expect_no_room(size_t bytes) {
    weir_statistics s = stats_of(allocator);
    size_t least = 0;

    for (int i = 0; i < oracle.blocks; i++)
        least += rounded(oracle.block[i].bytes);
    if (s.in_use == least && all_is_over() && arena->timeout_ms != UINT32_MAX)
        HOLDS(longest_gap() < rounded(bytes));
}

/* A block whose free waits for other streams holds the region; no trim waits for those. */
static void do_trim(void) {
    size_t released = 0;

    SAME(weir_trim(allocator, 0, &released), WEIR_OK);
    HOLDS(released == (oracle.blocks == 0 ? reserve : 0) || (released == 0 && !all_is_over()));
    reserve -= released;
    if (reserve == 0)
        arena_base = 0;
}

static void do_step(const struct step *step, int is_last) {
    weir_status status;
    size_t bytes;

    switch (step->kind) {
    case ALLOC:
        bytes = (size_t)step->what * G - (size_t)oracle.blocks;
        status = alloc_on(bytes, step->stream);
        if (status == WEIR_OK)
            reserve = (uint64_t)arena->granules * G;
        if (status == WEIR_OK && !arena_base)
            arena_base = oracle.block[0].at; /* of an empty region the lowest */
        if (status != WEIR_OK && is_last)
            expect_no_room(bytes);
        break;
    case FREE:
        free_on(step->what, step->stream, 0);
        break;
    case USE:
        use_on(step->what, step->stream);
        break;
    case WAIT:
        order(step->stream, step->what);
        break;
    case SYNC:
        CU(driver->cuCtxSynchronize());
        break;
    case PASS:
        weir__model_advance(100 * ENDLESS);
        break;
    default:
        do_trim();
    }
}

/* What may follow a sequence depends on this. */
struct outlook {
    int named, blocks; /* the streams 0 to named - 1 were named */
    unsigned captured, bound;
    struct oracle_block block[MOST_STEPS];
};

/* The sequence so far, from the first to the last sign of life of an allocator. */
static void live_through(struct outlook *outlook) {
    begin_arena();
    for (int i = 0; i < search.depth; i++)
        do_step(&search.done[i], i + 1 == search.depth);
    expect_figures();
    outlook->blocks = oracle.blocks;
    memcpy(outlook->block, oracle.block, (size_t)oracle.blocks * sizeof oracle.block[0]);
    while (oracle.blocks > 0)
        free_on(oracle.blocks - 1, oracle.block[oracle.blocks - 1].stream, 0);
    CU(driver->cuCtxSynchronize());
    do_trim();
    SAME(expect_figures().in_use, 0);
    SAME(weir_allocator_destroy(allocator), WEIR_OK);
    SAME(device_free(), device_bytes);
}

static void explore_arena(const struct outlook *outlook);

static void try_call(const struct outlook *outlook, int kind, int what, int stream) {
    struct outlook next = {.named = stream < outlook->named ? outlook->named : stream + 1};

    search.done[search.depth++] = (struct step){kind, what, stream};
    search.sequences++;
    live_through(&next);
    if (search.depth < search.steps)
        explore_arena(&next);
    search.depth--;
}

static int is_last(int kind) {
    return search.depth > 0 && search.done[search.depth - 1].kind == kind;
}

static void explore_arena(const struct outlook *o) {
    int most = o->named < arena->streams ? o->named + 1 : o->named;

    for (int s = 0; s < most; s++) {
        for (int size = 1; size <= arena->sizes; size++)
            try_call(o, ALLOC, size, s);
        for (int i = 0; i < o->blocks; i++) {
            try_call(o, FREE, i, s);
            if (arena->uses && s != o->block[i].stream && !(o->block[i].users >> s & 1))
                try_call(o, USE, i, s);
        }
    }
    for (int s = 0; s < o->named; s++)
        for (int t = 0; t < o->named; t++)
            if (s != t)
                try_call(o, WAIT, t, s);
    if (search.depth > 0 && !is_last(SYNC))
        try_call(o, SYNC, 0, 0);
    if (arena->passes && search.depth > 0 && !is_last(SYNC) && !is_last(PASS))
        try_call(o, PASS, 0, 0);
    if (!is_last(TRIM))
        try_call(o, TRIM, 0, 0);
}

TEST(every_short_life_of_an_arena) {
    struct outlook nothing = {0};

    arena = &small_arenas[_i];
    begin_search(depth_of(arena->steps), tell_calls);
    explore_arena(&nothing);
    show_bounds("arena", arena->name);
}

/* ---- fronts ---------------------------------------------------------------------------------- */

static const struct small_front {
    const char *name;
    size_t sizes[3];
    int streams;
    int bound; /* all of them, from the beginning */
    int uses, trims, binds, captures;
    int steps;
} small_fronts[] = {
    {"slots and whole blocks", {32 * KIB, 600 * KIB}, 2, 0, 0, 0, 0, 0, 5},
    {"bound streams", {32 * KIB, 600 * KIB}, 2, 1, 0, 0, 0, 0, 4},
    {"slots of three streams", {32 * KIB}, 3, 0, 0, 0, 0, 0, 4},
    {"uses and captures", {32 * KIB, 600 * KIB}, 2, 0, 1, 0, 0, 1, 4},
    {"trims and bindings", {32 * KIB, 600 * KIB}, 2, 0, 0, 1, 1, 0, 4},
};
enum { SMALL_FRONTS = sizeof small_fronts / sizeof small_fronts[0] };

static const struct small_front *front;
static weir_statistics at_rest;  /* when the sequence began */
static unsigned captured, bound; /* one bit for each stream */

/* Every stream has its cache, and the engine is calm, so that the caches keep whole blocks too. */
static void warm_front(void) {
    for (int s = 0; s < front->streams; s++)
        for (int i = 0; i < 1200; i++) {
            void *block = NULL;

            SAME(weir_alloc(allocator, i % 20 ? 600 * KIB : 32 * KIB, streams[s], &block), WEIR_OK);
            SAME(weir_free(allocator, block, streams[s]), WEIR_OK);
        }
    CU(driver->cuCtxSynchronize());
}

static void make_front(void) {
    weir_options options = options_of(KIND_POOL, "model", 0);

    options.front = WEIR_SWITCH_ON;
    options.front_cache = bytes_amount(4 * MIB);
    options.recovery_timeout_ms = 1;
    SAME(weir_allocator_create(&options, &allocator), WEIR_OK);
    for (int s = 0; front->bound && s < front->streams; s++)
        SAME(weir_bind(allocator, streams[s]), WEIR_OK);
    warm_front();
}

/* The graph has freed what it allocated when its capture ends. */
static void end_capture(int s) {
    CUgraph graph;

    for (int i = oracle.blocks; i-- > 0;)
        if (oracle.block[i].graph && oracle.block[i].stream == s) {
            SAME(weir_free(allocator, (void *)(uintptr_t)oracle.block[i].at, streams[s]), WEIR_OK);
            oracle_gone(&oracle, i);
        }
    CU(driver->cuStreamEndCapture(streams[s], &graph));
    CU(driver->cuGraphDestroy(graph));
    captured &= ~(1u << s);
    oracle_captured(&oracle, s);
}

/* A block of the graph's, which no work uses before a launch. */
static void alloc_captured(size_t bytes, int s) {
    void *block = NULL;

    SAME(weir_alloc(allocator, bytes, streams[s], &block), WEIR_OK);
    oracle_of_graph(&oracle,
                    oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns()));
}

/* Under capture a block with uses is not taken back. */
static void free_in_front(int i, int s) {
    struct oracle_block *b = &oracle.block[i];

    if (b->graph) {
        SAME(weir_free(allocator, (void *)(uintptr_t)b->at, streams[s]), WEIR_OK);
        oracle_gone(&oracle, i);
    } else if (captured && b->users) {
        SAME(weir_free(allocator, (void *)(uintptr_t)b->at, streams[s]),
             captured >> s & 1 || b->users & captured ? WEIR_E_CAPTURE : WEIR_OK);
        if (!(captured >> s & 1 || b->users & captured))
            oracle_given(&oracle, i, s, 0, weir__model_now_ns());
    } else {
        free_on(i, s, (int)(captured >> s & 1));
    }
}

static void do_call(const struct step *step) {
    int s = step->stream;

    switch (step->kind) {
    case ALLOC:
        if (captured >> s & 1)
            alloc_captured(front->sizes[step->what], s);
        else
            SAME(alloc_on(front->sizes[step->what], s), WEIR_OK);
        break;
    case FREE:
        free_in_front(step->what, s);
        break;
    case USE:
        use_on(step->what, s);
        break;
    case WAIT:
        order(s, step->what);
        break;
    case SYNC:
        CU(driver->cuCtxSynchronize());
        break;
    case PASS:
        weir__model_advance(100 * ENDLESS);
        break;
    case TRIM:
        SAME(weir_trim(allocator, 0, NULL), WEIR_OK);
        break;
    case BIND:
        SAME(bound >> s & 1 ? weir_unbind(allocator, streams[s]) : weir_bind(allocator, streams[s]),
             WEIR_OK);
        bound ^= 1u << s;
        break;
    case BEGIN:
        CU(driver->cuStreamBeginCapture(streams[s], CU_STREAM_CAPTURE_MODE_RELAXED));
        captured |= 1u << s;
        break;
    default:
        end_capture(s);
    }
}

static weir_statistics expect_front_figures(void) {
    weir_statistics s = check_identities(allocator);

    SAME(s.allocs - at_rest.allocs, oracle.allocs);
    SAME(s.frees - at_rest.frees, oracle.frees);
    SAME(s.refusals, 0);
    SAME(s.blocks, (uint64_t)oracle.blocks);
    SAME(s.requested, oracle.requested);
    HOLDS(s.front_misses_young == at_rest.front_misses_young);
    return s;
}

/* Everything is back on the device, and the caches are filled anew. */
static void expect_nothing_kept(void) {
    weir_statistics s;

    SAME(weir_trim(allocator, 0, NULL), WEIR_OK);
    s = check_identities(allocator);
    HOLDS(s.reserve == 0 && s.front_idle == 0 && s.in_use == 0);
    warm_front();
}

/* The sequence so far, in an allocator at rest: nothing is live, all work is over, caches are warm. */
static void live_in_front(struct outlook *outlook) {
    weir_statistics s;

    oracle_begin(&oracle);
    at_rest = stats_of(allocator);
    for (int i = 0; i < search.depth; i++)
        do_call(&search.done[i]);
    expect_front_figures();
    outlook->blocks = oracle.blocks;
    outlook->captured = captured;
    outlook->bound = bound;
    memcpy(outlook->block, oracle.block, (size_t)oracle.blocks * sizeof oracle.block[0]);
    for (int t = 0; t < front->streams; t++) {
        if (captured >> t & 1)
            end_capture(t);
        if (bound >> t & 1)
            do_call(&(struct step){BIND, 0, t});
    }
    while (oracle.blocks > 0)
        free_in_front(oracle.blocks - 1, oracle.block[oracle.blocks - 1].stream);
    CU(driver->cuCtxSynchronize());
    s = expect_front_figures();
    SAME(s.in_use, 0);
    if (search.done[search.depth - 1].kind == TRIM)
        expect_nothing_kept();
    else if (s.growths > at_rest.growths || s.trims > at_rest.trims)
        warm_front();
}

static void explore_front(const struct outlook *o);

static void try_in_front(int kind, int what, int stream) {
    struct outlook next = {0};

    search.done[search.depth++] = (struct step){kind, what, stream};
    search.sequences++;
    live_in_front(&next);
    if (search.depth < search.steps)
        explore_front(&next);
    search.depth--;
}

/* What may follow on one block.  Edges lead into no capture, and none leads out. */
static void explore_block(const struct outlook *o, int i) {
    const struct oracle_block *b = &o->block[i];

    for (int s = 0; s < front->streams; s++) {
        int apart = s != b->stream && ((o->captured >> s & 1) || (o->captured >> b->stream & 1));

        if (!apart && (!b->graph || s == b->stream))
            try_in_front(FREE, i, s);
        if (front->uses && !apart && !b->graph && s != b->stream && !(b->users >> s & 1))
            try_in_front(USE, i, s);
    }
}

static void explore_front(const struct outlook *o) {
    for (int s = 0; s < front->streams; s++) {
        unsigned is_captured = o->captured >> s & 1;

        for (int size = 0; size < 3 && front->sizes[size]; size++)
            if (!(is_captured && (o->bound >> s & 1)))
                try_in_front(ALLOC, size, s);
        for (int t = 0; t < front->streams && !o->captured; t++)
            if (t != s)
                try_in_front(WAIT, t, s);
        if (front->binds && !is_captured)
            try_in_front(BIND, 0, s);
        if (front->captures)
            try_in_front(is_captured ? END : BEGIN, 0, s);
    }
    for (int i = 0; i < o->blocks; i++)
        explore_block(o, i);
    if (!o->captured && !is_last(SYNC))
        try_in_front(SYNC, 0, 0);
    if (!is_last(PASS))
        try_in_front(PASS, 0, 0);
    if (front->trims && !is_last(TRIM))
        try_in_front(TRIM, 0, 0);
}

TEST(every_short_life_in_a_front) {
    struct outlook nothing = {0};

    front = &small_fronts[_i];
    begin_search(depth_of(front->steps), tell_calls);
    captured = bound = 0;
    make_front();
    explore_front(&nothing);
    SAME(weir_trim(allocator, 0, NULL), WEIR_OK);
    SAME(weir_allocator_destroy(allocator), WEIR_OK);
    SAME(device_free(), device_bytes);
    check_model();
    show_bounds("front", front->name);
}

/* ---- the suite ------------------------------------------------------------------------------- */

int main(void) {
    Suite *suite = suite_create("worlds");
    TCase *tests = suite_add_case(suite, "placements", 300, NULL, NULL);

    tcase_add_loop_test(tests, every_short_life_of_a_placement, 0, SMALL_PLACEMENTS);
    tests = suite_add_case(suite, "arenas", 300, start_calls, NULL);
    tcase_add_loop_test(tests, every_short_life_of_an_arena, 0, SMALL_ARENAS);
    tests = suite_add_case(suite, "fronts", 300, start_calls, NULL);
    tcase_add_loop_test(tests, every_short_life_in_a_front, 0, SMALL_FRONTS);
    return run_suite(suite, CK_FORK_GETENV);
}
