/* SPDX-License-Identifier: MIT */
/* test_abi.c: the binary interface of version 1, on which programs that are compiled today rely.
 *
 * The tests repeat sizes, places and values.  A line that no longer compiles is a break of every program in use.  A
 * struct with a `size` member may grow at its end, and its line here then changes; nothing else may change.  Figures
 * are those of LP64, which every platform with a CUDA driver has but 32-bit Arm and Windows.
 *
 * Assertions on sizes and places are static, so that each build makes them.  The tests check values at run time, and
 * that this file lacks no status or word. */
#include <weir/weir.h>

#include "tests/fixtures/suite.h"

#if defined(__LP64__)
#define STRUCT(type, bytes, alignment)                                                             \
    _Static_assert(sizeof(type) == (bytes) && _Alignof(type) == (alignment), #type)
#define FIELD(type, field, offset, bytes)                                                          \
    _Static_assert(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes),     \
                   #type "." #field)
#else
#define STRUCT(type, bytes, alignment) _Static_assert(1, "")
#define FIELD(type, field, offset, bytes) _Static_assert(1, "")
#endif
#define VALUE(name, value) _Static_assert((long)(name) == (value), #name)

STRUCT(weir_growth_state, 64, 8);
FIELD(weir_growth_state, size, 0, 8);
FIELD(weir_growth_state, request, 8, 8);
FIELD(weir_growth_state, reserved, 16, 8);
FIELD(weir_growth_state, in_use, 24, 8);
FIELD(weir_growth_state, limit, 32, 8);
FIELD(weir_growth_state, device_free, 40, 8);
FIELD(weir_growth_state, steps, 48, 8);
FIELD(weir_growth_state, last_step, 56, 8);

STRUCT(weir_amount, 16, 8);
FIELD(weir_amount, value, 0, 8);
FIELD(weir_amount, kind, 8, 4);

STRUCT(weir_options, 264, 8);
FIELD(weir_options, size, 0, 8);
FIELD(weir_options, device, 8, 8);
FIELD(weir_options, engine, 16, 4);
FIELD(weir_options, prealloc, 24, 16);
FIELD(weir_options, growth, 40, 4);
FIELD(weir_options, growth_step, 48, 8);
FIELD(weir_options, growth_factor, 56, 8);
FIELD(weir_options, growth_function, 64, 8);
FIELD(weir_options, growth_context, 72, 8);
FIELD(weir_options, limit, 80, 16);
FIELD(weir_options, release_threshold, 96, 16);
FIELD(weir_options, recovery_timeout_ms, 112, 4);
FIELD(weir_options, latency, 116, 4);
FIELD(weir_options, log, 120, 4);
FIELD(weir_options, cache, 124, 4);
FIELD(weir_options, cache_limit, 128, 16);
FIELD(weir_options, stream_checks, 144, 4);
FIELD(weir_options, internal_dependencies, 148, 4);
FIELD(weir_options, harden, 152, 8);
FIELD(weir_options, oom_callback, 160, 8);
FIELD(weir_options, oom_callback_data, 168, 8);
FIELD(weir_options, grow_ahead, 176, 16);
FIELD(weir_options, prealloc_min, 192, 16);
FIELD(weir_options, profile, 208, 8);
FIELD(weir_options, decay_ms, 216, 8);
FIELD(weir_options, registry, 224, 4);
FIELD(weir_options, priority, 228, 4);
FIELD(weir_options, keep_free, 232, 16);
FIELD(weir_options, oom_report, 248, 8);
FIELD(weir_options, peers, 256, 8);

STRUCT(weir_oom, 56, 8);
FIELD(weir_oom, size, 0, 8);
FIELD(weir_oom, allocator, 8, 8);
FIELD(weir_oom, stream, 16, 8);
FIELD(weir_oom, bytes, 24, 8);
FIELD(weir_oom, attempt, 32, 8);
FIELD(weir_oom, largest, 40, 8);
FIELD(weir_oom, status, 48, 4);

STRUCT(weir_statistics, 392, 8);
FIELD(weir_statistics, size, 0, 8);
FIELD(weir_statistics, attempts, 8, 8);
FIELD(weir_statistics, allocs, 16, 8);
FIELD(weir_statistics, frees, 24, 8);
FIELD(weir_statistics, hits, 32, 8);
FIELD(weir_statistics, growth_allocs, 40, 8);
FIELD(weir_statistics, failed_requests, 48, 8);
FIELD(weir_statistics, retries, 56, 8);
FIELD(weir_statistics, growths, 64, 8);
FIELD(weir_statistics, growth_bytes, 72, 8);
FIELD(weir_statistics, stall_ns, 80, 8);
FIELD(weir_statistics, trims, 88, 8);
FIELD(weir_statistics, trim_bytes, 96, 8);
FIELD(weir_statistics, blocks, 104, 8);
FIELD(weir_statistics, requested, 112, 8);
FIELD(weir_statistics, requested_peak, 120, 8);
FIELD(weir_statistics, in_use, 128, 8);
FIELD(weir_statistics, in_use_peak, 136, 8);
FIELD(weir_statistics, reserved, 144, 8);
FIELD(weir_statistics, reserved_peak, 152, 8);
FIELD(weir_statistics, extent, 160, 8);
FIELD(weir_statistics, prealloc_asked, 168, 8);
FIELD(weir_statistics, prealloc_got, 176, 8);
FIELD(weir_statistics, prealloc_kept, 184, 8);
FIELD(weir_statistics, prealloc_ns, 192, 8);
FIELD(weir_statistics, host_bytes, 200, 8);
FIELD(weir_statistics, cache_hits, 208, 8);
FIELD(weir_statistics, cache_misses_young, 216, 8);
FIELD(weir_statistics, cache_misses_empty, 224, 8);
FIELD(weir_statistics, cache_misses_capture, 232, 8);
FIELD(weir_statistics, steals, 240, 8);
FIELD(weir_statistics, event_records, 248, 8);
FIELD(weir_statistics, deferred_frees, 256, 8);
FIELD(weir_statistics, cache_idle, 264, 8);
FIELD(weir_statistics, cache_streams, 272, 8);
FIELD(weir_statistics, late_writes, 280, 8);
FIELD(weir_statistics, overruns, 288, 8);
FIELD(weir_statistics, kept_out, 296, 8);
FIELD(weir_statistics, ahead_steps, 304, 8);
FIELD(weir_statistics, ahead_bytes, 312, 8);
FIELD(weir_statistics, ahead_ns, 320, 8);
FIELD(weir_statistics, ahead_failures, 328, 8);
FIELD(weir_statistics, prealloc_waited_ns, 336, 8);
FIELD(weir_statistics, profile_asked, 344, 8);
FIELD(weir_statistics, profile_runs, 352, 8);
FIELD(weir_statistics, reclaims, 360, 8);
FIELD(weir_statistics, received_bytes, 368, 8);
FIELD(weir_statistics, releases, 376, 8);
FIELD(weir_statistics, released_bytes, 384, 8);

STRUCT(weir_latency, 64, 8);
FIELD(weir_latency, size, 0, 8);
FIELD(weir_latency, count, 8, 8);
FIELD(weir_latency, p50_ns, 16, 8);
FIELD(weir_latency, p90_ns, 24, 8);
FIELD(weir_latency, p99_ns, 32, 8);
FIELD(weir_latency, p999_ns, 40, 8);
FIELD(weir_latency, max_ns, 48, 8);
FIELD(weir_latency, total_ns, 56, 8);

STRUCT(weir_event, 56, 8);
FIELD(weir_event, sequence, 0, 8);
FIELD(weir_event, time_ns, 8, 8);
FIELD(weir_event, asked, 16, 8);
FIELD(weir_event, got, 24, 8);
FIELD(weir_event, stall_ns, 32, 8);
FIELD(weir_event, reserved_after, 40, 8);
FIELD(weir_event, cause, 48, 4);
FIELD(weir_event, shrink, 52, 4);

STRUCT(weir_failure, 72, 8);
FIELD(weir_process_memory, size, 0, 8);
FIELD(weir_process_memory, released, 8, 8);
FIELD(weir_process_memory, reserved, 16, 8);
FIELD(weir_process_memory, in_use, 24, 8);

FIELD(weir_failure, size, 0, 8);
FIELD(weir_failure, asked, 8, 8);
FIELD(weir_failure, reserved, 16, 8);
FIELD(weir_failure, in_use, 24, 8);
FIELD(weir_failure, limit, 32, 8);
FIELD(weir_failure, device_free, 40, 8);
FIELD(weir_failure, device_total, 48, 8);
FIELD(weir_failure, waited_ns, 56, 8);
FIELD(weir_failure, largest, 64, 8);

STRUCT(weir_trace_event, 120, 8);
FIELD(weir_trace_event, line, 0, 8);
FIELD(weir_trace_event, time_us, 8, 8);
FIELD(weir_trace_event, id, 16, 8);
FIELD(weir_trace_event, bytes, 24, 8);
FIELD(weir_trace_event, stream, 32, 8);
FIELD(weir_trace_event, on_stream, 40, 8);
FIELD(weir_trace_event, operation, 48, 4);
FIELD(weir_trace_event, label, 52, 64);

/* A status travels through C, Fortran and ctypes as an int. */
STRUCT(weir_status, 4, 4);
STRUCT(weir_stream, 8, 8);
STRUCT(weir_growth_function, 8, 8);
STRUCT(weir_oom_function, 8, 8);
STRUCT(weir_trace_source, 8, 8);

STRUCT(weir_oom_report_stream, 16, 8);
FIELD(weir_oom_report_stream, stream, 0, 8);
FIELD(weir_oom_report_stream, bytes, 8, 8);

STRUCT(weir_oom_report_group, 32, 8);
FIELD(weir_oom_report_group, bytes, 0, 8);
FIELD(weir_oom_report_group, blocks, 8, 8);
FIELD(weir_oom_report_group, total, 16, 8);
FIELD(weir_oom_report_group, stream, 24, 8);

STRUCT(weir_oom_report_setting, 56, 8);
FIELD(weir_oom_report_setting, name, 0, 8);
FIELD(weir_oom_report_setting, value, 8, 48);

STRUCT(weir_oom_report_member, 72, 8);
FIELD(weir_oom_report_member, pid, 0, 8);
FIELD(weir_oom_report_member, bytes, 8, 8);
FIELD(weir_oom_report_member, share, 16, 8);
FIELD(weir_oom_report_member, idle, 24, 8);
FIELD(weir_oom_report_member, command, 32, 40);

STRUCT(weir_oom_report, 1616, 8);
FIELD(weir_oom_report, size, 0, 8);
FIELD(weir_oom_report, status, 8, 4);
FIELD(weir_oom_report, cause, 12, 4);
FIELD(weir_oom_report, asked, 16, 8);
FIELD(weir_oom_report, stream, 24, 8);
FIELD(weir_oom_report, waited_ns, 32, 8);
FIELD(weir_oom_report, largest, 40, 8);
FIELD(weir_oom_report, limit, 48, 8);
FIELD(weir_oom_report, reserved, 56, 8);
FIELD(weir_oom_report, in_use, 64, 8);
FIELD(weir_oom_report, idle, 72, 8);
FIELD(weir_oom_report, largest_free_block, 80, 8);
FIELD(weir_oom_report, pending, 88, 8);
FIELD(weir_oom_report, device_total, 96, 8);
FIELD(weir_oom_report, device_free, 104, 8);
FIELD(weir_oom_report, graphs, 112, 8);
FIELD(weir_oom_report, graphs_idle, 120, 8);
FIELD(weir_oom_report, other_allocators, 128, 8);
FIELD(weir_oom_report, others, 136, 8);
FIELD(weir_oom_report, pending_streams, 144, 4);
FIELD(weir_oom_report, group_count, 148, 4);
FIELD(weir_oom_report, pending_by, 152, 64);
FIELD(weir_oom_report, groups, 216, 160);
FIELD(weir_oom_report, ungrouped, 376, 8);
FIELD(weir_oom_report, settings, 384, 168);
FIELD(weir_oom_report, keep_free, 552, 8);
FIELD(weir_oom_report, silent_pid, 560, 8);
FIELD(weir_oom_report, silent_reserved, 568, 8);
FIELD(weir_oom_report, silent_stopped, 576, 8);
FIELD(weir_oom_report, default_stream, 584, 8);
FIELD(weir_oom_report, is_share, 592, 8);
FIELD(weir_oom_report, weight, 600, 8);
FIELD(weir_oom_report, holder_pid, 608, 8);
FIELD(weir_oom_report, holder_reserved, 616, 8);
FIELD(weir_oom_report, holder_reclaimable, 624, 8);
FIELD(weir_oom_report, limit_is_set, 632, 8);
FIELD(weir_oom_report, set_limit, 640, 8);
FIELD(weir_oom_report, device, 648, 16);
FIELD(weir_oom_report, driver_result, 664, 8);
FIELD(weir_oom_report, no_descriptors, 672, 8);
FIELD(weir_oom_report, process_group, 680, 40);
FIELD(weir_oom_report, group_limit, 720, 8);
FIELD(weir_oom_report, group_used, 728, 8);
FIELD(weir_oom_report, members, 736, 4);
FIELD(weir_oom_report, member_count, 740, 4);
FIELD(weir_oom_report, member, 744, 576);
FIELD(weir_oom_report, processes, 1320, 4);
FIELD(weir_oom_report, process_count, 1324, 4);
FIELD(weir_oom_report, process, 1328, 288);

VALUE(WEIR_HARDEN_OFF, 1);
VALUE(WEIR_HARDEN_POISON, 2);
VALUE(WEIR_HARDEN_GUARD, 4);
VALUE(WEIR_HARDEN_ZERO_STREAM, 8);
VALUE(WEIR_HARDEN_ZERO_ALWAYS, 16);
VALUE(WEIR_TRACE_LABEL_BYTES, 64);

/* Checks values that follow each other by `step` (1 or -1), from `first` on. */
#define IN_ORDER(first, step, ...)                                                                 \
    expect_in_order(__LINE__, first, step, (const int[]){__VA_ARGS__},                             \
                    sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

static void expect_in_order(int line, int first, int step, const int *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(values[i] == first + step * (int)i, "line %d: value %zu is %d", line, i + 1,
                      values[i]);
}

CASE("all", 4, NULL, NULL);

TEST(values_are_those_of_version_1) {
    IN_ORDER(0, -1, WEIR_OK, WEIR_E_INVALID, WEIR_E_NO_MEMORY, WEIR_E_HOST_MEMORY, WEIR_E_LIMIT,
             WEIR_E_NO_DEVICE, WEIR_E_DRIVER, WEIR_E_DEVICE_LOST, WEIR_E_BUSY, WEIR_E_NOT_OWNED,
             WEIR_E_STREAM, WEIR_E_CAPTURE, WEIR_E_FORKED, WEIR_E_PARSE, WEIR_E_NOT_SUPPORTED,
             WEIR_E_FILE);
    IN_ORDER(0, 1, WEIR_ENGINE_DEFAULT, WEIR_ENGINE_POOL, WEIR_ENGINE_BFC, WEIR_ENGINE_DIRECT,
             WEIR_ENGINE_MAPPED, WEIR_ENGINE_BFC_FIXED);
    IN_ORDER(0, 1, WEIR_AMOUNT_DEFAULT, WEIR_AMOUNT_BYTES, WEIR_AMOUNT_OF_TOTAL,
             WEIR_AMOUNT_OF_FREE, WEIR_AMOUNT_MAX, WEIR_AMOUNT_OF_IN_USE, WEIR_AMOUNT_SHARE);
    IN_ORDER(0, 1, WEIR_GROWTH_DEFAULT, WEIR_GROWTH_EXACT, WEIR_GROWTH_STEP, WEIR_GROWTH_GEOMETRIC,
             WEIR_GROWTH_REMAINING, WEIR_GROWTH_BFC, WEIR_GROWTH_CALLBACK);
    IN_ORDER(0, 1, WEIR_LOG_DEFAULT, WEIR_LOG_NONE, WEIR_LOG_ERROR, WEIR_LOG_WARNING, WEIR_LOG_INFO,
             WEIR_LOG_DEBUG);
    IN_ORDER(0, 1, WEIR_SWITCH_DEFAULT, WEIR_SWITCH_OFF, WEIR_SWITCH_ON);
    IN_ORDER(0, 1, WEIR_EVENT_REQUEST, WEIR_EVENT_POLICY, WEIR_EVENT_PREALLOC, WEIR_EVENT_TRIM,
             WEIR_EVENT_RECOVERY, WEIR_EVENT_GROW_AHEAD, WEIR_EVENT_DECAY, WEIR_EVENT_LOW_MEMORY,
             WEIR_EVENT_RELEASE, WEIR_EVENT_RECLAIM);
    IN_ORDER(0, 1, WEIR_OOM_REPORT_NONE, WEIR_OOM_REPORT_TOO_LARGE, WEIR_OOM_REPORT_PENDING,
             WEIR_OOM_REPORT_FRAGMENTED, WEIR_OOM_REPORT_LIMIT, WEIR_OOM_REPORT_GRAPHS,
             WEIR_OOM_REPORT_OTHERS, WEIR_OOM_REPORT_IN_USE, WEIR_OOM_REPORT_RESERVE);
    IN_ORDER(0, 1, WEIR_OOM_REPORT_AS_TEXT, WEIR_OOM_REPORT_AS_JSON);
}

/* The test counts the values again, to find a status or cause that is in the lists but not above. */
TEST(every_value_stands_above) {
    int statuses = 0, engines = 0, policies = 0, levels = 0;

#define COUNT_STATUS(name, value, message) statuses++;
    WEIR_STATUSES(COUNT_STATUS)
#define COUNT_ENGINE(name, word, value) engines++;
    WEIR_ENGINES(COUNT_ENGINE)
#define COUNT_POLICY(name, word, value) policies++;
    WEIR_GROWTH_POLICIES(COUNT_POLICY)
#define COUNT_LEVEL(name, word, value) levels++;
    WEIR_LOG_LEVELS(COUNT_LEVEL)
    ck_assert_int_eq(statuses, 16);
    ck_assert_int_eq(engines, 6);
    ck_assert_int_eq(policies, 7);
    ck_assert_int_eq(levels, 6);
    ck_assert_int_eq(WEIR_EVENT_CAUSE_COUNT, 10);
    ck_assert_int_eq(WEIR_OOM_REPORT_CAUSE_COUNT, 11);
}

/* A program that was linked against version 1 finds functions with the types it was compiled for. */
TEST(functions_have_their_types) {
    const char *(*version)(void) = weir_version;
    weir_status (*create)(const weir_options *, weir_allocator **) = weir_allocator_create;
    weir_status (*destroy)(weir_allocator *) = weir_allocator_destroy;
    weir_status (*standard)(weir_allocator **) = weir_default_allocator;
    weir_status (*of_device)(int, weir_allocator **) = weir_device_allocator;
    weir_status (*of_stream)(weir_stream, weir_allocator **) = weir_stream_allocator;
    weir_status (*of_block)(const void *, weir_allocator **) = weir_block_allocator;
    weir_status (*alloc)(weir_allocator *, size_t, weir_stream, void **) = weir_alloc;
    intptr_t (*address)(weir_allocator *, size_t, weir_stream) = weir_alloc_address;
    weir_status (*release)(weir_allocator *, void *, weir_stream) = weir_free;
    weir_status (*alloc_any)(weir_allocator *, size_t, void **) = weir_alloc_any;
    weir_status (*release_any)(weir_allocator *, void *) = weir_free_any;
    weir_status (*use)(weir_allocator *, void *, weir_stream) = weir_use;
    weir_status (*range)(weir_allocator *, const void *, void **, size_t *) = weir_block_range;
    weir_status (*bind)(weir_allocator *, weir_stream) = weir_bind;
    weir_status (*unbind)(weir_allocator *, weir_stream) = weir_unbind;
    weir_status (*preallocate)(weir_allocator *, size_t, size_t *) = weir_preallocate;
    weir_status (*set_limit)(weir_allocator *, weir_amount) = weir_set_limit;
    weir_status (*pool)(weir_allocator *, struct CUmemPoolHandle_st **) = weir_pool;
    weir_status (*trim)(weir_allocator *, size_t, size_t *) = weir_trim;
    weir_status (*process_trim)(weir_process_memory *) = weir_process_trim;
    weir_status (*decay)(weir_allocator *, size_t *) = weir_decay;
    weir_status (*low_memory)(weir_allocator *, size_t) = weir_low_memory;
    weir_status (*save)(weir_allocator *, const char *) = weir_profile_save;
    weir_status (*stats)(weir_allocator *, weir_statistics *) = weir_stats;
    weir_status (*latencies)(weir_allocator *, int, weir_latency *) = weir_latencies;
    weir_status (*events)(weir_allocator *, uint64_t, weir_event *, size_t, size_t, size_t *) =
        weir_events;
    const char *(*cause)(int) = weir_event_cause_word;
    weir_status (*failure)(weir_failure *) = weir_last_failure;
    weir_status (*oom_report)(weir_allocator *, weir_oom_report *) = weir_last_oom_report;
    size_t (*text)(const weir_oom_report *, int, char *, size_t) = weir_oom_report_text;
    const char *(*why)(int) = weir_oom_report_cause_word;
    weir_status (*init)(weir_options *, size_t) = weir_options_init_sized;
    weir_status (*from_env)(weir_options *, char *, size_t) = weir_options_from_env;
    weir_status (*set)(weir_options *, const char *, const char *, char *, size_t) =
        weir_options_set;
    const char *(*name)(weir_status) = weir_status_name;
    const char *(*message)(weir_status) = weir_status_message;
    int (*result)(void) = weir_last_driver_result;
    weir_status (*reader)(weir_trace_source, void *, weir_trace_reader **) =
        weir_trace_reader_create;
    void (*close)(weir_trace_reader *) = weir_trace_reader_destroy;
    weir_status (*next)(weir_trace_reader *, weir_trace_event *) = weir_trace_next;
    const char *(*reason)(const weir_trace_reader *) = weir_trace_message;
    int (*field)(const weir_trace_reader *, const char *, char *, size_t) = weir_trace_field;
    void (*comments)(weir_trace_reader *, weir_trace_comment, void *) = weir_trace_comments;

    ck_assert(version && create && destroy && standard && of_device && of_stream && of_block &&
              alloc && address && release && alloc_any && release_any && use && range && bind &&
              unbind && preallocate && set_limit && pool && trim && process_trim && decay &&
              low_memory && save && stats && latencies && events && cause && failure &&
              oom_report && text && why && init && from_env && set && name && message && result &&
              reader && close && next && reason && field && comments);
}

SUITE("abi", CK_FORK_GETENV);
