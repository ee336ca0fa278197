/* SPDX-License-Identifier: MIT */
/* phases.c: one of several processes that share a device; bench/processes starts them.
 *
 *     phases DEVICE FILE NUMBER OF PHASES PEAK   runs as process NUMBER (from 0) of OF processes, for PHASES phases
 *     phases DEVICE cost                         measures the time of a cache hit and of a growth
 *
 * In each phase it is the turn of one process; the counter of the turns is in FILE.  This process allocates PEAK
 * thousandths of the device's memory, in blocks of mixed sizes, and frees them.  Meanwhile each other process holds
 * a fiftieth of its peak.  So all memory that is live at one time fits into the device, but the sum of all peaks
 * does not.  The settings come from the environment.  Each process writes one line of figures.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "base/clock.h"
#include "api/allocator_internal.h"

enum { MAX_BLOCKS = 65536, PAIRS = 2000000, ROUNDS = 100, STEPS = 10 };

#define MIB ((size_t)1 << 20)

struct turns {
    _Atomic uint64_t next, has_failed;
};

static const struct weir_driver *driver;
static weir_allocator *own;
static CUstream stream;
static void *blocks[MAX_BLOCKS];
static size_t block_count;

static int report_phase_failure(const char *what) {
    fprintf(stderr, "phases: %s\n", what);
    return 2;
}

/* Opens the allocator before the device's context, because the context needs memory: on a full device, the allocator
 * first makes other processes release idle memory.  Returns 0 on success. */
static int open_device_and_allocator(const char *device, size_t *total) {
    struct weir_driver_failure failure;
    weir_options options;
    CUcontext context;
    size_t device_free;
    char message[640];

    driver = weir__driver_open(device, &failure);
    if (!driver)
        return report_phase_failure(failure.text);
    weir_options_init(&options);
    if (weir_options_from_env(&options, message, sizeof message) != WEIR_OK)
        return report_phase_failure(message);
    options.device = device;
    if (weir__allocator_create_on(driver, &options, &own, message, sizeof message) != WEIR_OK)
        return report_phase_failure(message);
    if (driver->cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        driver->cuCtxPushCurrent(context) != CUDA_SUCCESS ||
        driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        driver->cuMemGetInfo(&device_free, total) != CUDA_SUCCESS)
        return report_phase_failure("the device cannot be used");
    return 0;
}

static weir_status allocate_held(size_t bytes) {
    static uint64_t random = 1;
    weir_status status = WEIR_OK;

    for (size_t held = 0, part; held < bytes && block_count < MAX_BLOCKS; held += part) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        part = MIB * (4 + (random >> 33) % 252);
        part = part < bytes - held ? part : bytes - held;
        status = weir_alloc(own, part, stream, &blocks[block_count]);
        if (status != WEIR_OK)
            break;
        block_count++;
    }
    return status;
}

static weir_status free_held_down_to(size_t down_to) {
    weir_status status = WEIR_OK;

    while (block_count > down_to && status == WEIR_OK)
        status = weir_free(own, blocks[--block_count], stream);
    return status;
}

static struct turns *open_turns(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *map = MAP_FAILED;

    if (file >= 0 && ftruncate(file, 4096) == 0)
        map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return map == MAP_FAILED ? NULL : map;
}

/* Waits for the turn of process `number'.  Returns 1 at this turn, 0 if all phases are over or a process has failed. */
static int await_phase_turn(struct turns *t, uint64_t number, uint64_t of, uint64_t phases) {
    for (;;) {
        uint64_t next = atomic_load(&t->next);

        if (next >= phases || atomic_load(&t->has_failed))
            return 0;
        if (next % of == number)
            return 1;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
}

static int run_phases(char **words, size_t total) {
    struct turns *t = open_turns(words[0]);
    uint64_t number = strtoull(words[1], NULL, 10), of = strtoull(words[2], NULL, 10),
             phases = strtoull(words[3], NULL, 10), done = 0, began = weir__clock_ns();
    size_t peak = total / 1000 * (size_t)strtoull(words[4], NULL, 10), low;
    weir_statistics f = {.size = sizeof f};
    weir_status status;

    if (!t || of == 0)
        return report_phase_failure("no turns can be taken");
    status = allocate_held(peak / 50);
    low = block_count;
    while (status == WEIR_OK && await_phase_turn(t, number, of, phases)) {
        status = allocate_held(peak - peak / 50);
        if (status == WEIR_OK)
            status = free_held_down_to(low);
        done += status == WEIR_OK;
        if (status == WEIR_OK)
            atomic_fetch_add(&t->next, 1);
    }
    if (status != WEIR_OK)
        atomic_store(&t->has_failed, 1);
    if (weir_stats(own, &f) != WEIR_OK)
        return report_phase_failure("no figures");
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
           " %" PRIu64 " %.1f %s\n",
           number, done, f.failed_requests, f.reserved_peak / MIB, f.reclaims,
           f.received_bytes / MIB, f.releases, f.released_bytes / MIB,
           (double)(weir__clock_ns() - began) / 1e9, weir_status_name(status));
    return status == WEIR_OK ? 0 : 1;
}

/* Measures the real time of an allocation of 64 KiB and its free, with warm caches, and of a growth by 32 MiB. */
static int measure_phase(void) {
    uint64_t began, pair = UINT64_MAX, step = UINT64_MAX, is;
    weir_status status = WEIR_OK;
    size_t released;
    void *block;

    for (int round = 0; round < ROUNDS && status == WEIR_OK; round++) {
        began = weir__clock_ns();
        for (int i = 0; i < PAIRS / ROUNDS && status == WEIR_OK; i++) {
            status = weir_alloc(own, 65536, stream, &block);
            if (status == WEIR_OK)
                status = weir_free(own, block, stream);
        }
        is = (weir__clock_ns() - began) / (PAIRS / ROUNDS);
        pair = is < pair ? is : pair;
        began = weir__clock_ns();
        for (uint64_t i = 1; i <= STEPS && status == WEIR_OK; i++)
            status = weir_preallocate(own, (i + 4) * 32 * MIB, NULL);
        is = (weir__clock_ns() - began) / STEPS;
        step = is < step ? is : step;
        if (status == WEIR_OK)
            status = weir_trim(own, 128 * MIB, &released);
    }
    printf("%" PRIu64 " %" PRIu64 "\n", pair, step);
    return status == WEIR_OK ? 0 : report_phase_failure(weir_status_name(status));
}

int main(int argc, char **argv) {
    size_t total = 0;
    int code;

    if (argc != 7 && !(argc == 3 && strcmp(argv[2], "cost") == 0))
        return report_phase_failure("DEVICE FILE NUMBER OF PHASES PEAK, or DEVICE cost");
    code = open_device_and_allocator(argv[1], &total);
    if (code != 0)
        return code;
    code = argc == 7 ? run_phases(argv + 2, total) : measure_phase();
    if (code == 0 && (free_held_down_to(0) != WEIR_OK || weir_allocator_destroy(own) != WEIR_OK))
        return report_phase_failure("the allocator does not end");
    return code;
}
