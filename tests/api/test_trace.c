/* SPDX-License-Identifier: MIT */
/* test_trace.c: good traces, which are read unchanged, and bad ones, each refused with its line.
 *
 * Each case is read several times, with sources that return 1, 7 or many bytes at once, because the result must not
 * depend on where a line is cut. */
#include <weir/trace.h>

#include "tests/fixtures/refuse.h"
#include "tests/fixtures/suite.h"

struct text {
    const char *at;
    size_t left;
    size_t chunk;
};

static ptrdiff_t read_chunk(void *context, char *buffer, size_t bytes, char *message,
                            size_t message_bytes) {
    struct text *text = context;
    size_t n = text->left < text->chunk ? text->left : text->chunk;

    (void)message;
    (void)message_bytes;
    if (n > bytes)
        n = bytes;
    memcpy(buffer, text->at, n);
    text->at += n;
    text->left -= n;
    return (ptrdiff_t)n;
}

static const size_t chunks[] = {1, 7, 1u << 20};
enum { CHUNKS = 3 };

static weir_trace_reader *reader_over(struct text *text) {
    weir_trace_reader *reader = NULL;

    ck_assert_int_eq(weir_trace_reader_create(read_chunk, text, &reader), WEIR_OK);
    return reader;
}

/* Reads to the end or the first error, and writes at most `most` events to `out`. */
static weir_status read_until_end(weir_trace_reader *reader, weir_trace_event *out, size_t most,
                                  size_t *count) {
    weir_trace_event event;
    weir_status status;

    *count = 0;
    while ((status = weir_trace_next(reader, &event)) == WEIR_OK && event.operation) {
        if (*count < most)
            out[*count] = event;
        ++*count;
    }
    return status;
}

static void check_bad_bytes(const char *trace, size_t bytes, const char *message) {
    for (int i = 0; i < CHUNKS; i++) {
        struct text text = {trace, bytes, chunks[i]};
        weir_trace_reader *reader = reader_over(&text);
        weir_trace_event event = {.operation = 'q'};
        size_t count;

        ck_assert_int_eq(read_until_end(reader, NULL, 0, &count), WEIR_E_PARSE);
        ck_assert_str_eq(weir_trace_message(reader), message);
        /* the error stays, and nothing is written */
        ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_PARSE);
        ck_assert_int_eq(event.operation, 'q');
        ck_assert_str_eq(weir_trace_message(reader), message);
        weir_trace_reader_destroy(reader);
    }
}

static void check_bad(const char *trace, const char *message) {
    check_bad_bytes(trace, strlen(trace), message);
}

static size_t check_good(const char *trace, weir_trace_event *out, size_t most) {
    size_t count = 0;

    for (int i = 0; i < CHUNKS; i++) {
        struct text text = {trace, strlen(trace), chunks[i]};
        weir_trace_reader *reader = reader_over(&text);
        weir_trace_event event;

        ck_assert_msg(read_until_end(reader, out, most, &count) == WEIR_OK, "%s",
                      weir_trace_message(reader));
        ck_assert_str_eq(weir_trace_message(reader), "");
        ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK); /* the end stays */
        ck_assert_int_eq(event.operation, 0);
        weir_trace_reader_destroy(reader);
    }
    return count;
}

CASE("trace", 60, NULL, NULL);

TEST(test_every_operation_is_read) {
    weir_trace_event e[7];

    ck_assert_uint_eq(check_good("# weir-trace 1\n"
                                 "0 a 7 4096 0\n"
                                 "3 u 7 2 tid=9\n"
                                 "# a comment\n"
                                 "\n"
                                 "4 w 2 0 dev=0 kind=event\n"
                                 "5 x 8 9223372036854775807 1\n"
                                 "6\tf  7 4096\t0 unknown_key=1\n"
                                 "7 m step0 tid=3\n"
                                 "18446744073709551615 a 18446744073709551614 0 "
                                 "18446744073709551614\n",
                                 e, 7),
                      6 + 1);
    ck_assert(e[0].operation == 'a' && e[0].line == 2 && e[0].time_us == 0 && e[0].id == 7 &&
              e[0].bytes == 4096 && e[0].stream == 0);
    ck_assert(e[1].operation == 'u' && e[1].line == 3 && e[1].time_us == 3 && e[1].id == 7 &&
              e[1].stream == 2 && e[1].bytes == 0);
    ck_assert(e[2].operation == 'w' && e[2].line == 6 && e[2].stream == 2 && e[2].on_stream == 0);
    ck_assert(e[3].operation == 'x' && e[3].bytes == INT64_MAX && e[3].stream == 1);
    ck_assert(e[4].operation == 'f' && e[4].id == 7 && e[4].bytes == 4096 && e[4].time_us == 6);
    ck_assert(e[5].operation == 'm' && e[5].line == 9);
    ck_assert_str_eq(e[5].label, "step0");
    ck_assert(e[6].operation == 'a' && e[6].id == UINT64_MAX - 1 && e[6].time_us == UINT64_MAX &&
              e[6].stream == UINT64_MAX - 1 && e[6].bytes == 0);
}

TEST(test_carriage_returns_are_fine) {
    weir_trace_event e[3];

    ck_assert_uint_eq(check_good("# weir-trace 1\r\n0 a 1 8 0\r\n\r\n1 m s\r\n2 f 1 8 0\r\n", e, 3),
                      3);
    ck_assert_str_eq(e[1].label, "s");
}

TEST(test_id_is_used_again_after_its_free) {
    check_good("0 a 1 8 0\n1 f 1 8 0\n2 a 1 16 0\n3 f 1 16 0\n", NULL, 0);
}

TEST(test_comments_may_come_before_the_version) {
    check_good("# workload gpt2; total 150109880320\n# weir-trace 9 is no version here\n0 m a\n",
               NULL, 0);
    check_good("#\n0 m a\n", NULL, 0);
    check_good("# weir-tracer\n0 m a\n", NULL, 0);
}

TEST(test_fields_are_those_of_the_last_event) {
    static const char trace[] =
        "0 a 1 8 0 dev=2 kind=plain by= kind=second x=1\n1 m s tid=4\n2 f 1 8 0\n";
    struct text text = {trace, sizeof trace - 1, 7};
    weir_trace_reader *reader = reader_over(&text);
    weir_trace_event event;
    char value[8];

    ck_assert(!weir_trace_field(reader, "kind", value, sizeof value) && value[0] == '\0');
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK);
    ck_assert(weir_trace_field(reader, "kind", value, sizeof value));
    ck_assert_str_eq(value, "plain");
    ck_assert(weir_trace_field(reader, "kind", value, 3));
    ck_assert_str_eq(value, "pl");
    ck_assert(weir_trace_field(reader, "by", value, sizeof value) && value[0] == '\0');
    ck_assert(weir_trace_field(reader, "x", NULL, 0));
    ck_assert(!weir_trace_field(reader, "kin", value, sizeof value));
    ck_assert(!weir_trace_field(reader, "", value, sizeof value));
    ck_assert(!weir_trace_field(NULL, "x", value, sizeof value));
    ck_assert(!weir_trace_field(reader, NULL, value, sizeof value));
    ck_assert(weir_trace_field(reader, "x", value, 0));
    ck_assert(!weir_trace_field(reader, "y", value, 0));
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK);
    ck_assert(weir_trace_field(reader, "tid", value, sizeof value) && value[0] == '4');
    ck_assert(!weir_trace_field(reader, "kind", value, sizeof value) && value[0] == '\0');
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK);
    ck_assert(!weir_trace_field(reader, "tid", value, sizeof value));
    weir_trace_reader_destroy(reader);
}

static void gather(void *context, const char *text) {
    strcat(context, text);
    strcat(context, "|");
}

TEST(test_comments_are_told) {
    static const char trace[] = "# weir-trace 1\n#\n#  a comment\r\n0 m s\n#last\n";

    for (int i = 0; i < CHUNKS; i++) {
        struct text text = {trace, sizeof trace - 1, chunks[i]};
        weir_trace_reader *reader = reader_over(&text);
        char said[64] = "";
        size_t count;

        weir_trace_comments(NULL, gather, said);
        weir_trace_comments(reader, gather, said);
        ck_assert_int_eq(read_until_end(reader, NULL, 0, &count), WEIR_OK);
        ck_assert_uint_eq(count, 1);
        ck_assert_str_eq(said, "weir-trace 1||a comment|last|");
        weir_trace_reader_destroy(reader);
    }
}

TEST(test_long_label_is_cut_at_a_character) {
    char trace[256];
    weir_trace_event e;

    snprintf(trace, sizeof trace, "0 m %062d\xc3\xa9tail\n", 5); /* byte 63 is inside the e acute */
    ck_assert_uint_eq(check_good(trace, &e, 1), 1);
    ck_assert_uint_eq(strlen(e.label), 62);
}

/* A comment of any length is skipped; an event line must fit into the reader's buffer. */
TEST(test_only_comments_may_be_very_long) {
    size_t bytes = 1u << 20;
    char *trace = malloc(bytes + 64);
    weir_trace_event e;

    ck_assert_ptr_nonnull(trace);
    memset(trace, 'x', bytes);
    memcpy(trace, "# ", 2);
    strcpy(trace + bytes, "\n5 m s\n");
    ck_assert_uint_eq(check_good(trace, &e, 1), 1);
    ck_assert_uint_eq(e.line, 2);
    strcpy(trace + bytes, "");
    check_bad(trace, "line 1: the last line has no newline: the trace is truncated");
    memcpy(trace, "0 m", 3);
    strcpy(trace + bytes, "\n");
    check_bad(trace, "line 1: longer than 131072 bytes");
    free(trace);
}

static const struct {
    const char *trace;
    const char *message;
} corpus[] = {
    {"", "line 0: the trace ends without any event"},
    {"\n\n", "line 2: the trace ends without any event"},
    {"# only\n# comments\n", "line 2: the trace ends without any event"},
    {"# weir-trace 2\n0 m a\n", "line 1: trace version \"2\"; this program reads version 1"},
    {"# weir-trace\n0 m a\n", "line 1: trace version \"\"; this program reads version 1"},
    {"#weir-trace 11\n0 m a\n", "line 1: trace version \"11\"; this program reads version 1"},
    {"0 a 1 8 0\n1 f 2 8 0\n", "line 2: free of id 2, which is not live"},
    {"0 a 1 8 0\n1 f 1 8 0\n2 f 1 8 0\n", "line 3: free of id 1, which is not live"},
    {"0 u 3 1\n", "line 1: use of id 3, which is not live"},
    {"0 a 1 8 0\n# x\n1 a 1 8 0\n", "line 3: id 1 is allocated again while it is live"},
    {"0 a 1 8 0\n1 f 1 16 0\n", "line 2: free of id 1 with 16 bytes, allocated with 8"},
    {"0 a 1 -8 0\n", "line 1: bytes \"-8\" is negative"},
    {"0 a 1 9223372036854775808 0\n", "line 1: bytes \"9223372036854775808\" is too large"},
    {"0 a 1 18446744073709551616 0\n", "line 1: bytes \"18446744073709551616\" is too large"},
    {"0 a 1 99999999999999999999999 0\n", "line 1: bytes \"99999999999999999999999\" is too large"},
    {"0 a 1 4K 0\n", "line 1: bytes \"4K\" is not a whole number"},
    {"0 a 1 1.5 0\n", "line 1: bytes \"1.5\" is not a whole number"},
    {"0 a 1 +8 0\n", "line 1: bytes \"+8\" is not a whole number"},
    {"-1 a 1 8 0\n", "line 1: time \"-1\" is negative"},
    {"7 a 1 8 0\n7 m a\n# 3\n5 f 1 8 0\n", "line 4: time 5 is before 7, that of the event before; "
                                           "expected events in the order of their times"},
    {"0 a -1 8 0\n", "line 1: id \"-1\" is negative"},
    {"0 a 1 8 -1\n", "line 1: stream \"-1\" is negative"},
    {"0 w 1 x\n", "line 1: on_stream \"x\" is not a whole number"},
    {"0\n", "line 1: operation is missing"},
    {"0 a\n", "line 1: id is missing"},
    {"0 a 1\n", "line 1: bytes is missing"},
    {"0 a 1 8\n", "line 1: stream is missing"},
    {"0 a 1 8 \n", "line 1: stream is missing"},
    {"0 a 1 8 tid=4\n", "line 1: stream \"tid=4\" is not a whole number"},
    {"0 a 1 8 0\n0 u 1\n", "line 2: stream is missing"},
    {"0 w 1\n", "line 1: on_stream is missing"},
    {"0 x 1 8\n", "line 1: stream is missing"},
    {"0 m\n", "line 1: label is missing"},
    {"0 a 1 8 0 0\n", "line 1: \"0\" is one field too many, and not key=value"},
    {"0 a 1 8 0 =5\n", "line 1: \"=5\" is one field too many, and not key=value"},
    {"0 m step 0\n", "line 1: \"0\" is one field too many, and not key=value"},
    {"0 z 1 8 0\n", "line 1: unknown operation \"z\": a, f, u, w, x and m are known"},
    {"0 af 1 8 0\n", "line 1: unknown operation \"af\": a, f, u, w, x and m are known"},
    {"0 A 1 8 0\n", "line 1: unknown operation \"A\": a, f, u, w, x and m are known"},
    {"\x7f"
     "ELF\x02\x01\x01 binary\n",
     "line 1: time \"?ELF???\" is not a whole number"},
    {"Thread,Time,Action,Pointer,Size,Stream\n",
     "line 1: time \"Thread,Time,Action,Pointer,Size,Stream\" is not a whole number"},
    {"0123456789012345678901234567890123456789012345678901234567890x a 1 8 0\n",
     "line 1: time \"0123456789012345678901234567890123456789...\" is too large"},
    {"0 a 1 8 0\n1 f 1 8 0", "line 2: the last line has no newline: the trace is truncated"},
    {"0 a 1 8 0\n#", "line 2: the last line has no newline: the trace is truncated"},
    {"0 a 1 8 0\n1 f 1", "line 2: the last line has no newline: the trace is truncated"},
    {"0 a 1 8 0\n\r1 m a\n", "line 2: time \"?1\" is not a whole number"},
};

TEST_EACH(ROWS(corpus), test_corpus) {
    check_bad(corpus[_i].trace, corpus[_i].message);
}

TEST(test_nul_bytes_are_refused) {
    static const char inside[] = "0 a 1 8 0\n0 m \0step\n";
    static const char alone[] = "\0\0\0\0\n";

    check_bad_bytes(inside, sizeof inside - 1,
                    "line 2: a NUL byte: this is not a trace, or a damaged one");
    check_bad_bytes(alone, sizeof alone - 1,
                    "line 1: a NUL byte: this is not a trace, or a damaged one");
}

/* A good trace that is cut at any byte is read or refused.  One that is cut within a line is refused. */
TEST(test_a_trace_that_is_cut_is_read_or_refused) {
    static const char good[] = "# weir-trace 1\n0 a 1 8 0\n1 u 1 3\n2 w 3 0\n3 f 1 8 0\n4 m last\n";

    for (size_t cut = 0; cut < sizeof good; cut++)
        for (int i = 0; i < CHUNKS; i++) {
            struct text text = {good, cut, chunks[i]};
            weir_trace_reader *reader = reader_over(&text);
            size_t count;
            weir_status status = read_until_end(reader, NULL, 0, &count);

            if (cut > 0 && good[cut - 1] == '\n' && count > 0)
                ck_assert_int_eq(status, WEIR_OK);
            else
                ck_assert_int_eq(status, WEIR_E_PARSE);
            weir_trace_reader_destroy(reader);
        }
}

/* Every single change of a byte in a good trace gives a result, and no read outside of the buffer. */
TEST(test_a_change_of_any_byte_is_read_or_refused) {
    static const char good[] = "# weir-trace 1\n0 a 1 8 0\n1 u 1 3\n2 w 3 0\n3 f 1 8 0\n4 m last\n";
    char trace[sizeof good];

    for (size_t at = 0; at < sizeof good - 1; at++)
        for (int byte = 0; byte < 256; byte++) {
            struct text text = {trace, sizeof good - 1, 1u << 20};
            weir_trace_reader *reader;
            size_t count;
            weir_status status;

            memcpy(trace, good, sizeof good);
            trace[at] = (char)byte;
            reader = reader_over(&text);
            status = read_until_end(reader, NULL, 0, &count);
            ck_assert(status == WEIR_OK || status == WEIR_E_PARSE);
            ck_assert((weir_trace_message(reader)[0] != '\0') == (status != WEIR_OK));
            weir_trace_reader_destroy(reader);
        }
}

static ptrdiff_t break_off(void *context, char *buffer, size_t bytes, char *message,
                           size_t message_bytes) {
    int *calls = context;

    (void)bytes;
    if (++*calls == 1) {
        memcpy(buffer, "0 m a\n1 m", 9);
        return 9;
    }
    if (*calls == 2 && message_bytes)
        snprintf(message, message_bytes, "the archive is damaged");
    return -1;
}

static ptrdiff_t break_silently(void *context, char *buffer, size_t bytes, char *message,
                                size_t message_bytes) {
    (void)context, (void)buffer, (void)bytes, (void)message, (void)message_bytes;
    return -1;
}

TEST(test_a_source_may_fail_without_a_reason) {
    weir_trace_reader *reader = NULL;
    weir_trace_event event;

    ck_assert_int_eq(weir_trace_reader_create(break_silently, NULL, &reader), WEIR_OK);
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_PARSE);
    ck_assert_str_eq(weir_trace_message(reader), "the source of the trace failed");
    weir_trace_reader_destroy(reader);
}

/* A reader whose last read failed has no fields. */
TEST(test_a_reader_after_an_error_has_no_fields) {
    static const char trace[] = "0 a 1 8 0 dev=2\n0 a 1 8 0 dev=3\n";
    struct text text = {trace, sizeof trace - 1, 100};
    weir_trace_reader *reader = reader_over(&text);
    weir_trace_event event;

    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK);
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_PARSE);
    ck_assert(!weir_trace_field(reader, "dev", NULL, 0));
    weir_trace_reader_destroy(reader);
}

#ifdef CAN_REFUSE_HOST_MEMORY
TEST(test_a_reader_fails_without_host_memory) {
    static const char trace[] = "0 a 1 8 0\n";
    struct text text = {trace, sizeof trace - 1, 100};
    weir_trace_reader *reader = NULL;
    weir_trace_event event;

    refuse_in = 1;
    ck_assert_int_eq(weir_trace_reader_create(read_chunk, &text, &reader), WEIR_E_HOST_MEMORY);
    ck_assert_ptr_null(reader);
    reader = reader_over(&text);
    refuse_in = 1;
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_HOST_MEMORY);
    refuse_in = 0;
    weir_trace_reader_destroy(reader);
}
#endif

TEST(test_the_reason_of_a_failed_source_is_reported) {
    int calls = 0;
    weir_trace_reader *reader = NULL;
    weir_trace_event event;

    ck_assert_int_eq(weir_trace_reader_create(break_off, &calls, &reader), WEIR_OK);
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_OK);
    ck_assert_int_eq(event.operation, 'm');
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_PARSE);
    ck_assert_str_eq(weir_trace_message(reader), "behind line 1: the archive is damaged");
    ck_assert_int_eq(weir_trace_next(reader, &event), WEIR_E_PARSE);
    ck_assert_int_eq(calls, 2);
    weir_trace_reader_destroy(reader);
}

TEST(test_invalid_arguments_are_refused) {
    struct text text = {"", 0, 1};
    weir_trace_reader *reader = NULL;
    weir_trace_event event;

    ck_assert_int_eq(weir_trace_reader_create(NULL, NULL, &reader), WEIR_E_INVALID);
    ck_assert_int_eq(weir_trace_reader_create(read_chunk, &text, NULL), WEIR_E_INVALID);
    reader = reader_over(&text);
    ck_assert_int_eq(weir_trace_next(NULL, &event), WEIR_E_INVALID);
    ck_assert_int_eq(weir_trace_next(reader, NULL), WEIR_E_INVALID);
    ck_assert_str_eq(weir_trace_message(NULL), "");
    weir_trace_reader_destroy(reader);
    weir_trace_reader_destroy(NULL);
}

/* The trace has half a million lines with many live ids.  The time is printed but not checked. */
TEST(test_half_a_million_lines_are_read) {
    enum { LIVE = 50000, ROUNDS = 5 };
    size_t room = (size_t)LIVE * ROUNDS * 2 * 40, used = 0, count;
    char *trace = malloc(room);
    struct text text;
    weir_trace_reader *reader;
    struct timespec start, end;

    ck_assert_ptr_nonnull(trace);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LIVE; i++)
            used +=
                (size_t)snprintf(trace + used, room - used, "%d a %d %d 0\n", round, i, i * 512);
        for (int i = LIVE - 1; i >= 0; i--)
            used +=
                (size_t)snprintf(trace + used, room - used, "%d f %d %d 0\n", round, i, i * 512);
    }
    text = (struct text){trace, used, 1u << 16};
    reader = reader_over(&text);
    clock_gettime(CLOCK_MONOTONIC, &start);
    ck_assert_int_eq(read_until_end(reader, NULL, 0, &count), WEIR_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ck_assert_uint_eq(count, (size_t)LIVE * ROUNDS * 2);
    printf("# %.1f million lines a second\n",
           (double)count / 1e6 /
               ((double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9));
    weir_trace_reader_destroy(reader);
    free(trace);
}

SUITE("trace", CK_FORK_GETENV);
