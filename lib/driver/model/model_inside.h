/* SPDX-License-Identifier: MIT */
/* model_inside.h: the functions that the files of the device model share.
 *
 * Locks: the caller holds the model's lock (model_state.h), except for the entries at the end.
 *
 * Must not know: anything above driver.h.
 */
#ifndef WEIR_MODEL_INSIDE_H
#define WEIR_MODEL_INSIDE_H

#include "driver/model/model_state.h"

/* Return the bytes of a device's physical memory that are left, also by other processes; take bytes (0 or -1); and free
 * them. */
uint64_t weir__model_room(const struct model_device *device);
int weir__model_take(struct model_device *device, uint64_t bytes);
void weir__model_give(struct model_device *device, uint64_t bytes);

struct model_stream *weir__model_stream_make(struct model_context *context, unsigned flags);
void weir__model_stream_drop(struct model_stream *stream);
/* Returns the thread's own stream on that device, or NULL if there is none yet or it ended with its context. */
struct model_stream *weir__model_stream_own(const struct model_thread *thread, CUdevice device);
void weir__model_streams_drop(struct model_context *context); /* and its events */
/* Orders a stream behind the streams that it implicitly waits for, and counts an operation. */
void weir__model_stream_touch(struct model_stream *stream);
void weir__model_stream_work(struct model_stream *stream, uint64_t duration_ns);
int weir__model_stream_is_blocking(const struct model_stream *stream);

/* Returns the operation of stream `id` up to which these orders reach, or 0 if they have none of that stream. */
uint64_t weir__model_order(const struct model_orders *orders, uint64_t id);
/* Adds an order, or raises the order of that stream. */
void weir__model_learn(struct model_orders *orders, uint64_t id, uint64_t seq);
void weir__model_learn_all(struct model_orders *orders, const struct model_orders *from);
void weir__model_forget_all(struct model_orders *orders);
/* Removes the orders of streams that have no order in `named`. */
void weir__model_keep_named(struct model_orders *orders, const struct model_orders *named);
/* Drops orders that can decide nothing any more, if many streams were made since they were dropped last. */
void weir__model_orders_collect(void);

/* Checks an operation on a stream before it runs.  Sets *branch to NULL to run it now, else to the branch that captures
 * it. */
CUresult weir__model_capture_enter(struct model_stream *stream, struct model_branch **branch);
/* Check a query of, or a wait for, the work of a stream, an event or a context by the host. */
CUresult weir__model_capture_asks(struct model_stream *stream);
CUresult weir__model_capture_asks_event(const struct model_event *event);
CUresult weir__model_capture_asks_context(const struct model_context *context);
/* Checks a call that is unsafe beside a capture; a call on a stream only if that stream is not captured. */
CUresult weir__model_capture_unsafe(void);
struct model_plan *weir__model_capture_plan(const struct model_branch *branch);
CUresult weir__model_capture_add(struct model_branch *branch, const struct model_step *step);
void weir__model_capture_record(struct model_branch *branch, struct model_event *event);
/* `branch` is that of the stream, or NULL. */
CUresult weir__model_capture_wait(struct model_stream *stream, struct model_branch *branch,
                                  const struct model_event *event);
/* Forget a stream that is destroyed, and a thread that ends. */
void weir__model_capture_drop_stream(struct model_stream *stream);
void weir__model_capture_drop_thread(const struct model_thread *thread);
const char *weir__model_capture_check(const struct model_context *context);

struct model_plan *weir__model_plan_make(void);
void weir__model_plan_drop(struct model_plan *plan);
/* Returns 0 or -1. */
int weir__model_plan_add(struct model_plan *plan, const struct model_step *step);
/* Takes the plan over; NULL: no handle left. */
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
/* Return the access that a fill or a copy needs, and run one on the device's memory, as work of the stream. */
CUmemAccess_flags weir__model_step_access(const struct model_step *step);
void weir__model_step_run(const struct model_step *step, const struct model_stream *stream);
/* The protection of a device's memory for the host, which plays the device.  Memory that can be written can also be
 * read (Linux, on x86-64 and 64-bit Arm).  Without a flag for reads, Valgrind does not search gigabytes for pointers
 * when it looks for leaks. */
enum { MODEL_ACCESSIBLE = PROT_WRITE };
/* Maps whole pages of the device's size, aligned to it.  Returns NULL on failure. */
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
/* Records that operation `seq` of stream `id` is work that begins at that time. */
void weir__model_pools_begin(uint64_t id, uint64_t seq, uint64_t begin_ns);
/* Forgets stream `id`, which has ended. */
void weir__model_pools_forget(uint64_t id);
/* Adds each stream that has a queue in a pool to `named`. */
void weir__model_pools_name(struct model_orders *named);
void weir__model_pool_free_now(struct model_block *block);
void weir__model_pool_free_on(struct model_block *block, struct model_stream *stream);
void weir__model_pools_drop(void);

/* Makes a block live: it can be found by its address, and gets a unique id. */
void weir__model_block_enter(struct model_block *block, int device);
/* Returns the live block that contains all of [address, address + bytes), or NULL. */
const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes);
/* Returns 1 if the driver knows that usage of memory, else 0. */
int weir__model_usage_is_known(unsigned usage);
CUmemoryPool weir__model_pool_handle(const struct model_pool *pool);
int weir__model_pool_allows(const struct model_pool *pool, int device, CUmemAccess_flags access);

/* Returns 1 if the device can access the memory of `other`, which may be this device; else 0, also for a wrong
 * ordinal. */
int weir__model_reaches(int device, int other);
/* Returns 1 if work on the device has that access to all of [address, address + bytes), else 0.  The bytes must lie in
 * one live block, which is the device's own or of a pool that allows the access, or in adjacent mappings that allow
 * it. */
int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access);

/* Returns 1 if adjacent mappings allow that access, else 0. */
int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access);
/* Finds the mapping that contains an address, and the device of its memory.  Returns 1 if there is one, else 0. */
int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses);
/* Finds the page-locked host memory that contains an address.  Returns 1 if there is any, else 0. */
int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device);
/* Records that the stream's latest work fills or copies these bytes. */
void weir__model_virtual_touch(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Visits all other addresses at which the mapped memory in [address, address + bytes) is also mapped. */
void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context);
void weir__model_virtual_drop(void);
const char *weir__model_virtual_check(int device, uint64_t *physical);

/* The oracle.  Records that the stream's latest work uses bytes for an owner. */
void weir__model_oracle_use(const struct model_stream *stream, uint64_t address, uint64_t bytes,
                            uint64_t owner);
/* Records that bytes are freed to the driver behind the stream, or with NULL by the host, which says that their uses
 * are over. */
void weir__model_oracle_freed(uint64_t address, uint64_t bytes, const struct model_stream *stream);
/* Records that the stream's latest work used a whole mapping, for no owner. */
void weir__model_oracle_touched(const struct model_stream *stream, uint64_t address,
                                uint64_t bytes);
/* Record that whole mappings lose their memory, or access to it, at once. */
void weir__model_oracle_unmapped(uint64_t address, uint64_t bytes);
void weir__model_oracle_closed(uint64_t address, uint64_t bytes);
/* Record that the host has observed the end of stream `id`'s work up to `seq` and of all work that `after` lists, or of
 * all work of a device. */
void weir__model_oracle_seen(uint64_t id, uint64_t seq, const struct model_orders *after);
void weir__model_oracle_seen_device(int device);
/* Forgets uses that the host has completed.  Adds the streams of all other uses to `named`. */
void weir__model_oracle_collect(struct model_orders *named);
void weir__model_oracle_forget(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* The functions of the table's entries, which are called after counting, faults and the fixed cost. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* The functions of the entries that only programs call. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
