/* SPDX-License-Identifier: MIT */
/* draw_process.c: the picture of a process of weir run over time. */
#include "cli/report/report_draw.h"

#include <math.h>
#include <spawn.h>

#include "cli/report/report.h"

/* Seconds, requested low and high, in use, reserve low and high: each holds until the next, the last one until `end`. */
static double process_timeline(FILE *script, const json_t *timeline, double end, double unit) {
    static const char *const names[] = {"requested_low", "requested_high", "in_use_high",
                                        "reserved_low", "reserved_high"};
    const json_t *times = json_object_get(timeline, "time_ns");
    size_t count = json_array_size(times);
    double top = 0.0;

    fputs("$time << EOD\n", script);
    for (size_t i = 1; i < 2 * count + 1; i++) {
        double at = i < 2 * count ? plot_number_at(times, i / 2) / 1e9 : end;

        if (count == 0)
            break;
        fprintf(script, "%.6f", at);
        for (size_t k = 0; k < 5; k++) {
            double value = plot_number_at(json_object_get(timeline, names[k]), (i - 1) / 2) / unit;

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

int plot_has_process(const json_t *served) {
    return json_array_size(json_object_get(served, "events")) > 0 ||
           json_array_size(report_at(served, "timeline", "time_ns")) > 0;
}

/* One for all panels. */
static struct plot_scale process_scale(const json_t *served) {
    struct plot_scale scale = {0};
    double top = 0.0;

    for (size_t i = 0; i < json_array_size(served); i++)
        top = fmax(top, (double)report_number(json_array_get(served, i), "reserved_peak", NULL));
    plot_scale_up_to(&scale, top);
    return scale;
}

/* Seconds at which the program ended; of what an older weir wrote, of its last change. */
static double end_of(const json_t *served) {
    const json_t *times = report_at(served, "timeline", "time_ns");
    const json_t *events = json_object_get(served, "events");
    double end = (double)report_number(served, "ended_ns", NULL);

    end = fmax(end, plot_number_at(times, json_array_size(times) - 1));
    if (json_array_size(events) > 0)
        end = fmax(end, (double)report_number(json_array_get(events, json_array_size(events) - 1),
                                              "time_ns", NULL));
    return end > 0.0 ? end / 1e9 : 1e-3;
}

void plot_process(FILE *script, const struct report_process *process,
                  const struct plot_grid *grid) {
    const json_t *served = json_object_get(process->line, "served");
    struct plot_scale scale = process_scale(served);
    size_t panel = 0;

    plot_begin_legend(script, grid);
    fputs("plot NaN with filledcurves y1=0 fc rgb '#808080' fs solid 0.35 title 'requested',"
          " NaN with lines lc rgb '#0072b2' lw 1.5 dt 2 title 'in use',"
          " NaN with lines lc rgb 'black' lw 2 title 'reserved',"
          " NaN with lines lc rgb '#d55e00' lw 1.5 dt 3 title 'peak requested',"
          " NaN with points lc rgb 'black' pt 8 ps 0.7 title 'growth',"
          " NaN with points lc rgb '#d55e00' pt 11 ps 0.7 title 'given back'\n",
          script);
    plot_begin_panels(script);
    fprintf(script, "set ylabel 'memory, %s'\nset xlabel 'time, s' offset 0,0.4\n",
            scale.unit_name);
    for (size_t i = 0; i < json_array_size(served); i++) {
        const json_t *one = json_array_get(served, i);
        double end = end_of(one);
        double live = (double)report_number(one, "requested_peak", NULL) / scale.unit, top;
        const char *device = json_string_value(json_object_get(one, "device"));
        const char *serves = json_string_value(json_object_get(one, "serves"));

        if (!plot_has_process(one))
            continue;
        top =
            fmax(live, process_timeline(script, json_object_get(one, "timeline"), end, scale.unit));
        top = fmax(top, process_events(script, json_object_get(one, "events"), end, scale.unit));
        plot_place_panel(script, grid, panel++);
        plot_set_title(script, device ? device : "", serves ? serves : "", -0.7);
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
