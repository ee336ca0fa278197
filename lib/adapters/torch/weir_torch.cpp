// SPDX-License-Identifier: MIT
// weir_torch.cpp: PyTorch's allocator interface (c10::cuda::CUDACachingAllocator::CUDAAllocator) over weir/tensors.h.
//
// Each method translates: PyTorch's types into weir's, and weir's statuses into PyTorch's errors.  Blocks and pools are
// in libweir.  Compiled on the user's machine against the headers of the installed PyTorch.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>

#include <weir/weir.h>

// Newer versions have the settings by their old names, too, which older versions have alone.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// The next ones need these two.
#include "errors.h"
#include "versions.h"

#include "history.h"
#include "oom_text.h"
#include "pool_source.h"
#include "sharing.h"
#include "snapshot.h"

namespace weir_torch {

using c10::DataPtr;
using c10::DeviceIndex;

constexpr size_t UNIT = 512; // what PyTorch rounds sizes to

void raw_free(void *block);

// The context of a device's hooks; one for each device, never freed.
struct Device {
    int number;
    History *history;
};

void on_event(void *context, const weir_tensors_event *event) {
    auto *device = static_cast<Device *>(context);
    guarded([&] { device->history->event(device->number, *event); });
}

void on_drop(void *, void *note) {
    delete static_cast<Context *>(note);
}

// The next size up that PYTORCH_ALLOC_CONF's roundup_power2_divisions asks for.
size_t divided(size_t bytes, size_t divisions) {
    size_t floor = size_t(1) << (63 - __builtin_clzll(bytes));
    if (floor == bytes)
        return bytes;
    size_t step = floor >> (63 - __builtin_clzll(divisions));
    return step == 0 ? floor << 1 : (bytes + step - 1) / step * step;
}

size_t rounded(size_t bytes) {
    if (bytes < UNIT)
        return UNIT;
    size_t divisions = cca::CUDAAllocatorConfig::roundup_power2_divisions(bytes);
    return divisions > 1 && bytes > UNIT * divisions ? divided(bytes, divisions)
                                                     : (bytes + UNIT - 1) / UNIT * UNIT;
}

struct State final : cca::AllocatorState {
    explicit State(weir_tensors_state *state_) : state(state_) {
    }
    State(const State &) = delete;
    State &operator=(const State &) = delete;
    ~State() override {
        weir_tensors_state_destroy(state);
    }
    weir_tensors_state *state;
};

// While caching is turned off, each block is one cudaMalloc.
void *uncached_alloc(size_t bytes) {
    void *block = nullptr;
    if (bytes > 0)
        C10_CUDA_CHECK(cudaMalloc(&block, bytes));
    return block;
}
void uncached_free(void *block) {
    C10_CUDA_CHECK(cudaFree(block));
}

class Allocator final : public Interface {
  public:
    // ---- requests ----

    DataPtr allocate(size_t bytes) override {
        TORCH_CHECK_WITH(OutOfMemoryError, bytes < (size_t(1) << 60),
                         "CUDA out of memory. Tried to allocate more than 1EB memory.");
        DeviceIndex device = current();
        c10::Device place(c10::DeviceType::CUDA, device);
        void *block = nullptr;
        if (C10_UNLIKELY(!isEnabled())) {
            block = uncached_alloc(bytes);
            return {block, block, &uncached_free, place};
        }
        if (bytes > 0)
            block = serve(device, bytes, c10::cuda::getCurrentCUDAStream(device));
        return {block, block, &raw_free, place};
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return isEnabled() ? &raw_free : &uncached_free;
    }
    void *raw_alloc(size_t bytes) override {
        if (bytes == 0 || !isEnabled())
            return uncached_alloc(bytes);
        DeviceIndex device = current();
        return serve(device, bytes, c10::cuda::getCurrentCUDAStream(device));
    }
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
        if (bytes == 0 || !isEnabled())
            return uncached_alloc(bytes);
        return serve(current(), bytes, stream, 0);
    }
    void raw_delete(void *block) override {
        if (isEnabled())
            release(block);
        else
            uncached_free(block);
    }
    void copy_data(void *to, const void *from, std::size_t bytes) const override {
        C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
    }

    void release(void *block) {
        if (!block)
            return;
        std::optional<FreeContext> context;
        if (C10_UNLIKELY(history.is_recording()))
            context.emplace(history.gather(cca::RecordContext::ALL));
        weir_tensors *tensors = nullptr;
        weir_tensors_block found;
        bool is_reported =
            c10::memoryProfilingEnabled() && weir_tensors_find(block, &tensors, &found) == WEIR_OK;
        const auto *trace = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(trace))
            (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
        weir_status status = weir_tensors_free(block);
        rethrow();
        // As the process ends the device may have gone before its tensors.
        if (C10_UNLIKELY(status != WEIR_OK && status != WEIR_E_DEVICE_LOST &&
                         status != WEIR_E_FORKED)) {
            TORCH_CHECK(status != WEIR_E_NOT_OWNED, "invalid device pointer: ", block);
            check(status, "free");
        }
        if (is_reported)
            report(tensors, block, -static_cast<int64_t>(found.bytes));
    }

    // ---- set-up ----

    void init(int count) override {
        std::lock_guard<std::mutex> guard(mutex);
        for (int device = static_cast<int>(places.size()); device < count; device++) {
            places.push_back({device, &history});
            fractions.push_back(1.0);
        }
        history.open(places.size());
        is_alone.store(places.size() == 1 && c10::cuda::device_count() == 1);
        is_initialized.store(true);
#if WEIR_TORCH_VERSION >= 211
        double fraction = cca::CUDAAllocatorConfig::per_process_memory_fraction();
        if (fraction < 1)
            for (int device = 0; device < count; device++)
                limit(static_cast<DeviceIndex>(device), fraction);
#endif
    }
    bool initialized() override {
        return is_initialized.load();
    }
    void enable(bool on) override {
        caches.store(on);
    }
    bool isEnabled() const override {
        return caches.load(std::memory_order_relaxed);
    }
    std::string name() override {
        return "native";
    }

    double getMemoryFraction(DeviceIndex device) override {
        (void)at(device);
        std::lock_guard<std::mutex> guard(mutex);
        return fractions[static_cast<size_t>(device)];
    }
    void setMemoryFraction(double fraction, DeviceIndex device) override {
        TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                    ". Please set within [0, 1].");
        (void)at(device);
        std::lock_guard<std::mutex> guard(mutex);
        limit(device, fraction);
    }
#if WEIR_TORCH_VERSION >= 210
    std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
        return {}; // weir's memory is not divided among streams
    }
#endif

    void emptyCache(MempoolId_t id = {0, 0}) override {
        FreeContext context(history.gather(cca::RecordContext::ALL));
        for (size_t device = 0; device < places.size(); device++)
            if (weir_tensors *tensors = opened(device))
                check(weir_tensors_trim(tensors, id_to(id)), "empty_cache");
    }
    void cacheInfo(DeviceIndex device, size_t *largest) override {
        // What a library may take for its workspace: what the device has free, and what is idle here.
        c10::cuda::CUDAGuard guard(device);
        size_t free_bytes = 0, total = 0;
        auto figures = figures_of(at(device));
        C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
        auto idle = figures.reserved_bytes[0].current - figures.active_bytes[0].current;
        *largest =
            std::max({*largest, free_bytes, static_cast<size_t>(std::max<int64_t>(idle, 0))});
    }

    // ---- blocks ----

    void *getBaseAllocation(void *block, size_t *bytes) override {
        weir_tensors *tensors;
        auto found = find(block, &tensors);
        if (bytes)
            *bytes = found.segment_bytes;
        return reinterpret_cast<void *>(found.segment);
    }
    void recordStream(const DataPtr &data, c10::cuda::CUDAStream stream) override {
        // Memory of others, as of tensors that came from another process, is not weir's to keep.
        if (!data.get() || data.get_deleter() != &raw_free)
            return;
        check(weir_tensors_use(data.get(), reinterpret_cast<weir_stream>(stream.stream())),
              "record_stream");
    }
    cca::ShareableHandle shareIpcHandle(void *block) override {
        weir_tensors *tensors;
        (void)find(block, &tensors);
        return share(block);
    }
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
        return opened_memory.get(std::move(handle));
    }
    void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
        c10::cuda::CUDAGuard guard(device);
        cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else
            C10_CUDA_CHECK(error);
        weir_status status =
            weir_set_access(weir_tensors_allocator(at(to)), device, WEIR_ACCESS_READ_WRITE);
        if (status != WEIR_E_NOT_SUPPORTED) // memory of cuMemAlloc needs no more
            check(status, "peer access");
    }
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool p2p) override {
        return p2p || to_device == from_device
                   ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
                   : cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    }

    // ---- figures ----

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
        auto f = figures_of(at(device));
        c10::CachingDeviceAllocator::DeviceStats stats;
        put(stats.allocation, f.allocation);
        put(stats.segment, f.segment);
        put(stats.active, f.active);
        put(stats.inactive_split, f.inactive_split);
        put(stats.allocated_bytes, f.allocated_bytes);
        put(stats.reserved_bytes, f.reserved_bytes);
        put(stats.active_bytes, f.active_bytes);
        put(stats.inactive_split_bytes, f.inactive_split_bytes);
        put(stats.requested_bytes, f.requested_bytes);
        stats.num_alloc_retries = static_cast<int64_t>(f.retries);
        stats.num_ooms = static_cast<int64_t>(f.ooms);
#if WEIR_TORCH_VERSION >= 212
        stats.num_oom_rejections = rejections_of[static_cast<size_t>(device)].load();
        stats.num_ooms -= stats.num_oom_rejections;
#endif
#if WEIR_TORCH_VERSION >= 213
        check(weir_tensors_pools(at(device), put_pool, &stats), "statistics of pools");
#endif
        stats.num_device_alloc = static_cast<int64_t>(f.device_allocs);
        stats.num_device_free = static_cast<int64_t>(f.device_frees);
        stats.max_split_size = static_cast<int64_t>(cca::CUDAAllocatorConfig::max_split_size());
        return stats;
    }
    void resetAccumulatedStats(DeviceIndex device) override {
        check(weir_tensors_reset_sums(at(device)), "reset of statistics");
        rejections_of[static_cast<size_t>(device)].store(0);
    }
    void resetPeakStats(DeviceIndex device) override {
        check(weir_tensors_reset_peaks(at(device)), "reset of peaks");
    }
#if WEIR_TORCH_VERSION >= 211
    cca::SnapshotInfo snapshot(MempoolId_t id, bool with_traces) override {
#else
    cca::SnapshotInfo snapshot(MempoolId_t id) override {
        bool with_traces = true;
#endif
        cca::SnapshotInfo out{};
        Listing listing{&out.segments,
                        0,
                        records_stacks.load(),
                        cca::CUDAAllocatorConfig::expandable_segments(),
                        0,
                        false};
        for (size_t device = 0; device < places.size(); device++)
            if (weir_tensors *tensors = opened(device)) {
                listing.device = static_cast<DeviceIndex>(device);
                check(weir_tensors_visit(tensors, id_to(id), list, &listing), "snapshot");
            }
        std::sort(out.segments.begin(), out.segments.end(),
                  [](const auto &a, const auto &b) { return a.address < b.address; });
        history.read(out, with_traces);
        describe(out.config_metadata);
        return out;
    }

    // ---- history ----

    bool isHistoryEnabled() override {
        return history.is_recording();
    }
#if WEIR_TORCH_VERSION >= 211
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most, cca::RecordContext when,
                       bool clears, const std::vector<std::string> &skips) override {
#else
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most, cca::RecordContext when,
                       bool clears) override {
        std::vector<std::string> skips;
#endif
        TORCH_CHECK(when == cca::RecordContext::NEVER || recorder);
        history.set(on, recorder, most, when, clears, skips);
        watch();
        records_stacks.store(on && when != cca::RecordContext::NEVER);
    }
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &pairs) override {
        DeviceIndex device = 0;
        if (c10::cuda::GetDevice(&device) == cudaSuccess)
            history.annotate(pairs, device);
    }
    void pushCompileContext(std::string &text) override {
        compile_contexts.push_back(text);
    }
    void popCompileContext() override {
        if (!compile_contexts.empty())
            compile_contexts.pop_back();
    }
#if WEIR_TORCH_VERSION >= 210
    void setUserMetadata(const std::string &text) override {
        user_metadata = text;
    }
    std::string getUserMetadata() override {
        return user_metadata;
    }
#endif
#if WEIR_TORCH_VERSION >= 212
    std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *block) override {
        weir_tensors *tensors;
        weir_tensors_block found;
        bool has_context = weir_tensors_find(block, &tensors, &found) == WEIR_OK && found.note;
        return has_context ? *static_cast<Context *>(found.note) : nullptr;
    }
    void attachOomRejectionObserver(cca::OomRejectionObserver observer) override {
        std::lock_guard<std::mutex> guard(mutex);
        rejection_observers.push_back(std::move(observer));
    }
#endif
#if WEIR_TORCH_VERSION >= 214
    bool supportsUserMetadata() override {
        return true;
    }
    void annotateMemory(const void *block, const std::string &text) override {
        weir_tensors *tensors;
        weir_tensors_block found;
        TORCH_CHECK(weir_tensors_find(block, &tensors, &found) == WEIR_OK,
                    "annotateMemory: no live allocation found at pointer ", block);
        history.annotate_block(device_of(tensors), found, text);
    }
#endif
    void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
        std::lock_guard<std::mutex> guard(mutex);
        observers.push_back(std::move(observer));
    }
    void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
        history.add_tracker(std::move(tracker));
        watch();
    }

    // ---- private pools ----

#if WEIR_TORCH_VERSION >= 211
    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, Source own) override {
#else
    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, cca::CUDAAllocator *lent) override {
        Source own = borrowed(lent);
#endif
        open_pool(at(device), id, std::move(own));
    }
    void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                             std::function<bool(cudaStream_t)> filter) override {
        auto context = std::make_unique<Filter>(std::move(filter));
        weir_tensors *tensors = at(device);
        open_pool(tensors, id, borrowed(active_allocator(id)));
        weir_status status = weir_tensors_begin(tensors, id_to(id), takes, context.get());
        if (status != WEIR_OK)
            (void)weir_tensors_pool_close(tensors, id_to(id));
        TORCH_CHECK(status != WEIR_E_BUSY, "beginAllocateToPool: already recording to mempool_id");
        check(status, "beginAllocateToPool");
        (void)context.release();
    }
    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
        void *context = nullptr;
        weir_status status = weir_tensors_end(at(device), id_to(id), &context);
        TORCH_CHECK(status != WEIR_E_NOT_OWNED,
                    "endAllocatePool: not currently recording to mempool_id");
        check(status, "endAllocateToPool");
        delete static_cast<Filter *>(context);
    }
    void releasePool(DeviceIndex device, MempoolId_t id) override {
        check(weir_tensors_pool_close(at(device), id_to(id)), "releasePool");
    }
    int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
        int users = 0;
        weir_status status = weir_tensors_pool_users(at(device), id_to(id), &users);
        if (status != WEIR_E_NOT_OWNED)
            check(status, "getPoolUseCount");
        return users;
    }
#if WEIR_TORCH_VERSION >= 211
    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool on) override {
#else
    void setUseOnOOM(DeviceIndex device, MempoolId_t id) override {
        bool on = true;
#endif
        weir_status status = weir_tensors_pool_lend(at(device), id_to(id), on);
        if (on || status != WEIR_E_NOT_OWNED) // a MemPool that ends may have gone already
            check(status, "setUseOnOOM");
    }
#if WEIR_TORCH_VERSION >= 210
    void setNoSplit(DeviceIndex device, MempoolId_t id) override {
        check(weir_tensors_pool_whole(at(device), id_to(id)), "setNoSplit");
    }
#endif
    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                  const std::unordered_set<void *> &expected) override {
        std::vector<void *> blocks(expected.begin(), expected.end());
        int same = 0;
        weir_status status =
            weir_tensors_pool_is(at(device), id_to(id), blocks.data(), blocks.size(), &same);
        TORCH_CHECK(status != WEIR_E_NOT_OWNED, "Could not find pool of id");
        check(status, "checkPoolLiveAllocations");
        return same != 0;
    }
    std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device,
                                                            MempoolId_t id) override {
        weir_tensors_state *state = nullptr;
        check(weir_tensors_save(at(device), id_to(id), &state), "getCheckpointState");
        return std::make_shared<State>(state);
    }
    cca::CheckpointDelta
    setCheckpointPoolState(DeviceIndex device,
                           std::shared_ptr<cca::AllocatorState> saved) override {
        struct Change {
            cca::CheckpointDelta delta;
            c10::Device place;
        } change{{}, c10::Device(c10::DeviceType::CUDA, device)};
        auto *state = dynamic_cast<State *>(saved.get());
        TORCH_CHECK(state, "setCheckpointPoolState: the state is another allocator's");
        check(weir_tensors_restore(
                  at(device), state->state,
                  [](void *context, void *block) {
                      static_cast<Change *>(context)->delta.ptrs_freed.push_back(block);
                  },
                  [](void *context, void *block) {
                      auto *c = static_cast<Change *>(context);
                      c->delta.dataptrs_allocd.emplace_back(block, block, &raw_free, c->place);
                  },
                  &change),
              "setCheckpointPoolState");
        return std::move(change.delta);
    }

  private:
    // ---- devices ----

    DeviceIndex current() const {
        DeviceIndex device = 0;
        if (C10_LIKELY(is_alone.load(std::memory_order_relaxed)))
            return device; // the runtime takes a lock to say so
        cudaError_t error = c10::cuda::GetDevice(&device);
        if (C10_UNLIKELY(error != cudaSuccess))
            C10_CUDA_CHECK(error);
        return device;
    }
    weir_tensors *opened(size_t device) const {
        return device < MOST ? tensors_of[device].load(std::memory_order_acquire) : nullptr;
    }
    C10_NOINLINE weir_tensors *open(DeviceIndex device) {
        TORCH_CHECK(0 <= device && static_cast<size_t>(device) < places.size(),
                    "Invalid device argument ", static_cast<int>(device), ": did you call init?");
        std::lock_guard<std::mutex> guard(mutex);
        return open_locked(device);
    }
    weir_tensors *open_locked(DeviceIndex device) {
        weir_tensors_hooks hooks = {&places[static_cast<size_t>(device)], on_event, on_drop};
        weir_tensors *tensors = nullptr;
        weir_status status = weir_tensors_open(device, &hooks, &tensors);
        TORCH_CHECK(status == WEIR_OK, "weir: device ", static_cast<int>(device), ": ",
                    weir_status_message(status));
        tensors_of[static_cast<size_t>(device)].store(tensors, std::memory_order_release);
        watch();
        return tensors;
    }
    DeviceIndex device_of(const weir_tensors *tensors) const {
        DeviceIndex device = 0;
        for (size_t i = 0; i < places.size(); i++)
            if (opened(i) == tensors)
                device = static_cast<DeviceIndex>(i);
        return device;
    }
    // Each device's events come as long as somebody wants to know them.
    void watch() {
        for (size_t device = 0; device < places.size(); device++)
            if (weir_tensors *tensors = opened(device))
                check(weir_tensors_watch(tensors, history.is_watched()), "history");
    }
    weir_tensors *at(DeviceIndex device) {
        weir_tensors *tensors = opened(static_cast<size_t>(device));
        return C10_LIKELY(tensors != nullptr) ? tensors : open(device);
    }
    // Under the mutex.
    void limit(DeviceIndex device, double fraction) {
        weir_amount amount = {static_cast<uint64_t>(fraction * 1e6), WEIR_AMOUNT_OF_TOTAL, 0};
        if (fraction == 1) // as without one
            amount.kind = WEIR_AMOUNT_MAX;
        weir_tensors *tensors = opened(static_cast<size_t>(device));
        check(
            weir_set_limit(weir_tensors_allocator(tensors ? tensors : open_locked(device)), amount),
            "memory fraction");
        fractions[static_cast<size_t>(device)] = fraction;
    }
    static weir_tensors_figures figures_of(weir_tensors *tensors) {
        weir_tensors_figures figures;
        std::memset(&figures, 0, sizeof figures);
        figures.size = sizeof figures;
        check(weir_tensors_stats(tensors, &figures), "statistics");
        return figures;
    }
    static weir_tensors_block find(void *block, weir_tensors **tensors) {
        weir_tensors_block found;
        TORCH_CHECK(weir_tensors_find(block, tensors, &found) == WEIR_OK,
                    "invalid device pointer: ", block);
        return found;
    }

    // ---- requests ----

    // Streams of PyTorch's own pools, and the default stream, are never destroyed.
    void *serve(DeviceIndex device, size_t bytes, c10::cuda::CUDAStream stream) {
        if (C10_LIKELY(stream.id() == 0)) // the default stream
            return serve(device, bytes, nullptr, 1);
        return serve(device, bytes, stream.stream(), stream.id() & 1);
    }
    void *serve(DeviceIndex device, size_t bytes, cudaStream_t stream, int lasts) {
        weir_tensors *tensors = at(device);
        size_t size = rounded(bytes);
        std::unique_ptr<Context> note;
        void *block = nullptr;
        if (C10_UNLIKELY(history.is_recording()))
            if (auto context = history.gather(cca::RecordContext::STATE))
                note = std::make_unique<Context>(std::move(context));
        auto ask = [&] {
            weir_status answer =
                weir_tensors_alloc(tensors, size, bytes, reinterpret_cast<weir_stream>(stream),
                                   lasts, note.get(), &block);
            if (is_thrown()) {
                if (answer == WEIR_OK) {
                    (void)note.release();
                    (void)weir_tensors_free(block);
                }
                rethrow();
            }
            return answer;
        };
        weir_status status = ask();
        if (C10_UNLIKELY(status != WEIR_OK)) {
            if (is_failure(status) && free_elsewhere())
                status = ask();
            if (status != WEIR_OK)
                refuse(device, tensors, size, status);
        }
        (void)note.release(); // the block's now
        if (C10_UNLIKELY(c10::memoryProfilingEnabled()))
            report(tensors, block, static_cast<int64_t>(size));
        const auto *trace = c10::impl::GPUTrace::get_trace();
        if (C10_UNLIKELY(trace))
            (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
        return block;
    }
    static bool is_failure(weir_status status) {
        return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
    }
    // Others in the process that hold memory back.
    static bool free_elsewhere() {
        bool freed = false;
        for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        return freed;
    }
    void report(weir_tensors *tensors, void *block, int64_t bytes) {
        auto f = figures_of(tensors);
        c10::reportMemoryUsageToProfiler(block, bytes,
                                         static_cast<size_t>(f.allocated_bytes[0].current),
                                         static_cast<size_t>(f.reserved_bytes[0].current),
                                         c10::Device(c10::DeviceType::CUDA, device_of(tensors)));
    }
    [[noreturn]] C10_NOINLINE void refuse(DeviceIndex device, weir_tensors *tensors, size_t bytes,
                                          weir_status status) {
        TORCH_CHECK(is_failure(status), "weir: request of ", format_size(bytes), ": ",
                    weir_status_message(status));
        std::string advice = advice_on(weir_tensors_allocator(tensors));
        auto f = figures_of(tensors);
        size_t free_bytes = 0, total = 0;
        c10::cuda::CUDAGuard guard(device);
        (void)cudaMemGetInfo(&free_bytes, &total);
        std::unique_lock<std::mutex> lock(mutex);
        auto told = observers;
#if WEIR_TORCH_VERSION >= 212
        auto told_rejections = rejection_observers;
#endif
        double fraction = fractions[static_cast<size_t>(device)];
        lock.unlock();
        size_t allowed = static_cast<size_t>(static_cast<double>(total) * fraction);
#if WEIR_TORCH_VERSION >= 212
        // A request beyond the fraction, which the driver has not seen, is rejected in other words.
        double policy = cca::CUDAAllocatorConfig::per_process_memory_fraction();
        auto reserves = static_cast<size_t>(f.reserved_bytes[0].current);
        if (status == WEIR_E_LIMIT && cca::CUDAAllocatorConfig::throw_on_cudamalloc_oom() &&
            policy < 1 &&
            static_cast<double>(reserves + bytes) > static_cast<double>(total) * policy) {
            rejections_of[static_cast<size_t>(device)]++;
            for (const auto &observer : told_rejections)
                observer(device, bytes, reserves, total);
            TORCH_CHECK_WITH(OutOfMemoryError, false,
                             "CUDA out of memory. Allocation was preemptively rejected because it "
                             "would exceed per_process_memory_fraction limit. Requested size: ",
                             format_size(bytes), with_fraction(advice));
        }
#endif
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes),
                                         static_cast<size_t>(f.allocated_bytes[0].current),
                                         static_cast<size_t>(f.reserved_bytes[0].current),
                                         c10::Device(c10::DeviceType::CUDA, device));
        for (const auto &observer : told)
            observer(device, static_cast<int64_t>(bytes), allowed, free_bytes);
        auto allocated = static_cast<uint64_t>(f.allocated_bytes[0].current);
        auto reserved = static_cast<uint64_t>(f.reserved_bytes[0].current);
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(bytes),
            ". GPU ", static_cast<int>(device), " has a total capacity of ", format_size(total),
            " of which ", format_size(free_bytes), " is free. ",
            fraction < 1 ? format_size(allowed) + " allowed; " : std::string(),
            "Of the allocated memory ", format_size(allocated), " is allocated by PyTorch, and ",
            format_size(reserved > allocated ? reserved - allocated : 0),
            " is reserved by PyTorch but unallocated.",
            fraction < 1 ? with_fraction(advice) : advice);
    }

    // ---- figures ----

    static_assert(static_cast<int>(StatType::AGGREGATE) == 0 &&
                      static_cast<int>(StatType::SMALL_POOL) == 1 &&
                      static_cast<int>(StatType::LARGE_POOL) == 2,
                  "as in weir_tensors_figures");
    template <class Array> static void put(Array &to, const weir_tensors_figure from[3]) {
        for (size_t i = 0; i < 3; i++) {
            to[i].current = from[i].current;
            to[i].peak = from[i].peak;
            to[i].allocated = from[i].allocated;
            to[i].freed = from[i].freed;
        }
    }

#if WEIR_TORCH_VERSION >= 213
    static void put_pool(void *context, weir_tensors_id id, const weir_tensors_figure bytes[3]) {
        auto *stats = static_cast<c10::CachingDeviceAllocator::DeviceStats *>(context);
        guarded([&] { put(stats->reserved_bytes_by_private_pools[id_from(id)], bytes); });
    }
#endif

    static constexpr size_t MOST = 64;
    std::atomic<weir_tensors *> tensors_of[MOST] = {};
    std::atomic<bool> is_initialized{false}, is_alone{false}, caches{true}, records_stacks{false};
    std::mutex mutex;
    std::deque<Device> places;
    std::vector<double> fractions;
    std::vector<cca::OutOfMemoryObserver> observers;
    std::atomic<int64_t> rejections_of[MOST] = {};
#if WEIR_TORCH_VERSION >= 212
    std::vector<cca::OomRejectionObserver> rejection_observers;
#endif
    History history;
    OpenedMemory opened_memory;
};

Allocator *the_allocator; // never destroyed: tensors may outlive static objects

void raw_free(void *block) {
    the_allocator->release(block);
}

} // namespace weir_torch

// The build script calls this.  0: an OutOfMemoryError thrown here is caught, and its text is complete.
extern "C" int weir_torch_try(void) {
    try {
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", 1, " byte");
    } catch (const c10::OutOfMemoryError &error) {
        return std::string(error.what()).find("memory. 1 byte") == std::string::npos;
    }
    return 1;
}

// NULL: weir is PyTorch's allocator.  Else why it is not.
extern "C" const char *weir_torch_install(void) {
    namespace cca = c10::cuda::CUDACachingAllocator;
    constexpr auto cuda = c10::DeviceType::CUDA;
    auto *own = cca::get();

    if (weir_torch::the_allocator && own == weir_torch::the_allocator)
        return nullptr;
    if (!own || own->name() != "native")
        return "PyTorch has another allocator";
    if (own->initialized())
        return "PyTorch's allocator is in use";
    if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"))
        return "PYTORCH_NO_CUDA_MEMORY_CACHING is set";
    weir_torch::the_allocator = new weir_torch::Allocator;
    cca::allocator.store(weir_torch::the_allocator);
    // Newer versions register their own with a priority, below which nothing replaces it.
    for (int priority = 0; priority < 256 && c10::GetAllocator(cuda) != weir_torch::the_allocator;
         priority++)
        c10::SetAllocator(cuda, weir_torch::the_allocator, static_cast<uint8_t>(priority));
    return nullptr;
}
