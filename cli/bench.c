/* SPDX-License-Identifier: MIT */
/* bench.c: `weir bench`: configurations with fixed settings on the same traces, side by side. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/help.h"
#include "cli/micro/micro.h"
#include "cli/replay/contest.h"
#include "cli/replay/configuration.h"
#include "cli/replay/limit_sweep.h"

enum { MICRO_KEY = 0x5600, LIMIT_KEY, THRESHOLD_KEY };

struct command {
    struct contest contest;
    struct weir_cli_settings settings;
    int limits;          /* --limit-sweep */
    const char *earlier; /* its file; NULL: none */
    int failed;
};

/* "driver, driver-keep, ...". */
static const char *names(void) {
    static char text[256];

    text[0] = '\0';
    for (const struct configuration *c = configurations; c->name; c++)
        help_join(text, sizeof text, c->name);
    return text;
}

static int add_configuration(struct contest *contest, const char *name) {
    const char **list;

    for (size_t i = 0; i < contest->configuration_count; i++)
        if (strcmp(contest->configurations[i], name) == 0)
            return 1;
    list = reallocarray(contest->configurations, contest->configuration_count + 1, sizeof *list);
    if (!list) {
        fputs("weir: out of memory\n", stderr);
        return 0;
    }
    list[contest->configuration_count++] = name;
    contest->configurations = list;
    return 1;
}

static int is_setting(const char *option, size_t length) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const struct weir_setting_row *row = weir__setting_row((enum weir_setting)i);
        const char *const names[] = {row->name, row->was};

        for (int j = 0; i != WEIR_SETTING_DEVICE && j < 2; j++)
            if (names[j] && strlen(names[j]) == length && strncmp(names[j], option, length) == 0)
                return 1;
    }
    return 0;
}

/* Flags that others have, before argp takes one for the beginning of another: --limit for --limit-sweep.  1: told. */
static int refuse_others(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *option;
        int length;

        if (strncmp(argv[i], "--", 2) != 0)
            continue;
        option = argv[i] + 2;
        length = (int)strcspn(option, "=");
        if (is_setting(option, (size_t)length))
            return fprintf(
                stderr,
                "weir bench: --%.*s: configurations have settings of their own; expected "
                "--configuration, or weir replay, which takes settings\n",
                length, option);
        if (micro_alone_has(option, (size_t)length))
            return fprintf(stderr, "weir bench: --%.*s goes with --micro\n", length, option);
    }
    return 0;
}

static const struct argp_option options[] = {
    {"configuration", 'c', "NAME", 0, "Measure only this one; may be repeated.", 0},
    {"contestant", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0}, /* an earlier name */
    {"device", 'd', "DEVICE", 0,
     "Use this device.  Default: the GPU if there is one, else the device model.  Takes cuda, "
     "cuda:N, model or model:N.",
     0},
    {"limit-sweep", LIMIT_KEY, "FILE", OPTION_ARG_OPTIONAL,
     "Find the smallest limit at which each configuration serves each trace, in steps of 32 MiB.  "
     "With FILE, the JSON of an earlier sweep: try its limits, one step less and one step more.",
     0},
    {"threshold-sweep", THRESHOLD_KEY, NULL, 0,
     "Replay with release thresholds of 0, 25, 50 and 75% of the trace's peak requested memory, "
     "and max; of configurations driver and pool by default.",
     0},
    {"micro", MICRO_KEY, NULL, 0,
     "Measure single calls instead of traces; see weir bench --micro --help.", 0},
    {0}};

static int is_one_of(const struct argp_option *list, const char *option, size_t length) {
    for (const struct argp_option *o = list; o->name; o++)
        if (o->key != 'd' && strlen(o->name) == length && strncmp(o->name, option, length) == 0)
            return 1;
    return 0;
}

int bench_alone_has(const char *option, size_t length) {
    return is_one_of(options, option, length) || micro_alone_has(option, length);
}

/* With --micro, flags of what replays traces.  1: told. */
static int refuse_replaying(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *option = argv[i] + 2;
        size_t length = strncmp(argv[i], "--", 2) == 0 ? strcspn(option, "=") : 0;

        if (length && !micro_has(option, length) &&
            (is_one_of(options, option, length) || is_one_of(contest_argp.options, option, length)))
            return fprintf(stderr,
                           "weir bench: --%.*s replays traces, which --micro does not: see weir "
                           "bench --micro --help\n",
                           (int)length, option);
    }
    return 0;
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;
    const struct configuration *named;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->contest;
        return 0;
    case 'c':
        named = configuration_find(argument);
        if (!named || named->is_given)
            argp_error(state, "--configuration '%s' is not known; there are: %s", argument,
                       names());
        command->failed |= named && !add_configuration(&command->contest, named->name);
        return 0;
    case MICRO_KEY:
        argp_error(state, "--micro must be written in full");
        return EINVAL;
    case LIMIT_KEY:
        command->limits = 1;
        command->earlier = argument;
        return 0;
    case THRESHOLD_KEY:
        command->contest.thresholds = 1;
        return 0;
    case 'd':
        weir_cli_settings_set(&command->settings, WEIR_SETTING_DEVICE, argument);
        return 0;
    case ARGP_KEY_ARG:
        command->failed |= !contest_add_trace(&command->contest, argument);
        return 0;
    case ARGP_KEY_END:
        if (command->limits && (command->contest.repeat > 1 || command->contest.busy_factor > 0 ||
                                command->contest.pace > 0))
            argp_error(state, "--limit-sweep goes with none of --repeat, --busy and --pace");
        if (command->limits && command->contest.samples)
            argp_error(state, "--limit-sweep goes with neither --samples nor --report");
        if (command->limits && command->contest.timeline_file)
            argp_error(state, "--limit-sweep has no --trace-events: its runs are trials");
        if (command->limits && command->contest.thresholds)
            argp_error(state, "--limit-sweep and --threshold-sweep are runs of their own");
        for (size_t i = 0; i < command->contest.configuration_count; i++)
            if (command->contest.thresholds &&
                !configuration_find(command->contest.configurations[i])->has_threshold)
                argp_error(state,
                           "--threshold-sweep: %s has no release threshold, or one of its own",
                           command->contest.configurations[i]);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void list_configurations(FILE *file) {
    for (int by_name = 0; by_name < 2; by_name++) {
        fputs(by_name ? "Only by name:\n" : "Configurations:\n", file);
        for (const struct configuration *c = configurations; c->name; c++)
            if (c->by_name_only == by_name)
                fprintf(file, "  %-15s%s\n", c->name, c->what);
    }
}

static char *help_filter(int key, const char *text, void *input) {
    (void)input;
    return help_with_list(key, text, list_configurations);
}

static int add_defaults(struct contest *contest) {
    if (contest->configuration_count == 0)
        for (const struct configuration *c = configurations; c->name; c++)
            if (!c->by_name_only && (c->has_threshold || !contest->thresholds) &&
                !add_configuration(contest, c->name))
                return 0;
    return contest->trace_count > 0 || contest_add_shipped(contest);
}

int weir_cmd_bench(int argc, char **argv) {
    static const char doc[] =
        "Measures configurations side by side: replays each trace on each of them, in fresh "
        "processes.\vTRACE is a file (plain, gzip or zstd), '-' for standard input, or the name of "
        "a trace that comes with weir; without any, all of those.  It may also be a "
        "log of RMM or a problem of minimalloc.\n\nExit code: 0 all went well, 1 "
        "something failed, 2 usage or a bad value, 3 the report has no pictures.";
    struct argp_child children[] = {{&contest_argp, 0, NULL, 0}, {0}};
    struct argp argp = {options, parse_argument, "[TRACE...]", doc, children, help_filter, NULL};
    static struct command command;
    struct contest *contest = &command.contest;
    int code;

    if (micro_is_asked(argc, argv))
        return refuse_replaying(argc, argv) ? 2 : weir_cmd_micro(argc, argv);
    if (refuse_others(argc, argv))
        return 2;
    contest_init(contest, argc, argv);
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    code = command.failed || !add_defaults(contest) ? 1 : 0;
    if (code == 0)
        code = weir_cli_settings_finish(&command.settings);
    if (code == 0) {
        weir_cli_settings_tell_unused(&command.settings);
        code = weir_options_init(&contest->options) == WEIR_OK ? 0 : 1;
        contest->options.device = command.settings.options.device;
        contest->options.log = command.settings.options.log;
        contest->device_source = command.settings.sources.of[WEIR_SETTING_DEVICE];
    }
    if (code == 0)
        code = contest_check_outputs(contest, &command.settings);
    if (code == 0)
        code = command.limits ? limit_sweep_run(contest, command.earlier) : contest_run(contest);
    contest_free(contest);
    return code;
}
