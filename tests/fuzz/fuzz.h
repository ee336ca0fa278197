/* SPDX-License-Identifier: MIT */
/* fuzz.h: functions for fuzz targets: the entry, faults, and reading an input byte by byte.
 *
 * A target is one file that defines LLVMFuzzerTestOneInput.  clang's libFuzzer (make fuzz) or AFL++ calls it; in
 * `make check` driver.c does.  An input has an equal effect each time.
 *
 * Must not know: the caller, or Check, which a fuzzer does not link. */
#ifndef WEIR_TEST_FUZZ_H
#define WEIR_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Prints a message, and aborts, which a fuzzer counts as a crash. */
#define FAULT(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#define HOLDS(condition)                                                                           \
    ((condition) ? (void)0 : FAULT("%s:%d: not so: %s", __FILE__, __LINE__, #condition))
#define SAME(a, b) fuzz_same((uint64_t)(a), (uint64_t)(b), #a " == " #b, __FILE__, __LINE__)

#define AT_MOST(a, b) fuzz_at_most((uint64_t)(a), (uint64_t)(b), #a " <= " #b, __FILE__, __LINE__)

static inline void fuzz_same(uint64_t a, uint64_t b, const char *what, const char *file, int line) {
    if (a != b)
        FAULT("%s:%d: not so: %s (%llu, %llu)", file, line, what, (unsigned long long)a,
              (unsigned long long)b);
}

static inline void fuzz_at_most(uint64_t a, uint64_t b, const char *what, const char *file,
                                int line) {
    if (a > b)
        FAULT("%s:%d: not so: %s (%llu, %llu)", file, line, what, (unsigned long long)a,
              (unsigned long long)b);
}

/* The rest of the input. */
struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
};

/* Takes the next byte.  Returns 0 at the end of the input. */
static inline unsigned fuzz_byte(struct fuzz_bytes *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

/* Takes the next byte as a choice from 0 to many - 1. */
static inline unsigned fuzz_choice(struct fuzz_bytes *in, unsigned many) {
    return fuzz_byte(in) % many;
}

#endif
