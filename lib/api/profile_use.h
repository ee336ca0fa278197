/* SPDX-License-Identifier: MIT */
/* profile_use.h: uses a profile file, which contains the memory that earlier runs and this run needed. */
#ifndef WEIR_PROFILE_USE_H
#define WEIR_PROFILE_USE_H

#include <weir/allocator.h>

#include "driver/driver.h"
#include "reserve/profile.h"

/* The profile file of one allocator.  No field changes after weir__run_profile_open(). */
struct weir_run_profile {
    char *path; /* the absolute path of the file, since the process may change its folder */
    char key[WEIR_PROFILE_KEY_BYTES];
    /* The earlier runs of the program, from the file.  All fields are 0 if weir could not use the file. */
    struct weir_profile known;
    enum weir_profile_found found;
    int log; /* the log level for warnings about the file */
};

/* Returns 1 if a profile can set the preallocation of an allocator with these options, else 0. */
static inline int weir__run_profile_is_possible(const weir_options *options) {
    return options->engine != WEIR_ENGINE_DIRECT && options->engine != WEIR_ENGINE_BFC_FIXED;
}

/* Reads the profile file that the options name.  Returns NULL if there is none or it cannot be used. */
struct weir_run_profile *weir__run_profile_open(const struct weir_driver *driver, CUdevice device,
                                                const weir_options *options);
/* Frees the contents of a profile file.  `run_profile` may be NULL. */
void weir__run_profile_close(struct weir_run_profile *run_profile);
/* Returns the bytes to preallocate according to the profile, or 0 if the profile has no run. */
uint64_t weir__run_profile_target(weir_allocator *a);
/* Adds this run's need of memory to the file `path`, or to options.profile if `path` is NULL.  Logs a failure. */
weir_status weir__run_profile_save(weir_allocator *a, const char *path);

#endif
