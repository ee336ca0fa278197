/* SPDX-License-Identifier: MIT */
/* ipc.c: shares blocks of engine mapped with other processes (weir/share.h).  The sender writes a text, and the
 * receiver maps the memory that the text describes. */
#include "config.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weir/share.h>

#include "api/create.h"
#include "base/log.h"
#include "base/map.h"
#include "base/result.h"
#include "base/text.h"
#include "ipc/memory_text.h"

/* ---- the sender ------------------------------------------------------------------------------ */

static weir_status write_handle_text(weir_allocator *a, const struct weir_memory_files *files,
                                     char *text, size_t text_bytes, size_t *needed) {
    struct weir_memory_text t;
    int whole = 1;

    weir__memory_text_begin(&t, a->device.driver->name);
    (void)weir__driver_uuid(a->device.driver, a->device.ordinal, t.device);
    for (size_t i = 0; i < files->count && whole; i++)
        whole = weir__memory_text_add(&t, &(struct weir_memory_piece){files->list[i].file,
                                                                      files->list[i].name,
                                                                      files->list[i].bytes});
    if (whole)
        *needed = weir__memory_text_write(&t, text, 0) + 1;
    if (whole && *needed <= text_bytes)
        (void)weir__memory_text_write(&t, text, text_bytes);
    weir__memory_text_clear(&t);
    return whole ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

/* Lists the physical allocations of up to `most` bytes at `address`.  The bytes may lie in several adjacent blocks. */
static weir_status find_files(weir_allocator *a, const void *address, size_t most,
                              struct weir_memory_files *files) {
    struct weir_engine *engine = a->reserve.engine;
    uint64_t end = (uintptr_t)address + most;
    struct weir_extent next;
    void *block = NULL;
    size_t bytes = 0;
    weir_status status;

    if (a->options.engine != WEIR_ENGINE_MAPPED)
        return weir__allocator_misuse(a, WEIR_E_NOT_SUPPORTED, "weir_ipc_make",
                                      "needs engine mapped");
    status = weir_block_range(a, address, &block, &bytes);
    while (status == WEIR_OK && (uintptr_t)block + bytes < end &&
           weir__engine_find(engine, WEIR_VISIT_BLOCK_AT, (uintptr_t)block + bytes, &next) == 1 &&
           next.base == (uintptr_t)block + bytes)
        bytes += next.bytes;
    if (status == WEIR_OK)
        status = weir__mapped_share(engine, (uintptr_t)block, bytes > 0 ? bytes : 1, files);
    return status == WEIR_E_NOT_SUPPORTED
               ? weir__allocator_misuse(a, status, "weir_ipc_make",
                                        "the driver and the device cannot share memory with other "
                                        "processes")
               : status;
}

weir_status weir__ipc_make(weir_allocator *a, const void *address, size_t most, char *text,
                           size_t text_bytes, size_t *needed, size_t *offset) {
    struct weir_memory_files files = {0};
    int result_before = weir__driver_result;
    size_t bytes = 0;
    weir_status status = weir__check_live_allocator(a);

    if (status != WEIR_OK)
        return status;
    if (!address || (!text && text_bytes > 0))
        return weir__allocator_misuse(a, WEIR_E_INVALID, "weir_ipc_make",
                                      address ? "text is NULL" : "address is NULL");
    status = find_files(a, address, most, &files);
    if (status == WEIR_OK)
        status = write_handle_text(a, &files, text, text_bytes, &bytes);
    if (status == WEIR_OK) {
        weir__memory_sender_allow();
        if (needed)
            *needed = bytes;
        if (offset)
            *offset = (uintptr_t)address - files.list[0].base;
        if (text && bytes > text_bytes)
            status = weir__allocator_misuse(a, WEIR_E_INVALID, "weir_ipc_make",
                                            "text_bytes is less than *needed");
    }
    free(files.list);
    return weir__end_call(result_before, status);
}

weir_status weir_ipc_make(weir_allocator *a, const void *address, char *text, size_t text_bytes,
                          size_t *needed, size_t *offset) {
    return weir__ipc_make(a, address, 0, text, text_bytes, needed, offset);
}

/* ---- the receiver ---------------------------------------------------------------------------- */

struct mapping {
    struct weir_device device; /* its primary context is retained */
    CUdeviceptr base;
    size_t bytes, mapped; /* the size of the range, and of the mapped part at its start */
    int closes; /* set while a thread unmaps this memory */
};

/* Guards `mappings` and each mapping's field `closes`.  A thread that holds this lock makes no driver call. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_map mappings; /* the received mappings (struct mapping *) by first address */

static weir_status driver_failed(const struct mapping *m, CUresult result, const char *call,
                                 const struct weir_message *why) {
    weir_status status = WEIR_E_DRIVER;

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = WEIR_E_NO_MEMORY;
    else if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED)
        status = WEIR_E_NOT_SUPPORTED;
    (void)weir__refuse(status, why, "%s: the driver answered %s", call,
                       weir__driver_error_name(m->device.driver, result));
    weir__set_driver_result((int)result);
    return status;
}

/* Finds the device that has the UUID in the text, and retains the device's primary context. */
static weir_status find_device_by_uuid(struct mapping *m, const struct weir_memory_text *t,
                                       const struct weir_message *why) {
    const struct weir_driver *driver = m->device.driver;
    int count = 0;
    CUresult result = driver->cuDeviceGetCount(&count);

    for (int at = 0; at < count && result == CUDA_SUCCESS; at++) {
        char uuid[WEIR_UUID_BYTES];

        result = driver->cuDeviceGet(&m->device.ordinal, at);
        if (result == CUDA_SUCCESS)
            result = weir__driver_uuid(driver, m->device.ordinal, uuid);
        if (result == CUDA_SUCCESS && strcmp(uuid, t->device) == 0) {
            result = driver->cuDevicePrimaryCtxRetain(&m->device.context, m->device.ordinal);
            if (result == CUDA_SUCCESS)
                return WEIR_OK;
        }
    }
    if (result != CUDA_SUCCESS)
        return driver_failed(m, result, "the device of the block", why);
    return weir__refuse(
        WEIR_E_NO_DEVICE, why,
        "this process does not see the block's device %s: does CUDA_VISIBLE_DEVICES hide it?",
        t->device);
}

/* Imports one physical allocation, and maps it at the next address of `m`.  The caller closes `file`. */
static weir_status map_piece(struct mapping *m, const struct weir_memory_piece *p, int file,
                             const struct weir_message *why) {
    const struct weir_driver *driver = m->device.driver;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver->cuMemImportFromShareableHandle(
        &handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (result == CUDA_SUCCESS) {
        result = driver->cuMemMap(m->base + m->mapped, (size_t)p->bytes, 0, handle, 0);
        /* The mapping keeps the memory without the handle.  A failed release is retried once, to avoid a leak. */
        if (driver->cuMemRelease(handle) != CUDA_SUCCESS)
            (void)driver->cuMemRelease(handle);
    }
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE) {
        (void)weir__refuse(WEIR_E_NOT_OWNED, why,
                           "the sender's file descriptor %d is not the block's memory any more",
                           p->file);
        weir__set_driver_result((int)result);
        return WEIR_E_NOT_OWNED;
    }
    if (result != CUDA_SUCCESS)
        return driver_failed(m, result, "mapping the block", why);
    m->mapped += (size_t)p->bytes;
    return WEIR_OK;
}

static weir_status map_pieces(struct mapping *m, const struct weir_memory_text *t, int sender,
                              const struct weir_message *why) {
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->device.ordinal},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    weir_status status = WEIR_OK;
    CUresult result;

    for (size_t i = 0; i < t->count && status == WEIR_OK; i++) {
        int file = -1;

        status = weir__memory_sender_copy_file(t, sender, t->pieces[i].file, &file, why);
        if (status == WEIR_OK) {
            status = map_piece(m, &t->pieces[i], file, why);
            close(file);
        }
    }
    if (status != WEIR_OK)
        return status;
    result = m->device.driver->cuMemSetAccess(m->base, m->bytes, &access, 1);
    return result == CUDA_SUCCESS ? WEIR_OK : driver_failed(m, result, "access to the block", why);
}

/* Unmaps the memory of a mapping.  The device's context is current. */
static CUresult unmap_pieces(struct mapping *m) {
    CUresult result =
        m->mapped > 0 ? m->device.driver->cuMemUnmap(m->base, m->mapped) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS)
        m->mapped = 0;
    return result;
}

/* Returns the total size of the physical allocations that `t` lists, or 0 if the sum overflows. */
static size_t sum_of_pieces(const struct weir_memory_text *t) {
    uint64_t sum = 0;

    for (size_t i = 0; i < t->count; i++) {
        if (t->pieces[i].bytes > INT64_MAX - sum)
            return 0;
        sum += t->pieces[i].bytes;
    }
    return (size_t)sum;
}

/* Reserves a range of m->bytes addresses on m->device, and maps all physical allocations in `t` to this range. */
static weir_status map_all(struct mapping *m, const struct weir_memory_text *t, int sender,
                           const struct weir_message *why) {
    const struct weir_driver *driver = m->device.driver;
    struct weir_driver_scope scope;
    weir_status status;
    CUresult result = weir__driver_enter(driver, m->device.context, &scope);

    if (result != CUDA_SUCCESS)
        return driver_failed(m, result, "the device's context", why);
    result = driver->cuMemAddressReserve(&m->base, m->bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        status = map_pieces(m, t, sender, why);
    else if (result == CUDA_ERROR_INVALID_VALUE)
        status = weir__refuse(WEIR_E_PARSE, why, "the handle's sizes are none of physical memory");
    else
        status = driver_failed(m, result, "addresses for the block", why);
    /* If the driver refuses twice to unmap the memory, the addresses must stay reserved. */
    if (result == CUDA_SUCCESS && status != WEIR_OK &&
        (unmap_pieces(m) == CUDA_SUCCESS || unmap_pieces(m) == CUDA_SUCCESS))
        (void)driver->cuMemAddressFree(m->base, m->bytes);
    weir__driver_leave(driver, &scope);
    return status;
}

/* Unmaps received memory and frees `m`, after a wait for the device if `waits` is set.  On an error changes nothing. */
static CUresult close_mapping(struct mapping *m, int waits) {
    const struct weir_driver *driver = m->device.driver;
    struct weir_driver_scope scope;
    CUresult result = waits ? weir__device_wait(&m->device) : CUDA_SUCCESS;

    if (result == CUDA_SUCCESS)
        result = weir__driver_enter(driver, m->device.context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = unmap_pieces(m);
    if (result == CUDA_SUCCESS) {
        /* Removes the entry before cuMemAddressFree(), since another mapping may get the addresses afterwards. */
        pthread_mutex_lock(&lock);
        (void)weir__map_remove(&mappings, m->base, NULL);
        pthread_mutex_unlock(&lock);
        (void)driver->cuMemAddressFree(m->base, m->bytes);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    weir__device_free_wait_block(&m->device);
    (void)driver->cuDevicePrimaryCtxRelease(m->device.ordinal);
    free(m);
    return CUDA_SUCCESS;
}

static weir_status open_pieces(struct mapping *m, const struct weir_memory_text *t,
                               const struct weir_message *why) {
    struct weir_driver_failure failure;
    weir_status status;
    int sender;

    m->device.driver = weir__driver_open(t->driver, &failure);
    if (!m->device.driver)
        return weir__refuse(WEIR_E_NO_DEVICE, why, "%s", failure.text);
    /* unreached: every complete driver has these calls */
    if (~m->device.driver->capabilities & (WEIR_CAP_IPC | WEIR_CAP_VIRTUAL))
        return weir__refuse(WEIR_E_NOT_SUPPORTED, why,
                            "the driver cannot share mapped memory with other processes");
    m->bytes = sum_of_pieces(t);
    if (m->bytes == 0)
        return weir__refuse(WEIR_E_PARSE, why, "the handle's sizes add up to no size");
    status = weir__memory_sender_open(t, &sender, why);
    if (status != WEIR_OK)
        return status;
    status = find_device_by_uuid(m, t, why);
    if (status == WEIR_OK) {
        status = map_all(m, t, sender, why);
        if (status != WEIR_OK)
            (void)m->device.driver->cuDevicePrimaryCtxRelease(m->device.ordinal);
    }
    if (sender >= 0)
        close(sender);
    return status;
}

static weir_status open_mapping(const struct weir_memory_text *t, struct mapping **out,
                                const struct weir_message *why) {
    struct mapping *m = calloc(1, sizeof *m);
    weir_status status =
        m ? open_pieces(m, t, why) : weir__refuse(WEIR_E_HOST_MEMORY, why, "no host memory");
    int is_noted;

    if (status != WEIR_OK) {
        free(m);
        return status;
    }
    pthread_mutex_lock(&lock);
    is_noted = weir__map_put(&mappings, m->base, (uintptr_t)m);
    pthread_mutex_unlock(&lock);
    if (!is_noted) {
        (void)close_mapping(m, 0);
        return weir__refuse(WEIR_E_HOST_MEMORY, why, "no host memory");
    }
    *out = m;
    return WEIR_OK;
}

weir_status weir_ipc_open(const char *text, int *device, void **base, char *message,
                          size_t message_bytes) {
    int result_before = weir__driver_result;
    struct weir_memory_text t;
    struct mapping *m = NULL;
    const struct weir_message why = {message, message ? message_bytes : 0};
    char quoted[160];
    weir_status status;

    if (why.bytes > 0)
        message[0] = '\0';
    if (!text || !base)
        return weir__refuse(WEIR_E_INVALID, &why, "%s is NULL", text ? "base" : "text");
    if (weir__driver_forked())
        return weir__refuse(WEIR_E_FORKED, &why,
                            "CUDA does not work in a child of fork(): start a new program there");
    status = weir__memory_text_read(text, &t);
    if (status != WEIR_OK) {
        weir__quote(text, quoted, sizeof quoted);
        return weir__refuse(status, &why, "%s: %s", quoted,
                            status == WEIR_E_PARSE ? "not a text of weir_ipc_make of this version"
                                                   : weir_status_message(status));
    }
    status = open_mapping(&t, &m, &why);
    weir__memory_text_clear(&t);
    if (status == WEIR_OK) {
        *base = (void *)(uintptr_t)m->base;
        if (device)
            *device = m->device.ordinal;
    }
    return weir__end_call(result_before, status);
}

weir_status weir_ipc_close(void *base) {
    int result_before = weir__driver_result;
    struct weir_device *device;
    uintptr_t value = 0;
    struct mapping *m;
    weir_status status;
    CUresult result;

    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (!base)
        return WEIR_OK;
    pthread_mutex_lock(&lock);
    m = weir__map_get(&mappings, (uintptr_t)base, &value) ? (struct mapping *)value : NULL;
    if (m && m->closes)
        /* unreached: no test makes another thread close the mapping at this moment */
        m = NULL;
    if (m)
        m->closes = 1;
    pthread_mutex_unlock(&lock);
    if (!m)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    device = &m->device;
    result = close_mapping(m, 1);
    if (result == CUDA_SUCCESS)
        return weir__end_call(result_before, WEIR_OK);
    status = weir__device_status(device, result);
    pthread_mutex_lock(&lock);
    m->closes = 0;
    pthread_mutex_unlock(&lock);
    return status;
}
