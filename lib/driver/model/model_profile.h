/* SPDX-License-Identifier: MIT */
/* model_profile.h: the profile: the sizes and times of the device that the model simulates.  The built-in profile is
 * h200.profile.  The lists of keys below generate the struct and the parser. */
#ifndef WEIR_MODEL_PROFILE_H
#define WEIR_MODEL_PROFILE_H

#include "driver/driver.h"

#define MODEL_PROFILE_NUMBERS(X)                                                                   \
    X(driver_version)                                                                              \
    X(devices)                                                                                     \
    X(peers)                                                                                       \
    X(capacity)                                                                                    \
    X(context_bytes)                                                                               \
    X(first_stream_id)                                                                             \
    X(unit_bytes)                                                                                  \
    X(block_align)                                                                                 \
    X(page_bytes)                                                                                  \
    X(small_bytes)                                                                                 \
    X(room_factor)                                                                                 \
    X(pool_alloc_percent)                                                                          \
    X(pool_first_ns)                                                                               \
    X(pool_create_ns)                                                                              \
    X(pool_destroy_ns)                                                                             \
    X(pool_peer_unit_ns)                                                                           \
    X(small_alloc_ns)                                                                              \
    X(small_free_ns)                                                                               \
    X(virtual_memory)                                                                              \
    X(virtual_first_ns)                                                                            \
    X(virtual_create_gib_ns)                                                                       \
    X(virtual_access_handle_ns)                                                                    \
    X(virtual_access_gib_ns)                                                                       \
    X(virtual_peer_handle_ns)                                                                      \
    X(virtual_peer_gib_ns)                                                                         \
    X(virtual_unmap_handle_ns)                                                                     \
    X(virtual_unmap_gib_ns)                                                                        \
    X(virtual_release_gib_ns)                                                                      \
    X(memset_bytes_per_us)                                                                         \
    X(copy_bytes_per_us)                                                                           \
    X(capture_step_ns)                                                                             \
    X(instantiate_step_ns)                                                                         \
    X(launch_step_ns)                                                                              \
    X(work_begin_ns)

#define MODEL_PROFILE_CURVES(X)                                                                    \
    X(pool_pair_ns)                                                                                \
    X(pool_grow_ns)                                                                                \
    X(pool_move_ns)                                                                                \
    X(pool_trim_ns)                                                                                \
    X(pool_refuse_ns)                                                                              \
    X(mem_alloc_ns)                                                                                \
    X(mem_free_ns)

enum { MODEL_CURVE_POINTS = 16 };

struct model_curve {
    size_t count;
    /* The points, joined by straight lines.  x and y rise from point to point. */
    uint64_t x[MODEL_CURVE_POINTS], y[MODEL_CURVE_POINTS];
};

struct model_profile {
    char name[64];
#define MODEL_NUMBER(key) uint64_t key;
    MODEL_PROFILE_NUMBERS(MODEL_NUMBER)
#undef MODEL_NUMBER
#define MODEL_CURVE(key) struct model_curve key;
    MODEL_PROFILE_CURVES(MODEL_CURVE)
#undef MODEL_CURVE
    /* The fixed virtual time of each driver call.  The key in the profile is the name of the call, such as cuMemMap. */
    uint64_t call_ns[WEIR_ENTRY_COUNT];
};

/* Reads the built-in profile and then the file `path`, which may be NULL.  Returns 0 on success, -1 with the reason in
 * *failure.  Only one thread may call it at a time. */
int weir__model_profile_load(struct model_profile *profile, const char *path,
                             struct weir_driver_failure *failure);

/* Returns the y value of the curve at x.  Before its first point, the curve is flat. */
uint64_t weir__model_curve(const struct model_curve *curve, uint64_t x);

#endif
