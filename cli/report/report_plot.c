/* SPDX-License-Identifier: MIT */
/* report_plot.c: the pictures, drawn by gnuplot.
 *
 * gnuplot is a program that is started with a script on its standard input, in the folder where pictures go:
 * the script names files by numbers alone.  What comes out of traces and results gets into it as numbers, or as
 * text in single quotes, in which gnuplot expands nothing (quote()).
 *
 * Every difference shows without colour: by width, dashes, marks or hatching.  Lines that are black here
 * are the page's ink there (report_html.c), and so are the greys of the map.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/report/report.h"

enum { WIDTH = 1200, OVERVIEW_WIDTH = 900, LEGEND = 44, PANEL = 264, CURVES = 430 };

static const double strip = 0.24; /* below the axis, for waits, as a part of what is above it */

/* ---------------------------------------------------------------------- text ---- */

static void quote(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc((unsigned char)*text < ' ' || *text == 127 ? ' ' : *text, script);
    }
    fputc('\'', script);
}

static double number_at(const json_t *array, size_t i) {
    return (double)json_integer_value(json_array_get(array, i));
}

static double most_of(const json_t *array) {
    double most = 0.0;

    for (size_t i = 0; i < json_array_size(array); i++)
        most = fmax(most, number_at(array, i));
    return most;
}

/* A round distance of about five tics. */
static double nice_step(double range) {
    double step = pow(10.0, floor(log10(range / 5.0)));
    double times = range / 5.0 / step;

    return step * (times > 5.0 ? 10.0 : times > 2.0 ? 5.0 : times > 1.0 ? 2.0 : 1.0);
}

/* "0.01", "0.1", ...: the powers of ten from low to high in a unit of so many ns, for an axis of ns whose name has the
 * unit. */
static void time_tics(FILE *script, const char *axis, double low, double high, double unit) {
    int from = (int)floor(log10(fmax(low, 1.0))), to = (int)ceil(log10(fmax(high, 10.0)));

    fprintf(script, "set %s (", axis);
    for (int e = from; e <= to && e < 15; e++)
        fprintf(script, "%s'%g' 1e%d", e > from ? ", " : "", pow(10.0, e) / unit, e);
    for (int e = from; e < to && e < 15; e++)
        fprintf(script, ", '' 2e%d 1, '' 5e%d 1", e, e);
    fputs(")\n", script);
}

/* -------------------------------------------------------------------- layout ---- */

/* Panels in rows of so many, a legend above. */
struct grid {
    size_t columns, rows;
    int width, height, panel, legend;
};

static struct grid grid_of(size_t panels, size_t columns, int panel, int legend) {
    struct grid grid = {.columns = panels < columns ? (panels ? panels : 1) : columns,
                        .panel = panel,
                        .legend = legend};

    grid.rows = (panels + grid.columns - 1) / grid.columns;
    grid.width = WIDTH / (int)columns * (int)grid.columns;
    if (grid.width < 2 * WIDTH / 3)
        grid.width = 2 * WIDTH / 3;
    grid.height = legend + panel * (int)grid.rows;
    return grid;
}

static void begin_legend(FILE *script, const struct grid *grid) {
    fprintf(script,
            "set multiplot\nset origin 0,%.6f\nset size 1,%.6f\nset margins 0,0,0,0\n"
            "unset border\nunset tics\nset key center center horizontal samplen 3\n"
            "set xrange [0:1]\nset yrange [0:1]\n",
            1.0 - (double)grid->legend / grid->height, (double)grid->legend / grid->height);
}

static void begin_panels(FILE *script) {
    fputs("set border 3\nset key off\nset margins\nset lmargin 9\nset rmargin 2\nset tmargin 2\n"
          "set bmargin 3.4\nset xtics out nomirror scale 0.6\nset ytics out nomirror scale 0.6\n"
          "set xrange [*:*]\nset yrange [*:*]\n",
          script);
}

static void place_panel(FILE *script, const struct grid *grid, size_t i) {
    size_t row = i / grid->columns, column = i % grid->columns;

    fprintf(script, "set origin %.6f,%.6f\nset size %.6f,%.6f\n",
            (double)column / (double)grid->columns,
            1.0 - ((double)grid->legend + (double)grid->panel * (double)(row + 1)) / grid->height,
            1.0 / (double)grid->columns, (double)grid->panel / grid->height);
}

/* So many lines lower than gnuplot has it. */
static void set_title(FILE *script, const char *label, const char *behind, double drop) {
    char text[3 * REPORT_LABEL_BYTES];

    snprintf(text, sizeof text, "%s%s%s", label, *behind ? ": " : "", behind);
    fputs("set title ", script);
    quote(script, text);
    fprintf(script, " offset 0,%.1f\n", drop);
}

/* -------------------------------------------------------------------- memory ---- */

struct scale {
    double unit, top, stall_ns;
    const char *unit_name;
};

static void scale_up_to(struct scale *scale, double bytes) {
    scale->unit = 1048576.0;
    scale->unit_name = "MiB";
    if (bytes >= 4.0 * 1073741824.0) {
        scale->unit = 1073741824.0;
        scale->unit_name = "GiB";
    } else if (bytes < 4.0 * 1048576.0) {
        scale->unit = 1024.0;
        scale->unit_name = "KiB";
    }
    scale->top = fmax(bytes / scale->unit * 1.1, 1e-3);
}

/* One for all contestants, so that heights compare; who reserves more than four times the live peak leaves
 * the picture. */
static struct scale memory_scale(const struct report_trace *trace) {
    struct scale scale = {0};
    double live = 0.0;

    for (size_t i = 0; i < trace->count; i++)
        live =
            fmax(live, (double)report_number(trace->rows[i].shown, "requested_peak_bytes", NULL));
    scale.top = live;
    for (size_t i = 0; i < trace->count; i++) {
        const json_t *timeline = report_at(trace->rows[i].samples, "timeline", NULL);
        const json_t *steps = report_at(trace->rows[i].samples, "steps", NULL);
        double reserve = most_of(report_at(timeline, "reserved_high", NULL));

        if (reserve <= 4.0 * live)
            scale.top = fmax(scale.top, reserve);
        for (size_t k = 0; k < json_array_size(steps); k++)
            scale.stall_ns = fmax(
                scale.stall_ns, (double)report_number(json_array_get(steps, k), "stall_ns", NULL));
    }
    scale_up_to(&scale, scale.top);
    return scale;
}

/* As fine as a panel is drawn: finer makes the page large and shows no more. */
enum { MEMORY_PARTS = 80, STEP_PARTS = 64 };

/* The least, or the most, of a part of a series. */
static double part_of(const json_t *series, size_t part, size_t parts, int is_low) {
    size_t count = json_array_size(series);
    double value = NAN;

    for (size_t i = part * count / parts; i < (part + 1) * count / parts; i++) {
        double at = number_at(series, i);

        value = isnan(value) ? at : is_low ? fmin(value, at) : fmax(value, at);
    }
    return value;
}

/* Neither side differs in so many figures: a line goes on without it. */
static int is_level(double (*rows)[5], size_t i, size_t parts, size_t from, size_t count) {
    for (size_t k = from; k < from + count; k++)
        if (i == 0 || i + 1 >= parts ||
            (!isnan(rows[i][k]) && (rows[i][k] != rows[i - 1][k] || rows[i][k] != rows[i + 1][k])))
            return 0;
    return 1;
}

/* The area between the lowest and the highest of what varies within the parts, as one outline. */
static void band_data(FILE *script, const char *name, double (*rows)[5], size_t parts, double ops,
                      int low) {
    int any = 0;

    for (size_t i = 0; i < parts; i++)
        any |= rows[i][low] < rows[i][low + 1];
    fprintf(script, "$%s << EOD\n", name);
    for (size_t i = 0; i < 2 * parts && any; i++) {
        size_t part = i < parts ? i : 2 * parts - 1 - i;

        if (is_level(rows, part, parts, (size_t)low, 2))
            continue;
        fprintf(script, "%.1f %.5g\n", ((double)part + 0.5) * ops / (double)parts,
                rows[part][i < parts ? low + 1 : low]);
    }
    fputs(any ? "EOD\n" : "0 NaN\nEOD\n", script);
}

/* Operation, requested low and high, reserve low and high, in use; and what lies between low and high. */
static void memory_data(FILE *script, const json_t *samples, const struct scale *scale) {
    static const char *const names[5] = {"requested_low", "requested_high", "reserved_low",
                                         "reserved_high", "in_use_high"};
    const json_t *timeline = report_at(samples, "timeline", NULL);
    size_t count = json_array_size(json_object_get(timeline, names[0]));
    size_t parts = count < MEMORY_PARTS ? count : MEMORY_PARTS;
    double ops = (double)report_number(samples, "ops", NULL), rows[MEMORY_PARTS][5];

    for (size_t i = 0; i < parts; i++)
        for (size_t k = 0; k < 5; k++)
            rows[i][k] = part_of(json_object_get(timeline, names[k]), i, parts, k == 0 || k == 2) /
                         scale->unit;
    fputs("$memory << EOD\n", script);
    for (size_t i = 0; i < parts; i++) {
        if (is_level(rows, i, parts, 0, 5))
            continue;
        fprintf(script, "%.1f", ((double)i + 0.5) * ops / (double)parts);
        for (size_t k = 0; k < 5; k++)
            fprintf(script, isnan(rows[i][k]) ? " NaN" : " %.5g", rows[i][k]);
        fputc('\n', script);
    }
    if (parts == 0)
        fputs("0 NaN NaN NaN NaN NaN\n", script);
    fputs("EOD\n", script);
    band_data(script, "requested", rows, parts, ops, 0);
    band_data(script, "reserved", rows, parts, ops, 2);
}

/* Operation, reserve after it if it grew, if it shrank, height of its wait; NaN: none.  Of those that would be drawn upon
 * each other the last, and the longest wait. */
static void steps_data(FILE *script, const json_t *samples, const struct scale *scale) {
    const json_t *steps = report_at(samples, "steps", NULL);
    double ops = fmax((double)report_number(samples, "ops", NULL), 1.0);
    double at[STEP_PARTS], grew[STEP_PARTS], gave[STEP_PARTS], stall[STEP_PARTS];

    for (size_t i = 0; i < STEP_PARTS; i++)
        at[i] = grew[i] = gave[i] = stall[i] = NAN;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        double op = (double)report_number(step, "op", NULL);
        double reserve = (double)report_number(step, "reserved", NULL) / scale->unit;
        double waited = (double)report_number(step, "stall_ns", NULL);
        size_t part = (size_t)fmin(op / ops * STEP_PARTS, STEP_PARTS - 1);

        at[part] = op;
        if (report_number(step, "growths", NULL))
            grew[part] = reserve;
        if (report_number(step, "given_back", NULL))
            gave[part] = reserve;
        if (waited > 0.0)
            stall[part] = fmax(stall[part], waited);
    }
    fputs("$steps << EOD\n0 NaN NaN NaN\n", script);
    for (size_t i = 0; i < STEP_PARTS; i++) {
        if (isnan(at[i]))
            continue;
        fprintf(script, "%.0f", at[i]);
        fprintf(script, isnan(grew[i]) ? " NaN" : " %.5g", grew[i]);
        fprintf(script, isnan(gave[i]) ? " NaN" : " %.5g", gave[i]);
        fprintf(script, isnan(stall[i]) ? " NaN\n" : " %.5g\n",
                fmax(stall[i] / scale->stall_ns, 0.02) * 0.8 * strip * scale->top);
    }
    fputs("EOD\n", script);
}

/* Ends of iterations, as ticks at the top: one outline, where tics of an axis would be an element each. */
static void marks_data(FILE *script, const json_t *samples) {
    const json_t *marks = report_at(samples, "marks", NULL);

    fputs("$marks << EOD\n", script);
    for (size_t i = 0; i < json_array_size(marks) && json_array_size(marks) <= 64; i++)
        fprintf(script, "%.0f\n", number_at(marks, i));
    fputs("NaN\nEOD\n", script);
}

static const char memory_legend[] =
    "plot NaN with filledcurves y1=0 fc rgb '#808080' fs solid 0.35 title 'requested',"
    " NaN with lines lc rgb '#0072b2' lw 1.5 dt 2 title 'in use',"
    " NaN with lines lc rgb 'black' lw 2 title 'reserved',"
    " NaN with lines lc rgb '#d55e00' lw 1.5 dt 3 title 'peak requested',"
    " NaN with points lc rgb 'black' pt 8 ps 0.7 title 'growth',"
    " NaN with points lc rgb '#d55e00' pt 11 ps 0.7 title 'given back',"
    " NaN with impulses lc rgb 'black' lw 2 title 'wait (below the axis)'\n";

static void memory_labels(FILE *script, const struct report_row *row, const struct scale *scale) {
    double reserve =
        most_of(report_at(report_at(row->samples, "timeline", NULL), "reserved_high", NULL));
    double sum = (double)report_number(row->shown, "stall_ns", NULL), longest = 0.0;
    const json_t *steps = report_at(row->samples, "steps", NULL);

    for (size_t i = 0; i < json_array_size(steps); i++)
        longest = fmax(longest, (double)report_number(json_array_get(steps, i), "stall_ns", NULL));
    fputs("unset label\n", script);
    if (longest > 0.0)
        fprintf(script,
                "set label 'waits: %.3g ms, the longest %.3g' at graph 0.98, first %.5g right font "
                "',9'\n",
                sum / 1e6, longest / 1e6, -0.25 * strip * scale->top);
    if (reserve / scale->unit > scale->top)
        fprintf(script,
                "set label 'reserved: %.4g %s, off the scale' at graph 0.98, graph 0.9 right\n",
                reserve / scale->unit, scale->unit_name);
}

/* Of the bars below the axis, at the right: in ms, from none to the longest of all panels. */
static void wait_axis(FILE *script, const struct scale *scale) {
    double longest = scale->stall_ns / 1e6;

    if (longest <= 0.0)
        return;
    fprintf(script,
            "set rmargin 8\nset y2range [0:%.6g]\nset y2tics ('0' 0, '%.2g' %.6g) out scale 0.6\n"
            "set y2label 'waits, ms' offset 0,-4.2\n",
            longest * (1.0 + strip) / (0.8 * strip), longest, longest);
}

static void draw_memory(FILE *script, const struct report_trace *trace, const struct grid *grid) {
    struct scale scale = memory_scale(trace);
    double step = nice_step(scale.top);
    size_t panel = 0;

    begin_legend(script, grid);
    fputs(memory_legend, script);
    begin_panels(script);
    fprintf(script, "set yrange [%.5g:%.5g]\nset ytics 0,%.5g\n", -strip * scale.top, scale.top,
            step);
    fprintf(script, "set ylabel 'memory, %s'\nset format x '%%.0s%%c'\n", scale.unit_name);
    wait_axis(script, &scale);
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        double ops = (double)report_number(row->samples, "ops", NULL);

        if (!row->samples)
            continue;
        memory_data(script, row->samples, &scale);
        steps_data(script, row->samples, &scale);
        place_panel(script, grid, panel++);
        set_title(script, row->label, "", -1.0);
        marks_data(script, row->samples);
        memory_labels(script, row, &scale);
        fprintf(
            script,
            "set xrange [%.1f:%.1f]\nset xlabel 'allocations and frees' offset 0,0.6\n"
            "plot $memory using 1:2 with filledcurves y1=0 fc rgb '#808080' fs solid 0.25 noborder,"
            " $requested using 1:2 with filledcurves closed fc rgb '#808080' fs solid 0.44 "
            "noborder,"
            " $reserved using 1:2 with filledcurves closed fc rgb 'black' fs solid 0.18 noborder,"
            " $memory using 1:6 with lines lc rgb '#0072b2' lw 1.5 dt 2,"
            " '' using 1:5 with lines lc rgb 'black' lw 2,"
            " $marks using 1:(%.6g):(0):(%.6g) with vectors nohead lc rgb 'black' lw 1,"
            " %.6g with lines lc rgb '#d55e00' lw 1.5 dt 3,"
            " 0 with lines lc rgb 'black' lw 0.5,"
            " $steps using 1:2 with points lc rgb 'black' pt 8 ps 0.5,"
            " '' using 1:3 with points lc rgb '#d55e00' pt 11 ps 0.5,"
            " '' using 1:(%.5g):(0):4 with vectors nohead lc rgb 'black' lw 1.5\n",
            -0.01 * ops, ops, scale.top, -0.03 * scale.top,
            (double)report_number(row->shown, "requested_peak_bytes", NULL) / scale.unit,
            -strip * scale.top);
    }
    fputs("unset multiplot\n", script);
}

/* --------------------------------------------------------------------- times ---- */

struct range {
    double low, high;
};

static void stretch(struct range *range, double value) {
    if (value > 0.0 && (range->low <= 0.0 || value < range->low))
        range->low = value;
    range->high = fmax(range->high, value);
}

static struct range times_range(const struct report_trace *trace) {
    struct range range = {0.0, 0.0};

    for (size_t i = 0; i < trace->count; i++)
        for (size_t k = 0; k < trace->rows[i].count; k++) {
            size_t count;
            uint64_t *times = report_times(trace->rows[i].results[k], &count);

            for (size_t n = 0; times && n < count; n++)
                stretch(&range, (double)times[n]);
            free(times);
        }
    if (range.low <= 0.0)
        range.low = range.high = 1000.0;
    range.low /= 1.6;
    range.high *= 1.8;
    return range;
}

/* Iteration, time, whether it is an outlier; those of one repeat. */
static void times_data(FILE *script, const char *name, const json_t *result,
                       const struct changepoints *points) {
    size_t count;
    uint64_t *times = report_times(result, &count);

    fprintf(script, "$%s << EOD\n0 NaN NaN\n", name);
    for (size_t i = 0; times && i < count; i++)
        fprintf(script,
                points->is_outlier && points->is_outlier[i] ? "%zu %" PRIu64 " %" PRIu64 "\n"
                                                            : "%zu %" PRIu64 " NaN\n",
                i + 1, times[i], times[i]);
    fputs("EOD\n", script);
    free(times);
}

/* All repeats but the one that is shown. */
static void others_data(FILE *script, const struct report_row *row) {
    fputs("$others << EOD\n0 NaN\n", script);
    for (size_t k = 0; k < row->count; k++) {
        size_t count;
        uint64_t *times =
            row->results[k] == row->shown ? NULL : report_times(row->results[k], &count);

        for (size_t i = 0; times && i < count; i++)
            fprintf(script, "%zu %" PRIu64 "\n", i + 1, times[i]);
        free(times);
    }
    fputs("EOD\n", script);
}

static const struct changepoints *points_shown(const struct report_row *row) {
    for (size_t k = 0; k < row->count; k++)
        if (row->results[k] == row->shown)
            return &row->points[k];
    return NULL;
}

/* Warm-up by the exact rule, levels with their intervals, changepoints with theirs. */
static void times_marks(FILE *script, const struct report_row *row,
                        const struct changepoints *points) {
    size_t warm_up = report_warm_up(row->shown);

    fputs("unset object\nunset arrow\nunset label\n", script);
    if (warm_up > 0)
        fprintf(script,
                "set object rectangle from first 0.5, graph 0 to first %.1f, graph 1 behind fc rgb "
                "'#909090' fs pattern 4 noborder\n",
                (double)warm_up + 0.5);
    if (json_is_false(json_object_get(row->shown, "settled")))
        fputs("set label 'not settled' at graph 0.98, graph 0.94 right\n", script);
    for (size_t i = 0; i < points->level_count; i++) {
        const struct level *level = &points->levels[i];
        double from = (double)level->from + 0.5, to = from + (double)level->count;

        if (level->ns <= 0.0)
            continue;
        fprintf(script,
                "set object rectangle from %.1f, %.6g to %.1f, %.6g back fc rgb '#d55e00' fs solid "
                "0.3 noborder\nset arrow from %.1f, %.6g to %.1f, %.6g nohead lc rgb '#d55e00' lw "
                "2.5\n",
                from, fmax(level->low_ns, 1.0), to, fmax(level->high_ns, 1.0), from, level->ns, to,
                level->ns);
        if (i > 0)
            fprintf(
                script,
                "set arrow from %.1f, graph 0 to %.1f, graph 1 nohead lc rgb 'black' lw 1 dt 2\n"
                "set arrow from %.1f, graph 0.04 to %.1f, graph 0.04 heads size screen 0.004,90 lc "
                "rgb 'black' lw 1.5\n",
                from, from, (double)level->from_low + 0.5, (double)level->from_high + 0.5);
    }
}

static const char times_legend[] =
    "plot NaN with linespoints lc rgb '#0072b2' pt 7 ps 0.5 title 'an iteration',"
    " NaN with points lc rgb '#0072b2' pt 2 ps 0.8 title 'outlier',"
    " NaN with points lc rgb 'black' pt 1 ps 0.4 title 'other repeats',"
    " NaN with filledcurves y1=0 fc rgb '#909090' fs pattern 4 title 'warm-up, exact rule',"
    " NaN with lines lc rgb '#d55e00' lw 2.5 title 'level (band: 95%)',"
    " NaN with lines lc rgb 'black' lw 1 dt 2 title 'changepoint (bar: 95%)'\n";

static void draw_times(FILE *script, const struct report_trace *trace, const struct grid *grid) {
    struct range range = times_range(trace);
    size_t panel = 0, count;

    begin_legend(script, grid);
    fputs(times_legend, script);
    begin_panels(script);
    fprintf(script,
            "set logscale y\nset yrange [%.6g:%.6g]\nset ylabel 'time of an iteration, ms' offset "
            "0.5,0\nset lmargin 11\n",
            range.low, range.high);
    time_tics(script, "ytics", range.low, range.high, 1e6);
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const struct changepoints *points = row->shown ? points_shown(row) : NULL;

        if (!points || points->level_count == 0)
            continue;
        times_data(script, "times", row->shown, points);
        others_data(script, row);
        place_panel(script, grid, panel++);
        set_title(script, row->label, row->kind, -0.7);
        times_marks(script, row, points);
        count = json_array_size(json_object_get(row->shown, "iterations"));
        fprintf(script,
                "set xrange [0.5:%.1f]\nset xlabel 'iteration, from 1' offset 0,0.6\n"
                "plot $others using 1:2 with points lc rgb 'black' pt 1 ps 0.3,"
                " $times using 1:2 with %s lc rgb '#0072b2' lw 1%s,"
                " '' using 1:3 with points lc rgb '#0072b2' pt 2 ps 0.9\n",
                (double)count + 0.5, count > 32 ? "lines" : "linespoints",
                count > 32 ? "" : " pt 7 ps 0.4");
    }
    fputs("unset multiplot\n", script);
}

/* ----------------------------------------------------------------- latencies ---- */

static const char *const line_colours[] = {"black",   "#0072b2", "#d55e00", "#009e73",
                                           "#cc79a7", "#e69f00", "#56b4e9"};

enum { LINE_COLOURS = sizeof line_colours / sizeof line_colours[0], LINE_DASHES = 5 };

static void line_style(FILE *script, size_t i) {
    static const int marks[] = {1, 2, 3, 4, 6, 8, 10, 12, 5, 7, 9, 11};

    fprintf(script, "lc rgb '%s' lw 1.5 dt %zu pt %d ps 0.6", line_colours[i % LINE_COLOURS],
            i % LINE_DASHES + 1, marks[i % (sizeof marks / sizeof marks[0])]);
}

/* 1/(1-p) and the latency that a part p of all calls stays below. */
static void latency_data(FILE *script, const char *key, size_t i, const json_t *result,
                         struct range *x, struct range *y) {
    const json_t *buckets = report_at(result, key, "buckets");
    double total = 0.0, before = 0.0, most = (double)report_number(result, key, "max");
    double last_x = 0.0, last_y = 0.0;

    for (size_t k = 0; k < json_array_size(buckets); k++)
        total += number_at(json_array_get(buckets, k), 1);
    fprintf(script, "$%s%zu << EOD\n0 NaN\n", key, i);
    for (size_t k = 0; k < json_array_size(buckets); k++) {
        const json_t *bucket = json_array_get(buckets, k);
        double bound = fmax(fmin(number_at(bucket, 0), most), 1.0);

        /* What is nearer to the last point is drawn upon it. */
        if (total / (total - before) > last_x * 1.2 || bound > last_y * 1.15) {
            last_x = total / (total - before);
            last_y = bound;
            fprintf(script, "%.6g %.0f\n", last_x, last_y);
        }
        stretch(x, total / (total - before));
        stretch(y, bound);
        before += number_at(bucket, 1);
    }
    if (total > 0.0)
        fprintf(script, "%.8g %.0f\n", total, most);
    fputs("EOD\n", script);
    stretch(x, total);
}

static void percentile_tics(FILE *script, double most) {
    /* A label of a tic is a format. */
    static const char *const tics[] = {"0%%",     "90%%",     "99%%",      "99.9%%",
                                       "99.99%%", "99.999%%", "99.9999%%", "99.99999%%"};

    fputs("set xtics (", script);
    for (int e = 0; e < 8 && pow(10.0, e) <= most; e++)
        fprintf(script, "%s'%s' 1e%d", e ? ", " : "", tics[e], e);
    fputs(", '50%%' 2)\n", script);
}

static void draw_latencies(FILE *script, const struct report_trace *trace,
                           const struct grid *grid) {
    static const char *const keys[] = {"alloc_op_ns", "free_op_ns"};
    static const char *const titles[] = {"allocations", "frees"};
    struct range x = {1.0, 100.0}, y = {0.0, 0.0};

    for (size_t i = 0; i < trace->count; i++)
        for (size_t k = 0; k < 2 && trace->rows[i].shown; k++)
            latency_data(script, keys[k], i, trace->rows[i].shown, &x, &y);
    begin_legend(script, grid);
    fputs("set key maxcols 5\nplot ", script);
    for (size_t i = 0, any = 0; i < trace->count; i++) {
        if (!report_at(trace->rows[i].shown, keys[0], "buckets"))
            continue;
        fprintf(script, "%sNaN with linespoints ", any++ ? ", " : "");
        line_style(script, i);
        fputs(" title ", script);
        quote(script, trace->rows[i].label);
    }
    fputc('\n', script);
    begin_panels(script);
    fprintf(script, "set logscale xy\nset xrange [1:%.6g]\nset yrange [%.6g:%.6g]\nset grid\n",
            x.high * 1.1, fmax(y.low, 1.0) / 1.3, y.high * 1.5);
    percentile_tics(script, x.high * 1.1);
    time_tics(script, "ytics", fmax(y.low, 1.0), y.high, 1e3);
    for (size_t k = 0; k < 2; k++) {
        place_panel(script, grid, k);
        set_title(script, titles[k], "latency percentile", -0.7);
        fputs("set xlabel 'percentile of calls' offset 0,0.4\nset ylabel 'latency, µs' offset "
              "0.5,0\nset lmargin 11\nplot ",
              script);
        for (size_t i = 0, any = 0; i < trace->count; i++) {
            if (!report_at(trace->rows[i].shown, keys[0], "buckets"))
                continue;
            fprintf(script, "%s$%s%zu using 1:2 with linespoints pointinterval 8 ",
                    any++ ? ", " : "", keys[k], i);
            line_style(script, i);
        }
        fputc('\n', script);
    }
    fputs("unset multiplot\n", script);
}

/* ----------------------------------------------------------------------- map ---- */

static const double never_used = 0.0, used_before = 0.2, used_least = 0.45;

/* Cells from the lowest address, columns in order; what held a block once and holds none now is told apart. */
static void map_data(FILE *script, const json_t *columns) {
    size_t rows = strlen(json_string_value(json_object_get(json_array_get(columns, 0), "cells")));
    char *before = calloc(rows + 1, 1);

    fputs("$map << EOD\n", script);
    for (size_t i = 0; before && i < json_array_size(columns); i++) {
        const char *cells = json_string_value(json_object_get(json_array_get(columns, i), "cells"));

        for (size_t k = 0; k < rows; k++) {
            char c = cells && strlen(cells) == rows ? cells[k] : '.';
            double filled = c == '#' ? 1.0 : c >= '1' && c <= '9' ? (c - '0') / 10.0 : 0.0;
            double shade = filled > 0.0 ? used_least + (1.0 - used_least) * filled
                           : before[k]  ? used_before
                                        : never_used;

            before[k] |= filled > 0.0;
            fprintf(script, "%zu %zu %.3f\n", i, k, shade);
        }
        fputc('\n', script);
    }
    fputs("EOD\n", script);
    free(before);
}

/* Boxes of the same shades as the picture; report_html.c turns them round with it. */
static void map_legend(FILE *script) {
    static const struct {
        const char *colour, *what;
        double at;
    } boxes[] = {{"#000000", "in blocks", 0.14},
                 {"#737373", "in part", 0.30},
                 {"#cccccc", "held a block before", 0.44},
                 {"#fefefe", "never held one", 0.68}};

    for (size_t i = 0; i < sizeof boxes / sizeof boxes[0]; i++)
        fprintf(
            script,
            "set object rectangle from graph %.3f, graph 0.3 to graph %.3f, graph 0.7 fc rgb '%s' "
            "fs solid border lc rgb 'black'\nset label '%s' at graph %.3f, graph 0.5\n",
            boxes[i].at, boxes[i].at + 0.02, boxes[i].colour, boxes[i].what, boxes[i].at + 0.027);
    fputs("plot NaN notitle\nunset object\nunset label\n", script);
}

static const json_t *map_columns(const struct report_row *row) {
    const json_t *columns = report_at(row->samples, "map", "columns");
    const json_t *cells = json_object_get(json_array_get(columns, 0), "cells");

    return json_array_size(columns) > 1 && json_string_length(cells) > 1 ? columns : NULL;
}

/* With GPU work, where the configuration has run with some: that is what the program does, and maps are large. */
static int has_map(const struct report_trace *trace, const struct report_row *row) {
    int is_bare = json_object_get(row->results[0], "busy") == NULL;

    for (size_t i = 0; i < trace->count && is_bare; i++) {
        const json_t *other = trace->rows[i].results[0];

        if (json_object_get(other, "busy") && map_columns(&trace->rows[i]) &&
            json_equal(json_object_get(other, "configuration"),
                       json_object_get(row->results[0], "configuration")))
            return 0;
    }
    return map_columns(row) != NULL;
}

/* MiB of addresses that a map spans. */
static double map_height(const struct report_row *row) {
    const json_t *columns = map_columns(row);
    const json_t *cells = json_object_get(json_array_get(columns, 0), "cells");

    return (double)json_string_length(cells) *
           (double)report_number(row->samples, "map", "cell_bytes") / 1048576.0;
}

static void draw_map(FILE *script, const struct report_trace *trace, const struct grid *grid) {
    double unit = 1.0;
    size_t panel = 0;

    for (size_t i = 0; i < trace->count; i++)
        if (has_map(trace, &trace->rows[i]) && map_height(&trace->rows[i]) >= 4096.0)
            unit = 1024.0;
    begin_legend(script, grid);
    map_legend(script);
    begin_panels(script);
    fprintf(script,
            "set palette defined (0 'white', 1 'black')\nset cbrange [0:1]\nunset colorbox\n"
            "set format x '%%.0s%%c'\nset border 15\nset ylabel 'addresses, %s'\n",
            unit > 1.0 ? "GiB" : "MiB");
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const json_t *columns = map_columns(row);
        double ops = (double)report_number(row->samples, "ops", NULL);
        double height = map_height(row) / unit;

        if (!has_map(trace, row))
            continue;
        map_data(script, columns);
        place_panel(script, grid, panel++);
        set_title(script, row->label, "", -0.7);
        fprintf(script,
                "set xrange [0:%.1f]\nset yrange [0:%.6g]\nset ytics %.6g\n"
                "set xlabel 'allocations and frees' offset 0,0.6\n"
                "plot $map using (($1+0.5)*%.8g):(($2+0.5)*%.8g):3 with image\n",
                ops, height, nice_step(height), ops / (double)json_array_size(columns),
                (double)report_number(row->samples, "map", "cell_bytes") / 1048576.0 / unit);
    }
    fputs("unset multiplot\n", script);
}

/* ------------------------------------------------------------------- process ---- */

/* Seconds, requested low and high, in use, reserve low and high: each holds until the next, the last one until `end`. */
static double process_timeline(FILE *script, const json_t *timeline, double end, double unit) {
    static const char *const names[] = {"requested_low", "requested_high", "in_use_high",
                                        "reserved_low", "reserved_high"};
    const json_t *times = json_object_get(timeline, "time_ns");
    size_t count = json_array_size(times);
    double top = 0.0;

    fputs("$time << EOD\n", script);
    for (size_t i = 1; i < 2 * count + 1; i++) {
        double at = i < 2 * count ? number_at(times, i / 2) / 1e9 : end;

        if (count == 0)
            break;
        fprintf(script, "%.6f", at);
        for (size_t k = 0; k < 5; k++) {
            double value = number_at(json_object_get(timeline, names[k]), (i - 1) / 2) / unit;

            fprintf(script, " %.6g", value);
            top = fmax(top, value);
        }
        fputc('\n', script);
    }
    if (count == 0)
        fputs("0 NaN NaN NaN NaN NaN\n", script);
    fputs("EOD\n", script);
    return top;
}

/* Seconds, reserve, the same if it grew, if it shrank; up to `end'. */
static double process_events(FILE *script, const json_t *events, double end, double unit) {
    double top = 0.0, last = 0.0, reserve = 0.0;

    fputs("$events << EOD\n0 0 NaN NaN\n", script);
    for (size_t k = 0; k < json_array_size(events); k++) {
        const json_t *event = json_array_get(events, k);
        int shrinks = json_is_true(json_object_get(event, "shrink"));

        last = (double)report_number(event, "time_ns", NULL) / 1e9;
        reserve = (double)report_number(event, "reserved", NULL) / unit;
        fprintf(script, "%.6f %.6g", last, reserve);
        fprintf(script, shrinks ? " NaN %.6g\n" : " %.6g NaN\n", reserve);
        top = fmax(top, reserve);
    }
    if (end > last)
        fprintf(script, "%.6f %.6g NaN NaN\n", end, reserve);
    fputs("EOD\n", script);
    return top;
}

static int has_picture(const json_t *served) {
    return json_array_size(json_object_get(served, "events")) > 0 ||
           json_array_size(report_at(served, "timeline", "time_ns")) > 0;
}

/* One for all panels. */
static struct scale process_scale(const json_t *served) {
    struct scale scale = {0};
    double top = 0.0;

    for (size_t i = 0; i < json_array_size(served); i++)
        top = fmax(top, (double)report_number(json_array_get(served, i), "reserved_peak", NULL));
    scale_up_to(&scale, top);
    return scale;
}

/* Seconds at which the program ended; of what an older weir wrote, of its last change. */
static double end_of(const json_t *served) {
    const json_t *times = report_at(served, "timeline", "time_ns");
    const json_t *events = json_object_get(served, "events");
    double end = (double)report_number(served, "ended_ns", NULL);

    end = fmax(end, number_at(times, json_array_size(times) - 1));
    if (json_array_size(events) > 0)
        end = fmax(end, (double)report_number(json_array_get(events, json_array_size(events) - 1),
                                              "time_ns", NULL));
    return end > 0.0 ? end / 1e9 : 1e-3;
}

/* The memory of each device over time, as it was looked at; its reserve by each step. */
static void draw_process(FILE *script, const struct report_process *process,
                         const struct grid *grid) {
    const json_t *served = json_object_get(process->line, "served");
    struct scale scale = process_scale(served);
    size_t panel = 0;

    begin_legend(script, grid);
    fputs("plot NaN with filledcurves y1=0 fc rgb '#808080' fs solid 0.35 title 'requested',"
          " NaN with lines lc rgb '#0072b2' lw 1.5 dt 2 title 'in use',"
          " NaN with lines lc rgb 'black' lw 2 title 'reserved',"
          " NaN with lines lc rgb '#d55e00' lw 1.5 dt 3 title 'peak requested',"
          " NaN with points lc rgb 'black' pt 8 ps 0.7 title 'growth',"
          " NaN with points lc rgb '#d55e00' pt 11 ps 0.7 title 'given back'\n",
          script);
    begin_panels(script);
    fprintf(script, "set ylabel 'memory, %s'\nset xlabel 'time, s' offset 0,0.4\n",
            scale.unit_name);
    for (size_t i = 0; i < json_array_size(served); i++) {
        const json_t *one = json_array_get(served, i);
        double end = end_of(one);
        double live = (double)report_number(one, "requested_peak", NULL) / scale.unit, top;
        const char *device = json_string_value(json_object_get(one, "device"));
        const char *serves = json_string_value(json_object_get(one, "serves"));

        if (!has_picture(one))
            continue;
        top =
            fmax(live, process_timeline(script, json_object_get(one, "timeline"), end, scale.unit));
        top = fmax(top, process_events(script, json_object_get(one, "events"), end, scale.unit));
        place_panel(script, grid, panel++);
        set_title(script, device ? device : "", serves ? serves : "", -0.7);
        fprintf(
            script,
            "set xrange [0:%.6g]\nset yrange [0:%.6g]\n"
            "plot $time using 1:3 with filledcurves y1=0 fc rgb '#808080' fs solid 0.25 noborder,"
            " '' using 1:2:3 with filledcurves fc rgb '#808080' fs solid 0.25 noborder,"
            " '' using 1:5:6 with filledcurves fc rgb 'black' fs solid 0.18 noborder,"
            " '' using 1:4 with lines lc rgb '#0072b2' lw 1.5 dt 2,"
            " $events using 1:2 with steps lc rgb 'black' lw 2,"
            " %.6g with lines lc rgb '#d55e00' lw 1.5 dt 3,"
            " $events using 1:3 with points lc rgb 'black' pt 8 ps 0.6,"
            " '' using 1:4 with points lc rgb '#d55e00' pt 11 ps 0.6\n",
            end, fmax(top * 1.1, 1e-3), live);
    }
    fputs("unset multiplot\n", script);
}

/* ------------------------------------------------------------------ overview ---- */

static int has_dot(const struct choice *choice) {
    return choice->mean.time_ns > 0.0 && choice->mean.memory > 0.0;
}

static size_t count_dots(const struct report *report) {
    size_t count = 0;

    for (size_t i = 0; i < report->choices.count; i++)
        count += (size_t)has_dot(&report->choices.items[i]);
    return count;
}

/* Time against reserved memory, a dot each: what is lower left is better in both. */
static void draw_overview(FILE *script, const struct report *report) {
    struct range x = {0.0, 0.0}, y = {0.0, 0.0};
    size_t dots = 0;

    for (size_t i = 0; i < report->choices.count; i++) {
        const struct choice *choice = &report->choices.items[i];

        if (!has_dot(choice))
            continue;
        fprintf(script, "$dot%zu << EOD\n%.6g %.6g\nEOD\n", i, choice->mean.time_ns,
                choice->mean.memory);
        stretch(&x, choice->mean.time_ns);
        stretch(&y, choice->mean.memory);
    }
    x = (struct range){x.low / 1.6, x.high * 1.6};
    y = (struct range){fmin(y.low / 1.03, 0.95), fmax(y.high * 1.1, 1.1)};
    fprintf(script,
            "set border 3\nset grid\nset lmargin 10\nset rmargin 22\nset tmargin 1.5\nset bmargin "
            "4\nset xtics out nomirror\nset ytics out nomirror\nset key at screen 0.99, graph 1 "
            "right top Left reverse samplen 1 spacing 1.2\nset logscale xy\nset xrange "
            "[%.6g:%.6g]\nset yrange [%.6g:%.6g]\n",
            x.low, x.high, y.low, y.high);
    time_tics(script, "xtics", x.low, x.high, 1e6);
    fputs("set xlabel 'steady time of an iteration (allocations and frees), ms'\n"
          "set ylabel 'peak reserved / peak requested memory (ratio)'\nset format y '%g'\n",
          script);
    fprintf(script, y.high / y.low < 4.0 ? "set ytics 0.1\n"
                                         : "set ytics (1, 2, 5, 10, 20, 50, 100, 200, 500)\n");
    fputs("plot ", script);
    for (size_t i = 0; i < report->choices.count; i++) {
        static const int marks[] = {7, 5, 9, 11, 13, 6, 4, 8, 10, 12, 2, 1};

        if (!has_dot(&report->choices.items[i]))
            continue;
        fprintf(script, "%s$dot%zu using 1:2 with points lc rgb '%s' pt %d ps 1.4 lw 2 title ",
                dots ? ", " : "", i, line_colours[dots % LINE_COLOURS],
                marks[dots % (sizeof marks / sizeof marks[0])]);
        quote(script, report->choices.items[i].label);
        dots++;
    }
    fputc('\n', script);
}

/* ------------------------------------------------------------------ pictures ---- */

/* How many panels a picture of that kind has: 0, there is nothing to draw. */
static size_t panels_of(const struct report *report, enum picture_kind kind, size_t of) {
    const struct report_trace *trace = kind < PICTURE_PROCESS ? &report->traces[of] : NULL;
    size_t count = 0;

    if (kind == PICTURE_OVERVIEW)
        return count_dots(report) > 1;
    if (!trace) {
        const json_t *served = json_object_get(report->processes[of].line, "served");

        for (size_t i = 0; i < json_array_size(served); i++)
            count += (size_t)has_picture(json_array_get(served, i));
        return count;
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const struct changepoints *points = row->shown ? points_shown(row) : NULL;

        if (kind == PICTURE_MEMORY)
            count += report_at(row->samples, "timeline", NULL) != NULL;
        else if (kind == PICTURE_TIMES)
            count += points && points->level_count > 0;
        else if (kind == PICTURE_LATENCIES)
            count += report_at(row->shown, "alloc_op_ns", "buckets") != NULL;
        else
            count += (size_t)has_map(trace, row);
    }
    return kind == PICTURE_LATENCIES && count ? 2 : count;
}

static int add_picture(struct report *report, enum picture_kind kind, size_t of) {
    static const char *const names[] = {"memory", "times", "latencies", "map", "process"};
    int is_overview = kind == PICTURE_OVERVIEW;
    struct picture *more;

    if (panels_of(report, kind, of) == 0)
        return 1;
    more = reallocarray(report->pictures, report->picture_count + 1, sizeof *more);
    if (!more)
        return 0;
    report->pictures = more;
    more += report->picture_count++;
    *more = (struct picture){.kind = kind, .of = of};
    if (is_overview)
        snprintf(more->stem, sizeof more->stem, "overview");
    else
        snprintf(more->stem, sizeof more->stem, "%zu-%s", of + 1, names[kind]);
    return 1;
}

static int find_pictures(struct report *report) {
    if (!add_picture(report, PICTURE_OVERVIEW, 0))
        return 0;
    for (size_t t = 0; t < report->trace_count; t++)
        for (int kind = PICTURE_MEMORY; kind <= PICTURE_MAP; kind++)
            if (!add_picture(report, (enum picture_kind)kind, t))
                return 0;
    for (size_t p = 0; p < report->process_count; p++)
        if (!add_picture(report, PICTURE_PROCESS, p))
            return 0;
    return 1;
}

static void draw(FILE *script, const struct report *report, const struct picture *picture,
                 int as_png) {
    size_t panels = panels_of(report, picture->kind, picture->of);
    int is_curves = picture->kind == PICTURE_LATENCIES;
    size_t lines = is_curves ? (report->traces[picture->of].count + 4) / 5 : 0;
    struct grid grid =
        grid_of(panels, is_curves || picture->kind == PICTURE_PROCESS ? 2 : 3,
                is_curves ? CURVES : PANEL, lines > 2 ? LEGEND + 18 * (int)(lines - 2) : LEGEND);

    if (picture->kind == PICTURE_OVERVIEW)
        grid = (struct grid){.width = OVERVIEW_WIDTH, .height = CURVES};
    fputs("reset\nset encoding utf8\n", script);
    if (as_png)
        fprintf(script,
                "set terminal pngcairo size %d,%d font 'Sans,9' noenhanced background rgb "
                "'white'\nset output '%s.png'\n",
                grid.width, grid.height, picture->stem);
    else
        fprintf(script,
                "set terminal svg size %d,%d dynamic font 'sans-serif,12' noenhanced\nset "
                "output '%s.svg'\n",
                grid.width, grid.height, picture->stem);
    if (picture->kind == PICTURE_MEMORY)
        draw_memory(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_TIMES)
        draw_times(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_LATENCIES)
        draw_latencies(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_MAP)
        draw_map(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_PROCESS)
        draw_process(script, &report->processes[picture->of], &grid);
    else
        draw_overview(script, report);
    fputs("set output\n", script);
}

/* ------------------------------------------------------------------- gnuplot ---- */

/* 0 or an errno. */
static int start(FILE *script, FILE *said, const char *folder, pid_t *child) {
    static char name[] = "gnuplot", plain[] = "-d", from_input[] = "-";
    char *const arguments[] = {name, plain, from_input, NULL};
    posix_spawn_file_actions_t actions;
    extern char **environ;
    int error = posix_spawn_file_actions_init(&actions);

    if (error)
        return error;
    error = posix_spawn_file_actions_addchdir_np(&actions, folder);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, fileno(said), STDERR_FILENO);
    if (!error)
        error = posix_spawn_file_actions_adddup2(&actions, fileno(said), STDOUT_FILENO);
    if (!error)
        error = posix_spawnp(child, "gnuplot", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* The first line that says something. */
static void first_words(FILE *said, char *text, size_t bytes) {
    char line[160];

    rewind(said);
    while (fgets(line, sizeof line, said)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[strspn(line, " \t^")]) {
            snprintf(text, bytes, ": %s", line);
            return;
        }
    }
}

/* 1, or 0 with the reason. */
static int run_gnuplot(FILE *script, FILE *said, const char *folder, char *why, size_t why_bytes) {
    char words[200] = "";
    pid_t child;
    int status = 0, error;

    if (fflush(script) != 0) {
        snprintf(why, why_bytes, "the script for gnuplot cannot be written: %s", strerror(errno));
        return 0;
    }
    rewind(script);
    error = start(script, said, folder, &child);
    if (error) {
        if (error == ENOENT)
            snprintf(why, why_bytes,
                     "there is no gnuplot (Debian and Ubuntu: apt-get install "
                     "gnuplot-nox)");
        else
            snprintf(why, why_bytes, "gnuplot cannot be started: %s", strerror(error));
        return 0;
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 1;
    first_words(said, words, sizeof words);
    snprintf(why, why_bytes, "gnuplot failed%s", words);
    return 0;
}

static int draw_all(struct report *report, const char *folder, int as_png) {
    FILE *script = tmpfile(), *said = tmpfile();
    int good = script && said;

    if (!good)
        snprintf(report->no_pictures, sizeof report->no_pictures,
                 "no temporary file can be made: %s", strerror(errno));
    for (size_t i = 0; good && i < report->picture_count; i++)
        draw(script, report, &report->pictures[i], as_png);
    good =
        good && run_gnuplot(script, said, folder, report->no_pictures, sizeof report->no_pictures);
    if (script)
        fclose(script);
    if (said)
        fclose(said);
    return good;
}

/* The whole file; NULL: it cannot be read. */
static char *read_text(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;

    if (file && getdelim(&text, &room, '\0', file) < 0) {
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}

/* What pictures leave in a folder that is not to keep them. */
static void read_pictures(struct report *report, const char *folder, int keep) {
    char path[PATH_MAX];

    for (size_t i = 0; i < report->picture_count; i++) {
        snprintf(path, sizeof path, "%s/%s.svg", folder, report->pictures[i].stem);
        report->pictures[i].svg = read_text(path);
        if (!keep)
            unlink(path);
    }
}

/* A folder for as long as it takes; 1, or 0 with the reason. */
static int make_place(struct report *report, char *place, size_t bytes) {
    const char *above = getenv("TMPDIR");

    snprintf(place, bytes, "%s/weir-report-XXXXXX", above && *above ? above : "/tmp");
    if (mkdtemp(place))
        return 1;
    snprintf(report->no_pictures, sizeof report->no_pictures, "cannot make a folder for them: %s",
             strerror(errno));
    return 0;
}

int report_plot(struct report *report, const char *folder) {
    char place[PATH_MAX - 64] = "";
    int good = find_pictures(report);

    if (!good)
        snprintf(report->no_pictures, sizeof report->no_pictures, "out of memory");
    if (good && report->picture_count == 0)
        return 1;
    if (good && !folder)
        good = make_place(report, place, sizeof place);
    good = good && draw_all(report, folder ? folder : place, 0);
    if (good || place[0])
        read_pictures(report, folder ? folder : place, folder != NULL);
    if (place[0])
        rmdir(place);
    if (!good)
        fprintf(stderr, "weir: no pictures: %s\n", report->no_pictures);
    if (!good || !folder || draw_all(report, folder, 1))
        return good;
    fprintf(stderr, "weir: no PNG, the page has its pictures: %s\n", report->no_pictures);
    report->no_pictures[0] = '\0';
    return 0;
}
