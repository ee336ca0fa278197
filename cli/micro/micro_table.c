/* SPDX-License-Identifier: MIT */
/* micro_table.c: the results of `weir bench --micro` as a person reads them, at most 100 columns wide.
 *
 * A block for each group of cases: a row for each subject, a column for each case, and as many
 * figures beside each other as fit; below them how often a turn calls the driver.  All figures come
 * out of the JSON objects, so that table and file cannot disagree.
 *
 * Must not know: how anything is measured.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/common/spell.h"
#include "cli/micro/micro.h"

enum { WIDTH = 100, NAME_WIDTH = 12, CELL_WIDTH = 8, GAP = 3 };

/* A figure: where it stands in the object, and what it is divided by. */
struct view {
    const char *scenario; /* NULL: all that have no views of their own */
    const char *title, *key, *inner;
    double unit;
};

static const struct view views[] = {
    {"churn", "ns a pair, median", "pair_ns", "median", 1.0},
    {"churn", "99.9% of pairs, ns", "pair_ns", "p999", 1.0},
    {"churn", "over 1,000 live", "over_1000_live", NULL, 1.0},
    {"threads", "ns a pair and thread", "pair_ns", "median", 1.0},
    {"threads", "99.9% of pairs, ns", "pair_ns", "p999", 1.0},
    {"threads", "million pairs a second", "pairs_per_s", NULL, 1e6},
    {"threads", "% of N times one", "efficiency", NULL, 0.01},
    {"producer-consumer", "ns a pair, median", "pair_ns", "median", 1.0},
    {"producer-consumer", "99.9% of allocs, ns", "alloc_ns", "p999", 1.0},
    {"producer-consumer", "99.9% of frees, ns", "free_ns", "p999", 1.0},
    {"steal", "ns, mean", "request_ns", "median", 1.0},
    {"steal", "50%", "alloc_ns", "p50", 1.0},
    {"steal", "99.9%", "alloc_ns", "p999", 1.0},
    {"steal", "max", "alloc_ns", "max", 1.0},
    {"steal", "reserved MiB, before", "reserved_before_bytes", NULL, 1048576.0},
    {"steal", "after", "reserved_bytes", NULL, 1048576.0},
    {"lifecycle", "ns a stream", "cycle_ns", "median", 1.0},
    {"lifecycle", "less the loop's", "cycle_less_streams_ns", NULL, 1.0},
    {"lifecycle", "reserved MiB, before", "reserved_before_bytes", NULL, 1048576.0},
    {"lifecycle", "after", "reserved_bytes", NULL, 1048576.0},
    {"lifecycle", "host KiB", "host_bytes", NULL, 1024.0},
    {NULL, "ns a pair, median", "pair_ns", "median", 1.0},
    {NULL, "99.9% of pairs, ns", "pair_ns", "p999", 1.0},
};

enum { VIEWS = sizeof views / sizeof views[0] };

/* Cases that share a group lie one after another, and so do their rows. */
struct group {
    const struct micro_case *first;
    size_t cases;
    size_t first_row, rows;
};

static int is_of(const struct view *view, const char *scenario) {
    int has_own = 0;

    for (size_t i = 0; i < VIEWS; i++)
        has_own |= views[i].scenario && strcmp(views[i].scenario, scenario) == 0;
    return view->scenario ? strcmp(view->scenario, scenario) == 0 : !has_own;
}

static const json_t *object_of(const struct micro *micro, const struct group *group,
                               const struct micro_case *of, const struct micro_subject *subject) {
    for (size_t i = 0; i < group->rows; i++) {
        const struct micro_row *row = &micro->rows[group->first_row + i];

        if (row->of == of && row->subject == subject)
            return row->object;
    }
    return NULL;
}

/* Three digits that count, or all before the point. */
static void print_cell(FILE *file, const json_t *object, const struct view *view) {
    const json_t *value = json_object_get(object, view->key);
    double number;

    if (view->inner)
        value = json_object_get(value, view->inner);
    number = json_number_value(value);
    if (view->inner && view->inner[0] == 'p' && number > 0.0)
        number = (double)table_percentile((uint64_t)number);
    number /= view->unit;
    if (json_object_get(object, "error"))
        fprintf(file, "%*s", CELL_WIDTH, "failed");
    else if (!value)
        fprintf(file, "%*s", CELL_WIDTH, "-");
    else
        fprintf(file, "%*.*f", CELL_WIDTH, number < 9.995 ? 2 : number < 99.95 ? 1 : 0, number);
}

/* A column for each case; as wide as the title at least. */
static int width_of(const struct view *view, const struct group *group) {
    int cells = CELL_WIDTH * (int)group->cases, title = (int)strlen(view->title) + GAP;

    return cells > title ? cells : title;
}

static void print_row(FILE *file, const struct micro *micro, const struct group *group,
                      const struct micro_subject *subject, const struct view *const shown[],
                      size_t count) {
    fprintf(file, "  %-*s", NAME_WIDTH, subject ? subject->name : "subject");
    for (size_t v = 0; v < count; v++) {
        fprintf(file, "%*s", width_of(shown[v], group) - CELL_WIDTH * (int)group->cases, "");
        for (size_t c = 0; c < group->cases; c++)
            if (subject)
                print_cell(file, object_of(micro, group, &group->first[c], subject), shown[v]);
            else
                fprintf(file, "%*s", CELL_WIDTH, group->first[c].column);
    }
    fputc('\n', file);
}

/* Some views beside each other. */
static void print_views(FILE *file, const struct micro *micro, const struct group *group,
                        const struct view *const shown[], size_t count) {
    fprintf(file, "  %-*s", NAME_WIDTH, "");
    for (size_t v = 0; v < count; v++)
        fprintf(file, "%*s", width_of(shown[v], group), shown[v]->title);
    fputc('\n', file);
    if (group->cases > 1)
        print_row(file, micro, group, NULL, shown, count);
    for (size_t s = 0; s < micro->subject_count; s++)
        if (object_of(micro, group, group->first, micro->subjects[s]))
            print_row(file, micro, group, micro->subjects[s], shown, count);
}

/* All views of the group, as many side by side as the page is wide. */
static void print_all_views(FILE *file, const struct micro *micro, const struct group *group) {
    const struct view *shown[VIEWS];
    int width = 2 + NAME_WIDTH;
    size_t count = 0;

    for (size_t v = 0; v < VIEWS; v++) {
        if (!is_of(&views[v], group->first->scenario))
            continue;
        if (count && width + width_of(&views[v], group) > WIDTH) {
            print_views(file, micro, group, shown, count);
            width = 2 + NAME_WIDTH;
            count = 0;
        }
        shown[count++] = &views[v];
        width += width_of(&views[v], group);
    }
    print_views(file, micro, group, shown, count);
}

/* "cuMemFreeAsync 1, cuStreamIsCapturing 2", wrapped. */
static void print_calls(FILE *file, const struct micro *micro, const struct group *group) {
    const struct micro_case *last = &group->first[group->cases - 1];

    for (size_t s = 0; s < micro->subject_count; s++) {
        const json_t *object = object_of(micro, group, last, micro->subjects[s]), *value;
        json_t *calls = json_object_get(object, "driver_calls_per_pair");
        const char *name;
        char text[80];
        int column;

        if (!calls)
            continue;
        column = fprintf(file, "  calls (%s), %s:", last->column, micro->subjects[s]->name);
        json_object_foreach(calls, name, value) {
            int length = snprintf(text, sizeof text, " %s %.4g", name, json_number_value(value));

            if (column + length > WIDTH)
                column = fprintf(file, "\n      ") - 1;
            column += fprintf(file, "%s", text);
        }
        if (json_object_size(calls) == 0)
            fputs(" none", file);
        else if (json_real_value(json_object_get(object, "questions_ns")) > 0.0)
            fprintf(file, "%s(questions: %.1f ns)", column > WIDTH - 30 ? "\n      " : " ",
                    json_real_value(json_object_get(object, "questions_ns")));
        fputc('\n', file);
    }
}

/* Why there is no figure; NULL: there are. */
static const char *note_of(const struct micro_row *row) {
    const char *error = json_string_value(json_object_get(row->object, "error"));

    return error ? error : json_string_value(json_object_get(row->object, "skipped"));
}

/* Subjects of a case of which the same is to be said share a line. */
static void print_note(FILE *file, const struct micro_row *rows, size_t count, size_t at) {
    const char *note = note_of(&rows[at]);

    for (size_t i = 0; i < at; i++)
        if (note && rows[i].of == rows[at].of && note_of(&rows[i]) &&
            strcmp(note_of(&rows[i]), note) == 0)
            return; /* said */
    if (!note)
        return;
    fprintf(file, "  %s %s:", rows[at].of->column,
            json_object_get(rows[at].object, "error") ? "failed" : "left out");
    for (size_t i = at; i < count; i++)
        if (rows[i].of == rows[at].of && note_of(&rows[i]) && strcmp(note_of(&rows[i]), note) == 0)
            fprintf(file, " %s", rows[i].subject->name);
    fprintf(file, "\n      %s\n", note);
}

static void print_notes(FILE *file, const struct micro *micro, const struct group *group) {
    const struct micro_row *rows = &micro->rows[group->first_row];
    int is_alone = 0;

    for (size_t i = 0; i < group->rows; i++) {
        print_note(file, rows, group->rows, i);
        is_alone |= json_is_false(json_object_get(rows[i].object, "interleaved"));
    }
    if (is_alone)
        fputs("  subjects one after another where they do not fit into memory at once\n", file);
}

static void print_head(FILE *file, const struct micro *micro) {
    const char *name;
    json_t *value;

    fprintf(file, "weir %s on %s, driver %d.%d\n", weir_version(), micro->device.name,
            micro->driver->version / 1000, micro->driver->version % 1000 / 10);
    if (micro->driver->charge)
        fprintf(file,
                "device model: times of driver, pool and bfc are real time spent outside the "
                "model;\nno GPU was used, and none's time is in them\nprofile of the model: %s\n",
                weir_cli_model_profile());
    fprintf(file,
            "%" PRIu64 " rounds of batches of %.1f ms, subjects in turn; the timer's own cost, "
            "%" PRIu64 " ns a call, is taken off\n",
            micro->rounds, (double)micro->batch_ns / 1e6,
            stopwatch_ns(&micro->clock.watch, micro->clock.watch.cost));
    if (micro->absent[0])
        fprintf(file, "not installed here: %s\n", micro->absent);
    fprintf(file, "what a question to the driver takes, ns%s:\n ",
            micro->driver->charge ? " (virtual)" : "");
    json_object_foreach(micro->call_ns, name, value)
        fprintf(file, " %s %.1f", name, json_number_value(value));
    fputc('\n', file);
}

void micro_table_print(FILE *file, const struct micro *micro) {
    size_t row = 0;

    print_head(file, micro);
    for (size_t c = 0; c < micro->case_count;) {
        struct group group = {&micro->cases[c], 0, row, 0};

        while (c < micro->case_count && strcmp(micro->cases[c].group, group.first->group) == 0) {
            while (row < micro->row_count && micro->rows[row].of == &micro->cases[c])
                row++;
            group.cases++;
            c++;
        }
        group.rows = row - group.first_row;
        if (group.rows == 0)
            continue;
        fprintf(file, "\n%s: %s", group.first->scenario, group.first->group);
        if (group.cases == 1)
            fprintf(file, " (%s)", group.first->column);
        fputc('\n', file);
        print_all_views(file, micro, &group);
        print_calls(file, micro, &group);
        print_notes(file, micro, &group);
    }
}
