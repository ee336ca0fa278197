/* SPDX-License-Identifier: MIT */
/* report.c: `weir report': see report.h.
 *
 * weir report reads and checks all files before it writes the page.  A new page replaces an old one as a whole.
 */
#include "cli/report/report.h"

#include <errno.h>
#include <string.h>

#include "cli/common/commands.h"
#include "cli/common/files.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/formats/input.h"
#include "cli/report/page_html.h"

#define EXPECTED                                                                                   \
    "expected what `weir bench --json', `weir replay --json' or `weir run --json' wrote"

enum { SCHEMA = 2 };

static int report_no_memory(void) {
    fputs("weir: out of memory\n", stderr);
    return 0;
}

/* ------------------------------------------------------------------- reading ---- */

/* Prints that a report cannot show the file `from' because of `why'.  Returns 0. */
static int report_unfit_file(const char *from, const char *why) {
    fprintf(stderr, "weir: %s: %s; " EXPECTED "\n", from, why);
    return 0;
}

/* Returns 1 if `array' is an array of objects, and the values of both keys are strings in each object; else 0. */
static int have_strings(const json_t *array, const char *key, const char *other) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *element = json_array_get(array, i);

        if (!json_is_string(json_object_get(element, key)) ||
            !json_is_string(json_object_get(element, other)))
            return 0;
    }
    return json_is_array(array);
}

/* Returns NULL if the page can show this output of weir bench or weir replay.  Otherwise returns the reason why not. */
static const char *results_fault(const json_t *object) {
    if (json_integer_value(json_object_get(object, "schema")) != SCHEMA)
        return "its results have another schema than 2: make them again with this weir";
    if (json_array_size(json_object_get(object, "rows")) == 0)
        return "it has no results";
    if (!have_strings(json_object_get(object, "rows"), "trace", "configuration"))
        return "a row has no trace or no configuration";
    if (!have_strings(json_object_get(object, "traces"), "trace", "trace"))
        return "a trace has no name";
    if (!have_strings(json_object_get(object, "configurations"), "configuration", "configuration"))
        return "a configuration has no name";
    if (json_unpack_ex((json_t *)(uintptr_t)object, NULL, JSON_VALIDATE_ONLY,
                       "{s?[],s?{s?[],s?[]}}", "command", "findings", "sentences",
                       "standings") != 0)
        return "its command or its findings are not what weir writes";
    return NULL;
}

/* Returns NULL if the page can show a JSON document.  Otherwise returns the reason why not. */
static const char *document_fault(const json_t *object) {
    if (json_object_get(object, "rows"))
        return results_fault(object);
    if (json_is_integer(json_object_get(object, "pid")) &&
        (json_is_array(json_object_get(object, "served")) ||
         json_is_object(json_object_get(object, "oom_report"))))
        return NULL;
    if (json_object_get(object, "configuration") || json_object_get(object, "contestant"))
        return "it is of an earlier version of weir: make the results again with this weir";
    if (json_object_get(object, "scenario"))
        return "it has single calls (bench/micro), which have no time line";
    if (json_object_get(object, "settings") && json_object_get(object, "devices"))
        return "it has settings and devices (weir info)";
    return "it is JSON, but not of weir";
}

/* Appends a JSON document, or each document of an array, to the array `all'.  Returns 1 on success.  On failure, prints
 * a message and returns 0. */
static int add_documents(json_t *all, json_t *value, const char *from) {
    const char *fault = json_is_array(value) ? NULL : document_fault(value);

    if (fault)
        return report_unfit_file(from, fault);
    if (!json_is_array(value))
        return json_array_append(all, value) == 0 || report_no_memory();
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!add_documents(all, json_array_get(value, i), from))
            return 0;
    return 1;
}

/* Skips white space.  Returns 1 if more text follows, 0 at the end of the file. */
static int has_more_values(FILE *file) {
    int c;

    do
        c = fgetc(file);
    while (c == ' ' || c == '\n' || c == '\t' || c == '\r');
    return c != EOF && ungetc(c, file) != EOF;
}

/* Prints the reason why a JSON value of the file could not be read.  Returns 0. */
static int report_unreadable_value(const char *path, int is_first, const json_error_t *error) {
    char text[JSON_ERROR_TEXT_LENGTH + 128];

    if (is_first && input_is_trace(path))
        return report_unfit_file(
            path, "it is a trace: `weir replay --report PAGE TRACE' replays it and makes "
                  "a page");
    snprintf(text, sizeof text, "line %d: %s%s", error->line, error->text,
             json_error_code(error) == json_error_premature_end_of_input
                 ? ": the file ends too early"
                 : "");
    return report_unfit_file(path, text);
}

static int read_values(FILE *file, const char *path, json_t *all) {
    json_error_t error;
    size_t values = 0;

    for (; has_more_values(file); values++) {
        json_t *value = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        int good = value ? add_documents(all, value, path)
                         : report_unreadable_value(path, values == 0, &error);

        json_decref(value);
        if (!good)
            return 0;
    }
    if (ferror(file)) {
        fprintf(stderr, "weir: %s: %s\n", path, strerror(errno));
        return 0;
    }
    if (values == 0)
        return report_unfit_file(path, "it is empty");
    return json_array_size(all) > 0 || report_unfit_file(path, "it has no results");
}

json_t *report_read(const char *path) {
    FILE *file = fopen(path, "re");
    json_t *all = json_array();
    int good = 0;

    if (!file)
        fprintf(stderr, "weir: %s: %s\n", path, strerror(errno));
    else if (!all)
        report_no_memory();
    else
        good = read_values(file, path, all);
    if (file)
        fclose(file);
    if (good)
        return all;
    json_decref(all);
    return NULL;
}

/* ------------------------------------------------------------------- writing ---- */

/* Writes JSON text, and escapes each "<", because "</script>" in a string would end the script element of the page. */
static int write_escaped_json(const char *text, size_t count, void *file) {
    for (size_t i = 0; i < count; i++)
        if (text[i] == '<')
            fputs("\\u003c", file);
        else
            fputc(text[i], file);
    return ferror(file) ? -1 : 0;
}

/* Writes page.html with the JSON of all files in place of its line DATA.  Returns 1 on success, 0 if there is no host
 * memory or the write failed. */
static int write_report_page(FILE *file, const void *files) {
    static const char place[] = "\nDATA\n";
    const char *at = strstr(report_page, place);

    fwrite(report_page, 1, (size_t)(at - report_page) + 1, file);
    if (json_dump_callback(files, write_escaped_json, file,
                           JSON_COMPACT | JSON_REAL_PRECISION(12)) != 0)
        return 0;
    fputs(at + strlen(place) - 1, file);
    return !ferror(file);
}

/* Writes the page, in place of an old page.  Returns the exit code. */
static int write_page(const json_t *files, const char *page) {
    if (!output_replace(page, write_report_page, files))
        return 1;
    fprintf(stderr, "weir: the report is in %s\n", page);
    return 0;
}

/* Appends the JSON documents of the file `from' to the array `files' for the page.  Returns 1 on success.  On failure,
 * prints a message and returns 0. */
static int add_file(json_t *files, json_t *documents, const char *from) {
    json_t *file = json_pack("{s:o?, s:O}", "from", jsonfile_text(from), "documents", documents);

    return json_array_append_new(files, file) == 0 || report_no_memory();
}

int report_of(json_t *document, const char *from, const char *page) {
    json_t *documents = json_array(), *files = json_array();
    int code = 1;

    if (!documents || !files)
        report_no_memory();
    else if (add_documents(documents, document, from) && add_file(files, documents, from))
        code = write_page(files, page);
    json_decref(documents);
    json_decref(files);
    return code;
}

/* ------------------------------------------------------------------- command ---- */

struct command {
    const char *page;
    char **files; /* the arguments: files with results */
    size_t count;
};

static const struct weir_cli_flag flags[] = {{"output", 'o', "FILE", weir_cli_read_page,
                                              offsetof(struct command, page),
                                              "Write the page to FILE, whose name ends in .html."},
                                             {0}};

static error_t parse_report_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case ARGP_KEY_ARGS:
        command->files = state->argv + state->next;
        command->count = (size_t)(state->argc - state->next);
        return 0;
    case ARGP_KEY_END:
        if (command->count == 0)
            argp_error(state, "no file of results was named");
        if (!command->page)
            argp_error(state, "--output is missing: a file whose name ends in .html");
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

static int outputs_differ_from_results(const struct command *command) {
    const struct output page = {"--output", command->page};

    for (size_t i = 0; i < command->count; i++)
        if (!outputs_differ_from_input(&page, 1, "file of results", command->files[i]))
            return 0;
    return 1;
}

/* Reads all files, and returns the JSON for the page as a new reference.  Prints a message for each bad file.  Returns
 * NULL if a file is bad. */
static json_t *read_report_files(const struct command *command) {
    json_t *files = json_array();
    int good = files != NULL;

    for (size_t i = 0; i < command->count; i++) {
        json_t *documents = report_read(command->files[i]);

        good = documents && add_file(files, documents, command->files[i]) && good;
        json_decref(documents);
    }
    if (good)
        return files;
    json_decref(files);
    return NULL;
}

int weir_cmd_report(int argc, char **argv) {
    static const char doc[] =
        "Makes a page from the JSON of weir bench, replay or run.\vThe page is one HTML file.  It "
        "draws "
        "itself in a browser and needs no network.  Several files stand side by side.  --report of "
        "bench, replay and run makes the page at once.\n\n"
        "Exit code: 0 all went well, 1 something failed, 2 usage or a bad value.";
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_report_argument,
                        .args_doc = "-o FILE RUN.json...",
                        .doc = doc};
    struct command command = {0};
    json_t *files = NULL;
    int code = 1, is_writable;

    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0 ||
        !outputs_differ_from_results(&command))
        return 2;
    is_writable = output_check("--output", command.page);
    files = read_report_files(&command);
    if (files && is_writable)
        code = write_page(files, command.page);
    json_decref(files);
    return code;
}
