/* SPDX-License-Identifier: MIT */
/* measure.c: measures how long driver calls take on a device, and writes a profile for the device model
 * (lib/driver/model).
 *
 *     bench/measure [cuda[:N]|model[:N]] >FILE      writes a profile; the model reads it if WEIR_MODEL_PROFILE=FILE
 *
 * Ten processes measure one after another: five measure memory pools, and five measure physical allocations (handles
 * of cuMemCreate).  There are several processes because the first calls in a process take longer, and a process can
 * measure these only once.  The profile contains the medians over the processes.
 *
 * A value of the profile may be a part of a measured time, and is then computed by a subtraction.  For example, the
 * measured time of a growth contains the time of an ordinary allocation, and the time of cuMemSetAccess contains a
 * fixed cost of the call.  The time of a call on a handle depends linearly on the size of the handle.  The program
 * fits this line with the smallest relative error, because programs use mostly small handles.
 *
 * If a value cannot be measured, the profile gets the value of the built-in profile, and a comment that says so.  If
 * some sizes of a curve do not fit on the device, the profile gets built-in points for these sizes.  These points
 * are scaled by the ratio of the measured to the built-in time at the largest size that fits.
 */
#include "bench/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "bench/common.h"
#include "driver/model/model_profile.h"

/* Each part of the profile is measured by PROCESSES processes. */
enum { PROCESSES = 5, POINTS = MODEL_CURVE_POINTS, MAX_FIGURES = 512 };
enum { EARLY_MIB = 32 };

/* A figure with a measured value from each process, or with one value of the profile. */
struct figure {
    char name[64];
    double values[PROCESSES];
    size_t count;
};

struct figures {
    size_t count;
    struct figure of[MAX_FIGURES];
};

static struct figures samples, terms;
static struct model_profile built_in;
static char device_name[128];

/* ------------------------------------------------------------------- figures ---- */

static struct figure *find_figure(struct figures *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->of[i].name, name) == 0)
            return &list->of[i];
    return NULL;
}

static void add_value(struct figures *list, const char *name, double value) {
    struct figure *figure = find_figure(list, name);

    if (!figure && list->count < MAX_FIGURES) {
        figure = &list->of[list->count++];
        snprintf(figure->name, sizeof figure->name, "%s", name);
    }
    if (!figure || figure->count == PROCESSES)
        bench_fail(name, "there are too many figures");
    figure->values[figure->count++] = value;
}

/* Returns the x of a point on the curve: the number in the figure's name, such as 8 in "pool_grow_ns:8".  Returns a
 * negative value if the figure is not on this curve. */
static double point_of_curve(const char *curve, const struct figure *figure) {
    const size_t length = strlen(curve);

    return strncmp(figure->name, curve, length) == 0 && figure->name[length] == ':'
               ? strtod(figure->name + length + 1, NULL)
               : -1;
}

/* Returns the median of a measured figure over the processes, or a negative value if it was not measured. */
static double measured_median(const char *name) {
    struct figure *figure = find_figure(&samples, name);

    return figure ? bench_median(figure->values, figure->count) : -1;
}

static void set_term(const char *name, double value) {
    add_value(&terms, name, value > 0 ? value : 0);
}

/* ----------------------------------------------------------------- processes ---- */

static void receive_figures(FILE *from) {
    char line[256], name[64];
    double value;

    while (fgets(line, sizeof line, from))
        if (strncmp(line, "name ", 5) == 0)
            snprintf(device_name, sizeof device_name, "%.*s", (int)strcspn(line + 5, "\n"),
                     line + 5);
        else if (sscanf(line, "%63s %lf", name, &value) == 2)
            add_value(&samples, name, value);
}

/* Measures one part in a child process, because a process can measure first calls only once, and CUDA does not work
 * after a fork. */
static void measure_in_process(const char *device, enum measure_part part) {
    int ends[2], status = 0;
    FILE *file;
    pid_t child;

    if (pipe(ends) != 0 || (child = fork()) < 0)
        bench_fail("fork", "there is no process to be had");
    if (child == 0) {
        close(ends[0]);
        file = fdopen(ends[1], "w");
        if (!file)
            bench_fail("fdopen", "out of memory");
        measure_child(device, part, file);
        exit(fclose(file) != 0);
    }
    close(ends[1]);
    file = fdopen(ends[0], "r");
    if (!file)
        bench_fail("fdopen", "out of memory");
    receive_figures(file);
    fclose(file);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        bench_fail(device, "a process was killed");
    if (WEXITSTATUS(status) != 0)
        exit(1); /* the child has printed the reason */
}

/* --------------------------------------------------------------------- terms ---- */

/* The time of a call on a handle, as a straight line over the size of the handle. */
struct line {
    double each; /* the time at size 0, in ns */
    double gib;  /* the additional time for each GiB, in ns */
};

/* Fits a line to the measured points, with the smallest sum of squared relative errors.  The line must not fall, and
 * must not have negative values. */
static struct line fit_line(const char *name) {
    double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0, below;
    struct line line = {0, 0};

    for (size_t i = 0; i < samples.count; i++) {
        const double x = point_of_curve(name, &samples.of[i]) / 1024,
                     y = measured_median(samples.of[i].name);
        double weight;

        if (x < 0 || y <= 0)
            continue;
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
    return line.each < 0 ? (struct line){0, wxy / wxx} : line;
}

static double line_at(struct line line, double mib) {
    return line.each + line.gib * mib / 1024;
}

/* Returns the sum of the additional times of a process's first calls.  `later' is the time of a later call. */
static double excess_of_first_calls(const char *name, double later) {
    double more = 0;

    for (size_t i = 0; i < samples.count; i++)
        if (point_of_curve(name, &samples.of[i]) >= 0)
            more += measured_median(samples.of[i].name) - later;
    return more;
}

static void handle_terms(void) {
    const struct line create = fit_line("create"), map = fit_line("map"),
                      access = fit_line("access"), unmap = fit_line("unmap"),
                      release = fit_line("release"), again = fit_line("access-again"),
                      nothing = fit_line("unmap-nothing");

    if (measured_median("create:2") < 0)
        return;
    set_term("cuMemCreate", create.each);
    set_term("virtual_create_gib_ns", create.gib);
    set_term("cuMemMap", line_at(map, EARLY_MIB));
    set_term("cuMemSetAccess", again.each);
    set_term("virtual_access_handle_ns", access.each - again.each);
    set_term("virtual_access_gib_ns", access.gib);
    set_term("cuMemUnmap", nothing.each);
    set_term("virtual_unmap_handle_ns", unmap.each - nothing.each);
    set_term("virtual_unmap_gib_ns", unmap.gib);
    set_term("cuMemRelease", release.each);
    set_term("virtual_release_gib_ns", release.gib);
    set_term("virtual_first_ns",
             excess_of_first_calls("early-handle", line_at(create, EARLY_MIB) +
                                                       line_at(map, EARLY_MIB) +
                                                       line_at(access, EARLY_MIB)));
}

/* Sets the points of a curve to the measured times minus `less', a time that another value of the profile contains. */
static void set_curve_terms(const char *name, double less) {
    for (size_t i = 0; i < samples.count; i++)
        if (point_of_curve(name, &samples.of[i]) >= 0)
            set_term(samples.of[i].name, measured_median(samples.of[i].name) - less);
}

static void set_pool_terms(void) {
    const double alloc = measured_median("pool-alloc"), grown = measured_median("pool_grow_ns:1");

    set_curve_terms("pool_grow_ns", alloc);
    set_curve_terms("pool_move_ns", alloc);
    set_curve_terms("pool_trim_ns", measured_median("cuMemPoolTrimTo"));
    set_curve_terms("pool_pair_ns", 0);
    set_curve_terms("mem_alloc_ns", 0);
    set_curve_terms("mem_free_ns", 0);
    set_term("pool_alloc_percent",
             fmin(round(100 * alloc / measured_median("pool_pair_ns:1")), 100));
    if (grown > 0)
        set_term("pool_first_ns", excess_of_first_calls("early-grow", grown));
}

/* Sets a value of the profile to the measured value, if there is one.  If `most' is not 0, accepts only a power of two
 * from `least' to `most', because the model needs such a number. */
static void set_plain_term(const char *key, uint64_t least, uint64_t most) {
    const double value = measured_median(key);
    const int is_power = frexp(value, &(int){0}) == 0.5;

    if (value >= 0 && !find_figure(&terms, key) &&
        (!most || (is_power && value >= (double)least && value <= (double)most)))
        set_term(key, value);
}

static void plain_terms(void) {
    const uint64_t mib = (uint64_t)1 << 20;

#define PLAIN(key)                                                                                 \
    if (strcmp(#key, "unit_bytes") == 0)                                                           \
        set_plain_term(#key, 65536, 1024 * mib);                                                   \
    else if (strcmp(#key, "page_bytes") == 0)                                                      \
        set_plain_term(#key, built_in.small_bytes, 4 * mib);                                       \
    else                                                                                           \
        set_plain_term(#key, 0, 0);
    MODEL_PROFILE_NUMBERS(PLAIN)
#undef PLAIN
#define PLAIN(group, name, symbol, version, params, args) set_plain_term(#name, 0, 0);
    WEIR_DRIVER_ENTRIES(PLAIN)
#undef PLAIN
}

/* ------------------------------------------------------------------ the file ---- */

/* If `measured' is 1, writes a value of the profile if it was measured.  If `measured' is 0, writes the built-in value
 * `otherwise' if the value was not measured. */
static void write_number(int measured, const char *key, uint64_t otherwise) {
    const struct figure *term = find_figure(&terms, key);

    if ((term != NULL) == measured)
        printf("%s = %.0f\n", key, term ? term->values[0] : (double)otherwise);
}

/* Replaces neighbouring points by their mean, until each point of the curve is at least as high as the point before.
 * The model does not accept a curve that falls. */
static void make_rising(double y[POINTS], size_t count) {
    /* The index of the first point of each run of equal values. */
    size_t first[POINTS], stretches = 0;

    for (size_t i = 0; i < count; i++) {
        first[stretches++] = i;
        while (stretches > 1 && y[first[stretches - 1]] < y[first[stretches - 2]]) {
            const size_t left = first[stretches - 2], right = first[stretches - 1];
            const double mean =
                (y[left] * (double)(right - left) + y[right] * (double)(i + 1 - right)) /
                (double)(i + 1 - left);

            for (size_t k = left; k <= i; k++)
                y[k] = mean;
            stretches--;
        }
    }
}

/* Stores the measured points of a curve in x and y, by rising x, and returns their number. */
static size_t points_of(const char *name, double x[POINTS], double y[POINTS]) {
    size_t count = 0;

    for (size_t t = 0; t < terms.count && count < POINTS / 2; t++)
        if (point_of_curve(name, &terms.of[t]) >= 0) {
            x[count] = point_of_curve(name, &terms.of[t]);
            y[count++] = terms.of[t].values[0];
        }
    make_rising(y, count);
    return count;
}

static void write_curve(int measured, const char *name, const struct model_curve *curve) {
    double x[POINTS], y[POINTS], scale = 1;
    const size_t count = points_of(name, x, y);
    const uint64_t last = count ? (uint64_t)x[count - 1] : 0;

    if ((count > 0) != measured)
        return;
    if (count > 0 && weir__model_curve(curve, last) > 0)
        scale = y[count - 1] / (double)weir__model_curve(curve, last);
    if (count > 0 && curve->x[curve->count - 1] > last)
        printf("# behind %llu: the built-in points, %.2f times\n", (unsigned long long)last, scale);
    printf("%s =", name);
    if (count > 0 && curve->x[0] == 0 && x[0] > 0)
        printf(" 0:%.0f", curve->y[0] ? y[0] : 0.0);
    for (size_t i = 0; i < count; i++)
        printf(" %.0f:%.0f", x[i], y[i]);
    for (size_t i = 0; i < curve->count; i++)
        if (count == 0 || curve->x[i] > last)
            printf(" %llu:%.0f", (unsigned long long)curve->x[i], (double)curve->y[i] * scale);
    putchar('\n');
}

static void write_keys(int measured) {
#define WRITE(key) write_number(measured, #key, built_in.key);
    MODEL_PROFILE_NUMBERS(WRITE)
#undef WRITE
#define WRITE(key) write_curve(measured, #key, &built_in.key);
    MODEL_PROFILE_CURVES(WRITE)
#undef WRITE
#define WRITE(group, name, symbol, version, params, args)                                          \
    if (built_in.call_ns[WEIR_ENTRY_##name] || find_figure(&terms, #name))                         \
        write_number(measured, #name, built_in.call_ns[WEIR_ENTRY_##name]);
    WEIR_DRIVER_ENTRIES(WRITE)
#undef WRITE
}

static void print_profile(const char *device) {
    static const char modelled[] = " (device model)"; /* the end of the device model's name */
    char *end = strstr(device_name, modelled), date[32] = "";
    time_t now = time(NULL);
    struct tm broken;

    if (end)
        *end = '\0';
    if (gmtime_r(&now, &broken))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &broken);
    printf("# What the driver takes on %s, %s%s, as bench/measure of weir %s found on %s:\n"
           "# medians of %d processes each.  WEIR_MODEL_PROFILE=FILE has the device model use it.\n"
           "\nname = %.*s\n\n# ---- As the device says, or measured; ns ----\n\n",
           device, device_name, end ? modelled : "", weir_version(), date, PROCESSES,
           (int)sizeof built_in.name - 1, device_name);
    write_keys(1);
    puts("\n# ---- Not measured: the built-in profile's ----\n");
    write_keys(0);
    if (fflush(stdout) != 0)
        bench_fail("the profile", "it cannot be written");
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cuda";
    struct weir_driver_failure failure;

    if (argc > 2 || device[0] == '-') {
        fputs("usage: measure [cuda[:N]|model[:N]] >FILE\n"
              "Measures the driver's calls, and writes a profile for the device model\n"
              "(WEIR_MODEL_PROFILE=FILE).  This takes some seconds, and at most 20 GiB and 60% of\n"
              "the free memory at a time.\n",
              strcmp(device, "--help") == 0 ? stdout : stderr);
        return strcmp(device, "--help") == 0 ? 0 : 2;
    }
    if (weir__model_profile_load(&built_in, NULL, &failure) != 0)
        bench_fail("the built-in profile", failure.text);
    for (int i = 0; i < PROCESSES; i++) {
        measure_in_process(device, MEASURE_POOLS);
        if (measured_median("virtual_memory") > 0)
            measure_in_process(device, MEASURE_HANDLES);
    }
    handle_terms();
    set_pool_terms();
    plain_terms();
    print_profile(device);
    return 0;
}
