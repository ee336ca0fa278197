/* SPDX-License-Identifier: MIT */
/* preload_plain.c: the device memory that a program allocates by itself: how much, by which calls, and by which
 * library. weir only counts it.
 *
 * Each request records its bytes under its address or handle.  References and mappings of a handle are counted, since
 * its memory stays until the last of them ends.  A group counts the bytes before the driver is called, and until the
 * driver has freed them.  Captured requests and graph nodes that the program adds are counted when they are made, and
 * from the next launch on by the driver's figure for the device.
 *
 * Locks: `lock` guards the maps and sums; under it only malloc and functions of the group are called.  The caller is
 * found before, without the lock that the dynamic linker holds while it runs constructors: a constructor may wait for a
 * thread that requests memory.
 */
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

/* The longest wait for memory of a process of the group that is ending. */
#define ENDING_NS UINT64_C(2000000000)
enum { FRAMES = 24, MOST_CALLERS = 64, MOST_DEVICES = 64, OTHER_CALLER = 0 };

struct weir_plain_record {
    uint64_t bytes;
    int device, caller;
    enum weir_group_kind kind;
    struct weir_group *group;      /* the group that has counted the bytes, or NULL */
    CUcontext context;             /* the context whose end frees the memory, or NULL */
    unsigned references, mappings; /* the counts of a handle */
    unsigned releasing; /* the number of references whose release the driver executes now */
};

struct mapping {
    struct weir_plain_record *record;
    size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_map blocks;   /* address -> struct weir_plain_record */
static struct weir_map handles;  /* handle -> struct weir_plain_record */
static struct weir_map mappings; /* address -> struct mapping */
static struct weir_map places;   /* address of code -> its caller's number + 1 */
static struct weir_plain_figures sums;
static struct weir_plain_caller callers[MOST_CALLERS] = {{.name = "(others)"}};
static int caller_count = 1;
static uint64_t graphs[MOST_DEVICES];   /* the driver's last figure */
static uint64_t captured[MOST_DEVICES]; /* the bytes that were captured since then */
static atomic_int any_graphs;
static _Atomic pid_t noted_by; /* the process that has noted memory, or 0 */

/* Returns 1 if this process has recorded memory, else 0.  A child of fork has not, and must not wait for the lock. */
static int is_noted_here(void) {
    pid_t by = atomic_load_explicit(&noted_by, memory_order_relaxed);

    return by != 0 && by == getpid();
}

/* ---- who calls ------------------------------------------------------------------------------------ */

/* Returns 1 for a library that only passes calls on, else 0. */
static int passes_on(const char *name) {
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

static int name_if_in(struct dl_phdr_info *object, size_t bytes, void *context) {
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
        if (!passes_on(path))
            snprintf(named->name, WEIR_PLAIN_NAME, "%.31s", path);
    }
    return is_in;
}

/* Writes the name of the object that contains the code, or "" if the object passes calls on or is not known. */
static void name_object(void *code, char name[WEIR_PLAIN_NAME]) {
    name[0] = '\0';
    (void)dl_iterate_phdr(name_if_in, &(struct named){(uintptr_t)code, name});
}

/* Calls backtrace once, since its first call loads a library, for which it takes the dynamic linker's lock. */
static __attribute__((constructor)) void load_unwinder(void) {
    void *frame;

    (void)backtrace(&frame, 1);
}

/* The caller holds the lock. */
static int number_of(const char *name) {
    for (int i = 0; i < caller_count; i++)
        if (strcmp(callers[i].name, name) == 0)
            return i;
    if (caller_count == MOST_CALLERS)
        return OTHER_CALLER;
    memcpy(callers[caller_count].name, name, WEIR_PLAIN_NAME);
    return caller_count++;
}

/* Returns the number of the innermost object that does not only pass the call on. */
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
            known = name[0] ? (uintptr_t)number_of(name) + 2 : 1;
            (void)weir__map_put(&places, (uintptr_t)frames[i], known);
            pthread_mutex_unlock(&lock);
        }
        if (known > 1)
            caller = (int)known - 2;
    }
    return caller < 0 ? OTHER_CALLER : caller;
}

/* ---- sums ----------------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static void add(const struct weir_plain_record *r, uint64_t more, uint64_t less) {
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

/* Waits a moment for a killed process of the group, which still has its memory.  Returns 1 after a pause, 0 if there is
 * no such process or the time is over. */
static int await_ending(const struct weir_plain *p) {
    if (!p->group || weir__clock_ns() - p->began >= ENDING_NS || weir__group_recover(p->group) == 0)
        return 0;
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    return 1;
}

/* Frees idle memory of weir's own allocators, once for each request, since other threads may free memory for ever; then
 * asks other processes.  Returns 1 if any memory was freed, else 0. */
static int find_room(struct weir_plain *p) {
    int has_trimmed = p->has_trimmed;

    p->has_trimmed = 1;
    return (!has_trimmed && weir__make_room(NULL)) || await_ending(p) ||
           weir__drop_in_ask_for_memory(p->device, p->bytes, p->began);
}

/* Writes the statistics, if there are any. */
static void tell_failure(void) {
    if (weir__served_known() > 0)
        weir__report_failure();
}

static int take(struct weir_plain *p) {
    while (!weir__group_take(p->group, p->kind, p->bytes))
        if (p->bytes > weir__group_limit(p->group) || !find_room(p))
            return 0;
    p->has_trimmed = 0; /* the request may trim again if the driver fails */
    return 1;
}

int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes) {
    int refused, may;

    *p = (struct weir_plain){.kind = kind, .device = device, .bytes = bytes};
    if (bytes == 0 || !enter())
        return 1;
    if (device < 0)
        p->device = current_device();
    if (p->device < 0 || p->device >= MOST_DEVICES) { /* the driver reports the error */
        leave();
        return 1;
    }
    p->is_seen = 1;
    p->began = weir__clock_ns();
    p->group = weir__drop_in_group(p->device, &refused);
    may = p->group ? take(p) : !refused;
    if (!may && p->group)
        weir__drop_in_tell_group(p->group, p->device, weir__group_kind_word(kind), bytes);
    if (!may)
        tell_failure();
    leave();
    return may;
}

int weir__plain_may_have_room(struct weir_plain *p, CUresult result) {
    int any = 0;

    if (result == CUDA_ERROR_OUT_OF_MEMORY && p->is_seen && enter()) {
        any = find_room(p);
        if (!any)
            tell_failure();
        leave();
    }
    return any;
}

/* Ends a record whose memory the driver has freed.  The caller holds the lock. */
static void forget(struct weir_plain_record *r) {
    add(r, 0, r->bytes);
    if (r->group)
        weir__group_give(r->group, r->kind, r->bytes);
    free(r);
}

/* Ends the record of a handle without references and mappings.  The caller holds the lock. */
static void forget_unused(struct weir_plain_record *r) {
    if (r->references == 0 && r->mappings == 0)
        forget(r);
}

/* Ends an old record of a reused address or handle, whose memory was freed unseen.  The caller holds the lock. */
static void forget_old(struct weir_map *map, uint64_t key) {
    struct weir_plain_record *old;
    uintptr_t found;

    if (!weir__map_take(map, key, &found))
        return;
    old = (struct weir_plain_record *)found;
    old->references = old->releasing;
    forget_unused(old);
}

/* Records a request.  Returns 1 on success, 0 if there is no host memory. */
static int note(const struct weir_plain *p, uint64_t key, size_t bytes, int caller) {
    struct weir_plain_record *r = malloc(sizeof *r);
    int is_handle = p->kind == WEIR_GROUP_CREATE, is_noted;
    struct weir_map *map = is_handle ? &handles : &blocks;
    CUcontext context = NULL;

    if (!r)
        return 0;
    if (p->kind == WEIR_GROUP_ALLOC || p->kind == WEIR_GROUP_MANAGED)
        (void)REAL(cuCtxGetCurrent)(&context);
    atomic_store(&noted_by, getpid());
    *r = (struct weir_plain_record){.bytes = bytes,
                                    .device = p->device,
                                    .caller = caller,
                                    .kind = p->kind,
                                    .group = p->group,
                                    .context = context,
                                    .references = (unsigned)is_handle};
    pthread_mutex_lock(&lock);
    forget_old(map, key);
    is_noted = weir__map_put(map, key, (uintptr_t)r);
    if (is_noted)
        add(r, bytes, 0);
    pthread_mutex_unlock(&lock);
    if (!is_noted)
        free(r);
    return is_noted;
}

/* Lets `weir top` read this process.  The thread is inside, so that calls of the new thread do not count. */
static void begin_show(void) {
    static atomic_int has_begun;

    if (atomic_load_explicit(&has_begun, memory_order_relaxed) || !enter())
        return;
    atomic_store(&has_begun, 1);
    weir__show_begin();
    leave();
}

static void note_captured(const struct weir_plain *p) {
    atomic_store(&noted_by, getpid());
    pthread_mutex_lock(&lock);
    captured[p->device] += p->bytes;
    sums.kind[WEIR_GROUP_GRAPH] += p->bytes;
    pthread_mutex_unlock(&lock);
    atomic_store(&any_graphs, 1);
}

void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes) {
    uint64_t counted = 0;

    if (!p->is_seen)
        return;
    if (result == CUDA_SUCCESS && p->kind == WEIR_GROUP_GRAPH) {
        note_captured(p);
        return;
    }
    if (result == CUDA_SUCCESS && note(p, key, bytes, find_caller())) {
        counted = bytes;
        begin_show();
    }
    if (!p->group)
        return;
    if (counted > p->bytes)
        weir__group_add(p->group, p->kind, counted - p->bytes);
    else
        weir__group_give(p->group, p->kind, p->bytes - counted);
}

/* ---- frees ---------------------------------------------------------------------------------------- */

/* Removes the record before the driver frees the block, since another thread may get and note the address at once. */
struct weir_plain_record *weir__plain_freeing(uint64_t key) {
    uintptr_t found = 0;

    if (!is_noted_here())
        return NULL;
    pthread_mutex_lock(&lock);
    (void)weir__map_take(&blocks, key, &found);
    pthread_mutex_unlock(&lock);
    return (struct weir_plain_record *)found;
}

void weir__plain_freed(struct weir_plain_record *r, uint64_t key, CUresult result) {
    if (!r)
        return;
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS)
        forget(r);
    else /* the map still has the room that the record had */
        (void)weir__map_put(&blocks, key, (uintptr_t)r);
    pthread_mutex_unlock(&lock);
}

/* Removes the record before the last release, since the handle may then be reused. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle) {
    struct weir_plain_record *r;
    uintptr_t found = 0;

    if (!is_noted_here())
        return NULL;
    pthread_mutex_lock(&lock);
    (void)weir__map_get(&handles, handle, &found);
    r = (struct weir_plain_record *)found;
    if (r && ++r->releasing == r->references)
        (void)weir__map_take(&handles, handle, NULL);
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
        forget_unused(r);
    } else {
        (void)weir__map_put(&handles, handle, (uintptr_t)r);
    }
    pthread_mutex_unlock(&lock);
}

/* Returns the mapping that contains the address, or NULL.  The caller holds the lock. */
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

    if (!is_noted_here())
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
    struct mapping *m = is_noted_here() ? malloc(sizeof *m) : NULL;
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

/* Ends all mappings of the range: one call may unmap several adjacent ones. */
void weir__plain_unmapped(uint64_t address, size_t bytes) {
    uint64_t end = address + bytes;
    uintptr_t found;

    if (!is_noted_here())
        return;
    pthread_mutex_lock(&lock);
    while (address < end && weir__map_take(&mappings, address, &found)) {
        struct mapping *m = (struct mapping *)found;

        address += m->bytes;
        m->record->mappings--;
        forget_unused(m->record);
        free(m);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- graphs --------------------------------------------------------------------------------------- */

int weir__plain_any_graphs(void) {
    return atomic_load_explicit(&any_graphs, memory_order_relaxed);
}

/* The caller holds the lock. */
static void settle_graphs(CUdevice device, uint64_t now) {
    struct weir_group *g = weir__drop_in_group_of(device);
    uint64_t before = graphs[device] + captured[device];

    graphs[device] = now;
    captured[device] = 0;
    sums.kind[WEIR_GROUP_GRAPH] += now - before;
    if (g && now > before)
        weir__group_add(g, WEIR_GROUP_GRAPH, now - before);
    else if (g)
        weir__group_give(g, WEIR_GROUP_GRAPH, before - now);
}

void weir__plain_look_at_graphs(CUdevice device) {
    uint64_t now = 0;

    if (device < 0)
        device = current_device();
    if (device < 0 || device >= MOST_DEVICES ||
        REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) !=
            CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    settle_graphs(device, now);
    pthread_mutex_unlock(&lock);
}

/* ---- contexts ------------------------------------------------------------------------------------- */

/* Ends the records of a context's memory, or of a device's memory if `context` is NULL.  The caller holds the lock. */
static void lose(CUcontext context, CUdevice device) {
    for (size_t i = 0; i < blocks.capacity;) {
        struct weir_map_slot *slot = &blocks.slots[i];
        struct weir_plain_record *r = (struct weir_plain_record *)slot->value;

        if (slot->key != 0 && (context ? r->context == context : r->device == device)) {
            (void)weir__map_take(&blocks, slot->key,
                                 NULL); /* another record may move to this slot */
            forget(r);
        } else {
            i++;
        }
    }
}

void weir__plain_context_ended(CUcontext context) {
    if (!context || !is_noted_here())
        return;
    pthread_mutex_lock(&lock);
    lose(context, -1);
    pthread_mutex_unlock(&lock);
}

/* Forgets the memory of a device whose contexts were reset.  Physical memory outlives contexts. */
void weir__plain_lost(CUdevice device) {
    if (!is_noted_here() || device < 0 || device >= MOST_DEVICES)
        return;
    pthread_mutex_lock(&lock);
    lose(NULL, device);
    settle_graphs(device, 0);
    pthread_mutex_unlock(&lock);
}
