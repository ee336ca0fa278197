/* SPDX-License-Identifier: MIT */
/* others.c: see others.h. */
#include "cli/parking/others.h"

#include <string.h>

#include "base/size.h"
#include "cli/parking/record.h"
#include "ipc/registry.h"

struct look {
    pid_t pid;
    uint64_t start;
    struct others own, all; /* of the devices where it has an entry, and of all */
    int has_own;
};

static int began_earlier(const struct weir_registry_entry *entry, const struct look *look) {
    return entry->start < look->start ||
           (entry->start == look->start && entry->pid < (uint64_t)look->pid);
}

static void add_entry(const struct weir_registry_entry *entry, const struct look *look,
                      struct others *to) {
    struct record record;
    int is_parked = record_find((pid_t)entry->pid, &record);

    to->lacks = weir__size_larger(to->lacks, entry->needs);
    to->room = weir__size_larger(to->room, entry->device_free);
    if (is_parked)
        return;
    to->any |= weir__registry_frees_if_parked(entry);
    if (entry->needs == 0)
        return;
    to->any_lacks = 1;
    to->lacks_first |= entry->parks == WEIR_REGISTRY_STAYS || began_earlier(entry, look);
}

static void add(struct others *to, const struct others *more) {
    to->lacks = weir__size_larger(to->lacks, more->lacks);
    to->any |= more->any;
    to->any_lacks |= more->any_lacks;
    to->lacks_first |= more->lacks_first;
    to->room = weir__size_larger(to->room, more->room);
}

static void look_at_device(const char *device, void *context) {
    struct weir_registry_entry entry;
    struct weir_registry registry;
    struct look *look = context;
    struct others others = {0};
    uint64_t idle = 0;
    int has_own = 0;

    if (weir__registry_look(&registry, device) != 0)
        return;
    for (int slot = 0; slot < WEIR_REGISTRY_SLOTS; slot++) {
        if (!weir__registry_read(&registry, slot, &entry))
            continue;
        if (entry.pid == (uint64_t)look->pid && entry.start == look->start) {
            has_own = 1;
            continue;
        }
        add_entry(&entry, look, &others);
        idle += entry.idle;
    }
    weir__registry_close(&registry);
    others.room += idle;
    add(&look->all, &others);
    if (has_own)
        add(&look->own, &others);
    look->has_own |= has_own;
}

struct others others_look(pid_t pid, uint64_t start) {
    struct look look = {.pid = pid, .start = start};

    weir__registry_each(look_at_device, &look);
    return look.has_own ? look.own : look.all;
}

static void ring_device(const char *device, void *context) {
    struct weir_registry registry;

    (void)context;
    if (weir__registry_look(&registry, device) != 0)
        return;
    weir__registry_ring(&registry);
    weir__registry_close(&registry);
}

void others_ring(void) {
    weir__registry_each(ring_device, NULL);
}
