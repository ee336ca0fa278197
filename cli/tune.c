/* SPDX-License-Identifier: MIT */
/* tune.c: `weir tune`: whether a program fits, and settings for it, out of replays of its trace.
 *
 * A command is recorded first: a child runs `weir record`.
 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/replace.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/jsonfile.h"
#include "cli/common/outputs.h"
#include "cli/common/spell.h"
#include "cli/common/temporary.h"
#include "cli/frameworks.h"
#include "cli/replay/table.h"
#include "cli/tune/advice.h"

static const char *const goals[] = {
    [GOAL_BALANCED] = "balanced", [GOAL_MEMORY] = "memory", [GOAL_SPEED] = "speed"};

struct command {
    struct contest contest;
    struct trials trials;
    struct advice advice;
    struct weir_cli_settings settings; /* the device alone */
    const char *output;
    char **program; /* the command to be recorded; NULL: there are traces */
    char folder[PATH_MAX];
    int failed;
};

static void take_goal(struct argp_state *state, const char *flag, const char *text, void *field) {
    for (size_t i = 0; i < sizeof goals / sizeof goals[0]; i++)
        if (strcmp(text, goals[i]) == 0) {
            *(enum goal *)field = (enum goal)i;
            return;
        }
    argp_error(state, "%s '%s': expected memory, speed or balanced", flag, text);
}

#define FIELD(name) offsetof(struct command, name)

static const struct weir_cli_flag flags[] = {
    {"goal", 0, "GOAL", take_goal, FIELD(advice.goal),
     "Tune for this goal.  Takes memory, speed or balanced.  memory: reserve less, though "
     "iterations may take 2% longer.  speed: take less time, though more may be reserved.  "
     "balanced, the default: neither more time nor more memory."},
    {"limit", 0, "SIZE", weir_cli_take_size, FIELD(advice.limit),
     "Tell whether the trace is served with SIZE of reserved memory, and tune for that."},
    {"device", 'd', "DEVICE", weir_cli_take_device, FIELD(settings),
     "Replay on this device (the device model).  Takes cuda, cuda:N, model or model:N."},
    {"output", 'o', "FILE", weir_cli_take_file, FIELD(output),
     "Write the settings to FILE, for weir run --settings."},
    {0}};

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        command->failed |= !contest_add_trace(&command->contest, argument);
        return 0;
    case ARGP_KEY_END:
        if (!command->program == !command->contest.trace_count)
            argp_error(state, "expected a trace, or -- and a command to record%s",
                       command->program ? ", and not both" : "");
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

/* Cuts the arguments behind "--" off.  Returns them, or NULL if there is no "--". */
static char **cut_program(int *argc, char **argv) {
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            *argc = i;
            return &argv[i + 1];
        }
    return NULL;
}

static int put(void *to, const char *name, const char *value) {
    (void)to;
    return setenv(name, value, 1);
}

/* Sets variables so that frameworks request each tensor, as under `weir run`.  Returns 0, or an errno. */
static int tell_frameworks(void) {
    static const char *const torch[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const struct version jax = {0}; /* any */
    FILE *nobody = fopen("/dev/null", "we");
    int is_set = getenv(torch[0]) || getenv(torch[1]);
    int failed = !nobody || frameworks_tell(put, NULL, 0, 0, &jax, nobody, nobody) != 0;

    if (nobody)
        fclose(nobody);
    for (int i = 0; i < 2 && !is_set; i++)
        failed |= setenv(torch[i], "backend:cudaMallocAsync", 1) != 0;
    return failed ? ENOMEM : 0;
}

/* Records the program into a file.  Returns 0 with the exit status of `weir record`, or an errno. */
static int run_record(char *const *program, char *trace, int *status) {
    enum { BEFORE = 7 };
    const char *const before[BEFORE] = {
        "/proc/self/exe", "record", "--mark-at-sync", "--limit=256MiB", "--output", trace, "--"};
    size_t count = 0;
    char **command;
    pid_t started;
    int error;

    while (program[count])
        count++;
    command = calloc(BEFORE + count + 1, sizeof *command);
    error = command ? tell_frameworks() : ENOMEM;
    if (!error) {
        memcpy(command, before, sizeof before);
        memcpy(command + BEFORE, program, count * sizeof *command);
        error = command_start(command, &started);
    }
    while (!error && waitpid(started, status, 0) < 0 && errno == EINTR)
        ;
    command_ended();
    free(command);
    return error;
}

/* Records the program, and adds its trace.  Returns the exit code, with a message printed if it is not 0. */
static int record(struct command *command) {
    const char *name = strrchr(command->program[0], '/');
    char trace[PATH_MAX + NAME_MAX + 16];
    int status = 0, error;

    snprintf(command->folder, sizeof command->folder, "%s/weir-tune-XXXXXX", temporary_folder());
    if (!mkdtemp(command->folder)) {
        fprintf(stderr, "weir tune: %s: %s\n", command->folder, strerror(errno));
        command->folder[0] = '\0';
        return 1;
    }
    snprintf(trace, sizeof trace, "%s/%s.trace.gz", command->folder,
             name ? name + 1 : command->program[0]);
    error = run_record(command->program, trace, &status);
    if (error)
        fprintf(stderr, "weir tune: weir record: %s\n", strerror(error));
    else if (WIFSIGNALED(status))
        fprintf(stderr, "weir tune: a signal ended %s: %s; nothing is tuned\n", command->program[0],
                strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        fprintf(stderr, "weir tune: %s ended with code %d; nothing is tuned\n", command->program[0],
                WEXITSTATUS(status));
    else if (access(trace, F_OK) != 0)
        fprintf(stderr, "weir tune: %s made no call that weir records; nothing is tuned\n",
                command->program[0]);
    else
        return !contest_add_trace(&command->contest, trace);
    return 1;
}

/* Prints what a trial came to on a trace, and why it is not followed. */
static void put_trial(const struct command *command, size_t trace, int trial) {
    const struct trials *trials = &command->trials;
    const struct row *row = result_at(&trials->results, trace, (size_t)trial, 0);
    const enum result_figure times[] = {trials->creation, FIGURE_MAKESPAN, FIGURE_STEADY_MAKESPAN};
    double iteration = trials_ratio(trials, trace, trial, FIGURE_STEADY_MAKESPAN);

    printf(" %10s %10s", WEIR_SHOWN(row->median.value[FIGURE_RESERVED]),
           WEIR_SHOWN(row->median.value[FIGURE_KEPT]));
    for (int i = 0; i < 3; i++)
        printf(" %9s", row->median.has[times[i]]
                           ? spell_ms((double)row->median.value[times[i]]).text
                           : "-");
    if (trial && isfinite(iteration))
        printf(" %+7.2f%%", 100 * (iteration - 1));
    else
        printf("%9s", "");
    choice_write(stdout, &trials->choices[trial], " --", " ", "");
    printf(" (%s)\n", !trial                           ? "weir's defaults"
                      : command->advice.against[trial] ? command->advice.against[trial]
                                                       : "good");
}

/* Prints the trials of each trace. */
static void show_trials(const struct command *command) {
    table_head(stdout, &command->contest);
    if (command->contest.modelled)
        puts("device model: no GPU was used; times are virtual");
    for (size_t i = 0; i < command->contest.trace_count; i++) {
        table_trace(stdout, &command->contest.traces[i].header);
        if (command->advice.fits)
            printf(" %10s %10s %9s %9s %9s %8s  ms with GPU work\n", "reserved", "kept", "creation",
                   "all", "each", "more");
        for (int trial = 0; command->advice.fits && trial < command->trials.count; trial++)
            put_trial(command, i, trial);
    }
    putchar('\n');
}

/* Prints whether the traces fit, and the line to use. */
static void show_answer(const struct command *command) {
    const struct advice *advice = &command->advice;

    printf("It %s%s%s: ", advice->fits ? "fits" : "does not fit", advice->limit ? " into " : "",
           advice->limit ? WEIR_SHOWN(advice->limit) : "");
    if (advice->least)
        printf("the smallest limit that serves every request, in steps of 32 MiB, is %s.\n",
               WEIR_SHOWN(advice->least));
    else
        puts("no memory of this device serves every request.");
    if (!advice->fits)
        return;
    if (!advice->has_times)
        puts("Fewer than 2 iterations: there is no time to judge other settings by.");
    fputs("Use:\n  weir run", stdout);
    choice_write(stdout, &command->trials.choices[advice->best], " --", " ", "");
    fputs(" --", stdout);
    for (size_t i = 0; command->program && command->program[i]; i++)
        printf(" %s", command->program[i]);
    puts(command->program ? "" : " PROGRAM");
}

/* Writes the settings to a file.  Returns 1, or 0 with a message printed. */
static int write_settings(const struct command *command) {
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    int error;

    if (file) {
        fprintf(file, "# weir tune, on %s\n", command->contest.device);
        for (size_t i = 0; i < command->contest.trace_count; i++)
            fprintf(file, "# %s\n", command->contest.traces[i].header.name);
        choice_write(file, &command->trials.choices[command->advice.best], "", "=", "\n");
    }
    error = file && fclose(file) == 0 ? weir__replace_file(command->output, 0666, 0, text, bytes)
                                      : ENOMEM;
    free(text);
    if (error)
        fprintf(stderr, "weir: cannot write %s: %s\n", command->output, strerror(error));
    return !error;
}

/* Checks settings and files before anything is run.  Returns the exit code, with a message printed if it is not 0. */
static int check_files(struct command *command) {
    const struct output output = {"--output", command->output};
    int code = weir_cli_settings_finish(&command->settings);

    if (code)
        return code;
    weir_cli_settings_tell_unused(&command->settings);
    for (size_t i = 0; i < command->contest.trace_count; i++)
        if (!outputs_spare(&output, 1, "trace", command->contest.traces[i].path))
            return 2;
    return !jsonfile_check("--output", command->output);
}

/* Returns the exit code. */
static int tune(struct command *command) {
    struct contest *contest = &command->contest;
    struct trials *trials = &command->trials;
    struct advice *advice = &command->advice;

    if (weir_options_init(&contest->options) != WEIR_OK)
        return 1;
    contest->options.device =
        command->settings.options.device ? command->settings.options.device : "model";
    contest->device_source = command->settings.sources.of[WEIR_SETTING_DEVICE];
    contest->results.busy = 1;
    if (!contest_add_configuration(contest, configuration_find("replay")) ||
        (command->program && record(command) != 0) || !contest_prepare(contest))
        return 1;
    interrupt_watch();
    if (!trials_open(trials, contest, advice->goal == GOAL_MEMORY ? TRIALS : 4) ||
        !advise(trials, advice))
        return 1;
    progress_clear(&trials->progress);
    show_trials(command);
    show_answer(command);
    return !weir_cli_written() || !advice->fits || (command->output && !write_settings(command));
}

int weir_cmd_tune(int argc, char **argv) {
    static const char doc[] =
        "Tells whether a program fits, in what limit, what to preallocate, and whether to keep or "
        "return idle memory, by replays of its trace with GPU work.\vTRACE is a file (plain, gzip "
        "or zstd), '-' for standard input, or the name of a trace that comes with weir.  With a "
        "command, weir records that first.  With several traces, the settings are for all of "
        "them.\n\nExit code: 0 all went well, 1 something failed or the memory is too little, 2 "
        "usage or a bad value.";
    struct argp argp = {weir_cli_options(flags),
                        parse_argument,
                        "TRACE...\n-- COMMAND [ARGUMENT...]",
                        doc,
                        NULL,
                        NULL,
                        NULL};
    static struct command command;
    int code;

    command.program = cut_program(&argc, argv);
    if (command.program && !command.program[0]) {
        fputs("weir tune: nothing follows --; expected a command to record\n", stderr);
        return 2;
    }
    contest_init(&command.contest, argc, argv);
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    code = command.failed ? 1 : check_files(&command);
    if (code == 0)
        code = tune(&command);
    trials_free(&command.trials);
    contest_free(&command.contest);
    temporary_remove(command.folder);
    return code;
}
