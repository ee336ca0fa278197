/* SPDX-License-Identifier: MIT */
/* cupy.c: allocates and frees memory for CuPy (CFunctionAllocator).  The argument `param` of both functions is the
 * stream of the block, or NULL if any stream may use the block.
 *
 * The code in this file must not depend on anything of CuPy except the types of these functions. */
#include "adapters/plugins/plugins.h"

void *weir_cupy_malloc(void *param, size_t bytes, int device) {
    weir_stream stream = param;
    weir_allocator *a;
    void *block = NULL;
    weir_status status;

    weir__adapter_retry_frees();
    status = weir_device_allocator(device, &a);
    if (status == WEIR_OK)
        status = stream ? weir_alloc(a, bytes, stream, &block) : weir_alloc_any(a, bytes, &block);
    if (status != WEIR_OK)
        weir__adapter_report_failure("weir_cupy_malloc", bytes, status);
    return block;
}

void weir_cupy_free(void *param, void *block, int device) {
    weir_stream stream = param;
    weir_allocator *a;

    if (block && weir_device_allocator(device, &a) == WEIR_OK)
        (void)weir__adapter_free("weir_cupy_free", a, block,
                                 stream ? WEIR__ADAPTER_STREAM : WEIR__ADAPTER_ANY, stream);
}
