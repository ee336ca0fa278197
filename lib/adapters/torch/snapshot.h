// SPDX-License-Identifier: MIT
// snapshot.h: converts weir's blocks and PyTorch's settings to the form of PyTorch's snapshots.
//
// Include errors.h and history.h before this file.
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>

namespace weir_torch {

struct Listing {
    std::vector<cca::SegmentInfo> *segments;
    c10::DeviceIndex device;
    bool with_stacks, is_expandable;
    uint64_t segment; // the address of weir's segment that contains the last block
    bool has_stream;  // true if a live block has set the segment's stream
};

inline void add(Listing *listing, const weir_tensors_block *block) {
    auto &segments = *listing->segments;
    // In PyTorch, a segment contains only small or only large blocks of one stream.  So a new segment of PyTorch
    // begins where two neighbouring blocks of weir differ in size class or stream.
    bool is_large = block->is_free || block->bytes > WEIR_TENSORS_SMALL;
    bool has_stream = !block->is_free && !block->is_pending;
    auto stream = reinterpret_cast<cudaStream_t>(block->stream);
    if (segments.empty() || listing->segment != block->segment ||
        segments.back().is_large != is_large || segments.back().device != listing->device ||
        (has_stream && listing->has_stream && segments.back().stream != stream)) {
        cca::SegmentInfo segment;
        segment.device = listing->device;
        segment.address = block->address;
        segment.is_large = is_large;
        segment.owner_private_pool_id = id_from(block->pool);
        segment.is_expandable = listing->is_expandable;
        segments.push_back(std::move(segment));
        listing->segment = block->segment;
        listing->has_stream = false;
    }
    auto &segment = segments.back();
    if (has_stream) {
        segment.stream = stream;
        listing->has_stream = true;
    }
    segment.total_size += block->bytes;
    cca::BlockInfo info;
    info.size = block->bytes;
    info.requested_size = block->requested;
    info.allocated = !block->is_free && !block->is_pending;
    info.active = !block->is_free;
    if (block->note && listing->with_stacks)
        info.context_when_allocated = *static_cast<Context *>(block->note);
    if (info.active)
        segment.active_size += info.size;
    if (info.allocated) {
        segment.allocated_size += info.size;
        segment.requested_size += info.requested_size;
    }
    segment.blocks.push_back(std::move(info));
}

inline void list(void *context, const weir_tensors_block *block) {
    guarded([&] { add(static_cast<Listing *>(context), block); });
}

inline void describe(cca::AllocatorConfigInfo &out) {
    using Config = cca::CUDAAllocatorConfig;
    out.garbage_collection_threshold = Config::garbage_collection_threshold();
    out.max_split_size = Config::max_split_size();
    out.pinned_num_register_threads = Config::pinned_num_register_threads();
    out.expandable_segments = Config::expandable_segments();
    out.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
    out.pinned_use_host_register = Config::pinned_use_cuda_host_register();
    out.last_allocator_settings = Config::last_allocator_settings();
    out.roundup_power2_divisions = Config::roundup_power2_divisions();
#if WEIR_TORCH_VERSION >= 210
    out.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
#endif
#if WEIR_TORCH_VERSION >= 213
    using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
    out.max_round_threshold = Common::pinned_max_round_threshold();
    out.max_cached_size = Common::pinned_max_cached_size();
#endif
}

} // namespace weir_torch
