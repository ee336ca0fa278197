/* SPDX-License-Identifier: MIT */
/* model_inside.h: the data and the functions that the files of the device model share.
 *
 * There is one `weir__model` in a process.  Its lock guards all fields whose comment does not say otherwise.  The calls
 * that weir makes for each request (stream id, capture status, current context) take no lock.  These calls read
 * atomics, fields that never change while their object lives, and the state of the calling thread.  A handle is the
 * address of a slot in a slab.  Slabs are never freed, so the model can check any handle value from a caller without a
 * memory fault.  The model recognises a destroyed handle until the next object of this kind is created, which gets the
 * slot of the destroyed object, as with the real driver.
 *
 * The caller of a function holds the lock, unless a comment says otherwise.  The functions that implement the entry
 * points of the table take the lock themselves.
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

/* The bits of weir__model.state.  The higher bits are the generation, which each reset increments by
 * MODEL_GENERATION. */
enum {
    MODEL_INITIALISED = 1, /* set once cuInit was called */
    MODEL_FAULTS = 2,      /* set while a fault plan exists */
    MODEL_MEASURED = 4,    /* set while the model measures the real time of its calls */
    MODEL_FORKED = 8,      /* set in a child of the process that made the model */
    MODEL_SEQUENCED = 16,  /* set while the model records the sequence of calls */
    MODEL_GENERATION = 32
};

/* Add an item to a doubly linked list, or remove an item from the list.  Each item has the members `prev` and
 * `next`. */
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
    uintptr_t value; /* the number itself, or the pointer as an integer */
};

void weir__model_sequence_add(enum weir_driver_entry entry,
                              const struct model_argument arguments[MODEL_ARGUMENTS],
                              CUresult result);

/* ---- Ordered sets (model_tree.c) ---- */

/* A node of an ordered set.  The node is a member of another structure.  The nodes are sorted by the pair (`key`,
 * `tie`), and no two nodes of a set have equal pairs.  The set is a treap.  The priorities of the treap are hashes
 * of these pairs, so the shape of the treap does not depend on the order of insertions. */
struct model_node {
    struct model_node *left, *right;
    uint64_t key, tie;
};

void weir__model_tree_insert(struct model_node **root, struct model_node *node);
/* Removes a node, which must be in the tree. */
void weir__model_tree_remove(struct model_node **root, struct model_node *node);
/* Returns the first node whose pair is at least (key, tie), or NULL if there is none. */
struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie);
/* Returns the last node whose pair is at most (key, tie), or NULL if there is none. */
struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie);

/* ---- Handles ---- */

/* The first member of each object that has a handle. */
struct model_slot {
    /* A unique id, or 0 while the slot is free; the id of a stream is its stream id. */
    _Atomic uint64_t id;
    struct model_slot *spare; /* the next free slot of the slab if this slot is free */
    /* The number of the object in the recorded sequence of calls, or 0 if it has no number yet. */
    uint64_t ordinal;
};

struct model_slab {
    char *base; /* the memory of all slots, whose address never changes */
    /* The bytes of a slot (a power of two), the number of slots, the slots ever used. */
    size_t stride, limit, used;
    /* The free slots that were used before; the slot that was freed last is the first. */
    struct model_slot *spare;
};

/* Allocates a slot for an object with the id `id`.  Returns the slot, whose bytes after the header are zero, or NULL
 * if all slots are in use. */
void *weir__model_slab_take(struct model_slab *slab, uint64_t id);
void weir__model_slab_give(struct model_slab *slab, void *slot);
/* Returns the live object that the handle names, or NULL if there is none.  Takes no lock. */
void *weir__model_slab_find(const struct model_slab *slab, const void *handle);

/* ---- Streams and events ---- */

/* One order of a list: the stream, the event or the branch that has the list is ordered after operation `seq` of
 * stream `id`. */
struct model_order {
    uint64_t id, seq;
};
struct model_orders {
    struct model_order *item; /* the entries, sorted by stream id */
    size_t count, room;
    int lost; /* set once an entry is missing because there was no host memory for it */
};

struct model_stream {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the stream lives */
    unsigned flags;
    _Atomic CUstreamCaptureStatus capture_status;
    /* The part of the stream in a running capture, or NULL if the stream is not captured. */
    struct model_branch *branch;
    /* The number of operations that were submitted to the stream so far. */
    uint64_t seq;
    /* The time when all work that was submitted to the stream so far is completed. */
    uint64_t end_ns;
    /* The work of other streams that the next operation of this stream is ordered after. */
    struct model_orders after;
    struct model_stream *prev, *next; /* links in the list of the streams of the context */
};

struct model_event {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the event lives */
    unsigned flags;
    /* The stream and the operation up to which the last record of the event covers work.  Both are 0 before the
     * first record. */
    uint64_t stream_id, seq;
    uint64_t end_ns;
    /* The capture in which the event was recorded, or 0.  If it is not 0, `after` counts steps of the capture. */
    uint64_t capture_id;
    struct model_orders after;
    struct model_event *prev, *next; /* links in the list of the events of the context */
};

/* ---- Devices and contexts ---- */

/* A context of one device.  The address of the struct is the CUcontext handle. */
struct model_context {
    /* The number of retains; 0 if the context was not made yet or is destroyed. */
    _Atomic int retained;
    /* The number of blocking streams that are being captured.  While it is not 0, calls on the legacy stream fail. */
    _Atomic int capturing;
    int device;
    struct model_stream *legacy;  /* the legacy stream; set before `retained` becomes 1 */
    struct model_stream *streams; /* all streams, including the legacy stream */
    struct model_event *events;
};

struct model_device {
    struct model_context context; /* the primary context of the device */
    /* The green context of the device, if a program makes one.  CUDA makes a green context for a part of a device.
     * In the model this part is the whole device. */
    struct model_context green;
    uint64_t capacity;      /* the physical bytes of the device; never changes */
    uint64_t context_bytes; /* the physical bytes that a context takes; never changes */
    /* The physical bytes that contexts, cuMemAlloc, pools, graphs and physical allocations use now. */
    uint64_t physical;
    uint64_t graph_bytes; /* the part of `physical` that graphs have reserved */
    uint64_t graph_used;  /* the part of `graph_bytes` that is in live allocations of graphs */
    /* The time when all work before the last free of graph memory is completed. */
    uint64_t graph_end_ns;
    /* The time when all work that was submitted to the device so far is completed. */
    uint64_t work_end_ns;
    struct model_page *pages; /* the pages with small cuMemAlloc blocks and with free space */
    /* The number of all pages with small cuMemAlloc blocks, including full pages. */
    uint64_t page_count;
    struct model_direct *blocks; /* all live cuMemAlloc blocks */
    /* The cuMemAlloc blocks that were freed by cuMemFreeAsync, while work before the free is not completed. */
    struct model_direct *leaving;
    struct model_pool *default_pool; /* NULL before the program first uses the default pool */
    /* The pool that cuMemAllocAsync uses, or NULL for the default pool. */
    struct model_pool *current_pool;
    struct model_host_block *host_blocks;
};

/* ---- Blocks ---- */

/* A live block.  The tree weir__model.blocks contains all live blocks, sorted by address.  The structs of all kinds
 * of blocks begin with this struct. */
struct model_block {
    struct model_node node; /* `key` is the start address of the block */
    uint64_t bytes;         /* the bytes that the program requested */
    /* The pool of the block, or NULL for a block of cuMemAlloc or of a graph. */
    struct model_pool *pool;
    int of_graph; /* set if a graph has allocated the block */
    int device;
    uint64_t id; /* a number that no other allocation has */
};

/* ---- Captures and graphs ---- */

enum model_step_kind { STEP_KERNEL, STEP_USE, STEP_FILL, STEP_COPY, STEP_ALLOC, STEP_FREE };

/* One operation on a stream.  The model runs the operation at once or, if the stream is being captured, at each
 * launch of the graph. */
struct model_step {
    enum model_step_kind kind;
    uint32_t value; /* the value that a fill writes into each four bytes */
    /* The time that the step takes on the device; 0 for an allocation and a free. */
    uint64_t duration_ns;
    uint64_t address, bytes;         /* the device memory of a use, a fill or a copy */
    uint64_t owner;                  /* the owner for whom a use happens (weir__model_use) */
    const void *from;                /* the source of a copy */
    void *to;                        /* the target of a fill or a copy */
    struct model_graph_block *block; /* the block that the step allocates or frees */
};

struct model_plan;   /* the captured steps of a graph; model_graph.c defines the struct */
struct model_branch; /* the part of one stream in a capture; model_capture.c defines the struct */

/* ---- Threads ---- */

struct model_thread {
    /* If weir__model.state has this value, the thread takes the fast path of begin(). */
    uint64_t state;
    int depth; /* the number of contexts in `stack` */
    CUstreamCaptureMode capture_mode;
    struct model_context *stack[MODEL_CONTEXT_DEPTH];
    /* The per-thread default streams of the thread, one for each device.  Such a stream ends with its context. */
    struct model_stream *own[MODEL_DEVICES];
    /* The stream ids of `own`; an id that differs shows that the handle was reused. */
    uint64_t own_id[MODEL_DEVICES];
    /* The calls of each entry point; only this thread writes the numbers. */
    _Atomic uint64_t calls[WEIR_ENTRY_COUNT];
    /* Links in the list of threads, guarded by the lock. */
    struct model_thread *prev, *next;
};

/* ---- The model ---- */

struct model_fault {
    /* The number of the call that fails, counted from now (1 is the next call), or 0. */
    uint64_t countdown;
    uint64_t then; /* the countdown to a second fault after the first one, or 0 */
    CUresult result;
    int for_good;
};

struct model {
    _Atomic uint64_t state;
    _Atomic uint64_t clock_ns;
    _Atomic uint64_t host_ns; /* the real time inside calls, while the model measures it */
    /* The overhead of measuring one call, which finish() adds to host_ns (see measuring_cost() in model.c). */
    uint64_t measure_ns;
    struct model_profile profile; /* the figures of the devices; change only at a reset */
    int device_count;             /* the number of devices; changes only at a reset */
    struct model_device devices[MODEL_DEVICES];

    pthread_mutex_t lock;
    struct model_slab streams, events, pools, graphs, execs, memories;
    int pools_grew; /* set once a pool has grown after the last reset */
    /* The number of physical allocations that were made since the last reset. */
    uint64_t handles_made;
    /* The pools in the order of their creation, including destroyed pools that still have live blocks. */
    struct model_pool *live_pools;
    struct model_node *blocks; /* all live blocks, sorted by address */
    struct model_capture *captures;
    /* All allocations of all graphs, live or not, sorted by address. */
    struct model_node *graph_blocks;
    uint64_t next_stream_id, next_object_id;
    /* The next stream id at which the model removes useless orders (model_orders.c). */
    uint64_t collect_at_id;
    struct model_thread *threads;
    /* The calls of threads that have ended, by entry point. */
    uint64_t retired_calls[WEIR_ENTRY_COUNT];
    /* One plan for each entry point; the last plan counts calls of all entry points. */
    struct model_fault faults[WEIR_ENTRY_COUNT + 1];
    uint64_t faults_met;
    enum weir_driver_entry last_fault; /* the entry point of the last call that failed by plan */
};

extern struct model weir__model;

static inline void weir__model_lock(void) {
    pthread_mutex_lock(&weir__model.lock);
}
static inline void weir__model_unlock(void) {
    pthread_mutex_unlock(&weir__model.lock);
}
/* Unlocks the model and returns `result`, which the caller has found under the lock. */
static inline CUresult weir__model_unlocked(CUresult result) {
    weir__model_unlock();
    return result;
}
/* The time of this thread's calls that the thread has not yet added to the shared clock.  The thread adds the time
 * when it next reads the clock, and other threads see the time only then.  An atomic addition in every call would
 * cost more than the fastest calls cost. */
extern _Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;

/* The state of a thread while it does the work of another thread (`aside` in driver.h).  In this period the shared
 * clock does not contain the time of the thread's calls. */
struct model_aside {
    int on;
    uint64_t ns; /* the time of the calls in the period, or 0 if `on` is 0 */
    /* The real time when the period began, or 0 if the model does not measure real time. */
    uint64_t start_ns;
    uint64_t host_ns; /* the value of weir__model.host_ns when the period began */
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
/* Makes the calling thread wait until the virtual clock has reached `ns`. */
void weir__model_wait_until(uint64_t ns);

/* Returns the state of the calling thread.  The state is never NULL inside an entry point of the table. */
struct model_thread *weir__model_thread(void);
/* Returns the state of the calling thread, and makes the state if there is none.  Returns NULL if there is no host
 * memory.  Functions outside of the driver table call it, such as weir__model_kernel(). */
struct model_thread *weir__model_join(void);

/* Returns the current context of the thread, or NULL with the error code in *why. */
struct model_context *weir__model_current(CUresult *why);
CUresult weir__model_device_check(CUdevice device);

/* Returns the stream that the handle names, or NULL with the error code in *why.  Takes the lock only if it makes a
 * per-thread default stream. */
struct model_stream *weir__model_stream(CUstream handle, CUresult *why);

/* Returns the free physical bytes of a device.  Memory that other processes have allocated is not free. */
uint64_t weir__model_room(const struct model_device *device);
/* Allocates physical bytes of a device.  Returns 0 on success, -1 if the device has fewer free bytes. */
int weir__model_take(struct model_device *device, uint64_t bytes);
/* Frees physical bytes of a device. */
void weir__model_give(struct model_device *device, uint64_t bytes);

static inline uint64_t weir__model_stream_id(const struct model_stream *stream) {
    return atomic_load_explicit(&stream->slot.id, memory_order_relaxed);
}
struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags);
void weir__model_stream_drop(struct model_stream *stream);
/* Returns the per-thread default stream of the thread on the device.  Returns NULL if the stream does not exist yet,
 * or if it has ended with its context. */
struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device);
/* Also destroys the events of the context. */
void weir__model_streams_drop(struct model_context *context);
/* Orders the next operation of a stream after the work of the streams for which the stream waits implicitly (legacy
 * and blocking streams).  Counts the operation. */
void weir__model_stream_touch(struct model_stream *stream);
void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns);
int weir__model_stream_is_blocking(const struct model_stream *stream);

/* Returns the number of the last operation of stream `id` in the list of orders, or 0 if the list does not contain
 * the stream. */
uint64_t weir__model_order(const struct model_orders *orders, uint64_t id);
/* Adds operation `seq` of stream `id` to the list of orders.  If the list already contains the stream, raises its
 * number to `seq`. */
void weir__model_learn(struct model_orders *orders, uint64_t id, uint64_t seq);
void weir__model_learn_all(struct model_orders *orders, const struct model_orders *from);
void weir__model_forget_all(struct model_orders *orders);
/* Removes the orders of all streams that `named` does not contain. */
void weir__model_keep_named(struct model_orders *orders, const struct model_orders *named);
/* Removes the orders that can have no effect any more (see model_orders.c).  Does nothing if few streams were made
 * since the last call that removed orders. */
void weir__model_orders_collect(void);

/* Checks whether an operation on a stream is allowed.  Sets *branch to NULL if the operation must run now.  If the
 * stream is being captured, sets *branch to the branch to which the operation is added. */
CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch);
/* Check whether the host may query, or wait for, the work of a stream, an event or a context while a capture runs. */
CUresult weir__model_capture_asks(struct model_stream *stream);
CUresult weir__model_capture_asks_event(const struct model_event *event);
CUresult weir__model_capture_asks_context(const struct model_context *context);
/* Checks whether a call is allowed that is unsafe while any stream is being captured.  The caller has checked
 * already that the stream of the call, if there is one, is not being captured. */
CUresult weir__model_capture_unsafe(void);
struct model_plan *weir__model_capture_plan(const struct model_branch *branch);
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step);
void weir__model_capture_record(struct model_branch *branch, struct model_event *event);
/* Makes the stream wait for an event.  `branch` is the branch of the stream if the stream is being captured, else
 * NULL. */
CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event);
/* Removes a stream, which the program destroys, from its capture. */
void weir__model_capture_drop_stream(struct model_stream *stream);
/* Clears the field `thread` of all captures that the thread, which ends, has begun. */
void weir__model_capture_drop_thread(const struct model_thread *thread);
const char *weir__model_capture_check(const struct model_context *context);

struct model_plan *weir__model_plan_make(void);
void weir__model_plan_drop(struct model_plan *plan);
/* Adds a step to a plan.  Returns 0 on success, -1 if there is no host memory. */
int weir__model_plan_add(struct model_plan *plan, const struct model_step *step);
/* Makes a graph with the steps of the plan.  The graph owns the plan.  Returns NULL if all graph handles are in use. */
CUgraph weir__model_graph_make(struct model_plan *plan);
CUresult weir__model_graph_alloc(struct model_branch *branch, int device, uint64_t bytes,
                                 CUdeviceptr *address);
/* Adds an allocation step to an existing graph, as its last step. */
CUresult weir__model_graph_add(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *address);
CUresult weir__model_graph_free(struct model_branch *branch, CUdeviceptr address);
/* Returns 1 if one allocation of a graph contains all of these bytes, whether the allocation is live or not.
 * Otherwise returns 0. */
int weir__model_graph_holds(uint64_t address, uint64_t bytes);
void weir__model_graph_block_free(struct model_block *block, const struct model_stream *stream);
void weir__model_graphs_drop(void);
const char *weir__model_graph_check(int device, uint64_t *physical);
/* Returns the access to device memory that a fill or a copy needs. */
CUmemAccess_flags weir__model_step_access(const struct model_step *step);
/* Runs a fill or a copy in the memory of the device.  The work counts as work of the stream. */
void weir__model_step_run(const struct model_step *step, const struct model_stream *stream);
/* The protection of host memory that the device may access; the host does the work of the device.  On Linux, memory
 * with PROT_WRITE can also be read.  PROT_READ is not set, because Valgrind would then search gigabytes of this
 * memory for leaks. */
enum { MODEL_ACCESSIBLE = PROT_WRITE };
/* Maps `bytes` bytes of host memory.  `bytes` and the address are multiples of the page size of the device.  Returns
 * the address, or NULL on failure. */
char *weir__model_map_pages(size_t bytes, int protection);

/* Frees the cuMemAlloc blocks that were freed by cuMemFreeAsync and whose work is completed. */
void weir__model_direct_settle(struct model_device *device);
void weir__model_direct_drop(void);
void weir__model_direct_drop_device(struct model_device *device);
/* Frees all page-locked host memory of the device's context. */
void weir__model_host_drop(struct model_device *device);
const char *weir__model_direct_check(const struct model_device *device, uint64_t *physical);

/* Records that the host has observed the completion of the work of stream `id` up to operation `seq`, and of all
 * work in the list `after`. */
void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records that the host has observed the completion of all work of a device. */
void weir__model_pools_observe_device(int device);
/* Shrinks the pools of a device to their release thresholds.  Called after the host has synchronised with the
 * device. */
void weir__model_pools_synchronised(int device);
/* Records in all pools that operation `seq` of stream `id` is a launch, whose work begins at `begin_ns`.  A block
 * that was freed on the stream before the launch is completed at `begin_ns` at the earliest. */
void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns);
/* Removes stream `id`, which has ended, from all pools. */
void weir__model_pools_forget(uint64_t id);
/* Adds each stream that has pending frees in a pool to the list `named`. */
void weir__model_pools_name(struct model_orders *named);
void weir__model_pool_free_now(struct model_block *block);
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream);
void weir__model_pools_drop(void);

/* Makes a block live: sets its unique id, and adds it to the tree of blocks. */
void weir__model_block_enter(struct model_block *block, int device);
/* Returns the live block that contains all of [address, address + bytes), or NULL if there is none. */
const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes);
/* Returns 1 if the driver version of the profile accepts `usage` as a usage of memory, else 0. */
int weir__model_usage_is_known(unsigned usage);
CUmemoryPool weir__model_pool_handle(const struct model_pool *pool);
int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access);

/* Returns 1 if `device` can access the memory of the device `other`, else 0.  Every device can access its own
 * memory. */
int weir__model_reaches(int device, int other);
/* Returns 1 if work on the device may access all of [address, address + bytes) with the access `access`, else 0.
 * The bytes must lie in one live block of the device, in one live block of a pool that allows the access, or in
 * adjacent mappings. */
int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access);

/* Returns 1 if adjacent mappings contain all of [address, address + bytes) and allow the device the access, else 0. */
int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access);
/* Finds the mapping that contains `address`, and the device whose memory is mapped.  Returns 1 on success, 0 if
 * there is no such mapping. */
int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses);
/* Finds the block of page-locked host memory that contains `address`.  Returns 1 on success, 0 if there is no such
 * block. */
int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);
/* Records that the latest work of the stream fills or copies these bytes. */
void weir__model_virtual_touch(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Calls `visit` for each other address at which the memory in [address, address + bytes) is mapped, too. */
void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context);
void weir__model_virtual_drop(void);
const char *weir__model_virtual_check(int device, uint64_t *physical);

/* Records for the oracle that the latest work of the stream uses these bytes for the owner `owner`.  (The oracle
 * checks the order of uses; see model_oracle.c.) */
void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner);
/* Records that the program returns these bytes to the driver.  The free is ordered after the work of `stream`.  If
 * `stream` is NULL, the free is ordered after all work whose completion the host has observed. */
void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Records that the latest work of the stream used a whole mapping, for no owner. */
void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes);
/* Records that the driver removes the mappings of these bytes at once, without waiting for work on them. */
void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes);
/* Records that the driver removes the access to the mappings of these bytes at once, without waiting for work on
 * them. */
void weir__model_oracle_closed(uint64_t address, uint64_t bytes);
/* Records that the host has observed the completion of the work of stream `id` up to operation `seq`, and of all
 * work in the list `after`. */
void weir__model_oracle_seen(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records that the host has observed the completion of all work of a device. */
void weir__model_oracle_seen_device(int device);
/* Removes the uses whose completion the host has observed.  Adds the streams of all other uses to the list `named`. */
void weir__model_oracle_collect(struct model_orders *named);
void weir__model_oracle_forget(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* ---- Memory that several processes share (model_ipc.c) ---- */

/* The identity of a pool or of a physical allocation.  No other process has an object with an equal identity. */
struct model_identity {
    uint64_t process, object;
};

enum model_file { MODEL_FILE_POOL, MODEL_FILE_MEMORY };

struct model_import;

/* Makes a file that has `bytes` bytes of memory.  Returns its descriptor, or -1 on failure. */
int weir__model_ipc_file(uint64_t bytes);
/* Returns a new descriptor of the file, which other processes may open, or -1 on failure. */
int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity);
/* Reads the size, the device and the identity that belong to an exported file.  Returns 1 on success, 0 if the file
 * is no exported file of the kind `what`. */
int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity);
/* Maps the memory of an exported pool, and sets *device to the device of the pool.  Returns NULL on failure. */
struct model_import *weir__model_import_open(int file, int *device);
/* Unmaps the memory of an exported pool, and frees all blocks that were imported from the pool.  The caller has
 * removed these blocks from the tree of blocks. */
void weir__model_import_close(struct model_import *import);

/* Writes the export data of a pointer.  The pointer is `before` bytes behind the start of its block, and the block
 * is at `offset` in its pool. */
void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data);
/* Makes the block that `data` describes, and sets its address and its size.  The caller adds the block to the tree
 * of blocks.  Returns NULL if the block belongs to another pool, if the block was imported already, or if there is
 * no host memory. */
struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before);
void weir__model_import_drop(struct model_import *import, struct model_block *block);

/* The functions that do the work of the entry points.  Before the table calls such a function, the table has counted
 * the call, applied a planned fault, and charged the fixed cost. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* The functions that do the work of the entry points that only programs call. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
