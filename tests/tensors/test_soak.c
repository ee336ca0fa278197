/* SPDX-License-Identifier: MIT */
/* test_soak.c: tensors under several threads at once, on the device model.
 *
 * Threads allocate, use and free their own blocks and blocks of other threads, on several streams.  Threads destroy
 * streams whose blocks are live, and create streams that get the old handles.  Requests go to pools of a thread, and to
 * pools of graphs that the thread captures and launches.  Threads restore pools, trim, and allocate from the shared
 * allocator.  The limit is small, so that memory runs out.  Each thread keeps the contract: a stream waits for the
 * block's own stream before it uses the block, and the thread notes the use before the free.
 *
 * The model's oracle reports each use that is not ordered after the last owner's uses.  At the end all memory is free,
 * and the figures count no block. */
#include "tests/fixtures/tensors.h"

enum { THREADS = 4, STREAMS = 4, MOST = 60, EXCHANGE = 16, MOST_STATES = 12 };
enum { MOST_ENDS = 20 }; /* streams that each thread ends */

struct block {
    void *at;
    size_t bytes;
    CUstream stream; /* NULL if the stream has ended */
    uint64_t owner;
};

struct thread {
    pthread_t self;
    int number;
    uint64_t random;
    CUstream captured; /* captured by this thread alone */
    CUstream passing;  /* destroyed and created again */
    int ends;          /* how often */
    CUevent event;
    struct block blocks[MOST];
    size_t count;
    /* The pools of this thread, and of its graph. */
    weir_tensors_id own, graphs;
    int is_open;
    CUgraphExec ready;
};

static int steps = 2500;
static CUstream streams[STREAMS];
static _Atomic uint64_t last_owner;
static pthread_mutex_t exchange_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block exchange[EXCHANGE];

static uint64_t draw_below(struct thread *h, uint64_t below) {
    return next_random(&h->random) % below;
}

static int is_thread(void *context, weir_stream stream) {
    (void)stream;
    return pthread_equal(((struct thread *)context)->self, pthread_self());
}

static int is_capture(void *context, weir_stream stream) {
    return stream == ((struct thread *)context)->captured;
}

/* ---- blocks ------------------------------------------------------------------------------------- */

static void use_soak_block(const struct block *b, CUstream stream) {
    CU(weir__model_use(stream, (uintptr_t)b->at, b->bytes, b->owner, 20000));
}

static size_t some_bytes(struct thread *h) {
    return (draw_below(h, 4)   ? 1 + draw_below(h, 64 * KIB)
            : draw_below(h, 8) ? 1 + draw_below(h, 3 * MIB)
                               : 24 * MIB) /
               512 * 512 +
           512;
}

/* Returns 1 on success, 0 if there is no memory. */
static int alloc_for_thread(struct thread *h, CUstream stream, struct block *out) {
    weir_status status;

    *out = (struct block){.bytes = some_bytes(h), .stream = stream, .owner = ++last_owner};
    status = weir_tensors_alloc(t, out->bytes, out->bytes, stream,
                                stream != h->captured && stream != h->passing, NULL, &out->at);
    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT)
        return 0;
    OK(status);
    use_soak_block(out, stream);
    return 1;
}

static void alloc_live_block(struct thread *h) {
    uint64_t at = draw_below(h, STREAMS + 1);

    if (h->count < MOST &&
        alloc_for_thread(h, at < STREAMS ? streams[at] : h->passing, &h->blocks[h->count]))
        h->count++;
}

/* Another stream gets the handle.  While the handle means no stream, no thread frees a block of the stream, since the
 * free would query the handle: this thread frees its own blocks, and other threads free under exchange_lock. */
static void renew_passing(struct thread *h) {
    if (h->ends++ >= MOST_ENDS)
        return;
    for (size_t i = 0; i < h->count; i++)
        if (h->blocks[i].stream == h->passing)
            h->blocks[i].stream = NULL;
    pthread_mutex_lock(&exchange_lock);
    CU(driver->cuStreamDestroy(h->passing));
    CU(driver->cuStreamCreate(&h->passing, CU_STREAM_NON_BLOCKING));
    pthread_mutex_unlock(&exchange_lock);
}

/* Allocates and frees like another framework that shares the allocator. */
static void request_outside_pools(struct thread *h) {
    weir_allocator *all = weir_tensors_allocator(t);
    struct block b = {.bytes = some_bytes(h), .stream = h->passing, .owner = ++last_owner};
    weir_status status = weir_alloc(all, b.bytes, b.stream, &b.at);

    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT)
        return;
    OK(status);
    use_soak_block(&b, b.stream);
    OK(weir_free(all, b.at, b.stream));
}

static void use_on_another_stream(struct thread *h, const struct block *b) {
    CUstream stream = streams[draw_below(h, STREAMS)];

    CU(driver->cuEventRecord(h->event, b->stream));
    CU(driver->cuStreamWaitEvent(stream, h->event, 0));
    use_soak_block(b, stream);
    OK(weir_tensors_use(b->at, stream));
}

static struct block remove_soak_block(struct thread *h) {
    size_t at = draw_below(h, h->count);
    struct block picked = h->blocks[at];

    h->blocks[at] = h->blocks[--h->count];
    return picked;
}

/* Hands the block to another thread, which will free it. */
static void pass_on(struct thread *h, struct block b) {
    struct block *slot = &exchange[draw_below(h, EXCHANGE)], there;

    pthread_mutex_lock(&exchange_lock);
    there = *slot;
    *slot = b;
    OK(weir_tensors_free(there.at));
    pthread_mutex_unlock(&exchange_lock);
}

/* ---- pools -------------------------------------------------------------------------------------- */

static void in_own_pool(struct thread *h) {
    OK(weir_tensors_pool_open(t, h->own, NULL));
    OK(weir_tensors_begin(t, h->own, is_thread, h));
    for (uint64_t n = draw_below(h, 8); n > 0; n--)
        alloc_live_block(h);
    OK(weir_tensors_end(t, h->own, NULL));
    if (draw_below(h, 3) == 0)
        OK(weir_tensors_pool_lend(t, h->own, (int)draw_below(h, 2)));
    OK(weir_tensors_pool_close(t, h->own));
}

/* Restores a pool that no other thread has blocks of. */
static void back_to_a_state(struct thread *h) {
    weir_tensors_id id = {(uint64_t)h->number + 1, 3};
    struct block before[MOST_STATES], after[MOST_STATES];
    size_t kept = 0, more = 0;
    weir_tensors_state *state;

    OK(weir_tensors_pool_open(t, id, NULL));
    OK(weir_tensors_begin(t, id, is_thread, h));
    while (kept < MOST_STATES && draw_below(h, 6) &&
           alloc_for_thread(h, streams[draw_below(h, 2)], &before[kept]))
        kept++;
    for (size_t i = 0; i < kept; i++) /* leaves free memory between blocks */
        if (draw_below(h, 3) == 0) {
            OK(weir_tensors_free(before[i].at));
            before[i--] = before[--kept];
        }
    OK(weir_tensors_save(t, id, &state));
    while (more < MOST_STATES && draw_below(h, 6) &&
           alloc_for_thread(h, streams[draw_below(h, STREAMS)], &after[more]))
        more++;
    for (size_t i = 0; i < kept; i++)
        if (draw_below(h, 2))
            OK(weir_tensors_free(before[i].at));
    OK(weir_tensors_restore(t, state, NULL, NULL, NULL));
    for (size_t i = 0; i < kept; i++) {
        before[i].owner = ++last_owner;
        use_soak_block(&before[i], before[i].stream);
    }
    more = 0;
    while (more < MOST_STATES && draw_below(h, 6) &&
           alloc_for_thread(h, streams[draw_below(h, STREAMS)], &after[more]))
        more++;
    OK(weir_tensors_end(t, id, NULL));
    for (size_t i = 0; i < kept; i++)
        OK(weir_tensors_free(before[i].at));
    for (size_t i = 0; i < more; i++)
        OK(weir_tensors_free(after[i].at));
    weir_tensors_state_destroy(state);
    OK(weir_tensors_pool_close(t, id));
}

static void end_graph(struct thread *h) {
    if (!h->ready)
        return;
    CU(driver->cuGraphExecDestroy(h->ready));
    OK(weir_tensors_pool_close(t, h->graphs));
    h->ready = NULL;
}

static void capture_and_launch_pool(struct thread *h) {
    struct block inside[8];
    size_t count = 0;
    CUgraph captured;

    end_graph(h);
    h->graphs.first = ++last_owner;
    OK(weir_tensors_pool_open(t, h->graphs, NULL));
    OK(weir_tensors_begin(t, h->graphs, is_capture, h));
    CU(driver->cuStreamBeginCapture(h->captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    while (count < 8 && alloc_for_thread(h, h->captured, &inside[count])) {
        if (draw_below(h, 2))
            OK(weir_tensors_free(inside[count].at));
        else
            count++;
        if (draw_below(h, 6) == 0)
            break;
    }
    if (h->count > 0) /* a block from before the capture */
        OK(weir_tensors_free(remove_soak_block(h).at));
    while (count > 0)
        OK(weir_tensors_free(inside[--count].at));
    CU(driver->cuStreamEndCapture(h->captured, &captured));
    OK(weir_tensors_end(t, h->graphs, NULL));
    CU(driver->cuGraphInstantiateWithFlags(&h->ready, captured, 0));
    CU(driver->cuGraphDestroy(captured));
}

/* ---- all of it ---------------------------------------------------------------------------------- */

static void run_soak_step(struct thread *h) {
    switch (draw_below(h, 64)) {
    case 0:
        in_own_pool(h);
        return;
    case 1:
        back_to_a_state(h);
        return;
    case 2:
        capture_and_launch_pool(h);
        return;
    case 3:
        OK(weir_tensors_trim(t, draw_below(h, 2) ? none : h->own));
        return;
    case 4:
        (void)tensor_figures();
        return;
    case 5:
        renew_passing(h);
        return;
    case 6:
    case 7:
        request_outside_pools(h);
        return;
    case 8:
    case 9:
    case 10:
        if (h->ready)
            CU(driver->cuGraphLaunch(h->ready, h->captured));
        return;
    default:
        break;
    }
    if (h->count < MOST / 2 ? draw_below(h, 3) > 0 : draw_below(h, 2) > 0) {
        alloc_live_block(h);
    } else if (h->count > 0) {
        struct block b = remove_soak_block(h);

        if (draw_below(h, 3) == 0 && b.stream)
            use_on_another_stream(h, &b);
        if (draw_below(h, 4) == 0)
            pass_on(h, b);
        else
            OK(weir_tensors_free(b.at));
    }
}

static void *run_soak_thread(void *context) {
    struct thread *h = context;

    CU(driver->cuCtxPushCurrent(primary));
    h->self = pthread_self();
    pthread_mutex_lock(&exchange_lock); /* no other thread gets the handle that a thread renews */
    CU(driver->cuStreamCreate(&h->captured, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&h->passing, CU_STREAM_NON_BLOCKING));
    pthread_mutex_unlock(&exchange_lock);
    CU(driver->cuEventCreate(&h->event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < steps && !weir__model_fault(); i++)
        run_soak_step(h);
    while (h->count > 0)
        OK(weir_tensors_free(remove_soak_block(h).at));
    end_graph(h);
    return NULL;
}

CASE("soak", 60, NULL, NULL);

TEST_EACH(4, threads_never_share_memory) {
    static struct thread all[THREADS];
    pthread_t ids[THREADS];
    const char *wanted = getenv("TEST_SOAK_STEPS");
    weir_tensors_figures f;

    if (wanted)
        steps = atoi(wanted);
    if (_i == 3) /* its segments do not join */
        setenv("WEIR_ENGINE", "bfc", 1);
    begin_tensors_with("160MiB");
    for (int i = 0; i < STREAMS; i++)
        CU(driver->cuStreamCreate(&streams[i], i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    for (int i = 0; i < THREADS; i++) {
        all[i] = (struct thread){.number = i,
                                 .random = (uint64_t)(_i + 1) * 7919 + (uint64_t)i,
                                 .own = {(uint64_t)i + 1, 1},
                                 .graphs = {0, 2}};
        ck_assert_int_eq(pthread_create(&ids[i], NULL, run_soak_thread, &all[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    for (int i = 0; i < EXCHANGE; i++)
        OK(weir_tensors_free(exchange[i].at));
    CU(driver->cuCtxSynchronize());
    OK(weir_tensors_trim(t, none));
    f = tensor_figures();
    MUST_EQ(f.allocation[0].current, 0);
    MUST_EQ(f.active_bytes[0].current, 0);
    MUST_EQ(f.reserved_bytes[0].current, 0);
    MUST_EQ(f.segment[0].current, 0);
    MUST_EQ(grown, 0);
    end_tensors();
}

SUITE("soak", CK_FORK);
