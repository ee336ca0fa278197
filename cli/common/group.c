/* SPDX-License-Identifier: MIT */
/* group.c: see group.h. */
#include "cli/common/group.h"

#include <stdio.h>

#include "ipc/group_driver.h"
#include "ipc/group_process.h"

const struct weir_driver *group_driver(const struct weir_driver *driver, int ordinal) {
    char why[WEIR_GROUP_WHY], shown[WEIR_GROUP_SHOWN];
    struct weir_group_settings settings;
    struct weir_group *g = NULL;
    CUdevice device = 0;
    int is = weir__group_settings(&settings, why, sizeof why);

    if (is == 0 || (is > 0 && driver->cuDeviceGet(&device, ordinal) != CUDA_SUCCESS))
        return driver;
    if (is > 0)
        g = weir__group_enter(driver, device, why);
    if (!g && why[0]) {
        fprintf(stderr, "weir: %s\n", why);
        return NULL;
    }
    if (g && weir__group_room(g) < WEIR_GROUP_CONTEXT_BYTES) {
        weir__group_show(g, shown);
        fprintf(stderr, "weir: no room for the device's context (an estimate of 528MiB): %s\n",
                shown);
        return NULL;
    }
    return weir__group_driver(driver);
}
