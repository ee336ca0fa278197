/* SPDX-License-Identifier: MIT */
/* version.c: see version.h.
 *
 * The driver is opened but not started: its version needs no device, and this answers at once.
 */
#include "cli/version.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <weir/weir.h>

#include "cli/common/shipped.h"
#include "cli/preloading.h"

/* A wheel has a file that names it; see packaging/wheel. */
static void print_wheel(void) {
    char path[PATH_MAX], line[160] = "";
    FILE *file = shipped_find(path, sizeof path, "share/weir/wheel", "share/weir/wheel", "")
                     ? fopen(path, "re")
                     : NULL;

    if (file && fgets(line, sizeof line, file))
        printf("wheel: %s", line);
    if (file)
        fclose(file);
}

static void print_library(void) {
    char path[PATH_MAX];
    const char *why;

    if (preloading_find("libweir-preload.so", path, sizeof path, &why) == 0)
        printf("weir run loads: %s\n", path);
    else
        printf("weir run loads: none: %s: %s\n", path, why);
}

static void print_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*ask)(int *version) = NULL;
    int version = 0, result;

    if (!driver) {
        printf("CUDA driver: none: %s\n", dlerror());
        return;
    }
    *(void **)&ask = dlsym(driver, "cuDriverGetVersion");
    result = ask ? ask(&version) : -1;
    if (result == 0)
        printf("CUDA driver: %d.%d\n", version / 1000, version % 1000 / 10);
    else
        printf("CUDA driver: libcuda.so.1 does not tell its version\n");
}

void version_print(void) {
    printf("weir %s\n", weir_version());
    print_wheel();
    print_library();
    print_driver();
}
