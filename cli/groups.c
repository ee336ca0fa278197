/* SPDX-License-Identifier: MIT */
/* groups.c: see groups.h. */
#include "cli/groups.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/size.h"
#include "base/text.h"
#include "base/variable.h"
#include "cli/common/jsonfile.h"
#include "ipc/group_process.h"

/* ---- flags --------------------------------------------------------------------------------------- */

struct check {
    const struct weir_group_settings *settings;
    char *message;
    size_t bytes;
    size_t members;
    int failed;
};

/* If the group has members on the device, checks that the user's limit is equal to the group's limit.  Does not compare
 * percentages, because their values in bytes depend on the device. */
static void check_limit(const char *device, void *context) {
    struct check *check = context;
    char has[WEIR_SPELL_BYTES], own[WEIR_SPELL_BYTES];
    struct weir_group_member *members;
    struct weir_group g;
    size_t count;

    if (check->failed || weir__group_view(&g, check->settings->name, device) != 0)
        return;
    members = malloc(WEIR_GROUP_SLOTS * sizeof *members);
    count = members ? weir__group_members(&g, members) : 0;
    check->members += count;
    if (count > 0 && check->settings->limit.kind == WEIR_AMOUNT_BYTES &&
        weir__group_limit(&g) != check->settings->limit.value) {
        weir__bytes_spell(weir__group_limit(&g), has, sizeof has);
        weir__bytes_spell(check->settings->limit.value, own, sizeof own);
        snprintf(check->message, check->bytes,
                 "group '%s' has members with the limit %s on %s, not %s: give --group-limit %s, "
                 "or none, or wait until the group has ended",
                 check->settings->name, has, device, own, has);
        check->failed = 1;
    }
    free(members);
    weir__group_leave(&g);
}

int group_flags_check(const struct group_flags *flags, char *message, size_t bytes) {
    const struct weir_group_texts texts = {
        .name = {flags->name ? flags->name : weir__variable("WEIR_GROUP"),
                 flags->name || flags->limit ? "--group" : "WEIR_GROUP"},
        .limit = {flags->limit ? flags->limit : weir__variable("WEIR_GROUP_LIMIT"),
                  flags->limit ? "--group-limit" : "WEIR_GROUP_LIMIT"},
        .share = {weir__variable("WEIR_GROUP_SHARE"), "WEIR_GROUP_SHARE"},
        .folder = {weir__variable("WEIR_GROUP_DIR"), "WEIR_GROUP_DIR"}};
    struct weir_group_settings settings;
    struct check check = {.settings = &settings, .message = message, .bytes = bytes};
    int is = weir__group_settings_of(&texts, &settings, message, bytes);

    if (is <= 0)
        return is;
    weir__group_each(settings.name, check_limit, &check);
    if (check.members == 0 && settings.limit.kind == WEIR_AMOUNT_DEFAULT)
        fprintf(stderr,
                "weir run: group '%s' has no limit, since it has no members: give %s with an "
                "amount such as 40GiB, or start a member with one first\n",
                settings.name, flags->name ? "--group-limit" : "WEIR_GROUP_LIMIT");
    return check.failed ? -1 : 0;
}

int group_flags_put(const struct group_flags *flags, command_put_function *put, void *context) {
    return (flags->name && put(context, "WEIR_GROUP", flags->name)) ||
           (flags->limit && put(context, "WEIR_GROUP_LIMIT", flags->limit));
}

/* ---- members ------------------------------------------------------------------------------------- */

/* The state of a group on one device. */
struct seen {
    char device[WEIR_REGISTRY_DEVICE];
    uint64_t limit, used;
    size_t count;
    struct weir_group_member member[WEIR_GROUP_SLOTS];
};

struct list {
    const char *name;
    void (*visit)(const struct seen *seen, void *context);
    void *context;
};

static void read_group_device(const char *device, void *context) {
    const struct list *list = context;
    struct seen *seen = calloc(1, sizeof *seen);
    struct weir_group g;

    if (!seen || weir__group_view(&g, list->name, device) != 0) {
        free(seen);
        return;
    }
    (void)weir__group_recover(&g);
    snprintf(seen->device, sizeof seen->device, "%s", device);
    seen->limit = weir__group_limit(&g);
    seen->used = weir__group_used(&g);
    seen->count = weir__group_members(&g, seen->member);
    weir__group_leave(&g);
    if (seen->count > 0)
        list->visit(seen, list->context);
    free(seen);
}

static void count_group_members(const struct seen *seen, void *number) {
    *(size_t *)number += seen->count;
}

int group_exists(const char *name) {
    size_t members = 0;

    weir__group_each(name, read_group_device, &(struct list){name, count_group_members, &members});
    return members > 0;
}

static void print_member_kinds(FILE *file, const struct weir_group_member *m) {
    const char *before = "        ";

    for (int k = 0; k < WEIR_GROUP_KIND_COUNT; k++)
        if (m->kind[k] > 0) {
            fprintf(file, "%s%s %s%s", before, weir__group_kind_word((enum weir_group_kind)k),
                    WEIR_SHOWN(m->kind[k]), k == WEIR_GROUP_CONTEXT ? " (estimate)" : "");
            before = ", ";
        }
    if (before[0] == ',')
        fputc('\n', file);
}

static void print_group_device(const struct seen *s, void *to) {
    FILE *file = to;

    fprintf(file, "%s: limit %s, used %s, room %s, %zu member%s\n", s->device, WEIR_SHOWN(s->limit),
            WEIR_SHOWN(s->used), WEIR_SHOWN(weir__size_subtract(s->limit, s->used)), s->count,
            weir__plural(s->count));
    fprintf(file, "%7s %9s %9s %9s %7s  %s\n", "PID", "USED", "SHARE", "IDLE", "WEIGHT", "COMMAND");
    for (size_t i = 0; i < s->count; i++) {
        const struct weir_group_member *m = &s->member[i];

        fprintf(file, "%7" PRIu64 " %9s %9s %9s %7" PRIu64 "  %s\n", m->pid, WEIR_SHOWN(m->bytes),
                WEIR_SHOWN(m->share), WEIR_SHOWN(weir__size_smaller(m->idle, m->bytes)), m->weight,
                m->command);
        print_member_kinds(file, m);
    }
}

void group_print(FILE *file, const char *name) {
    fprintf(file, "weir top, group '%s'\n", name);
    weir__group_each(name, read_group_device, &(struct list){name, print_group_device, file});
}

static json_t *json_member(const struct weir_group_member *m) {
    json_t *kinds = json_object();

    for (int k = 0; k < WEIR_GROUP_KIND_COUNT; k++)
        json_object_set_new(kinds, weir__group_kind_word((enum weir_group_kind)k),
                            jsonfile_integer(m->kind[k]));
    return json_pack("{s:o, s:o*, s:o, s:o, s:o, s:o, s:o}", "pid", jsonfile_integer(m->pid),
                     "command", json_string(m->command), "used", jsonfile_integer(m->bytes),
                     "share", jsonfile_integer(m->share), "idle",
                     jsonfile_integer(weir__size_smaller(m->idle, m->bytes)), "weight",
                     jsonfile_integer(m->weight), "of", kinds);
}

static void append_group_device(const struct seen *s, void *devices) {
    json_t *members = json_array();

    for (size_t i = 0; i < s->count; i++)
        json_array_append_new(members, json_member(&s->member[i]));
    json_array_append_new(devices, json_pack("{s:s, s:o, s:o, s:o}", "device", s->device, "limit",
                                             jsonfile_integer(s->limit), "used",
                                             jsonfile_integer(s->used), "members", members));
}

json_t *group_json(const char *name) {
    json_t *devices = json_array();

    weir__group_each(name, read_group_device, &(struct list){name, append_group_device, devices});
    return json_pack("{s:s, s:o}", "group", name, "devices", devices);
}
