/* SPDX-License-Identifier: MIT */
/* sim_world.h: what the parts that play a world share: what there is, what happens, and how it is told.
 *
 * sim_settings.c draws what a world is like, sim_operations.c does what a word says, and sim_world.c begins it, takes
 * turns and ends it.  Must not know: where scripts come from.
 */
#ifndef WEIR_TEST_SIM_WORLD_H
#define WEIR_TEST_SIM_WORLD_H

#include "sim.h"

#include <semaphore.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "driver/model/model.h"

enum { BLOCKS = 192, HOGS = 4, STREAMS = 8, THREADS = 4, LAUNCHES = 3, MOST_BORN = 150 };

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* What happens: X(name, weight, function).  A word is one of them, and what the rest of its bits say. */
#define OPERATIONS(X)                                                                              \
    X(ALLOC, 300, do_alloc)                                                                        \
    X(FREE, 210, do_free)                                                                          \
    X(FREE_MANY, 6, do_free_many)                                                                  \
    X(ALLOC_ANY, 12, do_alloc_any)                                                                 \
    X(FREE_ANY, 6, do_free_any)                                                                    \
    X(RANGE, 12, do_range)                                                                         \
    X(WORK, 80, do_work)                                                                           \
    X(CROSS, 50, do_cross)                                                                         \
    X(DECLARE, 30, do_declare)                                                                     \
    X(KERNEL, 20, do_kernel)                                                                       \
    X(ADVANCE, 20, do_advance)                                                                     \
    X(SYNC_STREAM, 12, do_sync_stream)                                                             \
    X(SYNC_DEVICE, 2, do_sync_device)                                                              \
    X(QUERY, 10, do_query)                                                                         \
    X(WAIT, 10, do_wait)                                                                           \
    X(SWITCH, 20, do_nothing)                                                                      \
    X(CREATE, 6, do_create)                                                                        \
    X(DESTROY, 5, do_destroy)                                                                      \
    X(BIND, 4, do_bind)                                                                            \
    X(UNBIND, 4, do_unbind)                                                                        \
    X(TRIM, 4, do_trim)                                                                            \
    X(PREALLOC, 2, do_preallocate)                                                                 \
    X(LIMIT, 3, do_limit)                                                                          \
    X(STATS, 12, do_stats)                                                                         \
    X(BEGIN, 8, do_begin)                                                                          \
    X(END, 14, do_end)                                                                             \
    X(ABORT, 2, do_abort)                                                                          \
    X(HOG, 5, do_hog)                                                                              \
    X(RETURN, 6, do_return)                                                                        \
    X(WRONG_FREE, 10, do_wrong_free)                                                               \
    X(FAULT, 12, do_fault)                                                                         \
    X(RENEW, 1, do_renew)

enum operation {
#define OPERATION(name, weight, function) OP_##name,
    OPERATIONS(OPERATION)
#undef OPERATION
        OP_COUNT
};

#define OPERATION(name, weight, function) void function(uint64_t r);
OPERATIONS(OPERATION)
#undef OPERATION

enum kind { POOL, ARENA_FIXED, ARENA_REGIONS, ARENA_MAPPED, DIRECT, KINDS };

struct settings {
    int kind, cache, checks;
    uint64_t capacity, limit; /* limit 0: none */
    int growth, threshold, cache_limit, patience, packing, dependencies;
    unsigned threads, streams;
    int legacy; /* the legacy default stream is one of them, and some streams are blocking */
    int faults;
    int asks;                      /* the program has a callback for want of memory */
    uint64_t harden;               /* where blocks are small: it writes to all of them */
    unsigned sizes;                /* which of them, see draw_size, */
    unsigned few;                  /* and how many different ones; 0: any */
    uint64_t longest_ns;           /* work */
    uint64_t grow_ahead;           /* bytes; 0: none */
    uint64_t prealloc;             /* likewise, */
    int at_first;                  /* set if the first request preallocates */
    uint64_t half_life_ms;         /* 0: no decay */
    int learns;                    /* it has a profile */
    int old;                       /* the driver is one that tells no stream's id */
    uint64_t growth_step;          /* bytes; 0: as it is by itself, */
    int growth_size;               /* and so is the factor; else small or large */
    int latency;                   /* it keeps a histogram of it */
    unsigned most_blocks;
    uint8_t chances[1024]; /* operations by weight */
};

struct block {
    char *address; /* NULL: this place is free */
    size_t bytes;
    uint64_t owner;
    unsigned home;         /* the stream that is behind its allocation */
    unsigned users, noted; /* streams, as bits: used it; of these, were declared */
    int of_graph;          /* allocated in the capture that is under way, */
    int was_of_graph;      /* or in one that is over: the graph's memory, not the allocator's */
    int in_graph;          /* used by it */
    int is_any;            /* every stream may have it, without an order */
};

struct stream {
    CUstream handle;
    int lives, is_default, blocks;
    unsigned bound;
};

struct capture {
    int runs;
    unsigned stream, thread;
    CUstreamCaptureMode mode;
};

struct world {
    struct settings set;
    const struct sim_script *script;
    struct sim_report *report;
    FILE *story;
    int told; /* there: something of the word that is played */
    const struct weir_driver *driver;
    CUcontext context;
    weir_allocator *allocator;
    struct block blocks[BLOCKS];
    unsigned block_count;
    unsigned lost; /* allocated in captures that were aborted, or in graphs that found no memory */
    struct stream streams[STREAMS];
    unsigned born; /* streams since the device was waited for */
    struct capture capture;
    CUevent event;
    unsigned asked_on; /* the stream of the request that is under way */
    uint64_t limit,
        most; /* set in the middle, UINT64_MAX: not; and what the reserved memory may be */
    uint64_t owners;
    char *gone;       /* freed last */
    int any_of_graph; /* a graph had memory of a block's */
    CUdeviceptr hogs[HOGS];
    /* Of the next call: */
    enum weir_driver_entry fault_entry;
    uint64_t fault_k; /* 0: none */
    CUresult fault_result;
    int fault_for_good;
    /* Whose turn it is. */
    unsigned thread;
    size_t at;
    int is_over;
    sem_t turns[THREADS];
};

extern struct world w;

static inline weir_amount bytes_amount(uint64_t bytes) {
    return (weir_amount){.value = bytes, .kind = WEIR_AMOUNT_BYTES};
}

/* sim_world.c */
const char *sim_profile_path(void);
__attribute__((format(printf, 1, 2), noreturn)) void sim_fail(const char *format, ...);
void sim_add(enum sim_count count, uint64_t more);
void sim_arm(void);
int sim_disarm(void);
void sim_expect(weir_status is, weir_status wanted, const char *what);
weir_statistics sim_look(void);
void sim_check_oracle(void);

/* sim_settings.c */
void sim_draw_settings(struct settings *s, uint64_t seed);
weir_options sim_options(const struct settings *s);

/* sim_operations.c, beside its operations */
CUstream sim_handle(unsigned stream);
void sim_make_stream(unsigned stream, int blocks);
void sim_free_on(struct block *b, unsigned stream);
int sim_give_idle_back(const weir_oom *oom, void *data);

#define tell(...) (w.story ? (void)(fprintf(w.story, __VA_ARGS__), w.told = 1) : (void)0)

/* The driver's own calls, which no fault meets, succeed. */
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            sim_fail("%s: %u", #call, cu_is);                                                      \
    } while (0)

/* Calls, and answers whether a fault was planned. */
#define CALL(status, call) (sim_arm(), (status) = (call), sim_disarm())

#endif
