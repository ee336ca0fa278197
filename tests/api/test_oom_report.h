/* SPDX-License-Identifier: MIT */
/* test_oom_report.h: the shared part of the OOM report suite: an allocator that fails, and checks of its report.
 *
 * Must not know: how a report is made. */
#ifndef WEIR_TEST_OOM_REPORT_H
#define WEIR_TEST_OOM_REPORT_H

#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "api/oom_reporting.h"
#include "tests/fixtures/every_kind.h"

enum { MOST = 64 };

static weir_allocator *a;
static weir_options options; /* of the allocator */
static weir_oom_report v;    /* the last report */
static void *block[MOST];
static int blocks;

static inline void start_report_device(void) {
    start_model(4 * GIB);
    v = (weir_oom_report){.size = sizeof v};
}

static inline weir_options report_options(int world, size_t limit) {
    weir_options made = model_options(world, limit ? limit : 3 * GIB);

    if (limit)
        made.limit = bytes_amount(limit);
    return made;
}

static inline void make_reporter(void) {
    blocks = 0;
    OK(weir_allocator_create(&options, &a));
}

static inline void make_for(int world, size_t limit, const char *settings) {
    options = report_options(world, limit);
    apply_settings(&options, settings);
    make_reporter();
}

static inline int is(int world, int kind) {
    return worlds[world].kind == kind;
}

/* Returns 1 if all blocks are the driver's own. */
static inline int is_bare(int world, int kind) {
    return is(world, kind) && worlds[world].cache == WEIR_SWITCH_OFF;
}

/* Returns 1 if the reserved memory can grow.  A fixed arena cannot. */
static inline int has_growth(int world) {
    return !is(world, KIND_FIXED);
}

/* Returns 1 if the world keeps freed memory.  The direct engine returns all of it to the driver at once. */
static inline int keeps_idle(int world) {
    return !is(world, KIND_DIRECT);
}

/* Returns 1 if the engine knows which memory waits for a stream. */
static inline int has_order(int world) {
    return !is(world, KIND_DIRECT) && !is(world, KIND_POOL);
}

static inline int world_is_mapped(int world) {
    return is(world, KIND_MAPPED);
}

static inline void add_block(size_t bytes, CUstream stream) {
    MUST(blocks < MOST);
    OK(weir_alloc(a, bytes, stream, &block[blocks]));
    blocks++;
}

static inline void free_every(int first, int step, CUstream stream) {
    for (int i = first; i < blocks; i += step) {
        OK(weir_free(a, block[i], stream));
        block[i] = NULL;
    }
}

static inline void end_reporter(void) {
    CU(driver->cuCtxSynchronize());
    for (int i = 0; i < blocks; i++)
        OK(weir_free(a, block[i], A));
    CU(driver->cuCtxSynchronize());
    check_identities(a);
    OK(weir_allocator_destroy(a));
    a = NULL;
    check_model();
}

/* Ends the allocator that a test has left. */
static inline void end_reporter_if_there(void) {
    if (a)
        end_reporter();
}

/* Queries the report, whose figures must be those of the allocator. */
static inline void oom_report_now(void) {
    weir_statistics s = stats_of(a);

    v = (weir_oom_report){.size = sizeof v};
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.size, sizeof v);
    MUST_EQ(v.reserved, s.reserved);
    MUST_EQ(v.in_use, s.in_use);
    MUST_EQ(v.idle, v.reserved - v.in_use);
    MUST_EQ(v.limit, a->reserve.limit.bytes);
    MUST_EQ(v.device_total, 4 * GIB);
    if (v.pending != UINT64_MAX) {
        MUST_LE(v.pending, v.idle);
        MUST(v.largest_free_block <= v.idle || v.largest_free_block == UINT64_MAX);
    }
}

/* Queries the report while that driver call fails. */
static inline void oom_report_without(enum weir_driver_entry entry) {
    weir__model_fail(entry, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_last_oom_report(a, &v));
    weir__model_faults_clear();
}

/* Checks that the report's lines fit a terminal. */
static inline void check_lines(void) {
    char text[4096], *line = text;

    MUST_LE(weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, text, sizeof text), sizeof text - 1);
    for (size_t length; *line; line += length + 1) {
        length = strcspn(line, "\n");
        MUST(line[length] == '\n');
        if (length >= 90)
            ck_abort_msg("%zu letters: %.*s", length, (int)length, line);
    }
}

/* Makes a request that must fail for that cause.  The available memory must agree with weir_last_failure. */
static inline void refused_for(int line, int cause, size_t bytes, CUstream stream) {
    weir_failure r = {.size = sizeof r};
    void *none = NULL;
    weir_status status = weir_alloc(a, bytes, stream, &none);

    MUST(is_out_of_memory(status));
    oom_report_now();
    if (v.cause != cause)
        ck_abort_msg("line %d: %s, not %s", line, weir_oom_report_cause_word(v.cause),
                     weir_oom_report_cause_word(cause));
    check_lines();
    MUST_EQ(v.status, status);
    MUST_EQ(v.asked, bytes);
    MUST_EQ(v.stream, id_of(stream));
    OK(weir_last_failure(&r));
    MUST_EQ(v.largest, r.largest);
    MUST_EQ(v.waited_ns, r.waited_ns);
    MUST_EQ(v.reserved, r.reserved);
    MUST_EQ(v.in_use, r.in_use);
    MUST_EQ(v.limit, r.limit);
    MUST_EQ(v.device_free, r.device_free);
}
#define REFUSED(cause, bytes, stream) refused_for(__LINE__, WEIR_OOM_REPORT_##cause, bytes, stream)

/* Makes a request that must fail for any cause. */
static inline void oom_report_of_failure(size_t bytes) {
    void *none = NULL;

    MUST(is_out_of_memory(weir_alloc(a, bytes, A, &none)) && none == NULL);
    oom_report_now();
}

/* Expects that setting at that place in the report, with that value unless it is NULL. */
static inline void expect_setting(int at, const char *name, const char *value) {
    ck_assert_msg(v.settings[at].name != NULL, "no setting");
    ck_assert_str_eq(v.settings[at].name, name);
    if (value)
        ck_assert_str_eq(v.settings[at].value, value);
}

static inline void expect_only(const char *name, const char *value) {
    expect_setting(0, name, value);
    MUST(v.settings[1].name == NULL);
}

static inline void expect_none(void) {
    MUST(v.settings[0].name == NULL);
}

static inline void expect_report_words(int format, const char *words) {
    char text[4096];

    MUST(weir_oom_report_text(&v, format, text, sizeof text) < sizeof text);
    ck_assert_msg(strstr(text, words) != NULL, "not \"%s\": %s", words, text);
}

static inline void expect_text(const char *words) {
    expect_report_words(WEIR_OOM_REPORT_AS_TEXT, words);
}

static inline void expect_json(const char *words) {
    expect_report_words(WEIR_OOM_REPORT_AS_JSON, words);
}

/* Ends the allocator, and makes one with the settings of the report as well. */
static inline void make_as_told(void) {
    weir_options before = options;

    end_reporter();
    for (int i = 0; i < WEIR_OOM_REPORT_SETTINGS && v.settings[i].name; i++)
        OK(weir_options_set(&options, v.settings[i].name, v.settings[i].value, NULL, 0));
    make_reporter();
    options = before;
}

/* Checks that the request succeeds with those settings. */
static inline void serves_as_told(size_t bytes) {
    make_as_told();
    add_block(bytes, A);
    end_reporter();
}

static inline void fill_to_the_limit(void) {
    for (int i = 0; i < 24; i++)
        add_block(9 * MIB, A);
}

/* Launches a graph that has that much memory during and after a launch. */
static inline CUgraphExec run_graph(size_t bytes) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr memory;
    CUgraphExec exec;
    CUgraph graph;

    CU(driver->cuMemPoolCreate(&pool, &properties));
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(driver->cuMemAllocFromPoolAsync(&memory, bytes, pool, C));
    CU(driver->cuMemFreeAsync(memory, C));
    CU(driver->cuStreamEndCapture(C, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuGraphLaunch(exec, C));
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuMemPoolDestroy(pool));
    return exec;
}

/* Frees all memory on a stream that is at work, so that another stream would have to wait. */
static inline void fill_and_free_behind_work(void) {
    for (int i = 0; i < 12; i++)
        add_block(16 * MIB, B);
    busy(B, 200 * MS);
    free_every(0, 1, B);
    blocks = 0;
}

/* A report with made-up figures. */
static const weir_oom_report some = {.size = sizeof some,
                                     .limit = UINT64_MAX,
                                     .reserved = 3 << 20,
                                     .in_use = 1 << 20,
                                     .idle = 2 << 20,
                                     .device_total = 1 << 30,
                                     .others = UINT64_MAX,
                                     .other_allocators = 5 << 20};

#endif
