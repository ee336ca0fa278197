/* SPDX-License-Identifier: MIT */
/* test_span.c: size classes, the slots of a slab, and the whole blocks that a cache keeps. */
#include "tests/fixtures/support.h"

#include "cache/stream_cache.h"
#include "cache/page_map.h"

/* Makes a slab with that many slots at that address. */
static struct weir_slab *make_slab(uint64_t base, unsigned size_class, uint32_t slots) {
    size_t bytes = (sizeof(struct weir_slab) + slots * sizeof(uint32_t) + 63) / 64 * 64;
    struct weir_slab *s = aligned_alloc(_Alignof(struct weir_slab), bytes);

    MUST(s != NULL);
    memset(s, 0, bytes);
    s->base = base;
    s->bytes = ((size_t)slots * weir__slab_units(size_class) * WEIR_SLAB_UNIT + 16 * KIB - 1) /
               (16 * KIB) * (16 * KIB);
    weir__slab_cut(s, size_class, slots);
    return s;
}

CASE("span", 60, NULL, NULL);

/* Every size has room in its class, would not fit into the class below, and wastes an eighth at most above 4 KiB. */
TEST(every_size_has_its_class) {
    unsigned last = 0;

    for (size_t bytes = 1; bytes <= WEIR_SLAB_SMALL; bytes++) {
        unsigned size_class = weir__slab_class(bytes);
        size_t slot = (size_t)weir__slab_units(size_class) * WEIR_SLAB_UNIT;

        MUST_LE(size_class + 1, WEIR_SLAB_CLASSES);
        MUST(size_class == last || size_class == last + 1);
        MUST_LE(bytes, slot);
        if (size_class > 0)
            MUST((size_t)weir__slab_units(size_class - 1) * WEIR_SLAB_UNIT < bytes);
        if (bytes > 4 * KIB)
            MUST_LE((slot - bytes) * 8, slot);
        last = size_class;
    }
    MUST_EQ(last, WEIR_SLAB_CLASSES - 1);
    MUST_EQ((size_t)weir__slab_units(last) * WEIR_SLAB_UNIT, WEIR_SLAB_SMALL);
}

/* Only the first address of a slot leads to the slot, of all addresses in and around a slab. */
TEST_EACH(WEIR_SLAB_CLASSES, an_address_is_one_slots_or_none) {
    static const uint32_t counts[] = {1, 2, 7, 64, 1024};
    uint64_t base = UINT64_C(0x7f1234500000);
    unsigned size_class = (unsigned)_i;
    uint64_t slot_bytes = (uint64_t)weir__slab_units(size_class) * WEIR_SLAB_UNIT;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct weir_slab *s = make_slab(base, size_class, counts[i]);

        for (uint32_t slot = 0; slot < counts[i]; slot++) {
            uint64_t address = weir__slab_address(s, slot);

            MUST_EQ(address, base + slot * slot_bytes);
            MUST_EQ(weir__slab_slot(s, address), slot);
            MUST_EQ(weir__slab_slot(s, address + 1), WEIR_SLOT_NONE);
            MUST_EQ(weir__slab_slot(s, address + 256), WEIR_SLOT_NONE);
            MUST_EQ(weir__slab_slot(s, address + slot_bytes - 1), WEIR_SLOT_NONE);
            for (uint64_t at = WEIR_SLAB_UNIT; at < slot_bytes; at += WEIR_SLAB_UNIT)
                MUST_EQ(weir__slab_slot(s, address + at), WEIR_SLOT_NONE);
        }
        /* The waste after the last slot, and the memory after and before the slab, belong to no slot. */
        for (uint64_t at = counts[i] * slot_bytes; at < s->bytes + 64 * KIB; at += WEIR_SLAB_UNIT)
            MUST_EQ(weir__slab_slot(s, base + at), WEIR_SLOT_NONE);
        MUST_EQ(weir__slab_slot(s, base - WEIR_SLAB_UNIT), WEIR_SLOT_NONE);
        MUST_EQ(weir__slab_slot(s, 0), WEIR_SLOT_NONE);
        MUST_EQ(weir__slab_slot(s, UINT64_MAX), WEIR_SLOT_NONE);
        free(s);
    }
}

/* Slots are taken lowest first, later the last freed one first.  The state of a slot holds the requested bytes. */
TEST(slots_go_and_come_home) {
    enum { SLOTS = 100 };
    struct weir_slab *s = make_slab(1 << 20, 3, SLOTS);

    for (uint32_t i = 0; i < SLOTS; i++) {
        MUST_EQ(s->idle, SLOTS - i);
        MUST(weir__slab_take(s, 1600 + i) == i);
        MUST_EQ(atomic_load(&s->slot[i]), 1600 + i);
    }
    MUST_EQ(s->idle, 0);
    MUST_EQ(s->head, WEIR_SLOT_NONE);
    for (uint32_t i = 0; i < SLOTS; i++) {
        weir__slab_put(s, i * 37 % SLOTS);
        MUST(atomic_load(&s->slot[i * 37 % SLOTS]) & WEIR_SLOT_IDLE);
        MUST_EQ(s->idle, i + 1);
    }
    for (uint32_t i = SLOTS; i > 0; i--)
        MUST(weir__slab_take(s, 1) == (i - 1) * 37 % SLOTS);
    MUST_EQ(s->idle, 0);
    free(s);
}

/* The slots of the remote-free queue come home at once, and are taken before older free slots, latest first. */
TEST_EACH(3, slots_come_home_from_the_remote_free_queue) {
    enum { SLOTS = 20 };
    struct weir_slab *s = make_slab(1 << 20, 3, SLOTS);
    const uint32_t at_home = (uint32_t)_i; /* slots at home before the collect */

    for (uint32_t i = 0; i < SLOTS - at_home; i++)
        MUST(weir__slab_take(s, 1600) == i);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < SLOTS - at_home; i++) {
            MUST(weir__slab_post(s, i) == (i == 0));
            MUST(atomic_load(&s->slot[i]) & WEIR_SLOT_IDLE);
            MUST_EQ(s->idle, at_home);
        }
        weir__slab_collect(s);
        MUST_EQ(s->idle, SLOTS);
        for (uint32_t i = SLOTS - at_home; i > 0; i--)
            MUST(weir__slab_take(s, 1600) == i - 1);
        MUST_EQ(s->idle, at_home);
    }
    for (uint32_t i = SLOTS - at_home; i < SLOTS; i++)
        MUST(weir__slab_take(s, 1600) == i);
    MUST_EQ(s->head, WEIR_SLOT_NONE);
    free(s);
}

SUITE("span", CK_FORK_GETENV);
