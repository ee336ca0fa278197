/* SPDX-License-Identifier: MIT */
/* profile_use.h: reads an allocator's profile, and writes this run to the profile.
 *
 * An allocator whose options name a profile reads the file before it preallocates.  The allocator writes how much
 * memory this run needed to the file when the allocator is destroyed, or when weir_profile_save is called.  No request
 * reads a profile.
 */
#ifndef WEIR_PROFILE_USE_H
#define WEIR_PROFILE_USE_H

#include <weir/allocator.h>

#include "driver/driver.h"
#include "reserve/profile.h"

/* The profile of an allocator; fixed once weir__learn_open has made it. */
struct weir_learn {
    char *path; /* absolute, since the process may change its folder */
    char key[WEIR_PROFILE_KEY_BYTES];
    struct weir_profile known; /* all zero if weir could not use the file */
    enum weir_profile_found found;
    int log; /* the log level for warnings about the file */
};

/* Returns 1 if an allocator with these completed options can have a profile, else 0. */
static inline int weir__learn_can(const weir_options *options) {
    return options->engine != WEIR_ENGINE_DIRECT && options->engine != WEIR_ENGINE_BFC_FIXED;
}

/* Reads the profile that the completed options name.  Returns NULL if the options name no profile.  Logs the reason and
 * returns NULL if the profile cannot be used. */
struct weir_learn *weir__learn_open(const struct weir_driver *driver, CUdevice device,
                                    const weir_options *options);
/* Frees a profile.  `learn` may be NULL. */
void weir__learn_close(struct weir_learn *learn);
/* Returns the bytes that the profile advises to preallocate, within the limit and the free memory of the device.
 * Returns 0 if the profile has no advice. */
uint64_t weir__learn_target(weir_allocator *a);
/* Does what weir_profile_save does.  Logs a failure. */
weir_status weir__learn_save(weir_allocator *a, const char *path);

#endif
