/* SPDX-License-Identifier: MIT */
/* run.c: `weir run': runs an unmodified program with weir as its stream-ordered allocator.
 *
 * weir run sets environment variables and then replaces itself by the command.  LD_PRELOAD gets the preload library.
 * Each setting becomes a variable WEIR_....  Other variables make frameworks request memory from CUDA's pools
 * (frameworks.h).  With --report, this process starts the command and waits for it.
 *
 * TensorFlow, XLA and JAX have variables about memory.  weir run converts them to WEIR_ variables, and sets some of
 * them itself.  It then sets WEIR_COMPAT=0, so that the library does not read them a second time.  Messages while
 * the program runs are in lib/adapters/preload.
 *
 * This file must not depend on how the preloaded library works.
 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/files.h"
#include "cli/common/flags.h"
#include "cli/common/jsonfile.h"
#include "cli/frameworks.h"
#include "cli/groups.h"
#include "cli/report/report.h"
#include "cli/shims.h"

#define LIBRARY "libweir-preload.so"

struct run {
    struct weir_cli_settings settings;
    int no_env, stats, serve_malloc, no_torch, verbose, dry;
    /* The files of --json, --trace-events and --settings, or NULL. */
    const char *json, *trace, *file;
    struct group_flags group;
    const char *report;
    /* The temporary file in which processes write statistics for the report, or "". */
    char lines[PATH_MAX];
    int argc;
    char **argv;
    char **command;
    char python[PATH_MAX]; /* the Python interpreter that the command starts, or "" */
    struct shim shim;      /* the library that connects weir with the interpreter's PyTorch */
    FILE *variables; /* a list of the variables that weir run has set, each as " NAME=VALUE" */
};

static int fail_run(int code, const char *what, const char *why) {
    fprintf(stderr, "weir run: %s: %s\n", what, why);
    return code;
}

/* ------------------------------------------------------------------ variables ---- */

static int set_run_variable(void *context, const char *name, const char *value) {
    struct run *run = context;

    if (setenv(name, value, 1) != 0)
        return 1;
    if (run->dry)
        printf("%s=%s\n", name, value);
    return fprintf(run->variables, " %s=%s", name, value) < 0;
}

/* Tells the library which framework's variable sets the preallocation.  The library then reduces the preallocation to
 * the limit, and reports no error. */
static int set_prealloc_source(struct run *run) {
    const char *name = weir__framework_prealloc(&run->settings.options);

    return name ? set_run_variable(run, "WEIR_RUN_PREALLOC_OF", name)
                : unsetenv("WEIR_RUN_PREALLOC_OF");
}

/* Sets the WEIR_ variable of each setting that comes from a flag or from a framework's variable.  Ignores frameworks'
 * variables with --no-env. */
static int set_setting_variables(struct run *run) {
    char text[WEIR_SHOW_BYTES];

    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const struct weir_setting_row *row = weir__setting_row((enum weir_setting)i);
        const char *source = run->settings.sources.of[i];
        int is_flag = source && strncmp(source, "flag ", 5) == 0;

        if (!source || strcmp(source, row->variable) == 0 || (run->no_env && !is_flag))
            continue;
        weir__option_show(&run->settings.options, (enum weir_setting)i, text, sizeof text);
        if (set_run_variable(run, row->variable, text) != 0 ||
            (i == WEIR_SETTING_PREALLOC && set_prealloc_source(run) != 0))
            return 1;
    }
    return 0;
}

/* Sets a variable to the absolute path of the file `name', because the program may change its working directory.  Does
 * nothing if `name' is NULL. */
static int set_file_variable(struct run *run, const char *variable, const char *name) {
    char *folder = NULL, *path = NULL;
    int failed;

    if (!name)
        return 0;
    if (name[0] == '/')
        return set_run_variable(run, variable, name);
    folder = getcwd(NULL, 0);
    failed = !folder || asprintf(&path, "%s/%s", folder, name) < 0 ||
             set_run_variable(run, variable, path) != 0;
    free(folder);
    free(path);
    return failed;
}

/* Sets the variable for the file in which processes write statistics: the file of --json, or a temporary file if there
 * is a report. */
static int set_json_file(struct run *run) {
    if (run->report && set_run_variable(run, "WEIR_RUN_SAMPLES", "1") != 0)
        return 1;
    return set_file_variable(run, "WEIR_RUN_JSON", run->lines[0] ? run->lines : run->json);
}

/* Sets WEIR_RUN_TOLD to the unknown settings that weir run has reported, because the library in the command must not
 * report them again. */
static int set_reported_unknowns(struct run *run) {
    const char *unknown = run->settings.sources.unknown;

    return *unknown && set_run_variable(run, "WEIR_RUN_TOLD", unknown);
}

/* Sets WEIR_RUN_FIRST to this process's id, which is later the command's id.  Only the process with this id reports
 * that statistics are missing, so child processes of the command do not. */
static int set_first_process(struct run *run) {
    char process[24];

    if (run->report || run->dry)
        return 0;
    snprintf(process, sizeof process, "%ld", (long)getpid());
    return setenv("WEIR_RUN_FIRST", process, 1);
}

static int set_run_variables(struct run *run) {
    return set_first_process(run) || set_reported_unknowns(run) ||
           (run->stats && set_run_variable(run, "WEIR_RUN_STATS", "1")) ||
           (run->serve_malloc && set_run_variable(run, "WEIR_RUN_SERVE_MALLOC", "1")) ||
           (run->no_torch && set_run_variable(run, "WEIR_RUN_TORCH", "0")) ||
           (run->verbose && set_run_variable(run, "WEIR_RUN_VERBOSE", "1")) || set_json_file(run) ||
           group_flags_put(&run->group, set_run_variable, run) ||
           set_file_variable(run, "WEIR_RUN_TRACE", run->trace);
}

/* Returns 1 if the preallocation is above the limit, or cannot be compared with it yet; else 0. */
static int may_exceed_limit(const weir_options *options) {
    const weir_amount *limit = &options->limit, *all = &options->prealloc;

    return weir__option_is_set(options, WEIR_SETTING_LIMIT) && limit->kind != WEIR_AMOUNT_MAX &&
           (limit->kind != (all->kind & WEIR_AMOUNT_KIND) || limit->value < all->value);
}

/* Writes a note if a framework's variable sets the preallocation. */
static void note_prealloc(const struct run *run, FILE *notes) {
    const weir_options *options = &run->settings.options;
    const char *name = weir__framework_prealloc(options);
    char amount[WEIR_SHOW_BYTES], limit[WEIR_SHOW_BYTES], text[2 * WEIR_SHOW_BYTES + 32];

    if (!name || options->prealloc.value == 0)
        return;
    weir__option_show(options, WEIR_SETTING_PREALLOC, amount, sizeof amount);
    if (may_exceed_limit(options)) {
        weir__option_show(options, WEIR_SETTING_LIMIT, limit, sizeof limit);
        snprintf(text, sizeof text, "%s, reduced to the limit of %s,", amount, limit);
    } else {
        snprintf(text, sizeof text, "%s", amount);
    }
    frameworks_note_prealloc(name, text, !run->no_env, notes);
}

/* Returns 0 if the value of the variable means "off", else 1.  The value is valid, because weir run has already read
 * all settings. */
static int is_variable_on(const char *name) {
    const char *value = getenv(name);
    struct weir_problem problem;
    int on = 1;

    return !value || !weir__switch_read(value, &on, &problem) || on;
}

/* Writes a note for each of the user's settings of PyTorch's allocator that weir ignores. */
static void note_ignored(FILE *notes) {
    static const char *const lists[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    static const char *const options[] = {"expandable_segments", "max_split_size_mb",
                                          "garbage_collection_threshold"};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        for (size_t o = 0; o < sizeof options / sizeof options[0]; o++) {
            const char *list = getenv(lists[i]);
            size_t length;

            if (list && weir__torch_option(list, options[o], &length))
                fprintf(notes, "; weir ignores %s of %s", options[o], lists[i]);
        }
}

/* Writes a warning if the program will not load weir's library.  Settings have no effect on such a program. */
static void note_unserved(const struct run *run, FILE *lacking) {
    const char *why = run->command ? preloading_why_not(run->command[0]) : NULL;

    if (why)
        fprintf(lacking,
                "; %s does not load weir's library, because %s: settings do not apply to it, only "
                "to programs that it may start",
                run->command[0], why);
}

/* Finds the versions of frameworks if the command starts a Python interpreter.  Runs the interpreter only if a message
 * depends on the versions. */
static void find_packages(struct run *run, struct version found[FRAMEWORK_COUNT]) {
    int has_python = run->command && shim_python(run->command, run->python, sizeof run->python);

    if (!has_python)
        run->python[0] = '\0';
    else if (run->dry || run->verbose || frameworks_need_version())
        shim_find(&run->shim, run->python);
    versions_find(found, run->shim.folders);
}

/* Starts to compile the shim (the C++ library that makes PyTorch use weir) if it is missing. */
static void prepare_torch(struct run *run, FILE *notes) {
    const struct shim *shim = &run->shim;

    if (run->no_torch || !is_variable_on("WEIR_RUN_TORCH") || weir__shim_disabled_by() ||
        !run->python[0])
        return;
    if (!run->dry)
        shim_build_beside(run->python);
    if (shim->state == SHIM_FAILED || shim->state == SHIM_UNSUPPORTED)
        fprintf(notes, "; PyTorch's own allocator stays: %s", shim->why);
    else if (shim->state == SHIM_READY)
        fprintf(notes, "; weir is the allocator of PyTorch %s", shim->version);
    else if (shim->state == SHIM_MISSING)
        fprintf(notes, "; weir will be the allocator of PyTorch %s, once weir's shim is compiled",
                shim->version);
    if (shim->state == SHIM_READY || shim->state == SHIM_MISSING)
        note_ignored(notes);
}

/* Prints the user's settings that weir cannot apply, and the notes for --verbose and --dry-run.  `lacks' and `notes'
 * begin with "; ". */
static void report_unmet_wishes(const struct run *run, const char *variables, const char *lacks,
                                const char *notes) {
    if (run->verbose && !run->dry)
        fprintf(stderr, "weir run:%s%s%s\n", variables, lacks, notes);
    else if (!run->verbose && !run->dry && *lacks)
        fprintf(stderr, "weir run: %s\n", lacks + 2);
    else if (run->dry && (*lacks || *notes))
        fprintf(stderr, "weir run: %s%s\n", *lacks ? lacks + 2 : "", *lacks ? notes : notes + 2);
}

static int set_environment(struct run *run, const char *library) {
    enum { VARIABLES, LACKS, NOTES, TEXTS };
    char *texts[TEXTS] = {NULL};
    size_t bytes[TEXTS];
    FILE *files[TEXTS];
    int compatible = is_variable_on("WEIR_COMPAT"), failed = 0;
    struct version found[FRAMEWORK_COUNT];

    for (int i = 0; i < TEXTS; i++)
        failed |= !(files[i] = open_memstream(&texts[i], &bytes[i]));
    find_packages(run, found);
    run->variables = files[VARIABLES];
    failed = failed || preloading_set_variables(library, set_run_variable, run) != 0 ||
             set_setting_variables(run) != 0 || set_run_variables(run) != 0 ||
             (!run->no_env && set_run_variable(run, "WEIR_COMPAT", "0") != 0) ||
             frameworks_set_variables(run->no_env ? NULL : set_run_variable, run, run->serve_malloc,
                                      compatible, &found[FRAMEWORK_JAX], files[LACKS],
                                      files[NOTES]) != 0;
    if (!failed) {
        note_unserved(run, files[LACKS]);
        note_prealloc(run, files[NOTES]);
        prepare_torch(run, files[NOTES]);
        versions_note(found, files[NOTES]);
    }
    for (int i = 0; i < TEXTS; i++)
        failed |= !files[i] || fclose(files[i]) != 0;
    if (failed)
        fail_run(EXIT_WEIR_FAILED, "the environment", strerror(ENOMEM));
    else
        report_unmet_wishes(run, texts[VARIABLES], texts[LACKS], texts[NOTES]);
    for (int i = 0; i < TEXTS; i++)
        free(texts[i]);
    return failed ? EXIT_WEIR_FAILED : 0;
}

/* --------------------------------------------------------------------- report ---- */

/* Before the command starts, checks the file of the report and creates the temporary file for statistics.  Returns 0 on
 * success.  On failure, prints a message and returns the exit code. */
static int prepare_report(struct run *run) {
    if (!run->report)
        return 0;
    if (!output_check("--report", run->report))
        return EXIT_WEIR_FAILED;
    return run->dry || temporary_named("run", run->lines, sizeof run->lines)
               ? 0
               : fail_run(EXIT_WEIR_FAILED, run->lines, strerror(errno));
}

/* Appends the statistics in the temporary file to the file of --json. */
static void copy_lines(const struct run *run) {
    FILE *from = fopen(run->lines, "re"), *to = fopen(run->json, "ae");
    int good = from && to, c;

    while (good && (c = fgetc(from)) != EOF)
        good = fputc(c, to) != EOF;
    if (to && fclose(to) != 0)
        good = 0;
    if (!good)
        fail_run(0, run->json, strerror(errno));
    if (from)
        fclose(from);
}

/* Writes the report from the statistics in the temporary file, and from the settings as the user wrote them. */
static void write_run_report(const struct run *run, int ended) {
    struct stat status;
    json_t *lines = NULL, *common, *line;
    size_t i;

    if (run->json)
        copy_lines(run);
    if (stat(run->lines, &status) != 0 || status.st_size == 0) {
        fail_run(
            0, "--report",
            WIFSIGNALED(ended)
                ? "a signal ended the command before it wrote statistics, so there is no report"
                : "no memory was requested from weir, so there is no report");
        return;
    }
    lines = report_read(run->lines);
    common = jsonfile_common(run->argc, run->argv);
    json_object_set_new(common, "options", weir_cli_options_json(&run->settings.options));
    json_array_foreach(lines, i, line) json_object_update(line, common);
    if (lines)
        (void)report_of(lines, run->json ? run->json : "", run->report);
    json_decref(common);
    json_decref(lines);
}

/* Runs the command, writes the report at its end, and returns its exit code. */
static int run_and_report(const struct run *run) {
    pid_t started;
    int status = 0, error = command_start(run->command, &started);

    if (error) {
        unlink(run->lines);
        return command_report_failure("run", run->command[0], error);
    }
    while (waitpid(started, &status, 0) < 0 && errno == EINTR)
        ;
    command_stop_forwarding();
    write_run_report(run, status);
    unlink(run->lines);
    return command_end_as(status);
}

/* -------------------------------------------------------------------- command ---- */

#define FIELD(name) offsetof(struct run, name)

static const struct weir_cli_flag flags[] = {
    {"stats", 0, NULL, weir_cli_read_switch, FIELD(stats),
     "Write statistics to standard error when the program ends, and when its first request fails."},
    {"json", 'j', "FILE", weir_cli_read_file, FIELD(json),
     "Add statistics to FILE when the program ends, a line of JSON for each process."},
    {"report", 0, "FILE", weir_cli_read_page, FIELD(report),
     "Write a page of statistics and memory over time to FILE, whose name ends in .html, when the "
     "command has ended (weir report)."},
    {"trace-events", 0, "FILE", weir_cli_read_file, FIELD(trace),
     "Write a time line to FILE for Perfetto or Chrome when the program ends."},
    {"settings", 0, "FILE", weir_cli_read_file, FIELD(file),
     "Take settings from FILE, which has lines NAME=VALUE, as weir tune writes them.  Flags "
     "override the file, and the file overrides variables."},
    {"serve-malloc", 0, NULL, weir_cli_read_switch, FIELD(serve_malloc),
     "Serve cudaMalloc and cuMemAlloc, too, for programs that use nothing else."},
    {"no-env", 0, NULL, weir_cli_read_switch, FIELD(no_env),
     "Set no variables of JAX and TensorFlow.  They then preallocate themselves, unless the "
     "environment makes them use CUDA's memory pools."},
    {"no-torch", 0, NULL, weir_cli_read_switch, FIELD(no_torch),
     "Leave PyTorch its own allocator."},
    {"group", 0, "NAME", weir_cli_read_text, FIELD(group.name),
     "Join the process group NAME: all its processes together stay within --group-limit on each "
     "device."},
    {"group-limit", 0, "AMOUNT", weir_cli_read_text, FIELD(group.limit),
     "The group's limit: bytes, or a percentage of the device.  Default: the limit of the group's "
     "members."},
    {"verbose", 'v', NULL, weir_cli_read_switch, FIELD(verbose),
     "Print the variables that weir run sets, and which memory of the program comes from weir."},
    {"dry-run", 'n', NULL, weir_cli_read_switch, FIELD(dry),
     "Print the variables that weir run would set, and run nothing."},
    {0}};

static error_t parse_run_argument(int key, char *argument, struct argp_state *state) {
    struct run *run = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &run->settings;
        return 0;
    case ARGP_KEY_ARG: /* this argument and all arguments after it are the command */
        run->command = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        if (!run->dry)
            preloading_no_command(state);
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

static const char doc[] =
    "Runs an unmodified program with memory from weir: weir serves its requests to cudaMallocAsync "
    "and to CUDA's memory pools.\vweir run sets variables that make JAX and TensorFlow use CUDA's "
    "memory pools, unless the environment names an allocator or --no-env is given.  --dry-run and "
    "--verbose show them.  weir becomes PyTorch's allocator (`weir torch'), unless "
    "PYTORCH_ALLOC_CONF names a backend.  There is no --device: weir run needs a GPU, and the "
    "program chooses it.\n\nExit code: the command's; "
    "126 if it "
    "cannot be run, 127 if there is none, as env(1); 2 usage or a bad setting, 125 another "
    "failure, and the command did not start.";

/* Removes an old file of --trace-events.  The first process that requests memory from weir will create a new file.
 * Returns 0 on success.  On failure, prints a message and returns EXIT_WEIR_FAILED. */
static int clear_trace(const struct run *run) {
    struct stat is;
    int is_there = run->trace && stat(run->trace, &is) == 0;
    const char *why = NULL;

    if (!output_check("--trace-events", run->trace))
        return EXIT_WEIR_FAILED;
    if (is_there && !S_ISREG(is.st_mode))
        why = "it is no plain file";
    else if (is_there && !run->dry && unlink(run->trace) != 0)
        why = strerror(errno);
    if (why)
        fprintf(stderr, "weir: --trace-events %s: %s\n", run->trace, why);
    return why ? EXIT_WEIR_FAILED : 0;
}

static const char *why_no_device(const char *device) {
    return strncmp(device, "model", 5) == 0
               ? "weir run needs a GPU.  Without one, use the library with device \"model\", weir "
                 "replay or weir bench"
               : "the program chooses its GPU itself";
}

/* Prints a note if WEIR_DEVICE names a device other than "cuda", because only programs that call libweir themselves use
 * this variable. */
static void note_ignored_device(const struct run *run) {
    const weir_options *options = &run->settings.options;

    if (options->device && strcmp(options->device, "cuda") != 0)
        fprintf(stderr,
                "weir run: warning: WEIR_DEVICE '%s' applies only to the program's own calls of "
                "libweir: %s\n",
                options->device, why_no_device(options->device));
}

/* Checks that all output files are different.  Returns 1 if so.  Otherwise prints a message and returns 0. */
static int are_outputs_different(const struct run *run) {
    const struct weir_cli_settings *settings = &run->settings;
    const struct output outputs[] = {
        {"--json", run->json},
        {"--trace-events", run->trace},
        {"--report", run->report},
        {weir_cli_source_name(settings, WEIR_SETTING_OOM_REPORT),
         weir_cli_file_of(&settings->options, WEIR_SETTING_OOM_REPORT)},
        {weir_cli_source_name(settings, WEIR_SETTING_PROFILE),
         weir_cli_file_of(&settings->options, WEIR_SETTING_PROFILE)}};

    return outputs_differ(outputs, sizeof outputs / sizeof outputs[0]);
}

static int find_and_set(struct run *run) {
    const char *source, *why;
    char library[4200], message[600];
    int code;

    if (run->file && (code = settings_file_read(&run->settings, "--settings", run->file)) != 0)
        return code == EXIT_USAGE ? code : EXIT_WEIR_FAILED;
    run->settings.place = run->no_env ? WEIR_PLACE_UNMODIFIED : WEIR_PLACE_RUN;
    if (weir_cli_settings_finish(&run->settings) != 0)
        return EXIT_USAGE;
    if (!are_outputs_different(run))
        return EXIT_USAGE;
    if (weir_cli_profile_check(&run->settings, 1) != 0 ||
        weir_cli_oom_report_check(&run->settings) != 0)
        return EXIT_WEIR_FAILED;
    source = run->settings.sources.of[WEIR_SETTING_DEVICE];
    if (source && strncmp(source, "flag ", 5) == 0)
        return fail_run(EXIT_USAGE, "--device", why_no_device(run->settings.options.device));
    note_ignored_device(run);
    if (group_flags_check(&run->group, message, sizeof message) != 0) {
        fprintf(stderr, "weir run: %s\n", message);
        return EXIT_USAGE;
    }
    if (preloading_find(LIBRARY, library, sizeof library, &why) != 0)
        return fail_run(EXIT_WEIR_FAILED, library, why);
    if (!output_check_append("--json", run->json) || clear_trace(run) != 0)
        return EXIT_WEIR_FAILED;
    code = prepare_report(run);
    return code ? code : set_environment(run, library);
}

int weir_cmd_run(int argc, char **argv) {
    struct argp_child children[] = {
        {weir_settings_argp(WEIR_SETTING_DEVICE), 0, WEIR_SETTINGS_TITLE, 1}, {0}};
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_run_argument,
                        .args_doc = "[--] COMMAND [ARGUMENT...]",
                        .doc = doc,
                        .children = children};
    static struct run run;
    int code;

    weir_cli_settings_init(&run.settings);
    run.argc = argc;
    run.argv = argv;
    if (weir_cli_parse(&argp, argc, argv, ARGP_IN_ORDER, &run) != 0)
        return EXIT_USAGE;
    code = find_and_set(&run);
    if (code != 0) {
        if (run.lines[0])
            unlink(run.lines);
        return code;
    }
    if (fflush(NULL) != 0)
        return fail_run(EXIT_WEIR_FAILED, "standard output", strerror(errno));
    if (run.dry)
        return 0;
    if (run.report)
        return run_and_report(&run);
    execvp(run.command[0], run.command);
    return command_report_failure("run", run.command[0], errno);
}
