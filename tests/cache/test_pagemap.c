/* SPDX-License-Identifier: MIT */
/* test_pagemap.c: the map from addresses to values, at its edges, and the records to which it leads. */
#include "tests/fixtures/support.h"

#include <sys/prctl.h>

#include "cache/page_map.h"

/* The bytes that one table of each level covers. */
#define LEAF_BYTES ((uint64_t)WEIR__PAGEMAP_LEAF_SLOTS * WEIR_PAGE)
#define NODE_BYTES (LEAF_BYTES * WEIR__PAGEMAP_NODE_SLOTS)
#define TOP_BYTES (NODE_BYTES * WEIR__PAGEMAP_TOP_SLOTS)

#define LARGE (WEIR_SLAB_SMALL + WEIR_PAGE)

static struct weir_records records;

static void open_records(void) {
    memset(&records, 0, sizeof records);
    MUST(weir__records_open(&records));
    MUST_EQ(records.host_bytes, 0);
}

static void close_records(void) {
    weir__records_close(&records);
}

static struct weir_slab *find(uint64_t address) {
    return weir__records_find(&records, address);
}

static struct weir_slab *slab_at(uint64_t base, size_t bytes) {
    return weir__records_begin(&records, base, bytes, 0, 16);
}

/* Returns the bytes of the tables: all host memory but the chunk of the first records. */
static size_t table_bytes(void) {
    return records.host_bytes - 64 * KIB;
}

CASE("records", 30, open_records, close_records);

TEST(an_empty_map_has_nothing) {
    MUST(find(0) == NULL);
    MUST(find(UINT64_C(1) << 47) == NULL);
    MUST(find(TOP_BYTES - 1) == NULL);
    MUST(find(TOP_BYTES) == NULL);
    MUST(find(UINT64_MAX) == NULL);
}

TEST(what_has_no_record) {
    MUST(!slab_at(WEIR_PAGE, 0));
    MUST(!slab_at(1, WEIR_PAGE));
    MUST(!slab_at(WEIR_PAGE + 512, WEIR_PAGE));
    MUST(!slab_at(TOP_BYTES, 1));
    MUST(!slab_at(TOP_BYTES - WEIR_PAGE, WEIR_PAGE + 1));
    MUST(!slab_at(0 - WEIR_PAGE, WEIR_PAGE));
    MUST(!slab_at(0 - WEIR_PAGE, 2 * WEIR_PAGE));
    MUST(!weir__records_whole(&records, TOP_BYTES, LARGE));
    MUST_EQ(records.host_bytes, 0);
    MUST(slab_at(TOP_BYTES - WEIR_PAGE, WEIR_PAGE));
    MUST(slab_at(0, WEIR_PAGE));
}

/* The places cross the border of two leaves or nodes, or lie at an end.  Neighbours stay unchanged, and every byte of a
 * slab leads to it. */
TEST_EACH(7, slabs_are_found_where_they_are) {
    const uint64_t places[] = {0,
                               WEIR_PAGE,
                               LEAF_BYTES - 2 * WEIR_PAGE,
                               NODE_BYTES - 2 * WEIR_PAGE,
                               NODE_BYTES * 7 - WEIR_PAGE,
                               (UINT64_C(1) << 47) - WEIR_PAGE,
                               TOP_BYTES - 4 * WEIR_PAGE};
    uint64_t place = places[_i];
    size_t bytes = 3 * WEIR_PAGE;
    struct weir_slab *behind = weir__records_whole(&records, place + bytes, WEIR_PAGE);
    struct weir_slab *slab = slab_at(place, bytes);

    for (uint64_t at = 0; at < bytes; at += 511)
        MUST(find(place + at) == slab);
    MUST(find(place + bytes - 1) == slab);
    MUST(find(place + bytes) == behind);
    MUST(find(place + bytes + WEIR_PAGE) == NULL);
    MUST(place == 0 || find(place - 1) == NULL);
    weir__records_end(&records, slab);
    MUST(find(place) == NULL);
    MUST(find(place + bytes - 1) == NULL);
    MUST(find(place + bytes) == behind);
}

/* A table is made once, and its words count once. */
TEST(words_count_when_they_are_used) {
    size_t leaf = sizeof(struct weir__pagemap_leaf), node = sizeof(struct weir__pagemap_node);
    size_t words = sizeof(((struct weir__pagemap_leaf *)0)->value), host = 4 * KIB;
    uint64_t covers = WEIR__PAGEMAP_HOST_SLOTS * WEIR_PAGE;

    for (uint64_t i = 0; i < 4; i++)
        MUST(weir__records_whole(&records, i * LEAF_BYTES + covers, LARGE));
    MUST_EQ(table_bytes(), 4 * (leaf - words) + node);
    MUST(weir__records_whole(&records, 0, WEIR_PAGE));
    MUST(slab_at(WEIR_PAGE, covers - WEIR_PAGE));
    MUST_EQ(table_bytes(), 4 * (leaf - words) + node + host);
    MUST(slab_at(2 * covers - WEIR_PAGE, 2 * WEIR_PAGE));
    MUST_EQ(table_bytes(), 4 * (leaf - words) + node + 3 * host);
    MUST(slab_at(2 * LEAF_BYTES - WEIR_PAGE, 2 * WEIR_PAGE)); /* in two tables */
    MUST_EQ(table_bytes(), 4 * (leaf - words) + node + 5 * host);
    MUST(slab_at(3 * LEAF_BYTES + 2 * covers, LEAF_BYTES - 2 * covers));
    MUST_EQ(table_bytes(), 4 * (leaf - words) + node + words + 3 * host);
}

/* The record of a whole block is kept for the next block at its address, unless there are too many records. */
TEST_EACH(2, records_of_very_many_blocks) {
    enum { KEPT = 1 << 16, BLOCKS = KEPT + 100 };
    static struct weir_slab *block[BLOCKS];
    uint64_t apart = _i ? LARGE : WEIR_PAGE;
    size_t left = BLOCKS;

    for (size_t i = 0; i < BLOCKS; i++)
        MUST((block[i] = weir__records_whole(&records, i * apart, apart)) != NULL);
    for (size_t i = 0; i < BLOCKS; i++) {
        MUST(find(i * apart) == block[i]);
        weir__records_end(&records, block[i]);
        left -= left > KEPT;
        MUST_EQ(records.wholes, left);
    }
    MUST(weir__records_whole(&records, 0, apart) == block[BLOCKS - KEPT - 1]);
}

/* Successive large blocks that begin in one page of their map share a record. */
TEST(large_blocks_share_a_record) {
    uint64_t page = 6 * WEIR_SLAB_SMALL;
    struct weir_slab *s = weir__records_whole(&records, page, LARGE);

    for (uint64_t at = 0; at < WEIR_SLAB_SMALL; at += WEIR_PAGE) {
        MUST(weir__records_whole(&records, page + at, LARGE + at) == s);
        MUST(find(page + at) == s);
        MUST_EQ(s->base, page + at);
        MUST_EQ(s->bytes, LARGE + at);
        MUST(find(page + at + WEIR_PAGE) == NULL);
        MUST(at == 0 || find(page + at - WEIR_PAGE) == NULL);
        weir__records_end(&records, s);
        MUST(find(page + at) == NULL);
    }
    MUST(weir__records_whole(&records, page - WEIR_PAGE, LARGE) != s);
    MUST_EQ(records.wholes, 2);
}

/* Small blocks begin where a large block was, and large blocks beside them. */
TEST(small_blocks_where_a_large_one_was) {
    uint64_t page = 6 * WEIR_SLAB_SMALL;
    struct weir_slab *large = weir__records_whole(&records, page, LARGE);
    weir__records_end(&records, large);
    struct weir_slab *slab = weir__records_begin(&records, page, 2 * WEIR_PAGE, 0, 64);
    struct weir_slab *whole = weir__records_whole(&records, page + 2 * WEIR_PAGE, WEIR_PAGE);
    MUST(find(page) == slab);
    MUST(find(page + 512) == slab);
    MUST(find(page + WEIR_PAGE) == slab);
    MUST(find(page + 2 * WEIR_PAGE) == whole);
    MUST(weir__records_whole(&records, page + 3 * WEIR_PAGE, LARGE) == large);
    MUST(find(page + 3 * WEIR_PAGE) == large);
    MUST(find(page) == slab);
    weir__records_end(&records, slab);
    weir__records_end(&records, whole);
    MUST(find(page) == NULL);
    MUST_EQ(find(page + 2 * WEIR_PAGE)->bytes, 0);
    weir__records_end(&records, large);
    MUST(weir__records_whole(&records, page + 2 * WEIR_PAGE, LARGE) == large);
    MUST(find(page + 2 * WEIR_PAGE) == large);
}

/* Checks that all pages of the slab lead to the slab, and those beside it to its neighbours. */
static void check_pages(uint64_t base, const struct weir_slab *slab, const struct weir_slab *before,
                        const struct weir_slab *behind) {
    for (uint64_t at = 0; at < WEIR_SLAB_SMALL; at += WEIR_PAGE) {
        MUST(find(base + at) == slab);
        MUST(find(base + at + WEIR_PAGE - 512) == slab);
        MUST(find(base - WEIR_SLAB_SMALL + at) == before);
    }
    MUST(find(base + WEIR_SLAB_SMALL) == behind);
}

/* Slabs of 512 KiB begin anywhere in the 512 KiB of a word.  Their neighbours are slabs, a small block, nothing, or a
 * large block.  A large block was there before. */
TEST_EACH(WEIR_SLAB_SMALL / WEIR_PAGE, slabs_have_one_word) {
    enum { PAGES = WEIR_SLAB_SMALL / WEIR_PAGE, SLOTS = 16 };
    uint64_t base = LEAF_BYTES + 6 * WEIR_SLAB_SMALL + (uint64_t)_i * WEIR_PAGE;
    struct weir_slab *slab, *before, *behind, *large;

    large = weir__records_whole(&records, base, LARGE);
    weir__records_end(&records, large);
    slab = weir__records_begin(&records, base, WEIR_SLAB_SMALL, 47, SLOTS);
    MUST_EQ(records.wholes, 0);
    MUST_LE(table_bytes(), sizeof(struct weir__pagemap_leaf) + sizeof(struct weir__pagemap_node));
    check_pages(base, slab, NULL, NULL);
    before = weir__records_begin(&records, base - WEIR_SLAB_SMALL, WEIR_SLAB_SMALL, 47, SLOTS);
    behind = weir__records_begin(&records, base + WEIR_SLAB_SMALL, WEIR_SLAB_SMALL, 47, SLOTS);
    check_pages(base, slab, before, behind);
    weir__records_end(&records, behind);
    check_pages(base, slab, before, NULL);
    behind = weir__records_begin(&records, base + WEIR_SLAB_SMALL, WEIR_PAGE, 0, 32);
    check_pages(base, slab, before, behind);
    weir__records_end(&records, behind);
    behind = weir__records_whole(&records, base + WEIR_SLAB_SMALL, LARGE);
    check_pages(base, slab, before, behind);
    MUST(find(base + WEIR_SLAB_SMALL + WEIR_PAGE) == NULL);
    weir__records_end(&records, slab);
    check_pages(base, NULL, before, behind);
    MUST(weir__records_whole(&records, base, LARGE - WEIR_PAGE) != NULL);
    weir__records_end(&records, before);
    MUST(find(base - WEIR_PAGE) == NULL);
    MUST(find(base - WEIR_SLAB_SMALL) == NULL);
    MUST(find(base + WEIR_SLAB_SMALL) == behind);
}

/* A slab that two tables share is found through both. */
TEST_EACH(2, a_slab_astride_two_tables) {
    uint64_t base = 3 * LEAF_BYTES - WEIR_SLAB_SMALL + (uint64_t)_i * WEIR_PAGE;
    struct weir_slab *slab = weir__records_begin(&records, base, WEIR_SLAB_SMALL, 47, 16);
    check_pages(base, slab, NULL, NULL);
    weir__records_end(&records, slab);
    check_pages(base, NULL, NULL, NULL);
    struct weir_slab *again = weir__records_begin(&records, base, WEIR_SLAB_SMALL, 47, 16);
    check_pages(base, again, NULL, NULL);
}

/* Threads take blocks and slabs of all sizes at random from memory across the border of two tables, beside each other
 * and where others were before. */
enum { WORLD_PAGES = 192, HELD = 4, THREADS = 4 };
#define WORLD (2 * LEAF_BYTES - 5 * WEIR_SLAB_SMALL / 2)

static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t world_taken[WORLD_PAGES];
static atomic_uint world_wrong;

struct held {
    struct weir_slab *span;
    uint64_t base;
    unsigned pages;
    int is_slab;
};

static int world_take(unsigned first, unsigned pages) {
    pthread_mutex_lock(&world_lock);
    int done = first + pages <= WORLD_PAGES && !memchr(world_taken + first, 1, pages);
    if (done)
        memset(world_taken + first, 1, pages);
    pthread_mutex_unlock(&world_lock);
    return done;
}

/* Checks that each page of a slab, and the first page of a whole block, leads to its live record. */
static void check_held(const struct held *h) {
    unsigned pages = h->is_slab ? h->pages : 1, wrong = h->span->base != h->base;

    for (unsigned i = 0; i < pages; i++)
        wrong += find(h->base + i * WEIR_PAGE) != h->span;
    wrong += h->span->bytes != h->pages * WEIR_PAGE;
    atomic_fetch_add_explicit(&world_wrong, wrong, memory_order_relaxed);
}

static void world_begin(struct held *h, uint64_t *random) {
    static const unsigned slabs[] = {1, 4, 8, 16, 30, 32, 32, 32};
    unsigned first = (unsigned)(next_random(random) % WORLD_PAGES);

    h->is_slab = next_random(random) % 2 == 0;
    h->pages = h->is_slab
                   ? slabs[next_random(random) % 8]
                   : 1 + (unsigned)(next_random(random) % (next_random(random) % 2 ? 70 : 3));
    if (!world_take(first, h->pages))
        return;
    h->base = WORLD + first * WEIR_PAGE;
    h->span = h->is_slab ? weir__records_begin(&records, h->base, h->pages * WEIR_PAGE, 0, 16)
                         : weir__records_whole(&records, h->base, h->pages * WEIR_PAGE);
}

static void world_end(struct held *h) {
    weir__records_end(&records, h->span);
    h->span = NULL;
    pthread_mutex_lock(&world_lock);
    memset(world_taken + (h->base - WORLD) / WEIR_PAGE, 0, h->pages);
    pthread_mutex_unlock(&world_lock);
}

/* Any address leads to no record, or to one that can be read. */
static void look_anywhere(uint64_t *random) {
    const struct weir_slab *s = find(WORLD + next_random(random) % (WORLD_PAGES * WEIR_PAGE));

    if (s && weir__slab_bytes(s) > WORLD_PAGES * WEIR_PAGE)
        atomic_fetch_add_explicit(&world_wrong, 1, memory_order_relaxed);
}

static void *live_in_world(void *seed) {
    uint64_t random = (uintptr_t)seed;
    struct held held[HELD] = {{0}};

    for (int round = 0; round < 20000; round++) {
        struct held *h = &held[next_random(&random) % HELD];

        if (!h->span)
            world_begin(h, &random);
        else if (next_random(&random) % 2 == 0)
            world_end(h);
        if (h->span)
            check_held(h);
        look_anywhere(&random);
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].span) {
            check_held(&held[i]);
            world_end(&held[i]);
        }
    return NULL;
}

static void count_live(void *count, struct weir_slab *s) {
    *(unsigned *)count += s->bytes > 0;
}

/* Records of whole blocks are kept, or (_i) are not, because there are many others. */
TEST_EACH(2, threads_find_their_own) {
    enum { KEPT = 1 << 16 };
    uint64_t others = 8 * LEAF_BYTES, left = _i ? KEPT : 0;
    unsigned live = 0;
    pthread_t thread[THREADS];

    for (uint64_t i = 0; i < left; i++)
        MUST(weir__records_whole(&records, others + i * WEIR_PAGE, WEIR_PAGE) != NULL);
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, live_in_world, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(thread[i], NULL) == 0);
    MUST_EQ(world_wrong, 0);
    for (uint64_t at = WORLD; at < WORLD + WORLD_PAGES * WEIR_PAGE; at += WEIR_PAGE) {
        struct weir__pagemap_words words;

        MUST(!find(at) || find(at)->bytes == 0);
        MUST(weir__records_words(&records, at, &words));
        left += *words.page != NULL;
        left += (at == WORLD || at % WEIR_SLAB_SMALL == 0) && *words.large;
    }
    MUST_EQ(records.wholes, left);
    weir__records_walk(&records, count_live, &live);
    MUST_EQ(live, _i ? KEPT : 0);
}

/* Returns the number of host pages in memory of the table for the address. */
static size_t pages_touched(uint64_t address) {
    enum { MOST = sizeof(struct weir__pagemap_leaf) / 4096 + 1 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), touched = 0, bytes;
    struct weir__pagemap_words words;
    unsigned char there[MOST];
    uintptr_t leaf, first;

    MUST(weir__records_words(&records, address, &words));
    leaf = (uintptr_t)(words.page - (address >> WEIR__PAGE_SHIFT & (WEIR__PAGEMAP_LEAF_SLOTS - 1)));
    first = leaf & ~(uintptr_t)(page - 1);
    bytes = leaf + sizeof(struct weir__pagemap_leaf) - first;
    MUST(mincore((void *)first, bytes, there) == 0);
    for (size_t i = 0; i < (bytes + page - 1) / page; i++)
        touched += there[i] & 1;
    return touched;
}

/* Returns 1 if new memory is untouched, 0 under Valgrind and ThreadSanitizer, which touch it. */
static int is_untouched(void) {
#ifdef __SANITIZE_THREAD__
    return 0;
#else
    return is_roomy();
#endif
}

/* A large block or a slab touches the words of large blocks, a 32nd of its table, and little else. */
TEST(a_block_touches_little_of_its_table) {
    size_t all = sizeof(struct weir__pagemap_leaf) / (size_t)sysconf(_SC_PAGESIZE);
    uint64_t base = 5 * LEAF_BYTES + LEAF_BYTES / 2, slab = 9 * LEAF_BYTES;

    if (!is_untouched())
        return;
    MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0); /* else a page may be as large as a table */
    MUST(weir__records_whole(&records, base, (size_t)1 << 30) != NULL);
    MUST_LE(pages_touched(base), all / 16);
    MUST(weir__records_begin(&records, slab, WEIR_PAGE, 0, 16) != NULL);
    MUST_LE(pages_touched(slab), all / 16);
}

/* However large it is, a whole block is found by its first page alone. */
TEST_EACH(3, a_whole_block_needs_one_table) {
    static const size_t sizes[] = {2 * WEIR_PAGE, (size_t)1 << 30, 3 * LEAF_BYTES};
    size_t words = sizeof(((struct weir__pagemap_leaf *)0)->value), host = 4 * KIB;
    size_t one = sizeof(struct weir__pagemap_leaf) + sizeof(struct weir__pagemap_node) - words +
                 (_i > 0 ? 0 : host);
    uint64_t base = LEAF_BYTES - WEIR_PAGE;
    struct weir_slab *block = weir__records_whole(&records, base, sizes[_i]);

    MUST(block != NULL);
    MUST_EQ(table_bytes(), one);
    MUST(find(base) == block);
    MUST(find(base - 1) == NULL);
    MUST(find(base + WEIR_PAGE) == NULL);
    weir__records_end(&records, block);
    MUST(weir__records_begin(&records, base - WEIR_PAGE, 2 * WEIR_PAGE, 0, 16) != NULL);
    MUST_EQ(table_bytes(), one + (_i > 0 ? host : 0));
}

SUITE("pagemap", CK_FORK_GETENV);
