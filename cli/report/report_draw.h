/* SPDX-License-Identifier: MIT */
/* report_draw.h: the kinds of pictures, each of which writes a script for gnuplot.
 *
 * What: draw_layout.c has what all scripts need; draw_memory.c, draw_times.c, draw_map.c, draw_process.c and
 * draw_overview.c write one kind each; report_plot.c chooses pictures and runs gnuplot.
 *
 * Invariants: what comes out of traces and results gets into a script as numbers, or as text in single quotes, in which
 * gnuplot expands nothing (plot_quote).  Every difference shows without colour: by width, dashes, marks or hatching.
 * Lines that are black here are the page's ink there (report_html.c), and so are the greys of the map.
 */
#ifndef WEIR_CLI_REPORT_DRAW_H
#define WEIR_CLI_REPORT_DRAW_H

#include "cli/report/report.h"

/* ---- layout: draw_layout.c ---- */

enum {
    PLOT_WIDTH = 1200,
    PLOT_OVERVIEW_WIDTH = 900,
    PLOT_LEGEND = 44,
    PLOT_PANEL = 264,
    PLOT_CURVES = 430
};

/* Panels in rows of so many, a legend above. */
struct plot_grid {
    size_t columns, rows;
    int width, height, panel, legend;
};

struct plot_grid plot_grid_of(size_t panels, size_t columns, int panel, int legend);
void plot_begin_legend(FILE *script, const struct plot_grid *grid);
void plot_begin_panels(FILE *script);
void plot_place_panel(FILE *script, const struct plot_grid *grid, size_t i);
/* So many lines lower than gnuplot has it. */
void plot_set_title(FILE *script, const char *label, const char *behind, double drop);

/* ---- text and numbers: draw_layout.c ---- */

void plot_quote(FILE *script, const char *text);
double plot_number_at(const json_t *array, size_t i);
double plot_most_of(const json_t *array);
/* A round distance of about five tics. */
double plot_nice_step(double range);
/* "0.01", "0.1", ...: the powers of ten from low to high in a unit of so many ns, for an axis of ns whose name has the
 * unit. */
void plot_time_tics(FILE *script, const char *axis, double low, double high, double unit);

struct plot_scale {
    double unit, top, stall_ns;
    const char *unit_name;
};

void plot_scale_up_to(struct plot_scale *scale, double bytes);

struct plot_range {
    double low, high;
};

void plot_stretch(struct plot_range *range, double value);

/* Colours of lines that stand for configurations, and kinds of dashes. */
enum { PLOT_COLOURS = 7, PLOT_DASHES = 5 };
extern const char *const plot_colours[PLOT_COLOURS];

/* ---- pictures ---- */

/* Each writes the script of one picture. */
void plot_memory(FILE *script, const struct report_trace *trace, const struct plot_grid *grid);
void plot_times(FILE *script, const struct report_trace *trace, const struct plot_grid *grid);
void plot_latencies(FILE *script, const struct report_trace *trace, const struct plot_grid *grid);
void plot_map(FILE *script, const struct report_trace *trace, const struct plot_grid *grid);
/* The memory of each device over time, as it was looked at; its reserved memory by each step. */
void plot_process(FILE *script, const struct report_process *process, const struct plot_grid *grid);
/* Time against reserved memory, a dot each: what is lower left is better in both. */
void plot_overview(FILE *script, const struct report *report);

/* Whether there is something to draw: dots of the overview, and points of times as well. */
/* With GPU work, where the configuration has run with some: that is what the program does, and maps are large. */
int plot_has_map(const struct report_trace *trace, const struct report_row *row);
int plot_has_process(const json_t *served);
size_t plot_count_dots(const struct report *report);
const struct changepoints *plot_points_shown(const struct report_row *row);

#endif
