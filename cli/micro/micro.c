/* SPDX-License-Identifier: MIT */
/* micro.c: `weir bench --micro`: what a call costs on the host, side by side.
 *
 * All in one process: subjects are to be compared within minutes, and nothing that is measured rests
 * on what a process does first.
 *
 * Must not know: how time is taken, what scenarios do.
 */
#include "cli/common/group.h"
#include "cli/micro/micro.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/common/help.h"
#include "cli/common/interrupt.h"
#include "cli/common/jsonfile.h"
#include "cli/common/progress.h"

enum { MICRO_KEY = 0x5600, SUBJECT_KEY, SCENARIO_KEY, THREADS_KEY, QUICK_KEY };

int micro_is_asked(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--micro") == 0)
            return 1;
    return 0;
}

static const struct argp_option options[] = {
    {"micro", MICRO_KEY, NULL, 0, "Measure single calls; without this flag, traces are replayed.",
     0},
    {"subject", SUBJECT_KEY, "NAME", 0, "Measure only this one; may be repeated.", 0},
    {"scenario", SCENARIO_KEY, "NAME", 0, "Measure only this one; may be repeated.", 0},
    {"threads", THREADS_KEY, "N", 0,
     "Use at most N threads.  Default: the processors that this process may use, 16 at most.", 0},
    {"repeat", 'r', "N", 0, "Run N rounds; figures are their medians.  Default: 9.", 0},
    {"quick", QUICK_KEY, NULL, 0, "Run small cases and short batches, only to see that they work.",
     0},
    {"json", 'j', "FILE", 0,
     "Write all results to FILE as a JSON array.  '-' is standard output; the table then goes to "
     "standard error.",
     0},
    {NULL, 'd', "DEVICE", 0, "As --device.", 0},
    {"configuration", 'c', "NAME", OPTION_HIDDEN, NULL, 0},
    {"contestant", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0},
    {0}};

int micro_alone_has(const char *option, size_t length) {
    for (const struct argp_option *o = options; o->name || o->key; o++)
        if (o->name && o->key > MICRO_KEY && strlen(o->name) == length &&
            strncmp(o->name, option, length) == 0)
            return 1;
    return 0;
}

int micro_has(const char *option, size_t length) {
    for (const struct argp_option *o = options; o->name || o->key; o++)
        if (o->name && strlen(o->name) == length && strncmp(o->name, option, length) == 0)
            return 1;
    return 0;
}

/* ------------------------------------------------------------------- command ---- */

static void pick_subject(struct micro *micro, struct argp_state *state, const char *name) {
    const struct micro_subject *subject = micro_subject_find(name);
    char all[MICRO_TEXT_BYTES] = "";

    for (const struct micro_subject *s = micro_subjects; s->name; s++)
        help_join(all, sizeof all, s->name);
    if (!subject)
        argp_error(state, "--subject '%s' is not known; there are: %s", name, all);
    for (size_t i = 0; i < micro->subject_count; i++)
        if (micro->subjects[i] == subject)
            return;
    if (micro->subject_count < MICRO_SUBJECTS)
        micro->subjects[micro->subject_count++] = subject;
}

static void pick_scenario(struct micro *micro, struct argp_state *state, const char *name) {
    char all[MICRO_TEXT_BYTES] = "";

    for (size_t i = 0; micro_scenarios[i]; i++) {
        help_join(all, sizeof all, micro_scenarios[i]);
        if (strcmp(name, micro_scenarios[i]) == 0) {
            micro->picked_scenarios |= 1u << i;
            return;
        }
    }
    argp_error(state, "--scenario '%s' is not known; there are: %s", name, all);
}

static void take_count(struct argp_state *state, const char *flag, const char *text, uint64_t most,
                       uint64_t *out) {
    struct weir_problem problem;

    if (!weir__count_read(text, most, out, &problem) || *out == 0)
        argp_error(state, "%s '%s': expected a whole number from 1 to %llu", flag, text,
                   (unsigned long long)most);
}

static error_t parse_argument(int key, char *argument, struct argp_state *state) {
    struct micro *micro = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &micro->settings;
        return 0;
    case MICRO_KEY:
        return 0;
    case SUBJECT_KEY:
        pick_subject(micro, state, argument);
        return 0;
    case SCENARIO_KEY:
        pick_scenario(micro, state, argument);
        return 0;
    case THREADS_KEY:
        take_count(state, "--threads", argument, MICRO_THREADS, &micro->threads);
        return 0;
    case QUICK_KEY:
        micro->is_quick = 1;
        return 0;
    case 'r':
        take_count(state, "--repeat", argument, 1000, &micro->rounds);
        return 0;
    case 'j':
        micro->json_file = weir_cli_file(state, "--json", argument, 1);
        return 0;
    case 'd':
        weir_cli_settings_set(&micro->settings, WEIR_SETTING_DEVICE, argument);
        return 0;
    case 'c':
        argp_error(state, "--configuration replays traces; --micro has --subject");
        return EINVAL;
    case ARGP_KEY_ARG:
        argp_error(state, "--micro replays no trace: '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (micro->settings.sources.of[WEIR_SETTING_ENGINE])
            argp_error(state, "--engine: subjects have engines of their own; pick one by "
                              "--subject");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void list_choices(FILE *file) {
    fputs("Subjects:\n", file);
    for (const struct micro_subject *s = micro_subjects; s->name; s++)
        fprintf(file, "  %-15s%s\n", s->name, s->what);
    fputs("\nScenarios:\n ", file);
    for (size_t i = 0; micro_scenarios[i]; i++)
        fprintf(file, " %s", micro_scenarios[i]);
    fputc('\n', file);
}

static char *help_filter(int key, const char *text, void *input) {
    (void)input;
    return help_with_list(key, text, list_choices);
}

/* ------------------------------------------------------------------ choosing ---- */

/* The loop alone, then those that were picked, in the order of the table; without any pick, all that
 * are there.  1, or 0 with a message printed: one that was picked is not installed. */
static int choose_subjects(struct micro *micro) {
    const struct micro_subject *picked[MICRO_SUBJECTS];
    size_t count = micro->subject_count;
    char why[MICRO_TEXT_BYTES];

    memcpy(picked, micro->subjects, sizeof picked);
    micro->subject_count = 0;
    for (const struct micro_subject *s = micro_subjects; s->name; s++) {
        int is_picked = count == 0 || s->place == MICRO_ON_NOTHING;

        for (size_t i = 0; i < count; i++)
            is_picked |= picked[i] == s;
        if (!is_picked)
            continue;
        if (micro_subject_is_there(s, why, sizeof why)) {
            micro->subjects[micro->subject_count++] = s;
        } else if (count == 0) {
            help_join(micro->absent, sizeof micro->absent, s->name);
        } else {
            fprintf(stderr, "weir: --subject %s: %s\n", s->name, why);
            return 0;
        }
    }
    return 1;
}

static void choose_cases(struct micro *micro) {
    for (size_t i = 0; micro_scenarios[i]; i++)
        if (micro->picked_scenarios == 0 || (micro->picked_scenarios & (1u << i)))
            micro->case_count +=
                micro_cases(micro, micro_scenarios[i], &micro->cases[micro->case_count],
                            MICRO_CASES - micro->case_count);
}

static int open_device(struct micro *micro) {
    const struct weir_driver *driver;
    CUresult result;

    if (weir_cli_device_open(&micro->settings, &micro->device, 0) != 0)
        return 0; /* it has said why */
    driver = micro->driver = group_driver(micro->device.driver, micro->device.ordinal);
    if (!driver)
        return 0; /* it has said why */
    micro->counted = weir__driver_counted(driver);
    if (!micro->counted) {
        fputs("weir: driver calls cannot be counted\n", stderr);
        return 0;
    }
    result = driver->cuDeviceGet(&micro->handle, micro->device.ordinal);
    if (result == CUDA_SUCCESS)
        result = driver->cuDevicePrimaryCtxRetain(&micro->context, micro->handle);
    if (result == CUDA_SUCCESS) {
        result = driver->cuCtxPushCurrent(micro->context);
        if (result == CUDA_SUCCESS)
            return 1;
        driver->cuDevicePrimaryCtxRelease(micro->handle);
    }
    fprintf(stderr, "weir: %s cannot be used: %s\n", micro->device.name,
            weir__driver_error_name(driver, result));
    return 0;
}

static void close_device(struct micro *micro) {
    CUcontext popped;

    micro->driver->cuCtxPopCurrent(&popped);
    micro->driver->cuDevicePrimaryCtxRelease(micro->handle);
}

/* ------------------------------------------------------------------- running ---- */

static void measure_all(struct micro *micro) {
    struct progress progress;
    char what[MICRO_TEXT_BYTES + 64];

    progress_begin(&progress, micro->case_count);
    for (size_t i = 0; i < micro->case_count; i++) {
        const struct micro_case *of = &micro->cases[i];
        int had_failed = micro->has_failed;

        if (interrupt_came()) {
            fprintf(stderr, "weir: interrupted: %zu of %zu measurements were made\n", i,
                    micro->case_count);
            break;
        }
        snprintf(what, sizeof what, "%s, %s", of->scenario, of->column);
        progress_step(&progress, what);
        micro->has_failed = 0;
        micro_measure(micro, of);
        progress_done(&progress, what, micro->has_failed ? "failed" : "done");
        micro->has_failed |= had_failed;
    }
    progress_clear(&progress);
    micro_compare(micro);
}

/* What a question to the driver costs: rows of their own. */
static void append_questions(const struct micro *micro, json_t *array, json_t *common) {
    const char *name;
    json_t *value;

    json_object_foreach(micro->call_ns, name, value) {
        json_t *object = json_pack("{s:s,s:s,s:s,s:b,s:s,s:O}", "scenario", "calibration",
                                   "subject", "driver", "device", micro->device.name, "modelled",
                                   micro->driver->charge != NULL, "entry", name, "call_ns", value);

        json_object_update(object, common);
        json_array_append_new(array, object);
    }
}

static int write_json(const struct micro *micro, int argc, char **argv) {
    json_t *array = json_array(), *common = jsonfile_common(argc, argv);
    int good;

    if (micro->driver->charge)
        json_object_set_new(common, "model_profile", json_string(weir_cli_model_profile()));
    json_object_set_new(common, "driver_version", json_integer(micro->driver->version));
    json_object_set_new(
        common, "timer_ns",
        json_integer((json_int_t)stopwatch_ns(&micro->clock.watch, micro->clock.watch.cost)));
    append_questions(micro, array, common);
    for (size_t i = 0; i < micro->row_count; i++) {
        json_object_update(micro->rows[i].object, common);
        json_array_append(array, micro->rows[i].object);
    }
    good = jsonfile_write(micro->json_file, array);
    json_decref(common);
    json_decref(array);
    return good;
}

static int tell(const struct micro *micro, int argc, char **argv) {
    int to_stdout = micro->json_file && strcmp(micro->json_file, "-") == 0;
    int good = 1;

    micro_table_print(to_stdout ? stderr : stdout, micro);
    if (micro->json_file)
        good = write_json(micro, argc, argv);
    return weir_cli_written() && good;
}

static int run(struct micro *micro, int argc, char **argv) {
    int good;

    micro->batch_ns = micro->is_quick ? 500000 : 10000000;
    if (micro->rounds == 0)
        micro->rounds = micro->is_quick ? 2 : 9;
    if (!jsonfile_check("--json", micro->json_file) || !choose_subjects(micro) ||
        !open_device(micro))
        return 0;
    good = micro_begin(micro);
    if (micro->threads == 0)
        micro->threads = micro->cpu_count > 16 ? 16 : micro->cpu_count ? micro->cpu_count : 1;
    choose_cases(micro);
    micro->rows = calloc(micro->case_count * micro->subject_count, sizeof *micro->rows);
    if (good && !micro->rows) {
        fputs("weir: out of memory\n", stderr);
        good = 0;
    }
    if (good) {
        micro_price_questions(micro);
        interrupt_watch();
        measure_all(micro);
        good = tell(micro, argc, argv) && !micro->has_failed && !interrupt_came();
    }
    close_device(micro);
    return good;
}

static void free_results(struct micro *micro) {
    for (size_t i = 0; i < micro->row_count; i++)
        json_decref(micro->rows[i].object);
    json_decref(micro->call_ns);
    free(micro->rows);
    free(micro->cpus);
}

int weir_cmd_micro(int argc, char **argv) {
    static const char doc[] =
        "Measures the cost of single calls on the host: of the driver's pool, of weir, and of host "
        "allocators, in turn on the same loops.\vExit code: 0 all went well, 1 something failed, 2 "
        "usage or a bad value.";
    struct argp_child children[] = {
        {weir_settings_argp(), 0, "Settings of weir's subjects (all: --help --all):", 1}, {0}};
    struct argp argp = {options, parse_argument, NULL, doc, children, help_filter, NULL};
    static char called[] = "weir bench --micro"; /* whose --help is to be asked */
    static struct micro micro;
    char *bench = argv[0];
    int code;

    weir_cli_settings_init(&micro.settings);
    argv[0] = called;
    if (weir_cli_parse(&argp, argc, argv, 0, &micro) != 0)
        return 2;
    argv[0] = bench;
    code = weir_cli_settings_finish(&micro.settings);
    if (code == 0 && micro.settings.sources.of[WEIR_SETTING_ENGINE])
        fprintf(stderr, "weir: %s is not used: subjects have engines of their own\n",
                micro.settings.sources.of[WEIR_SETTING_ENGINE]);
    if (code == 0)
        code = run(&micro, argc, argv) ? 0 : 1;
    free_results(&micro);
    return code;
}
