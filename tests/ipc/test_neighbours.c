/* SPDX-License-Identifier: MIT */
/* test_neighbours.c: processes on one modelled device, which give way to each other.
 *
 * The others are this program again, told by lines what to do; each answers with a line.  Time is real here: what
 * has a deadline in the tests has one that nobody meets by being slow.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/drop_in.h"
#include "ipc/ledger.h"
#include "ipc/process_peers.h"
#include "ipc/turn_lock.h"
#include "driver/model/model_shared.h"
#include "tests/fixtures/model_device.h"
#include "api/allocator_internal.h"

enum { MOST_BLOCKS = 4096, MOST_CHILDREN = 16 };

#define CAPACITY (1024 * MIB)

static char folder[] = "/tmp/weir-neighbours-XXXXXX";
static const char *program;

static uint64_t now_ms(void) {
    return weir__ledger_now() / 1000000;
}

static void nap(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* ---- the other processes ------------------------------------------------------------------------- */

static weir_allocator *own;
static void *blocks[MOST_BLOCKS];
static size_t block_count;

/* Check's own words are for its own process. */
static void must_hold(int holds, int line) {
    if (holds)
        return;
    fprintf(stderr, "process %d: line %d\n", (int)getpid(), line);
    _exit(9);
}
#define must(condition) must_hold(condition, __LINE__)

/* Contexts take memory where a profile says so. */
static void open_driver(void) {
    uint64_t capacity = getenv("WEIR_MODEL_PROFILE") ? 0 : CAPACITY;
    struct weir_driver_failure failure;

    driver = weir__driver_open("model", &failure);
    must(driver != NULL);
    must(weir__model_reset(&(struct weir_model_setup){.capacity = capacity}) == 0);
}

static void open_device(void) {
    must(driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
    must(driver->cuCtxPushCurrent(primary) == CUDA_SUCCESS);
    must(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

static weir_status take(size_t bytes) {
    void *block;
    weir_status status = weir_alloc(own, bytes, A, &block);

    if (status == WEIR_OK)
        blocks[block_count++] = block;
    return status;
}

static weir_status give_all(void) {
    weir_status status = WEIR_OK;

    while (block_count > 0 && status == WEIR_OK)
        status = weir_free(own, blocks[--block_count], A);
    return status;
}

/* Every other block. */
static weir_status give_half(void) {
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

static void tell_figures(void) {
    weir_statistics f = {.size = sizeof f};

    must(weir_stats(own, &f) == WEIR_OK);
    printf("%llu %llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)(f.reserve / MIB),
           (unsigned long long)(f.in_use / MIB), (unsigned long long)f.appeals,
           (unsigned long long)(f.appeal_bytes / MIB), (unsigned long long)f.yields,
           (unsigned long long)(f.yield_bytes / MIB), (unsigned long long)f.refusals,
           (unsigned long long)f.growths);
}

/* Of that cause: how many, and bytes. */
static void tell_events(int cause) {
    weir_event events[64];
    uint64_t bytes = 0;
    size_t count = 0, found = 0;

    must(weir_events(own, 0, events, sizeof events[0], 64, &count) == WEIR_OK);
    for (size_t i = 0; i < count; i++)
        if (events[i].cause == cause) {
            found++;
            bytes += events[i].got;
            must(events[i].shrink == (cause == WEIR_EVENT_YIELD));
        }
    printf("%zu %llu\n", found, (unsigned long long)(bytes / MIB));
}

/* The kernel takes mappings and files, and with them locks, before a process has ended.  A thread that still runs opens
 * none again. */
static void lose_ledger(void) {
    const struct rlimit none = {0};
    char line[512], link[64];
    unsigned long from, to;
    FILE *maps = fopen("/proc/self/maps", "r");

    must(maps != NULL);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "ledger") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            must(munmap((void *)(uintptr_t)from, to - from) == 0);
    fclose(maps);
    must(setrlimit(RLIMIT_NOFILE, &none) == 0);
    for (int file = 3; file < 256; file++) {
        ssize_t length;

        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        length = readlink(link, line, sizeof line - 1);
        line[length < 0 ? 0 : length] = '\0';
        if (strstr(line, "ledger"))
            close(file);
    }
}

static void obey(const char *line) {
    size_t mib = 0;

    if (sscanf(line, "take %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(take(mib * MIB)));
    } else if (strcmp(line, "give\n") == 0) {
        printf("%s\n", weir_status_name(give_all()));
    } else if (strcmp(line, "half\n") == 0) {
        printf("%s\n", weir_status_name(give_half()));
    } else if (strcmp(line, "figures\n") == 0) {
        tell_figures();
    } else if (strcmp(line, "yields\n") == 0) {
        tell_events(WEIR_EVENT_YIELD);
    } else if (strcmp(line, "appeals\n") == 0) {
        tell_events(WEIR_EVENT_APPEAL);
    } else if (strcmp(line, "limit\n") == 0) {
        weir_refusal r = {.size = sizeof r};

        (void)take(64 * GIB);
        must(weir_last_refusal(&r) == WEIR_OK);
        printf("%llu\n", r.limit == UINT64_MAX ? 0ULL : (unsigned long long)(r.limit / MIB));
    } else if (strcmp(line, "why\n") == 0) { /* the last refusal, in one line */
        weir_verdict v = {.size = sizeof v};
        char text[4096];

        must(weir_last_verdict(own, &v) == WEIR_OK);
        must(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text) < sizeof text);
        for (char *at = text; (at = strchr(at, '\n'));)
            *at = '|';
        printf("%s\n", text);
    } else if (sscanf(line, "work %zu", &mib) ==
               1) { /* ms, behind which what is freed is pending */
        printf("%s\n", weir__model_kernel(A, mib * MS) == CUDA_SUCCESS ? "busy" : "not busy");
    } else if (sscanf(line, "later %zu", &mib) == 1) { /* ms, and a request that no cache serves */
        weir__model_advance(mib * MS);
        printf("%s\n", weir_status_name(take(2 * MIB)));
    } else if (strcmp(line, "fail\n") == 0) {
        weir__model_fail(WEIR_ENTRY_cuMemPoolTrimTo, 1, CUDA_ERROR_UNKNOWN, 0);
        printf("it will\n");
    } else if (strcmp(line, "context\n") == 0) { /* for which there is no room */
        weir_options options = options_of(KIND_POOL, "model", 0);
        struct weir_admission admission = {0};
        uint64_t began = now_ms();
        int any = weir__drop_in_ask_on(driver, 0, &options, &admission);

        printf("%d %llu\n", any, (unsigned long long)(now_ms() - began));
    } else if (strcmp(line, "share\n") == 0) { /* the first allocator, with a share */
        weir_options options = options_of(KIND_POOL, "model", 0);
        char message[320];

        must(weir_options_set(&options, "limit", "share", message, sizeof message) == WEIR_OK);
        printf("%s\n",
               weir_status_name(weir__allocator_create_on(driver, &options, &own, NULL, 0)));
    } else if (sscanf(line, "preallocate %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(weir_preallocate(own, mib * MIB, NULL)));
    } else if (strcmp(line, "trims\n") == 0) { /* what only they call here */
        printf("%llu\n", (unsigned long long)(weir__model_calls(WEIR_ENTRY_cuMemPoolTrimTo) +
                                              weir__model_calls(WEIR_ENTRY_cuMemFree) +
                                              weir__model_calls(WEIR_ENTRY_cuStreamSynchronize)));
    } else if (strcmp(line, "blind\n") == 0) {
        weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
        printf("it is\n");
    } else if (strcmp(line, "nameless\n") == 0) { /* the device */
        weir__model_fail(WEIR_ENTRY_cuDeviceGetUuid, 1, CUDA_ERROR_UNKNOWN, 1);
        printf("it is\n");
    } else if (strcmp(line, "looks\n") == 0) { /* at what is free, for a try and beside them */
        printf("%llu\n", (unsigned long long)weir__model_calls(WEIR_ENTRY_cuMemGetInfo));
    } else if (strcmp(line, "refuse\n") == 0) { /* what it says is free */
        weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
        printf("it will\n");
    } else if (sscanf(line, "set-limit %zu", &mib) == 1) {
        printf("%s\n", weir_status_name(weir_set_limit(own, bytes_amount(mib * MIB))));
    } else if (sscanf(line, "also %zu", &mib) ==
               1) { /* another allocator, without a share, that has so much */
        weir_options options = options_of(KIND_POOL, "model", 0);
        weir_allocator *other = NULL;
        void *block;

        must(weir__allocator_create_on(driver, &options, &other, NULL, 0) == WEIR_OK);
        printf("%s\n", weir_status_name(weir_alloc(other, mib * MIB, A, &block)));
    } else if (strcmp(line, "lose\n") == 0) {
        weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
        printf("%s\n", weir_status_name(weir_trim(own, 0, NULL)));
        weir__model_faults_clear();
    } else if (strcmp(line, "ending\n") ==
               0) { /* as one that was killed, before its memory is gone */
        printf("it is\n");
        fflush(stdout);
        lose_ledger();
        syscall(SYS_exit, 0);                  /* pthread_exit would open a library */
    } else if (strcmp(line, "dying\n") == 0) { /* likewise, and its lock is not gone either */
        printf("it is\n");
        fflush(stdout);
        syscall(SYS_exit, 0);
    } else if (strcmp(line, "end\n") == 0) {
        must(give_all() == WEIR_OK);
        must(weir_allocator_destroy(own) == WEIR_OK);
        exit(0);
    } else {
        printf("what?\n");
    }
}

/* Works until its input ends: at most one of all is at its peak, who has the lock on that file. */
static int work(const char *turns, size_t low, size_t peak) {
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
            status = take(bytes);
            held += bytes;
        }
        if (status == WEIR_OK)
            status = give_all();
        if (is_peak)
            flock(turn, LOCK_UN);
        if (status != WEIR_OK) {
            weir_refusal r = {.size = sizeof r};

            must(weir_last_refusal(&r) == WEIR_OK);
            fprintf(stderr, "%d: %s, %s, held %zu MiB, device free %llu MiB, waited %llu ms\n",
                    (int)getpid(), weir_status_name(status), is_peak ? "peak" : "low", held / MIB,
                    (unsigned long long)(r.device_free / MIB),
                    (unsigned long long)(r.waited_ns / 1000000));
            return 1;
        }
    }
    return 0;
}

/* As in a program under `weir run', of whose contexts weir knows. */
static void open_as_a_program(void) {
    weir_options options = options_of(KIND_POOL, "model", 0);
    struct weir_admission admission = {0};

    if (driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS)
        return;
    printf("CUDA_ERROR_OUT_OF_MEMORY\n");
    while (weir__drop_in_ask_on(driver, 0, &options, &admission))
        if (driver->cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS)
            return;
    must(0); /* it is not admitted */
}

/* child KIND [OPTION VALUE]...; KIND "none", "program": without an allocator, the latter with a context; with "work"
 * FILE LOW PEAK behind that. */
static int be_child(int count, char **words) {
    weir_options options = options_of(atoi(words[0]), "model", CAPACITY);
    char line[256], message[640];
    int i, status;

    open_driver();
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
        open_device(); /* it has a context by then, unless there is no allocator */
    printf("%s\n", status == WEIR_OK ? "ready" : message);
    fflush(stdout);
    if (status != WEIR_OK) {
        fprintf(stderr, "%s\n", message);
        return 4;
    }
    if (i < count) {
        status =
            work(words[i + 1], (size_t)atol(words[i + 2]) * MIB, (size_t)atol(words[i + 3]) * MIB);
        return status != 0 || weir_allocator_destroy(own) != WEIR_OK ? 1 : 0;
    }
    while (fgets(line, sizeof line, stdin)) {
        obey(line);
        fflush(stdout);
    }
    return 0;
}

/* ---- and how they are told ----------------------------------------------------------------------- */

struct child {
    pid_t pid;
    FILE *to, *from;
    char reply[4096];
};

static struct {
    pid_t pid; /* 0: none */
    int to;
} living[MOST_CHILDREN];

static void hear(struct child *c) {
    ck_assert_msg(fgets(c->reply, sizeof c->reply, c->from) != NULL, "process %d ended",
                  (int)c->pid);
    c->reply[strcspn(c->reply, "\n")] = '\0';
}

/* `words': KIND and options, with blanks between. */
static void begin(struct child *c, const char *words) {
    char copy[256], *argv[32] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "child"}, *at;
    int in[2], out[2], count = 2;

    snprintf(copy, sizeof copy, "%s", words);
    for (at = strtok(copy, " "); at; at = strtok(NULL, " "))
        argv[count++] = at;
    ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    c->pid = fork();
    if (c->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        exec_itself(argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    c->to = fdopen(in[1], "w");
    c->from = fdopen(out[0], "r");
    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid == 0) {
            living[i].pid = c->pid;
            living[i].to = in[1];
            break;
        }
}

static void start(struct child *c, const char *words) {
    begin(c, words);
    hear(c);
    ck_assert_str_eq(c->reply, "ready");
}

static void say(struct child *c, const char *line) {
    fprintf(c->to, "%s\n", line);
    fflush(c->to);
}

static void expect(struct child *c, const char *line, const char *reply) {
    say(c, line);
    hear(c);
    if (strcmp(c->reply, reply) != 0)
        ck_abort_msg("process %d: %s: %s, not %s", (int)c->pid, line, c->reply, reply);
}

struct figures {
    unsigned long long reserve, in_use, appeals, appeal_mib, yields, yield_mib, refusals, growths;
};

static struct figures figures_of(struct child *c) {
    struct figures f = {0};

    say(c, "figures");
    hear(c);
    ck_assert_int_eq(sscanf(c->reply, "%llu %llu %llu %llu %llu %llu %llu %llu", &f.reserve,
                            &f.in_use, &f.appeals, &f.appeal_mib, &f.yields, &f.yield_mib,
                            &f.refusals, &f.growths),
                     8);
    return f;
}

static int wait_for(struct child *c) {
    int status;

    ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
    fclose(c->to);
    fclose(c->from);
    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid == c->pid)
            living[i].pid = 0;
    c->pid = 0;
    return status;
}

static void end_by(struct child *c, int how) {
    int status;

    ck_assert_int_eq(kill(c->pid, how), 0);
    status = wait_for(c);
    if (!WIFSIGNALED(status)) /* it had ended by itself */
        ck_abort_msg("a process failed: %d", WEXITSTATUS(status));
}

/* As /proc has it: of its first thread. */
static char state_of(const struct child *c) {
    char path[64], text[256], *at;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)c->pid);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    at = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return at ? at[2] : '?';
}

/* And it is. */
static void stop(const struct child *c) {
    int status;

    ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(c->pid, &status, WUNTRACED), c->pid);
    ck_assert(WIFSTOPPED(status));
}

static void end(struct child *c) {
    say(c, "end");
    ck_assert_int_eq(wait_for(c), 0);
}

/* Holds nothing, and has so much reserve. */
static void fill(struct child *c, unsigned mib) {
    char line[32];

    for (unsigned i = 0; i < mib / 64; i++) {
        snprintf(line, sizeof line, "take 64");
        expect(c, line, "WEIR_OK");
    }
    expect(c, "give", "WEIR_OK");
    ck_assert_uint_ge(figures_of(c).reserve, mib);
}

/* One that has so much idle, and one that wants memory. */
static void start_beside(struct child *idle, unsigned mib, struct child *needy, const char *words) {
    start(idle, "0");
    start(needy, words);
    fill(idle, mib);
}

static void set_up(void) {
    char path[128];
    FILE *file;

    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", folder, 1), 0);
    snprintf(path, sizeof path, "%s/device", folder);
    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", path, 1), 0);
    snprintf(path, sizeof path, "%s/turns", folder);
    file = fopen(path, "w");
    fclose(file);
    signal(SIGPIPE, SIG_IGN);
}

/* Those that are left end by themselves as their input does. */
static void tear_down(void) {
    char command[128];
    int status;

    for (int i = 0; i < MOST_CHILDREN; i++)
        if (living[i].pid > 0) {
            kill(living[i].pid, SIGCONT);
            close(living[i].to);
            ck_assert_int_eq(waitpid(living[i].pid, &status, 0), living[i].pid);
            ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
            living[i].pid = 0;
        }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
}

static int ledgers(void) {
    char command[160];
    int status;

    snprintf(command, sizeof command, "ls %s | grep -q ledger", folder);
    status = system(command);
    return status == 0;
}

/* ---- giving way ---------------------------------------------------------------------------------- */

static const int kinds[] = {KIND_POOL, KIND_REGIONS, KIND_MAPPED};

TEST(test_idle_reserve_goes_to_who_needs_it) {
    struct child idle, needy;
    struct figures f;
    char words[64];

    snprintf(words, sizeof words, "%d", kinds[_i]);
    start(&idle, words);
    start(&needy, words);
    fill(&idle, 896);
    for (int i = 0; i < 6; i++) /* regions grow by more than is asked */
        expect(&needy, "take 128", "WEIR_OK");
    f = figures_of(&needy);
    ck_assert_uint_eq(f.in_use, 768);
    ck_assert_uint_ge(f.appeals, 1);
    ck_assert_uint_eq(f.refusals, 0);
    ck_assert_uint_ge(f.appeal_mib, 640);
    f = figures_of(&idle);
    ck_assert_uint_ge(f.yields, 1);
    ck_assert_uint_ge(f.yield_mib, 640);
    ck_assert_uint_le(f.reserve, 256);
    /* the events say the same as the counters */
    snprintf(words, sizeof words, "%llu %llu", f.yields, f.yield_mib);
    expect(&idle, "yields", words);
    f = figures_of(&needy);
    snprintf(words, sizeof words, "%llu %llu", f.appeals, f.appeal_mib);
    expect(&needy, "appeals", words);
    ck_assert(ledgers());
    end(&idle);
    end(&needy);
    ck_assert(!ledgers());
}

/* Nobody would have what is idle beside it otherwise. */
TEST(test_one_block_keeps_its_region_alone) {
    struct child one, needy;
    char words[64];

    snprintf(words, sizeof words, "%d", kinds[_i]);
    start(&one, words);
    start(&needy, words);
    fill(&one, 896);
    expect(&one, "take 40", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
}

/* Who shares the device says so before there is anybody to share it with. */
TEST(test_one_block_beside_who_comes_later) {
    struct child one, needy;

    start(&one, _i == 0 ? "0 limit share:8" : "0 leave 32MiB");
    fill(&one, 896);
    expect(&one, "take 40", "WEIR_OK");
    start(&needy, "0");
    expect(&needy, "take 512", "WEIR_OK");
}

TEST(test_without_the_ledger_it_is_refused) {
    struct child idle, needy;

    start(&idle, _i == 0 ? "0 ledger off" : "0");
    start(&needy, _i == 1 ? "0 ledger off" : "0");
    fill(&idle, 896);
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&needy).appeal_mib, 0);
    ck_assert_uint_ge(figures_of(&idle).reserve, 896);
}

TEST(test_what_is_in_use_stays) {
    struct child busy_one, needy;

    start(&busy_one, "0");
    start(&needy, "0");
    for (int i = 0; i < 14; i++)
        expect(&busy_one, "take 64", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&busy_one).in_use, 896);
    ck_assert_uint_eq(figures_of(&busy_one).yields, 0);
    ck_assert_uint_eq(figures_of(&needy).refusals, 1);
    expect(&busy_one, "give", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
}

TEST(test_lower_priority_gives_first) {
    struct child low, high, needy;

    start(&high, "0 priority 7");
    start(&low, "0 priority 2");
    start(&needy, "0");
    fill(&high, 512);
    fill(&low, 384);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&low).yield_mib, 128);
    ck_assert_uint_eq(figures_of(&high).yield_mib, 0);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&high).yield_mib, 64);
}

/* Whose figures come too late on a machine with more to do is asked behind others, so that only one of some tries need
 * show it. */
TEST(test_most_idle_gives_first) {
    struct child little, much, needy;
    uint64_t given = 0;

    for (int tries = 0; tries < 8; tries++) {
        start(&little, "0");
        start(&much, "0");
        start(&needy, "0");
        fill(&little, 320);
        fill(&much, 576);
        expect(&needy, "take 384", "WEIR_OK");
        given = figures_of(&much).yield_mib;
        if (figures_of(&little).yield_mib == 0 && given >= 224)
            break;
        given = 0;
        end(&needy);
        end(&much);
        end(&little);
    }
    ck_assert_uint_ge(given, 224);
    ck_assert_uint_le(given, 384); /* what is missing, and little more */
}

/* What is idle is not done yet: the device is waited for. */
TEST(test_work_that_uses_it_is_waited_for) {
    struct child idle, needy;

    start(&idle, "0 front off");
    start(&needy, "0");
    for (int i = 0; i < 14; i++)
        expect(&idle, "take 64", "WEIR_OK");
    expect(&idle, "work 50", "busy");
    expect(&idle, "give", "WEIR_OK");
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 384);
}

/* Where the driver takes nothing back, it is asked again. */
TEST(test_what_cannot_be_given_once) {
    struct child idle, needy;

    start(&idle, "0 front off");
    start(&needy, "0");
    fill(&idle, 896);
    expect(&idle, "fail", "it will");
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 384);
}

/* Where the driver does not say what is free, others are asked once, for all of it. */
TEST(test_what_is_free_is_not_known) {
    struct child idle, needy;

    start_beside(&idle, 960, &needy, "0");
    expect(&needy, "blind", "it is");
    expect(&needy, "take 256", "WEIR_OK");
    ck_assert_uint_eq(figures_of(&needy).appeals, 1);
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 256);
}

/* All that the own limit lets it have. */
TEST(test_up_to_the_own_limit) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0 limit 512MiB");
    expect(&needy, "take 512", "WEIR_OK");
}

/* Not even asked, where no wait is wanted. */
TEST(test_without_a_wait_nobody_is_asked) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0 recovery-timeout 0");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&needy).appeals, 0);
    ck_assert_uint_eq(figures_of(&idle).yields, 0);
}

/* All of the device, and all that another holds. */
TEST(test_the_whole_device) {
    struct child idle, needy;

    start_beside(&idle, 896, &needy, "0");
    expect(&needy, "take 1024", "WEIR_OK");
    ck_assert_uint_eq(figures_of(&idle).reserve, 0);
}

/* Where the own limit stands against it, too, nobody is asked, whatever is to be left on the device. */
TEST(test_not_above_the_own_limit) {
    static const char *const words[] = {"0 limit 256MiB front off",
                                        "0 limit 256MiB leave 32MiB front off"};
    struct child idle, needy;

    start(&needy, words[_i]);
    expect(&needy, "take 250", "WEIR_OK");
    start(&idle, "0");
    fill(&idle, 768); /* all that is left: the limit is not met */
    say(&needy, "take 100");
    hear(&needy);
    ck_assert_str_ne(needy.reply, "WEIR_OK");
    ck_assert_uint_eq(figures_of(&idle).yields, 0);
    ck_assert_uint_eq(figures_of(&needy).appeals, 0);
}

/* What a program without weir has may go back yet, but is not waited for longer than the program wants. */
TEST(test_until_the_deadline) {
    struct child one, needy;
    uint64_t began;

    start_model(CAPACITY);
    start(&one, "0");
    start(&needy, "0 recovery-timeout 200ms");
    expect(&one, "take 64", "WEIR_OK");
    ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 768 * MIB), 0);
    began = now_ms();
    expect(&needy, "take 256", "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(now_ms() - began, 20);
    ck_assert_uint_eq(figures_of(&needy).appeals, 1); /* however often it looked */
    ck_assert_uint_eq(figures_of(&needy).appeal_mib, 0);
    weir__model_shared_give(0, 768 * MIB);
    expect(&needy, "take 256", "WEIR_OK");
}

/* And where others use just so much that it would fit, others than they may give it. */
TEST(test_until_what_fits_is_free) {
    struct child one, needy;

    start_model(CAPACITY);
    start(&one, "0 front off");
    start(&needy, "0 front off");
    for (int i = 0; i < 8; i++)
        expect(&one, "take 64", "WEIR_OK");
    ck_assert_uint_eq(figures_of(&one).in_use, 512);
    ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 256 * MIB), 0);
    say(&needy, "take 512");
    nap(100);
    weir__model_shared_give(0, 256 * MIB);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

/* MiB that a process has asked others for, with the driver opened here. */
static uint64_t asked_by(const struct child *c) {
    struct weir_ledger_entry says = {0};
    char name[WEIR_UUID_BYTES];
    struct weir_ledger look;
    uint64_t since = weir__ledger_now();

    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_look(&look, name), 0);
    weir__ledger_ring(&look);
    for (int slot = 0; says.pid != (uint64_t)c->pid || says.heartbeat_ns < since;
         slot = (slot + 1) % WEIR_LEDGER_SLOTS) {
        ck_assert_uint_lt(weir__ledger_now() - since, 20000 * MS);
        (void)weir__ledger_read(&look, slot, &says);
    }
    weir__ledger_close(&look);
    return says.asked / MIB;
}

/* Who waits asks for no more than it needs, so that others keep the rest when they have some. */
TEST(test_who_waits_asks_for_what_it_needs) {
    struct child one, needy;

    start_model(CAPACITY);
    start(&one, "0 front off");
    start(&needy, "0 front off");
    for (int i = 0; i < 13; i++)
        expect(&one, "take 64", "WEIR_OK");
    ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 128 * MIB), 0);
    say(&needy, "take 128"); /* 64 are free */
    nap(100);
    expect(&one, "give", "WEIR_OK");
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&one).yield_mib, 64);
    ck_assert_uint_le(figures_of(&one).yield_mib, 256);
}

/* Where others need what is missing themselves they are asked once, and where there are none for as long as who was
 * killed may take to go. */
TEST(test_who_is_refused_has_asked_little) {
    struct child one, needy;

    start_model(CAPACITY);
    start(&needy, "0 front off");
    if (_i == 0) {
        start(&one, "0 front off");
        for (int i = 0; i < 13; i++)
            expect(&one, "take 64", "WEIR_OK");
    } else {
        ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 832 * MIB), 0);
    }
    expect(&needy, "take 256", "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(asked_by(&needy), _i == 0 ? 64 : 2 * 64);
    ck_assert_uint_le(asked_by(&needy), _i == 0 ? 256 : 7 * 256);
    ck_assert_uint_eq(figures_of(&needy).appeals, _i == 0);
}

static struct weir_ledger ledger;
static struct weir_ledger_entry entry;

/* Of the only other process, as another would ask it: bytes that it answers with. */
static uint64_t ask_for(uint64_t bytes) {
    struct weir_ledger_entry other;
    uint64_t began = now_ms();
    int slot = 0;

    while (slot == weir__ledger_slot(&ledger) || !weir__ledger_read(&ledger, slot, &other))
        ck_assert_int_lt(++slot, WEIR_LEDGER_SLOTS);
    entry.sequence++;
    entry.until_ns = weir__ledger_now() + 20000 * MS;
    entry.ask[0] = (struct weir_ledger_ask){(uint64_t)slot, other.start, bytes};
    weir__ledger_publish(&ledger, &entry);
    weir__ledger_ring(&ledger);
    for (;;) {
        ck_assert(weir__ledger_read(&ledger, slot, &other));
        for (int i = 0; i < WEIR_LEDGER_ANSWERS; i++)
            if (other.answer[i].sequence == entry.sequence)
                return other.answer[i].bytes;
        ck_assert_uint_le(now_ms() - began, 20000);
        nap(1);
    }
}

/* It gives what it has, and that is all. */
TEST(test_asked_for_more_than_there_is) {
    char name[WEIR_UUID_BYTES];
    struct child idle;

    start(&idle, "0 front off");
    fill(&idle, 512);
    start_model(CAPACITY);
    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_open(&ledger, name), 0);
    ck_assert_uint_ge(ask_for(4 * GIB), 512 * MIB);
    ck_assert_uint_eq(figures_of(&idle).reserve, 0);
    ck_assert_uint_eq(ask_for(4 * GIB), 0);
    expect(&idle, "take 40", "WEIR_OK"); /* of two units, which both are in use */
    ck_assert_uint_ge(figures_of(&idle).reserve, 64);
    ck_assert_uint_eq(ask_for(4 * GIB), 0);
    ck_assert_uint_eq(figures_of(&idle).in_use, 40);
    weir__ledger_leave(&ledger);
    weir__ledger_close(&ledger);
}

/* What the first process says that it could give, MiB. */
static uint64_t could_give(void) {
    struct weir_ledger_entry says = {0};
    char name[WEIR_UUID_BYTES];
    struct weir_ledger look;
    uint64_t since = weir__ledger_now();

    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_look(&look, name), 0);
    weir__ledger_ring(&look);
    while (says.heartbeat_ns < since) {
        ck_assert_uint_lt(weir__ledger_now() - since, 20000 * MS);
        (void)weir__ledger_read(&look, 0, &says);
    }
    weir__ledger_close(&look);
    return says.idle / MIB;
}

/* A region goes whole or not at all: what lies beside a block is nobody's. */
TEST(test_what_lies_beside_a_block_cannot_be_given) {
    static const char *const harden[] = {"", " harden poison"};
    char words[64], name[WEIR_UUID_BYTES];
    struct child one;
    uint64_t gives;

    snprintf(words, sizeof words, "%d%s", kinds[_i % 3], harden[_i / 3]);
    start(&one, words);
    start_model(CAPACITY);
    ck_assert(weir__neighbours_device(driver, 0, name));
    fill(&one, 896);
    ck_assert_uint_eq(could_give(), figures_of(&one).reserve);
    expect(&one, "take 40", "WEIR_OK");
    expect(&one, "take 1", "WEIR_OK");
    gives = could_give();
    ck_assert_uint_lt(gives + 41, figures_of(&one).reserve);
    ck_assert_int_eq(weir__ledger_open(&ledger, name), 0);
    ck_assert_uint_eq(ask_for(GIB) / MIB, gives);
    ck_assert_uint_eq(could_give(), 0);
    weir__ledger_close(&ledger);
}

/* One region was preallocated, and is more than is above its share. */
TEST(test_a_region_that_is_part_of_a_share_cannot_be_given) {
    struct child one, two;
    char words[64];

    snprintf(words, sizeof words, "%d limit share prealloc 768MiB%s", KIND_REGIONS,
             _i == 0 ? "" : " front off");
    start(&one, words);
    start_model(CAPACITY);
    ck_assert_uint_eq(could_give(), 0); /* it was promised */
    start(&two, "0 limit share");
    expect(&two, "take 64", "WEIR_OK");
    ck_assert_uint_eq(could_give(), 0);
    ck_assert_uint_eq(figures_of(&one).reserve, 768);
}

TEST(test_several_give_together) {
    struct child idle[3], needy;

    for (int i = 0; i < 3; i++) {
        start(&idle[i], "0");
        fill(&idle[i], 320);
    }
    start(&needy, "0");
    expect(&needy, "take 896", "WEIR_OK");
    for (int i = 0; i < 3; i++)
        ck_assert_uint_ge(figures_of(&idle[i]).yield_mib, 192);
}

/* A line of the log, and everything as without it. */
TEST(test_no_ledger_can_be_made) {
    char path[96], text[512] = "";
    struct child one, two;
    FILE *file;

    snprintf(path, sizeof path, "%s/said", folder);
    ck_assert_int_eq(setenv("WEIR_RUN_FOLDER", "/nonexistent/folder", 1), 0);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    start(&one, "0 log warning");
    start(&two, "0 log none");
    fill(&one, 896);
    expect(&two, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_eq(figures_of(&two).appeals, 0);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    ck_assert_ptr_nonnull(
        strstr(text, "no shared registry of the device's processes (/nonexistent/folder/weir-"));
    ck_assert_ptr_nonnull(strstr(text, ": No such file"));
    ck_assert_ptr_null(fgets(text, sizeof text, file)); /* one line */
    fclose(file);
}

/* ---- those that do not answer -------------------------------------------------------------------- */

TEST(test_nobody_waits_long_for_a_stopped_one) {
    struct child stopped, needy;
    uint64_t began, first, second;

    start_beside(&stopped, 896, &needy, "0 recovery-timeout 2s"); /* others have 200 ms */
    stop(&stopped);
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    first = now_ms() - began;
    ck_assert_uint_le(first, 1900); /* far less, unless the machine is busy */
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY"); /* it is left alone */
    second = now_ms() - began;
    ck_assert_uint_le(second, first + 100);
    ck_assert_uint_eq(figures_of(&needy).appeal_mib, 0);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    nap(2100);
    expect(&needy, "take 512", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&stopped).yield_mib, 384);
}

/* Why it was refused names who has what it lacks, and no setting that would not have helped; but where nobody is silent
 * the advice to who came first is to preallocate, and to who did not to wait. */
TEST(test_a_verdict_beside_a_stopped_one) {
    struct child stopped, needy;
    char wanted[160];

    if (_i == 0)
        start(&needy, "0 recovery-timeout 500ms");
    start(&stopped, "0");
    fill(&stopped, 896);
    expect(&stopped, "take 256", "WEIR_OK");
    stop(&stopped);
    if (_i == 1)
        start(&needy, "0 recovery-timeout 500ms");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    say(&needy, "why");
    hear(&needy);
    snprintf(wanted, sizeof wanted, "|              process %d has 896MiB of it, and is stopped|",
             (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    snprintf(wanted, sizeof wanted, "|  Continue process %d (kill -CONT %d), or end it.|",
             (int)stopped.pid, (int)stopped.pid);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "--prealloc"));
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
    expect(&stopped, "take 512", "WEIR_OK");
    do { /* on a machine that is busy it may be late */
        expect(&needy, "take 576", "WEIR_E_NO_MEMORY");
        say(&needy, "why");
        hear(&needy);
    } while (strstr(needy.reply, "of it, and does not answer"));
    ck_assert_msg(strstr(needy.reply, _i == 0 ? "|  Try --prealloc 576MiB"
                                              : "|  Wait for other processes") != NULL,
                  "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
}

/* Of several that answer the one that has most is named, with what it could give: nothing more, where it was asked;
 * where nobody was, since no wait is wanted, a wait is what to try, if that is enough. */
TEST(test_a_verdict_beside_living_ones) {
    static const struct {
        const char *words, *request, *has, *advice;
    } cases[] = {
        {"0", "take 512", "512MiB of it, of which it could release 0B", "Wait for other processes"},
        {"0 recovery-timeout 0", "take 512", "640MiB of it, of which it could release 128MiB",
         "Wait for other processes"},
        {"0 recovery-timeout 0", "take 192", "640MiB of it, of which it could release 128MiB",
         "Try --recovery-timeout 1s"},
    };
    struct child more, less, needy;
    char wanted[160];

    start(&less, "0");
    start(&more, "0");
    expect(&less, "take 256", "WEIR_OK");
    fill(&more, 640);
    expect(&more, "take 512", "WEIR_OK");
    start(&needy, cases[_i].words);
    snprintf(wanted, sizeof wanted, "|              process %d has %s|", (int)more.pid,
             cases[_i].has);
    for (int i = 0; i < 1000; i++) { /* it says what it has once it has heard of somebody */
        expect(&needy, cases[_i].request, "WEIR_E_NO_MEMORY");
        say(&needy, "why");
        hear(&needy);
        if (strstr(needy.reply, wanted))
            break;
    }
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    end(&needy);
    start(&needy, "0 recovery-timeout 1s");
    expect(&needy, "take 192", "WEIR_OK");
}

/* Who takes no part in the ledger is told to, where those who do have what is lacking; not for what its own process has
 * there, nor for what others have who take no part either. */
TEST(test_a_verdict_without_the_ledger) {
    static const struct {
        const char *other, *request, *advice;
    } cases[] = {
        {"0", "0 ledger off", "Try --registry on (WEIR_REGISTRY=on).|"},
        {"0", "0 ledger off recovery-timeout 0", "Try --registry on --recovery-timeout 1s|"},
        {"0 ledger off", "0 ledger off", "Wait for other processes, or end them (weir info "},
        {"", "4 ledger off", "Trim the other pools, or free their blocks: no setting makes room.|"},
        {"0", "0 ledger off", "Wait for other processes, or end them (weir info "},
        {"0 ledger off", "0 ledger off", "Wait for other processes, or end them (weir info "},
    };
    struct child other, small, needy;
    char wanted[160];

    if (cases[_i].other[0]) {
        start(&other, cases[_i].other);
        fill(&other, 768);
    }
    if (_i == 2) { /* too little */
        start(&small, "0");
        expect(&small, "take 64", "WEIR_OK");
    }
    start(&needy, cases[_i].request);
    if (!cases[_i].other[0])
        expect(&needy, "also 768", "WEIR_OK");
    if (_i == 4) /* whose ledger it would be, nobody can tell */
        expect(&needy, "nameless", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    say(&needy, "why");
    hear(&needy);
    snprintf(wanted, sizeof wanted, "|  %s", cases[_i].advice);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "not \"%s\": %s", wanted, needy.reply);
    end(&needy);
    if (_i >= 2)
        return;
    start(&needy, "0 recovery-timeout 1s");
    expect(&needy, "take 512", "WEIR_OK");
}

/* Where an allocator beside it has more, no other process is named, unless it could give enough. */
TEST(test_a_verdict_beside_one_of_its_own) {
    struct child other, needy;
    char wanted[160];

    start(&other, "0");
    if (_i == 0)
        expect(&other, "take 256", "WEIR_OK");
    else
        fill(&other, 256);
    start(&needy, "0 recovery-timeout 0");
    expect(&needy, "also 384", "WEIR_OK");
    snprintf(wanted, sizeof wanted, "|              process %d has 256MiB of it, ", (int)other.pid);
    for (int i = 0; i < 100; i++) { /* it says what it has once it has heard of somebody */
        expect(&needy, "take 480", "WEIR_E_NO_MEMORY");
        say(&needy, "why");
        hear(&needy);
        ck_assert_msg(strstr(needy.reply, ": other weir pools of this process have 384MiB of the "
                                          "device|") != NULL,
                      "%s", needy.reply);
        if (_i == 0)
            ck_assert_msg(strstr(needy.reply, "|              process ") == NULL, "%s",
                          needy.reply);
        else if (strstr(needy.reply, wanted))
            break;
        nap(_i == 0 ? 1 : 10);
    }
    ck_assert_msg((strstr(needy.reply, wanted) != NULL) == _i, "%s", needy.reply);
}

/* Of several that have a little each, none is. */
TEST(test_a_verdict_beside_small_ones) {
    struct child one, other, needy;

    start(&one, "0");
    start(&other, "0");
    start(&needy, "0 recovery-timeout 0");
    expect(&one, "take 64", "WEIR_OK");
    expect(&other, "take 64", "WEIR_OK");
    expect(&needy, "take 960", "WEIR_E_NO_MEMORY");
    say(&needy, "why");
    hear(&needy);
    ck_assert_msg(strstr(needy.reply, "others have 128MiB of it|  request") != NULL, "%s",
                  needy.reply);
}

/* Nor where the driver does not say what is free, so that it is not known what is lacking. */
TEST(test_a_verdict_without_what_is_free) {
    struct child other, needy;

    start(&other, "0");
    start(&needy, "0 recovery-timeout 0");
    expect(&other, "take 896", "WEIR_OK");
    expect(&needy, "blind", "it is");
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    say(&needy, "why");
    hear(&needy);
    ck_assert_msg(strstr(needy.reply, "  cause       others: ") != NULL, "%s", needy.reply);
    ck_assert_ptr_null(strstr(needy.reply, "of it, "));
}

/* What it has would not have done, or the driver refuses what nobody has. */
TEST(test_a_verdict_beside_a_stopped_one_that_has_little) {
    struct child stopped, busy, needy;

    start(&stopped, "0");
    start(&busy, "0");
    start(&needy, "0 recovery-timeout 500ms");
    expect(&stopped, "take 64", "WEIR_OK");
    for (int i = 0; i < 10; i++)
        expect(&busy, "take 64", "WEIR_OK");
    stop(&stopped);
    for (int i = 0; i < 2; i++) {
        expect(&needy, i == 0 ? "take 512" : "take 128", "WEIR_E_NO_MEMORY");
        say(&needy, "why");
        hear(&needy);
        ck_assert_msg(
            strstr(needy.reply, i == 0 ? "cause       others: " : "cause       driver: ") != NULL,
            "%s", needy.reply);
        ck_assert_ptr_null(strstr(needy.reply, "of it, and "));
        expect(&needy, "refuse", "it will");
    }
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* Who is asked may be late, on a machine that is busy; the request has time. */
TEST(test_who_answers_late_is_waited_for) {
    struct child late, needy;

    start_beside(&late, 896, &needy, "0"); /* others have 2 s, and a quarter of it to answer */
    stop(&late);
    say(&needy, "take 512");
    nap(900);
    ck_assert_int_eq(kill(late.pid, SIGCONT), 0);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&late).yield_mib, 384);
    ck_assert_uint_ge(figures_of(&needy).appeal_mib, 384);
}

/* Not each time anew either: a program may ask for its context again and again. */
TEST(test_a_context_waits_for_a_stopped_one_once) {
    struct child stopped, idle, needy;
    unsigned long long took, least = UINT64_MAX;
    int any, all = 0;

    start_beside(&stopped, 512, &needy, "none");
    stop(&stopped);
    for (int i = 0; i < 6; i++) {
        say(&needy, "context");
        hear(&needy);
        ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
        all += any; /* once it may still give */
        least = took < least ? took : least;
    }
    ck_assert_int_lt(all, 6);
    ck_assert_uint_lt(least, 100); /* a quarter of a second, if it waited */
    start(&idle, "0");
    fill(&idle, 384);
    say(&needy, "context");
    hear(&needy);
    ck_assert_int_eq(sscanf(needy.reply, "%d %llu", &any, &took), 2);
    ck_assert_int_eq(any, 1);
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 320);
    ck_assert_int_eq(kill(stopped.pid, SIGCONT), 0);
}

/* It weighs nothing, as long as it has no allocator. */
TEST(test_a_share_after_a_context) {
    struct child first, second;

    start(&first, "none");
    say(&first, "context");
    hear(&first);
    expect(&first, "share", "WEIR_OK");
    expect(&first, "limit", "1024");
    start(&second, "0 limit share");
    expect(&second, "limit", "512");
}

/* ---- room for contexts --------------------------------------------------------------------------- */

/* As on a GPU: half a GiB; MiB. */
enum { CONTEXT = 512, LARGE = 8192 };

/* From here on, in processes that begin. */
static void charge_contexts(void) {
    char path[128];
    FILE *file;

    snprintf(path, sizeof path, "%s/profile", folder);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "capacity = %llu\ncontext_bytes = %llu\n", LARGE * (unsigned long long)MIB,
            CONTEXT * (unsigned long long)MIB);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(setenv("WEIR_MODEL_PROFILE", path, 1), 0);
}

/* Holds nothing, and leaves less than a context takes. */
static void fill_device(struct child *c) {
    for (int i = 0; i < (LARGE - CONTEXT - CONTEXT / 2) / 256; i++)
        expect(c, "take 256", "WEIR_OK");
    expect(c, "give", "WEIR_OK");
    ck_assert_uint_gt(figures_of(c).reserve, LARGE - 2 * CONTEXT);
}

TEST(test_a_context_beside_idle_reserve) {
    struct child idle, needy;
    char words[64];

    charge_contexts();
    snprintf(words, sizeof words, "%d", kinds[_i]);
    start(&idle, words);
    fill_device(&idle);
    start(&needy, words);
    expect(&needy, "take 256", "WEIR_OK");
}

/* The first one has all of the device, and what it was promised falls as others come.  A mapped arena gives handles of
 * half a GiB. */
TEST(test_contexts_beside_preallocated_shares) {
    struct child c[3];
    unsigned long long sum = 0;
    char words[64];

    charge_contexts();
    snprintf(words, sizeof words, "%d prealloc share", _i == 0 ? KIND_POOL : KIND_MAPPED);
    for (int i = 0; i < 3; i++) {
        start(&c[i], words);
        expect(&c[i], "take 64", "WEIR_OK");
    }
    for (int i = 0; i < 3; i++) {
        unsigned long long reserve = figures_of(&c[i]).reserve;

        ck_assert_uint_ge(reserve, LARGE / 3 - 4 * CONTEXT);
        sum += reserve;
    }
    ck_assert_uint_le(sum, LARGE - 3 * CONTEXT - LARGE / 64);
}

/* Of one that has no allocator yet. */
TEST(test_a_programs_context_beside_a_preallocated_share) {
    struct child one, late;
    struct figures f;

    charge_contexts();
    start(&one, "0 prealloc share");
    begin(&late, "program");
    hear(&late);
    ck_assert_str_eq(late.reply, "CUDA_ERROR_OUT_OF_MEMORY");
    hear(&late);
    ck_assert_str_eq(late.reply, "ready");
    f = figures_of(&one);
    ck_assert_uint_ge(f.yield_mib, CONTEXT);
    ck_assert_uint_ge(f.reserve, LARGE / 2 - LARGE / 64);
}

/* They had nothing left to give when they were asked: their shares had fallen for who came, and what was above them had
 * gone. */
TEST(test_a_context_for_which_shares_fell) {
    struct child one, late;

    charge_contexts();
    start(&one, "0 limit share prealloc max");
    ck_assert_uint_gt(figures_of(&one).reserve, LARGE - 2 * CONTEXT);
    if (_i == 0) {
        start(&late, "0");
    } else {
        begin(&late, "program");
        hear(&late);
        ck_assert_str_eq(late.reply, "CUDA_ERROR_OUT_OF_MEMORY");
        hear(&late);
        ck_assert_str_eq(late.reply, "ready");
    }
    ck_assert_uint_le(figures_of(&one).reserve, LARGE / 2);
}

TEST(test_a_context_that_cannot_be) {
    char pid[32], said[1024], path[96];
    struct child full, also, less, least, none, needy;
    FILE *file;
    size_t length;

    charge_contexts();
    start(&full, "0");
    start(&also, "0");
    start(&less, "0");
    start(&least, "0");
    start(&none, "0");
    for (int i = 0; i < 16; i++)
        expect(&full, "take 256", "WEIR_OK");
    for (int i = 0; i < 4; i++)
        expect(&also, "take 256", "WEIR_OK");
    expect(&less, "take 64", "WEIR_OK");
    expect(&least, "take 32", "WEIR_OK");
    if (_i == 0)
        stop(&also);
    snprintf(path, sizeof path, "%s/said", folder);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    begin(&needy, _i == 0 ? "0" : "program");
    if (_i == 0) {
        hear(&needy);
        ck_assert_ptr_nonnull(strstr(needy.reply, "cannot open the device's context"));
        ck_assert_int_eq(WEXITSTATUS(wait_for(&needy)), 4);
    } else {
        ck_assert_int_eq(WEXITSTATUS(wait_for(&needy)), 9);
    }
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    length = fread(said, 1, sizeof said - 1, file);
    said[length] = '\0';
    fclose(file);
    ck_assert_msg(strstr(said, "keep-free 1GiB (--keep-free)") != NULL, "%s", said);
    snprintf(pid, sizeof pid, "process %d ", (int)full.pid);
    ck_assert_msg(strstr(said, pid) != NULL, "%s", said);
    ck_assert_msg(strstr(said, "has 4GiB, could release 0B; process ") != NULL, "%s", said);
    snprintf(pid, sizeof pid, "process %d ", (int)also.pid);
    ck_assert_msg(strstr(said, pid) != NULL, "%s", said);
    ck_assert_msg(strstr(said, _i == 0 ? "has 1GiB, could release 0B, is stopped; process "
                                       : "has 1GiB, could release 0B; process ") != NULL,
                  "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "has 64MiB, could release 0B"));
    ck_assert_ptr_null(strstr(said, "32MiB"));
}

/* Has nearly all of the device, and does not answer, though nobody has stopped it. */
static void be_silent(uint64_t capacity) {
    char name[WEIR_UUID_BYTES];

    start_model(capacity);
    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_open(&ledger, name), 0);
    entry = (struct weir_ledger_entry){
        .reserve = capacity - 128 * MIB, .idle = capacity - 128 * MIB, .command = "silent"};
    weir__ledger_publish(&ledger, &entry);
    ck_assert_int_eq(weir__model_shared_take(0, capacity, capacity - 128 * MIB), 0);
}

/* To whose request is refused, or whose context. */
TEST(test_who_does_not_answer_is_named) {
    char wanted[160];
    struct child needy;

    be_silent(_i == 0 ? CAPACITY : LARGE * MIB);
    if (_i == 0) {
        start(&needy, "0 recovery-timeout 500ms");
        expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
        say(&needy, "why");
        snprintf(wanted, sizeof wanted, "|              process %d has 896MiB of it, and %s|",
                 (int)getpid(), "does not answer");
    } else {
        charge_contexts();
        begin(&needy, "0");
        snprintf(wanted, sizeof wanted,
                 ": process %d 'silent' has 7.88GiB, could release 7.88GiB, %s", (int)getpid(),
                 "does not answer");
    }
    hear(&needy);
    ck_assert_msg(strstr(needy.reply, wanted) != NULL, "%s", needy.reply);
    if (_i == 1)
        ck_assert_int_eq(WEXITSTATUS(wait_for(&needy)), 4);
    weir__ledger_close(&ledger);
}

TEST(test_others_give_beside_a_stopped_one) {
    struct child stopped, idle, needy;

    start(&stopped, "0");
    start(&idle, "0");
    start(&needy, "0");
    fill(&stopped, 512);
    fill(&idle, 384);
    stop(&stopped);
    expect(&needy, "take 320", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 192);
    end_by(&stopped, SIGKILL);
    expect(&needy, "take 512", "WEIR_OK"); /* what it had is free */
}

TEST(test_a_killed_one_leaves_its_memory) {
    struct child killed, needy;
    uint64_t began;

    start(&killed, "0");
    start(&needy, "0");
    for (int i = 0; i < 14; i++)
        expect(&killed, "take 64", "WEIR_OK");
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    began = now_ms();
    do {
        say(&needy, "take 512");
        hear(&needy);
    } while (strcmp(needy.reply, "WEIR_OK") != 0 && now_ms() - began < 1000);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

/* Who is killed while it is waited for gives all that it had, in use or not. */
TEST(test_who_dies_asked_gives_all) {
    struct child killed, needy;

    start(&killed, "0");
    start(&needy, "0");
    for (int i = 0; i < 14; i++)
        expect(&killed, "take 64", "WEIR_OK");
    stop(&killed);
    say(&needy, "take 512");
    nap(100);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

/* A process that has so much, and is ending, with a thread that does not go on. */
static void start_ending(struct child *c, unsigned mib, struct child *also) {
    start(c, "0");
    if (also)
        start(also, "0 recovery-timeout 2s");
    for (unsigned taken = 0; taken < mib; taken += 64)
        expect(c, "take 64", "WEIR_OK");
    expect(c, "ending", "it is");
    while (state_of(c) != 'Z')
        nap(1);
    stop(c);
}

/* It is known to be ending by then, also to one that has come since, and what it had is waited for, longer than anybody
 * would be who lives. */
TEST(test_who_is_ending_is_waited_for) {
    struct child killed, needy;
    uint64_t began, took;

    start_ending(&killed, 896, _i == 0 ? &needy : NULL);
    if (_i == 1)
        start(&needy, "0 recovery-timeout 2s");
    began = now_ms();
    say(&needy, "take 512");
    nap(400);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
    took = now_ms() - began;
    say(&needy, "looks");
    hear(&needy);
    ck_assert_uint_le((uint64_t)atol(needy.reply), 50 + took / 2); /* with pauses */
}

/* Nor does it keep what it has, though it has its slot still and answers. */
TEST(test_who_is_ending_keeps_nothing) {
    struct child killed, needy;

    start(&killed, "0");
    start(&needy, "0 recovery-timeout 2s");
    for (unsigned taken = 0; taken < 896; taken += 64)
        expect(&killed, "take 64", "WEIR_OK");
    expect(&killed, "dying", "it is");
    while (state_of(&killed) != 'Z')
        nap(1);
    say(&needy, "take 512");
    nap(400);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

/* Where the living keep too much in any case. */
TEST(test_who_is_ending_is_not_waited_for_in_vain) {
    struct child ending, needy, busy;
    uint64_t began;

    start_ending(&ending, 64, NULL);
    start(&busy, "0");
    start(&needy, "0");
    for (int i = 0; i < 10; i++)
        expect(&busy, "take 64", "WEIR_OK");
    began = now_ms();
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    ck_assert_uint_lt(now_ms() - began, 1000); /* of two seconds */
    end_by(&ending, SIGKILL);
}

/* Or what it has, with its context, is not enough, and nobody else is there. */
TEST(test_who_is_ending_has_too_little) {
    uint64_t began, others = (uint64_t)6000 * MIB, enough;
    struct child ending, needy;
    char words[32];

    start_model(LARGE * MIB);
    charge_contexts();
    start_ending(&ending, 64, NULL);
    start(&needy, "0");
    enough = (device_free() - others) / MIB + 1024; /* a context is taken to have a GiB */
    ck_assert_int_eq(weir__model_shared_take(0, LARGE * MIB, others), 0);
    snprintf(words, sizeof words, "take %llu",
             (unsigned long long)(_i == 0 ? enough + 65 : enough));
    began = now_ms();
    say(&needy, words);
    if (_i == 1) {
        nap(200);
        weir__model_shared_give(0, others);
    }
    hear(&needy);
    ck_assert_str_eq(needy.reply, _i == 0 ? "WEIR_E_NO_MEMORY" : "WEIR_OK");
    if (_i == 0) {
        ck_assert_uint_lt(now_ms() - began, 1000);
        weir__model_shared_give(0, others);
    }
    end_by(&ending, SIGKILL);
}

/* Or nobody is, and what is free is refused. */
TEST(test_nobody_is_waited_for_where_nobody_is) {
    struct child needy;
    uint64_t began;

    start(&needy, "0");
    expect(&needy, "refuse", "it will");
    began = now_ms();
    expect(&needy, "take 64", "WEIR_E_NO_MEMORY");
    ck_assert_uint_lt(now_ms() - began, 1000);
}

/* Nor for ever, where it does not come to its end. */
TEST(test_who_does_not_come_to_its_end) {
    struct child ending[2], needy;
    uint64_t began;

    start_ending(&ending[0], 448, &needy);
    start_ending(&ending[1], 448, NULL);
    expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
    nap(500);
    for (int i = 0; i < 3; i++) {
        began = now_ms();
        expect(&needy, "take 512", "WEIR_E_NO_MEMORY");
        ck_assert_uint_lt(now_ms() - began, 1000);
    }
    for (int i = 0; i < 2; i++)
        end_by(&ending[i], SIGKILL);
}

/* So does who is killed, at whatever moment, before it was heard of. */
TEST(test_who_dies_before_it_is_asked_gives_all) {
    struct child killed, needy;

    start(&killed, "0");
    start(&needy, "0");
    for (int i = 0; i < 14; i++)
        expect(&killed, "take 64", "WEIR_OK");
    stop(&killed);
    say(&needy, "take 512");
    nap(_i);
    ck_assert_int_eq(kill(killed.pid, SIGKILL), 0);
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
}

TEST(test_the_file_is_ruined_meanwhile) {
    struct child idle, needy;
    char command[200];
    uint64_t began;

    start_beside(&idle, 896, &needy, "0");
    snprintf(command, sizeof command,
             _i == 0 ? "truncate -s 0 %s/weir-*ledger*" : "rm %s/weir-*ledger*", folder);
    ck_assert_int_eq(system(command), 0);
    began = now_ms();
    do { /* who asks makes it anew, and the other is told of that */
        say(&needy, "take 512");
        hear(&needy);
    } while (strcmp(needy.reply, "WEIR_OK") != 0 && now_ms() - began < 5000);
    ck_assert_str_eq(needy.reply, "WEIR_OK");
    ck_assert_uint_ge(figures_of(&idle).yield_mib, 384);
}

/* ---- shares -------------------------------------------------------------------------------------- */

/* As soon as the thread has heard of it, or half a second later. */
static void expect_limit(struct child *c, unsigned mib) {
    uint64_t began = now_ms();
    unsigned is;

    do {
        say(c, "limit");
        hear(c);
        is = (unsigned)atoi(c->reply);
        nap(5);
    } while (is != mib && now_ms() - began < 10000);
    ck_assert_uint_eq(is, mib);
}

TEST(test_equal_shares_as_processes_come_and_go) {
    struct child one, two, three;

    start(&one, "0 limit share");
    expect_limit(&one, 1024);
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    expect_limit(&two, 512);
    start(&three, "0"); /* has no share itself, but is there */
    expect_limit(&one, 320);
    end_by(&three, SIGKILL);
    expect_limit(&one, 512);
    end(&two);
    expect_limit(&one, 1024);
}

TEST(test_weighted_shares) {
    struct child heavy, light, none;

    start(&heavy, "0 limit share:3");
    start(&light, "0 limit share:0.5 ");
    start(&none, "0 limit share:0.5");
    expect_limit(&heavy, 768);
    expect_limit(&light, 128);
    expect_limit(&none, 128);
}

TEST(test_a_share_is_never_below_what_is_in_use) {
    struct child full, late;

    start(&full, "0 limit share");
    for (int i = 0; i < 12; i++)
        expect(&full, "take 64", "WEIR_OK");
    start(&late, "0 limit share");
    expect_limit(&late, 512);
    expect_limit(&full, 768);
    ck_assert_uint_eq(figures_of(&full).in_use, 768);
    expect(&full, "give", "WEIR_OK");
    expect_limit(&full, 512);
    expect(&late, "take 480", "WEIR_OK");
}

static void until_reserve(struct child *c, uint64_t most) {
    uint64_t began = now_ms();

    while (figures_of(c).reserve > most && now_ms() - began < 20000)
        nap(5);
    ck_assert_uint_le(figures_of(c).reserve, most);
}

/* A mapped arena gives whole handles, one more where those that are no more than is above it do not do. */
TEST(test_reserve_above_a_share_goes) {
    struct child full, late;
    char words[64];
    uint64_t began;

    snprintf(words, sizeof words, "%d limit share%s", _i == 1 ? KIND_MAPPED : KIND_POOL,
             _i == 2 ? " front off" : "");
    start(&full, words);
    fill(&full, 896);
    expect(&full, "take 40", "WEIR_OK");
    start(&late, words);
    until_reserve(&full, 512);
    ck_assert_uint_ge(figures_of(&full).reserve, 384);         /* and no more than that */
    for (began = now_ms(); figures_of(&full).yield_mib < 384;) /* noted once it has gone */
        ck_assert_uint_lt(now_ms() - began, 20000);
}

/* What lies beside blocks does not go however often it is tried, and caches are not emptied for it, until the program
 * has called. */
TEST(test_reserve_above_a_share_that_cannot_go) {
    static const char *const ways[] = {"0", "0 harden poison"};
    struct child full, late;
    char words[64], before[4096];

    snprintf(words, sizeof words, "%s limit share:4", ways[_i]);
    start(&full, words);
    for (int i = 0; i < 14; i++)
        expect(&full, i % 2 ? "take 30" : "take 34", "WEIR_OK");
    expect(&full, "half", "WEIR_OK");
    start(&late, "0 limit share:12");
    expect_limit(&late, 768);
    do { /* until what can go has gone */
        say(&full, "trims");
        hear(&full);
        snprintf(before, sizeof before, "%s", full.reply);
        nap(200);
        say(&full, "trims");
        hear(&full);
    } while (strcmp(full.reply, before) != 0);
    nap(1200); /* it looks twice */
    expect(&full, "trims", before);
    expect(&full, "give", "WEIR_OK");
    until_reserve(&full, 256);
}

/* In units of 32 MiB, and beside a 64th of the device. */
TEST(test_preallocated_shares) {
    struct child one, two;

    start(&one, "0 prealloc share");
    ck_assert_uint_eq(figures_of(&one).reserve, 992);
    start(&two, "0 prealloc share");
    ck_assert_uint_le(figures_of(&one).reserve, 512);
    ck_assert_uint_eq(figures_of(&two).reserve, 480);
}

/* What comes down to its share does so by units of a pool, or handles: MiB that it may keep above it, for which another
 * one has less. */
static unsigned piece_of(int kind) {
    return kind == KIND_MAPPED ? 40 : 0;
}

/* A thread takes it, whose turns requests play here: nobody waits, and others give as it goes on. */
TEST(test_preallocated_shares_in_the_background) {
    static const struct {
        int kind;
        const char *one, *two;
        unsigned reserve;
    } ways[] = {
        {KIND_POOL, "share", "share", 480},
        {KIND_MAPPED, "share", "share", 480},
        {KIND_POOL, "share:4 leave 128MiB", "share:3 leave 128MiB", 384},
        {KIND_MAPPED, "share:4 leave 128MiB", "share:3 leave 128MiB", 384},
    };
    struct child one, two;
    char words[96];

    snprintf(words, sizeof words, "%d prealloc %s", ways[_i].kind, ways[_i].one);
    start(&one, words);
    snprintf(words, sizeof words, "%d prealloc %s prealloc-mode background", ways[_i].kind,
             ways[_i].two);
    start(&two, words);
    ck_assert_uint_eq(figures_of(&two).reserve, 0);
    for (int i = 0; i < 100 && figures_of(&two).reserve < ways[_i].reserve; i++)
        expect(&two, "later 20", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&two).reserve, ways[_i].reserve - piece_of(ways[_i].kind));
    ck_assert_uint_le(figures_of(&one).reserve, 512 + piece_of(ways[_i].kind));
}

/* A part of the deadline, and no longer. */
TEST(test_a_share_beside_a_stopped_one_has_a_deadline) {
    struct child slow, two;

    start(&slow, "0 prealloc share");
    stop(&slow);
    start(&two, "0 prealloc share prealloc-deadline 300ms");
    ck_assert_uint_le(figures_of(&two).reserve, 32);
    ck_assert_int_eq(kill(slow.pid, SIGCONT), 0);
}

/* The thread comes again until the other one answers. */
TEST(test_a_share_in_the_background_beside_a_stopped_one) {
    struct child slow, two;

    start(&slow, "0 prealloc share");
    start(&two, "0 prealloc share prealloc-mode background prealloc-deadline 60s");
    stop(&slow);
    say(&two, "later 20"); /* nobody gives: what a share leaves is had by the request itself */
    hear(&two);
    ck_assert_uint_le(figures_of(&two).reserve, 32);
    ck_assert_int_eq(kill(slow.pid, SIGCONT), 0);
    for (int i = 0; i < 1000 && figures_of(&two).reserve < 480; i++) {
        say(&two, "later 20");
        hear(&two);
    }
    ck_assert_uint_ge(figures_of(&two).reserve, 480);
}

/* Who comes meanwhile has it end where its share is by then. */
TEST(test_a_share_in_the_background_falls_for_who_comes) {
    struct weir_ledger_entry says = {0};
    char name[WEIR_UUID_BYTES];
    struct child one, two;
    uint64_t since;

    start(&one, "0 prealloc share prealloc-mode background");
    expect(&one, "later 2", "WEIR_OK");
    ck_assert_uint_lt(figures_of(&one).reserve, 512);
    start(&two, "0");
    since = weir__ledger_now();
    start_model(CAPACITY);
    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_look(&ledger, name), 0);
    weir__ledger_ring(&ledger);
    for (int slot = 0; says.pid != (uint64_t)one.pid || says.heartbeat_ns < since;
         slot = (slot + 1) % 2)
        (void)weir__ledger_read(&ledger, slot, &says); /* until it has heard of that */
    weir__ledger_close(&ledger);
    for (int i = 0; i < 100; i++)
        expect(&one, "later 20", "WEIR_OK");
    ck_assert_uint_ge(figures_of(&one).reserve, 480);
    ck_assert_uint_le(figures_of(&one).reserve, 512);
}

/* What others have given back by the time that its turn comes is had. */
TEST(test_a_share_asks_when_its_turn_has_come) {
    struct weir_process_lock lock = WEIR_PROCESS_LOCK_NONE;
    char name[WEIR_UUID_BYTES];
    struct child full, two;

    start(&full, "0");
    for (int i = 0; i < 14; i++)
        expect(&full, "take 64", "WEIR_OK");
    start_model(CAPACITY);
    ck_assert_int_eq(weir__driver_uuid(driver, 0, name), CUDA_SUCCESS);
    ck_assert_int_eq(weir__process_lock_try(&lock, name), 1);
    begin(&two, "0 prealloc share");
    nap(300); /* it waits for its turn, whatever it has asked */
    expect(&full, "give", "WEIR_OK");
    weir__process_lock_give(&lock);
    hear(&two);
    ck_assert_str_eq(two.reply, "ready");
    ck_assert_uint_eq(figures_of(&two).reserve, 480);
}

/* 1: it asks somebody now. */
static int is_asking(const struct child *c) {
    struct weir_ledger_entry its;

    for (int slot = 0; slot < 2; slot++)
        if (weir__ledger_read(&ledger, slot, &its) && its.pid == (uint64_t)c->pid)
            return its.until_ns != 0;
    return 0;
}

static int has_said(const struct child *c) {
    struct pollfd reply = {.fd = fileno(c->from), .events = POLLIN};

    return poll(&reply, 1, 0) != 0;
}

/* MiB that one has for its share, whom the other answers late. */
static uint64_t share_beside_a_slow_one(void) {
    struct child slow, two;
    char name[WEIR_UUID_BYTES];
    uint64_t got;

    start(&slow, "0 prealloc share");
    start_model(CAPACITY);
    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_look(&ledger, name), 0);
    stop(&slow);
    begin(&two, "0 prealloc share prealloc-deadline 20s");
    while (!is_asking(&two) && !has_said(&two))
        nap(1);
    nap(150);
    ck_assert_int_eq(kill(slow.pid, SIGCONT), 0);
    hear(&two);
    ck_assert_str_eq(two.reply, "ready");
    got = figures_of(&two).reserve;
    weir__ledger_close(&ledger);
    end(&two);
    end(&slow);
    return got;
}

/* As one that has much to give. */
TEST(test_a_share_waits_for_those_that_are_slow) {
    uint64_t got = 0;

    /* Who asks gives up when nothing has come free for a second, which a busy machine may take. */
    for (int tries = 0; tries < 8 && got != 480; tries++)
        got = share_beside_a_slow_one();
    ck_assert_uint_eq(got, 480);
}

/* What is free is taken before the deadline, though others do not answer until then. */
TEST(test_a_share_is_not_waited_for_until_the_deadline) {
    struct child stopped, two;

    start(&stopped, "0");
    fill(&stopped, 704);
    stop(&stopped);
    start(&two, "0 prealloc share prealloc-min 128MiB prealloc-deadline 800ms");
    ck_assert_uint_ge(figures_of(&two).reserve, 256);
}

/* Who grows again by what it gave is not asked for ever. */
TEST(test_a_share_beside_one_that_grows_again) {
    struct weir_ledger_entry two_says = {0};
    char name[WEIR_UUID_BYTES], words[96];
    struct child one, two;

    start_model(CAPACITY);
    ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 700 * MIB), 0);
    snprintf(words, sizeof words, "3 work %s/turns 96 96", folder);
    start(&one, words);
    start(&two, "0 prealloc share");
    ck_assert(weir__neighbours_device(driver, 0, name));
    ck_assert_int_eq(weir__ledger_look(&ledger, name), 0);
    for (int slot = 0; two_says.pid != (uint64_t)two.pid; slot++) {
        ck_assert_int_lt(slot, WEIR_LEDGER_SLOTS);
        (void)weir__ledger_read(&ledger, slot, &two_says);
    }
    ck_assert_uint_ge(two_says.asked, 64 * MIB);
    ck_assert_uint_le(two_says.asked, 1024 * MIB);
    weir__ledger_close(&ledger);
    weir__model_shared_give(0, 700 * MIB);
}

/* The room on the device is none of the shares', and what others gave for one counts.  A mapped arena gives whole
 * handles: here the first one has two, the larger of which is its share. */
TEST(test_preallocated_shares_leave_room) {
    int kind = _i % 2 == 0 ? KIND_POOL : KIND_MAPPED;
    struct child one, two;
    char words[96];

    snprintf(words, sizeof words, "%d prealloc share:4 leave 128MiB", kind);
    start(&one, words);
    ck_assert_uint_eq(figures_of(&one).reserve, 896);
    snprintf(words, sizeof words, "%d prealloc share:3 leave 128MiB prealloc-at %s", kind,
             _i / 2 == 0 ? "create" : "first");
    start(&two, words);
    expect(&two, "take 1", "WEIR_OK");
    ck_assert_uint_le(512, figures_of(&one).reserve);
    ck_assert_uint_le(figures_of(&one).reserve, 512 + piece_of(kind));
    ck_assert_uint_eq(figures_of(&one).reserve + figures_of(&two).reserve, 896);
}

TEST(test_weights_of_nothing) {
    struct child one, two;

    begin(&one, "0 limit share:0");
    hear(&one);
    ck_assert_ptr_nonnull(strstr(one.reply, "weights of all processes on the device sum to 0"));
    ck_assert_int_eq(WEXITSTATUS(wait_for(&one)), 4);
    start(&two, "0 limit share");
    start(&one, "0 limit share:0"); /* none of it, but what it uses */
    expect_limit(&two, 1024);
    end(&two);
    expect(&one, "take 64", "WEIR_E_LIMIT");
    say(&one, "why");
    hear(&one);
    ck_assert_msg(strstr(one.reply, "limit share:0 is 32MiB now, of which 0B is in use|") != NULL,
                  "%s", one.reply);
}

/* A share caps what was preallocated like any limit: what is in use stays, and the rest goes as it falls. */
TEST(test_a_share_caps_what_was_preallocated) {
    struct child one, two, three;

    start(&one, _i == 0 ? "0 limit share prealloc 768MiB"
                        : "0 limit share prealloc 768MiB prealloc-mode background");
    while (figures_of(&one).reserve < 768)
        expect(&one, "later 10", "WEIR_OK");
    expect(&one, "take 320", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    until_reserve(&one, 512);
    start(&three, "0 limit share");
    expect_limit(&two, 320);
    until_reserve(&one, 352); /* what is in use, in whole units */
    expect(&one, "give", "WEIR_OK");
    until_reserve(&one, 320);
}

/* Nor is there a share any more once the program has set a limit, by which nothing is given back. */
TEST(test_a_limit_in_place_of_a_share) {
    struct child one, two;

    start(&one, "0 limit share prealloc 768MiB");
    expect(&one, "set-limit 640", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&two, 512);
    nap(100); /* the thread has looked again */
    ck_assert_uint_eq(figures_of(&one).reserve, 768);
    expect_limit(&one, 640);
}

/* One that was asked for above it from the beginning is as large as the share. */
TEST(test_a_share_caps_what_is_preallocated) {
    struct child one, two;

    start(&one, "0 limit share");
    start(&two, "0 limit share prealloc 768MiB");
    ck_assert_uint_eq(figures_of(&two).reserve, 512);
}

/* What the program, or a setting in bytes, promises stays, whatever the share is. */
TEST(test_reserve_that_was_promised_stays) {
    static const char *const ways[] = {"0 limit share prealloc 512MiB prealloc-min 512MiB",
                                       "0 limit share release-threshold 512MiB prealloc 512MiB"};
    struct child one, two, three;

    start(&one, ways[_i]);
    start(&two, "0 limit share");
    start(&three, "0 limit share");
    expect_limit(&one, 320);
    nap(100); /* the thread has looked again */
    ck_assert_uint_eq(figures_of(&one).reserve, 512);
    ck_assert_uint_eq(figures_of(&one).yields, 0);
}

/* Also beside a preallocated share. */
TEST(test_reserve_that_was_promised_stays_beside_a_share) {
    static const char *const ways[] = {
        "0 prealloc share", "0 prealloc share prealloc-min 512MiB",
        "0 prealloc share release-threshold 512MiB front off",
        "3 prealloc share prealloc-mode background prealloc-min 512MiB"};
    struct child one, others[3], needy;

    start(&one, ways[_i]);
    if (_i == 0)
        expect(&one, "preallocate 512", "WEIR_OK");
    for (int i = 0; i < 3; i++)
        start(&others[i], "0");
    start(&needy, "0");
    expect(&needy, "take 320", "WEIR_OK");
    say(&needy, "take 600");
    hear(&needy);
    ck_assert_str_eq(needy.reply, "WEIR_E_NO_MEMORY");
    ck_assert_uint_ge(figures_of(&one).reserve, 512);
}

/* One that has no share is left alone beside one that has, and so is one whose device is lost. */
TEST(test_shares_are_of_those_that_have_one) {
    struct child one, two, three;

    start(&one, "0 limit share");
    expect(&one, "also 0", "WEIR_OK");
    start(&two, "0 limit share");
    expect_limit(&one, 512);
    expect(&one, "lose", "WEIR_E_DEVICE_LOST");
    start(&three, "0 limit share");
    expect_limit(&two, 320);
    nap(100);
    expect(&one, "take 1", "WEIR_E_DEVICE_LOST");
}

/* ---- what is left on the device ------------------------------------------------------------------ */

TEST(test_growth_leaves_room) {
    struct child c;
    char words[64];
    unsigned taken = 0;

    snprintf(words, sizeof words, "%d leave 256MiB", kinds[_i]);
    start(&c, words);
    do {
        say(&c, "take 32");
        hear(&c);
        taken += 32;
    } while (strcmp(c.reply, "WEIR_OK") == 0);
    ck_assert_str_eq(c.reply, "WEIR_E_LIMIT");
    ck_assert_uint_ge(taken, 640);
    ck_assert_uint_le(figures_of(&c).reserve, 768);
}

/* What others hold idle is no reason to refuse a request for the room's sake. */
TEST(test_idle_reserve_goes_to_who_leaves_room) {
    struct child idle, needy;
    struct figures f;
    char words[64];

    snprintf(words, sizeof words, "%d leave 128MiB", kinds[_i]);
    start(&idle, words);
    start(&needy, words);
    fill(&idle, 768);
    for (int i = 0; i < 4; i++)
        expect(&needy, "take 128", "WEIR_OK");
    f = figures_of(&needy);
    ck_assert_uint_eq(f.refusals, 0);
    ck_assert_uint_ge(f.appeal_mib, 384);
    ck_assert_uint_le(f.reserve + figures_of(&idle).reserve, 896);
    expect(&needy, "take 512", "WEIR_E_LIMIT");
}

/* A program without weir takes some, and gives it back. */
TEST(test_room_is_measured) {
    struct child c;

    start_model(CAPACITY);
    start(&c, "0 leave 256MiB");
    ck_assert_int_eq(weir__model_shared_take(0, CAPACITY, 512 * MIB), 0);
    expect(&c, "take 128", "WEIR_OK");
    expect(&c, "take 256", "WEIR_E_LIMIT");
    weir__model_shared_give(0, 512 * MIB);
    expect(&c, "take 256", "WEIR_OK");
}

TEST(test_more_than_there_is) {
    struct child c;

    begin(&c, _i == 0 ? "0 leave 2GiB" : "0 leave max");
    hear(&c);
    ck_assert_ptr_nonnull(strstr(c.reply, _i == 0 ? "keep-free '2GiB' is above the device's 1GiB"
                                                  : "keep-free 'max' is above the device's 1GiB"));
    ck_assert_int_eq(WEXITSTATUS(wait_for(&c)), 4);
}

/* ---- all at once --------------------------------------------------------------------------------- */

enum { WORKERS = 5, LOW = 48, PEAK = 560 };

static struct child workers[WORKERS];

static void start_worker(struct child *c) {
    static unsigned started;
    char words[200];

    snprintf(words, sizeof words, "%d work %s/turns %d %d", kinds[started++ % 3], folder, LOW,
             PEAK);
    begin(c, words);
}

/* One of them, at a time, is stopped: its reserve cannot be had, and there is room for one such beside a peak. */
static void torment(uint64_t for_ms, unsigned *kills) {
    uint64_t until = now_ms() + for_ms, step = 0, random = 42;

    for (int i = 0; i < WORKERS; i++)
        start_worker(&workers[i]);
    nap(50);
    while (now_ms() < until) {
        struct child *c;

        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        c = &workers[(random >> 33) % WORKERS];
        if (step++ % 4 == 3) {
            ck_assert_int_eq(kill(c->pid, SIGSTOP), 0);
            nap(5);
            ck_assert_int_eq(kill(c->pid, SIGCONT), 0);
        } else {
            end_by(c, SIGKILL);
            start_worker(c);
            ++*kills;
        }
        nap((long)((random >> 40) % 12));
    }
}

static void expect_peace(void) {
    uint64_t began;

    for (int i = 0; i < WORKERS; i++) {
        fclose(workers[i].to);
        workers[i].to = fopen("/dev/null", "w");
    }
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(wait_for(&workers[i]), 0); /* no request of theirs has failed */
    began = now_ms();
    start_model(CAPACITY);
    while (device_free() < CAPACITY)
        ck_assert_uint_le(now_ms() - began, 1000);
}

TEST(test_killed_and_stopped_at_random) {
    const char *seconds = getenv("WEIR_TEST_SECONDS");
    unsigned kills = 0;

    torment(seconds ? (uint64_t)atol(seconds) * 1000 : 3000, &kills);
    expect_peace();
    printf("# %u processes were killed\n", kills);
    ck_assert_uint_ge(kills, 20);
}

int main(int argc, char **argv) {
    Suite *suite = suite_create("neighbours");
    TCase *giving = suite_add_case(suite, "giving", 60, set_up, tear_down);
    TCase *silent = suite_add_case(suite, "silent", 60, set_up, tear_down);
    TCase *contexts = suite_add_case(suite, "contexts", 60, set_up, tear_down);
    TCase *shares = suite_add_case(suite, "shares", 60, set_up, tear_down);
    TCase *many = suite_add_case(suite, "many", 3600, set_up, tear_down);

    program = argv[0];
    if (argc > 2 && strcmp(argv[1], "child") == 0)
        return be_child(argc - 2, argv + 2);
    ADD_FOR_EACH(giving, 3, test_idle_reserve_goes_to_who_needs_it,
                 test_one_block_keeps_its_region_alone);
    ADD_FOR_EACH(giving, 2, test_one_block_beside_who_comes_later,
                 test_a_region_that_is_part_of_a_share_cannot_be_given,
                 test_without_the_ledger_it_is_refused, test_not_above_the_own_limit,
                 test_who_is_refused_has_asked_little);
    tcase_add_loop_test(giving, test_what_lies_beside_a_block_cannot_be_given, 0, 6);
    ADD_TESTS(giving, test_what_is_in_use_stays, test_lower_priority_gives_first,
              test_most_idle_gives_first, test_several_give_together,
              test_work_that_uses_it_is_waited_for, test_what_cannot_be_given_once,
              test_asked_for_more_than_there_is, test_what_is_free_is_not_known,
              test_the_whole_device, test_up_to_the_own_limit, test_without_a_wait_nobody_is_asked,
              test_until_the_deadline, test_until_what_fits_is_free,
              test_who_waits_asks_for_what_it_needs, test_no_ledger_can_be_made);
    ADD_TESTS(silent, test_nobody_waits_long_for_a_stopped_one, test_a_verdict_beside_small_ones,
              test_a_verdict_without_what_is_free,
              test_a_verdict_beside_a_stopped_one_that_has_little,
              test_who_answers_late_is_waited_for, test_a_context_waits_for_a_stopped_one_once,
              test_a_share_after_a_context, test_others_give_beside_a_stopped_one,
              test_a_killed_one_leaves_its_memory, test_who_dies_asked_gives_all,
              test_who_is_ending_keeps_nothing, test_who_is_ending_is_not_waited_for_in_vain,
              test_nobody_is_waited_for_where_nobody_is, test_who_does_not_come_to_its_end);
    ADD_FOR_EACH(silent, 2, test_a_verdict_beside_a_stopped_one, test_who_does_not_answer_is_named,
                 test_a_verdict_beside_one_of_its_own, test_who_is_ending_is_waited_for,
                 test_who_is_ending_has_too_little);
    tcase_add_loop_test(silent, test_a_verdict_beside_living_ones, 0, 3);
    tcase_add_loop_test(silent, test_a_verdict_without_the_ledger, 0, 6);
    tcase_add_loop_test(silent, test_who_dies_before_it_is_asked_gives_all, 8, 22);
    tcase_add_loop_test(silent, test_the_file_is_ruined_meanwhile, 0, 2);
    tcase_add_loop_test(contexts, test_a_context_beside_idle_reserve, 0, 3);
    ADD_FOR_EACH(contexts, 2, test_contexts_beside_preallocated_shares,
                 test_a_context_for_which_shares_fell, test_a_context_that_cannot_be);
    tcase_add_test(contexts, test_a_programs_context_beside_a_preallocated_share);
    ADD_TESTS(shares, test_equal_shares_as_processes_come_and_go, test_weighted_shares,
              test_a_share_is_never_below_what_is_in_use, test_preallocated_shares,
              test_a_share_in_the_background_falls_for_who_comes,
              test_a_share_asks_when_its_turn_has_come, test_a_share_waits_for_those_that_are_slow,
              test_a_share_in_the_background_beside_a_stopped_one,
              test_a_share_beside_a_stopped_one_has_a_deadline,
              test_a_share_is_not_waited_for_until_the_deadline,
              test_a_share_beside_one_that_grows_again, test_weights_of_nothing,
              test_a_limit_in_place_of_a_share, test_a_share_caps_what_is_preallocated,
              test_shares_are_of_those_that_have_one, test_room_is_measured);
    ADD_FOR_EACH(shares, 3, test_reserve_above_a_share_goes, test_growth_leaves_room,
                 test_idle_reserve_goes_to_who_leaves_room);
    ADD_FOR_EACH(shares, 2, test_reserve_above_a_share_that_cannot_go,
                 test_a_share_caps_what_was_preallocated, test_reserve_that_was_promised_stays,
                 test_more_than_there_is);
    ADD_FOR_EACH(shares, 4, test_preallocated_shares_in_the_background,
                 test_preallocated_shares_leave_room,
                 test_reserve_that_was_promised_stays_beside_a_share);
    tcase_add_test(many, test_killed_and_stopped_at_random);
    return run_suite(suite, CK_FORK);
}
