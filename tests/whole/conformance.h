/* SPDX-License-Identifier: MIT */
/* conformance.h: the parts of the conformance suite, and what they share: somebody who takes all memory. */
#ifndef WEIR_TEST_CONFORMANCE_H
#define WEIR_TEST_CONFORMANCE_H

#include <check.h>

#include "driver/driver.h"

/* Blocks of cuMemAlloc. */
struct hog {
    CUdeviceptr block[64];
    int count;
};

static inline void hog_ends(const struct weir_driver *driver, struct hog *hog) {
    while (hog->count > 0)
        (void)driver->cuMemFree(hog->block[--hog->count]);
}

/* Takes what the device has free, in multiples of 32 MiB, until `leaves` bytes are left, or up to 32 MiB
 * more. */
static inline void hog_takes(const struct weir_driver *driver, struct hog *hog, size_t leaves) {
    size_t unit = (size_t)32 << 20, most = SIZE_MAX, bytes, free_bytes = 0, total;

    while (hog->count < 64 && most >= unit &&
           driver->cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS &&
           free_bytes >= leaves + unit) {
        bytes = (free_bytes - leaves) / unit * unit;
        bytes = bytes < most ? bytes : most;
        if (driver->cuMemAlloc(&hog->block[hog->count], bytes) == CUDA_SUCCESS)
            hog->count++;
        else
            most = bytes / 2 / unit * unit;
    }
}

/* What another process does with memory that the suite shares with it (WEIR_TEST_TEXT is set).  Returns its exit status. */
int open_text(const char *told);
/* What is asked in a process of its own, since a driver may crash there (WEIR_TEST_ASK is set): its exit
 * status. */
int answer_alone(const char *question);

#endif
