/* SPDX-License-Identifier: MIT */
/* profile_use.c: uses a profile file, which contains the memory that earlier runs and this run needed. */
#include "config.h"

#include "api/profile_use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "base/log.h"
#include "base/result.h"
#include "base/size.h"
#include "config/settings.h"

/* Writes the key of the profile: a line that names the device, and a line that names the settings. */
static CUresult make_key(const struct weir_driver *driver, CUdevice device,
                         const weir_options *options, char key[WEIR_PROFILE_KEY_BYTES]) {
    static const enum weir_setting settings[] = {WEIR_SETTING_ENGINE, WEIR_SETTING_GROWTH,
                                                 WEIR_SETTING_LIMIT, WEIR_SETTING_CACHE};
    const size_t count = sizeof settings / sizeof settings[0];
    char name[96] = "", memory[WEIR_SPELL_BYTES], uuid[WEIR_UUID_BYTES], shown[96];
    size_t total = 0, length;
    CUresult result = driver->cuDeviceGetName(name, sizeof name - 1, device);

    if (result == CUDA_SUCCESS)
        result = weir__driver_uuid(driver, device, uuid);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceTotalMem(&total, device);
    if (result != CUDA_SUCCESS)
        return result;
    weir__bytes_spell(total, memory, sizeof memory);
    length = (size_t)snprintf(key, WEIR_PROFILE_KEY_BYTES, "device %s %s %s %s\nsettings",
                              driver->name, name, uuid, memory);
    for (size_t i = 0; i < count; i++) {
        weir__option_show(options, settings[i], shown, sizeof shown);
        length += (size_t)snprintf(key + length, WEIR_PROFILE_KEY_BYTES - length, " %s=%s%s",
                                   weir__setting_row(settings[i])->name, shown,
                                   i + 1 == count ? "\n" : "");
    }
    return CUDA_SUCCESS;
}

/* Sets run_profile->key and the absolute run_profile->path, which stays NULL without host memory. */
static CUresult locate(struct weir_run_profile *run_profile, const struct weir_driver *driver,
                       CUdevice device, const weir_options *options, const char *named) {
    char *folder = *named == '/' ? strdup("") : getcwd(NULL, 0), within[32] = "";
    CUresult result = make_key(driver, device, options, run_profile->key);
    struct stat about;

    if (stat(named, &about) == 0 && S_ISDIR(about.st_mode))
        snprintf(
            within, sizeof within, "/%016llx.profile",
            (unsigned long long)weir__profile_hash(run_profile->key, strlen(run_profile->key)));
    if (folder &&
        asprintf(&run_profile->path, "%s%s%s%s", folder, *folder ? "/" : "", named, within) < 0)
        run_profile->path = NULL;
    free(folder);
    return result;
}

struct weir_run_profile *weir__run_profile_open(const struct weir_driver *driver, CUdevice device,
                                                const weir_options *options) {
    struct weir_run_profile *run_profile;
    struct weir_problem problem;

    if (strcmp(options->profile, "off") == 0 || !weir__run_profile_is_possible(options))
        return NULL;
    run_profile = calloc(1, sizeof *run_profile);
    if (run_profile)
        run_profile->log = options->log;
    if (!run_profile ||
        locate(run_profile, driver, device, options, options->profile) != CUDA_SUCCESS ||
        !run_profile->path) {
        weir__log(options->log, WEIR_LOG_WARNING,
                  "profile %s: there is no host memory, or the driver did not describe the device: "
                  "this run has no profile",
                  options->profile);
        weir__run_profile_close(run_profile);
        return NULL;
    }
    run_profile->found =
        weir__profile_load(run_profile->path, run_profile->key, &run_profile->known, &problem);
    if (run_profile->found == WEIR_PROFILE_NONE)
        weir__log(options->log, WEIR_LOG_INFO, "profile %s: there is none yet", run_profile->path);
    else if (run_profile->found != WEIR_PROFILE_READ)
        weir__log(options->log, WEIR_LOG_WARNING, "profile %s: %s: weir ignores it, and %s",
                  run_profile->path, problem.text,
                  run_profile->found == WEIR_PROFILE_USELESS ? "replaces it when this run ends"
                                                             : "leaves it alone");
    return run_profile;
}

void weir__run_profile_close(struct weir_run_profile *run_profile) {
    if (run_profile)
        free(run_profile->path);
    free(run_profile);
}

uint64_t weir__run_profile_target(weir_allocator *a) {
    const struct weir_run_profile *run_profile = a->run_profile;
    uint64_t wanted = weir__profile_target(&run_profile->known), target;

    if (wanted == 0)
        return 0;
    target = weir__size_smaller(wanted, a->reserve.limit.bytes);
    target = weir__size_smaller(target, a->device.total);
    target = weir__size_smaller(target, weir__device_free(&a->device));
    weir__log(a->options.log, WEIR_LOG_INFO,
              "profile %s: %llu run%s, the next needs %s: %s is preallocated", run_profile->path,
              (unsigned long long)run_profile->known.runs, weir__plural(run_profile->known.runs),
              WEIR_SHOWN(wanted), WEIR_SHOWN(target));
    return target;
}

/* Adds this run to the profile file.  Reads the file again first, because another run may have replaced it. */
static weir_status save(weir_allocator *a, const struct weir_run_profile *run_profile,
                        const weir_statistics *s) {
    uint64_t given = weir__size_larger(s->prealloc_asked, s->prealloc_kept);
    struct weir_profile_run run = {a->run_id, s->reserved_peak, s->in_use_peak};
    struct weir_profile profile = run_profile->known;
    struct weir_problem there, problem;
    enum weir_profile_found found =
        weir__profile_load(run_profile->path, run_profile->key, &profile, &there);

    weir__profile_add(&profile, run, run.reserved > given);
    if (found == WEIR_PROFILE_FOREIGN)
        problem = there;
    else if (weir__profile_store(run_profile->path, run_profile->key, &profile, &problem)) {
        if (found == WEIR_PROFILE_USELESS && run_profile->found != found)
            weir__log(run_profile->log, WEIR_LOG_WARNING, "profile %s: %s: this run replaces it",
                      run_profile->path, there.text);
        return WEIR_OK;
    }
    weir__log(run_profile->log, WEIR_LOG_WARNING, "profile %s: %s: this run is not recorded",
              run_profile->path, problem.text);
    return weir__without_driver(WEIR_E_FILE);
}

weir_status weir__run_profile_save(weir_allocator *a, const char *path) {
    weir_statistics s = {.size = sizeof s};
    weir_status status = weir_stats(a, &s);
    struct weir_run_profile elsewhere = {.log = a->options.log};
    CUresult result;

    /* unreached: weir_stats does not fail for a checked allocator */
    if (status != WEIR_OK || s.allocs == 0 || s.in_use_peak == 0)
        return status;
    if (!path)
        return save(a, a->run_profile, &s);
    result = locate(&elsewhere, a->device.driver, a->device.ordinal, &a->options, path);
    if (result != CUDA_SUCCESS)
        status = weir__device_status(&a->device, result);
    else if (!elsewhere.path)
        status = weir__without_driver(WEIR_E_HOST_MEMORY);
    else
        status = save(a, &elsewhere, &s);
    free(elsewhere.path);
    return status;
}
