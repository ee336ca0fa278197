/* SPDX-License-Identifier: MIT */
/* export.h: the exporter's side of weir/share.h, for entry_points.c; and what a handle holds, for import.c. */
#ifndef WEIR_EXPORT_H
#define WEIR_EXPORT_H

#include <weir/share.h>

#include "driver/driver.h"
#include "engine/engine.h"

struct weir_exports;

/* What a weir_shared is. */
struct weir_handle {
    uint64_t version;
    uint64_t loans, life;
    uint64_t region; /* where the exporter has the piece of the driver's that the block lies in, */
    uint64_t offset; /* and where in it */
    uint32_t place, reserved;
    CUmemPoolPtrExportData data; /* of the region */
};
enum { WEIR_HANDLE_VERSION = 1 };

_Static_assert(sizeof(struct weir_handle) <= sizeof(weir_shared), "a handle fits");

/* For an allocator that may export; `uuid` of its device. */
weir_status weir__exports_open(const struct weir_device *device, struct weir_exports **exports);
void weir__exports_close(struct weir_exports *exports);

/* Before a free: OK if the block is not shared (any more), or E_BUSY. */
weir_status weir__exports_withdraw(weir_allocator *a, CUdeviceptr block);

#endif
