/* SPDX-License-Identifier: MIT */
/* interpose.c: lets a preloaded library replace functions of the CUDA driver.  The file exports the driver's function
 * names, dlsym and cuGetProcAddress, and finds the driver's own functions.
 *
 * With RTLD_NEXT and RTLD_DEFAULT, the result of dlsym depends on the library that calls dlsym.  So for all names
 * that this library does not replace, its dlsym ends with a jump to libc's dlsym, which then sees the original
 * caller.  Before the jump, this library's dlsym allocates nothing, takes no lock and loads nothing.
 *
 * A second library between the program and the driver, such as a wrapper or the loader of WSL, may also export the
 * driver's function names and look up the driver's functions.  Such a library gets the address that it would get
 * without weir, because otherwise the two libraries would call each other for ever.  The program gets weir's function.
 *
 * For each function, weir stores the first address that a lookup of the program finds as the driver's function.  A
 * later lookup replaces the address only if the library at the old address has been unloaded, since a loader's
 * cuGetProcAddress may return another address than dlsym.  weir itself looks up the remaining functions.
 *
 * The code in this file must not depend on libweir, or on what the replacing functions do. */
#include "adapters/interpose/interpose.h"

#include <dlfcn.h>
#include <string.h>

#include "base/variable.h"

#define EXPORT __attribute__((visibility("default")))
#define ADDRESS(function) __extension__(void *) function

typedef void *lookup(void *handle, const char *name);
typedef CUresult resolver_v1(const char *name, void **address, int version, uint64_t flags);
typedef CUresult resolver_v2(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status);

/* JUMP marks a call that the compiler must turn into a jump, so that libc's dlsym sees the program's return address.
 * JUMPS marks the function that contains the call. */
#if defined(__clang__)
#define JUMPS
#define JUMP __attribute__((musttail))
#else
#define JUMPS __attribute__((optimize("O2")))
#define JUMP
#endif

/* Sanitizers must not instrument a BARE function, because a sanitizer calls dlsym before its own runtime is ready. */
#define BARE __attribute__((no_sanitize("address", "thread", "undefined")))

/* This flag of cuGetProcAddress selects functions whose stream 0 is the thread's own, not the legacy default stream. */
enum { PER_THREAD = 2 };

_Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
atomic_int weir__captures_missed;
_Thread_local int weir__is_serving;

/* ---- exported functions ------------------------------------------------------------------------ */

EXPORT void *dlsym(void *restrict handle, const char *restrict name);
static resolver_v1 resolve_v1;
static resolver_v2 resolve_v2;
EXPORT resolver_v1 cuGetProcAddress __attribute__((alias("resolve_v1")));
EXPORT resolver_v2 cuGetProcAddress_v2 __attribute__((alias("resolve_v2")));

#define EXPORTED(base, symbol, version, params, args)                                              \
    EXPORT CUresult symbol params;                                                                 \
    CUresult symbol params {                                                                       \
        return weir__serve_##symbol args;                                                          \
    }
#define EXPORTED_BOTH(base, symbol, version, params, args)                                         \
    EXPORTED(base, symbol, version, params, args)                                                  \
    EXPORTED(base, symbol##_ptsz, version, params, args)
WEIR_INTERPOSED_STREAMS(EXPORTED_BOTH)
WEIR_INTERPOSED_PLAIN(EXPORTED)

static const struct row {
    const char *base, *symbol;
    int version;
    int per_thread;
    void *serves;   /* weir__serve_SYMBOL, or NULL if weir does not replace the symbol */
    void *exported; /* the exported function SYMBOL, as other libraries see it */
} rows[] = {
#define ROW(base, symbol, version, params, args)                                                   \
    {#base, #symbol, version, 0, ADDRESS(weir__serve_##symbol), ADDRESS(symbol)},
#define ROW_BOTH(base, symbol, version, params, args)                                              \
    ROW(base, symbol, version, params, args){#base,                                                \
                                             #symbol "_ptsz",                                      \
                                             version,                                              \
                                             1,                                                    \
                                             ADDRESS(weir__serve_##symbol##_ptsz),                 \
                                             ADDRESS(symbol##_ptsz)},
#define ROW_USED(base, symbol, version, params, args) {#base, #symbol, version, 0, NULL, NULL},
    WEIR_INTERPOSED_STREAMS(ROW_BOTH)
        WEIR_INTERPOSED_PLAIN(ROW){"cuGetProcAddress", "cuGetProcAddress", 11030, 0,
                                   ADDRESS(resolve_v1), ADDRESS(cuGetProcAddress)},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 0, ADDRESS(resolve_v2),
     ADDRESS(cuGetProcAddress_v2)},
    WEIR_INTERPOSED_USED(ROW_USED)};

/* ---- dlsym ------------------------------------------------------------------------------------- */

/* Returns libc's dlsym.  Needs no lock, since all threads find the same address. */
BARE static lookup *real_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    static _Atomic(void *) known;
    void *real = atomic_load_explicit(&known, memory_order_relaxed);

    for (size_t i = 0; !real && i < sizeof versions / sizeof versions[0]; i++)
        real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&known, real, memory_order_relaxed);
    return __extension__(lookup *) real;
}

/* Sets weir__captures_missed if the function begins captures.  weir cannot notice these captures. */
BARE static void check_for_missed_captures(const char *name) {
    static const char begins[] = "cuStreamBegin";

    if (name && !weir__is_serving && strncmp(name, begins, sizeof begins - 1) == 0)
        atomic_store_explicit(&weir__captures_missed, 1, memory_order_relaxed);
}

/* Finds libc's dlsym when this library is loaded.  Clears dlerror(), so that the program sees no error of weir. */
static __attribute__((constructor)) void find_real_dlsym(void) {
    weir__variables_store();
    (void)real_dlsym();
    (void)dlerror();
}

/* Returns the symbol's row of the table of replaced functions, or NULL if weir does not replace the symbol. */
BARE static const struct row *find_replaced(const char *symbol) {
    if (!symbol || symbol[0] != 'c' || symbol[1] != 'u' || symbol[2] < 'A' || symbol[2] > 'Z')
        return NULL;
    for (size_t i = 0; i < WEIR_INTERPOSED_COUNT; i++)
        if (rows[i].serves && strcmp(rows[i].symbol, symbol) == 0)
            return &rows[i];
    return NULL;
}

/* Returns 1 if the library at this address exports row->symbol itself, else 0. */
static int is_in_exporter(const void *address, const struct row *row) {
    Dl_info of, found;
    void *library, *symbol;

    if (!address || !dladdr(address, &of))
        return 0;
    library = dlopen(of.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    symbol = library ? real_dlsym()(library, row->symbol) : NULL;
    if (library)
        dlclose(library);
    (void)dlerror(); /* clears an error that the program must not see */
    return symbol && dladdr(symbol, &found) && found.dli_fbase == of.dli_fbase;
}

static void store_real(const struct row *row, void *real) {
    _Atomic(void *) *place = &weir__interposed_real[row - rows];
    void *known = atomic_load_explicit(place, memory_order_relaxed);

    if (known != real && !is_in_exporter(known, row))
        atomic_store_explicit(place, real, memory_order_release);
}

static int is_ours(const struct row *row, const void *address) {
    return address == row->serves || address == row->exported;
}

static void *find_in_other_library(lookup *real, const struct row *row, void *handle) {
    void *found = real(handle, row->symbol);

    return is_ours(row, found) ? real(RTLD_NEXT, row->symbol) : found;
}

BARE JUMPS void *dlsym(void *restrict handle, const char *restrict name) {
    lookup *real = real_dlsym();
    const struct row *row = weir__is_serving ? NULL : find_replaced(name);
    void *found;

    if (!row || is_in_exporter(__builtin_return_address(0), row)) {
        check_for_missed_captures(name);
        JUMP return real(handle, name);
    }
    found = find_in_other_library(real, row, handle);
    if (!found)
        return NULL;
    store_real(row, found);
    return row->serves;
}

/* ---- the driver's functions -------------------------------------------------------------------- */

static CUresult missing_function(void) {
    return CUDA_ERROR_NOT_FOUND;
}

/* Finds the driver's function, or returns the address of missing_function(). */
void *weir__interpose_find(enum weir_interposed number) {
    const struct row *row = &rows[number];
    lookup *real = real_dlsym();
    void *found = real(RTLD_NEXT, row->symbol), *library;

    if (!found && (library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD))) {
        found = real(library, row->symbol);
        dlclose(library); /* the driver stays loaded by another library */
    }
    (void)dlerror(); /* clears an error that the program must not see */
    if (!found)
        return ADDRESS(missing_function);
    store_real(row, found);
    return found;
}

/* ---- cuGetProcAddress -------------------------------------------------------------------------- */

/* Returns the row of `base` with the highest version up to `version`, or NULL if weir replaces no such function. */
static const struct row *row_of_request(const char *base, int version, uint64_t flags) {
    const struct row *best = NULL;

    for (size_t i = 0; i < WEIR_INTERPOSED_COUNT; i++) {
        const struct row *row = &rows[i];

        if (!row->serves || row->version > version || strcmp(row->base, base) != 0 ||
            (row->per_thread && !(flags & PER_THREAD)))
            continue;
        if (!best || row->version > best->version || row->per_thread > best->per_thread)
            best = row;
    }
    return best;
}

/* Returns weir's function if the driver returned `same`, the function that weir replaces.  Else returns `real`. */
static void *choose_address(const struct row *row, void *real, const void *same) {
    if (real != same) {
        check_for_missed_captures(row->base);
        return real;
    }
    /* The driver's lookup may have found weir's own exported function, which must not be stored as the driver's. */
    if (!is_ours(row, real))
        store_real(row, real);
    return row->serves;
}

/* Returns the row of weir's function to return in place of the driver's, or NULL to return the driver's function. */
static const struct row *find_row_to_return(CUresult result, void *const *address, const char *base,
                                            int version, uint64_t flags, const void *caller) {
    const struct row *row = NULL;

    if (result != CUDA_SUCCESS || !address || !*address || weir__is_serving)
        return NULL;
    row = row_of_request(base, version, flags);
    row = row && is_in_exporter(caller, row) ? NULL : row;
    if (!row)
        check_for_missed_captures(base);
    return row;
}

static CUresult resolve_v1(const char *name, void **address, int version, uint64_t flags) {
    resolver_v1 *real =
        __extension__(resolver_v1 *) weir__interpose_real(WEIR_ROW_cuGetProcAddress);
    CUresult result = real(name, address, version, flags);
    const struct row *row =
        find_row_to_return(result, address, name, version, flags, __builtin_return_address(0));
    void *same = NULL;

    if (row && real(row->base, &same, row->version, flags) == CUDA_SUCCESS)
        *address = choose_address(row, *address, same);
    return result;
}

static CUresult resolve_v2(const char *name, void **address, int version, uint64_t flags,
                           unsigned *status) {
    resolver_v2 *real =
        __extension__(resolver_v2 *) weir__interpose_real(WEIR_ROW_cuGetProcAddress_v2);
    CUresult result = real(name, address, version, flags, status);
    const struct row *row =
        find_row_to_return(result, address, name, version, flags, __builtin_return_address(0));
    void *same = NULL;

    if (row && real(row->base, &same, row->version, flags, NULL) == CUDA_SUCCESS)
        *address = choose_address(row, *address, same);
    return result;
}
