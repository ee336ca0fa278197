/* SPDX-License-Identifier: MIT */
/* test_model_costs.c: the cost of calls, faults, profiles, and calls of several threads. */
#include "test_model.h"

/* ------------------------------------------------------------- time and charges ---- */

CASE("time", 60, set_up_model, check_pools);

TEST(warm_pair_costs_590_ns) {
    CUdeviceptr block = alloc(64 * KIB, s);
    uint64_t start;

    free_async(block, s);
    start = model_ticks();
    for (int i = 0; i < 1000; i++)
        free_async(alloc(64 * KIB, s), s);
    ABOUT((model_ticks() - start) / 1000, 590, 1);
}

TEST(pair_costs_more_among_more_live_blocks) {
    static const struct {
        int blocks;
        double ns;
    } facts[] = {{100, 1298}, {1000, 1526}, {10000, 2300}};
    static CUdeviceptr blocks[10000];
    int count = 0;

    for (size_t i = 0; i < 3; i++) {
        uint64_t start, seed = 7;

        while (count < facts[i].blocks)
            blocks[count++] = alloc(16 * KIB, s);
        start = model_ticks();
        for (int k = 0; k < 1000; k++) {
            size_t victim = next_random(&seed) % (size_t)count;

            free_async(blocks[victim], s);
            blocks[victim] = alloc(16 * KIB, s);
        }
        ABOUT((model_ticks() - start) / 1000, facts[i].ns, 2);
    }
}

TEST(growth_costs_what_it_costs) {
    static const struct {
        size_t bytes;
        double grow_ms, trim_ms;
    } facts[] = {{32 * MIB, .05, .04}, {64 * MIB, .069, .073}, {256 * MIB, .235, .268},
                 {GIB, .876, 1.14},    {4 * GIB, 3.90, 4.78},  {16 * GIB, 15.0, 20.5}};

    free_async(alloc(1, s), s); /* the first of all takes long */
    ck_assert_uint_ge(model_ticks(), FIRST);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        uint64_t start = model_ticks();
        CUdeviceptr block = alloc(facts[i].bytes, s);

        ABOUT(model_ticks() - start, facts[i].grow_ms * 1e6, 5);
        free_async(block, s);
        OK(d->cuStreamSynchronize(s));
        start = model_ticks();
        OK(d->cuMemPoolTrimTo(pool, 0));
        ABOUT(model_ticks() - start, facts[i].trim_ms * 1e6, 5);
    }
}

TEST(small_calls_cost_what_they_cost) {
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUcontext current;
    CUevent event;
    uint64_t at;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
#define COSTS(ns, call)                                                                            \
    at = model_ticks();                                                                            \
    OK(call);                                                                                      \
    ck_assert_uint_eq(model_ticks() - at, ns)
    COSTS(16, d->cuStreamIsCapturing(s, &status));
    COSTS(20, d->cuStreamGetId(s, &id));
    COSTS(9, d->cuCtxGetCurrent(&current));
    COSTS(200, d->cuEventRecord(event, s));
    COSTS(150, d->cuEventQuery(event));
    COSTS(180, d->cuStreamWaitEvent(t, event, 0));
    COSTS(274, d->cuStreamQuery(s));
#undef COSTS
    at = model_ticks();
    reserved_by_pool();
    ck_assert_uint_eq(model_ticks() - at, 34);
    at = model_ticks();
    free_bytes_now();
    ck_assert_uint_eq(model_ticks() - at, 3966);
}

static uint64_t busy_clock(void) {
    static CUdeviceptr blocks[512];
    uint64_t seed = 99;
    CUdeviceptr direct;

    memset(blocks, 0, sizeof blocks);
    reset_to(4 * GIB);
    for (int i = 0; i < 20000; i++) {
        size_t k = next_random(&seed) % 512;
        CUstream stream = next_random(&seed) & 1 ? s : t;

        if (blocks[k]) {
            free_async(blocks[k], stream);
            blocks[k] = 0;
        } else {
            blocks[k] = alloc(next_random(&seed) % (4 * MIB) + 1, stream);
        }
        if (next_random(&seed) % 16 == 0)
            OK(weir__model_kernel(stream, next_random(&seed) % MS));
        if (next_random(&seed) % 512 == 0)
            OK(d->cuStreamSynchronize(stream));
        if (next_random(&seed) % 64 == 0) {
            OK(d->cuMemAlloc(&direct, next_random(&seed) % (4 * MIB) + 1));
            OK(d->cuMemFree(direct));
        }
    }
    return model_ticks();
}

TEST(same_calls_take_the_same_time) {
    uint64_t first = busy_clock();

    ck_assert_uint_gt(first, MS);
    ck_assert_uint_eq(busy_clock(), first);
}

TEST(charge_measures_real_time_from_its_first_call_on) {
    struct weir_driver_charge charge;

    free_async(alloc(KIB, s), s);
    d->charge(&charge);
    ck_assert_uint_eq(charge.host_ns, 0);
    ck_assert_uint_eq(charge.driver_ns, model_ticks());
    for (int i = 0; i < 1000; i++)
        free_async(alloc(KIB, s), s);
    d->charge(&charge);
    ck_assert_uint_gt(charge.host_ns, 1000);
    ck_assert_uint_eq(charge.driver_ns, model_ticks());
}

/* Work that is played aside, for another thread, has a separate clock.  Afterwards the caller's clock continues where
 * it was, and memory freed aside is completed only when the caller reaches that time. */
TEST(what_is_played_aside_takes_none_of_the_callers_time) {
    struct weir_driver_charge before, after;
    uint64_t started, took;
    CUdeviceptr block;

    d->charge(&before);
    started = model_ticks();
    ck_assert_uint_eq(d->set_background(1), 0);
    block = alloc(GIB, s);
    ck_assert_uint_gt(model_ticks(), started + MS / 2);
    d->sleep_ns(3 * MS);
    OK(weir__model_kernel(s, 20 * MS));
    free_async(block, s);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_gt(model_ticks(), started + 23 * MS);
    took = d->set_background(0);
    ck_assert_uint_gt(took, 23 * MS);
    d->charge(&after);
    ck_assert_uint_eq(model_ticks(), started);
    ck_assert_uint_eq(after.driver_ns, before.driver_ns);
    ck_assert_uint_gt(after.host_ns, before.host_ns);
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    d->sleep_ns(took);
    OK(d->cuStreamQuery(s));
}

/* ------------------------------------------------------------ bytes of device memory ---- */

CASE("faults", 60, set_up_model, check_pools);

TEST(copies_and_fills_stay_inside_live_blocks) {
    unsigned char host[1024], back[1024];
    CUdeviceptr block = alloc(1024, s);

    for (size_t i = 0; i < sizeof host; i++)
        host[i] = (unsigned char)i;
    OK(d->cuMemcpyHtoDAsync(block, host, 1024, s));
    OK(d->cuMemsetD8Async(block + 100, 7, 100, s));
    OK(d->cuMemcpyDtoHAsync(back, block, 1024, s));
    ck_assert_mem_eq(back, host, 100);
    ck_assert_uint_eq(back[100], 7);
    ck_assert_uint_eq(back[199], 7);
    ck_assert_mem_eq(back + 200, host + 200, 824);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 7, 1025, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block + 1024, 7, 1, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyDtoHAsync(back, block + 512, SIZE_MAX - 100, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyHtoDAsync((uintptr_t)back, host, 1, s));
    OK(d->cuMemsetD8Async(block, 1, 0, s));
    free_async(block, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 7, 1, s));
}

TEST(unmapped_memory_is_not_there_any_more) {
    CUdeviceptr block = alloc(32 * MIB, s);

    memset((void *)(uintptr_t)block, 1, MIB);
    free_async(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert(host_faults(block, 1));
    ck_assert_uint_eq(alloc(32 * MIB, s), block);
    ck_assert_int_eq(*(char *)(uintptr_t)block, 0);
}

TEST(limited_address_space_gives_a_smaller_pool) {
    struct weir_model_setup setup = {.capacity = 16 * GIB};
    struct rlimit limit = {8 * GIB, 8 * GIB};
    CUdeviceptr block;

    if (SANITIZED)
        return;
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    make_objects();
    block = alloc(GIB, s);
    free_async(block, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 8 * GIB, pool, s));
}

/* ------------------------------------------------------------------ faults ---- */

TEST(planned_call_fails_once_and_does_nothing) {
    CUdeviceptr block;

    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
    block = alloc(KIB, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, KIB, pool, s));
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    alloc(KIB, s);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 3);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemFreeAsync), 0);
}

TEST(planned_call_fails_for_good) {
    CUdeviceptr block;
    int count;

    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_ECC_UNCORRECTABLE, d->cuMemAlloc(&block, 1));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetCount, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 0, 0, 0);
    OK(d->cuMemAlloc(&block, 1));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    weir__model_faults_clear();
    OK(d->cuMemAlloc(&block, 1));
}

/* The second call of any entry fails, and the third one after it, then all calls from the fourth on. */
TEST(planned_calls_of_any_entry_fail) {
    enum weir_driver_entry last = WEIR_ENTRY_COUNT;
    CUdeviceptr block;
    int count;

    ck_assert_uint_eq(weir__model_faults_injected(&last), 0);
    ck_assert_int_eq(last, WEIR_ENTRY_COUNT);
    weir__model_fail_any(2, 3, CUDA_ERROR_UNKNOWN, 0);
    OK(d->cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuMemAlloc(&block, 1));
    OK(d->cuMemAlloc(&block, 1));
    OK(d->cuMemFree(block));
    ck_assert_uint_eq(weir__model_faults_injected(NULL), 1);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    ck_assert_uint_eq(weir__model_faults_injected(&last), 2);
    ck_assert_int_eq(last, WEIR_ENTRY_cuDeviceGetCount);
    OK(d->cuDeviceGetCount(&count));
    weir__model_faults_clear();
    ck_assert_uint_eq(weir__model_faults_injected(NULL), 0);

    weir__model_fail_any(4, 0, CUDA_ERROR_UNKNOWN, 1);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
    OK(d->cuMemAlloc(&block, 1));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&block, 1));
    OK(d->cuMemFree(block));
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    weir__model_fail_any(0, 0, CUDA_SUCCESS, 0);
    OK(d->cuDeviceGetCount(&count));
}

TEST(reset_drops_everything) {
    CUdeviceptr block;

    alloc(GIB, s);
    OK(d->cuMemAlloc(&block, 100 * MIB));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    ck_assert_int_eq(weir__model_reset(NULL), 0);
    ck_assert_uint_eq(weir__model_now_ns(), 0);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemAlloc), 0);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuMemAlloc(&block, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamQuery(s));
    make_objects();
    ck_assert_uint_eq(free_bytes_now(), 149557477376u);
    OK(d->cuMemAlloc(&block, 1));
}

/* The child still has the idle memory of the pool, beside the parent. */
TEST(child_after_fork_is_out_of_memory) {
    CUdeviceptr block, first = alloc(1, s);
    int status, count;
    pid_t child = fork();

    if (child == 0) {
        int well =
            d->cuMemAllocFromPoolAsync(&block, 32 * MIB, pool, s) == CUDA_ERROR_OUT_OF_MEMORY &&
            d->cuMemAlloc(&block, 1) == CUDA_ERROR_OUT_OF_MEMORY &&
            d->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
            d->cuMemAllocFromPoolAsync(&block, 1, pool, s) == CUDA_SUCCESS && block == first + 512;

        _exit(well ? 0 : 1);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(alloc(1, s), first + 512);
}

/* ---------------------------------------------------------------- profiles ---- */

static void write_profile(char *path, const char *text) {
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static const struct {
    const char *text, *words[3];
} bad_profiles[] = {
    {"# fine\nunit_bytes = many\n", {":2:", "unit_bytes", "many"}},
    {"colour = 3\n", {":1:", "colour", "figure"}},
    {"\n\nnonsense\n", {":3:", "nonsense", "key = value"}},
    {"pool_grow_ns = 1:2 1:3\n", {":1:", "pool_grow_ns", "1:2 1:3"}},
    {"pool_grow_ns = 1:2,3\n", {":1:", "pool_grow_ns", "1:2,3"}},
    {"cuStreamGetId = -1\n", {":1:", "cuStreamGetId", "-1"}},
    {"cuStreamGetId = 99999999999999999999\n", {":1:", "cuStreamGetId", "9999"}},
    {"unit_bytes = 1000000\n", {"unit_bytes", "power of two", "/"}},
    {"name =\n", {":1:", "name", "\"\""}},
    {"driver_version = 11010\n", {"driver_version", "11020", "/"}},
};

TEST_EACH(ROWS(bad_profiles), bad_profile_is_named_with_line_and_value) {
    char path[] = "/tmp/weir-profile-XXXXXX";
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.profile = path, .failure = &failure};

    write_profile(path, bad_profiles[_i].text);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    unlink(path);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(strstr(failure.text, bad_profiles[_i].words[k]) != NULL, "\"%s\" lacks %s",
                      failure.text, bad_profiles[_i].words[k]);
    alloc(1, s); /* the model is as it was */
}

TEST(profile_overrides_the_built_in_one_key_by_key) {
    char path[] = "/tmp/weir-profile-XXXXXX", name[64];
    struct weir_model_setup setup = {.profile = path};
    unsigned long long id;
    uint64_t start;

    write_profile(path, "name = Small GPU\ncapacity = 8589934592\n"
                        "context_bytes = 0\ncuStreamGetId = 1000\n");
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    unlink(path);
    make_objects();
    OK(d->cuDeviceGetName(name, sizeof name, 0));
    ck_assert_str_eq(name, "Small GPU (device model)");
    ck_assert_uint_eq(free_bytes_now(), 8 * GIB);
    start = model_ticks();
    OK(d->cuStreamGetId(s, &id));
    ck_assert_uint_eq(model_ticks() - start, 1000);
}

static const struct {
    int version;
    unsigned capabilities;
} older_drivers[] = {
    {11020, 0},
    {11030, WEIR_CAP_POOL_FIGURES},
    {11040, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH},
    {12010, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH | WEIR_CAP_STREAM_ID},
    {12020, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH | WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_MAX_SIZE},
};
enum { EVERY_DRIVER = WEIR_CAP_KERNEL | WEIR_CAP_VIRTUAL | WEIR_CAP_PEER | WEIR_CAP_IPC };

/* A later reset to the built-in profile restores everything. */
TEST_EACH(ROWS(older_drivers), profile_of_an_older_driver_plays_it) {
    char path[] = "/tmp/weir-profile-XXXXXX", text[64];
    struct weir_model_setup setup = {.profile = path};
    unsigned capabilities = older_drivers[_i].capabilities | EVERY_DRIVER;
    CUmemPoolProps props = plain_pool_properties();
    uint64_t number = 0;
    int version = 0;

    snprintf(text, sizeof text, "driver_version = %d\n", older_drivers[_i].version);
    write_profile(path, text);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    unlink(path);
    make_objects();
    ck_assert_int_eq(d->version, older_drivers[_i].version);
    OK(d->cuDriverGetVersion(&version));
    ck_assert_int_eq(version, older_drivers[_i].version);
    ck_assert_uint_eq(d->capabilities, capabilities);
    ck_assert_int_eq(d->cuStreamGetId != NULL, (capabilities & WEIR_CAP_STREAM_ID) != 0);
    ck_assert_int_eq(d->cuStreamBeginCapture != NULL, (capabilities & WEIR_CAP_GRAPH) != 0);
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
         a <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; a++)
        EXPECT(capabilities & WEIR_CAP_POOL_FIGURES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
               d->cuMemPoolGetAttribute(pool, a, &number));
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
    props.maxSize = GIB;
    EXPECT(capabilities & WEIR_CAP_POOL_MAX_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
           d->cuMemPoolCreate(&pool, &props));
    reset_to(GIB);
    ck_assert_int_eq(d->version, 13000);
    ck_assert_uint_eq(d->capabilities, EVERY_DRIVER | WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH |
                                           WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_MAX_SIZE);
    ck_assert_ptr_nonnull(d->cuStreamGetId);
}

TEST(environment_gives_devices_and_profile) {
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.failure = &failure};
    int count;

    setenv("WEIR_MODEL_DEVICES", "4", 1);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 4);
    setenv("WEIR_MODEL_DEVICES", "four", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "WEIR_MODEL_DEVICES") && strstr(failure.text, "four"));
    unsetenv("WEIR_MODEL_DEVICES");
    setenv("WEIR_MODEL_PROFILE", "/nowhere/at.all", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "/nowhere/at.all") != NULL);
    setenv("WEIR_MODEL_PROFILE", "/dev/null", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "the profile /dev/null is empty; expected lines") != NULL);
    unsetenv("WEIR_MODEL_PROFILE");
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

TEST_EACH(3, an_empty_variable_is_refused) {
    static const char *const names[] = {"WEIR_MODEL_PROFILE", "WEIR_MODEL_DEVICES",
                                        "WEIR_MODEL_SHARED"};
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.failure = &failure};
    char expected[80];

    setenv(names[_i], "", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    snprintf(expected, sizeof expected, "%s '': it is empty; expected ", names[_i]);
    ck_assert_msg(strncmp(failure.text, expected, strlen(expected)) == 0, "%s", failure.text);
    unsetenv(names[_i]);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

/* ------------------------------------------------------------ threads ---- */

struct slot {
    CUdeviceptr address;
    size_t bytes;
    uint64_t stamp;
    int is_direct; /* from cuMemAlloc */
};

/* Returns the step between the words that are checked: 256 bytes, or a 64th of a large block. */
static size_t step_of(const struct slot *slot) {
    return slot->bytes < 16 * KIB ? 32 : slot->bytes / 8 / 64;
}

static void stamp(const struct slot *slot) {
    uint64_t *words = (uint64_t *)(uintptr_t)slot->address;

    for (size_t i = 0; i < slot->bytes / 8; i += step_of(slot))
        words[i] = slot->stamp + i;
    for (size_t i = slot->bytes & ~(size_t)7; i < slot->bytes; i++)
        ((unsigned char *)words)[i] = (unsigned char)slot->stamp;
}

static void verify_slot(const struct slot *slot) {
    const uint64_t *words = (const uint64_t *)(uintptr_t)slot->address;

    for (size_t i = 0; i < slot->bytes / 8; i += step_of(slot))
        MUST_EQ(words[i], slot->stamp + i);
    for (size_t i = slot->bytes & ~(size_t)7; i < slot->bytes; i++)
        MUST_EQ(((const unsigned char *)words)[i], (unsigned char)slot->stamp);
}

static size_t random_slot_bytes(uint64_t *seed) {
    unsigned bits = (unsigned)(next_random(seed) % 18) + 4;

    return (size_t)(next_random(seed) & (((uint64_t)1 << bits) - 1)) + 1;
}

/* Bytes of the pool's blocks that cuMemFree freed. */
static _Atomic uint64_t used_no_more;

/* A request may fail when the device is full; a free never does. */
static void random_block(struct slot *slot, uint64_t *seed, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    int direct = next_random(seed) % 8 == 0;

    if (slot->address) {
        verify_slot(slot);
        if (direct && !slot->is_direct)
            used_no_more += slot->bytes;
        if (direct)
            OK(d->cuMemFree(slot->address));
        else
            free_async(slot->address, stream);
        slot->address = 0;
        return;
    }
    slot->bytes = random_slot_bytes(seed);
    slot->stamp = next_random(seed);
    slot->is_direct = direct;
    if (direct)
        result = d->cuMemAlloc(&slot->address, slot->bytes);
    else
        result = d->cuMemAllocFromPoolAsync(&slot->address, slot->bytes, pool, stream);
    MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS)
        stamp(slot);
}

static void *churn_slots(void *argument) {
    static _Atomic uint64_t turn;
    struct slot slots[64] = {{0, 0, 0, 0}};
    uint64_t seed = 77 + ++turn;
    unsigned long long id;
    CUstream stream;
    CUevent event;

    (void)argument;
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 5000; i++) {
        random_block(&slots[next_random(&seed) % 64], &seed, stream);
        if (next_random(&seed) % 16 == 0) {
            OK(weir__model_kernel(stream, 1000));
            OK(d->cuEventRecord(event, stream));
            OK(d->cuStreamWaitEvent(s, event, 0));
            OK(d->cuStreamGetId((CUstream)WEIR_STREAM_PER_THREAD_VALUE, &id));
        }
    }
    for (int i = 0; i < 64; i++)
        if (slots[i].address) {
            verify_slot(&slots[i]);
            free_async(slots[i].address, stream);
        }
    OK(d->cuEventDestroy(event));
    OK(d->cuStreamDestroy(stream));
    return NULL;
}

CASE("threads", 60, set_up_model, check_pools);

TEST(threads_share_the_model) {
    pthread_t threads[4];
    uint64_t calls;

    reset_to(4 * GIB);
    used_no_more = 0;
    calls = weir__model_calls(WEIR_ENTRY_cuStreamCreate);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, churn_slots, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuStreamCreate), calls + 4);
    ck_assert_uint_eq(get_pool_attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used_no_more);
}

SUITE("model costs", CK_FORK_GETENV);
