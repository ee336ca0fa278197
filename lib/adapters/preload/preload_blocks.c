/* SPDX-License-Identifier: MIT */
/* preload_blocks.c: finds the allocator and the block of weir that contain an address.
 *
 * There are few allocators, so this file searches one after another, beginning with the allocator of the block that
 * the thread used last.  Most allocators find their blocks in a page map.  With drivers before 12.0, allocators with
 * the pool engine and without caches have no page map, so this file records their blocks in a map.
 *
 * Locks: `lock` guards the maps.  While a thread holds `lock`, it calls only functions of the maps.
 *
 * The code in this file must not depend on which driver function the program has called. */
#include "adapters/preload/preload.h"

#include <pthread.h>

#include "base/map.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct weir_map recorded;  /* maps an address to its struct weir_served */
static struct weir_map block_ids; /* maps an address to its CU_POINTER_ATTRIBUTE_BUFFER_ID */
atomic_int weir__blocks_recorded, weir__blocks_have_ids;
static uint64_t last_block_id; /* guarded by `lock` */

/* The first block id of weir.  The driver's ids of its own blocks begin at 1. */
#define FIRST_BLOCK_ID UINT64_C(0x8000000000000000)

/* ---- blocks in page maps ---- */

static int find_of_served(struct weir_served *s, CUdeviceptr address, struct weir_found *found) {
    void *base;

    if (!weir__drop_in_may_contain(s->allocator, address) ||
        weir_block_range(s->allocator, (const void *)(uintptr_t)address, &base, &found->bytes) !=
            WEIR_OK)
        return 0;
    found->by = s;
    found->base = (CUdeviceptr)(uintptr_t)base;
    return 1;
}

static int find_recorded(CUdeviceptr address, struct weir_found *found) {
    uintptr_t by;
    int is;

    if (!atomic_load_explicit(&weir__blocks_recorded, memory_order_acquire) ||
        REAL(cuMemGetAddressRange_v2)(&found->base, &found->bytes, address) != CUDA_SUCCESS)
        return 0;
    pthread_mutex_lock(&lock);
    is = weir__map_get(&recorded, found->base, &by);
    pthread_mutex_unlock(&lock);
    if (is)
        found->by = (struct weir_served *)by;
    return is;
}

_Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));

int weir__block_find(CUdeviceptr address, struct weir_found *found) {
    unsigned known = weir__served_known();

    if (weir__driver_forked())
        return 0;
    for (unsigned i = 0, at = weir__block_last; i < known; i++, at = at + 1 < known ? at + 1 : 0)
        if (find_of_served(weir__served_at(at), address, found)) {
            weir__block_last = at;
            return 1;
        }
    return find_recorded(address, found);
}

struct weir_served *weir__allocator_at(CUdeviceptr address) {
    for (unsigned i = 0; i < weir__served_known(); i++) {
        struct weir_served *s = weir__served_at(i);

        if (weir__drop_in_contains(s->allocator, address))
            return s;
    }
    return NULL;
}

/* ---- blocks recorded here ---- */

static int record_block(struct weir_served *s, CUdeviceptr block) {
    int done;

    pthread_mutex_lock(&lock);
    done = weir__map_put(&recorded, block, (uintptr_t)s);
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&weir__blocks_recorded, 1, memory_order_release);
    return done;
}

static void add_use(struct weir_served *s, size_t bytes) {
    uint64_t used = atomic_fetch_add_explicit(&s->used, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&s->used_peak, memory_order_relaxed);

    while (used > peak &&
           !atomic_compare_exchange_weak_explicit(&s->used_peak, &peak, used, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes) {
    if (s->needs_records && !record_block(s, block))
        return 0;
    if (s->needs_sums)
        add_use(s, bytes);
    return 1;
}

void weir__block_ended(const struct weir_found *found) {
    if (found->by->needs_sums)
        atomic_fetch_sub_explicit(&found->by->used, found->bytes, memory_order_relaxed);
}

void weir__block_end(const struct weir_found *found) {
    int any = atomic_load_explicit(&weir__blocks_recorded, memory_order_acquire);

    if (!any && !atomic_load_explicit(&weir__blocks_have_ids, memory_order_acquire))
        return;
    pthread_mutex_lock(&lock);
    (void)weir__map_remove(&block_ids, found->base, NULL);
    (void)weir__map_remove(&recorded, found->base, NULL);
    pthread_mutex_unlock(&lock);
}

void weir__block_restore(const struct weir_found *found) {
    if (found->by->needs_records)
        (void)record_block(found->by, found->base); /* cannot fail: a removed record left room */
}

uint64_t weir__block_id(const struct weir_found *found) {
    uintptr_t number = 0;

    pthread_mutex_lock(&lock);
    if (!weir__map_get(&block_ids, found->base, &number)) {
        number = FIRST_BLOCK_ID + ++last_block_id;
        if (!weir__map_put(&block_ids, found->base, number))
            number = 0;
    }
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&weir__blocks_have_ids, 1, memory_order_release);
    return number;
}
