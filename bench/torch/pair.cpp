// SPDX-License-Identifier: MIT
// pair.cpp: measures the host time of an allocation and its free with the allocator that PyTorch uses.  pair.py
// compiles this file.
//
// Each function returns nanoseconds for one allocation and its free, or -1 if the allocator has thrown an exception.

#include <c10/cuda/CUDACachingAllocator.h>

#include <chrono>
#include <cstddef>
#include <vector>

namespace {

template <typename Work>
double ns_each(long count, Work work) {
    try {
        auto begin = std::chrono::steady_clock::now();
        for (long i = 0; i < count; i++)
            work(i);
        std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
        return took.count() / double(count);
    } catch (...) {
        return -1;
    }
}

c10::cuda::CUDACachingAllocator::CUDAAllocator *now() {
    return c10::cuda::CUDACachingAllocator::get();
}

} // namespace

extern "C" {

// Allocates and frees as a tensor does: creates a DataPtr and destroys it.
double pair_of_tensor(std::size_t size, long count) {
    return ns_each(count, [=](long) { auto block = now()->allocate(size); });
}

double pair_raw(std::size_t size, long count) {
    return ns_each(count, [=](long) { now()->raw_delete(now()->raw_alloc(size)); });
}

// Keeps `live' blocks: allocates a new block, then frees the oldest one.
double pair_of_several(std::size_t size, long count, long live) {
    std::vector<c10::DataPtr> blocks(static_cast<std::size_t>(live));
    return ns_each(count, [&](long i) { blocks[static_cast<std::size_t>(i % live)] = now()->allocate(size); });
}

// Keeps `live' blocks as pair_of_several() does, with random sizes from 512 bytes to about `most'.
double pair_of_sizes(std::size_t most, long count, long live) {
    std::vector<c10::DataPtr> blocks(static_cast<std::size_t>(live));
    unsigned long long random = 88172645463325252ull;
    return ns_each(count, [&](long i) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::size_t size = 512 + static_cast<std::size_t>(random % most);
        blocks[static_cast<std::size_t>(i % live)] = now()->allocate(size);
    });
}

double empty_loop(long count) {
    volatile long kept = 0;
    return ns_each(count, [&](long i) { kept = i; });
}
}
