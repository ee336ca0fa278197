/* SPDX-License-Identifier: MIT */
/* interpose.h: how a call of the CUDA driver comes by here on its way, and goes on.
 *
 * A program reaches the driver in three ways: it is linked against libcuda.so.1, it asks dlsym, or it
 * asks cuGetProcAddress, whose address it has from dlsym.  A library that is loaded before it
 * exports the driver's names and dlsym, and so stands in each way.  Which names those are its build says:
 * WEIR_INTERPOSED is the file of its lists (preload_calls.h, record_calls.h):
 *     WEIR_INTERPOSED_STREAMS  symbols with a second form, _ptsz, to which stream 0 is the thread's own
 *     WEIR_INTERPOSED_PLAIN    symbols that have one form alone
 *     WEIR_INTERPOSED_USED     symbols that are asked for by the library alone
 * of rows X(base name, symbol, first version, (parameters), (arguments)).  For every name of the first two
 * the library defines weir__serve_SYMBOL, which may go on to the driver by REAL(SYMBOL).
 *
 * An address is replaced only where the driver has one for the very same request: of the same name, in
 * the same version of its interface, for the same meaning of stream 0.  All else passes through.
 *
 * Must not know: what is served, weir.
 */
#ifndef WEIR_INTERPOSE_H
#define WEIR_INTERPOSE_H

#include <stdatomic.h>

#include WEIR_INTERPOSED /* the lists of the library that this is built for */

enum weir_interposed {
#define WEIR_ROW(base, symbol, version, params, args) WEIR_ROW_##symbol,
#define WEIR_ROWS(base, symbol, version, params, args) WEIR_ROW_##symbol, WEIR_ROW_##symbol##_ptsz,
    WEIR_INTERPOSED_STREAMS(WEIR_ROWS) WEIR_INTERPOSED_PLAIN(WEIR_ROW) WEIR_ROW_cuGetProcAddress,
    WEIR_ROW_cuGetProcAddress_v2,
    WEIR_INTERPOSED_USED(WEIR_ROW) WEIR_INTERPOSED_COUNT
#undef WEIR_ROW
#undef WEIR_ROWS
};

/* What serves, and the types. */
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

/* Where the driver's own are; NULL: nobody has asked yet.  For weir__interpose_real alone. */
extern _Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
void *weir__interpose_find(enum weir_interposed row);

/* The driver's own; if it has none, a function that answers CUDA_ERROR_NOT_FOUND. */
static inline void *weir__interpose_real(enum weir_interposed row) {
    void *real = atomic_load_explicit(&weir__interposed_real[row], memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : weir__interpose_find(row);
}

#define REAL(symbol) (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol))

#define REAL_PTSZ(symbol)                                                                          \
    (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol##_ptsz))

/* 1 once a name by which captures of streams begin was answered with a function that serves nothing: one of a driver that is
 * newer than these lists, or one that a library between program and driver looked up. */
extern atomic_int weir__interposed_unseen;
static inline int weir__interposed_passes(void) {
    return atomic_load_explicit(&weir__interposed_unseen, memory_order_relaxed);
}

/* Nonzero while this thread is inside what serves: whatever is called meanwhile, by it or by the driver
 * on its behalf, goes to the driver at once.  The library is loaded with the program, so that its
 * variables of threads lie at fixed places. */
extern _Thread_local int weir__inside __attribute__((tls_model("initial-exec")));

#endif
