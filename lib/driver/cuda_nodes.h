/* SPDX-License-Identifier: MIT */
/* cuda_nodes.h: the parameters of graph nodes in the ABI of the driver, beside cuda_abi.h.
 *
 * Must not know: who makes nodes.
 */
#ifndef WEIR_CUDA_NODES_H
#define WEIR_CUDA_NODES_H

#include "driver/cuda_abi.h"

/* CUDA_MEM_ALLOC_NODE_PARAMS, the parameters of a graph node that allocates; and the start of CUgraphNodeParams. */
struct weir_alloc_node {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr block;
};
struct weir_any_node {
    unsigned int type; /* WEIR_NODE_ALLOC if the node allocates */
    int reserved[3];
    struct weir_alloc_node alloc;
};
#define WEIR_NODE_ALLOC 10

#endif
