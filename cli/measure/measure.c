/* SPDX-License-Identifier: MIT */
/* measure.c: see measure.h.  The parent: processes in turn, medians of what they say, and the profile.
 *
 * A term of the profile that is the sum of two calls' costs is told apart here: a growth has an allocation's part of
 * a pair in it, an access the call's own cost.  What takes a cost for each handle and one for each GiB is a line
 * through the medians by size, each counted by its share (the small ones are what a program makes most of).
 *
 * What was not measured stands as the built-in profile has it, and is told so in the file.  Points of a curve behind
 * the last that was measured are the built-in ones', as many times as large as the last one came out.
 */
#include "cli/measure/measure.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weir/weir.h>

#include "base/replace.h"
#include "cli/common/runner.h"
#include "driver/model/model_profile.h"

enum { PROCESSES = 5 /* for each part */, POINTS = MODEL_CURVE_POINTS };

struct profile {
    json_t *samples; /* of each figure an array, a value of each process */
    json_t *terms;   /* of the profile, "KEY" or "CURVE:X" */
    json_t *device;  /* what it says of itself */
    char spec[64];   /* "cuda:0" */
    struct model_profile built_in;
    FILE *file;
};

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of a figure; below 0: it was not measured. */
static double figure(const struct profile *p, const char *name) {
    const json_t *samples = json_object_get(p->samples, name);
    const size_t count = json_array_size(samples);
    double sorted[PROCESSES];

    if (count == 0 || count > PROCESSES)
        return -1;
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_real_value(json_array_get(samples, i));
    qsort(sorted, count, sizeof sorted[0], by_value);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static void set_term(const struct profile *p, const char *name, double value) {
    json_object_set_new(p->terms, name, json_real(value > 0 ? value : 0));
}

/* ---- Processes ---- */

static int add_samples(const struct profile *p, const json_t *figures) {
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)figures, name, value) {
        json_t *samples = json_object_get(p->samples, name);

        if (!samples && json_object_set_new(p->samples, name, json_array()) != 0)
            return 0;
        if (json_array_append(json_object_get(p->samples, name), value) != 0)
            return 0;
    }
    return 1;
}

/* 1, or 0 with a message printed. */
static int tell(const char *what, const char *message) {
    if (message[0])
        fprintf(stderr, "weir: %s: %s\n", what, message);
    return 0;
}

/* The first process opens the device, and says which it is, or why there is none. */
static int look(struct profile *p, const struct weir_cli_settings *settings, struct job *job) {
    char message[RUNNER_MESSAGE_BYTES];
    json_t *result;

    job_make(job, NULL, 0, &settings->options, settings->sources.of[WEIR_SETTING_DEVICE]);
    result = runner_run(job, -1, message, sizeof message);
    if (!result)
        return tell("looking at the device", message);
    snprintf(p->spec, sizeof p->spec, "%s", json_string_value(json_object_get(result, "spec")));
    snprintf(job->device, sizeof job->device, "%s", p->spec);
    json_decref(result);
    return 1;
}

static int measure_part(struct profile *p, struct job *job, enum measure_part part) {
    char message[RUNNER_MESSAGE_BYTES];
    json_t *result;
    int good;

    job->measure = (int)part;
    result = runner_run(job, -1, message, sizeof message);
    if (!result)
        return tell(p->spec, message);
    if (!p->device)
        p->device = json_incref(json_object_get(result, "device"));
    good = add_samples(p, json_object_get(result, "figures"));
    json_decref(result);
    return good ? 1 : tell(p->spec, "out of memory");
}

/* Both parts in turn, so that what the machine does besides meets both. */
static int measure_all(struct profile *p, struct job *job) {
    for (int i = 0; i < PROCESSES; i++) {
        if (!measure_part(p, job, MEASURE_POOLS))
            return 0;
        if (json_is_true(json_object_get(p->device, "virtual_memory")) &&
            !measure_part(p, job, MEASURE_HANDLES))
            return 0;
    }
    return 1;
}

/* ---- Terms ---- */

/* Of a figure with sizes, MiB. */
struct line {
    double each; /* ns */
    double gib;
};

/* The line with the least sum of squares of shares by which it misses a point, neither falling nor below 0. */
static struct line fit(const struct profile *p, const char *name) {
    double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0, below;
    const size_t length = strlen(name);
    struct line line = {0, 0};
    const char *key;
    json_t *ignored;

    json_object_foreach(p->samples, key, ignored) {
        const double y = figure(p, key);
        double x, weight;

        if (strncmp(key, name, length) != 0 || key[length] != ':' || y <= 0)
            continue;
        x = strtod(key + length + 1, NULL) / 1024;
        weight = 1 / (y * y);
        w += weight;
        wx += weight * x;
        wxx += weight * x * x;
        wy += weight * y;
        wxy += weight * x * y;
    }
    if (w == 0)
        return line;
    below = w * wxx - wx * wx;
    line.gib = below > 0 ? fmax((w * wxy - wx * wy) / below, 0) : 0;
    line.each = (wy - line.gib * wx) / w;
    if (line.each < 0)
        line = (struct line){0, wxy / wxx};
    return line;
}

static double at(struct line line, double mib) {
    return line.each + line.gib * mib / 1024;
}

/* How much more the first of a process took together than as many later ones. */
static double early(const struct profile *p, const char *name, double later) {
    double more = 0;

    for (int i = 1; i <= MEASURE_EARLY; i++) {
        char key[32];

        snprintf(key, sizeof key, "%s:%d", name, i);
        if (json_object_get(p->samples, key))
            more += figure(p, key) - later;
    }
    return more;
}

static void handle_terms(const struct profile *p) {
    enum { EARLY_MIB = 32 };
    const struct line create = fit(p, "create"), map = fit(p, "map"), access = fit(p, "access"),
                      unmap = fit(p, "unmap"), release = fit(p, "release"),
                      again = fit(p, "access-again"), nothing = fit(p, "unmap-nothing");

    if (figure(p, "create:2") < 0)
        return;
    set_term(p, "cuMemCreate", create.each);
    set_term(p, "virtual_create_gib_ns", create.gib);
    set_term(p, "cuMemMap", at(map, EARLY_MIB));
    set_term(p, "cuMemSetAccess", again.each);
    set_term(p, "virtual_access_handle_ns", access.each - again.each);
    set_term(p, "virtual_access_gib_ns", access.gib);
    set_term(p, "cuMemUnmap", nothing.each);
    set_term(p, "virtual_unmap_handle_ns", unmap.each - nothing.each);
    set_term(p, "virtual_unmap_gib_ns", unmap.gib);
    set_term(p, "cuMemRelease", release.each);
    set_term(p, "virtual_release_gib_ns", release.gib);
    set_term(p, "virtual_first_ns",
             early(p, "early-handle",
                   at(create, EARLY_MIB) + at(map, EARLY_MIB) + at(access, EARLY_MIB)));
}

/* The points of a curve, less what else was in them. */
static void curve_terms(const struct profile *p, const char *name, double less) {
    const size_t length = strlen(name);
    const char *key;
    json_t *ignored;

    json_object_foreach(p->samples, key, ignored) {
        if (strncmp(key, name, length) == 0 && key[length] == ':')
            set_term(p, key, figure(p, key) - less);
    }
}

static void pool_terms(const struct profile *p) {
    const double alloc = figure(p, "pool-alloc"), pair = figure(p, "pool_pair_ns:1"),
                 grown = figure(p, "pool_grow_ns:1");

    curve_terms(p, "pool_grow_ns", alloc);
    curve_terms(p, "pool_move_ns", alloc);
    curve_terms(p, "pool_trim_ns", figure(p, "cuMemPoolTrimTo"));
    curve_terms(p, "pool_pair_ns", 0);
    curve_terms(p, "mem_alloc_ns", 0);
    curve_terms(p, "mem_free_ns", 0);
    if (pair > 0)
        set_term(p, "pool_alloc_percent", fmin(round(100 * alloc / pair), 100));
    if (grown > 0)
        set_term(p, "pool_first_ns", early(p, "early-grow", grown));
}

/* What is a term of the profile as it was measured. */
static void plain_term(const struct profile *p, const char *key) {
    const double value = figure(p, key);

    if (value >= 0 && !json_object_get(p->terms, key))
        set_term(p, key, value);
}

/* A power of two within what the model can work with; else the built-in one stays. */
static void keep_power(const struct profile *p, const char *key, uint64_t least, uint64_t most) {
    const double value = json_number_value(json_object_get(p->terms, key));

    if (value < (double)least || value > (double)most || frexp(value, &(int){0}) != 0.5)
        json_object_del(p->terms, key);
}

static void plain_terms(const struct profile *p) {
#define PLAIN(key) plain_term(p, #key);
    MODEL_PROFILE_NUMBERS(PLAIN)
#undef PLAIN
#define PLAIN(group, name, symbol, version, params, args) plain_term(p, #name);
    WEIR_DRIVER_ENTRIES(PLAIN)
#undef PLAIN
    keep_power(p, "unit_bytes", 65536, (uint64_t)1 << 30);
    keep_power(p, "page_bytes", p->built_in.small_bytes, (uint64_t)4 << 20);
}

/* What the device says of itself.  What others had of it counts as the context's: it is as little available. */
static void device_terms(const struct profile *p) {
    static const char *const keys[] = {"driver_version", "capacity", "context_bytes"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        set_term(p, keys[i], json_number_value(json_object_get(p->device, keys[i])));
    set_term(p, "virtual_memory",
             json_is_true(json_object_get(p->device, "virtual_memory")) ? 1 : 0);
}

/* ---- The file ---- */

/* Values that were measured, or those that were not. */
static void write_number(const struct profile *p, int measured, const char *key,
                         uint64_t built_in) {
    const json_t *term = json_object_get(p->terms, key);

    if ((term != NULL) == measured)
        fprintf(p->file, "%s = %.0f\n", key, term ? json_number_value(term) : (double)built_in);
}

/* A curve has to rise: neighbours that fall become their mean, and so on until none does. */
static void make_rising(double y[POINTS], size_t count) {
    size_t first[POINTS], blocks = 0; /* where each stretch of one value begins */

    for (size_t i = 0; i < count; i++) {
        first[blocks++] = i;
        while (blocks > 1 && y[first[blocks - 1]] < y[first[blocks - 2]]) {
            const size_t left = first[blocks - 2], right = first[blocks - 1];
            const double mean =
                (y[left] * (double)(right - left) + y[right] * (double)(i + 1 - right)) /
                (double)(i + 1 - left);

            for (size_t k = left; k <= i; k++)
                y[k] = mean;
            blocks--;
        }
    }
}

/* The measured points of a curve, by x. */
static size_t points_of(const struct profile *p, const char *name, double x[POINTS],
                        double y[POINTS]) {
    const size_t length = strlen(name);
    const char *key;
    size_t count = 0;
    json_t *value;

    json_object_foreach(p->terms, key, value) {
        size_t i = count;

        if (strncmp(key, name, length) != 0 || key[length] != ':' || count == POINTS / 2)
            continue;
        for (; i > 0 && x[i - 1] > strtod(key + length + 1, NULL); i--) {
            x[i] = x[i - 1];
            y[i] = y[i - 1];
        }
        x[i] = strtod(key + length + 1, NULL);
        y[i] = json_number_value(value);
        count++;
    }
    make_rising(y, count);
    return count;
}

static void write_curve(const struct profile *p, int measured, const char *name,
                        const struct model_curve *built_in) {
    double x[POINTS], y[POINTS], scale = 1;
    const size_t count = points_of(p, name, x, y);
    const uint64_t last = count ? (uint64_t)x[count - 1] : 0;
    size_t i = 0;

    if ((count > 0) != measured)
        return;
    if (count > 0 && weir__model_curve(built_in, last) > 0)
        scale = y[count - 1] / (double)weir__model_curve(built_in, last);
    if (count > 0 && built_in->x[built_in->count - 1] > last)
        fprintf(p->file, "# behind %llu: the built-in points, %.2f times\n",
                (unsigned long long)last, scale);
    fprintf(p->file, "%s =", name);
    if (count > 0 && built_in->x[0] == 0 && x[0] > 0)
        fprintf(p->file, " 0:%.0f", built_in->y[0] ? y[0] : 0.0);
    for (; i < count; i++)
        fprintf(p->file, " %.0f:%.0f", x[i], y[i]);
    for (i = 0; i < built_in->count; i++)
        if (count == 0 || built_in->x[i] > last)
            fprintf(p->file, " %llu:%.0f", (unsigned long long)built_in->x[i],
                    (double)built_in->y[i] * scale);
    fputc('\n', p->file);
}

static void write_keys(const struct profile *p, int measured) {
#define WRITE(key) write_number(p, measured, #key, p->built_in.key);
    MODEL_PROFILE_NUMBERS(WRITE)
#undef WRITE
#define WRITE(key) write_curve(p, measured, #key, &p->built_in.key);
    MODEL_PROFILE_CURVES(WRITE)
#undef WRITE
#define WRITE(group, name, symbol, version, params, args)                                          \
    if (p->built_in.call_ns[WEIR_ENTRY_##name] || json_object_get(p->terms, #name))                \
        write_number(p, measured, #name, p->built_in.call_ns[WEIR_ENTRY_##name]);
    WEIR_DRIVER_ENTRIES(WRITE)
#undef WRITE
}

/* Of calls whose cost is a line: what it was drawn through. */
static void write_sizes(const struct profile *p, const char *name) {
    const size_t length = strlen(name);
    const char *key;
    json_t *ignored;

    fprintf(p->file, "#   %-13s", name);
    json_object_foreach(p->samples, key, ignored) {
        if (strncmp(key, name, length) == 0 && key[length] == ':')
            fprintf(p->file, " %s:%.0f", key + length + 1, figure(p, key));
    }
    fputc('\n', p->file);
}

/* The model's own name says that it is one. */
static void write_head(const struct profile *p) {
    static const char *const handles[] = {"create", "map", "access", "unmap", "release"};
    const char *name = json_string_value(json_object_get(p->device, "name")),
               *end = strstr(name, " (device model)");
    const int length = end ? (int)(end - name) : (int)strnlen(name, sizeof p->built_in.name - 1);
    time_t now = time(NULL);
    struct tm broken;
    char date[32] = "";

    if (gmtime_r(&now, &broken))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &broken);
    fprintf(
        p->file,
        "# What the driver takes on %s, %.*s%s, as `weir info --measure' of weir %s found on "
        "%s:\n"
        "# medians of %d processes each.  WEIR_MODEL_PROFILE=FILE has the device model play it.\n\n"
        "name = %.*s\n\n# ---- As the device says, or measured; ns ----\n\n",
        p->spec, length, name, end ? ", the device model" : "", weir_version(), date, PROCESSES,
        length, name);
    fputs("# The first growths of a process, by a unit each, in turn:\n", p->file);
    write_sizes(p, "early-grow");
    if (figure(p, "create:2") < 0)
        return;
    fputs("# Its first handles, of 32 MiB each:\n", p->file);
    write_sizes(p, "early-handle");
    fputs("# Handles, by MiB: what the lines of cuMem... and virtual_... go through.\n", p->file);
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++)
        write_sizes(p, handles[i]);
}

/* 0, or an errno. */
static int write_profile(struct profile *p, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    int error;

    p->file = open_memstream(&text, &bytes);
    if (!p->file)
        return ENOMEM;
    write_head(p);
    write_keys(p, 1);
    fputs("\n# ---- Not measured: the built-in profile's ----\n\n", p->file);
    write_keys(p, 0);
    error = fclose(p->file) != 0 ? ENOMEM : 0;
    if (!error && path)
        error = weir__replace_file(path, 0666, 0, text, bytes);
    else if (!error && (fputs(text, stdout) == EOF || fflush(stdout) != 0))
        error = errno;
    free(text);
    return error;
}

int measure_run(const struct weir_cli_settings *settings, const char *path) {
    struct profile p = {.samples = json_object(), .terms = json_object()};
    struct weir_driver_failure failure;
    struct job job;
    int code = 1, error;

    if (weir__model_profile_load(&p.built_in, NULL, &failure) != 0)
        tell("the built-in profile", failure.text);
    else if (look(&p, settings, &job) && measure_all(&p, &job)) {
        device_terms(&p);
        handle_terms(&p);
        pool_terms(&p);
        plain_terms(&p);
        error = write_profile(&p, path);
        if (error)
            tell(path ? path : "standard output", strerror(error));
        code = error != 0;
    }
    json_decref(p.samples);
    json_decref(p.terms);
    json_decref(p.device);
    return code;
}
