/* SPDX-License-Identifier: MIT */
/* Mistakes that are planted in the library's own data, each of which one of its asserts finds (lib/base/assert.h). */
#include <setjmp.h>

#include "api/allocator_internal.h"
#include "base/map.h"
#include "cache/stream_cache.h"
#include "engine/mapped.h"
#include "ipc/slot_file.h"
#include "tests/fixtures/caches.h"
#include "tests/fixtures/logged.h"
#include "tests/whole/test_asserts.h"

static sigjmp_buf before_abort;

static void leave_abort(int signal) {
    (void)signal;
    siglongjmp(before_abort, 1);
}

/* The part of the condition that fails for each mistake. */
static const char *const found_by[] = {
    "is_heap_valid",      "is_heap_valid",  "is_heap_valid", "is_heap_valid", "are_handles_valid",
    "is_cache_valid",     "is_cache_valid", "lead_words_to", "copied",        "taken",
    "slot <= WEIR_SLOTS", "users > 0",
};

/* Plants a mistake, and makes the call that finds it.  `small` is a live block of 5,000 bytes. */
static void plant_mistake(int mistake, const void *small) {
    static const struct weir_slot_kind kind = {"weirtest", 1, 512, WEIR_SLOTS_AT, 0};
    struct weir_heap *heap = (struct weir_heap *)a->reserve.engine;
    struct weir_slab *slab = weir__records_find(&a->caches->records, (uintptr_t)small);
    struct weir_slot_file file = {.kind = &kind};
    struct weir_lock lock = {0};
    static struct weir_map
        map; /* static, so that its memory is no leak after the jump out of the assert */

    switch (mistake) {
    case 3: /* the heap counts more than its placements have */
        heap->total += MIB;
        break;
    case 4: /* two physical allocations overlap */
        heap->range->handles[0].bytes += GIB;
        break;
    case 5: /* a cache counts idle memory that it does not have */
        atomic_fetch_add(&atomic_load(&slab->cache)->idle, 4096);
        break;
    case 6: /* a list of slabs is broken */
        slab->prev = slab;
        break;
    case 7: /* a slab ends twice */
        weir__records_end(&a->caches->records, slab);
        weir__records_end(&a->caches->records, slab);
        break;
    case 8: /* a map counts an entry twice */
        for (uint64_t key = 1; key < 1000; key++)
            map.count += (size_t)weir__map_put(&map, key, key) * (key == 20);
        break;
    case 9: /* a lock is released twice */
        weir__lock_give(&lock);
        break;
    case 10: /* a process uses a slot that no file has */
        (void)weir__slot_offset(&file, WEIR_SLOTS + 1);
        break;
    case 11: /* an allocator of this process is released twice */
        weir__local_peers_release(&a->local_peer);
        break;
    default:
        plant_in_placement(heap->placement[WEIR_HEAP_COMMON], mistake);
    }
    (void)weir_trim(a, 0, NULL);
}

CASE("asserts", 60, start_device, NULL);

TEST_EACH(ROWS(found_by), a_planted_mistake_is_found) {
    CUstream stream = make_stream();
    void *small, *large;

    make_cached(KIND_MAPPED, "");
    small = alloc_live(5000, stream);
    (void)alloc_live(64 * MIB, stream);
    large = alloc_live(96 * MIB, stream);
    free_live(large, stream);
    (void)alloc_live(600 * KIB, stream);
    catch_log();
    signal(SIGABRT, leave_abort);
    if (sigsetjmp(before_abort, 1) == 0) {
        plant_mistake(_i, small);
        ck_abort_msg("row %d: no assert found the mistake", _i);
    }
    (void)lines();
    ck_assert_msg(strstr(logged, found_by[_i]) != NULL, "row %d: %s", _i, logged);
}

SUITE("asserts", CK_FORK);
