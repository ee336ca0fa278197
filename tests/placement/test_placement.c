/* SPDX-License-Identifier: MIT */
/* test_placement.c: placement against layouts worked out by hand, and against a slow model.
 *
 * The rules that the comments below apply are those of TensorFlow's BFC allocator: sizes are
 * rounded up to 256; the smallest free chunk that fits is taken, the lowest of equals; it is cut
 * from its lower end if it is at least twice the rounded size or if at least the waste limit would
 * be left over; a freed chunk joins free neighbours at once.  Tags are those of placement.h.
 *
 * The model is one linear list and the same rules, with no index, no hash and no cleverness; random
 * sequences run on both, every answer and the whole layout are compared after each step, and
 * placement checks its own invariants. The seam for refusing memory is the `resize` member of the
 * rule. */
#include "placement/placement.h"
#include "tests/fixtures/placement_check.h"
#include "tests/fixtures/suite.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define G ((size_t)256)
#define BASE UINT64_C(0x7f0000000000)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

enum { A = 11, B = 22, C = 33 }; /* streams */

static const struct weir_placement_rule bfc = {.granularity = 256, .split_waste = 128 * MIB};

static struct weir_placement *p; /* under test; each test runs in a process of its own */
static uint64_t clock_of_frees;

#define MUST_EQUAL(a, b) must_equal(__LINE__, #a, (uint64_t)(a), #b, (uint64_t)(b))

static void must_equal(int line, const char *a, uint64_t x, const char *b, uint64_t y) {
    if (x != y)
        ck_abort_msg("line %d: %s is %" PRIu64 ", %s is %" PRIu64, line, a, x, b, y);
}

/* ------------------------------------------------------------------- helpers -- */

static void begin(const struct weir_placement_rule *rule, size_t bytes) {
    clock_of_frees = 0;
    ck_assert_int_eq(weir__placement_create(rule, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, bytes), WEIR_PLACEMENT_OK);
}

static void healthy(void) {
    MUST(placement_check(p, stderr));
}

static void end(void) {
    healthy();
    weir__placement_destroy(p);
}

/* The offset from BASE at which a block of exactly `size` bytes was placed. */
static size_t take_sized(size_t bytes, uint64_t stream, size_t size) {
    struct weir_placement_block block;

    ck_assert_int_eq(weir__placement_take(p, bytes, stream, &block), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_uint_eq(block.requested, bytes);
    ck_assert_uint_eq(block.size, size);
    return (size_t)(block.address - BASE);
}

/* The same where nothing is wasted but the rounding. */
static size_t take(size_t bytes, uint64_t stream) {
    return take_sized(bytes, stream, (bytes + G - 1) / G * G);
}

static int take_fails(size_t bytes, uint64_t stream) {
    struct weir_placement_block block = {1, 2, 3};
    int status = weir__placement_take(p, bytes, stream, &block);

    healthy();
    ck_assert(block.address == 1 && block.requested == 2 && block.size == 3);
    return status;
}

static uint64_t give(size_t offset, uint64_t stream) {
    int status = weir__placement_give(p, BASE + offset, stream, ++clock_of_frees, NULL);

    ck_assert_int_eq(status, WEIR_PLACEMENT_OK);
    healthy();
    return clock_of_frees;
}

/* The same without a look, which would end a short cut that is taken while nobody looks. */
static void give_unseen(size_t offset, uint64_t stream) {
    int status = weir__placement_give(p, BASE + offset, stream, ++clock_of_frees, NULL);

    ck_assert_int_eq(status, WEIR_PLACEMENT_OK);
}

static void observe(uint64_t stream, uint64_t sequence) {
    weir__placement_observe(p, stream, sequence);
    healthy();
}

static struct weir_placement_figures figures(void) {
    struct weir_placement_figures f;

    weir__placement_figures(p, &f);
    return f;
}

/* The layout as text: "live 0+512; free 512+1024; A@3 1536+256", offsets from BASE. */
static char *show_into;

static int show(void *context, const struct weir_placement_span *span) {
    char tag[40] = "free";

    (void)context;
    if (span->live)
        snprintf(tag, sizeof tag, "live");
    else if (span->stream != 0 || span->sequence != 0)
        snprintf(tag, sizeof tag, "%s@%" PRIu64,
                 span->stream == A   ? "A"
                 : span->stream == B ? "B"
                 : span->stream == C ? "C"
                                     : "?",
                 span->sequence);
    show_into += sprintf(show_into, "%s%s %" PRIu64 "+%zu", show_into[-1] == '\n' ? "" : "; ", tag,
                         span->address - BASE, span->size);
    return 0;
}

static const char *layout(void) {
    static char text[65536] = "\n";

    show_into = text + 1;
    *show_into = '\0';
    weir__placement_walk(p, show, NULL);
    return text + 1;
}

/* --------------------------------------------------------------------- rules -- */

START_TEST(rules_that_make_no_sense_are_refused) {
    struct weir_placement_rule rule = bfc;

    p = NULL;
    rule.granularity = 0;
    ck_assert_int_eq(weir__placement_create(&rule, &p), WEIR_PLACEMENT_INVALID);
    rule.granularity = 384;
    ck_assert_int_eq(weir__placement_create(&rule, &p), WEIR_PLACEMENT_INVALID);
    rule.granularity = 256;
    rule.split_waste = 0;
    ck_assert_int_eq(weir__placement_create(&rule, &p), WEIR_PLACEMENT_INVALID);
    ck_assert_ptr_null(p);
    weir__placement_destroy(NULL);
}
END_TEST

START_TEST(regions_must_be_multiples_and_apart) {
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
    ck_assert_uint_eq(figures().regions, 4);
    ck_assert_uint_eq(figures().total, 256 + 4096 + 512 + 512);
    end();
}
END_TEST

START_TEST(an_empty_placement_has_nothing) {
    struct weir_placement_block block;

    ck_assert_int_eq(weir__placement_create(&bfc, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(take_fails(1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_give(p, BASE, A, 1, NULL), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(figures().total, 0);
    ck_assert_uint_eq(figures().largest_free, 0);
    ck_assert_str_eq(layout(), "");
    end();
}
END_TEST

START_TEST(blocks_follow_each_other_rounded_up) {
    begin(&bfc, MIB);
    ck_assert_uint_eq(take(1, A), 0);
    ck_assert_uint_eq(take(256, A), 256);
    ck_assert_uint_eq(take(257, A), 512);
    ck_assert_uint_eq(take(1000, A), 1024);
    ck_assert_uint_eq(take(256, A), 2048);
    ck_assert_str_eq(layout(), "live 0+256; live 256+256; live 512+512; live 1024+1024; "
                               "live 2048+256; free 2304+1046272");
    end();
}
END_TEST

START_TEST(sizes_that_cannot_be_are_told_apart) {
    begin(&bfc, MIB);
    ck_assert_int_eq(take_fails(0, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX - 254, A), WEIR_PLACEMENT_INVALID);
    ck_assert_int_eq(take_fails(SIZE_MAX - 255, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(SIZE_MAX / 2, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(MIB + 1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(MIB, A), 0);
    ck_assert_int_eq(take_fails(1, A), WEIR_PLACEMENT_NO_FIT);
    end();
}
END_TEST

/* At a granularity of 1 sizes go beyond what a chunk can be. */
START_TEST(granularity_may_be_one) {
    static const struct weir_placement_rule fine = {.granularity = 1, .split_waste = 1};

    begin(&fine, 1000);
    ck_assert_uint_eq(take_sized(3, A, 3), 0);
    ck_assert_uint_eq(take_sized(7, A, 7), 3);
    ck_assert_int_eq(take_fails(SIZE_MAX, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails((size_t)1 << 58, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(((size_t)1 << 58) - 1, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_add(p, UINT64_C(1) << 57, (size_t)1 << 57),
                     WEIR_PLACEMENT_INVALID);
    end();
}
END_TEST

/* --------------------------------------------------------------------- split -- */

/* An unmapped range of `hole` bytes at 0 (a block of 256 keeps it from the rest); what a request of `bytes`
 * gets.  The unmapped range is smaller than the rest, so that it is the best fit. */
static void split_case(const struct weir_placement_rule *rule, size_t hole, size_t bytes,
                       size_t expected) {
    size_t at;

    begin(rule, 2 * GIB);
    at = take(hole, A);
    ck_assert_uint_eq(take(256, A), hole);
    give(at, A);
    ck_assert_uint_eq(take_sized(bytes, A, expected), 0);
    ck_assert_uint_eq(figures().free_chunks, expected == hole ? 1 : 2);
    end();
}

START_TEST(cut_from_twice_the_size_on) {
    split_case(&bfc, 2048 - 256, 1024, 2048 - 256); /* 2x less one granule: all of it */
    split_case(&bfc, 2048, 1024, 1024);             /* 2x: cut */
    split_case(&bfc, 2048, 1025, 2048);             /* 1280 x 2 = 2560 > 2048: all of it */
    split_case(&bfc, 512, 1, 256);
    split_case(&bfc, 256, 1, 256);
}
END_TEST

START_TEST(cut_when_too_much_would_be_wasted) {
    split_case(&bfc, 328 * MIB - 256, 200 * MIB, 328 * MIB - 256); /* waste limit less a granule */
    split_case(&bfc, 328 * MIB, 200 * MIB, 200 * MIB);             /* 128 MiB wasted: cut */
    split_case(&bfc, 328 * MIB, 200 * MIB + 1, 328 * MIB);
}
END_TEST

START_TEST(waste_of_one_granule_always_cuts) {
    static const struct weir_placement_rule tight = {.granularity = 256, .split_waste = 256};

    split_case(&tight, 1024, 768, 768);
    split_case(&tight, 1024, 769, 1024);
}
END_TEST

/* A limit between granules acts as the next one: 1000 wasted bytes cannot be, 1024 can. */
START_TEST(waste_need_not_be_a_multiple) {
    static const struct weir_placement_rule odd = {.granularity = 256, .split_waste = 1000};

    split_case(&odd, 4096 + 768, 4096, 4096 + 768);
    split_case(&odd, 4096 + 1024, 4096, 4096);
}
END_TEST

/* ----------------------------------------------------------------------- fit -- */

/* Blocks of the given sizes from 0 on, each followed by one of 256 that stays; then all given back.
 * A last block fills the region, so that only the unmapped ranges are free. */
static void unmapped_ranges(const size_t *sizes, size_t count, size_t *at) {
    for (size_t i = 0; i < count; i++) {
        at[i] = take(sizes[i], A);
        take(256, A);
    }
    take(figures().largest_free, A);
    for (size_t i = 0; i < count; i++)
        give(at[i], A);
}

START_TEST(smallest_that_fits_is_taken) {
    static const size_t sizes[] = {4096, 1024, 2048, 512, 768};
    size_t at[5];

    begin(&bfc, MIB);
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
    end();
}
END_TEST

START_TEST(lowest_address_of_equals_is_taken) {
    static const size_t sizes[] = {512, 512, 512, 512};
    size_t at[4];

    begin(&bfc, 64 * KIB);
    unmapped_ranges(sizes, 4, at);
    /* all free at 0, 768, 1536, 2304; the order of the frees must not matter */
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_uint_eq(take(512, A), 768);
    give(0, A);
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_uint_eq(take(512, A), 1536);
    ck_assert_uint_eq(take(512, A), 2304);
    give(1536, A);
    give(768, A);
    give(2304, A);
    give(0, A);
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_uint_eq(take(512, A), 768);
    ck_assert_uint_eq(take(512, A), 1536);
    ck_assert_uint_eq(take(512, A), 2304);
    end();
}
END_TEST

/* Equal sizes with addresses that differ only in their lowest or only in their highest bits. */
START_TEST(lowest_address_of_equals_across_regions) {
    ck_assert_int_eq(weir__placement_create(&bfc, &p), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + (UINT64_C(1) << 40), 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 512, 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 2048, 512), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE, 512), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_uint_eq(take(512, A), 512);
    ck_assert_uint_eq(take(512, A), 2048);
    ck_assert_uint_eq(take(512, A), (size_t)1 << 40);
    end();
}
END_TEST

START_TEST(size_decides_before_address_within_an_octave) {
    static const size_t sizes[] = {(256 + 2) * 256, (256 + 1) * 256, 256 * 256};
    size_t at[3];

    begin(&bfc, MIB);
    unmapped_ranges(sizes, 3, at);
    ck_assert_uint_eq(take_sized(255 * 256, A, 256 * 256), at[2]);
    ck_assert_uint_eq(take_sized(255 * 256, A, 257 * 256), at[1]);
    ck_assert_uint_eq(take_sized(255 * 256, A, 258 * 256), at[0]);
    end();
}
END_TEST

/* ------------------------------------------------------------------ coalesce -- */

START_TEST(freed_chunk_joins_the_next) {
    begin(&bfc, 8192);
    take(512, A), take(512, A), take(512, A); /* 0, 512, 1024; free from 1536 */
    give(512, A);
    ck_assert_str_eq(layout(), "live 0+512; A@1 512+512; live 1024+512; free 1536+6656");
    give(0, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; free 1536+6656");
    ck_assert_uint_eq(take(1024, A), 0);
    end();
}
END_TEST

START_TEST(freed_chunk_joins_the_previous) {
    begin(&bfc, 8192);
    take(512, A), take(512, A), take(512, A);
    give(0, A);
    give(512, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; free 1536+6656");
    end();
}
END_TEST

START_TEST(freed_chunk_joins_both) {
    begin(&bfc, 8192);
    take(512, A), take(512, A), take(512, A), take(512, A);
    give(0, A);
    give(1024, A);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; A@2 1024+512; live 1536+512; "
                               "free 2048+6144");
    give(512, A);
    ck_assert_str_eq(layout(), "A@3 0+1536; live 1536+512; free 2048+6144");
    give(1536, A); /* previous, and the rest of the region that was never used */
    ck_assert_str_eq(layout(), "A@4 0+8192");
    ck_assert_uint_eq(take(8192, A), 0);
    end();
}
END_TEST

START_TEST(regions_never_join) {
    begin(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 1024, 1024), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(take_fails(1025, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(1024, A), 0);
    ck_assert_uint_eq(take(1024, A), 1024);
    give(0, A);
    give(1024, A);
    ck_assert_str_eq(layout(), "A@1 0+1024; A@2 1024+1024");
    ck_assert_int_eq(take_fails(2048, A), WEIR_PLACEMENT_NO_FIT);
    end();
}
END_TEST

/* ------------------------------------------------------------------- regions -- */

START_TEST(idle_regions_can_be_removed) {
    uint64_t q;

    begin(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(2048, A), 4096);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4352), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4097), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 20480), WEIR_PLACEMENT_FOREIGN);
    q = give(4096, A);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_BUSY); /* unobserved */
    observe(A, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_int_eq(weir__placement_remove(p, BASE + 4096), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(figures().total, 3072);
    ck_assert_uint_eq(take(2048, A), 8192);
    ck_assert_int_eq(take_fails(2048, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(2048, A), 4096);
    ck_assert_uint_eq(take(1024, A), 0);
    end();
}
END_TEST

START_TEST(tagged_regions_are_busy) {
    uint64_t q;

    begin(&bfc, 1024);
    take(512, A);
    take(512, B);
    q = give(0, A);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe(A, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    q = give(512, B);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe(B, q);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
    end();
}
END_TEST

/* With one stream, or (_i) with two. */
START_TEST(a_block_can_name_its_address) {
    const uint64_t end = BASE + 4096;
    struct weir_placement_block block;

    begin(&bfc, 4096);
    ck_assert_int_eq(weir__placement_add_unmapped(p, end, 8192), WEIR_PLACEMENT_OK);
    if (_i) {
        ck_assert_uint_eq(take(512, B), 0);
        give(0, B);
        weir__placement_observe(p, B, UINT64_MAX);
    }
    ck_assert_int_eq(weir__placement_take_at(p, end, 512, A, &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_fill(p, end, end, 2048, 0, 0), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_take_at(p, end, 2304, A, &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_take_at(p, end + 256, 256, A, &block), WEIR_PLACEMENT_NO_FIT);
    healthy();
    ck_assert_int_eq(weir__placement_take_at(p, end, 1024, A, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, end);
    ck_assert_uint_eq(block.size, 1024);
    healthy();
    ck_assert_int_eq(weir__placement_take_at(p, end + 1024, 1024, A, &block), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_int_eq(weir__placement_fill(p, end + 2048, end + 2048, 512, 0, 0), WEIR_PLACEMENT_OK);
    give(4096 + 1024, A);
    /* Freed on a stream: not everybody's. */
    ck_assert_int_eq(weir__placement_take_at(p, end + 1024, 1024, B, &block),
                     WEIR_PLACEMENT_NO_FIT);
    healthy();
    weir__placement_observe(p, A, UINT64_MAX);
    ck_assert_int_eq(weir__placement_take_at(p, end + 1024, 1536, B, &block), WEIR_PLACEMENT_OK);
    healthy();
}
END_TEST

START_TEST(whole_regions_can_be_passed_over) {
    struct weir_placement_block block;

    begin(&bfc, 4096);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 8192), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 2048, &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 4095, &block), WEIR_PLACEMENT_NO_FIT);
    healthy();
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 4096, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE);
    /* What is left is no whole region: it is not passed over, however large. */
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 256, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE + 512);
    ck_assert_int_eq(weir__placement_take_within(p, 4096, A, 4096, &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(4096, A), 8192);
    /* The larger chunk behind one that is passed over. */
    give(0, A);
    give(512, A);
    ck_assert_int_eq(weir__placement_take_within(p, 3072, A, 2048, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE + 12288);
    healthy();
    /* A block that has just gone makes its region whole. */
    give(12288, A);
    give(8192, A);
    ck_assert_uint_eq(take(512, A), 0);
    give(0, A);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 1024, &block), WEIR_PLACEMENT_NO_FIT);
    end();
}
END_TEST

/* A block that came and went within bounds comes again within the same ones alone. */
START_TEST(bounds_hold_for_what_comes_again) {
    struct weir_placement_block block;

    begin(&bfc, 4096);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 8192), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_uint_eq(take(3584, A), 512); /* the first region is full */
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 8192, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE + 8192);
    give_unseen(8192, A);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 8192, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE + 8192);
    healthy();
    give_unseen(8192, A);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 8191, &block), WEIR_PLACEMENT_NO_FIT);
    /* What was passed over is the best fit for one that passes over nothing. */
    give_unseen(0, A);
    give_unseen(512, A);
    ck_assert_int_eq(weir__placement_take_within(p, 512, A, 1024, &block), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(256, A), 0);
    ck_assert_uint_eq(take(256, A), 256);
    give_unseen(0, A);
    ck_assert_int_eq(weir__placement_take_within(p, 256, A, 128, &block), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(block.address, BASE);
    give_unseen(0, A);
    ck_assert_uint_eq(take(256, A), 0);
    healthy();
    end();
}
END_TEST

START_TEST(regions_are_withdrawn_by_whom_they_serve) {
    begin(&bfc, 1024);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 2048), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(512, A), 0);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, A), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE + 256, A), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE + 1, A), WEIR_PLACEMENT_FOREIGN);
    give(0, A);
    /* B is the second stream: A's space below the high mark is A's. */
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, B), WEIR_PLACEMENT_BUSY);
    ck_assert_str_eq(layout(), "A@1 0+512; free 512+512; free 4096+2048");
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, 0), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, A), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, A), WEIR_PLACEMENT_FOREIGN);
    ck_assert_uint_eq(figures().total, 2048);
    ck_assert_uint_eq(figures().unobserved, 0);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE + 4096, B), WEIR_PLACEMENT_OK);
    ck_assert_str_eq(layout(), "");
    end();
}
END_TEST

/* With one stream nobody waits for anybody, observed or not. */
START_TEST(the_only_stream_withdraws_at_once) {
    begin(&bfc, 1024);
    take(512, A);
    give(0, A);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    ck_assert_int_eq(weir__placement_withdraw(p, BASE, A), WEIR_PLACEMENT_OK);
    ck_assert_str_eq(layout(), "");
    end();
}
END_TEST

START_TEST(a_region_may_come_in_one_streams_order) {
    begin(&bfc, 1024);
    take(512, A);
    ck_assert_int_eq(weir__placement_add_freed(p, BASE + 4096, 2048, B, 7), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add_freed(p, BASE + 4096, 2048, B, 8), WEIR_PLACEMENT_INVALID);
    ck_assert_str_eq(layout(), "live 0+512; free 512+512; B@7 4096+2048");
    ck_assert_uint_eq(figures().blocks, 1);
    ck_assert_int_eq(take_fails(1024, A), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(1024, B), 4096);
    observe(B, 7);
    ck_assert_uint_eq(take(1024, A), 5120);
    end();
}
END_TEST

/* --------------------------------------------------------------- wrong frees -- */

START_TEST(wrong_addresses_are_diagnosed) {
    struct weir_placement_block block = {0};

    begin(&bfc, 8192);
    take(512, A);
    take(1000, A);
    give(0, A);
    ck_assert_int_eq(weir__placement_give(p, BASE, A, 9, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_give(p, BASE + 4096, A, 9, &block), WEIR_PLACEMENT_FREE);
    ck_assert_int_eq(weir__placement_give(p, BASE + 513, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(weir__placement_give(p, BASE + 768, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(weir__placement_give(p, BASE + 1535, A, 9, &block), WEIR_PLACEMENT_INTERIOR);
    ck_assert_int_eq(weir__placement_give(p, BASE - 1, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_give(p, BASE + 8192, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_give(p, 0, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
    ck_assert_int_eq(weir__placement_give(p, UINT64_MAX, A, 9, &block), WEIR_PLACEMENT_FOREIGN);
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
    ck_assert_int_eq(weir__placement_give(p, BASE + 512, A, 9, &block), WEIR_PLACEMENT_OK);
    ck_assert(block.address == BASE + 512 && block.requested == 1000 && block.size == 1024);
    ck_assert_int_eq(weir__placement_give(p, BASE + 512, A, 9, NULL), WEIR_PLACEMENT_FREE);
    end();
}
END_TEST

/* A block that is given back right after it was taken, and nothing looks at the placement between:
 * it is free in every respect. */
START_TEST(block_that_comes_and_goes_is_free) {
    struct weir_placement_block block;

    begin(&bfc, 8192);
    MUST_EQUAL(weir__placement_take(p, 500, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 1, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 2, NULL), WEIR_PLACEMENT_FREE);
    MUST_EQUAL(weir__placement_take(p, 500, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 3, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_find(p, BASE, &block), WEIR_PLACEMENT_FREE);
    MUST_EQUAL(weir__placement_take(p, 500, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 4, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_take(p, 512, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(block.address, BASE);
    MUST_EQUAL(block.requested, 512);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 5, NULL), WEIR_PLACEMENT_OK);
    weir__placement_observe(p, A, 5);
    MUST_EQUAL(figures().unobserved, 0);
    MUST_EQUAL(weir__placement_take(p, 512, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 6, NULL), WEIR_PLACEMENT_OK);
    weir__placement_observe(p, A, 6);
    MUST_EQUAL(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
    end();
}
END_TEST

/* A new region may hold a better fit than where the same size just was. */
START_TEST(new_region_counts_for_the_size_that_just_went) {
    struct weir_placement_block block;

    begin(&bfc, 8192);
    MUST_EQUAL(weir__placement_take(p, 512, A, &block), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_give(p, BASE, A, 1, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_add(p, BASE + 65536, 512), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(512, A), 65536);
    end();
}
END_TEST

/* A stream that is named only with a wrong address was not seen: A still has all to itself. */
START_TEST(wrong_frees_bring_no_stream) {
    begin(&bfc, 1024);
    take(512, A);
    give(0, A);
    ck_assert_int_eq(weir__placement_give(p, BASE, B, 9, NULL), WEIR_PLACEMENT_FREE);
    ck_assert_str_eq(layout(), "A@1 0+1024");
    end();
}
END_TEST

/* ---------------------------------------------------------------------- tags -- */

START_TEST(own_stream_is_served_at_once_others_when_observed) {
    uint64_t q;

    begin(&bfc, 2048);
    ck_assert_uint_eq(take(1024, A), 0);
    ck_assert_uint_eq(take(1024, B), 1024);
    q = give(0, A);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(512, 0), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(take(1024, A), 0);
    ck_assert_str_eq(layout(), "live 0+1024; live 1024+1024");
    q = give(0, A);
    observe(A, q - 1);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    observe(B, q);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    observe(A, q);
    ck_assert_str_eq(layout(), "free 0+1024; live 1024+1024");
    ck_assert_uint_eq(take(512, B), 0);
    end();
}
END_TEST

/* What is waited for: text of "stream@sequence". */
static char waited_for[4096];

static int can_be_waited_for(void *context, uint64_t stream, uint64_t sequence) {
    (void)context;
    return (stream + sequence) % 3 != 0;
}

static int note_wait(void *context, uint64_t stream, uint64_t sequence) {
    size_t at = strlen(waited_for);

    snprintf(waited_for + at, sizeof waited_for - at, "%" PRIu64 "@%" PRIu64 " ", stream, sequence);
    return context == NULL;
}

static int all_can_be_waited_for(void *context, uint64_t stream, uint64_t sequence) {
    (void)context;
    (void)stream;
    (void)sequence;
    return 1;
}

/* Free chunks of several streams, side by side, make one block for who waits for them; what it leaves stays
 * whose it was.  A refused wait leaves all as it is. */
START_TEST(behind_others_a_block_lies_across_chunks) {
    struct weir_placement_waits waits = {all_can_be_waited_for, note_wait, NULL};
    struct weir_placement_block block = {1, 2, 3};
    int refuses;

    begin(&bfc, 4096);
    for (size_t i = 0; i < 4; i++)
        ck_assert_uint_eq(take(1024, i < 2 ? A : B), i * 1024);
    give(1024, A);
    give(2048, B);
    ck_assert_str_eq(layout(), "live 0+1024; A@1 1024+1024; B@2 2048+1024; live 3072+1024");
    ck_assert_int_eq(take_fails(1536, B), WEIR_PLACEMENT_NO_FIT);
    waits.context = &refuses;
    ck_assert_int_eq(weir__placement_take_behind(p, 1536, B, &waits, &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(waited_for, "11@1 ");
    ck_assert_uint_eq(block.address, 1);
    waits.context = NULL;
    waited_for[0] = '\0';
    ck_assert_int_eq(weir__placement_take_behind(p, 4096, B, &waits, &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(waited_for, "");
    ck_assert_int_eq(weir__placement_take_behind(p, 1536, B, &waits, &block), WEIR_PLACEMENT_OK);
    ck_assert_str_eq(waited_for, "11@1 ");
    ck_assert_uint_eq(block.address - BASE, 1024);
    ck_assert_uint_eq(block.size, 1536);
    ck_assert_str_eq(layout(), "live 0+1024; live 1024+1536; B@2 2560+512; live 3072+1024");
    waited_for[0] = '\0';
    ck_assert_int_eq(weir__placement_take_behind(p, 512, 0, &waits, &block), WEIR_PLACEMENT_OK);
    ck_assert_str_eq(waited_for, "22@2 ");
    end();
}
END_TEST

START_TEST(stream_0_waits_and_makes_wait) {
    uint64_t q;

    begin(&bfc, 2048);
    ck_assert_uint_eq(take(512, 0), 0);
    ck_assert_uint_eq(take(512, A), 512);
    q = give(0, 0);
    ck_assert_str_eq(layout(), "?@1 0+512; live 512+512; free 1024+1024");
    ck_assert_uint_eq(take(512, 0), 1024); /* not what it freed itself */
    ck_assert_uint_eq(take(512, A), 1536);
    ck_assert_int_eq(take_fails(512, A), WEIR_PLACEMENT_NO_FIT);
    give(512, A);
    ck_assert_int_eq(take_fails(512, 0), WEIR_PLACEMENT_NO_FIT);
    observe(0, q);
    ck_assert_str_eq(layout(), "free 0+512; A@2 512+512; live 1024+512; live 1536+512");
    ck_assert_uint_eq(take(512, 0), 0);
    end();
}
END_TEST

START_TEST(only_like_tags_join) {
    uint64_t qa;
    uint64_t qb;

    begin(&bfc, 4096);
    for (size_t i = 0; i < 6; i++)
        take(512, i % 2 == 0 ? A : B); /* 0 to 3072; free 3072+1024 */
    give(0, A);
    give(512, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; live 1536+512; live 2048+512; "
                               "live 2560+512; free 3072+1024");
    give(1024, B);
    qb = give(1536, B);
    qa = give(2560, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; B@4 1024+1024; live 2048+512; A@5 2560+512; "
                               "free 3072+1024");
    observe(B, qb); /* clean, but on neither side a clean neighbour */
    ck_assert_str_eq(layout(), "A@2 0+1024; free 1024+1024; live 2048+512; A@5 2560+512; "
                               "free 3072+1024");
    observe(A, 2); /* joins the next */
    ck_assert_str_eq(layout(), "free 0+2048; live 2048+512; A@5 2560+512; free 3072+1024");
    qb = give(2048, B);
    observe(A, qa); /* joins the next only: the previous is B's */
    ck_assert_str_eq(layout(), "free 0+2048; B@6 2048+512; free 2560+1536");
    observe(B, qb); /* joins both */
    ck_assert_str_eq(layout(), "free 0+4096");
    end();
}
END_TEST

START_TEST(observing_goes_by_sequence) {
    begin(&bfc, 8192);
    for (size_t i = 0; i < 8; i++)
        take(512, i == 7 ? B : A); /* 0 to 4096 */
    give(2048, A);                 /* 1 */
    give(0, A);                    /* 2 */
    give(1024, A);                 /* 3 */
    ck_assert_str_eq(layout(),
                     "A@2 0+512; live 512+512; A@3 1024+512; live 1536+512; A@1 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    give(512, A); /* 4, joins 2 and 3: all wait for 4 */
    observe(A, 3);
    ck_assert_str_eq(layout(), "A@4 0+1536; live 1536+512; free 2048+512; live 2560+512; "
                               "live 3072+512; live 3584+512; free 4096+4096");
    /* what remains of a cut keeps its place: 5 is freed after the cut of 4 */
    ck_assert_uint_eq(take(512, A), 2048); /* the exact fit, clean */
    ck_assert_uint_eq(take(256, A), 0);    /* A@4 1536 is smaller than the clean 4096 */
    give(2560, A);                         /* 5 */
    ck_assert_str_eq(layout(), "live 0+256; A@4 256+1280; live 1536+512; live 2048+512; "
                               "A@5 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    observe(A, 4);
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; live 1536+512; live 2048+512; "
                               "A@5 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    observe(A, UINT64_MAX);
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; live 1536+512; live 2048+512; "
                               "free 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    give(1536, A); /* 6: what was observed before it was freed does not cover it */
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; A@6 1536+512; live 2048+512; "
                               "free 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    end();
}
END_TEST

START_TEST(best_fit_is_of_own_and_clean_together) {
    begin(&bfc, 16384);
    take(256, B);                           /* 0 */
    ck_assert_uint_eq(take(1024, A), 256);  /* will be A's */
    take(256, B);                           /* 1280 */
    ck_assert_uint_eq(take(1024, A), 1536); /* will be clean */
    take(256, B);                           /* 2560 */
    ck_assert_uint_eq(take(768, B), 2816);  /* will be B's */
    take(256, B);                           /* 3584 */
    observe(A, give(1536, A));
    give(256, A);
    give(2816, B);
    ck_assert_uint_eq(take(1024, A), 256);  /* equal sizes: the lower, its own */
    ck_assert_uint_eq(take(1024, A), 1536); /* then the clean one */
    give(1536, A);
    ck_assert_uint_eq(take(600, B), 2816); /* exact, its own */
    ck_assert_uint_eq(take(600, B), 3840); /* A's 1024 is not for B: from the clean end */
    end();
}
END_TEST

START_TEST(own_comes_before_clean) {
    static const struct weir_placement_rule own_first = {
        .granularity = 256, .split_waste = 256, .own_first = 1};

    begin(&own_first, 16384);
    ck_assert_uint_eq(take(4096, A), 0);   /* will be A's */
    take(256, B);                          /* 4096 */
    ck_assert_uint_eq(take(512, B), 4352); /* will be clean */
    take(256, B);                          /* 4864 */
    observe(B, give(4352, B));
    give(0, A);
    ck_assert_uint_eq(take(512, A), 0);     /* the clean one would be the tighter fit */
    ck_assert_uint_eq(take(512, B), 4352);  /* and is there for B */
    ck_assert_uint_eq(take(4096, A), 5120); /* its own does not hold that */
    ck_assert_uint_eq(take(3584, A), 512);
    ck_assert_uint_eq(take(512, A), 9216);
    end();
}
END_TEST

START_TEST(free_that_was_observed_already_is_clean) {
    begin(&bfc, 4096);
    take(512, A), take(512, B), take(512, A); /* 0, 512, 1024 */
    clock_of_frees = 9;
    give(0, A); /* 10 */
    observe(A, 10);
    ck_assert_int_eq(weir__placement_give(p, BASE + 1024, A, 10, NULL), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_str_eq(layout(), "free 0+512; live 512+512; free 1024+3072");
    end();
}
END_TEST

/* Stream 0 passed A's own chunk over; when A has freed the block it is that chunk's turn. */
START_TEST(what_stream_0_took_is_no_best_fit_of_its_owner) {
    begin(&bfc, 8192);
    ck_assert_uint_eq(take(1024, A), 0);
    ck_assert_uint_eq(take(512, A), 1024);
    ck_assert_uint_eq(take(512, B), 1536);
    give(0, A);
    ck_assert_uint_eq(take(2048, A), 2048);
    ck_assert_uint_eq(take(1024, 0), 4096);
    give_unseen(4096, A);
    ck_assert_uint_eq(take(1024, A), 0);
    ck_assert_uint_eq(take(1024, A), 4096);
    healthy();
    end();
}
END_TEST

START_TEST(late_sequence_counts_as_the_latest) {
    begin(&bfc, 4096);
    take(512, A), take(512, B), take(512, A), take(512, B); /* 0 to 2048 */
    clock_of_frees = 9;
    give(0, A); /* 10 */
    ck_assert_int_eq(weir__placement_give(p, BASE + 1024, A, 8, NULL), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_str_eq(layout(), "A@10 0+512; live 512+512; A@10 1024+512; live 1536+512; "
                               "free 2048+2048");
    end();
}
END_TEST

/* More streams than the table keeps: those with nothing left are forgotten, the others not. */
START_TEST(streams_come_and_go) {
    size_t at[40];

    begin(&bfc, MIB);
    take(256, A);
    for (uint64_t s = 100; s < 2100; s++) {
        size_t x = take(256, s);

        observe(s, give(x, s));
    }
    ck_assert_uint_lt(figures().host_bytes, 300000);
    for (size_t s = 0; s < 40; s++)
        at[s] = take(512, 5000 + s);
    for (size_t s = 0; s < 40; s++)
        give(at[s], 5000 + s);
    for (size_t s = 0; s < 40; s++)
        ck_assert_uint_eq(take(512, 5000 + s), at[s]);
    end();
}
END_TEST

/* ------------------------------------------------------------- second stream -- */

/* A has used up to 3072; B takes: what lies above the mark is clean, what lies below A's. */
START_TEST(second_stream_cuts_at_the_high_mark) {
    begin(&bfc, 8192);
    take(1024, A), take(512, A), take(1024, A), take(512, A); /* 0, 1024, 1536, 2560 */
    give(2560, A);                                            /* 1 */
    give(1536, A);                                            /* 2 */
    give(0, A);                                               /* 3 */
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; A@2 1536+6656");
    ck_assert_uint_eq(figures().extent, 3072);
    ck_assert_uint_eq(take(256, B), 3072);
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; A@2 1536+1536; live 3072+256; "
                               "free 3328+4864");
    ck_assert_uint_eq(figures().unobserved, 1024 + 1536);
    observe(A, 2);
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; free 1536+1536; live 3072+256; "
                               "free 3328+4864");
    end();
}
END_TEST

START_TEST(second_stream_may_come_with_a_free) {
    begin(&bfc, 4096);
    take(512, A), take(512, A), take(512, A); /* 0, 512, 1024 */
    give(0, A);                               /* 1 */
    give(1024, A);                            /* 2 */
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; A@2 1024+3072");
    give(512, B); /* 3 */
    ck_assert_str_eq(layout(), "A@1 0+512; B@3 512+512; A@2 1024+512; free 1536+2560");
    end();
}
END_TEST

START_TEST(what_was_observed_before_the_second_stream_is_clean) {
    begin(&bfc, 8192);
    for (size_t i = 0; i < 8; i++)
        take(512, A); /* 0 to 4096 */
    give(0, A);       /* 1 */
    give(1024, A);    /* 2 */
    observe(A, 2);
    give(2048, A); /* 3 */
    ck_assert_str_eq(layout(),
                     "free 0+512; live 512+512; free 1024+512; live 1536+512; A@3 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    ck_assert_uint_eq(take(512, B), 0);
    ck_assert_str_eq(layout(),
                     "live 0+512; live 512+512; free 1024+512; live 1536+512; A@3 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    end();
}
END_TEST

/* The space above the mark joined a freed block, which was then taken again: what is left of the
 * two was never used, and not a byte of it is A's. */
START_TEST(space_above_the_mark_is_nobodys) {
    begin(&bfc, 8192);
    take(512, A);
    give(0, A);
    take(512, A);
    ck_assert_uint_eq(figures().extent, 512);
    ck_assert_uint_eq(take(2048, B), 512);
    ck_assert_str_eq(layout(), "live 0+512; live 512+2048; free 2560+5632");
    ck_assert_uint_eq(figures().unobserved, 0);
    end();
}
END_TEST

/* The last chunk was used but is observed: nothing to cut. */
START_TEST(observed_end_stays_whole) {
    begin(&bfc, 4096);
    take(512, A), take(512, A);
    observe(A, give(512, A));
    ck_assert_int_eq(take_fails(4096, B), WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(layout(), "live 0+512; free 512+3584");
    end();
}
END_TEST

START_TEST(each_region_has_its_own_mark) {
    begin(&bfc, 2048);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 2048), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 4096), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take(512, A), 0);                 /* the lowest of two of 2048 */
    ck_assert_uint_eq(take_sized(1792, A, 2048), 8192); /* 2048 < 2 x 1792: whole */
    give(0, A);
    give(8192, A);
    ck_assert_str_eq(layout(), "A@1 0+2048; free 4096+4096; A@2 8192+2048");
    ck_assert_uint_eq(take(256, B), 512);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+256; free 768+1280; free 4096+4096; "
                               "A@2 8192+2048");
    end();
}
END_TEST

START_TEST(stream_0_is_a_second_stream) {
    begin(&bfc, 2048);
    take(512, A);
    give(0, A);
    ck_assert_str_eq(layout(), "A@1 0+2048");
    ck_assert_uint_eq(take(512, 0), 512);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; free 1024+1024");
    end();
}
END_TEST

/* Merged across and sorted: many tagged chunks in an order of their own. */
START_TEST(second_stream_orders_what_the_first_freed) {
    enum { N = 101 };

    begin(&bfc, MIB);
    for (size_t i = 0; i < 2 * N; i++)
        take(256, A);
    for (size_t i = 0; i < N; i++)
        give((i * 37 % N) * 512, A); /* sequence i + 1 at slot 37 i mod 101 */
    take(256, B);
    for (size_t i = 0; i < N; i++) {
        observe(A, i + 1);
        ck_assert_uint_eq(figures().unobserved, (N - 1 - i) * 256);
    }
    end();
}
END_TEST

/* ------------------------------------------------------------------- figures -- */

START_TEST(figures_add_up) {
    struct weir_placement_figures f;

    begin(&bfc, 8192);
    ck_assert_int_eq(weir__placement_add(p, BASE + 16384, 1024), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(take_sized(600, A, 1024), 16384); /* 1024 < 2 x 768 */
    ck_assert_uint_eq(take(300, A), 0);
    ck_assert_uint_eq(take(1000, A), 512);
    give(0, A);
    f = figures();
    ck_assert_uint_eq(f.regions, 2);
    ck_assert_uint_eq(f.total, 9216);
    ck_assert_uint_eq(f.used, 2048);
    ck_assert_uint_eq(f.requested, 1600);
    ck_assert_uint_eq(f.blocks, 2);
    ck_assert_uint_eq(f.free_chunks, 2);
    ck_assert_uint_eq(f.largest_free, 8192 - 1536);
    ck_assert_uint_eq(f.unobserved, 512);
    ck_assert_uint_eq(f.extent, 1536 + 1024);
    observe(A, 1);
    ck_assert_uint_eq(figures().unobserved, 0);
    take(256, B);
    give(512, B);
    f = figures();
    ck_assert_uint_eq(f.unobserved, 1024);
    ck_assert_uint_eq(f.largest_free, 8192 - 1536);
    end();
}
END_TEST

START_TEST(host_memory_follows_the_chunks) {
    begin(&bfc, 104 * GIB);
    ck_assert_uint_lt(figures().host_bytes, 100000); /* not the region's 2^29 granules */
    for (size_t i = 0; i < 100000; i++) {
        struct weir_placement_block block;

        MUST_EQUAL(weir__placement_take(p, 512 + i % 1000 * 1024, A, &block), WEIR_PLACEMENT_OK);
    }
    ck_assert_uint_lt(figures().host_bytes, 16 * MIB);
    for (size_t i = 0; i < 1000; i++)
        MUST_EQUAL(weir__placement_add(p, BASE + (i + 1000) * GIB, GIB), WEIR_PLACEMENT_OK);
    ck_assert_uint_lt(figures().host_bytes, 16 * MIB);
    end();
}
END_TEST

/* Every chunk of one size, none beside another: the order is by address alone. */
START_TEST(a_hundred_thousand_of_one_size) {
    enum { N = 100000 };
    struct weir_placement_block block;
    uint64_t q = 0;

    begin(&bfc, GIB);
    for (size_t i = 0; i < 2 * N; i++)
        MUST_EQUAL(weir__placement_take(p, 512, A, &block), WEIR_PLACEMENT_OK);
    for (size_t i = 0; i < N; i++) /* 7919 is a prime: every even block once, in a wild order */
        MUST_EQUAL(weir__placement_give(p, BASE + (i * 7919 % N) * 1024, A, ++q, NULL),
                   WEIR_PLACEMENT_OK);
    healthy();
    for (size_t i = 0; i < N; i++) {
        MUST_EQUAL(weir__placement_take(p, 512, A, &block), WEIR_PLACEMENT_OK);
        MUST_EQUAL(block.address, BASE + i * 1024);
    }
    end();
}
END_TEST

/* --------------------------------------------------------------------- model -- */

enum { PIECES = 1024, STREAMS = 5, REGIONS = 8 };

struct piece { /* a chunk; all pieces in one array, by address */
    uint64_t base;
    size_t size;
    size_t requested; /* 0: free */
    uint64_t stream;
    uint64_t sequence; /* of a free piece; 0: clean */
    int region;
};

struct model_stream {
    uint64_t id;
    uint64_t last;
    uint64_t observed;
};

static struct {
    struct weir_placement_rule rule;
    struct piece piece[PIECES];
    size_t pieces;
    uint64_t high[REGIONS]; /* by the number of a region, which a piece names */
    int used[REGIONS];
    struct model_stream stream[STREAMS];
    size_t streams;
    uint64_t only;
    int several;
} model;

static struct model_stream *model_stream(uint64_t id) {
    for (size_t i = 0; i < model.streams; i++)
        if (model.stream[i].id == id)
            return &model.stream[i];
    MUST(model.streams < STREAMS);
    model.stream[model.streams].id = id;
    return &model.stream[model.streams++];
}

static struct piece *model_insert(size_t at, struct piece piece) {
    MUST(model.pieces < PIECES);
    memmove(&model.piece[at + 1], &model.piece[at], (model.pieces - at) * sizeof piece);
    model.piece[at] = piece;
    model.pieces++;
    return &model.piece[at];
}

static void model_delete(size_t at) {
    model.pieces--;
    memmove(&model.piece[at], &model.piece[at + 1], (model.pieces - at) * sizeof model.piece[0]);
}

static int model_join(const struct piece *a, const struct piece *b) {
    if (a->region != b->region || a->requested != 0 || b->requested != 0)
        return 0;
    if (!model.several)
        return 1;
    if (a->sequence == 0 || b->sequence == 0)
        return a->sequence == b->sequence;
    return a->stream == b->stream;
}

static void model_coalesce(void) {
    for (size_t i = 1; i < model.pieces;) {
        struct piece *a = &model.piece[i - 1];
        struct piece *b = &model.piece[i];

        if (!model_join(a, b)) {
            i++;
            continue;
        }
        a->size += b->size;
        a->sequence = a->sequence > b->sequence ? a->sequence : b->sequence;
        model_delete(i);
    }
}

/* `a` is cut after `size` bytes; what is behind is as free as it was. */
static void model_cut(size_t at, size_t size) {
    struct piece rest = model.piece[at];

    rest.base += size;
    rest.size -= size;
    rest.requested = 0;
    model.piece[at].size = size;
    model_insert(at + 1, rest);
}

static void model_seen(uint64_t stream) {
    const struct model_stream *first;

    if (model.several || (stream != 0 && stream == model.only))
        return;
    if (model.only == 0 && stream != 0) {
        model.only = stream;
        return;
    }
    model.several = 1;
    if (model.only == 0)
        return;
    first = model_stream(model.only);
    for (size_t i = 0; i < model.pieces; i++) {
        struct piece *c = &model.piece[i];
        uint64_t high = model.high[c->region];

        if (c->requested != 0)
            continue;
        if (c->sequence <= first->observed || c->base >= high) {
            c->sequence = 0; /* observed, or nobody's so far: what it joined lies elsewhere */
            continue;
        }
        c->stream = model.only;
        if (c->base < high && high < c->base + c->size) {
            model_cut(i, (size_t)(high - c->base));
            model.piece[i + 1].sequence = 0;
            i++;
        }
    }
}

static int model_is_alone(size_t at) {
    return (at == 0 || model.piece[at - 1].region != model.piece[at].region) &&
           (at + 1 == model.pieces || model.piece[at + 1].region != model.piece[at].region);
}

/* Where a block goes; PIECES: nowhere.  `tagged`: among what the stream has freed alone. */
static size_t model_best(size_t size, uint64_t stream, size_t most, int tagged) {
    size_t best = PIECES;

    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        if (c->requested != 0 || c->size < size || (tagged && c->sequence == 0))
            continue;
        if (model.several && c->sequence != 0 && (stream == 0 || c->stream != stream))
            continue;
        if (c->size > most && model_is_alone(i))
            continue;
        if (best == PIECES || c->size < model.piece[best].size)
            best = i;
    }
    return best;
}

static int model_take(size_t bytes, uint64_t stream, size_t most,
                      struct weir_placement_block *out) {
    size_t size =
        (bytes + model.rule.granularity - 1) / model.rule.granularity * model.rule.granularity;
    size_t best = PIECES;
    struct piece *c;

    model_seen(stream);
    if (model.rule.own_first && model.several)
        best = model_best(size, stream, most, 1);
    if (best == PIECES)
        best = model_best(size, stream, most, 0);
    if (best == PIECES)
        return WEIR_PLACEMENT_NO_FIT;
    c = &model.piece[best];
    if (c->size >= 2 * size || c->size - size >= model.rule.split_waste)
        model_cut(best, size);
    c->requested = bytes;
    c->sequence = 0;
    c->stream = 0;
    if (c->base + c->size > model.high[c->region])
        model.high[c->region] = c->base + c->size;
    *out = (struct weir_placement_block){c->base, bytes, c->size};
    return WEIR_PLACEMENT_OK;
}

static int model_is_others(const struct piece *c, uint64_t stream) {
    return c->sequence != 0 && (stream == 0 || c->stream != stream);
}

static int model_may_have(const struct piece *c, uint64_t stream) {
    return c->requested == 0 &&
           (!model_is_others(c, stream) || can_be_waited_for(NULL, c->stream, c->sequence));
}

/* The pieces that end with `end` and hold `size` bytes, as few as do: the first, and their bytes; 0: none. */
static size_t model_run(size_t end, size_t size, uint64_t stream, size_t *first) {
    size_t sum = 0;

    for (size_t i = end + 1; i-- > 0;) {
        const struct piece *c = &model.piece[i];

        if (c->region != model.piece[end].region || !model_may_have(c, stream))
            return 0;
        sum += c->size;
        *first = i;
        if (sum >= size)
            return sum;
    }
    return 0;
}

static int model_take_behind(size_t bytes, uint64_t stream, struct weir_placement_block *out) {
    size_t size =
        (bytes + model.rule.granularity - 1) / model.rule.granularity * model.rule.granularity;
    size_t best = 0, at = 0, first = 0;
    struct piece *c;

    model_seen(stream);
    for (size_t i = 0; model.several && i < model.pieces; i++) {
        size_t sum = model_run(i, size, stream, &first);

        if (sum > 0 && (best == 0 || sum < best)) {
            best = sum;
            at = first;
        }
    }
    if (best == 0)
        return WEIR_PLACEMENT_NO_FIT;
    for (size_t i = at, got = 0; got < size; got += model.piece[i++].size)
        if (model_is_others(&model.piece[i], stream))
            note_wait(NULL, model.piece[i].stream, model.piece[i].sequence);
    while (model.piece[at].size < size) { /* the next one's beginning, or all of it */
        size_t more = size - model.piece[at].size;

        if (model.piece[at + 1].size > more)
            model_cut(at + 1, more);
        model.piece[at].size += model.piece[at + 1].size;
        model_delete(at + 1);
    }
    if (model.piece[at].size > size)
        model_cut(at, size);
    c = &model.piece[at];
    c->requested = bytes;
    c->sequence = c->stream = 0;
    if (c->base + c->size > model.high[c->region])
        model.high[c->region] = c->base + c->size;
    *out = (struct weir_placement_block){c->base, bytes, c->size};
    return WEIR_PLACEMENT_OK;
}

static int model_give(uint64_t address, uint64_t stream, uint64_t sequence,
                      struct weir_placement_block *out) {
    for (size_t i = 0; i < model.pieces; i++) {
        struct piece *c = &model.piece[i];
        struct model_stream *s;

        if (address < c->base || address - c->base >= c->size)
            continue;
        if (c->requested == 0)
            return WEIR_PLACEMENT_FREE;
        *out = (struct weir_placement_block){c->base, c->requested, c->size};
        if (address != c->base)
            return WEIR_PLACEMENT_INTERIOR;
        model_seen(stream);
        for (i = 0; model.piece[i].base != address; i++)
            ; /* the second stream may have moved it */
        c = &model.piece[i];
        s = model_stream(stream);
        c->requested = 0;
        c->stream = stream;
        c->sequence = sequence <= s->observed ? 0 : sequence < s->last ? s->last : sequence;
        s->last = c->sequence > s->last ? c->sequence : s->last;
        model_coalesce();
        return WEIR_PLACEMENT_OK;
    }
    return WEIR_PLACEMENT_FOREIGN;
}

static void model_observe(uint64_t stream, uint64_t sequence) {
    struct model_stream *s = model_stream(stream);

    if (sequence > s->last)
        sequence = s->last;
    if (sequence > s->observed)
        s->observed = sequence;
    if (!model.several)
        return;
    for (size_t i = 0; i < model.pieces; i++) {
        struct piece *c = &model.piece[i];

        if (c->requested == 0 && c->stream == stream && c->sequence <= s->observed)
            c->sequence = 0;
    }
    model_coalesce();
}

static void model_add(uint64_t base, size_t bytes) {
    struct piece piece = {.base = base, .size = bytes};
    size_t at = 0;

    while (model.used[piece.region])
        piece.region++;
    MUST(piece.region < REGIONS);
    model.used[piece.region] = 1;
    model.high[piece.region] = base;
    while (at < model.pieces && model.piece[at].base < base)
        at++;
    model_insert(at, piece);
}

static void model_add_freed(uint64_t base, size_t bytes, uint64_t stream, uint64_t sequence) {
    struct weir_placement_block was;

    model_add(base, bytes);
    for (size_t i = 0; i < model.pieces; i++) {
        if (model.piece[i].base == base) {
            model.piece[i].requested = bytes;
            model.high[model.piece[i].region] = base + bytes;
        }
    }
    MUST_EQUAL(model_give(base, stream, sequence, &was), WEIR_PLACEMENT_OK);
}

static int model_waits(const struct piece *c) {
    return c->sequence >
           (model.several || model.only == 0 ? 0 : model_stream(model.only)->observed);
}

/* The first piece of the region that starts at `base`, or NULL. */
static const struct piece *model_region(uint64_t base) {
    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        if (c->base == base && (i == 0 || c[-1].region != c->region))
            return c;
    }
    return NULL;
}

/* All of its region, which may be removed. */
static int model_is_idle(const struct piece *first) {
    const struct piece *next = first + 1;

    return first->requested == 0 && !model_waits(first) &&
           (next == model.piece + model.pieces || next->region != first->region);
}

static int model_remove(uint64_t base) {
    const struct piece *first = model_region(base);

    if (first == NULL)
        return WEIR_PLACEMENT_FOREIGN;
    if (!model_is_idle(first))
        return WEIR_PLACEMENT_BUSY;
    model.used[first->region] = 0;
    model_delete((size_t)(first - model.piece));
    return WEIR_PLACEMENT_OK;
}

static int model_withdraw(uint64_t base, uint64_t stream) {
    const struct piece *first = model_region(base);
    int region;

    if (first == NULL)
        return WEIR_PLACEMENT_FOREIGN;
    region = first->region;
    model_seen(stream);
    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        if (c->region != region)
            continue;
        if (c->requested != 0 ||
            (model.several && c->sequence != 0 && (stream == 0 || c->stream != stream)))
            return WEIR_PLACEMENT_BUSY;
    }
    for (size_t i = model.pieces; i-- > 0;)
        if (model.piece[i].region == region)
            model_delete(i);
    model.used[region] = 0;
    return WEIR_PLACEMENT_OK;
}

/* -------------------------------------------------------------- differential -- */

static uint64_t random_state;

static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * UINT64_C(0x2545F4914F6CDD1D) >> 16;
}

static size_t random_below(size_t limit) {
    return (size_t)(random_next() % limit);
}

static int same_piece(void *context, const struct weir_placement_span *span) {
    size_t *at = context;
    const struct piece *c = &model.piece[*at];
    int waits = c->requested == 0 && model_waits(c);

    MUST(*at < model.pieces);
    MUST_EQUAL(span->address, c->base);
    MUST_EQUAL(span->size, c->size);
    MUST_EQUAL(span->requested, c->requested);
    MUST_EQUAL(span->live, c->requested != 0);
    MUST_EQUAL(span->sequence, waits ? c->sequence : 0);
    MUST_EQUAL(span->stream, !waits ? 0 : model.several ? c->stream : model.only);
    ++*at;
    return 0;
}

/* A free piece, each but once. */
static void same_free_piece(void *context, const struct weir_placement_span *span) {
    size_t *found = context;
    size_t i = 0;

    while (i < model.pieces && model.piece[i].base != span->address)
        i++;
    MUST(i < model.pieces && model.piece[i].requested == 0);
    (void)same_piece(&i, span);
    *found += span->size;
}

static void same_layout(void) {
    struct weir_placement_figures f = figures();
    size_t at = 0;
    size_t used = 0;
    size_t unobserved = 0;
    size_t largest = 0, found = 0, idle = 0;

    weir__placement_walk(p, same_piece, &at);
    MUST_EQUAL(at, model.pieces);
    weir__placement_walk_free(p, same_free_piece, &found);
    for (size_t i = 0; i < model.pieces; i++)
        idle += model.piece[i].requested == 0 ? model.piece[i].size : 0;
    MUST_EQUAL(found, idle);
    for (size_t i = 0; i < model.pieces; i++) {
        const struct piece *c = &model.piece[i];

        used += c->requested != 0 ? c->size : 0;
        largest = c->requested == 0 && c->size > largest ? c->size : largest;
        unobserved += c->requested == 0 && model_waits(c) ? c->size : 0;
    }
    MUST_EQUAL(f.used, used);
    MUST_EQUAL(f.largest_free, largest);
    if (model.several)
        MUST_EQUAL(f.unobserved, unobserved);
    healthy();
}

static size_t random_bytes(void) {
    size_t limit = (size_t)1 << (4 + random_below(13));

    return 1 + random_below(limit);
}

/* What was taken last; the next step may well give it back, or take its size again. */
static struct weir_placement_block last;
static uint64_t last_stream;
static size_t last_most;

/* Some leave whole regions from a size on alone. */
static void differ_take(uint64_t stream, size_t bytes) {
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};
    size_t most = SIZE_MAX;
    int expected;

    if (random_below(4) == 0)
        most = random_below(2) == 0 ? random_below(64 * KIB) : last_most;
    expected = model_take(bytes, stream, most, &theirs);
    last_most = most;
    if (most == SIZE_MAX)
        MUST_EQUAL(weir__placement_take(p, bytes, stream, &ours), expected);
    else
        MUST_EQUAL(weir__placement_take_within(p, bytes, stream, most, &ours), expected);
    if (ours.size != 0) {
        last = ours;
        last_stream = stream;
    }
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

static void differ_take_behind(uint64_t stream, size_t bytes) {
    static const struct weir_placement_waits waits = {can_be_waited_for, note_wait, NULL};
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};
    char expected[sizeof waited_for];
    int result;

    waited_for[0] = '\0';
    result = model_take_behind(bytes, stream, &theirs);
    memcpy(expected, waited_for, sizeof expected);
    waited_for[0] = '\0';
    MUST_EQUAL(weir__placement_take_behind(p, bytes, stream, &waits, &ours), result);
    MUST(strcmp(expected, waited_for) == 0);
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

/* A live piece as a rule. */
static const struct piece *random_piece(void) {
    const struct piece *c = &model.piece[random_below(model.pieces)];

    for (int i = 0; i < 5 && c->requested == 0; i++)
        c = &model.piece[random_below(model.pieces)];
    return c;
}

static void differ_give_at(uint64_t address, uint64_t stream, uint64_t sequence) {
    struct weir_placement_block ours = {0};
    struct weir_placement_block theirs = {0};
    int expected = model_give(address, stream, sequence, &theirs);

    MUST_EQUAL(weir__placement_find(p, address, &ours), expected);
    MUST_EQUAL(weir__placement_give(p, address, stream, sequence, &ours), expected);
    MUST_EQUAL(ours.address, theirs.address);
    MUST_EQUAL(ours.requested, theirs.requested);
    MUST_EQUAL(ours.size, theirs.size);
}

static void differ_give(uint64_t stream, uint64_t sequence) {
    const struct piece *c = random_piece();

    differ_give_at(c->base + (random_below(40) == 0 ? random_below(2 * c->size) : 0), stream,
                   sequence);
}

/* A block comes and goes, again and again: what a placement may take a short cut for. */
static void differ_again(uint64_t stream, uint64_t *sequence) {
    size_t bytes = random_bytes();

    differ_take(stream, bytes);
    for (size_t i = random_below(4); i > 0; i--) {
        if (random_below(8) == 0)
            stream = last_stream;
        differ_give_at(last.address, stream, ++*sequence);
        if (random_below(8) == 0) {
            weir__placement_observe(p, stream, *sequence);
            model_observe(stream, *sequence);
        }
        if (random_below(4) == 0 && last.size != 0)
            bytes = random_below(2) == 0 ? last.requested : last.size;
        differ_take(stream, bytes);
    }
}

/* Adds a region, for all or for one stream, at one of eight places that touch each other, or tries to
 * remove or withdraw the one
 * that is there, or all but for one. */
static void differ_region(uint64_t stream, uint64_t sequence) {
    int for_one = random_below(2) == 0;
    uint64_t base = BASE + random_below(8) * 64 * KIB;
    size_t bytes;
    int taken = 0;

    if (random_below(2) == 0) {
        for (size_t i = random_below(2) == 0 ? 7 : 0; i < 8 && model.pieces > 1; i++) {
            if (for_one)
                MUST_EQUAL(weir__placement_withdraw(p, base, stream), model_withdraw(base, stream));
            else
                MUST_EQUAL(weir__placement_remove(p, base), model_remove(base));
            base = BASE + i * 64 * KIB;
        }
        if (model.pieces > 0)
            return;
    }
    bytes = (1 + random_below(256)) * G;
    for (size_t i = 0; i < model.pieces; i++)
        taken |=
            model.piece[i].base < base + bytes && base < model.piece[i].base + model.piece[i].size;
    if (for_one) {
        MUST_EQUAL(weir__placement_add_freed(p, base, bytes, stream, sequence),
                   taken ? WEIR_PLACEMENT_INVALID : WEIR_PLACEMENT_OK);
        if (!taken)
            model_add_freed(base, bytes, stream, sequence);
        return;
    }
    MUST_EQUAL(weir__placement_add(p, base, bytes),
               taken ? WEIR_PLACEMENT_INVALID : WEIR_PLACEMENT_OK);
    if (!taken)
        model_add(base, bytes);
}

/* `steps` random operations by `streams` streams, stream 0 among them from four on.  The layouts
 * are compared after each step in `look`. */
static void differ(const struct weir_placement_rule *rule, uint64_t seed, size_t streams,
                   size_t steps, size_t look) {
    static const uint64_t ids[] = {A, B, C, 0, 1};
    uint64_t sequence = 0;

    memset(&model, 0, sizeof model);
    model.rule = *rule;
    random_state = seed;
    MUST_EQUAL(weir__placement_create(rule, &p), WEIR_PLACEMENT_OK);
    MUST_EQUAL(weir__placement_add(p, BASE, 64 * KIB), WEIR_PLACEMENT_OK);
    model_add(BASE, 64 * KIB);
    for (size_t i = 0; i < steps; i++) {
        uint64_t stream = ids[random_below(streams)];
        size_t what = random_below(100);
        size_t takes = i / 300 % 2 == 0 ? 55 : 35; /* the region fills and empties in turn */

        sequence++;
        if (what < takes && random_below(12) == 0) {
            differ_take_behind(stream, random_bytes());
        } else if (what < takes) {
            differ_take(stream, random_bytes());
        } else if (what < 88) {
            uint64_t late = random_below(30) == 0 ? 1 + random_below(60) : 0;

            differ_give(stream, late < sequence ? sequence - late : sequence);
        } else if (what < 92) {
            differ_again(stream, &sequence);
        } else if (what < 97) {
            uint64_t past = sequence - random_below(sequence < 60 ? sequence : 60);

            weir__placement_observe(p, stream, past);
            model_observe(stream, past);
        } else {
            differ_region(stream, sequence);
        }
        /* To look may undo a short cut: runs of steps without a look are tested too. */
        if (look == 1 || random_below(look) == 0)
            same_layout();
    }
    same_layout();
    end();
}

static uint64_t test_seed(int i) {
    const char *text = getenv("WEIR_TEST_SEED");

    return (text == NULL ? 20250101ULL : strtoull(text, NULL, 0)) * 1000 + (unsigned)i + 1;
}

static const struct weir_placement_rule rules[] = {
    {.granularity = 256, .split_waste = 128 * MIB},
    {.granularity = 256, .split_waste = 4096},
    {.granularity = 256, .split_waste = 256},
    {.granularity = 16, .split_waste = 128 * MIB},
    {.granularity = 256, .split_waste = 256, .own_first = 1},
};
enum { RULES = sizeof rules / sizeof rules[0] };

START_TEST(one_stream_as_the_model) {
    differ(&rules[_i % RULES], test_seed(_i), 1, 25000, _i < 4 ? 1 : 7);
}
END_TEST

START_TEST(streams_as_the_model) {
    differ(&rules[_i % RULES], test_seed(100 + _i), 2 + (size_t)_i % 4, 25000, _i < 8 ? 1 : 7);
}
END_TEST

/* The second stream comes again and again, each time to another layout. */
START_TEST(second_streams_as_the_model) {
    for (int i = 0; i < 100; i++)
        differ(&rules[i % RULES], test_seed(1000 + 100 * _i + i), 2 + (size_t)(i % 2) * 2,
               20 + (size_t)i, 1 + (size_t)_i);
}
END_TEST

/* ------------------------------------------------------------ refused memory -- */

/* Refuses request `refuse_at`, and all later ones too if `refuse_on`. */
static struct {
    long requests;
    long refuse_at;
    int refuse_on;
    long held;
} memory;

static void *resize(void *context, void *old, size_t bytes) {
    void *grown;

    MUST(context == &memory);
    if (bytes == 0) {
        memory.held -= old != NULL;
        free(old);
        return NULL;
    }
    memory.requests++;
    if (memory.requests == memory.refuse_at ||
        (memory.refuse_on && memory.requests > memory.refuse_at))
        return NULL;
    grown = realloc(old, bytes);
    MUST(grown != NULL);
    memory.held += old == NULL;
    return grown;
}

/* A rule whose memory is this seam's; what goes back is overwritten before. */
static void *resize_and_spoil(void *context, void *old, size_t bytes) {
    size_t *head = old == NULL ? NULL : (size_t *)old - 2;

    if (head != NULL && bytes == 0)
        memset(old, 0xa5, *head);
    head = resize(context, head, bytes == 0 ? 0 : bytes + 2 * sizeof *head);
    if (head == NULL)
        return NULL;
    *head = bytes;
    return head + 2;
}

static void begin_spoiling(size_t bytes) {
    struct weir_placement_rule rule = bfc;

    memset(&memory, 0, sizeof memory);
    rule.resize = resize_and_spoil;
    rule.context = &memory;
    begin(&rule, bytes);
}

static void refuse_from_now_on(int refuse) {
    memory.refuse_at = refuse ? memory.requests + 1 : 0;
    memory.refuse_on = refuse;
}

/* The table of streams is full when memory runs out, so what stream 108 frees is a stray.  The next
 * take makes room for 108, and so forgets whoever has nothing tagged: the very stream that takes. */
START_TEST(a_take_may_forget_its_own_stream) {
    uint64_t q = 0;
    size_t at[9];

    begin_spoiling(MIB);
    for (size_t i = 9; i-- > 0;) {
        take(512, 100);
        at[i] = take(512, 100 + i);
    }
    for (size_t i = 0; i < 8; i++)
        q = give(at[i], 100 + i);
    observe(107, q);
    refuse_from_now_on(1);
    give(at[8], 108);
    refuse_from_now_on(0);
    ck_assert_uint_eq(take(512, 107), at[7]); /* and not at[8], which is lower, but tagged by 108 */
    ck_assert_uint_eq(take(512, 108), at[8]);
    end();
}
END_TEST

/* Frees next to each other that could not be noted are one free chunk, which waits for the last. */
START_TEST(unlisted_chunks_join_each_other) {
    uint64_t first;

    begin_spoiling(4096);
    ck_assert_int_eq(weir__placement_add(p, BASE + 65536, 4096), WEIR_PLACEMENT_OK);
    take(512, A), take(512, A), take(512, A), take(2560, B);
    refuse_from_now_on(1);
    first = give(0, C);
    give(512, C);
    ck_assert_str_eq(layout(), "C@2 0+1024; live 1024+512; live 1536+2560; free 65536+4096");
    refuse_from_now_on(0);
    give(1024, C);
    ck_assert_str_eq(layout(), "C@3 0+1536; live 1536+2560; free 65536+4096");
    ck_assert_uint_eq(take(512, A), 65536);
    observe(C, first);
    ck_assert_str_eq(layout(), "C@3 0+1536; live 1536+2560; live 65536+512; free 66048+3584");
    ck_assert_uint_eq(take(1536, C), 0);
    end();
}
END_TEST

/* A free that comes late joins a stray that its stream does not know of: both wait for the stray,
 * and once that was observed the region can go. */
START_TEST(late_frees_join_unlisted_chunks) {
    begin_spoiling(4096);
    take(512, A), take(3584, B);
    refuse_from_now_on(1);
    MUST_EQUAL(weir__placement_give(p, BASE, C, 9, NULL), WEIR_PLACEMENT_OK);
    healthy();
    refuse_from_now_on(0);
    MUST_EQUAL(weir__placement_give(p, BASE + 512, C, 3, NULL), WEIR_PLACEMENT_OK);
    healthy();
    ck_assert_str_eq(layout(), "C@9 0+4096");
    observe(C, 3);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_BUSY);
    observe(C, 9);
    ck_assert_int_eq(weir__placement_remove(p, BASE), WEIR_PLACEMENT_OK);
    end();
}
END_TEST

/* One random step; what fails for want of memory must have changed nothing. */
static void short_step(uint64_t *live, size_t count, uint64_t stream) {
    struct weir_placement_figures before = figures();
    struct weir_placement_block block;
    size_t at = random_below(count);
    int status;

    if (live[at] != 0) {
        status = weir__placement_give(p, live[at], stream, ++clock_of_frees, &block);
        MUST_EQUAL(status, WEIR_PLACEMENT_OK); /* never for want of memory */
        MUST_EQUAL(block.address, live[at]);
        live[at] = 0;
    } else {
        status = weir__placement_take(p, random_bytes() * 16, stream, &block);
        if (status == WEIR_PLACEMENT_OK) {
            live[at] = block.address;
        } else {
            MUST(status == WEIR_PLACEMENT_NO_MEMORY || status == WEIR_PLACEMENT_NO_FIT);
            MUST_EQUAL(figures().used, before.used);
            MUST_EQUAL(figures().requested, before.requested);
            MUST_EQUAL(figures().blocks, before.blocks);
        }
    }
    if (random_below(8) == 0)
        weir__placement_observe(p, stream, clock_of_frees - random_below(8));
    if (random_below(4) == 0)
        healthy();
}

/* Everything comes home, and the regions can go, whether memory is back by then or not. */
static void short_end(uint64_t *live, size_t count, int back) {
    struct weir_placement_block block;

    if (back)
        refuse_from_now_on(0);
    for (size_t i = 0; i < count; i++)
        if (live[i] != 0)
            give((size_t)(live[i] - BASE), A);
    for (uint64_t s = 0; s < 100; s++)
        observe(s, UINT64_MAX);
    if (back && weir__placement_take(p, 1, A, &block) == WEIR_PLACEMENT_OK)
        observe(A, give((size_t)(block.address - BASE), A));
    MUST_EQUAL(figures().unobserved, 0);
    MUST_EQUAL(figures().free_chunks, figures().regions);
    for (size_t i = 0; i < 800; i += 150)
        MUST(weir__placement_remove(p, BASE + i * 64 * KIB) != WEIR_PLACEMENT_BUSY);
    MUST_EQUAL(figures().regions, 0);
    end();
    MUST_EQUAL(memory.held, 0);
}

/* A run in which request `refuse_at` is refused; 1 if there was such a request.  `back`: memory is
 * there again at the end. */
static int short_run(long refuse_at, int refuse_on, int back) {
    struct weir_placement_rule rule = bfc;
    uint64_t live[150] = {0};
    int reached;

    memset(&memory, 0, sizeof memory);
    memory.refuse_at = refuse_at;
    memory.refuse_on = refuse_on;
    clock_of_frees = 0;
    random_state = test_seed(7);
    rule.resize = resize;
    rule.context = &memory;
    p = NULL;
    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK) {
        MUST(p == NULL);
        return 1;
    }
    for (size_t i = 0; i < 800; i++) {
        /* one stream, then two, then dozens */
        uint64_t stream = i < 200 ? A : i < 400 ? (i % 3 == 0 ? B : A) : random_below(60);
        size_t regions = figures().regions;

        if (i % 150 == 0 && weir__placement_add(p, BASE + i * 64 * KIB, 4 * MIB) != 0)
            MUST_EQUAL(figures().regions, regions);
        short_step(live, sizeof live / sizeof live[0], stream);
    }
    reached = memory.requests >= refuse_at;
    short_end(live, sizeof live / sizeof live[0], back);
    return reached;
}

START_TEST(any_one_request_may_be_refused) {
    long n = 1;

    while (short_run(n, 0, 1))
        n++;
    ck_assert_int_gt(n, 40); /* the seam is in use */
}
END_TEST

START_TEST(all_requests_from_one_on_may_be_refused) {
    long n = 1;

    while (short_run(n, 1, _i))
        n++;
    ck_assert_int_gt(n, 40);
}
END_TEST

/* ---------------------------------------------------------------------- main -- */

static void add_layout_tests(Suite *suite) {
    TCase *rule = tcase_create("rules"), *fit = tcase_create("fit"),
          *region = tcase_create("regions"), *figure = tcase_create("figures");

    tcase_add_test(rule, rules_that_make_no_sense_are_refused);
    tcase_add_test(rule, regions_must_be_multiples_and_apart);
    tcase_add_test(rule, an_empty_placement_has_nothing);
    tcase_add_test(rule, blocks_follow_each_other_rounded_up);
    tcase_add_test(rule, sizes_that_cannot_be_are_told_apart);
    tcase_add_test(rule, granularity_may_be_one);
    suite_add_tcase(suite, rule);

    tcase_add_test(fit, cut_from_twice_the_size_on);
    tcase_add_test(fit, cut_when_too_much_would_be_wasted);
    tcase_add_test(fit, waste_of_one_granule_always_cuts);
    tcase_add_test(fit, waste_need_not_be_a_multiple);
    tcase_add_test(fit, smallest_that_fits_is_taken);
    tcase_add_test(fit, lowest_address_of_equals_is_taken);
    tcase_add_test(fit, lowest_address_of_equals_across_regions);
    tcase_add_test(fit, size_decides_before_address_within_an_octave);
    tcase_add_test(fit, freed_chunk_joins_the_next);
    tcase_add_test(fit, freed_chunk_joins_the_previous);
    tcase_add_test(fit, freed_chunk_joins_both);
    suite_add_tcase(suite, fit);

    tcase_add_test(region, regions_never_join);
    tcase_add_test(region, idle_regions_can_be_removed);
    tcase_add_test(region, tagged_regions_are_busy);
    tcase_add_loop_test(region, a_block_can_name_its_address, 0, 2);
    tcase_add_test(region, whole_regions_can_be_passed_over);
    tcase_add_test(region, bounds_hold_for_what_comes_again);
    tcase_add_test(region, regions_are_withdrawn_by_whom_they_serve);
    tcase_add_test(region, the_only_stream_withdraws_at_once);
    tcase_add_test(region, a_region_may_come_in_one_streams_order);
    tcase_add_test(region, wrong_addresses_are_diagnosed);
    tcase_add_test(region, block_that_comes_and_goes_is_free);
    tcase_add_test(region, new_region_counts_for_the_size_that_just_went);
    tcase_add_test(region, wrong_frees_bring_no_stream);
    suite_add_tcase(suite, region);

    tcase_set_timeout(figure, 60);
    tcase_add_test(figure, figures_add_up);
    tcase_add_test(figure, host_memory_follows_the_chunks);
    tcase_add_test(figure, a_hundred_thousand_of_one_size);
    suite_add_tcase(suite, figure);
}

static void add_stream_tests(Suite *suite) {
    TCase *tags = tcase_create("tags"), *second = tcase_create("second stream");

    tcase_add_test(tags, own_stream_is_served_at_once_others_when_observed);
    tcase_add_test(tags, behind_others_a_block_lies_across_chunks);
    tcase_add_test(tags, stream_0_waits_and_makes_wait);
    tcase_add_test(tags, only_like_tags_join);
    tcase_add_test(tags, observing_goes_by_sequence);
    tcase_add_test(tags, best_fit_is_of_own_and_clean_together);
    tcase_add_test(tags, own_comes_before_clean);
    tcase_add_test(tags, free_that_was_observed_already_is_clean);
    tcase_add_test(tags, what_stream_0_took_is_no_best_fit_of_its_owner);
    tcase_add_test(tags, late_sequence_counts_as_the_latest);
    tcase_add_test(tags, streams_come_and_go);
    suite_add_tcase(suite, tags);

    tcase_add_test(second, second_stream_cuts_at_the_high_mark);
    tcase_add_test(second, second_stream_may_come_with_a_free);
    tcase_add_test(second, what_was_observed_before_the_second_stream_is_clean);
    tcase_add_test(second, space_above_the_mark_is_nobodys);
    tcase_add_test(second, observed_end_stays_whole);
    tcase_add_test(second, each_region_has_its_own_mark);
    tcase_add_test(second, stream_0_is_a_second_stream);
    tcase_add_test(second, second_stream_orders_what_the_first_freed);
    suite_add_tcase(suite, second);
}

static void add_random_tests(Suite *suite) {
    TCase *model_case = tcase_create("model"), *memory_case = tcase_create("memory");

    tcase_set_timeout(model_case, 120);
    tcase_add_loop_test(model_case, one_stream_as_the_model, 0, 12);
    tcase_add_loop_test(model_case, streams_as_the_model, 0, 16);
    tcase_add_loop_test(model_case, second_streams_as_the_model, 0, 4);
    suite_add_tcase(suite, model_case);

    tcase_set_timeout(memory_case, 120);
    tcase_add_test(memory_case, a_take_may_forget_its_own_stream);
    tcase_add_test(memory_case, unlisted_chunks_join_each_other);
    tcase_add_test(memory_case, late_frees_join_unlisted_chunks);
    tcase_add_test(memory_case, any_one_request_may_be_refused);
    tcase_add_loop_test(memory_case, all_requests_from_one_on_may_be_refused, 0, 2);
    suite_add_tcase(suite, memory_case);
}

int main(void) {
    Suite *suite = suite_create("placement");

    add_layout_tests(suite);
    add_stream_tests(suite);
    add_random_tests(suite);
    return run_suite(suite, CK_FORK_GETENV);
}
