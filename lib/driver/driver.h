/* SPDX-License-Identifier: MIT */
/* driver.h: the table of driver entry points that everything above calls.
 *
 * One table, two makers: driver_cuda.c fills it from libcuda.so.1, model/ in software.  The names
 * and types are CUDA's own.  Beside the entry points it carries the clock, since time on the device
 * model is virtual.  A table is made once, is never freed, and never changes afterwards, so it is
 * read without a lock.
 *
 * Must not know: who calls it; engines, settings, the public API.
 */
#ifndef WEIR_DRIVER_H
#define WEIR_DRIVER_H

#include <stdatomic.h>

#include "driver/cuda_abi.h"

enum { WEIR_DRIVER_OLDEST = 11020 }; /* memory pools: CUDA 11.2, Linux driver 460.27.03 */

/* What not every driver can: X(name, word in output, first driver version that can).  The optional
 * groups of WEIR_DRIVER_ENTRIES are among them; the others come with a version alone.
 *   STREAM_ID      cuStreamGetId
 *   POOL_FIGURES   pool attributes 5 to 8 (CUDA programming guide, "Querying the memory pool")
 *   POOL_MAX_SIZE  CUmemPoolProps.maxSize limits the pool.  Toolkit 12.2 is the first whose cuda.h
 *                  says so; 12.1 has reserved bytes there, which a driver wants to be zero
 *   GRAPH          stream capture into graphs that allocate (graph memory nodes)
 *   KERNEL         modules, launches, times between events, ranges of blocks; in every driver that is
 *                  complete
 *   VIRTUAL        physical memory by handles, mapped into reserved addresses; in every driver that
 *                  is complete.  Whether a device can, its attribute 102 says
 *   PEER           who reaches whose memory, and access to pools; in every driver that is complete
 *   IPC            physical memory for several processes, by files; in every driver that is complete */
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

/* The same as bits; BASE is the group of the entries that every driver has. */
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

/* What a modelled device has charged since the process began. */
struct weir_driver_charge {
    uint64_t driver_ns; /* virtual time of all calls; the virtual clock */
    uint64_t host_ns;   /* real time inside the model while it is measured, without waits for a processor */
};

struct weir_driver {
    const char *name;      /* "cuda" or "model" */
    int version;           /* as cuDriverGetVersion: 1000 * major + 10 * minor */
    unsigned capabilities; /* WEIR_CAP_ bits */

    /* A counter that never runs backwards, cheap enough for every call (about 10 ns), and its
     * differences in nanoseconds.  On the model: the virtual clock. */
    uint64_t (*ticks)(void);
    uint64_t (*ticks_to_ns)(uint64_t ticks);
    /* Lets at least `ns` nanoseconds pass (on the model: of virtual time). */
    void (*sleep_ns)(uint64_t ns);
    /* Modelled devices only, else NULL: the charge so far; real time inside the model is measured
     * from the first call on. */
    void (*charge)(struct weir_driver_charge *out);
    /* Likewise.  The clock is one for all threads, so what a thread beside the caller's would do at the
     * same time is played by the caller between aside(1) and aside(0): what its calls take is no part
     * of the clock, and the second returns it.  Meanwhile this thread's clock runs on from where it was.
     * What the others would wait for it is not charged to them. */
    uint64_t (*aside)(int begins);
    /* Likewise.  1 if other processes may have memory of its devices too. */
    int (*is_shared)(void);

#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult(*name) params;
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

/* The reason that no table could be made, for a message; static text or a buffer of the maker. */
struct weir_driver_failure {
    char text[256];
};

/* "cuda" or "model".  The table of a started driver (cuInit is done), or NULL with *failure filled
 * in: then nothing was kept, and a later call tries again.  Thread-safe; the first call loads, which
 * may take seconds, later ones return the same table.  NULL in a forked child, without waiting for
 * any lock. */
const struct weir_driver *weir__driver_open(const char *name, struct weir_driver_failure *failure);

/* Around a lock under which a driver may be opened: a child that is born in between finds the lock held by nobody,
 * and is refused as if the driver stood already.  0: no memory to see a fork by, which an open then says. */
int weir__driver_begin_use(void);
void weir__driver_end_use(void);

/* The makers (driver_cuda.c, model/), for weir__driver_open alone. */
const struct weir_driver *weir__driver_cuda(struct weir_driver_failure *failure);
const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure);

/* The capabilities of a driver of that version in which no entry is missing. */
unsigned weir__driver_capabilities(int version);
/* For makers, once version and entries stand: sets the capabilities to those of the version, but for
 * groups of which an entry is missing; the entries of a group without its bit become NULL. */
void weir__driver_settle(struct weir_driver *table);

/* Returns a table that forwards to `inner` and counts each call.  An entry that is NULL in
 * `inner` is NULL in the table, too.  A process has one such table: a later call with another `inner`
 * returns NULL.  The call also returns NULL if no thread key is left.  Counting costs one to three nanoseconds a
 * call with any number of threads. */
const struct weir_driver *weir__driver_counted(const struct weir_driver *inner);
/* Calls so far of each entry, by enum weir_driver_entry; exact when no call is under way. */
void weir__driver_counts(uint64_t counts[WEIR_ENTRY_COUNT]);
/* The exported symbol, "cuMemAlloc_v2"; NULL for a number that is no entry. */
const char *weir__driver_entry_name(enum weir_driver_entry entry);

/* Makes the device's context current and this thread's capture mode relaxed, so that internal
 * calls neither depend on nor disturb the caller.  Nestable; each enter that succeeded is left, in
 * reverse order, by the same thread; leave puts back exactly what enter found.  CUDA_SUCCESS, or the
 * failing call's result with everything as before. */
struct weir_driver_scope {
    CUstreamCaptureMode mode;
};
CUresult weir__driver_enter(const struct weir_driver *driver, CUcontext context,
                            struct weir_driver_scope *scope);
void weir__driver_leave(const struct weir_driver *driver, const struct weir_driver_scope *scope);

/* The mode alone, for calls that need no context.  A result other than CUDA_SUCCESS: the mode is what it
 * was, and there is nothing to put back. */
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

/* The CUresult of `call', which is made in a scope; or why there is no scope. */
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

/* Likewise, in relaxed mode alone. */
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

/* Which device it is, as nvidia-smi has it: "GPU-01234567-89ab-cdef-0123-456789abcdef".  Where the driver does not
 * tell, all of it is 0. */
enum { WEIR_UUID_BYTES = 41 };
CUresult weir__driver_uuid(const struct weir_driver *driver, CUdevice device,
                           char text[WEIR_UUID_BYTES]);

/* "CUDA_ERROR_OUT_OF_MEMORY" and so on; "CUDA_ERROR_<number>" for what the driver cannot name (this
 * text holds until the thread's next call).  Never NULL. */
const char *weir__driver_error_name(const struct weir_driver *driver, CUresult result);

/* Written by driver.c alone; read through weir__driver_forked, on every call. */
extern atomic_int weir__driver_is_forked __attribute__((visibility("hidden")));

/* 1 in a child of fork() of a process that had opened a driver or was about to, else 0; such a
 * child must make no driver call.  One load.  A child made without fork handlers (_Fork, a bare
 * clone) is not recognised. */
static inline int weir__driver_forked(void) {
    return atomic_load_explicit(&weir__driver_is_forked, memory_order_relaxed);
}

#endif
