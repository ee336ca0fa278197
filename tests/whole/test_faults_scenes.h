/* SPDX-License-Identifier: MIT */
/* test_faults_scenes.h: worlds and situations in which every failure is tried.
 *
 * Texts describe an operation and its past as steps, with commas between.  A step has a verb and up to three arguments.
 *
 *   take SLOTS BYTES STREAM    allocate blocks, except in slots that have one
 *   give SLOTS [STREAM]        on the stream that took them, unless one is named
 *   touch BYTES STREAM         take and give
 *   use SLOT STREAM            weir_use
 *   work STREAM MS             a kernel of MS milliseconds
 *   sync                       wait for all work of the device
 *   age STREAM                 use the stream until it has a cache
 *   calm STREAM                use the stream until its cache, if any, keeps whole blocks
 *   capture STREAM             begin a capture
 *   preallocate BYTES
 *
 * SLOTS are a number, or the first and the last of several; streams A, B, C, NULL, PER_THREAD, or OWN of the situation.
 * Other verbs are functions of a table.  A failing step ends the text, which continues there when it is played again.
 *
 * Must not know: which calls fail. */
#ifndef WEIR_TEST_FAULTS_SCENES_H
#define WEIR_TEST_FAULTS_SCENES_H

#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/refuse.h"

#define CAPACITY GIB
/* No driver returns this result, which shows whether a call sets the thread's last driver result. */
enum { UNTOUCHED = 4711 };

/* ---- worlds ---------------------------------------------------------------------------------- */

#define BEFORE_12_2 WEIR_CAP_POOL_MAX_SIZE
#define BEFORE_12_0 (WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID)
#define BEFORE_11_3 (WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_FIGURES)

static const struct world {
    const char *name;
    int kind;
    int cache;
    unsigned without; /* capabilities that the driver lacks */
} worlds[] = {
    {"pool", KIND_POOL, WEIR_SWITCH_OFF, 0},
    {"fixed arena", KIND_FIXED, WEIR_SWITCH_OFF, 0},
    {"arena of regions", KIND_REGIONS, WEIR_SWITCH_OFF, 0},
    {"mapped arena", KIND_MAPPED, WEIR_SWITCH_OFF, 0},
    {"platform", KIND_DIRECT, WEIR_SWITCH_OFF, 0},
    {"pool, cache", KIND_POOL, WEIR_SWITCH_ON, 0},
    {"fixed arena, cache", KIND_FIXED, WEIR_SWITCH_ON, 0},
    {"arena of regions, cache", KIND_REGIONS, WEIR_SWITCH_ON, 0},
    {"mapped arena, cache", KIND_MAPPED, WEIR_SWITCH_ON, 0},
    {"platform, cache", KIND_DIRECT, WEIR_SWITCH_ON, 0},
    {"pool, driver 11.2", KIND_POOL, WEIR_SWITCH_OFF, BEFORE_11_3},
    {"pool, driver 12.1", KIND_POOL, WEIR_SWITCH_OFF, BEFORE_12_2},
    {"arena of regions, driver 11.8", KIND_REGIONS, WEIR_SWITCH_OFF, BEFORE_12_0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* The driver's table, which counts failures that weir cannot repair: a context that was not popped, and a capture mode
 * that was not restored. */
static struct weir_driver watched;
static int stuck_contexts, lost_mode;

static CUresult watched_pop(CUcontext *popped) {
    CUresult result = driver->cuCtxPopCurrent(popped);

    stuck_contexts += result != CUDA_SUCCESS;
    return result;
}

/* Records a lost mode.  In this suite only a call that restores a mode asks for another mode than relaxed. */
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
    CUstream freed_on[SLOTS]; /* the stream for the free at the end */
    CUstream own;             /* a stream of the situation */
    CUstream captured;
    CUdeviceptr ballast; /* takes memory from the device */
    int stage;           /* of the operation */
    int is_later;        /* set if the first request preallocates */
};

static int scene_has_caches(const struct scene *s) {
    return s->world->cache == WEIR_SWITCH_ON;
}

/* Allocates a block, unless the slot has one, so that an operation can be repeated. */
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

/* Takes and gives a block. */
static void alloc_and_free_last(struct scene *s, size_t bytes, CUstream stream) {
    OK(want(s, SLOTS - 1, bytes, stream));
    OK(drop_on(s, SLOTS - 1, stream));
}

/* Returns 1 if the capture is unbroken, else 0. */
static int scene_is_captured(const struct scene *s) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    CU(driver->cuStreamIsCapturing(s->captured, &status));
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static void end_scene_capture(struct scene *s) {
    CUgraph graph = NULL;

    if (!s->captured)
        return;
    (void)driver->cuStreamEndCapture(s->captured, &graph);
    if (graph)
        CU(driver->cuGraphDestroy(graph));
    s->captured = NULL;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static weir_status play_steps(struct scene *s, const char *steps);

static size_t bytes_from(const char *text) {
    char *unit;
    size_t number = strtoull(text, &unit, 10);

    return strcmp(unit, "KiB") == 0   ? number * KIB
           : strcmp(unit, "MiB") == 0 ? number * MIB
                                      : number;
}

static CUstream stream_from(const struct scene *s, const char *text) {
    const struct {
        const char *name;
        CUstream stream;
    } streams[] = {{"A", A},
                   {"B", B},
                   {"C", C},
                   {"NULL", NULL},
                   {"PER_THREAD", (CUstream)WEIR_STREAM_PER_THREAD_VALUE},
                   {"OWN", s->own}};

    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        if (strcmp(text, streams[i].name) == 0)
            return streams[i].stream;
    ck_abort_msg("no stream: \"%s\"", text);
}

static int last_of(const char *slots) {
    const char *dash = strchr(slots, '-');

    return atoi(dash ? dash + 1 : slots);
}

static weir_status take_step(struct scene *s, char (*word)[16]) {
    weir_status status = WEIR_OK;

    for (int i = atoi(word[1]); i <= last_of(word[1]) && status == WEIR_OK; i++)
        status = want(s, i, bytes_from(word[2]), stream_from(s, word[3]));
    return status;
}

static weir_status give_step(struct scene *s, char (*word)[16]) {
    weir_status status = WEIR_OK;

    for (int i = atoi(word[1]); i <= last_of(word[1]) && status == WEIR_OK; i++)
        status = drop_on(s, i, *word[2] ? stream_from(s, word[2]) : s->freed_on[i]);
    return status;
}

static weir_status touch_step(struct scene *s, char (*word)[16]) {
    alloc_and_free_last(s, bytes_from(word[1]), stream_from(s, word[2]));
    return WEIR_OK;
}

static weir_status use_step(struct scene *s, char (*word)[16]) {
    return weir_use(s->a, s->block[atoi(word[1])], stream_from(s, word[2]));
}

static weir_status work_step(struct scene *s, char (*word)[16]) {
    busy(stream_from(s, word[1]), (uint64_t)atoi(word[2]) * MS);
    return WEIR_OK;
}

static weir_status preallocate_step(struct scene *s, char (*word)[16]) {
    return weir_preallocate(s->a, bytes_from(word[1]), NULL);
}

static weir_status sync_step(struct scene *s, char (*word)[16]) {
    (void)s, (void)word;
    CU(driver->cuCtxSynchronize());
    return WEIR_OK;
}

static weir_status age_step(struct scene *s, char (*word)[16]) {
    for (int i = 0; i < 70; i++)
        alloc_and_free_last(s, 3000, stream_from(s, word[1]));
    return WEIR_OK;
}

static weir_status calm_step(struct scene *s, char (*word)[16]) {
    for (int i = 0; i < 1100 && scene_has_caches(s); i++)
        alloc_and_free_last(s, MIB, stream_from(s, word[1]));
    return WEIR_OK;
}

static weir_status capture_step(struct scene *s, char (*word)[16]) {
    s->captured = stream_from(s, word[1]);
    CU(driver->cuStreamBeginCapture(s->captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return WEIR_OK;
}

/* ---- steps of one situation ------------------------------------------------------------------- */

/* Allocates blocks in the first slots. */
static weir_status want_many(struct scene *s, int count, size_t bytes, CUstream stream) {
    weir_status status = WEIR_OK;

    for (int i = 0; i < count && status == WEIR_OK; i++)
        status = want(s, i, bytes, stream);
    return status;
}

static weir_status create_scene_allocator(struct scene *s) {
    weir_allocator *a = NULL;
    weir_status status =
        s->is_later ? weir__allocator_create_later(&watched, &s->options, &a, NULL, 0)
                    : weir__allocator_create_on(&watched, &s->options, &a, NULL, 0);

    MUST((status == WEIR_OK) == (a != NULL));
    s->a = a;
    return status;
}

static weir_status the_device_is_full(struct scene *s) {
    size_t free_bytes, total;

    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuMemAlloc(&s->ballast, free_bytes - 48 * MIB));
    return WEIR_OK;
}

/* Allocates a block under capture, and frees it there. */
static weir_status take_in_a_graph(struct scene *s) {
    weir_status status = s->stage == 0 ? want(s, 0, 1000, A) : WEIR_OK;

    if (status == WEIR_OK) {
        s->stage = 1;
        status = drop_on(s, 0, s->freed_on[0]);
    }
    return status;
}

/* Leaves much reserved memory with a destroyed stream, which recorded no event for its frees while it was the only
 * stream. */
static weir_status much_is_stranded(struct scene *s) {
    s->own = make_stream();
    OK(play_steps(s, "take 0 120MiB OWN, give 0"));
    CU(driver->cuStreamDestroy(s->own));
    for (int i = 0; i < 600; i++)
        alloc_and_free_last(s, 1000, A);
    return WEIR_OK;
}

/* Returns 1 if a fault has occurred, else 0. */
static int has_failed(void) {
#ifdef CAN_REFUSE_HOST_MEMORY
    if (was_refused)
        return 1;
#endif
    return weir__model_faults_injected(NULL) > 0;
}

/* Requests more than the limit leaves, so that OOM recovery must find the stranded memory. */
static weir_status take_past_it(struct scene *s) {
    weir_status status = want(s, 0, 200 * MIB, A);

    MUST(status == WEIR_OK || has_failed());
    return status;
}

static weir_status give_many_on_two_streams(struct scene *s) {
    weir_status status = WEIR_OK;

    for (int i = 0; i < 20 && status == WEIR_OK; i++) {
        status = drop_on(s, i, s->freed_on[i]);
        if (status == WEIR_OK)
            status = drop_on(s, 20 + i, s->freed_on[20 + i]);
    }
    return status;
}

/* Leaves the cache of a destroyed stream, whose handle a new stream has. */
static weir_status a_handle_means_another(struct scene *s) {
    CUstream stream = s->own = make_stream();

    OK(play_steps(s, "age OWN, take 0-9 3000 A, take 10-13 1MiB OWN, give 0-13 OWN"));
    CU(driver->cuStreamDestroy(stream));
    s->own = make_stream();
    MUST(s->own == stream);
    return WEIR_OK;
}

static weir_status give_nobodys(struct scene *s) {
    return weir_free(s->a, (char *)s->block[1] + 256, A);
}

/* Notes more streams for a block than its list has room for at first. */
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

static weir_status trim_scene(struct scene *s) {
    size_t released;

    return weir_trim(s->a, 0, &released);
}

static weir_status read_figures(struct scene *s) {
    weir_statistics figures = {.size = sizeof figures};

    return weir_stats(s->a, &figures);
}

static weir_status destroy_scene_allocator(struct scene *s) {
    weir_status status = weir_allocator_destroy(s->a);

    if (status == WEIR_OK)
        s->a = NULL;
    return status;
}

/* Leaves much memory idle for long, of which the next request or weir_decay releases a part. */
static weir_status idle_for_long(struct scene *s) {
    OK(play_steps(s, "take 0-1 60MiB A, take 2 1000 A, give 0-1, sync"));
    for (int i = 0; i < 5; i++) {
        weir__model_advance(4 * MS);
        alloc_and_free_last(s, (size_t)(i + 1) * 2 * MIB, A);
    }
    CU(driver->cuCtxSynchronize());
    weir__model_advance(9 * MS);
    return WEIR_OK;
}

static weir_status decay_scene(struct scene *s) {
    size_t released;

    return weir_decay(s->a, &released);
}

/* Leaves little memory idle, so that the next request grows ahead by the steps that are due. */
static weir_status little_is_idle(struct scene *s) {
    OK(want(s, 1, 100 * MIB, A));
    weir__model_advance(5 * MS);
    return WEIR_OK;
}

static int pieces; /* number of blocks, of which every other eight are idle */

/* Leaves memory idle that was freed on two streams behind unfinished work. */
static weir_status idle_on_two_streams(struct scene *s) {
    alloc_and_free_last(s, 1000, B);
    OK(want_many(s, pieces, MIB, A));
    busy(A, 5 * MS);
    busy(B, 7 * MS);
    for (int i = 0; i < pieces; i++)
        if (i / 8 % 2 == 0)
            OK(drop_on(s, i, i % 2 ? A : B));
    return WEIR_OK;
}

/* Leaves whole physical allocations idle and completed, between others that are half in use. */
static weir_status halves_are_idle(struct scene *s) {
    OK(want_many(s, pieces, 4 * MIB, A));
    for (int i = 0; i < pieces; i++)
        if (i % 6 >= 1 && i % 6 <= 4)
            OK(drop_on(s, i, s->freed_on[i]));
    CU(driver->cuCtxSynchronize());
    return WEIR_OK;
}

/* Leaves an unmapped range and an idle physical allocation below many blocks. */
static weir_status unmapped_below(struct scene *s) {
    OK(play_steps(s, "take 155 24MiB A, take 156 8MiB A"));
    OK(want_many(s, pieces, MIB, A));
    return play_steps(s, "give 155, sync, trim, give 156, sync");
}

static weir_status save_profile(struct scene *s) {
    return weir_profile_save(s->a, NULL);
}

static const struct {
    const char *verb;
    weir_status (*with_words)(struct scene *s, char (*word)[16]);
    weir_status (*alone)(struct scene *s);
} verbs[] = {
    {"take", take_step, NULL},
    {"give", give_step, NULL},
    {"touch", touch_step, NULL},
    {"use", use_step, NULL},
    {"work", work_step, NULL},
    {"sync", sync_step, NULL},
    {"age", age_step, NULL},
    {"calm", calm_step, NULL},
    {"capture", capture_step, NULL},
    {"preallocate", preallocate_step, NULL},
    {"create", NULL, create_scene_allocator},
    {"fill-device", NULL, the_device_is_full},
    {"take-in-graph", NULL, take_in_a_graph},
    {"strand", NULL, much_is_stranded},
    {"take-past-it", NULL, take_past_it},
    {"give-in-turn", NULL, give_many_on_two_streams},
    {"another", NULL, a_handle_means_another},
    {"give-nobodys", NULL, give_nobodys},
    {"use-often", NULL, use_often},
    {"bind-and-unbind", NULL, bind_and_unbind},
    {"trim", NULL, trim_scene},
    {"read-figures", NULL, read_figures},
    {"destroy", NULL, destroy_scene_allocator},
    {"idle-for-long", NULL, idle_for_long},
    {"decay", NULL, decay_scene},
    {"little-is-idle", NULL, little_is_idle},
    {"idle-on-two", NULL, idle_on_two_streams},
    {"idle-halves", NULL, halves_are_idle},
    {"unmap-below", NULL, unmapped_below},
    {"save-profile", NULL, save_profile},
};

static weir_status play_step(struct scene *s, const char *step) {
    char word[4][16] = {""};
    int words =
        sscanf(step, " %15[^ ,] %15[^ ,] %15[^ ,] %15[^ ,]", word[0], word[1], word[2], word[3]);

    for (size_t i = 0; words > 0 && i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(word[0], verbs[i].verb) == 0)
            return verbs[i].alone ? verbs[i].alone(s) : verbs[i].with_words(s, word);
    ck_abort_msg("no step: %s", step);
}

static weir_status play_steps(struct scene *s, const char *steps) {
    weir_status status = WEIR_OK;

    for (const char *step = steps; step && *step && status == WEIR_OK; step = strchr(step, ',')) {
        step += *step == ',';
        status = play_step(s, step);
    }
    return status;
}

/* ---- situations ------------------------------------------------------------------------------ */

/* The statuses that an operation may return: bits of negated statuses. */
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

/* The properties of a situation. */
enum {
    NEW = 1,       /* the operation makes the allocator */
    SHORT = 2,     /* memory is short: a failed attempt to make room may fail the request */
    SPANS = 4,     /* needs a suballocator over regions */
    CACHES = 8,    /* needs caches */
    GRAPHS = 16,   /* needs a capture, which a failed restoration may break */
    REGIONS = 32,  /* needs an arena of regions */
    PROFILE = 64,  /* the allocator saves a profile */
    LEARNED = 128, /* an earlier run has left a profile */
    LATER = 256    /* the first request preallocates */
};

struct situation {
    const char *name;
    unsigned may;
    int about;
    const char *settings, *before, *operation; /* "" for none */
};

static char profile[64]; /* path */

/* Sets the path of a profile that does not exist yet. */
static void with_new_profile(weir_options *o) {
    snprintf(profile, sizeof profile, "%s/weir-faults-%ld.profile",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    (void)unlink(profile);
    o->profile = profile;
}

/* Makes the profile that an allocator of these options leaves. */
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

#define LIMIT "limit=256MiB"
#define HARDENED "harden=guard,poison,zero-stream"
#define MOVES "internal-dependencies=on limit=512MiB"
/* Nearly all memory was freed on stream A behind unfinished work. */
#define ALL_IS_PENDING "touch 1000 B, take 0 200MiB A, work A 5, give 0, take 1 1000 A"
#define CAPTURED "age A, take 1 1000 A, take 2 1MiB A, take 3 1000 B, use 3 C, capture A"
#define A_FEW "take 0 1000 A, take 1 1MiB A, take 2 100MiB A, take 3 1000 NULL, take 4 1MiB NULL"
#define GIVE_A_FEW "give 0-2 A, give 3-4 NULL"
/* Streams B, C and a default stream each use a block of each size. */
#define USED                                                                                       \
    "take 0 1000 A, take 1 20MiB A, take 2 1000 A, use 0 B, use 0 C, use 1 B, use 1 C, use 2 "     \
    "NULL, work B 5, work C 7"
#define TWO_CACHES "age A, age B, "
#define SLOTS_ELSEWHERE TWO_CACHES "take 0-139 3000 A"
#define NOT_DONE                                                                                   \
    SLOTS_ELSEWHERE ", give 0-139 B, take 0 100MiB A, take 1 40MiB B, work A 5, work B 7, give "   \
                    "0-1"
#define A_FEW_IDLE A_FEW ", " GIVE_A_FEW ", sync"
#define SHELVED                                                                                    \
    "take 0-2 3000 A, take 3 2MiB A, take 4-5 1000 B, work A 5, work B 7, give 0-3 A, give 4-5 B"
#define SHORTLY_CAPTURED "take 1 1000 A, take 2 2000 A, capture A"

static const struct situation situations[] = {
    {"create", CREATE_MAY, NEW, "", "", "create"},
    {"create, preallocated", CREATE_MAY, NEW, "prealloc=64MiB", "", "create"},
    {"create, threshold", CREATE_MAY, NEW, "prealloc=64MiB release-threshold=16MiB", "", "create"},
    {"first request", ALLOC_MAY, 0, "", "", "take 0 1000 A"},
    {"first request preallocates", ALLOC_MAY, LATER, "prealloc=64MiB", "", "take 0 1000 A"},
    {"growth by steps", ALLOC_MAY, 0, "growth=step:96MiB latency=on", "take 1 1000 A",
     "take 0 150MiB A"},
    {"hit", ALLOC_MAY, 0, "", "touch 1000 A", "take 0 1000 A"},
    {"hit of a whole block", ALLOC_MAY, 0, "", "touch 1MiB A, calm A", "take 0 1MiB A"},
    {"second stream", ALLOC_MAY, 0, "", "touch 1000 A", "take 0 1000 B, take 2 1MiB B"},
    {"default stream", ALLOC_MAY, 0, "", "touch 1000 A",
     "take 0 1000 NULL, take 2 1MiB PER_THREAD"},
    {"many small", ALLOC_MAY, 0, "", "touch 1000 A", "take 10-59 40000 A"},
    {"wait for another stream", ALLOC_MAY, SHORT, LIMIT, ALL_IS_PENDING, "take 0 200MiB B"},
    {"full device", ALLOC_MAY, SHORT, "", ALL_IS_PENDING ", fill-device", "take 0 200MiB B"},
    {"over the limit", ALLOC_MAY, SHORT, LIMIT, "take 1 140MiB A", "take 0 150MiB A"},
    {"more than there is", ALLOC_MAY, SHORT, "", "take 1 1000 A", "take 0 2048MiB A"},
    {"request under capture", ALLOC_MAY | FREE_MAY, GRAPHS, "", CAPTURED, "take-in-graph"},
    {"stranded reserve", ALLOC_MAY, SHORT, "growth=exact " LIMIT, "strand", "take-past-it"},
    {"swap", ALLOC_MAY, SPANS, "", "touch 200MiB A", "take 0 20MiB A"},
    {"base", ALLOC_MAY, SPANS, "",
     "take 10 100MiB A, take 11 60MiB A, take 12 120MiB A, take 13 130MiB A, take 14 40MiB A, give "
     "10-13",
     "take 0 20MiB A"},
    {"batches come home", ALLOC_MAY, CACHES, "", SLOTS_ELSEWHERE ", work B 1, give 0-139 B, sync",
     "take 10-59 40000 A"},
    {"recycled handle", ALLOC_MAY, 0, "", "another", "take 0 3000 OWN"},
    {"demand", ALLOC_MAY, CACHES, "",
     "calm A, take 0-39 3000 A, take 40-47 1MiB A, give 0-47 A, take 50 100MiB B, take 51 60MiB B",
     "take 0 1MiB A"},
    {"frees", FREE_MAY, 0, "", A_FEW, GIVE_A_FEW},
    {"frees on two streams", FREE_MAY, 0, "", TWO_CACHES "take 0-19 3000 A, take 20-39 200000 B",
     "give-in-turn"},
    {"free on a new stream", FREE_MAY, 0, "", "take 1 1000 A", "give 1 C"},
    {"frees of used blocks", FREE_MAY, 0, "", USED, "give 0-2 A"},
    {"frees under capture", FREE_MAY, GRAPHS, "", CAPTURED, "give 1 A, give 2 A"},
    {"free of a used block under capture", FREE_MAY, GRAPHS, "", CAPTURED, "give 3 A"},
    {"strays", FREE_MAY, CACHES, "", SLOTS_ELSEWHERE, "give 0-139 B"},
    {"full caches", FREE_MAY, CACHES, "cache-limit=2MiB", "calm A, touch 1000 B, take 0-23 1MiB A",
     "give 0-23 A"},
    {"free of nobody's", FREE_MAY, 0, "", "take 1 1000 A", "give-nobodys"},
    {"no threshold", ALLOC_MAY | FREE_MAY, 0, "release-threshold=0",
     "take 0 100MiB A, take 1 3000 A, sync", "give 0 A, take 2 120MiB A"},
    {"use", USE_MAY, 0, "", "take 1 1000 A", "use 1 B, use 1 NULL"},
    {"uses of many streams", USE_MAY, 0, "", "take 1 1000 A", "use-often"},
    {"bind", BIND_MAY, 0, "", "take 1 1000 A", "bind-and-unbind"},
    {"preallocate", PREALLOCATE_MAY, 0, LIMIT, "take 1 1000 A", "preallocate 200MiB"},
    {"preallocate too much", PREALLOCATE_MAY, SHORT, LIMIT, "take 1 1000 A", "preallocate 300MiB"},
    {"trim", TRIM_MAY, 0, "", A_FEW_IDLE, "trim"},
    {"trim of what is not done", TRIM_MAY, 0, "", NOT_DONE, "trim"},
    {"figures", STATS_MAY, 0, "", NOT_DONE, "read-figures"},
    {"destroy", DESTROY_MAY, 0, "", NOT_DONE, "destroy"},
    {"destroy, frees pending", DESTROY_MAY, 0, "", USED ", give 0-2 A", "destroy"},
    {"destroy, blocks live", DESTROY_MAY, 0, "", "take 1 1000 A", "destroy"},
    {"moves", ALLOC_MAY, SHORT, LIMIT, "take 0-7 30MiB A, give 0, give 2, give 4, give 6, sync",
     "take 10 70MiB A"},
    {"decay beside a request", ALLOC_MAY, 0, "decay=10ms", "idle-for-long", "take 3 3MiB A"},
    {"decay", TRIM_MAY | MAY(E_NOT_SUPPORTED), 0, "decay=10ms", "idle-for-long", "decay"},
    {"steps of grow-ahead", ALLOC_MAY, 0, "grow-ahead=100MiB", "little-is-idle", "take 3 3MiB A"},
    {"create, latency", CREATE_MAY, NEW, "latency=on", "", "create"},
    {"create, with a profile", CREATE_MAY, NEW | LEARNED, "", "", "create"},
    {"save a profile", STATS_MAY | MAY(E_NOT_SUPPORTED) | MAY(E_HOST_MEMORY), PROFILE, "",
     A_FEW_IDLE, "save-profile"},
    {"destroy, with a profile", DESTROY_MAY, LEARNED, "", A_FEW_IDLE, "destroy"},
};
enum { SITUATIONS = sizeof situations / sizeof situations[0] };

/* Situations of mapped arenas in which weir moves much memory and surveys many pieces. */
static const struct situation of_pieces[] = {
    {"moves of what is not done", ALLOC_MAY, SHORT, MOVES, "idle-on-two", "take 158 40MiB A"},
    {"trim of pieces", TRIM_MAY, 0, MOVES, "idle-on-two", "trim"},
    {"failure among pieces", ALLOC_MAY, SHORT, MOVES, "idle-on-two", "take 0 2048MiB A"},
    {"moves of handles between halves", ALLOC_MAY, SHORT, MOVES, "idle-halves", "take 158 40MiB A"},
    {"trim of handles between halves", TRIM_MAY, 0, MOVES, "idle-halves", "trim"},
    {"into a hole", ALLOC_MAY, SHORT, MOVES, "unmap-below", "take 158 20MiB A"},
    {"into a hole beside blocks", ALLOC_MAY, SHORT, MOVES, "unmap-below, take 144-146 1MiB A",
     "take 158 20MiB A"},
    {"trim beside a hole", TRIM_MAY, 0, MOVES, "unmap-below", "trim"},
};
enum { OF_PIECES = sizeof of_pieces / sizeof of_pieces[0] };

/* Situations with shelves, which make more driver calls and keep blocks from the layer below. */
static const struct situation hardened[] = {
    {"create, hardened", CREATE_MAY, NEW, HARDENED, "", "create"},
    {"first request, hardened", ALLOC_MAY, 0, HARDENED, "", "take 0 1000 A"},
    {"hit of a shelf", ALLOC_MAY, 0, HARDENED, "touch 1000 A", "take 0 1000 A"},
    {"shelves before the limit", ALLOC_MAY, SHORT | REGIONS, "harden=zero-stream limit=2MiB",
     "take 0-1 600KiB A, give 0-1 A", "take 0 1500KiB A"},
    {"hardened request under capture", ALLOC_MAY | FREE_MAY, GRAPHS, HARDENED, SHORTLY_CAPTURED,
     "take-in-graph"},
    {"frees of hardened blocks", FREE_MAY, 0, HARDENED, "take 0 1000 A, take 1 1049576 A",
     "give 0-1 A"},
    {"free of a used hardened block", FREE_MAY, 0, HARDENED,
     "take 0 1000 A, use 0 B, use 0 C, work B 5", "give 0"},
    {"hardened frees under capture", FREE_MAY, GRAPHS, HARDENED, SHORTLY_CAPTURED,
     "give 1 A, give 2 A"},
    {"hardened free of nobody's", FREE_MAY, 0, HARDENED, "take 1 1000 A", "give-nobodys"},
    {"trim of shelves", TRIM_MAY, 0, HARDENED, SHELVED, "trim"},
    {"destroy, shelves full", DESTROY_MAY, 0, HARDENED, SHELVED, "destroy"},
    {"destroy, hardened blocks live", DESTROY_MAY, 0, HARDENED, "take 1 1000 A", "destroy"},
};
enum { HARDENED_SITUATIONS = sizeof hardened / sizeof hardened[0] };

static int is_met(const struct situation *it, const struct world *world) {
    int cache = world->cache == WEIR_SWITCH_ON;

    if ((it->about & CACHES) && !cache)
        return 0;
    if ((it->about & SPANS) && !(cache && (world->kind == KIND_POOL || world->kind == KIND_DIRECT)))
        return 0;
    if ((it->about & REGIONS) && world->kind != KIND_REGIONS)
        return 0;
    return !(it->about & GRAPHS) || !(world->without & WEIR_CAP_STREAM_ID);
}

#endif
