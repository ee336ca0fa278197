/* SPDX-License-Identifier: MIT */
/* fake_injection.c: what a profiler names in NVTX_INJECTION64_PATH; it writes down what it is told.
 *
 * A line for each call, appended to the file that WEIR_TEST_NVTX names.  What it does to attach is what tools do.  With
 * WEIR_TEST_NVTX_REFUSES set it answers that it will not. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvtx_abi.h"

__attribute__((visibility("default"))) weir_nvtx_initialize InitializeInjectionNvtx2;

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
    note("%s %u %llu %s\n", what, a->category, (unsigned long long)a->payload, a->message);
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

    if (getenv("WEIR_TEST_NVTX_REFUSES"))
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
