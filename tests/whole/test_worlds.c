/* SPDX-License-Identifier: MIT */
/* test_worlds.c: every sequence of a few operations in a small world, against a naive reference.
 *
 * The suite goes through all sequences, depth first.  Streams are interchangeable for a placement and an arena, so the
 * n-th stream that a sequence names is always stream n.
 *
 * A placement (test_worlds_placements.c) has a few granules, and a slow model beside it.  Its host memory is one piece,
 * which is copied and put back, so that the next sequence begins where the common part ended.
 * Each sequence makes a new arena.  Endless work uses each block at once on its stream, so that another stream may have
 * the block only behind that work (oracle.h), or after a wait for the device.
 * Caches take long to warm, so one allocator serves all sequences of a world.  Each sequence begins with no live block,
 * completed work and warm caches, and after one that ends with a trim all memory must be back.  Memory of streams that
 * ended stays for later sequences, until a request lacks memory.
 *
 * Each run prints its bounds: 4 to 7 operations, two million sequences.  WEIR_TEST_DEPTH=N adds N operations to each,
 * which is about ten times the work for each one (-N: fewer). */
#include "test_worlds.h"

/* ---- allocators: one operation --------------------------------------------------------------- */

/* Work of this length outlasts every wait except one for the device. */
#define ENDLESS (UINT64_C(3600) * 1000 * MS)

enum { ALLOC, FREE, USE, WAIT, SYNC, PASS, TRIM, BIND, BEGIN, END, RENEW };
static const char *const call_words[] = {"alloc", "free", "use",   "wait", "sync", "pass",
                                         "trim",  "bind", "begin", "end",  "renew"};

static void tell_calls(void) {
    print_steps(call_words);
}

static CUstream streams[3];
static weir_allocator *allocator;
static struct oracle oracle;
static uint64_t failed_requests, device_bytes;

static void start_calls(void) {
    start_model(256 * MIB);
    streams[0] = A, streams[1] = B, streams[2] = C;
    device_bytes = device_free();
}

/* Makes `later' wait for all operations of `earlier' so far. */
static void order_and_note(int later, int earlier) {
    order_streams(streams[later], streams[earlier]);
    oracle_follow(&oracle, later, earlier);
}

static void work_on(int s) {
    uint64_t now = weir__model_now_ns();

    busy(streams[s], ENDLESS);
    oracle_work(&oracle, s, ENDLESS, now);
}

/* Allocates a block.  Endless work on the stream uses it at once. */
static weir_status alloc_in_oracle(size_t bytes, int s) {
    void *block = NULL;
    weir_status status = weir_alloc(allocator, bytes, streams[s], &block);

    if (status == WEIR_OK) {
        oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns());
        work_on(s);
    } else {
        HOLDS(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT);
        HOLDS(block == NULL);
        failed_requests++;
    }
    return status;
}

static void free_in_oracle(int i, int s, int captured) {
    void *block = (void *)(uintptr_t)oracle.block[i].at; /* NOLINT(performance-no-int-to-ptr) */

    if (s != oracle.block[i].stream)
        order_and_note(s, oracle.block[i].stream);
    SAME(weir_free(allocator, block, streams[s]), WEIR_OK);
    oracle_given(&oracle, i, s, captured, weir__model_now_ns());
}

static void use_on(int i, int s) {
    struct oracle_block *b = &oracle.block[i];

    order_and_note(s, b->stream);
    work_on(s);
    SAME(weir_use(allocator, (void *)(uintptr_t)b->at, streams[s]), WEIR_OK);
    b->users |= 1u << s;
}

/* ---- arenas ---------------------------------------------------------------------------------- */

static const struct small_arena {
    const char *name;
    int granules, sizes, streams; /* blocks of 1 to `sizes` granules */
    int uses, passes;             /* operations: weir_use, and time that no call observes */
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
static uint64_t reserve, arena_base; /* bytes and address, as far as they are known */

static void begin_arena(void) {
    weir_options options = options_of(KIND_FIXED, "model", (uint64_t)arena->granules * G);

    options.cache = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = arena->timeout_ms;
    SAME(weir_allocator_create(&options, &allocator), WEIR_OK);
    oracle_begin(&oracle);
    reserve = (uint64_t)arena->granules * G;
    arena_base = failed_requests = 0;
}

static size_t rounded_to_granule(size_t bytes) {
    return (bytes + G - 1) / G * G;
}

static weir_statistics expect_figures(void) {
    weir_statistics s = check_identities(allocator);
    size_t least = 0;

    SAME(s.allocs, oracle.allocs);
    SAME(s.frees, oracle.frees);
    SAME(s.failed_requests, failed_requests);
    SAME(s.blocks, (uint64_t)oracle.blocks);
    SAME(s.requested, oracle.requested);
    SAME(s.requested_peak, oracle.requested_peak);
    for (int i = 0; i < oracle.blocks; i++)
        least += rounded_to_granule(oracle.block[i].bytes);
    HOLDS(s.in_use >= least && s.in_use < 2 * least + (least == 0));
    SAME(s.reserved, reserve);
    return s;
}

/* Returns the longest part of the arena without a block. */
static size_t longest_gap(void) {
    uint64_t end = arena_base + (uint64_t)arena->granules * G;
    size_t longest = 0;

    for (uint64_t from = arena_base; from < end; from += G) {
        uint64_t to = end;

        for (int k = 0; k < oracle.blocks; k++) {
            const struct oracle_block *b = &oracle.block[k];

            if (b->at + rounded_to_granule(b->bytes) > from && b->at < to)
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

/* Checks that a refused request had no room, if all work has completed and the arena may wait.  If blocks got more than
 * they need, only the arena knows its room. */
static void expect_no_room(size_t bytes) {
    weir_statistics s = stats_of(allocator);
    size_t least = 0;

    for (int i = 0; i < oracle.blocks; i++)
        least += rounded_to_granule(oracle.block[i].bytes);
    if (s.in_use == least && all_is_over() && arena->timeout_ms != UINT32_MAX)
        HOLDS(longest_gap() < rounded_to_granule(bytes));
}

/* Trims the arena.  A free that waits for other streams keeps the region, since a trim does not wait for streams. */
static void trim_and_check(void) {
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
        status = alloc_in_oracle(bytes, step->stream);
        if (status == WEIR_OK)
            reserve = (uint64_t)arena->granules * G;
        if (status == WEIR_OK && !arena_base)
            arena_base = oracle.block[0].at; /* the first block is the lowest of an empty region */
        if (status != WEIR_OK && is_last)
            expect_no_room(bytes);
        break;
    case FREE:
        free_in_oracle(step->what, step->stream, 0);
        break;
    case USE:
        use_on(step->what, step->stream);
        break;
    case WAIT:
        order_and_note(step->stream, step->what);
        break;
    case SYNC:
        CU(driver->cuCtxSynchronize());
        break;
    case PASS:
        weir__model_advance(100 * ENDLESS);
        break;
    default:
        trim_and_check();
    }
}

/* The state after a sequence, which decides the next operations. */
struct outlook {
    int named, blocks; /* the streams 0 to named - 1 were named */
    unsigned captured, bound;
    struct oracle_block block[MOST_STEPS];
};

/* Plays the sequence so far in a new allocator, and destroys it. */
static void live_through(struct outlook *outlook) {
    begin_arena();
    for (int i = 0; i < search.depth; i++)
        do_step(&search.done[i], i + 1 == search.depth);
    expect_figures();
    outlook->blocks = oracle.blocks;
    memcpy(outlook->block, oracle.block, (size_t)oracle.blocks * sizeof oracle.block[0]);
    while (oracle.blocks > 0)
        free_in_oracle(oracle.blocks - 1, oracle.block[oracle.blocks - 1].stream, 0);
    CU(driver->cuCtxSynchronize());
    trim_and_check();
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

CASE("arenas", 300, start_calls, NULL);

TEST_EACH(SMALL_ARENAS, every_short_life_of_an_arena_is_right) {
    struct outlook nothing = {0};

    arena = &small_arenas[_i];
    begin_search(depth_of(arena->steps), tell_calls);
    explore_arena(&nothing);
    show_bounds("arena", arena->name);
}

/* ---- caches ---------------------------------------------------------------------------------- */

static const struct small_cache {
    const char *name;
    int kind;
    size_t sizes[3];
    int streams;
    int steps;
    int bound; /* all streams are bound from the beginning */
    int uses, trims, binds, captures, renews;
    uint64_t limit;
} small_caches[] = {
    {"pool, slots and whole blocks", KIND_POOL, {32 * KIB, 600 * KIB}, 2, .steps = 5},
    {"pool, bound streams", KIND_POOL, {32 * KIB, 600 * KIB}, 2, .steps = 4, .bound = 1},
    {"pool, slots of three streams", KIND_POOL, {32 * KIB}, 3, .steps = 4},
    {"pool, uses and captures",
     KIND_POOL,
     {32 * KIB, 600 * KIB},
     2,
     .steps = 4,
     .uses = 1,
     .captures = 1},
    {"pool, trims and bindings",
     KIND_POOL,
     {32 * KIB, 600 * KIB},
     2,
     .steps = 4,
     .trims = 1,
     .binds = 1},
    {"pool, ends of streams", KIND_POOL, {32 * KIB, 600 * KIB}, 2, .steps = 4, .renews = 1},
    {"mapped, slots and large blocks", KIND_MAPPED, {32 * KIB, 600 * KIB, 3 * MIB}, 2, .steps = 4},
    {"mapped, bound streams", KIND_MAPPED, {32 * KIB, 600 * KIB}, 2, .steps = 4, .bound = 1},
    {"mapped, large blocks of three streams", KIND_MAPPED, {3 * MIB}, 3, .steps = 4},
    {"mapped, uses", KIND_MAPPED, {32 * KIB, 600 * KIB}, 2, .steps = 4, .uses = 1},
    {"mapped, captures", KIND_MAPPED, {600 * KIB}, 2, .steps = 5, .captures = 1},
    {"mapped, trims and bindings",
     KIND_MAPPED,
     {32 * KIB, 600 * KIB},
     2,
     4,
     .trims = 1,
     .binds = 1},
    {"mapped, ends of streams", KIND_MAPPED, {32 * KIB, 600 * KIB}, 2, .steps = 4, .renews = 1},
    {"mapped, a limit", KIND_MAPPED, {6 * MIB}, 2, .steps = 5, .limit = 16 * MIB},
};
enum { SMALL_CACHES = sizeof small_caches / sizeof small_caches[0] };

static const struct small_cache *cache;
static weir_statistics at_rest;           /* the statistics before the sequence */
static unsigned captured, bound, renewed; /* one bit for each stream */

/* Warms the cache of every stream, and makes the engine steady, so that the caches keep whole blocks, too. */
static void warm_caches(void) {
    for (int i = 0; i < 600; i++)
        for (int s = 0; s < cache->streams; s++) {
            void *block = NULL;

            SAME(weir_alloc(allocator, i % 20 ? 600 * KIB : 32 * KIB, streams[s], &block), WEIR_OK);
            SAME(weir_free(allocator, block, streams[s]), WEIR_OK);
        }
    CU(driver->cuCtxSynchronize());
}

static void make_caches(void) {
    weir_options options = options_of(cache->kind, "model", 0);

    options.cache = WEIR_SWITCH_ON;
    if (cache->limit)
        options.limit = bytes_amount(cache->limit);
    options.cache_limit = bytes_amount(4 * MIB);
    options.recovery_timeout_ms = 1;
    SAME(weir_allocator_create(&options, &allocator), WEIR_OK);
    for (int s = 0; cache->bound && s < cache->streams; s++)
        SAME(weir_bind(allocator, streams[s]), WEIR_OK);
    warm_caches();
}

/* Frees the graph's blocks under capture, and ends the capture. */
static void end_world_capture(int s) {
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

/* Allocates a block of the graph, which no work uses before a launch. */
static void alloc_in_world_graph(size_t bytes, int s) {
    void *block = NULL;

    SAME(weir_alloc(allocator, bytes, streams[s], &block), WEIR_OK);
    oracle_of_graph(&oracle,
                    oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns()));
}

/* Frees a block.  weir refuses a block with uses if the free or a use belongs to a capture. */
static void free_in_caches(int i, int s) {
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
        free_in_oracle(i, s, (int)(captured >> s & 1));
    }
}

/* Makes weir serve a new stream from a cache. */
static void warm_stream(int s) {
    SAME(weir_bind(allocator, streams[s]), WEIR_OK);
    SAME(weir_unbind(allocator, streams[s]), WEIR_OK);
}

/* Destroys a stream while its work runs, and creates another one, which has the same handle.  Before that, another stream
 * waits for the work that uses live blocks, since the program will free these there.  weir has no cache for a new stream
 * before some requests, unless the program binds the stream. */
static void renew_world_stream(int s, int is_bound) {
    int heir = (s + 1) % cache->streams;
    CUstream before = streams[s];

    for (int i = 0; i < oracle.blocks; i++)
        if (oracle.block[i].stream == s) {
            order_and_note(heir, s);
            oracle.block[i].stream = heir;
        }
    CU(driver->cuStreamDestroy(before));
    oracle_renew(&oracle, s);
    streams[s] = make_stream();
    HOLDS(streams[s] == before);
    if (is_bound)
        warm_stream(s);
    renewed |= 1u << s;
}

/* Allocates a block.  A request fails only at a limit: while freed memory is in use, or if the block would exceed the limit
 * although each block wastes 2 MiB at most. */
static void alloc_in_caches(size_t bytes, int s) {
    uint64_t wasted = (uint64_t)(oracle.blocks + 1) * 2 * MIB;

    if (alloc_in_oracle(bytes, s) != WEIR_OK) {
        HOLDS(cache->limit > 0);
        HOLDS(!all_is_over() || oracle.requested + bytes + wasted > cache->limit);
    }
}

static void do_call(const struct step *step) {
    int s = step->stream;

    switch (step->kind) {
    case ALLOC:
        if (captured >> s & 1)
            alloc_in_world_graph(cache->sizes[step->what], s);
        else
            alloc_in_caches(cache->sizes[step->what], s);
        break;
    case FREE:
        /* At a limit a request that once succeeded may fail after other sequences. */
        if (step->what < oracle.blocks)
            free_in_caches(step->what, s);
        break;
    case USE:
        use_on(step->what, s);
        break;
    case WAIT:
        order_and_note(s, step->what);
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
    case RENEW:
        renew_world_stream(s, step->what);
        break;
    default:
        end_world_capture(s);
    }
}

static weir_statistics expect_caches_figures(void) {
    weir_statistics s = check_identities(allocator);

    SAME(s.allocs - at_rest.allocs, oracle.allocs);
    SAME(s.frees - at_rest.frees, oracle.frees);
    SAME(s.failed_requests - at_rest.failed_requests, failed_requests);
    SAME(s.blocks, (uint64_t)oracle.blocks);
    SAME(s.requested, oracle.requested);
    HOLDS(renewed || s.cache_misses_young == at_rest.cache_misses_young);
    return s;
}

/* Checks that a trim gives all memory back to the device, and warms the caches again. */
static void expect_nothing_kept(void) {
    weir_statistics s;

    SAME(weir_trim(allocator, 0, NULL), WEIR_OK);
    s = check_identities(allocator);
    HOLDS(s.reserved == 0 && s.cache_idle == 0 && s.in_use == 0);
    warm_caches();
}

/* Plays the sequence so far in an allocator without live blocks and unfinished work, and with warm caches. */
static void live_in_caches(struct outlook *outlook) {
    weir_statistics s;

    oracle_begin(&oracle);
    failed_requests = renewed = 0;
    at_rest = stats_of(allocator);
    for (int i = 0; i < search.depth; i++)
        do_call(&search.done[i]);
    expect_caches_figures();
    outlook->blocks = oracle.blocks;
    outlook->captured = captured;
    outlook->bound = bound;
    memcpy(outlook->block, oracle.block, (size_t)oracle.blocks * sizeof oracle.block[0]);
    for (int t = 0; t < cache->streams; t++) {
        if (captured >> t & 1)
            end_world_capture(t);
        if (bound >> t & 1)
            do_call(&(struct step){BIND, 0, t});
    }
    while (oracle.blocks > 0)
        free_in_caches(oracle.blocks - 1, oracle.block[oracle.blocks - 1].stream);
    CU(driver->cuCtxSynchronize());
    s = expect_caches_figures();
    SAME(s.in_use, 0);
    for (int t = 0; t < cache->streams; t++)
        if (renewed >> t & 1)
            warm_stream(t);
    if (search.done[search.depth - 1].kind == TRIM)
        expect_nothing_kept();
    else if (s.growths > at_rest.growths || s.trims > at_rest.trims)
        warm_caches();
}

static void explore_caches(const struct outlook *o);

static void try_in_caches(int kind, int what, int stream) {
    struct outlook next = {0};

    search.done[search.depth++] = (struct step){kind, what, stream};
    search.sequences++;
    live_in_caches(&next);
    if (search.depth < search.steps)
        explore_caches(&next);
    search.depth--;
}

/* Tries each operation on one block.  No event orders a captured stream and one outside the capture. */
static void explore_block(const struct outlook *o, int i) {
    const struct oracle_block *b = &o->block[i];

    for (int s = 0; s < cache->streams; s++) {
        int apart = s != b->stream && ((o->captured >> s & 1) || (o->captured >> b->stream & 1));

        if (!apart && (!b->graph || s == b->stream))
            try_in_caches(FREE, i, s);
        if (cache->uses && !apart && !b->graph && s != b->stream && !(b->users >> s & 1))
            try_in_caches(USE, i, s);
    }
}

/* Returns 1 if a live block notes the stream, which then may not end, else 0. */
static int is_noted(const struct outlook *o, int s) {
    for (int i = 0; i < o->blocks; i++)
        if (o->block[i].users >> s & 1)
            return 1;
    return 0;
}

static void explore_caches(const struct outlook *o) {
    for (int s = 0; s < cache->streams; s++) {
        unsigned is_captured = o->captured >> s & 1;

        for (int size = 0; size < 3 && cache->sizes[size]; size++)
            if (!(is_captured && (o->bound >> s & 1)))
                try_in_caches(ALLOC, size, s);
        for (int t = 0; t < cache->streams && !o->captured; t++)
            if (t != s)
                try_in_caches(WAIT, t, s);
        if (cache->binds && !is_captured)
            try_in_caches(BIND, 0, s);
        if (cache->captures)
            try_in_caches(is_captured ? END : BEGIN, 0, s);
        for (int warm = 0; warm <= 1 && cache->renews && !is_noted(o, s); warm++)
            try_in_caches(RENEW, warm, s);
    }
    for (int i = 0; i < o->blocks; i++)
        explore_block(o, i);
    if (!o->captured && !is_last(SYNC))
        try_in_caches(SYNC, 0, 0);
    if (!is_last(PASS))
        try_in_caches(PASS, 0, 0);
    if (cache->trims && !is_last(TRIM))
        try_in_caches(TRIM, 0, 0);
}

CASE("caches", 300, start_calls, NULL);

TEST_EACH(SMALL_CACHES, every_short_life_in_a_cache_is_right) {
    struct outlook nothing = {0};

    cache = &small_caches[_i];
    begin_search(depth_of(cache->steps), tell_calls);
    captured = bound = 0;
    make_caches();
    explore_caches(&nothing);
    SAME(weir_trim(allocator, 0, NULL), WEIR_OK);
    SAME(weir_allocator_destroy(allocator), WEIR_OK);
    SAME(device_free(), device_bytes);
    check_model();
    show_bounds("cache", cache->name);
}

SUITE("worlds", CK_FORK_GETENV);
