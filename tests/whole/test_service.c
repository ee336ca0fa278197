/* SPDX-License-Identifier: MIT */
/* test_service.c: bounds the service of each engine with default settings: the usable part of the device, the memory
 * reserved beyond the requests, and the time of a request while nothing is queued.
 *
 * The loads are not among the shipped traces.  Times are the device model's. */
#include "tests/fixtures/model_device.h"

enum { STREAMS = 1024 };
#define DEVICE ((uint64_t)140 * GIB)

static weir_allocator *made;
static CUstream streams[STREAMS];

static void start_service_device(void) {
    start_model(DEVICE);
    made = NULL;
}

static void make_service(int kind, uint64_t limit) {
    weir_options options = options_of(kind, "model", DEVICE / 4 * 3);

    if (limit > 0)
        options.limit = bytes_amount(limit);
    OK(weir_allocator_create(&options, &made));
}

static void alloc_for_service(size_t bytes, CUstream stream) {
    void *block;

    OK(weir_alloc(made, bytes, stream, &block));
}

/* The engines that take memory as they need it; the last one leaves all to the driver. */
static const int kinds[] = {KIND_POOL, KIND_REGIONS, KIND_MAPPED, KIND_DIRECT};
enum { KINDS = sizeof kinds / sizeof kinds[0], OWN_KINDS = KINDS - 1 };

/* ---- usable part of the device ----------------------------------------------------------------- */

static const size_t equal_kib[] = {1024,  1536,  3072,  5120,  7168,   9216,  11264, 13312,
                                   17408, 18432, 22528, 25600, 31744,  33792, 40960, 49664,
                                   50176, 66560, 71680, 99328, 102400, 132096};
enum { SIZES = sizeof equal_kib / sizeof equal_kib[0] };

CASE("user", 60, start_service_device, check_model);

/* Equal blocks fill the device until a request fails. */
TEST_EACH((OWN_KINDS * SIZES), most_of_the_device_can_be_used) {
    const int kind = kinds[_i / SIZES];
    const size_t bytes = equal_kib[_i % SIZES] * KIB;
    uint64_t used = 0;
    void *block;

    if (!is_roomy())
        return;
    make_service(kind, 0);
    while (weir_alloc(made, bytes, A, &block) == WEIR_OK)
        used += bytes;
    ck_assert_msg(used >= DEVICE / 100 * 97, "%s, blocks of %zu KiB: %llu MiB of %llu can be used",
                  kind_names[kind], bytes / KIB, (unsigned long long)(used / MIB),
                  (unsigned long long)(DEVICE / MIB));
}

/* ---- reserved memory --------------------------------------------------------------------------- */

/* Each stream allocates one block of 4 KiB. */
TEST_EACH(KINDS * 3, streams_share_what_is_reserved) {
    static const struct {
        int streams;
        uint64_t most; /* bytes */
    } loads[] = {{1, 32 * MIB}, {64, 64 * MIB}, {STREAMS, 256 * MIB}};
    enum { LOADS = sizeof loads / sizeof loads[0] };
    const int kind = kinds[_i / LOADS];

    make_service(kind, 0);
    for (int i = 0; i < loads[_i % LOADS].streams; i++) {
        streams[i] = make_stream();
        alloc_for_service(4 * KIB, streams[i]);
    }
    ck_assert_msg(stats_of(made).reserved <= loads[_i % LOADS].most,
                  "%s, %d streams: %llu KiB reserved", kind_names[kind], loads[_i % LOADS].streams,
                  (unsigned long long)(stats_of(made).reserved / KIB));
}

/* The weights of models in half precision, in the order of loading: the bytes of the matrices that a model has once,
 * and of those in each layer. */
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

TEST_EACH(3 * MODELS, weights_take_little_more_than_they_are) {
    static const struct {
        int kind;
        double most; /* times the request */
    } engines[] = {{KIND_POOL, 1.11}, {KIND_MAPPED, 1.03}, {KIND_DIRECT, 1.11}};
    const struct model *model = &models[_i % MODELS];
    const int kind = engines[_i / MODELS].kind;
    uint64_t asked = 0;
    double part;

    make_service(kind, 0);
    for (int layer = -1; layer < model->layers; layer++) {
        const size_t *sizes = layer < 0 ? model->once : model->layer;
        const int count = layer < 0 ? 2 : 9;

        for (int i = 0; i < count && sizes[i] > 0; i++) {
            alloc_for_service(sizes[i], A);
            asked += sizes[i];
        }
    }
    part = (double)stats_of(made).reserved / (double)asked;
    ck_assert_msg(part <= engines[_i / MODELS].most,
                  "%s, %s: reserves %.3f times what was asked for", kind_names[kind], model->name,
                  part);
}

/* ---- memory that patterns take ----------------------------------------------------------------- */

/* The live bytes of a pattern, and their peak. */
static uint64_t live, live_peak;

struct block {
    void *address;
    size_t bytes;
};

static struct block alloc_counted(size_t bytes) {
    struct block b = {.bytes = bytes};

    OK(weir_alloc(made, bytes, A, &b.address));
    live += bytes;
    live_peak = live > live_peak ? live : live_peak;
    return b;
}

static void free_counted(struct block *b) {
    if (b->address)
        OK(weir_free(made, b->address, A));
    live -= b->address ? b->bytes : 0;
    b->address = NULL;
}

/* The random state, which each run begins with 0. */
static uint64_t draws;

static size_t draw_bytes_below(size_t below) {
    draws = draws * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(draws >> 33) % below;
}

/* Each tooth builds up from small blocks to large ones, and is freed whole. */
static void sawtooth(void) {
    static struct block tooth[4096];

    for (int teeth = 0; teeth < 40; teeth++) {
        size_t bytes = (1 + draw_bytes_below(24)) * MIB + draw_bytes_below(1024) * KIB;
        int count = 0;

        for (; live + bytes <= 2 * GIB; bytes = (bytes + bytes / 16) & ~(size_t)511)
            tooth[count++] = alloc_counted(bytes);
        while (count > 0)
            free_counted(&tooth[--count]);
    }
}

/* Each block is twice the one before, which is freed then. */
static void doubling_sizes(void) {
    for (size_t series = 0; series < 4; series++) {
        struct block last = alloc_counted(MIB + series * 64 * KIB);

        for (int step = 0; step < 12; step++) {
            struct block next = alloc_counted(2 * last.bytes);

            free_counted(&last);
            last = next;
        }
        free_counted(&last);
    }
}

/* Arrays grow by half, and move each time. */
static void vector_growth(void) {
    enum { VECTORS = 16 };
    struct block vector[VECTORS];

    for (int i = 0; i < VECTORS; i++)
        vector[i] = alloc_counted(256 * KIB);
    for (int turn = 0; turn < 60 * VECTORS; turn++) {
        struct block *v = &vector[draw_bytes_below(VECTORS)], next;

        next = alloc_counted(v->bytes > 256 * MIB ? 256 * KIB
                                                  : (v->bytes + v->bytes / 2) & ~(size_t)511);
        free_counted(v);
        *v = next;
    }
}

static void sizes_that_never_repeat(void) {
    static struct block block[100];

    for (size_t turn = 0; turn < 20000; turn++) {
        struct block *b = &block[draw_bytes_below(100)];

        free_counted(b);
        *b = alloc_counted(((size_t)64 * KIB << draw_bytes_below(10)) + draw_bytes_below(64) * KIB +
                           turn * 512 % MIB + 512);
    }
}

static void first_in_first_out(void) {
    static struct block block[256];

    for (int turn = 0; turn < 20000; turn++) {
        free_counted(&block[turn % 256]);
        block[turn % 256] = alloc_counted((1 + draw_bytes_below(32768)) * 512);
    }
}

/* A cache of keys and values for each sequence, which each step allocates again. */
static void growing_sequences(void) {
    enum { SEQUENCES = 32, LONGEST = 2048, STEP = 32 * 1024 };
    static struct block block[SEQUENCES];

    for (int i = 0; i < SEQUENCES; i++)
        block[i] = alloc_counted((1 + draw_bytes_below(512)) * STEP);
    for (int turn = 0; turn < 20000; turn++) {
        struct block *b = &block[draw_bytes_below(SEQUENCES)], next;

        next =
            alloc_counted(b->bytes < (size_t)LONGEST * STEP ? b->bytes + STEP
                                                            : (1 + draw_bytes_below(256)) * STEP);
        free_counted(b);
        *b = next;
    }
}

/* For each of 64 sizes, one block in every 512 KiB stays live. */
static void survivors(void) {
    static struct block block[16384];

    for (size_t size = 1; size <= 64; size++) {
        size_t bytes = size * KIB, count = 16 * MIB / bytes, behind = 0;

        for (size_t i = 0; i < count; i++)
            block[i] = alloc_counted(bytes);
        for (size_t i = 0; i < count; i++) {
            behind += bytes;
            if (behind < 512 * KIB)
                free_counted(&block[i]);
            else
                behind = 0;
        }
    }
}

/* Robson's worst case: sizes double.  The blocks that stay are those that block most places of the next size. */
static void robson(void) {
    enum { BLOCKS = 16384, SIZES_OF = 12 };
    const uint64_t budget = 16 * GIB;
    static struct block block[BLOCKS];
    size_t count = 0;
    uint64_t offset = 0;

    while (count < BLOCKS)
        block[count++] = alloc_counted(MIB);
    for (int step = 1; step <= SIZES_OF; step++) {
        const uint64_t size = (uint64_t)MIB << step;
        uint64_t avoided[2] = {0, 0};
        size_t kept = 0;

        for (int half = 0; half < 2; half++)
            for (size_t i = 0; i < count; i++) {
                uint64_t at =
                    ((uint64_t)(uintptr_t)block[i].address - offset - (uint64_t)half * size / 2) %
                    size;

                if (at == 0 || at + block[i].bytes > size)
                    avoided[half] += size - block[i].bytes;
            }
        offset += avoided[1] > avoided[0] ? size / 2 : 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t at = ((uint64_t)(uintptr_t)block[i].address - offset) % size;

            if (at == 0 || at + block[i].bytes > size)
                block[kept++] = block[i];
            else
                free_counted(&block[i]);
        }
        for (count = kept; live + size <= budget && count < BLOCKS;)
            block[count++] = alloc_counted(size);
    }
}

static const struct {
    const char *name;
    void (*play)(void);
    double most[OWN_KINDS]; /* peak reserve / peak of live bytes, at most, by engine */
} patterns[] = {
    {"sawtooth", sawtooth, {1.25, 2.05, 1.22}},
    {"doubling ladder", doubling_sizes, {1.31, 2.30, 1.05}},
    {"vector growth", vector_growth, {1.25, 1.75, 1.15}},
    {"sizes that never repeat", sizes_that_never_repeat, {2.00, 1.95, 1.28}},
    {"first in, first out", first_in_first_out, {1.45, 1.85, 1.10}},
    {"growing sequences", growing_sequences, {1.42, 2.30, 1.28}},
    {"survivors", survivors, {2.20, 3.50, 2.00}},
    {"Robson's", robson, {3.60, 8.05, 4.90}},
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

TEST_EACH((OWN_KINDS * PATTERNS), patterns_reserve_no_more_than_their_bounds) {
    const int kind = _i / PATTERNS, pattern = _i % PATTERNS;
    weir_statistics now = {.size = sizeof now};
    double part;

    make_service(kinds[kind], 0);
    patterns[pattern].play();
    OK(weir_stats(made, &now));
    part = (double)now.reserved_peak / (double)live_peak;
    ck_assert_msg(part <= patterns[pattern].most[kind], "%s, %s: reserves %.3f times what is live",
                  kind_names[kinds[kind]], patterns[pattern].name, part);
}

/* ---- memory that caches keep ------------------------------------------------------------------- */

/* Makes the stream earn and fill its cache.  The last free releases all that the cache may not keep. */
static void churn_blocks(CUstream stream, size_t bytes) {
    enum { SOME = 32 };
    void *block[SOME];

    for (int turn = 0; turn < 100; turn++) {
        for (int i = 0; i < SOME; i++)
            OK(weir_alloc(made, bytes, stream, &block[i]));
        for (int i = 0; i < SOME; i++)
            OK(weir_free(made, block[i], stream));
    }
    OK(weir_alloc(made, 512, stream, &block[0]));
    OK(weir_free(made, block[0], stream));
}

static void make_with_cache(int kind, uint64_t most) {
    weir_options options = options_of(kind, "model", DEVICE / 4 * 3);

    options.cache_limit = bytes_amount(most);
    OK(weir_allocator_create(&options, &made));
}

/* The limit holds for all caches together, silent streams' included, and half of all requests are still hits. */
TEST_EACH(2 * OWN_KINDS, caches_keep_no_more_than_their_limit) {
    enum { SOME = 64 };
    const int is_watched = _i / OWN_KINDS; /* reads the statistics after each stream */
    const uint64_t most = 64 * MIB;
    weir_statistics now;

    make_with_cache(kinds[_i % OWN_KINDS], most);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < SOME; i++) {
            if (turn == 0)
                streams[i] = make_stream();
            churn_blocks(streams[i], (size_t)(turn + 1) * 64 * KIB);
            if (is_watched)
                MUST_LE(stats_of(made).cache_idle, most);
        }
    now = stats_of(made);
    MUST_LE(now.cache_idle, most);
    MUST_LE(MIB, now.cache_idle);
    MUST_LE(now.allocs / 2, now.cache_hits);
}

/* A second stream gets its share of the limit at once, even if no call reads the statistics. */
TEST_EACH(OWN_KINDS, a_silent_stream_leaves_others_their_share) {
    CUstream other;
    weir_statistics now;

    make_with_cache(kinds[_i], 64 * MIB);
    churn_blocks(A, KIB);
    other = make_stream();
    churn_blocks(other, 64 * KIB);
    churn_blocks(other, 64 * KIB);
    now = stats_of(made);
    MUST_LE(now.allocs / 10 * 9, now.cache_hits);
}

/* Memory that a trim has taken from a cache no longer counts, so the next stream has the whole limit. */
TEST_EACH(OWN_KINDS, a_trim_gives_caches_their_share_back) {
    CUstream other;
    weir_statistics before, after;

    make_with_cache(kinds[_i], 32 * MIB);
    churn_blocks(A, 512 * KIB);
    other = make_stream();
    churn_blocks(other, 256 * KIB);
    OK(weir_trim(made, 0, NULL));
    churn_blocks(other, 256 * KIB);
    before = stats_of(made);
    churn_blocks(other, 256 * KIB);
    after = stats_of(made);
    MUST_LE((after.allocs - before.allocs) / 10 * 9, after.cache_hits - before.cache_hits);
}

/* The caches of ended streams stay within the limit, so a later stream reserves hardly more than it requests. */
TEST_EACH(OWN_KINDS, ended_streams_keep_what_the_limit_lets_them) {
    enum { SOME = 1000 };

    make_with_cache(kinds[_i], 32 * MIB);
    for (int i = 0; i < SOME; i++) {
        streams[i] = make_stream();
        churn_blocks(streams[i], 64 * KIB);
    }
    for (int i = 0; i < SOME; i++)
        CU(driver->cuStreamDestroy(streams[i]));
    MUST_LE(stats_of(made).reserved, 128 * MIB);
    alloc_for_service(GIB, A);
    MUST_LE(stats_of(made).reserved, GIB + 128 * MIB);
}

/* weir_unbind gives the memory of an ended stream to the next one under default settings, too, without a wait. */
TEST_EACH(OWN_KINDS, ended_streams_leave_all_where_they_are_told) {
    enum { SOME = 1000 };
    uint64_t before;

    make_service(kinds[_i], 0);
    for (int i = 0; i < SOME; i++) {
        streams[i] = make_stream();
        OK(weir_bind(made, streams[i]));
        churn_blocks(streams[i], 64 * KIB);
    }
    before = stats_of(made).reserved;
    MUST_LE(GIB / 4 * 3, before);
    for (int i = 0; i < SOME; i++) {
        OK(weir_unbind(made, streams[i]));
        CU(driver->cuStreamDestroy(streams[i]));
    }
    MUST_LE(stats_of(made).cache_idle, MIB);
    for (int i = 0; i < 512; i++)
        alloc_for_service(MIB, A);
    MUST_LE(stats_of(made).reserved, before);
}

/* ---- time of a request ------------------------------------------------------------------------- */

/* Streams come and go below a limit with room for two units.  No request needs to wait, since no work is queued. */
TEST_EACH(KINDS, no_request_waits_while_nothing_is_queued) {
    enum { TURNS = 300, SOME = 8 };
    const int kind = kinds[_i];
    void *blocks[SOME];

    make_service(kind, 64 * MIB);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < SOME; i++) {
            uint64_t began, took;

            streams[i] = make_stream();
            began = driver->ticks();
            OK(weir_alloc(made, 4 * KIB, streams[i], &blocks[i]));
            took = driver->ticks() - began;
            ck_assert_msg(took <= 10 * MS, "%s, turn %d, stream %d: %llu us", kind_names[kind],
                          turn, i, (unsigned long long)(took / 1000));
        }
        for (int i = 0; i < SOME; i++) {
            OK(weir_free(made, blocks[i], streams[i]));
            CU(driver->cuStreamDestroy(streams[i]));
        }
    }
}

SUITE("service", CK_FORK);
