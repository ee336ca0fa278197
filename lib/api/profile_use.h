/* SPDX-License-Identifier: MIT */
/* profile_use.h: what an allocator is told by its profile, and tells it.
 *
 * An allocator whose options name a profile reads it when it is made, and takes beforehand what it says;
 * it writes what this run needed when it is destroyed, or is told to.
 *
 * Must not know: how a profile is written (profile.h), how engines grow.
 */
#ifndef WEIR_PROFILE_USE_H
#define WEIR_PROFILE_USE_H

#include <weir/allocator.h>

#include "driver/driver.h"
#include "engine/engine.h"
#include "reserve/profile.h"

/* Fixed once it is made. */
struct weir_learn {
    char *path; /* of the file, from the root */
    uint64_t id;
    struct weir_profile_key key;
    struct weir_profile known; /* as it was then; all zero: nothing of use */
    int is_told;               /* that the file is another's, or damaged, and is replaced */
};

/* 1 if there is something to learn with such options (completed). */
int weir__learn_can(const weir_options *options);
/* Reads what the options (completed) name; NULL: they name none, there is nothing to learn, or (the log
 * tells) it cannot be. */
struct weir_learn *weir__learn_open(const struct weir_driver *driver, CUdevice device,
                                    const weir_options *options);
/* NULL is well. */
void weir__learn_close(struct weir_learn *learn);
/* Bytes to preallocate, within the limit and what the device has free; 0: none. */
uint64_t weir__learn_target(const struct weir_learn *learn, weir_allocator *a);
/* What the profile plans for an engine with these options (completed), which the caller closes; NULL: nothing. */
struct weir_planned *weir__learn_plan(struct weir_learn *learn, const weir_options *options);
/* A record of what an engine with these options (completed) places; NULL: it plans nothing, or the host has no memory. */
struct weir_lifetimes *weir__learn_lifetimes(const weir_options *options);
/* After the engine is closed; NULL is well. */
void weir__learn_end_lifetimes(struct weir_lifetimes *lifetimes);
/* weir_profile_save; a failure is in the log. */
weir_status weir__learn_save(weir_allocator *a, const char *path);

#endif
