/* SPDX-License-Identifier: MIT */
/* test_misuse.h: the shared part of the misuse suite: witnesses, which no mistake may harm. */
#ifndef WEIR_TEST_MISUSE_H
#define WEIR_TEST_MISUSE_H

#include "api/allocator_internal.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_world.h"

/* Returns 1 if every block is the driver's own, so that the driver frees any address it knows. */
static inline int is_bare_pool(int world) {
    return worlds[world].kind == KIND_POOL && !world_has_caches(world);
}

/* Expects that status of the call, and one line in the log. */
#define MISUSE(status, call)                                                                       \
    do {                                                                                           \
        (void)lines();                                                                             \
        EXPECT(status, call);                                                                      \
        expect_lines(__LINE__, 1);                                                                 \
    } while (0)

/* Expects an invalid argument, and a line with the reason. */
#define WRONG(call, why)                                                                           \
    do {                                                                                           \
        MISUSE(WEIR_E_INVALID, call);                                                              \
        ck_assert_str_eq(logged, "weir: error: " why "\n");                                        \
    } while (0)

static const size_t sizes[] = {1, 512, 3000, 20000, 70000, 300000, 512 * KIB, 600000, MIB, 3 * MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0], EACH = 2, WITNESSES = SIZES * EACH };

static unsigned char *witness[WITNESSES];
static weir_statistics before;

static inline size_t size_of(int i) {
    return sizes[i % SIZES];
}

static inline weir_allocator *make_misused(int world) {
    weir_options options = options_of_world(world, 512 * MIB);
    weir_allocator *made = NULL;

    options.recovery_timeout_ms = 100;
    OK(weir_allocator_create(&options, &made));
    return made;
}

static inline int is_witness(const void *block) {
    for (int i = 0; i < WITNESSES; i++)
        if (witness[i] == block)
            return 1;
    return 0;
}

static inline void expect_patterns(void) {
    for (int i = 0; i < WITNESSES; i++) {
        size_t at = first_other(witness[i], (unsigned char)(i + 1), size_of(i));

        if (at < size_of(i))
            ck_abort_msg("witness %d of %zu bytes was written at %zu", i, size_of(i), at);
    }
}

static inline void begin_misuse(int world) {
    a = make_misused(world);
    for (int round = 0; round < 30; round++) /* fills the caches */
        for (int i = 0; i < SIZES; i++)
            free_in_world(alloc_in_world(sizes[i], round % 2 ? A : B), round % 2 ? A : B);
    for (int i = 0; i < WITNESSES; i++) {
        witness[i] = alloc_in_world(size_of(i), i % 2 ? A : B);
        memset(witness[i], i + 1, size_of(i));
    }
    before = check_identities(a);
    (void)lines();
}

/* Expects the state that begin_misuse() left. */
static inline void expect_unharmed(void) {
    unsigned char *more[WITNESSES];
    weir_statistics s = check_identities(a);

    MUST_EQ(s.blocks, before.blocks);
    MUST_EQ(s.requested, before.requested);
    MUST_EQ(s.in_use, before.in_use);
    for (int i = 0; i < WITNESSES; i++) {
        more[i] = alloc_in_world(size_of(i), i % 3 ? A : B);
        memset(more[i], 0xee, size_of(i));
    }
    expect_patterns();
    for (int i = 0; i < WITNESSES; i++) /* blocks do not overlap */
        MUST_EQ(first_other(more[i], 0xee, size_of(i)), size_of(i));
    for (int i = 0; i < WITNESSES; i++)
        free_in_world(more[i], i % 3 ? A : B);
    expect_patterns();
    s = check_identities(a);
    MUST_EQ(s.blocks, before.blocks);
    MUST_EQ(s.requested, before.requested);
    check_model();
}

static inline void end_misuse(void) {
    expect_unharmed();
    for (int i = 0; i < WITNESSES; i++)
        free_in_world(witness[i], i % 2 ? A : B);
    destroy_empty();
}

/* Frees a block in a separate thread. */
static struct errand {
    void *block;
    CUstream stream;
    weir_status status;
} errand;

static inline void *free_errand_block(void *unused) {
    (void)unused;
    CU(driver->cuCtxPushCurrent(primary));
    errand.status = weir_free(a, errand.block, errand.stream);
    return NULL;
}

static inline weir_status free_in_thread(void *block, CUstream stream) {
    errand = (struct errand){.block = block, .stream = stream};
    run_in_thread(free_errand_block, NULL);
    return errand.status;
}

/* Expects that every further free of the freed block fails. */
static inline void expect_freed(void *block) {
    for (int i = 0; i < 2; i++) {
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, A));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, B));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, C));
        MISUSE(WEIR_E_NOT_OWNED, weir_free(a, block, NULL));
        MISUSE(WEIR_E_NOT_OWNED, free_in_thread(block, A));
    }
}

#endif
