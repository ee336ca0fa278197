/* SPDX-License-Identifier: MIT */
/* nvtx_abi.h: what of NVTX 3 is used here, written from the interface between it and the tools.
 *
 * Source: nvtx3/nvToolsExt.h and nvtx3/nvtxDetail/nvtxTypes.h of the CUDA toolkit (13.0) and of NVIDIA/NVTX, which keep
 * it stable for tools of other versions; tests/driver/nvtx_abi_check.c compares it where the toolkit is there.
 *
 * A program that uses NVTX has tables of pointers to its own variables, each a function of the interface, by
 * module.  The tool's InitializeInjectionNvtx2 is handed a function that finds those tables, puts its own
 * functions into the variables that it is interested in, and answers nonzero.  Extensions have tables and versions of
 * their own, which InitializeInjectionNvtxExtension is handed, one at a time: of them the one that names memory is used
 * (nvtx3/nvToolsExtMem.h, nvtx3/nvtxDetail/nvtxExtTypes.h).
 */
#ifndef WEIR_NVTX_ABI_H
#define WEIR_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { WEIR_NVTX_VERSION = 3 };

/* Export tables. */
enum { WEIR_NVTX_ETID_CALLBACKS = 1, WEIR_NVTX_ETID_VERSIONINFO = 3 };

/* Modules, and how many functions each has, 0 included, which is none. */
enum {
    WEIR_NVTX_CORE = 1,
    WEIR_NVTX_CUDA = 2,
    WEIR_NVTX_OPENCL = 3,
    WEIR_NVTX_CUDART = 4,
    WEIR_NVTX_CORE2 = 5,
    WEIR_NVTX_SYNC = 6,
    WEIR_NVTX_MODULES = 7,
    WEIR_NVTX_CORE_SIZE = 16,
    WEIR_NVTX_CUDA_SIZE = 9,
    WEIR_NVTX_OPENCL_SIZE = 15,
    WEIR_NVTX_CUDART_SIZE = 7,
    WEIR_NVTX_CORE2_SIZE = 16,
    WEIR_NVTX_SYNC_SIZE = 7
};

/* Of CORE. */
enum {
    WEIR_NVTX_MARK_EX = 1,
    WEIR_NVTX_MARK_A = 2,
    WEIR_NVTX_MARK_W = 3,
    WEIR_NVTX_RANGE_START_EX = 4,
    WEIR_NVTX_RANGE_START_A = 5,
    WEIR_NVTX_RANGE_START_W = 6,
    WEIR_NVTX_RANGE_PUSH_EX = 8,
    WEIR_NVTX_RANGE_PUSH_A = 9,
    WEIR_NVTX_RANGE_PUSH_W = 10,
    WEIR_NVTX_RANGE_POP = 11
};

/* Of CORE2. */
enum {
    WEIR_NVTX_DOMAIN_MARK_EX = 1,
    WEIR_NVTX_DOMAIN_RANGE_START_EX = 2,
    WEIR_NVTX_DOMAIN_RANGE_PUSH_EX = 4,
    WEIR_NVTX_DOMAIN_RANGE_POP = 5,
    WEIR_NVTX_DOMAIN_NAME_CATEGORY_A = 8,
    WEIR_NVTX_DOMAIN_REGISTER_STRING_A = 10,
    WEIR_NVTX_DOMAIN_REGISTER_STRING_W = 11,
    WEIR_NVTX_DOMAIN_CREATE_A = 12
};

enum { WEIR_NVTX_PAYLOAD_UNSIGNED_INT64 = 1 };
enum {
    WEIR_NVTX_MESSAGE_ASCII = 1,
    WEIR_NVTX_MESSAGE_UNICODE = 2,
    WEIR_NVTX_MESSAGE_REGISTERED = 3
};
enum { WEIR_NVTX_NO_PUSH_POP_TRACKING = -2 };

struct weir_nvtx_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload; /* a union there */
    int32_t message_type;
    const void *message; /* likewise: char, wchar_t, or what registering gave */
};

typedef void *weir_nvtx_domain;
typedef void (*weir_nvtx_function)(void);
typedef weir_nvtx_domain weir_nvtx_domain_create(const char *name);
typedef void weir_nvtx_name_category(weir_nvtx_domain domain, uint32_t category, const char *name);
typedef void weir_nvtx_mark(weir_nvtx_domain domain, const struct weir_nvtx_attributes *attributes);
typedef int weir_nvtx_push(weir_nvtx_domain domain, const struct weir_nvtx_attributes *attributes);
typedef int weir_nvtx_pop(weir_nvtx_domain domain);

struct weir_nvtx_callbacks {
    size_t struct_size;
    int (*table_of)(int module, weir_nvtx_function ***table, unsigned int *size);
};

struct weir_nvtx_version_info {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_injection_version)(uint32_t version);
};

typedef const void *weir_nvtx_export_table(uint32_t id);
typedef int weir_nvtx_initialize(weir_nvtx_export_table *find);

/* ---- the extension that names memory ------------------------------------------------------------- */

enum { WEIR_NVTX_EXT_MEM = 1, WEIR_NVTX_EXT_MEM_VERSION = 0x0102, WEIR_NVTX_EXT_MEM_SLOTS = 63 };

/* What stands in a slot that has no function: nothing yet, and none. */
enum { WEIR_NVTX_EXT_FRESH = 0, WEIR_NVTX_EXT_DISABLED = 1 };

/* Of its slots. */
enum {
    WEIR_NVTX_MEM_REGIONS_REGISTER = 3,
    WEIR_NVTX_MEM_REGIONS_UNREGISTER = 5,
    WEIR_NVTX_MEM_REGIONS_NAME = 6
};

enum { WEIR_NVTX_MEM_VIRTUAL_ADDRESS = 1, WEIR_NVTX_MEM_BY_POINTER = 1 };

struct weir_nvtx_segment {
    size_t id, slots;
    intptr_t *functions;
};

struct weir_nvtx_extension {
    uint16_t version, size, module, compatible;
    size_t segments;
    struct weir_nvtx_segment *segment;
    intptr_t (*export_function)(uint32_t id);
    const void *info;
};

typedef int weir_nvtx_initialize_extension(struct weir_nvtx_extension *extension);

struct weir_nvtx_range {
    size_t size;
    const void *pointer;
};

struct weir_nvtx_regions_register {
    uint16_t compatible, size;
    uint32_t type;
    void *heap; /* NULL: all addresses of the process */
    size_t count, element_size;
    const void *elements;
    void **handles;
};

struct weir_nvtx_regions_unregister {
    uint16_t compatible, size;
    uint32_t by;
    size_t count, element_size;
    const void *const *elements; /* unions there */
};

struct weir_nvtx_region_name {
    uint32_t by, message_type;
    const void *region, *message; /* likewise */
    uint32_t category, reserved;
};

struct weir_nvtx_regions_name {
    uint16_t compatible, size;
    uint32_t reserved;
    size_t count, element_size;
    const struct weir_nvtx_region_name *elements;
    size_t reserved_too;
};

typedef void weir_nvtx_mem_register(weir_nvtx_domain domain,
                                    const struct weir_nvtx_regions_register *what);
typedef void weir_nvtx_mem_unregister(weir_nvtx_domain domain,
                                      const struct weir_nvtx_regions_unregister *what);
typedef void weir_nvtx_mem_name(weir_nvtx_domain domain, const struct weir_nvtx_regions_name *what);

#endif
