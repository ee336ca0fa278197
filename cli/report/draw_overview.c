/* SPDX-License-Identifier: MIT */
/* draw_overview.c: the picture of all configurations: memory beside time. */
#include "cli/report/report_draw.h"

#include <math.h>
#include <spawn.h>

#include "cli/report/report.h"

static int has_dot(const struct choice *choice) {
    return choice->mean.time_ns > 0.0 && choice->mean.memory > 0.0;
}

size_t plot_count_dots(const struct report *report) {
    size_t count = 0;

    for (size_t i = 0; i < report->choices.count; i++)
        count += (size_t)has_dot(&report->choices.items[i]);
    return count;
}

void plot_overview(FILE *script, const struct report *report) {
    struct plot_range x = {0.0, 0.0}, y = {0.0, 0.0};
    size_t dots = 0;

    for (size_t i = 0; i < report->choices.count; i++) {
        const struct choice *choice = &report->choices.items[i];

        if (!has_dot(choice))
            continue;
        fprintf(script, "$dot%zu << EOD\n%.6g %.6g\nEOD\n", i, choice->mean.time_ns,
                choice->mean.memory);
        plot_stretch(&x, choice->mean.time_ns);
        plot_stretch(&y, choice->mean.memory);
    }
    x = (struct plot_range){x.low / 1.6, x.high * 1.6};
    y = (struct plot_range){fmin(y.low / 1.03, 0.95), fmax(y.high * 1.1, 1.1)};
    fprintf(script,
            "set border 3\nset grid\nset lmargin 10\nset rmargin 22\nset tmargin 1.5\nset bmargin "
            "4\nset xtics out nomirror\nset ytics out nomirror\nset key at screen 0.99, graph 1 "
            "right top Left reverse samplen 1 spacing 1.2\nset logscale xy\nset xrange "
            "[%.6g:%.6g]\nset yrange [%.6g:%.6g]\n",
            x.low, x.high, y.low, y.high);
    plot_time_tics(script, "xtics", x.low, x.high, 1e6);
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
                dots ? ", " : "", i, plot_colours[dots % PLOT_COLOURS],
                marks[dots % (sizeof marks / sizeof marks[0])]);
        plot_quote(script, report->choices.items[i].label);
        dots++;
    }
    fputc('\n', script);
}
