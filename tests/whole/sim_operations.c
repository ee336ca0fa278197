/* SPDX-License-Identifier: MIT */
/* sim_operations.c: the operations that words select: requests, frees and uses of blocks, life of streams, time,
 * reserved memory, captures, and faults. */
#include "sim_world.h"

#include <string.h>

/* ---- Streams ---- */

static int sim_stream_is_captured(unsigned stream) {
    return w.capture.runs && w.capture.stream == stream;
}

/* Returns 1 if the stream lives and is not being captured, else 0. */
static int sim_stream_is_plain(unsigned stream) {
    return w.streams[stream].lives && !sim_stream_is_captured(stream);
}

/* Returns a plain stream, or STREAMS if there is none. */
static unsigned plain_from(unsigned from) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (sim_stream_is_plain((from + i) % STREAMS))
            return (from + i) % STREAMS;
    return STREAMS;
}

CUstream sim_handle(unsigned stream) {
    return w.streams[stream].handle;
}

/* Orders the next work of `stream' after all present work of `other'; both are plain.  CUDA itself orders a blocking
 * stream after the legacy default stream, which is never destroyed. */
static void order_behind_stream(unsigned stream, unsigned other) {
    if (stream == other || (w.streams[stream].blocks && w.streams[other].is_default))
        return;
    CU(w.driver->cuEventRecord(w.event, sim_handle(other)));
    CU(w.driver->cuStreamWaitEvent(sim_handle(stream), w.event, 0));
}

void sim_make_stream(unsigned stream, int blocks) {
    CU(w.driver->cuStreamCreate(&w.streams[stream].handle,
                                blocks ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    w.streams[stream].lives = 1;
    w.streams[stream].blocks = blocks;
    w.born++;
}

/* ---- Blocks ---- */

static uint64_t duration(uint64_t r) {
    return w.set.longest_ns ? sim_mix(r) % w.set.longest_ns : 0;
}

static void use_sim_block(struct block *b, unsigned stream, uint64_t r) {
    CU(weir__model_use(sim_handle(stream), (uintptr_t)b->address, b->bytes, b->owner, duration(r)));
    b->users |= 1u << stream;
}

static struct block *block_from(unsigned from) {
    for (unsigned i = 0; i < BLOCKS && w.block_count > 0; i++)
        if (w.blocks[(from + i) % BLOCKS].address)
            return &w.blocks[(from + i) % BLOCKS];
    return NULL;
}

static unsigned index_of_block(const struct block *b) {
    return (unsigned)(b - w.blocks);
}

static void check_overlap(const struct block *fresh) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        const struct block *b = &w.blocks[i];

        if (b != fresh && b->address && b->address < fresh->address + fresh->bytes &&
            fresh->address < b->address + b->bytes)
            sim_fail("block %u, %zu bytes at %p, overlaps block %u, %zu bytes at %p",
                     index_of_block(fresh), fresh->bytes, (void *)fresh->address, i, b->bytes,
                     (void *)b->address);
    }
    if ((uintptr_t)fresh->address % 256)
        sim_fail("a block at %p is not aligned", (void *)fresh->address);
}

static size_t draw_size(uint64_t random) {
    uint64_t r = w.set.few ? sim_mix(w.script->seed + random % w.set.few) : random;
    unsigned from = (unsigned[]){9, 9, 13, 16, 19, 9}[w.set.sizes];
    unsigned octaves = (unsigned[]){6, 11, 7, 8, 7, 17}[w.set.sizes];
    size_t low = (size_t)1 << (from + (r >> 8) % octaves);
    size_t bytes = low + (size_t)(sim_mix(r) % low);

    if ((r & 3) == 0) /* many sizes repeat */
        bytes = low;
    return (r & 255) == 1 ? 1 : bytes;
}

static void clear_block(struct block *b) {
    w.block_count--;
    memset(b, 0, sizeof *b);
}

/* The program's OOM callback: trims idle memory, and asks for one more attempt. */
int sim_give_idle_back(const weir_oom *oom, void *data) {
    weir_statistics s = {.size = sizeof s};

    if (data != &w || oom->allocator != w.allocator || oom->stream != sim_handle(w.asked_on))
        sim_fail("the callback is told of another request");
    if (sim_stream_is_captured(w.asked_on))
        sim_fail("the callback is asked about a captured stream");
    sim_expect(weir_stats(w.allocator, &s), WEIR_OK, "weir_stats in the callback");
    (void)weir_trim(w.allocator, 0, NULL);
    sim_add(SIM_ASKED, 1);
    return oom->attempt == 1;
}

/* Returns the number of growth steps in the background, or UINT64_MAX if weir_stats fails. */
static uint64_t steps_behind(void) {
    weir_statistics s = {.size = sizeof s};

    return weir_stats(w.allocator, &s) == WEIR_OK ? s.ahead_steps : UINT64_MAX;
}

/* Requests the largest size that the last failure reported.  The request must succeed, unless a fault or a step in the
 * background came between.  Returns 1 with the block and its size, or 0 if the failure reported no size or the request
 * failed. */
static int ask_for_largest(unsigned stream, size_t *bytes, void **address) {
    weir_failure failure = {.size = sizeof failure};
    weir_status status;
    uint64_t steps;
    int faulted;

    /* Above a lowered limit the callback's trim is final, and comes after the failure was recorded. */
    if (w.set.asks && w.limit != UINT64_MAX)
        return 0;
    /* Without caches the pool's driver call may break a capture: see weir_alloc. */
    if (weir_last_failure(&failure) != WEIR_OK || failure.asked != *bytes || failure.largest == 0 ||
        (w.capture.runs && w.set.kind == POOL && !w.set.cache))
        return 0;
    *bytes = (size_t)failure.largest;
    tell("alloc %zu on stream %u, as it said: ", *bytes, stream);
    steps = steps_behind();
    faulted = CALL(status, weir_alloc(w.allocator, *bytes, sim_handle(stream), address));
    tell("%s\n", weir_status_name(status));
    if (status != WEIR_OK && !faulted && steps_behind() == steps && steps != UINT64_MAX)
        sim_fail("%zu bytes were said to be had: %s (driver result %d)", *bytes,
                 weir_status_name(status), weir_last_driver_result());
    sim_add(SIM_LARGEST, status == WEIR_OK);
    return status == WEIR_OK;
}

void do_alloc(uint64_t r) {
    unsigned stream = (unsigned)(r % STREAMS), at = 0;
    int captured, faulted;
    size_t bytes = draw_size(sim_mix(r + 1));
    struct block *b;
    weir_status status;
    void *address = NULL;

    while (!w.streams[stream].lives)
        stream = (stream + 1) % STREAMS;
    captured = sim_stream_is_captured(stream);
    if (w.block_count >= w.set.most_blocks || (captured && w.capture.thread != w.thread))
        return;
    while (w.blocks[at].address)
        at++;
    b = &w.blocks[at];
    tell("alloc %zu on stream %u%s: ", bytes, stream, captured ? " (captured)" : "");
    w.asked_on = stream;
    faulted = CALL(status, weir_alloc(w.allocator, bytes, sim_handle(stream), &address));
    tell("%s, block %u at %p\n", weir_status_name(status), at, address);
    if (status != WEIR_OK) {
        if (captured && w.set.kind == DIRECT) {
            if (!faulted)
                sim_expect(status, WEIR_E_CAPTURE, "weir_alloc under capture");
        } else if (!faulted && status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT) {
            sim_fail("weir_alloc: %s (driver result %d)", weir_status_name(status),
                     weir_last_driver_result());
        }
        sim_add(SIM_FAILURES, 1);
        if (captured || faulted || !ask_for_largest(stream, &bytes, &address))
            return;
    }
    *b = (struct block){.address = address,
                        .bytes = bytes,
                        .owner = ++w.owners,
                        .home = stream,
                        .of_graph = captured,
                        .was_of_graph = captured};
    w.any_of_graph |= captured;
    w.block_count++;
    check_overlap(b);
    use_sim_block(b, stream, r);
    sim_check_oracle();
}

/* Allocates a block that any stream may use at once, whichever stream used the memory before. */
void do_alloc_any(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS), at = 0;
    size_t bytes = draw_size(sim_mix(r + 1));
    void *address = NULL;
    weir_status status;
    int faulted;

    if (stream == STREAMS || w.block_count >= w.set.most_blocks || w.set.asks)
        return;
    while (w.blocks[at].address)
        at++;
    tell("alloc %zu for any stream: ", bytes);
    faulted = CALL(status, weir_alloc_any(w.allocator, bytes, &address));
    tell("%s, block %u at %p\n", weir_status_name(status), at, address);
    if (status != WEIR_OK) {
        if (!faulted && status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT)
            sim_fail("weir_alloc_any: %s (driver result %d)", weir_status_name(status),
                     weir_last_driver_result());
        sim_add(SIM_FAILURES, 1);
        return;
    }
    w.blocks[at] = (struct block){
        .address = address, .bytes = bytes, .owner = ++w.owners, .home = stream, .is_any = 1};
    w.block_count++;
    check_overlap(&w.blocks[at]);
    use_sim_block(&w.blocks[at], stream, r);
    sim_check_oracle();
    sim_add(SIM_ANY, 1);
}

/* Orders `stream' after all undeclared uses of the block.  Returns 1 on success, 0 if a capture forbids it. */
static int order_behind_users(const struct block *b, unsigned stream) {
    unsigned users = (b->users | 1u << b->home) & ~b->noted & ~(1u << stream);

    for (unsigned i = 0; i < STREAMS; i++)
        if (users >> i & 1 && (sim_stream_is_captured(stream) || sim_stream_is_captured(i)))
            return 0;
    for (unsigned i = 0; i < STREAMS; i++)
        if (users >> i & 1)
            order_behind_stream(stream, i);
    return 1;
}

/* Returns 1 if a stream that weir_use has named is being captured, else 0. */
static int notes_capture(const struct block *b) {
    return w.capture.runs && b->noted >> w.capture.stream & 1;
}

void sim_free_on(struct block *b, unsigned stream) {
    int captured = sim_stream_is_captured(stream), faulted;
    weir_status status;

    if (b->in_graph || (captured && w.capture.thread != w.thread) || (b->of_graph && !captured) ||
        !order_behind_users(b, stream))
        return;
    if (captured && b->was_of_graph && !b->of_graph)
        return; /* an aborted capture would not free another graph's block */
    tell("free block %u on stream %u%s: ", index_of_block(b), stream,
         captured ? " (captured)" : "");
    faulted = CALL(status, weir_free(w.allocator, b->address, sim_handle(stream)));
    tell("%s\n", weir_status_name(status));
    if (status == WEIR_E_CAPTURE && (captured || notes_capture(b)) && !b->of_graph &&
        (b->noted || (w.set.kind == POOL && !w.set.cache)))
        return; /* the refused free has changed nothing */
    if (status != WEIR_OK && status != WEIR_E_HOST_MEMORY) {
        if (!faulted)
            sim_fail("weir_free of block %u: %s (driver result %d)", index_of_block(b),
                     weir_status_name(status), weir_last_driver_result());
        return;
    }
    w.gone = b->address;
    clear_block(b);
    sim_check_oracle();
}

void do_free(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream;

    if (!b)
        return;
    stream = (r >> 16 & 3) ? b->home : (unsigned)(r >> 20) % STREAMS;
    if (!w.streams[stream].lives)
        stream = b->home;
    sim_free_on(b, stream);
}

void do_free_many(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && sim_mix(r + i) & 1)
            sim_free_on(&w.blocks[i], w.blocks[i].home);
}

/* Frees a block without a list of the streams that used it. */
void do_free_any(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    weir_status status;
    int faulted;

    if (!b || b->of_graph || b->was_of_graph || b->in_graph || w.capture.runs)
        return;
    tell("free block %u, used on any stream: ", index_of_block(b));
    faulted = CALL(status, weir_free_any(w.allocator, b->address));
    tell("%s\n", weir_status_name(status));
    if (status != WEIR_OK && status != WEIR_E_HOST_MEMORY) {
        if (!faulted && status != WEIR_E_NO_MEMORY)
            sim_fail("weir_free_any of block %u: %s (driver result %d)", index_of_block(b),
                     weir_status_name(status), weir_last_driver_result());
        return;
    }
    w.gone = b->address;
    clear_block(b);
    sim_check_oracle();
}

/* Compares the range that weir reports for an address with the block. */
void do_range(uint64_t r) {
    const struct block *b = block_from((unsigned)(r % BLOCKS));
    size_t bytes = 0, offset = b ? (size_t)((r >> 16) % b->bytes) : 0;
    void *base = NULL;
    weir_status status;

    if (!b || b->of_graph || b->was_of_graph)
        return;
    status = weir_block_range(w.allocator, b->address + offset, &base, &bytes);
    tell("block %u, %zu bytes behind its beginning: %s\n", index_of_block(b), offset,
         weir_status_name(status));
    if (w.set.kind == POOL && (!w.set.cache || w.set.old)) {
        sim_expect(status, WEIR_E_NOT_SUPPORTED, "weir_block_range");
        return;
    }
    sim_expect(status, WEIR_OK, "weir_block_range");
    if (base != b->address || bytes != b->bytes)
        sim_fail("block %u is said to be %zu bytes at %p, not %zu at %p", index_of_block(b), bytes,
                 base, b->bytes, (void *)b->address);
}

void do_work(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream;

    if (!b)
        return;
    stream = b->home;
    if (sim_stream_is_captured(stream) && w.capture.thread != w.thread)
        return;
    if (sim_stream_is_captured(stream) && !b->of_graph)
        b->in_graph = 1;
    tell("use block %u on stream %u\n", index_of_block(b), stream);
    use_sim_block(b, stream, r);
    sim_check_oracle();
}

/* Uses a block on another stream, ordered after its home. */
static void use_across_streams(uint64_t r, int declares) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream = plain_from((unsigned)(r >> 16) % STREAMS);
    weir_status status;

    if (!b || stream == STREAMS || b->of_graph || !sim_stream_is_plain(b->home) ||
        stream == b->home)
        return;
    if (!b->is_any)
        order_behind_stream(stream, b->home);
    tell("use block %u on stream %u%s\n", index_of_block(b), stream, declares ? ", declared" : "");
    if (declares && !(b->noted >> stream & 1)) {
        if (CALL(status, weir_use(w.allocator, b->address, sim_handle(stream))) &&
            status != WEIR_OK)
            declares = 0;
        else
            sim_expect(status, WEIR_OK, "weir_use");
        if (declares)
            b->noted |= 1u << stream;
    }
    use_sim_block(b, stream, r);
    sim_check_oracle();
}

void do_cross(uint64_t r) {
    use_across_streams(r, 0);
}

void do_declare(uint64_t r) {
    use_across_streams(r, 1);
}

/* Frees a pointer that is no live block, which weir must refuse. */
void do_wrong_free(uint64_t r) {
    const struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream = plain_from((unsigned)(r >> 16) % STREAMS);
    char *address = NULL;
    weir_status status;

    if (stream == STREAMS)
        return;
    if (r >> 20 & 1) {
        if (w.set.faults && (w.set.kind == POOL || w.any_of_graph))
            return; /* the driver may still have a block there whose free failed */
        address = w.gone;
        for (unsigned i = 0; i < BLOCKS; i++)
            if (w.blocks[i].address == address)
                return; /* the address is live again */
        for (unsigned i = 0; i < HOGS; i++)
            if (w.hogs[i] == (uintptr_t)address)
                return; /* the driver would free its own block */
    } else if (b && b->bytes > 1 && !b->of_graph) {
        address = b->address + 1 + (r >> 24) % (b->bytes - 1);
    }
    if (!address)
        return;
    tell("free %p, which is no block\n", (void *)address);
    status = weir_free(w.allocator, address, sim_handle(stream));
    sim_expect(status, WEIR_E_NOT_OWNED, "weir_free of no block");
}

/* ---- Streams that come and go ---- */

void do_sync_device(uint64_t r) {
    (void)r;
    if (w.capture.runs)
        return;
    tell("wait for the device\n");
    CU(w.driver->cuCtxSynchronize());
    w.born = 0;
}

void do_create(uint64_t r) {
    unsigned stream = 0;

    while (stream < w.set.streams && w.streams[stream].lives)
        stream++;
    if (stream == w.set.streams)
        return;
    if (w.born >= MOST_BORN) { /* the oracle distinguishes no more streams */
        do_sync_device(0);
        if (w.born)
            return;
    }
    sim_make_stream(stream, w.set.legacy && (r & 1));
    tell("create stream %u\n", stream);
}

static void unbind(unsigned stream) {
    sim_expect(weir_unbind(w.allocator, sim_handle(stream)), WEIR_OK, "weir_unbind");
    w.streams[stream].bound--;
}

void do_destroy(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS), heir;

    if (stream == STREAMS || w.streams[stream].is_default || !w.set.checks)
        return;
    heir = plain_from(stream + 1);
    if (heir == stream)
        return;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].noted >> stream & 1)
            return; /* a noted stream lives until the free */
    while (w.streams[stream].bound)
        unbind(stream);
    order_behind_stream(heir, stream);
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *b = &w.blocks[i];

        if (b->address && b->home == stream)
            b->home = heir;
        if (b->users >> stream & 1)
            b->users = (b->users & ~(1u << stream)) | 1u << heir;
    }
    tell("destroy stream %u, its heir is %u\n", stream, heir);
    CU(w.driver->cuStreamDestroy(sim_handle(stream)));
    w.streams[stream] = (struct stream){0};
}

void do_bind(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    weir_status status;

    if (stream == STREAMS || w.streams[stream].bound >= 2)
        return;
    tell("bind stream %u\n", stream);
    if (!CALL(status, weir_bind(w.allocator, sim_handle(stream))))
        sim_expect(status, WEIR_OK, "weir_bind");
    w.streams[stream].bound += status == WEIR_OK;
}

void do_unbind(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);

    if (stream == STREAMS || w.streams[stream].bound == 0)
        return;
    tell("unbind stream %u\n", stream);
    unbind(stream);
}

/* ---- Time ---- */

/* Returns 1 if the program may query or wait, which a capture may forbid; else 0. */
static int may_call_driver(void) {
    return !w.capture.runs || w.capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

static void query_stream_or_wait(uint64_t r, int waits) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    CUresult result;

    if (stream == STREAMS || !may_call_driver() || (w.capture.runs && w.streams[stream].is_default))
        return;
    tell("%s stream %u\n", waits ? "wait for" : "query", stream);
    result = waits ? w.driver->cuStreamSynchronize(sim_handle(stream))
                   : w.driver->cuStreamQuery(sim_handle(stream));
    if (result != CUDA_SUCCESS && (waits || result != CUDA_ERROR_NOT_READY))
        sim_fail("asking stream %u: %u", stream, result);
}

void do_sync_stream(uint64_t r) {
    query_stream_or_wait(r, 1);
}

void do_query(uint64_t r) {
    query_stream_or_wait(r, 0);
}

void do_wait(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    unsigned other = plain_from((unsigned)(r >> 8) % STREAMS);

    if (stream == STREAMS)
        return;
    tell("stream %u waits for stream %u\n", stream, other);
    order_behind_stream(stream, other);
}

void do_kernel(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);

    if (stream != STREAMS)
        CU(weir__model_kernel(sim_handle(stream), duration(r) * 4));
}

/* Advances by parts of a half-life, too, since a request after a long pause decays more than one without. */
void do_advance(uint64_t r) {
    weir__model_advance(duration(r) * 4);
    if (w.set.half_life_ms)
        weir__model_advance(w.set.half_life_ms * 1000000 / 8 * (r % 12));
}

/* ---- Reserve ---- */

/* Calls weir_decay, which is not supported where a profile has raised the threshold to the whole device. */
static void decay_sim(void) {
    size_t went = 0;
    weir_status status;

    tell("decay: ");
    if (!CALL(status, weir_decay(w.allocator, &went)) &&
        !(w.set.learns && status == WEIR_E_NOT_SUPPORTED))
        sim_expect(status, WEIR_OK, "weir_decay");
    tell("%s, %zu bytes went\n", weir_status_name(status), went);
}

void do_trim(uint64_t r) {
    size_t keep = r & 1 ? 0 : (size_t)(r >> 8) % w.set.capacity;
    int settles =
        w.set.threshold >= 2 && (w.set.kind == ARENA_REGIONS || w.set.kind == ARENA_MAPPED);
    weir_status status;

    if ((w.set.half_life_ms || settles) && r & 6) {
        decay_sim();
        return;
    }
    tell("trim to %zu: ", keep);
    if (!CALL(status, weir_trim(w.allocator, keep, NULL)) && status != WEIR_E_NO_MEMORY)
        sim_expect(status, WEIR_OK, "weir_trim");
    tell("%s\n", weir_status_name(status));
}

void do_preallocate(uint64_t r) {
    size_t bytes = (size_t)(r >> 8) % (w.set.capacity / 2);
    weir_status status;

    tell("preallocate %zu: ", bytes);
    if (!CALL(status, weir_preallocate(w.allocator, bytes, NULL)) && status != WEIR_E_NO_MEMORY &&
        status != WEIR_E_LIMIT && status != (w.set.kind == DIRECT ? WEIR_E_NOT_SUPPORTED : WEIR_OK))
        sim_fail("weir_preallocate: %s", weir_status_name(status));
    tell("%s\n", weir_status_name(status));
}

/* Lowers the limit, raises it again, or removes it. */
void do_limit(uint64_t r) {
    uint64_t bytes = w.set.capacity / 4 * (1 + r % 5);
    weir_amount all = {0, WEIR_AMOUNT_MAX};
    weir_status status = weir_set_limit(w.allocator, r % 5 == 4 ? all : sim_bytes_amount(bytes));

    tell("limit %llu: %s\n", (unsigned long long)bytes, weir_status_name(status));
    sim_expect(status, w.set.kind == ARENA_FIXED ? WEIR_E_NOT_SUPPORTED : WEIR_OK,
               "weir_set_limit");
    if (status != WEIR_OK)
        return;
    w.limit = r % 5 == 4 ? UINT64_MAX : bytes;
    w.most = UINT64_MAX;
    (void)sim_look();
    sim_add(SIM_LIMITS, 1);
}

/* Reports low memory: `bytes' are wanted, or all if it is 0. */
static void say_low_memory(size_t bytes) {
    int fixed = w.set.kind == DIRECT || w.set.kind == ARENA_FIXED;
    weir_status status = weir_low_memory(w.allocator, bytes);

    tell("memory is low, %zu bytes are wanted: %s\n", bytes, weir_status_name(status));
    sim_expect(status, fixed ? WEIR_E_NOT_SUPPORTED : WEIR_OK, "weir_low_memory");
}

/* Allocates device memory for another program, or frees it. */
static void hog(uint64_t r, int takes) {
    CUdeviceptr *taken = &w.hogs[r % HOGS];
    size_t bytes = (size_t)(w.set.capacity / 2 >> (r >> 8) % 4);

    if (takes == (*taken != 0) || w.capture.runs)
        return;
    if (takes && (r >> 16 & 1))
        say_low_memory(r >> 17 & 1 ? bytes : 0);
    tell("somebody %s %zu bytes\n", takes ? "takes" : "gives back", bytes);
    if (takes)
        (void)w.driver->cuMemAlloc(taken, bytes); /* fails if the device has less */
    else
        CU(w.driver->cuMemFree(*taken));
    if (!takes)
        *taken = 0;
}

void do_hog(uint64_t r) {
    hog(r, 1);
}

void do_return(uint64_t r) {
    hog(r, 0);
}

/* ---- Captures ---- */

void do_begin(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    int quiet = w.set.kind == POOL && !w.set.cache; /* its driver calls may break captures */

    if (stream == STREAMS || w.capture.runs || !w.set.checks || w.set.old ||
        w.streams[stream].bound || w.streams[stream].is_default || w.streams[stream].blocks)
        return;
    w.capture = (struct capture){.runs = 1,
                                 .stream = stream,
                                 .thread = w.thread,
                                 .mode = quiet ? CU_STREAM_CAPTURE_MODE_RELAXED
                                               : (CUstreamCaptureMode)((r >> 8) % 3)};
    tell("capture stream %u, mode %d\n", stream, (int)w.capture.mode);
    CU(w.driver->cuStreamBeginCapture(sim_handle(stream), w.capture.mode));
}

/* Frees a random part of the capture's blocks. */
static void free_captured_blocks(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].of_graph && sim_mix(r + i) % 4)
            sim_free_on(&w.blocks[i], w.capture.stream);
}

/* Returns how often the graph may be launched: once if it leaves a block allocated. */
static unsigned launches_left(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].of_graph)
            return 1;
    return 1 + (unsigned)(r >> 4) % LAUNCHES;
}

static void launch_sim_graph(CUgraph graph, uint64_t r) {
    unsigned stream = plain_from((unsigned)(r >> 12) % STREAMS), times = launches_left(r);
    CUgraphExec exec;
    CUresult result = CUDA_SUCCESS;

    CU(w.driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].in_graph) {
            if (!order_behind_users(&w.blocks[i], stream))
                sim_fail("the capture is over");
            w.blocks[i].in_graph = 0;
            w.blocks[i].users |= 1u << stream;
        }
    tell("launch the graph on stream %u, %u times\n", stream, times);
    while (times-- > 0) {
        result = w.driver->cuGraphLaunch(exec, sim_handle(stream));
        if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* a failed launch leaves no block */
            tell("    no memory for it\n");
            break;
        }
        CU(result);
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *b = &w.blocks[i];

        if (!b->address || !b->of_graph)
            continue;
        if (result != CUDA_SUCCESS) {
            clear_block(b);
            w.lost++;
            continue;
        }
        b->of_graph = 0;
        b->home = stream;
        b->users = 1u << stream;
    }
    CU(w.driver->cuGraphExecDestroy(exec));
}

void do_end(uint64_t r) {
    CUgraph graph = NULL;

    if (!w.capture.runs || w.capture.thread != w.thread)
        return;
    free_captured_blocks(r & 1 ? r : 0);
    for (unsigned i = 0; i < BLOCKS; i++) /* a launch may lack memory for blocks that it leaves */
        if (w.blocks[i].address && w.blocks[i].of_graph)
            sim_free_on(&w.blocks[i], w.capture.stream);
    tell("end the capture\n");
    CU(w.driver->cuStreamEndCapture(sim_handle(w.capture.stream), &graph));
    w.capture.runs = 0;
    launch_sim_graph(graph, r);
    CU(w.driver->cuGraphDestroy(graph));
    sim_add(SIM_CAPTURES, 1);
    sim_check_oracle();
}

void do_abort(uint64_t r) {
    CUgraph graph = NULL;
    CUresult result;

    (void)r;
    if (!w.capture.runs || w.capture.thread != w.thread)
        return;
    free_captured_blocks(3);
    tell("abort the capture\n");
    (void)w.driver->cuStreamQuery(sim_handle(w.capture.stream));
    result = w.driver->cuStreamEndCapture(sim_handle(w.capture.stream), &graph);
    if (result != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        sim_fail("the end of an aborted capture: %u", result);
    w.capture.runs = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        w.blocks[i].in_graph = 0;
        if (w.blocks[i].address && w.blocks[i].of_graph) { /* the block never existed */
            clear_block(&w.blocks[i]);
            w.lost++;
        }
    }
    sim_add(SIM_CAPTURES, 1);
}

/* ---- Faults ---- */

void do_fault(uint64_t r) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemFreeAsync,
                                                     WEIR_ENTRY_cuMemAlloc,
                                                     WEIR_ENTRY_cuMemFree,
                                                     WEIR_ENTRY_cuEventCreate,
                                                     WEIR_ENTRY_cuEventRecord,
                                                     WEIR_ENTRY_cuEventQuery,
                                                     WEIR_ENTRY_cuStreamIsCapturing,
                                                     WEIR_ENTRY_cuStreamGetId,
                                                     WEIR_ENTRY_cuMemPoolGetAttribute,
                                                     WEIR_ENTRY_cuMemPoolSetAttribute,
                                                     WEIR_ENTRY_cuStreamWaitEvent,
                                                     WEIR_ENTRY_cuCtxPushCurrent,
                                                     WEIR_ENTRY_cuMemGetInfo,
                                                     WEIR_ENTRY_cuStreamSynchronize,
                                                     WEIR_ENTRY_cuMemPoolTrimTo,
                                                     WEIR_ENTRY_cuStreamCreate,
                                                     WEIR_ENTRY_cuStreamQuery,
                                                     WEIR_ENTRY_cuMemAllocHost,
                                                     WEIR_ENTRY_cuMemFreeHost};
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                       CUDA_ERROR_NOT_SUPPORTED};

    if (!w.set.faults)
        return;
    w.fault_entry = entries[r % (sizeof entries / sizeof entries[0])];
    w.fault_result = results[(r >> 8) % (sizeof results / sizeof results[0])];
    w.fault_k = 1 + (r >> 12) % 3;
    /* These calls fail only once.  If every free failed, the driver would keep memory; if every wait failed, weir would
     * keep blocks whose free must wait.  Neither is a fault of the allocator. */
    w.fault_for_good = r >> 16 & 1 && w.fault_entry != WEIR_ENTRY_cuMemFree &&
                       w.fault_entry != WEIR_ENTRY_cuMemFreeHost &&
                       w.fault_entry != WEIR_ENTRY_cuStreamSynchronize;
    tell("call %llu of %s from now fails with %u%s\n", (unsigned long long)w.fault_k,
         weir__driver_entry_name(w.fault_entry), w.fault_result,
         w.fault_for_good ? ", and all after it" : "");
    sim_add(SIM_FAULTS, 1);
}
