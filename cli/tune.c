/* SPDX-License-Identifier: MIT */
/* tune.c: `weir tune': settings for a program, out of replays of its trace.
 *
 * A command is recorded first, by `weir record' as a process of its own.
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

#include "base/text.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/jsonfile.h"
#include "cli/common/outputs.h"
#include "cli/common/temporary.h"
#include "cli/frameworks.h"
#include "cli/tune/fit.h"
#include "cli/tune/search.h"
#include "cli/tune/show.h"

#define MOST_RECORDED "256MiB" /* of text */

enum { GOAL_KEY = 0x5800, LIMIT_KEY, DEVICE_MEMORY_KEY, GRID_KEY };

static const char *const goals[] = {
    [GOAL_BALANCED] = "balanced", [GOAL_MEMORY] = "memory", [GOAL_SPEED] = "speed"};

struct command {
    struct contest contest;
    struct tuning tuning;
    struct weir_cli_settings settings; /* the device alone */
    struct fit fit;
    const char *output;
    char **program; /* to be recorded; NULL: there are traces */
    char folder[PATH_MAX];
    int grid, failed;
};

/* ------------------------------------------------------------- arguments ---- */

static void take_size(struct argp_state *state, const char *flag, const char *text,
                      struct fit *fit) {
    struct weir_problem problem;

    if (fit->bytes)
        argp_error(state, "--limit and --device-memory go with one size");
    if (!weir__size_read(text, &fit->bytes, &problem))
        argp_error(state, "%s '%s': %s; expected a size, as 24GiB", flag, text, problem.text);
    else if (fit->bytes == 0)
        argp_error(state, "%s '%s': it is 0; expected a size, as 24GiB", flag, text);
    fit->is_device = strcmp(flag, "--limit") != 0;
}

static void take_goal(struct argp_state *state, const char *text, enum goal *goal) {
    for (size_t i = 0; i < sizeof goals / sizeof goals[0]; i++)
        if (strcmp(text, goals[i]) == 0) {
            *goal = (enum goal)i;
            return;
        }
    argp_error(state, "--goal '%s': expected memory, speed or balanced", text);
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case GOAL_KEY:
        take_goal(state, argument, &command->tuning.goal);
        return 0;
    case LIMIT_KEY:
        take_size(state, "--limit", argument, &command->fit);
        return 0;
    case DEVICE_MEMORY_KEY:
        take_size(state, "--device-memory", argument, &command->fit);
        return 0;
    case 'd':
        weir_cli_settings_set(&command->settings, WEIR_SETTING_DEVICE, argument);
        return 0;
    case 'o':
        command->output = weir_cli_file(state, "--output", argument, 0);
        return 0;
    case GRID_KEY:
        command->grid = 1;
        return 0;
    case ARGP_KEY_ARG:
        command->failed |= !contest_add_trace(&command->contest, argument);
        return 0;
    case ARGP_KEY_END:
        if (command->program && command->contest.trace_count)
            argp_error(state, "expected traces, or -- and a command to record, and not both");
        if (!command->program && !command->contest.trace_count)
            argp_error(state, "expected a trace, or -- and a command to record");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Cuts what follows "--" off. */
static char **cut_program(int *argc, char **argv, int *is_empty) {
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            *argc = i;
            *is_empty = !argv[i + 1];
            return &argv[i + 1];
        }
    return NULL;
}

/* ------------------------------------------------------------- recording ---- */

static int put(void *to, const char *name, const char *value) {
    (void)to;
    return setenv(name, value, 1);
}

/* So that each tensor is a request, as under `weir run', and not a piece of what a framework takes.  0, or an errno. */
static int tell_frameworks(void) {
    static const char *const torch[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const struct version jax = {0}; /* any */
    FILE *nobody = fopen("/dev/null", "we");
    int failed = !nobody || frameworks_tell(put, NULL, 0, 0, &jax, nobody, nobody) != 0;

    if (nobody)
        fclose(nobody);
    if (!failed && !getenv(torch[0]) && !getenv(torch[1]))
        failed = put(NULL, torch[0], "backend:cudaMallocAsync") != 0 ||
                 put(NULL, torch[1], "backend:cudaMallocAsync") != 0;
    return failed ? ENOMEM : 0;
}

/* 0, or an errno; *status is that of `weir record'. */
static int run_record(char *const *program, char *trace, int *status) {
    static char self[] = "/proc/self/exe", verb[] = "record", sync[] = "--mark-at-sync",
                limit[] = "--limit=" MOST_RECORDED, output[] = "--output", dashes[] = "--";
    char *const before[] = {self, verb, sync, limit, output, trace, dashes};
    enum { BEFORE = sizeof before / sizeof before[0] };
    size_t count = 0;
    char **command;
    pid_t started;
    int error;

    while (program[count])
        count++;
    command = calloc(BEFORE + count + 1, sizeof *command);
    if (!command)
        return ENOMEM;
    memcpy(command, before, sizeof before);
    memcpy(command + BEFORE, program, count * sizeof *command);
    error = tell_frameworks();
    if (!error)
        error = command_start(command, &started);
    while (!error && waitpid(started, status, 0) < 0 && errno == EINTR)
        ;
    command_ended();
    free(command);
    return error;
}

/* Adds the trace of it.  0, or the exit code with a message printed. */
static int record(struct command *command) {
    const char *place = getenv("TMPDIR"), *name = strrchr(command->program[0], '/');
    char trace[PATH_MAX + NAME_MAX + 16];
    int status = 0, error;

    snprintf(command->folder, sizeof command->folder, "%s/weir-tune-XXXXXX",
             place && *place ? place : "/tmp");
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

/* ---------------------------------------------------------------- tuning ---- */

static int tell_error(const struct tuning *tuning) {
    if (interrupt_came())
        fputs("weir: interrupted: nothing is recommended\n", stderr);
    else
        fprintf(stderr, "weir: a replay failed: %s\n", tuning->error);
    return 1;
}

/* The best that holds on all of the traces; 1, or 0 with a message printed. */
static int choose(struct tuning *tuning, const struct fit *fit, struct candidate *best) {
    size_t count;
    struct evaluation *finalists = search_finalists(tuning, &count);
    int holds = 0;

    if (!finalists) {
        tell_error(tuning);
        return 0;
    }
    for (size_t i = 0; i < count && holds == 0 && finalists[i].served; i++) {
        *best = finalists[i].candidate;
        holds = fit->bytes ? fit_holds(tuning, best) : 1;
    }
    if (holds == 0)
        fputs("weir: requests fail with every configuration: weir replay tells why\n", stderr);
    search_drop(finalists, count);
    free(finalists);
    return holds > 0;
}

static double score_of(const struct evaluation *grid, size_t count,
                       const struct candidate *candidate) {
    for (size_t i = 0; i < count; i++)
        if (candidate_is(&grid[i].candidate, candidate))
            return grid[i].score;
    return INFINITY;
}

/* For bench/tune-regret: with all iterations, what has been lost against a search of all combinations, and against the
 * best of them. */
static int compare_grid(struct tuning *tuning, const struct fit *fit,
                        const struct evaluation *best) {
    size_t count, least = 0;
    struct evaluation *grid = search_grid(tuning, &count);
    struct candidate chosen;
    int good = grid && search_measure(tuning, PART_ALL, grid, count) && search_run_grid(tuning) &&
               choose(tuning, fit, &chosen);

    for (size_t i = 1; good && i < count; i++)
        if (grid[i].score < grid[least].score)
            least = i;
    if (good) {
        printf("\nagainst a search of all %zu combinations: regret %.3f%%, of", count,
               100 * expm1(best->score - score_of(grid, count, &chosen)));
        candidate_print(stdout, &chosen, &tuning->space);
        printf("\nagainst the best of them: regret %.3f%%, of",
               100 * expm1(best->score - grid[least].score));
        candidate_print(stdout, &grid[least].candidate, &tuning->space);
        putchar('\n');
    }
    if (grid)
        search_drop(grid, count);
    free(grid);
    return good;
}

/* With all iterations: what was found does no better than the default, which could be used instead. */
static int loses(const struct tuning *tuning, const struct fit *fit, const struct evaluation *usual,
                 const struct evaluation *found) {
    return usual->served && usual->score <= found->score &&
           !candidate_is(&usual->candidate, &found->candidate) &&
           (!fit->bytes || fit_holds(tuning, &usual->candidate) > 0);
}

/* Beside the default. */
static int recommend(struct command *command, const struct candidate *found) {
    struct tuning *tuning = &command->tuning;
    struct evaluation all[2] = {{.candidate = {{0}}}, {.candidate = *found}};
    int good = search_measure(tuning, PART_ALL, all, 2);
    int is_lost = good && loses(tuning, &command->fit, &all[0], &all[1]);
    const struct evaluation *best = is_lost ? &all[0] : &all[1];

    if (good) {
        show_recommended(tuning, &all[0], best, is_lost ? found : NULL, &command->fit,
                         command->program);
        good = (!command->grid || compare_grid(tuning, &command->fit, best)) &&
               weir_cli_written() &&
               (!command->output ||
                show_write(tuning, &best->candidate, &command->fit, command->output));
    } else {
        tell_error(tuning);
    }
    search_drop(all, 2);
    return good ? 0 : 1;
}

static int tune(struct command *command) {
    struct tuning *tuning = &command->tuning;
    struct candidate best;
    int fits = 1;

    if (!contest_prepare(&command->contest) || !search_begin(tuning))
        return 1;
    interrupt_watch();
    if (command->fit.bytes)
        fits = fit_run(tuning, &command->fit);
    if (fits == 0)
        show_missing(tuning, &command->fit);
    if (fits <= 0)
        return 1;
    if (!search_run(tuning))
        return tell_error(tuning);
    return choose(tuning, &command->fit, &best) ? recommend(command, &best) : 1;
}

/* Nothing has run.  0, or the exit code. */
static int check(struct command *command) {
    const struct output output = {"--output", command->output};
    int code = weir_cli_settings_finish(&command->settings);

    if (code)
        return code;
    weir_cli_settings_tell_unused(&command->settings);
    for (size_t i = 0; i < command->contest.trace_count; i++)
        if (!outputs_spare(&output, 1, "trace", command->contest.traces[i].path))
            return 2;
    return jsonfile_check("--output", command->output) ? 0 : 1;
}

static int prepare(struct command *command) {
    struct contest *contest = &command->contest;

    if (weir_options_init(&contest->options) != WEIR_OK)
        return 1;
    contest->options.device = command->settings.options.device;
    if (!contest->options.device)
        contest->options.device = "model";
    contest->device_source = command->settings.sources.of[WEIR_SETTING_DEVICE];
    for (size_t i = 0; i < BASES; i++)
        if (!contest_add_configuration(contest, configuration_find(base_names[i])))
            return 1;
    return command->program ? record(command) : 0;
}

int weir_cmd_tune(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"goal", GOAL_KEY, "GOAL", 0,
         "Look for little reserved memory, for short calls, or for both (balanced, the default).  "
         "Takes memory, speed or balanced.",
         0},
        {"limit", LIMIT_KEY, "SIZE", 0,
         "Tell whether the trace is served with SIZE of reserved memory, and tune for that.", 0},
        {"device-memory", DEVICE_MEMORY_KEY, "SIZE", 0,
         "As --limit, for a device that has SIZE; its context takes some of that.", 0},
        {"device", 'd', "DEVICE", 0,
         "Replay on this device (the device model).  Takes cuda, cuda:N, model or model:N.", 0},
        {"output", 'o', "FILE", 0, "Write the settings to FILE, for weir run --settings.", 0},
        {"compare-grid", GRID_KEY, NULL, OPTION_HIDDEN, NULL, 0},
        {0}};
    static const char doc[] =
        "Finds settings for a program, by replays of its trace.\vTRACE is a file (plain, gzip or "
        "zstd), '-' for standard input, or the name of a trace that comes with weir.  With a "
        "command, weir records that first.  With several traces, the settings are for all of "
        "them.\n\nExit code: 0 all went well, 1 something failed or the memory is too little, 2 "
        "usage or a bad value.";
    struct argp argp = {
        options, parse_argument, "TRACE...\n-- COMMAND [ARGUMENT...]", doc, NULL, NULL, NULL};
    static struct command command;
    int code, is_empty = 0;

    command.program = cut_program(&argc, argv, &is_empty);
    if (is_empty) {
        fputs("weir tune: nothing follows --; expected a command to record\n", stderr);
        return 2;
    }
    contest_init(&command.contest, argc, argv);
    command.tuning.contest = &command.contest;
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    code = command.failed ? 1 : check(&command);
    if (code == 0)
        code = prepare(&command);
    if (code == 0)
        code = tune(&command);
    search_end(&command.tuning);
    contest_free(&command.contest);
    temporary_remove(command.folder);
    return code;
}
