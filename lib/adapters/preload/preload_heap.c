/* SPDX-License-Identifier: MIT */
/* preload_heap.c: which call stacks have the live blocks, where `weir run --heap-profile' asks for that.
 *
 * A block is noted with the stack that asked for it; a stack counts its blocks, now and at the peak of all.  What a
 * stack had at the peak is not copied when the peak rises, which it does with each request in a program's beginning,
 * but when the stack changes for the first time after: until then it is what it has (`rises` tells).
 *
 * Written at exit and as a request fails (preload_report.c), and when a signal comes, by a thread that does nothing else: a handler may not,
 * and a program that waits makes no calls in which it could be done.
 *
 * Locks: `lock` guards all of it.  Under it nothing is called but malloc: a stack is read before, and what is
 * written is copied first, since the dynamic linker has locks of its own, under which programs ask for memory.
 *
 * Must not know: how a profile is written; what an allocator is.
 */
#include "adapters/preload/preload_blocks.h"

#include <errno.h>
#include <execinfo.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/preload/pprof.h"
#include "base/log.h"
#include "base/map.h"
#include "base/text.h"
#include "base/variable.h"

enum { DEPTH = 64, BUCKETS = 4096, SIGNAL = SIGUSR2 };

/* Never freed, and only its counts change. */
struct stack {
    struct stack *next; /* in its bucket */
    const char *device; /* text of a struct weir_served, which stays */
    uint64_t hash;
    uint64_t blocks, bytes;           /* live */
    uint64_t peak_blocks, peak_bytes; /* at the peak, if it has changed since */
    uint64_t rises;                   /* of the peak, when it changed last */
    size_t depth;
    void *frame[];
};

struct note {
    struct stack *by;
    uint64_t bytes;
};

int weir__heap_on;
static char *path;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stack *stacks[BUCKETS];
static size_t stack_count;
static struct weir_map notes; /* block -> struct note * */
static uint64_t live, peak, rises, missed;

static sem_t asked;
static _Thread_local struct note *leaving __attribute__((tls_model("initial-exec")));

/* ---- counts ---------------------------------------------------------------------------------- */

/* The stack is about to change; the caller holds `lock`. */
static void keep_peak(struct stack *s) {
    if (s->rises == rises)
        return;
    s->rises = rises;
    s->peak_blocks = s->blocks;
    s->peak_bytes = s->bytes;
}

static void count(struct stack *s, uint64_t bytes) {
    keep_peak(s);
    s->blocks++;
    s->bytes += bytes;
    live += bytes;
    if (live > peak) {
        peak = live;
        rises++;
    }
}

static void discount(struct stack *s, uint64_t bytes) {
    keep_peak(s);
    s->blocks--;
    s->bytes -= bytes;
    live -= bytes;
}

static uint64_t hash_of(void *const *frame, size_t depth, const char *device) {
    uint64_t hash = (uintptr_t)device;

    for (size_t i = 0; i < depth; i++)
        hash = (hash ^ (uintptr_t)frame[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* Found, or made; NULL: no host memory.  The caller holds `lock`. */
static struct stack *stack_of(void *const *frame, size_t depth, const char *device) {
    uint64_t hash = hash_of(frame, depth, device);
    struct stack **bucket = &stacks[hash % BUCKETS], *s = *bucket;

    while (s && (s->hash != hash || s->depth != depth || s->device != device ||
                 memcmp(s->frame, frame, depth * sizeof *frame) != 0))
        s = s->next;
    if (s)
        return s;
    s = calloc(1, sizeof *s + depth * sizeof *frame);
    if (!s)
        return NULL;
    s->next = *bucket;
    s->device = device;
    s->hash = hash;
    s->rises = rises;
    s->depth = depth;
    memcpy(s->frame, frame, depth * sizeof *frame);
    *bucket = s;
    stack_count++;
    return s;
}

void weir__heap_began(const struct weir_served *s, CUdeviceptr block, size_t bytes) {
    void *frame[DEPTH];
    int depth = backtrace(frame, DEPTH);
    struct note *note = malloc(sizeof *note);
    struct stack *by;

    pthread_mutex_lock(&lock);
    by = note ? stack_of(frame, depth > 0 ? (size_t)depth : 0, s->device_text) : NULL;
    if (by && weir__map_put(&notes, block, (uintptr_t)note)) {
        *note = (struct note){by, bytes};
        count(by, bytes);
        note = NULL;
    } else {
        missed++;
    }
    pthread_mutex_unlock(&lock);
    free(note);
}

/* Its address may be another's as soon as it is free, so it leaves the map before. */
void weir__heap_end(CUdeviceptr block) {
    uintptr_t note = 0;

    pthread_mutex_lock(&lock);
    (void)weir__map_take(&notes, block, &note);
    pthread_mutex_unlock(&lock);
    leaving = (struct note *)note;
}

void weir__heap_goes_on(CUdeviceptr block) {
    if (!leaving)
        return;
    pthread_mutex_lock(&lock);
    (void)weir__map_put(&notes, block, (uintptr_t)leaving); /* in the place that it just left */
    pthread_mutex_unlock(&lock);
    leaving = NULL;
}

void weir__heap_ended(void) {
    if (!leaving)
        return;
    pthread_mutex_lock(&lock);
    discount(leaving->by, leaving->bytes);
    pthread_mutex_unlock(&lock);
    free(leaving);
    leaving = NULL;
}

/* A slot whose note goes is filled by what stands behind it, if anything. */
void weir__heap_lose(const struct weir_served *s) {
    uintptr_t value;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < notes.capacity; i++)
        while (notes.slots[i].key &&
               ((struct note *)notes.slots[i].value)->by->device == s->device_text &&
               weir__map_take(&notes, notes.slots[i].key, &value)) {
            struct note *note = (struct note *)value;

            discount(note->by, note->bytes);
            free(note);
        }
    pthread_mutex_unlock(&lock);
}

/* ---- the profile ------------------------------------------------------------------------------ */

/* Stacks that have blocks, or had at the peak; how many.  The caller holds `lock`. */
static size_t copy(struct weir_pprof_sample *to) {
    size_t at = 0;

    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct stack *s = stacks[i]; s; s = s->next) {
            int has_changed = s->rises == rises;
            uint64_t blocks = has_changed ? s->peak_blocks : s->blocks;

            if (s->blocks == 0 && blocks == 0)
                continue;
            to[at++] = (struct weir_pprof_sample){
                .frame = s->frame,
                .depth = s->depth,
                .value = {s->blocks, s->bytes, blocks, has_changed ? s->peak_bytes : s->bytes},
                .device = s->device,
            };
        }
    return at;
}

/* A copy, and what there is to say about it; NULL: no host memory. */
static struct weir_pprof_sample *read_samples(size_t *samples, char *remark, size_t remark_bytes) {
    struct weir_pprof_sample *to = NULL;
    size_t room = 0;

    pthread_mutex_lock(&lock);
    while (room < stack_count + 1) { /* more may come meanwhile */
        room = stack_count + 1;
        pthread_mutex_unlock(&lock);
        free(to);
        to = calloc(room, sizeof *to);
        if (!to)
            return NULL;
        pthread_mutex_lock(&lock);
    }
    *samples = copy(to);
    snprintf(
        remark, remark_bytes,
        "weir %s: device memory of process %ld; %llu byte%s live, %llu at the peak, %llu block%s "
        "not noted for want of host memory",
        weir_version(), (long)getpid(), (unsigned long long)live, weir__plural(live),
        (unsigned long long)peak, (unsigned long long)missed, weir__plural(missed));
    pthread_mutex_unlock(&lock);
    return to;
}

/* The file's name with the process's number for %p; number > 0: with that behind it. */
static void spell_path(unsigned number, char *text, size_t bytes) {
    const char *mark = strstr(path, "%p");
    char behind[16] = "";

    if (number > 0)
        snprintf(behind, sizeof behind, ".%u", number);
    if (mark)
        snprintf(text, bytes, "%.*s%ld%s%s", (int)(mark - path), path, (long)getpid(), mark + 2,
                 behind);
    else
        snprintf(text, bytes, "%s%s", path, behind);
}

static void write_profile(unsigned number) {
    static const struct weir_pprof_kind kind = {
        .type = {"objects", "space", "peak_objects", "peak_space"},
        .unit = {"count", "bytes", "count", "bytes"},
        .shown = "space",
    };
    struct weir_pprof_kind with_remark = kind;
    struct weir_pprof_sample *samples;
    char name[PATH_MAX], remark[200];
    size_t samples_read = 0;
    int why = ENOMEM;

    spell_path(number, name, sizeof name);
    samples = read_samples(&samples_read, remark, sizeof remark);
    with_remark.remark = remark;
    if (samples)
        why = weir__pprof_write(name, &with_remark, samples, samples_read, &weir__heap_on);
    free(samples);
    if (why != 0)
        weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR, "the heap profile cannot be written to %s: %s",
                  name, strerror(why));
}

void weir__heap_write(void) {
    if (weir__heap_on)
        write_profile(0);
}

/* ---- the signal ------------------------------------------------------------------------------- */

/* In a child of fork, which has no blocks of weir's and not the thread, nothing comes of it. */
static void on_signal(int number) {
    int before = errno;

    (void)number;
    (void)sem_post(&asked);
    errno = before;
}

static void *serve_signals(void *unused) {
    (void)unused;
    for (unsigned number = 1;; number++) {
        while (sem_wait(&asked) != 0)
            ;
        write_profile(number);
    }
    return NULL;
}

/* A program that has a use for the signal itself keeps it. */
void weir__heap_start(void) {
    struct sigaction action, before;

    if (!weir__heap_on || sigaction(SIGNAL, NULL, &before) != 0 || before.sa_handler != SIG_DFL ||
        sem_init(&asked, 0, 0) != 0 || weir__start_thread(serve_signals, "weir-heap") != 0)
        return;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGNAL, &action, NULL);
}

/* The first call of backtrace loads a library: not in a request. */
static __attribute__((constructor)) void begin(void) {
    const char *wanted = weir__variable("WEIR_RUN_HEAP_PROFILE");
    void *frame[1];

    if (!wanted || !*wanted)
        return;
    path = strdup(wanted); /* a program that sets its title overwrites its environment */
    weir__heap_on = path != NULL;
    (void)backtrace(frame, 1);
}
