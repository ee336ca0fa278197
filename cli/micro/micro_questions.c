/* SPDX-License-Identifier: MIT */
/* micro_questions.c: what the driver takes to answer the questions that an allocator asks in each call
 * and that change nothing, so that their share of a pair can be told.
 */
#include "cli/common/jsonfile.h"
#include "cli/micro/micro.h"

struct question {
    enum weir_driver_entry entry;
    CUresult (*ask)(const struct weir_driver *driver, CUstream stream, CUmemoryPool pool);
};

static CUresult ask_capturing(const struct weir_driver *driver, CUstream stream,
                              CUmemoryPool pool) {
    CUstreamCaptureStatus status;

    (void)pool;
    return driver->cuStreamIsCapturing(stream, &status);
}

static CUresult ask_id(const struct weir_driver *driver, CUstream stream, CUmemoryPool pool) {
    unsigned long long id;

    (void)pool;
    return driver->cuStreamGetId ? driver->cuStreamGetId(stream, &id) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult ask_context(const struct weir_driver *driver, CUstream stream, CUmemoryPool pool) {
    CUcontext context;

    (void)stream;
    (void)pool;
    return driver->cuCtxGetCurrent(&context);
}

static CUresult ask_reserved(const struct weir_driver *driver, CUstream stream, CUmemoryPool pool) {
    uint64_t bytes;

    (void)stream;
    return driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
}

static const struct question questions[] = {
    {WEIR_ENTRY_cuStreamIsCapturing, ask_capturing},
    {WEIR_ENTRY_cuStreamGetId, ask_id},
    {WEIR_ENTRY_cuCtxGetCurrent, ask_context},
    {WEIR_ENTRY_cuMemPoolGetAttribute, ask_reserved},
};

/* ns a call; on a modelled device virtual ones.  Below 0: this driver does not answer. */
static double price_of(const struct micro *micro, const struct question *question, CUstream stream,
                       CUmemoryPool pool) {
    enum { CALLS = 20000, TRIES = 5 };
    double ns[TRIES];

    if (question->ask(micro->counted, stream, pool) != CUDA_SUCCESS)
        return -1.0;
    for (int i = 0; i < TRIES; i++) {
        struct span span = {0, 0, 0};
        struct span_start start;

        span_begin(&micro->clock, &start);
        for (int call = 0; call < CALLS; call++)
            question->ask(micro->driver, stream, pool);
        span_end(&micro->clock, &start, &span);
        ns[i] = (double)(micro->driver->charge ? span.driver_ns : span.ns) / CALLS;
    }
    return micro_median(ns, TRIES);
}

void micro_price_questions(struct micro *micro) {
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, micro->handle}};
    CUstream stream = NULL;

    micro->call_ns = json_object();
    if (micro->driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
        micro->driver->cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS)
        for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
            double ns = price_of(micro, &questions[i], stream, pool);

            if (ns >= 0.0)
                json_object_set_new(micro->call_ns, weir__driver_entry_name(questions[i].entry),
                                    jsonfile_rounded(ns, 10.0));
        }
    if (pool)
        micro->driver->cuMemPoolDestroy(pool);
    if (stream)
        micro->driver->cuStreamDestroy(stream);
}
