/* SPDX-License-Identifier: MIT */
/* replay.c: `weir replay': replays traces on one allocator.  The settings of the allocator come from flags and the
 * environment. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/replay/benchmark.h"

enum { EXPLAINED = 10, MAX_EXPLAINED = INT32_MAX };

struct command {
    struct benchmark benchmark;
    struct weir_cli_settings settings;
    size_t explained; /* the number of lines of --explain, or 0 without --explain */
};

static void read_explain_flag(struct argp_state *state, const char *flag, const char *text,
                              void *field) {
    struct weir_problem problem;
    uint64_t count = EXPLAINED;

    if (text && (!weir__count_read(text, MAX_EXPLAINED, &count, &problem) || count == 0))
        argp_error(state, "%s '%s': expected a whole number from 1 to %d", flag, text,
                   MAX_EXPLAINED);
    *(size_t *)field = (size_t)count;
}

static void refuse_configuration(struct argp_state *state, const char *flag, const char *text,
                                 void *field) {
    (void)text, (void)field;
    argp_error(state, "%s goes with weir bench", flag);
}

static const struct weir_cli_flag flags[] = {
    {"explain", WEIR_CLI_OPTIONAL, "N", read_explain_flag, offsetof(struct command, explained),
     "Replay nothing, but show which calls took memory, and the largest blocks in N lines (10).  "
     "Equal blocks share a line."},
    {"configuration", WEIR_CLI_HIDDEN, "NAME", refuse_configuration, 0, NULL},
    {0}};

static error_t parse_replay_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->benchmark;
        state->child_inputs[1] = &command->settings;
        return 0;
    case ARGP_KEY_ARG:
        benchmark_add_trace(&command->benchmark, argument);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no trace was named; some come with weir, such as gpt2-train; weir bench "
                          "replays all of these");
        return EINVAL;
    case ARGP_KEY_END:
        if (command->explained &&
            (command->benchmark.results.repeat > 1 || command->benchmark.report ||
             command->benchmark.results.busy > 0 || command->benchmark.pace > 0 ||
             command->benchmark.timeline_file))
            argp_error(state, "--explain replays nothing, so it cannot be combined with --repeat, "
                              "--busy, --pace, --report or --trace-events");
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

/* Prints a note if the replays have not created the profile. */
static void note_missing_profile(const char *path) {
    if (path && strcmp(path, "off") != 0 && access(path, F_OK) != 0)
        fprintf(stderr, "weir: profile %s: not created, because nothing was learned\n", path);
}

/* Prints which calls of the traces use memory (--explain).  Also warns about flags of settings, which have no effect.
 * Returns the exit code. */
static int explain_traces(struct command *command) {
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        const char *source = command->settings.sources.of[i];

        if (source && strncmp(source, "flag ", 5) == 0)
            fprintf(stderr, "weir: %s has no effect: --explain replays nothing\n",
                    weir_cli_source_name(&command->settings, (enum weir_setting)i));
    }
    return benchmark_explain(&command->benchmark, command->explained);
}

/* Replays all traces with the settings of the command.  Returns the exit code. */
static int replay_traces(struct command *command) {
    int code = weir_cli_profile_check(&command->settings, 1);

    if (code == 0)
        code = weir_cli_oom_report_check(&command->settings);
    if (code != 0)
        return code;
    command->benchmark.device_source = command->settings.sources.of[WEIR_SETTING_DEVICE];
    benchmark_add_configuration(&command->benchmark, configuration_find("replay"));
    code = benchmark_run(&command->benchmark);
    note_missing_profile(command->settings.options.profile);
    return code;
}

int weir_cmd_replay(int argc, char **argv) {
    static const char doc[] =
        "Replays traces on one allocator, each in fresh processes, as fast as possible; or "
        "explains them.\vTRACE is a file (plain, gzip or zstd), '-' for standard input, or the "
        "name of a trace that comes with weir.  It may also be a log of RMM or a problem of "
        "minimalloc.\n\nWith --profile, all runs of a trace (--repeat, "
        "--busy) begin with the profile as it was before.  The last run saves what it needed, for "
        "the next trace or command.\n\nExit code: 0 all went well, 1 something failed, 2 usage or "
        "a bad value.";
    struct argp_child children[] = {
        {benchmark_argp(), 0, NULL, 0}, {weir_settings_argp(-1), 0, WEIR_SETTINGS_TITLE, 1}, {0}};
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_replay_argument,
                        .args_doc = "TRACE...",
                        .doc = doc,
                        .children = children};
    static struct command command;
    int code;

    benchmark_init(&command.benchmark, argc, argv);
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    code = weir_cli_settings_finish(&command.settings);
    command.benchmark.options = command.settings.options;
    if (code == 0)
        code = benchmark_check_outputs(&command.benchmark, &command.settings);
    if (code == 0)
        code = command.explained ? explain_traces(&command) : replay_traces(&command);
    benchmark_free(&command.benchmark);
    return code;
}
