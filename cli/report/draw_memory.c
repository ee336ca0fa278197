/* SPDX-License-Identifier: MIT */
/* draw_memory.c: the picture of memory over time: requested, in use and reserved. */
#include "cli/report/report_draw.h"

#include <math.h>
#include <spawn.h>
#include <sys/wait.h>

#include "cli/report/report.h"

static const double strip = 0.24; /* below the axis, for waits, as a part of what is above it */

/* One for all configurations, so that heights compare; who reserves more than four times the peak requested memory leaves
 * the picture. */
static struct plot_scale memory_scale(const struct report_trace *trace) {
    struct plot_scale scale = {0};
    double live = 0.0;

    for (size_t i = 0; i < trace->count; i++)
        live =
            fmax(live, (double)report_number(trace->rows[i].shown, "requested_peak_bytes", NULL));
    scale.top = live;
    for (size_t i = 0; i < trace->count; i++) {
        const json_t *timeline = report_at(trace->rows[i].samples, "timeline", NULL);
        const json_t *steps = report_at(trace->rows[i].samples, "steps", NULL);
        double reserve = plot_most_of(report_at(timeline, "reserved_high", NULL));

        if (reserve <= 4.0 * live)
            scale.top = fmax(scale.top, reserve);
        for (size_t k = 0; k < json_array_size(steps); k++)
            scale.stall_ns = fmax(
                scale.stall_ns, (double)report_number(json_array_get(steps, k), "stall_ns", NULL));
    }
    plot_scale_up_to(&scale, scale.top);
    return scale;
}

/* As fine as a panel is drawn: finer makes the page large and shows no more. */
enum { MEMORY_PARTS = 80, STEP_PARTS = 64 };

/* The least, or the most, of a part of a series. */
static double part_of(const json_t *series, size_t part, size_t parts, int is_low) {
    size_t count = json_array_size(series);
    double value = NAN;

    for (size_t i = part * count / parts; i < (part + 1) * count / parts; i++) {
        double at = plot_number_at(series, i);

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
static void memory_data(FILE *script, const json_t *samples, const struct plot_scale *scale) {
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
static void steps_data(FILE *script, const json_t *samples, const struct plot_scale *scale) {
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
        fprintf(script, "%.0f\n", plot_number_at(marks, i));
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

static void memory_labels(FILE *script, const struct report_row *row,
                          const struct plot_scale *scale) {
    double reserve =
        plot_most_of(report_at(report_at(row->samples, "timeline", NULL), "reserved_high", NULL));
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
static void wait_axis(FILE *script, const struct plot_scale *scale) {
    double longest = scale->stall_ns / 1e6;

    if (longest <= 0.0)
        return;
    fprintf(script,
            "set rmargin 8\nset y2range [0:%.6g]\nset y2tics ('0' 0, '%.2g' %.6g) out scale 0.6\n"
            "set y2label 'waits, ms' offset 0,-4.2\n",
            longest * (1.0 + strip) / (0.8 * strip), longest, longest);
}

void plot_memory(FILE *script, const struct report_trace *trace, const struct plot_grid *grid) {
    struct plot_scale scale = memory_scale(trace);
    double step = plot_nice_step(scale.top);
    size_t panel = 0;

    plot_begin_legend(script, grid);
    fputs(memory_legend, script);
    plot_begin_panels(script);
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
        plot_place_panel(script, grid, panel++);
        plot_set_title(script, row->label, "", -1.0);
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
