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
        *why = "there is none; builds with shared libraries have it";
    else if (strpbrk(path, ": "))
        *why = "LD_PRELOAD has no way to name a path with these letters";
    else
        return 0;
    return EXIT_OWN;
}

char *preloading_value(const char *library, int *is_there) {
    const char *before = getenv("LD_PRELOAD");
    char *both = NULL;

    *is_there = before && *before && strncmp(before, library, strlen(library)) == 0 &&
                strchr(": ", before[strlen(library)]); /* its end too */
    if (*is_there || !before || !*before)
        return strdup(*is_there ? before : library);
    return asprintf(&both, "%s:%s", library, before) < 0 ? NULL : both;
}

void preloading_no_command(struct argp_state *state) {
    const char *last = state->argv[state->argc - 1];
    const char *flag = state->argc > 2 ? state->argv[state->argc - 2] : "";

    if (last[0] != '-' && flag[0] == '-') /* all there is are flags and their values */
        argp_error(state, "no command: %s took '%s' as its value", flag, last);
    argp_error(state, "no command");
}
