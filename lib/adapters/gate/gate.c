/* SPDX-License-Identifier: MIT */
/* gate.c: lookups of the driver's functions answer with stubs, and what a stub calls.
 *
 * An address that a lookup answers gets a stub if it is of a library that has the driver's functions: the driver,
 * libweir-preload.so, or one that stands between.  A library that exports a name itself and looks it up is answered
 * with what lies behind it, as without this library: its own callers have passed the gate.  What weir looks up in the
 * driver for itself gets stubs, too: other libraries may call weir without a function of the driver.
 *
 * Must not know: what a function does, but whether it shares memory.
 */
#include "adapters/gate/gate.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/variable.h"
#include "driver/cuda_abi.h"
#include "ipc/gate_page.h"

typedef CUresult resolver_v1(const char *name, void **address, int version, uint64_t flags);
typedef CUresult resolver_v2(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status);

/* A call at a function's end that is a jump however this is compiled: dlsym answers by who calls it. */
#if defined(__clang__)
#define JUMPS
#define JUMP __attribute__((musttail))
#else
#define JUMPS __attribute__((optimize("O2")))
#define JUMP
#endif

/* Sanitizers call dlsym before they are ready to be called. */
#define BARE __attribute__((no_sanitize("address", "thread", "undefined")))

enum { STUB_BYTES = 16, SECOND_RESOLVER = 12000 };

WEIR_GATE_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
WEIR_GATE_EXPORT resolver_v1 cuGetProcAddress;
WEIR_GATE_EXPORT resolver_v2 cuGetProcAddress_v2;

extern const char weir__gate_stubs[WEIR_GATE_FOUND * STUB_BYTES];

/* What stubs call, those with a name first. */
static _Atomic(void *) real_of[WEIR_GATE_STUBS];
static _Atomic(const char *) refused_by[WEIR_GATE_STUBS]; /* its name, where it shares memory */

static const char *const names[] = {
#define NAME(name) #name,
    WEIR_GATE_NAMES(NAME)
#undef NAME
};

/* Beginnings of names: the driver cannot restore memory that processes share, nor move managed memory. */
static const char *const shares[] = {
    "cuIpcGet",
    "cuIpcOpen",
    "cuMemAllocManaged",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemPoolExport",
    "cuMemPoolImport",
    "cuMemGetHandleForAddressRange",
    "cuMulticastCreate",
    "cuImportExternal",
    "cuGraphicsEGL",
    "cuGraphicsGL",
    "cuGraphicsVDPAU",
    "cuEGLStream",
};

static const char *shared_by(const char *name) {
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        if (strncmp(name, shares[i], strlen(shares[i])) == 0)
            return shares[i];
    return NULL;
}

/* ---- Other lookups ---- */

/* Without a lock: each thread finds the same. */
BARE weir_gate_lookup *weir__gate_real_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    static _Atomic(void *) known;
    void *real = atomic_load_explicit(&known, memory_order_relaxed);

    for (size_t i = 0; !real && i < sizeof versions / sizeof versions[0]; i++)
        real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&known, real, memory_order_relaxed);
    return __extension__(weir_gate_lookup *) real;
}

/* libweir-preload.so's, or the C library's. */
BARE static weir_gate_lookup *next_dlsym(void) {
    static _Atomic(void *) known;
    void *next = atomic_load_explicit(&known, memory_order_relaxed);

    if (!next)
        next = weir__gate_real_dlsym()(RTLD_NEXT, "dlsym");
    atomic_store_explicit(&known, next, memory_order_relaxed);
    return __extension__(weir_gate_lookup *) next;
}

static __attribute__((constructor)) void begin(void) {
    weir__variables_note();
    (void)next_dlsym();
    (void)dlerror();
}

static const void *base_of(const void *address) {
    Dl_info of;

    return address && dladdr(address, &of) ? of.dli_fbase : NULL;
}

/* For libweir-preload.so, to which this library is no other than the program. */
WEIR_GATE_EXPORT int weir__gate_has(const void *address);
int weir__gate_has(const void *address) {
    static _Atomic(const void *) own;
    const void *known = atomic_load_explicit(&own, memory_order_relaxed);

    if (!known) {
        known = base_of(WEIR_GATE_ADDRESS(weir__gate_has));
        atomic_store_explicit(&own, known, memory_order_relaxed);
    }
    return base_of(address) == known;
}

/* 1: the library that the address is of has that symbol itself. */
static int has_symbol(const void *address, const char *name) {
    void *library, *symbol;
    Dl_info of;

    if (!address || !dladdr(address, &of))
        return 0;
    library = dlopen(of.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    symbol = library ? weir__gate_real_dlsym()(library, name) : NULL;
    if (library)
        dlclose(library);
    (void)dlerror(); /* a miss here is no error of the program's */
    return symbol && base_of(symbol) == of.dli_fbase;
}

/* ---- Stubs ---- */

static CUresult is_missing(void) {
    return CUDA_ERROR_NOT_FOUND;
}

static void *find_behind(const char *name) {
    weir_gate_lookup *real = weir__gate_real_dlsym();
    void *found = real(RTLD_NEXT, name), *library;

    if (!found && (library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD))) {
        found = real(library, name);
        dlclose(library); /* those that opened it have it still */
    }
    (void)dlerror();
    return found;
}

/* What a named stub calls. */
static void *find_named(unsigned number) {
    void *found = find_behind(names[number]);

    if (!found)
        return WEIR_GATE_ADDRESS(is_missing);
    atomic_store(&refused_by[number], shared_by(names[number]));
    atomic_store(&real_of[number], found);
    return found;
}

static void *stub_of(const char *name, void *address) {
    for (unsigned i = 0; i < WEIR_GATE_FOUND; i++) {
        _Atomic(void *) *place = &real_of[WEIR_GATE_NAMED + i];
        void *there = atomic_load(place);

        if (!there && atomic_compare_exchange_strong(place, &there, address))
            there = address;
        if (there != address)
            continue;
        if (shared_by(name))
            atomic_store(&refused_by[WEIR_GATE_NAMED + i], shared_by(name));
        return WEIR_GATE_ADDRESS(&weir__gate_stubs[(size_t)i * STUB_BYTES]);
    }
    weir__gate_refuse(WEIR_GATE_CROWDED, name);
    return address;
}

/* What a lookup answers that found that; a name that is no function of the driver's is not asked about. */
static void *answer(const char *name, void *found) {
    if (!found || weir__gate_has(found) || !has_symbol(found, "cuMemFree_v2"))
        return found;
    weir__gate_look_at_links();
    return stub_of(name, found);
}

/* The registers in which a stub has two results. */
struct passage {
    void *real;
    uint64_t *frame; /* NULL: the stub does not come back */
};
struct passage weir__gate_pass(unsigned number);
uint64_t *weir__gate_come_back(void);

/* Where a stub keeps a register meanwhile. */
static _Thread_local uint64_t frame __attribute__((tls_model("initial-exec")));

struct passage weir__gate_pass(unsigned number) {
    void *real = atomic_load_explicit(&real_of[number], memory_order_acquire);
    const char *name = atomic_load_explicit(&refused_by[number], memory_order_relaxed);

    if (__builtin_expect(!real, 0))
        real = find_named(number);
    if (__builtin_expect(name != NULL, 0))
        weir__gate_refuse(WEIR_GATE_SHARES, name);
    return (struct passage){real, weir__gate_enter() ? &frame : NULL};
}

uint64_t *weir__gate_come_back(void) {
    int before = errno;

    weir__gate_leave();
    errno = before;
    return &frame;
}

/* ---- cuGetProcAddress ---- */

/* Whose: weir's own asks the driver itself. */
enum { OF_PROGRAM, OF_WEIR };

static _Atomic(void *) real_resolver[2][2]; /* by version, and whose */

static void *answer_resolved(const char *name, int version, void *found, int whose);

static void *resolver(int second, int whose) {
    void *real = atomic_load(&real_resolver[second][whose]);

    if (!real && (real = find_behind(second ? "cuGetProcAddress_v2" : "cuGetProcAddress")))
        atomic_store(&real_resolver[second][whose], real);
    return real;
}

static CUresult resolve_v1(const char *name, void **address, int version, uint64_t flags,
                           int whose) {
    resolver_v1 *real = __extension__(resolver_v1 *) resolver(0, whose);
    int is_inside = weir__gate_enter();
    CUresult result = real ? real(name, address, version, flags) : CUDA_ERROR_NOT_FOUND;

    if (is_inside)
        weir__gate_leave();
    if (result == CUDA_SUCCESS && address && *address)
        *address = answer_resolved(name, version, *address, whose);
    return result;
}

static CUresult resolve_v2(const char *name, void **address, int version, uint64_t flags,
                           unsigned *status, int whose) {
    resolver_v2 *real = __extension__(resolver_v2 *) resolver(1, whose);
    int is_inside = weir__gate_enter();
    CUresult result = real ? real(name, address, version, flags, status) : CUDA_ERROR_NOT_FOUND;

    if (is_inside)
        weir__gate_leave();
    if (result == CUDA_SUCCESS && address && *address)
        *address = answer_resolved(name, version, *address, whose);
    return result;
}

CUresult cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
    return resolve_v1(name, address, version, flags, OF_PROGRAM);
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status) {
    return resolve_v2(name, address, version, flags, status, OF_PROGRAM);
}

static CUresult own_v1(const char *name, void **address, int version, uint64_t flags) {
    return resolve_v1(name, address, version, flags, OF_WEIR);
}

static CUresult own_v2(const char *name, void **address, int version, uint64_t flags,
                       unsigned *status) {
    return resolve_v2(name, address, version, flags, status, OF_WEIR);
}

/* What stands before a resolver that was found. */
static void *resolver_of(int second, void *found, int whose) {
    void *none = NULL;

    if (!weir__gate_has(found)) /* a driver may see its own names as the program does */
        (void)atomic_compare_exchange_strong(&real_resolver[second][whose], &none, found);
    if (whose == OF_WEIR)
        return second ? WEIR_GATE_ADDRESS(own_v2) : WEIR_GATE_ADDRESS(own_v1);
    return second ? WEIR_GATE_ADDRESS(cuGetProcAddress_v2) : WEIR_GATE_ADDRESS(cuGetProcAddress);
}

static void *answer_resolved(const char *name, int version, void *found, int whose) {
    if (strcmp(name, "cuGetProcAddress") == 0)
        return resolver_of(version >= SECOND_RESOLVER, found, whose);
    return answer(name, found);
}

static void *answer_symbol(const char *name, void *found, int whose) {
    if (found && strcmp(name, "cuGetProcAddress") == 0)
        return resolver_of(0, found, whose);
    if (found && strcmp(name, "cuGetProcAddress_v2") == 0)
        return resolver_of(1, found, whose);
    return answer(name, found);
}

/* ---- dlsym ---- */

BARE static int is_drivers(const char *name) {
    return name && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

BARE JUMPS void *dlsym(void *restrict handle, const char *restrict name) {
    weir_gate_lookup *next = next_dlsym();
    const void *caller = __builtin_return_address(0);
    void *found;

    if (!is_drivers(name))
        JUMP return next(handle, name);
    if (base_of(caller) == base_of(WEIR_GATE_ADDRESS(next)))
        return answer_symbol(name, weir__gate_real_dlsym()(handle, name), OF_WEIR);
    if (has_symbol(caller, name))
        JUMP return next(handle, name);
    found = next(handle, name);
    if (weir__gate_has(found)) /* the program looked everywhere, and this library comes first */
        found = next(RTLD_NEXT, name);
    return answer_symbol(name, found, OF_PROGRAM);
}
