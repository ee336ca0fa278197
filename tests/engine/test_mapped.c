/* SPDX-License-Identifier: MIT */
/* test_mapped.c: where a mapped arena places blocks, and which handles it moves.
 *
 * The tests run on the device model, without the caches.  A layout has handles of 8 MiB, as in a small heap,
 * or the handles of large requests.  A test checks where a request lies in it, which memory came from the device, and
 * the driver calls.  Other tests are about aliased mappings, preallocated memory, and a shortage of host memory. */
#include "config.h"

#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/refuse.h"

#define UNIT (8 * MIB) /* a physical allocation of a small heap */

static weir_allocator *a;
static void *other; /* B's, so that there are two streams */

static void *alloc_mapped(size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    return block;
}

static void free_mapped(void *block, CUstream stream) {
    OK(weir_free(a, block, stream));
}

static uint64_t mapped_reserve(void) {
    return stats_of(a).reserved;
}

static size_t mib_above(const void *block, const void *base) {
    return ((uintptr_t)block - (uintptr_t)base) / MIB;
}

/* Completes all work and lets the host observe it, by a trim that no handle is small enough for. */
static void see_done(void) {
    uint64_t before = mapped_reserve();

    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, (size_t)before - 1, NULL));
    MUST_EQ(mapped_reserve(), before);
}

/* Returns idle memory to the device, which leaves unmapped ranges. */
static void make_unmapped_ranges(void) {
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
}

static void begin_mapped_with(const struct weir_driver *table, size_t limit) {
    weir_options options = options_of(KIND_MAPPED, "model", limit);

    if (limit)
        options.limit = bytes_amount(limit);
    options.cache = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX; /* no waiting */
    OK(weir__allocator_create_on(table, &options, &a, NULL, 0));
}

static void begin_mapped(size_t limit) {
    start_model(4 * GIB);
    begin_mapped_with(driver, limit);
}

/* Creates an allocator that knows B, by a small block and by a large one. */
static void begin_with_two_streams(void) {
    begin_mapped(0);
    other = alloc_mapped(1000, B);
    free_mapped(alloc_mapped(UNIT, B), B);
    make_unmapped_ranges();
}

static void end_mapped(void) {
    CU(driver->cuCtxSynchronize());
    make_unmapped_ranges();
    MUST_EQ(check_identities(a).reserved, 0);
    OK(weir_allocator_destroy(a));
    a = NULL;
    check_model();
}

/* Destroys the allocator that a test has left. */
static void end_mapped_if_there(void) {
    if (a)
        end_mapped();
}

/* ---- which gap ------------------------------------------------------------------------------- */

/* Handles side by side: T allocated, C completed, O freed by the stream but not completed, H an unmapped range.  The
 * unmapped range that ends the addresses follows. */
struct layout {
    const char *handles;
    size_t wanted;     /* MiB */
    size_t at;         /* the handle at which the block begins */
    size_t grown;      /* MiB that it takes from the device */
    uint64_t unmapped; /* calls: handles that left their place at once */
};

enum { MOST_HANDLES = 8 };

static void give_those(const char *handles, char what, void **block) {
    for (size_t i = 0; handles[i]; i++)
        if (handles[i] == what)
            free_mapped(block[i], A);
}

static void lay(const char *handles, void **block) {
    for (size_t i = 0; handles[i]; i++)
        block[i] = alloc_mapped(UNIT, A);
    for (size_t i = 0; handles[i]; i++)
        MUST_EQ(mib_above(block[i], block[0]), i * (UNIT / MIB));
    give_those(handles, 'H', block);
    make_unmapped_ranges();
    give_those(handles, 'C', block);
    see_done();
    busy(A, 5 * MS);
    give_those(handles, 'O', block);
}

static const struct layout layouts[] = {
    /* The gap fits exactly. */
    {"TCHT", 16, 1, 8, 0},
    /* Two gaps lack 8 MiB each: the lower one serves. */
    {"TCHTCHT", 16, 1, 0, 1},
    /* The second gap lacks more, though only behind the block: the first one serves. */
    {"TCHTCHHT", 16, 1, 0, 1},
    /* The block begins at mapped memory, not in the unmapped range before it. */
    {"HCHHT", 12, 1, 8, 0},
    /* An idle handle right behind the gap moves into it. */
    {"TCHCT", 16, 1, 0, 1},
    /* An idle handle right before the block moves, too, although its work has not completed. */
    {"TOCHCT", 24, 2, 0, 0},
    /* The completed handle leaves its old address at once, the other one does not. */
    {"TOCT", 24, 4, 8, 1},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

CASE("mapped", 30, NULL, end_mapped_if_there);

TEST_EACH(LAYOUTS, a_request_goes_where_least_is_missing) {
    const struct layout *l = &layouts[_i];
    void *block[MOST_HANDLES];
    begin_with_two_streams();
    lay(l->handles, block);
    uint64_t before = mapped_reserve();
    count_from_here();
    void *large = alloc_mapped(l->wanted * MIB, A);
    MUST_EQ(mib_above(large, block[0]), l->at * (UNIT / MIB));
    MUST_EQ(mapped_reserve() - before, l->grown * MIB);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), l->unmapped);
    free_mapped(large, A);
    give_those(l->handles, 'T', block);
    free_mapped(other, B);
}

/* ---- shadows --------------------------------------------------------------------------------- */

static void expect_no_recovery(void) {
    weir_event events[32];
    size_t count;

    OK(weir_events(a, 0, events, sizeof events[0], 32, &count));
    for (size_t i = 0; i < count; i++)
        MUST(events[i].cause != WEIR_EVENT_RECOVERY);
}

/* An aliased mapping is unmapped when its users have completed, and its addresses serve again.  No memory goes back, so
 * no event is noted.  A trim frees the handle behind it, whatever other aliased mappings there are. */
TEST(shadows_go_one_by_one) {
    void *block[2], *pin[2], *moved[3], *again[2];
    size_t released;

    begin_with_two_streams();
    for (int i = 0; i < 2; i++) {
        block[i] = alloc_mapped(UNIT, A);
        pin[i] = alloc_mapped(UNIT, A);
    }
    for (int i = 0; i < 2; i++) {
        busy(A, 5 * MS);
        free_mapped(block[i], A);
        moved[i] = alloc_mapped(2 * UNIT, A);
    }
    MUST_EQ(mib_above(moved[1], block[0]), 6 * (UNIT / MIB));
    weir__model_advance(7 * MS);
    for (int i = 0; i < 2; i++) {
        count_from_here();
        again[i] = alloc_mapped(UNIT, A);
        MUST(again[i] == block[i]);
        MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 1);
        weir__model_advance(5 * MS);
    }
    expect_no_recovery();
    busy(A, 5 * MS);
    free_mapped(again[0], A);
    moved[2] = alloc_mapped(2 * UNIT, A);
    free_mapped(moved[1], B);
    OK(weir_trim(a, 0, &released));
    MUST_EQ(released, 2 * UNIT);
    free_mapped(moved[0], A);
    free_mapped(moved[2], A);
    free_mapped(again[1], A);
    for (int i = 0; i < 2; i++)
        free_mapped(pin[i], A);
    free_mapped(other, B);
}

/* An aliased mapping may lie at the first address of small requests.  The addresses of large requests end before it. */
TEST(a_alias_behind_the_large_addresses_is_none_of_theirs) {
    enum { SMALL = 16 };
    void *small[SMALL], *large, *last, *none = NULL;

    begin_mapped(16 * MIB);
    for (int i = 0; i < SMALL; i++)
        small[i] = alloc_mapped(512 * KIB, A);
    MUST_EQ(mapped_reserve(), 8 * MIB);
    busy(A, 5 * MS);
    for (int i = 0; i < SMALL; i++)
        free_mapped(small[i], A);
    large = alloc_mapped(8 * MIB, A);
    MUST_EQ(mapped_reserve(), 8 * MIB);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 20 * MIB, A, &none));
    weir_failure failure = last_failure();
    MUST_EQ(failure.largest, 8 * MIB);
    last = alloc_mapped(8 * MIB, A);
    free_mapped(last, A);
    free_mapped(large, A);
}

/* Preallocated memory is mapped behind aliased mappings.  Small requests get some, since their idle memory is only
 * aliased. */
TEST(what_is_preallocated_goes_round_shadows) {
    enum { SMALL = 16, BEHIND_THEM = 4 };
    void *small[SMALL], *behind[BEHIND_THEM], *moved, *large;

    begin_mapped(0);
    for (int i = 0; i < SMALL; i++)
        small[i] = alloc_mapped(512 * KIB, A);
    busy(A, 5 * MS);
    for (int i = 0; i < SMALL; i++)
        free_mapped(small[i], A);
    moved = alloc_mapped(8 * MIB, A);
    MUST_EQ(mapped_reserve(), 8 * MIB);
    OK(weir_preallocate(a, 40 * MIB, NULL));
    MUST_EQ(mapped_reserve(), 40 * MIB);
    count_from_here();
    large = alloc_mapped(30 * MIB, B);
    for (int i = 0; i < BEHIND_THEM; i++) {
        behind[i] = alloc_mapped(512 * KIB, B);
        MUST_LE(8, mib_above(behind[i], small[0]));
    }
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    for (int i = 0; i < BEHIND_THEM; i++)
        free_mapped(behind[i], B);
    free_mapped(large, B);
    free_mapped(moved, A);
}

/* ---- the end of the addresses ---------------------------------------------------------------- */

static CUresult reserve_at_most_gib(CUdeviceptr *base, size_t bytes, size_t alignment,
                                    CUdeviceptr at, unsigned long long flags) {
    return bytes > GIB ? CUDA_ERROR_OUT_OF_MEMORY
                       : driver->cuMemAddressReserve(base, bytes, alignment, at, flags);
}

/* Allocates a block behind all memory of large requests, in a handle that it fills.  Small requests get `small` bytes
 * of the preallocated memory. */
static void *take_at_the_end(size_t bytes, size_t small) {
    uint64_t before = mapped_reserve() + bytes + small;
    OK(weir_preallocate(a, (size_t)before, NULL));
    void *block = alloc_mapped(bytes, A);
    MUST_EQ(mapped_reserve(), before);
    return block;
}

/* Allocates a block in a handle that it fills, in the lowest unmapped range, since the device has no more. */
static void *take_exactly(size_t bytes) {
    CUdeviceptr hog;
    CU(driver->cuMemAlloc(&hog, device_free() - bytes));
    void *block = alloc_mapped(bytes, A);
    CU(driver->cuMemFree(hog));
    return block;
}

/* Idle handles move behind the end of all memory, up to the last address: small requests have a sixteenth of the GiB,
 * large requests have the rest. */
TEST(the_last_address_serves) {
    enum { PINS = 7 };
    struct weir_driver table;
    void *pin[PINS], *large, *idle[2], *between;
    CUdeviceptr hog;
    uint64_t before;

    start_model(256 * MIB);
    table = *driver;
    table.cuMemAddressReserve = reserve_at_most_gib;
    begin_mapped_with(&table, 0);
    for (int i = 0; i < PINS; i++) {
        large = take_at_the_end((i == 0 ? 196 : 94) * MIB, (i == 0 ? 12 : 6) * MIB);
        pin[i] = take_at_the_end(8 * MIB, 0);
        free_mapped(large, A);
        make_unmapped_ranges();
    }
    idle[0] = take_exactly(72 * MIB);
    between = take_exactly(8 * MIB);
    idle[1] = take_exactly(72 * MIB);
    MUST_EQ(mib_above(pin[PINS - 1], idle[0]), 1024 - 64 - 144 - 8);
    free_mapped(idle[0], A);
    free_mapped(idle[1], A);
    CU(driver->cuMemAlloc(&hog, device_free()));
    before = mapped_reserve();
    large = alloc_mapped(144 * MIB, A);
    MUST_EQ(mib_above(large, pin[PINS - 1]), 8);
    MUST_EQ(mapped_reserve(), before);
    CU(driver->cuMemFree(hog));
    free_mapped(large, A);
    free_mapped(between, A);
    for (int i = 0; i < PINS; i++)
        free_mapped(pin[i], A);
    end_mapped(); /* while the driver's table exists */
}

/* ---- preallocated memory for small requests -------------------------------------------------- */

/* Small requests get a sixteenth of the preallocated memory (4 of 64 MiB), less the idle memory that could serve any
 * small request.  Other requests get the rest. */
TEST_EACH(3, small_requests_have_their_part_beforehand) {
    static const struct {
        size_t piece, idle, added; /* KiB, pieces, MiB */
    } cases[] = {{512, 8, 0}, {512, 4, 2}, {256, 8, 4}};
    enum { MOST = 32, SERVED = 8 };
    const size_t count = 8 * KIB / cases[_i].piece;
    void *small[MOST], *served[SERVED], *large;

    begin_mapped(0);
    for (size_t i = 0; i < count; i++)
        small[i] = alloc_mapped(cases[_i].piece * KIB, A);
    MUST_EQ(mapped_reserve(), 8 * MIB);
    for (size_t i = 0; i < cases[_i].idle; i++)
        free_mapped(small[2 * i], A);
    OK(weir_preallocate(a, (size_t)mapped_reserve() + 64 * MIB, NULL));
    count_from_here();
    large = alloc_mapped((64 - cases[_i].added) * MIB, A);
    for (int i = 0; i < SERVED; i++)
        served[i] = alloc_mapped(512 * KIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
    for (int i = 0; i < SERVED; i++)
        free_mapped(served[i], A);
    free_mapped(large, A);
    for (size_t i = 0; i < count; i++)
        if (i % 2 || i >= 2 * cases[_i].idle)
            free_mapped(small[i], A);
}

/* Every other block of the preallocated memory is idle.  A request too large for each of them gets handles split from
 * them, and the reserved memory does not grow. */
TEST(what_is_preallocated_moves) {
    enum { BLOCKS = 8 };
    void *blocks[BLOCKS], *large;
    uint64_t before;

    begin_mapped(0);
    OK(weir_preallocate(a, 1100 * MIB, NULL));
    before = mapped_reserve();
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = alloc_mapped(128 * MIB, A);
    MUST_EQ(mapped_reserve(), before);
    for (int i = 0; i < BLOCKS; i += 2)
        free_mapped(blocks[i], A);
    large = alloc_mapped(240 * MIB, A);
    MUST_EQ(mapped_reserve(), before);
    free_mapped(large, A);
    for (int i = 1; i < BLOCKS; i += 2)
        free_mapped(blocks[i], A);
}

/* Many handles take long to make, so a preallocation has a 32nd of its bytes in each, but at most 64 MiB. */
TEST_EACH(2, what_is_preallocated_comes_in_few_handles) {
    static const struct {
        size_t reserved; /* GiB */
        uint64_t handles;
    } cases[] = {{1, 33}, {8, 129}};

    start_model(40 * GIB);
    begin_mapped_with(driver, 0);
    count_from_here();
    OK(weir_preallocate(a, cases[_i].reserved * GIB, NULL));
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), cases[_i].handles);
}

/* ---- a lowered limit --------------------------------------------------------------------------- */

/* Small blocks do not lie in large physical allocations, which they would pin, not even above a lowered limit. */
TEST(small_blocks_stay_apart_above_the_limit) {
    enum { LARGE = 8, SMALL = 24 };
    void *large[LARGE], *small[SMALL];
    size_t count = 0;

    begin_mapped(0);
    for (int i = 0; i < LARGE; i++)
        large[i] = alloc_mapped(256 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(GIB)));
    for (int i = 0; i < LARGE; i++) {
        free_mapped(large[i], A);
        for (int k = 0; k < SMALL / LARGE; k++)
            small[count++] = alloc_mapped(400 * KIB, A);
        CU(driver->cuStreamSynchronize(A));
    }
    make_unmapped_ranges();
    MUST_LE(mapped_reserve(), 64 * MIB);
    while (count > 0)
        free_mapped(small[--count], A);
}

/* ---- growth policies -------------------------------------------------------------------------- */

static weir_growth_state heard;

static size_t answer_much(const weir_growth_state *state, void *context) {
    heard = *state;
    return *(size_t *)context;
}

/* The growth policy's bytes are added at once, in one handle: besides the missing bytes, and within
 * the limit and the device. */
TEST_EACH(6, a_policy_decides_how_much) {
    static const struct {
        int growth;
        size_t limit, others, reserved[2]; /* MiB after 300, after 30 more; 0 if weir decides */
    } cases[] = {
        {WEIR_GROWTH_STEP, 0, 0, {512, 512}},         {WEIR_GROWTH_GEOMETRIC, 0, 0, {0, 0}},
        {WEIR_GROWTH_REMAINING, 1024, 0, {512, 512}}, {WEIR_GROWTH_CALLBACK, 0, 0, {600, 600}},
        {WEIR_GROWTH_CALLBACK, 450, 0, {450, 450}},   {WEIR_GROWTH_CALLBACK, 0, 3600, {496, 496}},
    };
    size_t much = 600 * MIB;
    weir_options options = options_of(KIND_MAPPED, "model", 0);
    CUdeviceptr others = 0;
    uint64_t first = 0;
    void *blocks[2];

    start_model(4 * GIB);
    if (cases[_i].others)
        CU(driver->cuMemAlloc(&others, cases[_i].others * MIB));
    if (cases[_i].limit)
        options.limit = bytes_amount(cases[_i].limit * MIB);
    options.cache = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = UINT32_MAX;
    options.growth = cases[_i].growth;
    if (cases[_i].growth == WEIR_GROWTH_STEP)
        options.growth_step = 256 * MIB;
    else if (cases[_i].growth == WEIR_GROWTH_GEOMETRIC)
        options.growth_factor = 2;
    else if (cases[_i].growth == WEIR_GROWTH_REMAINING)
        options.growth_factor = .5;
    options.growth_function = cases[_i].growth == WEIR_GROWTH_CALLBACK ? answer_much : NULL;
    options.growth_context = &much;
    OK(weir__allocator_create_on(driver, &options, &a, NULL, 0));
    count_from_here();
    for (int i = 0; i < 2; i++) {
        blocks[i] = alloc_mapped(i == 0 ? 300 * MIB : 30 * MIB, A);
        if (cases[_i].reserved[i])
            MUST_EQ(mapped_reserve(), cases[_i].reserved[i] * MIB);
        else if (i == 1)
            MUST_EQ(mapped_reserve(), 2 * first);
        first = mapped_reserve();
        MUST_LE(calls(WEIR_ENTRY_cuMemGetInfo), 2 * ((uint64_t)i + 1));
        if (cases[_i].growth == WEIR_GROWTH_CALLBACK) {
            MUST(heard.limit == (cases[_i].limit ? cases[_i].limit * MIB : SIZE_MAX));
            MUST_LE(heard.device_free, 4 * GIB - cases[_i].others * MIB);
        }
    }
    free_mapped(blocks[0], A);
    free_mapped(blocks[1], A);
    if (others)
        CU(driver->cuMemFree(others));
}

/* ---- the host's memory ----------------------------------------------------------------------- */

#ifdef CAN_REFUSE_HOST_MEMORY
/* weir makes room for its records of handles and aliased mappings before it changes anything.  Without host memory the
 * request fails and nothing has changed. */
TEST_EACH(2, without_host_memory_nothing_grows) {
    void *large = NULL;
    begin_mapped(0);
    void *block = alloc_mapped(7 * UNIT, A);
    refuse_in = (uint64_t)_i + 1;
    EXPECT(WEIR_E_HOST_MEMORY, weir_alloc(a, 8 * UNIT, A, &large));
    MUST_EQ(refuse_in, 0);
    MUST_EQ(mapped_reserve(), 7 * UNIT);
    large = alloc_mapped(8 * UNIT, A);
    free_mapped(large, A);
    free_mapped(block, A);
}

/* The first request reserves nothing if it lacks host memory, whichever allocation of host memory fails. */
TEST(without_host_memory_nothing_begins) {
    weir_status status = WEIR_E_HOST_MEMORY;
    int failed_requests = -1;

    for (uint64_t k = 1; status != WEIR_OK; k++, failed_requests++) {
        void *block = NULL;

        begin_mapped(0);
        refuse_in = k;
        status = weir_alloc(a, UNIT, A, &block);
        refuse_in = 0;
        if (status != WEIR_OK) {
            MUST_EQ(status, WEIR_E_HOST_MEMORY);
            MUST_EQ(mapped_reserve(), 0);
            block = alloc_mapped(UNIT, A);
        }
        free_mapped(block, A);
        end_mapped();
    }
    MUST_LE(4, failed_requests); /* among them pieces, moves, handles, aliased mappings */
}

/* Small blocks are freed without host memory for the record of their stream.  Their memory serves no stream, and goes
 * back to the device in a trim, which waits for the device. */
TEST(what_could_not_be_noted_waits_for_the_device) {
    enum { SMALL = 4 };
    void *small[SMALL], *known;

    begin_mapped(0);
    known = alloc_mapped(UNIT, B);
    for (int i = 0; i < SMALL; i++)
        small[i] = alloc_mapped(512 * KIB, A);
    busy(B, 5 * MS);
    refuse_for_good = 1;
    refuse_in = 1;
    for (int i = 0; i < SMALL; i++)
        free_mapped(small[i], B);
    refuse_for_good = 0;
    refuse_in = 0;
    free_mapped(known, B);
    MUST_EQ(weir_trim(a, 0, NULL), WEIR_OK);
    MUST_EQ(mapped_reserve(), 0);
}
#endif

SUITE("mapped", CK_FORK_GETENV);
