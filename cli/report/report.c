/* SPDX-License-Identifier: MIT */
/* report.c: `weir report': reads results, arranges them by trace and configuration, and has them drawn and
 * written.
 *
 * Nothing is written before all files are read and understood.
 */
#include "cli/report/report.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/replace.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/common/outputs.h"
#include "cli/formats/input.h"
#include "cli/report/figures.h"
#include "cli/report/summary.h"

#define EXPECTED                                                                                   \
    "expected what `weir bench --json', `weir replay --json' or `weir run --json' wrote"

static int out_of_memory(void) {
    fputs("weir: out of memory\n", stderr);
    return 0;
}

/* ------------------------------------------------------------------- figures ---- */

const json_t *report_at(const json_t *object, const char *key, const char *inner) {
    const json_t *value = json_object_get(object, key);

    return inner ? json_object_get(value, inner) : value;
}

uint64_t report_number(const json_t *object, const char *key, const char *inner) {
    json_int_t value = json_integer_value(report_at(object, key, inner));

    return value > 0 ? (uint64_t)value : 0;
}

int report_median(const struct report_row *row, const char *key, const char *inner, uint64_t *out) {
    uint64_t *values = calloc(row->count, sizeof *values);
    size_t count = 0;

    for (size_t i = 0; values && i < row->count; i++)
        if (json_is_integer(report_at(row->results[i], key, inner)))
            values[count++] = report_number(row->results[i], key, inner);
    *out = values ? median(values, count) : 0;
    free(values);
    return count > 0;
}

uint64_t *report_times(const json_t *result, size_t *count) {
    const json_t *iterations = json_object_get(result, "iterations");
    uint64_t *times;

    *count = json_array_size(iterations);
    times = *count ? calloc(*count, sizeof *times) : NULL;
    for (size_t i = 0; times && i < *count; i++)
        times[i] = report_number(json_array_get(iterations, i), "alloc_ns", NULL);
    return times;
}

size_t report_warm_up(const json_t *result) {
    size_t count = json_array_size(json_object_get(result, "iterations"));
    uint64_t steps = report_number(result, "warm_up_iterations", NULL);

    return steps < count ? (size_t)steps : count;
}

/* ------------------------------------------------------------------- reading ---- */

static int foreign(const char *from, const char *what) {
    fprintf(stderr, "weir: %s: %s; " EXPECTED "\n", from, what);
    return 0;
}

/* What it is that was written by weir, but is nothing for a report. */
static const char *other_kind(const json_t *object) {
    if (json_object_get(object, "scenario"))
        return "single calls (weir bench --micro), which have no time line";
    if (json_object_get(object, "trials"))
        return "smallest limits (weir bench --limit-sweep), which have no time line";
    if (json_object_get(object, "settings") && json_object_get(object, "devices"))
        return "settings and devices (weir info)";
    return "JSON, but not of weir";
}

static int is_replay(const json_t *object) {
    return json_is_string(json_object_get(object, "trace")) &&
           json_is_string(json_object_get(object, "configuration")) &&
           (json_is_array(json_object_get(object, "iterations")) ||
            json_is_string(json_object_get(object, "error")));
}

static int is_process(const json_t *object) {
    return json_is_array(json_object_get(object, "served")) &&
           json_is_integer(json_object_get(object, "pid"));
}

static int is_failure(const json_t *object) {
    return json_is_object(json_object_get(object, "oom_report")) &&
           json_is_integer(json_object_get(object, "pid")) && !is_process(object);
}

/* What the page and its pictures read as figures, wherever it stands in a result. */
static int is_figure(const char *key) {
    static const char *const figures[] = {"alloc_ns",
                                          "allocs",
                                          "asked",
                                          "buckets",
                                          "cell_bytes",
                                          "driver_version",
                                          "ended_ns",
                                          "failed",
                                          "frees",
                                          "cache_hits",
                                          "given_back",
                                          "growths",
                                          "in_use_high",
                                          "in_use_peak",
                                          "live_bytes",
                                          "requested_peak_bytes",
                                          "marks",
                                          "max",
                                          "op",
                                          "ops",
                                          "page_bytes",
                                          "pid",
                                          "failed_requests",
                                          "repeat",
                                          "requested_high",
                                          "requested_low",
                                          "requested_peak",
                                          "reserved",
                                          "reserved_high",
                                          "reserved_low",
                                          "reserved_peak",
                                          "stall_ns",
                                          "streams",
                                          "reserved_peak_bytes",
                                          "steady_alloc_ns",
                                          "makespan_ns",
                                          "time_ns",
                                          "warm_up_iterations"};

    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        if (strcmp(key, figures[i]) == 0)
            return 1;
    return 0;
}

/* A figure, or several; null: it was not available. */
static int is_whole(const json_t *value) {
    const json_t *one;
    size_t i;

    json_array_foreach(value, i, one) if (!is_whole(one)) return 0;
    return json_is_array(value) || json_is_null(value) ||
           (json_is_integer(value) && json_integer_value(value) >= 0);
}

/* Where one is wrong: the result's number, and its way through that. */
struct place {
    const char *file;
    size_t result;
    char way[256];
};

static int no_figure(const struct place *place, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    fprintf(stderr,
            "weir: %s: result %zu, %s is %.60s; expected a whole number that is not below 0\n",
            place->file, place->result, place->way, text ? text : "none");
    free(text);
    return 0;
}

static int check_figures(struct place *place, const json_t *value) {
    size_t length = strlen(place->way), i;
    const json_t *one;
    const char *key;
    int good = 1;

    json_array_foreach(value, i, one) {
        snprintf(place->way + length, sizeof place->way - length, "[%zu]", i);
        good = good && check_figures(place, one);
    }
    for (void *at = json_object_iter((json_t *)(uintptr_t)value); at && good;
         at = json_object_iter_next((json_t *)(uintptr_t)value, at)) {
        key = json_object_iter_key(at);
        one = json_object_iter_value(at);
        if (strcmp(key, "options") == 0) /* texts, as they were typed */
            continue;
        snprintf(place->way + length, sizeof place->way - length, "%s%s", length ? "." : "", key);
        good = !is_figure(key) ? check_figures(place, one)
               : is_whole(one) ? 1
                               : no_figure(place, one);
    }
    place->way[length] = '\0';
    return good;
}

static int check_object(const json_t *object, const char *from, size_t before) {
    struct place place = {.file = from, .result = before + 1};

    if (is_replay(object) || is_process(object) || is_failure(object))
        return check_figures(&place, object);
    return foreign(from, other_kind(object));
}

/* Arrays are taken apart. */
static int take_value(json_t *all, json_t *value, const char *from) {
    if (!json_is_array(value))
        return check_object(value, from, json_array_size(all)) &&
               json_array_append(all, value) == 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!check_object(json_array_get(value, i), from, json_array_size(all)) ||
            json_array_append(all, json_array_get(value, i)) != 0)
            return 0;
    return 1;
}

/* Something more than blanks is there. */
static int has_more(FILE *file) {
    int c;

    do
        c = fgetc(file);
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r');
    return c != EOF && ungetc(c, file) != EOF;
}

static int read_values(FILE *file, const char *path, json_t *all) {
    json_error_t error;
    char text[JSON_ERROR_TEXT_LENGTH + 128];
    size_t values = 0;

    for (; has_more(file); values++) {
        json_t *value = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        int good = value && take_value(all, value, path);

        json_decref(value);
        if (!value && values == 0 && input_is_trace(path))
            return foreign(path, "it is a trace: `weir replay --report PAGE TRACE' replays it and "
                                 "makes a page");
        if (!value) {
            snprintf(text, sizeof text, "line %d: %s%s", error.line, error.text,
                     json_error_code(&error) == json_error_premature_end_of_input
                         ? ": the file ends too early"
                         : "");
            return foreign(path, text);
        }
        if (!good)
            return 0;
    }
    if (ferror(file)) {
        fprintf(stderr, "weir: %s: %s\n", path, strerror(errno));
        return 0;
    }
    if (values == 0)
        return foreign(path, "it is empty");
    return json_array_size(all) > 0 || foreign(path, "it has no results");
}

json_t *report_read(const char *path) {
    FILE *file = fopen(path, "re");
    json_t *all = json_array();
    int good = 0;

    if (!file)
        fprintf(stderr, "weir: %s: %s\n", path, strerror(errno));
    else if (!all)
        out_of_memory();
    else
        good = read_values(file, path, all);
    if (file)
        fclose(file);
    if (good)
        return all;
    json_decref(all);
    return NULL;
}

/* ----------------------------------------------------------------- arranging ---- */

/* One more, all zero, in the array that `list` is the address of; NULL: out of memory. */
static void *one_more(void *list, size_t *count, size_t bytes) {
    char *items, *more;

    memcpy(&items, list, sizeof items);
    more = reallocarray(items, *count + 1, bytes);
    if (!more)
        return NULL;
    memcpy(list, &more, sizeof more);
    memset(more + *count * bytes, 0, bytes);
    return more + (*count)++ * bytes;
}

static int same(const json_t *a, const json_t *b, const char *key) {
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);

    return (!x && !y) || json_equal(x, y);
}

/* A process of weir run may have had several: the first one names it. */
static const char *device_of(const json_t *object) {
    const char *device = json_string_value(json_object_get(object, "device"));
    const json_t *served = json_object_get(object, "served");

    if (!device)
        device = json_string_value(json_object_get(json_array_get(served, 0), "device"));
    return device ? device : "";
}

/* The index, or SIZE_MAX: out of memory. */
static size_t find_run(struct report *report, const json_t *object, const char *file) {
    struct report_run *run;

    for (size_t i = 0; i < report->run_count; i++) {
        run = &report->runs[i];
        if (run->file == file && same(run->first, object, "date") &&
            same(run->first, object, "command") && same(run->first, object, "host") &&
            strcmp(run->device, device_of(object)) == 0)
            return i;
    }
    run = one_more(&report->runs, &report->run_count, sizeof *run);
    if (!run)
        return SIZE_MAX;
    run->file = file;
    run->first = object;
    run->device = device_of(object);
    for (size_t i = 0; i + 1 < report->run_count; i++) /* none, of a process that used none */
        report->devices_differ |= run->device[0] && report->runs[i].device[0] &&
                                  strcmp(run->device, report->runs[i].device) != 0;
    if (report->run_count <= 26)
        snprintf(run->letter, sizeof run->letter, "%c", (int)('A' + report->run_count - 1));
    else
        snprintf(run->letter, sizeof run->letter, "%zu", report->run_count);
    return report->run_count - 1;
}

static struct report_trace *find_trace(struct report *report, const char *name) {
    struct report_trace *trace;

    for (size_t i = 0; i < report->trace_count; i++)
        if (strcmp(report->traces[i].name, name) == 0)
            return &report->traces[i];
    trace = one_more(&report->traces, &report->trace_count, sizeof *trace);
    if (trace)
        trace->name = name;
    return trace;
}

static struct report_row *find_row(struct report_trace *trace, const json_t *object, size_t run) {
    struct report_row *row;

    for (size_t i = 0; i < trace->count; i++) {
        row = &trace->rows[i];
        if (row->run == run && same(row->results[0], object, "configuration") &&
            same(row->results[0], object, "busy") &&
            same(row->results[0], object, "threshold_over_requested"))
            return row;
    }
    row = one_more(&trace->rows, &trace->count, sizeof *row);
    if (row)
        row->run = run;
    return row;
}

static int add_failure(struct report *report, const json_t *object, const char *file) {
    struct report_failure *failure =
        one_more(&report->refusals, &report->failure_count, sizeof *failure);

    if (failure)
        *failure = (struct report_failure){file, object};
    return failure != NULL;
}

static int add_object(struct report *report, const json_t *object, const char *file) {
    struct report_process *process;
    struct report_trace *trace;
    struct report_row *row;
    const json_t **result;
    size_t run;

    if (is_failure(object))
        return add_failure(report, object, file);
    run = find_run(report, object, file);
    if (run == SIZE_MAX)
        return 0;
    if (is_process(object)) {
        process = one_more(&report->processes, &report->process_count, sizeof *process);
        if (process)
            *process = (struct report_process){run, object};
        return process != NULL;
    }
    trace = find_trace(report, json_string_value(json_object_get(object, "trace")));
    row = trace ? find_row(trace, object, run) : NULL;
    result = row ? one_more(&row->results, &row->count, sizeof *row->results) : NULL;
    if (result)
        *result = object;
    return result != NULL;
}

/* ---------------------------------------------------------------- finishing ---- */

/* Takes off what is left of a character that was cut. */
static void trim_character(char *text) {
    size_t length = strlen(text), lead = length;
    unsigned char first;

    while (lead > 0 && ((unsigned char)text[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0 || (unsigned char)text[lead - 1] < 0xc0)
        return;
    first = (unsigned char)text[--lead];
    if (length - lead < (first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2))
        text[lead] = '\0';
}

/* "pool, busy 1, 25% (B)": the run where the trace has several. */
static void make_label(const struct report *report, const struct report_trace *trace,
                       const struct report_row *row, int with_busy, char *label) {
    int several = 0;
    const json_t *busy = json_object_get(row->results[0], "busy");
    const char *threshold =
        json_string_value(json_object_get(row->results[0], "threshold_over_requested"));
    int used;

    snprintf(label, REPORT_LABEL_BYTES, "%.40s",
             json_string_value(json_object_get(row->results[0], "configuration")));
    trim_character(label);
    used = (int)strlen(label);
    if (with_busy && json_is_number(busy))
        used += snprintf(label + used, REPORT_LABEL_BYTES - (size_t)used, ", busy %g",
                         json_number_value(busy));
    if (threshold)
        used += snprintf(label + used, REPORT_LABEL_BYTES - (size_t)used, ", %.8s", threshold);
    for (size_t i = 0; i < trace->count; i++)
        several |= trace->rows[i].run != row->run;
    if (several)
        snprintf(label + used, REPORT_LABEL_BYTES - (size_t)used, " (%s)",
                 report->runs[row->run].letter);
}

enum { NOT_SETTLED = SERIES_NEVER_STEADY + 1, CLASSES };

/* Times that look steady are not, while reserved memory still changes. */
static int class_of(const json_t *result, const struct changepoints *points) {
    int looks_steady = points->kind == SERIES_FLAT || points->kind == SERIES_WARM_UP;

    return looks_steady && json_is_false(json_object_get(result, "settled")) ? NOT_SETTLED
                                                                             : (int)points->kind;
}

static const char *class_word(int class) {
    return class == NOT_SETTLED ? "not settled" : changepoints_word((enum series_class) class);
}

const char *report_class(const json_t *result, const struct changepoints *points) {
    return class_word(class_of(result, points));
}

/* One class if all repeats agree, as Barrett has it; else how many of each. */
static void classify_row(struct report_row *row) {
    size_t of_class[CLASSES] = {0}, classes = 0, used = 0;

    for (size_t i = 0; i < row->count; i++)
        if (row->points[i].level_count)
            of_class[class_of(row->results[i], &row->points[i])]++;
    for (int k = 0; k < CLASSES; k++)
        classes += of_class[k] > 0;
    if (classes > 1)
        used = (size_t)snprintf(row->kind, sizeof row->kind, "inconsistent: ");
    for (int k = 0, any = 0; k < CLASSES; k++) {
        if (of_class[k] == 0)
            continue;
        if (classes > 1)
            used += (size_t)snprintf(row->kind + used, sizeof row->kind - used, "%s%zu ",
                                     any ? ", " : "", of_class[k]);
        used += (size_t)snprintf(row->kind + used, sizeof row->kind - used, "%s", class_word(k));
        any = 1;
    }
}

static int finish_row(const struct report *report, const struct report_trace *trace,
                      struct report_row *row) {
    make_label(report, trace, row, 1, row->label);
    row->points = calloc(row->count, sizeof *row->points);
    if (!row->points)
        return 0;
    for (size_t i = 0; i < row->count; i++) {
        const json_t *result = row->results[i], *samples = json_object_get(result, "samples");
        uint64_t *times;
        size_t count;
        int good;

        if (json_object_get(result, "error")) {
            row->failures++;
            continue;
        }
        if (!row->shown)
            row->shown = result;
        if (!row->samples && json_is_object(samples))
            row->samples = samples;
        times = report_times(result, &count);
        good = (times || count == 0) && changepoints_find(times, count, &row->points[i]);
        free(times);
        if (!good)
            return 0;
    }
    classify_row(row);
    return 1;
}

static double busy_of(const struct report_row *row) {
    return json_number_value(json_object_get(row->results[0], "busy"));
}

static void find_busy(struct report *report) {
    for (size_t t = 0; t < report->trace_count; t++)
        for (size_t k = 0; k < report->traces[t].count; k++) {
            double busy = busy_of(&report->traces[t].rows[k]);

            if (busy > 0.0)
                report->busy = report->busy != 0.0 && busy != report->busy ? -1.0 : busy;
        }
}

/* Rows with GPU work, if there are any: they are what the program does. */
static int choose(struct report *report) {
    char label[REPORT_LABEL_BYTES];
    struct choice_figures figures;

    find_busy(report);
    if (!choices_init(&report->choices, report->trace_count))
        return 0;
    for (size_t t = 0; t < report->trace_count; t++)
        for (size_t k = 0; k < report->traces[t].count; k++) {
            const struct report_row *row = &report->traces[t].rows[k];
            const char *configuration =
                json_string_value(json_object_get(row->results[0], "configuration"));

            if (report->busy != 0.0 && busy_of(row) <= 0.0)
                continue;
            make_label(report, &report->traces[t], row, report->busy < 0.0, label);
            if (!figures_of(row->results, row->count, &figures) ||
                !choices_add(&report->choices, t, label, configuration, &figures))
                return 0;
        }
    choices_finish(&report->choices);
    return 1;
}

static int arrange(struct report *report, const char *const files[], const size_t ends[]) {
    const json_t *object;
    size_t i, file = 0;

    json_array_foreach(report->objects, i, object) {
        while (i >= ends[file])
            file++;
        if (!add_object(report, object, files[file]))
            return out_of_memory();
    }
    for (size_t t = 0; t < report->trace_count; t++)
        for (size_t k = 0; k < report->traces[t].count; k++)
            if (!finish_row(report, &report->traces[t], &report->traces[t].rows[k]))
                return out_of_memory();
    return choose(report) || out_of_memory();
}

static void free_report(struct report *report) {
    for (size_t t = 0; t < report->trace_count; t++) {
        for (size_t k = 0; k < report->traces[t].count; k++) {
            struct report_row *row = &report->traces[t].rows[k];

            for (size_t i = 0; row->points && i < row->count; i++)
                changepoints_free(&row->points[i]);
            free(row->points);
            free(row->results);
        }
        free(report->traces[t].rows);
    }
    for (size_t i = 0; i < report->picture_count; i++)
        free(report->pictures[i].svg);
    free(report->pictures);
    choices_free(&report->choices);
    free(report->processes);
    free(report->refusals);
    free(report->traces);
    free(report->runs);
    json_decref(report->objects);
}

/* ------------------------------------------------------------------- writing ---- */

static int is_page(const char *out) {
    const char *dot = strrchr(out, '.');

    return dot && dot != out && (strcmp(dot, ".html") == 0 || strcmp(dot, ".htm") == 0);
}

/* In a folder a page can be made; where there is none, it can be. */
static int folder_check(const char *flag, const char *out, int is_there) {
    size_t length = strlen(out);
    char *path = NULL;
    int good;

    while (length > 1 && out[length - 1] == '/')
        length--;
    if (asprintf(&path, "%.*s%s", (int)length, out, is_there ? "/index.html" : "") < 0)
        return out_of_memory();
    good = jsonfile_check(flag, path);
    free(path);
    return good;
}

int report_check(const char *flag, const char *out) {
    struct stat status;
    int is_there = stat(out, &status) == 0;

    if (!*out || is_page(out))
        return jsonfile_check(flag, out);
    if (!is_there || S_ISDIR(status.st_mode))
        return folder_check(flag, out, is_there);
    fprintf(stderr, "weir: %s %s: it is no folder; a page's name ends in .html\n", flag, out);
    return 0;
}

/* As a whole or not at all. */
static int write_page(const struct report *report, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *page = open_memstream(&text, &bytes);
    int good = page && report_html(page, report), why;

    if (page)
        good = fclose(page) == 0 && good;
    if (!good) {
        free(text);
        return out_of_memory();
    }
    why = weir__replace_file(path, 0666, 0, text, bytes);
    if (why)
        fprintf(stderr, "weir: cannot write %s: %s\n", path, strerror(why));
    free(text);
    return !why;
}

static int make_report(struct report *report, const char *out) {
    char *path = NULL;
    int drawn, good;

    if ((is_page(out) ? asprintf(&path, "%s", out) : asprintf(&path, "%s/index.html", out)) < 0)
        return !out_of_memory();
    if (!is_page(out) && mkdir(out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "weir: cannot make the folder %s: %s\n", out, strerror(errno));
        free(path);
        return 1;
    }
    drawn = report_plot(report, is_page(out) ? NULL : out);
    good = write_page(report, path);
    if (good)
        fprintf(stderr, "weir: the report is in %s%s\n", path,
                report->no_pictures[0] ? ", without pictures" : "");
    free(path);
    return !good ? 1 : drawn ? 0 : REPORT_BARE;
}

/* Takes the reference. */
static int report_objects(json_t *objects, const char *const files[], const size_t ends[],
                          const char *out) {
    struct report report = {.objects = objects};
    int code = arrange(&report, files, ends) ? make_report(&report, out) : 1;

    free_report(&report);
    return code;
}

int report_of(json_t *objects, const char *from, const char *out) {
    const char *files[] = {from};
    size_t ends[] = {json_array_size(objects)};

    return report_objects(json_incref(objects), files, ends, out);
}

/* ------------------------------------------------------------------- command ---- */

struct command {
    const char *out;
    const char **files;
    size_t count;
};

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;
    const char **file;

    switch (key) {
    case 'o':
        if (!*argument || strcmp(argument, "-") == 0)
            argp_error(state,
                       "--output '%s': expected a folder, or a file whose name ends in .html",
                       argument);
        command->out = argument;
        return 0;
    case ARGP_KEY_ARG:
        file = one_more(&command->files, &command->count, sizeof *command->files);
        if (!file)
            return ENOMEM;
        *file = argument;
        return 0;
    case ARGP_KEY_END:
        if (command->count == 0)
            argp_error(state, "no file of results was named");
        if (!command->out)
            argp_error(state, "--output is missing: a folder, or a file whose name ends in .html");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int spares_files(const struct command *command) {
    const struct output page = {"--output", command->out};

    for (size_t i = 0; i < command->count; i++)
        if (!outputs_spare(&page, 1, "file of results", command->files[i]))
            return 0;
    return 1;
}

/* All of them, so that each bad one is told. */
static json_t *read_all(const struct command *command, size_t ends[]) {
    json_t *objects = json_array();
    int good = objects != NULL;

    for (size_t i = 0; i < command->count; i++) {
        json_t *some = report_read(command->files[i]);

        good = some && json_array_extend(objects, some) == 0 && good;
        json_decref(some);
        ends[i] = json_array_size(objects);
    }
    if (good)
        return objects;
    json_decref(objects);
    return NULL;
}

int weir_cmd_report(int argc, char **argv) {
    static const char doc[] =
        "Makes a page with pictures from the JSON of weir bench, replay or run; not from that of "
        "bench --micro or --limit-sweep.\vRUN.json may be several files: their configurations "
        "stand side by side.  Pictures are drawn by gnuplot (Debian: gnuplot-nox).  Time lines, "
        "address maps and latency curves need results made with --samples, or with --report, which "
        "makes the page at once.\n\nExit code: 0 all went well, 1 something failed, 2 usage or a "
        "bad value, 3 the page was made, without pictures.";
    static const struct argp_option options[] = {
        {"output", 'o', "DIR|FILE", 0,
         "Write to a folder, which is made: index.html, and each picture as SVG and PNG.  If the "
         "name ends in .html, write one page alone.",
         0},
        {0}};
    struct argp argp = {options, parse_argument, "-o DIR|FILE RUN.json...", doc, NULL, NULL, NULL};
    struct command command = {0};
    json_t *objects = NULL;
    size_t *ends = NULL;
    int code = 1;

    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    ends = calloc(command.count, sizeof *ends);
    if (!spares_files(&command))
        code = 2;
    else if (!ends)
        out_of_memory();
    else if ((objects = read_all(&command, ends)) && report_check("--output", command.out))
        code = report_objects(json_incref(objects), command.files, ends, command.out);
    json_decref(objects);
    free(ends);
    free(command.files);
    return code;
}
