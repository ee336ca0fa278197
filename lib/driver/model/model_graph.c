/* SPDX-License-Identifier: MIT */
/* model_graph.c: graphs (lists of captured steps), their launches, and the memory that they allocate.
 *
 * A plan is a list of steps in the order of their capture.  A launch runs them in this order on one stream.  A graph
 * and its executables share a plan.
 *
 * An allocation gets its address, a mapping of whole pages, when it is captured.  A program can access it from the
 * launch that runs the allocation until the free.  A launch uses free graph memory of the device first, and then new
 * memory.  The struct of an allocation exists while a step names the struct, or while the memory is allocated.
 */
#include "driver/model/model_inside.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

struct model_plan {
    struct model_step *step;
    size_t count, room;
    /* The number of captures, graphs and executables that use these steps.  At 0 the steps are freed. */
    int holders;
    int executable; /* the number of executables that run these steps */
    int has_memory;
};

struct model_graph_block {
    struct model_block block; /* must be the first member */
    struct model_node all; /* the node in the tree of all memory of graphs; `key` is the address */
    struct model_device *device;
    const struct model_plan *owner; /* the plan that allocates the block; NULL once it is freed */
    uint64_t mapped;                /* the size of the block's own mapping, in whole pages */
    int holders; /* the number of graph steps for the block, plus 1 while it is allocated */
    int allocated;
    int has_free; /* set if any graph has a step that frees the block */
};

struct model_graph {
    struct model_slot slot;
    struct model_plan *plan;
};

struct model_exec {
    struct model_graph graph; /* must be the first member */
    int frees_on_launch;
    uint64_t end_ns; /* the virtual time when the work of the last launch is completed */
};

_Static_assert(sizeof(struct model_graph) <= 64, "a graph fits its slot");
_Static_assert(sizeof(struct model_exec) <= 64, "an executable fits its slot");

/* ---- Memory ---- */

/* Returns the last graph block that begins at or below `address`, or NULL. */
static struct model_graph_block *block_before(uint64_t address) {
    struct model_node *node = weir__model_tree_floor(weir__model.graph_blocks, address, 0);

    if (!node)
        return NULL;
    return (struct model_graph_block *)(void *)((char *)node -
                                                offsetof(struct model_graph_block, all));
}

int weir__model_graph_holds(uint64_t address, uint64_t bytes) {
    const struct model_graph_block *block = block_before(address);

    return block && bytes <= block->block.bytes &&
           address - block->all.key <= block->block.bytes - bytes;
}

static void *mapping(const struct model_graph_block *block) {
    return (void *)(uintptr_t)block->all.key;
}

static struct model_graph_block *make_block(int device, uint64_t bytes) {
    uint64_t page = weir__model.profile.page_bytes;
    struct model_graph_block *block;
    char *base;

    if (bytes > weir__model.devices[device].capacity)
        return NULL;
    block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    block->mapped = (bytes + page - 1) & ~(page - 1);
    base = weir__model_map_pages(block->mapped, PROT_NONE);
    if (!base) {
        free(block);
        return NULL;
    }
    block->device = &weir__model.devices[device];
    block->block.of_graph = 1;
    block->block.bytes = bytes;
    block->block.node.key = block->all.key = (uintptr_t)base;
    weir__model_tree_insert(&weir__model.graph_blocks, &block->all);
    return block;
}

static void drop_block(struct model_graph_block *block) {
    weir__model_tree_remove(&weir__model.graph_blocks, &block->all);
    munmap(mapping(block), block->mapped);
    free(block);
}

static void drop_holder(struct model_graph_block *block) {
    if (--block->holders == 0)
        drop_block(block);
}

/* Changes the protection of a block.  mprotect would be slow under Valgrind.  Returns 0 on success, else -1. */
static int remap_graph_block(const struct model_graph_block *block, int protection) {
    return mmap(mapping(block), block->mapped, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED
               ? -1
               : 0;
}

static int make_accessible(const struct model_graph_block *block) {
    return remap_graph_block(block, MODEL_ACCESSIBLE);
}

/* Discards the memory of a block, so that a later access is a memory fault. */
static void make_inaccessible(const struct model_graph_block *block) {
    (void)!remap_graph_block(block, PROT_NONE);
}

static void allocate(struct model_graph_block *block) {
    block->allocated = 1;
    block->holders++;
    block->device->graph_used += block->mapped;
    weir__model_block_insert(&block->block, block->device->context.device);
}

void weir__model_graph_block_free(struct model_block *freed, const struct model_stream *stream) {
    struct model_graph_block *block = (struct model_graph_block *)(void *)freed;
    struct model_device *device = block->device;

    if (stream && device->graph_end_ns < stream->end_ns)
        device->graph_end_ns = stream->end_ns;
    weir__model_oracle_freed(block->all.key, block->mapped, stream);
    weir__model_tree_remove(&weir__model.blocks, &block->block.node);
    make_inaccessible(block);
    block->allocated = 0;
    device->graph_used -= block->mapped;
    drop_holder(block);
}

CUresult weir__model_cuDeviceGraphMemTrim(CUdevice number) {
    CUresult result = weir__model_device_check(number);
    struct model_device *device;

    if (result != CUDA_SUCCESS)
        return result;
    device = &weir__model.devices[number];
    weir__model_lock();
    if (device->graph_end_ns <= weir__model_now()) {
        weir__model_physical_free(device, device->graph_bytes - device->graph_used);
        device->graph_bytes = device->graph_used;
    }
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* Reads the used or the reserved memory of graphs, the only attributes that the model supports. */
CUresult weir__model_cuDeviceGetGraphMemAttribute(CUdevice number, CUgraphMem_attribute attribute,
                                                  void *value) {
    CUresult result = weir__model_device_check(number);
    const struct model_device *device;

    if (result != CUDA_SUCCESS)
        return result;
    if (!value || (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT &&
                   attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT))
        return CUDA_ERROR_INVALID_VALUE;
    device = &weir__model.devices[number];
    weir__model_lock();
    *(uint64_t *)value =
        attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ? device->graph_used : device->graph_bytes;
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* ---- Plans ---- */

struct model_plan *weir__model_plan_make(void) {
    struct model_plan *plan = calloc(1, sizeof *plan);

    if (plan)
        plan->holders = 1;
    return plan;
}

int weir__model_plan_add(struct model_plan *plan, const struct model_step *step) {
    if (plan->count == plan->room) {
        size_t room = plan->room ? 2 * plan->room : 16;
        struct model_step *larger = realloc(plan->step, room * sizeof *larger);

        if (!larger)
            return -1;
        plan->step = larger;
        plan->room = room;
    }
    plan->step[plan->count++] = *step;
    if (step->block) {
        plan->has_memory = 1;
        step->block->holders++;
    }
    return 0;
}

void weir__model_plan_drop(struct model_plan *plan) {
    size_t i;

    if (!plan || --plan->holders > 0)
        return;
    for (i = 0; i < plan->count; i++) {
        struct model_step *step = &plan->step[i];

        if (step->kind == STEP_ALLOC)
            step->block->owner = NULL;
        else if (step->kind == STEP_FREE)
            step->block->has_free = 0;
        if (step->block)
            drop_holder(step->block);
    }
    free(plan->step);
    free(plan);
}

CUresult weir__model_graph_alloc(struct model_branch *branch, int device, uint64_t bytes,
                                 CUdeviceptr *address) {
    struct model_step step = {.kind = STEP_ALLOC, .block = make_block(device, bytes)};
    CUresult result;

    if (!step.block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    step.block->owner = weir__model_capture_plan(branch);
    result = weir__model_capture_add(branch, &step);
    if (result == CUDA_SUCCESS)
        *address = step.block->all.key;
    else
        drop_block(step.block);
    return result;
}

CUresult weir__model_graph_free(struct model_branch *branch, CUdeviceptr address) {
    struct model_step step = {.kind = STEP_FREE, .block = block_before(address)};
    CUresult result;

    if (!step.block || step.block->all.key != address || step.block->has_free)
        return CUDA_ERROR_INVALID_VALUE;
    result = weir__model_capture_add(branch, &step);
    if (result == CUDA_SUCCESS)
        step.block->has_free = 1;
    return result;
}

/* ---- Graphs and executables ---- */

CUgraph weir__model_graph_make(struct model_plan *plan) {
    struct model_graph *graph =
        weir__model_slab_alloc(&weir__model.graphs, weir__model.next_object_id++);

    if (graph)
        graph->plan = plan;
    return (CUgraph)(void *)graph;
}

CUresult weir__model_graph_add(CUgraph handle, int device, uint64_t bytes, CUdeviceptr *address) {
    struct model_step step = {.kind = STEP_ALLOC};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct model_graph *graph;

    weir__model_lock();
    graph = weir__model_slab_find(&weir__model.graphs, handle);
    step.block = graph ? make_block(device, bytes) : NULL;
    if (step.block) {
        step.block->owner = graph->plan;
        if (weir__model_plan_add(graph->plan, &step) == 0) {
            *address = step.block->all.key;
            result = CUDA_SUCCESS;
        } else {
            drop_block(step.block);
        }
    }
    weir__model_unlock();
    return graph ? result : CUDA_ERROR_INVALID_VALUE;
}

CUresult weir__model_cuGraphDestroy(CUgraph handle) {
    struct model_graph *graph;

    weir__model_lock();
    graph = weir__model_slab_find(&weir__model.graphs, handle);
    if (graph) {
        weir__model_plan_drop(graph->plan);
        weir__model_slab_free(&weir__model.graphs, graph);
    }
    weir__model_unlock();
    return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult instantiate(struct model_plan *plan, unsigned long long flags,
                            CUgraphExec *handle) {
    struct model_exec *exec;

    if (plan->has_memory && plan->executable > 0)
        return CUDA_ERROR_INVALID_VALUE;
    exec = weir__model_slab_alloc(&weir__model.execs, weir__model.next_object_id++);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->graph.plan = plan;
    exec->frees_on_launch = flags == CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    plan->holders++;
    plan->executable++;
    weir__model_charge(weir__model.profile.instantiate_step_ns * plan->count);
    *handle = (CUgraphExec)(void *)exec;
    return CUDA_SUCCESS;
}

CUresult weir__model_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle,
                                                 unsigned long long flags) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    const struct model_graph *graph;

    if (!exec || flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    graph = weir__model_slab_find(&weir__model.graphs, handle);
    if (graph)
        result = instantiate(graph->plan, flags, exec);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuGraphExecDestroy(CUgraphExec handle) {
    struct model_exec *exec;

    weir__model_lock();
    exec = weir__model_slab_find(&weir__model.execs, handle);
    if (exec) {
        exec->graph.plan->executable--;
        weir__model_plan_drop(exec->graph.plan);
        weir__model_slab_free(&weir__model.execs, exec);
    }
    weir__model_unlock();
    return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- Launches ---- */

/* Frees memory that the last launch has allocated.  Without AUTO_FREE_ON_LAUNCH, returns an error instead. */
static CUresult clear_allocations(const struct model_exec *exec,
                                  const struct model_stream *stream) {
    const struct model_plan *plan = exec->graph.plan;
    size_t i;

    for (i = 0; i < plan->count; i++) {
        const struct model_step *step = &plan->step[i];

        if (step->kind != STEP_ALLOC || !step->block->allocated)
            continue;
        if (!exec->frees_on_launch)
            return CUDA_ERROR_INVALID_VALUE;
        weir__model_graph_block_free(&step->block->block, stream);
    }
    return CUDA_SUCCESS;
}

/* Returns the maximum increase of a device's used graph memory during the launch, in bytes. */
static uint64_t peak_growth(const struct model_plan *plan, const struct model_device *device) {
    int64_t used = 0, most = 0;
    size_t i;

    for (i = 0; i < plan->count; i++) {
        const struct model_step *step = &plan->step[i];

        if (!step->block || step->block->device != device)
            continue;
        used +=
            step->kind == STEP_ALLOC ? (int64_t)step->block->mapped : -(int64_t)step->block->mapped;
        if (most < used)
            most = used;
    }
    return (uint64_t)most;
}

static CUresult take_memory(const struct model_plan *plan) {
    uint64_t lacks[MODEL_DEVICES];
    int i;

    for (i = 0; i < weir__model.device_count; i++) {
        struct model_device *device = &weir__model.devices[i];
        uint64_t left = device->graph_bytes - device->graph_used, most = peak_growth(plan, device);

        lacks[i] = most > left ? most - left : 0;
        if (lacks[i] > 0)
            weir__model_direct_free_completed(device);
        if (weir__model_physical_alloc(device, lacks[i]) != 0)
            break;
    }
    if (i == weir__model.device_count) {
        while (i-- > 0)
            weir__model.devices[i].graph_bytes += lacks[i];
        return CUDA_SUCCESS;
    }
    while (i-- > 0)
        weir__model_physical_free(&weir__model.devices[i], lacks[i]);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Reserves and maps the memory for a launch, and checks the frees of the launch. */
static CUresult prepare(const struct model_plan *plan) {
    size_t i, mapped;

    for (i = 0; i < plan->count; i++) {
        const struct model_step *step = &plan->step[i];

        if (step->kind == STEP_FREE && step->block->owner != plan && !step->block->allocated)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (mapped = 0; mapped < plan->count; mapped++)
        if (plan->step[mapped].kind == STEP_ALLOC && make_accessible(plan->step[mapped].block) != 0)
            break;
    if (mapped == plan->count && take_memory(plan) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    while (mapped-- > 0)
        if (plan->step[mapped].kind == STEP_ALLOC)
            make_inaccessible(plan->step[mapped].block);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult run_step(const struct model_step *step, struct model_stream *stream) {
    switch (step->kind) {
    case STEP_ALLOC:
        allocate(step->block);
        return CUDA_SUCCESS;
    case STEP_FREE:
        weir__model_graph_block_free(&step->block->block, stream);
        return CUDA_SUCCESS;
    case STEP_KERNEL:
        weir__model_stream_work(stream, step->duration_ns);
        return CUDA_SUCCESS;
    case STEP_USE:
        weir__model_stream_work(stream, step->duration_ns);
        weir__model_oracle_use(stream, step->address, step->bytes, step->owner);
        return CUDA_SUCCESS;
    default:
        if (step->bytes > 0 && !weir__model_allows(stream->context->device, step->address,
                                                   step->bytes, weir__model_step_access(step)))
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        weir__model_stream_work(stream, step->duration_ns);
        weir__model_step_run(step, stream);
        return CUDA_SUCCESS;
    }
}

static CUresult run(struct model_exec *exec, struct model_stream *stream) {
    const struct model_plan *plan = exec->graph.plan;
    CUresult result = clear_allocations(exec, stream);
    size_t i;

    if (result == CUDA_SUCCESS)
        result = prepare(plan);
    weir__model_charge(weir__model.profile.launch_step_ns * plan->count);
    if (result != CUDA_SUCCESS)
        return result;
    weir__model_stream_touch(stream);
    if (stream->end_ns < exec->end_ns)
        stream->end_ns = exec->end_ns;
    for (i = 0; i < plan->count && result == CUDA_SUCCESS; i++)
        result = run_step(&plan->step[i], stream);
    exec->end_ns = stream->end_ns;
    return result;
}

/* Adds the steps of a graph to a capture, because the graph is launched on a captured stream. */
static CUresult capture_launch(const struct model_plan *plan, struct model_branch *branch) {
    CUresult result = plan->has_memory ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    size_t i;

    for (i = 0; i < plan->count && result == CUDA_SUCCESS; i++)
        result = weir__model_capture_add(branch, &plan->step[i]);
    return result;
}

CUresult weir__model_cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(stream_handle, &why);
    struct model_branch *branch;
    struct model_exec *exec;

    if (!stream)
        return why;
    weir__model_lock();
    exec = weir__model_slab_find(&weir__model.execs, handle);
    why = exec ? weir__model_capture_enter(stream, &branch) : CUDA_ERROR_INVALID_VALUE;
    if (why == CUDA_SUCCESS)
        why = branch ? capture_launch(exec->graph.plan, branch) : run(exec, stream);
    return weir__model_unlocked(why);
}

/* ---- Dropping and checking graphs ---- */

/* Frees all graphs and executables, after all captures have ended. */
void weir__model_graphs_drop(void) {
    const struct model_slab *slabs[] = {&weir__model.graphs, &weir__model.execs};
    size_t i, used;

    for (i = 0; i < 2; i++)
        for (used = 0; used < slabs[i]->used; used++) {
            struct model_graph *graph = (void *)(slabs[i]->base + slabs[i]->stride * used);

            if (atomic_load_explicit(&graph->slot.id, memory_order_relaxed))
                weir__model_plan_drop(graph->plan);
        }
    while (weir__model.graph_blocks)
        drop_block(block_before(UINT64_MAX));
}

/* Returns the bytes in blocks of this subtree that are allocated on the device. */
static uint64_t count_used(const struct model_node *node, const struct model_device *device) {
    const struct model_graph_block *block;
    uint64_t used;

    if (!node)
        return 0;
    block = (const void *)((const char *)node - offsetof(struct model_graph_block, all));
    used = count_used(node->left, device) + count_used(node->right, device);
    return block->allocated && block->device == device ? used + block->mapped : used;
}

const char *weir__model_graph_check(int number, uint64_t *physical) {
    const struct model_device *device = &weir__model.devices[number];

    *physical += device->graph_bytes;
    if (device->graph_used > device->graph_bytes)
        return "graphs use more memory than they have taken";
    return count_used(weir__model.graph_blocks, device) == device->graph_used
               ? NULL
               : "allocations of graphs miscounted";
}
