/* SPDX-License-Identifier: MIT */
/* configuration.h: the configurations on which weir replays traces.  A configuration is an allocator with settings.
 *
 * The allocator is a memory pool of the driver (configuration_raw.c), or an allocator of weir
 * (configuration_weir.c).  To add a configuration, add a row in configuration.c.  A configuration calls the driver
 * only through session.counted, whose calls are counted.  The replay itself uses session.driver, whose calls are not
 * counted.
 *
 * This file must not depend on how traces are read, or on how times are measured.
 */
#ifndef WEIR_CLI_CONFIGURATION_H
#define WEIR_CLI_CONFIGURATION_H

#include <jansson.h>

#include <weir/options.h>

#include "driver/driver.h"

enum { CONFIGURATION_MESSAGE_BYTES = 256 };

/* The values that a replay and its configuration exchange.  The device's context is current as long as the
 * configuration is open. */
struct session {
    const struct weir_driver *driver;  /* a driver table that does not count its calls */
    const struct weir_driver *counted; /* a driver table that counts its calls */
    CUdevice device;
    uint64_t device_bytes;
    size_t device_free;       /* the free memory before the configuration is opened */
    CUevent event;            /* for configurations in which one stream waits for another */
    uint64_t blocks;          /* each index of a block is below this number */
    uint64_t live_peak_bytes; /* the peak requested memory of the trace */
    /* The user's settings.  The configuration "replay" uses all of them, others only the device and the log level. */
    const weir_options *command_options;
    int discards_profile; /* set if the configuration must not save the profile that it reads */
    uint64_t limit;       /* the limit on reserved memory, or 0 for the configuration's own limit */
    int is_out_of_memory; /* set if the configuration could not be opened because memory or the limit was too small */
    /* The reason why the configuration could not be opened or closed. */
    char message[CONFIGURATION_MESSAGE_BYTES];
};

/* The figures of an allocator since its creation, including the preallocation. */
struct figures {
    uint64_t in_use; /* the bytes of live blocks, rounded up as the allocator does */
    uint64_t reserved, reserved_peak;
    uint64_t growths;
    uint64_t ahead_growths, ahead_bytes; /* growths in the background */
    uint64_t stall_ns; /* the time for which requests waited for growth; 0 for the driver's pools */
    uint64_t trims;    /* how often reserved memory was returned to the device or moved */
    int has_in_use, has_reserve; /* set if `in_use' is known; set if `reserved' is known */
};

struct weir_timeline;
struct configuration;

/* The functions with which a replay calls an allocator.  trim, steps, latency, oom_report and caches may be NULL. */
struct allocator_kind {
    /* Creates the allocator.  On failure, sets session->message and returns NULL. */
    void *(*open)(struct session *session, const struct configuration *configuration);
    /* Allocates the block with the index `block'. */
    weir_status (*alloc)(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
    weir_status (*free)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Tells the allocator that `stream' uses the block, too.  Then the block's memory is not reused before this use has
     * completed. */
    weir_status (*use)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Returns idle memory above a release threshold to the device.  Called only while the device is idle. */
    weir_status (*trim)(void *allocator);
    /* Reads the figures of the allocator at the end of an iteration.  Called only while the device is idle. */
    void (*figures)(void *allocator, struct figures *out);
    /* Returns the reserved memory.  Must not change how the allocator serves later requests. */
    uint64_t (*reserved)(void *allocator);
    /* Adds the growths and trims since the last call to the time line.  The time line started at `began_ticks'. */
    void (*steps)(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
    /* Returns the allocator's settings as a new JSON object. */
    json_t *(*options)(void *allocator);
    /* Returns the histograms of the allocator's latencies, or NULL if it has none. */
    json_t *(*latency)(void *allocator);
    /* Returns the OOM report of the last request that failed, with the stream ids of the driver. */
    json_t *(*oom_report)(void *allocator);
    /* Returns the hits and misses of the per-stream caches. */
    json_t *(*caches)(void *allocator);
    /* Closes the allocator.  Returns 1 on success.  If a block is still live or a call failed, sets session->message
     * and returns 0. */
    int (*close)(void *allocator);
};

/* A private memory pool of the driver, used directly, without weir. */
extern const struct allocator_kind driver_pool_kind;
extern const struct allocator_kind weir_kind; /* weir, called through its public interface */

struct configuration {
    const char *name;
    const char *what; /* the description in --help */
    const struct allocator_kind *kind;
    /* The settings of weir, such as "engine=pool,prealloc=@8".  @N means N eighths of the peak requested memory. */
    const char *settings;
    /* NULL, or why real programs cannot use this configuration, which is then only for comparison. */
    const char *unusable;
    int release_threshold_max; /* set for a pool of the driver that keeps all memory */
    /* Set if the driver's pool first grows by a block as large as the peak requested memory, which is freed at once. */
    int is_warmed_up;
    int needs_smallest_limit; /* set if the limit is the smallest with which the replay succeeds */
    int has_learning_run; /* set if a first run only makes a profile, and a second run is measured */
    int by_name_only;     /* set if the configuration runs only when the user names it */
    int needs_virtual;    /* set if the configuration needs physical allocations (cuMemCreate) */
    /* Set for the configuration "replay" of `weir replay', which has the user's settings.  Output shows the name of the
     * engine instead of "replay". */
    int uses_command_options;
};

/* All configurations of `weir bench', in the order of the output.  The last row has no name. */
extern const struct configuration configurations[];
/* Returns the configuration with this name, including "replay", or NULL if there is none. */
const struct configuration *configuration_find(const char *name);
/* Returns 1 if the configuration is a pool of the driver, else 0. */
int configuration_is_driver(const struct configuration *configuration);
/* Sets all options of a configuration of weir except the device and the log level. */
void configuration_choose(const struct configuration *configuration, const struct session *session,
                          weir_options *options);
/* Returns NULL if the device can run the configuration.  Otherwise returns the feature that the device lacks. */
const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device);

#endif
