/* SPDX-License-Identifier: MIT */
/* peers_look.c: reads the registry of a device, also in a process that is not in it.
 *
 * Must not know: what an allocator is.
 */
#include "ipc/process_peers.h"

#include <stdio.h>
#include <unistd.h>

#include "base/who.h"
#include "ipc/registry.h"

int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]) {
    return (!driver->is_shared || driver->is_shared()) &&
           weir__driver_uuid(driver, device, name) == CUDA_SUCCESS;
}

uint64_t weir__process_peers_weights_in(struct weir_registry *registry, uint64_t most) {
    struct weir_registry_entry entry;
    uint64_t sum = 0;

    for (int slot = 0; slot < WEIR_REGISTRY_SLOTS; slot++)
        if (weir__registry_read(registry, slot, &entry) && entry.weight < most - sum)
            sum += entry.weight;
    return sum;
}

uint64_t weir__process_peers_look(const struct weir_driver *driver, CUdevice device,
                                  uint64_t most) {
    char name[WEIR_UUID_BYTES];
    struct weir_registry registry;
    uint64_t sum;

    if (!weir__process_peers_device(driver, device, name) ||
        weir__registry_look(&registry, name) != 0)
        return 0;
    sum = weir__process_peers_weights_in(&registry, most);
    weir__registry_close(&registry);
    return sum;
}

uint64_t weir__process_peers_reserve(const struct weir_driver *driver, CUdevice device) {
    char name[WEIR_UUID_BYTES];
    struct weir_registry_entry entry;
    struct weir_registry registry;
    uint64_t sum = 0;

    if (!weir__process_peers_device(driver, device, name) ||
        weir__registry_look(&registry, name) != 0)
        return 0;
    for (int slot = 0; slot < WEIR_REGISTRY_SLOTS; slot++)
        if (weir__registry_read(&registry, slot, &entry) && entry.pid != (uint64_t)getpid())
            sum += entry.reserved;
    weir__registry_close(&registry);
    return sum;
}

void weir__process_peers_name(char *text, size_t bytes) {
    char command[WEIR_COMMAND_BYTES], *name = command;

    weir__process_command(command, sizeof command);
    for (char *at = command; *at && *at != ' '; at++)
        if (*at == '/')
            name = at + 1;
    snprintf(text, bytes, "%.*s", (int)bytes - 1, name);
}
