/* SPDX-License-Identifier: MIT */
/* amount.h: converts amounts of memory such as "75%" to bytes.  Callers pass the sizes of the memory. */
#ifndef WEIR_AMOUNT_H
#define WEIR_AMOUNT_H

#include <weir/options.h>

/* A device's memory in bytes. */
struct weir_device_memory {
    uint64_t total;
    uint64_t free;
};

/* Converts an amount to bytes, and rounds a fraction of the device's memory down to a multiple of 256 bytes.  Returns
 * `standard` if the amount is not set, UINT64_MAX for "max". */
uint64_t weir__budget_bytes(const weir_amount *amount, const struct weir_device_memory *memory,
                            uint64_t standard);

/* Converts an amount that may be a fraction of the bytes in use.  `peak` is their peak so far. */
uint64_t weir__budget_of_in_use(const weir_amount *amount, uint64_t in_use, uint64_t peak);

#endif
