/* SPDX-License-Identifier: MIT */
/* handler.c: allocates and frees memory for cuTensorNet, cuDSS, cuStateVec and nvJPEG.
 *
 * The code in this file must not depend on anything of these libraries except their structure for an allocator. */
#include "adapters/plugins/plugins.h"

#include <string.h>

static weir_status find_handler_allocator(void *ctx, const void *block, weir_stream stream,
                                          weir_allocator **allocator) {
    if (!ctx)
        return block ? weir__adapter_owner(block, stream, allocator)
                     : weir_stream_allocator(stream, allocator);
    *allocator = ctx;
    return WEIR_OK;
}

int weir_handler_alloc(void *ctx, void **block, size_t bytes, weir_stream stream) {
    weir_allocator *a;
    weir_status status;

    weir__adapter_retry_frees();
    status = find_handler_allocator(ctx, NULL, stream, &a);
    if (status == WEIR_OK)
        status = weir_alloc(a, bytes, stream, block);
    if (status != WEIR_OK)
        weir__adapter_report_failure("weir_handler_alloc", bytes, status);
    return status;
}

int weir_handler_free(void *ctx, void *block, size_t bytes, weir_stream stream) {
    weir_allocator *a;
    weir_status status;

    (void)bytes;
    if (!block)
        return WEIR_OK;
    status = find_handler_allocator(ctx, block, stream, &a);
    return status == WEIR_OK
               ? weir__adapter_free("weir_handler_free", a, block, WEIR__ADAPTER_STREAM, stream)
               : status;
}

void weir_mem_handler_init(weir_mem_handler *handler, weir_allocator *allocator) {
    memset(handler, 0, sizeof *handler);
    handler->ctx = allocator;
    handler->device_alloc = weir_handler_alloc;
    handler->device_free = weir_handler_free;
    strcpy(handler->name, "weir");
}
