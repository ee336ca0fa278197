/* SPDX-License-Identifier: MIT */
/* test_oom_report_limits.c: requests that a limit refuses, and the limit that would be enough. */
#include "test_oom_report.h"

CASE("limit", 60, start_report_device, end_reporter_if_there);

TEST_EACH(WORLDS, the_limit_is_the_cause) {
    make_for(_i, 256 * MIB, "");
    fill_to_the_limit();
    REFUSED(LIMIT, 96 * MIB, A);
    MUST_EQ(v.limit, 256 * MIB);
    expect_only("limit", NULL);
    make_as_told();
    fill_to_the_limit();
    add_block(96 * MIB, A);
}

/* Makes random requests and frees.  Returns 0 if one fails, otherwise 1. */
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
            if (is_out_of_memory(weir_alloc(a, bytes, streams[blocks % 2], &got)))
                return 0;
            block[blocks++] = got;
        }
    }
    return 1;
}

/* An advised limit is an estimate, since it gives blocks other addresses.  Repeated advice leads to success. */
TEST_EACH(WORLDS, repeated_advice_leads_to_success) {
    enum { MOST_TIMES = 16 };
    int all = 0;

    for (uint64_t seed = 1; seed <= 12; seed++) {
        int times = 0;

        options = report_options(_i, 256 * MIB);
        for (make_reporter(); !can_work(seed); make_reporter()) {
            oom_report_now();
            if (!v.settings[0].name || ++times > MOST_TIMES)
                ck_abort_msg("seed %d: told %d times, and then %s", (int)seed, times,
                             weir_oom_report_cause_word(v.cause));
            end_reporter();
            all++;
            for (int i = 0; i < WEIR_OOM_REPORT_SETTINGS && v.settings[i].name; i++)
                OK(weir_options_set(&options, v.settings[i].name, v.settings[i].value, NULL, 0));
        }
        end_reporter();
    }
    ck_assert_int_gt(all, 12); /* otherwise there was little advice */
}

/* The request alone is above the limit. */
TEST_EACH(WORLDS, a_request_above_the_limit_names_the_limit) {
    make_for(_i, 256 * MIB, "");
    REFUSED(LIMIT, 300 * MIB, A);
    serves_as_told(300 * MIB);
}

/* The advised value is little above the need, for a small limit too. */
TEST_EACH(WORLDS, the_advised_limit_is_little_above_the_need) {
    if (is(_i, KIND_POOL) || (is(_i, KIND_DIRECT) && !is_bare(_i, KIND_DIRECT)))
        return; /* these worlds have no small limits */
    make_for(_i, 4 * MIB, "");
    add_block(3 * MIB, A);
    REFUSED(LIMIT, 5 * MIB / 4, A);
    expect_only("limit", "6MiB");
    make_as_told();
    add_block(3 * MIB, A);
    add_block(5 * MIB / 4, A);
}

/* The limit leaves less than a page of a mapped arena.  No other process holds the missing memory. */
TEST_EACH(WORLDS, a_limit_below_a_page_is_the_cause) {
    static const struct {
        size_t limit, asked;
    } cases[] = {{MIB, 900 * KIB}, {1900 * KIB, 900 * KIB}, {3 * MIB, 2900 * KIB}};

    if (!is(_i, KIND_MAPPED))
        return;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options = report_options(_i, cases[i].limit);
        make_reporter();
        REFUSED(LIMIT, cases[i].asked, A);
        expect_text("\n              less is left than one growth needs\n");
        expect_setting(0, "limit", NULL);
        MUST(v.settings[1].name == NULL);
        make_as_told();
        add_block(cases[i].asked, A);
        end_reporter();
    }
}

/* Here --keep-free leaves less than a page. */
TEST_WHERE(0, WORLDS, world_is_mapped, no_page_is_left_to_it) {
    options = report_options(_i, 0);
    options.keep_free = bytes_amount(device_free() - 5 * MIB / 4);
    make_reporter();
    REFUSED(LIMIT, 900 * KIB, A);
    MUST_LE(1, v.keep_free);
    expect_text("\n              less is left than one growth needs\n");
    expect_only("keep-free", NULL);
    serves_as_told(900 * KIB);
}

/* No limit is set.  The memory that must be left to others forbids the request. */
TEST_WHERE(0, WORLDS, has_growth, keep_free_is_the_cause) {
    make_for(_i, 0, "keep-free=3840MiB");
    fill_to_the_limit();
    REFUSED(LIMIT, 96 * MIB, A);
    MUST_EQ(v.keep_free, 3840 * MIB);
    expect_only("keep-free", NULL);
    expect_text("limit: --keep-free keeps 3.75GiB for others: this process may have 2");
    expect_text("WEIR_KEEP_FREE=");
    make_as_told();
    fill_to_the_limit();
    add_block(96 * MIB, A);
}

/* The limit is a little higher than the memory that keep-free leaves, and forbids the request, too. */
TEST_WHERE(0, WORLDS, has_growth, keep_free_and_a_higher_limit_are_both_named) {
    make_for(_i, 288 * MIB, "keep-free=3840MiB");
    REFUSED(LIMIT, 512 * MIB, A);
    expect_setting(0, "keep-free", NULL);
    expect_setting(1, "limit", NULL);
    MUST(v.settings[2].name == NULL);
    serves_as_told(512 * MIB);
}

/* Only the limit forbids the request; keep-free leaves enough. */
TEST_WHERE(0, WORLDS, has_growth, a_limit_below_what_may_be_had) {
    make_for(_i, 256 * MIB, "keep-free=64MiB");
    REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.keep_free, 0);
    expect_only("limit", NULL);
    serves_as_told(300 * MIB);
}

/* Even without keep-free the device has too little memory. */
TEST_WHERE(0, WORLDS, has_growth, a_full_device_is_the_cause_before_keep_free) {
    CUdeviceptr other;

    make_for(_i, 0, "keep-free=256MiB");
    CU(driver->cuMemAlloc(&other, 3 * GIB));
    REFUSED(OTHERS, 2 * GIB, A);
    end_reporter();
    make_reporter(); /* the limit is now what others have left */
    REFUSED(OTHERS, 2 * GIB, A);
    CU(driver->cuMemFree(other));
}

/* The default stream has an id like any other. */
TEST_EACH(WORLDS, the_default_stream_is_named) {
    make_for(_i, 64 * MIB, "");
    REFUSED(LIMIT, 200 * MIB, NULL);
    MUST_EQ(v.default_stream, id_of(NULL));
    expect_text("\n  request     for the default stream: WEIR_E_LIMIT, waited ");
    REFUSED(LIMIT, 200 * MIB, A);
    expect_text("\n  request     for stream id ");
}

/* Expects that the program's limit forbids the request.  Only a setting that forbids it as well is advised. */
static void refused_by_the_program(size_t bytes, const char *also) {
    REFUSED(LIMIT, bytes, A);
    MUST_EQ(v.limit_is_set, 1);
    MUST_LE(bytes, v.set_limit);
    MUST_EQ(v.keep_free, 0);
    MUST_EQ(v.is_share, 0);
    if (also)
        expect_setting(0, also, NULL);
    else
        expect_none();
    MUST(v.settings[1].name == NULL);
    expect_text("limit: the program's own limit of ");
    expect_text("\n  Call weir_set_limit with ");
    expect_json(",\"limit_is_set\":true,");
}

/* The report describes the present limit, not an older one. */
TEST_WHERE(0, WORLDS, has_growth, the_present_limit_is_named) {
    make_for(_i, 0, "");
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    refused_by_the_program(200 * MIB, NULL);
    MUST_EQ(v.limit, 128 * MIB);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    add_block(200 * MIB, A);
    OK(weir_set_limit(a, (weir_amount){.kind = WEIR_AMOUNT_MAX}));
    REFUSED(TOO_LARGE, 5 * GIB, A);
    MUST_EQ(v.limit_is_set, 0);
}

/* The limit of the options is a little higher than the program's, and forbids the larger requests, too. */
TEST_WHERE(0, WORLDS, has_growth, the_limit_of_the_options_is_named_if_it_forbids_too) {
    make_for(_i, 256 * MIB, "");
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    refused_by_the_program(200 * MIB, NULL);
    refused_by_the_program(256 * MIB, NULL);
    refused_by_the_program(300 * MIB, "limit");
    OK(weir_set_limit(a, bytes_amount(v.set_limit))); /* the limit of the options */
    REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.limit_is_set, 0);
    MUST_EQ(v.set_limit, 0);
    make_as_told();
    OK(weir_set_limit(a, bytes_amount(v.limit)));
    refused_by_the_program(300 * MIB, NULL);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    add_block(300 * MIB, A);
}

/* keep-free does not forbid a request if it leaves enough. */
TEST_WHERE(0, WORLDS, has_growth, keep_free_is_not_named_if_it_leaves_enough) {
    make_for(_i, 0, "keep-free=3584MiB");
    OK(weir_set_limit(a, bytes_amount(100 * MIB))); /* not a whole number of units */
    refused_by_the_program(200 * MIB, NULL);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    add_block(200 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(100 * MIB)));
    refused_by_the_program(100 * MIB, NULL); /* more than the limit is in use */
    MUST_LE(v.limit, 100 * MIB);
    end_reporter();
    options.keep_free = bytes_amount(3968 * MIB);
    make_reporter();
    OK(weir_set_limit(a, bytes_amount(256 * MIB)));
    REFUSED(LIMIT, 512 * MIB, A); /* both limits forbid it */
    MUST_EQ(v.keep_free, 3968 * MIB);
    expect_only("keep-free", NULL);
    expect_text("limit: --keep-free keeps ");
    expect_text(" that keep-free leaves");
    expect_text("\n  Call weir_set_limit with 512MiB or more, and\n  Try --keep-free ");
    make_as_told();
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    add_block(512 * MIB, A);
}

/* Expects no advice, because the device cannot hold a limit that is high enough. */
static void refused_by_any_limit(size_t bytes, const char *limit) {
    REFUSED(LIMIT, bytes, A);
    expect_none();
    MUST_EQ(v.set_limit, 0);
    expect_text(limit);
    expect_text(v.in_use > 0
                    ? "\n  Request less, or free live blocks first: no setting makes room.\n"
                    : "\n  Request less: no setting makes room.\n");
}

TEST_EACH(WORLDS, a_limit_above_the_device_is_named) {
    weir_allocator *other;
    CUdeviceptr others;
    void *held;

    options = report_options(_i, 3 * GIB);
    options.registry = _i % 2 ? WEIR_SWITCH_OFF : WEIR_SWITCH_ON; /* no other process exists */
    make_reporter();
    add_block(2 * GIB, A);
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 3GiB, of which 2GiB is in use");
    end_reporter();
    if (is(_i, KIND_FIXED)) { /* a fixed arena cannot grow, whatever its limit */
        options.limit = bytes_amount(5 * GIB);
        make_reporter();
        add_block(2 * GIB, A);
        refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 4GiB, of which ");
        end_reporter();
        return;
    }
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    make_reporter();
    OK(weir_set_limit(a, bytes_amount(3 * GIB)));
    add_block(2 * GIB, A);
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the program's own limit of 3GiB; ");
    end_reporter();
    options.limit = bytes_amount(512 * MIB); /* others hold memory */
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    make_reporter();
    refused_by_any_limit(2 * GIB + 256 * MIB, "limit: the limit of 512MiB, of which 0B is in use");
    CU(driver->cuMemFree(others));
    oom_report_now();
    expect_setting(0, "limit", "2304MiB");
    end_reporter();
    options.limit = bytes_amount(GIB); /* another allocator has idle memory */
    OK(weir_allocator_create(&options, &other));
    make_reporter();
    OK(weir_alloc(other, 960 * MIB, A, &held));
    refused_by_any_limit(3 * GIB + 256 * MIB, "limit: the limit of 1GiB, of which ");
    OK(weir_free(other, held, A));
    CU(driver->cuCtxSynchronize());
    oom_report_now();
    expect_setting(0, "limit", "3328MiB");
    end_reporter();
    OK(weir_allocator_destroy(other));
    if (worlds[_i].kind == KIND_DIRECT)
        return;
    options.limit = bytes_amount(3 * GIB); /* this allocator has idle memory */
    make_reporter();
    OK(weir_preallocate(a, GIB, NULL));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 3 * GIB + 256 * MIB, A, &held));
    oom_report_now();
    expect_setting(0, "limit", "3328MiB");
}

/* A whole idle piece serves a request above the limit.  Idle pieces do not serve one. */
TEST_EACH(WORLDS, whole_idle_pieces_serve_above_the_limit) {
    if (is(_i, KIND_FIXED) || is(_i, KIND_MAPPED))
        return; /* no growth, or pieces are joined */
    make_for(_i, 0, "");
    for (int i = 0; i < 8; i++)
        add_block(40 * MIB, A);
    free_every(0, 2, A);
    CU(driver->cuCtxSynchronize());
    if (is(_i, KIND_REGIONS)) {
        OK(weir_set_limit(a, bytes_amount(144 * MIB)));
        REFUSED(FRAGMENTED, 144 * MIB, A); /* allowed by the limit */
    }
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    refused_by_the_program(144 * MIB, NULL);
}

/* A limit that the program sets replaces a share. */
TEST_WHERE(0, WORLDS, has_growth, a_set_limit_replaces_a_share) {
    options = report_options(_i, 0);
    options.limit = (weir_amount){.value = 2000000, .kind = WEIR_AMOUNT_SHARE};
    make_reporter();
    REFUSED(TOO_LARGE, 5 * GIB, A);
    MUST_EQ(v.is_share, 1);
    MUST_EQ(v.weight, 2000000);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    refused_by_the_program(200 * MIB, NULL);
    MUST_EQ(v.weight, 0);
    OK(weir_set_limit(a, bytes_amount(v.set_limit)));
    add_block(200 * MIB, A);
}
