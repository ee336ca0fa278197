/* SPDX-License-Identifier: MIT */
/* draw_layout.c: what all pictures need: text, numbers, axes, and the places of panels. */
#include "cli/report/report_draw.h"

#include <math.h>
#include <spawn.h>

#include "cli/report/report.h"

void plot_quote(FILE *script, const char *text) {
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc((unsigned char)*text < ' ' || *text == 127 ? ' ' : *text, script);
    }
    fputc('\'', script);
}

double plot_number_at(const json_t *array, size_t i) {
    return (double)json_integer_value(json_array_get(array, i));
}

double plot_most_of(const json_t *array) {
    double most = 0.0;

    for (size_t i = 0; i < json_array_size(array); i++)
        most = fmax(most, plot_number_at(array, i));
    return most;
}

double plot_nice_step(double range) {
    double step = pow(10.0, floor(log10(range / 5.0)));
    double times = range / 5.0 / step;

    return step * (times > 5.0 ? 10.0 : times > 2.0 ? 5.0 : times > 1.0 ? 2.0 : 1.0);
}

void plot_time_tics(FILE *script, const char *axis, double low, double high, double unit) {
    int from = (int)floor(log10(fmax(low, 1.0))), to = (int)ceil(log10(fmax(high, 10.0)));

    fprintf(script, "set %s (", axis);
    for (int e = from; e <= to && e < 15; e++)
        fprintf(script, "%s'%g' 1e%d", e > from ? ", " : "", pow(10.0, e) / unit, e);
    for (int e = from; e < to && e < 15; e++)
        fprintf(script, ", '' 2e%d 1, '' 5e%d 1", e, e);
    fputs(")\n", script);
}

/* ---- layout ---- */

struct plot_grid plot_grid_of(size_t panels, size_t columns, int panel, int legend) {
    struct plot_grid grid = {.columns = panels < columns ? (panels ? panels : 1) : columns,
                             .panel = panel,
                             .legend = legend};

    grid.rows = (panels + grid.columns - 1) / grid.columns;
    grid.width = PLOT_WIDTH / (int)columns * (int)grid.columns;
    if (grid.width < 2 * PLOT_WIDTH / 3)
        grid.width = 2 * PLOT_WIDTH / 3;
    grid.height = legend + panel * (int)grid.rows;
    return grid;
}

void plot_begin_legend(FILE *script, const struct plot_grid *grid) {
    fprintf(script,
            "set multiplot\nset origin 0,%.6f\nset size 1,%.6f\nset margins 0,0,0,0\n"
            "unset border\nunset tics\nset key center center horizontal samplen 3\n"
            "set xrange [0:1]\nset yrange [0:1]\n",
            1.0 - (double)grid->legend / grid->height, (double)grid->legend / grid->height);
}

void plot_begin_panels(FILE *script) {
    fputs("set border 3\nset key off\nset margins\nset lmargin 9\nset rmargin 2\nset tmargin 2\n"
          "set bmargin 3.4\nset xtics out nomirror scale 0.6\nset ytics out nomirror scale 0.6\n"
          "set xrange [*:*]\nset yrange [*:*]\n",
          script);
}

void plot_place_panel(FILE *script, const struct plot_grid *grid, size_t i) {
    size_t row = i / grid->columns, column = i % grid->columns;

    fprintf(script, "set origin %.6f,%.6f\nset size %.6f,%.6f\n",
            (double)column / (double)grid->columns,
            1.0 - ((double)grid->legend + (double)grid->panel * (double)(row + 1)) / grid->height,
            1.0 / (double)grid->columns, (double)grid->panel / grid->height);
}

void plot_set_title(FILE *script, const char *label, const char *behind, double drop) {
    char text[3 * REPORT_LABEL_BYTES];

    snprintf(text, sizeof text, "%s%s%s", label, *behind ? ": " : "", behind);
    fputs("set title ", script);
    plot_quote(script, text);
    fprintf(script, " offset 0,%.1f\n", drop);
}

/* ---- axes ---- */

void plot_scale_up_to(struct plot_scale *scale, double bytes) {
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

void plot_stretch(struct plot_range *range, double value) {
    if (value > 0.0 && (range->low <= 0.0 || value < range->low))
        range->low = value;
    range->high = fmax(range->high, value);
}

const char *const plot_colours[PLOT_COLOURS] = {"black",   "#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#e69f00", "#56b4e9"};
