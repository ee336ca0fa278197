/* SPDX-License-Identifier: MIT */
/* weir.c: the program: finds the subcommand and hands over. */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weir/weir.h>

#include "base/text.h"
#include "cli/common/commands.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/runner.h"
#include "cli/common/shipped.h"
#include "cli/variables.h"
#include "cli/version.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what; /* NULL: internal */
    int draws;        /* it may draw pictures, by a program that may have come with it */
} commands[] = {
    {"bench", weir_cmd_bench, "compare configurations on the same traces", 1},
    {"info", weir_cmd_info, "show the driver, the devices, and the settings with their sources", 0},
    {"park", weir_cmd_park, "move a process's device memory to host memory and stop it", 0},
    {"record", weir_cmd_record, "record a program's requests for CUDA memory as a trace", 0},
    {"replay", weir_cmd_replay, "replay traces on one allocator with your settings", 1},
    {"report", weir_cmd_report, "make a page with pictures from results of bench, replay or run",
     1},
    {"run", weir_cmd_run, "run a program with CUDA memory from weir", 0},
    {"top", weir_cmd_top, "watch the programs that run under `weir run'", 0},
    {"torch", weir_cmd_torch, "tell whether weir can be PyTorch's allocator", 0},
    {"tune", weir_cmd_tune, "find settings for a program, by replays of its trace", 0},
    {"wake", weir_cmd_wake, "bring a parked process back", 0},
    {RUNNER_SUBCOMMAND, weir_cmd_replay_child, NULL, 0},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

/* From configure.ac, and empty where there is none. */
static const char contact[] = PACKAGE_BUGREPORT, url[] = PACKAGE_URL;

static void print_usage(FILE *file) {
    fputs("usage: weir COMMAND [ARGUMENT...]\n\n", file);
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].what)
            fprintf(file, "  %-8s %s\n", commands[i].name, commands[i].what);
    fputs("\n`weir help COMMAND' shows the arguments, `weir help SETTING' what a setting\nor a "
          "variable does, `weir help settings' the settings that most programs need,\n`weir help "
          "--all' all settings; `weir --version' the version.  The manual:\nweir(1).\n",
          file);
    if (contact[0])
        fprintf(file, "Report problems to %s.\n", contact);
    if (url[0])
        fprintf(file, "%s\n", url);
}

static int is_one_of(const char *word, const char *a, const char *b) {
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* What a misspelt word is like, behind a list of what there is. */
struct likeness {
    const char *word, *closest; /* NULL: nothing yet */
    size_t distance;
};

static void compare(struct likeness *likeness, const char *name) {
    size_t distance = weir__text_distance(likeness->word, strlen(likeness->word), name);

    if (likeness->closest && distance >= likeness->distance)
        return;
    likeness->closest = name;
    likeness->distance = distance;
}

static void compare_commands(struct likeness *likeness) {
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].what)
            compare(likeness, commands[i].name);
}

/* Two letters off, and not most of the word. */
static void suggest(const struct likeness *likeness) {
    if (likeness->distance <= 2 && likeness->distance * 2 < strlen(likeness->word))
        fprintf(stderr, "; did you mean %s?", likeness->closest);
    fputc('\n', stderr);
}

static int run_command(const char *name, int argc, char **argv) {
    struct likeness likeness = {.word = name};
    char title[32];

    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) {
            snprintf(title, sizeof title, "weir %s", name);
            argv[0] = title;
            if (commands[i].draws)
                shipped_use_programs();
            return commands[i].run(argc, argv);
        }
    fprintf(stderr, "weir: no such command: %s; there are:", name);
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].what)
            fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    compare_commands(&likeness);
    compare(&likeness, "help");
    suggest(&likeness);
    return 2;
}

/* What a command, a setting or a variable does, by any of its names. */
static int help(const char *topic) {
    char ask[] = "--help", name[] = "help", *arguments[] = {name, ask, NULL};
    struct likeness likeness = {.word = topic + (strncmp(topic, "--", 2) == 0 ? 2 : 0)};

    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].what && strcmp(topic, commands[i].name) == 0)
            return run_command(topic, 2, arguments);
    if (weir_cli_settings_tell(strcmp(topic, "--all") == 0 ? NULL : topic, stdout) ||
        variables_tell(topic, stdout))
        return !weir_cli_written();
    fprintf(stderr, "weir: no help on %s; there is help on", topic);
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].what)
            fprintf(stderr, " %s,", commands[i].name);
    fputs(" the variables of the manual, settings, and each of these", stderr);
    compare_commands(&likeness);
    compare(&likeness, "settings");
    for (int i = 0; i < WEIR_SETTING_COUNT; i++) {
        compare(&likeness, weir__setting_row((enum weir_setting)i)->name);
        compare(&likeness, weir__setting_row((enum weir_setting)i)->variable);
    }
    for (int i = 0; variables_name(i); i++)
        compare(&likeness, variables_name(i));
    suggest(&likeness);
    return 2;
}

/* Opens a descriptor in place of each standard one that is closed: otherwise a file that a command opens would get that
 * number, and with it what the command prints.  These descriptors fail as closed ones do, and no program inherits
 * them. */
static void hold_standard_descriptors(void) {
    for (int i = 0; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", (i == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
}

int main(int argc, char **argv) {
    static char version[64];
    int code;

    hold_standard_descriptors();
    snprintf(version, sizeof version, "weir %s", weir_version());
    argp_program_version = version;
    argp_program_bug_address = contact[0] ? contact : NULL;
    argp_err_exit_status = 2;
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (argc > 3 && strcmp(argv[1], "help") == 0) {
        fprintf(stderr, "weir: help takes one word, such as `weir help %s'\n", argv[argc - 1]);
        return 2;
    }
    if (argc > 2 && strcmp(argv[1], "help") == 0 && !is_one_of(argv[2], "--help", "-?"))
        return help(argv[2]);
    if (is_one_of(argv[1], "--help", "help") || strcmp(argv[1], "-?") == 0) {
        print_usage(stdout);
        return !weir_cli_written();
    }
    if (is_one_of(argv[1], "--version", "-V")) {
        version_print();
        return !weir_cli_written();
    }
    code = run_command(argv[1], argc - 1, argv + 1);
    interrupt_end();
    return code;
}
