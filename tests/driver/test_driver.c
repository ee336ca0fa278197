/* SPDX-License-Identifier: MIT */
/* test_driver.c: the driver table: how it is found, opened, counted, entered and left.
 *
 * The loader is tested on fake drivers (fake_libcuda.c), each in a fresh process: this program, with a word on its
 * command line and the fake in LD_LIBRARY_PATH.  The process prints its findings, which the test reads.  Counting and
 * scopes are tested on small tables.  No device is needed or touched. */
#include "driver/driver.h"
#include "tests/fixtures/suite.h"

#include <dlfcn.h>

#define THREADS 4

/* ----------------------------------------------------- the child process ---- */

static void *open_cuda(void *out) {
    struct weir_driver_failure failure;

    *(const struct weir_driver **)out = weir__driver_open("cuda", &failure);
    return NULL;
}

/* Prints the entries, and the way by which each was found. */
static void print_routes(const struct weir_driver *driver) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "fake_route") : NULL;
    const char *(*route)(const void *address);

    if (!symbol)
        return;
    memcpy(&route, &symbol, sizeof route);
#define PRINT(group, name, exported, version, params, args)                                        \
    {                                                                                              \
        void *address;                                                                             \
        memcpy(&address, &driver->name, sizeof address);                                           \
        printf("%s %s\n", exported, route(address));                                               \
    }
    WEIR_DRIVER_ENTRIES(PRINT)
}

static int print_driver(const struct weir_driver *driver,
                        const struct weir_driver_failure *failure) {
    if (!driver) {
        printf("failure: %s\n", failure->text);
        return 0;
    }
    printf("%s %d capabilities %u\n", driver->name, driver->version, driver->capabilities);
    print_routes(driver);
    return 0;
}

static int child_open(void) {
    struct weir_driver_failure failure;

    return print_driver(weir__driver_open("cuda", &failure), &failure);
}

/* The first attempt finds a driver without a device, the second one a driver with a device. */
static int child_retry(void) {
    struct weir_driver_failure failure;

    setenv("FAKE_INIT", "100", 1);
    print_driver(weir__driver_open("cuda", &failure), &failure);
    unsetenv("FAKE_INIT");
    return print_driver(weir__driver_open("cuda", &failure), &failure);
}

static int child_threads(void) {
    const struct weir_driver *found[THREADS];
    pthread_t threads[THREADS];
    void *symbol;
    int (*init_calls)(void), same = 1;

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, open_cuda, &found[i]) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        same = same && found[i] && found[i] == found[0];
    }
    symbol = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_init_calls");
    memcpy(&init_calls, &symbol, sizeof symbol);
    printf("same %d init %d\n", same, init_calls());
    return 0;
}

static uint64_t monotonic_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int child_clock(void) {
    struct weir_driver_failure failure;
    const struct weir_driver *driver = weir__driver_open("cuda", &failure);
    uint64_t ticks, last, ns, slept, backwards = 0;

    if (!driver)
        return print_driver(driver, &failure);
    ns = monotonic_ns();
    ticks = last = driver->ticks();
    driver->sleep_ns(200000000);
    slept = monotonic_ns() - ns;
    for (int i = 0; i < 1000; i++) {
        uint64_t next = driver->ticks();

        backwards += next < last;
        last = next;
    }
    printf("slept enough %d\n", slept >= 200000000 && last - ticks >= 200000000);
    printf("backwards %d\n", backwards > 0);
    return 0;
}

static void print_fork(const char *who) {
    struct weir_driver_failure failure;

    printf("%s forked %d\n", who, weir__driver_forked());
    if (weir__driver_forked())
        printf("%s open %s\n", who, weir__driver_open("cuda", &failure) ? "a table" : failure.text);
    fflush(stdout);
}

static void fork_once(const char *who) {
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        print_fork(who);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

/* A failed open leaves the process free to fork; a successful one does not. */
static int child_fork(void) {
    struct weir_driver_failure failure;

    setenv("FAKE_INIT", "100", 1);
    weir__driver_open("cuda", &failure);
    fork_once("early child");
    unsetenv("FAKE_INIT");
    if (!weir__driver_open("cuda", &failure))
        return print_driver(NULL, &failure);
    fork_once("late child");
    print_fork("parent");
    return 0;
}

static const struct {
    const char *word;
    int (*run)(void);
} children[] = {
    {"open", child_open},   {"retry", child_retry}, {"threads", child_threads},
    {"clock", child_clock}, {"fork", child_fork},
};

/* ---------------------------------------------- how a test starts a child ---- */

static char own_path[4096];
static char output[65536];

/* Returns the folder with fake `number`, or NULL if it was not built (no shared libraries). */
static const char *fake_folder(int number) {
    static char folder[4096];
    const char *top = getenv("top_builddir");
    char file[4200];

    snprintf(folder, sizeof folder, "%s/tests/fake/resolver-%d/.libs", top ? top : ".", number);
    snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
    return access(file, R_OK) == 0 ? folder : NULL;
}

/* Runs `word` over a folder of libraries (the system's if NULL) with more settings.  Fills and returns the output. */
static const char *run_in(const char *folder, const char *word, const char *settings) {
    char command[16384];
    size_t length;
    FILE *pipe;
    int status;

    if (folder)
        snprintf(command, sizeof command, "exec env LD_LIBRARY_PATH='%s' %s '%s' %s", folder,
                 settings, own_path, word);
    else
        snprintf(command, sizeof command, "exec env %s '%s' %s", settings, own_path, word);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    length = fread(output, 1, sizeof output - 1, pipe);
    output[length] = '\0';
    status = pclose(pipe);
    ck_assert_msg(status == 0, "%s: status %d: %s", command, status, output);
    return output;
}

/* Returns NULL and prints a line of TAP if the fake was not built. */
static const char *run_fake(int number, const char *word, const char *settings) {
    const char *folder = fake_folder(number);

    if (!folder) {
        printf("# skipped: no fake libcuda.so.1 (built without shared libraries)\n");
        return NULL;
    }
    return run_in(folder, word, settings);
}

#define FAKE_OR_RETURN(text, number, word, settings)                                               \
    const char *text = run_fake(number, word, settings);                                           \
    if (!text)                                                                                     \
    return

#define ck_assert_has(text, part)                                                                  \
    ck_assert_msg(strstr(text, part), "no \"%s\" in: %s", part, (const char *)(text))

static const unsigned group_of[WEIR_ENTRY_COUNT] = {
#define GROUP_OF(group, name, symbol, version, params, args) WEIR_CAP_##group,
    WEIR_DRIVER_ENTRIES(GROUP_OF)
#undef GROUP_OF
};

enum {
    EVERY_CAPABILITY = WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE |
                       WEIR_CAP_GRAPH | WEIR_CAP_KERNEL | WEIR_CAP_VIRTUAL | WEIR_CAP_PEER |
                       WEIR_CAP_IPC,
    OLDEST_CAPABILITIES = WEIR_CAP_KERNEL | WEIR_CAP_VIRTUAL | WEIR_CAP_PEER | WEIR_CAP_IPC
};

static void assert_driver(const char *text, int version, unsigned capabilities) {
    char line[128];

    snprintf(line, sizeof line, "cuda %d capabilities %u\n", version, capabilities);
    ck_assert_has(text, line);
}

/* Expects that `route` found every entry of these capabilities, except `other` (may be NULL), which `other_route`
 * found, and that no other entry was found. */
static void assert_routes(const char *text, unsigned capabilities, const char *route,
                          const char *other, const char *other_route) {
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++) {
        const char *name = weir__driver_entry_name((enum weir_driver_entry)i);
        const char *expected = other && strcmp(name, other) == 0 ? other_route : route;
        char line[128];

        snprintf(line, sizeof line, "\n%s %s\n", name,
                 group_of[i] & ~capabilities ? "none" : expected);
        ck_assert_has(text, line);
    }
}

/* ------------------------------------------------------------- the loader ---- */

CASE("loader", 60, NULL, NULL);

enum { OF_11_3 = WEIR_CAP_POOL_FIGURES | OLDEST_CAPABILITIES };

#define STUB "failure: libcuda.so.1 is the CUDA toolkit's stub", "no driver is installed"

/* The output of a process that opens a fake driver. */
static const struct load {
    const char *what;
    int fake; /* the number of its resolver: 2 is the newest one, 0 is none */
    const char *word, *settings;
    int version; /* the driver's, with the capabilities; 0 if not compared */
    unsigned capabilities;
    const char *route; /* finds all entries but `other`; NULL if not compared */
    const char *other, *other_route;
    const char *says[5]; /* it prints each, */
} loads[] = {
    {"the newest resolver is preferred", 2, "open", "FAKE_VERSION=13000", 13000, EVERY_CAPABILITY,
     .route = "resolver-2"},
    {"the old resolver serves drivers before 12", 1, "open", "FAKE_VERSION=11030", 11030, OF_11_3,
     .route = "resolver-1"},
    {"one that has graphs", 1, "open", "FAKE_VERSION=11040", 11040, OF_11_3 | WEIR_CAP_GRAPH,
     .route = "resolver-1"},
    {"symbols serve drivers without a resolver", 0, "open", "FAKE_VERSION=11020", 11020,
     OLDEST_CAPABILITIES, .route = "dlsym"},
    {"a symbol stands in for an entry that the resolver lacks", 1, "open",
     "FAKE_UNRESOLVED=cuMemGetInfo FAKE_VERSION=12000", 0, EVERY_CAPABILITY, .route = "resolver-1",
     .other = "cuMemGetInfo_v2", .other_route = "dlsym"},
    {"what comes later counts from its version", 2, "open", "FAKE_VERSION=12010", 12010,
     .capabilities = EVERY_CAPABILITY & ~WEIR_CAP_POOL_MAX_SIZE},
    {"as sizes of pools", 2, "open", "FAKE_VERSION=12020", 12020, .capabilities = EVERY_CAPABILITY},
    {"without ids of streams", 2, "open", "FAKE_UNRESOLVED=cuStreamGetId", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_STREAM_ID, .route = "resolver-2"},
    {"without graphs", 2, "open", "FAKE_UNRESOLVED=cuGraphLaunch", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_GRAPH, .route = "resolver-2"},
    {"without kernels", 2, "open", "FAKE_UNRESOLVED=cuLaunchKernel", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_KERNEL, .route = "resolver-2"},
    {"without mapped memory", 2, "open", "FAKE_UNRESOLVED=cuMemSetAccess", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_VIRTUAL, .route = "resolver-2"},
    {"without peers", 2, "open", "FAKE_UNRESOLVED=cuDeviceCanAccessPeer", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_PEER, .route = "resolver-2"},
    {"without shared memory", 2, "open", "FAKE_UNRESOLVED=cuMemImportFromShareableHandle", 13000,
     EVERY_CAPABILITY & ~WEIR_CAP_IPC, .route = "resolver-2"},
    {"a missing required entry is named", 2, "open", "FAKE_UNRESOLVED=cuEventDestroy",
     .says = {"failure: libcuda.so.1 has no cuEventDestroy_v2"}},
    {"a stub is told from a driver", 0, "open", "FAKE_STUB=1", .says = {STUB}},
    {"one with a resolver", 1, "open", "FAKE_STUB=1", .says = {STUB}},
    {"and with a new one", 2, "open", "FAKE_STUB=1", .says = {STUB}},
    {"too old a driver says which it is", 0, "open", "FAKE_VERSION=11010",
     .says = {"failure: libcuda.so.1 is a driver for CUDA 11.1; weir needs 11.2"}},
    {"no device is named", 2, "open", "FAKE_INIT=100", .says = {"CUDA_ERROR_NO_DEVICE"}},
    {"no device by its count", 2, "open", "FAKE_COUNT=0", .says = {"CUDA_ERROR_NO_DEVICE"}},
    {"other failures are named", 2, "open", "FAKE_INIT=999",
     .says = {"cuInit failed with 999 (CUDA_ERROR_UNKNOWN)"}},
    {"those without a name, too", 2, "open", "FAKE_INIT=803",
     .says = {"cuInit failed with 803 (CUDA_ERROR_803)"}},
    {"a failed load may be tried again", 2, "retry", "", 13000, EVERY_CAPABILITY,
     .says = {"CUDA_ERROR_NO_DEVICE"}},
    {"the clock keeps time", 2, "clock", "", .says = {"slept enough 1\n", "backwards 0\n"}},
    {"a forked child is recognised", 2, "fork", "",
     .says = {"early child forked 0\n", "late child forked 1\n",
              "late child open this process was forked", "parent forked 0\n"}},
};

TEST_EACH(ROWS(loads), what_a_load_tells) {
    const struct load *l = &loads[_i];
    FAKE_OR_RETURN(text, l->fake, l->word, l->settings);

    printf("# %s\n", l->what);
    if (l->version)
        assert_driver(text, l->version, l->capabilities);
    if (l->route)
        assert_routes(text, l->capabilities, l->route, l->other, l->other_route);
    for (int i = 0; i < 5 && l->says[i]; i++)
        ck_assert_has(text, l->says[i]);
}

/* The one load calls cuInit twice: in the maker of the cuda table, and then as for a table of any maker. */
TEST(threads_that_open_share_one_load) {
    FAKE_OR_RETURN(text, 2, "threads", "");

    ck_assert_str_eq(text, "same 1 init 2\n");
}

TEST(without_a_driver_the_library_is_named) {
    const char *text;

    if (dlopen("libcuda.so.1", RTLD_LAZY)) {
        printf("# skipped: there is a libcuda.so.1\n");
        return;
    }
    text = run_in(NULL, "open", "");
    ck_assert_has(text, "failure: cannot open libcuda.so.1");
    ck_assert_has(text, "No such file");
}

TEST(unknown_names_are_refused) {
    struct weir_driver_failure failure;

    ck_assert_ptr_null(weir__driver_open("vulkan", &failure));
    ck_assert_str_eq(failure.text, "unknown driver \"vulkan\": \"cuda\" and \"model\" are known");
    ck_assert_ptr_null(weir__driver_open(NULL, &failure));
    ck_assert_ptr_null(weir__driver_open("", &failure));
}

/* --------------------------------------------------------------- counting ---- */

CASE("counting", 60, NULL, NULL);

TEST(entry_names_are_the_exported_symbols) {
    ck_assert_str_eq(weir__driver_entry_name(WEIR_ENTRY_cuInit), "cuInit");
    ck_assert_str_eq(weir__driver_entry_name(WEIR_ENTRY_cuMemAlloc), "cuMemAlloc_v2");
    ck_assert_str_eq(weir__driver_entry_name(WEIR_ENTRY_cuStreamGetId), "cuStreamGetId");
    ck_assert_ptr_null(weir__driver_entry_name(WEIR_ENTRY_COUNT));
}

static struct { uintptr_t a, b, c, d; } seen;

static CUresult see_alloc(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    seen.a = (uintptr_t)block, seen.b = bytes, seen.c = (uintptr_t)pool, seen.d = (uintptr_t)stream;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult see_memset(CUdeviceptr block, unsigned char value, size_t bytes, CUstream stream) {
    seen.a = (uintptr_t)block, seen.b = value, seen.c = bytes, seen.d = (uintptr_t)stream;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult see_name(char *name, int bytes, CUdevice device) {
    seen.a = (uintptr_t)name, seen.b = (uintptr_t)bytes, seen.c = (uintptr_t)device;
    return CUDA_ERROR_INVALID_DEVICE;
}

static CUresult see_nothing(void) {
    return CUDA_ERROR_LAUNCH_FAILED;
}

static CUresult see_stream(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

static uint64_t seven_ticks(void) {
    return 7;
}

static const struct weir_driver small_table = {
    .name = "small",
    .version = 12345,
    .capabilities = WEIR_CAP_POOL_FIGURES,
    .ticks = seven_ticks,
    .cuMemAllocFromPoolAsync = see_alloc,
    .cuMemsetD8Async = see_memset,
    .cuDeviceGetName = see_name,
    .cuCtxSynchronize = see_nothing,
    .cuStreamQuery = see_stream,
};

TEST(counted_calls_are_forwarded_whole) {
    const struct weir_driver *counted = weir__driver_counted(&small_table);
    uint64_t counts[WEIR_ENTRY_COUNT], sum = 0;
    CUdeviceptr block;
    char name[8];

    ck_assert_ptr_nonnull(counted);
    ck_assert_uint_eq(counted->cuMemAllocFromPoolAsync(&block, 3, (CUmemoryPool)5, (CUstream)7),
                      CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert(seen.a == (uintptr_t)&block && seen.b == 3 && seen.c == 5 && seen.d == 7);
    ck_assert_uint_eq(counted->cuMemsetD8Async(11, 13, 17, (CUstream)19),
                      CUDA_ERROR_ILLEGAL_ADDRESS);
    ck_assert(seen.a == 11 && seen.b == 13 && seen.c == 17 && seen.d == 19);
    ck_assert_uint_eq(counted->cuDeviceGetName(name, 23, 29), CUDA_ERROR_INVALID_DEVICE);
    ck_assert(seen.a == (uintptr_t)name && seen.b == 23 && seen.c == 29);
    ck_assert_uint_eq(counted->cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
    ck_assert_uint_eq(counted->cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);

    weir__driver_counts(counts);
    ck_assert_uint_eq(counts[WEIR_ENTRY_cuMemAllocFromPoolAsync], 1);
    ck_assert_uint_eq(counts[WEIR_ENTRY_cuMemsetD8Async], 1);
    ck_assert_uint_eq(counts[WEIR_ENTRY_cuDeviceGetName], 1);
    ck_assert_uint_eq(counts[WEIR_ENTRY_cuCtxSynchronize], 2);
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        sum += counts[i];
    ck_assert_uint_eq(sum, 5);
}

TEST(counted_table_is_the_inner_one_otherwise) {
    static const struct weir_driver other;
    const struct weir_driver *counted = weir__driver_counted(&small_table);

    ck_assert_ptr_nonnull(counted);
    ck_assert_str_eq(counted->name, "small");
    ck_assert_int_eq(counted->version, 12345);
    ck_assert_uint_eq(counted->capabilities, WEIR_CAP_POOL_FIGURES);
    ck_assert_uint_eq(counted->ticks(), 7);
    ck_assert(counted->charge == NULL);
    ck_assert(counted->cuStreamGetId == NULL);
    ck_assert(counted->cuMemAlloc == NULL);
    ck_assert_ptr_eq(weir__driver_counted(&small_table), counted);
    ck_assert_ptr_null(weir__driver_counted(&other));
    ck_assert_ptr_null(weir__driver_counted(NULL));
}

#define CALLS 200000

static void *call_often(void *counted) {
    const struct weir_driver *driver = counted;

    for (int i = 0; i < CALLS; i++)
        if (driver->cuStreamQuery(NULL) != CUDA_SUCCESS)
            return counted;
    return NULL;
}

/* Threads that end leave their counts, and later threads add to them. */
TEST(counts_are_exact_with_threads) {
    const struct weir_driver *counted = weir__driver_counted(&small_table);
    uint64_t counts[WEIR_ENTRY_COUNT];

    for (uint64_t round = 1; round <= 3; round++) {
        pthread_t threads[THREADS];

        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(
                pthread_create(&threads[i], NULL, call_often, (void *)(uintptr_t)counted), 0);
        for (int i = 0; i < THREADS; i++) {
            void *failed;

            pthread_join(threads[i], &failed);
            ck_assert_ptr_null(failed);
        }
        weir__driver_counts(counts);
        ck_assert_uint_eq(counts[WEIR_ENTRY_cuStreamQuery], round * THREADS * CALLS);
    }
}

/* ----------------------------------------------------------------- scopes ---- */

static struct {
    CUcontext stack[8];
    int depth;
    CUstreamCaptureMode mode;
    int calls, fail_at; /* call number fail_at answers CUDA_ERROR_DEINITIALIZED */
} state;

static int fails_now(void) {
    return ++state.calls == state.fail_at;
}

static CUresult scope_exchange(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = state.mode;

    if (fails_now())
        return CUDA_ERROR_DEINITIALIZED;
    state.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult scope_push(CUcontext context) {
    if (fails_now())
        return CUDA_ERROR_DEINITIALIZED;
    state.stack[state.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult scope_pop(CUcontext *context) {
    if (fails_now())
        return CUDA_ERROR_DEINITIALIZED;
    *context = state.stack[--state.depth];
    return CUDA_SUCCESS;
}

static CUresult scope_error_name(CUresult result, const char **name) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    *name = "CUDA_ERROR_OUT_OF_MEMORY";
    return CUDA_SUCCESS;
}

static const struct weir_driver scope_table = {
    .name = "scope",
    .cuThreadExchangeStreamCaptureMode = scope_exchange,
    .cuCtxPushCurrent = scope_push,
    .cuCtxPopCurrent = scope_pop,
    .cuGetErrorName = scope_error_name,
};

static void reset_state(void) {
    memset(&state, 0, sizeof state);
    state.mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    state.stack[state.depth++] = (CUcontext)0x10; /* the caller's own */
}

static void assert_untouched(void) {
    ck_assert_int_eq(state.depth, 1);
    ck_assert_ptr_eq(state.stack[0], (CUcontext)0x10);
    ck_assert_uint_eq(state.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

CASE("scopes", 4, NULL, NULL);

TEST(leave_puts_back_what_enter_found) {
    struct weir_driver_scope outer, inner;

    reset_state();
    ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x20, &outer), CUDA_SUCCESS);
    ck_assert_ptr_eq(state.stack[state.depth - 1], (CUcontext)0x20);
    ck_assert_uint_eq(state.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x30, &inner), CUDA_SUCCESS);
    ck_assert_ptr_eq(state.stack[state.depth - 1], (CUcontext)0x30);
    weir__driver_leave(&scope_table, &inner);
    ck_assert_ptr_eq(state.stack[state.depth - 1], (CUcontext)0x20);
    ck_assert_uint_eq(state.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    weir__driver_leave(&scope_table, &outer);
    assert_untouched();
    /* weir__driver_leave() does not write to the scope. */
    ck_assert_uint_eq(outer.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST(failing_enter_changes_nothing) {
    struct weir_driver_scope scope;

    for (int call = 1; call <= 2; call++) {
        reset_state();
        state.fail_at = call;
        ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x20, &scope),
                          CUDA_ERROR_DEINITIALIZED);
        assert_untouched();
    }
}

TEST(failing_enter_keeps_the_outer_scope) {
    struct weir_driver_scope outer, inner;

    for (int call = 3; call <= 4; call++) {
        reset_state();
        state.fail_at = call;
        ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x20, &outer), CUDA_SUCCESS);
        ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x30, &inner),
                          CUDA_ERROR_DEINITIALIZED);
        ck_assert_ptr_eq(state.stack[state.depth - 1], (CUcontext)0x20);
        ck_assert_uint_eq(state.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
        weir__driver_leave(&scope_table, &outer);
        assert_untouched();
    }
}

TEST(leave_restores_the_mode_even_if_the_pop_fails) {
    struct weir_driver_scope scope;

    reset_state();
    state.fail_at = 3;
    ck_assert_uint_eq(weir__driver_enter(&scope_table, (CUcontext)0x20, &scope), CUDA_SUCCESS);
    weir__driver_leave(&scope_table, &scope);
    ck_assert_uint_eq(state.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

TEST(error_names_are_never_null) {
    ck_assert_str_eq(weir__driver_error_name(&scope_table, CUDA_ERROR_OUT_OF_MEMORY),
                     "CUDA_ERROR_OUT_OF_MEMORY");
    ck_assert_str_eq(weir__driver_error_name(&scope_table, 12345), "CUDA_ERROR_12345");
}

/* ------------------------------------------------------------------- main ---- */

int main(int argc, char **argv) {
    ssize_t length = readlink("/proc/self/exe", own_path, sizeof own_path - 1);

    if (length <= 0)
        snprintf(own_path, sizeof own_path, "%s", argv[0]);
    for (size_t i = 0; argc == 2 && i < sizeof children / sizeof children[0]; i++)
        if (strcmp(argv[1], children[i].word) == 0)
            return children[i].run();
    return run_tests("driver", CK_FORK_GETENV);
}
