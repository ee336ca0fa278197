/* SPDX-License-Identifier: MIT */
/* amount.h: amounts of memory as numbers of bytes.  This file must not know drivers, engines or the origin of
 * figures. */
#ifndef WEIR_AMOUNT_H
#define WEIR_AMOUNT_H

#include <weir/options.h>

/* The memory of a device, in bytes. */
struct weir_device_memory {
    uint64_t total;
    uint64_t free;
};

/* Returns an amount in bytes, which is at most SIZE_MAX.  Returns `standard` for DEFAULT, UINT64_MAX for MAX.  Rounds a
 * fraction of the total or of the free memory down to a multiple of 256 bytes. */
uint64_t weir__budget_bytes(const weir_amount *amount, const struct weir_device_memory *memory,
                            uint64_t standard);

/* Returns an amount in bytes.  The amount may be a fraction of the bytes in use.  The value of DEFAULT is 2% of the
 * bytes in use, and at least 16 MiB as long as `peak` is at most 256 MiB.  `peak` is the maximum of the bytes in use so
 * far. */
uint64_t weir__budget_of_in_use(const weir_amount *amount, uint64_t in_use, uint64_t peak);

#endif
