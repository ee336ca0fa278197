/* SPDX-License-Identifier: MIT */
/* model_tree.c: ordered sets of nodes, as treaps.  No function is recursive, so even a deep tree needs little stack. */
#include "driver/model/model_inside.h"

static uint64_t priority(const struct model_node *node) {
    uint64_t x = node->key ^ (node->tie * 0x9e3779b97f4a7c15u);

    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static int before(const struct model_node *node, uint64_t key, uint64_t tie) {
    return node->key < key || (node->key == key && node->tie < tie);
}

/* Splits `tree` into subtrees of `node`: on the left the nodes before `node`, on the right the nodes after `node`. */
static void split(struct model_node *tree, struct model_node *node) {
    struct model_node **left = &node->left, **right = &node->right;

    while (tree) {
        if (before(tree, node->key, node->tie)) {
            *left = tree;
            left = &tree->right;
            tree = tree->right;
        } else {
            *right = tree;
            right = &tree->left;
            tree = tree->left;
        }
    }
    *left = NULL;
    *right = NULL;
}

void weir__model_tree_insert(struct model_node **root, struct model_node *node) {
    uint64_t own = priority(node);

    while (*root && priority(*root) >= own)
        root = before(*root, node->key, node->tie) ? &(*root)->right : &(*root)->left;
    split(*root, node);
    *root = node;
}

void weir__model_tree_remove(struct model_node **root, struct model_node *node) {
    struct model_node *left = node->left, *right = node->right;

    while (*root != node)
        root = before(*root, node->key, node->tie) ? &(*root)->right : &(*root)->left;
    while (left && right) {
        if (priority(left) >= priority(right)) {
            *root = left;
            root = &left->right;
            left = left->right;
        } else {
            *root = right;
            root = &right->left;
            right = right->left;
        }
    }
    *root = left ? left : right;
}

struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie) {
    struct model_node *found = NULL;

    while (root) {
        if (before(root, key, tie)) {
            root = root->right;
        } else {
            found = root;
            root = root->left;
        }
    }
    return found;
}

struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie) {
    struct model_node *found = NULL;

    while (root) {
        if (root->key < key || (root->key == key && root->tie <= tie)) {
            found = root;
            root = root->right;
        } else {
            root = root->left;
        }
    }
    return found;
}
