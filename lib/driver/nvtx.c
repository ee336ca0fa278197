/* SPDX-License-Identifier: MIT */
/* nvtx.c: see nvtx.h; the interface is in nvtx_abi.h.
 *
 * NVTX has no library of its own: every program that uses it has a copy, and a tool attaches to each.  This is such a
 * copy, of five functions; all others have variables that the tool may fill and nobody calls.
 *
 * Likewise of its extension that names memory, of which three functions are called; a tool may know either, or both.
 *
 * Must not know: allocators, engines.
 */
#include "driver/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/nvtx_abi.h"

enum { MOST_FUNCTIONS = 16, CATEGORY_GROWTH = 1, CATEGORY_GIVEN_BACK = 2, CATEGORY_MEMORY = 3 };

int weir__nvtx_is_on;

static weir_nvtx_domain domain;
static intptr_t memory[WEIR_NVTX_EXT_MEM_SLOTS]; /* the slots of the extension */

/* ---- tables, for the tool ------------------------------------------------------------------------ */

static const unsigned sizes[WEIR_NVTX_MODULES] = {
    [WEIR_NVTX_CORE] = WEIR_NVTX_CORE_SIZE,     [WEIR_NVTX_CUDA] = WEIR_NVTX_CUDA_SIZE,
    [WEIR_NVTX_OPENCL] = WEIR_NVTX_OPENCL_SIZE, [WEIR_NVTX_CUDART] = WEIR_NVTX_CUDART_SIZE,
    [WEIR_NVTX_CORE2] = WEIR_NVTX_CORE2_SIZE,   [WEIR_NVTX_SYNC] = WEIR_NVTX_SYNC_SIZE};

static weir_nvtx_function functions[WEIR_NVTX_MODULES][MOST_FUNCTIONS];
/* Pointers to these, from 1 on, behind them NULL. */
static weir_nvtx_function *tables[WEIR_NVTX_MODULES][MOST_FUNCTIONS + 1];

static int table_of(int module, weir_nvtx_function ***table, unsigned int *size) {
    if (module <= 0 || module >= WEIR_NVTX_MODULES)
        return 0;
    for (unsigned i = 1; i < sizes[module]; i++)
        tables[module][i] = &functions[module][i];
    if (table)
        *table = tables[module];
    if (size)
        *size = sizes[module];
    return 1;
}

static void set_injection_version(uint32_t version) {
    (void)version;
}

static const void *find_table(uint32_t id) {
    static const struct weir_nvtx_callbacks callbacks = {sizeof callbacks, table_of};
    static const struct weir_nvtx_version_info info = {sizeof info, WEIR_NVTX_VERSION, 0,
                                                       set_injection_version};

    switch (id) {
    case WEIR_NVTX_ETID_CALLBACKS:
        return &callbacks;
    case WEIR_NVTX_ETID_VERSIONINFO:
        return &info;
    default:
        return NULL;
    }
}

/* ---- the tool ------------------------------------------------------------------------------------ */

#define CORE2(type, number) ((type *)functions[WEIR_NVTX_CORE2][number])

static void name_categories(void) {
    weir_nvtx_name_category *name =
        CORE2(weir_nvtx_name_category, WEIR_NVTX_DOMAIN_NAME_CATEGORY_A);

    if (!name)
        return;
    name(domain, CATEGORY_GROWTH, "growth");
    name(domain, CATEGORY_GIVEN_BACK, "given back");
    name(domain, CATEGORY_MEMORY, "memory");
}

/* 1: the tool has tables of ranges and marks. */
static int attach_ranges(void *library) {
    weir_nvtx_initialize *initialize;
    void *address = dlsym(library, "InitializeInjectionNvtx2");
    weir_nvtx_domain_create *create;

    if (!address)
        return 0;
    memcpy(&initialize, &address, sizeof initialize);
    if (!initialize(find_table))
        return 0;
    create = CORE2(weir_nvtx_domain_create, WEIR_NVTX_DOMAIN_CREATE_A);
    domain = create ? create("weir") : NULL;
    return create != NULL;
}

/* 1: it has those of memory. */
static int attach_memory(void *library) {
    struct weir_nvtx_segment segment = {1, WEIR_NVTX_EXT_MEM_SLOTS, memory};
    struct weir_nvtx_extension extension = {.version = WEIR_NVTX_VERSION,
                                            .size = sizeof extension,
                                            .module = WEIR_NVTX_EXT_MEM,
                                            .compatible = WEIR_NVTX_EXT_MEM_VERSION,
                                            .segments = 1,
                                            .segment = &segment};
    weir_nvtx_initialize_extension *initialize;
    void *address = dlsym(library, "InitializeInjectionNvtxExtension");

    if (!address)
        return 0;
    memcpy(&initialize, &address, sizeof initialize);
    if (initialize(&extension))
        return 1;
    memset(memory, 0, sizeof memory);
    return 0;
}

/* The library stays loaded, whatever it says: its threads may have begun. */
static void attach(void) {
    const char *path =
        secure_getenv(sizeof(void *) == 8 ? "NVTX_INJECTION64_PATH" : "NVTX_INJECTION32_PATH");
    void *library = path && *path ? dlopen(path, RTLD_LAZY) : NULL;
    int is_on;

    if (!library)
        return;
    is_on = attach_ranges(library);
    if (is_on)
        name_categories();
    weir__nvtx_is_on = attach_memory(library) || is_on;
}

void weir__nvtx_attach(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, attach);
}

/* ---- ranges and marks ---------------------------------------------------------------------------- */

static struct weir_nvtx_attributes describe(const char *name, uint32_t category, uint64_t bytes) {
    struct weir_nvtx_attributes attributes;

    memset(&attributes, 0, sizeof attributes);
    attributes.version = WEIR_NVTX_VERSION;
    attributes.size = sizeof attributes;
    attributes.category = category;
    attributes.payload_type = WEIR_NVTX_PAYLOAD_UNSIGNED_INT64;
    attributes.payload = bytes;
    attributes.message_type = WEIR_NVTX_MESSAGE_ASCII;
    attributes.message = name;
    return attributes;
}

void weir__nvtx_push_range(const char *name, uint64_t bytes) {
    weir_nvtx_push *push = CORE2(weir_nvtx_push, WEIR_NVTX_DOMAIN_RANGE_PUSH_EX);
    struct weir_nvtx_attributes attributes = describe(name, 0, bytes);

    if (push)
        (void)push(domain, &attributes);
}

void weir__nvtx_pop_range(void) {
    weir_nvtx_pop *pop = CORE2(weir_nvtx_pop, WEIR_NVTX_DOMAIN_RANGE_POP);

    if (pop)
        (void)pop(domain);
}

void weir__nvtx_put_mark(const char *name, int is_shrink, uint64_t bytes) {
    weir_nvtx_mark *mark = CORE2(weir_nvtx_mark, WEIR_NVTX_DOMAIN_MARK_EX);
    struct weir_nvtx_attributes attributes =
        describe(name, is_shrink ? CATEGORY_GIVEN_BACK : CATEGORY_GROWTH, bytes);

    if (mark)
        mark(domain, &attributes);
}

/* ---- names of memory ----------------------------------------------------------------------------- */

/* NULL: the tool has none. */
static const intptr_t *slot_of(int number) {
    const intptr_t *slot = &memory[number];

    return *slot == WEIR_NVTX_EXT_FRESH || *slot == WEIR_NVTX_EXT_DISABLED ? NULL : slot;
}

void weir__nvtx_put_memory(const char *name, int device, uint64_t address, uint64_t bytes) {
    const void *pointer = (const void *)(uintptr_t)address;
    struct weir_nvtx_range range = {(size_t)bytes, pointer};
    struct weir_nvtx_regions_register regions = {.compatible = WEIR_NVTX_EXT_MEM_VERSION,
                                                 .size = sizeof regions,
                                                 .type = WEIR_NVTX_MEM_VIRTUAL_ADDRESS,
                                                 .count = 1,
                                                 .element_size = sizeof range,
                                                 .elements = &range};
    char text[96];
    struct weir_nvtx_region_name named = {.by = WEIR_NVTX_MEM_BY_POINTER,
                                          .message_type = WEIR_NVTX_MESSAGE_ASCII,
                                          .region = pointer,
                                          .message = text,
                                          .category = CATEGORY_MEMORY};
    struct weir_nvtx_regions_name names = {.compatible = WEIR_NVTX_EXT_MEM_VERSION,
                                           .size = sizeof names,
                                           .count = 1,
                                           .element_size = sizeof named,
                                           .elements = &named};
    const intptr_t *add = slot_of(WEIR_NVTX_MEM_REGIONS_REGISTER);
    const intptr_t *call = slot_of(WEIR_NVTX_MEM_REGIONS_NAME);

    if (!add)
        return;
    snprintf(text, sizeof text, "weir: %s, device %d", name, device);
    ((weir_nvtx_mem_register *)*add)(domain, &regions);
    if (call)
        ((weir_nvtx_mem_name *)*call)(domain, &names);
}

void weir__nvtx_drop_memory(uint64_t address) {
    const void *pointer = (const void *)(uintptr_t)address;
    struct weir_nvtx_regions_unregister regions = {.compatible = WEIR_NVTX_EXT_MEM_VERSION,
                                                   .size = sizeof regions,
                                                   .by = WEIR_NVTX_MEM_BY_POINTER,
                                                   .count = 1,
                                                   .element_size = sizeof pointer,
                                                   .elements = &pointer};
    const intptr_t *drop = slot_of(WEIR_NVTX_MEM_REGIONS_UNREGISTER);

    if (drop)
        ((weir_nvtx_mem_unregister *)*drop)(domain, &regions);
}
