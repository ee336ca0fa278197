/* SPDX-License-Identifier: MIT */
/* mapped_files.h: file descriptors of physical allocations, by which other processes map them.
 *
 * weir exports a physical allocation when a block in it is first shared.  The descriptor stays open until the physical
 * allocation goes back to the device, and is closed first, since an open descriptor would keep the memory.
 *
 * Locks: the engine's lock guards each struct weir_mapped_files.
 *
 * Must not know: where physical allocations are mapped; the caller.
 */
#ifndef WEIR_MAPPED_FILES_H
#define WEIR_MAPPED_FILES_H

#include "base/map.h"
#include "engine/engine.h"

/* All descriptors of an engine.  A struct of zero bytes has none. */
struct weir_mapped_files {
    struct weir_map exported; /* the key is the physical allocation's handle */
};

/* Appends a physical allocation to the list `out`, with its descriptor.  Exports the physical allocation if it has no
 * descriptor.  Returns E_HOST_MEMORY if no host memory or no descriptor is left, else the status of the driver's call. */
weir_status weir__mapped_files_add(struct weir_mapped_files *f, struct weir_device *device,
                                   CUmemGenericAllocationHandle handle,
                                   const struct weir_memory_file *piece,
                                   struct weir_memory_files *out);
/* Returns a mark for weir__mapped_files_undo. */
uint64_t weir__mapped_files_mark(void);
/* Closes the descriptors made since the mark, after a list could not be completed. */
void weir__mapped_files_undo(struct weir_mapped_files *f, uint64_t mark);
/* Closes the descriptor of a physical allocation that is about to be released, if it has one. */
void weir__mapped_files_close(struct weir_mapped_files *f, CUmemGenericAllocationHandle handle);
/* Closes all descriptors, and frees the host memory. */
void weir__mapped_files_end(struct weir_mapped_files *f);

#endif
