/* SPDX-License-Identifier: MIT */
/* test_placement_memory.c: placement without host memory, which the tests refuse by the rule's member `resize`. */
#include "tests/fixtures/placements.h"

/* State of resize_and_count(), which refuses request `refuse_at`, and all later ones if `refuse_on`. */
static struct {
    long requests;
    long refuse_at;
    int refuse_on;
    long held;
} memory;

static void *resize_and_count(void *context, void *old, size_t bytes) {
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
    void *grown = realloc(old, bytes);
    MUST(grown != NULL);
    memory.held += old == NULL;
    return grown;
}

/* Resizes memory by resize_and_count(), and overwrites memory before it frees it. */
static void *resize_and_spoil(void *context, void *old, size_t bytes) {
    size_t *head = old == NULL ? NULL : (size_t *)old - 2;

    if (head != NULL && bytes == 0)
        memset(old, 0xa5, *head);
    head = resize_and_count(context, head, bytes == 0 ? 0 : bytes + 2 * sizeof *head);
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
    begin_placement(&rule, bytes);
}

static void refuse_from_now_on(int refuse) {
    memory.refuse_at = refuse ? memory.requests + 1 : 0;
    memory.refuse_on = refuse;
}

CASE("memory", 120, NULL, NULL);

/* A stream's first free or fill without host memory changes nothing.  The first stream and the fallback stream need none. */
TEST(a_free_without_memory_changes_nothing) {
    begin_spoiling(4096);
    MUST_EQUAL(weir__placement_add_unmapped(p, BASE + 4096, 1536), WEIR_PLACEMENT_OK);
    alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A), alloc_offset(512, A),
        alloc_offset(2048, B);
    record_of(C)->is_fallback = 1;
    refuse_from_now_on(1);
    MUST_EQUAL(give_at(BASE, B, 3, NULL), WEIR_PLACEMENT_NO_MEMORY);
    MUST_EQUAL(weir__placement_fill(p, BASE + 4096, BASE + 4608, 512, record_of(B), 3),
               WEIR_PLACEMENT_NO_MEMORY);
    healthy();
    ck_assert_uint_eq(placement_figures().total, 4096);
    MUST_EQUAL(give_at(BASE, C, 3, NULL), WEIR_PLACEMENT_OK);
    MUST_EQUAL(give_at(BASE + 512, A, 0, NULL), WEIR_PLACEMENT_OK);
    free_offset(1024, A);
    refuse_from_now_on(0);
    ck_assert_str_eq(layout(), "C@3 0+512; free 512+512; A@1 1024+512; live 1536+512; "
                               "live 2048+2048; free 4096+1536");
    observe_frees(C, 3);
    ck_assert_uint_eq(alloc_offset(1024, B), 0);
    end_placement();
}

/* Plays a random step.  A step that fails for want of memory must have changed nothing. */
static void short_step(uint64_t *live, size_t count, uint64_t stream) {
    struct weir_placement_figures before = placement_figures();
    struct weir_placement_block block;
    size_t at = random_below(count);
    int status;

    if (live[at] != 0) {
        status = give_at(live[at], stream, ++clock_of_frees, &block);
        MUST(status == WEIR_PLACEMENT_OK || status == WEIR_PLACEMENT_NO_MEMORY);
        if (status == WEIR_PLACEMENT_OK) {
            MUST_EQUAL(block.address, live[at]);
            live[at] = 0;
        }
        MUST_EQUAL(placement_figures().blocks, before.blocks - (status == WEIR_PLACEMENT_OK));
    } else {
        status = weir__placement_alloc(p, random_request_bytes() * 16, record_of(stream), &block);
        if (status == WEIR_PLACEMENT_OK) {
            live[at] = block.address;
        } else {
            MUST(status == WEIR_PLACEMENT_NO_MEMORY || status == WEIR_PLACEMENT_NO_FIT);
            MUST_EQUAL(placement_figures().blocks, before.blocks);
        }
    }
    if (random_below(8) == 0)
        observe_frees_until(stream, clock_of_frees - random_below(8));
    if (random_below(4) == 0)
        healthy();
}

/* Frees every block and removes the regions, whether host memory is back by then or not. */
static void short_end(uint64_t *live, size_t count, int back) {
    struct weir_placement_block block;

    if (back)
        refuse_from_now_on(0);
    for (size_t i = 0; i < count; i++)
        if (live[i] != 0)
            MUST_EQUAL(weir__placement_free(p, live[i], NULL, 0, NULL), WEIR_PLACEMENT_OK);
    for (uint64_t s = 0; s < 100; s++)
        observe_frees(s, UINT64_MAX);
    if (back && weir__placement_alloc(p, 1, record_of(A), &block) == WEIR_PLACEMENT_OK)
        observe_frees(A, free_offset((size_t)(block.address - BASE), A));
    MUST_EQUAL(free_figures().waiting, 0);
    if (back)
        MUST_EQUAL(free_figures().chunks, placement_figures().regions);
    for (size_t i = 0; i < 800; i += 150)
        MUST(weir__placement_remove(p, BASE + i * 64 * KIB) != WEIR_PLACEMENT_BUSY);
    MUST_EQUAL(placement_figures().regions, 0);
    end_placement();
    MUST_EQUAL(memory.held, 0);
}

/* Plays a run in which request `refuse_at` is refused.  Host memory is back at the end if `back`.  Returns 1 if there
 * was such a request, 0 if not. */
static int short_run(long refuse_at, int refuse_on, int back) {
    struct weir_placement_rule rule = bfc;
    uint64_t live[150] = {0};
    memset(&memory, 0, sizeof memory);
    memory.refuse_at = refuse_at;
    memory.refuse_on = refuse_on;
    clock_of_frees = 0;
    random_state = test_seed(7);
    rule.resize = resize_and_count;
    rule.context = &memory;
    p = NULL;
    forget_streams();
    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK) {
        MUST(p == NULL);
        return 1;
    }
    for (size_t i = 0; i < 800; i++) {
        /* one stream, then two, then dozens */
        uint64_t stream = i < 200 ? A : i < 400 ? (i % 3 == 0 ? B : A) : random_below(60);
        size_t regions = placement_figures().regions;

        if (i % 150 == 0 && weir__placement_add(p, BASE + i * 64 * KIB, 4 * MIB) != 0)
            MUST_EQUAL(placement_figures().regions, regions);
        short_step(live, sizeof live / sizeof live[0], stream);
    }
    int reached = memory.requests >= refuse_at;
    short_end(live, sizeof live / sizeof live[0], back);
    return reached;
}

TEST(any_one_request_may_be_refused) {
    long n = 1;

    while (short_run(n, 0, 1))
        n++;
    ck_assert_int_gt(n, 40); /* the seam is in use */
}

TEST_EACH(2, all_requests_from_one_on_may_be_refused) {
    long n = 1;

    while (short_run(n, 1, _i))
        n++;
    ck_assert_int_gt(n, 40);
}

SUITE("placement memory", CK_FORK_GETENV);
