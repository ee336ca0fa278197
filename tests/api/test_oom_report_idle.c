/* SPDX-License-Identifier: MIT */
/* test_oom_report_idle.c: idle memory would serve these requests, if it were in one piece or waited for no stream. */
#include "test_oom_report.h"

static void make_gaps(void) {
    while (weir_alloc(a, 10 * MIB, A, &block[blocks]) == WEIR_OK)
        MUST(++blocks < MOST);
    free_every(0, 2, A);
    CU(driver->cuCtxSynchronize());
}

CASE("idle", 60, start_report_device, end_reporter_if_there);

TEST_EACH(WORLDS, what_is_idle_lies_in_pieces) {
    if (is(_i, KIND_DIRECT))
        return; /* nothing is ever idle */
    make_for(_i, 256 * MIB, "");
    make_gaps();
    if (is(_i, KIND_MAPPED)) { /* it joins them itself */
        add_block(56 * MIB, A);
        return;
    }
    REFUSED(FRAGMENTED, 56 * MIB, A);
    MUST_LE(56 * MIB, v.idle + v.limit - v.reserved);
    if (is(_i, KIND_POOL)) {
        MUST_EQ(v.largest_free_block, UINT64_MAX);
        MUST_EQ(v.pending, UINT64_MAX);
        expect_only("engine", "mapped");
        make_as_told();
        make_gaps();
        add_block(56 * MIB, A);
        return;
    }
    MUST_LE(10 * MIB, v.largest_free_block);
    MUST_LE(v.largest_free_block, 56 * MIB - 1);
    MUST_EQ(v.pending, 0);
    expect_only("engine", "mapped");
    make_as_told();
    make_gaps();
    add_block(56 * MIB, A);
}

static void make_small_gaps(size_t limit, size_t bytes) {
    while (stats_of(a).in_use + bytes <= limit)
        add_block(bytes, A);
    free_every(0, 2, A);
    CU(driver->cuCtxSynchronize());
}

/* The idle pieces have no whole page to put together, but the device has more memory. */
TEST_EACH(WORLDS, what_is_idle_lies_in_small_pieces) {
    const size_t bytes = 400 * KIB, limit = 2 * MIB;
    CUdeviceptr others;

    if (is(_i, KIND_DIRECT) || is(_i, KIND_POOL))
        return; /* the pieces are not known */
    make_for(_i, limit, "");
    make_small_gaps(limit, bytes);
    REFUSED(FRAGMENTED, 2 * bytes, A);
    MUST_LE(1, v.largest_free_block);
    expect_only("limit", "4MiB");
    CU(driver->cuMemAlloc(&others, device_free())); /* the device has no more memory */
    REFUSED(FRAGMENTED, 2 * bytes, A);
    if (is(_i, KIND_MAPPED))
        expect_none();
    else
        expect_only("engine", "mapped");
    CU(driver->cuMemFree(others));
    REFUSED(FRAGMENTED, 2 * bytes, A);
    make_as_told();
    make_small_gaps(limit, bytes);
    add_block(2 * bytes, A);
}

/* A pool cannot report its largest idle piece, but the memory serves. */
TEST_WHERE(0, WORLDS, keeps_idle, what_is_idle_lies_in_one_piece) {
    options = report_options(_i, 512 * MIB);
    if (!is(_i, KIND_FIXED))
        options.prealloc = bytes_amount(512 * MIB);
    make_reporter();
    REFUSED(LIMIT, 600 * MIB, A);
    MUST_LE(480 * MIB, v.largest_free_block);
    if (is(_i, KIND_POOL)) {
        MUST_EQ(v.largest_free_block, UINT64_MAX);
        expect_text(" limit,\n  device has ");
        expect_json(",\"largest_free_block\":null,");
    }
    add_block(480 * MIB, A);
}

/* Drivers without ids have no caches, and drivers without virtual memory have no mapped arena. */
TEST_EACH(WORLDS, older_drivers_get_other_advice) {
    struct weir_driver table = *driver;

    options = report_options(_i, 256 * MIB);
    if (!is_bare(_i, KIND_POOL) && !is_bare(_i, KIND_REGIONS))
        return;
    table.capabilities &=
        ~(unsigned)(is(_i, KIND_POOL) ? WEIR_CAP_STREAM_ID : WEIR_CAP_STREAM_ID | WEIR_CAP_VIRTUAL);
    OK(weir__allocator_create_on(&table, &options, &a, NULL, 0));
    make_gaps();
    oom_report_of_failure(56 * MIB);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_FRAGMENTED);
    if (is(_i, KIND_POOL)) {
        expect_only("engine", "mapped");
    } else {
        expect_setting(0, "limit", NULL); /* no other setting would help */
    }
    end_reporter(); /* needs the driver's table */
}

static void make_on_old(struct weir_driver *table) {
    *table = *driver;
    table->capabilities &= ~(unsigned)(WEIR_CAP_STREAM_ID | WEIR_CAP_VIRTUAL);
    OK(weir__allocator_create_on(table, &options, &a, NULL, 0));
}

/* Only a higher limit would help, for which the device has no room. */
TEST_EACH(WORLDS, no_limit_would_do) {
    struct weir_driver table;
    CUdeviceptr others;

    options = report_options(_i, 250 * MIB);
    if (!is_bare(_i, KIND_REGIONS))
        return;
    make_on_old(&table);
    make_gaps();
    CU(driver->cuMemAlloc(&others, device_free() - 32 * MIB));
    oom_report_of_failure(110 * MIB);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_FRAGMENTED);
    MUST_LE(v.device_free, 110 * MIB - 1);
    expect_none();
    CU(driver->cuMemFree(others));
    oom_report_of_failure(110 * MIB);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_FRAGMENTED);
    expect_setting(0, "limit", NULL);
    MUST_EQ(v.set_limit, 0);
    OK(weir_set_limit(a, bytes_amount(249 * MIB)));
    oom_report_of_failure(110 * MIB);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_FRAGMENTED);
    expect_setting(0, "limit", NULL);
    MUST_LE(300 * MIB, v.set_limit);
    end_reporter(); /* needs the driver's table */
}

/* No limit is set.  The device has room for the request, but not for the growth steps of its pool. */
TEST_EACH(WORLDS, no_limit_is_told_where_none_forbids_it) {
    CUdeviceptr others;

    if (!is(_i, KIND_POOL) || is_bare(_i, KIND_POOL))
        return;
    make_for(_i, 0, "");
    make_small_gaps(32 * MIB, 1100 * KIB);
    MUST_EQ(stats_of(a).reserved, 32 * MIB);
    CU(driver->cuMemAlloc(&others, device_free() - 34 * MIB));
    oom_report_of_failure(34 * MIB);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_FRAGMENTED);
    MUST_LE(34 * MIB, v.device_free);
    expect_only("engine", "mapped");
    CU(driver->cuMemFree(others));
}

/* A graph cannot use idle memory.  The driver refuses the request, for which the limit has room. */
TEST_WHERE(0, WORLDS, world_is_mapped, no_limit_is_in_the_way) {
    void *none = NULL;

    make_for(_i, GIB, "");
    OK(weir_preallocate(a, 64 * MIB, NULL));
    add_block(8 * MIB, A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_RELAXED));
    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 48 * MIB, A, &none));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.cause, WEIR_OOM_REPORT_DRIVER);
    expect_none();
    weir__model_faults_clear();
    drop_capture(A);
}

TEST_WHERE(0, WORLDS, has_order, what_is_idle_waits_for_a_stream) {
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    fill_and_free_behind_work();
    REFUSED(PENDING, 160 * MIB, A);
    MUST_LE(96 * MIB, v.pending);
    MUST_EQ(v.pending_streams, 1);
    MUST_EQ(v.pending_by[0].stream, id_of(B));
    MUST_EQ(v.pending_by[0].bytes, v.pending);
    expect_setting(0, "recovery-timeout", "1s");
    make_as_told();
    fill_and_free_behind_work();
    add_block(160 * MIB, A);
}

/* The pending memory would serve in one piece, even a request above a limit that was set since. */
TEST_EACH(WORLDS, more_than_a_limit_waits_for_a_stream) {
    if (!is_bare(_i, KIND_MAPPED))
        return; /* other worlds cannot serve that size, or free regions */
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    fill_and_free_behind_work();
    OK(weir_set_limit(a, bytes_amount(96 * MIB)));
    REFUSED(PENDING, 192 * MIB, A); /* all pending memory */
    make_as_told();
    fill_and_free_behind_work();
    OK(weir_set_limit(a, bytes_amount(96 * MIB)));
    add_block(192 * MIB, A);
}

/* The request has waited as long as it may.  A longer wait, or internal dependencies, would help. */
TEST_EACH(WORLDS, a_longer_wait_is_advised_if_it_would_help) {
    options = report_options(_i, 256 * MIB);
    if (!is(_i, KIND_FIXED))
        return; /* a trim that waits leaves nothing pending */
    for (int on = 0; on < 2; on++) {
        options.internal_dependencies = on ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
        options.recovery_timeout_ms = on ? 700 : 20;
        make_reporter();
        add_block(KIB, A);
        for (int i = 0; i < 12; i++)
            add_block(16 * MIB, B);
        busy(B, 2000 * MS);
        if (on) { /* noted uses of a second stream */
            for (int i = 1; i <= 12; i++)
                OK(weir_use(a, block[i], C));
            busy(C, 4000 * MS);
        }
        for (int i = 1; i <= 12; i++)
            OK(weir_free(a, block[i], B));
        blocks = 1;
        REFUSED(PENDING, 160 * MIB, A);
        expect_setting(0, "recovery-timeout", on ? "2s" : "1s");
        end_reporter();
    }
}

/* Live blocks keep the pieces apart.  Pending pieces are the cause only if the complete ones are not enough. */
TEST_EACH(WORLDS * 2, pending_pieces_are_the_cause_if_complete_ones_do_not_suffice) {
    int world = _i / 2, most = _i % 2;
    void *live[MOST];
    int count = 0;

    if (is(world, KIND_DIRECT) || is(world, KIND_POOL) || (is(world, KIND_MAPPED) && !most))
        return; /* engine mapped joins the pieces that have completed */
    make_for(world, 256 * MIB, "recovery-timeout=0");
    add_block(KIB, A);
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
    refused_for(__LINE__, most ? WEIR_OOM_REPORT_PENDING : WEIR_OOM_REPORT_FRAGMENTED, 56 * MIB, A);
    for (int i = 1; i < count; i += 2)
        OK(weir_free(a, live[i], B));
}

/* The stream with the most pending bytes is listed first.  Memory that several streams use has no stream. */
TEST_EACH(WORLDS, what_is_idle_waits_for_several) {
    if (is(_i, KIND_DIRECT) || is(_i, KIND_POOL) || !is_roomy())
        return; /* with few addresses a mapped arena places blocks elsewhere */
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    add_block(30 * MIB, B);
    add_block(60 * MIB, C);
    add_block(60 * MIB, C);
    add_block(32 * MIB, B);
    busy(B, 200 * MS);
    busy(C, 200 * MS);
    OK(weir_free(a, block[0], B));
    OK(weir_free(a, block[1], C));
    OK(weir_free(a, block[2], C));
    OK(weir_use(a, block[3], C));
    OK(weir_free(a, block[3], B));
    blocks = 0;
    add_block(MIB, A);
    REFUSED(PENDING, 150 * MIB, A);
    MUST_EQ(v.group_count, 1); /* pending blocks are not live */
    MUST_EQ(v.groups[0].total, MIB);
    MUST_EQ(v.pending_streams, 3);
    MUST_EQ(v.pending_by[0].stream, id_of(C));
    MUST_LE(120 * MIB, v.pending_by[0].bytes);
    MUST_EQ(v.pending_by[1].stream, 0);
    MUST_LE(32 * MIB, v.pending_by[1].bytes);
    MUST_EQ(v.pending_by[2].stream, id_of(B));
    MUST_LE(30 * MIB, v.pending_by[2].bytes);
}

/* If more streams are pending than the report can list, it lists those with most bytes. */
TEST_EACH(WORLDS, what_is_idle_waits_for_many) {
    enum { STREAMS = WEIR_OOM_REPORT_STREAMS + 2 };
    CUstream stream[STREAMS];

    if (is(_i, KIND_DIRECT) || is(_i, KIND_POOL))
        return;
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    for (int i = 0; i < STREAMS; i++) {
        CU(driver->cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        add_block((size_t)(16 + 8 * (i % 3)) * MIB, stream[i]); /* some sizes are equal */
        busy(stream[i], 200 * MS);
    }
    for (int i = 0; i < STREAMS; i++)
        OK(weir_free(a, block[i], stream[i]));
    blocks = 0;
    REFUSED(PENDING, 140 * MIB, A);
    MUST_EQ(v.pending_streams, WEIR_OOM_REPORT_STREAMS);
    for (int i = 1; i < WEIR_OOM_REPORT_STREAMS; i++)
        MUST_LE(v.pending_by[i].bytes, v.pending_by[i - 1].bytes);
    MUST_LE(24 * MIB, v.pending_by[WEIR_OOM_REPORT_STREAMS - 1].bytes);
}

/* Cached memory of other streams waits for those streams.  The stream's own cache waits for none. */
TEST_EACH(WORLDS, what_is_idle_is_its_own) {
    if (worlds[_i].cache == WEIR_SWITCH_OFF || is(_i, KIND_POOL))
        return;
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    for (int i = 0; i < 100; i++) {
        add_block(3000, A);
        add_block(3000, B);
        free_every(0, 2, A);
        free_every(1, 2, B);
        blocks = 0;
    }
    REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.pending_streams, 1);
    MUST_EQ(v.pending_by[0].stream, id_of(B));
}

/* Enough memory is idle, so that pending work is the cause, not fragmentation, the limit or the device. */
TEST_WHERE(0, WORLDS, has_order, the_nearest_cause_is_told) {
    CUdeviceptr others;

    make_for(_i, 256 * MIB, "recovery-timeout=0");
    CU(driver->cuMemAlloc(&others, 3 * GIB));
    fill_and_free_behind_work();
    REFUSED(PENDING, 160 * MIB, A); /* the limit is too low as well */
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    fill_to_the_limit();
    REFUSED(LIMIT, 2 * GIB, A); /* the device is too full as well */
    end_reporter();
    CU(driver->cuMemFree(others));
}

/* The report describes the state after a free. */
TEST_EACH(WORLDS, nothing_stands_in_its_way_any_more) {
    make_for(_i, 256 * MIB, "");
    fill_to_the_limit();
    REFUSED(LIMIT, 96 * MIB, A);
    free_every(0, 1, A);
    blocks = 0;
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    oom_report_now();
    MUST_EQ(v.cause, WEIR_OOM_REPORT_NONE);
    MUST_LE(96 * MIB, v.largest);
    MUST_EQ(v.asked, 96 * MIB);
    MUST_EQ(v.group_count, 0);
    expect_none();
}
