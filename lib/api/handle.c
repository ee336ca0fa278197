/* SPDX-License-Identifier: MIT */
/* handle.c: public functions that take a block or a stream, but neither allocate nor free. */
#include "config.h"

#include <stdio.h>

#include <weir/weir.h>

#include "api/create.h"
#include "base/result.h"
#include "config/settings.h"
#include "engine/peer_access.h"

/* Returns 1 if a live block may begin at the address, else 0. */
static int begins_block(const weir_allocator *a, CUdeviceptr block) {
    struct weir_extent live;
    int found;

    if (a->harden)
        return weir__harden_is_live(a->harden, block);
    if (a->caches)
        return weir__caches_is_live(a->caches, block);
    found = weir__engine_find(a->reserve.engine, WEIR_VISIT_BLOCK_AT, block, &live);
    return found < 0 || (found == 1 && live.base == block);
}

weir_status weir_use(weir_allocator *a, void *block, weir_stream stream) {
    weir_status status = weir__check_live_allocator(a);
    uint64_t id = 0;

    if (status != WEIR_OK)
        return status;
    if (!block)
        return weir__misuse(a, WEIR_E_INVALID, "weir_use: block is NULL");
    if (!begins_block(a, (uintptr_t)block))
        return weir__misuse(a, WEIR_E_NOT_OWNED, "weir_use");
    if ((uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE) {
        /* weir records the stream's id, because each thread's default stream has the same handle. */
        int lent = weir__make_context_current(a);
        CUresult result = weir__device_stream_id(&a->device, stream, &id);

        weir__device_restore_context(&a->device, lent);
        if (result != CUDA_SUCCESS)
            return weir__device_status(&a->device, result);
    }
    if (!weir__uses_add(&a->uses, (uintptr_t)block, stream, id))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    return WEIR_OK;
}

/* Finds the live block that contains the address.  Returns 1 on success, 0 if there is none, -1 if not known. */
static int find_live_block(const weir_allocator *a, CUdeviceptr address, CUdeviceptr *block,
                           size_t *bytes) {
    struct weir_extent live = {0};
    int found = 1;

    if (!a->caches)
        found = weir__engine_find(a->reserve.engine, WEIR_VISIT_BLOCK_AT, address, &live);
    else if (weir__caches_find(a->caches, address, block, bytes))
        live = (struct weir_extent){.base = *block, .bytes = *bytes};
    *block = live.base;
    *bytes = live.bytes;
    if (found == 1 && a->harden)
        found = weir__harden_find(a->harden, live.base, block, bytes);
    return found == 1 ? address - *block < *bytes : found;
}

weir_status weir_block_range(weir_allocator *a, const void *address, void **block, size_t *bytes) {
    weir_status status = weir__check_live_allocator(a);
    CUdeviceptr start = 0;
    size_t asked = 0;
    int found;

    if (status != WEIR_OK)
        return status;
    if (!address)
        return weir__misuse(a, WEIR_E_INVALID, "weir_block_range: address is NULL");
    found = find_live_block(a, (uintptr_t)address, &start, &asked);
    if (found < 0)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    if (!found)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (block)
        *block = (void *)(uintptr_t)start;
    if (bytes)
        *bytes = asked;
    return WEIR_OK;
}

weir_status weir_pool(weir_allocator *a, struct CUmemPoolHandle_st **pool) {
    weir_status status = weir__check_live_allocator(a);

    if (status != WEIR_OK)
        return status;
    if (!pool)
        return weir__misuse(a, WEIR_E_INVALID, "weir_pool: pool is NULL");
    if (!a->reserve.engine->driver_pool)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    *pool = a->reserve.engine->driver_pool;
    return WEIR_OK;
}

static int is_wrong_access(const weir_allocator *a, int device, int access, char *why,
                           size_t bytes) {
    if (device < 0)
        snprintf(why, bytes, "device %d: devices are numbered from 0", device);
    else if (access != WEIR_ACCESS_NONE && access != WEIR_ACCESS_READ &&
             access != WEIR_ACCESS_READ_WRITE)
        snprintf(why, bytes, "access %d: expected WEIR_ACCESS_NONE, _READ or _READ_WRITE", access);
    else if (device == a->device.ordinal && access != WEIR_ACCESS_READ_WRITE)
        snprintf(why, bytes, "access %d: expected WEIR_ACCESS_READ_WRITE for its own device %d",
                 access, device);
    return why[0] != '\0';
}

weir_status weir_set_access(weir_allocator *a, int device, int access) {
    CUmemAccessDesc change = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = (CUmemAccess_flags)access};
    weir_status status = weir__check_live_allocator(a);
    char why[256] = "";
    CUresult result = CUDA_SUCCESS;
    int result_before = weir__driver_result;

    if (status != WEIR_OK)
        return status;
    if (is_wrong_access(a, device, access, why, sizeof why))
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_set_access", why);
    status =
        weir__peers_check(a->device.driver, a->device.ordinal, device, &result, why, sizeof why);
    if (status == WEIR_OK && !weir__options_allow_peer_access(&a->options)) {
        status = WEIR_E_NOT_SUPPORTED;
        snprintf(why, sizeof why, "%s", WEIR_NO_PEER_ACCESS);
    }
    if (status != WEIR_OK) {
        (void)weir__allocator_misuse(a, status, "weir_set_access", why);
        return result == CUDA_SUCCESS ? status : weir__device_status(&a->device, result);
    }
    /* the allocator's own device always has access */
    if (device == a->device.ordinal)
        return WEIR_OK;
    change.location.id = device;
    return weir__end_call(result_before, a->reserve.engine->ops->allow(a->reserve.engine, &change));
}

static weir_status bind(weir_allocator *a, weir_stream stream, int more) {
    int result_before = weir__driver_result, driver_result;
    weir_status status = weir__check_live_allocator(a);

    if (status != WEIR_OK || !a->caches)
        return status;
    status = weir__caches_bind(a->caches, stream, more);
    if (status == WEIR_E_INVALID || status == WEIR_E_STREAM) {
        driver_result = weir__driver_result;
        (void)weir__misuse(a, status,
                           more                       ? "weir_bind"
                           : status == WEIR_E_INVALID ? "weir_unbind: the stream is not bound"
                                                      : "weir_unbind");
        weir__set_driver_result(driver_result);
    }
    return weir__end_call(result_before, status);
}

weir_status weir_bind(weir_allocator *a, weir_stream stream) {
    return bind(a, stream, 1);
}

weir_status weir_unbind(weir_allocator *a, weir_stream stream) {
    return bind(a, stream, 0);
}
