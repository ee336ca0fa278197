/* SPDX-License-Identifier: MIT */
/* test_tags.c: which stream a free chunk belongs to, by the tags of placement.h. */
#include "tests/fixtures/placements.h"

CASE("tags", 60, NULL, end_placement_if_there);

TEST(own_stream_is_served_at_once_others_when_observed) {
    begin_placement(&bfc, 2048);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    ck_assert_uint_eq(alloc_offset(1024, B), 1024);
    uint64_t q = free_offset(0, A);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    ck_assert_int_eq(take_fails(512, 0), WEIR_PLACEMENT_NO_FIT);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    ck_assert_str_eq(layout(), "live 0+1024; live 1024+1024");
    q = free_offset(0, A);
    observe_frees(A, q - 1);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    observe_frees(B, q);
    ck_assert_int_eq(take_fails(512, B), WEIR_PLACEMENT_NO_FIT);
    observe_frees(A, q);
    ck_assert_str_eq(layout(), "free 0+1024; live 1024+1024");
    ck_assert_uint_eq(alloc_offset(512, B), 0);
}

static int all_can_be_waited_for(void *context, uint64_t stream, uint64_t sequence) {
    (void)context;
    (void)stream;
    (void)sequence;
    return 1;
}

/* Adjacent free chunks of several streams form one block for a stream that waits for them.  The rest of a chunk keeps
 * its tag.  A refused wait changes nothing. */
TEST(behind_others_a_block_lies_across_chunks) {
    struct weir_placement_waits waits = {all_can_be_waited_for, note_wait, NULL};
    struct weir_placement_block block = {1, 2, 3};
    int refuses;

    begin_placement(&bfc, 4096);
    for (size_t i = 0; i < 4; i++)
        ck_assert_uint_eq(alloc_offset(1024, i < 2 ? A : B), i * 1024);
    free_offset(1024, A);
    free_offset(2048, B);
    ck_assert_str_eq(layout(), "live 0+1024; A@1 1024+1024; B@2 2048+1024; live 3072+1024");
    ck_assert_int_eq(take_fails(1536, B), WEIR_PLACEMENT_NO_FIT);
    waits.context = &refuses;
    ck_assert_int_eq(weir__placement_alloc_wait(p, 1536, record_of(B), &waits, &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(waited_for, "11@1 ");
    ck_assert_uint_eq(block.address, 1);
    waits.context = NULL;
    waited_for[0] = '\0';
    ck_assert_int_eq(weir__placement_alloc_wait(p, 4096, record_of(B), &waits, &block),
                     WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(waited_for, "");
    ck_assert_int_eq(weir__placement_alloc_wait(p, 1536, record_of(B), &waits, &block),
                     WEIR_PLACEMENT_OK);
    ck_assert_str_eq(waited_for, "11@1 ");
    ck_assert_uint_eq(block.address - BASE, 1024);
    ck_assert_uint_eq(block.size, 1536);
    ck_assert_str_eq(layout(), "live 0+1024; live 1024+1536; B@2 2560+512; live 3072+1024");
    waited_for[0] = '\0';
    ck_assert_int_eq(weir__placement_alloc_wait(p, 512, record_of(0), &waits, &block),
                     WEIR_PLACEMENT_OK);
    ck_assert_str_eq(waited_for, "22@2 ");
}

TEST(stream_0_waits_and_makes_wait) {
    begin_placement(&bfc, 2048);
    ck_assert_uint_eq(alloc_offset(512, 0), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 512);
    uint64_t q = free_offset(0, 0);
    ck_assert_str_eq(layout(), "?@1 0+512; live 512+512; free 1024+1024");
    ck_assert_uint_eq(alloc_offset(512, 0), 1024); /* not its own free chunk */
    ck_assert_uint_eq(alloc_offset(512, A), 1536);
    ck_assert_int_eq(take_fails(512, A), WEIR_PLACEMENT_NO_FIT);
    free_offset(512, A);
    ck_assert_int_eq(take_fails(512, 0), WEIR_PLACEMENT_NO_FIT);
    observe_frees(0, q);
    ck_assert_str_eq(layout(), "free 0+512; A@2 512+512; live 1024+512; live 1536+512");
    ck_assert_uint_eq(alloc_offset(512, 0), 0);
}

TEST(only_like_tags_join) {
    begin_placement(&bfc, 4096);
    for (size_t i = 0; i < 6; i++)
        alloc_offset(512, i % 2 == 0 ? A : B); /* 0 to 3072; free 3072+1024 */
    free_offset(0, A);
    free_offset(512, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; live 1024+512; live 1536+512; live 2048+512; "
                               "live 2560+512; free 3072+1024");
    free_offset(1024, B);
    uint64_t qb = free_offset(1536, B);
    uint64_t qa = free_offset(2560, A);
    ck_assert_str_eq(layout(), "A@2 0+1024; B@4 1024+1024; live 2048+512; A@5 2560+512; "
                               "free 3072+1024");
    observe_frees(B, qb); /* clean, but on neither side a clean neighbour */
    ck_assert_str_eq(layout(), "A@2 0+1024; free 1024+1024; live 2048+512; A@5 2560+512; "
                               "free 3072+1024");
    observe_frees(A, 2); /* joins the next */
    ck_assert_str_eq(layout(), "free 0+2048; live 2048+512; A@5 2560+512; free 3072+1024");
    qb = free_offset(2048, B);
    observe_frees(A, qa); /* joins the next only: the previous is B's */
    ck_assert_str_eq(layout(), "free 0+2048; B@6 2048+512; free 2560+1536");
    observe_frees(B, qb); /* joins both */
    ck_assert_str_eq(layout(), "free 0+4096");
}

TEST(observing_goes_by_sequence) {
    begin_placement(&bfc, 8192);
    for (size_t i = 0; i < 8; i++)
        alloc_offset(512, i == 7 ? B : A); /* 0 to 4096 */
    free_offset(2048, A);                  /* 1 */
    free_offset(0, A);                     /* 2 */
    free_offset(1024, A);                  /* 3 */
    ck_assert_str_eq(layout(),
                     "A@2 0+512; live 512+512; A@3 1024+512; live 1536+512; A@1 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    free_offset(512, A); /* 4, joins 2 and 3: all wait for 4 */
    observe_frees(A, 3);
    ck_assert_str_eq(layout(), "A@4 0+1536; live 1536+512; free 2048+512; live 2560+512; "
                               "live 3072+512; live 3584+512; free 4096+4096");
    /* the rest of a cut keeps its place: 5 is freed after the cut of 4 */
    ck_assert_uint_eq(alloc_offset(512, A), 2048); /* the exact fit, clean */
    ck_assert_uint_eq(alloc_offset(256, A), 0);    /* A@4 1536 is smaller than the clean 4096 */
    free_offset(2560, A);                          /* 5 */
    ck_assert_str_eq(layout(), "live 0+256; A@4 256+1280; live 1536+512; live 2048+512; "
                               "A@5 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    observe_frees(A, 4);
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; live 1536+512; live 2048+512; "
                               "A@5 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    observe_frees(A, UINT64_MAX);
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; live 1536+512; live 2048+512; "
                               "free 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    free_offset(1536, A); /* 6, which no earlier observation covers */
    ck_assert_str_eq(layout(), "live 0+256; free 256+1280; A@6 1536+512; live 2048+512; "
                               "free 2560+512; live 3072+512; live 3584+512; free 4096+4096");
}

TEST(best_fit_is_of_own_and_clean_together) {
    begin_placement(&bfc, 16384);
    alloc_offset(256, B);                           /* 0 */
    ck_assert_uint_eq(alloc_offset(1024, A), 256);  /* will be A's */
    alloc_offset(256, B);                           /* 1280 */
    ck_assert_uint_eq(alloc_offset(1024, A), 1536); /* will be clean */
    alloc_offset(256, B);                           /* 2560 */
    ck_assert_uint_eq(alloc_offset(768, B), 2816);  /* will be B's */
    alloc_offset(256, B);                           /* 3584 */
    observe_frees(A, free_offset(1536, A));
    free_offset(256, A);
    free_offset(2816, B);
    ck_assert_uint_eq(alloc_offset(1024, A), 256);  /* equal sizes: the lower, its own */
    ck_assert_uint_eq(alloc_offset(1024, A), 1536); /* the clean one */
    free_offset(1536, A);
    ck_assert_uint_eq(alloc_offset(600, B), 2816); /* exact, its own */
    ck_assert_uint_eq(alloc_offset(600, B), 3840); /* A's 1024 is not for B: from the clean end */
}

TEST(own_comes_before_clean) {
    static const struct weir_placement_rule prefer_tagged = {
        .granularity = 256, .split_waste = 256, .prefer_tagged = 1};

    begin_placement(&prefer_tagged, 16384);
    ck_assert_uint_eq(alloc_offset(4096, A), 0);   /* will be A's */
    alloc_offset(256, B);                          /* 4096 */
    ck_assert_uint_eq(alloc_offset(512, B), 4352); /* will be clean */
    alloc_offset(256, B);                          /* 4864 */
    observe_frees(B, free_offset(4352, B));
    free_offset(0, A);
    ck_assert_uint_eq(alloc_offset(512, A), 0);     /* the clean one would be the tighter fit */
    ck_assert_uint_eq(alloc_offset(512, B), 4352);  /* and is there for B */
    ck_assert_uint_eq(alloc_offset(4096, A), 5120); /* its own does not hold that */
    ck_assert_uint_eq(alloc_offset(3584, A), 512);
    ck_assert_uint_eq(alloc_offset(512, A), 9216);
}

/* Stream 0 may not have A's free chunk.  A's next request gets that chunk, not the block of stream 0 that A freed. */
TEST(what_stream_0_took_is_no_best_fit_of_its_owner) {
    begin_placement(&bfc, 8192);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    ck_assert_uint_eq(alloc_offset(512, A), 1024);
    ck_assert_uint_eq(alloc_offset(512, B), 1536);
    free_offset(0, A);
    ck_assert_uint_eq(alloc_offset(2048, A), 2048);
    ck_assert_uint_eq(alloc_offset(1024, 0), 4096);
    free_offset(4096, A);
    ck_assert_uint_eq(alloc_offset(1024, A), 0);
    ck_assert_uint_eq(alloc_offset(1024, A), 4096);
    healthy();
}

/* Many streams come, of which each keeps host memory only while it has tagged chunks. */
TEST(past_streams_keep_no_host_memory) {
    size_t at[40];

    begin_placement(&bfc, MIB);
    alloc_offset(256, A);
    for (uint64_t s = 100; s < 2100; s++) {
        size_t x = alloc_offset(256, s);

        observe_frees(s, free_offset(x, s));
    }
    ck_assert_uint_lt(placement_figures().host_bytes, 300000);
    for (size_t s = 0; s < 40; s++)
        at[s] = alloc_offset(512, 5000 + s);
    for (size_t s = 0; s < 40; s++)
        free_offset(at[s], 5000 + s);
    for (size_t s = 0; s < 40; s++)
        ck_assert_uint_eq(alloc_offset(512, 5000 + s), at[s]);
}

CASE("second stream", 60, NULL, end_placement_if_there);

/* A has used the region up to 3072 when B allocates.  Free memory above that mark is clean, below it is A's. */
TEST(second_stream_cuts_at_the_high_mark) {
    begin_placement(&bfc, 8192);
    alloc_offset(1024, A), alloc_offset(512, A), alloc_offset(1024, A),
        alloc_offset(512, A); /* 0, 1024, 1536, 2560 */
    free_offset(2560, A);     /* 1 */
    free_offset(1536, A);     /* 2 */
    free_offset(0, A);        /* 3 */
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; A@2 1536+6656");
    ck_assert_uint_eq(placement_figures().extent, 3072);
    ck_assert_uint_eq(alloc_offset(256, B), 3072);
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; A@2 1536+1536; live 3072+256; "
                               "free 3328+4864");
    ck_assert_uint_eq(free_figures().waiting, 1024 + 1536);
    observe_frees(A, 2);
    ck_assert_str_eq(layout(), "A@3 0+1024; live 1024+512; free 1536+1536; live 3072+256; "
                               "free 3328+4864");
}

TEST(second_stream_may_come_with_a_free) {
    begin_placement(&bfc, 4096);
    alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A); /* 0, 512, 1024 */
    free_offset(0, A);                                                /* 1 */
    free_offset(1024, A);                                             /* 2 */
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; A@2 1024+3072");
    free_offset(512, B); /* 3 */
    ck_assert_str_eq(layout(), "A@1 0+512; B@3 512+512; A@2 1024+512; free 1536+2560");
}

TEST(what_was_observed_before_the_second_stream_is_clean) {
    begin_placement(&bfc, 8192);
    for (size_t i = 0; i < 8; i++)
        alloc_offset(512, A); /* 0 to 4096 */
    free_offset(0, A);        /* 1 */
    free_offset(1024, A);     /* 2 */
    observe_frees(A, 2);
    free_offset(2048, A); /* 3 */
    ck_assert_str_eq(layout(),
                     "free 0+512; live 512+512; free 1024+512; live 1536+512; A@3 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
    ck_assert_uint_eq(alloc_offset(512, B), 0);
    ck_assert_str_eq(layout(),
                     "live 0+512; live 512+512; free 1024+512; live 1536+512; A@3 2048+512; "
                     "live 2560+512; live 3072+512; live 3584+512; free 4096+4096");
}

/* Space above the mark joined a freed block, which was then allocated again.  The rest was never used, and no byte of
 * it is A's. */
TEST(space_above_the_mark_is_nobodys) {
    begin_placement(&bfc, 8192);
    alloc_offset(512, A);
    free_offset(0, A);
    alloc_offset(512, A);
    ck_assert_uint_eq(placement_figures().extent, 512);
    ck_assert_uint_eq(alloc_offset(2048, B), 512);
    ck_assert_str_eq(layout(), "live 0+512; live 512+2048; free 2560+5632");
    ck_assert_uint_eq(free_figures().waiting, 0);
}

/* The last chunk was used but is observed, so nothing is cut. */
TEST(observed_end_stays_whole) {
    begin_placement(&bfc, 4096);
    alloc_offset(512, A), alloc_offset(512, A);
    observe_frees(A, free_offset(512, A));
    ck_assert_int_eq(take_fails(4096, B), WEIR_PLACEMENT_NO_FIT);
    ck_assert_str_eq(layout(), "live 0+512; free 512+3584");
}

TEST(each_region_has_its_own_mark) {
    begin_placement(&bfc, 2048);
    ck_assert_int_eq(weir__placement_add(p, BASE + 8192, 2048), WEIR_PLACEMENT_OK);
    ck_assert_int_eq(weir__placement_add(p, BASE + 4096, 4096), WEIR_PLACEMENT_OK);
    ck_assert_uint_eq(alloc_offset(512, A), 0);         /* the lowest of two of 2048 */
    ck_assert_uint_eq(take_sized(1792, A, 2048), 8192); /* 2048 < 2 x 1792: whole */
    free_offset(0, A);
    free_offset(8192, A);
    ck_assert_str_eq(layout(), "A@1 0+2048; free 4096+4096; A@2 8192+2048");
    ck_assert_uint_eq(alloc_offset(256, B), 512);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+256; free 768+1280; free 4096+4096; "
                               "A@2 8192+2048");
}

TEST(stream_0_is_a_second_stream) {
    begin_placement(&bfc, 2048);
    alloc_offset(512, A);
    free_offset(0, A);
    ck_assert_str_eq(layout(), "A@1 0+2048");
    ck_assert_uint_eq(alloc_offset(512, 0), 512);
    ck_assert_str_eq(layout(), "A@1 0+512; live 512+512; free 1024+1024");
}

/* Many tagged chunks, in mixed order, are merged and sorted. */
TEST(second_stream_orders_what_the_first_freed) {
    enum { N = 101 };

    begin_placement(&bfc, MIB);
    for (size_t i = 0; i < 2 * N; i++)
        alloc_offset(256, A);
    for (size_t i = 0; i < N; i++)
        free_offset((i * 37 % N) * 512, A); /* sequence i + 1 at slot 37 i mod 101 */
    alloc_offset(256, B);
    for (size_t i = 0; i < N; i++) {
        observe_frees(A, i + 1);
        ck_assert_uint_eq(free_figures().waiting, (N - 1 - i) * 256);
    }
}

SUITE("tags", CK_FORK_GETENV);
