/* SPDX-License-Identifier: MIT */
/* spell.c: see spell.h. */
#include "cli/common/spell.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/histogram.h"

void table_spell(uint64_t value, char *text, size_t bytes) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    size_t used = 0;

    for (int i = 0; i < length && used + 2 < bytes; i++) {
        if (i && (length - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
}

uint64_t table_percentile(uint64_t value) {
    uint64_t width = 1, step = 1;

    while (value / width >= 2 * WEIR_HISTOGRAM_SUB)
        width *= 2;
    while (step * 10 <= width)
        step *= 10;
    return value > UINT64_MAX - step ? value : (value + step / 2) / step * step;
}

void table_ratio(double value, char *text, size_t bytes) {
    int digits = value < 10.0 ? 3 : value < 100.0 ? 2 : value < 1000.0 ? 1 : 0;

    snprintf(text, bytes, "%.*f", digits, value);
}
