/* SPDX-License-Identifier: MIT */
/* interpose.h: how a preloaded library receives a program's calls of the CUDA driver, and how the library calls the
 * driver.
 *
 * A program finds the driver's functions in three ways: the program is linked against libcuda.so.1, calls dlsym, or
 * calls cuGetProcAddress, whose address dlsym returns.  A library that is loaded before the driver, and that exports
 * the driver's names and dlsym, receives all of these calls.  The macro WEIR_INTERPOSED names a file with the lists of
 * the driver's functions that the library uses (preload_calls.h or record_calls.h):
 *     WEIR_INTERPOSED_STREAMS  symbols that have a second form with the ending _ptsz.  In the second form, stream 0
 *                              means the thread's own default stream
 *     WEIR_INTERPOSED_PLAIN    symbols that have no second form
 *     WEIR_INTERPOSED_USED     symbols that the library calls but does not replace
 * Each row is X(base name, symbol, first version, (parameters), (arguments)).  For every symbol of the first two lists
 * the library defines weir__serve_SYMBOL, which replaces the driver's function for the program, and which may call the
 * driver's function by REAL(SYMBOL).
 *
 * A lookup gets the address of weir__serve_SYMBOL only if the driver has a function with that name, that version of the
 * interface and that meaning of stream 0.  All other lookups get the driver's answer.
 *
 * This file must not know weir, or how calls are served.
 */
#ifndef WEIR_INTERPOSE_H
#define WEIR_INTERPOSE_H

#include <stdatomic.h>

#include WEIR_INTERPOSED /* the file with the lists of the library that is built */

enum weir_interposed {
#define WEIR_ROW(base, symbol, version, params, args) WEIR_ROW_##symbol,
#define WEIR_ROWS(base, symbol, version, params, args) WEIR_ROW_##symbol, WEIR_ROW_##symbol##_ptsz,
    WEIR_INTERPOSED_STREAMS(WEIR_ROWS) WEIR_INTERPOSED_PLAIN(WEIR_ROW) WEIR_ROW_cuGetProcAddress,
    WEIR_ROW_cuGetProcAddress_v2,
    WEIR_INTERPOSED_USED(WEIR_ROW) WEIR_INTERPOSED_COUNT
#undef WEIR_ROW
#undef WEIR_ROWS
};

/* Declares a function weir__serve_SYMBOL and a function type weir__type_SYMBOL for each row of the lists. */
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

/* The address of the driver's function for each row, or NULL before its first use.  Other files call
 * weir__interpose_real instead. */
extern _Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
void *weir__interpose_find(enum weir_interposed row);

/* Returns the address of the driver's function.  If the driver has no such function, returns the address of a function
 * that returns CUDA_ERROR_NOT_FOUND. */
static inline void *weir__interpose_real(enum weir_interposed row) {
    void *real = atomic_load_explicit(&weir__interposed_real[row], memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : weir__interpose_find(row);
}

#define REAL(symbol) (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol))

#define REAL_PTSZ(symbol)                                                                          \
    (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol##_ptsz))

/* Set once a lookup returned the driver's own address of a function that begins captures.  weir does not see the
 * captures that this function begins.  This happens if the driver is newer than the lists, or if a library between the
 * program and the driver looks up the function. */
extern atomic_int weir__interposed_unseen;
static inline int weir__interposed_passes(void) {
    return atomic_load_explicit(&weir__interposed_unseen, memory_order_relaxed);
}

/* Nonzero while this thread executes a function weir__serve_SYMBOL for the program.  All driver calls that this thread
 * makes until then go to the driver, even calls that the driver itself makes.  The library is loaded with the program,
 * so the fast model initial-exec for thread variables works. */
extern _Thread_local int weir__inside __attribute__((tls_model("initial-exec")));

#endif
