/* SPDX-License-Identifier: MIT */
/* model_ipc.h: memory of the device model that several processes share (model_ipc.c).
 *
 * Locks: the caller holds the model's lock in each call.
 */
#ifndef WEIR_MODEL_IPC_H
#define WEIR_MODEL_IPC_H

#include "driver/model/model_inside.h"

/* The number of a pool or of a physical allocation, unique among all processes. */
struct model_identity {
    uint64_t process, object;
};

enum model_file { MODEL_FILE_POOL, MODEL_FILE_MEMORY };

struct model_import;

/* Makes a file for `bytes` bytes of memory.  Returns its descriptor, or -1. */
int weir__model_ipc_file(uint64_t bytes);
/* Returns a new descriptor of the file for other processes, or -1. */
int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity);
/* Reads what an exported file contains.  Returns 1 on success, 0 if the file is of another kind. */
int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity);
/* Maps the memory of an exported pool, and sets *device.  Returns NULL if the file is no pool's, or on lack of
 * memory. */
struct model_import *weir__model_import_open(int file, int *device);
/* Unmaps the memory, and frees all blocks that were imported from it.  No block may be in the model's tree. */
void weir__model_import_close(struct model_import *import);

/* Describes a pointer `before` bytes into a block at `offset` of the pool. */
void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data);
/* Makes the block that `data` describes, with address and size.  The caller enters the block into the model's tree.
 * Returns NULL if the block is another pool's or already imported, or on lack of memory. */
struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before);
/* Frees a block that was imported. */
void weir__model_import_drop(struct model_import *import, struct model_block *block);

#endif
