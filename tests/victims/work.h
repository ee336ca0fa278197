/* SPDX-License-Identifier: MIT */
/* work.h: the device work of the programs in this folder, which reach the driver in different ways.
 *
 * The programs know nothing of weir: cuda_abi.h is their cuda.h.  Each does equal work, checks every byte, and prints
 * only checksums of contents and counts, never an address, a time or a figure of the pool.  So the output does not
 * depend on the allocator. */
#ifndef VICTIM_WORK_H
#define VICTIM_WORK_H

#include "driver/cuda_abi.h"

/* X(base name, symbol, symbol with per-thread streams, first version, (parameters)) */
/* clang-format off */
#define VICTIM_ENTRIES(X)                                                                          \
    X(cuInit, "cuInit", "cuInit", 2000, (unsigned int flags))                                      \
    X(cuDeviceGet, "cuDeviceGet", "cuDeviceGet", 2000, (CUdevice * device, int ordinal))           \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000,      \
      (CUcontext * context, CUdevice device))                                                      \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease_v2",   \
      11000, (CUdevice device))                                                                    \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000, (CUcontext context))            \
    X(cuCtxSynchronize, "cuCtxSynchronize", "cuCtxSynchronize", 2000, (void))                      \
    X(cuStreamCreate, "cuStreamCreate", "cuStreamCreate", 2000,                                    \
      (CUstream * stream, unsigned int flags))                                                     \
    X(cuStreamDestroy, "cuStreamDestroy_v2", "cuStreamDestroy_v2", 4000, (CUstream stream))        \
    X(cuStreamSynchronize, "cuStreamSynchronize", "cuStreamSynchronize_ptsz", 2000,                \
      (CUstream stream))                                                                           \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", "cuStreamWaitEvent_ptsz", 3020,                      \
      (CUstream stream, CUevent event, unsigned int flags))                                        \
    X(cuEventCreate, "cuEventCreate", "cuEventCreate", 2000,                                       \
      (CUevent * event, unsigned int flags))                                                       \
    X(cuEventRecord, "cuEventRecord", "cuEventRecord_ptsz", 2000,                                  \
      (CUevent event, CUstream stream))                                                            \
    X(cuEventDestroy, "cuEventDestroy_v2", "cuEventDestroy_v2", 4000, (CUevent event))             \
    X(cuMemAlloc, "cuMemAlloc_v2", "cuMemAlloc_v2", 3020, (CUdeviceptr * block, size_t bytes))     \
    X(cuMemFree, "cuMemFree_v2", "cuMemFree_v2", 3020, (CUdeviceptr block))                        \
    X(cuMemAllocAsync, "cuMemAllocAsync", "cuMemAllocAsync_ptsz", 11020,                           \
      (CUdeviceptr * block, size_t bytes, CUstream stream))                                        \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", 11020,   \
      (CUdeviceptr * block, size_t bytes, CUmemoryPool pool, CUstream stream))                     \
    X(cuMemFreeAsync, "cuMemFreeAsync", "cuMemFreeAsync_ptsz", 11020,                              \
      (CUdeviceptr block, CUstream stream))                                                        \
    X(cuMemPoolCreate, "cuMemPoolCreate", "cuMemPoolCreate", 11020,                                \
      (CUmemoryPool * pool, const CUmemPoolProps *properties))                                     \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", "cuMemPoolDestroy", 11020, (CUmemoryPool pool))        \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", "cuMemPoolTrimTo", 11020,                                \
      (CUmemoryPool pool, size_t keep))                                                            \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", "cuMemPoolSetAttribute", 11020,              \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value))                             \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", "cuMemPoolGetAttribute", 11020,              \
      (CUmemoryPool pool, CUmemPool_attribute attribute, void *value))                             \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020,  \
      (CUmemoryPool * pool, CUdevice device))                                                      \
    X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", "cuMemGetAddressRange_v2", 3020,            \
      (CUdeviceptr * base, size_t *bytes, CUdeviceptr address))                                    \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", "cuPointerGetAttribute", 4000,               \
      (void *value, CUpointer_attribute attribute, CUdeviceptr address))                           \
    X(cuMemsetD8Async, "cuMemsetD8Async", "cuMemsetD8Async_ptsz", 3020,                            \
      (CUdeviceptr block, unsigned char value, size_t bytes, CUstream stream))                     \
    X(cuMemsetD32Async, "cuMemsetD32Async", "cuMemsetD32Async_ptsz", 3020,                         \
      (CUdeviceptr block, unsigned int value, size_t count, CUstream stream))                      \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz", 3020,                \
      (CUdeviceptr block, const void *host, size_t bytes, CUstream stream))                        \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", 3020,                \
      (void *host, CUdeviceptr block, size_t bytes, CUstream stream))                              \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds", 3020,                               \
      (void *host, CUdeviceptr block, size_t bytes))                                               \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz", 10010,      \
      (CUstream stream, CUstreamCaptureMode mode))                                                 \
    X(cuStreamEndCapture, "cuStreamEndCapture", "cuStreamEndCapture_ptsz", 10000,                  \
      (CUstream stream, CUgraph *graph))                                                           \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags",   \
      11040, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                        \
    X(cuGraphLaunch, "cuGraphLaunch", "cuGraphLaunch_ptsz", 10000,                                 \
      (CUgraphExec exec, CUstream stream))                                                         \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", "cuGraphExecDestroy", 10000, (CUgraphExec exec))   \
    X(cuGraphDestroy, "cuGraphDestroy", "cuGraphDestroy", 10000, (CUgraph graph))
/* clang-format on */

struct cuda {
#define VICTIM_POINTER(name, symbol, own, version, params) CUresult(*name) params;
    VICTIM_ENTRIES(VICTIM_POINTER)
#undef VICTIM_POINTER
};

/* CU() makes a call that must succeed, and HOLDS() checks a fact; else the program ends with status 99. */
#define VICTIM_LINE(line) #line
#define VICTIM_AT(file, line) file ":" VICTIM_LINE(line) ": "
#define CU(call) victim_must(VICTIM_AT(__FILE__, __LINE__) #call, (call))
#define HOLDS(fact) ((fact) ? (void)0 : victim_fail(VICTIM_AT(__FILE__, __LINE__) #fact))
void victim_must(const char *call, CUresult result);
_Noreturn void victim_fail(const char *what);

/* Fills *cuda with the results of `find` for each entry, by its base name and first version or by its symbol.  All
 * entries must exist.  With per-thread streams the version is at least the one that brought them. */
void victim_load(struct cuda *cuda,
                 void *(*find)(const char *name, int version, const char *symbol), int own_streams);

/* Starts the driver and makes the context of device 0 current for this thread. */
void victim_start(const struct cuda *cuda);

/* Does the work, with contents from `seed`.  Prints its checksum after `who`. */
void victim_work(const struct cuda *cuda, const char *who, unsigned seed);
/* Allocates blocks on `stream`, holds some, and checks each before its free.  Returns the checksum. */
unsigned victim_churn(const struct cuda *cuda, CUstream stream, unsigned seed);
/* Captures an allocation, a fill and a free, and launches the graph three times. */
void victim_graph(const struct cuda *cuda, const char *who, unsigned seed);

/* Makes a pool of device 0 that frees nothing at a synchronization. */
CUmemoryPool victim_pool(const struct cuda *cuda);

/* Sleeps a millisecond, as a function for cuLaunchHostFunc. */
typedef void victim_host_function(void *nothing);
void victim_take_time(void *nothing);

/* Copies the environment and clears its old place, as programs do to set a title. */
void victim_set_title(void);
/* Overwrites argv[0] and the environment, and clears the environment, as programs do to set a longer title. */
void victim_clear_environment(char *first);

/* Returns the number after --status, else 0.  With --at-once N calls _exit(N), and with --quickly N quick_exit(N). */
int victim_status(int argc, char **argv);

#endif
