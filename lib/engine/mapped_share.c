/* SPDX-License-Identifier: MIT */
/* mapped_share.c: access of other devices to the memory, and its file descriptors for other processes.
 */
#include "engine/mapped_state.h"

/* Returns the access that a device has now. */
static CUmemAccess_flags flags_of(const struct weir_access *access, CUdevice device) {
    for (size_t i = 0; i < access->count; i++)
        if (access->list[i].location.id == device)
            return access->list[i].flags;
    return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* Sets a device's access to all mapped memory.  Aliased mappings are left out, since no later work uses them. */
weir_status weir__mapped_allow(struct weir_block_engine *a, const CUmemAccessDesc *access) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_mapped_range *g = a->range;
    CUmemAccessDesc before = *access;
    struct weir_driver_scope scope;
    CUresult result;
    size_t i;

    weir__mapped_begin_bringing(a);
    result = weir__driver_enter(driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS) {
        weir__mapped_end_bringing(a);
        return weir__device_status(a->e.device, result);
    }
    before.flags = flags_of(&g->access, access->location.id);
    for (i = 0; i < g->handle_count && result == CUDA_SUCCESS; i++)
        result = driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, access, 1);
    if (result == CUDA_SUCCESS)
        weir__peers_note(&g->access, access);
    else
        while (i-- > 0)
            (void)driver->cuMemSetAccess(g->handles[i].base, g->handles[i].bytes, &before, 1);
    weir__driver_leave(driver, &scope);
    weir__mapped_end_bringing(a);
    return weir__device_status(a->e.device, result);
}

/* Appends the physical allocations of the range to `out`.  A live block lies there, so no part is unmapped.  Each physical
 * allocation is mapped whole, at one address besides its aliased mappings.  The caller holds the lock, in a scope. */
static weir_status list_files(struct weir_block_engine *a, uint64_t base, size_t bytes,
                              struct weir_memory_files *out) {
    struct weir_mapped_range *g = a->range;
    weir_status status = WEIR_OK;
    uint64_t at = base;

    for (size_t i = handle_above(g, base); at < base + bytes && status == WEIR_OK; i++) {
        const struct weir_mapped_handle *h = &g->handles[i];

        if (i == g->handle_count || h->base > at)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        status = weir__mapped_files_add(&g->files, a->e.device, h->handle,
                                        &(struct weir_memory_file){h->base, h->bytes, -1, 0}, out);
        at = h->base + h->bytes;
    }
    return status;
}

weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out) {
    struct weir_block_engine *a = (struct weir_block_engine *)e;
    struct weir_mapped_range *g = a->range;
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result;
    uint64_t mark;

    if (g->kind.requestedHandleTypes == 0)
        return weir__without_driver(WEIR_E_NOT_SUPPORTED);
    weir__lock_take(&a->lock);
    result = weir__driver_enter(e->device->driver, e->device->context, &scope);
    status = weir__device_status(e->device, result);
    if (status == WEIR_OK) {
        mark = weir__mapped_files_mark();
        status = list_files(a, base, bytes, out);
        if (status != WEIR_OK)
            weir__mapped_files_undo(&g->files, mark);
        weir__driver_leave(e->device->driver, &scope);
    }
    weir__lock_give(&a->lock);
    return status;
}
