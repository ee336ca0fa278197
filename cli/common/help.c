/* SPDX-License-Identifier: MIT */
/* help.c: what there is to choose from, in help texts and in messages.
 *
 * Must not know: what is listed.
 */
#include "cli/common/help.h"

#include <argp.h>
#include <stdint.h>
#include <string.h>

char *help_with_list(int key, const char *text, void (*list)(FILE *file)) {
    char *made = NULL;
    size_t bytes;
    FILE *file;

    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    file = open_memstream(&made, &bytes);
    if (!file)
        return (char *)(uintptr_t)text;
    list(file);
    fprintf(file, "\n%s", text);
    fclose(file);
    return made;
}

void help_join(char *text, size_t bytes, const char *word) {
    size_t used = strlen(text);

    snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", word);
}
