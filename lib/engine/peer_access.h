/* SPDX-License-Identifier: MIT */
/* peer_access.h: determines which other devices may use an allocator's memory.  For memory of cuMemAlloc, the program
 * itself decides this by cuCtxEnablePeerAccess.
 */
#ifndef WEIR_PEER_ACCESS_H
#define WEIR_PEER_ACCESS_H

#include <weir/options.h>

#include "driver/device.h"

/* Writes to *access the devices of the setting `peers` that can access memory of `home`.  On an error, writes a message
 * to `text`, and the driver's result to *result. */
weir_status weir__peers_read(const struct weir_driver *driver, CUdevice home, const char *peers,
                             struct weir_access *access, CUresult *result, char *text,
                             size_t bytes);

/* Checks whether `device` can access memory of the device `home`.  Reports errors as weir__peers_read does. */
weir_status weir__peers_check(const struct weir_driver *driver, CUdevice home, int device,
                              CUresult *result, char *text, size_t bytes);

void weir__peers_change(struct weir_access *access, const CUmemAccessDesc *change);

#endif
