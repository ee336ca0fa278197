/* SPDX-License-Identifier: MIT */
/* preload_pools.c: keeps the records of the program's memory pools, and creates the allocators for the pools' memory.
 *
 * weir creates a pool's allocator at the first request from the pool.  After the pool's end, the allocator stays until
 * its last block is freed.  Then the allocator frees its memory, and may serve another pool of the device.
 *
 * Locks: `lock` guards additions to the table, the creation of allocators, and changes of pools.  A thread that holds
 * `lock` calls functions of the driver and of weir.
 *
 * The code in this file must not depend on which driver function the program has called. */
#include "adapters/preload/preload.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/thread.h"
#include "config/settings.h"

enum { BUCKETS = 64, BUCKET_BITS = 6 };

#define UNIT ((size_t)32 << 20) /* the driver's pools grow by multiples of 32 MiB */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct weir_pool *) pools[BUCKETS];
/* The current pool of each device, or NULL if weir must query the driver for this pool. */
static _Atomic(struct weir_pool *) current[WEIR_MOST_DEVICES];
static _Atomic(struct weir_served *) plain[WEIR_MOST_DEVICES];
static _Atomic int plain_state[WEIR_MOST_DEVICES]; /* enum weir_pool_state of cuMemAlloc */
static atomic_int any_refused, any_allocator_tried;

_Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
atomic_uint weir__served_count;

/* ---- pools --------------------------------------------------------------------------------------- */

static _Atomic(struct weir_pool *) *bucket_of(CUmemoryPool handle) {
    uint64_t hash = (uintptr_t)handle * UINT64_C(0x9E3779B97F4A7C15);

    return &pools[hash >> (64 - BUCKET_BITS)];
}

struct weir_pool *weir__pool_of(CUmemoryPool handle) {
    struct weir_pool *p = atomic_load_explicit(bucket_of(handle), memory_order_acquire);

    while (p && atomic_load_explicit(&p->handle, memory_order_acquire) != handle)
        p = p->next;
    return handle ? p : NULL;
}

/* ---- destroyed pools ----------------------------------------------------------------------------- */

enum { MOST_ENDED = 256 };

/* The handles of destroyed pools, or NULL where the driver has reused the handle. */
static _Atomic(CUmemoryPool) ended[MOST_ENDED];
static atomic_uint ended_count; /* the number of entries ever used */

int weir__pool_has_ended(CUmemoryPool handle) {
    unsigned count = atomic_load_explicit(&ended_count, memory_order_acquire);

    for (unsigned i = 0; handle && i < count; i++)
        if (atomic_load_explicit(&ended[i], memory_order_relaxed) == handle)
            return 1;
    return 0;
}

/* Adds the handle of a destroyed pool, in place of an older handle if the table is full.  The caller holds `lock`. */
static void add_ended_handle(CUmemoryPool handle) {
    static unsigned next;
    unsigned count = atomic_load_explicit(&ended_count, memory_order_relaxed), at = 0;

    while (at < count && atomic_load_explicit(&ended[at], memory_order_relaxed))
        at++;
    if (at == MOST_ENDED)
        at = next++ % MOST_ENDED;
    atomic_store_explicit(&ended[at], handle, memory_order_relaxed);
    if (at == count)
        atomic_store_explicit(&ended_count, count + 1, memory_order_release);
}

/* Removes from `ended` a handle that the driver has reused for a new pool.  The caller holds `lock`. */
static void remove_ended_handle(CUmemoryPool handle) {
    unsigned count = atomic_load_explicit(&ended_count, memory_order_relaxed);

    for (unsigned i = 0; i < count; i++)
        if (atomic_load_explicit(&ended[i], memory_order_relaxed) == handle)
            atomic_store_explicit(&ended[i], NULL, memory_order_relaxed);
}

/* ---- records of pools --------------------------------------------------------------------------- */

/* Returns an unused or a new record in this bucket, or NULL.  The caller holds `lock`. */
static struct weir_pool *find_free_record(_Atomic(struct weir_pool *) *bucket) {
    struct weir_pool *first = atomic_load_explicit(bucket, memory_order_relaxed), *p = first;

    while (p && atomic_load_explicit(&p->handle, memory_order_relaxed))
        p = p->next;
    if (p)
        return p;
    p = calloc(1, sizeof *p);
    if (p) {
        p->next = first;
        atomic_store_explicit(bucket, p, memory_order_release);
    }
    return p;
}

struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_fallback why) {
    int state = why == WEIR_FALLBACK_NOT ? WEIR_POOL_OPEN : WEIR_POOL_BY_DRIVER;
    struct weir_pool *p = weir__pool_of(handle);

    if (p)
        return p;
    pthread_mutex_lock(&lock);
    remove_ended_handle(handle);
    p = weir__pool_of(handle);
    if (!p && (p = find_free_record(bucket_of(handle)))) {
        p->device = device;
        p->kind = kind;
        p->forbids_opportunistic = 0;
        atomic_fetch_add_explicit(&p->generation, 1, memory_order_relaxed);
        atomic_store_explicit(&p->state, state, memory_order_relaxed);
        atomic_store_explicit(&p->fallback, (int)why, memory_order_relaxed);
        atomic_store_explicit(&p->has_fallen_back, 0, memory_order_relaxed);
        atomic_store_explicit(&p->served, NULL, memory_order_relaxed);
        for (int i = 0; i < WEIR_MOST_DEVICES; i++)
            atomic_store_explicit(&p->access[i], 0, memory_order_relaxed);
        atomic_store_explicit(&p->handle, handle, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return p;
}

void weir__pool_set_current(int device, struct weir_pool *p) {
    if (device >= 0 && device < WEIR_MOST_DEVICES)
        atomic_store_explicit(&current[device], p, memory_order_release);
}

/* Queries the driver for the device's current pool.  A pool without a record is the device's default pool. */
static __attribute__((noinline)) struct weir_pool *query_current_pool(int device) {
    CUmemoryPool handle = NULL;
    struct weir_pool *p;

    if (REAL(cuDeviceGetMemPool)(&handle, device) != CUDA_SUCCESS || !handle)
        return NULL;
    p = weir__pool_add(handle, device, (struct weir_pool_kind){0}, WEIR_FALLBACK_NOT);
    weir__pool_set_current(device, p);
    return p;
}

struct weir_pool *weir__pool_current(int device) {
    struct weir_pool *p;

    if (device < 0 || device >= WEIR_MOST_DEVICES)
        return NULL;
    p = atomic_load_explicit(&current[device], memory_order_acquire);
    return p ? p : query_current_pool(device);
}

/* ---- allocators ---------------------------------------------------------------------------------- */

static int is_first_of_device(int device) {
    for (unsigned i = 0; i < weir__served_known(); i++)
        if (weir__served_at(i)->device == device &&
            atomic_load_explicit(&weir__served_at(i)->state, memory_order_relaxed) !=
                WEIR_SERVED_LOST)
            return 0;
    return 1;
}

/* Reads weir's options from environment variables.  Reports an invalid value only once. */
static weir_status read_served_environment(weir_options *options) {
    static int is_wrong; /* guarded by `lock` */
    char message[320];
    weir_status status = WEIR_E_PARSE;

    weir_options_init(options);
    if (!is_wrong)
        status = weir__drop_in_options(options, NULL, message, sizeof message);
    if (status != WEIR_OK && !is_wrong)
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "%s", message);
    is_wrong = status != WEIR_OK;
    if (status == WEIR_OK && !options->oom_report)
        options->oom_report = "stderr";
    return status;
}

static int may_exceed(const weir_amount *amount, int device, size_t most) {
    size_t total = SIZE_MAX;

    if (amount->kind == WEIR_AMOUNT_DEFAULT || amount->kind == WEIR_AMOUNT_MAX)
        return 0; /* these two amounts are never larger than the limit */
    if (amount->kind == WEIR_AMOUNT_BYTES)
        return amount->value > most;
    if (REAL(cuDeviceTotalMem_v2)(&total, device) != CUDA_SUCCESS)
        return 1;
    return (double)amount->value / 1e6 * (double)total > (double)most;
}

/* Limits an allocator to its pool's maximum size, rounded up as in driver 580.  The user's limit has priority. */
static void apply_pool_limit(weir_options *options, int device, size_t most) {
    size_t whole =
        most > SIZE_MAX - UNIT ? SIZE_MAX / UNIT * UNIT : (most + UNIT - 1) / UNIT * UNIT;
    weir_amount bytes = {.value = whole, .kind = WEIR_AMOUNT_BYTES};

    if (most == 0 || options->limit.kind != WEIR_AMOUNT_DEFAULT)
        return;
    options->limit = bytes;
    if (may_exceed(&options->prealloc, device, whole)) {
        options->prealloc = bytes;
        weir__log(WEIR_LOG_WARNING, WEIR_LOG_WARNING,
                  "the program wants no more than %zu MiB in its pool on cuda:%d, and that is "
                  "preallocated: set a limit to have more",
                  whole >> 20, device);
    }
    if (may_exceed(&options->prealloc_min, device, whole))
        options->prealloc_min = bytes;
}

/* Returns 1 if the settings are why weir could not create an allocator: never after a driver error or with a limit that
 * is a share of free memory, and for a lack of pools or devices only if the settings need peers or engine mapped. */
static int is_caused_by_settings(weir_status status, const weir_options *options) {
    if (weir_last_driver_result() != CUDA_SUCCESS)
        return 0;
    switch (status) {
    case WEIR_E_NO_MEMORY:
    case WEIR_E_INVALID:
        return 1;
    case WEIR_E_LIMIT:
        return options->limit.kind != WEIR_AMOUNT_OF_FREE;
    case WEIR_E_NOT_SUPPORTED:
    case WEIR_E_NO_DEVICE:
        return options->peers || options->engine == WEIR_ENGINE_MAPPED;
    default:
        return 0;
    }
}

/* Reads the allocator's options.  Only the first allocator of a device preallocates memory and writes a profile. */
static weir_status read_served_options(weir_options *options, struct weir_served *s) {
    weir_status status = read_served_environment(options);

    if (status != WEIR_OK)
        return status;
    snprintf(s->device_text, sizeof s->device_text, "cuda:%d", s->device);
    options->device = s->device_text;
    apply_pool_limit(options, s->device, s->kind.max_bytes);
    if (!is_first_of_device(s->device)) {
        options->prealloc = (weir_amount){.value = 0, .kind = WEIR_AMOUNT_BYTES};
        options->prealloc_min = options->prealloc;
        options->profile = NULL;
    }
    s->has_profile = options->profile != NULL;
    return WEIR_OK;
}

/* Returns 1 if the allocator has live blocks.  Makes no driver call, because other threads may wait for `lock`. */
static int has_served_blocks(struct weir_served *s) {
    return s->needs_sums ? atomic_load_explicit(&s->used, memory_order_relaxed) > 0
                         : weir__drop_in_has_blocks(s->allocator);
}

/* Returns the index of an unused entry, or of an allocator that was lost in a device reset, or else WEIR_MOST_SERVED.
 * weir does not free a lost allocator, since a thread may still use it. */
static unsigned find_served_entry(void) {
    unsigned known = weir__served_known(), found = WEIR_MOST_SERVED;

    if (known < WEIR_MOST_SERVED)
        return known;
    for (unsigned i = known; i-- > 0;) {
        struct weir_served *s = weir__served_at(i);

        if (atomic_load_explicit(&s->state, memory_order_acquire) != WEIR_SERVED_LOST)
            continue;
        found = i;
        if (!atomic_load_explicit(&s->is_stuck, memory_order_relaxed) && !has_served_blocks(s))
            break;
    }
    return found;
}

/* Creates an allocator in the table.  On failure, returns NULL and the reason in *state.  The caller holds `lock`. */
static struct weir_served *create_served(int device, struct weir_pool_kind kind, int *state) {
    unsigned known = weir__served_known(), place = find_served_entry();
    struct weir_served *s = place < WEIR_MOST_SERVED ? calloc(1, sizeof *s) : NULL;
    weir_options options;
    weir_status status;
    int logs_warnings;

    *state = WEIR_POOL_BY_DRIVER;
    if (!s)
        return NULL;
    s->device = device;
    s->kind = kind;
    if (read_served_options(&options, s) != WEIR_OK)
        goto fail;
    /* The first allocator of a device logs warnings, but only at its creation. */
    logs_warnings = options.log == WEIR_LOG_DEFAULT && is_first_of_device(device);
    if (logs_warnings)
        options.log = WEIR_LOG_WARNING;
    status = weir__drop_in_create(&options, kind.decompresses, &s->allocator);
    if (is_caused_by_settings(status, &options))
        *state = WEIR_POOL_REFUSED;
    if (status != WEIR_OK)
        goto fail;
    weir__drop_in_begin(s->allocator, weir__stream_is_tracked);
    if (logs_warnings)
        weir__drop_in_stop_logs(s->allocator);
    weir__show_engine(s->allocator, s->engine, sizeof s->engine);
    /* Gets the context's handle.  The call also adds a second reference; s->allocator holds the first reference. */
    if (REAL(cuDevicePrimaryCtxRetain)(&s->context, device) != CUDA_SUCCESS)
        s->context = NULL;
    s->needs_records = !weir__drop_in_knows_blocks(s->allocator);
    s->needs_sums = !weir__drop_in_knows_peak(s->allocator);
    atomic_store_explicit(&weir__served[place], s, memory_order_release);
    if (place == known)
        atomic_store_explicit(&weir__served_count, known + 1, memory_order_release);
    /* Another thread may have called weir__streams_query_all() before this allocator was in the table. */
    atomic_thread_fence(memory_order_seq_cst);
    if (weir__misses_captures())
        weir__drop_in_query_all(s->allocator);
    if (known == 0) {
        weir__show_begin();
        weir__trace_begin();
        weir__report_register();
    }
    return s;

fail:
    free(s);
    return NULL;
}

uint64_t weir__served_peak(struct weir_served *s) {
    return s->needs_sums ? atomic_load_explicit(&s->used_peak, memory_order_relaxed)
                         : weir__drop_in_peak(s->allocator, 0);
}

void weir__served_restart_peak(struct weir_served *s) {
    if (s->needs_sums)
        atomic_store_explicit(&s->used_peak, atomic_load_explicit(&s->used, memory_order_relaxed),
                              memory_order_relaxed);
    else
        (void)weir__drop_in_peak(s->allocator, 1);
}

uint64_t weir__served_reserve_peak(const struct weir_served *s, const weir_statistics *figures) {
    uint64_t from = atomic_load_explicit(&s->restart_event, memory_order_relaxed);
    uint64_t most = atomic_load_explicit(&s->restart_reserved, memory_order_relaxed);
    weir_event events[16];
    size_t count = 1;

    if (from == 0)
        return figures->reserved_peak;
    for (uint64_t after = from - 1; count > 0; after = events[count - 1].sequence) {
        if (weir_events(s->allocator, after, events, sizeof events[0], 16, &count) != WEIR_OK ||
            count == 0)
            break;
        for (size_t i = 0; i < count; i++)
            most = events[i].reserved_after > most ? events[i].reserved_after : most;
    }
    return figures->reserved > most ? figures->reserved : most;
}

void weir__served_restart_reserve(struct weir_served *s) {
    weir_statistics figures = {.size = sizeof figures};
    uint64_t last = 0;
    weir_event events[16];
    size_t count = 1;

    while (weir_events(s->allocator, last, events, sizeof events[0], 16, &count) == WEIR_OK &&
           count > 0)
        last = events[count - 1].sequence;
    if (weir_stats(s->allocator, &figures) != WEIR_OK)
        return;
    atomic_store_explicit(&s->restart_reserved, figures.reserved, memory_order_relaxed);
    atomic_store_explicit(&s->restart_event, last + 1, memory_order_relaxed);
}

void weir__served_trim(struct weir_served *s, size_t keep) {
    if (weir__drop_in_reserve(s->allocator) > keep)
        weir__drop_in_trim(s->allocator, keep, weir__streams_are_idle(s));
}

/* If unfinished work still uses memory of the allocator, trim_spares() frees this memory later. */
void weir__served_release(struct weir_served *s) {
    weir_statistics figures = {.size = sizeof figures};
    int ending = WEIR_SERVED_ENDING;

    /* If two threads free the last two blocks at once, this fence ensures that at least one sees no live block. */
    atomic_thread_fence(memory_order_seq_cst);
    if (weir_stats(s->allocator, &figures) != WEIR_OK || figures.blocks > 0)
        return;
    weir__served_trim(s, 0);
    atomic_compare_exchange_strong(&s->state, &ending, WEIR_SERVED_SPARE);
}

/* Frees the memory of the device's allocators that no pool uses. */
static void trim_spares(int device) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);
        weir_statistics figures = {.size = sizeof figures};

        if (s->device == device &&
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_SPARE &&
            weir_stats(s->allocator, &figures) == WEIR_OK && figures.reserved > 0)
            weir__served_trim(s, 0);
    }
}

/* Returns an allocator with these properties that no pool uses, or NULL.  The caller holds `lock`. */
static struct weir_served *reuse_spare_allocator(int device, struct weir_pool_kind kind) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);
        int spare = WEIR_SERVED_SPARE;

        /* Frees the memory of an allocator whose last block was freed while its pool was being destroyed. */
        weir__served_freed(s);
        if (s->device != device || s->kind.max_bytes != kind.max_bytes ||
            s->kind.decompresses != kind.decompresses ||
            !atomic_compare_exchange_strong(&s->state, &spare, WEIR_SERVED_LIVE))
            continue;
        weir__drop_in_forbid_opportunistic(s->allocator, 0);
        weir__served_restart_peak(s);
        weir__served_restart_reserve(s);
        return s;
    }
    return NULL;
}

/* ---- reuse across streams ------------------------------------------------------------------------- */

/* Makes the driver allocate the pool's memory from now on, for the reason `why`.  The caller holds `lock`. */
static void leave_pool_to_driver(struct weir_pool *p, enum weir_fallback why) {
    atomic_store_explicit(&p->fallback, (int)why, memory_order_relaxed);
    atomic_store_explicit(&p->state, WEIR_POOL_BY_DRIVER, memory_order_release);
}

void weir__pool_allow_reuse(struct weir_pool *p, int may) {
    struct weir_served *s;
    int state;

    pthread_mutex_lock(&lock);
    s = atomic_load_explicit(&p->served, memory_order_relaxed);
    state = atomic_load_explicit(&p->state, memory_order_relaxed);
    p->forbids_opportunistic = !may;
    if (s) {
        weir__drop_in_forbid_opportunistic(s->allocator, !may);
    } else if (state == WEIR_POOL_BY_DRIVER && may &&
               atomic_load_explicit(&p->fallback, memory_order_relaxed) == WEIR_FALLBACK_REUSE) {
        atomic_store_explicit(&p->fallback, WEIR_FALLBACK_NOT, memory_order_relaxed);
        atomic_store_explicit(&p->state, WEIR_POOL_OPEN, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- access of other devices --------------------------------------------------------------------- */

static int is_other(const struct weir_pool *p, const CUmemAccessDesc *access) {
    return access->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           access->location.id != p->device && access->location.id >= 0 &&
           access->location.id < WEIR_MOST_DEVICES;
}

/* Sets another device's access rights.  WEIR_ACCESS_* have the driver's values.  The caller holds `lock`. */
static weir_status set_peer_access(struct weir_served *s, int device, CUmemAccess_flags flags) {
    uint64_t bit = UINT64_C(1) << device;
    weir_status status = weir_set_access(s->allocator, device, (int)flags);

    if (status == WEIR_OK)
        s->peers = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? s->peers & ~bit : s->peers | bit;
    return status;
}

/* Gives other devices the pool's access rights, and waits for the device before it removes a right.  Returns 1 on
 * success, else 0.  The caller holds `lock`. */
static int apply_pool_access(const struct weir_pool *p, struct weir_served *s) {
    int is_quiet = s->peers == 0;

    for (int device = 0; device < WEIR_MOST_DEVICES; device++) {
        CUmemAccess_flags flags = atomic_load_explicit(&p->access[device], memory_order_relaxed);

        if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && !(s->peers >> device & 1))
            continue;
        if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && !is_quiet)
            is_quiet = weir__drop_in_wait(s->allocator) == CUDA_SUCCESS;
        if ((flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && !is_quiet) ||
            set_peer_access(s, device, flags) != WEIR_OK)
            return 0;
    }
    return 1;
}

/* Returns 1 if a location other than a device, such as the host, gets access, which only the driver allows; else 0. */
static int is_access_of_driver_only(const CUmemAccessDesc *access, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            return 1;
    return 0;
}

/* Gives other devices new access rights, or none if the driver rejects any.  The caller holds `lock`. */
static CUresult change_access(struct weir_pool *p, struct weir_served *s,
                              const CUmemAccessDesc *access, size_t count) {
    for (size_t i = 0; i < count; i++) {
        weir_status status;
        int result;

        if (!is_other(p, &access[i]))
            continue;
        status = set_peer_access(s, access[i].location.id, access[i].flags);
        if (status == WEIR_OK)
            continue;
        result = weir_last_driver_result();
        while (i-- > 0)
            if (is_other(p, &access[i]))
                (void)set_peer_access(
                    s, access[i].location.id,
                    atomic_load_explicit(&p->access[access[i].location.id], memory_order_relaxed));
        return result != CUDA_SUCCESS ? (CUresult)result : CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count) {
    CUresult result = CUDA_SUCCESS;
    struct weir_served *s;

    pthread_mutex_lock(&lock);
    s = atomic_load_explicit(&p->served, memory_order_relaxed);
    if (s)
        result = is_access_of_driver_only(access, count) ? CUDA_ERROR_NOT_SUPPORTED
                                                         : change_access(p, s, access, count);
    else if (is_access_of_driver_only(access, count) &&
             (atomic_load_explicit(&p->state, memory_order_relaxed) == WEIR_POOL_OPEN ||
              atomic_load_explicit(&p->fallback, memory_order_relaxed) == WEIR_FALLBACK_REUSE))
        leave_pool_to_driver(p, WEIR_FALLBACK_ACCESS);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (is_other(p, &access[i]))
            atomic_store_explicit(&p->access[access[i].location.id], access[i].flags,
                                  memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- allocators of pools ------------------------------------------------------------------------- */

/* Logs that the driver allocates memory in place of weir, or that requests fail.  Logs each message only once. */
static void log_not_served(const char *what, int device, int state) {
    static atomic_flag said[2] = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT};
    int is_refused = state == WEIR_POOL_REFUSED;

    if (is_refused)
        atomic_store_explicit(&any_refused, 1, memory_order_relaxed);
    if (!atomic_flag_test_and_set(&said[is_refused]))
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "%s on cuda:%d: %s", what, device,
                  is_refused ? "all requests fail as out of memory, until you change the settings"
                             : "requests are left to the driver");
}

static void log_served_by(const char *what, const struct weir_served *s) {
    weir__run_log("%s of %s is served, by engine %s", what, s->device_text, s->engine);
}

int weir__any_refused(void) {
    return atomic_load_explicit(&any_refused, memory_order_relaxed);
}

int weir__any_allocator_tried(void) {
    return atomic_load_explicit(&any_allocator_tried, memory_order_relaxed);
}

/* A child of fork may never get `lock`, so weir__driver_begin_use() makes weir reject calls in the child. */
static void lock_for_creation(void) {
    atomic_store_explicit(&any_allocator_tried, 1, memory_order_relaxed);
    (void)weir__driver_begin_use();
    pthread_mutex_lock(&lock);
}

static void unlock_after_creation(void) {
    pthread_mutex_unlock(&lock);
    weir__driver_end_use();
}

/* Returns an unused or a new allocator, or NULL and the reason in *state.  The caller holds `lock`. */
static struct weir_served *find_served(struct weir_pool *p, int *state) {
    struct weir_served *s = reuse_spare_allocator(p->device, p->kind);

    if (!s)
        s = create_served(p->device, p->kind, state);
    if (s && !apply_pool_access(p, s)) {
        atomic_store_explicit(&s->state, WEIR_SERVED_SPARE, memory_order_relaxed);
        *state = WEIR_POOL_BY_DRIVER;
        s = NULL;
    }
    if (s)
        atomic_store_explicit(&s->pool, atomic_load_explicit(&p->handle, memory_order_relaxed),
                              memory_order_relaxed);
    return s;
}

struct weir_served *weir__pool_begin(struct weir_pool *p) {
    struct weir_served *s;
    int begun = 0, is_open, state;

    if (weir__driver_forked())
        return NULL;
    lock_for_creation();
    s = atomic_load_explicit(&p->served, memory_order_relaxed);
    is_open = !s && atomic_load_explicit(&p->state, memory_order_relaxed) == WEIR_POOL_OPEN;
    if (is_open && p->forbids_opportunistic) {
        leave_pool_to_driver(p, WEIR_FALLBACK_REUSE);
    } else if (is_open) {
        s = find_served(p, &state);
        begun = 1;
        atomic_store_explicit(&p->served, s, memory_order_release);
        atomic_store_explicit(&p->state, s ? WEIR_POOL_SERVED : state, memory_order_release);
    }
    unlock_after_creation();
    if (begun && s)
        log_served_by("a memory pool", s);
    else if (begun)
        log_not_served("a memory pool", p->device, state);
    return s;
}

struct weir_served *weir__served_plain(int device, int *state) {
    struct weir_served *s;

    *state = WEIR_POOL_BY_DRIVER;
    if (device < 0 || device >= WEIR_MOST_DEVICES || weir__driver_forked())
        return NULL;
    s = atomic_load_explicit(&plain[device], memory_order_acquire);
    if (s)
        return s;
    *state = atomic_load_explicit(&plain_state[device], memory_order_relaxed);
    if (*state != WEIR_POOL_OPEN)
        return NULL;
    lock_for_creation();
    s = atomic_load_explicit(&plain[device], memory_order_relaxed);
    *state = atomic_load_explicit(&plain_state[device], memory_order_relaxed);
    if (!s && *state == WEIR_POOL_OPEN) { /* unreached: another thread has created `s` */
        s = create_served(device, (struct weir_pool_kind){0}, state);
        if (s) {
            s->is_plain = 1;
            atomic_store_explicit(&plain[device], s, memory_order_release);
            log_served_by("plain memory", s);
        } else {
            atomic_store_explicit(&plain_state[device], *state, memory_order_relaxed);
            log_not_served("plain memory", device, *state);
        }
    }
    unlock_after_creation();
    return s;
}

/* The caller holds `lock`. */
static void create_private_stream(struct weir_served *s) {
    CUcontext popped;

    if (!s->context || REAL(cuCtxPushCurrent_v2)(s->context) != CUDA_SUCCESS)
        return;
    if (REAL(cuStreamCreate)(&s->private_stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        s->private_stream = NULL;
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
}

CUstream weir__served_private_stream(struct weir_served *s) {
    CUstream private_stream;

    pthread_mutex_lock(&lock);
    if (!s->private_stream)
        create_private_stream(s);
    private_stream = s->private_stream;
    pthread_mutex_unlock(&lock);
    return private_stream;
}

/* ---- end of contexts ------------------------------------------------------------------------------ */

/* Time limits before a reset of a device, in seconds, since some thread may never release an allocator's lock. */
enum { QUERY_S = 2, RELEASE_S = 10 };

static int is_on_device(const struct weir_served *s, const void *device) {
    return s->device == (int)(intptr_t)device &&
           atomic_load_explicit(&s->state, memory_order_relaxed) != WEIR_SERVED_LOST;
}

static void query_device_figures(void *device) {
    weir_statistics figures = {.size = sizeof figures};

    for (unsigned i = 0; i < weir__served_known(); i++)
        if (is_on_device(weir__served_at(i), device))
            (void)!weir_stats(weir__served_at(i)->allocator, &figures);
}

/* Writes the profiles of the device's allocators and frees their idle memory, before a reset makes frees impossible. */
static void release_device_pools(void *device) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (!is_on_device(s, device))
            continue;
        weir__served_save(s);
        (void)!weir_trim(s->allocator, 0, NULL);
    }
}

/* Runs release_device_pools() with a time limit.  Returns 1 on success, else 0. */
static int release_in_time(int device) {
    /* passes the number by value, since a late thread may read it after this function has returned */
    void *number = (void *)(intptr_t)device;

    return weir__thread_in_time(query_device_figures, number, QUERY_S) &&
           weir__thread_in_time(release_device_pools, number, RELEASE_S);
}

void weir__served_save(struct weir_served *s) {
    if (s->has_profile &&
        atomic_load_explicit(&s->state, memory_order_relaxed) != WEIR_SERVED_LOST &&
        weir_profile_save(s->allocator, NULL) != WEIR_OK)
        weir__run_log("the profile of %s was not written", s->device_text);
}

/* Blocks may outlive the reset, but the reset destroys the streams and events that the allocators need. */
void weir__served_mark_lost(int device) {
    int was_released = release_in_time(device), is_held = weir__show_pause_in_time();

    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (s->device != device)
            continue;
        if (!was_released && is_on_device(s, (void *)(intptr_t)device))
            atomic_store_explicit(&s->is_stuck, 1, memory_order_relaxed);
        atomic_store_explicit(&s->state, WEIR_SERVED_LOST, memory_order_release);
        weir__drop_in_mark_lost(s->allocator);
    }
    if (is_held)
        weir__show_resume();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (struct weir_pool *p = atomic_load_explicit(&pools[i], memory_order_relaxed); p;
             p = p->next)
            if (p->device == device && atomic_load_explicit(&p->served, memory_order_relaxed)) {
                atomic_store_explicit(&p->state, WEIR_POOL_OPEN, memory_order_relaxed);
                atomic_store_explicit(&p->served, NULL, memory_order_release);
            }
    if (device >= 0 && device < WEIR_MOST_DEVICES) {
        atomic_store_explicit(&plain[device], NULL, memory_order_release);
        /* A reset makes the default pool the device's current pool. */
        atomic_store_explicit(&current[device], NULL, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- end of pools -------------------------------------------------------------------------------- */

void weir__pool_end(struct weir_pool *p, unsigned generation) {
    struct weir_served *s = NULL;
    int device = p->device;

    pthread_mutex_lock(&lock);
    if (atomic_load_explicit(&p->generation, memory_order_relaxed) == generation &&
        atomic_load_explicit(&p->handle, memory_order_relaxed)) {
        s = atomic_load_explicit(&p->served, memory_order_relaxed);
        for (int i = 0; i < WEIR_MOST_DEVICES; i++) {
            struct weir_pool *expected = p;

            atomic_compare_exchange_strong(&current[i], &expected, NULL);
        }
        add_ended_handle(atomic_load_explicit(&p->handle, memory_order_relaxed));
        atomic_store_explicit(&p->handle, NULL, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (s)
        trim_spares(device);
    if (s && atomic_compare_exchange_strong(
                 &s->state, &(int){WEIR_SERVED_LIVE},
                 WEIR_SERVED_ENDING)) /* fails if the device was reset before */
        weir__served_release(s);
}
