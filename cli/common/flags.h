/* SPDX-License-Identifier: MIT */
/* flags.h: the settings of an allocator as flags of the program.
 *
 * One long flag per row of the option table (lib/config/settings.h), generated from it, as an argp child
 * that each subcommand adds to its own parser:
 *
 *     case ARGP_KEY_INIT:  state->child_inputs[0] = &settings;
 *     ...
 *     struct argp_child children[] = {{weir_settings_argp(), 0, WEIR_SETTINGS_TITLE, 1}, {0}};
 *     argp_parse(&argp, argc, argv, 0, NULL, &...);
 *     if ((code = weir_cli_settings_finish(&settings)) != 0) return code;
 *     if ((code = weir_cli_device_open(&settings, &device, 0)) != 0) return code;
 *
 * A flag whose value does not parse is not a usage error: it is kept until weir_cli_settings_finish,
 * which says what was wrong and answers 2.  Unknown flags and missing arguments are argp's and end
 * with argp_err_exit_status, which main sets to 2.
 *
 * Must not know: subcommands, engines, what an option does.
 */
#ifndef WEIR_CLI_FLAGS_H
#define WEIR_CLI_FLAGS_H

#include <argp.h>
#include <stdio.h>
#include <jansson.h>

#include "cli/common/help.h"
#include "config/settings.h"
#include "driver/driver.h"

/* What stands over them in a help text. */
#define WEIR_SETTINGS_TITLE "Allocator settings (all of them: --help --all):"

struct weir_cli_settings {
    weir_options options; /* what was set; after finish, the environment below the flags too */
    struct weir_sources sources; /* where each value came from */
    enum weir_place place;       /* for which finish reads it: the program's own, if not set */
    char error[512];             /* the first flag value that did not parse; "" for none */
};

/* The flags, for a struct argp_child; its input is a struct weir_cli_settings, which
 * weir_cli_settings_init has set up.  Static; the same at each call.  Not thread-safe. */
const struct argp *weir_settings_argp(void);
/* The same where one of them is refused: it is not listed. */
const struct argp *weir_settings_argp_but(enum weir_setting refused);
/* Tells what a setting is, by its name, flag or variable; "settings": each that is not advanced; NULL: each.  0: there is
 * none of that name. */
int weir_cli_settings_tell(const char *name, FILE *file);

/* 1 if standard output has taken all; or 0, with a message printed. */
int weir_cli_written(void);

/* Parses as argp_parse does.  argp_parse ends the program at an unknown option; weir_cli_parse then also prints the
 * option that the user meant, if an option is close enough.  argp_parse also ends the program at --help; weir_cli_parse
 * lets -h do this as well, and fails if the help cannot be written. */
error_t weir_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* Runs the command so that weir_cli_parse prints the help of the flag flag->word, compares the names of the command's
 * flags with the word, and returns an error at once.
 * Returns 1 if the command has the flag, 0 if not. */
int weir_cli_flag_tell(struct likeness *flag, int (*command)(int argc, char **argv), char *title);

/* The value of a flag that names a file: not "", nor "-" unless standard output may be meant.  Else it is wrong usage,
 * which ends the program. */
const char *weir_cli_file(struct argp_state *state, const char *flag, const char *name,
                          int or_standard);

/* Everything default, nothing from the environment yet.  Not thread-safe. */
void weir_cli_settings_init(struct weir_cli_settings *settings);

/* What the flag of that setting does, for a subcommand with a flag of its own for it. */
void weir_cli_settings_set(struct weir_cli_settings *settings, enum weir_setting setting,
                           const char *text);

/* After argp_parse: fills what no flag set from the environment and checks all of it together (a
 * limit below the preallocation, ...).  Prints what is wrong, as
 * "weir: --prealloc '4X': ...", and returns the exit code of the program: 0, or 2. */
int weir_cli_settings_finish(struct weir_cli_settings *settings);

/* "--profile" or "WEIR_PROFILE", whichever set it; else the setting's name. */
const char *weir_cli_label(const struct weir_cli_settings *settings, enum weir_setting setting);

/* For commands whose configurations have settings of their own, so what the environment sets for other programs has no
 * say there.  Better said than silently so. */
void weir_cli_settings_tell_unused(const struct weir_cli_settings *settings);

/* Puts every value that a flag gave into the environment (WEIR_<OPTION>), for a program to be run.
 * 0, or 1 with a message printed. */
int weir_cli_settings_export(const struct weir_cli_settings *settings);

/* Where to run. */
struct weir_cli_device {
    const struct weir_driver *driver;
    int ordinal;
    int count;         /* devices of this driver */
    uint64_t total;    /* bytes of device memory */
    char name[128];    /* as output shows it: "cuda:0 NVIDIA H200", "model h200" */
    int fell_back;     /* nobody named a device and there is no GPU, so it is the device model */
    char why_not[256]; /* why there is no GPU, when fell_back */
};

/* Returns 0 if the profile of --profile or WEIR_PROFILE can be used or made, 1 with a message if not.  With `makes', a
 * message says that the command will make the file. */
int weir_cli_profile_check(const struct weir_cli_settings *settings, int makes);
/* Returns the file that the setting names, WEIR_SETTING_PROFILE or WEIR_SETTING_VERDICT, or NULL if there is none. */
const char *weir_cli_file_of(const weir_options *options, enum weir_setting setting);
/* Returns 0 if the file of --oom-report or WEIR_OOM_REPORT can be written, 1 with a message if not. */
int weir_cli_oom_report_check(const struct weir_cli_settings *settings);

/* Opens the device that --device or WEIR_DEVICE names; without either the GPU if there is one, else
 * the device model, and then says so on standard error (unless `quiet`).  settings->options.device
 * names it afterwards.  Checks the preallocation against the device's memory and the limit, which
 * weir_cli_settings_finish can only do where both are of one kind.  Initialises the driver: a process
 * that forks later must exec.
 * 0, or 1 with a message printed: what was named is not there, or not that large. */
int weir_cli_device_open(struct weir_cli_settings *settings, struct weir_cli_device *device,
                         int quiet);

/* What a device model is played from: the file, or "built-in". */
const char *weir_cli_model_profile(void);

/* {"prealloc": "8GiB", "growth": "step:64MiB", ...}: every effective setting as it would be typed.
 * A new reference, NULL when out of memory. */
json_t *weir_cli_options_json(const weir_options *options);

#endif
