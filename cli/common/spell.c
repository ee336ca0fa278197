/* SPDX-License-Identifier: MIT */
/* spell.c: see spell.h. */
#include "cli/common/spell.h"

#include <inttypes.h>
#include <stdio.h>

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
