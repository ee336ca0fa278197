/* SPDX-License-Identifier: MIT */
/* mapped_files.c: file descriptors of physical allocations, by which other processes map them.
 *
 * weir exports a physical allocation when a block in it is first shared.  The program may close weir's descriptor
 * (kept.h).  Then weir exports the physical allocation again, under another name, so that no receiver opens another
 * file instead.
 *
 * This file must not know the caller, or where physical allocations are mapped.
 */
#include "engine/mapped_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hostmem.h"
#include "base/kept.h"
#include "base/result.h"

/* A physical allocation that was exported. */
struct exported {
    struct weir_kept file;
    uint64_t name;
};

/* The last name that this process has used. */
static _Atomic uint64_t names;

/* Returns 1 if the process has no file descriptor left, which the driver's result does not say; else 0. */
static int is_out_of_numbers(void) {
    int file = weir__file_open("/", O_PATH, 0);
    int is_out = file < 0 && (errno == EMFILE || errno == ENFILE);

    if (file >= 0)
        close(file);
    return is_out;
}

static weir_status export_handle(struct weir_device *device, CUmemGenericAllocationHandle handle,
                                 struct exported *x) {
    int file = -1;
    CUresult result = device->driver->cuMemExportToShareableHandle(
        &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS && is_out_of_numbers())
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (result != CUDA_SUCCESS)
        return weir__device_status(device, result);
    (void)fcntl(file, F_SETFD, FD_CLOEXEC);
    file = weir__file_above(file);
    if (file < 0)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    if (weir__kept_set(&x->file, file) != 0) {
        close(file);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    x->name = atomic_fetch_add_explicit(&names, 1, memory_order_relaxed) + 1;
    return WEIR_OK;
}

/* Finds the descriptor of a physical allocation.  Exports the physical allocation if it has none. */
static weir_status find(struct weir_mapped_files *f, struct weir_device *device,
                        CUmemGenericAllocationHandle handle, const struct exported **out) {
    struct exported *x;
    uintptr_t value = 0;
    weir_status status;

    if (weir__map_get(&f->exported, handle, &value)) {
        x = (struct exported *)value;
        *out = x;
        return weir__kept_is(&x->file) ? WEIR_OK : export_handle(device, handle, x);
    }
    x = malloc(sizeof *x);
    if (!x)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = export_handle(device, handle, x);
    if (status == WEIR_OK && !weir__map_put(&f->exported, handle, (uintptr_t)x)) {
        weir__kept_close(&x->file);
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (status != WEIR_OK) {
        free(x);
        return status;
    }
    *out = x;
    return WEIR_OK;
}

weir_status weir__mapped_files_add(struct weir_mapped_files *f, struct weir_device *device,
                                   CUmemGenericAllocationHandle handle,
                                   const struct weir_memory_file *piece,
                                   struct weir_memory_files *out) {
    const struct exported *x = NULL;
    struct weir_memory_file *list =
        weir__hostmem_room(out->list, out->count, &out->capacity, sizeof *list);
    weir_status status;

    if (!list)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    out->list = list;
    status = find(f, device, handle, &x);
    if (status != WEIR_OK)
        return status;
    list[out->count] = *piece;
    list[out->count].file = x->file.number;
    list[out->count].name = x->name;
    out->count++;
    return WEIR_OK;
}

uint64_t weir__mapped_files_mark(void) {
    return atomic_load_explicit(&names, memory_order_relaxed);
}

void weir__mapped_files_undo(struct weir_mapped_files *f, uint64_t mark) {
    for (size_t i = 0; i < f->exported.capacity; i++) {
        struct exported *x = (struct exported *)f->exported.slots[i].value;

        if (f->exported.slots[i].key != 0 && x->name > mark)
            weir__kept_close(&x->file);
    }
}

void weir__mapped_files_close(struct weir_mapped_files *f, CUmemGenericAllocationHandle handle) {
    uintptr_t value = 0;
    struct exported *x;

    if (f->exported.count == 0 || !weir__map_take(&f->exported, handle, &value))
        return;
    x = (struct exported *)value;
    weir__kept_close(&x->file);
    free(x);
}

void weir__mapped_files_end(struct weir_mapped_files *f) {
    for (size_t i = 0; i < f->exported.capacity; i++) {
        if (f->exported.slots[i].key == 0)
            continue;
        weir__kept_close(&((struct exported *)f->exported.slots[i].value)->file);
        free((struct exported *)f->exported.slots[i].value);
    }
    weir__map_clear(&f->exported);
}
