/* SPDX-License-Identifier: MIT */
/* preload_frees.c: replaces the driver's functions that free memory.  Each of them can free any block of weir. */
#include "adapters/preload/preload.h"

#include "base/log.h"

/* Makes the allocator's private stream wait for `stream`, and frees the block on the private stream. */
static weir_status free_on_foreign_stream(struct weir_served *s, void *block, CUstream stream) {
    CUstream private_stream = weir__served_private_stream(s);

    return private_stream ? weir__drop_in_free_after(s->allocator, block, stream, private_stream)
                          : WEIR_E_STREAM;
}

static inline void after_free(const struct weir_found *found, int is_freed) {
    if (__builtin_expect(!is_freed, 0)) {
        weir__block_restore(found);
    } else {
        weir__block_ended(found);
        weir__served_freed(found->by);
    }
}

weir_status weir__free_block(const struct weir_found *found, CUstream stream) {
    void *block = (void *)(uintptr_t)found->base;
    weir_status status;

    weir__block_end(found);
    status = is_of_other_context(found->by, stream)
                 ? WEIR_E_STREAM
                 : weir_free(found->by->allocator, block, stream);
    if (__builtin_expect(status == WEIR_E_STREAM, 0))
        status = free_on_foreign_stream(found->by, block, stream);
    after_free(found, status == WEIR_OK);
    return status;
}

enum to_free { PASS_TO_DRIVER, FREE_BLOCK, RETURN_RESULT };

static int is_served_lost(const struct weir_served *s) {
    return atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_LOST;
}

/* Returns 1 if `block` lies in memory of weir that no reset has destroyed, else 0. */
static int is_in_allocator(CUdeviceptr block) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        if (!is_served_lost(weir__served_at(i)) &&
            weir__drop_in_contains(weir__served_at(i)->allocator, block))
            return 1;
    return 0;
}

/* Returns 1 if the driver allocated `block` after a reset destroyed the allocator's memory, else 0. */
static int is_new_driver_block(const struct weir_served *s, CUdeviceptr block) {
    CUdeviceptr base;
    size_t bytes;

    return is_served_lost(s) && !weir__drop_in_keeps_addresses(s->allocator) &&
           !is_in_allocator(block) &&
           REAL(cuMemGetAddressRange_v2)(&base, &bytes, block) == CUDA_SUCCESS && base == block;
}

static __attribute__((noinline, cold)) enum to_free treat_unknown_block(CUdeviceptr block,
                                                                        CUresult *result) {
    struct weir_served *s = weir__allocator_at(block);

    if (!s || is_new_driver_block(s, block))
        return PASS_TO_DRIVER;
    *result = is_served_lost(s) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return RETURN_RESULT;
}

static __attribute__((noinline, cold)) enum to_free free_lost_block(const struct weir_found *found,
                                                                    CUresult *result) {
    weir__block_end(found);
    after_free(found, 1);
    *result = CUDA_SUCCESS;
    return RETURN_RESULT;
}

static inline enum to_free find_to_free(CUdeviceptr block, struct weir_found *found,
                                        CUresult *result) {
    if (weir__block_find(block, found) && found->base == block)
        return __builtin_expect(is_served_lost(found->by), 0) ? free_lost_block(found, result)
                                                              : FREE_BLOCK;
    return treat_unknown_block(block, result);
}

static inline int has_no_block_records(void) {
    return !atomic_load_explicit(&weir__blocks_recorded, memory_order_acquire) &&
           !atomic_load_explicit(&weir__blocks_have_ids, memory_order_acquire);
}

/* Frees a block in the common case.  Returns 1 if the block was freed, 0 if nothing was done. */
static inline int free_common_case(CUdeviceptr block, CUstream stream) {
    struct weir_served *s = weir__served_at(weir__block_last);

    if (is_any_captured() || !has_no_block_records() ||
        atomic_load_explicit(&s->state, memory_order_relaxed) != WEIR_SERVED_LIVE ||
        is_of_other_context(s, stream) ||
        !weir__drop_in_free_to_cache(s->allocator, (void *)(uintptr_t)block, stream))
        return 0;
    weir__served_freed(s);
    return 1;
}

static inline int serve_free(CUdeviceptr block, CUstream stream, CUresult *result) {
    struct weir_found found;
    enum to_free what;

    if (!block || weir__served_known() == 0 || !begin_serving())
        return 0;
    if (__builtin_expect(free_common_case(block, stream), 1)) {
        end_serving();
        *result = CUDA_SUCCESS;
        return 1;
    }
    what = find_to_free(block, &found, result);
    /* On a captured stream, only blocks of graphs can be freed.  For a block of weir, returns the driver's error. */
    if (what == FREE_BLOCK)
        *result = is_stream_captured(stream) ? CUDA_ERROR_INVALID_VALUE
                                             : weir__result_of(weir__free_block(&found, stream));
    if (what == FREE_BLOCK && __builtin_expect(*result != CUDA_SUCCESS, 0) &&
        weir__stream_lacks_context(stream))
        *result = CUDA_ERROR_INVALID_CONTEXT;
    end_serving();
    return what != PASS_TO_DRIVER;
}

/* Frees memory by `call` of the driver.  On success, deletes weir's record of the memory, if there is one. */
#define FREE_BY_DRIVER(block, call)                                                                \
    __extension__({                                                                                \
        struct weir_plain_record *its_record =                                                     \
            (block) && !weir__is_serving ? weir__plain_freeing(block) : NULL;                      \
        CUresult its_result = call;                                                                \
        weir__plain_freed(its_record, block, its_result);                                          \
        its_result;                                                                                \
    })

CUresult weir__serve_cuMemFreeAsync(CUdeviceptr block, CUstream stream) {
    CUresult result;

    return serve_free(block, stream, &result)
               ? result
               : FREE_BY_DRIVER(block, REAL(cuMemFreeAsync)(block, stream));
}

CUresult weir__serve_cuMemFreeAsync_ptsz(CUdeviceptr block, CUstream stream) {
    CUresult result;

    return serve_free(block, to_per_thread_stream(stream), &result)
               ? result
               : FREE_BY_DRIVER(block, REAL_PTSZ(cuMemFreeAsync)(block, stream));
}

/* Frees a block for cuMemFree.  Like the driver, first waits for the device if the block is from cuMemAlloc. */
static CUresult free_synchronously(const struct weir_found *found) {
    struct weir_served *s = found->by;
    CUresult result = s->is_plain ? weir__drop_in_wait(s->allocator) : CUDA_SUCCESS;

    if (result != CUDA_SUCCESS)
        return result;
    weir__block_end(found);
    result =
        weir__result_of(weir__drop_in_free_completed(s->allocator, (void *)(uintptr_t)found->base));
    after_free(found, result == CUDA_SUCCESS);
    return result;
}

CUresult weir__serve_cuMemFree_v2(CUdeviceptr block) {
    enum to_free what = PASS_TO_DRIVER;
    CUresult result = CUDA_SUCCESS;
    struct weir_found found;

    if (block && weir__served_known() > 0 && begin_serving()) {
        what = find_to_free(block, &found, &result);
        if (what == FREE_BLOCK)
            result = free_synchronously(&found);
        end_serving();
    }
    return what != PASS_TO_DRIVER ? result : FREE_BY_DRIVER(block, REAL(cuMemFree_v2)(block));
}
