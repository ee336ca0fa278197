/* SPDX-License-Identifier: MIT */
/* blocks.h: blocks that are had and given back, where each call must go well. */
#ifndef WEIR_TEST_BLOCKS_H
#define WEIR_TEST_BLOCKS_H

#include "driver.h"
#include "support.h"

static inline void *take(weir_allocator *a, size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    MUST(bytes == 0 || block != NULL);
    return block;
}

static inline void give(weir_allocator *a, void *block, CUstream stream) {
    OK(weir_free(a, block, stream));
}

/* Of which the statistics agree. */
static inline uint64_t reserve(weir_allocator *a) {
    return check_identities(a).reserve;
}

#endif
