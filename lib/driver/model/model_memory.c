/* SPDX-License-Identifier: MIT */
/* model_memory.c: cuMemAlloc and cuMemFree, the free bytes of devices, copies, fills, and page-locked host memory.
 *
 * A device address is a host address in a private mapping, which takes no host memory until a program accesses it.  A
 * large cuMemAlloc block has its own mapping of whole pages of 2 MiB, so an access after the free faults.  Small blocks
 * share pages.  A bitmap of the page's units of 512 bytes shows the first fit.  A page is freed with its last block.
 *
 * The model runs copies and fills at once, in host memory, and charges their stream the time.
 */
#include "driver/model/model_inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hostmem.h"

enum { GRAIN = 512, MOST_GRAINS = 8192, GRAIN_WORDS = MOST_GRAINS / 64 };

/* A page of device memory that several small blocks share, divided into grains of 512 bytes. */
struct model_page {
    char *base;
    size_t live; /* the number of allocated blocks in the page */
    size_t free_grains;
    struct model_page *prev, *next;
    uint64_t used_grains[GRAIN_WORDS]; /* one bit for each grain; set if a block has the grain */
};

struct model_direct {
    struct model_block block; /* must be the first member */
    struct model_device *device;
    struct model_page *page; /* NULL if the block is large and has its own mapping */
    char *base;
    size_t mapped;   /* the size of a large block's mapping */
    uint64_t end_ns; /* the virtual time when the work before cuMemFreeAsync is completed */
    struct model_direct *prev, *next;
};

/* ---- Mappings ---- */

char *weir__model_map_pages(size_t bytes, int protection) {
    size_t page = weir__model.profile.page_bytes, lead;
    char *base;

    base = mmap(NULL, bytes + page, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    lead = (page - ((uintptr_t)base & (page - 1))) & (page - 1);
    if (lead)
        munmap(base, lead);
    munmap(base + lead + bytes, page - lead);
    return base + lead;
}

/* ---- Physical memory ---- */

uint64_t weir__model_room(const struct model_device *device) {
    uint64_t others = weir__model_shared_others(device->context.device),
             room = device->capacity - device->physical;

    return room > others ? room - others : 0;
}

int weir__model_physical_alloc(struct model_device *device, uint64_t bytes) {
    if (device->capacity - device->physical < bytes ||
        weir__model_shared_alloc(device->context.device, device->capacity, bytes) != 0)
        return -1;
    device->physical += bytes;
    return 0;
}

void weir__model_physical_free(struct model_device *device, uint64_t bytes) {
    device->physical -= bytes;
    weir__model_shared_free(device->context.device, bytes);
}

/* ---- Pages of small blocks ---- */

static int is_grain_used(const struct model_page *page, size_t grain) {
    return (int)(page->used_grains[grain / 64] >> (grain % 64) & 1);
}

static void mark_grains(struct model_page *page, size_t first, size_t count, int is_used) {
    size_t i;

    for (i = first; i < first + count; i++)
        if (is_used)
            page->used_grains[i / 64] |= (uint64_t)1 << (i % 64);
        else
            page->used_grains[i / 64] &= ~((uint64_t)1 << (i % 64));
    page->free_grains = is_used ? page->free_grains - count : page->free_grains + count;
}

/* Returns the first grain of the first run of `count` free grains in a page, or `grains` if there is none. */
static size_t find_grains(const struct model_page *page, size_t count, size_t grains) {
    size_t i, run = 0;

    for (i = 0; i < grains; i++) {
        run = is_grain_used(page, i) ? 0 : run + 1;
        if (run == count)
            return i + 1 - count;
    }
    return grains;
}

static struct model_page *make_page(struct model_device *device) {
    size_t bytes = weir__model.profile.page_bytes;
    struct model_page *page;

    if (weir__model_physical_alloc(device, bytes) != 0)
        return NULL;
    page = calloc(1, sizeof *page);
    if (page)
        page->base = weir__model_map_pages(bytes, MODEL_ACCESSIBLE);
    if (!page || !page->base) {
        free(page);
        weir__model_physical_free(device, bytes);
        return NULL;
    }
    page->free_grains = bytes / GRAIN;
    device->page_count++;
    MODEL_LIST_ADD(device->pages, page);
    return page;
}

static void drop_page(struct model_device *device, struct model_page *page) {
    MODEL_LIST_REMOVE(device->pages, page);
    munmap(page->base, weir__model.profile.page_bytes);
    weir__model_physical_free(device, weir__model.profile.page_bytes);
    device->page_count--;
    free(page);
}

/* ---- Blocks ---- */

/* Places a small block of `count` grains, in a fresh page if necessary.  Returns 0, or -1 if the device is full. */
static int place_small(struct model_direct *direct, size_t count, int *fresh) {
    struct model_device *device = direct->device;
    size_t grains = weir__model.profile.page_bytes / GRAIN, first = grains;
    struct model_page *page;

    *fresh = 0;
    for (page = device->pages; page; page = page->next) {
        first = page->free_grains < count ? grains : find_grains(page, count, grains);
        if (first < grains)
            break;
    }
    if (!page) {
        page = make_page(device);
        if (!page)
            return -1;
        first = 0;
        *fresh = 1;
    }
    mark_grains(page, first, count, 1);
    page->live++;
    if (page->free_grains == 0)
        MODEL_LIST_REMOVE(device->pages, page);
    direct->page = page;
    direct->base = page->base + first * GRAIN;
    return 0;
}

static int place_large(struct model_direct *direct, uint64_t bytes) {
    uint64_t page = weir__model.profile.page_bytes, mapped;

    if (bytes > direct->device->capacity)
        return -1;
    mapped = (bytes + page - 1) & ~(page - 1);
    if (weir__model_physical_alloc(direct->device, mapped) != 0)
        return -1;
    direct->base = weir__model_map_pages(mapped, MODEL_ACCESSIBLE);
    if (!direct->base) {
        weir__model_physical_free(direct->device, mapped);
        return -1;
    }
    direct->mapped = mapped;
    return 0;
}

/* Frees the memory and the struct of a block that is in no list. */
static void release_direct(struct model_direct *direct) {
    struct model_device *device = direct->device;
    struct model_page *page = direct->page;

    if (page) {
        size_t count = (direct->block.bytes + GRAIN - 1) / GRAIN;

        if (page->free_grains == 0)
            MODEL_LIST_ADD(device->pages, page);
        mark_grains(page, (size_t)(direct->base - page->base) / GRAIN, count, 0);
        if (--page->live == 0)
            drop_page(device, page);
    } else {
        munmap(direct->base, direct->mapped);
        weir__model_physical_free(device, direct->mapped);
    }
    free(direct);
}

void weir__model_direct_free_completed(struct model_device *device) {
    struct model_direct *direct = device->pending_frees, *next;

    for (; direct; direct = next) {
        next = direct->next;
        if (direct->end_ns <= weir__model_now()) {
            MODEL_LIST_REMOVE(device->pending_frees, direct);
            release_direct(direct);
        }
    }
}

void weir__model_direct_drop_device(struct model_device *device) {
    while (device->blocks) {
        struct model_direct *direct = device->blocks;

        weir__model_tree_remove(&weir__model.blocks, &direct->block.node);
        MODEL_LIST_REMOVE(device->blocks, direct);
        release_direct(direct);
    }
    while (device->pending_frees) {
        struct model_direct *direct = device->pending_frees;

        MODEL_LIST_REMOVE(device->pending_frees, direct);
        release_direct(direct);
    }
}

void weir__model_direct_drop(void) {
    int i;

    for (i = 0; i < MODEL_DEVICES; i++)
        weir__model_direct_drop_device(&weir__model.devices[i]);
}

/* Checks the device's cuMemAlloc blocks, and adds their bytes to *physical.  Returns NULL, or a text about an error. */
const char *weir__model_direct_check(const struct model_device *device, uint64_t *physical) {
    const struct model_direct *lists[2] = {device->blocks, device->pending_frees}, *direct;
    const struct model_page *page;
    uint64_t small = 0, live = 0;
    int i;

    for (i = 0; i < 2; i++)
        for (direct = lists[i]; direct; direct = direct->next)
            if (direct->page)
                small++;
            else
                *physical += direct->mapped;
    *physical += device->page_count * weir__model.profile.page_bytes;
    for (page = device->pages; page; page = page->next) {
        if (page->live == 0 || page->free_grains == 0)
            return "a page of small blocks is listed that should not be";
        live += page->live;
    }
    return live > small ? "pages hold more small blocks than there are" : NULL;
}

void weir__model_block_insert(struct model_block *block, int device) {
    block->device = device;
    block->id = weir__model.next_object_id++;
    weir__model_tree_insert(&weir__model.blocks, &block->node);
}

const struct model_block *weir__model_block_around(uint64_t address, uint64_t bytes) {
    struct model_node *node = weir__model_tree_floor(weir__model.blocks, address, 0);
    const struct model_block *block = (struct model_block *)(void *)node;

    return block && bytes <= block->bytes && address - node->key <= block->bytes - bytes ? block
                                                                                         : NULL;
}

int weir__model_allows(int device, uint64_t address, uint64_t bytes, CUmemAccess_flags access) {
    const struct model_block *block = weir__model_block_around(address, bytes);

    if (block && block->pool)
        return weir__model_pool_allows(block->pool, device, access);
    if (block)
        return block->device == device; /* the model lacks cuCtxEnablePeerAccess */
    return weir__model_virtual_allows(device, address, bytes, access);
}

static struct model_block *find_block(CUdeviceptr address) {
    struct model_node *node = weir__model_tree_floor(weir__model.blocks, address, 0);

    return node && node->key == address ? (struct model_block *)(void *)node : NULL;
}

/* ---- Entries ---- */

static CUresult alloc_direct(struct model_device *device, size_t bytes, void *address) {
    const struct model_profile *profile = &weir__model.profile;
    struct model_direct *direct = calloc(1, sizeof *direct);
    int small = bytes <= profile->small_bytes, fresh = 1, failed;

    if (!direct)
        return CUDA_ERROR_OUT_OF_MEMORY;
    weir__model_direct_free_completed(device);
    direct->device = device;
    failed = small ? place_small(direct, (bytes + GRAIN - 1) / GRAIN, &fresh)
                   : place_large(direct, bytes);
    weir__model_charge(fresh ? weir__model_curve(&profile->mem_alloc_ns, bytes >> 10)
                             : profile->small_alloc_ns);
    if (failed) {
        free(direct);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    direct->block.bytes = bytes;
    direct->block.node.key = (uintptr_t)direct->base;
    weir__model_block_insert(&direct->block, device->context.device);
    MODEL_LIST_ADD(device->blocks, direct);
    *(CUdeviceptr *)address = (uintptr_t)direct->base;
    return CUDA_SUCCESS;
}

/* Calls `alloc` for the device of the current context, unless a stream capture forbids the allocation. */
static CUresult alloc_in_context(CUresult (*alloc)(struct model_device *device, size_t bytes,
                                                   void *address),
                                 size_t bytes, void *address) {
    CUresult result = CUDA_SUCCESS;
    struct model_context *context;

    if (!address || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    context = weir__model_current(&result);
    if (!context)
        return result;
    weir__model_lock();
    result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS)
        result = alloc(&weir__model.devices[context->device], bytes, address);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemAlloc(CUdeviceptr *address, size_t bytes) {
    return alloc_in_context(alloc_direct, bytes, address);
}

static uint64_t free_cost(const struct model_direct *direct) {
    const struct model_profile *profile = &weir__model.profile;

    if (direct->page && direct->page->live > 1)
        return profile->small_free_ns;
    return weir__model_curve(&profile->mem_free_ns, direct->block.bytes >> 10);
}

/* Frees a cuMemAlloc block after the present work of `stream` or, if `stream` is NULL, after a wait for the device. */
static void free_direct(struct model_direct *direct, struct model_stream *stream) {
    struct model_device *device = direct->device;

    weir__model_charge(free_cost(direct));
    weir__model_tree_remove(&weir__model.blocks, &direct->block.node);
    MODEL_LIST_REMOVE(device->blocks, direct);
    if (stream && stream->end_ns > weir__model_now()) {
        direct->end_ns = stream->end_ns;
        MODEL_LIST_ADD(device->pending_frees, direct);
        return;
    }
    if (!stream) {
        weir__model_wait_until(device->work_end_ns);
        weir__model_oracle_observe_device(device->context.device);
    }
    release_direct(direct);
}

/* Frees a block.  If `stream` is NULL, the host frees it (cuMemFree). */
static CUresult free_block(CUdeviceptr address, struct model_stream *stream) {
    struct model_block *block = find_block(address);

    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream)
        weir__model_stream_touch(stream);
    if (block->of_graph) {
        weir__model_graph_block_free(block, stream);
        return CUDA_SUCCESS;
    }
    if (!block->pool && !stream)
        /* cuMemFree waits until all work that uses the block is completed, so the order needs no check. */
        weir__model_oracle_remove(address, block->bytes);
    else
        weir__model_oracle_freed(address, block->bytes, stream);
    if (!block->pool)
        free_direct((struct model_direct *)(void *)block, stream);
    else if (stream)
        weir__model_pool_free_on(block, stream);
    else
        weir__model_pool_free_now(block);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuMemFree(CUdeviceptr address) {
    CUresult result;

    if (address == 0)
        return CUDA_SUCCESS;
    weir__model_lock();
    result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS)
        result = free_block(address, NULL);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);
    struct model_branch *branch;

    if (!stream)
        return why;
    if (address == 0)
        return CUDA_SUCCESS;
    weir__model_lock();
    why = weir__model_capture_enter(stream, &branch);
    if (why == CUDA_SUCCESS && !branch)
        why = weir__model_capture_check_unsafe();
    if (branch)
        why = weir__model_graph_free(branch, address);
    else if (why == CUDA_SUCCESS)
        why = free_block(address, stream);
    return weir__model_unlocked(why);
}

/* Sets *bytes to the size that the program requested, as a real driver does. */
CUresult weir__model_cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    CUresult result = CUDA_SUCCESS;
    const struct model_block *block;

    if (!weir__model_current(&result))
        return result;
    weir__model_lock();
    block = weir__model_block_around(address, 1);
    if (block && base)
        *base = block->node.key;
    if (block && bytes)
        *bytes = block->bytes;
    weir__model_unlock();
    return block ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult weir__model_cuMemGetInfo(size_t *free_bytes, size_t *total) {
    CUresult why = CUDA_SUCCESS;
    struct model_context *context = weir__model_current(&why);
    struct model_device *device;

    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context)
        return why;
    device = &weir__model.devices[context->device];
    weir__model_lock();
    weir__model_direct_free_completed(device);
    *free_bytes = weir__model_room(device);
    *total = device->capacity;
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* ---- Copies ---- */

CUmemAccess_flags weir__model_step_access(const struct model_step *step) {
    return (uintptr_t)step->to == step->address ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                : CU_MEM_ACCESS_FLAGS_PROT_READ;
}

static void fill(void *to, uint32_t value, uint64_t bytes) {
    uint32_t *word = to;
    uint64_t i;

    /* the fill writes to every page, which large pages make faster */
    weir__hostmem_prefer_large_pages(to, bytes);
    if (value == (value & 0xff) * 0x01010101u) {
        memset(to, (int)(value & 0xff), bytes);
        return;
    }
    for (i = 0; i < bytes / sizeof value; i++)
        word[i] = value;
}

void weir__model_step_run(const struct model_step *step, const struct model_stream *stream) {
    if (step->bytes == 0)
        return;
    weir__model_virtual_touch(step->address, step->bytes, stream);
    if (step->kind == STEP_FILL)
        fill(step->to, step->value, step->bytes);
    else
        memcpy(step->to, step->from, step->bytes);
}

/* Runs a fill or a copy, or adds it to a capture. */
static CUresult submit(struct model_stream *stream, const struct model_step *step) {
    struct model_branch *branch;
    CUresult result = weir__model_capture_enter(stream, &branch);

    if (result != CUDA_SUCCESS)
        return result;
    if (step->bytes > 0 &&
        !weir__model_allows(stream->context->device, step->address, step->bytes,
                            weir__model_step_access(step)) &&
        !(branch && weir__model_graph_holds(step->address, step->bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    if (branch)
        return weir__model_capture_add(branch, step);
    weir__model_stream_work(stream, step->duration_ns);
    weir__model_step_run(step, stream);
    return CUDA_SUCCESS;
}

static CUresult submit_on(CUstream handle, struct model_step *step, uint64_t bytes_per_us) {
    CUresult why = CUDA_SUCCESS;
    struct model_stream *stream = weir__model_stream(handle, &why);

    if (!stream)
        return why;
    step->duration_ns = (uint64_t)((double)step->bytes * 1000.0 / (double)bytes_per_us);
    weir__model_lock();
    why = submit(stream, step);
    return weir__model_unlocked(why);
}

static void *host_address(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

CUresult weir__model_cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes,
                                     CUstream handle) {
    struct model_step step = {.kind = STEP_FILL,
                              .value = value * 0x01010101u,
                              .address = address,
                              .bytes = bytes,
                              .to = host_address(address)};

    return submit_on(handle, &step, weir__model.profile.memset_bytes_per_us);
}

CUresult weir__model_cuMemsetD32Async(CUdeviceptr address, unsigned int value, size_t count,
                                      CUstream handle) {
    struct model_step step = {.kind = STEP_FILL,
                              .value = value,
                              .address = address,
                              .bytes = count * sizeof value,
                              .to = host_address(address)};

    if (address % sizeof value != 0 || count > SIZE_MAX / sizeof value)
        return CUDA_ERROR_INVALID_VALUE;
    return submit_on(handle, &step, weir__model.profile.memset_bytes_per_us);
}

/* Copies between host and device memory.  `address` is the device memory; it equals either `to` or `from`. */
static CUresult copy(void *to, const void *from, CUdeviceptr address, size_t bytes,
                     CUstream handle) {
    struct model_step step = {
        .kind = STEP_COPY, .address = address, .bytes = bytes, .from = from, .to = to};

    return submit_on(handle, &step, weir__model.profile.copy_bytes_per_us);
}

CUresult weir__model_cuMemcpyHtoDAsync(CUdeviceptr address, const void *host, size_t bytes,
                                       CUstream handle) {
    return !host && bytes > 0 ? CUDA_ERROR_INVALID_VALUE
                              : copy(host_address(address), host, address, bytes, handle);
}

CUresult weir__model_cuMemcpyDtoHAsync(void *host, CUdeviceptr address, size_t bytes,
                                       CUstream handle) {
    return !host && bytes > 0 ? CUDA_ERROR_INVALID_VALUE
                              : copy(host, host_address(address), address, bytes, handle);
}

/* ---- page-locked host memory ---- */

struct model_host_block {
    void *base;
    size_t bytes;
    struct model_host_block *next;
};

/* Allocates page-locked host memory, which is ordinary memory in the model. */
static CUresult alloc_host(struct model_device *device, size_t bytes, void *host) {
    struct model_host_block *block = malloc(sizeof *block);

    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->base = malloc(bytes);
    if (!block->base) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->bytes = bytes;
    block->next = device->host_blocks;
    device->host_blocks = block;
    *(void **)host = block->base;
    return CUDA_SUCCESS;
}

static void release_host(struct model_host_block **link) {
    struct model_host_block *block = *link;

    *link = block->next;
    free(block->base);
    free(block);
}

void weir__model_host_drop(struct model_device *device) {
    while (device->host_blocks)
        release_host(&device->host_blocks);
}

int weir__model_host_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device) {
    const struct model_host_block *block;

    for (*device = 0; *device < weir__model.device_count; ++*device)
        for (block = weir__model.devices[*device].host_blocks; block; block = block->next)
            if (address - (uintptr_t)block->base < block->bytes) {
                *base = (uintptr_t)block->base;
                *bytes = block->bytes;
                return 1;
            }
    return 0;
}

/* Waits for all work of the device, as a real driver does, and frees a block of page-locked host memory. */
static CUresult free_host(struct model_device *device, const void *host) {
    struct model_host_block **link = &device->host_blocks;

    while (*link && (*link)->base != host)
        link = &(*link)->next;
    if (!*link)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_wait_until(device->work_end_ns);
    weir__model_oracle_observe_device(device->context.device);
    release_host(link);
    return CUDA_SUCCESS;
}

CUresult weir__model_cuMemAllocHost(void **host, size_t bytes) {
    return alloc_in_context(alloc_host, bytes, host);
}

CUresult weir__model_cuMemFreeHost(void *host) {
    CUresult result = CUDA_SUCCESS;
    struct model_context *context = weir__model_current(&result);

    if (!context)
        return result;
    weir__model_lock();
    result = weir__model_capture_check_unsafe();
    if (result == CUDA_SUCCESS)
        result = free_host(&weir__model.devices[context->device], host);
    return weir__model_unlocked(result);
}
