/* SPDX-License-Identifier: MIT */
/* formats.c: see formats.h. */
#include "cli/common/formats.h"

#include <stdio.h>
#include <string.h>

int rmm_is(const char *first_line) {
    return strstr(first_line, "Action") && strstr(first_line, "Pointer") &&
           strstr(first_line, "Size");
}

int rmm_wrote(const char *path) {
    FILE *file = fopen(path, "re");
    char line[512];
    int found = file && fgets(line, sizeof line, file) && rmm_is(line);

    if (file)
        fclose(file);
    return found;
}
