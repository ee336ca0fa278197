/* SPDX-License-Identifier: MIT */
/* mapped_files.h: descriptors of physical allocations, for other processes.
 *
 * A physical allocation gets its descriptor when a block in it is first shared, and keeps it until it goes back to the
 * device: an open descriptor keeps the memory, too.  The owner has a lock.
 *
 * Must not know: where physical allocations are mapped; the caller.
 */
#ifndef WEIR_MAPPED_FILES_H
#define WEIR_MAPPED_FILES_H

#include "base/map.h"
#include "engine/engine.h"

/* Zeroed it is empty. */
struct weir_mapped_files {
    struct weir_map exported; /* by physical allocation */
};

/* Adds a physical allocation to a list, with its descriptor, which is made if there is none.  E_HOST_MEMORY: no memory,
 * or no descriptor is left; else what the driver answered. */
weir_status weir__mapped_files_add(struct weir_mapped_files *f, struct weir_device *device,
                                   CUmemGenericAllocationHandle handle,
                                   const struct weir_memory_file *piece,
                                   struct weir_memory_files *out);
/* Closes those that were made since the mark was taken, after a list that could not be completed. */
uint64_t weir__mapped_files_mark(void);
void weir__mapped_files_undo(struct weir_mapped_files *f, uint64_t mark);
/* Before the physical allocation is released.  One that has no descriptor costs a look at a number. */
void weir__mapped_files_close(struct weir_mapped_files *f, CUmemGenericAllocationHandle handle);
/* All of them are closed. */
void weir__mapped_files_end(struct weir_mapped_files *f);

#endif
