/* SPDX-License-Identifier: MIT */
/* driver.c: opens driver tables once, and the few rules that hold for every driver call.
 *
 * Tables are made under one lock and published with a release store, so that an open of a table that
 * stands is one load; a load that failed leaves nothing behind and may be tried again (the driver
 * may have been installed, or a device may have come back).
 *
 * Fork: a driver does not survive fork(), and the child's copies of its locks may be held by threads
 * that the child does not have.  A child handler therefore raises a flag that every entry point
 * reads before it takes a lock.  `in_use` is raised before any lock is taken under which a driver may be
 * opened, here or by the caller, so that a fork in the middle of that is covered too.
 *
 * Must not know: what is behind a table; who calls it.
 */
#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static struct {
    const char *name;
    const struct weir_driver *(*make)(struct weir_driver_failure *failure);
    _Atomic(const struct weir_driver *) table;
} drivers[] = {
    {"cuda", weir__driver_cuda, NULL},
    {"model", weir__driver_model, NULL},
};

#define DRIVER_COUNT (sizeof drivers / sizeof drivers[0])

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER; /* guards makers */
static atomic_int handler_registered;
static atomic_int in_use;          /* tables that stand, and calls under way that may make one */
atomic_int weir__driver_is_forked; /* this is a child of a process with in_use */

unsigned weir__driver_capabilities(int version) {
    unsigned capabilities = 0;

#define ADD_CAPABILITY(name, word, first)                                                          \
    if (version >= (first))                                                                        \
        capabilities |= WEIR_CAP_##name;
    WEIR_CAPABILITIES(ADD_CAPABILITY)
#undef ADD_CAPABILITY
    return capabilities;
}

void weir__driver_settle(struct weir_driver *table) {
    unsigned capabilities = weir__driver_capabilities(table->version);

#define CHECK_ENTRY(group, name, symbol, version, params, args)                                    \
    if (!table->name)                                                                              \
        capabilities &= ~(unsigned)WEIR_CAP_##group;
    WEIR_DRIVER_ENTRIES(CHECK_ENTRY)
#undef CHECK_ENTRY
#define DROP_ENTRY(group, name, symbol, version, params, args)                                     \
    if ((capabilities & WEIR_CAP_##group) != WEIR_CAP_##group)                                     \
        table->name = NULL;
    WEIR_DRIVER_ENTRIES(DROP_ENTRY)
#undef DROP_ENTRY
    table->capabilities = capabilities;
}

/* Runs in the child of a fork: only lock-free atomics are allowed here. */
static void mark_child(void) {
    if (atomic_load_explicit(&in_use, memory_order_relaxed))
        atomic_store_explicit(&weir__driver_is_forked, 1, memory_order_relaxed);
}

int weir__driver_begin_use(void) {
    int registered = atomic_load_explicit(&handler_registered, memory_order_acquire);

    if (!registered && pthread_atfork(NULL, NULL, mark_child) == 0) {
        registered = 1; /* by another thread too, perhaps: twice does no harm */
        atomic_store_explicit(&handler_registered, 1, memory_order_release);
    }
    atomic_fetch_add_explicit(&in_use, 1, memory_order_relaxed);
    return registered;
}

void weir__driver_end_use(void) {
    atomic_fetch_sub_explicit(&in_use, 1, memory_order_relaxed);
}

/* A table is handed out started, whether or not its maker did that: cuInit may be called again. */
static int start(const struct weir_driver *table, struct weir_driver_failure *failure) {
    CUresult result = table->cuInit(0);

    if (result != CUDA_SUCCESS)
        snprintf(failure->text, sizeof failure->text, "driver %s: cuInit failed with %u (%s)",
                 table->name, result, weir__driver_error_name(table, result));
    return result == CUDA_SUCCESS;
}

/* The caller holds open_lock. */
static const struct weir_driver *make_table(size_t i, struct weir_driver_failure *failure) {
    const struct weir_driver *table = atomic_load_explicit(&drivers[i].table, memory_order_relaxed);

    if (table)
        return table;
    table = drivers[i].make(failure);
    if (table && !start(table, failure))
        table = NULL;
    if (table) {
        atomic_fetch_add_explicit(&in_use, 1, memory_order_relaxed);
        atomic_store_explicit(&drivers[i].table, table, memory_order_release);
    }
    return table;
}

const struct weir_driver *weir__driver_open(const char *name, struct weir_driver_failure *failure) {
    const struct weir_driver *table;
    size_t i;

    failure->text[0] = '\0';
    for (i = 0; i < DRIVER_COUNT; i++)
        if (name && strcmp(name, drivers[i].name) == 0)
            break;
    if (i == DRIVER_COUNT) {
        snprintf(failure->text, sizeof failure->text,
                 "unknown driver \"%s\": \"cuda\" and \"model\" are known", name ? name : "(null)");
        return NULL;
    }
    if (weir__driver_forked()) {
        snprintf(
            failure->text, sizeof failure->text,
            "this process was forked from one that had opened a driver, which does not survive "
            "a fork: fork before the first use, or exec in the child");
        return NULL;
    }
    table = atomic_load_explicit(&drivers[i].table, memory_order_acquire);
    if (table)
        return table;
    if (weir__driver_begin_use()) {
        pthread_mutex_lock(&open_lock);
        table = make_table(i, failure);
        pthread_mutex_unlock(&open_lock);
    } else {
        snprintf(failure->text, sizeof failure->text,
                 "cannot register a fork handler: out of memory");
    }
    weir__driver_end_use();
    return table;
}

/* The capture mode comes first: it needs no context, and the push then already runs relaxed. */
CUresult weir__driver_enter(const struct weir_driver *driver, CUcontext context,
                            struct weir_driver_scope *scope) {
    CUresult result = weir__driver_relax(driver, scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuCtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        weir__driver_unrelax(driver, scope);
    return result;
}

/* A result that fails here has no cure: the driver is shutting down or the context is gone, and the
 * caller's own next call will say so.  The mode is restored in any case. */
void weir__driver_leave(const struct weir_driver *driver, const struct weir_driver_scope *scope) {
    CUcontext popped;

    driver->cuCtxPopCurrent(&popped);
    weir__driver_unrelax(driver, scope);
}

CUresult weir__driver_uuid(const struct weir_driver *driver, CUdevice device,
                           char text[WEIR_UUID_BYTES]) {
    CUuuid uuid;
    CUresult result;
    size_t used = (size_t)snprintf(text, WEIR_UUID_BYTES, "GPU-");

    memset(&uuid, 0, sizeof uuid);
    result = driver->cuDeviceGetUuid(&uuid, device);
    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, WEIR_UUID_BYTES - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 (unsigned char)uuid.bytes[i]);
    return result;
}

const char *weir__driver_error_name(const struct weir_driver *driver, CUresult result) {
    static _Thread_local char unknown[32]; /* only for results that the driver cannot name */
    const char *name = NULL;

    if (driver->cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    snprintf(unknown, sizeof unknown, "CUDA_ERROR_%u", result);
    return unknown;
}
