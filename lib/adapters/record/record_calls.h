/* SPDX-License-Identifier: MIT */
/* record_calls.h: lists the driver's functions that libweir-record.so replaces, in the form of interpose.h.
 *
 * This file must not depend on how a call is recorded. */
#ifndef WEIR_RECORD_CALLS_H
#define WEIR_RECORD_CALLS_H

#include "adapters/interpose/both_calls.h"

/* Driver functions with two symbols: with the ending _ptsz, stream 0 is the calling thread's own default stream. */
/* clang-format off */
#define WEIR_INTERPOSED_STREAMS(X)                                                                 \
    WEIR_BOTH_STREAMS(X)                                                                           \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream), (stream))

/* Driver functions with only one symbol, without the ending _ptsz. */
#define WEIR_INTERPOSED_PLAIN(X)                                                                   \
    WEIR_BOTH_PLAIN(X)                                                                             \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020,                                             \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,                     \
       unsigned long long flags),                                                                  \
      (address, bytes, alignment, hint, flags))                                                    \
    X(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr address, size_t bytes),              \
      (address, bytes))                                                                            \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void), ())

/* Driver functions that this library calls but does not replace. */
#define WEIR_INTERPOSED_USED(X)                                                                    \
    WEIR_BOTH_USED(X)                                                                              \
    X(cuDeviceGetName, cuDeviceGetName, 2000, (char *name, int bytes, CUdevice device),            \
      (name, bytes, device))
/* clang-format on */

#endif
