/* SPDX-License-Identifier: MIT */
/* preload_plain.h: the device memory that a program takes by itself, which weir only sees: how much, by which calls, and
 * which library called.
 *
 * Must not know: how a call gets here; what is served.
 */
#ifndef WEIR_PRELOAD_PLAIN_H
#define WEIR_PRELOAD_PLAIN_H

#include <stddef.h>
#include <stdint.h>

#include "driver/cuda_abi.h"
#include "ipc/group.h"

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* One request, from before the driver is asked until it has answered. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* CLOCK_MONOTONIC */
    struct weir_group *group; /* which has counted the bytes; NULL: none */
    int is_seen;              /* it is the program's own */
    int has_trimmed;          /* weir's allocators have given back what they had idle */
};

/* 1: the driver may be asked; 0: the group refuses, and that has been told.  `device' -1: the current one. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* The driver's answer: 1 if it has no memory for it, and other allocators or processes have given some meanwhile. */
int weir__plain_may_have_room(struct weir_plain *p, CUresult result);
/* The driver's answer; `key': the address or the handle, `bytes': what it took at last. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* The program gives back what is known by that key: before the driver has it, whose answer comes after.  NULL: nothing is
 * known by it. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* Handles: physical memory lasts as long as anything refers to it. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Graphs: a captured request, and what the driver reports once graphs were launched or trimmed. */
int weir__plain_any_graphs(void);
void weir__plain_look_at_graphs(CUdevice device);
/* What was in the context has gone with it; NULL: nothing was. */
void weir__plain_context_ended(CUcontext context);
/* The same of all contexts of the device, and of its graphs. */
void weir__plain_lost(CUdevice device);

/* What there is now. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS]; /* those with most; "": no more */
};
void weir__plain_read(struct weir_plain_figures *out);

#endif
