/* SPDX-License-Identifier: MIT */
/* preload_plain.c: counts the device memory that the program allocates from the driver and not from weir, by the
 * function of the driver and by the calling library.
 *
 * Each allocation has a record, which is found by the address or the handle of the memory.  The record of a handle also
 * contains the numbers of references and mappings, since the memory stays allocated until the last one ends.
 *
 * If the process belongs to a group of processes that share a limit, the bytes are added to the group before the
 * driver's call, and subtracted after the driver has freed the memory.
 *
 * weir adds the size of an allocation in a graph when the program captures or creates this allocation.  After the
 * next launch of a graph, the driver's own number for the memory of graphs replaces the sum of these sizes.
 *
 * Locks: `lock` guards the maps and sums.  While a thread holds `lock`, it calls only malloc and functions of the
 * group.  A thread finds the name of the calling library before it takes `lock`, and without the dynamic linker's
 * lock: a constructor may hold that lock while it waits for a thread that allocates memory. */
#include "adapters/preload/preload.h"

#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/map.h"
#include "base/size.h"

/* The maximum time to wait until the driver has freed the memory of a killed process, in nanoseconds. */
#define ENDING_NS UINT64_C(2000000000)
enum { FRAMES = 24, MOST_CALLERS = 64, MOST_DEVICES = 64, OTHER_CALLER = 0 };

struct weir_plain_record {
    uint64_t bytes;
    int device, caller;
    enum weir_group_kind kind;
    struct weir_group *group;      /* the processes that share a limit, or NULL */
    CUcontext context;             /* the context that frees this memory at its end, or NULL */
    unsigned references, mappings; /* the numbers of the handle's references and mappings */
    unsigned releasing;            /* the number of running releases of the handle */
};

struct mapping {
    struct weir_plain_record *record;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_map blocks;   /* records by address */
static struct weir_map handles;  /* records by handle */
static struct weir_map mappings; /* each value is a struct mapping * */
/* Maps a code address to 2 plus its index in `callers`, or to 1 if the address has no entry in `callers`. */
static struct weir_map places;
static struct weir_plain_figures sums;
static struct weir_plain_caller callers[MOST_CALLERS] = {{.name = "(others)"}};
static int caller_count = 1;
static uint64_t graphs[MOST_DEVICES];   /* bytes by device, as last reported by the driver */
static uint64_t captured[MOST_DEVICES]; /* bytes captured since the driver's last report */
static atomic_int any_graphs;
static _Atomic pid_t recording_process;

/* Returns 1 if this process has recorded memory, 0 if not or in a child of fork, where `lock` may stay locked. */
static int has_records_here(void) {
    pid_t by = atomic_load_explicit(&recording_process, memory_order_relaxed);

    return by != 0 && by == getpid();
}

/* ---- callers -------------------------------------------------------------------------------------- */

/* Returns 1 if the library only passes calls of other libraries to the driver, else 0. */
static int is_pass_through(const char *name) {
    static const char *const parts[] = {"libweir",  "libcuda.so", "libcudart", "libc.so",
                                        "ld-linux", "libpthread", "libnvrtc"};

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strncmp(name, parts[i], strlen(parts[i])) == 0)
            return 1;
    return 0;
}

struct named {
    uintptr_t code;
    char *name;
};

static int name_if_object_has_code(struct dl_phdr_info *object, size_t bytes, void *context) {
    const struct named *named = context;
    int is_in = 0;

    (void)bytes;
    for (int i = 0; i < object->dlpi_phnum && !is_in; i++)
        is_in = object->dlpi_phdr[i].p_type == PT_LOAD &&
                named->code - object->dlpi_addr - object->dlpi_phdr[i].p_vaddr <
                    object->dlpi_phdr[i].p_memsz;
    if (is_in) {
        const char *path = object->dlpi_name[0] ? object->dlpi_name : program_invocation_name;
        const char *slash = strrchr(path, '/');

        path = slash ? slash + 1 : path;
        if (!is_pass_through(path))
            snprintf(named->name, WEIR_PLAIN_NAME, "%.31s", path);
    }
    return is_in;
}

/* Writes the name of the program or library that contains `code`, or "". */
static void name_object(void *code, char name[WEIR_PLAIN_NAME]) {
    name[0] = '\0';
    (void)dl_iterate_phdr(name_if_object_has_code, &(struct named){(uintptr_t)code, name});
}

/* The first call of backtrace() loads a library and takes the dynamic linker's lock, which no request may do. */
static __attribute__((constructor)) void load_unwinder(void) {
    void *frame;

    (void)backtrace(&frame, 1);
}

/* Returns the library's index in `callers`, or OTHER_CALLER if the table is full.  The caller holds `lock`. */
static int number_caller(const char *name) {
    for (int i = 0; i < caller_count; i++)
        if (strcmp(callers[i].name, name) == 0)
            return i;
    if (caller_count == MOST_CALLERS)
        return OTHER_CALLER;
    memcpy(callers[caller_count].name, name, WEIR_PLAIN_NAME);
    return caller_count++;
}

/* Returns the index in `callers` of the library that requests memory, or OTHER_CALLER. */
static int find_caller(void) {
    void *frames[FRAMES];
    int depth = backtrace(frames, FRAMES), caller = -1;

    for (int i = 1; i < depth && caller < 0; i++) {
        char name[WEIR_PLAIN_NAME];
        uintptr_t known;
        int is_known;

        pthread_mutex_lock(&lock);
        is_known = weir__map_get(&places, (uintptr_t)frames[i], &known);
        pthread_mutex_unlock(&lock);
        if (!is_known) {
            name_object(frames[i], name);
            pthread_mutex_lock(&lock);
            known = name[0] ? (uintptr_t)number_caller(name) + 2 : 1;
            (void)weir__map_put(&places, (uintptr_t)frames[i], known);
            pthread_mutex_unlock(&lock);
        }
        if (known > 1)
            caller = (int)known - 2;
    }
    return caller < 0 ? OTHER_CALLER : caller;
}

/* ---- sums ----------------------------------------------------------------------------------------- */

/* Adds `more` bytes to the sums of the record's kind and caller, and subtracts `less`.  The caller holds `lock`. */
static void add_to_sums(const struct weir_plain_record *r, uint64_t more, uint64_t less) {
    sums.kind[r->kind] += more - less;
    callers[r->caller].bytes += more - less;
}

static int by_bytes(const void *one, const void *other) {
    const struct weir_plain_caller *a = one, *b = other;

    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

void weir__plain_read(struct weir_plain_figures *out) {
    struct weir_plain_caller all[MOST_CALLERS];
    int count;

    pthread_mutex_lock(&lock);
    *out = sums;
    memcpy(all, callers, sizeof all);
    count = caller_count;
    pthread_mutex_unlock(&lock);
    qsort(all, (size_t)count, sizeof all[0], by_bytes);
    for (int i = 0; i < WEIR_PLAIN_CALLERS; i++)
        if (i < count && all[i].bytes > 0)
            out->caller[i] = all[i];
}

/* ---- requests ------------------------------------------------------------------------------------- */

static CUdevice current_device(void) {
    CUdevice device = -1;

    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1;
}

/* Waits 5 ms for the driver to free a killed process's memory.  Returns 1, or 0 if there is no reason to wait. */
static int wait_for_killed_process(const struct weir_plain *p) {
    if (!p->group || weir__clock_ns() - p->began >= ENDING_NS || weir__group_recover(p->group) == 0)
        return 0;
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    return 1;
}

/* Frees device memory for a request, but frees idle memory only once, since frees by other threads could otherwise keep
 * the request in a loop.  Returns 1 if memory may have become free, else 0. */
static int find_room(struct weir_plain *p) {
    int has_trimmed = p->has_trimmed;

    p->has_trimmed = 1;
    return (!has_trimmed && weir__make_room(NULL)) || wait_for_killed_process(p) ||
           weir__drop_in_ask_for_memory(p->device, p->bytes, p->began);
}

static void write_failure_statistics(void) {
    if (weir__served_known() > 0)
        weir__report_failure();
}

static int reserve_in_group(struct weir_plain *p) {
    while (!weir__group_charge(p->group, p->kind, p->bytes))
        if (p->bytes > weir__group_limit(p->group) || !find_room(p))
            return 0;
    /* If the driver's allocation then fails, find_room() may free idle memory once more. */
    p->has_trimmed = 0;
    return 1;
}

int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes) {
    int refused, may;

    *p = (struct weir_plain){.kind = kind, .device = device, .bytes = bytes};
    if (bytes == 0 || !begin_serving())
        return 1;
    if (device < 0)
        p->device = current_device();
    /* The driver will reject an invalid device. */
    if (p->device < 0 || p->device >= MOST_DEVICES) {
        end_serving();
        return 1;
    }
    p->is_of_program = 1;
    p->began = weir__clock_ns();
    p->group = weir__drop_in_group(p->device, &refused);
    may = p->group ? reserve_in_group(p) : !refused;
    if (!may && p->group)
        weir__drop_in_log_group(p->group, p->device, weir__group_kind_word(kind), bytes);
    if (!may)
        write_failure_statistics();
    end_serving();
    return may;
}

int weir__plain_make_room(struct weir_plain *p, CUresult result) {
    int any = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && p->is_of_program && begin_serving()) {
        any = find_room(p);
        if (!any)
            write_failure_statistics();
        end_serving();
    }
    return any;
}

/* Subtracts the record's bytes from the sums, and deletes the record.  The caller holds `lock`. */
static void delete_record(struct weir_plain_record *r) {
    add_to_sums(r, 0, r->bytes);
    if (r->group)
        weir__group_uncharge(r->group, r->kind, r->bytes);
    free(r);
}

/* Deletes a handle's record if the record has no references and no mappings.  The caller holds `lock`. */
static void delete_unused_record(struct weir_plain_record *r) {
    if (r->references == 0 && r->mappings == 0)
        delete_record(r);
}

/* Deletes the record of old memory whose address or handle the driver has just reused.  The caller holds `lock`. */
static void delete_reused_record(struct weir_map *map, uint64_t key) {
    struct weir_plain_record *old;
    uintptr_t found;

    if (!weir__map_remove(map, key, &found))
        return;
    old = (struct weir_plain_record *)found;
    old->references = old->releasing;
    delete_unused_record(old);
}

/* Records new memory.  Returns 1 on success, 0 if there is no host memory. */
static int record_plain(const struct weir_plain *p, uint64_t key, size_t bytes, int caller) {
    struct weir_plain_record *r = malloc(sizeof *r);
    int is_handle = p->kind == WEIR_GROUP_CREATE, is_recorded;
    struct weir_map *map = is_handle ? &handles : &blocks;
    CUcontext context = NULL;

    if (!r)
        return 0;
    if (p->kind == WEIR_GROUP_ALLOC || p->kind == WEIR_GROUP_MANAGED)
        (void)REAL(cuCtxGetCurrent)(&context);
    atomic_store(&recording_process, getpid());
    *r = (struct weir_plain_record){.bytes = bytes,
                                    .device = p->device,
                                    .caller = caller,
                                    .kind = p->kind,
                                    .group = p->group,
                                    .context = context,
                                    .references = (unsigned)is_handle};
    pthread_mutex_lock(&lock);
    delete_reused_record(map, key);
    is_recorded = weir__map_put(map, key, (uintptr_t)r);
    if (is_recorded)
        add_to_sums(r, bytes, 0);
    pthread_mutex_unlock(&lock);
    if (!is_recorded)
        free(r);
    return is_recorded;
}

static void begin_show(void) {
    static atomic_int has_begun;

    if (atomic_load_explicit(&has_begun, memory_order_relaxed) || !begin_serving())
        return;
    atomic_store(&has_begun, 1);
    weir__show_begin();
    end_serving();
}

static void count_captured_bytes(const struct weir_plain *p) {
    atomic_store(&recording_process, getpid());
    pthread_mutex_lock(&lock);
    captured[p->device] += p->bytes;
    sums.kind[WEIR_GROUP_GRAPH] += p->bytes;
    pthread_mutex_unlock(&lock);
    atomic_store(&any_graphs, 1);
}

void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes) {
    uint64_t counted = 0;

    if (!p->is_of_program)
        return;
    if (result == CUDA_SUCCESS && p->kind == WEIR_GROUP_GRAPH) {
        count_captured_bytes(p);
        return;
    }
    if (result == CUDA_SUCCESS && record_plain(p, key, bytes, find_caller())) {
        counted = bytes;
        begin_show();
    }
    if (!p->group)
        return;
    if (counted > p->bytes)
        weir__group_charge_unlimited(p->group, p->kind, counted - p->bytes);
    else
        weir__group_uncharge(p->group, p->kind, p->bytes - counted);
}

/* ---- frees ---------------------------------------------------------------------------------------- */

/* Removes the block's record before the driver frees the block, because another thread may then get the address. */
struct weir_plain_record *weir__plain_freeing(uint64_t key) {
    uintptr_t found = 0;

    if (!has_records_here())
        return NULL;
    pthread_mutex_lock(&lock);
    (void)weir__map_remove(&blocks, key, &found);
    pthread_mutex_unlock(&lock);
    return (struct weir_plain_record *)found;
}

void weir__plain_freed(struct weir_plain_record *r, uint64_t key, CUresult result) {
    if (!r)
        return;
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS)
        delete_record(r);
    else /* cannot fail: the removed record left room in the map */
        (void)weir__map_put(&blocks, key, (uintptr_t)r);
    pthread_mutex_unlock(&lock);
}

/* Removes the handle's record before the last release, because the driver may then reuse the handle. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle) {
    struct weir_plain_record *r;
    uintptr_t found = 0;

    if (!has_records_here())
        return NULL;
    pthread_mutex_lock(&lock);
    (void)weir__map_get(&handles, handle, &found);
    r = (struct weir_plain_record *)found;
    if (r && ++r->releasing == r->references)
        (void)weir__map_remove(&handles, handle, NULL);
    pthread_mutex_unlock(&lock);
    return r;
}

void weir__plain_released(struct weir_plain_record *r, CUmemGenericAllocationHandle handle,
                          CUresult result) {
    if (!r)
        return;
    pthread_mutex_lock(&lock);
    r->releasing--;
    if (result == CUDA_SUCCESS) {
        r->references--;
        delete_unused_record(r);
    } else {
        (void)weir__map_put(&handles, handle, (uintptr_t)r);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns the mapping that contains the address, or NULL.  The caller holds `lock`. */
static struct mapping *mapping_of(uint64_t address) {
    uintptr_t found;

    if (weir__map_get(&mappings, address, &found))
        return (struct mapping *)found;
    for (size_t i = 0; i < mappings.capacity; i++) {
        const struct weir_map_slot *slot = &mappings.slots[i];

        if (slot->key != 0 && address - slot->key < ((struct mapping *)slot->value)->bytes)
            return (struct mapping *)slot->value;
    }
    return NULL;
}

void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address) {
    struct mapping *m;
    uintptr_t found;

    if (!has_records_here())
        return;
    pthread_mutex_lock(&lock);
    m = mapping_of(address);
    if (weir__map_get(&handles, handle, &found))
        ((struct weir_plain_record *)found)->references++;
    else if (m && weir__map_put(&handles, handle, (uintptr_t)m->record))
        m->record->references++;
    pthread_mutex_unlock(&lock);
}

void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes) {
    struct mapping *m = has_records_here() ? malloc(sizeof *m) : NULL;
    uintptr_t found;

    if (!m)
        return;
    pthread_mutex_lock(&lock);
    if (weir__map_get(&handles, handle, &found)) {
        *m = (struct mapping){(struct weir_plain_record *)found, bytes};
        if (weir__map_put(&mappings, address, (uintptr_t)m)) {
            m->record->mappings++;
            m = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    free(m);
}

/* One call of the driver may unmap several adjacent mappings. */
void weir__plain_unmapped(uint64_t address, size_t bytes) {
    uint64_t end = address + bytes;
    uintptr_t found;

    if (!has_records_here())
        return;
    pthread_mutex_lock(&lock);
    while (address < end && weir__map_remove(&mappings, address, &found)) {
        struct mapping *m = (struct mapping *)found;

        address += m->bytes;
        m->record->mappings--;
        delete_unused_record(m->record);
        free(m);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- graphs --------------------------------------------------------------------------------------- */

int weir__plain_any_graphs(void) {
    return atomic_load_explicit(&any_graphs, memory_order_relaxed);
}

/* Records that the device's graphs use `now` bytes, as the driver reports.  The caller holds `lock`. */
static void set_graph_bytes(CUdevice device, uint64_t now) {
    struct weir_group *g = weir__drop_in_group_of(device);
    uint64_t before = graphs[device] + captured[device];

    graphs[device] = now;
    captured[device] = 0;
    sums.kind[WEIR_GROUP_GRAPH] += now - before;
    if (g && now > before)
        weir__group_charge_unlimited(g, WEIR_GROUP_GRAPH, now - before);
    else if (g)
        weir__group_uncharge(g, WEIR_GROUP_GRAPH, before - now);
}

void weir__plain_query_graphs(CUdevice device) {
    uint64_t now = 0;

    if (device < 0)
        device = current_device();
    if (device < 0 || device >= MOST_DEVICES ||
        REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) !=
            CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    set_graph_bytes(device, now);
    pthread_mutex_unlock(&lock);
}

/* ---- contexts ------------------------------------------------------------------------------------- */

/* Deletes records of the context's memory, or of the device's memory if `context` is NULL.  The caller holds `lock`. */
static void delete_records_of_context(CUcontext context, CUdevice device) {
    for (size_t i = 0; i < blocks.capacity;) {
        struct weir_map_slot *slot = &blocks.slots[i];
        struct weir_plain_record *r = (struct weir_plain_record *)slot->value;

        if (slot->key != 0 && (context ? r->context == context : r->device == device)) {
            /* Keeps `i`, because the removal may move another entry into this slot. */
            (void)weir__map_remove(&blocks, slot->key, NULL);
            delete_record(r);
        } else {
            i++;
        }
    }
}

void weir__plain_context_ended(CUcontext context) {
    if (!context || !has_records_here())
        return;
    pthread_mutex_lock(&lock);
    delete_records_of_context(context, -1);
    pthread_mutex_unlock(&lock);
}

void weir__plain_lost(CUdevice device) {
    if (!has_records_here() || device < 0 || device >= MOST_DEVICES)
        return;
    pthread_mutex_lock(&lock);
    delete_records_of_context(NULL, device);
    set_graph_bytes(device, 0);
    pthread_mutex_unlock(&lock);
}
