/* SPDX-License-Identifier: MIT */
/* draw_map.c: the picture of which blocks lay where and when. */
#include "cli/report/report_draw.h"

#include <spawn.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/report.h"

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

int plot_has_map(const struct report_trace *trace, const struct report_row *row) {
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

void plot_map(FILE *script, const struct report_trace *trace, const struct plot_grid *grid) {
    double unit = 1.0;
    size_t panel = 0;

    for (size_t i = 0; i < trace->count; i++)
        if (plot_has_map(trace, &trace->rows[i]) && map_height(&trace->rows[i]) >= 4096.0)
            unit = 1024.0;
    plot_begin_legend(script, grid);
    map_legend(script);
    plot_begin_panels(script);
    fprintf(script,
            "set palette defined (0 'white', 1 'black')\nset cbrange [0:1]\nunset colorbox\n"
            "set format x '%%.0s%%c'\nset border 15\nset ylabel 'addresses, %s'\n",
            unit > 1.0 ? "GiB" : "MiB");
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const json_t *columns = map_columns(row);
        double ops = (double)report_number(row->samples, "ops", NULL);
        double height = map_height(row) / unit;

        if (!plot_has_map(trace, row))
            continue;
        map_data(script, columns);
        plot_place_panel(script, grid, panel++);
        plot_set_title(script, row->label, "", -0.7);
        fprintf(script,
                "set xrange [0:%.1f]\nset yrange [0:%.6g]\nset ytics %.6g\n"
                "set xlabel 'allocations and frees' offset 0,0.6\n"
                "plot $map using (($1+0.5)*%.8g):(($2+0.5)*%.8g):3 with image\n",
                ops, height, plot_nice_step(height), ops / (double)json_array_size(columns),
                (double)report_number(row->samples, "map", "cell_bytes") / 1048576.0 / unit);
    }
    fputs("unset multiplot\n", script);
}
