/* SPDX-License-Identifier: MIT */
/* profile_use.h: what an allocator reads from its profile and writes to it.
 *
 * An allocator whose options name a profile reads the file before it preallocates, and writes how much memory this run
 * needed when it is destroyed, or when weir_profile_save is called.  No request reads a profile.
 *
 * Must not know: how a profile is written (profile.h), how engines grow.
 */
#ifndef WEIR_PROFILE_USE_H
#define WEIR_PROFILE_USE_H

#include <weir/allocator.h>

#include "driver/driver.h"
#include "reserve/profile.h"

/* The profile of an allocator; fixed once weir__learn_open has made it. */
struct weir_learn {
    char *path; /* absolute, since the process may change its folder */
    struct weir_profile_key key;
    struct weir_profile
        known; /* the contents at that time, or all zero if weir could not use the file */
    enum weir_profile_found found;
};

/* Returns 1 if an allocator with these completed options can have a profile. */
int weir__learn_can(const weir_options *options);
/* Returns an id for the run of the allocator with this number in the process.  Every other run has a different id. */
uint64_t weir__learn_run_id(uint64_t number);
/* Reads the profile that the completed options name.  Returns NULL if they name none, or if it cannot be used; then the
 * log says why. */
struct weir_learn *weir__learn_open(const struct weir_driver *driver, CUdevice device,
                                    const weir_options *options);
/* Frees a profile; NULL is allowed. */
void weir__learn_close(struct weir_learn *learn);
/* Returns the bytes to preallocate, within the limit and the free memory of the device, or 0. */
uint64_t weir__learn_target(const struct weir_learn *learn, weir_allocator *a);
/* Does what weir_profile_save does.  A failure is in the log. */
weir_status weir__learn_save(weir_allocator *a, const char *path);

#endif
