/* SPDX-License-Identifier: MIT */
/* amount.h: converts amounts of memory such as "75%" to bytes.  This file must not depend on drivers or engines, so
 * callers pass the sizes of the memory. */
#ifndef WEIR_AMOUNT_H
#define WEIR_AMOUNT_H

#include <weir/options.h>

/* A device's memory in bytes. */
struct weir_device_memory {
    uint64_t total;
    uint64_t free;
};

/* Converts an amount to bytes, at most SIZE_MAX.  Rounds a fraction of the device's memory down to a multiple of 256
 * bytes.  Returns `standard` if the amount is not set (WEIR_AMOUNT_DEFAULT), UINT64_MAX for "max". */
uint64_t weir__budget_bytes(const weir_amount *amount, const struct weir_device_memory *memory,
                            uint64_t standard);

/* Converts an amount that may be a fraction of the bytes in use.  `peak` is the largest number of bytes in use so far.
 * If the amount is not set, returns 2% of the bytes in use, but at least 16 MiB while `peak` is at most 256 MiB. */
uint64_t weir__budget_of_in_use(const weir_amount *amount, uint64_t in_use, uint64_t peak);

#endif
