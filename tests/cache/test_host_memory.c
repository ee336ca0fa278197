/* SPDX-License-Identifier: MIT */
/* test_host_memory.c: the host runs out of memory under the caches. */
#include "tests/fixtures/caches.h"

#include "tests/fixtures/refuse.h"

#ifdef CAN_REFUSE_HOST_MEMORY
enum chore {
    CHORE_FIRST,        /* the first request of a stream */
    CHORE_SLAB,         /* more small blocks than there are slots */
    CHORE_WHOLE,        /* more whole blocks than there are */
    CHORE_REMOTE_FREES, /* small blocks freed on another stream */
    CHORE_USED,         /* blocks with notes */
    CHORE_CAPTURED,     /* frees under capture */
    CHORE_NEW_STREAM,   /* a handle that means another stream */
    CHORE_TRIM,
    CHORE_BIND,
    CHORES
};

enum { ITEMS = 150 };
static struct {
    void *block[ITEMS];
    CUstream stream;
    uint64_t done_ns; /* the time at which the forbidden memory is free */
} chores;

/* Returns 1 if the status may occur when host memory runs out, 0 if not. */
static int is_in_order(weir_status status) {
    return status == WEIR_OK || status == WEIR_E_HOST_MEMORY || status == WEIR_E_NO_MEMORY ||
           status == WEIR_E_DRIVER; /* the model needs host memory, too */
}

static void prepare_chore(enum chore chore) {
    memset(&chores, 0, sizeof chores);
    chores.stream = make_stream();
    if (chore == CHORE_FIRST)
        return;
    warm(A);
    if (chore == CHORE_REMOTE_FREES || chore == CHORE_USED || chore == CHORE_CAPTURED)
        for (int i = 0; i < ITEMS; i++)
            chores.block[i] = alloc_live(i % 10 ? 3000 : 100000, A);
    if (chore == CHORE_REMOTE_FREES)
        warm(B);
    if (chore == CHORE_USED)
        for (int i = 0; i < ITEMS; i++)
            OK(weir_use(a, chores.block[i], B));
    if (chore == CHORE_CAPTURED)
        begin_cache_capture(A);
    if (chore == CHORE_NEW_STREAM || chore == CHORE_TRIM) {
        warm(chores.stream);
        for (int i = 0; i < 40; i++)
            chores.block[i] = alloc_live(3000, A);
        for (int i = 0; i < 40; i++) { /* remote frees, too */
            free_live(chores.block[i], chores.stream);
            chores.block[i] = NULL;
        }
        leave_used(chores.stream, 5 * MS);
        chores.done_ns = weir__model_now_ns() + 5 * MS;
    }
    if (chore == CHORE_NEW_STREAM) {
        CU(driver->cuStreamDestroy(chores.stream));
        chores.stream = make_stream();
    }
}

static void take_some(size_t bytes, CUstream stream) {
    for (int i = 0; i < ITEMS; i++)
        if (!chores.block[i])
            MUST(is_in_order(weir_alloc(a, bytes, stream, &chores.block[i])));
}

static void give_some(CUstream stream) {
    for (int i = 0; i < ITEMS; i++) {
        weir_status status = weir_free(a, chores.block[i], stream);

        MUST(is_in_order(status));
        if (status == WEIR_OK) {
            drop_live(chores.block[i]);
            chores.block[i] = NULL;
        }
    }
}

static void run_chore(enum chore chore) {
    switch (chore) {
    case CHORE_FIRST:
        take_some(3000, chores.stream);
        break;
    case CHORE_SLAB:
        take_some(40000, A);
        break;
    case CHORE_WHOLE:
        take_some(100000, A);
        break;
    case CHORE_REMOTE_FREES:
        give_some(B);
        break;
    case CHORE_USED:
    case CHORE_CAPTURED:
        give_some(A);
        break;
    case CHORE_NEW_STREAM:
        take_some(3000, chores.stream);
        for (int i = 0; i < ITEMS;
             i++) /* a pool that lacks host memory counts as full, and weir waits */
            MUST(!chores.block[i] || weir__model_now_ns() >= chores.done_ns ||
                 !is_forbidden(chores.block[i], 3000));
        break;
    case CHORE_TRIM:
        MUST(is_in_order(weir_trim(a, 0, NULL)));
        break;
    default:
        if (weir_bind(a, chores.stream) == WEIR_OK)
            OK(weir_unbind(a, chores.stream));
    }
}

/* Runs the chore, whose k-th request for host memory fails.  Returns 0 if there are fewer requests, otherwise 1. */
static int run_refused(int kind, enum chore chore, uint64_t k) {
    start_device();
    forbidden.count = 0;
    make_cached(kind, "");
    prepare_chore(chore);
    was_refused = 0;
    refuse_in = k;
    run_chore(chore);
    refuse_in = 0;
    if (chore == CHORE_CAPTURED)
        end_cache_capture(A, 0);
    check_identities(a);
    for (int i = 0; i < ITEMS; i++)
        free_live(chores.block[i], A);
    MUST_EQ(check_identities(a).blocks, 0);
    expect_all_back();
    end_cached();
    return was_refused;
}

CASE("host memory", 300, start_device, end_cached_if_there);

TEST_EACH((ENGINES * CHORES), each_request_for_host_memory_fails_once) {
    int more = 1;

    for (uint64_t k = 1; k < 2000 && more; k++)
        more = run_refused(_i / CHORES, (enum chore)(_i % CHORES), k);
    MUST(!more);
}

/* The test runs with and without caches, and with and without the guard.  If the host has no memory to note a graph's
 * block, the graph has no such block, and no free is needed.  A noted block is freed outside after each launch, and is
 * noted once.  A pool without caches and guard notes nothing. */
TEST_WHERE(1, 4 * KIND_DIRECT, NULL, a_graphs_request_fails_if_its_block_cannot_be_noted) {
    enum { NOTES = 32, MANY = 1000, BYTES = 2 * MIB }; /* NOTES fill the first table */
    weir_options options = plain(_i / 4);
    void *block = NULL, *passing[NOTES];
    weir_statistics before;
    uint64_t requests = 0;
    weir_status status;
    CUgraphExec exec;
    CUgraph graph;

    options.cache = _i & 1 ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.harden = _i & 2 ? WEIR_HARDEN_POISON : WEIR_HARDEN_OFF;
    make_with(&options);
    begin_cache_capture(A);
    for (int i = 0; i < 4; i++) /* makes room in the model's list of steps */
        busy(A, MS);
    before = stats_of(a);
    for (int i = 0; i < NOTES; i++) {
        refuse_in = MANY;
        passing[i] = alloc_live(BYTES, A);
        requests = MANY - refuse_in;
    }
    refuse_in = requests + 1; /* the first one after the model's */
    status = weir_alloc(a, BYTES, A, &block);
    MUST_EQ(refuse_in, 0);
    EXPECT(WEIR_E_HOST_MEMORY, status);
    MUST(!block);
    MUST_EQ(stats_of(a).host_bytes, before.host_bytes + 2 * NOTES * sizeof(struct weir_map_slot));
    block = alloc_live(BYTES, A);
    MUST_EQ(stats_of(a).host_bytes, before.host_bytes + 4 * NOTES * sizeof(struct weir_map_slot));
    for (int i = 0; i < NOTES; i++)
        free_live(passing[i], A);
    MUST_EQ(check_identities(a).blocks, 1);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        CU(driver->cuGraphLaunch(exec, A));
        MUST_EQ(memory_of_graphs(), BYTES);
        EXPECT(WEIR_OK, weir_free(a, block, i == 0 ? A : B));
        MUST_EQ(memory_of_graphs(), 0);
    }
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuDeviceGraphMemTrim(0));
    drop_live(block);
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
}

/* Each stream's first call finds no host memory, for one stream when the table of streams grows. */
TEST_EACH(ENGINES, streams_without_a_place) {
    enum { STREAMS_MADE = 70 };
    make_cached(_i, "");
    CUstream stream[STREAMS_MADE];
    int failed_requests = 0;

    for (int i = 0; i < STREAMS_MADE; i++) {
        void *block = NULL;

        stream[i] = make_stream();
        was_refused = 0;
        refuse_in = 1;
        MUST(is_in_order(weir_alloc(a, 512, stream[i], &block)));
        refuse_in = 0;
        failed_requests += was_refused;
        free_live(block, stream[i]);
        pair(512, stream[i]);
    }
    MUST_EQ(failed_requests, STREAMS_MADE);
    for (int i = 0; i < STREAMS_MADE; i++)
        CU(driver->cuStreamDestroy(stream[i]));
}

static int is_pool_regions_or_direct(int kind) {
    return kind != KIND_FIXED && kind != KIND_MAPPED;
}

/* Each request first runs without host memory.  weir does not hand out a block without a record.  Above the direct
 * engine there is no stock of records. */
TEST_WHERE(0, KIND_COUNT, is_pool_regions_or_direct, whole_blocks_without_a_record) {
    enum { COUNT = 800 };
    static void *block[COUNT];
    int failed_requests = 0, failures = 0;

    make_cached(_i, "cache=on");
    if (_i != KIND_DIRECT)
        OK(weir_preallocate(a, 600 * MIB, NULL));
    pair(512, A);
    refuse_for_good = 1;
    for (int i = 0; i < COUNT; i++) {
        was_refused = 0;
        refuse_in = 1;
        block[i] = NULL;
        weir_status status = weir_alloc(a, 600000, A, &block[i]);
        refuse_in = 0;
        MUST(is_in_order(status));
        MUST_EQ(status == WEIR_OK, block[i] != NULL);
        failed_requests += was_refused;
        failures += status != WEIR_OK;
        if (!block[i])
            block[i] = alloc_live(600000, A);
    }
    refuse_for_good = 0;
    MUST_LE(1, _i == KIND_DIRECT ? failures : failed_requests);
    check_identities(a);
    for (int i = 0; i < COUNT; i++)
        free_live(block[i], A);
}
#endif

SUITE("host memory", CK_FORK_GETENV);
