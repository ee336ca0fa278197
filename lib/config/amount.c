/* SPDX-License-Identifier: MIT */
/* amount.c: converts amounts of memory to bytes.  A fraction such as 75% is a whole number of millionths, so the result
 * is equal on all machines. */
#include "config/amount.h"

#include <stddef.h>
#include <stdint.h>

#include "base/size.h"

#define MILLION UINT64_C(1000000)
#define GRANULARITY UINT64_C(256)

/* The default of the option cache_limit: a share of the bytes in use, in millionths, with a minimum. */
#define IN_USE_SHARE UINT64_C(20000)
#define IN_USE_LEAST (UINT64_C(16) << 20)
#define IN_USE_MUCH (UINT64_C(256) << 20)

static uint64_t part_of(uint64_t bytes, uint64_t millionths) {
    uint64_t part;

    if (millionths > MILLION)
        millionths = MILLION;
    part = bytes / MILLION * millionths + bytes % MILLION * millionths / MILLION;
    return part - part % GRANULARITY;
}

static uint64_t within_address_space(uint64_t bytes) {
#if SIZE_MAX < UINT64_MAX
    if (bytes > SIZE_MAX)
        return SIZE_MAX;
#endif
    return bytes;
}

uint64_t weir__budget_bytes(const weir_amount *amount, const struct weir_device_memory *memory,
                            uint64_t standard) {
    switch (amount->kind & WEIR_AMOUNT_KIND) {
    case WEIR_AMOUNT_BYTES:
        return within_address_space(amount->value);
    case WEIR_AMOUNT_OF_TOTAL:
        return within_address_space(part_of(memory->total, amount->value));
    case WEIR_AMOUNT_OF_FREE:
        return within_address_space(part_of(memory->free, amount->value));
    case WEIR_AMOUNT_MAX:
        return UINT64_MAX;
    default:
        return standard;
    }
}

uint64_t weir__budget_of_in_use(const weir_amount *amount, uint64_t in_use, uint64_t peak) {
    uint64_t standard = part_of(in_use, IN_USE_SHARE);

    if (amount->kind == WEIR_AMOUNT_OF_IN_USE)
        return part_of(in_use, amount->value);
    if (peak <= IN_USE_MUCH)
        standard = weir__size_larger(standard, IN_USE_LEAST);
    return weir__budget_bytes(amount, NULL, standard);
}
