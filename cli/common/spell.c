/* SPDX-License-Identifier: MIT */
/* spell.c: see spell.h. */
#include "cli/common/spell.h"

#include <inttypes.h>
#include <stdio.h>

struct spelled spell_count(uint64_t count) {
    struct spelled spelled;
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t used = 0;

    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            spelled.text[used++] = ',';
        spelled.text[used++] = digits[i];
    }
    spelled.text[used] = '\0';
    return spelled;
}

struct spelled spell_time(uint64_t ns) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}};
    struct spelled spelled;
    double value;
    int unit = 0;

    while (unit < 3 && (double)ns < units[unit].ns)
        unit++;
    value = (double)ns / units[unit].ns;
    snprintf(spelled.text, sizeof spelled.text, "%.*f %s",
             unit == 3 || value >= 99.95 ? 0
             : value >= 9.995            ? 1
                                         : 2,
             value, units[unit].name);
    return spelled;
}

struct spelled spell_ms(double ns) {
    struct spelled spelled;

    snprintf(spelled.text, sizeof spelled.text, "%.*f",
             ns < 10e6    ? 3
             : ns < 100e6 ? 2
                          : 1,
             ns / 1e6);
    return spelled;
}

struct spelled spell_ratio(double ratio) {
    struct spelled spelled;

    snprintf(spelled.text, sizeof spelled.text, "%.*f",
             ratio < 10     ? 3
             : ratio < 100  ? 2
             : ratio < 1000 ? 1
                            : 0,
             ratio);
    return spelled;
}
