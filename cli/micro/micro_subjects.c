/* SPDX-License-Identifier: MIT */
/* micro_subjects.c: who is measured: the loop alone, the driver's pool, weir, allocators of the host.
 *
 * Allocators of the host are the physical limit: what a thread's cache costs where no driver has to
 * be asked.  They are opened by name, so that the program needs none of them.
 *
 * Must not know: loads, time, output.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "cli/micro/micro.h"

static int refuse(char *why, size_t why_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(char *why, size_t why_bytes, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, why_bytes, format, arguments);
    va_end(arguments);
    return 0;
}

/* ------------------------------------------------------------------ the loop ---- */

static int loop_open(struct micro_instance *instance, char *why, size_t why_bytes) {
    (void)instance;
    (void)why;
    (void)why_bytes;
    return 1;
}

static weir_status loop_alloc(struct micro_instance *instance, size_t bytes, CUstream stream,
                              void **block) {
    (void)bytes;
    (void)stream;
    *block = instance;
    return WEIR_OK;
}

static weir_status loop_free(struct micro_instance *instance, void *block, CUstream stream) {
    (void)stream;
    return block == instance ? WEIR_OK : WEIR_E_NOT_OWNED;
}

/* ---------------------------------------------------------- the driver's pool ---- */

static int raw_close(struct micro_instance *instance, char *why, size_t why_bytes) {
    const struct weir_driver *driver = instance->micro->driver;
    CUresult result = driver->cuMemPoolDestroy(instance->pool);

    return result == CUDA_SUCCESS ||
           refuse(why, why_bytes, "cuMemPoolDestroy: %s", weir__driver_error_name(driver, result));
}

static int raw_open(struct micro_instance *instance, char *why, size_t why_bytes) {
    const struct weir_driver *driver = instance->micro->driver;
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, instance->micro->handle}};
    uint64_t keep = UINT64_MAX;
    CUresult result = driver->cuMemPoolCreate(&instance->pool, &properties);

    if (result != CUDA_SUCCESS)
        return refuse(why, why_bytes, "cuMemPoolCreate: %s",
                      weir__driver_error_name(driver, result));
    result =
        driver->cuMemPoolSetAttribute(instance->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    if (result == CUDA_SUCCESS)
        return 1;
    raw_close(instance, why, why_bytes);
    return refuse(why, why_bytes, "cuMemPoolSetAttribute: %s",
                  weir__driver_error_name(driver, result));
}

static weir_status raw_alloc(struct micro_instance *instance, size_t bytes, CUstream stream,
                             void **block) {
    CUdeviceptr address;
    CUresult result =
        instance->micro->table.cuMemAllocFromPoolAsync(&address, bytes, instance->pool, stream);

    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? WEIR_E_NO_MEMORY : WEIR_E_DRIVER;
    *block = (void *)(uintptr_t)address;
    return WEIR_OK;
}

static weir_status raw_free(struct micro_instance *instance, void *block, CUstream stream) {
    return instance->micro->table.cuMemFreeAsync((CUdeviceptr)(uintptr_t)block, stream) ==
                   CUDA_SUCCESS
               ? WEIR_OK
               : WEIR_E_DRIVER;
}

static int raw_reserve(struct micro_instance *instance, uint64_t *bytes) {
    const struct weir_driver *driver = instance->micro->driver;

    return (driver->capabilities & WEIR_CAP_POOL_FIGURES) &&
           driver->cuMemPoolGetAttribute(instance->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                         bytes) == CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------- weir ---- */

static int public_open(struct micro_instance *instance, char *why, size_t why_bytes) {
    weir_options options = instance->micro->settings.options;
    char message[MICRO_TEXT_BYTES - 48] = "";
    weir_status status;

    options.engine = instance->subject->engine;
    status = weir__allocator_create_on(&instance->micro->table, &options, &instance->allocator,
                                       message, sizeof message);
    return status == WEIR_OK || refuse(why, why_bytes, "the allocator cannot be made: %s",
                                       message[0] ? message : weir_status_message(status));
}

static int public_close(struct micro_instance *instance, char *why, size_t why_bytes) {
    weir_status status = weir_allocator_destroy(instance->allocator);

    return status == WEIR_OK || refuse(why, why_bytes, "the allocator cannot be destroyed: %s",
                                       weir_status_message(status));
}

static weir_status public_alloc(struct micro_instance *instance, size_t bytes, CUstream stream,
                                void **block) {
    return weir_alloc(instance->allocator, bytes, stream, block);
}

static weir_status public_free(struct micro_instance *instance, void *block, CUstream stream) {
    return weir_free(instance->allocator, block, stream);
}

/* Nothing is asked about the stream from here on: it lives and is not captured until it is unbound. */
static weir_status bind_stream(struct micro_instance *instance, CUstream stream) {
    return weir_bind(instance->allocator, stream);
}

static weir_status unbind_stream(struct micro_instance *instance, CUstream stream) {
    return weir_unbind(instance->allocator, stream);
}

static int statistics(struct micro_instance *instance, weir_statistics *out) {
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    return weir_stats(instance->allocator, out) == WEIR_OK;
}

static int public_reserve(struct micro_instance *instance, uint64_t *bytes) {
    weir_statistics figures;
    int known = statistics(instance, &figures);

    *bytes = figures.reserve;
    return known;
}

static int public_host_bytes(struct micro_instance *instance, uint64_t *bytes) {
    weir_statistics figures;
    int known = statistics(instance, &figures);

    *bytes = figures.host_bytes;
    return known;
}

/* ---------------------------------------------------- allocators of the host ---- */

/* The library is never closed: its threads' caches outlive an instance. */
static void *library_of(const struct micro_subject *subject) {
    void *library = NULL;

    for (const char *const *name = subject->library; *name && !library; name++)
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
    return library;
}

int micro_subject_is_there(const struct micro_subject *subject, char *why, size_t why_bytes) {
    void *library;
    const char *error;

    if (!subject->library)
        return 1;
    library = library_of(subject);
    error = library ? NULL : dlerror();
    if (!library)
        return refuse(why, why_bytes, "%s", error ? error : "not found");
    if (!dlsym(library, subject->take_symbol) || !dlsym(library, subject->give_symbol))
        return refuse(why, why_bytes, "it has no %s and %s", subject->take_symbol,
                      subject->give_symbol);
    return 1;
}

static int host_open(struct micro_instance *instance, char *why, size_t why_bytes) {
    const struct micro_subject *subject = instance->subject;
    void *library, *take, *give;

    if (!subject->library) {
        instance->take = malloc;
        instance->give = free;
        return 1;
    }
    if (!micro_subject_is_there(subject, why, why_bytes))
        return 0;
    library = library_of(subject);
    take = dlsym(library, subject->take_symbol);
    give = dlsym(library, subject->give_symbol);
    memcpy(&instance->take, &take, sizeof take); /* C has no cast for this */
    memcpy(&instance->give, &give, sizeof give);
    return 1;
}

static int host_close(struct micro_instance *instance, char *why, size_t why_bytes) {
    (void)why;
    (void)why_bytes;
    if (!instance->subject->library)
        malloc_trim(0); /* what the next case needs */
    return 1;
}

static weir_status host_alloc(struct micro_instance *instance, size_t bytes, CUstream stream,
                              void **block) {
    (void)stream;
    *block = instance->take(bytes);
    return *block ? WEIR_OK : WEIR_E_HOST_MEMORY;
}

static weir_status host_free(struct micro_instance *instance, void *block, CUstream stream) {
    (void)stream;
    instance->give(block);
    return WEIR_OK;
}

/* ------------------------------------------------------------------ the table ---- */

static const char *const mimalloc_names[] = {"libmimalloc.so.3", "libmimalloc.so.2",
                                             "libmimalloc.so", NULL};
static const char *const tcmalloc_names[] = {"libtcmalloc_minimal.so.4", "libtcmalloc.so.4",
                                             "libtcmalloc_minimal.so", NULL};

#define WEIR                                                                                       \
    .place = MICRO_ON_DEVICE, .open = public_open, .close = public_close, .alloc = public_alloc,   \
    .free = public_free, .reserve = public_reserve, .host_bytes = public_host_bytes

#define HOST                                                                                       \
    .place = MICRO_ON_HOST, .open = host_open, .close = host_close, .alloc = host_alloc,           \
    .free = host_free

/* A pool packs; an arena's regions double, and the last one may be as large as all before. */
enum { POOL_NEEDS = 115, ARENA_NEEDS = 230 };

const struct micro_subject micro_subjects[] = {
    {.name = "loop",
     .what = "nothing: what the loop itself costs, in the figures of all others too",
     .place = MICRO_ON_NOTHING,
     .open = loop_open,
     .close = loop_open,
     .alloc = loop_alloc,
     .free = loop_free},
    {.name = "driver",
     .what = "the driver's pool, release threshold max",
     .place = MICRO_ON_DEVICE,
     .needs_percent = POOL_NEEDS,
     .open = raw_open,
     .close = raw_close,
     .alloc = raw_alloc,
     .free = raw_free,
     .reserve = raw_reserve},
    {.name = "pool",
     .what = "weir's pool engine",
     WEIR,
     .engine = WEIR_ENGINE_POOL,
     .needs_percent = POOL_NEEDS},
    {.name = "bfc",
     .was = "arena",
     .what = "weir's bfc engine",
     WEIR,
     .engine = WEIR_ENGINE_BFC,
     .needs_percent = ARENA_NEEDS},
    {.name = "pool-bound",
     .what = "weir's pool engine, streams bound",
     WEIR,
     .engine = WEIR_ENGINE_POOL,
     .needs_percent = POOL_NEEDS,
     .enter = bind_stream,
     .leave = unbind_stream},
    {.name = "bfc-bound",
     .was = "arena-bound",
     .what = "weir's bfc engine, streams bound",
     WEIR,
     .engine = WEIR_ENGINE_BFC,
     .needs_percent = ARENA_NEEDS,
     .enter = bind_stream,
     .leave = unbind_stream},
    {.name = "malloc", .what = "the C library's, on the host", HOST},
    {.name = "mimalloc",
     .what = "libmimalloc, on the host, where installed",
     HOST,
     .library = mimalloc_names,
     .take_symbol = "mi_malloc",
     .give_symbol = "mi_free"},
    {.name = "tcmalloc",
     .what = "libtcmalloc, on the host, where installed",
     HOST,
     .library = tcmalloc_names,
     .take_symbol = "tc_malloc",
     .give_symbol = "tc_free"},
    {.name = NULL},
};

_Static_assert(sizeof micro_subjects / sizeof micro_subjects[0] <= MICRO_SUBJECTS,
               "struct micro has room for all");

const struct micro_subject *micro_subject_find(const char *name) {
    for (const struct micro_subject *s = micro_subjects; s->name; s++)
        if (strcmp(name, s->name) == 0 || (s->was && strcmp(name, s->was) == 0))
            return s;
    return NULL;
}
