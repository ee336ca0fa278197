/* SPDX-License-Identifier: MIT */
/* interpose.h: how this library gets the calls of the CUDA driver, and calls the driver.
 *
 * A program finds the driver's functions in three ways: it is linked against libcuda.so.1, calls dlsym, or calls
 * cuGetProcAddress, whose address it has from dlsym.  A library that is loaded before the driver and exports the
 * driver's names and dlsym gets all of these calls.  WEIR_INTERPOSED is the file with the lists of a library
 * (preload_calls.h, record_calls.h):
 *     WEIR_INTERPOSED_STREAMS  symbols with a second form, _ptsz, for which stream 0 is the thread's own default stream
 *     WEIR_INTERPOSED_PLAIN    symbols with one form
 *     WEIR_INTERPOSED_USED     symbols that only the library calls
 * The rows are X(base name, symbol, first version, (parameters), (arguments)).  For every name of the first two lists
 * the library defines weir__serve_SYMBOL, which may call the driver by REAL(SYMBOL).
 *
 * A lookup only gets a served address if the driver has an address for that request: for equal name, version of the
 * interface, and meaning of stream 0.  All other lookups pass through.
 *
 * This file must not know weir, or how calls are served.
 */
#ifndef WEIR_INTERPOSE_H
#define WEIR_INTERPOSE_H

#include <stdatomic.h>

#include WEIR_INTERPOSED /* the lists of the library that is built */

enum weir_interposed {
#define WEIR_ROW(base, symbol, version, params, args) WEIR_ROW_##symbol,
#define WEIR_ROWS(base, symbol, version, params, args) WEIR_ROW_##symbol, WEIR_ROW_##symbol##_ptsz,
    WEIR_INTERPOSED_STREAMS(WEIR_ROWS) WEIR_INTERPOSED_PLAIN(WEIR_ROW) WEIR_ROW_cuGetProcAddress,
    WEIR_ROW_cuGetProcAddress_v2,
    WEIR_INTERPOSED_USED(WEIR_ROW) WEIR_INTERPOSED_COUNT
#undef WEIR_ROW
#undef WEIR_ROWS
};

/* The functions that serve calls, and the types of calls. */
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

/* The addresses of the driver's functions, or NULL before the first use.  For weir__interpose_real alone. */
extern _Atomic(void *) weir__interposed_real[WEIR_INTERPOSED_COUNT];
void *weir__interpose_find(enum weir_interposed row);

/* Returns the driver's function, or a function that returns CUDA_ERROR_NOT_FOUND if the driver has none. */
static inline void *weir__interpose_real(enum weir_interposed row) {
    void *real = atomic_load_explicit(&weir__interposed_real[row], memory_order_acquire);

    return __builtin_expect(real != NULL, 1) ? real : weir__interpose_find(row);
}

#define REAL(symbol) (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol))

#define REAL_PTSZ(symbol)                                                                          \
    (__extension__(weir__type_##symbol *) weir__interpose_real(WEIR_ROW_##symbol##_ptsz))

/* Set once a lookup of a function that begins captures got an address that is not served: a function of a driver that
 * is newer than these lists, or a lookup by a library between program and driver. */
extern atomic_int weir__interposed_unseen;
static inline int weir__interposed_passes(void) {
    return atomic_load_explicit(&weir__interposed_unseen, memory_order_relaxed);
}

/* Nonzero while this thread is inside a served call.  All driver calls meanwhile, by the thread or by the driver on its
 * behalf, go to the driver.  The library is loaded with the program, so its thread variables lie at fixed places. */
extern _Thread_local int weir__inside __attribute__((tls_model("initial-exec")));

#endif
