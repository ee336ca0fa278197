/* SPDX-License-Identifier: MIT */
/* onnx.c: allocates and frees memory for ONNX Runtime's CUDA execution provider (its external allocator).
 *
 * The code in this file must not depend on anything of ONNX Runtime except the types of these functions. */
#include "adapters/plugins/plugins.h"

#include <stdatomic.h>

/* the stream of all requests and frees, or NULL if any stream may use the blocks */
static _Atomic(weir_stream) the_stream;

void weir_onnx_stream(weir_stream stream) {
    atomic_store_explicit(&the_stream, stream, memory_order_release);
}

void *weir_onnx_alloc(size_t bytes) {
    weir_stream stream = atomic_load_explicit(&the_stream, memory_order_acquire);
    weir_allocator *a;
    void *block = NULL;
    weir_status status;

    weir__adapter_retry_frees();
    status = weir_stream_allocator(stream, &a);
    if (status == WEIR_OK)
        status = stream ? weir_alloc(a, bytes, stream, &block) : weir_alloc_any(a, bytes, &block);
    if (status != WEIR_OK)
        weir__adapter_report_failure("weir_onnx_alloc", bytes, status);
    return block;
}

void weir_onnx_free(void *block) {
    weir_stream stream = atomic_load_explicit(&the_stream, memory_order_acquire);
    weir_allocator *a;

    if (block && weir__adapter_owner(block, stream, &a) == WEIR_OK)
        (void)weir__adapter_free("weir_onnx_free", a, block,
                                 stream ? WEIR__ADAPTER_STREAM : WEIR__ADAPTER_ANY, stream);
}

void weir_onnx_empty_cache(void) {
    weir_stream stream = atomic_load_explicit(&the_stream, memory_order_acquire);
    weir_allocator *a;

    weir__adapter_retry_frees();
    if (weir_stream_allocator(stream, &a) == WEIR_OK)
        (void)weir_trim(a, 0, NULL);
}
