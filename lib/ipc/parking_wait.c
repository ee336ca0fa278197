/* SPDX-License-Identifier: MIT */
/* parking_wait.c: see parking_wait.h. */
#include "ipc/parking_wait.h"

#include <stdatomic.h>

#include "base/gated.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "ipc/registry.h"

#define LONGEST_NS UINT64_C(180000000000)
#define TOLD_NS UINT64_C(10000000000)
enum {
    PAUSE_MS = 50,
    LOOKS = 4 /* in which nobody is there: one may be waking, or its memory not be free yet */
};

static _Atomic uint64_t failed_ns; /* by requests that gave up */

static void tell_once(int log, uint64_t lacks) {
    static atomic_int is_told;
    char bytes[32];

    if (atomic_exchange(&is_told, 1))
        return;
    weir__bytes_show(lacks, bytes, sizeof bytes);
    weir__log(
        log, WEIR_LOG_WARNING,
        "a request waits for %s that other processes have: `weir info --processes' shows them",
        bytes);
}

static int give_up(const struct weir_parking_wait *wait, uint64_t now) {
    atomic_fetch_add(&failed_ns, now - wait->began_ns);
    return 0;
}

int weir__parking_wait(struct weir_parking_wait *wait, struct weir_process_peers *peers,
                       uint64_t lacks) {
    uint64_t now = weir__registry_now();
    int may_park = weir__gated_may_park();

    if (!wait->peers) {
        wait->peers = peers;
        wait->began_ns = now;
        wait->has_waited = may_park;
    }
    if (wait->alone >= LOOKS ||
        (!may_park && now - wait->began_ns >= weir__size_less(LONGEST_NS, atomic_load(&failed_ns))))
        return give_up(wait, now);
    wait->alone = weir__process_peers_need(peers, lacks) ? 0 : wait->alone + 1;
    if (wait->alone == 1 && !wait->has_waited)
        return 0;
    if (now - wait->began_ns >= TOLD_NS)
        tell_once(wait->log, lacks);
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
