/* SPDX-License-Identifier: MIT */
/* test_faults.c: every failure of every operation, one by one: situations (an operation, and what went before it)
 * times worlds (engine, cache, age of the driver) times faults.
 *
 * The k-th driver call of the operation fails, for every k, once or with all later ones, with each of a list of
 * results; so do pairs of calls, and the k-th request for host memory.  After each fault the status is one that
 * weir/allocator.h names; the thread's driver result, context and capture mode are right; figures and the model's
 * accounts agree; the operation succeeds when it is repeated; and in the end device and host have their memory back.
 *
 * Must not know: which driver calls an operation makes. */
#include "tests/whole/test_faults_scenes.h"

#include "base/result.h"
#include "cache/biased_lock.h"

/* ---- faults ---------------------------------------------------------------------------------- */

struct fault {
    uint64_t driver_call, then; /* numbers of driver calls; 0 for none */
    CUresult result;
    uint64_t host_request; /* number of a request for host memory; 0 for none */
    int for_good;
};

/* The present case, for the message of a failure. */
static struct {
    const struct world *world;
    const struct situation *situation;
    const struct fault *fault;
    enum weir_driver_entry last;
} now;

#define FAIL_UNLESS(condition, detail) ((condition) ? (void)0 : wrong(__LINE__, #condition, detail))

static void wrong(int line, const char *condition, const char *detail) {
    ck_abort_msg("line %d: %s: %s: driver call %llu, then %llu, answers %u (the last: %s), host "
                 "request %llu%s: not so: %s %s",
                 line, now.world->name, now.situation->name,
                 (unsigned long long)now.fault->driver_call, (unsigned long long)now.fault->then,
                 now.fault->result,
                 now.last == WEIR_ENTRY_COUNT ? "none" : weir__driver_entry_name(now.last),
                 (unsigned long long)now.fault->host_request,
                 now.fault->for_good ? ", and all later" : "", condition, detail);
}

/* Returns the statuses that a driver result may cause. */
static unsigned excused(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: /* no host memory, perhaps for the model, whose call then fails */
        return MAY(E_HOST_MEMORY) | MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    case CUDA_ERROR_OUT_OF_MEMORY:
        return MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    case CUDA_ERROR_INVALID_VALUE: /* a free in the pool fails like one of an unknown block */
        return MAY(E_DRIVER) | MAY(E_NOT_OWNED);
    case CUDA_ERROR_INVALID_HANDLE: /* the caller's stream; the device's context, if all calls fail */
        return MAY(E_STREAM) | (now.fault->for_good ? MAY(E_DEVICE_LOST) : 0);
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: /* the caller's stream, or the device's context */
        return MAY(E_STREAM) | MAY(E_DEVICE_LOST);
    case CUDA_ERROR_ILLEGAL_ADDRESS:
        return MAY(E_DEVICE_LOST);
    case CUDA_ERROR_NO_DEVICE:
        return MAY(E_NO_DEVICE);
    case CUDA_ERROR_NOT_SUPPORTED:
        return MAY(E_NOT_SUPPORTED);
    default:
        return MAY(E_DRIVER);
    }
}

/* Checks a status after `met' faults.  `clean' is the operation's status without a fault. */
static void check_status(weir_status status, weir_status clean, uint64_t met) {
    unsigned may = now.situation->may & (excused(now.fault->result) | MAY(E_BUSY));

    if (clean == WEIR_OK)
        may |= MAY(OK);
    if (now.situation->about & GRAPHS) /* an unknown block does not belong to the graph */
        may |= (may & MAY(E_NOT_OWNED)) || now.fault->host_request > 0 ? MAY(E_CAPTURE) : 0;
    if (now.situation->about & SHORT)
        may |= MAY(E_NO_MEMORY) | MAY(E_LIMIT);
    FAIL_UNLESS(status == clean || (met > 0 && (may >> -(int)status & 1)),
                weir_status_name(status));
    if (status == WEIR_OK)
        FAIL_UNLESS(weir_last_driver_result() == UNTOUCHED, "");
    else
        FAIL_UNLESS(weir_last_driver_result() != UNTOUCHED, weir_status_name(status));
}

/* Checks that context and capture mode are restored, unless a call that restores them failed. */
static void check_thread(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext current;

    for (; stuck_contexts > 0; stuck_contexts--)
        CU(driver->cuCtxPopCurrent(&current));
    CU(driver->cuCtxGetCurrent(&current));
    FAIL_UNLESS(current == primary, "");
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    FAIL_UNLESS(lost_mode || mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "");
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
}

/* Checks that growth less shrinkage in the events is the reserve of an arena, where every change has an event. */
static void check_scene_events(const struct scene *s) {
    enum { MOST = 1024 };
    static weir_event events[MOST];
    uint64_t bytes = 0;
    size_t count = 0;

    if (s->world->kind == KIND_POOL || s->world->kind == KIND_DIRECT)
        return;
    OK(weir_events(s->a, 0, events, sizeof events[0], MOST, &count));
    if (count == 0 || events[0].sequence > 1) /* the ring has lost events */
        return;
    for (size_t i = 0; i < count; i++)
        bytes += events[i].shrink ? 0 - events[i].got : events[i].got;
    FAIL_UNLESS(bytes == stats_of(s->a).reserved, "");
}

static void check_accounts(const struct scene *s) {
    const char *fault = weir__model_pool_check();

    FAIL_UNLESS(!fault, fault);
    if (s->a) {
        check_identities(s->a);
        check_scene_events(s);
    }
}

static int is_lost(const struct scene *s) {
    return s->a && weir__slow_path_is(&s->a->device.slow_path, WEIR_SLOW_PATH_LOST);
}

/* Checks that a lost device fails all calls but those for statistics and destruction. */
static void end_lost(struct scene *s) {
    void *none = s;

    FAIL_UNLESS(excused(now.fault->result) & MAY(E_DEVICE_LOST), "");
    end_scene_capture(s);
    EXPECT(WEIR_E_DEVICE_LOST, weir_alloc(s->a, 1000, A, &none));
    MUST(none == s);
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(s->a, s, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(s->a, s, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_bind(s->a, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(s->a, 1, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(s->a, 0, NULL));
    (void)check_identities(s->a);
    OK(weir_allocator_destroy(s->a));
}

/* Frees all blocks, checks that nothing is left, and destroys the allocator. */
static void end_scene(struct scene *s) {
    weir_statistics figures;

    end_scene_capture(s);
    for (int i = 0; i < SLOTS; i++) {
        weir_status status = weir_free(s->a, s->block[i], s->freed_on[i]);

        FAIL_UNLESS(status == WEIR_OK, weir_status_name(status));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(s->a, 0, NULL));
    figures = check_identities(s->a);
    /* A graph keeps a hardened block that could be neither prepared nor freed.  Bytes that are kept out include
     * rounding. */
    FAIL_UNLESS((figures.blocks == 0 && figures.requested == 0) ||
                    (s->options.harden && (now.situation->about & GRAPHS) && now.fault->for_good),
                "");
    FAIL_UNLESS(figures.in_use == 0 || figures.kept_out > 0, "");
    FAIL_UNLESS(figures.cache_idle == 0, "");
    FAIL_UNLESS(figures.reserved == 0 || (s->world->without & WEIR_CAP_POOL_FIGURES) ||
                    figures.kept_out > 0,
                "");
    OK(weir_allocator_destroy(s->a));
    s->a = NULL;
}

static void end_device(struct scene *s) {
    if (s->ballast)
        CU(driver->cuMemFree(s->ballast));
    check_accounts(s);
    FAIL_UNLESS(device_free() == CAPACITY, "");
}

static void set_out(struct scene *s, const struct world *world, const struct situation *it) {
    *s = (struct scene){.world = world, .options = options_of(world->kind, "model", 256 * MIB)};
    s->options.recovery_timeout_ms = 20;
    s->options.cache = world->cache;
    s->options.log = WEIR_LOG_NONE;
    apply_settings(&s->options, it->settings);
    if (it->about & LATER)
        s->is_later = 1;
    if (it->about & PROFILE)
        with_new_profile(&s->options);
    if (it->about & LEARNED)
        with_profile(&s->options);
    if (it->about & NEW)
        return;
    OK(create_scene_allocator(s));
    OK(play_steps(s, it->before));
}

static void plan(const struct fault *fault) {
    weir__set_driver_result(UNTOUCHED);
    if (fault->driver_call > 0)
        weir__model_fail_any(fault->driver_call, fault->then, fault->result, fault->for_good);
#ifdef CAN_REFUSE_HOST_MEMORY
    was_refused = 0;
    refuse_for_good = fault->for_good;
    refuse_in = fault->host_request;
#endif
}

/* Ends the plan.  Returns the number of faults that occurred. */
static uint64_t end_of_plan(void) {
    uint64_t met = weir__model_faults_injected(&now.last);

    weir__model_faults_clear();
#ifdef CAN_REFUSE_HOST_MEMORY
    refuse_in = 0;
    met += (uint64_t)was_refused;
#endif
    return met;
}

/* Checks that the previous case has freed all host memory.  The model must have dropped its memory before. */
static void check_host_memory(void) {
#ifdef CAN_REFUSE_HOST_MEMORY
    static int64_t at_first;
    static int runs;

    if (runs++ < 2) /* a process makes some memory once */
        at_first = pieces_held;
    FAIL_UNLESS(pieces_held == at_first, "(before this one)");
#endif
}

/* Makes the thread's mark for biased locks, which lives as long as the thread, before host memory is counted. */
static void take_mark(void) {
    static struct weir_bias bias;

    for (int i = 0; i < 1000; i++)
        weir__bias_give(&bias, weir__bias_take(&bias));
}

/* Runs the operation once with the fault, and checks what follows.  Returns the number of faults that occurred.  A run
 * without a fault sets *clean to the operation's status. */
static uint64_t run_once(const struct world *world, const struct situation *it,
                         const struct fault *fault, weir_status *clean) {
    struct scene s;
    weir_status status;
    uint64_t met;

    take_mark();
    start_world(world);
    check_host_memory();
    now.world = world;
    now.situation = it;
    now.fault = fault;
    now.last = WEIR_ENTRY_COUNT;
    set_out(&s, world, it);
    plan(fault);
    status = play_steps(&s, it->operation);
    met = end_of_plan();
    if (fault->driver_call == 0 && fault->host_request == 0)
        *clean = status;
    check_status(status, *clean, met);
    check_thread();
    if (is_lost(&s)) {
        end_lost(&s);
        return met;
    }
    check_accounts(&s);
    if (s.captured && !scene_is_captured(&s)) {
        FAIL_UNLESS(met > 0, "");
    } else if (status != *clean) {
        weir_status again = play_steps(&s, it->operation);
        int lacks = (it->about & SHORT) && s.a && stats_of(s.a).kept_out > 0;

        FAIL_UNLESS(again == *clean || (lacks && again == WEIR_E_LIMIT), weir_status_name(again));
    }
    if (!s.a && met > 0)
        return met; /* memory that the driver refused at the end is the driver's */
    if (s.a)
        end_scene(&s);
    if (!(it->about & NEW) || status == *clean || met == 1) /* else unwinding failed, too */
        end_device(&s);
    return met;
}

static const struct fault no_fault;

static const struct world *mapped_world(void) {
    int i = 0;

    while (worlds[i].kind != KIND_MAPPED || worlds[i].cache == WEIR_SWITCH_ON)
        i++;
    return &worlds[i];
}

/* Returns 1 for WEIR_TEST_FAULTS=all, which leaves nothing out.  Otherwise each call fails with one result in turn, and
 * only pairs of close calls are tried, fewer of them for later calls.  WEIR_TEST_FAULTS=N tries every N-th of all that,
 * for slow tools. */
static int are_all_wanted(void) {
    const char *text = getenv("WEIR_TEST_FAULTS");

    return text && strcmp(text, "all") == 0;
}

static uint64_t positive_number_from(const char *variable) {
    const char *text = getenv(variable);
    uint64_t n = text ? strtoull(text, NULL, 0) : 0;

    return n > 0 ? n : 1;
}

static uint64_t every(void) {
    return positive_number_from("WEIR_TEST_FAULTS");
}

/* Returns the step between pairs: WEIR_TEST_PAIRS=N tries every N-th of them. */
static uint64_t every_pair(void) {
    return every() * positive_number_from("WEIR_TEST_PAIRS");
}

static void print_points(const struct world *world, const char *what, uint64_t points) {
    printf("# %s: %s: %llu\n", world->name, what, (unsigned long long)points);
    fflush(stdout);
}

/* Calls `with_faults' for each situation of the world, after a run without a fault.  Returns the sum of its results. */
static uint64_t in_each_of(const struct situation *list, int count, const struct world *world,
                           uint64_t (*with_faults)(const struct world *world,
                                                   const struct situation *it,
                                                   weir_status *clean)) {
    uint64_t points = 0;

    for (int i = 0; i < count; i++) {
        weir_status clean = WEIR_OK;

        if (!is_met(&list[i], world))
            continue;
        run_once(world, &list[i], &no_fault, &clean);
        points += with_faults(world, &list[i], &clean);
    }
    return points;
}

/* Driver results, and the status that an operation must allow for the result to make sense: a result about a stream
 * needs an operation with a stream. */
static const struct {
    CUresult result;
    unsigned needs;
} results[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, 0},
    {CUDA_ERROR_INVALID_VALUE, 0},
    {CUDA_ERROR_ILLEGAL_ADDRESS, 0},
    {CUDA_ERROR_NOT_READY, 0},
    {CUDA_ERROR_INVALID_CONTEXT, 0},
    {CUDA_ERROR_INVALID_HANDLE, MAY(E_STREAM)},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, MAY(E_STREAM)},
    {CUDA_ERROR_NO_DEVICE, MAY(E_NO_DEVICE)},
    {CUDA_ERROR_NOT_SUPPORTED, MAY(E_NOT_SUPPORTED)},
};
enum { RESULTS = sizeof results / sizeof results[0] };

/* Chooses the results that make sense in the situation.  Returns their number. */
static uint64_t choose_results(const struct situation *it, CUresult *chosen) {
    uint64_t count = 0;

    for (int i = 0; i < RESULTS; i++)
        if ((results[i].needs & it->may) == results[i].needs)
            chosen[count++] = results[i].result;
    return count;
}

static uint64_t fail_each_call(const struct world *world, const struct situation *it,
                               weir_status *clean) {
    CUresult chosen[RESULTS];
    uint64_t count = choose_results(it, chosen), points = 0;
    int all = are_all_wanted();

    for (uint64_t k = 1;; k += every()) {
        for (uint64_t r = 0; r < (all ? count : 1); r++) {
            struct fault fault = {.driver_call = k, .result = chosen[(k + r) % count]};

            if (run_once(world, it, &fault, clean) == 0)
                return points;
            fault.for_good = 1;
            fault.result = chosen[(k + 1 + r) % count];
            run_once(world, it, &fault, clean);
            points += 2;
        }
    }
}

static void drop_profile(void) {
    (void)unlink(profile);
}

CASE("driver calls", 300, NULL, drop_profile);

TEST(each_driver_call_among_pieces_fails) {
    weir_status clean;
    uint64_t points = 0;

    for (pieces = 8; pieces < 40; pieces += 9)
        for (int i = 0; i < OF_PIECES; i++) {
            run_once(mapped_world(), &of_pieces[i], &no_fault, &clean);
            points += fail_each_call(mapped_world(), &of_pieces[i], &clean);
        }
    print_points(mapped_world(), "driver calls that failed among pieces", points);
    ck_assert_uint_gt(points, 300 / every());
}

/* Selects some worlds with stream ids and some without, since shelves know nothing of the layer below. */
static int has_shelves(int row) {
    const struct world *world = &worlds[row];

    return (world->kind == KIND_POOL || world->kind == KIND_REGIONS) &&
           (world->cache == WEIR_SWITCH_ON || (world->without & WEIR_CAP_STREAM_ID));
}

TEST_WHERE(0, WORLDS, has_shelves, each_driver_call_behind_shelves_fails) {
    uint64_t points = in_each_of(hardened, HARDENED_SITUATIONS, &worlds[_i], fail_each_call);

    print_points(&worlds[_i], "driver calls that failed behind shelves", points);
    ck_assert_uint_gt(points, 100 / every());
}

TEST_EACH(WORLDS, each_driver_call_fails) {
    uint64_t points = in_each_of(situations, SITUATIONS, &worlds[_i], fail_each_call);

    print_points(&worlds[_i], "driver calls that failed", points);
    ck_assert_uint_gt(points, 500 / every());
}

static uint64_t fail_pairs(const struct world *world, const struct situation *it,
                           weir_status *clean) {
    int all = are_all_wanted();
    struct fault fault = {.driver_call = 1, .result = CUDA_ERROR_INVALID_VALUE};
    uint64_t met, points = 0;

    do {
        fault.then = 0;
        do {
            fault.then++;
            met = run_once(world, it, &fault, clean);
            points += met == 2;
        } while (met == 2 && (all || fault.then < 3));
        fault.driver_call += all ? 1 : every_pair() * (1 + fault.driver_call / 12);
    } while (met > 0);
    return points;
}

CASE("pairs", 3600, NULL, drop_profile);

TEST_EACH(WORLDS, pairs_of_driver_calls_fail) {
    uint64_t points = in_each_of(situations, SITUATIONS, &worlds[_i], fail_pairs);

    print_points(&worlds[_i], "pairs of driver calls that failed", points);
    ck_assert_uint_gt(points, 300 / every_pair());
}

#ifdef CAN_REFUSE_HOST_MEMORY
static uint64_t fail_each_request(const struct world *world, const struct situation *it,
                                  weir_status *clean) {
    uint64_t points = 0;

    for (int for_good = 0; for_good < 2; for_good++) {
        struct fault fault = {.host_request = 1, .for_good = for_good};

        for (; run_once(world, it, &fault, clean) > 0; fault.host_request += every())
            points++;
    }
    return points;
}

CASE("host memory", 300, NULL, drop_profile);

TEST_EACH(WORLDS, each_request_for_host_memory_fails) {
    uint64_t points = in_each_of(situations, SITUATIONS, &worlds[_i], fail_each_request);

    print_points(&worlds[_i], "requests for host memory that failed", points);
    ck_assert_uint_gt(points, 100 / every());
}

TEST_WHERE(0, WORLDS, has_shelves, each_request_behind_shelves_fails) {
    uint64_t points = in_each_of(hardened, HARDENED_SITUATIONS, &worlds[_i], fail_each_request);

    print_points(&worlds[_i], "requests for host memory that failed behind shelves", points);
    ck_assert_uint_gt(points, 20 / every());
}

/* The number of pieces decides which lists grow. */
TEST(each_request_among_pieces_fails) {
    weir_status clean;
    uint64_t points = 0;

    for (pieces = 1; pieces < 72; pieces++)
        for (int i = 0; i < OF_PIECES; i++) {
            run_once(mapped_world(), &of_pieces[i], &no_fault, &clean);
            points += fail_each_request(mapped_world(), &of_pieces[i], &clean);
        }
    print_points(mapped_world(), "requests for host memory that failed among pieces", points);
    ck_assert_uint_gt(points, 500);
}
#endif

SUITE("faults", CK_FORK_GETENV);
