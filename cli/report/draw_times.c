/* SPDX-License-Identifier: MIT */
/* draw_times.c: the pictures of times: of iterations, and latencies of calls. */
#include "cli/report/report_draw.h"

#include <inttypes.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>

#include "cli/report/report.h"

static struct plot_range times_range(const struct report_trace *trace) {
    struct plot_range range = {0.0, 0.0};

    for (size_t i = 0; i < trace->count; i++)
        for (size_t k = 0; k < trace->rows[i].count; k++) {
            size_t count;
            uint64_t *times = report_times(trace->rows[i].results[k], &count);

            for (size_t n = 0; times && n < count; n++)
                plot_stretch(&range, (double)times[n]);
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

const struct changepoints *plot_points_shown(const struct report_row *row) {
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

void plot_times(FILE *script, const struct report_trace *trace, const struct plot_grid *grid) {
    struct plot_range range = times_range(trace);
    size_t panel = 0, count;

    plot_begin_legend(script, grid);
    fputs(times_legend, script);
    plot_begin_panels(script);
    fprintf(script,
            "set logscale y\nset yrange [%.6g:%.6g]\nset ylabel 'time of an iteration, ms' offset "
            "0.5,0\nset lmargin 11\n",
            range.low, range.high);
    plot_time_tics(script, "ytics", range.low, range.high, 1e6);
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const struct changepoints *points = row->shown ? plot_points_shown(row) : NULL;

        if (!points || points->level_count == 0)
            continue;
        times_data(script, "times", row->shown, points);
        others_data(script, row);
        plot_place_panel(script, grid, panel++);
        plot_set_title(script, row->label, row->kind, -0.7);
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

/* ---- latencies ---- */

static void line_style(FILE *script, size_t i) {
    static const int marks[] = {1, 2, 3, 4, 6, 8, 10, 12, 5, 7, 9, 11};

    fprintf(script, "lc rgb '%s' lw 1.5 dt %zu pt %d ps 0.6", plot_colours[i % PLOT_COLOURS],
            i % PLOT_DASHES + 1, marks[i % (sizeof marks / sizeof marks[0])]);
}

/* 1/(1-p) and the latency that a part p of all calls stays below. */
static void latency_data(FILE *script, const char *key, size_t i, const json_t *result,
                         struct plot_range *x, struct plot_range *y) {
    const json_t *buckets = report_at(result, key, "buckets");
    double total = 0.0, before = 0.0, most = (double)report_number(result, key, "max");
    double last_x = 0.0, last_y = 0.0;

    for (size_t k = 0; k < json_array_size(buckets); k++)
        total += plot_number_at(json_array_get(buckets, k), 1);
    fprintf(script, "$%s%zu << EOD\n0 NaN\n", key, i);
    for (size_t k = 0; k < json_array_size(buckets); k++) {
        const json_t *bucket = json_array_get(buckets, k);
        double bound = fmax(fmin(plot_number_at(bucket, 0), most), 1.0);

        /* What is nearer to the last point is drawn upon it. */
        if (total / (total - before) > last_x * 1.2 || bound > last_y * 1.15) {
            last_x = total / (total - before);
            last_y = bound;
            fprintf(script, "%.6g %.0f\n", last_x, last_y);
        }
        plot_stretch(x, total / (total - before));
        plot_stretch(y, bound);
        before += plot_number_at(bucket, 1);
    }
    if (total > 0.0)
        fprintf(script, "%.8g %.0f\n", total, most);
    fputs("EOD\n", script);
    plot_stretch(x, total);
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

void plot_latencies(FILE *script, const struct report_trace *trace, const struct plot_grid *grid) {
    static const char *const keys[] = {"alloc_op_ns", "free_op_ns"};
    static const char *const titles[] = {"allocations", "frees"};
    struct plot_range x = {1.0, 100.0}, y = {0.0, 0.0};

    for (size_t i = 0; i < trace->count; i++)
        for (size_t k = 0; k < 2 && trace->rows[i].shown; k++)
            latency_data(script, keys[k], i, trace->rows[i].shown, &x, &y);
    plot_begin_legend(script, grid);
    fputs("set key maxcols 5\nplot ", script);
    for (size_t i = 0, any = 0; i < trace->count; i++) {
        if (!report_at(trace->rows[i].shown, keys[0], "buckets"))
            continue;
        fprintf(script, "%sNaN with linespoints ", any++ ? ", " : "");
        line_style(script, i);
        fputs(" title ", script);
        plot_quote(script, trace->rows[i].label);
    }
    fputc('\n', script);
    plot_begin_panels(script);
    fprintf(script, "set logscale xy\nset xrange [1:%.6g]\nset yrange [%.6g:%.6g]\nset grid\n",
            x.high * 1.1, fmax(y.low, 1.0) / 1.3, y.high * 1.5);
    percentile_tics(script, x.high * 1.1);
    plot_time_tics(script, "ytics", fmax(y.low, 1.0), y.high, 1e3);
    for (size_t k = 0; k < 2; k++) {
        plot_place_panel(script, grid, k);
        plot_set_title(script, titles[k], "latency percentile", -0.7);
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
