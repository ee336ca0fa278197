/* SPDX-License-Identifier: MIT */
/* model_ipc.h: memory of the device model that several processes share; see model_ipc.c.  All want the lock held.
 */
#ifndef WEIR_MODEL_IPC_H
#define WEIR_MODEL_IPC_H

#include "driver/model/model_inside.h"

/* Of a pool, or of a handle's memory, among those of all processes. */
struct model_identity {
    uint64_t process, object;
};

enum model_file { MODEL_FILE_POOL, MODEL_FILE_MEMORY };

struct model_import;

/* A file for so many bytes of memory, or -1. */
int weir__model_ipc_file(uint64_t bytes);
/* A descriptor of it for others, or -1. */
int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity);
/* What an exported file says of itself: 1, or 0: it is none of that kind. */
int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity);
/* What was exported, mapped here, and which device it is of; NULL: it is none, or there is no memory. */
struct model_import *weir__model_import_open(int file, int *device);
/* With all that was imported into it, none of which may be found any more. */
void weir__model_import_close(struct model_import *import);

/* A block of the pool, and how far behind its beginning a pointer is. */
void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data);
/* The block that is described, with address and bytes, which is not to be found yet; NULL: it is of another
 * pool, or there already, or there is no memory. */
struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before);
void weir__model_import_drop(struct model_import *import, struct model_block *block);

#endif
