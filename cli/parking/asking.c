/* SPDX-License-Identifier: MIT */
/* asking.c: see asking.h.  This process takes part in the shared registry meanwhile, with no memory and no share. */
#include "cli/parking/asking.h"

#include <stddef.h>

#define GIVE_NS UINT64_C(1000000000)

static void hold_nothing(void *owner, struct weir_holding *out) {
    (void)owner;
    (void)out;
}

static uint64_t give_nothing(void *owner, uint64_t bytes) {
    (void)owner;
    (void)bytes;
    return 0;
}

static struct weir_process_peers *join(struct asking *asking, const struct weir_driver *driver,
                                       int device) {
    static const struct weir_process_peers_calls calls = {hold_nothing, give_nothing, NULL};
    char why[200];

    asking->claims[device] = (struct weir_claim){.priority = 100};
    return weir__process_peers_join(driver, device, &calls, &asking->claims[device], why,
                                    sizeof why);
}

/* If the registry cannot be joined now, the next call tries again. */
void asking_ask(struct asking *asking, const struct weir_driver *driver, uint64_t bytes,
                int posts) {
    uint64_t now = weir__registry_now();
    int count = 0;

    (void)driver->cuDeviceGetCount(&count);
    for (int i = 0; i < count && i < ASKING_DEVICES; i++) {
        if (!asking->peers[i])
            asking->peers[i] = join(asking, driver, i);
        if (!asking->peers[i])
            continue;
        (void)weir__process_peers_ask(asking->peers[i], bytes, now, now + GIVE_NS);
        if (posts)
            (void)weir__process_peers_need(asking->peers[i], bytes);
    }
}

void asking_end(struct asking *asking) {
    for (int i = 0; i < ASKING_DEVICES; i++)
        if (asking->peers[i]) {
            (void)weir__process_peers_need(asking->peers[i], 0);
            weir__process_peers_leave(asking->peers[i], &asking->claims[i], &asking->shown[i]);
            asking->peers[i] = NULL;
        }
}
