/* SPDX-License-Identifier: MIT */
/* versions.c: see versions.h.
 *
 * A package of Python's has a folder NAME-VERSION.dist-info beside its modules.  That a package is for CUDA shows in its
 * name alone.
 */
#include "cli/versions.h"

#include <dirent.h>
#include <fnmatch.h>
#include <limits.h>
#include <string.h>

static const struct known {
    const char *name, *patterns[2];
    int first, last; /* 1000 major + minor; 0: any */
    const char *range, *served;
} known[FRAMEWORK_COUNT] = {
    [FRAMEWORK_JAX] = {"JAX",
                       {"jax_cuda*_pjrt-[0-9]*.dist-info", ""},
                       9,
                       12,
                       "0.9 to 0.12",
                       "its allocator cuda_async"},
    [FRAMEWORK_CUPY] = {"CuPy",
                        {"cupy-[0-9]*.dist-info", "cupy_cuda*-[0-9]*.dist-info"},
                        13000,
                        14999,
                        "13 to 14",
                        "its malloc_async"},
    [FRAMEWORK_RMM] = {"RMM",
                       {"rmm-[0-9]*.dist-info", "rmm_cu*-[0-9]*.dist-info"},
                       26000,
                       26999,
                       "26",
                       "its CudaAsyncMemoryResource"},
    [FRAMEWORK_NUMBA] = {"Numba-CUDA",
                         {"numba_cuda-[0-9]*.dist-info", ""},
                         0,
                         0,
                         NULL,
                         "it by NUMBA_CUDA_MEMORY_MANAGER=weir_cuda.numba"},
};

static void take(struct version *version, const char *folder) {
    const char *begin = strchr(folder, '-') + 1;
    int length = (int)(strrchr(folder, '.') - begin);

    snprintf(version->text, sizeof version->text, "%.*s", length, begin);
    (void)sscanf(version->text, "%d.%d.%d", &version->major, &version->minor, &version->patch);
}

static void look_at(struct version found[FRAMEWORK_COUNT], const char *name) {
    for (int i = 0; i < FRAMEWORK_COUNT; i++)
        for (int p = 0; p < 2 && !found[i].text[0]; p++)
            if (fnmatch(known[i].patterns[p], name, 0) == 0)
                take(&found[i], name);
}

void versions_find(struct version found[FRAMEWORK_COUNT], const char *folders) {
    size_t length;

    memset(found, 0, FRAMEWORK_COUNT * sizeof *found);
    for (; *folders; folders += length + (folders[length] == '\n')) {
        char path[PATH_MAX];
        struct dirent *entry;
        DIR *folder;

        length = strcspn(folders, "\n");
        if (length == 0 || length >= sizeof path)
            continue;
        snprintf(path, sizeof path, "%.*s", (int)length, folders);
        folder = opendir(path);
        while (folder && (entry = readdir(folder)))
            look_at(found, entry->d_name);
        if (folder)
            closedir(folder);
    }
}

const char *version_unknown(enum framework framework, const struct version *version) {
    const struct known *of = &known[framework];
    int number = 1000 * version->major + version->minor;

    return version->text[0] && of->range && (number < of->first || number > of->last) ? of->range
                                                                                      : NULL;
}

void versions_note(const struct version found[FRAMEWORK_COUNT], FILE *notes) {
    for (int i = 0; i < FRAMEWORK_COUNT; i++) {
        const char *range = version_unknown((enum framework)i, &found[i]);

        if (!found[i].text[0])
            continue;
        fprintf(notes, "; %s %s: weir serves %s", known[i].name, found[i].text, known[i].served);
        if (range)
            fprintf(notes, " (weir knows %s)", range);
    }
}
