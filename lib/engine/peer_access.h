/* SPDX-License-Identifier: MIT */
/* peer_access.h: which other devices may use an allocator's memory.
 *
 * The memory of cuMemAlloc is not spoken of here: cuCtxEnablePeerAccess opens all of a device's at once, and is the
 * program's to call.
 *
 * Must not know: how an engine gives access.
 */
#ifndef WEIR_PEER_ACCESS_H
#define WEIR_PEER_ACCESS_H

#include <weir/options.h>

#include "driver/device.h"

/* The access that options.peers (completed, as it is spelled there) asks for on memory of device `home`.  Not OK:
 * E_NO_DEVICE, E_NOT_SUPPORTED (no peer, or a driver that cannot tell) or what the driver's result in *result
 * comes to, E_DRIVER, with a text. */
weir_status weir__peers_read(const struct weir_driver *driver, CUdevice home, const char *peers,
                             struct weir_access *access, CUresult *result, char *text,
                             size_t bytes);

/* May `device` be given access to memory of `home`?  As above. */
weir_status weir__peers_check(const struct weir_driver *driver, CUdevice home, int device,
                              CUresult *result, char *text, size_t bytes);

/* The list with that in it: a device without access is left out.  There is room: no device has two places. */
void weir__peers_note(struct weir_access *access, const CUmemAccessDesc *change);

#endif
