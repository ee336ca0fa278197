// SPDX-License-Identifier: MIT
// oom_text.h: what an OutOfMemoryError says: weir's report.
//
// Include versions.h before.
#pragma once

#include <cstring>
#include <string>

#include <weir/weir.h>

namespace weir_torch {

using c10::CachingDeviceAllocator::format_size;

inline std::string advice_on(weir_allocator *allocator) {
    weir_verdict verdict;
    std::memset(&verdict, 0, sizeof verdict);
    verdict.size = sizeof verdict;
    if (weir_last_verdict(allocator, &verdict) != WEIR_OK)
        return {};
    std::string text(weir_verdict_text(&verdict, WEIR_VERDICT_AS_TEXT, nullptr, 0) + 1, '\0');
    (void)weir_verdict_text(&verdict, WEIR_VERDICT_AS_TEXT, &text[0], text.size());
    text.pop_back();
    return "\n" + text;
}

// The limit is a fraction that the program has set by PyTorch.
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
