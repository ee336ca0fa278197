// SPDX-License-Identifier: MIT
// versions.h: defines PyTorch's version, which must be 2.6 or later, and adapts the interface of older versions.  So
// weir_torch.cpp tests the version only where a newer PyTorch has more methods or more statistics.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <weir/tensors.h>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif
#define WEIR_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#if WEIR_TORCH_VERSION < 206
#error weir knows the allocator interface of PyTorch 2.6 and later, and this is an older version
#endif

namespace weir_torch {

namespace cca = c10::cuda::CUDACachingAllocator;

// The namespaces of these types differ among versions of PyTorch.
using MempoolId_t = decltype(cca::SegmentInfo::owner_private_pool_id);
using c10::CachingDeviceAllocator::StatType;

// The allocator that the program has chosen for a MemPool of PyTorch.
using Source = std::shared_ptr<cca::CUDAAllocator>;

inline MempoolId_t id_from(weir_tensors_id id) {
    return {id.first, id.second};
}
inline weir_tensors_id id_to(MempoolId_t id) {
    return {id.first, id.second};
}

// weir numbers the actions of its events as PyTorch does.
using Entry = cca::TraceEntry;
static_assert(int(Entry::ALLOC) == WEIR_TENSORS_ALLOC && int(Entry::FREE_REQUESTED) == 1 &&
                  int(Entry::FREE_COMPLETED) == WEIR_TENSORS_FREE_COMPLETED &&
                  int(Entry::SEGMENT_ALLOC) == 3 && int(Entry::SEGMENT_FREE) == 4 &&
                  int(Entry::SEGMENT_MAP) == 5 && int(Entry::SEGMENT_UNMAP) == 6 &&
                  int(Entry::OOM) == WEIR_TENSORS_OOM,
              "as in weir_tensors_event");

// Returns an event with the current time.  Older versions of PyTorch lack the pool, the compiled region or metadata.
inline Entry trace_entry(Entry::Action action, c10::DeviceIndex device, size_t address,
                         size_t bytes, cudaStream_t stream,
                         std::shared_ptr<c10::GatheredContext> context,
                         [[maybe_unused]] MempoolId_t pool,
                         [[maybe_unused]] std::string compile_context,
                         [[maybe_unused]] std::string metadata) {
    auto time = c10::getApproximateTime();
#if WEIR_TORCH_VERSION >= 210
    return Entry(action, device, address, bytes, stream, pool, time, std::move(context),
                 std::move(compile_context), std::move(metadata));
#elif WEIR_TORCH_VERSION >= 208
    return Entry(action, device, address, bytes, stream, pool, time, std::move(context),
                 std::move(compile_context));
#else
    return Entry(action, device, address, bytes, stream, time, std::move(context));
#endif
}

#if WEIR_TORCH_VERSION >= 211
using Interface = cca::CUDAAllocator;
#else
// The pointer does not own the allocator.  The pool that uses the allocator keeps the allocator alive.
inline Source borrowed(cca::CUDAAllocator *own) {
    return {own, [](cca::CUDAAllocator *) {}};
}
#if WEIR_TORCH_VERSION < 208
// Returns the MemPool that this thread has entered, or NULL.  Methods of PyTorch 2.6 and 2.7 have no pool parameter.
inline c10::cuda::MemPool *active_pool() {
    return c10::cuda::MemPoolContext::getActiveMemPool();
}
inline MempoolId_t active_id() {
    return active_pool() ? active_pool()->id() : MempoolId_t{0, 0};
}
#endif

// PyTorch 2.6 to 2.10 calls the `final` methods of this class, which call the methods of PyTorch 2.11.
class Interface : public cca::CUDAAllocator {
  public:
    virtual cca::SnapshotInfo snapshot(MempoolId_t id, bool with_traces) = 0;
    virtual void recordHistory(bool on, cca::CreateContextFn recorder, size_t most,
                               cca::RecordContext when, bool clears,
                               const std::vector<std::string> &skips) = 0;
    virtual void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, Source own) = 0;
    virtual void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id, bool on) = 0;
#if WEIR_TORCH_VERSION >= 208
    cca::SnapshotInfo snapshot(MempoolId_t id) final {
        return snapshot(id, true);
    }
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most, cca::RecordContext when,
                       bool clears) final {
        recordHistory(on, recorder, most, when, clears, {});
    }
    void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id,
                            cca::CUDAAllocator *own) final {
        createOrIncrefPool(device, id, borrowed(own));
    }
    void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id) final {
        setUseOnOOM(device, id, true);
    }
#else
    virtual void emptyCache(MempoolId_t id) = 0;
    void emptyCache() final {
        emptyCache(active_id());
    }
    cca::SnapshotInfo snapshot() final {
        return snapshot(active_id(), true);
    }
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most,
                       cca::RecordContext when) final {
        recordHistory(on, recorder, most, when, false, {});
    }
    void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t id) final {
        createOrIncrefPool(device, id, nullptr);
    }
    virtual void pushCompileContext(std::string &text) = 0;
    virtual void popCompileContext() = 0;
#endif
};
#endif

// Returns the allocator that the program has chosen for the MemPool in PyTorch 2.6 and 2.7.  Returns NULL in newer
// versions, where createOrIncrefPool has set the allocator.
inline Source active_source([[maybe_unused]] MempoolId_t id) {
#if WEIR_TORCH_VERSION < 208
    if (active_pool() && active_pool()->id() == id)
        return borrowed(active_pool()->allocator());
#endif
    return nullptr;
}

} // namespace weir_torch
