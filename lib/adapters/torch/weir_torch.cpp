// SPDX-License-Identifier: MIT
// weir_torch.cpp: implements PyTorch's allocator interface (CUDACachingAllocator::CUDAAllocator) by weir/tensors.h.
//
// Each method converts PyTorch's types to weir's types, and weir's statuses to PyTorch's errors.  libweir manages the
// blocks and pools.  This file is compiled on the user's machine, against the headers of the installed PyTorch.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <optional>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "versions.h"
#include "errors.h"
#include "history.h"
#include "sharing.h"
#include "snapshot.h"

// Newer versions of PyTorch deprecate the old names of the settings.  Older versions have only the old names.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace weir_torch {

using c10::DataPtr;
using c10::DeviceIndex;

constexpr size_t UNIT = 512; // PyTorch rounds sizes up to multiples of 512 bytes
constexpr size_t MOST = 64;  // the largest number of devices

void raw_free(void *block);

// ---- functions that weir calls ----

// The state of one device, which weir passes to the hooks of this file (weir_tensors_hooks).
struct Device {
    DeviceIndex number = 0;
    History *history = nullptr;
    std::atomic<weir_tensors *> tensors{nullptr};
    std::atomic<int64_t> rejections{0};
    double fraction = 1; // the part of the device's memory that PyTorch may use
};

void on_event(void *context, const weir_tensors_event *event) {
    auto *device = static_cast<Device *>(context);
    guarded([&] { device->history->event(device->number, *event); });
}

void on_drop(void *, void *note) {
    delete static_cast<Context *>(note);
}

using Filter = std::function<bool(cudaStream_t)>;

// Returns 1 if the pool allocates the blocks of the stream, else 0.  `context` is PyTorch's filter of streams.
int takes(void *context, weir_stream stream) {
    auto *filter = static_cast<Filter *>(context);
    return guarded([&] { return (*filter)(reinterpret_cast<cudaStream_t>(stream)); });
}

void *source_alloc(void *context, size_t bytes) {
    auto &own = *static_cast<Source *>(context);
    return guarded([&] { return own->raw_alloc(bytes); });
}
void source_free(void *context, void *segment) {
    auto &own = *static_cast<Source *>(context);
    guarded([&] { own->raw_delete(segment); });
}
void source_end(void *context) {
    delete static_cast<Source *>(context);
}

// Creates a private memory pool, or adds a user to the pool.  `own` is the program's allocator for the pool, or NULL.
void open_pool(weir_tensors *tensors, MempoolId_t id, Source own) {
    weir_tensors_source source = {nullptr, source_alloc, source_free, source_end};
    if (own)
        source.context = new Source(std::move(own));
    check(weir_tensors_pool_open(tensors, id_to(id), source.context ? &source : nullptr),
          "memory pool");
}

// ---- sizes ----

// Rounds up to a step, with `divisions` steps between two powers of two (roundup_power2_divisions).
size_t round_up_in_divisions(size_t bytes, size_t divisions) {
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
    return divisions > 1 && bytes > UNIT * divisions ? round_up_in_divisions(bytes, divisions)
                                                     : (bytes + UNIT - 1) / UNIT * UNIT;
}

struct State final : cca::AllocatorState {
    explicit State(weir_tensors_state *saved)
        : state(saved, [](weir_tensors_state *last) { weir_tensors_state_destroy(last); }) {
    }
    std::shared_ptr<weir_tensors_state> state;
};

// Allocates by cudaMalloc, while the program has turned PyTorch's caching off.
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
        c10::Device place(c10::kCUDA, device);
        void *block = nullptr;
        if (C10_UNLIKELY(!isEnabled())) {
            block = uncached_alloc(bytes);
            return {block, block, &uncached_free, place};
        }
        if (bytes > 0)
            block = allocate_on_stream(device, bytes, c10::cuda::getCurrentCUDAStream(device));
        return {block, block, &raw_free, place};
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return isEnabled() ? &raw_free : &uncached_free;
    }
    void *raw_alloc(size_t bytes) override {
        return allocate(bytes).release_context();
    }
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
        if (bytes == 0 || !isEnabled())
            return uncached_alloc(bytes);
        return allocate_on_stream(current(), bytes, stream, 0);
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
        // At the end of the process, the context may be destroyed before the tensors, so a lost device is no error.
        if (C10_UNLIKELY(status != WEIR_OK && status != WEIR_E_DEVICE_LOST &&
                         status != WEIR_E_FORKED)) {
            TORCH_CHECK(status != WEIR_E_NOT_OWNED, "invalid device pointer: ", block);
            check(status, "free");
        }
        if (is_reported)
            report(tensors, block, -static_cast<int64_t>(found.bytes));
    }

    // ---- set-up ----

    void init(int wanted) override {
        std::unique_lock<std::mutex> lock(mutex);
        size_t now = std::max(std::min(static_cast<size_t>(wanted), MOST), count.load());
        for (size_t device = count.load(); device < now; device++) {
            devices[device].number = static_cast<DeviceIndex>(device);
            devices[device].history = &history;
        }
        history.open(now);
        count.store(now);
        is_alone.store(now == 1 && c10::cuda::device_count() == 1);
        lock.unlock();
#if WEIR_TORCH_VERSION >= 211
        double fraction = cca::CUDAAllocatorConfig::per_process_memory_fraction();
        for (size_t device = 0; device < now && fraction < 1; device++)
            setMemoryFraction(fraction, static_cast<DeviceIndex>(device));
#endif
    }
    bool initialized() override {
        return count.load() > 0;
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
        return devices[static_cast<size_t>(device)].fraction;
    }
    void setMemoryFraction(double fraction, DeviceIndex device) override {
        TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                    ". Please set within [0, 1].");
        weir_amount amount = {static_cast<uint64_t>(fraction * 1e6), WEIR_AMOUNT_OF_TOTAL};
        if (fraction == 1)
            amount.kind = WEIR_AMOUNT_MAX;
        weir_allocator *allocator = weir_tensors_allocator(at(device));
        std::lock_guard<std::mutex> guard(mutex);
        check(weir_set_limit(allocator, amount), "memory fraction");
        devices[static_cast<size_t>(device)].fraction = fraction;
    }
#if WEIR_TORCH_VERSION >= 210
    std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
        return {}; // weir does not divide its memory among streams
    }
#endif

    void emptyCache(MempoolId_t id = {0, 0}) override {
        FreeContext context(history.gather(cca::RecordContext::ALL));
        for (auto &device : devices)
            if (weir_tensors *tensors = device.tensors.load())
                check(weir_tensors_trim(tensors, id_to(id)), "empty_cache");
    }
    void cacheInfo(DeviceIndex device, size_t *largest) override {
        // Raises *largest to the device's free bytes or to weir's idle bytes, since a workspace may use either memory.
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
        weir_tensors_block found;
        TORCH_CHECK(weir_tensors_find(block, &tensors, &found) == WEIR_OK,
                    "invalid device pointer: ", block);
        if (bytes)
            *bytes = found.segment_bytes;
        return reinterpret_cast<void *>(found.segment);
    }
    void recordStream(const DataPtr &data, c10::cuda::CUDAStream stream) override {
        // Memory of another allocator or another process needs no record in weir.
        if (!data.get() || data.get_deleter() != &raw_free)
            return;
        check(weir_tensors_use(data.get(), reinterpret_cast<weir_stream>(stream.stream())),
              "record_stream");
    }
    cca::ShareableHandle shareIpcHandle(void *block) override {
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
        // For memory of cuMemAlloc, the call of CUDA above has already given the access.
        if (status != WEIR_E_NOT_SUPPORTED)
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
        stats.num_oom_rejections = devices[static_cast<size_t>(device)].rejections.load();
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
        devices[static_cast<size_t>(device)].rejections.store(0);
    }
    void resetPeakStats(DeviceIndex device) override {
        check(weir_tensors_reset_peaks(at(device)), "reset of peaks");
    }
    cca::SnapshotInfo snapshot(MempoolId_t id, bool with_traces) override {
        cca::SnapshotInfo out{};
        bool is_expandable = cca::CUDAAllocatorConfig::expandable_segments();
        Listing listing{&out.segments, 0, records_stacks.load(), is_expandable, 0, false};
        for (auto &device : devices)
            if (weir_tensors *tensors = device.tensors.load()) {
                listing.device = device.number;
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
    void recordHistory(bool on, cca::CreateContextFn recorder, size_t most, cca::RecordContext when,
                       bool clears, const std::vector<std::string> &skips) override {
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

    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, Source own) override {
        open_pool(at(device), id, std::move(own));
    }
    void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                             std::function<bool(cudaStream_t)> filter) override {
        auto context = std::make_unique<Filter>(std::move(filter));
        weir_tensors *tensors = at(device);
        open_pool(tensors, id, active_source(id));
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
    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool on) override {
        weir_status status = weir_tensors_pool_lend(at(device), id_to(id), on);
        // PyTorch may destroy a MemPool after the end of the pool in weir.
        if (on || status != WEIR_E_NOT_OWNED)
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
        } change{{}, c10::Device(c10::kCUDA, device)};
        auto *state = dynamic_cast<State *>(saved.get());
        TORCH_CHECK(state, "setCheckpointPoolState: the state is another allocator's");
        check(weir_tensors_restore(
                  at(device), state->state.get(),
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
            return device; // avoids a lock of the CUDA runtime
        cudaError_t error = c10::cuda::GetDevice(&device);
        if (C10_UNLIKELY(error != cudaSuccess))
            C10_CUDA_CHECK(error);
        return device;
    }
    weir_tensors *opened(size_t device) const {
        return device < MOST ? devices[device].tensors.load(std::memory_order_acquire) : nullptr;
    }
    C10_NOINLINE weir_tensors *open(DeviceIndex device) {
        TORCH_CHECK(0 <= device && static_cast<size_t>(device) < count.load(),
                    "Invalid device argument ", static_cast<int>(device), ": did you call init?");
        std::lock_guard<std::mutex> guard(mutex);
        Device *context = &devices[static_cast<size_t>(device)];
        weir_tensors_hooks hooks = {context, on_event, on_drop};
        weir_tensors *tensors = nullptr;
        weir_status status = weir_tensors_open(device, &hooks, &tensors);
        TORCH_CHECK(status == WEIR_OK, "weir: device ", static_cast<int>(device), ": ",
                    weir_status_message(status));
        context->tensors.store(tensors, std::memory_order_release);
        watch();
        return tensors;
    }
    DeviceIndex device_of(const weir_tensors *tensors) const {
        for (const auto &device : devices)
            if (device.tensors.load() == tensors)
                return device.number;
        return 0;
    }
    // Turns events on if the program records or observes events, else off.
    void watch() {
        for (auto &device : devices)
            if (weir_tensors *tensors = device.tensors.load())
                check(weir_tensors_watch(tensors, history.is_watched()), "history");
    }
    weir_tensors *at(DeviceIndex device) {
        weir_tensors *tensors = opened(static_cast<size_t>(device));
        return C10_LIKELY(tensors != nullptr) ? tensors : open(device);
    }
    static weir_tensors_figures figures_of(weir_tensors *tensors) {
        weir_tensors_figures figures;
        std::memset(&figures, 0, sizeof figures);
        figures.size = sizeof figures;
        check(weir_tensors_stats(tensors, &figures), "statistics");
        return figures;
    }

    // ---- requests ----

    // PyTorch never destroys the default stream and the streams of its own pools, which have odd ids.
    void *allocate_on_stream(DeviceIndex device, size_t bytes, c10::cuda::CUDAStream stream) {
        if (C10_LIKELY(stream.id() == 0)) // the default stream
            return allocate_on_stream(device, bytes, nullptr, 1);
        return allocate_on_stream(device, bytes, stream.stream(), stream.id() & 1);
    }
    void *allocate_on_stream(DeviceIndex device, size_t bytes, cudaStream_t stream, int lasts) {
        weir_tensors *tensors = at(device);
        size_t size = rounded(bytes);
        std::unique_ptr<Context> note;
        void *block = nullptr;
        if (C10_UNLIKELY(history.is_recording()))
            if (auto context = history.gather(cca::RecordContext::STATE))
                note = std::make_unique<Context>(std::move(context));
        auto allocate_once = [&] {
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
        weir_status status = allocate_once();
        if (C10_UNLIKELY(status != WEIR_OK)) {
            if (is_failure(status) && free_elsewhere())
                status = allocate_once();
            if (status != WEIR_OK)
                refuse(device, tensors, size, status);
        }
        (void)note.release(); // weir frees the note with the block
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
    // Calls the functions by which other libraries free idle memory.  Returns true if any memory was freed.
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
                                         c10::Device(c10::kCUDA, device_of(tensors)));
    }
    [[noreturn]] C10_NOINLINE void refuse(DeviceIndex device, weir_tensors *tensors, size_t bytes,
                                          weir_status status) {
        TORCH_CHECK(is_failure(status), "weir: request of ", format_size(bytes), ": ",
                    weir_status_message(status));
        std::string advice = oom_advice_of(weir_tensors_allocator(tensors));
        auto f = figures_of(tensors);
        size_t free_bytes = 0, total = 0;
        c10::cuda::CUDAGuard guard(device);
        (void)cudaMemGetInfo(&free_bytes, &total);
        std::unique_lock<std::mutex> lock(mutex);
        auto told = observers;
#if WEIR_TORCH_VERSION >= 212
        auto told_rejections = rejection_observers;
#endif
        double fraction = devices[static_cast<size_t>(device)].fraction;
        lock.unlock();
        auto allocated = static_cast<size_t>(f.allocated_bytes[0].current);
        auto reserved = static_cast<size_t>(f.reserved_bytes[0].current);
        size_t allowed = static_cast<size_t>(static_cast<double>(total) * fraction);
#if WEIR_TORCH_VERSION >= 212
        // PyTorch has another error message for a request that exceeds the memory fraction.
        double policy = cca::CUDAAllocatorConfig::per_process_memory_fraction();
        if (status == WEIR_E_LIMIT && cca::CUDAAllocatorConfig::throw_on_cudamalloc_oom() &&
            policy < 1 &&
            static_cast<double>(reserved + bytes) > static_cast<double>(total) * policy) {
            devices[static_cast<size_t>(device)].rejections++;
            for (const auto &observer : told_rejections)
                observer(device, bytes, reserved, total);
            TORCH_CHECK_WITH(OutOfMemoryError, false,
                             "CUDA out of memory. Allocation was preemptively rejected because it "
                             "would exceed per_process_memory_fraction limit. Requested size: ",
                             format_size(bytes), with_fraction(advice));
        }
#endif
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved,
                                         c10::Device(c10::kCUDA, device));
        for (const auto &observer : told)
            observer(device, static_cast<int64_t>(bytes), allowed, free_bytes);
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

    std::array<Device, MOST> devices;
    std::atomic<size_t> count{0}; // the number of devices that PyTorch has initialized
    std::atomic<bool> is_alone{false}, caches{true}, records_stacks{false};
    std::mutex mutex;
    std::vector<cca::OutOfMemoryObserver> observers;
#if WEIR_TORCH_VERSION >= 212
    std::vector<cca::OomRejectionObserver> rejection_observers;
#endif
    History history;
    OpenedMemory opened_memory;
};

Allocator *the_allocator; // never destroyed, because tensors may outlive static objects

void raw_free(void *block) {
    the_allocator->release(block);
}

} // namespace weir_torch

// Tests for the build script that the shim can throw an OutOfMemoryError.  Returns 0 if the error's text is complete.
extern "C" int weir_torch_try(void) {
    try {
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", 1, " byte");
    } catch (const c10::OutOfMemoryError &error) {
        return std::string(error.what()).find("memory. 1 byte") == std::string::npos;
    }
    return 1;
}

// Makes weir the allocator of PyTorch.  Returns NULL on success, else the reason why PyTorch keeps its own allocator.
extern "C" const char *weir_torch_install(void) {
    namespace cca = c10::cuda::CUDACachingAllocator;
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
    // Newer versions of PyTorch register allocators with priorities.  The loop ends with a high enough priority.
    for (int priority = 0;
         priority < 256 && c10::GetAllocator(c10::kCUDA) != weir_torch::the_allocator; priority++)
        c10::SetAllocator(c10::kCUDA, weir_torch::the_allocator, static_cast<uint8_t>(priority));
    return nullptr;
}
