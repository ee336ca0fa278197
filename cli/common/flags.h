/* SPDX-License-Identifier: MIT */
/* flags.h: the flags of commands, and the settings of an allocator as flags.
 *
 * weir_settings_argp() has one long flag for each row of the option table (lib/config/settings.h).  A subcommand makes
 * the result a child of the subcommand's parser, calls weir_cli_settings_finish(), which reports bad values, and opens
 * the device.
 *
 * This file must not know subcommands, engines or effects of options.
 */
#ifndef WEIR_CLI_FLAGS_H
#define WEIR_CLI_FLAGS_H

#include <argp.h>
#include <stdio.h>
#include <jansson.h>

#include "config/settings.h"
#include "driver/driver.h"

/* The title of the flags in a help text. */
#define WEIR_SETTINGS_TITLE "Allocator settings (all of them: --help --all):"

struct weir_cli_settings {
    /* The values of the flags and, after weir_cli_settings_finish(), of the environment. */
    weir_options options;
    struct weir_sources sources; /* the source of each value */
    /* The place for which weir_cli_settings_finish() reads the environment. */
    enum weir_place place;
    /* The reason why the first bad value of a flag did not parse; "" if all values parsed. */
    char error[512];
};

/* Returns the flags for a struct argp_child, as static memory.  If `refused' is the number of a setting, help texts do
 * not list this setting.  The input of the child is a struct weir_cli_settings that weir_cli_settings_init has
 * initialised.  Not thread-safe. */
const struct argp *weir_settings_argp(int refused);
/* Returns the setting of that name, or WEIR_SETTING_COUNT if there is none.  The name need not end behind its
 * length. */
int weir_cli_setting(const char *name, size_t length);
/* Prints the help of the setting that has `name' as its name, flag or variable.  If `name' is "settings", prints the
 * help of all settings that are not advanced.  If `name' is NULL, prints the help of all settings.  Returns 1 on
 * success, 0 if there is no such setting. */
int weir_cli_settings_tell(const char *name, FILE *file);

/* Returns 1 if all output was written to standard output, 0 with a message if not. */
int weir_cli_written(void);

/* Parses as argp_parse does.  argp_parse ends the program at an unknown option; weir_cli_parse then also prints the
 * option that the user meant, if an option is close enough.  argp_parse also ends the program at --help; weir_cli_parse
 * treats -h in this way, too, and fails if the help cannot be written. */
error_t weir_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* Returns 1 if the argument is a request for help: --help, -h or -?; 0 if not. */
int help_is_requested(const char *argument);

/* The name that is most like a misspelt word.  The word need not end behind its `length'. */
struct likeness {
    const char *word;
    size_t length;
    const char *closest; /* NULL before the first comparison */
    size_t distance;
};

/* Compares one more name. */
void likeness_add(struct likeness *likeness, const char *name);
/* Returns the closest name, or one that has the word as a part.  Returns NULL if the word differs from the closest name
 * in more than two letters, or in half of the word. */
const char *likeness_closest(const struct likeness *likeness);

/* Runs the command so that weir_cli_parse prints the help of the flag flag->word, compares the names of the command's
 * flags with the word, and returns an error at once.  Returns 1 if the command has the flag, 0 if not. */
int weir_cli_flag_tell(struct likeness *flag, int (*command)(int argc, char **argv), char *title);

/* Reads the text of a flag such as "--limit" into a field of the command's struct.  `text' is NULL if the flag has no
 * argument.  Ends the program with a usage error if the text is bad. */
typedef void weir_cli_take(struct argp_state *state, const char *flag, const char *text,
                           void *field);

/* A flag of a command.  A table of flags ends with a row that has no name. */
struct weir_cli_flag {
    const char *name;
    int key; /* the flag's letter, or 0, WEIR_CLI_OPTIONAL or WEIR_CLI_HIDDEN */
    /* The argument's name in help texts, or NULL if the flag has no argument. */
    const char *argument;
    weir_cli_take *take;
    size_t field; /* the offset of the field in the input of the parser */
    const char *help;
};
/* The keys of flags without a letter whose argument may be left out, and of flags that help texts do not list. */
enum { WEIR_CLI_OPTIONAL = 0x100, WEIR_CLI_HIDDEN };

/* Returns the options of a table for a struct argp, as static memory.  Not thread-safe. */
const struct argp_option *weir_cli_options(const struct weir_cli_flag *flags);
/* Reads a flag of the table into the input of the parser.  Returns 0, or ARGP_ERR_UNKNOWN if no flag of the table has
 * the key. */
error_t weir_cli_read_flag(const struct weir_cli_flag *flags, int key, char *argument,
                           struct argp_state *state);

weir_cli_take weir_cli_take_switch; /* sets an int to 1 */
weir_cli_take weir_cli_take_text;   /* sets a const char * */
weir_cli_take weir_cli_take_file;   /* sets a const char *; refuses "" and "-" */
weir_cli_take weir_cli_take_output; /* sets a const char *; refuses ""; "-" is standard output */
/* Sets a const char *; refuses a name that does not end in .html. */
weir_cli_take weir_cli_take_page;
weir_cli_take weir_cli_take_size;   /* sets a uint64_t to a size above 0 */
weir_cli_take weir_cli_take_device; /* sets the device of a struct weir_cli_settings */

/* Sets all settings to their defaults.  Not thread-safe. */
void weir_cli_settings_init(struct weir_cli_settings *settings);

/* Sets a setting as its flag does, for a subcommand that has its own flag for the setting. */
void weir_cli_settings_set(struct weir_cli_settings *settings, enum weir_setting setting,
                           const char *text);

/* Sets the settings that no flag has set, as if the flag `flag' set them.  Must be called after weir_cli_parse and
 * before weir_cli_settings_finish.  Returns 0 on success, 1 with a message if the file cannot be read, 2 with a message
 * if a line is wrong. */
int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path);

/* Must be called after weir_cli_parse.  Takes settings that no flag has set from the environment, and checks all
 * settings together.  Returns 0 on success, 2 with a message such as "weir: --prealloc '4X': ...". */
int weir_cli_settings_finish(struct weir_cli_settings *settings);

/* Returns the flag or the variable that has set the setting, or the name of the setting if there is neither. */
const char *weir_cli_label(const struct weir_cli_settings *settings, enum weir_setting setting);

/* Prints which settings the user has set although the command does not use them, because its configurations have their
 * own settings. */
void weir_cli_settings_tell_unused(const struct weir_cli_settings *settings);

/* The device on which a command runs. */
struct weir_cli_device {
    const struct weir_driver *driver;
    int ordinal;
    int count;      /* devices of this driver */
    uint64_t total; /* bytes of device memory */
    char name[128]; /* the name in output: "cuda:0 NVIDIA H200", "model h200" */
    /* Set if the device is the device model because the user named no device and there is no GPU. */
    int fell_back;
    char why_not[256]; /* if fell_back is set: the reason why there is no GPU */
};

/* Returns 0 if the profile of --profile or WEIR_PROFILE can be used or made, 1 with a message if not.  If `makes' is
 * set, a message says that the command will make the file. */
int weir_cli_profile_check(const struct weir_cli_settings *settings, int makes);
/* Returns the file that the setting names, WEIR_SETTING_PROFILE or WEIR_SETTING_OOM_REPORT, or NULL if there is
 * none. */
const char *weir_cli_file_of(const weir_options *options, enum weir_setting setting);
/* Returns 0 if the file of --oom-report or WEIR_OOM_REPORT can be written, 1 with a message if not. */
int weir_cli_oom_report_check(const struct weir_cli_settings *settings);

/* Opens the device that --device or WEIR_DEVICE names.  If neither names a device, opens the GPU.  If there is no GPU,
 * opens the device model, and reports this on standard error unless `quiet' is set.  Sets settings->options.device to
 * the device's name.  Checks the preallocation against the device's memory and the limit; weir_cli_settings_finish can
 * only compare amounts of one kind.  Initialises the driver, so a process that forks later must exec.  Returns 0 on
 * success, 1 with a message if the device does not exist or is too small. */
int weir_cli_device_open(struct weir_cli_settings *settings, struct weir_cli_device *device,
                         int quiet);

/* Returns the file of the device model's profile, or "built-in". */
const char *weir_cli_model_profile(void);

/* Returns a new object with every setting in the words of its flag: {"prealloc": "8GiB", "growth": "step:64MiB", ...}.
 * Returns NULL if there is no host memory. */
json_t *weir_cli_options_json(const weir_options *options);

#endif
