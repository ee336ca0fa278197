/* SPDX-License-Identifier: MIT */
/* test_pinned.c: idle memory beside live blocks. */
#include "api/create.h"
#include "tests/fixtures/caches.h"
#include "tests/fixtures/refuse.h"

/* A slab is live while one of its slots is.  A whole block is live while its caller has it, not in a cache. */
struct pieces {
    struct weir_extent piece[8];
    size_t count;
};

static void note_piece(void *context, uint64_t base, size_t bytes) {
    struct pieces *live = context;

    MUST(live->count < 8);
    live->piece[live->count++] = (struct weir_extent){.base = base, .bytes = bytes};
}

/* Expects that number of live pieces, and each of these blocks in one of them. */
static void expect_live(size_t pieces, void *const *block, int blocks) {
    struct pieces live = {.count = 0};

    weir__caches_live(a->caches, note_piece, &live);
    MUST_EQ(live.count, pieces);
    for (int i = 0; i < blocks; i++) {
        size_t at = 0;

        while (at < live.count && (uintptr_t)block[i] - live.piece[at].base >= live.piece[at].bytes)
            at++;
        MUST(at < live.count);
    }
}

CASE("held", 300, start_device, end_cached_if_there);

TEST_EACH(ENGINES, pieces_are_live_with_their_blocks) {
    make_cached(_i, "");
    void *block[3];

    expect_live(0, NULL, 0);
    warm(A);
    expect_live(0, NULL, 0);
    block[0] = alloc_live(MIB, A);
    block[1] = alloc_live(3000, A);
    block[2] = alloc_live(3000, A); /* in the slab of block[1] */
    expect_live(2, block, 3);
    free_live(block[1], A);
    expect_live(2, block, 1);
    expect_live(2, block + 2, 1);
    free_live(block[0], A);
    expect_live(1, block + 2, 1);
    free_live(block[2], A);
    expect_live(0, NULL, 0);
}

/* An engine that reports these pieces as its reserved memory. */
struct teller {
    struct weir_engine e;
    const struct pieces *wholes;
};

static int tell_wholes(struct weir_engine *e, const struct weir_visit *visit) {
    const struct pieces *wholes = ((struct teller *)e)->wholes;

    for (size_t i = 0; i < wholes->count; i++)
        (void)weir__visit_show(visit, wholes->piece[i].base, wholes->piece[i].bytes);
    return (int)wholes->count;
}

/* Reports 100 pieces of 1 MiB, from the first on. */
static int tell_many(struct weir_engine *e, const struct weir_visit *visit) {
    const struct pieces *wholes = ((struct teller *)e)->wholes;

    for (int i = 0; i < 100; i++)
        (void)weir__visit_show(visit, wholes->piece[0].base + (uint64_t)i * MIB, MIB);
    return 100;
}

static int tell_nothing(struct weir_engine *e, const struct weir_visit *visit) {
    (void)e, (void)visit;
    return -1;
}

static uint64_t held_beside(struct weir_caches *cache,
                            int (*tell)(struct weir_engine *, const struct weir_visit *),
                            const struct pieces *wholes, uint64_t most) {
    const struct weir_engine_ops ops = {.visit = tell};
    struct teller teller = {.e = {.ops = &ops}, .wholes = wholes};

    return weir__pinned_bytes(&teller.e, weir__caches_live, cache, most);
}

static struct weir_extent piece_at(uint64_t base, size_t bytes) {
    return (struct weir_extent){.base = base, .bytes = bytes};
}

static uint64_t held_of(const struct weir_extent *piece, size_t count) {
    struct pieces wholes = {.count = count};

    memcpy(wholes.piece, piece, count * sizeof *piece);
    return held_beside(a->caches, tell_wholes, &wholes, UINT64_MAX);
}

TEST(pieces_are_held_by_the_blocks_in_them) {
    make_cached(KIND_POOL, "");
    void *block = alloc_live(4 * MIB, A);
    const uint64_t from = (uintptr_t)block, to = from + 4 * MIB;
    const struct weir_extent piece[] = {
        piece_at(from - 3 * MIB, 2 * MIB),  piece_at(from - MIB, MIB), /* ends at the block */
        piece_at(from, 64 * KIB),           piece_at(from + 64 * KIB, MIB),
        piece_at(to - 64 * KIB, 512 * KIB), piece_at(to + 448 * KIB, MIB),
    };
    const struct weir_extent around[] = {piece_at(from - MIB, MIB), piece_at(to, MIB)};
    const struct weir_extent across = piece_at(from - 64 * KIB, 8 * MIB);
    const struct weir_extent all = piece_at(4096, SIZE_MAX / 2);
    struct pieces first = {.piece = {piece_at(from - 2 * MIB, MIB)}, .count = 1};
    MUST_EQ(held_of(piece, 6), 64 * KIB + MIB + 512 * KIB);
    MUST_EQ(held_of(piece, 0), 0);
    MUST_EQ(held_beside(a->caches, tell_nothing, NULL, UINT64_MAX), 0);
    MUST_EQ(held_of(around, 2), 0);
    MUST_EQ(held_of(around, 1), 0);
    MUST_EQ(held_of(around + 1, 1), 0);
    MUST_EQ(held_of(&across, 1), 8 * MIB);
    uint64_t held = held_beside(a->caches, tell_many, &first, UINT64_MAX);
    MUST_EQ(held, 4 * MIB);
    void *other = alloc_live(4 * MIB, A);
    MUST_EQ(held_of(&all, 1), all.bytes); /* counted once */
    free_live(block, A);
    MUST_EQ(held_of(&all, 1), all.bytes);
    free_live(other, A);
    MUST_EQ(held_of(&all, 1), 0);
    first = (struct pieces){.piece = {piece_at(MIB, MIB), piece_at(4 * MIB, 2 * MIB)}, .count = 2};
    MUST_EQ(held_beside(a->caches, tell_wholes, &first, 2 * MIB), 0);
    MUST_EQ(held_beside(a->caches, tell_wholes, &first, 2 * MIB - 1),
            2 * MIB); /* too large to be freed */
    MUST_EQ(held_beside(NULL, tell_wholes, &first, MIB - 1), 3 * MIB);
#ifdef CAN_REFUSE_HOST_MEMORY
    block = alloc_live(4 * MIB, A);
    refuse_in = 1;
    held = held_of(&all, 1);
    MUST_EQ(refuse_in, 0);
    MUST_EQ(held, 0);
    free_live(block, A);
#endif
}

/* All that a trim leaves reserved is pinned. */
TEST_EACH(ENGINES, what_is_held_stays) {
    make_cached(_i, "");
    void *block[8];
    warm(A);
    for (int i = 0; i < 8; i++)
        block[i] = alloc_live(i % 2 ? 20 * MIB : 3000, A);
    for (int i = 0; i < 6; i++)
        free_live(block[i], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    uint64_t held = weir__pinned_bytes(a->reserve.engine, weir__caches_live, a->caches, UINT64_MAX);
    MUST_EQ(held, stats_of(a).reserved);
    /* without the caches no block is known */
    MUST_EQ(weir__pinned_bytes(a->reserve.engine, weir__caches_live, NULL, UINT64_MAX), 0);
}

/* A large block needs growth.  weir queries the stream's id once.  An engine that queries the stream's work before it
 * splits idle memory does so once.  A mapped arena first queries the capture again, because the program may have
 * vouched for the stream. */
TEST_EACH(ENGINES, growth_is_looked_for_once) {
    make_cached(_i, "");
    if (_i == KIND_FIXED) { /* it does not grow */
        end_cached();
        return;
    }
    warm(A);
    for (int i = 0; i < 3; i++)
        alloc_live((size_t)(100 + i) * MIB, A);
    uint64_t ids = weir__model_calls(WEIR_ENTRY_cuStreamGetId);
    uint64_t captures = weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing);
    uint64_t queries = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    alloc_live(300 * MIB, A);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetId), ids + 1);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamIsCapturing), captures + 1 + (_i == KIND_MAPPED));
    MUST_LE(weir__model_calls(WEIR_ENTRY_cuStreamQuery), queries + 1);
}

SUITE("pinned", CK_FORK_GETENV);
