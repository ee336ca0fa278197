/* SPDX-License-Identifier: MIT */
/* driver.h: the table of driver entry points that all layers above call.
 *
 * driver_cuda.c fills a table from libcuda.so.1; the folder model/ implements a table in software, with a virtual
 * clock.  A table is made once and then never changed or freed, so threads read it without a lock.
 */
#ifndef WEIR_DRIVER_H
#define WEIR_DRIVER_H

#include <stdatomic.h>

#include "driver/cuda_abi.h"

/* The first version with memory pools: CUDA 11.2, Linux driver 460.27.03. */
enum { WEIR_DRIVER_OLDEST = 11020 };

/* The capabilities that a driver may lack: X(name, word in output, first driver version).  The driver must also export
 * all calls in the capability's group of WEIR_DRIVER_ENTRIES, if there is such a group.
 *   STREAM_ID      cuStreamGetId
 *   POOL_FIGURES   pool attributes 5 to 8 (CUDA programming guide, "Querying the memory pool")
 *   POOL_MAX_SIZE  CUmemPoolProps.maxSize limits the pool; a driver before 12.2 requires zero in these bytes
 *   GRAPH          capture of streams into graphs that allocate memory (graph memory nodes)
 *   KERNEL         modules, kernel launches, times between events, address ranges of blocks
 *   VIRTUAL        physical allocations mapped into reserved addresses, if the device supports them (attribute 102)
 *   PEER           access of a device to memory and pools of other devices
 *   IPC            physical allocations that processes share through file descriptors
 */
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

/* The bit of each capability.  BASE has no bit, since every driver has this capability. */
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

struct weir_driver_charge {
    uint64_t driver_ns; /* the virtual time since the device model was made or reset */
    uint64_t host_ns;   /* the real time of threads inside the model since the first charge() */
};

struct weir_driver {
    const char *name;      /* as users write it: "cuda" or "model" */
    int version;           /* as cuDriverGetVersion returns it: 12020 is CUDA 12.2 */
    unsigned capabilities; /* WEIR_CAP_ bits */

    /* Returns the nanoseconds of a clock that never runs backwards.  The device model has a virtual clock. */
    uint64_t (*ticks)(void);
    void (*sleep_ns)(uint64_t ns);
    /* Reads the time that calls to the device model have taken.  NULL for real devices. */
    void (*charge)(struct weir_driver_charge *out);
    /* Begins (1) or ends (0) a period whose driver calls do not advance the model's clock.  The end returns the
     * nanoseconds of the period.  NULL for real devices. */
    uint64_t (*set_background)(int begins);
    /* Returns 1 if other processes may use the devices of the model, too, else 0.  NULL for real devices. */
    int (*is_shared)(void);

#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult(*name) params;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

struct weir_driver_failure {
    char text[256];
};

/* Opens the driver "cuda" or "model", and returns its table.  The first call may take seconds.  Returns NULL on
 * failure.  In a child of fork(), returns NULL and takes no lock.  Any thread may call this function. */
const struct weir_driver *weir__driver_open(const char *name, struct weir_driver_failure *failure);

/* Begin and end a period in which the caller may open a driver while it holds a lock.  A child of a fork() in this
 * period could wait for the lock for ever, so weir makes no driver call in the child.  weir__driver_begin_use returns 1
 * on success, 0 if there is no host memory for the fork handler; weir__driver_open then reports the failure. */
int weir__driver_begin_use(void);
void weir__driver_end_use(void);

/* Make the tables for real devices and for the device model.  Only weir__driver_open calls these functions. */
const struct weir_driver *weir__driver_cuda(struct weir_driver_failure *failure);
const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure);

/* Returns the capabilities of a driver that exports all calls of this version. */
unsigned weir__driver_capabilities(int version);
/* Sets the capabilities of a driver table.  If a call of an optional group is missing, all calls of the group become
 * NULL. */
void weir__driver_set_capabilities(struct weir_driver *table);

/* Returns a driver table that counts each call and forwards it to `inner`.  A process has only one such table, so a
 * later call with another `inner` returns NULL. */
const struct weir_driver *weir__driver_counted(const struct weir_driver *inner);
/* Reads how often each driver call was made; exact only while no call is running. */
void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]);
/* Returns the exported symbol of a driver call, such as "cuMemAlloc_v2", or NULL if the number is out of range. */
const char *weir__driver_entry_name(enum weir_driver_entry entry);

/* weir__driver_enter makes `context` current and the thread's capture mode relaxed; weir__driver_leave restores both.
 * Scopes may be nested.  If weir__driver_enter fails, it has changed nothing. */
struct weir_driver_scope {
    CUstreamCaptureMode mode;
};
CUresult weir__driver_enter(const struct weir_driver *driver, CUcontext context,
                            struct weir_driver_scope *scope);
void weir__driver_leave(const struct weir_driver *driver, const struct weir_driver_scope *scope);

/* Make the thread's capture mode relaxed, and restore it.  If weir__driver_relax fails, the caller must not call
 * weir__driver_unrelax. */
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

/* Evaluates `call` in a driver scope.  The value is the result of `call`, or of a failed weir__driver_enter(). */
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

/* Evaluates `call` in relaxed capture mode.  The value is the result of `call`, or of a failed weir__driver_relax(). */
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

/* Writes the UUID of a device in the format of nvidia-smi, "GPU-01234567-89ab-cdef-0123-456789abcdef".  If the driver
 * fails to report the UUID, all digits are zero. */
enum { WEIR_UUID_BYTES = 41 };
CUresult weir__driver_uuid(const struct weir_driver *driver, CUdevice device,
                           char text[WEIR_UUID_BYTES]);

/* Returns the name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY"; never NULL.  The name may be valid only until the
 * thread's next call of the function. */
const char *weir__driver_error_name(const struct weir_driver *driver, CUresult result);

/* Set by a fork handler in a child of fork() that must make no driver call. */
extern atomic_int weir__driver_is_forked __attribute__((visibility("hidden")));

/* Returns 1 in a child that must make no driver call.  Cannot detect children without fork handlers (_Fork, clone). */
static inline int weir__driver_forked(void) {
    return atomic_load_explicit(&weir__driver_is_forked, memory_order_relaxed);
}

#endif
