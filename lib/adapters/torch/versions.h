// SPDX-License-Identifier: MIT
// versions.h: which PyTorch this is (2.6 or later), and what old ones lack or name otherwise, in the form of new ones.
//
// Below, a method of weir_torch.cpp asks for the version only if newer ones changed its parameters.
#pragma once

#include <memory>
#include <string>
#include <utility>

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

// The namespaces of these types differ among versions.
using MempoolId_t = decltype(cca::SegmentInfo::owner_private_pool_id);
using c10::CachingDeviceAllocator::StatType;

inline MempoolId_t id_from(weir_tensors_id id) {
    return {id.first, id.second};
}
inline weir_tensors_id id_to(MempoolId_t id) {
    return {id.first, id.second};
}

// Events of weir have PyTorch's numbers.
using Entry = cca::TraceEntry;
static_assert(int(Entry::ALLOC) == WEIR_TENSORS_ALLOC && int(Entry::FREE_REQUESTED) == 1 &&
                  int(Entry::FREE_COMPLETED) == WEIR_TENSORS_FREE_COMPLETED &&
                  int(Entry::SEGMENT_ALLOC) == 3 && int(Entry::SEGMENT_FREE) == 4 &&
                  int(Entry::SEGMENT_MAP) == 5 && int(Entry::SEGMENT_UNMAP) == 6 &&
                  int(Entry::OOM) == WEIR_TENSORS_OOM,
              "as in weir_tensors_event");

// The parts of an event that only newer versions have.
struct EventTags {
    MempoolId_t pool;
    std::string compile_context, user_metadata;
};

inline Entry trace_entry(Entry::Action action, c10::DeviceIndex device, size_t address,
                         size_t bytes, cudaStream_t stream,
                         std::shared_ptr<c10::GatheredContext> context, EventTags tags) {
    auto time = c10::getApproximateTime();
#if WEIR_TORCH_VERSION >= 210
    return Entry(action, device, address, bytes, stream, tags.pool, time, std::move(context),
                 std::move(tags.compile_context), std::move(tags.user_metadata));
#elif WEIR_TORCH_VERSION >= 208
    return Entry(action, device, address, bytes, stream, tags.pool, time, std::move(context),
                 std::move(tags.compile_context));
#else
    (void)tags;
    return Entry(action, device, address, bytes, stream, time, std::move(context));
#endif
}

#if WEIR_TORCH_VERSION >= 208
using Interface = cca::CUDAAllocator;
inline cca::CUDAAllocator *active_allocator(MempoolId_t) {
    return nullptr; // a pool has it from the start
}
#else
// PyTorch 2.6 and 2.7 have a MemPoolContext for each thread.  It names the pool of a snapshot and of empty_cache, and the
// allocator of the pool.
inline MempoolId_t active_pool() {
    auto *pool = c10::cuda::MemPoolContext::getActiveMemPool();
    return pool ? pool->id() : MempoolId_t{0, 0};
}
inline cca::CUDAAllocator *active_allocator(MempoolId_t id) {
    auto *pool = c10::cuda::MemPoolContext::getActiveMemPool();
    return pool && pool->id() == id ? pool->allocator() : nullptr;
}

// The interface of 2.6 and 2.7 in the form of 2.8.  PyTorch calls none of those that have no `final' below.
class Interface : public cca::CUDAAllocator {
  public:
    virtual void emptyCache(MempoolId_t id) = 0;
    void emptyCache() final {
        emptyCache(active_pool());
    }
    virtual cca::SnapshotInfo snapshot(MempoolId_t id) = 0;
    cca::SnapshotInfo snapshot() final {
        return snapshot(active_pool());
    }
    virtual void recordHistory(bool on, cca::CreateContextFn recorder, size_t most,
                               cca::RecordContext when, bool clears) = 0;
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most,
                       cca::RecordContext when) final {
        recordHistory(on, recorder, most, when, false);
    }
    virtual void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id,
                                    cca::CUDAAllocator *own) = 0;
    void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t id) final {
        createOrIncrefPool(device, id, nullptr);
    }
    virtual void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id) = 0;
    virtual void pushCompileContext(std::string &text) = 0;
    virtual void popCompileContext() = 0;
};
#endif

} // namespace weir_torch
