/* SPDX-License-Identifier: MIT */
/* model_state.h: what the files of the device model share.
 *
 * One process-wide `weir__model`.  Its lock guards everything that is not marked otherwise; the
 * calls that a hit path makes (stream id, capture status, current context) take no lock: they read
 * atomics, fields that never change while their object lives, and the thread's own state.  Handles
 * are addresses of slots in slabs that are made once and never go, so that any value a caller
 * passes can be checked without a fault, and a destroyed handle is seen as such until the next
 * create takes its slot, which it does at once, as the real driver does.
 *
 * Must not know: anything above driver.h.
 */
#ifndef WEIR_MODEL_STATE_H
#define WEIR_MODEL_STATE_H

#include "base/tls.h"
#include "driver/driver.h"
#include "driver/model/model.h"
#include "driver/model/model_profile.h"
#include "driver/model/model_program.h"
#include "driver/model/model_shared.h"
#include "driver/model/model_tree.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { MODEL_DEVICES = 16, MODEL_CONTEXT_DEPTH = 64, MODEL_MEMORY_STRIDE = 64 };

/* Bits of weir__model.state; the generation, which a reset raises, stands above them. */
enum {
    MODEL_INITIALISED = 1, /* cuInit was called */
    MODEL_FAULTS = 2,      /* a fault plan stands */
    MODEL_MEASURED = 4,    /* real time inside the model is measured */
    MODEL_FORKED = 8,      /* this process is a child of the one that made the model */
    MODEL_SEQUENCED = 16,  /* the sequence of calls is noted */
    MODEL_GENERATION = 32
};

/* ---- The sequence of calls (model_sequence.c) ---- */

enum model_kind {
    MODEL_NUMBER,
    MODEL_STREAM,
    MODEL_EVENT,
    MODEL_POOL,
    MODEL_PROPERTIES,
    MODEL_OTHER
};
enum { MODEL_ARGUMENTS = 11 };

struct model_argument {
    enum model_kind kind;
    uintptr_t value; /* a number, or a pointer */
};

void weir__model_sequence_add(enum weir_driver_entry entry,
                              const struct model_argument arguments[MODEL_ARGUMENTS],
                              CUresult result);

/* ---- Handles ---- */

/* The first member of everything a handle names. */
struct model_slot {
    _Atomic uint64_t id;      /* never 0 while the object lives; for a stream, its stream id */
    struct model_slot *spare; /* the next free slot, while this one is free */
    uint64_t ordinal;         /* in the sequence of calls; 0: not named yet */
};

struct model_slab {
    char *base;                 /* never changes once made */
    size_t stride, limit, used; /* stride: a power of two */
    struct model_slot *spare;   /* freed slots, latest first */
};

int weir__model_slab_make(struct model_slab *slab, size_t stride, size_t limit); /* 0 or -1 */
/* A slot with all bytes behind its header zero, or NULL when the slab is full. */
void *weir__model_slab_take(struct model_slab *slab, uint64_t id);
void weir__model_slab_give(struct model_slab *slab, void *slot);
/* The live object behind a handle, or NULL.  Takes no lock. */
void *weir__model_slab_find(const struct model_slab *slab, const void *handle);

/* ---- Streams and events ---- */

/* "Ordered behind stream `id` up to its operation `seq`". */
struct model_order {
    uint64_t id, seq;
};
struct model_orders {
    struct model_order *item;
    size_t count, room;
};

struct model_stream {
    struct model_slot slot;
    struct model_context *context; /* these two never change while the stream lives */
    unsigned flags;
    _Atomic CUstreamCaptureStatus capture_status;
    struct model_branch *branch;      /* its part in a capture, or NULL */
    uint64_t seq;                     /* operations submitted so far */
    uint64_t end_ns;                  /* when the work submitted so far is done */
    struct model_orders after;        /* what its next operation is ordered behind */
    struct model_stream *prev, *next; /* of its context */
};

struct model_event {
    struct model_slot slot;
    struct model_context *context; /* these two never change while the event lives */
    unsigned flags;
    uint64_t stream_id, seq; /* what the last record covers; stream_id 0: never recorded */
    uint64_t end_ns;
    uint64_t capture_id; /* not 0: recorded in that capture; only `after` counts, in its steps */
    struct model_orders after;
    struct model_event *prev, *next; /* of its context */
};

/* ---- Devices and contexts ---- */

/* A context of one device; its address is the handle. */
struct model_context {
    _Atomic int retained;  /* 0: destroyed or never made */
    _Atomic int capturing; /* blocking streams that are: the legacy stream must not be used */
    int device;
    struct model_stream *legacy;  /* set before `retained` rises */
    struct model_stream *streams; /* all of them, the legacy one too */
    struct model_event *events;
};

struct model_device {
    struct model_context context; /* the primary one */
    struct model_context
        green; /* for a part of the device, which is all of it here; there is one at a time */
    uint64_t capacity;               /* bytes; never changes */
    uint64_t context_bytes;          /* what a context takes; never changes */
    uint64_t physical;               /* bytes taken: context, cuMemAlloc, pools, graphs, handles */
    uint64_t graph_bytes;            /* of them, taken for memory of graphs */
    uint64_t graph_used;             /* of these, in allocations of graphs */
    uint64_t graph_end_ns;           /* when the last free of such an allocation is done */
    uint64_t work_end_ns;            /* when all work submitted so far is done */
    struct model_page *pages;        /* of small cuMemAlloc blocks, with room left */
    uint64_t page_count;             /* full ones too */
    struct model_direct *blocks;     /* all cuMemAlloc blocks */
    struct model_direct *leaving;    /* freed in stream order, behind work */
    struct model_pool *default_pool; /* NULL until a program asks for it */
    struct model_pool *current_pool; /* what cuMemAllocAsync uses; NULL: the default one */
    struct model_host_block *host_blocks;
};

/* ---- Blocks ---- */

/* A live block: in weir__model.blocks under its address.  First member of all kinds. */
struct model_block {
    struct model_node node;  /* key: address */
    uint64_t bytes;          /* as requested */
    struct model_pool *pool; /* NULL: from cuMemAlloc, or */
    int of_graph;            /* memory of a graph */
    int device;
    uint64_t id; /* of this allocation alone */
};

/* ---- Captures and graphs ---- */

enum model_step_kind { STEP_KERNEL, STEP_USE, STEP_FILL, STEP_COPY, STEP_ALLOC, STEP_FREE };

/* What a stream runs, at once or when a graph is launched. */
struct model_step {
    enum model_step_kind kind;
    uint32_t value;                  /* of a fill, in each four bytes */
    uint64_t duration_ns;            /* of all but an allocation or a free */
    uint64_t address, bytes;         /* on the device, of a use, a fill or a copy */
    uint64_t owner;                  /* of a use */
    const void *from;                /* of a copy */
    void *to;                        /* of a fill or a copy */
    struct model_graph_block *block; /* of an allocation or a free */
};

struct model_plan;   /* captured steps: model_graph.c */
struct model_branch; /* one stream's part in a capture: model_capture.c */

/* ---- Threads ---- */

struct model_thread {
    uint64_t state; /* weir__model.state as the fast path wants it */
    int depth;      /* of the stack of current contexts */
    CUstreamCaptureMode capture_mode;
    struct model_context *stack[MODEL_CONTEXT_DEPTH];
    struct model_stream
        *own[MODEL_DEVICES]; /* its per-thread default streams, which end with their contexts: */
    uint64_t own_id[MODEL_DEVICES]; /* these are the same only if they still have these ids */
    _Atomic uint64_t calls[WEIR_ENTRY_COUNT]; /* written by this thread alone */
    struct model_thread *prev, *next;         /* guarded by the lock */
};

/* ---- The model ---- */

struct model_fault {
    uint64_t countdown; /* 0: none */
    uint64_t then;      /* the next countdown; 0: it was the last */
    CUresult result;
    int for_good;
};

struct model {
    _Atomic uint64_t state;
    _Atomic uint64_t clock_ns;
    _Atomic uint64_t host_ns;     /* real time inside calls while measured */
    uint64_t measure_ns;          /* real cost of measuring one call, outside what it sees */
    struct model_profile profile; /* never changes between resets */
    int device_count;             /* likewise */
    struct model_device devices[MODEL_DEVICES];

    pthread_mutex_t lock;
    struct model_slab streams, events, pools, graphs, execs, memories;
    int pools_grew;                /* some pool has grown since the reset */
    uint64_t handles_made;         /* since the reset */
    struct model_pool *live_pools; /* in order of creation, destroyed ones with live blocks too */
    struct model_node *blocks;     /* live blocks, by address */
    struct model_capture *captures;
    struct model_node *graph_blocks; /* all allocations of graphs, live or not, by address */
    uint64_t next_stream_id, next_object_id;
    struct model_thread *threads;
    uint64_t retired_calls[WEIR_ENTRY_COUNT];        /* of threads that have ended */
    struct model_fault faults[WEIR_ENTRY_COUNT + 1]; /* the last: of any entry */
    uint64_t faults_met;
    enum weir_driver_entry last_fault; /* of them */
};

extern struct model weir__model;

static inline void weir__model_lock(void) {
    pthread_mutex_lock(&weir__model.lock);
}
static inline void weir__model_unlock(void) {
    pthread_mutex_unlock(&weir__model.lock);
}
/* What this thread was charged since it last looked at the clock: added to the clock when it looks,
 * since a locked addition in every call would cost more than the quickest calls do.  Other threads
 * see it then. */
extern _Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;

/* Of a thread that plays another (driver.h, `aside`): what its calls took since, which is no part of the
 * clock. */
struct model_aside {
    int on;
    uint64_t ns;       /* 0 while it is off */
    uint64_t start_ns; /* real; 0: not measured */
    uint64_t host_ns;  /* as it was then */
};
extern _Thread_local struct model_aside weir__model_aside WEIR_FAST_TLS;

static inline uint64_t weir__model_now(void) {
    if (weir__model_owed_ns) {
        if (weir__model_aside.on)
            weir__model_aside.ns += weir__model_owed_ns;
        else
            atomic_fetch_add_explicit(&weir__model.clock_ns, weir__model_owed_ns,
                                      memory_order_relaxed);
        weir__model_owed_ns = 0;
    }
    return atomic_load_explicit(&weir__model.clock_ns, memory_order_relaxed) + weir__model_aside.ns;
}
static inline void weir__model_charge(uint64_t ns) {
    weir__model_owed_ns += ns;
}
/* The host waits until that time. */
void weir__model_wait_until(uint64_t ns);

/* The calling thread's state; never NULL inside an entry of the table. */
struct model_thread *weir__model_thread(void);
/* The same for calls beside the table: makes the state first; NULL without memory for it. */
struct model_thread *weir__model_join(void);

/* The current context, or NULL with the reason. */
struct model_context *weir__model_current(CUresult *why);
CUresult weir__model_device_check(CUdevice device);

/* The stream that a handle names, default streams included, or NULL with the reason.  Takes the
 * lock only to make a thread's default stream. */
struct model_stream *weir__model_stream(CUstream handle, CUresult *why);

/* The functions below want the lock held. */

/* Physical memory of a device: bytes that are left, of other processes' shares too; taking, 0 or -1; and giving. */
uint64_t weir__model_room(const struct model_device *device);
int weir__model_take(struct model_device *device, uint64_t bytes);
void weir__model_give(struct model_device *device, uint64_t bytes);

struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags);
void weir__model_stream_drop(struct model_stream *stream);
/* The thread's own stream on that device, or NULL if there is none yet, or it went with its context. */
struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device);
void weir__model_streams_drop(struct model_context *context); /* its events too */
/* Brings a stream behind what its kind is implicitly ordered behind, and counts an operation. */
void weir__model_stream_touch(struct model_stream *stream);
void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns);
/* A kernel or a use: work of that length, or a step of the capture. */
CUresult weir__model_stream_kernel(struct model_stream *stream, const struct model_step *step);
int weir__model_stream_is_blocking(const struct model_stream *stream);
/* Up to which operation of stream `id` these orders reach; 0: none. */
uint64_t weir__model_order(const struct model_orders *orders, uint64_t id);
void weir__model_learn(struct model_orders *orders, uint64_t id, uint64_t seq);
void weir__model_learn_all(struct model_orders *orders, const struct model_orders *from);
void weir__model_forget_all(struct model_orders *orders);

/* Before each operation on a stream.  *branch: NULL to run it now, else what captures it. */
CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch);
/* Before the host asks about the work of a stream, an event or a context, or waits for it. */
CUresult weir__model_capture_asks(struct model_stream *stream);
CUresult weir__model_capture_asks_event(const struct model_event *event);
CUresult weir__model_capture_asks_context(const struct model_context *context);
/* Before a call that is unsafe beside a capture; of those on a stream, outside of captures. */
CUresult weir__model_capture_unsafe(void);
struct model_plan *weir__model_capture_plan(const struct model_branch *branch);
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step);
void weir__model_capture_record(struct model_branch *branch, struct model_event *event);
/* `branch`: that of the stream, or NULL. */
CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event);
/* A stream, or a thread, that goes. */
void weir__model_capture_drop_stream(struct model_stream *stream);
void weir__model_capture_drop_thread(const struct model_thread *thread);
const char *weir__model_capture_check(const struct model_context *context);

struct model_plan *weir__model_plan_make(void);
void weir__model_plan_drop(struct model_plan *plan);
int weir__model_plan_add(struct model_plan *plan, const struct model_step *step); /* 0 or -1 */
CUgraph weir__model_graph_make(struct model_plan *plan); /* takes it over; NULL: no handle left */
CUresult weir__model_graph_alloc(struct model_branch *branch, int device, uint64_t bytes,
                                 CUdeviceptr *address);
CUresult weir__model_graph_free(struct model_branch *branch, CUdeviceptr address);
/* Does one allocation of a graph, live or not, hold all of that? */
int weir__model_graph_holds(uint64_t address, uint64_t bytes);
void weir__model_graph_block_free(struct model_block *block, const struct model_stream *stream);
void weir__model_graphs_drop(void);
const char *weir__model_graph_check(int device, uint64_t *physical);
/* A fill or a copy, on host memory, as work of a stream; and what it does to the device's. */
CUmemAccess_flags weir__model_step_access(const struct model_step *step);
void weir__model_step_run(const struct model_step *step, const struct model_stream *stream);
/* How memory of a device is mapped where the host, which plays the device, may use it.  What can be written can be read
 * (Linux, on x86-64 and 64-bit Arm); as this does not say so, Valgrind does not go through gigabytes for pointers to
 * what leaks. */
enum { MODEL_ACCESSIBLE = PROT_WRITE };
/* Whole pages of the device's size, aligned to it, or NULL. */
char *weir__model_map_pages(size_t bytes, int protection);

/* Frees the blocks of cuMemAlloc that left in stream order and whose work is done. */
void weir__model_direct_settle(struct model_device *device);
void weir__model_direct_drop(void);
void weir__model_direct_drop_device(struct model_device *device);
/* All memory of the host that the device's context has. */
void weir__model_host_drop(struct model_device *device);
const char *weir__model_direct_check(const struct model_device *device, uint64_t *physical);

/* The host has seen that stream `id` is done up to `seq`, and all that `after` lists. */
void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after);
/* The host has seen all work of a device done. */
void weir__model_pools_observe_device(int device);
/* The host has synchronised: release thresholds act. */
void weir__model_pools_synchronised(int device);
/* Operation `seq` of stream `id` is work that begins then. */
void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns);
/* Stream `id` is gone. */
void weir__model_pools_forget(uint64_t id);
void weir__model_pool_free_now(struct model_block *block);
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream);
void weir__model_pools_drop(void);

/* A block lives from now on: found by its address, with an id of its own. */
void weir__model_block_enter(struct model_block *block, int device);
/* The live block around all of [address, address + bytes), or NULL. */
const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes);
int weir__model_pool_is_managed(const struct model_pool *pool);
int weir__model_pool_decompresses(const struct model_pool *pool);
/* 1 if what memory is for is something that the driver knows. */
int weir__model_usage_is_known(unsigned usage);
CUmemoryPool weir__model_pool_handle(const struct model_pool *pool);
int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access);

/* May the device be given access to memory of the other?  Of its own always; both are checked here. */
int weir__model_reaches(int device, int other);
/* May work on the device do that with all of [address, address + bytes)?  It lies in one live block,
 * which is the device's own or of a pool that lets it, or in mappings side by side that do. */
int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access);

/* Of mappings alone. */
int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access);
/* The mapping around an address and the device of its memory.  Is there one? */
int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses);
/* Page-locked memory of the host around an address.  Is there any? */
int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);
/* Work of the stream, the latest, fills or copies these bytes. */
void weir__model_virtual_touch(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* The other addresses at which what [address, address + bytes) holds of mappings is mapped as well. */
void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context);
void weir__model_virtual_drop(void);
const char *weir__model_virtual_check(int device, uint64_t *physical);

/* The oracle.  Work on a stream, the latest, uses bytes for an owner. */
void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner);
/* Bytes go back to the driver behind the stream (NULL: the host says that their uses are over). */
void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* The latest work of a stream used these bytes, a whole mapping, for nobody in particular. */
void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes);
/* Whole mappings lose their memory, or access to it, at once. */
void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes);
void weir__model_oracle_closed(uint64_t address, uint64_t bytes);
/* The host has seen that stream `id` is done up to `seq`, and all that `after` lists; or all of a
 * device. */
void weir__model_oracle_seen(uint64_t id, uint64_t seq, const struct model_orders *after);
void weir__model_oracle_seen_device(int device);
void weir__model_oracle_forget(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* One per entry of the table: what it does, after counting, faults and its fixed cost. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* And of those that programs alone call. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
