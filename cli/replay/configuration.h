/* SPDX-License-Identifier: MIT */
/* configuration.h: the configurations on which traces are replayed: allocators with their settings.
 *
 * There are two kinds: the driver's pools called directly (configuration_raw.c) and weir (configuration_weir.c).  A
 * new configuration is a row in configuration.c.  A configuration calls the driver through session.counted alone.  The
 * replay calls it through session.driver, whose calls are not counted.
 *
 * This file must not know traces, time or output.
 */
#ifndef WEIR_CLI_CONFIGURATION_H
#define WEIR_CLI_CONFIGURATION_H

#include <jansson.h>

#include <weir/options.h>

#include "driver/driver.h"

enum { CONFIGURATION_MESSAGE_BYTES = 256 };

/* The device that a configuration is opened on.  A session lives until the configuration is closed.  The session's
 * context is current all that time. */
struct session {
    const struct weir_driver *driver;  /* the table whose calls are not counted */
    const struct weir_driver *counted; /* the table whose calls are counted */
    CUdevice device;
    uint64_t device_bytes;
    size_t device_free;       /* free memory of the device before the configuration is opened */
    CUevent event;            /* orders one stream behind another */
    uint64_t blocks;          /* indices of blocks are below this number */
    uint64_t live_peak_bytes; /* peak requested memory of the trace */
    /* Every configuration has this device and log; "replay" has all these options. */
    const weir_options *given;
    int forgets; /* set if a profile is read and not saved */
    /* The most memory that may be reserved, or 0 for the configuration's own limit. */
    uint64_t limit;
    int refused; /* set if open failed for lack of memory, or of a larger limit */
    char message[CONFIGURATION_MESSAGE_BYTES]; /* why open or close failed */
};

/* Counts and sums since the configuration was opened, preallocation included. */
struct figures {
    uint64_t in_use; /* bytes of live blocks, with rounding */
    uint64_t reserved, reserved_peak;
    uint64_t growths;
    uint64_t ahead_growths, ahead_bytes; /* the part of the growths that background growth made */
    uint64_t stall_ns;                   /* time that callers waited for growth; weir's only */
    uint64_t given_back;                 /* times that reserved memory was given back, or moved */
    int has_in_use, has_reserve;         /* set if the driver reports the figure */
};

struct weir_timeline;
struct configuration;

/* How a replay calls an allocator. */
struct allocator_kind {
    /* Returns an allocator, or NULL with session->message. */
    void *(*open)(struct session *session, const struct configuration *configuration);
    /* The three calls that are timed.  `block' is the index of the block. */
    weir_status (*alloc)(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
    weir_status (*free)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Declares that `stream' uses the block, too, so that the block's next use must come after that use. */
    weir_status (*use)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Gives idle memory above a release threshold back, after the replay has synchronised the device; may be NULL.
     * Returns OK if there is no such memory. */
    weir_status (*settle)(void *allocator);
    /* Reads the figures.  A replay calls this at the ends of iterations, after the device was synchronised. */
    void (*figures)(void *allocator, struct figures *out);
    /* Returns the reserved memory.  Unlike `figures', this changes nothing that the allocator keeps. */
    uint64_t (*reserved)(void *allocator);
    /* Adds growths and trims since the last call to a time line that began at `began_ticks`; may be NULL. */
    void (*steps)(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
    /* Returns a new JSON object with the settings that apply. */
    json_t *(*options)(void *allocator);
    json_t *(*latency)(void *allocator); /* Returns the allocator's histograms, or NULL. */
    /* Returns the OOM report of the last failure, with the driver's ids of streams; may be NULL. */
    json_t *(*oom_report)(void *allocator);
    /* Returns the hits and misses of the caches; may be NULL. */
    json_t *(*caches)(void *allocator);
    /* Returns 1 on success, 0 with session->message if a block was left or a call failed. */
    int (*close)(void *allocator);
};

extern const struct allocator_kind
    raw_kind; /* a private pool of the driver, as an application would use it */
extern const struct allocator_kind public_kind; /* weir's public interface */

struct configuration {
    const char *name;
    const char *what; /* one line for --help */
    const struct allocator_kind *kind;
    /* Weir's settings, NAME=VALUE and commas between; @N stands for N eighths of the trace's peak requested memory. */
    const char *settings;
    /* The reason why a program would not choose the configuration, which then serves only for comparison.  NULL if
     * there is no such reason. */
    const char *unusable;
    int release_threshold_max; /* set if a pool of the driver has the largest release threshold */
    /* Set if the replay first allocates and frees the peak requested memory, for a pool of the driver. */
    int primed;
    int least;  /* set if weir has the smallest limit that serves the trace */
    int learns; /* set if an earlier run of weir, which does not count, fills given->profile */
    int by_name_only;  /* set if the configuration runs only if the user names it */
    int needs_virtual; /* set if the configuration needs memory that is mapped by handles */
    /* Set for "replay", which has all options of the session, and the name of its engine in output. */
    int is_given;
};

/* The configurations of `weir bench`, in order; the last one has no name. */
extern const struct configuration configurations[];
/* Returns the configuration of that name, which may be "replay", or NULL if there is none. */
const struct configuration *configuration_find(const char *name);
/* Returns 1 if the configuration is a pool of the driver, else 0. */
int configuration_is_driver(const struct configuration *configuration);
/* Sets the options of one of weir's configurations, except device and log. */
void configuration_choose(const struct configuration *configuration, const struct session *session,
                          weir_options *options);
/* Returns the missing device feature that the configuration needs, or NULL. */
const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device);

#endif
