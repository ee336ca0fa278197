/* SPDX-License-Identifier: MIT */
/* sim_world.h: the state and the operations of a world, for the parts that play it.
 *
 * sim_settings.c draws the settings of a world, sim_operations.c has the operations, and sim_world.c begins a world,
 * takes turns and ends it.  Must not know: where scripts come from. */
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

/* The operations: X(name, weight, function).  A word selects one of them, and its other bits are the arguments. */
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
    uint64_t capacity, limit; /* limit is 0 for none */
    int growth, threshold, cache_limit, patience, dependencies;
    unsigned threads, streams;
    int legacy; /* one stream is the legacy default stream, and some are blocking */
    int faults;
    int asks;              /* the program has an OOM callback */
    uint64_t harden;       /* only for small blocks, since it writes to all of them */
    unsigned sizes;        /* the range of sizes: see draw_size */
    unsigned few;          /* the number of sizes; 0 for any */
    uint64_t longest_ns;   /* the longest work */
    uint64_t grow_ahead;   /* bytes; 0 for none */
    uint64_t prealloc;     /* bytes; 0 for none */
    int at_first;          /* set if the first request preallocates */
    uint64_t half_life_ms; /* 0 for no decay */
    int learns;            /* the allocator has a profile */
    int old;               /* the driver has no stream ids */
    uint64_t growth_step;  /* bytes; 0 for the default */
    int growth_size;       /* 0 for the default; else small or large */
    int latency;           /* the allocator keeps latencies */
    unsigned most_blocks;
    uint8_t chances[1024]; /* operations by weight */
};

struct block {
    char *address; /* NULL in a free place */
    size_t bytes;
    uint64_t owner;
    unsigned home;         /* the stream that is ordered after the allocation */
    unsigned users, noted; /* bits of streams that used it, and that weir_use named */
    int of_graph;          /* allocated in the unfinished capture */
    int was_of_graph;      /* allocated in a capture: the graph's memory, not the allocator's */
    int in_graph;          /* used in the unfinished capture */
    int is_any;            /* any stream may use it without an order */
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
    int told; /* the story has a text for the present word */
    const struct weir_driver *driver;
    CUcontext context;
    weir_allocator *allocator;
    struct block blocks[BLOCKS];
    unsigned block_count;
    unsigned lost; /* blocks of aborted captures, and of graphs that found no memory */
    struct stream streams[STREAMS];
    unsigned born; /* streams made since the last wait for the device */
    struct capture capture;
    CUevent event;
    unsigned asked_on;    /* the stream of the present request */
    uint64_t limit, most; /* the changed limit, or UINT64_MAX; the most that may be reserved */
    uint64_t owners;
    char *gone;       /* the block freed last */
    int any_of_graph; /* a graph has had a block */
    CUdeviceptr hogs[HOGS];
    /* The fault of the next call. */
    enum weir_driver_entry fault_entry;
    uint64_t fault_k; /* 0: none */
    CUresult fault_result;
    int fault_for_good;
    /* The thread that plays, and its word. */
    unsigned thread;
    size_t at;
    int is_over;
    sem_t turns[THREADS];
};

extern struct world w;

static inline weir_amount sim_bytes_amount(uint64_t bytes) {
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

/* Checks that a driver call, which no fault meets, succeeds. */
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            sim_fail("%s: %u", #call, cu_is);                                                      \
    } while (0)

/* Makes a call under the planned fault.  Returns 1 if a fault was planned, else 0. */
#define CALL(status, call) (sim_arm(), (status) = (call), sim_disarm())

#endif
