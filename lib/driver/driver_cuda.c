/* SPDX-License-Identifier: MIT */
/* driver_cuda.c: the driver table of a real device, filled from libcuda.so.1 at run time.
 *
 * weir does not link with libcuda.  So weir starts on machines without a driver, and one build works with every driver
 * from version 11.2 on.  The driver's own resolver (cuGetProcAddress_v2 from 12.0 on, cuGetProcAddress from 11.3 on)
 * finds each entry point by base name and first version, which select the ABI.  weir falls back to dlsym.  The flags of
 * the resolver are 0, so stream 0 is the legacy stream.
 *
 * Before all entry points are found and the version is checked, weir calls only cuDriverGetVersion, so weir can close
 * the library after a failure.  After cuInit the library stays open, since the driver has started threads.
 */
#include "driver/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define LIBRARY "libcuda.so.1"

static void sleep_ns(uint64_t ns) {
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec += (long)(ns % 1000000000u);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* ---- the entry points ---- */

typedef CUresult (*resolver_v2)(const char *name, void **entry, int version, uint64_t flags,
                                unsigned *status);
typedef CUresult (*resolver_v1)(const char *name, void **entry, int version, uint64_t flags);

struct library {
    void *handle;
    resolver_v2 resolve_v2; /* cuGetProcAddress_v2, or NULL */
    resolver_v1 resolve_v1; /* cuGetProcAddress if there is no cuGetProcAddress_v2, or NULL */
};

/* All driver calls of weir.  `group` is the capability bit of the call, or 0 if every driver must export it. */
static const struct entry {
    unsigned group;
    int version;
    const char *name;
    const char *symbol;
    size_t offset;
} entries[] = {
#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    {WEIR_CAP_##group, version, #name, symbol, offsetof(struct weir_driver, name)},
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};

/* Copies a data pointer into a function pointer, which POSIX allows but an ISO C cast does not. */
#define COPY_POINTER(to, from) memcpy((to), (from), sizeof(void *))

/* Finds cuGetProcAddress.  Returns CUDA_ERROR_STUB_LIBRARY for the stub library of the CUDA toolkit, in which every
 * call returns this error; else 0. */
static CUresult find_resolver(struct library *library) {
    void *symbol = dlsym(library->handle, "cuGetProcAddress_v2"), *entry = NULL;
    CUresult result = CUDA_SUCCESS;

    if (symbol) {
        COPY_POINTER(&library->resolve_v2, &symbol);
        result = library->resolve_v2("", &entry, WEIR_DRIVER_OLDEST, 0, NULL);
    } else if ((symbol = dlsym(library->handle, "cuGetProcAddress"))) {
        COPY_POINTER(&library->resolve_v1, &symbol);
        result = library->resolve_v1("", &entry, WEIR_DRIVER_OLDEST, 0);
    }
    return result == CUDA_ERROR_STUB_LIBRARY ? result : CUDA_SUCCESS;
}

/* Returns the address of a driver call, or NULL if the library does not export it. */
static void *find_entry(const struct library *library, const struct entry *entry) {
    void *address = NULL;
    CUresult result = CUDA_ERROR_NOT_FOUND;

    if (library->resolve_v2) {
        unsigned status;

        result = library->resolve_v2(entry->name, &address, entry->version, 0, &status);
    } else if (library->resolve_v1) {
        result = library->resolve_v1(entry->name, &address, entry->version, 0);
    }
    if (result == CUDA_SUCCESS && address)
        return address;
    return dlsym(library->handle, entry->symbol);
}

/* Sets all pointers in the table.  Returns the first required call that the library does not export, or NULL. */
static const struct entry *find_entries(const struct library *library, struct weir_driver *table) {
    const struct entry *missing = NULL;

    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *address = find_entry(library, &entries[i]);

        if (address)
            COPY_POINTER((char *)table + entries[i].offset, &address);
        else if (entries[i].group == WEIR_CAP_BASE && !missing)
            missing = &entries[i];
    }
    return missing;
}

/* ---- the load ---- */

static __attribute__((format(printf, 2, 3))) void fail_with(struct weir_driver_failure *failure,
                                                            const char *format, ...) {
    va_list list;

    va_start(list, format);
    vsnprintf(failure->text, sizeof failure->text, format, list);
    va_end(list);
}

static void fail_stub(struct weir_driver_failure *failure) {
    fail_with(failure, LIBRARY
              " is the CUDA toolkit's stub, which only serves to link against: no driver is "
              "installed, or a folder named stubs stands before it in LD_LIBRARY_PATH");
}

/* Sets the table's calls, version and capabilities.  Returns 1 on success, 0 with the reason in *failure. */
static int fill_table(const struct library *library, struct weir_driver *table,
                      struct weir_driver_failure *failure) {
    const struct entry *missing = find_entries(library, table);
    CUresult result;

    if (table->cuDriverGetVersion) {
        result = table->cuDriverGetVersion(&table->version);
        if (result == CUDA_ERROR_STUB_LIBRARY) {
            fail_stub(failure);
            return 0;
        }
        if (result != CUDA_SUCCESS) {
            fail_with(failure,
                      LIBRARY " does not report its version: cuDriverGetVersion failed with %u",
                      result);
            return 0;
        }
        if (table->version < WEIR_DRIVER_OLDEST) {
            fail_with(failure,
                      LIBRARY
                      " is a driver for CUDA %d.%d; weir needs 11.2 or later (driver 460.27.03)",
                      table->version / 1000, table->version % 1000 / 10);
            return 0;
        }
    }
    if (missing) {
        fail_with(failure,
                  LIBRARY " has no %s, which every driver from CUDA %d.%d on has: the installation "
                          "is broken or a replacement library is incomplete",
                  missing->symbol, missing->version / 1000, missing->version % 1000 / 10);
        return 0;
    }
    weir__driver_set_capabilities(table);
    return 1;
}

/* Calls cuInit, and checks that there is a device.  Returns 1 on success, 0 with the reason in *failure. */
static int start_cuda(const struct weir_driver *table, struct weir_driver_failure *failure) {
    CUresult result = table->cuInit(0);
    int count = 0;

    if (result == CUDA_SUCCESS)
        result = table->cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS && count == 0)
        result = CUDA_ERROR_NO_DEVICE;
    if (result == CUDA_ERROR_STUB_LIBRARY)
        fail_stub(failure);
    else if (result == CUDA_ERROR_NO_DEVICE)
        fail_with(
            failure,
            "the driver finds no device (CUDA_ERROR_NO_DEVICE): is there one in nvidia-smi -L, "
            "and does CUDA_VISIBLE_DEVICES let this process see it?");
    else if (result != CUDA_SUCCESS)
        fail_with(failure,
                  "the driver does not start: cuInit failed with %u (%s); nvidia-smi or the kernel "
                  "log may say why",
                  result, weir__driver_error_name(table, result));
    return result == CUDA_SUCCESS;
}

const struct weir_driver *weir__driver_cuda(struct weir_driver_failure *failure) {
    static struct weir_driver table;
    struct library library = {NULL, NULL, NULL};

    memset(&table, 0, sizeof table);
    table.name = "cuda";
    table.ticks = weir__clock_ns;
    table.sleep_ns = sleep_ns;
    /* With RTLD_NOW, an incomplete installation fails here and not at a later call. */
    library.handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library.handle) {
        const char *why = dlerror();

        fail_with(failure, "cannot open " LIBRARY ", which comes with the NVIDIA driver: %s",
                  why ? why : "no reason given");
        return NULL;
    }
    if (find_resolver(&library) == CUDA_ERROR_STUB_LIBRARY) {
        fail_stub(failure);
        goto close_library;
    }
    if (!fill_table(&library, &table, failure))
        goto close_library;
    if (!start_cuda(&table, failure))
        return NULL;
    return &table;

close_library:
    dlclose(library.handle);
    return NULL;
}
