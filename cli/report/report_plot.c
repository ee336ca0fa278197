/* SPDX-License-Identifier: MIT */
/* report_plot.c: the pictures, drawn by gnuplot.
 *
 * gnuplot is a program that is started with a script on its standard input, in the folder where pictures go: the script
 * names files by numbers alone.
 */
#include "cli/report/report_draw.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/report/report.h"

/* How many panels a picture of that kind has: 0, there is nothing to draw. */
static size_t panels_of(const struct report *report, enum picture_kind kind, size_t of) {
    const struct report_trace *trace = kind < PICTURE_PROCESS ? &report->traces[of] : NULL;
    size_t count = 0;

    if (kind == PICTURE_OVERVIEW)
        return plot_count_dots(report) > 1;
    if (!trace) {
        const json_t *served = json_object_get(report->processes[of].line, "served");

        for (size_t i = 0; i < json_array_size(served); i++)
            count += (size_t)plot_has_process(json_array_get(served, i));
        return count;
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct report_row *row = &trace->rows[i];
        const struct changepoints *points = row->shown ? plot_points_shown(row) : NULL;

        if (kind == PICTURE_MEMORY)
            count += report_at(row->samples, "timeline", NULL) != NULL;
        else if (kind == PICTURE_TIMES)
            count += points && points->level_count > 0;
        else if (kind == PICTURE_LATENCIES)
            count += report_at(row->shown, "alloc_op_ns", "buckets") != NULL;
        else
            count += (size_t)plot_has_map(trace, row);
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
    struct plot_grid grid =
        plot_grid_of(panels, is_curves || picture->kind == PICTURE_PROCESS ? 2 : 3,
                     is_curves ? PLOT_CURVES : PLOT_PANEL,
                     lines > 2 ? PLOT_LEGEND + 18 * (int)(lines - 2) : PLOT_LEGEND);

    if (picture->kind == PICTURE_OVERVIEW)
        grid = (struct plot_grid){.width = PLOT_OVERVIEW_WIDTH, .height = PLOT_CURVES};
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
        plot_memory(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_TIMES)
        plot_times(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_LATENCIES)
        plot_latencies(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_MAP)
        plot_map(script, &report->traces[picture->of], &grid);
    else if (picture->kind == PICTURE_PROCESS)
        plot_process(script, &report->processes[picture->of], &grid);
    else
        plot_overview(script, report);
    fputs("set output\n", script);
}

/* ---- gnuplot ---- */

/* What a new process does; returns if it cannot. */
static void become_gnuplot(FILE *script, FILE *said, const char *folder) {
    static char name[] = "gnuplot", plain[] = "-d", from_input[] = "-";
    char *const arguments[] = {name, plain, from_input, NULL};

    if (chdir(folder) == 0 && dup2(fileno(script), STDIN_FILENO) >= 0 &&
        dup2(fileno(said), STDERR_FILENO) >= 0 && dup2(fileno(said), STDOUT_FILENO) >= 0)
        execvp(name, arguments);
}

/* 0 or an errno.  By fork: no glibc before 2.29 can start a process in another folder otherwise. */
static int start(FILE *script, FILE *said, const char *folder, pid_t *child) {
    int ends[2], error = 0;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    *child = fork();
    if (*child == 0) {
        become_gnuplot(script, said, folder);
        error = errno;
        _exit(write(ends[1], &error, sizeof error) < 0);
    }
    if (*child < 0)
        error = errno;
    close(ends[1]);
    if (*child > 0 && read(ends[0], &error, sizeof error) > 0)
        waitpid(*child, NULL, 0);
    close(ends[0]);
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

/* The exit status of a script for which this gnuplot has no terminal. */
enum { NO_TERMINAL = 9 };

/* 1, or 0 with the reason; that is "" if it cannot draw PNG. */
static int run_gnuplot(FILE *script, FILE *said, const char *folder, char *why, size_t why_bytes) {
    char words[200] = "";
    pid_t child = 0;
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
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_TERMINAL) {
        why[0] = '\0';
        return 0;
    }
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
    if (good && as_png)
        fprintf(script, "if (strstrt(GPVAL_TERMINALS, 'pngcairo') == 0) exit status %d\n",
                NO_TERMINAL);
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

/* Beside the SVG that is there.  0: gnuplot failed; one that has no PNG has done all it can. */
static int draw_png(struct report *report, const char *folder) {
    int good = draw_all(report, folder, 1);

    if (!good)
        fprintf(stderr, "weir: no PNG, the pictures are SVG: %s\n",
                report->no_pictures[0] ? report->no_pictures : "this gnuplot has no pngcairo");
    good |= !report->no_pictures[0];
    report->no_pictures[0] = '\0';
    return good;
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
    return good && (!folder || draw_png(report, folder));
}
