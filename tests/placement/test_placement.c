/* SPDX-License-Identifier: MIT */
/* test_placement.c: placement against layouts computed by hand.
 *
 * The tests apply the rules of TensorFlow's BFC allocator.  Sizes are rounded up to 256.  The smallest free chunk that
 * fits serves, the lowest of equal ones.  It is split from its lower end if it is at least twice the rounded size or if
 * at least the waste limit would be left over.  A freed chunk joins free neighbours at once. */
#include "tests/fixtures/placements.h"

CASE("rules", 60, NULL, end_placement_if_there);

TEST(regions_must_be_multiples_and_apart) {
    ck_assert_int_eq(weir__placement_create(&bfc, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, 0), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE + 1, 512), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE, 513), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, UINT64_MAX - 255, 512), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, UINT64_MAX - 255, 256), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, UINT64_MAX - 511, 256), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, 4096), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, 4096), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE + 3840, 512), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE - 512, 768), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE - 512, 8192), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE + 256, 256), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(weir__placement_add(p, BASE - 512, 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 512), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(placement_figures().regions, 4);
    ck_assert_uint_eq(placement_figures().total, 256 + 4096 + 512 + 512);
}

TEST(an_empty_placement_has_nothing) {
    struct weir_placement_block block;

    ck_assert_int_eq(weir__placement_create(&bfc, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(take_fails(1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(give_at(BASE, A, 1, NULL), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(placement_figures().total, 0);
    ck_assert_uint_eq(free_figures().largest, 0);
    ck_assert_str_eq(layout(), "");
}

TEST(blocks_follow_each_other_rounded_up) {
    begin_placement(&bfc, MIB);
    ck_assert_uint_eq(alloc_offset(1, A), 0);
    ck_assert_uint_eq(alloc_offset(256, A), 256);
    ck_assert_uint_eq(alloc_offset(257, A), 512);
    ck_assert_uint_eq(alloc_offset(1000, A), 1024);
    ck_assert_uint_eq(alloc_offset(256, A), 2048);
    ck_assert_str_eq(layout(), "live 0+256; live 256+256; live 512+512; live 1024+1024; "
                               "live 2048+256; free 2304+1046272");
}

TEST(sizes_that_cannot_be_are_told_apart) {
    begin_placement(&bfc, MIB);
    ck_assert_int_eq(take_fails(0, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX - 254, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX - 255, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(SIZE_MAX / 2, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(MIB + 1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(alloc_offset(MIB, A), 0);
    ck_assert_int_eq(take_fails(1, A), WEIR_PLACEMENT_NO_FIT);
}

/* At a granularity of 1, a size can exceed the largest chunk. */
TEST(granularity_may_be_one) {
    static const struct weir_placement_rule fine = {.granularity = 1, .split_waste = 1};

    begin_placement(&fine, 1000);
    ck_assert_uint_eq(take_sized(3, A, 3), 0);
    ck_assert_uint_eq(take_sized(7, A, 7), 3);
    ck_assert_int_eq(take_fails(SIZE_MAX, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails((size_t)1 << 58, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(((size_t)1 << 58) - 1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_add(p, UINT64_C(1) << 57, (size_t)1 << 57),
                     WEIR_PLACEMENT_INVALID);
}

/* ---- split ----------------------------------------------------------------------------------- */

/* Frees `range` bytes at 0, which a block of 256 keeps from the rest, and expects which size a request of `bytes` gets
 * there.  The range is smaller than the rest, so that it is the best fit. */
static void split_case(const struct weir_placement_rule *rule, size_t range, size_t bytes,
                       size_t expected) {
    begin_placement(rule, 2 * GIB);
    size_t at = alloc_offset(range, A);
    ck_assert_uint_eq(alloc_offset(256, A), range);
    free_offset(at, A);
    ck_assert_uint_eq(take_sized(bytes, A, expected), 0);
    ck_assert_uint_eq(free_figures().chunks, expected == range ? 1 : 2);
    end_placement();
}

CASE("fit", 60, NULL, end_placement_if_there);

TEST(cut_from_twice_the_size_on) {
    split_case(&bfc, 2048 - 256, 1024, 2048 - 256); /* 2x less one granule: all of it */
    split_case(&bfc, 2048, 1024, 1024);             /* 2x: cut */
    split_case(&bfc, 2048, 1025, 2048);             /* 1280 x 2 = 2560 > 2048: all of it */
    split_case(&bfc, 512, 1, 256);
    split_case(&bfc, 256, 1, 256);
}

TEST(cut_when_too_much_would_be_wasted) {
    split_case(&bfc, 328 * MIB - 256, 200 * MIB, 328 * MIB - 256); /* waste limit less a granule */
    split_case(&bfc, 328 * MIB, 200 * MIB, 200 * MIB);             /* 128 MiB wasted: cut */
    split_case(&bfc, 328 * MIB, 200 * MIB + 1, 328 * MIB);
}

TEST(waste_of_one_granule_always_cuts) {
    static const struct weir_placement_rule tight = {.granularity = 256, .split_waste = 256};

    split_case(&tight, 1024, 768, 768);
    split_case(&tight, 1024, 769, 1024);
}

/* A waste limit between two granules acts as the next one: 1000 wasted bytes are impossible, 1024 are not. */
TEST(waste_need_not_be_a_multiple) {
    static const struct weir_placement_rule odd = {.granularity = 256, .split_waste = 1000};

    split_case(&odd, 4096 + 768, 4096, 4096 + 768);
    split_case(&odd, 4096 + 1024, 4096, 4096);
}

/* ---- fit ------------------------------------------------------------------------------------- */

/* Allocates blocks of the given sizes from 0 on, each followed by one of 256 that stays, and frees them.  A last block
 * fills the region, so that only the freed ranges are free. */
static void unmapped_ranges(const size_t *sizes, size_t count, size_t *at) {
    for (size_t i = 0; i < count; i++) {
        at[i] = alloc_offset(sizes[i], A);
        alloc_offset(256, A);
    }
    alloc_offset(free_figures().largest, A);
    for (size_t i = 0; i < count; i++)
        free_offset(at[i], A);
}

TEST(smallest_that_fits_is_taken) {
    static const size_t sizes[] = {4096, 1024, 2048, 512, 768};
    size_t at[5];

    begin_placement(&bfc, MIB);
    unmapped_ranges(sizes, 5, at);
    /* unmapped ranges of 4096 at 0, 1024 at 4352, 2048 at 5632, 512 at 7936, 768 at 8704 */
    ck_assert_uint_eq(take_sized(600, A, 768), 8704);  /* exact */
    ck_assert_uint_eq(take_sized(600, A, 1024), 4352); /* 1024 < 2 x 768: whole */
    ck_assert_uint_eq(take_sized(600, A, 768), 5632);  /* 2048 >= 2 x 768: cut, 1280 at 6400 left */
    ck_assert_uint_eq(take_sized(256, A, 256), 7936);  /* 512 = 2 x 256: cut, 256 at 8192 left */
    ck_assert_uint_eq(take_sized(256, A, 256), 8192);
    ck_assert_uint_eq(take_sized(256, A, 256), 6400); /* 1280: cut, 1024 at 6656 left */
    ck_assert_uint_eq(take_sized(1025, A, 1280), 0);  /* 4096: cut, 2816 at 1280 left */
    ck_assert_uint_eq(take_sized(1024, A, 1024), 6656);
    ck_assert_uint_eq(take_sized(1536, A, 2816), 1280); /* 2816 < 2 x 1536: whole */
    ck_assert_int_eq(take_fails(1, A), WEIR_PLACEMENT_NO_FIT);
}

TEST(lowest_address_of_equals_is_taken) {
    static const size_t sizes[] = {512, 512, 512, 512};
    size_t at[4];

    begin_placement(&bfc, 64 * KIB);
    unmapped_ranges(sizes, 4, at);
    /* all free at 0, 768, 1536, 2304; the order of the frees must not matter */
    ck_assert_uint_eq(alloc_offset(512, A), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 768);
    free_offset(0, A);
    ck_assert_uint_eq(alloc_offset(512, A), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 1536);
    ck_assert_uint_eq(alloc_offset(512, A), 2304);
    free_offset(1536, A);
    free_offset(768, A);
    free_offset(2304, A);
    free_offset(0, A);
    ck_assert_uint_eq(alloc_offset(512, A), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 768);
    ck_assert_uint_eq(alloc_offset(512, A), 1536);
    ck_assert_uint_eq(alloc_offset(512, A), 2304);
}

/* Equal chunks have addresses that differ only in their lowest or only in their highest bits. */
TEST(the_lowest_address_of_equals_is_taken_across_regions) {
    ck_assert_int_eq(weir__placement_create(&bfc, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + (UINT64_C(1) << 40), 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 512, 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 2048, 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, 512), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(512, A), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 512);
    ck_assert_uint_eq(alloc_offset(512, A), 2048);
    ck_assert_uint_eq(alloc_offset(512, A), (size_t)1 << 40);
}

TEST(size_decides_before_address_within_an_octave) {
    static const size_t sizes[] = {(256 + 2) * 256, (256 + 1) * 256, 256 * 256};
    size_t at[3];

    begin_placement(&bfc, MIB);
    unmapped_ranges(sizes, 3, at);
    ck_assert_uint_eq(take_sized(255 * 256, A, 256 * 256), at[2]);
    ck_assert_uint_eq(take_sized(255 * 256, A, 257 * 256), at[1]);
    ck_assert_uint_eq(take_sized(255 * 256, A, 258 * 256), at[0]);
}

/* ---- coalesce -------------------------------------------------------------------------------- */

TEST(freed_chunk_joins_the_next) {
    begin_placement(&bfc, 8192);
    alloc_offset(512, A), alloc_offset(512, A),
        alloc_offset(512, A); /* 0, 512, 1024; free from 1536 */
    free_offset(512, A);
    ck_assert_str_eq(layout(), "live 0+512; A@1 512+512; live 1024+512; free 1536+6656");
    free_offset(0, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; free 1536+6656");
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
}

TEST(freed_chunk_joins_the_previous) {
    begin_placement(&bfc, 8192);
    alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A);
    free_offset(0, A);
    free_offset(512, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; free 1536+6656");
}

TEST(freed_chunk_joins_both) {
    begin_placement(&bfc, 8192);
    alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A);
    free_offset(0, A);
    free_offset(1024, A);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; A@2 1024+512; live 1536+512; "
                               "free 2048+6144");
    free_offset(512, A);
    ck_assert_str_eq(layout(), "A@3 0+1536; live 1536+512; free 2048+6144");
    free_offset(1536, A); /* previous, and the rest of the region that was never used */
    ck_assert_str_eq(layout(), "A@4 0+8192");
    ck_assert_uint_eq(alloc_offset(8192, A), 0);
}

CASE("regions", 60, NULL, end_placement_if_there);

TEST(regions_never_join) {
    begin_placement(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 1024, 1024), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(take_fails(1025, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    ck_assert_uint_eq(alloc_offset(1024, A), 1024);
    free_offset(0, A);
    free_offset(1024, A);
    ck_assert_str_eq(layout(), "A@1 0+1024; A@2 1024+1024");
    ck_assert_int_eq(take_fails(2048, A), WEIR_PLACEMENT_NO_FIT);
}

/* ---- regions --------------------------------------------------------------------------------- */

TEST(idle_regions_can_be_removed) {
    begin_placement(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(2048, A), 4096);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4352), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4097), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 20480), WEIR_PLACEMENT_FOREIGN);
    uint64_t q = free_offset(4096, A);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_BUSY); /* unobserved */
    observe_frees(A, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(placement_figures().total, 3072);
    ck_assert_uint_eq(alloc_offset(2048, A), 8192);
    ck_assert_int_eq(take_fails(2048, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(2048, A), 4096);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
}

TEST(tagged_regions_are_busy) {
    begin_placement(&bfc, 1024);
    alloc_offset(512, A);
    alloc_offset(512, B);
    uint64_t q = free_offset(0, A);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe_frees(A, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    q = free_offset(512, B);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe_frees(B, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
}

/* Fresh memory joins what the only stream has freed, since nobody used it. */
TEST(fresh_memory_is_of_no_second_stream) {
    begin_placement(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add_unmapped(p, BASE + 4096, 4096), WEIR_PLACEMENT_OK);
    for (uint64_t at = BASE + 4096; at < BASE + 8192; at += 2048) {
        ck_assert_int_eq(weir__placement_fill(p, at, at, 2048, NULL, 0), WEIR_PLACEMENT_OK);
        alloc_offset(2048, A);
        free_offset(4096, A);
    }
    ck_assert_str_eq(layout(), "free 0+1024; A@2 4096+4096");
}

/* There is one stream, or there are two (_i is 1). */
TEST_EACH(2, a_block_can_name_its_address) {
    const uint64_t end = BASE + 4096;
    struct weir_placement_block block;

    begin_placement(&bfc, 4096);
    ck_assert_int_eq(weir__placement_add_unmapped(p, end, 8192), WEIR_PLACEMENT_OK);
    if (_i) {
        ck_assert_uint_eq(alloc_offset(512, B), 0);
        free_offset(0, B);
        observe_frees_until(B, UINT64_MAX);
    }
    ck_assert_int_eq(weir__placement_alloc_at(p, end, 512, record_of(A), &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_fill(p, end, end, 2048, NULL, 0), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_alloc_at(p, end, 2304, record_of(A), &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_alloc_at(p, end + 256, 256, record_of(A), &block),
                     WEIR_PLACEMENT_NO_FIT);
    healthy();
    ck_assert_int_eq(weir__placement_alloc_at(p, end, 1024, record_of(A), &block),
                     WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, end);
    ck_assert_uint_eq(block.size, 1024);
    healthy();
    ck_assert_int_eq(weir__placement_alloc_at(p, end + 1024, 1024, record_of(A), &block),
                     WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_int_eq(weir__placement_fill(p, end + 2048, end + 2048, 512, NULL, 0),
                     WEIR_PLACEMENT_OK);
    free_offset(4096 + 1024, A);
    /* A free on stream A does not serve B. */
    ck_assert_int_eq(weir__placement_alloc_at(p, end + 1024, 1024, record_of(B), &block),
                     WEIR_PLACEMENT_NO_FIT);
    healthy();
    observe_frees_until(A, UINT64_MAX);
    ck_assert_int_eq(weir__placement_alloc_at(p, end + 1024, 1536, record_of(B), &block),
                     WEIR_PLACEMENT_OK);
    healthy();
}

TEST(a_region_says_whom_it_serves) {
    begin_placement(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(512, A), 0);
    ck_assert_int_eq(weir__placement_region(p, BASE, A), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_region(p, BASE + 256, A), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_region(p, BASE + 1, A), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_region(p, BASE + 8192, A), WEIR_PLACEMENT_FOREIGN);
    free_offset(0, A); /* a single stream needs no observation */
    ck_assert_int_eq(weir__placement_region(p, BASE, A), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_region(p, BASE, B), WEIR_PLACEMENT_FREE);
    ck_assert_uint_eq(alloc_offset(2048, B), 4096);
    ck_assert_str_eq(layout(), "A@1 0+512; free 512+512; live 4096+2048");
    ck_assert_int_eq(weir__placement_region(p, BASE, A), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_region(p, BASE, B), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_region(p, BASE, 0), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe_frees(A, 1);
    ck_assert_int_eq(weir__placement_region(p, BASE, 0), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
    ck_assert_str_eq(layout(), "live 4096+2048");
}

/* ---- wrong frees ----------------------------------------------------------------------------- */

TEST(wrong_addresses_are_diagnosed) {
    struct weir_placement_block block = {0};

    begin_placement(&bfc, 8192);
    alloc_offset(512, A);
    alloc_offset(1000, A);
    free_offset(0, A);
    ck_assert_int_eq(give_at(BASE, A, 9, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(give_at(BASE + 4096, A, 9, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(give_at(BASE + 513, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(give_at(BASE + 768, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(give_at(BASE + 1535, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(give_at(BASE - 1, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(give_at(BASE + 8192, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(give_at(0, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(give_at(UINT64_MAX, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(block.address, 0);
    healthy();
    ck_assert_int_eq(weir__placement_find(p, BASE + 512, &block), WEIR_PLACEMENT_OK);
    ck_assert(block.address == BASE + 512 && block.requested == 1000 && block.size == 1024);
    memset(&block, 0, sizeof block);
    ck_assert_int_eq(weir__placement_find(p, BASE + 1535, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert(block.address == BASE + 512 && block.requested == 1000 && block.size == 1024);
    ck_assert_int_eq(weir__placement_find(p, BASE + 1536, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_find(p, BASE + 8192, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(give_at(BASE + 512, A, 9, &block), WEIR_PLACEMENT_OK);
    ck_assert(block.address == BASE + 512 && block.requested == 1000 && block.size == 1024);
    ck_assert_int_eq(give_at(BASE + 512, A, 9, NULL), WEIR_PLACEMENT_FREE);
}

/* A block that is freed right after its allocation, without a look at the placement in between, is free in every
 * respect. */
TEST(block_that_comes_and_goes_is_free) {
    struct weir_placement_block block;

    begin_placement(&bfc, 8192);
    MUST_EQUAL(weir__placement_alloc(p, 500, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 1, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 2, NULL), WEIR_PLACEMENT_FREE);
    MUST_EQUAL(weir__placement_alloc(p, 500, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 3, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FREE);
    MUST_EQUAL(weir__placement_alloc(p, 500, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 4, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_alloc(p, 512, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(block.address, BASE);
    MUST_EQUAL(block.requested, 512);
    MUST_EQUAL(give_at(BASE, A, 5, NULL), WEIR_PLACEMENT_OK);
    observe_frees_until(A, 5);
    MUST_EQUAL(free_figures().waiting, 0);
    MUST_EQUAL(weir__placement_alloc(p, 512, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 6, NULL), WEIR_PLACEMENT_OK);
    observe_frees_until(A, 6);
    MUST_EQUAL(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
}

/* A new region may fit better than the chunk in which a block of this size has just been freed. */
TEST(new_region_counts_for_the_size_that_just_went) {
    struct weir_placement_block block;

    begin_placement(&bfc, 8192);
    MUST_EQUAL(weir__placement_alloc(p, 512, record_of(A), &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE, A, 1, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_add(p, BASE + 65536, 512), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(512, A), 65536);
}

/* A free with a wrong address does not make B known: A still has all memory. */
TEST(wrong_frees_bring_no_stream) {
    begin_placement(&bfc, 1024);
    alloc_offset(512, A);
    free_offset(0, A);
    ck_assert_int_eq(give_at(BASE, B, 9, NULL), WEIR_PLACEMENT_FREE);
    ck_assert_str_eq(layout(), "A@1 0+1024");
}

CASE("figures", 60, NULL, end_placement_if_there);

TEST(a_deferred_block_stays_placed) {
    struct weir_placement_block block;
    uint64_t base;
    size_t bytes;

    begin_placement(&bfc, 1024);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    weir__placement_defer(p, BASE);
    healthy();
    ck_assert_int_eq(weir__placement_region(p, BASE, 0), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_alloc(p, 256, record_of(A), &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_find(p, BASE + 256, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(give_at(BASE, A, 1, NULL), WEIR_PLACEMENT_FREE);
    weir__placement_undefer(p, BASE);
    free_offset(0, A);
    healthy();
    ck_assert_int_eq(weir__placement_region_above(p, BASE + 1023, &base, &bytes), 1);
    ck_assert_uint_eq(base, BASE);
    ck_assert_uint_eq(bytes, 1024);
    ck_assert_int_eq(weir__placement_region_above(p, BASE + 1024, &base, &bytes), 0);
}

TEST(figures_add_up) {
    begin_placement(&bfc, 8192);
    ck_assert_int_eq(weir__placement_add(p, BASE + 16384, 1024), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take_sized(600, A, 1024), 16384); /* 1024 < 2 x 768 */
    ck_assert_uint_eq(alloc_offset(300, A), 0);
    ck_assert_uint_eq(alloc_offset(1000, A), 512);
    free_offset(0, A);
    struct weir_placement_figures f = placement_figures();
    ck_assert_uint_eq(f.regions, 2);
    ck_assert_uint_eq(f.total, 9216);
    ck_assert_uint_eq(f.blocks, 2);
    ck_assert_uint_eq(free_figures().chunks, 2);
    ck_assert_uint_eq(free_figures().largest, 8192 - 1536);
    ck_assert_uint_eq(free_figures().waiting, 512);
    ck_assert_uint_eq(f.extent, 1536 + 1024);
    observe_frees(A, 1);
    ck_assert_uint_eq(free_figures().waiting, 0);
    alloc_offset(256, B);
    free_offset(512, B);
    ck_assert_uint_eq(free_figures().waiting, 1024);
    ck_assert_uint_eq(free_figures().largest, 8192 - 1536);
}

TEST(host_memory_follows_the_chunks) {
    begin_placement(&bfc, 104 * GIB);
    ck_assert_uint_lt(placement_figures().host_bytes, 100000); /* not the region's 2^29 granules */
    for (size_t i = 0; i < 100000; i++) {
        struct weir_placement_block block;

        MUST_EQUAL(weir__placement_alloc(p, 512 + i % 1000 * 1024, record_of(A), &block),
                   WEIR_PLACEMENT_OK);
    }
    ck_assert_uint_lt(placement_figures().host_bytes, 16 * MIB);
    for (size_t i = 0; i < 1000; i++)
        MUST_EQUAL(weir__placement_add(p, BASE + (i + 1000) * GIB, GIB), WEIR_PLACEMENT_OK);
    ck_assert_uint_lt(placement_figures().host_bytes, 16 * MIB);
}

/* All chunks have one size and no free neighbour, so address alone orders them. */
TEST(address_orders_a_hundred_thousand_of_one_size) {
    enum { N = 100000 };
    struct weir_placement_block block;
    uint64_t q = 0;

    begin_placement(&bfc, GIB);
    for (size_t i = 0; i < 2 * N; i++)
        MUST_EQUAL(weir__placement_alloc(p, 512, record_of(A), &block), WEIR_PLACEMENT_OK);
    for (size_t i = 0; i < N; i++) /* 7919 is a prime: every even block once, in a wild order */
        MUST_EQUAL(give_at(BASE + (i * 7919 % N) * 1024, A, ++q, NULL), WEIR_PLACEMENT_OK);
    healthy();
    for (size_t i = 0; i < N; i++) {
        MUST_EQUAL(weir__placement_alloc(p, 512, record_of(A), &block), WEIR_PLACEMENT_OK);
        MUST_EQUAL(block.address, BASE + i * 1024);
    }
}

SUITE("placement", CK_FORK_GETENV);
