/* SPDX-License-Identifier: MIT */
/* choice.c: see choice.h. */
#include "choice.h"

#include <stdatomic.h>

#include "allocator_internal.h"
#include "result.h"

weir_status weir__choice_options(weir_options *options, struct weir_sources *sources, char *message,
                                 size_t message_bytes) {
    return weir__without_driver(
        weir__options_from_env(options, sources, WEIR_PLACE_USER, 1, message, message_bytes));
}

static int can_map(const struct weir_driver *driver, CUdevice device) {
    int can = 0;

    return (driver->capabilities & WEIR_CAP_VIRTUAL) &&
           driver->cuDeviceGetAttribute(&can,
                                        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                        device) == CUDA_SUCCESS &&
           can;
}

static int is_open(const weir_options *options) {
    return options->engine == WEIR_ENGINE_DEFAULT && options->exportable != WEIR_SWITCH_ON &&
           options->release_threshold.kind == WEIR_AMOUNT_DEFAULT;
}

weir_status weir__choice_create(const struct weir_driver *driver, CUdevice device,
                                weir_options *options, weir_allocator **allocator, char *message,
                                size_t message_bytes) {
    static _Atomic uint64_t
        full; /* such devices, a bit each: what was lost with a context keeps its addresses */
    uint64_t bit = UINT64_C(1) << (unsigned)device % 64;
    weir_status why, status;

    if (message_bytes > 0)
        message[0] = '\0';
    if (!is_open(options) || (atomic_load_explicit(&full, memory_order_relaxed) & bit) ||
        !can_map(driver, device))
        return weir__allocator_create(options, allocator, message, message_bytes);
    options->engine = WEIR_ENGINE_ARENA;
    options->arena = WEIR_ARENA_MAPPED;
    why = weir__allocator_create(options, allocator, message, message_bytes);
    if ((why != WEIR_E_NOT_SUPPORTED && why != WEIR_E_NO_MEMORY) ||
        weir__driver_result == CUDA_SUCCESS) /* any engine's settings */
        return why;
    options->engine = WEIR_ENGINE_POOL;
    options->arena = WEIR_ARENA_DEFAULT;
    status = weir__allocator_create(options, allocator, message, message_bytes);
    if (status == WEIR_OK && why == WEIR_E_NO_MEMORY) /* which memory would have kept from both */
        atomic_fetch_or_explicit(&full, bit, memory_order_relaxed);
    return status;
}
