/* SPDX-License-Identifier: MIT */
/* peer_access.h: which other devices may use an allocator's memory.
 *
 * This does not apply to memory of cuMemAlloc: the program itself opens all such memory of a device by
 * cuCtxEnablePeerAccess.
 *
 * This file must not know how an engine gives access.
 */
#ifndef WEIR_PEER_ACCESS_H
#define WEIR_PEER_ACCESS_H

#include <weir/options.h>

#include "driver/device.h"

/* Reads the access to memory of device `home` that options.peers requests, with defaults filled in.  On an error,
 * writes a text and returns E_NO_DEVICE, E_NOT_SUPPORTED if a device is no peer or the driver cannot tell, or E_DRIVER
 * with the driver's result in *result. */
weir_status weir__peers_read(const struct weir_driver *driver, CUdevice home, const char *peers,
                             struct weir_access *access, CUresult *result, char *text,
                             size_t bytes);

/* Checks whether `device` can get access to memory of `home`, with the results of weir__peers_read. */
weir_status weir__peers_check(const struct weir_driver *driver, CUdevice home, int device,
                              CUresult *result, char *text, size_t bytes);

/* Applies a change of one device's access to the list.  The list has room, since it has each device once at most. */
void weir__peers_note(struct weir_access *access, const CUmemAccessDesc *change);

#endif
