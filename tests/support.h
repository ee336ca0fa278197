/* SPDX-License-Identifier: MIT */
/* support.h: the few lines that several suites share: expecting a status, random numbers, options, patterns.
 *
 * Everything is static and small; what only one suite needs stays in that suite.
 */
#ifndef WEIR_TEST_SUPPORT_H
#define WEIR_TEST_SUPPORT_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* A call's answer: MUST_EQ would ask twice. */
#define ANSWERS(value, call) answers(__LINE__, #call, (uint64_t)(value), (uint64_t)(call))

static inline void answers(int line, const char *call, uint64_t wanted, uint64_t answer) {
    must_compare(wanted == answer, call, answer, wanted, line);
}

/* The call answers exactly this status. */
#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        weir_status expect_is = (call);                                                            \
        if (expect_is != (wanted))                                                                 \
            ck_abort_msg("%s: %s, not %s (driver result %d)", #call, weir_status_name(expect_is),  \
                         weir_status_name(wanted), weir_last_driver_result());                     \
    } while (0)
#define OK(call) EXPECT(WEIR_OK, call)

/* The driver's own calls succeed. */
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            ck_abort_msg("%s: %u", #call, cu_is);                                                  \
    } while (0)

/* The ways of handing out blocks that every suite goes through. */
enum kind { KIND_POOL, KIND_FIXED, KIND_REGIONS, KIND_MAPPED, KIND_PLATFORM, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = {"pool", "arena-fixed", "arena-regions",
                                                   "arena-mapped", "platform"};

static inline weir_amount bytes_amount(uint64_t bytes) {
    return (weir_amount){.value = bytes, .kind = WEIR_AMOUNT_BYTES};
}

/* Options for a kind on a device; a fixed arena has its size as limit, the others have none. */
static inline weir_options options_of(int kind, const char *device, uint64_t arena_bytes) {
    weir_options options;

    weir_options_init(&options);
    options.device = device;
    options.engine = kind == KIND_POOL       ? WEIR_ENGINE_POOL
                     : kind == KIND_PLATFORM ? WEIR_ENGINE_PLATFORM
                                             : WEIR_ENGINE_ARENA;
    options.arena = kind == KIND_FIXED    ? WEIR_ARENA_FIXED
                    : kind == KIND_MAPPED ? WEIR_ARENA_MAPPED
                                          : WEIR_ARENA_DEFAULT;
    if (kind == KIND_FIXED)
        options.limit = bytes_amount(arena_bytes);
    return options;
}

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* From 1 to `most`, small ones as likely as large ones. */
static inline size_t random_size(uint64_t *state, size_t most) {
    unsigned bits = 0;
    size_t size;

    while (((size_t)1 << bits) < most)
        bits++;
    size = (size_t)next_random(state) & (((size_t)1 << (next_random(state) % bits + 1)) - 1);
    return size == 0 ? 1 : size > most ? most : size;
}

/* Where a piece stops to have that value; its end, if it has it throughout. */
static inline size_t first_other(const unsigned char *piece, unsigned char value, size_t bytes) {
    size_t at = 0;

    if (bytes > 0 && piece[0] == value && memcmp(piece, piece + 1, bytes - 1) == 0)
        return bytes;
    while (at < bytes && piece[at] == value)
        at++;
    return at;
}

static inline weir_statistics stats_of(weir_allocator *allocator) {
    weir_statistics s = {.size = sizeof s};

    OK(weir_stats(allocator, &s));
    MUST_EQ(s.size, sizeof s);
    return s;
}

/* The identities of weir/stats.h; no call may be under way. */
static inline weir_statistics check_identities(weir_allocator *allocator) {
    weir_statistics s = stats_of(allocator);
    uint64_t front;

    MUST_EQ(s.attempts, s.allocs + s.refusals);
    MUST_EQ(s.allocs, s.hits + s.growth_allocs);
    MUST_EQ(s.allocs - s.frees, s.blocks);
    MUST_LE(s.requested, s.in_use);
    MUST_LE(s.in_use + s.front_idle, s.reserve);
    MUST_LE(s.requested, s.requested_peak);
    MUST_LE(s.in_use, s.in_use_peak);
    MUST_LE(s.reserve, s.reserve_peak);
    front = s.front_hits + s.front_misses_young + s.front_misses_empty + s.front_misses_capture;
    MUST(front == 0 || front == s.allocs); /* the front is off, or on */
    return s;
}

#endif
