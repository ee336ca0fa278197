/* SPDX-License-Identifier: MIT */
/* gate.h: what stands before every function of the CUDA driver in a program that is parked while it is idle.
 *
 * A program reaches the driver in three ways: it is linked to libcuda.so.1, it asks dlsym, or it asks cuGetProcAddress.
 * This library is loaded before the program and before libweir-preload.so, and stands in each way.  It needs to know
 * no function: each address that a lookup answers gets a stub of its own, which passes the gate, calls it, and comes
 * back.  Only the names that programs are linked to are listed (gate_names.h).
 *
 * Not seen: functions in the tables that cuGetExportTable answers, which NVIDIA's own libraries use.
 *
 * Glossary
 *   gate, inside, keeper   as ipc/gate_page.h has them
 *   stub                   a function here that stands before one elsewhere
 *
 * Must not know: what a function does, weir's allocators.
 */
#ifndef WEIR_ADAPTERS_GATE_H
#define WEIR_ADAPTERS_GATE_H

#define WEIR_GATE_FOUND 3072 /* stubs for addresses that lookups found */

#ifndef __ASSEMBLER__

#include <stdint.h>

#include "adapters/gate/gate_names.h"

enum {
#define WEIR_GATE_NUMBER(name) WEIR_GATE_NUMBER_##name,
    WEIR_GATE_NAMES(WEIR_GATE_NUMBER)
#undef WEIR_GATE_NUMBER
        WEIR_GATE_NAMED,
    WEIR_GATE_STUBS = WEIR_GATE_NAMED + WEIR_GATE_FOUND
};

#define WEIR_GATE_EXPORT __attribute__((visibility("default")))
#define WEIR_GATE_ADDRESS(function) __extension__(void *) function

/* ---- gate_threads.c: who is inside ---- */

/* The thread begins a call: 1; 0: it is inside already, and does not come back.  Waits while the gate is closed. */
int weir__gate_enter(void);
void weir__gate_leave(void);
/* The process cannot be parked from now on, because of a function. */
void weir__gate_refuse(int reason, const char *name);

/* ---- gate_linked.c ---- */

/* Refuses if something is linked to a function of the driver that has no stub.  Cheap where nothing was loaded since. */
void weir__gate_look_at_links(void);

/* ---- gate.c ---- */

typedef void *weir_gate_lookup(void *handle, const char *name);
/* The C library's dlsym. */
weir_gate_lookup *weir__gate_real_dlsym(void);

#endif

#endif
