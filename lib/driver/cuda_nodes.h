/* SPDX-License-Identifier: MIT */
/* cuda_nodes.h: what programs make nodes of graphs of, in the driver's ABI, as cuda_abi.h has it.
 *
 * Must not know: who makes them.
 */
#ifndef WEIR_CUDA_NODES_H
#define WEIR_CUDA_NODES_H

#include "driver/cuda_abi.h"

/* What a node of a graph that allocates is made of: CUDA_MEM_ALLOC_NODE_PARAMS, and in a CUgraphNodeParams. */
struct weir_alloc_node {
    CUmemPoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr block;
};
struct weir_any_node {
    unsigned int type; /* another: it is no alloc node */
    int reserved[3];
    struct weir_alloc_node alloc;
};
#define WEIR_NODE_ALLOC 10

#endif
