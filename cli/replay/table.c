/* SPDX-License-Identifier: MIT */
/* table.c: prints the results as tables of at most 120 columns, one for each trace.  Each configuration has a row, and
 * a second row if there is GPU work. */
#include "cli/replay/benchmark.h"

#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/flags.h"
#include "cli/common/spell.h"
#include <weir/weir.h>

enum { WIDTH = 110 };

/* A column: the figure, how it is printed, the width, and the two lines of the heading. */
enum show { SHOW_MS, SHOW_COUNT, SHOW_RATIO };
static const struct column {
    enum result_figure figure;
    enum show show;
    int width;
    const char *upper, *lower;
} columns[] = {{FIGURE_CREATION, SHOW_MS, 7, "create", "ms"},
               {FIGURE_FIRST, SHOW_MS, 7, "first", "ms/iter"},
               {FIGURE_WARM_UP, SHOW_MS, 7, "both", "ms"},
               {FIGURE_WARM_UP_ITERATIONS, SHOW_COUNT, 6, "steady", "after"},
               {FIGURE_STEADY_MEAN, SHOW_MS, 7, "steady:", "mean"},
               {FIGURE_STEADY_MEDIAN, SHOW_MS, 7, "ms/iter", "median"},
               {FIGURE_STEADY_WORST, SHOW_MS, 7, "", "worst"},
               {FIGURE_RESERVED, SHOW_RATIO, 8, "reserved", "/ peak"},
               {FIGURE_KEPT, SHOW_RATIO, 6, "kept", "/ peak"},
               {FIGURE_GROWTHS, SHOW_COUNT, 7, "growths", "in all"},
               {FIGURE_LONGEST, SHOW_COUNT, 9, "longest", "call ns"},
               {FIGURE_STEADY_MAKESPAN, SHOW_MS, 8, "makespan", "ms/iter"}};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

static int is_column_shown(const struct benchmark *benchmark, const struct column *column) {
    return column->figure == FIGURE_LONGEST           ? benchmark->pace > 0
           : column->figure == FIGURE_STEADY_MAKESPAN ? benchmark->results.busy > 0
                                                      : 1;
}

static struct spelled spell_cell(const struct row *row, const struct column *column) {
    uint64_t value = row->median.value[column->figure];
    uint64_t requested = row->median.value[FIGURE_REQUESTED];

    if (row->median.has[column->figure] && column->show == SHOW_MS)
        return spell_ms((double)value);
    if (row->median.has[column->figure] && column->show == SHOW_COUNT)
        return spell_count(value);
    /* Rows with failed requests get no ratio, because their replays needed less memory. */
    if (row->median.has[column->figure] && requested && result_is_comparable(row))
        return spell_ratio((double)value / (double)requested);
    return (struct spelled){"-"};
}

/* Prints the marks of the cell on the left, and then this cell.  Returns this cell's marks for the next call. */
static const char *print_cell(FILE *file, const struct row *row, const struct column *column,
                              const char *marks) {
    static const char *const all[2][2] = {{"", "~"}, {"*", "*~"}};
    int is_steady =
        (column->figure >= FIGURE_STEADY_MEAN && column->figure <= FIGURE_STEADY_WORST) ||
        column->figure == FIGURE_STEADY_MAKESPAN;

    fprintf(file, "%-2s%*s", marks, column->width, spell_cell(row, column).text);
    return all[row->best[column->figure]]
              [is_steady && !row->settled && row->median.has[FIGURE_STEADY_MEAN]];
}

/* Prints the name of a row: "pool", for example, or "  busy 1" for its row with GPU work. */
static void print_name(FILE *file, const struct row *row) {
    char factor[WEIR_SPELL_BYTES], text[WEIR_SPELL_BYTES + 16];

    weir__factor_spell(row->busy, factor, sizeof factor);
    snprintf(text, sizeof text, "  busy %s", factor);
    fprintf(file, "  %-16s", row->busy > 0 ? text : result_name(row));
}

static void print_row(FILE *file, const struct benchmark *benchmark, const struct row *row) {
    const char *marks = "";

    print_name(file, row);
    if (json_array_size(row->runs) == 0) {
        fprintf(file, row->error ? " failed\n" : " not run\n");
        return;
    }
    for (size_t i = 0; i < COLUMNS; i++)
        if (is_column_shown(benchmark, &columns[i]))
            marks = print_cell(file, row, &columns[i], marks);
    fputs(marks, file);
    if (row->failed_runs)
        fprintf(file, "  %zu of %" PRIu64 " failed", row->failed_runs, benchmark->results.repeat);
    if (row->median.value[FIGURE_FAILED])
        fprintf(file, "\n  %-16s %" PRIu64 " request%s failed", "",
                row->median.value[FIGURE_FAILED], weir__plural(row->median.value[FIGURE_FAILED]));
    fputc('\n', file);
}

/* Prints from which iterations of a trace the steady figures were computed.  Prints nothing if there are none. */
static void print_steady_iterations(FILE *file, const struct trace_header *header,
                                    const struct row *rows, size_t count) {
    uint64_t from[2] = {0, 0}; /* the number of the first one without and with GPU work, from 1 */

    for (size_t i = 0; i < count; i++)
        if (rows[i].median.has[FIGURE_STEADY_MEAN] && rows[i].median.has[FIGURE_STEADY_FROM])
            from[rows[i].busy > 0] = rows[i].median.value[FIGURE_STEADY_FROM] + 1;
    for (int busy = 0; busy < 2; busy++)
        if (from[busy] && !(busy && from[0] == from[1]))
            fprintf(file, "  steady figures%s: iterations %" PRIu64 " to %" PRIu64 "\n",
                    busy ? " of busy rows" : "", from[busy], header->marks);
}

static void print_heads(FILE *file, const struct benchmark *benchmark) {
    for (int line = 0; line < 2; line++) {
        fprintf(file, "  %-16s", line ? "configuration" : "");
        for (size_t i = 0; i < COLUMNS; i++)
            if (is_column_shown(benchmark, &columns[i]))
                fprintf(file, "  %*s", columns[i].width,
                        line ? columns[i].lower : columns[i].upper);
        fputc('\n', file);
    }
}

void table_trace(FILE *file, const struct trace_header *header) {
    fprintf(file,
            "\n%s: %" PRIu64 " iteration%s, %s allocation%s, %" PRIu64
            " stream%s, peak requested memory %s\n",
            header->name, header->marks, weir__plural(header->marks), SPELL_COUNT(header->allocs),
            weir__plural(header->allocs), header->streams, weir__plural(header->streams),
            WEIR_SHOWN(header->live_peak_bytes));
}

void table_head(FILE *file, const struct benchmark *benchmark) {
    fprintf(file, "weir %s on %s, driver %d.%d\n", weir_version(), benchmark->device,
            benchmark->driver_version / 1000, benchmark->driver_version % 1000 / 10);
    if (benchmark->modelled)
        fprintf(file, "profile of the model: %s\n", weir_cli_model_profile());
}

static int is_interrupted(const struct benchmark *benchmark) {
    return result_runs(&benchmark->results, 0) < result_planned(&benchmark->results);
}

static void print_notes(FILE *file, const struct benchmark *benchmark) {
    if (benchmark->modelled)
        fputs("device model: times are virtual driver time and real time spent in weir; no GPU "
              "was used\n",
              file);
    if (benchmark->results.repeat > 1)
        fprintf(file, "medians of %s%" PRIu64 " runs each, in fresh processes\n",
                is_interrupted(benchmark) ? "at most " : "", benchmark->results.repeat);
    if (benchmark->results.busy > 0)
        fputs("busy rows: with GPU work; makespan: time on the device from the start of an "
              "iteration to the end of its work,\nwaits included\n",
              file);
    if (benchmark->pace > 0) {
        char factor[WEIR_SPELL_BYTES];

        weir__factor_spell(benchmark->pace, factor, sizeof factor);
        fprintf(file, "paced: %s times the trace's time between calls\n", factor);
    }
}

/* Prints a sentence, with line breaks between words. */
static void print_wrapped(FILE *file, const char *sentence) {
    size_t column = 0;

    fputc('\n', file);
    for (const char *word = sentence; *word;) {
        size_t length = strcspn(word, " ");

        if (column > 0 && column + 1 + length > WIDTH) {
            fputc('\n', file);
            column = 0;
        }
        column += (size_t)fprintf(file, "%s%.*s", column ? " " : "", (int)length, word);
        word += length + (word[length] == ' ');
    }
    fputc('\n', file);
}

/* Prints a note, after the names of all configurations whose field `unusable' is `why'.  If `why' is NULL, prints the
 * names of the driver's configurations. */
static void print_note(FILE *file, const struct benchmark *benchmark, const char *why,
                       const char *note) {
    size_t count = 0;

    for (size_t i = 0; i < benchmark->results.configuration_count; i++) {
        const struct configuration *c = benchmark->results.configurations[i];

        if (why ? c->unusable == why : configuration_is_driver(c))
            fprintf(file, "%s%s", count++ ? ", " : "", c->name);
    }
    if (count)
        fprintf(file, "%s%s\n", why ? " (no *): " : ": ", note);
}

/* Returns 1 if an earlier configuration in the list has the same value of `unusable', else 0. */
static int is_repeated(const struct benchmark *benchmark, size_t configuration) {
    for (size_t i = 0; i < configuration; i++)
        if (benchmark->results.configurations[i]->unusable ==
            benchmark->results.configurations[configuration]->unusable)
            return 1;
    return 0;
}

/* Prints what the marks mean, and notes on some rows. */
static void print_legend(FILE *file, const struct benchmark *benchmark) {
    const struct results *results = &benchmark->results;
    int any_unsettled = 0;

    for (size_t i = 0; i < results->row_count; i++)
        any_unsettled |=
            results->rows[i].median.has[FIGURE_STEADY_MEAN] && !results->rows[i].settled;
    fputc('\n', file);
    if (any_unsettled)
        fputs("~ not settled: too few iterations follow the warm-up\n", file);
    if (benchmark->results.configuration_count < 2 || is_interrupted(benchmark))
        return;
    fputs("* the smallest value of its column, and values that tie with it\n", file);
    print_note(file, benchmark, NULL, "CUDA's own pool (cudaMallocAsync)");
    for (size_t i = 0; i < benchmark->results.configuration_count; i++) {
        const char *why = benchmark->results.configurations[i]->unusable;

        if (why && !is_repeated(benchmark, i))
            print_note(file, benchmark, why, why);
        if (strcmp(benchmark->results.configurations[i]->name, "pool-prealloc") == 0)
            fputs("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC: 0 is pool, N is pool-prealloc, -1 is "
                  "pool-prealloc-75\n",
                  file);
    }
    if (benchmark->trace_count > 1 || benchmark->results.busy > 0)
        fprintf(file, "below:%s%s\n", benchmark->results.busy > 0 ? " with GPU work" : "",
                benchmark->trace_count == 1   ? ""
                : benchmark->results.busy > 0 ? ", geometric means over the traces"
                                              : " geometric means over the traces");
}

void table_print(FILE *file, const struct benchmark *benchmark, const struct findings *findings) {
    const struct results *results = &benchmark->results;
    size_t count = results->row_count / results->trace_count;

    table_head(file, benchmark);
    print_notes(file, benchmark);
    for (size_t t = 0; t < benchmark->trace_count; t++) {
        table_trace(file, &benchmark->traces[t].header);
        print_heads(file, benchmark);
        for (size_t i = 0; i < count; i++)
            print_row(file, benchmark, &results->rows[t * count + i]);
        print_steady_iterations(file, &benchmark->traces[t].header, &results->rows[t * count],
                                count);
    }
    print_legend(file, benchmark);
    for (size_t i = 0; i < findings->sentence_count; i++)
        print_wrapped(file, findings->sentences[i]);
}
