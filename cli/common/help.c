/* SPDX-License-Identifier: MIT */
/* help.c: see help.h. */
#include "cli/common/help.h"

#include <argp.h>
#include <string.h>

#include "base/text.h"

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

int help_is_requested(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0 ||
           strcmp(argument, "-?") == 0;
}

void likeness_add(struct likeness *likeness, const char *name) {
    size_t distance = weir__text_distance(likeness->word, likeness->length, name);

    if (likeness->closest && distance >= likeness->distance)
        return;
    likeness->closest = name;
    likeness->distance = distance;
}

const char *likeness_closest(const struct likeness *likeness) {
    return likeness->closest && likeness->distance <= 2 && likeness->distance * 2 < likeness->length
               ? likeness->closest
               : NULL;
}
