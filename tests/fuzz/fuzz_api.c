/* SPDX-License-Identifier: MIT */
/* fuzz_api.c: calls the public interface on the device model in any order.
 *
 * The first bytes choose an engine and settings.  Then each byte is a call, and the bytes after it are its arguments:
 * valid and invalid requests and frees, uses, bindings, limits, trims, work, waits, captures, streams that end and
 * begin, and a driver that fails the k-th call of an entry.
 *
 * oracle.h defines which stream may have which memory.  The program keeps to the contract.  If the driver was made to
 * fail, any status is allowed, but the figures stay right, and in the end all memory is free again. */
#include "fuzz.h"

#include <string.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/oracle.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define CAPACITY (256 * MIB)
#define NOBODYS ((void *)0x1234000)
#define NO_STREAM ((CUstream)0x5550000)

enum { CREATED = 6, LEGACY = CREATED, PER_THREAD, STREAMS = ORACLE_STREAMS };
enum { MOST_CALLS = 300, MOST_LIVE = 100, MOST_OLD = 32, ENGINES = 4, POOL = 0, DIRECT = 3 };

static const struct weir_driver *driver;
static CUcontext primary;
static struct oracle oracle;

static struct world {
    weir_allocator *allocator;
    weir_options options;
    int engine, looks, warmed;
    CUstream stream[STREAMS];
    int bound[STREAMS], captured[STREAMS];
    void *old[MOST_OLD]; /* addresses of freed blocks */
    unsigned old_count;
    uint64_t failed_requests;
    /* A failure that is planned for the next call of weir. */
    enum weir_driver_entry entry;
    unsigned call;
    CUresult result;
    int refused; /* set if the driver may have failed in this call, or in any before */
    int ever_refused;
} w;

#define CU(call) SAME(call, CUDA_SUCCESS)

/* FUZZ_TELL=1 in the environment prints the calls of an input. */
static int telling;
#define TELL(...) (telling ? (void)fprintf(stderr, __VA_ARGS__) : (void)0)

/* ---- the driver refuses ---------------------------------------------------------------------- */

static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                 WEIR_ENTRY_cuMemFreeAsync,
                                                 WEIR_ENTRY_cuMemAlloc,
                                                 WEIR_ENTRY_cuMemFree,
                                                 WEIR_ENTRY_cuEventCreate,
                                                 WEIR_ENTRY_cuEventRecord,
                                                 WEIR_ENTRY_cuEventQuery,
                                                 WEIR_ENTRY_cuStreamWaitEvent,
                                                 WEIR_ENTRY_cuStreamGetId,
                                                 WEIR_ENTRY_cuStreamIsCapturing,
                                                 WEIR_ENTRY_cuMemPoolGetAttribute,
                                                 WEIR_ENTRY_cuMemPoolTrimTo,
                                                 WEIR_ENTRY_cuMemPoolSetAttribute,
                                                 WEIR_ENTRY_cuStreamCreate,
                                                 WEIR_ENTRY_cuMemGetInfo,
                                                 WEIR_ENTRY_cuCtxPushCurrent,
                                                 WEIR_ENTRY_cuMemAllocHost};
static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                   CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN,
                                   CUDA_ERROR_INVALID_HANDLE};

static void plan_failure(struct fuzz_bytes *in) {
    w.entry = entries[fuzz_choice(in, sizeof entries / sizeof entries[0])];
    w.call = fuzz_choice(in, 4) + 1;
    w.result = results[fuzz_choice(in, sizeof results / sizeof results[0])];
}

/* Begin and end a call of weir in which the driver may fail. */
static void begin_call(void) {
    w.refused = w.call > 0;
    if (w.refused)
        TELL(" [call %u of %s refused]", w.call, weir__driver_entry_name(w.entry));
    if (w.refused)
        weir__model_fail(w.entry, w.call, w.result, 0);
    w.ever_refused |= w.refused;
    w.call = 0;
}

static weir_status end_call(weir_status status) {
    weir__model_faults_clear();
    TELL(" = %s\n", weir_status_name(status));
    HOLDS(status <= WEIR_OK && status != WEIR_E_FORKED && status != WEIR_E_DEVICE_LOST);
    return status;
}

/* Makes a call of weir.  The other arguments are its text for FUZZ_TELL. */
#define CALL(call, ...) (TELL(__VA_ARGS__), begin_call(), end_call(call))

/* ---- streams --------------------------------------------------------------------------------- */

/* The legacy stream and the per-thread one wait for each other whenever one of them is touched. */
static void order_default_streams(int s) {
    if (s == LEGACY)
        oracle_follow(&oracle, LEGACY, PER_THREAD);
    else if (s == PER_THREAD)
        oracle_follow(&oracle, PER_THREAD, LEGACY);
}

static void make_fuzz_stream(int s) {
    CU(driver->cuStreamCreate(&w.stream[s], CU_STREAM_NON_BLOCKING));
}

static int any_stream_is_captured(void) {
    for (int s = 0; s < STREAMS; s++)
        if (w.captured[s])
            return 1;
    return 0;
}

static void order_in_oracle(int later, int earlier) {
    CUevent event;

    if (later == earlier)
        return;
    order_default_streams(earlier);
    order_default_streams(later);
    TELL("%d waits for %d\n", later, earlier);
    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, w.stream[earlier]));
    CU(driver->cuStreamWaitEvent(w.stream[later], event, 0));
    CU(driver->cuEventDestroy(event));
    oracle_follow(&oracle, later, earlier);
}

static void submit_work(int s, unsigned length) {
    static const uint64_t ns[] = {0, 1000, 1000000, 20000000, 3600000000000};
    uint64_t now = weir__model_now_ns(), duration = ns[length % 5];

    TELL("work of %llu ns on %d\n", (unsigned long long)duration, s);
    order_default_streams(s);
    CU(weir__model_kernel(w.stream[s], duration));
    if (!w.captured[s])
        oracle_work(&oracle, s, duration, now);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void *block_at(int i) {
    return (void *)(uintptr_t)oracle.block[i].at; /* NOLINT(performance-no-int-to-ptr) */
}

static weir_statistics fuzz_statistics(void) {
    weir_statistics s = {.size = sizeof s};

    SAME(weir_stats(w.allocator, &s), WEIR_OK);
    return s;
}

static void check_fuzz_identities(void) {
    weir_statistics s = fuzz_statistics();
    uint64_t cache =
        s.cache_hits + s.cache_misses_young + s.cache_misses_empty + s.cache_misses_capture;
    const char *wrong = weir__model_pool_check();

    if (wrong)
        FAULT("the model: %s", wrong);
    SAME(s.attempts, s.allocs + s.failed_requests);
    SAME(s.allocs, s.hits + s.growth_allocs);
    SAME(s.allocs, oracle.allocs);
    SAME(s.frees, oracle.frees);
    SAME(s.blocks, (uint64_t)oracle.blocks);
    SAME(s.requested, oracle.requested);
    SAME(s.failed_requests, w.failed_requests);
    AT_MOST(s.requested, s.in_use);
    AT_MOST(s.in_use + s.cache_idle, s.reserved);
    AT_MOST(s.requested, s.requested_peak);
    AT_MOST(s.requested_peak, oracle.requested_peak);
    AT_MOST(s.in_use, s.in_use_peak);
    AT_MOST(s.reserved, s.reserved_peak);
    HOLDS(cache == 0 || cache == s.allocs);
}

static size_t take_size(struct fuzz_bytes *in) {
    static const size_t sizes[] = {1,        512,      513,      4096,    20000,  32 * KIB,
                                   64 * KIB, 70000,    200000,   512000,  600000, MIB,
                                   3 * MIB,  20 * MIB, 33 * MIB, 90 * MIB};
    unsigned choice = fuzz_byte(in);

    return choice < 128 ? sizes[choice % 16] : sizes[choice % 16] + fuzz_byte(in) * 100;
}

static int may_fail(weir_status status, int s) {
    if (w.refused)
        return 1;
    if (w.captured[s])
        return status == WEIR_E_CAPTURE || status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

static void alloc_some(size_t bytes, int s) {
    void *block = NOBODYS;
    weir_status status;
    int i;

    if (oracle.blocks == MOST_LIVE || (w.captured[s] && w.bound[s]))
        return;
    order_default_streams(s);
    status = CALL(weir_alloc(w.allocator, bytes, w.stream[s], &block), "alloc %zu on %d", bytes, s);
    if (status != WEIR_OK) {
        if (!may_fail(status, s))
            FAULT("alloc: %s (%d)", weir_status_name(status), weir_last_driver_result());
        HOLDS(block == NOBODYS);
        w.failed_requests = fuzz_statistics().failed_requests;
        return;
    }
    TELL("  at %p\n", block);
    i = oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns());
    if (w.captured[s])
        oracle_of_graph(&oracle, i);
}

/* Orders the block's stream after the streams of weir_use(), which weir may have forgotten in a failed free. */
static void order_users(int i) {
    struct oracle_block *b = &oracle.block[i];

    for (int t = 0; t < STREAMS; t++)
        if (b->users >> t & 1 && !w.captured[t] && !w.captured[b->stream])
            order_in_oracle(b->stream, t);
}

/* Returns 1 if the block was freed, else 0. */
static int free_fuzz_block(int i, int s) {
    struct oracle_block *b = &oracle.block[i];
    uint64_t now = weir__model_now_ns();
    void *block = block_at(i);
    weir_status status;

    if (b->graph ? b->stream != s : b->stream != s && (w.captured[s] || w.captured[b->stream]))
        return 0;
    order_in_oracle(s, b->stream);
    order_default_streams(s);
    status = CALL(weir_free(w.allocator, block, w.stream[s]), "free %p, %zu of %d on %d", block,
                  b->bytes, b->stream, s);
    if (status != WEIR_OK) {
        if (!w.refused && !(status == WEIR_E_CAPTURE && any_stream_is_captured()))
            FAULT("free: %s (%d)", weir_status_name(status), weir_last_driver_result());
        HOLDS(status != WEIR_E_NOT_OWNED || w.refused);
        order_users(i);
        return 0;
    }
    if (b->graph) {
        oracle_gone(&oracle, i);
        return 1;
    }
    /* A capture keeps no block of the direct engine. */
    oracle_given(&oracle, i, s, w.captured[s] && w.engine != DIRECT, now);
    w.old[w.old_count++ % MOST_OLD] = block;
    return 1;
}

/* Allocates for no stream.  `s` is one of the streams that may use the block. */
static void alloc_any(size_t bytes, int s) {
    void *block = NOBODYS;
    weir_status status;

    if (oracle.blocks == MOST_LIVE)
        return;
    status = CALL(weir_alloc_any(w.allocator, bytes, &block), "alloc %zu for any", bytes);
    if (status != WEIR_OK) {
        if (!w.refused && status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT)
            FAULT("alloc for any: %s (%d)", weir_status_name(status), weir_last_driver_result());
        HOLDS(block == NOBODYS);
        w.failed_requests = fuzz_statistics().failed_requests;
        return;
    }
    TELL("  at %p\n", block);
    (void)oracle_taken(&oracle, (uintptr_t)block, bytes, s, weir__model_now_ns());
}

/* Frees a block after all work of all streams has completed. */
static void free_any(int i) {
    struct oracle_block *b = &oracle.block[i];
    void *block = block_at(i);
    weir_status status;

    if (b->graph)
        return;
    status = CALL(weir_free_any(w.allocator, block), "free %p, %zu of %d by any", block, b->bytes,
                  b->stream);
    if (status != WEIR_OK) {
        if (!w.refused && !(status == WEIR_E_CAPTURE && any_stream_is_captured()))
            FAULT("free by any: %s (%d)", weir_status_name(status), weir_last_driver_result());
        HOLDS(status != WEIR_E_NOT_OWNED || w.refused);
        order_users(i);
        return;
    }
    oracle_given(&oracle, i, b->stream, 0, weir__model_now_ns());
    w.old[w.old_count++ % MOST_OLD] = block;
}

/* Sets a limit, which weir caps at the limit of the options. */
static void set_limit(unsigned units) {
    weir_amount limit = {units * 32 * MIB, units ? WEIR_AMOUNT_BYTES : WEIR_AMOUNT_MAX};
    weir_status status = CALL(weir_set_limit(w.allocator, limit), "limit %u units", units);

    if (status != WEIR_OK && status != WEIR_E_NOT_SUPPORTED && !w.refused)
        FAULT("limit: %s (%d)", weir_status_name(status), weir_last_driver_result());
}

static void use_fuzz_block(int i, int s) {
    struct oracle_block *b = &oracle.block[i];

    if (b->graph || w.captured[s] || w.captured[b->stream])
        return;
    order_in_oracle(s, b->stream);
    if (CALL(weir_use(w.allocator, block_at(i), w.stream[s]), "use %p on %d", block_at(i), s) ==
        WEIR_OK)
        b->users |= 1u << s;
    else
        HOLDS(w.refused);
}

static int engine_has_caches(void) {
    return w.options.cache == WEIR_SWITCH_ON ||
           (w.options.cache == WEIR_SWITCH_DEFAULT && w.engine != DIRECT);
}

/* ---- invalid calls --------------------------------------------------------------------------- */

static int is_block(const void *address) {
    for (int i = 0; i < oracle.blocks; i++)
        if (block_at(i) == address)
            return 1;
    return 0;
}

/* The pool engine without caches leaves the check to the driver, which knows its blocks to the byte, too. */
static void free_wrong(struct fuzz_bytes *in) {
    unsigned how = fuzz_choice(in, 4), which = fuzz_byte(in), by = fuzz_byte(in);
    int s = (int)fuzz_choice(in, STREAMS), i;
    char *address = NOBODYS;
    uint64_t frees = fuzz_statistics().frees;

    if (how == 1 && w.old_count > 0)
        address = w.old[which % (w.old_count < MOST_OLD ? w.old_count : MOST_OLD)];
    i = oracle.blocks > 0 ? (int)which % oracle.blocks : -1;
    if (how >= 2 && i >= 0)
        address = (char *)block_at(i) + (how == 2 ? by % oracle.block[i].bytes : by * 256);
    if (is_block(address) || any_stream_is_captured())
        return;
    order_default_streams(s);
    SAME(weir_free(w.allocator, address, w.stream[s]), WEIR_E_NOT_OWNED);
    SAME(fuzz_statistics().frees, frees);
}

static void call_wrong(struct fuzz_bytes *in) {
    void *block = NOBODYS;
    int s = (int)fuzz_choice(in, STREAMS);

    SAME(weir_alloc(w.allocator, 0, w.stream[s], &block), WEIR_OK);
    HOLDS(block == NULL);
    SAME(weir_alloc(w.allocator, 1, w.stream[s], NULL), WEIR_E_INVALID);
    SAME(weir_free(w.allocator, NULL, w.stream[s]), WEIR_OK);
    if (any_stream_is_captured())
        return;
    HOLDS(weir_alloc(w.allocator, KIB, NO_STREAM, &block) == WEIR_E_STREAM && block == NULL);
    if (!w.bound[s])
        HOLDS((weir_unbind(w.allocator, w.stream[s]) == WEIR_OK) == !engine_has_caches());
    if (oracle.blocks > 0) {
        HOLDS(weir_allocator_destroy(w.allocator) == WEIR_E_BUSY);
        if (w.engine != DIRECT)
            SAME(weir_free(w.allocator, block_at(0), NO_STREAM), WEIR_E_STREAM);
    }
    w.failed_requests = fuzz_statistics().failed_requests;
}

/* ---- all at once ----------------------------------------------------------------------------- */

static void bind_stream(int s) {
    if (w.captured[s])
        return;
    if (!w.bound[s])
        w.bound[s] = CALL(weir_bind(w.allocator, w.stream[s]), "bind %d", s) == WEIR_OK;
    else
        w.bound[s] = CALL(weir_unbind(w.allocator, w.stream[s]), "unbind %d", s) != WEIR_OK;
    HOLDS(w.refused || w.bound[s] <= 1);
}

static void trim_to_keep(size_t keep) {
    size_t released = 0;
    weir_status status = CALL(weir_trim(w.allocator, keep, &released), "trim to %zu", keep);

    if (status != WEIR_OK && status != WEIR_E_NO_MEMORY && !w.refused)
        FAULT("trim: %s (%d)", weir_status_name(status), weir_last_driver_result());
    HOLDS(released % 256 == 0 && released <= CAPACITY);
}

static void preallocate_bytes(size_t bytes) {
    size_t reserve = 77;
    weir_status status =
        CALL(weir_preallocate(w.allocator, bytes, &reserve), "preallocate %zu", bytes);

    if (status == WEIR_OK)
        HOLDS(reserve >= bytes);
    else
        HOLDS(w.refused || status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT ||
              status == WEIR_E_NOT_SUPPORTED);
}

/* Replaces a stream by a new one, maybe with an equal handle.  The stream `heir` gets the old stream's blocks. */
static void renew_fuzz_stream(int s, int heir) {
    if (s >= CREATED || s == heir || w.captured[s] || w.captured[heir] ||
        w.options.stream_checks == WEIR_SWITCH_OFF)
        return;
    for (int i = 0; i < oracle.blocks; i++)
        if (oracle.block[i].users >> s & 1)
            return;
    while (w.bound[s])
        bind_stream(s);
    order_in_oracle(heir, s);
    for (int i = 0; i < oracle.blocks; i++)
        if (oracle.block[i].stream == s)
            oracle.block[i].stream = heir;
    TELL("stream %d ends, another begins\n", s);
    CU(driver->cuStreamDestroy(w.stream[s]));
    oracle_renew(&oracle, s);
    make_fuzz_stream(s);
}

static void begin_fuzz_capture(int s, unsigned mode) {
    if (s >= CREATED || w.captured[s] || w.options.stream_checks == WEIR_SWITCH_OFF)
        return;
    if (w.engine == POOL && !engine_has_caches())
        mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* the engine's calls break other modes */
    TELL("capture of %d begins, mode %u\n", s, mode % 3);
    CU(driver->cuStreamBeginCapture(w.stream[s], (CUstreamCaptureMode)(mode % 3)));
    w.captured[s] = 1;
}

/* Frees the blocks of the graph and ends the capture. */
static void end_fuzz_capture(int s) {
    CUgraph graph = NULL;

    if (!w.captured[s])
        return;
    w.call = 0;
    for (int i = oracle.blocks; i-- > 0;)
        if (oracle.block[i].graph && oracle.block[i].stream == s)
            HOLDS(free_fuzz_block(i, s));
    TELL("capture of %d ends\n", s);
    CU(driver->cuStreamEndCapture(w.stream[s], &graph));
    CU(driver->cuGraphDestroy(graph));
    w.captured[s] = 0;
    oracle_captured(&oracle, s);
}

/* Repeats allocations and frees, so that the stream has a cache or the engine is steady. */
static void alloc_and_free_pairs(size_t bytes, int s, int pairs) {
    for (int i = 0; i < pairs && oracle.blocks < MOST_LIVE; i++) {
        int before = oracle.blocks;

        alloc_some(bytes, s);
        if (oracle.blocks > before)
            (void)free_fuzz_block(before, s);
    }
}

static void look_at_events(void) {
    weir_event event[8];
    weir_latency latency = {.size = sizeof latency};
    size_t count = 0;

    SAME(weir_events(w.allocator, 0, event, sizeof event[0], 8, &count), WEIR_OK);
    HOLDS(count <= 8);
    for (size_t i = 0; i < count; i++) {
        HOLDS(event[i].sequence > 0 && event[i].cause < WEIR_EVENT_CAUSE_COUNT);
        HOLDS(i == 0 || event[i].sequence == event[i - 1].sequence + 1);
    }
    HOLDS(weir_latencies(w.allocator, 0, &latency) ==
          (w.options.latency == WEIR_SWITCH_ON ? WEIR_OK : WEIR_E_NOT_SUPPORTED));
    HOLDS(latency.p50_ns <= latency.p99_ns && latency.max_ns <= latency.total_ns + 77);
}

/* ---- one input ------------------------------------------------------------------------------- */

static void call_something(struct fuzz_bytes *in) {
    unsigned what = fuzz_byte(in) % 40;
    int s = (int)fuzz_choice(in, STREAMS), i;

    i = oracle.blocks > 0 ? (int)(in->left > 0 ? in->at[0] : 0) % oracle.blocks : -1;
    switch (what) {
    default: /* 0 to 9 */
        alloc_some(take_size(in), s);
        break;
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
    case 15:
    case 16:
        if (fuzz_byte(in), i >= 0)
            (void)free_fuzz_block(i, oracle.block[i].stream);
        break;
    case 17:
    case 18:
    case 19:
        if (fuzz_byte(in), i >= 0)
            (void)free_fuzz_block(i, s);
        break;
    case 20:
    case 21:
        if (fuzz_byte(in), i >= 0)
            use_fuzz_block(i, s);
        break;
    case 22:
    case 23:
        submit_work(s, fuzz_byte(in));
        break;
    case 24:
        i = (int)fuzz_choice(in, STREAMS);
        if (!w.captured[s] && !w.captured[i])
            order_in_oracle(s, i);
        break;
    case 25:
        if (!any_stream_is_captured())
            TELL("wait for %d\n", s), CU(driver->cuStreamSynchronize(w.stream[s]));
        break;
    case 26:
        if (s == 7)
            set_limit(fuzz_choice(in, 8));
        else if (s >= 5)
            alloc_any(take_size(in), s - 5);
        else if (s >= 3 && i >= 0)
            free_any(i);
        else if (!any_stream_is_captured())
            TELL("wait for the device\n"), CU(driver->cuCtxSynchronize());
        break;
    case 27:
        TELL("time passes\n");
        weir__model_advance(UINT64_C(1) << fuzz_choice(in, 44));
        break;
    case 28:
        bind_stream(s);
        break;
    case 29:
        trim_to_keep(fuzz_choice(in, 4) * 32 * MIB);
        break;
    case 30:
        preallocate_bytes(fuzz_byte(in) * 2 * MIB);
        break;
    case 31:
        renew_fuzz_stream(s, (int)fuzz_choice(in, STREAMS));
        break;
    case 32:
        begin_fuzz_capture(s, fuzz_byte(in));
        break;
    case 33:
        end_fuzz_capture(s);
        break;
    case 34:
    case 35:
        plan_failure(in);
        break;
    case 36:
        free_wrong(in);
        break;
    case 37:
        call_wrong(in);
        break;
    case 38:
        alloc_and_free_pairs(take_size(in), s, 66);
        break;
    case 39:
        if (w.warmed == 0 && fuzz_choice(in, 8) == 0) /* this takes long */
            alloc_and_free_pairs(take_size(in), s, 1100), w.warmed = 1;
        look_at_events();
    }
}

static void choose_options(struct fuzz_bytes *in) {
    static const uint64_t limits[] = {0, 64 * MIB, 100 * MIB, 160 * MIB};
    static const uint32_t timeouts[] = {1, 5, 100, UINT32_MAX};
    static const int policies[] = {WEIR_GROWTH_DEFAULT,   WEIR_GROWTH_EXACT,     WEIR_GROWTH_STEP,
                                   WEIR_GROWTH_GEOMETRIC, WEIR_GROWTH_REMAINING, WEIR_GROWTH_BFC};
    static const weir_amount caches[] = {{0, WEIR_AMOUNT_DEFAULT},
                                         {0, WEIR_AMOUNT_BYTES},
                                         {2 * MIB, WEIR_AMOUNT_BYTES},
                                         {0, WEIR_AMOUNT_MAX},
                                         {50000, WEIR_AMOUNT_OF_IN_USE}};
    static const int engines[ENGINES] = {WEIR_ENGINE_POOL, WEIR_ENGINE_BFC_FIXED, WEIR_ENGINE_BFC,
                                         WEIR_ENGINE_DIRECT};
    weir_options *o = &w.options;
    unsigned limit, flags;

    weir_options_init(o);
    o->device = "model";
    w.engine = (int)fuzz_choice(in, ENGINES);
    o->engine = engines[w.engine];
    o->cache = (int)fuzz_choice(in, 3);
    o->growth = policies[fuzz_choice(in, 6)];
    limit = fuzz_choice(in, 4);
    if (limit > 0 || w.engine == 1)
        o->limit = (weir_amount){limits[limit ? limit : 3], WEIR_AMOUNT_BYTES};
    flags = fuzz_byte(in);
    w.looks = flags & 1;
    o->stream_checks = flags & 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_DEFAULT;
    o->latency = flags & 4 ? WEIR_SWITCH_ON : WEIR_SWITCH_DEFAULT;
    if (flags & 16)
        o->prealloc = (weir_amount){40 * MIB, WEIR_AMOUNT_BYTES};
    if (flags & 32)
        o->release_threshold = (weir_amount){flags & 64 ? 32 * MIB : 0, WEIR_AMOUNT_BYTES};
    o->recovery_timeout_ms = timeouts[fuzz_choice(in, 4)];
    o->cache_limit = caches[fuzz_choice(in, 5)];
}

static void begin_input(void) {
    struct weir_driver_failure failure;

    if (!driver)
        driver = weir__driver_open("model", &failure);
    HOLDS(driver);
    telling = getenv("FUZZ_TELL") != NULL;
    SAME(weir__model_reset(&(struct weir_model_setup){.capacity = CAPACITY}), 0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    memset(&w, 0, sizeof w);
    for (int s = 0; s < CREATED; s++)
        make_fuzz_stream(s);
    w.stream[PER_THREAD] = (CUstream)0x2;
    oracle_begin(&oracle);
}

/* Frees all blocks, each on its stream, and checks that all memory is free again. */
static void end_input(void) {
    size_t free_bytes = 0, total = 0;
    CUcontext current = NULL;
    weir_statistics s;

    w.call = 0;
    for (int i = 0; i < STREAMS; i++)
        end_fuzz_capture(i);
    for (int i = oracle.blocks; i-- > 0;)
        HOLDS(free_fuzz_block(i, oracle.block[i].stream));
    for (int i = 0; i < STREAMS; i++)
        while (w.bound[i])
            bind_stream(i);
    CU(driver->cuCtxSynchronize());
    trim_to_keep(0);
    check_fuzz_identities();
    s = fuzz_statistics();
    HOLDS(s.requested == 0 && s.in_use == 0 && s.cache_idle == 0);
    if (!w.ever_refused)
        SAME(s.reserved, 0);
    SAME(weir_allocator_destroy(w.allocator), WEIR_OK);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    SAME(free_bytes, CAPACITY);
    HOLDS(weir__model_pool_check() == NULL);
    CU(driver->cuCtxGetCurrent(&current));
    HOLDS(current == primary);
    CU(driver->cuCtxPopCurrent(&current));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fuzz_bytes in = {data, size};
    weir_status status;

    begin_input();
    choose_options(&in);
    status = weir_allocator_create(&w.options, &w.allocator);
    TELL("engine %d, cache %d, stream checks %d: %s\n", w.engine, w.options.cache,
         w.options.stream_checks, weir_status_name(status));
    if (status != WEIR_OK) {
        HOLDS(status == WEIR_E_LIMIT || status == WEIR_E_NO_MEMORY);
        CU(driver->cuCtxPopCurrent(&primary));
        return 0;
    }
    for (int calls = 0; in.left > 0 && calls < MOST_CALLS; calls++) {
        call_something(&in);
        if (w.looks)
            check_fuzz_identities();
    }
    end_input();
    return 0;
}
