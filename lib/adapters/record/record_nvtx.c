/* SPDX-License-Identifier: MIT */
/* record_nvtx.c: receives the NVTX ranges and marks of the program.  A range or mark whose name matches
 * WEIR_RECORD_RANGES ends an iteration.  If WEIR_RECORD_CALLERS is set, requests are recorded with their NVTX ranges.
 *
 * At the program's first NVTX call, NVTX opens the library that NVTX_INJECTION64_PATH names, and calls the library's
 * InitializeInjectionNvtx2, which may change the program's (perhaps several) tables of functions (nvtx_abi.h).
 *
 * The code in this file must not depend on how an event is recorded. */
#include <fnmatch.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

#include "adapters/record/record.h"
#include "adapters/record/record_ring.h"
#include "base/variable.h"

/* ---- names ------------------------------------------------------------------------------------- */

static char *wanted; /* WEIR_RECORD_RANGES, a shell pattern */

static int is_wanted(const char *name) {
    return name && wanted && fnmatch(wanted, name, 0) == 0;
}

/* Converts a name of wide characters to UTF-8, and cuts a long name.  Returns `text`, or NULL if there is no name. */
static const char *convert_wide_name(const wchar_t *from, char *text, size_t bytes) {
    size_t used = 0;

    for (; from && *from; from++) {
        uint32_t c = (uint32_t)*from;
        size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

        if (used + length >= bytes)
            break;
        for (size_t i = length - 1; i > 0; i--, c >>= 6)
            text[used + i] = (char)(0x80 | (c & 0x3f));
        text[used] = (char)(length == 1 ? c : (0xf00 >> length & 0xff) | c);
        used += length;
    }
    text[used] = '\0';
    return from ? text : NULL;
}

static void mark_wanted_name(const char *name) {
    if (is_wanted(name))
        weir_mark(name);
}

static void mark_wanted_wide(const wchar_t *name) {
    char text[4 * WEIR_RECORD_LABEL_BYTES];

    mark_wanted_name(convert_wide_name(name, text, sizeof text));
}

/* ---- ranges that are open ---------------------------------------------------------------------- */

enum { DEEPEST = 16 };

static _Thread_local struct {
    int depth;
    char name[DEEPEST][WEIR_RECORD_NAME_BYTES]; /* "" for a range without a name */
} opened __attribute__((tls_model("initial-exec")));

/* Stores no name for ranges deeper than DEEPEST.  Their requests get the deepest stored name. */
static int push_range(const char *name) {
    if (opened.depth < DEEPEST)
        snprintf(opened.name[opened.depth], sizeof opened.name[0], "%s", name ? name : "");
    opened.depth++;
    return WEIR_NVTX_NO_PUSH_POP_TRACKING;
}

static int pop_range(void) {
    if (opened.depth > 0)
        opened.depth--;
    return WEIR_NVTX_NO_PUSH_POP_TRACKING;
}

const char *weir__record_range(void) {
    for (int i = opened.depth < DEEPEST ? opened.depth : DEEPEST; i > 0; i--)
        if (opened.name[i - 1][0])
            return opened.name[i - 1];
    return NULL;
}

/* Returns the name of a range or mark, or NULL.  Converts wide characters into `text`. */
static const char *name_in(const struct weir_nvtx_attributes *attributes, char *text,
                           size_t bytes) {
    if (!attributes || attributes->size < sizeof *attributes)
        return NULL;
    if (attributes->message_type == WEIR_NVTX_MESSAGE_UNICODE)
        return convert_wide_name(attributes->message, text, bytes);
    return attributes->message_type == WEIR_NVTX_MESSAGE_ASCII ||
                   attributes->message_type == WEIR_NVTX_MESSAGE_REGISTERED
               ? attributes->message
               : NULL;
}

static void mark_wanted_attributes(const struct weir_nvtx_attributes *attributes) {
    char text[4 * WEIR_RECORD_LABEL_BYTES];

    mark_wanted_name(name_in(attributes, text, sizeof text));
}

/* ---- functions for NVTX's tables ---- */

static void mark_ex(const struct weir_nvtx_attributes *attributes) {
    mark_wanted_attributes(attributes);
}

static uint64_t start_ex(const struct weir_nvtx_attributes *attributes) {
    mark_wanted_attributes(attributes);
    return 0;
}

static uint64_t start_a(const char *name) {
    mark_wanted_name(name);
    return 0;
}

static uint64_t start_w(const wchar_t *name) {
    mark_wanted_wide(name);
    return 0;
}

static int push_ex(const struct weir_nvtx_attributes *attributes) {
    char text[4 * WEIR_RECORD_LABEL_BYTES];
    const char *name = name_in(attributes, text, sizeof text);

    mark_wanted_name(name);
    return push_range(name);
}

static int push_a(const char *name) {
    mark_wanted_name(name);
    return push_range(name);
}

static int push_w(const wchar_t *name) {
    char text[4 * WEIR_RECORD_LABEL_BYTES];

    return push_a(convert_wide_name(name, text, sizeof text));
}

static void domain_mark_ex(const void *domain, const struct weir_nvtx_attributes *attributes) {
    (void)domain;
    mark_wanted_attributes(attributes);
}

static uint64_t domain_start_ex(const void *domain, const struct weir_nvtx_attributes *attributes) {
    (void)domain;
    mark_wanted_attributes(attributes);
    return 0;
}

static int domain_push_ex(const void *domain, const struct weir_nvtx_attributes *attributes) {
    (void)domain;
    return push_ex(attributes);
}

static int domain_pop(const void *domain) {
    (void)domain;
    return pop_range();
}

/* Returns a copy of the name as a handle.  weir never frees the copy, since programs use handles until they end. */
static const void *register_a(const void *domain, const char *name) {
    (void)domain;
    return name && (weir__record_callers || is_wanted(name)) ? strdup(name) : NULL;
}

static const void *register_w(const void *domain, const wchar_t *name) {
    char text[4 * WEIR_RECORD_LABEL_BYTES];

    return register_a(domain, convert_wide_name(name, text, sizeof text));
}

struct entry {
    int module;
    unsigned number;
    weir_nvtx_function serves;
};

#define ENTRY(module, number, serves)                                                              \
    { module, number, (weir_nvtx_function)(serves) }

static const struct entry entries[] = {
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_MARK_EX, mark_ex),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_MARK_A, mark_wanted_name),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_MARK_W, mark_wanted_wide),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_START_EX, start_ex),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_START_A, start_a),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_START_W, start_w),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_PUSH_EX, push_ex),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_PUSH_A, push_a),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_PUSH_W, push_w),
    ENTRY(WEIR_NVTX_CORE, WEIR_NVTX_RANGE_POP, pop_range),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_MARK_EX, domain_mark_ex),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_RANGE_START_EX, domain_start_ex),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_RANGE_PUSH_EX, domain_push_ex),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_RANGE_POP, domain_pop),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_REGISTER_STRING_A, register_a),
    ENTRY(WEIR_NVTX_CORE2, WEIR_NVTX_DOMAIN_REGISTER_STRING_W, register_w),
};

/* Makes NVTX call weir's functions.  Returns 1 on success, else 0. */
int InitializeInjectionNvtx2(weir_nvtx_export_table *tables) {
    const struct weir_nvtx_callbacks *callbacks = tables(WEIR_NVTX_ETID_CALLBACKS);
    const char *pattern = weir__variable(WEIR_RECORD_RANGES);

    if (!wanted && pattern)
        /* Copies the variable's value, because a program that sets its process title overwrites its environment. */
        wanted = strdup(pattern);
    if ((!wanted && !weir__record_callers) || !callbacks ||
        callbacks->struct_size < sizeof *callbacks)
        return 0;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        weir_nvtx_function **table = NULL;
        unsigned count = 0;

        if (callbacks->table_of(entries[i].module, &table, &count) && table &&
            entries[i].number < count && table[entries[i].number])
            *table[entries[i].number] = entries[i].serves;
    }
    return 1;
}
