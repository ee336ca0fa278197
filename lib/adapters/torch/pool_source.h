// SPDX-License-Identifier: MIT
// pool_source.h: a pool's own allocator, from which weir takes the pool's segments, and the filter of a pool's route.
//
// Include errors.h and versions.h before.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>

#include <weir/tensors.h>

namespace weir_torch {

using Filter = std::function<bool(cudaStream_t)>;
using Source = std::shared_ptr<cca::CUDAAllocator>;

inline int takes(void *context, weir_stream stream) {
    auto *filter = static_cast<Filter *>(context);
    return guarded([&] { return (*filter)(reinterpret_cast<cudaStream_t>(stream)); });
}

// Its owner keeps it.
inline Source borrowed(cca::CUDAAllocator *own) {
    return {own, [](cca::CUDAAllocator *) {}};
}

inline void *source_alloc(void *context, size_t bytes) {
    auto &own = *static_cast<Source *>(context);
    return guarded([&] { return own->raw_alloc(bytes); });
}
inline void source_free(void *context, void *segment) {
    auto &own = *static_cast<Source *>(context);
    guarded([&] { own->raw_delete(segment); });
}
inline void source_end(void *context) {
    delete static_cast<Source *>(context);
}

// Makes a pool, or counts one user more.
inline void open_pool(weir_tensors *tensors, MempoolId_t id, Source own) {
    weir_tensors_source source = {nullptr, source_alloc, source_free, source_end};
    if (own)
        source.context = new Source(std::move(own));
    check(weir_tensors_pool_open(tensors, id_to(id), source.context ? &source : nullptr),
          "memory pool");
}

} // namespace weir_torch
