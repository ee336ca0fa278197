/* SPDX-License-Identifier: MIT */
/* fuzz.h: what the fuzz targets share: the entry, faults, and bytes taken off an input one by one.
 *
 * A target is one file that defines LLVMFuzzerTestOneInput.  With clang's libFuzzer (make fuzz) or AFL++
 * that is all; in `make check` driver.c calls it.  The same input does the same each time.
 *
 * Must not know: who calls; Check, which a fuzzer has not.
 */
#ifndef WEIR_TEST_FUZZ_H
#define WEIR_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a fuzzer takes for a crash. */
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

/* What is left of the input. */
struct fuzz_bytes {
    const uint8_t *at;
    size_t left;
};

/* The next byte; 0 when there is none. */
static inline unsigned fuzz_byte(struct fuzz_bytes *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

/* The next one as a choice of so many. */
static inline unsigned fuzz_choice(struct fuzz_bytes *in, unsigned many) {
    return fuzz_byte(in) % many;
}

#endif
