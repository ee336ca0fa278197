/* SPDX-License-Identifier: MIT */
/* driver.c: opens driver tables, enters and leaves scopes for driver calls, and makes a table that counts calls.
 *
 * A table is made under one lock and published with a release store, so opening an existing table takes one load.
 *
 * A driver does not survive fork(), and a lock may be locked for ever in the child.  So a fork handler sets a flag in
 * the child if `in_use` is not 0, and every entry point reads the flag before it takes a lock.  A function that may
 * open a driver under a lock increments `in_use` before it takes the lock.
 */
#include "driver/driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"

static struct {
    const char *name;
    const struct weir_driver *(*make)(struct weir_driver_failure *failure);
    _Atomic(const struct weir_driver *) table;
} drivers[] = {
    {"cuda", weir__driver_cuda, NULL},
    {"model", weir__driver_model, NULL},
};

#define DRIVER_COUNT (sizeof drivers / sizeof drivers[0])

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int handler_registered;
/* The number of open drivers, plus the number of running calls that may open a driver. */
static atomic_int in_use;
atomic_int weir__driver_is_forked;

unsigned weir__driver_capabilities(int version) {
    unsigned capabilities = 0;

#define ADD_CAPABILITY(name, word, first)                                                          \
    if (version >= (first))                                                                        \
        capabilities |= WEIR_CAP_##name;
    WEIR_CAPABILITIES(ADD_CAPABILITY)
#undef ADD_CAPABILITY
    return capabilities;
}

void weir__driver_set_capabilities(struct weir_driver *table) {
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

/* A fork handler; it may use only lock-free atomics. */
static void mark_forked_driver(void) {
    if (atomic_load_explicit(&in_use, memory_order_relaxed))
        atomic_store_explicit(&weir__driver_is_forked, 1, memory_order_relaxed);
}

int weir__driver_begin_use(void) {
    int registered = atomic_load_explicit(&handler_registered, memory_order_acquire);

    if (!registered && pthread_atfork(NULL, NULL, mark_forked_driver) == 0) {
        registered = 1; /* two threads may both register the handler, which is harmless */
        atomic_store_explicit(&handler_registered, 1, memory_order_release);
    }
    atomic_fetch_add_explicit(&in_use, 1, memory_order_relaxed);
    return registered;
}

void weir__driver_end_use(void) {
    atomic_fetch_sub_explicit(&in_use, 1, memory_order_relaxed);
}

/* Returns the table of driver number `i`, and makes it at the first call.  The caller holds open_lock. */
static const struct weir_driver *open_table(size_t i, struct weir_driver_failure *failure) {
    const struct weir_driver *table = atomic_load_explicit(&drivers[i].table, memory_order_relaxed);
    CUresult result;

    if (table)
        return table;
    table = drivers[i].make(failure);
    /* weir__driver_cuda() may already have called cuInit; a second call is harmless. */
    if (table && (result = table->cuInit(0)) != CUDA_SUCCESS) {
        snprintf(failure->text, sizeof failure->text, "driver %s: cuInit failed with %u (%s)",
                 table->name, result, weir__driver_error_name(table, result));
        return NULL;
    }
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
        table = open_table(i, failure);
        pthread_mutex_unlock(&open_lock);
    } else {
        snprintf(failure->text, sizeof failure->text,
                 "cannot register a fork handler: out of memory");
    }
    weir__driver_end_use();
    return table;
}

/* Relaxes the capture mode first, because cuCtxPushCurrent may fail in another mode. */
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

/* Ignores failures.  If the driver shuts down or the context was destroyed, the caller's next driver call fails. */
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
    static _Thread_local char unknown[32];
    const char *name = NULL;

    if (driver->cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    snprintf(unknown, sizeof unknown, "CUDA_ERROR_%u", result);
    return unknown;
}

/* ---- counted calls ---- */

static const struct weir_driver *inner_table; /* counted_table forwards its calls to this table */
static struct weir_driver counted_table;
/* The counters of driver calls.  Threads use different counters, so that they do not slow each other down. */
static struct {
    _Alignas(64) _Atomic uint64_t calls[WEIR_ENTRY_COUNT];
} counted[WEIR_STRIPED_STRIPES + 1];
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER; /* guards counted_table's creation */

#define WEIR_ENTRY(group, entry, symbol, version, params, args)                                    \
    static CUresult counted_##entry params {                                                       \
        unsigned own = weir__striped_own();                                                        \
                                                                                                   \
        weir__striped_raise(own, &counted[own].calls[WEIR_ENTRY_##entry]);                         \
        return inner_table->entry args;                                                            \
    }
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

const struct weir_driver *weir__driver_counted(const struct weir_driver *inner) {
    const struct weir_driver *table = NULL;

    if (!inner)
        return NULL;
    pthread_mutex_lock(&count_lock);
    if (!inner_table) {
        counted_table = *inner;
#define WEIR_ENTRY(group, entry, symbol, version, params, args)                                    \
    if (inner->entry)                                                                              \
        counted_table.entry = counted_##entry;
        WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
        inner_table = inner;
    }
    if (inner == inner_table)
        table = &counted_table;
    pthread_mutex_unlock(&count_lock);
    return table;
}

void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]) {
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++) {
        counts[i] = 0;
        for (int stripe = 0; stripe <= WEIR_STRIPED_STRIPES; stripe++)
            counts[i] += atomic_load_explicit(&counted[stripe].calls[i], memory_order_relaxed);
    }
}

const char *weir__driver_entry_name(enum weir_driver_entry entry) {
    static const char *const names[] = {
#define WEIR_ENTRY(group, entry, symbol, version, params, args) symbol,
        WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
    };

    return (unsigned)entry < WEIR_ENTRY_COUNT ? names[entry] : NULL;
}
