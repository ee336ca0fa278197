/* SPDX-License-Identifier: MIT */
/* nvtx.h: growth, as NVIDIA's profilers show it: ranges and marks of the NVTX domain "weir".
 *
 * A profiler names its library in NVTX_INJECTION64_PATH.  Where there is none nothing is loaded, and what stands here
 * costs a load where the reserved memory grows or shrinks, and nothing elsewhere.
 *
 * A range is of what weir does itself: making room in an arena, raising the reserved memory, giving it back.  Each growth
 * and each time that memory went back is a mark besides, with its bytes: a driver's pool may grow within a
 * request, which is known afterwards only.
 *
 * Memory that blocks are cut from has a name, for tools that show what an address belongs to: the regions of an arena
 * and of the caches, and the addresses of a mapped one.  Blocks have none: a hit knows nothing of profilers.
 *
 * The profiler's functions are called under locks of an engine: they must not call weir.
 *
 * Must not know: allocators, engines.
 */
#ifndef WEIR_NVTX_H
#define WEIR_NVTX_H

#include <stdint.h>

/* A profiler is attached.  Written by weir__nvtx_attach alone, and fixed once that has returned. */
extern int weir__nvtx_is_on __attribute__((visibility("hidden")));

/* Loads what NVTX_INJECTION64_PATH names, the first time.  Before any of the functions below. */
void weir__nvtx_attach(void);

void weir__nvtx_push_range(const char *name, uint64_t bytes);
void weir__nvtx_pop_range(void);
void weir__nvtx_put_mark(const char *name, int is_shrink, uint64_t bytes);
void weir__nvtx_put_memory(const char *name, int device, uint64_t address, uint64_t bytes);
void weir__nvtx_drop_memory(uint64_t address);

/* A range of this thread, until the pop that belongs to it, which must come. */
static inline void weir__nvtx_push(const char *name, uint64_t bytes) {
    if (__builtin_expect(weir__nvtx_is_on, 0))
        weir__nvtx_push_range(name, bytes);
}

static inline void weir__nvtx_pop(void) {
    if (__builtin_expect(weir__nvtx_is_on, 0))
        weir__nvtx_pop_range();
}

static inline void weir__nvtx_mark(const char *name, int is_shrink, uint64_t bytes) {
    if (__builtin_expect(weir__nvtx_is_on, 0))
        weir__nvtx_put_mark(name, is_shrink, bytes);
}

/* Memory of a device has that name from now on, until it is unnamed, before it goes. */
static inline void weir__nvtx_name(const char *name, int device, uint64_t address, uint64_t bytes) {
    if (__builtin_expect(weir__nvtx_is_on, 0))
        weir__nvtx_put_memory(name, device, address, bytes);
}

static inline void weir__nvtx_unname(uint64_t address) {
    if (__builtin_expect(weir__nvtx_is_on, 0))
        weir__nvtx_drop_memory(address);
}

#endif
