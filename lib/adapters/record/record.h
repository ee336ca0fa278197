/* SPDX-License-Identifier: MIT */
/* record.h: what libweir-record.so gives to others, beside the driver's names. */
#ifndef WEIR_RECORD_H
#define WEIR_RECORD_H

#include "driver/nvtx_abi.h"

#define WEIR_RECORD_EXPORT __attribute__((visibility("default")))

/* For programs, which find it by dlsym or as a weak symbol: an iteration ends here. */
WEIR_RECORD_EXPORT void weir_mark(const char *label);

/* For NVTX (record_nvtx.c), which finds it in the library that NVTX_INJECTION64_PATH names. */
WEIR_RECORD_EXPORT weir_nvtx_initialize InitializeInjectionNvtx2;

#endif
