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
    size_t device_free;           /* as it is opened */
    CUevent event;                /* for ordering one stream behind another, at once */
    uint64_t blocks;              /* indices of blocks are below it */
    uint64_t live_peak_bytes;     /* of the trace */
    const weir_options *given;    /* device and log for all; everything for `replay` */
    int forgets;                  /* the profile, if there is one, stays as it is */
    uint64_t limit;               /* the most it may reserve; 0: as the configuration has it */
    const weir_amount *threshold; /* the release threshold; NULL: as the configuration has it */
    int refused;                  /* open failed for lack of memory, or of a larger limit */
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
    const char *was;  /* its earlier name, which recorded results have; NULL: none */
    const char *what; /* one line for --help */
    /* An allocator, or NULL with session->message. */
    void *(*open)(struct session *session, const struct configuration *self);
    /* Timed.  `block` is the block's index. */
    weir_status (*alloc)(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
    weir_status (*free)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* `stream` uses the block too: what comes after its free must come after that use. */
    weir_status (*use)(void *allocator, uint32_t block, void *address, CUstream stream);
    /* Called, untimed, after a request that took SLOW_NS or longer; may be NULL.  This is how
     * configurations that cannot be asked notice that they grew: reading the reserved memory after each request
     * would disturb what is measured, and no growth is that fast. */
    void (*after_slow)(void *allocator, uint64_t took_ns);
    /* At iteration ends, after the device was synchronised, and at the end. */
    void (*figures)(void *allocator, struct figures *out);
    /* After any operation, without a change of what comes after: reserve, growths, given_back and stall_ns
     * since open, in_use if has_in_use.  `figures' may change it: an allocator that is asked looks at itself. */
    void (*watch)(void *allocator, struct figures *out);
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
    int has_threshold;         /* its release threshold may be another */
    int primed;        /* raw pools: the peak requested memory is allocated and freed before */
    int learns;        /* weir's: a run before, which does not count, has filled given->profile */
    int by_name_only;  /* not among those that run when none is named */
    int needs_virtual; /* memory mapped by handles */
    int is_given;      /* known by its engine: not one of `weir bench` */
    void (*choose)(const struct session *session, weir_options *options); /* the others */
};

enum { SLOW_NS = 5000 };

/* The configurations of `weir bench`, in order; ends with a NULL name. */
extern const struct configuration configurations[];
/* NULL: no such name.  Knows also "replay", which takes all its options from session.given. */
const struct configuration *configuration_find(const char *name);
/* What the device cannot and the configuration cannot do without, if it is to be limited or not; NULL:
 * nothing. */
const char *configuration_lacks(const struct configuration *configuration,
                                const struct weir_driver *driver, CUdevice device, int limited);

/* configuration_raw.c: a private pool of the driver, used as an application would. */
void *raw_open(struct session *session, const struct configuration *self);
weir_status raw_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream, void **out);
weir_status raw_free(void *allocator, uint32_t block, void *address, CUstream stream);
weir_status raw_use(void *allocator, uint32_t block, void *address, CUstream stream);
void raw_after_slow(void *allocator, uint64_t took_ns);
void raw_figures(void *allocator, struct figures *out);
json_t *raw_options(void *allocator);
int raw_close(void *allocator);

/* configuration_weir.c: weir's public interface. */
void *public_open(struct session *session, const struct configuration *self);
weir_status public_alloc(void *allocator, uint32_t block, size_t bytes, CUstream stream,
                         void **out);
weir_status public_free(void *allocator, uint32_t block, void *address, CUstream stream);
weir_status public_use(void *allocator, uint32_t block, void *address, CUstream stream);
void public_figures(void *allocator, struct figures *out);
void public_watch(void *allocator, struct figures *out);
void public_steps(void *allocator, struct weir_timeline *timeline, uint64_t began_ticks);
json_t *public_options(void *allocator);
json_t *public_latency(void *allocator);
json_t *public_oom_report(void *allocator);
json_t *public_caches(void *allocator);
int public_close(void *allocator);

#endif
