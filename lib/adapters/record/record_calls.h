/* SPDX-License-Identifier: MIT */
/* record_calls.h: lists the driver's functions that libweir-record.so replaces.  interpose.h describes these lists.
 *
 * This file must not know how a call is recorded.
 */
#ifndef WEIR_RECORD_CALLS_H
#define WEIR_RECORD_CALLS_H

#include "adapters/interpose/both_calls.h"

/* Functions that have two symbols: one without and one with the ending _ptsz.  With the second symbol, stream 0
 * means the thread's own default stream. */
/* clang-format off */
#define WEIR_INTERPOSED_STREAMS(X)                                                                 \
    WEIR_BOTH_STREAMS(X)                                                                           \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream))

/* Functions that have only one symbol, without the ending _ptsz. */
#define WEIR_INTERPOSED_PLAIN(X)                                                                   \
    WEIR_BOTH_PLAIN(X)                                                                             \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020,                                             \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,                     \
       unsigned long long flags),                                                                  \
      (address, bytes, alignment, hint, flags))                                                    \
    X(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr address, size_t bytes),              \
      (address, bytes))                                                                            \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void), ())

/* Functions that this library calls but does not replace. */
#define WEIR_INTERPOSED_USED(X)                                                                    \
    WEIR_BOTH_USED(X)                                                                              \
    X(cuDeviceGetName, cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device),            \
      (name, bytes, device))
/* clang-format on */

#endif
