/* SPDX-License-Identifier: MIT */
/* option_table.c: the table of options.  All code that reads, prints, checks or documents options uses it.  A new
 * option needs a field in weir/options.h, a line in WEIR_SETTING_LIST, and a row here. */
#include "config/option_kinds.h"

#include <stddef.h>
#include <stdio.h>

/* ---- words ---- */

/* The words for engines.  If several words stand for one engine, weir prints the first. */
static const struct weir_option_word engines[] = {
    {"pool", WEIR_ENGINE_POOL},           {"mapped", WEIR_ENGINE_MAPPED}, {"bfc", WEIR_ENGINE_BFC},
    {"bfc-fixed", WEIR_ENGINE_BFC_FIXED}, {"direct", WEIR_ENGINE_DIRECT}, {NULL, 0},
};

static const struct weir_option_word switches[] = {
    {"off", WEIR_SWITCH_OFF}, {"on", WEIR_SWITCH_ON},     {"0", WEIR_SWITCH_OFF},
    {"1", WEIR_SWITCH_ON},    {"false", WEIR_SWITCH_OFF}, {"true", WEIR_SWITCH_ON},
    {"no", WEIR_SWITCH_OFF},  {"yes", WEIR_SWITCH_ON},    {NULL, 0},
};

static const struct weir_option_word log_levels[] = {
    {"none", WEIR_LOG_NONE}, {"error", WEIR_LOG_ERROR}, {"warning", WEIR_LOG_WARNING},
    {"info", WEIR_LOG_INFO}, {"debug", WEIR_LOG_DEBUG}, {NULL, 0},
};

static const struct weir_option_word hardenings[] = {
#define HARDENING_WORD(name, word, bit) {word, bit},
    WEIR_HARDENINGS(HARDENING_WORD)
#undef HARDENING_WORD
        {NULL, 0},
};

/* ---- rows ---- */

#define PART_ACCEPTS "a size (4GiB, 512MB, 75%, 90%free, max), share or share:WEIGHT"
/* BASIC settings are in each list of settings that weir prints, ADVANCED settings only in complete lists (--all). */
#define BASIC .is_advanced = 0
#define ADVANCED .is_advanced = 1
/* The row of a setting.  The last arguments initialise the fields of struct weir_setting_row in order. */
#define ROW(setting, type, member, its_words, ...)                                                 \
    [WEIR_SETTING_##setting] = {.text = {__VA_ARGS__},                                             \
                                .kind = &weir__option_##type,                                      \
                                .offset = offsetof(weir_options, member),                          \
                                .words = its_words}

const struct weir_option_row weir__option_rows[WEIR_SETTING_COUNT] = {
    ROW(DEVICE, device, device, NULL, "device", "WEIR_DEVICE", "DEVICE",
        "cuda, cuda:N, model or model:N", "cuda",
        "Use this device: a GPU, or the device model, which is a GPU in software.  Programs that "
        "use the library get the model only by its name.",
        BASIC),
    ROW(ENGINE, word, engine, engines, "engine", "WEIR_ENGINE", "ENGINE",
        "mapped, pool, bfc, bfc-fixed or direct",
        "mapped where the device can map memory, else pool",
        "Choose where blocks come from.  mapped: one range of addresses, where weir maps memory "
        "as needed; pool: a private CUDA memory pool; bfc: best fit in regions, as in TensorFlow "
        "and XLA; bfc-fixed: bfc in one region of the size of the limit, allocated at once; "
        "direct: "
        "one driver call for each block.",
        BASIC),
    ROW(PREALLOC, part, prealloc, NULL, "prealloc", "WEIR_PREALLOC", "SIZE", PART_ACCEPTS, "0",
        "Reserve SIZE before the first request.  A larger SIZE makes the first iterations faster "
        "and leaves less to other programs.  share: an equal or weighted part, with other "
        "processes.",
        BASIC),
    ROW(GROWTH, growth, growth, weir__option_policies, "growth", "WEIR_GROWTH", "POLICY",
        "exact, step:SIZE, geometric:FACTOR[:CAP], remaining:FRACTION or bfc",
        "exact; bfc for engine bfc",
        "Choose how much memory to add when reserved memory must grow.", BASIC),
    ROW(LIMIT, limit, limit, NULL, "limit", "WEIR_LIMIT", "SIZE", PART_ACCEPTS,
        "max; 75% for engine bfc-fixed",
        "Limit reserved memory; with engine bfc-fixed, set its size.  share: an equal or weighted "
        "part, while other processes come and go.",
        BASIC),
    ROW(RELEASE_THRESHOLD, amount, release_threshold, NULL, "release-threshold",
        "WEIR_RELEASE_THRESHOLD", "SIZE", WEIR_SIZE_ACCEPTS, "max",
        "Keep up to SIZE of reserved memory although it is idle; memory above goes back to the "
        "device once work has completed.  A lower value leaves more to other programs, but memory "
        "has to grow again.",
        BASIC),
    ROW(RECOVERY_TIMEOUT, timeout, recovery_timeout_ms, NULL, "recovery-timeout",
        "WEIR_RECOVERY_TIMEOUT", "TIME",
        "milliseconds (250), or a number with ms or s (250ms, 2s); 0 does not wait", "1s",
        "When memory runs out, wait at most this long for frees to complete.", ADVANCED),
    ROW(LATENCY, word, latency, switches, "latency", "WEIR_LATENCY", "SWITCH", "on or off", "off",
        "Keep a histogram of the latency of every call.", ADVANCED),
    ROW(LOG, word, log, log_levels, "log", "WEIR_LOG", "LEVEL",
        "none, error, warning, info or debug",
        "none; warning for weir run, replay and bench, with one report instead of a "
        "line for each failed request",
        "Write messages to standard error; each level includes those before it.", BASIC),
    ROW(CACHE, word, cache, switches, "cache", "WEIR_CACHE", "SWITCH", "on or off",
        "on; off for engine direct",
        "Keep freed memory in per-stream caches above the engine.  Off: the driver sees every "
        "block of the pool and direct engines, so that compute-sanitizer can check each.",
        ADVANCED),
    ROW(CACHE_LIMIT, cache, cache_limit, NULL, "cache-limit", "WEIR_CACHE_LIMIT", "SIZE",
        "a size (64MiB, 0), a percentage of what is in use (5%) or max", "2%, at first 16MiB",
        "Limit the idle memory that per-stream caches keep in slabs, for blocks of up to 512KiB.  "
        "A "
        "higher limit makes more requests fast and leaves less to other streams.",
        ADVANCED),
    ROW(STREAM_CHECKS, word, stream_checks, switches, "stream-checks", "WEIR_STREAM_CHECKS",
        "SWITCH", "on or off", "on",
        "Ask the driver whether a stream is being captured, and whether it is still the same.  "
        "Off saves these calls: the program promises to allocate on no stream under capture, and "
        "to destroy no stream while the allocator lives.",
        ADVANCED),
    ROW(HARDEN, list, harden, hardenings, "harden", "WEIR_HARDEN", "LIST",
        "off, or a list of poison, guard, zero-stream and zero-always (poison,guard)", "off",
        "Find writes to freed memory (poison) and beside blocks (guard); zero memory that is new "
        "to its stream (zero-stream), or all memory (zero-always).  Each finding is a line of "
        "the log.  The checks wait for the stream.",
        BASIC),
    ROW(GROW_AHEAD, ahead, grow_ahead, NULL, "grow-ahead", "WEIR_GROW_AHEAD", "SIZE",
        "a size (1GiB, 2%), or 0", "0",
        "Grow in the background, so that requests do not wait for growth.  weir reserves SIZE at "
        "first, and grows when less than SIZE is idle, until twice SIZE is idle; % is of the "
        "device's memory.  A larger size leaves less to other programs.",
        BASIC),
    ROW(PREALLOC_MIN, amount, prealloc_min, NULL, "prealloc-min", "WEIR_PREALLOC_MIN", "SIZE",
        WEIR_SIZE_ACCEPTS, "0",
        "Fail if less than SIZE can be preallocated: at creation of the allocator, or at the "
        "first request.  Without a prealloc setting, weir preallocates SIZE.",
        ADVANCED),
    ROW(PROFILE, file, profile, NULL, "profile", "WEIR_PROFILE", "FILE", "a file, a folder, or off",
        "off",
        "Preallocate what earlier runs needed, and save what this run "
        "needs.  In a folder, each combination of device and settings has a "
        "file.  A prealloc setting overrides the profile.",
        BASIC),
    ROW(DECAY, decay, decay_ms, NULL, "decay", "WEIR_DECAY", "HALF-LIFE",
        "milliseconds (250), a number with ms or s (250ms, 60s), or off", "off",
        "Give idle memory that nothing has needed for HALF-LIFE back to the "
        "device: half of it each HALF-LIFE.  Preallocated memory stays.",
        BASIC),
    ROW(INTERNAL_DEPENDENCIES, word, internal_dependencies, switches, "internal-dependencies",
        "WEIR_INTERNAL_DEPENDENCIES", "SWITCH", "on or off", "off",
        "Before growing, reuse memory freed on other streams by waiting for their work on the "
        "device.  This saves memory, but less work runs in parallel, and kernels that wait for "
        "each other can deadlock.",
        ADVANCED),
    ROW(OOM_REPORT, oom_report, oom_report, NULL, "oom-report", "WEIR_OOM_REPORT", "FILE",
        "stderr, a file, or off", "off; stderr for weir run",
        "Write an OOM report when a request fails: the cause, the figures that show it, and the "
        "setting to try first.  If the file's name ends in .json, the report is JSON.",
        ADVANCED),
    ROW(REGISTRY, word, registry, switches, "registry", "WEIR_REGISTRY", "SWITCH", "on or off",
        "on",
        "Keep a shared registry of a user's processes on each GPU.  When one "
        "process runs out of memory, the others give idle memory back.",
        ADVANCED),
    ROW(PRIORITY, priority, priority, NULL, "priority", "WEIR_PRIORITY", "N",
        "a number from 1 to 1000", "100",
        "Processes with the lowest priority on a GPU give idle memory back first.", ADVANCED),
    ROW(KEEP_FREE, amount, keep_free, NULL, "keep-free", "WEIR_KEEP_FREE", "SIZE",
        WEIR_SIZE_ACCEPTS, "0",
        "Leave SIZE of the device's memory free when growing, for a "
        "display or for programs without weir.",
        BASIC),
    ROW(PEERS, peers, peers, NULL, "peers", "WEIR_PEERS", "LIST",
        "device numbers with commas between (1,2,3), all or none", "none",
        "Let work on other devices use the blocks, through NVLink or PCIe; "
        "all: every device that can.  Engines pool and mapped only.",
        ADVANCED),
};

const struct weir_setting_row *weir__setting_row(enum weir_setting setting) {
    return &weir__option_rows[setting].text;
}
