/* SPDX-License-Identifier: MIT */
/* test_segment.h: a folder for each test, and a segment, for the suite test_segment. */
#ifndef WEIR_TEST_SEGMENT_H
#define WEIR_TEST_SEGMENT_H

#include "base/who.h"
#include "ipc/segment.h"
#include "tests/fixtures/folder.h"
#include "tests/fixtures/holder.h"

enum { WORDS = 500 };

struct body {
    uint64_t words[WORDS];
};

static const struct weir_segment_kind kind = {"test", 3, sizeof(struct body)};
static struct weir_segment segment;
static struct body body;

static inline void set_up_segment(void) {
    make_folder("/tmp");
    memset(&segment, 0, sizeof segment);
}

static inline void tear_down_segment(void) {
    weir__segment_remove(&segment);
    remove_folder();
}

static inline void fill_body(struct body *b, uint64_t with) {
    for (size_t i = 0; i < WORDS; i++)
        b->words[i] = with;
}

static inline void create_segment(void) {
    ck_assert_int_eq(weir__segment_create(&segment, &kind), 0);
    fill_body(&body, 7);
    weir__segment_publish(&segment, &body);
    fill_body(&body, 0);
}

static inline void expect_read(enum weir_segment_fault wanted) {
    enum weir_segment_fault is = weir__segment_read(segment.path, &kind, &body);

    if (is != wanted)
        ck_abort_msg("%s, not: %s", weir__segment_fault_text(is), weir__segment_fault_text(wanted));
}

static inline int exists(const char *path) {
    struct stat is;

    return lstat(path, &is) == 0;
}

struct seen {
    size_t count;
    struct weir_segment_name last;
};

static inline void note_segment(const struct weir_segment_name *name, void *context) {
    struct seen *seen = context;

    seen->count++;
    seen->last = *name;
}

static inline struct seen find_segments(void) {
    struct seen seen = {0};

    weir__segment_each(&kind, note_segment, &seen);
    return seen;
}

static inline void make_file(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(close(file), 0);
}

static inline void overwrite_segment(size_t at, const void *bytes, size_t count) {
    int file = open(segment.path, O_WRONLY);

    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, bytes, count, (off_t)at), (ssize_t)count);
    ck_assert_int_eq(close(file), 0);
}

#endif
