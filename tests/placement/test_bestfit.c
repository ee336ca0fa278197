/* SPDX-License-Identifier: MIT */
/* test_bestfit.c: the ordered set of free chunks against a sorted array.
 *
 * The array holds (size, address) pairs, compared member by member, so that the packing of both into one key is tested
 * along with the trees.  Chunks are disjoint, as the set demands: each has a separate slot of address space, larger
 * than any chunk. */
#include "placement/free_tree.h"
#include "tests/fixtures/placement_check.h"
#include "tests/fixtures/support.h"

#include <inttypes.h>

#define NONE WEIR__BESTFIT_NONE

enum { MOST = 4000 };

struct pair {
    uint64_t size;
    uint64_t address;
};

static struct weir__hostmem host;
static struct weir__bestfit_pool pool;
static struct weir__bestfit set;
static struct pair model[MOST]; /* ascending */
static size_t count;
static uint64_t random_state = 88172645463325252;

static uint64_t random_next(void) {
    return next_random(&random_state);
}

static uint64_t key_of(struct pair c) {
    return weir__bestfit_key(c.size, c.address);
}

/* Returns the number of the pair's slot of address space, which the set stores with the pair. */
static uint32_t value_of(struct pair c) {
    return (uint32_t)(c.address >> 31);
}

static int before(struct pair a, struct pair b) {
    return a.size < b.size || (a.size == b.size && a.address < b.address);
}

/* Returns the index of the first pair that is not before `c`. */
static size_t place(struct pair c) {
    size_t at = 0;

    while (at < count && before(model[at], c))
        at++;
    return at;
}

static void model_insert(struct pair c) {
    size_t at = place(c);

    memmove(&model[at + 1], &model[at], (count - at) * sizeof c);
    model[at] = c;
    count++;
}

static void model_erase(size_t at) {
    count--;
    memmove(&model[at], &model[at + 1], (count - at) * sizeof model[0]);
}

static void sound(void) {
    MUST(free_tree_check(&set));
    MUST(free_tree_count(&set) == count);
}

static void begin(void) {
    memset(&host, 0, sizeof host);
    weir__bestfit_pool_init(&pool, &host);
    weir__bestfit_init(&set, &pool);
    count = 0;
}

static void end(void) {
    sound();
    weir__bestfit_drop(&set);
    weir__bestfit_pool_drop(&pool);
    ck_assert_uint_eq(host.bytes, 0);
}

/* Compares the set's answers about `c`, which need not be in the set, with the array. */
static void same_answers(struct pair c) {
    struct weir__bestfit_hit hit = weir__bestfit_from(&set, key_of(c));
    size_t at = place(c);
    uint32_t value;
    MUST(hit.key == (at < count ? key_of(model[at]) : NONE));
    MUST(at == count || hit.value == value_of(model[at]));
    int found = at < count && model[at].size == c.size && model[at].address == c.address;
    MUST(free_tree_find(&set, key_of(c), &value) == found);
}

/* ------------------------------------------------------------------- keys ---- */

CASE("keys", 30, NULL, NULL);

/* Returns the size that the key has. */
static uint64_t size_of(uint64_t key) {
    uint64_t k = (key >> WEIR__BESTFIT_BITS) - 1;

    return (key - (k << WEIR__BESTFIT_BITS)) >> (WEIR__BESTFIT_BITS - k);
}

TEST(keys_order_by_size_then_address) {
    for (int i = 0; i < 200000; i++) {
        unsigned octave = (unsigned)(random_next() % 57);
        uint64_t size = ((uint64_t)1 << octave) + (random_next() & (((uint64_t)1 << octave) - 1));
        uint64_t most = ((uint64_t)1 << WEIR__BESTFIT_BITS) - 1;
        struct pair a = {size, random_next() * random_next() & most};
        struct pair b = {size + random_next() % 2, 0};

        /* two disjoint chunks cannot be closer */
        b.address =
            a.address >= b.size && random_next() % 2 == 0 ? a.address - b.size : a.address + a.size;
        if (a.address > most || b.address > most)
            continue;
        MUST((key_of(a) < key_of(b)) == before(a, b));
        MUST(key_of(a) != key_of(b));
        MUST(size_of(key_of(a)) == a.size);
        MUST(key_of(a) != NONE && key_of(b) != NONE);
        MUST(weir__bestfit_key(a.size, 0) <= key_of(a));
    }
}

TEST(keys_at_the_limits) {
    uint64_t most = ((uint64_t)1 << WEIR__BESTFIT_BITS) - 1;

    ck_assert_uint_eq(weir__bestfit_key(1, 0), most + 1);
    ck_assert_uint_eq(weir__bestfit_key(1, most), 2 * most + 1);
    ck_assert_uint_eq(weir__bestfit_key(2, 0), 2 * most + 2);
    ck_assert_uint_lt(weir__bestfit_key(most, most), NONE);
    ck_assert_uint_eq(size_of(weir__bestfit_key(most, 0)), most);
    ck_assert_uint_eq(size_of(weir__bestfit_key(1, most)), 1);
}

/* ------------------------------------------------------------- operations ---- */

/* The sizes drawn are all equal, in one class, or over all powers of two up to 2^30. */
enum { ALIKE, CLOSE, FAR, SPREADS };

static struct pair random_chunk(int spread) {
    struct pair c = {12345678, 0};

    if (spread == CLOSE)
        c.size += random_next() % 300;
    else if (spread == FAR)
        c.size = 1 + (random_next() & (((uint64_t)1 << random_next() % 30) - 1));
    c.address = (random_next() & 0xffff) << 31;
    return c;
}

static int slot_in_use(struct pair c) {
    for (size_t i = 0; i < count; i++)
        if (model[i].address == c.address)
            return 1;
    return 0;
}

static void insert(struct pair c) {
    MUST(weir__bestfit_insert(&set, key_of(c), value_of(c)));
    model_insert(c);
}

static void erase(size_t at) {
    weir__bestfit_erase(&set, key_of(model[at]));
    model_erase(at);
}

/* Lets the set grow to `high` and shrink to nothing, several times. */
static void random_run(int spread, size_t high, int steps) {
    int growing = 1;

    begin();
    for (int i = 0; i < steps; i++) {
        struct pair c = random_chunk(spread);
        unsigned what = (unsigned)(random_next() % 10);

        growing = count == 0 ? 1 : count == high ? 0 : growing;
        if (count > 0 && (what < 3) == growing) {
            erase(random_next() % count);
        } else if (count < high && !slot_in_use(c)) {
            insert(c);
        }
        same_answers(random_chunk(spread));
        if (count > 0)
            same_answers(model[random_next() % count]);
        if (i % 64 == 0)
            sound();
    }
    end();
}

CASE("runs", 120, NULL, NULL);

TEST_EACH(6, as_a_sorted_array) {
    static const size_t high[] = {2, 3, 14, 40, 400, 3000};

    for (int spread = 0; spread < SPREADS; spread++)
        random_run(spread, high[_i], 30000);
}

/* Keys are added in order or backwards, and are erased from either end or from the middle. */
TEST_EACH(6, erased_in_any_order) {
    begin();
    for (uint64_t i = 0; i < MOST - 1; i++) {
        struct pair c = {1 << 20, (_i % 2 == 0 ? i : MOST - i) << 31};

        insert(c);
    }
    sound();
    while (count > 0) {
        erase(_i / 2 == 0 ? 0 : _i / 2 == 1 ? count - 1 : count / 2);
        same_answers((struct pair){1 << 20, 0});
        if (count % 50 == 0)
            sound();
    }
    end();
}

/* ----------------------------------------------------------------- memory ---- */

static long refuse_at;

static void *resize(void *context, void *old, size_t bytes) {
    (void)context;
    if (bytes == 0) {
        free(old);
        return NULL;
    }
    return --refuse_at == 0 ? NULL : realloc(old, bytes);
}

TEST(a_refused_insert_changes_nothing) {
    int refused = 0;

    begin();
    host.resize = resize;
    for (int i = 0; i < 3000; i++) {
        struct pair c = random_chunk(i < 2000 ? ALIKE : FAR);

        if (slot_in_use(c))
            continue;
        refuse_at = 1; /* the first request is refused, the second try is not */
        if (!weir__bestfit_insert(&set, key_of(c), value_of(c))) {
            refused++;
            same_answers(c);
            sound();
            refuse_at = 0;
            insert(c);
        } else {
            model_insert(c);
        }
    }
    ck_assert_int_gt(refused, 5);
    end();
}

/* The second chunk of a class is the first one that needs a node, whichever chunk is smaller.  The class frees the node
 * when either chunk goes. */
TEST_EACH(4, a_second_key_needs_a_node) {
    struct pair low = {1 << 20, UINT64_C(1) << 31}, high = {1 << 20, UINT64_C(2) << 31};
    struct pair first = _i % 2 == 0 ? low : high, second = _i % 2 == 0 ? high : low;
    begin();
    host.resize = resize;
    refuse_at = 0;
    insert(first);
    size_t bytes = host.bytes;
    refuse_at = 1;
    MUST(!weir__bestfit_insert(&set, key_of(second), value_of(second)));
    same_answers(low);
    same_answers(high);
    sound();
    insert(second);
    ck_assert_uint_gt(host.bytes, bytes);
    for (int i = 0; i < 100; i++) {
        struct pair gone = model[_i / 2];

        same_answers(low);
        same_answers(high);
        erase(place(gone));
        same_answers(low);
        same_answers(high);
        sound();
        refuse_at = 1; /* no more is asked for */
        insert(gone);
    }
    end();
}

SUITE("bestfit", CK_FORK_GETENV);
