/* SPDX-License-Identifier: MIT */
/* variable.c: reads weir's own environment variables. */
#include "base/variable.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char begins[] = "WEIR_";
/* Copies of environment variables, as texts "NAME=VALUE" and an empty text at the end, or NULL. */
static char *stored_variables;

static int is_weir_entry(const char *entry) {
    return strncmp(entry, begins, sizeof begins - 1) == 0;
}

void weir__variables_store(void) {
    size_t bytes = 1, at = 0;

    for (char **entry = environ; entry && *entry; entry++)
        bytes += is_weir_entry(*entry) ? strlen(*entry) + 1 : 0;
    stored_variables = bytes > 1 ? calloc(1, bytes) : NULL;
    for (char **entry = environ; stored_variables && entry && *entry; entry++)
        if (is_weir_entry(*entry)) {
            strcpy(stored_variables + at, *entry);
            at += strlen(*entry) + 1;
        }
}

const char *weir__variable(const char *name) {
    const char *value = getenv(name);
    size_t length = strlen(name);

    for (const char *entry = stored_variables; !value && entry && *entry;
         entry += strlen(entry) + 1)
        if (strncmp(entry, name, length) == 0 && entry[length] == '=')
            value = entry + length + 1;
    return value;
}
