/* SPDX-License-Identifier: MIT */
/* test_faults.c: every failure of every operation, one by one.
 *
 * Situations (an operation, and what went before it) times worlds (engine, arena, front, age of the
 * driver) times faults: the k-th driver call that the operation makes fails, whichever that is, for
 * every k, once or with all later ones, with each of a list of results; so do pairs of calls; and so
 * does the k-th request for host memory.  After each: the status is one that weir/allocator.h names for
 * the operation and the result; the thread's driver result, context and capture mode are what they
 * should be; the figures and the device model's accounts agree; the same operation, called again, does
 * what it does without a fault; and when all blocks are freed and the allocator is destroyed, the device
 * has its memory back and the host too.  After a result that is fatal nothing works but the figures
 * and the end.
 *
 * Must not know: which driver calls an operation makes.
 */
#include "tests/fixtures/model_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "cache/biased_lock.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/refuse.h"
#include "base/result.h"

#define CAPACITY GIB
/* What no driver answers, to see whether the thread's last driver result is touched. */
enum { UNTOUCHED = 4711 };

/* ---- worlds ---------------------------------------------------------------------------------- */

#define BEFORE_12_2 WEIR_CAP_POOL_MAX_SIZE
#define BEFORE_12_0 (WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID)
#define BEFORE_11_3 (WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_FIGURES)

static const struct world {
    const char *name;
    int kind;
    int front;
    unsigned without; /* what the driver does not have yet */
} worlds[] = {
    {"pool", KIND_POOL, WEIR_SWITCH_OFF, 0},
    {"fixed arena", KIND_FIXED, WEIR_SWITCH_OFF, 0},
    {"arena of regions", KIND_REGIONS, WEIR_SWITCH_OFF, 0},
    {"mapped arena", KIND_MAPPED, WEIR_SWITCH_OFF, 0},
    {"platform", KIND_DIRECT, WEIR_SWITCH_OFF, 0},
    {"pool, front", KIND_POOL, WEIR_SWITCH_ON, 0},
    {"fixed arena, front", KIND_FIXED, WEIR_SWITCH_ON, 0},
    {"arena of regions, front", KIND_REGIONS, WEIR_SWITCH_ON, 0},
    {"mapped arena, front", KIND_MAPPED, WEIR_SWITCH_ON, 0},
    {"platform, front", KIND_DIRECT, WEIR_SWITCH_ON, 0},
    {"pool, driver 11.2", KIND_POOL, WEIR_SWITCH_OFF, BEFORE_11_3},
    {"pool, driver 12.1", KIND_POOL, WEIR_SWITCH_OFF, BEFORE_12_2},
    {"arena of regions, driver 11.8", KIND_REGIONS, WEIR_SWITCH_OFF, BEFORE_12_0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* The driver's table, watched for what the library cannot make good: a context that could not be popped,
 * a capture mode that could not be put back. */
static struct weir_driver watched;
static int stuck_contexts, lost_mode;

static CUresult watched_pop(CUcontext *popped) {
    CUresult result = driver->cuCtxPopCurrent(popped);

    stuck_contexts += result != CUDA_SUCCESS;
    return result;
}

/* What puts something back asks for another mode than relaxed, in this suite. */
static CUresult watched_exchange(CUstreamCaptureMode *mode) {
    int puts_back = *mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = driver->cuThreadExchangeStreamCaptureMode(mode);

    lost_mode |= result != CUDA_SUCCESS && puts_back;
    return result;
}

static void start_world(const struct world *world) {
    start_model(CAPACITY);
    watched = *driver;
    watched.capabilities &= ~world->without;
    watched.cuCtxPopCurrent = watched_pop;
    watched.cuThreadExchangeStreamCaptureMode = watched_exchange;
    stuck_contexts = lost_mode = 0;
}

/* ---- scenes ---------------------------------------------------------------------------------- */

enum { SLOTS = 160 };

struct scene {
    const struct world *world;
    weir_options options;
    weir_allocator *a;
    void *block[SLOTS];
    CUstream freed_on[SLOTS]; /* at the end */
    CUstream own;             /* a stream of the situation */
    CUstream captured;
    CUdeviceptr ballast; /* takes memory from the device */
    int stage;           /* of the operation */
};

static int has_caches(const struct scene *s) {
    return s->world->front == WEIR_SWITCH_ON;
}

static CUstream make_stream(void) {
    CUstream stream;

    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Requests and frees that are done once, however often they are called. */
static weir_status want(struct scene *s, int slot, size_t bytes, CUstream stream) {
    void *block = s;
    weir_status status;

    if (s->block[slot])
        return WEIR_OK;
    status = weir_alloc(s->a, bytes, stream, &block);
    MUST((status == WEIR_OK) == (block != s));
    if (status == WEIR_OK) {
        s->block[slot] = block;
        s->freed_on[slot] = stream;
    }
    return status;
}

static weir_status drop_on(struct scene *s, int slot, CUstream stream) {
    weir_status status = weir_free(s->a, s->block[slot], stream);

    if (status == WEIR_OK)
        s->block[slot] = NULL;
    return status;
}

static weir_status drop(struct scene *s, int slot) {
    return drop_on(s, slot, s->freed_on[slot]);
}

/* From one slot to before another. */
static weir_status want_some(struct scene *s, int from, int to, size_t bytes, CUstream stream) {
    weir_status status = WEIR_OK;

    for (int i = from; i < to && status == WEIR_OK; i++)
        status = want(s, i, bytes, stream);
    return status;
}

static weir_status drop_some(struct scene *s, int from, int to, CUstream stream) {
    weir_status status = WEIR_OK;

    for (int i = from; i < to && status == WEIR_OK; i++)
        status = drop_on(s, i, stream);
    return status;
}

/* Takes and gives a block. */
static void touch(struct scene *s, size_t bytes, CUstream stream) {
    OK(want(s, SLOTS - 1, bytes, stream));
    OK(drop(s, SLOTS - 1));
}

/* Until the stream has a cache. */
static void grow_up(struct scene *s, CUstream stream) {
    for (int i = 0; i < 70; i++)
        touch(s, 3000, stream);
}

/* Until whole blocks are kept, where there is a front. */
static void calm_down(struct scene *s, CUstream stream) {
    for (int i = 0; i < 1100 && has_caches(s); i++)
        touch(s, MIB, stream);
}

static void capture(struct scene *s, CUstream stream) {
    CU(driver->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    s->captured = stream;
}

/* 1 if the capture is whole. */
static int is_captured(const struct scene *s) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    CU(driver->cuStreamIsCapturing(s->captured, &status));
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static void end_capture(struct scene *s) {
    CUgraph graph = NULL;

    if (!s->captured)
        return;
    (void)driver->cuStreamEndCapture(s->captured, &graph);
    if (graph)
        CU(driver->cuGraphDestroy(graph));
    s->captured = NULL;
}

/* ---- situations ------------------------------------------------------------------------------ */

/* What an operation may answer: bits of negated statuses. */
#define MAY(status) (1u << -(WEIR_##status))
#define CREATE_MAY                                                                                 \
    (MAY(E_HOST_MEMORY) | MAY(E_NO_DEVICE) | MAY(E_NOT_SUPPORTED) | MAY(E_LIMIT) |                 \
     MAY(E_NO_MEMORY) | MAY(E_DRIVER) | MAY(E_DEVICE_LOST))
#define ALLOC_MAY                                                                                  \
    (MAY(E_NO_MEMORY) | MAY(E_LIMIT) | MAY(E_STREAM) | MAY(E_CAPTURE) | MAY(E_HOST_MEMORY) |       \
     MAY(E_DRIVER) | MAY(E_DEVICE_LOST))
#define FREE_MAY                                                                                   \
    (MAY(E_NO_MEMORY) | MAY(E_HOST_MEMORY) | MAY(E_NOT_OWNED) | MAY(E_STREAM) | MAY(E_CAPTURE) |   \
     MAY(E_DRIVER) | MAY(E_DEVICE_LOST))
#define USE_MAY                                                                                    \
    (MAY(E_NO_MEMORY) | MAY(E_HOST_MEMORY) | MAY(E_STREAM) | MAY(E_CAPTURE) | MAY(E_DRIVER) |      \
     MAY(E_DEVICE_LOST))
#define BIND_MAY USE_MAY
#define PREALLOCATE_MAY                                                                            \
    (MAY(E_LIMIT) | MAY(E_NO_MEMORY) | MAY(E_NOT_SUPPORTED) | MAY(E_HOST_MEMORY) | MAY(E_DRIVER) | \
     MAY(E_DEVICE_LOST))
#define TRIM_MAY (MAY(E_NO_MEMORY) | MAY(E_HOST_MEMORY) | MAY(E_DRIVER) | MAY(E_DEVICE_LOST))
#define STATS_MAY 0u
#define DESTROY_MAY MAY(E_BUSY)

/* What there is to say about a situation. */
enum {
    NEW = 1,     /* the operation makes the allocator */
    SHORT = 2,   /* memory is short: what should have made room may fail, and the request with it */
    SPANS = 4,   /* of blocks that are cut from regions alone */
    CACHES = 8,  /* of the caches alone */
    IDS = 16,    /* of drivers with ids alone */
    GRAPHS = 32, /* of captures: what cannot be put back may break one */
    REGIONS = 64 /* of arenas of regions alone */
};

struct situation {
    const char *name;
    unsigned may;
    int about;
    void (*choose)(weir_options *options); /* NULL: as they are */
    void (*prepare)(struct scene *s);      /* NULL: nothing went before */
    weir_status (*act)(struct scene *s);
};

static weir_status create(struct scene *s) {
    weir_allocator *a = NULL;
    weir_status status = weir__allocator_create_on(&watched, &s->options, &a, NULL, 0);

    MUST((status == WEIR_OK) == (a != NULL));
    s->a = a;
    return status;
}

static void with_prealloc(weir_options *o) {
    o->prealloc = bytes_amount(64 * MIB);
}

static void with_prealloc_and_threshold(weir_options *o) {
    o->prealloc = bytes_amount(64 * MIB);
    o->release_threshold = bytes_amount(16 * MIB);
}

static void with_prealloc_at_first(weir_options *o) {
    with_prealloc(o);
    o->prealloc_at = WEIR_PREALLOC_AT_FIRST;
}

static void with_steps(weir_options *o) {
    o->growth = WEIR_GROWTH_STEP;
    o->growth_step = 96 * MIB;
    o->latency = WEIR_SWITCH_ON;
}

static void with_limit(weir_options *o) {
    o->limit = bytes_amount(256 * MIB);
}

static void with_no_threshold(weir_options *o) {
    o->release_threshold = bytes_amount(0);
}

static void with_exact_growth(weir_options *o) {
    o->growth = WEIR_GROWTH_EXACT;
}

static void with_decay(weir_options *o) {
    o->decay_ms = 10;
}

static void with_grow_ahead(weir_options *o) {
    o->headroom = bytes_amount(100 * MIB);
}

static void with_prealloc_behind(weir_options *o) {
    o->prealloc = bytes_amount(200 * MIB);
    o->prealloc_mode = WEIR_PREALLOC_BACKGROUND;
}

static char profile[64]; /* path */

/* Without a run in it. */
static void with_new_profile(weir_options *o) {
    snprintf(profile, sizeof profile, "%s/weir-faults-%ld.profile",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    (void)unlink(profile);
    o->profile = profile;
}

/* What an allocator of these options has learned. */
static void with_profile(weir_options *o) {
    weir_allocator *a;
    void *block;

    with_new_profile(o);
    OK(weir__allocator_create_on(&watched, o, &a, NULL, 0));
    OK(weir_alloc(a, 100 * MIB, A, &block));
    OK(weir_free(a, block, A));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
}

static void with_latency(weir_options *o) {
    o->latency = WEIR_SWITCH_ON;
}

static weir_status take_small(struct scene *s) {
    return want(s, 0, 1000, A);
}

static void one_small(struct scene *s) {
    OK(want(s, 1, 1000, A));
}

static weir_status take_large(struct scene *s) {
    return want(s, 0, 150 * MIB, A);
}

static void a_small_idle(struct scene *s) {
    touch(s, 1000, A);
}

static void a_whole_idle(struct scene *s) {
    touch(s, MIB, A);
    calm_down(s, A);
}

static weir_status take_whole(struct scene *s) {
    return want(s, 0, MIB, A);
}

static weir_status take_on_another(struct scene *s) {
    weir_status status = want(s, 0, 1000, B);

    return status == WEIR_OK ? want(s, 2, MIB, B) : status;
}

static weir_status take_on_default(struct scene *s) {
    weir_status status = want(s, 0, 1000, NULL);

    return status == WEIR_OK ? want(s, 2, MIB, (CUstream)WEIR_STREAM_PER_THREAD_VALUE) : status;
}

static weir_status take_many(struct scene *s) {
    return want_some(s, 10, 60, 40000, A);
}

/* What A has freed is all there is, and not done yet. */
static void all_is_pending(struct scene *s) {
    touch(s, 1000, B);
    OK(want(s, 0, 200 * MIB, A));
    busy(A, 5 * MS);
    OK(drop(s, 0));
    OK(want(s, 1, 1000, A));
}

static weir_status take_all_on_another(struct scene *s) {
    return want(s, 0, 200 * MIB, B);
}

static void the_device_is_full(struct scene *s) {
    size_t free_bytes, total;

    all_is_pending(s);
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuMemAlloc(&s->ballast, free_bytes - 48 * MIB));
}

static void forty_of_it_are_live(struct scene *s) {
    OK(want(s, 1, 140 * MIB, A));
}

static weir_status take_too_much(struct scene *s) {
    weir_status status = want(s, 0, 150 * MIB, A);

    return status;
}

static weir_status take_more_than_there_is(struct scene *s) {
    return want(s, 0, 2 * CAPACITY, A);
}

static void a_capture(struct scene *s) {
    grow_up(s, A);
    OK(want(s, 1, 1000, A));
    OK(want(s, 2, MIB, A));
    OK(want(s, 3, 1000, B));
    OK(weir_use(s->a, s->block[3], C));
    capture(s, A);
}

/* What a graph allocates is freed in it. */
static weir_status take_in_a_graph(struct scene *s) {
    weir_status status = s->stage == 0 ? want(s, 0, 1000, A) : WEIR_OK;

    if (status == WEIR_OK) {
        s->stage = 1;
        status = drop(s, 0);
    }
    return status;
}

static weir_status give_under_capture(struct scene *s) {
    weir_status status = drop_on(s, 1, A);

    if (status == WEIR_OK)
        status = drop_on(s, 2, A);
    return status;
}

static weir_status give_used_under_capture(struct scene *s) {
    return drop_on(s, 3, A);
}

/* A stream that has ended holds much of the reserved memory: while it was alone no event was recorded for what it freed. */
static void much_is_stranded(struct scene *s) {
    CUstream stream = make_stream();

    OK(want(s, 0, 120 * MIB, stream));
    OK(drop(s, 0));
    CU(driver->cuStreamDestroy(stream));
    for (int i = 0; i < 600; i++)
        touch(s, 1000, A);
}

/* So far. */
static int has_failed(void) {
#ifdef CAN_REFUSE_HOST_MEMORY
    if (was_refused)
        return 1;
#endif
    return weir__model_faults_met(NULL) > 0;
}

/* The device is waited for rather than that the reserved memory grows, by those that can tell whose it is. */
static weir_status take_past_it(struct scene *s) {
    int waits = (s->world->kind == KIND_REGIONS || s->world->kind == KIND_MAPPED) &&
                !(s->world->without & WEIR_CAP_STREAM_ID);
    uint64_t before = stats_of(s->a).reserve;
    weir_status status = want(s, 0, 110 * MIB, A);

    if (waits && status == WEIR_OK && !has_failed())
        MUST_EQ(stats_of(s->a).reserve, before);
    return status;
}

static void a_large_idle(struct scene *s) {
    touch(s, 200 * MIB, A);
}

static weir_status take_a_tenth(struct scene *s) {
    return want(s, 0, 20 * MIB, A);
}

static void a_valley(struct scene *s) {
    static const size_t sizes[] = {100 * MIB, 60 * MIB, 120 * MIB, 130 * MIB, 40 * MIB};

    for (int i = 0; i < 5; i++)
        OK(want(s, 10 + i, sizes[i], A));
    for (int i = 0; i < 4; i++)
        OK(drop(s, 10 + i));
}

static void a_few(struct scene *s) {
    OK(want(s, 0, 1000, A));
    OK(want(s, 1, MIB, A));
    OK(want(s, 2, 100 * MIB, A));
    OK(want(s, 3, 1000, NULL));
    OK(want(s, 4, MIB, NULL));
}

static weir_status give_a_few(struct scene *s) {
    weir_status status = drop_some(s, 0, 3, A);

    return status == WEIR_OK ? drop_some(s, 3, 5, NULL) : status;
}

static void many_on_two_streams(struct scene *s) {
    grow_up(s, A);
    grow_up(s, B);
    OK(want_some(s, 0, 20, 3000, A));
    OK(want_some(s, 20, 40, 200000, B));
}

static weir_status give_many_on_two_streams(struct scene *s) {
    weir_status status = WEIR_OK;

    for (int i = 0; i < 20 && status == WEIR_OK; i++) {
        status = drop(s, i);
        if (status == WEIR_OK)
            status = drop(s, 20 + i);
    }
    return status;
}

/* Some of each size, of which B, C and a default stream use one. */
static void used_blocks(struct scene *s) {
    OK(want(s, 0, 1000, A));
    OK(want(s, 1, 20 * MIB, A));
    OK(want(s, 2, 1000, A));
    for (int i = 0; i < 2; i++) {
        OK(weir_use(s->a, s->block[i], B));
        OK(weir_use(s->a, s->block[i], C));
    }
    OK(weir_use(s->a, s->block[2], NULL));
    busy(B, 5 * MS);
    busy(C, 7 * MS);
}

static weir_status give_on_new(struct scene *s) {
    return drop_on(s, 1, C);
}

static weir_status give_used_blocks(struct scene *s) {
    return drop_some(s, 0, 3, A);
}

static void slots_of_another_stream(struct scene *s) {
    grow_up(s, A);
    grow_up(s, B);
    OK(want_some(s, 0, 140, 3000, A));
}

static weir_status give_on_another_stream(struct scene *s) {
    return drop_some(s, 0, 140, B);
}

static void batches_on_their_way(struct scene *s) {
    slots_of_another_stream(s);
    busy(B, MS);
    OK(give_on_another_stream(s));
    CU(driver->cuCtxSynchronize());
}

static void with_small_caches(weir_options *o) {
    o->front_cache = bytes_amount(2 * MIB);
}

static void many_whole(struct scene *s) {
    calm_down(s, A);
    touch(s, 1000, B);
    OK(want_some(s, 0, 24, MIB, A));
}

static weir_status give_many_whole(struct scene *s) {
    return drop_some(s, 0, 24, A);
}

/* A destroyed stream has left a cache, and its handle to another. */
static void a_handle_means_another(struct scene *s) {
    CUstream stream = make_stream();

    grow_up(s, stream);
    OK(want_some(s, 0, 10, 3000, A));
    OK(want_some(s, 10, 14, MIB, stream));
    OK(drop_some(s, 0, 10, stream));
    OK(drop_some(s, 10, 14, stream));
    CU(driver->cuStreamDestroy(stream));
    s->own = make_stream();
    MUST(s->own == stream);
}

static weir_status take_on_that(struct scene *s) {
    return want(s, 0, 3000, s->own);
}

/* Others ran dry: A gives what it has at its next call. */
static void others_are_dry(struct scene *s) {
    calm_down(s, A);
    OK(want_some(s, 0, 40, 3000, A));
    OK(want_some(s, 40, 48, MIB, A));
    OK(drop_some(s, 0, 48, A));
    OK(want(s, 50, 100 * MIB, B));
    OK(want(s, 51, 60 * MIB, B));
}

static weir_status give_nobodys(struct scene *s) {
    return weir_free(s->a, (char *)s->block[1] + 256, A);
}

static weir_status use_twice(struct scene *s) {
    weir_status status = weir_use(s->a, s->block[1], B);

    return status == WEIR_OK ? weir_use(s->a, s->block[1], NULL) : status;
}

/* More than a list of streams has room for at first. */
static weir_status use_often(struct scene *s) {
    weir_status status = WEIR_OK;

    for (; s->stage < 5 && status == WEIR_OK; s->stage += status == WEIR_OK) {
        CUstream streams[] = {A, B, C, NULL, (CUstream)WEIR_STREAM_PER_THREAD_VALUE};

        status = weir_use(s->a, s->block[1], streams[s->stage]);
    }
    return status;
}

static weir_status bind_and_unbind(struct scene *s) {
    CUstream streams[] = {A, NULL};
    weir_status status = WEIR_OK;

    for (; s->stage < 4 && status == WEIR_OK; s->stage += status == WEIR_OK)
        status = s->stage < 2 ? weir_bind(s->a, streams[s->stage])
                              : weir_unbind(s->a, streams[s->stage - 2]);
    return status;
}

static weir_status preallocate(struct scene *s) {
    return weir_preallocate(s->a, 200 * MIB, NULL);
}

static weir_status preallocate_too_much(struct scene *s) {
    return weir_preallocate(s->a, 300 * MIB, NULL);
}

static weir_status trim(struct scene *s) {
    size_t released;

    return weir_trim(s->a, 0, &released);
}

static void idle_and_done(struct scene *s) {
    a_few(s);
    OK(give_a_few(s));
    CU(driver->cuCtxSynchronize());
}

static void idle_and_not_done(struct scene *s) {
    slots_of_another_stream(s);
    OK(give_on_another_stream(s));
    OK(want(s, 0, 100 * MIB, A));
    OK(want(s, 1, 40 * MIB, B));
    busy(A, 5 * MS);
    busy(B, 7 * MS);
    OK(drop(s, 0));
    OK(drop(s, 1));
}

static weir_status read_figures(struct scene *s) {
    weir_statistics figures = {.size = sizeof figures};

    return weir_stats(s->a, &figures);
}

static weir_status destroy(struct scene *s) {
    weir_status status = weir_allocator_destroy(s->a);

    if (status == WEIR_OK)
        s->a = NULL;
    return status;
}

static void frees_are_pending(struct scene *s) {
    used_blocks(s);
    OK(give_used_blocks(s));
}

static void shed_and_waited(struct scene *s) {
    OK(want(s, 0, 100 * MIB, A));
    OK(want(s, 1, 3000, A));
    CU(driver->cuCtxSynchronize());
}

static weir_status give_and_take(struct scene *s) {
    weir_status status = s->stage == 0 ? drop_on(s, 0, A) : WEIR_OK;

    if (status == WEIR_OK) {
        s->stage = 1;
        status = want(s, 2, 120 * MIB, A);
    }
    return status;
}

/* Much has been idle for long: the next request of the engine, or weir_decay, will give of it back. */
static void idle_for_long(struct scene *s) {
    OK(want(s, 0, 60 * MIB, A));
    OK(want(s, 1, 60 * MIB, A));
    OK(want(s, 2, 1000, A));
    OK(drop(s, 0));
    OK(drop(s, 1));
    CU(driver->cuCtxSynchronize());
    for (int i = 0; i < 5; i++) {
        weir__model_advance(4 * MS);
        touch(s, (size_t)(i + 1) * 2 * MIB, A);
    }
    CU(driver->cuCtxSynchronize());
    weir__model_advance(9 * MS);
}

static weir_status take_three(struct scene *s) {
    return want(s, 3, 3 * MIB, A);
}

static weir_status decay(struct scene *s) {
    size_t released;

    return weir_decay(s->a, &released);
}

/* The next request of the engine has steps played that are due. */
static void little_is_idle(struct scene *s) {
    OK(want(s, 1, 100 * MIB, A));
    weir__model_advance(5 * MS);
}

/* No piece of what is idle is large enough, and there can be no more. */
static void idle_in_pieces(struct scene *s) {
    OK(want_some(s, 0, 8, 30 * MIB, A));
    for (int i = 0; i < 8; i += 2)
        OK(drop(s, i));
    CU(driver->cuCtxSynchronize());
}

static weir_status take_pieces(struct scene *s) {
    return want(s, 10, 70 * MIB, A);
}

static void with_moves(weir_options *o) {
    o->packing = WEIR_PACKING_COMPACT;
    o->limit = bytes_amount(512 * MIB);
}

static int pieces; /* blocks, of which every other eight are idle */

/* What is idle was freed on two streams, which are at work with it. */
static void idle_on_two_streams(struct scene *s) {
    touch(s, 1000, B);
    OK(want_some(s, 0, pieces, MIB, A));
    busy(A, 5 * MS);
    busy(B, 7 * MS);
    for (int i = 0; i < pieces; i++)
        if (i / 8 % 2 == 0)
            OK(drop_on(s, i, i % 2 ? A : B));
}

/* Whole handles are idle, and done, between halves of such. */
static void halves_are_idle(struct scene *s) {
    OK(want_some(s, 0, pieces, 4 * MIB, A));
    for (int i = 0; i < pieces; i++)
        if (i % 6 >= 1 && i % 6 <= 4)
            OK(drop(s, i));
    CU(driver->cuCtxSynchronize());
}

/* Below many blocks an unmapped range, and a handle that is idle. */
static void unmapped_below(struct scene *s) {
    OK(want(s, SLOTS - 5, 24 * MIB, A));
    OK(want(s, SLOTS - 4, 8 * MIB, A));
    OK(want_some(s, 0, pieces, MIB, A));
    OK(drop(s, SLOTS - 5));
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(s->a, 0, NULL));
    OK(drop(s, SLOTS - 4));
    CU(driver->cuCtxSynchronize());
}

/* The handle is not idle any more, and nothing moves. */
static void blocks_beside_unmapped(struct scene *s) {
    unmapped_below(s);
    OK(want_some(s, SLOTS - 16, SLOTS - 13, MIB, A));
}

static weir_status take_into_it(struct scene *s) {
    return want(s, SLOTS - 2, 20 * MIB, A);
}

static weir_status take_across(struct scene *s) {
    return want(s, SLOTS - 2, 40 * MIB, A);
}

static weir_status save_profile(struct scene *s) {
    return weir_profile_save(s->a, NULL);
}

static void with_hardening(weir_options *o) {
    o->harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON | WEIR_HARDEN_ZERO_STREAM;
}

static void with_shelves_and_limit(weir_options *o) {
    o->harden = WEIR_HARDEN_ZERO_STREAM;
    o->limit = bytes_amount(2 * MIB);
}

/* What work on two streams used until now lies on shelves. */
static void shelves_are_full(struct scene *s) {
    OK(want_some(s, 0, 3, 3000, A));
    OK(want(s, 3, 2 * MIB, A));
    OK(want_some(s, 4, 6, 1000, B));
    busy(A, 5 * MS);
    busy(B, 7 * MS);
    OK(drop_some(s, 0, 4, A));
    OK(drop_some(s, 4, 6, B));
}

static void much_is_shelved(struct scene *s) {
    OK(want(s, 0, 600 * KIB, A));
    OK(want(s, 1, 600 * KIB, A));
    OK(drop_some(s, 0, 2, A));
}

static weir_status take_nearly_all(struct scene *s) {
    return want(s, 0, 1500 * KIB, A);
}

static void two_live(struct scene *s) {
    OK(want(s, 0, 1000, A));
    OK(want(s, 1, MIB + 1000, A));
}

static weir_status give_two(struct scene *s) {
    return drop_some(s, 0, 2, A);
}

static void two_and_a_capture(struct scene *s) {
    OK(want(s, 1, 1000, A));
    OK(want(s, 2, 2000, A));
    capture(s, A);
}

static void one_used(struct scene *s) {
    OK(want(s, 0, 1000, A));
    OK(weir_use(s->a, s->block[0], B));
    OK(weir_use(s->a, s->block[0], C));
    busy(B, 5 * MS);
}

static weir_status give_one(struct scene *s) {
    return drop(s, 0);
}

static const struct situation situations[] = {
    {"create", CREATE_MAY, NEW, NULL, NULL, create},
    {"create, preallocated", CREATE_MAY, NEW, with_prealloc, NULL, create},
    {"create, threshold", CREATE_MAY, NEW, with_prealloc_and_threshold, NULL, create},
    {"first request", ALLOC_MAY, 0, NULL, NULL, take_small},
    {"first request preallocates", ALLOC_MAY, 0, with_prealloc_at_first, NULL, take_small},
    {"growth by steps", ALLOC_MAY, 0, with_steps, one_small, take_large},
    {"hit", ALLOC_MAY, 0, NULL, a_small_idle, take_small},
    {"hit of a whole block", ALLOC_MAY, 0, NULL, a_whole_idle, take_whole},
    {"second stream", ALLOC_MAY, 0, NULL, a_small_idle, take_on_another},
    {"default stream", ALLOC_MAY, 0, NULL, a_small_idle, take_on_default},
    {"many small", ALLOC_MAY, 0, NULL, a_small_idle, take_many},
    {"wait for another stream", ALLOC_MAY, SHORT, with_limit, all_is_pending, take_all_on_another},
    {"full device", ALLOC_MAY, SHORT, NULL, the_device_is_full, take_all_on_another},
    {"over the limit", ALLOC_MAY, SHORT, with_limit, forty_of_it_are_live, take_too_much},
    {"more than there is", ALLOC_MAY, SHORT, NULL, one_small, take_more_than_there_is},
    {"request under capture", ALLOC_MAY | FREE_MAY, GRAPHS, NULL, a_capture, take_in_a_graph},
    {"stranded reserve", ALLOC_MAY, 0, with_exact_growth, much_is_stranded, take_past_it},
    {"swap", ALLOC_MAY, SPANS, NULL, a_large_idle, take_a_tenth},
    {"base", ALLOC_MAY, SPANS, NULL, a_valley, take_a_tenth},
    {"batches come home", ALLOC_MAY, CACHES, NULL, batches_on_their_way, take_many},
    {"recycled handle", ALLOC_MAY, 0, NULL, a_handle_means_another, take_on_that},
    {"demand", ALLOC_MAY, CACHES, NULL, others_are_dry, take_whole},
    {"frees", FREE_MAY, 0, NULL, a_few, give_a_few},
    {"frees on two streams", FREE_MAY, 0, NULL, many_on_two_streams, give_many_on_two_streams},
    {"free on a new stream", FREE_MAY, 0, NULL, one_small, give_on_new},
    {"frees of used blocks", FREE_MAY, 0, NULL, used_blocks, give_used_blocks},
    {"frees under capture", FREE_MAY, GRAPHS, NULL, a_capture, give_under_capture},
    {"free of a used block under capture", FREE_MAY, GRAPHS, NULL, a_capture,
     give_used_under_capture},
    {"strays", FREE_MAY, CACHES, NULL, slots_of_another_stream, give_on_another_stream},
    {"full caches", FREE_MAY, CACHES, with_small_caches, many_whole, give_many_whole},
    {"free of nobody's", FREE_MAY, 0, NULL, one_small, give_nobodys},
    {"no threshold", ALLOC_MAY | FREE_MAY, 0, with_no_threshold, shed_and_waited, give_and_take},
    {"use", USE_MAY, 0, NULL, one_small, use_twice},
    {"uses of many streams", USE_MAY, 0, NULL, one_small, use_often},
    {"bind", BIND_MAY, 0, NULL, one_small, bind_and_unbind},
    {"preallocate", PREALLOCATE_MAY, 0, with_limit, one_small, preallocate},
    {"preallocate too much", PREALLOCATE_MAY, SHORT, with_limit, one_small, preallocate_too_much},
    {"trim", TRIM_MAY, 0, NULL, idle_and_done, trim},
    {"trim of what is not done", TRIM_MAY, 0, NULL, idle_and_not_done, trim},
    {"figures", STATS_MAY, 0, NULL, idle_and_not_done, read_figures},
    {"destroy", DESTROY_MAY, 0, NULL, idle_and_not_done, destroy},
    {"destroy, frees pending", DESTROY_MAY, 0, NULL, frees_are_pending, destroy},
    {"destroy, blocks live", DESTROY_MAY, 0, NULL, one_small, destroy},
    {"moves", ALLOC_MAY, SHORT, with_limit, idle_in_pieces, take_pieces},
    {"decay beside a request", ALLOC_MAY, 0, with_decay, idle_for_long, take_three},
    {"decay", TRIM_MAY | MAY(E_NOT_SUPPORTED), 0, with_decay, idle_for_long, decay},
    {"steps of headroom", ALLOC_MAY, 0, with_grow_ahead, little_is_idle, take_three},
    {"create, preallocated behind", CREATE_MAY, NEW, with_prealloc_behind, NULL, create},
    {"preallocation behind", ALLOC_MAY, 0, with_prealloc_behind, little_is_idle, take_three},
    {"create, latency", CREATE_MAY, NEW, with_latency, NULL, create},
    {"create, with a profile", CREATE_MAY, NEW, with_profile, NULL, create},
    {"save a profile", STATS_MAY | MAY(E_NOT_SUPPORTED) | MAY(E_HOST_MEMORY), 0, with_new_profile,
     idle_and_done, save_profile},
    {"destroy, with a profile", DESTROY_MAY, 0, with_profile, idle_and_done, destroy},
};
enum { SITUATIONS = sizeof situations / sizeof situations[0] };

/* Of mapped arenas alone, in which much moves and much is to be surveyed. */
static const struct situation of_pieces[] = {
    {"moves of what is not done", ALLOC_MAY, SHORT, with_moves, idle_on_two_streams, take_across},
    {"trim of pieces", TRIM_MAY, 0, with_moves, idle_on_two_streams, trim},
    {"refusal among pieces", ALLOC_MAY, SHORT, with_moves, idle_on_two_streams,
     take_more_than_there_is},
    {"moves of handles between halves", ALLOC_MAY, SHORT, with_moves, halves_are_idle, take_across},
    {"trim of handles between halves", TRIM_MAY, 0, with_moves, halves_are_idle, trim},
    {"into a hole", ALLOC_MAY, SHORT, with_moves, unmapped_below, take_into_it},
    {"into a hole beside blocks", ALLOC_MAY, SHORT, with_moves, blocks_beside_unmapped,
     take_into_it},
    {"trim beside a hole", TRIM_MAY, 0, with_moves, unmapped_below, trim},
};
enum { OF_PIECES = sizeof of_pieces / sizeof of_pieces[0] };

/* Behind shelves, which ask the driver for more, and keep blocks from the layer below. */
static const struct situation hardened[] = {
    {"create, hardened", CREATE_MAY, NEW, with_hardening, NULL, create},
    {"first request, hardened", ALLOC_MAY, 0, with_hardening, NULL, take_small},
    {"hit of a shelf", ALLOC_MAY, 0, with_hardening, a_small_idle, take_small},
    {"shelves before the limit", ALLOC_MAY, SHORT | REGIONS, with_shelves_and_limit,
     much_is_shelved, take_nearly_all},
    {"hardened request under capture", ALLOC_MAY | FREE_MAY, GRAPHS, with_hardening,
     two_and_a_capture, take_in_a_graph},
    {"frees of hardened blocks", FREE_MAY, 0, with_hardening, two_live, give_two},
    {"free of a used hardened block", FREE_MAY, 0, with_hardening, one_used, give_one},
    {"hardened frees under capture", FREE_MAY, GRAPHS, with_hardening, two_and_a_capture,
     give_under_capture},
    {"hardened free of nobody's", FREE_MAY, 0, with_hardening, one_small, give_nobodys},
    {"trim of shelves", TRIM_MAY, 0, with_hardening, shelves_are_full, trim},
    {"destroy, shelves full", DESTROY_MAY, 0, with_hardening, shelves_are_full, destroy},
    {"destroy, hardened blocks live", DESTROY_MAY, 0, with_hardening, one_small, destroy},
};
enum { HARDENED = sizeof hardened / sizeof hardened[0] };

static int is_met(const struct situation *it, const struct world *world) {
    int front = world->front == WEIR_SWITCH_ON;

    if ((it->about & CACHES) && !front)
        return 0;
    if ((it->about & SPANS) && !(front && (world->kind == KIND_POOL || world->kind == KIND_DIRECT)))
        return 0;
    if ((it->about & REGIONS) && world->kind != KIND_REGIONS)
        return 0;
    return !(it->about & GRAPHS) || !(world->without & WEIR_CAP_STREAM_ID);
}

/* ---- faults ---------------------------------------------------------------------------------- */

struct fault {
    uint64_t driver_call, then; /* of the operation; 0: none */
    CUresult result;
    uint64_t host_request; /* likewise */
    int for_good;
};

/* What is under way, for the message of a test that fails. */
static struct {
    const struct world *world;
    const struct situation *situation;
    const struct fault *fault;
    enum weir_driver_entry last;
} now;

#define FAIL_UNLESS(condition, detail) ((condition) ? (void)0 : wrong(__LINE__, #condition, detail))

static void wrong(int line, const char *condition, const char *detail) {
    ck_abort_msg("line %d: %s: %s: driver call %llu, then %llu, answers %u (the last: %s), host "
                 "request %llu%s: not so: %s %s",
                 line, now.world->name, now.situation->name,
                 (unsigned long long)now.fault->driver_call, (unsigned long long)now.fault->then,
                 now.fault->result,
                 now.last == WEIR_ENTRY_COUNT ? "none" : weir__driver_entry_name(now.last),
                 (unsigned long long)now.fault->host_request,
                 now.fault->for_good ? ", and all later" : "", condition, detail);
}

/* The statuses that a result excuses. */
static unsigned excused(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: /* host memory: the model's own too, which says what the driver would */
        return MAY(E_HOST_MEMORY) | MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    case CUDA_ERROR_OUT_OF_MEMORY:
        return MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    case CUDA_ERROR_INVALID_VALUE: /* of a free: the pool sees blocks as the driver does */
        return MAY(E_DRIVER) | MAY(E_NOT_OWNED);
    case CUDA_ERROR_INVALID_HANDLE: /* the caller's; or, if it is the answer to all, the device's own */
        return MAY(E_STREAM) | (now.fault->for_good ? MAY(E_DEVICE_LOST) : 0);
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: /* the caller's, or the device's own */
        return MAY(E_STREAM) | MAY(E_DEVICE_LOST);
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        return MAY(E_DEVICE_LOST);
    case CUDA_ERROR_NO_DEVICE:
        return MAY(E_NO_DEVICE);
    case CUDA_ERROR_NOT_SUPPORTED:
        return MAY(E_NOT_SUPPORTED);
    default:
        return MAY(E_DRIVER);
    }
}

/* `clean`: what the operation answers without a fault. */
static void check_status(weir_status status, weir_status clean, uint64_t met) {
    unsigned may = now.situation->may & (excused(now.fault->result) | MAY(E_BUSY));

    if (clean == WEIR_OK)
        may |= MAY(OK);
    if (now.situation->about &
        GRAPHS) /* a block that the driver does not know is not the graph's */
        may |= (may & MAY(E_NOT_OWNED)) || now.fault->host_request > 0 ? MAY(E_CAPTURE) : 0;
    if (now.situation->about & SHORT)
        may |= MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    FAIL_UNLESS(status == clean || (met > 0 && (may >> -(int)status & 1)),
                weir_status_name(status));
    if (status == WEIR_OK)
        FAIL_UNLESS(weir_last_driver_result() == UNTOUCHED, "");
    else
        FAIL_UNLESS(weir_last_driver_result() != UNTOUCHED, weir_status_name(status));
}

/* The thread is as it was, but for what no call can put back. */
static void check_thread(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext current;

    for (; stuck_contexts > 0; stuck_contexts--)
        CU(driver->cuCtxPopCurrent(&current));
    CU(driver->cuCtxGetCurrent(&current));
    FAIL_UNLESS(current == primary, "");
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    FAIL_UNLESS(lost_mode || mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "");
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
}

/* What was grown less what went, where nothing goes unseen: an arena's reserve. */
static void check_events(const struct scene *s) {
    enum { MOST = 1024 };
    static weir_event events[MOST];
    uint64_t bytes = 0;
    size_t count = 0;

    if (s->world->kind == KIND_POOL || s->world->kind == KIND_DIRECT)
        return;
    OK(weir_events(s->a, 0, events, sizeof events[0], MOST, &count));
    if (count == 0 || events[0].sequence > 1) /* the ring has not all of them */
        return;
    for (size_t i = 0; i < count; i++)
        bytes += events[i].shrink ? 0 - events[i].got : events[i].got;
    FAIL_UNLESS(bytes == stats_of(s->a).reserve, "");
}

static void check_accounts(const struct scene *s) {
    const char *fault = weir__model_pool_check();

    FAIL_UNLESS(!fault, fault);
    if (s->a) {
        check_identities(s->a);
        check_events(s);
    }
}

static int is_lost(const struct scene *s) {
    return s->a && weir__slow_path_is(&s->a->device.slow_path, WEIR_SLOW_PATH_LOST);
}

/* Nothing works any more but the figures and the end. */
static void end_lost(struct scene *s) {
    void *none = s;

    FAIL_UNLESS(excused(now.fault->result) & MAY(E_DEVICE_LOST), "");
    end_capture(s);
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(s->a, 1000, A, &none));
    MUST(none == s);
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(s->a, s, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(s->a, s, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_bind(s->a, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(s->a, 1, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(s->a, 0, NULL));
    (void)check_identities(s->a);
    OK(weir_allocator_destroy(s->a));
}

/* Everything goes back. */
static void end(struct scene *s) {
    weir_statistics figures;

    end_capture(s);
    for (int i = 0; i < SLOTS; i++) {
        weir_status status = weir_free(s->a, s->block[i], s->freed_on[i]);

        FAIL_UNLESS(status == WEIR_OK, weir_status_name(status));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(s->a, 0, NULL));
    figures = check_identities(s->a);
    /* What a graph was given, and could not be made ready nor taken back, is the graph's; and of what is kept
     * out some is rounding. */
    FAIL_UNLESS((figures.blocks == 0 && figures.requested == 0) ||
                    (s->options.harden && (now.situation->about & GRAPHS) && now.fault->for_good),
                "");
    FAIL_UNLESS(figures.in_use == 0 || figures.kept_out > 0, "");
    FAIL_UNLESS(figures.front_idle == 0, "");
    FAIL_UNLESS(figures.reserve == 0 || (s->world->without & WEIR_CAP_POOL_FIGURES) ||
                    figures.kept_out > 0,
                "");
    OK(weir_allocator_destroy(s->a));
    s->a = NULL;
}

static void end_device(struct scene *s) {
    if (s->ballast)
        CU(driver->cuMemFree(s->ballast));
    check_accounts(s);
    FAIL_UNLESS(device_free() == CAPACITY, "");
}

static void set_out(struct scene *s, const struct world *world, const struct situation *it) {
    *s = (struct scene){.world = world, .options = options_of(world->kind, "model", 256 * MIB)};
    s->options.recovery_timeout_ms = 20;
    s->options.front = world->front;
    s->options.log = WEIR_LOG_NONE;
    if (it->choose)
        it->choose(&s->options);
    if (it->about & NEW)
        return;
    OK(create(s));
    if (it->prepare)
        it->prepare(s);
}

static void plan(const struct fault *fault) {
    weir__set_driver_result(UNTOUCHED);
    if (fault->driver_call > 0)
        weir__model_fail_any(fault->driver_call, fault->then, fault->result, fault->for_good);
#ifdef CAN_REFUSE_HOST_MEMORY
    was_refused = 0;
    refuse_for_good = fault->for_good;
    refuse_in = fault->host_request;
#endif
}

/* How many faults there were. */
static uint64_t end_of_plan(void) {
    uint64_t met = weir__model_faults_met(&now.last);

    weir__model_faults_clear();
#ifdef CAN_REFUSE_HOST_MEMORY
    refuse_in = 0;
    met += (uint64_t)was_refused;
#endif
    return met;
}

/* No memory of the host is held but what was held at the beginning: what went before has given all back.
 * Asked once the model has dropped what is its own. */
static void check_host_memory(void) {
#ifdef CAN_REFUSE_HOST_MEMORY
    static int64_t at_first;
    static int runs;

    if (runs++ < 2) /* what is made once in a process */
        at_first = pieces_held;
    FAIL_UNLESS(pieces_held == at_first, "(before this one)");
#endif
}

/* A thread has a mark from the first lock on that is biased to it, for as long as it lives. */
static void take_mark(void) {
    static struct weir_bias bias;

    for (int i = 0; i < 1000; i++)
        weir__bias_give(&bias, weir__bias_take(&bias));
}

/* Runs the operation once with the fault, and looks at what it left.  Returns how many faults there
 * were.  *clean: its status without a fault, which a run without one sets. */
static uint64_t run_once(const struct world *world, const struct situation *it,
                         const struct fault *fault, weir_status *clean) {
    struct scene s;
    weir_status status;
    uint64_t met;

    take_mark();
    start_world(world);
    check_host_memory();
    now.world = world;
    now.situation = it;
    now.fault = fault;
    now.last = WEIR_ENTRY_COUNT;
    set_out(&s, world, it);
    plan(fault);
    status = it->act(&s);
    met = end_of_plan();
    if (fault->driver_call == 0 && fault->host_request == 0)
        *clean = status;
    check_status(status, *clean, met);
    check_thread();
    if (is_lost(&s)) {
        end_lost(&s);
        return met;
    }
    check_accounts(&s);
    if (s.captured && !is_captured(&s)) {
        FAIL_UNLESS(met > 0, "");
    } else if (status != *clean) {
        weir_status again = it->act(&s);
        int lacks = (it->about & SHORT) && s.a && stats_of(s.a).kept_out > 0;

        FAIL_UNLESS(again == *clean || (lacks && again == WEIR_E_LIMIT), weir_status_name(again));
    }
    if (!s.a && met > 0)
        return met; /* what the driver does not take back at the end is the driver's */
    if (s.a)
        end(&s);
    if (!(it->about & NEW) || status == *clean || met == 1) /* an unwinding that failed too */
        end_device(&s);
    return met;
}

/* ---- the suite ------------------------------------------------------------------------------- */

static const struct fault no_fault;

static const struct world *mapped_world(void) {
    int i = 0;

    while (worlds[i].kind != KIND_MAPPED || worlds[i].front == WEIR_SWITCH_ON)
        i++;
    return &worlds[i];
}

/* WEIR_TEST_FAULTS=all: nothing is left out.  Else each call fails with one result in turn, and of pairs
 * those of close neighbours are tried, for fewer first calls the later these come; WEIR_TEST_FAULTS=N: of all that
 * every N-th, for tools under which everything takes long. */
static int are_all_wanted(void) {
    const char *text = getenv("WEIR_TEST_FAULTS");

    return text && strcmp(text, "all") == 0;
}

static uint64_t number_from(const char *variable) {
    const char *text = getenv(variable);
    uint64_t n = text ? strtoull(text, NULL, 0) : 0;

    return n > 0 ? n : 1;
}

static uint64_t every(void) {
    return number_from("WEIR_TEST_FAULTS");
}

/* WEIR_TEST_PAIRS=N: of the pairs alone every N-th, likewise. */
static uint64_t every_pair(void) {
    return every() * number_from("WEIR_TEST_PAIRS");
}

static void say(const struct world *world, const char *what, uint64_t points) {
    printf("# %s: %s: %llu\n", world->name, what, (unsigned long long)points);
    fflush(stdout);
}

/* Each situation of the world in turn, after a run without a fault; the sum of what is answered. */
static uint64_t in_each_situation(const struct world *world,
                                  uint64_t (*with_faults)(const struct world *world,
                                                          const struct situation *it,
                                                          weir_status *clean)) {
    uint64_t points = 0;

    for (int i = 0; i < SITUATIONS; i++) {
        weir_status clean = WEIR_OK;

        if (!is_met(&situations[i], world))
            continue;
        run_once(world, &situations[i], &no_fault, &clean);
        points += with_faults(world, &situations[i], &clean);
    }
    return points;
}

/* Results, and the status that an operation must be able to answer for the result to make sense there:
 * those that speak of a stream do so where one was given. */
static const struct {
    CUresult result;
    unsigned needs;
} results[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, 0},
    {CUDA_ERROR_INVALID_VALUE, 0},
    {CUDA_ERROR_ILLEGAL_ADDRESS, 0},
    {CUDA_ERROR_NOT_READY, 0},
    {CUDA_ERROR_INVALID_CONTEXT, 0},
    {CUDA_ERROR_INVALID_HANDLE, MAY(E_STREAM)},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, MAY(E_STREAM)},
    {CUDA_ERROR_NO_DEVICE, MAY(E_NO_DEVICE)},
    {CUDA_ERROR_NOT_SUPPORTED, MAY(E_NOT_SUPPORTED)},
};
enum { RESULTS = sizeof results / sizeof results[0] };

/* Those that make sense in the situation; how many there are. */
static uint64_t choose_results(const struct situation *it, CUresult *chosen) {
    uint64_t count = 0;

    for (int i = 0; i < RESULTS; i++)
        if ((results[i].needs & it->may) == results[i].needs)
            chosen[count++] = results[i].result;
    return count;
}

static uint64_t fail_each_call(const struct world *world, const struct situation *it,
                               weir_status *clean) {
    CUresult chosen[RESULTS];
    uint64_t count = choose_results(it, chosen), points = 0;
    int all = are_all_wanted();

    for (uint64_t k = 1;; k += every()) {
        for (uint64_t r = 0; r < (all ? count : 1); r++) {
            struct fault fault = {.driver_call = k, .result = chosen[(k + r) % count]};

            if (run_once(world, it, &fault, clean) == 0)
                return points;
            fault.for_good = 1;
            fault.result = chosen[(k + 1 + r) % count];
            run_once(world, it, &fault, clean);
            points += 2;
        }
    }
}

/* The same in pieces. */
TEST(each_driver_call_among_pieces_fails) {
    weir_status clean;
    uint64_t points = 0;

    for (pieces = 8; pieces < 40; pieces += 9)
        for (int i = 0; i < OF_PIECES; i++) {
            run_once(mapped_world(), &of_pieces[i], &no_fault, &clean);
            points += fail_each_call(mapped_world(), &of_pieces[i], &clean);
        }
    say(mapped_world(), "driver calls that failed among pieces", points);
    ck_assert_uint_gt(points, 300 / every());
}

/* Shelves know nothing of what lies below: some worlds will do, and some without ids. */
static int has_shelves(const struct world *world) {
    return (world->kind == KIND_POOL || world->kind == KIND_REGIONS) &&
           (world->front == WEIR_SWITCH_ON || (world->without & WEIR_CAP_STREAM_ID));
}

/* Behind shelves, likewise; the sum of what is answered. */
static uint64_t behind_shelves(const struct world *world,
                               uint64_t (*with_faults)(const struct world *world,
                                                       const struct situation *it,
                                                       weir_status *clean)) {
    uint64_t points = 0;

    for (int i = 0; i < HARDENED; i++) {
        weir_status clean = WEIR_OK;

        if (!is_met(&hardened[i], world))
            continue;
        run_once(world, &hardened[i], &no_fault, &clean);
        points += with_faults(world, &hardened[i], &clean);
    }
    return points;
}

TEST(each_driver_call_behind_shelves_fails) {
    uint64_t points = behind_shelves(&worlds[_i], fail_each_call);

    say(&worlds[_i], "driver calls that failed behind shelves", points);
    ck_assert_uint_gt(points, 100 / every());
}

TEST(each_driver_call_fails) {
    uint64_t points = in_each_situation(&worlds[_i], fail_each_call);

    say(&worlds[_i], "driver calls that failed", points);
    ck_assert_uint_gt(points, 500 / every());
}

static uint64_t fail_pairs(const struct world *world, const struct situation *it,
                           weir_status *clean) {
    int all = are_all_wanted();
    struct fault fault = {.driver_call = 1, .result = CUDA_ERROR_INVALID_VALUE};
    uint64_t met, points = 0;

    do {
        fault.then = 0;
        do {
            fault.then++;
            met = run_once(world, it, &fault, clean);
            points += met == 2;
        } while (met == 2 && (all || fault.then < 3));
        fault.driver_call += all ? 1 : every_pair() * (1 + fault.driver_call / 12);
    } while (met > 0);
    return points;
}

TEST(pairs_of_driver_calls_fail) {
    uint64_t points = in_each_situation(&worlds[_i], fail_pairs);

    say(&worlds[_i], "pairs of driver calls that failed", points);
    ck_assert_uint_gt(points, 300 / every_pair());
}

#ifdef CAN_REFUSE_HOST_MEMORY
static uint64_t fail_each_request(const struct world *world, const struct situation *it,
                                  weir_status *clean) {
    uint64_t points = 0;

    for (int for_good = 0; for_good < 2; for_good++) {
        struct fault fault = {.host_request = 1, .for_good = for_good};

        for (; run_once(world, it, &fault, clean) > 0; fault.host_request += every())
            points++;
    }
    return points;
}

TEST(each_request_for_host_memory_fails) {
    uint64_t points = in_each_situation(&worlds[_i], fail_each_request);

    say(&worlds[_i], "requests for host memory that failed", points);
    ck_assert_uint_gt(points, 100 / every());
}

TEST(each_request_behind_shelves_fails) {
    uint64_t points = behind_shelves(&worlds[_i], fail_each_request);

    say(&worlds[_i], "requests for host memory that failed behind shelves", points);
    ck_assert_uint_gt(points, 20 / every());
}

/* Lists grow now here, now there, as there are more pieces to be listed. */
TEST(each_request_among_pieces_fails) {
    weir_status clean;
    uint64_t points = 0;

    for (pieces = 1; pieces < 72; pieces++)
        for (int i = 0; i < OF_PIECES; i++) {
            run_once(mapped_world(), &of_pieces[i], &no_fault, &clean);
            points += fail_each_request(mapped_world(), &of_pieces[i], &clean);
        }
    say(mapped_world(), "requests for host memory that failed among pieces", points);
    ck_assert_uint_gt(points, 500);
}
#endif

static void drop_profile(void) {
    (void)unlink(profile);
}

int main(void) {
    Suite *suite = suite_create("faults");
    TCase *calls_fail = suite_add_case(suite, "driver calls", 300, NULL, drop_profile);
    TCase *pairs_fail = suite_add_case(suite, "pairs", 3600, NULL, drop_profile);

    tcase_add_loop_test(calls_fail, each_driver_call_fails, 0, WORLDS);
    tcase_add_test(calls_fail, each_driver_call_among_pieces_fails);
    for (int i = 0; i < WORLDS; i++)
        if (has_shelves(&worlds[i]))
            tcase_add_loop_test(calls_fail, each_driver_call_behind_shelves_fails, i, i + 1);
    tcase_add_loop_test(pairs_fail, pairs_of_driver_calls_fail, 0, WORLDS);
#ifdef CAN_REFUSE_HOST_MEMORY
    TCase *memory_fails = suite_add_case(suite, "host memory", 300, NULL, drop_profile);
    tcase_add_loop_test(memory_fails, each_request_for_host_memory_fails, 0, WORLDS);
    tcase_add_test(memory_fails, each_request_among_pieces_fails);
    for (int i = 0; i < WORLDS; i++)
        if (has_shelves(&worlds[i]))
            tcase_add_loop_test(memory_fails, each_request_behind_shelves_fails, i, i + 1);
#endif
    return run_suite(suite, CK_FORK_GETENV);
}
