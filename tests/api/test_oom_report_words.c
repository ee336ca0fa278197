/* SPDX-License-Identifier: MIT */
/* test_oom_report_words.c: the text and the JSON of a report. */
#include "test_oom_report.h"

CASE("words", 60, start_report_device, end_reporter_if_there);

TEST_EACH(WORLDS, it_is_written) {
    char text[4096], json[4096], less[64];
    size_t length;

    make_for(_i, 256 * MIB, "");
    add_block(100 * MIB, A);
    REFUSED(LIMIT, 300 * MIB, A);
    length = weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, text, sizeof text);
    MUST(length > 0 && length < sizeof text && strlen(text) == length);
    MUST(text[length - 1] == '\n');
    for (char *line = text; *line; line += strcspn(line, "\n") + 1)
        MUST_LE(strcspn(line, "\n"), 79);
    ck_assert_ptr_eq(strstr(text, "weir: out of memory: could not allocate 300MiB on model:0\n"
                                  "  cause       limit: the limit of 256MiB, of which "),
                     text);
    MUST(strstr(text, " is in use\n  (reserved "));
    MUST(strstr(text, " of 256MiB limit,"));
    MUST(strstr(text, "GiB free).\n  Raise options.limit to ") && !strstr(text, "WEIR_LIMIT"));
    MUST(strstr(text, "cause       limit: the limit of 256MiB"));
    MUST(!strstr(text, "pending work") &&
         (v.group_count == 0 || strstr(text, " in 1 block of 100MiB, ")));
    MUST_EQ(weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, NULL, 0), length);
    MUST_EQ(weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, less, sizeof less), length);
    MUST_EQ(strlen(less), sizeof less - 1);
    MUST(strncmp(less, text, sizeof less - 1) == 0);
    length = weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_JSON, json, sizeof json);
    MUST(length > 0 && length < sizeof json && strlen(json) == length);
    MUST(strstr(json, "{\"cause\":\"limit\",") == json && json[length - 1] == '}');
    MUST(strstr(json, "\"asked\":314572800,") && strstr(json, "\"limit\":268435456,"));
    MUST(strstr(json, "\"try\":[{\"field\":\"options.limit\",\"value\":\""));
    MUST_EQ(weir_oom_report_text(&v, 2, text, sizeof text), 0);
    MUST_EQ(weir_oom_report_text(NULL, 0, text, sizeof text), 0);
    v.size = 8;
    MUST_EQ(weir_oom_report_text(&v, 0, text, sizeof text), 0);
    ck_assert_int_eq(setenv("WEIR_LIMIT", "256MiB", 1), 0); /* the options' own variable */
    oom_report_now();
    expect_text("GiB free).\n  Try --limit ");
    expect_text(" (WEIR_LIMIT=");
    expect_json("\"try\":[{\"flag\":\"--limit\",\"variable\":");
    ck_assert_int_eq(unsetenv("WEIR_LIMIT"), 0);
    ck_assert_str_eq(weir_oom_report_cause_word(WEIR_OOM_REPORT_IN_USE), "in-use");
    ck_assert_str_eq(weir_oom_report_cause_word(-1), "unknown");
    ck_assert_str_eq(weir_oom_report_cause_word(WEIR_OOM_REPORT_CAUSE_COUNT), "unknown");
}

TEST(each_cause_has_a_sentence) {
    v = some;
    v.cause = WEIR_OOM_REPORT_PENDING;
    v.asked = 2 << 20;
    v.pending = 1 << 20;
    expect_text("enough is idle, but 1MiB of it waits");
    v.asked++;
    expect_text("enough is idle or may be added, but 1MiB of it waits");
    v.cause = WEIR_OOM_REPORT_FRAGMENTED;
    v.largest_free_block = 0;
    expect_text("2MiB is idle, but only as padding of live blocks");
    v.largest_free_block = UINT64_MAX;
    expect_text("2MiB is idle, in pieces or behind other streams");
    v.largest_free_block = 1 << 20;
    v.limit = v.reserved + (9 << 20);
    v.device_free = 8 << 20;
    expect_text("2MiB is idle, but in pieces of 1MiB at most\n"
                "              with 8MiB that may be added it would be enough in one piece\n");
    v.device_free = UINT64_MAX;
    expect_text("with 9MiB that may be added it");
    v.asked = 2 << 20;
    expect_text("2MiB is idle, but in pieces of 1MiB at most\n");
    v.limit = some.limit;
    v.asked = some.asked;
    v.device_free = some.device_free;
    v.pending = some.pending;
    v.cause = WEIR_OOM_REPORT_LIMIT;
    expect_json("\"share\":null,");
    v.is_share = 1;
    v.limit = 1 << 30;
    expect_text(": limit share:0 is 1GiB now, of which ");
    v.weight = 1500000;
    expect_text(": limit share:1.5 is 1GiB now, of which ");
    expect_json("\"share\":1500000,");
    v.is_share = v.weight = 0;
    expect_json("\"limit_is_set\":false,");
    expect_json("\"set_limit\":null");
    v.limit_is_set = 1;
    v.set_limit = (uint64_t)5 << 28;
    expect_text(": the program's own limit of 1GiB; ");
    expect_text("\n  Call weir_set_limit with 1280MiB or more.\n");
    expect_json("\"try\":[],\"set_limit\":1342177280}");
    v.set_limit = 0;
    v.cause = WEIR_OOM_REPORT_RESERVE;
    v.status = WEIR_E_LIMIT;
    expect_text("or use a larger limit (weir_set_limit).\n");
    v.limit_is_set = 0;
    expect_text("or use a larger --limit.\n");
    v.status = WEIR_E_NO_MEMORY;
    v.cause = WEIR_OOM_REPORT_OTHERS;
    expect_text("other weir pools of this process have 5MiB of the device");
    v.others = 1 << 20;
    expect_text("other weir pools of this process have 5MiB of the device");
    expect_text("\n  Trim the other pools, or free their blocks: no setting makes room.\n");
    v.others = v.other_allocators;
    expect_text("the device has too little left, and others have 10MiB of it");
    expect_text("or end them (weir info --processes):\n");
    v.others = UINT64_MAX;
    expect_text("\n  Trim the other pools, or free their blocks");
    v.other_allocators = 0; /* no other pools to trim */
    expect_text("or end them (weir info --processes):\n");
    v.cause = WEIR_OOM_REPORT_GRAPHS;
    v.graphs = 3 << 20;
    expect_text("the device has too little left, and graphs have 3MiB of it");
    v.cause = WEIR_OOM_REPORT_OTHERS;
    v.silent_pid = 4711;
    v.silent_reserved = 1 << 20;
    expect_text("process 4711 has 1MiB of it, and does not answer\n");
    expect_text("\n  Wait until process 4711 answers, or end it.\n");
    expect_json("\"silent_pid\":4711,\"silent_reserved\":1048576,\"silent_stopped\":false,");
    v.silent_stopped = 1;
    expect_text("process 4711 has 1MiB of it, and is stopped\n");
    expect_text("\n  Continue process 4711 (kill -CONT 4711), or end it.\n");
    v.silent_pid = 0;
    v.holder_pid = 4712;
    v.holder_reserved = 3 << 20;
    v.holder_reclaimable = 2 << 20;
    v.processes = v.process_count = 2;
    v.process[0] = (weir_oom_report_member){4712, 3 << 20, 0, 2 << 20, "python3 \"x\""};
    v.process[1] = (weir_oom_report_member){4711, 1 << 20, 0, 0, "serve"};
    v.others = 5 << 20;
    expect_text("  holders     python3 \"x\" (process 4712) has 3MiB, could release 2MiB\n"
                "              serve (process 4711) has 1MiB, could release 0B\n"
                "              contexts, and memory that weir does not serve: 1MiB\n"
                "  (reserved ");
    expect_json(
        "\"processes_all\":2,\"processes\":[{\"pid\":4712,\"bytes\":3145728,\"idle\":2097152,"
        "\"command\":\"python3 \\\"x\\\"\"},{\"pid\":4711,\"bytes\":1048576,\"idle\":0,");
    v.processes = 7;
    expect_text("could release 0B\n              and 5 more processes\n  (reserved ");
    v.processes = v.process_count = 0;
    expect_json("\"holder_pid\":4712,\"holder_reserved\":3145728,\"holder_reclaimable\":2097152,");
    v.holder_pid = 0;
    expect_json("\"holder_pid\":null,");
    for (v.cause = WEIR_OOM_REPORT_NONE; v.cause < WEIR_OOM_REPORT_CAUSE_COUNT; v.cause++) {
        char sentence[32];

        snprintf(sentence, sizeof sentence, "{\"cause\":\"%s\",",
                 weir_oom_report_cause_word(v.cause));
        expect_json(sentence);
        expect_text(v.cause == WEIR_OOM_REPORT_NONE ? "\n  Try the request again.\n"
                    : v.cause == WEIR_OOM_REPORT_RESERVE
                        ? "\n  Trim before the capture (weir_trim), "
                        : "no setting makes room");
    }
    expect_text("it would be served now"); /* a cause of later versions */
    ck_assert_str_eq(weir_oom_report_cause_word(-1), "unknown");
}

TEST(lists_are_written_as_words) {
    v = some;
    v.cause = WEIR_OOM_REPORT_PENDING;
    v.pending_streams = 2;
    v.pending_by[0].bytes = 1024;
    v.pending_by[0].stream = 7;
    v.pending_by[1].bytes = 2048; /* an unknown stream */
    v.group_count = 2;
    v.groups[0] = (weir_oom_report_group){.bytes = 10, .blocks = 2, .total = 20, .stream = 9};
    v.groups[1] = (weir_oom_report_group){.bytes = 5, .blocks = 1, .total = 5};
    v.ungrouped = 4096;
    v.settings[0] = (weir_oom_report_setting){.name = "limit", .value = "1GiB"};
    v.settings[1] = (weir_oom_report_setting){.name = "another"}; /* a setting without a variable */
    v.settings[2] = (weir_oom_report_setting){.name = "growth"};
    expect_text("\n  Try --limit 1GiB --another  --growth \n      (WEIR_LIMIT=1GiB ");
    expect_text("2KiB waits for ");
    v.pending = 3072;
    expect_text("of this 3KiB still used by pending work\n");
    expect_text("20B in 2 blocks of 10B, stream id 9\n");
    expect_text("4KiB not listed: out of host memory");
    expect_text("another=");
    v.settings[1] = (weir_oom_report_setting){.name = "prealloc", .value = "2GiB"};
    v.settings[2] = (weir_oom_report_setting){.name = "keep-free", .value = "3GiB"};
    expect_text("\n  Try --limit 1GiB --prealloc 2GiB --keep-free 3GiB or less\n      (");
    expect_text("WEIR_LIMIT=1GiB WEIR_PREALLOC=2GiB WEIR_KEEP_FREE=3GiB).\n");
    v.settings[2] = (weir_oom_report_setting){.name = "growth"};
    expect_json("\"pending_by\":[{\"bytes\":1024,\"stream\":7},{");
    expect_json("\"blocks\":2,\"total\":20,\"stream\":9},{");
    expect_json("\"variable\":\"WEIR_GROWTH\"");
}
