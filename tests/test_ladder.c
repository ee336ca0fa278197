/* SPDX-License-Identifier: MIT */
/* test_ladder.c: what a request that cannot be served tells, on the device model.
 *
 * The largest request that would have been served: whoever asks for just that gets it, whatever came
 * before, on every engine; and where the engine knows its memory to the byte, 256 bytes more fail.
 *
 * Must not know: how an engine finds that out.
 */
#include "model_device.h"

#include <stdio.h>
#include <string.h>

#include "allocator_internal.h"
#include "every_kind.h"

static weir_allocator *a;

static void start_device(void) {
    start_model(4 * GIB);
}

/* One of the worlds, with a limit (0: none), and as long a wait (0: none at all). */
static weir_options options_for(int world, size_t limit, uint32_t wait_ms) {
    weir_options options = options_of(worlds[world].kind, "model", limit ? limit : 3 * GIB);

    if (limit)
        options.limit = bytes_amount(limit);
    options.front = worlds[world].front;
    options.recovery_timeout_ms = wait_ms ? wait_ms : UINT32_MAX;
    return options;
}

static void make(const weir_options *options) {
    OK(weir_allocator_create(options, &a));
}

/* The arena alone knows all that there is. */
static int is_exact(int world) {
    return worlds[world].front == WEIR_SWITCH_OFF &&
           (worlds[world].kind == KIND_FIXED || worlds[world].kind == KIND_REGIONS);
}

/* The driver does not tell what lies free inside. */
static int is_driver_pool(int world) {
    return worlds[world].front == WEIR_SWITCH_OFF && worlds[world].kind == KIND_POOL;
}

static void *take(size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    return block;
}

static int is_refusal(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* A request that must be refused: what would have been served. */
static size_t refused(size_t bytes, CUstream stream) {
    weir_refusal r = {.size = sizeof r};
    void *none = NULL;

    MUST(is_refusal(weir_alloc(a, bytes, stream, &none)));
    OK(weir_last_refusal(&r));
    MUST_EQ(r.asked, bytes);
    MUST(r.largest < bytes);
    return (size_t)r.largest;
}

/* After a refusal: it is true; `exact`: and no less than the truth. */
static void check_largest(size_t largest, CUstream stream, int exact) {
    if (exact)
        MUST_EQ(refused(largest + 256, stream), largest);
    if (largest > 0)
        OK(weir_free(a, take(largest, stream), stream));
}

static void end(void) {
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    check_identities(a);
    OK(weir_allocator_destroy(a));
    check_model();
}

/* ---- the largest request --------------------------------------------------------------------- */

enum { BLOCKS = 64 };
static void *block[BLOCKS];
static int blocks;

/* Takes blocks of about so many bytes until there is no room for another. */
static void fill_up(size_t bytes, CUstream stream) {
    for (blocks = 0; blocks < BLOCKS; blocks++)
        if (weir_alloc(a, bytes + (size_t)blocks * 4 * KIB, stream, &block[blocks]) != WEIR_OK)
            return;
    ck_abort_msg("there is room for more than %d", BLOCKS);
}

/* Gives every step-th back, from the first-th on. */
static void give_back(int first, int step, CUstream stream) {
    for (int i = first; i < blocks; i += step) {
        OK(weir_free(a, block[i], stream));
        block[i] = NULL;
    }
}

static void give_rest_back(CUstream stream) {
    for (int i = 0; i < blocks; i++)
        if (block[i])
            OK(weir_free(a, block[i], stream));
}

/* Nothing is left; every other block free; all but two. */
static void check_fragments(int world, size_t least) {
    fill_up(9 * MIB, A);
    check_largest(refused(16 * MIB, A), A, is_exact(world));
    give_back(0, 2, A);
    check_largest(refused(200 * MIB, A), A, is_exact(world));
    give_back(1, 4, A);
    MUST_LE(least, refused(300 * MIB, A));
    check_largest(refused(300 * MIB, A), A, is_exact(world));
    give_rest_back(A);
}

START_TEST(within_a_limit) {
    for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        weir_options options = options_for(_i, 256 * MIB, wait_ms);

        make(&options);
        check_fragments(_i, is_driver_pool(_i) ? 0 : 18 * MIB);
        check_largest(refused(257 * MIB, A), A, is_exact(_i));
        if (wait_ms && !is_driver_pool(_i)) /* all of it is idle */
            MUST_EQ(refused(257 * MIB, A), 256 * MIB);
        end();
    }
}
END_TEST

START_TEST(on_a_full_device) {
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 257 * MIB));
    for (uint32_t wait_ms = 0; wait_ms < 2; wait_ms++) {
        weir_options options = options_for(_i, 0, wait_ms);

        if (worlds[_i].kind == KIND_FIXED)
            options.limit = bytes_amount(250 * MIB);
        make(&options);
        check_fragments(_i, 0);
        check_largest(refused(2 * GIB, A), A, is_exact(_i));
        end();
    }
    CU(driver->cuMemFree(others));
}
END_TEST

/* What B has freed is not A's while B is at work, nor is what several use. */
START_TEST(beside_pending_frees) {
    weir_options options = options_for(_i, 256 * MIB, 0);
    size_t largest;

    if (worlds[_i].kind == KIND_PLATFORM && worlds[_i].front == WEIR_SWITCH_OFF)
        return; /* its frees wait */
    make(&options);
    fill_up(9 * MIB, B);
    busy(B, 100 * MS);
    give_back(0, 2, B);
    largest = refused(128 * MIB, A);
    check_largest(largest, A, is_exact(_i));
    OK(weir_use(a, block[1], A));
    give_back(1, 2, B);
    MUST_EQ(refused(200 * MIB, A), largest);
    CU(driver->cuCtxSynchronize());
    take(1, B); /* lets weir see it */
    largest = refused(256 * MIB, A);
    if (is_exact(_i))
        MUST_LE(128 * MIB, largest);
    check_largest(largest, A, is_exact(_i));
    weir__detour_set(&a->host.detours, WEIR_DETOUR_LOST, 1);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* Small ones, on a stream with a cache: a slab of one slot must do. */
START_TEST(less_than_a_slab) {
    weir_options options = options_for(_i, 64 * MIB, 1);
    void *most[40];
    int count = 0;

    make(&options);
    for (int i = 0; i < 200; i++)
        OK(weir_free(a, take(20 * KIB, A), A));
    while (weir_alloc(a, 2 * MIB - 48 * KIB, A, &most[count]) == WEIR_OK)
        count++;
    for (int i = 0; i < 3; i++) {
        size_t largest = refused(2 * MIB, A);

        check_largest(largest, A, 0);
        if (largest > 0)
            take(largest, A);
    }
    CU(driver->cuCtxSynchronize());
    weir__detour_set(&a->host.detours, WEIR_DETOUR_LOST, 1);
    OK(weir_allocator_destroy(a));
}
END_TEST

/* Gaps, and what a block is rounded up to. */
START_TEST(with_gaps) {
    weir_options options = options_for(_i, 256 * MIB, 1);

    options.harden = WEIR_HARDEN_GUARD;
    options.log = WEIR_LOG_NONE;
    make(&options);
    check_fragments(_i, 0);
    end();
}
END_TEST

/* Whatever came before: three streams at work, blocks of all sizes that come and go, trims. */
START_TEST(whatever_came_before) {
    static const uint32_t waits[] = {0, 1, 50};
    uint64_t seed = 88172645463325252u + (uint64_t)_i;
    CUstream stream[] = {A, B, C};
    size_t told = 0, most = 0;

    for (int round = 0; round < 12; round++) {
        weir_options options =
            options_for(_i, (96 + 32 * (size_t)(round % 4)) * MIB, waits[round % 3]);

        make(&options);
        blocks = BLOCKS;
        memset(block, 0, sizeof block);
        for (int step = 0; step < 600; step++) {
            CUstream on = stream[next_random(&seed) % 3];
            int at = (int)(next_random(&seed) % BLOCKS);
            size_t bytes = (size_t)1 << (8 + next_random(&seed) % 18);

            bytes += next_random(&seed) % bytes;
            if (next_random(&seed) % 8 == 0)
                busy(on, next_random(&seed) % (2 * MS));
            if (next_random(&seed) % 64 == 0)
                OK(weir_trim(a, 0, NULL));
            if (block[at]) {
                OK(weir_free(a, block[at], on));
                block[at] = NULL;
            } else if (is_refusal(weir_alloc(a, bytes, on, &block[at]))) {
                weir_refusal r = {.size = sizeof r};

                OK(weir_last_refusal(&r));
                MUST_EQ(r.asked, bytes);
                most += r.largest > 0;
                told++;
                if (r.largest > 0)
                    block[at] = take((size_t)r.largest, on);
            }
        }
        give_rest_back(A);
        end();
    }
    printf("# world %d: %zu refusals, %zu told of something\n", _i, told, most);
    MUST(told > 10);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ladder");
    TCase *tests = suite_add_case(suite, "largest", 60, start_device, NULL);

    tcase_add_loop_test(tests, within_a_limit, 0, WORLDS);
    tcase_add_loop_test(tests, on_a_full_device, 0, WORLDS);
    tcase_add_loop_test(tests, beside_pending_frees, 0, WORLDS);
    tcase_add_loop_test(tests, less_than_a_slab, 0, WORLDS);
    tcase_add_loop_test(tests, with_gaps, 0, WORLDS);
    tcase_add_loop_test(tests, whatever_came_before, 0, WORLDS);
    return run_suite(suite, CK_FORK_GETENV);
}
