/* SPDX-License-Identifier: MIT */
/* child_timeline.c: what happened when in a replay, and what memory there was, for a timeline (api/timeline.h). */
#include "cli/replay/replay_child.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/timeline.h"
#include "base/size.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/runner.h"
#include "cli/common/span.h"
#include "cli/replay/busy.h"
#include "cli/replay/configuration.h"
#include "cli/replay/samples.h"
#include "cli/replay/tape.h"
#include "cli/report/summary.h"

static uint64_t since_begin(const struct replay *replay) {
    const struct weir_driver *driver = replay->session.driver;

    return driver->ticks_to_ns(driver->ticks() - replay->began_ticks);
}

void child_look(struct replay *replay) {
    struct figures figures;
    uint64_t values[WEIR_TIMELINE_COUNTERS];

    replay->configuration->figures(replay->allocator, &figures);
    values[WEIR_TIMELINE_REQUESTED] = replay->requested;
    values[WEIR_TIMELINE_IN_USE] = figures.has_in_use ? figures.in_use : WEIR_TIMELINE_UNKNOWN;
    values[WEIR_TIMELINE_RESERVE] = figures.has_reserve ? figures.reserve : WEIR_TIMELINE_UNKNOWN;
    weir__timeline_count(replay->timeline, since_begin(replay), values);
    if (replay->configuration->steps)
        replay->configuration->steps(replay->allocator, replay->timeline, replay->began_ticks);
}

static void note_mark(struct replay *replay, const struct tape_op *op) {
    uint64_t now = since_begin(replay);

    weir__timeline_iteration(replay->timeline, replay->mark_ns, now,
                             replay->tape.labels[op->block]);
    replay->mark_ns = now;
}

int child_do_and_look(struct replay *replay, const struct tape_op *op) {
    int was_live = op->code == 'f' && replay->addresses[op->block] != NULL;
    uint64_t failed = replay->failed;

    if (!child_do_operation(replay, op))
        return 0;
    if (replay->failed > failed)
        weir__timeline_failure(replay->timeline, since_begin(replay), op->bytes);
    else if (op->code == 'a')
        replay->requested += op->bytes;
    if (was_live)
        replay->requested -= op->bytes;
    if (op->code == 'm')
        note_mark(replay, op);
    child_look(replay);
    return 1;
}

json_t *child_timeline(const struct replay *replay) {
    char name[TAPE_NAME_BYTES + 64], *part = NULL;
    json_t *result = NULL;
    size_t bytes;
    FILE *file = open_memstream(&part, &bytes);

    snprintf(name, sizeof name, "%s, %s%s", replay->tape.header->name, replay->configuration->name,
             replay->busy ? ", busy" : "");
    if (file) {
        weir__timeline_write(replay->timeline, file, replay->timeline_number, name, 0,
                             replay->device.name);
        if (fclose(file) == 0)
            result = json_pack("{s:s,s:o}", "timeline", part, "missing",
                               jsonfile_integer(weir__timeline_missing(replay->timeline)));
    }
    free(part);
    return result;
}
