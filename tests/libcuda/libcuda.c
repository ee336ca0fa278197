/* SPDX-License-Identifier: MIT */
/* libcuda.c: a libcuda.so.1 whose device is the device model.  Only tests use it; they find it by LD_LIBRARY_PATH.
 *
 * Programs that know nothing of weir run on it.  If weir is in such a program, weir opens this library like any driver,
 * and has the program's devices.  The library exports NVIDIA's names for all that the model can do: the entries of
 * weir's table, other calls of programs (model_program.h), plain copies and fills, and the two resolvers.
 *
 * Entries with a stream have a second form, _ptsz (plain copies and fills: _ptds), in which stream 0 is the thread's
 * per-thread default stream.  A resolver returns that form for flags 2.  WEIR_MODEL_DEVICES and WEIR_MODEL_PROFILE set
 * the model up.  When a process ends, the library adds a line for each entry, with the number of its calls, to the file
 * that WEIR_TEST_CALLS names.
 *
 * Drivers do not have the following calls.  After cuModelFail, the k-th call of an entry from now does nothing and
 * returns `result'.  After cuModelStop, calls of an entry never return; cuModelStopped returns their number.
 *
 * Must not know: weir above driver.h; the program that loads the library. */
#include "driver/driver.h"
#include "driver/cuda_abi.h"
#include "driver/model/model.h"
#include "driver/model/model_program.h"
#include "driver/model/model_inside.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { FLAG_PER_THREAD = 2 }; /* flags of a resolver; 0 and 1 mean legacy */
enum { STATUS_SUCCESS, STATUS_NOT_FOUND, STATUS_VERSION };

/* ---- The model ---- */

static const struct weir_driver *driver;
static pid_t maker;

static void open_model_once(void) {
    struct weir_driver_failure failure;

    driver = weir__driver_model(&failure);
    maker = getpid();
}

/* Writes the number of calls of each entry.  A child that forked but did not start another program writes nothing. */
__attribute__((destructor)) static void tell_calls(void) {
    const char *path = getenv("WEIR_TEST_CALLS");
    FILE *file = path && driver && getpid() == maker ? fopen(path, "a") : NULL;

    if (!file)
        return;
#define TELL(group, name, symbol, version, params, args)                                           \
    fprintf(file, "%s %" PRIu64 "\n", #name, weir__model_calls(WEIR_ENTRY_##name));
    WEIR_DRIVER_ENTRIES(TELL)
#undef TELL
    fclose(file);
}

/* Returns NULL if the model cannot be made, for a bad setting or lack of memory. */
static const struct weir_driver *model(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_model_once);
    return driver;
}

static int model_version(void) {
    return model() ? model()->version : 0;
}

static inline CUstream per_thread_if_null(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

/* ---- Entries with a second form ---- */

#define SECOND(first, second, ...) second
#define IS(...) SECOND(__VA_ARGS__, 0, 0)
#define JOIN(a, b) a##b
#define CHOOSE(yes) JOIN(CHOOSE_, yes)
#define CHOOSE_0(a, b) b
#define CHOOSE_1(a, b) a
#define YES ~, 1

#define STREAM_cuMemAllocFromPoolAsync YES
#define STREAM_cuMemAllocAsync YES
#define STREAM_cuMemFreeAsync YES
#define STREAM_cuStreamSynchronize YES
#define STREAM_cuStreamQuery YES
#define STREAM_cuStreamGetCtx YES
#define STREAM_cuStreamGetFlags YES
#define STREAM_cuStreamGetId YES
#define STREAM_cuStreamWaitEvent YES
#define STREAM_cuStreamIsCapturing YES
#define STREAM_cuStreamBeginCapture YES
#define STREAM_cuStreamEndCapture YES
#define STREAM_cuEventRecord YES
#define STREAM_cuMemsetD8Async YES
#define STREAM_cuMemsetD32Async YES
#define STREAM_cuMemcpyHtoDAsync YES
#define STREAM_cuMemcpyDtoHAsync YES
#define STREAM_cuGraphLaunch YES
#define STREAM_cuLaunchKernel YES
#define STREAM_cuLaunchHostFunc YES

#define HAS_STREAM(name) IS(STREAM_##name)

/* ---- Calls that never return ---- */

EXPORT int cuModelStop(const char *entry);
EXPORT int cuModelStopped(void);

static atomic_int stops = -1; /* an entry, or -1 for none */
static atomic_int stopped;

/* Makes each later call of the entry wait for ever.  Returns 0 if there is no such entry, otherwise 1. */
int cuModelStop(const char *entry) {
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        if (strcmp(weir__driver_entry_name((enum weir_driver_entry)i), entry) == 0) {
            atomic_store(&stops, i);
            return 1;
        }
    return 0;
}

int cuModelStopped(void) {
    return atomic_load(&stopped);
}

static void stop_in(int entry) {
    if (atomic_load_explicit(&stops, memory_order_relaxed) != entry)
        return;
    atomic_fetch_add(&stopped, 1);
    for (;;)
        pause();
}

/* ---- The entries of weir's table ---- */

#define DEFINE(name, suffix, params, enter, call)                                                  \
    EXPORT CUresult exported_##name params __asm__(suffix);                                        \
    CUresult exported_##name params {                                                              \
        enter;                                                                                     \
        return call;                                                                               \
    }

#define NOTHING (void)0
#define FROM_TABLE(name, args)                                                                     \
    (!model() ? CUDA_ERROR_NO_DEVICE : !driver->name ? CUDA_ERROR_NOT_SUPPORTED : driver->name args)
#define OWN_STREAM(name, symbol, params, call)                                                     \
    DEFINE(name##_ptsz, symbol "_ptsz", params, stream = per_thread_if_null(stream), call)
#define NO_OWN_STREAM(name, symbol, params, call)

#define TABLE_ENTRY(group, name, symbol, version, params, args)                                    \
    DEFINE(name, symbol, params, stop_in(WEIR_ENTRY_##name), FROM_TABLE(name, args))               \
    CHOOSE(HAS_STREAM(name))                                                                       \
    (OWN_STREAM, NO_OWN_STREAM)(name, symbol, params, FROM_TABLE(name, args))
WEIR_DRIVER_ENTRIES(TABLE_ENTRY)

/* ---- Further calls of programs ---- */

#define FROM_MODEL(name, args) (model() ? weir__program_##name args : CUDA_ERROR_NO_DEVICE)

#define PROGRAM_ENTRY(name, like, symbol, version, params, args)                                   \
    DEFINE(name, symbol, params, NOTHING, FROM_MODEL(name, args))                                  \
    CHOOSE(HAS_STREAM(name))                                                                       \
    (OWN_STREAM, NO_OWN_STREAM)(name, symbol, params, FROM_MODEL(name, args))
WEIR_PROGRAM_ENTRIES(PROGRAM_ENTRY)

/* ---- Copies and fills on the default stream ---- */

/* Waits for the end of a copy.  A fill of device memory is not waited for. */
static CUresult wait_after(CUresult result, CUstream stream) {
    return result == CUDA_SUCCESS ? driver->cuStreamSynchronize(stream) : result;
}

static CUresult copy_in(CUdeviceptr block, const void *host, size_t bytes, CUstream stream) {
    return wait_after(FROM_TABLE(cuMemcpyHtoDAsync, (block, host, bytes, stream)), stream);
}

static CUresult copy_out(void *host, CUdeviceptr block, size_t bytes, CUstream stream) {
    return wait_after(FROM_TABLE(cuMemcpyDtoHAsync, (host, block, bytes, stream)), stream);
}

static CUresult fill_bytes(CUdeviceptr block, unsigned char value, size_t bytes, CUstream stream) {
    return FROM_TABLE(cuMemsetD8Async, (block, value, bytes, stream));
}

static CUresult fill_words(CUdeviceptr block, unsigned int value, size_t count, CUstream stream) {
    return FROM_MODEL(cuMemsetD32Async, (block, value, count, stream));
}

/* X(base name, exported symbol, first version, (parameters), call with a stream) */
/* clang-format off */
#define PLAIN_ENTRIES(X)                                                                           \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", 3020,                                                       \
      (CUdeviceptr block, const void *host, size_t bytes), copy_in(block, host, bytes, stream))    \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", 3020,                                                       \
      (void *host, CUdeviceptr block, size_t bytes), copy_out(host, block, bytes, stream))         \
    X(cuMemsetD8, "cuMemsetD8_v2", 3020,                                                           \
      (CUdeviceptr block, unsigned char value, size_t bytes),                                      \
      fill_bytes(block, value, bytes, stream))                                                     \
    X(cuMemsetD32, "cuMemsetD32_v2", 3020,                                                         \
      (CUdeviceptr block, unsigned int value, size_t count),                                       \
      fill_words(block, value, count, stream))
/* clang-format on */

#define PLAIN_ENTRY(name, symbol, version, params, call)                                           \
    DEFINE(name, symbol, params, CUstream stream = NULL, call)                                     \
    DEFINE(name##_ptds, symbol "_ptds", params, CUstream stream = per_thread_if_null(NULL), call)
PLAIN_ENTRIES(PLAIN_ENTRY)

/* ---- Other forms of the model's calls ---- */

#define WHOLE_ROW ((size_t)512)

/* Rounds rows up to a multiple of WHOLE_ROW bytes, and allocates them. */
static CUresult in_rows(CUdeviceptr *block, size_t *pitch, size_t width, size_t height) {
    if (!pitch || width > SIZE_MAX - WHOLE_ROW)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + WHOLE_ROW - 1) / WHOLE_ROW * WHOLE_ROW;
    if (height > 0 && *pitch > SIZE_MAX / height)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return FROM_TABLE(cuMemAlloc, (block, *pitch * height));
}

/* X(symbol, base name, first version, (parameters), call).  The host cannot reach managed memory here.  A capture or
 * recapture to a graph goes to a new graph, which has only the captured work.  A recapture is not compared with the old
 * graph. */
/* clang-format off */
#define OTHER_FORMS(X)                                                                             \
    X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020,                                                   \
      (CUdeviceptr *block, size_t *pitch, size_t width, size_t height, unsigned int element),      \
      ((void)element, in_rows(block, pitch, width, height)))                                       \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000,                                                  \
      (CUdeviceptr *block, size_t bytes, unsigned int flags),                                      \
      ((void)flags, FROM_TABLE(cuMemAlloc, (block, bytes))))
#define OTHER_STREAM_FORMS(X)                                                                      \
    X(cuStreamBeginCapture, cuStreamBeginCapture, 10000, (CUstream stream),                        \
      FROM_TABLE(cuStreamBeginCapture, (stream, CU_STREAM_CAPTURE_MODE_GLOBAL)))                   \
    X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030,                             \
      (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count,         \
       CUstreamCaptureMode mode),                                                                  \
      ((void)graph, (void)nodes, (void)edges, count > 0 ? CUDA_ERROR_NOT_SUPPORTED                 \
           : FROM_TABLE(cuStreamBeginCapture, (stream, mode))))                                    \
    X(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, 13030,                         \
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback, void *data),      \
      ((void)callback, (void)data, !graph ? CUDA_ERROR_INVALID_VALUE                               \
           : FROM_TABLE(cuStreamBeginCapture, (stream, mode))))
/* clang-format on */

#define OTHER_FORM(symbol, name, version, params, call)                                            \
    DEFINE(form_##symbol, #symbol, params, NOTHING, call)
#define OTHER_STREAM_FORM(symbol, name, version, params, call)                                     \
    DEFINE(form_##symbol, #symbol, params, NOTHING, call)                                          \
    DEFINE(form_##symbol##_ptsz, #symbol "_ptsz", params, stream = per_thread_if_null(stream), call)
OTHER_FORMS(OTHER_FORM)
OTHER_STREAM_FORMS(OTHER_STREAM_FORM)

/* ---- Reset of a primary context ---- */

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);

/* Resets the context as far as a correct program can observe: work completes, memory of pools stays, plain memory is
 * freed and its addresses are used again.  A program may not use its old streams and events, which stay here. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    CUcontext context, popped;
    CUresult result = FROM_TABLE(cuDevicePrimaryCtxRetain, (&context, device));

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS) {
        result = driver->cuCtxSynchronize();
        (void)driver->cuCtxPopCurrent(&popped);
        weir__model_lock();
        weir__model_direct_drop_device(&weir__model.devices[device]);
        weir__model_unlock();
    }
    (void)driver->cuDevicePrimaryCtxRelease(device);
    return result;
}

/* ---- Nodes of graphs ---- */

EXPORT CUresult cuGraphAddMemAllocNode(void *node, CUgraph graph, const void *after, size_t count,
                                       struct weir_alloc_node *alloc);
EXPORT CUresult cuGraphAddNode(void *node, CUgraph graph, const void *after, size_t count,
                               struct weir_any_node *any);
EXPORT CUresult cuGraphAddNode_v2(void *node, CUgraph graph, const void *after, const void *edges,
                                  size_t count, struct weir_any_node *any);

/* Adds the node after all nodes of the graph, whatever `after` says.  The node gets no handle. */
CUresult cuGraphAddMemAllocNode(void *node, CUgraph graph, const void *after, size_t count,
                                struct weir_alloc_node *alloc) {
    (void)node, (void)after, (void)count;
    return weir__model_graph_add(graph, alloc->pool.location.id, alloc->bytes, &alloc->block);
}

CUresult cuGraphAddNode(void *node, CUgraph graph, const void *after, size_t count,
                        struct weir_any_node *any) {
    return any->type == WEIR_NODE_ALLOC
               ? cuGraphAddMemAllocNode(node, graph, after, count, &any->alloc)
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGraphAddNode_v2(void *node, CUgraph graph, const void *after, const void *edges,
                           size_t count, struct weir_any_node *any) {
    (void)edges;
    return cuGraphAddNode(node, graph, after, count, any);
}

/* ---- Green contexts ---- */

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, void *resource, unsigned type);
EXPORT CUresult cuDevResourceGenerateDesc(void **descriptor, void *resources, unsigned count);
EXPORT CUresult cuGreenCtxCreate(void **context, void *descriptor, CUdevice device, unsigned flags);
EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, void *context, unsigned flags,
                                       int priority);
EXPORT CUresult cuGreenCtxDestroy(void *context);

/* Here a resource is always the whole device, and the descriptor is the resource itself. */
CUresult cuDeviceGetDevResource(CUdevice device, void *resource, unsigned type) {
    (void)type;
    memcpy(resource, &device, sizeof device);
    return model_version() < 12040 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(void **descriptor, void *resources, unsigned count) {
    *descriptor = resources;
    return count == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The handle of a green context is also the handle of its context here. */
CUresult cuGreenCtxCreate(void **context, void *descriptor, CUdevice device, unsigned flags) {
    struct model_context *green = &weir__model.devices[device].green;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    (void)descriptor, (void)flags;
    weir__model_lock();
    if (atomic_load(&green->retained) == 0) {
        green->device = device;
        green->legacy = weir__model_stream_make(green, CU_STREAM_DEFAULT);
        if (green->legacy) {
            atomic_store(&green->retained, 1);
            *context = green;
            result = CUDA_SUCCESS;
        }
    }
    weir__model_unlock();
    return result;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, void *context, unsigned flags, int priority) {
    CUresult result = driver->cuCtxPushCurrent(context);

    (void)priority;
    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuStreamCreate(stream, flags);
    (void)driver->cuCtxPopCurrent(&(CUcontext){NULL});
    return result;
}

CUresult cuGreenCtxDestroy(void *context) {
    struct model_context *green = context;

    weir__model_lock();
    weir__model_streams_drop(green);
    green->legacy = NULL;
    atomic_store(&green->retained, 0);
    weir__model_unlock();
    return CUDA_SUCCESS;
}

/* ---- Faults ---- */

EXPORT int cuModelFail(const char *entry, uint64_t k, CUresult result);

/* Makes the k-th call of the entry from now return `result`.  Returns 0 if there is no such entry, otherwise 1. */
int cuModelFail(const char *entry, uint64_t k, CUresult result) {
    for (int i = 0; model() && i < WEIR_ENTRY_COUNT; i++)
        if (strcmp(weir__driver_entry_name((enum weir_driver_entry)i), entry) == 0) {
            weir__model_fail((enum weir_driver_entry)i, k, result, 0);
            return 1;
        }
    return 0;
}

/* ---- The resolvers ---- */

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                                    unsigned *status);
EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags);

/* Two rows with one name are two ABIs.  A caller that names at least the later row's version gets the later row. */
struct row {
    const char *name;
    int version;
    void *legacy, *per_thread; /* equal if there is only one form */
};

/* A cast from function to object pointer is POSIX, not ISO C. */
#define ADDRESS(function) __extension__(void *) function
#define ROW_OWN(name, version)                                                                     \
    {#name, version, ADDRESS(exported_##name), ADDRESS(exported_##name##_ptsz)},
#define ROW_ONE(name, version) {#name, version, ADDRESS(exported_##name), ADDRESS(exported_##name)},
#define TABLE_ROW(group, name, symbol, version, params, args)                                      \
    CHOOSE(HAS_STREAM(name))(ROW_OWN, ROW_ONE)(name, version)
#define PROGRAM_ROW(name, like, symbol, version, params, args)                                     \
    CHOOSE(HAS_STREAM(name))(ROW_OWN, ROW_ONE)(name, version)
#define PLAIN_ROW(name, symbol, version, params, call)                                             \
    {#name, version, ADDRESS(exported_##name), ADDRESS(exported_##name##_ptds)},

#define FORM_ROW(symbol, name, version, params, call)                                              \
    {#name, version, ADDRESS(exported_form_##symbol), ADDRESS(exported_form_##symbol)},
#define STREAM_FORM_ROW(symbol, name, version, params, call)                                       \
    {#name, version, ADDRESS(exported_form_##symbol), ADDRESS(exported_form_##symbol##_ptsz)},

static const struct row rows[] = {
    WEIR_DRIVER_ENTRIES(TABLE_ROW) WEIR_PROGRAM_ENTRIES(PROGRAM_ROW) PLAIN_ENTRIES(PLAIN_ROW)
        OTHER_FORMS(FORM_ROW) OTHER_STREAM_FORMS(STREAM_FORM_ROW){
            "cuDevicePrimaryCtxReset", 11000, ADDRESS(cuDevicePrimaryCtxReset_v2),
            ADDRESS(cuDevicePrimaryCtxReset_v2)},
    {"cuGetProcAddress", 11030, ADDRESS(cuGetProcAddress), ADDRESS(cuGetProcAddress)},
    {"cuGetProcAddress", 12000, ADDRESS(cuGetProcAddress_v2), ADDRESS(cuGetProcAddress_v2)},
};

/* Returns the latest row of that name up to `version`, or NULL.  Sets *known if the driver has a row of that name. */
static const struct row *find_entry_row(const char *name, int version, int *known) {
    const struct row *best = NULL;

    *known = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].version > model_version() || strcmp(rows[i].name, name) != 0)
            continue;
        *known = 1;
        if (rows[i].version <= version && (!best || rows[i].version > best->version))
            best = &rows[i];
    }
    return best;
}

/* CUDA 7.0 brought the second form with per-thread default streams.  For an older version an H200's driver (580)
 * returns nothing, rather than the first form. */
static int is_before_threads(const struct row *row, int version, uint64_t flags) {
    return flags & FLAG_PER_THREAD && row->legacy != row->per_thread && version < 7000;
}

/* CUDA documents that an unknown name, and a name that is newer than the requested version, succeed with NULL, and that
 * a version above the driver's is an invalid value. */
static CUresult resolve(const char *name, void **address, int version, uint64_t flags,
                        unsigned *status) {
    const struct row *row;
    int known;

    if (!name || !address || flags > FLAG_PER_THREAD || !model() || version > model_version())
        return CUDA_ERROR_INVALID_VALUE;
    row = find_entry_row(name, version, &known);
    if (row && is_before_threads(row, version, flags))
        row = NULL;
    *address = !row ? NULL : flags & FLAG_PER_THREAD ? row->per_thread : row->legacy;
    if (status)
        *status = row ? STATUS_SUCCESS : known ? STATUS_VERSION : STATUS_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status) {
    return resolve(name, address, version, flags, status);
}

CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return resolve(name, address, version, flags, NULL);
}
