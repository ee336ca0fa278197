/* SPDX-License-Identifier: MIT */
/* test_process_peers.c: processes on one modelled device free memory for each other.
 *
 * The other processes run this program, too.  They read one command from each line of input, and answer with a line.
 * Time is real here, so each deadline of a test is long enough for a slow machine. */
#include "test_process_peers.h"

/* ---- the other processes ------------------------------------------------------------------------- */

static weir_allocator *own;
static void *blocks[MOST_BLOCKS];
static size_t block_count;

/* Ends a child whose condition fails.  Check's assertions work in Check's process only. */
static void must_hold(int holds, int line) {
    if (holds)
        return;
    fprintf(stderr, "process %d: line %d\n", (int)getpid(), line);
    _exit(9);
}
#define must(condition) must_hold(condition, __LINE__)

/* Opens the model driver.  The profile, if there is one, defines the device's size and the memory of a context. */
static void open_model_driver(void) {
    uint64_t capacity = getenv("WEIR_MODEL_PROFILE") ? 0 : CAPACITY;
    struct weir_driver_failure failure;

    driver = weir__driver_open("model", &failure);
    must(driver != NULL);
    must(weir__model_reset(&(struct weir_model_setup){.capacity = capacity}) == 0);
}

static void enter_model_device(void) {
    must(driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
    must(driver->cuCtxPushCurrent(primary) == CUDA_SUCCESS);
    must(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

static weir_status alloc_own_block(size_t bytes) {
    void *block;
    weir_status status = weir_alloc(own, bytes, A, &block);

    if (status == WEIR_OK)
        blocks[block_count++] = block;
    return status;
}

static weir_status free_own_blocks(void) {
    weir_status status = WEIR_OK;

    while (block_count > 0 && status == WEIR_OK)
        status = weir_free(own, blocks[--block_count], A);
    return status;
}

/* Frees every other block. */
static weir_status free_half_of_blocks(void) {
    weir_status status = WEIR_OK;
    size_t left = 0;

    for (size_t i = 0; i < block_count && status == WEIR_OK; i++)
        if (i % 2 == 0)
            status = weir_free(own, blocks[i], A);
        else
            blocks[left++] = blocks[i];
    block_count = left;
    return status;
}

static int takes_all(void *context, weir_stream stream) {
    (void)context, (void)stream;
    return 1;
}

static weir_tensors *tensors;
static int source_frees;

/* Opens the tensors of the device, whose allocator becomes `own`. */
static void open_tensors(const char *engine) {
    must(setenv("WEIR_DEVICE", "model", 1) == 0 && setenv("WEIR_ENGINE", engine, 1) == 0);
    must(weir_tensors_open(0, NULL, &tensors) == WEIR_OK);
    own = weir_tensors_allocator(tensors);
}

static void *alloc_source_segment(void *context, size_t bytes) {
    CUdeviceptr block = 0;

    (void)context;
    must(driver->cuMemAlloc(&block, bytes) == CUDA_SUCCESS);
    return (void *)(uintptr_t)block;
}

static void free_source_segment(void *context, void *segment) {
    (void)context;
    source_frees++;
    must(driver->cuMemFree((uintptr_t)segment) == CUDA_SUCCESS);
}

/* Fills a private pool of tensors with one block, frees the block while the stream still works, and closes the pool.
 * Kind "used": the pool keeps its user.  Kind "live": the block stays live.  Kind "source": the pool's memory comes
 * from alloc_source_segment(). */
static weir_status fill_tensor_pool(const char *engine, size_t bytes, const char *kind) {
    const weir_tensors_source source = {NULL, alloc_source_segment, free_source_segment, NULL};
    const weir_tensors_id id = {0, 7};
    weir_status status;
    void *block;

    open_tensors(engine);
    must(weir_tensors_pool_open(tensors, id, strcmp(kind, "source") == 0 ? &source : NULL) ==
         WEIR_OK);
    must(weir_tensors_begin(tensors, id, takes_all, NULL) == WEIR_OK);
    status = weir_tensors_alloc(tensors, bytes, bytes, A, 0, NULL, &block);
    if (status == WEIR_OK && strcmp(kind, "live") != 0) {
        must(weir__model_use(A, (uintptr_t)block, bytes, 1, 5 * MS) == CUDA_SUCCESS);
        status = weir_tensors_free(block);
    }
    must(weir_tensors_end(tensors, id, NULL) == WEIR_OK);
    if (strcmp(kind, "used") != 0)
        must(weir_tensors_pool_close(tensors, id) == WEIR_OK);
    return status;
}

/* Frees a tensor that another stream uses.  The use ends afterwards, but no call has noticed the end. */
static weir_status use_tensor(const char *engine, size_t bytes) {
    weir_status status;
    void *block;

    open_tensors(engine);
    status = weir_tensors_alloc(tensors, bytes, bytes, A, 0, NULL, &block);
    if (status == WEIR_OK)
        status = weir_tensors_use(block, B);
    if (status == WEIR_OK) {
        must(weir__model_use(B, (uintptr_t)block, bytes, 1, 5 * MS) == CUDA_SUCCESS);
        status = weir_tensors_free(block);
    }
    weir__model_advance(10 * MS);
    return status;
}

/* Frees a tensor that a captured stream uses, then ends the capture. */
static weir_status use_in_capture(size_t bytes) {
    weir_status status;
    CUstream captured;
    CUgraph graph;
    void *block;

    open_tensors("mapped");
    must(driver->cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    status = weir_tensors_alloc(tensors, bytes, bytes, A, 0, NULL, &block);
    must(driver->cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    if (status == WEIR_OK)
        status = weir_tensors_use(block, captured);
    if (status == WEIR_OK)
        status = weir_tensors_free(block);
    must(driver->cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    must(driver->cuGraphDestroy(graph) == CUDA_SUCCESS);
    return status;
}

static uint64_t active_tensors(void) {
    weir_tensors_figures f = {.size = sizeof f};

    must(weir_tensors_stats(tensors, &f) == WEIR_OK);
    return (uint64_t)f.active_bytes[0].current;
}

static void pause_in_visit(void *context, const weir_tensors_block *block) {
    (void)block;
    must(sem_post(context) == 0);
    for (;;)
        pause();
}

/* Holds the lock of the tensors until the process ends. */
static void *hold_tensors(void *held) {
    const weir_tensors_id all = {0, 0};

    (void)!weir_tensors_visit(tensors, all, pause_in_visit, held);
    return NULL;
}

static void tell_figures(void) {
    weir_statistics f = {.size = sizeof f};

    must(weir_stats(own, &f) == WEIR_OK);
    printf("%llu %llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)(f.reserved / MIB),
           (unsigned long long)(f.in_use / MIB), (unsigned long long)f.reclaims,
           (unsigned long long)(f.received_bytes / MIB), (unsigned long long)f.releases,
           (unsigned long long)(f.released_bytes / MIB), (unsigned long long)f.failed_requests,
           (unsigned long long)f.growths);
}

/* Prints the number and the MiB of the events with that cause. */
static void tell_events(int cause) {
    weir_event events[64];
    uint64_t bytes = 0;
    size_t count = 0, found = 0;

    must(weir_events(own, 0, events, sizeof events[0], 64, &count) == WEIR_OK);
    for (size_t i = 0; i < count; i++)
        if (events[i].cause == cause) {
            found++;
            bytes += events[i].got;
            must(events[i].shrink == (cause == WEIR_EVENT_RELEASE));
        }
    printf("%zu %llu\n", found, (unsigned long long)(bytes / MIB));
}

/* Unmaps and closes the registry for good, as the kernel does before a killed process has ended. */
static void lose_registry(void) {
    const struct rlimit none = {0};
    char line[512], link[64];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");

    must(maps != NULL);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "registry") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            must(munmap((void *)(uintptr_t)from, to - from) == 0);
    fclose(maps);
    must(setrlimit(RLIMIT_NOFILE, &none) == 0);
    for (int file = 3; file < 256; file++) {
        ssize_t length;

        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        length = readlink(link, line, sizeof line - 1);
        line[length < 0 ? 0 : length] = '\0';
        if (strstr(line, "registry"))
            close(file);
    }
}

static void obey_line(const char *line) {
    char engine[16], kind[16];
    size_t mib = 0;

    if (sscanf(line, "take %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(alloc_own_block(mib * MIB)));
    } else if (strcmp(line, "give\n") == 0) {
        printf("%s\n", weir_status_name(free_own_blocks()));
    } else if (sscanf(line, "pool %15s %zu %15s", engine, &mib, kind) == 3) {
        printf("%s\n", weir_status_name(fill_tensor_pool(engine, mib * MIB, kind)));
    } else if (sscanf(line, "use %15s %zu", engine, &mib) == 2) {
        printf("%s\n", weir_status_name(use_tensor(engine, mib * MIB)));
    } else if (sscanf(line, "capture %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(use_in_capture(mib * MIB)));
    } else if (strcmp(line, "records\n") == 0) {
        printf("%llu\n", (unsigned long long)weir__model_calls(WEIR_ENTRY_cuEventRecord));
    } else if (strcmp(line, "active\n") == 0) {
        printf("%llu\n", (unsigned long long)(active_tensors() / MIB));
    } else if (strcmp(line, "hold\n") == 0) {
        pthread_t thread;
        sem_t held;

        must(sem_init(&held, 0, 0) == 0);
        must(pthread_create(&thread, NULL, hold_tensors, &held) == 0);
        must(sem_wait(&held) == 0);
        printf("it is held\n");
    } else if (strcmp(line, "trim\n") == 0) {
        printf("%s\n", weir_status_name(weir_trim(own, 0, NULL)));
    } else if (strcmp(line, "sources\n") == 0) {
        printf("%d\n", source_frees);
    } else if (strcmp(line, "half\n") == 0) {
        printf("%s\n", weir_status_name(free_half_of_blocks()));
    } else if (strcmp(line, "figures\n") == 0) {
        tell_figures();
    } else if (strcmp(line, "releases\n") == 0) {
        tell_events(WEIR_EVENT_RELEASE);
    } else if (strcmp(line, "reclaims\n") == 0) {
        tell_events(WEIR_EVENT_RECLAIM);
    } else if (strcmp(line, "limit\n") == 0) {
        weir_failure r = {.size = sizeof r};

        (void)alloc_own_block(64 * GIB);
        must(weir_last_failure(&r) == WEIR_OK);
        printf("%llu\n", r.limit == UINT64_MAX ? 0ULL : (unsigned long long)(r.limit / MIB));
    } else if (strcmp(line, "why\n") == 0) { /* the OOM report in one line */
        weir_oom_report v = {.size = sizeof v};
        char text[4096];

        must(weir_last_oom_report(own, &v) == WEIR_OK);
        must(weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, text, sizeof text) < sizeof text);
        for (char *at = text; (at = strchr(at, '\n'));)
            *at = '|';
        printf("%s\n", text);
    } else if (sscanf(line, "work %zu", &mib) == 1) { /* ms of work, so that frees are pending */
        printf("%s\n", weir__model_kernel(A, mib * MS) == CUDA_SUCCESS ? "busy" : "not busy");
    } else if (sscanf(line, "later %zu", &mib) == 1) { /* ms; no cache serves the request */
        weir__model_advance(mib * MS);
        printf("%s\n", weir_status_name(alloc_own_block(2 * MIB)));
    } else if (strcmp(line, "fail\n") == 0) {
        weir__model_fail(WEIR_ENTRY_cuMemPoolTrimTo, 1, CUDA_ERROR_UNKNOWN, 0);
        printf("it will\n");
    } else if (strcmp(line, "context\n") == 0) { /* asks other processes for room */
        weir_options options = options_of(KIND_POOL, "model", 0);
        struct weir_admission admission = {0};
        uint64_t began = now_ms();
        int any = weir__drop_in_ask_for_context_on(driver, 0, &options, &admission);

        printf("%d %llu\n", any, (unsigned long long)(now_ms() - began));
    } else if (strcmp(line, "share\n") == 0) { /* creates an allocator with a share */
        weir_options options = options_of(KIND_POOL, "model", 0);
        char message[320];

        must(weir_options_set(&options, "limit", "share", message, sizeof message) == WEIR_OK);
        printf("%s\n",
               weir_status_name(weir__allocator_create_on(driver, &options, &own, NULL, 0)));
    } else if (sscanf(line, "preallocate %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(weir_preallocate(own, mib * MIB, NULL)));
    } else if (strcmp(line, "trims\n") == 0) { /* driver calls that only a trim makes */
        printf("%llu\n", (unsigned long long)(weir__model_calls(WEIR_ENTRY_cuMemPoolTrimTo) +
                                              weir__model_calls(WEIR_ENTRY_cuMemFree) +
                                              weir__model_calls(WEIR_ENTRY_cuStreamSynchronize)));
    } else if (strcmp(line, "blind\n") == 0) {
        weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
        printf("it is\n");
    } else if (strcmp(line, "nameless\n") == 0) { /* the device has no UUID */
        weir__model_fail(WEIR_ENTRY_cuDeviceGetUuid, 1, CUDA_ERROR_UNKNOWN, 1);
        printf("it is\n");
    } else if (strcmp(line, "looks\n") == 0) { /* the queries of free memory */
        printf("%llu\n", (unsigned long long)weir__model_calls(WEIR_ENTRY_cuMemGetInfo));
    } else if (strcmp(line, "refuse\n") == 0) { /* the driver refuses free memory */
        weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
        printf("it will\n");
    } else if (sscanf(line, "set-limit %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(weir_set_limit(own, bytes_amount(mib * MIB))));
    } else if (sscanf(line, "also %zu", &mib) == 1) { /* in a second allocator without a share */
        weir_options options = options_of(KIND_POOL, "model", 0);
        weir_allocator *other = NULL;
        void *block;

        must(weir__allocator_create_on(driver, &options, &other, NULL, 0) == WEIR_OK);
        printf("%s\n", weir_status_name(weir_alloc(other, mib * MIB, A, &block)));
    } else if (strcmp(line, "lose\n") == 0) {
        weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
        printf("%s\n", weir_status_name(weir_trim(own, 0, NULL)));
        weir__model_faults_clear();
    } else if (strcmp(line, "ending\n") == 0) { /* acts as killed, but has its memory */
        printf("it is\n");
        fflush(stdout);
        lose_registry();
        syscall(SYS_exit, 0);                  /* pthread_exit would open a library */
    } else if (strcmp(line, "dying\n") == 0) { /* acts as killed, but has its slot */
        printf("it is\n");
        fflush(stdout);
        syscall(SYS_exit, 0);
    } else if (strcmp(line, "end\n") == 0) {
        must(free_own_blocks() == WEIR_OK);
        must(weir_allocator_destroy(own) == WEIR_OK);
        exit(0);
    } else {
        printf("what?\n");
    }
}

/* Allocates and frees until its input ends: up to `peak` if it locks the file `turns`, else up to `low`. */
static int work_by_turns(const char *turns, size_t low, size_t peak) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    int turn = open(turns, O_RDWR | O_CLOEXEC);
    uint64_t random = (uint64_t)getpid() * UINT64_C(2862933555777941757) + 1;

    if (turn < 0)
        return 2;
    while (poll(&input, 1, 0) == 0) {
        int is_peak = flock(turn, LOCK_EX | LOCK_NB) == 0;
        size_t most = is_peak ? peak : low, held = 0, bytes;
        weir_status status = WEIR_OK;

        while (status == WEIR_OK && held < most) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            bytes = MIB * (1 + (random >> 33) % 48);
            bytes = bytes < most - held ? bytes : most - held;
            status = alloc_own_block(bytes);
            held += bytes;
        }
        if (status == WEIR_OK)
            status = free_own_blocks();
        if (is_peak)
            flock(turn, LOCK_UN);
        if (status != WEIR_OK) {
            weir_failure r = {.size = sizeof r};

            must(weir_last_failure(&r) == WEIR_OK);
            fprintf(stderr, "%d: %s, %s, held %zu MiB, device free %llu MiB, waited %llu ms\n",
                    (int)getpid(), weir_status_name(status), is_peak ? "peak" : "low", held / MIB,
                    (unsigned long long)(r.device_free / MIB),
                    (unsigned long long)(r.waited_ns / 1000000));
            return 1;
        }
    }
    return 0;
}

/* Opens a context as a program under `weir run` does, where weir asks other processes for room after a failure. */
static void open_as_a_program(void) {
    weir_options options = options_of(KIND_POOL, "model", 0);
    struct weir_admission admission = {0};

    if (driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS)
        return;
    printf("CUDA_ERROR_OUT_OF_MEMORY\n");
    while (weir__drop_in_ask_for_context_on(driver, 0, &options, &admission))
        if (driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS)
            return;
    must(0); /* there is no room for the context */
}

/* Runs `child KIND [OPTION VALUE]... [work FILE LOW PEAK]`.  KIND is an engine's number; "none" for no allocator; or
 * "program" for a context without an allocator. */
static int serve_as_child(int count, char **words) {
    weir_options options = options_of(atoi(words[0]), "model", CAPACITY);
    char line[256], message[640];
    int i, status;

    open_model_driver();
    options.recovery_timeout_ms = 20000;
    for (i = 1; i + 1 < count && strcmp(words[i], "work") != 0; i += 2)
        if (weir_options_set(&options, words[i], words[i + 1], message, sizeof message) != 0) {
            fprintf(stderr, "%s\n", message);
            return 3;
        }
    if (strcmp(words[0], "program") == 0)
        open_as_a_program();
    status = words[0][0] < '0' || words[0][0] > '9'
                 ? WEIR_OK
                 : weir__allocator_create_on(driver, &options, &own, message, sizeof message);
    if (status == WEIR_OK)
        enter_model_device(); /* creating an allocator has opened the context before */
    printf("%s\n", status == WEIR_OK ? "ready" : message);
    fflush(stdout);
    if (status != WEIR_OK) {
        fprintf(stderr, "%s\n", message);
        return 4;
    }
    if (i < count) {
        status = work_by_turns(words[i + 1], (size_t)atol(words[i + 2]) * MIB,
                               (size_t)atol(words[i + 3]) * MIB);
        return status != 0 || weir_allocator_destroy(own) != WEIR_OK ? 1 : 0;
    }
    while (fgets(line, sizeof line, stdin)) {
        obey_line(line);
        fflush(stdout);
    }
    return 0;
}

/* ---- all at once --------------------------------------------------------------------------------- */

enum { WORKERS = 5, LOW = 48, PEAK = 560 };

static struct child workers[WORKERS];

static void start_turn_worker(struct child *c) {
    static unsigned started;
    char words[200];

    snprintf(words, sizeof words, "%d work %s/turns %d %d", kinds[started++ % 3], folder, LOW,
             PEAK);
    start_peer(c, words);
}

/* Kills or stops one worker at a time.  The device has room for a stopped worker's reserved memory beside a peak. */
static void torment(uint64_t for_ms, unsigned *kills) {
    uint64_t until = now_ms() + for_ms, step = 0, random = 42;

    for (int i = 0; i < WORKERS; i++)
        start_turn_worker(&workers[i]);
    sleep_for_ms(50);
    while (now_ms() < until) {
        struct child *c;

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        c = &workers[(random >> 33) % WORKERS];
        if (step++ % 4 == 3) {
            ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
            sleep_for_ms(5);
            ck_assert_int_eq(kill(c->pid, SIGCONT), 0);
        } else {
            end_by(c, SIGKILL);
            start_turn_worker(c);
            ++*kills;
        }
        sleep_for_ms((long)((random >> 40) % 12));
    }
}

static void expect_peace(void) {
    uint64_t began;

    for (int i = 0; i < WORKERS; i++) {
        fclose(workers[i].to);
        workers[i].to = fopen("/dev/null", "w");
    }
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(exit_status_of_peer(&workers[i]), 0); /* no request has failed */
    began = now_ms();
    start_model(CAPACITY);
    while (device_free() < CAPACITY)
        ck_assert_uint_le(now_ms() - began, 1000);
}

CASE("many", 3600, set_up_peers, tear_down_peers);

TEST(test_others_survive_processes_killed_at_random) {
    const char *seconds = getenv("WEIR_TEST_SECONDS");
    unsigned kills = 0;

    torment(seconds ? (uint64_t)atol(seconds) * 1000 : 3000, &kills);
    expect_peace();
    printf("# %u processes were killed\n", kills);
    ck_assert_uint_ge(kills, 20);
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "child") == 0)
        return serve_as_child(argc - 2, argv + 2);
    return run_tests("neighbours", CK_FORK);
}
