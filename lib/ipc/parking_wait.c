/* SPDX-License-Identifier: MIT */
/* parking_wait.c: see parking_wait.h. */
#include "ipc/parking_wait.h"

#include "base/gated.h"
#include "ipc/registry.h"

#define LONGEST_NS UINT64_C(180000000000)
enum {
    PAUSE_MS = 50,
    LOOKS = 4 /* in which nobody is there: one may be waking, or its memory not be free yet */
};

int weir__parking_wait(struct weir_parking_wait *wait, struct weir_process_peers *peers,
                       uint64_t lacks) {
    int may_park = weir__gated_may_park();

    if (!wait->peers) {
        wait->peers = peers;
        wait->until_ns = weir__registry_now() + LONGEST_NS;
        wait->has_waited = may_park;
    }
    if (wait->alone >= LOOKS || (!may_park && weir__registry_now() >= wait->until_ns))
        return 0;
    wait->alone = weir__process_peers_need(peers, lacks) ? 0 : wait->alone + 1;
    if (wait->alone == 1 && !wait->has_waited)
        return 0;
    wait->has_waited = 1;
    weir__gated_pause(lacks, PAUSE_MS);
    return 1;
}

void weir__parking_wait_end(struct weir_parking_wait *wait) {
    if (!wait->peers)
        return;
    (void)weir__process_peers_need(wait->peers, 0);
    weir__gated_pause(0, 0);
    wait->peers = NULL;
}
