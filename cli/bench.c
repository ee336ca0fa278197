/* SPDX-License-Identifier: MIT */
/* bench.c: `weir bench': replays traces on several configurations, each with fixed settings, and compares the results.
 */
#include <stdio.h>
#include <string.h>

#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/replay/benchmark.h"
#include "cli/replay/configuration.h"

struct command {
    struct benchmark benchmark;
    struct weir_cli_settings settings;
};

/* Returns the names of all configurations: "driver, driver-keep, ...". */
static const char *configuration_names(void) {
    static char text[512];
    size_t used = 0;

    for (const struct configuration *c = configurations; c->name && used < sizeof text; c++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", c->name);
    return text;
}

/* Returns 0 if the arguments contain no allocator setting except --device.  Otherwise prints a message and returns a
 * value other than 0. */
static int check_no_setting_flag(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        size_t length = strcspn(argv[i], "=");
        int setting = strncmp(argv[i], "--", 2) == 0 ? weir_cli_setting(argv[i] + 2, length - 2)
                                                     : WEIR_SETTING_COUNT;

        if (setting != WEIR_SETTING_COUNT && setting != WEIR_SETTING_DEVICE)
            return fprintf(stderr,
                           "weir bench: %.*s: configurations have fixed settings; expected "
                           "--configuration, or weir replay, which accepts settings\n",
                           (int)length, argv[i]);
    }
    return 0;
}

static void read_configuration_flag(struct argp_state *state, const char *flag, const char *text,
                                    void *field) {
    const struct configuration *named = configuration_find(text);
    struct command *command = field;

    if (!named || named->uses_command_options)
        argp_error(state, "%s '%s' is not known; there are: %s", flag, text, configuration_names());
    benchmark_add_configuration(&command->benchmark, named);
}

static const struct weir_cli_flag flags[] = {
    {"configuration", 'c', "NAME", read_configuration_flag, 0,
     "Measure only this one; may be repeated."},
    {"device", 'd', "DEVICE", weir_cli_read_device, offsetof(struct command, settings),
     "Use this device.  Default: the GPU if there is one, else the device model.  Takes cuda, "
     "cuda:N, model or model:N."},
    {0}};

static error_t parse_bench_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->benchmark;
        return 0;
    case ARGP_KEY_ARG:
        benchmark_add_trace(&command->benchmark, argument);
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

static void list_configurations(FILE *file) {
    for (int by_name = 0; by_name < 2; by_name++) {
        fputs(by_name ? "Only by name:\n" : "Configurations:\n", file);
        for (const struct configuration *c = configurations; c->name; c++)
            if (c->by_name_only == by_name)
                fprintf(file, "  %-17s%s\n", c->name, c->what);
    }
}

/* Adds the list of configurations to the text that --help prints after the options.  argp frees the result. */
static char *help_filter(int key, const char *text, void *input) {
    char *made = (char *)(uintptr_t)text;
    size_t bytes;
    FILE *file = key == ARGP_KEY_HELP_POST_DOC ? open_memstream(&made, &bytes) : NULL;

    (void)input;
    if (!file)
        return made;
    list_configurations(file);
    fprintf(file, "\n%s", text);
    fclose(file);
    return made;
}

static void add_defaults(struct benchmark *benchmark) {
    int has_none = benchmark->results.configuration_count == 0;

    for (const struct configuration *c = configurations; has_none && c->name; c++)
        if (!c->by_name_only)
            benchmark_add_configuration(benchmark, c);
    if (benchmark->trace_count == 0)
        benchmark_add_shipped(benchmark);
}

int weir_cmd_bench(int argc, char **argv) {
    static const char doc[] =
        "Measures configurations side by side: replays each trace on each of them, in fresh "
        "processes.\vTRACE is a file (plain, gzip or zstd), '-' for standard input, or the name of "
        "a trace that comes with weir; without any, all of those.  It may also be a "
        "log of RMM or a problem of minimalloc.\n\nExit code: 0 all went well, 1 "
        "something failed, 2 usage or a bad value.";
    struct argp_child children[] = {{benchmark_argp(), 0, NULL, 0}, {0}};
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_bench_argument,
                        .args_doc = "[TRACE...]",
                        .doc = doc,
                        .children = children,
                        .help_filter = help_filter};
    static struct command command;
    struct benchmark *benchmark = &command.benchmark;
    int code;

    if (check_no_setting_flag(argc, argv))
        return 2;
    benchmark_init(benchmark, argc, argv);
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    add_defaults(benchmark);
    code = weir_cli_settings_finish(&command.settings);
    if (code == 0) {
        weir_cli_settings_report_unused(&command.settings);
        code = weir_options_init(&benchmark->options) == WEIR_OK ? 0 : 1;
        benchmark->options.device = command.settings.options.device;
        benchmark->options.log = command.settings.options.log;
        benchmark->device_source = command.settings.sources.of[WEIR_SETTING_DEVICE];
    }
    if (code == 0)
        code = benchmark_check_outputs(benchmark, &command.settings);
    if (code == 0)
        code = benchmark_run(benchmark);
    benchmark_free(benchmark);
    return code;
}
