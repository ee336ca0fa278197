/* SPDX-License-Identifier: MIT */
/* model_ipc.c: exports the memory of a pool or a physical allocation to other processes, and imports it.
 *
 * The memory is a sparse file without a name, which other processes map.  The file of a pool is as large as the pool's
 * address space.  Behind the memory, the file has the identity of the object (struct tail).  A block is exported as its
 * place in the file.  The model does not check that the importing process frees a block first.
 */
#include "driver/model/model_inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define MAGIC UINT64_C(0x77656972706f6f6c)

/* The last bytes of a file that shares memory with other processes.  The memory comes first in the file. */
struct tail {
    uint64_t magic, bytes;
    struct model_identity identity;
    int64_t device; /* 64 bits, so that the struct has no padding */
};

/* The model's contents of CUmemPoolPtrExportData. */
struct place {
    struct model_identity identity;
    /* A block's offset in the file, its size, and the offset of the exported pointer in the block. */
    uint64_t offset, bytes, before;
};

struct model_import {
    struct model_identity identity;
    char *view;
    uint64_t bytes;
    struct imported *blocks;
};

struct imported {
    struct model_block block; /* must be the first member */
    uint64_t offset;
    struct imported *next;
};

int weir__model_ipc_file(uint64_t bytes) {
    int file = weir__file_above(memfd_create("memory of a device model", MFD_CLOEXEC));

    if (file >= 0 && (bytes > INT64_MAX / 2 ||
                      weir__file_resize(file, (off_t)(bytes + sizeof(struct tail))) != 0)) {
        close(file);
        file = -1;
    }
    return file;
}

int weir__model_ipc_export(int file, enum model_file what, uint64_t bytes, int device,
                           const struct model_identity *identity) {
    struct tail tail = {
        .magic = MAGIC + what, .bytes = bytes, .identity = *identity, .device = device};

    if (weir__file_write_at(file, &tail, sizeof tail, (off_t)bytes) != (ssize_t)sizeof tail)
        return -1;
    return weir__file_copy(file);
}

int weir__model_ipc_read(int file, enum model_file what, uint64_t *bytes, int *device,
                         struct model_identity *identity) {
    struct stat status;
    struct tail tail;

    if (fstat(file, &status) != 0 || status.st_size < (off_t)sizeof tail ||
        pread(file, &tail, sizeof tail, status.st_size - (off_t)sizeof tail) !=
            (ssize_t)sizeof tail ||
        tail.magic != MAGIC + what || tail.bytes != (uint64_t)status.st_size - sizeof tail)
        return 0;
    *bytes = tail.bytes;
    *device = (int)tail.device;
    *identity = tail.identity;
    return 1;
}

struct model_import *weir__model_import_open(int file, int *device) {
    struct model_import *import;
    struct model_identity identity;
    uint64_t bytes;
    void *view;

    if (!weir__model_ipc_read(file, MODEL_FILE_POOL, &bytes, device, &identity))
        return NULL;
    import = calloc(1, sizeof *import);
    if (!import)
        return NULL;
    view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (view == MAP_FAILED) {
        free(import);
        return NULL;
    }
    import->identity = identity;
    import->view = view;
    import->bytes = bytes;
    return import;
}

void weir__model_import_close(struct model_import *import) {
    struct imported *next;

    for (; import->blocks; import->blocks = next) {
        next = import->blocks->next;
        free(import->blocks);
    }
    munmap(import->view, import->bytes);
    free(import);
}

void weir__model_ipc_describe(const struct model_identity *identity, uint64_t offset,
                              uint64_t bytes, uint64_t before, CUmemPoolPtrExportData *data) {
    struct place place = {*identity, offset, bytes, before};

    _Static_assert(sizeof place <= sizeof *data, "a place fits");
    memset(data, 0, sizeof *data);
    memcpy(data->reserved, &place, sizeof place);
}

struct model_block *weir__model_import_add(struct model_import *import,
                                           const CUmemPoolPtrExportData *data, uint64_t *before) {
    struct imported *imported;
    struct place place;

    memcpy(&place, data->reserved, sizeof place);
    if (memcmp(&place.identity, &import->identity, sizeof place.identity) != 0 ||
        place.offset > import->bytes || place.bytes > import->bytes - place.offset ||
        place.bytes == 0 || place.before >= place.bytes)
        return NULL;
    for (imported = import->blocks; imported; imported = imported->next)
        if (imported->offset == place.offset)
            return NULL;
    imported = calloc(1, sizeof *imported);
    if (!imported)
        return NULL;
    imported->offset = place.offset;
    imported->block.node.key = (uintptr_t)import->view + place.offset;
    imported->block.bytes = place.bytes;
    imported->next = import->blocks;
    import->blocks = imported;
    *before = place.before;
    return &imported->block;
}

void weir__model_import_drop(struct model_import *import, struct model_block *block) {
    struct imported **link = &import->blocks, *gone;

    while (&(*link)->block != block)
        link = &(*link)->next;
    gone = *link;
    *link = gone->next;
    free(gone);
}
