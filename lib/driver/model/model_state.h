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
    MODEL_GATED = 32,      /* another process may lock this one */
    MODEL_GENERATION = 64
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
    struct model_order *item; /* sorted by id */
    size_t count, room;
    int lost; /* 1 once an order was lost for lack of host memory */
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
    int device_count;             /* never changes between resets */
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
    uint64_t collect_at_id; /* the stream id at which orders are collected next (model_orders.c) */
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

#endif
