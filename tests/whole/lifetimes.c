/* SPDX-License-Identifier: MIT */
/* lifetimes.c: on a GPU, every block holds its own pattern from its allocation to its free.
 *
 *     tests/whole/lifetimes [--threads N] [--lifetimes N] [--seed N]      settings: WEIR_... as for any program
 *
 * A kernel writes the pattern on the block's stream, often after a delay, and another kernel verifies it there before
 * the free, which is submitted at once.  So the data shows memory that is reused too early.  Threads share one
 * allocator, use blocks on several streams, pass them to each other, end streams, capture graphs, trim, and run out of
 * memory.
 *
 * The kernels are PTX for drivers from 11.2 on.  Exits with 0 if nothing was wrong, 77 without a GPU.  Must not know:
 * how weir places blocks. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "tests/fixtures/random.h"

enum { THREADS = 64, STREAMS = 3, LIVE = 48, LETTERS = 64, WORDS = 4096, LAUNCHES = 3 };

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* Both kernels begin with these lines.  Each of n threads takes every n-th word: %x is its address, %y its value. */
#define PARAMETERS                                                                                 \
    "    ld.param.u64 %at, [p_at];\n"                                                              \
    "    ld.param.u64 %words, [p_words];\n"                                                        \
    "    ld.param.u64 %stride, [p_stride];\n"                                                      \
    "    ld.param.u64 %value, [p_value];\n"
#define EACH_WORD                                                                                  \
    "    mov.u32 %a, %ctaid.x;\n"                                                                  \
    "    mov.u32 %b, %ntid.x;\n"                                                                   \
    "    mov.u32 %c, %tid.x;\n"                                                                    \
    "    mad.lo.u32 %c, %a, %b, %c;\n"                                                             \
    "    cvt.u64.u32 %i, %c;\n"                                                                    \
    "    mov.u32 %a, %nctaid.x;\n"                                                                 \
    "    mul.lo.u32 %a, %a, %b;\n"                                                                 \
    "    cvt.u64.u32 %step, %a;\n"                                                                 \
    "again:\n"                                                                                     \
    "    setp.ge.u64 %p, %i, %words;\n"                                                            \
    "    @%p bra done;\n"                                                                          \
    "    mad.lo.u64 %x, %i, %stride, %at;\n"                                                       \
    "    add.u64 %y, %value, %i;\n"

/* A kernel's words have 8 bytes and are `stride' bytes apart.  Each word is the value plus its number. */
static const char ptx[] =
    ".version 7.0\n"
    ".target sm_52\n"
    ".address_size 64\n"
    ".visible .entry fill(.param .u64 p_at, .param .u64 p_words,\n"
    "    .param .u64 p_stride, .param .u64 p_value, .param .u64 p_delay)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %a, %b, %c;\n"
    "    .reg .b64 %at, %words, %stride, %value, %i, %step, %x, %y, %began;\n" PARAMETERS
    "    ld.param.u64 %x, [p_delay];\n"
    "    mov.u64 %began, %clock64;\n"
    "spin:\n"
    "    mov.u64 %y, %clock64;\n"
    "    sub.u64 %y, %y, %began;\n"
    "    setp.lt.u64 %p, %y, %x;\n"
    "    @%p bra spin;\n" EACH_WORD "    st.global.u64 [%x], %y;\n"
    "    add.u64 %i, %i, %step;\n"
    "    bra again;\n"
    "done:\n"
    "    ret;\n"
    "}\n"
    ".visible .entry verify(.param .u64 p_at, .param .u64 p_words,\n"
    "    .param .u64 p_stride, .param .u64 p_value, .param .u64 p_wrong)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %a, %b, %c;\n"
    "    .reg .b64 %at, %words, %stride, %value, %i, %step, %x, %y, %z, %wrong;\n" PARAMETERS
    "    ld.param.u64 %wrong, [p_wrong];\n" EACH_WORD "    ld.global.u64 %z, [%x];\n"
    "    add.u64 %i, %i, %step;\n"
    "    setp.eq.u64 %p, %z, %y;\n"
    "    @%p bra again;\n"
    "    atom.global.add.u64 %i, [%wrong], 1;\n"
    "    st.global.u64 [%wrong+8], %x;\n"
    "    st.global.u64 [%wrong+16], %y;\n"
    "    st.global.u64 [%wrong+24], %z;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

struct block {
    char *address; /* NULL if there is none */
    size_t bytes;
    uint64_t value;
    int stream; /* the thread's stream that wrote the pattern */
    int noted;  /* the block stays in its thread, since a noted stream must live until the free */
};

/* A block on its way to another thread, and the event that the thread's stream waits for. */
struct letter {
    struct block block;
    CUevent event;
};

struct worker {
    unsigned number;
    pthread_t id;
    uint64_t random;
    CUstream streams[STREAMS];
    CUevent event;
    struct block live[LIVE];
    unsigned count;
    pthread_mutex_t lock; /* guards the letters */
    struct letter letters[LETTERS];
    unsigned letter_count;
    uint64_t lifetimes, failed_requests, crossed, sent, captures, streams_made;
};

static const struct weir_driver *driver;
static weir_allocator *allocator;
static CUcontext context;
static CUfunction fill, verify;
static CUdeviceptr wrong; /* wrong words: count; address, expected and found value of the last */
static struct worker workers[THREADS];
static unsigned threads = 8;
static uint64_t wanted = 1000000, seed = 1;
static int has_caches; /* without caches the pool's driver calls break captures */
static _Atomic uint64_t values;

static __attribute__((format(printf, 1, 2), noreturn)) void die(const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _Exit(1);
}

#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            die("%s: %s", #call, weir__driver_error_name(driver, cu_is));                          \
    } while (0)

#define OK(call)                                                                                   \
    do {                                                                                           \
        weir_status ok_is = (call);                                                                \
        if (ok_is != WEIR_OK)                                                                      \
            die("%s: %s (driver result %d)", #call, weir_status_name(ok_is),                       \
                weir_last_driver_result());                                                        \
    } while (0)

static uint64_t draw_for_worker(struct worker *w, uint64_t below) {
    return (next_random(&w->random) >> 11) % below;
}

/* ---- Patterns ---- */

/* Launches the kernel on all words of a block, or on about WORDS words that are spread over a larger block. */
static void launch_on_words(CUfunction kernel, const struct block *b, CUstream stream,
                            uint64_t last) {
    uint64_t at = (uintptr_t)b->address, words = b->bytes / 8, apart = 1, stride;
    void *parameters[] = {&at, &words, &stride, (void *)(uintptr_t)&b->value, &last};

    if (words == 0)
        return;
    if (words > WORDS) {
        apart = (words - 1) / (WORDS - 1);
        words = (words - 1) / apart + 1;
    }
    stride = apart * 8;
    CU(driver->cuLaunchKernel(kernel, words > 512 ? 4 : 1, 1, 1, 128, 1, 1, 0, stream, parameters,
                              NULL));
}

static void write_pattern(struct worker *w, const struct block *b, CUstream stream) {
    launch_on_words(fill, b, stream,
                    draw_for_worker(w, 4) ? 0 : draw_for_worker(w, 100000)); /* cycles */
}

static void verify_pattern(const struct block *b, CUstream stream) {
    launch_on_words(verify, b, stream, wrong);
}

/* ---- Blocks ---- */

static size_t draw_bytes(struct worker *w) {
    size_t low = (size_t)256 << draw_for_worker(w, 13);

    if (draw_for_worker(w, 200) == 0)
        low = MIB << draw_for_worker(w, 7);
    return low + draw_for_worker(w, low);
}

static void wait_for_other_stream(struct worker *w, CUstream stream, CUstream other) {
    CU(driver->cuEventRecord(w->event, other));
    CU(driver->cuStreamWaitEvent(stream, w->event, 0));
}

static void verify_and_free_at(struct worker *w, unsigned at) {
    struct block *b = &w->live[at];
    CUstream stream = w->streams[b->stream];

    if (draw_for_worker(w, 8) == 0) { /* frees on another stream, ordered after this one */
        CUstream other = w->streams[draw_for_worker(w, STREAMS)];

        if (other != stream)
            wait_for_other_stream(w, other, stream);
        stream = other;
    }
    verify_pattern(b, stream);
    OK(weir_free(allocator, b->address, stream));
    w->live[at] = w->live[--w->count];
    w->lifetimes++;
}

static void free_half(struct worker *w) {
    unsigned half = w->count / 2;

    while (w->count > half)
        verify_and_free_at(w, (unsigned)draw_for_worker(w, w->count));
}

static void alloc_and_fill_next(struct worker *w) {
    struct block b = {.bytes = draw_bytes(w), .stream = (int)draw_for_worker(w, STREAMS)};
    CUstream stream = w->streams[b.stream];
    weir_status status;
    void *address;

    b.value = atomic_fetch_add_explicit(&values, 1, memory_order_relaxed) << 32;
    status = weir_alloc(allocator, b.bytes, stream, &address);
    if (status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT) {
        w->failed_requests++;
        free_half(w);
        return;
    }
    OK(status);
    b.address = address;
    write_pattern(w, &b, stream);
    w->live[w->count++] = b;
}

/* Reads a block on another stream, which weir_use names, so that the free waits for the read. */
static void use_on_second_stream(struct worker *w) {
    struct block *b = &w->live[draw_for_worker(w, w->count)];
    int other = (int)draw_for_worker(w, STREAMS);

    if (other == b->stream)
        return;
    wait_for_other_stream(w, w->streams[other], w->streams[b->stream]);
    OK(weir_use(allocator, b->address, w->streams[other]));
    b->noted = 1;
    verify_pattern(b, w->streams[other]);
    w->crossed++;
}

static void send(struct worker *w) {
    struct worker *to = &workers[draw_for_worker(w, threads)];
    unsigned at = (unsigned)draw_for_worker(w, w->count);
    struct letter letter = {.block = w->live[at]};

    if (letter.block.noted)
        return;
    CU(driver->cuEventCreate(&letter.event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(letter.event, w->streams[letter.block.stream]));
    pthread_mutex_lock(&to->lock);
    if (to->letter_count < LETTERS) {
        to->letters[to->letter_count++] = letter;
        w->live[at] = w->live[--w->count];
        letter.event = NULL;
        w->sent++;
    }
    pthread_mutex_unlock(&to->lock);
    if (letter.event)
        CU(driver->cuEventDestroy(letter.event));
}

static void receive_letters(struct worker *w) {
    struct letter letters[LETTERS];
    unsigned count;

    pthread_mutex_lock(&w->lock);
    count = w->letter_count;
    memcpy(letters, w->letters, count * sizeof letters[0]);
    w->letter_count = 0;
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < count; i++) {
        struct block *b = &letters[i].block;
        CUstream stream = w->streams[draw_for_worker(w, STREAMS)];

        CU(driver->cuStreamWaitEvent(stream, letters[i].event, 0));
        CU(driver->cuEventDestroy(letters[i].event));
        verify_pattern(b, stream);
        OK(weir_free(allocator, b->address, stream));
        w->lifetimes++;
    }
}

/* ---- Streams and graphs ---- */

/* Sets the thread's capture mode, since captures of other threads forbid some calls of this program.  Returns the old
 * mode. */
static CUstreamCaptureMode exchange_mode(CUstreamCaptureMode mode) {
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

/* Replaces a stream, after the free of all blocks for which the stream may be noted. */
static void replace_stream(struct worker *w) {
    CUstream *stream = &w->streams[draw_for_worker(w, STREAMS)];
    CUstreamCaptureMode mode;

    while (w->count > 0)
        verify_and_free_at(w, 0);
    mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CU(driver->cuStreamDestroy(*stream));
    CU(driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    exchange_mode(mode);
    w->streams_made++;
}

static void capture_lifetime(struct worker *w) {
    CUstream stream = w->streams[0];
    struct block b = {.bytes = 4 * KIB + draw_for_worker(w, MIB)};
    CUstreamCaptureMode mode;
    CUgraph graph;
    CUgraphExec exec;
    weir_status status;
    void *address = NULL;

    b.value = atomic_fetch_add_explicit(&values, 1, memory_order_relaxed) << 32;
    CU(driver->cuStreamBeginCapture(stream, has_caches ? (CUstreamCaptureMode)draw_for_worker(w, 3)
                                                       : CU_STREAM_CAPTURE_MODE_RELAXED));
    status = weir_alloc(allocator, b.bytes, stream, &address);
    if (status != WEIR_E_CAPTURE)
        OK(status);
    b.address = address;
    if (address) {
        write_pattern(w, &b, stream);
        verify_pattern(&b, stream);
        OK(weir_free(allocator, address, stream));
    }
    CU(driver->cuStreamEndCapture(stream, &graph));
    mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < LAUNCHES; i++)
        CU(driver->cuGraphLaunch(exec, w->streams[draw_for_worker(w, STREAMS)]));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    exchange_mode(mode);
    w->captures++;
}

/* ---- Threads ---- */

static void run_lifetime_step(struct worker *w) {
    uint64_t which = draw_for_worker(w, 10000);

    if (w->count == LIVE || (w->count > 0 && which < 4500))
        verify_and_free_at(w, (unsigned)draw_for_worker(w, w->count));
    else if (which < 9000)
        alloc_and_fill_next(w);
    else if (which < 9500 && w->count > 0)
        use_on_second_stream(w);
    else if (which < 9700 && w->count > 0 && threads > 1)
        send(w);
    else if (which < 9900)
        receive_letters(w);
    else if (which < 9902)
        replace_stream(w);
    else if (which < 9905)
        capture_lifetime(w);
    else if (which < 9906)
        OK(weir_trim(allocator, (size_t)draw_for_worker(w, 2) * 64 * MIB, NULL));
    else if (which < 9908)
        free_half(w);
}

static void *run_lifetimes(void *argument) {
    struct worker *w = argument;
    CUcontext popped;

    CU(driver->cuCtxPushCurrent(context));
    while (w->lifetimes < wanted / threads)
        run_lifetime_step(w);
    while (w->count > 0)
        verify_and_free_at(w, 0);
    CU(driver->cuCtxPopCurrent(&popped));
    return NULL;
}

/* ---- Beginning and end ---- */

static void open_all(void) {
    char message[256];
    weir_options options;
    CUmodule module;

    weir_options_init(&options);
    if (weir_options_from_env(&options, message, sizeof message) != WEIR_OK)
        die("%s", message);
    OK(weir_allocator_create(&options, &allocator));
    has_caches = options.cache != WEIR_SWITCH_OFF;
    CU(driver->cuDevicePrimaryCtxRetain(&context, 0));
    CU(driver->cuCtxPushCurrent(context));
    CU(driver->cuModuleLoadData(&module, ptx));
    CU(driver->cuModuleGetFunction(&fill, module, "fill"));
    CU(driver->cuModuleGetFunction(&verify, module, "verify"));
    CU(driver->cuMemAlloc(&wrong, 32));
    CU(driver->cuMemsetD8Async(wrong, 0, 32, NULL));
    for (unsigned i = 0; i < threads; i++) {
        struct worker *w = &workers[i];

        w->number = i;
        w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + i + 1;
        pthread_mutex_init(&w->lock, NULL);
        for (int k = 0; k < STREAMS; k++)
            CU(driver->cuStreamCreate(&w->streams[k], CU_STREAM_NON_BLOCKING));
        CU(driver->cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
    }
    CU(driver->cuCtxSynchronize());
}

/* Checks the end state, and destroys the allocator.  Returns the number of wrong words. */
static uint64_t close_all(void) {
    weir_statistics s = {.size = sizeof s};
    uint64_t found[4] = {0};

    for (unsigned i = 0; i < threads; i++)
        receive_letters(&workers[i]);
    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemcpyDtoHAsync(found, wrong, sizeof found, NULL));
    CU(driver->cuCtxSynchronize());
    if (found[0])
        fprintf(stderr, "%llu words are wrong; the last at %#llx: %#llx, not %#llx\n",
                (unsigned long long)found[0], (unsigned long long)found[1],
                (unsigned long long)found[3], (unsigned long long)found[2]);
    OK(weir_stats(allocator, &s));
    if (s.blocks || s.requested)
        die("%llu blocks of %llu bytes are left", (unsigned long long)s.blocks,
            (unsigned long long)s.requested);
    printf(
        "# %llu hits, %llu steals, %llu event records, %llu growth steps, %llu recoveries, reserve "
        "%llu MiB at most\n",
        (unsigned long long)s.cache_hits, (unsigned long long)s.steals,
        (unsigned long long)s.event_records, (unsigned long long)s.growths,
        (unsigned long long)s.retries, (unsigned long long)(s.reserved_peak / MIB));
    OK(weir_trim(allocator, 0, NULL));
    OK(weir_allocator_destroy(allocator));
    CU(driver->cuMemFree(wrong));
    return found[0];
}

static uint64_t positive_argument(const char *text) {
    char *end;
    unsigned long long value = text ? strtoull(text, &end, 10) : 0;

    if (!text || *end || value == 0)
        die("usage: tests/whole/lifetimes [--threads N] [--lifetimes N] [--seed N]");
    return value;
}

static void read_lifetime_arguments(char **argv) {
    for (char **at = argv + 1; *at; at += 2) {
        uint64_t value = positive_argument(at[1]);

        if (strcmp(*at, "--threads") == 0)
            threads = value < THREADS ? (unsigned)value : THREADS;
        else if (strcmp(*at, "--lifetimes") == 0)
            wanted = value;
        else if (strcmp(*at, "--seed") == 0)
            seed = value;
        else
            positive_argument(NULL);
    }
}

int main(int argc, char **argv) {
    struct worker sum = {0};
    struct weir_driver_failure failure;
    uint64_t bad;

    (void)argc;
    read_lifetime_arguments(argv);
    driver = weir__driver_open("cuda", &failure);
    if (!driver) {
        puts("1..0 # SKIP no CUDA device");
        return 77;
    }
    open_all();
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&workers[i].id, NULL, run_lifetimes, &workers[i]) != 0)
            die("a thread cannot be started");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(workers[i].id, NULL);
    bad = close_all();
    for (unsigned i = 0; i < threads; i++) {
        const struct worker *w = &workers[i];

        sum.lifetimes += w->lifetimes;
        sum.failed_requests += w->failed_requests;
        sum.crossed += w->crossed;
        sum.sent += w->sent;
        sum.captures += w->captures;
        sum.streams_made += w->streams_made;
    }
    printf("1..1\n%s 1 - %llu lifetimes on %u threads, %llu words wrong\n", bad ? "not ok" : "ok",
           (unsigned long long)sum.lifetimes, threads, (unsigned long long)bad);
    printf("# %llu failed requests, %llu uses on other streams, %llu sent to other threads, %llu "
           "captures, %llu "
           "streams made\n",
           (unsigned long long)sum.failed_requests, (unsigned long long)sum.crossed,
           (unsigned long long)sum.sent, (unsigned long long)sum.captures,
           (unsigned long long)sum.streams_made);
    return bad != 0;
}
