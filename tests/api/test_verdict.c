/* SPDX-License-Identifier: MIT */
/* test_verdict.c: why a request was refused, on the device model, on every engine.
 *
 * Each cause is brought about by what it is named for, and the setting that a verdict names first is tried: with it
 * the same requests are served.  Where several causes hold, the one that is told is the first of the header's order.
 * What it tells beside: the figures, live blocks by size and stream, also where the host has no memory.
 *
 * Must not know: how a verdict is come to.
 */
#include "tests/fixtures/model_device.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/allocator_internal.h"
#include "tests/fixtures/deny.h"
#include "api/drop_in.h"
#include "tests/fixtures/every_kind.h"
#include "api/oom_report.h"

enum { MOST = 64 };

static weir_allocator *a;
static void *block[MOST];
static int blocks;

static void start_device(void) {
    start_model(4 * GIB);
}

static weir_options options_for(int world, size_t limit) {
    weir_options options = options_of(worlds[world].kind, "model", limit ? limit : 3 * GIB);

    if (limit)
        options.limit = bytes_amount(limit);
    options.front = worlds[world].front;
    return options;
}

static void make(const weir_options *options) {
    blocks = 0;
    OK(weir_allocator_create(options, &a));
}

static int is(int world, int kind) {
    return worlds[world].kind == kind;
}

/* Blocks are the driver's. */
static int is_bare(int world, int kind) {
    return is(world, kind) && worlds[world].front == WEIR_SWITCH_OFF;
}

static int is_refusal(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

static void take(size_t bytes, CUstream stream) {
    MUST(blocks < MOST);
    OK(weir_alloc(a, bytes, stream, &block[blocks]));
    blocks++;
}

static void give(int first, int step, CUstream stream) {
    for (int i = first; i < blocks; i += step) {
        OK(weir_free(a, block[i], stream));
        block[i] = NULL;
    }
}

static void end(void) {
    CU(driver->cuCtxSynchronize());
    for (int i = 0; i < blocks; i++)
        OK(weir_free(a, block[i], A));
    CU(driver->cuCtxSynchronize());
    check_identities(a);
    OK(weir_allocator_destroy(a));
    check_model();
}

static weir_verdict verdict_now(void) {
    weir_verdict v = {.size = sizeof v};
    weir_statistics s = stats_of(a);

    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.size, sizeof v);
    MUST_EQ(v.reserve, s.reserve);
    MUST_EQ(v.in_use, s.in_use);
    MUST_EQ(v.idle, v.reserve - v.in_use);
    MUST_EQ(v.limit, a->reserve.quota.limit);
    MUST_EQ(v.device_total, 4 * GIB);
    if (v.pending != UINT64_MAX) {
        MUST_LE(v.pending, v.idle);
        MUST(v.hole <= v.idle || v.hole == UINT64_MAX);
    }
    return v;
}

static void check_lines(const char *text) {
    for (size_t length; *text; text += length + 1) {
        length = strcspn(text, "\n");
        MUST(text[length] == '\n');
        if (length >= 90)
            ck_abort_msg("%zu letters: %.*s", length, (int)length, text);
    }
}

/* A request that must be refused, for that cause; what can be had is as weir_last_refusal has it. */
static weir_verdict refused_for(int line, int cause, size_t bytes, CUstream stream) {
    weir_refusal r = {.size = sizeof r};
    void *none = NULL;
    weir_status status = weir_alloc(a, bytes, stream, &none);
    char text[4096];
    weir_verdict v;

    MUST(is_refusal(status));
    v = verdict_now();
    MUST_LE(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text), sizeof text - 1);
    if (v.cause != cause)
        ck_abort_msg("line %d: %s, not %s\n%s", line, weir_verdict_cause_word(v.cause),
                     weir_verdict_cause_word(cause), text);
    check_lines(text);
    MUST_EQ(v.status, status);
    MUST_EQ(v.asked, bytes);
    MUST_EQ(v.stream, id_of(stream));
    OK(weir_last_refusal(&r));
    MUST_EQ(v.largest, r.largest);
    MUST_EQ(v.waited_ns, r.waited_ns);
    MUST_EQ(v.reserve, r.reserve);
    MUST_EQ(v.in_use, r.in_use);
    MUST_EQ(v.limit, r.limit);
    MUST_EQ(v.device_free, r.device_free);
    return v;
}
/* The same where there is more to say about than the cause. */
static weir_verdict verdict_of_refusal(size_t bytes) {
    void *none = NULL;

    MUST(is_refusal(weir_alloc(a, bytes, A, &none)) && none == NULL);
    return verdict_now();
}

#define REFUSED(cause, bytes, stream) refused_for(__LINE__, WEIR_VERDICT_##cause, bytes, stream)

static void expect_setting(const weir_verdict *v, int at, const char *name, const char *value) {
    ck_assert_msg(v->settings[at].name != NULL, "no setting");
    ck_assert_str_eq(v->settings[at].name, name);
    if (value)
        ck_assert_str_eq(v->settings[at].value, value);
}

static void expect_words(const weir_verdict *v, int format, const char *words) {
    char text[4096];

    MUST(weir_verdict_text(v, format, text, sizeof text) < sizeof text);
    ck_assert_msg(strstr(text, words) != NULL, "not \"%s\": %s", words, text);
}

static void expect_none(const weir_verdict *v) {
    MUST(v->settings[0].name == NULL);
}

/* The allocator goes, and what comes has those settings beside these. */
static void make_as_told(const weir_options *options, const weir_verdict *v) {
    weir_options told = *options;

    end();
    for (int i = 0; i < WEIR_VERDICT_SETTINGS && v->settings[i].name; i++)
        OK(weir_options_set(&told, v->settings[i].name, v->settings[i].value, NULL, 0));
    make(&told);
}

/* ---- each cause ------------------------------------------------------------------------------ */

static void fill_to_the_limit(void) {
    for (int i = 0; i < 24; i++)
        take(9 * MIB, A);
}

TEST(the_limit) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    make(&options);
    fill_to_the_limit();
    v = REFUSED(LIMIT, 96 * MIB, A);
    MUST_EQ(v.limit, 256 * MIB);
    expect_setting(&v, 0, "limit", NULL);
    MUST(v.settings[1].name == NULL);
    make_as_told(&options, &v);
    fill_to_the_limit();
    take(96 * MIB, A);
    end();
}

/* Requests and frees as a seed has them, until one is refused: 0. */
static int can_work(uint64_t seed) {
    CUstream streams[2] = {A, B};

    for (int i = 0; i < 200; i++) {
        size_t bytes = (size_t)(next_random(&seed) % 40 + 1) * MIB / 2;
        int place = (int)(next_random(&seed) % MOST);
        void *got;

        if (place < blocks && block[place]) {
            OK(weir_free(a, block[place], streams[place % 2]));
            block[place] = NULL;
        } else if (blocks < MOST) {
            if (is_refusal(weir_alloc(a, bytes, streams[blocks % 2], &got)))
                return 0;
            block[blocks++] = got;
        }
    }
    return 1;
}

/* One limit is an estimate, since under it all else lies in other places; who does as told each time gets there. */
TEST(advice_leads_there) {
    enum { MOST_TIMES = 16 };
    int all = 0;

    for (uint64_t seed = 1; seed <= 12; seed++) {
        weir_options options = options_for(_i, 256 * MIB);
        weir_verdict v = {.size = sizeof v};
        int times = 0;

        for (make(&options); !can_work(seed); make(&options)) {
            v = verdict_now();
            if (!v.settings[0].name || ++times > MOST_TIMES)
                ck_abort_msg("seed %d: told %d times, and then %s", (int)seed, times,
                             weir_verdict_cause_word(v.cause));
            end();
            all++;
            for (int i = 0; i < WEIR_VERDICT_SETTINGS && v.settings[i].name; i++)
                OK(weir_options_set(&options, v.settings[i].name, v.settings[i].value, NULL, 0));
        }
        end();
    }
    ck_assert_int_gt(all, 12); /* else there was little to be told */
}

/* More than the limit at once, with nothing in use. */
TEST(the_limit_at_once) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    make(&options);
    v = REFUSED(LIMIT, 300 * MIB, A);
    make_as_told(&options, &v);
    take(300 * MIB, A);
    end();
}

/* Nor is more than a little of it told to be tried. */
TEST(a_small_limit) {
    weir_options options = options_for(_i, 4 * MIB);
    weir_verdict v;

    if (is(_i, KIND_POOL) || (is(_i, KIND_PLATFORM) && !is_bare(_i, KIND_PLATFORM)))
        return; /* which has no such */
    make(&options);
    take(3 * MIB, A);
    v = REFUSED(LIMIT, 5 * MIB / 4, A);
    expect_setting(&v, 0, "limit", "6MiB");
    MUST(v.settings[1].name == NULL);
    make_as_told(&options, &v);
    take(3 * MIB, A);
    take(5 * MIB / 4, A);
    end();
}

/* What it leaves is no page, of which a mapped arena's memory is made: nobody else has what is lacking. */
TEST(a_limit_below_a_page) {
    static const struct {
        size_t limit, asked;
    } cases[] = {{MIB, 900 * KIB}, {1900 * KIB, 900 * KIB}, {3 * MIB, 2900 * KIB}};

    if (!is(_i, KIND_MAPPED))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int fit = 0; fit < 2; fit++) {
            weir_options options = options_for(_i, cases[i].limit);
            weir_verdict v;

            options.packing = fit ? WEIR_PACKING_COMPACT : WEIR_PACKING_DEFAULT;
            make(&options);
            v = REFUSED(LIMIT, cases[i].asked, A);
            expect_words(&v, WEIR_VERDICT_AS_TEXT,
                         "\n              less is left than one growth needs\n");
            expect_setting(&v, 0, "limit", NULL);
            MUST(v.settings[1].name == NULL);
            make_as_told(&options, &v);
            take(cases[i].asked, A);
            end();
        }
}

/* The same of what --keep-free makes of it. */
TEST(no_page_is_left_to_it) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    if (!is(_i, KIND_MAPPED))
        return;
    options.leave = bytes_amount(device_free() - 5 * MIB / 4);
    make(&options);
    v = REFUSED(LIMIT, 900 * KIB, A);
    MUST_LE(1, v.leave);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "\n              less is left than one growth needs\n");
    expect_setting(&v, 0, "keep-free", NULL);
    MUST(v.settings[1].name == NULL);
    make_as_told(&options, &v);
    take(900 * KIB, A);
    end();
}

/* No limit is set: what forbids it is what is to be left. */
TEST(what_is_left_to_others) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;
    char text[4096];

    if (is(_i, KIND_FIXED))
        return;
    options.leave = bytes_amount(3840 * MIB);
    make(&options);
    fill_to_the_limit();
    v = REFUSED(LIMIT, 96 * MIB, A);
    MUST_EQ(v.leave, 3840 * MIB);
    expect_setting(&v, 0, "keep-free", NULL);
    MUST(v.settings[1].name == NULL);
    MUST_LE(1, weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text));
    ck_assert_ptr_nonnull(
        strstr(text, "limit: --keep-free keeps 3.75GiB for others: this process may have 2"));
    ck_assert_ptr_nonnull(strstr(text, "WEIR_KEEP_FREE="));
    make_as_told(&options, &v);
    fill_to_the_limit();
    take(96 * MIB, A);
    end();
}

/* The limit is a little higher: both forbid it. */
TEST(what_is_left_to_others_and_a_limit) {
    weir_options options = options_for(_i, 288 * MIB);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    options.leave = bytes_amount(3840 * MIB);
    make(&options);
    v = REFUSED(LIMIT, 512 * MIB, A);
    expect_setting(&v, 0, "keep-free", NULL);
    expect_setting(&v, 1, "limit", NULL);
    MUST(v.settings[2].name == NULL);
    make_as_told(&options, &v);
    take(512 * MIB, A);
    end();
}

/* The limit alone forbids it: there is enough to leave. */
TEST(a_limit_below_what_may_be_had) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    options.leave = bytes_amount(64 * MIB);
    make(&options);
    v = REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.leave, 0);
    expect_setting(&v, 0, "limit", NULL);
    MUST(v.settings[1].name == NULL);
    make_as_told(&options, &v);
    take(300 * MIB, A);
    end();
}

/* Leaving nothing would not do. */
TEST(what_is_left_to_others_and_a_full_device) {
    weir_options options = options_for(_i, 0);
    CUdeviceptr other;

    if (is(_i, KIND_FIXED))
        return;
    options.leave = bytes_amount(256 * MIB);
    make(&options);
    CU(driver->cuMemAlloc(&other, 3 * GIB));
    (void)REFUSED(OTHERS, 2 * GIB, A);
    end();
    make(&options); /* and its limit is what they have left */
    (void)REFUSED(OTHERS, 2 * GIB, A);
    CU(driver->cuMemFree(other));
    end();
}

/* Which has a number like any other. */
TEST(on_the_default_stream) {
    weir_options options = options_for(_i, 64 * MIB);
    char text[4096];
    weir_verdict v;

    make(&options);
    v = REFUSED(LIMIT, 200 * MIB, NULL);
    MUST_EQ(v.default_stream, id_of(NULL));
    MUST_LE(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text), sizeof text - 1);
    MUST(strstr(text, "\n  request     for the default stream: WEIR_E_LIMIT, waited "));
    v = REFUSED(LIMIT, 200 * MIB, A);
    MUST_LE(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text), sizeof text - 1);
    MUST(strstr(text, "\n  request     for stream id "));
    end();
}

/* The limit that the program has set forbids it: no setting would do, but one that forbids it as well. */
static weir_verdict refused_by_the_program(size_t bytes, const char *also) {
    weir_verdict v = REFUSED(LIMIT, bytes, A);

    MUST_EQ(v.limit_is_set, 1);
    MUST_LE(bytes, v.set_limit);
    MUST_EQ(v.leave, 0);
    MUST_EQ(v.is_share, 0);
    if (also)
        expect_setting(&v, 0, also, NULL);
    else
        expect_none(&v);
    MUST(v.settings[1].name == NULL);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "limit: the program's own limit of ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "\n  Call weir_set_limit with ");
    expect_words(&v, WEIR_VERDICT_AS_JSON, ",\"limit_is_set\":true,");
    return v;
}

/* A limit as it is now counts, not as it was. */
TEST(a_limit_that_was_set_later) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    make(&options);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    v = refused_by_the_program(200 * MIB, NULL);
    MUST_EQ(v.limit, 128 * MIB);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    take(200 * MIB, A);
    OK(weir_set_limit(a, (weir_amount){.kind = WEIR_AMOUNT_MAX}));
    MUST_EQ(REFUSED(TOO_LARGE, 5 * GIB, A).limit_is_set, 0);
    end();
}

/* That of the options is a little higher: both forbid it. */
TEST(a_limit_that_was_set_below_another) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    make(&options);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    (void)refused_by_the_program(200 * MIB, NULL);
    (void)refused_by_the_program(256 * MIB, NULL);
    v = refused_by_the_program(300 * MIB, "limit");
    OK(weir_set_limit(a,
                      bytes_amount(v.set_limit))); /* which is no more than that of the options */
    v = REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.limit_is_set, 0);
    MUST_EQ(v.set_limit, 0);
    make_as_told(&options, &v);
    OK(weir_set_limit(a, bytes_amount(v.limit)));
    v = refused_by_the_program(300 * MIB, NULL);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    take(300 * MIB, A);
    end();
}

/* What is left to others does not stand against it, as long as it leaves as much. */
TEST(a_limit_that_was_set_beside_what_is_left) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    options.leave = bytes_amount(3584 * MIB);
    make(&options);
    OK(weir_set_limit(a, bytes_amount(100 * MIB))); /* no whole units */
    v = refused_by_the_program(200 * MIB, NULL);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    take(200 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(100 * MIB)));
    v = refused_by_the_program(100 * MIB, NULL); /* more is in use than that */
    MUST_LE(v.limit, 100 * MIB);
    end();
    options.leave = bytes_amount(3968 * MIB);
    make(&options);
    OK(weir_set_limit(a, bytes_amount(256 * MIB)));
    v = REFUSED(LIMIT, 512 * MIB, A); /* both forbid it */
    MUST_EQ(v.leave, 3968 * MIB);
    expect_setting(&v, 0, "keep-free", NULL);
    MUST(v.settings[1].name == NULL);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "limit: --keep-free keeps ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, " that keep-free leaves");
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Call weir_set_limit with 512MiB or more, and\n  Try --keep-free ");
    make_as_told(&options, &v);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    take(512 * MIB, A);
    end();
}

/* As much as that the device cannot hold, so no limit is the advice. */
static void refused_by_any_limit(size_t bytes, const char *limit) {
    weir_verdict v = REFUSED(LIMIT, bytes, A);

    expect_none(&v);
    MUST_EQ(v.set_limit, 0);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, limit);
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 v.in_use > 0
                     ? "\n  Request less, or free live blocks first: no setting makes room.\n"
                     : "\n  Request less: no setting makes room.\n");
}

TEST(a_limit_that_the_device_cannot_hold) {
    weir_options options = options_for(_i, 3 * GIB);
    weir_allocator *other;
    CUdeviceptr others;
    weir_verdict v;
    void *held;

    options.ledger = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON; /* nobody else is there */
    make(&options);
    take(2 * GIB, A);
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 3GiB, of which 2GiB is in use");
    end();
    if (is(_i, KIND_FIXED)) { /* which has what there is, however much more it is told to have */
        options.limit = bytes_amount(5 * GIB);
        make(&options);
        take(2 * GIB, A);
        refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 4GiB, of which ");
        end();
        return;
    }
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    make(&options);
    OK(weir_set_limit(a, bytes_amount(3 * GIB)));
    take(2 * GIB, A);
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the program's own limit of 3GiB; ");
    end();
    options.limit = bytes_amount(512 * MIB); /* beside others */
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    make(&options);
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 512MiB, of which 0B is in use");
    CU(driver->cuMemFree(others));
    v = verdict_now();
    expect_setting(&v, 0, "limit", "2304MiB");
    end();
    options.limit = bytes_amount(GIB); /* and beside what is idle of theirs */
    OK(weir_allocator_create(&options, &other));
    make(&options);
    OK(weir_alloc(other, 960 * MIB, A, &held));
    refused_by_any_limit(3 * GIB + 256 * MIB, "limit: the limit of 1GiB, of which ");
    OK(weir_free(other, held, A));
    CU(driver->cuCtxSynchronize());
    v = verdict_now();
    expect_setting(&v, 0, "limit", "3328MiB");
    end();
    OK(weir_allocator_destroy(other));
    if (worlds[_i].kind == KIND_PLATFORM)
        return;
    options.limit = bytes_amount(3 * GIB); /* and in the place of what is idle of its own */
    make(&options);
    OK(weir_preallocate(a, GIB, NULL));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 3 * GIB + 256 * MIB, A, &held));
    v = verdict_now();
    expect_setting(&v, 0, "limit", "3328MiB");
    end();
}

/* What is idle above it serves as it lies; in pieces it does not serve a request for more than the limit, with any
 * packing. */
TEST(more_than_a_limit_that_was_set_later) {
    weir_options options = options_for(_i, 0);

    if (is(_i, KIND_FIXED) || is(_i, KIND_MAPPED))
        return; /* which has no growth, or puts pieces together */
    make(&options);
    for (int i = 0; i < 8; i++)
        take(40 * MIB, A);
    give(0, 2, A);
    CU(driver->cuCtxSynchronize());
    if (is(_i, KIND_REGIONS)) {
        OK(weir_set_limit(a, bytes_amount(144 * MIB)));
        (void)REFUSED(FRAGMENTED, 144 * MIB, A); /* which the limit allows for */
    }
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    (void)refused_by_the_program(144 * MIB, NULL);
    end();
}

/* Nor is it a share any more. */
TEST(a_limit_that_was_a_share) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    options.limit = (weir_amount){.value = 2000000, .kind = WEIR_AMOUNT_SHARE};
    make(&options);
    v = REFUSED(TOO_LARGE, 5 * GIB, A);
    MUST_EQ(v.is_share, 1);
    MUST_EQ(v.weight, 2000000);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    v = refused_by_the_program(200 * MIB, NULL);
    MUST_EQ(v.weight, 0);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    take(200 * MIB, A);
    end();
}

/* As much was to be preallocated, and others had come by then. */
TEST(others_had_what_was_preallocated) {
    weir_options options = options_for(_i, 0);
    CUdeviceptr others;
    weir_verdict v;

    if (is(_i, KIND_FIXED) || is(_i, KIND_PLATFORM))
        return;
    options.prealloc = bytes_amount(2 * GIB);
    options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    make(&options);
    CU(driver->cuMemAlloc(&others, 3 * GIB + 512 * MIB));
    v = REFUSED(OTHERS, 2 * GIB, A);
    expect_none(&v);
    v = REFUSED(OTHERS, 2 * GIB + 256, A);
    expect_setting(&v, 0, "prealloc", NULL); /* more */
    v = REFUSED(OTHERS, 4 * GIB, A);
    expect_setting(&v, 0, "prealloc", "4GiB"); /* all that there was */
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 v.largest > v.hole ? "MiB would fit now: weir can add or move memory\n"
                                    : "MiB would fit now\n");
    end();
    CU(driver->cuMemFree(others));
}

/* Which is not more than the limit allows. */
TEST(others_have_what_a_limit_allows) {
    weir_options options = options_for(_i, 72 * MIB);
    CUdeviceptr others;
    weir_verdict v;

    if (!is(_i, KIND_REGIONS) && !is(_i, KIND_MAPPED))
        return; /* others have all of theirs, or less, or none */
    make(&options);
    CU(driver->cuMemAlloc(&others, device_free() - 10 * MIB));
    v = REFUSED(OTHERS, 66 * MIB, A);
    expect_setting(&v, 0, "prealloc", "66MiB");
    MUST(v.settings[1].name == NULL);
    CU(driver->cuMemFree(others));
    make_as_told(&options, &v);
    CU(driver->cuMemAlloc(&others, device_free() - 10 * MIB));
    take(66 * MIB, A);
    end();
    CU(driver->cuMemFree(others));
}

TEST(others_have_the_device) {
    weir_options options = options_for(_i, 0);
    CUdeviceptr others;
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;                                                 /* it has all it will */
    options.ledger = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON; /* nobody else is there */
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    make(&options);
    take(64 * MIB, A);
    v = REFUSED(OTHERS, GIB, A);
    MUST_LE(3 * GIB, v.others);
    MUST_LE(v.others, 3 * GIB + 512 * MIB);
    MUST_EQ(v.graphs + v.siblings, 0);
    expect_none(&v); /* they were first, so that it could not have had it from the beginning */
    end();
    CU(driver->cuMemFree(others));
    make(&options);
    take(64 * MIB, A);
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    v = REFUSED(OTHERS, GIB, A);
    if (is(_i, KIND_PLATFORM)) {
        expect_none(&v);
    } else {
        expect_setting(&v, 0, "prealloc", NULL);
        CU(driver->cuMemFree(others)); /* they come later */
        make_as_told(&options, &v);
        CU(driver->cuMemAlloc(&others, 2 * GIB + 512 * MIB));
        take(64 * MIB, A);
        take(GIB, A);
    }
    end();
    CU(driver->cuMemFree(others));
}

/* Of the same process: what they hold idle the ladder takes; what they have in use counts. */
TEST(another_allocator_has_the_device) {
    weir_options options = options_for(_i, 0);
    weir_allocator *other;
    void *held;
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    OK(weir_allocator_create(&options, &other));
    OK(weir_alloc(other, 3 * GIB, A, &held));
    make(&options);
    v = REFUSED(OTHERS, GIB + 256 * MIB, A);
    MUST_LE(3 * GIB, v.siblings);
    MUST_LE(v.siblings, 4 * GIB);
    MUST_LE(v.others, 512 * MIB);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "others: other weir pools of this process have ");
    end();
    OK(weir_free(other, held, A));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(other));
}

static void make_holes(void) {
    while (weir_alloc(a, 10 * MIB, A, &block[blocks]) == WEIR_OK)
        MUST(++blocks < MOST);
    give(0, 2, A);
    CU(driver->cuCtxSynchronize());
}

TEST(what_is_idle_lies_in_pieces) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (is_bare(_i, KIND_PLATFORM))
        return; /* nothing is ever idle */
    make(&options);
    make_holes();
    v = REFUSED(FRAGMENTED, 56 * MIB, A);
    MUST_LE(56 * MIB, v.idle + v.limit - v.reserve);
    if (is_bare(_i, KIND_POOL)) {
        MUST_EQ(v.hole, UINT64_MAX);
        MUST_EQ(v.pending, UINT64_MAX);
        expect_setting(&v, 0, "cache", "on");
        end();
        return;
    }
    MUST_LE(10 * MIB, v.hole);
    MUST_LE(v.hole, 56 * MIB - 1);
    MUST_EQ(v.pending, 0);
    if (is(_i, KIND_MAPPED)) {
        MUST(v.settings[1].name == NULL);
    } else {
        expect_setting(&v, 1, "engine", "mapped");
    }
    expect_setting(&v, 0, "packing", "compact");
    make_as_told(&options, &v);
    make_holes();
    take(56 * MIB, A);
    end();
}

static void make_small_holes(size_t limit, size_t bytes) {
    while (stats_of(a).in_use + bytes <= limit)
        take(bytes, A);
    give(0, 2, A);
    CU(driver->cuCtxSynchronize());
}

/* No page of which is idle: nothing is there to be put together, but more can be had. */
TEST(what_is_idle_lies_in_small_pieces) {
    int is_pool = is(_i, KIND_POOL) || is(_i, KIND_PLATFORM);
    size_t bytes = is_pool ? 1100 * KIB : 400 * KIB, limit = is_pool ? 32 * MIB : 2 * MIB;
    weir_options options = options_for(_i, limit);
    CUdeviceptr others;
    weir_verdict v;

    if (is_bare(_i, KIND_PLATFORM) || is_bare(_i, KIND_POOL))
        return; /* whose pieces are not known */
    make(&options);
    make_small_holes(limit, bytes);
    v = REFUSED(FRAGMENTED, 2 * bytes, A);
    MUST_LE(1, v.hole);
    expect_setting(&v, 0, "limit", is_pool ? "64MiB" : "4MiB");
    MUST(v.settings[1].name == NULL);
    CU(driver->cuMemAlloc(&others, device_free())); /* or it cannot */
    v = REFUSED(FRAGMENTED, 2 * bytes, A);
    expect_setting(&v, 0, "packing", "compact");
    CU(driver->cuMemFree(others));
    v = REFUSED(FRAGMENTED, 2 * bytes, A);
    make_as_told(&options, &v);
    make_small_holes(limit, bytes);
    take(2 * bytes, A);
    end();
}

/* Of what was preallocated in the driver's pool nobody knows how it lies, but it does serve. */
TEST(what_is_idle_lies_in_one_piece) {
    weir_options options = options_for(_i, 512 * MIB);
    weir_verdict v;

    if (is(_i, KIND_PLATFORM))
        return; /* nothing is ever idle */
    if (!is(_i, KIND_FIXED))
        options.prealloc = bytes_amount(512 * MIB);
    make(&options);
    v = REFUSED(LIMIT, 600 * MIB, A);
    MUST_LE(480 * MIB, v.hole);
    if (is(_i, KIND_POOL)) {
        MUST_EQ(v.hole, UINT64_MAX);
        expect_words(&v, WEIR_VERDICT_AS_TEXT, " limit,\n  device has ");
        expect_words(&v, WEIR_VERDICT_AS_JSON, ",\"largest_free_block\":null,");
    }
    take(480 * MIB, A);
    end();
}

/* Drivers without ids have no front, and those without virtual memory no mapped arena. */
TEST(what_older_drivers_can_try) {
    weir_options options = options_for(_i, 256 * MIB);
    struct weir_driver table = *driver;
    weir_verdict v;

    if (!is_bare(_i, KIND_POOL) && !is_bare(_i, KIND_REGIONS))
        return;
    table.capabilities &=
        ~(unsigned)(is(_i, KIND_POOL) ? WEIR_CAP_STREAM_ID : WEIR_CAP_STREAM_ID | WEIR_CAP_VIRTUAL);
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    make_holes();
    v = verdict_of_refusal(56 * MIB);
    MUST_EQ(v.cause, WEIR_VERDICT_FRAGMENTED);
    if (is(_i, KIND_POOL)) {
        expect_setting(&v, 0, "packing", "compact");
        expect_setting(&v, 1, "engine", "mapped");
    } else {
        expect_setting(&v, 0, "limit", NULL); /* no other way */
    }
    end();
}

static void make_on_old(struct weir_driver *table, const weir_options *options) {
    *table = *driver;
    table->capabilities &= ~(unsigned)(WEIR_CAP_STREAM_ID | WEIR_CAP_VIRTUAL);
    OK(weir__allocator_create_on(table, options, &a, NULL, 0));
}

/* There is no other way than a limit that is higher, and the device has no room for that either. */
TEST(no_limit_would_do) {
    weir_options options = options_for(_i, 250 * MIB);
    struct weir_driver table;
    CUdeviceptr others;
    weir_verdict v;

    if (!is_bare(_i, KIND_REGIONS))
        return;
    make_on_old(&table, &options);
    make_holes();
    CU(driver->cuMemAlloc(&others, device_free() - 32 * MIB));
    v = verdict_of_refusal(110 * MIB);
    MUST_EQ(v.cause, WEIR_VERDICT_FRAGMENTED);
    MUST_LE(v.device_free, 110 * MIB - 1);
    expect_none(&v);
    CU(driver->cuMemFree(others));
    v = verdict_of_refusal(110 * MIB);
    MUST_EQ(v.cause, WEIR_VERDICT_FRAGMENTED);
    expect_setting(&v, 0, "limit", NULL);
    MUST_EQ(v.set_limit, 0);
    OK(weir_set_limit(a, bytes_amount(249 * MIB)));
    v = verdict_of_refusal(110 * MIB);
    MUST_EQ(v.cause, WEIR_VERDICT_FRAGMENTED);
    expect_setting(&v, 0, "limit", NULL);
    MUST_LE(300 * MIB, v.set_limit);
    end();
}

/* None is set: the device has what is asked for, but not in the steps that its pools take. */
TEST(no_limit_is_told_where_none_forbids_it) {
    weir_options options = options_for(_i, 0);
    CUdeviceptr others;
    weir_verdict v;

    if (!is(_i, KIND_POOL) || is_bare(_i, KIND_POOL))
        return;
    make(&options);
    make_small_holes(32 * MIB, 1100 * KIB);
    MUST_EQ(stats_of(a).reserve, 32 * MIB);
    CU(driver->cuMemAlloc(&others, device_free() - 34 * MIB));
    v = verdict_of_refusal(34 * MIB);
    MUST_EQ(v.cause, WEIR_VERDICT_FRAGMENTED);
    MUST_LE(34 * MIB, v.device_free);
    expect_setting(&v, 0, "packing", "compact");
    CU(driver->cuMemFree(others));
    end();
}

/* A graph has nothing of what is idle, and it is the driver that refuses it: the limit has room already. */
TEST(no_limit_is_in_the_way) {
    weir_options options = options_for(_i, GIB);
    weir_verdict v = {.size = sizeof v};
    void *none = NULL;
    CUgraph graph;

    if (!is(_i, KIND_MAPPED))
        return;
    options.packing = WEIR_PACKING_COMPACT;
    make(&options);
    OK(weir_preallocate(a, 64 * MIB, NULL));
    take(8 * MIB, A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 48 * MIB, A, &none));
    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.cause, WEIR_VERDICT_DRIVER);
    expect_none(&v);
    weir__model_faults_clear();
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    end();
}

/* All of it is idle, on a stream that is at work; another wants it, and does not wait. */
static void fill_and_free_behind_work(void) {
    for (int i = 0; i < 12; i++)
        take(16 * MIB, B);
    busy(B, 200 * MS);
    give(0, 1, B);
    blocks = 0;
}

TEST(what_is_idle_waits_for_a_stream) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (is_bare(_i, KIND_PLATFORM) || is_bare(_i, KIND_POOL))
        return; /* nothing is pending, or the driver does not tell */
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    fill_and_free_behind_work();
    v = REFUSED(PENDING, 160 * MIB, A);
    MUST_LE(96 * MIB, v.pending);
    MUST_EQ(v.pending_streams, 1);
    MUST_EQ(v.pending_by[0].stream, id_of(B));
    MUST_EQ(v.pending_by[0].bytes, v.pending);
    expect_setting(&v, 0, "recovery-timeout", "1s");
    make_as_told(&options, &v);
    fill_and_free_behind_work();
    take(160 * MIB, A);
    end();
}

/* It would serve in one piece, also what is more than a limit that was set since. */
TEST(more_than_a_limit_waits_for_a_stream) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (!is_bare(_i, KIND_MAPPED))
        return; /* others have none of that size, or take regions anew */
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    fill_and_free_behind_work();
    OK(weir_set_limit(a, bytes_amount(96 * MIB)));
    v = REFUSED(PENDING, 192 * MIB, A); /* all of it */
    make_as_told(&options, &v);
    fill_and_free_behind_work();
    OK(weir_set_limit(a, bytes_amount(96 * MIB)));
    take(192 * MIB, A);
    end();
}

/* It has waited as long as it may: streams may wait for each other, or it longer. */
TEST(what_waiting_would_do) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (!is(_i, KIND_FIXED))
        return; /* where a trim waits for the device, nothing pends any more */
    for (int on = 0; on < 2; on++) {
        options.internal_dependencies = on ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
        options.recovery_timeout_ms = on ? 700 : 20;
        make(&options);
        take(KIB, A);
        for (int i = 0; i < 12; i++)
            take(16 * MIB, B);
        busy(B, 2000 * MS);
        if (on) { /* what a stream waits for, another may not */
            for (int i = 1; i <= 12; i++)
                OK(weir_use(a, block[i], C));
            busy(C, 4000 * MS);
        }
        for (int i = 1; i <= 12; i++)
            OK(weir_free(a, block[i], B));
        blocks = 1;
        v = REFUSED(PENDING, 160 * MIB, A);
        if (on)
            expect_setting(&v, 0, "recovery-timeout", "2s");
        else
            expect_setting(&v, 0, "internal-dependencies", "on");
        end();
    }
}

/* Pieces that live blocks keep apart: what is pending of them is in the way only if the rest would not do. */
TEST(pending_pieces) {
    int world = _i / 2, most = _i % 2;
    weir_options options = options_for(world, 256 * MIB);
    void *live[MOST];
    int count = 0;

    if (is_bare(world, KIND_PLATFORM) || is_bare(world, KIND_POOL))
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    take(KIB, A);
    while (weir_alloc(a, 10 * MIB, B, &live[count]) == WEIR_OK)
        MUST(++count < MOST);
    for (int i = 0; i < count; i += 2) {
        if (i == (most ? 2 : count / 2 * 2 - 2))
            busy(B, 200 * MS);
        OK(weir_free(a, live[i], B));
        if (i == 0)
            CU(driver->cuCtxSynchronize());
        if (!most && i < count / 2 * 2 - 4)
            CU(driver->cuCtxSynchronize());
    }
    (void)refused_for(__LINE__, most ? WEIR_VERDICT_PENDING : WEIR_VERDICT_FRAGMENTED, 56 * MIB, A);
    for (int i = 1; i < count; i += 2)
        OK(weir_free(a, live[i], B));
    end();
}

/* Of several streams the one that most waits for comes first; what several use is not one's. */
TEST(what_is_idle_waits_for_several) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (is_bare(_i, KIND_PLATFORM) || is_bare(_i, KIND_POOL) || !is_roomy())
        return; /* with few addresses a mapped arena has its pieces elsewhere */
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    take(30 * MIB, B);
    take(60 * MIB, C);
    take(60 * MIB, C);
    take(32 * MIB, B);
    busy(B, 200 * MS);
    busy(C, 200 * MS);
    OK(weir_free(a, block[0], B));
    OK(weir_free(a, block[1], C));
    OK(weir_free(a, block[2], C));
    OK(weir_use(a, block[3], C));
    OK(weir_free(a, block[3], B));
    blocks = 0;
    take(MIB, A);
    v = REFUSED(PENDING, 150 * MIB, A);
    MUST_EQ(v.group_count, 1); /* what is pending is live no more */
    MUST_EQ(v.groups[0].total, MIB);
    MUST_EQ(v.pending_streams, 3);
    MUST_EQ(v.pending_by[0].stream, id_of(C));
    MUST_LE(120 * MIB, v.pending_by[0].bytes);
    MUST_EQ(v.pending_by[1].stream, 0);
    MUST_LE(32 * MIB, v.pending_by[1].bytes);
    MUST_EQ(v.pending_by[2].stream, id_of(B));
    MUST_LE(30 * MIB, v.pending_by[2].bytes);
    end();
}

/* Of more streams than there is room for, those that most waits for. */
TEST(what_is_idle_waits_for_many) {
    enum { STREAMS = WEIR_VERDICT_STREAMS + 2 };
    weir_options options = options_for(_i, 256 * MIB);
    CUstream stream[STREAMS];
    weir_verdict v;

    if (is_bare(_i, KIND_PLATFORM) || is_bare(_i, KIND_POOL))
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    for (int i = 0; i < STREAMS; i++) {
        CU(driver->cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        take((size_t)(16 + 8 * (i % 3)) * MIB, stream[i]); /* some of them equal */
        busy(stream[i], 200 * MS);
    }
    for (int i = 0; i < STREAMS; i++)
        OK(weir_free(a, block[i], stream[i]));
    blocks = 0;
    v = REFUSED(PENDING, 140 * MIB, A);
    MUST_EQ(v.pending_streams, WEIR_VERDICT_STREAMS);
    for (int i = 1; i < WEIR_VERDICT_STREAMS; i++)
        MUST_LE(v.pending_by[i].bytes, v.pending_by[i - 1].bytes);
    MUST_LE(24 * MIB, v.pending_by[WEIR_VERDICT_STREAMS - 1].bytes);
    end();
}

/* What the caches of other streams hold waits for those, what its own holds for nobody. */
TEST(what_is_idle_is_its_own) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (worlds[_i].front == WEIR_SWITCH_OFF)
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    for (int i = 0; i < 100; i++) {
        take(3000, A);
        take(3000, B);
        give(0, 2, A);
        give(1, 2, B);
        blocks = 0;
    }
    v = REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.pending_streams, 1);
    MUST_EQ(v.pending_by[0].stream, id_of(B));
    end();
}

/* A graph that has so much memory for a launch, and after it. */
static CUgraphExec run_graph(size_t bytes) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr memory;
    CUgraphExec exec;
    CUgraph graph;

    CU(driver->cuMemPoolCreate(&pool, &properties));
    CU(driver->cuStreamBeginCapture(C, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(driver->cuMemAllocFromPoolAsync(&memory, bytes, pool, C));
    CU(driver->cuMemFreeAsync(memory, C));
    CU(driver->cuStreamEndCapture(C, &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuGraphLaunch(exec, C));
    CU(driver->cuStreamSynchronize(C));
    CU(driver->cuMemPoolDestroy(pool));
    return exec;
}

TEST(graphs_have_the_device) {
    weir_options options = options_for(_i, 0);
    CUgraphExec exec;
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return;
    exec = run_graph(3 * GIB);
    make(&options);
    v = REFUSED(GRAPHS, 2 * GIB, A);
    expect_none(&v); /* they had it before */
    end();
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    make(&options);
    exec = run_graph(3 * GIB);
    v = REFUSED(GRAPHS, 2 * GIB, A);
    MUST_EQ(v.graphs, 3 * GIB);
    MUST_EQ(v.graphs_idle, 3 * GIB);
    MUST_LE(v.others, 512 * MIB);
    if (!is(_i, KIND_PLATFORM))
        expect_setting(&v, 0, "prealloc", "2GiB");
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    MUST_EQ(verdict_now().cause, WEIR_VERDICT_NONE);
    take(2 * GIB, A);
    end();
}

TEST(all_of_it_is_in_use) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    if (is(_i, KIND_FIXED))
        return; /* its size is its limit */
    make(&options);
    for (int i = 0; i < 14; i++)
        take(256 * MIB, A);
    v = REFUSED(IN_USE, GIB, A);
    expect_none(&v);
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "in-use: only 512MiB is idle or free; live blocks have 3.5GiB\n");

    end();
}

TEST(more_than_there_is) {
    weir_options options = options_for(_i, 0);
    weir_verdict v;

    make(&options);
    v = REFUSED(TOO_LARGE, 5 * GIB, A);
    expect_none(&v);
    v = REFUSED(TOO_LARGE, SIZE_MAX - 5, A); /* which nothing can be added to */
    expect_none(&v);
    v = REFUSED(TOO_LARGE, SIZE_MAX, A); /* nor is it unknown */
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "could not allocate 16777216TiB on model:0\n");
    expect_words(&v, WEIR_VERDICT_AS_JSON, ",\"asked\":18446744073709551615,");
    end();
}

/* A driver may refuse what it says is free: that is nobody's doing here. */
TEST(what_is_free_is_refused) {
    weir_options options = options_for(_i, 0);
    static const enum weir_driver_entry entries[] = {
        WEIR_ENTRY_cuMemAlloc, WEIR_ENTRY_cuMemAllocFromPoolAsync, WEIR_ENTRY_cuMemCreate};
    weir_verdict v = {.size = sizeof v};
    void *none = NULL;

    if (is(_i, KIND_FIXED))
        return;
    options.ledger = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON;
    make(&options);
    for (int i = 0; i < 3; i++)
        weir__model_fail(entries[i], 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB, A, &none));
    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.cause, WEIR_VERDICT_DRIVER);
    MUST_EQ(v.driver_result, CUDA_ERROR_OUT_OF_MEMORY);
    MUST_EQ(v.no_descriptors, 0);
    MUST(v.largest < GIB); /* what is free is no promise then */
    expect_none(&v);
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "cause       driver: the driver answers CUDA_ERROR_OUT_OF_MEMORY with ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "what the driver lacks");
    expect_words(&v, WEIR_VERDICT_AS_JSON, ",\"driver_result\":2,\"no_descriptors\":false,");
    weir__model_faults_clear();
    end();
}

/* The model, as the driver, needs one to make memory behind addresses. */
TEST(no_file_descriptor_is_left) {
    weir_options options = options_for(_i, 0);
    weir_verdict v = {.size = sizeof v};
    struct rlimit before, none_left;
    void *none = NULL;

    if (!is(_i, KIND_MAPPED))
        return;
    make(&options);
    MUST_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none_left = before;
    none_left.rlim_cur = 0;
    MUST_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB, A, &none));
    OK(weir_last_verdict(a, &v));
    MUST_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    MUST_EQ(v.cause, WEIR_VERDICT_DRIVER);
    MUST_EQ(v.no_descriptors, 1);
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "free: no file descriptor is left\n");
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Raise the limit of open files (ulimit -n): no setting makes room.\n");
    take(GIB, A); /* as told */
    end();
}

/* ---- several at once ------------------------------------------------------------------------- */

/* Nothing that is missing elsewhere matters while enough is idle: pending, in pieces, the limit, the device. */
TEST(the_nearest_cause_is_told) {
    weir_options options = options_for(_i, 256 * MIB);
    CUdeviceptr others;

    if (is_bare(_i, KIND_PLATFORM) || is_bare(_i, KIND_POOL))
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    fill_and_free_behind_work();
    (void)REFUSED(PENDING, 160 * MIB, A); /* the limit forbids more, too */
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    fill_to_the_limit();
    (void)REFUSED(LIMIT, 2 * GIB, A); /* and the device has too little, whatever the limit */
    end();
    CU(driver->cuMemFree(others));
}

/* Graphs and others: who has more. */
TEST(the_larger_part_is_told) {
    weir_options options = options_for(_i, 0);
    CUdeviceptr others;
    CUgraphExec exec;

    if (is(_i, KIND_FIXED))
        return;
    exec = run_graph(GIB);
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    make(&options);
    (void)REFUSED(OTHERS, GIB + 256 * MIB, A);
    CU(driver->cuMemFree(others));
    CU(driver->cuMemAlloc(&others, 512 * MIB));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    exec = run_graph(2 * GIB + 512 * MIB);
    (void)REFUSED(GRAPHS, GIB + 512 * MIB, A);
    CU(driver->cuGraphExecDestroy(exec));
    end();
    CU(driver->cuMemFree(others));
}

/* MiB that each has, and what is asked for beyond what is free. */
static const struct {
    size_t graphs, others, lacks;
    int cause;
} parts[] = {
    {128, 192, 64, WEIR_VERDICT_GRAPHS}, /* others have no more than a context takes */
    {0, 192, 64, WEIR_VERDICT_IN_USE},
    {1024, 1536, 2048, WEIR_VERDICT_OTHERS}, /* neither has enough */
    {1536, 1024, 2048, WEIR_VERDICT_GRAPHS},
    {1024, 192, 1152, WEIR_VERDICT_GRAPHS},
    {0, 1024, 2048, WEIR_VERDICT_IN_USE}, /* nor do both */
    {0, 256, 64,
     WEIR_VERDICT_IN_USE}, /* just as much as counts for nothing, or as is lacking, or as the other has */
    {256, 192, 320, WEIR_VERDICT_IN_USE},
    {128, 64, 128, WEIR_VERDICT_GRAPHS},
    {512, 512, 256, WEIR_VERDICT_GRAPHS},
    {1024, 1024, 1536, WEIR_VERDICT_OTHERS},
    {512, 1024, 1024, WEIR_VERDICT_OTHERS},
    {1024, 1536, 2560, WEIR_VERDICT_OTHERS}, /* all of the device */
};
enum { PARTS = sizeof parts / sizeof parts[0] };

TEST(parts_of_the_device) {
    int world = _i / PARTS, at = _i % PARTS;
    weir_options options = options_for(world, 0);
    size_t free_bytes, total;
    CUdeviceptr others = 0;
    CUgraphExec exec = NULL;

    if (is(world, KIND_FIXED))
        return;
    if (parts[at].graphs)
        exec = run_graph(parts[at].graphs * MIB);
    CU(driver->cuMemAlloc(&others, parts[at].others * MIB));
    if (at % 2 == 0)
        options.limit = bytes_amount(4 * GIB); /* does not stand against it */
    make(&options);
    if (parts[at].lacks > parts[at].graphs + parts[at].others)
        take(GIB + 512 * MIB, A);
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    (void)refused_for(__LINE__, parts[at].cause, free_bytes + parts[at].lacks * MIB, A);
    end();
    CU(driver->cuMemFree(others));
    if (exec) {
        CU(driver->cuGraphExecDestroy(exec));
        CU(driver->cuDeviceGraphMemTrim(0));
    }
}

/* Whoever frees first is told of another state. */
TEST(nothing_stands_in_its_way_any_more) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    make(&options);
    fill_to_the_limit();
    (void)REFUSED(LIMIT, 96 * MIB, A);
    give(0, 1, A);
    blocks = 0;
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    v = verdict_now();
    MUST_EQ(v.cause, WEIR_VERDICT_NONE);
    MUST_LE(96 * MIB, v.largest);
    MUST_EQ(v.asked, 96 * MIB);
    MUST_EQ(v.group_count, 0);
    expect_none(&v);
    end();
}

/* ---- live blocks ----------------------------------------------------------------------------- */

static void expect_group(const weir_verdict *v, uint32_t at, size_t bytes, uint64_t count,
                         uint64_t stream) {
    MUST(at < v->group_count);
    MUST_EQ(v->groups[at].bytes, bytes);
    MUST_EQ(v->groups[at].blocks, count);
    MUST_EQ(v->groups[at].total, bytes * count);
    MUST_EQ(v->groups[at].stream, stream);
}

TEST(live_blocks_by_size_and_stream) {
    weir_options options = options_for(_i, 256 * MIB);
    int front = worlds[_i].front == WEIR_SWITCH_ON;
    uint64_t of_a = front ? id_of(A) : 0, of_b = front ? id_of(B) : 0;
    weir_verdict v;

    make(&options);
    for (int i = 0; i < 100; i++) { /* streams get their caches, and leave slabs behind */
        void *gone[2];

        OK(weir_alloc(a, 40000, A, &gone[0]));
        OK(weir_alloc(a, 50000, B, &gone[1]));
        OK(weir_free(a, gone[0], A));
        OK(weir_free(a, gone[1], B));
    }
    for (int i = 0; i < 6; i++)
        take(20 * MIB, A);
    for (int i = 0; i < 3; i++)
        take(8 * MIB, B);
    for (int i = 0; i < 4; i++)
        take(3 * MIB, A);
    for (int i = 0; i < 10; i++)
        take(300 * KIB, A);
    for (int i = 0; i < 10; i++)
        take(100 * KIB, B);
    take(777, B);
    take(5 * MIB, A);
    OK(weir_free(a, block[--blocks], A)); /* live no more */
    v = REFUSED(LIMIT, 250 * MIB, A);
    if (is_bare(_i, KIND_POOL)) {
        MUST_EQ(v.group_count, 0);
        end();
        return;
    }
    MUST_EQ(v.group_count, 5);
    expect_group(&v, 0, 20 * MIB, 6, of_a);
    expect_group(&v, 1, 8 * MIB, 3, of_b);
    expect_group(&v, 2, 3 * MIB, 4, of_a);
    expect_group(&v, 3, 300 * KIB, 10, of_a);
    expect_group(&v, 4, 100 * KIB, 10, of_b);
    MUST_EQ(v.ungrouped, 0);
    end();
}

/* Of one size they are told apart by stream; of equal ones that of the larger blocks comes first. */
TEST(streams_tell_groups_apart) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    if (worlds[_i].front == WEIR_SWITCH_OFF)
        return;
    make(&options);
    take(20 * MIB, A);
    take(100 * KIB, B);
    OK(weir_free(a, block[--blocks], B)); /* of no slab, and live no more */
    take(20 * MIB, B);
    take(20 * MIB, B);
    take(10 * MIB, A);
    take(10 * MIB, A);
    v = REFUSED(LIMIT, 250 * MIB, C);
    MUST_EQ(v.group_count, 3);
    expect_group(&v, 0, 20 * MIB, 2, id_of(B));
    expect_group(&v, 1, 20 * MIB, 1, id_of(A));
    expect_group(&v, 2, 10 * MIB, 2, id_of(A));
    end();
}

/* Small ones of a stream that has ended are nobody's, once its handle is another's, and what it freed waits for the
 * device. */
TEST(blocks_outlive_their_stream) {
    weir_options options = options_for(_i, 256 * MIB);
    CUstream stream, next;
    weir_verdict v;
    uint32_t at = 0;

    if (worlds[_i].front == WEIR_SWITCH_OFF)
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    take(3000, stream);
    take(300 * KIB, stream);
    OK(weir_free(a, block[--blocks], stream));
    v = REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.group_count, 1);
    expect_group(&v, 0, 3000, 1, id_of(stream));
    CU(driver->cuStreamDestroy(stream));
    CU(driver->cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    MUST(next == stream);
    take(5000, next);
    v = REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.group_count, 2);
    expect_group(&v, 0, 5000, 1, id_of(next));
    expect_group(&v, 1, 3000, 1, 0);
    while (at < v.pending_streams && v.pending_by[at].stream != 0)
        at++;
    MUST(at < v.pending_streams);
    MUST_LE(300 * KIB, v.pending_by[at].bytes);
    end();
}

#ifdef CAN_REFUSE_HOST_MEMORY
static weir_verdict verdict_without_host_memory(void) {
    weir_verdict v = {.size = sizeof v};

    refuse_in = 1;
    refuse_for_good = 1;
    EXPECT(WEIR_OK, weir_last_verdict(a, &v));
    refuse_in = 0;
    refuse_for_good = 0;
    return v;
}

/* It says less then: of more sizes than a small table has places. */
TEST(without_host_memory) {
    enum { PLACES = 48 };
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v, with;
    uint64_t told = 0;

    if (is_bare(_i, KIND_POOL))
        return;
    make(&options);
    for (int i = 0; i < MOST; i++)
        take((size_t)(i + 1) * 4096, A);
    with = REFUSED(LIMIT, 255 * MIB, A);
    MUST_EQ(with.ungrouped, 0);
    v = verdict_without_host_memory();
    MUST_EQ(v.cause, with.cause);
    MUST_EQ(v.largest, with.largest);
    MUST_LE(1, v.ungrouped);
    MUST_EQ(v.group_count, 5);
    for (uint32_t i = 0; i < v.group_count; i++)
        told += v.groups[i].total;
    MUST_LE(told + v.ungrouped, (uint64_t)MOST * (MOST + 1) / 2 * 4096);
    while (blocks > PLACES)
        OK(weir_free(a, block[--blocks], A));
    MUST_EQ(verdict_without_host_memory().ungrouped, 0);
    take((PLACES + 1) * 4096, A);
    MUST_LE(1, verdict_without_host_memory().ungrouped);
    end();
}

/* Nor does a small table take blocks of one size for one stream's. */
TEST(without_host_memory_streams_are_apart) {
    enum { STREAMS = 40 };
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {.size = sizeof v};

    if (worlds[_i].front == WEIR_SWITCH_OFF)
        return;
    make(&options);
    for (int i = 0; i < STREAMS; i++) {
        CUstream stream;

        for (int skip = i * i % 5; skip >= 0; skip--) /* ids with gaps between */
            CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        take(MIB, stream);
    }
    (void)REFUSED(LIMIT, 255 * MIB, A);
    refuse_in = 1;
    refuse_for_good = 1;
    EXPECT(WEIR_OK, weir_last_verdict(a, &v));
    refuse_in = 0;
    refuse_for_good = 0;
    MUST_EQ(v.ungrouped, 0);
    MUST_EQ(v.group_count, WEIR_VERDICT_GROUPS);
    for (uint32_t i = 0; i < v.group_count; i++) {
        MUST_EQ(v.groups[i].blocks, 1);
        MUST(i == 0 || v.groups[i - 1].stream < v.groups[i].stream);
    }
    end();
}
#endif

/* ---- the call -------------------------------------------------------------------------------- */

TEST(what_it_refuses_itself) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {.size = sizeof v};
    struct {
        size_t size;
        weir_status status;
        int cause;
    } less = {.size = sizeof less, .cause = 77};
    weir_allocator *other;

    make(&options);
    EXPECT(WEIR_E_INVALID, weir_last_verdict(a, &v)); /* nothing was refused */
    (void)REFUSED(LIMIT, 300 * MIB, A);
    EXPECT(WEIR_E_INVALID, weir_last_verdict(NULL, &v));
    EXPECT(WEIR_E_INVALID, weir_last_verdict(a, NULL));
    v.size = 0;
    EXPECT(WEIR_E_INVALID, weir_last_verdict(a, &v));
    v.size = sizeof v.size;
    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.size, sizeof v.size);
    OK(weir_last_verdict(a, (weir_verdict *)(void *)&less));
    MUST_EQ(less.size, sizeof less);
    MUST_EQ(less.cause, WEIR_VERDICT_LIMIT);
    options.limit = bytes_amount(64 * MIB);
    OK(weir_allocator_create(&options, &other));
    v.size = sizeof v;
    EXPECT(WEIR_E_INVALID, weir_last_verdict(other, &v)); /* by another */
    OK(weir_allocator_destroy(other));
    weir__detour_set(&a->device.slow_path, WEIR_DETOUR_LOST, 1);
    EXPECT(WEIR_E_DEVICE_LOST, weir_last_verdict(a, &v));
    weir__detour_set(&a->device.slow_path, WEIR_DETOUR_LOST, 0);
    end();
}

/* The host gives a new allocator the address of one that has gone, though not every time. */
TEST(the_next_at_an_address_has_refused_nothing) {
    weir_options options = options_for(0, 256 * MIB);
    weir_verdict v = {.size = sizeof v};
    int any = 0;

    for (int i = 0; i < 20 && !any; i++) {
        weir_allocator *gone;

        make(&options);
        (void)REFUSED(LIMIT, 300 * MIB, A);
        gone = a;
        end();
        make(&options);
        any = a == gone;
        if (any)
            EXPECT(WEIR_E_INVALID, weir_last_verdict(a, &v));
        end();
    }
    if (!any)
        printf("# no address came again\n");
}

/* What the driver does not tell is not known, and the cause is drawn from the rest. */
TEST(where_the_driver_does_not_answer) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {.size = sizeof v};
    char json[4096];

    make(&options);
    take(200 * MIB, A);
    (void)REFUSED(LIMIT, 300 * MIB, A);
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_last_verdict(a, &v));
    weir__model_faults_clear();
    MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
    MUST_EQ(v.device_free, UINT64_MAX);
    MUST_EQ(v.others, UINT64_MAX);
    MUST(weir_verdict_text(&v, WEIR_VERDICT_AS_JSON, json, sizeof json) > 0);
    MUST(strstr(json, "\"device_free\":null,") && strstr(json, "\"others\":null"));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetGraphMemAttribute, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_last_verdict(a, &v));
    weir__model_faults_clear();
    MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
    MUST_EQ(v.graphs, 0);
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_last_verdict(a, &v));
    weir__model_faults_clear();
    MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
    MUST_EQ(v.graphs, 0);
    MUST_EQ(weir_last_driver_result(), 0); /* the limit's doing, as before */
    end();
}

/* A child of fork has nothing to ask about. */
TEST(not_after_a_fork) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {.size = sizeof v};
    int state;
    pid_t child;

    make(&options);
    (void)REFUSED(LIMIT, 300 * MIB, A);
    child = fork();
    if (child == 0)
        _exit(weir_last_verdict(a, &v) == WEIR_E_FORKED ? 0 : 1);
    MUST(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    (void)verdict_now();
    end();
}

/* Of drivers that do not tell of graphs' memory, or of what is free, the rest is told. */
TEST(where_the_driver_cannot_tell) {
    weir_options options = options_for(_i, 0);
    struct weir_driver table = *driver;
    weir_verdict v = {.size = sizeof v};
    CUdeviceptr others;
    CUgraphExec exec;
    void *none = NULL;

    if (is(_i, KIND_FIXED))
        return;
    table.capabilities &= ~(unsigned)WEIR_CAP_GRAPH;
    exec = run_graph(GIB);
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, GIB + 256 * MIB, A, &none));
    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.graphs, 0);
    MUST_LE(3 * GIB, v.others); /* they are anybody's then */
    MUST_EQ(v.cause, WEIR_VERDICT_OTHERS);
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_last_verdict(a, &v));
    weir__model_faults_clear();
    MUST_EQ(v.others, UINT64_MAX);
    MUST_EQ(v.cause, WEIR_VERDICT_OTHERS); /* nothing else stands in its way */
    CU(driver->cuMemFree(others));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuDeviceGraphMemTrim(0));
    OK(weir_allocator_destroy(a));
}

TEST(it_is_written) {
    weir_options options = options_for(_i, 256 * MIB);
    char text[4096], json[4096], less[64];
    weir_verdict v;
    size_t length;

    make(&options);
    take(100 * MIB, A);
    v = REFUSED(LIMIT, 300 * MIB, A);
    length = weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text);
    MUST(length > 0 && length < sizeof text && strlen(text) == length);
    MUST(text[length - 1] == '\n');
    for (char *line = text; *line; line += strcspn(line, "\n") + 1)
        MUST_LE(strcspn(line, "\n"), 79);
    ck_assert_ptr_eq(
        strstr(text, "weir: out of memory: could not allocate 300MiB on model:0\n  (reserved "),
        text);
    MUST(strstr(text, " of 256MiB limit,"));
    MUST(strstr(text, "GiB free).\n  Raise options.limit to ") && !strstr(text, "WEIR_LIMIT"));
    MUST(strstr(text, "cause       limit: the limit of 256MiB"));
    MUST(!strstr(text, "pending work") &&
         (v.group_count == 0 || strstr(text, " in 1 block of 100MiB, ")));
    MUST_EQ(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, NULL, 0), length);
    MUST_EQ(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, less, sizeof less), length);
    MUST_EQ(strlen(less), sizeof less - 1);
    MUST(strncmp(less, text, sizeof less - 1) == 0);
    length = weir_verdict_text(&v, WEIR_VERDICT_AS_JSON, json, sizeof json);
    MUST(length > 0 && length < sizeof json && strlen(json) == length);
    MUST(strstr(json, "{\"cause\":\"limit\",") == json && json[length - 1] == '}');
    MUST(strstr(json, "\"asked\":314572800,") && strstr(json, "\"limit\":268435456,"));
    MUST(strstr(json, "\"try\":[{\"field\":\"options.limit\",\"value\":\""));
    MUST_EQ(weir_verdict_text(&v, 2, text, sizeof text), 0);
    MUST_EQ(weir_verdict_text(NULL, 0, text, sizeof text), 0);
    v.size = 8;
    MUST_EQ(weir_verdict_text(&v, 0, text, sizeof text), 0);
    ck_assert_int_eq(setenv("WEIR_LIMIT", "256MiB", 1), 0); /* as the options were read from */
    v = verdict_now();
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "GiB free).\n  Try --limit ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, " (WEIR_LIMIT=");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"try\":[{\"flag\":\"--limit\",\"variable\":");
    ck_assert_int_eq(unsetenv("WEIR_LIMIT"), 0);
    ck_assert_str_eq(weir_verdict_cause_word(WEIR_VERDICT_IN_USE), "in-use");
    ck_assert_str_eq(weir_verdict_cause_word(-1), "unknown");
    ck_assert_str_eq(weir_verdict_cause_word(WEIR_VERDICT_CAUSE_COUNT), "unknown");
    end();
}

/* ---- beside others --------------------------------------------------------------------------- */

static atomic_int others_go_on;

static void *come_and_go(void *stream) {
    uint64_t seed = id_of(stream);
    void *held[16] = {0};

    while (atomic_load(&others_go_on)) {
        int at = (int)(next_random(&seed) % 16);

        if (held[at]) {
            OK(weir_free(a, held[at], stream));
            held[at] = NULL;
        } else if (!is_refusal(weir_alloc(a, random_size(&seed, 2 * MIB), stream, &held[at]))) {
            MUST(held[at] != NULL);
        }
    }
    for (int i = 0; i < 16; i++)
        OK(weir_free(a, held[i], stream));
    return NULL;
}

/* It is come to while all of it changes: each figure is one that was there. */
TEST(beside_threads_at_work) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {.size = sizeof v};
    pthread_t thread[2];
    void *none = NULL;

    options.recovery_timeout_ms = UINT32_MAX;
    make(&options);
    atomic_store(&others_go_on, 1);
    MUST(pthread_create(&thread[0], NULL, come_and_go, B) == 0);
    MUST(pthread_create(&thread[1], NULL, come_and_go, C) == 0);
    for (int i = 0; i < 100; i++) {
        MUST(is_refusal(weir_alloc(a, 300 * MIB, A, &none)));
        OK(weir_last_verdict(a, &v));
        MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
        MUST_LE(v.reserve, 256 * MIB);
        for (uint32_t g = 0; g < v.group_count; g++) {
            MUST_LE(v.groups[g].bytes, 2 * MIB);
            MUST_LE(v.groups[g].blocks, 32);
            MUST(v.groups[g].stream != id_of(A));
        }
    }
    atomic_store(&others_go_on, 0);
    MUST(pthread_join(thread[0], NULL) == 0);
    MUST(pthread_join(thread[1], NULL) == 0);
    end();
}

/* ---- unasked --------------------------------------------------------------------------------- */

static char told_path[] = "/tmp/weir-verdict-XXXXXX.json";

static void start_telling(weir_options *options) {
    int file;

    snprintf(told_path, sizeof told_path, "/tmp/weir-verdict-XXXXXX.json");
    file = mkstemps(told_path, 5);
    MUST(file >= 0 && close(file) == 0);
    options->verdict = told_path;
}

/* Lines in the file; all of them speak of that cause. */
static int told(const char *cause) {
    char line[4096], start[64];
    FILE *file = fopen(told_path, "r");
    int count = 0;

    MUST(file != NULL);
    snprintf(start, sizeof start, "{\"cause\":\"%s\",", cause);
    while (fgets(line, sizeof line, file)) {
        MUST(strncmp(line, start, strlen(start)) == 0);
        count++;
    }
    MUST(fclose(file) == 0);
    return count;
}

static void ask(size_t bytes, int served) {
    void *found = NULL;
    weir_status status = weir_alloc(a, bytes, A, &found);

    MUST(served ? status == WEIR_OK : is_refusal(status));
    if (found)
        OK(weir_free(a, found, A));
}

#ifdef CAN_REFUSE_HOST_MEMORY
/* Where there is none for the name of the file, there is no allocator. */
TEST(without_host_memory_for_the_name) {
    weir_options options = options_for(_i, 256 * MIB);

    start_telling(&options);
    for (uint64_t k = 1; k < 3; k++) {
        refuse_in = k;
        a = NULL;
        EXPECT(WEIR_E_HOST_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
        refuse_in = 0;
        MUST(a == NULL);
    }
    make(&options);
    ask(300 * MIB, 0);
    MUST_EQ(told("limit"), 1);
    end();
    MUST(unlink(told_path) == 0);
}
#endif

TEST(the_first_of_each_cause_is_told) {
    weir_options options = options_for(_i, 256 * MIB);

    start_telling(&options);
    make(&options);
    memset(told_path, 0, 0); /* the name was copied */
    ask(100 * MIB, 1);
    MUST_EQ(told("limit"), 0);
    ask(300 * MIB, 0);
    MUST_EQ(told("limit"), 1);
    ask(301 * MIB, 0);
    MUST_EQ(told("limit"), 1);
    MUST(truncate(told_path, 0) == 0);
    ask(5 * GIB, 0);
    MUST_EQ(told("too-large"), 1);
    end();
    MUST(unlink(told_path) == 0);
}

static int frees_one(const weir_oom *oom, void *data) {
    (void)data;
    if (blocks == 0)
        return 0;
    OK(weir_free(a, block[--blocks], oom->stream));
    return 1;
}

/* What is served in the end was not refused; what is refused in the end is told once. */
TEST(a_callback_is_asked_before) {
    weir_options options = options_for(_i, 256 * MIB);

    start_telling(&options);
    options.oom_callback = frees_one;
    options.recovery_timeout_ms = 1;
    if (_i % 2)
        options.harden = WEIR_HARDEN_GUARD;
    make(&options);
    for (int i = 0; i < 10; i++)
        take(20 * MIB, A);
    ask(100 * MIB, 1);
    MUST_EQ(told("limit"), 0);
    MUST_LE(blocks, 9);
    ask(300 * MIB, 0);
    MUST_EQ(blocks, 0);
    MUST_EQ(told("limit"), 1);
    end();
    MUST(unlink(told_path) == 0);
}

/* Who stands in the place of the driver's pools tells by itself, when nobody else serves the request. */
TEST(a_stand_in_tells_by_itself) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v;

    start_telling(&options);
    if (_i % 2)
        options.harden = WEIR_HARDEN_GUARD;
    make(&options);
    MUST(!weir__drop_in_tell(a, &v)); /* nothing was refused */
    weir__drop_in_begin(a, NULL);
    ask(300 * MIB, 0);
    MUST_EQ(told("limit"), 0);
    MUST(weir__drop_in_tell(a, &v));
    MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
    MUST_EQ(told("limit"), 1);
    MUST(!weir__drop_in_tell(a, &v)); /* no news */
    MUST_EQ(told("limit"), 1);
    end();
    MUST(unlink(told_path) == 0);
}

/* A program that asks again and again is not looked at for ever. */
TEST(not_all_of_them_are_looked_at) {
    weir_options options = options_for(_i, 256 * MIB);

    start_telling(&options);
    make(&options);
    for (int i = 0; i < 64; i++)
        ask(300 * MIB, 0);
    ask(5 * GIB, 0); /* another cause, and too late */
    MUST_EQ(told("limit"), 1);
    end();
    MUST(unlink(told_path) == 0);
}

/* A callback may ask for one itself. */
static int judges(const weir_oom *oom, void *data) {
    weir_verdict *v = data;

    v->size = sizeof *v;
    OK(weir_last_verdict(oom->allocator, v));
    return 0;
}

TEST(a_callback_may_ask) {
    weir_options options = options_for(_i, 256 * MIB);
    weir_verdict v = {0};

    options.oom_callback = judges;
    options.oom_callback_data = &v;
    make(&options);
    ask(300 * MIB, 0);
    MUST_EQ(v.cause, WEIR_VERDICT_LIMIT);
    MUST_EQ(v.asked, 300 * MIB);
    end();
}

/* A request of a graph: nothing is asked of its stream, and the capture stays. */
TEST(under_capture) {
    weir_options options = options_for(_i, 0);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    weir_verdict v = {.size = sizeof v};
    void *none = NULL;
    CUgraph graph;

    start_telling(&options);
    make(&options);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 8 * GIB, A, &none));
    OK(weir_last_verdict(a, &v));
    MUST_EQ(v.cause, WEIR_VERDICT_TOO_LARGE);
    MUST_EQ(v.stream, 0);
    MUST_EQ(v.largest, 0);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CU(driver->cuStreamEndCapture(A, &graph));
    CU(driver->cuGraphDestroy(graph));
    MUST_EQ(told("too-large"), 1);
    end();
    MUST(unlink(told_path) == 0);
}

static CUgraph end_capture(void) {
    CUgraph graph;

    CU(driver->cuStreamEndCapture(A, &graph));
    return graph;
}

/* Of a request under capture that is refused, by the driver or by the limit of its pool. */
static weir_verdict refused_to_a_graph(size_t bytes, weir_status status, const char *advice) {
    weir_verdict v;
    char text[4096];
    void *none;

    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (status == WEIR_E_NO_MEMORY)
        weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(status, weir_alloc(a, bytes, A, &none));
    v = verdict_now();
    MUST_LE(weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text), sizeof text - 1);
    check_lines(text);
    ck_assert_msg(strstr(text, advice) != NULL, "not \"%s\": %s", advice, text);
    expect_none(&v);
    CU(driver->cuGraphDestroy(end_capture()));
    return v;
}

/* Idle reserve serves no graph: it is to go before.  Blocks that live cannot. */
TEST(a_graph_beside_reserve) {
    weir_options options = options_for(_i, is(_i, KIND_FIXED) ? 3584 * MIB : 0);
    weir_verdict v;

    if (is(_i, KIND_PLATFORM))
        return; /* graphs have nothing of it, and it has no reserve */
    make(&options);
    OK(weir_preallocate(a, 3584 * MIB, NULL));
    v = refused_to_a_graph(
        GIB, WEIR_E_NO_MEMORY,
        "\n  Trim before the capture (weir_trim), or use a smaller --prealloc or --limit.\n");
    MUST_EQ(v.cause, WEIR_VERDICT_RESERVE);
    MUST_EQ(v.idle, 3584 * MIB);
    take(3 * GIB, B);
    v = refused_to_a_graph(1536 * MIB, WEIR_E_NO_MEMORY,
                           "\n  Request less, or free live blocks first: no setting makes room.\n");
    MUST_EQ(v.cause, WEIR_VERDICT_IN_USE);
    end();
}

/* Nor what the caches' regions have idle within a limit that the driver does not know. */
TEST(a_graph_beside_reserve_and_a_limit) {
    weir_options options = options_for(_i, GIB);
    weir_verdict v;
    void *node;

    if (!is(_i, KIND_POOL) || is_bare(_i, KIND_POOL))
        return;
    make(&options);
    for (int i = 0; i < 7; i++)
        take(64 * MIB, A);
    give(1, 1, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_set_limit(a, bytes_amount(480 * MIB)));
    v = refused_to_a_graph(256 * MIB, WEIR_E_LIMIT, "or use a larger limit (weir_set_limit).\n");
    MUST_EQ(v.cause, WEIR_VERDICT_RESERVE);
    OK(weir_trim(a, 0, NULL));
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(weir_alloc(a, 256 * MIB, A, &node));
    OK(weir_free(a, node, A));
    CU(driver->cuGraphDestroy(end_capture()));
    end();
}

/* ---- words ----------------------------------------------------------------------------------- */

static const weir_verdict some = {.size = sizeof some,
                                  .limit = UINT64_MAX,
                                  .reserve = 3 << 20,
                                  .in_use = 1 << 20,
                                  .idle = 2 << 20,
                                  .device_total = 1 << 30,
                                  .others = UINT64_MAX,
                                  .siblings = 5 << 20};

/* What a file has, which goes. */
static void expect_file(const char *path, const char *begins, char ends) {
    char text[4096];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;

    MUST(file && fclose(file) == 0 && unlink(path) == 0 && bytes > 0);
    text[bytes] = '\0';
    MUST(strncmp(text, begins, strlen(begins)) == 0 && text[bytes - 1] == ends);
}

/* The allocator is made all the same, and refusals are told. */
TEST(a_place_that_cannot_be_is_said) {
    weir_options options = options_for(0, 256 * MIB);
    char said[] = "/tmp/weir-said-XXXXXX";
    int error = dup(STDERR_FILENO), file = mkstemp(said);

    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO && close(file) == 0);
    options.log = WEIR_LOG_ERROR; /* who wants to hear of no more than that does not */
    options.verdict = "/nonexistent/another";
    make(&options);
    end();
    options.log = WEIR_LOG_DEFAULT;
    options.verdict = "/nonexistent/file";
    make(&options);
    end();
    make(&options); /* of which it is said no more */
    end();
    MUST(dup2(error, STDERR_FILENO) == STDERR_FILENO && close(error) == 0);
    expect_file(
        said,
        "weir: warning: oom-report '/nonexistent/file': No such file or directory; expected "
        "stderr, off or a file that can be written: OOM reports go to standard error until then\n",
        '\n');
}

TEST(each_cause_has_a_sentence) {
    weir_verdict v = some;

    v.cause = WEIR_VERDICT_PENDING;
    v.asked = 2 << 20;
    v.pending = 1 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "enough is idle, but 1MiB of it waits");
    v.asked++;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "enough is idle or may be added, but 1MiB of it waits");
    v.cause = WEIR_VERDICT_FRAGMENTED;
    v.hole = 0;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "2MiB is idle, but only as padding of live blocks");
    v.hole = UINT64_MAX;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "2MiB is idle, in pieces or behind other streams");
    v.hole = 1 << 20;
    v.limit = v.reserve + (9 << 20);
    v.device_free = 8 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "2MiB is idle, but in pieces of 1MiB at most\n"
                 "              with 8MiB that may be added it would be enough in one piece\n");
    v.device_free = UINT64_MAX;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "with 9MiB that may be added it");
    v.asked = 2 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "2MiB is idle, but in pieces of 1MiB at most\n");
    v.limit = some.limit;
    v.asked = some.asked;
    v.device_free = some.device_free;
    v.pending = some.pending;
    v.cause = WEIR_VERDICT_LIMIT;
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"share\":null,");
    v.is_share = 1;
    v.limit = 1 << 30;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, ": limit share:0 is 1GiB now, of which ");
    v.weight = 1500000;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, ": limit share:1.5 is 1GiB now, of which ");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"share\":1500000,");
    v.is_share = v.weight = 0;
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"limit_is_set\":false,");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"set_limit\":null");
    v.limit_is_set = 1;
    v.set_limit = (uint64_t)5 << 28;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, ": the program's own limit of 1GiB; ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "\n  Call weir_set_limit with 1280MiB or more.\n");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"try\":[],\"set_limit\":1342177280}");
    v.set_limit = 0;
    v.cause = WEIR_VERDICT_RESERVE;
    v.status = WEIR_E_LIMIT;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "or use a larger limit (weir_set_limit).\n");
    v.limit_is_set = 0;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "or use a larger --limit.\n");
    v.status = WEIR_E_NO_MEMORY;
    v.cause = WEIR_VERDICT_OTHERS;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "other weir pools of this process have 5MiB of the device");
    v.others = 1 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "other weir pools of this process have 5MiB of the device");
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Trim the other pools, or free their blocks: no setting makes room.\n");
    v.others = v.siblings;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "the device has too little left, and others have 10MiB of it");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "or end them (weir info --processes):\n");
    v.others = UINT64_MAX;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "\n  Trim the other pools, or free their blocks");
    v.siblings = 0; /* there are none to trim */
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "or end them (weir info --processes):\n");
    v.cause = WEIR_VERDICT_GRAPHS;
    v.graphs = 3 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "the device has too little left, and graphs have 3MiB of it");
    v.cause = WEIR_VERDICT_OTHERS;
    v.silent_pid = 4711;
    v.silent_reserve = 1 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "process 4711 has 1MiB of it, and does not answer\n");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "\n  Wait until process 4711 answers, or end it.\n");
    expect_words(&v, WEIR_VERDICT_AS_JSON,
                 "\"silent_pid\":4711,\"silent_reserved\":1048576,\"silent_stopped\":false,");
    v.silent_stopped = 1;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "process 4711 has 1MiB of it, and is stopped\n");
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Continue process 4711 (kill -CONT 4711), or end it.\n");
    v.silent_pid = 0;
    v.holder_pid = 4712;
    v.holder_reserve = 3 << 20;
    v.holder_could_give = 2 << 20;
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "process 4712 has 3MiB of it, of which it could release 2MiB\n");
    expect_words(&v, WEIR_VERDICT_AS_JSON,
                 "\"holder_pid\":4712,\"holder_reserved\":3145728,\"holder_reclaimable\":2097152,");
    v.holder_pid = 0;
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"holder_pid\":null,");
    for (v.cause = WEIR_VERDICT_NONE; v.cause < WEIR_VERDICT_CAUSE_COUNT; v.cause++) {
        char sentence[32];

        snprintf(sentence, sizeof sentence, "{\"cause\":\"%s\",", weir_verdict_cause_word(v.cause));
        expect_words(&v, WEIR_VERDICT_AS_JSON, sentence);
        expect_words(&v, WEIR_VERDICT_AS_TEXT,
                     v.cause == WEIR_VERDICT_NONE      ? "\n  Try the request again.\n"
                     : v.cause == WEIR_VERDICT_RESERVE ? "\n  Trim before the capture (weir_trim), "
                                                       : "no setting makes room");
    }
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "it would be served now"); /* one that there is not yet */
    ck_assert_str_eq(weir_verdict_cause_word(-1), "unknown");
}

TEST(lists_as_words) {
    weir_verdict v = some;

    v.cause = WEIR_VERDICT_PENDING;
    v.pending_streams = 2;
    v.pending_by[0].bytes = 1024;
    v.pending_by[0].stream = 7;
    v.pending_by[1].bytes = 2048; /* of nobody that is known */
    v.group_count = 2;
    v.groups[0] = (weir_verdict_group){.bytes = 10, .blocks = 2, .total = 20, .stream = 9};
    v.groups[1] = (weir_verdict_group){.bytes = 5, .blocks = 1, .total = 5};
    v.ungrouped = 4096;
    v.settings[0] = (weir_verdict_setting){.name = "limit", .value = "1GiB"};
    v.settings[1] = (weir_verdict_setting){.name = "another"}; /* which has no variable */
    v.settings[2] = (weir_verdict_setting){.name = "growth"};
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Try --limit 1GiB --another  --growth \n      (WEIR_LIMIT=1GiB ");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "2KiB waits for ");
    v.pending = 3072;
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "of this 3KiB still used by pending work\n");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "20B in 2 blocks of 10B, stream id 9\n");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "4KiB not listed: out of host memory");
    expect_words(&v, WEIR_VERDICT_AS_TEXT, "another=");
    v.settings[1] = (weir_verdict_setting){.name = "prealloc", .value = "2GiB"};
    v.settings[2] = (weir_verdict_setting){.name = "keep-free", .value = "3GiB"};
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "\n  Try --limit 1GiB --prealloc 2GiB --keep-free 3GiB or less\n      (");
    expect_words(&v, WEIR_VERDICT_AS_TEXT,
                 "WEIR_LIMIT=1GiB WEIR_PREALLOC=2GiB WEIR_KEEP_FREE=3GiB).\n");
    v.settings[2] = (weir_verdict_setting){.name = "growth"};
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"pending_by\":[{\"bytes\":1024,\"stream\":7},{");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"blocks\":2,\"total\":20,\"stream\":9},{");
    expect_words(&v, WEIR_VERDICT_AS_JSON, "\"variable\":\"WEIR_GROWTH\"");
}

TEST(where_it_is_told) {
    char path[] = "/tmp/weir-told-XXXXXX", json[48], said[48];
    int error = dup(STDERR_FILENO), file = mkstemp(path);

    MUST(file >= 0 && close(file) == 0);
    snprintf(json, sizeof json, "%s.json", path);
    snprintf(said, sizeof said, "%s.said", path);
    weir__verdict_tell(&some, path);
    expect_file(path, "weir: ", '\n');
    weir__verdict_tell(&some, json);
    expect_file(json, "{\"cause\"", '\n');
    for (int i = 0; i < 3; i++) { /* where there is no such file, too */
        file = open(said, O_CREAT | O_RDWR | O_TRUNC, 0600);
        MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO && close(file) == 0);
#ifdef CAN_DENY
        deny("write", i == 2, 0, EINTR);
#endif
        weir__verdict_tell(&some, i == 1 ? "/nonexistent/file" : "stderr");
#ifdef CAN_DENY
        ANSWERS(i == 2, deny_none());
#endif
        MUST(dup2(error, STDERR_FILENO) == STDERR_FILENO);
        expect_file(said,
                    i == 1 ? "weir: warning: oom-report '/nonexistent/file': No such file or "
                             "directory: this OOM report goes to standard error\nweir: "
                           : "weir: ",
                    '\n');
    }
#ifdef CAN_DENY
    deny("write", 1, 0, EIO); /* it is lost, then */
    weir__verdict_tell(&some, "stderr");
    MUST_EQ(deny_none(), 1);
#endif
    MUST_EQ(weir__verdict_problem("off"), 0);
    MUST_EQ(weir__verdict_problem("stderr"), 0);
    MUST_EQ(weir__verdict_problem(said + strlen("/tmp/")), 0); /* which would be made */
    MUST_EQ(weir__verdict_problem("/abcd"), access("/", W_OK) == 0 ? 0 : EACCES);
    MUST_EQ(weir__verdict_problem("/nonexistent/file"), ENOENT);
    MUST_EQ(weir__verdict_problem("/tmp"), EISDIR);
    MUST_EQ(weir__verdict_problem("/dev/null"), 0);
    weir__verdict_tell(&some, "abcd"); /* a name that is shorter than an ending */
    expect_file("abcd", "weir: ", '\n');
}

/* What a file does not take, or no more than the beginning of, is told all the same, and why it is not there. */
TEST(where_there_is_no_space) {
    char path[] = "/tmp/weir-told-XXXXXX", said[8192], expected[256];
    const char *to[] = {"/dev/full", path};
    int error = dup(STDERR_FILENO), file = mkstemp(path), ends[2];
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    struct rlimit least = {.rlim_cur = 100}, limit;
    ssize_t bytes;

    MUST(file >= 0 && close(file) == 0 && getrlimit(RLIMIT_FSIZE, &limit) == 0);
    least.rlim_max = limit.rlim_max;
    for (int i = 0; i < 2; i++) {
        MUST(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
        MUST(setrlimit(RLIMIT_FSIZE, &least) == 0);
        weir__verdict_tell(&some, to[i]);
        MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        MUST(dup2(error, STDERR_FILENO) == STDERR_FILENO && close(ends[1]) == 0);
        bytes = read(ends[0], said, sizeof said - 1);
        MUST(bytes > 0 && close(ends[0]) == 0);
        said[bytes] = '\0';
        snprintf(
            expected, sizeof expected,
            "weir: warning: oom-report '%s': %s: this OOM report goes to standard error\nweir: ",
            to[i], strerror(i ? EFBIG : ENOSPC));
        MUST(strncmp(said, expected, strlen(expected)) == 0 && said[bytes - 1] == '\n');
    }
    MUST(unlink(path) == 0 && signal(SIGXFSZ, before) == SIG_IGN);
}

int main(void) {
    Suite *suite = suite_create("verdict");
    TCase *tests = suite_add_case(suite, "cause", 60, start_device, NULL);

    ADD_FOR_EACH(
        tests, WORLDS, the_limit, advice_leads_there, the_limit_at_once, a_small_limit,
        a_limit_below_a_page, no_page_is_left_to_it, what_is_left_to_others,
        what_is_left_to_others_and_a_limit, a_limit_below_what_may_be_had,
        what_is_left_to_others_and_a_full_device, a_limit_that_was_set_later,
        a_limit_that_was_set_below_another, a_limit_that_was_set_beside_what_is_left,
        a_limit_that_the_device_cannot_hold, more_than_a_limit_that_was_set_later,
        a_limit_that_was_a_share, on_the_default_stream, others_have_the_device,
        others_have_what_a_limit_allows, others_had_what_was_preallocated,
        another_allocator_has_the_device, what_is_idle_lies_in_pieces,
        what_is_idle_lies_in_small_pieces, what_is_idle_waits_for_a_stream,
        more_than_a_limit_waits_for_a_stream, what_is_idle_waits_for_several,
        what_is_idle_waits_for_many, what_is_idle_lies_in_one_piece, what_older_drivers_can_try,
        no_limit_would_do, no_limit_is_told_where_none_forbids_it, no_limit_is_in_the_way,
        what_waiting_would_do, what_is_idle_is_its_own, graphs_have_the_device, all_of_it_is_in_use,
        more_than_there_is, what_is_free_is_refused, no_file_descriptor_is_left);
    tcase_add_loop_test(tests, pending_pieces, 0, WORLDS * 2);
    tests = suite_add_case(suite, "several causes", 60, start_device, NULL);
    ADD_FOR_EACH(tests, WORLDS, the_nearest_cause_is_told, the_larger_part_is_told,
                 nothing_stands_in_its_way_any_more);
    tcase_add_loop_test(tests, parts_of_the_device, 0, WORLDS * PARTS);
    tests = suite_add_case(suite, "live blocks", 60, start_device, NULL);
    ADD_FOR_EACH(tests, WORLDS, live_blocks_by_size_and_stream, streams_tell_groups_apart,
                 blocks_outlive_their_stream);
#ifdef CAN_REFUSE_HOST_MEMORY
    ADD_FOR_EACH(tests, WORLDS, without_host_memory, without_host_memory_streams_are_apart);
    tcase_add_loop_test(tests, without_host_memory_for_the_name, 0, 1);
#endif
    tests = suite_add_case(suite, "the call", 60, start_device, NULL);
    ADD_FOR_EACH(tests, WORLDS, what_it_refuses_itself, where_the_driver_does_not_answer,
                 where_the_driver_cannot_tell, not_after_a_fork, it_is_written);
    tcase_add_test(tests, the_next_at_an_address_has_refused_nothing);
    tests = suite_add_case(suite, "beside others", 60, start_device, NULL);
    tcase_add_loop_test(tests, beside_threads_at_work, 0, WORLDS);
    tests = suite_add_case(suite, "unasked", 60, start_device, NULL);
    ADD_FOR_EACH(tests, WORLDS, the_first_of_each_cause_is_told, a_callback_is_asked_before,
                 a_callback_may_ask, a_stand_in_tells_by_itself, not_all_of_them_are_looked_at,
                 under_capture, a_graph_beside_reserve, a_graph_beside_reserve_and_a_limit);
    tcase_add_test(tests, a_place_that_cannot_be_is_said);
    tests = suite_add_case(suite, "words", 60, NULL, NULL);
    ADD_TESTS(tests, each_cause_has_a_sentence, lists_as_words, where_it_is_told,
              where_there_is_no_space);
    return run_suite(suite, CK_FORK_GETENV);
}
