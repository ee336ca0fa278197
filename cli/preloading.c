/* SPDX-License-Identifier: MIT */
/* preloading.c: see preloading.h. */
#include "cli/preloading.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder of this program, or "". */
static void own_folder(char *folder, size_t bytes) {
    ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);

    folder[length > 0 ? length : 0] = '\0';
    if (strrchr(folder, '/'))
        *strrchr(folder, '/') = '\0';
}

static int find(const char *name, char *path, size_t bytes) {
    static const char *const places[] = {"/lib/.libs/", "/"};
    char folder[4096];

    own_folder(folder, sizeof folder);
    for (size_t i = 0; *folder && i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, bytes, "%s%s%s", folder, places[i], name);
        if (access(path, R_OK) == 0)
            return 1;
    }
    /* bin/weir beside lib/weir/, wherever both were moved to */
    if (strrchr(folder, '/')) {
        *strrchr(folder, '/') = '\0';
        snprintf(path, bytes, "%s/lib/weir/%s", folder, name);
        if (access(path, R_OK) == 0)
            return 1;
    }
    snprintf(path, bytes, WEIR_PKGLIB_DIR "/%s", name);
    return access(path, R_OK) == 0;
}

int preloading_find(const char *name, char *path, size_t bytes, const char **why) {
    if (!find(name, path, bytes))
        *why =
            "it is not installed: it comes with the package weir-preload, and with builds without "
            "--disable-preload and --disable-shared";
    else if (strpbrk(path, ": "))
        *why = "LD_PRELOAD has no way to name a path with these letters";
    else
        return 0;
    return EXIT_OWN;
}

/* 1 if the list names the library. */
static int names(const char *list, const char *library) {
    size_t length;

    for (; *list; list += length + (list[length] != '\0')) {
        length = strcspn(list, ": ");
        if (length == strlen(library) && strncmp(list, library, length) == 0)
            return 1;
    }
    return 0;
}

/* The variable's value, or nothing, with that word behind. */
static int put_behind(const char *name, const char *word,
                      int (*put)(void *to, const char *name, const char *value), void *to) {
    const char *before = getenv(name);
    char *both = NULL;
    int failed =
        asprintf(&both, "%s%s%s", before ? before : "", before && *before ? ":" : "", word) < 0 ||
        put(to, name, both) != 0;

    free(both);
    return failed;
}

/* AddressSanitizer's runtime, where it is a library that the program is linked with, comes behind what is preloaded, and
 * ends the program unless it is told that this is meant so.  A program may be started by another, so all are told. */
int preloading_tell(const char *library, int (*put)(void *to, const char *name, const char *value),
                    void *to) {
    static const char asan[] = "ASAN_OPTIONS", order[] = "verify_asan_link_order";
    const char *before = getenv("LD_PRELOAD"), *options = getenv(asan);

    if ((!before || !names(before, library)) && put_behind("LD_PRELOAD", library, put, to) != 0)
        return 1;
    return (!options || !strstr(options, order)) &&
           put_behind(asan, "verify_asan_link_order=0", put, to) != 0;
}

void preloading_no_command(struct argp_state *state) {
    const char *last = state->argv[state->argc - 1];
    const char *flag = state->argc > 2 ? state->argv[state->argc - 2] : "";

    if (last[0] != '-' && flag[0] == '-') /* all there is are flags and their values */
        argp_error(state, "no command: %s took '%s' as its value", flag, last);
    argp_error(state, "no command");
}
