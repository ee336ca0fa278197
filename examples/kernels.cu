/* SPDX-License-Identifier: MIT */
/* kernels.cu: a CUDA program that allocates with weir's functions, with work on several streams.
 *
 *     nvcc kernels.cu -lweir -o kernels && ./kernels
 *     WEIR_PREALLOC=512MiB WEIR_LIMIT=2GiB ./kernels
 *
 * Each of four streams fills, scales and sums vectors of changing sizes, in buffers that live for one round.  A fifth
 * stream reads the results; weir_use declares its uses.  The program compares every sum with the expected sum, and
 * prints weir's statistics at the end.  unchanged.cu does such work with CUDA's own names.
 */
#include <cstdio>
#include <vector>

#include <weir/cuda.h>
#include <weir/stats.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            std::fprintf(stderr, "kernels: %s: %s\n", #call, cudaGetErrorString(error_));          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

enum { STREAMS = 4, ROUNDS = 200, THREADS = 256, BLOCKS = 64 };

__global__ void fill(unsigned *out, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = seed + (unsigned)(i % 7);
}

__global__ void scale(unsigned *out, const unsigned *in, size_t count, unsigned factor) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = in[i] * factor;
}

__global__ void sum(unsigned long long *out, const unsigned *in, size_t count) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(out, (unsigned long long)in[i]);
}

static unsigned long long expected(size_t count, unsigned seed, unsigned factor) {
    unsigned long long total = 0;

    for (size_t rest = 0; rest < 7; rest++)
        total += (count + 6 - rest) / 7 * (seed + rest);
    return total * factor;
}

static int one_round(int round, const cudaStream_t *streams, cudaStream_t reader,
                     unsigned long long *results, unsigned long long *wanted) {
    for (unsigned s = 0; s < STREAMS; s++) {
        size_t count = 1000 + (size_t)((round * 7919 + (int)s * 104729) % 3000000);
        unsigned seed = (unsigned)round + s, factor = 1 + s;
        unsigned *in, *out;
        unsigned long long *total;
        cudaEvent_t summed;

        CHECK(weirMallocAsync(&in, count * sizeof *in, streams[s]));
        CHECK(weirMallocAsync(&out, count * sizeof *out, streams[s]));
        CHECK(weirMallocAsync(&total, sizeof *total, streams[s]));
        CHECK(cudaMemsetAsync(total, 0, sizeof *total, streams[s]));
        fill<<<BLOCKS, THREADS, 0, streams[s]>>>(in, count, seed);
        scale<<<BLOCKS, THREADS, 0, streams[s]>>>(out, in, count, factor);
        CHECK(weirFreeAsync(in, streams[s])); /* while scale still reads it, in stream order */
        sum<<<BLOCKS, THREADS, 0, streams[s]>>>(total, out, count);
        CHECK(weirFreeAsync(out, streams[s]));
        CHECK(cudaGetLastError());

        CHECK(cudaEventCreateWithFlags(&summed, cudaEventDisableTiming));
        CHECK(cudaEventRecord(summed, streams[s]));
        CHECK(cudaStreamWaitEvent(reader, summed, 0));
        CHECK(cudaEventDestroy(summed));
        CHECK(cudaMemcpyAsync(&results[s], total, sizeof *total, cudaMemcpyDeviceToHost, reader));
        {
            /* The reader uses the block, too: although its own stream frees it, weir reuses it only after the reader's
             * work. */
            weir_allocator *allocator;

            CHECK(weir_status_to_cuda(weir_block_allocator(total, &allocator)));
            CHECK(weir_status_to_cuda(weir_use(allocator, total, weir_stream_from_cuda(reader))));
        }
        CHECK(weirFreeAsync(total, streams[s]));
        wanted[s] = expected(count, seed, factor);
    }
    return 0;
}

int main() {
    cudaStream_t streams[STREAMS], reader;
    unsigned long long *results;
    std::vector<unsigned long long> wanted(ROUNDS * STREAMS);
    weir_allocator *allocator;
    weir_statistics s = {};
    int wrong = 0;

    CHECK(cudaSetDevice(0));
    for (cudaStream_t &stream : streams)
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
    CHECK(cudaMallocHost((void **)&results, wanted.size() * sizeof *results));
    for (int round = 0; round < ROUNDS; round++)
        if (one_round(round, streams, reader, &results[round * STREAMS], &wanted[round * STREAMS]))
            return 1;
    CHECK(cudaDeviceSynchronize());
    for (size_t i = 0; i < wanted.size(); i++)
        wrong += results[i] != wanted[i];

    s.size = sizeof s;
    CHECK(weir_status_to_cuda(weir_stream_allocator(streams[0], &allocator)));
    CHECK(weir_status_to_cuda(weir_stats(allocator, &s)));
    std::printf(
        "%zu sums, %d wrong; weir served %llu requests, %llu without growth, from %llu MiB\n",
        wanted.size(), wrong, (unsigned long long)s.allocs, (unsigned long long)s.hits,
        (unsigned long long)(s.reserved_peak >> 20));
    return wrong || s.allocs != 3ull * wanted.size() || s.blocks != 0;
}
