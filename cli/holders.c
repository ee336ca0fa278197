/* SPDX-License-Identifier: MIT */
/* holders.c: see holders.h. */
#include "cli/holders.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/text.h"
#include "cli/common/jsonfile.h"
#include "config/settings.h"

/* A process that has not reported its memory after this time is shown as silent. */
#define SILENCE_NS UINT64_C(300000000)
#define PAUSE_NS UINT64_C(10000000)
/* The default of the setting `priority'.  The table shows only other values. */
enum { USUAL_PRIORITY = 100 };

/* Appends a device with this name.  Returns the device, or NULL if there is no host memory. */
static struct holders_device *append_holders_device(struct holders *h, const char *name) {
    struct holders_device *more = realloc(h->devices, (h->count + 1) * sizeof *more), *d;

    if (!more)
        return NULL;
    h->devices = more;
    d = &more[h->count++];
    memset(d, 0, sizeof *d);
    snprintf(d->name, sizeof d->name, "%s", name);
    jsonfile_plain(d->name); /* removes control characters, which a terminal would obey */
    return d;
}

static void add_named_device(const char *device, void *context) {
    struct weir_slot_file registry;

    if (weir__registry_view(&registry, device) != 0)
        return;
    weir__registry_ring(&registry);
    weir__registry_close(&registry);
    (void)append_holders_device(context, device);
}

/* Returns the device with this name, or NULL if there is none. */
static struct holders_device *find_holders_device(const struct holders *h, const char *name) {
    for (size_t i = 0; i < h->count; i++)
        if (strcmp(h->devices[i].name, name) == 0)
            return &h->devices[i];
    return NULL;
}

int holders_has_usage(const struct holders *h, const char *device) {
    const struct holders_device *d = find_holders_device(h, device);

    return d && d->total > 0;
}

void holders_set_usage(struct holders *h, const char *device, uint64_t total, uint64_t used) {
    struct holders_device *d = find_holders_device(h, device);

    if (!d)
        d = append_holders_device(h, device);
    if (!d)
        return;
    d->total = total;
    d->used = used;
    for (size_t i = 0; i < d->count; i++)
        used = weir__size_subtract(used, d->processes[i].entry.reserved);
    d->used_by_others = used;
}

static int is_unresponsive(const struct holders_device *d, const struct weir_registry_entry *e) {
    return e->as_of_ns < d->requested_ns;
}

/* Returns 1 if all figures of the process are current, else 0.  A process writes only its limit and its reserved memory
 * at each change, and other figures on request. */
static int are_figures_current(const struct holders_device *d, const struct holders_process *p) {
    return !p->is_stopped && !is_unresponsive(d, &p->entry);
}

static void store_member_group(struct holders_device *d, const struct weir_group_member *m,
                               const char *name) {
    for (size_t i = 0; i < d->count; i++) {
        struct holders_process *p = &d->processes[i];

        if (p->entry.pid == m->pid && p->entry.start == m->start &&
            p->entry.namespace == m->namespace)
            snprintf(p->group, sizeof p->group, "%s", name);
    }
}

static void store_group_names(const char *name, void *device) {
    struct weir_group_member *members = calloc(WEIR_GROUP_SLOTS, sizeof *members);
    struct holders_device *d = device;
    struct weir_group g;

    if (members && weir__group_view(&g, name, d->name) == 0) {
        size_t count = weir__group_members(&g, members);

        for (size_t i = 0; i < count; i++)
            store_member_group(d, &members[i], name);
        weir__group_leave(&g);
    }
    free(members);
}

/* Reads the reports of all processes on a device.  Sets the memory figures of the device from the latest report.
 * Returns 1 if all processes have reported since `requested_ns', 0 if not. */
static int read_entries(struct holders_device *d, uint64_t requested_ns) {
    uint64_t latest = 0, reserve = 0;
    struct weir_slot_file registry;
    int have_all_answered = 1;

    free(d->processes);
    d->processes = NULL;
    d->count = 0;
    d->requested_ns = requested_ns;
    if (weir__registry_view(&registry, d->name) != 0)
        return 1;
    d->processes = calloc(WEIR_SLOTS, sizeof *d->processes);
    for (int slot = 0; d->processes && slot < WEIR_SLOTS; slot++) {
        struct weir_registry_entry *e = &d->processes[d->count].entry;

        if (!weir__registry_read(&registry, slot, e))
            continue;
        d->processes[d->count].is_stopped = weir__registry_is_stopped(&registry, e);
        jsonfile_plain(e->command);
        d->count++;
        have_all_answered &= !is_unresponsive(d, e);
        reserve += e->reserved;
        if (e->device_total == 0 || e->as_of_ns < latest)
            continue;
        latest = e->as_of_ns;
        d->total = e->device_total;
        d->used = weir__size_subtract(e->device_total, e->device_free);
    }
    d->used_by_others = weir__size_subtract(d->used, reserve);
    weir__registry_close(&registry);
    weir__group_each_on(d->name, store_group_names, d);
    return have_all_answered;
}

void holders_query(struct holders *h, uint64_t wait_ns) {
    uint64_t asked = weir__registry_now();
    int have_all_answered;

    for (size_t i = 0; i < h->count; i++)
        free(h->devices[i].processes);
    h->count = 0;
    weir__registry_each(add_named_device, h);
    if (wait_ns > 0) {
        h->since_ns = h->requested_ns = asked;
    } else if (asked - h->requested_ns >= SILENCE_NS) {
        h->since_ns = h->requested_ns;
        h->requested_ns = asked;
    }
    do {
        if (h->count > 0 && wait_ns > 0)
            usleep((useconds_t)(wait_ns / 1000));
        have_all_answered = 1;
        for (size_t i = 0; i < h->count; i++)
            have_all_answered &= read_entries(&h->devices[i], h->since_ns);
        wait_ns = wait_ns > 0 ? PAUSE_NS : 0;
    } while (!have_all_answered && wait_ns > 0 && weir__registry_now() - asked < SILENCE_NS);
}

/* Returns the number of bytes as text, or "-" if the number is not known. */
static struct weir_shown shown_or_dash(int is_known, uint64_t bytes) {
    return is_known ? weir__shown(bytes) : (struct weir_shown){"-"};
}

static void print_process(FILE *file, const struct holders_device *d,
                          const struct holders_process *p) {
    const struct weir_registry_entry *e = &p->entry;
    int has_answered = are_figures_current(d, p);

    fprintf(file, "%7" PRIu64 " %8s %8s %8s %11s %8s %8s  %s%s%s", e->pid,
            e->limit == UINT64_MAX ? "max" : shown_or_dash(e->limit > 0, e->limit).text,
            WEIR_SHOWN(e->reserved), shown_or_dash(has_answered, e->in_use).text,
            shown_or_dash(has_answered, e->idle).text, WEIR_SHOWN(e->received),
            WEIR_SHOWN(e->freed), e->command, p->group[0] ? ", group " : "", p->group);
    if (e->priority != USUAL_PRIORITY)
        fprintf(file, ", priority %" PRIu64, e->priority);
    fputs(p->is_stopped           ? " (stopped, does not answer)\n"
          : is_unresponsive(d, e) ? " (does not answer)\n"
                                  : "\n",
          file);
}

void holders_print(FILE *file, const struct holders *h) {
    for (size_t i = 0; i < h->count; i++) {
        const struct holders_device *d = &h->devices[i];

        if (d->total > 0)
            fprintf(file, "device %s: %s, used %s, of this not by weir %s\n", d->name,
                    WEIR_SHOWN(d->total), WEIR_SHOWN(d->used), WEIR_SHOWN(d->used_by_others));
        else if (d->count > 0)
            fprintf(file, "device %s: unknown\n", d->name);
        if (d->count == 0)
            continue;
        fprintf(file, "%7s %8s %8s %8s %11s %8s %8s  %s\n", "PID", "LIMIT", "RESERVED", "IN USE",
                "RECLAIMABLE", "RECEIVED", "RELEASED", "COMMAND");
        for (size_t e = 0; e < d->count; e++)
            print_process(file, d, &d->processes[e]);
    }
}

static json_t *integer_or_null(int is_known, uint64_t bytes) {
    return is_known ? jsonfile_integer(bytes) : json_null();
}

static json_t *json_process(const struct holders_device *d, const struct holders_process *p) {
    const struct weir_registry_entry *e = &p->entry;

    return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:s*}", "pid",
                     jsonfile_integer(e->pid), "start", jsonfile_integer(e->start), "command",
                     e->command, "limit",
                     integer_or_null(e->limit > 0 && e->limit < UINT64_MAX, e->limit), "reserved",
                     jsonfile_integer(e->reserved), "in_use",
                     integer_or_null(are_figures_current(d, p), e->in_use), "reclaimable",
                     integer_or_null(are_figures_current(d, p), e->idle), "priority",
                     jsonfile_integer(e->priority), "received", jsonfile_integer(e->received),
                     "released", jsonfile_integer(e->freed), "stopped", p->is_stopped, "answers",
                     are_figures_current(d, p), "group", p->group[0] ? p->group : NULL);
}

json_t *holders_json(const struct holders *h) {
    json_t *devices = json_array();

    for (size_t i = 0; i < h->count; i++) {
        const struct holders_device *d = &h->devices[i];
        json_t *processes = json_array();

        for (size_t e = 0; e < d->count; e++)
            json_array_append_new(processes, json_process(d, &d->processes[e]));
        json_array_append_new(devices,
                              json_pack("{s:s, s:o, s:o, s:o, s:o}", "uuid", d->name, "total",
                                        integer_or_null(d->total > 0, d->total), "used",
                                        integer_or_null(d->total > 0, d->used), "not_by_weir",
                                        integer_or_null(d->total > 0, d->used_by_others),
                                        "processes", processes));
    }
    return devices;
}
