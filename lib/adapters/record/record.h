/* SPDX-License-Identifier: MIT */
/* record.h: what libweir-record.so gives to others, beside the driver's names. */
#ifndef WEIR_RECORD_H
#define WEIR_RECORD_H

#include <stdint.h>

#include "adapters/record/nvtx_abi.h"

#define WEIR_RECORD_EXPORT __attribute__((visibility("default")))

/* For programs, which find it by dlsym or as a weak symbol: an iteration ends here. */
WEIR_RECORD_EXPORT void weir_mark(const char *label);

/* For NVTX (record_nvtx.c), which finds it in the library that NVTX_INJECTION64_PATH names. */
WEIR_RECORD_EXPORT weir_nvtx_initialize InitializeInjectionNvtx2;

/* Names of callers (record_callers.c): whether they are wanted, and the numbers of this thread's two; 0: none. */
extern int weir__record_callers;
void weir__record_who(uint64_t *place, uint64_t *range);
/* record_nvtx.c: the innermost range of this thread that has a name, or NULL. */
const char *weir__record_range(void);
/* record.c: gives the recorder a name. */
void weir__record_name(uint64_t number, const char *name);

#endif
