/* SPDX-License-Identifier: MIT */
/* model_inside.h: what the files of the device model do for each other.
 *
 * Locks: the model's, which the caller holds (model_state.h), but in the entries at the end.
 *
 * Must not know: anything above driver.h.
 */
#ifndef WEIR_MODEL_INSIDE_H
#define WEIR_MODEL_INSIDE_H

#include "driver/model/model_state.h"

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
/* To a graph that is there, behind its last step. */
CUresult weir__model_graph_add(CUgraph graph, int device, uint64_t bytes, CUdeviceptr *address);
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
/* Adds each stream that has a queue in a pool to `named`. */
void weir__model_pools_name(struct model_orders *named);
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
/* Forgets uses that the host has completed.  Adds the streams of all other uses to `named`. */
void weir__model_oracle_collect(struct model_orders *named);
void weir__model_oracle_forget(uint64_t address, uint64_t bytes);
void weir__model_oracle_reset(void);

/* Around a call of a process whose memory is shared: waits while another process has locked this one.  1: the call is
 * one that a lock waits for, and is left again. */
int weir__model_checkpoint_enter(enum weir_driver_entry entry);
void weir__model_checkpoint_leave(void);
/* A process that takes part gets the thread that answers others; under the model's lock. */
void weir__model_checkpoint_start(void);

/* One per entry of the table: what it does, after counting, faults and its fixed cost. */
#define WEIR_ENTRY(group, name, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* And of those that programs alone call. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args) CUresult weir__model_##name params;
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

#endif
