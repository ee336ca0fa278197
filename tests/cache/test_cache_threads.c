/* SPDX-License-Identifier: MIT */
/* test_cache_threads.c: threads and streams that come and go, and the figures of their caches. */
#include <dlfcn.h>
#include <sys/syscall.h>

#include "cache/stream_cache.h"
#include "tests/fixtures/caches.h"
#include "tests/fixtures/refuse.h"

/* ---- threads and streams that come and go ---------------------------------------------------- */

enum { RELAY = 256, RELAYED = 40000 };
static struct relay {
    CUstream from, to;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    void *block[RELAY];
    int count, done;
    uint64_t reserved;
} relay;

static void *free_relayed(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    pthread_mutex_lock(&relay.lock);
    for (;;) {
        while (relay.count == 0 && !relay.done)
            pthread_cond_wait(&relay.moved, &relay.lock);
        if (relay.count == 0)
            break;
        void *block = relay.block[--relay.count];
        pthread_cond_signal(&relay.moved);
        pthread_mutex_unlock(&relay.lock);
        free_live(block, relay.to);
        pthread_mutex_lock(&relay.lock);
    }
    pthread_mutex_unlock(&relay.lock);
    return NULL;
}

CASE("crowds", 300, start_device, end_cached_if_there);

/* One thread allocates and another one frees, on one stream or on two. */
TEST_EACH(ENGINES * 2, frees_of_another_thread_are_counted) {
    uint64_t random = 3;
    pthread_t thread;

    make_cached(_i / 2, "");
    relay = (struct relay){.from = A,
                           .to = _i % 2 ? B : A,
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .moved = PTHREAD_COND_INITIALIZER};
    MUST(pthread_create(&thread, NULL, free_relayed, NULL) == 0);
    for (int i = 0; i < RELAYED; i++) {
        void *block = alloc_live(random_size(&random, 100000), relay.from);

        pthread_mutex_lock(&relay.lock);
        while (relay.count == RELAY)
            pthread_cond_wait(&relay.moved, &relay.lock);
        relay.block[relay.count++] = block;
        pthread_cond_signal(&relay.moved);
        pthread_mutex_unlock(&relay.lock);
        if (i % 1000 == 0)
            weir__model_advance(MS);
    }
    pthread_mutex_lock(&relay.lock);
    relay.done = 1;
    pthread_cond_signal(&relay.moved);
    pthread_mutex_unlock(&relay.lock);
    MUST(pthread_join(thread, NULL) == 0);
    /* The threads exchange 256 and a few blocks of 100 kB at most. */
    MUST_LE(check_identities(a).reserved_peak, 256 * MIB);
}

static void *free_on_b(void *block) {
    CU(driver->cuCtxPushCurrent(primary));
    free_live(block, B);
    return NULL;
}

/* A slot that another thread frees on another stream serves that stream alone, until the work there has completed. */
TEST_EACH(ENGINES, a_slot_freed_by_another_thread_is_its_streams) {
    make_cached(_i, "");
    warm(A);
    warm(B);
    void *block = alloc_live(3000, A);
    order_streams(B, A);
    busy(B, 50 * MS);
    run_in_thread(free_on_b, block);
    forbid(block, 3000);
    expect_none_of_it(A);
    MUST(weir__model_now_ns() < 50 * MS);
}

enum { BESIDE = 5000, BESIDE_BYTES = 16384 };
static void *beside[BESIDE];

static void free_beside(void) {
    for (int i = 0; i < BESIDE; i++) {
        free_live(beside[i], A);
        if (i % 100 == 0)
            MUST_EQ(weir_free(a, beside[i], A), WEIR_E_NOT_OWNED);
    }
}

/* The frees are many more than a remote-free queue holds, and the thread that has the stream's cache does nothing.
 * Each free is counted at once, none is lost, and no slot is handed out twice. */
TEST_EACH(ENGINES, frees_beside_an_idle_thread_are_not_lost) {
    make_cached(_i, "");
    uint64_t reserve = 0, frees;

    for (int i = 0; i < 1000; i++)
        free_live(alloc_live(BESIDE_BYTES, A), A);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BESIDE; i++) {
            beside[i] = alloc_live(BESIDE_BYTES, A);
            memset(beside[i], 0, 1);
        }
        for (int i = 0; i < BESIDE; i++) {
            unsigned char *first = beside[i];

            MUST_EQ(*first, 0);
            *first = 1;
        }
        if (round == 0)
            reserve = check_identities(a).reserved;
        MUST_EQ(check_identities(a).reserved, reserve);
        frees = check_identities(a).frees;
        elsewhere(free_beside);
        MUST_EQ(check_identities(a).frees, frees + BESIDE);
        MUST_EQ(check_identities(a).blocks, 0);
        MUST_EQ(check_identities(a).requested, 0);
        MUST_EQ(check_identities(a).in_use, 0);
    }
}

static void make_limited(int kind) {
    make_cached(kind, "limit=256MiB");
}

static void visit_briefly(void) {
    for (int i = 0; i < 4; i++)
        one_of_each(PER_THREAD);
}

/* 10,000 threads have a default stream each.  At the limit, weir reclaims the memory that they leave in caches. */
TEST_EACH(ENGINES, threads_come_and_go) {
    make_limited(_i);
    weir_statistics first = {.size = 0};
    for (int i = 0; i < 10000; i++) {
        elsewhere(visit_briefly);
        if (i == 1000)
            first = stats_of(a);
    }
    weir_statistics last = check_identities(a);
    MUST_LE(last.host_bytes, first.host_bytes + 4 * MIB);
    MUST_EQ(last.failed_requests, 0);
}

/* More threads bind their default streams than unbound default streams keep caches. */
enum { BOUND_THREADS = 300, UNBOUND_KEPT = 256 };

static pthread_barrier_t all_bound;

static void *bind_own(void *unused) {
    CU(driver->cuCtxPushCurrent(primary));
    OK(weir_bind(a, PER_THREAD));
    pthread_barrier_wait(&all_bound);
    free_live(alloc_live(512, PER_THREAD), PER_THREAD);
    OK(weir_unbind(a, PER_THREAD));
    return unused;
}

/* However many threads bind their default streams at once, each has a cache.  When they have unbound their streams,
 * later threads reuse the memory.  With engine pool each stream that has a block holds 2 MiB, so the limit has room for
 * all threads of a round, but not for those of two rounds. */
TEST_EACH(ENGINES, many_default_streams_are_bound_at_once) {
    make_cached(_i, "limit=1GiB");
    weir_statistics s;

    for (int round = 0; round < 5; round++) {
        MUST(pthread_barrier_init(&all_bound, NULL, BOUND_THREADS) == 0);
        run_threads(BOUND_THREADS, bind_own, a, 0);
        pthread_barrier_destroy(&all_bound);
        s = check_identities(a);
        MUST_BE_WITHIN(BOUND_THREADS, s.cache_streams, BOUND_THREADS + UNBOUND_KEPT);
    }
}

/* Each of 10,000 streams makes `pairs` pairs.  After few pairs a stream leaves nothing, after many a cache. */
static void come_and_go(int kind, int pairs) {
    make_limited(kind);
    weir_statistics first = {.size = 0};
    CUstream alive[4] = {make_stream(), make_stream(), make_stream(), make_stream()};
    for (int i = 0; i < 10000; i++) {
        CUstream *s = &alive[i % 4];

        CU(driver->cuStreamDestroy(*s));
        *s = make_stream();
        for (int k = 0; k < pairs; k++)
            free_live(alloc_live(sizes[k % SIZES], *s), *s);
        busy(*s, 10000);
        if (i == 1000)
            first = stats_of(a);
    }
    weir_statistics last = check_identities(a);
    MUST_EQ(last.failed_requests, 0);
    if (pairs < 64)
        MUST_LE(last.reserved_peak, 64 * MIB + (kind == KIND_FIXED ? 192 * MIB : 0));
    MUST_LE(last.host_bytes, first.host_bytes + 4 * MIB);
}

TEST_EACH(ENGINES * 2, past_streams_leave_no_memory_behind) {
    come_and_go(_i / 2, _i % 2 ? 200 : 4);
}

/* ---- who has a cache's bias ------------------------------------------------------------------ */

CASE("a bias", 60, start_device, end_cached_if_there);

enum { LARGE = 100 };
static void *large[LARGE];

static void free_large_on_a(void) {
    for (int i = 0; i < LARGE; i++)
        free_live(large[i], A);
}

/* A thread that only frees large blocks of the pool does not get the bias of the stream's cache. */
TEST(large_frees_do_not_move_a_bias) {
    make_cached(KIND_POOL, "");
    OK(weir_bind(a, A));
    for (int i = 0; i < LARGE; i++)
        large[i] = alloc_live(MIB, B);
    elsewhere(free_large_on_a);
    MUST(!weir__bias_is_anothers(&weir__cache_find(a->caches, (uintptr_t)A)->lock));
    OK(weir_unbind(a, A));
}

/* ---- memory on its way from a cache to the engine -------------------------------------------- */

CASE("on its way", 60, start_device, end_cached_if_there);

/* A request and its free by another thread, or only the free if `bytes` is 0.  They begin in the middle of a call of
 * this thread. */
static struct {
    size_t bytes;
    CUstream stream;
    void *block; /* the block that the request must get, or NULL for any; or the block to free */
    atomic_int has_begun, waits, has_ended, is_freed;
    pthread_t thread;
} late;

/* Set if this thread's next wait for a lock of weir must last until OOM recovery in another thread waits. */
static _Thread_local int to_hold;

static void *run_late_call(void *unused) {
    CU(driver->cuCtxPushCurrent(primary));
    to_hold = late.bytes == 0;
    void *block = late.bytes ? alloc_live(late.bytes, late.stream) : late.block;
    MUST(!late.block || block == late.block);
    free_live(block, late.stream);
    late.has_ended = 1;
    return unused;
}

/* Begins the late call.  Returns once the call waits or has ended. */
static void begin_late_call(void) {
    late.has_begun = 1;
    MUST(pthread_create(&late.thread, NULL, run_late_call, NULL) == 0);
    while (!late.waits && !late.has_ended)
        sched_yield();
}

static CUresult free_after_late_call_begins(CUdeviceptr block, CUstream stream) {
    if (stream == B && !late.has_begun)
        begin_late_call();
    CUresult result = driver->cuMemFreeAsync(block, stream);
    late.is_freed = late.has_begun;
    return result;
}

static void sleep_until_freed(uint64_t ns) {
    late.waits++;
    while (late.has_begun && !late.is_freed && !late.has_ended)
        sched_yield();
    driver->sleep_ns(ns);
}

static void make_with_late_call(int kind, const char *settings, size_t bytes, CUstream stream) {
    weir_options options = plain(kind);

    late.bytes = bytes;
    late.stream = stream;
    copy_driver();
    table.cuMemFreeAsync = free_after_late_call_begins;
    table.sleep_ns = sleep_until_freed;
    apply_settings(&options, settings);
    make_with_on(&table, &options);
    OK(weir_bind(a, A));
    OK(weir_bind(a, B));
}

#ifdef CAN_REFUSE_HOST_MEMORY
static void request_most(void) {
    free_live(alloc_live(200 * MIB, A), A);
}

/* Fills the cache of B, which is bound, with 128 MiB of idle slabs. */
static void fill_cache_of_b(void) {
    enum { COUNT = 256 };
    void *block[COUNT];

    OK(weir_bind(a, B));
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(512 * KIB, B);
    for (int i = 0; i < COUNT; i++)
        free_live(block[i], B);
    MUST_LE(120 * MIB, stats_of(a).cache_idle);
}

/* The number of takes of the caches' lock by this thread until the one that another thread's request precedes, or 0. */
static _Thread_local int takes_left;

#pragma GCC visibility push(default)
int pthread_mutex_lock(pthread_mutex_t *mutex) {
    int (*next)(pthread_mutex_t *) =
        (int (*)(pthread_mutex_t *))(uintptr_t)dlsym(RTLD_NEXT, "pthread_mutex_lock");

    if (takes_left > 0 && mutex == &a->caches->lock && --takes_left == 0) {
        if (late.bytes > 0)
            begin_late_call();
        else
            elsewhere(request_most);
    }
    return next(mutex);
}

/* A thread calls this function while it waits for a lock of weir. */
int sched_yield(void) {
    if (to_hold) {
        to_hold = 0;
        late.waits = 1;
        while (late.waits == 1)
            sched_yield();
    }
    return (int)syscall(SYS_sched_yield);
}
#pragma GCC visibility pop

/* While a cache flushes, another thread's request finds the idle memory, wherever it is. */
TEST_WHERE(0, ENGINES, has_inbox, no_request_fails_beside_a_flush) {
    int takes = 0;

    make_cached(_i, "limit=256MiB cache-limit=200MiB");
    do {
        fill_cache_of_b();
        takes_left = ++takes;
        OK(weir_unbind(a, B));
    } while (takes_left == 0);
    MUST_LE(2, takes);
    takes_left = 0;
}

/* A small request has emptied the inbox.  Before the engine has the blocks, OOM recovery in another thread waits. */
TEST(oom_recovery_waits_for_an_inbox) {
    make_with_late_call(KIND_MAPPED, "limit=256MiB", 48 * MIB, C);
    alloc_live(190 * MIB, A);
    void *small = alloc_live(512 * KIB, A), *inboxed = alloc_live(24 * MIB, A);
    order_streams(B, A);
    free_live(small, B);
    OK(weir_unbind(a, B)); /* defers the remote free, so that A's next request takes the lock */
    free_live(inboxed, A);
    MUST_LE(24 * MIB, stats_of(a).cache_idle);
    late.is_freed = 1;
    takes_left = 1;
    alloc_live(512 * KIB, A);
    MUST(late.has_begun && pthread_join(late.thread, NULL) == 0);
}

/* The engine queries the device's free memory with its lock, for which the free then waits. */
static CUresult query_beside_free(size_t *free_bytes, size_t *total) {
    if (late.block && !late.has_begun)
        begin_late_call();
    return driver->cuMemGetInfo(free_bytes, total);
}

/* A large free has found no room in the inbox.  Before the engine has the block, OOM recovery in this thread waits. */
TEST(oom_recovery_waits_for_a_large_free) {
    make_with_late_call(KIND_REGIONS, "limit=256MiB growth=exact", 0, A);
    table.cuMemGetInfo = query_beside_free;
    late.block = alloc_live(200 * MIB, A);
    alloc_live(200 * MIB, C);
    MUST(late.waits > 1 && pthread_join(late.thread, NULL) == 0);
}
#endif

/* While a flush of B's cache frees slabs, a slot that was freed on B already serves A, the stream of its slab. */
TEST(a_remote_free_is_found_beside_a_flush) {
    make_with_late_call(KIND_POOL, "", 512 * KIB, A);
    void *own = alloc_live(512 * KIB, B);
    late.block = alloc_live(512 * KIB, A);
    order_streams(B, A);
    free_live(late.block, B);
    free_live(own, B);
    OK(weir_unbind(a, B));
    MUST(late.has_begun && pthread_join(late.thread, NULL) == 0);
}

/* While weir frees one or two superblocks of the pool engine, OOM recovery in another thread waits for their memory. */
TEST_EACH(2, oom_recovery_waits_for_superblocks) {
    enum { COUNT = 56 };
    size_t superblocks = (size_t)_i + 1, count = COUNT * superblocks;
    void *block[2 * COUNT];

    make_with_late_call(KIND_POOL, "limit=1GiB cache-limit=200MiB", superblocks * 24 * MIB, A);
    for (size_t i = 0; i < count; i++)
        block[i] = alloc_live(512 * KIB, B);
    void *rest = alloc_live(GIB - superblocks * 32 * MIB, C);
    for (size_t i = 0; i < count; i++)
        free_live(block[i], B);
    MUST(!late.has_begun);
    OK(weir_unbind(a, B));
    MUST(late.has_begun && pthread_join(late.thread, NULL) == 0);
    free_live(rest, C);
}

/* ---- figures --------------------------------------------------------------------------------- */

CASE("amounts", 300, start_device, end_cached_if_there);

/* B has no cache and frees A's block.  However that free is counted, the peak must include the live block of C. */
TEST_EACH(ENGINES, no_peak_is_below_the_water) {
    make_cached(_i, "");
    void *block = alloc_live(128181, A);

    CU(driver->cuStreamSynchronize(A));
    free_live(block, B);
    block = alloc_live(130120, C);
    MUST_LE(130120, check_identities(a).requested_peak);
}

/* On one stream all figures are exact, peaks too. */
TEST_EACH(ENGINES, figures_are_exact) {
    enum { MOST = 300 };
    make_cached(_i, "");
    struct {
        void *block;
        size_t bytes;
    } held[MOST];
    uint64_t random = 11, requested = 0, peak, allocs, frees;
    int count = 0;

    warm(A);
    peak = stats_of(a).requested_peak;
    allocs = stats_of(a).allocs;
    frees = stats_of(a).frees;
    for (int i = 0; i < 20000; i++) {
        if (count < MOST && (count == 0 || next_random(&random) % 100 < 52)) {
            held[count].bytes = random_size(&random, 300000);
            held[count].block = alloc_live(held[count].bytes, A);
            requested += held[count++].bytes;
            allocs++;
        } else {
            int k = (int)(next_random(&random) % (uint64_t)count);

            free_live(held[k].block, A);
            requested -= held[k].bytes;
            held[k] = held[--count];
            frees++;
        }
        if (peak < requested)
            peak = requested;
        weir_statistics s = check_identities(a);
        MUST_EQ(s.requested, requested);
        MUST_EQ(s.requested_peak, peak);
        MUST_EQ(s.blocks, (uint64_t)count);
        MUST_EQ(s.allocs, allocs);
        MUST_EQ(s.frees, frees);
        MUST_LE(s.in_use, s.requested + s.requested / 8 + (uint64_t)count * 16 * KIB);
        MUST_EQ(s.cache_streams, 1);
        MUST_EQ(s.deferred_frees, 0);
    }
    MUST_LE(9000, stats_of(a).cache_hits);
    while (count > 0)
        free_live(held[--count].block, A);
}

/* The peak of C does not include a block of A that B has freed, even if the free was not yet published. */
TEST_EACH(ENGINES, peaks_are_never_too_high) {
    make_cached(_i, "");
    warm(A);
    warm(B);
    warm(C);
    void *block = alloc_live(20 * MIB, A);
    for (int i = 0; i < 5000; i++) /* publishes the figures of A */
        free_live(alloc_live(4096, A), A);
    free_live(block, B);
    block = alloc_live(30 * MIB, C);
    for (int i = 0; i < 5000; i++)
        free_live(alloc_live(4096, C), C);
    weir_statistics s = check_identities(a);
    MUST_EQ(s.requested, 30 * MIB);
    MUST_LE(s.requested_peak, 31 * MIB);
    MUST_LE(s.in_use_peak, 31 * MIB);
}

/* The peak of several streams is exact to a 32nd, whether or not the driver is queried about the streams, and also in
 * preallocated memory. */
TEST_EACH(4 * ENGINES, a_peak_of_several_streams_is_exact_to_a_32nd) {
    enum { COUNT = 60, BYTES = 4 * MIB };
    make_cached(_i / 4, "");
    weir_stream streams[] = {A, B, C};
    void *block[COUNT];
    weir_statistics s;

    if (_i & 1)
        OK(weir_preallocate(a, COUNT * BYTES, NULL));
    for (int i = 0; i < 3 && _i & 2; i++)
        OK(weir_bind(a, streams[i]));
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(BYTES, streams[i % 3]);
    for (int i = 0; i < COUNT; i++)
        free_live(block[i], streams[i % 3]);
    s = check_identities(a);
    MUST_BE_WITHIN(COUNT * BYTES - COUNT * BYTES / 32 - BYTES - 16 * MIB, s.in_use_peak,
                   COUNT * BYTES);
    MUST_LE(s.requested_peak, COUNT * BYTES);
    for (int i = 0; i < 3 && _i & 2; i++)
        OK(weir_unbind(a, streams[i]));
}

/* One figure rises above its peak and the other does not, because 1 byte takes 512 bytes or more. */
TEST_EACH(ENGINES, one_figure_peaks_without_the_other) {
    enum { COUNT = 40000 };
    make_cached(_i, "");
    static void *block[COUNT];

    warm(A);
    warm(B);
    warm(C);
    for (int i = 0; i < COUNT; i++)
        block[i] = alloc_live(1, A);
    MUST_LE(COUNT * 512, check_identities(a).in_use_peak);
    for (int i = 0; i < COUNT; i++)
        free_live(block[i], A);
    block[0] = alloc_live(8 * MIB, A);
    for (int i = 0; i < 5000; i++) /* publishes the figures of A */
        pair(4096, A);
    free_live(block[0], B);
    block[0] = alloc_live(8 * MIB, C);
    for (int i = 0; i < 5000; i++)
        pair(4096, C);
    MUST_LE(check_identities(a).requested_peak, 9 * MIB);
}

/* On one stream a peak counts though nobody queried it.  A block that bypassed the caches is not in the next peak. */
TEST_EACH(ENGINES, peaks_count_without_a_query) {
    make_cached(_i, "");
    pair(10 * MIB, A);
    MUST_EQ(check_identities(a).requested_peak, 10 * MIB);
    void *block = alloc_live(20 * MIB, A);
    OK(weir_use(a, block, B));
    free_live(block, A);
    CU(driver->cuCtxSynchronize());
    block = alloc_live(30 * MIB, A);
    MUST_EQ(check_identities(a).requested_peak, 30 * MIB);
}

/* B only frees.  Even so A is not the only stream. */
TEST_EACH(ENGINES, a_peak_knows_of_frees_elsewhere) {
    make_cached(_i, "");
    void *block = alloc_live(20 * MIB, A);

    OK(weir_bind(a, B));
    order_streams(B, A);
    free_live(block, B);
    pair(512, A);
    block = alloc_live(30 * MIB, A);
    MUST_LE(check_identities(a).requested_peak, 31 * MIB);
    free_live(block, A);
    OK(weir_unbind(a, B));
}

/* B allocates as many bytes as it has freed of A's, and yet A is not the only stream. */
TEST_EACH(ENGINES, a_peak_is_not_of_one_stream_of_two) {
    make_cached(_i, "");
    void *first = alloc_live(64 * KIB, A);
    free_live(first, B);
    first = alloc_live(20 * MIB, A);
    alloc_live(57345, B); /* gets the 64 KiB */
    MUST_LE(check_identities(a).requested_peak, 20 * MIB + 57345);
}

SUITE("cache threads", CK_FORK_GETENV);
