/* SPDX-License-Identifier: MIT */
/* driver.h: the table of driver entry points that all layers above call.
 *
 * There are two makers of tables.  driver_cuda.c fills a table from libcuda.so.1, and model/ implements a table in
 * software.  The names and types are CUDA's.  The table also has a clock, since time on the device model is virtual.
 * A table is made once, is never freed, and never changes afterwards, so threads read it without a lock.
 *
 * This file must not know engines, settings, the public API or who calls it.
 */
#ifndef WEIR_DRIVER_H
#define WEIR_DRIVER_H

#include <stdatomic.h>

#include "driver/cuda_abi.h"

enum { WEIR_DRIVER_OLDEST = 11020 }; /* memory pools: CUDA 11.2, Linux driver 460.27.03 */

/* The capabilities that not every driver has, as X(name, word in output, first driver version).  Some capabilities are
 * groups of WEIR_DRIVER_ENTRIES; such a capability needs all entries of its group.  The other capabilities need only
 * the version.  A `complete' driver in this list lacks no entry of the group.
 *   STREAM_ID      cuStreamGetId
 *   POOL_FIGURES   pool attributes 5 to 8 (CUDA programming guide, "Querying the memory pool")
 *   POOL_MAX_SIZE  CUmemPoolProps.maxSize limits the pool.  cuda.h documents it since toolkit 12.2; 12.1 has reserved
 *                  bytes there, which a driver requires to be zero
 *   GRAPH          stream capture into graphs that allocate (graph memory nodes)
 *   KERNEL         modules, launches, times between events, ranges of blocks; in every complete driver
 *   VIRTUAL        physical memory by handles, mapped into reserved addresses; in every complete driver.  Attribute 102
 *                  of a device says whether the device supports it
 *   PEER           access between devices, and to pools; in every complete driver
 *   IPC            physical memory for several processes, by files; in every complete driver */
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

/* The capabilities as bits.  BASE is the group of entries that every driver has. */
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

/* The cost of all calls to the device model since the process began. */
struct weir_driver_charge {
    uint64_t driver_ns; /* the virtual time of all calls, which is the virtual clock */
    /* The real time inside the model since the first call of charge(), without waits for a processor. */
    uint64_t host_ns;
};

struct weir_driver {
    const char *name;      /* "cuda" or "model" */
    int version;           /* cuDriverGetVersion's number: 1000 * major + 10 * minor */
    unsigned capabilities; /* WEIR_CAP_ bits */

    /* Returns the nanoseconds of a clock that never runs backwards.  On the model this clock is virtual. */
    uint64_t (*ticks)(void);
    /* Waits for at least `ns` nanoseconds, which on the model are virtual. */
    void (*sleep_ns)(uint64_t ns);
    /* Reads the cost of all driver calls.  The first call of this function begins the measurement of real time inside
     * the model.  The pointer is NULL for real devices. */
    void (*charge)(struct weir_driver_charge *out);
    /* Begins (1) or ends (0) a period in which this thread does work that another thread would do on a real device,
     * because all threads share one virtual clock.  The call that ends the period returns the time of the driver calls
     * in the period, which the shared clock does not contain.  This thread's own clock runs on during the period.
     * Other threads are not charged for waits for this work.  The pointer is NULL for real devices. */
    uint64_t (*aside)(int begins);
    /* Returns 1 if other processes may also use memory of the model's devices, else 0.  The pointer is NULL for real
     * devices. */
    int (*is_shared)(void);

#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult(*name) params;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

/* The reason why a maker could not make a table, for a message. */
struct weir_driver_failure {
    char text[256];
};

/* Opens the driver "cuda" or "model", calls cuInit, and returns the driver's table.  On failure returns NULL with
 * *failure, and a later call tries again.  The first call loads the driver, which may take seconds.  Later calls return
 * the table.  In a child of fork the function returns NULL and waits for no lock.  Thread-safe. */
const struct weir_driver *weir__driver_open(const char *name, struct weir_driver_failure *failure);

/* Begin and end a period in which the caller holds a lock and may open a driver.  A child that is forked in this period
 * would wait for ever for the lock.  So weir refuses calls in the child, as weir does after a driver was opened.
 * weir__driver_begin_use returns 1 on success, 0 if there is no host memory for the fork handler; a later open reports
 * this failure. */
int weir__driver_begin_use(void);
void weir__driver_end_use(void);

/* The makers of the two tables, for weir__driver_open alone. */
const struct weir_driver *weir__driver_cuda(struct weir_driver_failure *failure);
const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure);

/* Returns the capabilities of a driver of that version in which no entry is missing. */
unsigned weir__driver_capabilities(int version);
/* Sets the capabilities of a table whose version and entries are set.  If a group lacks an entry, the table does not
 * get the group's capability.  The entries of a group without its capability become NULL.  Only makers of tables call
 * this function. */
void weir__driver_set_capabilities(struct weir_driver *table);

/* Returns a table that forwards to `inner` and counts each call.  An entry that is NULL in `inner` is also NULL in the
 * table.  A process has one such table, so a later call with another `inner` returns NULL.  Counting costs one to three
 * nanoseconds a call with any number of threads. */
const struct weir_driver *weir__driver_counted(const struct weir_driver *inner);
/* Reads the number of calls of each entry, by enum weir_driver_entry.  The numbers are exact if no call is running. */
void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]);
/* Returns the exported symbol of an entry, such as "cuMemAlloc_v2"; or NULL for a number that is no entry. */
const char *weir__driver_entry_name(enum weir_driver_entry entry);

/* Enter and leave a scope.  weir__driver_enter makes the device's context current and the thread's capture mode
 * relaxed, so that internal calls do not depend on the caller's state.  Scopes may be nested.  A thread leaves its
 * scopes in reverse order, and so restores the caller's state.  weir__driver_enter returns CUDA_SUCCESS, or the result
 * of the call that failed; after a failure nothing has changed. */
struct weir_driver_scope {
    CUstreamCaptureMode mode;
};
CUresult weir__driver_enter(const struct weir_driver *driver, CUcontext context,
                            struct weir_driver_scope *scope);
void weir__driver_leave(const struct weir_driver *driver, const struct weir_driver_scope *scope);

/* Set and restore the capture mode alone, for calls that need no context.  If weir__driver_relax fails, the mode is
 * unchanged, and the caller must not restore the mode. */
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

/* Evaluates to the result of `call` in a scope, or to the result of the failure to enter the scope. */
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

/* Evaluates to the result of `call` in relaxed mode, or to the result of the failure to set the mode. */
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

/* Writes the UUID as nvidia-smi prints it, "GPU-01234567-89ab-cdef-0123-456789abcdef".  An unknown UUID is all
 * zeros. */
enum { WEIR_UUID_BYTES = 41 };
CUresult weir__driver_uuid(const struct weir_driver *driver, CUdevice device,
                           char text[WEIR_UUID_BYTES]);

/* Returns the name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY".  For a result that the driver cannot name, returns
 * "CUDA_ERROR_<number>", which stays valid until the thread's next call.  Never returns NULL. */
const char *weir__driver_error_name(const struct weir_driver *driver, CUresult result);

/* The flag that the fork handler sets in the child.  Only driver.c writes the flag.  Every public call reads the flag
 * by weir__driver_forked(). */
extern atomic_int weir__driver_is_forked __attribute__((visibility("hidden")));

/* Returns 1 in a child of fork() of a process that had opened a driver or was opening one, else 0.  Such a child must
 * make no driver call.  A child that was made without fork handlers (_Fork, a bare clone) is not recognised. */
static inline int weir__driver_forked(void) {
    return atomic_load_explicit(&weir__driver_is_forked, memory_order_relaxed);
}

#endif
