/* SPDX-License-Identifier: MIT */
/* nvtx_abi.h: declares the part of NVTX 3's interface for tools that `weir record' uses, after nvtx3/nvToolsExt.h and
 * nvtx3/nvtxDetail/nvtxTypes.h of the CUDA toolkit (13.0).  NVIDIA keeps this interface stable for tools of other
 * versions.  tests/adapters/nvtx_abi_check.c compares this file with the toolkit.
 *
 * A program calls each function of NVTX through a variable.  A table in the program contains pointers to these
 * variables.  NVTX calls the tool's function InitializeInjectionNvtx2, whose parameter is a function that finds the
 * tables.  The tool writes the addresses of its own functions into the variables that it needs, and returns nonzero. */
#ifndef WEIR_NVTX_ABI_H
#define WEIR_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The id of NVTX's table of callbacks (struct weir_nvtx_callbacks). */
enum { WEIR_NVTX_ETID_CALLBACKS = 1 };

/* NVTX's identifiers of two modules.  A module is a table of functions. */
enum { WEIR_NVTX_CORE = 1, WEIR_NVTX_CORE2 = 5 };

/* The indexes of functions in the table of the module CORE. */
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

/* The indexes of functions in the table of the module CORE2. */
enum {
    WEIR_NVTX_DOMAIN_MARK_EX = 1,
    WEIR_NVTX_DOMAIN_RANGE_START_EX = 2,
    WEIR_NVTX_DOMAIN_RANGE_PUSH_EX = 4,
    WEIR_NVTX_DOMAIN_RANGE_POP = 5,
    WEIR_NVTX_DOMAIN_REGISTER_STRING_A = 10,
    WEIR_NVTX_DOMAIN_REGISTER_STRING_W = 11
};

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
    uint64_t payload; /* in NVTX's header, this field is a union */
    int32_t message_type;
    /* The name, a union in NVTX's header: a string of char or wchar_t, or the handle of a registered string. */
    const void *message;
};

typedef void (*weir_nvtx_function)(void);

struct weir_nvtx_callbacks {
    size_t struct_size;
    int (*table_of)(int module, weir_nvtx_function ***table, unsigned int *size);
};

typedef const void *weir_nvtx_export_table(uint32_t id);
typedef int weir_nvtx_initialize(weir_nvtx_export_table *find);

#endif
