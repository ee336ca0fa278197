/* SPDX-License-Identifier: MIT */
/* test_service.c: what a user gets of each engine with its default settings, as bounds: how much of the device can be
 * used, what is reserved beside what was asked for, and how long a request takes while nothing is queued.
 *
 * Loads that the shipped traces do not have.  Times are the device model's.
 */
#include "tests/fixtures/model_device.h"

enum { STREAMS = 1024 };
#define DEVICE ((uint64_t)140 * GIB)

static weir_allocator *made;
static CUstream streams[STREAMS];

static void set_up(void) {
    start_model(DEVICE);
    made = NULL;
}

static void tear_down(void) {
    check_model();
}

static void make(int kind, uint64_t limit) {
    weir_options options = options_of(kind, "model", DEVICE / 4 * 3);

    if (limit > 0)
        options.limit = bytes_amount(limit);
    OK(weir_allocator_create(&options, &made));
}

static uint64_t reserve_now(void) {
    weir_statistics now = {.size = sizeof now};

    OK(weir_stats(made, &now));
    return now.reserve;
}

static void take(size_t bytes, CUstream stream) {
    void *block;

    OK(weir_alloc(made, bytes, stream, &block));
}

/* The engines that take memory as they need it; the last one leaves all to the driver. */
static const int kinds[] = {KIND_POOL, KIND_REGIONS, KIND_MAPPED, KIND_PLATFORM};
enum { KINDS = sizeof kinds / sizeof kinds[0], OWN_KINDS = KINDS - 1 };

/* ---- how much of the device can be used -------------------------------------------------------- */

static const size_t equal_kib[] = {1024,  1536,  3072,  5120,  7168,   9216,  11264, 13312,
                                   17408, 18432, 22528, 25600, 31744,  33792, 40960, 49664,
                                   50176, 66560, 71680, 99328, 102400, 132096};
enum { SIZES = sizeof equal_kib / sizeof equal_kib[0] };

/* Equal blocks, until there is no memory for another. */
START_TEST(most_of_the_device_can_be_used) {
    const int kind = kinds[_i / SIZES];
    const size_t bytes = equal_kib[_i % SIZES] * KIB;
    uint64_t used = 0;
    void *block;

    if (!is_roomy())
        return;
    make(kind, 0);
    while (weir_alloc(made, bytes, A, &block) == WEIR_OK)
        used += bytes;
    ck_assert_msg(used >= DEVICE / 100 * 97, "%s, blocks of %zu KiB: %llu MiB of %llu can be used",
                  kind_names[kind], bytes / KIB, (unsigned long long)(used / MIB),
                  (unsigned long long)(DEVICE / MIB));
}
END_TEST

/* ---- what is reserved -------------------------------------------------------------------------- */

/* One block of 4 KiB on each of so many streams. */
START_TEST(streams_share_what_is_reserved) {
    static const struct {
        int streams;
        uint64_t most; /* bytes */
    } loads[] = {{1, 32 * MIB}, {64, 64 * MIB}, {STREAMS, 256 * MIB}};
    enum { LOADS = sizeof loads / sizeof loads[0] };
    const int kind = kinds[_i / LOADS];

    make(kind, 0);
    for (int i = 0; i < loads[_i % LOADS].streams; i++) {
        CU(driver->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        take(4 * KIB, streams[i]);
    }
    ck_assert_msg(reserve_now() <= loads[_i % LOADS].most, "%s, %d streams: %llu KiB reserved",
                  kind_names[kind], loads[_i % LOADS].streams,
                  (unsigned long long)(reserve_now() / KIB));
}
END_TEST

/* The weights of models in half precision, as they are loaded: bytes of each layer's matrices, and of what there is
 * once. */
#define MATRIX(rows, columns) ((size_t)(rows) * (columns)*2)
static const struct model {
    const char *name;
    int layers;
    size_t once[2], layer[9];
} models[] = {
    {"Phi-3-mini",
     32,
     {MATRIX(32064, 3072), MATRIX(32064, 3072)},
     {MATRIX(9216, 3072), MATRIX(3072, 3072), MATRIX(16384, 3072), MATRIX(3072, 8192), 6144, 6144}},
    {"Llama-2-13B",
     40,
     {MATRIX(32000, 5120), MATRIX(32000, 5120)},
     {MATRIX(5120, 5120), MATRIX(5120, 5120), MATRIX(5120, 5120), MATRIX(5120, 5120),
      MATRIX(13824, 5120), MATRIX(13824, 5120), MATRIX(13824, 5120), 10240, 10240}},
    {"Gemma-7B",
     28,
     {MATRIX(256000, 3072)},
     {MATRIX(4096, 3072), MATRIX(4096, 3072), MATRIX(4096, 3072), MATRIX(4096, 3072),
      MATRIX(24576, 3072), MATRIX(24576, 3072), MATRIX(24576, 3072), 6144, 6144}},
    {"Qwen2.5-14B",
     48,
     {MATRIX(152064, 5120), MATRIX(152064, 5120)},
     {MATRIX(5120, 5120), 10240, MATRIX(1024, 5120), MATRIX(1024, 5120), MATRIX(5120, 5120),
      MATRIX(13824, 5120), MATRIX(13824, 5120), MATRIX(13824, 5120), 10240}},
};
enum { MODELS = sizeof models / sizeof models[0] };

START_TEST(weights_take_little_more_than_they_are) {
    static const struct {
        int kind;
        double most; /* times what was asked for */
    } engines[] = {{KIND_POOL, 1.11}, {KIND_MAPPED, 1.03}, {KIND_PLATFORM, 1.11}};
    const struct model *model = &models[_i % MODELS];
    const int kind = engines[_i / MODELS].kind;
    uint64_t asked = 0;
    double part;

    make(kind, 0);
    for (int layer = -1; layer < model->layers; layer++) {
        const size_t *sizes = layer < 0 ? model->once : model->layer;
        const int count = layer < 0 ? 2 : 9;

        for (int i = 0; i < count && sizes[i] > 0; i++) {
            take(sizes[i], A);
            asked += sizes[i];
        }
    }
    part = (double)reserve_now() / (double)asked;
    ck_assert_msg(part <= engines[_i / MODELS].most,
                  "%s, %s: reserves %.3f times what was asked for", kind_names[kind], model->name,
                  part);
}
END_TEST

/* ---- how long a request takes ------------------------------------------------------------------ */

/* Streams come and go below a limit that has room for two units alone: nothing is ever queued, so nobody need wait. */
START_TEST(no_request_waits_while_nothing_is_queued) {
    enum { TURNS = 300, SOME = 8 };
    const int kind = kinds[_i];
    void *blocks[SOME];

    make(kind, 64 * MIB);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < SOME; i++) {
            uint64_t began, took;

            CU(driver->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
            began = driver->ticks();
            OK(weir_alloc(made, 4 * KIB, streams[i], &blocks[i]));
            took = driver->ticks_to_ns(driver->ticks() - began);
            ck_assert_msg(took <= 10 * MS, "%s, turn %d, stream %d: %llu us", kind_names[kind],
                          turn, i, (unsigned long long)(took / 1000));
        }
        for (int i = 0; i < SOME; i++) {
            OK(weir_free(made, blocks[i], streams[i]));
            CU(driver->cuStreamDestroy(streams[i]));
        }
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("service");
    TCase *tests = suite_add_case(suite, "user", 60, set_up, tear_down);

    tcase_add_loop_test(tests, most_of_the_device_can_be_used, 0, OWN_KINDS * SIZES);
    tcase_add_loop_test(tests, streams_share_what_is_reserved, 0, KINDS * 3);
    tcase_add_loop_test(tests, weights_take_little_more_than_they_are, 0, 3 * MODELS);
    tcase_add_loop_test(tests, no_request_waits_while_nothing_is_queued, 0, KINDS);
    return run_suite(suite, CK_FORK);
}
