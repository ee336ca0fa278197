/* SPDX-License-Identifier: MIT */
/* tune.c: `weir tune': checks whether a program fits into memory, and which settings suit it.
 *
 * If the user names a command, weir tune first records it.  It then replays the traces several times with GPU work.
 * A replay of all traces with certain settings is called a trial.  Trial 0 has weir's defaults, and the limit of the
 * user if there is one.  Each further trial tries one setting: how much to preallocate, whether to return idle
 * memory, or which limit to use.  The last trial combines all settings that were better than weir's defaults.
 *
 * weir tune recommends a limit only for the goal `memory', because a later run fails if it needs more.  Such a limit
 * is at least a quarter above the smallest limit with which all requests succeed.
 *
 * The results are rows as in `weir bench' (result.h), with trials as configurations.  FIGURE_MAKESPAN includes the
 * creation of the allocator.  On the device model, a trial replays each trace once, since the makespan is always
 * equal.  On a GPU, it replays each trace three times.
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

#include "base/size.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/files.h"
#include "cli/common/flags.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/common/spell.h"
#include "cli/frameworks.h"
#include "cli/replay/benchmark.h"

enum { CHOICE_PREALLOC, CHOICE_DECAY, CHOICE_LIMIT, CHOICES };
enum { TRIALS = 7 };

/* The settings of a trial (a replay of all traces with certain settings).  "" means weir's default. */
struct choice {
    char text[CHOICES][WEIR_SPELL_BYTES];
};

struct trials {
    struct benchmark *benchmark;
    struct choice choices[TRIALS]; /* the settings of each trial so far */
    int count;
    /* The figure that measures the allocator's creation.  On the device model, which simulates a GPU, only the driver's
     * virtual time counts, because the virtual time is equal in each run. */
    enum result_figure creation;
    /* Trial i is stored as configuration i.  A row has no `runs' if its trial did not run. */
    struct results results;
    struct progress progress;
};

enum goal { GOAL_BALANCED, GOAL_MEMORY, GOAL_SPEED };

struct advice {
    enum goal goal;
    uint64_t limit; /* the user's limit (--limit), or 0 */
    char limit_text[WEIR_SPELL_BYTES]; /* the limit as the user wrote it, or as exact bytes */
    /* The smallest limit with which all requests of all traces succeed, or 0 if there is no such limit. */
    uint64_t smallest_limit;
    int fits; /* set if all requests succeed with weir's defaults and the user's limit */
    /* Set if the traces have steady iterations.  Otherwise weir tune tries only the defaults. */
    int has_times;
    uint64_t untried_limit;  /* the smallest limit that saves too little to be tried, or 0 */
    int trial_without_limit; /* the number of the trial without a limit, if there is a user's limit */
    const char *against[TRIALS]; /* why a trial is not recommended, or NULL if it is good */
    int best; /* the number of the recommended trial */
};

/* ---- trials ---- */

enum { RUNS_ON_GPU = 3 };

static const enum weir_setting settings_of[CHOICES] = {WEIR_SETTING_PREALLOC, WEIR_SETTING_DECAY,
                                                       WEIR_SETTING_LIMIT};

/* For each setting of a trial that is not a default, writes `before', the name, `between', the value and `after'. */
static void write_choice(FILE *file, const struct choice *choice, const char *before,
                         const char *between, const char *after) {
    for (int i = 0; i < CHOICES; i++)
        if (choice->text[i][0])
            fprintf(file, "%s%s%s%s%s", before, weir__setting_row(settings_of[i])->name, between,
                    choice->text[i], after);
}

static int choice_is_default(const struct choice *choice) {
    return memcmp(choice, &(struct choice){0}, sizeof *choice) == 0;
}

/* Describes the replays with these settings, for the progress: "replay with --prealloc 8GiB", for example. */
static void describe_replay(const struct choice *choice, char *text, size_t text_bytes) {
    size_t used = (size_t)snprintf(text, text_bytes, "replay with");
    const size_t start = used;

    for (int i = 0; i < CHOICES && used < text_bytes; i++)
        if (choice->text[i][0])
            used += (size_t)snprintf(text + used, text_bytes - used, " --%s %s",
                                     weir__setting_row(settings_of[i])->name, choice->text[i]);
    if (used == start)
        snprintf(text, text_bytes, "replay without settings");
}

/* Prints the reason why a replay failed, unless the child process has printed it. */
static void report_failed_replay(const struct trials *trials, size_t trace, const char *message) {
    progress_clear(&trials->progress);
    if (interrupt_has_arrived())
        fputs("weir: interrupted: nothing is recommended\n", stderr);
    else if (message[0])
        fprintf(stderr, "weir: %s: a replay failed: %s\n",
                trials->benchmark->traces[trace].header.name, message);
}

/* Prepares at most `most' trials of the benchmark's traces.  Returns 1 on success, 0 if there is no host memory. */
static int trials_open(struct trials *trials, struct benchmark *benchmark, size_t most) {
    size_t rows = benchmark->trace_count * TRIALS;

    trials->benchmark = benchmark;
    trials->creation = benchmark->modelled ? FIGURE_CREATION_DRIVER : FIGURE_CREATION;
    trials->results = (struct results){.trace_count = benchmark->trace_count,
                                       .configuration_count = TRIALS,
                                       .rows = calloc(rows, sizeof(struct row))};
    for (size_t i = 0; trials->results.rows && i < rows; i++)
        trials->results.rows[trials->results.row_count++].trace = i / TRIALS;
    progress_begin(&trials->progress, 1 + most);
    return trials->results.rows != NULL;
}

/* Stores in *least the smallest limit with which all requests of all traces succeed, or 0 if there is no such limit.
 * Returns 1 on success.  On failure, prints a message and returns 0. */
static int trials_find_limit(struct trials *trials, uint64_t *least) {
    const struct benchmark *benchmark = trials->benchmark;
    char message[RUNNER_MESSAGE_BYTES] = "", limit[WEIR_SPELL_BYTES];
    uint64_t found = 1;

    *least = 0;
    progress_step(&trials->progress, "the smallest limit");
    for (size_t i = 0; i < benchmark->trace_count && found; i++) {
        found = find_smallest_limit(benchmark, i, "replay", &benchmark->options,
                                    benchmark->results.busy, message);
        if (!found && (message[0] || interrupt_has_arrived())) {
            report_failed_replay(trials, i, message);
            return 0;
        }
        *least = found ? weir__size_larger(*least, found) : 0;
    }
    weir__bytes_spell(*least, limit, sizeof limit);
    progress_done(&trials->progress, "the smallest limit", limit);
    return 1;
}

/* Replays a trace with the settings `choice', and adds the results to the row.  Returns 1 on success.  On failure,
 * writes the reason to `message' and returns 0. */
static int run_trace(const struct benchmark *benchmark, const struct choice *choice,
                     struct row *row, char *message) {
    weir_options options = benchmark->options;
    struct job job;

    for (int i = 0; i < CHOICES; i++)
        if (choice->text[i][0])
            (void)weir__option_set(&options, settings_of[i], NULL, choice->text[i], NULL, 0);
    /* Requests that fail are results, and must not be logged as errors. */
    options.log = WEIR_LOG_NONE;
    job_make(&job, "replay", benchmark->results.busy, &options, benchmark->device_source);
    job.discards_profile = 1;
    row->runs = json_array();
    for (int i = 0; i < (benchmark->modelled ? 1 : RUNS_ON_GPU); i++) {
        json_t *run =
            runner_run(&job, benchmark->traces[row->trace].trace_fd, message, RUNNER_MESSAGE_BYTES);

        if (!run)
            return 0;
        json_array_append_new(row->runs, run);
    }
    return 1;
}

/* Replays all traces with the settings `choice', unless an earlier trial had these settings.  Returns the number of the
 * trial.  On failure, prints a message and returns -1. */
static int trials_run(struct trials *trials, const struct choice *choice) {
    const struct benchmark *benchmark = trials->benchmark;
    struct results *results = &trials->results;
    char message[RUNNER_MESSAGE_BYTES] = "out of host memory", what[4 * WEIR_SPELL_BYTES];
    int trial = trials->count;

    describe_replay(choice, what, sizeof what);
    progress_step(&trials->progress, what);
    for (int i = 0; i < trial; i++)
        if (memcmp(&trials->choices[i], choice, sizeof *choice) == 0) {
            progress_done(&trials->progress, what, "done before");
            return i;
        }
    trials->choices[trials->count++] = *choice;
    for (size_t i = 0; i < benchmark->trace_count; i++)
        if (!run_trace(benchmark, choice, &results->rows[i * TRIALS + (size_t)trial], message) ||
            !result_align(results)) {
            report_failed_replay(trials, i, message);
            return -1;
        }
    for (struct row *row = results->rows; row < results->rows + results->row_count; row++) {
        result_row(row);
        row->median.value[FIGURE_MAKESPAN] += row->median.value[trials->creation];
    }
    progress_done(&trials->progress, what, "done");
    return trial;
}

/* Returns the ratio of a trial's figure on a trace to the figure with weir's defaults (trial 0).  Returns INFINITY if a
 * figure is unknown or a request failed. */
static double trials_ratio(const struct trials *trials, size_t trace, int trial,
                           enum result_figure figure) {
    const struct row *row = &trials->results.rows[trace * TRIALS + (size_t)trial];
    const struct row *usual = &trials->results.rows[trace * TRIALS];

    return result_is_comparable(row) && row->median.has[figure]
               ? fmax((double)row->median.value[figure], 1) /
                     fmax((double)usual->median.value[figure], 1)
               : INFINITY;
}

static void trials_free(struct trials *trials) {
    for (size_t i = 0; i < trials->results.row_count; i++)
        json_decref(trials->results.rows[i].runs);
    free(trials->results.rows);
}

/* ---- advice ---- */

/* The largest accepted ratios of a trial's time to the time with weir's defaults.  For the goal `memory', each setting
 * may reach memory_slack_ratio, and all settings together memory_most_ratio. */
static const double slack_ratio = 1.001, memory_slack_ratio = 1.01, memory_most_ratio = 1.02;
/* The figure that each setting should lower, at least to `ratio' times the figure with weir's defaults. */
static const struct {
    enum result_figure figure;
    double ratio;
} gains[CHOICES] = {[CHOICE_PREALLOC] = {FIGURE_MAKESPAN, 0.99},
                    [CHOICE_DECAY] = {FIGURE_KEPT, 0.9},
                    [CHOICE_LIMIT] = {FIGURE_RESERVED, 0.95}};
/* The limits to try, in percent of the smallest limit. */
enum { LIMITS = 3 };
static const uint64_t limit_percents[LIMITS] = {125, 150, 200};

enum { HALF_LIFE_ITERATIONS = 5 };
static const uint64_t prealloc_unit = UINT64_C(2) << 20;

/* Returns the largest ratio of a trial's figure to that of weir's defaults (fmax), or the smallest (fmin). */
static double extreme_ratio(double (*pick)(double, double), const struct trials *trials, int trial,
                            enum result_figure figure) {
    double picked = trials_ratio(trials, 0, trial, figure);

    for (size_t i = 1; i < trials->benchmark->trace_count; i++)
        picked = pick(picked, trials_ratio(trials, i, trial, figure));
    return picked;
}

/* Returns the reason why a trial is worse than weir's defaults, or NULL if it is not worse. */
static const char *reason_against(const struct trials *trials, int trial, enum goal goal,
                                  double slack) {
    if (isinf(extreme_ratio(fmax, trials, trial, FIGURE_STEADY_MAKESPAN)))
        return "requests fail";
    if (extreme_ratio(fmax, trials, trial, FIGURE_STEADY_MAKESPAN) > slack)
        return "slower";
    if (extreme_ratio(fmax, trials, trial, FIGURE_MAKESPAN) > slack)
        return "the whole run is slower";
    return goal != GOAL_SPEED && extreme_ratio(fmax, trials, trial, FIGURE_RESERVED) > 1
               ? "reserves more"
               : NULL;
}

/* Replays all traces with one setting at a new value.  If the result is good, copies the value to `best' and returns 1;
 * if not, returns 0.  On failure, prints a message and returns -1. */
static int try_value(struct trials *trials, struct advice *advice, int setting, uint64_t value,
                     struct choice *best) {
    double slack = advice->goal == GOAL_MEMORY ? memory_slack_ratio : slack_ratio;
    struct choice choice = trials->choices[0];
    int trial;

    if (setting == CHOICE_DECAY)
        snprintf(choice.text[setting], sizeof choice.text[setting], "%zums", (size_t)value);
    else
        weir__bytes_spell(value, choice.text[setting], sizeof choice.text[setting]);
    trial = trials_run(trials, &choice);
    if (trial < 0)
        return -1;
    advice->against[trial] = reason_against(trials, trial, advice->goal, slack);
    if (!advice->against[trial] &&
        extreme_ratio(fmin, trials, trial, gains[setting].figure) > gains[setting].ratio)
        advice->against[trial] = "gains nothing";
    if (!advice->against[trial])
        memcpy(best->text[setting], choice.text[setting], sizeof choice.text[setting]);
    return !advice->against[trial];
}

/* Returns the largest value of a figure over all traces, with weir's defaults. */
static uint64_t largest_default_figure(const struct trials *trials, enum result_figure figure) {
    uint64_t most = 0;

    for (size_t i = 0; i < trials->benchmark->trace_count; i++)
        most = weir__size_larger(most, result_at(&trials->results, i, 0, 0)->median.value[figure]);
    return most;
}

/* Tries limits, the smallest first, until one gives good results.  Returns 1 if one does, 0 if none does.  On failure,
 * prints a message and returns -1. */
static int try_limits(struct trials *trials, struct advice *advice, struct choice *best) {
    double most =
        gains[CHOICE_LIMIT].ratio * (double)largest_default_figure(trials, FIGURE_RESERVED);
    size_t left = LIMITS;
    int good = 0;

    for (size_t i = 0; good == 0 && i < LIMITS; i++) {
        uint64_t limit =
            (advice->smallest_limit / limit_step * limit_percents[i] + 99) / 100 * limit_step;

        if ((double)limit > most) {
            advice->untried_limit = limit;
            break;
        }
        good = try_value(trials, advice, CHOICE_LIMIT, limit, best);
        left--;
    }
    trials->progress.total -= left;
    return good;
}

/* Tries each setting that the goal allows.  Returns 1 on success.  On failure, prints a message and returns 0. */
static int run_trials(struct trials *trials, struct advice *advice, struct choice *best) {
    uint64_t half_life_ns =
        HALF_LIFE_ITERATIONS * largest_default_figure(trials, FIGURE_STEADY_MAKESPAN);
    uint64_t peak = largest_default_figure(trials, FIGURE_REQUESTED) + prealloc_unit - 1;

    if (advice->limit)
        peak = weir__size_smaller(peak, advice->limit);
    peak -= peak % prealloc_unit;
    return try_value(trials, advice, CHOICE_PREALLOC, peak, best) >= 0 &&
           (advice->goal == GOAL_SPEED ||
            try_value(trials, advice, CHOICE_DECAY, half_life_ns / 1000000 + 1, best) >= 0) &&
           (advice->goal != GOAL_MEMORY || advice->limit || try_limits(trials, advice, best) >= 0);
}

/* Tries all settings, and fills `advice', in which the caller has set the goal and the limit.  Returns 1 on success.
 * On failure, prints a message and returns 0. */
static int make_advice(struct trials *trials, struct advice *advice) {
    double slack = advice->goal == GOAL_MEMORY ? memory_most_ratio : slack_ratio;
    struct choice best = {0};
    const json_t *run;
    uint64_t device;
    int trial;

    if (!trials_find_limit(trials, &advice->smallest_limit))
        return 0;
    if (!advice->smallest_limit ||
        (advice->limit && advice->limit + limit_step <= advice->smallest_limit))
        return 1;
    memcpy(best.text[CHOICE_LIMIT], advice->limit_text, sizeof advice->limit_text);
    if (trials_run(trials, &best) < 0)
        return 0;
    run = json_array_get(trials->results.rows[0].runs, 0);
    device = (uint64_t)json_integer_value(json_object_get(run, "device_bytes"));
    if (advice->limit > device) {
        progress_clear(&trials->progress);
        fprintf(stderr, "weir: --limit %s: the device has %s\n", advice->limit_text,
                WEIR_SHOWN(device));
        return 0;
    }
    advice->fits = isfinite(extreme_ratio(fmax, trials, 0, FIGURE_REQUESTED));
    advice->has_times = isfinite(extreme_ratio(fmax, trials, 0, FIGURE_STEADY_MAKESPAN));
    if (!advice->has_times)
        return 1;
    if (advice->limit) {
        advice->trial_without_limit = trials_run(trials, &(struct choice){0});
        if (advice->trial_without_limit < 0)
            return 0;
        advice->against[advice->trial_without_limit] = "no limit";
    }
    trial = run_trials(trials, advice, &best) ? trials_run(trials, &best) : -1;
    if (trial < 0)
        return 0;
    advice->against[trial] = reason_against(trials, trial, advice->goal, slack);
    advice->best = advice->against[trial] ? 0 : trial;
    return 1;
}

/* ---- the command ---- */

static const char *const goals[] = {
    [GOAL_BALANCED] = "balanced", [GOAL_MEMORY] = "memory", [GOAL_SPEED] = "speed"};

struct command {
    struct benchmark benchmark;
    struct trials trials;
    struct advice advice;
    struct weir_cli_settings settings; /* from flags; weir tune uses only the device */
    const char *output;
    char **program; /* the command to record, or NULL if the user named traces */
    char folder[PATH_MAX];
};

static void read_goal_flag(struct argp_state *state, const char *flag, const char *text,
                           void *field) {
    for (size_t i = 0; i < sizeof goals / sizeof goals[0]; i++)
        if (strcmp(text, goals[i]) == 0) {
            *(enum goal *)field = (enum goal)i;
            return;
        }
    argp_error(state, "%s '%s': expected memory, speed or balanced", flag, text);
}

static void read_limit_flag(struct argp_state *state, const char *flag, const char *text,
                            void *field) {
    struct advice *advice = field;

    weir_cli_read_size(state, flag, text, &advice->limit);
    if (strlen(text) < sizeof advice->limit_text && !strpbrk(text, " \t"))
        strcpy(advice->limit_text, text);
    else
        weir__bytes_spell(advice->limit, advice->limit_text, sizeof advice->limit_text);
}

#define FIELD(name) offsetof(struct command, name)

static const struct weir_cli_flag flags[] = {
    {"goal", 0, "GOAL", read_goal_flag, FIELD(advice.goal),
     "Tune for this goal.  Takes memory, speed or balanced.  memory: reserve less, though "
     "iterations may take 2% longer.  speed: take less time, though more may be reserved.  "
     "balanced, the default: neither more time nor more memory."},
    {"limit", 0, "SIZE", read_limit_flag, FIELD(advice),
     "Check whether SIZE of reserved memory is enough for the trace, and tune for this limit."},
    {"device", 'd', "DEVICE", weir_cli_read_device, FIELD(settings),
     "Replay on this device (the device model).  Takes cuda, cuda:N, model or model:N."},
    {"output", 'o', "FILE", weir_cli_read_file, FIELD(output),
     "Write the settings to FILE, for weir run --settings."},
    {0}};

static error_t parse_tune_argument(int key, char *argument, struct argp_state *state) {
    struct command *command = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        benchmark_add_trace(&command->benchmark, argument);
        return 0;
    case ARGP_KEY_END:
        if (!command->program == !command->benchmark.trace_count)
            argp_error(state, "expected a trace, or -- and a command to record%s",
                       command->program ? ", and not both" : "");
        return 0;
    default:
        return weir_cli_read_flag(flags, key, argument, state);
    }
}

/* Removes "--" and the arguments after it.  Returns the arguments after "--", or NULL if there is no "--". */
static char **split_program_arguments(int *argc, char **argv) {
    for (int i = 1; i < *argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            *argc = i;
            return &argv[i + 1];
        }
    return NULL;
}

/* Sets environment variables that make frameworks request the memory of each tensor from CUDA, as `weir run' does.
 * Returns 0 on success, an errno on failure. */
static int set_framework_variables(void) {
    static const char *const torch[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    /* The version is zeroed, because only messages depend on the version, and all messages go to /dev/null. */
    const struct version jax = {0};
    FILE *null_file = fopen("/dev/null", "we");
    int is_set = getenv(torch[0]) || getenv(torch[1]);
    int failed = !null_file ||
                 frameworks_set_variables(command_put, NULL, 0, 0, &jax, null_file, null_file) != 0;

    if (null_file)
        fclose(null_file);
    for (int i = 0; i < 2 && !is_set; i++)
        failed |= setenv(torch[i], "backend:cudaMallocAsync", 1) != 0;
    return failed ? ENOMEM : 0;
}

/* Runs `weir record' for the program, and stores its exit status in *status.  Returns 0 on success, an errno on
 * failure. */
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
    error = command ? set_framework_variables() : ENOMEM;
    if (!error) {
        memcpy(command, before, sizeof before);
        memcpy(command + BEFORE, program, count * sizeof *command);
        error = command_start(command, &started);
    }
    while (!error && waitpid(started, status, 0) < 0 && errno == EINTR)
        ;
    command_stop_forwarding();
    free(command);
    return error;
}

/* Records the program, and adds its trace to the benchmark.  Returns 0 on success.  On failure, prints a message and
 * returns the exit code. */
static int record_program(struct command *command) {
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
        benchmark_add_trace(&command->benchmark, trace);
    return command->benchmark.trace_count == 0;
}

/* Prints the figures of one trial on a trace, and whether the trial is recommended. */
static void print_trial(const struct command *command, size_t trace, int trial) {
    const struct trials *trials = &command->trials;
    const struct row *row = result_at(&trials->results, trace, (size_t)trial, 0);
    const enum result_figure times[] = {trials->creation, FIGURE_MAKESPAN, FIGURE_STEADY_MAKESPAN};
    double more = 100 * (trials_ratio(trials, trace, trial, FIGURE_STEADY_MAKESPAN) - 1);

    printf(" %10s %10s", WEIR_SHOWN(row->median.value[FIGURE_RESERVED]),
           WEIR_SHOWN(row->median.value[FIGURE_KEPT]));
    for (int i = 0; i < 3; i++)
        printf(" %9s", row->median.has[times[i]]
                           ? spell_ms((double)row->median.value[times[i]]).text
                           : "-");
    if (trial && isfinite(more))
        printf(" %+7.2f%%", fabs(more) < 0.005 ? 0 : more); /* never "-0.00%" */
    else
        printf("%9s", "");
    write_choice(stdout, &trials->choices[trial], " --", " ", "");
    printf(" (%s)\n", !trial                           ? "weir's defaults"
                      : command->advice.against[trial] ? command->advice.against[trial]
                                                       : "good");
}

/* Prints a table of trials for each trace. */
static void print_trials(const struct command *command) {
    table_head(stdout, &command->benchmark);
    if (command->benchmark.modelled)
        puts("device model: no GPU was used; times are virtual");
    for (size_t i = 0; i < command->benchmark.trace_count; i++) {
        table_trace(stdout, &command->benchmark.traces[i].header);
        if (command->advice.fits)
            printf(" %10s %10s %9s %9s %9s %8s  ms with GPU work\n", "reserved", "kept", "creation",
                   "all", "each", "more");
        for (int trial = 0; command->advice.fits && trial < command->trials.count; trial++)
            print_trial(command, i, trial);
    }
    putchar('\n');
}

/* Prints whether the traces fit into memory, and the command line with the recommended settings. */
static void print_recommendation(const struct command *command) {
    const struct advice *advice = &command->advice;
    const struct choice *choice = &command->trials.choices[advice->best];
    char smallest_limit[WEIR_SPELL_BYTES];

    /* A rounded number may be below the limit, and fail as the value of --limit. */
    weir__bytes_spell(advice->smallest_limit, smallest_limit, sizeof smallest_limit);
    printf("It %s%s%s: ", advice->fits ? "fits" : "does not fit", advice->limit ? " into " : "",
           advice->limit_text);
    if (advice->smallest_limit) {
        printf("the smallest limit found, in steps of %s, is %s", WEIR_SHOWN(limit_step),
               smallest_limit);
        if (strcmp(smallest_limit, WEIR_SHOWN(advice->smallest_limit)) != 0)
            printf(" (%s)", WEIR_SHOWN(advice->smallest_limit));
        puts(".");
    } else {
        puts("the memory of this device is not enough for all requests.");
    }
    if (!advice->fits)
        return;
    for (size_t i = 0; advice->trial_without_limit && i < command->benchmark.trace_count; i++) {
        double ratio =
            trials_ratio(&command->trials, i, advice->trial_without_limit, FIGURE_STEADY_MAKESPAN);

        if (ratio * slack_ratio < 1)
            printf("%s: with this limit an iteration takes %.3f times as long as without.\n",
                   command->benchmark.traces[i].header.name, 1 / ratio);
    }
    if (advice->untried_limit)
        printf(
            "--limit %s was not tried: weir's defaults reserve %s; a limit has to save %.0f%%.\n",
            WEIR_SHOWN(advice->untried_limit),
            WEIR_SHOWN(largest_default_figure(&command->trials, FIGURE_RESERVED)),
            100 * (1 - gains[CHOICE_LIMIT].ratio));
    printf("Use%s:\n  weir run", choice_is_default(choice) ? " weir's defaults" : "");
    write_choice(stdout, choice, " --", " ", "");
    fputs(" --", stdout);
    for (size_t i = 0; command->program && command->program[i]; i++)
        printf(" %s", command->program[i]);
    puts(command->program ? "" : " PROGRAM");
    puts("Only these settings were tried: weir bench compares other engines.");
}

/* Writes the recommended settings to a file for `weir run --settings'.  Returns 1, as output_replace() needs. */
static int write_tuned_settings(FILE *file, const void *context) {
    const struct command *command = context;
    const struct choice *choice = &command->trials.choices[command->advice.best];

    fprintf(file, "# weir tune, on %s\n", command->benchmark.device);
    for (size_t i = 0; i < command->benchmark.trace_count; i++)
        fprintf(file, "# %s\n", command->benchmark.traces[i].header.name);
    if (choice_is_default(choice))
        fputs("# weir's defaults\n", file);
    write_choice(file, choice, "", "=", "\n");
    return 1;
}

/* Checks the settings and the files before anything runs.  Returns 0 on success.  On failure, prints a message and
 * returns the exit code. */
static int check_files(struct command *command) {
    const struct output output = {"--output", command->output};
    int code = weir_cli_settings_finish(&command->settings);

    if (code)
        return code;
    weir_cli_settings_report_unused(&command->settings);
    for (size_t i = 0; i < command->benchmark.trace_count; i++)
        if (!outputs_differ_from_input(&output, 1, "trace", command->benchmark.traces[i].path))
            return 2;
    return !output_check("--output", command->output);
}

/* Runs `weir tune' after the arguments were parsed.  Returns the exit code. */
static int tune(struct command *command) {
    struct benchmark *benchmark = &command->benchmark;
    struct trials *trials = &command->trials;
    struct advice *advice = &command->advice;
    /* Each goal tries the defaults, a preallocation, and at last all good settings together. */
    size_t most = 3u + (advice->limit > 0) + (advice->goal != GOAL_SPEED);

    if (weir_options_init(&benchmark->options) != WEIR_OK)
        return 1;
    benchmark->options.device =
        command->settings.options.device ? command->settings.options.device : "model";
    benchmark->device_source = command->settings.sources.of[WEIR_SETTING_DEVICE];
    benchmark->results.busy = 1;
    benchmark_add_configuration(benchmark, configuration_find("replay"));
    if ((command->program && record_program(command) != 0) || !benchmark_prepare(benchmark))
        return 1;
    interrupt_watch();
    if (advice->goal == GOAL_MEMORY && !advice->limit)
        most += LIMITS;
    if (!trials_open(trials, benchmark, most) || !make_advice(trials, advice))
        return 1;
    progress_clear(&trials->progress);
    print_trials(command);
    print_recommendation(command);
    return !weir_cli_flush_output() || !advice->fits ||
           (command->output && !output_replace(command->output, write_tuned_settings, command));
}

int weir_cmd_tune(int argc, char **argv) {
    static const char doc[] =
        "Finds the limit that a program needs, how much to preallocate, and whether to keep or "
        "return idle memory, by replays of its trace with GPU work.\vTRACE is a file (plain, gzip "
        "or zstd), '-' for standard input, or the name of a trace that comes with weir.  If there "
        "is a command, weir records it first.  With several traces, the settings are for all of "
        "them.\n\nExit code: 0 all went well, 1 something failed or the memory is too little, 2 "
        "usage or a bad value.";
    struct argp argp = {.options = weir_cli_options(flags),
                        .parser = parse_tune_argument,
                        .args_doc = "TRACE...\n-- COMMAND [ARGUMENT...]",
                        .doc = doc};
    static struct command command;
    int code;

    command.program = split_program_arguments(&argc, argv);
    if (command.program && !command.program[0]) {
        fputs("weir tune: nothing follows --; expected a command to record\n", stderr);
        return 2;
    }
    benchmark_init(&command.benchmark, argc, argv);
    weir_cli_settings_init(&command.settings);
    if (weir_cli_parse(&argp, argc, argv, 0, &command) != 0)
        return 2;
    code = check_files(&command);
    if (code == 0)
        code = tune(&command);
    trials_free(&command.trials);
    benchmark_free(&command.benchmark);
    temporary_remove(command.folder);
    return code;
}
