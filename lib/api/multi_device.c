/* SPDX-License-Identifier: MIT */
/* multi_device.c: creates one allocator on each of several devices. */
#include <stdio.h>
#include <string.h>

#include <weir/allocator.h>

#include "base/log.h"
#include "base/result.h"
#include "base/text.h"
#include "config/settings.h"

static int are_devices_wrong(const int *devices, size_t count, char *text, size_t text_bytes) {
    if (count == 0 || count > WEIR_MOST_DEVICES) {
        snprintf(text, text_bytes, "%zu devices: expected 1 to %d", count, WEIR_MOST_DEVICES);
        return 1;
    }
    for (size_t i = 0; devices && i < count; i++) {
        size_t before = 0;

        while (devices[before] != devices[i])
            before++;
        if (before == i && devices[i] >= 0)
            continue;
        snprintf(text, text_bytes, "device %d: %s", devices[i],
                 before < i ? "it is named twice" : "devices are numbered from 0");
        return 1;
    }
    return 0;
}

/* Checks the arguments of weir_allocators_create.  Sets *name and *log to the driver and log level of the options. */
static weir_status check_arguments(const weir_options *options, const int *devices, size_t count,
                                   weir_allocator **allocators, const char **name, int *log) {
    weir_options completed;
    char message[320];
    int ordinal;
    weir_status status = weir__options_complete(options, &completed, message, sizeof message);

    *log = status == WEIR_OK ? completed.log : weir__options_log(options);
    if (status == WEIR_OK)
        status = weir__device_parse(completed.device, name, &ordinal, message, sizeof message);
    if (!allocators) {
        status = WEIR_E_INVALID;
        snprintf(message, sizeof message, "allocators is NULL");
    } else if (are_devices_wrong(devices, count, message, sizeof message)) {
        status = WEIR_E_INVALID;
    }
    if (status != WEIR_OK)
        weir__log(*log, WEIR_LOG_ERROR, "weir_allocators_create: %s", message);
    return status;
}

weir_status weir_allocators_create(const weir_options *options, const int *devices, size_t count,
                                   weir_allocator **allocators) {
    weir_allocator *made[WEIR_MOST_DEVICES];
    const char *name = NULL;
    weir_options own;
    weir_status status;
    int log = WEIR_LOG_NONE, result;

    status = check_arguments(options, devices, count, allocators, &name, &log);
    if (status != WEIR_OK)
        return weir__without_driver(status);
    weir_options_init(&own);
    if (options)
        status = weir__options_copy_in(options, &own, NULL, 0);
    for (size_t i = 0; i < count && status == WEIR_OK; i++) {
        int device = devices ? devices[i] : (int)i;
        char text[32];

        snprintf(text, sizeof text, "%s:%d", name, device);
        own.device = text;
        status = weir_allocator_create(&own, &made[i]);
        if (status != WEIR_OK) {
            weir__log(log, WEIR_LOG_ERROR, "no allocator for %zu device%s: %s: %s", count,
                      weir__plural(count), text, weir_status_message(status));
            result = weir__driver_result;
            /* Without live blocks, E_BUSY means that the host had no memory for the wait, so try again. */
            while (i-- > 0)
                for (int tries = 0; tries < 3 && weir_allocator_destroy(made[i]) == WEIR_E_BUSY;)
                    tries++;
            weir__set_driver_result(result);
            return status;
        }
    }
    if (status == WEIR_OK)
        memcpy(allocators, made, count * sizeof *made);
    return status;
}
