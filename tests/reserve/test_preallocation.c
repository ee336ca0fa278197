/* SPDX-License-Identifier: MIT */
/* test_preallocation.c: preallocation: a least amount, a deadline, in the background, and beside other processes.
 *
 * Each process has a device model of its own, so that they do not take each other's memory; what they
 * share is the lock.  Processes tell each other by pipes how far they are.  The folder of the lock is
 * each test's own.
 */
#include "tests/fixtures/model_device.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/logged.h"
#include "tests/fixtures/own_file.h"
#include "ipc/turn_lock.h"
#include "config/settings.h"
#include "base/text.h"

enum way { POOL, POOL_ALONE, REGIONS, MAPPED, WAYS };

static char folder[] = "/tmp/weir-priming-XXXXXX";
static pid_t folder_owner;

static void set_up(void) {
    MUST(mkdtemp(folder) != NULL);
    folder_owner = getpid();
    MUST(setenv("WEIR_RUN_FOLDER", folder, 1) == 0);
    catch_log();
    start_model(8 * GIB);
}

static void tear_down(void) {
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (getpid() == folder_owner)
        MUST(system(command) == 0);
}

static uint64_t real_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void nap(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static weir_options options_for(int way, uint64_t bytes) {
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = way <= POOL_ALONE ? WEIR_ENGINE_POOL : WEIR_ENGINE_ARENA;
    options.arena = way == MAPPED ? WEIR_ARENA_MAPPED : WEIR_ARENA_DEFAULT;
    options.front = way == POOL_ALONE ? WEIR_SWITCH_OFF : WEIR_SWITCH_DEFAULT;
    options.log = WEIR_LOG_WARNING;
    if (bytes > 0)
        options.prealloc = bytes_amount(bytes);
    return options;
}

static char message[320];

static weir_status try_on(const struct weir_driver *table, const weir_options *options,
                          weir_allocator **a) {
    *a = NULL;
    message[0] = '\0';
    return weir__allocator_create_on(table, options, a, message, sizeof message);
}

static weir_allocator *make_on(const struct weir_driver *table, const weir_options *options) {
    weir_allocator *a;
    weir_status status = try_on(table, options, &a);

    ck_assert_msg(status == WEIR_OK, "%s: %s", weir_status_name(status), message);
    return a;
}

static void *take(weir_allocator *a, size_t bytes) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, A, &block));
    return block;
}

static void destroy(weir_allocator *a) {
    OK(weir_allocator_destroy(a));
    check_model();
}

/* Of the device, so that only so much is left. */
static CUdeviceptr leave(uint64_t bytes) {
    CUdeviceptr block;

    CU(driver->cuMemAlloc(&block, device_free() - bytes));
    return block;
}

/* Of 1 GiB: a pool takes whole units, BFC goes down by tenths. */
static uint64_t least_of(int way) {
    return way == REGIONS ? 900 * MIB : GIB - 32 * MIB;
}

/* What is said where a device has no more but what is less than a region, which the driver refuses. */
static const char *end_of_device(int way) {
    return way == REGIONS ? "iB; the driver refused more, with " : "iB; the device has no more";
}

static int log_has(const char *text) {
    (void)lines();
    return strstr(logged, text) != NULL;
}

/* ---- the least ------------------------------------------------------------------------------- */

START_TEST(partial_success_is_reported) {
    weir_options options = options_for(_i, 4 * GIB);
    weir_allocator *a;
    weir_statistics s;

    (void)leave(GIB);
    a = make_on(driver, &options);
    ck_assert(log_has("requested 4GiB, got and kept "));
    ck_assert_msg(strstr(logged, _i == REGIONS ? "MiB; the driver refused more, with 86MiB free"
                                               : "1GiB; the device has no more") != NULL,
                  "%s", logged);
    s = stats_of(a);
    ck_assert_uint_eq(s.prealloc_asked, 4 * GIB);
    MUST_LE(least_of(_i), s.prealloc_got);
    MUST_LE(s.prealloc_got, GIB);
    ck_assert_uint_eq(s.prealloc_kept, s.reserve);
    ck_assert_uint_eq(s.prealloc_pending, 0);
    destroy(a);
}
END_TEST

/* A driver's pool gives back whole units, down to no more than its threshold. */
START_TEST(parts_of_units_are_kept) {
    for (uint64_t bytes = 16 * MIB; bytes <= 100 * MIB; bytes += 84 * MIB) {
        weir_options options = options_for(_i, bytes);
        weir_allocator *a;

        options.release_threshold = bytes_amount(0);
        a = make_on(driver, &options);
        MUST_LE(bytes, stats_of(a).prealloc_kept);
        OK(weir_free(a, take(a, 4 * MIB), A));
        CU(driver->cuCtxSynchronize());
        MUST_LE(bytes, stats_of(a).reserve);
        destroy(a);
    }
}
END_TEST

/* A pool's limit is whole units: what it leaves is had, and the rest is told. */
START_TEST(a_limit_of_parts_of_units) {
    weir_options options = options_for(_i, 100 * MIB);
    weir_allocator *a;

    options.limit = bytes_amount(100 * MIB);
    a = make_on(driver, &options);
    ck_assert(log_has("requested 100MiB, got and kept 96MiB"));
    MUST_EQ(stats_of(a).reserve, 96 * MIB);
    destroy(a);
}
END_TEST

/* In chunks, until the device has no more; on a device whose clock is the host's. */
START_TEST(before_the_deadline_the_device_may_end) {
    weir_options options = options_for(_i, 3 * GIB + 512 * MIB);
    struct weir_driver table = *driver;
    weir_allocator *a;

    table.charge = NULL;
    options.prealloc_deadline_ms = 10000;
    a = make_on(&table, &options);
    MUST_EQ(stats_of(a).prealloc_kept, 3 * GIB + 512 * MIB);
    destroy(a);
    (void)leave(2 * GIB + 256 * MIB);
    a = make_on(driver, &options);
    ck_assert_msg(log_has(end_of_device(_i)), "%s", logged);
    MUST_LE(2 * GIB, stats_of(a).prealloc_kept);
    MUST_LE(stats_of(a).prealloc_kept, 2 * GIB + 256 * MIB);
    destroy(a);
}
END_TEST

/* A share of what is free is taken again when the turn has come; or stays as it was first seen. */
START_TEST(a_device_that_does_not_tell_again_what_is_free) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;

    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_FREE};
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 2, CUDA_ERROR_UNKNOWN, 0);
    a = make_on(driver, &options);
    MUST_EQ(stats_of(a).prealloc_asked, 4 * GIB);
    MUST_EQ(stats_of(a).prealloc_kept, 4 * GIB);
    destroy(a);
}
END_TEST

/* Not the device, if it has some. */
START_TEST(what_stands_against_more_is_named) {
    static const char *const causes[] = {"; keep-free keeps for others 3GiB",
                                         "; a share leaves 128MiB of the device",
                                         "; the limit is 2GiB"};
    weir_options options = options_for(_i % WAYS, 5 * GIB);
    int way = _i / WAYS % 3, is_behind = _i / WAYS / 3 % 2, is_little = _i / WAYS / 6;
    weir_allocator *a;

    if (is_little && way != 1)
        return; /* of which a share leaves more than there is */
    (void)leave(is_little ? 100 * MIB : 6 * GIB);
    if (way == 0)
        options.leave = bytes_amount(3 * GIB);
    if (way == 1) {
        options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
        options.ledger = WEIR_SWITCH_OFF;
    }
    if (way == 2)
        options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    options.prealloc_mode = is_behind ? WEIR_PREALLOC_BACKGROUND : WEIR_PREALLOC_FOREGROUND;
    a = make_on(driver, &options);
    if (way == 2)
        OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    OK(weir_free(a, take(a, 1000), A));
    weir__model_advance(1000 * MS);
    OK(weir_free(a, take(a, 3 * MIB), A));
    if (way != 1 || is_behind) /* else a share is what others leave */
        ck_assert_msg(log_has(causes[way]), "%s", logged);
    destroy(a);
    options.prealloc_min = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    if (way > 0)
        return;
    EXPECT(WEIR_E_LIMIT, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, causes[way]) != NULL, "%s", message);
}
END_TEST

/* What a call of the program's gets is told likewise; nothing is held back for others, as of a preallocated share. */
START_TEST(what_a_call_gets_is_told) {
    int way = _i % WAYS, cause = _i / WAYS;
    const char *const causes[] = {"; keep-free keeps for others 3GiB", "; the limit is 1GiB",
                                  strchr(end_of_device(way), ';')};
    weir_options options = options_for(way, 0);
    weir_allocator *a;
    char expected[128], kept[32];
    size_t reserve = 0;

    (void)leave(4 * GIB);
    if (cause == 0)
        options.leave = bytes_amount(3 * GIB);
    if (cause == 2) {
        options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
        options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
        options.ledger = WEIR_SWITCH_OFF;
    }
    a = make_on(driver, &options);
    OK(weir_preallocate(a, 512 * MIB, NULL));
    if (cause == 1)
        OK(weir_set_limit(a, bytes_amount(GIB)));
    ck_assert(!log_has("preallocation"));
    EXPECT(cause == 2 ? WEIR_E_NO_MEMORY : WEIR_E_LIMIT, weir_preallocate(a, 8 * GIB, &reserve));
    weir__bytes_show(reserve, kept, sizeof kept);
    snprintf(expected, sizeof expected,
             "weir: warning: preallocation: requested 8GiB, got and kept %s%s", kept,
             causes[cause]);
    ck_assert_msg(log_has(expected), "not %s: %s", expected, logged);
    destroy(a);
}
END_TEST

/* Where there is no reserved memory, or it cannot be told, or the host has no memory. */
START_TEST(why_a_call_gets_nothing_is_told) {
    weir_options options = options_for(POOL_ALONE, 0);
    struct weir_driver old = *driver;
    weir_allocator *a;

    old.capabilities &= ~(unsigned)WEIR_CAP_POOL_FIGURES;
    a = make_on(&old, &options);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    ck_assert_msg(
        log_has("weir: error: weir_preallocate: the driver (before 11.3) does not report"), "%s",
        logged);
    destroy(a);
    options.engine = WEIR_ENGINE_PLATFORM;
    a = make_on(driver, &options);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, NULL));
    ck_assert_msg(log_has("weir: error: weir_preallocate: engine direct reserves no memory"), "%s",
                  logged);
    destroy(a);
    options = options_for(MAPPED, 0);
    a = make_on(driver, &options);
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_NOT_SUPPORTED, 1);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, 64 * MIB, NULL));
    weir__model_faults_clear();
    ck_assert_msg(log_has("weir_preallocate: not supported by this driver or engine: the driver "
                          "answered CUDA_ERROR_NOT_SUPPORTED"),
                  "%s", logged);
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_preallocate(a, 64 * MIB, NULL));
    weir__model_faults_clear();
    MUST(lines() == 1); /* what it answered */
    destroy(a);
}
END_TEST

/* Of settings that both stand against it, the one that it met; a share is one too. */
START_TEST(which_limit_it_was_is_named) {
    weir_options options = options_for(_i, 5 * GIB);
    weir_allocator *a;

    options.leave = bytes_amount(GIB);
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    a = make_on(driver, &options);
    OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    OK(weir_free(a, take(a, 1000), A));
    ck_assert_msg(log_has("; the limit is 2GiB"), "%s", logged);
    destroy(a);
    start_model(8 * GIB + 8 * MIB);
    options = options_for(_i, 8 * GIB + 8 * MIB);
    options.limit = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    a = make_on(driver, &options);
    ck_assert_msg(log_has("; the limit, a share, is 8GiB"), "%s", logged);
    destroy(a);
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    a = make_on(driver, &options);
    OK(weir_set_limit(a, bytes_amount(2 * GIB)));
    OK(weir_free(a, take(a, 1000), A));
    ck_assert_msg(log_has("; the limit is 2GiB"), "%s", logged);
    destroy(a);
}
END_TEST

/* There is room beside a share, and a driver that takes no more of it. */
START_TEST(a_share_that_the_driver_refuses) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemAlloc, WEIR_ENTRY_cuMemCreate};
    weir_options options = options_for(_i, 0);
    weir_allocator *a;

    options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    weir__model_fail(entries[_i], 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options, &a));
    weir__model_faults_clear();
    ck_assert_msg(log_has("got and kept 0B; the driver refused more, with 8GiB free"), "%s",
                  logged);
}
END_TEST

/* Another program's variable knows nothing of a limit: it asks for less then, in units if it can be.  What is asked by
 * weir's own is held to it. */
START_TEST(what_a_variable_asks_is_held_to_the_limit) {
    static const struct {
        uint64_t limit, asked;
        const char *shown;
    } ways[] = {{GIB + 5 * MIB, GIB, "of 1GiB: "}, {20 * MIB, 20 * MIB, "of 20MiB: "}};
    weir_options options = options_for(REGIONS, 0);
    weir_allocator *a;

    MUST(setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5", 1) == 0);
    OK(weir_options_from_env(&options, NULL, 0));
    options.limit = bytes_amount(ways[_i].limit);
    a = make_on(driver, &options);
    ck_assert_msg(
        log_has("XLA_PYTHON_CLIENT_MEM_FRACTION requests a preallocation of 4GiB, above the limit"),
        "%s", logged);
    ck_assert_msg(strstr(logged, ways[_i].shown) != NULL, "%s", logged);
    OK(weir_free(a, take(a, 1000), A));
    MUST_EQ(stats_of(a).prealloc_asked, ways[_i].asked);
    destroy(a);
    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_LIMIT, try_on(driver, &options, &a));
}
END_TEST

START_TEST(less_than_the_least_is_a_failure) {
    weir_options options = options_for(_i, 4 * GIB);
    weir_allocator *a;
    CUdeviceptr hoard = leave(GIB);

    options.prealloc_mode = _i % 2 ? WEIR_PREALLOC_BACKGROUND : WEIR_PREALLOC_DEFAULT;
    options.prealloc_min = bytes_amount(2 * GIB);
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "requested 4GiB, at least 2GiB, got only ") &&
                      strstr(message, end_of_device(_i)),
                  "%s", message);
    ck_assert_uint_eq(device_free(), GIB); /* nothing stays */
    options.prealloc_min = bytes_amount(512 * MIB);
    destroy(make_on(driver, &options));
    options.prealloc_min = (weir_amount){.kind = WEIR_AMOUNT_MAX}; /* all of it */
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "requested 4GiB, at least 4GiB, got only ") != NULL, "%s",
                  message);
    CU(driver->cuMemFree(hoard));
    destroy(make_on(driver, &options));
    options.prealloc_min = bytes_amount(4 * GIB);
    destroy(make_on(driver, &options));
}
END_TEST

/* Which the device alone tells of amounts of different kinds. */
START_TEST(the_least_is_no_more_than_the_whole) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;

    options.prealloc = (weir_amount){.value = 100000, .kind = WEIR_AMOUNT_OF_TOTAL};
    options.prealloc_min = bytes_amount(device_free());
    EXPECT(WEIR_E_INVALID, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "prealloc-min '") &&
                      strstr(message, "' is more than prealloc '10%', which is ") &&
                      strstr(message, "; expected at most that"),
                  "%s", message);
    options.prealloc_min = bytes_amount(MIB);
    destroy(make_on(driver, &options));
    options.prealloc = bytes_amount(GIB);
    options.prealloc_min = (weir_amount){.value = 900000, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_INVALID, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "prealloc-min '90%' is more than prealloc '1GiB', which is 1GiB"),
                  "%s", message);
    options.prealloc = (weir_amount){.value = 100000, .kind = WEIR_AMOUNT_OF_FREE}; /* now */
    EXPECT(WEIR_E_NO_MEMORY, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "; no more was asked: set prealloc-min to that or less") != NULL,
                  "%s", message);
    options.prealloc = (weir_amount){.value = 100000, .kind = WEIR_AMOUNT_OF_TOTAL, .reserved = 1};
    options.prealloc_min = bytes_amount(device_free());
    EXPECT(WEIR_E_INVALID, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, weir__compat_name(1)) != NULL, "%s", message);
}
END_TEST

START_TEST(requests_fail_until_the_least_is_there) {
    weir_options options = options_for(_i, 4 * GIB);
    weir_allocator *a;
    CUdeviceptr hoard = leave(GIB);
    void *block = NULL;

    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    options.prealloc_min = bytes_amount(2 * GIB);
    a = make_on(driver, &options);
    ck_assert_uint_eq(stats_of(a).reserve, 0);
    for (int i = 0; i < 2; i++) {
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 1000, A, &block));
        ck_assert(log_has("error: preallocation: requested 4GiB, at least 2GiB, got only "));
        ck_assert(strstr(logged, "set prealloc-min to that or less") != NULL);
        ck_assert_uint_eq(device_free(), GIB); /* nothing stays */
        ck_assert_uint_eq(stats_of(a).prealloc_kept, 0);
    }
    CU(driver->cuMemFree(hoard));
    weir__model_fail(_i <= POOL_ALONE ? WEIR_ENTRY_cuMemAllocFromPoolAsync
                     : _i == MAPPED   ? WEIR_ENTRY_cuMemCreate
                                      : WEIR_ENTRY_cuMemAlloc,
                     1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_alloc(a, 1000, A, &block));
    MUST(log_has(weir_status_message(WEIR_E_DRIVER)));
    OK(weir_free(a, take(a, 1000), A));
    MUST_LE(2 * GIB, stats_of(a).reserve);
    ck_assert_uint_eq(stats_of(a).prealloc_got, stats_of(a).growth_bytes);
    destroy(a);
}
END_TEST

START_TEST(the_least_alone_is_the_whole) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;

    options.prealloc_min = bytes_amount(GIB);
    a = make_on(driver, &options);
    ck_assert_uint_eq(stats_of(a).prealloc_got, GIB);
    destroy(a);
    options.prealloc = bytes_amount(GIB - 1);
    EXPECT(WEIR_E_INVALID, try_on(driver, &options, &a));
    ck_assert_msg(strstr(message, "prealloc-min '1GiB' is more than prealloc") != NULL, "%s",
                  message);
}
END_TEST

/* ---- the deadline ---------------------------------------------------------------------------- */

/* A driver whose growth takes this long by the model's clock; where a pool serves A it does not. */
static uint64_t slow_ns;
static struct weir_driver slow;
static CUresult slow_pool(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    weir__model_advance(stream == A ? 0 : slow_ns);
    return driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
}
static CUresult slow_direct(CUdeviceptr *block, size_t bytes) {
    weir__model_advance(slow_ns);
    return driver->cuMemAlloc(block, bytes);
}
static CUresult slow_handle(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags) {
    weir__model_advance(slow_ns);
    return driver->cuMemCreate(handle, bytes, properties, flags);
}

static void make_slow(uint64_t ns) {
    slow_ns = ns;
    slow = *driver;
    slow.cuMemAllocFromPoolAsync = slow_pool;
    slow.cuMemAlloc = slow_direct;
    slow.cuMemCreate = slow_handle;
}

START_TEST(a_deadline_ends_it_with_what_there_is) {
    weir_options options = options_for(_i, 6 * GIB);
    weir_allocator *a;
    weir_statistics s;

    make_slow(2000 * MS); /* what it waits for other processes is real, and counts too */
    options.prealloc_deadline_ms = 3000;
    a = make_on(&slow, &options);
    ck_assert(log_has("requested 6GiB, got and kept"));
    ck_assert(strstr(logged, "the deadline has passed") != NULL);
    s = stats_of(a);
    MUST_LE(GIB, s.prealloc_kept);
    MUST_LE(s.prealloc_kept, 2 * GIB);
    ck_assert_uint_eq(s.prealloc_got, s.prealloc_kept);
    MUST_LE(s.prealloc_ns, _i == KIND_MAPPED ? 30000 * MS : 10000 * MS); /* eleven handles a step */
    destroy(a);
    options.prealloc_min = bytes_amount(3 * GIB);
    EXPECT(WEIR_E_NO_MEMORY, try_on(&slow, &options, &a));
    ck_assert_msg(strstr(message, "at least 3GiB, got") && strstr(message, "deadline has passed"),
                  "%s", message);
    options.prealloc_deadline_ms = UINT32_MAX;
    a = make_on(&slow, &options);
    ck_assert_uint_eq(stats_of(a).prealloc_got, 6 * GIB);
    destroy(a);
}
END_TEST

static struct weir_driver real; /* the model as a device that is none */

static void await_reserve(weir_allocator *a, uint64_t bytes) {
    uint64_t from = real_ms();

    while (stats_of(a).reserve < bytes || stats_of(a).prealloc_pending > 0) {
        MUST_LE(real_ms() - from, 30000);
        nap(1);
    }
}

/* ---- what the first requests need on the host ------------------------------------------------- */

enum { FIRST = 96 };

/* Tables for so many blocks are there: nothing is taken for them but what is kept of a stream, and of the regions
 * that blocks of a pool are cut from. */
static void expect_nothing_is_made(weir_allocator *a, size_t bytes) {
    uint64_t before = stats_of(a).host_bytes, grown = stats_of(a).growth_bytes, most;
    void *block[FIRST];

    for (int i = 0; i < FIRST; i++)
        block[i] = take(a, bytes);
    MUST_EQ(stats_of(a).growth_bytes, grown);
    most = a->options.engine == WEIR_ENGINE_POOL ? 32 * KIB : KIB;
    MUST_LE(stats_of(a).host_bytes, before + most);
    for (int i = 0; i < FIRST; i++)
        OK(weir_free(a, block[i], A));
}

/* By the preallocation, however it is done. */
START_TEST(tables_are_made_beforehand) {
    weir_options options = options_for(_i / 4, 7 * GIB);
    weir_allocator *a;

    if (_i / 4 == POOL_ALONE) /* which has none */
        return;
    real = *driver;
    real.aside = NULL;
    options.prealloc = _i % 4 == 3 ? bytes_amount(0) : options.prealloc;
    options.prealloc_mode = _i % 4 == 1 ? WEIR_PREALLOC_BACKGROUND : WEIR_PREALLOC_FOREGROUND;
    options.prealloc_deadline_ms = _i % 4 == 2 ? 100000 : options.prealloc_deadline_ms;
    a = make_on(&real, &options);
    if (_i % 4 == 3)
        OK(weir_preallocate(a, 7 * GIB, NULL));
    else
        await_reserve(a, 7 * GIB);
    expect_nothing_is_made(a, 64 * MIB);
    destroy(a);
}
END_TEST

/* Where a mapped arena's memory will come to lie is known without any. */
START_TEST(a_mapped_arena_has_tables_from_the_start) {
    weir_options options = options_for(MAPPED, 0);
    weir_allocator *a = make_on(driver, &options);
    void *small[FIRST], *large[FIRST];
    uint64_t before = stats_of(a).host_bytes;

    MUST_LE(before, MIB);
    for (int i = 0; i < FIRST; i++) {
        small[i] = take(a, 1000 + (size_t)i * KIB);
        large[i] = take(a, 2 * MIB);
    }
    MUST_LE(stats_of(a).host_bytes, before + 128 * KIB); /* records and chunks */
    for (int i = 0; i < FIRST; i++) {
        OK(weir_free(a, small[i], A));
        OK(weir_free(a, large[i], A));
    }
    destroy(a);
}
END_TEST

/* A 2048th of what was preallocated, and no more for more than 32 GiB.  Not of a mapped arena, whose
 * addresses ThreadSanitizer has no room for on such a device. */
START_TEST(tables_have_a_bound) {
    weir_options options = options_for(_i, 100 * GIB);
    weir_allocator *a;

    if (!is_roomy())
        return;
    start_model(128 * GIB);
    a = make_on(driver, &options);
    MUST_LE(stats_of(a).host_bytes, 24 * MIB);
    if (_i != POOL_ALONE)
        MUST_LE(16 * MIB, stats_of(a).host_bytes);
    destroy(a);
}
END_TEST

/* ---- in the background ----------------------------------------------------------------------- */

/* It stops where it is. */
START_TEST(in_the_background_a_deadline_passes_too) {
    weir_options options = options_for(_i, 4 * GIB);
    weir_allocator *a;
    weir_statistics s;

    make_slow(2000 * MS); /* as above */
    options.log = WEIR_LOG_WARNING;
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_deadline_ms = 3000;
    a = make_on(&slow, &options);
    for (int i = 0; i < 10; i++) {
        weir__model_advance(2000 * MS);
        OK(weir_free(a, take(a, 1000 + (size_t)i % 2 * 8 * MIB), A));
    }
    ck_assert(log_has("the deadline has passed"));
    s = check_identities(a);
    MUST_LE(1, s.prealloc_got);
    MUST_LE(s.reserve, 4 * GIB - 1);
    ck_assert_uint_eq(s.prealloc_pending, 0);
    destroy(a);
}
END_TEST

START_TEST(in_the_background_nobody_waits) {
    weir_options options = options_for(_i, 2 * GIB);
    weir_allocator *a;
    uint64_t started;
    weir_statistics s;

    make_slow(2 * MS);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    a = make_on(&slow, &options);
    started = driver->ticks();
    OK(weir_free(a, take(a, 1000), A)); /* grows by itself */
    MUST_LE(driver->ticks() - started, 30 * MS);
    for (int i = 0; i < 200; i++) {
        weir__model_advance(30 * MS);
        started = driver->ticks();
        OK(weir_free(a, take(a, 1000 + (size_t)i % 2 * 8 * MIB), A));
        MUST_LE(driver->ticks() - started, MS);
    }
    s = check_identities(a);
    ck_assert_uint_eq(s.prealloc_asked, 2 * GIB);
    MUST_LE(2 * GIB, s.prealloc_kept);
    MUST_LE(s.prealloc_got, 2 * GIB);
    MUST_LE(2 * GIB, s.prealloc_got + 32 * MIB);
    ck_assert_uint_eq(s.prealloc_got, s.ahead_bytes);
    ck_assert_uint_eq(s.prealloc_pending, 0);
    MUST_LE(2 * MS, s.prealloc_ns);
    destroy(a);
}
END_TEST

static void play_turns(weir_allocator *a, int count) {
    for (int i = 0; i < count; i++) {
        weir__model_advance(2 * MS);
        OK(weir_free(a, take(a, 1000 + (size_t)i % 2 * 8 * MIB), A));
    }
}

enum end_of_it { ALL_IS_THERE, IT_IS_REFUSED, IT_IS_LATE, ENDS_OF_IT };

/* However that ends, grow-ahead comes after it, and the books tell them apart. */
START_TEST(grow_ahead_comes_after_what_is_preallocated) {
    int way = _i % WAYS;
    enum end_of_it ends = (enum end_of_it)(_i / WAYS);
    weir_options options = options_for(way, 6 * GIB);
    uint64_t got = 0, ns = 0, later = 0;
    weir_event events[512];
    weir_allocator *a;
    weir_statistics s;
    size_t count, blocks = 0;
    CUdeviceptr hoard;
    void *block[128];

    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.prealloc_deadline_ms = ends == IT_IS_LATE ? 200 : UINT32_MAX;
    options.headroom = bytes_amount(256 * MIB);
    options.headroom_high = bytes_amount(512 * MIB);
    a = make_on(driver, &options);
    ck_assert_uint_eq(stats_of(a).ahead_steps, 0); /* it begins in a turn */
    play_turns(a, 1);
    s = stats_of(a);
    MUST_LE(1, s.prealloc_got);
    MUST_LE(1, s.prealloc_pending);
    hoard = ends == IT_IS_REFUSED ? leave(2 * MIB) : 0;
    weir__model_advance(ends == IT_IS_LATE ? 200 * MS : 10 * MS);
    play_turns(a, ends == ALL_IS_THERE ? 300 : 2);
    s = stats_of(a);
    MUST((s.prealloc_got >= 6 * GIB - 32 * MIB) == (ends == ALL_IS_THERE));
    ck_assert_uint_eq(s.prealloc_pending, 0);
    ck_assert_int_eq(log_has("preallocation: requested 6GiB, got and kept "), ends != ALL_IS_THERE);
    if (ends == IT_IS_LATE)
        ck_assert(strstr(logged, "the deadline has passed") != NULL);
    MUST_LE(s.ahead_refusals, ends == IT_IS_REFUSED); /* of grow-ahead's, which was next */
    if (hoard)
        CU(driver->cuMemFree(hoard));
    for (s = stats_of(a); s.reserve - s.in_use > 128 * MIB; s = stats_of(a))
        block[blocks++] = take(a, 64 * MIB);
    play_turns(a, 100);
    OK(weir_events(a, 0, events, sizeof events[0], 512, &count));
    for (size_t i = 0; i < count; i++) {
        if (events[i].cause == WEIR_EVENT_HEADROOM)
            later += events[i].got;
        if (events[i].cause != WEIR_EVENT_BACKGROUND)
            continue;
        ck_assert_uint_eq(later, 0);
        MUST_LE(events[i].got, a->reserve.engine->step_bytes);
        got += events[i].got;
        ns += events[i].stall_ns;
    }
    s = check_identities(a);
    MUST_LE(1, later);
    ck_assert_uint_eq(s.prealloc_got, got);
    ck_assert_uint_eq(s.prealloc_ns, ns);
    ck_assert_uint_eq(s.ahead_bytes, got + later);
    MUST_LE(256 * MIB, s.reserve - s.in_use);
    while (blocks > 0)
        OK(weir_free(a, block[--blocks], A));
    destroy(a);
}
END_TEST

/* What was asked for is there by then, of which requests made most. */
START_TEST(in_the_background_requests_may_be_first) {
    weir_options options = options_for(_i, GIB);
    weir_allocator *a;
    weir_statistics s;

    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(driver, &options);
    OK(weir_free(a, take(a, 2 * GIB), A));
    weir__model_advance(30 * MS);
    OK(weir_free(a, take(a, 3 * GIB), A)); /* more than is idle, so that a turn comes before it */
    s = check_identities(a);
    MUST_LE(2 * GIB, s.prealloc_kept);
    MUST_LE(s.prealloc_got, GIB - 1);
    MUST_EQ(s.prealloc_pending, 0);
    ck_assert(!log_has("preallocation"));
    destroy(a);
}
END_TEST

START_TEST(a_thread_preallocates) {
    weir_options options = options_for(_i, 2 * GIB);
    weir_allocator *a;
    weir_event events[512];
    size_t count;

    real = *driver;
    real.aside = NULL;
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(&real, &options);
    await_reserve(a, 2 * GIB);
    OK(weir_free(a, take(a, 500 * MIB), A));
    OK(weir_events(a, 0, events, sizeof events[0], 512, &count));
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(events[i].cause, WEIR_EVENT_BACKGROUND);
        MUST_LE(events[i].got, a->reserve.engine->step_bytes);
    }
    ck_assert_uint_eq(stats_of(a).prealloc_got, 2 * GIB);
    ck_assert_uint_eq(stats_of(a).stall_ns, 0);
    destroy(a);
    /* With grow-ahead beside it, and a part that must be there at once. */
    options.prealloc_min = bytes_amount(GIB);
    options.headroom = bytes_amount(256 * MIB);
    a = make_on(&real, &options);
    MUST_LE(GIB, stats_of(a).reserve);
    (void)take(a, 100 * MIB);
    await_reserve(a, 2 * GIB);
    ck_assert_uint_eq(stats_of(a).prealloc_got, 2 * GIB);
    (void)weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1); /* with its block */
    OK(weir_allocator_destroy(a));
}
END_TEST

START_TEST(it_ends_with_the_allocator) {
    real = *driver;
    real.aside = NULL;
    for (int i = 0; i < 10; i++) {
        weir_options options = options_for(_i, 6 * GIB);

        options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
        destroy(make_on(&real, &options));
    }
    ck_assert_uint_eq(device_free(), 8 * GIB);
}
END_TEST

START_TEST(what_the_device_lacks_is_told) {
    weir_options options = options_for(_i, 4 * GIB);
    weir_allocator *a;

    (void)leave(GIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(driver, &options);
    weir__model_advance(1000 * MS);
    OK(weir_free(a, take(a, 1000), A));
    ck_assert(log_has("requested 4GiB, got and kept"));
    ck_assert(strstr(logged, "the device has no more") != NULL);
    ck_assert_uint_eq(stats_of(a).prealloc_pending, 0);
    MUST_LE(least_of(_i), stats_of(a).prealloc_kept);
    destroy(a);
}
END_TEST

/* A share leaves a 64th of the device, which is all that programs without weir have left of it. */
START_TEST(in_the_background_a_share_may_be_nothing) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;
    uint64_t before;

    (void)leave(100 * MIB);
    options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(driver, &options);
    before = stats_of(a).reserve;
    weir__model_advance(1000 * MS);
    OK(weir_free(a, take(a, 1000), A));
    ck_assert(log_has("got and kept"));
    ck_assert_uint_eq(stats_of(a).prealloc_pending, 0);
    MUST_LE(stats_of(a).reserve, before + 32 * MIB); /* by the request */
    destroy(a);
}
END_TEST

/* Of what is free when the driver does not say how much, a step is taken. */
START_TEST(in_the_background_a_share_of_what_is_not_told) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;

    (void)leave(GIB);
    options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    a = make_on(driver, &options);
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    weir__model_advance(1000 * MS);
    OK(weir_free(a, take(a, 1000), A));
    weir__model_faults_clear();
    MUST_LE(32 * MIB, stats_of(a).reserve);
    destroy(a);
}
END_TEST

/* ---- other processes ------------------------------------------------------------------------- */

/* A process that holds the lock until it is told to end, or is killed. */
struct holder {
    pid_t pid;
    int tell;
};

static void lock_name(char name[WEIR_UUID_BYTES]) {
    CU(weir__driver_uuid(driver, 0, name));
}

static void let_go(const struct holder *holder) {
    int state;

    MUST(write(holder->tell, "", 1) == 1);
    close(holder->tell);
    MUST(waitpid(holder->pid, &state, 0) == holder->pid);
}

/* In a process of its own, which has a device of its own: what preallocation made of it. */
struct outcome {
    weir_status status;
    uint64_t kept, waited_ns, took_ms;
    uint64_t named; /* times that the driver was asked which device it is */
    char log[512];
};

struct child {
    pid_t pid;
    int result; /* one byte as it begins, and the outcome */
};

static struct child start(const weir_options *options) {
    struct child child;
    int ends[2];
    char begun;

    MUST(pipe(ends) == 0);
    child.pid = fork();
    if (child.pid == 0) {
        struct outcome o;
        weir_allocator *a;
        uint64_t from;

        alarm(60);
        memset(&o, 0, sizeof o);
        start_model(8 * GIB);
        catch_log();
        MUST(write(ends[1], "", 1) == 1);
        from = real_ms();
        o.status = try_on(driver, options, &a);
        o.took_ms = real_ms() - from;
        if (a) {
            o.kept = stats_of(a).prealloc_kept;
            o.waited_ns = stats_of(a).prealloc_waited_ns;
            o.named = weir__model_calls(WEIR_ENTRY_cuDeviceGetUuid);
            (void)weir_allocator_destroy(a);
        }
        (void)lines();
        snprintf(o.log, sizeof o.log, "%.*s", (int)sizeof o.log - 1, logged);
        _exit(write(ends[1], &o, sizeof o) != (ssize_t)sizeof o);
    }
    close(ends[1]);
    child.result = ends[0];
    MUST(read(child.result, &begun, 1) == 1);
    return child;
}

static int has_ended(const struct child *child, int ms) {
    return poll(&(struct pollfd){.fd = child->result, .events = POLLIN}, 1, ms) == 1;
}

static struct outcome outcome_of(const struct child *child) {
    struct outcome o;
    int state;

    MUST(read(child->result, &o, sizeof o) == (ssize_t)sizeof o);
    MUST(waitpid(child->pid, &state, 0) == child->pid);
    ck_assert_int_eq(state, 0);
    close(child->result);
    return o;
}

/* These tests open no driver in the process that forks. */
static void set_up_apart(void) {
    MUST(mkdtemp(folder) != NULL);
    folder_owner = getpid();
    MUST(setenv("WEIR_RUN_FOLDER", folder, 1) == 0);
}

/* The name needs a device to ask: in a process that goes. */
static struct holder hold_apart(void) {
    struct holder holder;
    int told[2], ready[2];
    char byte = 1;

    MUST(pipe(told) == 0);
    MUST(pipe(ready) == 0);
    holder.pid = fork();
    if (holder.pid == 0) {
        struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
        char name[WEIR_UUID_BYTES];

        alarm(60);
        close(told[1]);
        start_model(8 * GIB);
        lock_name(name);
        if (weir__process_lock_try(&lock, name) != 1 || write(ready[1], &byte, 1) != 1)
            _exit(1);
        (void)!read(told[0], &byte, 1);
        _exit(0);
    }
    close(ready[1]);
    MUST(read(ready[0], &byte, 1) == 1);
    close(told[0]);
    holder.tell = told[1];
    return holder;
}

START_TEST(one_after_the_other) {
    weir_options options = options_for(_i, GIB);
    struct holder holder = hold_apart();
    struct child child = start(&options);
    struct outcome o;

    ck_assert(!has_ended(&child, 200));
    let_go(&holder);
    o = outcome_of(&child);
    ck_assert_int_eq(o.status, WEIR_OK);
    ck_assert_uint_eq(o.kept, GIB);
    MUST_LE(200, o.took_ms + 1);
    MUST_LE(1, o.waited_ns);
    ck_assert_uint_eq(o.named, 1); /* however often it looked */
    ck_assert_str_eq(o.log, "");
}
END_TEST

START_TEST(who_dies_gives_it_up) {
    weir_options options = options_for(_i, GIB);
    struct holder holder = hold_apart();
    struct child child = start(&options);

    ck_assert(!has_ended(&child, 100));
    MUST(kill(holder.pid, SIGKILL) == 0);
    ck_assert_int_eq(outcome_of(&child).status, WEIR_OK);
    MUST(waitpid(holder.pid, NULL, 0) == holder.pid);
}
END_TEST

/* Nothing is there, and that is no failure. */
START_TEST(a_deadline_may_pass_in_the_queue) {
    struct weir_process_lock before = WEIR_PROCESS_LOCK_NONE;
    weir_options options = options_for(_i, GIB);
    weir_allocator *a;
    char name[WEIR_UUID_BYTES];

    lock_name(name);
    MUST_EQ(weir__process_lock_try(&before, name), 1);
    options.prealloc_deadline_ms = 1; /* a pause is no shorter */
    a = make_on(driver, &options);
    ck_assert_msg(log_has("got and kept 0B; the deadline has passed"), "%s", logged);
    MUST_EQ(stats_of(a).reserve, 0);
    weir__process_lock_give(&before);
    destroy(a);
}
END_TEST

START_TEST(a_deadline_bounds_the_wait) {
    weir_options options = options_for(_i, GIB);
    struct holder holder = hold_apart();
    struct child child;
    struct outcome o;

    options.prealloc_deadline_ms = 2000; /* of which the wait takes half */
    child = start(&options);
    o = outcome_of(&child);
    ck_assert_int_eq(o.status, WEIR_OK);
    ck_assert_uint_eq(o.kept, GIB);
    MUST_LE(1000, o.took_ms + 1);
    MUST_LE(o.took_ms, 30000);
    ck_assert_msg(strstr(o.log, "another process has not ended its own") != NULL, "%s", o.log);
    let_go(&holder);
}
END_TEST

/* The thread waits; neither creation nor a request does. */
START_TEST(in_the_background_others_are_waited_for_too) {
    weir_options options = options_for(_i, GIB);
    struct holder holder = hold_apart();
    int good = 0, state;
    pid_t child = fork();

    if (child == 0) {
        weir_allocator *a;
        uint64_t from = real_ms();

        alarm(60);
        start_model(8 * GIB);
        real = *driver;
        real.aside = NULL;
        options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
        a = make_on(&real, &options);
        OK(weir_free(a, take(a, 1000), A));
        nap(100);
        good = real_ms() - from < 30000 && stats_of(a).prealloc_got == 0 &&
               stats_of(a).prealloc_pending > 0;
        MUST(write(holder.tell, "", 1) == 1);
        await_reserve(a, GIB);
        good = good && stats_of(a).prealloc_waited_ns > 50 * MS;
        (void)weir_allocator_destroy(a);
        _exit(!good);
    }
    close(holder.tell);
    MUST(waitpid(child, &state, 0) == child);
    ck_assert_int_eq(state, 0);
    MUST(waitpid(holder.pid, &state, 0) == holder.pid);
}
END_TEST

START_TEST(many_at_once) {
    weir_options options = options_for(_i, 0);
    struct child child[6];

    options.prealloc = (weir_amount){.value = 900000, .kind = WEIR_AMOUNT_OF_FREE};
    for (int i = 0; i < 6; i++)
        child[i] = start(&options);
    for (int i = 0; i < 6; i++) {
        struct outcome o = outcome_of(&child[i]);

        ck_assert_int_eq(o.status, WEIR_OK);
        MUST_LE(7 * GIB, o.kept);
    }
}
END_TEST

/* ---- the lock alone -------------------------------------------------------------------------- */

static void path_in(const char *where, char path[512]) {
    snprintf(path, 512, "%s/weir-%lu-test.lock", where, (unsigned long)geteuid());
}

START_TEST(the_lock_excludes) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    struct stat is;
    char path[512];

    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1); /* it has it */
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    path_in(folder, path);
    MUST(stat(path, &is) == 0);
    ck_assert_uint_eq(is.st_mode & 07777, 0600);
    weir__process_lock_give(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_give(&other);
    weir__process_lock_give(&other);
    ck_assert_int_eq(weir__process_lock_try(&one, "other"), 1);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_give(&one);
    weir__process_lock_give(&other);
}
END_TEST

/* Nor does a program that closes what is not its own lose what it has there since. */
START_TEST(a_number_that_was_lost) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    int number;

    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    if (_i == 1) /* as it waits */
        ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    number = _i == 0 ? one.file.number : other.file.number;
    MUST(own_file_put(number));
    MUST(flock(number, LOCK_EX | LOCK_NB) == 0);
    if (_i == 1)
        ck_assert_int_eq(weir__process_lock_try(&other, "test"), 0);
    weir__process_lock_give(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_give(&other);
    MUST(own_file_is_whole(number));
}
END_TEST

/* A child of fork that lives on does not keep it. */
START_TEST(a_child_of_fork_does_not_keep_it) {
    struct weir_process_lock one = WEIR_PROCESS_LOCK_NONE, other = WEIR_PROCESS_LOCK_NONE;
    pid_t child;

    ck_assert_int_eq(weir__process_lock_try(&one, "test"), 1);
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    weir__process_lock_give(&one);
    ck_assert_int_eq(weir__process_lock_try(&other, "test"), 1);
    weir__process_lock_give(&other);
    MUST(kill(child, SIGKILL) == 0);
    MUST(waitpid(child, NULL, 0) == child);
}
END_TEST

static void put_in_the_way(const char *path, const char *target, int what) {
    if (what == 0)
        MUST(symlink(target, path) == 0);
    else if (what == 1)
        MUST(mkfifo(path, 0600) == 0);
    else
        MUST(mkdir(path, 0700) == 0);
}

/* What lies in the way is left alone, and another folder does, unless there is to be no other. */
START_TEST(a_link_is_not_followed_nor_a_pipe_waited_for) {
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    char path[512], target[512], made[512], name[32];
    struct stat is;

    path_in(folder, path);
    snprintf(target, sizeof target, "%s/target", folder);
    put_in_the_way(path, target, _i);
    ck_assert_int_eq(weir__process_lock_try(&lock, "test"), -1);
    ck_assert_int_eq(stat(target, &is), -1);
    MUST(lstat(path, &is) == 0);
    MUST(unsetenv("WEIR_RUN_FOLDER") == 0);
    snprintf(name, sizeof name, "priming-%ld", (long)getpid()); /* this process's alone */
    snprintf(path, sizeof path, "/dev/shm/weir-%lu-%s.lock", (unsigned long)geteuid(), name);
    put_in_the_way(path, target, _i);
    ck_assert_int_eq(weir__process_lock_try(&lock, name), 1);
    snprintf(made, sizeof made, "/tmp/weir-%lu-%s.lock", (unsigned long)geteuid(), name);
    ck_assert_str_eq(lock.path, made);
    ck_assert_int_eq(stat(target, &is), -1);
    MUST(lstat(path, &is) == 0);
    weir__process_lock_give(&lock);
    MUST(remove(path) == 0);
    ck_assert_int_eq(lstat(made, &is), -1);
}
END_TEST

START_TEST(without_a_lock_it_goes_on) {
    weir_options options = options_for(POOL, GIB);
    struct rlimit before, none;
    weir_allocator *a;

    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    a = make_on(driver, &options);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    ck_assert(log_has("no lock against other processes (Too many open files): it goes on without"));
    ck_assert_uint_eq(stats_of(a).prealloc_kept, GIB);
    destroy(a);
}
END_TEST

static Suite *suite(void) {
    Suite *all = suite_create("priming");
    TCase *tests = suite_add_case(all, "amounts", 60, set_up, tear_down);

    tcase_add_loop_test(tests, partial_success_is_reported, 0, WAYS);
    tcase_add_loop_test(tests, parts_of_units_are_kept, 0, WAYS);
    tcase_add_loop_test(tests, a_limit_of_parts_of_units, POOL, REGIONS);
    tcase_add_loop_test(tests, before_the_deadline_the_device_may_end, 0, WAYS);
    tcase_add_loop_test(tests, a_device_that_does_not_tell_again_what_is_free, 0, WAYS);
    tcase_add_loop_test(tests, what_stands_against_more_is_named, 0, 12 * WAYS);
    tcase_add_loop_test(tests, what_a_call_gets_is_told, 0, 3 * WAYS);
    tcase_add_test(tests, why_a_call_gets_nothing_is_told);
    tcase_add_loop_test(tests, which_limit_it_was_is_named, 0, WAYS);
    tcase_add_loop_test(tests, a_share_that_the_driver_refuses, 0, WAYS);
    tcase_add_loop_test(tests, what_a_variable_asks_is_held_to_the_limit, 0, 2);
    tcase_add_loop_test(tests, less_than_the_least_is_a_failure, 0, WAYS);
    tcase_add_loop_test(tests, the_least_is_no_more_than_the_whole, 0, WAYS);
    tcase_add_loop_test(tests, requests_fail_until_the_least_is_there, 0, WAYS);
    tcase_add_loop_test(tests, the_least_alone_is_the_whole, 0, WAYS);
    tcase_add_loop_test(tests, a_deadline_ends_it_with_what_there_is, 0, WAYS);
    tcase_add_loop_test(tests, tables_are_made_beforehand, 0, 4 * WAYS);
    tcase_add_test(tests, a_mapped_arena_has_tables_from_the_start);
    tcase_add_loop_test(tests, tables_have_a_bound, 0, MAPPED);
    tcase_add_loop_test(tests, in_the_background_nobody_waits, 0, WAYS);
    tcase_add_loop_test(tests, grow_ahead_comes_after_what_is_preallocated, 0, ENDS_OF_IT * WAYS);
    tcase_add_loop_test(tests, in_the_background_requests_may_be_first, 0, WAYS);
    tcase_add_loop_test(tests, in_the_background_a_deadline_passes_too, 0, WAYS);
    tcase_add_loop_test(tests, in_the_background_a_share_may_be_nothing, 0, WAYS);
    tcase_add_loop_test(tests, in_the_background_a_share_of_what_is_not_told, 0, WAYS);
    tcase_add_loop_test(tests, a_deadline_may_pass_in_the_queue, 0, WAYS);
    tcase_add_loop_test(tests, a_thread_preallocates, 0, WAYS);
    tcase_add_loop_test(tests, it_ends_with_the_allocator, 0, WAYS);
    tcase_add_loop_test(tests, what_the_device_lacks_is_told, 0, WAYS);
    tcase_add_test(tests, without_a_lock_it_goes_on);

    tests = suite_add_case(all, "processes", 60, set_up_apart, tear_down);
    tcase_add_loop_test(tests, one_after_the_other, 0, WAYS);
    tcase_add_test(tests, who_dies_gives_it_up);
    tcase_add_test(tests, a_deadline_bounds_the_wait);
    tcase_add_test(tests, in_the_background_others_are_waited_for_too);
    tcase_add_loop_test(tests, many_at_once, 0, WAYS);
    tcase_add_test(tests, the_lock_excludes);
    tcase_add_test(tests, a_child_of_fork_does_not_keep_it);
    tcase_add_loop_test(tests, a_number_that_was_lost, 0, 2);
    tcase_add_loop_test(tests, a_link_is_not_followed_nor_a_pipe_waited_for, 0, 3);
    return all;
}

int main(void) {
    return run_suite(suite(), CK_FORK);
}
