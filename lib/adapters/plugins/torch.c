/* SPDX-License-Identifier: MIT */
/* torch.c: allocates and frees memory for PyTorch's CUDAPluggableAllocator.
 *
 * PyTorch (2.11) would pass a NULL block to kernels.  So if a request fails, this file throws a C++ exception, as
 * PyTorch's own allocator does.  weir is not linked with a C++ library, so weir calls a function of the C++ library
 * of the process.  This file is compiled with -fexceptions.  A thread that throws holds no lock.
 *
 * The code in this file must not depend on anything of PyTorch except the types of these functions. */
#include "adapters/plugins/plugins.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>

enum { TEXT_BYTES = 512 };

/* Throws a C++ exception with the text, by libstdc++.  Returns if the process has not loaded libstdc++. */
static void throw_runtime_error(const char *text) {
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void (*throws)(const char *) = NULL;

    if (!library)
        return;
    /* std::__throw_runtime_error(const char *), which libstdc++ keeps in all versions */
    *(void **)&throws = dlsym(library, "_ZSt21__throw_runtime_errorPKc");
    dlclose(library); /* the library stays loaded, since the process uses it */
    if (throws)
        throws(text);
}

static __attribute__((noinline, cold)) void *throw_no_memory(size_t bytes, weir_status status) {
    const char *head = status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT
                           ? "CUDA out of memory. weir_torch_alloc"
                           : "weir_torch_alloc";
    char text[TEXT_BYTES];

    weir__adapter_text(text, sizeof text, head, bytes, status);
    throw_runtime_error(text);
    weir__adapter_report_failure("weir_torch_alloc", bytes, status);
    return NULL;
}

static _Atomic uint64_t devices; /* one bit for each device that PyTorch uses */

static void store_device(int device) {
    uint64_t bit = UINT64_C(1) << device;

    if (!(atomic_load_explicit(&devices, memory_order_relaxed) & bit))
        atomic_fetch_or_explicit(&devices, bit, memory_order_relaxed);
}

void *weir_torch_alloc(size_t bytes, int device, weir_stream stream) {
    weir_allocator *a;
    void *block = NULL;
    weir_status status;

    weir__adapter_retry_frees();
    status = weir_device_allocator(device, &a);
    if (status == WEIR_OK)
        status = weir_alloc(a, bytes, stream, &block);
    if (status != WEIR_OK)
        return throw_no_memory(bytes, status);
    store_device(device);
    return block;
}

void weir_torch_free(void *block, size_t bytes, int device, weir_stream stream) {
    weir_allocator *a;

    (void)bytes;
    if (block && weir_device_allocator(device, &a) == WEIR_OK)
        (void)weir__adapter_free("weir_torch_free", a, block, WEIR__ADAPTER_STREAM, stream);
}

void weir_torch_init(int device_count) {
    (void)device_count;
}

void weir_torch_reset(void) {
    weir__adapter_retry_frees();
    for (int device = 0; device < 64; device++) {
        weir_allocator *a;

        if (atomic_load_explicit(&devices, memory_order_relaxed) >> device & 1 &&
            weir_device_allocator(device, &a) == WEIR_OK)
            (void)weir_trim(a, 0, NULL);
    }
}

void weir_torch_memory_fraction(double fraction, int device) {
    weir_amount limit = {.value = 0, .kind = WEIR_AMOUNT_OF_TOTAL};
    weir_allocator *a;
    weir_status status;

    if (!(fraction >= 0 && fraction <= 1)) /* PyTorch checks the fraction, too */
        return;
    limit.value = (uint64_t)(fraction * 1e6);
    if (fraction == 1) /* in PyTorch, 1 means no limit */
        limit.kind = WEIR_AMOUNT_MAX;
    status = weir_device_allocator(device, &a);
    if (status == WEIR_OK)
        status = weir_set_limit(a, limit);
    if (status != WEIR_OK)
        weir__adapter_failed("weir_torch_memory_fraction", status);
}

void *weir_torch_base_alloc(void *address, size_t *bytes) {
    weir_allocator *a;
    void *block = address;
    size_t requested = 0;

    if (!address || weir_block_allocator(address, &a) != WEIR_OK ||
        weir_block_range(a, address, &block, &requested) != WEIR_OK)
        block = address, requested = 0;
    if (bytes)
        *bytes = requested;
    return block;
}

void weir_torch_record_stream(void *block, weir_stream stream) {
    weir_allocator *a;
    weir_status status;

    if (!block)
        return;
    status = weir__adapter_owner(block, stream, &a);
    if (status == WEIR_OK)
        status = weir_use(a, block, stream);
    /* PyTorch also passes blocks of other allocators.  weir ignores these blocks. */
    if (status != WEIR_OK && status != WEIR_E_NOT_OWNED)
        weir__adapter_lost_use("weir_torch_record_stream", block, status);
}
