/* SPDX-License-Identifier: MIT */
/* calls.h: the driver calls that a piece of a test makes on the device model.
 *
 * For one file of a suite: the point from which is counted is that file's own.
 */
#ifndef WEIR_TEST_CALLS_H
#define WEIR_TEST_CALLS_H

#include <check.h>

#include "model/model.h"

static uint64_t calls_before[WEIR_ENTRY_COUNT];

static inline void count_from_here(void) {
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        calls_before[i] = weir__model_calls((enum weir_driver_entry)i);
}

static inline uint64_t calls(enum weir_driver_entry entry) {
    return weir__model_calls(entry) - calls_before[entry];
}

/* Exactly these calls since count_from_here, and no others. */
#define EXPECT_CALLS(...)                                                                          \
    expect_calls(__LINE__, (const struct expected[]){__VA_ARGS__, {WEIR_ENTRY_COUNT, 0}})

struct expected {
    enum weir_driver_entry entry;
    uint64_t times;
};

static inline void expect_calls(int line, const struct expected *list) {
    for (int i = 0; i < WEIR_ENTRY_COUNT; i++) {
        uint64_t times = 0;

        for (const struct expected *e = list; e->entry != WEIR_ENTRY_COUNT; e++)
            if (e->entry == (enum weir_driver_entry)i)
                times = e->times;
        if (calls((enum weir_driver_entry)i) != times)
            ck_abort_msg("line %d: %s was called %llu times", line,
                         weir__driver_entry_name((enum weir_driver_entry)i),
                         (unsigned long long)calls((enum weir_driver_entry)i));
    }
}

#endif
