/* SPDX-License-Identifier: MIT */
/* model_inside.h: data and functions that the files of the device model share.  README lists the model's rules.
 *
 * The lock of `weir__model` guards all fields whose comment does not say otherwise.  The caller of a function holds the
 * lock, unless a comment says otherwise; the functions that implement driver calls take it themselves.  The queries
 * that weir makes for each request (stream id, capture status, current context) take no lock: they read only atomics,
 * fields that never change, and data of the calling thread.
 *
 * A handle is the address of a slot in a slab.  Slabs are never freed, so the model can check any handle value without
 * a memory fault.  It recognises a destroyed handle until a new object of the kind reuses the slot, like a real driver.
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

/* The bits of weir__model.state, which each call reads first.  The bits from MODEL_GENERATION on count the resets. */
enum {
    MODEL_INITIALISED = 1, /* cuInit was called */
    MODEL_FAULTS = 2,      /* a failure of a driver call is planned */
    MODEL_MEASURED = 4,    /* the model measures the real time of driver calls */
    MODEL_FORKED = 8,      /* this process is a child of fork() */
    MODEL_SEQUENCED = 16,  /* the model records the driver calls for a test */
    MODEL_GENERATION = 32
};

/* Add an item to a doubly linked list or remove an item.  Each item has the members `prev` and `next`. */
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

/* ---- kinds of logged values ---- */

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
    uintptr_t value; /* a number, or a pointer as an integer */
};

void weir__model_sequence_add(enum weir_driver_entry entry,
                              const struct model_argument arguments[MODEL_ARGUMENTS],
                              CUresult result);

/* ---- Ordered sets (model_tree.c) ---- */

/* A node of an ordered set, a member of the struct that is in the set.  The nodes are sorted by `key`, then by `tie`;
 * no two nodes are equal in both.  The set is a treap: a search tree that is also a heap by a hash of the node. */
struct model_node {
    struct model_node *left, *right;
    uint64_t key, tie;
};

void weir__model_tree_insert(struct model_node **root, struct model_node *node);
/* Removes a node, which must be in the tree. */
void weir__model_tree_remove(struct model_node **root, struct model_node *node);
/* Returns the first node whose (key, tie) is at least (`key`, `tie`), or NULL. */
struct model_node *weir__model_tree_ceiling(struct model_node *root, uint64_t key, uint64_t tie);
/* Returns the last node whose (key, tie) is at most (`key`, `tie`), or NULL. */
struct model_node *weir__model_tree_floor(struct model_node *root, uint64_t key, uint64_t tie);

/* ---- Handles ---- */

/* The first member of each object that has a handle (stream, event, pool and so on). */
struct model_slot {
    _Atomic uint64_t id;      /* a unique number; 0 while the slot is free */
    struct model_slot *spare; /* the next free slot, while this slot is free */
    uint64_t ordinal;         /* the object's number in a recording of driver calls, or 0 */
};

struct model_slab {
    char *base; /* the memory of all slots, which never moves */
    /* The bytes of a slot (a power of two), the number of slots, and the number of slots that were ever used. */
    size_t stride, limit, used;
    struct model_slot *spare; /* the list of the free slots that were used before */
};

/* Allocates a slot for an object with this id.  Returns the slot, zeroed, or NULL if all slots are in use. */
void *weir__model_slab_alloc(struct model_slab *slab, uint64_t id);
void weir__model_slab_free(struct model_slab *slab, void *slot);
/* Returns the existing object with this handle, or NULL.  The caller need not hold the lock. */
void *weir__model_slab_find(const struct model_slab *slab, const void *handle);

/* ---- Streams and events ---- */

/* The operations of stream `id` up to number `seq`, for example those for which other work waits. */
struct model_order {
    uint64_t id, seq;
};
struct model_orders {
    struct model_order *item; /* sorted by stream id */
    size_t count, room;
    int lost; /* set if an element is missing because there was no host memory */
};

struct model_stream {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the stream exists */
    unsigned flags;
    _Atomic CUstreamCaptureStatus capture_status;
    struct model_branch *branch; /* the stream's part of a running capture, or NULL */
    uint64_t seq;                /* the number of operations that were submitted to this stream */
    uint64_t end_ns;             /* the virtual time when all submitted work is completed */
    struct model_orders after;   /* other streams' operations, for which the next one waits */
    struct model_stream *prev, *next; /* links in the context's list of streams */
};

struct model_event {
    struct model_slot slot;
    struct model_context *context; /* `context` and `flags` never change while the event exists */
    unsigned flags;
    uint64_t stream_id, seq; /* the last operation that the event covers; 0 before any record */
    uint64_t end_ns;
    /* The id of the capture in which the event was recorded, or 0.  If set, `after` counts steps of the capture. */
    uint64_t capture_id;
    struct model_orders after;
    struct model_event *prev, *next; /* links in the context's list of events */
};

/* ---- Devices and contexts ---- */

/* A CUDA context; its handle is the address of the struct. */
struct model_context {
    _Atomic int retained; /* the number of retains; 0 while the context does not exist */
    /* The number of blocking streams that are being captured.  While it is not 0, calls on the legacy stream fail. */
    _Atomic int capturing;
    int device;
    struct model_stream *legacy;  /* set before `retained` becomes 1 */
    struct model_stream *streams; /* including the legacy stream */
    struct model_event *events;
};

struct model_device {
    struct model_context context;
    struct model_context green; /* the green context, which in the model covers the whole device */
    uint64_t capacity;          /* bytes; never changes */
    uint64_t context_bytes;     /* bytes for a context; never changes */
    uint64_t physical;          /* all used bytes of the device, also those of contexts */
    uint64_t graph_bytes;       /* the part of `physical` that is reserved for graphs */
    uint64_t graph_used;        /* the part of `graph_bytes` in allocated memory of graphs */
    /* The virtual time when all work before the last free of graph memory is completed. */
    uint64_t graph_end_ns;
    uint64_t work_end_ns;     /* the virtual time when all submitted work is completed */
    struct model_page *pages; /* the pages of small cuMemAlloc blocks that have free space */
    uint64_t page_count; /* the number of pages of small cuMemAlloc blocks, full ones included */
    struct model_direct *blocks; /* all allocated blocks of cuMemAlloc */
    /* Blocks of cuMemAlloc that cuMemFreeAsync has freed, while earlier work on the stream is still running. */
    struct model_direct *pending_frees;
    struct model_pool *default_pool; /* NULL until the program first uses the pool */
    struct model_pool *current_pool; /* set by cuDeviceSetMemPool; NULL means the default pool */
    struct model_host_block *host_blocks;
};

/* ---- Blocks ---- */

/* An allocated block of device memory.  The structs for blocks of pools, cuMemAlloc and graphs begin with this one. */
struct model_block {
    struct model_node node;  /* `key` is the start address of the block */
    uint64_t bytes;          /* the bytes that the program requested */
    struct model_pool *pool; /* NULL if cuMemAlloc or a graph has allocated the block */
    int of_graph;            /* set if the launch of a graph has allocated the block */
    int device;
    uint64_t id; /* unique among all allocations */
};

/* ---- Captures and graphs ---- */

enum model_step_kind { STEP_KERNEL, STEP_USE, STEP_FILL, STEP_COPY, STEP_ALLOC, STEP_FREE };

/* One operation on a stream, or one step of a graph. */
struct model_step {
    enum model_step_kind kind;
    uint32_t value;                  /* for a fill: the value of each four bytes */
    uint64_t duration_ns;            /* virtual; 0 for an allocation or a free */
    uint64_t address, bytes;         /* the device memory that the operation uses */
    uint64_t owner;                  /* for weir__model_use */
    const void *from;                /* for a copy */
    void *to;                        /* for a copy or a fill */
    struct model_graph_block *block; /* for an allocation or a free */
};

struct model_plan;   /* the captured operations of a graph; defined in model_graph.c */
struct model_branch; /* one stream's part of a capture; defined in model_capture.c */

/* ---- Threads ---- */

struct model_thread {
    /* While weir__model.state has this value, driver calls of this thread take the fast path. */
    uint64_t state;
    int depth; /* the number of contexts on the thread's context stack */
    CUstreamCaptureMode capture_mode;
    struct model_context *stack[MODEL_CONTEXT_DEPTH];
    /* The thread's per-thread default stream on each device.  The stream is destroyed with the context. */
    struct model_stream *per_thread[MODEL_DEVICES];
    uint64_t per_thread_id[MODEL_DEVICES]; /* the ids of these streams, to detect destroyed ones */
    /* How often this thread has called each driver function.  Only this thread writes the numbers. */
    _Atomic uint64_t calls[WEIR_ENTRY_COUNT];
    struct model_thread *prev, *next; /* links in the list of all threads */
};

/* ---- The model ---- */

struct model_fault {
    uint64_t countdown; /* the call that fails: 1 is the next call; 0 if no failure is planned */
    uint64_t then;      /* the number of calls from the first failure to a second one, or 0 */
    CUresult result;
    int for_good;
};

struct model {
    _Atomic uint64_t state;
    _Atomic uint64_t clock_ns;
    _Atomic uint64_t host_ns;     /* the real time in driver calls since the measurement began */
    uint64_t measure_ns;          /* the overhead of measuring one call */
    struct model_profile profile; /* changes only at a reset */
    int device_count;             /* changes only at a reset */
    struct model_device devices[MODEL_DEVICES];

    pthread_mutex_t lock;
    struct model_slab streams, events, pools, graphs, execs, memories;
    int pools_grew;        /* set if a pool has grown since the last reset */
    uint64_t handles_made; /* the number of physical allocations since the last reset */
    /* All pools, the newest first.  A destroyed pool stays in the list while it has allocated blocks. */
    struct model_pool *live_pools;
    struct model_node *blocks; /* all allocated blocks, sorted by address */
    struct model_capture *captures;
    struct model_node *graph_blocks; /* all memory of graphs, allocated or not, sorted by address */
    uint64_t next_stream_id, next_object_id;
    uint64_t collect_at_id; /* weir__model_orders_collect() does nothing before this stream id */
    struct model_thread *threads;
    uint64_t retired_calls[WEIR_ENTRY_COUNT]; /* ended threads' calls of each driver function */
    /* The planned failures of each driver function.  The last element is for failures of any driver function. */
    struct model_fault faults[WEIR_ENTRY_COUNT + 1];
    uint64_t faults_injected;
    enum weir_driver_entry last_fault;
};

extern struct model weir__model;

static inline void weir__model_lock(void) {
    pthread_mutex_lock(&weir__model.lock);
}
static inline void weir__model_unlock(void) {
    pthread_mutex_unlock(&weir__model.lock);
}
static inline CUresult weir__model_unlocked(CUresult result) {
    weir__model_unlock();
    return result;
}
/* Virtual time of this thread's calls that the shared clock does not include yet. */
extern _Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;

/* A period in which this thread's driver calls do not advance the shared virtual clock. */
struct model_background {
    int on;
    uint64_t ns;       /* the virtual time of the thread's calls in the period */
    uint64_t start_ns; /* the real time when the period began, or 0 if real time is not measured */
    uint64_t host_ns;  /* weir__model.host_ns when the period began */
};
extern _Thread_local struct model_background weir__model_background WEIR_FAST_TLS;

static inline uint64_t weir__model_now(void) {
    if (weir__model_owed_ns) {
        if (weir__model_background.on)
            weir__model_background.ns += weir__model_owed_ns;
        else
            atomic_fetch_add_explicit(&weir__model.clock_ns, weir__model_owed_ns,
                                      memory_order_relaxed);
        weir__model_owed_ns = 0;
    }
    return atomic_load_explicit(&weir__model.clock_ns, memory_order_relaxed) +
           weir__model_background.ns;
}
static inline void weir__model_charge(uint64_t ns) {
    weir__model_owed_ns += ns;
}
/* Makes the calling thread wait until the virtual time is `ns`. */
void weir__model_wait_until(uint64_t ns);

/* Returns the model's data of the calling thread; never NULL inside a driver call. */
struct model_thread *weir__model_thread(void);
/* Returns the calling thread's data, and makes the data if necessary.  Returns NULL if there is no host memory. */
struct model_thread *weir__model_ensure_thread(void);

/* Returns the current context of the calling thread, or NULL with the error code in *why. */
struct model_context *weir__model_current(CUresult *why);
CUresult weir__model_device_check(CUdevice device);

/* Returns the stream with this handle, or NULL with the error code in *why.  The caller need not hold the lock; the
 * function takes it to make a per-thread default stream. */
struct model_stream *weir__model_stream(CUstream handle, CUresult *why);

/* Returns the bytes of a device that no process has allocated. */
uint64_t weir__model_room(const struct model_device *device);
/* Allocates bytes of a device.  Returns 0 on success, -1 if fewer bytes are free. */
int weir__model_physical_alloc(struct model_device *device, uint64_t bytes);
void weir__model_physical_free(struct model_device *device, uint64_t bytes);

static inline uint64_t weir__model_stream_id(const struct model_stream *stream) {
    return atomic_load_explicit(&stream->slot.id, memory_order_relaxed);
}
struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags);
void weir__model_stream_drop(struct model_stream *stream);
/* Returns the thread's per-thread default stream on the device, or NULL if it does not exist yet or was destroyed. */
struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device);
/* Destroys all streams and events of the context. */
void weir__model_streams_drop(struct model_context *context);
/* Begins an operation on a stream.  Like CUDA, makes the legacy stream and blocking streams wait for each other. */
void weir__model_stream_touch(struct model_stream *stream);
void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns);
int weir__model_stream_is_blocking(const struct model_stream *stream);

/* Returns the `seq` of the list's element for stream `id`, or 0 if there is no such element. */
uint64_t weir__model_order(const struct model_orders *orders, uint64_t id);
/* Adds operation `seq` of stream `id` to the list.  If the list has the stream already, keeps the greater `seq`. */
void weir__model_orders_add(struct model_orders *orders, uint64_t id, uint64_t seq);
void weir__model_orders_add_all(struct model_orders *orders, const struct model_orders *from);
void weir__model_orders_clear(struct model_orders *orders);
/* Removes from the list all streams that are not in the list `named`. */
void weir__model_orders_keep_streams(struct model_orders *orders, const struct model_orders *named);
/* Removes old streams from all lists of stream operations, but only after many new streams were created. */
void weir__model_orders_collect(void);

/* Checks whether an operation on the stream is allowed.  If the stream is being captured, sets *branch, to which the
 * caller must add the operation; else sets it to NULL. */
CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch);
/* Check whether the host may query or wait for a stream, an event or a context while streams are being captured. */
CUresult weir__model_capture_check_stream(struct model_stream *stream);
CUresult weir__model_capture_check_event(const struct model_event *event);
CUresult weir__model_capture_check_context(const struct model_context *context);
/* Checks whether a call that CUDA forbids during captures, such as cuMemAlloc, is allowed now.  For a call on a stream,
 * the caller has checked that this stream is not being captured. */
CUresult weir__model_capture_check_unsafe(void);
struct model_plan *weir__model_capture_plan(const struct model_branch *branch);
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step);
void weir__model_capture_record(struct model_branch *branch, struct model_event *event);
/* Makes the stream wait for an event.  `branch` is the stream's part of a capture, or NULL. */
CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event);
/* Removes a stream from its capture, because the program destroys the stream. */
void weir__model_capture_drop_stream(struct model_stream *stream);
/* Removes an ending thread from the captures that the thread has begun. */
void weir__model_capture_drop_thread(const struct model_thread *thread);
const char *weir__model_capture_check(const struct model_context *context);

struct model_plan *weir__model_plan_make(void);
void weir__model_plan_drop(struct model_plan *plan);
/* Adds an operation to the steps of a graph.  Returns 0 on success, -1 if there is no host memory. */
int weir__model_plan_add(struct model_plan *plan, const struct model_step *step);
/* Makes a graph of the steps in `plan`.  The graph then owns `plan`.  Returns NULL if all graph handles are in use. */
CUgraph weir__model_graph_make(struct model_plan *plan);
CUresult weir__model_graph_alloc(struct model_branch *branch, int device, uint64_t bytes,
                                 CUdeviceptr *address);
/* Adds an allocation to an existing graph, as its last step. */
CUresult weir__model_graph_add(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *address);
CUresult weir__model_graph_free(struct model_branch *branch, CUdeviceptr address);
/* Returns 1 if the bytes lie in one block of a CUDA graph, else 0.  The block need not be allocated now. */
int weir__model_graph_holds(uint64_t address, uint64_t bytes);
void weir__model_graph_block_free(struct model_block *block, const struct model_stream *stream);
void weir__model_graphs_drop(void);
const char *weir__model_graph_check(int device, uint64_t *physical);
/* Returns the access to device memory that a fill or a copy needs. */
CUmemAccess_flags weir__model_step_access(const struct model_step *step);
/* Runs a fill or a copy now, as work of the stream. */
void weir__model_step_run(const struct model_step *step, const struct model_stream *stream);
/* The protection of accessible device memory.  Without PROT_READ, Valgrind does not search it for leaks. */
enum { MODEL_ACCESSIBLE = PROT_WRITE };
/* Maps host memory.  The address and `bytes` are multiples of the model's page size.  Returns NULL on failure. */
char *weir__model_map_pages(size_t bytes, int protection);

/* Frees the cuMemAlloc blocks in `pending_frees` if the work before their free is completed. */
void weir__model_direct_free_completed(struct model_device *device);
void weir__model_direct_drop(void);
void weir__model_direct_drop_device(struct model_device *device);
/* Frees all page-locked host memory of a device whose context is destroyed. */
void weir__model_host_drop(struct model_device *device);
const char *weir__model_direct_check(const struct model_device *device, uint64_t *physical);

/* Records in all pools that the host has waited for operation `seq` of stream `id` and the operations in `after`. */
void weir__model_pools_observe(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records in all pools that the host has waited for all work of a device. */
void weir__model_pools_observe_device(int device);
/* Returns free memory of the device's pools to the device, as a real driver does when the host synchronises. */
void weir__model_pools_synchronised(int device);
/* Records in all pools that operation `seq` of stream `id` is a launch that begins at `begin_ns`. */
void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns);
/* Records in all pools that stream `id` was destroyed. */
void weir__model_pools_end_stream(uint64_t id);
/* Adds all streams on which a pool has uncompleted frees to the list `named`. */
void weir__model_pools_list_streams(struct model_orders *named);
void weir__model_pool_free_now(struct model_block *block);
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream);
void weir__model_pools_drop(void);

/* Adds a new block to the tree of allocated blocks, and gives it a unique id. */
void weir__model_block_insert(struct model_block *block, int device);
/* Returns the allocated block that contains all of these bytes, or NULL. */
const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes);
/* Returns 1 if the simulated driver accepts this `usage` of memory (such as decompression), else 0. */
int weir__model_usage_is_known(unsigned usage);
CUmemoryPool weir__model_pool_handle(const struct model_pool *pool);
int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access);

/* Returns 1 if `device` can access the memory of `other`, else 0.  A device can access its own memory. */
int weir__model_has_peer_access(int device, int other);
/* Returns 1 if work on the device may access all of these bytes, else 0. */
int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access);

/* Returns 1 if mappings allow this access to all of these bytes, else 0. */
int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access);
/* Finds the mapping at an address, and the device of its memory.  Returns 1 on success, 0 if there is no mapping. */
int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses);
/* Finds the block of page-locked host memory that contains `address`.  Returns 1 on success, 0 if there is none. */
int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);
/* Records these bytes as used by the last operation of the stream (a fill or a copy). */
void weir__model_virtual_touch(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Calls `visit` for each other address at which the physical memory of these bytes is mapped. */
void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context);
void weir__model_virtual_drop(void);
const char *weir__model_virtual_check(int device, uint64_t *physical);

/* Records that the stream's last operation uses these bytes, and checks its order against uses by other owners. */
void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner);
/* Checks that the free of these bytes is ordered after all uses.  `stream` is NULL if the host frees the bytes; the
 * host must then have observed the completion of all uses. */
void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Records that the last operation of the stream uses a whole mapping. */
void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes);
/* Check that the host has observed the completion of all uses of these bytes.  cuMemUnmap, and cuMemSetAccess if it
 * removes access, take effect at once. */
void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes);
void weir__model_oracle_closed(uint64_t address, uint64_t bytes);
/* Records that the host has observed operation `seq` of stream `id`, and the operations in `after`. */
void weir__model_oracle_observe(uint64_t id, uint64_t seq, const struct model_orders *after);
/* Records that the host has observed the completion of all work of a device. */
void weir__model_oracle_observe_device(int device);
/* Removes recorded uses whose completion the host has observed.  Adds the streams of all other uses to `named`. */
void weir__model_oracle_collect(struct model_orders *named);
void weir__model_oracle_remove(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* ---- model_ipc.c: shared memory ---- */

/* Identifies a pool or a physical allocation among the objects of all processes. */
struct model_identity {
    uint64_t process, object;
};

enum model_file { MODEL_FILE_POOL, MODEL_FILE_MEMORY };

struct model_import;

/* Makes a file without a name, for memory that other processes can map.  Returns its descriptor, or -1 on failure. */
int weir__model_ipc_file(uint64_t bytes);
/* Returns a new descriptor of the file with which another process can import the memory, or -1 on failure. */
int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity);
/* Reads the size, the device and the identity from an exported file.  Returns 1 on success, 0 for any other file. */
int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity);
/* Maps the memory of a pool of another process, and sets *device to its device.  Returns NULL on failure. */
struct model_import *weir__model_import_open(int file, int *device);
/* Unmaps an imported pool's memory, and frees its blocks' structs, which are no longer in the tree of blocks. */
void weir__model_import_close(struct model_import *import);

/* Writes a pointer's export data: the block's `offset` in its pool, and the pointer's offset `before` in the block. */
void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data);
/* Makes a struct for an imported block, or returns NULL on failure.  The caller adds it to the tree of blocks. */
struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before);
void weir__model_import_drop(struct model_import *import, struct model_block *block);

/* The functions that implement driver calls.  The driver table calls them through a wrapper. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* The functions that implement driver calls which programs make, but weir never makes. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
