/* SPDX-License-Identifier: MIT */
/* shared_lines.c: the program that check-lines watches: two threads that hit, one after the other.
 *
 * Each thread binds a stream; with the argument "same" both use one stream, so that cache lines are shared.  Both make
 * hits of slots until the caches are filled and the locks are biased.  Then each makes some more,
 * between two stores to its markers.  The program prints the markers' addresses for the reader of the trace.
 *
 * Exits with 1 and a message if a call fails, or if a watched request was no hit. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "driver/driver.h"

enum { WARM_UP = 1500, SETTLE = 50, WATCHED = 150, DEPTH = 3 };

static const size_t sizes[] = {512, 65536};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

static struct { _Alignas(128) _Atomic int at; } marker[4];

struct hitter {
    pthread_t thread;
    weir_allocator *allocator;
    CUstream stream;
    int number;
};

/* Only the thread that waits for the present turn runs. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int turn;

static void fail_lines(const char *what) {
    printf("shared_lines: %s\n", what);
    exit(1);
}

static void wait_for_own_turn(int mine) {
    pthread_mutex_lock(&lock);
    while (turn != mine)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}

static void next_turn(void) {
    pthread_mutex_lock(&lock);
    turn++;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* Allocates and frees `pairs' blocks of each size, with DEPTH blocks live at a time. */
static void hit(const struct hitter *h, int pairs) {
    void *block[DEPTH];

    for (int size = 0; size < SIZES; size++)
        for (int i = 0; i < pairs; i += DEPTH) {
            for (int k = 0; k < DEPTH; k++)
                if (weir_alloc(h->allocator, sizes[size], h->stream, &block[k]) != WEIR_OK)
                    fail_lines("an allocation failed");
            for (int k = DEPTH; k > 0; k--)
                if (weir_free(h->allocator, block[k - 1], h->stream) != WEIR_OK)
                    fail_lines("a free failed");
        }
}

static void *run_hitter(void *argument) {
    struct hitter *h = argument;

    wait_for_own_turn(h->number);
    hit(h, WARM_UP);
    next_turn();
    wait_for_own_turn(2 + h->number); /* the other warm-up may have left work for this thread */
    hit(h, SETTLE);
    next_turn();
    wait_for_own_turn(5 + h->number); /* turn 4 belongs to main */
    atomic_store_explicit(&marker[2 * h->number].at, 1, memory_order_relaxed);
    hit(h, WATCHED);
    atomic_store_explicit(&marker[2 * h->number + 1].at, 1, memory_order_relaxed);
    next_turn();
    return NULL;
}

static uint64_t misses(weir_allocator *allocator) {
    weir_statistics s = {.size = sizeof s};

    if (weir_stats(allocator, &s) != WEIR_OK)
        fail_lines("weir_stats failed");
    return s.allocs - s.cache_hits;
}

int main(int count, char **arguments) {
    int same = count > 1 && strcmp(arguments[1], "same") == 0;
    struct weir_driver_failure failure;
    const struct weir_driver *driver = weir__driver_open("model", &failure);
    weir_allocator *allocator;
    struct hitter hitter[2];
    weir_options options;
    CUcontext context;
    uint64_t before;

    weir_options_init(&options);
    options.device = "model";
    options.prealloc = (weir_amount){.kind = WEIR_AMOUNT_BYTES, .value = (uint64_t)256 << 20};
    if (!driver || weir_allocator_create(&options, &allocator) != WEIR_OK ||
        driver->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        driver->cuCtxPushCurrent(context) != CUDA_SUCCESS)
        fail_lines("cannot begin on the device model");
    for (int i = 0; i < 4; i++)
        printf("%08lx%c", (unsigned long)(uintptr_t)&marker[i], i < 3 ? ' ' : '\n');
    for (int i = 0; i < 2; i++) {
        hitter[i] = (struct hitter){.allocator = allocator, .number = i};
        if (same && i > 0)
            hitter[i].stream = hitter[0].stream;
        else if (driver->cuStreamCreate(&hitter[i].stream, CU_STREAM_NON_BLOCKING) !=
                     CUDA_SUCCESS ||
                 weir_bind(allocator, hitter[i].stream) != WEIR_OK)
            fail_lines("cannot bind a stream");
        if (pthread_create(&hitter[i].thread, NULL, run_hitter, &hitter[i]) != 0)
            fail_lines("cannot make a thread");
    }
    wait_for_own_turn(4);
    before = misses(allocator);
    next_turn();
    for (int i = 0; i < 2; i++)
        if (pthread_join(hitter[i].thread, NULL) != 0)
            fail_lines("cannot join a thread");
    if (misses(allocator) != before)
        fail_lines("what was watched were not all hits");
    return 0;
}
