// SPDX-License-Identifier: MIT
// errors.h: converts weir's statuses to PyTorch's errors, keeps exceptions of PyTorch's functions from passing through
// weir, and makes the text of an OutOfMemoryError.
//
// Include versions.h before this file.
#pragma once

#include <atomic>
#include <cstring>
#include <exception>

#include <c10/util/Exception.h>

#include <weir/weir.h>

namespace weir_torch {

using c10::CachingDeviceAllocator::format_size;

// An exception that PyTorch threw when weir called a function of PyTorch.  Because weir may hold locks, rethrow()
// throws the exception again only after weir has returned.
inline thread_local std::exception_ptr thrown;
inline std::atomic<bool> has_thrown{false}; // true once any thread has stored an exception

// Calls `call`.  If `call` throws an exception, stores the exception for rethrow() and returns a default value.
template <class Call> auto guarded(Call call) -> decltype(call()) {
    try {
        return call();
    } catch (...) {
        thrown = std::current_exception();
        has_thrown.store(true, std::memory_order_relaxed);
        return decltype(call())();
    }
}
inline bool is_thrown() {
    return C10_UNLIKELY(has_thrown.load(std::memory_order_relaxed)) && thrown != nullptr;
}
inline void rethrow() {
    if (is_thrown())
        std::rethrow_exception(std::exchange(thrown, nullptr));
}

inline void check(weir_status status, const char *what) {
    rethrow();
    TORCH_CHECK(status == WEIR_OK, "weir: ", what, ": ", weir_status_message(status));
}

// Returns weir's report about the last failed request, or "".
inline std::string oom_advice_of(weir_allocator *allocator) {
    weir_oom_report oom_report;
    std::memset(&oom_report, 0, sizeof oom_report);
    oom_report.size = sizeof oom_report;
    if (weir_last_oom_report(allocator, &oom_report) != WEIR_OK)
        return {};
    std::string text(weir_oom_report_text(&oom_report, WEIR_OOM_REPORT_AS_TEXT, nullptr, 0) + 1,
                     '\0');
    (void)weir_oom_report_text(&oom_report, WEIR_OOM_REPORT_AS_TEXT, &text[0], text.size());
    text.pop_back();
    return "\n" + text;
}

// Replaces the advice to raise weir's limit by the advice to raise PyTorch's memory fraction, which sets the limit.
inline std::string with_fraction(std::string advice) {
    static const char end[] = " or more";
    size_t from = advice.find("Call weir_set_limit with ");
    size_t to = from == std::string::npos ? from : advice.find(end, from);
    std::string instead = "Raise torch.cuda.set_per_process_memory_fraction";
#if WEIR_TORCH_VERSION >= 211
    instead += ", or per_process_memory_fraction in PYTORCH_ALLOC_CONF";
#endif
    if (to != std::string::npos)
        advice.replace(from, to + sizeof end - 1 - from, instead);
    return advice;
}

} // namespace weir_torch
