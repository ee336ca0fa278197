// SPDX-License-Identifier: MIT
// stream_kinds.cu: measures how long a request and a free take in a program of the CUDA runtime, for each kind of
// stream.
//
//     stream_kinds [ROUNDS]          ROUNDS is 5 by default
//
// The program itself does not use weir.  bench/stream-kinds runs it natively, under `weir run', and with a library in
// which requests return at once (at_once.c).  The program prints a line for each kind of stream with two times in
// nanoseconds: first of a request of 64 KiB and its free, then of a free and a request of up to 4 MiB among 300 live
// blocks.  Each time is the minimum over the rounds.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>

enum { LIVE = 300, PAIRS = 20000, TURNS = 6000, MOST = 4 << 20 };

static void require_cuda(cudaError_t error) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "stream_kinds: %s\n", cudaGetErrorString(error));
    exit(1);
}

static double kind_now_ns() {
    timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static size_t draw_kind_bytes() {
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return 1 + (size_t)(state >> 33) % MOST;
}

static void *allocate_on(size_t bytes, cudaStream_t stream) {
    void *block;

    require_cuda(cudaMallocAsync(&block, bytes, stream));
    return block;
}

static double measure_pair_ns(cudaStream_t stream) {
    double began = kind_now_ns();

    for (int i = 0; i < PAIRS; i++)
        require_cuda(cudaFreeAsync(allocate_on(65536, stream), stream));
    return (kind_now_ns() - began) / PAIRS;
}

static double turn_ns(cudaStream_t stream) {
    static void *live[LIVE];
    double began;

    for (void *&block : live)
        block = allocate_on(draw_kind_bytes(), stream);
    for (int warm = 1; warm >= 0; warm--) {
        began = kind_now_ns();
        for (int i = 0; i < TURNS; i++) {
            void *&block = live[draw_kind_bytes() % LIVE];

            require_cuda(cudaFreeAsync(block, stream));
            block = allocate_on(draw_kind_bytes(), stream);
        }
    }
    began = (kind_now_ns() - began) / TURNS;
    for (void *block : live)
        require_cuda(cudaFreeAsync(block, stream));
    require_cuda(cudaStreamSynchronize(stream));
    return began;
}

static void measure_kind(const char *kind, cudaStream_t stream, int rounds) {
    double pair = 1e18, turn = 1e18;

    (void)measure_pair_ns(stream);
    for (int i = 0; i < rounds; i++) {
        double took = measure_pair_ns(stream);

        pair = took < pair ? took : pair;
        took = turn_ns(stream);
        turn = took < turn ? took : turn;
    }
    printf("%s %.0f %.0f\n", kind, pair, turn);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    unsigned long long keep = UINT64_MAX;
    cudaStream_t created, blocking;
    cudaMemPool_t pool;

    require_cuda(cudaDeviceGetDefaultMemPool(&pool, 0));
    require_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    require_cuda(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
    require_cuda(cudaStreamCreate(&blocking));
    measure_kind("created", created, rounds);
    measure_kind("blocking", blocking, rounds);
    measure_kind("legacy", 0, rounds);
    measure_kind("legacy-by-name", cudaStreamLegacy, rounds);
    measure_kind("per-thread", cudaStreamPerThread, rounds);
    return 0;
}
