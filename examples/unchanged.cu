/* SPDX-License-Identifier: MIT */
/* unchanged.cu: a CUDA program without any call of weir, which can be compiled with CUDA's own pool or with weir.
 *
 *     nvcc unchanged.cu -o unchanged                                               CUDA's own pool
 *     nvcc -DWEIR_OVERRIDE -include weir/cuda.h unchanged.cu -lweir -o unchanged   weir
 *     WEIR_LOG=info ./unchanged                                                    weir, with its log
 *
 * It allocates in stream order in all ways: cudaMallocAsync, cudaMallocFromPoolAsync, both forms of the C++ templates,
 * cudaFreeAsync on another stream, and cudaFree.  It computes sums, and compares them with the expected sums.
 */
#include <cstdio>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) {                                                               \
            std::fprintf(stderr, "unchanged: %s: %s\n", #call, cudaGetErrorString(error_));        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

enum { ROUNDS = 200, THREADS = 256, BLOCKS = 64 };

__global__ void fill(unsigned *out, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = seed + (unsigned)(i % 7);
}

__global__ void sum(unsigned long long *out, const unsigned *in, size_t count) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        atomicAdd(out, (unsigned long long)in[i]);
}

static unsigned long long expected(size_t count, unsigned seed) {
    unsigned long long total = 0;

    for (size_t rest = 0; rest < 7; rest++)
        total += (count + 6 - rest) / 7 * (seed + rest);
    return total;
}

int main() {
    unsigned long long result = 0, *total = nullptr;
    cudaStream_t first, second;
    cudaEvent_t filled;
    cudaMemPool_t pool;
    int wrong = 0;

    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreate(&second));
    CHECK(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMallocAsync(&total, sizeof *total, pool, second)); /* the C++ form with a pool */
    for (int round = 0; round < ROUNDS; round++) {
        size_t count = 1000 + (size_t)(round * 7919 % 3000000);
        unsigned seed = (unsigned)round;
        void *untyped = nullptr;

        if (round % 2)
            CHECK(cudaMallocFromPoolAsync(&untyped, count * sizeof(unsigned), pool, first));
        else
            CHECK(cudaMallocAsync(&untyped, count * sizeof(unsigned), first));
        unsigned *in = static_cast<unsigned *>(untyped);
        fill<<<BLOCKS, THREADS, 0, first>>>(in, count, seed);
        CHECK(cudaEventRecord(filled, first));
        CHECK(cudaStreamWaitEvent(second, filled, 0));
        CHECK(cudaMemsetAsync(total, 0, sizeof *total, second));
        sum<<<BLOCKS, THREADS, 0, second>>>(total, in, count);
        CHECK(cudaGetLastError());
        if (round % 3) /* the last stream that used the block */
            CHECK(cudaFreeAsync(in, second));
        CHECK(cudaMemcpyAsync(&result, total, sizeof result, cudaMemcpyDeviceToHost, second));
        CHECK(cudaStreamSynchronize(second));
        if (round % 3 == 0)
            CHECK(cudaFree(in)); /* CUDA allows cudaFree, too */
        wrong += result != expected(count, seed);
    }
    CHECK(cudaFreeAsync(total, second));
    CHECK(cudaDeviceSynchronize());
    std::printf("%d sums, %d wrong\n", (int)ROUNDS, wrong);
    return wrong != 0;
}
