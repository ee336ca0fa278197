/* SPDX-License-Identifier: MIT */
/* process_peers.c: requests memory from other processes, and answers their requests.
 *
 * A request has two steps.  First the process rings the bell, a futex word in the registry, and all processes publish
 * their present memory (cache hits do not publish it).  Then the process writes into its own entry how many bytes each
 * other process should free, and rings again.  An asked process frees memory, writes its answer into its own entry, and
 * rings.  Only the requesting process waits, in rounds of at most a quarter of the time until its deadline.  A process
 * that has not answered by the end of a round gets no requests for a while.  Requests wait at most ENDING_NS for the
 * memory of an ending process.
 *
 * At exit the driver is unloaded, but the thread that answers requests may call it.  So the thread holds `stepping`
 * while it works, and begins no work after exit has begun.  Exit waits for `stepping` at most a second, since a driver
 * call may never return.  A child of fork() does not have or need this thread.
 *
 * Locks: `joining` guards the list of structs and their creation and removal.  A request holds `asking`, and under it
 * takes `lock` and the lock of the group.  Under `stepping` the thread takes the locks of allocators.  Under `lock`,
 * only the locks of the registry and of the group are taken. */
#include "ipc/process_peers.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/output.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/who.h"
#include "ipc/group_process.h"
#include "ipc/registry.h"
#include "ipc/local_peers.h"

#define MILLISECOND UINT64_C(1000000)
/* The time for which weir requests no memory from a process that has left a request unanswered. */
#define UNRESPONSIVE_NS (2000 * MILLISECOND)
/* How long requests wait at most for the memory of a killed or exiting process. */
#define ENDING_NS (2000 * MILLISECOND)
/* The estimated device memory that a process has besides its reserved bytes, for example for its context. */
#define BESIDE_RESERVE (UINT64_C(1) << 30)
/* In ms.  A request waits for REFRESH_MS for other processes to publish their memory.  The answering thread sleeps for
 * at most LONG_TICK_MS.  If limits are shares of the device, the thread sleeps for at most TICK_MS, since the end of a
 * killed process changes the shares but wakes no thread. */
enum { REFRESH_MS = 20, TICK_MS = 500, LONG_TICK_MS = 10000 };
/* The number of processes that weir__process_peers_describe() names at most. */
enum { MOST_SHOWN = 3 };

/* A process that left a request unanswered.  `start` distinguishes it from a later process of its slot. */
struct unresponsive {
    uint64_t start, as_of_ns, until_ns;
};
/* A process that was killed or is exiting. */
struct ending {
    uint64_t pid, start, since_ns;
};

/* The largest number of sums in refresh(), which repeats a sum if an allocator's memory has changed meanwhile. */
enum { REFRESHES = 8 };

struct weir_process_peers {
    struct weir_process_peers *next; /* guarded by `joining` */
    /* Passed to weir__local_peers_next(), which then returns only the allocators on this device. */
    struct weir_local_peer own;
    struct weir_process_peers_calls calls;
    struct weir_slot_file registry;
    pthread_t thread;
    atomic_int stopped, shares;
    /* Sequence numbers of the last answered requests, so that none is answered twice.  Used by one thread only. */
    uint64_t answered[WEIR_REGISTRY_ANSWERS];
    unsigned answers;

    pthread_mutex_t lock; /* guards all fields from here to `asking` */
    struct weir_registry_entry entry;
    struct weir_claim *claims;
    uint64_t publications; /* calls of weir__process_peers_publish_reserved() */

    pthread_mutex_t asking; /* held while this process requests memory; guards all fields below */
    struct unresponsive unresponsive[WEIR_SLOTS];
    struct ending ending[WEIR_SLOTS];
    uint64_t unavailable[WEIR_SLOTS]; /* by slot: memory that the current request cannot get */
    const struct weir_group *group; /* the group to which the current request is limited, or NULL */
    size_t member_count;
    struct weir_group_member member[WEIR_GROUP_SLOTS];
};

static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
/* The list of this process's structs, one for each device.  `joining` guards `first` and `has_failed`. */
static struct weir_process_peers *first;
static int has_failed;
static pthread_mutex_t stepping = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int exiting; /* set when the process exits; then the thread begins no more work */

/* ---- registries of any device ---------------------------------------------------------------- */

int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]) {
    return (!driver->is_shared || driver->is_shared()) &&
           weir__driver_uuid(driver, device, name) == CUDA_SUCCESS;
}

/* Returns the sum of the weights of all processes in the registry of a device, but at most `most`. */
static uint64_t sum_of_weights(struct weir_slot_file *registry, uint64_t most) {
    struct weir_registry_entry entry;
    uint64_t sum = 0;

    for (int slot = 0; slot < WEIR_SLOTS; slot++)
        if (weir__registry_read(registry, slot, &entry) && entry.weight < most - sum)
            sum += entry.weight;
    return sum;
}

/* Opens the registry of a device for reading only.  Returns 1 on success, 0 if it does not exist. */
static int open_registry_for_reading(struct weir_slot_file *registry,
                                     const struct weir_driver *driver, CUdevice device) {
    char name[WEIR_UUID_BYTES];

    return weir__process_peers_device(driver, device, name) &&
           weir__registry_view(registry, name) == 0;
}

uint64_t weir__process_peers_read_weights(const struct weir_driver *driver, CUdevice device,
                                          uint64_t most) {
    struct weir_slot_file registry;
    uint64_t sum;

    if (!open_registry_for_reading(&registry, driver, device))
        return 0;
    sum = sum_of_weights(&registry, most);
    weir__registry_close(&registry);
    return sum;
}

uint64_t weir__process_peers_read_reserved(const struct weir_driver *driver, CUdevice device) {
    struct weir_registry_entry entry;
    struct weir_slot_file registry;
    uint64_t sum = 0;

    if (!open_registry_for_reading(&registry, driver, device))
        return 0;
    for (int slot = 0; slot < WEIR_SLOTS; slot++)
        if (weir__registry_read(&registry, slot, &entry) && entry.pid != (uint64_t)getpid())
            sum += entry.reserved;
    weir__registry_close(&registry);
    return sum;
}

/* ---- this process's entry ------------------------------------------------------------------------ */

/* Sums up the memory of all allocators of this process on the device.  Returns 1 if there is at least one, else 0. */
static int sum_allocator_memory(struct weir_process_peers *n, struct weir_allocator_memory *sum) {
    struct weir_local_peer *s = NULL;
    struct weir_allocator_memory h;
    int any = 0;

    memset(sum, 0, sizeof *sum);
    while ((s = weir__local_peers_next(&n->own, s))) {
        memset(&h, 0, sizeof h);
        n->calls.report_memory(s->owner, &h);
        /* The sum contains h.reserved.  weir__process_peers_publish_reserved() later adds only the change to it. */
        if (h.published)
            atomic_store_explicit(h.published, h.reserved, memory_order_relaxed);
        sum->reserved += h.reserved;
        sum->in_use += h.in_use;
        sum->idle += h.idle;
        sum->limit = h.limit > UINT64_MAX - sum->limit ? UINT64_MAX : sum->limit + h.limit;
        sum->device_total = h.device_total;
        sum->device_free = h.device_free;
        any = 1;
    }
    return any;
}

/* Publishes to other processes how much memory all allocators of this process have. */
static void refresh(struct weir_process_peers *n, uint64_t as_of_ns) {
    struct weir_group *group = weir__process_peers_group(n);
    struct weir_allocator_memory sum;
    uint64_t publications;
    int any, tries = 0;

    pthread_mutex_lock(&n->lock);
    do { /* repeats the sum if an allocator has changed its memory meanwhile */
        publications = n->publications;
        pthread_mutex_unlock(&n->lock);
        any = sum_allocator_memory(n, &sum);
        pthread_mutex_lock(&n->lock);
    } while (publications != n->publications && ++tries < REFRESHES);
    n->entry.as_of_ns = as_of_ns;
    n->entry.limit = sum.limit;
    /* If allocators changed their memory during each of the sums above, keeps the entry's old values. */
    if (any && publications == n->publications) {
        n->entry.reserved = sum.reserved;
        n->entry.in_use = sum.in_use;
        n->entry.idle = sum.idle;
        n->entry.device_total = sum.device_total;
        n->entry.device_free = sum.device_free;
    }
    weir__registry_publish(&n->registry, &n->entry);
    if (group)
        weir__group_publish_idle(group, n->entry.idle);
    pthread_mutex_unlock(&n->lock);
}

static WEIR_ASSERT_ONLY int are_claims_valid(const struct weir_process_peers *n) {
    uint64_t priority = 0, weight = 0;

    for (const struct weir_claim *c = n->claims; c; c = c->next) {
        priority = weir__size_larger(priority, c->priority);
        weight = weir__size_larger(weight, c->weight);
    }
    return n->entry.priority == priority && n->entry.weight == weight;
}

/* Publishes the largest priority and weight of all allocators of this process.  The caller holds `lock`. */
static void publish_claims(struct weir_process_peers *n) {
    int shares = 0;

    n->entry.priority = n->entry.weight = 0;
    for (const struct weir_claim *c = n->claims; c; c = c->next) {
        n->entry.priority = weir__size_larger(n->entry.priority, c->priority);
        n->entry.weight = weir__size_larger(n->entry.weight, c->weight);
        shares |= c->shares;
    }
    atomic_store(&n->shares, shares);
    weir__registry_publish(&n->registry, &n->entry);
}

static void add_claim(struct weir_process_peers *n, struct weir_claim *claim) {
    pthread_mutex_lock(&n->lock);
    WEIR_ASSERT(are_claims_valid(n));
    claim->next = n->claims;
    n->claims = claim;
    publish_claims(n);
    pthread_mutex_unlock(&n->lock);
    weir__registry_ring(&n->registry);
}

/* Removes the claim of one allocator from the list.  Returns 1 if the list is then empty, else 0. */
static int remove_claim(struct weir_process_peers *n, struct weir_claim *claim) {
    struct weir_claim **at = &n->claims;
    int was_last;

    pthread_mutex_lock(&n->lock);
    WEIR_ASSERT(are_claims_valid(n));
    while (*at != claim)
        at = &(*at)->next;
    *at = claim->next;
    publish_claims(n);
    was_last = !n->claims;
    pthread_mutex_unlock(&n->lock);
    return was_last;
}

void weir__process_peers_publish_reserved(struct weir_process_peers *n, _Atomic uint64_t *published,
                                          uint64_t reserve) {
    uint64_t before;

    pthread_mutex_lock(&n->lock);
    before = atomic_exchange_explicit(published, reserve, memory_order_relaxed);
    n->publications++;
    /* unsigned arithmetic, correct even if `reserve` is less than `before` */
    n->entry.reserved += reserve - before;
    if ((int64_t)n->entry.reserved < 0)
        n->entry.reserved = reserve;
    n->entry.idle = weir__size_smaller(n->entry.idle, n->entry.reserved);
    n->entry.in_use = weir__size_smaller(n->entry.in_use, n->entry.reserved);
    weir__registry_publish(&n->registry, &n->entry);
    pthread_mutex_unlock(&n->lock);
}

struct weir_group *weir__process_peers_group(const struct weir_process_peers *n) {
    return weir__group_of(n->own.driver, n->own.device);
}

uint64_t weir__process_peers_weights(struct weir_process_peers *n) {
    return sum_of_weights(&n->registry, UINT64_MAX);
}

static uint64_t release_bytes(struct weir_process_peers *n, uint64_t bytes) {
    struct weir_local_peer *s = NULL;
    uint64_t given = 0;

    while (given < bytes && (s = weir__local_peers_next(&n->own, s)))
        given += n->calls.free_idle_memory(s->owner, bytes - given);
    if (s)
        weir__local_peers_release(s);
    return given;
}

static int has_answered(const struct weir_process_peers *n, uint64_t sequence) {
    for (int i = 0; i < WEIR_REGISTRY_ANSWERS; i++)
        if (n->answered[i] == sequence)
            return 1;
    return 0;
}

static void answer_request(struct weir_process_peers *n, uint64_t sequence, uint64_t bytes,
                           uint64_t as_of_ns) {
    unsigned at = n->answers++ % WEIR_REGISTRY_ANSWERS;
    uint64_t given = release_bytes(n, bytes);

    n->answered[at] = sequence;
    refresh(n, as_of_ns);
    pthread_mutex_lock(&n->lock);
    n->entry.answer[at] = (struct weir_registry_answer){sequence, given};
    n->entry.freed += given;
    weir__registry_publish(&n->registry, &n->entry);
    pthread_mutex_unlock(&n->lock);
    weir__registry_ring(&n->registry);
}

/* Returns the bytes that the process of `entry` requests, or 0 if it waits for no answer of this process. */
static uint64_t requested_bytes(const struct weir_process_peers *n,
                                const struct weir_registry_entry *entry, uint64_t own_slot) {
    if (entry->until_ns <= weir__registry_now() || has_answered(n, entry->sequence))
        return 0;
    for (int i = 0; i < WEIR_REGISTRY_REQUESTS; i++)
        if (entry->request[i].bytes > 0 && entry->request[i].slot == own_slot &&
            entry->request[i].start == n->registry.start)
            return entry->request[i].bytes;
    return 0;
}

/* Updates all limits that are shares of the device.  Returns the time before the update. */
static uint64_t set_share_limits(struct weir_process_peers *n) {
    uint64_t now = weir__registry_now();
    uint64_t weights = atomic_load(&n->shares) ? weir__process_peers_weights(n) : 0;
    struct weir_local_peer *s = NULL;

    while (weights > 0 && (s = weir__local_peers_next(&n->own, s)))
        n->calls.set_share_limit(s->owner, weights);
    return now;
}

/* Publishes how much memory this process has, and answers other processes' requests.  The caller holds `stepping`. */
static void answer_all(struct weir_process_peers *n) {
    struct weir_registry_entry entry;
    uint64_t bytes;
    int own;

    refresh(n, set_share_limits(n));
    own = weir__registry_slot(&n->registry);
    for (int slot = 0; slot < WEIR_SLOTS; slot++) {
        if (!weir__registry_read(&n->registry, slot, &entry))
            continue;
        bytes = slot == own ? 0 : requested_bytes(n, &entry, (uint64_t)own);
        /* Updates the limits before the answer, because a new process makes the shares of other processes smaller. */
        if (bytes > 0)
            answer_request(n, entry.sequence, bytes, set_share_limits(n));
    }
}

static void *run_peers_thread(void *peers) {
    struct weir_process_peers *n = peers;
    uint32_t bell;

    weir__thread_begin();
    for (;;) {
        bell = weir__registry_bell(&n->registry);
        /* If another thread sets `stopped` after this check, it also ends the wait below. */
        if (atomic_load(&n->stopped))
            return NULL;
        pthread_mutex_lock(&stepping);
        if (!atomic_load(&exiting))
            answer_all(n);
        pthread_mutex_unlock(&stepping);
        weir__registry_wait(&n->registry, bell, atomic_load(&n->shares) ? TICK_MS : LONG_TICK_MS);
    }
}

/* ---- asking -------------------------------------------------------------------------------------- */

struct candidate {
    uint64_t slot, start, pid, idle, priority, as_of_ns;
    int turn;
    int is_unpublished; /* set if the process has not published its memory since the request began */
    int is_asked;
};

/* Returns the time until which weir requests no memory from the process, or 0 if weir may request memory now. */
static uint64_t unresponsive_until(const struct weir_process_peers *n, int slot,
                                   const struct weir_registry_entry *entry) {
    const struct unresponsive *s = &n->unresponsive[slot];

    return s->start == entry->start && s->as_of_ns == entry->as_of_ns &&
                   s->until_ns > weir__registry_now()
               ? s->until_ns
               : 0;
}

static int compare_candidates(const void *one, const void *other) {
    const struct candidate *a = one, *b = other;

    if (a->is_unpublished != b->is_unpublished)
        return a->is_unpublished - b->is_unpublished;
    if (a->turn != b->turn)
        return a->turn - b->turn;
    if (a->priority != b->priority)
        return a->priority < b->priority ? -1 : 1;
    return (a->idle < b->idle) - (a->idle > b->idle);
}

/* Returns 1 for a process to ask first, 2 for a process to ask later, 0 for a process not to ask. */
static int turn_of_process(const struct weir_process_peers *n,
                           const struct weir_registry_entry *entry) {
    for (size_t i = 0; i < n->member_count; i++) {
        const struct weir_group_member *m = &n->member[i];

        if (m->pid == entry->pid && m->start == entry->start && m->namespace == entry->namespace)
            return m->bytes > m->share ? 1 : 2;
    }
    return n->group ? 0 : 2;
}

/* Lists the other processes in the order in which weir asks them.  Sets *missing to the number of processes that have
 * not published since `since`. */
static size_t list_candidates(struct weir_process_peers *n, struct candidate *out, uint64_t since,
                              struct weir_memory_request request, size_t *missing,
                              struct weir_answers *answers) {
    int own = weir__registry_slot(&n->registry);
    struct weir_registry_entry entry;
    uint64_t skipped_until;
    size_t count = 0;

    *missing = 0;
    *answers = (struct weir_answers){.unavailable = UINT64_MAX};
    for (int slot = 0; slot < WEIR_SLOTS; slot++) {
        struct candidate *c = &out[count];
        int turn;

        n->unavailable[slot] = 0;
        if (slot == own || !weir__registry_read(&n->registry, slot, &entry))
            continue;
        turn = turn_of_process(n, &entry);
        if (turn == 0)
            continue;
        *c = (struct candidate){.slot = (uint64_t)slot,
                                .start = entry.start,
                                .pid = entry.pid,
                                .idle = entry.idle,
                                .priority = entry.priority,
                                .turn = turn,
                                .as_of_ns = entry.as_of_ns,
                                .is_unpublished = entry.as_of_ns < since};
        answers->unavailable = answers->unavailable == UINT64_MAX ? 0 : answers->unavailable;
        skipped_until = unresponsive_until(n, slot, &entry);
        if (skipped_until && skipped_until - UNRESPONSIVE_NS >= request.began_ns) {
            answers->is_incomplete = 1;
            continue;
        }
        if (skipped_until) {
            answers->unavailable += n->unavailable[slot] = entry.reserved;
            continue;
        }
        answers->unavailable += n->unavailable[slot] = c->is_unpublished ? 0 : entry.in_use;
        answers->has_answer |= !c->is_unpublished;
        *missing += (size_t)c->is_unpublished;
        count += c->idle > 0 || c->is_unpublished;
    }
    qsort(out, count, sizeof *out, compare_candidates);
    return count;
}

/* Makes the other processes publish their memory, waits up to REFRESH_MS, and lists these processes. */
static size_t survey(struct weir_process_peers *n, struct candidate *out,
                     struct weir_memory_request request, struct weir_answers *answers) {
    uint64_t now = weir__registry_now(), until;
    size_t count, missing;

    until = weir__size_smaller(request.deadline_ns, now + REFRESH_MS * MILLISECOND);
    pthread_mutex_lock(&n->lock);
    /* This call also creates the registry again if its file was lost. */
    weir__registry_publish(&n->registry, &n->entry);
    pthread_mutex_unlock(&n->lock);
    weir__registry_ring(&n->registry);
    /* Polls, because a process that publishes its memory does not wake other processes. */
    for (;;) {
        count = list_candidates(n, out, now, request, &missing, answers);
        if (missing == 0 || weir__registry_now() >= until)
            return count;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
}

/* Returns 1 if the process has answered the request or has ended, else 0.  Sets *bytes to the bytes that it has freed.
 * An ended process has freed all its idle bytes. */
static int is_answered(struct weir_process_peers *n, const struct candidate *c, uint64_t sequence,
                       uint64_t *bytes) {
    struct weir_registry_entry entry;

    *bytes = c->idle;
    if (!weir__registry_read(&n->registry, (int)c->slot, &entry) || entry.start != c->start ||
        entry.pid != c->pid)
        return 1;
    for (int i = 0; i < WEIR_REGISTRY_ANSWERS; i++)
        if (entry.answer[i].sequence == sequence) {
            *bytes = entry.answer[i].bytes;
            return 1;
        }
    return 0;
}

static void publish_request(struct weir_process_peers *n,
                            const struct weir_registry_request *requests, uint64_t sequence,
                            uint64_t until) {
    pthread_mutex_lock(&n->lock);
    memcpy(n->entry.request, requests, sizeof n->entry.request);
    n->entry.sequence = sequence;
    n->entry.until_ns = until;
    weir__registry_publish(&n->registry, &n->entry);
    pthread_mutex_unlock(&n->lock);
}

/* Requests memory from `count` processes, and waits for answers until `until`.  Adds the results to *answers. */
static void request_from_some(struct weir_process_peers *n, struct candidate **some, size_t count,
                              const struct weir_registry_request *requests, uint64_t until,
                              struct weir_answers *answers) {
    static const struct weir_registry_request nothing[WEIR_REGISTRY_REQUESTS];
    uint64_t sequence = weir__registry_now(), now, given, bytes;
    size_t open;

    /* Two processes may begin a request at one time.  The pid makes their sequence numbers different. */
    sequence = sequence << 8 ^ (uint64_t)getpid();
    publish_request(n, requests, sequence, until);
    weir__registry_ring(&n->registry);
    for (;;) {
        uint32_t bell = weir__registry_bell(&n->registry);

        given = 0;
        open = 0;
        for (size_t i = 0; i < count; i++)
            if (is_answered(n, some[i], sequence, &bytes))
                given += bytes;
            else
                open++;
        now = weir__registry_now();
        if (open == 0 || now >= until)
            break;
        weir__registry_wait(&n->registry, bell,
                            (unsigned)weir__size_smaller((until - now) / MILLISECOND + 1, 1000));
    }
    for (size_t i = 0; open > 0 && i < count; i++)
        if (some[i]->is_unpublished && !is_answered(n, some[i], sequence, &bytes))
            n->unresponsive[some[i]->slot] = (struct unresponsive){
                some[i]->start, some[i]->as_of_ns, weir__registry_now() + UNRESPONSIVE_NS};
    publish_request(n, nothing, sequence, 0);
    answers->freed += given;
    answers->has_answer |= open < count;
    answers->has_timeout |= open > 0;
}

/* Selects processes that were not asked yet, until their idle memory is enough.  Returns their number. */
static size_t select_candidates(struct candidate *all, size_t count, uint64_t bytes,
                                struct candidate **some, struct weir_registry_request *requests) {
    size_t picked = 0;

    for (size_t i = 0; i < count && bytes > 0 && picked < WEIR_REGISTRY_REQUESTS; i++) {
        uint64_t part = all[i].is_unpublished ? bytes : weir__size_smaller(all[i].idle, bytes);

        if (all[i].is_asked)
            continue;
        all[i].is_asked = 1;
        some[picked] = &all[i];
        requests[picked++] = (struct weir_registry_request){all[i].slot, all[i].start, part};
        bytes -= all[i].is_unpublished ? 0 : part;
    }
    return picked;
}

struct ending_sum {
    struct weir_process_peers *n;
    struct weir_answers *answers;
    uint64_t now;
};

/* Adds the memory of an ending process to answers->ending, but only for ENDING_NS, because the process may hang. */
static void add_ending(int slot, const struct weir_registry_entry *entry, void *context) {
    const struct ending_sum *sum = context;
    struct ending *e = &sum->n->ending[slot];

    /* unreached: no test has two processes with one pid and different start times */
    if (e->pid != entry->pid || e->start != entry->start)
        *e = (struct ending){entry->pid, entry->start, sum->now};
    if (sum->now - e->since_ns > ENDING_NS)
        return;
    sum->answers->ending += entry->reserved + BESIDE_RESERVE;
    if (sum->answers->unavailable != UINT64_MAX)
        sum->answers->unavailable -= sum->n->unavailable[slot];
}

struct weir_answers weir__process_peers_request(struct weir_process_peers *n,
                                                struct weir_memory_request request,
                                                struct weir_group *group) {
    struct candidate all[WEIR_SLOTS], *some[WEIR_REGISTRY_REQUESTS];
    uint64_t now = weir__registry_now(), part;
    struct weir_answers answers;
    size_t count, picked;

    pthread_mutex_lock(&n->asking);
    n->group = group;
    n->member_count = group ? weir__group_members(group, n->member) : 0;
    part = request.deadline_ns > now ? (request.deadline_ns - now) / 4 + 1 : 0;
    count = survey(n, all, request, &answers);
    while (answers.freed < request.bytes) {
        struct weir_registry_request requests[WEIR_REGISTRY_REQUESTS] = {{0}};

        picked = select_candidates(all, count, request.bytes - answers.freed, some, requests);
        if (picked == 0)
            break;
        now = weir__registry_now();
        if (now >= request.deadline_ns) { /* another thread's request may have taken all the time */
            answers.is_incomplete = 1;
            break;
        }
        request_from_some(n, some, picked, requests,
                          weir__size_smaller(request.deadline_ns, now + part), &answers);
    }
    if (answers.freed < request.bytes)
        weir__registry_each_ending(&n->registry, add_ending,
                                   &(struct ending_sum){n, &answers, weir__registry_now()});
    answers.is_incomplete |= answers.has_timeout || answers.ending > 0;
    pthread_mutex_lock(&n->lock);
    n->entry.requested += request.bytes;
    n->entry.received += answers.freed;
    pthread_mutex_unlock(&n->lock);
    pthread_mutex_unlock(&n->asking);
    return answers;
}

/* ---- reports ------------------------------------------------------------------------------------- */

static int compare_holders(const void *one, const void *other) {
    const struct weir_holder *a = one, *b = other;

    return (a->reserved < b->reserved) - (a->reserved > b->reserved);
}

/* Lists the other processes that have memory of the device, the largest first.  Returns their number. */
static size_t read_holders(struct weir_process_peers *n, struct weir_holder *all) {
    struct weir_registry_entry entry;
    size_t count = 0;

    pthread_mutex_lock(&n->asking);
    for (int slot = 0; slot < WEIR_SLOTS; slot++) {
        struct weir_holder *h = &all[count];

        if (slot == weir__registry_slot(&n->registry) ||
            !weir__registry_read(&n->registry, slot, &entry) || entry.reserved == 0)
            continue;
        *h = (struct weir_holder){.pid = entry.pid,
                                  .reserved = entry.reserved,
                                  .idle = entry.idle,
                                  .is_stopped = weir__registry_is_stopped(&n->registry, &entry)};
        h->is_unresponsive = h->is_stopped || unresponsive_until(n, slot, &entry);
        memcpy(h->command, entry.command, sizeof entry.command);
        count++;
    }
    pthread_mutex_unlock(&n->asking);
    qsort(all, count, sizeof *all, compare_holders);
    return count;
}

void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out) {
    struct weir_holder all[WEIR_SLOTS];

    *out = (struct weir_holders){.count = read_holders(n, all)};
    for (size_t i = out->count; i-- > 0;) {
        *(all[i].is_unresponsive ? &out->unresponsive : &out->responsive) = all[i];
        if (i < WEIR_MOST_HOLDERS)
            out->most[i] = all[i];
    }
}

void weir__process_peers_describe(struct weir_process_peers *n,
                                  char text[WEIR_PROCESS_PEERS_SHOWN]) {
    struct weir_output out = {.text = text, .bytes = WEIR_PROCESS_PEERS_SHOWN};
    struct weir_holder all[WEIR_SLOTS];
    size_t count = read_holders(n, all);
    char name[64];

    text[0] = '\0';
    for (size_t i = 0; i < count && i < MOST_SHOWN; i++) {
        weir__quote(all[i].command, name, sizeof name);
        weir__put(&out, "%sprocess %ju %s has %s, could release %s%s", i ? "; " : "",
                  (uintmax_t)all[i].pid, name, WEIR_SHOWN(all[i].reserved), WEIR_SHOWN(all[i].idle),
                  all[i].is_stopped        ? ", is stopped"
                  : all[i].is_unresponsive ? ", does not answer"
                                           : "");
    }
}

/* ---- joining and leaving ------------------------------------------------------------------------- */

/* Releases the slots of this process in all registries at exit.  Removes a registry if no other process has a slot. */
static void leave_at_exit(void) {
    if (weir__driver_forked())
        return;
    atomic_store(&exiting, 1);
    /* Releases no slots if `stepping` stays locked.  The kernel shows other processes that this process has ended. */
    if (!weir__thread_lock_at_end(&stepping))
        return;
    pthread_mutex_unlock(&stepping);
    if (!weir__thread_lock_at_end(&joining))
        return;
    for (struct weir_process_peers *n = first; n; n = n->next) {
        if (!weir__thread_lock_at_end(&n->lock))
            continue;
        weir__registry_leave(&n->registry);
        pthread_mutex_unlock(&n->lock);
    }
    pthread_mutex_unlock(&joining);
}

static void register_exit(void) {
    (void)atexit(leave_at_exit);
}

static void discard(struct weir_process_peers *n) {
    pthread_mutex_destroy(&n->lock);
    pthread_mutex_destroy(&n->asking);
    free(n);
}

/* Claims a slot in the device's registry, and starts the thread that answers requests.  On failure returns NULL with
 * the reason in `why`.  The caller holds `joining`. */
static struct weir_process_peers *create_peers(const struct weir_driver *driver, CUdevice device,
                                               const struct weir_process_peers_calls *calls,
                                               const char *name, char *why, size_t why_bytes) {
    struct weir_process_peers *n = calloc(1, sizeof *n);

    if (!n) {
        snprintf(why, why_bytes, "%s", strerror(errno));
        return NULL;
    }
    n->own.driver = driver;
    n->own.device = device;
    n->calls = *calls;
    pthread_mutex_init(&n->lock, NULL);
    pthread_mutex_init(&n->asking, NULL);
    if (weir__registry_open(&n->registry, name) != 0) {
        snprintf(why, why_bytes, "%s: %s", n->registry.path, strerror(errno));
        discard(n);
        return NULL;
    }
    weir__process_name(n->entry.command, sizeof n->entry.command);
    pthread_once(&once, register_exit);
    errno = weir__thread_start(&n->thread, run_peers_thread, n);
    if (errno == 0) {
        n->next = first;
        return first = n;
    }
    snprintf(why, why_bytes, "%s", strerror(errno));
    weir__registry_close(&n->registry);
    discard(n);
    return NULL;
}

struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes) {
    char name[WEIR_UUID_BYTES];
    struct weir_process_peers *n;

    why[0] = '\0';
    if (!weir__process_peers_device(driver, device, name))
        return NULL;
    pthread_mutex_lock(&joining);
    for (n = first; n; n = n->next)
        if (n->own.driver == driver && n->own.device == device)
            break;
    if (!n) {
        n = create_peers(driver, device, calls, name, why, why_bytes);
        if (has_failed) /* no reason, since an earlier call has written it */
            why[0] = '\0';
        has_failed |= !n;
    }
    if (n)
        add_claim(n, claim);
    pthread_mutex_unlock(&joining);
    return n;
}

void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *published) {
    struct weir_process_peers **at = &first;

    weir__process_peers_publish_reserved(n, published, 0);
    pthread_mutex_lock(&joining);
    if (!remove_claim(n, claim)) {
        weir__registry_ring(&n->registry);
        pthread_mutex_unlock(&joining);
        return;
    }
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    pthread_mutex_unlock(&joining);
    atomic_store(&n->stopped, 1);
    weir__registry_ring(&n->registry);
    pthread_join(n->thread, NULL);
    weir__registry_close(&n->registry);
    discard(n);
}
