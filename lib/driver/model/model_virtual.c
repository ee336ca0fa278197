/* SPDX-License-Identifier: MIT */
/* model_virtual.c: physical allocations, reservations of address space, and mappings.
 *
 * All physical allocations are parts of one sparse file without a name, which grows with each allocation.  So an
 * allocation takes no host memory before it is accessed, keeps its contents at another address, and may be mapped at
 * several addresses at once.  A free frees pages of the file; this part of the file is never used again.  An allocation
 * that other processes may import has its own file (model_ipc.c).  A reservation is host address space without access.
 * The host allows about 65,000 mapped ranges; adjacent mappings of adjacent parts of the file are one range.
 */
#include "driver/model/model_inside.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

/* A physical allocation (cuMemCreate).  Its CUmemGenericAllocationHandle is the address of the struct. */
struct model_memory {
    struct model_slot slot;
    struct model_device *device;
    uint64_t bytes;
    uint64_t place; /* the offset of the memory in the file that contains it */
    uint32_t mappings;
    int file; /* the file that contains only this memory; -1 if the memory is in `space.file` */
    int references;     /* the number of releases to come; at 0, only mappings keep the memory */
    short decompresses; /* set if hardware may decompress into the memory */
    short belongs_to_other; /* set if another process has created the allocation */
};

_Static_assert(sizeof(struct model_memory) <= MODEL_MEMORY_STRIDE, "a handle fits its slot");

struct model_reservation {
    struct model_node node; /* `key` is the start address */
    uint64_t bytes;
};

struct model_mapping {
    struct model_node node; /* `key` is the start address */
    struct model_memory *memory;
    CUmemAccess_flags access[MODEL_DEVICES]; /* the access of each device to the mapping */
};

static struct {
    struct model_node *reservations, *mappings;
    int file; /* the file for all allocations of this process; open only if file_bytes is not 0 */
    uint64_t file_bytes;
} space;

/* ---- Numbers ---- */

static uint64_t granularity(void) { /* the minimum and the recommended granularity are equal */
    return weir__model.profile.page_bytes;
}

static int is_whole_pages(uint64_t number) {
    return number % granularity() == 0;
}

/* Returns 1 if the range is not empty, does not overflow, and consists of whole pages; else 0. */
static int is_range(uint64_t address, uint64_t bytes) {
    return bytes > 0 && is_whole_pages(address) && is_whole_pages(bytes) &&
           address <= UINT64_MAX - bytes;
}

static uint64_t by_gib(uint64_t bytes, uint64_t ns_per_gib) {
    return (uint64_t)((double)bytes * (double)ns_per_gib / 1073741824.0);
}

static void *host(uint64_t address) {
    return (void *)(uintptr_t)address;
}

/* ---- Reservations ---- */

/* Reserves host addresses without access.  Returns their start, or NULL on failure. */
static char *reserve(uint64_t bytes, uint64_t alignment, uint64_t hint) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint64_t lead;
    char *base;

    if (hint) {
        base = mmap(host(hint), bytes, PROT_NONE, flags, -1, 0);
        if (base != MAP_FAILED && (uintptr_t)base % alignment == 0)
            return base;
        if (base != MAP_FAILED)
            munmap(base, bytes);
    }
    if (bytes > UINT64_MAX - alignment)
        return NULL;
    base = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    lead = -(uintptr_t)base & (alignment - 1);
    if (lead)
        munmap(base, lead);
    munmap(base + lead + bytes, alignment - lead);
    return base + lead;
}

static CUresult add_reservation(uint64_t bytes, uint64_t alignment, uint64_t hint,
                                CUdeviceptr *address) {
    struct model_reservation *reservation = calloc(1, sizeof *reservation);
    char *base = NULL;

    if (reservation)
        base = reserve(bytes, alignment < granularity() ? granularity() : alignment, hint);
    if (!base) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reservation->node.key = (uintptr_t)base;
    reservation->bytes = bytes;
    weir__model_tree_insert(&space.reservations, &reservation->node);
    *address = (uintptr_t)base;
    return CUDA_SUCCESS;
}

static void drop_reservation(struct model_reservation *reservation) {
    weir__model_tree_remove(&space.reservations, &reservation->node);
    munmap(host(reservation->node.key), reservation->bytes);
    free(reservation);
}

static struct model_reservation *reservation_before(uint64_t address) {
    return (void *)weir__model_tree_floor(space.reservations, address, 0);
}

/* Returns 1 if one reservation of address space contains the whole range, else 0. */
static int is_reserved(uint64_t address, uint64_t bytes) {
    const struct model_reservation *reservation = reservation_before(address);

    return reservation && bytes <= reservation->bytes &&
           address - reservation->node.key <= reservation->bytes - bytes;
}

/* ---- Memory ---- */

/* Extends the common file of all physical allocations.  Returns 0 on success, else -1. */
static int extend_file(uint64_t bytes) {
    if (space.file_bytes == 0)
        space.file = weir__file_above(memfd_create("weir-model", MFD_CLOEXEC));
    if (space.file < 0 || bytes > (uint64_t)INT64_MAX - space.file_bytes)
        return -1;
    if (weir__file_resize(space.file, (off_t)(space.file_bytes + bytes)) != 0) {
        if (space.file_bytes == 0)
            close(space.file);
        return -1;
    }
    space.file_bytes += bytes;
    return 0;
}

static CUresult make_memory(struct model_device *device, uint64_t bytes, int decompresses,
                            int is_shared, CUmemGenericAllocationHandle *handle) {
    struct model_memory *memory;

    weir__model_direct_free_completed(device);
    if (weir__model_physical_alloc(device, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = weir__model_slab_alloc(&weir__model.memories, weir__model.next_object_id++);
    if (memory)
        memory->file = is_shared ? weir__model_ipc_file(bytes) : -1;
    if (!memory || (is_shared ? memory->file < 0 : extend_file(bytes) != 0)) {
        if (memory)
            weir__model_slab_free(&weir__model.memories, memory);
        weir__model_physical_free(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->device = device;
    memory->bytes = bytes;
    memory->references = 1;
    memory->decompresses = (short)decompresses;
    memory->place = is_shared ? 0 : space.file_bytes - bytes;
    weir__model_charge(by_gib(bytes, weir__model.profile.virtual_create_gib_ns) +
                       (weir__model.handles_made ? 0 : weir__model.profile.virtual_first_ns));
    weir__model.handles_made++;
    *handle = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Frees a physical allocation without handle and mapping.  If fallocate fails, host pages stay until a model reset. */
static void drop_unused_memory(struct model_memory *memory) {
    if (memory->references > 0 || memory->mappings > 0)
        return;
    if (memory->file < 0)
        (void)!fallocate(space.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)memory->place, (off_t)memory->bytes);
    else
        close(memory->file);
    if (!memory->belongs_to_other)
        weir__model_physical_free(memory->device, memory->bytes);
    weir__model_charge(by_gib(memory->bytes, weir__model.profile.virtual_release_gib_ns));
    weir__model_slab_free(&weir__model.memories, memory);
}

static struct model_memory *find_memory(CUmemGenericAllocationHandle handle) {
    struct model_memory *memory = weir__model_slab_find(&weir__model.memories, host(handle));

    return memory && memory->references > 0 ? memory : NULL;
}

static struct model_identity identity_of(const struct model_memory *memory) {
    return (struct model_identity){(uint64_t)getpid(),
                                   atomic_load_explicit(&memory->slot.id, memory_order_relaxed)};
}

/* Returns the physical allocation of this process with this identity, or NULL. */
static struct model_memory *find_identity(const struct model_identity *identity) {
    const struct model_slab *slab = &weir__model.memories;

    for (size_t i = 0; i < slab->used; i++) {
        struct model_memory *memory = (void *)(slab->base + slab->stride * i);
        struct model_identity is = identity_of(memory);

        if (is.object == identity->object && is.process == identity->process &&
            !memory->belongs_to_other)
            return memory;
    }
    return NULL;
}

/* Imports a physical allocation of another process, and stores a handle in *handle.  The caller must close `file`. */
static CUresult import_memory(int file, CUmemGenericAllocationHandle *handle) {
    struct model_identity identity;
    struct model_memory *memory;
    uint64_t bytes;
    int device;

    if (!weir__model_ipc_read(file, MODEL_FILE_MEMORY, &bytes, &device, &identity) ||
        weir__model_device_check(device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    memory = find_identity(&identity);
    if (!memory) {
        memory = weir__model_slab_alloc(&weir__model.memories, weir__model.next_object_id++);
        if (!memory)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memory->file = weir__file_copy(file);
        if (memory->file < 0) {
            weir__model_slab_free(&weir__model.memories, memory);
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
        memory->device = &weir__model.devices[device];
        memory->bytes = bytes;
        memory->belongs_to_other = 1;
    }
    memory->references++;
    *handle = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* ---- Mappings ---- */

static struct model_mapping *mapping_before(uint64_t address) {
    return (void *)weir__model_tree_floor(space.mappings, address, 0);
}
static struct model_mapping *mapping_from(uint64_t address) {
    return (void *)weir__model_tree_ceiling(space.mappings, address, 0);
}

static uint64_t mapping_end(const struct model_mapping *mapping) {
    return mapping->node.key + mapping->memory->bytes;
}

static int any_mapped(uint64_t address, uint64_t bytes) {
    const struct model_mapping *last = mapping_before(address + bytes - 1);

    return last && mapping_end(last) > address;
}

void weir__model_each_alias(uint64_t address, uint64_t bytes,
                            void (*visit)(void *context, uint64_t address, uint64_t bytes),
                            void *context) {
    const struct model_mapping *mapping = mapping_before(address), *other;

    if (!mapping || mapping_end(mapping) <= address)
        mapping = mapping_from(address);
    for (; mapping && mapping->node.key < address + bytes;
         mapping = mapping_from(mapping_end(mapping))) {
        uint64_t begin = mapping->node.key > address ? mapping->node.key : address;
        uint64_t end =
            mapping_end(mapping) < address + bytes ? mapping_end(mapping) : address + bytes;

        if (mapping->memory->mappings == 1)
            continue;
        for (other = mapping_from(0); other; other = mapping_from(mapping_end(other)))
            if (other != mapping && other->memory == mapping->memory)
                visit(context, other->node.key + (begin - mapping->node.key), end - begin);
    }
}

/* Returns the number of mappings if whole mappings without gaps make up the range, else 0. */
static uint64_t count_mappings(uint64_t address, uint64_t bytes) {
    uint64_t at = address, count = 0;

    while (at < address + bytes) {
        const struct model_mapping *mapping = mapping_before(at);

        if (!mapping || mapping->node.key != at)
            return 0;
        at = mapping_end(mapping);
        count++;
    }
    return at == address + bytes ? count : 0;
}

/* Maps memory, also to change its protection, since mprotect is slow under Valgrind.  Returns 0 on success, else -1. */
static int map_file_part(uint64_t address, const struct model_memory *memory, int protection) {
    return mmap(host(address), memory->bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                memory->file < 0 ? space.file : memory->file, (off_t)memory->place) == MAP_FAILED
               ? -1
               : 0;
}

/* Maps a physical allocation at a reserved address, without access. */
static CUresult map(uint64_t address, struct model_memory *memory) {
    struct model_mapping *mapping;

    if (!is_reserved(address, memory->bytes) || any_mapped(address, memory->bytes))
        return CUDA_ERROR_INVALID_VALUE;
    mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (map_file_part(address, memory, PROT_NONE) != 0) {
        free(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping->node.key = address;
    mapping->memory = memory;
    memory->mappings++;
    weir__model_tree_insert(&space.mappings, &mapping->node);
    return CUDA_SUCCESS;
}

/* Frees the struct of a mapping, whose addresses are unmapped already. */
static void drop_mapping(struct model_mapping *mapping) {
    struct model_memory *memory = mapping->memory;

    weir__model_tree_remove(&space.mappings, &mapping->node);
    free(mapping);
    memory->mappings--;
    drop_unused_memory(memory);
}

/* Removes all mappings in a range.  Fails if the range contains a part of a mapping, or both mappings and gaps. */
static CUresult unmap(uint64_t address, uint64_t bytes) {
    uint64_t count = count_mappings(address, bytes);

    if (is_reserved(address, bytes) && !any_mapped(address, bytes))
        return CUDA_SUCCESS;
    if (count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(host(address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    weir__model_oracle_unmapped(address, bytes);
    weir__model_charge(count * weir__model.profile.virtual_unmap_handle_ns +
                       by_gib(bytes, weir__model.profile.virtual_unmap_gib_ns));
    while (count-- > 0) {
        struct model_mapping *mapping = mapping_from(address);

        address = mapping_end(mapping);
        drop_mapping(mapping);
    }
    return CUDA_SUCCESS;
}

static int protection_of(CUmemAccess_flags access) {
    switch (access) {
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        return MODEL_ACCESSIBLE;
    case CU_MEM_ACCESS_FLAGS_PROT_READ:
        return PROT_READ;
    default:
        return PROT_NONE;
    }
}

/* Checks that a range consists of whole mappings without gaps, and that the device can access their memory. */
static CUresult check_mapping_access(uint64_t address, uint64_t bytes, CUdevice device) {
    const struct model_mapping *mapping;

    if (count_mappings(address, bytes) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = address; at < address + bytes; at = mapping_end(mapping)) {
        mapping = mapping_from(at);
        if (!weir__model_has_peer_access(device, mapping->memory->device->context.device))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

/* Makes a mapping's host memory readable or writable if at least one device may read or write it. */
static CUresult protect(const struct model_mapping *mapping) {
    CUmemAccess_flags any = CU_MEM_ACCESS_FLAGS_PROT_NONE;

    for (int i = 0; i < MODEL_DEVICES; i++)
        any |= mapping->access[i];
    return map_file_part(mapping->node.key, mapping->memory, protection_of(any)) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_mapping_access(uint64_t address, uint64_t bytes, CUdevice device,
                                   CUmemAccess_flags access) {
    const struct model_profile *profile = &weir__model.profile;
    CUresult result = CUDA_SUCCESS;
    struct model_mapping *mapping;

    for (uint64_t at = address; at < address + bytes && result == CUDA_SUCCESS;
         at = mapping_end(mapping)) {
        CUmemAccess_flags before;
        int is_own;

        mapping = mapping_from(at);
        before = mapping->access[device];
        is_own = mapping->memory->device->context.device == device;
        if (before == access)
            continue;
        if (before & ~access)
            weir__model_oracle_closed(at, mapping->memory->bytes);
        mapping->access[device] = access;
        result = protect(mapping);
        weir__model_charge(is_own
                               ? profile->virtual_access_handle_ns +
                                     by_gib(mapping->memory->bytes, profile->virtual_access_gib_ns)
                               : profile->virtual_peer_handle_ns +
                                     by_gib(mapping->memory->bytes, profile->virtual_peer_gib_ns));
    }
    return result;
}

int weir__model_virtual_allows(int device, uint64_t address, uint64_t bytes,
                               CUmemAccess_flags access) {
    const struct model_mapping *mapping = mapping_before(address);
    uint64_t at = address;

    while (mapping && mapping->node.key <= at && at < mapping_end(mapping) &&
           (mapping->access[device] & access) == access) {
        at = mapping_end(mapping);
        if (at - address >= bytes)
            return 1;
        mapping = mapping_before(at);
    }
    return 0;
}

int weir__model_virtual_find(uint64_t address, uint64_t *base, uint64_t *bytes, int *device,
                             int *decompresses) {
    const struct model_mapping *mapping = mapping_before(address);

    if (!mapping || mapping_end(mapping) <= address)
        return 0;
    *base = mapping->node.key;
    *bytes = mapping->memory->bytes;
    *device = mapping->memory->device->context.device;
    *decompresses = mapping->memory->decompresses;
    return 1;
}

void weir__model_virtual_touch(uint64_t address, uint64_t bytes,
                               const struct model_stream *stream) {
    const struct model_mapping *mapping = mapping_before(address);

    if (!mapping || mapping_end(mapping) <= address)
        return;
    for (; mapping && mapping->node.key < address + bytes;
         mapping = mapping_from(mapping->node.key + 1))
        weir__model_oracle_touched(stream, mapping->node.key, mapping->memory->bytes);
}

/* ---- Entries ---- */

static CUresult check_memory_properties(const CUmemAllocationProp *properties) {
    size_t i;

    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->win32HandleMetaData)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < sizeof properties->allocFlags.reserved; i++)
        if (properties->allocFlags.reserved[i])
            return CUDA_ERROR_INVALID_VALUE;
    if ((properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
         properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
        properties->allocFlags.compressionType || properties->allocFlags.gpuDirectRDMACapable > 1 ||
        !weir__model_usage_is_known(properties->allocFlags.usage))
        return CUDA_ERROR_NOT_SUPPORTED;
    return weir__model_device_check(properties->location.id);
}

CUresult weir__model_cuMemGetAllocationGranularity(size_t *bytes,
                                                   const CUmemAllocationProp *properties,
                                                   CUmemAllocationGranularity_flags option) {
    CUresult result;

    if (!bytes || !properties || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_memory_properties(properties);
    if (result == CUDA_SUCCESS)
        *bytes = granularity();
    return result;
}

CUresult weir__model_cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                         CUdeviceptr hint, unsigned long long flags) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (!address || !is_range(0, bytes) || hint % page != 0 || (alignment & (alignment - 1)) != 0 ||
        flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    return weir__model_unlocked(add_reservation(bytes, alignment, hint, address));
}

CUresult weir__model_cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    struct model_reservation *reservation;

    weir__model_lock();
    reservation = reservation_before(address);
    if (!reservation || reservation->node.key != address || reservation->bytes != bytes ||
        any_mapped(address, bytes))
        return weir__model_unlocked(CUDA_ERROR_INVALID_VALUE);
    drop_reservation(reservation);
    return weir__model_unlocked(CUDA_SUCCESS);
}

CUresult weir__model_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result;

    if (!handle || !properties || !is_range(0, bytes) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_memory_properties(properties);
    if (result != CUDA_SUCCESS)
        return result;
    weir__model_lock();
    result = make_memory(&weir__model.devices[properties->location.id], bytes,
                         properties->allocFlags.usage != 0,
                         properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE, handle);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct model_memory *memory;

    weir__model_lock();
    memory = find_memory(handle);
    if (!memory) /* the result is not documented */
        return weir__model_unlocked(CUDA_ERROR_INVALID_VALUE);
    memory->references--;
    drop_unused_memory(memory);
    return weir__model_unlocked(CUDA_SUCCESS);
}

/* Maps a whole physical allocation.  To map a part of an allocation is an error, as with a real driver. */
static CUresult map_part(uint64_t address, uint64_t bytes, uint64_t offset,
                         struct model_memory *memory) {
    if (!memory || bytes > memory->bytes || offset > memory->bytes - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return bytes == memory->bytes ? map(address, memory) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult weir__model_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags) {
    if (!is_range(address, bytes) || !is_whole_pages(offset) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    return weir__model_unlocked(map_part(address, bytes, offset, find_memory(handle)));
}

CUresult weir__model_cuMemUnmap(CUdeviceptr address, size_t bytes) {
    if (!is_range(address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    return weir__model_unlocked(unmap(address, bytes));
}

CUresult weir__model_cuMemSetAccess(CUdeviceptr address, size_t bytes,
                                    const CUmemAccessDesc *access, size_t count) {
    CUresult result = CUDA_SUCCESS;
    size_t i;

    if (!is_range(address, bytes) || !access || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (i = 0; i < count; i++)
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
             access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_mapping_access(address, bytes, access[i].location.id);
    for (i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = set_mapping_access(address, bytes, access[i].location.id, access[i].flags);
    return weir__model_unlocked(result);
}

CUresult weir__model_cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle,
                                                  CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
    const struct model_memory *memory;
    struct model_identity identity;
    int file;

    if (!shared || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    memory = find_memory(handle);
    if (!memory || memory->file < 0 || memory->belongs_to_other)
        return weir__model_unlocked(CUDA_ERROR_INVALID_VALUE);
    identity = identity_of(memory);
    file = weir__model_ipc_export(memory->file, MODEL_FILE_MEMORY, memory->bytes,
                                  memory->device->context.device, &identity);
    if (file < 0)
        return weir__model_unlocked(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(shared, &file, sizeof file);
    return weir__model_unlocked(CUDA_SUCCESS);
}

CUresult weir__model_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                    void *shared, CUmemAllocationHandleType type) {
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    weir__model_lock();
    return weir__model_unlocked(import_memory((int)(intptr_t)shared, handle));
}

/* ---- Dropping and checking mappings ---- */

static void close_files(void) {
    const struct model_slab *slab = &weir__model.memories;

    for (size_t i = 0; i < slab->used; i++) {
        const struct model_memory *memory = (const void *)(slab->base + slab->stride * i);

        if (atomic_load_explicit(&memory->slot.id, memory_order_relaxed) && memory->file >= 0)
            close(memory->file);
    }
}

void weir__model_virtual_drop(void) {
    struct model_reservation *reservation;
    struct model_mapping *mapping;

    close_files();
    while ((mapping = mapping_from(0))) {
        weir__model_tree_remove(&space.mappings, &mapping->node);
        free(mapping);
    }
    while ((reservation = (void *)weir__model_tree_ceiling(space.reservations, 0, 0)))
        drop_reservation(reservation);
    if (space.file_bytes > 0)
        close(space.file);
    space.file_bytes = 0;
}

/* Checks all mappings, and counts those of the device's memory.  Returns NULL, or a text about an error. */
static const char *check_mappings(int device, uint64_t *count) {
    const struct model_mapping *mapping = mapping_from(0);
    uint64_t end = 0;

    for (; mapping; mapping = mapping_from(mapping->node.key + 1)) {
        if (mapping->node.key < end)
            return "mappings overlap";
        end = mapping_end(mapping);
        if (!is_reserved(mapping->node.key, mapping->memory->bytes))
            return "a mapping lies outside of the reservations";
        *count += mapping->memory->device->context.device == device;
    }
    return NULL;
}

const char *weir__model_virtual_check(int device, uint64_t *physical) {
    const struct model_slab *slab = &weir__model.memories;
    uint64_t mappings = 0, counted = 0;
    const char *wrong = check_mappings(device, &mappings);
    size_t i;

    for (i = 0; i < slab->used && !wrong; i++) {
        const struct model_memory *memory = (const void *)(slab->base + slab->stride * i);

        if (!atomic_load_explicit(&memory->slot.id, memory_order_relaxed) ||
            memory->device->context.device != device)
            continue;
        *physical += memory->belongs_to_other ? 0 : memory->bytes;
        counted += memory->mappings;
        if (memory->references == 0 && memory->mappings == 0)
            wrong = "a handle without a name or a mapping holds memory";
    }
    return wrong || counted == mappings ? wrong : "mappings of handles miscounted";
}
