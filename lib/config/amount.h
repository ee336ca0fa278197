/* SPDX-License-Identifier: MIT */
/* amount.h: amounts of memory as numbers. Must not know: drivers, engines, where figures come from.
 */
#ifndef WEIR_AMOUNT_H
#define WEIR_AMOUNT_H

#include <weir/options.h>

/* What the device has. Bytes. */
struct weir_device_memory {
    uint64_t total;
    uint64_t free;
};

/* An amount in bytes, never more than the address space.  DEFAULT gives `standard`; MAX gives
 * UINT64_MAX.  Fractions are rounded down to 256 bytes and taken of total, or of free at this moment,
 * without overflow for any device. */
uint64_t weir__budget_bytes(const weir_amount *amount, const struct weir_device_memory *memory,
                            uint64_t standard);

/* An amount that is measured by the bytes in use: OF_IN_USE, BYTES or MAX as above; DEFAULT is 2% of
 * them, and at least 32 MiB as long as `peak`, the most that ever was, is no more than 256 MiB. */
uint64_t weir__budget_of_in_use(const weir_amount *amount, uint64_t in_use, uint64_t peak);

#endif
