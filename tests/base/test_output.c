/* SPDX-License-Identifier: MIT */
/* test_output.c: text and JSON in memory of a fixed size, and in a file. */
#include "base/output.h"
#include "tests/fixtures/suite.h"

static char text[256];
static struct weir_output out;

static void reset_output(void) {
    memset(text, '#', sizeof text);
    out = (struct weir_output){.text = text, .bytes = sizeof text};
}

/* Checks the whole text, and clears it. */
static void expect_output(const char *wanted) {
    ck_assert_str_eq(text, wanted);
    ck_assert_uint_eq(out.length, strlen(wanted));
    reset_output();
}

CASE("output", 30, reset_output, NULL);

TEST(values_of_each_kind_are_written) {
    const char *volatile none = NULL; /* hides the NULL from the compiler */

    weir__put_json(&out, "{'text':%s,'none':%s,'zero':%ju", "a", none, (uintmax_t)0);
    weir__put_json(&out, ",'most':%ju,'unknown':%ju", (uintmax_t)UINT64_MAX - 1,
                   (uintmax_t)UINT64_MAX);
    weir__put_json(&out, ",'yes':%d,'no':%d}", 2, 0);
    expect_output("{\"text\":\"a\",\"none\":null,\"zero\":0,\"most\":18446744073709551614,"
                  "\"unknown\":null,\"yes\":true,\"no\":false}");
}

TEST(commas_stand_between_values) {
    weir__put_json(&out, "{'a':[");
    for (uintmax_t i = 0; i < 3; i++)
        weir__put_json(&out, ",%ju", i);
    weir__put_json(&out, "],'b':[],'c':{");
    weir__put_json(&out, ",'d':%s", "[");
    weir__put_json(&out, ",'e':");
    weir__put(&out, "%s", "1.5");
    weir__put_json(&out, ",'f':[");
    weir__put_json(&out, ",\n{");
    weir__put_json(&out, ",'g':1}]}}");
    expect_output("{\"a\":[0,1,2],\"b\":[],\"c\":{\"d\":\"[\",\"e\":1.5,\"f\":[\n{\"g\":1}]}}");
}

static void expect_string(const char *from, const char *wanted) {
    weir__put_json(&out, "%s", from);
    expect_output(wanted);
}

TEST(texts_are_escaped) {
    expect_string("", "\"\"");
    expect_string("a\"b\\c\n\x01\x7f", "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\"");
    expect_string("it's 100%, [x]", "\"it's 100%, [x]\"");
    /* UTF-8 of two, three and four bytes, each kind from its first to its last character */
    expect_string("\xc2\x80\xdf\xbf", "\"\xc2\x80\xdf\xbf\"");
    expect_string("\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf",
                  "\"\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\"");
    expect_string("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"");
}

TEST(damaged_characters_are_escaped) {
    expect_string("\x80x", "\"\\u0080x\"");
    expect_string("x\xc3", "\"x\\u00c3\"");            /* cut off at the end */
    expect_string("\xe2\x82 ", "\"\\u00e2\\u0082 \""); /* cut off before a space */
    expect_string("\xc1\xbf", "\"\\u00c1\\u00bf\"");   /* "\x7f" in two bytes */
    expect_string("\xe0\x9f\xbf", "\"\\u00e0\\u009f\\u00bf\"");
    expect_string("\xed\xa0\x80", "\"\\u00ed\\u00a0\\u0080\""); /* a surrogate */
    expect_string("\xf0\x8f\xbf\xbf", "\"\\u00f0\\u008f\\u00bf\\u00bf\"");
    expect_string("\xf4\x90\x80\x80", "\"\\u00f4\\u0090\\u0080\\u0080\""); /* above U+10FFFF */
    expect_string("\xf5\xff", "\"\\u00f5\\u00ff\"");
}

/* The text is cut to any size of memory, and ends with a NUL.  Its whole length is known. */
TEST(a_text_that_does_not_fit_is_cut) {
    const char *whole = "{\"a\":\"b\\\"c\",\"d\":[1,2]}";

    for (size_t bytes = 0; bytes <= strlen(whole) + 1; bytes++) {
        reset_output();
        out.bytes = bytes;
        weir__put_json(&out, "{'a':%s,'d':[", "b\"c");
        weir__put_json(&out, ",%ju", (uintmax_t)1);
        weir__put_json(&out, ",%ju]", (uintmax_t)2);
        weir__put(&out, "%s", "}");
        ck_assert_uint_eq(out.length, strlen(whole));
        if (bytes > 0) {
            ck_assert_uint_eq(strlen(text), bytes - 1);
            ck_assert(memcmp(text, whole, bytes - 1) == 0);
        }
        ck_assert_int_eq(text[bytes], '#');
    }
    reset_output();
    out = (struct weir_output){.text = NULL};
    weir__put_json(&out, "[%s]", "x");
    ck_assert_uint_eq(out.length, 5);
}

/* A caller can undo text that does not fit by restoring a copy of the writer. */
TEST(a_copy_of_the_writer_undoes) {
    struct weir_output before;

    weir__put_json(&out, "{'a':1");
    before = out;
    weir__put_json(&out, ",'long':%s", "text");
    out = before;
    weir__put_json(&out, ",'b':2}");
    expect_output("{\"a\":1,\"b\":2}");
}

TEST(a_file_gets_the_text) {
    size_t bytes = 0;
    char *written = NULL;
    FILE *file = open_memstream(&written, &bytes);

    ck_assert_ptr_nonnull(file);
    out = (struct weir_output){.file = file};
    weir__put_json(&out, "[");
    weir__put_json(&out, ",{'name':%s}]", "x");
    weir__put(&out, "\n");
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(written, "[{\"name\":\"x\"}]\n");
    ck_assert_uint_eq(out.length, bytes);
    free(written);
}

SUITE("output", CK_FORK_GETENV);
