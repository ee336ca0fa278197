/* SPDX-License-Identifier: MIT */
/* sim_world.c: plays a script: threads that share an allocator on the device model.  The script decides which thread
 * runs, and every outcome.
 *
 * Each block is used by work that the model's oracle sees, on its own stream and on others, and the program keeps to
 * the contract; so each fault that the oracle finds is the allocator's.  Beside that no two live blocks overlap, each
 * call returns a status that it may, the identities of weir/stats.h hold, and in the end all memory is back.
 *
 * Must not know: where scripts come from. */
#include "sim_world.h"

#include <dirent.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/allocator_internal.h"

struct world w;

/* Returns the folder of this process, which other processes' locks and profiles cannot disturb. */
static const char *folder(void) {
    static char path[64];

    snprintf(path, sizeof path, "%s/weir-sim-%ld",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    return path;
}

/* Returns the path of the world's profile. */
const char *sim_profile_path(void) {
    static char path[80];

    snprintf(path, sizeof path, "%s/profile", folder());
    return path;
}

static void remove_sim_folder(void) {
    DIR *files = opendir(folder());
    const struct dirent *file;

    while (files && (file = readdir(files)))
        (void)unlinkat(dirfd(files), file->d_name, 0);
    if (files)
        closedir(files);
    (void)rmdir(folder());
}

__attribute__((format(printf, 1, 2), noreturn)) void sim_fail(const char *format, ...) {
    size_t length = 0;
    va_list arguments;

    va_start(arguments, format);
    length = (size_t)vsnprintf(w.report->failure, sizeof w.report->failure, format, arguments);
    va_end(arguments);
    remove_sim_folder();
    if (length < sizeof w.report->failure)
        snprintf(w.report->failure + length, sizeof w.report->failure - length,
                 " (word %zu of seed %#llx)", w.at, (unsigned long long)w.script->seed);
    if (w.story)
        fprintf(w.story, "\n# %s\n", w.report->failure);
    fflush(NULL);
    _exit(1);
}

void sim_add(enum sim_count count, uint64_t more) {
    atomic_fetch_add_explicit(&w.report->counts[count], more, memory_order_relaxed);
}

/* ---- Calls into the allocator, which a fault may meet ---- */

void sim_arm(void) {
    if (w.fault_k)
        weir__model_fail(w.fault_entry, w.fault_k, w.fault_result, w.fault_for_good);
}

/* Clears the planned fault.  Returns 1 if there was one, so that any error is right, else 0. */
int sim_disarm(void) {
    int was = w.fault_k != 0;

    if (was)
        weir__model_faults_clear();
    w.fault_k = 0;
    return was;
}

/* Makes a call under the planned fault.  Returns 1 if a fault was planned, else 0. */
#define CALL(status, call) (sim_arm(), (status) = (call), sim_disarm())

void sim_expect(weir_status is, weir_status wanted, const char *what) {
    if (is != wanted)
        sim_fail("%s: %s, not %s (driver result %d)", what, weir_status_name(is),
                 weir_status_name(wanted), weir_last_driver_result());
}

weir_statistics sim_look(void) {
    weir_statistics s = {.size = sizeof s};
    uint64_t cache;

    sim_expect(weir_stats(w.allocator, &s), WEIR_OK, "weir_stats");
    cache = s.cache_hits + s.cache_misses_young + s.cache_misses_empty + s.cache_misses_capture;
    if (s.attempts != s.allocs + s.failed_requests || s.allocs != s.hits + s.growth_allocs ||
        s.allocs - s.frees != s.blocks || s.requested > s.in_use ||
        s.in_use + s.cache_idle > s.reserved || s.requested > s.requested_peak ||
        s.in_use > s.in_use_peak || s.reserved > s.reserved_peak ||
        (cache != 0 && cache != s.allocs))
        sim_fail(
            "the identities of the statistics do not hold: attempts %llu allocs %llu failed "
            "requests %llu "
            "hits %llu growth %llu frees %llu blocks %llu requested %llu in_use %llu idle %llu "
            "reserve %llu cache %llu peaks %llu %llu %llu",
            (unsigned long long)s.attempts, (unsigned long long)s.allocs,
            (unsigned long long)s.failed_requests, (unsigned long long)s.hits,
            (unsigned long long)s.growth_allocs, (unsigned long long)s.frees,
            (unsigned long long)s.blocks, (unsigned long long)s.requested,
            (unsigned long long)s.in_use, (unsigned long long)s.cache_idle,
            (unsigned long long)s.reserved, (unsigned long long)cache,
            (unsigned long long)s.requested_peak, (unsigned long long)s.in_use_peak,
            (unsigned long long)s.reserved_peak);
    if (s.reserved > w.most && w.set.kind != POOL && !w.set.faults)
        sim_fail("the reserve, %llu bytes, rises above a limit of %llu",
                 (unsigned long long)s.reserved, (unsigned long long)w.limit);
    if (s.reserved < w.most)
        w.most = s.reserved > w.limit ? s.reserved : w.limit;
    if (s.blocks != w.block_count + w.lost)
        sim_fail("%llu blocks, but %u live, and %u went with their captures",
                 (unsigned long long)s.blocks, w.block_count, w.lost);
    return s;
}

void sim_check_oracle(void) {
    const char *fault = weir__model_fault();

    if (fault)
        sim_fail("%s", fault);
}

static void check_sim_model(void) {
    const char *wrong = weir__model_pool_check();

    if (wrong)
        sim_fail("the model: %s", wrong);
}

/* ---- Beginning and end ---- */

static void open_sim_allocator(void) {
    weir_options options = sim_options(&w.set);
    int at_first = w.set.prealloc && w.set.at_first;

    if (w.set.asks) {
        options.oom_callback = sim_give_idle_back;
        options.oom_callback_data = &w;
    }
    sim_expect(at_first
                   ? weir__allocator_create(&options, WEIR_CREATE_PREALLOCATES_LATER, &w.allocator)
                   : weir_allocator_create(&options, &w.allocator),
               WEIR_OK, "weir_allocator_create");
    w.limit = w.most = UINT64_MAX;
}

static int has_own_blocks(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && !w.blocks[i].was_of_graph)
            return 1;
    return 0;
}

/* Returns the number of decays that the event ring still has. */
static unsigned count_decays(void) {
    weir_event events[64];
    size_t count;
    unsigned decays = 0;

    sim_expect(weir_events(w.allocator, 0, events, sizeof events[0], 64, &count), WEIR_OK,
               "weir_events");
    for (size_t i = 0; i < count; i++)
        decays += events[i].cause == WEIR_EVENT_DECAY;
    return decays;
}

static void close_sim_allocator(void) {
    weir_statistics s;
    size_t free_bytes, total;

    if (w.capture.runs)
        return;
    tell("free all, and destroy the allocator\n");
    w.fault_k = 0;
    if (has_own_blocks())
        sim_expect(weir_allocator_destroy(w.allocator), WEIR_E_BUSY,
                   "weir_allocator_destroy with blocks");
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address)
            sim_free_on(&w.blocks[i], w.blocks[i].home);
    if (w.block_count > 0)
        sim_fail("%u blocks could not be freed", w.block_count);
    for (unsigned i = 0; i < STREAMS; i++)
        w.streams[i].bound = 0;
    s = sim_look();
    sim_add(SIM_ALLOCS, s.allocs);
    sim_add(SIM_HITS, s.cache_hits);
    sim_add(SIM_STEALS, s.steals);
    sim_add(SIM_RECORDS, s.event_records);
    sim_add(SIM_DEFERRED, s.deferred_frees);
    sim_add(SIM_GROWTHS, s.growths);
    sim_add(SIM_RETRIES, s.retries);
    sim_add(SIM_AHEAD, s.ahead_steps);
    sim_add(SIM_DECAYS, count_decays());
    sim_add(SIM_LEARNT, s.profile_runs > 0);
    if (s.late_writes || s.overruns || (s.kept_out && !w.set.faults))
        sim_fail("%llu late writes, %llu overruns and %llu blocks kept out, though nobody wrote",
                 (unsigned long long)s.late_writes, (unsigned long long)s.overruns,
                 (unsigned long long)s.kept_out);
    sim_expect(weir_trim(w.allocator, 0, NULL), WEIR_OK, "weir_trim");
    s = sim_look();
    if (s.requested != 0 || (s.in_use != 0 && s.kept_out == 0))
        sim_fail("%llu bytes are requested and %llu in use of no block",
                 (unsigned long long)s.requested, (unsigned long long)s.in_use);
    if (w.set.patience != 2) { /* else pending frees are not waited for */
        CU(w.driver->cuCtxSynchronize());
        sim_expect(weir_trim(w.allocator, 0, NULL), WEIR_OK, "weir_trim");
        s = sim_look();
        if (s.reserved != 0 && s.kept_out == 0 && w.set.kind != ARENA_FIXED)
            sim_fail("%llu bytes of reserve are left of nothing", (unsigned long long)s.reserved);
    }
    CU(w.driver->cuCtxSynchronize());
    w.born = 0;
    sim_expect(weir_allocator_destroy(w.allocator), WEIR_OK, "weir_allocator_destroy");
    w.gone = NULL;
    w.any_of_graph = 0;
    w.lost = 0;
    for (unsigned i = 0; i < HOGS; i++)
        if (w.hogs[i]) {
            CU(w.driver->cuMemFree(w.hogs[i]));
            w.hogs[i] = 0;
        }
    CU(w.driver->cuDeviceGraphMemTrim(0));
    CU(w.driver->cuMemGetInfo(&free_bytes, &total));
    if (free_bytes != w.set.capacity)
        sim_fail("%zu bytes of the device are gone", (size_t)w.set.capacity - free_bytes);
    sim_check_oracle();
    check_sim_model();
}

/* Resets the model to the device of the world. */
static void reset_model(void) {
    struct weir_model_setup setup = {.capacity = w.set.capacity};
    char path[80];
    FILE *file;

    if (w.set.old) {
        snprintf(path, sizeof path, "%s/model", folder());
        file = fopen(path, "w");
        if (!file || fputs("driver_version = 11080\n", file) < 0 || fclose(file) != 0)
            sim_fail("no file %s", path);
        setup.profile = path;
    }
    if (weir__model_reset(&setup) != 0)
        sim_fail("the model cannot be reset");
}

static void open_world(void) {
    struct weir_driver_failure failure;

    remove_sim_folder(); /* an earlier process with this number may have left one */
    if (mkdir(folder(), 0700) != 0 || setenv("WEIR_RUN_FOLDER", folder(), 1) != 0)
        sim_fail("no folder %s", folder());
    w.driver = weir__driver_open("model", &failure);
    if (!w.driver)
        sim_fail("%s", failure.text);
    reset_model();
    if (w.script->is_followed)
        weir__model_sequence_start(w.script->calls);
    CU(w.driver->cuDevicePrimaryCtxRetain(&w.context, 0));
    CU(w.driver->cuCtxPushCurrent(w.context));
    CU(w.driver->cuEventCreate(&w.event, CU_EVENT_DISABLE_TIMING));
    open_sim_allocator();
    for (unsigned i = 0; i < w.set.streams; i++)
        sim_make_stream(i, w.set.legacy && (i & 1));
    if (w.set.legacy)
        w.streams[STREAMS - 1] = (struct stream){.lives = 1, .is_default = 1, .blocks = 1};
}

/* Adds the world's digest to the sum, which does not depend on the order of worlds. */
static void add_digest(void) {
    struct weir_model_sequence sequence;

    weir__model_sequence(&sequence);
    atomic_fetch_add(&w.report->digest, sim_mix(sequence.digest ^ sim_mix(w.script->seed)));
}

static void close_world(void) {
    CUcontext popped;

    close_sim_allocator();
    sim_add(SIM_USES, weir__model_uses());
    for (unsigned i = 0; i < STREAMS; i++)
        if (w.streams[i].lives && !w.streams[i].is_default)
            CU(w.driver->cuStreamDestroy(sim_handle(i)));
    CU(w.driver->cuEventDestroy(w.event));
    CU(w.driver->cuCtxPopCurrent(&popped));
    CU(w.driver->cuDevicePrimaryCtxRelease(0));
    if (w.script->is_followed)
        add_digest();
    remove_sim_folder();
}

/* ---- Playing ---- */

void do_nothing(uint64_t r) {
    (void)r;
}

void do_stats(uint64_t r) {
    (void)r;
    (void)sim_look();
}

void do_renew(uint64_t r) {
    (void)r;
    if (w.capture.runs)
        return;
    close_sim_allocator();
    open_sim_allocator();
}

static const struct {
    const char *name;
    void (*play)(uint64_t r);
} operations[] = {
#define OPERATION(name, weight, function) {#name, function},
    OPERATIONS(OPERATION)
#undef OPERATION
};

/* Plays words to the end of the script, and waits while it is another thread's turn. */
static void play_thread(unsigned thread) {
    enum { LOOK_AT_MODEL = 512 };

    while (!w.is_over) {
        uint64_t word = w.script->words[w.at], r = word >> 10;
        enum operation operation = w.set.chances[word % sizeof w.set.chances];
        unsigned next = thread;

        w.told = 0;
        atomic_store_explicit(&w.report->at, w.at, memory_order_relaxed);
        if (w.story)
            fprintf(w.story, "%016llx  # %s, thread %u: ", (unsigned long long)word,
                    operations[operation].name, thread);
        if (operation == OP_SWITCH)
            next = (unsigned)(r % w.set.threads);
        else
            operations[operation].play(r);
        if (w.story && !w.told) /* each word needs a line of the script */
            fputs("\n", w.story);
        if (w.at % LOOK_AT_MODEL == 0)
            check_sim_model();
        if (++w.at == w.script->count)
            w.is_over = 1;
        else if (next != thread) {
            w.thread = next;
            sem_post(&w.turns[next]);
            while (sem_wait(&w.turns[thread]) != 0)
                ;
        }
    }
}

/* Ends a thread in its turn, since it must abort the capture that it began while the other threads wait. */
static void leave_thread(unsigned thread) {
    CUcontext popped;

    w.thread = thread;
    do_abort(0);
    if (thread > 0)
        CU(w.driver->cuCtxPopCurrent(&popped));
    sem_post(&w.turns[(thread + 1) % w.set.threads]);
}

static void *thread_main(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument;

    while (sem_wait(&w.turns[thread]) != 0)
        ;
    CU(w.driver->cuCtxPushCurrent(w.context));
    play_thread(thread);
    leave_thread(thread);
    return NULL;
}

void sim_play(const struct sim_script *script, struct sim_report *report, FILE *story) {
    pthread_t ids[THREADS];

    memset(&w, 0, sizeof w);
    w.script = script;
    w.report = report;
    w.story = story;
    sim_draw_settings(&w.set, script->seed);
    open_world();
    for (unsigned i = 0; i < w.set.threads; i++)
        sem_init(&w.turns[i], 0, 0);
    for (unsigned i = 1; i < w.set.threads; i++)
        if (pthread_create(&ids[i], NULL, thread_main, (void *)(uintptr_t)i) != 0)
            sim_fail("a thread cannot be started");
    w.is_over = script->count == 0;
    play_thread(0);
    leave_thread(0);
    for (unsigned i = 1; i < w.set.threads; i++)
        pthread_join(ids[i], NULL);
    w.thread = 0;
    close_world();
    for (unsigned i = 0; i < w.set.threads; i++)
        sem_destroy(&w.turns[i]);
    atomic_fetch_add_explicit(&report->operations, script->count, memory_order_relaxed);
    atomic_fetch_add_explicit(&report->worlds, 1, memory_order_relaxed);
}
