/* SPDX-License-Identifier: MIT */
/* fake_injection.c: what a profiler names in NVTX_INJECTION64_PATH; it writes down what it is told.
 *
 * A line for each call, appended to the file that WEIR_TEST_NVTX names.  What it does to attach is what tools do.
 * WEIR_TEST_NVTX_REFUSES says what it answers that it will not: ranges, memory, or all. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/nvtx_abi.h"

__attribute__((visibility("default"))) weir_nvtx_initialize InitializeInjectionNvtx2;
__attribute__((visibility("default")))
weir_nvtx_initialize_extension InitializeInjectionNvtxExtension;

static int refuses(const char *what) {
    const char *refused = getenv("WEIR_TEST_NVTX_REFUSES");

    return refused && (strcmp(refused, what) == 0 || strcmp(refused, "all") == 0);
}

static __attribute__((format(printf, 1, 2))) void note(const char *format, ...) {
    const char *path = getenv("WEIR_TEST_NVTX");
    char line[256];
    va_list arguments;
    int file, length;

    va_start(arguments, format);
    length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0 || write(file, line, (size_t)length) != length || close(file) != 0)
        abort();
}

/* Any address will do. */
static char own_domain;

static weir_nvtx_domain domain_create(const char *name) {
    note("domain %s\n", name);
    return &own_domain;
}

static void name_category(weir_nvtx_domain domain, uint32_t category, const char *name) {
    note("category %s %u %s\n", domain == &own_domain ? "ours" : "?", category, name);
}

static void describe(const char *what, weir_nvtx_domain domain,
                     const struct weir_nvtx_attributes *a) {
    if (domain != &own_domain || a->version != WEIR_NVTX_VERSION || a->size != sizeof *a ||
        a->message_type != WEIR_NVTX_MESSAGE_ASCII ||
        a->payload_type != WEIR_NVTX_PAYLOAD_UNSIGNED_INT64)
        note("bad %s\n", what);
    note("%s %u %llu %s\n", what, a->category, (unsigned long long)a->payload,
         (const char *)a->message);
}

static void mark(weir_nvtx_domain domain, const struct weir_nvtx_attributes *attributes) {
    describe("mark", domain, attributes);
}

static int push(weir_nvtx_domain domain, const struct weir_nvtx_attributes *attributes) {
    describe("push", domain, attributes);
    return 0;
}

static int pop(weir_nvtx_domain domain) {
    note("pop %s\n", domain == &own_domain ? "ours" : "?");
    return 0;
}

int InitializeInjectionNvtx2(weir_nvtx_export_table *find) {
    const struct weir_nvtx_callbacks *callbacks = find(WEIR_NVTX_ETID_CALLBACKS);
    const struct weir_nvtx_version_info *info = find(WEIR_NVTX_ETID_VERSIONINFO);
    weir_nvtx_function **table;
    unsigned size;

    if (refuses("ranges"))
        return 0;
    if (!callbacks || callbacks->struct_size < sizeof *callbacks || !info ||
        info->version < WEIR_NVTX_VERSION || find(0) || callbacks->table_of(0, &table, &size) ||
        callbacks->table_of(WEIR_NVTX_MODULES, &table, &size))
        abort();
    info->set_injection_version(1);
    /* All that there is is there, and ends. */
    for (int module = 1; module < WEIR_NVTX_MODULES; module++) {
        if (!callbacks->table_of(module, &table, &size) || size < 2 || table[0] || table[size])
            abort();
        for (unsigned i = 1; i < size; i++)
            *table[i] = NULL;
    }
    if (!callbacks->table_of(WEIR_NVTX_CORE2, &table, &size) || size <= WEIR_NVTX_DOMAIN_CREATE_A)
        abort();
    *table[WEIR_NVTX_DOMAIN_CREATE_A] = (weir_nvtx_function)domain_create;
    *table[WEIR_NVTX_DOMAIN_NAME_CATEGORY_A] = (weir_nvtx_function)name_category;
    *table[WEIR_NVTX_DOMAIN_MARK_EX] = (weir_nvtx_function)mark;
    *table[WEIR_NVTX_DOMAIN_RANGE_PUSH_EX] = (weir_nvtx_function)push;
    *table[WEIR_NVTX_DOMAIN_RANGE_POP] = (weir_nvtx_function)pop;
    return 1;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void *attached; /* the domain, if ranges were */

static void note_if(int is_bad, const char *what) {
    if (is_bad)
        note("bad %s\n", what);
}

static void mem_register(weir_nvtx_domain domain, const struct weir_nvtx_regions_register *what) {
    const struct weir_nvtx_range *range = what->elements;

    note_if(domain != attached || what->compatible != WEIR_NVTX_EXT_MEM_VERSION ||
                what->size != sizeof *what || what->type != WEIR_NVTX_MEM_VIRTUAL_ADDRESS ||
                what->heap || what->count != 1 || what->element_size != sizeof *range ||
                what->handles || range->size == 0,
            "region");
    note("region %p %zu\n", range->pointer, range->size);
}

static void mem_unregister(weir_nvtx_domain domain,
                           const struct weir_nvtx_regions_unregister *what) {
    note_if(domain != attached || what->compatible != WEIR_NVTX_EXT_MEM_VERSION ||
                what->size != sizeof *what || what->by != WEIR_NVTX_MEM_BY_POINTER ||
                what->count != 1 || what->element_size != sizeof *what->elements,
            "gone");
    note("gone %p\n", what->elements[0]);
}

static void mem_name(weir_nvtx_domain domain, const struct weir_nvtx_regions_name *what) {
    const struct weir_nvtx_region_name *one = what->elements;

    note_if(domain != attached || what->compatible != WEIR_NVTX_EXT_MEM_VERSION ||
                what->size != sizeof *what || what->count != 1 ||
                what->element_size != sizeof *one || one->by != WEIR_NVTX_MEM_BY_POINTER ||
                one->message_type != WEIR_NVTX_MESSAGE_ASCII,
            "name");
    note("name %p %u %s\n", one->region, one->category, (const char *)one->message);
}

/* With WEIR_TEST_NVTX_KEEPS one function is disabled. */
int InitializeInjectionNvtxExtension(struct weir_nvtx_extension *extension) {
    if (refuses("memory"))
        return 0;
    if (extension->version < WEIR_NVTX_VERSION || extension->size < sizeof *extension ||
        extension->module != WEIR_NVTX_EXT_MEM ||
        extension->compatible != WEIR_NVTX_EXT_MEM_VERSION || extension->segments != 1 ||
        extension->segment->slots != WEIR_NVTX_EXT_MEM_SLOTS)
        abort();
    for (size_t i = 0; i < extension->segment->slots; i++)
        if (extension->segment->functions[i] != WEIR_NVTX_EXT_FRESH)
            abort();
    attached = refuses("ranges") ? NULL : &own_domain;
    extension->segment->functions[WEIR_NVTX_MEM_REGIONS_REGISTER] = (intptr_t)mem_register;
    extension->segment->functions[WEIR_NVTX_MEM_REGIONS_UNREGISTER] =
        getenv("WEIR_TEST_NVTX_KEEPS") ? WEIR_NVTX_EXT_DISABLED : (intptr_t)mem_unregister;
    extension->segment->functions[WEIR_NVTX_MEM_REGIONS_NAME] = (intptr_t)mem_name;
    return 1;
}
