/* SPDX-License-Identifier: MIT */
/* stress.c: an allocator under many threads at once, on the device model or on a GPU, for as long as it is told.
 *
 *     stress [--device model|cuda[:N]] [--threads N] [--seconds N] [--seed N] [--OPTION VALUE]...
 *
 * OPTION is any setting by its long name; WEIR_ variables count below them.  Unless an engine is named, the seconds are
 * divided among several.  Threads allocate, free each other's blocks, note uses, bind, unbind, destroy and create
 * streams, free under captures, trim, preallocate, read figures, and run out of memory.  They keep to the contract.
 *
 * The program checks that no two live blocks overlap, that each block has the pattern that was written on its stream,
 * that each status is allowed, and that at the end the figures agree and the device has its memory back.  Writes TAP,
 * with the seed in it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/random.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { STREAMS = 16, EXCHANGE = 64, MOST_BLOCKS = 400, MOST_THREADS = 64 };
enum { OWN = STREAMS }; /* the number of a thread's own default stream */
#define PER_THREAD ((CUstream)WEIR_STREAM_PER_THREAD_VALUE)

static const struct weir_driver *driver;
static CUcontext primary;
static weir_allocator *allocator;
static int on_cuda, threads = 4;
static uint64_t seed = 1;
static const char *what; /* the name of the present run */
static int point;
static atomic_int stop;

static _Noreturn void fail_at_line(const char *text, int line, long value) {
    printf("not ok %d - %s: line %d: %s (%ld), seed %llu\n", point, what, line, text, value,
           (unsigned long long)seed);
    fflush(stdout);
    _Exit(1);
}

#define MUST(condition) ((condition) ? (void)0 : fail_at_line(#condition, __LINE__, 0))
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            fail_at_line(#call, __LINE__, (long)cu_is);                                            \
    } while (0)
#define OK(call)                                                                                   \
    do {                                                                                           \
        weir_status ok_is = (call);                                                                \
        if (ok_is != WEIR_OK)                                                                      \
            fail_at_line(#call, __LINE__, (long)ok_is);                                            \
    } while (0)

#include "tests/fixtures/streams.h"

/* ---- live blocks ------------------------------------------------------------------------------- */

/* The map has a bit for every 256 bytes, the alignment of blocks.  Its pieces cover 32 MiB each and are found by their
 * address.  Several pieces share a lock. */
enum { UNIT = 256, PIECE_SHIFT = 25, SHARDS = 64 };
#define WORDS ((size_t)1 << (PIECE_SHIFT - 8 - 6))

struct piece {
    struct piece *next;
    uint64_t number;
    uint64_t bits[WORDS];
};

static struct {
    _Alignas(64) pthread_mutex_t lock;
    struct piece *pieces;
} shards[SHARDS];

static struct piece *piece_of_map(uint64_t number) {
    struct piece *p = shards[number % SHARDS].pieces;

    while (p && p->number != number)
        p = p->next;
    if (!p) {
        p = calloc(1, sizeof *p);
        MUST(p != NULL);
        p->number = number;
        p->next = shards[number % SHARDS].pieces;
        shards[number % SHARDS].pieces = p;
    }
    return p;
}

/* Marks a block as live (1) or free (0), and checks that it was not so before. */
static void mark(uint64_t address, size_t bytes, int live) {
    uint64_t unit = address / UNIT, end = (address + bytes + UNIT - 1) / UNIT;

    MUST(address % UNIT == 0);
    while (unit < end) {
        uint64_t number = unit >> (PIECE_SHIFT - 8), last = (number + 1) << (PIECE_SHIFT - 8);
        struct piece *p;

        pthread_mutex_lock(&shards[number % SHARDS].lock);
        p = piece_of_map(number);
        for (last = last < end ? last : end; unit < last; unit++) {
            uint64_t *word = &p->bits[unit / 64 % WORDS], bit = (uint64_t)1 << unit % 64;

            MUST(live ? !(*word & bit) : (*word & bit) != 0); /* no two live blocks overlap */
            *word ^= bit;
        }
        pthread_mutex_unlock(&shards[number % SHARDS].lock);
    }
}

/* ---- streams ----------------------------------------------------------------------------------- */

/* A thread that uses a stream holds its lock as a reader.  A thread that ends or captures it holds the lock as a
 * writer. */
static struct stream {
    pthread_rwlock_t lock;
    CUstream handle;
    uint32_t generation;
    atomic_int noted;  /* number of live blocks that note the stream */
    atomic_int bound;  /* number of bindings */
    atomic_int blocks; /* number of live blocks that may be in use on the stream */
} streams[STREAMS];

struct block {
    CUdeviceptr address;
    size_t bytes;
    int home; /* the stream that filled it; OWN is the thread's, which it has waited for */
    uint32_t generation; /* the generation of that stream */
    int noted;           /* a stream, or -1 */
    int filled;          /* the block has the pattern */
    unsigned char pattern;
};

struct worker {
    pthread_t thread;
    int number;
    uint64_t random;
    struct block held[MOST_BLOCKS];
    int count;
    uint64_t allocs, refused;
    unsigned char *copy;
};

static _Atomic(struct block *) exchange[EXCHANGE];

static int chance(struct worker *w, unsigned percent) {
    return next_random(&w->random) % 100 < percent;
}

static CUstream handle_of(int stream) {
    return stream == OWN ? PER_THREAD : streams[stream].handle;
}

static int hold(int stream) {
    return stream == OWN || pthread_rwlock_tryrdlock(&streams[stream].lock) == 0;
}

static void unlock_stream(int stream) {
    if (stream != OWN)
        pthread_rwlock_unlock(&streams[stream].lock);
}

static int draw_stream_or_own(struct worker *w) {
    return (int)(next_random(&w->random) % (STREAMS + 1));
}

/* ---- blocks ------------------------------------------------------------------------------------ */

#define EDGE (32 * KIB) /* bytes that are filled at each end of a large block */

static void fill_edges(const struct block *b, CUstream stream) {
    if (b->bytes <= 2 * EDGE) {
        CU(driver->cuMemsetD8Async(b->address, b->pattern, b->bytes, stream));
        return;
    }
    CU(driver->cuMemsetD8Async(b->address, b->pattern, EDGE, stream));
    CU(driver->cuMemsetD8Async(b->address + b->bytes - EDGE, b->pattern, EDGE, stream));
}

/* Waits for the stream, and checks the pattern. */
static void verify_edges(struct worker *w, const struct block *b, CUstream stream) {
    size_t first = b->bytes <= 2 * EDGE ? b->bytes : EDGE, rest = b->bytes <= 2 * EDGE ? 0 : EDGE;

    CU(driver->cuMemcpyDtoHAsync(w->copy, b->address, first, stream));
    if (rest)
        CU(driver->cuMemcpyDtoHAsync(w->copy + first, b->address + b->bytes - rest, rest, stream));
    CU(driver->cuStreamSynchronize(stream));
    for (size_t i = 0; i < first + rest; i++)
        MUST(w->copy[i] == b->pattern);
}

static size_t any_size(struct worker *w) {
    unsigned bits = (unsigned)(next_random(&w->random) % 100);

    bits = bits < 98 ? bits % 22 : 25; /* up to 4 MiB, seldom 64 */
    return (size_t)(next_random(&w->random) % ((uint64_t)2 << bits)) + 1;
}

static void use_on_other_stream(struct worker *w, struct block *b, int stream) {
    int other = (int)(next_random(&w->random) % STREAMS);

    if (other == stream || !hold(other))
        return;
    atomic_fetch_add(&streams[other].noted, 1);
    OK(weir_use(allocator, (void *)(uintptr_t)b->address, streams[other].handle));
    order_streams(streams[other].handle, handle_of(stream));
    fill_edges(b, streams[other].handle);
    b->noted = other;
    unlock_stream(other);
}

static void alloc_held(struct worker *w) {
    struct block *b = &w->held[w->count];
    int stream = draw_stream_or_own(w);
    weir_status status;
    void *got = NULL;

    if (w->count == MOST_BLOCKS || !hold(stream))
        return;
    b->bytes = any_size(w);
    status = weir_alloc(allocator, b->bytes, handle_of(stream), &got);
    if (status != WEIR_OK) {
        MUST(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT);
        w->refused++;
        unlock_stream(stream);
        return;
    }
    b->address = (uintptr_t)got;
    mark(b->address, b->bytes, 1);
    b->home = stream;
    b->generation = stream == OWN ? 0 : streams[stream].generation;
    b->noted = -1;
    b->pattern = (unsigned char)next_random(&w->random);
    b->filled = 1;
    fill_edges(b, handle_of(stream));
    if (chance(w, 10))
        use_on_other_stream(w, b, stream);
    if (stream == OWN)
        CU(driver->cuStreamSynchronize(PER_THREAD));
    else
        atomic_fetch_add(&streams[stream].blocks, 1);
    w->allocs++;
    w->count++;
    unlock_stream(stream);
}

/* Frees a block.  The thread holds the locks of the stream and of the block's home.  Returns 1 on success, 0 if the
 * stream is captured and the free must wait. */
static int free_held_on(struct worker *w, const struct block *b, int stream, int captured) {
    int home = b->home;
    int same = home != OWN && b->generation == streams[home].generation;
    weir_status status;

    if (same && home != stream)
        order_streams(handle_of(stream), streams[home].handle);
    if (b->filled && b->noted < 0 && !captured && chance(w, 25))
        verify_edges(w, b, handle_of(stream));
    mark(b->address, b->bytes, 0);
    status = weir_free(allocator, (void *)(uintptr_t)b->address, handle_of(stream));
    if (captured && status == WEIR_E_CAPTURE) { /* nothing changed */
        mark(b->address, b->bytes, 1);
        return 0;
    }
    if (status != WEIR_OK)
        fail_at_line("weir_free", __LINE__, (long)status);
    if (same)
        atomic_fetch_sub(&streams[home].blocks, 1);
    if (b->noted >= 0)
        atomic_fetch_sub(&streams[b->noted].noted, 1);
    return 1;
}

/* Frees a block on its home or on any stream.  Returns 1 on success, 0 if another thread holds a stream. */
static int free_held(struct worker *w, const struct block *b) {
    int stream = chance(w, 75) && b->home != OWN ? b->home : draw_stream_or_own(w), done = 0;

    if (b->home != OWN && !hold(b->home))
        return 0;
    if (stream == b->home || hold(stream)) {
        done = free_held_on(w, b, stream, 0);
        if (stream != b->home)
            unlock_stream(stream);
    }
    if (b->home != OWN)
        unlock_stream(b->home);
    return done;
}

static void free_one_held(struct worker *w) {
    int i;

    if (w->count == 0)
        return;
    i = (int)(next_random(&w->random) % (uint64_t)w->count);
    if (free_held(w, &w->held[i]))
        w->held[i] = w->held[--w->count];
}

/* Puts a block into a place of the exchange, and takes the block that lay there. */
static void swap_one(struct worker *w) {
    struct block *mine, *theirs;

    if (w->count == 0)
        return;
    mine = malloc(sizeof *mine);
    MUST(mine != NULL);
    *mine = w->held[--w->count];
    theirs = atomic_exchange(&exchange[next_random(&w->random) % EXCHANGE], mine);
    if (theirs) {
        w->held[w->count++] = *theirs;
        free(theirs);
    }
}

/* Allocates and frees many small or large blocks of one size on a stream that mostly this thread uses.  Some blocks go to
 * other threads, which free them meanwhile. */
static void hurry(struct worker *w) {
    static const size_t sizes[] = {512, 2048, 30000, 700 * KIB};
    int stream = w->number % STREAMS;
    struct stream *s = &streams[stream];
    size_t bytes = sizes[next_random(&w->random) % 4];

    if (!hold(stream))
        return;
    for (int i = 0; i < 300 && w->count < MOST_BLOCKS; i++) {
        struct block *b = &w->held[w->count];
        void *got = NULL;

        if (weir_alloc(allocator, bytes, s->handle, &got) != WEIR_OK) {
            w->refused++;
            break;
        }
        *b = (struct block){(uintptr_t)got, bytes, stream, s->generation, -1, 0, 0};
        mark(b->address, bytes, 1);
        atomic_fetch_add(&s->blocks, 1);
        w->allocs++;
        w->count++;
        if (i % 4 == 0)
            swap_one(w);
        else
            (void)free_held_on(w, &w->held[--w->count], stream, 0);
    }
    unlock_stream(stream);
}

/* Takes all blocks from the exchange, and frees them while other threads work. */
static void clear_up(struct worker *w) {
    for (int i = 0; i < EXCHANGE; i++) {
        struct block *b = atomic_exchange(&exchange[i], NULL);

        if (b && !free_held(w, b)) {
            b = atomic_exchange(&exchange[i], b);
            while (b && !free_held(w, b))
                ;
        }
        free(b);
    }
}

/* ---- everything else --------------------------------------------------------------------------- */

static void replace_stress_stream(struct worker *w) {
    struct stream *s = &streams[next_random(&w->random) % STREAMS];

    if (pthread_rwlock_trywrlock(&s->lock) != 0)
        return;
    if (atomic_load(&s->bound) == 0 && atomic_load(&s->noted) == 0) {
        /* Blocks that the stream filled live on.  Their next stream cannot wait for an ended stream, so the thread
         * waits here. */
        if (atomic_exchange(&s->blocks, 0) > 0)
            CU(driver->cuStreamSynchronize(s->handle));
        CU(driver->cuStreamDestroy(s->handle));
        CU(driver->cuStreamCreate(&s->handle, CU_STREAM_NON_BLOCKING));
        s->generation++;
    }
    pthread_rwlock_unlock(&s->lock);
}

static void bind_or_unbind(struct worker *w) {
    int stream = (int)(next_random(&w->random) % STREAMS);
    struct stream *s = &streams[stream];

    if (pthread_rwlock_trywrlock(&s->lock) != 0)
        return;
    if (atomic_load(&s->bound) < 2 && chance(w, 50)) {
        OK(weir_bind(allocator, s->handle));
        atomic_fetch_add(&s->bound, 1);
    } else if (atomic_load(&s->bound) > 0) {
        OK(weir_unbind(allocator, s->handle));
        atomic_fetch_sub(&s->bound, 1);
    }
    pthread_rwlock_unlock(&s->lock);
}

/* Captures a stream, frees some of its blocks meanwhile, and drops the graph. */
static void capture_and_launch(struct worker *w) {
    int stream = (int)(next_random(&w->random) % STREAMS);
    struct stream *s = &streams[stream];
    CUgraph graph = NULL;

    if (!(driver->capabilities & WEIR_CAP_GRAPH) || pthread_rwlock_trywrlock(&s->lock) != 0)
        return;
    if (atomic_load(&s->bound) == 0 && atomic_load(&s->noted) == 0) {
        CU(driver->cuStreamBeginCapture(s->handle, CU_STREAM_CAPTURE_MODE_RELAXED));
        for (int i = w->count - 1, freed = 0; i >= 0 && freed < 3; i--) {
            struct block *b = &w->held[i];

            if (b->home != stream || b->generation != s->generation || b->noted >= 0)
                continue;
            freed++;
            if (free_held_on(w, b, stream, 1))
                *b = w->held[--w->count];
        }
        CU(driver->cuStreamEndCapture(s->handle, &graph));
        if (graph)
            CU(driver->cuGraphDestroy(graph));
    }
    pthread_rwlock_unlock(&s->lock);
}

static weir_statistics checked_statistics(void) {
    weir_statistics s = {.size = sizeof s};

    OK(weir_stats(allocator, &s));
    MUST(s.attempts == s.allocs + s.failed_requests);
    MUST(s.allocs == s.hits + s.growth_allocs);
    MUST(s.allocs - s.frees == s.blocks);
    return s;
}

static void something_rare(struct worker *w) {
    weir_status status = WEIR_OK;
    weir_event events[8];
    size_t count;

    switch (next_random(&w->random) % 4) {
    case 0:
        status = weir_trim(allocator, (size_t)(next_random(&w->random) % 4) * 16 * MIB, NULL);
        break;
    case 1:
        status =
            weir_preallocate(allocator, (size_t)(next_random(&w->random) % 8) * 16 * MIB, NULL);
        break;
    case 2:
        (void)checked_statistics();
        break;
    default:
        OK(weir_events(allocator, 0, events, sizeof events[0], 8, &count));
    }
    MUST(status == WEIR_OK || status == WEIR_E_LIMIT || status == WEIR_E_NO_MEMORY ||
         status == WEIR_E_NOT_SUPPORTED);
}

static void run_stress_step(struct worker *w) {
    unsigned dice = (unsigned)(next_random(&w->random) % 1000);

    if (dice < 20)
        hurry(w);
    else if (dice < 40)
        clear_up(w);
    else if (dice < 500)
        alloc_held(w);
    else if (dice < 880)
        free_one_held(w);
    else if (dice < 960)
        swap_one(w);
    else if (dice < 970)
        replace_stress_stream(w);
    else if (dice < 982)
        bind_or_unbind(w);
    else if (dice < 994)
        capture_and_launch(w);
    else
        something_rare(w);
}

static void *run_stress_worker(void *argument) {
    struct worker *w = argument;
    uint64_t refused = 0;

    CU(driver->cuCtxPushCurrent(primary));
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        run_stress_step(w);
        if (w->refused != refused) { /* makes room for other threads */
            refused = w->refused;
            for (int i = w->count / 2; i > 0; i--)
                free_one_held(w);
        }
    }
    while (w->count > 0)
        free_one_held(w);
    CU(driver->cuStreamSynchronize(PER_THREAD));
    return NULL;
}

/* ---- runs -------------------------------------------------------------------------------------- */

static void begin_streams(void) {
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = (struct stream){.generation = 1};
        MUST(pthread_rwlock_init(&streams[i].lock, NULL) == 0);
        CU(driver->cuStreamCreate(&streams[i].handle, CU_STREAM_NON_BLOCKING));
    }
}

static void end_streams(void) {
    for (int i = 0; i < STREAMS; i++) {
        while (atomic_fetch_sub(&streams[i].bound, 1) > 0)
            OK(weir_unbind(allocator, streams[i].handle));
        MUST(atomic_load(&streams[i].noted) == 0);
        CU(driver->cuStreamSynchronize(streams[i].handle));
        CU(driver->cuStreamDestroy(streams[i].handle));
        pthread_rwlock_destroy(&streams[i].lock);
    }
}

static void check_end(uint64_t allocs, uint64_t refused) {
    weir_statistics s = checked_statistics();

    MUST(s.allocs == allocs && s.failed_requests == refused);
    MUST(s.blocks == 0 && s.requested == 0 && s.in_use == 0);
    MUST(s.cache_idle <= s.reserved && s.reserved <= s.reserved_peak);
    for (int i = 0; i < SHARDS; i++)
        for (struct piece *p = shards[i].pieces; p; p = p->next)
            for (size_t k = 0; k < WORDS; k++)
                MUST(p->bits[k] == 0);
}

static void run_workers(const weir_options *options, double seconds) {
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    struct timespec length = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    size_t before = device_free(), after;
    uint64_t allocs = 0, refused = 0;

    point++;
    MUST(workers != NULL);
    OK(weir_allocator_create(options, &allocator));
    begin_streams();
    atomic_store(&stop, 0);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)i;
        workers[i].copy = malloc(2 * EDGE);
        MUST(workers[i].copy != NULL);
        MUST(pthread_create(&workers[i].thread, NULL, run_stress_worker, &workers[i]) == 0);
    }
    nanosleep(&length, NULL);
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++)
        MUST(pthread_join(workers[i].thread, NULL) == 0);
    clear_up(&workers[0]);
    for (int i = 0; i < threads; i++) {
        allocs += workers[i].allocs;
        refused += workers[i].refused;
        free(workers[i].copy);
    }
    check_end(allocs, refused);
    end_streams();
    OK(weir_allocator_destroy(allocator));
    after = device_free();
    MUST(after + (on_cuda ? 64 * MIB : 0) >= before);
    if (!on_cuda)
        MUST(weir__model_pool_check() == NULL);
    free(workers);
    printf("ok %d - %s: %llu blocks, %llu failed requests, %d threads, seed %llu\n", point, what,
           (unsigned long long)allocs, (unsigned long long)refused, threads,
           (unsigned long long)seed);
    fflush(stdout);
}

static void set_stress_option(weir_options *options, const char *name, const char *text) {
    char message[256];

    if (weir_options_set(options, name, text, message, sizeof message) != WEIR_OK) {
        fprintf(stderr, "stress: --%s %s: %s\n", name, text, message);
        exit(2);
    }
}

static void open_stress_device(const char *device) {
    struct weir_driver_failure failure;
    CUdevice number;

    on_cuda = strncmp(device, "cuda", 4) == 0;
    driver = weir__driver_open(on_cuda ? "cuda" : "model", &failure);
    if (!driver) {
        printf("1..0 # SKIP %s\n", failure.text);
        exit(77);
    }
    if (!on_cuda)
        MUST(weir__model_reset(&(struct weir_model_setup){.capacity = 1024 * MIB}) == 0);
    CU(driver->cuDeviceGet(&number, strchr(device, ':') ? atoi(strchr(device, ':') + 1) : 0));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, number));
    CU(driver->cuCtxPushCurrent(primary));
}

/* The runs without a named engine.  The settings override the caller's. */
static const struct {
    const char *what;
    const char *setting[4][2];
} runs[] = {
    {"pool", {{"engine", "pool"}, {"limit", "192MiB"}}},
    {"bfc", {{"engine", "bfc"}, {"limit", "192MiB"}}},
    {"mapped", {{"engine", "mapped"}, {"limit", "192MiB"}}},
    {"mapped, with waits",
     {{"engine", "mapped"}, {"internal-dependencies", "on"}, {"limit", "192MiB"}}},
    {"pool, little kept", {{"engine", "pool"}, {"limit", "192MiB"}, {"cache-limit", "256KiB"}}},
    {"pool alone", {{"engine", "pool"}, {"limit", "192MiB"}, {"cache", "off"}}},
    {"direct", {{"engine", "direct"}, {"limit", "192MiB"}, {"cache", "on"}}},
    {"grow-ahead", {{"engine", "pool"}, {"limit", "192MiB"}, {"grow-ahead", "16MiB"}}},
};

enum { RUNS = sizeof runs / sizeof runs[0] };

int main(int count, char **arguments) {
    weir_options options;
    double seconds = 4;
    char message[256];
    int named = 0;

    weir_options_init(&options);
    options.device = "model";
    options.recovery_timeout_ms = 5;
    for (int i = 1; i < count; i += 2) {
        const char *name = arguments[i], *text = i + 1 < count ? arguments[i + 1] : NULL;

        if (strncmp(name, "--", 2) != 0 || !text) {
            fprintf(stderr, "usage: stress [--device D] [--threads N] [--seconds N] [--seed N] "
                            "[--OPTION VALUE]...\n");
            return 2;
        }
        if (strcmp(name, "--threads") == 0)
            threads = atoi(text);
        else if (strcmp(name, "--seconds") == 0)
            seconds = atof(text);
        else if (strcmp(name, "--seed") == 0)
            seed = strtoull(text, NULL, 0);
        else
            set_stress_option(&options, name + 2, text);
        named |= strcmp(name, "--engine") == 0;
    }
    if (threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "stress: --threads takes 1 to %d\n", MOST_THREADS);
        return 2;
    }
    if (weir_options_from_env(&options, message, sizeof message) != WEIR_OK) {
        fprintf(stderr, "stress: %s\n", message);
        return 2;
    }
    named |= options.engine != WEIR_ENGINE_DEFAULT;
    for (int i = 0; i < SHARDS; i++)
        pthread_mutex_init(&shards[i].lock, NULL);
    what = "device";
    open_stress_device(options.device);
    printf("1..%d\n", named ? 1 : RUNS);
    if (named) {
        what = "as told";
        run_workers(&options, seconds);
        return 0;
    }
    for (int i = 0; i < RUNS; i++) {
        weir_options one = options;

        what = runs[i].what;
        for (int k = 0; k < 4 && runs[i].setting[k][0]; k++)
            set_stress_option(&one, runs[i].setting[k][0], runs[i].setting[k][1]);
        run_workers(&one, seconds / RUNS);
    }
    return 0;
}
