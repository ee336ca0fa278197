/* SPDX-License-Identifier: MIT */
/* fake_libcuda.c: a libcuda.so.1 that does nothing, for the loader's tests.
 *
 * Built three times, as the three kinds of driver that a loader meets.  FAKE_RESOLVER is
 *   2  a driver of 12.0 or later: cuGetProcAddress_v2, and a cuGetProcAddress that knows no name, so
 *      that a loader which prefers it finds nothing; no entry is exported;
 *   1  a driver of 11.3 to 11.8: cuGetProcAddress with four arguments; the entries that every
 *      driver has are exported too;
 *   0  a driver of 11.2: no resolver.
 * Every entry exists twice, once for the resolver and once exported, and fake_route tells by which
 * way an address was found.  The environment sets the rest, read at each call:
 *   FAKE_VERSION     what cuDriverGetVersion says, and the newest version that can be asked for
 *   FAKE_INIT        the result of cuInit
 *   FAKE_COUNT       the number of devices
 *   FAKE_UNRESOLVED  an entry (base name) that the resolver does not know
 *   FAKE_STUB        set: every call answers CUDA_ERROR_STUB_LIBRARY
 *
 * Must not know: the loader. */
#include "driver/cuda_abi.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_int init_calls;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);

    return text ? atoi(text) : otherwise;
}

static int fake_version(void) {
    return setting("FAKE_VERSION", FAKE_RESOLVER == 2 ? 13000 : FAKE_RESOLVER == 1 ? 11080 : 11020);
}

static CUresult answer_as_told(const char *name, ...) {
    CUresult result = CUDA_SUCCESS;
    va_list list;

    if (getenv("FAKE_STUB"))
        return CUDA_ERROR_STUB_LIBRARY;
    va_start(list, name);
    if (strcmp(name, "cuInit") == 0) {
        atomic_fetch_add(&init_calls, 1);
        result = (CUresult)setting("FAKE_INIT", CUDA_SUCCESS);
    } else if (strcmp(name, "cuDriverGetVersion") == 0) {
        *va_arg(list, int *) = fake_version();
    } else if (strcmp(name, "cuDeviceGetCount") == 0) {
        *va_arg(list, int *) = setting("FAKE_COUNT", 1);
    } else if (strcmp(name, "cuDeviceGetName") == 0) {
        strcpy(va_arg(list, char *), "fake");
    } else if (strcmp(name, "cuGetErrorName") == 0) {
        if (va_arg(list, CUresult) == CUDA_ERROR_UNKNOWN)
            *va_arg(list, const char **) = "CUDA_ERROR_UNKNOWN";
        else
            result = CUDA_ERROR_INVALID_VALUE;
    }
    va_end(list);
    return result;
}

#define WITH(...) , ##__VA_ARGS__

#define RESOLVED(group, name, symbol, version, params, args)                                       \
    static CUresult resolved_##name params {                                                       \
        return answer_as_told(#name WITH args);                                                    \
    }
WEIR_DRIVER_ENTRIES(RESOLVED)

#if FAKE_RESOLVER < 2
#define EXPORT_BASE(name, symbol, params, args)                                                    \
    EXPORT CUresult exported_##name params __asm__(symbol);                                        \
    CUresult exported_##name params {                                                              \
        return answer_as_told(#name WITH args);                                                    \
    }
#define EXPORT_STREAM_ID(name, symbol, params, args)
#define EXPORT_GRAPH(name, symbol, params, args)
#define EXPORT_KERNEL EXPORT_BASE
#define EXPORT_VIRTUAL EXPORT_BASE
#define EXPORT_PEER EXPORT_BASE
#define EXPORT_IPC EXPORT_BASE
#define EXPORTED(group, name, symbol, version, params, args)                                       \
    EXPORT_##group(name, symbol, params, args)
WEIR_DRIVER_ENTRIES(EXPORTED)
#endif

/* A cast from function to object pointer is POSIX, not ISO C. */
static const struct {
    const char *name;
    int version;
    void *address;
} resolved[] = {
#define ROW(group, name, symbol, version, params, args)                                            \
    {#name, version, __extension__(void *) resolved_##name},
    WEIR_DRIVER_ENTRIES(ROW)};

#define RESOLVED_COUNT (sizeof resolved / sizeof resolved[0])

#if FAKE_RESOLVER > 0
/* Only the version that introduced an entry gets its address, since any other version means another ABI. */
static CUresult find_fake_entry(const char *name, void **address, int version, uint64_t flags) {
    const char *unknown = getenv("FAKE_UNRESOLVED");

    if (getenv("FAKE_STUB"))
        return CUDA_ERROR_STUB_LIBRARY;
    if (version > fake_version() || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *address = NULL;
    for (size_t i = 0; i < RESOLVED_COUNT; i++)
        if (strcmp(name, resolved[i].name) == 0 && version == resolved[i].version &&
            !(unknown && strcmp(name, unknown) == 0))
            *address = resolved[i].address;
    return CUDA_SUCCESS;
}
#endif

#if FAKE_RESOLVER == 2
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                                    unsigned *status);
CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status) {
    CUresult result = find_fake_entry(name, address, version, flags);

    if (status)
        *status = *address ? 0 : 1;
    return result;
}
#endif

#if FAKE_RESOLVER > 0
EXPORT CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags);
CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return find_fake_entry(FAKE_RESOLVER == 1 ? name : "", address, version, flags);
}
#endif

EXPORT const char *fake_route(const void *address);
const char *fake_route(const void *address) {
    for (size_t i = 0; i < RESOLVED_COUNT; i++)
        if (address == resolved[i].address)
            return FAKE_RESOLVER == 2 ? "resolver-2" : "resolver-1";
    return address ? "dlsym" : "none";
}

EXPORT int fake_init_calls(void);
int fake_init_calls(void) {
    return atomic_load(&init_calls);
}
