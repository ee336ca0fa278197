/* SPDX-License-Identifier: MIT */
/* test_asking.c: a process asks others for memory, and is asked.  This test writes the other processes' entries in the
 * registry itself; test_process_peers starts real processes. */
#include "tests/fixtures/deny.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "ipc/registry.h"
#include "ipc/process_peers.h"
#include "ipc/local_peers.h"
#include "base/thread.h"

enum { OTHERS = 10 };

static char name[WEIR_UUID_BYTES];
static struct weir_slot_file other[OTHERS]; /* one for each other process */
static struct weir_process_peers *own;     /* has the first slot */

static uint64_t ms_from_now(uint64_t ms) {
    return weir__registry_now() + ms * MS;
}

static void set_up_asking(void) {
    char path[80];

    make_folder(memory_folder());
    snprintf(path, sizeof path, "%s/device", folder);
    MUST(setenv("WEIR_MODEL_SHARED", path, 1) == 0);
}

static void start_two_models(void) {
    start_model(GIB);
    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = GIB}));
    MUST(weir__process_peers_device(driver, 0, name));
}

static void set_up_device(void) {
    set_up_asking();
    start_two_models();
}

/* ---- an allocator of this process ------------------------------------------------------------ */

static struct weir_local_peer local_peer;
static _Atomic uint64_t has_reserve, gives, was_asked;
static void (*_Atomic in_give)(void);   /* called by free_for_others(), if it is not NULL */
static void (*_Atomic in_resize)(void); /* called once, by keep_weights() */
static void (*_Atomic in_tell)(
    void); /* called once, by report_holding(), after it has read the memory */
static _Atomic uint64_t last_weights;

static _Atomic uint64_t noted;

static void report_holding(void *owner, struct weir_allocator_memory *out) {
    void (*call)(void) = atomic_exchange(&in_tell, NULL);

    (void)owner;
    out->reserved = atomic_load(&has_reserve);
    out->published = &noted;
    out->idle = atomic_load(&last_weights); /* grows with the sum of weights */
    if (call)
        call();
}

static uint64_t free_for_others(void *owner, uint64_t bytes) {
    void (*call)(void) = atomic_load(&in_give);

    (void)owner;
    atomic_fetch_add(&was_asked, bytes);
    atomic_fetch_add(&gives, 1);
    if (call)
        call();
    return bytes;
}

static void keep_weights(void *owner, uint64_t weights) {
    void (*call)(void) = atomic_exchange(&in_resize, NULL);

    (void)owner;
    atomic_store(&last_weights, weights);
    if (call)
        call();
}

/* The members of this process.  `on` is NULL in an unused entry. */
static struct member {
    struct weir_process_peers *on;
    struct weir_claim claim;
} members[8];

static struct member *try_join(const struct weir_driver *on, int device, struct weir_claim claim,
                               char why[96]) {
    static const struct weir_process_peers_calls its_calls = {report_holding, free_for_others,
                                                              keep_weights};
    struct member *m = members;

    while (m->on)
        m++;
    m->claim = claim;
    m->on = weir__process_peers_join(on, device, &its_calls, &m->claim, why, 96);
    return m;
}

static struct member *join_as(uint64_t weight, uint64_t priority) {
    char why[96];
    struct weir_claim claim = {.weight = weight, .priority = priority};
    struct member *m = try_join(driver, 0, claim, why);

    ck_assert_msg(m->on != NULL, "%s", why);
    return m;
}

static struct weir_process_peers *join_registry(const struct weir_driver *on, int device) {
    char why[96];
    struct member *m = try_join(on, device, (struct weir_claim){0}, why);

    ck_assert_msg(m->on != NULL, "%s", why);
    return m->on;
}

static void leave_as(struct member *m) {
    _Atomic uint64_t shown = 0;

    weir__process_peers_leave(m->on, &m->claim, &shown);
    m->on = NULL;
}

static void leave_registry(struct weir_process_peers *n) {
    struct member *m = members;

    while (m->on != n)
        m++;
    leave_as(m);
}

static void has_allocator(void) {
    local_peer = (struct weir_local_peer){.driver = driver, .device = 0};
    weir__local_peers_join(&local_peer);
}

/* ---- entries of the registry ------------------------------------------------------------------ */

static void says(int i, struct weir_registry_entry entry) {
    other[i].checked_ns = 0;
    entry.as_of_ns = weir__registry_now();
    weir__registry_publish(&other[i], &entry);
}

static void publish_idle(int i, uint64_t idle, uint64_t priority) {
    says(i, (struct weir_registry_entry){.reserved = idle, .idle = idle, .priority = priority});
}

static void comes(int i, uint64_t idle, uint64_t priority) {
    ANSWERS(0, weir__registry_open(&other[i], name));
    other[i].namespace = 1; /* so that this process does not check its pid */
    publish_idle(i, idle, priority);
}

/* Returns this process's entry. */
static struct weir_registry_entry own_entry(void) {
    int by = weir__registry_slot(&other[0]) < 0; /* 1 if other[0] has left */
    struct weir_registry_entry e;

    MUST(weir__registry_read(&other[by], 0, &e));
    return e;
}

static uint64_t ask_others(uint64_t bytes, uint64_t ms, struct weir_answers *said) {
    *said = weir__process_peers_request(
        own, (struct weir_memory_request){bytes, weir__registry_now(), ms_from_now(ms)}, NULL);
    return said->freed;
}

CASE("asking", 60, set_up_device, remove_folder);

TEST(devices_without_a_name) {
    struct weir_driver alone = *driver;

    alone.is_shared = NULL; /* a real driver has no such function */
    MUST(weir__process_peers_device(&alone, 0, name));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetUuid, 1, CUDA_ERROR_UNKNOWN, 0);
    MUST(!weir__process_peers_device(driver, 0, name));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetUuid, 1, CUDA_ERROR_UNKNOWN, 0);
    ANSWERS(0, weir__process_peers_read_weights(driver, 0, UINT64_MAX));
    MUST(weir__process_peers_device(driver, 0, name));
}

TEST(nobody_is_there_or_no_time) {
    struct weir_answers said;

    own = join_registry(driver, 0);
    ANSWERS(0, ask_others(MIB, 1, &said));
    MUST_EQ(said.unavailable, UINT64_MAX);
    comes(0, 10 * MIB, 0);
    said = weir__process_peers_request(own, (struct weir_memory_request){.bytes = MIB}, NULL);
    MUST_EQ(said.freed, 0);
    MUST_EQ(said.unavailable, 0);
    MUST_EQ(said.has_timeout, 0);   /* the other one was not asked */
    MUST_EQ(said.is_incomplete, 1); /* but it may have idle memory */
    leave_registry(own);
}

enum { ASKING_MS = 400, SILENCE_MS = 2000, LOOKS = 5 };

/* Sends LOOKS requests to silent processes.  Meanwhile one of them publishes, and one is replaced.  Returns 1, or 0 if
 * a deadline may have passed before any process was asked, or if a silent process could be asked again. */
static int ask_the_silent(struct weir_answers said[LOOKS]) {
    uint64_t began = weir__registry_now();
    struct weir_memory_request ask;
    int in_time = 1;

    for (int i = 0; i < LOOKS; i++) {
        if (i == 3) /* this one publishes again */
            publish_idle(1, 20, 1);
        if (i == 4) { /* this one is replaced in its slot */
            other[2].start++;
            publish_idle(2, 40, 3);
        }
        ask = (struct weir_memory_request){MIB, i < 2 ? began : weir__registry_now(),
                                           ms_from_now(ASKING_MS)};
        said[i] = weir__process_peers_request(own, ask, NULL);
        in_time &= weir__registry_now() < ask.deadline_ns;
    }
    return in_time && weir__registry_now() < began + SILENCE_MS * MS;
}

/* A process that has not answered is left alone for a while, unless it publishes or another process has its slot. */
TEST(the_silent_are_left_alone) {
    static const uint64_t kept[LOOKS] = {0, 0, 70, 50, 30}; /* memory that cannot be asked for */
    struct weir_answers said[LOOKS];

    own = join_registry(driver, 0);
    comes(0, 10, 5);
    comes(1, 20, 1);
    comes(2, 40, 3);
    while (!ask_the_silent(said))
        for (int i = 0; i < 3; i++) { /* new processes, so that no one counts as silent */
            other[i].start++;
            publish_idle(i, (uint64_t)10 << i, i == 0 ? 5 : i == 1 ? 1 : 3);
        }
    for (int i = 0; i < LOOKS; i++) {
        MUST_EQ(said[i].freed, 0);
        MUST_EQ(said[i].unavailable, kept[i]);
    }
    MUST_EQ(said[0].has_answer, 0);
    MUST_EQ(said[0].has_timeout, 1);
    MUST_EQ(said[0].is_incomplete, 1);
    MUST_EQ(said[1].has_timeout, 0); /* continues the first request */
    MUST_EQ(said[1].is_incomplete, 1);
    MUST_EQ(said[2].has_timeout, 0);
    MUST_EQ(said[2].is_incomplete, 0);
    leave_registry(own);
}

/* A request asks at most WEIR_REGISTRY_REQUESTS processes at once, and the rest later. */
TEST(more_than_are_asked_at_once) {
    struct weir_answers said;
    uint64_t sum = 0;

    own = join_registry(driver, 0);
    for (int i = 0; i < OTHERS; i++) {
        comes(i, (uint64_t)i + 1, 0);
        sum += (uint64_t)i + 1;
    }
    ANSWERS(0, ask_others(MIB, 200, &said));
    ANSWERS(0, ask_others(MIB, 200, &said));
    MUST_EQ(said.unavailable, sum);
    leave_registry(own);
}

enum way { ANSWERS_IT, IS_ANOTHER, IS_ANOTHERS_CHILD, IS_GONE, SAYS_WHAT_IT_HAS, WAYS };

static atomic_int has_asked; /* the request is over, so act_as_member() ends */

/* Acts as other[0] in one of the ways once it is asked.  In the way SAYS_WHAT_IT_HAS it publishes before that, too. */
static void *act_as_member(void *way) {
    struct weir_registry_entry question, entry = {.reserved = 10, .idle = 10};
    int how = *(const int *)way;

    do {
        sleep_for_ms(1);
        if (how == SAYS_WHAT_IT_HAS)
            says(0, entry);
        if (atomic_load(&has_asked))
            return NULL;
    } while (!weir__registry_read(&other[0], 0, &question) || question.until_ns == 0);
    if (how == ANSWERS_IT)
        entry.answer[3] = (struct weir_registry_answer){question.sequence, 7};
    if (how == IS_ANOTHER)
        other[0].start++;
    if (how == IS_GONE) {
        weir__registry_leave(&other[0]);
    } else if (how == IS_ANOTHERS_CHILD) {
        pid_t child = fork();

        if (child == 0) {
            says(0, entry);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    } else {
        says(0, entry);
    }
    weir__registry_ring(&other[0]);
    return NULL;
}

/* An answer may come too late on a slow machine, but a fault makes all tries fail. */
enum { TRIES = 50 };

/* A process that has ended, or was replaced in its slot, counts as one that has freed all its memory. */
TEST_EACH(WAYS, an_end_counts_as_an_answer) {
    static const uint64_t given[WAYS] = {7, 10, 10, 10, 0};
    struct weir_answers said = {0};
    pthread_t thread;

    own = join_registry(driver, 0);
    comes(0, 10, 0);
    comes(1, 20, 1); /* this one never answers */
    for (int i = 0; i < TRIES && (said.freed != given[_i] || !said.has_answer); i++) {
        if (i > 0 && weir__registry_slot(&other[0]) < 0) {
            weir__registry_close(&other[0]);
            comes(0, 10, 0);
        }
        for (int k = 0; k < 2; k++) { /* new processes, so that no one counts as silent */
            other[k].start++;
            publish_idle(k, (uint64_t)10 << k, (uint64_t)k);
        }
        atomic_store(&has_asked, 0);
        ANSWERS(0, pthread_create(&thread, NULL, act_as_member, &_i));
        (void)ask_others(MIB, 200, &said);
        atomic_store(&has_asked, 1);
        ANSWERS(0, pthread_join(thread, NULL));
    }
    MUST_EQ(said.freed, given[_i]);
    MUST_EQ(said.has_answer, 1);
    MUST_EQ(own_entry().until_ns, 0);
    leave_registry(own);
}

/* A process that has freed all it could is not asked again, even if that was too little for a context. */
TEST(a_context_asks_for_all_once) {
    static const int way = ANSWERS_IT;
    struct weir_admission admission = {0};
    pthread_t thread;

    own = join_registry(driver, 0);
    comes(0, 10, 0);
    ANSWERS(0, pthread_create(&thread, NULL, act_as_member, (void *)(uintptr_t)&way));
    MUST(weir__allocator_ask_for_context(own, &admission));
    ANSWERS(0, pthread_join(thread, NULL));
    MUST(!weir__allocator_ask_for_context(own, &admission));
    leave_registry(own);
}

/* A preallocation that is a share waits for a process that does not answer, but not without a bound. */
TEST(a_share_waits_for_a_silent_process) {
    weir_options options = options_of(KIND_POOL, "model", 0);
    weir_statistics s = {.size = sizeof s};
    CUdeviceptr most;
    weir_allocator *a;
    void *block;

    options.prealloc = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    OK(weir__allocator_create_later(driver, &options, &a, NULL, 0));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuMemAlloc(&most, 896 * MIB));
    comes(0, 10, 0);
    OK(weir_alloc(a, MIB, NULL, &block));
    OK(weir_stats(a, &s));
    MUST_LE(90000000, s.prealloc_waited_ns);
    MUST_LE(s.prealloc_waited_ns, UINT64_C(5000000000));
    MUST_LE(s.prealloc_kept, 128 * MIB);
    OK(weir_free(a, block, NULL));
    CU(driver->cuMemFree(most));
    OK(weir_allocator_destroy(a));
}

/* A check of settings joins no registry, but takes account of the processes that have joined. */
TEST(a_check_of_settings_joins_no_registry) {
    weir_options options = options_of(KIND_FIXED, "model", 0);
    uint64_t prealloc = 0;

    options.limit = (weir_amount){.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    options.prealloc = bytes_amount(600 * MIB);
    OK(weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    MUST_EQ(prealloc, 600 * MIB);
    comes(0, 0, 0);
    says(0, (struct weir_registry_entry){.weight = 1000000});
    EXPECT(WEIR_E_LIMIT, weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    options.registry = WEIR_SWITCH_OFF;
    OK(weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    options.prealloc = options.limit;
    options.limit = bytes_amount(512 * MIB);
    OK(weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    MUST_EQ(prealloc, 512 * MIB);
    MUST(!weir__registry_read(&other[0], 1, &(struct weir_registry_entry){0}));
    weir__model_fail(WEIR_ENTRY_cuDevicePrimaryCtxRetain, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(WEIR_E_NO_MEMORY, weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    options.device = "model:7";
    EXPECT(WEIR_E_NO_DEVICE, weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
    options.prealloc.kind = 99;
    EXPECT(WEIR_E_INVALID, weir__allocator_check_on(driver, &options, &prealloc, NULL, 0));
}

/* ---- being asked ----------------------------------------------------------------------------- */

static void asks(uint64_t slot, uint64_t start, uint64_t sequence) {
    struct weir_registry_entry entry = {.sequence = sequence, .until_ns = ms_from_now(20000)};

    entry.request[2] = (struct weir_registry_request){slot, start, 5};
    says(0, entry);
    weir__registry_ring(&other[0]);
}

/* A process answers a request once, and none to another slot or to an earlier process of its slot. */
TEST(only_who_is_asked_gives) {
    uint64_t start;

    own = join_registry(driver, 0);
    comes(0, 0, 0);
    has_allocator();
    start = own_entry().start;
    asks(0, start + 1, 16);
    sleep_for_ms(15);
    asks(1, start, 17);
    sleep_for_ms(15);
    MUST_EQ(atomic_load(&gives), 0);
    asks(0, start, 18);
    while (own_entry().answer[0].sequence != 18)
        sleep_for_ms(1);
    MUST_EQ(own_entry().answer[0].bytes, 5);
    weir__registry_ring(&other[0]);
    sleep_for_ms(30);
    MUST_EQ(atomic_load(&gives), 1);
    MUST_EQ(atomic_load(&was_asked), 5);
    leave_registry(own);
    weir__local_peers_leave(&local_peer);
}

static _Atomic uint64_t came_ns;

static void come_meanwhile(void) {
    says(0, (struct weir_registry_entry){.weight = 10});
    atomic_store(&came_ns, weir__registry_now());
}

/* An entry takes account of each weight that was published before the entry's heartbeat. */
TEST(what_is_told_knows_of_who_was_there) {
    struct member *m = members;
    char why[96];

    comes(0, 0, 0);
    m = try_join(driver, 0, (struct weir_claim){.weight = 5, .shares = 1}, why);
    own = m->on;
    MUST(own != NULL);
    atomic_store(&in_resize, come_meanwhile);
    has_reserve = 100;
    has_allocator();
    weir__registry_ring(&other[0]);
    while (atomic_load(&came_ns) == 0)
        sleep_for_ms(1);
    for (struct weir_registry_entry e = {0}; e.as_of_ns < atomic_load(&came_ns);) {
        MUST(weir__registry_read(&other[0], 1, &e));
        if (e.as_of_ns >= atomic_load(&came_ns))
            MUST_EQ(e.idle, 15);
    }
    weir__local_peers_leave(&local_peer);
    leave_as(m);
}

/* Joins with an allocator that has published 20 reserved bytes. */
static void has_told(void) {
    atomic_store(&has_reserve, 20);
    own = join_registry(driver, 0);
    comes(0, 10, 0);
    has_allocator();
    weir__process_peers_publish_reserved(own, &noted, 20);
}

static void grow_while_asking(void) {
    atomic_store(&has_reserve, 50);
    weir__process_peers_publish_reserved(own, &noted, 50);
}

/* The allocator grows after the thread has read its memory and before the thread publishes. */
TEST(growth_during_a_look_is_told) {
    has_told();
    atomic_store(&in_tell, grow_while_asking);
    weir__registry_ring(&other[0]);
    while (atomic_load(&in_tell))
        sleep_for_ms(1);
    sleep_for_ms(20); /* so that the thread has published */
    MUST_EQ(own_entry().reserved, 50);
    weir__local_peers_leave(&local_peer);
    leave_registry(own);
}

/* The thread publishes growth before the allocator notes it. */
TEST(growth_that_was_seen_counts_once) {
    has_told();
    atomic_store(&has_reserve, 50);
    weir__registry_ring(&other[0]);
    while (own_entry().reserved != 50)
        sleep_for_ms(1);
    sleep_for_ms(20);
    weir__process_peers_publish_reserved(own, &noted, 50);
    MUST_EQ(own_entry().reserved, 50);
    weir__local_peers_leave(&local_peer);
    leave_registry(own);
}

/* A request for a context waits one second for a process that has been asked. */
TEST(a_context_waits_for_who_has_not_answered) {
    struct weir_admission admission = {0};
    uint64_t began = weir__registry_now();

    own = join_registry(driver, 0);
    comes(0, 10, 0);
    while (weir__allocator_ask_for_context(own, &admission))
        ;
    MUST_LE(1000 * MS, weir__registry_now() - began);
    admission = (struct weir_admission){0};
    MUST(!weir__allocator_ask_for_context(own, &admission)); /* a silent process is not asked */
    leave_registry(own);
}

/* An impossible weight in another process's entry does not count. */
TEST(weights_are_added_up) {
    own = join_registry(driver, 0);
    comes(0, 0, 0);
    comes(1, 0, 0);
    says(0, (struct weir_registry_entry){.weight = UINT64_MAX});
    says(1, (struct weir_registry_entry){.weight = 5});
    ANSWERS(5, weir__process_peers_weights(own));
    leave_registry(own);
}

/* The claim of an allocator counts from before its creation until it leaves, even if the process stays joined. */
TEST(claims_count_until_they_end) {
    struct member *context = join_as(0, 0), *made = join_as(10, 2), *in_making = join_as(30, 1);

    own = context->on;
    comes(0, 0, 0);
    MUST_EQ(own_entry().weight, 30);
    MUST_EQ(own_entry().priority, 2);
    atomic_store(&has_reserve, 20);
    has_allocator();
    weir__registry_ring(&other[0]);
    while (own_entry().reserved != 20)
        sleep_for_ms(1);
    MUST_EQ(own_entry().weight, 30);
    leave_as(in_making);
    MUST_EQ(own_entry().weight, 10);
    weir__local_peers_leave(&local_peer);
    leave_as(made);
    MUST_EQ(own_entry().weight, 0);
    MUST_EQ(own_entry().priority, 0);
    leave_as(context);
}

/* The allocator and the thread both publish its reserved memory, and the thread may be one step ahead. */
TEST(a_step_is_counted_once_by_the_allocator_and_the_thread) {
    _Atomic uint64_t shown = 0;

    own = join_registry(driver, 0);
    comes(0, 0, 0);
    weir__process_peers_publish_reserved(own, &shown, 100);
    MUST_EQ(own_entry().reserved, 100);
    atomic_store(&has_reserve, 20);
    has_allocator();
    weir__registry_ring(&other[0]);
    while (own_entry().reserved != 20)
        sleep_for_ms(1);
    weir__process_peers_publish_reserved(own, &shown, 30);
    MUST_LE(own_entry().reserved, 30);
    leave_registry(own);
    weir__local_peers_leave(&local_peer);
}

/* ---- joining and leaving --------------------------------------------------------------------- */

TEST(each_device_and_driver_has_one_member) {
    struct weir_driver second = *driver;
    struct weir_process_peers *on_one, *on_second;

    own = join_registry(driver, 0);
    MUST(join_registry(driver, 0) == own);
    on_one = join_registry(driver, 1);
    on_second = join_registry(&second, 0);
    MUST(own != on_one && own != on_second && on_one != on_second);
    comes(0, 0, 0);
    leave_registry(own);
    MUST_EQ(own_entry().pid, (uint64_t)getpid()); /* one allocator is still joined */
    leave_registry(own);
    leave_registry(on_second);
    leave_registry(on_one);
}

/* Keeps weir's thread from starting, so that it holds no lock and publishes nothing. */
static void never_begin(void) {
    for (;;)
        pause();
}

#ifdef CAN_DENY
/* The first failed join gives the reason, no file stays open, and a later join works. */
TEST(what_joining_takes_is_denied) {
    int files;
    char why[96];

    leave_registry(join_registry(driver, 0));
    files = files_open();
    for (uint64_t i = 0; i < 4; i++) {
        refuse_in = i % 2 == 0;
        deny("pthread_create", i % 2, 0, EAGAIN);
        MUST(try_join(driver, 0, (struct weir_claim){0}, why)->on == NULL);
        refuse_in = 0;
        MUST_EQ(deny_none(), i % 2);
        MUST((why[0] != '\0') == (i == 0));
        ANSWERS(files, files_open());
        MUST(weir__registry_view(&other[0], name) != 0);
    }
    leave_registry(join_registry(driver, 0));
}

/* ---- the end of the process ------------------------------------------------------------------ */

static atomic_int is_stuck;

static void get_stuck(void) {
    atomic_store(&is_stuck, 1);
    for (;;)
        pause();
}

static void stick_at_thread(const char *call) {
    if (strcmp(call, "pthread_create") == 0)
        get_stuck();
}

static void stick_at_write(const char *call) {
    if (strcmp(call, "pwrite") == 0)
        get_stuck();
}

static void *join_and_stick(void *unused) {
    meanwhile = stick_at_thread;
    (void)join_registry(driver, 1);
    return unused;
}

static void *note_and_stick(void *unused) {
    static _Atomic uint64_t shown;

    meanwhile = stick_at_write;
    weir__process_peers_publish_reserved(own, &shown, 1);
    return unused;
}

/* Exits while a thread holds a lock for ever: a thread that frees memory (0), joins (1) or publishes (2). */
static __attribute__((noreturn)) void exit_while_locked(int lock) {
    char path[80];
    pthread_t thread;

    snprintf(path, sizeof path, "%s/%d", folder, lock); /* each child has a separate registry */
    MUST(mkdir(path, 0700) == 0 && setenv("WEIR_RUN_FOLDER", path, 1) == 0);
    start_two_models();
    if (lock == 2)
        weir__thread_watch(never_begin);
    own = join_registry(driver, 0);
    comes(0, 0, 0);
    if (lock == 0) {
        atomic_store(&in_give, get_stuck);
        has_allocator();
        asks(0, own_entry().start, 1);
    } else if (pthread_create(&thread, NULL, lock == 1 ? join_and_stick : note_and_stick, NULL)) {
        _exit(1);
    }
    while (!atomic_load(&is_stuck))
        sleep_for_ms(1);
    exit(0);
}

CASE("the end", 60, set_up_asking, remove_folder);

TEST(an_exit_waits_for_no_thread) {
    uint64_t began = weir__registry_now();
    pid_t child[3];
    int state;

    for (int i = 0; i < 3; i++) {
        child[i] = fork();
        if (child[i] == 0)
            exit_while_locked(i);
    }
    for (int i = 0; i < 3; i++) {
        MUST(waitpid(child[i], &state, 0) == child[i]);
        MUST_EQ(state, 0);
    }
    MUST_LE(weir__registry_now() - began, 20000 * MS);
}
#endif

#ifdef CAN_DENY
static atomic_int is_at_bell;

/* Makes weir's thread take 30 ms for its first read of the bell. */
static void linger(const char *call) {
    if (strcmp(call, "pread") != 0)
        return;
    meanwhile = NULL;
    atomic_store(&is_at_bell, 1);
    sleep_for_ms(30);
}

static void linger_meanwhile(void) {
    meanwhile = linger;
}

CASE("asking", 60, set_up_device, remove_folder);

/* The bell that ends the thread rings before the thread sleeps on it. */
TEST(it_leaves_as_the_thread_begins) {
    uint64_t began = weir__registry_now();

    weir__thread_watch(linger_meanwhile);
    own = join_registry(driver, 0);
    while (!atomic_load(&is_at_bell))
        sleep_for_ms(1);
    leave_registry(own);
    MUST_LE(weir__registry_now() - began, 5000 * MS);
}
#endif

CASE("asking", 60, set_up_device, remove_folder);

/* The exit of a child of fork leaves the parent's slot alone. */
TEST(a_child_of_fork_ends) {

    weir__thread_watch(never_begin);
    own = join_registry(driver, 0);
    comes(0, 0, 0);
    if (is_forked_child())
        exit(0);
    MUST_EQ(own_entry().pid, (uint64_t)getpid());
}

SUITE("asking", CK_FORK);
