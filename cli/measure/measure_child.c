/* SPDX-License-Identifier: MIT */
/* measure_child.c: one process that measures driver calls: its device, its clock, what it sends back.
 *
 * What it takes it gives back; when something fails, by ending.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/group.h"
#include "cli/common/runner.h"
#include "cli/measure/measure.h"

#define GIB ((uint64_t)1 << 30)

enum { CACHE_LINE = 64, COLD_BYTES = 1 << 20 };

/* So much is had at a time; less where less is free, for others go on beside this. */
#define MOST_BYTES (20 * GIB)
#define LEAST_BYTES ((uint64_t)512 << 20)

int measure_check(struct measure *m, const char *entry) {
    if (m->result == CUDA_SUCCESS)
        return 1;
    if (!m->error[0])
        snprintf(m->error, sizeof m->error, "%s: %s", entry,
                 weir__driver_error_name(m->driver, m->result));
    return 0;
}

void measure_begin(struct measure *m) {
    m->begun = m->driver->charge ? m->driver->ticks() : stopwatch_read(&m->watch);
}

double measure_end(const struct measure *m) {
    if (m->driver->charge)
        return (double)m->driver->ticks_to_ns(m->driver->ticks() - m->begun);
    return (double)stopwatch_span(&m->watch, m->begun, stopwatch_read(&m->watch));
}

void measure_chill(const struct measure *m) {
    for (size_t i = 0; m->cold && i < COLD_BYTES; i += CACHE_LINE)
        ((volatile char *)m->cold)[i]++;
}

void measure_add(struct series *series, double ns) {
    if (series->count < SERIES)
        series->ns[series->count++] = ns;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void measure_note(const struct measure *m, const char *name, const struct series *series) {
    const size_t cut = series->count / 10;
    struct series sorted = *series;
    double sum = 0;

    if (series->count == 0)
        return;
    qsort(sorted.ns, sorted.count, sizeof sorted.ns[0], by_value);
    for (size_t i = cut; i < sorted.count - cut; i++)
        sum += sorted.ns[i];
    json_object_set_new(m->figures, name, json_real(sum / (double)(sorted.count - 2 * cut)));
}

void measure_note_at(const struct measure *m, const char *curve, uint64_t x,
                     const struct series *series) {
    char name[64];

    snprintf(name, sizeof name, "%s:%llu", curve, (unsigned long long)x);
    measure_note(m, name, series);
}

/* ---- The device ---- */

static int attribute(struct measure *m, CUdevice_attribute which) {
    int value = 0;

    return MEASURE_CALL(m, cuDeviceGetAttribute, &value, which, m->device) && value;
}

/* A program has a context, a stream and memory of the host before it wants memory of the device. */
static int open_device(struct measure *m, struct weir_cli_settings *settings,
                       struct weir_cli_device *device) {
    CUcontext context;

    if (weir_cli_device_open(settings, device, 1) != 0 ||
        !(m->driver = group_driver(device->driver, device->ordinal)))
        return 0; /* it has said why */
    if (!m->driver->charge) {
        stopwatch_make(&m->watch);
        m->cold = calloc(1, COLD_BYTES);
    }
    return MEASURE_CALL(m, cuDeviceGet, &m->device, device->ordinal) &&
           MEASURE_CALL(m, cuDevicePrimaryCtxRetain, &context, m->device) &&
           MEASURE_CALL(m, cuCtxPushCurrent, context) &&
           MEASURE_CALL(m, cuStreamCreate, &m->stream, CU_STREAM_NON_BLOCKING);
}

/* What it is, and how much of it may be had. */
static json_t *look(struct measure *m) {
    size_t free_bytes = 0, total = 0;
    char name[96] = "", has[32], wants[32];

    if (!MEASURE_CALL(m, cuDeviceGetName, name, sizeof name, m->device) ||
        !MEASURE_CALL(m, cuMemGetInfo, &free_bytes, &total))
        return NULL;
    m->budget = free_bytes / 5 * 3 < MOST_BYTES ? free_bytes / 5 * 3 : MOST_BYTES;
    weir__bytes_show(free_bytes, has, sizeof has);
    weir__bytes_show(LEAST_BYTES, wants, sizeof wants);
    if (m->budget < LEAST_BYTES / 5 * 3)
        snprintf(m->error, sizeof m->error, "the device has %s free; measuring wants %s", has,
                 wants);
    else if (!attribute(m, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) && !m->error[0])
        snprintf(m->error, sizeof m->error, "the device has no memory pools");
    return json_pack("{s:s,s:i,s:o,s:o,s:b}", "name", name, "driver_version", m->driver->version,
                     "capacity", json_integer((json_int_t)total), "context_bytes",
                     json_integer((json_int_t)(total - free_bytes)), "virtual_memory",
                     (m->driver->capabilities & WEIR_CAP_VIRTUAL) &&
                         attribute(m, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
}

static int measure_part(struct measure *m, enum measure_part part) {
    if (part == MEASURE_HANDLES)
        return measure_handles(m);
    return measure_pools(m) && measure_direct(m) && measure_calls(m);
}

int measure_child(struct weir_cli_settings *settings, enum measure_part part) {
    struct weir_cli_device device;
    struct measure m = {.figures = json_object()};
    json_t *facts = NULL;
    int good;

    good = open_device(&m, settings, &device) && (facts = look(&m)) && !m.error[0] &&
           measure_part(&m, part);
    free(m.cold);
    if (good)
        return !result_send(json_pack("{s:o,s:o}", "device", facts, "figures", m.figures));
    json_decref(facts);
    json_decref(m.figures);
    result_send(json_pack("{s:s}", "error", m.error));
    return 1;
}
