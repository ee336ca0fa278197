/* SPDX-License-Identifier: MIT */
/* flags.h: reads the flags of commands, and makes a flag for each setting of an allocator.
 *
 * weir_settings_argp() returns one long flag for each row of the option table (lib/config/settings.h).  A subcommand
 * adds this argp as a child of its own argp, and parses its arguments.  Then it calls weir_cli_settings_finish(),
 * which reads the environment and reports bad values.  Finally, it may open the device.
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

/* The title above the settings in help texts. */
#define WEIR_SETTINGS_TITLE "Allocator settings (all of them: --help --all):"

struct weir_cli_settings {
    /* The values of all settings.  weir_cli_settings_finish() adds the values of environment variables. */
    weir_options options;
    /* The source of each value: a flag, a variable, or NULL for a default. */
    struct weir_sources sources;
    /* The kind of program that reads the variables, for weir_cli_settings_finish(). */
    enum weir_place place;
    /* The reason why the value of a flag is wrong, for the first wrong value; "" if all values are right. */
    char error[512];
};

/* Returns the flags of all settings for a struct argp_child, in static memory.  The input of the child is a struct
 * weir_cli_settings that weir_cli_settings_init() has initialised.  If `refused' is the number of a setting, help
 * texts do not list this setting.  Not thread-safe. */
const struct argp *weir_settings_argp(int refused);
/* Returns the setting whose name is the first `length' bytes of `name'.  Returns WEIR_SETTING_COUNT if there is no
 * such setting. */
int weir_cli_setting(const char *name, size_t length);
/* Prints help about settings to the file.  `name' is the name, the flag or the variable of one setting.  If `name'
 * is "settings", prints the help of all settings that are not advanced.  If `name' is NULL, prints the help of all
 * settings.  Returns 1 on success, 0 if there is no such setting. */
int weir_cli_settings_print_help(const char *name, FILE *file);

/* Flushes standard output.  Returns 1 if all output was written.  Otherwise prints a message and returns 0. */
int weir_cli_flush_output(void);

/* Parses arguments with argp_parse(), and adds three things.  At an unknown option, prints a known option that is
 * similar.  Accepts -h for --help.  Ends the program with exit code 1 if the help text cannot be written. */
error_t weir_cli_parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input);

/* Returns 1 if the argument asks for help (--help, -h or -?), 0 if not. */
int help_is_requested(const char *argument);

/* The state of a search for the name that is most similar to a misspelt word.  The word is the first `length' bytes
 * of `word'. */
struct likeness {
    const char *word;
    size_t length;
    const char *closest; /* the most similar name so far, or NULL */
    size_t distance;
};

/* Compares the word with one more name. */
void likeness_add(struct likeness *likeness, const char *name);
/* Returns the most similar name.  Returns NULL if the word differs from this name in more than two letters, or in
 * half of its letters.  If the word is a whole part of the name, as "limit" is of "group-limit", the difference
 * counts as one letter. */
const char *likeness_closest(const struct likeness *likeness);

/* Prints the help text of the flag flag->word, if the command has this flag.  Compares flag->word with all flags of
 * the command.  For this, calls the function `command', in which weir_cli_parse() then prints the help and returns
 * an error.  Returns 1 if the command has the flag, 0 if not. */
int weir_cli_flag_print_help(struct likeness *flag, int (*command)(int argc, char **argv),
                             char *title);

/* Reads the argument of a flag into a field of the command's struct.  `flag' is the flag as the user wrote it, such
 * as "--limit".  `text' is NULL if the flag has no argument.  If the text is wrong, reports a usage error and ends
 * the program. */
typedef void weir_cli_flag_reader(struct argp_state *state, const char *flag, const char *text,
                                  void *field);

/* A flag of a command.  Commands have tables of flags; the last row of a table has no name. */
struct weir_cli_flag {
    const char *name;
    /* The letter of the short option, or 0, WEIR_CLI_OPTIONAL or WEIR_CLI_HIDDEN. */
    int key;
    /* The name of the argument in help texts, or NULL if the flag has no argument. */
    const char *argument;
    weir_cli_flag_reader *read;
    size_t field; /* the offset of the field in the input of argp's parser */
    const char *help;
};
/* Keys of flags without a short option.  WEIR_CLI_OPTIONAL is for a flag whose argument may be left out.
 * WEIR_CLI_HIDDEN is for a flag that help texts do not list. */
enum { WEIR_CLI_OPTIONAL = 0x100, WEIR_CLI_HIDDEN };

/* Converts a table of flags to options for a struct argp, in static memory.  Not thread-safe. */
const struct argp_option *weir_cli_options(const struct weir_cli_flag *flags);
/* Reads the flag with this key into the input of the parser.  Returns 0 on success, ARGP_ERR_UNKNOWN if no flag of
 * the table has the key. */
error_t weir_cli_read_flag(const struct weir_cli_flag *flags, int key, char *argument,
                           struct argp_state *state);

/* The functions below are for the field `read' of a flag.  Each of them sets a field of a certain type. */

weir_cli_flag_reader weir_cli_read_switch; /* sets an int to 1, for a flag without an argument */
weir_cli_flag_reader weir_cli_read_text;   /* sets a const char * to the argument */
/* Sets a const char *; reports an error for "" and "-". */
weir_cli_flag_reader weir_cli_read_file;
/* Sets a const char *; reports an error for ""; "-" is standard output. */
weir_cli_flag_reader weir_cli_read_output;
/* Sets a const char *; reports an error for a name that does not end in .html. */
weir_cli_flag_reader weir_cli_read_page;
weir_cli_flag_reader weir_cli_read_size;   /* sets a uint64_t to a number of bytes above 0 */
weir_cli_flag_reader weir_cli_read_device; /* sets the device of a struct weir_cli_settings */

/* Sets all settings to their defaults.  Not thread-safe. */
void weir_cli_settings_init(struct weir_cli_settings *settings);

/* Sets a setting as if its own flag had the value `text'.  A subcommand uses this if another of its flags sets the
 * setting. */
void weir_cli_settings_set(struct weir_cli_settings *settings, enum weir_setting setting,
                           const char *text);

/* Reads settings from a file, for the flag `flag'.  A setting that its own flag has set does not change.  Must be
 * called after weir_cli_parse() and before weir_cli_settings_finish().  Returns 0 on success.  On failure, prints a
 * message and returns 1 if the file cannot be read, 2 if a line is wrong. */
int settings_file_read(struct weir_cli_settings *settings, const char *flag, const char *path);

/* Reads from the environment all settings that no flag has set, and then checks all settings together.  Must be
 * called after weir_cli_parse().  Returns 0 on success.  On failure, prints a message such as "weir: --prealloc
 * '4X': ..." and returns 2. */
int weir_cli_settings_finish(struct weir_cli_settings *settings);

/* Returns the flag or the variable that has set the setting.  If the setting has its default, returns the name of
 * the setting. */
const char *weir_cli_label(const struct weir_cli_settings *settings, enum weir_setting setting);

/* Prints those of the user's settings that have no effect, because each configuration of the command has
 * other settings. */
void weir_cli_settings_report_unused(const struct weir_cli_settings *settings);

/* The device on which a command runs. */
struct weir_cli_device {
    const struct weir_driver *driver;
    int ordinal;
    int count;      /* the number of devices of this driver */
    uint64_t total; /* the size of the device memory in bytes */
    /* The name of the device in output, such as "cuda:0 NVIDIA H200" or "model h200". */
    char name[128];
    /* Set if weir chose the device model because the user named no device and there is no GPU. */
    int fell_back;
    char why_not[256]; /* the reason why there is no GPU, if fell_back is set */
};

/* Checks that weir can use or create the profile that --profile or WEIR_PROFILE names.  If `creates' is set and the
 * profile does not exist, prints that the command will create it.  Returns 0 on success.  On failure, prints a
 * message and returns 1. */
int weir_cli_profile_check(const struct weir_cli_settings *settings, int creates);
/* Returns the file that a setting names, or NULL if the setting names no file.  The setting is WEIR_SETTING_PROFILE
 * or WEIR_SETTING_OOM_REPORT. */
const char *weir_cli_file_of(const weir_options *options, enum weir_setting setting);
/* Checks that weir can write the file that --oom-report or WEIR_OOM_REPORT names.  Returns 0 on success.  On
 * failure, prints a message and returns 1. */
int weir_cli_oom_report_check(const struct weir_cli_settings *settings);

/* Opens the device that --device or WEIR_DEVICE names.  If neither names a device, opens the GPU.  If there is no
 * GPU, opens the device model and prints a note, unless `quiet' is set.  Sets settings->options.device.
 *
 * Also checks that the preallocation fits into the device's memory and into the limit.  Initialises the driver, so
 * the process must not fork later without exec.  Returns 0 on success.  On failure, prints a message and returns 1.
 */
int weir_cli_device_open(struct weir_cli_settings *settings, struct weir_cli_device *device,
                         int quiet);

/* Returns the file with the profile of the device model, or "built-in" if the user named none. */
const char *weir_cli_model_profile(void);

/* Returns a new JSON object with all settings.  Each value is a text that the flag of the setting accepts:
 * {"prealloc": "8GiB", "growth": "step:64MiB", ...}.  Returns NULL if there is no host memory. */
json_t *weir_cli_options_json(const weir_options *options);

#endif
