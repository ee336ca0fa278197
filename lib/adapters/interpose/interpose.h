/* SPDX-License-Identifier: MIT */
/* interpose.h: how a preloaded library receives the program's calls of the CUDA driver, and calls the driver itself.
 *
 * A program is linked against libcuda.so.1, or finds the driver's functions by dlsym or by cuGetProcAddress, which
 * the program finds by dlsym.  A library receives all these calls if it is loaded before the driver and exports dlsym
 * and the names of the driver's functions.  The macro WEIR_INTERPOSED names a file with three lists of the driver's
 * functions (preload_calls.h or record_calls.h):
 *     WEIR_INTERPOSED_STREAMS  functions with two symbols, with and without the ending _ptsz.  With _ptsz, stream 0 is
 *                              the calling thread's own default stream
 *     WEIR_INTERPOSED_PLAIN    functions with only one symbol, without the ending _ptsz
 *     WEIR_INTERPOSED_USED     functions that the library calls but does not replace
 * Each row of a list is X(base name, symbol, first version, (parameters), (arguments)).  For each symbol of the first
 * two lists, the library defines a function weir__serve_SYMBOL, which the program calls in place of the driver's
 * function, and which may call the driver's function by REAL(SYMBOL).
 *
 * A lookup by dlsym or cuGetProcAddress gets the address of weir__serve_SYMBOL only if the driver has a function with
 * this name, this version of the interface and this meaning of stream 0.  All other lookups get the driver's answer.
 *
 * This file must not depend on libweir, or on what the functions weir__serve_SYMBOL do. */
#ifndef WEIR_INTERPOSE_H
#define WEIR_INTERPOSE_H

#include <stdatomic.h>

#include WEIR_INTERPOSED

enum weir_interposed {
#define WEIR_ROW(base, symbol, version, params, args) WEIR_ROW_##symbol,
#define WEIR_ROWS(base, symbol, version, params, args) WEIR_ROW_##symbol, WEIR_ROW_##symbol##_ptsz,
    WEIR_INTERPOSED_STREAMS(WEIR_ROWS) WEIR_INTERPOSED_PLAIN(WEIR_ROW) WEIR_ROW_cuGetProcAddress,
    WEIR_ROW_cuGetProcAddress_v2,
    WEIR_INTERPOSED_USED(WEIR_ROW) WEIR_INTERPOSED_COUNT
#undef WEIR_ROW
#undef WEIR_ROWS
};

/* Declares weir__type_SYMBOL for each listed function, and weir__serve_SYMBOL for each replaced function. */
#define WEIR_SERVE(base, symbol, version, params, args)                                            \
    typedef CUresult weir__type_##symbol params;                                                   \
    CUresult weir__serve_##symbol params;
#define WEIR_SERVE_BOTH(base, symbol, version, params, args)                                       \
    WEIR_SERVE(base, symbol, version, params, args)                                                \
    WEIR_SERVE(base, symbol##_ptsz, version, params, args)
#define WEIR_USE(base, symbol, version, params, args) typedef CUresult weir__type_##symbol params;
WEIR_INTERPOSED_STREAMS(WEIR_SERVE_BOTH)
WEIR_INTERPOSED_PLAIN(WEIR_SERVE)
WEIR_INTERPOSED_USED(WEIR_USE)
#undef WEIR_SERVE
#undef WEIR_SERVE_BOTH
#undef WEIR_USE

/* The addresses of the driver's own functions, NULL before the first call.  Other files use weir__interpose_real(). */
extern _Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
void *weir__interpose_find(enum weir_interposed row);

/* Returns the driver's own function.  If there is none, returns a function that returns CUDA_ERROR_NOT_FOUND. */
static inline void *weir__interpose_real(enum weir_interposed row) {
    void *real = atomic_load_explicit(&weir__interposed_real[row], memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : weir__interpose_find(row);
}

#define REAL(symbol) (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol))

#define REAL_PTSZ(symbol)                                                                          \
    (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol##_ptsz))

/* Set once the program can begin captures by a function that weir does not replace. */
extern atomic_int weir__captures_missed;
static inline int weir__misses_captures(void) {
    return atomic_load_explicit(&weir__captures_missed, memory_order_relaxed);
}

/* Nonzero while this thread executes a function of weir.  weir then passes the thread's driver calls, also those by the
 * driver itself, on unchanged.  The TLS model is "initial-exec", because the library is loaded with the program. */
extern _Thread_local int weir__is_serving __attribute__((tls_model("initial-exec")));

#endif
