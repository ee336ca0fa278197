// SPDX-License-Identifier: MIT
// history.h: records what PyTorch's own allocator records: the last events of each device with their stacks,
// annotations, and observers.  The records have PyTorch's own types, so that snapshots have PyTorch's own format.
//
// Include versions.h before this file.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <shared_mutex>

namespace weir_torch {

using Context = std::shared_ptr<c10::GatheredContext>;
using Annotation = decltype(cca::SnapshotInfo::external_annotations)::value_type;

// Values that this thread adds to its events: the stack of a free, the program's metadata, names of compiled regions.
inline thread_local Context free_context;
inline thread_local std::string user_metadata;
inline thread_local std::vector<std::string> compile_contexts;

// Sets the stack that events of frees contain, until the end of the C++ scope.
struct FreeContext {
    explicit FreeContext(Context context) { free_context = std::move(context); }
    ~FreeContext() { free_context = nullptr; }
};

// The last events of a device, oldest first.
class Ring {
  public:
    // Sets the largest number of events, and removes older events.
    void resize(size_t most) {
        std::lock_guard<std::mutex> guard(mutex);
        limit = most;
        while (entries.size() > limit)
            entries.erase(entries.begin());
    }
    void add(const cca::TraceEntry &entry) {
        std::lock_guard<std::mutex> guard(mutex);
        if (entries.size() == limit)
            entries.erase(entries.begin());
        entries.push_back(entry);
    }
    std::vector<cca::TraceEntry> read() {
        std::lock_guard<std::mutex> guard(mutex);
        return {entries.begin(), entries.end()};
    }

  private:
    std::mutex mutex;
    std::deque<cca::TraceEntry> entries;
    size_t limit = 1; // at least 1, except while History::set() runs
};

class History {
  public:
    void set(bool on, cca::CreateContextFn recorder_, size_t most, cca::RecordContext when_,
             bool clears, std::vector<std::string> skips_) {
        std::lock_guard<std::shared_mutex> guard(shared);
        recording.store(on);
        recorder.store(on ? recorder_ : nullptr);
        when.store(on ? when_ : cca::RecordContext::NEVER);
        skips = std::move(skips_);
        limit = std::max(most, size_t(1));
        for (auto &ring : rings) {
            if (clears || !on)
                ring.resize(0);
            ring.resize(limit);
        }
        if (clears || !on)
            annotations.clear();
        update_watched();
    }
    bool is_recording() const { return recording.load(std::memory_order_relaxed); }
    bool is_watched() const { return watched.load(std::memory_order_relaxed); }

    // Returns the current stack if the program records stacks of this level, else NULL.
    Context gather(cca::RecordContext level) const {
        auto create = recorder.load(std::memory_order_relaxed);
        return create && when.load(std::memory_order_relaxed) >= level ? create() : nullptr;
    }
    void open(size_t devices) {
        std::lock_guard<std::shared_mutex> guard(shared);
        while (rings.size() < devices)
            rings.emplace_back().resize(limit);
    }
    void add_tracker(cca::AllocatorTraceTracker tracker) {
        std::lock_guard<std::shared_mutex> guard(shared);
        trackers.push_back(std::move(tracker));
        update_watched();
    }
    void annotate(const std::vector<std::pair<std::string, std::string>> &pairs, int device) {
        std::lock_guard<std::shared_mutex> guard(shared);
        if (!recording)
            return;
        Annotation entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
        for (const auto &pair : pairs)
            entry.recordUserMetadata(pair.first, pair.second);
        annotations.push_back(std::move(entry));
    }

#if WEIR_TORCH_VERSION >= 214
    // Adds an event with a text of the program about a live block.
    void annotate_block(c10::DeviceIndex device, const weir_tensors_block &block, std::string text) {
        static_assert(int(cca::TraceEntry::ANNOTATE) == WEIR_TENSORS_OOM + 1, "the last action");
        add(trace_entry(cca::TraceEntry::ANNOTATE, device, block.address, block.bytes,
                        reinterpret_cast<cudaStream_t>(block.stream),
                        gather(cca::RecordContext::ALLOC), id_from(block.pool), compile_context(),
                        std::move(text)));
    }
#endif

    // Adds an event that weir reports.  weir holds the lock of the device's tensors during the call.
    void event(int device, const weir_tensors_event &event) {
        auto action = static_cast<cca::TraceEntry::Action>(event.action);
        Context context;

        if (!is_watched())
            return;
        if (when.load(std::memory_order_relaxed) >= cca::RecordContext::ALLOC) {
            bool is_free = action == cca::TraceEntry::FREE_REQUESTED ||
                           action == cca::TraceEntry::FREE_COMPLETED ||
                           action == cca::TraceEntry::SEGMENT_FREE ||
                           action == cca::TraceEntry::SEGMENT_UNMAP;
            context = is_free && free_context ? free_context
                      : event.note            ? *static_cast<Context *>(event.note)
                                              : nullptr;
        }
        add(trace_entry(action, static_cast<c10::DeviceIndex>(device), event.address, event.bytes,
                        reinterpret_cast<cudaStream_t>(event.stream), std::move(context),
                        id_from(event.pool), compile_context(), user_metadata));
    }

    void read(cca::SnapshotInfo &out, bool with_traces) {
        auto to_ns = clock.makeConverter();
        std::lock_guard<std::shared_mutex> guard(shared);
        for (auto &ring : rings) {
            out.device_traces.push_back(with_traces ? ring.read() : decltype(ring.read())());
            for (auto &entry : out.device_traces.back())
                entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
        }
        if (with_traces)
            out.external_annotations = annotations;
        for (auto &entry : out.external_annotations)
            entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    }

  private:
    void add(const cca::TraceEntry &entry) {
        std::shared_lock<std::shared_mutex> guard(shared);
        for (const auto &tracker : trackers)
            tracker(entry);
        if (is_recording() && !is_skipped(entry.action_))
            rings[static_cast<size_t>(entry.device_)].add(entry);
    }
    static std::string compile_context() {
        return compile_contexts.empty() ? "N/A" : compile_contexts.back();
    }
    // Returns true if the program does not want events of this action, named by PyTorch's words.
    bool is_skipped(cca::TraceEntry::Action action) const {
        static const char *const words[] = {"alloc",         "free_requested", "free_completed",
                                            "segment_alloc", "segment_free",   "segment_map",
                                            "segment_unmap", "snapshot",       "oom",
                                            "annotate"};
        static_assert(std::size(words) == WEIR_TENSORS_OOM + 2, "each action has a word");
        return std::find(skips.begin(), skips.end(), words[action]) != skips.end();
    }
    void update_watched() { watched.store(recording || !trackers.empty()); }

    std::shared_mutex shared; // guards all members that are not atomic
    std::atomic<bool> recording{false}, watched{false};
    std::atomic<cca::CreateContextFn> recorder{nullptr};
    std::atomic<cca::RecordContext> when{cca::RecordContext::NEVER};
    std::vector<std::string> skips;
    std::deque<Ring> rings;
    std::vector<cca::AllocatorTraceTracker> trackers;
    std::vector<Annotation> annotations;
    c10::ApproximateClockToUnixTimeConverter clock;
    size_t limit = 1;
};

} // namespace weir_torch
