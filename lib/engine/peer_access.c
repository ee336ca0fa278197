/* SPDX-License-Identifier: MIT */
/* peer_access.c: implements peer_access.h. */
#include "engine/peer_access.h"

#include <stdio.h>

#include "config/settings.h"

/* Sets *can to 1 if `device` can access the memory of `home`, else to 0. */
static weir_status query_peer(const struct weir_driver *driver, CUdevice home, int device, int *can,
                              CUresult *result, char *text, size_t bytes) {
    CUdevice peer = 0;
    int count = 0;
    CUresult answer;

    *can = 0;
    *result = CUDA_SUCCESS;
    if (!(driver->capabilities & WEIR_CAP_PEER)) {
        snprintf(text, bytes, "the driver does not report which devices are peers");
        return WEIR_E_NOT_SUPPORTED;
    }
    answer = driver->cuDeviceGetCount(&count);
    /* unreached: a device number of WEIR_MOST_PEERS or more, since no machine has so many devices */
    if (answer == CUDA_SUCCESS && (device < 0 || device >= count || device >= WEIR_MOST_PEERS)) {
        snprintf(text, bytes, "peer %d: there %s %d device%s, numbered from 0", device,
                 count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
        return WEIR_E_NO_DEVICE;
    }
    if (answer == CUDA_SUCCESS)
        answer = driver->cuDeviceGet(&peer, device);
    if (answer == CUDA_SUCCESS && peer != home)
        answer = driver->cuDeviceCanAccessPeer(can, peer, home);
    if (answer == CUDA_SUCCESS)
        return WEIR_OK;
    *result = answer;
    snprintf(text, bytes, "cannot ask which devices are peers: the driver answered %s",
             weir__driver_error_name(driver, answer));
    return WEIR_E_DRIVER;
}

weir_status weir__peers_check(const struct weir_driver *driver, CUdevice home, int device,
                              CUresult *result, char *text, size_t bytes) {
    int can = 0;
    weir_status status = query_peer(driver, home, device, &can, result, text, bytes);

    if (status != WEIR_OK || can || device == home)
        return status;
    snprintf(text, bytes, "device %d cannot reach memory of device %d: they are no peers", device,
             home);
    return WEIR_E_NOT_SUPPORTED;
}

void weir__peers_change(struct weir_access *access, const CUmemAccessDesc *change) {
    size_t i = 0;

    while (i < access->count && access->list[i].location.id != change->location.id)
        i++;
    if (change->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        access->list[i] = *change;
        access->count += i == access->count;
    } else if (i < access->count) {
        access->list[i] = access->list[--access->count];
    }
}

static void add_access(struct weir_access *access, int device) {
    weir__peers_change(
        access, &(CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
}

weir_status weir__peers_read(const struct weir_driver *driver, CUdevice home, const char *peers,
                             struct weir_access *access, CUresult *result, char *text,
                             size_t bytes) {
    uint64_t wanted = 0;
    weir_status status = weir__peers_parse(peers, &wanted, text, bytes);
    int is_all = wanted == UINT64_MAX, can = 1;

    *result = CUDA_SUCCESS;
    access->count = 0;
    add_access(access, home);
    for (int i = 0; i < WEIR_MOST_PEERS && status == WEIR_OK; i++) {
        if (!(wanted >> i & 1))
            continue;
        status = is_all ? query_peer(driver, home, i, &can, result, text, bytes)
                        : weir__peers_check(driver, home, i, result, text, bytes);
        if (status == WEIR_OK && can)
            add_access(access, i);
        /* With the setting "all", these errors only end the list: no device is left, or the driver reports no peers. */
        if (is_all && (status == WEIR_E_NO_DEVICE || status == WEIR_E_NOT_SUPPORTED))
            return WEIR_OK;
    }
    return status;
}
