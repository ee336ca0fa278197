/* SPDX-License-Identifier: MIT */
/* configuration_raw.c: configurations that call a private memory pool of the driver directly.
 *
 * If another stream uses a block, the code orders the free after this use, as an application does: before the free,
 * it records an event on the other stream, and the stream of the free waits for this event.  The driver does not
 * report growths and trims; the replay finds them by reading the pool's reserved memory after each operation.
 *
 * This file must not depend on weir's allocators.
 */
#include "cli/replay/configuration.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

/* A use of a block on a stream other than that of its allocation.  The uses of a block form a list of indices. */
struct stream_use {
    CUstream stream;
    uint32_t next; /* an index of raw.uses, or 0 at the end of the list */
};

struct raw {
    struct session *session;
    const struct configuration *self;
    CUmemoryPool pool;
    /* For each block, the index of its first use, or 0 if there is none.  NULL until the first use of any block. */
    uint32_t *first_use;
    struct stream_use *uses;
    uint32_t use_count; /* the elements of `uses', including element 0 and unused elements */
    uint32_t use_room;
    uint32_t first_unused; /* the first element in the list of unused elements, or 0 */
    uint64_t reserved;  /* the reserved memory at the last call of count_raw_growth() */
    uint64_t threshold;
    struct figures so_far;
};

static void *fail_raw_call(struct session *session, const char *call, CUresult result) {
    session->is_out_of_memory = result == CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(session->message, sizeof session->message, "%s failed: %s", call,
             weir__driver_error_name(session->driver, result));
    return NULL;
}

static void count_raw_growth(struct raw *raw);

/* Warms the pool up, as an application may do: allocates and frees one block as large as the peak requested memory,
 * on a temporary stream. */
static CUresult warm_raw_pool(struct raw *raw) {
    const struct weir_driver *driver = raw->session->counted;
    CUdeviceptr block = 0;
    CUstream stream = NULL;
    CUresult result = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemAllocFromPoolAsync(&block, (size_t)raw->session->live_peak_bytes,
                                             raw->pool, stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuMemFreeAsync(block, stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamSynchronize(stream);
    driver->cuStreamDestroy(stream);
    count_raw_growth(raw);
    return result;
}

static void *raw_open(struct session *session, const struct configuration *self) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, session->device}};
    struct raw *raw = calloc(1, sizeof *raw);
    const char *call = "cuMemPoolCreate";
    CUresult result;

    if (!raw) {
        snprintf(session->message, sizeof session->message, "out of memory");
        return NULL;
    }
    raw->threshold = self->release_threshold_max ? UINT64_MAX : 0;
    raw->session = session;
    raw->self = self;
    result = session->counted->cuMemPoolCreate(&raw->pool, &properties);
    if (result == CUDA_SUCCESS) {
        call = "cuMemPoolSetAttribute";
        result = session->counted->cuMemPoolSetAttribute(
            raw->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &raw->threshold);
    }
    if (result == CUDA_SUCCESS && self->is_warmed_up && session->live_peak_bytes > 0) {
        call = "preallocation in the pool";
        result = warm_raw_pool(raw);
    }
    if (result == CUDA_SUCCESS)
        return raw;
    if (raw->pool)
        session->driver->cuMemPoolDestroy(raw->pool);
    free(raw);
    return fail_raw_call(session, call, result);
}

static weir_status raw_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                             void **out) {
    struct raw *raw = allocator;
    CUdeviceptr address = 0;
    CUresult result =
        raw->session->counted->cuMemAllocFromPoolAsync(&address, bytes, raw->pool, stream);

    (void)block;
    if (result == CUDA_SUCCESS) {
        *out = (void *)(uintptr_t)address;
        return WEIR_OK;
    }
    return result == CUDA_ERROR_OUT_OF_MEMORY ? WEIR_E_NO_MEMORY : WEIR_E_DRIVER;
}

/* Makes `stream' wait for all other streams that have used the block, and empties the block's list of uses. */
static CUresult wait_for_other_streams(struct raw *raw, uint32_t block, CUstream stream) {
    const struct weir_driver *driver = raw->session->counted;
    CUresult result = CUDA_SUCCESS;
    uint32_t i = raw->first_use[block];

    raw->first_use[block] = 0;
    while (i) {
        uint32_t next = raw->uses[i].next;

        if (result == CUDA_SUCCESS && raw->uses[i].stream != stream) {
            result = driver->cuEventRecord(raw->session->event, raw->uses[i].stream);
            if (result == CUDA_SUCCESS)
                result = driver->cuStreamWaitEvent(stream, raw->session->event, 0);
        }
        raw->uses[i].next = raw->first_unused;
        raw->first_unused = i;
        i = next;
    }
    return result;
}

static weir_status raw_free(void *allocator, uint32_t block, void *address, CUstream stream) {
    struct raw *raw = allocator;
    CUresult result = CUDA_SUCCESS;

    if (raw->first_use && raw->first_use[block])
        result = wait_for_other_streams(raw, block, stream);
    if (result == CUDA_SUCCESS)
        result = raw->session->counted->cuMemFreeAsync((CUdeviceptr)(uintptr_t)address, stream);
    return result == CUDA_SUCCESS ? WEIR_OK : WEIR_E_DRIVER;
}

/* Returns the index of an unused element of raw->uses, or 0 if there is no host memory. */
static uint32_t new_stream_use(struct raw *raw) {
    uint32_t i = raw->first_unused;

    if (i) {
        raw->first_unused = raw->uses[i].next;
        return i;
    }
    if (raw->use_count == raw->use_room) {
        uint32_t room = raw->use_room ? raw->use_room * 2 : 64;
        struct stream_use *uses = room ? reallocarray(raw->uses, room, sizeof *uses) : NULL;

        if (!uses)
            return 0;
        raw->uses = uses;
        raw->use_room = room;
        if (raw->use_count == 0)
            raw->use_count = 1;
    }
    return raw->use_count++;
}

static weir_status raw_use(void *allocator, uint32_t block, void *address, CUstream stream) {
    struct raw *raw = allocator;
    uint32_t i;

    (void)address;
    if (!raw->first_use)
        raw->first_use = calloc(raw->session->blocks, sizeof *raw->first_use);
    if (!raw->first_use)
        return WEIR_E_HOST_MEMORY;
    for (i = raw->first_use[block]; i; i = raw->uses[i].next)
        if (raw->uses[i].stream == stream)
            return WEIR_OK;
    i = new_stream_use(raw);
    if (!i)
        return WEIR_E_HOST_MEMORY;
    raw->uses[i] = (struct stream_use){stream, raw->first_use[block]};
    raw->first_use[block] = i;
    return WEIR_OK;
}

static int read_raw_attribute(const struct raw *raw, CUmemPool_attribute which, uint64_t *value) {
    const struct weir_driver *driver = raw->session->driver;

    return (driver->capabilities & WEIR_CAP_POOL_FIGURES) &&
           driver->cuMemPoolGetAttribute(raw->pool, which, value) == CUDA_SUCCESS;
}

/* Counts a growth if the pool's reserved memory has risen since the last call, and a trim if the memory has fallen. */
static void count_raw_growth(struct raw *raw) {
    uint64_t reserve = raw->reserved;

    raw->so_far.has_reserve =
        read_raw_attribute(raw, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserve);
    raw->so_far.growths += reserve > raw->reserved;
    raw->so_far.trims += reserve < raw->reserved;
    raw->reserved = reserve;
}

static uint64_t raw_reserved(void *allocator) {
    struct raw *raw = allocator;

    count_raw_growth(raw);
    return raw->reserved;
}

static void raw_figures(void *allocator, struct figures *out) {
    struct raw *raw = allocator;

    count_raw_growth(raw);
    raw->so_far.reserved = raw->reserved;
    raw->so_far.has_in_use =
        read_raw_attribute(raw, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &raw->so_far.in_use);
    read_raw_attribute(raw, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &raw->so_far.reserved_peak);
    *out = raw->so_far;
}

static json_t *raw_options(void *allocator) {
    const struct raw *raw = allocator;
    weir_amount amount = {raw->threshold,
                          raw->threshold == UINT64_MAX ? WEIR_AMOUNT_MAX : WEIR_AMOUNT_BYTES};
    char text[WEIR_SPELL_BYTES];

    weir__amount_spell(&amount, text, sizeof text);
    return json_pack("{s:s}", "release-threshold", text);
}

static int raw_close(void *allocator) {
    struct raw *raw = allocator;
    struct session *session = raw->session;
    CUresult result = session->counted->cuMemPoolDestroy(raw->pool);

    free(raw->first_use);
    free(raw->uses);
    free(raw);
    if (result == CUDA_SUCCESS)
        return 1;
    fail_raw_call(session, "cuMemPoolDestroy", result);
    return 0;
}

const struct allocator_kind driver_pool_kind = {.open = raw_open,
                                                .alloc = raw_alloc,
                                                .free = raw_free,
                                                .use = raw_use,
                                                .figures = raw_figures,
                                                .reserved = raw_reserved,
                                                .options = raw_options,
                                                .close = raw_close};
