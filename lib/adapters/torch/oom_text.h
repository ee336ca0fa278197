// SPDX-License-Identifier: MIT
// oom_text.h: what an OutOfMemoryError says: sizes as PyTorch writes them, and weir's report.
//
// Include versions.h before.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include <weir/weir.h>

namespace weir_torch {

inline std::string shown(uint64_t bytes) {
    char text[32];
    double size = static_cast<double>(bytes);
    if (bytes <= 1024)
        snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
    else if (bytes <= 1048576)
        snprintf(text, sizeof text, "%.2f KiB", size / 1024);
    else if (bytes <= 1073741824)
        snprintf(text, sizeof text, "%.2f MiB", size / 1048576);
    else
        snprintf(text, sizeof text, "%.2f GiB", size / 1073741824);
    return text;
}

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
