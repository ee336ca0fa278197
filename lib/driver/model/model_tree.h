/* SPDX-License-Identifier: MIT */
/* model_tree.h: an ordered set of nodes that lie in other structures, O(log n) expected.
 *
 * A treap: the priority is a hash of the key, so a set has one shape whatever its history.  Keys
 * are pairs, (key, tie), and must differ.
 *
 * Must not know: what the nodes are part of; any lock.
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
/* The first node at or behind (key, tie); the last at or before it.  NULL: none. */
struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie);
struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie);

#endif
