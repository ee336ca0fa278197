/* SPDX-License-Identifier: MIT */
/* free_tree.c: the ordered set of free chunks: its classes, trees and nodes.
 *
 * A class keeps its smallest key in a slot and all other keys in a B+-tree.  The nodes sort the complements of keys,
 * called marks here.  The separator of a child is a lower bound of all marks in the child's subtree.  key[0] of an
 * inner node equals the node's separator in its parent; on the left edge of the tree both are 0.  Each node but the
 * root has at least SPARSE entries: a node with fewer is joined with a sibling, or gets some of the sibling's entries.
 * An insert first reserves the nodes of the longest chain of splits, so that a failed insert changes nothing.
 *
 * A change within one leaf writes no node above the leaf.  Only an operation that splits or joins nodes descends a
 * second time, recursively.
 *
 * This file must not know streams, regions, or what a chunk is besides size, address and a number.
 */
#include "placement/free_tree.h"

#define SLOTS WEIR__BESTFIT_SLOTS
#define NONE WEIR__BESTFIT_NONE
#define SPARSE 5u
#define CACHE_LINE 64u
#define FIRST_NODES ((size_t)8)
#define MOST_NODES ((size_t)UINT32_MAX / 2)

typedef weir__bestfit_ref ref;
typedef struct weir__bestfit_node node;
typedef struct weir__bestfit_pool pool;

static inline int is_leaf(ref r) {
    return (r & 1) == 0;
}

static inline node *node_of(const pool *p, ref r) {
    return &p->node[r >> 1];
}

/* Returns the mark of a key.  The mark is never NONE, since all keys are smaller than NONE. */
static inline uint64_t mark_of(uint64_t key) {
    return NONE - 1 - key;
}

static inline uint64_t key_of(uint64_t mark) {
    return NONE - 1 - mark;
}

/* ------------------------------------------------------------------ nodes -- */

void weir__bestfit_pool_init(pool *p, struct weir__hostmem *host) {
    *p = (pool){.host = host, .nodes = 1};
}

void weir__bestfit_pool_drop(pool *p) {
    weir__hostmem_resize(p->host, p->memory, p->bytes, 0);
    weir__bestfit_pool_init(p, p->host);
}

/* Puts node `r`, which has no entry, into the pool's list of unused nodes. */
static void node_give(pool *p, ref r) {
    node_of(p, r)->value[0] = p->spare;
    p->spare = r >> 1;
    p->spares++;
}

/* Removes a node from the pool's list of unused nodes, and returns it as an empty leaf. */
static ref node_take(pool *p) {
    uint32_t i = p->spare;

    p->spare = p->node[i].value[0];
    p->spares--;
    return 2 * i;
}

static void node_clear(node *n) {
    n->count = 0;
    for (unsigned i = 0; i <= SLOTS; i++)
        n->key[i] = NONE;
}

/* Adds at least `want` unused nodes, which moves all nodes.  Returns 1 on success, 0 if there is no host memory. */
static int nodes_grow(pool *p, size_t want) {
    size_t nodes = p->nodes > 1 ? 2 * (size_t)p->nodes : FIRST_NODES;
    size_t bytes;
    void *memory;
    node *first;

    while (nodes - p->nodes < want)
        nodes *= 2;
    bytes = nodes * sizeof(node) + CACHE_LINE - 1;
    memory = nodes > MOST_NODES ? NULL : weir__hostmem_resize(p->host, NULL, 0, bytes);
    if (memory == NULL)
        return 0;
    first = (node *)(((uintptr_t)memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    if (p->node != NULL)
        memcpy(first + 1, p->node + 1, (p->nodes - 1) * sizeof(node));
    weir__hostmem_resize(p->host, p->memory, p->bytes, 0);
    p->node = first;
    p->memory = memory;
    p->bytes = bytes;
    while (p->nodes < nodes) {
        node_clear(&first[p->nodes]);
        node_give(p, 2 * p->nodes++);
    }
    return 1;
}

/* Ensures that the pool has `want` unused nodes.  Returns 1 on success, 0 if there is no host memory. */
static inline int nodes_reserve(pool *p, size_t want) {
    return p->spares >= want || nodes_grow(p, want);
}

/* --------------------------------------------------------------- classes -- */

void weir__bestfit_init(struct weir__bestfit *f, pool *p) {
    memset(f, 0, sizeof *f);
    f->pool = p;
}

static size_t table_bytes(size_t octaves) {
    return octaves * WEIR__BESTFIT_CLASSES * sizeof(struct weir__bestfit_slot);
}

void weir__bestfit_populate(const struct weir__bestfit *f) {
    weir__hostmem_populate(f->slot, table_bytes(f->reach));
}

static void tree_drop(pool *p, ref r) {
    node *n = node_of(p, r);

    for (unsigned i = 0; i < n->count && !is_leaf(r); i++)
        tree_drop(p, n->value[i]);
    node_clear(n);
    node_give(p, r);
}

/* Finds the first class in use from *c on.  Returns its slot and writes its number to *c, or returns NULL. */
static struct weir__bestfit_slot *class_next(const struct weir__bestfit *f, size_t *c) {
    size_t octave = *c / WEIR__BESTFIT_CLASSES;
    uint64_t bits;

    if (octave >= f->reach)
        return NULL;
    bits = f->used[octave] >> *c % WEIR__BESTFIT_CLASSES;
    if (bits == 0) {
        bits = f->octaves & (UINT64_MAX - 1) << octave;
        if (bits == 0)
            return NULL;
        octave = (size_t)__builtin_ctzll(bits);
        *c = octave * WEIR__BESTFIT_CLASSES;
        bits = f->used[octave];
    }
    *c += (size_t)__builtin_ctzll(bits);
    return &f->slot[*c];
}

void weir__bestfit_drop(struct weir__bestfit *f) {
    struct weir__bestfit_slot *s;

    for (size_t c = 0; (s = class_next(f, &c)) != NULL; c++)
        if (s->others != 0)
            tree_drop(f->pool, s->others);
    weir__hostmem_resize(f->pool->host, f->slot, table_bytes(f->reach), 0);
    weir__bestfit_init(f, f->pool);
}

/* Makes room for the slots of `reach` octaves.  Returns 1 on success, 0 if there is no host memory. */
static int table_grow(struct weir__bestfit *f, size_t reach) {
    void *moved =
        weir__hostmem_resize(f->pool->host, f->slot, table_bytes(f->reach), table_bytes(reach));

    if (moved == NULL)
        return 0;
    f->slot = moved;
    f->reach = reach;
    return 1;
}

/* ----------------------------------------------------------------- nodes' entries -- */

/* Returns the number of marks in the node that are below `mark`, by two rounds of comparisons without branches. */
static inline unsigned node_rank(const node *n, uint64_t mark) {
    const uint64_t *k = n->key;
    unsigned at =
        4u * ((unsigned)(k[3] < mark) + (unsigned)(k[7] < mark) + (unsigned)(k[11] < mark));

    k += at;
    return at + (unsigned)(k[0] < mark) + (unsigned)(k[1] < mark) + (unsigned)(k[2] < mark);
}

/* Adds an entry to a node that is not full.  Searches from the end, since a class seldom has many keys, and the new key
 * is often the smallest. */
static inline void node_add(node *n, uint64_t mark, uint32_t value) {
    uint64_t *key = &n->key[n->count];
    uint32_t *v = &n->value[n->count];

    for (; key != n->key && key[-1] > mark; key--, v--) {
        key[0] = key[-1];
        v[0] = v[-1];
    }
    *key = mark;
    *v = value;
    n->count++;
}

/* Removes the entry at index `at`. */
static inline void node_cut(node *n, unsigned at) {
    unsigned last = --n->count;

    for (; at < last; at++) {
        n->key[at] = n->key[at + 1];
        n->value[at] = n->value[at + 1];
    }
    n->key[last] = NONE;
}

/* Removes the entry with this mark, which the node has.  Searches from the end, as node_add() does. */
static inline void node_drop(node *n, uint64_t mark) {
    unsigned i = --n->count;
    uint64_t key = n->key[i];
    uint32_t value = n->value[i];

    n->key[i] = NONE;
    while (key != mark) {
        uint64_t next_key = n->key[--i];
        uint32_t next_value = n->value[i];

        n->key[i] = key;
        n->value[i] = value;
        key = next_key;
        value = next_value;
    }
}

/* Moves the last `count` entries of `from` to the beginning of `to`. */
static void node_shift_right(node *from, node *to, unsigned count) {
    unsigned keep = from->count - count;

    memmove(&to->key[count], &to->key[0], to->count * sizeof to->key[0]);
    memmove(&to->value[count], &to->value[0], to->count * sizeof to->value[0]);
    memcpy(&to->key[0], &from->key[keep], count * sizeof to->key[0]);
    memcpy(&to->value[0], &from->value[keep], count * sizeof to->value[0]);
    to->count += count;
    from->count = keep;
    for (unsigned i = keep; i < keep + count; i++)
        from->key[i] = NONE;
}

/* Moves the first `count` entries of `from` to the end of `to`. */
static void node_shift_left(node *from, node *to, unsigned count) {
    unsigned keep = from->count - count;

    memcpy(&to->key[to->count], &from->key[0], count * sizeof to->key[0]);
    memcpy(&to->value[to->count], &from->value[0], count * sizeof to->value[0]);
    to->count += count;
    memmove(&from->key[0], &from->key[count], keep * sizeof from->key[0]);
    memmove(&from->value[0], &from->value[count], keep * sizeof from->value[0]);
    from->count = keep;
    for (unsigned i = keep; i < keep + count; i++)
        from->key[i] = NONE;
}

/* Returns the index of the child of an inner node in whose subtree `mark` belongs. */
static unsigned child_of(const node *n, uint64_t mark) {
    return node_rank(n, mark + 1) - 1;
}

/* ----------------------------------------------------------------- trees -- */

static unsigned tree_height(const pool *p, ref r) {
    unsigned height = 1;

    while (!is_leaf(r)) {
        r = node_of(p, r)->value[0];
        height++;
    }
    return height;
}

/* Returns the leaf in which `mark` belongs. */
static inline node *leaf_for(const pool *p, ref r, uint64_t mark) {
    node *n = node_of(p, r);

    while (!is_leaf(r)) {
        r = n->value[child_of(n, mark)];
        n = node_of(p, r);
    }
    return n;
}

/* Returns the leaf with the largest marks. */
static inline node *leaf_last(const pool *p, ref r) {
    node *n = node_of(p, r);

    while (!is_leaf(r)) {
        r = n->value[n->count - 1];
        n = node_of(p, r);
    }
    return n;
}

/* Adds an entry to the subtree of `r`; the pool has enough unused nodes.  If `r` is full, splits it, returns the new
 * right node, and writes the lower bound of that node's marks to *bound.  Otherwise returns 0. */
static ref tree_insert(pool *p, ref r, uint64_t mark, uint32_t value, uint64_t *bound) {
    node *n = node_of(p, r);
    node *right;
    ref cut;

    if (!is_leaf(r)) {
        value = tree_insert(p, n->value[child_of(n, mark)], mark, value, &mark);
        if (value == 0)
            return 0;
    }
    if (n->count < SLOTS) {
        node_add(n, mark, value);
        return 0;
    }
    cut = node_take(p);
    right = node_of(p, cut);
    node_shift_right(n, right, SLOTS / 2);
    if (mark < right->key[0])
        node_add(n, mark, value);
    else
        node_add(right, mark, value);
    *bound = right->key[0];
    return cut | (r & 1);
}

/* Adds an entry to the tree.  Returns 1 on success, 0 if there is no host memory. */
static int tree_put(pool *p, ref *root, uint64_t mark, uint32_t value) {
    uint64_t bound;
    node *leaf;
    ref above;
    ref right;

    if (*root == 0) {
        if (!nodes_reserve(p, 1))
            return 0;
        *root = node_take(p);
    }
    leaf = leaf_for(p, *root, mark);
    if (leaf->count < SLOTS) {
        node_add(leaf, mark, value);
        return 1;
    }
    if (!nodes_reserve(p, tree_height(p, *root) + 1))
        return 0;
    right = tree_insert(p, *root, mark, value, &bound);
    if (right != 0) {
        above = node_take(p);
        node_add(node_of(p, above), 0, *root);
        node_add(node_of(p, above), bound, right);
        *root = above | 1;
    }
    return 1;
}

/* Joins child `at` of `n`, which has too few entries, with a sibling, or moves entries from the sibling to it. */
static void tree_rebalance(pool *p, node *n, unsigned at) {
    unsigned first = at > 0 ? at - 1 : 0;
    node *left = node_of(p, n->value[first]);
    node *right = node_of(p, n->value[first + 1]);
    unsigned half = (left->count + right->count) / 2;

    if (left->count + right->count <= SLOTS) {
        node_shift_left(right, left, right->count);
        node_give(p, n->value[first + 1]);
        node_cut(n, first + 1);
        return;
    }
    if (left->count > half)
        node_shift_right(left, right, left->count - half);
    else
        node_shift_left(right, left, half - left->count);
    n->key[first + 1] = right->key[0];
}

static void tree_erase(pool *p, ref r, uint64_t mark) {
    node *n = node_of(p, r);
    unsigned at;

    if (is_leaf(r)) {
        node_drop(n, mark);
        return;
    }
    at = child_of(n, mark);
    tree_erase(p, n->value[at], mark);
    if (node_of(p, n->value[at])->count < SPARSE)
        tree_rebalance(p, n, at);
}

/* Removes `mark` from the tree, whose leaf `leaf` has it.  Returns the root, or 0 if the tree is empty now. */
static ref tree_cut(pool *p, ref root, node *leaf, uint64_t mark) {
    node *n = node_of(p, root);
    ref only;

    if (leaf->count > SPARSE || is_leaf(root)) {
        node_drop(leaf, mark);
        if (leaf->count > 0)
            return root;
        node_give(p, root);
        return 0;
    }
    tree_erase(p, root, mark);
    if (n->count > 1)
        return root;
    only = n->value[0];
    n->key[0] = NONE;
    n->count = 0;
    node_give(p, root);
    return only;
}

/* Finds the largest mark that is at most `mark`.  Returns its leaf and its index in *at, or NULL if there is none. */
static const node *tree_up_to(const pool *p, ref r, uint64_t mark, unsigned *at) {
    const node *n = node_of(p, r);
    ref before = 0; /* the subtree to the left of the path */

    while (!is_leaf(r)) {
        unsigned child = child_of(n, mark);

        before = child > 0 ? n->value[child - 1] : before;
        r = n->value[child];
        n = node_of(p, r);
    }
    *at = node_rank(n, mark + 1);
    if (*at == 0) {
        if (before == 0)
            return NULL;
        n = leaf_last(p, before);
        *at = n->count;
    }
    --*at;
    return n;
}

/* ---------------------------------------------------------------- the set -- */

int weir__bestfit_insert_more(struct weir__bestfit *f, uint64_t key, uint32_t value) {
    size_t c = weir__bestfit_class(key), octave = c / WEIR__BESTFIT_CLASSES;
    struct weir__bestfit_slot *s;
    int first;

    if (octave >= f->reach)
        return table_grow(f, octave + 1) && weir__bestfit_insert(f, key, value);
    s = &f->slot[c];
    first = key < s->key;
    if (!tree_put(f->pool, &s->others, mark_of(first ? s->key : key), first ? s->value : value))
        return 0;
    if (first) {
        s->key = key;
        s->value = value;
    }
    return 1;
}

void weir__bestfit_erase_more(struct weir__bestfit *f, uint64_t key) {
    struct weir__bestfit_slot *s = &f->slot[weir__bestfit_class(key)];
    node *leaf;

    if (s->key == key) { /* the next key moves into the slot */
        leaf = leaf_last(f->pool, s->others);
        key = key_of(leaf->key[leaf->count - 1]);
        s->key = key;
        s->value = leaf->value[leaf->count - 1];
    } else {
        leaf = leaf_for(f->pool, s->others, mark_of(key));
    }
    s->others = tree_cut(f->pool, s->others, leaf, mark_of(key));
}

/* Finds the smallest key that is at least `key`.  The class of `key` is in use, but the key in its slot is smaller. */
struct weir__bestfit_hit weir__bestfit_from_others(const struct weir__bestfit *f, uint64_t key) {
    size_t c = weir__bestfit_class(key);
    const struct weir__bestfit_slot *s = &f->slot[c];

    if (s->others != 0) {
        unsigned at;
        const node *leaf = tree_up_to(f->pool, s->others, mark_of(key), &at);

        if (leaf != NULL)
            return (struct weir__bestfit_hit){key_of(leaf->key[at]), leaf->value[at]};
    }
    return weir__bestfit_from(f, (uint64_t)(c + 1) << WEIR__BESTFIT_CLASS_BITS);
}

void weir__bestfit_set(struct weir__bestfit *f, uint64_t key, uint32_t value) {
    struct weir__bestfit_slot *s = &f->slot[weir__bestfit_class(key)];
    node *leaf;

    if (s->key == key) {
        s->value = value;
        return;
    }
    leaf = leaf_for(f->pool, s->others, mark_of(key));
    leaf->value[node_rank(leaf, mark_of(key))] = value;
}
