/* SPDX-License-Identifier: MIT */
/* configuration.h: the configurations on which weir replays traces.  A configuration is an allocator with settings.
 *
 * The allocator is a memory pool of the driver (configuration_raw.c), or an allocator of weir
 * (configuration_weir.c).  To add a configuration, add a row in configuration.c.  A configuration calls the driver
 * only through session.counted, whose calls are counted.  The replay itself uses session.driver, whose calls are not
 * counted.
 *
 * This file must not depend on traces, time or output.
 */
#ifndef WEIR_CLI_CONFIGURATION_H
#define WEIR_CLI_CONFIGURATION_H

#include <jansson.h>

#include <weir/options.h>

#include "driver/driver.h"

enum { CONFIGURATION_MESSAGE_BYTES = 256 };

/* The device on which a configuration is opened.  A session must exist, and its context must be current, until the
 * configuration is closed. */
struct session {
    const struct weir_driver *driver;  /* the driver table whose calls are not counted */
    const struct weir_driver *counted; /* the driver table whose calls are counted */
    CUdevice device;
    uint64_t device_bytes;
    size_t device_free;       /* the free memory of the device before the configuration is opened */
    CUevent event;            /* an event with which one stream waits for another */
    uint64_t blocks;          /* the number of indices of blocks; each index is below it */
    uint64_t live_peak_bytes; /* the peak requested memory of the trace */
    /* The options of the command.  The configuration "replay" uses all of them; all others use only the device and
     * the log level. */
    const weir_options *command_options;
    int discards_profile; /* set if the configuration must not save the profile that it reads */
    /* The limit on reserved memory, or 0 for the configuration's own limit. */
    uint64_t limit;
    int is_out_of_memory; /* set if open() failed because memory or the limit was too small */
    char message[CONFIGURATION_MESSAGE_BYTES]; /* the reason why open() or close() failed */
};

/* The figures of a configuration.  Counters count from the opening of the configuration on, including its
 * preallocation. */
struct figures {
    uint64_t in_use; /* the bytes of live blocks, with the rounding of their sizes */
    uint64_t reserved, reserved_peak;
    uint64_t growths;
    uint64_t ahead_growths, ahead_bytes; /* the number and the bytes of growths in the background */
    /* The time that callers waited for growth; only weir's configurations have it. */
    uint64_t stall_ns;
    /* The number of times that reserved memory was returned to the device, or moved. */
    uint64_t trims;
    /* Set if in_use is known; set if the reserved memory is known. */
    int has_in_use, has_reserve;
};

struct weir_timeline;
struct configuration;

/* The functions with which a replay calls an allocator. */
struct allocator_kind {
    /* Opens the configuration.  Returns an allocator, or NULL with session->message on failure. */
    void *(*open)(struct session *session, const struct configuration *configuration);
    /* Allocates and frees a block.  `block' is the index of the block.  Replays measure the time of alloc, free and
     * use. */
    weir_status (*alloc)(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
    weir_status (*free)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Tells the allocator that `stream' uses the block, too.  The block's memory must not be reused before this use
     * has completed. */
    weir_status (*use)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Returns idle memory above a release threshold to the device.  Is called when the device is idle.  Returns
     * WEIR_OK also if there is no such memory.  May be NULL. */
    weir_status (*trim)(void *allocator);
    /* Reads the figures of the allocator.  Is called at the ends of iterations, when the device is idle. */
    void (*figures)(void *allocator, struct figures *out);
    /* Returns the reserved memory.  Unlike `figures', does not change the allocator's behaviour, so it may be called
     * at any time. */
    uint64_t (*reserved)(void *allocator);
    /* Adds the growths and trims since the last call to a time line.  `began_ticks' is the time at which the time
     * line starts.  May be NULL. */
    void (*steps)(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
    /* Returns the allocator's settings as a new JSON object. */
    json_t *(*options)(void *allocator);
    /* Returns the histograms of the allocator's latencies, or NULL if it has none. */
    json_t *(*latency)(void *allocator);
    /* Returns the OOM report of the last request that failed, with the driver's ids of streams.  May be NULL. */
    json_t *(*oom_report)(void *allocator);
    /* Returns the hits and misses of the per-stream caches.  May be NULL. */
    json_t *(*caches)(void *allocator);
    /* Closes the allocator.  Returns 1 on success.  If a block is still live or a call failed, writes the reason to
     * session->message and returns 0. */
    int (*close)(void *allocator);
};

extern const struct allocator_kind
    raw_kind; /* a private memory pool of the driver, called as an application calls it */
extern const struct allocator_kind public_kind; /* weir, called through its public interface */

struct configuration {
    const char *name;
    const char *what; /* a description of one line for --help */
    const struct allocator_kind *kind;
    /* The settings of weir, as NAME=VALUE with commas between them.  @N in a value stands for N eighths of the
     * trace's peak requested memory. */
    const char *settings;
    /* The reason why a program cannot use the configuration.  If it is not NULL, the configuration only serves as a
     * comparison. */
    const char *unusable;
    /* Set if the configuration is a pool of the driver with the largest release threshold. */
    int release_threshold_max;
    /* Set if the configuration is a pool of the driver that is warmed up.  The replay then first allocates and frees
     * one block as large as the peak requested memory. */
    int is_warmed_up;
    /* Set if the configuration runs with the smallest limit that is enough for the trace. */
    int uses_least_limit;
    /* Set if weir runs twice: the first run makes a profile, and only the second run is measured. */
    int has_learning_run;
    int by_name_only;  /* set if the configuration runs only when the user names it */
    int needs_virtual; /* set if the configuration needs physical allocations (cuMemCreate) */
    /* Set only for the configuration "replay", which uses all options of the command.  Output shows the name of the
     * engine instead of "replay". */
    int uses_command_options;
};

/* All configurations of `weir bench', in the order of the output.  The last row has no name. */
extern const struct configuration configurations[];
/* Returns the configuration with this name, which may be "replay".  Returns NULL if there is none. */
const struct configuration *configuration_find(const char *name);
/* Returns 1 if the configuration is a pool of the driver, else 0. */
int configuration_is_driver(const struct configuration *configuration);
/* Sets the options of a configuration of weir, except the device and the log level. */
void configuration_choose(const struct configuration *configuration, const struct session *session,
                          weir_options *options);
/* Returns the name of a feature that the configuration needs and the device lacks.  Returns NULL if the device can
 * run the configuration. */
const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device);

#endif
