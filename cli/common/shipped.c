/* SPDX-License-Identifier: MIT */
/* shipped.c: see shipped.h.
 *
 * The folder of the installation is known at build time, but the user may move the installation later.  Therefore
 * the program first searches the folders above its own file.
 */
#include "cli/common/shipped.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef WEIR_TRACES_DIR
#define WEIR_TRACES_DIR "/usr/local/share/weir/traces"
#endif

static const char ending[] = ".trace.zst";

/* Searches for the files `places' in the folder of the program, then in the folder above it. */
static int find_upward(char *found, size_t bytes, const char *const places[2]) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);

    if (length <= 0)
        return 0;
    path[length] = '\0';
    for (int level = 0; level < 2; level++) {
        char *slash = strrchr(path, '/');

        if (!slash)
            return 0;
        *slash = '\0';
        for (int i = 0; i < 2; i++)
            if (snprintf(found, bytes, "%s/%s", path, places[i]) < (int)bytes &&
                access(found, R_OK) == 0)
                return 1;
    }
    return 0;
}

int shipped_find(char *path, size_t bytes, const char *in_tree, const char *installed,
                 const char *standard) {
    const char *const places[2] = {in_tree, installed};

    if (!find_upward(path, bytes, places))
        snprintf(path, bytes, "%s", standard);
    return access(path, R_OK) == 0;
}

const char *shipped_folder(void) {
    static char folder[PATH_MAX];

    if (!folder[0])
        (void)shipped_find(folder, sizeof folder, "bench/traces", "share/weir/traces",
                           WEIR_TRACES_DIR);
    return access(folder, R_OK | X_OK) == 0 ? folder : NULL;
}

static int is_trace(const struct dirent *entry) {
    size_t length = strlen(entry->d_name), cut = sizeof ending - 1;

    return length > cut && strcmp(entry->d_name + length - cut, ending) == 0;
}

static char *join_path(const char *folder, const char *name, const char *end) {
    char *path;

    return asprintf(&path, "%s/%s%s", folder, name, end) < 0 ? NULL : path;
}

char **shipped_list(size_t *count) {
    const char *folder = shipped_folder();
    struct dirent **entries;
    int found = folder ? scandir(folder, &entries, is_trace, alphasort) : -1;
    char **paths;

    *count = 0;
    if (found < 0)
        return NULL;
    paths = calloc((size_t)found + 1, sizeof *paths);
    for (int i = 0; i < found; i++) {
        if (paths && (paths[*count] = join_path(folder, entries[i]->d_name, "")))
            ++*count;
        free(entries[i]);
    }
    free(entries);
    if (*count)
        return paths;
    free(paths);
    return NULL;
}

void shipped_free(char **paths, size_t count) {
    for (size_t i = 0; paths && i < count; i++)
        free(paths[i]);
    free(paths);
}

char *shipped_resolve(const char *argument) {
    const char *folder;
    char *path;

    if (strcmp(argument, "-") == 0 || strchr(argument, '/') || access(argument, F_OK) == 0)
        return strdup(argument);
    folder = shipped_folder();
    path = folder ? join_path(folder, argument, ending) : NULL;
    if (path && access(path, R_OK) == 0)
        return path;
    free(path);
    return strdup(argument);
}

void shipped_print_names(const char *path) {
    size_t count;
    char **paths;

    if (strcmp(path, "-") == 0 || strchr(path, '/') || access(path, F_OK) == 0)
        return;
    paths = shipped_list(&count);
    for (size_t i = 0; i < count; i++) {
        const char *name = strrchr(paths[i], '/') + 1;

        fprintf(stderr, "%s%.*s%s", i ? ", " : "weir: the traces that come with it: ",
                (int)(strlen(name) - (sizeof ending - 1)), name, i + 1 < count ? "" : "\n");
    }
    shipped_free(paths, count);
}
