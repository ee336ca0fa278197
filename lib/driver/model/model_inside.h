/* SPDX-License-Identifier: MIT */
/* model_inside.h: the data and the functions that the files of the device model share.
 *
 * There is one `weir__model` in a process.  Its lock guards all fields that are not marked otherwise.  The calls of a
 * hit path (stream id, capture status, current context) take no lock: they read atomics, fields that never change while
 * their object lives, and the thread's own state.  Handles are addresses of slots in slabs that are made once and never
 * freed, so any value from a caller can be checked without a fault.  A destroyed handle is recognised until the next
 * create takes its slot, which happens at once, as with the real driver.
 *
 * The caller of a function holds the lock, unless a comment says otherwise.  The functions of the table's entries take
 * the lock.
 *
 * This file must not know anything above driver.h.
 */
#ifndef WEIR_MODEL_INSIDE_H
#define WEIR_MODEL_INSIDE_H

#include "base/tls.h"
#include "driver/driver.h"
#include "driver/model/model.h"
#include "driver/model/model_profile.h"
#include "driver/model/model_program.h"
#include "driver/model/model_shared.h"

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

/* Add an item to a list, or remove an item from a list.  The items have the members `prev' and `next'. */
#define MODEL_LIST_ADD(list, item)                                                                 \
    do {                                                                                           \
        (item)->prev = NULL;                                                                       \
        (item)->next = (list);                                                                     \
        if ((item)->next)                                                                          \
            (item)->next->prev = (item);                                                           \
        (list) = (item);                                                                           \
    } while (0)
#define MODEL_LIST_REMOVE(list, item)                                                              \
    do {                                                                                           \
        if ((item)->prev)                                                                          \
            (item)->prev->next = (item)->next;                                                     \
        else                                                                                       \
            (list) = (item)->next;                                                                 \
        if ((item)->next)                                                                          \
            (item)->next->prev = (item)->prev;                                                     \
    } while (0)

/* ---- Kinds of values in the log of calls (model_sequence.c) ---- */

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

/* ---- Ordered sets (model_tree.c) ---- */

/* A node of an ordered set.  The node is a member of another structure.  The keys of a set are pairs (key, tie), and
 * all keys of a set differ.  The set is a treap whose priorities are hashes of the keys, so its shape does not depend
 * on its history. */
struct model_node {
    struct model_node *left, *right;
    uint64_t key, tie;
};

void weir__model_tree_insert(struct model_node **root, struct model_node *node);
/* Removes a node, which must be in the tree. */
void weir__model_tree_remove(struct model_node **root, struct model_node *node);
/* Returns the first node at or behind (key, tie), or NULL if there is no such node. */
struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie);
/* Returns the last node at or before (key, tie), or NULL if there is no such node. */
struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie);

/* ---- Handles ---- */

/* The first member of each object that has a handle. */
struct model_slot {
    _Atomic uint64_t id;      /* never 0 while the object lives; for a stream, its stream id */
    struct model_slot *spare; /* the next free slot, while this slot is free */
    uint64_t ordinal;         /* the number of the object in the recorded sequence of calls, or 0 */
};

struct model_slab {
    char *base;                 /* the memory of all slots; never moves */
    size_t stride, limit, used; /* `stride` is a power of two */
    struct model_slot *spare;   /* freed slots, the latest first */
};

/* Returns a slot whose bytes after the header are zero, or NULL if the slab is full. */
void *weir__model_slab_take(struct model_slab *slab, uint64_t id);
void weir__model_slab_give(struct model_slab *slab, void *slot);
/* Returns the live object of a handle, or NULL.  Takes no lock. */
void *weir__model_slab_find(const struct model_slab *slab, const void *handle);

/* ---- Streams and events ---- */

/* An order, which says that some work is "behind operation `seq` of stream `id`". */
struct model_order {
    uint64_t id, seq;
};
struct model_orders {
    struct model_order *item; /* sorted by id */
    size_t count, room;
    int lost; /* set once an order could not be stored, because there was no host memory */
};

struct model_stream {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the stream lives */
    unsigned flags;
    _Atomic CUstreamCaptureStatus capture_status;
    struct model_branch *branch;      /* the stream's branch of a capture, or NULL */
    uint64_t seq;                     /* the number of operations submitted so far */
    uint64_t end_ns;                  /* the time when the work submitted so far is done */
    struct model_orders after;        /* the work that the stream's next operation is behind */
    struct model_stream *prev, *next; /* in the list of its context */
};

struct model_event {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the event lives */
    unsigned flags;
    /* The work that the last record covers, or 0 before the first record. */
    uint64_t stream_id, seq;
    uint64_t end_ns;
    /* If not 0, the event was recorded in that capture, and `after` counts steps. */
    uint64_t capture_id;
    struct model_orders after;
    struct model_event *prev, *next; /* in the list of its context */
};

/* ---- Devices and contexts ---- */

/* A context of one device; its address is the handle. */
struct model_context {
    _Atomic int retained; /* 0 if the context is destroyed or was not made yet */
    /* The number of captured blocking streams, which forbid the legacy stream. */
    _Atomic int capturing;
    int device;
    struct model_stream *legacy;  /* set before `retained` is */
    struct model_stream *streams; /* all streams, including the legacy stream */
    struct model_event *events;
};

struct model_device {
    struct model_context context; /* the primary context */
    /* A green context, which CUDA makes for a part of a device.  Here the part is the whole device, and a device has at
     * most one green context. */
    struct model_context green;
    uint64_t capacity;      /* bytes; never changes */
    uint64_t context_bytes; /* the bytes of a context; never changes */
    /* The bytes that contexts, cuMemAlloc, pools, graphs and handles have taken. */
    uint64_t physical;
    uint64_t graph_bytes; /* the part of `physical` that graphs have taken */
    uint64_t graph_used;  /* the part of `graph_bytes` in allocations of graphs */
    /* The time when the work before the last free of such memory is done. */
    uint64_t graph_end_ns;
    uint64_t work_end_ns;        /* the time when all work submitted so far is done */
    struct model_page *pages;    /* pages of small cuMemAlloc blocks with free space */
    uint64_t page_count;         /* the number of all such pages, including full pages */
    struct model_direct *blocks; /* all cuMemAlloc blocks */
    /* Blocks that were freed in stream order, and whose work is not done. */
    struct model_direct *leaving;
    struct model_pool *default_pool; /* NULL until a program uses it */
    struct model_pool *current_pool; /* the pool of cuMemAllocAsync, or NULL for the default pool */
    struct model_host_block *host_blocks;
};

/* ---- Blocks ---- */

/* A live block.  The tree weir__model.blocks has all live blocks by their addresses.  All kinds of blocks begin with
 * this struct. */
struct model_block {
    struct model_node node;  /* key: address */
    uint64_t bytes;          /* the requested bytes */
    struct model_pool *pool; /* NULL for a block of cuMemAlloc or of a graph */
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

struct model_plan;   /* the captured steps, defined in model_graph.c */
struct model_branch; /* one stream's part in a capture, defined in model_capture.c */

/* ---- Threads ---- */

struct model_thread {
    /* The value of weir__model.state with which this thread may take the fast path. */
    uint64_t state;
    int depth; /* the depth of `stack` */
    CUstreamCaptureMode capture_mode;
    struct model_context *stack[MODEL_CONTEXT_DEPTH];
    /* The thread's per-thread default streams, which end with their contexts. */
    struct model_stream *own[MODEL_DEVICES];
    uint64_t own_id[MODEL_DEVICES];           /* the ids of `own`, since a handle may be reused */
    _Atomic uint64_t calls[WEIR_ENTRY_COUNT]; /* only this thread writes the numbers */
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
    _Atomic uint64_t host_ns; /* real time inside calls while the model measures it */
    /* The real time of a measurement that the measurement does not contain. */
    uint64_t measure_ns;
    struct model_profile profile; /* never changes between resets */
    int device_count;             /* never changes between resets */
    struct model_device devices[MODEL_DEVICES];

    pthread_mutex_t lock;
    struct model_slab streams, events, pools, graphs, execs, memories;
    int pools_grew;        /* set once a pool has grown since the reset */
    uint64_t handles_made; /* handles made since the reset */
    /* The pools in order of creation, including destroyed pools that have live blocks. */
    struct model_pool *live_pools;
    struct model_node *blocks; /* live blocks, sorted by address */
    struct model_capture *captures;
    struct model_node *graph_blocks; /* all allocations of graphs, live or not, sorted by address */
    uint64_t next_stream_id, next_object_id;
    uint64_t collect_at_id; /* the stream id at which orders are collected next (model_orders.c) */
    struct model_thread *threads;
    uint64_t retired_calls[WEIR_ENTRY_COUNT];        /* calls of threads that have ended */
    struct model_fault faults[WEIR_ENTRY_COUNT + 1]; /* the last element is for any entry */
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
/* Unlocks the model.  Returns the result that was found under the lock. */
static inline CUresult weir__model_unlocked(CUresult result) {
    weir__model_unlock();
    return result;
}
/* The time that calls have charged to this thread since the thread last read the clock.  The next reading adds this
 * time to the clock, and then other threads see the time.  An atomic addition in every call would cost more than the
 * quickest calls do. */
extern _Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;

/* The state of a thread that does the work of another thread for a while (driver.h, `aside`).  The clock does not
 * contain the time of the thread's calls meanwhile. */
struct model_aside {
    int on;
    uint64_t ns;       /* the time of the calls, or 0 while `on` is 0 */
    uint64_t start_ns; /* real time, or 0 if the model does not measure real time */
    uint64_t host_ns;  /* weir__model.host_ns at the beginning of the period */
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
/* Makes the host wait until the clock is at `ns`. */
void weir__model_wait_until(uint64_t ns);

/* Returns the calling thread's state; never NULL inside an entry of the table. */
struct model_thread *weir__model_thread(void);
/* Returns the calling thread's state, which it makes if necessary, or NULL.  For calls outside the table. */
struct model_thread *weir__model_join(void);

/* Returns the current context, or NULL with the reason in *why. */
struct model_context *weir__model_current(CUresult *why);
CUresult weir__model_device_check(CUdevice device);

/* Returns the stream of a handle, or NULL with the reason in *why.  Takes the lock only to make a default stream. */
struct model_stream *weir__model_stream(CUstream handle, CUresult *why);

/* Returns the physical bytes of a device that no process has taken. */
uint64_t weir__model_room(const struct model_device *device);
/* Takes physical bytes of a device.  Returns 0 on success, -1 if the device has fewer free bytes. */
int weir__model_take(struct model_device *device, uint64_t bytes);
/* Frees physical bytes of a device. */
void weir__model_give(struct model_device *device, uint64_t bytes);

static inline uint64_t weir__model_stream_id(const struct model_stream *stream) {
    return atomic_load_explicit(&stream->slot.id, memory_order_relaxed);
}
struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags);
void weir__model_stream_drop(struct model_stream *stream);
/* Returns the thread's own default stream on that device, or NULL if the stream does not exist yet or has ended with
 * its context. */
struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device);
void weir__model_streams_drop(struct model_context *context); /* also drops the context's events */
/* Orders a stream behind the streams that it implicitly waits for, and counts an operation. */
void weir__model_stream_touch(struct model_stream *stream);
void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns);
int weir__model_stream_is_blocking(const struct model_stream *stream);

/* Returns the number of the last operation of stream `id` in these orders, or 0 if the orders do not name the
 * stream. */
uint64_t weir__model_order(const struct model_orders *orders, uint64_t id);
/* Adds an order, or raises the stream's order in the list to `seq`. */
void weir__model_learn(struct model_orders *orders, uint64_t id, uint64_t seq);
void weir__model_learn_all(struct model_orders *orders, const struct model_orders *from);
void weir__model_forget_all(struct model_orders *orders);
/* Removes the orders of streams that `named` does not list. */
void weir__model_keep_named(struct model_orders *orders, const struct model_orders *named);
/* Drops the orders that cannot decide anything any more (model_orders.c), if many streams were made since the last
 * collection. */
void weir__model_orders_collect(void);

/* Checks an operation on a stream.  Sets *branch to NULL if the operation shall run now, else to the branch that
 * captures the operation. */
CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch);
/* Check whether the host may query, or wait for, the work of a stream, an event or a context. */
CUresult weir__model_capture_asks(struct model_stream *stream);
CUresult weir__model_capture_asks_event(const struct model_event *event);
CUresult weir__model_capture_asks_context(const struct model_context *context);
/* Checks a call that is unsafe while other threads or streams are captured.  The caller has checked that the call's own
 * stream, if there is one, is not captured. */
CUresult weir__model_capture_unsafe(void);
struct model_plan *weir__model_capture_plan(const struct model_branch *branch);
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step);
void weir__model_capture_record(struct model_branch *branch, struct model_event *event);
/* Makes the stream wait for an event.  `branch` is the branch of the stream, or NULL. */
CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event);
/* Forgets a stream that a program destroys. */
void weir__model_capture_drop_stream(struct model_stream *stream);
/* Forgets a thread that ends. */
void weir__model_capture_drop_thread(const struct model_thread *thread);
const char *weir__model_capture_check(const struct model_context *context);

struct model_plan *weir__model_plan_make(void);
void weir__model_plan_drop(struct model_plan *plan);
/* Adds a step.  Returns 0, or -1 if there is no host memory. */
int weir__model_plan_add(struct model_plan *plan, const struct model_step *step);
/* Makes a graph that owns the plan.  Returns NULL if no handle is left. */
CUgraph weir__model_graph_make(struct model_plan *plan);
CUresult weir__model_graph_alloc(struct model_branch *branch, int device, uint64_t bytes,
                                 CUdeviceptr *address);
/* Adds an allocation to an existing graph, after its last step. */
CUresult weir__model_graph_add(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *address);
CUresult weir__model_graph_free(struct model_branch *branch, CUdeviceptr address);
/* Returns 1 if one allocation of a graph, live or not, contains all of these bytes; else 0. */
int weir__model_graph_holds(uint64_t address, uint64_t bytes);
void weir__model_graph_block_free(struct model_block *block, const struct model_stream *stream);
void weir__model_graphs_drop(void);
const char *weir__model_graph_check(int device, uint64_t *physical);
/* Returns the access that a fill or a copy needs. */
CUmemAccess_flags weir__model_step_access(const struct model_step *step);
/* Runs a fill or a copy on the device's memory, as work of the stream. */
void weir__model_step_run(const struct model_step *step, const struct model_stream *stream);
/* The protection of a device's memory for the host, which does the work of the device.  Memory that can be written can
 * also be read (Linux).  Without a flag for reads, Valgrind does not search gigabytes for leaks. */
enum { MODEL_ACCESSIBLE = PROT_WRITE };
/* Maps `bytes` of host memory, a multiple of the device's page size, at an address that is a multiple of that size.
 * Returns NULL on failure. */
char *weir__model_map_pages(size_t bytes, int protection);

/* Frees the cuMemAlloc blocks that were freed in stream order and whose work is done. */
void weir__model_direct_settle(struct model_device *device);
void weir__model_direct_drop(void);
void weir__model_direct_drop_device(struct model_device *device);
/* Frees all host memory of the device's context. */
void weir__model_host_drop(struct model_device *device);
const char *weir__model_direct_check(const struct model_device *device, uint64_t *physical);

/* Records that the host has observed the end of stream `id`'s work up to `seq`, and of all work that `after` lists. */
void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records that the host has observed the end of all work of a device. */
void weir__model_pools_observe_device(int device);
/* Applies release thresholds after a synchronisation of the host. */
void weir__model_pools_synchronised(int device);
/* Records in all pools that operation `seq` of stream `id` begins at `begin_ns`.  Frees before it on the stream end at
 * that time at the earliest. */
void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns);
/* Forgets stream `id`, which has ended. */
void weir__model_pools_forget(uint64_t id);
/* Adds each stream that has a queue in a pool to `named`. */
void weir__model_pools_name(struct model_orders *named);
void weir__model_pool_free_now(struct model_block *block);
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream);
void weir__model_pools_drop(void);

/* Makes a block live.  The block gets a unique id, and can be found by its address. */
void weir__model_block_enter(struct model_block *block, int device);
/* Returns the live block that contains all of [address, address + bytes), or NULL. */
const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes);
/* Returns 1 if the driver knows that usage of memory, else 0. */
int weir__model_usage_is_known(unsigned usage);
CUmemoryPool weir__model_pool_handle(const struct model_pool *pool);
int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access);

/* Returns 1 if the device can access the memory of `other`, which may be itself; else 0. */
int weir__model_reaches(int device, int other);
/* Returns 1 if work on the device has that access to all of [address, address + bytes), else 0.  The bytes must lie in
 * one live block of the device or of a pool that allows the access, or in adjacent mappings. */
int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access);

/* Returns 1 if adjacent mappings allow that access, else 0. */
int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access);
/* Finds the mapping that contains an address, and the device of its memory.  Returns 1 if there is such a mapping, else
 * 0. */
int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses);
/* Finds the page-locked host memory that contains an address.  Returns 1 if there is such memory, else 0. */
int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);
/* Records that the stream's latest work fills or copies these bytes. */
void weir__model_virtual_touch(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Visits all other addresses at which the mapped memory in [address, address + bytes) is also mapped. */
void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context);
void weir__model_virtual_drop(void);
const char *weir__model_virtual_check(int device, uint64_t *physical);

/* Records for the oracle that the stream's latest work uses bytes for an owner. */
void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner);
/* Records that the program frees bytes to the driver.  The free is ordered behind the work of `stream`, or, if `stream`
 * is NULL, behind all work whose end the host has observed. */
void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Records that the stream's latest work used a whole mapping, for no owner. */
void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes);
/* Records that whole mappings lose their memory at once. */
void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes);
/* Records that whole mappings lose the access to their memory at once. */
void weir__model_oracle_closed(uint64_t address, uint64_t bytes);
/* Records that the host has observed the end of stream `id`'s work up to `seq`, and of all work in `after`. */
void weir__model_oracle_seen(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records that the host has observed the end of all work of a device. */
void weir__model_oracle_seen_device(int device);
/* Forgets the uses whose end the host has observed.  Adds the streams of all other uses to `named`. */
void weir__model_oracle_collect(struct model_orders *named);
void weir__model_oracle_forget(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* ---- Memory that several processes share (model_ipc.c) ---- */

/* The number of a pool or of a physical allocation, unique among all processes. */
struct model_identity {
    uint64_t process, object;
};

enum model_file { MODEL_FILE_POOL, MODEL_FILE_MEMORY };

struct model_import;

/* Makes a file for `bytes` bytes of memory.  Returns its descriptor, or -1. */
int weir__model_ipc_file(uint64_t bytes);
/* Returns a new descriptor of the file for other processes, or -1. */
int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity);
/* Reads the description of an exported file.  Returns 1 on success, 0 if the file is of another kind. */
int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity);
/* Maps the memory of an exported pool, and sets *device.  Returns NULL on failure. */
struct model_import *weir__model_import_open(int file, int *device);
/* Unmaps the memory, and frees all blocks that were imported from it.  No block may be in the model's tree. */
void weir__model_import_close(struct model_import *import);

/* Describes a pointer that is `before` bytes behind the start of a block; the block is at `offset` in its pool. */
void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data);
/* Makes the block that `data` describes, with address and size.  The caller enters the block into the model's tree.
 * Returns NULL if the block belongs to another pool, if it is imported already, or if there is no host memory. */
struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before);
void weir__model_import_drop(struct model_import *import, struct model_block *block);

/* The functions that do the work of the table's entries.  The table calls each function after it has counted the call,
 * applied a planned fault, and charged the fixed cost. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* The functions of the entries that only programs call. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
