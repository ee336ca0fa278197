/* SPDX-License-Identifier: MIT */
/* profile_use.h: uses a profile for preallocation, and saves what a run needed.
 *
 * If the options name a profile, the allocator reads the profile's file before it preallocates.  The allocator writes
 * how much memory this run has needed when it is destroyed, or when the program calls weir_profile_save.  Requests
 * never read a profile. */
#ifndef WEIR_PROFILE_USE_H
#define WEIR_PROFILE_USE_H

#include <weir/allocator.h>

#include "driver/driver.h"
#include "reserve/profile.h"

/* The profile of an allocator.  After weir__learn_open(), no field changes. */
struct weir_learn {
    char *path; /* the absolute path of the file, since the process may change its folder */
    char key[WEIR_PROFILE_KEY_BYTES];
    /* The contents of the file, or 0 in all fields if weir could not use the file. */
    struct weir_profile known;
    enum weir_profile_found found;
    int log; /* the log level for warnings about the file */
};

/* Returns 1 if an allocator with these complete options can use a profile, else 0. */
static inline int weir__learn_can(const weir_options *options) {
    return options->engine != WEIR_ENGINE_DIRECT && options->engine != WEIR_ENGINE_BFC_FIXED;
}

/* Reads the profile that the complete options name.  Returns NULL if the options name no profile.  If the profile
 * cannot be used, logs the reason and returns NULL. */
struct weir_learn *weir__learn_open(const struct weir_driver *driver, CUdevice device,
                                    const weir_options *options);
/* Frees a profile.  `learn` may be NULL. */
void weir__learn_close(struct weir_learn *learn);
/* Returns how many bytes weir shall preallocate according to the profile, within the limit and the device's free
 * memory.  Returns 0 if the profile has no record of earlier runs. */
uint64_t weir__learn_target(weir_allocator *a);
/* Saves what this run has needed, as weir_profile_save does.  If `path` is NULL, saves to the allocator's own profile.
 * Logs a failure. */
weir_status weir__learn_save(weir_allocator *a, const char *path);

#endif
