/* SPDX-License-Identifier: MIT */
/* model_state.h: the data that the files of the device model share.
 *
 * There is one `weir__model` in a process.  Its lock guards all fields that are not marked otherwise.  The calls of a
 * hit path (stream id, capture status, current context) take no lock: they read atomics, fields that never change while
 * their object lives, and the thread's own state.  Handles are addresses of slots in slabs that are made once and never
 * freed, so any value from a caller can be checked without a fault.  A destroyed handle is recognised until the next
 * create takes its slot, which happens at once, as with the real driver.
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

/* Bits of weir__model.state; the generation, which a reset raises, is above them. */
enum {
    MODEL_INITIALISED = 1, /* cuInit was called */
    MODEL_FAULTS = 2,      /* a fault plan exists */
    MODEL_MEASURED = 4,    /* real time inside the model is measured */
    MODEL_FORKED = 8,      /* a child of the process that made the model */
    MODEL_SEQUENCED = 16,  /* the sequence of calls is recorded */
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

/* The first member of each object that has a handle. */
struct model_slot {
    _Atomic uint64_t id;      /* never 0 while the object lives; for a stream, its stream id */
    struct model_slot *spare; /* the next free slot, while this one is free */
    uint64_t ordinal;         /* its number in the sequence of calls, or 0 */
};

struct model_slab {
    char *base;                 /* never changes once made */
    size_t stride, limit, used; /* `stride` is a power of two */
    struct model_slot *spare;   /* freed slots, the latest first */
};

/* Returns a slot whose bytes after the header are zero, or NULL if the slab is full. */
void *weir__model_slab_take(struct model_slab *slab, uint64_t id);
void weir__model_slab_give(struct model_slab *slab, void *slot);
/* Returns the live object of a handle, or NULL.  Takes no lock. */
void *weir__model_slab_find(const struct model_slab *slab, const void *handle);

/* ---- Streams and events ---- */

/* The order "behind stream `id` up to its operation `seq`". */
struct model_order {
    uint64_t id, seq;
};
struct model_orders {
    struct model_order *item; /* sorted by id */
    size_t count, room;
    int lost; /* set once an order was lost for lack of host memory */
};

struct model_stream {
    struct model_slot slot;
    struct model_context *context; /* this and `flags` never change while the stream lives */
    unsigned flags;
    _Atomic CUstreamCaptureStatus capture_status;
    struct model_branch *branch;      /* its part in a capture, or NULL */
    uint64_t seq;                     /* operations submitted so far */
    uint64_t end_ns;                  /* when the work submitted so far is done */
    struct model_orders after;        /* the work that its next operation is ordered behind */
    struct model_stream *prev, *next; /* in the list of its context */
};

struct model_event {
    struct model_slot slot;
    struct model_context *context; /* this and `flags` never change while the event lives */
    unsigned flags;
    uint64_t stream_id, seq; /* the work that the last record covers; stream_id 0: none */
    uint64_t end_ns;
    uint64_t capture_id; /* if not 0, recorded in that capture: only `after` counts, in steps */
    struct model_orders after;
    struct model_event *prev, *next; /* in the list of its context */
};

/* ---- Devices and contexts ---- */

/* A context of one device; its address is the handle. */
struct model_context {
    _Atomic int retained;  /* 0 if it is destroyed or not made yet */
    _Atomic int capturing; /* captured blocking streams, which forbid the legacy stream */
    int device;
    struct model_stream *legacy;  /* set before `retained` is */
    struct model_stream *streams; /* all streams, with the legacy one */
    struct model_event *events;
};

struct model_device {
    struct model_context context; /* the primary context */
    struct model_context
        green;         /* a context of a part of the device, here of all of it; one at a time */
    uint64_t capacity; /* bytes; never changes */
    uint64_t context_bytes;          /* the bytes of a context; never changes */
    uint64_t physical;               /* bytes taken: context, cuMemAlloc, pools, graphs, handles */
    uint64_t graph_bytes;            /* the part of `physical` that graphs have taken */
    uint64_t graph_used;             /* the part of `graph_bytes` in allocations of graphs */
    uint64_t graph_end_ns;           /* when the work before the last free of such memory is done */
    uint64_t work_end_ns;            /* when all work submitted so far is done */
    struct model_page *pages;        /* pages of small cuMemAlloc blocks with free space */
    uint64_t page_count;             /* all such pages, also full ones */
    struct model_direct *blocks;     /* all cuMemAlloc blocks */
    struct model_direct *leaving;    /* blocks freed in stream order whose work is not done */
    struct model_pool *default_pool; /* NULL until a program uses it */
    struct model_pool *current_pool; /* the pool of cuMemAllocAsync; NULL: the default pool */
    struct model_host_block *host_blocks;
};

/* ---- Blocks ---- */

/* A live block, in the tree weir__model.blocks by its address.  It is the first member of all kinds of blocks. */
struct model_block {
    struct model_node node;  /* key: address */
    uint64_t bytes;          /* the requested bytes */
    struct model_pool *pool; /* NULL: from cuMemAlloc or a graph */
    int of_graph;            /* set for memory of a graph */
    int device;
    uint64_t id; /* unique to this allocation */
};

/* ---- Captures and graphs ---- */

enum model_step_kind { STEP_KERNEL, STEP_USE, STEP_FILL, STEP_COPY, STEP_ALLOC, STEP_FREE };

/* An operation of a stream, which runs at once or when a graph is launched. */
struct model_step {
    enum model_step_kind kind;
    uint32_t value;                  /* a fill's value of each four bytes */
    uint64_t duration_ns;            /* the time of all steps but allocations and frees */
    uint64_t address, bytes;         /* device memory of a use, a fill or a copy */
    uint64_t owner;                  /* the owner of a use */
    const void *from;                /* the source of a copy */
    void *to;                        /* the target of a fill or a copy */
    struct model_graph_block *block; /* the block of an allocation or a free */
};

struct model_plan;   /* captured steps: model_graph.c */
struct model_branch; /* one stream's part in a capture: model_capture.c */

/* ---- Threads ---- */

struct model_thread {
    uint64_t state; /* weir__model.state as the fast path expects it */
    int depth;      /* the depth of `stack` */
    CUstreamCaptureMode capture_mode;
    struct model_context *stack[MODEL_CONTEXT_DEPTH];
    struct model_stream
        *own[MODEL_DEVICES]; /* its per-thread default streams, which end with their contexts */
    uint64_t own_id[MODEL_DEVICES];           /* the ids of `own`, since a handle may be reused */
    _Atomic uint64_t calls[WEIR_ENTRY_COUNT]; /* only this thread writes them */
    struct model_thread *prev, *next;         /* guarded by the lock */
};

/* ---- The model ---- */

struct model_fault {
    uint64_t countdown; /* 0 if no fault is planned */
    uint64_t then;      /* the next countdown, or 0 */
    CUresult result;
    int for_good;
};

struct model {
    _Atomic uint64_t state;
    _Atomic uint64_t clock_ns;
    _Atomic uint64_t host_ns;     /* real time inside calls while measured */
    uint64_t measure_ns;          /* the real cost of a measurement that it does not see itself */
    struct model_profile profile; /* never changes between resets */
    int device_count;             /* never changes between resets */
    struct model_device devices[MODEL_DEVICES];

    pthread_mutex_t lock;
    struct model_slab streams, events, pools, graphs, execs, memories;
    int pools_grew;        /* set once a pool has grown since the reset */
    uint64_t handles_made; /* handles made since the reset */
    /* In order of creation, with destroyed ones that have live blocks. */
    struct model_pool *live_pools;
    struct model_node *blocks; /* live blocks, by address */
    struct model_capture *captures;
    struct model_node *graph_blocks; /* all allocations of graphs, live or not, by address */
    uint64_t next_stream_id, next_object_id;
    uint64_t collect_at_id; /* the stream id at which orders are collected next (model_orders.c) */
    struct model_thread *threads;
    uint64_t retired_calls[WEIR_ENTRY_COUNT];        /* calls of threads that have ended */
    struct model_fault faults[WEIR_ENTRY_COUNT + 1]; /* the last is for any entry */
    uint64_t faults_met;
    enum weir_driver_entry last_fault; /* the entry of the last fault */
};

extern struct model weir__model;

static inline void weir__model_lock(void) {
    pthread_mutex_lock(&weir__model.lock);
}
static inline void weir__model_unlock(void) {
    pthread_mutex_unlock(&weir__model.lock);
}
/* The time that this thread was charged since it last read the clock.  It is added to the clock at the next reading,
 * when other threads see it, because an atomic addition in every call would cost more than the quickest calls do. */
extern _Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;

/* The state of a thread that plays another one (driver.h, `aside`): the clock does not contain the time of its
 * calls. */
struct model_aside {
    int on;
    uint64_t ns;       /* 0 while it is off */
    uint64_t start_ns; /* real time, or 0 if it is not measured */
    uint64_t host_ns;  /* host_ns at the beginning */
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
/* Makes the host wait until that time. */
void weir__model_wait_until(uint64_t ns);

/* Returns the calling thread's state; never NULL inside an entry of the table. */
struct model_thread *weir__model_thread(void);
/* Returns the calling thread's state, for calls outside the table, and makes it if necessary.  Returns NULL if there is
 * no host memory. */
struct model_thread *weir__model_join(void);

/* Returns the current context, or NULL with the reason. */
struct model_context *weir__model_current(CUresult *why);
CUresult weir__model_device_check(CUdevice device);

/* Returns the stream of a handle, default streams included, or NULL with the reason.  Takes the lock only to make a
 * thread's default stream. */
struct model_stream *weir__model_stream(CUstream handle, CUresult *why);

#endif
