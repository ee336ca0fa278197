// SPDX-License-Identifier: MIT
// pair: what an allocation and its free cost on the host, by the allocator that PyTorch has.  pair.py compiles this.
//
// Each function returns nanoseconds for one allocation with its free, or -1 if the allocator threw.

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

// As tensors do: a DataPtr comes and goes.
double pair_of_tensor(std::size_t size, long count) {
    return ns_each(count, [=](long) { auto block = now()->allocate(size); });
}

double pair_raw(std::size_t size, long count) {
    return ns_each(count, [=](long) { now()->raw_delete(now()->raw_alloc(size)); });
}

// The oldest of `live' blocks goes as a new one comes.
double pair_of_several(std::size_t size, long count, long live) {
    std::vector<c10::DataPtr> blocks(static_cast<std::size_t>(live));
    return ns_each(count, [&](long i) { blocks[static_cast<std::size_t>(i % live)] = now()->allocate(size); });
}

// Likewise, of sizes that vary between 512 bytes and `most'.
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
