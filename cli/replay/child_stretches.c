/* SPDX-License-Identifier: MIT */
/* child_stretches.c: a replay in which allocations and frees of an iteration are timed as one stretch.
 *
 * What: what the same loop takes with an allocator that does nothing is taken off.
 */
#include "cli/replay/replay_child.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "cli/common/flags.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"

static int alloc_in_stretch(struct replay *replay, const struct tape_op *op) {
    void *address = NULL;
    weir_status status = replay->configuration->alloc(replay->allocator, op->block, op->bytes,
                                                      replay->streams[op->stream], &address);

    replay->allocs++;
    replay->addresses[op->block] = address;
    return status == WEIR_OK || child_check_failure(replay, op, status);
}

static int free_in_stretch(struct replay *replay, const struct tape_op *op) {
    void *address = replay->addresses[op->block];

    if (!address)
        return 1;
    replay->addresses[op->block] = NULL;
    replay->frees++;
    return child_check_free(replay,
                            replay->configuration->free(replay->allocator, op->block, address,
                                                        replay->streams[op->stream]));
}

static void end_stretch(struct replay *replay, const struct span_start *start) {
    struct span span = {0, 0, 0};

    span_end(&replay->clock, start, &span);
    replay->now.alloc_ns += span.ns;
    replay->now.driver_ns += span.driver_ns;
    replay->now.own_ns += span.own_ns;
}

int child_play_stretches(struct replay *replay,
                         int (*other)(struct replay *replay, const struct tape_op *op)) {
    const struct tape *tape = &replay->tape;
    struct span_start start;
    int under_way = 0;

    for (uint64_t i = 0; i < tape->header->ops; i++) {
        const struct tape_op *op = &tape->ops[i];

        if (op->code == 'a' || op->code == 'f') {
            if (!under_way)
                span_begin(&replay->clock, &start);
            under_way = 1;
            if (!(op->code == 'a' ? alloc_in_stretch(replay, op) : free_in_stretch(replay, op)))
                return 0;
            continue;
        }
        if (under_way)
            end_stretch(replay, &start);
        under_way = 0;
        if (!other(replay, op))
            return 0;
    }
    return 1;
}

static weir_status bare_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                              void **out) {
    static char dummy;

    (void)allocator, (void)block, (void)bytes, (void)stream;
    *out = &dummy;
    return WEIR_OK;
}

static weir_status bare_free(void *allocator, uint32_t block, void *address, CUstream stream) {
    (void)allocator, (void)block, (void)address, (void)stream;
    return WEIR_OK;
}

static int bare_mark(struct replay *replay, const struct tape_op *op) {
    if (op->code == 'm') {
        replay->bare_ns[replay->iteration_count++] = replay->now.alloc_ns;
        memset(&replay->now, 0, sizeof replay->now);
    }
    return 1;
}

int child_play_bare(struct replay *replay) {
    static const struct configuration bare = {
        .name = "bare", .alloc = bare_alloc, .free = bare_free};
    const struct configuration *configuration = replay->configuration;
    const struct tape_header *header = replay->tape.header;
    int good = 1;

    replay->configuration = &bare;
    for (int round = 0; round < 2 && good; round++) {
        good = child_play_stretches(replay, bare_mark);
        replay->iteration_count = 0;
        memset(&replay->now, 0, sizeof replay->now);
    }
    replay->configuration = configuration;
    replay->allocs = replay->frees = 0;
    memset(replay->addresses, 0, header->blocks * sizeof *replay->addresses);
    return good;
}

void child_take_bare_off(struct replay *replay) {
    for (size_t i = 0; i < replay->iteration_count; i++) {
        struct iteration *it = &replay->iterations[i];
        uint64_t *ns = replay->session.driver->charge ? &it->own_ns : &it->alloc_ns;
        uint64_t bare = replay->bare_ns[i] < *ns ? replay->bare_ns[i] : *ns;

        *ns -= bare;
        if (ns == &it->own_ns)
            it->alloc_ns -= bare;
    }
}
