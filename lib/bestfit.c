/* SPDX-License-Identifier: MIT */
/* bestfit.c: the parts of the ordered set that are not on every path: trees, nodes, tables.
 *
 * A class is a B+-tree whose nodes all have the same shape.  A separator is a lower bound of all
 * keys below it, and key[0] of an inner node equals the separator that leads to it (0 leftmost).
 * Except for the root a node holds at least SPARSE entries: one that falls below is joined with a
 * sibling or shares the sibling's entries.  An insert reserves the nodes of the longest chain of
 * splits first, so that it changes all or nothing.
 *
 * Must not know: what bestfit.h must not know.
 */
#include "bestfit.h"

#define SLOTS WEIR__BESTFIT_SLOTS
#define NONE WEIR__BESTFIT_NONE
#define SPARSE 5u
#define CACHE_LINE 64u
#define SLAB_NODES_MIN ((size_t)4)
#define SLAB_NODES_MAX ((size_t)64)

typedef weir__bestfit_ref ref;
typedef struct weir__bestfit_node node;

/* Nodes stand behind the slab's head, aligned to a cache line. */
struct weir__bestfit_slab {
    struct weir__bestfit_slab *next;
    size_t nodes;
};

static size_t slab_bytes(size_t nodes) {
    return sizeof(struct weir__bestfit_slab) + CACHE_LINE + nodes * sizeof(node);
}

/* ------------------------------------------------------------------ nodes -- */

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host) {
    pool->host = host;
    pool->spare = NULL;
    pool->spares = 0;
    pool->slabs = NULL;
}

void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool) {
    while (pool->slabs != NULL) {
        struct weir__bestfit_slab *slab = pool->slabs;

        pool->slabs = slab->next;
        weir__hostmem_resize(pool->host, slab, slab_bytes(slab->nodes), 0);
    }
    pool->spare = NULL;
    pool->spares = 0;
}

static void node_give(struct weir__bestfit_pool *pool, node *n) {
    n->value[0] = (uint64_t)(uintptr_t)pool->spare;
    pool->spare = n;
    pool->spares++;
}

static node *node_take(struct weir__bestfit_pool *pool) {
    node *n = pool->spare;

    pool->spare = (node *)(uintptr_t)n->value[0];
    pool->spares--;
    n->count = 0;
    for (unsigned i = 0; i <= SLOTS; i++) {
        n->key[i] = NONE;
    }
    return n;
}

/* Makes sure of `want` spare nodes (no more than one slab holds).  1 or 0. */
static int pool_reserve(struct weir__bestfit_pool *pool, size_t want) {
    struct weir__bestfit_slab *slab;
    size_t nodes = SLAB_NODES_MIN;
    node *first;

    if (pool->spares >= want) {
        return 1;
    }
    if (pool->slabs != NULL) {
        nodes = pool->slabs->nodes < SLAB_NODES_MAX ? 2 * pool->slabs->nodes : SLAB_NODES_MAX;
    }
    while (nodes < want) {
        nodes *= 2;
    }
    slab = weir__hostmem_resize(pool->host, NULL, 0, slab_bytes(nodes));
    if (slab == NULL) {
        return 0;
    }
    slab->nodes = nodes;
    slab->next = pool->slabs;
    pool->slabs = slab;
    first = (node *)(((uintptr_t)(slab + 1) + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    for (size_t i = nodes; i-- > 0;) {
        node_give(pool, first + i);
    }
    return 1;
}

/* --------------------------------------------------------------- classes -- */

void weir__bestfit_init(struct weir__bestfit *f, struct weir__bestfit_pool *pool,
                        unsigned octave_bits) {
    memset(f, 0, sizeof *f);
    f->shift = WEIR__BESTFIT_BITS - octave_bits;
    f->pool = pool;
}

static size_t table_bytes(size_t classes) {
    return classes * sizeof(ref) + classes / 64 * sizeof(uint64_t);
}

static void tree_drop(struct weir__bestfit_pool *pool, ref r) {
    node *n = weir__bestfit_node(r);

    if (!weir__bestfit_is_leaf(r)) {
        for (unsigned i = 0; i < n->count; i++) {
            tree_drop(pool, (ref)n->value[i]);
        }
    }
    node_give(pool, n);
}

void weir__bestfit_drop(struct weir__bestfit *f) {
    for (size_t c = 0; c < f->classes; c++) {
        if (f->root[c] != 0) {
            tree_drop(f->pool, f->root[c]);
        }
    }
    weir__hostmem_resize(f->pool->host, f->root, table_bytes(f->classes), 0);
    weir__bestfit_init(f, f->pool, WEIR__BESTFIT_BITS - f->shift);
}

/* Makes room for all classes of the octave of `key`.  1 or 0. */
static int table_grow(struct weir__bestfit *f, uint64_t key) {
    size_t octaves = (size_t)(key >> WEIR__BESTFIT_BITS) + 1;
    size_t classes = octaves << (WEIR__BESTFIT_BITS - f->shift);
    ref *root;
    uint64_t *used;

    if (classes <= f->classes) {
        return 1;
    }
    root = weir__hostmem_resize(f->pool->host, NULL, 0, table_bytes(classes));
    if (root == NULL) {
        return 0;
    }
    memset(root, 0, table_bytes(classes));
    used = (uint64_t *)(root + classes);
    if (f->classes > 0) {
        memcpy(root, f->root, f->classes * sizeof *root);
        memcpy(used, f->used, f->classes / 64 * sizeof *used);
        weir__hostmem_resize(f->pool->host, f->root, table_bytes(f->classes), 0);
    }
    f->root = root;
    f->used = used;
    f->classes = classes;
    return 1;
}

static void class_begin(struct weir__bestfit *f, size_t c, ref root) {
    f->root[c] = root;
    f->used[c / 64] |= UINT64_C(1) << (c % 64);
    f->summary[c / 64 / 64] |= UINT64_C(1) << (c / 64 % 64);
}

static void class_end(struct weir__bestfit *f, size_t c) {
    f->root[c] = 0;
    f->used[c / 64] &= ~(UINT64_C(1) << (c % 64));
    if (f->used[c / 64] == 0) {
        f->summary[c / 64 / 64] &= ~(UINT64_C(1) << (c / 64 % 64));
    }
}

/* ----------------------------------------------------------------- trees -- */

static void node_put(node *n, unsigned at, uint64_t key, uint64_t value) {
    memmove(&n->key[at + 1], &n->key[at], (n->count - at) * sizeof n->key[0]);
    memmove(&n->value[at + 1], &n->value[at], (n->count - at) * sizeof n->value[0]);
    n->key[at] = key;
    n->value[at] = value;
    n->count++;
}

/* Takes the last `count` entries of `from` to the front of `to`. */
static void node_shift_right(node *from, node *to, unsigned count) {
    unsigned keep = from->count - count;

    memmove(&to->key[count], &to->key[0], to->count * sizeof to->key[0]);
    memmove(&to->value[count], &to->value[0], to->count * sizeof to->value[0]);
    memcpy(&to->key[0], &from->key[keep], count * sizeof to->key[0]);
    memcpy(&to->value[0], &from->value[keep], count * sizeof to->value[0]);
    to->count += count;
    from->count = keep;
    for (unsigned i = keep; i < keep + count; i++) {
        from->key[i] = NONE;
    }
}

/* Takes the first `count` entries of `from` to the end of `to`. */
static void node_shift_left(node *from, node *to, unsigned count) {
    unsigned keep = from->count - count;

    memcpy(&to->key[to->count], &from->key[0], count * sizeof to->key[0]);
    memcpy(&to->value[to->count], &from->value[0], count * sizeof to->value[0]);
    to->count += count;
    memmove(&from->key[0], &from->key[count], keep * sizeof from->key[0]);
    memmove(&from->value[0], &from->value[count], keep * sizeof from->value[0]);
    from->count = keep;
    for (unsigned i = keep; i < keep + count; i++) {
        from->key[i] = NONE;
    }
}

/* The child of an inner node under which `key` belongs. */
static unsigned child_of(const node *n, uint64_t key) {
    return weir__bestfit_rank(n, key + 1) - 1;
}

static unsigned tree_height(ref r) {
    unsigned height = 1;

    while (!weir__bestfit_is_leaf(r)) {
        r = (ref)weir__bestfit_node(r)->value[0];
        height++;
    }
    return height;
}

/* Adds below `r`.  Where `r` had to be cut the right part is returned and its lower bound stands
 * in *bound; else 0.  The pool holds enough nodes. */
static ref tree_insert(struct weir__bestfit_pool *pool, ref r, uint64_t key, uint64_t value,
                       uint64_t *bound) {
    node *n = weir__bestfit_node(r);
    node *right;

    if (!weir__bestfit_is_leaf(r)) {
        value = tree_insert(pool, (ref)n->value[child_of(n, key)], key, value, &key);
        if (value == 0) {
            return 0;
        }
    }
    if (n->count < SLOTS) {
        node_put(n, weir__bestfit_rank(n, key), key, value);
        return 0;
    }
    right = node_take(pool);
    node_shift_right(n, right, SLOTS / 2);
    if (key < right->key[0]) {
        node_put(n, weir__bestfit_rank(n, key), key, value);
    } else {
        node_put(right, weir__bestfit_rank(right, key), key, value);
    }
    *bound = right->key[0];
    return (ref)right | (r & 1);
}

int weir__bestfit_insert_slow(struct weir__bestfit *f, uint64_t key, uint64_t value) {
    size_t c = (size_t)(key >> f->shift);
    ref root;
    ref right;
    uint64_t bound;
    node *above;

    if (!table_grow(f, key)) {
        return 0;
    }
    root = f->root[c];
    if (!pool_reserve(f->pool, root == 0 ? 1 : tree_height(root) + 1)) {
        return 0;
    }
    f->entries++;
    if (root == 0) {
        above = node_take(f->pool);
        node_put(above, 0, key, value);
        class_begin(f, c, (ref)above);
        return 1;
    }
    right = tree_insert(f->pool, root, key, value, &bound);
    if (right != 0) {
        above = node_take(f->pool);
        node_put(above, 0, 0, root);
        node_put(above, 1, bound, right);
        f->root[c] = (ref)above | 1;
    }
    return 1;
}

/* Child `at` of `n` has become sparse. */
static void tree_rebalance(struct weir__bestfit_pool *pool, node *n, unsigned at) {
    unsigned first = at > 0 ? at - 1 : 0;
    node *left = weir__bestfit_node((ref)n->value[first]);
    node *right = weir__bestfit_node((ref)n->value[first + 1]);
    unsigned half = (left->count + right->count) / 2;

    if (left->count + right->count <= SLOTS) {
        node_shift_left(right, left, right->count);
        node_give(pool, right);
        weir__bestfit_close_gap(n, first + 1);
        return;
    }
    if (left->count > half) {
        node_shift_right(left, right, left->count - half);
    } else {
        node_shift_left(right, left, half - left->count);
    }
    n->key[first + 1] = right->key[0];
}

static void tree_erase(struct weir__bestfit_pool *pool, ref r, uint64_t key) {
    node *n = weir__bestfit_node(r);
    unsigned at;

    if (weir__bestfit_is_leaf(r)) {
        weir__bestfit_close_gap(n, weir__bestfit_rank(n, key));
        return;
    }
    at = child_of(n, key);
    tree_erase(pool, (ref)n->value[at], key);
    if (weir__bestfit_node((ref)n->value[at])->count < SPARSE) {
        tree_rebalance(pool, n, at);
    }
}

void weir__bestfit_erase_slow(struct weir__bestfit *f, uint64_t key) {
    size_t c = (size_t)(key >> f->shift);
    ref root = f->root[c];
    node *n = weir__bestfit_node(root);

    f->entries--;
    if (n->count == 1) {
        class_end(f, c);
        node_give(f->pool, n);
        return;
    }
    tree_erase(f->pool, root, key);
    if (!weir__bestfit_is_leaf(root) && n->count == 1) {
        f->root[c] = (ref)n->value[0];
        node_give(f->pool, n);
    }
}

int weir__bestfit_from_deep(weir__bestfit_ref r, uint64_t key, struct weir__bestfit_hit *hit) {
    ref later = 0; /* the subtree behind the path */
    node *n = weir__bestfit_node(r);
    unsigned at;

    while (!weir__bestfit_is_leaf(r)) {
        at = child_of(n, key);
        later = at + 1 < n->count ? (ref)n->value[at + 1] : later;
        r = (ref)n->value[at];
        n = weir__bestfit_node(r);
    }
    at = weir__bestfit_rank(n, key);
    if (at == n->count) {
        if (later == 0) {
            hit->key = NONE;
            return 0;
        }
        while (!weir__bestfit_is_leaf(later)) {
            later = (ref)weir__bestfit_node(later)->value[0];
        }
        n = weir__bestfit_node(later);
        at = 0;
    }
    hit->leaf = NULL;
    hit->key = n->key[at];
    hit->value = n->value[at];
    return 1;
}

int weir__bestfit_find(const struct weir__bestfit *f, uint64_t key, uint64_t *value) {
    struct weir__bestfit_hit hit;

    if (!weir__bestfit_from(f, key, &hit) || hit.key != key) {
        return 0;
    }
    *value = hit.value;
    return 1;
}

uint64_t weir__bestfit_last(const struct weir__bestfit *f) {
    for (size_t s = WEIR__BESTFIT_SUMMARIES; s-- > 0;) {
        size_t word;
        size_t c;
        ref r;

        if (f->summary[s] == 0) {
            continue;
        }
        word = s * 64 + 63 - (size_t)__builtin_clzll(f->summary[s]);
        c = word * 64 + 63 - (size_t)__builtin_clzll(f->used[word]);
        r = f->root[c];
        while (!weir__bestfit_is_leaf(r)) {
            node *n = weir__bestfit_node(r);

            r = (ref)n->value[n->count - 1];
        }
        return weir__bestfit_node(r)->key[weir__bestfit_node(r)->count - 1];
    }
    return NONE;
}

/* ----------------------------------------------------------------- check -- */

/* Checks the tree below `r`, whose keys lie in [low, high]; adds its keys to *entries. */
static int tree_check(ref r, unsigned height, int root, uint64_t low, uint64_t high,
                      size_t *entries) {
    const node *n = weir__bestfit_node(r);
    unsigned least = root ? (height > 1 ? 2 : 1) : SPARSE;

    if ((height == 1) != weir__bestfit_is_leaf(r) || n->count < least || n->count > SLOTS) {
        return 0;
    }
    for (unsigned i = 0; i <= SLOTS; i++) {
        if (i >= n->count ? n->key[i] != NONE : i > 0 && n->key[i - 1] >= n->key[i]) {
            return 0;
        }
    }
    if (height == 1) {
        *entries += n->count;
        return n->key[0] >= low && n->key[n->count - 1] <= high;
    }
    for (unsigned i = 0; i < n->count; i++) {
        uint64_t below = i > 0 ? n->key[i] : low;
        uint64_t above = i + 1 < n->count ? n->key[i + 1] - 1 : high;

        if (below < low || above > high ||
            !tree_check((ref)n->value[i], height - 1, 0, below, above, entries)) {
            return 0;
        }
    }
    return 1;
}

int weir__bestfit_check(const struct weir__bestfit *f) {
    size_t entries = 0;

    for (size_t c = 0; c < f->classes; c++) {
        ref root = f->root[c];
        uint64_t low = (uint64_t)c << f->shift;

        if ((f->used[c / 64] >> (c % 64) & 1) != (root != 0)) {
            return 0;
        }
        if (root != 0 && !tree_check(root, tree_height(root), 1, low,
                                     low + ((UINT64_C(1) << f->shift) - 1), &entries)) {
            return 0;
        }
    }
    for (size_t word = 0; word < f->classes / 64; word++) {
        if ((f->summary[word / 64] >> (word % 64) & 1) != (f->used[word] != 0)) {
            return 0;
        }
    }
    return entries == f->entries;
}
