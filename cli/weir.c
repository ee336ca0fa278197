/* SPDX-License-Identifier: MIT */
/* weir.c: the main function of the program, which finds and runs the subcommand. */
#include "config.h"

#include <argp.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weir/weir.h>

#include "cli/command.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/progress.h"
#include "cli/common/runner.h"
#include "cli/common/shipped.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"bench", weir_cmd_bench, "compare configurations on the same traces"},
    {"info", weir_cmd_info, "show the driver, the devices, and the settings with their sources"},
    {"record", weir_cmd_record, "record a program's requests for CUDA memory as a trace"},
    {"replay", weir_cmd_replay, "replay traces on one allocator with your settings"},
    {"report", weir_cmd_report, "make a page with pictures from results of bench, replay or run"},
    {"run", weir_cmd_run, "run a program with CUDA memory from weir"},
    {"top", weir_cmd_top, "watch the programs that run under `weir run'"},
    {"torch", weir_cmd_torch, "report whether weir can be PyTorch's allocator"},
    {"tune", weir_cmd_tune, "find settings for a program, by replays of its trace"},
    {RUNNER_SUBCOMMAND, weir_cmd_replay_child, "internal"},
};

/* The number of commands for users, without the internal command in the last row. */
enum { COMMANDS = sizeof commands / sizeof commands[0] - 1 };

#define SETTINGS "weir-settings(7)"
#define RUN "weir-run(1)"
#define RECORD "weir-record(1)"
#define TO_RECORD "Set by `weir record' for its library; of no use elsewhere."

/* The environment variables of weir that are not settings.  tests/tree/check-variables compares the list with
 * lib/config/environment.c. */
static const struct variable {
    const char *name, *value, *help, *page;
} variables[] = {
    {"WEIR_COMPAT", "SWITCH", "0: weir ignores variables of TensorFlow, XLA and JAX. Default: 1.",
     SETTINGS},
    {"WEIR_GROUP", "NAME",
     "The process group: all processes of the user with this name share WEIR_GROUP_LIMIT on each "
     "device.",
     SETTINGS},
    {"WEIR_GROUP_LIMIT", "AMOUNT",
     "The limit of the process group: bytes, or a percentage of the device. Default: the limit of "
     "the group's members.",
     SETTINGS},
    {"WEIR_GROUP_SHARE", "N", "The weight of this process's share of the limit. Default: 1.",
     SETTINGS},
    {"WEIR_GROUP_DIR", "FOLDER",
     "The folder in which processes find each other, in place of /dev/shm and /tmp: for containers "
     "that have it mounted.",
     SETTINGS},
    {"WEIR_MODEL_PROFILE", "FILE",
     "Read the properties of the modelled device and the cost of its calls here, in place of the "
     "built-in profile.",
     SETTINGS},
    {"WEIR_MODEL_DEVICES", "N", "Number of modelled devices, 1 to 16. Default: 1.", SETTINGS},
    {"WEIR_MODEL_SHARED", "FILE",
     "Share the memory of the modelled devices between all processes that name this file. weir "
     "makes the file if it is missing.",
     SETTINGS},
    {"WEIR_RUN_STATS", "SWITCH",
     "weir run --stats, for a program that is started with LD_PRELOAD by other means.", RUN},
    {"WEIR_RUN_JSON", "FILE", "weir run --json, likewise.", RUN},
    {"WEIR_RUN_TRACE", "FILE",
     "weir run --trace-events, for a program that is started with LD_PRELOAD by other means.", RUN},
    {"WEIR_RUN_SAMPLES", "SWITCH", "Add memory over time to the line of JSON, for `weir report'.",
     RUN},
    {"WEIR_RUN_FIRST", "PID",
     "The id of the process that reports if there are no statistics to write.", RUN},
    {"WEIR_RUN_PREALLOC_OF", "NAME",
     "The variable of another program that gave WEIR_PREALLOC its value; a lower limit reduces "
     "this value.",
     RUN},
    {"WEIR_RUN_TOLD", "LIST", "Unknown variables that weir has reported, with commas between.",
     RUN},
    {"WEIR_RUN_TORCH", "SWITCH",
     "0: weir run --no-torch, for a program that is started with LD_PRELOAD by other means.", RUN},
    {"WEIR_RUN_SERVE_MALLOC", "SWITCH",
     "weir run --serve-malloc, for a program that is started with LD_PRELOAD by other means.", RUN},
    {"WEIR_RUN_VERBOSE", "SWITCH", "weir run --verbose, likewise.", RUN},
    {"WEIR_RUN_FOLDER", "FOLDER",
     "The folder in which processes find each other, and `weir top' finds programs, in place of "
     "/dev/shm and /tmp.",
     "weir-top(1)"},
    {"WEIR_RECORD_FOLDER", "FOLDER", TO_RECORD, RECORD},
    {"WEIR_RECORD_RANGES", "PATTERN", TO_RECORD, RECORD},
    {"WEIR_RECORD_CALLERS", "1", TO_RECORD, RECORD},
    {"WEIR_RECORD_SYNCS", "1", TO_RECORD, RECORD},
    {"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "N",
     "TensorFlow's: preallocate N bytes; -1: the fraction of XLA_CLIENT_MEM_FRACTION; 0: nothing.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false|true",
     "JAX's: false: preallocate nothing; anything else: the fraction of XLA_CLIENT_MEM_FRACTION.",
     SETTINGS},
    {"XLA_CLIENT_MEM_FRACTION", "FRACTION",
     "XLA's: preallocate that part of the device's memory, above 0 and at most 1. Default: .75, "
     "where another variable asks "
     "for it.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_MEM_FRACTION", "FRACTION", "The former name of XLA_CLIENT_MEM_FRACTION.",
     SETTINGS},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "NAME",
     "JAX's: platform: engine direct; default, bfc: engine bfc; cuda_async: engine pool.",
     SETTINGS},
    {"TF_GPU_ALLOCATOR", "NAME", "TensorFlow's: cuda_malloc_async: engine pool.", SETTINGS},
    {"PYTORCH_ALLOC_CONF", "LIST",
     "PyTorch's: if it names a backend, PyTorch uses this backend; weir run serves "
     "backend:cudaMallocAsync, and others only with --serve-malloc.  If it names none, weir is "
     "PyTorch's allocator.",
     RUN},
    {"PYTORCH_CUDA_ALLOC_CONF", "LIST", "The name of PYTORCH_ALLOC_CONF before PyTorch 2.9.", RUN},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true|false", "TensorFlow's: true: engine bfc, which grows.",
     SETTINGS},
};

/* Returns 1 if the variable has this name, such as WEIR_GROUP_LIMIT, --group-limit or group-limit; else 0. */
static int is_name(const struct variable *v, const char *name) {
    static const char prefix[] = "WEIR_";
    const char *rest = v->name + sizeof prefix - 1;
    size_t i;

    if (strcmp(v->name, name) == 0)
        return 1;
    if (strncmp(v->name, prefix, sizeof prefix - 1) != 0)
        return 0;
    name += strncmp(name, "--", 2) == 0 ? 2 : 0;
    for (i = 0; name[i] && rest[i]; i++)
        if ((name[i] == '-' ? '_' : toupper((unsigned char)name[i])) != rest[i])
            return 0;
    return name[i] == rest[i];
}

/* Prints the help of a variable in the table.  Returns 1 on success, 0 if the table has no such variable. */
static int print_variables_help(const char *name, FILE *file) {
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const struct variable *v = &variables[i];

        if (!is_name(v, name))
            continue;
        fprintf(file, "%s=%s\n    %s\n    The manual: %s.\n", v->name, v->value, v->help, v->page);
        return 1;
    }
    return 0;
}

/* The address for bug reports, and the web page; both may be "". */
static const char contact[] = PACKAGE_BUGREPORT, url[] = PACKAGE_URL;

static void print_weir_usage(FILE *file) {
    fputs("usage: weir COMMAND [ARGUMENT...]\n\n", file);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(file, "  %-8s %s\n", commands[i].name, commands[i].what);
    fputs(
        "\n`weir help COMMAND' shows the arguments, `weir help TOPIC' what a setting,\na variable "
        "or a flag does, `weir help settings' the settings that most\nprograms need, `weir help "
        "--all' all settings; `weir --version' the version.\nThe manual: weir(1).\n",
        file);
    if (contact[0])
        fprintf(file, "Report problems to %s.\n", contact);
    if (url[0])
        fprintf(file, "%s\n", url);
}

static void compare_commands(struct suggestion *suggestion) {
    for (size_t i = 0; i < COMMANDS; i++)
        suggestion_add(suggestion, commands[i].name);
}

/* Ends an error message.  Suggests the most similar name, if there is one. */
static void end_with_suggestion(const struct suggestion *suggestion) {
    const char *closest = suggestion_closest(suggestion);

    if (closest)
        fprintf(stderr, "; did you mean %s?", closest);
    fputc('\n', stderr);
}

static int run_subcommand(const char *name, int argc, char **argv) {
    struct suggestion suggestion = {.word = name, .length = strlen(name)};
    char title[32];

    for (size_t i = 0; i <= COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            snprintf(title, sizeof title, "weir %s", name);
            argv[0] = title;
            return commands[i].run(argc, argv);
        }
    fprintf(stderr, "weir: no such command: %s; there are:", name);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    compare_commands(&suggestion);
    suggestion_add(&suggestion, "help");
    end_with_suggestion(&suggestion);
    return 2;
}

/* Prints the help of the flag flag->word, for each command that has it.  Returns 1 if a command has the flag, 0 if
 * not. */
static int print_flag_help(struct suggestion *flag) {
    char title[32];
    int is_flag = 0;

    for (size_t i = 0; i < COMMANDS; i++) {
        snprintf(title, sizeof title, "weir %s", commands[i].name);
        is_flag |= weir_cli_flag_print_help(flag, commands[i].run, title);
    }
    return is_flag;
}

/* Prints the help for a command, a setting, a variable or a flag with this name.  Returns the exit code. */
static int print_help(const char *word) {
    char ask[] = "--help", name[] = "help", *arguments[] = {name, ask, NULL};
    struct suggestion suggestion = {.word = word + (strncmp(word, "--", 2) == 0 ? 2 : 0)};

    suggestion.length = strlen(suggestion.word);
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return run_subcommand(word, 2, arguments);
    if (weir_cli_settings_print_help(strcmp(word, "--all") == 0 ? NULL : word, stdout) ||
        print_variables_help(word, stdout) || print_flag_help(&suggestion))
        return !weir_cli_flush_output();
    fprintf(stderr, "weir: no help on %s; there is help on", word);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(stderr, " %s,", commands[i].name);
    fputs(" their flags, the variables of the manual, settings, and each of these", stderr);
    compare_commands(&suggestion);
    suggestion_add(&suggestion, "settings");
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        suggestion_add(&suggestion, weir__setting_row((enum weir_setting)i)->name);
        suggestion_add(&suggestion, weir__setting_row((enum weir_setting)i)->variable);
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        suggestion_add(&suggestion, variables[i].name);
    end_with_suggestion(&suggestion);
    return 2;
}

/* If a Python wheel contains this program, prints the name of the wheel, which is in a file (packaging/wheel). */
static void print_wheel(void) {
    char path[PATH_MAX], line[160] = "";
    FILE *file = shipped_find(path, sizeof path, "share/weir/wheel", "share/weir/wheel", "")
                     ? fopen(path, "re")
                     : NULL;

    if (file && fgets(line, sizeof line, file))
        printf("wheel: %s", line);
    if (file)
        fclose(file);
}

static void print_library(void) {
    char path[PATH_MAX];
    const char *why;

    if (preloading_find("libweir-preload.so", path, sizeof path, &why) == 0)
        printf("weir run loads: %s\n", path);
    else
        printf("weir run loads: none: %s: %s\n", path, why);
}

static void print_driver_version(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*ask)(int *version) = NULL;
    int version = 0, result;

    if (!driver) {
        printf("CUDA driver: none: %s\n", dlerror());
        return;
    }
    *(void **)&ask = dlsym(driver, "cuDriverGetVersion");
    result = ask ? ask(&version) : -1;
    if (result == 0)
        printf("CUDA driver: %d.%d\n", version / 1000, version % 1000 / 10);
    else
        printf("CUDA driver: libcuda.so.1 does not report its version\n");
}

/* Prints the version of weir, the path of the library that `weir run' preloads, and the version of the CUDA driver. */
static void print_version(void) {
    printf("weir %s\n", weir_version());
    print_wheel();
    print_library();
    print_driver_version();
}

/* Opens /dev/null for each of the descriptors 0 to 2 that is closed, so that no other file gets them.  Reads from
 * descriptor 0 and writes to 1 and 2 still fail, as on closed descriptors. */
static void fill_standard_descriptors(void) {
    for (int i = 0; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", (i == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

int main(int argc, char **argv) {
    static char version[64];
    int code;

    fill_standard_descriptors();
    snprintf(version, sizeof version, "weir %s", weir_version());
    argp_program_version = version;
    argp_program_bug_address = contact[0] ? contact : NULL;
    argp_err_exit_status = 2;
    if (argc < 2) {
        print_weir_usage(stderr);
        return 2;
    }
    if (argc > 3 && strcmp(argv[1], "help") == 0) {
        fprintf(stderr, "weir: help takes one word, such as `weir help %s'\n", argv[argc - 1]);
        return 2;
    }
    if (argc > 2 && strcmp(argv[1], "help") == 0 && strcmp(argv[2], "help") != 0 &&
        !help_is_requested(argv[2]))
        return print_help(argv[2]);
    if (strcmp(argv[1], "help") == 0 || help_is_requested(argv[1])) {
        print_weir_usage(stdout);
        return !weir_cli_flush_output();
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        print_version();
        return !weir_cli_flush_output();
    }
    code = run_subcommand(argv[1], argc - 1, argv + 1);
    interrupt_end();
    return code;
}
