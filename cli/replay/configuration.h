/* SPDX-License-Identifier: MIT */
/* configuration.h: what replays a trace: an allocator behind six functions.
 *
 * Adding one is a row in configuration.c and, if it is no variant of what is there, its functions.
 * Configurations make their driver calls through session.counted alone; what the replay itself needs
 * (streams, work, waits, synchronisation, figures) goes through session.driver and is not counted.
 *
 * Must not know: traces, time, output.
 */
#ifndef WEIR_CLI_CONFIGURATION_H
#define WEIR_CLI_CONFIGURATION_H

#include <jansson.h>

#include <weir/options.h>

#include "driver/driver.h"

enum { CONFIGURATION_MESSAGE_BYTES = 256 };

/* What a configuration is opened on.  Lives until it is closed; its context is current throughout. */
struct session {
    const struct weir_driver *driver;  /* not counted */
    const struct weir_driver *counted; /* the same table, counted; stretches on a GPU: driver */
    CUdevice device;
    uint64_t device_bytes;
    size_t device_free;        /* as it is opened */
    CUevent event;             /* for ordering one stream behind another, at once */
    uint64_t blocks;           /* indices of blocks are below it */
    uint64_t live_peak_bytes;  /* of the trace */
    const weir_options *given; /* device and log for all; everything for `replay` */
    int forgets;               /* the profile, if there is one, stays as it is */
    uint64_t limit;            /* the most it may reserve; 0: as the configuration has it */
    int refused;               /* open failed for lack of memory, or of a larger limit */
    char message[CONFIGURATION_MESSAGE_BYTES]; /* why open or close failed */
};

/* Since open, preallocation included. */
struct figures {
    uint64_t in_use; /* in live blocks, as handed out */
    uint64_t reserve;
    uint64_t reserve_peak;
    uint64_t growths;
    uint64_t growth_bytes;
    uint64_t ahead_growths, ahead_bytes, ahead_ns; /* of these, in the background */
    uint64_t stall_ns;
    uint64_t given_back; /* times that reserved memory was given back, or moved */
    uint64_t extent;     /* arena */
    uint64_t prealloc_ns;
    uint64_t prealloc_bytes;
    int has_in_use, has_reserve; /* 0: the driver does not tell */
    int has_extent;
};

struct weir_timeline;

struct configuration {
    const char *name;
    const char *what; /* one line for --help */
    /* Why the configuration is there to compare with, and is nothing that a program would choose; NULL: it may be chosen. */
    const char *unusable;
    /* An allocator, or NULL with session->message. */
    void *(*open)(struct session *session, const struct configuration *self);
    /* Timed.  `block` is the block's index. */
    weir_status (*alloc)(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
    weir_status (*free)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* `stream` uses the block too: what comes after its free must come after that use. */
    weir_status (*use)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* At iteration ends, after the device was synchronised, and at the end. */
    void (*figures)(void *allocator, struct figures *out);
    /* Returns the reserved memory, after any operation and without a change of what comes after: `figures' may change
     * what an allocator keeps. */
    uint64_t (*reserved)(void *allocator);
    /* Adds its steps since it was last asked to a timeline that began at those ticks; NULL: it knows of none. */
    void (*steps)(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
    json_t *(*options)(void *allocator); /* effective settings; a new reference */
    json_t *(*latency)(void *allocator); /* the allocator's own histograms, or NULL */
    /* Why it has just refused a request, with streams by the driver's ids; NULL: it does not say. */
    json_t *(*verdict)(void *allocator);
    json_t *(*front)(void *allocator); /* how requests met its caches; NULL: it is not weir */
    /* 1, or 0 with session->message: something was left or went wrong. */
    int (*close)(void *allocator);
    int release_threshold_max; /* raw pools */
    int primed;    /* raw pools: the peak requested memory is allocated and freed before */
    int least;     /* weir's: the limit is the smallest that serves the trace */
    int foreknows; /* a setting comes from the trace, which a program would have to know before */
    int learns;    /* weir's: a run before, which does not count, has filled given->profile */
    int by_name_only;  /* not among those that run when none is named */
    int needs_virtual; /* memory mapped by handles */
    int is_given;      /* known by its engine: not one of `weir bench` */
    void (*choose)(const struct session *session, weir_options *options); /* the others */
};

/* The configurations of `weir bench`, in order; ends with a NULL name. */
extern const struct configuration configurations[];
/* NULL: no such name.  Knows also "replay", which takes all its options from session.given. */
const struct configuration *configuration_find(const char *name);
/* Returns what the device cannot and the configuration cannot do without, or NULL. */
const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device);

/* configuration_raw.c: a private pool of the driver, used as an application would. */
void *raw_open(struct session *session, const struct configuration *self);
weir_status raw_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream, void **out);
weir_status raw_free(void *allocator, uint32_t block, void *address, CUstream stream);
weir_status raw_use(void *allocator, uint32_t block, void *address, CUstream stream);
void raw_figures(void *allocator, struct figures *out);
uint64_t raw_reserved(void *allocator);
json_t *raw_options(void *allocator);
int raw_close(void *allocator);

/* configuration_weir.c: weir's public interface. */
void *public_open(struct session *session, const struct configuration *self);
weir_status public_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
weir_status public_free(void *allocator, uint32_t block, void *address, CUstream stream);
weir_status public_use(void *allocator, uint32_t block, void *address, CUstream stream);
void public_figures(void *allocator, struct figures *out);
uint64_t public_reserved(void *allocator);
void public_steps(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
json_t *public_options(void *allocator);
json_t *public_latency(void *allocator);
json_t *public_oom_report(void *allocator);
json_t *public_caches(void *allocator);
int public_close(void *allocator);

#endif
