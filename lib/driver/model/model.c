/* SPDX-License-Identifier: MIT */
/* model.c: the driver table of the device model, its virtual clock, its planned failures, and its reset.
 *
 * Every entry point of the table calls begin(), which counts the call, returns a planned failure, and advances the
 * clock by the call's fixed cost.  Then weir__model_<entry> does the work and charges all other costs.  begin() takes
 * no lock unless weir__model.state differs from the value that the thread has stored, because of a planned failure, a
 * measurement, a reset or a fork.
 *
 * The clock is one counter for all threads, so concurrent calls take as much time as sequential ones.  In a real
 * driver, a lock has this effect on most calls.  A thread adds its time when it reads the clock.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "driver/model/model_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model weir__model = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_key_t thread_key; /* its destructor frees the model's data of an ending thread */
static int prepared;             /* guarded by the lock */
static _Thread_local struct model_thread *own_state;

/* ---- Handles ---- */

static const struct slab_size {
    struct model_slab *slab;
    size_t stride, limit;
} slabs[] = {
    {&weir__model.streams, 128, 1 << 16}, {&weir__model.events, 128, 1 << 18},
    {&weir__model.pools, 1024, 1 << 12},  {&weir__model.graphs, 64, 1 << 14},
    {&weir__model.execs, 64, 1 << 14},    {&weir__model.memories, MODEL_MEMORY_STRIDE, 1 << 17}};

#define SLABS (sizeof slabs / sizeof slabs[0])

/* The slots are on the heap, so that a leak checker finds pointers in them. */
static int slab_make(const struct slab_size *size) {
    size->slab->base = calloc(size->limit, size->stride);
    size->slab->stride = size->stride;
    size->slab->limit = size->limit;
    return size->slab->base ? 0 : -1;
}

void *weir__model_slab_alloc(struct model_slab *slab, uint64_t id) {
    struct model_slot *slot = slab->spare;

    if (slot)
        slab->spare = slot->spare;
    else if (slab->used < slab->limit)
        slot = (struct model_slot *)(slab->base + slab->stride * slab->used++);
    else
        return NULL;
    memset((char *)slot + sizeof *slot, 0, slab->stride - sizeof *slot);
    slot->spare = NULL;
    slot->ordinal = 0;
    atomic_store_explicit(&slot->id, id, memory_order_release);
    return slot;
}

void weir__model_slab_free(struct model_slab *slab, void *slot) {
    struct model_slot *freed = slot;

    atomic_store_explicit(&freed->id, 0, memory_order_release);
    freed->spare = slab->spare;
    slab->spare = freed;
}

void *weir__model_slab_find(const struct model_slab *slab, const void *handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)slab->base;
    struct model_slot *slot;

    if (offset >= slab->stride * slab->limit || (offset & (slab->stride - 1)) != 0)
        return NULL;
    slot = (struct model_slot *)(slab->base + offset);
    return atomic_load_explicit(&slot->id, memory_order_acquire) ? slot : NULL;
}

static void slab_clear(struct model_slab *slab) {
    memset(slab->base, 0, slab->stride * slab->used);
    slab->used = 0;
    slab->spare = NULL;
}

/* ---- Threads ---- */

/* Returns `state` with MODEL_INITIALISED as its only flag.  In this state, driver calls need no special check. */
static uint64_t usual_state(uint64_t state) {
    return (state & ~(uint64_t)(MODEL_GENERATION - 1)) | MODEL_INITIALISED;
}

static void retire_thread(void *pointer) {
    struct model_thread *self = pointer;
    uint64_t state = atomic_load(&weir__model.state);
    int i;

    if (state & MODEL_FORKED)
        return; /* another thread of the parent may have held the lock at fork() */
    weir__model_lock();
    for (i = 0; i < WEIR_ENTRY_COUNT; i++)
        weir__model.retired_calls[i] += atomic_load_explicit(&self->calls[i], memory_order_relaxed);
    for (i = 0; i < MODEL_DEVICES; i++) {
        struct model_stream *own =
            self->state == usual_state(state) ? weir__model_stream_own(self, i) : NULL;

        if (own)
            weir__model_stream_drop(own);
    }
    weir__model_capture_drop_thread(self);
    MODEL_LIST_REMOVE(weir__model.threads, self);
    weir__model_unlock();
    free(self);
    own_state = NULL;
}

/* Makes or resets the calling thread's data.  Returns NULL if there is no host memory. */
static struct model_thread *renew_thread(struct model_thread *self) {
    int is_new = !self;

    if (is_new) {
        self = calloc(1, sizeof *self);
        if (!self)
            return NULL;
        own_state = self;
        pthread_setspecific(thread_key, self);
    }
    self->depth = 0;
    self->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    memset(self->per_thread, 0, sizeof self->per_thread);
    self->state = usual_state(atomic_load_explicit(&weir__model.state, memory_order_relaxed));
    if (!is_new)
        return self;
    weir__model_lock();
    MODEL_LIST_ADD(weir__model.threads, self);
    weir__model_unlock();
    return self;
}

struct model_thread *weir__model_thread(void) {
    return own_state;
}

struct model_thread *weir__model_ensure_thread(void) {
    uint64_t state = atomic_load_explicit(&weir__model.state, memory_order_acquire);

    if (!own_state || own_state->state != usual_state(state))
        return renew_thread(own_state);
    return own_state;
}

/* ---- The clock ---- */

_Thread_local uint64_t weir__model_owed_ns WEIR_FAST_TLS;
_Thread_local struct model_background weir__model_background WEIR_FAST_TLS;

uint64_t weir__model_now_ns(void) {
    return weir__model_now();
}

void weir__model_advance(uint64_t ns) {
    weir__model_charge(ns);
    (void)weir__model_now(); /* adds the time to the shared clock now, not at the next reading */
}

void weir__model_wait_until(uint64_t ns) {
    uint64_t now = weir__model_now();

    if (weir__model_background.on) {
        weir__model_background.ns += now < ns ? ns - now : 0;
        return;
    }
    while (now < ns &&
           !atomic_compare_exchange_weak_explicit(&weir__model.clock_ns, &now, ns,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ---- common steps ---- */

struct call {
    uint64_t start_ns; /* real time; 0 if the model does not measure it */
    CUresult result;
    int is_recorded; /* set if the call must be added to the recorded driver calls */
};

/* Returns a call's result in a child of fork().  As with a real driver, a child can use the idle memory of a pool. */
static CUresult forked_result(enum weir_driver_entry entry) {
    switch (entry) {
    case WEIR_ENTRY_cuMemAllocFromPoolAsync:
        return CUDA_SUCCESS;
    case WEIR_ENTRY_cuMemAlloc:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_NOT_INITIALIZED;
    }
}

/* Counts a call of a driver function.  Returns the planned result if this call must fail, else CUDA_SUCCESS. */
static CUresult count_down(struct model_fault *fault) {
    if (fault->countdown == 0)
        return CUDA_SUCCESS;
    if (fault->countdown > 1) {
        fault->countdown--;
        return CUDA_SUCCESS;
    }
    if (fault->then > 0) {
        fault->countdown = fault->then;
        fault->then = 0;
    } else if (!fault->for_good) {
        fault->countdown = 0;
    }
    return fault->result;
}

static CUresult planned_fault(enum weir_driver_entry entry) {
    CUresult result, any;

    weir__model_lock();
    result = count_down(&weir__model.faults[entry]);
    any = count_down(&weir__model.faults[WEIR_ENTRY_COUNT]);
    if (result == CUDA_SUCCESS)
        result = any;
    if (result != CUDA_SUCCESS) {
        weir__model.faults_injected++;
        weir__model.last_fault = entry;
    }
    return weir__model_unlocked(result);
}

static CUresult begin_unusual(enum weir_driver_entry entry, uint64_t state) {
    CUresult result = CUDA_SUCCESS;

    if (state & MODEL_FORKED)
        return forked_result(entry);
    if (state & MODEL_FAULTS)
        result = planned_fault(entry);
    if (result == CUDA_SUCCESS && !(state & MODEL_INITIALISED) && entry != WEIR_ENTRY_cuInit &&
        entry != WEIR_ENTRY_cuDriverGetVersion && entry != WEIR_ENTRY_cuGetErrorName)
        result = CUDA_ERROR_NOT_INITIALIZED;
    return result;
}

static inline CUresult begin(enum weir_driver_entry entry, struct call *call) {
    uint64_t state = atomic_load_explicit(&weir__model.state, memory_order_acquire);
    struct model_thread *self = own_state;
    CUresult result = CUDA_SUCCESS;

    call->start_ns = state & MODEL_MEASURED ? weir__clock_ns() : 0;
    call->is_recorded = (state & (MODEL_SEQUENCED | MODEL_FORKED)) == MODEL_SEQUENCED;
    if (!self || self->state != state) {
        if (!(state & MODEL_FORKED) && (!self || self->state != usual_state(state)))
            self = renew_thread(self);
        if (!self)
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = begin_unusual(entry, state);
    }
    atomic_store_explicit(&self->calls[entry],
                          atomic_load_explicit(&self->calls[entry], memory_order_relaxed) + 1,
                          memory_order_relaxed);
    weir__model_charge(weir__model.profile.call_ns[entry]);
    return result;
}

/* How long this thread has waited for a processor, and when it last read the cost of driver calls. */
static _Thread_local struct weir_waits own_waits;
static _Thread_local uint64_t own_charged_ns;

static inline CUresult finish(const struct call *call) {
    if (call->start_ns) {
        uint64_t took = weir__clock_ns() - call->start_ns;

        atomic_fetch_add_explicit(&weir__model.host_ns,
                                  took - weir__thread_waits_in(&own_waits, took) +
                                      weir__model.measure_ns,
                                  memory_order_relaxed);
    }
    return call->result;
}

/* Returns the kind of an argument.  Addresses and handles differ between runs, so their kind is MODEL_OTHER. */
#define KIND(x)                                                                                    \
    _Generic((x),                                                                                  \
        int: MODEL_NUMBER,                                                                         \
        unsigned char: MODEL_NUMBER,                                                               \
        unsigned int: MODEL_NUMBER,                                                                \
        unsigned long: MODEL_NUMBER,                                                               \
        CUstream: MODEL_STREAM,                                                                    \
        CUevent: MODEL_EVENT,                                                                      \
        CUmemoryPool: MODEL_POOL,                                                                  \
        const CUmemPoolProps *: MODEL_PROPERTIES,                                                  \
        default: MODEL_OTHER)
#define ARGUMENT(x)                                                                                \
    { KIND(x), (uintptr_t)(x) }
/* Expands to the eleven arguments after `first`. */
#define ARGUMENTS_12(first, a, b, c, d, e, f, g, h, i, j, k, ...)                                  \
    ARGUMENT(a), ARGUMENT(b), ARGUMENT(c), ARGUMENT(d), ARGUMENT(e), ARGUMENT(f), ARGUMENT(g),     \
        ARGUMENT(h), ARGUMENT(i), ARGUMENT(j), ARGUMENT(k)
#define ARGUMENTS(...)                                                                             \
    ARGUMENTS_12(NULL, ##__VA_ARGS__, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
                 NULL, NULL)

/* Returns 1 if the group's calls need virtual memory management, but the simulated device has none; else 0. */
static inline int lacks_group(unsigned group) {
    return group & (WEIR_CAP_VIRTUAL | WEIR_CAP_IPC) && !weir__model.profile.virtual_memory;
}

#define WEIR_ENTRY(group, name, symbol, version, params, args)                                     \
    static CUresult entry_##name params {                                                          \
        struct call call;                                                                          \
        call.result = begin(WEIR_ENTRY_##name, &call);                                             \
        if (call.result == CUDA_SUCCESS)                                                           \
            call.result = lacks_group(WEIR_CAP_##group) ? CUDA_ERROR_NOT_SUPPORTED                 \
                                                        : weir__model_##name args;                 \
        if (call.is_recorded)                                                                      \
            weir__model_sequence_add(                                                              \
                WEIR_ENTRY_##name, (const struct model_argument[]){ARGUMENTS args}, call.result);  \
        return finish(&call);                                                                      \
    }
WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY

/* Defines a driver call that programs make but weir does not.  It counts, costs and fails as a similar call, `like`. */
#define WEIR_PROGRAM(name, like, symbol, version, params, args)                                    \
    CUresult weir__program_##name params {                                                         \
        struct call call;                                                                          \
        call.result = begin(WEIR_ENTRY_##like, &call);                                             \
        if (call.result == CUDA_SUCCESS)                                                           \
            call.result = weir__model_##name args;                                                 \
        return finish(&call);                                                                      \
    }
WEIR_PROGRAM_ENTRIES(WEIR_PROGRAM)
#undef WEIR_PROGRAM

/* Returns the overhead of measuring one driver call, in nanoseconds.  No other measurement may run. */
static uint64_t measurement_overhead(void) {
    enum { ROUNDS = 8, CALLS = 500 };
    uint64_t least = UINT64_MAX;
    int round, i;

    weir__model.measure_ns = 0;

    for (round = 0; round < ROUNDS; round++) {
        uint64_t start = weir__clock_ns(), unseen;

        atomic_store(&weir__model.host_ns, 0);
        for (i = 0; i < CALLS; i++) {
            struct call call = {.start_ns = weir__clock_ns()};

            finish(&call);
        }
        unseen = weir__clock_ns() - start;
        unseen -= atomic_load(&weir__model.host_ns);
        if (unseen / CALLS < least)
            least = unseen / CALLS;
    }
    atomic_store(&weir__model.host_ns, 0);
    return least;
}

static void charge(struct weir_driver_charge *out) {
    uint64_t now = weir__clock_ns();

    /* Discards the time that this thread has waited for a processor until now. */
    (void)weir__thread_waits_in(&own_waits, now - own_charged_ns);
    own_charged_ns = now;
    if (!(atomic_load(&weir__model.state) & MODEL_MEASURED)) {
        weir__model_lock();
        if (!(atomic_load(&weir__model.state) & MODEL_MEASURED)) {
            weir__model.measure_ns = measurement_overhead();
            atomic_fetch_or(&weir__model.state, MODEL_MEASURED);
        }
        weir__model_unlock();
    }
    out->driver_ns = weir__model_now();
    out->host_ns = atomic_load_explicit(&weir__model.host_ns, memory_order_relaxed);
}

static uint64_t set_background(int begins) {
    struct model_background *a = &weir__model_background;
    uint64_t took, real, inside;

    /* Adds the cost of this thread's last driver calls to a->ns if a->on is set, else to the clock. */
    (void)weir__model_now();
    took = a->ns;
    if (a->start_ns && !begins) {
        real = weir__clock_ns() - a->start_ns;
        inside = atomic_load_explicit(&weir__model.host_ns, memory_order_relaxed) - a->host_ns;
        if (real > inside)
            atomic_fetch_add_explicit(&weir__model.host_ns, real - inside, memory_order_relaxed);
    }
    *a = (struct model_background){.on = begins};
    if (begins && (atomic_load(&weir__model.state) & MODEL_MEASURED)) {
        a->start_ns = weir__clock_ns();
        a->host_ns = atomic_load_explicit(&weir__model.host_ns, memory_order_relaxed);
    }
    return took;
}

/* ---- Faults and counts ---- */

static void update_fault_bit(void) {
    int i, any = 0;

    for (i = 0; i <= WEIR_ENTRY_COUNT; i++)
        any |= weir__model.faults[i].countdown > 0;
    if (any)
        atomic_fetch_or(&weir__model.state, MODEL_FAULTS);
    else
        atomic_fetch_and(&weir__model.state, ~(uint64_t)MODEL_FAULTS);
}

void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good) {
    weir__model_lock();
    weir__model.faults[entry] = (struct model_fault){k, 0, result, for_good};
    update_fault_bit();
    weir__model_unlock();
}

void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good) {
    weir__model_lock();
    weir__model.faults[WEIR_ENTRY_COUNT] = (struct model_fault){k, then, result, for_good};
    update_fault_bit();
    weir__model_unlock();
}

uint64_t weir__model_faults_injected(enum weir_driver_entry *last) {
    uint64_t met;

    weir__model_lock();
    met = weir__model.faults_injected;
    if (last && met > 0)
        *last = weir__model.last_fault;
    weir__model_unlock();
    return met;
}

void weir__model_faults_clear(void) {
    weir__model_lock();
    memset(weir__model.faults, 0, sizeof weir__model.faults);
    weir__model.faults_injected = 0;
    update_fault_bit();
    weir__model_unlock();
}

uint64_t weir__model_calls(enum weir_driver_entry entry) {
    const struct model_thread *thread;
    uint64_t calls;

    weir__model_lock();
    calls = weir__model.retired_calls[entry];
    for (thread = weir__model.threads; thread; thread = thread->next)
        calls += atomic_load_explicit(&thread->calls[entry], memory_order_relaxed);
    weir__model_unlock();
    return calls;
}

/* ---- The table ---- */

/* clang-format off */
static const struct weir_driver newest = {
    .name = "model",
    .ticks = weir__model_now_ns,
    .sleep_ns = weir__model_advance,
    .charge = charge,
    .set_background = set_background,
    .is_shared = weir__model_shared_is,
#define WEIR_ENTRY(group, name, symbol, version, params, args) .name = entry_##name,
    WEIR_DRIVER_ENTRIES(WEIR_ENTRY)
#undef WEIR_ENTRY
};
/* clang-format on */

static struct weir_driver table;

/* Makes the driver table, without driver calls that are newer than the simulated version. */
static void make_table(void) {
    table = newest;
    table.version = (int)weir__model.profile.driver_version;
    weir__driver_set_capabilities(&table);
}

/* ---- creation and reset ---- */

static void mark_child(void) {
    atomic_fetch_or(&weir__model.state, MODEL_FORKED);
}

/* Allocates slots and registers handlers, once per process.  Returns 0 on success, -1 with the reason in *failure. */
static int prepare_process(struct weir_driver_failure *failure) {
    if (prepared)
        return 0;
    for (size_t i = 0; i < SLABS; i++)
        if (!slabs[i].slab->base && slab_make(&slabs[i]) != 0) {
            snprintf(failure->text, sizeof failure->text,
                     "the device model needs 54 MiB of address space (a limit, `ulimit -v`?)");
            return -1;
        }
    if (pthread_key_create(&thread_key, retire_thread) != 0 ||
        pthread_atfork(NULL, NULL, mark_child) != 0) {
        snprintf(failure->text, sizeof failure->text, "out of memory");
        return -1;
    }
    prepared = 1;
    return 0;
}

/* Returns 1 if an environment variable of the model is set to "", with the reason in *failure; else 0. */
static int is_any_empty(struct weir_driver_failure *failure) {
    static const struct {
        const char *name, *expected;
    } variables[] = {
        {"WEIR_MODEL_PROFILE", "the name of a file; without it the profile is the built-in one"},
        {"WEIR_MODEL_DEVICES", "a number from 1 to 16"},
        {"WEIR_MODEL_SHARED", "the name of a file"}};

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i].name);

        if (!value || *value)
            continue;
        snprintf(failure->text, sizeof failure->text, "%s '': it is empty; expected %s",
                 variables[i].name, variables[i].expected);
        return 1;
    }
    return 0;
}

static int read_device_count(int *count, struct weir_driver_failure *failure) {
    const char *text = getenv("WEIR_MODEL_DEVICES");
    char *end;
    long value;

    if (!text)
        return 0;
    value = strtol(text, &end, 10);
    if (*end || value < 1 || value > MODEL_DEVICES) {
        snprintf(failure->text, sizeof failure->text,
                 "WEIR_MODEL_DEVICES: \"%.60s\" is not a number from 1 to %d", text, MODEL_DEVICES);
        return -1;
    }
    *count = (int)value;
    return 0;
}

/* Reads the profile and the number of devices.  `setup` overrides the environment.  Returns 0 on success, else -1. */
static int read_setup(const struct weir_model_setup *setup, struct model_profile *profile,
                      int *devices, struct weir_driver_failure *failure) {
    const char *path = setup->profile ? setup->profile : getenv("WEIR_MODEL_PROFILE");

    if (is_any_empty(failure) || weir__model_profile_load(profile, path, failure) != 0)
        return -1;
    *devices = (int)profile->devices;
    if (!setup->devices)
        return read_device_count(devices, failure);
    if (setup->devices < 1 || setup->devices > MODEL_DEVICES) {
        snprintf(failure->text, sizeof failure->text, "%d devices: 1 to %d can be modelled",
                 setup->devices, MODEL_DEVICES);
        return -1;
    }
    *devices = setup->devices;
    return 0;
}

/* Destroys all objects of the model: blocks and pools before streams, because pools contain ids of streams. */
static void drop_everything(void) {
    struct model_thread *thread;
    int i;

    weir__model_direct_drop();
    weir__model_pools_drop();
    weir__model_virtual_drop();
    for (i = 0; i < MODEL_DEVICES; i++) {
        weir__model_host_drop(&weir__model.devices[i]);
        weir__model_streams_drop(&weir__model.devices[i].context);
    }
    weir__model_graphs_drop();
    weir__model_oracle_reset();
    for (size_t s = 0; s < SLABS; s++)
        slab_clear(slabs[s].slab);
    memset(weir__model.devices, 0, sizeof weir__model.devices);
    memset(weir__model.faults, 0, sizeof weir__model.faults);
    weir__model.faults_injected = 0;
    memset(weir__model.retired_calls, 0, sizeof weir__model.retired_calls);
    for (thread = weir__model.threads; thread; thread = thread->next)
        for (i = 0; i < WEIR_ENTRY_COUNT; i++)
            atomic_store_explicit(&thread->calls[i], 0, memory_order_relaxed);
    weir__model.blocks = NULL;
    weir__model.pools_grew = 0;
    weir__model.handles_made = 0;
}

static void make_devices(const struct weir_model_setup *setup) {
    const struct model_profile *profile = &weir__model.profile;
    int i;

    for (i = 0; i < weir__model.device_count; i++) {
        struct model_device *device = &weir__model.devices[i];

        device->context.device = i;
        device->capacity = setup->capacity ? setup->capacity : profile->capacity;
        device->context_bytes = setup->capacity ? 0 : profile->context_bytes;
    }
    weir__model.next_stream_id = profile->first_stream_id;
    weir__model.collect_at_id = 0;
    weir__model.next_object_id = 1;
}

static int make_model(const struct weir_model_setup *setup, struct weir_driver_failure *failure) {
    static struct model_profile profile;
    uint64_t state = atomic_load(&weir__model.state);
    int devices = 0;

    if (read_setup(setup, &profile, &devices, failure) != 0 || prepare_process(failure) != 0)
        return -1;
    if (weir__model_shared_join() != 0) {
        snprintf(failure->text, sizeof failure->text, "WEIR_MODEL_SHARED: %.120s: %s",
                 getenv("WEIR_MODEL_SHARED"),
                 errno == EEXIST ? "the file has something else in it" : strerror(errno));
        return -1;
    }
    drop_everything();
    weir__model.profile = profile;
    weir__model.device_count = devices;
    make_table();
    make_devices(setup);
    atomic_store(&weir__model.clock_ns, 0);
    weir__model_owed_ns = 0;
    weir__model_background = (struct model_background){.on = 0};
    atomic_store(&weir__model.host_ns, 0);
    state = (state & (MODEL_INITIALISED | ~(uint64_t)(MODEL_GENERATION - 1))) + MODEL_GENERATION;
    atomic_store(&weir__model.state, state);
    return 0;
}

int weir__model_reset(const struct weir_model_setup *setup) {
    static const struct weir_model_setup nothing;
    struct weir_driver_failure ignored, *failure;
    int result;

    if (!setup)
        setup = &nothing;
    failure = setup->failure ? setup->failure : &ignored;
    if (atomic_load(&weir__model.state) & MODEL_FORKED)
        weir__model.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    weir__model_lock();
    result = make_model(setup, failure);
    weir__model_unlock();
    return result;
}

const struct weir_driver *weir__driver_model(struct weir_driver_failure *failure) {
    static const struct weir_model_setup nothing;
    static int made;

    weir__model_lock();
    if (!made && make_model(&nothing, failure) == 0)
        made = 1;
    weir__model_unlock();
    return made ? &table : NULL;
}
