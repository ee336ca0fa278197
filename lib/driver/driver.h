/* SPDX-License-Identifier: MIT */
/* driver.h: the table of driver entry points that all layers above call.
 *
 * There are two tables.  driver_cuda.c fills a table with the entry points of libcuda.so.1.  The folder model/
 * implements a table in software.  The names and types of the entry points are CUDA's.  A table also has a clock, since
 * time on the device model is virtual.  A table is made once and then never changed or freed, so threads read it
 * without a lock.
 *
 * This file must not depend on the layers above, such as engines, settings and the public API.
 */
#ifndef WEIR_DRIVER_H
#define WEIR_DRIVER_H

#include <stdatomic.h>

#include "driver/cuda_abi.h"

/* The first version with memory pools: CUDA 11.2, Linux driver 460.27.03. */
enum { WEIR_DRIVER_OLDEST = 11020 };

/* The list of capabilities that a driver may lack: X(name, word in output, first driver version).  A driver has
 * POOL_FIGURES and POOL_MAX_SIZE if it has this version.  A driver has any other capability if it exports all calls
 * of the group of this name in WEIR_DRIVER_ENTRIES.
 *   STREAM_ID      cuStreamGetId
 *   POOL_FIGURES   pool attributes 5 to 8 (CUDA programming guide, "Querying the memory pool")
 *   POOL_MAX_SIZE  CUmemPoolProps.maxSize limits the pool.  cuda.h has the field since toolkit 12.2; up to 12.1 its
 *                  bytes are reserved, and the driver requires zero
 *   GRAPH          capture of streams into graphs that allocate memory (graph memory nodes)
 *   KERNEL         modules, kernel launches, times between events, address ranges of blocks
 *   VIRTUAL        physical allocations that are mapped into reserved addresses.
 *                  Attribute 102 of a device says whether the device supports these mappings
 *   PEER           access of a device to memory and pools of other devices
 *   IPC            physical allocations that processes share through file descriptors
 * KERNEL, VIRTUAL, PEER and IPC are in all drivers that weir supports, unless the installation is incomplete. */
#define WEIR_CAPABILITIES(X)                                                                       \
    X(STREAM_ID, "stream-id", 12000)                                                               \
    X(POOL_FIGURES, "pool-figures", 11030)                                                         \
    X(POOL_MAX_SIZE, "pool-max-size", 12020)                                                       \
    X(GRAPH, "graph", 11040)                                                                       \
    X(KERNEL, "kernels", WEIR_DRIVER_OLDEST)                                                       \
    X(VIRTUAL, "virtual-memory", WEIR_DRIVER_OLDEST)                                               \
    X(PEER, "peers", WEIR_DRIVER_OLDEST)                                                           \
    X(IPC, "ipc", WEIR_DRIVER_OLDEST)

enum weir_driver_capability {
#define WEIR_CAPABILITY(name, word, version) WEIR_CAPABILITY_##name,
    WEIR_CAPABILITIES(WEIR_CAPABILITY)
#undef WEIR_CAPABILITY
};

/* The bit of each capability.  BASE has no bit, since every driver exports the calls of the group BASE. */
enum {
    WEIR_CAP_BASE = 0,
#define WEIR_CAPABILITY(name, word, version) WEIR_CAP_##name = 1 << WEIR_CAPABILITY_##name,
    WEIR_CAPABILITIES(WEIR_CAPABILITY)
#undef WEIR_CAPABILITY
};

enum weir_driver_entry {
#define WEIR_ENTRY(group, name, symbol, version, params, args) WEIR_ENTRY_##name,
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
        WEIR_ENTRY_COUNT
};

/* The time that driver calls to the device model have taken since the process began. */
struct weir_driver_charge {
    uint64_t driver_ns; /* the virtual time of all calls */
    /* The real time that threads have spent inside the model since the first call of charge(), without waits for a
     * processor. */
    uint64_t host_ns;
};

struct weir_driver {
    const char *name; /* the word by which users select the driver: "cuda" or "model" */
    /* The driver version as cuDriverGetVersion returns it, for example 12020 for CUDA 12.2. */
    int version;
    unsigned capabilities; /* the WEIR_CAP_ bits of the capabilities that the driver has */

    /* Returns the time in nanoseconds of a clock that never runs backwards.  The device model has a virtual clock. */
    uint64_t (*ticks)(void);
    /* Waits for at least `ns` nanoseconds.  On the device model, only advances the virtual clock. */
    void (*sleep_ns)(uint64_t ns);
    /* Reads the time that driver calls to the device model have taken.  The first call begins the measurement of real
     * time inside the model.  The pointer is NULL for real devices. */
    void (*charge)(struct weir_driver_charge *out);
    /* Begins (1) or ends (0) a period in which this thread does work for which a real system would use another
     * thread, at the same time.  The device model has one virtual clock for all threads, so the driver calls of the
     * period must not advance this clock.  They advance a clock of this thread instead; the call that ends the period
     * returns their time.  The pointer is NULL for real devices. */
    uint64_t (*aside)(int begins);
    /* Returns 1 if other processes may use the devices, too, else 0.  Only the device model has this function; the
     * pointer is NULL for real devices, which other processes always may use. */
    int (*is_shared)(void);

#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult(*name) params;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

/* The reason why a driver could not be opened, as a text for a message. */
struct weir_driver_failure {
    char text[256];
};

/* Opens the driver "cuda" or "model", calls cuInit, and returns the driver's table.  On failure returns NULL and
 * sets *failure; a later call then tries again.  The first call loads the driver, which may take seconds.  Later
 * calls return the existing table.  In a child of fork() the function returns NULL without waiting for a lock.  All
 * threads may call the function. */
const struct weir_driver *weir__driver_open(const char *name, struct weir_driver_failure *failure);

/* Begin and end a period in which the caller holds a lock and may open a driver.  After a fork() in this period, the
 * child could wait for the lock for ever, so weir makes no driver call in the child.  weir__driver_begin_use returns
 * 1 on success, 0 if there is no host memory for the fork handler; in this case weir__driver_open reports the
 * failure. */
int weir__driver_begin_use(void);
void weir__driver_end_use(void);

/* Make the driver tables for real devices and for the device model.  Only weir__driver_open calls these functions. */
const struct weir_driver *weir__driver_cuda(struct weir_driver_failure *failure);
const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure);

/* Returns the capabilities of a driver of this version that exports all calls of the version. */
unsigned weir__driver_capabilities(int version);
/* Sets the capabilities of a driver table from its version and its entry points, which must be set.  If a call of an
 * optional group is missing, the table does not get the capability, and all calls of the group become NULL.  Only the
 * functions that make tables use this function. */
void weir__driver_set_capabilities(struct weir_driver *table);

/* Returns a driver table that counts each call and forwards it to `inner`.  A call that is NULL in `inner` is also
 * NULL in the returned table.  A process has only one such table, so a later call with another `inner` returns NULL.
 * Counting takes one to three nanoseconds, with any number of threads. */
const struct weir_driver *weir__driver_counted(const struct weir_driver *inner);
/* Reads how often each driver call was made, indexed by enum weir_driver_entry.  The numbers are exact if no call is
 * running. */
void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]);
/* Returns the exported symbol of a driver call, such as "cuMemAlloc_v2", or NULL if the number is out of range. */
const char *weir__driver_entry_name(enum weir_driver_entry entry);

/* A scope is a period in which a thread makes driver calls of weir.  weir__driver_enter makes `context` current and
 * sets the thread's capture mode to relaxed, so that weir's calls do not depend on the state of the program.
 * weir__driver_leave restores both.  Scopes may be nested.  weir__driver_enter returns CUDA_SUCCESS, or the result of
 * the driver call that failed; on failure nothing has changed. */
struct weir_driver_scope {
    CUstreamCaptureMode mode;
};
CUresult weir__driver_enter(const struct weir_driver *driver, CUcontext context,
                            struct weir_driver_scope *scope);
void weir__driver_leave(const struct weir_driver *driver, const struct weir_driver_scope *scope);

/* Set the capture mode of the thread to relaxed, and restore it, for driver calls that need no context.  If
 * weir__driver_relax fails, the mode is unchanged, and the caller must not call weir__driver_unrelax. */
static inline CUresult weir__driver_relax(const struct weir_driver *driver,
                                          struct weir_driver_scope *scope) {
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return driver->cuThreadExchangeStreamCaptureMode(&scope->mode);
}
static inline void weir__driver_unrelax(const struct weir_driver *driver,
                                        const struct weir_driver_scope *scope) {
    CUstreamCaptureMode mode = scope->mode;

    driver->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Makes `context` current and the capture mode relaxed, evaluates `call`, and restores both.  The value of the macro
 * is the result of `call`, or the result of the driver call that failed before. */
#define WEIR_IN_SCOPE(driver, context, call)                                                       \
    __extension__({                                                                                \
        struct weir_driver_scope its_scope;                                                        \
        CUresult its_result = weir__driver_enter(driver, context, &its_scope);                     \
        if (its_result == CUDA_SUCCESS) {                                                          \
            its_result = call;                                                                     \
            weir__driver_leave(driver, &its_scope);                                                \
        }                                                                                          \
        its_result;                                                                                \
    })

/* Sets the capture mode to relaxed, evaluates `call`, and restores the mode.  The value of the macro is the result of
 * `call`, or the result of a failure to set the mode. */
#define WEIR_RELAXED(driver, call)                                                                 \
    __extension__({                                                                                \
        struct weir_driver_scope its_scope;                                                        \
        CUresult its_result = weir__driver_relax(driver, &its_scope);                              \
        if (its_result == CUDA_SUCCESS) {                                                          \
            its_result = call;                                                                     \
            weir__driver_unrelax(driver, &its_scope);                                              \
        }                                                                                          \
        its_result;                                                                                \
    })

/* Writes the UUID of a device as nvidia-smi prints it, "GPU-01234567-89ab-cdef-0123-456789abcdef".  If the driver
 * fails to report the UUID, all digits are zero. */
enum { WEIR_UUID_BYTES = 41 };
CUresult weir__driver_uuid(const struct weir_driver *driver, CUdevice device,
                           char text[WEIR_UUID_BYTES]);

/* Returns the name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY".  If the driver has no name for the result,
 * returns "CUDA_ERROR_<number>"; this text stays valid until the thread calls the function again.  Never returns
 * NULL. */
const char *weir__driver_error_name(const struct weir_driver *driver, CUresult result);

/* Set in a child of fork() that must make no driver call.  Only a fork handler in driver.c sets the flag.  Every
 * public function reads it by weir__driver_forked(). */
extern atomic_int weir__driver_is_forked __attribute__((visibility("hidden")));

/* Returns 1 in a child of fork() whose parent had opened a driver or was opening one, else 0.  Such a child must
 * make no driver call.  The function does not recognise a child that was made without fork handlers (_Fork, a bare
 * clone). */
static inline int weir__driver_forked(void) {
    return atomic_load_explicit(&weir__driver_is_forked, memory_order_relaxed);
}

#endif
