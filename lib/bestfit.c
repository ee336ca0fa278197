/* SPDX-License-Identifier: MIT */
/* bestfit.c: the ordered set of free chunks: classes, trees, nodes.
 *
 * A class is a B+-tree whose nodes all have the same shape.  A separator is a lower bound of all
 * keys below it, and key[0] of an inner node equals the separator that leads to it (0 leftmost).
 * Except for the root a node holds at least SPARSE entries: one that falls below is joined with a
 * sibling or shares the sibling's entries.  An insert reserves the nodes of the longest chain of
 * splits first, so that it changes all or nothing.
 *
 * What concerns one leaf alone is decided there, without a look at the nodes above it.  Only what
 * changes the shape of a tree goes down it a second time, recursively.
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

static inline int is_leaf(ref r) {
    return (r & 1) == 0;
}

static inline node *node_of(ref r) {
    return (node *)(r & ~(ref)1);
}

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

/* `n` is empty: no keys, count 0.  So are all spare nodes. */
static void node_give(struct weir__bestfit_pool *pool, node *n) {
    n->value[0] = (uint64_t)(uintptr_t)pool->spare;
    pool->spare = n;
    pool->spares++;
}

static node *node_take(struct weir__bestfit_pool *pool) {
    node *n = pool->spare;

    pool->spare = (node *)(uintptr_t)n->value[0];
    pool->spares--;
    return n;
}

static void node_clear(node *n) {
    n->count = 0;
    for (unsigned i = 0; i <= SLOTS; i++)
        n->key[i] = NONE;
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
        node_clear(first + i);
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
    node *n = node_of(r);

    if (!is_leaf(r)) {
        for (unsigned i = 0; i < n->count; i++) {
            tree_drop(pool, (ref)n->value[i]);
        }
    }
    node_clear(n);
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

/* How many keys of the node are below `key`.  Two short rounds without a branch on data. */
static inline unsigned node_rank(const node *n, uint64_t key) {
    const uint64_t *k = n->key;
    unsigned at = 4u * ((unsigned)(k[3] < key) + (unsigned)(k[7] < key) + (unsigned)(k[11] < key));

    k += at;
    return at + (unsigned)(k[0] < key) + (unsigned)(k[1] < key) + (unsigned)(k[2] < key);
}

/* Puts an entry at `at` of a node that is not full. */
static inline void node_put(node *n, unsigned at, uint64_t key, uint64_t value) {
    memmove(&n->key[at + 1], &n->key[at], (n->count - at) * sizeof n->key[0]);
    memmove(&n->value[at + 1], &n->value[at], (n->count - at) * sizeof n->value[0]);
    n->key[at] = key;
    n->value[at] = value;
    n->count++;
}

/* Takes out the entry at `at`. */
static inline void node_cut(node *n, unsigned at) {
    n->count--;
    memmove(&n->key[at], &n->key[at + 1], (n->count - at) * sizeof n->key[0]);
    memmove(&n->value[at], &n->value[at + 1], (n->count - at) * sizeof n->value[0]);
    n->key[n->count] = NONE;
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
    return node_rank(n, key + 1) - 1;
}

static unsigned tree_height(ref r) {
    unsigned height = 1;

    while (!is_leaf(r)) {
        r = (ref)node_of(r)->value[0];
        height++;
    }
    return height;
}

/* Adds below `r`.  Where `r` had to be cut the right part is returned and its lower bound stands in
 * *bound; else 0.  The pool holds enough nodes. */
static ref tree_insert(struct weir__bestfit_pool *pool, ref r, uint64_t key, uint64_t value,
                       uint64_t *bound) {
    node *n = node_of(r);
    node *right;

    if (!is_leaf(r)) {
        value = tree_insert(pool, (ref)n->value[child_of(n, key)], key, value, &key);
        if (value == 0) {
            return 0;
        }
    }
    if (n->count < SLOTS) {
        node_put(n, node_rank(n, key), key, value);
        return 0;
    }
    right = node_take(pool);
    node_shift_right(n, right, SLOTS / 2);
    if (key < right->key[0]) {
        node_put(n, node_rank(n, key), key, value);
    } else {
        node_put(right, node_rank(right, key), key, value);
    }
    *bound = right->key[0];
    return (ref)right | (r & 1);
}

/* The leaf under which `key` belongs. */
static inline node *leaf_for(ref r, uint64_t key) {
    node *n = node_of(r);

    while (!is_leaf(r)) {
        r = (ref)n->value[child_of(n, key)];
        n = node_of(r);
    }
    return n;
}

/* An insert that needs a node or a larger table. */
static int insert_slow(struct weir__bestfit *f, uint64_t key, uint64_t value) {
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

int weir__bestfit_insert(struct weir__bestfit *f, uint64_t key, uint64_t value) {
    size_t c = (size_t)(key >> f->shift);
    node *leaf;

    if (c >= f->classes || (f->root[c] == 0 && f->pool->spare == NULL)) {
        return insert_slow(f, key, value);
    }
    if (f->root[c] == 0) {
        leaf = node_take(f->pool);
        leaf->key[0] = key;
        leaf->value[0] = value;
        leaf->count = 1;
        class_begin(f, c, (ref)leaf);
        f->entries++;
        return 1;
    }
    leaf = leaf_for(f->root[c], key);
    if (leaf->count == SLOTS) {
        return insert_slow(f, key, value);
    }
    node_put(leaf, node_rank(leaf, key), key, value);
    f->entries++;
    return 1;
}

/* Child `at` of `n` has become sparse. */
static void tree_rebalance(struct weir__bestfit_pool *pool, node *n, unsigned at) {
    unsigned first = at > 0 ? at - 1 : 0;
    node *left = node_of((ref)n->value[first]);
    node *right = node_of((ref)n->value[first + 1]);
    unsigned half = (left->count + right->count) / 2;

    if (left->count + right->count <= SLOTS) {
        node_shift_left(right, left, right->count);
        node_give(pool, right);
        node_cut(n, first + 1);
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
    node *n = node_of(r);
    unsigned at;

    if (is_leaf(r)) {
        node_cut(n, node_rank(n, key));
        return;
    }
    at = child_of(n, key);
    tree_erase(pool, (ref)n->value[at], key);
    if (node_of((ref)n->value[at])->count < SPARSE) {
        tree_rebalance(pool, n, at);
    }
}

/* An erase that leaves a leaf empty or sparse. */
static void erase_slow(struct weir__bestfit *f, uint64_t key) {
    size_t c = (size_t)(key >> f->shift);
    ref root = f->root[c];
    node *n = node_of(root);

    if (is_leaf(root)) {
        n->key[0] = NONE;
        n->count = 0;
        node_give(f->pool, n);
        class_end(f, c);
        return;
    }
    tree_erase(f->pool, root, key);
    if (n->count == 1) {
        f->root[c] = (ref)n->value[0];
        n->key[0] = NONE;
        n->count = 0;
        node_give(f->pool, n);
    }
}

/* How many keys a leaf of the class must keep for the tree to keep its shape. */
static inline unsigned leaf_least(ref root) {
    return is_leaf(root) ? 1 : SPARSE;
}

void weir__bestfit_erase(struct weir__bestfit *f, uint64_t key) {
    ref root = f->root[key >> f->shift];
    node *leaf = leaf_for(root, key);

    f->entries--;
    if (leaf->count <= leaf_least(root)) {
        erase_slow(f, key);
        return;
    }
    node_cut(leaf, node_rank(leaf, key));
}

void weir__bestfit_erase_hit(struct weir__bestfit *f, const struct weir__bestfit_hit *hit) {
    f->entries--;
    if (hit->leaf->count <= hit->least) {
        erase_slow(f, hit->key);
        return;
    }
    node_cut(hit->leaf, hit->at);
}

/* Puts `key` where `old` is, if it keeps the place in the order as far as the leaf knows it. */
static inline int leaf_rekey(node *leaf, unsigned at, unsigned least, uint64_t key,
                             uint64_t value) {
    if ((at > 0 && leaf->key[at - 1] > key) || leaf->key[at + 1] < key) {
        return 0;
    }
    if (least == SPARSE && (at == 0 || at + 1 == leaf->count)) {
        return 0; /* the neighbour in the order is in another leaf */
    }
    leaf->key[at] = key;
    leaf->value[at] = value;
    return 1;
}

int weir__bestfit_move_hit(struct weir__bestfit *f, const struct weir__bestfit_hit *hit,
                           uint64_t key, uint64_t value) {
    if (key >> f->shift == hit->key >> f->shift &&
        leaf_rekey(hit->leaf, hit->at, hit->least, key, value)) {
        return 1;
    }
    weir__bestfit_erase_hit(f, hit);
    return weir__bestfit_insert(f, key, value);
}

int weir__bestfit_move(struct weir__bestfit *f, uint64_t old, uint64_t key, uint64_t value) {
    ref root = f->root[old >> f->shift];
    struct weir__bestfit_hit hit = {.key = old, .leaf = leaf_for(root, old)};

    hit.at = node_rank(hit.leaf, old);
    hit.least = leaf_least(root);
    return weir__bestfit_move_hit(f, &hit, key, value);
}

/* ------------------------------------------------------------------ look-up -- */

/* The first class in use from `c` on, or f->classes. */
static inline size_t class_from(const struct weir__bestfit *f, size_t c) {
    size_t word = c / 64;
    size_t sum;
    uint64_t bits;

    if (c >= f->classes) {
        return f->classes;
    }
    bits = f->used[word] & (UINT64_MAX << (c % 64));
    if (bits != 0) {
        return word * 64 + (size_t)__builtin_ctzll(bits);
    }
    word++;
    sum = word / 64;
    if (sum >= WEIR__BESTFIT_SUMMARIES) {
        return f->classes;
    }
    bits = f->summary[sum] & (UINT64_MAX << (word % 64));
    while (bits == 0) {
        if (++sum == WEIR__BESTFIT_SUMMARIES) {
            return f->classes;
        }
        bits = f->summary[sum];
    }
    word = sum * 64 + (size_t)__builtin_ctzll(bits);
    return word * 64 + (size_t)__builtin_ctzll(f->used[word]);
}

static inline void hit_set(struct weir__bestfit_hit *hit, ref root, node *leaf, unsigned at) {
    hit->key = leaf->key[at];
    hit->value = leaf->value[at];
    hit->leaf = leaf;
    hit->at = at;
    hit->least = leaf_least(root);
}

/* The smallest key of the tree. */
static inline int tree_first(ref root, struct weir__bestfit_hit *hit) {
    ref r = root;

    while (!is_leaf(r)) {
        r = (ref)node_of(r)->value[0];
    }
    hit_set(hit, root, node_of(r), 0);
    return 1;
}

/* The smallest key of the tree that is at least `key`; 1 or 0. */
static inline int tree_from(ref root, uint64_t key, struct weir__bestfit_hit *hit) {
    ref r = root;
    ref later = 0; /* the subtree behind the path */
    node *n = node_of(r);
    unsigned at;

    while (!is_leaf(r)) {
        at = child_of(n, key);
        later = at + 1 < n->count ? (ref)n->value[at + 1] : later;
        r = (ref)n->value[at];
        n = node_of(r);
    }
    at = node_rank(n, key);
    if (n->key[at] != NONE) {
        hit_set(hit, root, n, at);
        return 1;
    }
    if (later != 0) {
        tree_first(later, hit);
        hit->least = leaf_least(root);
        return 1;
    }
    return 0;
}

int weir__bestfit_from(const struct weir__bestfit *f, uint64_t key, struct weir__bestfit_hit *hit) {
    size_t c = (size_t)(key >> f->shift);

    if (c < f->classes && f->root[c] != 0) {
        if (tree_from(f->root[c], key, hit)) {
            return 1;
        }
        c++;
    }
    c = class_from(f, c);
    if (c < f->classes) {
        return tree_first(f->root[c], hit);
    }
    hit->key = NONE;
    return 0;
}

void weir__bestfit_set(struct weir__bestfit *f, uint64_t key, uint64_t value) {
    node *leaf = leaf_for(f->root[key >> f->shift], key);

    leaf->value[node_rank(leaf, key)] = value;
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
        while (!is_leaf(r)) {
            node *n = node_of(r);

            r = (ref)n->value[n->count - 1];
        }
        return node_of(r)->key[node_of(r)->count - 1];
    }
    return NONE;
}

/* ----------------------------------------------------------------- check -- */

/* Checks the tree below `r`, whose keys lie in [low, high]; adds its keys to *entries. */
static int tree_check(ref r, unsigned height, int root, uint64_t low, uint64_t high,
                      size_t *entries) {
    const node *n = node_of(r);
    unsigned least = root ? (height > 1 ? 2 : 1) : SPARSE;

    if ((height == 1) != is_leaf(r) || n->count < least || n->count > SLOTS) {
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
