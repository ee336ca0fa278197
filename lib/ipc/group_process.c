/* SPDX-License-Identifier: MIT */
/* group_process.c: joins the group that WEIR_GROUP names, charges the memory of contexts to the group, and requests
 * memory from other members.
 *
 * Locks: A thread holds `lock` while it joins a group or changes a group's `primary`.  The group's lock comes after. */
#include "ipc/group_process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/output.h"
#include "base/size.h"
#include "base/text.h"
#include "base/variable.h"
#include "base/who.h"
#include "config/amount.h"

enum { MOST_DEVICES = 64, DRIVERS = 2, MOST_WEIGHT = 1000000, MOST_SHOWN = 12 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_group all[DRIVERS][MOST_DEVICES];
/* The groups that this process has joined, by driver and device.  An entry is NULL if there is no group. */
static _Atomic(struct weir_group *) groups[DRIVERS][MOST_DEVICES];
static atomic_int is_preload;

/* ---- settings ------------------------------------------------------------------------------------ */

static int refuse_setting(char *message, size_t bytes, const struct weir_group_text *setting,
                          const char *problem) {
    char quoted[80];

    weir__quote(setting->text, quoted, sizeof quoted);
    snprintf(message, bytes, "%s %s: %s", setting->label, quoted, problem);
    return -1;
}

static int check_folder(const struct weir_group_text *folder, char *message, size_t bytes) {
    const char *problem = NULL;
    struct stat is;
    char text[200];
    int file;

    if (folder->text[0] != '/')
        problem = "not an absolute path; expected a folder that the members share, such as "
                  "/run/weir";
    else if (stat(folder->text, &is) != 0)
        problem = "no such folder; expected one that all members have mounted";
    else if (!S_ISDIR(is.st_mode))
        problem = "it is not a folder; expected one that all members have mounted";
    else if (access(folder->text, W_OK | X_OK) != 0)
        problem = "this user may not write to it; expected a folder that the user of all "
                  "members may write to";
    if (problem)
        return refuse_setting(message, bytes, folder, problem);
    /* Tests O_TMPFILE, by which weir creates the group's shared file. */
    file = weir__file_open(folder->text, O_TMPFILE | O_RDWR, 0600);
    if (file < 0) {
        snprintf(text, sizeof text,
                 "no file can be made in it (%s); expected a folder of a file system such as tmpfs "
                 "or ext4",
                 strerror(errno));
        return refuse_setting(message, bytes, folder, text);
    }
    close(file);
    return 0;
}

static int read_limit(const struct weir_group_text *setting, weir_amount *limit, char *message,
                      size_t bytes) {
    struct weir_problem problem = {{0}};
    char text[240];

    if (!weir__amount_read(setting->text, limit, &problem)) {
        snprintf(text, sizeof text, "%s; expected an amount such as 40GiB or 50%%", problem.text);
        return refuse_setting(message, bytes, setting, text);
    }
    if (limit->kind != WEIR_AMOUNT_BYTES && limit->kind != WEIR_AMOUNT_OF_TOTAL)
        return refuse_setting(message, bytes, setting,
                              "a group's limit is fixed; expected an amount such as 40GiB or 50%");
    if (limit->value == 0)
        return refuse_setting(message, bytes, setting,
                              "nothing fits in it; expected an amount such as 40GiB or 50%");
    return 0;
}

int weir__group_settings_of(const struct weir_group_texts *t, struct weir_group_settings *out,
                            char *message, size_t bytes) {
    struct weir_problem problem = {{0}};
    const struct weir_group_text *alone = t->limit.text ? &t->limit : &t->share;
    char text[240];

    *out = (struct weir_group_settings){.weight = 1};
    if (!t->name.text && alone->text) {
        snprintf(text, sizeof text, "there is no group; expected %s with a name too",
                 t->name.label);
        return refuse_setting(message, bytes, alone, text);
    }
    if (!t->name.text)
        return 0;
    if (!weir__group_is_name(t->name.text))
        return refuse_setting(message, bytes, &t->name,
                              "not a name; expected up to 32 letters, digits, '.', '_' or '-'");
    snprintf(out->name, sizeof out->name, "%s", t->name.text);
    if (t->folder.text && check_folder(&t->folder, message, bytes) != 0)
        return -1;
    if (t->limit.text && read_limit(&t->limit, &out->limit, message, bytes) != 0)
        return -1;
    if (t->share.text && (!weir__count_read(t->share.text, MOST_WEIGHT, &out->weight, &problem) ||
                          out->weight == 0)) {
        snprintf(text, sizeof text, "%s; expected a weight from 1 to %d",
                 problem.text[0] ? problem.text : "it has no share", MOST_WEIGHT);
        return refuse_setting(message, bytes, &t->share, text);
    }
    return 1;
}

int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes) {
    const struct weir_group_texts texts = {
        .name = {weir__variable("WEIR_GROUP"), "WEIR_GROUP"},
        .limit = {weir__variable("WEIR_GROUP_LIMIT"), "WEIR_GROUP_LIMIT"},
        .share = {weir__variable("WEIR_GROUP_SHARE"), "WEIR_GROUP_SHARE"},
        .folder = {weir__variable("WEIR_GROUP_DIR"), "WEIR_GROUP_DIR"}};

    return weir__group_settings_of(&texts, out, message, bytes);
}

/* ---- joining ------------------------------------------------------------------------------------- */

void weir__group_set_charged_by_preload(void) {
    atomic_store(&is_preload, 1);
}

static void clear_groups_in_child(void) {
    for (int i = 0; i < DRIVERS; i++)
        for (int k = 0; k < MOST_DEVICES; k++)
            if (atomic_exchange(&groups[i][k], NULL))
                weir__group_close_in_child(&all[i][k]);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, clear_groups_in_child);
}

__attribute__((destructor)) void weir__group_process_ends(void) {
    for (int i = 0; i < DRIVERS; i++)
        for (int k = 0; k < MOST_DEVICES; k++)
            if (atomic_load(&groups[i][k]))
                weir__group_end(&all[i][k]);
}

static int driver_number(const struct weir_driver *driver) {
    return strcmp(driver->name, "model") == 0;
}

struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device) {
    return device >= 0 && device < MOST_DEVICES
               ? atomic_load_explicit(&groups[driver_number(driver)][device], memory_order_acquire)
               : NULL;
}

/* Joins the group in the settings.  On failure returns NULL with the reason in `why`.  The caller holds `lock`. */
static struct weir_group *join_on_device(const struct weir_driver *driver, CUdevice device,
                                         const struct weir_group_settings *settings, char *why) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct weir_group *g = &all[driver_number(driver)][device];
    struct weir_device_memory memory = {0};
    char name[WEIR_UUID_BYTES];
    uint64_t limit = 0;
    size_t total = 0;

    if (driver->cuDeviceTotalMem(&total, device) == CUDA_ERROR_INVALID_DEVICE)
        /* Writes no message, since the driver reports the error when the caller creates the context. */
        return NULL;
    if (weir__driver_uuid(driver, device, name) != CUDA_SUCCESS ||
        driver->cuDeviceTotalMem(&total, device) != CUDA_SUCCESS) {
        snprintf(why, WEIR_GROUP_WHY, "group '%s': the driver does not tell what device %d is",
                 settings->name, device);
        return NULL;
    }
    memory.total = memory.free = total;
    if (settings->limit.kind != WEIR_AMOUNT_DEFAULT)
        limit =
            weir__size_smaller(weir__budget_bytes(&settings->limit, &memory, 0), WEIR_GROUP_MOST);
    if (weir__group_join(g, settings->name, name, limit, settings->weight, why) != 0)
        return NULL;
    pthread_once(&once, watch_forks);
    atomic_store_explicit(&groups[driver_number(driver)][device], g, memory_order_release);
    return g;
}

struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]) {
    struct weir_group *g = weir__group_of(driver, device);
    struct weir_group_settings settings;

    why[0] = '\0';
    if (g || device < 0 || device >= MOST_DEVICES ||
        (!atomic_load(&is_preload) && weir__process_has_preload()) ||
        weir__group_settings(&settings, why, WEIR_GROUP_WHY) <= 0)
        return g;
    pthread_mutex_lock(&lock);
    g = weir__group_of(driver, device);
    if (!g)
        g = join_on_device(driver, device, &settings, why);
    pthread_mutex_unlock(&lock);
    return g;
}

/* ---- contexts ------------------------------------------------------------------------------------ */

int weir__group_context_begins(struct weir_group *g, int is_primary) {
    int may = 1;

    pthread_mutex_lock(&lock);
    if (!is_primary || g->primary == 0)
        may = weir__group_charge(g, WEIR_GROUP_CONTEXT, WEIR_GROUP_CONTEXT_BYTES);
    if (is_primary && may)
        g->primary++;
    pthread_mutex_unlock(&lock);
    return may;
}

void weir__group_context_ends(struct weir_group *g, int is_primary) {
    pthread_mutex_lock(&lock);
    if (!is_primary || (g->primary > 0 && --g->primary == 0))
        weir__group_uncharge(g, WEIR_GROUP_CONTEXT, WEIR_GROUP_CONTEXT_BYTES);
    pthread_mutex_unlock(&lock);
}

void weir__group_context_lost(struct weir_group *g) {
    pthread_mutex_lock(&lock);
    if (g->primary > 0)
        weir__group_uncharge(g, WEIR_GROUP_CONTEXT, WEIR_GROUP_CONTEXT_BYTES);
    g->primary = 0;
    pthread_mutex_unlock(&lock);
}

uint64_t weir__group_room(struct weir_group *g) {
    return weir__size_subtract(weir__group_limit(g), weir__group_used(g));
}

struct weir_answers weir__group_request_memory(struct weir_process_peers *n,
                                               struct weir_memory_request request) {
    struct weir_group *g = weir__process_peers_group(n);
    int is_limited = g && weir__group_room(g) < request.bytes;

    return weir__process_peers_request(n, request, is_limited ? g : NULL);
}

/* ---- reports ------------------------------------------------------------------------------------- */

void weir__group_describe(struct weir_group *g, char text[WEIR_GROUP_SHOWN]) {
    struct weir_group_member *members = malloc(WEIR_GROUP_SLOTS * sizeof *members);
    struct weir_output out = {.text = text, .bytes = WEIR_GROUP_SHOWN};
    size_t count;

    weir__put(&out, "group '%s': limit %s, used %s, room %s", g->name,
              WEIR_SHOWN(weir__group_limit(g)), WEIR_SHOWN(weir__group_used(g)),
              WEIR_SHOWN(weir__group_room(g)));
    if (!members)
        return;
    count = weir__group_members(g, members);
    for (const struct weir_group_member *m = members; m < members + count; m++)
        if (m < members + MOST_SHOWN)
            weir__put(&out, "\n  pid %" PRIu64 "%s (%.24s): holds %s, its share is %s, %s idle",
                      m->pid, m->is_own ? ", this process" : "", m->command, WEIR_SHOWN(m->bytes),
                      WEIR_SHOWN(m->share), WEIR_SHOWN(weir__size_smaller(m->idle, m->bytes)));
    if (count > MOST_SHOWN)
        weir__put(&out, "\n  and %zu more", count - MOST_SHOWN);
    free(members);
}
