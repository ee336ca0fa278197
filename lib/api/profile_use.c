/* SPDX-License-Identifier: MIT */
/* profile_use.c: see profile_use.h.
 *
 * Nothing here is in the way of a request: a profile is read before the engine is opened and written when
 * all is over, or by a call of its own.  No lock is held and none is needed: what an allocator knows of
 * its profile is fixed, and files are replaced as a whole.
 *
 * Must not know: how a profile is written (profile.h), how engines grow.
 */
#include "config.h"

#include "api/profile_use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "base/log.h"
#include "base/text.h"
#include "config/settings.h"

/* ---- what it is valid for -------------------------------------------------------------------- */

/* Names are the driver's; a line has no other than printable characters. */
static void make_printable(char *text) {
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

static CUresult describe_device(const struct weir_driver *driver, CUdevice device, char *text,
                                size_t bytes) {
    char name[96] = "", memory[WEIR_SPELL_BYTES], uuid[WEIR_UUID_BYTES];
    size_t total = 0;
    CUresult result = driver->cuDeviceGetName(name, sizeof name - 1, device);

    if (result == CUDA_SUCCESS)
        result = weir__driver_uuid(driver, device, uuid);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceTotalMem(&total, device);
    if (result != CUDA_SUCCESS)
        return result;
    weir__bytes_spell(total, memory, sizeof memory);
    snprintf(text, bytes, "%s %s %s %s", driver->name, name, uuid, memory);
    make_printable(text);
    return CUDA_SUCCESS;
}

static void describe_settings(const weir_options *options, char *text, size_t bytes) {
    static const enum weir_setting settings[] = {WEIR_SETTING_ENGINE, WEIR_SETTING_PACKING,
                                                 WEIR_SETTING_GROWTH, WEIR_SETTING_LIMIT,
                                                 WEIR_SETTING_FRONT};
    char shown[WEIR_SHOW_BYTES];
    size_t length = 0;

    /* unreached: no room, of which there is more than all of them take */
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && length < bytes; i++) {
        weir__option_show(options, settings[i], shown, sizeof shown);
        length += (size_t)snprintf(text + length, bytes - length, "%s%s=%s", i ? " " : "",
                                   weir__setting_row(settings[i])->name, shown);
    }
    make_printable(text);
}

static CUresult make_key(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, struct weir_profile_key *key) {
    describe_settings(options, key->settings, sizeof key->settings);
    return describe_device(driver, device, key->device, sizeof key->device);
}

/* Of this run among all. */
static uint64_t make_id(const void *self) {
    struct {
        struct timespec now;
        const void *self;
        pid_t process;
    } run;

    memset(&run, 0, sizeof run);
    clock_gettime(CLOCK_REALTIME, &run.now);
    run.self = self;
    run.process = getpid();
    return weir__profile_hash(&run, sizeof run);
}

/* ---- life ------------------------------------------------------------------------------------ */

int weir__learn_can(const weir_options *options) {
    return options->engine != WEIR_ENGINE_DIRECT && options->engine != WEIR_ENGINE_BFC_FIXED;
}

/* The file that is meant, from the root: the process may go elsewhere.  NULL: out of memory, or there is
 * no such place. */
static char *find_file(const char *named, const struct weir_profile_key *key) {
    char *folder = *named == '/' ? strdup("") : getcwd(NULL, 0), *path = NULL, ending[32] = "";
    struct stat about;

    if (stat(named, &about) == 0 && S_ISDIR(about.st_mode))
        snprintf(ending, sizeof ending, "/%016llx.profile",
                 (unsigned long long)weir__profile_key_hash(key));
    if (folder && asprintf(&path, "%s%s%s%s", folder, *named == '/' ? "" : "/", named, ending) < 0)
        path = NULL;
    free(folder);
    return path;
}

static void read_profile(struct weir_learn *learn, int log) {
    struct weir_problem problem, kept;

    if (weir__profile_load(learn->path, &learn->key, &learn->known, &problem))
        return;
    if (!problem.text[0]) {
        weir__log(log, WEIR_LOG_INFO, "profile %s: there is none yet", learn->path);
        return;
    }
    learn->is_told = weir__profile_may_replace(learn->path, &kept);
    weir__log(log, WEIR_LOG_WARNING, "profile %s: %s: it is ignored, and %s", learn->path,
              problem.text, learn->is_told ? "replaced as a run is noted" : "left alone");
}

struct weir_learn *weir__learn_open(const struct weir_driver *driver, CUdevice device,
                                    const weir_options *options) {
    struct weir_learn *learn;

    if (strcmp(options->profile, "off") == 0 || !weir__learn_can(options))
        return NULL;
    learn = calloc(1, sizeof *learn);
    if (learn && make_key(driver, device, options, &learn->key) == CUDA_SUCCESS)
        learn->path = find_file(options->profile, &learn->key);
    if (!learn || !learn->path) {
        weir__log(options->log, WEIR_LOG_WARNING, "profile %s: it cannot be used",
                  options->profile);
        free(learn);
        return NULL;
    }
    learn->id = make_id(learn);
    read_profile(learn, options->log);
    return learn;
}

void weir__learn_close(struct weir_learn *learn) {
    if (learn) {
        weir__profile_drop(&learn->known);
        free(learn->path);
    }
    free(learn);
}

uint64_t weir__learn_target(const struct weir_learn *learn, weir_allocator *a) {
    uint64_t wanted = weir__profile_target(&learn->known), target = wanted, free_bytes;

    if (wanted == 0)
        return 0;
    free_bytes = weir__device_free(&a->device);
    target = target < a->reserve.quota.limit ? target : a->reserve.quota.limit;
    target = target < free_bytes ? target : free_bytes;
    target = target < a->device.total ? target : a->device.total;
    weir__log(a->options.log, WEIR_LOG_INFO,
              "profile %s: %llu run%s, the next needs %s: %s is preallocated", learn->path,
              (unsigned long long)learn->known.merged, weir__plural(learn->known.merged),
              WEIR_SHOWN(wanted), WEIR_SHOWN(target));
    return target;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static int is_mapped(const weir_options *options) {
    return options->engine == WEIR_ENGINE_MAPPED;
}

struct weir_planned *weir__learn_plan(struct weir_learn *learn, const weir_options *options) {
    struct weir_profile_plan *known = &learn->known.planned;
    struct weir_planned *planned =
        is_mapped(options) && known->plan.bytes > 0 ? calloc(1, sizeof *planned) : NULL;

    if (!planned)
        return NULL;
    planned->plan = known->plan;
    planned->small = (size_t)known->small;
    planned->is_kept = known->is_kept;
    *known = (struct weir_profile_plan){0};
    return planned;
}

struct weir_lifetimes *weir__learn_lifetimes(const weir_options *options) {
    struct weir_lifetimes *lifetimes = is_mapped(options) ? malloc(sizeof *lifetimes) : NULL;

    if (lifetimes)
        weir__lifetimes_open(lifetimes);
    return lifetimes;
}

void weir__learn_end_lifetimes(struct weir_lifetimes *lifetimes) {
    if (lifetimes)
        weir__lifetimes_close(lifetimes);
    free(lifetimes);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The newest steps by which the reserved memory grew, oldest first; how many. */
static size_t take_steps(weir_allocator *a, struct weir_profile_step step[WEIR_PROFILE_STEPS]) {
    weir_event events[32];
    uint64_t after = 0;
    size_t count, steps = 0;

    do {
        /* unreached: a failure, which the caller has had before */
        if (weir_events(a, after, events, sizeof events[0], sizeof events / sizeof events[0],
                        &count) != WEIR_OK)
            break;
        for (size_t i = 0; i < count; i++) {
            if (events[i].shrink)
                continue;
            if (steps == WEIR_PROFILE_STEPS)
                memmove(&step[0], &step[1], --steps * sizeof step[0]);
            step[steps++] = (struct weir_profile_step){events[i].got, events[i].cause};
        }
        if (count > 0)
            after = events[count - 1].sequence;
    } while (count == sizeof events / sizeof events[0]);
    return steps;
}

static struct weir_profile_run take_run(const weir_statistics *s, uint64_t id) {
    uint64_t given = s->prealloc_asked > s->prealloc_kept ? s->prealloc_asked : s->prealloc_kept;

    return (struct weir_profile_run){.id = id,
                                     .reserve = s->reserve_peak,
                                     .in_use = s->in_use_peak,
                                     .grew = s->reserve_peak > given};
}

/* The mapped engine's. */
static uint64_t in_pages(uint64_t bytes) {
    const uint64_t page = UINT64_C(2) << 20;

    return (bytes + page - 1) / page * page;
}

static int is_same(const struct weir_plan *a, const struct weir_plan *b) {
    return a->places > 0 && a->places == b->places && a->exact == b->exact &&
           memcmp(a->place, b->place, a->places * sizeof *a->place) == 0;
}

/* Plans for the next run.  What this one would have needed with the plan is known if the plan has all that it had at its
 * most. */
static void plan(const weir_allocator *a, struct weir_profile *profile,
                 struct weir_profile_run *run) {
    struct weir_profile_plan *planned = &profile->planned;
    uint64_t needed;
    size_t small;
    struct weir_plan made;

    if (a->lifetimes && weir__lifetimes_plan(a->lifetimes, &made, &small)) {
        weir__profile_drop(profile);
        *planned = (struct weir_profile_plan){.plan = made, .small = small};
    } else if (!a->planned || a->lifetimes) { /* several streams, or too little */
        return;
    }
    planned->is_kept = a->planned && is_same(&planned->plan, &a->planned->plan) &&
                       weir__planned_is_kept(a->planned);
    needed = in_pages(planned->plan.exact > 0 ? planned->plan.exact : planned->plan.bytes) +
             in_pages(planned->small);
    if (run->in_use <= needed)
        run->planned = needed;
}

/* The engine has the plan. */
static struct weir_profile without_plan(const struct weir_profile *known) {
    struct weir_profile profile = *known;

    profile.planned = (struct weir_profile_plan){0};
    return profile;
}

/* What other runs have left there since counts too. */
static weir_status save(weir_allocator *a, const struct weir_learn *learn,
                        const weir_statistics *s) {
    struct weir_profile_run run = take_run(s, learn->id);
    struct weir_profile_step step[WEIR_PROFILE_STEPS];
    struct weir_profile profile;
    int is_stored;
    struct weir_problem problem = {0}, there = {0};

    if (weir__profile_load(learn->path, &learn->key, &profile, &there))
        there.text[0] = '\0';
    else if (there.lacks_memory)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    else
        profile = without_plan(&learn->known);
    plan(a, &profile, &run);
    weir__profile_add(&profile, &run, step, take_steps(a, step));
    is_stored = weir__profile_store(learn->path, &learn->key, &profile, &problem);
    weir__profile_drop(&profile);
    if (is_stored) {
        if (there.text[0] && !learn->is_told)
            weir__log(a->options.log, WEIR_LOG_WARNING, "profile %s: %s: this run replaces it",
                      learn->path, there.text);
        return WEIR_OK;
    }
    weir__log(a->options.log, WEIR_LOG_WARNING, "profile %s: %s: this run is not noted",
              learn->path, problem.text);
    return weir__without_driver(problem.lacks_memory ? WEIR_E_HOST_MEMORY : WEIR_E_FILE);
}

/* As if the options had named it. */
static weir_status save_elsewhere(weir_allocator *a, const weir_statistics *s, const char *path) {
    struct weir_learn learn = {.id = a->learn ? a->learn->id : make_id(a)};
    weir_status status;
    CUresult result = make_key(a->device.driver, a->device.ordinal, &a->options, &learn.key);

    if (result != CUDA_SUCCESS)
        return weir__device_status(&a->device, result);
    learn.path = find_file(path, &learn.key);
    if (!learn.path)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = save(a, &learn, s);
    free(learn.path);
    return status;
}

weir_status weir__learn_save(weir_allocator *a, const char *path) {
    weir_statistics s = {.size = sizeof s};
    weir_status status = weir_stats(a, &s);

    /* unreached: a failure, likewise */
    if (status != WEIR_OK || s.allocs == 0 || s.in_use_peak == 0)
        return status;
    return path ? save_elsewhere(a, &s, path) : save(a, a->learn, &s);
}
