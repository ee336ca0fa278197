// SPDX-License-Identifier: MIT
// torch_shim.cpp: PyTorch's allocator interface over the device model, for check-shim: what the shim translates, and that
// no exception of PyTorch's passes through weir.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "weir_torch.cpp"

// The runtime and libtorch, as far as the shim asks them.
extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
extern "C" cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
extern "C" cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}
extern "C" cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = 1;
    *total = size_t(8) << 30;
    return cudaSuccess;
}
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using Entry = cca::TraceEntry;

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: not so: %s\n", __LINE__, #condition);                                 \
            fflush(stdout);                                                                        \
            std::_Exit(1);                                                                         \
        }                                                                                          \
    } while (0)

template <class Call> std::string thrown_by(Call call) {
    try {
        call();
    } catch (const std::exception &error) {
        return error.what();
    }
    return "";
}
bool has(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

using weir_torch::MempoolId_t;
constexpr MempoolId_t ONE{0, 1}, TWO{0, 2};
constexpr size_t MIB = 1 << 20;

#if WEIR_TORCH_VERSION >= 211
constexpr const char *OTHER_FRACTION = ", or per_process_memory_fraction in PYTORCH_ALLOC_CONF";
#else
constexpr const char *OTHER_FRACTION = "";
#endif

void check_torch_pools(weir_torch::Allocator *a) {
    auto all = [](cudaStream_t) { return true; };
    a->createOrIncrefPool(0, ONE, nullptr);
    a->beginAllocateToPool(0, ONE,
                           [](cudaStream_t) -> bool { throw std::runtime_error("filter"); });
    MUST(thrown_by([&] { a->raw_alloc_with_stream(MIB, nullptr); }) == "filter");
    MUST(has(thrown_by([&] { a->beginAllocateToPool(0, ONE, all); }), "already recording"));
    a->endAllocateToPool(0, ONE);
    MUST(has(thrown_by([&] { a->endAllocateToPool(0, ONE); }), "not currently recording"));
    MUST(a->getPoolUseCount(0, ONE) == 2 && a->getPoolUseCount(0, TWO) == 0);
    MUST(a->getDeviceStats(0).allocation[0].current == 0);
    a->beginAllocateToPool(0, ONE, all);
    a->beginAllocateToPool(0, TWO, all);
    void *block = a->raw_alloc_with_stream(MIB, nullptr);
    auto segments = a->snapshot(TWO, true).segments; // the pool that began last
    MUST(segments.size() > 0 && segments[0].owner_private_pool_id == TWO);
    MUST(!segments[0].is_expandable);
    a->endAllocateToPool(0, TWO);
    a->endAllocateToPool(0, ONE);
    a->raw_delete(block);
    a->setUseOnOOM(0, {7, 7}, false); // succeeds although there is no such pool
}

void limits(weir_torch::Allocator *a) {
    a->setMemoryFraction(0.001, 0);
    std::string error = thrown_by([&] { a->raw_alloc_with_stream(size_t(1) << 30, nullptr); });
    std::string advice = "  Raise torch.cuda.set_per_process_memory_fraction";
    MUST(has(error, (advice + OTHER_FRACTION + ".\n").c_str()));
    MUST(!has(error, "weir_set_limit"));
    a->setMemoryFraction(1, 0);
}

void events(weir_torch::Allocator *a) {
    auto reserved = [&] { return a->getDeviceStats(0).reserved_bytes[0].current; };
    int64_t grown = 0, shrunk = 0, before, during;
    a->recordHistory(true, nullptr, 1000, cca::RecordContext::NEVER, false, {});
    before = reserved();
    void *block = a->raw_alloc_with_stream(300 * MIB, nullptr);
    during = reserved();
    a->raw_delete(block);
    a->emptyCache();
    auto snapshot = a->snapshot({0, 0}, true);
    for (const auto &entry : snapshot.device_traces[0]) {
        auto bytes = static_cast<int64_t>(entry.size_);
        if (entry.action_ == Entry::SEGMENT_MAP || entry.action_ == Entry::SEGMENT_ALLOC)
            grown += bytes;
        if (entry.action_ == Entry::SEGMENT_UNMAP || entry.action_ == Entry::SEGMENT_FREE)
            shrunk += bytes;
    }
    MUST(grown > 0 && grown == during - before);
    MUST(shrunk == during - reserved());
    a->attachAllocatorTraceTracker([](const Entry &entry) {
        if (entry.action_ == Entry::ALLOC && entry.size_ == 4096)
            throw std::runtime_error("tracker");
    });
    MUST(thrown_by([&] { a->raw_alloc_with_stream(4096, nullptr); }) == "tracker");
    MUST(a->getDeviceStats(0).allocation[0].current == 0);
}

} // namespace

int main() {
    auto *a = new weir_torch::Allocator;
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    weir_torch::the_allocator = a;
    a->init(1);
    a->raw_delete(a->raw_alloc_with_stream(1000, nullptr));
    MUST(has(thrown_by([&] { a->raw_delete(reinterpret_cast<void *>(4096)); }),
             "invalid device pointer"));
    MUST(has(thrown_by([&] { a->raw_alloc_with_stream(size_t(1) << 40, nullptr); }),
             "CUDA out of memory. Tried to allocate 1024.00 GiB"));
    limits(a);
    check_torch_pools(a);
    events(a);
    MUST(weir_torch_try() == 0);
    fflush(stdout);
    std::_Exit(0); // without PyTorch's destructors
}
