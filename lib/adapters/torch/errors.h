// SPDX-License-Identifier: MIT
// errors.h: weir's statuses as PyTorch's errors, and exceptions past weir, which is C and holds locks.
#pragma once

#include <atomic>
#include <exception>
#include <utility>

#include <c10/util/Exception.h>

#include <weir/weir.h>

namespace weir_torch {

// The exception of a function that weir called.  It must not pass through weir, which holds locks.
inline thread_local std::exception_ptr thrown;
inline std::atomic<bool> has_thrown{false}; // on any thread, ever: most programs' requests need not look

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

} // namespace weir_torch
