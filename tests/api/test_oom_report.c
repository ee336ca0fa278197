/* SPDX-License-Identifier: MIT */
/* test_oom_report.c: the cause of a failed request, on the device model, on every engine.
 *
 * Each test produces the cause of its name, and tries the setting that the report names first, with which the request
 * must succeed.  If several causes hold, the report names the first one in the header's order.  This file tests the
 * rest of a report, such as live blocks by size and stream, also without host memory, and where reports go. */
#include "test_oom_report.h"

#include <sys/resource.h>

#include "tests/fixtures/deny.h"
#include "api/drop_in.h"

/* ---- live blocks ----------------------------------------------------------------------------- */

static void expect_group(uint32_t at, size_t bytes, uint64_t count, uint64_t stream) {
    MUST(at < v.group_count);
    MUST_EQ(v.groups[at].bytes, bytes);
    MUST_EQ(v.groups[at].blocks, count);
    MUST_EQ(v.groups[at].total, bytes * count);
    MUST_EQ(v.groups[at].stream, stream);
}

CASE("report", 60, start_report_device, end_reporter_if_there);

TEST_EACH(WORLDS, live_blocks_are_grouped_by_size_and_stream) {
    int cache = worlds[_i].cache == WEIR_SWITCH_ON;
    uint64_t of_a = cache ? id_of(A) : 0, of_b = cache ? id_of(B) : 0;

    make_for(_i, 256 * MIB, "");
    for (int i = 0; i < 100; i++) { /* gives streams caches, and leaves free slabs */
        void *gone[2];

        OK(weir_alloc(a, 40000, A, &gone[0]));
        OK(weir_alloc(a, 50000, B, &gone[1]));
        OK(weir_free(a, gone[0], A));
        OK(weir_free(a, gone[1], B));
    }
    for (int i = 0; i < 6; i++)
        add_block(20 * MIB, A);
    for (int i = 0; i < 3; i++)
        add_block(8 * MIB, B);
    for (int i = 0; i < 4; i++)
        add_block(3 * MIB, A);
    for (int i = 0; i < 10; i++)
        add_block(300 * KIB, A);
    for (int i = 0; i < 10; i++)
        add_block(100 * KIB, B);
    add_block(777, B);
    add_block(5 * MIB, A);
    OK(weir_free(a, block[--blocks], A)); /* a free block is in no group */
    REFUSED(LIMIT, 250 * MIB, A);
    if (is_bare(_i, KIND_POOL)) {
        MUST_EQ(v.group_count, 0);
        end_reporter();
        return;
    }
    MUST_EQ(v.group_count, 5);
    expect_group(0, 20 * MIB, 6, of_a);
    expect_group(1, 8 * MIB, 3, of_b);
    expect_group(2, 3 * MIB, 4, of_a);
    expect_group(3, 300 * KIB, 10, of_a);
    expect_group(4, 100 * KIB, 10, of_b);
    MUST_EQ(v.ungrouped, 0);
}

/* Blocks of one size are grouped by stream.  Of two groups with equal totals, that of larger blocks is first. */
TEST_EACH(WORLDS, streams_tell_groups_apart) {
    if (worlds[_i].cache == WEIR_SWITCH_OFF)
        return;
    make_for(_i, 256 * MIB, "");
    add_block(20 * MIB, A);
    add_block(100 * KIB, B);
    OK(weir_free(a, block[--blocks], B)); /* a whole block, and not live any more */
    add_block(20 * MIB, B);
    add_block(20 * MIB, B);
    add_block(10 * MIB, A);
    add_block(10 * MIB, A);
    REFUSED(LIMIT, 250 * MIB, C);
    MUST_EQ(v.group_count, 3);
    expect_group(0, 20 * MIB, 2, id_of(B));
    expect_group(1, 20 * MIB, 1, id_of(A));
    expect_group(2, 10 * MIB, 2, id_of(A));
}

/* Small blocks of an ended stream have no stream once its handle is another stream's.  Memory that the stream freed
 * waits for the device. */
TEST_EACH(WORLDS, blocks_outlive_their_stream) {
    CUstream stream, next;
    uint32_t at = 0;

    if (worlds[_i].cache == WEIR_SWITCH_OFF)
        return;
    make_for(_i, 256 * MIB, "recovery-timeout=0");
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    add_block(3000, stream);
    add_block(300 * KIB, stream);
    OK(weir_free(a, block[--blocks], stream));
    REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.group_count, 1);
    expect_group(0, 3000, 1, id_of(stream));
    CU(driver->cuStreamDestroy(stream));
    CU(driver->cuStreamCreate(&next, CU_STREAM_NON_BLOCKING));
    MUST(next == stream);
    add_block(5000, next);
    REFUSED(LIMIT, 300 * MIB, A);
    MUST_EQ(v.group_count, 2);
    expect_group(0, 5000, 1, id_of(next));
    expect_group(1, 3000, 1, 0);
    if (is(_i, KIND_POOL))
        return; /* the driver does not tell what is pending */
    while (at < v.pending_streams && v.pending_by[at].stream != 0)
        at++;
    MUST(at < v.pending_streams);
    MUST_LE(300 * KIB, v.pending_by[at].bytes);
}

#ifdef CAN_REFUSE_HOST_MEMORY
static void oom_report_without_host_memory(void) {
    refuse_in = 1;
    refuse_for_good = 1;
    EXPECT(WEIR_OK, weir_last_oom_report(a, &v));
    refuse_in = 0;
    refuse_for_good = 0;
}

/* Without host memory the report groups only the sizes that fit into a small table. */
TEST_EACH(WORLDS, a_report_without_host_memory_groups_fewer_sizes) {
    enum { PLACES = 48 };
    weir_oom_report with;
    uint64_t told = 0;

    if (is_bare(_i, KIND_POOL))
        return;
    make_for(_i, 256 * MIB, "");
    for (int i = 0; i < MOST; i++)
        add_block((size_t)(i + 1) * 4096, A);
    REFUSED(LIMIT, 255 * MIB, A);
    with = v;
    MUST_EQ(with.ungrouped, 0);
    oom_report_without_host_memory();
    MUST_EQ(v.cause, with.cause);
    MUST_EQ(v.largest, with.largest);
    MUST_LE(1, v.ungrouped);
    MUST_EQ(v.group_count, 5);
    for (uint32_t i = 0; i < v.group_count; i++)
        told += v.groups[i].total;
    MUST_LE(told + v.ungrouped, (uint64_t)MOST * (MOST + 1) / 2 * 4096);
    while (blocks > PLACES)
        OK(weir_free(a, block[--blocks], A));
    oom_report_without_host_memory();
    MUST_EQ(v.ungrouped, 0);
    add_block((PLACES + 1) * 4096, A);
    oom_report_without_host_memory();
    MUST_LE(1, v.ungrouped);
}

/* A small table does not join blocks of one size on several streams either. */
TEST_EACH(WORLDS, without_host_memory_streams_are_apart) {
    enum { STREAMS = 40 };

    if (worlds[_i].cache == WEIR_SWITCH_OFF)
        return;
    make_for(_i, 256 * MIB, "");
    for (int i = 0; i < STREAMS; i++) {
        CUstream stream;

        for (int skip = i * i % 5; skip >= 0; skip--) /* leaves gaps between ids */
            CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        add_block(MIB, stream);
    }
    REFUSED(LIMIT, 255 * MIB, A);
    oom_report_without_host_memory();
    MUST_EQ(v.ungrouped, 0);
    MUST_EQ(v.group_count, WEIR_OOM_REPORT_GROUPS);
    for (uint32_t i = 0; i < v.group_count; i++) {
        MUST_EQ(v.groups[i].blocks, 1);
        MUST(i == 0 || v.groups[i - 1].stream < v.groups[i].stream);
    }
}
#endif

/* ---- the call -------------------------------------------------------------------------------- */

TEST_EACH(WORLDS, wrong_queries_of_the_report_are_refused) {
    struct {
        size_t size;
        weir_status status;
        int cause;
    } less = {.size = sizeof less, .cause = 77};
    weir_allocator *other;

    make_for(_i, 256 * MIB, "");
    EXPECT(WEIR_E_INVALID, weir_last_oom_report(a, &v)); /* no request has failed */
    REFUSED(LIMIT, 300 * MIB, A);
    EXPECT(WEIR_E_INVALID, weir_last_oom_report(NULL, &v));
    EXPECT(WEIR_E_INVALID, weir_last_oom_report(a, NULL));
    v.size = 0;
    EXPECT(WEIR_E_INVALID, weir_last_oom_report(a, &v));
    v.size = sizeof v.size;
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.size, sizeof v.size);
    OK(weir_last_oom_report(a, (weir_oom_report *)(void *)&less));
    MUST_EQ(less.size, sizeof less);
    MUST_EQ(less.cause, WEIR_OOM_REPORT_LIMIT);
    options.limit = bytes_amount(64 * MIB);
    OK(weir_allocator_create(&options, &other));
    v.size = sizeof v;
    EXPECT(WEIR_E_INVALID, weir_last_oom_report(other, &v)); /* the other one has no failure */
    OK(weir_allocator_destroy(other));
    weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 1);
    EXPECT(WEIR_E_DEVICE_LOST, weir_last_oom_report(a, &v));
    weir__slow_path_set(&a->device.slow_path, WEIR_SLOW_PATH_LOST, 0);
}

/* A new allocator may get the host address of a destroyed one, though not every time. */
TEST(the_next_at_an_address_has_refused_nothing) {
    int any = 0;

    options = report_options(0, 256 * MIB);
    for (int i = 0; i < 20 && !any; i++) {
        weir_allocator *gone;

        make_reporter();
        REFUSED(LIMIT, 300 * MIB, A);
        gone = a;
        end_reporter();
        make_reporter();
        any = a == gone;
        if (any)
            EXPECT(WEIR_E_INVALID, weir_last_oom_report(a, &v));
        end_reporter();
    }
    if (!any)
        printf("# no address came again\n");
}

/* Figures that the driver does not report are unknown.  The cause follows from the other figures. */
TEST_EACH(WORLDS, figures_without_an_answer_are_unknown) {
    make_for(_i, 256 * MIB, "");
    add_block(200 * MIB, A);
    REFUSED(LIMIT, 300 * MIB, A);
    oom_report_without(WEIR_ENTRY_cuMemGetInfo);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    MUST_EQ(v.device_free, UINT64_MAX);
    MUST_EQ(v.others, UINT64_MAX);
    expect_json("\"device_free\":null,");
    expect_json("\"others\":null");
    oom_report_without(WEIR_ENTRY_cuDeviceGetGraphMemAttribute);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    MUST_EQ(v.graphs, 0);
    oom_report_without(WEIR_ENTRY_cuCtxPushCurrent);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    MUST_EQ(v.graphs, 0);
    MUST_EQ(weir_last_driver_result(), 0); /* still the limit's refusal */
}

/* A child of fork cannot query the report. */
TEST_EACH(WORLDS, a_forked_child_gets_no_report) {
    make_for(_i, 256 * MIB, "");
    REFUSED(LIMIT, 300 * MIB, A);
    if (is_forked_child())
        _exit(weir_last_oom_report(a, &v) == WEIR_E_FORKED ? 0 : 1);
    oom_report_now();
}

/* ---- at work beside other threads ------------------------------------------------------------ */

static atomic_int others_go_on;

static void *churn_while_others_go_on(void *stream) {
    uint64_t seed = id_of(stream);
    void *held[16] = {0};

    while (atomic_load(&others_go_on)) {
        int at = (int)(next_random(&seed) % 16);

        if (held[at]) {
            OK(weir_free(a, held[at], stream));
            held[at] = NULL;
        } else if (!is_out_of_memory(
                       weir_alloc(a, random_size(&seed, 2 * MIB), stream, &held[at]))) {
            MUST(held[at] != NULL);
        }
    }
    for (int i = 0; i < 16; i++)
        OK(weir_free(a, held[i], stream));
    return NULL;
}

/* The report is made while other threads change the figures.  Each figure in it was true at some time. */
TEST_EACH(WORLDS, a_report_is_right_while_other_threads_work) {
    pthread_t thread[2];
    void *none = NULL;

    make_for(_i, 256 * MIB, "recovery-timeout=0");
    atomic_store(&others_go_on, 1);
    MUST(pthread_create(&thread[0], NULL, churn_while_others_go_on, B) == 0);
    MUST(pthread_create(&thread[1], NULL, churn_while_others_go_on, C) == 0);
    for (int i = 0; i < 100; i++) {
        MUST(is_out_of_memory(weir_alloc(a, 300 * MIB, A, &none)));
        OK(weir_last_oom_report(a, &v));
        MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
        MUST_LE(v.reserved, 256 * MIB);
        for (uint32_t g = 0; g < v.group_count; g++) {
            MUST_LE(v.groups[g].bytes, 2 * MIB);
            MUST_LE(v.groups[g].blocks, 32);
            MUST(v.groups[g].stream != id_of(A));
        }
    }
    atomic_store(&others_go_on, 0);
    MUST(pthread_join(thread[0], NULL) == 0);
    MUST(pthread_join(thread[1], NULL) == 0);
}

/* ---- reports without a query ----------------------------------------------------------------- */

static char told_path[] = "/tmp/weir-oom-report-XXXXXX.json";

static void start_telling(void) {
    int file;

    snprintf(told_path, sizeof told_path, "/tmp/weir-oom-report-XXXXXX.json");
    file = mkstemps(told_path, 5);
    MUST(file >= 0 && close(file) == 0);
    options.oom_report = told_path;
}

/* Returns the number of lines in the file.  Checks that all lines report that cause. */
static int count_reports(const char *cause) {
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

static void expect_request(size_t bytes, int served) {
    void *found = NULL;
    weir_status status = weir_alloc(a, bytes, A, &found);

    MUST(served ? status == WEIR_OK : is_out_of_memory(status));
    if (found)
        OK(weir_free(a, found, A));
}

#ifdef CAN_REFUSE_HOST_MEMORY
/* Without host memory for the file's name, the allocator is not created. */
TEST(no_allocator_is_made_without_memory_for_the_name) {
    options = report_options(_i, 256 * MIB);
    start_telling();
    for (uint64_t k = 1; k < 3; k++) {
        refuse_in = k;
        a = NULL;
        EXPECT(WEIR_E_HOST_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
        refuse_in = 0;
        MUST(a == NULL);
    }
    make_reporter();
    expect_request(300 * MIB, 0);
    MUST_EQ(count_reports("limit"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}
#endif

TEST_EACH(WORLDS, the_first_of_each_cause_is_told) {
    options = report_options(_i, 256 * MIB);
    start_telling();
    make_reporter();
    memset(told_path, 0, 0); /* weir has copied the name */
    expect_request(100 * MIB, 1);
    MUST_EQ(count_reports("limit"), 0);
    expect_request(300 * MIB, 0);
    MUST_EQ(count_reports("limit"), 1);
    expect_request(301 * MIB, 0);
    MUST_EQ(count_reports("limit"), 1);
    MUST(truncate(told_path, 0) == 0);
    expect_request(5 * GIB, 0);
    MUST_EQ(count_reports("too-large"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}

static int frees_one(const weir_oom *oom, void *data) {
    (void)data;
    if (blocks == 0)
        return 0;
    OK(weir_free(a, block[--blocks], oom->stream));
    return 1;
}

/* A request that the callback rescues is not reported.  One that fails in the end is reported once. */
TEST_EACH(WORLDS, a_callback_is_asked_before) {
    options = report_options(_i, 256 * MIB);
    start_telling();
    options.oom_callback = frees_one;
    options.recovery_timeout_ms = 1;
    if (_i % 2)
        options.harden = WEIR_HARDEN_GUARD;
    make_reporter();
    for (int i = 0; i < 10; i++)
        add_block(20 * MIB, A);
    expect_request(100 * MIB, 1);
    MUST_EQ(count_reports("limit"), 0);
    MUST_LE(blocks, 9);
    expect_request(300 * MIB, 0);
    MUST_EQ(blocks, 0);
    MUST_EQ(count_reports("limit"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}

/* A drop-in allocator reports a failure itself, after the driver has refused the request as well. */
TEST_EACH(WORLDS, a_stand_in_tells_by_itself) {
    options = report_options(_i, 256 * MIB);
    start_telling();
    if (_i % 2)
        options.harden = WEIR_HARDEN_GUARD;
    make_reporter();
    MUST(!weir__oom_report_new(a, &v)); /* no request has failed */
    weir__drop_in_begin(a, NULL);
    expect_request(300 * MIB, 0);
    MUST_EQ(count_reports("limit"), 0);
    MUST(weir__oom_report_new(a, &v));
    MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    MUST_EQ(count_reports("limit"), 1);
    MUST(!weir__oom_report_new(a, &v)); /* no new failure */
    MUST_EQ(count_reports("limit"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}

/* weir does not examine every failure of a program that repeats its request. */
TEST_EACH(WORLDS, not_all_of_them_are_looked_at) {
    options = report_options(_i, 256 * MIB);
    start_telling();
    make_reporter();
    for (int i = 0; i < 64; i++)
        expect_request(300 * MIB, 0);
    expect_request(5 * GIB, 0); /* another cause, but too late */
    MUST_EQ(count_reports("limit"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}

/* Queries the report in the callback. */
static int judges(const weir_oom *oom, void *data) {
    weir_oom_report *judged = data;

    judged->size = sizeof *judged;
    OK(weir_last_oom_report(oom->allocator, judged));
    return 0;
}

TEST_EACH(WORLDS, a_callback_may_ask) {
    options = report_options(_i, 256 * MIB);
    options.oom_callback = judges;
    options.oom_callback_data = &v;
    make_reporter();
    expect_request(300 * MIB, 0);
    MUST_EQ(v.cause, WEIR_OOM_REPORT_LIMIT);
    MUST_EQ(v.asked, 300 * MIB);
}

/* A report of a graph's request makes no call on its stream, and the capture goes on. */
TEST_EACH(WORLDS, a_report_under_capture_leaves_the_capture_intact) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    void *none = NULL;

    options = report_options(_i, 0);
    start_telling();
    make_reporter();
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, 8 * GIB, A, &none));
    OK(weir_last_oom_report(a, &v));
    MUST_EQ(v.cause, WEIR_OOM_REPORT_TOO_LARGE);
    MUST_EQ(v.stream, 0);
    MUST_EQ(v.largest, 0);
    CU(driver->cuStreamIsCapturing(A, &status));
    MUST(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    drop_capture(A);
    MUST_EQ(count_reports("too-large"), 1);
    end_reporter();
    MUST(unlink(told_path) == 0);
}

static CUgraph end_capture_on_a(void) {
    CUgraph graph;

    CU(driver->cuStreamEndCapture(A, &graph));
    return graph;
}

/* Checks the report of a captured request that the driver or the limit of its pool refuses. */
static void refused_to_a_graph(size_t bytes, weir_status status, const char *advice) {
    void *none;

    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (status == WEIR_E_NO_MEMORY)
        weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT(status, weir_alloc(a, bytes, A, &none));
    oom_report_now();
    check_lines();
    expect_text(advice);
    expect_none();
    CU(driver->cuGraphDestroy(end_capture_on_a()));
}

/* A graph cannot use idle reserved memory, so that the report advises a trim first.  Live blocks cannot be trimmed. */
TEST_WHERE(0, WORLDS, keeps_idle, a_trim_is_advised_before_a_capture) {
    make_for(_i, is(_i, KIND_FIXED) ? 3584 * MIB : 0, "");
    OK(weir_preallocate(a, 3584 * MIB, NULL));
    refused_to_a_graph(
        GIB, WEIR_E_NO_MEMORY,
        "\n  Trim before the capture (weir_trim), or use a smaller --prealloc or --limit.\n");
    MUST_EQ(v.cause, WEIR_OOM_REPORT_RESERVE);
    MUST_EQ(v.idle, 3584 * MIB);
    add_block(3 * GIB, B);
    refused_to_a_graph(1536 * MIB, WEIR_E_NO_MEMORY,
                       "\n  Request less, or free live blocks first: no setting makes room.\n");
    MUST_EQ(v.cause, WEIR_OOM_REPORT_IN_USE);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Checks the beginning and the end of a file, and removes it. */
static void expect_file(const char *path, const char *begins, char ends) {
    char text[4096];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;

    MUST(file && fclose(file) == 0 && unlink(path) == 0 && bytes > 0);
    text[bytes] = '\0';
    MUST(strncmp(text, begins, strlen(begins)) == 0 && text[bytes - 1] == ends);
}

/* The allocator is created in spite of the bad path, and failures are reported. */
TEST(a_place_that_cannot_be_is_said) {
    char said[] = "/tmp/weir-said-XXXXXX";
    int error = dup(STDERR_FILENO), file = mkstemp(said);

    options = report_options(0, 256 * MIB);
    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO && close(file) == 0);
    options.log = WEIR_LOG_ERROR; /* errors alone hide the warning */
    options.oom_report = "/nonexistent/another";
    make_reporter();
    end_reporter();
    options.log = WEIR_LOG_DEFAULT;
    options.oom_report = "/nonexistent/file";
    make_reporter();
    end_reporter();
    make_reporter(); /* logs no further warning */
    end_reporter();
    MUST(dup2(error, STDERR_FILENO) == STDERR_FILENO && close(error) == 0);
    expect_file(
        said,
        "weir: warning: oom-report '/nonexistent/file': No such file or directory; expected "
        "stderr, off or a file that can be written: OOM reports go to standard error until then\n",
        '\n');
}

TEST(the_report_is_written_to_its_place) {
    char path[] = "/tmp/weir-told-XXXXXX", json[48], said[48];
    int error = dup(STDERR_FILENO), file = mkstemp(path);

    MUST(file >= 0 && close(file) == 0);
    snprintf(json, sizeof json, "%s.json", path);
    snprintf(said, sizeof said, "%s.said", path);
    weir__oom_report_write(&some, path);
    expect_file(path, "weir: ", '\n');
    weir__oom_report_write(&some, json);
    expect_file(json, "{\"cause\"", '\n');
    for (int i = 0; i < 3; i++) { /* standard error, a bad path, and an interrupted write */
        file = open(said, O_CREAT | O_RDWR | O_TRUNC, 0600);
        MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO && close(file) == 0);
#ifdef CAN_DENY
        deny("write", i == 2, 0, EINTR);
#endif
        weir__oom_report_write(&some, i == 1 ? "/nonexistent/file" : "stderr");
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
    deny("write", 1, 0, EIO); /* the report is lost */
    weir__oom_report_write(&some, "stderr");
    MUST_EQ(deny_none(), 1);
#endif
    MUST_EQ(weir__oom_report_problem("off"), 0);
    MUST_EQ(weir__oom_report_problem("stderr"), 0);
    MUST_EQ(weir__oom_report_problem(said + strlen("/tmp/")), 0); /* a file that could be created */
    MUST_EQ(weir__oom_report_problem("/abcd"), access("/", W_OK) == 0 ? 0 : EACCES);
    MUST_EQ(weir__oom_report_problem("/nonexistent/file"), ENOENT);
    MUST_EQ(weir__oom_report_problem("/tmp"), EISDIR);
    MUST_EQ(weir__oom_report_problem("/dev/null"), 0);
    weir__oom_report_write(&some, "abcd"); /* shorter than the ending of a name */
    expect_file("abcd", "weir: ", '\n');
}

/* If a file takes no report, or only its beginning, the report goes to standard error with the reason. */
TEST(a_full_file_sends_the_report_to_standard_error) {
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
        weir__oom_report_write(&some, to[i]);
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

SUITE("oom-report", CK_FORK_GETENV);
