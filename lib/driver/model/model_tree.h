/* SPDX-License-Identifier: MIT */
/* model_tree.h: an ordered set of nodes that are members of other structures; each operation takes O(log n) expected
 * time.
 *
 * The set is a treap whose priorities are hashes of the keys, so the shape of a set does not depend on its history.  A
 * key is a pair, (key, tie), and all keys of a set differ.
 *
 * Must not know: the structures; any lock.
 */
#ifndef WEIR_MODEL_TREE_H
#define WEIR_MODEL_TREE_H

#include <stdint.h>

struct model_node {
    struct model_node *left, *right;
    uint64_t key, tie;
};

void weir__model_tree_insert(struct model_node **root, struct model_node *node);
/* The node must be in the tree. */
void weir__model_tree_remove(struct model_node **root, struct model_node *node);
/* Return the first node at or behind (key, tie), and the last node at or before it; or NULL if there is none. */
struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie);
struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie);

#endif
